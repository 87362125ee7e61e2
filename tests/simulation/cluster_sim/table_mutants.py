"""Deliberate faults in the rows of tables: their keepers, views and watches; mutants.py runs them."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cluster_sim.timer_mutants import trim_before_runs_are_saved
from shoal.agent.delivery.table_keeper import TableKeeper
from shoal.agent.http.tables.watch import WatchSource
from shoal.agent.partition.appender import Appender
from shoal.agent.partition.applier import Applier
from shoal.agent.table import ScanPage, ScanRequest
from shoal.agent.views.table_memory import KeyPlace
from shoal.agent.views.table_order import TableOrder, newest_of_each
from shoal.agent.views.table_view import FoundRow, TableView, _Cut
from shoal.agent.views.upkeep import view_set
from shoal.agent.views.view import SortedView
from shoal.format.batch import LogIndex

Patch = tuple[Any, str, Any]
LATE_MS = 60_000
LATER_S = 0.2
"""So long a page of many rows may be read."""


def refuse_before_the_commit() -> list[Patch]:
    """A condition's refusal is told at once, though the row that it rests on may never be."""
    confirmed = TableKeeper._confirmed

    async def mutated(self: TableKeeper, entry: LogIndex, deadline_ms: int) -> None:
        await confirmed(self, LogIndex(0), deadline_ms)

    return [(TableKeeper, "_confirmed", mutated)]


def judge_by_what_is_committed() -> list[Patch]:
    """A condition is judged without the entries that are on their way."""
    return [(TableKeeper, "_tail", lambda _: [])]


def judge_before_the_sequence() -> list[Patch]:
    """A put that was stored is judged again when it is repeated."""
    return [(Appender, "answer_repeated", lambda *_: False)]


def get_without_asking() -> list[Patch]:
    """A leader gives its rows without asking whether it still leads."""

    async def mutated(self: TableKeeper, deadline_ms: int, *, local: bool) -> None:
        if not local:
            self._replica.require_leader()

    return [(TableKeeper, "_caught_up", mutated)]


def get_from_a_view_that_lags() -> list[Patch]:
    """What is committed need not be in the view, which takes its time."""
    apply_committed = Applier._apply_committed

    async def lagging(self: Applier) -> None:
        await asyncio.sleep(LATER_S)
        await apply_committed(self)

    async def mutated(self: TableKeeper, deadline_ms: int, *, local: bool) -> None:
        if not local:
            await self._reader.offsets()

    return [(TableKeeper, "_caught_up", mutated), (Applier, "_apply_committed", lagging)]


def _oldest_of_each(keys: pa.Array) -> pa.Array:
    count = len(keys)
    numbers = pa.array(range(count - 1, -1, -1), pa.int64())
    return numbers.take(newest_of_each(keys.take(numbers)))


def keep_the_oldest_in_runs() -> list[Patch]:
    """Of the records of one key a run has the first."""

    def in_order(self: TableOrder, rows: pa.RecordBatch) -> pa.Array:
        return _oldest_of_each(rows.column(self._key))

    return [(TableOrder, "in_order", in_order)]


def look_into_the_oldest_run_first() -> list[Patch]:
    """And give what it has."""

    async def in_runs(self: TableView, key: bytes) -> FoundRow | None:
        with self.view.pinned() as runs:
            for run in runs:
                number = run.index.holding(key)
                if number is None:
                    continue
                held = self._hold(run, number, bytes(await run.chunk_bytes(number, number + 1)))
                at = held.find(key)
                if at is not None:
                    row = self._row(run, number, held, at, key)
                    return FoundRow(KeyPlace(held.offset(at), row is not None), row)
        return None

    return [(TableView, "in_runs", in_runs), (TableView, "at_once", lambda *_: None)]


def forget_ends_of_rows_in_runs() -> list[Patch]:
    """A run has no records that end rows of older runs."""
    in_order = TableOrder.in_order

    def mutated(self: TableOrder, rows: pa.RecordBatch) -> pa.Array:
        numbers = in_order(self, rows)
        return numbers.filter(pc.is_valid(rows.column(self._value)).take(numbers))

    return [(TableOrder, "in_order", mutated)]


def drop_from_memory_what_came_meanwhile() -> list[Patch]:
    """While a run is written, rows come; they go from memory with those that the run has."""

    async def saved_up_to(self: SortedView, manifest: Any, made: list[Any], taken_bytes: int) -> None:
        await self.replace(manifest, made)
        self.memory.drop_before(self.applied.offset)
        self.unsaved_bytes = max(self.unsaved_bytes - taken_bytes, 0)

    return [(SortedView, "saved_up_to", saved_up_to)]


def scan_memory_later_than_runs() -> list[Patch]:
    """A page has the runs of one moment and memory of another one."""

    async def scan(self: TableView, request: ScanRequest, fresh: Any) -> ScanPage:
        runs = self.view.pinned().__enter__()
        await asyncio.sleep(LATER_S)
        cut = _Cut(self._order, runs, self.memory.parts(), self.view.applied.offset)
        begin = b"" if request.after is None else request.after + b"\0"
        stem = request.prefix
        end = stem[:-1] + bytes([stem[-1] + 1]) if stem else None
        return await cut.page(max(begin, stem), end, request, fresh)

    return [(TableView, "scan", scan)]


def tell_a_later_cut() -> list[Patch]:
    """A page names the cut of the moment at which it was ready."""
    scan = TableView.scan

    async def mutated(self: TableView, request: ScanRequest, fresh: Any) -> ScanPage:
        page = await scan(self, request, fresh)
        await asyncio.sleep(LATER_S)
        return page._replace(as_of=self.view.applied.offset)

    return [(TableView, "scan", mutated)]


def skip_a_change_at_a_resume() -> list[Patch]:
    """An event stream goes on behind the change after the last one that was told."""
    made = WatchSource.__init__

    def mutated(self: WatchSource, *arguments: Any) -> None:
        *others, start = arguments
        made(self, *others, start and {number: offset + 1 for number, offset in start.items()})

    return [(WatchSource, "__init__", mutated)]


def trim_rows_before_runs_are_saved() -> list[Patch]:
    """The log goes as far as the view has taken it, into memory, where no run is made for a while."""
    late = [(SortedView, "wants_run", property(lambda _: False)), (view_set, "SEAL_AFTER_MS", LATE_MS)]
    return [*trim_before_runs_are_saved(), *late]
