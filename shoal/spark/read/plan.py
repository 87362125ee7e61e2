"""The records to read: offsets from bounds, ends of micro-batches from limits, tasks from ranges.

Pure: no Spark, no network; it works on answers of agents. Errors are SourceError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

from shoal.errors import numbered
from shoal.spark.options.bounds import EARLIEST, EARLIEST_NUMBER, LATEST, LATEST_NUMBER, Bound
from shoal.spark.options.errors import SourceError, data_loss
from shoal.spark.options.read_options import MAX_PIECES, SourceOptions


class LogEnds(NamedTuple):
    """A partition as agents describe it: the first offset, the end of the committed part, its replicas."""

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


TopicPartition: TypeAlias = tuple[str, int]
Offsets: TypeAlias = "dict[TopicPartition, int]"
States: TypeAlias = "Mapping[str, Mapping[int, LogEnds]]"
TimeAnswers: TypeAlias = "Mapping[TopicPartition, int]"
"""The offset of the first record of a time or later, where there is one: an agent's answer to ?at=TIME."""


def by_topic(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[int, int]]:
    """{topic: {partition: offset}}, in order."""
    found: dict[str, dict[int, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[partition] = offset
    return found


def offsets_to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """As Spark's checkpoint keeps them, and as its Kafka source writes them: {topic: {partition: offset}}."""
    found = by_topic(offsets)
    return {
        topic: {str(partition): offset for partition, offset in some.items()} for topic, some in found.items()
    }


def offsets_from_json(document: Any) -> Offsets:
    """The opposite. Raises SourceError for a document that this source never wrote."""
    try:
        return {
            (str(topic), int(partition)): int(offset)
            for topic, partitions in document.items()
            for partition, offset in partitions.items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        shown = str(document)[:80]
        raise SourceError(f"the checkpoint's offsets {shown!r} are not this source's ({error})") from None


def times_of(bound: Bound, states: States) -> dict[TopicPartition, int]:
    """The time in milliseconds that each partition is to be asked for; empty where a bound has none."""
    if bound.time_ms is not None:
        return {(topic, partition): bound.time_ms for topic, some in states.items() for partition in some}
    if bound.times_ms is None:
        return {}
    _check_partitions(bound.times_ms, "OffsetsByTimestamp", states)
    return {
        (topic, partition): bound.times_ms[topic][partition]
        for topic, some in states.items()
        for partition in some
    }


def resolve(bound: Bound, name: str, states: States, found: TimeAnswers) -> Offsets:
    """A bound as numbers. `name`: "starting" or "ending", for errors. Raises SourceError."""
    if bound.offsets is not None:
        _check_partitions(bound.offsets, f"{name}Offsets", states)
    offsets = {}
    for topic, partitions in states.items():
        for partition, state in partitions.items():
            place = (topic, partition)
            if bound.end is not None or bound.offsets is not None:
                chosen = bound.end if bound.offsets is None else bound.offsets[topic][partition]
                offsets[place] = _number(chosen, state)
            elif place in found:
                offsets[place] = found[place]
            elif bound.no_match == LATEST:
                offsets[place] = state.high_watermark
            else:
                raise SourceError(
                    f"partition {partition} of topic {topic!r} has no record of the starting time or later;"
                    ' to begin at its end: .option("startingOffsetsByTimestampStrategy", "latest")'
                )
    return offsets


def _number(chosen: str | int | None, state: LogEnds) -> int:
    if chosen in (EARLIEST, EARLIEST_NUMBER):
        return state.log_start_offset
    if chosen in (LATEST, LATEST_NUMBER):
        return state.high_watermark
    assert isinstance(chosen, int)
    return chosen


def _check_partitions(choice: Mapping[str, Mapping[int, int]], name: str, states: States) -> None:
    for topic, partitions in states.items():
        chosen = choice.get(topic)
        if chosen is None:
            raise SourceError(f"option {name} has no offsets for topic {topic!r}, which is subscribed")
        unknown, missing = sorted(chosen.keys() - partitions), sorted(partitions.keys() - chosen)
        if unknown:
            raise SourceError(
                f"option {name}: topic {topic!r} has no partition {unknown[0]}:"
                f" it has {numbered(len(partitions))}"
            )
        if missing:
            raise SourceError(f"option {name} has no offset for partition {missing[0]} of topic {topic!r}")


def plan(
    options: SourceOptions,
    states: States,
    starts: Offsets,
    ends: Offsets,
    narrowing: Narrowing | None = None,
    since: TimeAnswers | None = None,
) -> list[OffsetRange]:
    """The tasks of a batch query; `states` as agents gave them. Raises SourceError."""
    ranges = []
    for topic, partitions in states.items():
        for partition, state in sorted(partitions.items()):
            start, end = starts[topic, partition], ends[topic, partition]
            start, end = _within(options, f"partition {partition} of topic {topic!r}", start, end, state)
            if start < end:
                ranges.append(OffsetRange(topic, partition, start, end, state.urls))
    return split(ranges if narrowing is None else narrowing.apply(ranges, since or {}), options)


def _within(options: SourceOptions, place: str, start: int, end: int, state: LogEnds) -> tuple[int, int]:
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


def split(ranges: Sequence[OffsetRange], options: SourceOptions) -> list[OffsetRange]:
    """Cut ranges into tasks: about min_partitions of them, each range in proportion to its records, and none
    with more than max_records_per_partition."""
    total = sum(piece.end - piece.start for piece in ranges)
    pieces: list[OffsetRange] = []
    for piece in ranges:
        records = piece.end - piece.start
        count = -(-records // options.max_records_per_partition)
        if options.min_partitions > len(ranges):
            count = max(count, min(records, round(options.min_partitions * records / total)))
        if count > MAX_PIECES:
            raise SourceError(
                f"option maxRecordsPerPartition={options.max_records_per_partition} would make {count} tasks"
                f" of partition {piece.partition} of topic {piece.topic!r}; at most {MAX_PIECES}"
            )
        edges = [piece.start + records * number // count for number in range(count + 1)]
        pieces += [piece._replace(start=start, end=end) for start, end in pairwise(edges)]
    return pieces


# Push-down


@dataclass(frozen=True, slots=True)
class Narrowing:
    """Bounds from filters: every record that passes them lies within. None: no bound."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    first_offset: int = 0
    last_offset: int | None = None
    since_ms: int | None = None

    def by(self, column: str, comparison: str, value: Any) -> Narrowing:
        """With one more filter: column, one of = in > >= < <=, value. Any other filter is no bound."""
        if value is None:
            return self
        if column in ("topic", "partition") and comparison in ("=", "in"):
            some = frozenset((value,) if comparison == "=" else tuple(value))
            if column == "topic":
                return replace(self, topics=some if self.topics is None else self.topics & some)
            return replace(self, partitions=some if self.partitions is None else self.partitions & some)
        if column == "offset" and isinstance(value, int):
            return self._by_offset(comparison, value)
        if column == "timestamp" and comparison in ("=", ">", ">=") and isinstance(value, datetime):
            since_ms = int(value.timestamp() * 1000) - 1  # rounded down; a time too early bounds less
            return replace(self, since_ms=max(0, since_ms, self.since_ms or 0))
        return self

    def _by_offset(self, comparison: str, value: int) -> Narrowing:
        first, last = self.first_offset, self.last_offset
        if comparison in ("=", ">", ">="):
            first = max(first, value + (comparison == ">"))
        if comparison in ("=", "<", "<="):
            end = value - (comparison == "<")
            last = end if last is None else min(last, end)
        return replace(self, first_offset=first, last_offset=last)

    def apply(self, ranges: Sequence[OffsetRange], since: TimeAnswers) -> list[OffsetRange]:
        """The ranges within the bounds. `since`: each partition's first offset whose record is not before
        since_ms. No earlier record passes, in whatever order times come."""
        kept = []
        for piece in ranges:
            if self.topics is not None and piece.topic not in self.topics:
                continue
            if self.partitions is not None and piece.partition not in self.partitions:
                continue
            start = max(piece.start, self.first_offset, since.get((piece.topic, piece.partition), 0))
            end = piece.end if self.last_offset is None else min(piece.end, self.last_offset + 1)
            if start < end:
                kept.append(piece._replace(start=start, end=end))
        return kept


# Streams


def stream_ends(
    start: Mapping[TopicPartition, int],
    states: States,
    fail_on_data_loss: bool,
    targets: Mapping[TopicPartition, int] | None,
) -> tuple[Offsets, Offsets]:
    """(begin, end) of the next micro-batch without limit. Partitions that `start` lacks begin at their log's
    start; partitions that no agent knows any more are left out. `targets`: ends that must not be passed, of
    the partitions that existed then.

    An end below its begin: the log is another one (its topic was deleted and made again). Raises SourceError
    for lost records if `fail_on_data_loss`.
    """
    begins: Offsets = {}
    ends: Offsets = {}
    for topic, partitions in states.items():
        for partition, state in partitions.items():
            place = (topic, partition)
            begin = start.get(place)
            if begin is None and targets is not None and place not in targets:
                continue  # born after the query's end was fixed
            if begin is None:
                begin = state.log_start_offset
                if begin and fail_on_data_loss and start:
                    raise data_loss(
                        f"partition {partition} of topic {topic!r} is new and begins at offset {begin}:"
                        " earlier records were trimmed"
                    )
            end = state.high_watermark
            if end < begin and fail_on_data_loss:
                raise data_loss(
                    f"partition {partition} of topic {topic!r} ends at offset {end}, before {begin}, which"
                    " was read: was the topic deleted and made again?"
                )
            if targets is not None:
                end = min(end, max(begin, targets.get(place, begin)))
            begins[place], ends[place] = begin, end
    missing = sorted(start.keys() - begins.keys())
    if missing and fail_on_data_loss:
        topic, partition = missing[0]
        raise data_loss(f"partition {partition} of topic {topic!r} no longer exists")
    return begins, ends


def limit_ends(begins: Offsets, ends: Offsets, max_rows: int) -> Offsets:
    """Ends with about `max_rows` records in all, shared out in proportion to what each partition has (as
    Spark's Kafka source does): a partition with records gets at least one."""
    sizes = {place: ends[place] - begin for place, begin in begins.items() if ends[place] > begin}
    total = sum(sizes.values())
    if total <= max_rows:
        return ends
    limited = dict(ends)
    for place, size in sizes.items():
        limited[place] = begins[place] + min(size, max(1, max_rows * size // total))
    return limited


def stream_ranges(
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    states: States,
    fail_on_data_loss: bool,
) -> list[OffsetRange]:
    """What lies between two offsets of a stream, a range a partition. Raises SourceError."""
    ranges = []
    for (topic, partition), last in sorted(end.items()):
        state = states.get(topic, {}).get(partition)
        if state is None:
            if fail_on_data_loss and last > start.get((topic, partition), 0):
                raise data_loss(f"partition {partition} of topic {topic!r} no longer exists")
            continue
        first = start.get((topic, partition), 0)  # a new partition is read from its beginning
        if last < first:  # another log than the one that was read before: all of it is new
            first = state.log_start_offset
        if first < state.log_start_offset and first < last:
            if fail_on_data_loss:
                raise data_loss(
                    f"partition {partition} of topic {topic!r} begins at offset {state.log_start_offset},"
                    f" {first} was trimmed"
                )
            first = min(state.log_start_offset, last)
        if first < last:
            ranges.append(OffsetRange(topic, partition, first, last, state.urls))
    return ranges
