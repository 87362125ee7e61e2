"""The checker of groups, on histories with seeks, redrives, sessions and letters that were made up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import pytest
from group_history import NEVER, Change, GroupHistory, Leave, Letter, Presence, Receive
from test_group_checker import P, act, good, names, owned, receive, take_over_too_early, unseen

from shoal.agent.receive import GroupMode

SESSION_S = 2.0


def change(
    kind: Literal["seek", "redrive", "decide"], at: float, offset: int = 0, *, generation: int = 0
) -> Change:
    return Change(kind, "g", P, at, at + 0.1, "ok", offset, offset, generation)


def sought() -> GroupHistory:
    """All six are given again after a seek to the start, by a, who holds one receipt of before."""
    made = good()
    made.changes = [change("seek", 30.0, generation=2)]
    again = [replace(receive("a", 800 + offset, 31.0, (offset,)), generation=2) for offset in range(6)]
    made.receives += again
    made.acts += [replace(act("ack", "a", 800 + offset, 32.0, offset), generation=2) for offset in range(6)]
    made.acts.append(act("ack", "c", 600, 31.0, 5, code="receipt-before-seek"))
    made.drained = [replace(made.drained[0], generation=2)]
    return made


def test_after_a_seek_everything_may_come_again() -> None:
    """Attempts begin at one, and receipts of before are void."""
    assert names(sought()) == set()


def forget_the_seek(made: GroupHistory) -> None:
    made.changes = []


def seek_too_late(made: GroupHistory) -> None:
    """The receipt was refused before."""
    made.changes = [replace(made.changes[0], invoked_at=31.5, completed_at=31.6)]


def seek_behind_what_is_given(made: GroupHistory) -> None:
    made.changes = [change("seek", 30.0, 3, generation=2)]


def take_a_receipt_of_before(made: GroupHistory) -> None:
    made.acts[-1] = replace(made.acts[-1], code=None)


def fall_back(made: GroupHistory) -> None:
    """A delivery of the former generation behind those of the next one."""
    made.receives.append(receive("b", 900, 33.0, (4,), attempt=3))


def leave_one_of_the_next_generation(made: GroupHistory) -> None:
    """It was done in the former one, which says nothing."""
    del made.acts[12]


def give_one_again(made: GroupHistory) -> None:
    made.receives.append(replace(receive("b", 900, 33.0, (0,), attempt=2), generation=2))


@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        (forget_the_seek, "sought-over"),
        (forget_the_seek, "receipt-refused"),
        (seek_too_late, "receipt-refused"),
        (seek_behind_what_is_given, "sought-over"),
        (take_a_receipt_of_before, "void-taken"),
        (fall_back, "sought-over"),
        (leave_one_of_the_next_generation, "lost"),
        (give_one_again, "acked-again"),
    ],
)
def test_a_seek_excuses_what_it_covers_alone(spoil: Callable[[GroupHistory], None], name: str) -> None:
    """From its place on, and in its own generation."""
    made = sought()
    spoil(made)
    assert name in names(made)


def test_a_seek_without_an_answer_may_have_begun_a_generation_that_nobody_else_did() -> None:
    """Its place still says what may come again."""
    made = sought()
    made.changes = [replace(made.changes[0], outcome="info", generation=0)]
    assert names(made) == set()
    made.changes = [replace(made.changes[0], offset=3, least=3)]
    assert names(made) == {"sought-over"}


def test_a_seek_ahead_leaves_messages_behind() -> None:
    """Nobody has to be done with them."""
    made = good()
    made.acts.pop()
    assert names(made) == {"lost"}
    made.changes = [change("seek", 30.0, 6, generation=2)]
    made.drained = [replace(made.drained[0], generation=2)]
    assert names(made) == set()


def test_a_seek_to_the_end_is_known_from_both_sides() -> None:
    """What stood in the log before it was sent is left behind; what came until it was answered may be."""
    made = sought()
    latest = replace(made.changes[0], offset=6, least=4)
    made.changes = [latest]
    assert "sought-over" in names(made)
    made.receives = [item for item in made.receives if item.generation == 1 or item.offsets[0] >= 4]
    made.acts = [item for item in made.acts if item.generation == 1 or item.offsets[0] >= 4]
    assert names(made) == set()


def test_a_request_that_a_seek_forgot_may_bring_what_another_partition_has() -> None:
    """Where it was served before nobody remembers it; elsewhere nobody ever knew."""
    made = sought()
    made.logs["queue", 1] = {0: made.logs[P][0]}
    other = replace(
        receive("b", 900, 30.5, (0,), request="again"),
        partition=("queue", 1),
        generation=1,
    )
    made.receives.append(other)
    assert names(made) == set()
    made.changes = [replace(made.changes[0], invoked_at=2.0, completed_at=2.1)]
    assert "receive-differs" in names(made)


def redriven() -> GroupHistory:
    """3 died, was redriven, and died again."""
    made = good()
    made.changes = [change("redrive", 30.0)]
    made.receives.append(receive("a", 700, 31.0, (3,)))
    made.acts.append(act("reject", "a", 700, 32.0, 3))
    made.letters.append(made.letters[0])
    return made


def test_a_letter_that_was_redriven_comes_again_and_may_die_again() -> None:
    """Its attempts begin at one."""
    made = redriven()
    assert names(made) == set()
    made.changes = []
    assert names(made) == {"attempt-jump", "letter-twice"}


def test_a_redrive_brings_back_nothing_but_letters() -> None:
    """Neither what was done, nor what was done after it had been redriven."""
    made = redriven()
    made.receives.append(receive("b", 701, 31.0, (0,), attempt=2))
    assert names(made) == {"acked-again"}
    made = redriven()
    made.acts[-1] = act("ack", "a", 700, 32.0, 3)
    made.letters.pop()
    assert names(made) == set()
    made.changes.append(change("redrive", 33.0))
    made.receives.append(receive("b", 702, 34.0, (3,)))
    assert "acked-again" in names(made)


def lettered() -> GroupHistory:
    """All answers were seen, and the letters have their whole history."""
    made = good()
    made.receives = [
        replace(item, delivered_at_us=10**15 + 1_000_000 * item.delivery)
        for item in made.receives
        if item.outcome == "ok"
    ]
    first, second = made.letters
    at_us = {item.delivery: item.delivered_at_us for item in made.receives}
    made.letters = [
        replace(first, ordinal=1, first_us=at_us[101], last_us=at_us[101], value="v3"),
        replace(second, ordinal=2, first_us=at_us[300], last_us=at_us[500] - 999, value="v4"),
    ]
    return made


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"value": "v1"}, "letter-differs"),
        ({"ordinal": 1}, "letter-twice"),
        ({"attempts": 4}, "letter-differs"),
        ({"first_us": 10**15}, "letter-differs"),
        ({"last_us": 10**15 + 300_000_000}, "letter-differs"),
        ({"offset": 0}, "letter-twice"),
    ],
)
def test_a_letter_tells_what_consumers_saw(fields: dict[str, object], name: str) -> None:
    """Record, attempts and times; each number once."""
    made = lettered()
    assert names(made) == set()
    made.letters[1] = replace(made.letters[1], **fields)  # type: ignore[arg-type]
    assert name in names(made)


def test_an_attempt_that_nobody_saw_may_be_the_last_one() -> None:
    """A letter may then tell of more than was seen."""
    made = lettered()
    made.letters[1] = replace(made.letters[1], last_us=made.letters[1].last_us + 10**6)
    assert names(made) == {"letter-differs"}
    made.receives.append(unseen("b", 24.5))
    assert names(made) == set()


def led(made: GroupHistory, *begun: float) -> GroupHistory:
    made.terms["g"] = replace(made.terms["g"], session_s=SESSION_S)
    made.led = {P: list(begun)}
    return made


def test_a_session_that_ended_frees_the_partition() -> None:
    """Nobody heard of a for longer than its session."""
    made = owned()
    take_over_too_early(made)
    assert "two-owners" in names(made)
    made.terms["g"] = replace(made.terms["g"], session_s=0.4)
    assert "two-owners" not in names(made)


def taken_over_in_a_session() -> GroupHistory:
    """a has 1 and 2 at 2.0, and says at 3.5 that it is there, until 5.5; b has them at 4.6. What a was given
    at 2.0 would alone excuse it."""
    made = led(owned(), 0.0)
    made.leaves = []
    made.receives[3:] = [receive("b", 300, 4.5, (1, 2), attempt=3), receive("b", 400, 6.0, (3, 4, 5))]
    made.acts[2:] = [act("ack", "b", 300, 5.0, 1, 2), act("ack", "b", 400, 7.0, 3, 4, 5)]
    made.presences = [Presence("g", "a", 3.5, 3.6, "ok", (P,))]
    made.receives[3] = replace(
        made.receives[3],
        messages=(*made.receives[3].messages[:1], replace(made.receives[3].messages[1], attempt=2)),
    )
    return made


def test_whoever_says_that_it_is_there_keeps_the_partition() -> None:
    """As long as its lease runs."""
    assert names(taken_over_in_a_session()) == {"in-two-hands"}
    made = taken_over_in_a_session()
    made.receives.append(Receive("g", "a", "x", 1, 10.0, 3.5, 3.6, "ok", P))
    made.presences = []
    assert names(made) == {"in-two-hands"}


def it_holds_one_before_for_a_shorter_time(made: GroupHistory) -> None:
    """When that comes again it takes the others along."""
    made.receives[0] = replace(made.receives[0], lease_s=2.5)


def nobody_hears_it(made: GroupHistory) -> None:
    made.presences = [replace(made.presences[0], heard=())]


def another_leader_begins(made: GroupHistory) -> None:
    made.led = {P: [0.0, 3.55]}


def nobody_knows_who_leads(made: GroupHistory) -> None:
    made.led = None


def it_comes_when_the_session_is_over(made: GroupHistory) -> None:
    made.presences = [replace(made.presences[0], completed_at=4.05)]


def it_leaves(made: GroupHistory) -> None:
    made.leaves = [Leave("g", "a", 4.0)]


@pytest.mark.parametrize(
    "excuse",
    [
        it_holds_one_before_for_a_shorter_time,
        nobody_hears_it,
        another_leader_begins,
        nobody_knows_who_leads,
        it_comes_when_the_session_is_over,
        it_leaves,
    ],
)
def test_a_presence_counts_if_the_leader_heard_it_in_time(excuse: Callable[[GroupHistory], None]) -> None:
    """The same leader, while the consumer was there."""
    made = taken_over_in_a_session()
    excuse(made)
    assert names(made) == set()


def refused(consumer: str, at: float) -> Receive:
    return Receive("g", consumer, f"{consumer}{at}", 1, 10.0, at, at + 0.1, "ok", P, reason="not-owner")


def lingering() -> GroupHistory:
    """a was last heard of at 2.0, and c is refused at 4.4."""
    made = led(owned(), 0.0)
    made.leaves = []
    made.receives[3:] = [refused("c", 3.0), refused("c", 4.4)]
    made.settled_at = 100.0
    made.acts, made.drained = made.acts[:3], []
    return made


def test_the_next_consumer_is_served_within_a_session() -> None:
    """Whoever asks when nobody else was heard of for so long."""
    assert names(lingering()) == {"owner-lingers"}


def another_one_asks(made: GroupHistory) -> None:
    made.receives.append(refused("b", 2.6))


def another_one_asked_all_partitions(made: GroupHistory) -> None:
    made.receives.append(replace(refused("b", 2.6), partition=None))


def another_one_said_that_it_is_there(made: GroupHistory) -> None:
    made.presences = [Presence("g", "b", 2.6, 2.7, "fail")]


def another_one_may_still_be_heard_of(made: GroupHistory) -> None:
    made.receives.append(unseen("b", 1.0))


def a_leader_begins(made: GroupHistory) -> None:
    made.led = {P: [0.0, 2.6]}


def no_leader_is_known(made: GroupHistory) -> None:
    made.led = {}


def a_session_is_longer(made: GroupHistory) -> None:
    made.terms["g"] = replace(made.terms["g"], session_s=NEVER)


@pytest.mark.parametrize(
    "excuse",
    [
        another_one_asks,
        another_one_asked_all_partitions,
        another_one_said_that_it_is_there,
        another_one_may_still_be_heard_of,
        a_leader_begins,
        no_leader_is_known,
        a_session_is_longer,
    ],
)
def test_a_consumer_may_be_refused_while_another_one_is_there(excuse: Callable[[GroupHistory], None]) -> None:
    """Or may be, as far as anybody knows."""
    made = lingering()
    excuse(made)
    assert names(made) == set()


def test_an_owner_that_left_is_gone_at_once() -> None:
    """As soon as the partition's leader has heard it, and not before."""
    made = lingering()
    made.receives[3:] = [refused("c", 3.0)]
    assert names(made) == set()
    made.leaves = [Leave("g", "a", 2.5, 2.6, (P,))]
    assert names(made) == {"owner-lingers"}
    made.leaves = [Leave("g", "a", 2.5, 2.6)]
    assert names(made) == set()
    made.leaves = [Leave("g", "a", 2.5, 3.1, (P,))]
    assert names(made) == set()


def test_what_was_never_answered_is_over_when_all_is_settled() -> None:
    """A session later nobody is there."""
    made = lingering()
    another_one_may_still_be_heard_of(made)
    made.settled_at = 2.0
    made.receives[-1] = replace(made.receives[-1], completed_at=1.5)
    assert names(made) == {"owner-lingers"}


def test_letters_of_other_modes_are_judged_alike() -> None:
    """A letter of what was never in the log tells of nothing."""
    made = owned()
    made.letters = [Letter("g", P, 4, 1, "rejected")]
    assert names(made) == {"letter-early", "letter-twice"}
    assert made.terms["g"].mode == GroupMode.EXCLUSIVE
