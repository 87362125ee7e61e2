"""Log replication and commit, one test per rule; the section of the paper (or thesis) stands in each
docstring."""

from __future__ import annotations

from dataclasses import replace

import pytest
from raft_group import Group, make_core

from shoal.format.batch import LogIndex, Term
from shoal.replication.config import RaftConfig
from shoal.replication.errors import NotLeader, Overloaded
from shoal.replication.interfaces import ReplicaId, Run, StoredReplica
from shoal.replication.messages import AppendReply, AppendRequest, Message, shorten
from shoal.replication.raft import RaftCore, Role
from shoal.replication.state.ready import Ready

A, B, C = ReplicaId(0, 0), ReplicaId(0, 1), ReplicaId(0, 2)


def append(
    previous: tuple[int, int], *runs: tuple[int, int, int], term: int = 0, commit: int = 0
) -> AppendRequest:
    """A's request to B; its term is that of the last entry unless given."""
    made = tuple(Run(LogIndex(first), LogIndex(last), Term(run_term)) for first, last, run_term in runs)
    return AppendRequest(
        sender=A,
        receiver=B,
        term=Term(term or (made[-1].term if made else previous[1])),
        previous_index=LogIndex(previous[0]),
        previous_term=Term(previous[1]),
        runs=made,
        commit_index=LogIndex(commit),
    )


def terms(core: RaftCore) -> list[int]:
    """The term of every entry."""
    return [core.term_at(LogIndex(index)) or 0 for index in range(1, core.last_index + 1)]


def take(core: RaftCore) -> Ready:
    """The one ready that must be there."""
    ready = core.ready()
    assert ready is not None
    return ready


def reply_to(core: RaftCore, request: AppendRequest) -> AppendReply:
    """Step a request, sync, and give the answer."""
    core.step(request, 0)
    ready = take(core)
    core.advance(ready)
    core.check_invariants()
    (reply,) = (*ready.messages, *ready.messages_after_sync)
    assert isinstance(reply, AppendReply)
    return reply


def test_a_leader_opens_its_term_with_an_entry() -> None:
    """Section 8: a no-op at the start of its term tells a leader what is committed."""
    group = Group(logs={0: [1], 1: [1], 2: [1]})
    leader = group.elect(0)
    assert terms(leader) == [1, 2]
    assert all(core.commit_index == 2 for core in group.cores.values())


def test_the_noop_is_named_and_lies_inside_the_append() -> None:
    """Section 8, ready.py: the driver stamps the no-op at noop_index, with the term of its run."""
    core = make_core(0, voters=1)
    core.wake(0)
    core.advance(take(core))
    ready = take(core)
    assert ready.noop_index == 1
    assert ready.append == (Run(LogIndex(1), LogIndex(1), Term(1)),)
    assert ready.role_changed


def test_entries_reach_everybody_and_commit() -> None:
    """Section 5.3: once a majority has it the leader commits, and tells the followers."""
    group = Group()
    group.elect(0)
    first = group.propose(0, 3)
    group.settle()
    assert first == 2
    assert [core.commit_index for core in group.cores.values()] == [4, 4, 4]


def test_a_proposal_says_where_it_stands() -> None:
    """Indices are dense, the term is the leader's, and previous_term chains to the entry before (safety
    7)."""
    group = Group(logs={0: [1, 1], 1: [1], 2: [1]})
    leader = group.elect(0)
    assert leader.propose(2, group.now_ms) == (2, 4, 2)
    assert leader.propose(1, group.now_ms) == (2, 6, 2)
    with pytest.raises(NotLeader) as error:
        group.cores[1].propose(1, group.now_ms)
    assert error.value.leader == A


