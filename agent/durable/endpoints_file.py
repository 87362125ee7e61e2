"""Where this run of the agent listens, as a file that scripts read: ports may have been chosen by the system.

Law of this file: it is written once per run and removed at its end. A process that was killed leaves it, so
it names the process.
"""

from __future__ import annotations

import json
import logging
import os
from typing import Any

from shoal.agent.durable.whole_file import replace_whole
from shoal.segment_store.disk.disk import Disk

FILE_NAME = "endpoints.json"

logger = logging.getLogger("shoal.agent")


async def save_endpoints(disk: Disk, directory: str, endpoints: dict[str, Any]) -> None:
    """Whole or not at all; of no use after a power failure, so it is not synced. Raises OSError."""
    text = json.dumps({**endpoints, "pid": os.getpid()}, indent=2) + "\n"
    await replace_whole(disk, os.path.join(directory, FILE_NAME), text.encode(), sync=False)


async def remove_endpoints(disk: Disk, directory: str) -> None:
    """This run has ended. Its directory may have been given up meanwhile, and be empty."""
    path = os.path.join(directory, FILE_NAME)
    try:
        if await disk.exists(path):
            await disk.unlink(path)
    except OSError as error:
        logger.warning("cannot remove %s, which tells of a run that has ended: %s", path, error)
