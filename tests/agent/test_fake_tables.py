"""The tables of the in-memory brokers do as the door of the agent says."""

from __future__ import annotations

import pytest

from shoal.agent.interface import Condition, ScanRequest, Submission
from shoal.agent.table import NO_CONDITION
from shoal.errors import ShoalError
from shoal.format.batch import Offset, ProducerStamp
from shoal.format.records import RecordColumns
from tests.agent.fake_broker import FakeCluster


def put(key: bytes, value: bytes | None, producer: ProducerStamp | None = None) -> Submission:
    """One record."""
    columns = RecordColumns([5], [key], [value], [[("h", b"1"), ("h", None)]])
    return Submission.of(columns, timeout_ms=1_000, producer=producer)


async def test_rows_are_the_newest_of_their_keys() -> None:
    """Sorted, without deleted ones, in pages."""
    cluster = FakeCluster()
    broker = cluster.add("one")
    table = cluster.create("t", kind="table")
    for key, value in ((b"b", b"1"), (b"a", b"2"), (b"b", b"3"), (b"c", b"4"), (b"a", None), (b"d", b"5")):
        await broker.put_row(table, 0, put(key, value), NO_CONDITION, 1_000)
    row, as_of = await broker.get_row(table, 0, b"b", local=False, timeout_ms=1_000)
    assert row == (b"b", b"3", 2, 5, (("h", b"1"), ("h", None)))
    assert as_of == 6
    assert (await broker.get_row(table, 0, b"a", local=True, timeout_ms=1_000)).row is None
    page = await broker.scan_rows(table, 0, ScanRequest(limit=2), local=False, timeout_ms=1_000)
    assert (page.rows.column("key").to_pylist(), page.as_of, page.is_last) == ([b"b", b"c"], 6, False)
    page = await broker.scan_rows(table, 0, ScanRequest(after=b"c"), local=False, timeout_ms=1_000)
    assert (page.rows.column("offset").to_pylist(), page.is_last) == ([5], True)


async def test_conditions_are_judged_against_the_newest_row() -> None:
    """A repetition of what was stored gets the first answer all the same."""
    cluster = FakeCluster()
    broker = cluster.add("one")
    table = cluster.create("t", kind="table")
    absent, first = Condition(if_absent=True), Condition(if_offset=Offset(0))
    producer = ProducerStamp(b"p" * 16, 0, 0)
    stored = await broker.put_row(table, 0, put(b"k", b"1", producer), absent, 1_000)
    again = await broker.put_row(table, 0, put(b"k", b"1", producer), absent, 1_000)
    assert (stored.base_offset, again) == (0, stored._replace(duplicate=True))
    with pytest.raises(ShoalError, match="precondition-failed") as caught:
        await broker.put_row(table, 0, put(b"k", b"2"), absent, 1_000)
    assert caught.value.extra == {"current": 0}
    await broker.put_row(table, 0, put(b"k", None), first, 1_000)
    with pytest.raises(ShoalError, match="precondition-failed") as caught:
        await broker.put_row(table, 0, put(b"k", b"2"), first, 1_000)
    assert caught.value.extra == {"current": None}
    log = cluster.create("l")
    with pytest.raises(ShoalError, match="wrong-kind"):
        await broker.put_row(log, 0, put(b"k", b"2"), NO_CONDITION, 1_000)
