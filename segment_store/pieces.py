"""A long stretch of stored frames, given out piece by piece: each is read into one buffer, verified, and gone
before the next is read, so that it is sent while the processor still has it at hand.

Law of this file: no byte of a frame is given out before its whole frame has verified. What lies where was
looked up beforehand (log.py), for entries that are committed, so that the length of it all is known before
anything is read. A segment's file is pinned while its pieces are being read; between two pieces the caller
may let go of it, and what was trimmed then is refused. Knows neither Raft nor sockets.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from shoal.batch import LogIndex, Offset, is_frame
from shoal.segment_store.errors import Damaged
from shoal.segment_store.open_files import Handle
from shoal.segment_store.reading import Run, damage_of, part_of, verify_run
from shoal.segment_store.segment import SegmentFiles

PIECE_BYTES = 512 * 2**10
"""A quarter of what a core's own cache holds today: the socket's copy has to lie there too. A longer frame is
a piece of its own."""
PIECE_FRAMES = 128  # verifying so many small ones takes as long as a large piece
JOINED_BYTES = 64 * 2**10  # frames in memory below this are copied together: a write for each would cost more

Buffer: TypeAlias = bytes | memoryview


class Stored(NamedTuple):
    """Adjoining entries of one file. `offsets`: the first of each, and the one behind the last."""

    run: Run
    offsets: array[int]


class Held(NamedTuple):
    """Adjoining entries that are in memory, verified when they came. `offsets` as in Stored."""

    frames: list[Buffer]
    offsets: array[int]


class Source(Protocol):
    """The log, as far as its pieces ask."""

    @property
    def is_same(self) -> bool:
        """Whether check_branch would raise nothing."""

    def check_branch(self) -> None:
        """Raises LogClosed, and OffsetOutOfRange if the log was truncated since places were looked up."""

    def check_there(self, run: Run) -> None:
        """Raises OffsetOutOfRange when the log no longer holds the run's segment."""


class StoredPieces:
    """See the module. One caller, one call at a time; `let_go` at the end."""

    def __init__(self, files: SegmentFiles, parts: Sequence[Stored | Held], source: Source) -> None:
        """`parts`: in order, together at least one entry."""
        self._open_files = files.open_files
        self._identity = files.identity
        self._source = source
        self._parts = list(parts)
        self._part = self._entry = 0  # which come next
        self._handle: Handle | None = None  # of the part that comes next
        self._past: Handle | None = None  # of the one before, not let go of yet
        self._problem: Damaged | None = None  # of the entry that comes next
        self._first: Buffer | None = None  # what was read before it was asked for
        self.size_bytes = sum(map(_size, parts))
        longest = max((max(part.run.lengths) for part in parts if isinstance(part, Stored)), default=0)
        self._room = max(longest, min(PIECE_BYTES, self.size_bytes)) if longest else 0
        self._buffer = memoryview(b"")

    @property
    def base_offset(self) -> Offset:
        """Of the first entry."""
        return Offset(self._parts[0].offsets[0])

    @property
    def next_offset(self) -> Offset:
        """Behind the last entry."""
        return Offset(self._parts[-1].offsets[-1])

    @property
    def held_bytes(self) -> int:
        """Memory that this takes until it is dropped: the longest frame, what the log's cache may hold."""
        return self._room + sum(_size(part) for part in self._parts if isinstance(part, Held))

    async def begin(self) -> None:
        """Have the first piece ready before anything is promised: its damage is met here, and what lies
        behind damage in it is no part of the whole. Raises as `next`. Afterwards no file is pinned."""
        # Arrow's allocator: neither zeros nor, mostly, page faults.
        self._buffer = memoryview(pa.allocate_buffer(self._room)).cast("B")
        try:
            self._first = await self.next()
        finally:
            await self.let_go()
        if self._problem is not None:
            self._parts = [_leading(self._parts[0], self._entry)]
            self._part, self._entry, self._problem = 1, 0, None
            self.size_bytes = _size(self._parts[0])

    def at_once(self) -> Buffer | None:
        """The next piece as `next` gives it, if a file is pinned, its bytes are in memory, and this turn of
        the loop has room for them; None where `next` has to be awaited, which also says what is wrong.

        Between two pieces a megabyte went through the processor's cache, and took this code out of it: few
        steps here are worth more than elsewhere.
        """
        handle = self._handle
        if handle is None or not self._source.is_same:
            return None
        part, begin = self._parts[self._part], self._entry
        assert isinstance(part, Stored), "only those have a file"
        run = part.run
        start, length, stop = run.positions[begin], run.lengths[begin], begin + 1
        if length < PIECE_BYTES:
            stop = piece_stop(run, begin)
            length = run.positions[stop - 1] + run.lengths[stop - 1] - start
        view = self._buffer[:length]
        if handle.file.read_resident(start, view) < length:
            return None
        return self._verified(part, begin, stop, view)

    async def next(self) -> Buffer | None:
        """Whole verified frames, in memory that the next call uses again; None behind the last.

        Raises Damaged when the next frame does not verify, LogClosed, and OffsetOutOfRange when it was
        trimmed after the file had been let go of.
        """
        if self._first is not None:
            first, self._first = self._first, None
            return first
        if self._problem is not None:
            await self.let_go()
            raise self._problem
        if self._part == len(self._parts):
            return None
        part = self._parts[self._part]
        if isinstance(part, Stored):
            return await self._read(part, self._entry)
        await asyncio.sleep(0)  # others get their turn, as they do from a disk
        piece, taken = _joined(part.frames, self._entry)
        self._advance(part, self._entry + taken)
        return piece

    async def let_go(self) -> None:
        """Unpin the file: whoever waits for a slow reader must not keep what is trimmed. Idempotent."""
        pinned = self._past, self._handle
        self._past = self._handle = None
        for handle in pinned:
            if handle is not None:
                await self._open_files.release(handle)

    async def _read(self, part: Stored, begin: int) -> Buffer:
        run = part.run
        stop = piece_stop(run, begin)
        length = run.positions[stop - 1] + run.lengths[stop - 1] - run.positions[begin]
        try:
            if self._handle is None:
                await self.let_go()
                self._source.check_there(run)
                self._handle = await self._open_files.acquire(run.segment.path)
            filled = await self._handle.file.read_into(run.positions[begin], self._buffer[:length])
        except OSError as error:
            self._source.check_there(run)  # trimmed meanwhile: that is the answer then
            raise damage_of(_entries(part, begin, stop), f"read failed: {error}") from error
        self._source.check_branch()
        piece = self._verified(part, begin, stop, self._buffer[:filled])
        if piece is None:
            assert self._problem is not None, "there is a reason"
            raise self._problem
        return piece

    def _verified(self, part: Stored, begin: int, stop: int, view: memoryview) -> Buffer | None:
        """The piece that was read there, if need be only what lies before damage; None if that is nothing."""
        run = part.run
        is_one = stop == begin + 1 and len(view) == run.lengths[begin]
        if is_one and is_frame(view, 0, len(view), LogIndex(run.first_index + begin), self._identity):
            self._advance(part, stop)
            return view
        run = _entries(part, begin, stop)
        verified = verify_run(run, view, self._identity)
        if verified.problem is None:
            self._advance(part, stop)
            return view
        good = len(verified.frames)
        self._problem = damage_of(_entries(part, begin + good, stop), verified.problem)
        self._past, self._handle = self._handle, None  # nothing more is read here
        self._entry += good
        return view[: sum(run.lengths[:good])] if good else None

    def _advance(self, part: Stored | Held, entry: int) -> None:
        self._entry = entry
        if entry == len(part.offsets) - 1:
            self._part, self._entry = self._part + 1, 0
            self._past, self._handle = self._handle, None


