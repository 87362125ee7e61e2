"""All partitions as one sequence over HTTP: order, cursors, forms, waits, streams, and what they hold."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fake_broker import FakeCluster
from http_fixtures import EVENTS, NDJSON, Agent, one_agent, running, stream, take, two_agents, until_free

from shoal.agent.http.admission.limits import Gate, HttpLimits
from shoal.agent.interface import MAX_PARTITIONS

PATH = "/v1/topics/t/records"
Pair = tuple[Agent, Agent]
Key = tuple[int, int, int]  # timestamp in ms, partition, offset
PARTITIONS = 3


async def produce(agent: Agent, partition: int, *times_ms: int) -> None:
    """Records whose values say their timestamps."""
    records = [{"value": str(time), "timestamp": time} for time in times_ms]
    answer = await agent.post(f"/v1/topics/t/partitions/{partition}/records", {"records": records})
    assert answer.status == 200, answer.body


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    """Two agents that lead three partitions between them; 60 records in small batches, times that repeat."""
    rng = random.Random(7)
    async with two_agents() as (first, second):
        first.broker.cluster.create("t", PARTITIONS)
        now = 1_000
        for _ in range(20):
            now += rng.choice((0, 1, 2))
            await produce(first, rng.randrange(PARTITIONS), *(now + rng.randrange(2) for _ in range(3)))
        yield first, second


def keys(records: list[dict[str, Any]]) -> list[Key]:
    """(timestamp, partition, offset), the value checked against the timestamp."""
    found = []
    for record in records:
        assert record["timestamp"].startswith("1970-01-01T00:00:01.")
        assert 1_000_000 + int(record["timestamp"][20:26]) == int(record["value"]) * 1_000
        found.append((int(record["value"]), record["partition"], record["offset"]))
    return found


async def whole(agent: Agent) -> list[Key]:
    """The whole sequence, from one large answer."""
    answer = await agent.get(PATH + "?limit=10000")
    assert answer.status == 200, answer.body
    return keys(answer.json["records"])


def check_order(found: list[Key]) -> None:
    """By timestamp and partition wherever a partition's own order allows."""
    greatest: dict[int, int] = {}
    by_order = []
    for time, partition, offset in found:
        greatest[partition] = max(greatest.get(partition, 0), time)
        by_order.append((greatest[partition], partition, offset))
    assert by_order == sorted(by_order)
    for partition in range(PARTITIONS):
        offsets = [offset for _, number, offset in found if number == partition]
        assert offsets == list(range(len(offsets)))


async def test_one_sequence_at_every_agent(pair: Pair) -> None:
    """All 60, once, in order; the default limit is 100; the cursor names every partition's end."""
    first, second = pair
    found = await whole(first)
    check_order(found)
    assert len(found) == 60
    assert await whole(second) == found
    answer = await first.get(PATH)
    ends = [first.broker.cluster.logs["t", partition].end for partition in range(PARTITIONS)]
    cursor = ",".join(f"{partition}:{end}" for partition, end in enumerate(ends))
    assert answer.json["cursor"] == answer.headers["Shoal-Cursor"] == cursor
    assert answer.json["topic"] == "t"
    await until_free(*pair)


@pytest.mark.parametrize("query", ["limit=1", "limit=7", "limit=59", "max_bytes=1", "limit=10&max_bytes=700"])
async def test_cursors_continue_without_gap_or_repetition(pair: Pair, query: str) -> None:
    """Pages of any size, asked of either agent by turns, add up to the sequence."""
    found: list[Key] = []
    cursor = "offset=earliest"
    for number in range(100):
        document = (await pair[number % 2].get(f"{PATH}?{query}&{cursor}")).json
        if not document["records"]:
            break
        found += keys(document["records"])
        cursor = f"cursor={document['cursor']}"
    assert found == await whole(pair[0])


async def test_where_it_begins(pair: Pair) -> None:
    """earliest, latest, the last N of all partitions together, a time; a cursor of some partitions begins the
    others at their earliest."""
    found = await whole(pair[0])
    for agent in pair:

        async def read(query: str, agent: Agent = agent) -> list[Key]:
            return keys((await agent.get(f"{PATH}?{query}")).json["records"])

        assert await read("offset=earliest") == found
        assert await read("offset=latest") == []
        assert await read("offset=-0") == []
        assert sorted(await read("offset=-5")) == sorted(found[-5:])
        assert len(await read("offset=-5")) == 5
        assert await read("offset=-10000") == found
        middle = found[30][0]
        later = await read(f"offset=@{middle}")
        assert [key for key in found if key[0] > middle + 1 and key not in later] == []
        assert len(later) < 60
        part = await read("cursor=1:2")
        assert sorted(part) == sorted(key for key in found if key[1] != 1 or key[2] >= 2)
        part = await read("cursor=0:3,1:2,2:1")
        assert sorted(part) == sorted(key for key in found if key[2] >= (3, 2, 1)[key[1]])
    await until_free(*pair)


