"""The faulty memory disk in virtual time: syncs take their time, and may be slow or stuck.

Law of this file: what is lost, kept or torn is memory_disk.py's business; here is when.
"""

from __future__ import annotations

import asyncio
import posixpath
import random

from memory_disk import SECTOR_BYTES, MemoryDisk

from shoal.segment_store.disk.fair_queue import SyncSchedule

STUCK_LOOK_S = 0.02
SLOW_OPERATIONS = ("sync", "sync_directory")
SYNCS_IN_FLIGHT = 4
_ZEROS = bytes(SECTOR_BYTES)


class _NoTrace(list):  # type: ignore[type-arg]
    """Millions of operations are not remembered."""

    def append(self, _: object) -> None:
        return None


class SimDisk(MemoryDisk):
    """`sync_ms_max`: how long a sync takes at most; `stuck_until_s`: before that none ends. Syncs of files
    wait for their turn as on the product's disks; a quarter as many are in flight."""

    def __init__(self, rng: random.Random, sync_ms_max: float) -> None:
        super().__init__(rng)
        self.trace.operations = _NoTrace()
        self.resident = "/view/"
        self.sync_ms_max = sync_ms_max
        self.stuck_until_s = 0.0
        self.syncs = 0
        self.is_damaged = False
        """Bytes or names were lost or changed behind the agent's back."""
        self._times = rng
        self._schedule = SyncSchedule[asyncio.Future[None]](SYNCS_IN_FLIGHT)

    def opened(self) -> SimDisk:
        """By a process: what an earlier one had in flight ended with it."""
        self._schedule = SyncSchedule(SYNCS_IN_FLIGHT)
        return self

    async def begin(self, operation: str, path: str) -> None:
        if operation == "sync":
            await self._sync_in_turn(path)
        elif operation in SLOW_OPERATIONS:
            await self._take_time()
        await super().begin(operation, path)

    async def _sync_in_turn(self, path: str) -> None:
        schedule = self._schedule
        if not schedule.start_at_once(0):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            schedule.offer(posixpath.dirname(path), 0, turn)
            await turn
        try:
            await self._take_time()
        finally:
            schedule.ended(0)
            while (next_turn := schedule.start()) is not None:
                if next_turn.cancelled():
                    schedule.ended(0)
                else:
                    next_turn.set_result(None)

    async def _take_time(self) -> None:
        epoch = self.epoch
        self.syncs += 1
        await asyncio.sleep(self._times.uniform(0.1, self.sync_ms_max) / 1_000)
        while asyncio.get_running_loop().time() < self.stuck_until_s:
            await asyncio.sleep(STUCK_LOOK_S)
        self.check_power(epoch)

    def durable_content(self, path: str, position: int, length: int) -> bytes | None:
        """What a power failure would leave there at the least; None of a file whose name it might take."""
        inode = self._durable_names.get(path)
        if inode is None:
            return None
        first, end = position // SECTOR_BYTES, -(-(position + length) // SECTOR_BYTES)
        sectors = (inode.durable.get(sector, _ZEROS) for sector in range(first, end))
        start = position - first * SECTOR_BYTES
        return b"".join(sectors)[start : start + length]

    def damage(self, path: str, position: int, mask: int = 1) -> None:
        super().damage(path, position, mask)
        self.is_damaged = True

    def lose(self, path: str) -> None:
        super().lose(path)
        self.is_damaged = True

    def add_directory(self, path: str) -> None:
        """What the agent makes by itself before it has a disk."""
        while path not in self._directories:
            self._directories.add(path)
            path = path.rpartition("/")[0] or "/"

    def wipe(self) -> None:
        """Everything is gone, as if the disk had been exchanged."""
        self.epoch += 1
        self.is_damaged = False
        self.faults.clear()
        for names in (self._names, self._durable_names):
            names.clear()
        self._changes.clear()
        self._directories = {"", "/", "."}

    def segments(self) -> list[str]:
        """Paths of the logs' segment files, sorted."""
        return sorted(path for path in self._names if "/topics/" in path and path.endswith(".arrows"))
