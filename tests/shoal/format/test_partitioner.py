"""The routing rule: fixed for ever for a key, the same for columns and for batches."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shoal.format.hash_ranges import HASH_SPACE, HashRange, hash_ranges, key_hash, partition_for
from shoal.format.partitioner import partition_batch, partition_columns
from shoal.format.records import RecordColumns, columns_to_batch

keys = st.none() | st.binary(max_size=8)


def columns_with(column: list[bytes | None]) -> RecordColumns:
    """Records whose value is their row number."""
    rows = len(column)
    return RecordColumns([0] * rows, column, [b"%d" % row for row in range(rows)], [None] * rows)


def test_hashes_are_frozen() -> None:
    """Stored data depend on these numbers (xxh3-64, seed 0, upper half)."""
    assert key_hash(b"") == 0x2D068005
    assert key_hash(b"UA") == 0x97A28631
    assert key_hash(b"key-1") == 0x2D29F133


@given(st.integers(1, 5_000))
def test_birth_ranges_cover_every_hash_once(partitions: int) -> None:
    """Ascending, without gap or overlap, equal but for rounding."""
    ranges = hash_ranges(partitions)
    assert ranges[0].low == 0
    assert ranges[-1].high == HASH_SPACE - 1
    assert all(left.high + 1 == right.low for left, right in pairwise(ranges))
    sizes = {high - low for low, high in ranges}
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(1, 300), st.integers(0, HASH_SPACE - 1))
def test_the_partition_is_the_one_whose_range_holds_the_hash(partitions: int, hash_: int) -> None:
    """Also where ranges are not in the order of partitions, as after a split."""
    ranges = hash_ranges(partitions)
    for order in (ranges, ranges[::-1], ranges[1:] + ranges[:1]):
        owner = order[partition_for(hash_, order)]
        assert owner.low <= hash_ <= owner.high


@pytest.mark.parametrize(
    "ranges",
    [
        (HashRange(0, 9), HashRange(11, HASH_SPACE - 1)),
        (HashRange(0, 10), HashRange(10, HASH_SPACE - 1)),
        (HashRange(0, HASH_SPACE - 2),),
        (HashRange(1, HASH_SPACE - 1),),
    ],
)
def test_ranges_that_do_not_cover_are_a_bug(ranges: tuple[HashRange, ...]) -> None:
    """A key without a partition, or with two, must not pass silently."""
    with pytest.raises(AssertionError):
        partition_for(0, ranges)


@given(
    st.lists(keys, max_size=60),
    st.integers(1, 9).flatmap(lambda count: st.permutations(hash_ranges(count))),
    st.integers(0, 7).map(lambda eighth: eighth * HASH_SPACE // 8 + 12_345),
)
@example([None, b"a", b"b", None, b"a"], list(hash_ranges(4)[::-1]), HASH_SPACE - 1)
def test_columns_and_batches_are_split_alike(
    column: list[bytes | None], ranges: list[HashRange], null_key_hash: int
) -> None:
    """Every row goes once to its key's partition, in order; rows without key go together."""
    columns = columns_with(column)
    by_rows = partition_columns(columns, ranges, null_key_hash)
    by_batch = partition_batch(columns_to_batch(columns, 0), ranges, null_key_hash)
    assert sorted(row for rows in by_rows.values() for row in rows) == list(range(len(column)))
    assert {owner: [b"%d" % row for row in rows] for owner, rows in by_rows.items()} == {
        owner: batch.column("value").to_pylist() for owner, batch in by_batch.items()
    }
    for owner, rows in by_rows.items():
        assert rows == sorted(rows)
        for row in rows:
            key = column[row]
            assert owner == partition_for(null_key_hash if key is None else key_hash(key), ranges)


def test_split_batches_are_whole_records(make_batch: Callable[..., pa.RecordBatch]) -> None:
    """Headers and times stay with their keys; parts are valid batches of the same schema."""
    batch = make_batch(1_000)
    parts = partition_batch(batch, hash_ranges(4), 0)
    assert sum(part.num_rows for part in parts.values()) == 1_000
    rows = {row["value"]: row for row in batch.to_pylist() if row["value"] is not None}
    for part in parts.values():
        part.validate(full=True)
        assert part.schema == batch.schema
        for row in part.to_pylist():
            assert row["value"] is None or row == rows[row["value"]]


def test_keys_spread_evenly() -> None:
    """Six thousand keys over six partitions: none has a tenth more than its share."""
    column: list[bytes | None] = [b"key-%d" % number for number in range(6_000)]
    parts = partition_columns(columns_with(column), hash_ranges(6), 0)
    assert all(900 <= len(rows) <= 1_100 for rows in parts.values())
