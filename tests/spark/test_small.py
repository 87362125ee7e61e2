"""Small ranges, decided purely: what is fetched while planning, and what shares a task."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.spark.options.known import Mode
from shoal.spark.options.read_options import MAX_ROWS, PREFETCH_BYTES, SourceOptions, parse_source_options
from shoal.spark.read.plan import OffsetRange
from shoal.spark.read.small import (
    ANSWER_BYTES,
    ASSUMED_RECORD_BYTES,
    PREFETCHED_RANGES_MAX,
    RANGE_BYTES,
    REMEMBERED_SECONDS,
    TASK_BYTES,
    RecordSizes,
    SeenAnswer,
    may_prefetch,
    samples,
    share,
)


def options(mode: Mode = Mode.STREAM, **given_options: int) -> SourceOptions:
    """Of a query on topic t."""
    chosen = {name: str(value) for name, value in given_options.items()}
    return parse_source_options({"subscribe": "t", **chosen}, {}, mode)


def ranges(*counts: int, topic: str = "t") -> list[OffsetRange]:
    """A range a partition, with so many records."""
    return [OffsetRange(topic, partition, 7, 7 + count, ()) for partition, count in enumerate(counts)]


def sizes(record_bytes: int, *, surplus: int = 0, now: float = 0.0) -> RecordSizes:
    """What a query knows that has read 100 records of t."""
    found = RecordSizes()
    found.learn([SeenAnswer("t", 100, 100 + surplus, ANSWER_BYTES + record_bytes * (100 + surplus))], now)
    return found


def test_a_topic_never_read_is_tried_once_and_teaches_its_size() -> None:
    """The first guess is low; what was too large then is not tried again until it is forgotten."""
    few = int(PREFETCH_BYTES / ASSUMED_RECORD_BYTES) - 1
    unknown = RecordSizes()
    assert may_prefetch(ranges(few), unknown, options(), 0.0)
    assert not may_prefetch(ranges(few + 1), unknown, options(), 0.0)
    unknown.exceeded(ranges(1), PREFETCH_BYTES, 5.0)  # one record of 8 MiB
    assert not may_prefetch(ranges(1), unknown, options(), 5.0)
    assert not may_prefetch(ranges(1), unknown, options(), 5.0 + REMEMBERED_SECONDS)
    assert may_prefetch(ranges(1), unknown, options(), 5.1 + REMEMBERED_SECONDS)
    assert may_prefetch(ranges(1, topic="other"), unknown, options(), 5.0)


def test_sizes_are_those_seen_last() -> None:
    """Records, the framing of answers, and the whole batches that a part of one costs."""
    known = sizes(1_000)
    assert known.bytes_of(ranges(10)[0], 0.0) == ANSWER_BYTES + 10_000
    assert may_prefetch(ranges(500, 500), known, options(), 0.0)
    assert not may_prefetch(ranges(600, 500), known, options(), 0.0)
    whole = sizes(1_000, surplus=900)
    assert may_prefetch(ranges(1_000), whole, options(), 0.0)
    assert not may_prefetch(ranges(10, 10), whole, options(), 0.0)  # two batches of 900 records and more
    whole.learn([SeenAnswer("t", 1, 1, 600), SeenAnswer("t", 1, 1, 700)], 1.0)
    assert may_prefetch(ranges(10, 10), whole, options(), 1.0)
    whole.learn([SeenAnswer("t", 0, 0, 400)], 2.0)  # an answer without records says nothing
    assert whole.bytes_of(ranges(1)[0], 2.0) == ANSWER_BYTES + (600 + 700 - 2 * ANSWER_BYTES) / 2


def test_options_and_bounds_keep_micro_batches_from_it() -> None:
    """0 is off; options ask for more partitions; there is nothing to read, or too many requests."""
    known = sizes(100)
    assert may_prefetch(ranges(10, 10), known, options(), 0.0)
    assert not may_prefetch(ranges(10, 10), known, options(prefetchBytes=0), 0.0)
    assert not may_prefetch(ranges(10, 10), known, options(prefetchBytes=2_000), 0.0)
    assert not may_prefetch(ranges(10, 10), known, options(minPartitions=2), 0.0)
    assert not may_prefetch(ranges(10, 10), known, options(maxRecordsPerPartition=19), 0.0)
    assert not may_prefetch([], known, options(), 0.0)
    assert may_prefetch(ranges(*[1] * PREFETCHED_RANGES_MAX), known, options(), 0.0)
    assert not may_prefetch(ranges(*[1] * (PREFETCHED_RANGES_MAX + 1)), known, options(), 0.0)


def test_small_ranges_share_a_task_up_to_what_a_task_costs() -> None:
    """A thousand partitions of a record, 64 of 2,000 records, and two that are large."""
    known = sizes(100)
    thousand = share(ranges(*[1] * 1_000), known, options(), 0.0)
    assert len(thousand) == -(-1_000 // (TASK_BYTES // (RANGE_BYTES + ANSWER_BYTES + 100)))
    assert [len(task) for task in share(ranges(*[2_000] * 64), known, options(), 0.0)] == [32, 32]
    large = TASK_BYTES // 100
    assert [len(task) for task in share(ranges(large, 1, large), known, options(), 0.0)] == [1, 1, 1]
    assert [len(task) for task in share(ranges(large, 1, 1, 1), known, options(), 0.0)] == [1, 3]


def test_sharing_ends_where_options_want_more_tasks() -> None:
    """minPartitions and maxRecordsPerPartition; a topic of unknown size shares nothing."""
    known = sizes(100)
    for wanted in (1, 2, 7, 63, 64, 65):
        tasks = share(ranges(*[3] * 64), known, options(minPartitions=wanted), 0.0)
        assert len(tasks) >= min(wanted, 64)
        assert len(tasks) == 64 or wanted < 64
    assert [len(task) for task in share(ranges(*[3] * 8), known, options(minPartitions=2), 0.0)] == [4, 4]
    tasks = share(ranges(*[3] * 8), known, options(maxRecordsPerPartition=7), 0.0)
    assert [len(task) for task in tasks] == [2, 2, 2, 2]
    assert len(share(ranges(1, 1), RecordSizes(), options(), 0.0)) == 2
    assert len(share(ranges(1, 1), known, options(), REMEMBERED_SECONDS + 1)) == 2
    assert share([], known, options(), 0.0) == []


@given(
    st.lists(st.integers(1, 10**6), max_size=80),
    st.integers(1, 90),
    st.integers(1, 10**6),
    st.integers(1, 10**5),
)
def test_every_range_is_in_one_task_and_in_order(
    counts: list[int], min_partitions: int, max_records: int, record_bytes: int
) -> None:
    """Whatever the sizes: nothing is lost, repeated or moved, and the options' bounds hold."""
    pieces = ranges(*counts)
    chosen = options(Mode.BATCH, minPartitions=min_partitions, maxRecordsPerPartition=max_records)
    tasks = share(pieces, sizes(record_bytes), chosen, 0.0)
    assert [piece for task in tasks for piece in task] == pieces
    assert len(tasks) >= min(min_partitions, len(pieces))
    for task in tasks:
        records = sum(piece.end - piece.start for piece in task)
        assert len(task) == 1 or records <= max_records
        assert len(task) == 1 or records * record_bytes <= TASK_BYTES


