"""One partition's log: append with group commit, truncate, read. The only door to this package's segments.

Two ends: the planned one (`last_index`, `end_offset`), which advances when append is called so that the
caller may stamp the next frame at once, and the one on the disk (`synced_index`). One writer at a time
works off the queue; what is queued while it waits for the disk goes into its next write and sync together.

Knows segments and disks. Must not know Raft, HTTP or clocks: times are arguments.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any

import pyarrow as pa

from shoal.format.batch import Flag, Frame, LogIdentity, LogIndex, Offset, Term, is_whole, stamp_of
from shoal.segment_store.config import LogConfig
from shoal.segment_store.disk.disk import Disk, settle
from shoal.segment_store.errors import (
    ChainBroken,
    Damaged,
    OffsetOutOfRange,
    Overloaded,
    StoreError,
    WrongLength,
    disk_fault,
)
from shoal.segment_store.format.index import Entry, IndexReleased
from shoal.segment_store.format.layout import SegmentName
from shoal.segment_store.format.recovery import Chain, chain_problem
from shoal.segment_store.format.tail_record import TRAILER_BYTES
from shoal.segment_store.log.chunked_read import Branch, HeldFrames, Part, StoredPieces, read_parts
from shoal.segment_store.log.index_cache import IndexCache, release_old
from shoal.segment_store.log.opener import Recovered, recover
from shoal.segment_store.log.run_reader import add_damage, damage_of, read_at_once, read_run, run_of
from shoal.segment_store.log.segment import Segment, SegmentFiles, SegmentSpan
from shoal.segment_store.log.shared import SharedFiles
from shoal.segment_store.log.spare_files import SpareFiles
from shoal.segment_store.log.tail_cache import TailCache
from shoal.segment_store.log.write_queue import Answer, Append, Roll, Trim, Truncate
from shoal.segment_store.log.writer import Writer

_run_index = itemgetter(0)
_segment_index = attrgetter("name.first_index")
_segment_offset = attrgetter("name.first_offset")
MAX_QUEUED_BYTES = 256 * 2**20  # accepted and not yet written; Raft's own bounds lie far below
_EMPTY = Chain(LogIndex(1), Offset(0), Term(0))


class PartitionLog:
    """See the module. One event loop; every coroutine may be awaited concurrently with every other."""

    def __init__(self, files: SegmentFiles, recovered: Recovered, start: Chain, spares: SpareFiles) -> None:
        """Use PartitionLog.open."""
        self._files = files
        self._start = start
        self._segments = recovered.segments
        self.damage = tuple(recovered.damage)  # found when the log was opened
        self.recovery_notes, self.cleared_behind = tuple(recovered.notes), recovered.cleared_behind
        self._runs = recovered.term_runs
        self._indexes = IndexCache(files.disk, files.config.max_open_indexes)
        self._chain = self._chain_at_end()
        self._cache = TailCache(files.config.tail_cache_bytes)
        self._frames_appended = 0
        for segment in self._segments[-1:]:
            segment.count_unused(max(0, segment.allocated - segment.planned_end))
        active = self._segments[-1] if self._segments else None
        self._writer = Writer(files, active, self.last_index, self._rewind, spares)

    def __repr__(self) -> str:
        numbers = (
            f"entries {self.first_index}..{self.last_index}, offsets {self.start_offset}..{self.end_offset}"
        )
        return f"PartitionLog({self._files.directory}, {numbers}, {len(self._segments)} segments)"

    @classmethod
    async def open(
        cls,
        disk: Disk,
        directory: str,
        identity: LogIdentity,
        schema: pa.Schema,
        config: LogConfig,
        start: Chain = _EMPTY,
        shared: SharedFiles | None = None,
    ) -> "PartitionLog":
        """Recover what the directory holds (safety 7 to 11), or start an empty log, whose first entry is
        `start`'s: a copy of a log whose head was trimmed does not begin with entry 1. `shared`: with which
        other logs it shares its bounds on open files and spare ones; None: with none.

        Raises Damaged when the log's numbers cannot be established, ForeignIdentity, WrongSchema, DiskFull,
        DiskFailed.
        Damage inside the log does not prevent opening: see `damage`, and reads around it work.
        """
        files = SegmentFiles(disk, directory, identity, schema, config, shared)
        spares = SpareFiles(files)
        try:
            recovered = await recover(files)
            await _take_over(files, spares, recovered)
            await files.open_files.close(directory)  # a thousand idle partitions hold no file open
            return cls(files, recovered, start, spares)
        except BaseException as error:
            spares.close()
            await files.open_files.close(directory)
            if isinstance(error, OSError):
                raise disk_fault(error, directory) from error
            raise

    @classmethod
    def begin(cls, files: SegmentFiles) -> "PartitionLog":
        """An empty log in a directory that was made for it: the disk is asked for something when the first
        entry comes."""
        return cls(files, Recovered(), _EMPTY, SpareFiles(files))

    # ---- what the log holds, as planned

    @property
    def first_index(self) -> LogIndex:
        """The first entry held; 1 when the log is empty."""
        return self._segments[0].name.first_index if self._segments else LogIndex(1)

    @property
    def last_index(self) -> LogIndex:
        """0 when the log is empty."""
        return LogIndex(self._chain.next_index - 1)

    @property
    def last_term(self) -> Term:
        return self._chain.previous_term

    @property
    def start_offset(self) -> Offset:
        return self._segments[0].name.first_offset if self._segments else Offset(0)

    @property
    def end_offset(self) -> Offset:
        """The offset the next record gets."""
        return self._chain.next_offset

    @property
    def synced_index(self) -> LogIndex:
        """Everything up to here survives a power failure."""
        return self._writer.synced_index

    @property
    def size_bytes(self) -> int:
        return sum(segment.planned_end for segment in self._segments)

    @property
    def generation(self) -> int:
        """Counts truncations: places looked up before the last one may be of an abandoned branch."""
        return self._writer.generation

    @property
    def is_open(self) -> bool:
        """Until close, or remove."""
        return not self._writer.is_closed

    def check_open(self) -> None:
        """Raise LogClosed after close."""
        self._writer.check_open()

    def term_runs(self) -> list[tuple[LogIndex, Term]]:
        """(first index of the run, term), ascending: Raft's view of the log."""
        return list(self._runs)

    def term_at(self, index: LogIndex) -> Term | None:
        """None for an entry the log does not hold."""
        if not self.first_index <= index <= self.last_index:
            return None
        return self._runs[bisect_right(self._runs, index, key=_run_index) - 1][1]

    def next_append_time_us(self, now_us: int) -> int:
        """The append time of the next frame: never before its predecessor's (safety 17)."""
        return max(self._chain.append_time_us, now_us)

    def set_segment_bytes(self, segment_bytes: int) -> None:
        """When the leader rolls from now on; segments that are there keep their size."""
        if segment_bytes != self._files.config.segment_bytes:
            self._files.config = replace(self._files.config, segment_bytes=segment_bytes)

    def should_roll(self, extra_bytes: int) -> bool:
        """Whether `extra_bytes` more would take the active segment past segment_bytes. Never for an empty
        one, nor while its first entry, a checkpoint, is more than half of it: a large one would be written
        again for each append."""
        if not self._segments:
            return False
        active = self._segments[-1]
        if active.planned_end + extra_bytes + TRAILER_BYTES <= self._files.config.segment_bytes:
            return False
        if not len(active.index):
            return False
        head = active.index.entry(active.first_index)
        return active.planned_end - head.end_position >= head.length

    async def find_offset(self, offset: Offset) -> LogIndex:
        """The entry whose [base, base + count) holds the offset. Raises OffsetOutOfRange, and Damaged for an
        index that can no longer be read."""
        while True:
            try:
                return self.index_for_offset(offset)
            except IndexReleased as released:
                await self.load_index(LogIndex(released.first_index))

    def index_for_offset(self, offset: Offset) -> LogIndex:
        """As find_offset, for offsets whose index is in memory; IndexReleased for others."""
        if not self.start_offset <= offset < self.end_offset:
            raise OffsetOutOfRange(offset, self.start_offset, self.end_offset)
        # Segments of control entries only share their first offset with their successor: the last one holds
        # records.
        place = bisect_right(self._segments, offset, key=_segment_offset) - 1
        return self._segments[place].index.index_for_offset(offset)

    async def find_time(self, time_us: int, from_offset: Offset) -> Offset:
        """Where the first entry begins, at or behind the one that holds `from_offset`, that may have a record
        of that time or later; the log's end when none has. Segments without one are passed over by one
        number, without their index. Raises OffsetOutOfRange, and Damaged as find_offset does."""
        index = await self.find_offset(from_offset)
        while index <= self.last_index:
            segment = self.segment_of(index)
            try:
                found = segment.index.first_reaching(time_us, index)
            except IndexReleased:
                await self.load_index(index)
                continue
            if found is not None:
                return segment.index.entry(found).base_offset
            index = LogIndex(segment.last_index + 1)
        return self.end_offset

    def first_index_of_segment(self, index: LogIndex) -> LogIndex:
        """Where the segment that holds the entry begins (its checkpoint). Raises OffsetOutOfRange."""
        return self.segment_of(index).first_index

    def spans(self) -> list[SegmentSpan]:
        """The segments as planned, oldest first."""
        ends = [segment.name.first_offset for segment in self._segments[1:]] + [self.end_offset]
        return [segment.span(end) for segment, end in zip(self._segments, ends, strict=False)]

    def entry(self, index: LogIndex) -> Entry:
        """Numbers and place of one entry. Raises OffsetOutOfRange, and IndexReleased when its index is not in
        memory."""
        return self.segment_of(index).index.entry(index)

    def segment_of(self, index: LogIndex) -> Segment:
        """The segment that holds the entry. Raises OffsetOutOfRange."""
        newest = self._segments[-1] if self._segments else None
        if newest is not None and newest.name.first_index <= index < self._chain.next_index:
            return newest  # where almost all reads are
        if not self.first_index <= index <= self.last_index:
            raise OffsetOutOfRange(index, self.first_index, self.last_index + 1)
        return self._segments[bisect_right(self._segments, index, key=_segment_index) - 1]

    def _chain_at_end(self) -> Chain:
        if not self._segments:
            return self._start
        last = self._segments[-1]
        return _EMPTY.after(last.index.entry(last.last_index))

    # ---- changing it

    def append(self, frames: Sequence[Frame]) -> asyncio.Future[None]:
        """Await it: returns once the frames are written and synced (written, with fsync off).

        The planned end advances in the call itself. Frames must continue the log; one flagged
        FIRST_OF_SEGMENT starts a segment. Awaiting raises ChainBroken, WrongLength, Overloaded, LogClosed
        (nothing was taken), DiskFull (the planned end went back: the same frames may be offered again),
        DiskFailed (for ever). Calls are carried out in their order, all those queued while a write is under
        way by one following write and sync.
        """
        return _awaited(self.begin_append, frames)

    def begin_append(self, frames: Sequence[Frame], answer: Answer) -> None:
        """As append, with a callback: `answer` is called once, with None or the error, and never before this
        returns (but for no frames). Raises the errors that say that nothing was taken."""
        self._writer.check()
        end = self._check_frames(frames)
        if len(frames) == 1 and not frames[0].stamp.flags and self._segments:
            self._plan_one(frames, end, answer)
        elif frames:
            self._plan(frames, end, answer)
        else:
            answer(None)

    def crowd(self) -> None:
        """See Disk: others wait for the event loop than those who wait for the next appends."""
        self._files.disk.crowd()

    def _check_frames(self, frames: Sequence[Frame]) -> Chain:
        """The chain behind the frames; nothing has changed yet."""
        chain = self._chain
        size = 0
        for stamp, data in frames:
            problem = chain_problem(chain, stamp.kind, stamp.index, stamp.base_offset, stamp.previous_term)
            if problem is None and stamp.term < chain.previous_term:
                problem = f"entry {stamp.index} has term {stamp.term} behind term {chain.previous_term}"
            if problem is not None:
                raise ChainBroken(f"{self._files.directory}: {problem}")
            if not is_whole(stamp, data):  # it would be there, and could not be read
                raise WrongLength(
                    f"{self._files.directory}: entry {stamp.index} cannot have {len(data)} bytes"
                )
            end = stamp.base_offset + stamp.record_count
            chain = Chain(LogIndex(stamp.index + 1), Offset(end), stamp.term, stamp.append_time_us)
            size += len(data)
        if self._writer.queued_bytes + size > MAX_QUEUED_BYTES and self._writer.queued_bytes:
            raise Overloaded(f"{self._files.directory}: {self._writer.queued_bytes} bytes wait for the disk")
        return chain

    def _plan(self, frames: Sequence[Frame], end: Chain, answer: Answer) -> None:
        start = position = 0
        for place, frame in enumerate(frames):
            if place > start and self._starts_segment(frame):
                self._submit(frames[start:place], position, None)
                start = place
            if place == start:
                if not self._segments or self._starts_segment(frame):
                    self._plan_segment(frame)
                position = self._segments[-1].planned_end
            self._segments[-1].plan(frame)
            stamp = frame.stamp
            if not self._runs or self._runs[-1][1] != stamp.term:
                self._runs.append((stamp.index, stamp.term))
            self._cache.put(frame)
        self._chain = end
        self._frames_appended += len(frames)
        self._submit(frames[start:], position, answer)
        self._cache.shrink(self._writer.stored_index)

    def _plan_one(self, frames: Sequence[Frame], end: Chain, answer: Answer) -> None:
        """As _plan, of one frame that starts no segment: the disk works while the plan is noted."""
        segment, frame = self._segments[-1], frames[0]
        writer = self._writer
        length = len(frame.data)
        writer.submit(Append(segment, frames, segment.planned_end, length, writer.generation, answer))
        segment.plan(frame)
        stamp = frame.stamp
        if not self._runs or self._runs[-1][1] != stamp.term:
            self._runs.append((stamp.index, stamp.term))
        self._cache.put(frame)
        self._chain = end
        self._frames_appended += 1
        self._cache.shrink(writer.stored_index)

    def _starts_segment(self, frame: Frame) -> bool:
        flags = frame.stamp.flags
        if not flags or not flags & Flag.FIRST_OF_SEGMENT or not self._segments:
            return False
        return len(self._segments[-1].index) > 0

    def _plan_segment(self, first: Frame) -> None:
        previous = self._segments[-1] if self._segments else None
        stamp = first.stamp
        segment = Segment(self._files, SegmentName(stamp.index, stamp.base_offset), stamp.previous_term)
        self._writer.submit(Roll(previous, segment))
        self._segments.append(segment)
        release_old(self._segments, self._files.config.index_bytes)

    def _submit(self, frames: Sequence[Frame], position: int, answer: Answer | None) -> None:
        length = sum([len(frame.data) for frame in frames])
        generation = self._writer.generation
        self._writer.submit(Append(self._segments[-1], frames, position, length, generation, answer))

    def truncate_suffix(self, from_index: LogIndex) -> asyncio.Future[None]:
        """Remove `from_index` and everything after it (safety 8). Await it: returns once that is durable;
        the planned end goes back in the call itself, and appends called before are carried out first.
        Nothing to do when the log ends before. Awaiting raises OffsetOutOfRange below the log's start,
        LogClosed, DiskFailed."""
        return _awaited(self._begin_truncation, from_index)

    def _begin_truncation(self, from_index: LogIndex, answer: Answer) -> None:
        self._writer.check_writable()
        if from_index < self.first_index or from_index == self.first_index > 1:
            # A log whose head was trimmed keeps its first entry: without it the next number is unknown.
            raise OffsetOutOfRange(from_index, self.first_index, self.last_index + 1)
        kept = [segment for segment in self._segments if segment.first_index < from_index]
        removed = self._segments[len(kept) :]
        last = kept[-1] if kept else None
        if last is not None and last.index.is_released:  # it would have to be appended to
            raise StoreError(f"{self._files.directory}: entry {from_index} lies too deep to be truncated")
        if last is not None:
            self._indexes.keep(last)
        self._count_nothing(removed)
        term = self.term_at(LogIndex(from_index - 1)) or Term(0)
        end_offset = self.end_offset if last is None else last.end_offset_before(from_index)
        position = 0 if last is None else last.position_of(from_index)
        self._writer.submit(Truncate(from_index, last, removed, term, end_offset, position, answer))
        self._rewind(LogIndex(from_index - 1))

    def _rewind(self, last_index: LogIndex) -> None:
        """Take the planned end back so that `last_index` is the last entry."""
        if last_index >= self.last_index:
            return
        from_index = LogIndex(last_index + 1)
        while self._segments and self._segments[-1].first_index >= from_index:
            self._segments.pop()
        if self._segments:
            self._segments[-1].cut(from_index)
        while self._runs and self._runs[-1][0] >= from_index:
            self._runs.pop()
        self._cache.cut(from_index)
        self._chain = self._chain_at_end()

    def trim(self, before_index: LogIndex) -> asyncio.Future[None]:
        """Drop the segments whose entries all lie before `before_index`; the newest always stays. Await it:
        returns once their files are gone, durably. Reads below the new first_index raise OffsetOutOfRange
        from this call on; those under way end. Awaiting raises LogClosed, DiskFailed.

        The caller holds a committed decision: what is trimmed is never asked for again (safety 17, 18).
        """
        return _awaited(self._begin_trim, before_index)

    def _begin_trim(self, before_index: LogIndex, answer: Answer) -> None:
        self._writer.check_writable()
        keep_from = max(0, bisect_right(self._segments, before_index, key=_segment_index) - 1)
        removed, self._segments = self._segments[:keep_from], self._segments[keep_from:]
        self._count_nothing(removed)
        if removed:
            first = self.first_index
            head = bisect_right(self._runs, first, key=_run_index) - 1
            self._runs[: head + 1] = [(first, self._runs[head][1])]
        # With nothing to remove, it waits for the work that was queued before.
        self._writer.submit(Trim(removed, len(self._segments), answer))

    # ---- reading it

    async def read(
        self, first_index: LogIndex, last_index: LogIndex, max_bytes: int, *, shared: bool = False
    ) -> list[Frame]:
        """Frames from `first_index` on, up to `last_index` and `max_bytes`, but at least one; verified.

        Frames accepted and not yet written are served too. `shared`: they are not copied. Then each holds the
        memory of all that was read with it, so the caller has to let go of them soon. Raises
        OffsetOutOfRange, LogClosed, and Damaged when the first frame does not verify; before a damaged one
        the answer ends.
        """
        while True:
            parts, branch = await self._look_up(first_index, last_index, max_bytes)
            try:
                found = await read_parts(self._files, parts, branch)
            except (Damaged, OffsetOutOfRange):
                if branch.is_same:
                    raise
            else:
                if shared:
                    return [
                        item if isinstance(item, Frame) else Frame(stamp_of(item), item) for item in found
                    ]
                # With their bytes copied out.
                return [
                    Frame(item.stamp, bytes(item.data))
                    if isinstance(item, Frame)
                    else Frame(stamp_of(item), bytes(item))
                    for item in found
                ]
            # Truncated meanwhile: the places that were looked up may hold another branch by now.
            last_index = LogIndex(min(last_index, self.last_index))

    def held_run(self, first_index: LogIndex, last_index: LogIndex, max_bytes: int) -> list[Frame]:
        """The frames from `first_index` on that are in memory, up to `last_index` and `max_bytes`, but at
        least one; none where the file has to be read."""
        return self._cache.run(first_index, last_index, max_bytes)

    async def _look_up(
        self, first_index: LogIndex, last_index: LogIndex, max_bytes: int
    ) -> tuple[list[Part], Branch]:
        """Where the entries lie, from `first_index` on, up to `last_index` and `max_bytes`, but at least one,
        and the branch that they are of. Raises OffsetOutOfRange, LogClosed, and Damaged for an index that can
        no longer be read."""
        while True:
            self._writer.check_open()
            self.check_range(first_index, last_index)
            branch = Branch(self, self._writer.generation)
            parts: list[Part] = []
            index, left = first_index, max_bytes
            while index <= last_index:
                try:
                    part = self._part_at(index, last_index, left)
                except IndexReleased:
                    try:
                        await self.load_index(index)
                        self.check_range(index, index)  # not trimmed meanwhile
                        if branch.is_same:
                            continue
                    except (Damaged, OffsetOutOfRange):
                        if branch.is_same and not parts:
                            raise
                    break  # the next read meets it first, or all is looked up again
                if parts and part.length > left:
                    return parts, branch
                parts.append(part)
                index, left = LogIndex(index + part.entries), left - part.length
            else:
                return parts, branch
            if branch.is_same:
                return parts, branch
            last_index = LogIndex(min(last_index, self.last_index))

    def _part_at(self, index: LogIndex, last_index: LogIndex, max_bytes: int) -> Part:
        """Entries that lie together, in memory or in one file, at least one. Raises OffsetOutOfRange, and
        IndexReleased for an index that is not in memory."""
        if (oldest := self._cache.first_index) is not None:
            if oldest <= index:
                frames = self._cache.run(index, last_index, max_bytes)
                return HeldFrames(frames, sum([len(data) for _, data in frames]))
            last_index = LogIndex(min(last_index, oldest - 1))
        segment = self.segment_of(index)
        return run_of(segment, index, segment.index.places(index, last_index, max_bytes))

    def check_range(self, first_index: LogIndex, last_index: LogIndex) -> None:
        """Raise OffsetOutOfRange unless the log holds these and what lies between them."""
        if not self.first_index <= first_index <= last_index <= self.last_index:
            wanted = first_index if not self.first_index <= first_index <= self.last_index else last_index
            raise OffsetOutOfRange(wanted, self.first_index, self.last_index + 1)

    async def pieces(self, first_index: LogIndex, last_index: LogIndex, max_bytes: int) -> StoredPieces:
        """The same entries as bytes, to be read whole or piece by piece: of entries that are never truncated.
        Raises as read, but Damaged only for an index that can no longer be read."""
        parts, branch = await self._look_up(first_index, last_index, max_bytes)
        return StoredPieces(self._files, parts, branch)

    async def load_index(self, index: LogIndex) -> None:
        """Have the index of the entry's segment in memory until the next await. Raises OffsetOutOfRange,
        Damaged."""
        segment = self.segment_of(index)
        try:
            await self._indexes.load(segment)
        except OSError as error:
            self.segment_of(index)  # trimmed meanwhile: that is the answer then
            raise Damaged(segment.index_path, 0, f"read failed: {error}") from error

    async def verify(self, first_index: LogIndex | None = None) -> list[Damaged]:
        """Read everything on the disk from `first_index` on, and report the entries that do not verify."""
        await self._writer.drain()
        found: list[Damaged] = []
        index = first_index or self.first_index
        last = LogIndex(min(self.last_index, self._writer.stored_index))
        while index <= last:
            self._writer.check_open()
            index = max(index, self.first_index)  # trimmed meanwhile
            self.check_range(index, last)
            segment = self.segment_of(index)
            try:
                places = segment.index.places(index, last, self._files.config.read_chunk_bytes)
            except IndexReleased:
                await self.load_index(index)
                continue
            run = run_of(segment, index, places)
            verified = read_at_once(self._files, run) or await read_run(self._files, run)
            index = LogIndex(index + len(verified.frames))
            if verified.problem is not None and not verified.frames and index >= self.first_index:
                add_damage(found, damage_of(run, verified.problem))
                index = LogIndex(index + 1)
        return found

    def standing_still(self) -> AbstractAsyncContextManager[None]:
        """While it is held nothing is truncated and no index file is written: each entry stays in its
        place."""
        return self._writer.index.lock

    # ---- ending it

    async def close(self) -> None:
        """Finish the queue, leave the index complete, let go of the files. Idempotent."""
        await self._writer.close(flush=True)
        self._count_nothing(self._segments)

    async def remove(self) -> None:
        """Close, and remove the directory with everything in it; durable when this returns."""
        await self._writer.close(flush=False)
        self._count_nothing(self._segments)
        await self._files.disk.remove_tree(self._files.directory)

    def _count_nothing(self, segments: Sequence[Segment]) -> None:
        """The segments leave this log: their reserved blocks no longer count."""
        for segment in segments:
            segment.count_unused(0)


async def _take_over(files: SegmentFiles, spares: SpareFiles, recovered: Recovered) -> None:
    """Keep spare files of the last run, within the bounds of this one; the others give their space back."""
    first = recovered.segments[0].first_index if recovered.segments else None
    refused = await spares.take_over(recovered.spares, first)
    for name in refused:
        await files.disk.unlink(files.path(name))
    if refused:
        await files.disk.sync_directory(files.directory)


def _awaited(begin: Callable[[Any, Answer], None], work: object) -> asyncio.Future[None]:
    """The outcome of a piece of work that is begun here, also where it is refused."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    try:
        begin(work, partial(settle, done))
    except StoreError as error:
        done.set_exception(error)
    return done
