"""The table of a group's messages in one partition that are delivered and not behind the floor: packed.

Law of this file: pure. It keeps spans sorted, disjoint and as few as can be; which state follows which stands
in partition_group.py. The same messages with the same histories are always the same bytes, whatever way led
there: neighbours that could be one span are one. So replicas can be compared, and a change is undone by
putting back what was there.

A span stands in 56 bytes, and 65,536 of them in a few hundred chunks. A checkpoint is a join of the chunks, a
change rewrites one chunk.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

from shoal.agent.groups.place import OFFSETS_BITS, GroupWireError, MessageSpan, SpanState
from shoal.agent.receive import DuePlace, Range

SPAN: Final = struct.Struct("<qqIIqqqIBxH")
"""due, first, count, lease_ms, delivery, until_us, first_us, last_after_ms, state, attempts"""
SPAN_BYTES: Final = SPAN.size
CHUNK_SPANS: Final = 256
"""A change moves at most so many spans in memory: 14 KiB."""
SPAN_OFFSETS: Final = 2**30
"""No span goes over a multiple of this offset: so its count fits into 32 bits, however much is done behind a
message that is not."""
BEHIND_ALL: Final = DuePlace(2**63 - 1, 0)

_CHUNK_BYTES: Final = CHUNK_SPANS * SPAN_BYTES
_SMALL_BYTES: Final = _CHUNK_BYTES // 4  # a changed chunk that is smaller joins the one before
_PLACE = struct.Struct("<qqI")  # due, first, count: how a span begins
_OFFSETS = struct.Struct("<qI")
_HISTORY: Final = _PLACE.size  # where the rest begins
_STATE: Final = 52
_PADDING: Final = 53
_STATES: Final = {state.value: state for state in SpanState}
_NO_NUMBERS: Final = frozenset((SpanState.DONE, SpanState.DYING))

_Position: TypeAlias = tuple[int, int]
"""Of a span: its chunk, and its row there. The row behind the last is the first of the next chunk, too."""


class SpanCut(NamedTuple):
    """Spans that were looked up: from `start` up to `stop`. `removed`: packed, and clipped to the interval
    that was asked for. `left` and `right`: the rest of the first and of the last, if there is any."""

    start: _Position
    stop: _Position
    removed: list[bytes]
    left: list[bytes]
    right: list[bytes]


def pack_spans(spans: Iterable[MessageSpan]) -> bytes:
    """As they stand in the table."""
    return b"".join([SPAN.pack(*span) for span in spans])


def unpack_spans(data: bytes | bytearray) -> list[MessageSpan]:
    """The opposite, of bytes of the table."""
    return [_span(fields) for fields in SPAN.iter_unpack(data)]


def unpack_span(record: bytes) -> MessageSpan:
    """One of them."""
    return _span(SPAN.unpack(record))


def _span(fields: tuple[int, ...]) -> MessageSpan:
    return MessageSpan(*fields[:8], _STATES[fields[8]], fields[9])  # type: ignore[arg-type, call-arg]


def _clip(record: bytes, first: int, behind: int) -> bytes:
    """The offsets from `first` up to `behind` of a packed span."""
    return record[:8] + _OFFSETS.pack(first, behind - first) + record[_HISTORY:]


def _joined(records: Iterable[bytes]) -> list[bytes]:
    """Packed spans with all neighbours merged that can be."""
    joined: list[bytes] = []
    for record in records:
        if joined and (merged := _merge(joined[-1], record)):
            joined[-1] = merged
        else:
            joined.append(record)
    return joined


def _merge(one: bytes, other: bytes) -> bytes | None:
    if one[_HISTORY:] != other[_HISTORY:] or one[:8] != other[:8]:
        return None
    _, first, count = _PLACE.unpack_from(one)
    _, second, more = _PLACE.unpack_from(other)
    if first + count != second or second % SPAN_OFFSETS == 0:
        return None
    return _clip(one, first, second + more)


def _cut_up(record: bytes) -> list[bytes]:
    """The packed span in parts that go over no multiple of SPAN_OFFSETS."""
    _, first, count = _PLACE.unpack_from(record)
    behind = first + count
    if first // SPAN_OFFSETS == (behind - 1) // SPAN_OFFSETS:
        return [record]
    inner = range((first // SPAN_OFFSETS + 1) * SPAN_OFFSETS, behind, SPAN_OFFSETS)
    return [_clip(record, begin, end) for begin, end in pairwise((first, *inner, behind))]


class SpanTable:
    """`size`: spans. `messages`: how many there are in each state; `undone`: those that are not DONE."""

    __slots__ = ("_chunks", "_firsts", "messages", "size", "undone")

    def __init__(self) -> None:
        self.size = 0
        self.undone = 0
        self.messages = dict.fromkeys(SpanState, 0)
        self._chunks: list[bytearray] = []  # none is empty
        self._firsts: list[tuple[int, int]] = []  # the place that each begins with

    def __repr__(self) -> str:
        counts = " ".join(f"{state.name.lower()}={count}" for state, count in self.messages.items())
        return f"SpanTable(spans={self.size} {counts})"

    def at(self, place: DuePlace) -> MessageSpan | None:
        """The span that holds a message."""
        span = next(self.from_place(place), None)
        return None if span is None or span.begin > place else span

    def first(self) -> MessageSpan | None:
        """The lowest."""
        return _span(SPAN.unpack_from(self._chunks[0])) if self._chunks else None

    def last(self) -> MessageSpan | None:
        """The highest."""
        if not self._chunks:
            return None
        return _span(SPAN.unpack_from(self._chunks[-1], len(self._chunks[-1]) - SPAN_BYTES))

    def has_none_before(self, place: DuePlace) -> bool:
        """Whether nothing begins before the place."""
        return not self._firsts or self._firsts[0] >= place

    def end(self) -> DuePlace | None:
        """The place behind the highest; None for an empty table."""
        if not self._chunks:
            return None
        due_us, first, count = _PLACE.unpack_from(self._chunks[-1], len(self._chunks[-1]) - SPAN_BYTES)
        return DuePlace(due_us, first + count)

    def from_place(self, place: DuePlace) -> Iterator[MessageSpan]:
        """The spans that end behind `place`, ascending. Good until the next change."""
        if not self._chunks:
            return
        number, row = self._find(place)
        for chunk in self._chunks[number:]:
            for at in range(row * SPAN_BYTES, len(chunk), SPAN_BYTES):
                yield _span(SPAN.unpack_from(chunk, at))
            row = 0

    def overlapping(self, piece: Range) -> list[MessageSpan]:
        """The spans of the piece, clipped to it, ascending."""
        return unpack_spans(b"".join(self.cut(piece.begin, piece.end).removed))

    def replace(self, piece: Range, spans: Sequence[MessageSpan]) -> list[MessageSpan]:
        """Put `spans`, which lie within the piece, in the place of what is there; that is returned, clipped.
        The inverse: put back what was returned."""
        return unpack_spans(self.swap(piece.begin, piece.end, pack_spans(spans)))

    def swap(self, begin: DuePlace, end: DuePlace, records: bytes) -> bytes:
        """As `replace`, from `begin` up to `end`, of packed spans."""
        cut = self.cut(begin, end)
        self.fill(cut, [records[at : at + SPAN_BYTES] for at in range(0, len(records), SPAN_BYTES)])
        return b"".join(cut.removed)

    def cut(self, begin: DuePlace, end: DuePlace) -> SpanCut:
        """Look up what stands from `begin` up to `end`. Good for one `fill`, and until the next change."""
        assert begin < end, (begin, end)
        if not self._chunks:
            return SpanCut((0, 0), (0, 0), [], [], [])
        start = number, row = self._find(begin)
        if number + 1 == len(self._chunks) and row * SPAN_BYTES == len(self._chunks[number]):
            return SpanCut(start, start, [], [], [])
        removed, stop = self._gather(start, end)
        return SpanCut(start, stop, removed, *_clip_ends(removed, begin, end))

    def fill(self, cut: SpanCut, records: Sequence[bytes]) -> None:
        """Put packed spans, which lie within it, in the place of what was cut."""
        self._count(cut.removed, -1)
        self._count(records, 1)
        start, stop = cut.start, cut.stop
        kept = [part for record in records for part in _cut_up(record)]
        if len(kept) > 1 or cut.left or cut.right:
            kept = _joined([*cut.left, *kept, *cut.right])
        if kept and self._chunks:
            start, stop = self._join_neighbours(start, stop, kept)
        if kept or cut.removed:
            self._splice(start, stop, kept)

    def _join_neighbours(
        self, start: _Position, stop: _Position, kept: list[bytes]
    ) -> tuple[_Position, _Position]:
        """Merge the spans before `start` and at `stop` into `kept`; from where to where it goes then."""
        number, row = start
        if row == 0 and number:
            number, row = number - 1, len(self._chunks[number - 1]) // SPAN_BYTES
        if row and (merged := _merge(self._record((number, row - 1)), kept[0])):
            kept[0] = merged
            start = (number, row - 1)
        number, row = stop
        if row * SPAN_BYTES == len(self._chunks[number]):
            number, row = number + 1, 0
        if number < len(self._chunks) and (merged := _merge(kept[-1], self._record((number, row)))):
            kept[-1] = merged
            stop = (number, row + 1)
        return start, stop

    def _record(self, position: _Position) -> bytes:
        number, row = position
        return bytes(self._chunks[number][row * SPAN_BYTES : (row + 1) * SPAN_BYTES])

    def _find(self, place: DuePlace) -> _Position:
        """The first span that ends behind `place`. The table is not empty."""
        if place <= self._firsts[0]:
            return 0, 0
        number = max(bisect_right(self._firsts, place) - 1, 0)
        chunk = self._chunks[number]
        low, high = 0, len(chunk) // SPAN_BYTES
        due_us, offset = place
        if number + 1 == len(self._chunks):
            span_us, first, count = _PLACE.unpack_from(chunk, len(chunk) - SPAN_BYTES)
            if span_us < due_us or (span_us == due_us and first + count <= offset):
                return number, high  # behind all: so it is with messages that are delivered at first
        while low < high:  # rows below `low` end at or before the place
            row = (low + high) // 2
            span_us, first, count = _PLACE.unpack_from(chunk, row * SPAN_BYTES)
            if span_us < due_us or (span_us == due_us and first + count <= offset):
                low = row + 1
            else:
                high = row
        return number, low

    def _gather(self, start: _Position, end: DuePlace) -> tuple[list[bytes], _Position]:
        """The packed spans from `start` that begin before `end`, and the position behind them."""
        number, row = start
        records: list[bytes] = []
        while True:
            chunk = self._chunks[number]
            rows = len(chunk) // SPAN_BYTES
            while row < rows:
                at = row * SPAN_BYTES
                if _PLACE.unpack_from(chunk, at)[:2] >= end:
                    return records, (number, row)
                records.append(bytes(chunk[at : at + SPAN_BYTES]))
                row += 1
            if number + 1 == len(self._chunks) or self._firsts[number + 1] >= end:
                return records, (number, row)
            number, row = number + 1, 0

    def _count(self, records: Iterable[bytes], sign: int) -> None:
        for record in records:
            count = sign * int.from_bytes(record[16:20], "little")
            state = _STATES[record[_STATE]]
            self.messages[state] += count
            if state is not SpanState.DONE:
                self.undone += count

    def _splice(self, start: _Position, stop: _Position, records: list[bytes]) -> None:
        """Put packed spans in the place of those from `start` up to `stop`."""
        data = b"".join(records)
        number, row = start
        last, behind = stop
        begin, end = row * SPAN_BYTES, behind * SPAN_BYTES
        if not self._chunks:
            self._chunks, self._firsts = [bytearray()], [(0, 0)]
        first = self._chunks[number]
        if number == last and begin and len(data) == end - begin:
            first[begin:end] = data
            return
        before = sum(map(len, self._chunks[number : last + 1]))
        rest = self._chunks[last][end:]
        if number == last:
            first[begin:end] = data
        else:
            first[begin:] = data + rest
        self.size += (len(first) - before) // SPAN_BYTES
        if number and len(first) < _SMALL_BYTES:
            number -= 1
            self._chunks[number] += first
            first = self._chunks[number]
        parts = -(-len(first) // _CHUNK_BYTES)
        if parts == 1 and number == last:
            if begin == 0:
                self._firsts[number] = _PLACE.unpack_from(first)[:2]
            return
        step = -(-len(first) // (SPAN_BYTES * parts)) * SPAN_BYTES if parts else 1
        chunks = [first[at : at + step] for at in range(0, len(first), step)]
        self._chunks[number : last + 1] = chunks
        self._firsts[number : last + 1] = [_PLACE.unpack_from(chunk)[:2] for chunk in chunks]

    def to_bytes(self) -> bytes:
        """All spans, ascending, each in SPAN_BYTES."""
        return b"".join(self._chunks)

    @classmethod
    def from_bytes(cls, data: bytes) -> SpanTable:
        """The opposite. Raises GroupWireError for bytes that no table has."""
        if len(data) % SPAN_BYTES or any(data[_PADDING::SPAN_BYTES]):
            raise GroupWireError(f"a table of spans with {len(data)} bytes")
        counts = dict.fromkeys(SpanState, 0)
        for count, state in _checked(data):
            counts[_STATES[state]] += count
        table = cls()
        table.size = len(data) // SPAN_BYTES
        table.messages = counts
        table.undone = sum(counts.values()) - counts[SpanState.DONE]
        table._chunks = [bytearray(data[at : at + _CHUNK_BYTES]) for at in range(0, len(data), _CHUNK_BYTES)]
        table._firsts = [_PLACE.unpack_from(chunk)[:2] for chunk in table._chunks]
        return table

    def rows(self) -> Iterator[tuple[int, ...]]:
        """The fields of all spans, ascending, as plain numbers: to look through thousands."""
        for chunk in self._chunks:
            yield from SPAN.iter_unpack(chunk)

    def check_invariants(self) -> None:
        """Sorted, disjoint, no two spans that could be one, counts right."""
        copy = SpanTable.from_bytes(self.to_bytes())
        counted = (copy.size, copy.messages, copy.undone)
        assert counted == (self.size, self.messages, self.undone), (self, copy)
        assert all(0 < len(chunk) <= _CHUNK_BYTES for chunk in self._chunks), list(map(len, self._chunks))
        assert self._firsts == [_PLACE.unpack_from(chunk)[:2] for chunk in self._chunks]


def _checked(data: bytes) -> Iterator[tuple[int, int]]:
    """Count and state of each span. Raises GroupWireError at one that no table has.

    A table of 65,536 spans is read whole when a replica is opened: hence the arithmetic.
    """
    behind = (0, 0)
    last: tuple[int, ...] = ()
    for fields in SPAN.iter_unpack(data):
        due_us, first, count, lease_ms, delivery, until_us, first_us, last_after_ms, state, attempts = fields
        end = first + count
        # A number below 0, or one that is not below OFFSETS_MAX, has bits there.
        if (due_us | first | end | delivery | until_us | first_us) >> OFFSETS_BITS or not count:
            raise GroupWireError(f"a span with {fields}")
        if state not in _STATES or first // SPAN_OFFSETS != (end - 1) // SPAN_OFFSETS:
            raise GroupWireError(f"a span of {count} messages from {first}, in state {state}")
        if state in _NO_NUMBERS and (
            lease_ms or delivery or until_us or first_us or last_after_ms or attempts
        ):
            raise GroupWireError(f"a span in state {state} that has numbers: {fields}")
        if (due_us, first) < behind:
            raise GroupWireError(f"a span at {(due_us, first)} overlaps the one before")
        if (due_us, first) == behind and first % SPAN_OFFSETS and fields[3:] == last:
            raise GroupWireError(f"a span at {(due_us, first)} belongs to the one before")
        behind, last = (due_us, end), fields[3:]
        yield count, state


def _clip_ends(records: list[bytes], begin: DuePlace, end: DuePlace) -> tuple[list[bytes], list[bytes]]:
    """Clip the first and the last of packed spans to an interval; what is cut off at each side."""
    left: list[bytes] = []
    right: list[bytes] = []
    if not records:
        return left, right
    due_us, first, count = _PLACE.unpack_from(records[0])
    if (due_us, first) < begin:
        left = [_clip(records[0], first, begin.offset)]
        records[0] = _clip(records[0], begin.offset, first + count)
    due_us, first, count = _PLACE.unpack_from(records[-1])
    if (due_us, first + count) > end:
        right = [_clip(records[-1], end.offset, first + count)]
        records[-1] = _clip(records[-1], first, end.offset)
    return left, right
