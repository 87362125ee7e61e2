"""Elections, one test per rule; the section of the paper (or thesis) stands in each docstring."""

from __future__ import annotations

from dataclasses import replace

import pytest
from raft_group import Group, make_core

from shoal.format.batch import LogIndex, Term
from shoal.replication.config import RaftConfig
from shoal.replication.errors import ConfigError
from shoal.replication.interfaces import ReplicaId
from shoal.replication.messages import (
    AppendReply,
    AppendRequest,
    PreVote,
    PreVoteReply,
    TimeoutNow,
    Vote,
    VoteReply,
)
from shoal.replication.raft import RaftCore, Role
from shoal.replication.roles.transitions import LEGAL

A, B, C = ReplicaId(0, 0), ReplicaId(0, 1), ReplicaId(0, 2)


def vote(sender: ReplicaId, term: int, last: int = 0, last_term: int = 0, *, transfer: bool = False) -> Vote:
    """A request for B's vote."""
    return Vote(sender, B, Term(term), LogIndex(last), Term(last_term), transfer)


def heartbeat(sender: ReplicaId, term: int) -> AppendRequest:
    """A leader's sign of life to B."""
    return AppendRequest(sender, B, Term(term), LogIndex(0), Term(0), (), commit_index=LogIndex(0))


def vote_answers(core: RaftCore) -> list[bool]:
    """What a core answers candidates once its disk has synced."""
    answers = []
    while (ready := core.ready()) is not None:
        core.advance(ready)
        messages = (*ready.messages, *ready.messages_after_sync)
        answers += [item.granted for item in messages if isinstance(item, VoteReply | PreVoteReply)]
    return answers


def test_starts_as_follower() -> None:
    """Section 5.2: servers start up as followers."""
    assert make_core(1).role is Role.FOLLOWER


def test_campaigns_when_no_leader_is_heard() -> None:
    """Section 5.2: after an election timeout without a leader a follower begins an election."""
    group = Group(config=RaftConfig(pre_vote=False))
    group.campaign(1)
    core = group.cores[1]
    assert (core.role, core.term) == (Role.CANDIDATE, 1)
    assert {(m.receiver, type(m)) for m in group.sent} == {(A, Vote), (C, Vote)}


def test_election_timeouts_are_random_within_their_range() -> None:
    """Section 5.2: timeouts are drawn from [t, 2t), so that split votes are rare."""
    timeouts = []
    core = make_core(1)
    for now_ms in range(0, 1_000_000, 10_000):
        core.step(heartbeat(A, 1), now_ms)
        deadline_ms = core.deadline()
        assert deadline_ms is not None
        timeouts.append(deadline_ms - now_ms)
    assert all(600 <= item < 1200 for item in timeouts)
    assert len(set(timeouts)) > 50


def test_a_majority_of_votes_makes_a_leader() -> None:
    """Section 5.2: a candidate wins with votes from a majority of the full cluster."""
    group = Group(5)
    group.cut = {3, 4}
    assert group.elect(0).term == 1
    group = Group(5)
    group.cut = {2, 3, 4}
    group.campaign(0)
    group.settle()
    assert group.leaders() == []


def test_one_vote_per_term() -> None:
    """Section 5.2: a server votes for at most one candidate in a term, first come, first served."""
    core = make_core(1)
    core.step(vote(A, 1), 0)
    core.step(vote(C, 1), 0)
    core.step(vote(A, 1), 0)
    assert sorted(vote_answers(core)) == [False, True, True]


def test_a_vote_survives_a_restart() -> None:
    """Section 5.2, and safety 3: the vote is read back from disk."""
    core = make_core(1, term=4, vote=0)
    core.step(vote(C, 4), 0)
    assert vote_answers(core) == [False]
    core.step(vote(A, 4), 0)
    assert vote_answers(core) == [True]


