"""Everything here needs a real Serf agent. Where there is none, nothing is collected and the end of the run
says so, loudly: silence would look like success."""

import os

import pytest
import serf_binary

MISSING = serf_binary.find() is None
collect_ignore_glob = ["test_*.py"] if MISSING else []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The reason comes from scripts/test, which tried to fetch the binary."""
    if MISSING:
        reason = os.environ.get(
            serf_binary.REASON_VARIABLE, f"no `serf` on PATH and no {serf_binary.VARIABLE}"
        )
        terminalreporter.section("the tests with real Serf agents DID NOT RUN", sep="!", red=True, bold=True)
        terminalreporter.line(f"{reason}; scripts/test fetches the binary by itself where apt has a network")
