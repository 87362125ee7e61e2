"""What an acknowledgement promises, as the disk itself has it: not as the log says that it wrote it.

Law of this file: it reads the sectors that a power failure would leave, and changes nothing.
"""

from __future__ import annotations

from cluster_sim.disk import SimDisk
from shoal.format.batch import BatchError, LogIndex, parse_frame
from shoal.segment_store.log.log import PartitionLog

LOOKED_AT_MAX = 8
"""Entries of one acknowledgement, the newest: what one write holds, as a rule."""


class Witness:
    """Remembers up to where each log was looked at, so that an entry is read once."""

    def __init__(self) -> None:
        self._seen: dict[PartitionLog, tuple[int, int]] = {}
        """Generation and index: what is cut and written again is looked at again."""

    def missing(self, disk: SimDisk, log: PartitionLog, index: LogIndex) -> str | None:
        """Which of the entries up to `index` a power failure would take, and why; None where none."""
        generation, seen = self._seen.get(log, (-1, 0))
        if generation != log.generation:
            seen = 0
        first = max(seen + 1, index - LOOKED_AT_MAX + 1, log.first_index)
        for number in range(first, index + 1):
            said = _missing_entry(disk, log, LogIndex(number))
            if said is not None:
                return f"entry {number}: {said}"
        self._seen[log] = (log.generation, max(seen, index))
        return None


def _missing_entry(disk: SimDisk, log: PartitionLog, index: LogIndex) -> str | None:
    segment = log.segment_of(index)
    if segment.index.is_released:
        return None  # sealed long ago
    entry = segment.index.entry(index)
    data = disk.durable_content(segment.path, entry.position, entry.length)
    if data is None:
        return f"{segment.path} has no name"
    try:
        stamp = parse_frame(data, 0, segment.files.identity).stamp
    except BatchError as error:
        return f"{segment.path}@{entry.position}: {error}"
    if (stamp.index, stamp.term) != (entry.index, entry.term):
        return f"{segment.path}@{entry.position} has {stamp.index}@{stamp.term}, not {index}@{entry.term}"
    return None
