"""A tool that is not on this machine is named at the end of the run: silence would look like success."""

import pytest

from tests.ops.found_tools import ENGINE, SYSTEMD


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was read as text only."""
    missing = [
        text
        for tool, text in (
            (ENGINE, "ops/Containerfile WAS NOT BUILT: no container engine answers"),
            (SYSTEMD, "ops/shoal.service WAS NOT VERIFIED: there is no systemd-analyze"),
        )
        if tool is None
    ]
    if missing:
        terminalreporter.section("files of ops/ were only read as text", sep="!", red=True, bold=True)
        for text in missing:
            terminalreporter.line(text)
