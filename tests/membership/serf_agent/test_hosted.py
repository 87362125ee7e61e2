"""Agents behind Serf agents: how their nodes are read, and when silence counts."""

import asyncio
from collections.abc import Collection

from hypothesis import given
from hypothesis import strategies as st

from shoal.membership.interface import Member, QueryError, QueryResult
from shoal.membership.serf.own_queries import QueryRequest
from shoal.membership.serf_agent import hosted_watch
from shoal.membership.serf_agent.hosted import as_agents, living_agents, node_names
from shoal.membership.serf_agent.hosted_watch import ATTEMPTS, MISSES, HostedWatch
from shoal.membership.serf_agent.membership import _node


def node(name: str, status: str = "alive", **tags: str) -> Member:
    return Member(name, "10.0.0.1", 7946, tags, status, 1, 0)


def shown(*nodes: Member, silent: Collection[str] = ()) -> dict[str, str]:
    return {member.name: member.status for member in as_agents(nodes, silent)}


def test_a_node_is_shown_as_the_agent_it_speaks_for() -> None:
    """By the agent's name; left when the agent says so, failed when it is silent; others are left alone."""
    nodes = [
        node("plain"),
        node("host-a", id="a", at="5"),
        node("host-b", id="b", at="5", gone="1"),
        node("host-c", id="c", at="5"),
        node("host-d", "failed", id="d", at="5", gone="1"),
        node("host-e", "leaving", id="e", at="5", gone="1"),
    ]
    statuses = {"plain": "alive", "a": "alive", "b": "left", "c": "failed", "d": "failed", "e": "left"}
    assert shown(*nodes, silent=["c", "plain"]) == statuses
    assert living_agents(nodes) == {"a", "c"}
    assert node_names(nodes)["a"] == "host-a"
    assert "plain" not in node_names(nodes)


def test_of_two_nodes_for_one_agent_the_living_and_newer_has_it() -> None:
    """An agent that moved to another Serf agent is not seen twice, and its former node is a neighbour."""
    old, new = node("old", id="a", at="5"), node("new", id="a", at="17")
    assert shown(old, new) == shown(new, old) == {"a": "alive", "old": "alive"}
    assert all(not member.tags for member in as_agents([old, new]) if member.name == "old")
    assert shown(old, node("new", "failed", id="a", at="17")) == {"a": "alive", "new": "failed"}
    assert shown(old, node("a")) == {"a": "alive"}


@given(st.lists(st.tuples(st.text("ab", min_size=1, max_size=2), st.text(max_size=3), st.text(max_size=20))))
def test_whatever_stands_in_the_tags(nodes: list[tuple[str, str, str]]) -> None:
    """Names stay unique and no node is lost but one whose name an agent has taken; nothing raises."""
    made = {name: node(name, id=agent, at=since) for name, agent, since in nodes}
    listed = as_agents(made.values())
    names = [member.name for member in listed]
    assert len(set(names)) == len(names) <= len(made)
    assert names == sorted(names)
    agents = {member.tags.get("id") or member.name for member in made.values()}
    assert agents <= set(names)


class Pool:
    """Answers as the test says, without a wire; `asked` counts."""

    def __init__(self) -> None:
        self.hosted = frozenset({"a", "b"})
        self.answering = {"a", "b"}
        self.asked = 0
        self.changes: list[set[str]] = []
        self.reachable = True
        self.watch = HostedWatch(
            ask=self.ask,
            hosted=lambda: self.hosted,
            changed=lambda names: self.changes.append(set(names)),
            interval_ms=1,
        )

    async def ask(self, request: QueryRequest, expected: Collection[str]) -> QueryResult:
        assert request.name == "shoal-alive"
        self.asked += 1
        if not self.reachable:
            raise QueryError("no connection")
        return QueryResult(answers={f"host-{name}": name.encode() for name in self.answering})

    async def until(self, queries: int) -> None:
        """Let it run for so many more queries."""
        wanted = self.asked + queries
        running = asyncio.create_task(self.watch.run())
        async with asyncio.timeout(30):
            while self.asked < wanted:
                await asyncio.sleep(0)
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait({running})


async def test_silence_counts_after_rounds_of_attempts() -> None:
    """One round without an answer is nothing; enough of them are a verdict, and one answer takes it back."""
    pool = Pool()
    await pool.until(2)
    assert pool.asked == 2
    pool.answering = {"a"}
    await pool.until(ATTEMPTS * (MISSES - 1))
    assert pool.watch.silent == frozenset()
    await pool.until(ATTEMPTS)
    assert (pool.watch.silent, pool.changes) == ({"b"}, [{"b"}])
    pool.answering = {"a", "b"}
    await pool.until(1)
    assert (pool.watch.silent, pool.changes) == (frozenset(), [{"b"}, {"b"}])


async def test_who_cannot_ask_condemns_nobody() -> None:
    """Without a way into the pool there is no verdict; a pool without hosted agents is asked nothing."""
    pool = Pool()
    pool.reachable = False
    await pool.until(ATTEMPTS * (MISSES + 2))
    assert pool.watch.silent == frozenset()
    pool.hosted, before = frozenset(), pool.asked
    running = asyncio.create_task(pool.watch.run())
    await asyncio.sleep(0.05)
    running.cancel()
    await asyncio.wait({running})
    assert pool.asked == before
    assert hosted_watch.ASK_INTERVAL_MS >= 1_000


def test_a_node_has_been_gone_since_it_failed() -> None:
    """Whoever declares it left later changes nothing about that; every other change of status is a moment."""
    moments = []
    known: Member | None = None
    for now_ms, status in enumerate(("alive", "alive", "failed", "left", "alive", "left"), start=1):
        known = _node(Member("n", "10.0.0.1", 7946, {}, status, 0, 0), known, now_ms)
        moments.append(known.since_ms)
    assert moments == [1, 1, 3, 3, 5, 6]
