"""Which runs are merged, and in which pieces: numbers only. Pure.

Runs of a level are neighbours in the log, older levels first. When a level has MERGED_RUNS of them, the
oldest ones become one run of the next level. So a row is written once a level, and a
view has at most some dozens of runs. A merge goes through the sort keys from the
first to the last, in pieces of bounded size.

Where newer rows replace older ones, all runs become one as soon as the newer ones have half as much as the
oldest. So at most a third of what a view has on the disk is rows that nobody reads. Each new byte is written
three more times at most (compare universal compaction in RocksDB).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import groupby
from typing import Final, NamedTuple

from shoal.agent.views.manifest import RunEntry
from shoal.agent.views.run_format import RunIndex

MERGED_RUNS: Final = 8
REPLACED_SHARE: Final = 2
"""Of a view whose rows are replaced: all runs are merged once the newer ones have one part in so many of what
the oldest has."""
PIECE_BYTES: Final = 16 * 2**20
"""Of chunks that are read, sorted and written together; the memory of a merge is a few times that."""


class MergePart(NamedTuple):
    """A piece of a merge. `chunks`: of each run (from, up to) those that are to be read now. With the rows
    that earlier pieces left over they hold every row before `bound`. None: to the end."""

    chunks: tuple[tuple[int, int], ...]
    bound: bytes | None


def runs_to_merge(runs: Sequence[RunEntry], *, replaces_rows: bool = False) -> slice | None:
    """Which runs become one now; None if none has to. A lower level goes first: its runs are quickest
    merged. `replaces_rows`: a newer row may take the place of an older one."""
    if replaces_rows and len(runs) > 1:
        # Rows count too: such without a value are small, and each ends a large one.
        newer = sum(run.size_bytes for run in runs[1:]), sum(run.rows for run in runs[1:])
        oldest = runs[0].size_bytes, runs[0].rows
        if any(REPLACED_SHARE * more >= most for more, most in zip(newer, oldest, strict=True)):
            return slice(0, len(runs))
    found: list[tuple[int, slice]] = []
    at = 0
    for level, group in groupby(runs, key=lambda run: run.level):
        count = len(list(group))
        if count >= MERGED_RUNS:
            found.append((level, slice(at, at + MERGED_RUNS)))
        at += count
    return min(found, key=lambda item: item[0])[1] if found else None


def merge_parts(indexes: Sequence[RunIndex], piece_bytes: int = PIECE_BYTES) -> Iterator[MergePart]:
    """The pieces of a merge of these runs, in the order of their sort keys."""
    heads = [
        [(key, run, number) for number, key in enumerate(index.keys)] for run, index in enumerate(indexes)
    ]
    begun = [0] * len(indexes)
    reached = [0] * len(indexes)
    size = 0
    for key, run, number in merge(*heads):
        if size >= piece_bytes:
            yield MergePart(tuple(zip(begun, reached, strict=True)), key)
            begun, size = list(reached), 0
        reached[run] = number + 1
        size += indexes[run].chunk(number).length
    yield MergePart(tuple(zip(begun, reached, strict=True)), None)
