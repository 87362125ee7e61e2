"""Replicas whose opening met a full disk are opened when there is room, and at no other time."""

from __future__ import annotations

import asyncio
import errno
import os
import pathlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import pytest
from memory_disk import Fault, MemoryDisk
from small_disk import REASON, mount, unmount
from waiting import until

from shoal.agent.durable.ids import GroupId
from shoal.agent.durable.paired_file import PairedFileFull
from shoal.agent.host.open_group import GroupHost
from shoal.agent.host.reopener import PAUSE_LOOKS_MAX, Reopener
from shoal.agent.partition.plan import Plan
from shoal.format.batch import DEFAULT_SCHEMA
from shoal.replication.interfaces import Configuration
from shoal.segment_store.config import LogConfig
from shoal.segment_store.errors import Damaged, DiskFailed, DiskFull, SyncFailed
from tests.agent.harness import GROUP, Cluster, Node, read_values
from tests.agent.memory_cluster import memory_cluster, refuse_writes

NO_ROOM = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
OTHER = GroupId(b"o" * 16, 0)
PLAN = Plan(GROUP, Configuration.birth(("a",)), DEFAULT_SCHEMA, LogConfig())


class FakeHost:
    """Nothing is open here; openings fail as a test says."""

    def __init__(self) -> None:
        self.refusal: Exception | None = NO_ROOM
        self.opened: list[int] = []
        """The looks at which an opening was tried."""
        self.looks = 0
        self.while_opening: Callable[[], object] = lambda: None
        self.promises_have_room = True
        self.reopener = Reopener(cast("GroupHost", self), self.abandon, self.write_again)

    async def write_again(self) -> bool:
        return self.promises_have_room

    async def abandon(self, _group: GroupId) -> None:
        """There are no copies."""

    def open_replicas(self) -> list[Any]:
        return []

    async def open_anew(self, plan: Plan, work: Callable[[], Awaitable[None]]) -> None:
        with self.reopener.of(plan.group):
            await work()
            self.opened.append(self.looks)
            self.while_opening()
            await asyncio.sleep(0)
            if self.refusal is not None:
                self.reopener.failed(plan, self.refusal)

    async def look(self, times: int) -> None:
        for _ in range(times):
            self.looks += 1
            await self.reopener.look()


async def test_refusals_space_the_tries_out() -> None:
    """A quota, or a file system without inodes, refuses although there are bytes."""
    host = FakeHost()
    host.reopener.failed(PLAN, NO_ROOM)
    await host.look(10 * PAUSE_LOOKS_MAX)
    pauses = [later - earlier - 1 for earlier, later in zip(host.opened, host.opened[1:], strict=False)]
    assert host.opened[0] == 1
    assert pauses[:7] == [1, 2, 4, 8, 16, 32, 64]
    assert set(pauses[7:]) == {PAUSE_LOOKS_MAX}
    host.refusal = None
    before = len(host.opened)
    await host.look(10 * PAUSE_LOOKS_MAX)
    assert len(host.opened) == before + 1


@pytest.mark.parametrize(
    "error",
    [
        DiskFailed("a disk that failed"),
        Damaged("segment", 0, "damage"),
        OSError(errno.EIO, "input/output error"),
        SyncFailed(errno.ENOSPC, "a sync that found no space has lost data"),
    ],
)
async def test_what_room_does_not_mend_is_not_tried_again(error: Exception) -> None:
    """Neither at first nor when a full disk came before."""
    host = FakeHost()
    host.reopener.failed(PLAN, error)
    await host.look(3)
    assert host.opened == []
    host.reopener.failed(PLAN, DiskFull("no space"))
    host.refusal = error
    await host.look(3 * PAUSE_LOOKS_MAX)
    assert len(host.opened) == 1


