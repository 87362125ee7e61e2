"""A leave that meets an exchange under way: a member that was refused comes and goes within a second."""

import pytest

from shoal.membership.config import GossipConfig
from shoal.membership.serf.member_list import IntentOutcome, MemberList
from shoal.membership.serf.ready import EventKind, Status
from shoal.membership.swim.ready import Change, ChangeKind
from shoal.membership.wire.messages import VSN, Dead, Endpoint, State, User
from shoal.membership.wire.serf import JoinIntent, LeaveIntent, decode_serf, encode_tags
from tests.membership.pool import Pool, endpoint_of
from tests.membership.serf.test_core import Script

KNOWN_MS, BUSY_MS_MAX = 60, 1_500


@pytest.mark.parametrize("busy_ms", range(KNOWN_MS, BUSY_MS_MAX, 120))
def test_a_call_that_a_busy_member_answers_during_the_leave_does_not_undo_it(busy_ms: int) -> None:
    """The guest calls all its seeds; one answers, it is refused, and leaves before the other has answered."""
    pool = Pool(3, seed=busy_ms, acquainted=True)
    pool.start("guest", endpoint_of(9))
    pool.pause("n1", busy_ms)
    pool.join("guest", "n0")
    pool.join("guest", "n1")
    pool.run_for(KNOWN_MS)
    assert pool.view("n0")["guest"] == "alive"
    pool.leave("guest")
    pool.run_for(6_000)
    assert not pool.processes["guest"].alive
    assert [pool.view(name)["guest"] for name in ("n0", "n1", "n2")] == ["left"] * 3, pool.story()
    assert EventKind.FAILED not in {heard.kind for heard in pool.heard}, pool.story()


def test_who_leaves_does_not_announce_that_it_has_joined() -> None:
    """An exchange of a join that ends late; not even when it has told the others that it is dead."""
    script = Script()
    script.core.leave(script.now_ms)
    for pause_ms in (0, 1_500):
        script.run(pause_ms)
        script.core.announce_join(script.now_ms)
    script.run(5_000)
    assert script.core.has_left
    assert {type(message) for message in script.told()} == {LeaveIntent}
    assert script.status("me") == "left"


def test_who_holds_all_others_for_dead_says_to_them_that_it_leaves() -> None:
    """They may only have been slow, or we: a leave that nobody hears is a failure to everybody."""
    script = Script()
    script.hear(Dead(1, "n2", "n3"), Dead(1, "n3", "n2"))
    script.sent.clear()
    script.core.leave(script.now_ms)
    while not script.core.has_left:
        script.run(100)
        assert script.now_ms < 5_000
    intents = {
        receiver
        for receiver, message in script.sent
        if isinstance(message, User) and isinstance(decode_serf(message.payload), LeaveIntent)
    }
    deaths = {
        receiver for receiver, message in script.sent if isinstance(message, Dead) and message.node == "me"
    }
    assert len(intents) == len(deaths) == 2


def listed(ltime: int, *, is_known: bool) -> MemberList:
    """A list that took the time of an intent about n2 from a peer's list."""
    members = MemberList(GossipConfig.local(name="me"))
    if is_known:
        comes(members)
    assert members.on_join_intent(JoinIntent(ltime, "n2"), 0, told=False)
    if not is_known:
        comes(members)
    return members


def comes(members: MemberList) -> None:
    _change(members, ChangeKind.JOIN, State.ALIVE)


def goes(members: MemberList) -> None:
    _change(members, ChangeKind.LEAVE, State.LEFT)


def _change(members: MemberList, kind: ChangeKind, state: State) -> None:
    change = Change(kind, "n2", Endpoint(bytes((10, 0, 0, 2)), 7946), encode_tags({}), VSN, 1, state)
    members.on_change(change, 0)


def status(members: MemberList) -> Status:
    member = members.get("n2")
    assert member is not None
    return member.status


@pytest.mark.parametrize("is_known", [True, False])
def test_a_leave_whose_time_a_peers_list_had_already_is_news(is_known: bool) -> None:
    """The peer had heard the leave, and its list does not say so while the member is still there."""
    members = listed(7, is_known=is_known)
    intent = LeaveIntent(7, "n2")
    assert members.on_leave_intent(intent, 0, leaving=False) is IntentOutcome.NEWS
    assert members.on_leave_intent(intent, 0, leaving=False) is IntentOutcome.OLD
    goes(members)
    assert status(members) == Status.LEFT


def test_a_leave_that_comes_after_the_death_and_a_peers_list_is_news() -> None:
    """In the order list, death, leave the member has failed for a moment."""
    members = listed(7, is_known=True)
    goes(members)
    assert status(members) == Status.FAILED
    assert members.on_leave_intent(LeaveIntent(7, "n2"), 0, leaving=False) is IntentOutcome.NEWS
    assert status(members) == Status.LEFT


def test_a_leave_that_arrives_before_its_member_and_after_a_peers_list_is_kept() -> None:
    """For a member that is not known yet the same holds."""
    members = MemberList(GossipConfig.local(name="me"))
    assert members.on_join_intent(JoinIntent(7, "n2"), 0, told=False)
    assert members.on_leave_intent(LeaveIntent(7, "n2"), 0, leaving=False) is IntentOutcome.NEWS
    assert members.on_leave_intent(LeaveIntent(7, "n2"), 0, leaving=False) is IntentOutcome.OLD
    comes(members)
    assert status(members) == Status.LEAVING


@pytest.mark.parametrize("told", [True, False])
def test_a_leave_as_old_as_a_join_that_was_told_is_old(told: bool) -> None:
    """Only a list is in doubt: who joins says so with a time of its own."""
    members = MemberList(GossipConfig.local(name="me"))
    comes(members)
    assert members.on_join_intent(JoinIntent(7, "n2"), 0)
    assert members.on_leave_intent(LeaveIntent(7, "n2"), 0, leaving=False, told=told) is IntentOutcome.OLD
    assert status(members) == Status.ALIVE
