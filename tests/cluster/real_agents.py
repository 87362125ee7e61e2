"""Real agents for tests: processes on 127.0.0.1, bounded in time, ended by their own process ids.

Law of this file: they are started by the same code as the quickstart's, through the command that users have.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import time
import urllib.error
from collections.abc import Callable
from typing import Any

import cluster as local

# No test waits so long unless something hangs, or the machine has next to no time for it.
COMMAND_TIMEOUT_SECONDS = 120.0
WAIT_SECONDS = 90.0


def shoal_command() -> str:
    """The `shoal` that was installed beside this interpreter."""
    return str(pathlib.Path(sys.executable).parent / "shoal")


def run_shoal(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """One command, as a user runs it in a script: no terminal, bounded in time."""
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "200"}
    return subprocess.run(
        [shoal_command(), *arguments],
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_SECONDS,
        check=False,
        env=environment,
        **options,
    )


def wait_until(condition: Callable[[], Any], what: str, seconds: float = WAIT_SECONDS) -> Any:
    """The first true value of `condition`; fails by name after `seconds`. A dead agent is not yet."""
    deadline = time.monotonic() + seconds
    last: object = None
    while time.monotonic() < deadline:
        try:
            value = condition()
            if value:
                return value
            last = value
        except (OSError, local.ClusterProblem) as error:
            last = error
            if isinstance(error, urllib.error.HTTPError):
                error.close()  # it is the answer, and holds its connection
        time.sleep(0.05)
    raise AssertionError(f"not in {seconds} s: {what} (last: {last})")


def is_ready(url: str, members: int) -> bool:
    """True when the agent serves and sees so many live members."""
    local.get(url, "/readyz?verbose")
    return len(local.get(url, "/v1/members?status=alive")["members"]) == members


def leaders(url: str, topic: str) -> dict[int, str]:
    """The leader's URL of every partition that has one."""
    entries = local.get(url, f"/v1/routes?topic={topic}")["topics"][topic]["partitions"]
    return {entry["partition"]: entry["leader_url"] for entry in entries if entry["leader_url"]}