def _entries(part: Stored, begin: int, stop: int) -> Run:
    run = part.run
    if begin == 0 and stop == len(run.lengths):
        return run
    return part_of(run, begin, stop, (part.offsets[begin], part.offsets[begin + 1]))


def piece_stop(run: Run, begin: int) -> int:
    """Behind the last of the entries that are read at once from `begin` on: about PIECE_BYTES, without a gap
    between them, and at least one."""
    positions, lengths = run.positions, run.lengths
    limit = positions[begin] + PIECE_BYTES
    stop = bisect_right(positions, limit, begin, min(len(positions), begin + PIECE_FRAMES))
    while stop > begin + 1 and positions[stop - 1] + lengths[stop - 1] > limit:
        stop -= 1
    stop = max(stop, begin + 1)
    if positions[stop - 1] + lengths[stop - 1] - positions[begin] != sum(lengths[begin:stop]):
        gaps = (at for at in range(begin + 1, stop) if positions[at] != positions[at - 1] + lengths[at - 1])
        stop = next(gaps)  # an unreadable stretch lies there
    return stop


def _joined(frames: list[Buffer], begin: int) -> tuple[Buffer, int]:
    """A long frame as it is, or some short ones as one; how many those are."""
    if len(frames[begin]) >= JOINED_BYTES:
        return frames[begin], 1
    taken: list[Buffer] = []
    size = 0
    for frame in islice(frames, begin, None):
        if len(frame) >= JOINED_BYTES or size >= PIECE_BYTES:
            break
        taken.append(frame)
        size += len(frame)
    return b"".join(taken), len(taken)


def _size(part: Stored | Held) -> int:
    return sum(part.run.lengths) if isinstance(part, Stored) else sum(map(len, part.frames))


def _leading(part: Stored | Held, count: int) -> Stored:
    """Its first entries."""
    assert isinstance(part, Stored), "what is in memory has no problem"
    return Stored(_entries(part, 0, count), part.offsets[: count + 1])
