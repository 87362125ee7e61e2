"""Replicas whose logs are damaged: they vote by identity, lead only if nobody else can, and promise nothing
that they do not hold (safety 10)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from raft_group import Group, Role

from shoal.format.batch import LogIndex, Term
from shoal.replication.messages import AppendReply, PreVote, Vote


def entry(index: int) -> list[tuple[LogIndex, LogIndex]]:
    """One that does not verify."""
    return [(LogIndex(index), LogIndex(index))]


def test_a_damaged_follower_lets_the_others_campaign_first() -> None:
    """Of two voters without a leader the intact one leads, whatever the timers draw."""
    for seed in range(5):
        group = Group(logs={ordinal: [1] * 10 for ordinal in range(3)})
        group.cut = {2}
        for ordinal in (0, 1):
            group.cores[ordinal].state.rng.seed(seed)
        group.cores[0].damaged(entry(5), group.now_ms)
        group.pass_time(4_000)
        assert group.leaders() == [1]


def test_a_damaged_log_leads_when_no_other_can() -> None:
    """The intact one's log is shorter: it cannot win, and what the damaged one holds may be committed."""
    group = Group(logs={0: [1] * 10, 1: [1] * 9, 2: [1] * 9})
    group.cut = {2}
    group.cores[0].damaged(entry(5), group.now_ms)
    group.pass_time(20_000)
    assert group.leaders() == [0]


def test_damaged_entries_count_as_held_in_a_vote() -> None:
    """Log comparison is by identity: a shorter log gets no vote from a longer, damaged one."""
    group = Group(logs={0: [1] * 10, 1: [1] * 9, 2: [1] * 9})
    group.cores[0].damaged(entry(5), group.now_ms)
    core, candidate = group.cores[0], group.cores[1]
    ask = Vote(candidate.replica_id, core.replica_id, core.term + 1, LogIndex(9), core.term)  # type: ignore[arg-type]
    core.step(ask, group.now_ms)
    ready = core.ready()
    assert ready is not None
    answers = [*ready.messages, *ready.messages_after_sync]
    assert [message.granted for message in answers if hasattr(message, "granted")] == [False]


def test_leadership_is_not_handed_to_a_damaged_log() -> None:
    """TimeoutNow is not followed; the leader leads on when the time for the transfer is over."""
    group = Group()
    leader = group.elect(0)
    group.cores[1].damaged(entry(1), group.now_ms)
    leader.transfer_leadership(group.cores[1].replica_id, group.now_ms)
    group.pass_time(5_000)
    assert leader.role is Role.LEADER
    assert not leader.is_transferring
    group.cores[1].damaged((), group.now_ms)
    leader.transfer_leadership(group.cores[1].replica_id, group.now_ms)
    group.pass_time(2_000)
    assert group.leaders() == [1]


def test_a_follower_acknowledges_nothing_past_damage_that_is_not_committed() -> None:
    """Its copy of the entry is gone, so it must not make the majority; mended, it is counted."""
    group = Group()
    leader = group.elect(0)
    group.cut = {2}
    group.settle()
    committed = leader.commit_index
    follower = group.cores[1]
    group.cut = {1, 2}
    group.propose(0, 3)
    group.drain(0)
    follower.damaged(entry(committed + 2), group.now_ms)
    group.cut = {2}
    group.pass_time(1_000)
    assert follower.last_index == leader.last_index == committed + 3
    assert leader.commit_index == committed + 1
    assert all(
        message.match_index <= committed + 1
        for message in group.sent
        if isinstance(message, AppendReply) and message.sender == follower.replica_id
    )
    follower.damaged((), group.now_ms)
    group.pass_time(1_000)
    assert leader.commit_index == committed + 3


@pytest.mark.parametrize("stretches", [((1, 1), (2, 2)), ((1, 3),), ((2, 3), (1, 1))])
def test_damage_in_what_is_committed_does_not_hide_damage_behind_it(
    stretches: tuple[tuple[int, int], ...],
) -> None:
    """Two stretches, or one across the end of what is committed: an entry of which the only other copy does
    not verify is not committed. Counted from the last committed entry."""
    group = Group()
    leader = group.elect(0)
    group.propose(0, 3)
    group.settle()
    group.cut = {2}
    follower, committed = group.cores[1], leader.commit_index
    group.cut = {1, 2}
    group.propose(0, 3)
    group.drain(0)
    places = [(LogIndex(committed - 1 + first), LogIndex(committed - 1 + last)) for first, last in stretches]
    follower.damaged(places, group.now_ms)
    group.cut = {2}
    group.pass_time(1_000)
    assert leader.commit_index == committed
    follower.damaged((), group.now_ms)
    group.pass_time(1_000)
    assert leader.commit_index == committed + 3


def test_a_leader_does_not_count_its_own_damaged_copy() -> None:
    """With one follower that has it, an entry has one copy of two."""
    group = Group()
    leader = group.elect(0)
    group.settle()
    committed = leader.commit_index
    group.cut = {2}
    leader.damaged(entry(committed + 1), group.now_ms)
    group.propose(0, 1)
    group.pass_time(600)
    assert leader.commit_index == committed
    leader.damaged((), group.now_ms)
    group.pass_time(600)
    assert leader.commit_index == committed + 1


def test_damage_in_what_is_committed_holds_nothing_up() -> None:
    """Committed is committed, by other copies: appends behind it are acknowledged and commit."""
    group = Group()
    leader = group.elect(0)
    group.propose(0, 3)
    group.settle()
    group.cut = {2}
    leader.damaged(entry(2), group.now_ms)
    group.cores[1].damaged(entry(3), group.now_ms)
    group.propose(0, 2)
    group.settle()
    assert leader.commit_index == leader.last_index


