"""Several partitions' records as one sequence: by timestamp, then partition, then offset.

Pure. Of the partitions' next records, the one with the least (timestamp, partition) comes first. A
partition's own records stay in the order of their offsets, so a place in the sequence is one offset per
partition. That is the order by (greatest timestamp so far in the partition, partition, offset), which is
computed by column. A partition with more stored than fetched holds back all records that may come behind its
next ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from shoal.agent.http.rows.row_pieces import Rows
from shoal.format.batch import TIMESTAMP_COLUMN

# Rows of each partition that one step looks at, at least: fewer would make many steps of a long merge.
STEP_ROWS_MIN = 8


class Run:
    """Fetched rows of one partition that are not merged yet. `ended`: behind it nothing is stored at
    present."""

    __slots__ = ("ended", "offset", "partition", "rows", "size_bytes")

    def __init__(self, partition: int, offset: int) -> None:
        self.partition = partition
        self.offset = offset
        self.rows: deque[Rows] = deque()
        self.ended = False
        self.size_bytes = 0  # held for `rows`, for the reader's account

    def fill(self, rows: list[Rows], size_bytes: int, *, ended: bool) -> None:
        """Add fetched rows; none may be left from before."""
        assert not self.rows, "rows that wait come first"
        self.rows.extend(rows)
        self.size_bytes = size_bytes if rows else 0
        self.ended = ended

    def timestamps(self, count: int) -> pa.Array:
        """Of the first rows, at most `count`, in microseconds."""
        found = []
        for _, batch, _ in self.rows:
            found.append(batch.column(TIMESTAMP_COLUMN).slice(0, count))
            count -= len(found[-1])
            if count <= 0:
                break
        return pa.chunked_array(found, pa.timestamp("us", tz="UTC")).combine_chunks().cast(pa.int64())

    def count(self, enough: int) -> int:
        """How many rows are here, counted no further than `enough`."""
        counted = 0
        for rows in self.rows:
            counted += rows.batch.num_rows
            if counted >= enough:
                return enough
        return counted

    def take(self, count: int) -> list[Rows]:
        """The first rows, exactly so many, which are then gone from here."""
        taken: list[Rows] = []
        while count:
            base_offset, batch, _ = self.rows.popleft()
            if batch.num_rows > count:
                self.rows.appendleft(Rows(base_offset + count, batch.slice(count)))
                batch = batch.slice(0, count)
            count -= batch.num_rows
            taken.append(Rows(base_offset, batch))
            self.offset = base_offset + batch.num_rows
        if not self.rows:
            self.size_bytes = 0
        return taken


def next_partitions(runs: Sequence[Run], limit: int) -> list[int]:
    """The partition of each of the next records, in their order: as many as can be told, at most `limit`.
    Empty when everything has ended, or when a run that has not is empty."""
    share = max(STEP_ROWS_MIN, 2 * limit // max(1, len(runs)))
    counts = [run.count(min(share, limit)) for run in runs]
    if any(not count and not run.ended for run, count in zip(runs, counts, strict=True)):
        return []
    chosen = [(run, count) for run, count in zip(runs, counts, strict=True) if count]
    if not chosen:
        return []
    order = merged_order([run.timestamps(count) for run, count in chosen])
    numbers = pa.concat_arrays([pa.repeat(run.partition, count) for run, count in chosen])
    told = len(order)
    end = 0
    for run, count in chosen:
        end += count
        if not run.ended or run.count(count + 1) > count:  # what follows its last row is not looked at here
            told = min(told, pc.index(order, pa.scalar(end - 1, pa.uint64())).as_py() + 1)
    merged: list[int] = numbers.take(order.slice(0, min(told, limit))).to_pylist()
    return merged


def merged_order(timestamps: Sequence[pa.Array]) -> pa.Array:
    """Row numbers, counted through all the arrays one behind the other (by ascending partition), in merged
    order."""
    keys = pa.concat_arrays([pc.cumulative_max(times) for times in timestamps])
    rows = pa.table({"time": keys, "row": pa.arange(0, len(keys))})
    order: pa.Array = pc.sort_indices(rows, sort_keys=[("time", "ascending"), ("row", "ascending")])
    return order


def tail_counts(timestamps: Sequence[pa.Array], count: int) -> list[int]:
    """How many rows at the end of each array are among the last `count` of the merged sequence."""
    order = merged_order(timestamps)
    last = order.slice(max(0, len(order) - count)).cast(pa.int64())
    counts, begin = [], 0
    for times in timestamps:
        end = begin + len(times)
        inside = pc.and_(pc.greater_equal(last, begin), pc.less(last, end))
        counts.append(pc.sum(inside).as_py() or 0)
        begin = end
    return counts
