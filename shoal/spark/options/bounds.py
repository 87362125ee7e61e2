"""A query's topics, and where reading begins and ends. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from shoal.errors import numbered
from shoal.spark.options.errors import SourceError
from shoal.spark.options.known import SELECTIONS, Mode
from shoal.spark.options.values import (
    MAX_TIME_MS,
    json_object,
    names_in,
    one_of,
    require_topic_name,
    time_ms_of,
)

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
EARLIEST_NUMBER: Final = -2  # as Kafka writes them in JSON
LATEST_NUMBER: Final = -1
TIME_EXAMPLE: Final = "2026-01-31T05:00:00Z"
_ONLY_JAVAS: Final = re.compile(r"\\[pP](?:\{\w*\}|\w)|\\[hHRXGQEzkVe]|\\x\{|\(\?<\w")
"""Classes of characters, quotes and named groups, as only Java writes them: Python calls them faults."""
_SET_OF_SETS: Final = re.compile(r"\[(?:[^\]\\]|\\.)*(?:\[|&&)")
"""As [a-z&&[^b]]. Python would take the signs as they are, and no topic's name has them."""
PerPartition: TypeAlias = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class Bound:
    """The beginning or the end of reading: an end of the log, offsets, or a time.

    Exactly one is given of `end` (EARLIEST or LATEST), `offsets` ({topic: {partition: offset, -2, -1}}),
    `time_ms` (for all partitions) and `times_ms` ({topic: {partition: time}}). `no_match`: LATEST where a
    time after the last record means the end, None where it is an error.
    """

    end: str | None = None
    offsets: PerPartition | None = None
    time_ms: int | None = None
    times_ms: PerPartition | None = None
    no_match: str | None = LATEST


