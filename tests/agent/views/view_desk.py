"""A view beside a log in memory: entries are appended, applied and made into runs when a test says so."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import ClassVar, TypeVar

import pyarrow as pa
from memory_disk import MemoryDisk

from shoal.agent.receive import DuePlace, Range
from shoal.agent.views.memory_rows import TimerMemory
from shoal.agent.views.row_order import TimerOrder
from shoal.agent.views.run_maker import RunMaker
from shoal.agent.views.timer_view import END, ChunksMissing, TimerView
from shoal.agent.views.view import SortedView, ViewFiles, ViewLimits
from shoal.format.batch import (
    TIMER_SCHEMA,
    Flag,
    Kind,
    LogIdentity,
    LogIndex,
    Term,
    control_frame,
    message_from_batch,
    stamp_message,
)
from shoal.segment_store import LogConfig, PartitionLog
from shoal.segment_store.disk.open_files import OpenFiles
from shoal.segment_store.errors import StoreError

IDENTITY = LogIdentity(b"c" * 16, b"t" * 16, 3)
DIRECTORY = "topics/t/0"
ENTRIES_OF_SEGMENT = 20
SMALL_RUNS = ViewLimits(run_bytes=4 * 2**10)
_T = TypeVar("_T")


async def here(function: Callable[[], _T]) -> _T:
    """Work of threads, in the test's own."""
    return function()


def timer_batch(dues: Sequence[int | None], *, value_bytes: int = 8, fill: int = 0) -> pa.RecordBatch:
    """Records with these times of delivery."""
    rows = len(dues)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([7] * rows, pa.timestamp("us", tz="UTC")),
            pa.array([b"k%d" % number for number in range(rows)], pa.binary()),
            pa.array([bytes([fill]) * value_bytes] * rows, pa.binary()),
            pa.nulls(rows, TIMER_SCHEMA.field("headers").type),
            pa.array(dues, pa.timestamp("us", tz="UTC")),
        ],
        schema=TIMER_SCHEMA,
    )


class TimerDesk:
    """A log, a view of it, and the places that the view must have. `places`: of all that was applied."""

    opened: ClassVar[list[TimerDesk]] = []
    """To be closed at the end of a test."""

    def __init__(self, disk: MemoryDisk, limits: ViewLimits = SMALL_RUNS) -> None:
        self.opened.append(self)
        self.disk = disk
        self.limits = limits
        self.places: list[DuePlace] = []
        self._log: PartitionLog | None = None
        self.view: SortedView
        self.timers: TimerView
        self.maker: RunMaker

    async def open(self) -> None:
        """Log and view from the disk; what the log has behind the view is applied again."""
        await self.close()
        config = LogConfig(segment_bytes=16 * 2**10, index_interval_ms=1)
        self._log = await PartitionLog.open(self.disk, DIRECTORY, IDENTITY, TIMER_SCHEMA, config)
        order, memory = TimerOrder(TIMER_SCHEMA), TimerMemory()
        files = ViewFiles(self.disk, f"{DIRECTORY}/view", OpenFiles(self.disk, 2), IDENTITY.seed)
        self.view = await SortedView.open(files, order, memory, self.limits)
        self.timers = TimerView(self.view, memory, order)
        self.maker = RunMaker(self.view, self.log, here)
        await self.catch_up()
        self.view.check_invariants()

    async def close(self) -> None:
        """Let go of the log; nothing happens where the disk has failed under it."""
        if self._log is not None:
            with suppress(StoreError):
                await self._log.close()
        self._log = None

    @property
    def log(self) -> PartitionLog:
        """It is open."""
        assert self._log is not None
        return self._log

    async def catch_up(self) -> None:
        """Apply what the log has behind the view."""
        index = max(LogIndex(self.view.applied.index + 1), self.log.first_index)
        while index <= self.log.last_index:
            for frame in await self.log.read(index, self.log.last_index, 2**20):
                if frame.stamp.kind == Kind.DATA:
                    self.view.apply(frame)
                index = LogIndex(frame.stamp.index + 1)

    async def append(self, dues: Sequence[int | None], append_us: int = 100, *, value_bytes: int = 8) -> None:
        """One entry, synced and applied; without records a control entry."""
        rolls = bool(self.log.last_index) and self.log.last_index % ENTRIES_OF_SEGMENT == 0
        common = {
            "flags": Flag.FIRST_OF_SEGMENT if rolls else Flag.NONE,
            "base_offset": self.log.end_offset,
            "term": Term(1),
            "previous_term": self.log.last_term,
            "index": LogIndex(self.log.last_index + 1),
            "append_time_us": append_us,
        }
        if dues:
            message = message_from_batch(timer_batch(dues, value_bytes=value_bytes))
            frame = stamp_message(message, IDENTITY, **common)
        else:
            frame = control_frame(TIMER_SCHEMA, IDENTITY, kind=Kind.NOOP, control=b"", **common)
        first = self.log.end_offset
        await self.log.append([frame])
        if dues:
            self.view.apply(frame)
        self.places += [DuePlace(max(due or 0, append_us), first + number) for number, due in enumerate(dues)]

    async def settle(self, expired_us: int = 0) -> None:
        """Work until nothing is left to do, all rows in runs."""
        while await self.maker.work(expired_us=expired_us, seal=True):
            self.view.check_invariants()

    async def look(self, call: Callable[[], _T]) -> _T:
        """A look, with the chunks that it needs."""
        while True:
            try:
                return call()
            except ChunksMissing as missing:
                await self.timers.load(missing.chunks)

    async def due(self, after: DuePlace, until: DuePlace = END) -> list[DuePlace]:
        """Every place from `after` on and before `until`, look by look."""
        found: list[DuePlace] = []
        while True:
            ranges = await self.look(partial(self.timers.due, after, until, 700))
            if not ranges:
                return found
            found += each(ranges)
            after = ranges[-1].end

    def expected(self, after: DuePlace, until: DuePlace = END) -> list[DuePlace]:
        """The same by the model."""
        return sorted(place for place in self.places if after <= place < until)


def each(ranges: Sequence[Range]) -> list[DuePlace]:
    """The places of ranges."""
    return [DuePlace(piece.due_us, piece.first + number) for piece in ranges for number in range(piece.count)]


def random_dues(rng: random.Random) -> list[int | None]:
    """Due times of one entry: few values and many, far ones, none."""
    spread = rng.choice((1, 5, 1_000, 10**9))
    return [
        None if rng.random() < 0.1 else rng.randrange(spread) for _ in range(rng.choice((0, 1, 2, 30, 90)))
    ]