def test_proposals_of_one_turn_leave_together() -> None:
    """Safety 26: one ready() a turn; ten proposals make one request to each follower, not ten."""
    group = Group()
    leader = group.elect(0)
    group.sent.clear()
    for _ in range(10):
        leader.propose(1, group.now_ms)
    group.drain(0)
    requests = [message for message in group.sent if isinstance(message, AppendRequest)]
    assert [(request.receiver, request.runs) for request in requests] == [
        (B, (Run(LogIndex(2), LogIndex(11), Term(1)),)),
        (C, (Run(LogIndex(2), LogIndex(11), Term(1)),)),
    ]


def test_nothing_commits_without_a_majority() -> None:
    """Section 5.3: an entry on a minority stays uncommitted, however long."""
    group = Group(5)
    leader = group.elect(0)
    committed = leader.commit_index
    group.cut = {2, 3, 4}
    group.propose(0)
    group.settle()
    assert leader.commit_index == committed


def test_the_own_copy_counts_after_its_sync() -> None:
    """G1, thesis 10.2.1: followers may be ahead of the leader's disk, and only synced copies count."""
    group = Group()
    leader = group.elect(0)
    group.held = {0}
    group.cut = {2}
    first = group.propose(0)
    group.settle()
    assert leader.commit_index == first - 1
    group.release(0)
    assert leader.commit_index == first


def test_a_majority_of_followers_may_commit_before_the_leader_has_synced() -> None:
    """Thesis 10.2.1: the leader's own disk is not needed where the others are a majority."""
    group = Group()
    leader = group.elect(0)
    group.held = {0}
    first = group.propose(0)
    group.settle()
    assert leader.commit_index == first


def test_an_acknowledgement_waits_for_the_disk() -> None:
    """G1: the follower's answer is a promise, and stands in messages_after_sync."""
    core = make_core(1)
    core.step(append((0, 0), (1, 2, 1)), 0)
    ready = take(core)
    assert ready.append == (Run(LogIndex(1), LogIndex(2), Term(1)),)
    assert not ready.messages
    (reply,) = ready.messages_after_sync
    assert isinstance(reply, AppendReply)
    assert reply.match_index == 2


def test_a_heartbeat_is_answered_while_the_disk_is_slow() -> None:
    """Safety 24 and 26: it claims only what is synced, and so need not wait."""
    core = make_core(1, log=[1], term=1)
    core.step(append((1, 1), (2, 3, 1)), 0)
    waiting = take(core)
    core.step(append((3, 1)), 0)
    (reply,) = take(core).messages
    assert isinstance(reply, AppendReply)
    assert (reply.accepted, reply.match_index) == (True, 1)
    core.advance(waiting)
    assert core.stable_index == 3


def test_the_consistency_check() -> None:
    """Section 5.3, AppendEntries rule 2: no entry at previous_index with previous_term, no success."""
    core = make_core(1, log=[1, 1, 2])
    assert not reply_to(core, append((4, 2), (5, 5, 2))).accepted
    assert not reply_to(core, append((3, 1), (4, 4, 3))).accepted
    assert reply_to(core, append((3, 2), (4, 4, 3))).accepted


def test_conflicting_entries_are_removed() -> None:
    """Section 5.3, AppendEntries rules 3 and 4: delete the conflict and all that follow, append the new."""
    core = make_core(1, log=[1, 1, 2, 2])
    core.step(append((2, 1), (3, 3, 3)), 0)
    ready = take(core)
    assert ready.truncate_from == 3
    assert ready.append == (Run(LogIndex(3), LogIndex(3), Term(3)),)
    assert terms(core) == [1, 1, 3]


def test_an_old_request_removes_nothing() -> None:
    """Section 5.3: only a conflict truncates; a request that arrives late and holds a prefix does not."""
    core = make_core(1, log=[1, 1])
    reply_to(core, append((2, 1), (3, 5, 1)))
    reply = reply_to(core, append((0, 0), (1, 1, 1)))
    assert (reply.accepted, reply.match_index) == (True, 1)
    assert terms(core) == [1] * 5


