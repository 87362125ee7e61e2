"""The disk through io_uring: the only file that knows liburing.

One ring per disk, one disk per event loop. Operations asked for in one turn of the loop are prepared
together and submitted by one system call (call_soon); the loop watches the ring's own file descriptor, which
is readable as long as there are completions. No call waits inside the ring: io_uring_wait_cqe would hold the
interpreter's lock. A small write with its sync goes past the ring while the disk is quick and idle
(inline_sync.py). Invariants:

- operations in flight never exceed the submission queue, and the completion queue is twice as long, so
  neither overflows; what does not fit waits in a bounded queue above, with the syncs that the schedule has
  let begin. Should the completion queue overflow
  all the same, the kernel keeps the rest, and it is fetched.
- a buffer handed to the kernel stays referenced by its operation until the completion has been read.
- a write with sync is a linked pair, a large one a longer chain (_prepare_chain). A short write breaks the
  link (the sync completes with ECANCELED): the rest is submitted again with its sync. A sync that fails is
  never tried again. One that is made in the call is judged by the same rules.

Directory operations, and what takes blocks from a file, have no gain from a ring and run on the threads of
ThreadDisk. Giving a file blocks has one: an append awaits it (lab/2026-11-23-store-rows-by-turns.md).
"""

import asyncio
import ctypes
import errno
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Sequence

import liburing as uring

from shoal.segment_store.disk.disk import (
    Buffer,
    Data,
    File,
    buffers_of,
    length_of,
    settle,
)
from shoal.segment_store.disk.fair_queue import SyncSchedule
from shoal.segment_store.disk.inline_sync import QuickSyncs
from shoal.segment_store.disk.ring_operation import Operation, OperationKind, advance, problem_of
from shoal.segment_store.disk.system_calls import (
    ALLOCATE_UNSUPPORTED,
    EARLY_WRITEBACK_BYTES,
    MAX_EARLY_PIECES,
    MAX_INTERRUPTIONS,
    TRANSIENT_ERRORS,
    early_piece_bytes,
    pieces_of,
    sync_fully,
    whole_pages,
)
from shoal.segment_store.disk.threads import SyncRequest, ThreadDisk, ThreadFile
from shoal.segment_store.errors import SyncFailed

logger = logging.getLogger(__name__)

RING_ENTRIES = 256  # operations in flight; 8 to 16 syncs saturate the disks we know, reads want more
MAX_WAITING_OPERATIONS = 4096  # above the ring; beyond it callers wait for room
DIRECTORY_THREADS = 4  # also for the blocks of files
_SUBMIT_RETRY_S = 0.001
_UNKNOWN_CALL = (errno.EINVAL, errno.ESPIPE, errno.EOPNOTSUPP, errno.ENOSYS)
"""How a file system says that it cannot begin to write back: it is not asked again."""
_PAIR_FLAGS = uring.IOSQE_IO_LINK | uring.IOSQE_CQE_SKIP_SUCCESS  # one wake-up for a pair, not two


class _View(ctypes.Structure):
    """Py_buffer (PEP 3118), of which PyBuffer_Release asks whose it is."""

    _fields_ = (("buf", ctypes.c_void_p), ("obj", ctypes.c_void_p), ("others", ctypes.c_byte * 128))


_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = [ctypes.POINTER(_View)]
_release_buffer.restype = None


def _keeps_buffers() -> bool:
    """Whether the binding's vector takes each memoryview's buffer and never gives it back, as in liburing
    2026.3.30: everything that was ever written would stay in memory."""
    buffer = memoryview(bytearray(1))
    before = sys.getrefcount(buffer)
    vector = uring.Iovec([buffer])
    del vector
    return sys.getrefcount(buffer) > before


_KEEPS_BUFFERS = _keeps_buffers()


