"""A stretch of a log's entries, whose places were looked up: the frames are read from there, either whole
(`read_parts`) or piece by piece (`StoredPieces`).

A piece is read into one buffer, verified, and gone before the next is read: it is sent while the processor's
cache still has it. Its length is known before anything is read.

Law of this file: no byte of a frame is given out before its whole frame has verified: just now, or earlier
in the very memory that is lent (lending/). A segment's file is pinned while its pieces are being read;
between two pieces the caller may let go of it, and a read of a trimmed entry is refused then. This file knows
neither Raft nor sockets.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import pyarrow as pa

from shoal.format.batch import Frame, LogIndex, Offset, is_frame
from shoal.segment_store.disk.open_files import Handle
from shoal.segment_store.errors import Damaged, OffsetOutOfRange, StoreError
from shoal.segment_store.lending.lent_pages import PipedBytes
from shoal.segment_store.log.run_reader import StoredRun, damage_of, read_at_once, read_run, verify_run
from shoal.segment_store.log.segment import SegmentFiles

if TYPE_CHECKING:
    from shoal.segment_store.log.log import PartitionLog

PIECE_BYTES = 512 * 2**10
"""A quarter of what a core's own cache holds today: the socket's copy has to lie there too. A longer frame is
a piece of its own."""
PIECE_FRAMES = 128  # verifying so many small ones takes as long as a large piece
JOINED_BYTES = 64 * 2**10  # frames in memory below this are copied together: a write for each would cost more

Buffer: TypeAlias = bytes | memoryview


class HeldFrames(NamedTuple):
    """Adjoining entries that are in memory, verified when they came, and their bytes together."""

    frames: list[Frame]
    length: int

    @property
    def base_offset(self) -> Offset:
        return self.frames[0].stamp.base_offset

    @property
    def end_offset(self) -> Offset:
        stamp = self.frames[-1].stamp
        return Offset(stamp.base_offset + stamp.record_count)

    @property
    def entries(self) -> int:
        return len(self.frames)

    @property
    def size_bytes(self) -> int:
        return self.length


Part: TypeAlias = StoredRun | HeldFrames


class Branch:
    """The log as it was when places were looked up."""

    __slots__ = ("_generation", "_log")

    def __init__(self, log: PartitionLog, generation: int) -> None:
        self._log = log
        self._generation = generation

    @property
    def is_same(self) -> bool:
        """Whether nothing was truncated since, and the log is open."""
        return self._log.generation == self._generation and self._log.is_open

    def is_sealed(self, run: StoredRun) -> bool:
        """Whether nothing is appended to the run's segment any more."""
        return run.segment.last_index < self._log.last_index

    def check(self) -> None:
        """Raises LogClosed, and OffsetOutOfRange if the log was truncated since."""
        log = self._log
        if not self.is_same:
            log.check_open()
            # Committed entries stay where they are; only the caller knows that these are.
            raise OffsetOutOfRange(log.last_index + 1, log.first_index, log.last_index + 1)

    def check_there(self, run: StoredRun) -> None:
        """As check; raises OffsetOutOfRange also when the log no longer holds the run's segment."""
        self.check()
        log = self._log
        if log.segment_of(run.first_index) is not run.segment:
            raise OffsetOutOfRange(run.first_index, log.first_index, log.last_index + 1)


async def read_parts(files: SegmentFiles, parts: Sequence[Part], branch: Branch) -> list[Frame | memoryview]:
    """The frames, those from the disk in the buffers they were read into, their stamps undecoded; fewer where
    a later one does not verify or was trimmed meanwhile. Raises Damaged and OffsetOutOfRange for the first,
    and all that Branch.check raises."""
    frames: list[Frame | memoryview] = []
    for part in parts:
        if isinstance(part, HeldFrames):
            frames += part.frames
            continue
        begin, entries, run = 0, len(part.lengths), part
        while begin < entries:
            stop = entries
            if part.length > files.config.read_chunk_bytes:
                stop = _stop_within(part, begin, files.config.read_chunk_bytes, entries)
                run = part.part(begin, stop)
            found = read_at_once(files, run)
            if found is None:
                found = await read_run(files, run)
                branch.check()
            frames += found.frames
            if found.problem is not None:
                if not frames:
                    branch.check_there(run)  # trimmed meanwhile: that is the answer then
                    raise damage_of(run, found.problem)
                return frames
            begin = stop
    return frames


