"""Any disk, with its syncs in a fair order and a bounded number of them in flight, over all files.

The directory of a file says to whom a sync belongs: a partition has one. Everything else goes straight
through. Knows nothing of the disk beneath but its interface.
"""

import asyncio
import posixpath
from contextlib import AbstractContextManager

from shoal.segment_store.disk.disk import Data, Disk, Done, File, buffers_of
from shoal.segment_store.disk.fair_queue import SyncSchedule


class _Request:
    """One write with its sync, from its asking to its end: `done` hears of that."""

    __slots__ = ("_data", "_done", "_file", "_offset", "size")

    def __init__(self, file: "FairFile", offset: int, data: Data, size: int, done: Done) -> None:
        self._file = file
        self._offset = offset
        self._data = data
        self._done = done
        self.size = size

    def begin(self) -> None:
        try:
            self._file.file.begin_write_and_sync(self._offset, self._data, self._ended)
        except BaseException:
            self._file.ended(self.size)
            raise

    def _ended(self, error: BaseException | None) -> None:
        self._file.ended(self.size)
        self._done(error)


class FairDisk:
    """See the module."""

    def __init__(self, disk: Disk, schedule: SyncSchedule[_Request] | None = None) -> None:
        self.disk = disk
        self.kind = disk.kind
        self.schedule = SyncSchedule[_Request]() if schedule is None else schedule

    def __repr__(self) -> str:
        return f"FairDisk({self.disk.kind}, {self.schedule})"

    @property
    def around_completions(self) -> AbstractContextManager[None]:
        return self.disk.around_completions

    @around_completions.setter
    def around_completions(self, around: AbstractContextManager[None]) -> None:
        self.disk.around_completions = around

    def offer(self, key: str, request: _Request) -> None:
        """Have the request begin when it is the key's turn."""
        self.schedule.offer(key, request.size, request)
        self.start()

    def start(self) -> None:
        """Have as many begin as there is room for."""
        while (request := self.schedule.start()) is not None:
            request.begin()

    async def open(self, path: str, *, create: bool = False) -> File:
        return FairFile(self, await self.disk.open(path, create=create))

    async def list(self, directory: str) -> list[str]:
        return await self.disk.list(directory)

    async def exists(self, path: str) -> bool:
        return await self.disk.exists(path)

    async def make_directory(self, *paths: str) -> set[str]:
        return await self.disk.make_directory(*paths)

    async def rename(self, old: str, new: str) -> None:
        await self.disk.rename(old, new)

    async def unlink(self, path: str) -> None:
        await self.disk.unlink(path)

    async def remove_tree(self, path: str) -> None:
        await self.disk.remove_tree(path)

    async def sync_directory(self, path: str) -> None:
        await self.disk.sync_directory(path)

    async def free_bytes(self, path: str) -> tuple[int, int]:
        return await self.disk.free_bytes(path)

    async def close(self) -> None:
        await self.disk.close()


class FairFile:
    """An open file of FairDisk. A cancelled caller does not take its request back, as with every disk; close
    waits for those that are still to come."""

    def __init__(self, disk: FairDisk, file: File) -> None:
        self.path = file.path
        self.file = file
        self.disk = disk
        self._key = posixpath.dirname(file.path)
        self._requests = 0
        self._idle: asyncio.Future[None] | None = None

    def descriptor(self) -> int:
        return self.file.descriptor()

    async def size(self) -> int:
        return await self.file.size()

    async def read(self, offset: int, length: int) -> bytes:
        return await self.file.read(offset, length)

    async def read_into(self, offset: int, buffer: memoryview) -> int:
        return await self.file.read_into(offset, buffer)

    def read_resident(self, offset: int, buffer: memoryview) -> int:
        return self.file.read_resident(offset, buffer)

    async def write(self, offset: int, data: Data) -> None:
        await self.file.write(offset, data)

    def write_at_once(self, offset: int, data: Data) -> bool:
        return self.file.write_at_once(offset, data)

    async def sync(self) -> None:
        await self.write_and_sync(0, ())

    async def write_and_sync(self, offset: int, data: Data) -> None:
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: BaseException | None) -> None:
            if ended.done():
                return  # the caller was cancelled meanwhile
            if error is None:
                ended.set_result(None)
            else:
                ended.set_exception(error)

        self.begin_write_and_sync(offset, data, done)
        await ended

    def begin_write_and_sync(self, offset: int, data: Data, done: Done) -> None:
        self._requests += 1
        if type(data) is bytes:
            size = len(data)
        else:
            data = buffers_of(data)
            size = sum(map(len, data))
        request = _Request(self, offset, data, size, done)
        if self.disk.schedule.start_at_once(size):
            request.begin()
        else:
            self.disk.offer(self._key, request)

    def ended(self, size: int) -> None:
        """One request of this file, of `size` bytes, is over: it makes room."""
        if self.disk.schedule.ended(size):
            self.disk.start()
        self._requests -= 1
        if not self._requests and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def forget_cached(self, offset: int, length: int) -> None:
        self.file.forget_cached(offset, length)

    async def allocate(self, length: int) -> None:
        await self.file.allocate(length)

    async def release(self, offset: int, length: int) -> None:
        await self.file.release(offset, length)

    async def close(self) -> None:
        while self._requests:
            self._idle = self._idle or asyncio.get_running_loop().create_future()
            await asyncio.wait([self._idle])
            self._idle = None
        await self.file.close()
