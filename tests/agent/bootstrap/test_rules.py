"""Who may found a cluster (safety 6): tables of views, and a property over several agents that decide at
once.
"""

import random
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.bootstrap.rules import (
    Decision,
    Found,
    Join,
    View,
    Wait,
    can_never_have_lived,
    catalog_voters,
    decide,
    must_dissolve,
)
from shoal.agent.members.tags import Peer
from tests.agent.start_world import Cluster, StartingAgent, StartWorld

CLUSTER = b"c" * 16
OTHER = b"d" * 16


def view(**changes: object) -> View:
    base = View(
        agent_id="b",
        peers=(),
        expect=None,
        has_seeds=False,
        started_ms=0,
        last_change_ms=0,
        discovery_window_ms=3_000,
        now_ms=3_000,
    )
    return replace(base, **changes)


def empty(agent_id: str) -> Peer:
    return Peer(agent_id, None, f"http://{agent_id}")


def member(agent_id: str, cluster_id: bytes = CLUSTER) -> Peer:
    return Peer(agent_id, cluster_id, f"http://{agent_id}")


CASES: list[tuple[str, View, Decision | type[Wait]]] = [
    ("alone, listening", view(now_ms=2_999), Wait),
    ("alone, window over", view(), Found(("b",))),
    ("two empty, smaller id", view(peers=(empty("c"),)), Found(("b",))),
    ("two empty, larger id", view(peers=(empty("a"),)), Wait),
    ("three empty", view(peers=(empty("c"), empty("d"))), Found(("b", "c", "d"))),
    ("a cluster is joined at once", view(now_ms=0, peers=(member("a"),)), Join(CLUSTER, ("http://a",))),
    (
        "a cluster beats empty ones",
        view(peers=(empty("a"), member("z"), member("y"))),
        Join(CLUSTER, ("http://y", "http://z")),
    ),
    (
        "of two clusters the larger",
        view(peers=(member("a", OTHER), member("y"), member("z"))),
        Join(CLUSTER, ("http://y", "http://z")),
    ),
    ("a seed that has not answered", view(has_seeds=True, now_ms=10**9), Wait),
    ("a seed has answered, settling", view(has_seeds=True, peers=(empty("c"),), last_change_ms=1_000), Wait),
    (
        "a seed has answered, settled",
        view(has_seeds=True, peers=(empty("c"),), last_change_ms=0),
        Found(("b",)),
    ),
    ("expects three, two met", view(expect=3, peers=(empty("c"),), now_ms=10**9), Wait),
    (
        "expects three, three met",
        view(expect=3, peers=(empty("c"), empty("d")), now_ms=0),
        Found(("b", "c", "d")),
    ),
    ("expects one: itself", view(expect=1, now_ms=0), Found(("b",))),
    ("expects three, a cluster exists", view(expect=3, peers=(member("a"),)), Join(CLUSTER, ("http://a",))),
]


