"""A leader's answers beside the machine: owners that come and go, bounds, damage, keys and due times."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence

import pytest

from shoal.agent.groups.entry import Decide, Free, Lettered, Lost, Skip
from shoal.agent.groups.leader import bounds, group_leader, key_locks
from shoal.agent.groups.leader.candidates import FeedNotReady
from shoal.agent.groups.leader.group_leader import MAX_DELIVER_RANGES, Decision, GroupLeader
from shoal.agent.groups.place import SpanState
from shoal.agent.groups.requests import MAX_CONSUMERS
from shoal.agent.groups.settings import GroupSettings
from shoal.agent.receive import ActKind, Blocker, DuePlace, GroupMode, Range, StoppedAction
from shoal.format.batch import LogIndex
from shoal.format.receipt import Receipt
from tests.agent.groups.group_desk import (
    KEY,
    PARTITION,
    RECORD_BYTES,
    GroupDesk,
    MemoryFeed,
    attempts,
    name,
    offsets,
)

EXCLUSIVE = GroupSettings(GroupMode.EXCLUSIVE)
KEYED = GroupSettings(GroupMode.KEY_ORDERED)


def desk_with(messages: int, settings: GroupSettings | None = None) -> GroupDesk:
    """All of one key."""
    return GroupDesk(settings, MemoryFeed([7] * messages))


def test_answers_keep_to_their_bytes() -> None:
    """And have at least one message."""
    desk = desk_with(9)
    assert offsets(desk.receive(max_bytes=3 * RECORD_BYTES)) == [0, 1, 2]
    assert offsets(desk.receive(max_bytes=1)) == [3]


def test_a_record_that_is_larger_than_an_answer_comes_alone() -> None:
    """Scattered ones, too: each would be as large."""
    desk = desk_with(5)
    desk.feed.hidden = {1, 3}
    assert offsets(desk.receive(max_bytes=1)) == [0]
    desk.commit()
    assert offsets(desk.receive(max_bytes=1)) == [2]


def test_nothing_happens_while_the_feed_is_not_ready() -> None:
    """The same receive is decided later; a promise is kept for it."""
    desk = desk_with(3)
    number = desk.wait("a", 3)
    desk.promised()
    desk.feed.is_ready = False
    before = desk.fold.to_bytes()
    with pytest.raises(FeedNotReady):
        desk.ask("a", promise=number)
    assert desk.fold.to_bytes() == before
    assert desk.refused("b") == "empty"
    desk.feed.is_ready = True
    assert offsets(desk.receive("a", promise=number)) == [0, 1, 2]


def test_messages_that_cannot_be_read_come_once_they_can() -> None:
    """Others pass them in a shared group."""
    desk = desk_with(6)
    desk.feed.hidden = {1, 2}
    assert offsets(desk.receive()) == [0, 3, 4, 5]
    assert desk.refused() == "empty"
    desk.feed.hidden = {2}
    assert offsets(desk.receive()) == [1]
    desk.fold_others(Lost((Range(0, 2, 1),)))
    desk.feed.hidden = set()
    assert desk.refused() == "empty"


@pytest.mark.parametrize("settings", [EXCLUSIVE, KEYED], ids=["exclusive", "key-ordered"])
def test_nothing_passes_a_message_that_cannot_be_read_where_order_counts(settings: GroupSettings) -> None:
    """Until it can be read, or is lost for good."""
    desk = desk_with(6, settings)
    desk.feed.hidden = {1}
    first = desk.receive("a")
    assert offsets(first) == [0]
    assert desk.act(ActKind.ACK, desk.receipt(first.delivery)) == [None]
    assert desk.refused("a") == "empty"
    desk.fold_others(Lost((Range(0, 1, 1),)))
    assert offsets(desk.receive("a")) == [2, 3, 4, 5]


def test_retention_goes_over_what_was_not_done() -> None:
    """What is in flight behind it stays so; receipts of what is gone are used."""
    desk = desk_with(6)
    delivery = desk.receive(limit=4).delivery
    desk.fold_others(Skip(2, 2))
    assert desk.act(ActKind.ACK, desk.receipt(delivery, 0), desk.receipt(delivery, 2)) == [
        "receipt-used",
        None,
    ]
    assert offsets(desk.receive()) == [4, 5]


@pytest.mark.parametrize("mode", GroupMode)
def test_a_redriven_message_comes_again_before_the_others(mode: GroupMode) -> None:
    """With attempts from one on, and under the order of its mode."""
    desk = desk_with(3, GroupSettings(mode, max_attempts=1))
    delivery = desk.receive("a", 1).delivery
    assert desk.act(ActKind.REJECT, desk.receipt(delivery)) == [None]
    desk.fold_operations([Lettered(1)])
    desk.fold_others(Free(1, (Range(0, 0, 1),)))
    assert attempts(desk.receive("a", 1)) == {0: 1}


def test_an_answer_has_so_many_ranges() -> None:
    """It is shorter than its limit, if messages lie more scattered than that."""
    count = 2 * MAX_DELIVER_RANGES + 10
    desk = desk_with(count)
    delivery = desk.receive(limit=count).delivery
    desk.act(ActKind.ACK, *(desk.receipt(delivery, at) for at in range(0, count, 2)))
    desk.now_ms += 30_000
    assert len(offsets(desk.receive(limit=count))) == MAX_DELIVER_RANGES


def test_a_full_window_gives_again_and_brings_nothing_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so, in the answer and in the group's numbers."""
    monkeypatch.setattr(bounds, "MAX_UNDONE_MESSAGES", 5)
    desk = desk_with(9)
    assert offsets(desk.receive(limit=7)) == [0, 1, 2, 3, 4]
    assert desk.refused() == "window-full"
    assert desk.leader.describe(desk.now_ms, desk.append_us).window == "window-full"
    desk.now_ms += 30_000
    answer = desk.receive(limit=3)
    assert attempts(answer) == {0: 2, 1: 2, 2: 2}
    desk.act(ActKind.ACK, desk.receipt(answer.delivery))
    desk.act(ActKind.RELEASE, desk.receipt(desk.group.spans.last().delivery))  # type: ignore[union-attr]
    assert offsets(desk.receive(limit=7)) == [3, 4, 5, 6, 7]


