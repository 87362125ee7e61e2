"""Good frames in a segment's bytes, and why the rest is not good: pure (safety 7 to 11).

The chain decides: each frame must verify under the log's identity and continue the one before it (index +
1, offset = previous base + count, previous term). The chain stops at the end, at a torn tail or at damage. A
torn tail is a last write that was not complete when the power went: its entries were never acknowledged.
Damage is an entry that may have been acknowledged and does not verify. Evidence of damage: an index entry, a
tail record's synced index, a successor segment; a frame that lacks but one bit (bit_flip.py); a newest write
that has left its trace in every sector (torn_write.py). A torn tail is cleared. Damage is reported and
bridged, never cut.
"""

from typing import NamedTuple

from shoal.format.batch import (
    MAX_FRAME_BYTES,
    BatchError,
    Kind,
    LogIdentity,
    LogIndex,
    Offset,
    Stamp,
    Term,
    parse_frame,
    view_frame,
)
from shoal.segment_store.errors import Damaged, FormatError
from shoal.segment_store.format.index import Entry, entry_of
from shoal.segment_store.format.tail_record import (
    TAIL_MAGIC,
    TAIL_RECORD_BYTES,
    TailRecord,
    decode_tail_record,
)

View = bytes | bytearray | memoryview
FRAME_MARK = b"\xff\xff\xff\xff"
_ZERO_BLOCK = 64 * 2**10
_ZEROS = bytes(_ZERO_BLOCK)
_ALIGNMENT = 8  # every frame, marker and tail record starts at a multiple
GUESSED_BYTES = _ALIGNMENT
"""The length of an entry whose place in a damaged stretch is not known: no frame is as short."""


class Chain(NamedTuple):
    """The numbers that the next frame must have, and the append time that it may not precede."""

    next_index: LogIndex
    next_offset: Offset
    previous_term: Term
    append_time_us: int = 0

    def after(self, entry: Entry) -> "Chain":
        return Chain(LogIndex(entry.index + 1), entry.end_offset, entry.term, entry.append_time_us)


class Found(NamedTuple):
    """A good frame behind a damaged stretch, and the term it says the entry before it had."""

    entry: Entry
    previous_term: Term


class Stretch(NamedTuple):
    """A run of good frames: where they end, how the chain goes on, and why reading stopped ("short": the
    buffer ended; the frame may be whole once more bytes are there)."""

    entries: list[Entry]
    end_position: int
    chain: Chain
    reason: str
    detail: str


def follow_chain(buffer: View, base: int, chain: Chain, identity: LogIdentity) -> Stretch:
    """Frames from the start of the buffer, which lies at byte `base` of the segment, as far as the chain
    holds."""
    entries: list[Entry] = []
    at = 0
    view = memoryview(buffer)
    while True:
        try:
            stamp, data = view_frame(view, at, identity)
        except BatchError as error:
            return Stretch(entries, base + at, chain, error.reason, str(error))
        problem = frame_problem(chain, stamp)
        if problem:
            return Stretch(entries, base + at, chain, "chain", problem)
        entry = entry_of(stamp, base + at, len(data))
        entries.append(entry)
        chain = chain.after(entry)
        at += len(data)


def frame_problem(chain: Chain, stamp: Stamp) -> str | None:
    """Why the frame of this stamp does not come next; None when it does."""
    return chain_problem(chain, stamp.kind, stamp.index, stamp.base_offset, stamp.previous_term)


def chain_problem(chain: Chain, kind: Kind, index: int, base_offset: int, previous_term: int) -> str | None:
    """Why a frame with these numbers does not come next; None when it does."""
    if kind is Kind.SCHEMA:
        return "a schema message in the middle of a segment"
    if index != chain.next_index:
        return f"entry {index} where {chain.next_index} belongs"
    if base_offset != chain.next_offset:
        return f"entry {index} at offset {base_offset}, not {chain.next_offset}"
    if previous_term != chain.previous_term:
        return f"entry {index} follows term {previous_term}, not {chain.previous_term}"
    return None


