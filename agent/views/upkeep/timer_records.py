"""The records of a timer topic by their places: from its runs, and from the log those that no run has yet.

Law of this file: it reads, and decides nothing. A record may be missing that is past its retention.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from shoal.agent.receive import Range
from shoal.agent.views.row_order import one_batch
from shoal.agent.views.timer_view import TimerView
from shoal.agent.views.view import ViewNotReady
from shoal.format.batch import Frame, LogIndex, Offset
from shoal.segment_store.errors import OffsetOutOfRange
from shoal.segment_store.log.log import PartitionLog

READ_BYTES: Final = 2**18
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
            fresh = _FreshRecords(timers, log)
            read = [await fresh.rows(max(piece.first, saved), piece.first + piece.count) for piece in ranges]
        except OffsetOutOfRange:
            continue
        schema = timers.view.order.schema
        return [one_batch(pieces, schema) for pieces in zip(stored, read, strict=True)]
    raise ViewNotReady("the log was trimmed while it was read")


class _FreshRecords:
    """Reads entries of the log. Those that were read stay for the ranges that follow."""

    def __init__(self, timers: TimerView, log: PartitionLog) -> None:
        self._timers = timers
        self._log = log
        self._held: list[Frame] = []

    async def rows(self, offset: int, behind: int) -> pa.RecordBatch:
        """From one offset up to another. Raises OffsetOutOfRange, StoreError."""
        view, pieces = self._timers.view, []
        while offset < behind:
            frame = await self._frame(offset)
            base, count = frame.stamp.base_offset, frame.stamp.record_count
            rows = view.order.rows_of(view.decoded(frame), frame.stamp)
            pieces.append(rows.slice(offset - base, min(behind, base + count) - offset))
            offset = base + count
        return one_batch(pieces, view.order.schema)

    async def _frame(self, offset: int) -> Frame:
        for frame in self._held:
            if frame.stamp.base_offset <= offset < frame.stamp.base_offset + frame.stamp.record_count:
                return frame
        index = await self._log.find_offset(Offset(offset))
        last = LogIndex(min(self._log.last_index, index + 64))
        self._held = await self._log.read(index, last, READ_BYTES)
        return self._held[0]
