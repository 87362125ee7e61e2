"""Lets the store's tests import their neighbours and the conformance suite, gives them a disk with room, and
says when the tests on FUSE cannot run."""

import os
import sys
from pathlib import Path

import pytest

from shoal.segment_store.disk import system_calls

DISK_BYTES = 2**40

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "conformance")]


def _why_no_fuse() -> str | None:
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        return f"/dev/fuse cannot be opened: {error.strerror}"
    return None


@pytest.fixture(autouse=True)
def disk_with_room(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of it is free, however full the machine's is: a log keeps spare files only where there is room. A
    test of another disk patches the same place. The tests of disks themselves ask the real one."""
    if request.path.parent.name != "disk":
        monkeypatch.setattr(system_calls, "free_bytes", lambda _: (DISK_BYTES // 2, DISK_BYTES))


NO_FUSE = _why_no_fuse()
collect_ignore = [] if NO_FUSE is None else ["test_fuse.py"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Silence would look like success."""
    if NO_FUSE is not None:
        title = "the tests of power failures on a real file system DID NOT RUN"
        terminalreporter.section(title, sep="!", red=True, bold=True)
        terminalreporter.line(NO_FUSE)
