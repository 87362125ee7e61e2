"""How a group's replicas change: any members, any faults on the way, always one safe step at a time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.format.batch import LogIndex
from shoal.replication.interfaces import UNBORN, Configuration, Replica, ReplicaId
from shoal.replication.placement.assignment import Candidate, place
from shoal.replication.placement.steps import (
    AddLearner,
    Goal,
    Members,
    Permits,
    Promote,
    Remove,
    Step,
    Transfer,
    apply_step,
    kept_voters,
    next_step,
)
from shoal.replication.state.configuration_change import check_change

AGENTS = "abcdefg"
TOPIC = b"t" * 16
GROUP = (TOPIC, 0)
AFTER_MS = 1_000
STEPS_MAX = 60
NOTHING = Permits(add=False, move=False, lead=False)


def members(
    live: str, lost: dict[str, int] | None = None, *, domains: str = "", now_ms: int = 0, drained: str = ""
) -> Members:
    """All the live ones may take replicas, but for the drained; each is a failure domain of its own unless
    `domains` says."""
    candidates = tuple(
        Candidate(agent, domains[number] if domains else agent)
        for number, agent in enumerate(live)
        if agent not in drained
    )
    return Members(candidates, frozenset(live), now_ms, AFTER_MS, lost or {}, frozenset(drained))


def goal(count: int, voters: str, leader: str | None = None, *, everywhere: bool = False) -> Goal:
    """One letter for each agent."""
    return Goal(count, tuple(voters), leader, everywhere)


def committed(configuration: Configuration, step: Step, caught_up: frozenset[ReplicaId]) -> Configuration:
    """As the core would check and commit it: the unborn replica gets its id."""
    assert not isinstance(step, Transfer)
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
    start: Configuration, wanted: Goal, view: Members, *, leader: str | None = None
) -> tuple[Configuration, list[type[Step]], str]:
    """Every step until there is none, each learner catching up at once: the configuration, the steps, and who
    leads in the end."""
    configuration, steps = start, []
    lead = leader or start.replicas[0].agent_id
    while True:
        caught_up = frozenset(configuration.learners)
        by_agent = {item.agent_id: item.id for item in configuration.replicas}
        step = next_step(
            GROUP, configuration, wanted, leader=by_agent[lead], caught_up=caught_up, members=view
        )
        if step is None:
            return configuration, steps, lead
        steps.append(type(step))
        assert len(steps) < STEPS_MAX
        if isinstance(step, Transfer):
            lead = next(item.agent_id for item in configuration.replicas if item.id == step.replica_id)
        else:
            configuration = committed(configuration, step, caught_up)


def holders(configuration: Configuration) -> str:
    """One letter for each voter, and one with a question mark for each learner."""
    return "".join(f"{item.agent_id}{'?' if item.learner else ''}" for item in configuration.replicas)


REPLACED: list[type[Step]] = [AddLearner, Promote, Remove]
LEADER_REPLACED: list[type[Step]] = [AddLearner, Promote, Transfer, Remove]
BORN_ALONE = Configuration.birth(("a",))
BORN_THREE = Configuration.birth(tuple("abc"))


@pytest.mark.parametrize(
    ("born", "wanted", "view", "end", "expected"),
    [
        # grows: both learners first, two voters only for one step
        ("a", goal(3, "abc"), members("abc"), "abc", [AddLearner, AddLearner, Promote, Promote]),
        # as far as there are agents
        ("a", goal(3, "ab"), members("ab"), "ab", [AddLearner, Promote]),
        # a dead voter is removed last (safety 5)
        ("abc", goal(3, "abd"), members("abd", {"c": 0}, now_ms=AFTER_MS), "abd", REPLACED),
        # for balance: the same order, and only one at a time
        ("abc", goal(3, "abd"), members("abcd"), "abd", REPLACED),
        ("abc", goal(3, "ade"), members("abcde"), "ade", REPLACED * 2),
        # the leader hands over before it goes
        ("abc", goal(3, "bcd", "b"), members("abcd"), "bcd", LEADER_REPLACED),
        # leadership alone
        ("abc", goal(3, "abc", "c"), members("abc"), "abc", [Transfer]),
        # a drained voter goes at once, and leads nothing before
        ("abc", goal(3, "bcd", "b"), members("abcd", drained="a"), "bcd", LEADER_REPLACED),
        # without anybody to take its place it stays, and leads nothing
        ("abc", goal(3, "bc", "b"), members("abc", drained="a"), "abc", [Transfer]),
        ("a", goal(1, "b", "b"), members("ab", drained="a"), "b", LEADER_REPLACED),
        # fewer are wanted: those go where the group does not belong, and a leader hands over first
        ("abcde", goal(3, "abe"), members("abcde"), "abe", [Remove, Remove]),
        ("abc", goal(1, "c", "c"), members("abc"), "c", [Remove, Transfer, Remove]),
        ("abc", goal(1, "d", "d"), members("abcd"), "d", [Remove, Remove, *LEADER_REPLACED]),
        # not while a voter is in doubt, nor before it is known where the group belongs
        ("abcde", goal(3, "abe"), members("abce"), "abcde", []),
        ("abc", goal(1, ""), members("abc"), "abc", []),
        # more are wanted
        ("abc", goal(5, "abcde"), members("abcde"), "abcde", [AddLearner, AddLearner, Promote, Promote]),
        # everywhere: voters first, then a readable copy on each other agent
        ("abc", goal(3, "abc", everywhere=True), members("abcde"), "abcd?e?", [AddLearner, AddLearner]),
        # ... of which one votes when a voter is drained
        (
            "abc",
            goal(3, "bcd", everywhere=True),
            members("abcd", drained="a"),
            "bcd",
            LEADER_REPLACED,
        ),
    ],
)  # fmt: skip
def test_the_steps_to_a_goal(
    born: str, wanted: Goal, view: Members, end: str, expected: list[type[Step]]
) -> None:
    """Each change in its one safe order."""
    configuration, steps, lead = settle(Configuration.birth(tuple(born)), wanted, view)
    assert sorted(holders(configuration)) == sorted(end)
    assert [step.__name__ for step in steps] == [step.__name__ for step in expected]
    assert wanted.leader is None or lead == wanted.leader
    assert lead not in view.drained


@pytest.mark.parametrize(
    "view",
    [
        members("abd", {"c": 1}, now_ms=AFTER_MS),  # not for long enough
        members("abd"),  # gossip has given it up, but it is heard
        members("ab", {"c": 0}, now_ms=AFTER_MS),  # nobody could take its place
        members("abd", {"c": 0}, now_ms=AFTER_MS, drained="d"),
    ],
)
def test_a_voter_stays_while_its_death_or_its_successor_is_in_doubt(view: Members) -> None:
    """Else a false positive would shrink a quorum (safety 5)."""
    dead = view.is_dead("c")
    assert settle(BORN_THREE, goal(3, "ab" if dead else "abc"), view)[1] == []


@pytest.mark.parametrize("live", ["abd", "ab", "acd"])
def test_nothing_moves_for_balance_while_a_voter_is_in_doubt(live: str) -> None:
    """A move adds a voter: with one away that costs a quorum."""
    assert settle(BORN_THREE, goal(3, "abd", "b"), members(live))[1] == []


def test_what_is_not_permitted_does_not_begin_and_what_was_begun_is_finished() -> None:
    """Bounded moves (safety 5)."""

    def step(configuration: Configuration, wanted: Goal, permits: Permits, view: Members) -> Step | None:
        return next_step(
            GROUP,
            configuration,
            wanted,
            leader=configuration.replicas[0].id,
            caught_up=frozenset(configuration.learners),
            members=view,
            permits=permits,
        )

    view, wanted = members("abcd"), goal(3, "abd")
    assert step(BORN_THREE, wanted, NOTHING, view) is None
    assert step(BORN_THREE, wanted, replace(NOTHING, add=True), view) is None
    assert step(BORN_THREE, wanted, replace(NOTHING, add=True, move=True), view) == AddLearner("d")
    half = committed(BORN_THREE, AddLearner("d"), frozenset())
    assert step(half, wanted, NOTHING, view) == Promote(half.learners[0])
    assert step(BORN_ALONE, goal(3, "abc"), NOTHING, view) is None
    drained = members("abcd", drained="c")
    assert step(BORN_THREE, wanted, replace(NOTHING, add=True), drained) == AddLearner("d")
    leads = goal(3, "abc", "b")
    assert step(BORN_THREE, leads, NOTHING, view) is None
    assert step(BORN_THREE, leads, replace(NOTHING, lead=True), view) == Transfer(BORN_THREE.voters[1])


def test_a_voter_that_returns_meanwhile_stops_its_replacement() -> None:
    """The learner is dropped; nobody who votes goes."""
    half = committed(BORN_THREE, AddLearner("d"), frozenset())
    configuration, steps, _ = settle(half, goal(3, "abc"), members("abcd"))
    assert (holders(configuration), steps) == ("abc", [Remove])


def test_a_voter_that_returns_too_late_leaves_one_too_many() -> None:
    """One is removed again: never while anybody is in doubt."""
    four = Configuration(LogIndex(5), Configuration.birth(tuple("abcd")).replicas)
    assert settle(four, goal(3, "abc"), members("abc"))[1] == []
    configuration, steps, _ = settle(four, goal(3, "abc"), members("abcd"))
    assert (holders(configuration), steps) == ("abc", [Remove])
    configuration, steps, lead = settle(four, goal(3, "abc"), members("abcd"), leader="d")
    assert (holders(configuration), steps, lead) == ("abc", [Transfer, Remove], "a")


def test_a_learner_that_lags_is_waited_for_and_one_that_is_gone_is_removed() -> None:
    """A promotion before the learner has everything would cost a quorum; a dead one would wait for ever."""
    half = committed(BORN_ALONE, AddLearner("b"), frozenset())
    learner = half.learners[0]

    def step(view: Members, wanted: Goal, *, caught_up: bool = False, stalled: bool = False) -> Step | None:
        return next_step(
            GROUP,
            half,
            wanted,
            leader=half.voters[0],
            caught_up=frozenset([learner] if caught_up else []),
            members=view,
            stalled=frozenset([learner] if stalled else []),
        )

    two = goal(2, "ab")
    assert step(members("ab"), two) is None
    assert step(members("ab"), two, stalled=True) == Remove(learner)
    assert step(members("ab"), two, caught_up=True) == Promote(learner)
    assert step(members("ac"), two, caught_up=True) == Remove(learner)
    assert step(members("ab", drained="b"), two, caught_up=True) == Remove(learner)
    assert step(members("ab"), goal(1, "a"), caught_up=True) == Remove(learner)
    readable = goal(1, "a", everywhere=True)
    assert step(members("ab"), readable, caught_up=True) is None
    assert step(members("a"), readable) is None  # it may come back
    assert step(members("a", {"b": 0}, now_ms=AFTER_MS), readable) == Remove(learner)


def test_where_the_goal_takes_nothing_the_best_other_does() -> None:
    """A replacement must not wait for one busy agent; another failure domain is preferred."""
    view = members("abde", {"c": 0}, now_ms=AFTER_MS, domains="xyxz")
    wanted = goal(3, "abf")
    configuration, steps, _ = settle(BORN_THREE, wanted, view)
    assert (holders(configuration), steps) == ("abe", [AddLearner, Promote, Remove])
    crowded, _, _ = settle(BORN_ALONE, goal(3, "abc"), members("abc", domains="xxx"))
    assert len(crowded.voters) == 3


def test_kept_voters_stay_and_the_best_others_join_them() -> None:
    """The catalog moves for nobody's balance; the drained and the dead do not count."""
    candidates = members("abcdef", domains="xxyyzz").candidates
    view = members("abcdef")
    assert kept_voters(GROUP, list("ba"), candidates, view, 2) == ("b", "a")
    grown = kept_voters(GROUP, list("ba"), candidates, view, 4)
    assert grown[:2] == ("b", "a")
    assert {"c", "d"} & set(grown)
    assert {"e", "f"} & set(grown)
    assert "b" not in kept_voters(GROUP, list("ba"), candidates, members("abc", drained="b"), 2)
    dead = members("acdef", {"b": 0}, now_ms=AFTER_MS)
    assert kept_voters(GROUP, list("ba"), candidates[:1], dead, 3) == ("a",)


