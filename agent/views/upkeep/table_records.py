"""A table's rows: from its runs, and from the log those that no run has yet.

Law of this file: it reads, and decides nothing. A row may move from the log to a run while it is looked for,
and its segment may go then. The next look finds it there.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from shoal.agent.table import RowLookup, ScanPage, ScanRequest
from shoal.agent.views.row_order import one_batch
from shoal.agent.views.table_memory import row_at
from shoal.agent.views.table_view import FoundRow, TableView
from shoal.agent.views.view import ViewNotReady
from shoal.format.batch import LogIndex, Offset
from shoal.segment_store.errors import OffsetOutOfRange
from shoal.segment_store.log.log import PartitionLog

READ_BYTES: Final = 2**18
READ_ENTRIES: Final = 64
HELD_BYTES: Final = 32 * 2**20
"""Of entries that one scan keeps for its next rows, but for those of the last read."""
TRIES: Final = 8
"""A run is made in between at most every second or so, and a look takes milliseconds."""


class TableRecords:
    """One per replica of a table. Its methods raise ViewNotReady, OSError, StoreError."""

    def __init__(self, table: TableView, log: PartitionLog) -> None:
        self.table = table
        self._log = log

    async def find(self, key: bytes) -> FoundRow | None:
        """The newest record of a key, perhaps without its row."""
        table = self.table
        for _ in range(TRIES):
            place = table.in_memory(key)
            if place is not None:
                return FoundRow(place, None)
            saved = table.view.saved
            found = await table.in_runs(key)
            # Records that came meanwhile stand in memory, but for those that a new run has by now.
            if table.view.saved == saved:
                place = table.in_memory(key)
                return found if place is None else FoundRow(place, None)
        raise ViewNotReady("the view changed each time that it was looked into")

    async def get(self, key: bytes) -> RowLookup:
        """The row of a key, at a cut within this call."""
        for _ in range(TRIES):
            found = await self.find(key)
            as_of = self.table.view.applied.offset
            if found is None or not found.place.has_value:
                return RowLookup(None, as_of)
            try:
                row, offset = found.row, found.place.offset
                if row is None:
                    row = self.table.memory.recent.row(key, offset)
                if row is None:
                    row = row_at(await LogRows(self.table, self._log).rows([offset]), 0, offset)
                return RowLookup(row, as_of)
            except OffsetOutOfRange:
                continue
        raise ViewNotReady("the log was trimmed while it was read")

    async def scan(self, request: ScanRequest) -> ScanPage:
        """A page of rows, at a cut within this call."""
        for _ in range(TRIES):
            try:
                return await self.table.scan(request, LogRows(self.table, self._log))
            except OffsetOutOfRange:
                continue
        raise ViewNotReady("the log was trimmed while it was read")


class LogRows:
    """Rows of the log, as runs have them. Entries that were read stay for the rows that follow."""

    def __init__(self, table: TableView, log: PartitionLog) -> None:
        self._view = table.view
        self._log = log
        self._bases: list[int] = []
        self._held: dict[int, pa.RecordBatch] = {}
        self._held_bytes = 0

    async def rows(self, offsets: Sequence[int]) -> pa.RecordBatch:
        """Those at these offsets, in this order. Raises OffsetOutOfRange, StoreError."""
        numbered = sorted((offset, number) for number, offset in enumerate(offsets))
        pieces: list[pa.RecordBatch] = []
        at = 0
        while at < len(numbered):
            base, rows = await self._entry(numbered[at][0])
            begin = at
            while at < len(numbered) and numbered[at][0] < base + rows.num_rows:
                at += 1
            pieces.append(
                rows.take(pa.array([offset - base for offset, _ in numbered[begin:at]], pa.int64()))
            )
        back = [0] * len(numbered)
        for place, (_, number) in enumerate(numbered):
            back[number] = place
        return one_batch(pieces, self._view.order.schema).take(pa.array(back, pa.int64()))

    async def _entry(self, offset: int) -> tuple[int, pa.RecordBatch]:
        """Base offset and rows of the entry that holds the offset."""
        found = self._find(offset)
        if found is not None:
            return found
        if self._held_bytes > HELD_BYTES:
            self._bases, self._held, self._held_bytes = [], {}, 0
        index = await self._log.find_offset(Offset(offset))
        last = LogIndex(min(self._log.last_index, index + READ_ENTRIES))
        for frame in await self._log.read(index, last, READ_BYTES):
            base = frame.stamp.base_offset
            if frame.stamp.record_count and base not in self._held:
                self._held[base] = self._view.order.rows_of(self._view.decoded(frame), frame.stamp)
                self._held_bytes += len(frame.data)
                insort(self._bases, base)
        found = self._find(offset)
        assert found is not None, f"the log does not give the entry of offset {offset}"
        return found

    def _find(self, offset: int) -> tuple[int, pa.RecordBatch] | None:
        at = bisect_right(self._bases, offset) - 1
        if at < 0:
            return None
        base = self._bases[at]
        rows = self._held[base]
        return (base, rows) if offset < base + rows.num_rows else None
