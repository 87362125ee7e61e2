"""Durations in fixed buckets: two additions and a search among seventeen numbers for each.

Law of this file: pure. Its callers bring nanoseconds of a clock that never goes back.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import Final

NS_PER_S: Final = 1_000_000_000
BOUNDS_US: Final = (
    50, 100, 200, 500,
    1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000,
    1_000_000, 2_000_000, 5_000_000, 10_000_000,
)  # fmt: skip
"""From a quick sync to the longest wait of a client that is answered."""
BOUNDS_NS: Final = tuple(bound * 1_000 for bound in BOUNDS_US)


class Histogram:
    """`counts`: of each bucket alone, the last is for what took longer than all bounds. A bound belongs to
    the bucket below it, as Prometheus' `le` says."""

    __slots__ = ("counts", "sum_ns")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_US) + 1)
        self.sum_ns = 0

    def observe(self, took_ns: int) -> None:
        """Count one duration."""
        self.counts[bisect_left(BOUNDS_NS, took_ns)] += 1
        self.sum_ns += took_ns

    @property
    def count(self) -> int:
        """How many were counted."""
        return sum(self.counts)

    def cumulative(self) -> list[int]:
        """How many took at most each bound; the last is all of them."""
        return list(accumulate(self.counts))
