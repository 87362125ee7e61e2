"""Quotas at the door: the same by the fast ways and the ordinary one, refused in words, counted."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

import pytest
from aiohttp import web
from fake_broker import FakeCluster
from http_access import MemoryAccess, Reply, Wire
from http_fixtures import Agent, running

from shoal.agent.http import fast_refusal
from shoal.agent.http.api.needs import TOPIC_WRITE, Needs
from shoal.agent.http.core import doorkeeper, request_quota
from shoal.agent.http.core.doorkeeper import Doorkeeper
from shoal.agent.http.core.handed_over import NO_ERA, Front
from shoal.agent.http.core.request_quota import Metered, Meters
from shoal.agent.security.access import PeerCertificate
from shoal.agent.security.audit import ShownLogin
from shoal.agent.security.quota import REFUSAL_DELAY_MAX_NS, REFUSALS_PER_S, SECOND_NS, Quotas, Taken
from shoal.client.async_admin import AdminClient
from shoal.client.async_client import AsyncClient
from shoal.errors import ShoalError

ORDINARY = ("X-Ordinary", "1")
"""No fast way knows this header."""
WRITE = "POST /v1/topics/orders/partitions/0/records"
READ = "GET /v1/topics/orders/partitions/0/records?offset=0"
RECEIVE = "POST /v1/topics/orders/partitions/0/groups/billing/receive"
PUT_ROW = "PUT /v1/tables/users/rows/ann"
READ_ROW = "GET /v1/tables/users/rows/ann"
JSON = ("Content-Type", "application/json")


class Stand(NamedTuple):
    """An agent whose time a test has in its hands."""

    cluster: FakeCluster
    agent: Agent
    access: MemoryAccess
    now_ns: list[int]
    wire: Wire
    headers: list[tuple[str, str]]

    @property
    def meters(self) -> Meters:
        return self.agent.runner.context.doorkeeper.meters

    def limit(self, quotas: Quotas) -> None:
        """Of the one whose token the headers have."""
        self.access.quotas["of-bob"] = quotas
        self.access.version += 1

    async def ask(self, line: str, body: bytes = b"", *more: tuple[str, str]) -> Reply:
        return await self.wire.ask(line, [*self.headers, *more], body)

    def stored(self) -> int:
        return self.cluster.stored()


@asynccontextmanager
async def standing() -> AsyncIterator[Stand]:
    cluster, access, now_ns = FakeCluster(), MemoryAccess(), [1]
    async with running(cluster.add("one"), None, access) as agent:
        agent.runner.context.doorkeeper.meters.clock_ns = lambda: now_ns[0]
        cluster.create("orders")
        cluster.create("users", kind="table")
        wire = await Wire.open(agent.port)
        headers = [("Authorization", access.give("bob", "topic:*=*", "group:*=*", "cluster=*"))]
        try:
            yield Stand(cluster, agent, access, now_ns, wire, headers)
        finally:
            wire.close()


@pytest.mark.parametrize(("line", "body", "more"), [
    (WRITE, b"v", ()), (WRITE, b"v", (ORDINARY,)),
    (PUT_ROW, b"v", ()), (PUT_ROW, b"v", (ORDINARY,)),
    (READ_ROW, b"", ()), (READ_ROW, b"", (ORDINARY,)),
    (RECEIVE, b"{}", (JSON,)), (RECEIVE, b"{}", (JSON, ORDINARY)),
    (READ, b"", ()), ("GET /v1/topics", b"", ()),
])  # fmt: skip
async def test_requests_beyond_a_quota_are_refused_each_way(
    line: str, body: bytes, more: tuple[tuple[str, str], ...]
) -> None:
    """Two pass, a third one is 429 and says when it would pass. Then it does, and others never waited."""
    async with standing() as stand:
        await stand.ask(PUT_ROW, b"v")  # there is a row, and each way has seen a head
        await stand.ask(RECEIVE, b"{}", JSON)
        stand.limit(Quotas(requests=2))
        stand.now_ns[0] += 10 * SECOND_NS
        for _ in range(2):
            assert (await stand.ask(line, body, *more)).status == 200
        refused = await stand.ask(line, body, *more)
        assert refused.status == 429
        document = refused.document
        assert (document["code"], document["quota"]) == ("quota-exceeded", "requests")
        assert document["definite"] is document["retriable"] is True
        assert document["retry_after_ms"] == 500
        assert "Retry-After: 1\r\n" in refused.head
        eve = ("Authorization", stand.access.give("eve", "topic:*=*", "group:*=*", "cluster=*"))
        assert (await stand.wire.ask(line, [eve, *more], body)).status == 200
        stand.now_ns[0] += SECOND_NS // 2
        assert (await stand.ask(line, body, *more)).status == 200
        assert {kind: count for kind, count in stand.meters.refused.items() if count} == {"requests": 1}


@pytest.mark.parametrize("more", [(), (ORDINARY,)])
async def test_bytes_that_are_refused_are_not_stored(more: tuple[tuple[str, str], ...]) -> None:
    """One larger than a second's worth passes a full bucket, and is paid for."""
    async with standing() as stand:
        stand.limit(Quotas(bytes_in=1_000))
        assert (await stand.ask(WRITE, b"x" * 3_000, *more)).status == 200
        refused = await stand.ask(WRITE, b"v", *more)
        assert (refused.status, refused.document["quota"]) == (429, "bytes_in")
        assert "Retry-After: 3\r\n" in refused.head  # 2 s, and the time of the byte itself
        assert stand.stored() == 1
        stand.now_ns[0] += 2 * SECOND_NS + SECOND_NS // 1_000
        assert (await stand.ask(WRITE, b"v", *more)).status == 200
        assert stand.stored() == 2


