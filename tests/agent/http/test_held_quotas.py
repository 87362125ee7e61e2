"""Quotas of what is held at once: connections, waits, streams. Whatever ends one gives it back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest
from fake_broker import FakeCluster
from http_access import MemoryAccess, Reply, Wire
from http_fixtures import EVENTS, Agent, running

from shoal.agent.http.core import waits
from shoal.agent.security.quota import CONNECTIONS, STREAMS, WAITS, Holdings, Quotas
from shoal.client.async_admin import AdminClient

ORDINARY = ("X-Ordinary", "1")
"""No fast way knows this header."""
JSON = ("Content-Type", "application/json")
STREAM = ("Accept", EVENTS)
WRITE = "POST /v1/topics/orders/partitions/0/records"
RECEIVE = "POST /v1/topics/orders/partitions/0/groups/billing/receive"
PATIENCE_S = 20.0
"""What does not happen within it is a place that is not given back."""
Ask = tuple[str, bytes, tuple[tuple[str, str], ...]]
WAITING: tuple[Ask, ...] = (
    ("GET /v1/topics/orders/partitions/0/records?offset=0&wait=30s", b"", ()),
    ("GET /v1/topics/orders/records?wait=30s", b"", ()),
    ("GET /v1/topics/orders/offsets?after=0:0&wait=30s", b"", ()),
    (RECEIVE, b'{"wait":"30s"}', (JSON,)),
    (RECEIVE, b'{"wait":"30s"}', (JSON, ORDINARY)),
    ("POST /v1/topics/orders/groups/billing/receive", b'{"wait":"30s"}', (JSON,)),
)
STREAMING: tuple[Ask, ...] = (
    ("GET /v1/topics/orders/partitions/0/records?offset=0", b"", (STREAM,)),
    ("GET /v1/topics/orders/records", b"", (STREAM,)),
    ("GET /v1/tables/users", b"", (STREAM,)),
    ("GET /v1/events", b"", (STREAM,)),
)
HOLDING = [(WAITS, ask) for ask in WAITING] + [(STREAMS, ask) for ask in STREAMING]


class Stand(NamedTuple):
    cluster: FakeCluster
    agent: Agent
    access: MemoryAccess
    bob: list[tuple[str, str]]
    wires: list[Wire]

    @property
    def holdings(self) -> Holdings:
        return self.agent.runner.context.doorkeeper.meters.holdings

    @property
    def refused(self) -> dict[str, int]:
        return self.agent.runner.context.doorkeeper.meters.refused

    def limit(self, quotas: Quotas) -> None:
        self.access.quotas["of-bob"] = quotas
        self.access.version += 1

    async def open(self) -> Wire:
        """Closed in the end, after the server has stopped."""
        self.wires.append(await Wire.open(self.agent.port))
        return self.wires[-1]

    async def begin(self, ask: Ask) -> Wire:
        """A connection on which this is asked; a body has its length."""
        line, body, more = ask
        wire = await self.open()
        length = [("Content-Length", str(len(body)))] if body else []
        await wire.send(line, [*self.bob, *more, *length], body)
        return wire

    async def until_held(self, kind: str, count: int) -> None:
        await until(lambda: self.holdings.held("of-bob", kind) == count)


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not what():
            await asyncio.sleep(0.001)


@asynccontextmanager
async def standing() -> AsyncIterator[Stand]:
    cluster, access = FakeCluster(), MemoryAccess()
    wires: list[Wire] = []
    try:
        async with running(cluster.add("one"), None, access) as agent:
            cluster.create("orders")
            cluster.create("users", kind="table")
            bob = [("Authorization", access.give("bob", "topic:*=*", "group:*=*", "cluster=*"))]
            yield Stand(cluster, agent, access, bob, wires)
    finally:
        for wire in wires:
            wire.close()
        await asyncio.sleep(0)  # a transport closes its socket in the next turn


async def ask_once(stand: Stand, ask: Ask) -> Reply:
    wire = await stand.begin(ask)
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await wire.reply()
    finally:
        wire.close()


@pytest.mark.parametrize(("kind", "ask"), HOLDING)
async def test_one_beyond_the_quota_is_refused_until_another_ends(kind: str, ask: Ask) -> None:
    """In words, at once, with nothing done. What does not wait, and what others ask, is not concerned."""
    async with standing() as stand:
        stand.limit(Quotas(waits=2, streams=2))
        first, second = await stand.begin(ask), await stand.begin(ask)
        await stand.until_held(kind, 2)
        refused = await ask_once(stand, ask)
        assert refused.status == 429
        document = refused.document
        assert (document["code"], document["quota"]) == ("quota-exceeded", kind)
        assert document["definite"] is document["retriable"] is True
        assert document["retry_after_ms"] == 1_000
        assert "Retry-After: 1\r\n" in refused.head
        assert (await ask_once(stand, ("GET /v1/topics/orders/offsets", b"", ()))).status == 200
        assert (await ask_once(stand, (RECEIVE, b"{}", (JSON,)))).status == 200
        first.close()
        await stand.until_held(kind, 1)
        third = await stand.begin(ask)
        await stand.until_held(kind, 2)
        assert stand.refused[kind] == 1
        second.close()
        third.close()
        await until(lambda: len(stand.holdings) == 0)


@pytest.mark.parametrize("ending", ["gone", "revoked", "forbidden", "stopped", "served"])
@pytest.mark.parametrize(("kind", "ask"), HOLDING)
async def test_whatever_ends_gives_back(
    kind: str, ask: Ask, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten of them, with connections that count. A server that has stopped holds nothing either."""
    monkeypatch.setattr(waits, "JUDGE_SECONDS", 0.01)
    async with standing() as stand:
        stand.limit(Quotas(connections=100, waits=100, streams=100))
        wires = [await stand.begin(ask) for _ in range(10)]
        await stand.until_held(kind, 10)
        assert stand.holdings.held("of-bob", CONNECTIONS) == 10
        if ending == "revoked":
            stand.access.revoke("bob")
        elif ending == "forbidden":
            stand.access.change("bob", "topic:others=read")
        elif ending == "served":
            eve = ("Authorization", stand.access.give("eve", "topic:*=*"))
            wire = await stand.open()
            for _ in range(10 if kind == STREAMS else 1_000):
                assert (await wire.ask(WRITE, [eve], b"v")).status == 200
                if not stand.holdings.held("of-bob", kind):
                    break
            wire.close()
        is_refused = ending == "revoked" or (ending == "forbidden" and "events" not in ask[0])
        if is_refused or (ending == "served" and kind == WAITS):
            await stand.until_held(kind, 0)
        if ending != "stopped":
            for wire in wires:
                wire.close()
            await until(lambda: len(stand.holdings) == 0)
        holdings = stand.holdings
    assert len(holdings) == 0
    assert stand.agent.runner.context.gate.waits == 0


