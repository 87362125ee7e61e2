"""GET /v1/events: what is told, from where a stream resumes, and what becomes of slow listeners."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from http_fixtures import Agent, one_agent

from shoal.agent.durable.ids import CATALOG_GROUP, GroupId
from shoal.agent.events.change_counter import Watch
from shoal.agent.events.feed import EventFeed, TooManyListenersError
from shoal.agent.http.admission.limits import HttpLimits
from shoal.agent.log_lines.cluster_news import LEADERLESS_MS
from shoal.agent.log_lines.names import Names
from shoal.agent.routing.table import Claim, Delta, RouteTable
from shoal.agent.service.event_sources import EventSources
from shoal.agent.topics.catalog import Catalog
from shoal.membership.interface import Member, MemberEvent

# ---- the feed


def test_numbers_ids_and_places() -> None:
    """Ids of this run up to the newest number are places; everything else is none."""
    feed = EventFeed("run", history_max=3)
    assert (feed.number, feed.oldest) == (0, 1)
    for number in range(5):
        feed.publish("k", {"n": number})
    assert (feed.number, feed.oldest) == (5, 3)
    assert [event.number for event in feed.after(3)] == [4, 5]
    assert [event.number for event in feed.after(0)] == [3, 4, 5]
    assert feed.after(5) == []
    assert feed.place_after(feed.event_id(4)) == 4
    for bad in (None, "", "run", "run.", "run.-1", "run.6", "other.4", "run.x", "run." + "9" * 40, "run.²"):
        assert feed.place_after(bad) is None


async def test_a_listener_hears_what_comes_and_is_overrun_when_it_sleeps() -> None:
    """In order, each event once; once the history is past its place it hears nothing but that."""
    feed = EventFeed("run", history_max=4, listeners_max=1)
    feed.publish("before", {})
    listener = feed.listen(feed.number)
    with pytest.raises(TooManyListenersError):
        feed.listen(0)
    assert await listener.take(0.01) == []
    waiting = asyncio.create_task(listener.take(5))
    await asyncio.sleep(0)
    feed.publish("a", {})
    feed.publish("b", {})
    assert [event.kind for event in await waiting] == ["a", "b"]
    for _ in range(4):
        feed.publish("c", {})
    assert not listener.is_overrun
    feed.publish("d", {})
    assert listener.is_overrun
    assert await listener.take(5) == []
    listener.close()
    assert not feed.listeners


# ---- what is told


class FakeRoster:
    """A member list of one's own."""

    cluster = "fish"
    cluster_id = b"i" * 16
    agent_id = "c"

    def __init__(self) -> None:
        self.live = frozenset({"a", "b", "c"})

    def live_agents(self) -> frozenset[str]:
        return self.live

    def urls(self) -> dict[str, str]:
        return {name: f"http://{name}" for name in "abc"}


TOPIC = b"t" * 16
CATALOG: Any = SimpleNamespace(
    by_id=lambda topic_id: SimpleNamespace(name="orders") if topic_id == TOPIC else None
)


def sources(now_ms: Callable[[], int] = lambda: 0) -> tuple[EventFeed, FakeRoster, EventSources, RouteTable]:
    feed, roster = EventFeed("run"), FakeRoster()
    made: Any = roster
    return feed, roster, EventSources(feed, made, Watch("run"), now_ms), RouteTable()


def told(feed: EventFeed) -> list[tuple[str, dict[str, Any]]]:
    """Everything since the beginning."""
    return [(event.kind, dict(event.data)) for event in feed.after(0)]


def member(status: str = "alive", name: str = "a", **tags: str) -> Member:
    first = {"cl": "fish", "cid": (b"i" * 16).hex(), "url": "http://10.0.0.1:7070", "name": "ann"}
    return Member(name, "10.0.0.1", 7946, first | tags, status, 1, 0)


def claims(agent: str, number: int, *, role: str, term: int, leader: str | None, group: GroupId) -> Delta:
    claim = Claim(group, role, term, 1, leader, ("a", "b", "c"))
    return Delta(agent, "r", number - 1, number, number, False, ((group, claim),))


