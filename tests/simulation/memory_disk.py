"""A disk in memory that can lose power, run full and fail: for tests and simulations. Deterministic for one
rng.

What a crash may do is what POSIX allows: every 512-byte sector written since its file's last completed sync
is lost, kept, or kept in an older version, independently of every other; the file's length may be any it
had since; a name made, removed or changed since its directory's last sync may or may not be. A sync that
fails forgets which sectors were dirty, as Linux does: what they held stays readable and is gone after a
crash.
"""

import asyncio
import errno
import os
import posixpath
import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from shoal.segment_store.disk.disk import (
    Data,
    Done,
    File,
    buffers_of,
    call_in_next_round,
    call_when_done,
)
from shoal.segment_store.errors import SyncFailed

SECTOR_BYTES = 512
MAX_SECTOR_VERSIONS = 4  # of one sector between two syncs: a crash chooses among the newest
DEFAULT_CAPACITY_BYTES = 2**30


class _Inode:
    """A file's bytes: as programs see them, and as the disk would give them back."""

    __slots__ = (
        "content",
        "dirty",
        "durable",
        "durable_size",
        "lengths",
        "released",
        "synced_write",
        "writes",
    )

    def __init__(self) -> None:
        self.content = bytearray()
        self.durable: dict[int, bytes] = {}  # sector number -> what a power failure leaves; missing: zeros
        self.durable_size = 0
        self.lengths: list[int] = []  # the file has had since it was made: a crash leaves one not yet synced
        # Sector number -> (number of the write, content) since the last sync, oldest first.
        self.dirty: dict[int, list[tuple[int, bytes]]] = {}
        self.writes = 0
        self.released: set[int] = set()  # sectors without blocks
        self.synced_write: dict[int, int] = {}  # sector number -> the write a sync has made durable

    def write(self, offset: int, data: bytes) -> None:
        self.writes += 1
        end = offset + len(data)
        self.grow(end)
        self.content[offset:end] = data
        for sector in range(offset // SECTOR_BYTES, -(-end // SECTOR_BYTES)):
            start = sector * SECTOR_BYTES
            version = bytes(self.content[start : start + SECTOR_BYTES]).ljust(SECTOR_BYTES, b"\0")
            versions = self.dirty.setdefault(sector, [])
            versions.append((self.writes, version))
            del versions[:-MAX_SECTOR_VERSIONS]
        if self.released:
            self.released.difference_update(range(offset // SECTOR_BYTES, -(-end // SECTOR_BYTES)))

    def grow(self, length: int) -> None:
        """At least so long, with zeros."""
        if length > len(self.content):
            self.content.extend(bytes(length - len(self.content)))
            self.lengths.append(length)

    def crash(self, rng: random.Random) -> None:
        unsynced = [length for length in self.lengths if length > self.durable_size]
        size = rng.choice((self.durable_size, *unsynced))
        self.lengths.clear()
        for sector, versions in sorted(self.dirty.items()):
            choice = rng.randrange(len(versions) + 1)
            if choice < len(versions):
                self.durable[sector] = versions[choice][1]
        self.dirty.clear()
        self.released.clear()
        self.content = bytearray(size)
        for sector, version in self.durable.items():
            start = sector * SECTOR_BYTES
            room = max(0, min(SECTOR_BYTES, size - start))
            self.content[start : start + room] = version[:room]
        self.durable = {
            sector: version for sector, version in self.durable.items() if sector * SECTOR_BYTES < size
        }
        self.durable_size = size


@dataclass(slots=True)
class Fault:
    """An error to raise: in `operation` ("write", "sync", "read", "allocate", "open", "unlink", "rename"),
    on paths that contain `path_part`, after `skip` matching calls, `times` times."""

    operation: str
    error: int
    path_part: str = ""
    skip: int = 0
    times: int = 1
    partial_bytes: int = 0  # of a failing write: so many reach the file all the same


@dataclass(slots=True)
class Trace:
    """What the disk was asked to do, for tests of orderings."""

    operations: list[tuple[str, str]] = field(default_factory=list)

    def of(self, *kinds: str) -> list[tuple[str, str]]:
        return [operation for operation in self.operations if operation[0] in kinds]


class MemoryDisk:
    """`pause_max`: each operation lets other tasks run up to so many turns, so that operations overlap."""

    kind = "memory"

    def __init__(
        self,
        rng: random.Random | None = None,
        *,
        pause_max: int = 1,
        capacity_bytes: int = DEFAULT_CAPACITY_BYTES,
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.around_completions: AbstractContextManager[None] = nullcontext()
        self.on_synced: Callable[[int], None] = lambda _: None
        self.call_soon: Callable[[Callable[[], None]], None] = call_in_next_round
        self.faults: list[Fault] = []
        self.trace = Trace()
        self.resident: str | None = None
        """Part of the paths of files that memory has whole."""
        self.epoch = 0  # counts crashes; a handle of an earlier one is dead
        self._rng = rng or random.Random(0)
        self._pause_max = pause_max
        self._grown_bytes = 0
        """By which files were ever to grow: never less than what they have, which takes time to add up."""
        self._names: dict[str, _Inode] = {}
        self._durable_names: dict[str, _Inode] = {}
        self._directories: set[str] = {"", "/", "."}
        self._changes: dict[str, list[Callable[[], None]]] = {}
        self.crowded = 0
        """How often others were said to wait for the loop."""

    # ---- faults

    def crash(self, rng: random.Random) -> None:
        """The power fails and comes back. Every open file is dead."""
        self.epoch += 1
        for directory in sorted(self._changes):
            for change in self._changes[directory]:
                if rng.random() < 0.5:
                    change()
        self._changes.clear()
        self._names = dict(self._durable_names)
        for path in self._names:  # of a directory that was renamed, and is not after all
            self._add_directories(posixpath.dirname(path))
        for inode in {id(self._names[path]): self._names[path] for path in sorted(self._names)}.values():
            inode.crash(rng)

    def damage(self, path: str, position: int, mask: int = 1) -> None:
        """Flip bits of one stored byte, on the disk and in the page cache."""
        inode = self._inode(path)
        inode.content[position] ^= mask
        sector, place = divmod(position, SECTOR_BYTES)
        stored = bytearray(inode.durable.get(sector, bytes(SECTOR_BYTES)))
        stored[place] ^= mask
        inode.durable[sector] = bytes(stored)

    def overwrite(self, path: str, position: int, data: bytes) -> None:
        """Other bytes lie there, on the disk and in the page cache; within the file."""
        present = self._inode(path).content
        for place, byte in enumerate(data, position):
            if present[place] != byte:
                self.damage(path, place, present[place] ^ byte)

    def lose(self, path: str) -> None:
        """The file's name is gone, if it was there, as after a repair of the file system."""
        for names in (self._names, self._durable_names):
            names.pop(path, None)

    def content(self, path: str) -> bytes:
        return bytes(self._inode(path).content)

    def used_bytes(self) -> int:
        """Bytes of files that have blocks."""
        return sum(len(inode.content) - SECTOR_BYTES * len(inode.released) for inode in self._names.values())

    async def begin(self, operation: str, path: str) -> None:
        """Every operation passes here first: trace, time for others, injected faults."""
        self.trace.operations.append((operation, path))
        epoch = self.epoch
        for _ in range(1 if self._pause_max == 1 else self._rng.randint(1, self._pause_max)):
            await asyncio.sleep(0)
        self.check_power(epoch)
        fault = self._next_fault(operation, path)
        if fault is not None:
            kind = SyncFailed if operation == "sync" else OSError
            raise kind(fault.error, os.strerror(fault.error), path)

    def _next_fault(self, operation: str, path: str) -> Fault | None:
        for fault in self.faults:
            if fault.operation != operation or fault.path_part not in path or not fault.times:
                continue
            if not fault.skip:
                fault.times -= 1
                return fault
            fault.skip -= 1
        return None

    def partial_bytes(self, path: str) -> int:
        """How much of a write that is about to fail reaches the file."""
        matching = (fault for fault in self.faults if fault.operation == "write" and fault.path_part in path)
        return next((fault.partial_bytes for fault in matching if fault.times and not fault.skip), 0)

    def check_power(self, epoch: int) -> None:
        if epoch != self.epoch:
            raise OSError(errno.EIO, "the power failed")

    def check_room(self, inode: _Inode, start: int, end: int) -> None:
        """Raises OSError: no space. What has blocks needs none, however full the disk is."""
        wanted = max(0, end - len(inode.content))
        if inode.released:
            sectors = range(start // SECTOR_BYTES, -(-end // SECTOR_BYTES))
            wanted += SECTOR_BYTES * len(inode.released.intersection(sectors))
        self._grown_bytes += wanted
        if not wanted or self._grown_bytes <= self.capacity_bytes:
            return
        if self.used_bytes() + wanted > self.capacity_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    # ---- names

    def _inode(self, path: str) -> _Inode:
        inode = self._names.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return inode

    def _change(self, path: str, change: Callable[[], None]) -> None:
        self._changes.setdefault(posixpath.dirname(path), []).append(change)

    def _link(self, path: str, inode: _Inode) -> None:
        self._durable_names[path] = inode

    def _unlink(self, path: str) -> None:
        self._durable_names.pop(path, None)

    def crowd(self) -> None:
        """See Disk: no sync here holds the loop."""
        self.crowded += 1

    async def open(self, path: str, *, create: bool = False) -> File:
        await self.begin("open", path)
        inode = self._names.get(path)
        if inode is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            if posixpath.dirname(path) not in self._directories:
                raise FileNotFoundError(errno.ENOENT, "no such directory", path)
            created = inode = self._names[path] = _Inode()
            self._change(path, lambda: self._link(path, created))
        return MemoryFile(self, path, inode)

    async def list(self, directory: str) -> list[str]:
        await self.begin("list", directory)
        children = [*self._names, *self._directories]
        return sorted(
            posixpath.basename(path) for path in children if path and posixpath.dirname(path) == directory
        )

    async def exists(self, path: str) -> bool:
        await self.begin("exists", path)
        return path in self._names or path in self._directories

    async def make_directory(self, *paths: str) -> set[str]:
        made = {path for path in paths if path not in self._directories}
        for path in paths:
            await self.begin("make_directory", path)
            self._add_directories(path)
        return made

    def _add_directories(self, path: str) -> None:
        while path not in self._directories:
            self._directories.add(path)
            path = posixpath.dirname(path)

    async def rename(self, old: str, new: str) -> None:
        await self.begin("rename", old)
        if old in self._directories:
            self._rename_directory(old, new)
            return
        inode = self._inode(old)
        self._names[new] = self._names.pop(old)

        def change() -> None:
            self._unlink(old)
            self._link(new, inode)

        self._change(new, change)

    def _rename_directory(self, old: str, new: str) -> None:
        """In one step, durable with a sync of the directory that it lies in; what is in it was synced before,
        or the order of changes would not be known."""
        prefix = old + "/"
        inside = [path for path in self._directories if path == old or path.startswith(prefix)]
        assert not any(self._changes.get(path) for path in inside)
        if any(path.startswith(new + "/") for path in self._names):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), new)

        def moved(path: str) -> str:
            return new + path[len(old) :] if path == old or path.startswith(prefix) else path

        self._names = {moved(path): inode for path, inode in self._names.items()}
        self._directories = {moved(path) for path in self._directories}

        def change() -> None:
            self._durable_names = {moved(path): inode for path, inode in self._durable_names.items()}

        self._change(new, change)

    async def unlink(self, path: str) -> None:
        await self.begin("unlink", path)
        self._inode(path)
        del self._names[path]
        self._change(path, lambda: self._unlink(path))

    async def remove_tree(self, path: str) -> None:
        await self.begin("remove_tree", path)
        prefix = path + "/"
        for names in (self._names, self._durable_names):
            for name in [name for name in names if name.startswith(prefix)]:
                del names[name]
        self._directories = {
            name for name in self._directories if name != path and not name.startswith(prefix)
        }
        self._changes.pop(path, None)

    async def sync_directory(self, path: str) -> None:
        changes = len(self._changes.get(path, ()))
        await self.begin("sync_directory", path)
        pending = self._changes.get(path, [])
        for change in pending[:changes]:
            change()
        del pending[:changes]

    async def free_bytes(self, path: str) -> tuple[int, int]:
        await self.begin("free_bytes", path)
        return max(0, self.capacity_bytes - self.used_bytes()), self.capacity_bytes

    async def close(self) -> None:
        await self.begin("close", "")


class MemoryFile:
    """An open file of MemoryDisk; dead after a crash."""

    def __init__(self, disk: MemoryDisk, path: str, inode: _Inode) -> None:
        self.path = path
        self._disk = disk
        self._inode = inode
        self._epoch = disk.epoch
        self._closed = False
        self._begun: set[asyncio.Future[None]] = set()

    def _check(self) -> None:
        if self._closed:
            raise OSError(errno.EBADF, "file is closed", self.path)
        self._disk.check_power(self._epoch)

    async def _begin(self, operation: str) -> None:
        self._check()
        await self._disk.begin(operation, self.path)

    def descriptor(self) -> int:
        raise OSError(errno.ENODEV, "a file in memory has none", self.path)

    async def size(self) -> int:
        self._check()
        return len(self._inode.content)

    async def read(self, offset: int, length: int) -> bytes:
        await self._begin("read")
        return bytes(self._inode.content[offset : offset + length])

    async def read_into(self, offset: int, buffer: memoryview) -> int:
        data = await self.read(offset, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def read_resident(self, offset: int, buffer: memoryview) -> int:
        """Only of files that the disk is told to have in memory: other reads pass where faults are
        injected."""
        resident = self._disk.resident
        is_dead = self._closed or self._disk.epoch != self._epoch
        if is_dead or resident is None or resident not in self.path:
            return 0
        data = self._inode.content[offset : offset + len(buffer)]
        buffer[: len(data)] = data
        return len(data)

    async def write(self, offset: int, data: Data) -> None:
        """Bytes reach the page cache in the call's first turn, so that a crash in the middle may keep any
        of them."""
        self._check()
        joined = b"".join(buffers_of(data))
        if not joined:
            return
        self._disk.check_room(self._inode, offset, offset + len(joined))
        if partial := self._disk.partial_bytes(self.path):
            self._inode.write(offset, joined[:partial])
        await self._begin("write")
        self._inode.write(offset, joined)
        epoch = self._disk.epoch
        await asyncio.sleep(0)
        self._disk.check_power(epoch)

    def write_at_once(self, offset: int, data: Data) -> bool:
        return False  # as reads

    async def sync(self) -> None:
        """Covers what was written before the call; sectors written again meanwhile stay dirty."""
        self._check()
        inode = self._inode
        newest = {sector: versions[-1] for sector, versions in inode.dirty.items()}
        size = len(inode.content)
        try:
            await self._begin("sync")
        except SyncFailed:
            inode.dirty.clear()
            raise
        for sector, (write, version) in newest.items():
            if inode.synced_write.get(sector, 0) < write:  # syncs may end in another order than they began
                inode.synced_write[sector] = write
                inode.durable[sector] = version
            later = [entry for entry in inode.dirty.get(sector, []) if entry[0] > write]
            if later:
                inode.dirty[sector] = later
            else:
                inode.dirty.pop(sector, None)
        inode.durable_size = max(inode.durable_size, size)
        inode.lengths = [length for length in inode.lengths if length > inode.durable_size]

    async def write_back(self, offset: int, data: Data) -> None:
        """What the disk has without a sync, a crash may take all the same."""
        await self.write(offset, data)

    async def write_and_sync(self, offset: int, data: Data) -> None:
        await self.write(offset, data)
        await self.sync()

    def begin_write_and_sync(self, offset: int, data: Data, done: Done) -> None:
        task = asyncio.ensure_future(self.write_and_sync(offset, data))
        self._begun.add(task)
        task.add_done_callback(self._begun.discard)
        call_when_done(task, done)

    def forget_cached(self, offset: int, length: int) -> None:
        """There is no cache."""
        self._check()

    async def allocate(self, length: int) -> None:
        self._check()
        self._disk.check_room(self._inode, len(self._inode.content), length)
        await self._begin("allocate")
        self._inode.grow(length)

    async def release(self, offset: int, length: int) -> None:
        self._check()
        await self._begin("release")
        end = min(offset + length, len(self._inode.content))
        if end <= offset:
            return
        self._inode.write(offset, bytes(end - offset))
        self._inode.released.update(range(-(-offset // SECTOR_BYTES), end // SECTOR_BYTES))

    async def close(self) -> None:
        self._closed = True
