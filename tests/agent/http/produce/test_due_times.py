"""Due times over HTTP: which bodies say them and how, which topics take them, and what is refused whole."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from fake_broker import FakeCluster
from http_fixtures import ARROW, NDJSON, Agent, arrow_batch, arrow_stream, one_agent, two_agents

from shoal.format.batch import TIMER_SCHEMA, to_record_batch
from shoal.format.timestamps import MAX_AHEAD_US, format_time, parse_time

YEAR_US = 365 * 86_400 * 1_000_000
NEW_YEAR = "2030-01-01T00:00:00.000001Z"
RECORDS = "/v1/topics/due/records"


@pytest.fixture
async def agent() -> AsyncIterator[Agent]:
    async with one_agent() as running_agent:
        running_agent.broker.cluster.create("t")
        running_agent.broker.cluster.create("due", kind="timer")
        yield running_agent


def now_us() -> int:
    return time.time_ns() // 1_000


def stored(cluster: FakeCluster, name: str = "due", partition: int = 0) -> list[int | None]:
    """When the records of a partition are due."""
    found: list[int | None] = []
    for _, _, _, data in cluster.logs[name, partition].batches:
        batch = to_record_batch(data, TIMER_SCHEMA)
        assert batch.schema == TIMER_SCHEMA
        found += batch.column("deliver_at").cast(pa.int64()).to_pylist()
    return found


def timer_stream(*due_times: int | None) -> bytes:
    """An Arrow stream of such records, in one batch."""
    return arrow_stream(with_due(due_times), schema=TIMER_SCHEMA)


def with_due(due_times: Sequence[int | None]) -> pa.RecordBatch:
    """Records with these times."""
    plain = arrow_batch([b"v%d" % number for number in range(len(due_times))])
    column = pa.array(due_times, TIMER_SCHEMA.field("deliver_at").type)
    return pa.RecordBatch.from_arrays([*plain.columns, column], schema=TIMER_SCHEMA)


async def test_each_record_of_json_says_when_it_is_due(agent: Agent) -> None:
    """As a time or a delay; without a word it is due at once. Reads show it."""
    before = now_us()
    records = [{"value": "a", "deliver_at": NEW_YEAR}, {"value": "b", "delay": "10m"}, {"value": "c"}]
    answer = await agent.post(RECORDS, {"records": records})
    assert answer.status == 200, answer.body
    first, second, third = stored(agent.broker.cluster)
    assert (first, third) == (parse_time(NEW_YEAR), None)
    assert second is not None
    assert before <= second - 600_000_000 <= now_us()
    answer = await agent.get("/v1/topics/due/partitions/0/records")
    shown = [NEW_YEAR, format_time(second), None]
    assert [record["deliver_at"] for record in answer.json["records"]] == shown
    lines = (await agent.get("/v1/topics/due/partitions/0/records", Accept=NDJSON)).body.splitlines()
    assert [json.loads(line)["deliver_at"] for line in lines] == shown
    answer = await agent.get("/v1/topics/due/partitions/0/records", Accept=ARROW)
    with pa.ipc.open_stream(answer.body) as reader:
        assert reader.schema == TIMER_SCHEMA
        assert reader.read_all().column("deliver_at").cast(pa.int64()).to_pylist() == stored(
            agent.broker.cluster
        )


@pytest.mark.parametrize(
    ("media", "body", "count"),
    [("text/plain", b"tea", 1), (None, b"tea", 1), (NDJSON, b'{"a":1}\n{"a":2}\n', 2)],
)
async def test_the_query_says_it_of_values_and_lines(
    agent: Agent, media: str | None, body: bytes, count: int
) -> None:
    """Of all of them alike."""
    before = now_us()
    for query in (f"deliver_at={NEW_YEAR}", "delay=90s", "delay=0", "deliver_at=1000"):
        assert (await agent.post(f"{RECORDS}?{query}", body, media=media)).status == 200
    found = stored(agent.broker.cluster)
    assert found[:count] == [parse_time(NEW_YEAR)] * count
    delays = [time_us for time_us in found[count : 3 * count] if time_us is not None]
    assert all(before + 90_000_000 <= time_us <= now_us() + 90_000_000 for time_us in delays[:count])
    assert all(before <= time_us <= now_us() for time_us in delays[count:])
    assert found[3 * count :] == [1_000_000] * count


async def test_arrow_has_a_column_for_it_or_none(agent: Agent) -> None:
    """A stream of a log's columns is due at once, in one batch or several, small or large."""
    due = [now_us() + YEAR_US, None, 5]
    assert (await agent.post(RECORDS, timer_stream(*due), media=ARROW)).status == 200
    assert stored(agent.broker.cluster) == due
    plain, large = arrow_batch([b"x", b"y"]), arrow_batch([b"z" * 2_000_000])
    for body in (arrow_stream(plain), arrow_stream(plain, plain), arrow_stream(large)):
        answer = await agent.post(RECORDS, body, media=ARROW)
        assert answer.status == 200, answer.body
    assert stored(agent.broker.cluster) == [*due, *[None] * 7]
    assert agent.broker.cluster.values("due")[3:] == [b"x", b"y", b"x", b"y", b"x", b"y", b"z" * 2_000_000]
    answer = await agent.post("/v1/topics/t/records", timer_stream(5), media=ARROW)
    assert "deliver_at" in answer.problem("schema-mismatch")["detail"]


