"""A table's rows by their keys, and in the order of them: from memory and runs, at one cut.

Law of this file: a cut is the content of memory and runs in one turn of the loop. Parts of memory never
change, and runs stay while they are pinned. A row that no run has yet is read from the log by
`fresh`. Leaders and conditions are not known here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from heapq import merge
from itertools import count, islice, repeat
from typing import Final, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from shoal.agent.table import MAX_SCAN_BYTES, MAX_SCAN_ROWS, RowLookup, ScanPage, ScanRequest, TableRow
from shoal.agent.views.row_order import OFFSET_COLUMN, one_batch
from shoal.agent.views.run_format import RunFormatError
from shoal.agent.views.run_reader import SortedRun
from shoal.agent.views.table_memory import KeyPart, KeyPlace, TableMemory, row_at
from shoal.agent.views.table_order import (
    ChunkLayout,
    KeyColumn,
    TableChunk,
    TableOrder,
    may_have,
    newest_of_each,
)
from shoal.agent.views.view import SortedView, ViewNotReady
from shoal.format.batch import KEY_COLUMN, VALUE_COLUMN, Offset
from shoal.segment_store.errors import Damaged

HELD_CHUNKS: Final = 256
"""Chunks in memory, of all runs of one view: some 5 MiB, but for large rows."""
KNOWN_LAYOUTS: Final = 16_384
"""Of chunks whose rows were looked at, 400 bytes each. When full they are forgotten, not searched."""
PIECE_BYTES: Final = 2**20
"""Of chunks that a scan reads before it looks whether its page is full."""
FRESH_ROWS: Final = 8
"""Read from the log at first, to learn how large rows are: 8 of the largest are 64 MiB."""


class FoundRow(NamedTuple):
    """The newest record of a key. `row`: None where it is read from the log, or is none."""

    place: KeyPlace
    row: TableRow | None


class FreshRows(Protocol):
    """Rows of the log. Raises OffsetOutOfRange for one that was trimmed, StoreError."""

    async def rows(self, offsets: Sequence[int]) -> pa.RecordBatch: ...


class TableView:
    """One per replica of a table. `view`: made with TableOrder and this memory."""

    def __init__(self, view: SortedView, memory: TableMemory, order: TableOrder) -> None:
        self.view = view
        self.memory = memory
        self._order = order
        self._held: OrderedDict[tuple[SortedRun, int], TableChunk] = OrderedDict()
        self._layouts: dict[tuple[SortedRun, int], ChunkLayout] = {}

    def forget_chunks(self) -> None:
        """Keep none in memory."""
        self._held.clear()

    # ---- one key

    def in_memory(self, key: bytes) -> KeyPlace | None:
        """The newest record of the key, if no run has it yet."""
        return self.memory.find(key)

    async def in_runs(self, key: bytes) -> FoundRow | None:
        """The newest record of the key that a run has. Raises ViewNotReady, OSError."""
        try:
            with self.view.pinned() as runs:
                for run in reversed(runs):
                    number = run.index.holding(key) if may_have(run.filter, key) else None
                    if number is None:
                        continue
                    held = self._at_hand(run, number)
                    if held is None:
                        held = self._hold(run, number, bytes(await run.chunk_bytes(number, number + 1)))
                    at = held.find(key)
                    if at is not None:
                        row = self._row(run, number, held, at, key)
                        return FoundRow(KeyPlace(held.offset(at), row is not None), row)
        except Damaged as damage:
            self.view.met(damage)
            raise ViewNotReady(str(damage)) from damage
        return None

    def at_once(self, key: bytes) -> RowLookup | None:
        """The row of a key as of this call, if memory has all that says so; else None."""
        view = self.view
        place = self.memory.find(key)
        if place is not None:
            row = self.memory.recent.row(key, place.offset) if place.has_value else None
            return RowLookup(row, view.applied.offset) if row is not None or not place.has_value else None
        try:
            for run in reversed(view.whole_runs()):
                number = run.index.holding(key) if may_have(run.filter, key) else None
                if number is None:
                    continue
                held = self._at_hand(run, number)
                if held is None:
                    return None
                at = held.find(key)
                if at is not None:
                    return RowLookup(self._row(run, number, held, at, key), view.applied.offset)
        except ViewNotReady:
            return None
        except Damaged as damage:
            view.met(damage)
            return None
        return RowLookup(None, view.applied.offset)

    def _at_hand(self, run: SortedRun, number: int) -> TableChunk | None:
        """A chunk that memory has, verified. Raises Damaged."""
        held = self._held.get((run, number))
        if held is not None:
            self._held.move_to_end((run, number))
            return held
        data = run.read_at_once(number)
        return None if data is None else self._hold(run, number, data)

    def _hold(self, run: SortedRun, number: int, data: bytes | bytearray) -> TableChunk:
        """A chunk that was read, once it has verified. Its rows are looked at the first time. Raises
        Damaged."""
        run.check(data, number)
        layout = self._layouts.get((run, number))
        if layout is None:
            try:
                layout = ChunkLayout.of(run.rows_of(data, number), data)
            except RunFormatError as error:
                raise run.damaged(run.index.place(number)[0], str(error)) from error
            if len(self._layouts) >= KNOWN_LAYOUTS:
                self._layouts.clear()
            self._layouts[run, number] = layout
        held = self._held[run, number] = TableChunk(data, layout)
        if len(self._held) > HELD_CHUNKS:
            self._held.popitem(last=False)
        return held

    def _row(self, run: SortedRun, number: int, held: TableChunk, at: int, key: bytes) -> TableRow | None:
        """None for one without a value."""
        if held.layout.has_headers:
            return row_at(run.rows_of(held.data, number), at, held.offset(at))
        value = held.value(at)
        return None if value is None else TableRow(key, value, held.offset(at), held.time_us(at), ())

    # ---- many keys

    async def scan(self, request: ScanRequest, fresh: FreshRows) -> ScanPage:
        """One page. Raises ViewNotReady, OSError, and as FreshRows."""
        begin, stem = request.prefix, request.prefix.rstrip(b"\xff")
        if request.after is not None:
            begin = max(begin, request.after + b"\0")
        end = stem[:-1] + bytes([stem[-1] + 1]) if stem else None  # before the first key without the prefix
        try:
            with self.view.pinned() as runs:
                cut = _Cut(self._order, runs, self.memory.parts(), self.view.applied.offset)
                return await cut.page(begin, end, request, fresh)
        except Damaged as damage:
            self.view.met(damage)
            raise ViewNotReady(str(damage)) from damage


class _Cut:
    """Memory and runs of one moment. The runs are pinned by the caller."""

    def __init__(
        self, order: TableOrder, runs: Sequence[SortedRun], parts: Sequence[KeyPart], as_of: Offset
    ) -> None:
        self._order = order
        self._runs = runs
        self._parts = parts
        self._as_of = as_of

    async def page(self, begin: bytes, end: bytes | None, request: ScanRequest, fresh: FreshRows) -> ScanPage:
        """Rows from `begin` on and before `end`, piece by piece, until there are enough."""
        pieces: list[pa.RecordBatch] = []
        rows_left = min(request.limit, MAX_SCAN_ROWS)
        bytes_left = min(request.max_bytes, MAX_SCAN_BYTES)
        while end is None or begin < end:
            bound = self._bound(begin, end, rows_left)
            piece, is_whole = await self._piece(begin, bound, rows_left, bytes_left, fresh)
            if pieces and piece.num_rows and piece.nbytes > bytes_left:
                piece, is_whole = piece.slice(0, 0), False
            if piece.num_rows:
                pieces.append(piece)
            rows_left -= piece.num_rows
            bytes_left -= piece.nbytes
            if not is_whole or ((rows_left <= 0 or bytes_left <= 0) and bound is not None):
                return ScanPage(one_batch(pieces, self._order.schema), self._as_of, is_last=False)
            if bound is None:
                break
            begin = bound
        return ScanPage(one_batch(pieces, self._order.schema), self._as_of, is_last=True)

    def _bound(self, begin: bytes, end: bytes | None, rows: int) -> bytes | None:
        """The end of a piece. A part of memory has not many more rows before it than are wanted, and the
        runs not many more bytes. None: to the last key."""
        bound = end
        for part in self._parts:
            behind = part.keys.position(begin) + rows
            if behind < len(part) and (bound is None or part.keys.key(behind) < bound):
                bound = part.keys.key(behind)
        size = 0
        firsts = [run.index.holding(begin) or 0 for run in self._runs]
        heads = [
            zip(islice(run.index.keys, first, None), repeat(at), count(first), strict=False)
            for at, (run, first) in enumerate(zip(self._runs, firsts, strict=True))
        ]
        for key, run, number in merge(*heads):
            if bound is not None and key >= bound:
                return bound
            if size >= PIECE_BYTES and key > begin:
                return key
            size += self._runs[run].index.chunk(number).length
        return bound

    async def _piece(
        self, begin: bytes, bound: bytes | None, limit: int, max_bytes: int, fresh: FreshRows
    ) -> tuple[pa.RecordBatch, bool]:
        """The rows from `begin` on and before `bound`, at most `limit`; whether these are all."""
        stored = []
        for run in self._runs:
            first = run.index.holding(begin) or 0
            stop = len(run.index) if bound is None else run.index.reaching(bound)
            chunks = one_batch(await run.chunks(first, max(stop, first)), self._order.schema)
            keys = KeyColumn(chunks.column(KEY_COLUMN))
            at = keys.position(begin)
            stored.append(chunks.slice(at, (len(keys) if bound is None else keys.position(bound)) - at))
        rows = one_batch(stored, self._order.schema)
        offsets = rows.column(OFFSET_COLUMN)
        has_value = pc.cast(pc.is_valid(rows.column(VALUE_COLUMN)), pa.int64())
        keys_of, places_of = [rows.column(KEY_COLUMN)], [pc.add(pc.multiply(offsets, 2), has_value)]
        for part in self._parts:
            at = part.keys.position(begin)
            stop = len(part) if bound is None else part.keys.position(bound)
            keys_of.append(part.keys.array.slice(at, stop - at))
            places_of.append(part.places.slice(at, stop - at))
        newest = newest_of_each(pa.concat_arrays(keys_of))
        places = pa.concat_arrays(places_of).take(newest)
        is_row = pc.equal(pc.bit_wise_and(places, 1), 1)
        newest, places = newest.filter(is_row), places.filter(is_row)
        found = _Winners(rows, newest.slice(0, limit), places.slice(0, limit), fresh)
        taken = await found.rows(max_bytes)
        return taken, taken.num_rows == len(newest)


class _Winners:
    """The rows of a piece. `numbers`: of `stored` rows, or beyond them of such that only the log has."""

    def __init__(self, stored: pa.RecordBatch, numbers: pa.Array, places: pa.Array, fresh: FreshRows) -> None:
        self._stored = stored
        self._numbers = numbers.cast(pa.int64())
        self._offsets = pc.shift_right(places, 1)
        self._fresh = fresh

    async def rows(self, max_bytes: int) -> pa.RecordBatch:
        """In order, at most so many bytes, but for the first row."""
        pieces: list[pa.RecordBatch] = []
        done, size, wanted = 0, 0, FRESH_ROWS
        while done < len(self._numbers) and size < max_bytes:
            piece = await self._slice(done, wanted)
            pieces.append(piece)
            done += piece.num_rows
            size += piece.nbytes
            wanted = max(FRESH_ROWS, min(4 * wanted, (max_bytes - size) * done // max(size, 1)))
        rows = one_batch(pieces, self._stored.schema)
        while rows.num_rows > 1 and (size := rows.nbytes) > max_bytes:
            rows = rows.slice(0, max(min(rows.num_rows * max_bytes // size, rows.num_rows - 1), 1))
        return rows

    async def _slice(self, first: int, count: int) -> pa.RecordBatch:
        numbers, offsets = self._numbers.slice(first, count), self._offsets.slice(first, count)
        stored = self._stored.num_rows
        is_fresh = pc.greater_equal(numbers, stored)
        wanted = offsets.filter(is_fresh)
        if not len(wanted):
            return self._stored.take(numbers)
        read = await self._fresh.rows(wanted.to_pylist())
        behind = pc.add(pc.cumulative_sum(pc.cast(is_fresh, pa.int64())), stored - 1)
        both = one_batch([self._stored, read], self._stored.schema)
        return both.take(pc.if_else(is_fresh, behind, numbers))