def with_a_damaged_tail(voters: int) -> Group:
    """The first leads, and its last entry, of an earlier life and on no other disk, does not verify."""
    logs = {ordinal: [1] * 9 for ordinal in range(voters)} | {0: [1] * 9 + [2]}
    group = Group(voters, logs=logs, term=2)
    group.unreadable = {0: {10}}
    group.campaign(0)
    group.settle()
    assert group.leaders() == [0]
    group.cores[0].damaged(entry(10), group.now_ms)
    return group


@pytest.mark.parametrize("voters", [3, 4, 5])
def test_a_leader_steps_down_where_a_majority_lacks_what_it_cannot_send(voters: int) -> None:
    """It can neither send the entry nor cut its own log (Leader Append-Only, figure 3): another one leads,
    whose log takes the place of what was never committed (section 5.3), and everything goes on."""
    group = with_a_damaged_tail(voters)
    group.pass_time(4_000)
    (leader,) = group.leaders()
    assert leader != 0
    group.propose(leader, 2)
    group.pass_time(1_000)
    assert {core.commit_index for core in group.cores.values()} == {group.cores[leader].last_index}
    assert group.cores[0].term_at(LogIndex(10)) == group.cores[leader].term


def test_of_two_voters_the_leader_steps_down_so_that_a_newer_term_tells_who_lacks_it() -> None:
    """The other's log is shorter, it cannot lead; but in every new term it can say that it lacks the
    entry."""
    group = with_a_damaged_tail(2)
    term = group.cores[0].term
    group.pass_time(10_000)
    assert group.cores[1].term > term
    assert group.cores[1].last_index == 9


def test_a_leader_stays_where_a_minority_lacks_what_it_cannot_send() -> None:
    """With a silent third that may hold the entry, nobody else could be elected: it leads, and commits
    nothing."""
    group = with_a_damaged_tail(3)
    group.cut = {2}
    term = group.cores[0].term
    commit = group.cores[0].commit_index
    group.pass_time(4_000)
    assert (group.leaders(), group.cores[0].term) == ([0], term)
    assert group.cores[0].commit_index == commit


def with_a_removal_above_damage() -> Group:
    """The first leads; an entry of its own term does not verify, and above it it leaves out the second."""
    group = Group()
    leader = group.elect(0)
    group.settle()
    first = LogIndex(leader.commit_index + 1)
    group.unreadable = {0: {first}}
    group.propose(0, 1)
    leader.damaged(entry(first), group.now_ms)
    leader.propose_configuration(
        [item for item in leader.configuration.replicas if item.id.index != 1], group.now_ms
    )
    return group


def test_a_leader_asks_the_voter_too_whose_removal_waits_for_what_is_damaged() -> None:
    """What the others lack stands in their progress, what the removed one lacks in its question for votes."""
    group = with_a_removal_above_damage()
    committed = group.cores[0].commit_index
    group.pass_time(10_000)
    (leader,) = group.leaders()
    assert leader != 0
    assert group.cores[leader].commit_index > committed
    assert group.cores[0].commit_index == group.cores[leader].commit_index


def test_a_leader_stays_where_the_voter_it_removes_says_nothing() -> None:
    """It may hold what is damaged: nobody else could be elected."""
    group = with_a_removal_above_damage()
    group.cut = {1}
    term = group.cores[0].term
    group.pass_time(10_000)
    assert (group.leaders(), group.cores[0].term) == ([0], term)


def test_where_a_log_ends_says_whether_it_holds_what_is_damaged() -> None:
    """A removed voter whose log ends at the entry, in its term, has it: that is no reason to step down."""
    group = with_a_removal_above_damage()
    core, removed = group.cores[0], group.cores[1]
    group.cut = {1}
    held = LogIndex(core.last_index - 1)
    ask = PreVote(removed.replica_id, core.replica_id, Term(core.term + 1), held, core.term)
    term = core.term
    for _ in range(20):
        group.step(ask)
        group.pass_time(500)
    assert (group.leaders(), core.term) == ([0], term)
    group.step(replace(ask, last_index=LogIndex(held - 1)))
    group.pass_time(2 * group.config.election_timeout_ms)
    assert core.role is not Role.LEADER


def test_a_leader_whose_damage_is_mended_in_time_leads_on() -> None:
    """A copy from a peer ends it: the term goes on."""
    group = with_a_damaged_tail(3)
    term = group.cores[0].term
    group.pass_time(group.config.election_timeout_ms // 2)
    group.cores[0].damaged((), group.now_ms)
    group.unreadable.clear()
    group.pass_time(2_000)
    assert (group.leaders(), group.cores[0].term) == ([0], term)
    assert {core.commit_index for core in group.cores.values()} == {group.cores[0].last_index}


def test_damage_in_what_is_truncated_is_forgotten() -> None:
    """Another leader's entries take its place: they are acknowledged at once, whatever was there before."""
    group = Group(logs={0: [1] * 9 + [2] * 3, 1: [1] * 9, 2: [1] * 9}, term=2)
    group.cores[0].damaged([(LogIndex(9), LogIndex(11))], group.now_ms)
    group.cut = {0}
    group.elect(1)
    group.cut = {2}
    group.pass_time(2_000)
    assert group.cores[0].state.damaged == ((9, 9),)
    group.propose(1)
    group.pass_time(1_000)
    assert group.cores[0].commit_index == group.cores[0].last_index == 11
