"""The bounds of the HTTP side: what is refused as overload, and that everything taken is given back."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest
from fake_broker import FakeCluster
from http_fixtures import ARROW, NDJSON, Agent, arrow_batch, arrow_stream, one_agent, running, two_agents
from waiting import until

from shoal.agent.http.admission.limits import Gate, HttpLimits
from shoal.agent.interface import Appended
from shoal.errors import ShoalError

PARTITION = "/v1/topics/t/partitions/0/records"


def hold_appends(agent: Agent) -> Callable[[], None]:
    """Make appends wait until the returned function is called."""
    released = asyncio.Event()

    async def append(topic: Any, partition: int, *arguments: Any, **options: Any) -> Appended:
        await released.wait()
        return Appended(0, 1)

    agent.broker.append = append  # type: ignore[method-assign]
    held = agent.broker.held = []

    def release() -> None:
        agent.broker.held = None
        released.set()
        for answer, done in held:
            answer.set_result(done)

    return release


async def test_requests_in_flight() -> None:
    """One append too many is 429 with Retry-After, definite; other routes still answer."""
    async with one_agent(HttpLimits(requests=3)) as agent:
        agent.broker.cluster.create("t")
        gate = agent.runner.context.gate
        release = hold_appends(agent)
        waiting = [asyncio.create_task(agent.post(PARTITION, b"v")) for _ in range(3)]
        await until(lambda: gate.requests == 3)
        for media, body in ((None, b"v"), (NDJSON, b"1\n"), (ARROW, arrow_stream(arrow_batch([b"v"])))):
            answer = await agent.post(PARTITION, body, media=media)
            problem = answer.problem("overloaded")
            assert (answer.headers["Retry-After"], problem["definite"], problem["retriable"]) == (
                "1",
                True,
                True,
            )
        assert (await agent.get("/livez")).status == 200
        assert b"shoal_http_refused_total 3\n" in (await agent.get("/metrics")).body
        release()
        assert [answer.status for answer in await asyncio.gather(*waiting)] == [200] * 3
        assert (gate.requests, gate.bytes_in_flight) == (0, 0)


async def test_bytes_in_flight() -> None:
    """Bodies that do not fit into what the agent holds at once are 429, and fit again later."""
    async with one_agent(HttpLimits(bytes_in_flight=1000)) as agent:
        agent.broker.cluster.create("t")
        gate = agent.runner.context.gate
        release = hold_appends(agent)
        waiting = asyncio.create_task(agent.post(PARTITION, b"v" * 600))
        await until(lambda: gate.bytes_in_flight == 600)
        (await agent.post(PARTITION, b"v" * 600)).problem("overloaded")
        release()
        assert (await waiting).status == 200
        assert (await agent.post(PARTITION, b"v" * 600)).status == 200
        assert (gate.requests, gate.bytes_in_flight) == (0, 0)


async def test_answers_count_too() -> None:
    """A read whose batches do not fit is 429."""
    cluster = FakeCluster()
    async with running(cluster.add("one"), HttpLimits(bytes_in_flight=2_000)) as agent:
        cluster.create("t")
        for _ in range(4):
            assert (await agent.post(PARTITION, b"v" * 900)).status == 200
        (await agent.get(PARTITION)).problem("overloaded")
        assert (await agent.get(PARTITION + "?max_bytes=1")).status == 200
        assert agent.runner.context.gate.bytes_in_flight == 0


async def test_long_polls_are_bounded() -> None:
    """One long poll too many is 429."""
    async with one_agent(HttpLimits(waits=2)) as agent:
        agent.broker.cluster.create("t")
        gate = agent.runner.context.gate
        waiting = [asyncio.create_task(agent.get(PARTITION + "?wait=20s")) for _ in range(2)]
        await until(lambda: gate.waits == 2)
        (await agent.get(PARTITION + "?wait=20s")).problem("overloaded")
        (await agent.get("/v1/members?wait=20s")).problem("overloaded")
        assert (await agent.post(PARTITION, b"v")).status == 200
        assert [answer.status for answer in await asyncio.gather(*waiting)] == [200, 200]
        assert gate.waits == 0


@pytest.mark.parametrize("turns", range(6))
async def test_who_connects_while_the_agent_stops_is_not_kept(turns: int) -> None:
    """In whichever turn of the loop: such a client's connection ends when the server has stopped."""
    async with one_agent() as agent:
        with socket.create_connection(("127.0.0.1", agent.port)) as client:
            for _ in range(turns):
                await asyncio.sleep(0)
            await agent.runner.cleanup()
            client.setblocking(False)
            with contextlib.suppress(ConnectionResetError):
                assert client.recv(1) == b""


async def test_stopping_ends_long_polls() -> None:
    """A server that stops does not wait for its long polls: they are answered 503 stopping, at once."""
    async with two_agents() as (first, second):
        first.broker.cluster.create("t", leader=second.broker.agent_id)
        paths = (PARTITION + "?wait=60s", PARTITION + "?wait=50s&offset=0&consistency=local")
        version = (await first.get("/v1/members")).json["version"]
        watched = f"/v1/members?wait=60s&after_version={version}"
        waiting = [asyncio.create_task(first.get(path)) for path in (*paths, watched)]
        await until(lambda: first.runner.context.gate.waits == 3 and second.runner.context.gate.waits == 1)
        started = time.monotonic()
        await first.runner.cleanup()
        for answer in await asyncio.gather(*waiting):
            assert answer.problem("stopping")["definite"] is True
        assert time.monotonic() - started < 40
        assert first.runner.context.gate.waits == 0


async def test_a_reader_that_takes_nothing_is_cut_off() -> None:
    """A client that stops reading a large answer does not hold its bytes for ever."""
    cluster = FakeCluster()
    async with running(cluster.add("one"), HttpLimits(send_stall_ms=100)) as agent:
        cluster.create("t")
        for _ in range(4):
            await agent.post(PARTITION, b"v" * 8_000_000)
        gate = agent.runner.context.gate
        reader, writer = await asyncio.open_connection("127.0.0.1", agent.port, limit=1024)
        path = PARTITION.encode() + b"?max_bytes=64000000"
        writer.write(
            b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\nAccept: " + ARROW.encode() + b"\r\n\r\n"
        )
        await until(lambda: gate.bytes_in_flight > 0)
        await until(lambda: gate.bytes_in_flight == 0)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(32_000_000)
        writer.close()


def test_the_gate_keeps_count() -> None:
    """Refusals change nothing, and what is given back twice is a bug."""
    gate = Gate(HttpLimits(requests=1, bytes_in_flight=10, waits=1))
    gate.enter()
    gate.hold(10)
    for refused in (gate.enter, lambda: gate.hold(1)):
        with pytest.raises(ShoalError, match="overloaded"):
            refused()
    assert (gate.requests, gate.bytes_in_flight, gate.refused_total) == (1, 10, 2)
    gate.leave(10)
    with pytest.raises(AssertionError):
        gate.leave(0)
    with pytest.raises(AssertionError):
        gate.leave_wait()
