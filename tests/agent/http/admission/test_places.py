"""Connections of an agent that is full of clients: what agents need of each other still gets a place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from http_fixtures import Agent, one_agent

import shoal.agent.node
from shoal.agent.http.admission.limits import HttpLimits, limits_for
from shoal.agent.http.admission.places import Place, Places, wanted_place
from shoal.agent.http.app import HttpRunner, make_runner
from shoal.agent.interface import Broker
from shoal.agent.peers.frames import LinkKind
from tests.agent.agents import Running, agents_in, eventually

LIVEZ = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
FORWARDED = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nshoal-forwarded-by: somebody\r\n\r\n"
LINK = b"GET /v1/peer HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: shoal-peer/1\r\n\r\n"
LIMITS = HttpLimits(connections=4, agent_connections=2, unread_connections=2)


@asynccontextmanager
async def clients(port: int, count: int) -> AsyncIterator[list[asyncio.StreamWriter]]:
    """So many connections on which a request was answered, and which stay."""
    writers = []
    try:
        for _ in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writers.append(writer)
            writer.write(LIVEZ)
            async with asyncio.timeout(40):
                assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        yield writers
    finally:
        for writer in writers:
            writer.close()


async def status(port: int, request: bytes) -> int:
    """Of one request on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        async with asyncio.timeout(40):
            return int((await reader.readline()).split()[1])
    finally:
        writer.close()


@asynccontextmanager
async def full_agent(limits: HttpLimits = LIMITS) -> AsyncIterator[Agent]:
    """Of fake members that live here, too."""
    async with one_agent(limits) as agent, clients(agent.port, limits.connections):
        agent.broker.addresses = {"127.0.0.1"}
        yield agent


async def test_a_full_agent_takes_links_and_what_agents_forward() -> None:
    """And nobody else, until a client goes."""
    async with one_agent(LIMITS) as agent:
        agent.broker.addresses = {"127.0.0.1"}
        async with clients(agent.port, LIMITS.connections) as held:
            agent.broker.peer_answer = b""
            assert await status(agent.port, LIVEZ) == 429
            assert await status(agent.port, LINK) == 101
            assert await status(agent.port, FORWARDED) == 200
            assert await status(agent.port, b"GET /v1/agent HTTP/1.1\r\nHost: localhost\r\n\r\n") == 200
            held.pop().close()
            places = agent.runner.context.places
            async with asyncio.timeout(40):
                while places.taken(Place.CLIENT) == LIMITS.connections:
                    await asyncio.sleep(0.001)
            assert await status(agent.port, LIVEZ) == 200
        async with asyncio.timeout(40):
            while any(places.taken(place) for place in Place):
                await asyncio.sleep(0.001)


async def test_a_full_agent_takes_no_forwards_from_where_no_member_lives() -> None:
    """The header alone is no proof: anybody can write it."""
    async with full_agent() as agent:
        agent.broker.addresses = {"127.0.0.2"}
        for request in (FORWARDED, LINK, LIVEZ):
            assert await status(agent.port, request) == 429


async def test_agents_places_are_bounded_too() -> None:
    """Links do not need them."""
    async with full_agent() as agent:
        kept = [await asyncio.open_connection("127.0.0.1", agent.port) for _ in range(2)]
        for reader, writer in kept:
            writer.write(FORWARDED)
            async with asyncio.timeout(40):
                assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        assert await status(agent.port, FORWARDED) == 429
        agent.broker.peer_answer = b""
        assert await status(agent.port, LINK) == 101
        for _, writer in kept:
            writer.close()


async def test_who_says_nothing_makes_room_for_who_does() -> None:
    """Connections without a head take the places in which heads are read; the oldest gives way."""
    async with full_agent() as agent:
        agent.broker.peer_answer = b""
        silent = [await asyncio.open_connection("127.0.0.1", agent.port) for _ in range(6)]
        assert await status(agent.port, LINK) == 101
        async with asyncio.timeout(40):
            assert (await silent[0][0].readline()).startswith(b"HTTP/1.1 429")
        for _, writer in silent:
            writer.close()


