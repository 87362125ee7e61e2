"""A real agent under a service manager: what the manager hears, SIGHUP, and a broken configuration file."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import secrets
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import psutil
import pytest
from log_reader import events
from real_agents import is_ready, shoal_command, wait_until

from shoal.agent.config import AgentConfig
from shoal.agent.process.config_source import ConfigSource
from shoal.agent.process.supervisor import variables_for

pytestmark = [pytest.mark.slow, pytest.mark.cold_start]
WATCHDOG_USEC = 3_000_000


class Managed(NamedTuple):
    """An agent, its configuration file, its log, and what its manager has heard."""

    process: subprocess.Popen[bytes]
    file: pathlib.Path
    log: str
    heard: list[str]
    heard_at: list[float]
    name: str

    def told(self, event: str, count: int = 1) -> dict[str, Any]:
        """Waits for that many lines of the event; the newest."""
        wait_until(lambda: len(events(self, event)) >= count, event)
        return events(self, event)[-1]


def agents_of(managed: Managed) -> list[psutil.Process]:
    """The processes of `cores`, the first one first."""
    return sorted(psutil.Process(managed.process.pid).children(), key=lambda child: child.pid)


def listen(manager: socket.socket, heard: list[str], heard_at: list[float]) -> None:
    """Until it is shut down. Times are those of the monotonic clock, in seconds."""
    while message := manager.recv(4_096):
        heard_at.append(time.monotonic())
        heard.append(message.decode())


HELD = """
import os, pathlib, time
while "SHOAL_FIRST_PROCESS" in os.environ and pathlib.Path(os.environ["GATE"]).exists():
    time.sleep(0.02)
