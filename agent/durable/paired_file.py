"""Small durable records in two copies: what an agent must never half remember (safety 2, 3).

Law of this file: bytes under keys, each in a 512-byte slot (one sector, so that a torn write harms one
record), each slot in two files. A save writes and syncs the first file, then the second, then returns: at any
crash one copy is whole, and two bad copies of a slot prove damage. Saves are group-committed: those asked for
while a sync runs go into the next. A write that finds no room goes on where it stopped, with the same bytes.
Newer ones come later: a slot of which one copy may be torn is not touched in the other. identity.py gives
records their meaning.
"""

import asyncio
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import crc32c

from shoal.segment_store.disk.disk import Disk, File
from shoal.segment_store.errors import is_no_space

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


class PairedFileFull(PairedFileError):
    """No space (ENOSPC, EDQUOT) for a write. Nothing can be saved until `write_again` has succeeded; whether
    the refused save is then there is for the caller to say."""


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


class _Batch:
    """Slots that are written in one go, ascending, and the copies that have yet to take them."""

    def __init__(self, slots: list[tuple[int, bytes]], copies: tuple[File, ...]) -> None:
        self.slots = slots
        self.copies_left = list(copies)

    async def write(self) -> None:
        """Into one copy after the other, from where it stopped before. Raises OSError."""
        while self.copies_left:
            await _write_slots(self.copies_left[0], self.slots)
            del self.copies_left[0]


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
        self._batch: _Batch | None = None
        """Being written, or refused for want of room."""
        self._leaving: set[int] = set()
        """Slots that are free once their removal is written."""
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

    async def write_again(self) -> bool:
        """There may be room again: write everything that was refused for want of it. Then the disk says what
        `get` says. False: it is refused again."""
        if isinstance(self._failure, PairedFileFull):
            if self._flusher is None or self._flusher.done():
                self._flusher = asyncio.create_task(self._flush())
            await asyncio.wait([self._flusher])
        return not isinstance(self._failure, PairedFileFull)

    async def save(self, key: bytes, payload: bytes) -> None:
        """Returns once both copies are synced. A failed write or sync raises PairedFileError from then on,
        one that found no room (PairedFileFull) until `write_again`."""
        self.check()
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
        """Forget a record, durably; a key that is not there is no error. Raises as `save`."""
        self.check()
        number = self._slots.pop(key, None)
        if number is None:
            return
        del self._records[key]
        self._sequence += 1
        self._leaving.add(number)
        await self._commit(number, encode_slot(self._sequence, key, b"", removed=True))

    def _take_slot(self) -> int:
        if self._free:
            return self._free.pop()
        if self._slot_count >= MAX_SLOTS:
            raise PairedFileError(f"all {MAX_SLOTS} records are in use")
        self._slot_count += 1
        return self._slot_count - 1

    async def _commit(self, number: int, data: bytes) -> None:
        self._pending[number] = data
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        if self._flusher is None:
            self._flusher = asyncio.create_task(self._flush())
        await waiter

    async def _flush(self) -> None:
        while self._batch is not None or self._pending:
            if self._batch is None:
                self._batch = _Batch(sorted(self._pending.items()), self._files)
                self._pending = {}
            batch, waiters = self._batch, self._waiters
            self._waiters = []
            try:
                await batch.write()
            except OSError as error:
                self._fail(error, batch.copies_left[0].path, waiters)
                return
            self._batch = None
            for number, _ in batch.slots:
                if number in self._leaving:
                    self._leaving.remove(number)
                    self._free.append(number)
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
        self._failure = None
        self._flusher = None

    def _fail(self, error: OSError, path: str, waiters: list[asyncio.Future[None]]) -> None:
        if is_no_space(error):
            failure: PairedFileError = PairedFileFull(f"no room for {path}: {error}")
        else:
            # A failed sync is never retried: nobody knows which of the two copies the disk holds.
            failure = PairedFileError(f"the disk failed under {path}: {error}")
            self._batch = None
            self._pending.clear()
        self._failure = failure
        for waiter in [*waiters, *self._waiters]:
            if not waiter.done():
                waiter.set_exception(failure)
        self._waiters.clear()

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
