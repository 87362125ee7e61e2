"""Leases of answers that fell into thousands of parts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

from shoal.agent.groups.leader import candidates
from shoal.agent.groups.leader.group_leader import Decision
from shoal.agent.groups.leader.leases import MAX_PARTS, Leases
from shoal.agent.groups.settings import GroupSettings
from shoal.agent.receive import NOBODY, Act, ActKind, GroupMode, Wanted
from tests.agent.groups.group_desk import GroupDesk, MemoryFeed, name, offsets


class Calls:
    """How many functions were called."""

    count = 0


@contextmanager
def counted() -> Iterator[Calls]:
    """The work of a block, whatever else the machine does."""
    calls = Calls()

    def tick(_frame: FrameType, event: str, _argument: object) -> None:
        calls.count += event == "call"

    before: Callable[..., object] | None = sys.getprofile()
    sys.setprofile(tick)
    try:
        yield calls
    finally:
        sys.setprofile(before)


def wanted(consumer: str, limit: int) -> Wanted:
    """A receive."""
    return Wanted(name(consumer), NOBODY, NOBODY, limit, 2**20, 30_000)


def fragmented(messages: int, mode: GroupMode = GroupMode.SHARED) -> tuple[GroupDesk, int]:
    """One answer of which every other message is done; its delivery."""
    desk = GroupDesk(GroupSettings(mode, visibility_ms=30_000), MemoryFeed([0] * messages))
    delivery = desk.receive("a", messages).delivery
    done = [Act(ActKind.ACK, desk.receipt(delivery, at)) for at in range(1, messages, 2)]
    for at in range(0, len(done), 1_000):
        assert set(desk.acts(done[at : at + 1_000]).outcomes) == {None}
    desk.commit()
    return desk, delivery


def test_a_whole_answer_is_extended_however_much_of_it_is_done() -> None:
    """It is as easy as one without holes."""
    desk, delivery = fragmented(4 * MAX_PARTS)
    desk.now_ms += 20_000
    assert desk.act(ActKind.EXTEND, desk.receipt(delivery)) == [None]
    desk.now_ms += 20_000
    assert desk.refused() == "empty"
    desk.now_ms += 10_000
    assert offsets(desk.receive("b", 3)) == [0, 2, 4]


def test_a_new_leader_resumes_an_answer_of_many_parts_in_time() -> None:
    """Work that grows with their number alone, when it begins, and when others have changed the group."""
    work: list[int] = []
    for messages in (1_024, 4_096):
        desk, _ = fragmented(messages)
        with counted() as calls:
            desk.fail_over()
            desk.leader.noted(desk.now_ms)
        work.append(calls.count)
    assert work[1] < 6 * work[0], work


def test_a_whole_answer_that_is_named_again_is_not_looked_through_again() -> None:
    """A consumer may say the same a thousand times."""
    desk, delivery = fragmented(2_048)
    receipt = desk.receipt(delivery)
    with counted() as once:
        desk.leader.act([Act(ActKind.EXTEND, receipt)], desk.now_ms, desk.append_us)
    with counted() as often:
        acted = desk.leader.act([Act(ActKind.EXTEND, receipt)] * 500, desk.now_ms, desk.append_us)
    assert acted.outcomes == (None,) * 500
    assert often.count < 2 * once.count
    assert desk.act(ActKind.ACK, receipt, receipt, receipt) == [None, "receipt-used", "receipt-used"]


def test_leases_that_do_not_exist_are_extended_by_nobody() -> None:
    """The answer may be done with."""
    leases = Leases()
    leases.extend_all(8_192, 1_000)
    assert not leases.has_begun(8_192)
    assert len(leases) == 0


@pytest.mark.parametrize("mode", list(GroupMode))
def test_leases_that_end_together_are_noted_some_at_a_time(
    mode: GroupMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next turn comes at once, until all are known."""
    monkeypatch.setattr(candidates, "NOTED_AT_ONCE", 4)
    desk = GroupDesk(GroupSettings(mode, max_attempts=1, dead="drop"), MemoryFeed(list(range(1, 11))))
    for _ in range(10):
        desk.receive("a", 1)
    desk.now_ms += 30_000
    for left in (6, 2, 0):
        assert (desk.leader.deadline_ms(desk.now_ms, desk.append_us) or 0) <= desk.now_ms
        desk.look()
        desk.look()
        assert desk.group.spans.undone == left
        desk.now_ms += 1
    deadline_ms = desk.leader.deadline_ms(desk.now_ms, desk.append_us)
    assert deadline_ms is None or deadline_ms > desk.now_ms


def test_strict_order_holds_while_not_all_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing new passes messages whose leases have ended."""
    monkeypatch.setattr(candidates, "NOTED_AT_ONCE", 1)
    desk = GroupDesk(GroupSettings(GroupMode.EXCLUSIVE, session_ms=60_000), MemoryFeed([0] * 6))
    first, _ = (desk.receive("a", 2).delivery for _ in range(2))
    assert desk.act(ActKind.EXTEND, desk.receipt(first, 1), delay_ms=60_000) == [None]
    assert desk.act(ActKind.ACK, desk.receipt(first, 0)) == [None]
    desk.now_ms += 30_000
    assert offsets(desk.receive("a", 9)) == [2, 3, 4, 5]


def test_an_answer_in_strict_order_looks_no_further_than_it_must() -> None:
    """At what it gives, and at what is in hand behind that."""
    work: list[int] = []
    for messages in (512, 4_096):
        desk, _ = fragmented(messages, GroupMode.EXCLUSIVE)
        desk.now_ms += 30_000
        desk.look()
        with counted() as calls:
            answer = desk.leader.receive(wanted("a", 3), desk.index + 1, desk.now_ms, desk.append_us)
        assert isinstance(answer, Decision)
        assert offsets(answer) == [0, 2, 4]
        work.append(calls.count)
    assert work[1] < 3 * work[0], work


def test_an_answer_takes_back_what_is_in_hand_far_behind_it() -> None:
    """However little it gives."""
    settings = GroupSettings(GroupMode.EXCLUSIVE, session_ms=60_000)
    desk = GroupDesk(settings, MemoryFeed([0] * 9))
    first = desk.receive("a", 3).delivery
    desk.receive("a", 3)
    desk.now_ms += 20_000
    last = desk.receive("a", 3).delivery
    desk.now_ms += 10_000
    answer = desk.receive("a", 1)
    assert offsets(answer) == [0]
    assert desk.act(ActKind.ACK, desk.receipt(last)) == ["receipt-used"]
    assert desk.act(ActKind.ACK, desk.receipt(first, 1)) == [None]  # late, and not given again yet
