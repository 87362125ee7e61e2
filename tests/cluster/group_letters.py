"""Dead letters, as they stand in the end, and their anomalies.

Law of this file: pure. letter-twice: one death has two letters, or something has one that was done.
letter-missing: something died for certain and has none. letter-early: it had attempts left, and nobody
rejected it. letter-differs: its history is not what consumers saw, or its record is another one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from group_history import Act, Letter, Receive
from group_index import GroupIndex, Place
from log_history import Partition

ROUNDING_US = 1_000
"""The time of the last delivery is kept in whole milliseconds after the first."""


def letter_anomalies(index: GroupIndex) -> Iterator[tuple[str, str]]:
    """(name, text) of each."""
    for letter in index.history.letters:
        yield from _one(index, letter)
    yield from _too_many(index)
    if index.history.drained:
        yield from _missing(index)


def _one(index: GroupIndex, letter: Letter) -> Iterator[tuple[str, str]]:
    place = letter.group, letter.partition
    most = index.terms(letter.group).max_attempts
    acts = [act for act in index.acts_on[place, letter.offset] if act.may_count]
    rejected = any(act.verb == "reject" for act in acts)
    if not rejected and (most is None or letter.attempts < most):
        yield "letter-early", f"{letter}: neither rejected nor tried {most} times"
    record = index.history.logs.get(letter.partition, {}).get(letter.offset)
    if letter.value is not None and record is not None and record.value != letter.value:
        yield "letter-differs", f"{letter}: the record is {record.value}"
    seen = [(item.delivered_at_us, _attempt(item, letter.offset)) for item in _deliveries(index, letter)]
    unseen = index.lost_answers(letter.group, float("inf"))
    if unseen or not letter.last_us:
        return
    last = [attempt for at_us, attempt in seen if abs(at_us - letter.last_us) <= ROUNDING_US]
    if letter.attempts not in last:
        yield "letter-differs", f"{letter}: delivered as {seen}"
    if letter.first_us not in [at_us for at_us, _ in seen]:
        yield "letter-differs", f"{letter}: never delivered at {letter.first_us}, but as {seen}"


def _deliveries(index: GroupIndex, letter: Letter) -> list[Receive]:
    return index.of_message[(letter.group, letter.partition), letter.offset]


def _attempt(receive: Receive, offset: int) -> int:
    return next(item.attempt for item in receive.messages if item.offset == offset)


def _too_many(index: GroupIndex) -> Iterator[tuple[str, str]]:
    ordinals: Counter[tuple[str, Partition, int]] = Counter()
    for letter in index.history.letters:
        if letter.ordinal:
            ordinals[letter.group, letter.partition, letter.ordinal] += 1
    for (group, partition, ordinal), count in ordinals.items():
        if count > 1:
            yield "letter-twice", f"letter {ordinal} of {group} {partition} stands {count} times"
    for (place, offset), count in index.letters.items():
        acked = [act for act in index.acts_on[place, offset] if act.verb == "ack" and act.is_done]
        acked = [act for act in acked if not act.is_whole]
        lives = 1 + _possible_lives(index, place, offset)
        if count > lives:
            yield "letter-twice", f"{place}@{offset} has {count} letters, and died {lives} times at most"
        elif acked and len(acked) + count > lives:
            yield "letter-twice", f"{place}@{offset} was done as {acked[0].delivery}, and has {count} letters"


def _possible_lives(index: GroupIndex, place: Place, offset: int) -> int:
    """How often the message may have begun anew."""
    sought = sum(seek.least <= offset for seek in index.seeks_at[place])
    return sought + min(len(index.changes_at[place]), index.letters[place, offset])


def _missing(index: GroupIndex) -> Iterator[tuple[str, str]]:
    for act in index.history.acts:
        if index.terms(act.group).dead == "letter" and act.is_done and not act.is_whole:
            for offset in act.offsets:
                if _dies(index, act, offset) and not index.letters[act.place, offset]:
                    yield "letter-missing", f"{act.place}@{offset} died of {act}"


def _dies(index: GroupIndex, act: Act, offset: int) -> bool:
    most = index.terms(act.group).max_attempts
    receive = index.deliveries[act.place].get(act.delivery)
    attempts = [item.attempt for item in receive.messages if item.offset == offset] if receive else []
    return act.verb == "reject" or (act.verb == "nack" and most is not None and attempts == [most])
