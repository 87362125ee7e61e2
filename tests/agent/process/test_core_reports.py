"""Several agents of one command report to their first process, which answers for all of them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest

from shoal.agent.process.core_reports import PARTS_OF_LIMIT, CoreReports
from shoal.agent.process.service_manager import ServiceManager

LIMIT_S = 30.0
MANAGER = {"NOTIFY_SOCKET": "@nobody", "WATCHDOG_USEC": str(int(LIMIT_S * 1e6))}
OTHER_PROGRAM = """
import socket, sys
sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
sender.sendto(sys.argv[2].encode(), "\\0" + sys.argv[1][1:])
"""


class World:
    """Reports of this process, and of another one."""

    def __init__(self, count: int, environment: dict[str, str] | None = None) -> None:
        self.now_s = 1_000.0
        self.ready = 0
        manager = ServiceManager(MANAGER if environment is None else environment, os.getpid())
        self.reports = CoreReports(manager, count, self._on_ready, lambda: self.now_s)

    def _on_ready(self) -> None:
        self.ready += 1

    def own(self) -> ServiceManager:
        """As an agent of this process has it."""
        return ServiceManager(self.reports.variables, os.getpid())

    def other(self, message: str) -> int:
        """From another process, which is gone then."""
        address = self.reports.variables["NOTIFY_SOCKET"]
        with subprocess.Popen([sys.executable, "-c", OTHER_PROGRAM, address, message]) as sender:
            assert sender.wait(60) == 0
            return sender.pid

    async def turn(self) -> None:
        """What was sent has been read."""
        for _ in range(3):
            await asyncio.sleep(0)


async def test_ready_when_all_are_and_once() -> None:
    """Whatever else they say; an agent that starts again in its process is no second one."""
    world = World(1)
    with world.reports:
        world.own().tell("READY=1")
        await world.turn()
        assert world.ready == 0, "nobody was expected yet"
        world.reports.expect(os.getpid())
        for line in ("STATUS=READY=1", "RELOADING=1", "WATCHDOG=1"):
            world.own().tell(line)
        await world.turn()
        assert world.ready == 0
        for _ in range(2):
            world.own().tell("READY=1", "STATUS=listening")
        await world.turn()
        assert world.ready == 1


async def test_other_processes_are_not_listened_to() -> None:
    """Any process of the host can send to an abstract name."""
    world = World(1)
    with world.reports:
        world.reports.expect(os.getpid())
        stranger = await asyncio.to_thread(world.other, "READY=1")
        await world.turn()
        assert world.ready == 0
        assert stranger not in (os.getpid(), 0)


async def test_one_that_says_nothing_is_missed() -> None:
    """Within the limit, so that the manager hears nothing either; a process that has ended is not waited
    for."""
    world = World(2)
    mine, gone = [os.getpid()], 1
    with world.reports:
        world.reports.expect(os.getpid())
        assert world.reports.all_turn(mine), "it starts: the manager has a limit of its own for that"
        world.own().tell("READY=1")
        await world.turn()
        world.now_s += PARTS_OF_LIMIT * LIMIT_S
        assert world.reports.all_turn(mine)
        world.now_s += 1.0
        assert not world.reports.all_turn(mine)
        assert world.reports.all_turn([])
        world.own().tell("WATCHDOG=1")
        await world.turn()
        assert world.reports.all_turn([*mine, gone])
        assert world.own().watchdog_s == LIMIT_S


@pytest.mark.parametrize("environment", [{}, {"WATCHDOG_USEC": "1000000"}])
async def test_without_a_manager_agents_report_to_nobody(environment: dict[str, str]) -> None:
    """No socket, no variables."""
    world = World(1, environment)
    with world.reports:
        assert world.reports.variables == {}


async def test_without_a_watchdog_nobody_is_missed() -> None:
    """They are ready all the same."""
    world = World(1, {"NOTIFY_SOCKET": "@nobody"})
    with world.reports:
        world.reports.expect(os.getpid())
        assert list(world.reports.variables) == ["NOTIFY_SOCKET"]
        world.own().tell("READY=1")
        await world.turn()
        world.now_s += 1e6
        assert world.ready == 1
        assert world.reports.all_turn([os.getpid()])
