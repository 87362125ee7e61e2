"""What consumers say of their messages, at its bounds; the machine has the rest."""

from __future__ import annotations

import pytest

from shoal.agent.groups import partition_group
from shoal.agent.groups.entry import Decide, Die, Fate, Lettered, ReasonCode, Release
from shoal.agent.groups.leader import acts as acts_module
from shoal.agent.groups.leader.acts import BYTES_FOR_RETRIES, LETTER_BYTES, MAX_ACTS
from shoal.agent.groups.leader.group_leader import Decision, GroupLeader
from shoal.agent.groups.leader.leases import MAX_PARTS
from shoal.agent.groups.partition_group import MAX_LETTERS
from shoal.agent.groups.place import SpanState
from shoal.agent.groups.settings import GroupSettings
from shoal.agent.receive import (
    NOBODY,
    Act,
    ActKind,
    DuePlace,
    GroupMode,
    StoppedAction,
    Wanted,
    entry_of,
)
from shoal.format.receipt import Receipt
from tests.agent.groups.group_desk import KEY, PARTITION, GroupDesk, MemoryFeed, attempts, name, offsets


def desk_with(messages: int, settings: GroupSettings | None = None) -> GroupDesk:
    return GroupDesk(settings, MemoryFeed([7] * messages))


def test_of_many_receipts_a_bad_one_does_not_hinder_the_others() -> None:
    """All but one of the largest request are done, in one operation."""
    desk = desk_with(MAX_ACTS)
    delivery = desk.receive(limit=MAX_ACTS).delivery
    receipts = [desk.receipt(delivery, at) for at in range(MAX_ACTS)]
    receipts[5] = receipts[4]
    acted = desk.acts([Act(ActKind.ACK, receipt) for receipt in receipts])
    assert [at for at, code in enumerate(acted.outcomes) if code] == [5]
    assert acted.outcomes[5] == "receipt-used"
    assert len(acted.operations) == 1
    assert desk.group.spans.undone == 1


def test_receipts_of_elsewhere_are_told_apart() -> None:
    """Another partition, an earlier generation, a generation that was lost."""
    desk = desk_with(3)
    delivery = desk.receive().delivery
    elsewhere = Receipt(KEY, PARTITION + 1, 1, delivery, None)
    before = desk.fold.to_bytes()
    assert desk.act(ActKind.ACK, elsewhere) == ["receipt-of-another-group"]
    assert desk.act(ActKind.ACK, Receipt(KEY, PARTITION, 0, delivery, None)) == ["receipt-before-seek"]
    assert desk.act(ActKind.ACK, desk.receipt(delivery + 1)) == ["receipt-used"]
    assert desk.act(ActKind.ACK, desk.receipt(delivery + 1, 0)) == ["receipt-expired"]
    assert desk.act(ActKind.ACK, desk.receipt(delivery, 9)) == ["receipt-used"]
    assert desk.act(ActKind.EXTEND, desk.receipt(delivery, 9)) == ["not-held"]
    assert desk.fold.to_bytes() == before


@pytest.mark.parametrize(
    ("kind", "delay_ms"),
    [
        (ActKind.NACK, -1),
        (ActKind.NACK, 8 * 86_400_000),
        (ActKind.EXTEND, 0),
        (ActKind.EXTEND, 7 * 86_400_000),
    ],
)
def test_bad_delays_change_nothing(kind: ActKind, delay_ms: int) -> None:
    """The front door refuses them first."""
    desk = desk_with(1)
    receipt = desk.receipt(desk.receive().delivery)
    before = desk.fold.to_bytes()
    assert desk.act(kind, receipt, delay_ms=delay_ms) == ["bad-delay"]
    assert desk.fold.to_bytes() == before


def test_a_late_ack_counts_until_the_message_is_given_again() -> None:
    """Then the older receipt is void."""
    desk = desk_with(2)
    first = desk.receive(limit=2).delivery
    desk.now_ms += 40_000
    assert desk.act(ActKind.ACK, desk.receipt(first, 0)) == [None]
    second = desk.receive()
    assert attempts(second) == {1: 2}
    assert desk.act(ActKind.ACK, desk.receipt(first, 1)) == ["receipt-expired"]
    assert desk.act(ActKind.ACK, desk.receipt(second.delivery, 1)) == [None]


