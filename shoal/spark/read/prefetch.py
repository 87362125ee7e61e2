"""Fetches small ranges in the process that plans: a whole micro-batch at once, or records for their size.

small.py decides what is fetched, and readers.py hands it to Spark. An attempt is bounded in bytes and time;
where it fails, tasks read the ranges and tell what is wrong.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, Final

import pyarrow as pa

from shoal.spark.options.errors import SourceError
from shoal.spark.options.read_options import SourceOptions
from shoal.spark.read.fetch import FetchPolicy, RangeReader, Scan
from shoal.spark.read.http import POOL, Answer, Persistence
from shoal.spark.read.plan import OffsetRange
from shoal.spark.read.small import RecordSizes, SeenAnswer, may_prefetch, samples, share
from shoal.spark.read.topics import ROUTES_SECONDS_MAX

PREFETCH_THREADS: Final = 8
"""Requests of one micro-batch under way at once: an agent works on some while the planner decodes others.
More would only take turns: a Python process has one core."""

PREFETCH_SECONDS_MAX: Final = 2.0
"""For a micro-batch, or one sample. Agents answer within milliseconds; one that hangs delays a micro-batch by
so much, and tasks then look for another."""

REST_SECONDS: Final = ROUTES_SECONDS_MAX
"""After a failure micro-batches go to tasks for so long: by then the planner has asked who leads now."""

_ONCE: Final = Persistence(attempts=1)  # tasks are the other attempts


class TooLargeError(Exception):
    """The answers together are larger than is fetched at once."""


class _Reading:
    """One attempt: what it may still read, and what its answers were like. Used by several threads."""

    def __init__(self, bytes_max: int, seconds_max: float) -> None:
        self._bytes_left = bytes_max
        self._seconds_max = seconds_max
        self._lock = threading.Lock()
        self._seen: list[SeenAnswer] = []

    def read(self, scan: Scan) -> list[pa.RecordBatch]:
        """The batches of one range. Raises SourceError and TooLargeError."""
        return list(RangeReader(scan, request=partial(self._request, scan.range)).batches())

    def close(self) -> list[SeenAnswer]:
        """Admit no other answer: threads that still wait for one end with it. Returns those seen."""
        with self._lock:
            self._bytes_left = -1
            return self._seen

    def _request(self, piece: OffsetRange, *request: Any, **options: Any) -> Answer:
        def admit(length: int) -> None:
            with self._lock:
                self._bytes_left -= length
                if self._bytes_left < 0:
                    raise TooLargeError

        answer = POOL.request(*request, **options, seconds_max=self._seconds_max, admit=admit)
        try:
            first = int(answer.headers["Shoal-Base-Offset"])
            behind = int(answer.headers["Shoal-Next-Offset"])
        except (TypeError, ValueError):  # a refusal, or no answer of an agent: the reader says so
            return answer
        wanted = min(behind, piece.end) - max(first, piece.start)
        with self._lock:
            self._seen.append(SeenAnswer(piece.topic, wanted, behind - first, len(answer.body)))
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
        self._threads: ThreadPoolExecutor | None = None

    def fetch(self, ranges: Sequence[OffsetRange], agents: tuple[str, ...]) -> list[pa.RecordBatch] | None:
        """The records of a small micro-batch, range by range in their order; None where tasks shall read."""
        now = self._clock()
        options = self._options
        if now < self._rests_until or not may_prefetch(ranges, self._sizes, options, now):
            return None
        policy = FetchPolicy(fetch_bytes=options.prefetch_bytes, retries=_ONCE, asks_near=False)
        reading = _Reading(options.prefetch_bytes, self._seconds_max)
        if self._threads is None:
            self._threads = ThreadPoolExecutor(PREFETCH_THREADS, "shoal-prefetch")
        parts = [
            self._threads.submit(reading.read, _scan(piece, agents, options, policy)) for piece in ranges
        ]
        done, others = wait(parts, self._seconds_max, FIRST_EXCEPTION)
        seen = reading.close()
        for part in others:
            part.cancel()
        failures = [failure for failure in (part.exception() for part in done) if failure is not None]
        strange = [failure for failure in failures if not isinstance(failure, SourceError | TooLargeError)]
        if strange:
            raise strange[0]
        self._sizes.learn(seen, now)
        if any(isinstance(failure, TooLargeError) for failure in failures):
            self._sizes.exceeded(ranges, options.prefetch_bytes, now)
            return None
        if failures or others:
            self._rests_until = now + REST_SECONDS
            return None
        batches = [batch for part in parts for batch in part.result()]
        return [pa.concat_batches(batches)] if batches else []

    def tasks(self, ranges: Sequence[OffsetRange], agents: tuple[str, ...]) -> list[tuple[Scan, ...]]:
        """The ranges of each task. Asks for a few records where ranges are small and their sizes unknown."""
        now = self._clock()
        options = self._options
        seconds_max = self._seconds_max
        policy = FetchPolicy(fetch_bytes=1, retries=_ONCE, asks_near=False)  # a whole batch all the same
        reading = _Reading(2**62, seconds_max)
        for piece in samples(ranges, self._sizes, options, now):
            try:
                reading.read(_scan(piece, agents, options, policy))
            except SourceError:  # ranges of unknown size get tasks of their own, and those say what is wrong
                break
        self._sizes.learn(reading.close(), now)
        return [
            tuple(_scan(piece, agents, options) for piece in task)
            for task in share(ranges, self._sizes, options, now)
        ]

    def together(self, ranges: Sequence[OffsetRange], agents: tuple[str, ...]) -> tuple[Scan, ...]:
        """All of them for one task: what has been fetched, should Spark lose it."""
        return tuple(_scan(piece, agents, self._options) for piece in ranges)


def _scan(piece: OffsetRange, agents: tuple[str, ...], options: SourceOptions, *policy: FetchPolicy) -> Scan:
    return Scan(piece, agents, options.columns, options.fail_on_data_loss, *policy)
