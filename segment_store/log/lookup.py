"""Where a stretch of entries lies, and that it still does: places only, nothing is read here.

Law of this file: it asks the log (log.py), which holds the places, and hands them to chunked_read.py, which
reads.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from shoal.format.batch import LogIndex
from shoal.segment_store.errors import Damaged, OffsetOutOfRange
from shoal.segment_store.log.chunked_read import Buffer, Held, Stored
from shoal.segment_store.log.run_reader import Run

if TYPE_CHECKING:
    from shoal.segment_store.log.log import PartitionLog


async def look_up(
    log: PartitionLog, first_index: LogIndex, last_index: LogIndex, max_bytes: int
) -> tuple[list[Stored | Held], Branch]:
    """What PartitionLog.read would give of a sound log, and the branch that it is of. Raises as read, but
    Damaged only for an index that can no longer be read."""
    while True:
        log.check_range(first_index, last_index)
        log.check_open()
        branch = Branch(log)
        parts = await _parts(log, branch, first_index, last_index, max_bytes)
        if branch.is_same:
            return parts, branch
        last_index = LogIndex(min(last_index, log.last_index))


async def _parts(
    log: PartitionLog, branch: Branch, first_index: LogIndex, last_index: LogIndex, max_bytes: int
) -> list[Stored | Held]:
    parts: list[Stored | Held] = []
    index, left = first_index, max_bytes
    while index <= last_index:
        held = _held(log, index, last_index, left, is_first=not parts)
        if held is None:
            try:
                run = await log.stored_run(index, last_index, left)
            except (Damaged, OffsetOutOfRange):
                if branch.is_same and not parts:
                    raise
                break  # the next read meets it first
            if parts and run.length > left:
                break
            parts.append(Stored(run, run.segment.index.offsets_from(index, len(run.lengths))))
            left -= run.length
        elif held.frames:
            parts.append(held)
            left -= sum(map(len, held.frames))
        else:
            break
        index = LogIndex(index + len(parts[-1].offsets) - 1)
    return parts


def _held(
    log: PartitionLog, index: LogIndex, last_index: LogIndex, left: int, *, is_first: bool
) -> Held | None:
    """Entries that are in memory from `index` on: of at most `left` bytes, but one if it `is_first`. None
    where the file has to be read."""
    frame = log.cached(index)
    if frame is None:
        return None
    frames: list[Buffer] = []
    offsets = array("Q", [frame.stamp.base_offset])
    while frame is not None and index <= last_index and (len(frame.data) <= left or is_first):
        frames.append(frame.data)
        offsets.append(frame.stamp.base_offset + frame.stamp.record_count)
        index, left, is_first = LogIndex(index + 1), left - len(frame.data), False
        frame = log.cached(index)
    return Held(frames, offsets)


class Branch:
    """The log as it was when places were looked up."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._generation = log.generation

    @property
    def is_same(self) -> bool:
        """Whether nothing was truncated since, and the log is open."""
        return self._log.generation == self._generation and self._log.is_open

    def is_sealed(self, run: Run) -> bool:
        """See pieces.Source."""
        return run.segment.last_index < self._log.last_index

    def check_branch(self) -> None:
        """See pieces.Source."""
        log = self._log
        if not self.is_same:
            log.check_open()
            # Committed entries stay where they are; that these are, only who asked for them knows.
            raise OffsetOutOfRange(log.last_index + 1, log.first_index, log.last_index + 1)

    def check_there(self, run: Run) -> None:
        """See pieces.Source."""
        self.check_branch()
        log = self._log
        if log.segment_of(run.first_index) is not run.segment:
            raise OffsetOutOfRange(run.first_index, log.first_index, log.last_index + 1)
