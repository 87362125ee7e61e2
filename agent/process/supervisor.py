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
from collections.abc import Callable

from shoal.agent.config import SETTINGS, AgentConfig
from shoal.agent.process.config_source import ConfigSource
from shoal.agent.process.service_manager import VARIABLES, ServiceManager
from shoal.agent.process.signals import asked_by_signals
from shoal.agent.settings import Effect

logger = logging.getLogger("shoal.agent")


class Cores:
    """The agents of one command."""

    def __init__(self, config: AgentConfig, source: ConfigSource | None, manager: ServiceManager) -> None:
        assert config.cores > 1
        self._config = config
        self._source = source
        self._manager = manager
        self._agents: list[asyncio.subprocess.Process] = []

    async def run(self, on_hangup: Callable[[], None] | None) -> int:
        """One agent per core until they end; 0 if all ended well. SIGHUP calls `on_hangup`.

        SIGTERM and SIGINT are passed on, each time. When one agent ends unasked the others are asked to
        leave: a host with fewer agents than asked for would go unnoticed.
        """
        try:
            with asked_by_signals(self._stop, on_hangup), self._manager:
                for core in range(self._config.cores):
                    started = await _start(self._config.for_core(core), self._source)
                    self._agents.append(started)
                self._manager.ready(f"{self._config.cores} agents started")
                return await _until_all_ended(self._agents)
        finally:
            for agent in self._agents:
                if agent.returncode is None:
                    agent.kill()
                    await agent.wait()

    def _stop(self) -> None:
        self._manager.stopping()
        self._send(signal.SIGTERM)

    def reload(self) -> None:
        """Each agent reads the file by itself."""
        self._send(signal.SIGHUP)

    def _send(self, number: signal.Signals) -> None:
        for agent in self._agents:
            if agent.returncode is None:
                agent.send_signal(number)


async def _start(config: AgentConfig, source: ConfigSource | None) -> asyncio.subprocess.Process:
    """The configuration travels as SHOAL_ variables: above a file, and no flag is given here. Settings
    that the file may change later are left to it. The service manager knows this process alone."""
    variables = config.as_environment()
    if source is not None and source.path:
        for known in SETTINGS.values():
            if known.effect is Effect.RELOAD and source.is_fixed(known.name) is None:
                variables.pop(known.variable, None)
        variables["SHOAL_CONFIG"] = source.path
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("SHOAL_") and name not in VARIABLES
    }
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "shoal.agent",
        "agent",
        env=inherited | variables,
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
