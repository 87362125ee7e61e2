"""One pool with HashiCorp's Serf, a peer that nobody here wrote.

Facts learned here are written where they matter, in the docstrings of membership/.
"""

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from shoal.membership.asking import QueryRequest
from shoal.membership.config import GossipConfig
from shoal.membership.gossip import Membership
from shoal.membership.interface import PoolEvent
from shoal.membership.wire.dialect import pack
from tests.serf.real_serf import SerfAgent

NAME = "ab" * 16


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
    async with asyncio.timeout(10):
        while True:
            try:
                await join()  # type: ignore[misc]
                return
            except OSError:
                await asyncio.sleep(0.1)


async def shows(member: Membership, name: str, status: str, timeout_s: float = 20) -> None:
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
        async with asyncio.timeout(10):
            while not any(other.tags.get("role") == "db" for other in member.members()):
                await asyncio.sleep(0.05)


async def test_it_joins_us(tmp_path: Path) -> None:
    """The push/pull with us as the responder."""
    config = GossipConfig.local(name=NAME)
    member = Membership(config, rng=random.Random(1), on_event=lambda _: None)
    await member.start()
    agent = SerfAgent("beta", tmp_path / "beta.log", f"-join=127.0.0.1:{member.port}")
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
        async with asyncio.timeout(5):
            while not user_events:
                await asyncio.sleep(0.05)
        assert (user_events[0].name, user_events[0].payload) == ("deploy", b"payload-1")
        member.send_user_event("routes", b"v9")
        async with asyncio.timeout(10):
            while b"routes" not in (tmp_path / "alpha.log").read_bytes():
                await asyncio.sleep(0.1)


async def test_queries_both_ways(tmp_path: Path) -> None:
    """It asks and we answer, with a node and a tag filter and an acknowledgement; we ask and its handler
    answers, with a tag filter."""
    handler = "query:load=printf 0.5"
    async with mixed_pool(tmp_path, "-event-handler", handler) as (agent, member, _):
        await agent.shows(NAME, "alive")
        said = await agent.ask(
            "query",
            "-timeout=2s",
            f"-node={NAME}",
            "-tag",
            "name=^ou[a-z]{2}$",
            "-relay-factor=1",
            "uptime",
            "in days",
        )
        assert f"Ack from '{NAME}'" in said
        assert f"Response from '{NAME}': uptime of ours: in days" in said
        request = QueryRequest("load", tags={"role": "^w"}, want_acks=True, relay_factor=1, timeout_ms=4_000)
        result = await member.query(request, enough=["alpha"])
        assert result.answers == {"alpha": b"0.5"}
        assert result.acknowledged == {"alpha"}


async def test_no_lie_told_to_us_crashes_it(tmp_path: Path) -> None:
    """A stranger tells us of nodes with versions of one to five bytes, on which a Serf agent that heard them
    would crash: by gossip and by state exchange it hears of them from us, and lives."""
    async with mixed_pool(tmp_path, push_pull_interval_ms=500) as (agent, member, _):
        await agent.shows(NAME, "alive")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            for length in range(1, 6):
                body: dict[str, object] = {
                    "Addr": bytes((127, 0, 0, 9)),
                    "Incarnation": 1,
                    "Meta": b"",
                    "Node": f"ghost-{length}",
                    "Port": 9,
                    "Vsn": bytes((1, 5, 2, 2, 5))[:length],
                }
                udp.sendto(b"\x04" + pack(body), ("127.0.0.1", member.port))
        await shows(member, "ghost-5", "alive")
        async with asyncio.timeout(10):
            while "ghost-1" not in await agent.members():
                await asyncio.sleep(0.1)
        await asyncio.sleep(1)  # two state exchanges
        assert agent.process.poll() is None
        assert (await agent.members())[NAME][0] == "alive"


async def test_force_leave_of_a_living_member_is_undone(tmp_path: Path) -> None:
    """We answer with a newer join intent. With us as its only peer the agent tells
    nobody: a push/pull brings it. (A force-leave before our join intent has arrived
    would carry its Lamport time: a tie, which nobody can undo.)"""
    async with mixed_pool(tmp_path, push_pull_interval_ms=1_000) as (agent, _, _):
        await agent.shows(NAME, "alive")
        await asyncio.sleep(1)
        await agent.ask("force-leave", NAME)
        await agent.shows(NAME, "alive")
    async with mixed_pool(tmp_path) as (agent, _, _):
        third = Membership(GossipConfig.local(name="third"), rng=random.Random(3), on_event=lambda _: None)
        await third.start()
        try:
            await third.join([("127.0.0.1", agent.port)])
            await agent.shows("third", "alive")
            await asyncio.sleep(1)
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
            await again.join([("127.0.0.1", agent.port)])
            await agent.shows(NAME, "alive")
            await agent.ask("leave")
            await shows(again, "alpha", "left")
        finally:
            await again.stop()


async def test_failure_is_seen_both_ways_and_the_dead_return(tmp_path: Path) -> None:
    """kill -9 of the agent, and ours stopping without a word; both come back by refuting."""
    async with mixed_pool(tmp_path) as (agent, member, _):
        await agent.shows(NAME, "alive")
        port = member.port
        await member.stop()
        await agent.shows(NAME, "failed")
        config = GossipConfig.local(name=NAME, bind_port=port, tags={"life": "2"})
        again = Membership(config, rng=random.Random(2), on_event=lambda _: None)
        await again.start()
        try:
            await again.join([("127.0.0.1", agent.port)])
            await agent.shows(NAME, "alive", "life=2")
            agent.kill()
            await shows(again, "alpha", "failed", timeout_s=8)
        finally:
            await again.stop()


async def test_our_answer_keeps_a_contested_agent_alive(tmp_path: Path) -> None:
    """A second "alpha" appears: both ask `_serf_conflict`, we vouch for the first,
    the second shuts down."""
    async with mixed_pool(tmp_path) as (agent, member, _):
        await agent.shows(NAME, "alive")
        impostor = SerfAgent("alpha", tmp_path / "impostor.log", f"-join=127.0.0.1:{member.port}")
        try:
            async with asyncio.timeout(20):
                while impostor.process.poll() is None:
                    await asyncio.sleep(0.1)
            await asyncio.sleep(2)
            assert agent.process.poll() is None
            assert b"minority" in (tmp_path / "impostor.log").read_bytes()
        finally:
            impostor.kill()


async def test_three_and_three_without_a_false_suspicion(tmp_path: Path) -> None:
    """Three agents of each kind for some seconds: everybody alive for everybody,
    nobody ever suspected."""
    agents = [SerfAgent(f"serf-{number}", tmp_path / f"{number}.log") for number in range(3)]
    heard: list[str] = []
    members = [
        Membership(
            GossipConfig.local(name=f"ours-{number}"),
            rng=random.Random(number),
            on_event=lambda event: heard.append(event.kind),
        )
        for number in range(3)
    ]
    try:
        for member in members:
            await member.start()
            for agent in agents:
                await answers(lambda member=member, agent=agent: member.join([("127.0.0.1", agent.port)]))
        names = {f"serf-{number}" for number in range(3)} | {f"ours-{number}" for number in range(3)}
        for agent in agents:
            for name in names:
                await agent.shows(name, "alive")
        await asyncio.sleep(6)
        for member in members:
            assert {other.name: other.status for other in member.members()} == dict.fromkeys(names, "alive")
        assert not {"suspected", "failed"} & set(heard)
    finally:
        for member in members:
            await member.stop()
        for agent in agents:
            agent.kill()
