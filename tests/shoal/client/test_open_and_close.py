"""When clients open, wait and close: cells of a notebook, a cluster that starts beside its client, a follower
who does not read."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import threading
import time
from collections.abc import AsyncIterator
from functools import partial

import pytest
from fake_cluster import FakeCluster
from waiting import until

from shoal import (
    AsyncClient,
    ClientClosed,
    ClientConfig,
    ProduceFailed,
    RetryPolicy,
    ShoalError,
    Unreachable,
)
from shoal.client.consume.consumer import TAILS_AHEAD_MAX
from shoal.client.http import requests
from shoal.client.http.requests import now_ms
from shoal.client.produce.producer import batch_of

QUICK = ClientConfig(retry=RetryPolicy(total_ms=10_000), attempt_timeout_ms=5_000, first_contact_ms=100)
PATIENT = ClientConfig(first_contact_ms=60_000)


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    """One agent."""
    async with FakeCluster(1) as fake:
        yield fake


async def test_a_notebooks_cells_open_use_and_close(cluster: FakeCluster) -> None:
    """Each statement is a cell of its own: no `async with` around any of them, and nothing left behind."""
    before = asyncio.all_tasks()
    client = AsyncClient(cluster.urls[0], QUICK)
    assert await client.open() is client
    assert await client.open() is client
    await client.send("t", "one")
    producer = await client.producer("t").open()
    await producer.send("two")
    await producer.close()
    await producer.close()
    await client.flush()
    assert {record.value async for record in client.consumer("t")} == {b"one", b"two"}
    following = client.consumer("t", follow=True)
    async for record in following:
        assert record.offset == 0
        break
    await client.close()
    await client.close()
    with pytest.raises(ClientClosed, match="the consumer of t is"):
        async for _ in following:
            pass
    await until(lambda: asyncio.all_tasks() <= before | {asyncio.current_task()})
    await client.open()
    assert [topic["name"] for topic in await client.topics()] == ["t"]
    await client.close()


async def test_a_consumer_opens_with_whatever_is_asked_first(cluster: FakeCluster) -> None:
    """Reading, seeking, asking how far it is: none of them needs an `async with`."""
    cluster.create("t").partitions[0].append([batch_of([b"a", b"b", b"c"])], None)
    async with AsyncClient(cluster.urls[0], QUICK) as client:
        assert await client.consumer("t").lag() == {0: 3}
        sought = client.consumer("t")
        await sought.seek(0, 2)
        assert [record.value async for record in sought] == [b"c"]
        assert [batch.num_rows async for batch in client.consumer("t").batches()] == [3]
        assert [table.num_rows async for table in client.consumer("t").frames("arrow")] == [3]
        closed = client.consumer("t")
        await closed.close()
        with pytest.raises(ClientClosed, match="the consumer of t is"):
            await closed.poll()


async def test_what_is_not_open_says_how_to_open_it(cluster: FakeCluster) -> None:
    """An error that a user can catch, not an assertion."""
    client = AsyncClient(cluster.urls[0], QUICK)
    with pytest.raises(ClientClosed, match=r"`await client.open\(\)`"):
        await client.topics()
    async with client:
        with pytest.raises(ClientClosed, match=r"not open: `await` its open\(\)"):
            await client.producer("t").send(b"x")
    with pytest.raises(ClientClosed, match="the client is not open"):
        await client.send("t", b"x")


async def test_closing_the_client_flushes_producers_that_were_opened(cluster: FakeCluster) -> None:
    """Also those that nobody closed; what failed is raised, and all is closed even so."""
    client = await AsyncClient(cluster.urls[0], QUICK).open()
    producer = await client.producer("t").open()
    await producer.send("x")
    await client.close()
    assert cluster.topics["t"].partitions[0].values() == [b"x"]
    await client.open()
    failing = await client.producer("t", partition=0).open()
    await failing.send("y")
    del cluster.topics["t"]
    with pytest.raises(ProduceFailed):
        await client.close()
    assert not failing.is_open
    with pytest.raises(ClientClosed, match="make another"):
        await failing.open()


async def test_first_contact_waits_for_a_cluster_that_starts_beside_it() -> None:
    """Nobody listens when a client sends or asks; an agent that comes within the bound serves it."""
    cluster = FakeCluster(1)
    async with cluster:
        port = int(cluster.urls[0].rsplit(":", 1)[1])
        await cluster.agents[0].stop()
        async with AsyncClient(f"http://127.0.0.1:{port}", PATIENT) as client:
            asking = asyncio.create_task(client.topics())
            sending = asyncio.create_task(client.send("t", b"x"))
            await until(lambda: client.retries >= 4)
            assert not asking.done()
            await cluster.agents[0].start(port)
            assert {topic["name"] for topic in await asking} <= {"t"}  # whichever of the two was first
            await sending
            await client.flush()
    assert cluster.topics["t"].partitions[0].values() == [b"x"]


async def test_a_slow_refusal_was_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent took a second to refuse for good: nothing was repeated, so nothing was given up."""
    async with FakeCluster(1) as cluster, AsyncClient(cluster.urls) as client:
        cluster.create("t", 2)
        await client.topics()
        seen_ms = itertools.count(now_ms(), 5_000)
        monkeypatch.setattr(requests, "now_ms", lambda: next(seen_ms))
        with pytest.raises(ShoalError) as error:
            await client.create_topic("t", partitions=3)
        assert (error.value.code, "gave up" in str(error.value)) == ("topic-differs", False)


