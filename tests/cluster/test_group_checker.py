"""The checker of groups, on histories that were made up: each anomaly is named, and good ones are not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from group_checker import GroupChecker
from group_history import (
    Act,
    Drained,
    Given,
    GroupHistory,
    GroupTerms,
    Leave,
    Letter,
    Logged,
    Mode,
    Receive,
    Verb,
)

P = ("queue", 0)
LEASE_S = 10.0


def given(*offsets: int, attempt: int = 1, delivery: int = 0) -> tuple[Given, ...]:
    return tuple(Given(offset, attempt, f"{delivery}.{offset}", f"v{offset}") for offset in offsets)


def receive(
    consumer: str, delivery: int, at: float, offsets: tuple[int, ...], attempt: int = 1, request: str = ""
) -> Receive:
    """Answered a tenth of a second later."""
    messages = given(*offsets, attempt=attempt, delivery=delivery)
    name = request or f"{consumer}{delivery}"
    return Receive("g", consumer, name, 10, LEASE_S, at, at + 0.1, "ok", P, delivery, 1, messages, 10**15)


def unseen(consumer: str, at: float, request: str = "?") -> Receive:
    return Receive("g", consumer, request, 10, LEASE_S, at, at + 3, "info")


def act(verb: Verb, consumer: str, delivery: int, at: float, *offsets: int, code: str | None = None) -> Act:
    return Act("g", consumer, verb, P, delivery, offsets, at, at + 0.1, "ok", code)


def history(mode: Mode = "shared", records: int = 6) -> GroupHistory:
    """Of a log whose records 0, 2, 4... have the key "even", the others "odd"."""
    log = {offset: Logged(f"v{offset}", "odd" if offset % 2 else "even") for offset in range(records)}
    return GroupHistory(
        {"g": GroupTerms(mode, max_attempts=3)}, logs={P: log}, drained=[Drained("g", P, records)]
    )


def good() -> GroupHistory:
    """a and b share; 1 is given back, 2 expires, 3 is rejected, 4 has all its attempts; b asks again after an
    answer was lost."""
    made = history()
    made.receives = [
        receive("a", 100, 1.0, (0, 1)),
        unseen("b", 1.0, "again"),
        receive("b", 101, 4.0, (2, 3), request="again"),
        receive("a", 200, 5.0, (1,), attempt=2),
        receive("b", 300, 20.0, (2, 4)),
        receive("b", 400, 22.0, (4,), attempt=2),
        receive("b", 500, 24.0, (4,), attempt=3),
        receive("c", 600, 26.0, (5,)),
        receive("c", 600, 28.0, (5,), request="c600"),
    ]
    made.receives[4] = replace(
        made.receives[4], messages=(*given(2, attempt=2, delivery=300), *given(4, delivery=300))
    )
    made.acts = [
        act("ack", "a", 100, 1.5, 0),
        act("nack", "a", 100, 1.5, 1),
        act("ack", "a", 200, 6.0, 1),
        act("ack", "a", 200, 7.0, 1, code="receipt-used"),
        act("reject", "b", 101, 4.5, 3),
        act("ack", "b", 101, 20.5, 2, code="receipt-expired"),
        act("ack", "b", 300, 21.0, 2),
        act("nack", "b", 300, 21.0, 4),
        act("nack", "b", 400, 23.0, 4),
        act("nack", "b", 500, 25.0, 4),
        act("extend", "c", 600, 26.5, 5),
        replace(act("ack", "c", 600, 29.0, 5), is_whole=True),
    ]
    made.letters = [Letter("g", P, 3, 1, "rejected"), Letter("g", P, 4, 3, "nack")]
    return made


def owned() -> GroupHistory:
    """The owner a takes two by two, b has the rest when a has left."""
    made = history("exclusive")
    made.receives = [
        receive("a", 100, 1.0, (0, 1)),
        receive("a", 101, 1.2, (2,)),
        receive("a", 200, 2.0, (1, 2)),
        receive("b", 300, 5.0, (3, 4)),
        receive("b", 400, 6.0, (5,)),
    ]
    made.acts = [
        act("ack", "a", 100, 1.5, 0),
        act("nack", "a", 100, 1.5, 1),
        act("ack", "a", 200, 3.0, 1, 2),
        act("ack", "b", 300, 5.5, 3, 4),
        act("ack", "b", 400, 7.0, 5),
    ]
    made.receives[2] = replace(
        made.receives[2], messages=(*given(1, attempt=2, delivery=200), *given(2, delivery=200))
    )
    made.leaves = [Leave("g", "a", 4.0)]
    return made


def keyed() -> GroupHistory:
    """a has the even ones, b the odd ones; 2 comes again with 4 behind it."""
    made = history("key-ordered")
    made.receives = [
        receive("a", 100, 1.0, (0, 2)),
        receive("b", 101, 1.0, (1,)),
        receive("b", 200, 3.0, (3, 5)),
        receive("a", 201, 3.0, (2, 4)),
    ]
    made.receives[3] = replace(
        made.receives[3], messages=(*given(2, attempt=2, delivery=201), *given(4, delivery=201))
    )
    made.acts = [
        act("ack", "a", 100, 2.0, 0),
        act("nack", "a", 100, 2.0, 2),
        act("ack", "b", 101, 2.0, 1),
        act("ack", "b", 200, 4.0, 3, 5),
        act("ack", "a", 201, 4.0, 2, 4),
    ]
    return made


def names(made: GroupHistory) -> set[str]:
    return {anomaly.name for anomaly in GroupChecker(made).anomalies()}


@pytest.mark.parametrize("make", [good, owned, keyed])
def test_a_good_history_has_no_anomaly(make: Callable[[], GroupHistory]) -> None:
    """Losses of answers, expiry, repetition, death, leaving: all of them may be."""
    assert GroupChecker(make()).anomalies() == []


def test_the_messages_that_were_acknowledged_are_counted() -> None:
    """Each message of each act that is done."""
    assert good().acknowledged_messages == 4


def give_an_acknowledged_one_again(made: GroupHistory) -> None:
    made.receives.append(receive("b", 700, 30.0, (0,), attempt=2))


def give_again_what_the_whole_answer_acknowledged(made: GroupHistory) -> None:
    made.receives.append(receive("b", 700, 40.0, (5,), attempt=2))


def acknowledge_twice(made: GroupHistory) -> None:
    made.acts.append(act("ack", "a", 100, 3.0, 0))


def take_a_void_one(made: GroupHistory) -> None:
    made.acts[5] = replace(made.acts[5], code=None)


def leave_one_out(made: GroupHistory) -> None:
    made.acts.pop()


def leave_the_end_out(made: GroupHistory) -> None:
    made.drained = [replace(made.drained[0], position=5)]


def trim_without_skipping(made: GroupHistory) -> None:
    made.acts.pop()
    made.drained = [replace(made.drained[0], log_start_offset=6)]


def give_another_value(made: GroupHistory) -> None:
    made.receives[0] = replace(made.receives[0], messages=(Given(0, 1, "r", "v1"),))


def give_what_is_not_in_the_log(made: GroupHistory) -> None:
    made.receives.append(receive("b", 700, 30.0, (6,)))


def jump(made: GroupHistory) -> None:
    made.receives[3] = receive("a", 200, 5.0, (1,), attempt=4)


def begin_at_the_third(made: GroupHistory) -> None:
    made.receives[0] = receive("a", 100, 1.0, (0, 1), attempt=3)


def stand_still(made: GroupHistory) -> None:
    made.receives[3] = receive("a", 200, 5.0, (1,))


def pass_the_bound(made: GroupHistory) -> None:
    made.receives.append(receive("b", 700, 30.0, (4,), attempt=4))


def give_before_the_lease_ends(made: GroupHistory) -> None:
    made.receives[4] = replace(made.receives[4], invoked_at=12.0, completed_at=12.1)


def give_others_for_the_same_request(made: GroupHistory) -> None:
    made.receives.append(receive("b", 700, 30.0, (5,), attempt=2, request="again"))


def give_fewer_for_the_same_request(made: GroupHistory) -> None:
    made.receives.insert(3, receive("b", 101, 4.2, (2,), request="again"))


def give_more_for_the_same_request(made: GroupHistory) -> None:
    made.receives.insert(3, receive("b", 101, 4.2, (2, 3, 4), request="again"))


def give_one_delivery_to_two(made: GroupHistory) -> None:
    made.receives.append(receive("d", 600, 27.0, (5,)))


def give_too_many(made: GroupHistory) -> None:
    made.receives[0] = replace(made.receives[0], limit=1)


def give_early(made: GroupHistory) -> None:
    first, *others = made.receives[0].messages
    made.receives[0] = replace(made.receives[0], messages=(replace(first, due_us=10**15 + 1), *others))


def refuse_a_good_one(made: GroupHistory) -> None:
    made.acts[0] = replace(made.acts[0], code="receipt-used")


def call_a_good_one_forged(made: GroupHistory) -> None:
    made.acts[0] = replace(made.acts[0], code="receipt-forged")


def call_it_expired_before_it_was(made: GroupHistory) -> None:
    made.receives = [item for item in made.receives if item.outcome == "ok"]
    made.acts[0] = replace(made.acts[0], code="receipt-expired")


def tell_of_a_seek_that_never_was(made: GroupHistory) -> None:
    made.acts[0] = replace(made.acts[0], code="receipt-before-seek")


def write_a_letter_twice(made: GroupHistory) -> None:
    made.letters.append(made.letters[0])


def write_a_letter_of_what_was_done(made: GroupHistory) -> None:
    made.letters.append(Letter("g", P, 0, 3))


def write_no_letter(made: GroupHistory) -> None:
    made.letters.pop(0)


def write_no_letter_after_the_last_attempt(made: GroupHistory) -> None:
    made.letters.pop(1)


def write_a_letter_too_early(made: GroupHistory) -> None:
    made.letters[1] = replace(made.letters[1], attempts=2)


BAD: list[tuple[Callable[[GroupHistory], None], str]] = [
    (give_an_acknowledged_one_again, "acked-again"),
    (give_again_what_the_whole_answer_acknowledged, "acked-again"),
    (acknowledge_twice, "acked-twice"),
    (take_a_void_one, "void-taken"),
    (leave_one_out, "lost"),
    (leave_the_end_out, "lost"),
    (trim_without_skipping, "lost"),
    (give_another_value, "wrong-record"),
    (give_what_is_not_in_the_log, "wrong-record"),
    (jump, "attempt-jump"),
    (begin_at_the_third, "attempt-jump"),
    (stand_still, "attempt-jump"),
    (pass_the_bound, "attempt-over"),
    (give_before_the_lease_ends, "in-two-hands"),
    (give_others_for_the_same_request, "receive-differs"),
    (give_fewer_for_the_same_request, "receive-differs"),
    (give_more_for_the_same_request, "receive-differs"),
    (give_one_delivery_to_two, "receive-differs"),
    (give_too_many, "over-limit"),
    (give_early, "early"),
    (refuse_a_good_one, "receipt-refused"),
    (call_a_good_one_forged, "receipt-refused"),
    (call_it_expired_before_it_was, "receipt-refused"),
    (tell_of_a_seek_that_never_was, "receipt-refused"),
    (write_a_letter_twice, "letter-twice"),
    (write_a_letter_of_what_was_done, "letter-twice"),
    (write_no_letter, "letter-missing"),
    (write_no_letter_after_the_last_attempt, "letter-missing"),
    (write_a_letter_too_early, "letter-early"),
]


@pytest.mark.parametrize(("spoil", "name"), BAD, ids=[spoil.__name__ for spoil, _ in BAD])
def test_an_anomaly_is_named(spoil: Callable[[GroupHistory], None], name: str) -> None:
    """One thing wrong in a good history, and the checker says what."""
    made = good()
    spoil(made)
    assert name in names(made)


def take_over_too_early(made: GroupHistory) -> None:
    """a holds 1 and 2, and has not left."""
    made.receives[3] = replace(made.receives[3], invoked_at=2.5, completed_at=2.6)
    made.leaves = []


def pass_over_what_was_given_back(made: GroupHistory) -> None:
    """2 is given alone while 1 waits."""
    made.receives[1] = replace(made.receives[1], invoked_at=1.8, completed_at=1.9)


def pass_one_over(made: GroupHistory) -> None:
    made.receives[3] = replace(made.receives[3], messages=given(4, delivery=300))


@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        (take_over_too_early, "two-owners"),
        (pass_over_what_was_given_back, "out-of-order"),
        (pass_one_over, "out-of-order"),
    ],
)
def test_an_owner_has_the_partition_in_order(spoil: Callable[[GroupHistory], None], name: str) -> None:
    """What comes before is done, or the owner has it."""
    made = owned()
    spoil(made)
    assert name in names(made)


def share_a_key(made: GroupHistory) -> None:
    """4 goes to b while a has 2."""
    made.receives[3] = replace(made.receives[3], messages=given(2, attempt=2, delivery=201))
    made.receives.append(receive("b", 300, 3.2, (4,)))
    made.acts[-1] = act("ack", "a", 201, 4.0, 2)
    made.acts.append(act("ack", "b", 300, 4.0, 4))


def pass_over_a_key(made: GroupHistory) -> None:
    """4 goes out while 2 waits to come again."""
    made.receives.insert(3, receive("b", 199, 2.5, (4,)))


@pytest.mark.parametrize(("spoil", "name"), [(share_a_key, "key-parallel"), (pass_over_a_key, "key-order")])
def test_the_messages_of_a_key_come_in_order(spoil: Callable[[GroupHistory], None], name: str) -> None:
    """One answer at a time has undone messages of a key."""
    made = keyed()
    spoil(made)
    assert name in names(made)


def test_keys_do_not_wait_for_each_other_nor_messages_without_one() -> None:
    """In a key-ordered group."""
    made = keyed()
    share_a_key(made)
    log = made.logs[P]
    made.logs[P] = {offset: replace(record, key=None) for offset, record in log.items()}
    assert names(made) == set()


def test_an_answer_that_nobody_saw_explains_a_missing_attempt_once() -> None:
    """Each receive may have delivered a message once."""
    made = good()
    made.receives[3] = receive("a", 200, 5.0, (1,), attempt=3)
    assert names(made) == set()
    made.receives = [item for item in made.receives if item.outcome == "ok"]
    assert names(made) == {"attempt-jump"}


def test_what_nobody_knows_may_be_done() -> None:
    """An act without an answer excuses what it could explain, and nothing more."""
    made = good()
    made.acts[-1] = replace(made.acts[-1], outcome="info")
    assert names(made) == set()
    made.acts[-1] = replace(made.acts[-1], outcome="fail")
    assert names(made) == {"lost"}


def test_what_retention_took_is_told() -> None:
    """As many messages as nobody was done with."""
    made = good()
    trim_without_skipping(made)
    made.drained = [replace(made.drained[0], skipped=1)]
    assert names(made) == set()


def test_a_late_act_counts_while_nobody_else_has_the_message() -> None:
    """After the lease, and before the next delivery."""
    made = good()
    made.receives = made.receives[:7]
    made.receives.append(receive("c", 600, 26.0, (5,)))
    made.acts = [item for item in made.acts if item.consumer != "c"]
    made.acts.append(act("ack", "c", 600, 60.0, 5))
    assert names(made) == set()


def test_the_whole_answers_receipt_says_nothing_of_what_was_given_back_before() -> None:
    """It speaks of the messages that are still in flight."""
    made = good()
    made.acts[-1:] = [
        act("release", "c", 600, 28.5, 5),
        replace(act("ack", "c", 600, 29.0, 5), is_whole=True),
        act("ack", "d", 700, 33.0, 5),
    ]
    made.receives.append(receive("d", 700, 30.0, (5,)))
    assert names(made) == set()


def test_the_checks_take_little_more_for_more_messages() -> None:
    """Tens of thousands, in an ordered group: none is compared with all others."""
    count = 20_000
    made = history("exclusive", count)
    at = [float(number) for number in range(count // 10)]
    made.receives = [
        receive("a", 100 + number, at[number], tuple(range(10 * number, 10 * number + 10)))
        for number in range(count // 10)
    ]
    made.acts = [
        act("ack", "a", 100 + number, at[number] + 0.5, *range(10 * number, 10 * number + 10))
        for number in range(count // 10)
    ]
    assert names(made) == set()


def test_a_message_whose_last_attempt_nobody_saw_is_passed_over_with_its_letter() -> None:
    """In an exclusive group, where the answer was lost behind the last one that was seen. Without it the
    message is missed in its order."""
    made = history("exclusive", 2)
    made.terms["g"] = GroupTerms("exclusive", max_attempts=2)
    made.receives = [receive("a", 100, 1.0, (0,)), unseen("a", 3.0), receive("b", 300, 30.0, (1,))]
    made.acts = [act("nack", "a", 100, 1.5, 0), act("ack", "b", 300, 31.0, 1)]
    made.letters = [Letter("g", P, 0, 2, "expired")]
    assert names(made) == set()
    made.receives.pop(1)
    assert "out-of-order" in names(made)


def test_a_message_whose_every_attempt_nobody_saw_is_passed_over_with_its_letter() -> None:
    """In a key-ordered group, whose later consumers saw all their answers. The message is missed in its order
    where it has no letter, or where fewer answers were lost than it had attempts."""
    made = history("key-ordered", 4)
    made.terms["g"] = GroupTerms("key-ordered", max_attempts=2)
    made.receives = [
        receive("d", 100, 1.0, (0,)),
        unseen("a", 1.0),
        unseen("b", 20.0),
        receive("c", 300, 40.0, (2, 3)),
    ]
    made.acts = [act("ack", "d", 100, 1.5, 0), act("ack", "c", 300, 41.0, 2, 3)]
    made.letters = [Letter("g", P, 1, 2, "expired")]
    assert names(made) == set()
    lost = made.receives.pop(2)
    assert names(made) == {"key-order"}
    made.receives.insert(2, lost)
    made.letters = []
    assert names(made) == {"key-order", "lost"}
