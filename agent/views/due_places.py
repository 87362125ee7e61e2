"""Places of a timer's rows in their order: two sorted columns of numbers, and looks into them.

Law of this file: pure. A look costs a binary search; Python touches the rows that are asked for, and no
others.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from shoal.agent.receive import DuePlace, Range

FAR: Final = 2**62
"""Behind every due time, and behind every offset of one."""


class DuePlaces:
    """Sorted by due time, then by offset. Use `sorted_places` for columns that are not sorted yet."""

    __slots__ = ("_due_views", "dues", "offset_views", "offsets")

    def __init__(self, dues: pa.Array, offsets: pa.Array) -> None:
        """Two columns of int64 without nulls, of one length."""
        self.dues = dues
        self.offsets = offsets
        self._due_views = _numbers(dues)
        self.offset_views = _numbers(offsets)

    def __len__(self) -> int:
        return len(self.dues)

    def position(self, place: DuePlace) -> int:
        """The first row at or behind the place."""
        begin = bisect_left(self._due_views, place.due_us)
        end = bisect_right(self._due_views, place.due_us, begin)
        return bisect_left(self.offset_views, place.offset, begin, end)

    def at(self, position: int) -> DuePlace:
        """The place of one row."""
        return DuePlace(self._due_views[position], self.offset_views[position])

    def between(self, begin: DuePlace, end: DuePlace) -> Iterator[tuple[int, int]]:
        """(due, offset) of the rows from `begin` on that lie before `end`."""
        first, stop = self.position(begin), self.position(end)
        return zip(self._due_views[first:stop], self.offset_views[first:stop], strict=True)

    def count(self, begin: DuePlace, end: DuePlace) -> int:
        """How many rows lie from `begin` on and before `end`."""
        return max(self.position(end) - self.position(begin), 0)


def _numbers(column: pa.Array) -> memoryview:
    data = column.buffers()[1]
    if data is None or not len(column):
        return memoryview(b"").cast("q")
    return memoryview(data).cast("B")[8 * column.offset :][: 8 * len(column)].cast("q")


def sorted_places(dues: pa.Array, offsets: pa.Array) -> DuePlaces:
    """Of columns whose rows of one due time stand by offset: one stable sort."""
    order = pc.array_sort_indices(dues)
    return DuePlaces(dues.take(order), offsets.take(order))


def ranges_of(places: Iterable[tuple[int, int]], most_ranges: int) -> list[Range]:
    """Ascending places, neighbours of one due time together: the first ranges, at most so many."""
    found: list[Range] = []
    due_us, first, count = 0, 0, 0
    for due, offset in places:
        if count and due == due_us and offset == first + count:
            count += 1
            continue
        if count:
            found.append(Range(due_us, first, count))
            if len(found) == most_ranges:
                return found
        due_us, first, count = due, offset, 1
    return [*found, Range(due_us, first, count)] if count else found
