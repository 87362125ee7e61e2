"""A group's messages in one partition: the floor, the spans, and how both change so that it can be undone.

Law of this file: pure. It knows which messages stand where, not why they change: partition_group.py does.
Before the floor everything is done but what a redrive brought back. From the floor on, a message without a
span was never delivered, or looked at. Every change puts its inverse into a journal; changes are taken back
in the reverse order.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, TypeAlias

from shoal.agent.groups.place import START, MessageSpan, SpanState
from shoal.agent.groups.requests import Undo
from shoal.agent.groups.spans import SPAN, SPAN_BYTES, SpanTable, unpack_span
from shoal.agent.receive import DuePlace, Range

Becomes: TypeAlias = Callable[[MessageSpan], MessageSpan]
"""A span's next history; the same object if nothing changes."""
Found: TypeAlias = Callable[[Range], MessageSpan | None]
"""A span for messages that have none; None if nothing changes."""

_EXCHANGED: Final = struct.Struct("<qqII")  # a piece, and the length of the packed spans that stood there
_NO_NUMBERS: Final = (0, 0, 0, 0, 0)


def bare(piece: Range, state: SpanState) -> MessageSpan:
    """Messages without numbers: none of their deliveries counts any more."""
    return MessageSpan(*piece, *_NO_NUMBERS, state, 0)


