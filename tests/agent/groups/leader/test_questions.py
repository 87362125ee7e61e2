"""Waiting consumers: first come, first promised, and nothing surplus."""

from __future__ import annotations

import pytest

from shoal.agent.groups.leader.group_leader import Decision
from shoal.agent.groups.leader.key_locks import KeyOrder
from shoal.agent.groups.leader.questions import MAX_QUESTIONS, PROMISE_MS, Questions
from shoal.agent.groups.settings import GroupSettings
from shoal.agent.receive import NOBODY, ActKind, GroupMode, Question
from shoal.errors import ShoalError
from tests.agent.groups.group_desk import GroupDesk, MemoryFeed, name, offsets
from tests.agent.groups.leader.test_leases import counted

ASKED = Question(NOBODY, NOBODY, NOBODY)


def test_one_new_message_wakes_one_consumer() -> None:
    """The first who asked; the second when there is another."""
    desk = GroupDesk()
    first, second = desk.wait("a"), desk.wait("b")
    assert desk.promised() == []
    desk.feed.hashes.append(1)
    assert [promise.number for promise in desk.promised()] == [first]
    assert desk.promised() == []
    desk.feed.hashes.append(1)
    assert [promise.number for promise in desk.promised()] == [second]


def test_a_promise_holds_messages_back_from_others() -> None:
    """For those who ask without one there is nothing; the promised one gets it."""
    desk = GroupDesk(feed=MemoryFeed([1]))
    number = desk.wait("a")
    assert [promise.number for promise in desk.promised()] == [number]
    assert desk.refused("b") == "empty"
    assert offsets(desk.receive("a", promise=number)) == [0]


def test_a_promise_that_is_not_redeemed_is_forgotten() -> None:
    """After 200 ms anybody may have the message, and the deadline says when."""
    desk = GroupDesk(feed=MemoryFeed([1]))
    number = desk.wait("a")
    desk.promised()
    assert desk.leader.deadline_ms(desk.now_ms, desk.append_us) == desk.now_ms + PROMISE_MS
    desk.now_ms += PROMISE_MS
    assert offsets(desk.receive("b")) == [0]
    assert desk.refused("a", promise=number) == "empty"


def test_shares_are_what_was_asked_for() -> None:
    """Three messages: the first wants two, the second gets one, others nothing."""
    desk = GroupDesk(feed=MemoryFeed([1, 1, 1]))
    first, second, third = desk.wait("a", 2), desk.wait("b", 5), desk.wait("c")
    assert [promise.number for promise in desk.promised()] == [first, second]
    assert len(offsets(desk.receive("b", 5, promise=second))) == 1
    assert len(offsets(desk.receive("a", 2, promise=first))) == 2
    assert third not in [promise.number for promise in desk.promised()]


def test_those_who_went_are_promised_nothing() -> None:
    """Withdrawn questions, and withdrawn promises."""
    desk = GroupDesk()
    first, second, third = desk.wait("a"), desk.wait("b"), desk.wait("c")
    desk.leader.withdraw(first)
    desk.feed.hashes.append(1)
    assert [promise.number for promise in desk.promised()] == [second]
    desk.leader.withdraw(second)
    assert [promise.number for promise in desk.promised()] == [third]
    desk.leader.withdraw(99)


def test_a_repeated_request_is_promised_at_once() -> None:
    """With nothing new there: it would get its own messages again."""
    desk = GroupDesk(feed=MemoryFeed([1]))
    answer = desk.receive("a", request="r")
    number = desk.wait("a", request="r")
    (promise,) = desk.promised()
    assert promise.number == number
    assert promise.repeat
    again = desk.ask("a", request="r", promise=number)
    assert isinstance(again, Decision)
    assert (again.repeated, again.delivered) == (answer.delivery, answer.delivered)


def test_paused_groups_promise_nothing() -> None:
    """Until they go on."""
    desk = GroupDesk(GroupSettings(paused=True), MemoryFeed([1]))
    number = desk.wait("a")
    assert desk.promised() == []
    assert desk.refused("a") == "paused"
    desk.change(GroupSettings())
    assert [promise.number for promise in desk.promised()] == [number]


def test_a_message_given_back_wakes_one_who_waits() -> None:
    """A retry that falls due, too."""
    desk = GroupDesk(feed=MemoryFeed([1]))
    delivery = desk.receive("a").delivery
    number = desk.wait("b")
    assert desk.promised() == []
    assert desk.act(ActKind.NACK, desk.receipt(delivery), delay_ms=5_000) == [None]
    assert desk.promised() == []
    assert desk.leader.deadline_ms(desk.now_ms, desk.append_us) == desk.now_ms + 5_000
    desk.now_ms += 5_000
    assert [promise.number for promise in desk.promised()] == [number]


def test_the_nearest_due_time_is_a_deadline_while_somebody_waits() -> None:
    """Nobody is woken for nothing."""
    feed = MemoryFeed([1], by_due=True)
    desk = GroupDesk(feed=feed)
    feed.due = [desk.append_us + 7_000_500]
    assert desk.leader.deadline_ms(desk.now_ms, desk.append_us) is None
    number = desk.wait("a")
    assert desk.promised() == []
    assert desk.leader.deadline_ms(desk.now_ms, desk.append_us) == desk.now_ms + 7_001
    desk.now_ms += 7_001
    assert [promise.number for promise in desk.promised()] == [number]


def test_questions_are_bounded() -> None:
    """Those behind are told."""
    questions = Questions()
    for _ in range(MAX_QUESTIONS):
        questions.ask(ASKED)
    questions.promise(1, 1, 0)
    with pytest.raises(ShoalError, match="overloaded"):
        questions.ask(ASKED)
    questions.withdraw(1)
    assert questions.ask(ASKED).number == MAX_QUESTIONS + 1
    assert len(questions) == MAX_QUESTIONS


def test_only_the_owner_of_an_exclusive_group_is_promised() -> None:
    """Whoever asked first."""
    desk = GroupDesk(GroupSettings(GroupMode.EXCLUSIVE), MemoryFeed([1]))
    asked = {desk.wait(one): name(one) for one in ("a", "b")}
    ((question, _),) = desk.leader.promised(desk.now_ms, desk.append_us)
    assert asked[question.number] == desk.leader.owner


@pytest.mark.parametrize("mode", list(GroupMode))
def test_many_questions_are_answered_in_one_look(mode: GroupMode) -> None:
    """The messages are looked through once for all of them, not once for each."""
    work: list[int] = []
    for waiting in (20, 200):
        desk = GroupDesk(GroupSettings(mode), MemoryFeed())
        for number in range(waiting):
            desk.wait("a" if mode is GroupMode.EXCLUSIVE else f"c{number}", 5)
        desk.feed.hashes += list(range(1, 1_001))
        with counted() as calls:
            promised = desk.promised()
        assert len(promised) == waiting
        work.append(calls.count)
    assert work[1] < 20 * work[0], work


def test_promises_of_a_group_with_keys_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are promised theirs once some were redeemed."""
    monkeypatch.setattr(KeyOrder, "most_at_once", 7)
    desk = GroupDesk(GroupSettings(GroupMode.KEY_ORDERED), MemoryFeed(list(range(1, 31))))
    for consumer in "abc":
        desk.wait(consumer, 5)
    promises = desk.promised()
    assert [promise.number for promise in promises] == [1, 2]
    assert desk.promised() == []
    assert len(offsets(desk.receive("a", 10, promise=1))) == 7
    assert [promise.number for promise in desk.promised()] == [3]