def _vector(buffers: Sequence[Buffer]) -> uring.Iovec:
    """The buffers for the kernel. It keeps none of them: their operation does."""
    vector = uring.Iovec(buffers)
    if _KEEPS_BUFFERS:
        for buffer in buffers:
            if isinstance(buffer, memoryview):
                _release_buffer(ctypes.byref(_View(obj=id(buffer))))
    return vector


class RingDisk(ThreadDisk):
    """io_uring for the bytes of files. OSError from the constructor: the kernel or a container refuses it."""

    kind = "ring"

    def __init__(
        self, entries: int = RING_ENTRIES, schedule: SyncSchedule[SyncRequest] | None = None
    ) -> None:
        super().__init__(DIRECTORY_THREADS, schedule)
        self._loop = asyncio.get_running_loop()
        self._entries = entries
        self._ring = uring.Ring()
        uring.io_uring_queue_init(entries, self._ring, 0)
        if not self._ring.features & uring.IORING_FEAT_CQE_SKIP:
            uring.io_uring_queue_exit(self._ring)
            raise OSError(errno.ENOSYS, "this kernel's io_uring is older than Linux 5.17")
        self._completion = uring.Cqe()
        self._waiting: deque[Operation] = deque()
        self._room: deque[asyncio.Future[None]] = deque()
        self._idle: asyncio.Future[None] | None = None
        self._in_flight: dict[int, Operation] = {}
        self._quick_syncs = QuickSyncs()
        self._made_in_call: list[Operation] = []  # until their callers are told
        self._entries_in_flight = 0
        self._unsubmitted = 0
        self._next_number = 0
        self._flush_planned = False
        self._chains = entries >= 4 * MAX_EARLY_PIECES  # until one of them fails
        self._loop.add_reader(self._ring.ring_fd, self._reap)

    async def open(self, path: str, *, create: bool = False) -> File:
        return RingFile(self, path, await self.open_descriptor(path, create))

    async def perform(
        self, file: "RingFile", kind: OperationKind, offset: int, buffers: list[Buffer], length: int
    ) -> int:
        """Run one operation; the bytes left over (a read at the end of the file). OSError as the kernel
        gave it."""
        ended: asyncio.Future[None] = self._loop.create_future()

        def done(error: BaseException | None) -> None:
            file.finished()
            settle(ended, error)

        operation = Operation(file, file.descriptor(), kind, offset, buffers, length, done)
        file.active += 1
        try:
            while len(self._waiting) >= MAX_WAITING_OPERATIONS:
                room: asyncio.Future[None] = self._loop.create_future()
                self._room.append(room)
                await room
            if self.is_closed:
                raise OSError(errno.EBADF, "the disk is closed")
        except BaseException:
            file.finished()
            raise
        self.enqueue(operation)
        await ended
        return operation.result

    def enqueue(self, operation: Operation) -> None:
        """Submit it with all others of this turn of the loop."""
        self._waiting.append(operation)
        self._plan_flush()

    def begin(self, operation: Operation) -> None:
        """Submit a write with sync in this very call; with many logs at work that costs a system call each,
        with few it spares a turn of the loop."""
        if not self._entries_in_flight and not self._waiting:
            now_us = time.monotonic_ns() // 1_000
            if self._quick_syncs.begin(operation.length, now_us):
                self._write_in_call(operation, now_us)
                return
            operation.began_us = now_us
        else:
            self._quick_syncs.crowd()
        if (
            self._waiting
            or self._flush_planned
            or self._entries_in_flight + operation.entries > self._entries
        ):
            self._waiting.append(operation)
            if not self._flush_planned:
                self._submit_waiting()
            return
        self._prepare(operation)
        try:
            self._unsubmitted -= uring.io_uring_submit(self._ring) or 0
        except OSError:
            self._submit()  # knows what may be tried again
            return
        if self._unsubmitted:
            self._submit()

    def crowd(self) -> None:
        """See Disk."""
        self._quick_syncs.crowd()

    def _write_in_call(self, operation: Operation, began_us: int) -> None:
        """With the results that a pair's completions would bring."""
        try:
            operation.result = os.pwritev(operation.fd, operation.buffers, operation.offset)
            if operation.result == operation.length:
                sync_fully(operation.fd)
                operation.length = operation.result = 0
        except SyncFailed as error:
            operation.sync_result = -(error.errno or errno.EIO)
        except OSError as error:
            operation.result = -(error.errno or errno.EIO)
        self._quick_syncs.ended(began_us, time.monotonic_ns() // 1_000, in_call=True)
        if not operation.length or self._is_over(operation):
            if not self._made_in_call:
                self.call_soon(self._tell_of_calls)  # the answer never comes within the question
            self._made_in_call.append(operation)

    def _tell_of_calls(self) -> None:
        ended, self._made_in_call = self._made_in_call, []
        self._tell(ended)

    def cut(self, operation: Operation) -> None:
        """A large write with sync goes in pieces."""
        if self._chains:
            operation.cut(pieces_of(operation.buffers, early_piece_bytes(operation.length)))

    def _plan_flush(self) -> None:
        if not self._flush_planned:
            self._flush_planned = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Prepare what fits, submit it by one call, and read what completed at once."""
        self._flush_planned = False
        if not self.is_closed and self._submit_waiting() and uring.io_uring_cq_ready(self._ring):
            self._reap()

    def _submit_waiting(self) -> bool:
        """Prepare what fits and submit it by one call; whether the kernel took it all."""
        while self._waiting and self._entries_in_flight + self._waiting[0].entries <= self._entries:
            self._prepare(self._waiting.popleft())
        while self._room and len(self._waiting) < MAX_WAITING_OPERATIONS:
            room = self._room.popleft()
            if not room.done():
                room.set_result(None)
                break  # one caller a turn takes the room it was promised; each flush wakes the next
        return not self._unsubmitted or self._submit()

    def _submit(self) -> bool:
        try:
            self._unsubmitted -= uring.io_uring_submit(self._ring) or 0
        except OSError as error:
            if error.errno not in (*TRANSIENT_ERRORS, errno.EBUSY):
                raise
        if self._unsubmitted:
            # The kernel is short of memory or busy: the entries stay in the submission queue.
            self._flush_planned = True
            self._loop.call_later(_SUBMIT_RETRY_S, self._flush)
            return False
        return True

    def _prepare(self, operation: Operation) -> None:
        number = self._next_number
        self._next_number += 1
        self._in_flight[number] = operation
        self._entries_in_flight += operation.entries
        self._unsubmitted += operation.entries
        if operation.pieces:
            self._prepare_chain(operation, number)
            return
        kind = operation.kind
        if kind is OperationKind.WRITE_AND_SYNC:
            self._prepare_pair(operation, number)
            return
        entry = self._entry(number * 2)
        if kind is OperationKind.WRITE:
            operation.vectors = [_vector(operation.buffers)]
            uring.io_uring_prep_writev(entry, operation.fd, operation.vectors[0], operation.offset, 0)
        elif kind is OperationKind.READ:
            operation.vectors = [_vector(operation.buffers)]
            uring.io_uring_prep_readv(entry, operation.fd, operation.vectors[0], operation.offset, 0)
        elif kind is OperationKind.ALLOCATE:
            uring.io_uring_prep_fallocate(entry, operation.fd, 0, operation.offset, operation.length)
        else:
            uring.io_uring_prep_fsync(entry, operation.fd, uring.IORING_FSYNC_DATASYNC)
        uring.io_uring_sqe_set_data64(entry, number * 2)

    def _prepare_pair(self, operation: Operation, number: int) -> None:
        """A write and its sync, in as few steps as there are: every append waits for them."""
        ring, descriptor, buffers = self._ring, operation.fd, operation.buffers
        entry = uring.io_uring_get_sqe(ring)
        assert entry is not None
        if len(buffers) == 1 and type(only := buffers[0]) is bytes:  # needs no vector
            uring.io_uring_prep_write(entry, descriptor, only, operation.offset)
        else:
            vector = _vector(buffers)
            operation.vectors = [vector]
            uring.io_uring_prep_writev(entry, descriptor, vector, operation.offset, 0)
        uring.io_uring_sqe_set_data64(entry, number * 2)
        uring.io_uring_sqe_set_flags(entry, _PAIR_FLAGS)
        entry = uring.io_uring_get_sqe(ring)
        assert entry is not None
        uring.io_uring_prep_fsync(entry, descriptor, uring.IORING_FSYNC_DATASYNC)
        uring.io_uring_sqe_set_data64(entry, number * 2 + 1)

    def _prepare_sync(self, operation: Operation, number: int) -> None:
        entry = self._entry(number * 2 + 1)
        uring.io_uring_prep_fsync(entry, operation.fd, uring.IORING_FSYNC_DATASYNC)
        uring.io_uring_sqe_set_data64(entry, number * 2 + 1)

    def _prepare_chain(self, operation: Operation, number: int) -> None:
        """Write, begin to write back, write the next, ... and sync. Beginning to write back neither waits nor
        takes an error away from the sync. After any break of the chain before its sync, the
        operation goes again as a pair, from its start."""
        at = operation.offset
        operation.vectors = [_vector(piece) for piece in operation.pieces]
        last = len(operation.pieces) - 1
        for place, piece in enumerate(operation.pieces):
            entry = self._entry(number * 2)
            uring.io_uring_prep_writev(entry, operation.fd, operation.vectors[place], at, 0)
            uring.io_uring_sqe_set_flags(entry, _PAIR_FLAGS)
            uring.io_uring_sqe_set_data64(entry, number * 2)
            end = at + length_of(piece)
            start, length = whole_pages(at, end)
            if place < last and length:
                entry = self._entry(number * 2)
                flags = uring.SYNC_FILE_RANGE_WRITE
                uring.io_uring_prep_sync_file_range(entry, operation.fd, length, start, flags)
                uring.io_uring_sqe_set_flags(entry, _PAIR_FLAGS)
                uring.io_uring_sqe_set_data64(entry, number * 2)
            at = end
        self._prepare_sync(operation, number)

    def _entry(self, number: int) -> uring.SQE:
        entry = uring.io_uring_get_sqe(self._ring)
        assert entry is not None, f"submission queue full at {number}: more in flight than entries"
        return entry

    def _completions(self) -> list[tuple[int, int]]:
        """Every completion that is there: (number, result). What the kernel kept back because the queue was
        full comes once there is room and it is asked."""
        completions = self._queued_completions()
        while uring.io_uring_cq_has_overflow(self._ring):
            uring.io_uring_get_events(self._ring)
            more = self._queued_completions()
            if not more:
                break  # the ring is readable until the rest has come
            completions += more
        return completions

    def _queued_completions(self) -> list[tuple[int, int]]:
        """Only cqe[0] of the iterator is valid; indexing further does not wrap at the ring's end."""
        completions: list[tuple[int, int]] = []
        iterator = uring.io_uring_cqe_iter_init(self._ring)
        while uring.io_uring_cqe_iter_next(iterator, self._completion):
            completion = self._completion[0]
            try:
                result = completion.res
            except OSError as error:  # how this binding gives a negative result
                result = -(error.errno or errno.EIO)
            completions.append((completion.user_data, result))
        if completions:
            uring.io_uring_cq_advance(self._ring, len(completions))
        return completions

    def _reap(self) -> None:
        """Hand every completion to its operation. Each has exactly one: a pair either that of its sync, or,
        when the write was short or failed, that of its write alone. Then, all being in order, tell the
        callers."""
        completions = self._completions()
        if not completions:
            return  # read already by the flush of this turn
        ended: list[Operation] = []
        for number, result in completions:
            operation = self._in_flight.pop(number >> 1)
            self._entries_in_flight -= operation.entries
            if number & 1:  # the sync of a pair: its write is whole, or this would not have run
                if result == 0:
                    if operation.began_us:
                        self._quick_syncs.ended(
                            operation.began_us, time.monotonic_ns() // 1_000, in_call=False
                        )
                    operation.length = operation.result = 0
                    ended.append(operation)
                    continue
                operation.result, operation.sync_result = operation.length, result
            elif operation.pieces:
                self._chains = self._chains and -result not in _UNKNOWN_CALL
                operation.cut(())
                self._again(operation)
                continue
            else:
                operation.result = result
            if self._is_over(operation):
                ended.append(operation)
        self._tell(ended)

    def _tell(self, ended: list[Operation]) -> None:
        if self._waiting or self._room:
            self._plan_flush()
        with self.around_completions:
            for operation in ended:
                self._finish(operation)
            if self._idle is not None and not self._is_busy:
                self._idle.set_result(None)
                self._idle = None

    @property
    def _is_busy(self) -> bool:
        return bool(self._in_flight or self._waiting or self._made_in_call)

    def _is_over(self, operation: Operation) -> bool:
        """All completions of the operation are in: done, failed, or the rest goes in again (False)."""
        problem = problem_of(operation)
        if problem == 0 and advance(operation):
            return True
        if problem == 0:
            operation.interruptions = 0
        elif problem in TRANSIENT_ERRORS and operation.interruptions < MAX_INTERRUPTIONS:
            operation.interruptions += 1
        else:
            kind = SyncFailed if operation.sync_failed else OSError
            operation.error = kind(problem, os.strerror(problem), operation.file.path)
            return True
        self._again(operation)
        return False

    def _again(self, operation: Operation) -> None:
        # In front: an interrupted operation has waited already. It was counted before, so the bound holds.
        self._waiting.appendleft(operation)
        self._plan_flush()

    def _finish(self, operation: Operation) -> None:
        operation.vectors = ()
        try:
            operation.done(operation.error)
        except Exception:
            # One caller's bug must not keep the completions of the others.
            logger.exception("the result for %s was not taken; this is a bug", operation.file.path)

    async def close(self) -> None:
        """Wait for what is in flight, then give the ring back."""
        while self._is_busy:
            self._idle = self._idle or self._loop.create_future()
            await asyncio.wait([self._idle])
        if not self.is_closed:
            self._loop.remove_reader(self._ring.ring_fd)
            uring.io_uring_queue_exit(self._ring)
        await super().close()


class RingFile(ThreadFile):
    """An open file of RingDisk."""

    disk: RingDisk

    async def _read_rest(self, offset: int, buffer: memoryview) -> int:
        left = await self.disk.perform(self, OperationKind.READ, offset, [buffer], len(buffer))
        return len(buffer) - left

    async def write(self, offset: int, data: Data) -> None:
        buffers = buffers_of(data)
        if buffers:
            await self.disk.perform(self, OperationKind.WRITE, offset, buffers, length_of(buffers))

    async def allocate(self, length: int) -> None:
        size = os.fstat(self.descriptor()).st_size
        if length <= size:
            return
        try:
            await self.disk.perform(self, OperationKind.ALLOCATE, size, [], length - size)
        except OSError as error:
            if error.errno not in ALLOCATE_UNSUPPORTED:
                raise
            await super().allocate(length)

    def begin(self, request: SyncRequest) -> None:
        size = request.size
        fd, offset, buffers, done = request.fd, request.offset, request.buffers, request.ended
        if not size:
            self.disk.enqueue(Operation(self, fd, OperationKind.SYNC, offset, buffers, size, done))
            return
        operation = Operation(self, fd, OperationKind.WRITE_AND_SYNC, offset, buffers, size, done, entries=2)
        if size >= EARLY_WRITEBACK_BYTES:
            self.disk.cut(operation)
        self.disk.begin(operation)
