"""Followers whose next entry was trimmed: a copy of the log, installed in one step, and then appends."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
from collections.abc import Callable
from typing import Any

import pytest
from memory_disk import MemoryDisk
from waiting import until

from shoal.agent.durable.identity import HardStateFile, ReplicaRegistry, ReplicaState
from shoal.agent.durable.paired_file import PairedFileError
from shoal.agent.host.copy_target import _Copy
from shoal.agent.partition.opener import Stores, finish_install, open_replica
from shoal.agent.partition.plan import Plan
from shoal.agent.partition.state.log_state import PartitionState
from shoal.agent.partition.state.retention import Retention
from shoal.agent.peers.entry_messages import CopyOffer, decode_held, encode_offer
from shoal.agent.peers.messages import PeerMessage
from shoal.agent.process.clock import SystemClock
from shoal.errors import ShoalError
from shoal.format.batch import DEFAULT_SCHEMA, Flag, Kind, LogIndex, Offset, Term, control_frame
from shoal.replication.interfaces import Configuration, HardState, ReplicaId
from shoal.segment_store.log.log import PartitionLog
from tests.agent.harness import CLUSTER, GROUP, RAFT, Cluster, Node, read_values
from tests.agent.memory_cluster import SMALL, memory_cluster

KEEP = Retention(size_bytes=20_000)
VALUE = "x" * 1_500
COPIER = ReplicaId(7, 7)


async def fill(cluster: Cluster, first: int, count: int) -> None:
    """Records that fill several segments."""
    for number in range(first, first + count):
        await cluster.append(f"{number}:{VALUE}")


def log_of(node: Node) -> Any:
    return node.host.replica(GROUP).log


async def trimmed(cluster: Cluster, behind: int) -> Node:
    """The leader, once its log begins behind the entry."""
    leader = await cluster.leader()
    await until(lambda: log_of(leader).first_index > behind)
    return leader


def has_dropped_all(node: Node) -> bool:
    """What its group has agreed to drop is gone, and nothing more is on its way to be agreed on."""
    replica = node.host.replica(GROUP)
    if replica.state.trim_asked != replica.state.trim_before:
        return False
    spans = replica.log.spans()
    return len(spans) < 2 or spans[1].first_index > replica.state.trim_before


async def kept(cluster: Cluster) -> None:
    """From here on everything, on every live node: a trim that is still under way would move the log's start
    behind the back of a test."""
    for node in cluster.alive:
        node.host.set_retention(GROUP, Retention())
    await until(lambda: equal_ends(cluster.alive)() and all(map(has_dropped_all, cluster.alive)))


async def left_behind(cluster: Cluster) -> Node:
    """The third node, stopped before the others filled their logs and trimmed what it lacks."""
    third = cluster.nodes[2]
    await cluster.stop(third)
    for node in cluster.alive:
        node.host.set_retention(GROUP, KEEP)
    await fill(cluster, 0, 60)
    await trimmed(cluster, 20)
    return third


def numbers(values: list[str]) -> list[int]:
    return [int(value.partition(":")[0]) for value in values]


def equal_ends(nodes: list[Node]) -> Callable[[], bool]:
    def equal() -> bool:
        if any(node.host.status(GROUP).state != "active" for node in nodes):
            return False
        ends = {(log_of(node).synced_index, node.host.status(GROUP).commit_index) for node in nodes}
        return len(ends) == 1

    return equal


def equal_logs(cluster: Cluster) -> Callable[[], bool]:
    return equal_ends(cluster.nodes)


@pytest.mark.parametrize("empty", [True, False])
async def test_a_follower_behind_the_head_gets_a_copy_and_then_appends(empty: bool) -> None:
    """Safety 27: one that has nothing, and one that has what everybody else dropped. Its frames are the
    leader's, byte for byte; it votes under the same replica id."""
    cluster, _ = memory_cluster()
    async with cluster:
        third = cluster.nodes[2]
        if not empty:
            await fill(cluster, 0, 3)
            await until(equal_logs(cluster))
        await cluster.stop(third)
        if empty:
            await third.make_disk().remove_tree("data/3")
        for node in cluster.alive:
            node.host.set_retention(GROUP, KEEP)
        await fill(cluster, 3, 60)
        leader = await trimmed(cluster, 20)
        await cluster.start(third)
        replica_id = third.host.replica(GROUP).replica_id
        await until(lambda: third.host.status(GROUP).log_start_offset > 3)
        await kept(cluster)
        await fill(cluster, 63, 5)
        await until(equal_logs(cluster))
        await until(lambda: len({log_of(node).first_index for node in cluster.nodes}) == 1)
        assert third.host.replica(GROUP).replica_id == replica_id
        values = numbers(await read_values(third, local=True))
        assert values == list(range(values[0], 68))
        first = max(log_of(leader).first_index, log_of(third).first_index)
        last = log_of(third).last_index
        mine, theirs = [
            [frame.data for frame in await log_of(node).read(first, last, 2**26)] for node in (third, leader)
        ]
        assert mine == theirs
        assert await log_of(third).verify() == []


