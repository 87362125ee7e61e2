"""Whoever sends a body slowly, or waits for a leader, is judged by what holds when something is done; and
no verdict outlives its credential where a clock goes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from typing import NamedTuple

import pytest
from fake_broker import FakeCluster
from http_access import MemoryAccess, Wire
from http_fixtures import ARROW, PATIENCE_S, Agent, arrow_batch, arrow_stream, running

from shoal.agent.http.core import doorkeeper
from shoal.agent.security.quota import Quotas

RECORDS = "POST /v1/topics/orders/records"
TO_PLACE = ("Content-Type", ARROW)
PLACED = arrow_stream(arrow_batch([b"v" * 200_000]))
"""An append whose body is received where it will lie."""
ORDINARY = ("X-Other", "1")
"""A header that no fast way understands."""


class House(NamedTuple):
    cluster: FakeCluster
    agent: Agent
    access: MemoryAccess

    def mine(self, *rules: str) -> tuple[str, str]:
        return ("Authorization", self.access.give("mine", *rules))


@pytest.fixture
async def house() -> AsyncIterator[House]:
    """An agent that asks, with a topic `orders` and a table `rows`."""
    cluster, access = FakeCluster(), MemoryAccess()
    async with running(cluster.add("one"), None, access) as agent:
        cluster.create("orders")
        cluster.create("rows", kind="table")
        yield House(cluster, agent, access)


async def until(happens: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not happens():
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("revoked", [True, False])
@pytest.mark.parametrize(
    ("line", "rule", "more"),
    [
        (RECORDS, "topic:orders=write", (TO_PLACE,)),
        (RECORDS, "topic:orders=write", ()),
        (RECORDS, "topic:orders=write", (ORDINARY,)),
        ("PUT /v1/tables/rows/ann", "topic:rows=write", ()),
        ("PUT /v1/topics/new", "topic:new=create", ()),
    ],
)
async def test_a_body_is_let_in_by_the_verdict_at_its_end(
    line: str, rule: str, more: tuple[tuple[str, str], ...], revoked: bool, house: House
) -> None:
    """Its head came while the sender might: nothing is stored of it, whichever way it takes."""
    gate = house.agent.runner.context.gate
    with closing(await Wire.open(house.agent.port)) as wire:
        body = PLACED if TO_PLACE in more else (b" " if "new" in line else b"v") * 50_000
        headers = [house.mine(rule), *more, ("Content-Length", str(len(body)))]
        await wire.send(line, headers, body[:100])
        await until(lambda: gate.arriving_bytes > 0)
        if revoked:
            house.access.revoke("mine")
        else:
            house.access.change("mine", "topic:others=write")
        wire.send_more(body[100:])
        async with asyncio.timeout(PATIENCE_S):
            reply = await wire.reply()
        assert reply.status == (401 if revoked else 403)
        assert house.cluster.stored() == 0
        assert "new" not in house.cluster.topics


async def test_an_upload_without_end_ends_with_its_permission(house: House) -> None:
    """What was stored before is told. Another change lets it go on."""
    with closing(await Wire.open(house.agent.port)) as wire:
        headers = [
            house.mine("topic:orders=write"),
            ("Content-Type", "application/x-ndjson"),
            ("Transfer-Encoding", "chunked"),
        ]
        record = b'{"value": "%s"}\n' % (b"v" * 70_000)
        piece = b"%x\r\n%b\r\n" % (len(record), record)
        await wire.send(RECORDS, headers, piece * 20)
        await until(lambda: house.cluster.stored() > 0)
        house.access.change("mine", "topic:orders=write,read")
        stored = house.cluster.stored()
        wire.send_more(piece * 20)
        await until(lambda: house.cluster.stored() > stored)
        house.access.revoke("mine")
        wire.send_more(piece * 20 + b"0\r\n\r\n")
        async with asyncio.timeout(PATIENCE_S):
            reply = await wire.reply()
        assert reply.status == 401
        assert reply.document["count"] == house.cluster.stored() < 60


async def test_a_body_counts_by_its_quota_whatever_was_forgotten_meanwhile(house: House) -> None:
    """Verdicts and quotas are forgotten at each change; a body that came before one is no exception."""
    house.access.quotas["of-mine"] = Quotas(bytes_in=100)
    gate = house.agent.runner.context.gate
    with closing(await Wire.open(house.agent.port)) as wire:
        headers = [house.mine("topic:orders=write"), TO_PLACE, ("Content-Length", str(len(PLACED)))]
        await wire.send(RECORDS, headers, PLACED[:100])
        await until(lambda: gate.arriving_bytes > 0)
        house.access.give("another", "topic:orders=write")
        house.access.version += 1
        assert (await ask_once(house, ("Authorization", "Bearer another"))) == 200
        wire.send_more(PLACED[100:])
        assert (await wire.reply()).status == 200
        assert (await wire.ask(RECORDS, headers[:1], b"v")).status == 429


async def ask_once(house: House, header: tuple[str, str]) -> int:
    with closing(await Wire.open(house.agent.port)) as wire:
        reply = await wire.ask(RECORDS, [header], b"v")
    return reply.status


async def test_a_wait_for_a_leader_is_no_way_around_a_revocation() -> None:
    """The request came in time; the leader comes when its sender is nobody any more."""
    cluster, access = FakeCluster(), MemoryAccess()
    async with running(cluster.add("one"), None, access) as agent:
        cluster.create("orders")
        cluster.leaders["orders", 0] = None
        house = House(cluster, agent, access)
        with closing(await Wire.open(agent.port)) as wire:
            asked = asyncio.create_task(
                wire.ask(f"{RECORDS}?timeout=60s", [house.mine("topic:orders=write"), ORDINARY], b"v")
            )
            await asyncio.sleep(0.1)
            assert not asked.done()
            access.revoke("mine")
            cluster.leaders["orders", 0] = agent.broker.agent_id
            async with asyncio.timeout(PATIENCE_S):
                assert (await asked).status == 401
            assert cluster.stored() == 0


async def test_an_expired_token_does_not_live_again_with_a_clock_that_goes_back(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its verdict is remembered until its end, and the clock has seen that."""
    now_ms = [10_000_000.0]
    monkeypatch.setattr(doorkeeper, "wall_ms", lambda: now_ms[0])
    mine = ("Authorization", house.access.give("short", "topic:orders=write", expires_ms=10_060_000))
    others = ("Authorization", house.access.give("another", "topic:orders=write"))
    assert await ask_once(house, mine) == 200
    now_ms[0] = 10_060_000
    assert await ask_once(house, others) == 200
    now_ms[0] = 10_059_000
    keeper = house.agent.runner.context.doorkeeper
    taken = []
    is_allowed = doorkeeper.Doorkeeper.is_allowed

    def noted(self: doorkeeper.Doorkeeper, request: doorkeeper.FastAsking, certificate: None) -> bool:
        house.access.asked = 0
        taken.append(is_allowed(self, request, certificate) and not house.access.asked)
        return bool(taken[-1])

    monkeypatch.setattr(doorkeeper.Doorkeeper, "is_allowed", noted)
    await ask_once(house, mine)
    assert taken == [False]
    assert keeper._now_ms == 10_060_000