def test_a_fold_that_is_full_gives_nothing() -> None:
    """All groups of a partition share its bytes."""
    desk = desk_with(3)
    desk.leader = desk.leader.__class__(
        desk.group, desk.settings, desk.feed, partition=3, partitions=4, fits=lambda grown: grown <= 0
    )
    for _ in desk.leader.begin(desk.now_ms):
        pass
    assert desk.refused() == "window-full"


def test_a_fold_that_is_nearly_full_gives_again_what_it_can() -> None:
    """Messages that come again make room, once they are done."""
    desk = desk_with(6)
    for _ in range(3):
        desk.receive("a", 1)
        desk.receive("b", 1)
    room = bounds.REQUEST_BYTES + 2 * bounds.CANDIDATE_BYTES
    desk.leader = desk.leader.__class__(
        desk.group, desk.settings, desk.feed, partition=3, partitions=4, fits=lambda grown: grown <= room
    )
    for _ in desk.leader.begin(desk.now_ms):
        pass
    desk.now_ms += 30_000
    assert offsets(desk.receive()) == [0, 1]


def test_what_is_new_and_has_no_room_holds_up_no_message_that_comes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a group with keys it may stand before it."""
    desk = GroupDesk(KEYED, MemoryFeed([1, 2, 1, 3]))
    first = desk.receive("a", 1).delivery
    desk.receive("b", 1, lease_ms=60_000)
    desk.feed.hashes.append(0)
    assert offsets(desk.receive("c", 1)) == [3]  # 2 waits for 0
    assert desk.act(ActKind.ACK, desk.receipt(first)) == [None]
    desk.now_ms += 30_000
    monkeypatch.setattr(bounds, "MAX_SPANS", desk.group.spans_taken)
    assert offsets(desk.receive("c")) == [3]
    assert desk.refused("c") == "window-full"
    monkeypatch.undo()
    assert offsets(desk.receive("c")) == [2, 4]


def test_too_many_consumers_are_refused_while_the_oldest_is_young() -> None:
    """After a quarter of an hour it is forgotten."""
    desk = desk_with(MAX_CONSUMERS + 5)
    desk.check = lambda: None  # type: ignore[method-assign]
    for number in range(MAX_CONSUMERS):
        desk.ask(f"c{number}", 1, request="r")
        if number % 100 == 0:
            desk.commit()
    assert desk.refused("more", request="r") == "too-many-consumers"
    assert isinstance(desk.ask("more", 1), Decision)
    desk.now_ms += 16 * 60_000
    assert isinstance(desk.ask("more", 1, request="r"), Decision)


def test_the_next_consumer_owns_the_partition_within_a_session() -> None:
    """The owner was killed; its messages come again, counted, in order, to one consumer alone."""
    desk = desk_with(5, EXCLUSIVE)
    delivery = desk.receive("a", 3).delivery
    assert desk.refused("b") == "not-owner"
    desk.now_ms += 5_000
    assert desk.refused("b") == "not-owner"
    desk.now_ms += 5_000
    assert attempts(desk.receive("b", 4)) == {0: 2, 1: 2, 2: 2, 3: 1}
    assert desk.act(ActKind.ACK, desk.receipt(delivery)) == ["receipt-used"]
    assert desk.leader.owner == name("b")


def test_an_owner_that_leaves_makes_room_at_once() -> None:
    """As if its session had ended; another process of its name cannot do that."""
    desk = desk_with(5, EXCLUSIVE)
    desk.receive("a", 2, instance="1")
    desk.leader.leave(name("a"), name("2"), desk.now_ms)
    assert desk.refused("b") == "not-owner"
    desk.leader.leave(name("a"), name("1"), desk.now_ms)
    assert offsets(desk.receive("b", 2)) == [0, 1]


def test_an_owner_that_is_not_assigned_any_more_finishes_what_it_has() -> None:
    """It gets nothing new, and the next one begins when it holds nothing."""
    desk = desk_with(5, EXCLUSIVE)
    first = desk.receive("a", 2)
    newcomer = next(
        one
        for one in map(str, range(100))
        if desk.leader.present(name(one), name(""), desk.now_ms)
        and desk.leader.assigned(name(one), desk.now_ms)
    )
    assert desk.refused("a") == "not-owner"
    assert desk.refused(newcomer) == "not-owner"
    assert desk.act(ActKind.ACK, desk.receipt(first.delivery)) == [None]
    assert offsets(desk.receive(newcomer, 2)) == [2, 3]


def test_a_second_process_of_a_name_is_refused_in_exclusive_groups_only() -> None:
    """Shared groups take ten consumers of one name."""
    desk = desk_with(3, EXCLUSIVE)
    desk.receive("a", 1, instance="1")
    assert desk.refused("a", instance="2") == "consumer-in-use"
    shared = desk_with(3)
    shared.receive("a", 1, instance="1")
    assert offsets(shared.receive("a", 1, instance="2")) == [1]


def test_a_new_leader_knows_the_owner_by_its_last_request() -> None:
    """Others wait until its session or its leases are over."""
    desk = desk_with(5, EXCLUSIVE)
    desk.receive("a", 2, request="r1")
    desk.fail_over()
    assert desk.leader.owner == name("a")
    assert desk.refused("b") == "not-owner"
    desk.now_ms += 10_000
    assert attempts(desk.receive("b", 2)) == {0: 2, 1: 2}


def test_a_new_leader_gives_no_lease_to_the_owner_before_the_last() -> None:
    """Its messages that came to nobody since come to the owner, who has another message in hand."""
    desk = desk_with(5, EXCLUSIVE)
    desk.receive("a", 1, request="r0")
    desk.receive("a", 2, request="r1")
    desk.now_ms += 10_000
    assert attempts(desk.receive("b", 1, request="r2")) == {0: 2}
    desk.fail_over()
    desk.check()
    assert desk.leader.owner == name("b")
    assert attempts(desk.receive("b", 4, request="r3")) == {1: 2, 2: 2, 3: 1, 4: 1}


def test_messages_of_a_former_owner_are_not_in_hand_again_under_a_new_leader() -> None:
    """Their lease had ended when one before them was given to the next: two would own the partition."""
    desk = desk_with(6, EXCLUSIVE)
    former = desk.receive("a", 4, request="r1").delivery
    desk.leader.leave(name("a"), name(""), desk.now_ms)
    assert offsets(desk.receive("b", 1, request="r2")) == [0]
    desk.fail_over()
    assert desk.leader.owner == name("b")
    assert desk.act(ActKind.EXTEND, desk.receipt(former)) == ["not-held"]
    assert attempts(desk.receive("b", 9)) == {1: 2, 2: 2, 3: 2, 4: 1, 5: 1}


def test_a_new_leader_knows_an_owner_that_names_no_requests() -> None:
    """What came to a former owner since is not in the hands of the one that names them."""
    desk = desk_with(6, EXCLUSIVE)
    desk.receive("a", 1, request="r1")
    desk.leader.leave(name("a"), name(""), desk.now_ms)
    former = desk.receive("b", 3).delivery
    desk.leader.leave(name("b"), name(""), desk.now_ms)
    given = desk.receive("a", 1, request="r2").delivery
    assert desk.act(ActKind.ACK, desk.receipt(given)) == [None]
    desk.commit()
    desk.fail_over()
    assert desk.act(ActKind.EXTEND, desk.receipt(former)) == ["not-held"]
    assert attempts(desk.receive("a")) == {1: 2, 2: 2, 3: 1, 4: 1, 5: 1}


def test_a_former_owner_extends_nothing_before_a_new_leader_knows_the_last_one() -> None:
    """Its messages would be in hand again, beside those of the last one."""
    desk = desk_with(4, EXCLUSIVE)
    former = desk.receive("a", 3, request="r1").delivery
    desk.leader.leave(name("a"), name(""), desk.now_ms)
    desk.receive("b", 1, request="r2")
    desk.leader = GroupLeader(
        desk.group, desk.settings, desk.feed, partition=PARTITION, partitions=4, fits=desk.fold.would_fit
    )
    assert desk.act(ActKind.EXTEND, desk.receipt(former)) == ["not-held"]
    assert list(desk.leader.begin(desk.now_ms)) == []
    assert offsets(desk.receive("b")) == [1, 2, 3]


def test_an_owner_goes_on_with_all_its_answers_under_a_new_leader() -> None:
    """Its last request alone is remembered; what it was given before that is its own, too."""
    desk = desk_with(6, EXCLUSIVE)
    first = desk.receive("a", 2, request="r1").delivery
    desk.receive("a", 2, request="r2")
    desk.fail_over()
    assert desk.act(ActKind.EXTEND, desk.receipt(first)) == [None]
    assert desk.act(ActKind.UP_TO, Receipt.up_to(KEY, PARTITION, 2), consumer=name("a")) == [None]
    assert desk.group.floor == DuePlace(0, 3)


def test_messages_that_come_back_while_a_new_leader_begins_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator does not wait until it has looked at all spans."""
    monkeypatch.setattr(group_leader, "SLICE_SPANS", 1)
    desk = desk_with(4, GroupSettings(dead="stop", max_attempts=1))
    first, second = (desk.receive("a", 1).delivery for _ in range(2))
    assert desk.act(ActKind.NACK, desk.receipt(first), desk.receipt(second)) == [None, None]
    desk.commit()
    desk.leader = GroupLeader(
        desk.group, desk.settings, desk.feed, partition=PARTITION, partitions=1, fits=desk.fold.would_fit
    )
    beginning = desk.leader.begin(desk.now_ms)
    next(beginning)
    desk.fold_others(Decide(StoppedAction.RETRY, (Range(0, 0, 1),)))
    assert list(beginning) in ([None], [None, None])
    assert attempts(desk.receive("b")) == {0: 1, 2: 1, 3: 1}


