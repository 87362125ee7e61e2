"""The data source's options and the plan they lead to: which offsets of which partition, in which pieces.

Pure: no Spark, no network. Options are named as those of Spark's Kafka source. Errors are SourceError, one
line that says what is wrong and what to do, for it appears within a long Java trace.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias

DEFAULT_AGENT: Final = "http://127.0.0.1:7070"
AGENT_VARIABLE: Final = "SHOAL_AGENT"
MAX_PIECES: Final = 100_000  # tasks of one query; Spark's own scheduler suffers long before

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_EARLIEST_NUMBER: Final = -2  # as Kafka writes them in JSON
_LATEST_NUMBER: Final = -1

_KNOWN: Final = {
    name.lower(): name
    for name in (
        "agent",
        "subscribe",
        "startingOffsets",
        "endingOffsets",
        "includeHeaders",
        "minPartitions",
        "failOnDataLoss",
    )
}

_URL = re.compile(
    r"(?:(?P<scheme>https?)://)?(?P<place>(?:[\w.~-]+|\[[0-9a-f:.]+\])(?::(?P<port>[0-9]{1,5}))?)/?",
    re.ASCII | re.IGNORECASE,
)
_MAX_PORT: Final = 65_535

OffsetChoice: TypeAlias = "str | Mapping[str, Mapping[int, int]]"


class SourceError(Exception):
    """A query that cannot be answered: one line, what is wrong and what to do."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a query asks for. Offsets: EARLIEST, LATEST, or {topic: {partition: offset, -2, -1}}."""

    topics: tuple[str, ...]
    agents: tuple[str, ...]
    starting: OffsetChoice
    ending: OffsetChoice
    include_headers: bool
    min_partitions: int
    fail_on_data_loss: bool


class PartitionState(NamedTuple):
    """What agents say of a partition: where its log starts, where the committed part ends, who serves it."""

    log_start_offset: int
    high_watermark: int
    urls: tuple[str, ...]  # leader first, then the other replicas


class OffsetRange(NamedTuple):
    """Records to read: offsets from `start` up to and without `end`."""

    topic: str
    partition: int
    start: int
    end: int
    urls: tuple[str, ...]


def parse_options(options: Mapping[str, str], environment: Mapping[str, str]) -> SourceOptions:
    """Read the options, whose names Spark may have put in lower case. Raises SourceError."""
    given = {name.lower(): value for name, value in options.items()}
    for name in given:
        if name not in _KNOWN:
            raise SourceError(f"unknown option {name!r}; known are: {', '.join(sorted(_KNOWN.values()))}")
    topics = _names(given.get("subscribe", ""))
    if not topics:
        raise SourceError('no topic: add .option("subscribe", "TOPIC") (several: separated by commas)')
    agents = given.get("agent") or environment.get(AGENT_VARIABLE) or DEFAULT_AGENT
    return SourceOptions(
        topics=topics,
        agents=tuple(normal_url(agent) for agent in _names(agents)),
        starting=_offsets(given, "startingOffsets", EARLIEST, topics),
        ending=_offsets(given, "endingOffsets", LATEST, topics),
        include_headers=_boolean(given, "includeHeaders", default=False),
        min_partitions=_count(given, "minPartitions"),
        fail_on_data_loss=_boolean(given, "failOnDataLoss", default=True),
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def normal_url(text: str) -> str:
    """http://host:port, from that or from host:port. Raises SourceError."""
    match = _URL.fullmatch(text)
    if match is None or not 0 < int(match["port"] or "80") <= _MAX_PORT:
        raise SourceError(f"agent {text!r} is not a URL like {DEFAULT_AGENT}")
    return f"{match['scheme'] or 'http'}://{match['place']}"


def _boolean(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = given.get(name.lower(), str(default)).strip().lower()
    if text not in ("true", "false"):
        raise SourceError(f"option {name} must be true or false, not {text!r}")
    return text == "true"


def _count(given: Mapping[str, str], name: str) -> int:
    text = given.get(name.lower(), "1").strip()
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:7]) <= MAX_PIECES and len(text) < 7):
        raise SourceError(f"option {name} must be a number from 1 to {MAX_PIECES}, not {text!r}")
    return int(text)


def _offsets(given: Mapping[str, str], name: str, default: str, topics: Sequence[str]) -> OffsetChoice:
    text = given.get(name.lower(), default).strip()
    useless = LATEST if default == EARLIEST else EARLIEST
    if text.lower() == default:
        return default
    if text.lower() == useless:
        raise SourceError(f"option {name}: {useless} would read nothing in a batch query")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise SourceError(
            f"option {name} must be {default} or JSON like {_example(topics)}, not {text[:80]!r}"
        )
    choice = {topic: _topic_offsets(name, topic, offsets, topics) for topic, offsets in document.items()}
    missing = [topic for topic in topics if topic not in choice]
    if missing:
        raise SourceError(f"option {name} has no offsets for topic {missing[0]!r}, which is subscribed")
    refused = _LATEST_NUMBER if default == EARLIEST else _EARLIEST_NUMBER
    if any(offset == refused for offsets in choice.values() for offset in offsets.values()):
        raise SourceError(f"option {name}: {refused} ({useless}) would read nothing in a batch query")
    return choice