@pytest.mark.parametrize(
    ("last", "last_term", "granted"),
    [(3, 2, True), (4, 2, True), (2, 2, False), (9, 1, False), (1, 3, True)],
)
def test_votes_for_logs_at_least_as_up_to_date(last: int, last_term: int, granted: bool) -> None:
    """Section 5.4.1: the voter denies its vote if its own log is more up to date."""
    core = make_core(1, log=[1, 1, 2])
    core.step(vote(A, 5, last, last_term), 0)
    assert vote_answers(core) == [granted]


def test_a_granted_vote_waits_for_the_disk() -> None:
    """Section 5.2, thesis 3.8, safety 3: term and vote are durable before the answer leaves."""
    core = make_core(1)
    core.step(vote(A, 1), 0)
    ready = core.ready()
    assert ready is not None
    assert ready.hard_state is not None
    assert (ready.hard_state.term, ready.hard_state.vote) == (1, A)
    assert not ready.messages
    assert [type(item) for item in ready.messages_after_sync] == [VoteReply]


def test_a_vote_in_a_term_that_is_on_disk_already_waits_too() -> None:
    """Section 5.2, safety 3: the term is known to the disk, the vote is not; a crash between answer and sync
    would let it vote again."""
    core = make_core(1, term=4)
    core.step(vote(A, 4), 0)
    ready = core.ready()
    assert ready is not None
    assert ready.hard_state is not None
    assert (ready.hard_state.term, ready.hard_state.vote) == (4, A)
    assert not ready.messages
    assert [type(item) for item in ready.messages_after_sync] == [VoteReply]


def test_a_candidate_asks_after_its_term_is_on_disk() -> None:
    """Safety 3: else a candidate that crashed could ask twice in one term, with two logs."""
    core = make_core(1, config=RaftConfig(pre_vote=False))
    core.wake(core.deadline() or 0)
    ready = core.ready()
    assert ready is not None
    assert ready.hard_state is not None
    assert not ready.messages
    assert {type(item) for item in ready.messages_after_sync} == {Vote}


def test_the_own_vote_counts_after_its_sync() -> None:
    """Safety 3: two votes from others do not make a leader whose own term is not on disk yet (here: one of
    two)."""
    core = make_core(0, voters=1)
    core.wake(0)
    ready = core.ready()
    assert ready is not None
    assert core.role is Role.PRE_CANDIDATE or core.role is Role.CANDIDATE
    core.advance(ready)
    assert core.role is Role.LEADER


def test_a_newer_term_turns_anybody_into_a_follower() -> None:
    """Section 5.1: a server that sees a higher term converts to follower at once."""
    group = Group()
    leader = group.elect(0)
    leader.step(AppendReply(B, A, Term(9), False, LogIndex(0), LogIndex(0)), group.now_ms)
    assert (leader.role, leader.term, leader.leader) == (Role.FOLLOWER, 9, None)


def test_a_stale_leader_is_told_the_term() -> None:
    """Section 5.1: requests with a stale term are rejected, and the answer carries the current one."""
    core = make_core(1, term=5)
    core.step(heartbeat(A, 3), 0)
    ready = core.ready()
    assert ready is not None
    assert ready.messages == (AppendReply(B, A, Term(5), False, LogIndex(0), LogIndex(0)),)


def test_a_candidate_yields_to_the_leader_of_its_term() -> None:
    """Section 5.2: a candidate that hears a leader of its own term returns to follower."""
    core = make_core(1, config=RaftConfig(pre_vote=False))
    core.wake(core.deadline() or 0)
    assert core.role is Role.CANDIDATE
    core.step(heartbeat(A, 1), 1000)
    assert (core.role, core.leader) == (Role.FOLLOWER, A)


