"""What operations do to a group, what is void, and what bounds it: case by case."""

from __future__ import annotations

import pytest

from shoal.agent.groups import fold as fold_file
from shoal.agent.groups import partition_group
from shoal.agent.groups.entry import (
    Acknowledge,
    Begin,
    Decide,
    Deliver,
    Die,
    Drop,
    Fate,
    Free,
    GroupOperation,
    Lettered,
    Lost,
    ReasonCode,
    Release,
    Seek,
    Skip,
    decode_entry,
    encode_entry,
)
from shoal.agent.groups.fold import GROUP_BYTES, HEAD_BYTES, GroupFold
from shoal.agent.groups.partition_group import PartitionGroup
from shoal.agent.groups.place import (
    OFFSETS_MAX,
    START,
    EntryStamp,
    GroupWireError,
    Letter,
    MessageSpan,
    SpanState,
)
from shoal.agent.groups.requests import MAX_CONSUMERS, REQUEST_MEMORY_US, Undo
from shoal.agent.groups.spans import SPAN_BYTES, SPAN_OFFSETS
from shoal.agent.receive import DELIVERIES, NOBODY, DuePlace, GroupKey, Range, StoppedAction
from shoal.format.batch import LogIndex
from tests.agent.groups.group_entries import KEYS, entry_stamp, stamp_of

A, B = KEYS[:2]
WORKER = b"w" * 16
END = 1_000


class Log:
    """Entries of one group, each an operation at the next index. The log has END records."""

    def __init__(self, *, by_due: bool = False, floor: DuePlace = START) -> None:
        self.fold = GroupFold(by_due=by_due)
        self.index = 0
        self.time_us = 1_000_000
        assert self(Begin((1, 0), floor))

    @property
    def group(self) -> PartitionGroup:
        return self.fold.groups[A]

    def stamp(self) -> EntryStamp:
        """Of the entry that comes next."""
        return entry_stamp(self.index + 1, END, self.time_us)

    def __call__(self, operation: GroupOperation, *, key: GroupKey = A) -> bool:
        """Whether it happened; if not, nothing has changed."""
        before = self.fold.to_bytes()
        stamp = self.stamp()
        (happened,) = self.fold.stage(key, [operation], stamp)
        if happened:
            self.fold.fold(stamp_of(stamp), self.fold.staged_entry())
            self.index += 1
        else:
            assert self.fold.to_bytes() == before
        self.fold.check_invariants()
        return happened

    def deliver(self, *ranges: Range, request: bytes = NOBODY, passed: tuple[Range, ...] = ()) -> int:
        """The delivery's number."""
        assert self(Deliver(WORKER, request, 30_000, ranges, passed))
        return self.group.last_delivery

    def states(self) -> dict[tuple[int, int], str]:
        """Of each message that a span holds, as a letter."""
        return {
            (span.due_us, offset): span.state.name[0] + ("y" if span.state is SpanState.DYING else "")
            for span in self.group.spans.from_place(DuePlace(0, 0))
            for offset in range(span.first, span.first + span.count)
        }

    def line(self) -> str:
        """The same as text, from offset 0 on, a dot without a span."""
        states = self.states()
        last = max((place[1] for place in states), default=-1)
        return "".join(states.get((0, offset), ".")[0] for offset in range(last + 1))


def run(first: int, count: int, due_us: int = 0) -> Range:
    """Messages of one due time."""
    return Range(due_us, first, count)


def test_a_note_is_told_once_its_entry_is_settled() -> None:
    """The maker hears of its own entries alone, and of none that was cut."""
    log = Log()
    log.deliver(Range(0, 0, 1))
    assert list(log.fold.settled_notes()) == []
    for name in ("a", "b", "c"):
        stamp = log.stamp()
        log.fold.stage(A, [Deliver(WORKER, NOBODY, 1_000, (Range(0, 10 + log.index, 1),))], stamp)
        log.fold.note_staged(name)
        log.fold.fold(stamp_of(stamp), log.fold.staged_entry())
        log.index += 1
    log.fold.settle(LogIndex(log.index - 2))
    assert list(log.fold.settled_notes()) == ["a"]
    log.fold.undo_from(LogIndex(log.index))
    log.index -= 1
    log.deliver(Range(0, 20, 1))  # an entry without a note, in the place of the one that was cut
    log.fold.settle(LogIndex(log.index))
    assert list(log.fold.settled_notes()) == ["b"]
    assert list(log.fold.settled_notes()) == []


