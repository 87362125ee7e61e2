"""These tests need others' generators and type checkers, of which two need Node. Where they are missing the
end of the run says so, loudly: silence would look like success."""

import os

import environment
import node_tools
import pytest

GENERATOR_MISSING = not environment.is_ready("clients")
NODE_MISSING = not node_tools.are_ready()
collect_ignore = [
    *(["test_python_client.py"] if GENERATOR_MISSING else []),
    *(["test_typescript_client.py", "test_pyright.py"] if NODE_MISSING else []),
]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The reason comes from scripts/test, which tried to install them."""
    missing = []
    if GENERATOR_MISSING:
        missing.append("openapi-python-client is not installed; scripts/test does it")
    if NODE_MISSING:
        reason = os.environ.get(node_tools.REASON_VARIABLE, "scripts/test installs its packages with npm")
        missing.append(f"no openapi-typescript, no pyright: {reason}")
    if missing:
        title = "tests with others' generators and checkers DID NOT RUN"
        terminalreporter.section(title, sep="!", red=True, bold=True)
        for line in missing:
            terminalreporter.line(line)
