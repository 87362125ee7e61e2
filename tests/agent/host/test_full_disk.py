"""A full disk can be emptied: what makes room passes where appends are refused, whoever's disk is full."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from memory_disk import MemoryDisk

from shoal.agent.host.free_space import LAST_FREE_BYTES, MIN_FREE_BYTES, TRIM_FREE_BYTES
from tests.agent.agents import Agents, Running, agents_in, eventually

MIB = 2**20
SMALL = {"segment": {"bytes": MIB}}


class Disks:
    """The agents' disks, in the order of their starts."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.made: list[MemoryDisk] = []

    async def open(self, kind: str) -> MemoryDisk:
        disk = MemoryDisk(random.Random(len(self.made)))
        for name in ("a", "a0", "a1", "a2"):
            await disk.make_directory(str(self._directory / name))
        self.made.append(disk)
        return disk

    def leave(self, number: int, free_bytes: int) -> None:
        """So much is free there from now on."""
        disk = self.made[number]
        disk.capacity_bytes = disk.used_bytes() + free_bytes


@pytest.fixture
def disks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Disks:
    """In memory, and as large as a test says."""
    made = Disks(tmp_path)
    monkeypatch.setattr("shoal.agent.directory.open_disk", made.open)
    monkeypatch.setattr("shoal.agent.host.free_space.FREE_SPACE_INTERVAL_MS", 20)
    return made


@pytest.fixture
async def agents(tmp_path: Path, disks: Disks) -> AsyncIterator[Agents]:
    """Whatever a test starts."""
    async with agents_in(tmp_path) as started:
        yield started


async def fill(running: Running, topic: str, partition: int, count: int) -> None:
    """So many MiB, each in a segment of its own or nearly so."""
    path = f"/v1/topics/{topic}/partitions/{partition}/records"
    for _ in range(count):
        status, answer = await running.call("POST", path, bytes(MIB), timeout="30s")
        assert status == 200, answer


async def refused(running: Running, method: str, path: str, body: object = None) -> dict[str, Any]:
    """Once the agent has looked at its disk."""
    problem: dict[str, Any] = {}

    async def is_refused() -> bool:
        nonlocal problem
        status, problem = await running.call(method, path, body)
        return status == 507

    await eventually(is_refused)
    assert problem["code"] == "disk-full"
    assert problem["definite"]
    return problem


async def test_a_disk_below_the_reserve_can_be_emptied(agents: Agents, disks: Disks) -> None:
    """Appends and new topics are refused, with advice that can be followed; retention, trim and deletion
    pass, and appends are taken again."""
    alone = await agents.alone("a")
    for topic in ("kept", "gone"):
        assert (await alone.call("PUT", f"/v1/topics/{topic}", SMALL))[0] == 201
        await fill(alone, topic, 0, 12)
    disk = disks.made[0]
    disks.leave(0, MIN_FREE_BYTES - 4 * MIB)
    problem = await refused(alone, "POST", "/v1/topics/kept/partitions/0/records", b"one more")
    assert "delete a topic" in problem["detail"]
    await refused(alone, "PUT", "/v1/topics/new", {})
    assert (await alone.call("POST", "/v1/topics/auto/records", b"x"))[0] == 507
    full = disk.used_bytes()
    status, answer = await alone.call("POST", "/v1/topics/kept/partitions/0/trim", {"before": 6})
    assert (status, answer["log_start_offset"]) == (200, 6)
    await eventually(lambda: less(disk, full - 4 * MIB))
    status, answer = await alone.call("PATCH", "/v1/topics/kept", {"retention": {"bytes": 3 * MIB}})
    assert (status, answer["retention"]["bytes"]) == (200, 3 * MIB)
    assert (await alone.call("DELETE", "/v1/topics/gone"))[0] == 204
    await eventually(lambda: less(disk, full - 12 * MIB))
    await eventually(lambda: answers(alone, "POST", "/v1/topics/kept/partitions/0/records", b"again", 200))


async def less(disk: MemoryDisk, used_bytes: int) -> bool:
    return disk.used_bytes() <= used_bytes


async def answers(running: Running, method: str, path: str, body: object, wanted: int) -> bool:
    status, _ = await running.call(method, path, body)
    return status == wanted


async def test_below_the_last_bytes_a_topic_can_be_deleted(agents: Agents, disks: Disks) -> None:
    """Nothing else: a log without room for its next blocks would have to stop. Reads go on."""
    alone = await agents.alone("a")
    await alone.call("PUT", "/v1/topics/t", SMALL)
    await fill(alone, "t", 0, 3)
    disks.leave(0, TRIM_FREE_BYTES // 2)
    await refused(alone, "POST", "/v1/topics/t/partitions/0/trim", {"before": 0})
    assert (await alone.call("GET", "/v1/topics/t/partitions/0/records"))[0] == 200
    assert (await alone.call("DELETE", "/v1/topics/t"))[0] == 204


@pytest.mark.parametrize("free_bytes", [MIN_FREE_BYTES // 2, LAST_FREE_BYTES + 2 * MIB])
async def test_one_of_three_is_full(agents: Agents, disks: Disks, free_bytes: int) -> None:
    """Whichever leads the catalog, and the partitions: trims, retention and deletions pass, and that disk is
    emptied too, though it took no more of what others lead."""
    running = await agents.cluster(3)
    assert (await running[0].call("PUT", "/v1/topics/t", {"partitions": 3, **SMALL}))[0] == 201
    assert (await running[0].call("PUT", "/v1/topics/gone", {"partitions": 3, **SMALL}))[0] == 201
    for partition in range(3):
        await fill(running[0], "t", partition, 4)
        await fill(running[0], "gone", partition, 4)
    for full in range(3):
        await eventually(lambda: holds(disks.made[full], 20 * MIB))  # noqa: B023 -- awaited here
    full = disks.made[1]
    disks.leave(1, free_bytes)
    before = full.used_bytes()
    for partition in range(3):
        path = f"/v1/topics/t/partitions/{partition}"
        for _ in range(3):
            await running[0].call("POST", f"{path}/records", bytes(MIB), timeout="5s")
    for partition in range(3):
        path = f"/v1/topics/t/partitions/{partition}/trim"
        await eventually(lambda: answers(running[0], "POST", path, {"before": 3}, 200))  # noqa: B023
    patch = {"retention": {"bytes": 2 * MIB}}
    assert (await running[1].call("PATCH", "/v1/topics/t", patch, timeout="30s"))[0] == 200
    assert (await running[2].call("DELETE", "/v1/topics/gone", timeout="30s"))[0] == 204
    await eventually(lambda: less(full, before - 10 * MIB))
    full.capacity_bytes += 2 * MIN_FREE_BYTES  # what those topics had taken of a real disk
    for partition in range(3):
        path = f"/v1/topics/t/partitions/{partition}/records"
        await eventually(lambda: answers(running[1], "POST", path, b"again", 200))  # noqa: B023


async def holds(disk: MemoryDisk, used_bytes: int) -> bool:
    return disk.used_bytes() >= used_bytes