def test_two_answers_of_one_entry_have_receipts_of_their_own() -> None:
    """An ack of one whole answer is none of the other."""
    desk = desk_with(4)
    wanted = Wanted(NOBODY, NOBODY, NOBODY, 2, 2**20, 30_000)
    stamp = desk.stamp()
    numbers: list[int] = []
    for _ in range(2):
        decision = desk.leader.receive(wanted, desk.index + 1, desk.now_ms, desk.append_us)
        assert isinstance(decision, Decision)
        assert all(desk.fold.stage(KEY, decision.operations, stamp))
        numbers.append(decision.delivery)
    desk.fold.fold(stamp, desk.fold.staged_entry())  # type: ignore[arg-type]
    desk.index += 1
    assert numbers[1] == numbers[0] + 1
    assert {entry_of(number) for number in numbers} == {desk.index}
    assert desk.act(ActKind.ACK, desk.receipt(numbers[0])) == [None]
    assert desk.group.floor == DuePlace(0, 2)
    assert desk.group.spans.messages[SpanState.IN_FLIGHT] == 2


def test_reasons_are_cut_at_a_whole_character() -> None:
    """256 bytes are kept."""
    desk = desk_with(1)
    receipt = desk.receipt(desk.receive().delivery)
    desk.act(ActKind.REJECT, receipt, reason="x" + "\u00e4" * 200)
    (letter,) = desk.group.letters
    assert letter.text == ("x" + "\u00e4" * 127).encode()
    assert letter.code == ReasonCode.REJECTED


def test_no_more_letters_than_may_wait() -> None:
    """A reject of more says so and takes what it can; when letters are stored the rest may follow."""
    count = MAX_LETTERS + 10
    desk = desk_with(count)
    receipt = desk.receipt(desk.receive(limit=count).delivery)
    assert desk.act(ActKind.REJECT, receipt) == ["letters-full"]
    assert len(desk.group.letters) == MAX_LETTERS
    assert desk.group.spans.messages[SpanState.IN_FLIGHT] == 10
    assert desk.act(ActKind.REJECT, receipt) == ["letters-full"]
    desk.fold_operations([_stored(desk)])
    assert desk.act(ActKind.REJECT, receipt) == [None]


def _stored(desk: GroupDesk) -> Lettered:
    return Lettered(desk.group.letters[-1].ordinal)


def test_a_nack_of_the_last_attempt_waits_while_letters_are_full() -> None:
    """The message is neither given again nor forgotten: it dies when there is room."""
    count = MAX_LETTERS + 2
    desk = desk_with(count, GroupSettings(max_attempts=1))
    receipt = desk.receipt(desk.receive(limit=count).delivery)
    assert desk.act(ActKind.NACK, receipt, reason="no") == [None]
    assert desk.group.spans.messages[SpanState.WAITING] == 2
    assert desk.look() == ()
    assert desk.refused() == "empty"
    assert desk.leader.deadline_ms(desk.now_ms, desk.append_us) is None
    desk.fold_operations([_stored(desk)])
    assert desk.leader.deadline_ms(desk.now_ms, desk.append_us) == desk.now_ms
    (death,) = desk.look()
    assert isinstance(death, Die)
    assert (death.code, death.fate) == (ReasonCode.EXPIRED, Fate.LETTER)
    assert not desk.group.spans.messages[SpanState.WAITING]


