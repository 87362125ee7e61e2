"""Stored frames out of segment files: bytes read, each frame verified, and found to be the one the index
names.

What the page cache has is taken in the call itself. A long read is cut into pieces, and another thread copies
them one by one while the event loop's checks those that are there, and copies one itself when none is: a
copy holds no interpreter lock, so that two cores share the work, and on a busy machine the loop's thread
does it all by itself. Knows segments and files; which entries are wanted, and what their absence means, is
log.py's.
"""

import asyncio
from array import array
from bisect import bisect_right
from collections import deque
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa

from shoal.format.batch import BatchError, LogIdentity, LogIndex, is_frame, view_frame
from shoal.segment_store.disk.disk import File, Helper, ReadInto
from shoal.segment_store.errors import Damaged
from shoal.segment_store.format.recovery import GUESSED_BYTES
from shoal.segment_store.log.segment import Segment, SegmentFiles

SHARED_READ_BYTES = 2 * 2**20
"""Below this, telling another thread costs more than it saves."""
AWAKE_TURNS = 16  # of the loop, 5 us each if it has nothing else to do: being woken takes as long
SMALL_BUFFER_BYTES = 16 * 2**10  # clearing so few costs less than asking Arrow


class Run(NamedTuple):
    """Adjoining entries of one segment from `first_index` on, and where they lie: positions and lengths in
    bytes, copied from the index, which may change while the run is being read. `offsets`: the first entry's
    first, and the one behind its last; `start` and `length`: of the whole, in bytes."""

    segment: Segment
    first_index: LogIndex
    offsets: tuple[int, int]
    positions: "array[int]"
    lengths: "array[int]"
    start: int
    length: int


class Verified(NamedTuple):
    """The leading frames of a run that are good, whole and in place, and why the next is not (None: all
    are)."""

    frames: list[memoryview]
    problem: str | None


def next_run(segment: Segment, first_index: LogIndex, last_index: LogIndex, max_bytes: int) -> Run:
    """Entries from `first_index` on, at most `max_bytes` of them but at least one, none behind `last_index`
    or the segment's end. Raises IndexReleased."""
    positions, lengths = segment.index.places(first_index, last_index, max_bytes)
    start = positions[0]
    length = positions[-1] + lengths[-1] - start
    offsets = segment.index.offsets_of(first_index)
    return Run(segment, first_index, offsets, positions, lengths, start, length)


def buffer_for(run: Run) -> memoryview:
    if run.length <= SMALL_BUFFER_BYTES:
        return memoryview(bytearray(run.length))
    # Arrow's allocator neither clears the memory nor gives it back to the kernel each time: zeros and page
    # faults would cost as much as the copy from the page cache.
    return memoryview(pa.allocate_buffer(run.length)).cast("B")


def verify_run(run: Run, view: memoryview, identity: LogIdentity) -> Verified:
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
    """What is wrong with what lies there, which is not the frame that belongs there."""
    try:
        stamp, data = view_frame(view, position, identity)
    except BatchError as error:
        return str(error)
    return f"entry {stamp.index} of {len(data)} bytes lies there"


def read_at_once(files: SegmentFiles, run: Run) -> Verified | None:
    """The run when its file is open and the page cache holds it all; None when it has to be waited for."""
    file = files.open_files.open_file(run.segment.path)
    if file is None:
        return None
    buffer = buffer_for(run)
    if file.read_resident(run.start, buffer) < run.length:
        return None
    return verify_run(run, buffer.toreadonly(), files.identity)


async def read_run(files: SegmentFiles, run: Run) -> Verified:
    """One run, read as one; a failing disk is a problem of its first frame."""
    if run.length >= SHARED_READ_BYTES and len(run.positions) > 1:
        return await _read_shared(files, run)
    found = read_at_once(files, run)
    if found is not None:
        return found
    try:
        async with files.open_files.pin(run.segment.path) as file:
            return await _read_piece(files, file, run)
    except OSError as error:
        return Verified([], f"read failed: {error}")


async def _read_piece(files: SegmentFiles, file: File, run: Run) -> Verified:
    buffer = buffer_for(run)
    filled = await file.read_into(run.start, buffer)
    return verify_run(run, buffer[:filled].toreadonly(), files.identity)


