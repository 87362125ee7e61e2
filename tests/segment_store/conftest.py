"""Lets the store's tests import their neighbours and the conformance suite, and says when the tests on FUSE
cannot run."""

import os
import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "conformance")]


def _why_no_fuse() -> str | None:
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        return f"/dev/fuse cannot be opened: {error.strerror}"
    return None


NO_FUSE = _why_no_fuse()
collect_ignore = [] if NO_FUSE is None else ["test_fuse.py"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Silence would look like success."""
    if NO_FUSE is not None:
        title = "the tests of power failures on a real file system DID NOT RUN"
        terminalreporter.section(title, sep="!", red=True, bold=True)
        terminalreporter.line(NO_FUSE)