def test_the_way_of_a_message() -> None:
    """Delivered, failed, delivered again, done: with its attempts, its times and its last delivery."""
    log = Log()
    one = log.deliver(run(0, 3))
    assert log.group.spans.first() == MessageSpan(
        0, 0, 3, 30_000, one, 0, 1_000_000, 0, SpanState.IN_FLIGHT, 1
    )
    log.time_us += 2_000_000
    assert log(Release(one, 9_000_000, (run(0, 2),)))
    waiting = MessageSpan(0, 0, 2, 0, one, 9_000_000, 1_000_000, 0, SpanState.WAITING, 1)
    assert log.group.spans.first() == waiting
    two = log.deliver(run(0, 2))
    span = log.group.spans.first()
    assert span == MessageSpan(0, 0, 2, 30_000, two, 0, 1_000_000, 2_000, SpanState.IN_FLIGHT, 2)
    assert not log(Acknowledge(one, (run(0, 2),)))
    assert log(Release(two, 0, (run(1, 1),), uncounted=True))
    assert log.group.spans.at(DuePlace(0, 1)) == waiting._replace(
        first=1, count=1, delivery=two, until_us=0, last_after_ms=2_000
    )
    assert log(Acknowledge(two, (run(0, 2),)))
    assert (log.line(), log.group.floor, log.group.acked) == (".WI", (0, 1), 1)
    three = log.deliver(run(1, 1))
    assert log(Acknowledge(three, (run(1, 1),)))
    assert log(Acknowledge(one, (run(0, 9),)))
    assert (log.line(), log.group.floor, log.group.acked) == ("", (0, 3), 3)
    assert log.group.next == (0, 3)


@pytest.mark.parametrize(
    "deliver",
    [
        Deliver(WORKER, NOBODY, 1, ()),
        Deliver(WORKER, NOBODY, 1, (run(1, 1),)),
        Deliver(WORKER, NOBODY, 1, (run(3, 3),)),
        Deliver(WORKER, NOBODY, 1, (run(6, 1),)),
        Deliver(WORKER, NOBODY, 1, (run(7, 1), run(5, 2))),
        Deliver(WORKER, NOBODY, 1, (run(END - 1, 2),)),
        Deliver(WORKER, NOBODY, 1, (run(7, 1, due_us=1),)),
        Deliver(WORKER, NOBODY, 1, (run(7, 1),), (run(9, 1),)),
    ],
)
def test_deliveries_that_are_void(deliver: Deliver) -> None:
    """Of nothing, before the floor, done or stopped, behind the log's end, passed where none may be."""
    log = Log()
    delivery = log.deliver(run(0, 7))
    assert log(Acknowledge(delivery, (run(0, 2), run(4, 1))))
    assert log(Die(delivery, ReasonCode.NACK, (run(6, 1),), fate=Fate.STOP))
    assert log.line() == "..IIDIS"
    assert not log(deliver)


def test_the_floor_stops_at_a_message_that_is_not_done() -> None:
    """And goes on over all that is, joined or not; a message without a span stops it, too."""
    log = Log()
    delivery = log.deliver(run(0, 4), run(6, 2))
    assert log(Acknowledge(delivery, (run(1, 2), run(6, 2))))
    assert log.group.floor == (0, 0)
    assert log.group.unseen(9) == [run(4, 2)]
    assert log(Acknowledge(delivery, (run(0, 1),)))
    assert log.group.floor == (0, 3)
    assert log(Acknowledge(delivery, (run(3, 1),)))
    assert (log.group.floor, log.group.next, log.line()) == ((0, 4), (0, 8), "......DD")
    assert log.group.new_parts(run(0, 10)) == [run(4, 2), run(8, 2)]
    delivery = log.deliver(run(4, 2))
    assert log(Acknowledge(delivery, (run(4, 2),)))
    assert (log.group.floor, log.line(), log.group.unseen(9)) == ((0, 8), "", [])


