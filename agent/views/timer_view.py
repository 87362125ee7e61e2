"""A timer topic's records in the order in which they fall due: what comes next, and the rows themselves.

Law of this file: looks never await. They go by the first key of each chunk, which is in memory, and by the
chunks around the place that is asked for. Where one is not in memory, ChunksMissing names it, and `load`
brings it. Consumers are not known here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import Final

import pyarrow as pa

from shoal.agent.receive import DuePlace, Range
from shoal.agent.views.due_places import FAR, DuePlaces, ranges_of
from shoal.agent.views.memory_rows import TimerMemory
from shoal.agent.views.row_order import TimerOrder, one_batch
from shoal.agent.views.run_format import place_key, place_of
from shoal.agent.views.run_reader import SortedRun
from shoal.agent.views.view import SortedView, ViewNotReady
from shoal.segment_store.errors import Damaged

MAX_HELD_CHUNKS: Final = 64
"""Chunks in memory, of all runs of one view: that of each run from which rows fall due now, and those before
it that are delivered again. At most 8 MiB."""
END: Final = DuePlace(FAR, 0)
"""Behind every record."""
MAX_LOADED: Final = 16
"""Chunks that one load brings."""
MAX_RANGES: Final = 512
MAX_ROWS: Final = 16_384
"""Of one look: more than an answer takes, and some milliseconds of the loop."""


class ChunksMissing(Exception):
    """A look needs chunks that are not in memory: await `TimerView.load(error)`, then look again."""

    def __init__(self, chunks: Sequence[tuple[SortedRun, int]]) -> None:
        super().__init__(f"{len(chunks)} chunks of {chunks[0][0].path} and others")
        self.chunks = chunks


class _Held:
    """A chunk in memory: its rows, and their places."""

    def __init__(self, order: TimerOrder, rows: pa.RecordBatch) -> None:
        self.rows = rows
        self.places = DuePlaces(order.dues(rows), rows.column(0))


class TimerView:
    """One per replica of a timer topic. `view`: made with TimerOrder and this memory."""

    def __init__(self, view: SortedView, memory: TimerMemory, order: TimerOrder) -> None:
        self.view = view
        self._memory = memory
        self._order = order
        self._held: OrderedDict[tuple[SortedRun, int], _Held] = OrderedDict()

    # ---- looks

    def due(self, after: DuePlace, until: DuePlace, limit: int) -> list[Range]:
        """At most `limit` records from the place `after` on and before `until`, ascending: none only if there
        are none, else perhaps fewer than there are. Raises ChunksMissing, ViewNotReady."""
        runs = self.view.readable()
        begins = [(run, number) for run in runs for number in islice(_chunks_between(run, after, until), 1)]
        missing = [item for item in begins if item not in self._held]
        if missing:  # of all runs at once: a look that met them one by one would be made anew for each
            raise ChunksMissing(missing)
        sources = [part.between(after, until) for part in self._memory.parts()]
        sources += [self._places(run, after, until) for run in runs]
        found: list[tuple[int, int]] = []
        try:
            found.extend(islice(merge(*sources), min(limit, MAX_ROWS)))
        except ChunksMissing:
            if not found:
                raise
        return ranges_of(found, MAX_RANGES)

    def nearest(self, after: DuePlace) -> DuePlace | None:
        """The first record at or behind the place; None if there is none. Raises ChunksMissing,
        ViewNotReady."""
        found = [self._memory.nearest(after)]
        missing: list[tuple[SortedRun, int]] = []
        for run in self.view.readable():
            number = run.index.holding(place_key(*after))
            if number is not None:
                held = self._held.get((run, number))
                if held is None:
                    missing.append((run, number))
                    continue
                self._held.move_to_end((run, number))
                position = held.places.position(after)
                if position < len(held.places):
                    found.append(held.places.at(position))
                    continue
            behind = 0 if number is None else number + 1
            if behind < len(run.index):
                found.append(DuePlace(*place_of(run.index.keys[behind])))
        if missing:
            raise ChunksMissing(missing)
        return min((place for place in found if place is not None), default=None)

    def count(self, begin: DuePlace, end: DuePlace) -> int:
        """How many records lie from `begin` on and before `end`; off by less than a chunk of each run whose
        chunks are not in memory. Raises ViewNotReady."""
        in_memory = sum(part.count(begin, end) for part in self._memory.parts())
        return in_memory + sum(
            max(self._rows_before(run, end) - self._rows_before(run, begin), 0)
            for run in self.view.readable()
        )

    def row_bytes(self, place: DuePlace) -> int | None:
        """About the bytes of the record there; None if no run has it. Raises ViewNotReady."""
        runs = self.view.readable()
        at = _run_with(runs, place.offset)
        number = None if at == len(runs) else runs[at].index.holding(place_key(*place))
        if number is None:
            return None
        chunk = runs[at].index.chunk(number)
        return max(chunk.length // chunk.rows, 1)

    def _places(self, run: SortedRun, after: DuePlace, until: DuePlace) -> Iterator[tuple[int, int]]:
        for number in _chunks_between(run, after, until):
            held = self._held.get((run, number))
            if held is None:
                raise ChunksMissing([(run, number)])
            self._held.move_to_end((run, number))
            yield from held.places.between(after, until)

    def _rows_before(self, run: SortedRun, place: DuePlace) -> int:
        number = run.index.holding(place_key(*place))
        if number is None:
            return 0
        held = self._held.get((run, number))
        before = run.index.rows_before(number)
        return before + (run.index.chunk(number).rows if held is None else held.places.position(place))

    # ---- what has to be read

    async def load(self, missing: Sequence[tuple[SortedRun, int]]) -> None:
        """Bring chunks into memory. Raises ViewNotReady when one is damaged, which the view is told, or its
        run was merged meanwhile; OSError."""
        try:
            with self.view.pinned() as runs:
                for item in [item for item in self._held if item[0] not in runs]:
                    del self._held[item]
                while len(self._held) > max(MAX_HELD_CHUNKS, 2 * len(runs)):
                    self._held.popitem(last=False)
                for run, number in missing[:MAX_LOADED]:
                    if run not in runs:
                        raise ViewNotReady("the run was merged meanwhile")
                    self._held[run, number] = _Held(self._order, await run.chunk(number))
        except Damaged as damage:
            self.view.met(damage)
            raise ViewNotReady(str(damage)) from damage

    async def rows(self, ranges: Sequence[Range]) -> list[pa.RecordBatch]:
        """The records of these ranges that the runs have, each range's by itself and in the order of places:
        in the columns of runs. A record that is past its retention is missing; one that no run has yet is in
        the log. Raises ViewNotReady, OSError."""
        try:
            with self.view.pinned() as runs:
                return [await self._rows(runs, wanted) for wanted in ranges]
        except Damaged as damage:
            self.view.met(damage)
            raise ViewNotReady(str(damage)) from damage

    async def _rows(self, runs: Sequence[SortedRun], wanted: Range) -> pa.RecordBatch:
        pieces: list[pa.RecordBatch] = []
        if not wanted.count:
            return self._order.no_rows
        behind = wanted.first + wanted.count
        for at in range(_run_with(runs, wanted.first), min(_run_with(runs, behind - 1) + 1, len(runs))):
            run = runs[at]
            for number in _chunks_between(run, wanted.begin, wanted.end):
                held = self._held.get((run, number))
                if held is None:
                    held = _Held(self._order, await run.chunk(number))
                first, stop = held.places.position(wanted.begin), held.places.position(wanted.end)
                if first < stop:
                    pieces.append(held.rows.slice(first, stop - first))
        return one_batch(pieces or [self._order.no_rows], self._order.schema)


def _run_with(runs: Sequence[SortedRun], offset: int) -> int:
    """Which run is of the entries that hold the offset; their count if none is."""
    return bisect_right(runs, offset, key=lambda run: run.entry.end_offset)


def _chunks_between(run: SortedRun, begin: DuePlace, end: DuePlace) -> Iterator[int]:
    """The chunks that may hold places from `begin` on and before `end`."""
    first = run.index.holding(place_key(*begin)) or 0
    yield from range(first, run.index.reaching(place_key(*end)))