def test_repeated_and_reordered_requests_change_nothing() -> None:
    """Section 5.5: requests are idempotent. What has been taken is acknowledged again, in any order and as
    often as it comes, a vote is given again to whom it was given, and nothing is written twice."""
    core = make_core(1, term=1)
    requests = [append((0, 0), (1, 2, 1)), append((2, 1), (3, 3, 1)), append((3, 1), (4, 6, 1))]
    for request in requests:
        reply_to(core, request)
    for request in [*requests[::-1], *requests, requests[0], requests[0]]:
        core.step(request, 0)
        ready = core.ready()
        assert ready is not None
        assert (ready.append, ready.truncate_from, ready.hard_state) == ((), None, None)
        (reply,) = [*ready.messages, *ready.messages_after_sync]
        assert isinstance(reply, AppendReply)
        assert (reply.accepted, reply.match_index) == (True, request.last_index)
        core.advance(ready)
    assert terms(core) == [1] * 6


def test_a_committed_entry_is_never_replaced() -> None:
    """Section 5.4: a request that wants to is impossible; it is dropped and counted."""
    core = make_core(1, log=[1, 1, 1], commit=3)
    core.step(append((1, 1), (2, 2, 4)), 0)
    assert terms(core) == [1, 1, 1]
    assert core.violation_count == 1


def test_a_follower_commits_no_more_than_it_was_sent() -> None:
    """AppendEntries rule 5 (figure 2): min(leader's commit, last new entry): what lies beyond may be another
    branch."""
    core = make_core(1, log=[1, 1, 1, 1])
    reply_to(core, append((1, 1), (2, 2, 1), term=2, commit=4))
    assert core.commit_index == 2


@pytest.mark.parametrize(
    ("follower", "expected"),
    [
        # Figure 7: the follower's log may lack entries, have extra ones, or both.
        ([1, 1, 1, 4, 4, 5, 5, 6, 6], "a"),
        ([1, 1, 1, 4], "b"),
        ([1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6], "c"),
        ([1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7], "d"),
        ([1, 1, 1, 4, 4, 4, 4], "e"),
        ([1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3], "f"),
    ],
)
def test_figure_7(follower: list[int], expected: str) -> None:
    """Section 5.3: the leader brings every follower of figure 7 to its own log."""
    leader_log = [1, 1, 1, 4, 4, 5, 5, 6, 6, 6]
    group = Group(logs={0: leader_log, 1: follower, 2: leader_log})
    for core in group.cores.values():
        core.step(AppendReply(C, core.replica_id, Term(7), False, LogIndex(0), LogIndex(0)), 0)
    leader = group.elect(0)
    group.pass_time(1000)
    assert terms(group.cores[1]) == terms(leader) == [*leader_log, leader.term], expected


def test_back_off_skips_a_whole_term_at_a_time() -> None:
    """Section 5.3: a refusal names term and index, so that one round trip per term is enough, not one per
    entry."""
    group = Group(logs={0: [1] + [4] * 200, 1: [1] + [2] * 100 + [3] * 100, 2: [1] + [4] * 200})
    group.cores[0].step(AppendReply(C, A, Term(4), False, LogIndex(0), LogIndex(0)), 0)
    group.elect(0)
    refusals = [m for m in group.sent if isinstance(m, AppendReply) and m.sender == B and not m.accepted]
    assert len(refusals) <= 2
    assert terms(group.cores[1]) == terms(group.cores[0])