def test_letters() -> None:
    """A message that dies keeps the floor back until its letter is stored; letters are numbered densely."""
    log = Log()
    delivery = log.deliver(run(0, 6))
    log.time_us += 5_000_000
    assert log(Die(delivery, ReasonCode.REJECTED, (run(1, 1), run(3, 1)), b"bad"))
    assert log.line() == "IDIDII"
    assert list(log.group.letters) == [
        Letter(1, 0, 1, 1, ReasonCode.REJECTED, 1_000_000, 1_000_000, 6_000_000, b"bad"),
        Letter(2, 0, 3, 1, ReasonCode.REJECTED, 1_000_000, 1_000_000, 6_000_000, b"bad"),
    ]
    assert not log(Die(delivery, ReasonCode.REJECTED, (run(1, 1),), b"bad"))
    assert not log(Die(delivery + 1, ReasonCode.REJECTED, (run(0, 1),), b"bad"))
    assert log(Die(delivery, ReasonCode.EXPIRED, (run(2, 1),)))
    assert log(Acknowledge(delivery, (run(0, 1),)))
    assert log.group.floor == (0, 1)
    assert log.states()[0, 2] == "Dy"
    assert not log(Lettered(0))
    assert not log(Lettered(4))
    assert log(Lettered(2))
    assert (log.group.floor, [letter.ordinal for letter in log.group.letters]) == ((0, 2), [3])
    assert not log(Lettered(2))
    assert log(Lettered(3))
    assert (log.group.floor, log.group.letters_given, log.line()) == ((0, 4), 3, "....II")


def test_who_may_die() -> None:
    """Messages in flight, waiting or stopped since that delivery; not those that were never delivered."""
    log = Log(by_due=True)
    delivery = log.deliver(run(0, 3, due_us=5), passed=(run(3, 2, due_us=5),))
    assert log(Release(delivery, 0, (run(1, 1, due_us=5),)))
    assert log(Die(delivery, ReasonCode.NACK, (run(2, 1, due_us=5),), fate=Fate.STOP))
    assert "".join(log.states().values()) == "IWSWW"
    assert not log(Die(0, ReasonCode.NACK, (run(0, 5, due_us=5),)))
    assert not log(Die(delivery, ReasonCode.NACK, (run(2, 1, due_us=5),), fate=Fate.STOP))
    assert log(Die(delivery, ReasonCode.NACK, (run(0, 5, due_us=5),), fate=Fate.DROP))
    assert (log.group.floor, log.group.dropped) == ((5, 3), 3)
    assert "".join(log.states().values()) == "WW"


def test_stopped_messages_are_decided() -> None:
    """Each way; others stay as they are, and nobody can acknowledge a stopped one."""
    log = Log()
    delivery = log.deliver(run(0, 4))
    assert log(Die(delivery, ReasonCode.NACK, (run(0, 3),), fate=Fate.STOP))
    assert not log(Acknowledge(delivery, (run(0, 3),)))
    assert log(Decide(StoppedAction.RETRY, (run(0, 1), run(3, 1))))
    assert log.group.spans.first() == MessageSpan(0, 0, 1, 0, 0, 0, 0, 0, SpanState.WAITING, 0)
    assert log(Decide(StoppedAction.LETTER, (run(1, 1),)))
    (letter,) = log.group.letters
    assert (letter.offset, letter.attempts, letter.code) == (1, 1, ReasonCode.OPERATOR)
    assert log(Decide(StoppedAction.DROP, (run(0, 4),)))
    assert (log.line(), log.group.dropped) == ("WDDI", 1)
    assert not log(Decide(StoppedAction.DROP, (run(0, 4),)))


