"""`--cores N`: N agents on this host, one process each, started and ended together.

Law of this file: it starts processes of the same command and passes signals on. One agent owns one core
(decision 9). Those of one host share a failure domain: replicas of a partition prefer other hosts.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from shoal.agent.config import AgentConfig
from shoal.agent.process.signals import asked_by_signals

logger = logging.getLogger("shoal.agent")


async def run_cores(config: AgentConfig) -> int:
    """Run one agent per core until they end; 0 if all ended well.

    SIGTERM and SIGINT are passed on, each time. When one agent ends unasked the others are asked to leave: a
    host with fewer agents than asked for would go unnoticed.
    """
    assert config.cores > 1
    agents: list[asyncio.subprocess.Process] = []

    def pass_on() -> None:
        for agent in agents:
            if agent.returncode is None:
                agent.terminate()

    try:
        with asked_by_signals(pass_on):
            for core in range(config.cores):
                agents.append(await _start(config.for_core(core)))  # noqa: PERF401 -- each must be known at once
            return await _until_all_ended(agents)
    finally:
        for agent in agents:
            if agent.returncode is None:
                agent.kill()
                await agent.wait()


async def _start(config: AgentConfig) -> asyncio.subprocess.Process:
    """The whole configuration travels as SHOAL_ variables: above a file, and no flag is given here."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "shoal.agent",
        "agent",
        env=inherited | config.as_environment(),
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