async def _read_shared(files: SegmentFiles, run: Run) -> Verified:
    try:
        async with files.open_files.pin(run.segment.path) as file:
            shared = _SharedRead(run, files.config.read_chunk_bytes, files.identity)
            helper = file.share(shared.help)
            try:
                return await shared.work(file, helper)
            finally:
                shared.waiting.clear()  # the helper takes no further piece; the file stays open for its last
    except OSError as error:
        return Verified([], f"read failed: {error}")


class _SharedRead:
    """Pieces of one run. The other thread copies them from the second on, the loop's the first, and then the
    last of those left whenever none waits to be checked."""

    def __init__(self, run: Run, piece_bytes: int, identity: LogIdentity) -> None:
        self._pieces = _pieces(run, piece_bytes)
        self.waiting = deque(range(1, len(self._pieces)))
        self._identity = identity
        # Made here: what the other thread does between two copies, this one may have to wait for.
        self._buffers = [buffer_for(piece) for piece in self._pieces]
        self._copied: deque[tuple[int, int | OSError]] = deque()  # piece, bytes there or why there are none

    def help(self, read_into: ReadInto) -> None:
        """The other thread's part: copy what is left, until nothing is."""
        while True:
            try:
                number = self.waiting.popleft()
            except IndexError:
                return
            try:
                self._copied.append((number, read_into(self._pieces[number].start, self._buffers[number])))
            except OSError as error:
                self._copied.append((number, error))

    async def work(self, file: File, helper: Helper | None) -> Verified:
        """The pieces' frames in their order, up to the first problem."""
        found: list[Verified | None] = [None] * len(self._pieces)
        found[0] = self._check(*await self._copy(file, 0))
        for _ in range(1, len(found)):
            number, filled = await self._next(file, helper)
            found[number] = self._check(number, filled)
        frames: list[memoryview] = []
        for verified in found:
            assert verified is not None, "a piece was left"
            frames += verified.frames
            if verified.problem is not None:
                return Verified(frames, verified.problem)
        return Verified(frames, None)

    async def _next(self, file: File, helper: Helper | None) -> tuple[int, int | OSError]:
        """A piece that is there: copied by the helper, or else now. Others get a turn for each."""
        if not self._copied:
            try:
                return await self._copy(file, self.waiting.pop())
            except IndexError:
                assert helper is not None, "only a helper takes pieces away"
                await self._wait(helper)
        else:
            await asyncio.sleep(0)
        return self._copied.popleft()

    async def _wait(self, helper: Helper) -> None:
        """Until the helper, which is at work on the last piece, has copied it."""
        for _ in range(AWAKE_TURNS):
            await asyncio.sleep(0)
            if self._copied:
                return
        await asyncio.wrap_future(helper)

    async def _copy(self, file: File, number: int) -> tuple[int, int | OSError]:
        try:
            return number, await file.read_into(self._pieces[number].start, self._buffers[number])
        except OSError as error:
            return number, error

    def _check(self, number: int, filled: int | OSError) -> Verified:
        if isinstance(filled, OSError):
            return Verified([], f"read failed: {filled}")
        view = self._buffers[number][:filled].toreadonly()
        return verify_run(self._pieces[number], view, self._identity)


def _pieces(run: Run, piece_bytes: int) -> list[Run]:
    """The run in equal parts of about `piece_bytes`. Each has a frame at least, so that there may be fewer
    than planned."""
    parts = max(1, round(run.length / piece_bytes))
    bounds = [0]
    for part in range(1, parts):
        stop = bisect_right(run.positions, run.start + run.length * part // parts, bounds[-1])
        if bounds[-1] < stop < len(run.positions):
            bounds.append(stop)
    bounds.append(len(run.positions))
    return [part_of(run, begin, stop, run.offsets) for begin, stop in pairwise(bounds)]


def part_of(run: Run, begin: int, stop: int, offsets: tuple[int, int]) -> Run:
    """Some of its entries, at least one."""
    positions, lengths = run.positions[begin:stop], run.lengths[begin:stop]
    start = positions[0]
    length = positions[-1] + lengths[-1] - start
    return Run(run.segment, LogIndex(run.first_index + begin), offsets, positions, lengths, start, length)


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


def damage_of(run: Run, problem: str) -> Damaged:
    """What to raise when the first frame of a run does not verify."""
    index, length = run.first_index, run.lengths[0]
    return Damaged(run.segment.path, run.start, problem, index, index, run.offsets, length)