async def test_nothing_is_opened_that_was_given_up() -> None:
    """By a deletion, or since the host stops."""
    host = FakeHost()
    host.reopener.failed(PLAN, NO_ROOM)
    host.reopener.forget(GROUP)
    await host.look(3)
    host.reopener.failed(PLAN, NO_ROOM)
    await host.reopener.settle()
    await host.look(3)
    assert host.opened == []


async def test_nothing_is_opened_before_its_promises_are_on_the_disk() -> None:
    """The disk has room by its own account, and refuses them."""
    host = FakeHost()
    host.promises_have_room = False
    host.reopener.failed(PLAN, PairedFileFull("no room"))
    await host.look(3)
    assert host.opened == []
    host.promises_have_room = True
    await host.look(1)
    assert host.opened == [4]


async def test_a_look_begins_nothing_once_the_host_stops() -> None:
    """Another opening of the same look was under way when it was told to."""
    host = FakeHost()
    host.refusal = None
    for group in (GROUP, OTHER):
        host.reopener.failed(replace(PLAN, group=group), NO_ROOM)
    stopped: list[asyncio.Task[None]] = []
    host.while_opening = lambda: stopped.append(asyncio.create_task(host.reopener.settle()))
    await host.look(1)
    await stopped[0]
    assert host.opened == [1]


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.agent.host.free_space.FREE_SPACE_INTERVAL_MS", 20)


async def leave_incomplete_write(node: Node) -> None:
    """Behind the end of the log of a stopped node: opening it has to clear that."""
    disk = node.make_disk()
    directory = f"{node.directory}/topics/{GROUP.topic_id.hex()}/{GROUP.partition}"
    names = [name for name in await disk.list(directory) if name.endswith(".arrows")]
    file = await disk.open(f"{directory}/{max(names)}")
    await file.write_and_sync(await file.size() - 1, b"\xff")
    await file.close()


async def refused_follower(cluster: Cluster) -> Node:
    """Its opening has met a full disk; the others hold one record more."""
    await cluster.append("a")
    leader = await cluster.leader()
    node = next(node for node in cluster.nodes if node is not leader)
    await until(lambda: node.host.status(GROUP).high_watermark == 1)
    await cluster.stop(node)
    await leave_incomplete_write(node)
    refuse_writes(cast("MemoryDisk", node.make_disk()))
    await cluster.start(node)
    status = node.host.status(GROUP)
    assert (status.state, "No space left" in status.reason) == ("failed", True)
    await cluster.append("b")
    return node


@pytest.mark.usefixtures("quick_looks")
async def test_an_opening_that_met_a_full_disk_is_made_up_for() -> None:
    """Without a restart, and the replica takes what came meanwhile."""
    cluster, disks = memory_cluster(3)
    async with cluster:
        node = await refused_follower(cluster)
        assert node.host.status(GROUP).state != "active"
        disks[node.agent_id].faults.clear()
        await until(lambda: node.host.status(GROUP).high_watermark == 2)
        assert await read_values(node, local=True) == ["a", "b"]


@pytest.mark.usefixtures("quick_looks")
async def test_a_return_that_meets_a_full_disk_again_is_made_up_for() -> None:
    """The replica stopped when it was full; there is room, but not yet for its opening."""
    cluster, disks = memory_cluster(3)
    async with cluster:
        await cluster.append("a")
        leader = await cluster.leader()
        node = next(node for node in cluster.nodes if node is not leader)
        disk = disks[node.agent_id]
        refuse_writes(disk)
        disk.faults.append(Fault("open", errno.ENOSPC, "topics", times=3))
        await cluster.append("b")
        await until(lambda: disk.faults[-1].times == 0)
        disk.faults.clear()
        await until(lambda: node.host.status(GROUP).high_watermark == 2)
        assert await read_values(node, local=True) == ["a", "b"]


@pytest.mark.usefixtures("quick_looks")
async def test_a_replica_that_waits_for_room_can_be_deleted() -> None:
    """And stays so when there is room."""
    cluster, disks = memory_cluster(3)
    async with cluster:
        node = await refused_follower(cluster)
        await node.host.delete_group(GROUP)
        disks[node.agent_id].faults.clear()
        looks = node.host.free_space
        await looks.look()
        await node.host.reopener.look()
        assert not node.host.has(GROUP)
        assert node.host.replica_record(GROUP) is None