"""
"""Python runs it before anything else: agents that another process has started stay at their beginning."""


@pytest.fixture(params=["1", "2"])
def agent(tmp_path: pathlib.Path, request: pytest.FixtureRequest) -> Iterator[Managed]:
    """Alone, or two of one command; with all settings in its file."""
    with managed(tmp_path, request.param) as started:
        yield started


@pytest.fixture
def gate(tmp_path: pathlib.Path) -> pathlib.Path:
    """Until this file is gone."""
    (tmp_path / "held").mkdir()
    (tmp_path / "held" / "sitecustomize.py").write_text(HELD)
    (tmp_path / "gate").touch()
    return tmp_path / "gate"


@pytest.fixture
def held_agent(tmp_path: pathlib.Path, gate: pathlib.Path) -> Iterator[Managed]:
    """Two of one command, which both wait at the gate."""
    path = os.pathsep.join((str(tmp_path / "held"), *filter(None, [os.environ.get("PYTHONPATH")])))
    with managed(tmp_path, "2", PYTHONPATH=path, GATE=str(gate)) as started:
        wait_until(lambda: len(agents_of(started)) == 2, "the agents are started")
        yield started


@contextlib.contextmanager
def managed(tmp_path: pathlib.Path, cores: str, **more: str) -> Iterator[Managed]:
    """`more`: variables of its environment."""
    file, log, heard, heard_at = tmp_path / "shoal.toml", tmp_path / "agent.log", list[str](), list[float]()
    cluster = f"test-{secrets.token_hex(4)}"
    file.write_text(
        f"data = '{tmp_path}/data'\ncluster = '{cluster}'\nname = 'cod'\ncores = {cores}\n"
        f"expect = {cores}\nmdns = true\nlog_level = 'info'\n"
    )
    address = f"shoal-{secrets.token_hex(6)}"
    variables = {"NOTIFY_SOCKET": f"@{address}", "WATCHDOG_USEC": str(WATCHDOG_USEC)}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, open(log, "wb") as output:
        manager.bind(f"\0{address}")
        reader = threading.Thread(target=listen, args=(manager, heard, heard_at))
        reader.start()
        process = subprocess.Popen(
            [shoal_command(), "agent", "--config", str(file)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment | variables | more,
        )
        try:
            yield Managed(process, file, str(log), heard, heard_at, "cod")
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
    wait_until(lambda: agent.heard, "the manager hears of it")
    assert agent.heard[0].startswith("READY=1\nSTATUS=")
    wait_until(lambda: agent.heard.count("WATCHDOG=1") >= 2, "the watchdog is fed")

    good = agent.file.read_text()
    agent.file.write_text(good.replace("'info'", "'debug'") + "replace_after = '1h'\nweight = 3\n")
    agent.process.send_signal(signal.SIGHUP)
    told = agent.told("reloaded", 1 if cores == 1 else 1 + cores)["message"]
    assert "log_level info -> debug, replace_after 5m -> 1h" in told
    assert agent.told("reload-needs-restart")["message"].endswith("restart: weight")
    wait_until(lambda: agent.heard.count("READY=1") == 1, "the manager hears that it is ready again")
    said = [text for text in agent.heard if "RELOADING=1" in text or text == "READY=1"]
    assert [text.split("\n")[0] for text in said] == ["RELOADING=1", "READY=1"]

    agent.file.write_text(good.replace("'info'", "'loud'"))
    agent.process.send_signal(signal.SIGHUP)
    refused = agent.told("reload-refused")["message"]
    line = good.splitlines().index("log_level = 'info'") + 1
    assert f"nothing has changed: {agent.file}, line {line}, key log_level" in refused
    assert agent.process.poll() is None

    agent.process.send_signal(signal.SIGTERM)
    assert agent.process.wait(60) == 0
    wait_until(lambda: "STOPPING=1" in agent.heard, "the manager hears of the end")


def test_a_signal_to_agents_that_still_start_waits_until_they_listen_to_it(
    held_agent: Managed, gate: pathlib.Path
) -> None:
    """SIGHUP ends a process that has no handler yet."""
    agent = held_agent
    agent.file.write_text(agent.file.read_text().replace("'info'", "'debug'"))
    agent.process.send_signal(signal.SIGHUP)
    wait_until(lambda: all(signal.SIGHUP in pending(one) for one in agents_of(agent)), "it is passed on")
    assert agent.heard == []
    gate.unlink()
    agent.told("ready", 2)
    agent.told("reloaded", 3)
    agent.process.send_signal(signal.SIGTERM)
    assert agent.process.wait(60) == 0


@pytest.mark.parametrize("agent", ["2"], indirect=True)
def test_one_of_several_agents_that_hangs_lets_the_manager_wait(agent: Managed) -> None:
    """The first process turns all the same, and answers for all of them."""
    wait_until(lambda: agent.heard.count("WATCHDOG=1") >= 2, "the watchdog is fed")
    assert agent.heard[0] == "READY=1\nSTATUS=2 agents listen"
    hanging = agents_of(agent)[1]
    hanging.suspend()
    try:
        silent = WATCHDOG_USEC / 1e6
        wait_until(lambda: time.monotonic() - agent.heard_at[-1] > silent, "the manager hears nothing")
    finally:
        hanging.resume()
    count = len(agent.heard)
    wait_until(lambda: len(agent.heard) >= count + 2, "it is fed again")
    assert set(agent.heard[1:]) == {"WATCHDOG=1"}


def test_agents_that_still_start_end_in_order(held_agent: Managed, gate: pathlib.Path) -> None:
    """SIGTERM is no failure, however early."""
    held_agent.process.send_signal(signal.SIGTERM)
    wait_until(
        lambda: all(signal.SIGTERM in pending(one) for one in agents_of(held_agent)), "it is passed on"
    )
    gate.unlink()
    assert held_agent.process.wait(60) == 0


def pending(process: psutil.Process) -> set[int]:
    """Signals that were sent to it, and that it has not taken yet."""
    text = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    masks = [int(line.split()[1], 16) for line in text.splitlines() if line.startswith(("SigPnd", "ShdPnd"))]
    return {number for mask in masks for number in range(1, 65) if mask >> (number - 1) & 1}


@pytest.mark.parametrize("agent", ["2"], indirect=True)
@pytest.mark.parametrize("is_early", [True, False])
def test_agents_end_with_a_first_process_that_was_killed(agent: Managed, is_early: bool) -> None:
    """It passes no signal on any more, and nobody else would end them."""
    wait_until(lambda: len(agents_of(agent)) == 2, "the agents are started")
    running = agents_of(agent)
    if not is_early:
        agent.told("ready", 2)
    agent.process.kill()
    agent.process.wait()
    wait_until(lambda: not any(map(is_at_work, running)), "the agents end too")


def is_at_work(process: psutil.Process) -> bool:
    """Nobody may have asked how it ended."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_several_agents_follow_a_configuration_that_comes_through_a_pipe(tmp_path: pathlib.Path) -> None:
    """It says everything once, to the first process."""
    path = tmp_path / "shoal.toml"
    os.mkfifo(path)
    config = AgentConfig(data="d", cores=2, weight=7)
    variables = variables_for(config, ConfigSource({}, {}, str(path)))
    assert "SHOAL_CONFIG" not in variables
    assert AgentConfig.from_sources({}, variables, {}) == config
    path.unlink()
    path.write_text("weight = 7")
    variables = variables_for(config, ConfigSource({}, {}, str(path)))
    assert variables["SHOAL_CONFIG"] == str(path)
    assert "SHOAL_LOG_LEVEL" not in variables


def test_an_agent_whose_log_nobody_reads_serves_and_ends(tmp_path: pathlib.Path) -> None:
    """Its standard error is a pipe, and full."""
    reader, writer = os.pipe()
    filler = os.open(f"/proc/self/fd/{writer}", os.O_WRONLY | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(filler, b"x" * 4_096)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
    command = [shoal_command(), "agent", "--data", "data", "--cluster", f"test-{secrets.token_hex(4)}"]
    process = subprocess.Popen(
        [*command, "--http-port", "0", "--gossip-port", "0"], stderr=writer, cwd=tmp_path, env=environment
    )
    try:
        endpoints = tmp_path / "data" / "endpoints.json"
        url = wait_until(lambda: json.loads(endpoints.read_text())["url"], "the agent listens")
        wait_until(lambda: is_ready(url, 1), "it serves")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        for descriptor in (reader, writer, filler):
            os.close(descriptor)


def test_an_agent_without_a_file_ends_with_its_terminal(start_cluster: Callable[..., Any]) -> None:
    """SIGHUP is like SIGTERM there: nothing could be read again."""
    agents = start_cluster(1)
    (alone,) = agents.agents
    alone.signal(signal.SIGHUP)
    wait_until(lambda: not alone.is_alive(), "it has ended")
    assert len(events(alone, "leaving-the-cluster")) == 1
