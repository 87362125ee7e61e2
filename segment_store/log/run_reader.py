"""Stored frames out of segment files: bytes read, each frame verified, and found to be the one the index
names.

Bytes in the page cache are taken in the call itself. This file knows segments and files; log.py decides which
entries are wanted, and which error their absence is.
"""

from array import array
from typing import NamedTuple

import pyarrow as pa

from shoal.format.batch import BatchError, LogIdentity, LogIndex, Offset, is_frame, view_frame
from shoal.segment_store.errors import Damaged
from shoal.segment_store.format.index import Places
from shoal.segment_store.format.recovery import GUESSED_BYTES
from shoal.segment_store.log.segment import Segment, SegmentFiles

SMALL_BUFFER_BYTES = 16 * 2**10  # clearing so few costs less than asking Arrow


class StoredRun(NamedTuple):
    """Adjoining entries of one segment from `first_index` on, and where they lie: positions and lengths in
    bytes, copied from the index, which may change while the run is being read. `offsets`: the first of each
    entry, and the one behind the last; `start` and `length`: of the whole, in bytes, with gaps."""

    segment: Segment
    first_index: LogIndex
    positions: "array[int]"
    lengths: "array[int]"
    offsets: "array[int]"
    start: int
    length: int

    @property
    def entries(self) -> int:
        return len(self.lengths)

    @property
    def size_bytes(self) -> int:
        return sum(self.lengths)

    @property
    def base_offset(self) -> Offset:
        return Offset(self.offsets[0])

    @property
    def end_offset(self) -> Offset:
        return Offset(self.offsets[-1])

    def part(self, begin: int, stop: int) -> "StoredRun":
        """Some of its entries, at least one."""
        if begin == 0 and stop == len(self.lengths):
            return self
        return run_of(
            self.segment,
            LogIndex(self.first_index + begin),
            (self.positions[begin:stop], self.lengths[begin:stop], self.offsets[begin : stop + 1]),
        )


def run_of(segment: Segment, first_index: LogIndex, places: Places) -> StoredRun:
    positions, lengths, offsets = places
    start = positions[0]
    return StoredRun(
        segment, first_index, positions, lengths, offsets, start, positions[-1] + lengths[-1] - start
    )


class Verified(NamedTuple):
    """The leading frames of a run that are good, whole and in place, and why the next is not (None: all
    are)."""

    frames: list[memoryview]
    problem: str | None


def buffer_for(run: StoredRun) -> memoryview:
    if run.length <= SMALL_BUFFER_BYTES:
        return memoryview(bytearray(run.length))
    # Arrow's allocator neither clears the memory nor gives it back to the kernel each time: zeros and page
    # faults would cost as much as the copy from the page cache.
    return memoryview(pa.allocate_buffer(run.length)).cast("B")


def verify_run(run: StoredRun, view: memoryview, identity: LogIdentity) -> Verified:
    """The frames in `view`, which holds the run's bytes as far as they could be read."""
    frames: list[memoryview] = []
    index, base, filled = run.first_index, run.start, len(view)
    for position, length in zip(run.positions, run.lengths, strict=True):
        at = position - base
        if at + length > filled:
            return Verified(frames, "the file ends before the entry does")
        if not is_frame(view, at, length, index, identity):
            return Verified(frames, _why_not(view, at, identity))
        frames.append(view[at : at + length])
        index = LogIndex(index + 1)
    return Verified(frames, None)


def _why_not(view: memoryview, position: int, identity: LogIdentity) -> str:
    """Why the bytes there are not the frame that belongs there."""
    try:
        stamp, data = view_frame(view, position, identity)
    except BatchError as error:
        return str(error)
    return f"entry {stamp.index} of {len(data)} bytes lies there"


def read_at_once(files: SegmentFiles, run: StoredRun) -> Verified | None:
    """The run when its file is open and the page cache holds it all; None when it has to be waited for."""
    file = files.open_files.open_file(run.segment.path)
    if file is None:
        return None
    buffer = buffer_for(run)
    if file.read_resident(run.start, buffer) < run.length:
        return None
    return verify_run(run, buffer.toreadonly(), files.identity)


async def read_run(files: SegmentFiles, run: StoredRun) -> Verified:
    """The run from the disk, read as one; a failing disk is a problem of its first frame."""
    buffer = buffer_for(run)
    try:
        async with files.open_files.pin(run.segment.path) as file:
            filled = await file.read_into(run.start, buffer)
    except OSError as error:
        return Verified([], f"read failed: {error}")
    return verify_run(run, buffer[:filled].toreadonly(), files.identity)


def add_damage(found: list[Damaged], damage: Damaged) -> None:
    """Behind those found before; the entries of a stretch whose places were guessed are mended together or
    not at all, so they are one."""
    last = found[-1] if found else None
    if (
        last is None
        or damage.length != GUESSED_BYTES
        or (last.path, last.last_index + 1) != (damage.path, damage.first_index)
        or last.offsets is None
        or damage.offsets is None
    ):
        found.append(damage)
        return
    found[-1] = Damaged(
        last.path,
        last.position,
        last.detail,
        last.first_index,
        damage.last_index,
        (last.offsets[0], damage.offsets[1]),
        last.length + damage.length,
    )


def damage_of(run: StoredRun, problem: str) -> Damaged:
    """The error to raise when the first frame of a run does not verify."""
    index, length = run.first_index, run.lengths[0]
    offsets = run.offsets[0], run.offsets[1]
    return Damaged(run.segment.path, run.start, problem, index, index, offsets, length)
