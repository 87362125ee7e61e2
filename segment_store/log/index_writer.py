"""The index files of one log, kept a bounded time behind its writer, and with them the full segments' unused
blocks given back.

`lock` is held by every writer of an index file: this one, a roll, a truncation and repair.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from shoal.format.batch import LogIndex
from shoal.segment_store.errors import DiskFailed, is_no_space
from shoal.segment_store.log.segment import Segment, SegmentFiles
from shoal.segment_store.log.spare_files import may_be_reused

if TYPE_CHECKING:
    from shoal.segment_store.log.writer import Writer

ONLY_ENTRY_INTERVALS = 10
"""A log's first entry is indexed so many times later than others while no second one follows. No reader needs
its place, and a thousand logs may have just begun."""

REPEATS = {"repeats": True}  # lines that a handler may hold back for a while
logger = logging.getLogger(__name__)


class IndexWriter:
    """See the module. A write of the index begins after so many bytes, or so long after the first of them."""

    def __init__(self, files: SegmentFiles, writer: "Writer") -> None:
        self.lock = asyncio.Lock()
        self._files = files
        self._writer = writer
        self._timer: asyncio.TimerHandle | None = None
        self._timer_is_far = False  # it is that of an only entry
        self._task: asyncio.Task[None] | None = None
        self._unindexed_bytes = 0
        self._sealed: list[Segment] = []  # full ones, with unused blocks to give back

    def wrote(self, length: int) -> None:
        """So many bytes of entries were written."""
        self._unindexed_bytes += length
        if self._unindexed_bytes >= self._files.config.index_interval_bytes:
            self.start()
        elif self._task is None and (self._timer is None or self._timer_is_far):
            self._start_later()

    def _start_later(self) -> None:
        is_only = self._writer.written_index == 1
        if self._timer is not None:
            if is_only:
                return
            self._timer.cancel()
        self._timer_is_far = is_only
        delay_s = self._files.config.index_interval_ms / 1000 * (ONLY_ENTRY_INTERVALS if is_only else 1)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self.start)

    def start(self) -> None:
        """Write it in a task, unless one does, or the log is closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is None and not self._writer.is_closed:
            self._unindexed_bytes = 0
            self._task = asyncio.get_running_loop().create_task(self._write_once())

    async def _write_once(self) -> None:
        try:
            await self.write()
            if self._sealed:
                await self.release_sealed()
        except OSError as error:
            if is_no_space(error):
                # The index saves time, it proves nothing that the segment does not: the next append tries
                # again.
                logger.warning("no index written in %s: %s", self._files.directory, error, extra=REPEATS)
            else:
                self._writer.index_failed(DiskFailed(f"{self._files.directory}: index: {error}"))
        else:
            if self._is_behind() and self._timer is None and not self._writer.is_closed:
                self._start_later()
        finally:
            self._task = None
            self._writer.rest()

    def _is_behind(self) -> bool:
        """Whether entries were written while the index was, and no later write will index them."""
        writer = self._writer
        active = writer.active
        if active is not None and min(writer.stored_index, active.last_index) > active.indexed_index:
            return True
        return any(item.last_index < writer.stored_index for item in self._sealed)

    async def write(self) -> None:
        """Bring the active segment's index file up to what is known synced."""
        writer = self._writer
        async with self.lock:
            if writer.synced_index < writer.stored_index:
                await writer.sync_active()
            segment = writer.active
            if segment is not None:
                await segment.write_index(LogIndex(min(writer.synced_index, segment.last_index)))

    def seal(self, segment: Segment) -> None:
        """The segment has a successor: its unused blocks go back with the next index."""
        self._sealed.append(segment)

    def unseal(self, segment: Segment | None) -> None:
        """The segment is gone, or may be appended to again."""
        self._sealed = [item for item in self._sealed if item is not segment]

    async def release_sealed(self) -> None:
        """Once a segment has a successor with an entry nothing comes behind its end any more: blocks that
        were reserved there go back to the disk. Before that a full disk may make it the active one again."""
        async with self.lock:
            stored_index = self._writer.stored_index
            sealed = [item for item in self._sealed if item.last_index < stored_index]
            self._sealed = [item for item in self._sealed if item not in sealed]
            for segment in sealed:
                try:
                    if not may_be_reused(segment):
                        async with self._files.open_files.pin(segment.path) as file:
                            await segment.release_rest(file)
                    segment.count_unused(0)
                except FileNotFoundError:
                    continue  # trimmed meanwhile
                except OSError as error:
                    logger.warning("cannot free the space reserved in %s: %s", segment.path, error)

    async def stop(self) -> None:
        """Begin nothing more, and wait for the write that is under way."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            await asyncio.wait([self._task])
