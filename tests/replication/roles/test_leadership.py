"""Hand-over, confirmed reads and quiet groups; the section of the thesis stands in each docstring."""

from __future__ import annotations

import pytest
from raft_group import Group, make_core

from shoal.format.batch import LogIndex, Term
from shoal.replication.config import RaftConfig
from shoal.replication.errors import InvalidChange, NotLeader, Overloaded, TransferInProgress
from shoal.replication.interfaces import ReplicaId, Run
from shoal.replication.messages import AppendReply, AppendRequest, PreVote, TimeoutNow, Vote
from shoal.replication.raft import Role

A, B, C = ReplicaId(0, 0), ReplicaId(0, 1), ReplicaId(0, 2)


# Transfer


def test_leadership_is_handed_over_within_a_round_trip() -> None:
    """Thesis 3.10: TimeoutNow to a target that has everything; it campaigns without asking first."""
    group = Group()
    leader = group.elect(0)
    leader.transfer_leadership(B, group.now_ms)
    group.drain(0)
    group.settle()
    assert group.leaders() == [1]
    assert all(
        message.transfer for message in group.sent if isinstance(message, Vote) and message.sender == B
    )


def test_the_target_gets_everything_first() -> None:
    """Thesis 3.10, step 2: the leader brings the target's log up to date before it lets go."""
    group = Group()
    leader = group.elect(0)
    group.held = {1}
    group.propose(0, 5)
    leader.transfer_leadership(B, group.now_ms)
    group.drain(0)
    group.settle()
    assert not any(isinstance(message, TimeoutNow) for message in group.sent)
    group.release(1)
    group.settle()
    assert group.leaders() == [1]
    assert group.cores[1].last_index == 7


def test_proposals_are_refused_meanwhile() -> None:
    """Thesis 3.10, step 1: the old leader stops accepting requests."""
    group = Group()
    leader = group.elect(0)
    leader.transfer_leadership(B, group.now_ms)
    with pytest.raises(TransferInProgress):
        leader.propose(1, group.now_ms)


def test_a_transfer_is_given_up_after_an_election_timeout() -> None:
    """Thesis 3.10: if the target fails, the old leader leads on and takes requests again."""
    group = Group()
    leader = group.elect(0)
    group.cut = {1}
    leader.transfer_leadership(B, group.now_ms)
    group.pass_time(500)
    assert leader.is_transferring
    group.pass_time(200)
    assert leader.role is Role.LEADER
    leader.propose(1, group.now_ms)


def test_a_lost_request_is_repeated() -> None:
    """The target's next heartbeat answer brings TimeoutNow again."""
    group = Group()
    leader = group.elect(0)
    leader.transfer_leadership(B, group.now_ms)
    group.drain(0)
    group.mail.clear()
    group.pass_time(200)
    assert group.leaders() == [1]


def test_the_most_up_to_date_voter_is_chosen() -> None:
    """Without a target, the reachable voter with the longest synced log leads next."""
    group = Group()
    leader = group.elect(0)
    group.held = {1}
    group.propose(0)
    group.settle()
    leader.transfer_leadership(None, group.now_ms)
    group.drain(0)
    group.settle()
    assert group.leaders() == [2]


def test_only_another_voter_can_take_over() -> None:
    """A learner, a stranger and the leader itself are refused; so is asking a follower."""
    group = Group(3, learners=1)
    leader = group.elect(0)
    for target in (A, ReplicaId(0, 3), ReplicaId(9, 9)):
        with pytest.raises(InvalidChange):
            leader.transfer_leadership(target, group.now_ms)
    with pytest.raises(NotLeader):
        group.cores[1].transfer_leadership(B, group.now_ms)


def test_timeout_now_is_taken_from_the_leader_only() -> None:
    """A late one of an older term, or one from somebody else, starts no election."""
    group = Group()
    group.elect(0)
    group.step(TimeoutNow(C, B, group.cores[1].term))
    group.step(TimeoutNow(A, B, Term(0)))
    assert group.leaders() == [0]
    assert group.cores[1].role is Role.FOLLOWER


def test_a_leader_whose_disk_hangs_hands_over() -> None:
    """Safety 26: a sync longer than two election timeouts must not hold the group."""
    group = Group()
    leader = group.elect(0)
    group.held = {0}
    group.propose(0)
    group.pass_time(1900)
    assert leader.role is not Role.LEADER
    assert group.leaders() in ([1], [2])


# Reads


