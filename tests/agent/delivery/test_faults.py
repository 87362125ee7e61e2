"""Groups where something fails: proposals, disks, bits, indexes that left memory. And what idle ones cost."""

from __future__ import annotations

import dataclasses
import sys
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from waiting import until

from shoal.agent.delivery.group_upkeep import GroupUpkeep
from shoal.agent.groups.entry import Begin, Lost, Seek
from shoal.agent.groups.fold import GroupFold
from shoal.agent.groups.place import START, EntryStamp
from shoal.agent.host.open_group import OpenGroup
from shoal.agent.partition.replica import Replica
from shoal.agent.receive import ActKind, DuePlace, Range
from shoal.errors import ShoalError
from shoal.format.batch import Kind, LogIndex, Offset, Term
from shoal.replication.errors import Overloaded, TransferInProgress
from shoal.segment_store.check.damage import DamagedRange, merge, range_of_entries
from shoal.segment_store.format.index import Entry
from tests.agent.delivery.consumers import (
    KEY,
    ack,
    attempts,
    equal_folds,
    fold_of,
    group_of,
    offsets,
    plans_of,
    wanted,
)
from tests.agent.delivery.test_keeper import filled
from tests.agent.harness import GROUP
from tests.agent.host.test_catch_up import fill, log_of
from tests.agent.host.test_repair import Place
from tests.agent.memory_cluster import SMALL, memory_cluster

FORGETFUL = dataclasses.replace(SMALL, index_bytes=4096, max_open_indexes=1, tail_cache_bytes=0)
CALLS_OF_AN_IDLE_GROUP = 2
"""Of functions of agent/delivery, for each append."""