def test_a_new_leader_hides_what_is_in_flight_for_one_visibility() -> None:
    """The lease of each message is as long as it was when it was given."""
    desk = desk_with(4)
    desk.receive("a", 2, lease_ms=90_000)
    desk.receive("a", 1, lease_ms=5_000)
    desk.fail_over()
    assert offsets(desk.receive("b", 9)) == [3]
    desk.now_ms += 5_000
    assert attempts(desk.receive("b", 9)) == {2: 2}
    desk.now_ms += 85_000
    assert set(attempts(desk.receive("b", 9))) == {0, 1, 2, 3}


def test_a_key_with_a_message_in_flight_is_locked() -> None:
    """Messages of a key go together in one answer; null keys never wait."""
    desk = GroupDesk(KEYED, MemoryFeed([1, 2, 1, 0, 0, 2, 1]))
    first = desk.receive("a", 2)
    assert offsets(first) == [0, 1]
    assert offsets(desk.receive("b", 9)) == [3, 4]
    assert desk.refused("b") == "blocked"
    desk.act(ActKind.ACK, desk.receipt(first.delivery, 0))
    assert offsets(desk.receive("b", 9)) == [2, 6]


def test_a_full_window_of_keys_names_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """One key that is never done blocks the messages behind the window."""
    monkeypatch.setattr(key_locks, "KEY_WINDOW", 6)
    desk = GroupDesk(KEYED, MemoryFeed([9] * 8 + [1]))
    delivery = desk.receive("a", 1).delivery
    assert desk.refused("b") == "blocked"
    assert desk.leader.describe(desk.now_ms, desk.append_us).blocked_by == Blocker(9, DuePlace(0, 0))
    desk.act(ActKind.ACK, desk.receipt(delivery))
    assert offsets(desk.receive("b", 3)) == [1, 2, 3]