# ---- whatever happens ----------------------------------------------------------------------------


class Cluster:
    """Groups whose leaders each act for themselves on one member list, learners catching up at random."""

    def __init__(self, rng: random.Random, partitions: int, factor: int, births: Sequence[str]) -> None:
        self.rng = rng
        self.partitions = partitions
        self.factor = factor
        born = [
            place(TOPIC, number, partitions, [Candidate(item, item) for item in births], factor)
            for number in range(partitions)
        ]
        self.groups = [Configuration.birth(voters) for voters in born]
        self.leads = [voters[0] for voters in born]
        self.added = 0

    def goal(self, number: int, view: Members, belonging: Sequence[str]) -> Goal:
        candidates = [Candidate(item, item) for item in belonging if item not in view.drained]
        voters = place(TOPIC, number, self.partitions, candidates, self.factor)
        return Goal(self.factor, voters, voters[0] if voters else None)

    def act(self, view: Members, belonging: Sequence[str], *, prompt: bool) -> bool:
        """One step of each group; whether there was any."""
        acted = False
        for number, configuration in enumerate(self.groups):
            if self.leads[number] not in view.live:
                heirs = [
                    r.agent_id for r in configuration.replicas if not r.learner and r.agent_id in view.live
                ]
                if 2 * len(heirs) <= len(configuration.voters):
                    continue  # no quorum
                self.leads[number] = self.rng.choice(heirs)
            leader = next(r.id for r in configuration.replicas if r.agent_id == self.leads[number])
            caught_up = frozenset(
                item for item in configuration.learners if prompt or self.rng.random() < 0.5
            )
            step = next_step(
                (TOPIC, number),
                configuration,
                self.goal(number, view, belonging),
                leader=leader,
                caught_up=caught_up,
                members=view,
            )
            if step is not None:
                acted = True
                self._apply(number, step, caught_up)
        return acted

    def _apply(self, number: int, step: Step, caught_up: frozenset[ReplicaId]) -> None:
        before = self.groups[number]
        if isinstance(step, Transfer):
            target = before.find(step.replica_id)
            assert target is not None
            assert not target.learner
            self.leads[number] = target.agent_id
            return
        after = self.groups[number] = committed(before, step, caught_up)
        self.added += isinstance(step, AddLearner)
        gone = set(before.voters) - set(after.voters)
        assert self.leads[number] in {r.agent_id for r in after.replicas if not r.learner}
        if gone:
            assert len(after.voters) >= self.factor, "fewer voters than there should be"
        else:
            assert len(after.voters) >= len(before.voters)
        assert len(after.voters) <= max(self.factor + 1, len(before.voters))

    def settle(self, view: Members, belonging: Sequence[str]) -> None:
        for _ in range(40 * self.factor):
            if not self.act(view, belonging, prompt=True):
                return
        raise AssertionError("it never settles")

    def check_at_goal(self, view: Members, belonging: Sequence[str]) -> None:
        for number, configuration in enumerate(self.groups):
            wanted = self.goal(number, view, belonging)
            assert {r.agent_id for r in configuration.replicas} == set(wanted.voters)
            assert configuration.learners == ()
            assert self.leads[number] == wanted.leader


