"""Followers that no majority needs get entries a moment later, together (replication/roles/thrifty.py)."""

from raft_group import Group

from shoal.replication.config import RaftConfig
from shoal.replication.interfaces import ReplicaId
from shoal.replication.messages import AppendRequest, TimeoutNow
from shoal.replication.roles.thrifty import FIRST_PAUSE_DELAYS

DELAY_MS = 5
SPARING = RaftConfig(spare_delay_ms=DELAY_MS, quiet_after_ms=None, commit_notice_ms=0)


def led_group(voters: int = 3, *, learners: int = 0, config: RaftConfig = SPARING) -> Group:
    """Led by 0, long enough for the leader to know who is prompt."""
    group = Group(voters, learners=learners, config=config)
    group.elect(0)
    group.pass_time(2 * config.election_timeout_ms)
    group.propose(0)
    group.settle()
    group.pass_time(2 * DELAY_MS, 1)
    group.sent.clear()
    return group


def entries_to(group: Group) -> list[tuple[int, int, int]]:
    """(receiver, first, last) of each request with entries since the last look."""
    requests = [item for item in group.sent if isinstance(item, AppendRequest) and item.runs]
    group.sent.clear()
    return [(item.receiver.index, item.previous_index + 1, item.last_index) for item in requests]


def test_an_entry_goes_to_a_majority_and_to_the_others_a_moment_later_with_its_successors() -> None:
    """Thrifty: it commits without the spared one, which has everything after the delay, in one request."""
    group = led_group()
    first = group.propose(0)
    assert entries_to(group) == [(1, first, first)]
    group.settle()
    assert group.cores[0].commit_index == first
    group.propose(0)
    group.settle()
    assert entries_to(group) == [(1, first + 1, first + 1)]
    assert group.cores[2].last_index == first - 1
    deadline_ms = group.cores[0].deadline()
    assert deadline_ms is not None
    assert deadline_ms <= group.now_ms + DELAY_MS
    group.pass_time(DELAY_MS, 1)
    assert entries_to(group) == [(2, first, first + 1)]
    assert group.cores[2].commit_index == first + 1


def test_a_prompt_follower_that_fails_costs_the_delay_once() -> None:
    """The other one gets the entry when the time is up, and the next ones at once; after a while it is the
    prompt one."""
    group = led_group()
    group.cut.add(1)
    first = group.propose(0)
    group.settle()
    assert group.cores[0].commit_index < first
    group.pass_time(DELAY_MS, 1)
    assert group.cores[0].commit_index == first
    second = group.propose(0)
    group.settle()
    assert group.cores[0].commit_index == second
    group.pass_time(FIRST_PAUSE_DELAYS * DELAY_MS, 1)
    group.propose(0)
    group.settle()
    group.cut.clear()
    group.pass_time(2 * SPARING.retry_after_ms)
    group.sent.clear()
    last = group.propose(0)
    assert entries_to(group) == [(2, last, last)]


def test_where_a_majority_is_late_again_and_again_nobody_is_spared_for_longer_and_longer() -> None:
    """A leader whose own disk is slow needs both followers: it waits for the spared one a few times only."""
    group = led_group()
    group.held.add(0)
    late = 0
    started_ms = group.now_ms
    while group.now_ms < started_ms + 2 * SPARING.election_timeout_ms:
        last = group.propose(0)
        group.settle()
        late += group.cores[0].commit_index < last
        group.pass_time(2 * DELAY_MS, 1)
        assert group.cores[0].commit_index == last
    assert 1 < late < 10


def test_a_silent_prompt_follower_is_not_waited_for() -> None:
    """Its agent is known to be silent: the entry goes to everybody at once."""
    group = led_group()
    group.cores[0].peer_silent("b", group.now_ms)
    group.drain(0)
    group.sent.clear()
    first = group.propose(0)
    assert {receiver for receiver, _, _ in entries_to(group)} == {1, 2}
    group.cut.add(1)
    group.settle()
    assert group.cores[0].commit_index == first


def test_a_follower_that_has_to_catch_up_is_not_spared() -> None:
    """More than a request behind: it is kept busy, or it would never catch up."""
    config = RaftConfig(
        spare_delay_ms=DELAY_MS, quiet_after_ms=None, commit_notice_ms=0, max_entries_per_append=4
    )
    group = led_group(config=config)
    first = group.propose(0, 3)
    assert {receiver for receiver, _, _ in entries_to(group)} == {1}
    group.propose(0)
    assert (2, first, first + 3) in entries_to(group)


