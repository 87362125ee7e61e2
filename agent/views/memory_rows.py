"""The rows of a view that no run has yet: those of the log's end, in memory.

Law of this file: pure. The log has these rows as well, so that a crash loses nothing. A row costs 16 bytes
here. They are sorted when somebody asks for them, or never: a follower's go into the next run as they came.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from shoal.agent.receive import DuePlace
from shoal.agent.views.due_places import DuePlaces, sorted_places
from shoal.agent.views.row_order import due_times, offsets_from
from shoal.format.batch import Offset, Stamp

SETTLED_ROWS: Final = 64 * 2**10
"""Sorted together at most, which takes some milliseconds of the loop: a million rows are twenty such
parts."""


class MemoryRows(ABC):
    """One per view, filled by the view alone."""

    rows: int = 0
    """How many it holds."""
    size_bytes: int = 0
    """Of rows that are not all of one small size."""

    @abstractmethod
    def take(self, stamp: Stamp, batch: pa.RecordBatch) -> None:
        """The records of the next committed entry, in the topic's own columns."""

    @abstractmethod
    def drop_before(self, offset: Offset) -> None:
        """A run has everything before that offset now, and the manifest names the run."""


class TimerMemory(MemoryRows):
    """Places alone: the records themselves are read from the log."""

    def __init__(self) -> None:
        self.rows = 0
        self._fresh: list[tuple[pa.Array, pa.Array]] = []
        self._parts: list[DuePlaces] = []

    def take(self, stamp: Stamp, batch: pa.RecordBatch) -> None:
        """See MemoryRows."""
        offsets = offsets_from(stamp.base_offset, batch.num_rows)
        self._fresh.append((due_times(batch, stamp.append_time_us), offsets))
        self.rows += batch.num_rows

    def drop_before(self, offset: Offset) -> None:
        """See MemoryRows."""
        self._settle()
        kept = []
        for part in self._parts:
            wanted = pc.greater_equal(part.offsets, pa.scalar(offset, pa.int64()))
            kept.append(DuePlaces(part.dues.filter(wanted), part.offsets.filter(wanted)))
        self._parts = [part for part in kept if len(part)]
        self.rows = sum(map(len, self._parts))

    def parts(self) -> list[DuePlaces]:
        """All rows, in a few sorted parts."""
        self._settle()
        return self._parts

    def _settle(self) -> None:
        """Parts become one as long as the older one is not much larger: a row is sorted a few times in
        all."""
        if not self._fresh:
            return
        for dues, offsets in _together(self._fresh):
            part = sorted_places(dues, offsets)
            while self._parts and len(self._parts[-1]) <= min(2 * len(part), SETTLED_ROWS - len(part)):
                older = self._parts.pop()
                part = sorted_places(
                    pa.concat_arrays([older.dues, part.dues]), pa.concat_arrays([older.offsets, part.offsets])
                )
            self._parts.append(part)
        self._fresh = []

    def nearest(self, place: DuePlace) -> DuePlace | None:
        """The first row at or behind the place."""
        found = [(part, part.position(place)) for part in self.parts()]
        return min((part.at(number) for part, number in found if number < len(part)), default=None)


def _together(fresh: list[tuple[pa.Array, pa.Array]]) -> Iterator[tuple[pa.Array, pa.Array]]:
    """Columns of neighbouring entries joined, SETTLED_ROWS at a time; those of a larger entry alone."""
    begin = rows = 0
    for number, (dues, _) in enumerate(fresh):
        if rows and rows + len(dues) > SETTLED_ROWS:
            yield _joined(fresh[begin:number])
            begin, rows = number, 0
        rows += len(dues)
    yield _joined(fresh[begin:])


def _joined(columns: list[tuple[pa.Array, pa.Array]]) -> tuple[pa.Array, pa.Array]:
    return pa.concat_arrays([dues for dues, _ in columns]), pa.concat_arrays([item for _, item in columns])
