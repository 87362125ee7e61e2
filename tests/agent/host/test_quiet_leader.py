"""No group stays without a leader because the replica that led it quietly has stopped, while its agent lives
(safety 25): by real hosts over real links."""

from __future__ import annotations

import asyncio
import errno
from contextlib import suppress

import pytest
from memory_disk import Fault, MemoryDisk
from waiting import until

from shoal.agent.durable.ids import CATALOG_GROUP, GroupId
from shoal.agent.fetch import FetchRequest
from shoal.agent.partition.replica import Replica
from shoal.agent.submission import Submission
from shoal.errors import ShoalError
from shoal.format.batch import LogIndex, Offset
from shoal.replication.errors import InvalidChange, NotLeader
from tests.agent.harness import GROUP, PATIENCE_S, Cluster, Node, message
from tests.agent.memory_cluster import memory_cluster


class HangingDisk(MemoryDisk):
    """Once there is `released`, a sync of the hard states waits for it and fails: a disk that retries before
    it gives up."""

    released: asyncio.Event | None = None

    async def begin(self, operation: str, path: str) -> None:
        if self.released is not None and operation == "sync" and "hard-state" in path:
            await self.released.wait()
            raise OSError(errno.EIO, "the disk gave up", path)
        await super().begin(operation, path)


def others_of(cluster: Cluster, leader: Node) -> list[Node]:
    return [node for node in cluster.nodes if node is not leader]


async def quiet(cluster: Cluster) -> tuple[Node, Replica]:
    """Everybody has gone quiet under the leader."""
    leader = await cluster.leader()
    await until(lambda: all(node.host.replica(GROUP).core.is_quiet for node in cluster.alive))
    return leader, leader.host.replica(GROUP)


async def another_leads(cluster: Cluster, stopped: Node) -> Node:
    found: Node = await until(
        lambda: next((node for node in others_of(cluster, stopped) if node.leads), None)
    )
    return found


async def read_all(node: Node) -> None:
    """From its own disk, whether it still leads or not."""
    for offset in range(6):
        await node.host.reader(GROUP).read(FetchRequest(Offset(offset), max_bytes=100, local=True))


async def test_a_sector_that_takes_nothing_under_an_idle_leader() -> None:
    """A read (or the scrubber) meets it, a peer has the exact bytes, and writing them fails."""
    cluster, disks = memory_cluster()
    async with cluster:
        for _ in range(30):
            await cluster.append("x" * 1500)
        leader, replica = await quiet(cluster)
        disk = disks[leader.agent_id]
        path = min(name for name in disk._names if name.endswith(".arrows") and "topics" in name)
        replica.log._cache.cut(LogIndex(1))  # it is old data, of which nothing is in memory
        replica.log._cache = type(replica.log._cache)(0)
        disk.damage(path, 5000, 1)
        disk.faults.append(Fault("write", errno.EIO, path, times=1_000))
        with pytest.raises(ShoalError) as met:
            await read_all(leader)
        assert met.value.code == "damaged"
        await until(lambda: replica.failure is not None)
        successor = await another_leads(cluster, leader)
        await cluster.append("after")
        assert (await successor.host.offsets(GROUP)).high_watermark == 31


async def test_a_hard_state_that_cannot_be_stored_while_the_group_is_quiet() -> None:
    """The leader notes how far the commit is in passing; the disk tells that it cannot when all are quiet."""
    cluster, _ = memory_cluster(kind=HangingDisk)
    async with cluster:
        await cluster.append("a")
        leader, replica = await quiet(cluster)
        assert isinstance(leader.disk, HangingDisk)
        leader.disk.released = asyncio.Event()
        leader.host.save_hint(replica)
        leader.disk.released.set()
        await until(lambda: replica.failure is not None)
        await another_leads(cluster, leader)
        with pytest.raises(ShoalError) as refused:
            await leader.host.append(GROUP, Submission.of([message("b")], timeout_ms=30_000))
        assert (refused.value.code, refused.value.retriable) == ("no-leader", True)
        await cluster.append("b")


