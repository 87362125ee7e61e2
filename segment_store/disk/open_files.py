"""Open handles of all logs' files: opened when first needed, pinned while used, the rest bounded.

A pinned handle is never closed, so a read that is under way survives the removal of its segment (safety
15). A writer keeps its file pinned while anything is unsynced (safety 11), and between writes lets it rest:
open as long as no other is needed more. What is pinned at once is bounded by the operations under way.
"""

import logging
import posixpath
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice

from shoal.segment_store.disk.disk import Disk, File

logger = logging.getLogger(__name__)


async def _close(file: File) -> None:
    """Written bytes have been synced, so an error of close says nothing about them. Readers of other files do
    not meet it."""
    try:
        await file.close()
    except OSError as error:
        logger.warning("cannot close %s: %s", file.path, error)


@dataclass(slots=True, eq=False)
class Handle:
    """`stale`: no longer to be found by its path, closed with its last pin. `closed`: by the bound, or
    removed."""

    file: File
    pins: int = 0
    stale: bool = False
    closed: bool = False


@dataclass(slots=True, eq=False)
class _Opening:
    """One opening under way."""

    is_forgotten: bool = False


class OpenFiles:
    """At most `limit` handles stay open beyond the pinned ones; the least recently used are closed first."""

    def __init__(self, disk: Disk, limit: int) -> None:
        self._disk = disk
        self._limit = limit
        self._handles: OrderedDict[str, Handle] = OrderedDict()
        self._opening: dict[str, list[_Opening]] = {}

    def __len__(self) -> int:
        return len(self._handles)

    @asynccontextmanager
    async def pin(self, path: str) -> AsyncIterator[File]:
        """The file stays open until the block ends."""
        handle = await self.acquire(path)
        try:
            yield handle.file
        finally:
            await self.release(handle)

    def open_file(self, path: str) -> File | None:
        """The file if it is open: for what is done with it in this very turn."""
        handle = self._handles.get(path)
        if handle is None:
            return None
        self._handles.move_to_end(path)
        return handle.file

    def is_pinned(self, path: str) -> bool:
        """Whether the file is in use, or about to be."""
        handle = self._handles.get(path)
        return path in self._opening or (handle is not None and handle.pins > 0)

    async def acquire(self, path: str, *, create: bool = False) -> Handle:
        """The handle, pinned; release it."""
        handle = self._handles.get(path)
        if handle is None:
            handle = await self._open(path, create)
        handle.pins += 1
        if not handle.stale:
            self._handles.move_to_end(path)
        if len(self._handles) > self._limit:
            await self._evict()
        return handle

    def acquire_open(self, path: str) -> Handle | None:
        """As acquire, in this very turn, of a file that is open; else None."""
        handle = self._handles.get(path)
        if handle is not None:
            handle.pins += 1
            self._handles.move_to_end(path)
        return handle

    async def _open(self, path: str, create: bool) -> Handle:
        opening = _Opening()
        self._opening.setdefault(path, []).append(opening)
        try:
            file = await self._disk.open(path, create=create)
        finally:
            openings = self._opening[path]
            openings.remove(opening)
            if not openings:
                del self._opening[path]
        if opening.is_forgotten:  # the path may be another file's by now
            return Handle(file, stale=True)
        handle = self._handles.get(path)
        if handle is None:
            handle = self._handles[path] = Handle(file)
        else:  # another caller opened it meanwhile
            handle.pins += 1
            await _close(file)
            handle.pins -= 1
        return handle

    async def release(self, handle: Handle) -> None:
        assert handle.pins > 0
        handle.pins -= 1
        if handle.stale and not handle.pins:
            handle.closed = True
            await _close(handle.file)
        elif len(self._handles) > self._limit:
            await self._evict()

    def rest(self, handle: Handle) -> bool:
        """Unpin in this very turn, for a caller that pins it again by wake(). False: the handle is stale, and
        has to be released."""
        if handle.stale:
            return False
        assert handle.pins > 0
        handle.pins -= 1
        return True

    def wake(self, handle: Handle) -> bool:
        """Pin a handle that rested; False when it was closed meanwhile."""
        if handle.closed:
            return False
        handle.pins += 1
        if not handle.stale:
            self._handles.move_to_end(handle.file.path)
        return True

    async def _evict(self) -> None:
        surplus = len(self._handles) - self._limit
        idle = (path for path, handle in self._handles.items() if not handle.pins)
        closing = [self._handles[path] for path in islice(idle, surplus)]
        for handle in closing:
            del self._handles[handle.file.path]
            handle.closed = True
        for handle in closing:
            await _close(handle.file)

    async def forget(self, path: str) -> None:
        """The file is about to be removed: close it now, or when its last reader lets go."""
        for opening in self._opening.get(path, ()):
            opening.is_forgotten = True
        handle = self._handles.pop(path, None)
        if handle is None:
            return
        if handle.pins:
            handle.stale = True
        else:
            handle.closed = True
            await _close(handle.file)

    async def close(self, directory: str) -> None:
        """Close the unused files of a directory; the others close with their last pins."""
        for path in [path for path in self._handles if posixpath.dirname(path) == directory]:
            await self.forget(path)
