"""Tables of the in-memory brokers: the newest record of each key of a fake log, by a look at all of them.

Every append is committed at once, so that a condition is judged and kept in one step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from shoal.agent.interface import Appended, Condition, RowLookup, ScanPage, ScanRequest, Submission, Topic
from shoal.agent.service.tables import wrong_kind
from shoal.agent.table import MAX_SCAN_BYTES, MAX_SCAN_ROWS, TableRow
from shoal.agent.views.row_order import one_batch
from shoal.errors import ShoalError
from shoal.format.batch import KEY_COLUMN, Offset, parse_stamp, to_record_batch
from shoal.format.records import RecordColumns

if TYPE_CHECKING:
    from fake_broker import FakeCluster, FakeLog

TIME = pa.timestamp("us", tz="UTC")


class FakeTableBroker:
    """The part of a fake broker that is about tables."""

    cluster: FakeCluster
    known_end: int
    _log: Callable[..., FakeLog]
    _store: Callable[[Topic, int, Submission], Appended]
    _raise_injected: Callable[[], None]

    def _rows(self, topic: Topic, partition: int, *, local: bool) -> tuple[pa.RecordBatch, Offset]:
        """The rows in the order of their keys, and the cut."""
        self._raise_injected()
        if topic.kind != "table":
            raise wrong_kind(topic)
        log = self._log(topic, partition, local=local)
        end = min(log.end, self.known_end) if local else log.end
        head = [pa.field("offset", pa.int64(), False), pa.field("append_time", TIME, False)]
        schema = pa.schema([*head, *topic.schema])
        batches = []
        for first, count, _, data in log.batches:
            if first + count <= end:
                stamp, _ = parse_stamp(data, 0)
                offsets = pa.array(range(first, first + count), pa.int64())
                times = pa.array([stamp.append_time_us] * count, TIME)
                columns = to_record_batch(data, topic.schema).columns
                batches.append(pa.RecordBatch.from_arrays([offsets, times, *columns], schema=schema))
        rows = one_batch(batches, schema)
        newest = {key: number for number, key in enumerate(rows.column(KEY_COLUMN).to_pylist())}
        rows = rows.take(pa.array([newest[key] for key in sorted(newest)], pa.int64()))
        return rows.filter(pc.is_valid(rows.column("value"))), Offset(end)

    async def get_row(
        self, topic: Topic, partition: int, key: bytes, *, local: bool, timeout_ms: int
    ) -> RowLookup:
        rows, end = self._rows(topic, partition, local=local)
        found = rows.filter(pc.equal(rows.column(KEY_COLUMN), key)).to_pylist()
        return RowLookup(_table_row(found[0]) if found else None, end)

    def row_at_once(self, topic: Topic, partition: int, key: bytes) -> RowLookup | None:
        try:
            rows, end = self._rows(topic, partition, local=False)
        except ShoalError as error:
            self.fail_next = [error, *self.fail_next]
            return None
        found = rows.filter(pc.equal(rows.column(KEY_COLUMN), key)).to_pylist()
        return RowLookup(_table_row(found[0]) if found else None, end)

    async def put_row(
        self, topic: Topic, partition: int, submission: Submission, condition: Condition, timeout_ms: int
    ) -> Appended:
        rows, _ = self._rows(topic, partition, local=False)
        log, producer = self._log(topic, partition), submission.producer
        known = None if producer is None else log.known(producer, submission.consecutive)
        if known is not None or not condition.is_asked:
            return known or self._store(topic, partition, submission)
        assert isinstance(submission.records, RecordColumns)
        found = rows.filter(pc.equal(rows.column(KEY_COLUMN), submission.records.keys[0]))
        current = found.column(0)[0].as_py() if found.num_rows else None
        if not condition.holds(current):
            raise ShoalError("precondition-failed", "the row is another one", current=current)
        return self._store(topic, partition, submission)

    async def scan_rows(
        self, topic: Topic, partition: int, request: ScanRequest, *, local: bool, timeout_ms: int
    ) -> ScanPage:
        rows, end = self._rows(topic, partition, local=local)
        wanted = [
            number
            for number, key in enumerate(rows.column(KEY_COLUMN).to_pylist())
            if key.startswith(request.prefix) and (request.after is None or key > request.after)
        ]
        size = fitting = 0
        for number in wanted[: min(request.limit, MAX_SCAN_ROWS)]:
            size += rows.slice(number, 1).nbytes
            if fitting and size > min(request.max_bytes, MAX_SCAN_BYTES):
                break
            fitting += 1
        return ScanPage(rows.take(pa.array(wanted[:fitting], pa.int64())), end, fitting == len(wanted))


def _table_row(row: dict[str, Any]) -> TableRow:
    headers = tuple((item["key"], item["value"]) for item in row["headers"] or ())
    time_us = pa.scalar(row["timestamp"], TIME).value
    return TableRow(row["key"], row["value"], row["offset"], time_us, headers)