async def test_what_a_stopped_leader_says_at_last_may_be_lost() -> None:
    """Its agent names the group in every heartbeat interval."""
    cluster, _ = memory_cluster()
    async with cluster:
        await cluster.append("a")
        leader, replica = await quiet(cluster)
        replica.core.last_words = lambda _: ()  # type: ignore[method-assign]
        replica.fail("damaged", "the test stops it")
        await another_leads(cluster, leader)
        await cluster.append("b")


async def test_more_groups_than_a_liveness_frame_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are named in turn."""
    monkeypatch.setattr("shoal.agent.host.peer_liveness.MAX_STOPPED_GROUPS", 2)
    groups = [GROUP, *(GroupId(b"t" * 16, number) for number in range(1, 5))]
    cluster, _ = memory_cluster()
    async with cluster:
        first = cluster.nodes[0]
        for group in groups[1:]:
            for node in cluster.nodes:
                await node.open(cluster.birth, group)
        replicas = [await led_there(cluster, first, group) for group in groups]
        await until(lambda: all(replica.core.is_quiet for replica in replicas))
        for replica in replicas:
            replica.core.last_words = lambda _: ()
            replica.fail("damaged", "the test stops it")
        for group in groups:
            await until(lambda group=group: any(led(node, group) for node in cluster.nodes[1:]))


async def led_there(cluster: Cluster, wanted: Node, group: GroupId) -> Replica:
    """Its replica, once that leads. On a busy machine another one may be elected first, and hands over."""
    async with asyncio.timeout(PATIENCE_S):
        while (replica := led(wanted, group)) is None:
            for node in others_of(cluster, wanted):
                if led(node, group) is not None:
                    with suppress(InvalidChange, NotLeader):  # it does so already, or has lost it
                        node.host.transfer(group, wanted.host.replica(group).replica_id)
            await asyncio.sleep(0.05)
        return replica


def led(node: Node, group: GroupId) -> Replica | None:
    replica = node.host.replica(group)
    return replica if replica.is_leader else None


async def test_the_catalogs_group_is_a_group_like_any_other() -> None:
    """No topic can be made while nobody leads it."""
    cluster, _ = memory_cluster()
    async with cluster:
        for node in cluster.nodes:
            await node.open(cluster.birth, CATALOG_GROUP)
        first = cluster.nodes[0]
        replica = await until(lambda: led(first, CATALOG_GROUP))
        await until(lambda: all(node.host.replica(CATALOG_GROUP).core.is_quiet for node in cluster.nodes))
        replica.fail("damaged", "the test stops it")
        await until(lambda: any(led(node, CATALOG_GROUP) for node in cluster.nodes[1:]))


async def test_a_quiet_leader_that_is_opened_anew_and_cannot_be() -> None:
    """Its log is closed for mending, and does not open again: the group is named all the same."""
    cluster, _ = memory_cluster()
    async with cluster:
        await cluster.append("a")
        leader, replica = await quiet(cluster)
        replica.core.last_words = lambda _: ()  # type: ignore[method-assign]

        async def fails() -> None:
            raise OSError(errno.EIO, "the disk gave up")

        await leader.host.reopen(GROUP, fails)
        assert leader.host.status(GROUP).state == "failed"
        await another_leads(cluster, leader)


async def test_who_forgets_an_agent_hears_no_leader_there() -> None:
    """Members that left are not watched any more. What they led quietly is led by nobody."""
    cluster, _ = memory_cluster()
    async with cluster:
        await cluster.append("a")
        leader, replica = await quiet(cluster)
        others = others_of(cluster, leader)
        leader.links.set_addresses({})
        for node in others:
            node.links.set_addresses(
                {other.agent_id: f"http://127.0.0.1:{other.port}" for other in others if other is not node}
            )
        await another_leads(cluster, leader)
        await until(lambda: not replica.is_leader)
