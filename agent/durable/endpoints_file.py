"""Where this run of the agent listens, as a file that scripts read: ports may have been chosen by the system.

Law of this file: it is written once per run and removed at its end. A process that was killed leaves it, so
it names the process.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

from shoal.agent.durable.whole_file import replace_whole
from shoal.segment_store.disk.disk import Disk

FILE_NAME = "endpoints.json"


async def save_endpoints(disk: Disk, directory: str, endpoints: dict[str, Any]) -> None:
    """Whole or not at all; of no use after a power failure, so it is not synced. Raises OSError."""
    text = json.dumps({**endpoints, "pid": os.getpid()}, indent=2) + "\n"
    await replace_whole(disk, os.path.join(directory, FILE_NAME), text.encode(), sync=False)


def remove_endpoints(directory: str) -> None:
    """This run has ended."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(directory, FILE_NAME))
