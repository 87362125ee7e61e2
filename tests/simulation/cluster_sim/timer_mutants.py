"""Deliberate faults in sorted views and in the order of due times; mutants.py runs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from shoal.agent.delivery.view_feed import ViewFeed
from shoal.agent.groups.partition_group import PartitionGroup
from shoal.agent.views import memory_rows, run_reader
from shoal.agent.views.run_maker import _Merge
from shoal.agent.views.view import SortedView

Patch = tuple[Any, str, Any]
AHEAD_US = 1_000_000


def give_before_they_are_due() -> list[Patch]:
    """Leaders and groups believe a clock that is a second ahead of the leader's."""
    end, is_there = ViewFeed.end, PartitionGroup._is_there

    def mutated(self: PartitionGroup, piece: Any, stamp: Any) -> bool:
        return is_there(self, piece, stamp._replace(append_time_us=stamp.append_time_us + AHEAD_US))

    return [
        (ViewFeed, "end", lambda self, append_us: end(self, append_us + AHEAD_US)),
        (PartitionGroup, "_is_there", mutated),
    ]


def sort_by_the_producers_clock() -> list[Patch]:
    """A record is due when its producer says so, however long before it was appended."""

    def due_times(wished: Sequence[pa.Array], append_times_us: Sequence[int]) -> pa.Array:
        return pa.concat_arrays(
            [
                pc.coalesce(column.cast(pa.int64()), pa.scalar(time_us, pa.int64()))
                for column, time_us in zip(wished, append_times_us, strict=True)
            ]
        )

    return [(memory_rows, "due_times", due_times)]


def trim_before_runs_are_saved() -> list[Patch]:
    """The log goes as far as the view has taken it, into memory."""
    made = SortedView.__init__

    def mutated(self: SortedView, *arguments: Any) -> None:
        made(self, *arguments)
        self.machine = self.machine._replace(saved_offset=lambda: self.applied.offset)

    return [(SortedView, "__init__", mutated)]


class _AnyChecksum(int):
    """Equal to all others."""

    def __eq__(self, _: object) -> bool:
        return True

    def __ne__(self, _: object) -> bool:
        return False

    __hash__ = int.__hash__


def believe_every_chunk() -> list[Patch]:
    """Runs are read without a look at their checksums."""

    class Unchecked:
        @staticmethod
        def crc32c(_: object, seed: int) -> int:
            return _AnyChecksum(seed)

    return [(run_reader, "crc32c", Unchecked)]


def drop_a_row_at_a_merge() -> list[Patch]:
    """Of the rows that a piece of a merge leaves over, one is forgotten."""
    in_order = _Merge._sorted

    def mutated(self: _Merge, read: Any, bound: bytes | None) -> Any:
        rows = in_order(self, read, bound)
        self._left_over = [left.slice(1) for left in self._left_over]
        return rows

    return [(_Merge, "_sorted", mutated)]
