"""Verdicts in time: remembered by the fast ways, taken back from those who wait, handed on to leaders; and
what lists show."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple, NoReturn

import pytest
from fake_broker import FakeCluster
from http_access import MemoryAccess, Wire
from http_fixtures import ARROW, PATIENCE_S, Agent, arrow_batch, arrow_stream, running
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.http.api.needs import TOPIC_WRITE, Needs
from shoal.agent.http.core import doorkeeper, waits
from shoal.agent.http.core.doorkeeper import Doorkeeper
from shoal.agent.security.access import PeerCertificate
from shoal.agent.security.judge import Judge
from shoal.agent.security.principals import Security
from shoal.errors import ShoalError

RECORDS = "POST /v1/topics/orders/records"
JSON = ("Content-Type", "application/json")
CLIENT = PeerCertificate("of-known", is_agent=False)
AGENT = PeerCertificate("shoal://fake/agent", is_agent=True)


class House(NamedTuple):
    cluster: FakeCluster
    agent: Agent
    access: MemoryAccess


@pytest.fixture
async def house() -> AsyncIterator[House]:
    """An agent that asks, with topics `orders` and `others`, and a table `rows`."""
    cluster, access = FakeCluster(), MemoryAccess()
    async with running(cluster.add("one"), None, access) as agent:
        cluster.create("orders")
        cluster.create("others")
        cluster.create("rows", kind="table")
        yield House(cluster, agent, access)


def credential(value: str) -> list[tuple[str, str]]:
    return [("Authorization", value)]


# ---- remembered verdicts


@pytest.mark.parametrize(
    ("line", "body", "rule"),
    [
        (RECORDS, b"v", "topic:orders=write"),
        ("POST /v1/topics/orders/partitions/0/records", b"v", "topic:orders=write"),
        ("POST /v1/topics/orders/groups/billing/receive", b"{}", "group:orders/billing=consume"),
        ("GET /v1/tables/rows/ann", b"", "topic:rows=read"),
        ("PUT /v1/tables/rows/ann", b"v", "topic:rows=write"),
    ],
)
async def test_a_verdict_is_remembered_until_something_changes(
    line: str, body: bytes, rule: str, house: House
) -> None:
    """The same head is not asked about again; and not let in once more after a revocation or another rule."""
    wire = await Wire.open(house.agent.port)
    try:
        await check_remembered(line, body, rule, house, wire)
    finally:
        wire.close()


async def check_remembered(line: str, body: bytes, rule: str, house: House, wire: Wire) -> None:
    media = [JSON] if "receive" in line else []
    headers = [*media, *credential(house.access.give("mine", rule))]
    first = await wire.ask(line, headers, body)
    assert first.status in (200, 404)
    await wire.ask(line, headers, body)
    house.access.asked = 0
    for _ in range(3):
        assert (await wire.ask(line, headers, body)).status == first.status
    # A receive has an asker of its own, whom it is judged by while it waits.
    assert house.access.asked <= (6 if "receive" in line else 0)
    house.access.change("mine", "topic:others=write")
    assert (await wire.ask(line, headers, body)).status == 403
    house.access.change("mine", rule)
    assert (await wire.ask(line, headers, body)).status in (200, 404)
    house.access.revoke("mine")
    assert (await wire.ask(line, headers, body)).status == 401


async def test_a_verdict_ends_with_the_credential(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has to change anything for that."""
    now_ms = [1_000_000.0]
    monkeypatch.setattr(doorkeeper, "wall_ms", lambda: now_ms[0])
    headers = credential(house.access.give("short", "topic:orders=write", expires_ms=1_060_000))
    wire = await Wire.open(house.agent.port)
    assert (await wire.ask(RECORDS, headers, b"v")).status == 200
    now_ms[0] = 1_059_999
    assert (await wire.ask(RECORDS, headers, b"v")).status == 200
    now_ms[0] = 1_060_000
    assert (await wire.ask(RECORDS, headers, b"v")).status == 401
    wire.close()