class FlooredSpans:
    """`by_due`: places are due times. Otherwise they are offsets, and every due time is 0."""

    __slots__ = ("by_due", "floor", "spans")

    def __init__(self, floor: DuePlace, *, by_due: bool) -> None:
        self.by_due = by_due
        self.floor = floor
        self.spans = SpanTable()

    @property
    def next(self) -> DuePlace:
        """The place behind everything that was delivered or looked at. See `unseen` for what lies before."""
        end = self.spans.end()
        return self.floor if end is None else max(self.floor, end)

    def new_parts(self, piece: Range) -> list[Range]:
        """The messages of the piece that are behind the floor, and in no span."""
        parts = self._parts(piece, self.spans.overlapping(piece))
        return [part for part in parts if type(part) is Range and part.begin >= self.floor]

    def _parts(self, piece: Range, spans: list[MessageSpan]) -> list[Range | MessageSpan]:
        """The piece cut at its spans and, where there are none, at the floor: a range for messages without a
        span."""
        due_us, behind, count = piece
        if not spans and (due_us != self.floor.due_us or behind >= self.floor.offset):
            return [piece]
        parts: list[Range | MessageSpan] = []
        for span in spans:
            if span.first > behind:
                parts += self._without(due_us, behind, span.first)
            parts.append(span)
            behind = span.first + span.count
        if behind < piece.first + count:
            parts += self._without(due_us, behind, piece.first + count)
        return parts

    def _without(self, due_us: int, first: int, behind: int) -> list[Range]:
        offset = self.floor.offset
        if due_us == self.floor.due_us and first < offset < behind:
            return [Range(due_us, first, offset - first), Range(due_us, offset, behind - offset)]
        return [Range(due_us, first, behind - first)]

    def unseen(self, limit: int) -> list[Range]:
        """New messages between the floor and `next`, at most so many ranges of them: somebody left them out.
        Empty where places are due times: there nobody may."""
        if self.by_due:
            return []
        floor, last = self.floor.offset, self.spans.end()
        if last is None or last.offset <= floor:
            return []
        if sum(self.spans.messages.values()) - self._messages_before_floor() == last.offset - floor:
            return []
        unseen: list[Range] = []
        behind = self.floor.offset
        for span in self.spans.from_place(self.floor):
            if span.first > behind:
                unseen.append(Range(0, behind, span.first - behind))
            if len(unseen) == limit:
                break
            behind = span.first + span.count
        return unseen

    def _messages_before_floor(self) -> int:
        before = 0
        if self.spans.has_none_before(self.floor):
            return 0
        for span in self.spans.from_place(START):
            if span.begin >= self.floor:
                break
            before += min(span.count, self.floor.offset - span.first)
        return before

    def turn(
        self, ranges: Iterable[Range], becomes: Becomes, journal: list[Undo], found: Found | None = None
    ) -> int:
        """Give the messages of the ranges, which are disjoint, a new history; how many got one."""
        turned = 0
        exchanged: list[bytes] = []
        for piece in ranges:
            due_us, first, count = piece
            cut = self.spans.cut(DuePlace(due_us, first), DuePlace(due_us, first + count))
            put: list[bytes] = []
            before = turned
            for part in self._parts(piece, [unpack_span(record) for record in cut.removed]):
                if isinstance(part, MessageSpan):
                    other: MessageSpan | None = becomes(part)
                else:
                    other = found(part) if found else None
                if other is not None and other is not part:
                    turned += other.count
                if other is not None and other.state is SpanState.DONE:
                    if other.begin == self.floor:  # nothing before it is left to be done
                        self.change("floor", other.end, journal)
                    other = other.since(self.floor)  # those before it just go
                if other is not None:
                    put.append(SPAN.pack(*other))
            if turned > before:
                self.spans.fill(cut, put)
                exchanged.append(_EXCHANGED.pack(*piece, SPAN_BYTES * len(cut.removed)))
                exchanged += cut.removed
        if exchanged:
            journal.append(partial(self._put_back, b"".join(exchanged)))
        return turned

    def _put_back(self, exchanged: bytes) -> None:
        """The inverse. Packed, since an entry may have thousands of ranges, and many may be uncommitted."""
        position = 0
        while position < len(exchanged):
            due_us, first, count, length = _EXCHANGED.unpack_from(exchanged, position)
            position += _EXCHANGED.size
            begin, end = DuePlace(due_us, first), DuePlace(due_us, first + count)
            self.spans.swap(begin, end, exchanged[position : position + length])
            position += length

    def move_floor(self, journal: list[Undo]) -> None:
        """Up to the first message that is not done."""
        floor = self.floor
        for span in self.spans.from_place(floor):
            # Nothing that is appended later is due before a time that was delivered: no message lies between.
            if span.state is not SpanState.DONE or not (self.by_due or span.begin == floor):
                break
            floor = span.end
        if floor > self.floor:
            self.clear(self.floor, floor, journal)
            self.change("floor", floor, journal)

    def clear(self, begin: DuePlace, end: DuePlace, journal: list[Undo]) -> bool:
        """Forget what stands between; whether something did."""
        removed = self.spans.swap(begin, end, b"")
        if removed:
            journal.append(partial(self.spans.swap, begin, end, removed))
        return bool(removed)

    def change(self, name: str, value: object, journal: list[Undo]) -> None:
        """Give a field another value."""
        journal.append(partial(setattr, self, name, getattr(self, name)))
        setattr(self, name, value)

    def flaw(self) -> str:
        """The first thing that no operations lead to, empty if there is none."""
        if not self.by_due and self.floor.due_us:
            return f"a floor at {self.floor} where nothing is due"
        for due_us, first, _, _, delivery, until_us, _, _, state, attempts in self.spans.rows():
            if due_us and not self.by_due:
                return f"a span at {(due_us, first)} where nothing is due"
            if state == SpanState.IN_FLIGHT and not (delivery and attempts):
                return f"a span in flight at {(due_us, first)} that nothing delivered"
            if until_us and state != SpanState.WAITING:
                return f"a span at {(due_us, first)} that waits for a time in state {state}"
            if state == SpanState.DONE and (due_us, first) < self.floor:
                return f"a span that is done at {(due_us, first)}, before the floor"
        lowest = next(self.spans.from_place(self.floor), None)
        if lowest and lowest.state is SpanState.DONE and (self.by_due or lowest.begin == self.floor):
            return f"a span that is done at {lowest.begin}, with the floor still at {self.floor}"
        return ""
