"""New messages of a log topic for the leaders of its groups: offsets and sizes, by the log's index.

Law of this file: nothing is decoded and nothing awaited. Where an index is not in memory, its load is begun,
and the leader is told to ask again. Records that are known not to verify now are left out: they come once
they are mended.

A leader may give a record before it is committed. The entry that gives it stands behind it in the log, so a
log that lacks the record lacks the entry too. Nobody hears of either before that entry is committed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Final

from shoal.agent.groups.leader.candidates import FeedNotReady
from shoal.agent.log_lines.repeats import once_a_minute
from shoal.agent.partition.replica import Replica
from shoal.agent.receive import DuePlace, Range
from shoal.format.batch import LogIndex, Offset
from shoal.segment_store.errors import Damaged, LogClosed, OffsetOutOfRange, StoreError
from shoal.segment_store.format.index import IndexReleased

BEHIND_MS: Final = 10
"""Between two looks at a log that has yet to be told what is committed."""
MENDING_MS: Final = 200
"""Between two looks at what is damaged, and mended meanwhile or not."""
COUNT_MAX: Final = 2**31
"""Messages of one range."""

logger = logging.getLogger(__name__)
seldom = once_a_minute(logger)


class LogFeed:
    """A Feed. `on_ready`: called when it is worth asking again."""

    def __init__(self, replica: Replica, on_ready: Callable[[], None]) -> None:
        self._replica = replica
        self._on_ready = on_ready
        self._work: asyncio.Task[None] | None = None

    def end(self, append_us: int) -> DuePlace:  # nothing here falls due
        """See Feed: the high watermark."""
        return DuePlace(0, self._replica.state.high_watermark)

    def new(self, after: DuePlace, limit: int, append_us: int) -> list[Range]:
        """See Feed."""
        replica = self._replica
        if replica.disk.log_is_behind:
            self._begin(asyncio.sleep(BEHIND_MS / 1000))
            raise FeedNotReady
        found: list[Range] = []
        begin_offset = max(after.offset, replica.log.start_offset)
        for begin, behind in self._intact(begin_offset, self.end_offset()):
            count = min(behind - begin, limit, COUNT_MAX)
            if count <= 0:
                break
            found.append(Range(0, begin, count))
            limit -= count
        return found

    def end_offset(self) -> int:
        """Behind the last record that may be given: the log's end, with what was appended in this turn."""
        return self._replica.state.tail.end_offset

    def count(self, after: DuePlace, append_us: int) -> int:
        """See Feed: with those that cannot be read now."""
        replica = self._replica
        return max(replica.state.high_watermark - max(after.offset, replica.log.start_offset), 0)

    def deadline_us(self, append_us: int) -> int | None:
        """See Feed."""
        return None

    def rows_within(self, piece: Range, max_bytes: int) -> tuple[int, int]:
        """See Feed: rows of one batch count alike. Not more than indexes in memory tell: those of many old
        segments are never there at the same time."""
        rows, size_bytes, behind = 0, 0, piece.first + piece.count
        try:
            for end_offset, records, length in self._batches(piece):
                wanted = min(end_offset, behind) - (piece.first + rows)
                row_bytes = max(length // records, 1)
                fitting = max(min(wanted, (max_bytes - size_bytes) // row_bytes), 0)
                rows += fitting
                size_bytes += fitting * row_bytes
                if fitting < wanted:
                    break
        except FeedNotReady:
            if not rows:
                raise
        return rows, size_bytes

    def keys(self, piece: Range) -> Sequence[int]:
        """See Feed: offsets alone have none."""
        return [0] * piece.count

    def _batches(self, piece: Range) -> Iterator[tuple[int, int, int]]:
        """The batches that hold the messages: the offset behind each, its records and its bytes. Raises
        FeedNotReady."""
        replica = self._replica
        log, offset, behind = replica.log, piece.first, piece.first + piece.count
        if replica.disk.log_is_behind:
            self._begin(asyncio.sleep(BEHIND_MS / 1000))
            raise FeedNotReady
        try:
            stored_behind = min(behind, log.end_offset)
            index = log.index_for_offset(Offset(offset)) if offset < stored_behind else LogIndex(0)
            while offset < stored_behind:
                entry = log.entry(index)
                index = LogIndex(index + 1)
                if entry.record_count:
                    offset = entry.end_offset
                    yield offset, entry.record_count, entry.length
        except IndexReleased as released:
            self._begin(log.load_index(LogIndex(released.first_index)))
            raise FeedNotReady from None
        except OffsetOutOfRange:  # trimmed since
            self._begin(asyncio.sleep(BEHIND_MS / 1000))
            raise FeedNotReady from None
        for frame in replica.ahead.frames.values() if offset < behind else ():
            stamp = frame.stamp
            end_offset = stamp.base_offset + stamp.record_count
            if stamp.record_count and offset < end_offset:
                offset = end_offset
                yield end_offset, stamp.record_count, len(frame.data)
                if offset >= behind:
                    break

    def _intact(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Offsets between those that are known to be damaged."""
        for damage in self._replica.damaged_ranges:
            if damage.end_offset <= begin or damage.first_offset >= damage.end_offset:
                continue
            if damage.first_offset >= end:
                break
            if damage.first_offset > begin:
                yield begin, damage.first_offset
            begin = max(begin, damage.end_offset)
        if begin < end:
            yield begin, end

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        """One at a time: whoever needs another asks again when it is over."""
        if self._work is not None:
            work.close()
            return
        self._work = asyncio.create_task(self._until_ready(work))

    async def _until_ready(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Damaged as error:
            self._replica.met(error)
            await asyncio.sleep(MENDING_MS / 1000)
        except (LogClosed, OffsetOutOfRange) as error:
            logger.debug("%s: the feed of its groups asks again: %s", self._replica.group, error)
        except StoreError as error:
            seldom.warning("%s: its groups wait until the log can be read: %s", self._replica.group, error)
            await asyncio.sleep(MENDING_MS / 1000)
        finally:
            self._work = None
        self._on_ready()

    async def stop(self) -> None:
        """Ask for nothing more."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)