async def test_a_body_in_place_is_let_in_by_a_verdict_of_now(house: House) -> None:
    """A large body that repeats the last head is received where it will lie: not without a verdict."""
    headers = [*credential(house.access.give("mine", "topic:orders=write")), ("Content-Type", ARROW)]
    wire = await Wire.open(house.agent.port)
    body = arrow_stream(arrow_batch([b"v" * 200_000]))
    for _ in range(3):
        assert (await wire.ask(RECORDS, headers, body)).status == 200
    house.access.revoke("mine")
    assert (await wire.ask(RECORDS, headers, body)).status == 401
    assert house.cluster.stored() == 3
    wire.close()


async def test_one_topics_verdict_is_not_anothers(house: House) -> None:
    """Heads of rows are remembered without their first line, which names the topic."""
    headers = credential(house.access.give("mine", "topic:rows=write,read"))
    house.cluster.create("secret", kind="table")
    wire = await Wire.open(house.agent.port)
    for method, body in (("PUT", b"v"), ("GET", b"")):
        assert (await wire.ask(f"{method} /v1/tables/rows/ann", headers, body)).status == 200
        assert (await wire.ask(f"{method} /v1/tables/secret/ann", headers, body)).status == 403
    house.access.change("mine", "topic:rows=read")
    assert (await wire.ask("PUT /v1/tables/rows/ann", headers, b"v")).status == 403
    assert (await wire.ask("GET /v1/tables/rows/ann", headers)).status == 200
    wire.close()


async def test_remembered_verdicts_are_bounded(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused credentials take none of their room."""
    monkeypatch.setattr(doorkeeper, "VERDICTS_MAX", 8)
    keeper = house.agent.runner.context.doorkeeper
    wire = await Wire.open(house.agent.port)
    for number in range(20):
        headers = credential(f"Bearer unknown-{number}")
        assert (await wire.ask(RECORDS, headers, b"v")).status == 401
    assert keeper._allowed == {}
    for number in range(20):
        headers = credential(house.access.give(f"known-{number}", "topic:orders=write"))
        assert (await wire.ask(RECORDS, headers, b"v")).status == 200
    assert len(keeper._allowed) <= 8
    wire.close()


async def test_a_verdict_remembered_too_long_is_found(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above fails for a doorkeeper that knows no versions."""

    def is_allowed(self: Doorkeeper, request: doorkeeper.FastAsking, certificate: object) -> bool:
        key = (request.authorization, None, request.operation, request.resource)
        if key not in self._allowed:
            self.asker(request, None)
            self._allowed[key] = 0.0
        return True

    monkeypatch.setattr(Doorkeeper, "is_allowed", is_allowed)
    with pytest.raises(AssertionError):
        await test_a_verdict_is_remembered_until_something_changes(RECORDS, b"v", "topic:orders=write", house)


# ---- those who wait

WAITS = {
    "long poll of a partition": "GET /v1/topics/orders/partitions/0/records?offset=latest&wait=60s",
    "long poll of offsets": "GET /v1/topics/orders/offsets?after=0:0&wait=60s",
    "receive": "POST /v1/topics/orders/groups/billing/receive",
    "receive, ordinary": "POST /v1/topics/orders/groups/billing/receive?timeout=5s",
}
RULES = ("topic:orders=read,describe", "group:orders/billing=consume,manage", "cluster=describe")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "JUDGE_SECONDS", 0.01)