def test_seek() -> None:
    """Everything begins anew; receipts, requests and histories are gone, letters are stored all the same."""
    log = Log()
    delivery = log.deliver(run(0, 5), request=b"r" * 16)
    assert log(Die(delivery, ReasonCode.NACK, (run(3, 1),)))
    assert log(Acknowledge(delivery, (run(0, 1),)))
    for refused in (Seek(1), Seek(3), Seek(2, DuePlace(1, 0)), Seek(2, DuePlace(0, END + 1))):
        assert not log(refused)
    assert log(Seek(2, DuePlace(0, 0)))
    assert (log.group.floor, log.group.next, log.group.generation) == ((0, 0), (0, 0), 2)
    assert log.group.requests.find(WORKER, b"r" * 16) is None
    assert not log(Acknowledge(delivery, (run(0, 5),)))
    again = log.deliver(run(0, 5))
    assert log.group.letters[0].offset == 3
    assert log(Lettered(1))
    assert (log.line(), log.group.spans.first()) == ("IIIII", log.group.spans.at(DuePlace(0, 3)))
    assert log(Acknowledge(again, (run(0, 5),)))
    assert log(Seek(3, latest=True))
    assert log.group.floor == (0, END)


def test_a_message_with_two_letters_is_done_with_the_last() -> None:
    """It died, was sought and died again."""
    log = Log()
    assert log(Die(log.deliver(run(0, 2)), ReasonCode.NACK, (run(0, 1),)))
    assert log(Seek(2))
    assert log(Die(log.deliver(run(0, 2)), ReasonCode.NACK, (run(0, 1),)))
    assert log(Lettered(1))
    assert (log.group.floor, log.states()[0, 0]) == ((0, 0), "Dy")
    assert log(Lettered(2))
    assert log.group.floor == (0, 1)


def test_skip() -> None:
    """The log lost its head: what stood there is gone, and later receipts stay good."""
    log = Log()
    delivery = log.deliver(run(0, 10))
    assert log(Acknowledge(delivery, (run(6, 2),)))
    assert log(Skip(6, 6))
    assert (log.group.floor, log.group.skipped, log.line()) == ((0, 8), 6, "........II")
    for refused in (Skip(8, 1), Skip(0, 1), Skip(END + 1, 1)):
        assert not log(refused)
    assert log(Acknowledge(delivery, (run(8, 2),)))
    assert log(Skip(500, 490))
    assert (log.group.floor, log.group.skipped) == ((0, 500), 496)
    assert not Log(by_due=True)(Skip(5, 1))


def test_lost_messages() -> None:
    """Nobody can read them: new ones and others count as skipped, and the floor goes over them."""
    log = Log()
    delivery = log.deliver(run(0, 4))
    assert log(Die(delivery, ReasonCode.NACK, (run(1, 1),)))
    assert log(Lost((run(0, 3), run(4, 2))))
    assert (log.line(), log.group.floor, log.group.skipped) == (".DDIDD", (0, 1), 4)
    assert log.states()[0, 1] == "Dy"
    assert not log(Lost((run(0, 3),)))
    assert not log(Lost((run(END, 1),)))


def test_redrive() -> None:
    """Dead messages come again, before the floor, too; each letter once."""
    log = Log()
    delivery = log.deliver(run(0, 6))
    assert log(Die(delivery, ReasonCode.NACK, (run(1, 3),)))
    assert log(Lettered(3))
    assert log(Acknowledge(delivery, (run(0, 1), run(4, 1))))
    assert (log.group.floor, log.line()) == ((0, 5), ".....I")
    assert not log(Free(4, (run(1, 1),)))
    assert log(Free(2, (run(1, 2),)))
    assert not log(Free(2, (run(3, 1),)))
    assert log(Free(3, (run(3, 4),)))
    assert (log.line(), log.group.redriven, log.group.floor) == (".WWWWI", 3, (0, 5))
    assert log.group.spans.first() == MessageSpan(0, 1, 4, 0, 0, 0, 0, 0, SpanState.WAITING, 0)
    assert (log.group.next, log.group.unseen(9)) == ((0, 6), [])
    again = log.deliver(run(1, 3))
    assert log(Acknowledge(again, (run(2, 1),)))
    assert (log.line(), log.group.floor) == (".I.IWI", (0, 5))
    assert log(Acknowledge(again, (run(1, 3),)))
    assert log(Acknowledge(delivery, (run(5, 1),)))
    assert (log.line(), log.group.floor, log.group.next) == ("....W", (0, 6), (0, 6))


