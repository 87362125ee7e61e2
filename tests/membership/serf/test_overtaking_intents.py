"""An intent that overtakes the claim of the life that it is about, of a member that had left or failed."""

import pytest

from shoal.membership.config import GossipConfig
from shoal.membership.serf.member_list import IntentOutcome, MemberList
from shoal.membership.serf.ready import Status
from shoal.membership.swim.ready import Change, ChangeKind
from shoal.membership.wire.messages import VSN, Endpoint, State
from shoal.membership.wire.serf import JoinIntent, LeaveIntent, encode_tags


def change(kind: ChangeKind, incarnation: int, state: State) -> Change:
    return Change(kind, "n2", Endpoint(bytes((10, 0, 0, 2)), 7946), encode_tags({}), VSN, incarnation, state)


def comes(members: MemberList, incarnation: int) -> None:
    members.on_change(change(ChangeKind.JOIN, incarnation, State.ALIVE), 0)


def goes(members: MemberList, incarnation: int) -> None:
    members.on_change(change(ChangeKind.LEAVE, incarnation, State.DEAD), 0)


def status(members: MemberList) -> Status:
    member = members.get("n2")
    assert member is not None
    return member.status


def former_life(*, failed: bool) -> MemberList:
    """A list that saw n2 leave, or fail."""
    members = MemberList(GossipConfig.lan(name="me"))
    comes(members, 1)
    if not failed:
        members.on_leave_intent(LeaveIntent(5, "n2"), 0, leaving=False)
    goes(members, 1)
    assert status(members) == (Status.FAILED if failed else Status.LEFT)
    return members


@pytest.mark.parametrize("failed", [False, True])
def test_a_short_second_life_whose_end_is_told_first_ends_as_left(failed: bool) -> None:
    """A leave told before the claim of the life that it ends makes that life end as left."""
    members = former_life(failed=failed)
    assert members.on_leave_intent(LeaveIntent(9, "n2"), 0, leaving=False) is IntentOutcome.NEWS
    assert status(members) == Status.LEFT
    comes(members, 2)
    assert status(members) == Status.LEAVING
    goes(members, 2)
    assert status(members) == Status.LEFT


@pytest.mark.parametrize("failed", [False, True])
@pytest.mark.parametrize("claim_first", [False, True])
def test_who_returns_after_a_forced_leave_is_alive_by_its_join_intent(
    failed: bool, claim_first: bool
) -> None:
    """The intent is kept for a life that may be over; a newer word of that life undoes it."""
    members = former_life(failed=failed)
    members.on_leave_intent(LeaveIntent(9, "n2"), 0, leaving=False)
    if claim_first:
        comes(members, 2)
    assert members.on_join_intent(JoinIntent(10, "n2"), 0)
    if not claim_first:
        comes(members, 2)
    assert status(members) == Status.ALIVE
    goes(members, 2)
    assert status(members) == Status.FAILED


def test_what_a_peers_list_says_of_a_former_life_is_not_kept_for_the_next() -> None:
    """Its time is greater with each exchange, so it may be later than the join intent of the next life."""
    members = former_life(failed=False)
    members.on_leave_intent(LeaveIntent(9, "n2"), 0, leaving=False, told=False)
    comes(members, 2)
    assert status(members) == Status.ALIVE


def test_an_intent_is_kept_for_one_life() -> None:
    """A kept leave ends the next life alone: the one after it comes as alive."""
    members = former_life(failed=False)
    members.on_leave_intent(LeaveIntent(9, "n2"), 0, leaving=False)
    for incarnation, expected in ((2, Status.LEAVING), (3, Status.ALIVE)):
        comes(members, incarnation)
        assert status(members) == expected
        goes(members, incarnation)