def test_a_read_waits_for_a_majority_to_confirm() -> None:
    """Thesis 6.4, steps 3 and 4: a heartbeat round after the question proves that nobody else leads."""
    group = Group()
    leader = group.elect(0)
    leader.read_index(7, group.now_ms)
    group.drain(0)
    assert group.reads == []
    group.settle()
    assert group.reads == [(0, 7, leader.commit_index)]


def test_an_answer_to_an_earlier_round_proves_nothing() -> None:
    """Thesis 6.4: the heartbeats must have been sent after the read was asked."""
    group = Group()
    leader = group.elect(0)
    leader.read_index(1, group.now_ms)
    group.drain(0)
    old = [message for message in group.mail if isinstance(message, AppendRequest)]
    group.mail.clear()
    leader.read_index(2, group.now_ms)
    group.drain(0)
    group.mail.clear()
    for message in old:
        group.step(message)
    group.deliver()
    group.drain(0)
    assert [token for _, token, _ in group.reads] == [1]


def test_a_deposed_leader_answers_no_read() -> None:
    """Thesis 6.4: cut off, it can confirm nothing, and its check-quorum ends its rule."""
    group = Group()
    leader = group.elect(0)
    group.cut = {0}
    leader.read_index(1, group.now_ms)
    group.pass_time(2000)
    group.cut = set()
    group.pass_time(2000)
    assert group.reads == []


def test_a_read_before_the_first_commit_of_the_term_waits() -> None:
    """Thesis 6.4, step 1: until its no-op commits, a leader does not know what is committed."""
    group = Group(logs={0: [1, 1], 1: [1, 1], 2: [1, 1]})
    group.campaign(0)
    while group.cores[0].role is not Role.LEADER:
        group.deliver()
    group.cores[0].read_index(5, group.now_ms)
    group.settle()
    assert group.reads == [(0, 5, 3)]


def test_a_sole_voter_confirms_at_once() -> None:
    """It is a majority by itself."""
    group = Group(1)
    leader = group.elect(0)
    leader.read_index(3, group.now_ms)
    group.drain(0)
    assert group.reads == [(0, 3, 1)]


def test_a_read_needs_no_answer_of_a_voter_that_is_removed() -> None:
    """Of two voters one was asked and is silent. Without it the leader is a majority by itself: no one would
    ever answer that round, and all later reads wait for it (thesis 6.4)."""
    group = Group(2)
    leader = group.elect(0)
    group.cut = {1}
    leader.read_index(3, group.now_ms)
    group.drain(0)
    group.mail.clear()
    assert group.reads == []
    leader.propose_configuration([leader.configuration.replicas[0]], group.now_ms)
    group.drain(0)
    assert leader.configuration.voters == (A,)
    assert [token for _, token, _ in group.reads] == [3]


def test_reads_share_a_round() -> None:
    """Safety 23: a hundred reads of one turn cost one heartbeat to each follower."""
    group = Group()
    leader = group.elect(0)
    group.sent.clear()
    for token in range(100):
        leader.read_index(token, group.now_ms)
    group.drain(0)
    assert len(group.sent) == 2
    group.settle()
    assert [token for _, token, _ in group.reads] == list(range(100))


def test_waiting_reads_are_bounded() -> None:
    """A leader that can confirm nothing refuses more."""
    group = Group(config=RaftConfig(max_pending_reads=3, quiet_after_ms=None))
    leader = group.elect(0)
    group.cut = {0}
    for token in range(3):
        leader.read_index(token, group.now_ms)
    with pytest.raises(Overloaded):
        leader.read_index(4, group.now_ms)


# Quiet groups (safety 25)

QUIET = RaftConfig(quiet_after_ms=600, commit_notice_ms=0)


def quiet_group(voters: int = 3) -> Group:
    """A group in which every timer is off."""
    group = Group(voters, config=QUIET)
    group.elect(0)
    group.pass_time(1500)
    return group


def test_an_idle_group_goes_quiet() -> None:
    """Safety 25: all hold and know the whole commit, nobody keeps a timer, nothing is sent."""
    group = quiet_group()
    assert all(core.is_quiet and core.deadline() is None for core in group.cores.values())
    group.sent.clear()
    group.pass_time(60_000, step_ms=1000)
    assert group.sent == []
    assert group.leaders() == [0]