async def test_ndjson_and_values(pair: Pair) -> None:
    """One record a line with its partition, or the values as they were produced; a tombstone is null."""
    found = await whole(pair[0])
    await pair[0].post(
        "/v1/topics/t/partitions/0/records", {"records": [{"value": None, "timestamp": 1_900}]}
    )
    lines = await pair[0].get(PATH, Accept=NDJSON)
    assert lines.headers["Content-Type"] == NDJSON
    assert lines.body.count(b"\n") == 61
    assert lines.body.startswith(b'{"partition":%d,"offset":%d,' % found[0][1:])
    assert lines.headers["Shoal-Cursor"].startswith("0:")
    values = await pair[1].get(PATH + "?view=value", Accept=NDJSON)
    assert values.body == b"".join(b"%d\n" % key[0] for key in found) + b"null\n"
    embedded = (await pair[0].get(PATH + "?value=json&limit=1")).json["records"][0]
    assert embedded["value"] == found[0][0]


async def test_waiting_for_news(pair: Pair) -> None:
    """At the end an answer waits for any partition; without news it is empty, with the same cursor."""
    for agent in pair:
        empty = (await agent.get(PATH + "?offset=latest&wait=80ms")).json
        assert empty["records"] == []
        for partition in range(PARTITIONS):
            waiting = asyncio.create_task(agent.get(f"{PATH}?offset=latest&wait=60s"))
            async with asyncio.timeout(40):
                while agent.runner.context.gate.waits == 0:
                    await asyncio.sleep(0.001)
                await asyncio.sleep(0.05)
                await produce(pair[0], partition, 1_500 + partition)
                assert [key[:2] for key in keys((await waiting).json["records"])] == [
                    (1_500 + partition, partition)
                ]
    await until_free(*pair)


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("offset=5", "cursor=0:5"), ("offset=x", "offset"), ("offset=-10001", "10000"),
        ("cursor=", "0:17,1:30"), ("cursor=0:1,0:2", "twice"), ("cursor=0:x", "0:x"),
        ("cursor=0:1&offset=latest", "exclude"), ("limit=0", "limit"), ("consistency=local", "consistency"),
        ("max_bytes=0", "max_bytes"), ("wait=x", "wait"),
    ],
)  # fmt: skip
async def test_what_is_refused(pair: Pair, query: str, says: str) -> None:
    """Plainly, and by name."""
    assert says in (await pair[0].get(f"{PATH}?{query}")).problem("bad-request")["detail"]


async def test_values_alone_are_lines(pair: Pair) -> None:
    """Asked for without a form they come in the only one that has them; another form is refused."""
    unasked = await pair[0].get(f"{PATH}?view=value")
    assert unasked.headers["Content-Type"] == NDJSON
    refused = await pair[0].get(f"{PATH}?view=value", Accept="application/json")
    assert "view=value" in refused.problem("bad-request")["detail"]


async def test_outside_the_logs(pair: Pair) -> None:
    """410 and 416 name the partition and its range; unknown partitions and topics are 404."""
    for agent in pair:
        for partition in range(PARTITIONS):
            log = agent.broker.cluster.logs["t", partition]
            problem = (await agent.get(f"{PATH}?cursor={partition}:{log.end + 1}")).problem("beyond-end")
            assert (problem["partition"], problem["high_watermark"]) == (partition, log.end)
            log.start = 1
            problem = (await agent.get(f"{PATH}?cursor={partition}:0")).problem("trimmed")
            assert (problem["partition"], problem["log_start_offset"]) == (partition, 1)
            log.start = 0
        (await agent.get(f"{PATH}?cursor=3:0")).problem("unknown-partition")
        (await agent.get("/v1/topics/none/records")).problem("unknown-topic")
        (await agent.get(PATH, Accept="application/vnd.apache.arrow.stream")).problem("not-acceptable")
    (await pair[0].get(PATH + "?forward=false")).problem("not-leader")
    await until_free(*pair)


async def test_a_stream_of_all_partitions_resumes_by_cursor(pair: Pair) -> None:
    """Backlog and news, each once and in order; any event's id goes on behind it, at the other agent."""
    first, second = pair
    found = await whole(first)
    async with stream(first, "?offset=earliest", PATH) as events:
        backlog = await take(events, 60)
        assert keys([data for _, _, data in backlog]) == found
        await produce(second, 1, 1_700)
        await produce(second, 0, 1_701)
        news = await take(events, 2)
        assert [data["value"] for _, _, data in news] == ["1700", "1701"]
    for position in (0, 17, 59):
        async with stream(second, "?offset=latest", PATH, Last_Event_ID=str(backlog[position][0])) as events:
            rest = await take(events, 61 - position)
            assert rest == [*backlog[position + 1 :], *news]
    async with stream(second, "?limit=1", PATH) as events:
        await anext(events)
        await produce(first, 2, 1_800)
        assert [data["value"] for _, _, data in await take(events, 1)] == ["1800"]
        with pytest.raises(StopAsyncIteration):
            await anext(events)
    (await first.get(PATH, Accept=EVENTS, Last_Event_ID="7")).problem("bad-request")
    await until_free(*pair)


