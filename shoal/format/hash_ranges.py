"""Hashes of keys and ranges of hashes: the partition of a key.

Law of this file: no Arrow, so that commands without records start quickly; partitioner.py applies the same
rule to whole batches. Leaders and addresses are unknown here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

try:
    from xxhash import xxh3_64_intdigest
except ImportError:  # on Spark's executors; the same digests, more slowly
    from shoal.format.xxh3 import xxh3_64_intdigest  # type: ignore[assignment]

HASH_SPACE: Final = 2**32


class HashRange(NamedTuple):
    """Hashes from `low` to `high`, both included."""

    low: int
    high: int


def key_hash(key: bytes) -> int:
    """The upper 32 bits of xxh3-64 of the key."""
    digest: int = xxh3_64_intdigest(key)
    return digest >> 32


def key_hash_64(key: bytes) -> int:
    """xxh3-64 of the key; never 0, which says that there is no key."""
    digest: int = xxh3_64_intdigest(key)
    return digest or 1


def hash_ranges(partitions: int) -> tuple[HashRange, ...]:
    """The birth ranges of a topic: equal but for rounding, ascending, covering every hash once."""
    assert 1 <= partitions <= HASH_SPACE
    edges = [number * HASH_SPACE // partitions for number in range(partitions + 1)]
    return tuple(HashRange(low, high - 1) for low, high in pairwise(edges))


@lru_cache(maxsize=1024)  # topics in use; an entry is some hundred bytes for each partition
def _ascending(ranges: tuple[HashRange, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ranges' low ends in ascending order, and their partitions. They must cover all hashes once."""
    order = sorted(range(len(ranges)), key=lambda partition: ranges[partition].low)
    expected = 0
    for partition in order:
        assert ranges[partition].low == expected, f"hash ranges overlap or leave a gap at {expected}"
        expected = ranges[partition].high + 1
    assert expected == HASH_SPACE, f"hash ranges end at {expected}"
    return tuple(ranges[partition].low for partition in order), tuple(order)


def partition_for(hash_: int, ranges: Sequence[HashRange]) -> int:
    """The partition whose range holds the hash; `ranges[p]` is partition p's; together they cover all."""
    lows, order = _ascending(tuple(ranges))
    return order[bisect_right(lows, hash_) - 1]


def partitions_of(keys: Iterable[bytes | None], ranges: Sequence[HashRange], null_key_hash: int) -> list[int]:
    """The partition of each key; None, no key, goes where `null_key_hash` falls."""
    lows, order = _ascending(tuple(ranges))
    return [
        order[bisect_right(lows, null_key_hash if key is None else xxh3_64_intdigest(key) >> 32) - 1]
        for key in keys
    ]
