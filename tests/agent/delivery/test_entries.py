"""How much one entry of groups takes, and how much one turn decides: the rest has the next."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from waiting import until

from shoal.agent.delivery import entry_turn
from shoal.agent.delivery.keeper import GroupKeeper
from shoal.agent.delivery.led_groups import LedGroups
from shoal.agent.delivery.queued import ConsumerRequest
from shoal.agent.groups.entry import Begin, Deliver, decode_entry
from shoal.agent.groups.fold import GroupFold
from shoal.agent.groups.leader.group_leader import GroupLeader
from shoal.agent.groups.place import START, EntryStamp
from shoal.agent.receive import NOBODY, Range, entry_of
from shoal.format.batch import Kind, LogIndex, Offset
from tests.agent.delivery.consumers import (
    KEY,
    Consumers,
    ack,
    attempts,
    hashed,
    offsets,
    plans_of,
    wanted,
)
from tests.agent.delivery.test_keeper import filled
from tests.agent.groups.group_desk import MemoryFeed
from tests.agent.harness import GROUP, Cluster
from tests.agent.memory_cluster import memory_cluster

MESSAGES = 3_000


class Turns:
    """What a keeper decides in each turn, and the ranges of each entry that it makes."""

    def __init__(self, keeper: GroupKeeper, patch: pytest.MonkeyPatch) -> None:
        self.acts: list[int] = []
        self.ranges: list[int] = []
        make_entry, act, propose = keeper._make_entry, GroupLeader.act, keeper._replica.propose_next

        def made(now_ms: int) -> bool:
            self.acts.append(0)
            return make_entry(now_ms)

        def acted(leader: GroupLeader, acts: Any, now_ms: int, append_us: int) -> Any:
            self.acts[-1] += len(acts)
            return act(leader, acts, now_ms, append_us)

        def proposed(kind: Kind, control: bytes, *stamp: Any) -> Any:
            operations = decode_entry(control)[KEY]
            self.ranges.append(sum(len(getattr(one, "ranges", ())) for one in operations))
            return propose(kind, control, *stamp)

        patch.setattr(keeper, "_make_entry", made)
        patch.setattr(GroupLeader, "act", acted)
        patch.setattr(keeper._replica, "propose_next", proposed)


async def all_in_flight(cluster: Cluster) -> tuple[Consumers, Any]:
    """A consumer has every message of the log in hand."""
    consumers = await filled(cluster, 0)
    await cluster.append(*("v" for _ in range(MESSAGES)))
    granted = await consumers.receive(wanted("a", MESSAGES))
    assert offsets(granted) == list(range(MESSAGES))
    return consumers, granted


async def test_a_record_and_the_entry_that_gives_it_to_one_who_waits_are_committed_together() -> None:
    """At the leader the entry stands right behind the record, and both share a sync."""
    cluster, _ = memory_cluster(count=1)
    async with cluster:
        consumers = await filled(cluster, 1)
        first = await consumers.receive(wanted("a"))
        node = await cluster.leader()
        replica, keeper = node.host.replica(GROUP), node.host.keeper(GROUP)
        last_index = replica.state.tail.last_index
        waiting = asyncio.create_task(consumers.receive(wanted("a"), [ack(first)], wait_ms=20_000))
        await until(lambda: keeper._led.parked and replica.core.commit_index == last_index + 1)
        commits: list[int] = []
        told = (lambda: commits.append(replica.state.committed.last_index),)
        replica._observers.committed += told
        await cluster.append("1")
        granted = await waiting
        assert attempts(granted) == {1: 1}
        assert entry_of(granted.delivery) == last_index + 3
        assert commits == [last_index + 3]


async def test_no_sync_holds_the_loop_while_another_consumer_waits_for_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its entry is committed when the next one goes to the disk. A consumer alone waits for nothing else."""
    cluster, disks = memory_cluster(count=1)
    async with cluster:
        consumers = await filled(cluster, 4)
        await consumers.receive(wanted("a", 1))
        node = await cluster.leader()
        keeper, disk = node.host.keeper(GROUP), disks[node.agent_id]
        before = disk.crowded
        await consumers.receive(wanted("a", 1))
        assert disk.crowded == before
        propose, now_ms, meanwhile = keeper._propose, node.host.clock.now_ms(), list[ConsumerRequest]()

        def proposed(*entry: Any) -> None:
            propose(*entry)
            if not meanwhile:
                meanwhile.append(ConsumerRequest(KEY, wanted("b", 1), (), now_ms, 0, now_ms + 60_000))
                keeper._queue.append(meanwhile[0])

        monkeypatch.setattr(keeper, "_propose", proposed)
        given = await consumers.receive(wanted("a", 1))
        assert (offsets(given), offsets(await meanwhile[0].answer)) == ([2], [3])
        assert disk.crowded == before + 1


