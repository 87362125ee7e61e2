"""Committed batches, handed to a group's state machine in order.

Law of this file: each committed DATA frame once per life of the agent, from the log's start on, in order;
the state machine is rebuilt at every start, so it keeps nothing of its own. Frames are read from the log
asynchronously.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TypeAlias

from shoal.agent.replica import Replica
from shoal.batch import Frame, Kind, LogIndex
from shoal.segment_store.errors import Damaged, StoreError

READ_BYTES = 2**20
RETRY_MS = 10
MENDING_MS = 200
"""Between two looks at a damaged entry: a peer has it mended, or not yet."""

Apply: TypeAlias = Callable[[Frame], None]

logger = logging.getLogger(__name__)


class Applier:
    """One per group that has a state machine."""

    def __init__(self, replica: Replica, apply: Apply) -> None:
        self._replica = replica
        self._apply = apply
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.applied_index = LogIndex(replica.log.first_index - 1)
        replica.on_commit.append(self._wake.set)

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
            logger.exception("the state machine of %s failed", self._replica.group)
            self._replica.fail("damaged", f"its state machine failed: {error}")

    async def _apply_committed(self) -> None:
        replica = self._replica
        while self.applied_index < replica.state.committed.last_index:
            first = LogIndex(self.applied_index + 1)
            last = replica.readable_index
            if first > last:
                # Committed by the others before this replica's turn at its own disk.
                await asyncio.sleep(RETRY_MS / 1000)
                continue
            try:
                frames = await replica.log.read(first, last, READ_BYTES)
            except Damaged as error:
                replica.met(error)
                await asyncio.sleep(MENDING_MS / 1000)
                continue
            for frame in frames:
                if frame.stamp.kind == Kind.DATA:
                    self._apply(frame)
                self.applied_index = frame.stamp.index
            replica.applied(self.applied_index)

    async def stop(self) -> None:
        """End; the state machine stays as it is."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
