"""The pool's snapshot in the data directory: a hint that helps a restart, never a reason for it to fail.

Law of this file: it is replaced whole and not synced: after a power failure the old one, or none, is as good.
A snapshot that cannot be read is logged and ignored.
"""

from __future__ import annotations

import logging
import os

from shoal.agent.durable.whole_file import read_whole, replace_whole
from shoal.membership.serf.snapshot import MAX_SNAPSHOT_BYTES, Snapshot, SnapshotError
from shoal.segment_store.disk.disk import Disk

FILE_NAME = "pool.snapshot"

logger = logging.getLogger("shoal.agent")


async def load_snapshot(disk: Disk, directory: str) -> Snapshot:
    """An empty one when there is none, or none that can be read."""
    path = os.path.join(directory, FILE_NAME)
    try:
        data = await read_whole(disk, path, MAX_SNAPSHOT_BYTES + 1)
        return Snapshot() if data is None else Snapshot.from_bytes(data)
    except (OSError, SnapshotError) as error:
        logger.warning("cannot read %s, so peers are found by mDNS or --join alone: %s", path, error)
        return Snapshot()


async def save_snapshot(disk: Disk, directory: str, snapshot: Snapshot) -> None:
    """A crash leaves the old one or the new one. Raises OSError."""
    await replace_whole(disk, os.path.join(directory, FILE_NAME), snapshot.to_bytes(), sync=False)
