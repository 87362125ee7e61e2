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
from functools import partial

from shoal.agent.config import SETTINGS, AgentConfig
from shoal.agent.process.config_source import ConfigSource
from shoal.agent.process.service_manager import VARIABLES, ServiceManager
from shoal.agent.process.signals import asked_by_signals
from shoal.agent.settings import Effect

logger = logging.getLogger("shoal.agent")


async def run_cores(config: AgentConfig, source: ConfigSource | None, manager: ServiceManager) -> int:
    """Run one agent per core until they end; 0 if all ended well.

    SIGTERM, SIGINT and SIGHUP are passed on, each time; at SIGHUP each agent reads the file by itself. When
    one agent ends unasked the others are asked to leave: a host with fewer agents than asked for would go
    unnoticed.
    """
    assert config.cores > 1
    agents: list[asyncio.subprocess.Process] = []

    def pass_on(number: signal.Signals) -> None:
        for agent in agents:
            if agent.returncode is None:
                agent.send_signal(number)

    def stop() -> None:
        manager.stopping()
        pass_on(signal.SIGTERM)

    reload = None if source is None else partial(pass_on, signal.SIGHUP)
    try:
        with asked_by_signals(stop, reload), manager:
            for core in range(config.cores):
                started = await _start(config.for_core(core), source)
                agents.append(started)
            manager.ready(f"{config.cores} agents started")
            return await _until_all_ended(agents)
    finally:
        for agent in agents:
            if agent.returncode is None:
                agent.kill()
                await agent.wait()


async def _start(config: AgentConfig, source: ConfigSource | None) -> asyncio.subprocess.Process:
    """The configuration travels as SHOAL_ variables: above a file, and no flag is given here. What the file
    may change later is left to it. The service manager knows this process alone."""
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