class StoredPieces:
    """See the module. One caller, one call at a time; `let_go` at the end."""

    def __init__(self, files: SegmentFiles, parts: Sequence[Part], branch: Branch) -> None:
        """`parts`: in order, together at least one entry."""
        self._files = files
        self._open_files = files.open_files
        self._lender = files.shared.lending.lender(files.open_files)
        self._identity = files.identity
        self._branch = branch
        self._parts = list(parts)
        self._part = self._entry = 0  # which come next
        self._given = 0  # bytes of the entry that comes next, lent already
        self._gapless = -1  # the last part that was found to have no gap
        self._handle: Handle | None = None  # of the part that comes next
        self._past: Handle | None = None  # of the one before, not let go of yet
        self._problem: Damaged | None = None  # of the entry that comes next
        self._first: Buffer | None = None  # a piece that was read before it was asked for
        self.size_bytes = sum(part.size_bytes for part in parts)
        longest = max((max(part.lengths) for part in parts if isinstance(part, StoredRun)), default=0)
        self._room = max(longest, min(PIECE_BYTES, self.size_bytes)) if longest else 0
        self._buffer = memoryview(b"")

    @property
    def base_offset(self) -> Offset:
        """Of the first entry."""
        return self._parts[0].base_offset

    @property
    def next_offset(self) -> Offset:
        """Behind the last entry."""
        return self._parts[-1].end_offset

    @property
    def held_bytes(self) -> int:
        """Memory that this takes until it is dropped: the longest frame, what the log's cache may hold."""
        return self._room + sum(part.size_bytes for part in self._parts if isinstance(part, HeldFrames))

    async def whole(self) -> list[Buffer]:
        """All frames, each on its own, in memory of their own, instead of the pieces; raises and ends early
        as read_parts does."""
        found = await read_parts(self._files, self._parts, self._branch)
        return [item.data if isinstance(item, Frame) else item for item in found]

    async def begin(self) -> None:
        """Have the first piece ready before anything is promised. Damage in it is met here, and ends the
        whole. Raises as `next`. Afterwards no file is pinned."""
        # Arrow's allocator: neither zeros nor, mostly, page faults.
        self._buffer = memoryview(pa.allocate_buffer(self._room)).cast("B")
        first = self._parts[0]
        try:
            if isinstance(first, HeldFrames) or not self._lender.has(first.segment.path, first.start):
                self._first = await self.next()
        finally:
            await self.let_go()
        if self._problem is not None:
            assert isinstance(first, StoredRun), "entries in memory have no problem"
            self._parts = [first.part(0, self._entry)]
            self._part, self._entry, self._problem = 1, 0, None
            self.size_bytes = self._parts[0].size_bytes

    async def prepare_lending(self) -> None:
        """Call it once before `lend`, where what it gives can be sent."""
        entry = self._entry
        for part in self._parts[self._part :]:
            if isinstance(part, StoredRun):
                path = part.segment.path
                if self._lender.knows(path, part.positions[entry]):
                    try:
                        self._branch.check_there(part)
                    except StoreError:
                        return  # the read of it meets it
                    await self._lender.prepare(path)
            entry = 0

    def lend(self) -> PipedBytes | None:
        """The next bytes, of any number of frames, uncopied, if they were verified before and their memory
        has stayed, and this takes no waiting; None where `at_once` or `next` has to be asked."""
        if self._first is not None or self._problem is not None or self._part == len(self._parts):
            return None
        run = self._parts[self._part]
        if not isinstance(run, StoredRun) or not self._branch.is_same:
            return None
        start = run.positions[self._entry] + self._given
        if not self._lender.knows(run.segment.path, start) or not self._holds_at_once(run):
            return None
        assert self._handle is not None, "it is held"
        if self._gapless != self._part and run.length != sum(run.lengths):
            return None
        self._gapless = self._part
        lent = self._lender.take(self._handle.file, start, run.start + run.length)
        if lent is not None:
            self._skip_to(run, start + len(lent))
        return lent

    def _holds_at_once(self, run: StoredRun) -> bool:
        """Pin the run's file, which is open, unless it is pinned."""
        if self._handle is not None:
            return True
        if self._past is not None and not self._open_files.rest(self._past):
            return False
        self._past = None
        try:
            self._branch.check_there(run)
        except StoreError:
            return False  # the read that follows meets it
        self._handle = self._open_files.acquire_open(run.segment.path)
        return self._handle is not None

    def _skip_to(self, run: StoredRun, position: int) -> None:
        """Everything before has been given."""
        if position == run.start + run.length:
            self._given = 0
            self._advance(run, len(run.lengths))
        else:
            self._entry = bisect_right(run.positions, position, self._entry) - 1
            self._given = position - run.positions[self._entry]

    def at_once(self) -> Buffer | None:
        """The next piece as `next` gives it, if a file is pinned, its bytes are in memory, and this turn of
        the loop has room for them; None where `next` has to be awaited, which also says what is wrong.

        Between two pieces a megabyte goes through the processor's cache and pushes this code out of it: each
        step here costs more than elsewhere.
        """
        handle = self._handle
        if handle is None or not self._branch.is_same:
            return None
        run, begin = self._parts[self._part], self._entry
        assert isinstance(run, StoredRun), "only those have a file"
        start, length, stop = run.positions[begin], run.lengths[begin], begin + 1
        if length < PIECE_BYTES:
            stop = piece_stop(run, begin)
            length = run.positions[stop - 1] + run.lengths[stop - 1] - start
        view = self._buffer[:length]
        self._watch(handle, run, start, start + length)
        if handle.file.read_resident(start, view) < length:
            return None
        return self._verified(run, begin, stop, view)

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
        if isinstance(part, StoredRun):
            return await self._read(part, self._entry)
        await asyncio.sleep(0)  # others get their turn, as they do from a disk
        piece, taken = _joined(part.frames, self._entry)
        self._advance(part, self._entry + taken)
        return piece

    async def let_go(self) -> None:
        """Unpin the file: an answer that waits for a slow reader must not keep a trimmed file. Idempotent."""
        pinned = self._past, self._handle
        self._past = self._handle = None
        self._lender.stop()
        for handle in pinned:
            if handle is not None:
                await self._open_files.release(handle)

    async def _read(self, run: StoredRun, begin: int) -> Buffer:
        stop = piece_stop(run, begin)
        length = run.positions[stop - 1] + run.lengths[stop - 1] - run.positions[begin]
        try:
            if self._handle is None:
                await self.let_go()
                self._branch.check_there(run)
                self._handle = await self._open_files.acquire(run.segment.path)
            start = run.positions[begin]
            self._watch(self._handle, run, start, start + length)
            filled = await self._handle.file.read_into(start, self._buffer[:length])
        except OSError as error:
            self._branch.check_there(run)  # trimmed meanwhile: that is the answer then
            raise damage_of(run.part(begin, stop), f"read failed: {error}") from error
        self._branch.check()
        piece = self._verified(run, begin, stop, self._buffer[:filled])
        if piece is None:
            assert self._problem is not None, "there is a reason"
            raise self._problem
        return piece

    def _verified(self, run: StoredRun, begin: int, stop: int, view: memoryview) -> Buffer | None:
        """The piece that was read there, if need be only what lies before damage; None if that is nothing."""
        is_one = stop == begin + 1 and len(view) == run.lengths[begin]
        if is_one and is_frame(view, 0, len(view), LogIndex(run.first_index + begin), self._identity):
            return self._all_of(run, stop, view)
        piece = run.part(begin, stop)
        verified = verify_run(piece, view, self._identity)
        if verified.problem is None:
            return self._all_of(run, stop, view)
        self._lender.damaged(run.segment.path)
        good = len(verified.frames)
        self._problem = damage_of(run.part(begin + good, stop), verified.problem)
        self._past, self._handle = self._handle, None  # nothing more is read here
        self._entry += good
        given, self._given = self._given, 0
        return view[given : sum(piece.lengths[:good])] if good else None

    def _all_of(self, run: StoredRun, stop: int, view: memoryview) -> memoryview:
        """The piece, which has verified, without the bytes of it that were lent before."""
        if self._handle is not None and not self._handle.stale:
            self._lender.verified(run.segment.path, len(view))
        else:
            self._lender.stop()
        self._advance(run, stop)
        if self._given:
            view, self._given = view[self._given :], 0
        return view

    def _watch(self, handle: Handle, run: StoredRun, start: int, stop: int) -> None:
        """Have the bytes that are about to be read lent later, if they verify."""
        if not handle.stale and self._branch.is_sealed(run):
            self._lender.watch(handle.file, start, stop, run.segment.frames_bytes)
        else:
            self._lender.stop()

    def _advance(self, part: Part, entry: int) -> None:
        self._entry = entry
        if entry == part.entries:
            self._part, self._entry = self._part + 1, 0
            if self._handle is not None:  # else the one before may be pinned still
                self._past, self._handle = self._handle, None


