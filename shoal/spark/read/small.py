"""Small ranges: which micro-batch is fetched while it is planned, and which ranges share a task.

Law of this file: pure. Offsets tell how many records there are and not how large they are; sizes are those of
answers seen before. Times are arguments. A wrong size costs time and never a record.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from shoal.spark.options.read_options import SourceOptions
from shoal.spark.read.plan import OffsetRange

ASSUMED_RECORD_BYTES: Final = 64.0
"""Of a topic that was never read: few, since a guess too low costs one fetch in vain, which is bounded and
teaches the size, and a guess too high would never be put right."""

REMEMBERED_SECONDS: Final = 60.0
"""How long a size counts. A topic whose records were too large once is tried again so often, and no more."""

ANSWER_BYTES: Final = 512
"""Of an answer beside its records, about: schema and framing. Of lone records it is most of an answer."""

PREFETCHED_RANGES_MAX: Final = 256
"""Ranges that one process fetches for a micro-batch. A request costs it up to a millisecond of its one core:
with more of them a few tasks on several cores are sooner done."""

TASK_BYTES: Final = 12 * 2**20
"""Of the ranges that share a task. A task costs 70 ms of a core before its first record, and 12 MiB cost
worker and JVM nearly as much: more in one task would wait for it, where another core may be free."""

RANGE_BYTES: Final = 128 * 1024
"""The cost of one more range of a task beside its records, in bytes read meanwhile: a request, 0.6 ms."""

_UNKNOWN: Final = float("inf")


class SeenAnswer(NamedTuple):
    """An answer: how many records of it were wanted, how many it had (it has whole batches), its size."""

    topic: str
    wanted: int
    records: int
    bytes: int


class _Size(NamedTuple):
    record_bytes: float
    surplus: float  # records of an answer that were not wanted
    since: float


class RecordSizes:
    """How large the records of topics are, by what was read of them last."""

    def __init__(self) -> None:
        self._sizes: dict[str, _Size] = {}

    def learn(self, answers: Iterable[SeenAnswer], now: float) -> None:
        """Take in answers that were fetched together; `now` in seconds."""
        by_topic: dict[str, list[SeenAnswer]] = {}
        for answer in answers:
            by_topic.setdefault(answer.topic, []).append(answer)
        for topic, some in by_topic.items():
            records = sum(answer.records for answer in some)
            surplus = sum(max(0, answer.records - answer.wanted) for answer in some)
            if records:
                total = sum(max(answer.records, answer.bytes - ANSWER_BYTES) for answer in some)
                self._sizes[topic] = _Size(total / records, surplus / len(some), now)

    def exceeded(self, ranges: Sequence[OffsetRange], size: int, now: float) -> None:
        """These ranges have more bytes than `size`: none of their topics has smaller records, for all that is
        known."""
        record_bytes = size / max(1, _records(ranges))
        for topic in {piece.topic for piece in ranges}:
            known = self._known(topic, now)
            if known is None or known.record_bytes < record_bytes:
                self._sizes[topic] = _Size(record_bytes, 0.0 if known is None else known.surplus, now)

    def _known(self, topic: str, now: float) -> _Size | None:
        size = self._sizes.get(topic)
        return None if size is None or now - size.since > REMEMBERED_SECONDS else size

    def bytes_of(self, piece: OffsetRange, now: float) -> float | None:
        """The bytes of an answer with these records, about; None for a topic of which nothing is known."""
        size = self._known(piece.topic, now)
        if size is None:
            return None
        return ANSWER_BYTES + size.record_bytes * max(piece.end - piece.start, size.surplus + 1)


def may_prefetch(
    ranges: Sequence[OffsetRange], sizes: RecordSizes, options: SourceOptions, now: float
) -> bool:
    """Whether a micro-batch is worth the attempt to fetch it at once. It becomes one partition of Spark's:
    not where options ask for more."""
    if not ranges or options.min_partitions > 1 or len(ranges) > PREFETCHED_RANGES_MAX:
        return False
    if _records(ranges) > options.max_records_per_partition:
        return False
    total = 0.0
    for piece in ranges:
        known = sizes.bytes_of(piece, now)
        total += (piece.end - piece.start) * ASSUMED_RECORD_BYTES if known is None else known
    return total < options.prefetch_bytes


def share(
    ranges: Sequence[OffsetRange], sizes: RecordSizes, options: SourceOptions, now: float
) -> list[tuple[OffsetRange, ...]]:
    """The ranges of each task, in order: neighbours together while they cost less than another task would,
    in tasks of about the same size.

    At least min_partitions tasks where there are as many ranges; none of several ranges has more than
    max_records_per_partition records. A range of unknown size has a task to itself.
    """
    known = [sizes.bytes_of(piece, now) for piece in ranges]
    costs = [_UNKNOWN if size is None else RANGE_BYTES + size for size in known]
    total = sum(cost for cost in costs if cost != _UNKNOWN)
    count = max(-(-total // TASK_BYTES), options.min_partitions)  # of tasks that are about as large
    joinable = len(ranges) - options.min_partitions
    tasks: list[list[OffsetRange]] = []
    before, place, bytes_left, records_left = 0.0, -1, 0.0, 0
    for piece, cost in zip(ranges, costs, strict=True):
        records = piece.end - piece.start
        middle = -1 if cost == _UNKNOWN else int((before + cost / 2) * count // total)
        if middle == place >= 0 and joinable > 0 and cost <= bytes_left and records <= records_left:
            tasks[-1].append(piece)
            joinable -= 1
        else:
            tasks.append([piece])
            place, bytes_left, records_left = middle, TASK_BYTES, options.max_records_per_partition
        before += 0 if cost == _UNKNOWN else cost
        bytes_left -= cost
        records_left -= records
    return [tuple(task) for task in tasks]


def samples(
    ranges: Sequence[OffsetRange], sizes: RecordSizes, options: SourceOptions, now: float
) -> list[OffsetRange]:
    """Single records to fetch before ranges share tasks, of topics whose sizes are not known. They are the
    first and the last of the longest range that is small enough for company."""
    if len(ranges) <= options.min_partitions:
        return []
    longest: dict[str, OffsetRange] = {}
    small = 0
    for piece in ranges:
        records = piece.end - piece.start
        if records * ASSUMED_RECORD_BYTES > TASK_BYTES:
            continue
        small += 1
        known = longest.get(piece.topic)
        if sizes.bytes_of(piece, now) is None and (known is None or records > known.end - known.start):
            longest[piece.topic] = piece
    if small < 2:
        return []
    ends = [(piece, {piece.start, piece.end - 1}) for piece in longest.values()]
    return [piece._replace(start=at, end=at + 1) for piece, places in ends for at in sorted(places)]


def _records(ranges: Sequence[OffsetRange]) -> int:
    return sum(piece.end - piece.start for piece in ranges)
