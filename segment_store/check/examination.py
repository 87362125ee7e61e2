"""The findings about a stopped log on the disk, as values: pure.

An examination reads every byte of a stopped log and changes none; offline.py does the reading. This file has
the report on each segment, and tells which findings are damage: bytes that were once acknowledged and no
longer verify, or entries that no file holds. An incomplete write behind the end is no damage: it was never
acknowledged, and the next start clears it.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from shoal.format.batch import Kind, LogIndex, Offset, Stamp, Term
from shoal.segment_store.format.index import Entry, IndexFile
from shoal.segment_store.format.layout import SegmentName
from shoal.segment_store.format.recovery import Chain

_NO_TERM = Term(0)


class StoredFrame(NamedTuple):
    """One verified frame and where it lies; `data` is all of its bytes."""

    entry: Entry
    stamp: Stamp
    data: bytes


@dataclass(frozen=True, slots=True)
class DamageReport:
    """Where something does not verify (`position` in bytes), and which entries and records that costs: each
    pair from the first to behind the last, equal when none; `end_offset` is None when nothing tells."""

    path: str
    position: int
    detail: str
    first_index: LogIndex
    end_index: LogIndex
    first_offset: Offset
    end_offset: Offset | None

    def __str__(self) -> str:
        text = f"{self.path} at byte {self.position}: {self.detail}"
        if self.end_index > self.first_index:
            end = "the end" if self.end_offset is None else f"{self.end_offset - 1}"
            lost = f"entries {self.first_index} to {self.end_index - 1}"
            if self.end_offset == self.first_offset:
                return f"{text}; costs {lost}, which hold no record"
            return f"{text}; costs {lost}, offsets {self.first_offset} to {end}"
        return f"{text}; costs no entry"


@dataclass(slots=True)
class SegmentReport:
    """One segment. Sizes and positions in bytes, times in microseconds since the epoch; numbers of entries
    and offsets are those of verified frames."""

    path: str
    name: SegmentName
    size_bytes: int
    sealed: bool
    last_index: LogIndex
    end_offset: Offset
    end_position: int = 0
    entries: int = 0
    records: int = 0
    last_term: Term = _NO_TERM
    first_append_time_us: int = 0
    last_append_time_us: int = 0
    kinds: Counter[Kind] = field(default_factory=Counter)
    index_entries: int = 0
    damage: list[DamageReport] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def count(self, frame: StoredFrame) -> None:
        """One more verified frame."""
        entry = frame.entry
        if not self.entries:
            self.first_append_time_us = entry.append_time_us
        self.entries += 1
        self.records += entry.record_count
        self.kinds[frame.stamp.kind] += 1
        self.last_index, self.last_term = entry.index, entry.term
        self.end_offset = entry.end_offset
        self.last_append_time_us = entry.append_time_us

    def lost(
        self, position: int, detail: str, chain: Chain, end: LogIndex, end_offset: Offset | None
    ) -> None:
        """Entries from the chain's next up to `end` do not verify."""
        self.damage.append(
            DamageReport(self.path, position, detail, chain.next_index, end, chain.next_offset, end_offset)
        )

    def broken(self, position: int, detail: str, chain: Chain) -> None:
        """Damage that costs no entry."""
        self.lost(position, detail, chain, chain.next_index, chain.next_offset)


@dataclass(slots=True)
class LogReport:
    """A whole log: its segments in order."""

    directory: str
    segments: list[SegmentReport] = field(default_factory=list)

    @property
    def damage(self) -> list[DamageReport]:
        return [damage for segment in self.segments for damage in segment.damage]

    @property
    def records(self) -> int:
        return sum(segment.records for segment in self.segments)

    @property
    def entries(self) -> int:
        return sum(segment.entries for segment in self.segments)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)


def compare_index(index: IndexFile, found: Sequence[Entry]) -> str | None:
    """Why an index file does not agree with the verified frames of its segment; None when it does.
    A start rebuilds what is missing, so this is no damage."""
    if index.problem is not None:
        return f"the index file is good for {len(index.entries)} entries ({index.problem})"
    places = {entry.index: entry for entry in found}
    for entry in index.entries:
        there = places.get(entry.index)
        if there is not None and not there.agrees_with(entry):
            return f"the index file has another place or number for entry {entry.index}"
    return None
