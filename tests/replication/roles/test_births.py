"""Groups whose first voter leads from birth: no election, few messages, and no second leader of that term."""

from __future__ import annotations

import pytest

from shoal.replication.config import RaftConfig
from shoal.replication.interfaces import HardState, ReplicaId
from shoal.replication.messages import AppendReply, AppendRequest, PreVote, Vote, VoteReply
from shoal.replication.raft import RaftCore, Role
from tests.replication.raft_group import Group, make_core

CONFIG = RaftConfig()
FIRST = ReplicaId(0, 0)


def newborn(ordinal: int, *, leads: bool = False, now_ms: int = 0) -> RaftCore:
    """One voter of three, as it is born."""
    return make_core(ordinal, term=1, vote=0, config=CONFIG, now_ms=now_ms, leads_from_birth=leads)


def group_of_newborns(*present: int) -> Group:
    """Led from birth; whoever is not present is not born yet."""
    group = Group(config=CONFIG)
    for ordinal in range(3):
        group.cores[ordinal] = newborn(ordinal, leads=ordinal == 0)
    group.cut.update({0, 1, 2} - set(present))
    return group


def bear(group: Group, ordinal: int) -> None:
    """Now."""
    group.cores[ordinal] = newborn(ordinal, now_ms=group.now_ms)
    group.cut.discard(ordinal)


def test_the_first_voter_leads_without_asking_and_eight_messages_later_all_is_quiet() -> None:
    """An entry, its acknowledgement, a heartbeat that asks for quiet, and the consent; for each follower."""
    group = group_of_newborns(0, 1, 2)
    assert group.cores[0].role is Role.LEADER
    group.settle()
    assert [group.cores[0].term, group.cores[0].commit_index] == [1, 1]
    group.pass_time(CONFIG.retry_after_ms)
    assert all(core.is_quiet and core.commit_index == 1 for core in group.cores.values())
    kinds = [type(message) for message in group.sent]
    assert sorted(kinds, key=str) == [AppendReply] * 4 + [AppendRequest] * 4


@pytest.mark.parametrize("late_ms", [100, 1_000, 2_000])
def test_who_is_born_later_gets_what_it_missed(late_ms: int) -> None:
    """Within a retry, and nobody has campaigned meanwhile."""
    group = group_of_newborns(0)
    group.pass_time(late_ms)
    bear(group, 1)
    group.pass_time(CONFIG.retry_after_ms + CONFIG.heartbeat_interval_ms)
    bear(group, 2)
    group.pass_time(2 * CONFIG.retry_after_ms)
    assert all(core.term == 1 and core.commit_index == 1 for core in group.cores.values())
    assert not [message for message in group.sent if isinstance(message, PreVote | Vote)]


def test_who_is_born_when_the_others_are_quiet_asks_for_what_it_missed() -> None:
    """The leader has given it up by then, and would tell it nothing of itself."""
    group = group_of_newborns(0, 1)
    group.pass_time(20 * CONFIG.election_timeout_ms)
    assert group.cores[0].left_behind == (ReplicaId(0, 2),)
    bear(group, 2)
    group.pass_time(7 * CONFIG.election_timeout_ms)
    assert [core.commit_index for core in group.cores.values()] == [1, 1, 1]
    assert [core.term for core in group.cores.values()] == [1, 1, 1]


def test_a_leader_waits_for_voters_that_are_not_born_until_something_is_wanted() -> None:
    """Nobody else could lead; but whoever wants something hears in time that nobody listens."""
    group = group_of_newborns(0)
    group.pass_time(20 * CONFIG.election_timeout_ms)
    assert group.cores[0].role is Role.LEADER
    group.propose(0)
    group.pass_time(CONFIG.election_timeout_ms + CONFIG.heartbeat_interval_ms)
    assert group.cores[0].role is not Role.LEADER


def test_nobody_else_wins_the_first_term() -> None:
    """Every voter is born with the vote that it would take: whoever asks hears no, before and after a
    restart."""
    group = group_of_newborns(1)
    for core in (group.cores[1], group.restart(1)):
        core.step(Vote(ReplicaId(0, 2), core.replica_id, 1, 5, 1), 0)
        ready = core.ready()
        assert ready is not None
        replies = [*ready.messages, *ready.messages_after_sync]
        assert [reply.granted for reply in replies if isinstance(reply, VoteReply)] == [False]


def test_the_others_elect_one_of_them_if_the_first_never_comes() -> None:
    """In a later term, after their patience."""
    group = group_of_newborns(1, 2)
    group.pass_time(4 * CONFIG.election_timeout_ms)
    assert group.leaders() == [0], "only the one that nobody can hear"
    group.pass_time(6 * CONFIG.election_timeout_ms)
    (leader,) = set(group.leaders()) - {0}
    assert group.cores[leader].term > 1
    assert group.cores[leader].commit_index == 1


def test_after_a_restart_the_first_voter_has_to_be_elected() -> None:
    """What it led before may be in others' logs, and not in its own: its first term is over."""
    group = group_of_newborns(0, 1, 2)
    group.held.add(0)
    group.settle()
    assert group.cores[1].last_index == 1
    core = group.restart(0)
    assert (core.role, core.last_index) == (Role.FOLLOWER, 0)
    assert core.state.hard_state == HardState(1, FIRST)
    group.pass_time(8 * CONFIG.election_timeout_ms)
    (leader,) = group.leaders()
    assert group.cores[leader].term > 1
    assert len({core.last_index for core in group.cores.values()}) == 1
    assert all(core.commit_index >= 2 for core in group.cores.values())