def test_a_split_vote_is_tried_again() -> None:
    """Section 5.2: candidates that split the vote time out and begin a new election."""
    group = Group(4, config=RaftConfig(pre_vote=False))
    for ordinal in (0, 1):
        group.cores[ordinal].wake(10_000)
        group.drain(ordinal)
    group.now_ms = 10_000
    # Each reaches one other voter only: two votes of four are no majority.
    pairs = {(0, 2), (2, 0), (1, 3), (3, 1)}
    group.deliver(lambda m: (m.sender.index, m.receiver.index) in pairs)
    group.deliver(lambda m: (m.sender.index, m.receiver.index) in pairs)
    assert group.leaders() == []
    group.mail.clear()
    group.pass_time(3000)
    assert len(group.leaders()) == 1
    assert group.cores[0].term > 1


FIRST_MS, SECOND_MS = 50, 300
"""After a leader's death: when one follower misses it, whose connection is refused, and when the other
does."""


def missed(seed: int, behind: int) -> int:
    """After how many ms two followers, one of which lacks the leader's newest entry, have another leader."""
    group = Group()
    group.elect(0)
    group.pass_time(1_000 + seed % 100)
    group.cut.add(behind)
    group.propose(0)
    group.pass_time(20)
    group.cut = {0}
    for core in group.cores.values():
        core.state.rng.seed(seed)
    group.mail.clear()
    group.sent.clear()
    died_ms = group.now_ms
    first, second = (1, 2) if seed % 2 else (2, 1)
    for elapsed_ms in range(0, 5_000, 10):
        if elapsed_ms >= FIRST_MS:
            group.cores[first].peer_silent("a", group.now_ms)
        if elapsed_ms >= SECOND_MS:
            group.cores[second].peer_silent("a", group.now_ms)
        group.pass_time(10)
        if group.leaders()[-1] != 0:
            return group.now_ms - died_ms
    raise AssertionError(f"seed {seed}: {group.cores}")


@pytest.mark.parametrize("behind", [1, 2])
def test_who_was_refused_by_one_that_still_heard_the_leader_asks_again(behind: int) -> None:
    """It notices the death a quarter of a second later, and cannot win itself if its log is the shorter one:
    both had to wait for the end of their elections before, a second in one of three cases."""
    times = [missed(seed, behind) for seed in range(100)]
    assert max(times) <= SECOND_MS + RaftConfig().election_timeout_ms // 2 + 20, times


def test_a_split_vote_is_over_within_half_an_election_timeout() -> None:
    """Two candidates of three, and the third is gone: whoever was refused begins anew, and not both at once.
    Each by a pre-vote, so that nobody is disturbed who has won meanwhile."""
    times = []
    for seed in range(100):
        group = Group(logs={ordinal: [1] for ordinal in range(3)})
        group.cut = {0}
        for ordinal in (1, 2):
            core = group.cores[ordinal]
            core.state.rng.seed(10 * seed + ordinal)
            core.state.become_candidate(0, transfer=False)
            group.drain(ordinal)
        group.pass_time(10)
        assert [group.cores[ordinal].role for ordinal in (1, 2)] == [Role.CANDIDATE] * 2
        while not group.leaders():
            group.pass_time(10)
        times.append(group.now_ms)
    times.sort()
    assert times[90] <= RaftConfig().election_timeout_ms // 2 + 20, times
    assert times[-1] <= RaftConfig().election_timeout_ms, times


def test_pre_vote_moves_no_term() -> None:
    """Thesis 9.6: a server that cannot win does not raise the term, however often it tries."""
    group = Group()
    group.elect(0)
    group.cut = {2}
    term = group.cores[2].term
    for _ in range(5):
        group.campaign(2)
    assert group.cores[2].role is Role.PRE_CANDIDATE
    assert group.cores[2].term == term


def test_a_returning_replica_does_not_disturb() -> None:
    """Thesis 9.6: it asks, is refused because a leader is heard, and follows again."""
    group = Group()
    leader = group.elect(0)
    group.cut = {2}
    group.pass_time(3000)
    group.cut = set()
    group.pass_time(2000)
    assert (leader.role, leader.term) == (Role.LEADER, 1)
    assert group.cores[2].leader == A


