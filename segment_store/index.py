"""Where each entry of one segment lies: pure. In memory compact arrays, on disk checksummed blocks.

The index file is a sequence of blocks, each written by one append: a header and fixed-width entries. Only
entries whose frames are known synced are ever written, so whatever verifies is knowledge: an entry in a
good block that no longer verifies in the segment is damage, never a torn tail. A block that does not verify
ends the file; what it held is found again by scanning the segment. Suffix truncation replaces the whole
file before it touches the segment.
"""

import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

import crc32c

from shoal.batch import MAX_FRAME_BYTES, LogIdentity, LogIndex, Offset, Stamp, Term
from shoal.segment_store.errors import FormatError

INDEX_MAGIC = b"ShoalIdx"
INDEX_VERSION = 1
# magic, crc32c, version, reserved, entries, reserved, first index
_HEADER = struct.Struct("<8sIHHIIQ")
# index, base offset, position, length, record count, term, append time
_ENTRY = struct.Struct("<QQQIIQQ")
HEADER_BYTES = _HEADER.size
ENTRY_BYTES = _ENTRY.size
_CHECKED_FROM = 12
MAX_BLOCK_ENTRIES = 8192  # bounds what one block allocates when it is read: 384 KiB


class Entry(NamedTuple):
    """One frame: its numbers, and where its bytes lie in the segment (position and length in bytes)."""

    index: LogIndex  # type: ignore[assignment]  # hides tuple.index, which nobody asks of an entry
    base_offset: Offset
    position: int
    length: int
    record_count: int
    term: Term
    append_time_us: int

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
    )


class SegmentIndex:
    """Entries of one segment, contiguous from `first_index`; 40 bytes each. Entries adjoin in index and
    offset, not necessarily in position (an unreadable stretch may lie between two)."""

    __slots__ = ("_counts", "_lengths", "_offsets", "_positions", "_terms", "_times", "first_index")

    def __init__(self, first_index: LogIndex) -> None:
        self.first_index = first_index
        self._offsets = array("Q")
        self._positions = array("Q")
        self._lengths = array("I")
        self._counts = array("I")
        self._terms = array("Q")
        self._times = array("Q")

    def __len__(self) -> int:
        return len(self._offsets)

    def __iter__(self) -> Iterator[Entry]:
        return self.slice(self.first_index, self.last_index)

    def __repr__(self) -> str:
        return f"SegmentIndex({self.first_index}..{self.last_index})"

    @property
    def last_index(self) -> LogIndex:
        """first_index - 1 when empty."""
        return LogIndex(self.first_index + len(self._offsets) - 1)

    def append(self, entry: Entry) -> None:
        assert entry.index == self.first_index + len(self._offsets), (entry, self)
        self._offsets.append(entry.base_offset)
        self._positions.append(entry.position)
        self._lengths.append(entry.length)
        self._counts.append(entry.record_count)
        self._terms.append(entry.term)
        self._times.append(entry.append_time_us)

    def entry(self, index: LogIndex) -> Entry:
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
        )

    def slice(self, first: LogIndex, last: LogIndex) -> Iterator[Entry]:
        for index in range(first, last + 1):
            yield self.entry(LogIndex(index))

    def truncate(self, from_index: LogIndex) -> None:
        """Forget `from_index` and everything after it."""
        keep = max(0, from_index - self.first_index)
        for column in (
            self._offsets,
            self._positions,
            self._lengths,
            self._counts,
            self._terms,
            self._times,
        ):
            del column[keep:]

    def index_for_offset(self, offset: Offset) -> LogIndex:
        """The entry whose [base, base + count) holds the offset; the caller has checked the segment's range.

        Control entries hold no offset and share the base of their successor, so the last entry with a base
        at or below the offset is the one.
        """
        place = bisect_right(self._offsets, offset) - 1
        assert place >= 0, (offset, self)
        return LogIndex(self.first_index + place)

    def term_runs(self) -> list[tuple[LogIndex, Term]]:
        runs: list[tuple[LogIndex, Term]] = []
        for place, term in enumerate(self._terms):
            if not runs or runs[-1][1] != term:
                runs.append((LogIndex(self.first_index + place), Term(term)))
        return runs


def _fields(entry: Entry) -> tuple[int, int, int, int, int, int, int]:
    return (
        entry.index,
        entry.base_offset,
        entry.position,
        entry.length,
        entry.record_count,
        entry.term,
        entry.append_time_us,
    )