async def test_a_body_without_a_length_counts_as_it_comes() -> None:
    """The next request pays for it."""
    async with standing() as stand:
        stand.limit(Quotas(bytes_in=1_000))
        chunk = b"5dc\r\n" + b"x" * 1_500 + b"\r\n0\r\n\r\n"
        await stand.wire.send(WRITE, [*stand.headers, ("Transfer-Encoding", "chunked")], chunk)
        assert (await stand.wire.reply()).status == 200
        assert (await stand.ask(WRITE, b"v")).status == 429


async def test_a_request_that_changes_its_way_takes_once() -> None:
    """A fast append to a topic that is not there yet is made by the ordinary way, for one request's quota."""
    async with standing() as stand:
        stand.agent.broker.auto_create = True
        stand.limit(Quotas(requests=1))
        reply = await stand.ask("POST /v1/topics/new/partitions/0/records", b"v")
        assert reply.status != 429
        assert stand.meters.refused["requests"] == 0
        assert (await stand.ask(WRITE, b"v")).status == 429


@pytest.mark.parametrize(("line", "more"), [
    (READ, ()), ("GET /v1/topics/orders/records", ()), (RECEIVE, (JSON,)),
    (RECEIVE, (JSON, ORDINARY)),
])  # fmt: skip
async def test_an_answer_is_cut_to_what_is_left(line: str, more: tuple[tuple[str, str], ...]) -> None:
    """A reader gets some, and not all; then it waits, while its writes go on."""
    async with standing() as stand:
        for _ in range(20):
            await stand.ask(WRITE, b"x" * 1_000)
        body = b'{"limit":100}' if line == RECEIVE else b""
        stand.limit(Quotas(bytes_out=500))
        first = await stand.ask(line, body, *more)
        assert first.status == 200
        assert 1_000 < len(first.body) < 10_000  # of 20,000, and text has more bytes than its records
        refused = await stand.ask(line, body, *more)
        while refused.status == 200:
            refused = await stand.ask(line, body, *more)
        assert (refused.status, refused.document["quota"]) == (429, "bytes_out")
        assert (await stand.ask(WRITE, b"v")).status == 200
        stand.now_ns[0] += refused.document["retry_after_ms"] * 1_000_000
        assert (await stand.ask(line, body, *more)).status == 200


async def test_without_quotas_nothing_is_counted() -> None:
    """No bucket is made, and the fast ways have nothing to look up."""
    async with standing() as stand:
        for line, body in ((WRITE, b"v"), (READ, b""), (PUT_ROW, b"v"), (READ_ROW, b"")):
            assert (await stand.ask(line, body)).status == 200
        assert not stand.agent.runner.context.doorkeeper.metered
        assert len(stand.meters.keeper) == 0


async def test_refusals_are_a_metric() -> None:
    """By the quota that was used up; what needs no permission is never refused."""
    async with standing() as stand:
        stand.limit(Quotas(requests=1))
        statuses = [(await stand.ask(WRITE, b"v")).status for _ in range(3)]
        assert statuses == [200, 429, 429]
        assert (await stand.ask("GET /livez")).status == 200
        stand.limit(Quotas())
        reply = await stand.ask("GET /metrics")
        assert 'shoal_quota_refused_total{quota="requests"} 2' in reply.body.decode()