@pytest.mark.parametrize(
    ("situation", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_decisions(situation: View, expected: Decision | type[Wait]) -> None:
    """One view, one decision."""
    decision = decide(situation)
    if isinstance(expected, type):
        assert isinstance(decision, expected)
    else:
        assert decision == expected


def test_waiting_names_a_time_only_when_time_helps() -> None:
    """A shell that sleeps until `until_ms` must not spin, nor sleep through a change."""
    assert decide(view(now_ms=1_000)) == Wait("listening for other agents", 3_000)
    missing = decide(view(expect=2))
    assert isinstance(missing, Wait)
    assert missing.until_ms is None
    assert "1 of 2" in missing.reason


@given(
    st.sets(st.text("abcdef", min_size=1, max_size=3), min_size=1, max_size=8), st.booleans(), st.booleans()
)
def test_of_agents_that_see_each_other_exactly_one_founds(ids: set[str], expect: bool, seeds: bool) -> None:
    """However many start at once and with whatever flags: one founder, the smallest id."""
    founders = []
    for agent_id in ids:
        others = tuple(empty(other) for other in sorted(ids - {agent_id}))
        situation = view(
            agent_id=agent_id,
            peers=others,
            expect=len(ids) if expect else None,
            has_seeds=seeds,
            now_ms=10**6,
        )
        decision = decide(situation)
        if isinstance(decision, Found):
            founders.append(agent_id)
            assert decision.voters[0] == agent_id
            assert set(decision.voters) <= ids
    expected = [] if seeds and not expect and len(ids) == 1 else [min(ids)]
    assert founders == expected


@pytest.mark.parametrize(("present", "voters"), [(1, 1), (2, 1), (3, 3), (4, 3), (5, 5), (9, 5)])
def test_the_catalog_has_an_odd_number_of_voters(present: int, voters: int) -> None:
    """An even one would stop with fewer losses than the odd one below it."""
    ids = [f"{number}" for number in range(present)]
    assert len(catalog_voters("0", ids)) == voters


@given(
    st.binary(min_size=1, max_size=2), st.binary(min_size=1, max_size=2), st.integers(0, 2), st.integers(0, 2)
)
def test_of_two_clusters_at_most_one_dissolves(
    one: bytes, two: bytes, topics_one: int, topics_two: int
) -> None:
    """And one with topics never does."""
    if one == two:
        return
    first = must_dissolve(one, two, own_topics=topics_one, foreign_has_topics=topics_two > 0)
    second = must_dissolve(two, one, own_topics=topics_two, foreign_has_topics=topics_one > 0)
    assert not (first and second)
    assert not (first and topics_one)
    assert first or second or (topics_one and topics_two)


@given(st.integers(1, 5), st.sets(st.integers(0, 6)))
def test_who_can_never_have_lived_has_no_majority_left(count: int, foreign: set[int]) -> None:
    """The count agrees with its slow twin: no majority of the birth voters is without one of another
    cluster's agents."""
    voters = [str(number) for number in range(count)]
    strangers = {str(number) for number in foreign}
    majorities = (
        set(chosen) for size in range(count + 1) for chosen in combinations(voters, size) if 2 * size > count
    )
    dead = not any(majority.isdisjoint(strangers) for majority in majorities)
    assert can_never_have_lived(voters, sorted(strangers)) is dead


# ---- many at once ----------------------------------------------------------------------------------


SETTLED_MS = 30_000
SEEDS = 24


def starting(seed: int, count: int, **values: Any) -> list[StartingAgent]:
    rng = random.Random(seed)
    return [StartingAgent(rng.randbytes(4).hex(), rng.randrange(0, 4_000), **values) for _ in range(count)]


@pytest.mark.parametrize("kind", ["window", "expect", "seeds", "mixed"])
def test_simultaneous_starts_end_in_one_cluster(kind: str) -> None:
    """Agents start within seconds, meet late and in any order, hear of each other with delay; whoever founded
    too early gives that up. Nobody founds before contact, or before N have met."""
    early = 0
    for seed in range(SEEDS):
        count = 2 + seed % 6
        agents = starting(seed, count)
        for number, agent in enumerate(agents):
            agent.expect = count if kind == "expect" or (kind == "mixed" and number % 2) else None
            agent.has_seeds = kind == "seeds" or (kind == "mixed" and not number % 2)
        world = StartWorld(seed, agents, slowest_ms=9_000)
        world.run(SETTLED_MS)
        clusters = {agent.cluster.cluster_id for agent in agents if agent.cluster is not None}
        assert (len(clusters), [agent for agent in agents if agent.cluster is None]) == (1, []), (
            f"seed {seed}"
        )
        early += sum(agent.founded for agent in agents) - 1
    assert kind != "window" or early > 0, "nobody ever founded too early: the test shows nothing"


def test_a_cluster_with_a_topic_survives_every_meeting() -> None:
    """Topics are made while the clusters find each other: no topic is ever lost to a dissolution, and what is
    left is one cluster, or several that each hold something."""
    merged = 0
    for seed in range(SEEDS):
        agents = starting(seed, 4 + seed % 3)
        world = StartWorld(seed, agents, slowest_ms=12_000)
        made: list[Cluster] = []
        for _ in range(3):
            world.run(world.now_ms + world.rng.randrange(2_000, 6_000))
            agent = world.rng.choice(agents)
            if world.create_topic(agent.agent_id):
                assert agent.cluster is not None
                made.append(agent.cluster)
        world.run(SETTLED_MS + 40_000)
        left = [cluster for cluster in world.clusters if any(agent.cluster is cluster for agent in agents)]
        assert all(cluster in left and not cluster.sealed for cluster in made), f"seed {seed}"
        holding = [cluster for cluster in left if cluster.topics]
        assert left == holding or (len(left) == 1 and not made), f"seed {seed}"
        merged += len(left) == 1
    assert merged > SEEDS // 2


def test_too_few_agents_wait_for_ever() -> None:
    """Two of three expected: ten minutes later neither has founded anything."""
    agents = starting(1, 2, expect=3)
    world = StartWorld(1, agents, slowest_ms=1_000)
    world.run(600_000)
    assert world.clusters == []
    alone = StartingAgent("a", 0, has_seeds=True)
    world = StartWorld(1, [alone], slowest_ms=1_000)
    world.run(600_000)
    assert world.clusters == []
