"""The writer of one log: works off its queue on the disk, one thing at a time.

`written_index`: the last entry in the files. `stored_index`: how much of the log as planned they hold.
`synced_index`: how much of that is known to survive a power failure. A truncation lowers the last two when it
is asked for, not when it is done. Faults are sorted here. No space: the queued appends are refused, and the
log heals. A failed sync, or a write that failed for any other reason: this log is never written again.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto
from functools import partial

from shoal.format.batch import LogIndex, Offset
from shoal.segment_store.disk.disk import Buffer, Data, File
from shoal.segment_store.disk.open_files import Handle
from shoal.segment_store.errors import DiskFailed, DiskFull, LogClosed, StoreError, disk_fault, is_no_space
from shoal.segment_store.format.tail_record import TRAILER_BYTES, TailRecord, encode_trailer
from shoal.segment_store.log.index_writer import IndexWriter
from shoal.segment_store.log.preallocator import Preallocator
from shoal.segment_store.log.segment import Segment, SegmentFiles, write_zeros
from shoal.segment_store.log.spare_files import SpareFiles
from shoal.segment_store.log.write_queue import Append, Roll, Trim, Truncate, Work, take_group

logger = logging.getLogger(__name__)

COMPANY_BYTES = 32 * 2**10
"""A write of this size waits for a turn of the loop. Its time on the disk is long beside the turn, and
appends that arrive in between share its sync."""

JOINED_BYTES = 4 * 2**10
"""A frame as short as this is copied together with the trailer: one buffer is quicker than a list of them."""


class _State(Enum):
    """The work under way: one piece at a time."""

    IDLE = auto()
    WAITING = auto()  # for company, until the next turn of the loop
    WRITING = auto()  # a plain write, which no task awaits
    WORKING = auto()  # anything else, in a task


class Writer:
    """`roll_back(index)` is called after a fault: nothing behind `index` is, or will be, on the disk."""

    def __init__(
        self,
        files: SegmentFiles,
        active: Segment | None,
        last_index: LogIndex,
        roll_back: Callable[[LogIndex], None],
        spares: SpareFiles,
    ) -> None:
        self.written_index = last_index
        self.stored_index = last_index
        self.synced_index = last_index
        self.generation = 0  # counts truncations asked for
        self.failure: DiskFailed | None = None
        self.queued_bytes = 0
        self.writes = 0
        self.syncs = 0
        self._files = files
        self._roll_back = roll_back
        self._queue: deque[Work] = deque()
        self._refusing: DiskFull | None = None
        self._state = _State.IDLE
        self._task: asyncio.Task[None] | None = None  # while WORKING
        self._write_over: asyncio.Future[None] | None = None
        self.active = active
        self._handle: Handle | None = None
        self._is_held = False  # the handle is pinned; between writes it rests
        self._spares = spares
        self.is_closed = False
        self.index = IndexWriter(files, self)
        self.preallocator = Preallocator(self.rest)

    def check_open(self) -> None:
        """Raise LogClosed after close."""
        if self.is_closed:
            raise LogClosed(f"{self._files.directory} is closed")

    def check_writable(self) -> None:
        """Raise LogClosed after close, and DiskFailed once the disk has."""
        self.check_open()
        if self.failure is not None:
            raise DiskFailed(str(self.failure)) from self.failure

    def check(self) -> None:
        """Raise what an append would meet right now."""
        if self.is_closed or self.failure is not None:
            self.check_writable()
        if self._refusing is not None:
            raise DiskFull(str(self._refusing))

    def submit(self, work: Work) -> None:
        """Queue it, and begin with it when nothing is under way."""
        assert not self.is_closed
        if type(work) is Append:
            self.queued_bytes += work.length
        elif isinstance(work, Truncate):
            self.generation += 1
            self.synced_index = LogIndex(min(self.synced_index, work.from_index - 1))
            self.stored_index = LogIndex(min(self.stored_index, work.from_index - 1))
        self._queue.append(work)
        self._go_on()

    def _go_on(self) -> None:
        """Take up the queue, unless something is under way. A plain write needs no task, which would cost as
        much as the rest of an append. Work that needs preparation runs in a task."""
        if not self._queue or self._state is not _State.IDLE:
            return
        work = self._queue[0]
        if type(work) is Append and work.length >= COMPANY_BYTES and self._files.config.fsync:
            self._state = _State.WAITING
            asyncio.get_running_loop().call_soon(self._begin)
        elif not self._begin_write():
            self._work(None)

    def _begin(self) -> None:
        self._state = _State.IDLE
        if not self._begin_write():
            self._work(None)

    def _work(self, error: BaseException | None) -> None:
        self._state = _State.WORKING
        self._task = asyncio.get_running_loop().create_task(self._work_off(error))

    def _begin_write(self) -> bool:
        """The common case: the active segment's file is open, clean, and has blocks for the frames. False:
        nothing was begun."""
        first = self._queue[0]
        if type(first) is not Append:
            return False
        segment = first.segment
        if segment is not self.active or self.failure is not None:
            return False
        if segment.soiled_end or not (self._is_held or self._hold()):
            return False
        assert self._handle is not None
        group = take_group(self._queue, self._files.config.max_write_bytes)
        last = group[-1]
        if last.position + last.length + TRAILER_BYTES > segment.allocated:
            self._queue.extendleft(reversed(group))
            return False
        file, position, buffers = self._handle.file, group[0].position, self._buffers(group)
        ended = partial(self._write_ended, group)
        if self._files.config.fsync:
            file.begin_write_and_sync(position, buffers, ended)
        elif file.write_at_once(position, buffers):
            asyncio.get_running_loop().call_soon(ended, None)  # the answer never comes within the question
        else:
            segment.soiled_end = 0  # the same bytes go there next, by the longer way
            self._queue.extendleft(reversed(group))
            return False
        self._state = _State.WRITING
        if last.length >= COMPANY_BYTES:
            self.preallocator.reserve_after(file, last)
        return True

    def _write_ended(self, group: list[Append], error: BaseException | None) -> None:
        self._state = _State.IDLE
        if error is not None:
            self._queue.extendleft(reversed(group))  # the fault is answered to them first
            self._work(error)
        else:
            self.syncs += self._files.config.fsync
            self._written(group)
            if self._queue:
                self._go_on()  # before the answers: appends that follow them share the write after the next
            _answer(group, None)
            self.rest()
        if self._write_over is not None:
            self._write_over.set_result(None)
            self._write_over = None

    async def _work_off(self, error: BaseException | None) -> None:
        try:
            if isinstance(error, OSError):
                await self._fault(error)
            elif error is not None:
                raise error
            while self._queue:
                if self.failure is not None:  # the index's task met it
                    self._fail(self.failure)
                    return
                try:
                    await self._next()
                except OSError as error:
                    await self._fault(error)
        except BaseException as error:
            # A bug or the end of the loop: no caller may wait for ever, nothing may be acknowledged any more.
            self._fail(DiskFailed(f"writing stopped: {error!r}"))
            raise
        finally:
            self._task = None
            self._state = _State.IDLE
            self.rest()

    async def _next(self) -> None:
        work = self._queue[0]
        if isinstance(work, Append):
            group = take_group(self._queue, self._files.config.max_write_bytes)
            try:
                await self._write(group)
            except OSError:
                self._queue.extendleft(reversed(group))  # the fault is answered to them first
                raise
            return
        await self.preallocator.wait()
        if isinstance(work, Roll):
            await self._roll(work)
        elif isinstance(work, Trim):
            await self._trim(work)
        else:
            await self._truncate(work)
        # Off the queue only when done, so that a fault finds it there.
        assert self._queue[0] is work
        self._queue.popleft()
        _answer([work], None)

    async def _file(self, segment: Segment) -> File:
        """The active segment's file, pinned until nothing is under way or another becomes active."""
        if self.active is not segment or not self._hold():
            await self._let_go()
            await self._take(segment, create=False)
        assert self._handle is not None
        return self._handle.file

    async def _take(self, segment: Segment, *, create: bool) -> None:
        self._handle = await self._files.open_files.acquire(segment.path, create=create)
        self._is_held = True
        self.active = segment

    def _hold(self) -> bool:
        """Pin the active file if it is open still."""
        if self._handle is not None and not self._is_held:
            self._is_held = self._files.open_files.wake(self._handle)
            if not self._is_held:
                self._handle = None
        return self._handle is not None

    def rest(self) -> None:
        """With nothing under way and nothing unsynced, the file may be closed to make room for others."""
        if not self._files.config.fsync and self.synced_index < self.stored_index:
            return
        idle = self._state is _State.IDLE and not self._queue and not self.preallocator.is_busy
        held = self._handle if self._is_held and self.failure is None else None
        if idle and held is not None and self.active is not None and not self.active.soiled_end:
            self._is_held = not self._files.open_files.rest(held)

    async def _let_go(self) -> None:
        handle, self._handle = self._handle, None
        held, self._is_held = self._is_held, False
        if handle is not None and held:
            await self._files.open_files.release(handle)

    async def _write(self, group: list[Append]) -> None:
        """One write of all the frames, the marker and the tail record, and one sync."""
        segment, last = group[0].segment, group[-1]
        end = last.position + last.length
        file = await self._file(segment)
        if end + TRAILER_BYTES > segment.allocated:
            await segment.reserve(file, end + TRAILER_BYTES)
        if segment.soiled_end:
            # A frame that a refused write left behind the next, other write must not join the log.
            await write_zeros(file, segment.written_end, segment.soiled_end)
            await file.sync()
            segment.soiled_end = 0
        buffers = self._buffers(group)
        if self._files.config.fsync:
            await file.write_and_sync(group[0].position, buffers)
            self.syncs += 1
        else:
            await file.write(group[0].position, buffers)
        self._written(group)
        _answer(group, None)

    def _buffers(self, group: list[Append]) -> Data:
        """The buffers of a write; its place is soiled until it has succeeded."""
        segment, last = group[0].segment, group[-1]
        end = last.position + last.length
        stamp = last.frames[-1].stamp
        buffers: list[Buffer]
        if len(group) == 1 and len(last.frames) == 1:
            buffers = [last.frames[0].data]
        else:
            buffers = [frame.data for work in group for frame in work.frames]
        # Without a sync for each, the disk may hold any mixture of several writes there.
        written = end - group[0].position if segment.is_over_zeros and self._files.config.fsync else 0
        end_offset = Offset(stamp.base_offset + stamp.record_count)
        record = TailRecord(stamp.index, stamp.term, end, self.synced_index, end_offset, written)
        buffers.append(encode_trailer(record, self._files.identity))
        segment.soiled_end = end + TRAILER_BYTES
        if end + TRAILER_BYTES > segment.prewritten_end:
            buffers += segment.zeros_after(end + TRAILER_BYTES, end - group[0].position)
        elif end - group[0].position <= JOINED_BYTES:
            return b"".join(buffers)
        return buffers

    def _written(self, group: list[Append]) -> None:
        """A write has succeeded, with its sync."""
        segment, last = group[0].segment, group[-1]
        end = last.position + last.length
        length = end - group[0].position
        segment.soiled_end = 0
        segment.written_end = end
        self.writes += 1
        self.queued_bytes -= length
        self.written_index = kept = last.frames[-1].stamp.index
        if last.generation != self.generation:
            # A truncation that is queued behind takes back what it removes, and others may be planned there
            # already.
            kept = self._kept_of(kept)
        if kept > self.stored_index:
            self.stored_index = kept
        if self._files.config.fsync:
            self.synced_index = self.stored_index
        self.index.wrote(length)

    def _kept_of(self, index: LogIndex) -> LogIndex:
        for work in self._queue:
            if isinstance(work, Truncate):
                index = LogIndex(min(index, work.from_index - 1))
        return index

    async def sync_active(self) -> None:
        """Without fsync per append, what was written becomes known synced here."""
        if self._files.config.fsync or self.active is None:
            return
        written = self.written_index
        async with self._files.open_files.pin(self.active.path) as file:
            await file.sync()
        self.syncs += 1
        # Entries written meanwhile are not covered, entries truncated meanwhile do not count.
        self.synced_index = LogIndex(max(self.synced_index, min(written, self.stored_index)))

    async def _roll(self, work: Roll) -> None:
        """Seal and sync the old segment with its index, then the new one's header and directory entry."""
        previous, segment = work.previous, work.segment
        if previous is not None:
            self.active = self.active or previous
            await (
                self.sync_active()
            )  # also what a queued truncation will remove: a gap before N + 1 is damage
            async with self.index.lock:
                await previous.write_index(LogIndex(min(self.synced_index, previous.last_index)))
            self._spares.settle(previous)
        await self._let_go()
        recycled = await self._spares.reuse(segment)
        await self._take(segment, create=not recycled)
        if not recycled:
            assert self._handle is not None
            await segment.create(self._handle.file)
        await self._files.disk.sync_directory(self._files.directory)
        if previous is not None:
            self.index.seal(previous)

    async def _truncate(self, work: Truncate) -> None:
        """Safety 8, in an order in which every crash leaves a log that recovery takes for a shorter or an
        unchanged one: whole segments newest first, then the index, then the tail record, then the
        frames."""
        async with self.index.lock:
            self.index.unseal(work.kept)
            for segment in reversed(work.removed):
                await self._remove(segment)
            if work.kept is not None and self.written_index >= work.from_index:
                await self._zero_suffix(work.kept, work.from_index, work)
            self.written_index = LogIndex(min(self.written_index, work.from_index - 1))

    async def _zero_suffix(self, segment: Segment, from_index: LogIndex, work: Truncate) -> None:
        start, end = work.cut_position, max(segment.written_end, segment.soiled_end - TRAILER_BYTES)
        if start >= end:
            return  # the segment ended right there: only later segments went
        last = LogIndex(from_index - 1)
        if segment.indexed_index >= from_index:
            # Later truncations may have cut the plan further, and others planned there: only the entries that
            # all of them keep are true.
            try:
                await segment.replace_index(self._kept_of(last))
            except OSError as error:
                if not is_no_space(error):
                    raise
                await segment.remove_index()  # a log without an index is slow to open, never wrong
        file = await self._file(segment)
        # The tail record knows of the entries that go: as long as it stands, a hole would look like damage.
        await file.write_and_sync(segment.written_end, bytes(TRAILER_BYTES))
        await write_zeros(file, start + TRAILER_BYTES, end)
        synced = last if self._files.config.fsync else LogIndex(0)
        record = TailRecord(last, work.last_term, start, synced, work.end_offset)
        await file.write_and_sync(start, encode_trailer(record, self._files.identity))
        segment.written_end = start
        segment.soiled_end = 0

    async def _trim(self, work: Trim) -> None:
        """The oldest first, and each durably before the next: a crash leaves a shorter log, never a gap. The
        segments that stay are durable before that: they alone hold the log's numbers."""
        await self.sync_active()
        for segment in work.removed:
            if not await self._spares.retire(segment, work.kept):
                await self._remove(segment)

    async def _fault(self, error: OSError) -> None:
        refusal = disk_fault(error, self._files.directory)
        if isinstance(refusal, DiskFailed):
            self._fail(refusal)
            return
        self._refusing = refusal
        logger.debug("refusing appends: %s", refusal)  # its owner says so, by the name of the partition
        refused: list[Append] = []
        try:
            await self.preallocator.wait()
            await self._spares.drop()
            await self._refuse_queued(refused)
            # A segment that refused its first frame goes: another leader may not roll there.
            if self.active is not None and self.active.first_index > self.written_index:
                await self._remove(self.active)
        except OSError as second:
            self._fail(DiskFailed(f"{self._files.directory}: {second}, while the disk was full ({error})"))
        else:
            self._roll_back(self.written_index)
            self.stored_index = self.written_index
        finally:
            self._refusing = None
        _answer(refused, DiskFull(str(refusal)))  # only now: the callers may offer the same frames again

    async def _refuse_queued(self, refused: list[Append]) -> None:
        """Take everything off the queue: appends in vain, truncations done (they need no space)."""
        while self._queue:
            work = self._queue[0]
            if isinstance(work, Append):
                self.queued_bytes -= work.length
                refused.append(work)
            elif isinstance(work, Roll):
                await self._remove(work.segment)
            else:
                await (self._trim(work) if isinstance(work, Trim) else self._truncate(work))
                _answer([work], None)
            self._queue.popleft()

    async def _remove(self, segment: Segment) -> None:
        if self.active is segment:
            await self._let_go()
            self.active = None
        self.index.unseal(segment)
        self._spares.settle(segment)
        await segment.remove()
        await self._files.disk.sync_directory(self._files.directory)

    def index_failed(self, failure: DiskFailed) -> None:
        """No append is accepted any more; what is queued is told when its turn comes."""
        self.failure = self.failure or failure
        logger.error("refusing appends until the log is opened again: %s", self.failure)

    def _fail(self, failure: DiskFailed) -> None:
        """Nothing is written any more; all waiting callers are told."""
        if self.failure is None:
            self.failure = failure
            logger.error("refusing appends until the log is opened again: %s", failure)
        waiting = list(self._queue)
        self._queue.clear()
        self.queued_bytes = 0
        self._roll_back(self.written_index)
        _answer(waiting, DiskFailed(str(failure)))

    async def drain(self) -> None:
        """Return when nothing is queued or under way."""
        while self._state is not _State.IDLE or self.preallocator.is_busy:
            if self.preallocator.is_busy:
                await self.preallocator.wait()
            elif self._task is not None:
                await asyncio.wait([self._task])
            elif self._state is _State.WAITING:
                await asyncio.sleep(0)
            else:
                self._write_over = self._write_over or asyncio.get_running_loop().create_future()
                await asyncio.wait([self._write_over])

    async def close(self, *, flush: bool) -> None:
        """Refuse new work, finish the queue, and with `flush` leave the index complete, so that the next
        opening knows everything to be synced. Where that last step fails, the opening only reads more."""
        if self.is_closed:
            return
        self.is_closed = True
        await self.drain()
        await self.index.stop()
        try:
            if flush and self.failure is None:
                await self.index.write()
                await self.index.release_sealed()
        except OSError as error:
            if not is_no_space(error):
                self._fail(DiskFailed(f"{self._files.directory}: {error}"))
        finally:
            await self._let_go()
            self._spares.close()
            if self.active is not None:
                self._spares.settle(self.active)
            self._files.shared.lending.close(self._files.directory)
            await self._files.open_files.close(self._files.directory)


def _answer(works: Sequence[Work], error: StoreError | None) -> None:
    for work in works:
        if work.answer is not None:
            work.answer(error)