async def test_a_quota_that_changes_counts_at_once() -> None:
    """A larger one pays sooner for what was taken."""
    async with standing() as stand:
        stand.limit(Quotas(requests=1))
        assert [(await stand.ask(WRITE, b"v")).status for _ in range(2)] == [200, 429]
        stand.limit(Quotas(requests=10))
        stand.now_ns[0] += SECOND_NS // 10
        assert (await stand.ask(WRITE, b"v")).status == 200


class Asking(NamedTuple):
    """A write of one byte, as a fast way has understood it."""

    authorization: str
    resource: str
    operation: str = "append-records"
    needs: Needs = TOPIC_WRITE
    body_bytes: int = 1


class Asker(Front):
    """A connection of a turn of the loop that holds the requests of others too."""

    def __init__(self, keeper: Doorkeeper) -> None:
        self.doorkeeper, self.certificate, self.shown = keeper, None, ShownLogin("127.0.0.1")
        self.counted, self.meter, self.let_in, self.era = None, None, None, NO_ERA

    def answer_ended(self, *, keep_alive: bool) -> None:
        raise AssertionError("nothing is answered here")


async def test_a_quota_is_kept_while_others_take_the_room_of_verdicts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the same turn, on a connection whose next request is like its last: that counts all the same."""
    monkeypatch.setattr(doorkeeper, "VERDICTS_MAX", 2)
    async with standing() as stand:
        stand.limit(Quotas(requests=2))
        keeper = stand.agent.runner.context.doorkeeper
        keeper.trail = None
        bob, ann = Asker(keeper), Asker(keeper)
        again = Asking(stand.headers[0][1], "orders")
        assert bob.is_let_in(again)
        assert bob.may_begin(again)
        shown = stand.access.give("ann", "topic:*=*")
        for topic in ("orders", "others", "more"):
            assert ann.is_let_in(Asking(shown, topic))
        assert not keeper.metered, "none was forgotten"
        assert [bob.is_let_in(again) and bob.may_begin(again) for _ in range(2)] == [True, False]


async def test_a_client_waits_as_long_as_it_is_told() -> None:
    """Each refusal makes this agent's clock a second older: so the client asks once more each time, and not
    before a request's fifth of a second is over."""
    async with standing() as stand:
        stand.limit(Quotas(requests=5))
        stand.meters.clock_ns = lambda: SECOND_NS * (1 + stand.meters.refused["requests"])
        began_s = time.monotonic()
        async with AdminClient(stand.agent.broker.url, token="bob") as client:
            for _ in range(12):
                await client.topics()
        refused = stand.meters.refused["requests"]
        assert refused >= 2
        assert time.monotonic() - began_s >= refused * 0.2


async def test_a_reader_gets_on_with_one_request_a_second() -> None:
    """Its waits are for reads: none is spent on a question where the partition is led."""
    async with standing() as stand:
        await stand.ask(WRITE, b"v")
        stand.limit(Quotas(requests=1))
        stand.meters.clock_ns = lambda: SECOND_NS * (1 + stand.meters.refused["requests"])
        async with asyncio.timeout(30), AsyncClient(stand.agent.broker.url, token="bob") as client:
            for _ in range(3):
                assert (await client.fetch("orders", 0, 0)).batch["value"].to_pylist() == [b"v"]
        assert stand.meters.refused["requests"] == 3  # the routes and the first read, and each read alone


AGENT = PeerCertificate("shoal://fake/agent", is_agent=True)


@pytest.mark.parametrize("proven", [True, False])
@pytest.mark.parametrize(("line", "body", "more"), [
    (WRITE, b"v", ()), (READ, b"", ()), (RECEIVE, b"{}", (JSON,)), ("GET /v1/topics/orders/offsets", b"", ()),
])  # fmt: skip
async def test_a_forwarded_request_counts_where_its_client_asked(
    line: str, body: bytes, more: tuple[tuple[str, str], ...], proven: bool
) -> None:
    """There alone, where agents prove themselves. Where they cannot, anybody might say that it is one."""
    cluster, access = FakeCluster(), MemoryAccess()
    token = access.give("bob", "topic:*=*", "group:*=*")
    access.quotas["of-bob"] = Quotas(requests=1, bytes_in=1_000, bytes_out=100_000)
    async with AsyncExitStack() as stack:
        client, agent = ((lambda: None), (lambda: AGENT)) if proven else (None, None)
        first = await stack.enter_async_context(running(cluster.add("one"), None, access, client))
        second = await stack.enter_async_context(running(cluster.add("two"), None, access, agent))
        for one in (first, second):
            one.runner.context.doorkeeper.meters.clock_ns = lambda: 1
        cluster.create("orders", leader=second.broker.agent_id)
        wire = await Wire.open(first.port)
        replies = [await wire.ask(line, [("Authorization", token), *more], body) for _ in range(2)]
        wire.close()
        assert [reply.status for reply in replies] == [200, 429]
        assert len(first.runner.context.doorkeeper.meters.keeper) == 1
        assert len(second.runner.context.doorkeeper.meters.keeper) == (0 if proven else 1)