def piece_stop(run: StoredRun, begin: int) -> int:
    """Behind the last of the entries that are a piece from `begin` on: of about PIECE_BYTES, without a gap
    between them, and at least one."""
    positions, lengths = run.positions, run.lengths
    stop = _stop_within(run, begin, PIECE_BYTES, PIECE_FRAMES)
    if positions[stop - 1] + lengths[stop - 1] - positions[begin] != sum(lengths[begin:stop]):
        gaps = (at for at in range(begin + 1, stop) if positions[at] != positions[at - 1] + lengths[at - 1])
        stop = next(gaps)  # an unreadable stretch lies there
    return stop


def _stop_within(run: StoredRun, begin: int, max_bytes: int, max_frames: int) -> int:
    """Behind the last of the entries from `begin` on that fit the bounds, but at least one."""
    positions, lengths = run.positions, run.lengths
    limit = positions[begin] + max_bytes
    stop = bisect_right(positions, limit, begin, min(len(positions), begin + max_frames))
    while stop > begin + 1 and positions[stop - 1] + lengths[stop - 1] > limit:
        stop -= 1
    return max(stop, begin + 1)


def _joined(frames: list[Frame], begin: int) -> tuple[Buffer, int]:
    """A long frame as it is, or some short ones joined; and how many frames that takes."""
    if len(frames[begin].data) >= JOINED_BYTES:
        return frames[begin].data, 1
    taken: list[Buffer] = []
    size = 0
    for _, data in islice(frames, begin, None):
        if len(data) >= JOINED_BYTES or size >= PIECE_BYTES:
            break
        taken.append(data)
        size += len(data)
    return b"".join(taken), len(taken)