def test_keys_are_read_some_thousands_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """And then the next turn goes on, when somebody waits for them or others have changed the group."""
    monkeypatch.setattr(key_locks, "KEYS_A_TURN", 2)
    monkeypatch.setattr(key_locks, "CHUNK_MESSAGES", 2)
    desk = GroupDesk(KEYED, MemoryFeed([1] * 5 + [2]))
    assert offsets(desk.receive("a", 1)) == [0]
    for _ in range(2):
        with pytest.raises(FeedNotReady):
            desk.ask("b")
        assert desk.leader.deadline_ms(desk.now_ms, desk.append_us) == desk.now_ms
        desk.now_ms += 1
        desk.look()
    assert offsets(desk.receive("b")) == [5]
    desk.now_ms += 1
    desk.look()
    assert desk.leader.deadline_ms(desk.now_ms, desk.append_us) != desk.now_ms


def test_timers_with_keys_are_passed_over_within_the_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each that is passed over becomes a span: with a full table none is."""
    feed = MemoryFeed([1] * 8 + [2], by_due=True)
    desk = GroupDesk(KEYED, feed)
    feed.due = [desk.append_us] * 9
    monkeypatch.setattr(key_locks, "MAX_SPANS", key_locks.SPANS_FOR_NEW + 4)
    assert len(offsets(desk.receive("a", 1))) == 1
    assert desk.refused("b") == "blocked"
    monkeypatch.undo()
    assert offsets(desk.receive("b")) == [8]


def test_keys_of_timers_are_passed_over_in_the_log() -> None:
    """A due message that waits for its key stands in the table, so that nothing is forgotten behind it."""
    feed = MemoryFeed([5, 5, 6], by_due=True)
    desk = GroupDesk(KEYED, feed)
    feed.due = [desk.append_us - 3, desk.append_us - 2, desk.append_us - 1]
    first = desk.receive("a", 1)
    assert offsets(first) == [0]
    second = desk.receive("b", 5)
    assert offsets(second) == [2]
    assert desk.group.spans.messages[SpanState.WAITING] == 1
    desk.act(ActKind.ACK, desk.receipt(second.delivery, 2, feed.due[2]))
    desk.act(ActKind.ACK, desk.receipt(first.delivery, 0, feed.due[0]))
    desk.commit()
    desk.fail_over()
    assert attempts(desk.receive("b", 5)) == {1: 1}


def test_timers_come_in_the_order_of_their_due_times() -> None:
    """None before it is due; neighbours of one due time are one range."""
    feed = MemoryFeed([0] * 5, by_due=True)
    desk = GroupDesk(feed=feed)
    now_us = desk.append_us
    feed.due = [now_us + 2_000_000, now_us, now_us, now_us - 5, now_us + 1_000_000]
    answer = desk.receive("a", 9)
    assert [tuple(piece) for piece, _ in answer.delivered] == [(now_us - 5, 3, 1), (now_us, 1, 2)]
    desk.now_ms += 1_000
    assert offsets(desk.receive("a", 9)) == [4]
    desk.now_ms += 1_000
    assert offsets(desk.receive("a", 9)) == [0]


def test_stopped_messages_wait_for_an_operator() -> None:
    """In a shared group others go on meanwhile."""
    desk = desk_with(3, GroupSettings(dead="stop", max_attempts=1))
    desk.act(ActKind.REJECT, desk.receipt(desk.receive(limit=1).delivery))
    assert offsets(desk.receive(limit=1)) == [1]
    desk.fold_others(Decide(StoppedAction.RETRY, (Range(0, 0, 1),)))
    assert attempts(desk.receive(limit=1)) == {0: 1}


def test_the_numbers_of_a_group() -> None:
    """For people: each state, the lag, and the consumers with what each holds."""
    desk = desk_with(10)
    one = desk.receive("a", 4).delivery
    desk.receive("b", 2)
    desk.act(ActKind.ACK, desk.receipt(one, 1))
    desk.act(ActKind.NACK, desk.receipt(one, 2), delay_ms=9_000)
    desk.act(ActKind.REJECT, desk.receipt(one, 3))
    desk.now_ms += 500
    numbers = desk.leader.describe(desk.now_ms, desk.append_us)
    assert (numbers.position, numbers.next, numbers.end) == (DuePlace(0, 0), DuePlace(0, 6), DuePlace(0, 10))
    assert (numbers.lag, numbers.acked) == (9, 1)
    assert (numbers.in_flight, numbers.delayed, numbers.dying, numbers.letters) == (3, 1, 1, 1)
    assert {(one.name, one.holds, one.seen_ms) for one in numbers.consumers} == {("a", 1, 500), ("b", 2, 500)}


class StraightFeed(MemoryFeed):
    """A log that can be read everywhere, without a look at each message."""

    def new(self, after: DuePlace, limit: int, append_us: int) -> list[Range]:
        """See Feed."""
        count = min(limit, len(self.hashes) - after.offset)
        return [Range(0, after.offset, count)] if count > 0 else []


def test_a_tenth_of_a_million_messages_in_flight_within_a_tenth_of_64_mib() -> None:
    """Answers of a hundred; the leader's memory, and the table."""
    desk = GroupDesk(feed=StraightFeed([7] * 100_000))
    desk.check = lambda: None  # type: ignore[method-assign]
    tracemalloc.start()
    try:
        for number in range(1_000):
            assert isinstance(desk.ask(f"c{number % 50}", 100, request=f"r{number}"), Decision)
            desk.log.clear()
            desk.fold.settle(LogIndex(desk.index))
            desk.leader.committed(desk.index, desk.now_ms)
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert desk.group.spans.messages[SpanState.IN_FLIGHT] == 100_000
    assert held_bytes < 6.4 * 2**20, held_bytes
    desk.leader.check_invariants(desk.now_ms)