def test_a_leader_is_quiet_only_once_all_have_agreed() -> None:
    """Safety 25: it asks, and goes on with its heartbeats until the last reachable replica has said that its
    own timer is off; one that missed the question would campaign otherwise."""
    group = Group(config=QUIET)
    leader = group.elect(0)
    group.pass_time(500)

    def is_asked(message: object) -> bool:
        return isinstance(message, AppendRequest) and message.quiet

    for _ in range(30):
        group.now_ms += 10
        leader.wake(group.now_ms)
        group.drain(0)
        if any(map(is_asked, group.mail)):
            break
        group.settle()
    else:
        pytest.fail("the leader never asked")
    assert not leader.is_quiet
    group.deliver(lambda message: message.receiver == B)
    group.deliver(lambda message: message.sender == B)
    assert not leader.is_quiet
    assert leader.deadline() is not None
    group.settle()
    assert leader.is_quiet


def test_a_quiet_leader_hands_over_to_whoever_is_not_silent() -> None:
    """Nobody was asked to answer while the group was quiet, so nobody is unreachable for not having
    answered."""
    group = quiet_group()
    group.pass_time(5_000)
    group.cores[0].transfer_leadership(None, group.now_ms)
    assert group.cores[0].is_transferring
    group.settle()
    assert group.leaders() == [1]
    assert not group.cores[0].is_transferring


def test_without_a_voter_to_take_over_the_transfer_is_refused_at_once() -> None:
    """The agents of all others are silent: there is nothing to wait for, and the reason says so."""
    group = quiet_group()
    group.cut = {1, 2}
    for agent in ("b", "c"):
        group.cores[0].peer_silent(agent, group.now_ms)
    with pytest.raises(InvalidChange, match="no other voter can be reached"):
        group.cores[0].transfer_leadership(None, group.now_ms)


def test_a_group_with_something_unknown_does_not_go_quiet() -> None:
    """Safety 25: a reachable replica that does not hold the commit keeps the heartbeats going."""
    group = Group(config=QUIET)
    leader = group.elect(0)
    group.held = {2}
    group.propose(0)
    group.pass_time(1100)
    assert not leader.is_quiet
    group.release(2)
    group.pass_time(1000)
    assert leader.is_quiet


def test_a_quiet_leader_knows_whom_it_left_behind() -> None:
    """Who could not be reached hears nothing of a quiet group: it has what it missed once the leader was
    woken, which is quiet again afterwards and misses nobody."""
    group = Group(learners=1, config=QUIET)
    leader = group.elect(0)
    group.cut = {3}
    last = group.propose(0)
    group.pass_time(2_000)
    assert leader.is_quiet
    assert leader.left_behind == (ReplicaId(0, 3),)
    group.pass_time(5_000)
    assert group.cores[3].last_index < last, "its own questions are lost"
    group.cut = set()
    group.mail.clear()
    leader.wake_quiet(group.now_ms)
    assert leader.left_behind == ()
    group.pass_time(2_000)
    assert group.cores[3].commit_index == last
    assert leader.is_quiet
    assert leader.left_behind == ()


def test_a_late_answer_ends_the_quiet_and_what_it_left_behind() -> None:
    """A duplicate from before the question says that its sender keeps a timer: the leader asks anew (seed
    72045 of the core)."""
    group = Group(learners=1, config=QUIET)
    leader = group.elect(0)
    group.cut = {3}
    group.pass_time(2_000)
    assert leader.left_behind
    late = [m for m in group.sent if isinstance(m, AppendReply) and m.sender == B and not m.quiet][-1]
    group.step(late)
    assert not leader.is_quiet
    assert leader.left_behind == ()
    group.pass_time(2_000)
    assert leader.is_quiet


def test_a_proposal_ends_the_quiet() -> None:
    """The next append is an append like any other, and timers run again."""
    group = quiet_group()
    first = group.propose(0)
    group.settle()
    group.pass_time(110)
    assert all(core.commit_index == first for core in group.cores.values())
    assert all(core.deadline() is not None for core in group.cores.values())


def test_the_silence_of_the_leaders_agent_wakes_its_followers() -> None:
    """Safety 25: they campaign at random deadlines, and one of them leads."""
    group = quiet_group()
    group.cut = {0}
    for core in group.cores.values():
        core.peer_silent("a", group.now_ms)
    deadlines = [group.cores[ordinal].deadline() for ordinal in (1, 2)]
    assert all(item is not None and group.now_ms <= item < group.now_ms + 600 for item in deadlines)
    assert deadlines[0] != deadlines[1]
    group.pass_time(2000)
    assert [ordinal for ordinal in group.leaders() if ordinal] in ([1], [2])


