"""A lost majority: refused while anything better is possible, and then one survivor goes on, for good."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest
from memory_disk import MemoryDisk
from waiting import until

from shoal.agent.durable.paired_file import PairedFileError
from shoal.agent.host.unsafe_recovery import EPOCH_BITS, Recovery
from shoal.agent.partition.opener import open_replica
from shoal.agent.submission import Submission
from shoal.errors import ShoalError
from shoal.format.batch import LogIndex
from shoal.replication.roles.transitions import Role
from shoal.segment_store.errors import StoreError
from tests.agent.harness import GROUP, Cluster, message, read_values
from tests.agent.host.test_catch_up import PowerCut, Promised, make_plan, stores_on, write_logs


async def test_it_is_refused_while_a_leader_or_a_majority_is_there(tmp_path: Path) -> None:
    """Nothing changes then: the group goes on with what it has."""
    async with Cluster(str(tmp_path), 3) as cluster:
        await cluster.append("a")
        leader = await cluster.leader()
        follower = next(node for node in cluster.nodes if node is not leader)
        await until(lambda: follower.host.status(GROUP).leader_agent_id == leader.agent_id)
        for node in (leader, follower):
            with pytest.raises(ShoalError, match="leads the partition") as refused:
                await node.host.recovery.recover(GROUP)
            assert refused.value.code == "recovery-refused"
        core = follower.host.replica(GROUP).core
        for _ in range(100):
            core.state.leader = None  # as between two leaders; a heartbeat may end that at any time
            assessment = await follower.host.recovery.assess(GROUP)
            assert assessment.refusal is not None
            if "leads the partition" not in assessment.refusal:
                break
        assert "a majority" in assessment.refusal
        assert assessment.silent == ()
        assert (await cluster.append("b")).base_offset == 1


async def test_a_survivor_of_three_goes_on_alone_and_old_disks_cannot_return(tmp_path: Path) -> None:
    """All it has is served, new records follow under a term that no old election can reach; a lost agent that
    comes back after all is of the old group: it neither leads nor holds the new one up."""
    async with Cluster(str(tmp_path), 3) as cluster:
        for value in ("a", "b"):
            await cluster.append(value)
        survivor, *others = cluster.nodes
        await until(lambda: survivor.host.status(GROUP).log_end_offset == 2)
        for node in others:
            await cluster.stop(node)
        await until(lambda: survivor.host.replica(GROUP).core.leader is None)
        old_id = survivor.host.replica(GROUP).replica_id
        assessment = await survivor.host.recovery.recover(GROUP)
        assert set(assessment.silent) == {node.agent_id for node in others}
        assert assessment.own.end_offset == 2
        await until(lambda: survivor.leads)
        status = survivor.host.status(GROUP)
        assert status.term >> EPOCH_BITS == 1
        assert [item.agent_id for item in status.configuration.replicas] == [survivor.agent_id]  # type: ignore[union-attr]
        assert survivor.host.replica(GROUP).replica_id > old_id
        appended = await survivor.host.append(GROUP, Submission.of([message("c")], timeout_ms=30_000))
        assert appended.base_offset == 2
        await cluster.start(others[0])
        await survivor.host.append(GROUP, Submission.of([message("d")], timeout_ms=30_000))
        assert survivor.leads
        assert others[0].host.status(GROUP).role is not Role.LEADER
        await cluster.stop(survivor)
        await cluster.start(survivor)
        await until(lambda: survivor.leads)
        assert await read_values(survivor) == ["a", "b", "c", "d"]
        assert survivor.host.status(GROUP).term >> EPOCH_BITS == 1


async def test_the_survivor_with_more_is_named(tmp_path: Path) -> None:
    """Of two survivors of five the one that has less is refused."""
    async with Cluster(str(tmp_path), 5) as cluster:
        await cluster.append("a")
        leader = await cluster.leader()
        behind = next(node for node in cluster.nodes if node is not leader)
        await cluster.stop(behind)
        await cluster.append("b")
        ahead = next(node for node in cluster.alive if node is not leader)
        await until(lambda: ahead.host.status(GROUP).log_end_offset == 2)
        for node in list(cluster.alive):
            if node is not ahead:
                await cluster.stop(node)
        await cluster.start(behind)
        await until(lambda: ahead.host.replica(GROUP).core.leader is None)
        await until(lambda: not behind.links.is_silent(ahead.agent_id))
        with pytest.raises(ShoalError, match="recover there"):
            await behind.host.recovery.recover(GROUP)
        await ahead.host.recovery.recover(GROUP)
        await until(lambda: ahead.leads)
        assert await read_values(ahead) == ["a", "b"]


class _NoLinks:
    def handle_request(self, *_: object) -> None:
        """Nobody asks."""


@pytest.mark.parametrize("crash_at", range(40))
async def test_a_crash_leaves_the_old_replica_or_the_new_one(crash_at: int) -> None:
    """Never a lost one: what the log holds is there, and either the command can be repeated or it is done."""
    rng = random.Random(crash_at)
    disk, plan, host = MemoryDisk(rng, pause_max=1), make_plan(), Promised()
    stores = await stores_on(disk)
    await write_logs(stores)
    replica = await open_replica(stores, host, plan, rng)  # type: ignore[arg-type]
    old_id, last_index = replica.replica_id, replica.log.last_index
    await replica.close("the test is over")
    cut = PowerCut(disk, crash_at, rng)
    done = False
    with contextlib.suppress(OSError, PairedFileError, StoreError):
        await Recovery(_NoLinks(), stores, host)._begin_epoch(replica)  # type: ignore[arg-type]
        done = True
    cut.end()
    stores = await stores_on(disk)
    replica = await open_replica(stores, host, plan, rng)  # type: ignore[arg-type]
    assert replica.log.last_index in (last_index, last_index + 1)
    if replica.replica_id == old_id:
        assert not done
        await replica.close("the test is over")
        await Recovery(_NoLinks(), stores, host)._begin_epoch(replica)  # type: ignore[arg-type]
        replica = await open_replica(stores, host, plan, rng)  # type: ignore[arg-type]
    assert (replica.replica_id,) == replica.core.configuration.voters
    assert replica.core.term >> EPOCH_BITS in (1, 2)
    assert replica.log.term_at(LogIndex(last_index)) == 1
    await replica.close("the test is over")
