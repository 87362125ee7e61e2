"""Agents that must not start: each says one line that tells what is wrong, and exits with a code."""

from __future__ import annotations

import pathlib
import socket
from collections.abc import Callable
from typing import Any

import pytest
from real_agents import run_shoal, wait_until

pytestmark = pytest.mark.slow


def one_line(said: str, *words: str) -> None:
    """The error is one line, no traceback, and names what matters."""
    lines = [line for line in said.splitlines() if line.strip()]
    assert "Traceback" not in said
    assert lines, "nothing was said"
    for word in words:
        assert word in lines[-1], said


def test_a_data_directory_that_a_running_agent_holds(start_cluster: Callable[..., Any]) -> None:
    """The second agent is refused; the first goes on."""
    agents = start_cluster(1)
    data = agents.directory / "data" / agents.agents[0].name
    refused = run_shoal("agent", "--data", str(data))
    assert refused.returncode != 0
    one_line(refused.stderr, str(data), str(agents.agents[0].pid))
    assert agents.agents[0].is_alive()


@pytest.mark.cold_start
def test_an_agent_says_when_it_is_ready_and_where(start_cluster: Callable[..., Any]) -> None:
    """One line with its URL and its cluster: what whoever starts it in the background waits for."""
    agents = start_cluster(1)
    agent = agents.agents[0]
    log = pathlib.Path(agent.log)
    wait_until(lambda: "ready: " in log.read_text(), "the agent is ready")
    assert log.read_text().count(f"ready: {agent.url} ({agent.name}, cluster ") == 1


def test_a_data_directory_of_another_cluster(start_cluster: Callable[..., Any]) -> None:
    """An agent does not take its data into another cluster."""
    agents = start_cluster(1)
    data = agents.directory / "data" / agents.agents[0].name
    agents.stop()
    refused = run_shoal("agent", "--data", str(data), "--cluster", "another")
    assert refused.returncode != 0
    one_line(refused.stderr, "another")


def test_an_explicit_port_in_use(tmp_path: pathlib.Path) -> None:
    """A port that was asked for and is taken is an error, never silently another one."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = run_shoal("agent", "--data", str(tmp_path / "data"), "--http-port", str(port))
    assert refused.returncode != 0
    one_line(refused.stderr, str(port))


def test_a_data_directory_that_cannot_be_written(tmp_path: pathlib.Path) -> None:
    """A path through a file cannot become a directory, for root neither."""
    (tmp_path / "file").write_text("")
    refused = run_shoal("agent", "--data", str(tmp_path / "file" / "data"))
    assert refused.returncode != 0
    one_line(refused.stderr, str(tmp_path / "file"))


def test_default_ports_step_up(start_cluster: Callable[..., Any]) -> None:
    """Two agents with default ports on one host both come up, on ports of their own."""
    agents = start_cluster(2)
    urls = {agent.url for agent in agents.agents}
    assert len(urls) == 2
    wait_until(lambda: all(agent.is_alive() for agent in agents.agents), "both run")