def test_the_silence_of_another_agent_does_not() -> None:
    """A follower's death does not cost the others their quiet for long: the group is quiet again without
    it."""
    group = quiet_group()
    group.cut = {2}
    for _ in range(30):
        group.cores[0].peer_silent("c", group.now_ms)
        group.cores[1].peer_silent("c", group.now_ms)
        group.pass_time(100)
    assert group.cores[0].is_quiet
    assert group.cores[1].is_quiet


def test_silence_ends_the_lease_of_a_busy_leader_too() -> None:
    """The links notice a dead process sooner than a timer does: its followers need not wait the timer out."""
    group = Group(config=QUIET)
    group.elect(0)
    core = group.cores[1]
    core.peer_silent("a", group.now_ms)
    assert core.deadline() is not None
    assert (core.deadline() or 0) < group.now_ms + 600
    group.pass_time(100)
    assert core.leader == A, "it lives: the next heartbeat restores it"
    assert (core.deadline() or 0) >= group.now_ms + 500


def test_silence_said_again_restarts_no_timer() -> None:
    """peer_silent is called in every interval: it must not put the election off for ever."""
    group = quiet_group()
    core = group.cores[1]
    core.peer_silent("a", group.now_ms)
    deadline_ms = core.deadline()
    core.peer_silent("a", group.now_ms + 100)
    assert core.deadline() == deadline_ms


def test_a_quiet_leader_without_a_majority_of_agents_steps_down() -> None:
    """Safety 25 and check-quorum: silence of the others makes it ask, and nobody answers."""
    group = quiet_group()
    group.cut = {0}
    for name in "bc":
        group.cores[0].peer_silent(name, group.now_ms)
    group.pass_time(1500)
    assert group.leaders() == []


def test_being_asked_for_a_vote_wakes_a_quiet_leader() -> None:
    """A replica that restarted has a timer and no leader: its pre-vote brings it a heartbeat, not an
    election."""
    group = quiet_group()
    group.cores[2] = make_core(2, log=[1], term=1, config=QUIET, now_ms=group.now_ms)
    group.pass_time(2500)
    assert group.leaders() == [0]
    assert group.cores[0].term == 1
    assert group.cores[2].leader == A


def quiet_without(ordinal: int, *, learners: int = 0, new_term: bool = False) -> tuple[Group, int]:
    """A group that went quiet while one replica was away, and lacks the newest entries; who leads it."""
    group = Group(3, learners=learners, config=QUIET)
    group.elect(0)
    group.pass_time(1500)
    group.cut = {ordinal}
    agent = "abcdef"[ordinal]
    leader = 0
    if new_term:
        group.cores[0].transfer_leadership(B, group.now_ms)
        group.settle()
        leader = 1
    group.propose(leader, 3)
    for _ in range(20):
        for core in group.cores.values():
            core.peer_silent(agent, group.now_ms)
        group.pass_time(100)
    assert group.cores[leader].is_quiet
    assert group.cores[ordinal].last_index < group.cores[leader].last_index
    group.cut = set()
    group.mail.clear()
    group.restart(ordinal)
    return group, leader


@pytest.mark.parametrize("new_term", [False, True])
@pytest.mark.parametrize(("ordinal", "learners"), [(2, 0), (3, 1), (4, 2)])
def test_who_is_back_after_its_group_went_quiet_gets_what_it_missed(
    ordinal: int, learners: int, new_term: bool
) -> None:
    """Safety 25: a voter or a learner that was away asks, and need not wait for the next append. The term is
    the same as before: nothing was voted on."""
    group, leader = quiet_without(ordinal, learners=learners, new_term=new_term)
    term = group.cores[leader].term
    group.pass_time(2 * QUIET.election_timeout_ms + 3 * QUIET.heartbeat_interval_ms)
    assert group.cores[ordinal].commit_index == group.cores[leader].last_index
    assert (group.leaders(), group.cores[leader].term) == ([leader], term)
    group.pass_time(1500)
    assert all(core.is_quiet for core in group.cores.values())


def test_a_learner_with_everything_learns_what_is_committed() -> None:
    """A restart forgets the newest commit index: local reads would end before it, until somebody writes."""
    group = Group(3, learners=1, config=QUIET)
    group.elect(0)
    group.propose(0, 3)
    group.pass_time(1500)
    assert group.cores[0].is_quiet
    learner = group.restart(3)
    assert learner.commit_index < learner.last_index == group.cores[0].last_index
    group.pass_time(1500)
    assert learner.commit_index == learner.last_index


