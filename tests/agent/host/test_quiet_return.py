"""Who comes back after its group went quiet without it is told what it missed, by real hosts over real
links, without an append (safety 25)."""

from __future__ import annotations

from pathlib import Path

import pytest
from waiting import until

from shoal.format.batch import LogIndex
from shoal.replication.interfaces import Configuration, Replica, ReplicaId
from tests.agent.harness import GROUP, Cluster, read_values


def with_a_learner(cluster: Cluster) -> None:
    """The last of the nodes does not vote."""
    replicas = tuple(
        Replica(ReplicaId(0, number), node.agent_id, learner=node is cluster.nodes[-1])
        for number, node in enumerate(cluster.nodes)
    )
    cluster.birth = Configuration(LogIndex(0), replicas)


@pytest.mark.parametrize("learns", [True, False])
async def test_a_replica_that_returns_to_a_quiet_group_gets_what_it_missed(
    tmp_path: Path, learns: bool
) -> None:
    """The others append while it is away, and are quiet before it is back; nobody appends after that."""
    cluster = Cluster(str(tmp_path), 3)
    if learns:
        with_a_learner(cluster)
    async with cluster:
        await cluster.append("before")
        leader = await cluster.leader()
        away = cluster.nodes[-1] if learns else next(node for node in cluster.nodes if node is not leader)
        await until(lambda: away.host.status(GROUP).high_watermark == 1)
        await cluster.stop(away)
        await cluster.append("missed")
        leader = await cluster.leader()
        await until(lambda: leader.host.replica(GROUP).core.is_quiet)
        await cluster.start(away)
        await until(lambda: away.host.status(GROUP).high_watermark == 2)
        assert await read_values(away, local=True) == ["before", "missed"]
