"""Reads every stored byte of logs and views again and again, slowly, to find damage before a reader does.

Law of this file: it keeps time and rate. One look stands in segment_store/check/scrub.py, findings in
segment_store/check/damage.py; repair.py acts on them. One look at a time over all replicas, of bounded size,
at most `bytes_per_s` on the average; where it stopped is remembered over restarts, so that an agent that
never runs for long gets around too.
"""

import asyncio
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.agent.durable.ids import GroupId
from shoal.agent.durable.whole_file import read_whole
from shoal.agent.host.open_group import GroupHost
from shoal.agent.log_lines.repeats import once_a_minute
from shoal.agent.partition.replica import Replica
from shoal.agent.process.clock import Clock, is_set_within
from shoal.agent.views.view import SortedView, ViewNotReady
from shoal.format.batch import LogIndex
from shoal.segment_store.check.damage import DamagedRange, confirmed, merge, touches, within
from shoal.segment_store.check.scrub import look
from shoal.segment_store.disk.disk import Disk
from shoal.segment_store.errors import Damaged, LogClosed

LOOK_BYTES = 256 * 2**10
"""Read at once: about 50 us of checksums, and short beside what appends wait for."""
PASS_INTERVAL_MS = 30_000
"""Passes begin at most so often: little data is looked at every half minute, much of it all the time."""
FEW_REPLICAS = 100
REPLICA_INTERVAL_MS = 300
"""For each replica beyond a few a pass begins so much later."""
SAVE_INTERVAL_MS = 60_000
"""What a restart may repeat."""
CURSOR_FILE = "scrub"
MAX_CURSOR_BYTES = 1024

logger = logging.getLogger(__name__)
seldom = once_a_minute(logger)