def _example(topics: Sequence[str]) -> str:
    return json.dumps({topics[0]: {"0": 17, "1": _EARLIEST_NUMBER}})


def _topic_offsets(name: str, topic: str, offsets: Any, topics: Sequence[str]) -> dict[int, int]:
    if topic not in topics:
        raise SourceError(f"option {name} names topic {topic!r}, which is not subscribed")
    if not isinstance(offsets, dict) or not offsets:
        raise SourceError(f"option {name}: topic {topic!r} needs an object like {_example([topic])}")
    parsed = {}
    for partition, offset in offsets.items():
        sound = partition.isascii() and partition.isdecimal() and len(partition) < 10
        if not sound or isinstance(offset, bool) or not isinstance(offset, int):
            raise SourceError(f"option {name}: {topic!r} has {partition!r}: {offset!r}, not an offset")
        if not _EARLIEST_NUMBER <= offset < 2**63:
            raise SourceError(f"option {name}: offset {offset} of {topic!r}/{partition} is out of range")
        parsed[int(partition)] = offset
    return parsed


def plan(options: SourceOptions, states: Mapping[str, Mapping[int, PartitionState]]) -> list[OffsetRange]:
    """The ranges to read, one a task; `states` as agents gave them. Raises SourceError."""
    ranges = []
    for topic in options.topics:
        for choice, name in ((options.starting, "startingOffsets"), (options.ending, "endingOffsets")):
            _check_partitions(choice, name, topic, states[topic])
        for partition, state in sorted(states[topic].items()):
            start, end = _resolve(options, topic, partition, state)
            if start < end:
                ranges.append(OffsetRange(topic, partition, start, end, state.urls))
    return _split(ranges, options.min_partitions)


def _check_partitions(
    choice: OffsetChoice, name: str, topic: str, states: Mapping[int, PartitionState]
) -> None:
    if isinstance(choice, str):
        return
    unknown, missing = sorted(choice[topic].keys() - states), sorted(states.keys() - choice[topic])
    if unknown:
        raise SourceError(f"option {name}: topic {topic!r} has no partition {unknown[0]}, only {len(states)}")
    if missing:
        raise SourceError(f"option {name} has no offset for partition {missing[0]} of topic {topic!r}")


def _resolve(options: SourceOptions, topic: str, partition: int, state: PartitionState) -> tuple[int, int]:
    start = _number(options.starting, topic, partition, state)
    end = _number(options.ending, topic, partition, state)
    place = f"partition {partition} of topic {topic!r}"
    if start < state.log_start_offset:
        if options.fail_on_data_loss:
            raise data_loss(f"{place} begins at offset {state.log_start_offset}, {start} was trimmed")
        start = state.log_start_offset
    if max(start, end) > state.high_watermark:
        if options.fail_on_data_loss:
            raise data_loss(f"{place} ends at offset {state.high_watermark}, before {max(start, end)}")
        end = min(end, state.high_watermark)
    if start > end and options.fail_on_data_loss:
        raise SourceError(f"{place}: the starting offset {start} lies behind the ending offset {end}")
    return start, end


def _number(choice: OffsetChoice, topic: str, partition: int, state: PartitionState) -> int:
    chosen = choice if isinstance(choice, str) else choice[topic][partition]
    if chosen in (EARLIEST, _EARLIEST_NUMBER):
        return state.log_start_offset
    if chosen in (LATEST, _LATEST_NUMBER):
        return state.high_watermark
    assert isinstance(chosen, int)
    return chosen


def data_loss(what: str) -> SourceError:
    """The error for records that are not there any more; it says how to go on without them."""
    return SourceError(f'{what}; to read what there is: .option("failOnDataLoss", "false")')


def _split(ranges: Sequence[OffsetRange], pieces_wanted: int) -> list[OffsetRange]:
    """Cut large ranges so that there are about `pieces_wanted`, each range in proportion to its records."""
    total = sum(piece.end - piece.start for piece in ranges)
    pieces: list[OffsetRange] = []
    for piece in ranges:
        records = piece.end - piece.start
        count = 1
        if pieces_wanted > len(ranges):
            count = max(1, min(records, round(pieces_wanted * records / total)))
        edges = [piece.start + records * number // count for number in range(count + 1)]
        pieces += [piece._replace(start=start, end=end) for start, end in pairwise(edges)]
    return pieces