async def until(happens: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not happens():
            await asyncio.sleep(0.005)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("title", WAITS)
@pytest.mark.parametrize("revoked", [True, False])
async def test_a_wait_ends_once_its_asker_may_no_longer(title: str, revoked: bool, house: House) -> None:
    """With its problem, and soon. A change that leaves it its permission ends nothing."""
    access = house.access
    headers = credential(access.give("mine", *RULES))
    body = b'{"wait": "60s"}' if title.startswith("receive") else b""
    headers += [JSON] if body else []
    wire, gate = await Wire.open(house.agent.port), house.agent.runner.context.gate
    asked = asyncio.create_task(wire.ask(WAITS[title], headers, body))
    await until(lambda: gate.waits == 1 or asked.done())
    access.change("mine", *RULES, "topic:others=read")
    access.asked = 0
    await until(lambda: access.asked > 1)
    assert not asked.done()
    if revoked:
        access.revoke("mine")
    else:
        access.change("mine")
    async with asyncio.timeout(PATIENCE_S):
        reply = await asked
    assert reply.status == (401 if revoked else 403)
    assert reply.document["code"] == ("unauthenticated" if revoked else "forbidden")
    assert reply.document["definite"] is not title.startswith("receive")
    assert gate.waits == 0
    assert (await wire.ask("GET /livez")).status == 200
    wire.close()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "line",
    [
        "GET /v1/topics/orders/partitions/0/records",
        "GET /v1/topics/orders/records",
        "GET /v1/tables/rows",
        "GET /v1/events",
    ],
)
async def test_a_stream_ends_with_a_problem(line: str, house: House) -> None:
    """Its status was sent long ago."""
    headers = credential(house.access.give("mine", "topic:orders=read", "topic:rows=read"))
    wire = await Wire.open(house.agent.port)
    assert (await wire.ask(line, [("Accept", "text/event-stream"), *headers])).status == 200
    house.access.revoke("mine")
    received = b""
    async with asyncio.timeout(PATIENCE_S):
        while b"0\r\n\r\n" not in received:
            received += await wire.read()
    assert b"event: problem" in received
    assert b'"code":"unauthenticated"' in received
    wire.close()


@pytest.mark.usefixtures("impatient")
async def test_a_wait_ends_with_its_credential(house: House) -> None:
    """Though nobody changed anything."""
    expires_ms = int(time.time() * 1000) + 400
    headers = credential(house.access.give("short", *RULES, expires_ms=expires_ms))
    wire = await Wire.open(house.agent.port)
    async with asyncio.timeout(PATIENCE_S):
        reply = await wire.ask(WAITS["long poll of offsets"], headers)
    assert reply.status == 401
    wire.close()


async def test_nobody_is_judged_again_where_nobody_is_asked() -> None:
    """An open agent has no clock for it."""
    cluster = FakeCluster()
    async with running(cluster.add("one")) as agent:
        cluster.create("orders")
        wire = await Wire.open(agent.port)
        asked = asyncio.create_task(wire.ask(WAITS["long poll of offsets"]))
        await until(lambda: agent.runner.context.gate.waits == 1)
        assert agent.runner.context.waits._judging is None
        wire.close()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await asked


# ---- lists


async def told(house: House, path: str, *rules: str) -> dict[str, object]:
    wire = await Wire.open(house.agent.port)
    reply = await wire.ask(f"GET {path}", credential(house.access.give("mine", *rules)))
    wire.close()
    assert reply.status == 200, reply
    document: dict[str, object] = reply.document
    return document


async def test_lists_show_what_may_be_described(house: House) -> None:
    """Topics, routes and what members hold; pages have no holes."""
    one, all_topics = "topic:orders=describe", "topic:*=describe"
    topics = await told(house, "/v1/topics?limit=1", one)
    assert [item["name"] for item in topics["topics"]] == ["orders"]  # type: ignore[attr-defined]
    assert "next_cursor" not in topics
    assert (await told(house, "/v1/topics"))["topics"] == []
    assert len((await told(house, "/v1/topics", all_topics))["topics"]) == 3  # type: ignore[arg-type]
    assert set((await told(house, "/v1/routes", one))["topics"]) == {"orders"}  # type: ignore[call-overload]
    assert set((await told(house, "/v1/routes", all_topics))["topics"]) == {"orders", "others", "rows"}  # type: ignore[call-overload]
    assert (await told(house, "/v1/routes"))["topics"] == {}
    assert (await told(house, "/v1/members"))["members"] == []
    (member,) = (await told(house, "/v1/members", "topic:x=write"))["members"]  # type: ignore[misc]
    assert member["url"] == house.agent.broker.url
    assert member["tags"] == {}
    (member,) = (await told(house, "/v1/members", "cluster=describe"))["members"]  # type: ignore[misc]
    assert member["tags"] == {"zone": "one"}