def test_a_redriven_span_may_reach_over_the_floor() -> None:
    """Its messages before the floor just go when they are done."""
    log = Log()
    delivery = log.deliver(run(0, 6))
    assert log(Acknowledge(delivery, (run(0, 2), run(3, 2))))
    assert log(Die(delivery, ReasonCode.NACK, (run(5, 1),)))
    assert log(Release(delivery, 0, (run(2, 1),)))
    assert log(Free(1, (run(0, 5),)))
    assert (log.line(), log.group.floor) == ("WWWWWD", (0, 2))
    assert log.group.spans.size == 2
    again = log.deliver(run(0, 5))
    assert log(Acknowledge(again, (run(1, 2),)))
    assert (log.line(), log.group.floor) == ("I..IID", (0, 3))


def test_timers_come_in_the_order_of_their_due_times() -> None:
    """The floor is a due time; nothing is delivered before it is due."""
    log = Log(by_due=True)
    early, late = log.time_us - 7, log.time_us
    assert not log(Deliver(WORKER, NOBODY, 1, (run(3, 1, due_us=late + 1),)))
    delivery = log.deliver(run(9, 2, due_us=early), run(3, 1, due_us=late))
    assert log(Acknowledge(delivery, (run(3, 1, due_us=late),)))
    assert log.group.floor == (0, 0)
    assert log(Acknowledge(delivery, (run(9, 2, due_us=early),)))
    assert (log.group.floor, log.group.spans.size, log.group.next) == ((late, 4), 0, (late, 4))
    assert not log(Deliver(WORKER, NOBODY, 1, (run(20, 1, due_us=early),)))
    log.time_us += 5
    assert log(Seek(2, latest=True))
    assert log.group.floor == (late + 5, END)


def test_passed_messages_wait() -> None:
    """Their keys are locked: they are looked at, stand behind `next`, and were no attempt."""
    log = Log(by_due=True)
    log.deliver(run(5, 1, due_us=9), passed=(run(4, 1, due_us=9), run(0, 2, due_us=10)))
    assert log.states() == {(9, 4): "W", (9, 5): "I", (10, 0): "W", (10, 1): "W"}
    delivery = log.deliver(run(4, 1, due_us=9))
    span = log.group.spans.at(DuePlace(9, 4))
    assert span is not None
    assert (span.attempts, span.delivery, span.first_us) == (1, delivery, 1_000_000)


def test_begin_and_drop() -> None:
    """A group begins once, where it is told; it goes by a later word of the same catalog only."""
    log = Log(floor=DuePlace(0, 7))
    assert log.group.floor == (0, 7)
    assert not log(Begin((1, 5)))
    assert not log(Begin((1, 0), DuePlace(0, END + 1)), key=B)
    assert not log(Acknowledge(1, (run(0, 1),)), key=B)
    assert log(Begin((1, 4), latest=True), key=B)
    assert log.fold.groups[B].floor == (0, END)
    for refused in (Drop((2, 9)), Drop((1, 4)), Drop((1, 3))):
        assert not log(refused, key=B)
    bytes_with_both = log.fold.to_bytes()
    index = log.index
    assert log(Drop((1, 5)), key=B)
    assert not log(Drop((1, 5)), key=B)
    assert set(log.fold.groups) == {A}
    log.fold.undo_from(LogIndex(index + 1))
    assert log.fold.to_bytes() == bytes_with_both
    timers = Log(by_due=True)
    assert timers(Begin((1, 4), latest=True), key=B)
    assert timers.fold.groups[B].floor == (timers.time_us, END)


