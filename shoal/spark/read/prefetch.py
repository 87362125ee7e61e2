"""Fetches small ranges in the process that plans: a whole micro-batch at once, or records for their size.

small.py decides what is fetched, and readers.py hands it to Spark. An attempt is bounded in bytes and time;
where it fails, tasks read the ranges and tell what is wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import pyarrow as pa

from shoal.format.arrow_stream import ARROW_STREAM
from shoal.spark.options.errors import SourceError
from shoal.spark.options.read_options import SourceOptions
from shoal.spark.read.fetch import DEFAULT_POLICY, FetchPolicy, RangeReader, Scan
from shoal.spark.read.http import Answer, ConnectionPool, MovedError, Persistence, pool_of
from shoal.spark.read.pipeline import Request, exchange
from shoal.spark.read.plan import OffsetRange
from shoal.spark.read.small import RecordSizes, SeenAnswer, may_prefetch, samples, share
from shoal.spark.read.topics import ROUTES_SECONDS_MAX

PREFETCH_SECONDS_MAX: Final = 2.0
"""For a micro-batch, or one sample. Agents answer within milliseconds; one that hangs delays a micro-batch by
so much, and tasks then look for another."""

REST_SECONDS: Final = ROUTES_SECONDS_MAX
"""After a failure micro-batches go to tasks for so long: by then the planner has asked who leads now."""

SAMPLES_BYTES_MAX: Final = 64 * 2**20
"""Of the answers that tell sizes, which have a stored batch each: of up to 17 MiB, and mostly of some KiB."""

_ONCE: Final = Persistence(attempts=1)  # tasks are the other attempts


class TooLargeError(Exception):
    """The answers together are larger than is fetched at once."""


class _Reading:
    """One attempt: the bytes and the time that it has left, and the answers it has seen."""

    def __init__(self, pool: ConnectionPool, bytes_max: int, seconds_max: float) -> None:
        self._pool = pool
        self._bytes_left = bytes_max
        self._deadline = time.monotonic() + seconds_max
        self._early: dict[Request, Answer] = {}
        self.seen: list[SeenAnswer] = []

    def read(self, scans: Sequence[Scan]) -> list[pa.RecordBatch]:
        """The batches of the ranges, in their order. Raises SourceError and TooLargeError."""
        readers = [RangeReader(scan, request=partial(self._request, scan.range)) for scan in scans]
        first = [reader.first_request() for reader in readers]
        self._early = exchange(self._pool, first, ARROW_STREAM, self._remaining, self._admit)
        return [batch for reader in readers for batch in reader.batches()]

    def _remaining(self) -> float:
        return self._deadline - time.monotonic()

    def _admit(self, length: int) -> None:
        self._bytes_left -= length
        if self._bytes_left < 0:
            raise TooLargeError

    def _request(
        self, piece: OffsetRange, base: str, method: str, path: str, *headers: Any, **options: Any
    ) -> Answer:
        answer = self._early.pop((base, path), None)
        if answer is None:
            seconds = self._remaining()
            if seconds <= 0:
                raise MovedError(f"{base} was too slow")
            answer = self._pool.request(
                base, method, path, *headers, **options, seconds_max=seconds, admit=self._admit
            )
        try:
            first = int(answer.headers["Shoal-Base-Offset"])
            behind = int(answer.headers["Shoal-Next-Offset"])
        except (TypeError, ValueError):  # a refusal, or no answer of an agent: the reader says so
            return answer
        wanted = min(behind, piece.end) - max(first, piece.start)
        self.seen.append(SeenAnswer(piece.topic, wanted, behind - first, len(answer.body)))
        return answer


class Prefetcher:
    """Of one query. It remembers how large records are, and rests after a failure."""

    def __init__(
        self,
        options: SourceOptions,
        clock: Callable[[], float] = time.monotonic,
        seconds_max: float = PREFETCH_SECONDS_MAX,
    ) -> None:
        self._options = options
        self._clock = clock
        self._seconds_max = seconds_max
        self._sizes = RecordSizes()
        self._rests_until = float("-inf")

    def fetch(self, ranges: Sequence[OffsetRange], agents: tuple[str, ...]) -> list[pa.RecordBatch] | None:
        """The records of a small micro-batch, range by range in their order; None where tasks shall read."""
        now = self._clock()
        options = self._options
        if now < self._rests_until or not may_prefetch(ranges, self._sizes, options, now):
            return None
        policy = FetchPolicy(fetch_bytes=options.prefetch_bytes, retries=_ONCE, asks_near=False)
        reading = _Reading(pool_of(options.credentials), options.prefetch_bytes, self._seconds_max)
        try:
            batches = reading.read([_scan(piece, agents, options, policy) for piece in ranges])
        except TooLargeError:
            self._sizes.exceeded(ranges, options.prefetch_bytes, now)
            return None
        except SourceError:  # a task meets it too, tries longer, and says what is wrong
            self._rests_until = now + REST_SECONDS
            return None
        self._sizes.learn(reading.seen, now)
        return [pa.concat_batches(batches)] if batches else []

    def tasks(self, ranges: Sequence[OffsetRange], agents: tuple[str, ...]) -> list[tuple[Scan, ...]]:
        """The ranges of each task. Asks for a few records where ranges are small and their sizes unknown."""
        now = self._clock()
        options = self._options
        policy = FetchPolicy(fetch_bytes=1, retries=_ONCE, asks_near=False)  # a whole batch all the same
        reading = _Reading(pool_of(options.credentials), SAMPLES_BYTES_MAX, self._seconds_max)
        wanted = samples(ranges, self._sizes, options, now)
        with suppress(SourceError, TooLargeError):  # ranges of unknown size get tasks of their own
            reading.read([_scan(piece, agents, options, policy) for piece in wanted])
        self._sizes.learn(reading.seen, now)
        return [
            tuple(_scan(piece, agents, options) for piece in task)
            for task in share(ranges, self._sizes, options, now)
        ]

    def together(self, ranges: Sequence[OffsetRange], agents: tuple[str, ...]) -> tuple[Scan, ...]:
        """All of them for one task: what has been fetched, should Spark lose it."""
        return tuple(_scan(piece, agents, self._options) for piece in ranges)


def _scan(
    piece: OffsetRange, agents: tuple[str, ...], options: SourceOptions, policy: FetchPolicy = DEFAULT_POLICY
) -> Scan:
    columns, fails = options.columns, options.fail_on_data_loss
    return Scan(piece, agents, columns, fails, policy, options.credentials)
