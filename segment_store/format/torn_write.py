"""Whether the newest write has reached the disk in every sector, when a frame of it does not verify: pure.

A disk writes whole sectors of 512 bytes, each for itself and in any order. A write that the power cut short
has left at least one sector as it was; that sector gives it away where the tail record says that only zeros
and the tail record before stood there. If no sector looks untouched, all were written, so that the sync may
have succeeded, and the entry may be acknowledged: what does not verify has changed since.

    |..frames before| first frame ...  |  sector  |  sector  | ... last frame|marker|record|
    |  a sector     |
                    ^ start; in front of the write the marker and the record before stood here

Two things are taken for an untouched sector although they may be none: a sector that holds only zeros in
the frame as well, and one that has become all zeros. And where a file is used again, other frames stood in
its place. There, a frame that lacks but one bit gives itself away all the same (bit_flip.py). See
docs/formats.md for what that leaves open.
"""

from collections.abc import Iterable
from typing import NamedTuple

from shoal.format.batch import END_OF_STREAM, MAX_FRAME_BYTES, LogIdentity, LogIndex
from shoal.segment_store.format.bit_flip import without_flip
from shoal.segment_store.format.index import Entry, entry_of
from shoal.segment_store.format.recovery import FRAME_MARK, Chain, Found, View, follow_chain, frame_problem
from shoal.segment_store.format.tail_record import TAIL_MAGIC, TRAILER_BYTES, TailRecord

SECTOR_BYTES = 512
"""The least that a disk writes as a whole; with larger sectors these are parts of them."""
_HEAD_BYTES = len(END_OF_STREAM)
_NO_HEAD = bytes(_HEAD_BYTES)
_ZEROS = bytes(SECTOR_BYTES)


class Verdict(NamedTuple):
    """The state of the frame at which the chain of good ones stops. `was_written`: it may be acknowledged;
    `behind`: the place behind it, where that is known for certain."""

    was_written: bool
    behind: Found | None


def newest_of(records: Iterable[TailRecord], chain: Chain) -> TailRecord | None:
    """The newest tail record that knows of entries behind the chain."""
    later = [record for record in records if record.last_index >= chain.next_index]
    return max(later, key=lambda record: record.last_index, default=None)


def found_at(newest: TailRecord | None) -> Found | None:
    """The end that a tail record tells, for entries of which nothing verifies."""
    if newest is None:
        return None
    index = LogIndex(newest.last_index + 1)
    return Found(
        Entry(index, newest.end_offset, newest.end_position, 8, 0, newest.last_term, 0), newest.last_term
    )


def range_to_judge(stopped_at: int, dirty_end: int, newest: TailRecord | None) -> tuple[int, int]:
    """Position and length of what `judge` must see of the file: bounded by one write and one frame. The chain
    stops at byte `stopped_at`; from `dirty_end` on there are only zeros."""
    start = stopped_at
    if newest is not None and _covers(newest, stopped_at):
        start = newest.start_position
    if dirty_end <= stopped_at + TRAILER_BYTES:
        return start, 0  # no frame is so short
    return start, min(dirty_end, stopped_at + MAX_FRAME_BYTES + TRAILER_BYTES) - start


def judge(
    data: View, start: int, stopped_at: int, chain: Chain, newest: TailRecord | None, identity: LogIdentity
) -> Verdict:
    """Torn, or damaged. `data`: the file from byte `start` on, as range_to_judge says."""
    view = memoryview(data)
    if not view:
        return Verdict(False, None)
    was_written = False
    if newest is not None and _covers(newest, stopped_at):
        write = view[: newest.written_bytes + len(END_OF_STREAM)]
        was_written = not has_untouched_sector(write, start, stopped_at)
    rest = view[stopped_at - start :]
    entry = _flipped_entry(rest, stopped_at, chain, identity)
    # A sector that was never written may have had one bit for this frame, and more for what follows it.
    if entry is None or not (was_written or _goes_on(rest, entry, chain, newest, identity)):
        return Verdict(was_written, None)
    behind = Entry(LogIndex(entry.index + 1), entry.end_offset, entry.end_position, 8, 0, entry.term, 0)
    return Verdict(True, Found(behind, entry.term))


def _covers(newest: TailRecord, position: int) -> bool:
    """Whether the write that the record speaks of holds that byte."""
    return newest.start_position <= position < newest.end_position


def _flipped_entry(rest: memoryview, position: int, chain: Chain, identity: LogIdentity) -> Entry | None:
    """The next entry if one flipped bit is all that its frame lacks."""
    frame = without_flip(rest, identity)
    if frame is None or frame_problem(chain, frame.stamp) is not None:
        return None
    if rest[len(frame.data) :][: len(FRAME_MARK)] != FRAME_MARK:
        return None  # neither a frame nor the marker follows: its last sector may never have been written
    return entry_of(frame.stamp, position, len(frame.data))


def _goes_on(
    rest: memoryview, entry: Entry, chain: Chain, newest: TailRecord | None, identity: LogIdentity
) -> bool:
    """Whether everything behind the entry, as far as the newest tail record knows, verifies."""
    if newest is None:
        return True
    following = rest[entry.length : max(entry.length, newest.end_position - entry.position)]
    stretch = follow_chain(following, entry.end_position, chain.after(entry), identity)
    return stretch.end_position == newest.end_position


def has_untouched_sector(data: View, start: int, stopped_at: int) -> bool:
    """`data`: the frames and the marker of the newest write as they lie on the disk, from byte `start` of the
    file on, whose tail record verifies behind them; `stopped_at`: where the chain of good frames stops."""
    places = {0, stopped_at - start}
    if any(_is_old_end(data, place, start + place) for place in places):
        return True
    searched = bytearray(data)
    for place in places:
        # A clearing that was cut short may have left the end of its tail record alone.
        trailer = searched[place : place + TRAILER_BYTES]
        searched[place : place + TRAILER_BYTES] = bytes(len(trailer))
    first = -start % SECTOR_BYTES
    stop = len(searched) - (start + len(searched)) % SECTOR_BYTES  # the rest shares the record's sector
    return any(searched[at : at + SECTOR_BYTES] == _ZEROS for at in range(first, stop, SECTOR_BYTES))


def _is_old_end(data: View, place: int, position: int) -> bool:
    """Whether a frame that belongs at `place` was never written there: the end of what was there before still
    is, or nothing. As much as lies in the same sector must agree."""
    in_sector = SECTOR_BYTES - position % SECTOR_BYTES
    head = bytes(data[place : place + _HEAD_BYTES])
    behind = bytes(data[place + _HEAD_BYTES : place + min(in_sector, _HEAD_BYTES + len(TAIL_MAGIC))])
    return head == _NO_HEAD or (head == END_OF_STREAM and behind in (b"", TAIL_MAGIC))