async def test_an_answer_of_another_agent_is_cut_by_the_quota_here() -> None:
    """The agent that leads knows of no quota then."""
    cluster, access = FakeCluster(), MemoryAccess()
    token = access.give("bob", "topic:*=*")
    async with (
        running(cluster.add("one"), None, access, lambda: None) as first,
        running(cluster.add("two"), None, access, lambda: AGENT) as second,
    ):
        cluster.create("orders", leader=second.broker.agent_id)
        first.runner.context.doorkeeper.meters.clock_ns = lambda: 1
        wire = await Wire.open(first.port)
        for _ in range(20):
            assert (await wire.ask(WRITE, [("Authorization", token)], b"x" * 1_000)).status == 200
        access.quotas["of-bob"] = Quotas(bytes_out=500)
        access.version += 1
        await wire.send(READ, [("Authorization", token)], b"")
        found = b""
        async with asyncio.timeout(20):
            while not found.endswith((b"}\n", b"0\r\n\r\n")):
                found += await wire.read()
        assert b"HTTP/1.1 200" in found
        assert 1_000 < len(found) < 10_000
        assert (await wire.ask(READ, [("Authorization", token)])).status == 429
        wire.close()


async def test_a_long_answer_goes_as_quickly_as_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """Piece by piece: it rests until what has left is paid for, in all no longer than others can wait for its
    memory. The next request pays for the rest."""
    now_ns, slept_s = [1], []

    async def sleep(seconds: float) -> None:
        slept_s.append(seconds)
        now_ns[0] += round(seconds * SECOND_NS)

    monkeypatch.setattr(request_quota.asyncio, "sleep", sleep)
    meters, metered = Meters(lambda: now_ns[0]), Metered("bob", Quotas(bytes_out=1_000))
    meter = meters.begin(metered, Taken(0, reads=True))
    for _ in range(10):
        await meter.rest_holding()
        meter.passed(1_000)
    assert slept_s == pytest.approx([1.0] * 5, abs=1e-6)
    assert sum(slept_s) <= request_quota.ANSWER_REST_MAX_S
    with pytest.raises(ShoalError) as refused:
        meters.begin(metered, Taken(0, reads=True))
    assert refused.value.extra["retry_after_ms"] == 4_001  # four of ten are owed, and a byte


async def test_two_long_answers_share_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are at once."""
    now_ns = [1]

    async def sleep(seconds: float) -> None:
        now_ns[0] += round(seconds * SECOND_NS)

    monkeypatch.setattr(request_quota.asyncio, "sleep", sleep)
    meters, metered = Meters(lambda: now_ns[0]), Metered("bob", Quotas(bytes_out=1_000))
    answers = [meters.begin(metered, Taken(0, reads=True)) for _ in range(2)]
    for _ in range(4):
        for meter in answers:
            await meter.rest_holding()
            meter.passed(500)
    assert now_ns[0] >= 2 * SECOND_NS  # 4,000 bytes: one second's worth at once, and the last one is owed


# ---- failed logins


def come_from(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """Requests have this sender's address from now on, each way."""
    monkeypatch.setattr(web.BaseRequest, "remote", address)
    monkeypatch.setattr(fast_refusal, "address_of", lambda front: address)