def test_a_voter_that_said_nothing_before_it_died_is_missed() -> None:
    """The leader's claim names it."""
    _, roster, told_by, routes = sources()
    group = GroupId(TOPIC, 0)
    routes.apply(claims("c", 1, role="leader", term=1, leader="c", group=group))
    told_by.look(routes, CATALOG)
    assert told_by.news.under_replicated == 0
    roster.live = frozenset({"b", "c"})
    told_by.look(routes, CATALOG)
    assert told_by.news.under_replicated == 1
    roster.live = frozenset({"a", "b", "c"})
    told_by.look(routes, CATALOG)
    assert told_by.news.under_replicated == 0


def test_members_are_told_but_not_their_progress() -> None:
    """Joined, suspected, back, failed; tags that gossip changes every second are no event, others are; other
    clusters and contested names are nobody's business here."""
    feed, _, told_by, _ = sources()
    for kind, shown in (
        ("joined", member()),
        ("updated", member(pv="0.7", cv="3", nt="1")),
        ("updated", dataclasses.replace(member(pv="0.8"), incarnation=9)),
        ("updated", member(rack="r1")),
        ("suspected", member("suspect", rack="r1")),
        ("updated", member(rack="r1")),
        ("conflict", member()),
        ("failed", member("failed", rack="r1")),
        ("joined", member(name="x", cl="fowl")),
        ("joined", member(name="y", cid="00" * 16)),
        ("reaped", member("failed", rack="r1")),
    ):
        told_by.on_member_event(MemberEvent(kind, shown))
    kinds = [kind for kind, _ in told(feed)]
    assert kinds == ["joined", "updated", "suspected", "updated", "failed", "forgotten"]
    first = told(feed)[0][1]["member"]
    assert (first["id"], first["name"], first["status"], first["url"]) == (
        "a",
        "ann",
        "alive",
        "http://10.0.0.1:7070",
    )
    assert "partitions" not in first


def test_leaders_and_replicas_are_told_once_each() -> None:
    """First seen, moved by a new term, lost with its member, found again; offsets are no event."""
    feed, roster, told_by, routes = sources()
    group = GroupId(TOPIC, 0)
    routes.apply(claims("a", 1, role="leader", term=1, leader="a", group=group))
    told_by.look(routes, CATALOG)
    told_by.look(routes, CATALOG)
    expected = {"topic": "orders", "partition": 0, "term": 1}
    assert told(feed) == [
        ("placement-changed", {**expected, "voters": ["a", "b", "c"], "learners": []}),
        ("leader-changed", {**expected, "leader": "a", "leader_url": "http://a", "previous_leader": None}),
    ]
    roster.live = frozenset({"b", "c"})
    told_by.look(routes, CATALOG)
    assert told(feed)[2:] == [
        ("leader-changed", {**expected, "leader": None, "leader_url": None, "previous_leader": "a"})
    ]
    routes.apply(claims("b", 1, role="leader", term=2, leader="b", group=group))
    told_by.look(routes, CATALOG)
    assert [event[1]["leader"] for event in told(feed)[3:]] == ["b"]
    newer = dataclasses.replace(
        claims("b", 2, role="leader", term=2, leader="b", group=group).changes[0][1], high_watermark=9
    )  # type: ignore[type-var]
    routes.apply(Delta("b", "r", 1, 2, 1, False, ((group, newer),)))
    told_by.look(routes, CATALOG)
    assert len(told(feed)) == 4


def test_claims_that_come_before_their_topic_are_told_with_its_name() -> None:
    """Claims travel faster than the catalog; a partition that is gone is told as without a leader."""
    feed, _, told_by, routes = sources()
    group = GroupId(TOPIC, 3)
    routes.apply(claims("a", 1, role="leader", term=1, leader="a", group=group))
    routes.apply(claims("b", 1, role="leader", term=4, leader="b", group=CATALOG_GROUP))
    told_by.look(routes, Catalog())
    assert {event[1]["topic"] for event in told(feed)} == {"_catalog"}
    told_by.look(routes, CATALOG)
    assert [event[1]["topic"] for event in told(feed)[2:]] == ["orders", "orders"]
    routes.forget("a")
    told_by.look(routes, CATALOG)
    gone = told(feed)[4:]
    assert [(kind, event.get("voters"), event.get("leader")) for kind, event in gone] == [
        ("placement-changed", [], None),
        ("leader-changed", None, None),
    ]


