"""Where each entry of one segment lies: pure. In memory compact arrays, on disk checksummed blocks.

The index file is a sequence of blocks, each written by one append: a header and fixed-width entries. Only
entries whose frames are known synced are ever written. So an entry in a good block that no longer verifies in
the segment is damage, never a torn tail. A block that does not verify ends the file; what it held is found
again by scanning the segment. Suffix truncation replaces the whole file before it touches the segment.

Blocks of version 1 have entries without the greatest timestamp of their records; such entries are read, and
say that they do not know it.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from itertools import compress
from operator import add, ge
from typing import NamedTuple, TypeAlias

import crc32c

from shoal.format.batch import MAX_FRAME_BYTES, LogIdentity, LogIndex, Offset, Stamp, Term
from shoal.segment_store.errors import FormatError

INDEX_MAGIC = b"ShoalIdx"
INDEX_VERSION = 2
# magic, crc32c, version, reserved, entries, reserved, first index
_HEADER = struct.Struct("<8sIHHIIQ")
# index, base offset, position, length, record count, term, append time, greatest timestamp of the records
_ENTRY = struct.Struct("<QQQIIQQq")
_ENTRY_BYTES_BY_VERSION = {1: 48, INDEX_VERSION: _ENTRY.size}
HEADER_BYTES = _HEADER.size
ENTRY_BYTES = _ENTRY.size
_CHECKED_FROM = 12
MAX_BLOCK_ENTRIES = 8192  # bounds what one block allocates when it is read: 448 KiB

UNKNOWN_TIME_US = 2**63 - 1  # of records not looked at yet: the latest, so that a search looks at them
NO_TIME_US = -(2**63)  # of no record: earlier than any


class Entry(NamedTuple):
    """One frame: its numbers, and where its bytes lie in the segment (position and length in bytes)."""

    index: LogIndex  # type: ignore[assignment]  # hides tuple.index, which no entry needs
    base_offset: Offset
    position: int
    length: int
    record_count: int
    term: Term
    append_time_us: int
    max_timestamp_us: int = UNKNOWN_TIME_US

    def agrees_with(self, other: Entry) -> bool:
        """Whether both say the same of the same frame, as far as both know."""
        times = (self.max_timestamp_us, other.max_timestamp_us)
        return self[:-1] == other[:-1] and (UNKNOWN_TIME_US in times or times[0] == times[1])

    @property
    def end_position(self) -> int:
        return self.position + self.length

    @property
    def end_offset(self) -> Offset:
        return Offset(self.base_offset + self.record_count)


def entry_of(stamp: Stamp, position: int, length: int) -> Entry:
    """The index entry of a frame with this stamp, stored at `position`."""
    return Entry(
        stamp.index,
        stamp.base_offset,
        position,
        length,
        stamp.record_count,
        stamp.term,
        stamp.append_time_us,
        stamp.max_timestamp_us if stamp.record_count else NO_TIME_US,
    )


_COLUMN_CODES = (
    "Q",
    "Q",
    "I",
    "I",
    "Q",
    "Q",
    "q",
)  # base offset, position, length, record count, term, append time, greatest timestamp


Places: TypeAlias = tuple["array[int]", "array[int]", "array[int]"]
"""Positions and lengths of adjoining entries, in bytes; the first offset of each, and the one behind the
last."""

_TIMES_AT_ONCE = 1024  # of which only the greatest is looked at first


class IndexReleased(Exception):
    """A place was asked of an index whose columns are not in memory: load them, and ask again.
    `first_index` says which."""

    def __init__(self, first_index: LogIndex) -> None:
        super().__init__(f"the index from entry {first_index} on is not in memory")
        self.first_index = first_index


class SegmentIndex:
    """Entries of one segment, contiguous from `first_index`; 48 bytes each. Entries adjoin in index and
    offset, not necessarily in position (an unreadable stretch may lie between two).

    `release` keeps length, first and last entry, the bytes of records and the greatest timestamp of all.
    All else that is asked then raises IndexReleased until `restore`.
    """

    def __init__(self, first_index: LogIndex) -> None:
        self.first_index = first_index
        self._ends: tuple[Entry, Entry] | None = None  # first and last, while released
        self._length = 0  # while released
        self._newest_us = NO_TIME_US  # while released
        self._data_bytes = 0  # of the first entries, of which so many are counted
        self._counted = 0
        self._take(tuple(array(code) for code in _COLUMN_CODES))

    def _take(self, columns: tuple[array[int], ...]) -> None:
        self.columns = columns
        self._offsets, self._positions, self._lengths, self._counts, *others = columns
        self._terms, self._times, self._timestamps = others

    def __len__(self) -> int:
        return self._length or len(self._offsets)

    def __iter__(self) -> Iterator[Entry]:
        return self.slice(self.first_index, self.last_index)

    def __repr__(self) -> str:
        return f"SegmentIndex({self.first_index}..{self.last_index})"

    @property
    def last_index(self) -> LogIndex:
        """first_index - 1 when empty."""
        return LogIndex(self.first_index + (self._length or len(self._offsets)) - 1)

    @property
    def is_released(self) -> bool:
        return self._ends is not None

    @property
    def data_bytes(self) -> int:
        """Of the entries with records. Each entry is looked at once, however often this is asked."""
        if self._ends is None:
            self._count()
        return self._data_bytes

    def _count(self) -> None:
        if self._counted < len(self._offsets):
            self._data_bytes += self._bytes_of_data(self._counted, len(self._offsets))
            self._counted = len(self._offsets)

    def _bytes_of_data(self, begin: int, end: int) -> int:
        return sum(compress(self._lengths[begin:end], self._counts[begin:end]))

    def release(self) -> None:
        """Give the memory back; the caller can load the columns again."""
        if self._ends is None and len(self._offsets) > 2:
            self._count()
            self._ends = self.entry(self.first_index), self.entry(self.last_index)
            self._length = len(self._offsets)
            self._newest_us = max(self._timestamps)
            self._take(tuple(array(code) for code in _COLUMN_CODES))

    def restore(self, loaded: SegmentIndex) -> None:
        """The columns again, from an index that holds the same entries. FormatError when it does not."""
        if self._ends is None:
            return
        first, last = self._ends
        if len(loaded) != self._length or not (
            loaded.entry(first.index).agrees_with(first) and loaded.entry(last.index).agrees_with(last)
        ):
            raise FormatError("invalid", f"index entries {first.index} to {last.index} are no longer there")
        self._ends, self._length = None, 0
        self._take(loaded.columns)

    def append(self, entry: Entry) -> None:
        assert entry.index == self.first_index + len(self._offsets), (entry, self)
        self._offsets.append(entry.base_offset)
        self._positions.append(entry.position)
        self._lengths.append(entry.length)
        self._counts.append(entry.record_count)
        self._terms.append(entry.term)
        self._times.append(entry.append_time_us)
        self._timestamps.append(entry.max_timestamp_us)

    def append_frame(self, stamp: Stamp, position: int, length: int) -> None:
        """The entry of a frame of `length` bytes at `position`: as append, of what `entry_of` makes."""
        assert stamp.index == self.first_index + len(self._offsets), (stamp, self)
        self._offsets.append(stamp.base_offset)
        self._positions.append(position)
        self._lengths.append(length)
        self._counts.append(stamp.record_count)
        self._terms.append(stamp.term)
        self._times.append(stamp.append_time_us)
        self._timestamps.append(stamp.max_timestamp_us if stamp.record_count else NO_TIME_US)

    def extend(self, following: SegmentIndex) -> None:
        """Everything of an index that continues this one."""
        assert following.first_index == self.last_index + 1
        for column, more in zip(self.columns, following.columns, strict=True):
            column.extend(more)

    def entry(self, index: LogIndex) -> Entry:
        if self._ends is not None:
            for end in self._ends:
                if end.index == index:
                    return end
            raise IndexReleased(self.first_index)
        place = index - self.first_index
        assert 0 <= place < len(self._offsets), (index, self)
        return Entry(
            index,
            Offset(self._offsets[place]),
            self._positions[place],
            self._lengths[place],
            self._counts[place],
            Term(self._terms[place]),
            self._times[place],
            self._timestamps[place],
        )

    def _check_present(self) -> None:
        if self._ends is not None:
            raise IndexReleased(self.first_index)

    def slice(self, first: LogIndex, last: LogIndex) -> Iterator[Entry]:
        for index in range(first, last + 1):
            yield self.entry(LogIndex(index))

    def truncate(self, from_index: LogIndex) -> None:
        """Forget `from_index` and everything after it."""
        if from_index > self.last_index:
            return
        self._check_present()
        keep = max(0, from_index - self.first_index)
        if keep < self._counted:
            self._data_bytes -= self._bytes_of_data(keep, self._counted)
            self._counted = keep
        for column in self.columns:
            del column[keep:]

    def index_for_offset(self, offset: Offset) -> LogIndex:
        """The entry whose [base, base + count) holds the offset; the caller has checked the segment's range.

        Control entries hold no offset and share the base of their successor, so the last entry with a base
        at or below the offset is the one.
        """
        if self._ends is not None:
            raise IndexReleased(self.first_index)
        place = bisect_right(self._offsets, offset) - 1
        assert place >= 0, (offset, self)
        return LogIndex(self.first_index + place)

    def places(self, first: LogIndex, last: LogIndex, max_bytes: int) -> Places:
        """The entries from `first` on: at most `max_bytes` of the file but at least one, none behind `last`
        or the end. Found by halving: no step is taken for a single entry."""
        if self._ends is not None:
            raise IndexReleased(self.first_index)
        begin = first - self.first_index
        limit = self._positions[begin] + max_bytes
        end = min(last - self.first_index + 1, len(self._positions))
        assert 0 <= begin < end, (first, last, self)
        stop = bisect_right(self._positions, limit, begin, end)
        while stop > begin + 1 and self._positions[stop - 1] + self._lengths[stop - 1] > limit:
            stop -= 1
        stop = max(stop, begin + 1)
        offsets = self._offsets[begin:stop]
        offsets.append(offsets[-1] + self._counts[stop - 1])
        return self._positions[begin:stop], self._lengths[begin:stop], offsets

    def first_reaching(self, time_us: int, from_index: LogIndex) -> LogIndex | None:
        """The first entry from `from_index` on that may hold a record of that time or later; None when there
        is none, which a released index knows only if it holds no such record at all."""
        if self._ends is not None and self._newest_us < time_us:
            return None
        self._check_present()
        timestamps = self._timestamps
        for begin in range(from_index - self.first_index, len(timestamps), _TIMES_AT_ONCE):
            piece = timestamps[begin : begin + _TIMES_AT_ONCE]
            if max(piece) >= time_us:
                found = next(place for place, newest_us in enumerate(piece, begin) if newest_us >= time_us)
                return LogIndex(self.first_index + found)
        return None

    def term_runs(self) -> list[tuple[LogIndex, Term]]:
        """Where each term begins, found by halving: terms never fall."""
        self._check_present()
        runs: list[tuple[LogIndex, Term]] = []
        place = 0
        while place < len(self._terms):
            term = self._terms[place]
            runs.append((LogIndex(self.first_index + place), Term(term)))
            place = bisect_right(self._terms, term, place)
        return runs

    @classmethod
    def from_body(cls, first_index: LogIndex, body: bytes, version: int = INDEX_VERSION) -> SegmentIndex:
        """From packed entries, by columns: no step is taken for a single entry. FormatError unless they are
        what this code could have written: contiguous, bounded, in order."""
        size = _ENTRY_BYTES_BY_VERSION[version] // 8
        words, halves = array("Q", body), array("I", body)
        if sys.byteorder == "big":
            words.byteswap()
            halves.byteswap()
        found = cls(first_index)
        counts = halves[7 :: 2 * size]
        if version == 1:
            known = array("q", [UNKNOWN_TIME_US if count else NO_TIME_US for count in counts])
        else:
            known = array("q", words[6::size].tobytes())
        numbers = (words[1::size], words[2::size], halves[6 :: 2 * size], counts)
        found._take((*numbers, words[4::size], words[5::size], known))
        try:
            found._check(words[0::size])
        except OverflowError as error:
            raise FormatError("invalid", f"an entry after {first_index} has impossible numbers") from error
        return found

    def _check(self, indices: array[int]) -> None:
        count = len(indices)
        if indices != array("Q", range(self.first_index, self.first_index + count)):
            raise FormatError("invalid", "index entries are not the ones their header says")
        offsets, positions, lengths = self._offsets, self._positions, self._lengths
        if not 0 < min(lengths) <= max(lengths) <= MAX_FRAME_BYTES or any(map((7).__and__, positions)):
            raise FormatError("invalid", f"an entry after {self.first_index} has an impossible place")
        follows = (
            offsets[1:] == array("Q", map(add, offsets[: count - 1], self._counts))
            and all(map(ge, positions[1:], map(add, positions, lengths)))
            and all(map(ge, self._terms[1:], self._terms))
        )
        if not follows:
            raise FormatError("invalid", f"an entry after {self.first_index} does not follow the one before")


def encode_block(entries: list[Entry], identity: LogIdentity) -> bytes:
    """One self-checking block of 1 to MAX_BLOCK_ENTRIES contiguous entries."""
    assert 0 < len(entries) <= MAX_BLOCK_ENTRIES
    body = b"".join([_ENTRY.pack(*entry) for entry in entries])
    header = _HEADER.pack(INDEX_MAGIC, 0, INDEX_VERSION, 0, len(entries), 0, entries[0].index)
    checksum = crc32c.crc32c(body, crc32c.crc32c(header[_CHECKED_FROM:], identity.seed))
    return _HEADER.pack(INDEX_MAGIC, checksum, INDEX_VERSION, 0, len(entries), 0, entries[0].index) + body


def encode_blocks(entries: list[Entry], identity: LogIdentity) -> list[bytes]:
    """As many blocks as the entries need."""
    step = MAX_BLOCK_ENTRIES
    return [encode_block(entries[at : at + step], identity) for at in range(0, len(entries), step)]


def decode_block(
    buffer: bytes | bytearray | memoryview, position: int, identity: LogIdentity
) -> tuple[SegmentIndex, int]:
    """The entries of the block at `position`, and where it ends; FormatError when it is not a good block."""
    header = bytes(buffer[position : position + HEADER_BYTES])
    if len(header) < HEADER_BYTES:
        raise FormatError("short", f"an index block's header has {HEADER_BYTES} bytes")
    magic, checksum, version, _, count, _, first_index = _HEADER.unpack(header)
    if magic != INDEX_MAGIC:
        raise FormatError("magic", "no index block here")
    if not 0 < count <= MAX_BLOCK_ENTRIES:
        raise FormatError("invalid", f"an index block of {count} entries")
    body_bytes = count * _ENTRY_BYTES_BY_VERSION.get(version, ENTRY_BYTES)
    end = position + HEADER_BYTES + body_bytes
    body = bytes(buffer[position + HEADER_BYTES : end])
    if len(body) < body_bytes:
        raise FormatError("short", "the index block runs past the end of the file")
    if crc32c.crc32c(body, crc32c.crc32c(header[_CHECKED_FROM:], identity.seed)) != checksum:
        raise FormatError("checksum", "index block does not verify")
    if version not in _ENTRY_BYTES_BY_VERSION:
        raise FormatError("version", f"index block version {version}, this code knows 1 to {INDEX_VERSION}")
    return SegmentIndex.from_body(LogIndex(first_index), body, version), end


def _adjoins(before: Entry, entry: Entry) -> bool:
    return (
        entry.index == before.index + 1
        and entry.base_offset == before.end_offset
        and entry.position >= before.end_position
        and entry.term >= before.term
    )


class IndexFile(NamedTuple):
    """The entries that an index file's bytes prove, from the segment's first on, how many bytes hold them,
    and why reading stopped before the end of the file (None: it did not)."""

    held: SegmentIndex
    good_bytes: int
    problem: str | None

    @property
    def entries(self) -> list[Entry]:
        return list(self.held)


def decode_index_file(
    data: bytes, first_index: LogIndex, first_offset: Offset, identity: LogIdentity
) -> IndexFile:
    """Every leading block that verifies and continues the one before. Never raises: the rest is found by
    scanning."""
    index = SegmentIndex(first_index)
    position = 0
    while position < len(data):
        try:
            block, end = decode_block(data, position, identity)
        except FormatError as error:
            return IndexFile(index, position, f"byte {position}: {error}")
        head = block.entry(block.first_index)
        if len(index):
            fits = _adjoins(index.entry(index.last_index), head)
        else:
            fits = (head.index, head.base_offset) == (first_index, first_offset)
        if not fits:
            problem = f"byte {position}: block of entry {head.index} does not continue"
            return IndexFile(index, position, problem)
        index.extend(block)
        position = end
    return IndexFile(index, position, None)