def test_old_terms_are_not_committed_by_counting() -> None:
    """Section 5.4.2, figure 8: an entry of an older term commits only under one of the current term."""
    group = Group(
        5, logs={0: [1, 2], 1: [1, 2], 2: [1], 3: [1], 4: [1]}, config=RaftConfig(max_entries_per_append=1)
    )
    group.campaign(0)
    group.deliver(lambda m: not isinstance(m, AppendRequest))
    leader = group.cores[0]
    while leader.role is not Role.LEADER:
        assert group.deliver(lambda m: not isinstance(m, AppendRequest))
    # Replicate index 2 (term 2) to everybody, but never the entry of the new term after it.
    for _ in range(10):
        group.mail = [m for m in group.mail if not brings_the_new_term(group, m)]
        if not group.deliver():
            break
    assert all(core.term_at(LogIndex(2)) == 2 for core in group.cores.values())
    assert leader.commit_index < 2
    group.pass_time(1000)
    assert leader.commit_index == 3


def brings_the_new_term(group: Group, message: Message) -> bool:
    """Whether a request would give index 3 to a replica that has index 2."""
    receiver = group.cores[message.receiver.index]
    return isinstance(message, AppendRequest) and message.last_index > 2 <= receiver.last_index


def test_a_flight_is_bounded() -> None:
    """Thesis 10.2.2: a follower that does not answer holds a bounded number of requests."""
    config = RaftConfig(max_entries_per_append=1, max_inflight_appends=4, quiet_after_ms=None)
    group = Group(config=config)
    leader = group.elect(0)
    for _ in range(20):
        group.propose(0)
        group.settle()
    group.sent.clear()
    group.cut = {1}
    for _ in range(50):
        group.propose(0)
        group.settle()
    to_b = [m for m in group.sent if isinstance(m, AppendRequest) and m.receiver == B and m.runs]
    assert len(to_b) == 4
    assert leader.commit_index == leader.last_index


def test_a_pipeline_does_not_wait_for_answers() -> None:
    """Thesis 10.2.2: entries proposed later leave while earlier ones are unacknowledged."""
    group = Group()
    group.elect(0)
    for _ in range(5):
        group.propose(0)
        group.settle()
    for number in range(3):
        group.propose(0)
        waiting = [m for m in group.mail if isinstance(m, AppendRequest) and m.receiver == B and m.runs]
        assert len(waiting) == number + 1


def test_a_lost_append_is_sent_again() -> None:
    """Section 5.3: the leader retries for ever."""
    group = Group()
    group.elect(0)
    first = group.propose(0)
    group.mail.clear()
    group.pass_time(700)
    assert all(core.commit_index == first for core in group.cores.values())


def test_a_gap_starts_the_flight_anew() -> None:
    """Section 5.3, with thesis 10.2.2: a request that arrives without the one before it is refused, and both
    are sent again at once."""
    group = Group()
    group.elect(0)
    for _ in range(5):
        group.propose(0)
        group.settle()
    group.propose(0)
    group.mail = [message for message in group.mail if message.receiver != B]
    group.propose(0)
    group.settle()
    assert group.cores[1].last_index == group.cores[0].last_index


def test_the_driver_may_shorten_a_request() -> None:
    """messages.shorten, RaftCore.shortened: the rest follows, and later requests begin smaller."""
    group = Group()
    leader = group.elect(0)
    for _ in range(3):
        group.propose(0)
        group.settle()
    group.propose(0, 10)
    (request,) = (m for m in group.mail if isinstance(m, AppendRequest) and m.receiver == B and m.runs)
    group.mail.remove(request)
    group.mail.append(shorten(request, LogIndex(request.previous_index + 3)))
    leader.shortened(B, LogIndex(request.previous_index + 3))
    group.drain(0)
    following = [m for m in group.mail if isinstance(m, AppendRequest) and m.receiver == B and m.runs][1]
    assert following.runs == (
        Run(LogIndex(request.previous_index + 4), LogIndex(request.previous_index + 6), Term(1)),
    )
    group.settle()
    assert group.cores[1].last_index == leader.last_index


def test_uncommitted_entries_are_bounded() -> None:
    """A leader without a majority refuses proposals before its disk is full; one big proposal still
    passes."""
    group = Group(config=RaftConfig(max_uncommitted_entries=10, quiet_after_ms=None))
    leader = group.elect(0)
    group.cut = {0}
    leader.propose(50, group.now_ms)
    before = leader.last_index
    with pytest.raises(Overloaded):
        leader.propose(1, group.now_ms)
    assert leader.last_index == before


