"""What both kinds of gossip must do alike: our own, and a Serf agent through its RPC.

Law of this file: it takes a factory of nodes and knows nothing of how they gossip. Times are bounds, not
expectations: a Serf agent tells of members seconds after our own gossip does.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable

import pytest

from shoal.membership.interface import Gossip, JoinError, MemberEvent, PoolEvent, PoolQuery, QueryError
from shoal.membership.serf.own_queries import QueryRequest

LIMIT_S = 90.0  # a member that missed the news hears it by the next push/pull, after 15 s


class Node(ABC):
    """One member of the pool under test, and all that it heard."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.gossip: Gossip
        self.events: list[tuple[str, str]] = []
        self.user_events: list[PoolEvent] = []

    def on_event(self, event: MemberEvent) -> None:
        self.events.append((event.kind, event.member.name))

    def on_query(self, query: PoolQuery) -> bytes | None:
        """Answers everything but what is called "secret"."""
        return None if query.name == "secret" else f"{self.name} heard {query.payload.decode()}".encode()

    @abstractmethod
    async def crash(self) -> None:
        """End without a word, with everything that gossips for it."""

    @abstractmethod
    async def restart(self) -> None:
        """Come back under the same name and address, with the tags of the beginning."""

    @property
    def own_address(self) -> tuple[str, int]:
        return (self.gossip.address, self.gossip.port)

    def statuses(self) -> dict[str, str]:
        return {member.name: member.status for member in self.gossip.members()}

    def tags_of(self, name: str) -> dict[str, str]:
        return next((dict(member.tags) for member in self.gossip.members() if member.name == name), {})

    async def shows(self, name: str, *statuses: str) -> None:
        """Wait until it does."""
        await eventually(lambda: self.statuses().get(name) in statuses, f"{self.name}: {name} is {statuses}")

    async def hears(self, *events: tuple[str, str]) -> None:
        """Wait until it does: the list is new some turns of the loop before its events are told."""
        await eventually(lambda: set(events) <= set(self.events), f"{self.name} hears {events}")


class Pool(ABC):
    """Starts nodes, and ends all of them at the end of the test."""

    @abstractmethod
    async def start(self, name: str, **tags: str) -> Node: ...

    async def pool_of(self, *names: str) -> list[Node]:
        """Nodes that have joined through the first and see each other."""
        nodes = [await self.start(name, role=name) for name in names]
        for node in nodes[1:]:
            assert await node.gossip.join([nodes[0].own_address]) == 1
        for node in nodes:
            for name in names:
                await node.shows(name, "alive")
        return nodes


async def eventually(condition: Callable[[], bool], what: str) -> None:
    try:
        async with asyncio.timeout(LIMIT_S):
            while not condition():
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not in {LIMIT_S} s: {what}") from None


class GossipSuite:
    """Inherit with a fixture `pool` that makes a Pool."""

    async def test_members_tags_events_and_queries(self, pool: Pool) -> None:
        """Lists with addresses and tags, changed tags, user events once for all, answers of all."""
        one, two = await pool.pool_of("one", "two")
        assert one.gossip.local_name == "one"
        by_name = {member.name: member for member in one.gossip.members()}
        assert (by_name["two"].address, by_name["two"].port) == two.own_address
        assert one.tags_of("two")["role"] == "two"
        await one.hears(("joined", "two"))
        assert one.gossip.version >= 2

        version = one.gossip.version
        two.gossip.set_tags({"role": "new", "über": "ß"})
        await eventually(lambda: one.tags_of("two").get("über") == "ß", "the tags change")
        assert one.tags_of("two")["role"] == "new"
        await eventually(lambda: ("updated", "two") in one.events, "and one hears of it")
        assert one.gossip.version > version
        with pytest.raises(ValueError, match="512"):
            two.gossip.set_tags({"role": "x" * 600})

        one.gossip.send_user_event("deploy", b"\x00\xff")
        one.gossip.send_user_event("empty", b"")
        for node in (one, two):
            await eventually(lambda node=node: len(node.user_events) == 2, "both events arrive")  # type: ignore[misc]
            heard = {(event.name, event.payload) for event in node.user_events}
            assert heard == {("deploy", b"\x00\xff"), ("empty", b"")}
        with pytest.raises(ValueError, match="512"):
            one.gossip.send_user_event("e", bytes(600))

        request = QueryRequest("load", b"you", want_acks=True, timeout_ms=5_000)
        result = await one.gossip.query(request, enough=["one", "two"])
        assert result.answers == {"one": b"one heard you", "two": b"two heard you"}
        # Nobody answers, so each of these takes its whole time.
        for timeout_ms in (500, 2_000, 8_000):
            request = QueryRequest("secret", nodes=("two",), want_acks=True, timeout_ms=timeout_ms)
            result = await one.gossip.query(request)
            assert result.answers == {}
            if result.acknowledged:
                break
        assert result.acknowledged == {"two"}
        with pytest.raises(QueryError):
            await one.gossip.query(QueryRequest("q", bytes(2_000)))
        assert len(one.user_events) == len(two.user_events) == 2

    async def test_join_reports_who_answered(self, pool: Pool) -> None:
        """Nobody there is an error; our own address is nobody to ask; of two addresses one is enough."""
        one, two = await pool.start("one"), await pool.start("two")
        with pytest.raises(JoinError):
            await one.gossip.join([("127.0.0.1", 1)])
        assert await one.gossip.join([one.own_address]) == 0
        assert await one.gossip.join([("127.0.0.1", 1), two.own_address]) == 1
        await two.shows("one", "alive")
        with pytest.raises(KeyError):
            one.gossip.force_leave("nobody")

    async def test_fail_recover_force_leave_and_leave(self, pool: Pool) -> None:
        """A graceful leave is `left` and never `failed`, a crash is `failed`, a force-leave makes `left` of
        that, and a return under the same name is heard of."""
        one, two, three = await pool.pool_of("one", "two", "three")
        await two.crash()
        await three.gossip.leave()
        await one.shows("three", "left")
        assert ("failed", "three") not in one.events
        await one.shows("two", "failed")
        await one.hears(("failed", "two"), ("left", "three"))
        assert ("failed", "three") not in one.events
        one.gossip.force_leave("two")
        await one.shows("two", "left")
        one.events.clear()
        await two.restart()
        await two.gossip.join([one.own_address])
        await one.shows("two", "alive")
        await one.hears(("joined", "two"))
        assert one.tags_of("two")["role"] == "two"