def test_samples_are_few_and_only_where_sharing_may_follow() -> None:
    """The first and the last record of the longest small range of each topic that is not known."""
    both = [*ranges(1, 9), *ranges(5, topic="u")]
    assert [(piece.topic, piece.partition, piece.start, piece.end) for piece in
            samples(both, RecordSizes(), options(), 0.0)] == [
        ("t", 1, 7, 8), ("t", 1, 15, 16), ("u", 0, 7, 8), ("u", 0, 11, 12)
    ]  # fmt: skip
    assert {piece.topic for piece in samples(both, sizes(100), options(), 0.0)} == {"u"}
    assert len(samples(ranges(1, 1), RecordSizes(), options(), 0.0)) == 1  # first and last are the same
    large = int(TASK_BYTES / ASSUMED_RECORD_BYTES) + 1
    for alone in (ranges(9), ranges(large, large), ranges(large, 1), []):
        assert samples(alone, RecordSizes(), options(), 0.0) == []
    assert samples(ranges(9, 9), RecordSizes(), options(minPartitions=2), 0.0) == []


@pytest.mark.parametrize(("text", "expected"), [("0", 0), ("65536", 65_536), (" 16777216 ", 16 * 2**20)])
def test_the_option_is_a_number_of_bytes(text: str, expected: int) -> None:
    """Unless told a mebibyte, and no limit of records."""
    given_options = {"subscribe": "t", "prefetchbytes": text}
    assert parse_source_options(given_options, {}, Mode.STREAM).prefetch_bytes == expected
    assert options().prefetch_bytes == 2**20
    assert options().max_records_per_partition == MAX_ROWS