def test_commit_notices_are_bounded_in_time() -> None:
    """config.commit_notice_ms: with nothing to send, followers learn of a commit before the next
    heartbeat."""
    group = Group(config=RaftConfig(commit_notice_ms=10, quiet_after_ms=None))
    leader = group.elect(0)
    group.pass_time(150)
    first = group.propose(0)
    group.settle()
    assert group.cores[1].commit_index < first
    deadline_ms = leader.deadline()
    assert deadline_ms is not None
    assert deadline_ms <= group.now_ms + 10
    group.pass_time(10)
    assert group.cores[1].commit_index == first


def test_a_sync_of_truncated_entries_proves_nothing() -> None:
    """ready.py: a ready that ends after its entries were removed makes nothing stable."""
    core = make_core(1)
    core.step(append((0, 0), (1, 3, 1)), 0)
    old = take(core)
    core.step(append((0, 0), (1, 3, 2)), 0)
    new = take(core)
    assert new.truncate_from == 1
    core.advance(old)
    assert core.stable_index == 0
    core.advance(new)
    assert core.stable_index == 3


def test_entries_replaced_before_they_were_handed_out_need_no_truncation() -> None:
    """ready.py: what the disk never saw is not removed from it."""
    core = make_core(1)
    core.step(append((0, 0), (1, 3, 1)), 0)
    core.step(append((1, 1), (2, 2, 2)), 0)
    ready = take(core)
    assert ready.truncate_from is None
    assert ready.append == (Run(LogIndex(1), LogIndex(1), Term(1)), Run(LogIndex(2), LogIndex(2), Term(2)))


def test_what_is_gone_is_not_acknowledged() -> None:
    """An acknowledgement that waits for the disk is dropped with the entries it speaks of."""
    core = make_core(1)
    core.step(append((0, 0), (1, 3, 1)), 0)
    core.step(append((1, 1), (2, 2, 2)), 0)
    replies = take(core).messages_after_sync
    assert [(reply.term, reply.match_index) for reply in replies if isinstance(reply, AppendReply)] == [
        (2, 2)
    ]


def test_readies_are_advanced_in_order() -> None:
    """ready.py: the driver's mistake is an assertion."""
    core = make_core(1)
    core.step(append((0, 0), (1, 1, 1)), 0)
    take(core)
    core.step(append((1, 1), (2, 2, 1)), 0)
    second = take(core)
    with pytest.raises(AssertionError, match="in order"):
        core.advance(second)


def test_a_follower_behind_the_trimmed_head_needs_segments() -> None:
    """Safety 27: entries that retention has dropped are not invented; the leader says who needs whole
    segments."""
    group = Group(logs={0: [1] * 10, 1: [1] * 10, 2: []})
    group.cut = {2}
    leader = group.elect(0)
    leader.trimmed(LogIndex(6))
    group.cut = set()
    group.pass_time(1500)
    assert leader.needs_segments == (C,)
    assert leader.role is Role.LEADER
    # The driver ships segments; the receiver comes back with them, under the same id.
    group.cores[2] = make_core(2, log=[1] * 11, term=leader.term, config=group.config, now_ms=group.now_ms)
    leader.caught_up(C, LogIndex(11), group.now_ms)
    group.pass_time(500)
    assert leader.needs_segments == ()


