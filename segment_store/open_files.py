"""Open handles of one log's files: opened when first needed, pinned while used, the rest bounded.

A pinned handle is never closed, so a read that is under way survives the removal of its segment (safety
15), and the active segment, which may have unsynced writes, is never evicted (safety 11): its log keeps it
pinned.
"""

import logging
from collections import OrderedDict
from types import TracebackType

from shoal.segment_store.disk import Disk, File

logger = logging.getLogger(__name__)


async def _close(file: File) -> None:
    """What was written has been synced, so an error of close says nothing about it, and nobody who reads
    another file should meet it."""
    try:
        await file.close()
    except OSError as error:
        logger.warning("%s: closing failed: %s", file.path, error)


class Handle:
    __slots__ = ("file", "pins", "stale")

    def __init__(self, file: File) -> None:
        self.file = file
        self.pins = 0
        self.stale = False


class Pin:
    """`async with files.pin(path) as file`: the handle stays open until the block ends."""

    __slots__ = ("_files", "_handle", "_path")

    def __init__(self, files: "OpenFiles", path: str) -> None:
        self._files = files
        self._path = path
        self._handle: Handle | None = None

    async def __aenter__(self) -> File:
        self._handle = await self._files.acquire(self._path)
        return self._handle.file

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._handle is not None
        await self._files.release(self._handle)


class OpenFiles:
    """At most `limit` unpinned handles stay open; the least recently used are closed first."""

    def __init__(self, disk: Disk, limit: int) -> None:
        self._disk = disk
        self._limit = limit
        self._handles: OrderedDict[str, Handle] = OrderedDict()

    def __len__(self) -> int:
        return len(self._handles)

    def pin(self, path: str) -> Pin:
        return Pin(self, path)

    def open_file(self, path: str) -> File | None:
        """The file if it is open: for what is done with it in this very turn."""
        handle = self._handles.get(path)
        if handle is None:
            return None
        self._handles.move_to_end(path)
        return handle.file

    async def acquire(self, path: str, *, create: bool = False) -> Handle:
        handle = self._handles.get(path)
        if handle is None:
            file = await self._disk.open(path, create=create)
            handle = self._handles.get(path)
            if handle is None:
                handle = self._handles[path] = Handle(file)
            else:  # another caller opened it meanwhile
                handle.pins += 1
                await _close(file)
                return handle
        handle.pins += 1
        self._handles.move_to_end(path)
        return handle

    async def release(self, handle: Handle) -> None:
        assert handle.pins > 0
        handle.pins -= 1
        if handle.stale and not handle.pins:
            await _close(handle.file)
            return
        if len(self._handles) > self._limit:
            await self._evict()

    async def _evict(self) -> None:
        idle = [path for path, handle in self._handles.items() if not handle.pins]
        surplus = idle[: max(0, len(idle) - self._limit)]
        closing = [self._handles.pop(path) for path in surplus]
        for handle in closing:
            await _close(handle.file)

    async def forget(self, path: str) -> None:
        """The file is about to be removed: close it now, or when its last reader lets go."""
        handle = self._handles.pop(path, None)
        if handle is None:
            return
        if handle.pins:
            handle.stale = True
        else:
            await _close(handle.file)

    async def close(self) -> None:
        """Close what nobody uses; the rest closes with its last pin."""
        for path in list(self._handles):
            await self.forget(path)
