"""Due times of the client's producers: which records have them, in which columns, and what is refused."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from agents import agents_in

from shoal import AsyncClient
from shoal.client.produce.accumulator import Chunk, Gatherer
from shoal.client.produce.batcher import BatchingConfig
from shoal.client.produce.request_stream import encode_stream
from shoal.errors import ShoalError
from shoal.format.batch import DEFAULT_SCHEMA, TIMER_SCHEMA, decode_stream
from shoal.format.tabular import batches_of
from shoal.format.timestamps import MAX_AHEAD_US, due_us, format_time

NOW_US = 1_700_000_000_000_000
MOMENT = datetime(2030, 1, 1, 9, tzinfo=UTC)
MOMENT_US = 1_893_488_400_000_000


def gathered(put: Callable[[Gatherer], object]) -> pa.RecordBatch:
    """The batch of what is put."""
    gatherer = Gatherer("t", BatchingConfig(), lambda: None)
    put(gatherer)
    gatherer.seal()
    chunk = gatherer.take()
    assert isinstance(chunk, Chunk)
    return chunk.to_batch()


def now_us() -> int:
    """Since the epoch."""
    return time.time_ns() // 1_000


def dues(batch: pa.RecordBatch) -> list[int | None]:
    found: list[int | None] = batch.column("deliver_at").cast(pa.int64()).to_pylist()
    return found


def test_a_due_time_is_a_moment_or_a_delay() -> None:
    """One of both; the past is at once, and far ahead is refused."""
    assert due_us(None, None, NOW_US) is None
    assert due_us(MOMENT, None, NOW_US) == MOMENT_US
    assert due_us(None, 1.5, NOW_US) == NOW_US + 1_500_000
    assert due_us(datetime(2001, 1, 1, tzinfo=UTC), None, NOW_US) == 978_307_200_000_000
    assert due_us(None, MAX_AHEAD_US / 1_000_000, NOW_US) == NOW_US + MAX_AHEAD_US
    eleven_years = datetime.fromtimestamp(NOW_US / 1e6, UTC) + timedelta(days=11 * 366)
    wrong: list[tuple[Any, Any]] = [
        (MOMENT, 1), (None, -1), (None, float("nan")), (None, float("inf")), (None, "5s"), (None, True),
        (eleven_years, None), (MOMENT.replace(tzinfo=None), None), (5, None),
    ]  # fmt: skip
    for deliver_at, delay_seconds in wrong:
        with pytest.raises(ShoalError) as caught:
            due_us(deliver_at, delay_seconds, NOW_US)
        assert caught.value.code == "bad-request"


def test_a_batch_has_the_column_if_one_record_is_due_later() -> None:
    """Otherwise the columns of a log, which any topic takes."""

    def both(gatherer: Gatherer) -> None:
        gatherer.put(b"one")
        gatherer.put(b"two", deliver_at=MOMENT, headers={"h": b"x"})
        gatherer.put(b"three", b"key")

    batch = gathered(both)
    assert batch.schema == TIMER_SCHEMA
    assert dues(batch) == [None, MOMENT_US, None]
    assert batch.column("value").to_pylist() == [b"one", b"two", b"three"]
    assert gathered(lambda gatherer: gatherer.put(b"one")).schema == DEFAULT_SCHEMA
    before = now_us()
    [later] = dues(gathered(lambda gatherer: gatherer.put(b"one", delay_seconds=60)))
    assert later is not None
    assert before + 60_000_000 <= later <= now_us() + 60_000_000
    plain = gathered(lambda gatherer: gatherer.put(b"one"))
    schema, [joined] = decode_stream(encode_stream([plain, batch, plain]))
    assert schema == TIMER_SCHEMA
    assert dues(joined) == [None, None, MOMENT_US, None, None]


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame])
def test_frames_say_it_in_a_column_or_all_alike(make: Any) -> None:
    """Not in both ways, and not far ahead."""
    frame = make({"value": ["a", "b"], "deliver_at": [MOMENT, None]})
    [batch] = batches_of(frame, "t", NOW_US)
    assert batch.schema == TIMER_SCHEMA
    assert dues(batch) == [MOMENT_US, None]
    plain = make({"value": ["a", "b"]})
    [batch] = batches_of(plain, "t", NOW_US, MOMENT_US)
    assert dues(batch) == [MOMENT_US, MOMENT_US]
    assert batches_of(plain, "t", NOW_US)[0].schema == DEFAULT_SCHEMA
    for wrong, deliver_at_us in (
        (frame, MOMENT_US),
        (make({"value": ["a"], "deliver_at": [MOMENT + timedelta(days=11 * 366)]}), None),
    ):
        with pytest.raises(ShoalError) as caught:
            batches_of(wrong, "t", NOW_US, deliver_at_us)
        assert caught.value.code == "bad-request"


async def test_messages_of_every_producer_come_when_they_are_due(tmp_path: Path) -> None:
    """Sent alone, gathered, as JSON and as a table, in one partition. A log's columns are due at once, and so
    is what a busy machine sends after its moment."""
    async with agents_in(tmp_path) as started:
        agent = await started.alone("one")
        assert (await agent.call("PUT", "/v1/topics/due", {"kind": "timer"}))[0] == 201
        async with AsyncClient(agent.agent.url) as client:
            begun_us = now_us()

            def after(seconds: float) -> datetime:
                return datetime.fromtimestamp(begun_us / 1e6 + seconds, UTC)

            async with client.producer("due") as producer:
                await producer.append("fourth", delay_seconds=1.2)
                fourth_by_us = now_us() + 1_200_000
                await producer.append("at once")
                await producer.send("third", deliver_at=after(0.9))
                await producer.send_json("second", deliver_at=after(0.6))
                await producer.send(b"at once")
                await producer.send_batch(pa.table({"value": ["first"]}), deliver_at=after(0.3))
                await producer.send_batch(pa.table({"value": ["at once"]}))
            sent_us = now_us()
            found: list[tuple[str, int]] = []
            async with client.subscribe("due", group="g") as messages:
                async for message in messages:
                    assert message.value is not None
                    assert message.deliver_at_us is not None
                    assert message.deliver_at_us <= now_us()
                    found.append((message.value.decode(), message.deliver_at_us))
                    if len(found) == 7:
                        break
            assert [due for _, due in found] == sorted(due for _, due in found)
            assert [value for value, _ in found].count("at once") == 3
            assert all(begun_us <= due <= sent_us for value, due in found if value == "at once")
            dues_us = dict(found)
            assert begun_us + 1_200_000 <= dues_us["fourth"] <= fourth_by_us
            for value, moment_us in (("first", 300_000), ('"second"', 600_000), ("third", 900_000)):
                # Its very moment, if it was stored before that, and else when it was stored.
                assert begun_us + moment_us <= dues_us[value] <= max(begun_us + moment_us, sent_us)
            rows = [record async for record in client.consumer("due")]
            assert len(rows) == 7
            assert format_time(begun_us) < format_time(rows[0].timestamp_us)
