"""The disk work of one replica's readies, in order, and their completions, in order.

Law of this file: of one ready the hard state is synced before the log is touched (a log that holds a term
above the stored one is a lost replica: safety 3), truncation before the new branch is written, and nobody
hears of a ready before every earlier one is durable. The first entry of a segment is noted outside the log
before anybody hears of it, since a segment that is lost whole would not be missed (`floor`). Appends without
hard state and truncation, the common case, go to the log at once, so that the log's group commit can join
them. It never retries: after an error it stays stopped.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial

from shoal.agent.durable.paired_file import PairedFileError, PairedFileFull
from shoal.errors import ErrorCode
from shoal.format.batch import Flag, Frame, LogIndex
from shoal.replication.interfaces import HardState
from shoal.replication.state.ready import Ready
from shoal.segment_store.errors import DiskFull, StoreError
from shoal.segment_store.log.log import PartitionLog

logger = logging.getLogger(__name__)


class _Item:
    """`segments`: the entries of it that begin one, ascending."""

    __slots__ = ("done", "frames", "ready", "segments", "size_bytes")

    def __init__(self, ready: Ready, frames: list[Frame]) -> None:
        self.ready = ready
        self.frames = frames
        self.done = False
        self.segments: tuple[LogIndex, ...] = ()
        self.size_bytes = 0
        for stamp, data in frames:
            self.size_bytes += len(data)
            # The first entry of an empty log starts a segment, with or without a flag. Forced recovery of an
            # empty replica makes that entry a configuration, which carries no flag.
            if stamp.index == 1 or (stamp.flags and stamp.flags & Flag.FIRST_OF_SEGMENT):
                self.segments += (stamp.index,)


def failure_of(error: BaseException) -> tuple[ErrorCode, str, BaseException | None]:
    """The failure of a replica one of whose writes ended so, as `Replica.fail` takes it. One that met a full
    disk comes back when there is room (reopener.py)."""
    code: ErrorCode = "disk-full" if isinstance(error, DiskFull | PairedFileFull) else "damaged"
    is_bug = not isinstance(error, StoreError | PairedFileError)
    return code, f"this replica stopped: {error}", error if is_bug else None


class DiskOrder:
    """Bounded by the core: it hands out no more readies than its bounds on uncommitted entries allow."""

    def __init__(
        self,
        log: PartitionLog,
        save_hard_state: Callable[[HardState], Awaitable[None]],
        floor: LogIndex,
        save_floor: Callable[[LogIndex], Awaitable[None]],
        on_durable: Callable[[Ready], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._log = log
        self._save_hard_state = save_hard_state
        self._floor = floor
        self._save_floor = save_floor
        self._noting: asyncio.Task[None] | None = None
        self._on_durable = on_durable
        self._on_failure = on_failure
        self._items: deque[_Item] = deque()
        self._slow: deque[_Item] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._writes = 0
        self._writes_over: asyncio.Future[None] | None = None
        self._stopped = False
        self.unsynced_bytes = 0
        self.unsynced_frames = 0
        """Frames handed in and not yet durable: while there are any, small submissions are better
        gathered."""

    @property
    def log_is_behind(self) -> bool:
        """Whether the log has yet to be told of a truncation or of frames: until then it may still hold
        entries of an abandoned branch under indices that are committed in another."""
        return bool(self._slow)

    def submit(self, ready: Ready, frames: list[Frame]) -> None:
        """Carry out the disk part of `ready`; on_durable(ready) follows, perhaps before this returns."""
        if self._stopped:
            return
        is_plain = ready.hard_state is None and ready.truncate_from is None
        if not frames and is_plain and not self._items:
            self._on_durable(ready)  # nothing to do, and nothing before it
            return
        item = _Item(ready, frames)
        self._items.append(item)
        self.unsynced_frames += len(frames)
        self.unsynced_bytes += item.size_bytes
        if self._worker is not None or not is_plain:
            self._slow.append(item)
            if self._worker is None:
                self._worker = asyncio.ensure_future(self._work_slowly())
                self._worker.add_done_callback(self._worker_ended)
        else:
            self._write(item)

    async def _work_slowly(self) -> None:
        while self._slow and not self._stopped:
            item = self._slow[0]
            if item.ready.hard_state is not None:
                await self._save_hard_state(item.ready.hard_state)
            if item.ready.truncate_from is not None:
                await self._lower_floor(LogIndex(item.ready.truncate_from - 1), item)
                await self._log.truncate_suffix(item.ready.truncate_from)
            self._slow.popleft()
            if not self._stopped:
                self._write(item)
        self._worker = None

    def _worker_ended(self, worker: asyncio.Task[None]) -> None:
        if not worker.cancelled() and (error := worker.exception()) is not None:
            self._worker = None
            self._fail(error)

    def _write(self, item: _Item) -> None:
        if not item.frames:
            self._done(item)
            return
        self._writes += 1
        answer = partial(self._written, item)
        try:
            self._log.begin_append(item.frames, answer)
        except StoreError as error:  # heard of later, like any other outcome: the caller is in its turn
            asyncio.get_running_loop().call_soon(answer, error)

    def _written(self, item: _Item, error: StoreError | None) -> None:
        self._writes -= 1
        if self._writes_over is not None and not self._writes:
            self._writes_over.set_result(None)
            self._writes_over = None
        if error is not None:
            self._fail(error)
            return
        if item.segments:
            self._note(item)
        else:
            self._done(item)

    def _done(self, item: _Item) -> None:
        """Hand out what is durable, in order."""
        item.done = True
        items = self._items
        try:
            while items and items[0].done and not self._stopped:
                item = items.popleft()
                self.unsynced_frames -= len(item.frames)
                self.unsynced_bytes -= item.size_bytes
                self._on_durable(item.ready)
        except Exception as bug:
            # Nobody else would hear of it in a callback: the replica must not go on half advanced.
            logger.exception("a replica did not take what its disk has synced; this is a bug")
            self._fail(bug)

    def _note(self, item: _Item) -> None:
        """Before anybody hears of a segment's first entry, something outside it knows that it is there."""
        before = self._noting

        async def note() -> None:
            if before is not None:
                await asyncio.wait([before])
            if self._stopped:
                return
            if item.segments and item.segments[-1] > self._floor:
                self._floor = item.segments[-1]
                await self._save_floor(self._floor)
            self._done(item)

        self._noting = asyncio.ensure_future(note())
        self._noting.add_done_callback(self._noting_ended)

    def _noting_ended(self, noting: asyncio.Task[None]) -> None:
        if self._noting is noting:
            self._noting = None
        if not noting.cancelled() and (error := noting.exception()) is not None:
            self._fail(error)

    async def _lower_floor(self, last_index: LogIndex, cutting: _Item) -> None:
        """The log is about to be cut behind that entry: nothing above it is noted for what came before."""
        for item in self._items:
            if item is cutting:
                break
            item.segments = tuple(index for index in item.segments if index <= last_index)
        while self._noting is not None:
            await asyncio.wait([self._noting])
        if last_index < self._floor:
            self._floor = last_index
            await self._save_floor(last_index)

    def _fail(self, error: BaseException) -> None:
        if not self._stopped:
            self._stopped = True
            self._on_failure(error)

    def halt(self) -> None:
        """Hand out and accept nothing more; what is under way ends on its own."""
        self._stopped = True

    async def drain(self) -> None:
        """Wait for everything under way; then the log may be closed."""
        while self._worker is not None or self._writes or self._noting is not None:
            if self._worker is not None:
                await asyncio.wait([self._worker])
            elif self._noting is not None:
                await asyncio.wait([self._noting])
            else:
                self._writes_over = self._writes_over or asyncio.get_running_loop().create_future()
                await asyncio.wait([self._writes_over])
