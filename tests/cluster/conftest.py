"""The fixture that starts real agents and ends them by their own process ids."""

from __future__ import annotations

import pathlib
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import cluster as local
import pytest
from real_agents import is_ready, shoal_command, wait_until
from small_disk import REASON


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Silence would look like success."""
    if REASON:
        terminalreporter.section("the log of a full disk WAS NOT READ", sep="!", red=True, bold=True)
        terminalreporter.line(f"no small disk can be mounted: {REASON}")


@pytest.fixture
def start_cluster(tmp_path: pathlib.Path) -> Iterator[Callable[..., Any]]:
    """Starts `count` agents that find each other by themselves; all are ended when the test ends."""
    started: list[Any] = []

    def start(count: int = 3) -> Any:
        agents = local.LocalCluster(tmp_path / secrets.token_hex(3))
        started.append(agents)
        names = tuple(local.NAMES[:count])
        agents.start(shoal_command(), f"test-{secrets.token_hex(4)}", names)
        wait_until(lambda: all(is_ready(agent.url, count) for agent in agents.agents), "the agents are ready")
        return agents

    yield start
    for agents in started:
        agents.stop()