@pytest.mark.parametrize(
    ("fault", "code"), [(TransferInProgress("to another"), "no-leader"), (Overloaded("full"), "overloaded")]
)
async def test_an_entry_that_is_refused_leaves_nothing_behind(
    fault: Exception, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was staged in the fold, and leases were given: the fold is as before, and so is the next answer."""
    cluster, _ = memory_cluster(count=1)
    async with cluster:
        consumers = await filled(cluster, 5)
        first = await consumers.receive(wanted("a", 2))
        node = await cluster.leader()
        data, replica = await equal_folds(cluster), node.host.replica(GROUP)
        with monkeypatch.context() as patch:

            def refuse(*_: Any) -> Any:
                raise fault

            patch.setattr(replica.core, "propose", refuse)
            keeper = node.host.keeper(GROUP)
            deadline_ms = node.host.clock.now_ms() + 60_000
            with pytest.raises(ShoalError) as refused:
                await keeper.receive(KEY, wanted("b", 2), [ack(first, 0)], 0, deadline_ms)
            assert (refused.value.code, refused.value.definite) == (code, True)
            assert fold_of(node).to_bytes() == data
            fold_of(node).check_invariants()
        granted = await consumers.receive(wanted("b", 2), [ack(first, 0)])
        assert attempts(granted) == {2: 1, 3: 1}
        assert granted.outcomes == (None,)
        assert await consumers.act(ack(first)) == (None,)
        await equal_folds(cluster)


async def test_messages_behind_an_index_that_left_memory_are_found() -> None:
    """It is loaded, and the receive waits for it."""
    cluster, _ = memory_cluster(count=1, log_config=FORGETFUL)
    async with cluster:
        consumers = await filled(cluster, 0)
        await fill(cluster, 0, 60)
        node = await cluster.leader()
        indexes = log_of(node)._indexes
        assert log_of(node)._segments[0].index.is_released
        loads = indexes.loads
        seen: list[int] = []
        while len(seen) < 60:
            granted = await consumers.receive(wanted("a", 7))
            seen += offsets(granted)
            await consumers.act(ack(granted))
        assert seen == list(range(60))
        assert indexes.loads > loads


async def test_a_disk_that_runs_full_under_a_leader_loses_nothing() -> None:
    """Its replica stops and comes back once there is room; the groups go on meanwhile, and are the same."""
    cluster, disks = memory_cluster(seed=21)
    async with cluster:
        consumers = await filled(cluster, 4)
        first = await consumers.receive(wanted("a", 2, request="r"))
        await equal_folds(cluster)
        leader = await cluster.leader()
        before, disk = leader.host.replica(GROUP), disks[leader.agent_id]
        disk.capacity_bytes = disk.used_bytes()
        while before.failure is None:
            granted = await consumers.receive(wanted("b", 1))
            await consumers.act(ack(granted, kind=ActKind.RELEASE))
        assert before.failure[0] == "disk-full"
        assert await consumers.receive(wanted("a", 2, request="r")) == first
        assert await consumers.act(ack(first, 0)) == (None,)
        disk.capacity_bytes += 2**30
        await until(lambda: leader.host.open_replica(GROUP) not in (None, before))
        assert offsets(await consumers.receive(wanted("c"))) == [2, 3]
        assert await consumers.act(ack(first)) == (None,)
        await equal_folds(cluster)
        assert all(group_of(node).acked == 2 for node in cluster.nodes)


async def test_a_replica_whose_entries_of_groups_were_damaged_is_mended() -> None:
    """It cannot be opened without them; with the exact bytes from its peers it holds the same groups."""
    cluster, disks = memory_cluster(seed=22)
    async with cluster:
        consumers = await filled(cluster, 4)
        granted = await consumers.receive(wanted("a", 3))
        await consumers.act(ack(granted, 1))
        data = await equal_folds(cluster)
        node = next(item for item in cluster.nodes if not item.leads)
        frames = await log_of(node).read(1, log_of(node).last_index, 2**20)
        states = [frame.stamp.index for frame in frames if frame.stamp.kind == Kind.GROUP_STATE]
        assert len(states) >= 3
        places = [Place(disks[node.agent_id], node, index) for index in states[-2:]]
        before = [place.bytes() for place in places]
        await cluster.stop(node)
        for place in places:
            place.hit(at=100)
        await consumers.join(node)
        await until(lambda: node.host.has(GROUP) and node.host.status(GROUP).state == "active")
        assert await equal_folds(cluster) == data
        assert [place.bytes() for place in places] == before
        assert await consumers.act(ack(granted)) == (None,)


async def test_an_idle_group_costs_an_append_two_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """One at the turn, one at the commit; nothing is decided, and no deadline is looked for."""
    cluster, _ = memory_cluster(count=1)
    async with cluster:
        consumers = await filled(cluster, 3)
        granted = await consumers.receive(wanted("a"))
        await consumers.act(ack(granted))
        calls: list[str] = []

        def seen(frame: FrameType, event: str, _: Any) -> None:
            if event == "call" and "shoal/agent/delivery/" in frame.f_code.co_filename:
                calls.append(frame.f_code.co_qualname)

        appends = 50
        monkeypatch.setattr(OpenGroup, "check", lambda _: None)  # no append's: it comes from time to time
        sys.setprofile(seen)
        try:
            for number in range(appends):
                await cluster.append(f"{number}")
        finally:
            sys.setprofile(None)
        assert 0 < len(calls) <= CALLS_OF_AN_IDLE_GROUP * appends, calls[:20]
        assert set(calls) <= {"GroupKeeper.turn_begins", "GroupKeeper.committed"}


def damaged(replica: Replica, index: LogIndex) -> DamagedRange:
    """The batch with that index, as an opening would tell of it."""
    entry = replica.log.entry(index)
    return range_of_entries("log", entry, entry, "zeros")


async def test_quarantined_records_are_lost_to_every_group(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody has them intact: the group goes on behind them, and says how many it skipped, after a seek back
    too."""
    cluster, _ = memory_cluster(count=1)
    async with cluster:
        consumers = await filled(cluster, 5)
        node = await cluster.leader()
        replica = node.host.replica(GROUP)
        first = await consumers.receive(wanted("a", 1))
        bad = [replica.log.index_for_offset(Offset(at)) for at in (0, 2, 3)]
        replica.damaged_ranges = tuple(merge(damaged(replica, index) for index in bad))
        replica.plan = dataclasses.replace(replica.plan, quarantined=frozenset(bad))
        granted = await consumers.receive(wanted("a"))
        assert offsets(granted) == [1, 4]
        assert await consumers.act(ack(granted), ack(first)) == (None, "receipt-used")
        group = group_of(node)
        assert (group.floor.offset, group.skipped) == (5, 3)
        assert "messages that no replica can read any more: 0 to 0, 2 to 3" in caplog.text
        sought = Seek(group.generation + 1, DuePlace(0, 1))
        assert await node.host.keeper(GROUP).change(KEY, sought, node.host.clock.now_ms() + 60_000)
        granted = await consumers.receive(wanted("a"))
        assert offsets(granted) == [1, 4]
        assert group.skipped == 5
        await equal_folds(cluster)


@pytest.mark.parametrize("by_due", [False, True])
def test_lost_records_are_named_where_places_are_offsets(by_due: bool) -> None:
    """A due time is not known without its record, and messages that fall due before it must not be passed."""
    fold = GroupFold(by_due=by_due)
    stamp = EntryStamp(LogIndex(1), Offset(9), 1_000)
    assert fold.stage(KEY, [Begin((1, 7), START)], stamp) == [True]
    entry = Entry(LogIndex(3), Offset(4), 0, 100, 2, Term(1), 5)
    log = SimpleNamespace(start_offset=0, entry=lambda _: entry)
    plan = SimpleNamespace(quarantined=frozenset((LogIndex(3),)))
    item = range_of_entries("log", entry, entry, "zeros")
    replica: Any = SimpleNamespace(log=log, plan=plan, damaged_ranges=(item,))
    due = list(GroupUpkeep(replica, fold).due(plans_of()))
    assert due == ([] if by_due else [(KEY, Lost((Range(0, 4, 2),)))])


async def test_a_replica_waits_for_an_entry_of_groups_that_no_voter_has(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Without it the groups would be others than those that were told of: the log says so, and why."""
    cluster, disks = memory_cluster(count=1)
    async with cluster:
        consumers = await filled(cluster, 2)
        await consumers.act(ack(await consumers.receive(wanted("a"))))
        (node,) = cluster.nodes
        frames = await log_of(node).read(1, log_of(node).last_index, 2**20)
        states = [frame.stamp.index for frame in frames if frame.stamp.kind == Kind.GROUP_STATE]
        place = Place(disks[node.agent_id], node, states[-2])
        await cluster.stop(node)
        place.hit(at=100)
        await consumers.join(node)
        await until(lambda: "hold the work of consumer groups" in caplog.text)
        assert not node.leads
        place.hit(at=100)  # the same bits, so it is intact again
