"""A newborn group serves nobody before the catalog has taken its birth; given up it leaves nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import until

from shoal.agent.durable.identity import ReplicaRecord, ReplicaState
from shoal.agent.fetch import FetchRequest
from shoal.agent.host.newborns import Newborns, is_led_here
from shoal.agent.partition.opener import UnknownReplica
from shoal.agent.partition.replica import BIRTH_PENDING, Replica
from shoal.agent.submission import Submission
from shoal.errors import ShoalError
from shoal.format.batch import Offset
from shoal.replication.interfaces import (
    BIRTH_ORDINALS,
    FIRST_TERM,
    GENERATION_TERM_BITS,
    Configuration,
    ReplicaId,
    birth_term,
    generation_of,
)
from shoal.replication.roles.transitions import Role
from tests.agent.harness import GROUP, Cluster, Node, message, read_values


def newborns(cluster: Cluster) -> list[Replica]:
    return [replica for node in cluster.alive for replica in node.host.newborns.replicas()]


async def begin(cluster: Cluster, nodes: int, generation: int = 0) -> Configuration:
    """A group that awaits its birth, on the first of the nodes."""
    ids = tuple(node.agent_id for node in cluster.nodes[:nodes])
    birth = Configuration.birth(ids, generation)
    for node in cluster.nodes[:nodes]:
        await node.open(birth, awaits_birth=True)
    return birth


class Unborn(Cluster):
    """Nodes that hold nothing yet."""

    async def start(self, node: Node, **options: object) -> None:
        await node.start()
        self.alive.append(node)
        self._tell_addresses()


async def elected(cluster: Cluster) -> Node:
    """Who leads with a majority, though it serves nobody."""
    await until(lambda: any(is_led_here(replica) for replica in newborns(cluster)))
    return next(
        node for node in cluster.alive if any(is_led_here(item) for item in node.host.newborns.replicas())
    )


async def refused(node: Node) -> ShoalError:
    with pytest.raises(ShoalError) as caught:
        await node.host.append(GROUP, Submission.of([message("x")], timeout_ms=30_000))
    return caught.value


async def test_the_first_leader_waits_for_the_catalog(tmp_path: Path) -> None:
    """No append, no read, no change of the replicas, and no word to the routes; then all of it."""
    async with Unborn(str(tmp_path), 3) as cluster:
        told: list[Node] = []
        for node in cluster.nodes:
            node.host.newborns.on_led = lambda node=node: told.append(node)  # type: ignore[misc]
        await begin(cluster, 3)
        leader = await elected(cluster)
        assert told
        assert leader in told
        replica = leader.host.replica(GROUP)
        error = await refused(leader)
        assert (error.code, error.retriable) == ("no-leader", True)
        assert BIRTH_PENDING in error.detail
        for refusal in (
            leader.host.reader(GROUP).read(FetchRequest(Offset(0), max_bytes=100)),
            leader.host.offsets(GROUP),
        ):
            with pytest.raises(ShoalError, match=BIRTH_PENDING):
                await refusal
        with pytest.raises(ShoalError, match=BIRTH_PENDING):
            replica.propose_configuration(replica.core.configuration.replicas[:2])
        status = leader.host.status(GROUP)
        assert (status.role, status.leader_agent_id) == (Role.FOLLOWER, None)
        assert leader.host.led_replicas() == []
        leader.changes.clear()
        leader.host.newborns.be_born(GROUP)
        assert leader.changes == [GROUP]
        assert leader.host.status(GROUP).role is Role.LEADER
        await leader.host.append(GROUP, Submission.of([message("x")], timeout_ms=10_000))
        assert await read_values(leader) == ["x"]


async def test_the_first_voter_leads_from_birth_and_is_elected_after_a_restart(tmp_path: Path) -> None:
    """Nobody votes at the birth; whoever comes back has to be elected, and in a later term: what it led
    before may be in others' logs alone."""
    async with Unborn(str(tmp_path), 3) as cluster:
        first, *others = cluster.nodes
        birth = Configuration.birth(tuple(node.agent_id for node in cluster.nodes))
        await first.open(birth, awaits_birth=True)
        assert first.host.replica(GROUP).is_leader, "with nobody there to vote"
        assert not first.host.replica(GROUP).serves
        for node in others:
            await node.open(birth, awaits_birth=True)
        await until(lambda: first.host.replica(GROUP).core.commit_index == 1)
        assert [node.host.replica(GROUP).core.term for node in cluster.nodes] == [FIRST_TERM] * 3
        elections = [node.host.replica(GROUP).core.state.election_count for node in cluster.nodes]
        assert elections == [0, 0, 0]
        for node in cluster.nodes:
            await cluster.stop(node)
        for node in cluster.nodes:
            await cluster.start(node)
            await node.open(birth, awaits_birth=True)
        leader = await elected(cluster)
        assert leader.host.replica(GROUP).core.term > FIRST_TERM


async def test_who_leads_without_a_majority_tells_nobody() -> None:
    """The catalog would take a birth for final whose other voters are gone."""
    core = SimpleNamespace(commit_index=0)
    replica: Any = SimpleNamespace(group=GROUP, is_unborn=True, is_leader=True, core=core)
    host: Any = SimpleNamespace(open_replica=lambda _: replica)
    newborns = Newborns(host, host)
    told: list[int] = []
    newborns.on_led = lambda: told.append(core.commit_index)
    newborns.note(replica)
    newborns.note(replica)
    assert told == []
    core.commit_index = 1
    newborns.note(replica)
    assert told == [1]


