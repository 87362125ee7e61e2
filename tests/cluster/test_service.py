"""A real agent under a service manager: what the manager hears, SIGHUP, and a broken configuration file."""

from __future__ import annotations

import os
import pathlib
import secrets
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from log_reader import events
from real_agents import shoal_command, wait_until

pytestmark = pytest.mark.slow
WATCHDOG_USEC = 3_000_000


class Managed(NamedTuple):
    """An agent, its configuration file, its log, and what its manager has heard."""

    process: subprocess.Popen[bytes]
    file: pathlib.Path
    log: str
    heard: list[str]
    name: str

    def told(self, event: str, count: int = 1) -> dict[str, Any]:
        """Waits for that many lines of the event; the newest."""
        wait_until(lambda: len(events(self, event)) >= count, event)
        return events(self, event)[-1]


def listen(manager: socket.socket, heard: list[str]) -> None:
    """Until it is shut down."""
    while message := manager.recv(4_096):
        heard.append(message.decode())


@pytest.fixture(params=["1", "2"])
def agent(tmp_path: pathlib.Path, request: pytest.FixtureRequest) -> Iterator[Managed]:
    """Alone, or two of one command; with all settings in its file."""
    file, log, heard = tmp_path / "shoal.toml", tmp_path / "agent.log", list[str]()
    cluster = f"test-{secrets.token_hex(4)}"
    file.write_text(
        f"data = '{tmp_path}/data'\ncluster = '{cluster}'\nname = 'cod'\ncores = {request.param}\n"
        f"expect = {request.param}\nmdns = true\nlog_level = 'info'\n"
    )
    address = f"shoal-{secrets.token_hex(6)}"
    variables = {"NOTIFY_SOCKET": f"@{address}", "WATCHDOG_USEC": str(WATCHDOG_USEC)}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, open(log, "wb") as output:
        manager.bind(f"\0{address}")
        reader = threading.Thread(target=listen, args=(manager, heard))
        reader.start()
        process = subprocess.Popen(
            [shoal_command(), "agent", "--config", str(file)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment | variables,
        )
        try:
            yield Managed(process, file, str(log), heard, "cod")
        finally:
            process.kill()
            process.wait()
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
                last.sendto(b"", f"\0{address}")
            reader.join()


def test_a_manager_hears_of_the_agent_and_a_reload_changes_what_it_may(agent: Managed) -> None:
    """Ready, alive, stopping; at SIGHUP each agent follows the file, or all keep what they had."""
    cores = agent.file.read_text().count("cores = 2") + 1
    agent.told("ready", cores)
    assert agent.heard[0].startswith("READY=1\nSTATUS=")
    wait_until(lambda: agent.heard.count("WATCHDOG=1") >= 2, "the watchdog is fed")

    good = agent.file.read_text()
    agent.file.write_text(good.replace("'info'", "'debug'") + "replace_after = '1h'\nweight = 3\n")
    agent.process.send_signal(signal.SIGHUP)
    told = agent.told("reloaded", 1 if cores == 1 else 1 + cores)["message"]
    assert "log_level info -> debug, replace_after 300000 -> 3600000" in told
    assert agent.told("reload-needs-restart")["message"].endswith("restart: weight")

    agent.file.write_text(good.replace("'info'", "'loud'"))
    agent.process.send_signal(signal.SIGHUP)
    refused = agent.told("reload-refused")["message"]
    line = good.splitlines().index("log_level = 'info'") + 1
    assert f"nothing has changed: {agent.file}, line {line}, key log_level" in refused
    assert agent.process.poll() is None

    agent.process.send_signal(signal.SIGTERM)
    assert agent.process.wait(60) == 0
    assert "STOPPING=1" in agent.heard


def test_an_agent_without_a_file_ends_with_its_terminal(start_cluster: Callable[..., Any]) -> None:
    """SIGHUP is like SIGTERM there: nothing could be read again."""
    agents = start_cluster(1)
    (alone,) = agents.agents
    alone.signal(signal.SIGHUP)
    wait_until(lambda: not alone.is_alive(), "it has ended")
    assert len(events(alone, "leaving-the-cluster")) == 1
