"""Segment files used again: a trimmed segment's file becomes the next segment's, and is written over.

Writing over blocks that were written before needs no transaction of the file system's journal, which halves
the time of a sync. The rules that keep a file's earlier life out of the log:

- only a trimmed segment's file is kept, and only within its own log: every index in it lies below the log's
  first, for ever, so the chain (recovery.py) never takes an old frame for the next one.
- only at zero pins: a reader that still holds the file makes it be unlinked instead (safety 15).
- only if nothing of it was ever lent, by this process or an earlier one: bytes on their way to a reader lie
  in the file's own pages (lending/lent_pages.py). Such a file is unlinked too.
- a spare gets its new header, end marker and tail record, synced, before it gets its new name: under a
  segment's name nothing but that segment's beginning is ever found.
- what recovery finds behind the end is cleared as a torn write is, so a file's earlier life ends with the
  first restart.

Bounded per log, and over all logs of an agent by SpareBudget.
"""

from collections import deque
from typing import NamedTuple

from shoal.format.batch import LogIndex
from shoal.segment_store.disk.disk import opened
from shoal.segment_store.format.layout import SPARE_SUFFIX, parse_name
from shoal.segment_store.log.segment import Segment, SegmentFiles

MAX_SPARES = 4
"""Of one log: what retention removes at a time. Never more than there are segments in use."""
MIN_FREE_SHARE_OF_DISK = 10
"""With less than a tenth of the disk free, a file that is not needed is worth more as space."""


class _Spare(NamedTuple):
    path: str
    size: int


class SpareFiles:
    """The spare files of one log. The caller (writer.py, opener.py) does one thing at a time."""

    def __init__(self, files: SegmentFiles) -> None:
        self._disk = files.disk
        self._directory = files.directory
        self._open_files = files.open_files
        self._budget = files.shared.spare_budget
        self._lending = files.shared.lending
        self._spares: deque[_Spare] = deque()
        self.recycled = 0  # since the log was opened

    def __len__(self) -> int:
        return len(self._spares)

    async def take_over(self, names: list[str], first_index: LogIndex | None) -> list[str]:
        """Keep the spares of an earlier run, those that may be kept; the others' names. `first_index`: of
        the log, None when it is empty: then the contents of the spares are unknown."""
        refused: list[str] = []
        for name in names:
            path = f"{self._directory}/{name}"
            life = parse_name(name, SPARE_SUFFIX)
            old = life is not None and first_index is not None and life.first_index < first_index
            if not old or len(self._spares) >= MAX_SPARES or not await self._count(path):
                refused.append(name)
        return refused

    async def _count(self, path: str) -> bool:
        async with opened(self._disk, path) as file:
            size = await file.size()
        return await self._keep(path, size)

    async def _keep(self, path: str, size: int) -> bool:
        free, total = await self._disk.free_bytes(self._directory)
        if free < total // MIN_FREE_SHARE_OF_DISK or not self._budget.take(size, total):
            return False
        self._spares.append(_Spare(path, size))
        return True

    async def retire(self, segment: Segment, segments_in_use: int) -> bool:
        """Make a trimmed segment's file a spare; durable when this returns. False: it is not worth keeping,
        or it is being read."""
        size = segment.allocated
        if len(self._spares) >= min(MAX_SPARES, segments_in_use) or not _fits(segment, size):
            return False
        if self._open_files.is_pinned(segment.path):
            return False
        # Asked only now: a file that is neither pinned nor in the log is not read, so it is not lent later.
        if await self._lending.was_lent(segment.path):
            return False
        path = f"{self._directory}/{segment.name.stem}{SPARE_SUFFIX}"
        if not await self._keep(path, size):
            return False
        segment.count_unused(0)  # as a spare it counts whole
        self._lending.forget(segment.path)
        await self._open_files.forget(segment.path)
        if await self._disk.exists(segment.index_path):
            await self._disk.unlink(segment.index_path)  # first: a segment without an index is only slow
        await self._disk.rename(segment.path, path)
        await self._disk.sync_directory(self._directory)
        return True

    async def reuse(self, segment: Segment) -> bool:
        """Begin a new segment in a spare file; the caller syncs the directory before any frame. False: there
        is none that suits."""
        while self._spares:
            spare = self._spares.popleft()
            if not _fits(segment, spare.size, segment.files.config.segment_bytes):
                self._budget.give_back(spare.size)
                await self._disk.unlink(spare.path)
                continue
            try:
                await self._begin(segment, spare)
            except OSError:
                self._spares.append(spare)  # still there, and still counted
                raise
            segment.allocated = segment.prewritten_end = segment.recycled_bytes = spare.size
            segment.is_over_zeros = False
            self.recycled += 1
            return True
        return False

    async def _begin(self, segment: Segment, spare: _Spare) -> None:
        async with opened(self._disk, spare.path) as file:
            await segment.write_beginning(file)
        await self._disk.rename(spare.path, segment.path)

    def settle(self, segment: Segment) -> None:
        """The segment is full, or gone: its file counts no longer."""
        self._budget.give_back(segment.recycled_bytes)
        segment.recycled_bytes = 0

    async def drop(self) -> None:
        """Give the space back to the disk."""
        while self._spares:
            spare = self._spares.popleft()
            self._budget.give_back(spare.size)
            await self._disk.unlink(spare.path)

    def close(self) -> None:
        """The log lets go; its spares stay for the next opening."""
        while self._spares:
            self._budget.give_back(self._spares.popleft().size)


def may_be_reused(sealed: Segment) -> bool:
    """Whether the file of a segment that is full will be worth keeping when it is trimmed."""
    return _fits(sealed, sealed.allocated)


def _fits(segment: Segment, size: int, used: int | None = None) -> bool:
    """A file of `size` bytes holds a segment of this log without waste: about as long as a segment may be,
    and at least three quarters of it written or to be written."""
    config = segment.files.config
    used = segment.planned_end if used is None else used
    longest = config.segment_bytes + config.max_allocation_step_bytes
    return config.segment_bytes // 2 <= size <= longest and used * 4 >= size * 3