@dataclass(frozen=True, slots=True)
class Selection:
    """The topics: named ones, those that match a pattern, or some partitions. Exactly one is given."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: Mapping[str, tuple[int, ...]] | None = None

    @property
    def named(self) -> tuple[str, ...] | None:
        """The topics, where the options name them."""
        if self.assigned is not None:
            return tuple(self.assigned)
        return None if self.pattern is not None else self.topics

    def matches(self, topic: str) -> bool:
        """Whether the pattern matches the topic. Topics of the system have to be named."""
        assert self.pattern is not None
        return not topic.startswith("_") and re.fullmatch(self.pattern, topic) is not None

    def partitions(self, topic: str, present: Sequence[int]) -> list[int]:
        """The partitions of a topic that are read. Raises SourceError for one that does not exist."""
        if self.assigned is None:
            return sorted(present)
        wanted = sorted(self.assigned[topic])
        for partition in wanted:
            if partition not in present:
                raise SourceError(
                    f"option assign: topic {topic!r} has no partition {partition}:"
                    f" it has {numbered(len(present))}"
                )
        return wanted


def selection_of(given: Mapping[str, str]) -> Selection:
    """The topics that a query names. Raises SourceError."""
    chosen = [name for name in SELECTIONS if given.get(name.lower(), "").strip(" ,")]
    if not chosen:
        raise SourceError('no topic: add .option("subscribe", "TOPIC") (several: separated by commas)')
    if len(chosen) > 1:
        raise SourceError(f"options {' and '.join(chosen)} exclude each other: give one of them")
    text = given[chosen[0].lower()].strip()
    if chosen[0] == "subscribe":
        topics = names_in(text)
        for topic in topics:
            require_topic_name("subscribe", topic)
        return Selection(topics=topics)
    if chosen[0] == "subscribePattern":
        _require_pattern(text)
        return Selection(pattern=text)
    return Selection(assigned=_assigned(text))


def _require_pattern(text: str) -> None:
    """Raises SourceError for a pattern that Python does not know, or takes for something else than Java."""
    fault = ""
    javas = _SET_OF_SETS.search(text)
    if javas is None:
        try:
            re.compile(text)
        except re.error as error:
            fault, javas = str(error), _ONLY_JAVAS.search(text)
    if javas is not None:
        raise SourceError(
            f"option subscribePattern: {text[:80]!r} is a pattern that only Java knows: here patterns are"
            f" Python's, without {javas[0][:40]!r}; names of topics have a-z A-Z 0-9 . _ - only, so sets"
            " like [A-Za-z] do"
        )
    if fault:
        raise SourceError(f"option subscribePattern: {text[:80]!r} is no pattern: {fault}")


def _assigned(text: str) -> dict[str, tuple[int, ...]]:
    wanted = 'option assign must be JSON like {"TOPIC": [0, 1]}'
    document = json_object("assign", text)
    if not document:
        raise SourceError(f"{wanted}, not {text[:80]!r}")
    for topic, partitions in document.items():
        require_topic_name("assign", topic)
        sound = isinstance(partitions, list) and partitions
        if not sound or any(type(number) is not int or not 0 <= number < 2**31 for number in partitions):
            raise SourceError(f"{wanted}: topic {topic!r} has {str(partitions)[:80]!r}")
    return {topic: tuple(sorted(set(partitions))) for topic, partitions in document.items()}


def bound_of(given: Mapping[str, str], side: str, selection: Selection, default: str, mode: Mode) -> Bound:
    """One side's options, in Kafka's order of precedence: one time, times, offsets."""
    strategy = one_of(given, "startingOffsetsByTimestampStrategy", ("error", LATEST), "error")
    no_match = None if side == "starting" and strategy == "error" else LATEST
    name = f"{side}Timestamp"
    if name.lower() in given:
        time_ms = time_ms_of(given[name.lower()])
        if time_ms is None:
            raise SourceError(
                f"option {name} must be a time like {TIME_EXAMPLE}, or in milliseconds from 0 to"
                f" {MAX_TIME_MS}, not {given[name.lower()][:80]!r}"
            )
        return Bound(time_ms=time_ms, no_match=no_match)
    name = f"{side}OffsetsByTimestamp"
    if name.lower() in given:
        times = _per_partition(given[name.lower()], name, "", selection, low=0, high=MAX_TIME_MS)
        return Bound(times_ms=times, no_match=no_match)
    return _offsets(given.get(f"{side.lower()}offsets", default).strip(), side, selection, mode)


def _offsets(text: str, side: str, selection: Selection, mode: Mode) -> Bound:
    name = f"{side}Offsets"
    useless: tuple[str, int] | None = None
    if side == "ending":
        useless = (EARLIEST, EARLIEST_NUMBER)
    elif mode is Mode.BATCH:
        useless = (LATEST, LATEST_NUMBER)
    words = [word for word in (EARLIEST, LATEST) if useless is None or word != useless[0]]
    if text.lower() in words:
        return Bound(end=text.lower())
    if useless is not None and text.lower() == useless[0]:
        raise SourceError(f"option {name}: {useless[0]} would read nothing in a batch query")
    offsets = _per_partition(
        text, name, f"{' or '.join(words)} or ", selection, low=EARLIEST_NUMBER, high=2**63 - 1
    )
    if useless is not None and any(useless[1] in entries.values() for entries in offsets.values()):
        raise SourceError(f"option {name}: {useless[1]} ({useless[0]}) would read nothing in a batch query")
    return Bound(offsets=offsets)


def _per_partition(
    text: str, name: str, alternatives: str, selection: Selection, *, low: int, high: int
) -> PerPartition:
    """{topic: {partition: number}} of the topics that are read. Raises SourceError."""
    example = _example(selection.named or ("TOPIC",), low)
    document = json_object(name, text)
    if document is None:
        raise SourceError(f"option {name} must be {alternatives}JSON like {example}, not {text[:80]!r}")
    named = selection.named
    choice = {}
    for topic, numbers in document.items():
        if named is not None and topic not in named:
            raise SourceError(f"option {name} names topic {topic!r}, which is not subscribed")
        choice[topic] = _numbers(name, topic, numbers, low, high)
    missing = [topic for topic in named or () if topic not in choice]
    if missing:
        raise SourceError(f"option {name} has no offsets for topic {missing[0]!r}, which is subscribed")
    return choice


def _example(topics: Sequence[str], low: int) -> str:
    numbers = {"0": 17, "1": EARLIEST_NUMBER} if low < 0 else {"0": 1_735_689_600_000}
    return json.dumps({topics[0]: numbers})


def _numbers(name: str, topic: str, numbers: Any, low: int, high: int) -> dict[int, int]:
    if not isinstance(numbers, dict) or not numbers:
        raise SourceError(f"option {name}: topic {topic!r} needs an object like {_example([topic], low)}")
    parsed = {}
    for partition, number in numbers.items():
        sound = partition.isascii() and partition.isdecimal() and len(partition) < 10
        if low == 0 and isinstance(number, str):
            number = number if (time_ms := time_ms_of(number)) is None else time_ms
        if not sound or type(number) is not int:
            what = "an offset" if low < 0 else f"a time in milliseconds or like {TIME_EXAMPLE}"
            raise SourceError(f"option {name}: {topic!r} has {partition!r}: {number!r}, not {what}")
        if not low <= number <= high:
            raise SourceError(f"option {name}: {number} of {topic!r}/{partition} is out of range")
        if int(partition) in parsed:
            raise SourceError(f"option {name} names partition {int(partition)} of {topic!r} twice")
        parsed[int(partition)] = number
    return parsed