@pytest.mark.parametrize("ask", [
    ("GET /v1/topics/orders/partitions/0/records?offset=999&wait=30s", b"", ()),
    ("GET /v1/topics/none/partitions/0/records?wait=30s", b"", ()),
    ("GET /v1/topics/orders/partitions/0/records?offset=999", b"", (STREAM,)),
    (RECEIVE.replace("orders", "none"), b'{"wait":"30s"}', (JSON,)),
    (RECEIVE.replace("/0/", "/9/"), b'{"wait":"30s"}', (JSON,)),
])  # fmt: skip
async def test_a_request_that_fails_holds_nothing(ask: Ask) -> None:
    """Before it waits, or as it begins to."""
    async with standing() as stand:
        stand.limit(Quotas(waits=1, streams=1))
        for _ in range(3):
            assert (await ask_once(stand, ask)).status in (404, 416)
        assert len(stand.holdings) == 0


async def test_a_refused_receive_has_done_nothing() -> None:
    """Neither its acks, nor a group that it would have made."""
    async with standing() as stand:
        stand.limit(Quotas(waits=1))
        waiting = await stand.begin(WAITING[0])
        await stand.until_held(WAITS, 1)
        path = RECEIVE.replace("billing", "fresh")
        assert (await ask_once(stand, (path, b'{"wait":"30s"}', (JSON,)))).status == 429
        groups = await ask_once(stand, ("GET /v1/topics/orders/groups", b"", ()))
        assert b"fresh" not in groups.body
        waiting.close()