async def test_a_head_has_to_come_in_time_and_may_come_in_pieces() -> None:
    """Byte by byte it is the same request."""
    limits = HttpLimits(connections=1, unread_ms=300)
    async with full_agent(limits) as agent:
        reader, writer = await asyncio.open_connection("127.0.0.1", agent.port)
        writer.write(FORWARDED[:20])
        async with asyncio.timeout(40):
            assert (await reader.read()).startswith(b"HTTP/1.1 429")
        writer.close()
    async with full_agent(HttpLimits(connections=1, unread_ms=60_000)) as agent:
        reader, writer = await asyncio.open_connection("127.0.0.1", agent.port)
        for position in range(len(FORWARDED)):
            writer.write(FORWARDED[position : position + 1])
            await asyncio.sleep(0)
        async with asyncio.timeout(40):
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_a_link_that_is_none_has_no_place_to_go_on_with() -> None:
    """Whoever asks for one and is refused is closed: its connection counts nowhere."""
    async with full_agent() as agent:
        reader, writer = await asyncio.open_connection("127.0.0.1", agent.port)
        writer.write(b"GET /v1/peer HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with asyncio.timeout(40):
            assert (await reader.read()).startswith(b"HTTP/1.1 400")
        writer.close()
        assert await status(agent.port, b"GET /v1/peer HTTP/1.1\r\nHost: evil.example\r\n\r\n") == 403


class _Holder:
    def __init__(self, places: Places) -> None:
        self._places = places

    def refuse(self) -> None:
        self._places.leave(self)


def test_places_keep_count() -> None:
    """A link gives its client's place back; whoever leaves twice, or never had one, changes nothing."""
    places = Places(HttpLimits(connections=1, unread_connections=1), lambda address: address == "10.0.0.1")
    one, two, three = (_Holder(places) for _ in range(3))
    assert places.enter(one, "10.0.0.9") is Place.CLIENT
    assert places.enter(two, "10.0.0.9") is None
    assert places.enter(two, None) is None
    places.become_link(one)
    assert places.enter(two, "10.0.0.9") is Place.CLIENT
    assert places.enter(three, "10.0.0.1") is Place.UNREAD
    assert not places.settle(three, Place.CLIENT)
    places.leave(three)
    places.leave(two)
    places.leave(two)
    places.leave(one)
    assert [places.taken(place) for place in Place] == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("head", "place"),
    [
        (LINK, Place.LINK),
        (FORWARDED, Place.AGENT),
        (LIVEZ, Place.CLIENT),
        (LIVEZ + FORWARDED, Place.CLIENT),
        (LINK[:-1], None),
        (b"", None),
        (b"x" * 4_096, Place.CLIENT),
        (b"GET /v1/peers HTTP/1.1\r\n\r\n", Place.CLIENT),
    ],
)
def test_what_a_head_wants(head: bytes, place: Place | None) -> None:
    """Only the first request counts, and only once its head is whole."""
    assert wanted_place(head) is place


@pytest.mark.parametrize("open_files", [256, 1_024, 4_096, 1_048_576])
def test_all_connections_fit_beside_the_segment_files(open_files: int) -> None:
    """However few files the system allows: accept() must never fail, it would fail for peers too."""
    limits = limits_for(open_files)
    most = limits.connections + limits.agent_connections + limits.relay_connections + open_files // 4
    assert most < open_files * 3 // 4
    assert limits.connections >= min(4_096, open_files // 4)


async def test_links_come_back_under_agents_full_of_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of three agents have no place for one client more, and their links break: leaders are elected all
    the same, and requests are forwarded there."""
    limits = HttpLimits(connections=8)
    places: dict[str, Places] = {}

    def small_runner(broker: Broker, _: HttpLimits, *more: Any, **named: Any) -> HttpRunner:
        runner = make_runner(broker, limits, *more, **named)
        places[broker.url] = runner.context.places
        return runner

    async def are_full() -> bool:
        return all(places[running.agent.url].taken(Place.CLIENT) >= limits.connections for running in full)

    monkeypatch.setattr(shoal.agent.node, "make_runner", small_runner)
    async with agents_in(tmp_path) as started:
        cluster = sorted(await started.cluster(3), key=lambda running: running.agent.agent_id)
        small, *full = cluster  # the smallest id dials both others
        assert (await small.call("PUT", "/v1/topics/t", {}))[0] in (200, 201)
        await eventually(lambda: produced(small))
        async with asyncio.TaskGroup() as fillers:
            hold = asyncio.Event()
            for running in full:
                fillers.create_task(fill(running, hold))
            try:
                await eventually(are_full)
                for running in full:
                    break_links(running)
                await eventually(lambda: produced(small))
                await eventually(lambda: are_linked(cluster))
                assert await are_full()
                assert await status(int(full[0].agent.url.rpartition(":")[2]), LIVEZ) == 429
            finally:
                hold.set()


async def produced(running: Running) -> bool:
    answer, _ = await running.call(
        "POST", "/v1/topics/t/records", {"records": [{"value": "x"}]}, timeout="2s"
    )
    return answer == 200


async def fill(running: Running, hold: asyncio.Event) -> None:
    """More clients than there are places: whoever is refused tries again, and whoever has one keeps it."""
    port = int(running.agent.url.rpartition(":")[2])
    kept: list[asyncio.StreamWriter] = []
    while not hold.is_set():
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(LIVEZ)
        if (await reader.readline()).startswith(b"HTTP/1.1 200"):
            kept.append(writer)
        else:
            writer.close()
            await asyncio.sleep(0.05)
    for writer in kept:
        writer.close()


def break_links(running: Running) -> None:
    """As a pause of some seconds does."""
    for peer in running.agent.node.links._peers.values():
        for connection in list(peer.connections.values()):
            connection.abort()


async def are_linked(agents: list[Running]) -> bool:
    return all(
        set(peer.connections) == set(LinkKind)
        for running in agents
        for peer in running.agent.node.links._peers.values()
    )