# ---- the stream


@asynccontextmanager
async def stream(agent: Agent, last: str | None = None) -> AsyncIterator[Any]:
    """An async iterator of (id, kind, data)."""
    headers = {} if last is None else {"Last-Event-ID": last}
    url = f"http://127.0.0.1:{agent.port}/v1/events"
    async with agent.session.get(url, headers=headers, timeout=aiohttp.ClientTimeout(total=30)) as response:
        assert response.status == 200
        assert response.headers["Content-Type"].startswith("text/event-stream")
        yield events_of(response)


async def events_of(response: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, str, Any]]:
    fields: dict[str, str] = {}
    async for raw in response.content:
        line = raw.decode().rstrip("\n")
        if line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value
        elif fields:
            yield fields["id"], fields["event"], json.loads(fields["data"])
            fields = {}


async def test_a_stream_resumes_where_it_ended() -> None:
    """The id of `listening`, or of the last event, leads to exactly what came after it."""
    async with one_agent() as agent:
        feed = agent.broker.events
        feed.publish("joined", {"n": 1})
        async with stream(agent) as events:
            assert await anext(events) == ("fake.1", "listening", {"missed": False})
            feed.publish("failed", {"n": 2})
            assert await anext(events) == ("fake.2", "failed", {"n": 2})
        feed.publish("left", {"n": 3})
        feed.publish("joined", {"n": 4})
        async with stream(agent, "fake.2") as events:
            assert await anext(events) == ("fake.2", "listening", {"missed": False})
            assert [(await anext(events))[2]["n"] for _ in range(2)] == [3, 4]
        async with stream(agent, "another-run.2") as events:
            assert await anext(events) == ("fake.4", "listening", {"missed": True})


async def test_a_listener_that_is_overrun_is_dropped_with_a_last_word() -> None:
    """Whether it came too late or read too slowly: `dropped`, then the end; the agent holds no more for it
    than before."""
    async with one_agent() as agent:
        feed = agent.broker.events
        first = feed.event_id(feed.number)
        for number in range(2_100):
            feed.publish("joined", {"n": number})
        async with stream(agent, first) as events:
            assert (await anext(events))[1] == "listening"
            assert (await anext(events))[1] == "dropped"
            with pytest.raises(StopAsyncIteration):
                await anext(events)
        async with stream(agent) as events:
            assert (await anext(events))[1] == "listening"
            for number in range(40_000):  # far more than sockets hold, and than the history keeps
                feed.publish("joined", {"n": number, "padding": "x" * 1_000})
                if number % 64 == 0:
                    await asyncio.sleep(0)
            kinds = [kind async for _, kind, _ in events]
        assert kinds[-1] == "dropped"
        assert len(kinds) < 40_000
        assert not feed.listeners