def test_groups_held_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice those of a topic; a catalog that changes quickly fits in between."""
    monkeypatch.setattr(fold_file, "MAX_GROUPS_HELD", 3)
    log = Log()
    keys = [GroupKey(bytes([number]) * 16) for number in range(4)]
    assert [log(Begin((1, 0)), key=key) for key in keys] == [True, True, False, False]


def test_the_request_of_a_consumer_is_remembered() -> None:
    """The last one of each, with the messages that it brought; one without an id is not."""
    log = Log()
    delivery = log.deliver(run(0, 2), run(5, 1), request=b"1" * 16)
    kept = log.group.requests.find(WORKER, b"1" * 16)
    assert kept is not None
    assert (kept.delivery, kept.time_us) == (delivery, log.time_us)
    log.deliver(run(7, 1))
    assert log.group.requests.find(WORKER, b"1" * 16) == kept
    log.deliver(run(8, 1), request=b"2" * 16)
    assert log.group.requests.find(WORKER, b"1" * 16) is None
    assert len(log.group.requests) == 1
    log.fold.undo_from(LogIndex(log.index))
    assert log.group.requests.find(WORKER, b"1" * 16) == kept


def test_a_full_memory_of_requests_forgets_the_oldest() -> None:
    """By its delivery; undoing brings it back. A leader sees it coming."""
    group = PartitionGroup()
    journal: list[Undo] = []

    def receive(number: int, index: int, offset: int) -> None:
        deliver = Deliver(number.to_bytes(16, "big"), b"r" * 16, 1, (run(offset, 1),))
        assert group.apply(deliver, entry_stamp(index, 10_000, index), journal)

    for number in range(MAX_CONSUMERS):
        receive(number, 1 + number // 2, number)
    full = group.requests.to_bytes()
    new = (5_000).to_bytes(16, "big")
    assert not group.requests.must_wait((3).to_bytes(16, "big"), 5)
    assert group.requests.must_wait(new, REQUEST_MEMORY_US)
    assert not group.requests.must_wait(new, REQUEST_MEMORY_US + 1)
    mark = len(journal)
    receive(5_000, 9_000, MAX_CONSUMERS)
    assert len(group.requests) == MAX_CONSUMERS
    assert group.requests.find((0).to_bytes(16, "big"), b"r" * 16) is None
    assert group.requests.find((1).to_bytes(16, "big"), b"r" * 16) is not None
    group.check_invariants()
    group.undo(journal, mark)
    assert group.requests.to_bytes() == full


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that a test can reach."""
    monkeypatch.setattr(partition_group, "MAX_SPANS", 12)
    monkeypatch.setattr(partition_group, "MAX_LETTERS", 3)
    monkeypatch.setattr(partition_group, "MAX_UNDONE_MESSAGES", 50)


@pytest.mark.usefixtures("narrow")
def test_a_group_holds_so_many_messages() -> None:
    """Delivered and not done. One that is done makes room for another."""
    log = Log()
    delivery = log.deliver(run(0, 49))
    assert not log(Deliver(WORKER, NOBODY, 1, (run(49, 2),)))
    assert log(Acknowledge(delivery, (run(7, 1),)))
    log.deliver(run(49, 2))
    assert not log(Deliver(WORKER, NOBODY, 1, (run(51, 1),)))
    assert log(Deliver(WORKER, NOBODY, 1, (run(0, 2),)))


@pytest.mark.usefixtures("narrow")
def test_a_group_holds_so_many_spans() -> None:
    """An acknowledgement that would cut too many is void; at the edges of spans there is always room."""
    log = Log()
    delivery = log.deliver(run(0, 30))
    assert log(Acknowledge(delivery, tuple(run(at, 1) for at in range(2, 12, 2))))
    assert log.group.spans_taken == 11
    assert not log(Acknowledge(delivery, (run(20, 1),)))
    assert log(Acknowledge(delivery, (run(29, 1),)))
    assert not log(Deliver(WORKER, NOBODY, 1, (run(40, 1),)))
    assert log(Acknowledge(delivery, (run(0, 2),)))
    assert log.group.spans_taken == 10


@pytest.mark.usefixtures("narrow")
def test_a_letter_can_always_be_stored() -> None:
    """It cuts a span in three at most, which is counted before. No more die than may wait."""
    log = Log()
    delivery = log.deliver(run(0, 3))
    for at in (1, 0, 2):
        assert log(Die(delivery, ReasonCode.NACK, (run(at, 1),)))
    assert (log.group.spans.size, log.group.spans_taken) == (1, 7)
    delivery = log.deliver(run(3, 20))
    assert not log(Die(delivery, ReasonCode.NACK, (run(3, 1),)))
    assert log(Acknowledge(delivery, (run(4, 1), run(6, 1))))
    assert log.group.spans_taken == 12
    assert log(Lettered(1))
    assert (log.line()[:3], log.group.spans_taken) == ("DDD", 12)
    assert not log(Acknowledge(delivery, (run(10, 1),)))
    assert log(Lettered(3))
    assert log.group.floor == (0, 3)


