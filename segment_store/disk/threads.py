"""The disk on threads, and what every real file does alike: the page cache is asked in the call, and syncs
take their turn.

The directory of a file says to whom a sync belongs: a partition has one. fair_queue.py decides which begins
next.
"""

import asyncio
import errno
import functools
import os
import posixpath
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from shoal.segment_store.disk import system_calls
from shoal.segment_store.disk.disk import (
    RESIDENT_TURN_BYTES,
    Buffer,
    Data,
    Done,
    File,
    buffers_of,
    call_in_next_round,
    call_when_done,
    length_of,
    settle,
)
from shoal.segment_store.disk.fair_queue import SyncSchedule

THREADS = 16  # safety 16: 8 to 16 syncs in flight; a thread each
_FILE_MODE = 0o644

_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclass(slots=True, eq=False)
class SyncRequest:
    """One write with its sync, or a sync alone, from its asking to its end: `done` hears of that."""

    file: "ThreadFile"
    fd: int
    offset: int
    buffers: list[Buffer]
    size: int
    done: Done
    began_ns: int = 0

    def begin(self) -> None:
        self.began_ns = time.monotonic_ns()
        try:
            self.file.begin(self)
        except BaseException:
            self._make_room()
            raise

    def ended(self, error: BaseException | None) -> None:
        self.file.disk.on_synced(time.monotonic_ns() - self.began_ns)
        self._make_room()
        self.done(error)

    def _make_room(self) -> None:
        self.file.finished()
        disk = self.file.disk
        if disk.schedule.ended(self.size):
            disk.begin_syncs()


