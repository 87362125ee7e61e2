"""How a group's replicas change: any members, any faults on the way, always one safe step at a time."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.batch import LogIndex
from shoal.replication.interfaces import UNBORN, Configuration, Replica, ReplicaId
from shoal.replication.membership_change import check_change
from shoal.replication.placement import BLOCK_PARTITIONS, Candidate, grown_voters
from shoal.replication.steps import (
    AddLearner,
    Group,
    Members,
    Promote,
    Remove,
    Step,
    apply_step,
    next_step,
)

AGENTS = "abcdefg"
TOPIC = b"t" * 16
AFTER_MS = 1_000
STEPS_MAX = 60


def group(*births: str, partition: int = 0) -> Group:
    """A topic whose partitions were born on these agents, one letter each."""
    return Group(TOPIC, partition, [tuple(birth) for birth in births])


def members(live: str, lost: dict[str, int] | None = None, *, domains: str = "", now_ms: int = 0) -> Members:
    """All the live ones may take replicas; each is a failure domain of its own unless `domains` says."""
    candidates = tuple(
        Candidate(agent, domains[number] if domains else agent) for number, agent in enumerate(live)
    )
    return Members(candidates, frozenset(live), now_ms, AFTER_MS, lost or {})


def committed(configuration: Configuration, step: Step, caught_up: frozenset[ReplicaId]) -> Configuration:
    """As the core would check and commit it: the unborn replica gets its id."""
    index = LogIndex(configuration.index + 1)
    new_id = ReplicaId(1, index)
    result = Configuration(
        index,
        tuple(
            Replica(new_id, item.agent_id, item.learner) if item.id == UNBORN else item
            for item in apply_step(configuration, step)
        ),
    )
    check_change(configuration, result, new_id, lambda replica_id: replica_id in caught_up)
    return result


def settle(
    start: Configuration, target: int, view: Members, at: Group | None = None
) -> tuple[Configuration, list[type[Step]]]:
    """Every step until there is none, each learner catching up at once."""
    configuration, steps = start, []
    while True:
        caught_up = frozenset(configuration.learners)
        step = next_step(
            at or group("a"),
            configuration,
            target,
            leader=configuration.replicas[0].id,
            caught_up=caught_up,
            members=view,
        )
        if step is None:
            return configuration, steps
        steps.append(type(step))
        assert len(steps) < STEPS_MAX
        configuration = committed(configuration, step, caught_up)


def holders(configuration: Configuration) -> str:
    """One letter for each voter, and one with a question mark for each learner."""
    return "".join(f"{item.agent_id}{'?' if item.learner else ''}" for item in configuration.replicas)


def test_from_one_voter_to_three() -> None:
    """Both learners first, then both promotions: two voters only for one step."""
    configuration, steps = settle(Configuration.birth(("a",)), 3, members("abc"))
    assert steps == [AddLearner, AddLearner, Promote, Promote]
    assert sorted(holders(configuration)) == list("abc")


def test_it_grows_as_far_as_there_are_agents() -> None:
    """Two of three are better than one; with the third comes the rest."""
    configuration, _ = settle(Configuration.birth(("a",)), 3, members("ab"))
    assert holders(configuration) == "ab"
    configuration, steps = settle(configuration, 3, members("abc"))
    assert (holders(configuration), steps) == ("abc", [AddLearner, Promote])


def test_a_dead_voter_is_removed_last() -> None:
    """Safety 5: add, catch up, promote, and only then remove."""
    view = members("abd", {"c": 0}, now_ms=AFTER_MS)
    configuration, steps = settle(Configuration.birth(tuple("abc")), 3, view, group("abc"))
    assert (holders(configuration), steps) == ("abd", [AddLearner, Promote, Remove])


@pytest.mark.parametrize(
    "view",
    [
        members("abd", {"c": 1}, now_ms=AFTER_MS),  # not for long enough
        members("abcd", {"c": 0}, now_ms=AFTER_MS),  # gossip has it back
        members("abd"),  # gossip has given it up, but it is heard
        members("ab", {"c": 0}, now_ms=AFTER_MS),  # nobody could take its place
        Members((Candidate("d", "d", 0),), frozenset("abd"), AFTER_MS, AFTER_MS, {"c": 0}),  # d is drained
    ],
)
def test_a_voter_stays_while_its_death_or_its_successor_is_in_doubt(view: Members) -> None:
    """Else a false positive would shrink a quorum (safety 5)."""
    assert settle(Configuration.birth(tuple("abc")), 3, view, group("abc"))[1] == []


def test_a_voter_that_returns_meanwhile_stops_its_replacement() -> None:
    """The learner is dropped; nobody who votes goes."""
    born = Configuration.birth(tuple("abc"))
    half = committed(born, AddLearner("d"), frozenset())
    configuration, steps = settle(half, 3, members("abcd"), group("abc"))
    assert (holders(configuration), steps) == ("abc", [Remove])


def test_a_voter_that_returns_too_late_leaves_one_too_many() -> None:
    """One is removed again: never the leader, never while anybody is in doubt."""
    four = Configuration(LogIndex(5), Configuration.birth(tuple("abcd")).replicas)
    assert settle(four, 3, members("abc"), group("abcd"))[1] == []
    configuration, steps = settle(four, 3, members("abcd"), group("abcd"))
    assert (holders(configuration), steps) == ("abc", [Remove])
    crowded, _ = settle(four, 3, members("abcd", domains="xyyz"), group("abcd"))
    assert holders(crowded) == "abd"
    led_by_d = next_step(
        group("abcd"),
        four,
        3,
        leader=four.replicas[3].id,
        caught_up=frozenset(),
        members=members("abcd"),
    )
    assert led_by_d == Remove(four.replicas[2].id)


def test_a_learner_that_lags_is_waited_for_and_one_that_is_gone_is_removed() -> None:
    """A promotion before the learner has everything would cost a quorum; a dead one would wait for ever."""
    half = committed(Configuration.birth(("a",)), AddLearner("b"), frozenset())
    learner = half.learners[0]

    def step(
        view: Members, target: int = 2, *, caught_up: bool = False, stalled: bool = False
    ) -> Step | None:
        return next_step(
            group("a"),
            half,
            target,
            leader=half.voters[0],
            caught_up=frozenset([learner] if caught_up else []),
            members=view,
            stalled=frozenset([learner] if stalled else []),
        )

    assert step(members("ab")) is None
    assert step(members("ab"), stalled=True) == Remove(learner)
    assert step(members("ab"), caught_up=True) == Promote(learner)
    assert step(members("ac"), caught_up=True) == Remove(learner)
    assert step(members("ab"), 1, caught_up=True) == Remove(learner)


def test_a_move_waits_while_others_are_on_their_way() -> None:
    """Bounded moves: nothing is added, what was begun is finished."""
    born = Configuration.birth(("a",))
    view = members("abc")

    def step(configuration: Configuration, target: int) -> Step | None:
        return next_step(
            group("a"),
            configuration,
            target,
            leader=born.voters[0],
            caught_up=frozenset(configuration.learners),
            members=view,
            may_add=False,
        )

    half = committed(born, AddLearner("b"), frozenset())
    assert step(born, 3) is None
    assert step(half, 3) is None
    assert step(half, 2) == Promote(half.learners[0])


def test_failure_domains_are_preferred_and_never_block() -> None:
    """The third goes to another host, if there is one."""
    for live, domains in (("abcd", "xxyy"), ("abdc", "xxyy")):
        configuration, _ = settle(Configuration.birth(("a",)), 2, members(live, domains=domains))
        assert holders(configuration)[1] in live[2:]
    configuration, _ = settle(Configuration.birth(("a",)), 3, members("abc", domains="xxx"))
    assert len(configuration.voters) == 3


@given(
    st.binary(min_size=16, max_size=16),
    st.integers(1, 2 * BLOCK_PARTITIONS),
    st.integers(3, 7),
    st.integers(2, 3),
)
@settings(max_examples=30, deadline=None)
def test_partitions_that_grow_by_themselves_arrive_at_a_balanced_whole(
    topic: bytes, partitions: int, count: int, target: int
) -> None:
    """All born on one agent; the newcomers of one block hold as many as each other, or one more."""
    births = [("a",)] * partitions
    view = members(AGENTS[:count])
    held: Counter[str] = Counter()
    for partition in range(min(partitions, BLOCK_PARTITIONS)):
        at = Group(topic, partition, births)
        configuration, _ = settle(Configuration.birth(("a",)), target, view, at)
        assert sorted(holders(configuration)) == sorted(
            grown_voters(topic, partition, births, view.candidates, target)
        )
        held.update(holders(configuration)[1:])
    newcomers = [held[agent] for agent in AGENTS[1:count]]
    assert max(newcomers) - min(newcomers) <= 1


@given(st.integers(0, 2**32), st.integers(1, 5))
@settings(max_examples=200, deadline=None)
def test_whatever_happens_there_are_never_fewer_voters_and_in_the_end_it_settles(
    seed: int, target: int
) -> None:
    """Members die, return and come; then everybody but one is there for good."""
    rng = random.Random(seed)
    configuration = Configuration.birth(tuple(AGENTS[: rng.randrange(1, target + 1)]))
    at = Group(TOPIC, 0, [tuple(item.agent_id for item in configuration.replicas)])
    leader = configuration.voters[0]
    lost: dict[str, int] = {}
    most = len(configuration.voters)
    for turn in range(120):
        settled = turn >= 60
        live = {"a", *(agent for agent in AGENTS if settled or rng.random() < 0.7)} - (
            {"b"} if settled else set()
        )
        lost = {agent: lost.get(agent, turn) for agent in AGENTS if agent not in live}
        view = Members(
            tuple(Candidate(agent, agent) for agent in sorted(live)), frozenset(live), turn, 3, lost
        )
        caught_up = frozenset(item for item in configuration.learners if settled or rng.random() < 0.5)
        step = next_step(at, configuration, target, leader=leader, caught_up=caught_up, members=view)
        if step is None:
            continue
        after = committed(configuration, step, caught_up)
        assert leader in after.voters
        gone = set(configuration.voters) - set(after.voters)
        if gone:
            assert len(after.voters) >= target
            assert len(after.voters) == len(configuration.voters) - 1
        else:
            assert len(after.voters) >= len(configuration.voters)
        most = max(most, len(after.voters))
        configuration = after
    assert most <= target + 1
    assert len(configuration.voters) == min(target, 6)
    assert configuration.learners == ()
    assert "b" not in holders(configuration)