def test_a_partition_holds_so_many_bytes_of_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operation that grows a group beyond is void; one that takes away never is."""
    log = Log()
    assert log(Begin((1, 0)), key=B)
    monkeypatch.setattr(fold_file, "MAX_FOLD_BYTES", log.fold.size_bytes + 3 * SPAN_BYTES)
    assert log.fold.size_bytes == HEAD_BYTES + 2 * GROUP_BYTES
    delivery = log.deliver(run(0, 9))
    assert log.fold.would_fit(2 * SPAN_BYTES)
    assert not log.fold.would_fit(2 * SPAN_BYTES + 1)
    assert log(Deliver(WORKER, NOBODY, 1, (run(0, 2), run(4, 1))), key=B)
    assert not log(Acknowledge(delivery, (run(4, 1),)))
    assert not log(Deliver(WORKER, NOBODY, 1, (run(9, 1),)))
    assert not log(Begin((1, 0)), key=KEYS[2])
    assert log(Seek(2), key=B)
    assert log(Acknowledge(delivery, (run(4, 1),)))
    assert not log.fold.would_fit(1)


def test_bounds_do_not_depend_on_the_order_of_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader stages groups as requests come, followers fold them by id: the same operations happen."""
    leader, follower = Log(), Log()
    for log in (leader, follower):
        assert log(Begin((1, 0)), key=B)
    monkeypatch.setattr(fold_file, "MAX_FOLD_BYTES", leader.fold.size_bytes + 2 * SPAN_BYTES)
    stamp = leader.stamp()
    wide = Deliver(WORKER, NOBODY, 1, (run(0, 1), run(5, 1)))
    assert leader.fold.stage(B, [wide], stamp) == [True]
    assert leader.fold.stage(A, [wide], stamp) == [False]
    assert leader.fold.stage(B, [Seek(2)], stamp) == [True]
    assert leader.fold.stage(A, [wide, Deliver(WORKER, NOBODY, 1, (run(9, 1),))], stamp) == [True, False]
    entry = leader.fold.staged_entry()
    assert decode_entry(entry) == {A: [wide], B: [wide, Seek(2)]}
    leader.fold.fold(stamp_of(stamp), entry)
    follower.fold.fold(stamp_of(stamp), entry)
    assert follower.fold.to_bytes() == leader.fold.to_bytes()
    assert not leader.fold.would_fit(1)


def test_an_entry_is_staged_once() -> None:
    """Another entry, another stamp or a checkpoint in between is a bug, and is told."""
    log = Log()
    stamp = log.stamp()
    assert log.fold.stage(A, [Deliver(WORKER, NOBODY, 1, (run(0, 1),)), Lettered(1)], stamp) == [True, False]
    assert log.fold.staged_operations(A) == 1
    assert log.fold.staged_operations(B) == 0
    entry = log.fold.staged_entry()
    assert len(entry) == log.fold.staged_bytes
    with pytest.raises(AssertionError):
        log.fold.to_bytes()
    with pytest.raises(AssertionError):
        log.fold.undo_from(stamp.index)
    with pytest.raises(AssertionError):
        log.fold.stage(A, [Lettered(1)], entry_stamp(stamp.index + 1, END, stamp.append_time_us))
    with pytest.raises(AssertionError):
        log.fold.fold(stamp_of(stamp), entry + b"\0")
    with pytest.raises(AssertionError):
        log.fold.fold(stamp_of(stamp._replace(append_time_us=stamp.append_time_us + 1)), entry)
    with pytest.raises(AssertionError):
        log.fold.unstage(LogIndex(stamp.index + 1))
    log.fold.unstage(stamp.index)
    assert (log.fold.staged_bytes, log.line()) == (0, "")
    log.fold.fold(stamp_of(stamp), entry)
    assert log.line() == "I"