async def test_a_listener_that_takes_nothing_is_cut_off() -> None:
    """Its bytes stay in the socket's buffers; the time for that is bounded."""
    async with one_agent(HttpLimits(send_stall_ms=300)) as agent:
        feed = agent.broker.events
        reader, writer = await asyncio.open_connection("127.0.0.1", agent.port, limit=1_024)
        writer.write(b"GET /v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        await reader.readline()
        async with asyncio.timeout(20):
            while feed.listeners:
                for _ in range(200):
                    feed.publish("joined", {"padding": "x" * 10_000})
                await asyncio.sleep(0.01)
        writer.close()


async def test_streams_are_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """One too many is 429; a place is free again once a stream has ended."""
    async with one_agent() as agent:
        monkeypatch.setattr(agent.broker, "events", EventFeed("fake", listeners_max=1))
        async with stream(agent) as events:
            await anext(events)
            (await agent.get("/v1/events")).problem("overloaded")
            assert (await agent.get("/livez")).status == 200


async def test_a_stopping_agent_says_so() -> None:
    """`stopping`, then the end; nobody waits for a stream."""
    async with one_agent() as agent, stream(agent) as events:
        await anext(events)
        agent.runner.context.waits.stop()
        assert (await anext(events))[1] == "stopping"
        with pytest.raises(StopAsyncIteration):
            await anext(events)


async def test_silence_is_broken_by_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a broken connection can be told from a quiet cluster."""
    monkeypatch.setattr("shoal.agent.http.admin.events.KEEP_ALIVE_S", 0.02)
    async with one_agent() as agent:
        reader, writer = await asyncio.open_connection("127.0.0.1", agent.port)
        writer.write(b"GET /v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        async with asyncio.timeout(40):
            await reader.readuntil(b": still here")
        writer.close()


async def test_head_and_nonsense() -> None:
    """HEAD has no stream to read; a parameter that nothing takes is refused by name."""
    async with one_agent() as agent:
        head = await agent.request("HEAD", "/v1/events")
        assert (head.status, head.body) == (200, b"")
        assert not agent.broker.events.listeners
        (await agent.get("/v1/events?topic=t")).problem("bad-request")


# ---- what the log says of it


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines since the last look."""
    found = [record.message for record in caplog.records]
    caplog.clear()
    return found


def test_what_happens_to_members_and_partitions_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """At the agent that leads the partition then; the events have fields for programs."""
    caplog.set_level(logging.INFO)
    names = Names()
    for letter, name in zip("abc", ("ann", "bob", "cid"), strict=True):
        names.learn_agent(letter, name)
    _, roster, told_by, routes = sources()
    group = GroupId(TOPIC, 3)

    def look() -> list[str]:
        told_by.look(routes, CATALOG)
        told_by.log_what_is_due()
        return logged(caplog)

    with names.in_use():
        told_by.on_member_event(MemberEvent("joined", member()))
        told_by.on_member_event(MemberEvent("joined", member(name="c")))  # this agent itself
        routes.apply(claims("a", 1, role="leader", term=1, leader="a", group=group))
        assert look() == ["agent joined: ann"]
        told_by.on_member_event(MemberEvent("failed", member("failed")))
        roster.live = frozenset("bc")
        assert look() == ["agent failed: ann; restart it with the same --data"]
        routes.apply(claims("c", 1, role="leader", term=2, leader="c", group=group))
        told_by.look(routes, CATALOG)
        told_by.log_what_is_due()
        fields = [(vars(record)["event"], vars(record)["total"]) for record in caplog.records]
        assert fields == [("leadership-gained", 1), ("partition-under-replicated", 1)]
        where = [(vars(r)["topic"], vars(r)["partition"], vars(r).get("term")) for r in caplog.records]
        assert where == [("orders", 3, 2), ("orders", 3, None)]
        assert logged(caplog) == ["leadership gained: orders/3", "under-replicated: orders/3 (missing: ann)"]
        told_by.on_member_event(MemberEvent("joined", member()))
        roster.live = frozenset("abc")
        assert look() == ["agent is back: ann", "fully replicated again: orders/3"]


@pytest.mark.parametrize("voters", [("a",), ("a", "b"), ("b", "c")])
def test_that_nobody_leads_is_told_by_voters_and_by_all_where_these_are_gone(
    voters: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """This agent is c; a is gone, and was the only one, or b votes as well and will tell."""
    caplog.set_level(logging.INFO)
    clock = [0]
    _, roster, told_by, routes = sources(lambda: clock[0])
    group = GroupId(TOPIC, 0)
    routes.apply(Delta("a", "r", 0, 1, 1, False, ((group, Claim(group, "leader", 1, 1, "a", voters)),)))
    told_by.look(routes, CATALOG)
    roster.live = frozenset("bc")
    told_by.look(routes, CATALOG)
    told_by.log_what_is_due()
    assert [said for said in logged(caplog) if "no leader" in said] == []
    clock[0] = LEADERLESS_MS
    told_by.log_what_is_due()
    expected = [] if voters == ("a", "b") else ["no leader for 5 s: orders/0"]
    assert [said.partition(";")[0] for said in logged(caplog)] == expected