async def test_who_has_a_record_knows_that_the_group_is_born(tmp_path: Path) -> None:
    """Its own catalog may be late, or gone: a follower that takes over asks nobody."""
    async with Unborn(str(tmp_path), 3) as cluster:
        await begin(cluster, 3)
        first = await elected(cluster)
        first.host.newborns.be_born(GROUP)
        await first.host.append(GROUP, Submission.of([message("x")], timeout_ms=10_000))
        others = [node for node in cluster.nodes if node is not first]
        await until(lambda: all(node.host.replica(GROUP).state.tail.end_offset for node in others))
        await cluster.stop(first)
        second = await cluster.leader()
        assert await read_values(second) == ["x"]
        assert newborns(cluster) == []


async def test_a_birth_that_is_given_up_leaves_nothing_and_another_one_begins(tmp_path: Path) -> None:
    """On the same agents too, under other ids and in terms that the old one never had; over restarts."""
    async with Unborn(str(tmp_path), 3) as cluster:
        old = await begin(cluster, 3)
        leader = await elected(cluster)
        old_term = leader.host.replica(GROUP).core.term
        for node in cluster.nodes:
            assert await node.host.newborns.give_up(GROUP)
            assert not await node.disk.exists(f"{node.directory}/topics/{GROUP.topic_id.hex()}/0")
        with pytest.raises(UnknownReplica):
            await leader.open(old, awaits_birth=True)
        told: list[Node] = []
        for node in cluster.nodes:
            node.host.newborns.on_led = lambda node=node: told.append(node)  # type: ignore[misc]
        birth = await begin(cluster, 3, generation=1)
        leader = await elected(cluster)
        await until(lambda: leader in told)
        replica = leader.host.replica(GROUP)
        assert replica.core.term > 1 << GENERATION_TERM_BITS > old_term
        assert leader.registry.get(GROUP) == ReplicaRecord(GROUP, replica.replica_id, ReplicaState.ACTIVE)
        leader.host.newborns.be_born(GROUP)
        await leader.host.append(GROUP, Submission.of([message("x")], timeout_ms=10_000))
        for node in cluster.nodes:
            await cluster.stop(node)
        for node in cluster.nodes:
            await cluster.start(node)
            await node.open(birth)
        assert await read_values(await cluster.leader()) == ["x"]


async def test_old_and_new_hear_nothing_of_each_other(tmp_path: Path) -> None:
    """One agent has not heard that the birth was given up: what it says to the others counts for nothing."""
    async with Unborn(str(tmp_path), 3) as cluster:
        ids = tuple(node.agent_id for node in cluster.nodes)
        await cluster.nodes[2].open(Configuration.birth(ids), awaits_birth=True)
        later = Configuration.birth(ids, 1)
        for node in cluster.nodes[:2]:
            await node.open(later)
        await until(lambda: any(node.host.replica(GROUP).is_leader for node in cluster.nodes[:2]))
        leader = next(node for node in cluster.nodes[:2] if node.host.replica(GROUP).is_leader)
        await leader.host.append(GROUP, Submission.of([message("x")], timeout_ms=10_000))
        await asyncio.sleep(0.5)  # some elections of the one that is alone
        behind = cluster.nodes[2].host.replica(GROUP)
        assert (behind.core.term, behind.core.last_index, behind.core.leader) == (FIRST_TERM, 0, None)
        assert leader.host.replica(GROUP).is_leader


async def test_what_has_records_is_never_given_up(tmp_path: Path) -> None:
    """It cannot be, so nothing is done with it but to serve it no more."""
    async with Unborn(str(tmp_path), 1) as cluster:
        (node,) = cluster.nodes
        await begin(cluster, 1)
        await elected(cluster)
        node.host.newborns.be_born(GROUP)
        await node.host.append(GROUP, Submission.of([message("x")], timeout_ms=10_000))
        assert not await node.host.newborns.give_up(GROUP)
        assert not node.host.has(GROUP)
        assert not await node.host.newborns.give_up(GROUP), "closed it has them still"
        record = node.registry.get(GROUP)
        assert record is not None
        assert record.state is ReplicaState.ACTIVE
        await node.open(Configuration.birth((node.agent_id,)))
        await until(lambda: node.leads)
        assert await read_values(node) == ["x"]


async def test_there_is_nothing_to_force_before_the_birth(tmp_path: Path) -> None:
    """The partition is born again by itself."""
    async with Unborn(str(tmp_path), 3) as cluster:
        await begin(cluster, 1)  # its peers never come
        (node, *_) = cluster.nodes
        await node.host.newborns.give_up(GROUP)
        ids = tuple(item.agent_id for item in cluster.nodes)
        await node.open(Configuration.birth(ids, 1), awaits_birth=True)
        with pytest.raises(ShoalError, match="born again") as caught:
            await node.host.recovery.recover(GROUP)
        assert caught.value.code == "recovery-refused"


def test_generations_share_no_id_and_no_term() -> None:
    """Of births, of replicas added later, and of those recovered by force, which have none."""
    births = [Configuration.birth(tuple("abc"), generation) for generation in range(256)]
    ids = [item.id for birth in births for item in birth.replicas]
    assert len(set(ids)) == len(ids)
    for generation, birth in enumerate(births):
        assert {generation_of(item.id) for item in birth.replicas} == {generation}
        assert {birth_term(item.id) for item in birth.replicas} == {generation << GENERATION_TERM_BITS}
    assert generation_of(ReplicaId((3 << GENERATION_TERM_BITS) + 17, 4)) == 3
    assert generation_of(ReplicaId(1 << 40, 4)) is None
    assert birth_term(ReplicaId(5, 3 * BIRTH_ORDINALS)) == 0
