"""The routing rule for whole batches: the partition of each row. Agents, clients and Spark use this file.

A partition owns a range of 32-bit key hashes (hash_ranges.py). Leaders and addresses are unknown here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from shoal.format.arrow_stream import KEY_COLUMN
from shoal.format.hash_ranges import HashRange, partition_for, partitions_of

if TYPE_CHECKING:  # Spark's executors import this file, and lack that one and its packages
    from shoal.format.records import RecordColumns


def owners_of(keys: pa.Array, ranges: Sequence[HashRange], null_key_hash: int) -> pa.Array:
    """The partition (int32) of each key; rows without key go where `null_key_hash` falls. Each distinct key
    is hashed once."""
    if len(ranges) == 1:
        return pa.repeat(pa.scalar(0, pa.int32()), len(keys))
    null_owner = partition_for(null_key_hash, ranges)
    if keys.null_count == len(keys):
        return pa.repeat(pa.scalar(null_owner, pa.int32()), len(keys))
    encoded = keys.dictionary_encode()
    owners = partitions_of(encoded.dictionary.to_pylist(), ranges, null_key_hash)
    found = pc.take(pa.array(owners, pa.int32()), encoded.indices, boundscheck=False)
    return pc.fill_null(found, null_owner) if keys.null_count else found


def group_rows(batch: pa.RecordBatch, owners: pa.Array) -> dict[int, tuple[pa.RecordBatch, pa.Array | None]]:
    """The rows of each owner, in their order, and their numbers; None where one owner has them all."""
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
    parts: dict[int, list[int]] = {}
    for row, partition in enumerate(partitions_of(columns.keys, ranges, null_key_hash)):
        parts.setdefault(partition, []).append(row)
    return parts
