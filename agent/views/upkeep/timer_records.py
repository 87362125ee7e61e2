"""The records of a timer topic by their places: from its runs, and from the log those that no run has yet.

Law of this file: it reads, and decides nothing. A record may be missing that is past its retention.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from shoal.agent.receive import Range
from shoal.agent.views.row_order import one_batch
from shoal.agent.views.timer_view import TimerView
from shoal.agent.views.view import ViewNotReady
from shoal.format.batch import Frame, LogIndex, Offset, Stamp
from shoal.segment_store.errors import OffsetOutOfRange
from shoal.segment_store.log.log import PartitionLog

READ_BYTES: Final = 2**18
READ_ENTRIES: Final = 64
TRIES: Final = 3
"""Records move from the log to a run, and their segment goes: the next look finds them there."""


async def read_records(timers: TimerView, log: PartitionLog, ranges: Sequence[Range]) -> list[pa.RecordBatch]:
    """The records of each range, in the columns of runs and in the order of their places. Raises
    ViewNotReady, OSError, StoreError."""
    for _ in range(TRIES):
        saved = timers.view.saved.offset
        try:
            stored = await timers.rows(
                [piece._replace(count=max(min(piece.count, saved - piece.first), 0)) for piece in ranges]
            )
            behind_runs = [
                Range(piece.due_us, begin, max(piece.first + piece.count - begin, 0))
                for piece in ranges
                for begin in (max(piece.first, saved),)
            ]
            read = await _read_log(timers, log, behind_runs)
        except OffsetOutOfRange:
            continue
        schema = timers.view.order.schema
        return [one_batch(pieces, schema) for pieces in zip(stored, read, strict=True)]
    raise ViewNotReady("the log was trimmed while it was read")


async def _read_log(timers: TimerView, log: PartitionLog, ranges: Sequence[Range]) -> list[pa.RecordBatch]:
    """The records of each range. An entry is read and decoded once, and offsets are made for the rows that
    are wanted alone. Raises OffsetOutOfRange, StoreError."""
    order, entries = timers.view.order, _Entries(timers, log)
    found = [order.no_rows] * len(ranges)
    for number in sorted(range(len(ranges)), key=lambda number: ranges[number].first):
        _, offset, count = ranges[number]
        pieces = []
        while count:
            stamp, records = await entries.holding(offset)
            piece = records.slice(offset - stamp.base_offset, count)
            pieces.append(order.rows_of(piece, stamp._replace(base_offset=Offset(offset))))
            offset += piece.num_rows
            count -= piece.num_rows
        if pieces:
            found[number] = one_batch(pieces, order.schema)
    return found


class _Entries:
    """Entries of the log, asked for by ascending offsets. Reads some of them ahead."""

    def __init__(self, timers: TimerView, log: PartitionLog) -> None:
        self._view = timers.view
        self._log = log
        self._ahead: deque[Frame] = deque()
        self._decoded: tuple[Stamp, pa.RecordBatch] | None = None

    async def holding(self, offset: int) -> tuple[Stamp, pa.RecordBatch]:
        """The entry that holds the record, and its records. Raises OffsetOutOfRange, StoreError."""
        if self._decoded is None or offset >= _behind(self._decoded[0]):
            while self._ahead and offset >= _behind(self._ahead[0].stamp):
                self._ahead.popleft()
            if not self._ahead:
                index = await self._log.find_offset(Offset(offset))
                last = LogIndex(min(self._log.last_index, index + READ_ENTRIES))
                self._ahead.extend(await self._log.read(index, last, READ_BYTES, shared=True))
            frame = self._ahead.popleft()
            self._decoded = frame.stamp, self._view.decoded(frame)
        return self._decoded


def _behind(stamp: Stamp) -> int:
    return stamp.base_offset + stamp.record_count