async def test_routes_of_one_topic_need_its_description(house: House) -> None:
    """Whether it is there or not."""
    wire = await Wire.open(house.agent.port)
    headers = credential(house.access.give("mine", "topic:orders=describe"))
    assert (await wire.ask("GET /v1/routes?topic=orders", headers)).status == 200
    refused = [await wire.ask(f"GET /v1/routes?topic={name}", headers) for name in ("others", "none")]
    assert [reply.status for reply in refused] == [403, 403]
    assert [reply.document["resource"] for reply in refused] == ["topic:others", "topic:none"]
    wire.close()


async def test_events_and_metrics_leave_out_hidden_topics(house: House) -> None:
    """Events about no topic are the cluster's."""
    feed = house.agent.broker.events
    headers = credential(house.access.give("mine", "topic:orders=describe"))
    wire = await Wire.open(house.agent.port)
    assert (await wire.ask("GET /v1/events", headers)).status == 200
    feed.publish("leader-changed", {"topic": "others", "partition": 0})
    feed.publish("member-failed", {"member": {"name": "herring"}})
    feed.publish("leader-changed", {"topic": "orders", "partition": 0})
    received = b""
    async with asyncio.timeout(PATIENCE_S):
        while b"orders" not in received:
            received += await wire.read()
    assert b"others" not in received
    assert b"herring" not in received
    wire.close()
    house.agent.broker.scraped_partitions = 2
    shown = {}
    for rules in (("cluster=describe",), ("cluster=describe", "topic:t=describe")):
        wire = await Wire.open(house.agent.port)
        headers = credential(house.access.give("scraper", *rules))
        shown[len(rules)] = await wire.ask("GET /metrics?partitions=true", headers)
        wire.close()
    assert b'topic="t"' not in shown[1].body
    assert shown[2].body.count(b'topic="t"') == 2
    assert b"shoal_build_info" in shown[1].body


async def test_an_open_route_tells_strangers_little(house: House) -> None:
    """Whether the agent is ready, and where the description is."""
    wire = await Wire.open(house.agent.port)
    viewer = credential(house.access.give("viewer", "cluster=describe"))
    assert "agent" not in (await wire.ask("GET /")).document
    assert (await wire.ask("GET /", viewer)).document["agent"] == "one"
    assert (await wire.ask("GET /readyz")).status == 200
    assert (await wire.ask("GET /readyz?verbose")).status == 401
    assert (await wire.ask("GET /readyz?verbose", viewer)).document["checks"]
    house.agent.broker.ready = False
    assert "checks" not in (await wire.ask("GET /readyz")).document
    assert (await wire.ask("GET /readyz", viewer)).document["checks"]
    assert (await wire.ask("GET /livez", credential("Bearer unknown"))).status == 200
    wire.close()


