"""A table's view beside a log in memory, and a dict that says what its rows must be."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from typing import ClassVar

from memory_disk import MemoryDisk

from shoal.agent.table import ScanRequest, TableRow
from shoal.agent.views.run_maker import RunMaker
from shoal.agent.views.table_memory import TableMemory, row_at
from shoal.agent.views.table_order import TableOrder
from shoal.agent.views.table_view import TableView
from shoal.agent.views.upkeep.table_records import TableRecords
from shoal.agent.views.view import SortedView, ViewFiles, ViewLimits
from shoal.format.batch import (
    DEFAULT_SCHEMA,
    Flag,
    Kind,
    LogIndex,
    Offset,
    Term,
    control_frame,
    message_from_batch,
    stamp_message,
)
from shoal.format.records import RecordColumns, columns_to_batch
from shoal.segment_store import LogConfig, PartitionLog
from shoal.segment_store.disk.open_files import OpenFiles
from shoal.segment_store.errors import StoreError
from tests.agent.views.view_desk import DIRECTORY, ENTRIES_OF_SEGMENT, IDENTITY, here


def headers_of(value: bytes | None) -> tuple[tuple[str, bytes | None], ...]:
    """Of the record with that value: some have headers, and whole chunks have none."""
    return (("h", value),) if value is not None and len(value) == 3 and value[0] < 32 else ()


SMALL_RUNS = ViewLimits(run_bytes=4 * 2**10)
Put = tuple[bytes, bytes | None]


class TableDesk:
    """`rows`: what a table of all that was appended has, as (value, offset) by key."""

    opened: ClassVar[list[TableDesk]] = []
    """To be closed at the end of a test."""

    def __init__(self, disk: MemoryDisk, limits: ViewLimits = SMALL_RUNS) -> None:
        self.opened.append(self)
        self.disk = disk
        self.disk.resident = "/view/"
        self.limits = limits
        self.rows: dict[bytes, tuple[bytes, int]] = {}
        self.answered_at_once = 0
        self._log: PartitionLog | None = None
        self.view: SortedView
        self.table: TableView
        self.records: TableRecords
        self.maker: RunMaker

    async def open(self) -> None:
        """Log and view from the disk; what the log has behind the view is applied again."""
        await self.close()
        config = LogConfig(segment_bytes=16 * 2**10, index_interval_ms=1)
        self._log = await PartitionLog.open(self.disk, DIRECTORY, IDENTITY, DEFAULT_SCHEMA, config)
        order, memory = TableOrder(DEFAULT_SCHEMA), TableMemory()
        files = ViewFiles(self.disk, f"{DIRECTORY}/view", OpenFiles(self.disk, 2), IDENTITY.seed)
        self.view = await SortedView.open(files, order, memory, self.limits)
        self.table = TableView(self.view, memory, order)
        self.records = TableRecords(self.table, self._log)
        self.maker = RunMaker(self.view, self._log, here)
        index = max(LogIndex(self.view.applied.index + 1), self.log.first_index)
        while index <= self.log.last_index:
            for frame in await self.log.read(index, self.log.last_index, 2**20):
                if frame.stamp.kind == Kind.DATA:
                    self.view.apply(frame)
                index = LogIndex(frame.stamp.index + 1)
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

    async def append(self, puts: Sequence[Put]) -> None:
        """One entry, synced and applied; without records a control entry."""
        rolls = bool(self.log.last_index) and self.log.last_index % ENTRIES_OF_SEGMENT == 0
        base = self.log.end_offset
        common = {
            "flags": Flag.FIRST_OF_SEGMENT if rolls else Flag.NONE,
            "base_offset": base,
            "term": Term(1),
            "previous_term": self.log.last_term,
            "index": LogIndex(self.log.last_index + 1),
            "append_time_us": 100,
        }
        if puts:
            count, (keys, values) = len(puts), zip(*puts, strict=True)
            headers = [list(headers_of(value)) or None for value in values]
            columns = RecordColumns([7] * count, list(keys), list(values), headers)
            frame = stamp_message(message_from_batch(columns_to_batch(columns, 7)), IDENTITY, **common)
        else:
            frame = control_frame(DEFAULT_SCHEMA, IDENTITY, kind=Kind.NOOP, control=b"", **common)
        await self.log.append([frame])
        if puts:
            self.view.apply(frame)
        for number, (key, value) in enumerate(puts):
            self.rows.pop(key, None)
            if value is not None:
                self.rows[key] = value, base + number

    async def settle(self) -> None:
        """Work until nothing is left to do, all rows in runs."""
        while await self.maker.work(expired_us=0, seal=True):
            self.view.check_invariants()

    async def trim(self) -> None:
        """The log goes as far as the view needs it no more."""
        for span in reversed(self.log.spans()):
            if span.first_index <= self.view.saved.index:
                await self.log.trim(span.first_index)
                return

    async def scanned(self, request: ScanRequest = ScanRequest()) -> list[TableRow]:  # noqa: B008 a value
        """All rows of the range, page by page."""
        found: list[TableRow] = []
        while True:
            page = await self.records.scan(request)
            assert page.as_of == self.view.applied.offset
            assert page.rows.num_rows or page.is_last
            assert page.rows.num_rows <= request.limit
            offsets = page.rows.column("offset").to_pylist()
            rows = [row_at(page.rows, number, offset) for number, offset in enumerate(offsets)]
            found += [row for row in rows if row is not None]
            assert None not in rows
            if page.is_last:
                return found
            request = request._replace(after=found[-1].key)

    def expected(self, request: ScanRequest = ScanRequest()) -> list[TableRow]:  # noqa: B008 a value
        """The same by the model."""
        return [
            TableRow(key, value, Offset(offset), 7, headers_of(value))
            for key, (value, offset) in sorted(self.rows.items())
            if key.startswith(request.prefix) and (request.after is None or key > request.after)
        ]

    async def check(self, keys: Sequence[bytes]) -> None:
        """Each of the keys, got one by one: in the call where memory has it, and with all the time that a
        disk takes."""
        for key in keys:
            at_once = self.table.at_once(key)
            found = await self.records.get(key)
            assert found.as_of == self.view.applied.offset
            value, offset = self.rows.get(key, (None, 0))
            row = None if value is None else TableRow(key, value, Offset(offset), 7, headers_of(value))
            assert found.row == row, key
            assert at_once is None or at_once == found, key
            self.answered_at_once += at_once is not None


KEYS = [b"", b"\0", b"\xff", b"\xff\xff", *(b"k%d" % number for number in range(40)), b"k\xff", b"z" * 3_000]


def random_puts(rng: random.Random, keys: Sequence[bytes] = KEYS) -> list[Put]:
    """One entry: few records and many, a key more than once, deletions."""
    return [
        (rng.choice(keys), None if rng.random() < 0.25 else rng.randbytes(rng.choice((0, 3, 200))))
        for _ in range(rng.choice((0, 1, 2, 30, 90)))
    ]