def test_a_key_is_locked_while_a_later_message_of_it_is_in_hand() -> None:
    """The first one's lease has ended, the second was extended: nobody else gets the first meanwhile."""
    desk = GroupDesk(KEYED, MemoryFeed([1, 1]))
    delivery = desk.receive("a", 2).delivery
    assert desk.act(ActKind.EXTEND, desk.receipt(delivery, 1), delay_ms=60_000) == [None]
    desk.now_ms += 30_000
    assert desk.refused("b") == "empty"
    desk.now_ms += 30_000
    assert attempts(desk.receive("b")) == {0: 2, 1: 2}


def test_keys_that_come_in_parts_are_read_once() -> None:
    """The feed may become not ready in between: nothing is forgotten, nothing is given twice."""

    class Halting(MemoryFeed):
        """Ready for one more call at a time."""

        calls = 1

        def keys(self, piece: Range) -> Sequence[int]:
            """See Feed."""
            if self.calls == 0:
                self.calls = 1
                raise FeedNotReady
            self.calls -= 1
            return super().keys(piece)

    feed = Halting([1, 2, 1, 2, 1, 2])
    feed.hidden = {2}
    desk = GroupDesk(KEYED, feed)
    desk.fold_others(Lost((Range(0, 2, 1),)))
    given: list[int] = []
    for _ in range(6):
        try:
            decision = desk.ask("a", 9)
        except FeedNotReady:
            continue
        if isinstance(decision, Decision):
            given += offsets(decision)
            desk.act(ActKind.ACK, desk.receipt(decision.delivery))
    assert sorted(given) == [0, 1, 3, 4, 5]


def test_a_new_leader_gives_what_waited_before_what_is_new() -> None:
    """The fourth's key was locked, the fifth has none: the order is the log's, as before the fail-over."""
    desk = GroupDesk(KEYED, MemoryFeed([0, 0, 1, 1, 0]))
    assert offsets(desk.receive("a", 3)) == [0, 1, 2]
    assert offsets(desk.receive("a", 3)) == [4]
    desk.fail_over()
    desk.now_ms += 60_000
    assert offsets(desk.receive("b", 4)) == [0, 1, 2, 3]


def test_a_message_never_has_more_attempts_than_the_group_allows() -> None:
    """Notes of its earlier leases still stand when the last one ends."""
    desk = GroupDesk(GroupSettings(GroupMode.SHARED, max_attempts=3), MemoryFeed([7] * 4))
    for attempt in (1, 2, 3):
        assert attempts(desk.receive("a", 1)) == {0: attempt}
        desk.now_ms += 30_000
    assert attempts(desk.receive("a", 1)) == {1: 1}