def find_tail_records(buffer: View, base: int, identity: LogIdentity) -> list[TailRecord]:
    """Every tail record of this log in the buffer that stands where it says it does (frames end in front of
    it)."""
    data = bytes(buffer)
    records: list[TailRecord] = []
    at = data.find(TAIL_MAGIC)
    while at >= 0:
        if (base + at) % _ALIGNMENT == 0 and at + TAIL_RECORD_BYTES <= len(data):
            try:
                record = decode_tail_record(data, at, identity)
            except FormatError:
                record = None  # payload that looks like one, or one half overwritten: no evidence
            if record is not None and record.end_position == base + at - _ALIGNMENT:
                records.append(record)
        at = data.find(TAIL_MAGIC, at + 1)
    return records


def find_frame(
    buffer: View, base: int, search_bytes: int, chain: Chain, identity: LogIdentity
) -> Found | None:
    """The first whole frame of this log that begins in the buffer's first `search_bytes` and can stand
    behind the chain with entries missing between."""
    data = bytes(buffer)
    at = data.find(FRAME_MARK)
    while 0 <= at < search_bytes:
        if (base + at) % _ALIGNMENT == 0:
            found = _later_frame(data, base, at, chain, identity)
            if found is not None:
                return found
        at = data.find(FRAME_MARK, at + 1)
    return None


def _later_frame(data: bytes, base: int, at: int, chain: Chain, identity: LogIdentity) -> Found | None:
    try:
        stamp, frame = parse_frame(data, at, identity)
    except BatchError:
        return None  # the mark occurs inside bodies and damaged frames: only a checksum proves a frame
    fits = stamp.kind is not Kind.SCHEMA and stamp.index > chain.next_index
    if not fits or stamp.base_offset < chain.next_offset or stamp.previous_term < chain.previous_term:
        return None
    return Found(entry_of(stamp, base + at, len(frame)), stamp.previous_term)


def bridge(path: str, position: int, chain: Chain, found: Entry, previous_term: Term) -> list[Entry]:
    """Entries for the damaged stretch between `position` and the next good frame, so that everything behind
    it keeps its place. Their numbers follow from both sides; where terms changed inside a longer stretch
    they do not, and Damaged is raised. The stretch is shared out arbitrarily: none of it verifies, so none
    of it is ever served. All but the first get GUESSED_BYTES, by which they are one stretch later."""
    missing = found.index - chain.next_index
    assert missing > 0
    detail = f"{missing} acknowledged entries do not verify"
    if missing > 1 and previous_term != chain.previous_term:
        last = found.index - 1
        raise Damaged(path, position, detail + ", and their terms are unknown", chain.next_index, last)
    stretch = found.position - position - GUESSED_BYTES * (missing - 1)
    if stretch < GUESSED_BYTES:
        raise Damaged(path, position, detail + ", in too little space", chain.next_index, found.index - 1)
    entries = [
        Entry(
            chain.next_index,
            chain.next_offset,
            position,
            min(stretch, MAX_FRAME_BYTES),
            found.base_offset - chain.next_offset,
            previous_term,
            chain.append_time_us,
        )
    ]
    while len(entries) < missing:
        before = entries[-1]
        entries.append(
            Entry(
                LogIndex(before.index + 1),
                found.base_offset,
                before.end_position,
                GUESSED_BYTES,
                0,
                previous_term,
                chain.append_time_us,
            )
        )
    return entries


def nonzero_end(buffer: View, base: int) -> int | None:
    """Behind the last byte that is not zero, as a position in the file; None when all are.

    Block by block, by comparison: preallocated tails are megabytes of zeros, and there are many of them.
    """
    view = memoryview(buffer)
    end = len(view)
    while end and bytes(view[max(0, end - _ZERO_BLOCK) : end]) == _ZEROS[:end]:
        end = max(0, end - _ZERO_BLOCK)
    last = bytes(view[max(0, end - _ZERO_BLOCK) : end])
    return base + end - (len(last) - len(last.rstrip(b"\0"))) if end else None
