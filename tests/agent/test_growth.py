"""How a group gets more voters: any live members, any faults on the way, always one safe step at a time."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.growth import (
    AddLearner,
    Drop,
    Promote,
    apply_step,
    next_step,
    wanted_catalog_voters,
)
from shoal.batch import LogIndex
from shoal.replication.interfaces import UNBORN, Configuration, Replica, ReplicaId

AGENTS = "abcdefg"


def committed(configuration: Configuration, replicas: tuple[Replica, ...]) -> Configuration:
    """As the core would commit it: the unborn replica gets its id."""
    index = configuration.index + 1
    named = tuple(
        Replica(ReplicaId(1, index), replica.agent_id, replica.learner) if replica.id == UNBORN else replica
        for replica in replicas
    )
    result = Configuration(LogIndex(index), named)
    assert result.problem() is None
    return result


def test_from_one_voter_to_three() -> None:
    """Both learners first, then both promotions: two voters only for one step."""
    configuration = Configuration.birth(("a",))
    steps = []
    while True:
        caught_up = frozenset(configuration.learners)
        step = next_step(configuration, "abc", 3, caught_up)
        if step is None:
            break
        steps.append(type(step))
        configuration = committed(configuration, apply_step(configuration, step))
    assert steps == [AddLearner, AddLearner, Promote, Promote]
    assert len(configuration.voters) == 3


def test_a_learner_that_lags_is_waited_for_and_one_that_is_gone_is_dropped() -> None:
    """A promotion before the learner has everything would cost a quorum; a dead one would wait for ever."""
    born = Configuration.birth(("a",))
    configuration = committed(born, apply_step(born, AddLearner("b")))
    learner = configuration.learners[0]
    assert next_step(configuration, "ab", 2, frozenset()) is None
    assert next_step(configuration, "ab", 2, frozenset([learner])) == Promote(learner)
    assert next_step(configuration, "ac", 2, frozenset([learner])) == Drop(learner)
    assert next_step(configuration, "ab", 1, frozenset([learner])) == Drop(learner)


@pytest.mark.parametrize(
    ("live", "wanted"), [("", 1), ("a", 1), ("ab", 1), ("abc", 3), ("abcd", 3), ("abcdefg", 5)]
)
def test_the_wanted_number_is_that_of_a_cluster_founded_now(live: str, wanted: int) -> None:
    """Odd, and never more than five."""
    assert wanted_catalog_voters(live) == wanted


@given(st.integers(0, 2**32), st.integers(1, 5))
def test_growth_never_loses_a_voter_and_ends_where_it_should(seed: int, wanted: int) -> None:
    """Members come and go while it grows; afterwards it settles, with no learner left over."""
    rng = random.Random(seed)
    configuration = Configuration.birth(("a",))
    for turn in range(80):
        settled = turn >= 30
        live = AGENTS if settled else ["a", *sorted(rng.sample(AGENTS[1:], rng.randrange(6)))]
        caught_up = frozenset(item for item in configuration.learners if settled or rng.random() < 0.5)
        step = next_step(configuration, live, wanted, caught_up)
        if step is None:
            continue
        after = committed(configuration, apply_step(configuration, step))
        assert set(configuration.voters) <= set(after.voters)
        assert len(after.voters) - len(configuration.voters) <= 1
        configuration = after
    assert len(configuration.voters) == wanted
    assert configuration.learners == ()
