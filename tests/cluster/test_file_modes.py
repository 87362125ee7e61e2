"""Files of a real agent, as other users of its host meet them."""

from __future__ import annotations

import os
import pathlib
import stat
from collections.abc import Callable
from typing import Any

import pytest
from real_agents import run_shoal, wait_until

pytestmark = pytest.mark.slow


def test_other_users_read_no_file_of_an_agent(start_cluster: Callable[..., Any]) -> None:
    """Whoever made its directory, and with whichever umask: records and keys of sessions are in there. The
    group keeps what the umask gives it, for backups."""
    former = os.umask(0o022)
    try:
        agents = start_cluster(1)
        made = run_shoal("--agent", agents.agents[0].url, "topic", "create", "orders")
    finally:
        os.umask(former)
    assert made.returncode == 0, made.stderr
    data = pathlib.Path(agents.directory) / "data" / agents.agents[0].name
    wait_until(lambda: len(list((data / "topics").iterdir())) == 2, "the catalog and the topic have logs")
    found = {path: stat.S_IMODE(path.lstat().st_mode) for path in data.rglob("*")}
    assert {path.name for path in found} >= {"cluster.a", "identity.a", "topics"}
    assert {path: oct(mode) for path, mode in found.items() if mode & stat.S_IRWXO} == {}
    assert found[data / "cluster.a"] & stat.S_IRGRP
