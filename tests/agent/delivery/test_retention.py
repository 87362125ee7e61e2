"""Retention and consumer groups: what holds records back, and what lets them go early."""

from __future__ import annotations

from waiting import until

from shoal.agent.groups.settings import GroupSettings
from shoal.agent.partition.state.retention import Retention
from shoal.agent.receive import Granted, GroupKey
from tests.agent.delivery.consumers import Consumers, ack, equal_folds, group_of, offsets, plans_of, wanted
from tests.agent.delivery.test_keeper import filled
from tests.agent.harness import GROUP, Cluster
from tests.agent.host.test_catch_up import KEEP, fill, log_of
from tests.agent.memory_cluster import memory_cluster

HOLD = Retention(size_bytes=KEEP.size_bytes, hold_for_groups=True)
CHECKS = 20
"""So many times a leader looks at what may go before a test says that nothing does."""


def retain(cluster: Cluster, retention: Retention) -> None:
    for node in cluster.alive:
        node.host.set_retention(GROUP, retention)


async def checked(cluster: Cluster) -> None:
    """The leader has looked often whether something may go."""
    leader = await cluster.leader()
    trimmer = leader.host._groups[GROUP].trimmer
    for _ in range(CHECKS):
        trimmer.check()
        await leader.host.reader(GROUP).offsets()  # a round of the group, in which a trim would commit


async def take(consumers: Consumers, count: int) -> list[Granted]:
    """So many messages, in the consumer's hands."""
    taken: list[Granted] = []
    while count > 0:
        taken.append(await consumers.receive(wanted("a", min(count, 10))))
        count -= len(offsets(taken[-1]))
    return taken


async def test_a_group_holds_back_what_it_is_not_done_with() -> None:
    """Up to twice what retention keeps; then the log goes on without it, and the group skips."""
    cluster, _ = memory_cluster(seed=8)
    async with cluster:
        consumers = await filled(cluster, 0)
        retain(cluster, HOLD)
        await fill(cluster, 0, 22)
        leader = await cluster.leader()
        assert len(log_of(leader).spans()) > 2
        taken = await take(consumers, 11)
        await checked(cluster)
        assert log_of(leader).start_offset == 0
        await consumers.act(*(ack(granted) for granted in taken))
        await until(lambda: log_of(leader).start_offset > 0)
        assert log_of(leader).start_offset <= 11
        assert group_of(leader).skipped == 0
        await fill(cluster, 22, 40)
        await until(lambda: group_of(leader).skipped > 0)
        await until(lambda: group_of(leader).floor.offset >= log_of(leader).start_offset)
        await equal_folds(cluster)


async def test_what_all_groups_are_done_with_goes() -> None:
    """One that is known and has not begun holds everything; a redrive would hold what it brought back."""
    cluster, _ = memory_cluster(seed=9)
    async with cluster:
        consumers = await filled(cluster, 0)
        await fill(cluster, 0, 40)
        taken = await take(consumers, 30)
        retain(cluster, Retention(acknowledged=True))
        leader = await cluster.leader()
        keeper = leader.host.keeper(GROUP)
        assert keeper.done_before() == 0
        later = plans_of(GroupSettings(start="@2026-01-01T00:00:00Z"), key=GroupKey(b"t" * 16))
        both = consumers.plans._replace(groups={**consumers.plans.groups, **later.groups})
        leader.host.set_groups(GROUP, both)  # the service begins it, at the place of that time
        await consumers.act(*(ack(granted) for granted in taken))
        assert keeper.done_before() == 0
        await checked(cluster)
        assert log_of(leader).start_offset == 0
        leader.host.set_groups(GROUP, consumers.plans)
        assert keeper.done_before() == 30
        await until(lambda: log_of(leader).start_offset > 20)
        assert log_of(leader).start_offset <= 30
        assert offsets(await consumers.receive(wanted("b", 3))) == [30, 31, 32]
        assert group_of(leader).skipped == 0
        await equal_folds(cluster)


async def test_without_a_group_nothing_is_done_with() -> None:
    """Acknowledged by all of none says nothing."""
    cluster, _ = memory_cluster(seed=9)
    async with cluster:
        consumers = await filled(cluster, 0)
        consumers.set_groups(consumers.plans._replace(groups={}, catalog=(1, 9)))
        await fill(cluster, 0, 40)
        retain(cluster, Retention(acknowledged=True))
        leader = await cluster.leader()
        await until(lambda: leader.host.keeper(GROUP).done_before() is None)
        await checked(cluster)
        assert log_of(leader).start_offset == 0