def test_segments_up_to_the_very_end_are_noticed() -> None:
    """Safety 27: with no entry left to send, the heartbeat asks whether the logs are equal to their end."""
    group = Group(logs={0: [1] * 10, 1: [1] * 10, 2: []})
    group.cut = {2}
    leader = group.elect(0)
    leader.trimmed(LogIndex(leader.last_index))
    group.cut = set()
    group.pass_time(1500)
    assert leader.needs_segments == (C,)
    log = [1] * 10 + [leader.term]
    group.cores[2] = make_core(2, log=log, term=leader.term, config=group.config, now_ms=group.now_ms)
    leader.caught_up(C, leader.last_index, group.now_ms)
    group.pass_time(300)
    assert group.cores[2].commit_index == leader.commit_index == leader.last_index


def test_a_follower_that_lost_what_it_acknowledged_is_fed_again() -> None:
    """fsync switched off (safety 22): unsafe, and shown as such, but not a group that hangs for ever."""
    group = Group()
    leader = group.elect(0)
    group.propose(0, 5)
    group.settle()
    group.cores[1] = make_core(1, log=[1, 1], config=group.config, now_ms=group.now_ms)
    group.propose(0)
    group.pass_time(2000)
    assert group.cores[1].last_index == leader.last_index


def test_an_idle_group_feeds_a_follower_that_lost_its_end() -> None:
    """A last write that was damaged looks torn and is cleared (safety 9): the heartbeat at what the follower
    had acknowledged is refused, and believed though nothing is appended."""
    group = Group()
    leader = group.elect(0)
    group.propose(0, 5)
    group.pass_time(500)
    group.cores[1] = make_core(1, log=[1] * 3, term=leader.term, config=group.config, now_ms=group.now_ms)
    group.pass_time(500)
    assert group.cores[1].last_index == leader.last_index
    assert group.cores[1].commit_index == leader.commit_index


def test_a_restart_keeps_log_and_term() -> None:
    """Section 5.1, persistent state: what the disk has is what the core begins with; a commit hint is
    clamped."""
    core = make_core(1, log=[1, 1, 2], term=3, vote=0, commit=99)
    assert (core.term, core.last_index, core.commit_index) == (3, 3, 3)
    assert terms(core) == [1, 1, 2]


def test_what_retention_dropped_was_committed() -> None:
    """A commit hint older than the head of the log is raised to it."""
    core = make_core(1, log=[1] * 9, term=1)
    core.step(append((9, 1), commit=8), 0)
    core.trimmed(LogIndex(7))
    state = core.state
    restarted = RaftCore(
        replica_id=B,
        stored=StoredReplica(
            hard_state=state.hard_state,
            configurations=[core.configuration],
            term_runs=[(LogIndex(7), Term(1))],
            first_index=LogIndex(7),
            last_index=LogIndex(9),
            commit_index=LogIndex(2),
        ),
        config=state.config,
        rng=state.rng,
        now_ms=0,
    )
    assert restarted.commit_index == 6
    restarted.check_invariants()


def test_a_reply_for_entries_beyond_the_log_is_impossible() -> None:
    """No correct replica acknowledges what its leader does not have."""
    group = Group()
    leader = group.elect(0)
    reply = AppendReply(B, A, leader.term, True, LogIndex(0), LogIndex(99))
    leader.step(reply, group.now_ms)
    leader.step(replace(reply, match_index=LogIndex(1)), group.now_ms)
    assert leader.violation_count == 1
    leader.check_invariants()


def test_a_leader_only_appends_to_its_own_log() -> None:
    """Section 5.3 and figure 3, leader append-only: whatever it is told in its term, by followers that have
    more or something else, or by an impostor, its own entries stay as they are."""
    group = Group(logs={0: [1, 2], 1: [1, 1, 1, 1], 2: []})
    leader = group.elect(0)
    group.propose(0, 2)
    before = terms(leader)
    impostor = replace(append((1, 1), (2, 4, leader.term)), sender=C, receiver=A)
    leader.step(impostor, group.now_ms)
    assert leader.violation_count == 1
    truncated = [ready.truncate_from for ready in group.drain(0)]
    group.settle()
    assert not any(truncated)
    assert terms(leader) == before
    assert all(terms(core) == before for core in group.cores.values())