async def test_the_copied_replica_counts_for_a_majority_and_survives_its_restart() -> None:
    """With it and one other, appends go on; started again it has everything."""
    cluster, _ = memory_cluster(seed=2)
    async with cluster:
        third = await left_behind(cluster)
        await cluster.start(third)
        await until(equal_logs(cluster))
        await cluster.stop(cluster.nodes[0])
        await fill(cluster, 60, 3)
        await cluster.stop(third)
        await cluster.start(third)
        await fill(cluster, 63, 3)
        values = numbers(await read_values(await cluster.leader()))
        assert values == list(range(values[0], 66))


async def test_the_head_stays_while_it_is_copied() -> None:
    """Whoever asked for an entry finds it the next time, though the group has agreed to drop it."""
    cluster, _ = memory_cluster(seed=3)
    async with cluster:
        third = cluster.nodes[2]
        await cluster.stop(third)
        await fill(cluster, 0, 30)
        leader = await cluster.leader()
        replica = leader.host.replica(GROUP)
        wanted = LogIndex(replica.log.spans()[1].first_index)
        replica.shipments.asked(COPIER, wanted, replica.host.clock.now_ms())
        leader.host.set_retention(GROUP, KEEP)
        other = next(node for node in cluster.alive if node is not leader)
        await fill(cluster, 30, 30)
        await until(lambda: log_of(other).first_index > wanted)
        assert log_of(leader).first_index == wanted
        replica.shipments.done(COPIER)
        await until(lambda: log_of(leader).first_index > wanted)


async def test_a_partition_deleted_while_its_log_is_copied_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next piece of the copy would make its directory again, which nobody would ever look for."""
    begun, go_on = asyncio.Event(), asyncio.Event()
    take = _Copy.take

    async def slow(copy: _Copy, *arguments: Any) -> None:
        begun.set()
        await go_on.wait()
        await take(copy, *arguments)

    monkeypatch.setattr(_Copy, "take", slow)
    cluster, _ = memory_cluster(seed=4)
    async with cluster:
        third = await left_behind(cluster)
        await cluster.start(third)
        await begun.wait()
        await third.host.delete_group(GROUP)
        go_on.set()
        await until(lambda: not third.host._copy_target._jobs)
        assert not await third.disk.exists("data/3/copies") or not await third.disk.list("data/3/copies")


async def test_a_copy_that_is_damaged_on_its_way_is_not_installed() -> None:
    """Verified on arrival: the old log stays, another copy is begun, and that one counts."""
    cluster, _ = memory_cluster(seed=4)
    async with cluster:
        third = await left_behind(cluster)
        spoiled = 0
        for node in cluster.alive:
            lend = node.links.requests.handlers[PeerMessage.SEGMENTS_PIECE]

            async def spoil(peer: str, payload: bytes, lend: Any = lend) -> bytes:
                nonlocal spoiled
                answer = await lend(peer, payload)
                if spoiled == 2:
                    return bytes(answer)
                spoiled += 1
                return bytes(answer[:-100] + bytes([answer[-100] ^ 4]) + answer[-99:])

            node.links.requests.handlers[PeerMessage.SEGMENTS_PIECE] = spoil
        await cluster.start(third)
        await until(equal_logs(cluster))
        assert spoiled == 2
        assert await log_of(third).verify() == []


@pytest.mark.parametrize("stale", ["receiver", "term"])
async def test_offers_for_another_replica_or_an_older_term_are_refused(stale: str) -> None:
    """Safety 2: an id that is not this replica's changes nothing here, nor does a leader of the past."""
    cluster, _ = memory_cluster(seed=5)
    async with cluster:
        await fill(cluster, 0, 2)
        leader = await cluster.leader()
        await cluster.stop(leader)
        successor = await cluster.leader()
        core = successor.host.replica(GROUP).core
        receiver = COPIER if stale == "receiver" else core.replica_id
        term = core.term if stale == "receiver" else Term(core.term - 1)
        offer = CopyOffer(receiver, ReplicaId(0, 1), term, LogIndex(500), Term(1))
        with pytest.raises(ShoalError, match="another replica, or of an older term"):
            await successor.links.requests.handlers[PeerMessage.SEGMENTS_OFFER](
                "2" * 32, encode_offer(GROUP, offer)
            )


