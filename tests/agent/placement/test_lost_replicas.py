"""Agents that come back without what their replicas had promised: never as who they were, soon as somebody
new."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from pathlib import Path

import pytest
import pytest_asyncio

from shoal.agent.durable.identity import AgentIdentity, IdentityStore, ReplicaRegistry, ReplicaState
from shoal.agent.durable.ids import CATALOG_GROUP, GroupId, IdentityError
from shoal.agent.peers.messages import PeerMessageError, encode_lost
from shoal.agent.placement.lost_replicas import LOSS_KEPT_MS, LostReplicas
from shoal.agent.process.errors import StartError
from shoal.replication.interfaces import Configuration
from shoal.segment_store.disk.threads import ThreadDisk
from tests.agent.agents import Agents, Running, agents_in, eventually

slow = pytest.mark.slow


@pytest_asyncio.fixture
async def agents(tmp_path: Path) -> AsyncIterator[Agents]:
    """Agents below this test's directory."""
    async with agents_in(tmp_path) as started:
        yield started


async def _voters(at: Running, topic: str) -> set[str]:
    document = (await at.call("GET", f"/v1/topics/{topic}"))[1]
    (partition,) = document["partitions"]
    return {item["id"] for item in partition["replicas"] if item["role"] != "learner"}


def _holds_everything(
    victim: Running, groups: Collection[GroupId], other: Running
) -> Callable[[], Awaitable[bool]]:
    """Whether its replicas' logs are as long as another's: a majority may do without it for a while."""
    mine, others = victim.agent.host, other.agent.host
    assert mine is not None
    assert others is not None

    async def holds() -> bool:
        return all(
            mine.status(group).log_end_offset == others.status(group).log_end_offset > 0 for group in groups
        )

    return holds


def _lose(topics: Path) -> None:
    """The topic's log is gone. Of the catalog's nothing verifies, so that nothing tells what stood there. (If
    only its end did not, it would be mended, or be the torn end of a log that is otherwise whole.)"""
    catalog = topics / CATALOG_GROUP.topic_id.hex()
    for directory in topics.iterdir():
        if directory != catalog:
            shutil.rmtree(directory)
    segments = list(catalog.glob("*/*.arrows"))
    assert segments, "a replica that had synced nothing yet would lose nothing"
    for segment in segments:
        segment.with_suffix(".index").unlink(missing_ok=True)
        segment.write_bytes(bytes(byte ^ 0xFF for byte in segment.read_bytes()))


@slow
async def test_an_agent_whose_logs_are_gone_holds_new_replicas_soon(agents: Agents, tmp_path: Path) -> None:
    """Topics and catalog: its old replica ids never vote again; the groups leave them out and add others on
    the same agent, which hold everything that was acknowledged."""
    cluster = await agents.cluster(3)
    await cluster[0].call("PUT", "/v1/topics/t", {"replication_factor": 3})
    path = "/v1/topics/t/partitions/0/records"
    for number in range(5):
        status, answer = await cluster[0].call("POST", path, {"records": [{"value": str(number)}]})
        assert status == 200, answer
    victim = cluster[2]
    assert victim.agent.host is not None
    before = {record.group: record.replica_id for record in victim.agent.host.replica_records()}
    assert CATALOG_GROUP in before
    await eventually(_holds_everything(victim, before, cluster[0]), 30)
    await victim.crash()
    _lose(tmp_path / "a2" / "topics")
    back = agents.start("a2", expect=3, join=[await cluster[0].gossip_address()])
    await back.until_ready()
    host = back.agent.host
    assert host is not None

    async def replaced() -> bool:
        records = {record.group: record for record in host.replica_records()}
        return len(records) == 2 and all(
            record.state is ReplicaState.ACTIVE and record.replica_id > before[group]
            for group, record in records.items()
        )

    await eventually(replaced)  # its old address has to be given up first, by everybody

    async def votes() -> bool:
        voters = await _voters(cluster[0], "t")
        return back.agent.agent_id in voters and len(voters) == 3

    await eventually(votes)
    group = next(group for group in before if group != CATALOG_GROUP)
    assert host.status(group).log_end_offset == 5
    await cluster[1].crash()

    async def takes_another() -> bool:
        status, answer = await cluster[0].call("POST", path, {"records": [{"value": "5"}]})
        assert status == 200 or answer["retriable"], answer
        return status == 200

    await eventually(takes_another)  # it counts for a majority again


async def test_an_agent_whose_registry_is_gone_does_not_start(agents: Agents, tmp_path: Path) -> None:
    """It cannot tell what it promised: born again from the catalog it would vote twice in a term."""
    first = await agents.alone("a")
    await first.call("PUT", "/v1/topics/t", {})
    await first.leave()
    for copy in "ab":
        (tmp_path / "a" / f"replicas.{copy}").unlink()
    with pytest.raises(ExceptionGroup) as refused:
        await agents.start("a").task
    (error,) = refused.value.exceptions
    assert isinstance(error, StartError)
    assert "restore one of them, or start anew" in str(error)


async def test_the_registry_is_missed_from_its_first_day(tmp_path: Path) -> None:
    """An empty one is fine before it was noted; after that one without its mark is a loss, in whatever way it
    was lost."""
    disk, directory = ThreadDisk(), str(tmp_path)
    store = await IdentityStore.open(disk, directory)
    await store.save(AgentIdentity("a" * 32, None, "a"))
    assert not store.has_registry
    await (await ReplicaRegistry.open(disk, directory, was_made=store.has_registry)).close()
    await (await ReplicaRegistry.open(disk, directory, was_made=store.has_registry)).close()
    await store.note_registry()
    await store.close()
    store = await IdentityStore.open(disk, directory)
    assert store.has_registry
    assert store.load() == AgentIdentity("a" * 32, None, "a")
    registry = await ReplicaRegistry.open(disk, directory, was_made=True)
    assert list(registry) == []
    await registry.close()
    for copy in "ab":
        (tmp_path / f"replicas.{copy}").write_bytes(b"")
    with pytest.raises(IdentityError, match="are gone"):
        await ReplicaRegistry.open(disk, directory, was_made=True)
    await store.close()
    await disk.close()


async def test_only_the_holder_of_a_replica_can_say_that_it_is_lost() -> None:
    """Another agent's word does not count, and what is not said again is forgotten."""
    now_ms = 0
    lost_replicas = LostReplicas(lambda: now_ms)
    group, configuration = GroupId(b"g" * 16, 1), Configuration.birth(("a", "b", "c"))
    second = configuration.replicas[1].id
    assert lost_replicas.among(group, configuration) == frozenset()
    await lost_replicas.on_lost("c", encode_lost(group, second))
    assert lost_replicas.among(group, configuration) == frozenset()
    await lost_replicas.on_lost("b", encode_lost(group, second))
    assert lost_replicas.among(group, configuration) == {second}
    assert lost_replicas.among(GroupId(b"g" * 16, 2), configuration) == frozenset()
    now_ms = LOSS_KEPT_MS
    assert lost_replicas.among(group, configuration) == frozenset()
    with pytest.raises(PeerMessageError):
        await lost_replicas.on_lost("b", b"short")