@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(1, 24))
@settings(max_examples=60, deadline=None)
def test_whatever_happens_there_are_never_fewer_voters_and_in_the_end_it_settles(
    seed: int, factor: int, partitions: int
) -> None:
    """Members die, return, are drained and come; then everybody, or (of three) everybody but one, is there
    for good. The leaders act each for themselves and meet where the member list says; when nothing changes
    any more, nothing moves."""
    rng = random.Random(seed)
    cluster = Cluster(rng, partitions, factor, AGENTS[: rng.randrange(factor, 6)])
    lost: dict[str, int] = {}
    drained = ""
    for turn in range(60):
        live = {agent for agent in AGENTS if rng.random() < 0.8}
        lost = {agent: lost.get(agent, turn) for agent in AGENTS if agent not in live}
        if rng.random() < 0.1:
            drained = rng.choice(["", *AGENTS])
        view = replace(members("".join(sorted(live)), lost, now_ms=turn, drained=drained), replace_after_ms=3)
        belonging = [agent for agent in AGENTS if not view.is_dead(agent)]
        cluster.act(view, belonging, prompt=False)
    there = AGENTS if factor < 3 else "acdefg"
    view = replace(members(there, {"b": 0}, now_ms=1_000), replace_after_ms=3)
    cluster.settle(view, there)
    cluster.check_at_goal(view, there)
    before = list(cluster.groups)
    assert not cluster.act(view, there, prompt=True)
    assert cluster.groups == before