@pytest.mark.parametrize("more", [(), (ORDINARY,)])
async def test_failed_logins_of_an_address_are_limited(
    more: tuple[tuple[str, str], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten are told why. From then on credentials that are expired, unknown or none at all have one answer;
    right ones pass, and so does who shows none."""
    come_from(monkeypatch, "192.0.2.1")
    async with standing() as stand:
        stand.access.give("old", "topic:*=*", expires_ms=1)
        wrong = [("Authorization", f"Bearer {text}") for text in ("none", "old")] + [("Authorization", "x\t")]
        for number in range(10):
            refused = await stand.wire.ask(WRITE, [wrong[number % 3], *more], b"v")
            assert (refused.status, refused.document["code"]) == (401, "unauthenticated")
        told = set()
        for credential in wrong:
            refused = await stand.wire.ask(WRITE, [credential, *more], b"v")
            assert refused.status == 429
            assert "Retry-After: 6\r\n" in refused.head
            told.add(refused.body)
        assert len(told) == 1
        document = json.loads(told.pop())
        assert (document["code"], document["retriable"], document["definite"]) == (
            "too-many-failed-logins", False, True,
        )  # fmt: skip
        assert (await stand.ask(WRITE, b"v", *more)).status == 200
        assert (await stand.wire.ask(WRITE, more, b"v")).status == 401
        assert (await stand.wire.ask("GET /livez", [wrong[0]])).status == 200
        assert stand.stored() == 1
        assert stand.meters.refused["failed_logins"] == 3
        stand.now_ns[0] += 6 * SECOND_NS
        assert [(await stand.wire.ask(WRITE, [wrong[0], *more], b"v")).status for _ in range(2)] == [401, 429]


async def test_a_client_with_a_wrong_token_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not wait for what cannot change; a loopback address is never refused so."""
    async with standing() as stand:
        for address, code in (("127.0.0.1", "unauthenticated"), ("192.0.2.1", "too-many-failed-logins")):
            come_from(monkeypatch, address)
            for _ in range(12):
                refused = await stand.wire.ask(WRITE, [("Authorization", "Bearer none")], b"v")
            assert refused.document["code"] == code
            async with AdminClient(stand.agent.broker.url, token="none") as client:
                before = stand.meters.refused["failed_logins"]
                with pytest.raises(ShoalError) as told:
                    await client.topics()
            assert told.value.code == code
            assert stand.meters.refused["failed_logins"] - before == (code != "unauthenticated")


async def test_an_agent_that_passes_on_wrong_credentials_is_not_their_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its clients were judged by it, perhaps a moment before a revocation was heard there."""
    come_from(monkeypatch, "192.0.2.1")
    access = MemoryAccess()
    async with running(FakeCluster().add("one"), None, access, lambda: AGENT) as agent:
        wire = await Wire.open(agent.port)
        headers = [("Authorization", "Bearer none"), ("Shoal-Forwarded-By", "two")]
        for _ in range(12):
            assert (await wire.ask("GET /v1/topics", headers)).status == 401
        wire.close()


# ---- the line of refusals


async def test_who_asks_again_too_soon_stands_in_a_line() -> None:
    """A second's refusals are answered at once, the next ones later and later. Another principal's are not
    behind them. The time in the line counts as waited."""
    async with standing() as stand:
        stand.limit(Quotas(requests=1))
        assert (await stand.ask(WRITE, b"v")).status == 200
        for _ in range(REFUSALS_PER_S):
            assert (await stand.ask(WRITE, b"v")).document["retry_after_ms"] == 1_000
        began_s = time.monotonic()
        told = [(await stand.ask(WRITE, b"v")).document["retry_after_ms"] for _ in range(3)]
        assert told == [950, 900, 850]
        assert time.monotonic() - began_s >= 0.1
        stand.access.quotas["of-eve"] = Quotas(requests=1)
        eve = [("Authorization", stand.access.give("eve", "topic:*=*"))]
        statuses = [(await stand.wire.ask(WRITE, eve, b"v")).document.get("retry_after_ms") for _ in range(2)]
        assert statuses == [None, 1_000]


@pytest.mark.parametrize("ending", ["gone", "stopped"])
async def test_who_stands_in_a_line_leaves_it(ending: str) -> None:
    """When the client goes, and when the agent stops, which says so."""
    async with standing() as stand:
        stand.limit(Quotas(requests=1))
        assert (await stand.ask(WRITE, b"v")).status == 200
        buckets, gate = stand.meters.keeper.of("of-bob", 1), stand.agent.runner.context.gate
        while buckets.refuse(1) < REFUSAL_DELAY_MAX_NS:
            pass
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await stand.wire.send(WRITE, [*stand.headers, ("Content-Length", "1")], b"v")
        while not gate.waits:
            await asyncio.sleep(0.001)
        if ending == "gone":
            stand.wire.close()
            while gate.waits:
                await asyncio.sleep(0.001)
        else:
            stand.agent.runner.context.waits.stop()
            assert (await stand.wire.reply()).document["code"] == "stopping"
        assert loop.time() - began_s < REFUSAL_DELAY_MAX_NS / SECOND_NS
        assert stand.stored() == 1
