"""One pool with HashiCorp's Serf, a peer that nobody here wrote.

Facts learned here are written where they matter, in the docstrings of membership/.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from shoal.membership.config import GossipConfig
from shoal.membership.interface import PoolEvent
from shoal.membership.net.gossip import Membership
from shoal.membership.serf.own_queries import QueryRequest
from tests.serf.real_serf import SerfAgent

NAME = "ab" * 16
LIMIT_S = 90.0  # whoever missed a piece of gossip hears it by the next push/pull, after 15 s


@asynccontextmanager
async def mixed_pool(
    tmp_path: Path, *flags: str, **knobs: object
) -> AsyncIterator[tuple[SerfAgent, Membership, list[PoolEvent]]]:
    """A real agent "alpha" and one of ours that joined it."""
    agent = SerfAgent("alpha", tmp_path / "alpha.log", "-tag", "role=web", *flags)
    user_events: list[PoolEvent] = []
    config = GossipConfig.local(name=NAME, tags={"name": "ours", "url": "http://127.0.0.1:1"}, **knobs)
    member = Membership(
        config,
        rng=random.Random(1),
        on_event=lambda _: None,
        on_user_event=user_events.append,
        on_query=lambda query: f"{query.name} of ours: {query.payload.decode()}".encode(),
    )
    try:
        await member.start()
        await answers(lambda: member.join([("127.0.0.1", agent.port)]))
        yield agent, member, user_events
    finally:
        await member.stop()
        agent.kill()


async def answers(join: Callable[[], object]) -> None:
    """Repeat a join until the other side listens."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            try:
                await join()  # type: ignore[misc]
                return
            except OSError:
                await asyncio.sleep(0.1)


async def shows(member: Membership, name: str, status: str, timeout_s: float = LIMIT_S) -> None:
    """Wait until our list does."""
    async with asyncio.timeout(timeout_s):
        while not any((other.name, other.status) == (name, status) for other in member.members()):
            await asyncio.sleep(0.05)


async def test_join_tags_and_reachability(tmp_path: Path) -> None:
    """We join it: both lists agree, tags included, and its reachability test counts
    our acknowledgement."""
    async with mixed_pool(tmp_path) as (agent, member, _):
        await agent.shows(NAME, "alive", "url=http://127.0.0.1:1")
        await shows(member, "alpha", "alive")
        assert {other.name: dict(other.tags) for other in member.members()}["alpha"] == {"role": "web"}
        assert "Successfully contacted all live nodes" in await agent.ask("reachability")
        member.set_tags({"name": "ours", "pv": "8"})
        await agent.shows(NAME, "alive", "pv=8")
        await agent.ask("tags", "-set", "role=db")
        async with asyncio.timeout(LIMIT_S):
            while not any(other.tags.get("role") == "db" for other in member.members()):
                await asyncio.sleep(0.05)


async def test_it_joins_us(tmp_path: Path) -> None:
    """The push/pull with us as the responder."""
    config = GossipConfig.local(name=NAME)
    member = Membership(config, rng=random.Random(1), on_event=lambda _: None)
    await member.start()
    agent = SerfAgent("beta", tmp_path / "beta.log", join=member.port)
    try:
        await shows(member, "beta", "alive")
        await agent.shows(NAME, "alive")
    finally:
        await member.stop()
        agent.kill()


async def test_user_events_both_ways(tmp_path: Path) -> None:
    """Its event reaches us with name and payload; ours is accepted by it (its log names it)."""
    async with mixed_pool(tmp_path) as (agent, member, user_events):
        await agent.shows(NAME, "alive")
        await agent.ask("event", "deploy", "payload-1")
        async with asyncio.timeout(LIMIT_S):
            while not user_events:
                await asyncio.sleep(0.05)
        assert (user_events[0].name, user_events[0].payload) == ("deploy", b"payload-1")
        member.send_user_event("routes", b"v9")
        async with asyncio.timeout(LIMIT_S):
            while b"routes" not in (tmp_path / "alpha.log").read_bytes():
                await asyncio.sleep(0.1)


