"""Offsets that wait: after=0:17,1:30 answers once a high watermark has passed its place, at any agent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from http_fixtures import Agent, Answer, one_agent, two_agents

from shoal.errors import ShoalError
from shoal.format.batch import Offset
from tests.agent.harness import GROUP, Cluster

NDJSON = "application/x-ndjson"
Pair = tuple[Agent, Agent]


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    """Two agents; topic t has four partitions, led by either in turn, with one record each."""
    async with two_agents() as (first, second):
        first.broker.cluster.create("t", 4)
        for partition in range(4):
            assert (await produce(first, partition)).status == 200
        yield first, second


async def produce(agent: Agent, partition: int) -> Answer:
    return await agent.post(f"/v1/topics/t/partitions/{partition}/records", b"1\n", media=NDJSON)


def watermarks(answer: Answer) -> dict[int, int]:
    assert answer.status == 200, answer.body
    return {entry["partition"]: entry["high_watermark"] for entry in answer.json["partitions"]}


async def until_nobody_waits(*agents: Agent) -> None:
    """At once here; at the agents asked by that one as soon as they notice that it has gone."""
    async with asyncio.timeout(40):
        while any(agent.runner.context.gate.waits for agent in agents):
            await asyncio.sleep(0.005)


async def waiting_request(agent: Agent, query: str) -> asyncio.Task[Answer]:
    """A request that has begun to wait."""
    task = asyncio.create_task(agent.get(f"/v1/topics/t/offsets?{query}"))
    async with asyncio.timeout(40):
        while agent.runner.context.gate.waits == 0:
            await asyncio.sleep(0.001)
    await asyncio.sleep(0.05)
    assert not task.done()
    return task


async def test_what_has_passed_is_answered_at_once(pair: Pair) -> None:
    """With the offsets of all partitions, at whichever agent."""
    for agent in pair:
        for query in ("after=0:0&wait=60s", "after=0:1,1:0&wait=30s", "after=3:0&wait=30s", "after=0:9"):
            async with asyncio.timeout(40):
                answer = await agent.get(f"/v1/topics/t/offsets?{query}")
            assert watermarks(answer) == {0: 1, 1: 1, 2: 1, 3: 1}
    await until_nobody_waits(*pair)


@pytest.mark.parametrize("partition", range(4))
async def test_news_of_any_named_partition_end_the_wait(pair: Pair, partition: int) -> None:
    """Wherever it is led and whoever is asked; places beyond the end are waited for, not refused."""
    for number, agent in enumerate(pair, start=2):
        after = ",".join(f"{name}:{number - 1 if name == partition else 10}" for name in range(4))
        task = await waiting_request(agent, f"after={after}&wait=60s")
        await produce(agent, partition)
        async with asyncio.timeout(40):
            assert watermarks(await task)[partition] == number
    await until_nobody_waits(*pair)


async def test_news_of_others_do_not(pair: Pair) -> None:
    """A partition that is not named wakes nobody; without news the answer comes when the time is up."""
    for agent in pair:
        started = time.monotonic()
        task = asyncio.create_task(agent.get("/v1/topics/t/offsets?after=0:1,1:1&wait=300ms"))
        await asyncio.sleep(0.05)
        await produce(agent, 2)
        await produce(agent, 3)
        assert watermarks(await task)[0] == 1
        assert 0.28 <= time.monotonic() - started < 40
    await until_nobody_waits(*pair)


async def test_a_wait_follows_the_leader(pair: Pair) -> None:
    """Leadership goes to the agent that was asked, and away again; between them nobody leads."""
    first, second = pair
    agents = [first.broker, second.broker]
    for asked in pair:
        await produce(asked, 0)
        end = first.broker.cluster.logs["t", 0].end
        task = await waiting_request(asked, f"after=0:{end}&wait=60s")
        for broker in (agents[1], None, agents[0], agents[1]):
            broker_id = None if broker is None else broker.agent_id
            first.broker.move("t", 0, broker_id)
            await asyncio.sleep(0.1)
            assert not task.done()
        await produce(asked, 0)
        async with asyncio.timeout(40):
            assert watermarks(await task)[0] == end + 1
    await until_nobody_waits(*pair)


async def test_the_end_of_a_topic_ends_the_wait(pair: Pair) -> None:
    """404, wherever it was waited."""
    tasks = [await waiting_request(agent, "after=0:1,1:1&wait=60s") for agent in pair]
    assert (await pair[0].request("DELETE", "/v1/topics/t")).status == 204
    for task in tasks:
        async with asyncio.timeout(40):
            (await task).problem("unknown-topic")
    await until_nobody_waits(*pair)


async def test_a_client_that_forbids_forwarding_is_told_who_leads(pair: Pair) -> None:
    """421 at once, not after the wait."""
    first, second = pair
    first.broker.move("t", 1, second.broker.agent_id)
    async with asyncio.timeout(40):
        answer = await first.get("/v1/topics/t/offsets?after=1:1&wait=60s&forward=false")
    assert answer.problem("not-leader")["leader_url"] == second.broker.url


@pytest.mark.parametrize(
    ("query", "code", "says"),
    [
        ("after=", "bad-request", "0:17,1:30"), ("after=0", "bad-request", "'0'"),
        ("after=0:", "bad-request", "'0:'"), ("after=:1", "bad-request", "':1'"),
        ("after=0:1,", "bad-request", "''"), ("after=0:-1", "bad-request", "'0:-1'"),
        ("after=0:1:2", "bad-request", "'0:1:2'"), ("after=a:1", "bad-request", "'a:1'"),
        ("after=0:%D9%A1", "bad-request", "PARTITION"), ("after=0:1,0:2", "bad-request", "given twice"),
        ("after=0:99999999999999999999", "bad-request", "PARTITION:OFFSET"),
        ("after=4:0", "unknown-partition", "0 to 3, not 4"), ("after=0:0&wait=61s", "bad-request", "60s"),
        ("after=0:0&wait=x", "bad-request", "duration"),
    ],
)  # fmt: skip
async def test_malformed_places_are_refused(pair: Pair, query: str, code: str, says: str) -> None:
    """By name, before anything waits."""
    for agent in pair:
        async with asyncio.timeout(40):
            answer = await agent.get(f"/v1/topics/t/offsets?{query}")
        assert says in answer.problem(code)["detail"]


async def test_a_client_that_goes_away_frees_everything(pair: Pair) -> None:
    """Its wait, the tasks behind it, and the wait at the other agent."""
    tasks = len(asyncio.all_tasks())
    for agent in pair:
        reader, writer = await asyncio.open_connection("127.0.0.1", agent.port)
        writer.write(b"GET /v1/topics/t/offsets?after=0:1,1:1&wait=60s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        async with asyncio.timeout(40):
            while not all(other.runner.context.gate.waits for other in pair):
                await asyncio.sleep(0.001)
        writer.close()
        await until_nobody_waits(*pair)
        assert await reader.read() == b""
    await asyncio.sleep(0.05)
    assert len(asyncio.all_tasks()) <= tasks + 1  # of the connection kept alive between the agents


async def test_waits_are_bounded_and_end_with_the_agent() -> None:
    """A stopping agent lets nobody wait for news."""
    async with one_agent() as agent:
        agent.broker.cluster.create("t")
        task = await waiting_request(agent, "after=0:0&wait=60s")
        agent.runner.context.waits.stop()
        (await task).problem("stopping")
        await until_nobody_waits(agent)


async def test_a_replica_wakes_who_waits_past_a_place(tmp_path: Path) -> None:
    """At the commit; when it no longer leads; when the time is up. A follower refuses."""
    async with Cluster(str(tmp_path), 3) as cluster:
        await cluster.append("a")
        leader = await cluster.leader()
        assert await leader.host.reader(GROUP).wait_past(Offset(0), 10_000) is True
        assert await leader.host.reader(GROUP).wait_past(Offset(1), 20) is False
        waiting = asyncio.create_task(leader.host.reader(GROUP).wait_past(Offset(2), 10_000))
        await cluster.append("b")
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await cluster.append("c")
        async with asyncio.timeout(40):
            assert await waiting is True
        deposed = asyncio.create_task(leader.host.reader(GROUP).wait_past(Offset(3), 10_000))
        await asyncio.sleep(0)
        assert await leader.host.transfer_all(5_000) == 1
        async with asyncio.timeout(40):
            assert await deposed is False
        with pytest.raises(ShoalError) as refused:
            await leader.host.reader(GROUP).wait_past(Offset(0), 10_000)
        assert refused.value.code in ("not-leader", "no-leader")