def test_an_ack_that_would_cut_too_much_is_refused_and_others_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Edges of spans and whole answers always fit."""
    monkeypatch.setattr(acts_module, "MAX_SPANS", 3)
    monkeypatch.setattr(acts_module, "SPANS_KEPT_FREE", 0)
    desk = desk_with(20)
    delivery = desk.receive(limit=20).delivery
    middle, another, edge = (desk.receipt(delivery, at) for at in (10, 15, 0))
    assert desk.act(ActKind.ACK, middle, another, edge) == [None, "too-fragmented", None]
    assert desk.act(ActKind.ACK, desk.receipt(delivery, 11), desk.receipt(delivery, 9)) == [None, None]
    assert desk.act(ActKind.ACK, desk.receipt(delivery, 5)) == ["too-fragmented"]
    assert desk.act(ActKind.ACK, desk.receipt(delivery)) == [None]
    assert desk.group.spans.size == 0


def test_leases_of_one_answer_end_at_so_many_times() -> None:
    """One more is refused."""
    count = 2 * MAX_PARTS + 4
    desk = desk_with(count)
    delivery = desk.receive(limit=count).delivery
    acts = [Act(ActKind.EXTEND, desk.receipt(delivery, at), 60_000 + at) for at in range(0, count, 2)]
    outcomes = desk.acts(acts).outcomes
    assert outcomes[:500] == (None,) * 500
    assert outcomes[-1] == "too-fragmented"


def test_an_extended_message_stays_in_hand_and_the_rest_comes_again() -> None:
    """Extending is no operation: the log does not grow."""
    desk = desk_with(3)
    delivery = desk.receive("a", 3).delivery
    index = desk.index
    desk.now_ms += 20_000
    assert desk.act(ActKind.EXTEND, desk.receipt(delivery, 1), delay_ms=60_000) == [None]
    assert desk.index == index
    desk.now_ms += 20_000
    assert offsets(desk.receive("b")) == [0, 2]
    desk.now_ms += 40_000
    assert offsets(desk.receive("b")) == [0, 1, 2]


def test_up_to_is_for_the_owner() -> None:
    """Everything that it holds up to the offset, the message there too; others change nothing."""
    desk = desk_with(10, GroupSettings(GroupMode.EXCLUSIVE))
    for _ in range(2):
        desk.receive("a", 4)
    receipt = Receipt.up_to(KEY, PARTITION, 5)
    assert desk.act(ActKind.UP_TO, receipt, consumer=name("b")) == ["receipt-expired"]
    assert desk.act(ActKind.UP_TO, receipt, consumer=name("a")) == [None]
    assert desk.group.floor == DuePlace(0, 6)
    assert desk.act(ActKind.UP_TO, receipt, consumer=name("a")) == ["receipt-used"]


def test_up_to_leaves_messages_of_a_former_owner() -> None:
    """They come again: the owner of now was never given them."""
    desk = desk_with(4, GroupSettings(GroupMode.EXCLUSIVE))
    desk.receive("a", 4)
    desk.leader.leave(name("a"), name(""), desk.now_ms)
    assert offsets(desk.receive("b", 1)) == [0]
    assert desk.act(ActKind.UP_TO, Receipt.up_to(KEY, PARTITION, 3), consumer=name("b")) == [None]
    desk.commit()
    assert offsets(desk.receive("b", 9)) == [1, 2, 3]


def test_a_nack_in_an_exclusive_group_takes_all_behind_it_back() -> None:
    """Nothing is given until its time, then all come in order; only one attempt is counted."""
    desk = desk_with(5, GroupSettings(GroupMode.EXCLUSIVE))
    delivery = desk.receive("a", 5).delivery
    acted = desk.acts([Act(ActKind.NACK, desk.receipt(delivery, 1), 5_000)])
    assert [type(one) for one in acted.operations] == [Release, Release]
    assert desk.refused("a") == "blocked"
    assert desk.act(ActKind.ACK, desk.receipt(delivery, 3)) == ["receipt-used"]
    assert desk.act(ActKind.ACK, desk.receipt(delivery, 0)) == [None]
    desk.now_ms += 5_000
    assert attempts(desk.receive("a")) == {1: 2, 2: 1, 3: 1, 4: 1}


def test_a_stopped_message_holds_an_exclusive_partition() -> None:
    """Until an operator decides."""
    desk = desk_with(3, GroupSettings(GroupMode.EXCLUSIVE, dead="stop", max_attempts=1))
    delivery = desk.receive("a", 3).delivery
    assert desk.act(ActKind.NACK, desk.receipt(delivery, 0)) == [None]
    assert desk.group.spans.messages[SpanState.STOPPED] == 1
    assert desk.refused("a") == "blocked"
    decide = Decide(StoppedAction.RETRY, (desk.group.spans.first().piece,))  # type: ignore[union-attr]
    desk.fold_others(decide)
    assert attempts(desk.receive("a")) == {0: 1, 1: 1, 2: 1}


def test_acts_count_before_a_new_leader_has_begun() -> None:
    """Whole answers and single messages of its predecessor's deliveries."""
    desk = desk_with(6)
    delivery = desk.receive(limit=6).delivery
    leader = desk.leader.__class__(
        desk.group, desk.settings, desk.feed, partition=PARTITION, partitions=4, fits=desk.fold.would_fit
    )
    desk.leader = leader
    assert desk.act(ActKind.EXTEND, desk.receipt(delivery, 1), delay_ms=90_000) == [None]
    assert desk.act(ActKind.ACK, desk.receipt(delivery, 0)) == [None]
    for _ in leader.begin(desk.now_ms):
        pass
    desk.check()
    desk.now_ms += 31_000
    assert offsets(desk.receive()) == [2, 3, 4, 5]
    assert desk.act(ActKind.ACK, desk.receipt(delivery)) == [None]