async def test_a_request_of_many_ranges_is_split_over_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each replica folds an entry in tens of milliseconds, however much one request says."""
    monkeypatch.setattr(entry_turn, "ENOUGH_DECISIONS", 10**9)
    monkeypatch.setattr(entry_turn, "ENOUGH_RANGES", 700)
    cluster, _ = memory_cluster(count=1)
    async with cluster:
        consumers, granted = await all_in_flight(cluster)
        turns = Turns((await cluster.leader()).host.keeper(GROUP), monkeypatch)
        done = await consumers.act(*(ack(granted, at) for at in range(0, MESSAGES, 2)))
        assert done == (None,) * (MESSAGES // 2)
        assert turns.ranges == [1_024, MESSAGES // 2 - 1_024]
        assert await consumers.act(*(ack(granted, at) for at in range(0, MESSAGES, 2))) == (
            ("receipt-used",) * (MESSAGES // 2)
        )
        assert await consumers.act(ack(granted)) == (None,)


async def test_a_request_that_changes_nothing_has_no_long_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """No entry ends it then: the next turn goes on with it by itself."""
    cluster, _ = memory_cluster(count=1)
    async with cluster:
        consumers, granted = await all_in_flight(cluster)
        assert await consumers.act(ack(granted)) == (None,)
        turns = Turns((await cluster.leader()).host.keeper(GROUP), monkeypatch)
        used = await consumers.act(*(ack(granted, at % MESSAGES) for at in range(9_000)))
        assert used == ("receipt-used",) * 9_000
        assert max(turns.acts) == entry_turn.ENOUGH_DECISIONS
        assert sum(turns.acts) == 9_000
        assert turns.ranges == []


async def test_plans_that_come_while_an_entry_is_synced_are_followed() -> None:
    """Nobody asks for the group then: its Begin has the turn after the sync."""
    cluster, _ = memory_cluster(count=1)
    async with cluster:
        consumers = await filled(cluster, 1)
        await consumers.receive(wanted("a", lease_ms=12 * 3_600_000))  # nothing else falls due
        node = await cluster.leader()
        keeper, replica = node.host.keeper(GROUP), node.host.replica(GROUP)
        other = type(KEY)(b"k" * 16)
        keeper._last_entry = LogIndex(replica.core.stable_index + 1)  # as while the next is written
        node.host.set_groups(GROUP, plans_of(key=other))
        keeper.turn_begins(node.host.clock.now_ms())
        assert other not in keeper._fold.groups
        await cluster.append("1")
        await until(lambda: other in keeper._fold.groups)


def test_leases_of_a_new_leader_begin_with_its_first_commit() -> None:
    """An answer that rests on an entry of the former leader may be given as late as that."""
    fold = GroupFold()
    deliver = Deliver(hashed("a"), NOBODY, 1_000, (Range(0, 0, 3),), ())
    for index, operation in enumerate((Begin((1, 7), START, latest=False), deliver), 1):
        stamp = EntryStamp(LogIndex(index), Offset(3), 1_000_000 * index)
        assert fold.stage(KEY, [operation], stamp) == [True]
        data = fold.staged_entry()
        fold.unstage(stamp.index)
        fold.stage(KEY, [operation], stamp)
        assert data == fold.staged_entry()
        fold.fold(stamp, data)  # type: ignore[arg-type]  # a stamp of three attributes
    feed = MemoryFeed([0, 0, 0])
    led = LedGroups(fold, 0, feed, feed)
    led.follow(plans_of())
    leader = led.leaders[KEY]
    assert not leader.is_ready
    late_ms = 3_600_000
    while led.begin_step(late_ms):
        pass
    assert leader.is_ready
    assert leader.deadline_ms(late_ms, 2_000_000) == late_ms + 1_000