def test_a_pre_vote_needs_a_good_log_and_a_silent_leader() -> None:
    """Thesis 9.6: consent is given only if the real vote would be."""
    core = make_core(1, log=[1, 1])
    ask = PreVote(C, B, Term(2), LogIndex(2), Term(1))
    core.step(replace(ask, last_index=LogIndex(1)), 0)
    core.step(ask, 0)
    core.step(heartbeat(A, 1), 10)
    core.step(ask, 20)
    core.step(ask, 10 + 600)
    assert vote_answers(core) == [False, True, False, True]


def test_votes_are_not_heard_while_there_is_a_leader() -> None:
    """Thesis 4.2.3: within the minimum election timeout of hearing a leader, a vote request changes
    nothing."""
    core = make_core(1)
    core.step(heartbeat(A, 1), 0)
    vote_answers(core)
    core.step(vote(C, 7), 100)
    assert (core.term, vote_answers(core)) == (1, [])
    core.step(vote(C, 7), 700)
    assert (core.term, vote_answers(core)) == (7, [True])


def test_a_transfer_is_heard_in_spite_of_the_leader() -> None:
    """Thesis 4.2.3, last paragraph: a hand-over carries a flag, and the lease does not refuse it."""
    core = make_core(1)
    core.step(heartbeat(A, 1), 0)
    core.step(vote(C, 2, transfer=True), 10)
    assert core.term == 2


def test_a_leader_that_hears_no_majority_steps_down() -> None:
    """Thesis 6.2: check-quorum, within two election timeouts; its followers may then vote."""
    group = Group()
    leader = group.elect(0)
    group.cut = {0}
    group.pass_time(1300)
    assert (leader.role, leader.leader) == (Role.FOLLOWER, None)


def test_without_check_quorum_it_leads_on() -> None:
    """The knob is what does it: switched off, a leader cut off never knows."""
    group = Group(config=RaftConfig(check_quorum=False, quiet_after_ms=None))
    leader = group.elect(0)
    group.cut = {0}
    group.pass_time(5000)
    assert leader.role is Role.LEADER


def test_a_learner_never_campaigns_but_votes_when_asked() -> None:
    """Thesis 4.2.1: when no leader is heard it asks for one, and stays what it is; asked as a voter (it may
    be one already), it answers."""
    learner = make_core(1, voters=1, learners=1)
    for _ in range(10):
        deadline_ms = learner.deadline()
        assert deadline_ms is not None
        learner.wake(deadline_ms)
    assert (learner.role, learner.term, learner.hard_state.vote) == (Role.FOLLOWER, Term(0), None)
    learner.step(TimeoutNow(A, B, Term(0)), 0)
    assert learner.role is Role.FOLLOWER
    learner.step(vote(A, 1), 0)
    assert vote_answers(learner) == [True]


def test_a_learners_vote_does_not_count() -> None:
    """Thesis 4.2.1: only voters of the candidate's configuration make it a leader."""
    group = Group(3, learners=2)
    group.cut = {1, 2}
    group.campaign(0)
    assert {message.receiver.index for message in group.sent} == {1, 2}
    group.step(PreVoteReply(ReplicaId(0, 3), A, Term(1), True))
    group.step(PreVoteReply(ReplicaId(0, 4), A, Term(1), True))
    assert group.cores[0].role is Role.PRE_CANDIDATE


def test_a_sole_voter_leads_at_once() -> None:
    """Nobody else can lead: no timeout is waited for."""
    assert make_core(0, voters=1, now_ms=50).deadline() == 50


def test_the_preferred_leader_of_a_newborn_group_goes_first() -> None:
    """Placement's first voter campaigns at once, so that a new topic serves without an election timeout."""
    assert make_core(0).deadline() == 0
    assert make_core(1).deadline() != 0
    assert make_core(0, log=[1]).deadline() != 0


