"""`shoal dev` cleans up after runs that could not: only what is its own, and nobody's any more."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import time

import pytest

from shoal.agent.cli.agent import ABANDONED_SECONDS, DEV_PREFIX, clear_abandoned
from shoal.segment_store.disk.lock import LOCK_FILE, DirectoryLock

LATER = ABANDONED_SECONDS + 1.0


def dev_directory(parent: pathlib.Path, name: str) -> pathlib.Path:
    path = parent / f"{DEV_PREFIX}{name}"
    (path / "topics").mkdir(parents=True)
    (path / LOCK_FILE).write_text("")
    return path


def test_what_a_killed_run_left_is_removed(tmp_path: pathlib.Path) -> None:
    """Also by a process that ended without a word: its lock went with it."""
    killed = tmp_path / f"{DEV_PREFIX}killed"
    killed.mkdir()
    code = (
        "import os, sys; from shoal.segment_store.disk.lock import DirectoryLock; "
        "DirectoryLock(sys.argv[1]).acquire(); print('held', flush=True); os.kill(os.getpid(), 9)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(killed)], capture_output=True, timeout=60, check=False
    )
    assert ran.stdout == b"held\n"
    assert clear_abandoned(str(tmp_path), time.time() + LATER) == [str(killed)]
    assert list(tmp_path.iterdir()) == []


def test_what_lives_or_is_young_or_is_not_its_own_stays(tmp_path: pathlib.Path) -> None:
    """A run that holds its lock, one that begins, one without a lock, a link, a file, other names."""
    held = dev_directory(tmp_path, "held")
    lock = DirectoryLock(str(held))
    lock.acquire()
    try:
        young = dev_directory(tmp_path, "young")
        os.utime(young, (time.time() + LATER,) * 2)
        (tmp_path / f"{DEV_PREFIX}starting").mkdir()
        (tmp_path / f"{DEV_PREFIX}file").write_text("")
        precious = tmp_path / "precious"
        precious.mkdir()
        (precious / LOCK_FILE).write_text("")
        (tmp_path / f"{DEV_PREFIX}link").symlink_to(precious)
        before = sorted(tmp_path.iterdir())
        assert clear_abandoned(str(tmp_path), time.time() + LATER) == []
        assert sorted(tmp_path.iterdir()) == before
    finally:
        lock.release()


def test_what_is_another_users_stays(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/tmp is everybody's."""
    dev_directory(tmp_path, "theirs")
    monkeypatch.setattr("os.getuid", lambda: 4242)
    assert clear_abandoned(str(tmp_path), time.time() + LATER) == []
