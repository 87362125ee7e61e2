"""GET /metrics of the HTTP side: one text for all who ask at once, and every answer counted where it was
given."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import prometheus_text
import pytest
from fake_broker import FakeCluster
from http_fixtures import ARROW, NDJSON, PATIENCE_S, Agent, arrow_batch, arrow_stream, one_agent, two_agents

from shoal.agent.http.admission.limits import KIB, HttpLimits
from shoal.agent.metrics.exposition import CONTENT_TYPE
from shoal.errors import ShoalError

SCRAPERS = 100
PARTITION = "/v1/topics/t/partitions/0/records"


@pytest.fixture
async def agent() -> AsyncIterator[Agent]:
    async with one_agent() as running_agent:
        yield running_agent


class Held:
    """Keeps the broker from answering a scrape."""

    def __init__(self, agent: Agent) -> None:
        self.begun = asyncio.Event()
        self.released = asyncio.Event()
        agent.broker.scraping = self._wait

    async def _wait(self) -> None:
        self.begun.set()
        await self.released.wait()


async def requests(agent: Agent) -> dict[tuple[str, str], float]:
    """How many by operation and status, of which the last `metrics` is not one yet."""
    families = prometheus_text.parse((await agent.get("/metrics")).body.decode())
    samples = families["shoal_http_requests_total"].samples
    return {(dict(labels)["operation"], dict(labels)["status"]): n for (_, labels), n in samples.items()}


@pytest.mark.parametrize("query", ["", "?partitions=true"])
async def test_a_hundred_scrapers_at_once_get_one_text(agent: Agent, query: str) -> None:
    """The broker is asked once, nothing stays held, and whoever asks later gets newer numbers."""
    agent.broker.scraped_partitions = 5_000
    held = Held(agent)
    asked = [asyncio.create_task(agent.get(f"/metrics{query}")) for _ in range(SCRAPERS)]
    async with asyncio.timeout(PATIENCE_S):
        await held.begun.wait()
        while agent.runner.context.scrapes.readers < SCRAPERS:
            await asyncio.sleep(0.001)
    held.released.set()
    answers = await asyncio.gather(*asked)
    assert {answer.status for answer in answers} == {200}
    assert len({answer.body for answer in answers}) == 1
    assert agent.broker.scrapes == 1
    assert {answer.headers["Content-Type"] for answer in answers} == {CONTENT_TYPE}
    families = prometheus_text.parse(answers[0].body.decode())
    assert ("shoal_partition_term" in families) == bool(query)
    if query:
        assert len(families["shoal_partition_term"].samples) == 5_000
    context = agent.runner.context
    assert (context.room.held_bytes, context.gate.bytes_in_flight, context.scrapes.readers) == (0, 0, 0)
    assert (await requests(agent))["metrics", "200"] == SCRAPERS
    assert agent.broker.scrapes == 2


async def test_readers_of_one_text_begin_one_after_the_other(agent: Agent) -> None:
    """No two of a hundred that wait go on in the same turn of the loop."""
    turn = 0
    begun: list[int] = []

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async def read() -> None:
        async with agent.runner.context.scrapes.text(partitions=False):
            begun.append(turn)

    counting = asyncio.create_task(count_turns())
    await asyncio.gather(*(read() for _ in range(SCRAPERS)))
    counting.cancel()
    assert agent.broker.scrapes == 1
    assert len(set(begun)) == SCRAPERS


async def test_the_text_of_partitions_is_another_one(agent: Agent) -> None:
    """Nobody who did not ask for them is sent the series of partitions."""
    held = Held(agent)
    both = [asyncio.create_task(agent.get(path)) for path in ("/metrics", "/metrics?partitions")]
    async with asyncio.timeout(PATIENCE_S):
        while agent.runner.context.scrapes.readers < 2:
            await asyncio.sleep(0.001)
    held.released.set()
    short, long = await asyncio.gather(*both)
    assert b"shoal_partition_term" not in short.body
    assert b"shoal_partition_term" in long.body
    assert agent.broker.scrapes == 2


async def test_a_scraper_that_gives_up_takes_nobody_along(agent: Agent) -> None:
    """The others get their text; when all have gone, none is made, and the next one begins anew."""
    held = Held(agent)
    first, second = (asyncio.create_task(agent.get("/metrics")) for _ in range(2))
    scrapes = agent.runner.context.scrapes
    async with asyncio.timeout(PATIENCE_S):
        while scrapes.readers < 2:
            await asyncio.sleep(0.001)
        first.cancel()
        held.released.set()
        assert (await second).status == 200
        held.released.clear()
        third = asyncio.create_task(agent.get("/metrics"))
        while not scrapes.readers:
            await asyncio.sleep(0.001)
        third.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await third
        held.released.set()
        assert (await agent.get("/metrics")).status == 200


async def test_partitions_wait_for_no_room_and_the_rest_needs_none() -> None:
    """Answers hold all that they may: series of partitions are refused as overload, the agent's own numbers
    are told."""
    async with one_agent(HttpLimits(bytes_in_flight=100 * KIB)) as agent:
        agent.broker.scraped_partitions = 10_000
        problem = (await agent.get("/metrics?partitions")).problem("overloaded")
        assert "bytes" in problem["detail"]
        agent.runner.context.gate.hold(100 * KIB)
        assert (await agent.get("/metrics")).status == 200
        agent.runner.context.gate.hold(-100 * KIB)
        assert agent.runner.context.room.held_bytes == 0


async def test_what_cannot_be_scraped_is_said(agent: Agent) -> None:
    """A value that is none, a parameter that is none, another method; a head alone has no text; a fault of
    the broker is told to all who asked."""
    problem = (await agent.get("/metrics?partitions=all")).problem("bad-request")
    assert "partitions" in problem["detail"]
    assert "true or false" in problem["detail"]
    (await agent.get("/metrics?partition=0")).problem("bad-request")
    (await agent.post("/metrics")).problem("method-not-allowed")
    head = await agent.request("HEAD", "/metrics?partitions")
    assert (head.status, head.body) == (200, b"")

    async def fail() -> None:
        raise ShoalError("not-ready", "no numbers")

    agent.broker.scraping = fail
    for answer in await asyncio.gather(*(agent.get("/metrics") for _ in range(3))):
        answer.problem("not-ready")


async def test_every_answer_is_counted_by_operation_and_status(agent: Agent) -> None:
    """Appends on the short way and on the long one, refusals, paths that are none, bytes that are no HTTP."""
    agent.broker.cluster.create("t")
    for _ in range(3):
        assert (await agent.post("/v1/topics/t/records", b"v", media="text/plain")).status == 200
    assert agent.broker.begun == 3
    assert (await agent.post(PARTITION, arrow_stream(arrow_batch([b"v"])), media=ARROW)).status == 200
    assert (await agent.post(PARTITION, b"1\n2\n", media=NDJSON)).status == 200
    agent.broker.fail_next = [ShoalError("overloaded", "too much")]
    assert (await agent.post(PARTITION, b"v", media="text/plain")).status == 429
    assert (await agent.get(PARTITION)).status == 200
    assert (await agent.get("/v1/topics/none")).status == 404
    assert (await agent.get("/nothing/here")).status == 404
    assert b"400 Bad Request" in await agent.raw(b"rubbish\r\n\r\n")
    counted = await requests(agent)
    assert counted == {
        ("produce", "200"): 3,
        ("produceToPartition", "200"): 2,
        ("produceToPartition", "429"): 1,
        ("readPartition", "200"): 1,
        ("describeTopic", "404"): 1,
        ("none", "404"): 1,
        ("none", "400"): 1,
    }
    append = prometheus_text.parse((await agent.get("/metrics")).body.decode())["shoal_append_seconds"]
    assert append.samples["shoal_append_seconds_count", frozenset()] == 5


async def test_a_client_that_leaves_is_counted_as_such(agent: Agent) -> None:
    """Its answer has no status."""
    agent.broker.cluster.create("t")
    _, writer = await asyncio.open_connection("127.0.0.1", agent.port)
    writer.write(f"GET {PARTITION}?wait=60s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    await writer.drain()
    gate = agent.runner.context.gate
    async with asyncio.timeout(PATIENCE_S):
        while not gate.waits:
            await asyncio.sleep(0.001)
        writer.close()
        while ("readPartition", "aborted") not in await requests(agent):
            await asyncio.sleep(0.001)


async def test_an_append_counts_where_it_is_led() -> None:
    """The agent that was asked counts its answer, the leader the append."""
    async with two_agents() as (first, second):
        cluster: FakeCluster = first.broker.cluster
        cluster.create("t", leader=second.broker.agent_id)
        assert (await first.post(PARTITION, b"v", media="text/plain")).status == 200
        counts = []
        for agent in (first, second):
            assert (await requests(agent))["produceToPartition", "200"] == 1
            counts.append(agent.runner.context.measures.append.count)
        assert counts == [0, 1]