async def test_an_agent_that_knows_no_principals_yet_says_so(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither yes nor no: the same request may succeed later, or elsewhere. Open routes stay open."""
    headers = credential(house.access.give("mine", "topic:orders=write"))

    def not_yet(*_: object) -> NoReturn:
        raise ShoalError("not-ready", "this agent does not know the principals of its cluster yet")

    monkeypatch.setattr(MemoryAccess, "may", not_yet)
    wire = await Wire.open(house.agent.port)
    assert (await wire.ask(RECORDS, headers, b"v")).document["code"] == "not-ready"
    monkeypatch.setattr(MemoryAccess, "identify", not_yet)
    assert (await wire.ask(RECORDS, headers, b"v")).document["code"] == "not-ready"
    for path in ("/", "/livez", "/readyz"):
        assert (await wire.ask(f"GET {path}", headers)).status == 200
    wire.close()


async def test_an_agent_is_introduced_without_credentials_where_none_can_be_shown(house: House) -> None:
    """An empty agent has to hear of its cluster; without TLS it has nothing to prove itself by."""
    wire = await Wire.open(house.agent.port)
    viewer = credential(house.access.give("viewer", "cluster=describe"))
    bare = credential(house.access.give("bare"))
    assert set((await wire.ask("GET /v1/agent")).document) == {"id"}
    assert set((await wire.ask("GET /v1/agent", bare)).document) == {"id"}
    assert (await wire.ask("GET /v1/agent", viewer)).document["disk"] == "memory"
    assert (await wire.ask("GET /v1/agent", credential("Bearer unknown"))).status == 401
    wire.close()


async def test_producing_makes_a_topic_for_those_alone_who_may(house: House) -> None:
    """As does seeking only tell its ends to those who may describe it."""
    headers = credential(house.access.give("mine", "topic:new=write"))
    wire = await Wire.open(house.agent.port)
    refused = await wire.ask("POST /v1/topics/new/records", headers, b"v")
    assert (refused.status, refused.document["action"]) == (403, "create")
    assert "new" not in house.cluster.topics
    house.access.change("mine", "topic:new=write,create")
    assert (await wire.ask("POST /v1/topics/new/records", headers, b"v")).status == 200
    house.access.change("mine", "group:orders/billing=manage")
    for path in ("groups/billing/seek", "partitions/0/groups/billing/seek"):
        line = f"POST /v1/topics/orders/{path}"
        refused = await wire.ask(line, [JSON, *headers], b'{"to": "earliest"}')
        assert (refused.status, refused.document["action"]) == (403, "describe")
        assert (await wire.ask(line, [JSON, *headers], b'{"to": "latest"}')).status == 404
    wire.close()


# ---- forwards


class Pair(NamedTuple):
    first: Agent
    second: Agent
    of_first: MemoryAccess
    of_second: MemoryAccess


@asynccontextmanager
async def pair(*, proven: bool) -> AsyncIterator[tuple[Pair, list[PeerCertificate | None]]]:
    """Two agents; the second leads `orders`. `proven`: as over TLS, where the second is asked by an agent and
    the first by whom the list says."""
    cluster, of_first, of_second = FakeCluster(), MemoryAccess(), MemoryAccess()
    asker: list[PeerCertificate | None] = [None]
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(
            running(cluster.add("one"), None, of_first, (lambda: asker[0]) if proven else None)
        )
        second = await stack.enter_async_context(
            running(cluster.add("two"), None, of_second, (lambda: AGENT) if proven else None)
        )
        cluster.create("orders", leader=second.broker.agent_id)
        yield Pair(first, second, of_first, of_second), asker


@pytest.mark.parametrize("proven", [True, False])
async def test_a_leader_judges_for_itself(proven: bool) -> None:
    """By the client's own token, whatever the forwarder thinks of it. The forwarder's certificate is no
    permission of the client."""
    async with pair(proven=proven) as (agents, _):
        rules = ("topic:orders=write,read,create", "group:orders/billing=consume")
        headers = credential(agents.of_first.give("mine", *rules))
        wire = await Wire.open(agents.first.port)
        lines = ((RECORDS, b"v"), ("GET /v1/topics/orders/partitions/0/records", b""),
                 ("POST /v1/topics/orders/groups/billing/receive", b"{}"))  # fmt: skip
        for line, body in lines:
            sent = [*headers, *([JSON] if body == b"{}" else [])]
            assert (await wire.ask(line, sent, body)).status == 401, line
        agents.of_second.give("mine", "topic:others=write")
        for line, body in lines:
            sent = [*headers, *([JSON] if body == b"{}" else [])]
            assert (await wire.ask(line, sent, body)).status == 403, line
        assert agents.first.broker.cluster.stored() == 0
        agents.of_second.change("mine", *rules)
        for line, body in lines:
            sent = [*headers, *([JSON] if body == b"{}" else [])]
            assert (await wire.ask(line, sent, body)).status == 200, line
        wire.close()


async def test_a_client_known_by_certificate_is_named_to_the_leader() -> None:
    """The leader believes the forwarder's certificate, and judges its client."""
    async with pair(proven=True) as (agents, asker):
        asker[0] = CLIENT
        agents.of_first.give("known", "topic:orders=write")
        wire = await Wire.open(agents.first.port)
        assert (await wire.ask(RECORDS, (), b"v")).status == 403
        agents.of_second.give("known", "topic:orders=write")
        assert (await wire.ask(RECORDS, (), b"v")).status == 200
        wire.close()


async def test_a_forwarder_asks_for_nobody_on_its_own_account() -> None:
    """Where the anonymous may write at one agent, the other judges the anonymous, too."""
    async with pair(proven=True) as (agents, _):
        agents.of_first.rules["anonymous"] = ("topic:orders=write",)
        wire = await Wire.open(agents.first.port)
        assert (await wire.ask(RECORDS, (), b"v")).status == 401
        agents.of_second.rules["anonymous"] = ("topic:orders=write",)
        assert (await wire.ask(RECORDS, (), b"v")).status == 200
        wire.close()


async def test_an_agents_own_certificate_is_told_whom_to_ask() -> None:
    """A forwarder's certificate is not its client's, so that nothing is passed on: the answer names the
    leader, which takes the same request."""
    async with pair(proven=True) as (agents, asker):
        agents.first.broker.cluster.catalog_leader_id = agents.second.broker.agent_id
        asker[0] = AGENT
        lines = (("DELETE /v1/topics/orders", b""), ("POST /v1/principals/ann/tokens", b""))
        wire, leading = [await Wire.open(agent.port) for agent in (agents.first, agents.second)]
        for line, body in lines:
            refused = await wire.ask(line, (), body)
            assert refused.status == 403, line
            assert f"at {agents.second.broker.url}, which leads the catalog" in refused.body.decode()
            assert (await leading.ask(line, (), body)).status not in (401, 403), line
        for one in (wire, leading):
            one.close()


# ---- bad input


@pytest.mark.parametrize("size", [4_097, 8_192, 12_000])
async def test_a_long_credential_is_refused_before_it_is_read(size: int, house: House) -> None:
    """In bounded time and memory: nobody looks into it, and nothing of it is remembered."""
    wire = await Wire.open(house.agent.port)
    house.access.asked = 0
    reply = await wire.ask(RECORDS, credential("Bearer " + "x" * size), b"v")
    assert reply.status in (401, 413)
    assert "xxx" not in reply.head + reply.body.decode()
    assert house.access.asked == 0
    assert house.agent.runner.context.doorkeeper._allowed == {}
    wire.close()


@given(st.text(st.characters(max_codepoint=0x2FF), max_size=80), st.booleans())
def test_no_header_of_any_kind_is_a_credential(text: str, as_token: bool) -> None:
    """Of the real judge, which knows no token: 401, and no other error."""
    request = FastRequestLike(f"Bearer shoal_{text}" if as_token else text)
    keeper = Doorkeeper(Judge(Security))
    assert keeper.is_allowed(request, None) is False
    with pytest.raises(ShoalError) as refused:
        keeper.asker(request, None)
    assert refused.value.code == "unauthenticated"


class FastRequestLike(NamedTuple):
    authorization: str
    operation: str = "produce"
    needs: Needs = TOPIC_WRITE
    resource: str = "orders"
