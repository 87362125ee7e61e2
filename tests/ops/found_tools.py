"""What of the tools for ops/ is on this machine. Without a tool its files are read as text, which is said."""

from __future__ import annotations

import shutil
import subprocess

SYSTEMD = shutil.which("systemd-analyze")


def engine() -> str | None:
    """A container engine that answers."""
    for name in ("docker", "podman"):
        path = shutil.which(name)
        if path is not None:
            ran = subprocess.run([path, "info"], capture_output=True, timeout=60, check=False)
            if ran.returncode == 0:
                return path
    return None


ENGINE = engine()
