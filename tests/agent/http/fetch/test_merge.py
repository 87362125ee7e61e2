"""The merged order: against the plain definition, over random logs cut into random pieces."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from shoal.agent.http.fetch.merge import Rows, Run, merged_order, next_partitions, tail_counts

Record = tuple[int, int, int]  # timestamp, partition, offset


def batch(times: list[int]) -> pa.RecordBatch:
    return pa.record_batch({"timestamp": pa.array(times, pa.timestamp("us", tz="UTC"))})


def logs(rng: random.Random, partitions: int) -> list[list[int]]:
    """Timestamps that mostly rise, repeat, and now and then fall."""
    made = []
    for _ in range(partitions):
        now, times = rng.randrange(50), []
        for _ in range(rng.choice((0, 1, 5, 40))):
            now = max(0, now + rng.choice((0, 0, 1, 1, 2, 7, -5)))
            times.append(now)
        made.append(times)
    return made


def plainly(found: list[list[int]]) -> list[Record]:
    """Of the partitions' next records always the one with the least (timestamp, partition)."""
    at = [0] * len(found)
    merged: list[Record] = []
    while heads := [(found[p][at[p]], p) for p in range(len(found)) if at[p] < len(found[p])]:
        time, partition = min(heads)
        merged.append((time, partition, at[partition]))
        at[partition] += 1
    return merged


class World:
    """Partitions that are fetched piece by piece."""

    def __init__(self, rng: random.Random, found: list[list[int]]) -> None:
        self.rng = rng
        self.found = found
        self.runs = [Run(partition, 0) for partition in range(len(found))]
        self.fetched = [0] * len(found)

    def fetch(self, run: Run) -> None:
        times, begin = self.found[run.partition], self.fetched[run.partition]
        assert run.offset == begin
        pieces: list[Rows] = []
        for _ in range(self.rng.randrange(1, 4)):
            rows = self.rng.randrange(1, 9)
            if times[begin : begin + rows]:
                pieces.append(Rows(begin, batch(times[begin : begin + rows])))
            begin = min(len(times), begin + rows)
        run.fill(pieces, 100, ended=begin == len(times))
        self.fetched[run.partition] = begin

    def read(self, limit: int) -> list[Record]:
        merged: list[Record] = []
        while True:
            for run in self.runs:
                if not run.rows and not run.ended:
                    assert next_partitions(self.runs, limit) == []
                    self.fetch(run)
            order = next_partitions(self.runs, limit)
            if not order:
                return merged
            assert len(order) <= limit
            taken = {run.partition: iter(run.take(order.count(run.partition))) for run in self.runs}
            rows = {partition: iter(flat(pieces)) for partition, pieces in taken.items()}
            merged += [(time, p, offset) for p in order for offset, time in [next(rows[p])]]
            for run in self.runs:
                assert (run.size_bytes == 0) == (not run.rows)


def flat(pieces: object) -> list[tuple[int, int]]:
    return [
        (rows.base_offset + row, time.value)
        for rows in pieces  # type: ignore[attr-defined]
        for row, time in enumerate(rows.batch.column(0))
    ]


@pytest.mark.parametrize("seed", range(60))
def test_any_pieces_make_the_same_sequence(seed: int) -> None:
    """However it is fetched, whatever the step: the plain definition's order, every record once."""
    rng = random.Random(seed)
    found = logs(rng, rng.choice((1, 2, 3, 7, 20)))
    limit = rng.choice((1, 2, 10, 500))
    assert World(rng, found).read(limit) == plainly(found)


@pytest.mark.parametrize("seed", range(40))
def test_the_tail_is_the_end_of_the_sequence(seed: int) -> None:
    """How many of the last records are each partition's."""
    rng = random.Random(seed)
    found = logs(rng, rng.choice((1, 2, 5)))
    arrays = [pa.array(times, pa.int64()) for times in found]
    merged = plainly(found)
    for count in (0, 1, 3, 10, 1_000):
        last = merged[len(merged) - min(count, len(merged)) :]
        expected = [sum(partition == p for _, partition, _ in last) for p in range(len(found))]
        assert tail_counts(arrays, count) == expected
    assert len(merged_order(arrays)) == len(merged)