def bad_requests() -> dict[str, tuple[str, Any, str | None, str]]:
    """Path, body, media type, and a word of the refusal."""
    far = now_us() + MAX_AHEAD_US + 10**9
    late, year = format_time(now_us() + 11 * YEAR_US), format_time(now_us() + YEAR_US)

    def json_of(**fields: object) -> dict[str, object]:
        return {"records": [{"value": "good"}, {"value": "v", **fields}]}

    log = "/v1/topics/t/records"
    return {
        "eleven years ahead": (RECORDS, json_of(deliver_at=late), None, "ten years"),
        "a delay of eleven years": (RECORDS, json_of(delay=f"{11 * 366}d"), None, "ten years"),
        "a delay beyond all times": (RECORDS, json_of(delay="999999999999999d"), None, "ten years"),
        "a negative delay": (RECORDS, json_of(delay="-5s"), None, "delay"),
        "both": (RECORDS, json_of(delay="5s", deliver_at=year), None, "both"),
        "a log": (log, json_of(delay="5s"), None, "need a topic of kind timer"),
        "no topic yet": ("/v1/topics/new/records", json_of(delay="5s"), None, "need a topic of kind timer"),
        "a query for JSON": (f"{RECORDS}?delay=5s", json_of(), None, "each record"),
        "a query for Arrow": (f"{RECORDS}?delay=5s", timer_stream(5), ARROW, "column deliver_at"),
        "a query for a log": (f"{log}?delay=5s", b"v", "text/plain", "need a topic of kind timer"),
        "lines for a log": (f"{log}?delay=5s", b"1\n", NDJSON, "need a topic of kind timer"),
        "a query of eleven years": (f"{RECORDS}?deliver_at={late}", b"v", "text/plain", "ten years"),
        "lines of eleven years": (f"{RECORDS}?deliver_at={late}", b"1\n2\n", NDJSON, "ten years"),
        "a negative query": (f"{RECORDS}?delay=-5s", b"v", "text/plain", "delay"),
        "no time": (f"{RECORDS}?deliver_at=soon", b"v", "text/plain", "deliver_at"),
        "both in a query": (f"{RECORDS}?deliver_at={year}&delay=5s", b"v", "text/plain", "not both"),
        "Arrow of eleven years": (RECORDS, timer_stream(5, far), ARROW, "ten years"),
        "two batches, the second of eleven years": (
            RECORDS, arrow_stream(with_due([5]), with_due([far]), schema=TIMER_SCHEMA), ARROW, "ten years",
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", bad_requests())
async def test_what_is_wrong_is_refused_and_nothing_is_stored(agent: Agent, name: str) -> None:
    """Nor is a topic made."""
    path, body, media, word = bad_requests()[name]
    if isinstance(body, bytes):
        answer = await agent.post(path, body, media=media)
    else:
        answer = await agent.post(path, body)
    problem = answer.problem("bad-request")
    assert word in problem["detail"]
    assert problem["definite"]
    if not isinstance(body, bytes) and "years" in word:
        assert problem["record"] == 1
    cluster = agent.broker.cluster
    assert (stored(cluster), cluster.values("t"), set(cluster.topics)) == ([], [], {"t", "due"})


async def test_due_times_reach_a_leader_elsewhere() -> None:
    """As they were counted where they arrived: a delay does not count anew."""
    async with two_agents() as (first, second):
        cluster = first.broker.cluster
        cluster.create("due", kind="timer", leader=second.broker.agent_id)
        before = now_us()
        records = [{"value": "a", "delay": "1h"}, {"value": "b"}, {"value": "c", "deliver_at": NEW_YEAR}]
        assert (await first.post(RECORDS, {"records": records})).status == 200
        assert (await first.post(f"{RECORDS}?delay=1h", b"text", media="text/plain")).status == 200
        assert (await first.post(RECORDS, {"records": [{"value": "at once"}]})).status == 200
        after = now_us()
        found = stored(cluster)
        assert found[1:3] == [None, parse_time(NEW_YEAR)]
        assert found[4] is None
        for at in (0, 3):
            time_us = found[at]
            assert time_us is not None
            assert before <= time_us - 3_600_000_000 <= after