def test_a_learner_that_nobody_answers_asks_less_and_less() -> None:
    """Its questions to a group without a leader are few, move no timer of a voter, and end with the first
    heartbeat."""
    group = Group(3, learners=1, config=QUIET)
    group.cut = {0, 1, 2}
    learner = group.cores[3]
    group.pass_time(600_000, step_ms=50)
    asked = [message for message in group.sent if message.sender == learner.replica_id]
    assert {type(message) for message in asked} == {PreVote}
    assert 3 * 30 < len(asked) < 3 * 70
    timers = [group.cores[ordinal].deadline() for ordinal in range(3)]
    for message in asked[-3:]:
        group.step(message)
    assert timers == [group.cores[ordinal].deadline() for ordinal in range(3)]
    group.cut = set()
    group.pass_time(4_000)
    group.sent.clear()
    group.pass_time(60_000, step_ms=50)
    assert not [message for message in group.sent if isinstance(message, PreVote)]


def test_a_learner_ahead_of_a_voter_does_not_make_all_voters_campaign() -> None:
    """They would in the same instant, and split their votes; a voter that asks is one rival, not all."""
    group = Group(3, learners=1, logs={0: [1, 1], 1: [1, 1], 2: [1, 1], 3: [1]}, config=QUIET)
    timers = [group.cores[ordinal].deadline() for ordinal in range(3)]
    for ordinal in range(3):
        group.step(PreVote(ReplicaId(0, 3), ReplicaId(0, ordinal), Term(2), LogIndex(1), Term(1)))
    assert timers == [group.cores[ordinal].deadline() for ordinal in range(3)]
    group.step(PreVote(C, A, Term(2), LogIndex(1), Term(1)))
    assert group.cores[0].deadline() == group.now_ms


def test_a_replica_that_was_left_out_asks_for_nobody() -> None:
    """Its group would be woken for it for ever: it waits for its deletion (safety 4)."""
    group = Group(3, learners=1, config=QUIET)
    leader = group.elect(0)
    rest = [item for item in leader.configuration.replicas if item.id != ReplicaId(0, 3)]
    leader.propose_configuration(rest, group.now_ms)
    group.cores[3].state.append_runs(
        [Run(LogIndex(2), LogIndex(2), Term(1))], LogIndex(2), [leader.configuration]
    )
    assert group.cores[3].deadline() is None


def test_a_former_leader_may_replace_itself() -> None:
    """Quiet followers refuse candidates while they have a leader, but not when it is the leader that asks."""
    group = quiet_group()
    group.cores[0] = make_core(0, log=[1], term=1, vote=0, config=QUIET, now_ms=group.now_ms)
    group.pass_time(2500)
    assert group.leaders() == [0]
    assert group.cores[0].term == 2


def test_wake_quiet_starts_the_timers() -> None:
    """The host may end the quiet for any reason of its own."""
    group = quiet_group()
    for core in group.cores.values():
        core.wake_quiet(group.now_ms)
    assert all(core.deadline() is not None for core in group.cores.values())
    group.drain(0)
    assert any(isinstance(message, AppendRequest) for message in group.mail)


def test_a_late_quiet_request_is_undone_by_the_next_heartbeat() -> None:
    """Messages are reordered: a follower put to sleep by an old request wakes with the next one."""
    group = quiet_group()
    late = [m for m in group.sent if isinstance(m, AppendRequest) and m.quiet and m.receiver == B][-1]
    first = group.propose(0)
    group.settle()
    group.step(late)
    assert not group.cores[1].is_quiet, "it does not speak of the whole commit any more"
    group.pass_time(200)
    assert group.cores[1].commit_index == first


# Inspection


def test_what_a_driver_sees_and_the_one_line() -> None:
    """They say who leads what, without addresses or times."""
    group = Group()
    leader = group.elect(0)
    assert leader.role is Role.LEADER
    assert leader.match_indexes == {B: 1, C: 1}
    assert repr(leader) == (
        "0.0 leader term=1 vote=0.0 leader=0.0 log=1..1/1 stable=1 commit=1 configuration=(0.0,0.1,0.2)@0"
    )
    leader.step(AppendReply(B, A, leader.term, True, LogIndex(0), LogIndex(0)), group.now_ms)
    leader.check_invariants()
