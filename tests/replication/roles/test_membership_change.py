"""Changing the members, one at a time; the section of the thesis stands in each docstring."""

from __future__ import annotations

import pytest
from raft_group import Group, make_core

from shoal.format.batch import LogIndex, Term
from shoal.replication.config import RaftConfig
from shoal.replication.errors import ChangePending, InvalidChange, NotLeader
from shoal.replication.interfaces import UNBORN, Configuration, Replica, ReplicaId, Run, StoredReplica
from shoal.replication.messages import MAX_CONFIGURATIONS, AppendRequest, TimeoutNow, Vote
from shoal.replication.raft import RaftCore, Role

A, B, C, D = (ReplicaId(0, ordinal) for ordinal in range(4))


def without(core: RaftCore, gone: ReplicaId) -> list[Replica]:
    """The replicas in force, but one."""
    return [replica for replica in core.configuration.replicas if replica.id != gone]


def promoted(core: RaftCore, learner: ReplicaId) -> list[Replica]:
    """The replicas in force, one learner made a voter."""
    return [
        Replica(item.id, item.agent_id) if item.id == learner else item
        for item in core.configuration.replicas
    ]


def test_a_change_takes_effect_when_it_is_appended() -> None:
    """Thesis 4.1: a server uses the latest configuration in its log, committed or not."""
    group = Group()
    leader = group.elect(0)
    proposal = leader.propose_configuration(without(leader, C), group.now_ms)
    assert leader.configuration.voters == (A, B)
    assert leader.configuration.index == proposal.first_index
    group.drain(0)
    group.settle()
    assert group.cores[1].configuration.voters == (A, B)


def test_a_new_replica_gets_the_id_of_its_entry() -> None:
    """Safety 2: (term, index) of the entry that added it, so that nobody is ever mistaken for a
    predecessor."""
    group = Group()
    leader = group.elect(0)
    replicas = [*leader.configuration.replicas, Replica(UNBORN, "z", learner=True)]
    proposal = leader.propose_configuration(replicas, group.now_ms)
    assert leader.configuration.learners == (ReplicaId(proposal.term, proposal.first_index),)


def test_only_one_change_at_a_time() -> None:
    """Thesis 4.1: a second change waits until the first is committed."""
    group = Group()
    leader = group.elect(0)
    leader.propose_configuration(without(leader, C), group.now_ms)
    with pytest.raises(ChangePending):
        leader.propose_configuration(without(leader, B), group.now_ms)
    group.drain(0)
    group.settle()
    leader.propose_configuration(without(leader, B), group.now_ms)


def test_a_change_waits_for_the_first_commit_of_the_term() -> None:
    """The erratum to thesis 4.1 (raft-dev, 2015): else two leaders change from one configuration in two
    ways."""
    group = Group()
    group.campaign(0)
    while group.cores[0].role is not Role.LEADER:
        group.deliver()
    group.mail.clear()
    with pytest.raises(ChangePending):
        group.cores[0].propose_configuration(without(group.cores[0], C), group.now_ms)


def test_a_follower_cannot_change_anything() -> None:
    """Only the leader appends."""
    group = Group()
    group.elect(0)
    with pytest.raises(NotLeader):
        group.cores[1].propose_configuration([], group.now_ms)


def test_impossible_changes_are_refused() -> None:
    """Thesis 4.1: one voter at a time; 4.2.1: by way of a learner; safety 2: an id keeps its agent."""
    group = Group(5)
    leader = group.elect(0)
    replicas = list(leader.configuration.replicas)
    wrong = [
        replicas[:3],  # two voters less
        [*replicas, Replica(UNBORN, "z")],  # a voter from nowhere
        [*replicas, Replica(ReplicaId(7, 7), "z", learner=True)],  # an id that is not its entry's
        [Replica(A, "z"), *replicas[1:]],  # another agent under an old id
        [*replicas, Replica(UNBORN, "a", learner=True)],  # two replicas on one agent
        [Replica(item.id, item.agent_id, learner=True) for item in replicas],  # no voter left
    ]
    before = leader.last_index
    for change in wrong:
        with pytest.raises(InvalidChange):
            leader.propose_configuration(change, group.now_ms)
    assert leader.last_index == before


def test_a_learner_is_promoted_when_it_has_caught_up() -> None:
    """Thesis 4.2.1: a new server catches up before it counts; else it holds up commits."""
    group = Group(3, learners=1)
    group.cut = {3}
    leader = group.elect(0)
    group.propose(0, 600)
    group.settle()
    with pytest.raises(InvalidChange, match="caught up"):
        leader.propose_configuration(promoted(leader, D), group.now_ms)
    group.cut = set()
    group.pass_time(2000)
    leader.propose_configuration(promoted(leader, D), group.now_ms)
    assert D in leader.configuration.voters


def test_learners_do_not_count_towards_a_commit() -> None:
    """Thesis 4.2.1: a non-voting member's copy is no part of a majority."""
    group = Group(3, learners=2)
    leader = group.elect(0)
    committed = leader.commit_index
    group.cut = {1, 2}
    group.propose(0)
    group.settle()
    assert group.cores[3].last_index == leader.last_index
    assert leader.commit_index == committed


def test_the_new_majority_commits_the_change() -> None:
    """Thesis 4.1: the new configuration's own majority commits its entry."""
    group = Group(2)
    leader = group.elect(0)
    group.cut = {1}
    leader.propose_configuration(without(leader, B), group.now_ms)
    group.drain(0)
    group.settle()
    assert leader.commit_index == leader.last_index


