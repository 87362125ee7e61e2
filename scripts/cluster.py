"""Three agents on loopback, for people: start them, remember them, end them by their own process ids.

Law of this file: it starts processes and asks them over HTTP; it imports nothing of Shoal, as its users.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

NAMES = ("herring", "sardine", "anchovy")
START_TIMEOUT_SECONDS = 60.0
STOP_TIMEOUT_SECONDS = 15.0
REQUEST_TIMEOUT_SECONDS = 10.0
POLL_SECONDS = 0.1


class ClusterProblem(Exception):
    """The agents did not do what they should: one line that says what, and where their log is."""


@dataclasses.dataclass
class AgentProcess:
    """One running agent. `start_ticks` (from /proc) proves that the id still names this process."""

    name: str
    pid: int
    start_ticks: int
    log: str
    url: str = ""
    exit_code: int | None = None
    """Once it has ended as a child of this process; negative: by that signal."""

    def is_alive(self) -> bool:
        with contextlib.suppress(ChildProcessError):  # it may be another run's child
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.exit_code = os.waitstatus_to_exitcode(status)
        return _start_ticks(self.pid) == self.start_ticks

    def signal(self, number: int) -> None:
        if self.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def last_words(self) -> str:
        with contextlib.suppress(OSError):
            lines = pathlib.Path(self.log).read_text(errors="replace").strip().splitlines()
            return _message(lines[-1]) if lines else "it said nothing"
        return "it said nothing"


class LocalCluster:
    """Agents that share a directory: their data, their logs, and a list that outlives this process."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.directory = directory
        self.agents: list[AgentProcess] = []
        self._cluster = ""
        self._program: list[str] = []
        self._installed: dict[str, tuple[list[str], dict[str, str]]] = {}
        self._list = directory / "agents.json"

    def install(self, name: str, program: Sequence[str], variables: Mapping[str, str]) -> None:
        """The agent of that name is started so from now on: by this program instead of `shoal`, with these
        further variables."""
        self._installed[name] = (list(program), dict(variables))

    def start(self, shoal: str | Sequence[str], cluster: str, names: tuple[str, ...] = NAMES) -> None:
        """Starts one agent per name and waits until each has said its URL. Raises ClusterProblem. `shoal`:
        the command, or a program with arguments of its own that goes on as it."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._program = [shoal] if isinstance(shoal, str) else list(shoal)
        self._cluster = cluster
        for name in names:
            self.agents.append(self._spawn(name))
            self._remember()
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        for agent in self.agents:
            agent.url = _wait_for_url(agent, deadline)
        self._remember()

    def add(self, name: str) -> AgentProcess:
        """One more agent of the same cluster, empty."""
        agent = self._spawn(name)
        self.agents.append(agent)
        agent.url = _wait_for_url(agent, time.monotonic() + START_TIMEOUT_SECONDS)
        self._remember()
        return agent

    def restart(self, agent: AgentProcess) -> None:
        """Starts an agent that has ended again, on its own data, under its own ports."""
        assert not agent.is_alive()
        again = self._spawn(agent.name)
        again.url = _wait_for_url(again, time.monotonic() + START_TIMEOUT_SECONDS)
        self.agents[self.agents.index(agent)] = again
        self._remember()

    def _spawn(self, name: str) -> AgentProcess:
        log = self.directory / f"{name}.log"
        with open(log, "wb") as output:
            process = subprocess.Popen(
                self._arguments(name),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **self._program_of(name)[1]},
                start_new_session=True,  # a Ctrl-C meant for the show must not reach them unasked
            )
        process.returncode = 0  # it is waited for by its id, in is_alive: not by this object
        return AgentProcess(name, process.pid, _start_ticks(process.pid) or 0, str(log))

    def _arguments(self, name: str) -> list[str]:
        program, _ = self._program_of(name)
        return [*program, "agent", *self.options(name)]

    def options(self, name: str) -> list[str]:
        """Behind `shoal agent`, for the agent of that name."""
        data = str(self.directory / "data" / name)
        return ["--cluster", self._cluster, "--name", name, "--data", data]

    def _program_of(self, name: str) -> tuple[list[str], dict[str, str]]:
        return self._installed.get(name, (self._program, {}))

    def _remember(self) -> None:
        temporary = self._list.with_suffix(".new")
        temporary.write_text(json.dumps([dataclasses.asdict(agent) for agent in self.agents]))
        temporary.replace(self._list)

    def recall(self) -> None:
        """Reads the list that an earlier run left."""
        if self._list.exists():
            self.agents = [AgentProcess(**fields) for fields in json.loads(self._list.read_text())]

    def stop(self) -> int:
        """Ends every agent: SIGTERM first, SIGKILL for one that stays. Returns how many were running."""
        running = [agent for agent in self.agents if agent.is_alive()]
        for agent in running:
            agent.signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_TIMEOUT_SECONDS
        while any(agent.is_alive() for agent in running) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        for agent in running:
            agent.signal(signal.SIGKILL)
        while any(agent.is_alive() for agent in running):
            time.sleep(POLL_SECONDS)
        self._list.unlink(missing_ok=True)
        self.agents = []
        return len(running)

    def clear(self) -> None:
        """Removes what the agents stored. They must have ended."""
        assert not any(agent.is_alive() for agent in self.agents)
        shutil.rmtree(self.directory / "data", ignore_errors=True)

    def live(self) -> list[AgentProcess]:
        """The agents that still run."""
        return [agent for agent in self.agents if agent.is_alive()]


def get(url: str, path: str) -> Any:
    """One JSON answer. Raises OSError when the agent is not there, ClusterProblem when it refuses."""
    try:
        with urllib.request.urlopen(url + path, timeout=REQUEST_TIMEOUT_SECONDS) as answer:  # noqa: S310
            return json.load(answer)
    except urllib.error.HTTPError as error:
        with error:  # it is the answer, and holds its connection
            said = error.read(500).decode(errors="replace")
        raise ClusterProblem(f"{path}: {error.code} {said}") from error


def _message(line: str) -> str:
    """What people read of a line of an agent's log; a refusal before the log began is text."""
    try:
        return str(json.loads(line)["message"])
    except (ValueError, KeyError, TypeError):
        return line


def _wait_for_url(agent: AgentProcess, deadline: float) -> str:
    while time.monotonic() < deadline:
        said = pathlib.Path(agent.log).read_text(errors="replace")
        found = re.search(r"https?://[\w.:\[\]-]+:\d+", said)
        if found:
            return found.group(0)
        if not agent.is_alive() or _is_zombie(agent.pid):
            raise ClusterProblem(f"agent {agent.name} ended at its start: {agent.last_words()} ({agent.log})")
        time.sleep(POLL_SECONDS)
    raise ClusterProblem(f"agent {agent.name} did not come up in time: {agent.last_words()} ({agent.log})")


def _status_fields(pid: int) -> list[str]:
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    return text.rpartition(")")[2].split()  # the name in parentheses may hold spaces


def _start_ticks(pid: int) -> int | None:
    fields = _status_fields(pid)
    return int(fields[19]) if fields and fields[0] != "Z" else None


def _is_zombie(pid: int) -> bool:
    return _status_fields(pid)[:1] == ["Z"]
