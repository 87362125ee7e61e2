"""Which runs are merged, and in which pieces."""

from __future__ import annotations

import random

from shoal.agent.views.manifest import RunEntry
from shoal.agent.views.merge_plan import MERGED_RUNS, merge_parts, runs_to_merge
from shoal.agent.views.run_format import RunChunk, RunIndex, RunName
from shoal.format.batch import LogIndex, Offset


def runs_of(*levels: int) -> list[RunEntry]:
    """Neighbours of these levels, the oldest first."""
    return [
        RunEntry(RunName(LogIndex(number + 1), LogIndex(number + 1), 1), level, Offset(number), 1, 1)
        for number, level in enumerate(levels)
    ]


def test_a_full_level_becomes_one_run_of_the_next() -> None:
    """Its oldest runs; a lower level goes first."""
    assert runs_to_merge(runs_of(*[0] * (MERGED_RUNS - 1))) is None
    assert runs_to_merge(runs_of(1, 1, *[0] * (MERGED_RUNS + 2))) == slice(2, 2 + MERGED_RUNS)
    assert runs_to_merge(runs_of(*[1] * MERGED_RUNS)) == slice(0, MERGED_RUNS)
    assert runs_to_merge(runs_of(*[1] * MERGED_RUNS, *[0] * MERGED_RUNS)) == slice(
        MERGED_RUNS, 2 * MERGED_RUNS
    )
    assert runs_to_merge(runs_of(0, 0, 0, 0, 1, 0, 0, 0, 0)) is None


def of_bytes(*sizes: int) -> list[RunEntry]:
    """Neighbours of these bytes, the oldest first, each a level deeper than the next."""
    runs = runs_of(*range(len(sizes), 0, -1))
    return [run._replace(size_bytes=size, rows=size) for run, size in zip(runs, sizes, strict=True)]


def test_all_runs_become_one_once_the_newer_ones_have_half_of_the_oldest() -> None:
    """By bytes or by rows, and only where newer rows replace older ones."""
    assert runs_to_merge(of_bytes(100), replaces_rows=True) is None
    assert runs_to_merge(of_bytes(100, 30, 19), replaces_rows=True) is None
    assert runs_to_merge(of_bytes(100, 30, 20), replaces_rows=True) == slice(0, 3)
    assert runs_to_merge(of_bytes(100, 30, 20)) is None
    ends = [run._replace(rows=50) for run in of_bytes(1_000, 20)]
    assert runs_to_merge(ends) is None
    assert runs_to_merge([ends[0]._replace(rows=100), ends[1]], replaces_rows=True) == slice(0, 2)


def test_overwritten_rows_take_half_as_much_again_and_are_written_four_times() -> None:
    """A thousand keys, overwritten by fifty at a time: what stands on the disk, and what was written."""
    runs: list[RunEntry] = []
    written = most = 0
    for number in range(1_000):
        name = RunName(LogIndex(number + 1), LogIndex(number + 1), 1)
        runs.append(RunEntry(name, 0, Offset(number), 50, 50))
        while (chosen := runs_to_merge(runs, replaces_rows=True)) is not None:
            old = runs[chosen]
            rows = min(sum(run.rows for run in old), 1_000)
            name = RunName(old[0].name.first_index, old[-1].name.last_index, 1)
            runs[chosen] = [RunEntry(name, old[0].level + 1, old[-1].end_offset, rows, rows)]
            written += rows
        most = max(most, sum(run.rows for run in runs))
    assert 1_000 < most <= 1_500
    assert written <= 3.5 * 50 * 1_000


def test_a_row_is_written_once_a_level() -> None:
    """A thousand runs become at most some dozens, and each row is written log times."""
    runs: list[RunEntry] = []
    written = most = 0
    for number in range(1_000):
        name = RunName(LogIndex(number + 1), LogIndex(number + 1), 1)
        runs.append(RunEntry(name, 0, Offset(number), 1, 1))
        while (chosen := runs_to_merge(runs)) is not None:
            old = runs[chosen]
            rows = sum(run.rows for run in old)
            name = RunName(old[0].name.first_index, old[-1].name.last_index, 1)
            runs[chosen] = [RunEntry(name, old[0].level + 1, old[-1].end_offset, rows, 1)]
            written += rows
        most = max(most, len(runs))
    assert most <= 4 * MERGED_RUNS
    assert written <= 3 * 1_000


def test_pieces_hold_every_row_before_their_bound() -> None:
    """No chunk that begins before a piece's bound is read later, and none is left out or read twice."""
    rng = random.Random(3)
    for _ in range(200):
        indexes = []
        for _ in range(rng.randrange(1, 6)):
            keys = sorted({b"%03d" % rng.randrange(400) for _ in range(rng.randrange(12))})
            indexes.append(RunIndex([RunChunk(key, 10 * at, 10, 0, 1) for at, key in enumerate(keys)]))
        parts = list(merge_parts(indexes, piece_bytes=40))
        assert parts[-1].bound is None
        for run, index in enumerate(indexes):
            read = [number for part in parts for number in range(*part.chunks[run])]
            assert read == list(range(len(index)))
            for part in parts[:-1]:
                assert part.bound is not None
                assert part.chunks[run][1] >= index.reaching(part.bound)
        for part in parts:
            assert sum(stop - first for first, stop in part.chunks) <= 5
