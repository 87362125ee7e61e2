"""The rows of one table's partition: gets, scans, and puts under a condition.

Law of this file: a get sees everything that was acknowledged before it came. A condition is judged against
the end of the leader's log, uncommitted entries included. The last look, the decision and the proposal stand
in one turn of the loop. A refusal is told once its reason is committed, and a majority has confirmed that the
leader has led ever since it judged. So nobody hears of a row that may never be, or is no more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from shoal.agent.partition.appender import Appender
from shoal.agent.partition.applier import Applier
from shoal.agent.partition.observer import ReplicaObserver
from shoal.agent.partition.pending import Waiter
from shoal.agent.partition.reader import Reader, damaged
from shoal.agent.partition.replica import Replica
from shoal.agent.submission import Appended, Submission
from shoal.agent.table import Condition, RowLookup, ScanPage, ScanRequest
from shoal.agent.views.table_memory import KeyPlace
from shoal.agent.views.table_view import TableView
from shoal.agent.views.upkeep.table_records import TableRecords
from shoal.agent.views.view import ViewNotReady
from shoal.errors import ShoalError
from shoal.format.batch import KEY_COLUMN, VALUE_COLUMN, Frame, Kind, LogIndex, Offset, Term
from shoal.format.records import RecordColumns
from shoal.segment_store.errors import Damaged, StoreError

MENDING_MS: Final = 50
"""Between two looks at a view that is being mended."""
MAX_WAITING: Final = 4_096
"""Requests of a partition that wait for the view: as many as long polls."""
TAIL_BYTES: Final = 2**30
"""More than a group may have uncommitted: no bound of what is looked through, which that one is."""

_T = TypeVar("_T")


class _Unapplied(NamedTuple):
    """The keys of an entry that the view has not taken yet."""

    term: Term
    base_offset: int
    keys: pa.Array
    values: pa.Array

    def find(self, key: bytes) -> KeyPlace | None:
        """The last record of that key."""
        found = pc.indices_nonzero(pc.equal(self.keys, pa.scalar(key, pa.binary())))
        if not len(found):
            return None
        row = found[-1].as_py()
        return KeyPlace(Offset(self.base_offset + row), self.values[row].is_valid)


class TableKeeper(ReplicaObserver):
    """One per replica of a table. Every method raises ShoalError, and nothing else; `deadline_ms` is on the
    monotonic clock."""

    def __init__(
        self, replica: Replica, table: TableView, appender: Appender, reader: Reader, applier: Applier
    ) -> None:
        self._replica = replica
        self._table = table
        self._records = TableRecords(table, replica.log)
        self._appender = appender
        self._reader = reader
        self._applier = applier
        self._waiting: set[asyncio.Future[None]] = set()
        self._unapplied: dict[LogIndex, _Unapplied] = {}

    # ---- reads

    async def get(self, key: bytes, deadline_ms: int, *, local: bool) -> RowLookup:
        """The row of a key. Not `local`: as of this call or later."""
        await self._caught_up(deadline_ms, local=local)
        return await self._looked(lambda: self._records.get(key), deadline_ms)

    def get_at_once(self, key: bytes) -> RowLookup | None:
        """As get, in this very call: where this leader votes alone, so that nobody has to be asked. Its view
        has all that is committed, and memory has the row. None: get tells it, or why not."""
        replica = self._replica
        index = replica.core.sole_read_index() if replica.serves else None
        state = replica.state
        if index is None or state.committed.last_index < index:
            return None
        if self._table.view.applied.offset < state.high_watermark:
            return None
        return self._table.at_once(key)

    async def scan(self, request: ScanRequest, deadline_ms: int, *, local: bool) -> ScanPage:
        """A page of rows at one cut. Not `local`: of this call or later."""
        await self._caught_up(deadline_ms, local=local)
        return await self._looked(lambda: self._records.scan(request), deadline_ms)

    async def _caught_up(self, deadline_ms: int, *, local: bool) -> None:
        """The view has all that was committed when a majority confirmed this leader."""
        if local and self._replica.failure is None:
            return
        offsets = await self._reader.offsets()
        while self._table.view.applied.offset < offsets.high_watermark:
            await self._progress(deadline_ms)
            self._replica.require_leader()

    async def _looked(self, look: Callable[[], Awaitable[_T]], deadline_ms: int) -> _T:
        """The outcome of a look into the view, as soon as the view is whole."""
        clock = self._replica.host.clock
        while True:
            try:
                return await look()
            except ViewNotReady as error:
                if clock.now_ms() + MENDING_MS > deadline_ms:
                    raise ShoalError("not-ready", f"the rows cannot be read yet: {error}") from error
            except Damaged as error:
                raise damaged(self._replica, error) from error
            except (StoreError, OSError) as error:
                raise ShoalError("internal", f"the rows cannot be read: {error}") from error
            await asyncio.sleep(MENDING_MS / 1_000)

    async def _progress(self, deadline_ms: int) -> None:
        """Return when more entries have passed the view, or the role has changed."""
        remaining_ms = deadline_ms - self._replica.host.clock.now_ms()
        if remaining_ms <= 0:
            raise ShoalError("not-ready", "the view here has not taken all entries yet")
        if len(self._waiting) >= MAX_WAITING:
            raise ShoalError("overloaded", f"{MAX_WAITING} requests wait for the rows of this partition")
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        self._applier.on_applied = self.role_changed
        try:
            await asyncio.wait((waiting,), timeout=remaining_ms / 1_000)
        finally:
            self._waiting.discard(waiting)

    def role_changed(self) -> None:
        """Those who wait look again."""
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    # ---- puts

    async def put(self, submission: Submission, condition: Condition, deadline_ms: int) -> Appended:
        """Store one record if the condition holds. ShoalError precondition-failed with the offset of the row
        that is there, `current`; else as an append raises."""
        records = submission.records
        assert isinstance(records, RecordColumns)
        assert len(records) == 1
        key = records.keys[0]
        self._appender.check_keys(records)
        assert key is not None
        answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        view = self._table.view
        while True:
            self._replica.require_leader()
            saved = view.saved
            found = await self._looked(lambda: self._table.in_runs(key), deadline_ms)
            # From here on nothing is awaited before the entry is proposed.
            self._replica.require_leader()
            if view.saved != saved:
                continue  # a new run may have taken the key from memory
            tail = self._tail()
            if tail is None:
                await self._progress(deadline_ms)
                continue
            if self._appender.answer_repeated(submission, deadline_ms, answer):
                return await answer
            entry, place = self._newest(key, tail)
            if place is None and found is not None:
                place = found.place
            current = place.offset if place is not None and place.has_value else None
            if condition.holds(current):
                self._appender.append_now(submission, deadline_ms, answer)
                return await answer
            await self._confirmed(entry, deadline_ms)
            there = "no row" if current is None else f"a row, which was stored at offset {current}"
            raise ShoalError("precondition-failed", f"the key has {there}", current=current)

    def _tail(self) -> list[Frame] | None:
        """The entries that the view has not taken; None where some of them are not in memory."""
        replica = self._replica
        first = LogIndex(max(self._table.view.applied.index, self._applier.applied_index) + 1)
        last = replica.state.tail.last_index
        if first > last:
            return []
        frames = [] if replica.disk.log_is_behind else replica.ahead.run(first, last, TAIL_BYTES)
        return frames if len(frames) == last - first + 1 else None

    def _newest(self, key: bytes, tail: list[Frame]) -> tuple[LogIndex, KeyPlace | None]:
        """The newest record of the key that no run has, and its entry; 0 for one that the view has."""
        known, self._unapplied = self._unapplied, {}
        for frame in tail:
            stamp = frame.stamp
            if stamp.kind is not Kind.DATA:
                continue
            kept = known.get(stamp.index)
            if kept is None or kept.term != stamp.term:
                batch = self._table.view.decoded(frame)
                columns = batch.column(KEY_COLUMN), batch.column(VALUE_COLUMN)
                kept = _Unapplied(stamp.term, stamp.base_offset, *columns)
            self._unapplied[stamp.index] = kept
        for index in reversed(self._unapplied):
            place = self._unapplied[index].find(key)
            if place is not None:
                return index, place
        return LogIndex(0), self._table.in_memory(key)

    async def _confirmed(self, entry: LogIndex, deadline_ms: int) -> None:
        """The entry is committed, and this replica leads after that, as when it judged. Nothing was stored if
        not. Called in the turn of the judgement. One that was deposed and elected again has entries of others
        behind that entry: they may have taken back what it judged by."""
        replica = self._replica
        term = replica.core.term
        try:
            if entry > replica.state.committed.last_index:
                answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
                replica.waiting.add(Waiter(entry, answer, Appended(Offset(0), 0), deadline_ms))
                await answer
            await self._reader.confirm()
            if replica.core.term != term:
                raise ShoalError("no-leader", "leadership moved while the condition was judged")
        except ShoalError as error:
            raise ShoalError(error.code, error.detail, definite=True, **error.extra) from error
