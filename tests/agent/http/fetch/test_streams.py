"""A partition as an event stream: where it begins, what it follows, how it ends, what it holds meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from fake_broker import FakeCluster
from http_fixtures import EVENTS, PATH, Agent, Event, one_agent, running, stream, take, two_agents, until_free

from shoal.agent.http.admission.limits import HttpLimits

NDJSON = "application/x-ndjson"


async def produce(agent: Agent, first: int, last: int, path: str = PATH) -> None:
    lines = "".join(f"{number}\n" for number in range(first, last + 1)).encode()
    assert (await agent.post(path, lines, media=NDJSON)).status == 200


def numbers(events: list[Event]) -> list[int]:
    """The offsets, each event checked: a message with its offset as id, the value that stands there."""
    for event_id, kind, data in events:
        assert kind == "message", (event_id, kind, data)
        assert event_id == str(data["offset"]) == data["value"]
    return [data["offset"] for _, _, data in events]


@pytest.fixture
async def pair() -> AsyncIterator[tuple[Agent, Agent]]:
    """Two agents; topic t is led by the second, and holds 0 to 9 in batches 0-3, 4-6, 7, 8-9."""
    async with two_agents() as (first, second):
        first.broker.cluster.create("t", leader=second.broker.agent_id)
        for low, high in ((0, 3), (4, 6), (7, 7), (8, 9)):
            await produce(first, low, high)
        yield first, second


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("?offset=earliest", 0), ("?offset=0", 0), ("?offset=5", 5), ("?offset=-3", -3), ("?offset=-99", 0),
        ("?offset=10", 10), ("?offset=@0", 0), ("?offset=@32503680000000", None), ("?offset=latest", None),
        ("?offset=5&max_bytes=1", 5), ("", None),
    ],
)  # fmt: skip
async def test_where_a_stream_begins(pair: tuple[Agent, Agent], query: str, first: int | None) -> None:
    """At any agent, latest (None) unless told, or so many from the end; what is there and what comes later,
    in order, once."""
    end = 10
    for agent in pair:
        begin = end if first is None else first if first >= 0 else end + first
        async with stream(agent, query) as events:
            assert (await anext(events))[1] == "comment"
            assert numbers(await take(events, end - begin)) == list(range(begin, end))
            await produce(agent, end, end + 1)
            assert numbers(await take(events, 2)) == [end, end + 1]
        end += 2
    await until_free(*pair)


async def test_a_stream_resumes_behind_the_last_event(pair: tuple[Agent, Agent]) -> None:
    """Last-Event-ID counts, not the offset in the URL, as EventSource asks again; at another agent too."""
    for agent in pair:
        async with stream(agent, "?offset=earliest", Last_Event_ID="6") as events:
            assert numbers(await take(events, 3)) == [7, 8, 9]
        async with stream(agent, "?offset=-1", Last_Event_ID="") as events:
            assert numbers(await take(events, 1)) == [9]
    await until_free(*pair)


async def test_limit_ends_a_stream(pair: tuple[Agent, Agent]) -> None:
    """Behind exactly so many records, also in the middle of a batch and across fetches."""
    for limit in (1, 3, 6):
        async with stream(pair[0], f"?offset=2&limit={limit}&max_bytes=1") as events:
            assert numbers(await take(events, limit)) == list(range(2, 2 + limit))
            with pytest.raises(StopAsyncIteration):
                await anext(events)


async def test_a_stream_follows_the_leader(pair: tuple[Agent, Agent]) -> None:
    """Here, there, nowhere for a while: each record once, whoever was asked."""
    first, second = pair
    end = 9
    for asked in pair:
        async with stream(asked, "?offset=latest&timeout=100ms") as events:
            for leader in (second, first, None, second, None, first):
                agent_id = None if leader is None else leader.broker.agent_id
                first.broker.move("t", 0, agent_id)
                if leader is None:
                    await asyncio.sleep(0.25)  # longer than the stream's timeout
                    continue
                await produce(leader, end + 1, end + 1)
                assert numbers(await take(events, 1)) == [end + 1]
                end += 1
    await until_free(*pair)


async def test_errors_before_the_first_event_are_the_answer(pair: tuple[Agent, Agent]) -> None:
    """A status with its problem, ranges included, not a stream that says it."""
    first, second = pair
    for agent in pair:
        problem = (await agent.get(PATH + "?offset=11", Accept=EVENTS)).problem("beyond-end")
        assert (problem["log_start_offset"], problem["high_watermark"]) == (0, 10)
        first.broker.cluster.logs["t", 0].start = 4
        problem = (await agent.get(PATH + "?offset=1", Accept=EVENTS)).problem("trimmed")
        assert (problem["log_start_offset"], problem["high_watermark"]) == (4, 10)
        (await agent.get(PATH, Accept=EVENTS, Last_Event_ID="1")).problem("trimmed")
        (await agent.get(PATH, Accept=EVENTS, Last_Event_ID="x")).problem("bad-request")
        (await agent.get(PATH + "?wait=1s", Accept=EVENTS)).problem("bad-request")
        (await agent.get(PATH + "?view=value", Accept=EVENTS)).problem("bad-request")
        (await agent.get(PATH + "?offset=abc", Accept=EVENTS)).problem("bad-request")
        (await agent.get("/v1/topics/t/partitions/1/records", Accept=EVENTS)).problem("unknown-partition")
        (await agent.get("/v1/topics/none/partitions/0/records", Accept=EVENTS)).problem("unknown-topic")
        first.broker.cluster.logs["t", 0].start = 0
    refused = (await first.get(PATH + "?forward=false", Accept=EVENTS)).problem("not-leader")
    assert refused["leader_url"] == second.broker.url
    await until_free(*pair)


async def test_what_goes_wrong_later_is_the_last_event(pair: tuple[Agent, Agent]) -> None:
    """Retention overtakes a reader: it is told with the range, and its stream ends."""
    for agent in pair:
        async with stream(agent, "?offset=latest") as events:
            await anext(events)
            log = agent.broker.cluster.logs["t", 0]
            log.start, log.end = 20, 20
            agent.broker.move("t", 0, pair[1].broker.agent_id)
            (event,) = await take(events, 1)
            assert event[:2] == (None, "problem")
            assert (event[2]["code"], event[2]["log_start_offset"]) == ("trimmed", 20)
            with pytest.raises(StopAsyncIteration):
                await anext(events)
        log.start, log.end = 0, 10
    await until_free(*pair)


async def test_values_as_json_and_all_fields(pair: tuple[Agent, Agent]) -> None:
    """The same record as in a JSON answer."""
    record = {"key": "k", "value": {"a": "line\nbreak"}, "headers": {"h": "v"}}
    await pair[0].post(PATH, {"records": [record]})
    expected = (await pair[0].get(PATH + "?offset=10&value=json")).json["records"][0]
    async with stream(pair[0], "?offset=10&value=json") as events:
        ((event_id, _, data),) = await take(events, 1)
    assert (event_id, data) == ("10", expected)


async def test_a_reader_that_goes_away_frees_everything(pair: tuple[Agent, Agent]) -> None:
    """Also the wait at the leader, where another agent asked for it."""
    tasks = len(asyncio.all_tasks())
    for agent in pair:
        async with stream(agent) as events:
            await anext(events)
            async with asyncio.timeout(40):
                while not pair[1].runner.context.gate.waits:
                    await asyncio.sleep(0.001)
        await until_free(*pair)
    await asyncio.sleep(0.05)
    assert len(asyncio.all_tasks()) <= tasks + 2  # of connections that are kept


async def test_a_slow_reader_holds_one_fetch_and_is_cut_off() -> None:
    """Of a log far larger than the sockets' buffers; the agent holds no more of it than one fetch."""
    async with running(FakeCluster().add("one"), HttpLimits(send_stall_ms=300)) as agent:
        agent.broker.cluster.create("t")
        for _ in range(40):
            await agent.post(PATH, b"v" * 1_000_000)
        reader, writer = await asyncio.open_connection("127.0.0.1", agent.port, limit=1_024)
        writer.write(f"GET {PATH}?offset=0 HTTP/1.1\r\nHost: localhost\r\nAccept: {EVENTS}\r\n\r\n".encode())
        await reader.readline()
        held = 0
        gate = agent.runner.context.gate
        async with asyncio.timeout(20):
            while gate.waits:
                held = max(held, gate.bytes_in_flight)
                await asyncio.sleep(0.01)
        assert 0 < held <= 2_100_000
        assert gate.bytes_in_flight == 0
        writer.close()


async def test_a_stopping_agent_says_so_and_silence_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comments while nothing comes; `stopping` at the end, without an id that would change the place."""
    monkeypatch.setattr("shoal.agent.http.fetch.follow.KEEP_ALIVE_S", 0.02)
    async with one_agent() as agent:
        agent.broker.cluster.create("t")
        async with stream(agent) as events:
            for _ in range(3):
                assert await anext(events) == (None, "comment", ": still here")
            agent.runner.context.waits.stop()
            assert (await take(events, 1))[0][:2] == (None, "stopping")
            with pytest.raises(StopAsyncIteration):
                await anext(events)


async def test_streams_count_as_waiting_requests() -> None:
    """One too many is 429."""
    async with one_agent(HttpLimits(waits=1)) as agent:
        agent.broker.cluster.create("t")
        async with stream(agent) as events:
            await anext(events)
            (await agent.get(PATH, Accept=EVENTS)).problem("overloaded")
        await until_free(agent)
        head = await agent.request("HEAD", PATH, headers={"Accept": EVENTS})
        assert (head.status, head.headers["Content-Type"], head.body) == (200, EVENTS, b"")
        await until_free(agent)