def test_no_voter_goes_while_too_few_of_the_others_follow() -> None:
    """C has crashed, and nobody has noticed it: without B the group could commit nothing, not even the change
    back. C itself may go."""
    group = Group()
    leader = group.elect(0)
    group.cut = {2}
    group.pass_time(group.config.election_timeout_ms + 100)
    assert leader.role is Role.LEADER
    with pytest.raises(ChangePending, match="follow"):
        leader.propose_configuration(without(leader, B), group.now_ms)
    leader.propose_configuration(without(leader, C), group.now_ms)
    group.drain(0)
    group.settle()
    assert leader.commit_index == leader.last_index


def test_a_new_leader_counts_on_no_voter_that_has_not_answered_it() -> None:
    """The former leader has crashed; the new one has heard nothing of it, however short a time it leads."""
    group = Group()
    group.elect(0)
    group.cut = {0}
    leader = group.elect(1)
    with pytest.raises(ChangePending, match="follow"):
        leader.propose_configuration(without(leader, C), group.now_ms)


def test_no_learner_votes_while_too_few_of_the_voters_then_follow() -> None:
    """Of two voters both must agree."""
    group = Group(1, learners=1)
    leader = group.elect(0)
    group.cut = {1}
    group.pass_time(group.config.election_timeout_ms + 100)
    with pytest.raises(ChangePending, match="follow"):
        leader.propose_configuration(promoted(leader, B), group.now_ms)


def test_voters_of_a_quiet_group_follow_until_their_agents_fall_silent() -> None:
    """Nobody is heard there (safety 25)."""
    config = RaftConfig(quiet_after_ms=2_000, commit_notice_ms=0)
    for silent in (False, True):
        group = Group(config=config)
        leader = group.elect(0)
        group.pass_time(config.election_timeout_ms * 20)
        assert leader.state.behaviour.quiet  # type: ignore[attr-defined]
        if silent:
            leader.peer_silent("c", group.now_ms)
            with pytest.raises(ChangePending, match="follow"):
                leader.propose_configuration(without(leader, B), group.now_ms)
        else:
            leader.propose_configuration(without(leader, B), group.now_ms)


def test_a_truncated_change_is_undone() -> None:
    """Thesis 4.1: if the entry is removed, the server falls back to the configuration before it."""
    group = Group()
    leader = group.elect(0)
    group.cut = {0}
    leader.propose_configuration(without(leader, C), group.now_ms)
    group.drain(0)
    group.now_ms += 2000
    group.campaign(1)
    group.settle()
    group.cut = set()
    group.pass_time(3000)
    assert all(core.configuration.index == 0 for core in group.cores.values())
    assert all(core.configuration.voters == (A, B, C) for core in group.cores.values())


def test_a_truncated_change_is_undone_after_a_restart() -> None:
    """The configuration before an uncommitted one is given to a restarted core, and found again."""
    old = Configuration.birth(("a", "b", "c"))
    new = Configuration(LogIndex(2), old.replicas[:2])
    core = make_core(1, log=[1, 1])
    core = type(core)(
        replica_id=B,
        stored=StoredReplica(
            hard_state=core.state.hard_state,
            configurations=[old, new],
            term_runs=[(LogIndex(1), Term(1))],
            first_index=LogIndex(1),
            last_index=LogIndex(2),
            commit_index=LogIndex(1),
        ),
        config=core.state.config,
        rng=core.state.rng,
        now_ms=0,
    )
    assert core.configuration == new
    run = Run(LogIndex(2), LogIndex(2), Term(2))
    core.step(AppendRequest(A, B, Term(2), LogIndex(1), Term(1), (run,), commit_index=LogIndex(1)), 0)
    assert core.configuration == old


def test_a_removed_leader_leads_until_that_is_committed() -> None:
    """Thesis 4.2.2: it does not count itself, steps down when the entry commits, and somebody else leads at
    once."""
    group = Group()
    leader = group.elect(0)
    leader.propose_configuration(without(leader, A), group.now_ms)
    group.drain(0)
    assert leader.role is Role.LEADER
    group.settle()
    assert leader.role is Role.FOLLOWER
    assert any(isinstance(message, TimeoutNow) for message in group.sent)
    assert group.leaders() in ([1], [2])
    assert leader.deadline() is None
    new = group.cores[group.leaders()[0]]
    group.propose(new.replica_id.index)
    group.settle()
    assert new.commit_index == new.last_index


def test_a_removed_replica_does_not_disturb() -> None:
    """Thesis 4.2.3: it never learnt of its removal, and asks; nobody hears it while there is a leader."""
    group = Group()
    leader = group.elect(0)
    group.cut = {2}
    leader.propose_configuration(without(leader, C), group.now_ms)
    group.drain(0)
    group.settle()
    group.cut = set()
    group.pass_time(5000)
    assert (leader.role, leader.term) == (Role.LEADER, 1)
    group.step(Vote(C, B, Term(50), LogIndex(99), Term(9)))
    assert group.cores[1].term == 1


def test_configurations_travel_with_their_entries() -> None:
    """A follower that was away adopts every configuration in order, however many there were."""
    group = Group()
    leader = group.elect(0)
    group.cut = {2}
    for number in range(MAX_CONFIGURATIONS + 4):
        replicas = list(leader.configuration.replicas)
        if number % 2:
            replicas = [item for item in replicas if not item.learner]
        else:
            replicas.append(Replica(UNBORN, f"z{number}", learner=True))
        leader.propose_configuration(replicas, group.now_ms)
        group.drain(0)
        group.settle()
    group.cut = set()
    group.pass_time(2000)
    assert group.cores[2].configuration == leader.configuration
    assert [item.index for item in group.cores[2].state.configurations] == [
        item.index for item in leader.state.configurations
    ]