async def test_a_log_that_begins_behind_the_leaders_lacks_nothing() -> None:
    """Safety 27: what lies before it was committed. Copied again it would be trimmed again, for ever."""
    cluster, _ = memory_cluster(seed=6)
    async with cluster:
        for node in cluster.nodes:
            node.host.set_retention(GROUP, KEEP)
        await fill(cluster, 0, 60)
        leader = await trimmed(cluster, 20)
        follower = next(node for node in cluster.nodes if node is not leader)
        await until(lambda: log_of(follower).first_index > 20)
        core = follower.host.replica(GROUP).core
        before = LogIndex(core.first_index - 5)
        leader_id = leader.host.replica(GROUP).replica_id
        offer = CopyOffer(core.replica_id, leader_id, core.term, before, core.term)
        answer = await follower.links.requests.handlers[PeerMessage.SEGMENTS_OFFER](
            leader.agent_id, encode_offer(GROUP, offer)
        )
        assert decode_held(answer) == core.last_index
        assert follower.host.status(GROUP).state == "active"
        assert not follower.host._copy_target._jobs


class WallTime:
    """A clock that no peer doubts."""

    def now_us(self, _now_ms: int) -> int:
        return SystemClock().now_us()


class Promised:
    """What open_replica asks of a host."""

    agent_id = "1" * 32
    clock = SystemClock()
    clocks = WallTime()
    raft_config = RAFT

    def send_append(self, agent_id: str, pieces: list[Any]) -> None:
        """There is no network."""


async def stores_on(disk: MemoryDisk) -> Stores:
    await disk.make_directory("data")
    registry = await ReplicaRegistry.open(disk, "data")
    return Stores(disk, "data", CLUSTER, registry, await HardStateFile.open(disk, "data"))


def make_plan() -> Plan:
    return Plan(GROUP, Configuration.birth(("1" * 32, "2" * 32)), DEFAULT_SCHEMA, SMALL)


async def write_logs(stores: Stores) -> None:
    """An old log of one entry and a complete copy of two, made by one leader."""
    replica = await open_replica(stores, Promised(), make_plan(), random.Random(1))  # type: ignore[arg-type]
    for index, directory in ((1, None), (2, stores.side_directory(GROUP))):
        log = replica.log
        if directory is not None:
            log = await PartitionLog.open(stores.disk, directory, replica.identity, DEFAULT_SCHEMA, SMALL)
        state = PartitionState(make_plan().birth)
        for number in range(1, index + 1):
            frame = control_frame(
                DEFAULT_SCHEMA,
                replica.identity,
                kind=Kind.CHECKPOINT if number == 1 else Kind.NOOP,
                control=state.checkpoint().to_bytes() if number == 1 else b"",
                base_offset=Offset(0),
                term=Term(1),
                previous_term=Term(min(number - 1, 1)),
                index=LogIndex(number),
                append_time_us=0,
                flags=Flag.FIRST_OF_SEGMENT if number == 1 else Flag.NONE,
            )
            state.append(frame)
            await log.append([frame])
        await log.close()
    await stores.hard_states.save(GROUP, replica.replica_id, HardState(Term(1)))


class PowerCut:
    """Lets so many operations of a disk happen, then takes its power away."""

    def __init__(self, disk: MemoryDisk, operations: int, rng: random.Random) -> None:
        self._disk, self._left, self._rng = disk, operations, rng
        self._begin = disk.begin
        disk.begin = self._count  # type: ignore[method-assign]

    async def _count(self, operation: str, path: str) -> None:
        if not self._left:
            self.end()
            raise OSError(errno.EIO, "the power failed", path)
        self._left -= 1
        await self._begin(operation, path)

    def end(self) -> None:
        self._disk.begin = self._begin  # type: ignore[method-assign]
        self._disk.crash(self._rng)


@pytest.mark.parametrize("crash_at", range(14))
async def test_a_crash_during_the_installation_leaves_the_old_log_or_the_copy(crash_at: int) -> None:
    """Power is lost at every operation of it, with what was not synced kept or lost: the next opening finds
    one of the two logs whole, and after the record that makes the copy count, always the copy."""
    for seed in range(6):
        rng = random.Random(seed)
        disk = MemoryDisk(rng, pause_max=1)
        stores = await stores_on(disk)
        await write_logs(stores)
        record = stores.registry.get(GROUP)
        assert record is not None
        recorded = False
        cut = PowerCut(disk, crash_at, rng)
        with contextlib.suppress(OSError, PairedFileError):
            await stores.registry.put(record._replace(state=ReplicaState.INSTALLING))
            recorded = True
            await finish_install(stores, record)
        cut.end()
        stores = await stores_on(disk)
        replica = await open_replica(stores, Promised(), make_plan(), rng)  # type: ignore[arg-type]
        assert replica.log.last_index in ((2,) if recorded else (1, 2))
        assert not await disk.exists(stores.side_directory(GROUP))
        assert await replica.log.verify() == []
        await replica.close("the test is over")
