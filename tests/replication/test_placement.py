"""Where newborn partitions go."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.replication.errors import NotEnoughAgents
from shoal.replication.placement import Candidate, birth_voters

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
            birth_voters(topic, partition, agents(count), factor)
        return
    voters = birth_voters(topic, partition, agents(count), factor)
    assert len(set(voters)) == len(voters) == factor


@given(TOPICS, st.integers(0, 100), st.permutations(agents(6)))
def test_the_order_of_the_members_does_not_matter(
    topic: bytes, partition: int, order: list[Candidate]
) -> None:
    """Two agents that know the same members decide the same."""
    assert birth_voters(topic, partition, order, 3) == birth_voters(topic, partition, agents(6), 3)


@given(TOPICS, st.integers(1, 7), st.integers(1, 12))
def test_replicas_and_leaders_are_spread_evenly(topic: bytes, count: int, partitions: int) -> None:
    """No agent holds two replicas more than another; leaders likewise."""
    factor = min(3, count)
    placed = [birth_voters(topic, number, agents(count), factor) for number in range(partitions)]
    held = Counter(agent for voters in placed for agent in voters)
    led = Counter(voters[0] for voters in placed)
    for counts in (held, led):
        per_agent = [counts[item.agent_id] for item in agents(count)]
        assert max(per_agent) - min(per_agent) <= 2
    if count == 3 and partitions == 6:
        assert set(led.values()) == {2}


@given(TOPICS, st.integers(0, 70))
def test_failure_domains_are_preferred(topic: bytes, partition: int) -> None:
    """Six agents on three hosts: each replica on another host."""
    hosts = {item.agent_id: item.failure_domain for item in agents(6, 3)}
    voters = birth_voters(topic, partition, agents(6, 3), 3)
    assert len({hosts[voter] for voter in voters}) == 3


@given(TOPICS, st.integers(0, 70))
def test_failure_domains_never_block(topic: bytes, partition: int) -> None:
    """Three agents on one host still make three replicas."""
    assert len(birth_voters(topic, partition, agents(3, 1), 3)) == 3


def test_weights_give_shares_and_zero_gives_nothing() -> None:
    """An agent of twice the weight holds about twice as much; a drained one holds nothing."""
    members = [Candidate("big", "x", 2), Candidate("b", "y"), Candidate("c", "z"), Candidate("gone", "w", 0)]
    held: Counter[str] = Counter()
    for number in range(64):
        held.update(birth_voters(b"t" * 16, number, members, 1))
    assert held["gone"] == 0
    assert held["big"] == 32
    assert held["b"] == held["c"] == 16


def test_topics_differ() -> None:
    """Small topics do not all meet on the same agents: ties are broken by the topic's own hash."""
    first = {birth_voters(bytes([number] * 16), 0, agents(5), 1)[0] for number in range(40)}
    assert len(first) == 5