def test_five_voters_need_two_and_learners_none() -> None:
    """Just enough for a majority with the leader; everybody else is spared."""
    group = led_group(5, learners=1)
    first = group.propose(0)
    assert entries_to(group) == [(1, first, first), (2, first, first)]
    group.settle()
    assert group.cores[0].commit_index == first
    group.pass_time(DELAY_MS, 1)
    assert sorted(entries_to(group)) == [(3, first, first), (4, first, first), (5, first, first)]


def test_a_leader_that_hands_over_spares_nobody() -> None:
    """Its heir may be one that was spared, and needs everything first."""
    group = led_group()
    first = group.propose(0)
    entries_to(group)
    group.cores[0].transfer_leadership(ReplicaId(0, 2), group.now_ms)
    group.drain(0)
    assert entries_to(group) == [(2, first, first)]
    group.settle()
    assert group.leaders() == [2]
    assert group.cores[2].commit_index > first


def test_it_is_off_where_the_delay_is_none() -> None:
    """spare_delay_ms = 0: everybody at once."""
    group = led_group(config=RaftConfig(quiet_after_ms=None, commit_notice_ms=0))
    first = group.propose(0)
    assert entries_to(group) == [(1, first, first), (2, first, first)]
    assert not any(isinstance(item, TimeoutNow) for item in group.sent)


def test_it_is_on_only_where_all_voters_share_a_failure_domain() -> None:
    """A learner elsewhere is no obstacle; a voter that comes, goes or is told to be elsewhere is."""
    group = led_group(learners=1)
    core = group.cores[0]
    names = [item.agent_id for item in core.configuration.replicas]

    def receivers() -> list[int]:
        group.pass_time(2 * DELAY_MS, 1)
        group.propose(0)
        group.settle()
        group.pass_time(2 * DELAY_MS, 1)
        group.sent.clear()
        last = group.propose(0)
        found = sorted(receiver for receiver, first, _ in entries_to(group) if first == last)
        group.settle()
        return found

    assert receivers() == [1]
    core.set_colocated(frozenset(names[:2]))
    assert receivers() == [1, 2, 3]
    core.set_colocated(frozenset(names[:3]))
    assert receivers() == [1]
    core.set_colocated(frozenset())
    assert receivers() == [1, 2, 3]


def test_entries_that_were_withheld_are_sent_when_the_domains_turn_out_to_differ() -> None:
    """The time of the one that waits ends as it would have."""
    group = led_group()
    first = group.propose(0)
    assert entries_to(group) == [(1, first, first)]
    group.settle()
    group.cores[0].set_colocated(frozenset())
    group.pass_time(DELAY_MS, 1)
    assert (2, first, first) in entries_to(group)


def test_a_change_of_the_configuration_spares_nobody() -> None:
    """The prompt one may be gone, and another be needed."""
    group = led_group()
    first, _, third = group.cores[0].configuration.replicas
    group.cores[0].propose_configuration((first, third), group.now_ms)
    group.drain(0)
    group.settle()
    group.sent.clear()
    last = group.propose(0)
    assert entries_to(group) == [(2, last, last)]
    group.settle()
    assert group.cores[0].commit_index == last


def test_a_quiet_leader_spares_nobody() -> None:
    """It has no timer: a follower that comes back is sent everything to the last entry."""
    config = RaftConfig(spare_delay_ms=DELAY_MS, commit_notice_ms=0, max_entries_per_append=4)
    group = led_group(config=config)
    group.cut.add(2)
    last = group.propose(0, 6) + 5
    group.settle()
    group.pass_time(5_000)
    assert group.cores[0].is_quiet
    lost = [item for item in group.sent if isinstance(item, AppendRequest) and item.runs]
    group.cut.clear()
    group.step(next(item for item in reversed(lost) if item.receiver.index == 2))
    group.settle()
    assert group.cores[2].last_index == last


def test_a_spared_follower_that_asks_first_lets_the_prompt_one_win_at_once() -> None:
    """The leader dies between an acknowledgement and what the spared one was owed: its pre-vote is refused by
    who has more, and that one campaigns without waiting for its own timer."""
    group = led_group()
    group.propose(0)
    group.settle()
    group.cut.add(0)
    group.mail.clear()
    for ordinal in (1, 2):
        group.cores[ordinal].peer_silent("a", group.now_ms)
    prompt = group.cores[1]
    deadline_ms = prompt.deadline()
    assert deadline_ms is not None
    prompt.state.behaviour.election_deadline_ms = deadline_ms + 1_000  # type: ignore[union-attr]
    group.campaign(2)
    group.settle()
    assert prompt.deadline() == group.now_ms
    group.campaign(1)
    group.settle()
    assert group.leaders()[-1] == 1
