"""The rows of a view that no run has yet: those of the log's end, in memory.

Law of this file: pure. The log has these rows as well, so that a crash loses nothing. A row costs 16 bytes
here. They are sorted when somebody asks for them, or never: a follower's go into the next run as they came.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from shoal.agent.receive import DuePlace
from shoal.agent.views.due_places import DuePlaces, sorted_places
from shoal.agent.views.row_order import due_times, offsets_from
from shoal.format.batch import DELIVER_AT_COLUMN, Offset, Stamp

SETTLED_ROWS: Final = 64 * 2**10
"""Sorted together at most, which takes some milliseconds of the loop: a million rows are twenty such
parts."""
TAKEN_BYTES: Final = 4 * 2**20
"""Of entries that stay in memory as they came; larger ones go one by one."""


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
    def let_go(self) -> None:
        """Hold no memory of an entry any longer. Called from time to time: an entry may be much larger than
        what is kept of it."""

    @abstractmethod
    def drop_before(self, offset: Offset) -> None:
        """A run has everything before that offset now, and the manifest names the run."""

    def close(self) -> None:  # noqa: B027 most have nothing that counts elsewhere
        """The view is used no more."""


class _Taken(NamedTuple):
    """An entry as it came. `wished`: its column deliver_at, which holds the memory of the whole entry."""

    offset: int
    append_time_us: int
    wished: pa.Array


class _Part(NamedTuple):
    """Rows of neighbouring entries, from the offset `first` on and before `behind`."""

    first: int
    behind: int
    places: DuePlaces

    def from_offset(self, offset: int) -> DuePlaces:
        """Those at or behind the offset, in their order."""
        if offset <= self.first:
            return self.places
        wanted = pc.greater_equal(self.places.offsets, pa.scalar(offset, pa.int64()))
        return DuePlaces(self.places.dues.filter(wanted), self.places.offsets.filter(wanted))


class TimerMemory(MemoryRows):
    """Places alone: the records themselves are read from the log. Entries stay as they came until there are
    TAKEN_BYTES of them, or somebody asks. For to make places of many at once costs a third."""

    def __init__(self) -> None:
        self.rows = 0
        self._taken: list[_Taken] = []
        self._taken_rows = self._taken_bytes = 0
        self._fresh: list[_Part] = []
        """Of more than one entry each, and not sorted yet."""
        self._parts: list[_Part] = []

    def take(self, stamp: Stamp, batch: pa.RecordBatch) -> None:
        """See MemoryRows."""
        if not batch.num_rows:
            return
        self._taken.append(_Taken(stamp.base_offset, stamp.append_time_us, batch.column(DELIVER_AT_COLUMN)))
        self.rows += batch.num_rows
        self._taken_rows += batch.num_rows
        self._taken_bytes += stamp.body_length
        if self._taken_bytes >= TAKEN_BYTES or self._taken_rows >= SETTLED_ROWS:
            self.let_go()

    def let_go(self) -> None:
        """See MemoryRows: places are kept."""
        taken, self._taken = self._taken, []
        self._taken_rows = self._taken_bytes = 0
        while taken:
            first = behind = taken[0].offset
            adjoining = 0
            for one in taken:
                if one.offset != behind:
                    break  # a peer's runs have what lies between
                behind += len(one.wished)
                adjoining += 1
            wished = [one.wished for one in taken[:adjoining]]
            dues = due_times(wished, [one.append_time_us for one in taken[:adjoining]])
            places = DuePlaces(dues, offsets_from(first, len(dues)))
            self._fresh.append(_Part(first, behind, places))
            taken = taken[adjoining:]

    def drop_before(self, offset: Offset) -> None:
        """See MemoryRows. Nothing is sorted for that, and only a part that the offset lies in is looked
        through."""
        if self._taken and self._taken[0].offset < offset:
            self.let_go()
        for parts in (self._parts, self._fresh):
            parts[:] = [
                _Part(max(part.first, offset), part.behind, part.from_offset(offset))
                for part in parts
                if part.behind > offset
            ]
        self.rows = self._taken_rows + sum(len(part.places) for part in (*self._parts, *self._fresh))

    def parts(self) -> list[DuePlaces]:
        """All rows, in a few sorted parts."""
        self.let_go()
        if self._fresh:
            self._settle()
        return [part.places for part in self._parts]

    def _settle(self) -> None:
        """Parts become one as long as the older one is not much larger: a row is sorted a few times in
        all."""
        fresh, self._fresh = self._fresh, []
        for joined in _together(fresh):
            part = _in_order(joined)
            while self._parts and len(self._parts[-1].places) <= min(
                2 * len(part.places), SETTLED_ROWS - len(part.places)
            ):
                part = _in_order([self._parts.pop(), part])
            self._parts.append(part)

    def nearest(self, place: DuePlace) -> DuePlace | None:
        """The first row at or behind the place."""
        found = [(part, part.position(place)) for part in self.parts()]
        return min((part.at(number) for part, number in found if number < len(part)), default=None)


def _in_order(parts: Sequence[_Part]) -> _Part:
    """Neighbours as one sorted part. Those of one due time stand by offset in each, and the older ones come
    first."""
    dues = pa.concat_arrays([part.places.dues for part in parts])
    offsets = pa.concat_arrays([part.places.offsets for part in parts])
    return _Part(parts[0].first, parts[-1].behind, sorted_places(dues, offsets))


def _together(fresh: Sequence[_Part]) -> Iterator[Sequence[_Part]]:
    """Neighbours, SETTLED_ROWS at a time; those of a larger entry alone."""
    begin = rows = 0
    for number, part in enumerate(fresh):
        if rows and rows + len(part.places) > SETTLED_ROWS:
            yield fresh[begin:number]
            begin, rows = number, 0
        rows += len(part.places)
    yield fresh[begin:]
