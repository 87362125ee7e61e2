"""Where the messages of a consumer group stand, and in which state: values of this room.

Law of this file: values only, and sets of them. The table of them stands in spans.py, the rules for them in
partition_group.py.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Final, NamedTuple, Protocol

from shoal.agent.receive import DuePlace, Range
from shoal.format.batch import LogIndex, Offset

OFFSETS_BITS: Final = 62
OFFSETS_MAX: Final = 2**OFFSETS_BITS
"""Offsets, times and numbers stay below it: a sum of two always fits into the signed 64 bits of a file."""
START: Final = DuePlace(0, 0)
COUNT_MAX: Final = 2**32 - 1
"""Messages of one range: its count is written in 32 bits."""


class GroupWireError(ValueError):
    """Bytes of consumer groups that cannot be read: the one error of every decoder in this room."""


class SpanState(IntEnum):
    """A message that was never delivered has none: no span holds it."""

    IN_FLIGHT = 1
    """Delivered; its consumer has said nothing yet."""
    WAITING = 2
    """To be delivered again, from a time on."""
    DONE = 3
    DYING = 4
    """Given up; its letter waits to be stored in the dead-letter topic."""
    STOPPED = 5
    """Given up; an operator decides."""


class MessageSpan(NamedTuple):
    """Neighbouring messages of one due time that share a history.

    `delivery`: the log index of the entry that delivered them last. `until_us`: WAITING messages come again
    then, on the log's append time. `first_us`: append time of the first delivery, 0 for none; the last one
    was `last_after_ms` later. DONE and DYING messages keep no numbers, so that neighbours merge.
    """

    due_us: int
    first: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody asks of a span
    lease_ms: int
    delivery: int
    until_us: int
    first_us: int
    last_after_ms: int
    state: SpanState
    attempts: int

    @property
    def begin(self) -> DuePlace:
        """The first message's place."""
        return DuePlace(self.due_us, self.first)

    @property
    def end(self) -> DuePlace:
        """The place behind the last message."""
        return DuePlace(self.due_us, self.first + self.count)

    @property
    def piece(self) -> Range:
        """The messages without their history."""
        return Range(self.due_us, self.first, self.count)

    def since(self, place: DuePlace) -> MessageSpan | None:
        """The messages that are not before a place; None if there are none."""
        if self.begin >= place:
            return self
        if self.end <= place:
            return None
        return self._replace(first=place.offset, count=self.first + self.count - place.offset)

    @property
    def last_us(self) -> int:
        """Append time of the last delivery, to the millisecond."""
        return self.first_us + 1000 * self.last_after_ms


class Stamped(Protocol):
    """The numbers of an entry that a fold needs: those of a Stamp, or of an entry that is being made."""

    @property
    def index(self) -> LogIndex:
        """The entry's place in the log."""

    @property
    def base_offset(self) -> Offset:
        """The log's end at the entry."""

    @property
    def append_time_us(self) -> int:
        """When it was appended, on the log's own axis."""


class EntryStamp(NamedTuple):
    """A Stamped of its own, for an entry that has no frame yet."""

    index: LogIndex  # type: ignore[assignment]  # hides tuple.index, which nobody asks of a stamp
    base_offset: Offset
    append_time_us: int


LETTER: Final = struct.Struct("<QqqHBxIqqq")
"""A letter in a checkpoint: ordinal, due, offset, attempts, code, length of the text, first, last, died; then
the text."""


class Letter(NamedTuple):
    """A message that was given up, on its way to the dead-letter topic. `ordinal`: from 1 on, of this group
    and partition. `code`: a ReasonCode. Times are append times: of the first and the last delivery, and of
    the entry that gave it up. `text`: for people."""

    ordinal: int
    due_us: int
    offset: int
    attempts: int
    code: int
    first_us: int
    last_us: int
    died_us: int
    text: bytes


def between(begin: DuePlace, end: DuePlace) -> Range:
    """The messages from `begin` up to `end`, which has the same due time."""
    return Range(begin.due_us, begin.offset, end.offset - begin.offset)


def joined(pieces: Iterable[Range]) -> tuple[Range, ...]:
    """Disjoint ranges in ascending order, neighbours as one."""
    ordered = sorted(pieces)
    if len(ordered) < 2:
        return tuple(ordered)
    ranges: list[Range] = []
    for piece in ordered:
        due_us, first, count = piece
        if ranges and ranges[-1].end == (due_us, first):
            last = ranges[-1]
            ranges[-1] = Range(due_us, last.first, last.count + count)
        else:
            ranges.append(piece)
    return tuple(ranges)


def clipped(piece: Range, begin: DuePlace, end: DuePlace) -> Range | None:
    """The messages of the piece from `begin` up to `end`; None if there are none."""
    low, high = max(piece.begin, begin), min(piece.end, end)
    if low >= high:
        return None
    # A bound of another due time lies outside, so it cuts nothing: the maximum is the piece's own then.
    return between(low, high)


class RangeSet:
    """Messages, each at most once. Ranges of one set may have different due times."""

    __slots__ = ("_ranges",)

    def __init__(self, pieces: Iterable[Range] = ()) -> None:
        self._ranges: list[Range] = list(joined(pieces)) if pieces else []

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def __iter__(self) -> Iterator[Range]:
        return iter(self._ranges)

    def __contains__(self, place: DuePlace) -> bool:
        at = bisect_right(self._ranges, place, key=_begin) - 1
        return at >= 0 and place < self._ranges[at].end

    def missing(self, piece: Range) -> list[Range]:
        """The parts of the piece that are not in the set, ascending."""
        if not self._ranges:
            return [piece]
        parts: list[Range] = []
        begin = piece.begin
        low = bisect_right(self._ranges, piece.begin, key=_end)
        high = bisect_left(self._ranges, piece.end, lo=low, key=_begin)
        for held in self._ranges[low:high]:
            if begin < held.begin:
                parts.append(between(begin, held.begin))
            begin = max(begin, held.end)
        if begin < piece.end:
            parts.append(between(begin, piece.end))
        return parts

    def add(self, piece: Range) -> None:
        """The messages of the piece are in the set from now on."""
        if not self._ranges:
            self._ranges.append(piece)
            return
        low = bisect_left(self._ranges, piece.begin, key=_end)
        high = low
        begin, end = piece.begin, piece.end
        while high < len(self._ranges) and self._ranges[high].begin <= end:
            begin = min(begin, self._ranges[high].begin)
            end = max(end, self._ranges[high].end)
            high += 1
        self._ranges[low:high] = [between(begin, end)]


def _begin(piece: Range) -> DuePlace:
    return piece.begin


def _end(piece: Range) -> DuePlace:
    return piece.end
