"""A CPython that is not on this machine is named at the end of the run: silence would look like success."""

import pytest

from tests.agent.process.interpreters import FOUND, VERSIONS


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """In CI each version has a run of its own."""
    missing = [f"{major}.{minor}" for major, minor in VERSIONS if (major, minor) not in FOUND]
    if missing:
        terminalreporter.section("the event loop WAS NOT TRIED on each CPython", sep="!", red=True, bold=True)
        terminalreporter.line(
            f"not on this machine: CPython {', '.join(missing)} (pyenv's and PATH's are found)"
        )