async def test_first_contact_has_a_bound_and_says_so() -> None:
    """A wrong URL is no hang; one that no agent can have is not waited for at all."""
    config = ClientConfig(first_contact_ms=2_500)
    async with AsyncClient("http://127.0.0.1:1", config) as client:
        with pytest.raises(Unreachable, match=r"cannot be reached.*\(gave up after [1-9]\d? s\)") as error:
            await client.send("t", b"x")
        assert error.value.definite
    async with AsyncClient("http://127.0.0.1:1", ClientConfig(first_contact_ms=0)) as client:
        with pytest.raises(Unreachable, match="cannot be reached"):
            await client.topics()
        assert client.retries == 0


async def test_once_an_agent_has_answered_questions_are_not_waited_for(cluster: FakeCluster) -> None:
    """The bound is for the first contact: afterwards a cluster that is gone is told at once."""
    async with AsyncClient(cluster.urls[0], PATIENT) as client:
        assert await client.topics() == []
        await cluster.kill(0)
        started = time.monotonic()
        with pytest.raises(Unreachable):
            await client.topics()
        assert time.monotonic() - started < PATIENT.first_contact_ms / 1_000


async def test_a_follower_who_does_not_read_holds_little(cluster: FakeCluster) -> None:
    """Records that arrive one by one at the end are fetched ahead a little, and no further until they are
    taken; then all of them come."""
    log = cluster.create("t").partitions[0]
    async with AsyncClient(cluster.urls[0], QUICK) as client, client.consumer("t", follow=True) as consumer:
        assert await consumer.poll(0.01) is None
        for number in range(8):
            log.append([batch_of([b"%d" % number])], None)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.3):
                    await until(partial(lambda seen: consumer._lots.qsize() > seen, number))
        assert consumer._lots.qsize() <= TAILS_AHEAD_MAX
        found = [(await asyncio.wait_for(anext(consumer), 40)).value for _ in range(8)]
        assert found == [b"%d" % number for number in range(8)]


def test_a_resolver_that_hangs_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a program whose agents have names: nobody waits for an answer that nobody wants any more."""
    answers = threading.Event()

    def hang(*_: object, **__: object) -> None:
        answers.wait(60)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    async def ask() -> None:
        config = ClientConfig(RetryPolicy(total_ms=100), first_contact_ms=0, attempt_timeout_ms=100)
        async with AsyncClient("http://agents.example:7070", config) as client:
            with pytest.raises(Unreachable):
                await client.topics()

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    late = threading.Timer(30, answers.set)
    late.start()
    try:
        asyncio.run(ask())
        assert not answers.is_set()
    finally:
        answers.set()
        late.cancel()