async def test_queries_both_ways(tmp_path: Path) -> None:
    """It asks and we answer, with a node and a tag filter and an acknowledgement; we ask and its handler
    answers, with a tag filter."""
    handler = "query:load=printf 0.5"
    async with mixed_pool(tmp_path, "-event-handler", handler) as (agent, member, _):
        await agent.shows(NAME, "alive")
        filters = [f"-node={NAME}", "-tag", "name=^ou.*$"]
        for seconds in (1, 5, 25):  # each takes its whole time
            said = await agent.ask(
                "query", f"-timeout={seconds}s", *filters, "-relay-factor=1", "uptime", "in days"
            )
            if "Response from" in said:
                break
        assert f"Ack from '{NAME}'" in said
        assert f"Response from '{NAME}': uptime of ours: in days" in said
        request = QueryRequest("load", tags={"role": "^w"}, want_acks=True, relay_factor=1, timeout_ms=60_000)
        result = await member.query(request, enough=["alpha"])
        assert result.answers == {"alpha": b"0.5"}
        assert result.acknowledged == {"alpha"}


async def hears_our_intent(agent: SerfAgent, member: Membership) -> None:
    """Wait until the agent's clock is beyond that of our join intent."""
    async with asyncio.timeout(LIMIT_S):
        while await agent.member_time() <= member._running().clocks.member:
            await asyncio.sleep(0.05)


async def test_force_leave_of_a_living_member_is_undone(tmp_path: Path) -> None:
    """We answer with a newer join intent. With us as its only peer the agent tells
    nobody: a push/pull brings it. (A force-leave before our join intent has arrived
    would carry its Lamport time: a tie, which nobody can undo.)"""
    async with mixed_pool(tmp_path, push_pull_interval_ms=1_000) as (agent, member, _):
        await agent.shows(NAME, "alive")
        await hears_our_intent(agent, member)
        await agent.ask("force-leave", NAME)
        await agent.shows(NAME, "alive")
    async with mixed_pool(tmp_path) as (agent, member, _):
        await hears_our_intent(agent, member)
        third = Membership(GossipConfig.local(name="third"), rng=random.Random(3), on_event=lambda _: None)
        await third.start()
        try:
            await answers(lambda: third.join([("127.0.0.1", agent.port)]))
            await agent.shows("third", "alive")
            await hears_our_intent(agent, third)
            await agent.ask("force-leave", NAME)
            await agent.shows(NAME, "alive")
        finally:
            await third.stop()


async def test_graceful_leave_both_ways_and_return(tmp_path: Path) -> None:
    """`left` and never `failed`; back under another port; and its own leave is `left` for us."""
    async with mixed_pool(tmp_path, leave_propagate_ms=200) as (agent, member, _):
        await agent.shows(NAME, "alive")
        await member.leave()
        await member.stop()
        await agent.shows(NAME, "left")
        again = Membership(GossipConfig.local(name=NAME), rng=random.Random(2), on_event=lambda _: None)
        await again.start()
        try:
            await answers(lambda: again.join([("127.0.0.1", agent.port)]))
            await agent.shows(NAME, "alive")
            await agent.ask("leave")
            await shows(again, "alpha", "left")
        finally:
            await again.stop()


async def test_a_killed_member_is_back_on_another_port(tmp_path: Path) -> None:
    """It says for its former life that this left, which a Serf agent believes as it believes every leave of
    memberlist's: its list has the new address, and its reachability test finds it there."""
    async with mixed_pool(tmp_path) as (agent, member, _):
        await agent.shows(NAME, "alive")
        await member.stop()  # without a word, as one that is killed
        config = GossipConfig.local(name=NAME, tags={"life": "2"})
        again = Membership(config, rng=random.Random(2), on_event=lambda _: None)
        await again.start()
        try:
            assert again.port != member.port
            await answers(lambda: again.join([("127.0.0.1", agent.port)]))
            await agent.shows(NAME, "alive", "life=2")
            assert "Successfully contacted all live nodes" in await agent.ask("reachability")
            assert agent.process.poll() is None
        finally:
            await again.stop()


async def test_our_answer_keeps_a_contested_agent_alive(tmp_path: Path) -> None:
    """A second "alpha" appears: both ask `_serf_conflict`, we vouch for the first,
    the second shuts down."""
    async with mixed_pool(tmp_path) as (agent, member, _):
        await agent.shows(NAME, "alive")
        impostor = SerfAgent("alpha", tmp_path / "impostor.log", join=member.port)
        try:
            async with asyncio.timeout(LIMIT_S):
                while impostor.process.poll() is None:
                    await asyncio.sleep(0.1)
            await asyncio.sleep(2)
            assert agent.process.poll() is None
            assert b"minority" in (tmp_path / "impostor.log").read_bytes()
        finally:
            impostor.kill()