async def test_what_began_without_a_quota_counts_for_one() -> None:
    """A quota that is set later finds the streams that there are, ends none, and refuses until there are
    fewer."""
    async with standing() as stand:
        wires = [await stand.begin(STREAMING[0]) for _ in range(3)]
        await stand.until_held(STREAMS, 3)
        stand.limit(Quotas(streams=2))
        assert (await ask_once(stand, STREAMING[0])).status == 429
        wires[0].close()
        await stand.until_held(STREAMS, 2)
        assert (await ask_once(stand, STREAMING[0])).status == 429
        wires[1].close()
        await stand.until_held(STREAMS, 1)
        assert (await ask_once(stand, STREAMING[0])).status == 200
        wires[2].close()


@pytest.mark.parametrize("more", [(), (ORDINARY,)])
async def test_a_connection_beyond_the_quota_is_refused_and_closed(more: tuple[tuple[str, str], ...]) -> None:
    """Those before go on, and another one's counts for itself. A place that is given back is free at once."""
    async with standing() as stand:
        stand.limit(Quotas(connections=2))
        wires = [await stand.open() for _ in range(3)]
        for _ in range(2):
            assert [(await wire.ask(WRITE, [*stand.bob, *more], b"v")).status for wire in wires[:2]] == [
                200
            ] * 2
        refused = await wires[2].ask(WRITE, [*stand.bob, *more], b"v")
        assert (refused.status, refused.document["quota"]) == (429, CONNECTIONS)
        assert "Connection: close\r\n" in refused.head
        assert await wires[2].read() == b""
        assert stand.cluster.stored() == 4
        assert stand.refused[CONNECTIONS] == 1
        eve = [("Authorization", stand.access.give("eve", "topic:*=*"))]
        third = await stand.open()
        assert (await third.ask(WRITE, [*eve, *more], b"v")).status == 200
        wires[0].close()
        await stand.until_held(CONNECTIONS, 1)
        assert (await third.ask(WRITE, [*stand.bob, *more], b"v")).status == 200
        for wire in (*wires, third):
            wire.close()
        await until(lambda: len(stand.holdings) == 0)


async def test_a_shared_connection_counts_for_who_asked_last() -> None:
    """As that of a proxy: not for two, and not for none."""
    async with standing() as stand:
        stand.limit(Quotas(connections=1))
        eve = [("Authorization", stand.access.give("eve", "topic:*=*"))]
        stand.access.quotas["of-eve"] = Quotas(connections=1)
        shared, other = await stand.open(), await stand.open()
        for headers in (stand.bob, eve, eve, stand.bob, stand.bob, eve):
            assert (await shared.ask(WRITE, headers, b"v")).status == 200
        assert (await other.ask(WRITE, stand.bob, b"v")).status == 200
        assert (await shared.ask(WRITE, stand.bob, b"v")).status == 429
        other.close()
        shared.close()
        await until(lambda: len(stand.holdings) == 0)


async def test_a_connection_that_never_asks_counts_for_nobody() -> None:
    """Nobody is known by it."""
    async with standing() as stand:
        stand.limit(Quotas(connections=1))
        silent = [await stand.open() for _ in range(5)]
        await until(lambda: stand.agent.runner.connections == 5)
        assert len(stand.holdings) == 0
        assert (await ask_once(stand, (WRITE, b"v", ()))).status == 200
        for wire in silent:
            wire.close()


async def test_a_client_waits_for_a_place() -> None:
    """It is refused, closes, and comes again as it was told; then there is one."""
    async with standing() as stand:
        stand.limit(Quotas(connections=1))
        holder = await stand.open()
        assert (await holder.ask(WRITE, stand.bob, b"v")).status == 200

        async def leave() -> None:
            await until(lambda: stand.refused[CONNECTIONS] > 0)
            holder.close()

        leaving = asyncio.create_task(leave())
        async with AdminClient(stand.agent.broker.url, token="bob") as client:
            await client.topics()
        await leaving
        assert stand.refused[CONNECTIONS] >= 1
