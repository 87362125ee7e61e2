"""The routing rule, once: which partition holds a key. Agents, clients and Spark use this file.

A partition owns a range of 32-bit key hashes. Leaders and addresses are unknown here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from shoal.arrow_stream import KEY_COLUMN

if TYPE_CHECKING:  # Spark's executors import this file, and have neither that nor what it needs
    from shoal.records import RecordColumns

try:
    from xxhash import xxh3_64_intdigest
except ImportError:  # on Spark's executors; the same digests, more slowly
    from shoal.xxh3 import xxh3_64_intdigest  # type: ignore[assignment]

HASH_SPACE: Final = 2**32


class HashRange(NamedTuple):
    """Hashes from `low` to `high`, both included."""

    low: int
    high: int


def key_hash(key: bytes) -> int:
    """The upper 32 bits of xxh3-64 of the key."""
    digest: int = xxh3_64_intdigest(key)
    return digest >> 32


def hash_ranges(partitions: int) -> tuple[HashRange, ...]:
    """The birth ranges of a topic: equal but for rounding, ascending, covering every hash once."""
    assert 1 <= partitions <= HASH_SPACE
    edges = [number * HASH_SPACE // partitions for number in range(partitions + 1)]
    return tuple(HashRange(low, high - 1) for low, high in pairwise(edges))


@lru_cache(maxsize=1024)  # topics in use; an entry is some hundred bytes for each partition
def _ascending(ranges: tuple[HashRange, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ranges' low ends in ascending order, and whose they are. They must cover all hashes once."""
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


def owners_of(keys: pa.Array, ranges: Sequence[HashRange], null_key_hash: int) -> pa.Array:
    """Which partition (int32) holds each key; rows without key go where `null_key_hash` falls. Each distinct
    key is hashed once.
    """
    if len(ranges) == 1:
        return pa.repeat(pa.scalar(0, pa.int32()), len(keys))
    null_owner = partition_for(null_key_hash, ranges)
    if keys.null_count == len(keys):
        return pa.repeat(pa.scalar(null_owner, pa.int32()), len(keys))
    encoded = keys.dictionary_encode()
    lows, order = _ascending(tuple(ranges))
    owners = [
        order[bisect_right(lows, xxh3_64_intdigest(key) >> 32) - 1] for key in encoded.dictionary.to_pylist()
    ]
    found = pc.take(pa.array(owners, pa.int32()), encoded.indices, boundscheck=False)
    return pc.fill_null(found, null_owner) if keys.null_count else found


def group_rows(batch: pa.RecordBatch, owners: pa.Array) -> dict[int, tuple[pa.RecordBatch, pa.Array | None]]:
    """The rows of each owner, in their order, and which they were; None where one owner has them all."""
    if not len(owners):
        return {}
    extremes = pc.min_max(owners).as_py()
    if extremes["min"] == extremes["max"]:
        return {extremes["min"]: (batch, None)}
    rows = pc.sort_indices(owners)  # Arrow's index sort is stable
    grouped = pc.take(batch, rows, boundscheck=False)
    runs = pc.run_end_encode(pc.take(owners, rows, boundscheck=False))  # counting without a hash table
    parts: dict[int, tuple[pa.RecordBatch, pa.Array | None]] = {}
    first = 0
    for owner, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        parts[owner] = (grouped.slice(first, end - first), rows.slice(first, end - first))
        first = end
    return parts


def partition_batch(
    batch: pa.RecordBatch, ranges: Sequence[HashRange], null_key_hash: int
) -> dict[int, pa.RecordBatch]:
    """Split a batch by its keys' partitions; rows keep their order.

    Rows without key go where `null_key_hash` falls. Partitions without rows are absent.
    """
    if batch.num_rows == 0:
        return {}
    owners = owners_of(batch.column(KEY_COLUMN), ranges, null_key_hash)
    return {owner: rows for owner, (rows, _) in group_rows(batch, owners).items()}


def partition_columns(
    columns: RecordColumns, ranges: Sequence[HashRange], null_key_hash: int
) -> dict[int, list[int]]:
    """The row numbers that each partition gets, ascending; as partition_batch, for columns."""
    if not len(columns):
        return {}
    if len(ranges) == 1:
        return {0: list(range(len(columns)))}
    lows, order = _ascending(tuple(ranges))
    parts: dict[int, list[int]] = {}
    for row, key in enumerate(columns.keys):
        hashed = null_key_hash if key is None else xxh3_64_intdigest(key) >> 32
        parts.setdefault(order[bisect_right(lows, hashed) - 1], []).append(row)
    return parts
