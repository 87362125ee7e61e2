"""A small disk in memory for one agent's data; only root may mount one."""

from __future__ import annotations

import os
import pathlib
import subprocess
import tempfile

DISK_BYTES = 192 << 20


def mount(directory: pathlib.Path) -> str:
    """There; why there is none, where it is refused."""
    directory.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "shoal-test", str(directory)]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except OSError as error:
        return str(error)
    return "" if ran.returncode == 0 else (ran.stderr.strip() or "mount failed")


def unmount(directory: pathlib.Path) -> None:
    """Even while somebody still looks at it."""
    subprocess.run(["umount", "-l", str(directory)], capture_output=True, timeout=60, check=True)


def _why_not() -> str:
    if os.geteuid() != 0:
        return "only root may mount one"
    with tempfile.TemporaryDirectory(prefix="shoal-mount-") as directory:
        refused = mount(pathlib.Path(directory))
        if not refused:
            unmount(pathlib.Path(directory))
    return refused


REASON = _why_not()
"""Why none can be made here; empty where it can."""
