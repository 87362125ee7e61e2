"""What systemd hears, at a socket that stands for it."""

from __future__ import annotations

import asyncio
import os
import pathlib
import secrets
import socket
import time
from collections.abc import Iterator

import pytest

from shoal.agent.process.service_manager import ServiceManager

LIMIT_USEC = 300_000
PID = 4711


@pytest.fixture(params=["abstract", "path"])
def manager(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[tuple[str, socket.socket]]:
    """Its address, and the end at which it listens."""
    address = f"@shoal-{secrets.token_hex(6)}" if request.param == "abstract" else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        heard.setblocking(False)
        yield address, heard


async def received(heard: socket.socket) -> str:
    data = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(heard, 4_096), 60)
    return data.decode()


def nothing_more(heard: socket.socket) -> bool:
    try:
        heard.recv(4_096)
    except BlockingIOError:
        return True
    return False


async def test_ready_status_and_stopping_are_told(manager: tuple[str, socket.socket]) -> None:
    """By abstract sockets and by those in the file system; a text forges no second message."""
    address, heard = manager
    told = ServiceManager({"NOTIFY_SOCKET": address}, PID)
    with told:
        told.ready("listening: http://127.0.0.1:7070")
        assert await received(heard) == "READY=1\nSTATUS=listening: http://127.0.0.1:7070"
        told.status("waiting:\nREADY=1")
        assert await received(heard) == "STATUS=waiting: READY=1"
        told.status("cannot read /data/\udcff")
        assert await received(heard) == "STATUS=cannot read /data/\\udcff"
        told.stopping()
        assert await received(heard) == "STOPPING=1"
    assert nothing_more(heard)


async def test_a_reload_is_told_of_an_agent_that_is_ready(manager: tuple[str, socket.socket]) -> None:
    """With the machine's monotonic time, as Type=notify-reload wants it. One that starts or stops would be
    called ready by it, and says nothing."""
    address, heard = manager
    told = ServiceManager({"NOTIFY_SOCKET": address}, PID)
    with told:
        with told.reloading():
            assert nothing_more(heard)
        assert nothing_more(heard)
        told.ready("")
        assert (await received(heard)).startswith("READY=1")
        before_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1_000
        with told.reloading():
            began, when = (await received(heard)).split("\n")
            assert began == "RELOADING=1"
            assert 0 <= int(when.removeprefix("MONOTONIC_USEC=")) - before_us < 60_000_000
            assert nothing_more(heard)
        assert await received(heard) == "READY=1"
        told.stopping()
        assert await received(heard) == "STOPPING=1"
        with told.reloading():
            assert nothing_more(heard)
        assert nothing_more(heard)


@pytest.mark.machine_clock
async def test_the_watchdog_is_fed_by_the_loop_and_by_nothing_else(
    manager: tuple[str, socket.socket],
) -> None:
    """Several times within the limit while the loop turns; not once while it hangs."""
    address, heard = manager
    variables = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": str(LIMIT_USEC), "WATCHDOG_PID": str(PID)}
    with ServiceManager(variables, PID) as told:
        told.ready("listening")
        assert (await received(heard)).startswith("READY=1")
        assert [await received(heard) for _ in range(3)] == ["WATCHDOG=1"] * 3
        while not nothing_more(heard):
            pass
        hung_until = asyncio.get_running_loop().time() + 2 * LIMIT_USEC / 1e6
        while asyncio.get_running_loop().time() < hung_until:
            pass
        assert nothing_more(heard)
        assert await received(heard) == "WATCHDOG=1"
    await asyncio.sleep(LIMIT_USEC / 1e6)
    while not nothing_more(heard):
        pass
    await asyncio.sleep(LIMIT_USEC / 1e6)
    assert nothing_more(heard), "nothing is told any more"


@pytest.mark.parametrize(
    "variables",
    [
        {"WATCHDOG_USEC": "1000", "WATCHDOG_PID": str(PID + 1)},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "soon"},
        {},
    ],
)
async def test_a_watchdog_that_watches_another_process_is_not_fed(
    manager: tuple[str, socket.socket], variables: dict[str, str]
) -> None:
    """As of a process that was started by the watched one."""
    address, heard = manager
    with ServiceManager({"NOTIFY_SOCKET": address, **variables}, PID) as told:
        told.ready("listening")
        assert (await received(heard)).startswith("READY=1")
        await asyncio.sleep(0.05)
        assert nothing_more(heard)


async def test_a_manager_that_does_not_listen_costs_one_line(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The agent works all the same; without a manager nothing is said."""
    with ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "nobody")}, os.getpid()) as told:
        told.ready("listening")
    assert [vars(record)["event"] for record in caplog.records] == ["service-manager-silent"]
    assert all(vars(record)["repeats"] for record in caplog.records)
    caplog.clear()
    with ServiceManager({}, os.getpid()) as told:
        told.ready("listening")
        told.stopping()
    assert caplog.records == []
