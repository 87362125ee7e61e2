"""How much room the disk has, and for what it suffices.

Law of this file: the fuller the disk, the fewer may write. Clients' records are refused first, then leaders'
entries. So room is left for the changes that empty it: trims, and the catalog's with its saved state.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from shoal.agent.durable.ids import CATALOG_GROUP, GroupId
from shoal.agent.log_lines.repeats import once_a_minute
from shoal.errors import ShoalError
from shoal.segment_store.disk.disk import Disk

logger = logging.getLogger(__name__)
seldom = once_a_minute(logger)

FREE_SPACE_INTERVAL_MS = 1_000
MIN_FREE_BYTES = 64 * 2**20
"""Below it appends and new topics are refused as disk-full, while logs can still write what is under way,
their checkpoints, and what makes room: trims, and the catalog's changes."""
LAST_FREE_BYTES = 16 * 2**20
"""Below it a leader's entries are taken no more either, but those of the catalog, and what is as small as a
trim: a log that finds no room for its next blocks (up to 8 MiB at a time) stops."""
TRIM_FREE_BYTES = 2**20
"""Below it trims are refused."""
SMALL_APPEND_BYTES = 4096
"""A trim, or a leader's first entry, with all that is around it."""


class FreeSpace:
    """One per host. Bytes that are taken count as used at once: a burst between two looks would fill the
    disk."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self.is_short = False
        """Clients' appends are refused."""
        self.size_bytes = 2**63
        self.total_bytes: int | None = None
        """Of the file system; None before the first look."""
        self.refused = 0
        """Appends, trims, new topics and leaders' entries."""

    async def look(self) -> None:
        try:
            self.size_bytes, self.total_bytes = await self._disk.free_bytes(self._directory)
        except OSError as error:
            seldom.warning("cannot read how much disk is free in %s: %s", self._directory, error)
        self._tell()

    def has_room(self) -> bool:
        """Clients' appends are taken."""
        return not self.is_short

    async def watch(self, on_room: Callable[[], Awaitable[None]]) -> None:
        """Look from time to time, for the life of the host; `on_room` is called while there is much."""
        while True:
            await self.look()
            if self.size_bytes >= 2 * MIN_FREE_BYTES:
                await on_room()
            await asyncio.sleep(FREE_SPACE_INTERVAL_MS / 1000)

    def _tell(self) -> None:
        is_short = self.size_bytes < MIN_FREE_BYTES
        if is_short == self.is_short:
            return
        self.is_short = is_short
        if is_short:
            logger.warning(
                "disk full: %d bytes are free in %s, and appends are refused below %d: delete a topic, trim a"
                " partition or change a topic's retention",
                max(0, self.size_bytes), self._directory, MIN_FREE_BYTES)  # fmt: skip
        else:
            logger.warning("disk has room again: %d bytes are free in %s", self.size_bytes, self._directory)

    def require(self, least_bytes: int = MIN_FREE_BYTES) -> None:
        """ShoalError disk-full when fewer bytes are free."""
        if self.size_bytes < least_bytes:
            self.refused += 1
            raise ShoalError(
                "disk-full",
                f"{max(0, self.size_bytes)} bytes are free on this agent's disk, fewer than {least_bytes}: "
                "delete a topic, trim a partition, or change a topic's retention",
            )

    def take(self, size_bytes: int, least_bytes: int | None) -> None:
        """So much is going to be written. ShoalError disk-full when fewer than `least_bytes` are free; None:
        whatever is free."""
        if least_bytes is not None and self.size_bytes < least_bytes:
            self.require(least_bytes)
        self.size_bytes -= size_bytes

    def admits(self, group: GroupId, size_bytes: int) -> bool:
        """Whether to take so many bytes of entries from a leader, who sends them again."""
        if self.size_bytes - size_bytes < LAST_FREE_BYTES and group != CATALOG_GROUP:
            is_small = size_bytes <= SMALL_APPEND_BYTES
            self.refused += not is_small
            return is_small
        self.size_bytes -= size_bytes
        return True