def test_an_entry_that_cannot_be_read_changes_nothing() -> None:
    """It raises; so does a checkpoint, and one of another kind of topic."""
    log = Log()
    log.deliver(run(0, 3), request=b"r" * 16)
    before = log.fold.to_bytes()
    with pytest.raises(GroupWireError):
        log.fold.fold(stamp_of(log.stamp()), encode_entry({A: [Lettered(1)]})[:-1])
    for data in (before[:-1], before + b"\0", b"SHGG" + before[4:], before[:4] + b"\2" + before[5:]):
        with pytest.raises(GroupWireError):
            log.fold.restore(data)
    with pytest.raises(GroupWireError):
        GroupFold(by_due=True).restore(before)
    assert log.fold.to_bytes() == before
    other = GroupFold()
    other.restore(before)
    assert other.to_bytes() == before
    other.restore(b"")
    assert (other.to_bytes(), other.size_bytes) == (b"", 0)


def test_settled_entries_are_not_undone() -> None:
    """Nothing is kept of them: the journal holds those behind, and no more."""
    log = Log()
    for number in range(4):
        log.deliver(run(number, 1))
    whole = log.fold.to_bytes()
    log.fold.settle(LogIndex(log.index - 1))
    assert repr(log.fold).endswith(" undo=1)")
    log.fold.undo_from(LogIndex(1))
    assert (log.line(), repr(log.fold).endswith(" undo=0)")) == ("III", True)
    log.fold.check_invariants()
    assert log.fold.to_bytes() != whole


def test_the_greatest_numbers_of_an_entry_can_be_restored() -> None:
    """A decoder of entries lets nothing in that the decoder of checkpoints would refuse."""
    greatest = OFFSETS_MAX - 1
    log = Log()
    assert log(Begin((greatest, greatest - 1)), key=B)
    delivery = log.deliver(run(0, 5))
    assert log(Release(delivery, greatest, (run(1, 1),)))
    operations: list[GroupOperation] = [Lettered(greatest), Skip(greatest, greatest), Free(greatest, ())]
    for operation in (
        *operations,
        Acknowledge(greatest, (run(greatest - 1, 1),)),
        Lost((run(greatest - 3, 2),)),
    ):
        assert decode_entry(encode_entry({A: [operation]})) == {A: [operation]}
        assert not log(operation)
    assert log(Skip(3, greatest))
    assert log(Skip(5, greatest))
    other = GroupFold()
    other.restore(log.fold.to_bytes())
    assert other.groups[A].skipped == greatest
    other.check_invariants()


def test_how_a_checkpoint_is_written() -> None:
    """Byte by byte: one of today is read for ever."""
    log = Log()
    delivery = log.deliver(run(0, 2), request=b"r" * 16)
    assert log(Die(delivery, ReasonCode.EXPIRED, (run(1, 1),), b"xy"))
    expected = "534847460100000001000000" + A.hex() + "01000000"
    expected += "0100000000000000000000000000000000000000000000000000000000000000"
    expected += "0100000000000000" + 4 * "0000000000000000" + "700000003a00000048000000"
    expected += "0000000000000000000000000000000001000000307500000040000000000000"
    expected += "000000000000000040420f00000000000000000001000100"
    expected += "000000000000000001000000000000000100000000000000" + 3 * "0000000000000000"
    expected += "0000000004000000"
    expected += "0100000000000000000000000000000001000000000000000100020002000000"
    expected += 3 * "40420f0000000000" + "7879"
    expected += WORKER.hex() + (b"r" * 16).hex() + "004000000000000040420f0000000000"
    expected += "010000000000000000000000000000000000000002000000"
    assert log.fold.to_bytes().hex() == expected


def test_a_far_end_that_is_done_stays_small() -> None:
    """One message in flight, and ten thousand million done behind it: a few spans."""
    group = PartitionGroup()
    journal: list[Undo] = []
    stamp = entry_stamp(1, 2**50)
    assert group.apply(Deliver(WORKER, NOBODY, 1, (run(0, 1),)), stamp, journal)
    step = 2**31
    for number in range(5):
        assert group.apply(Lost((run(1 + number * step, step),)), stamp, journal)
    assert group.spans.size == 2 + 5 * step // SPAN_OFFSETS
    group.check_invariants()
    assert group.apply(Acknowledge(DELIVERIES, (run(0, 1),)), stamp, journal)
    assert (group.floor, group.spans.size) == ((0, 1 + 5 * step), 0)
    group.undo(journal)
    assert (group.floor, group.spans.size, group.skipped) == ((0, 0), 0, 0)
