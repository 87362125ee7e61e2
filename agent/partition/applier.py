"""Committed batches, handed to a group's state machine in order.

Law of this file: each committed DATA frame in order, from the first on whose records the state machine does
not have. Commands in its saved or copied state are not read again, so a start costs no more than the later
ones. Frames are read from the log asynchronously.
"""

import asyncio
import logging
from collections.abc import Callable

from shoal.agent.partition.observer import ReplicaObserver
from shoal.agent.partition.plan import StateMachine
from shoal.agent.partition.replica import Replica
from shoal.format.batch import Kind, LogIndex, Offset
from shoal.segment_store.errors import Damaged, OffsetOutOfRange, StoreError

READ_BYTES = 2**20
RETRY_MS = 10
MENDING_MS = 200
"""Between two looks at a damaged entry: a peer has it mended, or not yet."""
BEHIND_MS = 100
"""Between two looks at a state that lacks what the log has no more: it comes from a peer."""

logger = logging.getLogger(__name__)


class Applier(ReplicaObserver):
    """One per group that has a state machine."""

    def __init__(self, replica: Replica, machine: StateMachine) -> None:
        self._replica = replica
        self.machine = machine
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._begun = False
        self.applied_index = LogIndex(replica.log.first_index - 1)
        self.on_applied: Callable[[], None] | None = None
        """Called once after the next entries were passed, those that are not the machine's too."""

    def committed(self) -> None:
        self._wake.set()

    def start(self) -> None:
        """Begin with what is known as committed."""
        self._wake.set()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                await self._apply_committed()
        except StoreError as error:
            self._replica.fail("damaged", f"committed entries cannot be read: {error}")
        except Exception as error:
            # A state machine that went half a step must not go on: this replica would differ from the others.
            logger.exception("%s: applying an entry failed; this is a bug", self._replica.group)
            self._replica.fail("damaged", f"its state machine failed: {error}")

    async def _apply_committed(self) -> None:
        replica = self._replica
        while self.applied_index < replica.state.committed.last_index:
            try:
                if not self._goes_on() and await self._skip():
                    continue
            except Damaged as error:
                await self._wait_for_mending(error)
                continue
            if self.machine.is_full():
                await asyncio.sleep(BEHIND_MS / 1000)
                continue
            first = LogIndex(self.applied_index + 1)
            last = replica.readable_index
            if first > last:
                # Committed by the others before this replica's turn at its own disk.
                await asyncio.sleep(RETRY_MS / 1000)
                continue
            try:
                frames = await replica.log.read(first, last, READ_BYTES, shared=True)
            except Damaged as error:
                await self._wait_for_mending(error)
                continue
            except OffsetOutOfRange:
                if first >= replica.log.first_index:
                    raise
                continue  # trimmed meanwhile
            for frame in frames:
                if frame.stamp.kind == Kind.DATA:
                    self.machine.apply(frame)
                self.applied_index = frame.stamp.index
            self._begun = True
            self._passed()

    def _goes_on(self) -> bool:
        """Whether the place in the log is known, and the log still holds it. The log drops what the machine
        has saved. That may lie beyond the place: a machine begins with a state, and takes a peer's later."""
        self._begun = self._begun and self.applied_index + 1 >= self._replica.log.first_index
        return self._begun

    async def _wait_for_mending(self, error: Damaged) -> None:
        self._replica.met(error)
        await asyncio.sleep(MENDING_MS / 1000)

    def _passed(self) -> None:
        self._replica.applied(self.applied_index)
        if self.on_applied is not None:
            tell, self.on_applied = self.on_applied, None
            tell()

    async def _skip(self) -> bool:
        """Go on to where the state ends; whether there is something to look at again. Only what is committed
        is the same in every log, so nothing above the commit index is taken for known."""
        log, committed = self._replica.log, self._replica.state.committed
        known = Offset(self.machine.next_offset())
        if known < log.start_offset:
            await asyncio.sleep(BEHIND_MS / 1000)
            return True
        self.applied_index = max(self.applied_index, LogIndex(log.first_index - 1))
        if known >= committed.end_offset:
            self.applied_index = committed.last_index
            self._passed()
            return True
        if known > log.start_offset:
            try:
                next_index = await log.find_offset(known)
            except OffsetOutOfRange:
                return False  # it is not written here yet
            if not self._replica.disk.log_is_behind:  # else it may be of another branch
                self.applied_index = max(self.applied_index, LogIndex(next_index - 1))
        return False

    async def stop(self) -> None:
        """End; the state machine stays as it is."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
