"""Where newborn partitions go."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.replication.errors import NotEnoughAgents
from shoal.replication.placement.assignment import BLOCK_PARTITIONS, Candidate, birth_voters, place

TOPICS = st.binary(min_size=16, max_size=16)


def agents(count: int, domains: int | None = None) -> list[Candidate]:
    """Agents a0, a1, ... spread over that many failure domains (each its own by default)."""
    return [Candidate(f"a{i}", f"d{i % (domains or count)}") for i in range(count)]


@given(TOPICS, st.integers(0, 200), st.integers(1, 9), st.integers(1, 9))
def test_voters_are_distinct_and_as_many_as_asked(
    topic: bytes, partition: int, count: int, factor: int
) -> None:
    """`factor` different agents, or a refusal: never fewer (safety 5)."""
    if factor > count:
        with pytest.raises(NotEnoughAgents):
            birth_voters(topic, partition, 201, agents(count), factor)
        return
    voters = birth_voters(topic, partition, 201, agents(count), factor)
    assert len(set(voters)) == len(voters) == factor


@given(TOPICS, st.integers(0, 100), st.permutations(agents(6)))
def test_the_order_of_the_members_does_not_matter(
    topic: bytes, partition: int, order: list[Candidate]
) -> None:
    """Two agents that know the same members decide the same."""
    assert birth_voters(topic, partition, 101, order, 3) == place(topic, partition, 101, agents(6), 3)


@given(TOPICS, st.integers(1, 7), st.integers(1, 12))
def test_replicas_and_leaders_are_spread_evenly(topic: bytes, count: int, partitions: int) -> None:
    """No agent holds two replicas more than another; leaders likewise."""
    factor = min(3, count)
    placed = [birth_voters(topic, number, partitions, agents(count), factor) for number in range(partitions)]
    held = Counter(agent for voters in placed for agent in voters)
    led = Counter(voters[0] for voters in placed)
    for counts in (held, led):
        per_agent = [counts[item.agent_id] for item in agents(count)]
        assert max(per_agent) - min(per_agent) <= 1
    if count == 3 and partitions == 6:
        assert set(led.values()) == {2}


@given(TOPICS, st.integers(0, 70))
def test_failure_domains_are_preferred(topic: bytes, partition: int) -> None:
    """Six agents on three hosts: each replica on another host."""
    hosts = {item.agent_id: item.failure_domain for item in agents(6, 3)}
    voters = birth_voters(topic, partition, 71, agents(6, 3), 3)
    assert len({hosts[voter] for voter in voters}) == 3


@given(TOPICS, st.integers(0, 70))
def test_failure_domains_never_block(topic: bytes, partition: int) -> None:
    """Three agents on one host still make three replicas."""
    assert len(birth_voters(topic, partition, 71, agents(3, 1), 3)) == 3


def test_weights_give_shares_and_zero_gives_nothing() -> None:
    """An agent of twice the weight holds about twice as much; a drained one holds nothing."""
    members = [Candidate("big", "x", 2), Candidate("b", "y"), Candidate("c", "z"), Candidate("gone", "w", 0)]
    held: Counter[str] = Counter()
    for number in range(64):
        held.update(birth_voters(b"t" * 16, number, 64, members, 1))
    assert held["gone"] == 0
    assert held["big"] == 32
    assert held["b"] == held["c"] == 16


def test_topics_differ() -> None:
    """Small topics do not all meet on the same agents: ties are broken by the topic's own hash."""
    first = {birth_voters(bytes([number] * 16), 0, 1, agents(5), 1)[0] for number in range(40)}
    assert len(first) == 5


def whole(topic: bytes, partitions: int, members: list[Candidate], factor: int) -> list[tuple[str, ...]]:
    """Where each partition of the topic belongs."""
    return [place(topic, number, partitions, members, factor) for number in range(partitions)]


def copies(before: list[tuple[str, ...]], after: list[tuple[str, ...]]) -> int:
    """How many replicas have to be made."""
    return sum(len(set(new) - set(old)) for old, new in zip(before, after, strict=True))


@given(TOPICS, st.integers(3, 12), st.integers(1, 3), st.integers(1, BLOCK_PARTITIONS))
@settings(max_examples=60, deadline=None)
def test_an_agent_that_comes_takes_its_share_and_little_else_moves(
    topic: bytes, count: int, factor: int, partitions: int
) -> None:
    """At most two copies for each that the newcomer gets, and one more an agent: each may have to hand on one
    that it was made to take. When it goes again everything is where it was. What is usual stands below."""
    before = whole(topic, partitions, agents(count), factor)
    after = whole(topic, partitions, agents(count + 1), factor)
    newcomer = f"a{count}"
    taken = sum(newcomer in voters for voters in after)
    assert taken in {partitions * factor // (count + 1), -(-partitions * factor // (count + 1))}
    assert copies(before, after) <= 2 * taken + count
    assert whole(topic, partitions, agents(count), factor) == before


def test_what_an_agent_that_comes_costs_as_a_rule() -> None:
    """Over many topics of all sizes a newcomer's share takes at most one and a half times as many copies."""
    chance = random.Random(5)
    made = taken = 0
    for _ in range(400):
        topic, count, factor = chance.randbytes(16), chance.randint(3, 12), chance.randint(1, 3)
        partitions = chance.randint(1, BLOCK_PARTITIONS)
        before = whole(topic, partitions, agents(count), factor)
        after = whole(topic, partitions, agents(count + 1), factor)
        made += copies(before, after)
        taken += sum(f"a{count}" in voters for voters in after)
    assert taken > 1_000
    assert made <= 1.5 * taken


@given(
    TOPICS,
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=9),
    st.integers(1, 5),
    st.integers(1, BLOCK_PARTITIONS),
)
@settings(max_examples=150, deadline=None)
def test_whatever_the_members_are_every_partition_is_placed_as_well_as_can_be(
    topic: bytes, shape: list[tuple[int, int]], factor: int, partitions: int
) -> None:
    """Any domains and weights: nobody twice, nobody of weight zero, never fewer than there could be, and no
    failure domain holds more of one partition than it must."""
    members = [Candidate(f"a{number}", f"d{domain}", weight) for number, (domain, weight) in enumerate(shape)]
    able = {item.agent_id: item.failure_domain for item in members if item.weight}
    sizes = Counter(able.values())
    wanted = min(factor, len(able))
    level = 1
    while sum(min(level, size) for size in sizes.values()) < wanted:
        level += 1
    for voters in whole(topic, partitions, members, factor):
        assert len(set(voters)) == len(voters) == wanted
        assert set(voters) <= able.keys()
        assert max(Counter(able[voter] for voter in voters).values(), default=0) <= level


@given(TOPICS, st.lists(st.integers(1, 8), min_size=4, max_size=8))
@settings(max_examples=60, deadline=None)
def test_replicas_follow_the_weights(topic: bytes, weights: list[int]) -> None:
    """Within one of the exact share, as far as one agent cannot hold a partition twice; leaders follow."""
    members = [Candidate(f"a{number}", f"a{number}", weight) for number, weight in enumerate(weights)]
    placed = whole(topic, BLOCK_PARTITIONS, members, 2)
    held = Counter(voter for voters in placed for voter in voters)
    led = Counter(voters[0] for voters in placed)
    exact = {item.agent_id: 2 * BLOCK_PARTITIONS * item.weight / sum(weights) for item in members}
    if max(exact.values()) <= BLOCK_PARTITIONS:
        assert all(abs(held[agent_id] - share) <= 1 for agent_id, share in exact.items())
    assert all(abs(led[agent_id] - held[agent_id] / 2) <= 2 for agent_id in held)
