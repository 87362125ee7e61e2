"""Damage as a value, and how stored frames are compared with what the index says of them: pure.

A damaged range does not verify, as a reader, an opening or a scrub found: which file, from which byte, and
which entries and records that costs. Repair asks a peer for it. The ranges of one log are one sorted list,
neighbours merged.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from shoal.format.batch import BatchError, LogIdentity, LogIndex, Offset, Term, view_frame
from shoal.segment_store.errors import Damaged
from shoal.segment_store.format.index import Entry, entry_of
from shoal.segment_store.format.recovery import Chain, View, chain_problem


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """Bytes [position, position + length) of `path` do not verify. They hold the entries `first_index` to
    `last_index` with the records at [first_offset, end_offset); last_index = first_index - 1 where no entry
    is concerned (a header, a tail record, an index file)."""

    path: str
    position: int
    length: int
    first_index: LogIndex
    last_index: LogIndex
    first_offset: Offset
    end_offset: Offset
    detail: str

    def __str__(self) -> str:
        text = f"{self.path} at byte {self.position}, {self.length} bytes: {self.detail}"
        if not self.costs_entries:
            return f"{text}; costs no entry"
        entries = f"entries {self.first_index} to {self.last_index}"
        if self.end_offset == self.first_offset:
            return f"{text}; {entries}, which hold no record"
        return f"{text}; {entries}, offsets {self.first_offset} to {self.end_offset - 1}"

    @property
    def costs_entries(self) -> bool:
        return self.last_index >= self.first_index


def range_of(damage: Damaged) -> DamagedRange | None:
    """The range of a read's or an opening's error; None where its entries are unknown."""
    if damage.offsets is None or not damage.first_index:
        return None
    return DamagedRange(
        damage.path,
        damage.position,
        damage.length,
        LogIndex(damage.first_index),
        LogIndex(damage.last_index),
        Offset(damage.offsets[0]),
        Offset(damage.offsets[1]),
        damage.detail,
    )


def range_of_entries(path: str, first: Entry, last: Entry, detail: str) -> DamagedRange:
    """The range of the entries from first to last."""
    length = last.end_position - first.position
    return DamagedRange(
        path,
        first.position,
        length,
        first.index,
        last.index,
        first.base_offset,
        last.end_offset,
        detail,
    )


def range_without_entries(
    path: str, position: int, length: int, index: LogIndex, offset: Offset, detail: str
) -> DamagedRange:
    """Damage that costs no entry; `index` and `offset` say what comes next there."""
    return DamagedRange(path, position, length, index, LogIndex(index - 1), offset, offset, detail)


def check_entries(
    path: str, buffer: View, base: int, entries: Sequence[Entry], before: Term, identity: LogIdentity
) -> list[DamagedRange]:
    """Compare the buffer, which was read from byte `base` of the file, with what the index says lies there.

    Each frame must verify, be the one the entry names, and follow the term of the one before (`before` for
    the first). Bytes the buffer lacks at its end are damage: the file has become short.
    """
    view = memoryview(buffer)
    found: list[DamagedRange] = []
    for entry in entries:
        problem = _problem_of(entry, view, base, before, identity)
        before = entry.term
        if problem is not None:
            found.append(range_of_entries(path, entry, entry, problem))
    return merge(found)


def _problem_of(entry: Entry, view: memoryview, base: int, before: Term, identity: LogIdentity) -> str | None:
    if entry.end_position - base > len(view):
        return "the file ends before the entry does"
    try:
        stamp, data = view_frame(view, entry.position - base, identity)
    except BatchError as error:
        return str(error)
    expected = Chain(entry.index, entry.base_offset, before)
    problem = chain_problem(expected, stamp.kind, stamp.index, stamp.base_offset, stamp.previous_term)
    if problem is None and not entry_of(stamp, entry.position, len(data)).agrees_with(entry):
        problem = f"another entry {stamp.index} of term {stamp.term} and {len(data)} bytes lies there"
    return problem


def merge(ranges: Iterable[DamagedRange]) -> list[DamagedRange]:
    """In log order, with neighbouring entries of one file as one range; the first one's detail stands."""
    merged: list[DamagedRange] = []
    others: dict[tuple[str, int], DamagedRange] = {}
    for item in sorted(ranges, key=_order):
        last = merged[-1] if merged else None
        if not item.costs_entries:
            others.setdefault((item.path, item.position), item)
        elif last is not None and last.path == item.path and item.first_index <= last.last_index + 1:
            end = max(last.position + last.length, item.position + item.length)
            merged[-1] = replace(
                last,
                length=end - last.position,
                last_index=max(last.last_index, item.last_index),
                end_offset=max(last.end_offset, item.end_offset),
            )
        else:
            merged.append(item)
    return sorted([*merged, *others.values()], key=_order)


def _order(item: DamagedRange) -> tuple[LogIndex, str, int]:
    return item.first_index, item.path, item.position


def confirmed(known: Iterable[DamagedRange], found: Sequence[DamagedRange]) -> tuple[DamagedRange, ...]:
    """Those of the known ranges that a look over everything has met again, in part at least."""
    return tuple(item for item in known if any(touches(item, other) for other in found))


def touches(one: DamagedRange, other: DamagedRange) -> bool:
    """Whether both speak of the same bytes, or the same entry."""
    if one.path != other.path:
        return False
    if one.costs_entries and other.costs_entries:
        return one.first_index <= other.last_index and other.first_index <= one.last_index
    return one.position == other.position


def within(known: Sequence[DamagedRange], first_index: LogIndex) -> tuple[DamagedRange, ...]:
    """Without the entries that a trim has removed."""
    return tuple(item for item in known if max(item.first_index, item.last_index) >= first_index)


def before(known: Sequence[DamagedRange], from_index: LogIndex) -> tuple[DamagedRange, ...]:
    """Without the entries that a truncation has removed."""
    return tuple(
        replace(item, last_index=LogIndex(min(item.last_index, from_index - 1)))
        for item in known
        if item.first_index < from_index
    )