@pytest.mark.usefixtures("quick_looks")
async def test_a_vote_that_found_no_room_is_not_given_and_is_made_up_for() -> None:
    """Of two that are left, one cannot keep its vote: neither leads before it can, and then one does."""
    cluster, disks = memory_cluster(3)
    async with cluster:
        await cluster.append("a")
        leader = await cluster.leader()
        voter, other = (node for node in cluster.nodes if node is not leader)
        disk = disks[voter.agent_id]
        disk.faults.append(Fault("write", errno.ENOSPC, "hard-state", times=10_000))
        await cluster.stop(leader)
        await until(lambda: voter.host.status(GROUP).state == "failed")
        assert "No space left" in voter.host.status(GROUP).reason
        refused = disk.faults[0].times
        await until(lambda: disk.faults[0].times < refused - 3)  # looks that met it again
        assert voter.host.status(GROUP).state == "failed"
        assert not voter.leads
        assert not other.leads
        disk.faults.clear()
        await cluster.append("b")
        await until(lambda: voter.host.status(GROUP).high_watermark == 2)
        assert await read_values(voter, local=True) == ["a", "b"]


@pytest.mark.usefixtures("quick_looks")
async def test_a_register_that_found_no_room_takes_replicas_again() -> None:
    """The topic's creation is asked for again by the catalog."""
    cluster, disks = memory_cluster(1)
    async with cluster:
        node = cluster.nodes[0]
        disk = disks[node.agent_id]
        disk.faults.append(Fault("write", errno.ENOSPC, "replicas", times=1))
        with pytest.raises(PairedFileFull):
            await node.open(cluster.birth, OTHER)
        assert not node.host.has(OTHER)
        assert node.host.replica_record(OTHER) is None

        async def is_open() -> bool:
            try:
                await node.open(cluster.birth, OTHER)
            except PairedFileFull:
                return False
            return True

        while not await is_open():
            await asyncio.sleep(0.01)
        assert node.host.replica_record(OTHER) is not None


@pytest.fixture
def small_disk(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """An ordinary directory where none can be mounted."""
    disk = tmp_path / "disk"
    if REASON:
        yield disk
        return
    assert mount(disk) == ""
    yield disk
    unmount(disk)


def fill(disk: pathlib.Path) -> pathlib.Path:
    """To the last byte, by this file. An ordinary directory stays as it is."""
    ballast = disk / "ballast"
    state = os.statvfs(disk)
    with open(ballast, "wb") as file:
        if not REASON:
            os.posix_fallocate(file.fileno(), 0, state.f_bavail * state.f_frsize)
    return ballast


@pytest.mark.usefixtures("quick_looks")
async def test_a_real_file_system_that_was_full_at_the_start(small_disk: pathlib.Path) -> None:
    """Behind the log's end a write was torn, and the blocks before that are holes, as a copy that saves space
    leaves them: opening clears them, which takes room."""
    cluster = Cluster(str(small_disk), 1)
    node = cluster.nodes[0]
    async with cluster:
        await cluster.append("a")
        size_bytes = node.host.replica(GROUP).log.size_bytes
        await cluster.stop(node)
        segment = max(small_disk.glob("1/topics/*/0/*.arrows"))
        os.truncate(segment, size_bytes)
        with open(segment, "r+b") as file:
            file.seek(size_bytes + 64 * 1024)
            file.write(b"torn")
        ballast = fill(small_disk)
        await cluster.start(node)
        status = node.host.status(GROUP)
        assert REASON or (status.state, "No space left" in status.reason) == ("failed", True)
        await node.host.free_space.look()
        ballast.unlink()
        await until(lambda: node.host.status(GROUP).state == "active")
        assert await read_values(node, local=True) == ["a"]