@dataclass(slots=True)
class ScrubStatistics:
    """Counters since the agent started; the last pass in milliseconds, None before the first has ended."""

    bytes_read: int = 0
    passes: int = 0
    ranges_found: int = 0
    last_pass_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a pass stands: in this group, before this entry."""

    group: GroupId
    index: LogIndex

    def to_bytes(self) -> bytes:
        document = {
            "topic": self.group.topic_id.hex(),
            "partition": self.group.partition,
            "index": self.index,
        }
        return json.dumps(document).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Cursor | None":
        """None for what is no cursor: a pass then begins anew."""
        try:
            document = json.loads(data)
            group = GroupId(bytes.fromhex(document["topic"]), int(document["partition"]))
            return cls(group, LogIndex(int(document["index"])))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None


class Pace:
    """How long to pause after what was read, so that the average keeps to the rate; nothing is saved up. A
    rate of 0 has no pauses: what it stops is stopped by others."""

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at_ms = 0.0

    def pause_ms(self, bytes_read: int, now_ms: int) -> float:
        if not self._bytes_per_s:
            return 0
        self._free_at_ms = max(self._free_at_ms, now_ms) + bytes_read * 1000 / self._bytes_per_s
        return self._free_at_ms - now_ms


class Scrubber:
    """See the module. `run()` is one task of the agent's TaskGroup. The host hears of every look that found
    damage, the first time and each time around."""

    def __init__(
        self,
        host: GroupHost,
        disk: Disk,
        data_directory: str,
        clock: Clock,
        *,
        bytes_per_s: int,
        pass_interval_ms: int = PASS_INTERVAL_MS,
    ) -> None:
        self.statistics = ScrubStatistics()
        self._host = host
        self._disk = disk
        self._path = os.path.join(data_directory, CURSOR_FILE)
        self._clock = clock
        self._pace = Pace(bytes_per_s)
        self._is_wanted = asyncio.Event()
        self._has_changed = asyncio.Event()
        self._pass_interval_ms = pass_interval_ms
        self._saved_ms = clock.now_ms()
        self.set_rate(bytes_per_s)

    def set_rate(self, bytes_per_s: int) -> None:
        """From now on; at 0 it stands still where it is."""
        self._pace = Pace(bytes_per_s)
        (self._is_wanted.set if bytes_per_s else self._is_wanted.clear)()
        self._has_changed.set()

    async def run(self) -> None:
        """Pass after pass until cancelled."""
        await self._is_wanted.wait()
        cursor = await self._load()
        while True:
            await self._is_wanted.wait()
            started_ms = self._clock.now_ms()
            await self._pass(cursor)
            cursor = None
            self.statistics.passes += 1
            self.statistics.last_pass_ms = self._clock.now_ms() - started_ms
            await self._save(None)
            # A thousand idle partitions cost a look each, however little there is to read.
            many = len(self._host.open_replicas()) - FEW_REPLICAS
            interval_ms = max(self._pass_interval_ms, many * REPLICA_INTERVAL_MS)
            await asyncio.sleep(max(0, interval_ms - self.statistics.last_pass_ms) / 1000)

    async def _pass(self, cursor: Cursor | None) -> None:
        """Once over everything that is open, from the cursor on."""
        for replica in sorted(self._host.open_replicas(), key=lambda replica: replica.group):
            index = LogIndex(0)
            if cursor is not None:
                if replica.group < cursor.group:
                    continue
                index = cursor.index if replica.group == cursor.group else index
            await self._scrub(replica, index)
            made = self._host.views.get(replica.group)
            if made is not None:
                await self._scrub_view(replica.group, made.view)

    async def _scrub(self, replica: Replica, index: LogIndex) -> None:
        following: LogIndex | None = index
        found: list[DamagedRange] = []
        while following is not None:
            try:
                looked = await look(replica.log, following, LOOK_BYTES)
            except LogClosed:
                return  # moved away, or opened anew: that one is looked at in the next pass
            self.statistics.bytes_read += looked.bytes_read
            if looked.found:
                found += looked.found
                self._tell(replica, looked.found)
            following = looked.next_index
            if following is not None and self._clock.now_ms() - self._saved_ms >= SAVE_INTERVAL_MS:
                await self._save(Cursor(replica.group, following))
            await self._pause(looked.bytes_read)
        if not index:
            self._forget_healed(replica, found)

    async def _pause(self, bytes_read: int) -> None:
        """As long as the rate wants after so many bytes."""
        self._has_changed.clear()
        pause_ms = self._pace.pause_ms(bytes_read, self._clock.now_ms())
        await is_set_within(self._has_changed, pause_ms / 1000)
        await self._is_wanted.wait()

    async def _scrub_view(self, group: GroupId, view: SortedView) -> None:
        """Every chunk of its runs. A view that knows of damage is made again first."""
        try:
            with view.pinned() as runs:
                for run in runs:
                    await run.load()
                    for number in range(len(run.index)):
                        size_bytes = run.index.chunk(number).length
                        await run.chunk(number)
                        self.statistics.bytes_read += size_bytes
                        await self._pause(size_bytes)
        except Damaged as damage:
            self.statistics.ranges_found += 1
            logger.error("%s: damage found in a run of its view, by the scrubber: %s", group, damage)
            view.met(damage)
        except ViewNotReady as error:
            seldom.warning("%s: its view cannot be looked at now: %s", group, error)
        except OSError as error:  # closed meanwhile, or a disk that its log meets as well
            seldom.warning("%s: a run of its view cannot be read: %s", group, error)

    def _tell(self, replica: Replica, found: Sequence[DamagedRange]) -> None:
        known = within(replica.damaged_ranges, replica.log.first_index)
        for item in found:
            if not any(touches(item, other) for other in known):
                self.statistics.ranges_found += 1
                logger.error("%s: damage found, by the scrubber: %s", replica.group, item)
        replica.damaged_ranges = tuple(merge([*known, *found]))
        self._host.damaged(replica.group)

    def _forget_healed(self, replica: Replica, found: Sequence[DamagedRange]) -> None:
        """A whole look did not meet these again."""
        known = within(replica.damaged_ranges, replica.log.first_index)
        replica.damaged_ranges = confirmed(known, found)
        for item in known:
            if item not in replica.damaged_ranges:
                logger.warning("%s: verifies again: %s", replica.group, item)

    async def _load(self) -> Cursor | None:
        """Where the last life stopped; None to begin anew, also where that cannot be read."""
        try:
            return Cursor.from_bytes(await read_whole(self._disk, self._path, MAX_CURSOR_BYTES) or b"")
        except OSError as error:
            logger.warning("cannot read the scrubber's position in %s, starting over: %s", self._path, error)
            return None

    async def _save(self, cursor: Cursor | None) -> None:
        """A hint, never synced: a crash leaves an older one, or one that is none."""
        self._saved_ms = self._clock.now_ms()
        data = (b"" if cursor is None else cursor.to_bytes()).ljust(MAX_CURSOR_BYTES)
        try:
            file = await self._disk.open(self._path, create=True)
            try:
                await file.write(0, data)
            finally:
                await file.close()
        except OSError as error:
            seldom.warning("cannot save the scrubber's position in %s: %s", self._path, error)