@given(st.integers(0, 2**32), st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_groups_settle_at_the_factor_asked_for_last(seed: int, factors: list[int], partitions: int) -> None:
    """It changes while members die, return and are drained. No group ever has fewer voters than are wanted at
    the time, or than it had; and in the end as many as are wanted, where they belong."""
    rng = random.Random(seed)
    cluster = Cluster(rng, partitions, factors[0], AGENTS[: rng.randrange(factors[0], 7)])
    lost: dict[str, int] = {}
    for turn in range(60):
        live = {agent for agent in AGENTS if rng.random() < 0.9}
        lost = {agent: lost.get(agent, turn) for agent in AGENTS if agent not in live}
        drained = rng.choice(AGENTS) if rng.random() < 0.1 else ""
        cluster.factor = factors[turn * len(factors) // 60]
        view = replace(members("".join(sorted(live)), lost, now_ms=turn, drained=drained), replace_after_ms=5)
        cluster.act(view, [agent for agent in AGENTS if not view.is_dead(agent)], prompt=False)
    view = replace(members(AGENTS, now_ms=1_000), replace_after_ms=5)
    cluster.settle(view, AGENTS)
    cluster.check_at_goal(view, AGENTS)


@given(st.integers(0, 2**32), st.integers(3, 6), st.integers(1, 3), st.integers(1, 64))
@settings(max_examples=40, deadline=None)
def test_a_newcomer_gets_its_share_and_little_else_moves(
    seed: int, count: int, factor: int, partitions: int
) -> None:
    """Every learner that was ever added stays, so that nothing is copied twice, and the copies are not many
    more than the newcomer's share; back without it, everything is where it was."""
    cluster = Cluster(random.Random(seed), partitions, factor, AGENTS[:count])
    born = [{r.agent_id for r in group.replicas} for group in cluster.groups]
    agents = AGENTS[: count + 1]
    view = members(agents)
    cluster.settle(view, agents)
    cluster.check_at_goal(view, agents)
    moved = sum(
        len({r.agent_id for r in group.replicas} - before)
        for group, before in zip(cluster.groups, born, strict=True)
    )
    assert cluster.added == moved
    share = -(-partitions * factor // (count + 1))
    assert moved <= 2 * share + 2
    left = members(agents, drained=agents[-1])
    cluster.settle(left, agents)
    assert [{r.agent_id for r in group.replicas} for group in cluster.groups] == born


# ---- voters that lost their memory --------------------------------------------------------------------


def test_a_lost_voter_is_replaced_elsewhere_before_it_goes() -> None:
    """Where another agent can take its place, the order is that of any replacement; nothing waits for
    replace_after, since it will never vote again."""
    configuration = Configuration.birth(("a", "b", "c"))
    lost = frozenset({configuration.replicas[2].id})
    steps: list[str] = []
    view = members("abcd")
    for _ in range(10):
        step = next_step(
            GROUP,
            configuration,
            goal(3, "abc"),
            leader=configuration.replicas[0].id,
            caught_up=frozenset(configuration.learners),
            members=view,
            lost=lost,
        )
        if step is None or isinstance(step, Transfer) or len(steps) == 3:
            break
        steps.append(type(step).__name__)
        assert len(configuration.voters) - len(lost) >= 2
        configuration = committed(configuration, step, frozenset(configuration.learners))
    assert steps == ["AddLearner", "Promote", "Remove"]
    assert lost.isdisjoint(configuration.voters)


def test_without_another_agent_a_lost_voter_makes_room_for_its_own_successor() -> None:
    """Three agents, three replicas: the lost one goes, and its agent gets a replica under a new id."""
    configuration = Configuration.birth(("a", "b", "c"))
    lost = frozenset({configuration.replicas[2].id})
    steps = []
    while True:
        step = next_step(
            GROUP,
            configuration,
            goal(3, "abc"),
            leader=configuration.replicas[0].id,
            caught_up=frozenset(configuration.learners),
            members=members("abc"),
            lost=lost,
        )
        if step is None:
            break
        steps.append(step)
        configuration = committed(configuration, step, frozenset(configuration.learners))
    assert [type(step) for step in steps] == [Remove, AddLearner, Promote]
    assert steps[1] == AddLearner("c")
    assert len(configuration.voters) == 3
    assert lost.isdisjoint(configuration.voters)


@pytest.mark.parametrize(("agents", "live"), [("abc", "ac"), ("ab", "ab"), ("a", "a")])
def test_a_lost_voter_stays_where_its_removal_could_leave_a_minority(agents: str, live: str) -> None:
    """Another voter is away, or nobody else is left: only the others' data could tell, so nothing is done."""
    configuration = Configuration.birth(tuple(agents))
    step = next_step(
        GROUP,
        configuration,
        goal(len(agents), agents),
        leader=configuration.replicas[0].id,
        caught_up=frozenset(),
        members=members(live),
        lost=frozenset({configuration.replicas[-1].id}),
        permits=NOTHING,
    )
    assert step is None


def test_a_lost_learner_goes_at_once() -> None:
    """It holds nothing that was counted."""
    born = Configuration.birth(("a", "b"))
    learner = Replica(ReplicaId(1, 1), "c", learner=True)
    configuration = Configuration(LogIndex(1), (*born.replicas, learner))
    step = next_step(
        GROUP,
        configuration,
        goal(3, "abc"),
        leader=born.replicas[0].id,
        caught_up=frozenset(),
        members=members("abc"),
        lost=frozenset({learner.id}),
    )
    assert step == Remove(learner.id)
