"""A replica whose log has entries of its own fold is trimmed, copied and opened again as any other."""

from __future__ import annotations

from typing import Any

from waiting import until

from shoal.errors import ShoalError
from shoal.format.batch import Kind
from shoal.segment_store.errors import DiskFull
from tests.agent.harness import GROUP, Cluster, Node
from tests.agent.host.test_catch_up import KEEP, equal_logs, fill, kept, log_of, trimmed
from tests.agent.memory_cluster import memory_cluster
from tests.agent.text_fold import TextFold


def texts(node: Node) -> list[str]:
    fold: Any = node.host.replica(GROUP).state.fold
    return list(fold.texts)


async def note(cluster: Cluster, text: str) -> None:
    """An entry of the fold, committed; once more where a leader was lost meanwhile, unless it is there."""
    while text not in texts(leader := await cluster.leader()):
        try:
            await leader.host.propose_control(GROUP, Kind.GROUP_STATE, text.encode(), 5_000)
        except ShoalError as error:
            if not error.retriable:
                raise


async def folding_cluster(cluster: Cluster) -> None:
    """Three replicas with a fold, instead of those that were started."""
    for node in list(cluster.alive):
        await cluster.stop(node)
    for node in cluster.nodes:
        await cluster.start(node, fold=TextFold)


async def test_a_trimmed_log_is_copied_with_its_fold() -> None:
    """The entries are gone from every log; the checkpoint that heads a segment has what they added up to."""
    cluster, _ = memory_cluster(seed=3)
    async with cluster:
        await folding_cluster(cluster)
        await note(cluster, "one")
        await note(cluster, "two")
        third = cluster.nodes[2]
        await until(equal_logs(cluster))
        await cluster.stop(third)
        await third.make_disk().remove_tree("data/3")
        for node in cluster.alive:
            node.host.set_retention(GROUP, KEEP)
        await fill(cluster, 0, 60)
        await trimmed(cluster, 20)
        await cluster.start(third, fold=TextFold)
        await until(lambda: third.host.status(GROUP).log_start_offset > 3)
        await kept(cluster)
        await note(cluster, "three")
        await until(equal_logs(cluster))
        assert log_of(third).first_index > 3
        assert [texts(node) for node in cluster.nodes] == [["one", "two", "three"]] * 3


async def test_a_full_disk_that_has_room_again_folds_anew() -> None:
    """The replica was closed by the refusal; it opens with a fold of its own, made from the log."""
    cluster, _ = memory_cluster(seed=4)
    async with cluster:
        await folding_cluster(cluster)
        await note(cluster, "one")
        await until(equal_logs(cluster))
        follower = next(node for node in cluster.nodes if not node.leads)
        before = follower.host.replica(GROUP)
        before.fail("disk-full", "this replica stopped: no space", DiskFull("no space"))
        await until(lambda: follower.host.open_replica(GROUP) not in (None, before))
        await note(cluster, "two")
        await until(equal_logs(cluster))
        assert [texts(node) for node in cluster.nodes] == [["one", "two"]] * 3
        assert follower.host.replica(GROUP).state.fold is not before.state.fold