def test_a_reason_that_is_no_text_is_cut_like_any_other() -> None:
    """JSON may name half a character: the letter has another in its place."""
    desk = desk_with(1)
    delivery = desk.receive("a").delivery
    assert desk.act(ActKind.REJECT, desk.receipt(delivery, 0), reason="bad \ud800 " + "x" * 300) == [None]
    assert desk.group.letters[0].text.startswith(b"bad ? x")


def test_as_many_letters_are_written_as_the_groups_have_bytes_for() -> None:
    """Not none: what nobody may be given again would never die."""
    desk = desk_with(20, GroupSettings(max_attempts=1))
    desk.receive("a", 20)
    room = BYTES_FOR_RETRIES + 3 * LETTER_BYTES
    desk.leader = GroupLeader(
        desk.group,
        desk.settings,
        desk.feed,
        partition=PARTITION,
        partitions=1,
        fits=lambda grown: grown <= room,
    )
    assert list(desk.leader.begin(desk.now_ms)) == []
    desk.now_ms += 30_000
    desk.look()
    assert len(desk.group.letters) == 3


def test_messages_of_a_key_are_taken_back_in_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand that lie scattered cut the table into thousands; of each key they count once."""
    desk = GroupDesk(GroupSettings(GroupMode.KEY_ORDERED), MemoryFeed([1, 2, 3] * 10))
    delivery = desk.receive("a", 30).delivery
    monkeypatch.setattr(acts_module, "MAX_TAKEN_ALONG", 15)
    first, again, other = (desk.receipt(delivery, at) for at in (0, 3, 1))
    assert desk.act(ActKind.NACK, first, again, other) == [None, None, "too-fragmented"]
    assert desk.group.spans.messages[SpanState.WAITING] == 10
    assert desk.act(ActKind.RELEASE, other) == [None]
    assert desk.group.spans.messages[SpanState.WAITING] == 20


def test_a_full_table_is_not_cut_by_what_comes_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """The word is refused, and the message comes again when its lease ends."""
    desk = GroupDesk(GroupSettings(GroupMode.KEY_ORDERED), MemoryFeed([1, 2] * 10))
    delivery = desk.receive("a", 20).delivery
    monkeypatch.setattr(acts_module, "MAX_SPANS", acts_module.SPANS_KEPT_FREE + 12)
    monkeypatch.setattr(partition_group, "MAX_SPANS", 16)
    assert desk.act(ActKind.NACK, desk.receipt(delivery, 0)) == ["too-fragmented"]
    assert desk.act(ActKind.NACK, desk.receipt(delivery, 19)) == ["too-fragmented"]
    assert desk.act(ActKind.NACK, desk.receipt(delivery)) == [None]