class ThreadDisk:
    """Every operation a blocking call on one of THREADS threads. Its directory operations serve the ring
    too."""

    kind = "threads"

    def __init__(self, threads: int = THREADS, schedule: SyncSchedule[SyncRequest] | None = None) -> None:
        self.around_completions: AbstractContextManager[None] = nullcontext()
        self.on_synced: Callable[[int], None] = lambda _: None
        self.call_soon: Callable[[Callable[[], None]], None] = call_in_next_round
        self.schedule = SyncSchedule[SyncRequest]() if schedule is None else schedule
        self.is_closed = False
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="shoal-disk")
        self._resident_bytes = 0

    def run(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> asyncio.Future[_T]:
        call = functools.partial(function, *args, **kwargs)
        return asyncio.get_running_loop().run_in_executor(self._executor, call)

    def crowd(self) -> None:
        """See Disk: a thread's sync never holds the loop."""

    def read_resident(self, fd: int, offset: int, buffer: memoryview) -> int:
        """Copy from the page cache as many bytes as it has. The way through a ring or a thread would cost
        several times the copy."""
        if self._resident_bytes >= RESIDENT_TURN_BYTES:
            return 0
        if not self._resident_bytes:
            asyncio.get_running_loop().call_soon(self._begin_turn)
        filled = system_calls.read_resident_into(fd, offset, buffer) if len(buffer) else 0
        self._resident_bytes += filled
        return filled

    def _begin_turn(self) -> None:
        """Behind all that this turn of the loop still runs."""
        self._resident_bytes = 0

    async def next_turn(self) -> None:
        """Others get a turn of the loop for every RESIDENT_TURN_BYTES."""
        if self._resident_bytes >= RESIDENT_TURN_BYTES:
            await asyncio.sleep(0)
            self._begin_turn()

    def begin_syncs(self) -> None:
        """Have as many begin as there is room for."""
        while (request := self.schedule.start()) is not None:
            request.begin()

    def open_descriptor(self, path: str, create: bool) -> asyncio.Future[int]:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return self.run(os.open, path, flags, _FILE_MODE)

    async def open(self, path: str, *, create: bool = False) -> File:
        return ThreadFile(self, path, await self.open_descriptor(path, create))

    async def list(self, directory: str) -> list[str]:
        return await self.run(system_calls.list_directory, directory)

    async def exists(self, path: str) -> bool:
        return await self.run(os.path.lexists, path)

    async def make_directory(self, *paths: str) -> set[str]:
        return await self.run(system_calls.make_directories, paths)

    async def rename(self, old: str, new: str) -> None:
        await self.run(os.replace, old, new)

    async def unlink(self, path: str) -> None:
        await self.run(os.unlink, path)

    async def remove_tree(self, path: str) -> None:
        await self.run(system_calls.remove_tree, path)

    async def sync_directory(self, path: str) -> None:
        await self.run(system_calls.sync_directory, path)

    async def free_bytes(self, path: str) -> tuple[int, int]:
        return await self.run(system_calls.free_bytes, path)

    async def close(self) -> None:
        self.is_closed = True
        # No wait: every caller has awaited its own operation, so the threads are idle.
        self._executor.shutdown(wait=False)


class ThreadFile:
    """An open file of ThreadDisk, and of RingDisk but for what goes through the ring. A cancelled caller does
    not end its operation, so close waits for those under way: a descriptor number that is used again while an
    old write runs would write into another file."""

    def __init__(self, disk: ThreadDisk, path: str, fd: int) -> None:
        self.path = path
        self.disk = disk
        self.active = 0  # operations under way, and syncs that wait for their turn
        self._fd = fd
        self._key = posixpath.dirname(path)
        self._idle: asyncio.Future[None] | None = None

    def descriptor(self) -> int:
        if self._fd < 0:
            raise OSError(errno.EBADF, "file is closed", self.path)
        return self._fd

    def finished(self, _: object = None) -> None:
        """One operation of this file has ended."""
        self.active -= 1
        if not self.active and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    async def _run(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        future = self.disk.run(function, *args, **kwargs)
        self.active += 1
        future.add_done_callback(self.finished)
        return await asyncio.shield(future)

    async def size(self) -> int:
        return os.fstat(self.descriptor()).st_size

    async def read(self, offset: int, length: int) -> bytes:
        buffer = bytearray(length)
        filled = await self.read_into(offset, memoryview(buffer))
        return bytes(memoryview(buffer)[:filled])

    async def read_into(self, offset: int, buffer: memoryview) -> int:
        await self.disk.next_turn()
        filled = self.disk.read_resident(self.descriptor(), offset, buffer)
        if filled == len(buffer):
            return filled
        return filled + await self._read_rest(offset + filled, buffer[filled:])

    async def _read_rest(self, offset: int, buffer: memoryview) -> int:
        """Read the bytes that the page cache does not have."""
        return await self._run(system_calls.read_fully_into, self.descriptor(), offset, buffer)

    def read_resident(self, offset: int, buffer: memoryview) -> int:
        return self.disk.read_resident(self._fd, offset, buffer) if self._fd >= 0 else 0

    async def write(self, offset: int, data: Data) -> None:
        await self._run(system_calls.write_fully, self.descriptor(), offset, buffers_of(data))

    async def write_back(self, offset: int, data: Data) -> None:
        await self._run(system_calls.write_back, self.descriptor(), offset, buffers_of(data))

    def write_at_once(self, offset: int, data: Data) -> bool:
        return self._fd >= 0 and system_calls.write_resident(self._fd, offset, buffers_of(data))

    async def sync(self) -> None:
        await self.write_and_sync(0, ())

    async def write_and_sync(self, offset: int, data: Data) -> None:
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.begin_write_and_sync(offset, data, functools.partial(settle, ended))
        await ended

    def begin_write_and_sync(self, offset: int, data: Data, done: Done) -> None:
        if self._fd < 0 or self.disk.is_closed:
            error = OSError(errno.EBADF, "file is closed", self.path)
            asyncio.get_running_loop().call_soon(done, error)  # the answer never comes within the question
            return
        buffers: list[Buffer]
        if type(data) is bytes and data:
            buffers, size = [data], len(data)
        else:
            buffers = buffers_of(data)
            size = length_of(buffers)
        self.active += 1
        request = SyncRequest(self, self._fd, offset, buffers, size, done)
        schedule = self.disk.schedule
        if schedule.start_at_once(size):
            request.begin()
        else:
            schedule.offer(self._key, size, request)
            self.disk.begin_syncs()

    def begin(self, request: SyncRequest) -> None:
        """Begin a request whose turn has come."""
        future = self.disk.run(system_calls.write_and_sync, request.fd, request.offset, request.buffers)
        call_when_done(future, request.ended)

    def forget_cached(self, offset: int, length: int) -> None:
        system_calls.forget_cached(self.descriptor(), offset, length)

    async def allocate(self, length: int) -> None:
        await self._run(system_calls.allocate_blocks, self.descriptor(), length)

    async def release(self, offset: int, length: int) -> None:
        await self._run(system_calls.release_blocks, self.descriptor(), offset, length)

    async def close(self) -> None:
        """Waits for operations under way, also those whose callers were cancelled: the kernel knows the
        number only."""
        fd, self._fd = self._fd, -1
        while self.active:
            self._idle = self._idle or asyncio.get_running_loop().create_future()
            await asyncio.wait([self._idle])
            self._idle = None
        if fd >= 0:
            os.close(fd)