def test_questions_are_repeated_until_answered() -> None:
    """A lost vote request costs a heartbeat interval, not an election timeout."""
    group = Group()
    group.campaign(0)
    group.mail.clear()
    group.pass_time(150)
    assert group.leaders() == [0]


def test_messages_for_another_replica_are_dropped() -> None:
    """Safety 2: one who lived on this agent before is somebody else."""
    core = make_core(1)
    core.step(replace(vote(A, 5), receiver=ReplicaId(3, 77)), 0)
    assert core.term == 0
    assert core.ready() is None


def test_two_leaders_in_a_term_are_an_impossibility_that_is_counted() -> None:
    """Section 5.2 (election safety): such a message is dropped, and the statistics say so."""
    core = make_core(1)
    core.step(heartbeat(A, 1), 0)
    core.step(heartbeat(C, 1), 0)
    assert core.leader == A
    assert core.violation_count == 1


def test_the_table_of_transitions_is_the_one_documented() -> None:
    """Section 5.1, figure 4, and transitions.py: twelve changes are legal; a leader only ever becomes a
    follower, and who becomes a leader was a candidate, but at a group's birth."""
    assert len(LEGAL) == 12
    assert {new for old, new in LEGAL if old is Role.LEADER} == {Role.FOLLOWER}
    assert {old for old, new in LEGAL if new is Role.LEADER} == {Role.CANDIDATE, Role.FOLLOWER}


@pytest.mark.parametrize(
    "change",
    [
        {"election_timeout_ms": 200},
        {"max_inflight_entries": 10},
        {"retry_after_ms": 50},
        {"commit_notice_ms": 101},
        {"quiet_after_ms": 100},
        {"sync_stall_ms": 100},
        {"max_uncommitted_entries": 0},
        {"max_entries_per_append": 5000, "max_inflight_entries": 5000},
    ],
)
def test_contradicting_knobs_are_refused(change: dict[str, int]) -> None:
    """Every cross-field rule of config.py; among them that of section 5.6: several heartbeats fit into an
    election timeout."""
    with pytest.raises(ConfigError):
        RaftConfig(**change).validate()
    RaftConfig().validate()


def test_candidates_of_an_older_term_are_told_the_newer_one() -> None:
    """RequestVote rule 1 (figure 2): an older term gets no vote; the answer carries the term, which ends the
    late candidacy (section 5.1). The same for a pre-vote (thesis 9.6)."""
    core = make_core(1, term=5)
    core.step(vote(A, 3, last=99, last_term=3), 0)
    core.step(PreVote(C, B, Term(4), LogIndex(99), Term(4)), 0)
    ready = core.ready()
    assert ready is not None
    assert ready.hard_state is None
    assert ready.messages == (VoteReply(B, A, Term(5), False), PreVoteReply(B, C, Term(5), False))


def test_a_leader_speaks_at_once_and_then_at_every_interval() -> None:
    """Rules for leaders, 1 (figure 2): upon election AppendEntries to everybody, repeated while idle so that
    no election timeout ends; no follower's timer ever does."""
    group = Group()
    leader = group.elect(0)
    assert {m.receiver for m in group.sent if isinstance(m, AppendRequest)} == {B, C}
    group.settle()
    for _ in range(50):
        group.sent.clear()
        deadline_ms = leader.deadline()
        assert deadline_ms is not None
        assert deadline_ms - group.now_ms <= group.config.heartbeat_interval_ms
        group.now_ms = deadline_ms
        leader.wake(group.now_ms)
        group.drain(0)
        assert {m.receiver for m in group.sent if isinstance(m, AppendRequest)} == {B, C}
        group.settle()
        timers = [core.deadline() for core in group.cores.values()]
        assert all(timer is not None and timer > group.now_ms for timer in timers)
    assert (leader.term, group.leaders()) == (1, [0])
