"""`--cores N`: N agents on this host, one process each, started and ended together.

Law of this file: it starts processes of the same command and passes signals on. One agent owns one core
(decision 9). Those of one host share a failure domain: replicas of a partition prefer other hosts.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping

from shoal.agent.config import SETTINGS, AgentConfig
from shoal.agent.process.config_source import ConfigSource
from shoal.agent.process.core_reports import CoreReports
from shoal.agent.process.service_manager import VARIABLES, ServiceManager
from shoal.agent.process.signals import asked_by_signals, held_back
from shoal.agent.settings import Effect

FIRST_PROCESS = "SHOAL_FIRST_PROCESS"
"""The variable by which an agent knows the process that started it."""
_PR_SET_PDEATHSIG = 1  # prctl(2)
logger = logging.getLogger("shoal.agent")


class Cores:
    """The agents of one command."""

    def __init__(self, config: AgentConfig, source: ConfigSource | None, manager: ServiceManager) -> None:
        assert config.cores > 1
        self._config = config
        self._source = source
        self._manager = manager
        self._agents: list[asyncio.subprocess.Process] = []
        self._is_stopping = False

    async def run(self, on_hangup: Callable[[], None] | None) -> int:
        """One agent per core until they end; 0 if all ended well. SIGHUP calls `on_hangup`.

        SIGTERM and SIGINT are passed on, each time. When one agent ends unasked the others are asked to
        leave: a host with fewer agents than asked for would go unnoticed.
        """
        try:
            with asked_by_signals(self._stop, on_hangup), self._manager, self._reports() as reports:
                for core in range(self._config.cores):
                    config = self._config.for_core(core)
                    started = await _start(config, self._source, reports.variables)
                    reports.expect(started.pid)
                    self._agents.append(started)
                return await _until_all_ended(self._agents)
        finally:
            for agent in self._agents:
                if agent.returncode is None:
                    agent.kill()
                    await agent.wait()

    def _reports(self) -> CoreReports:
        def all_ready() -> None:
            if not self._is_stopping:
                self._manager.ready(f"{len(self._agents)} agents listen", all_turn)

        def all_turn() -> bool:
            return reports.all_turn([agent.pid for agent in self._agents if agent.returncode is None])

        now_s = asyncio.get_running_loop().time
        reports = CoreReports(self._manager, self._config.cores, all_ready, now_s)
        return reports  # both callbacks come later

    def _stop(self) -> None:
        self._is_stopping = True
        self._manager.stopping()
        self._send(signal.SIGTERM)

    def reload(self) -> None:
        """Each agent reads the file by itself."""
        self._send(signal.SIGHUP)

    def _send(self, number: signal.Signals) -> None:
        for agent in self._agents:
            if agent.returncode is None:
                agent.send_signal(number)


def variables_for(config: AgentConfig, source: ConfigSource | None) -> dict[str, str]:
    """The configuration of one agent travels as SHOAL_ variables: above a file, and no flag is given to it.
    Settings that the file may change later are left to it. A pipe says everything once, and not to it."""
    variables = config.as_environment() | {FIRST_PROCESS: str(os.getpid())}
    if source is not None and source.can_change:
        for known in SETTINGS.values():
            if known.effect is Effect.RELOAD and source.is_fixed(known.name) is None:
                variables.pop(known.variable, None)
        variables["SHOAL_CONFIG"] = source.path
    return variables


def end_with_first_process(environment: Mapping[str, str]) -> None:
    """In one of several agents: SIGTERM once the first process is gone, which cannot pass one on when it was
    killed. Nobody else would end the agent, and its directory would be in use."""
    first = environment.get(FIRST_PROCESS)
    if first is None:
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if str(os.getppid()) != first:  # before the kernel was asked
        os.kill(os.getpid(), signal.SIGTERM)


async def _start(
    config: AgentConfig, source: ConfigSource | None, reporting: Mapping[str, str]
) -> asyncio.subprocess.Process:
    """A signal that is passed on early waits until the agent takes signals. `reporting`: variables for its
    reports, in place of the service manager's."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("SHOAL_") and name not in VARIABLES
    }
    with held_back():
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "shoal.agent",
            "agent",
            env={**inherited, **variables_for(config, source), **reporting},
            stdin=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C reaches them once, through here
        )


async def _until_all_ended(agents: list[asyncio.subprocess.Process]) -> int:
    waits = {asyncio.create_task(agent.wait()): agent for agent in agents}
    pending = set(waits)
    worst = 0
    while pending:
        ended, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            code = task.result()
            if code != 0:
                logger.error("agent process %d ended with code %d; the others leave", waits[task].pid, code)
                worst = worst or (code if code > 0 else 1)
        if worst:
            for task in pending:
                waits[task].terminate()
            break
    if pending:
        await asyncio.wait(pending)
    return worst