async def test_a_merged_stream_follows_leaders(pair: Pair) -> None:
    """While partitions change hands, and have none for a while: each record once."""
    first, second = pair
    number = 1_500
    async with stream(first, "?timeout=100ms", PATH) as events:
        await anext(events)
        for leader in (second, first, None, second):
            for partition in range(PARTITIONS):
                first.broker.move("t", partition, None if leader is None else leader.broker.agent_id)
            if leader is None:
                await asyncio.sleep(0.3)
                continue
            for partition in range(PARTITIONS):
                await produce(leader, partition, number + partition)
            told = [(int(data["value"]), data["partition"]) for _, _, data in await take(events, PARTITIONS)]
            assert sorted(told) == [(number + partition, partition) for partition in range(PARTITIONS)]
            number += 10
    await until_free(*pair)


async def test_one_partition_without_end_does_not_hide_the_others() -> None:
    """While one always has more, the news of the others come."""
    async with one_agent() as agent:
        agent.broker.cluster.create("t", 2)
        log = agent.broker.cluster.logs["t", 0]
        ended = asyncio.Event()

        async def flood() -> None:
            while not ended.is_set():
                if log.end < 100_000:
                    await produce(agent, 0, *range(1_000, 1_999))
                await asyncio.sleep(0)

        flooding = asyncio.create_task(flood())
        async with stream(agent, "?offset=earliest&max_bytes=1", PATH) as events:
            await take(events, 2_000)
            await produce(agent, 1, 1_000)
            async with asyncio.timeout(20):
                while (await take(events, 1))[0][2]["partition"] != 1:
                    pass
        ended.set()
        await flooding


async def test_large_batches_are_held_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of batches of many megabytes only what one step needs stays in memory; nothing is lost by it."""
    async with running(FakeCluster().add("one"), HttpLimits(bytes_in_flight=90_000_000)) as agent:
        agent.broker.cluster.create("t", 8)
        held = 0
        gate = agent.runner.context.gate
        hold = Gate.hold

        def watched(gate: Gate, size_bytes: int) -> None:
            nonlocal held
            hold(gate, size_bytes)
            held = max(held, gate.bytes_in_flight)

        monkeypatch.setattr(Gate, "hold", watched)
        for partition in range(8):
            await produce(agent, partition, *(1_000 + number for number in range(20)))
            path = f"/v1/topics/t/partitions/{partition}/records"
            for _ in range(10):
                records = [{"value": "v" * 300_000, "timestamp": 1_100 + number} for number in range(3)]
                assert (await agent.post(path, {"records": records})).status == 200
        held = 0
        counts = dict.fromkeys(range(8), 0)
        cursor = "offset=earliest"
        for _ in range(100):
            document = (await agent.get(f"{PATH}?{cursor}&limit=13&max_bytes=64000000")).json
            for record in document["records"]:
                assert record["offset"] == counts[record["partition"]]
                counts[record["partition"]] += 1
            cursor = f"cursor={document['cursor']}"
            if not document["records"]:
                break
        assert set(counts.values()) == {50}
        assert 0 < held < 70_000_000
        assert gate.bytes_in_flight == 0


async def test_as_many_partitions_as_a_topic_may_have() -> None:
    """A cursor of 1,024 partitions with offsets of 13 digits fits a request line, a header and an event's id;
    it goes on where it should, and offsets wait for any of them."""
    count, far = MAX_PARTITIONS, 5 * 10**12
    async with one_agent() as agent:
        agent.broker.cluster.create("t", count)
        for partition in range(count):
            log = agent.broker.cluster.logs["t", partition]
            log.start = log.end = far + partition * 10**9
        await produce(agent, 1_023, 1_000, 1_001)
        await produce(agent, 4, 1_002)
        page = await agent.get(f"{PATH}?limit=1")
        assert [record["value"] for record in page.json["records"]] == ["1000"]
        cursor = page.json["cursor"]
        assert cursor == page.headers["Shoal-Cursor"]
        assert 6_000 < len(cursor) < 7_000
        rest = (await agent.get(f"{PATH}?cursor={cursor}")).json
        assert [record["value"] for record in rest["records"]] == ["1001", "1002"]
        async with stream(agent, "?offset=earliest", PATH) as events:
            backlog = await take(events, 3)
        assert backlog[0][0] is not None
        async with stream(agent, "", PATH, Last_Event_ID=backlog[0][0]) as events:
            assert await take(events, 2) == backlog[1:]
        ends = (await agent.get("/v1/topics/t/offsets")).json["cursor"]
        waiting = asyncio.create_task(agent.get(f"/v1/topics/t/offsets?after={ends}&wait=60s"))
        async with asyncio.timeout(40):
            while agent.runner.context.gate.waits == 0:
                await asyncio.sleep(0.001)
            await produce(agent, 777, 1_500)
            entries = (await waiting).json["partitions"]
        assert entries[777]["high_watermark"] == far + 777 * 10**9 + 1