def encode_block(entries: list[Entry], identity: LogIdentity) -> bytes:
    """One self-checking block of 1 to MAX_BLOCK_ENTRIES contiguous entries."""
    assert 0 < len(entries) <= MAX_BLOCK_ENTRIES
    body = b"".join([_ENTRY.pack(*_fields(entry)) for entry in entries])
    header = _HEADER.pack(INDEX_MAGIC, 0, INDEX_VERSION, 0, len(entries), 0, entries[0].index)
    checksum = crc32c.crc32c(body, crc32c.crc32c(header[_CHECKED_FROM:], identity.seed))
    return _HEADER.pack(INDEX_MAGIC, checksum, INDEX_VERSION, 0, len(entries), 0, entries[0].index) + body


def encode_blocks(entries: list[Entry], identity: LogIdentity) -> list[bytes]:
    """As many blocks as the entries need."""
    step = MAX_BLOCK_ENTRIES
    return [encode_block(entries[at : at + step], identity) for at in range(0, len(entries), step)]


def decode_block(
    buffer: bytes | bytearray | memoryview, position: int, identity: LogIdentity
) -> tuple[list[Entry], int]:
    """The entries of the block at `position`, and where it ends; FormatError when it is not a good block."""
    header = bytes(buffer[position : position + HEADER_BYTES])
    if len(header) < HEADER_BYTES:
        raise FormatError("short", f"an index block's header has {HEADER_BYTES} bytes")
    magic, checksum, version, _, count, _, first_index = _HEADER.unpack(header)
    if magic != INDEX_MAGIC:
        raise FormatError("magic", "no index block here")
    if not 0 < count <= MAX_BLOCK_ENTRIES:
        raise FormatError("invalid", f"an index block of {count} entries")
    end = position + HEADER_BYTES + count * ENTRY_BYTES
    body = bytes(buffer[position + HEADER_BYTES : end])
    if len(body) < count * ENTRY_BYTES:
        raise FormatError("short", "the index block runs past the end of the file")
    if crc32c.crc32c(body, crc32c.crc32c(header[_CHECKED_FROM:], identity.seed)) != checksum:
        raise FormatError("checksum", "index block does not verify")
    if version != INDEX_VERSION:
        raise FormatError("version", f"index block version {version}, this code knows {INDEX_VERSION}")
    entries = [Entry(*fields) for fields in _ENTRY.iter_unpack(body)]
    _check_entries(entries, first_index)
    return entries, end


def _check_entries(entries: list[Entry], first_index: int) -> None:
    """What holds of every index this code wrote: contiguous, bounded, in order."""
    if entries[0].index != first_index:
        raise FormatError("invalid", "index block starts at another entry than its header says")
    for before, entry in zip([None, *entries], entries, strict=False):
        if not 0 < entry.length <= MAX_FRAME_BYTES or entry.position % 8:
            raise FormatError("invalid", f"index entry {entry.index} has an impossible place")
        if before is not None and not _adjoins(before, entry):
            raise FormatError("invalid", f"index entry {entry.index} does not follow {before.index}")


def _adjoins(before: Entry, entry: Entry) -> bool:
    return (
        entry.index == before.index + 1
        and entry.base_offset == before.end_offset
        and entry.position >= before.end_position
        and entry.term >= before.term
    )


class IndexFile(NamedTuple):
    """What an index file's bytes proved: entries from the segment's first on, how many bytes hold them, and
    why reading stopped before the end of the file (None: it did not)."""

    entries: list[Entry]
    good_bytes: int
    problem: str | None


def decode_index_file(
    data: bytes, first_index: LogIndex, first_offset: Offset, identity: LogIdentity
) -> IndexFile:
    """Every leading block that verifies and continues the one before. Never raises: the rest is found by
    scanning."""
    entries: list[Entry] = []
    position = 0
    while position < len(data):
        try:
            block, end = decode_block(data, position, identity)
        except FormatError as error:
            return IndexFile(entries, position, f"byte {position}: {error}")
        head = block[0]
        if entries:
            fits = _adjoins(entries[-1], head)
        else:
            fits = (head.index, head.base_offset) == (first_index, first_offset)
        if not fits:
            problem = f"byte {position}: block of entry {head.index} does not continue"
            return IndexFile(entries, position, problem)
        entries += block
        position = end
    return IndexFile(entries, position, None)
