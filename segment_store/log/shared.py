"""Shared by the logs of one agent on one disk, so that its bounds hold over all of them together."""

import resource

from shoal.segment_store.disk.disk import Disk
from shoal.segment_store.disk.open_files import OpenFiles
from shoal.segment_store.lending.lent_pages import REAL_DISKS, LentPages

MAX_OPEN_FILES = 1024
OPEN_FILES_SHARE = 4
"""Segment files that stay open: at most a quarter of what the system lets this process open; sockets and
the files of the moment need the rest."""
MAX_SPARE_BYTES = 2**30
SPARE_SHARE_OF_DISK = 100
"""Spare segment files, and recycled ones that are not full yet: the smaller of a gibibyte and a hundredth of
the disk (safety 16)."""


MAX_RESERVED_BYTES = 2**30
RESERVED_SHARE_OF_DISK = 100
"""Blocks that segment files have and do not fill yet: bounded alike (safety 16)."""


def open_files_limit() -> int:
    """How many idle segment files this process should keep open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_OPEN_FILES
    return max(1, min(MAX_OPEN_FILES, soft // OPEN_FILES_SHARE))


class SpareBudget:
    """How many bytes of an agent's disk lie in recycled files that are not full."""

    def __init__(self, limit_bytes: int = MAX_SPARE_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self.used_bytes = 0

    def take(self, size: int, disk_bytes: int) -> bool:
        """Whether there is room for so many more on a disk of that size; then they are counted."""
        if self.used_bytes + size > min(self._limit_bytes, disk_bytes // SPARE_SHARE_OF_DISK):
            return False
        self.used_bytes += size
        return True

    def give_back(self, size: int) -> None:
        assert size <= self.used_bytes
        self.used_bytes -= size


class ReservedSpace:
    """How many bytes of segment files have blocks and hold nothing yet, as of each file's last growth: a
    thousand partitions that each reserve ahead for a busy one would take gigabytes."""

    def __init__(self, limit_bytes: int = MAX_RESERVED_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self.unused_bytes = 0

    def change(self, difference: int) -> None:
        """One file's share has changed by so much."""
        self.unused_bytes += difference
        assert self.unused_bytes >= 0

    def step_bytes(self, own_bytes: int, least: int, most: int, disk_bytes: int) -> int:
        """By how much a file that now counts `own_bytes` may grow at a time: with no room left for more, by
        the least, so that the bound is passed by that much a file at most."""
        limit = min(self._limit_bytes, disk_bytes // RESERVED_SHARE_OF_DISK)
        return max(least, min(most, limit - (self.unused_bytes - own_bytes)))


class SharedFiles:
    """One per agent and disk; a log that is given none has one to itself."""

    def __init__(
        self,
        disk: Disk,
        *,
        max_open_files: int | None = None,
        max_spare_bytes: int = MAX_SPARE_BYTES,
        max_reserved_bytes: int = MAX_RESERVED_BYTES,
    ) -> None:
        self._disk = disk
        self._disk_bytes = 0
        self.open_files = OpenFiles(disk, max_open_files or open_files_limit())
        self.spare_budget = SpareBudget(max_spare_bytes)
        self.reserved = ReservedSpace(max_reserved_bytes)
        self.lending = LentPages(real=disk.kind in REAL_DISKS)

    async def disk_bytes(self, directory: str) -> int:
        """The size of the disk, asked once: growing a file should not wait for it each time."""
        if not self._disk_bytes:
            _, self._disk_bytes = await self._disk.free_bytes(directory)
        return self._disk_bytes
