"""Small durable records in two copies: what an agent must never half remember (safety 2, 3).

Law of this file: bytes under keys, each in a 512-byte slot (one sector, so that a torn write harms one
record), each slot in two files. A save writes and syncs the first file, then the second, then returns: at any
crash one copy is whole, and two bad copies of a slot prove damage. Saves are group-committed: those asked for
while a sync runs go into the next. identity.py gives records their meaning.
"""

import asyncio
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import crc32c

from shoal.segment_store.disk.disk import Disk, File

SLOT_BYTES = 512
MAX_SLOTS = 65_536
"""More groups than one agent is meant to hold; 32 MiB a copy."""

_HEAD = struct.Struct("<4sHHHHQ")
_CHECKSUM = struct.Struct("<I")
_MAGIC = b"SHSL"
_VERSION = 1
_REMOVED = 1
MAX_RECORD_BYTES = SLOT_BYTES - _HEAD.size - _CHECKSUM.size
"""Key and payload together."""


class PairedFileError(Exception):
    """The records cannot be kept: no free slot, a record too long for one, or a disk that failed."""


@dataclass(frozen=True, slots=True)
class _Slot:
    sequence: int
    key: bytes
    payload: bytes
    removed: bool


def encode_slot(sequence: int, key: bytes, payload: bytes, *, removed: bool = False) -> bytes:
    assert len(key) + len(payload) <= MAX_RECORD_BYTES
    head = _HEAD.pack(_MAGIC, _VERSION, _REMOVED if removed else 0, len(key), len(payload), sequence)
    body = (head + key + payload).ljust(SLOT_BYTES - _CHECKSUM.size, b"\0")
    return body + _CHECKSUM.pack(crc32c.crc32c(body))


def decode_slot(data: bytes) -> _Slot | None:
    """None: no whole record."""
    if len(data) != SLOT_BYTES:
        return None
    body = data[: -_CHECKSUM.size]
    if _CHECKSUM.unpack_from(data, len(body))[0] != crc32c.crc32c(body):
        return None
    magic, version, flags, key_length, payload_length, sequence = _HEAD.unpack_from(body)
    if magic != _MAGIC or version != _VERSION or key_length + payload_length > MAX_RECORD_BYTES:
        return None
    end = _HEAD.size + key_length
    return _Slot(sequence, body[_HEAD.size : end], body[end : end + payload_length], bool(flags & _REMOVED))


