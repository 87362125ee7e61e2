"""Groups that keep the order of each key, whose keys become known piece by piece."""

from __future__ import annotations

import pytest

from shoal.agent.groups.leader.candidates import FeedNotReady
from shoal.agent.groups.settings import GroupSettings
from shoal.agent.receive import ActKind, GroupMode
from tests.agent.groups.group_desk import GroupDesk, MemoryFeed, attempts

KEYED = GroupSettings(GroupMode.KEY_ORDERED)


def test_messages_that_come_again_are_given_while_the_keys_behind_them_are_read() -> None:
    """Nothing that was looked at is forgotten: 0 waits, and comes again before what cannot be read yet."""
    desk = GroupDesk(KEYED, MemoryFeed([7, 8]))
    delivery = desk.receive("a").delivery
    assert desk.act(ActKind.ACK, desk.receipt(delivery, 1)) == [None]
    assert desk.act(ActKind.NACK, desk.receipt(delivery, 0), delay_ms=0) == [None]
    desk.feed.hashes += [9, 9]
    desk.feed.unread = {2, 3}
    again = desk.receive("a")
    assert attempts(again) == {0: 2}
    with pytest.raises(FeedNotReady):
        desk.ask("a")
    assert desk.act(ActKind.NACK, desk.receipt(again.delivery, 0), delay_ms=0) == [None]
    desk.feed.unread = set()
    assert attempts(desk.receive("a")) == {0: 3, 2: 1, 3: 1}


def test_the_first_word_to_a_new_leader_takes_along_those_of_its_key() -> None:
    """It knows the keys in hand by then, though nothing has fallen due since it leads."""
    desk = GroupDesk(KEYED, MemoryFeed([7, 7, 8]))
    delivery = desk.receive("a").delivery
    desk.fail_over()
    assert desk.act(ActKind.NACK, desk.receipt(delivery, 0), delay_ms=0) == [None]
    assert attempts(desk.receive("b")) == {0: 2, 1: 1}