class PairedFile:
    """Records by key, loaded whole, saved in two copies. Use from one event loop."""

    def __init__(self, files: tuple[File, File]) -> None:
        self._files = files
        self._records: dict[bytes, bytes] = {}
        self._slots: dict[bytes, int] = {}
        self._free: list[int] = []
        self._slot_count = 0
        self._sequence = 0
        self._pending: dict[int, bytes] = {}
        self._waiters: list[asyncio.Future[None]] = []
        self._flusher: asyncio.Task[None] | None = None
        self._failure: PairedFileError | None = None
        self.damaged_slots = 0
        """Slots of which neither copy can be read: their keys are unknown, their records are lost."""

    @classmethod
    async def open(cls, disk: Disk, directory: str, name: str) -> "PairedFile":
        """Load `directory/name.a` and `.b`, made when missing, and mend a copy that a crash left behind."""
        paths = [f"{directory}/{name}.{copy}" for copy in ("a", "b")]
        missing = [path for path in paths if not await disk.exists(path)]
        files = (await disk.open(paths[0], create=True), await disk.open(paths[1], create=True))
        if missing:
            await disk.sync_directory(directory)
        doubled = cls(files)
        await doubled._load()
        return doubled

    async def _load(self) -> None:
        contents = []
        for file in self._files:
            size = min(await file.size(), MAX_SLOTS * SLOT_BYTES)
            contents.append(await file.read(0, size) if size else b"")
        self._slot_count = (max(map(len, contents)) + SLOT_BYTES - 1) // SLOT_BYTES
        stale: tuple[list[tuple[int, bytes]], list[tuple[int, bytes]]] = ([], [])
        for number in range(self._slot_count):
            start = number * SLOT_BYTES
            copies = [content[start : start + SLOT_BYTES] for content in contents]
            whole = [(slot, data) for data in copies if (slot := decode_slot(data)) is not None]
            if whole:
                newest, data = max(whole, key=lambda item: item[0].sequence)
                self._note(number, newest)
                for copy, behind in zip(copies, stale, strict=True):
                    if copy != data:
                        behind.append((number, data))
            elif not any(copies[1]):
                # The first copy may be torn. That save had not returned, so the record never was.
                self._free.append(number)
            elif 0 < len(contents[0]) <= start:
                # Rubbish behind the end: a record stands in the first file before it stands in the second.
                # It is wiped, lest the slot, once the first file is longer, looks like a record lost in both.
                self._free.append(number)
                stale[1].append((number, bytes(SLOT_BYTES)))
            else:
                self.damaged_slots += 1
        for file, behind in zip(self._files, stale, strict=True):
            if behind:
                await _write_slots(file, behind)

    def _note(self, number: int, newest: _Slot) -> None:
        self._sequence = max(self._sequence, newest.sequence)
        if newest.removed:
            self._free.append(number)
        else:
            self._records[newest.key] = newest.payload
            self._slots[newest.key] = number

    def __len__(self) -> int:
        return len(self._records)

    def check(self) -> None:
        """Raises PairedFileError once a write or sync has failed: what is known here may be nowhere else."""
        if self._failure is not None:
            raise self._failure

    def get(self, key: bytes) -> bytes | None:
        """The last payload saved, synced or being synced."""
        return self._records.get(key)

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        return iter(list(self._records.items()))

    async def save(self, key: bytes, payload: bytes) -> None:
        """Returns once both copies are synced. A failed write or sync raises PairedFileError from then on."""
        if len(key) + len(payload) > MAX_RECORD_BYTES:
            raise PairedFileError(
                f"a record of {len(key) + len(payload)} bytes, more than {MAX_RECORD_BYTES}"
            )
        number = self._slots.get(key)
        if number is None:
            number = self._take_slot()
            self._slots[key] = number
        self._records[key] = payload
        self._sequence += 1
        await self._commit(number, encode_slot(self._sequence, key, payload))

    async def remove(self, key: bytes) -> None:
        """Forget a record, durably; a key that is not there is no error."""
        number = self._slots.pop(key, None)
        if number is None:
            return
        del self._records[key]
        self._sequence += 1
        await self._commit(number, encode_slot(self._sequence, key, b"", removed=True))
        self._free.append(number)

    def _take_slot(self) -> int:
        if self._free:
            return self._free.pop()
        if self._slot_count >= MAX_SLOTS:
            raise PairedFileError(f"all {MAX_SLOTS} records are in use")
        self._slot_count += 1
        return self._slot_count - 1

    async def _commit(self, number: int, data: bytes) -> None:
        self.check()
        self._pending[number] = data
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        if self._flusher is None:
            self._flusher = asyncio.create_task(self._flush())
        await waiter

    async def _flush(self) -> None:
        while self._pending:
            batch = sorted(self._pending.items())
            waiters = self._waiters
            self._pending, self._waiters = {}, []
            try:
                for file in self._files:
                    await _write_slots(file, batch)
            except OSError as error:
                self._fail(PairedFileError(f"the disk failed under {file.path}: {error}"), waiters)
                return
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
        self._flusher = None

    def _fail(self, error: PairedFileError, waiters: list[asyncio.Future[None]]) -> None:
        # A failed sync is never retried: nobody knows which of the two copies the disk holds.
        self._failure = error
        for waiter in [*waiters, *self._waiters]:
            if not waiter.done():
                waiter.set_exception(error)
        self._waiters.clear()
        self._pending.clear()

    async def close(self) -> None:
        """Wait for saves under way and close the files."""
        while self._flusher is not None and not self._flusher.done():
            await asyncio.wait([self._flusher])
        for file in self._files:
            await file.close()


async def _write_slots(file: File, slots: list[tuple[int, bytes]]) -> None:
    """Ascending; those that lie side by side in one write, as the records of a thousand new replicas do."""
    runs: list[tuple[int, list[bytes]]] = []
    for number, data in slots:
        if runs and number == runs[-1][0] + len(runs[-1][1]):
            runs[-1][1].append(data)
        else:
            runs.append((number, [data]))
    for first, run in runs:
        await file.write(first * SLOT_BYTES, b"".join(run))
    await file.sync()
