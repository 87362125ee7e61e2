"""Consumer groups of a timer topic: messages in the order of their due times, never early, over fail-over and
restarts; views that let the log go, come to new replicas, and are mended."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest
from waiting import PATIENCE_S, until

from shoal.agent.delivery.view_feed import ViewFeed
from shoal.agent.groups.settings import GroupSettings
from shoal.agent.host.scrubber import Scrubber
from shoal.agent.partition.state import retention
from shoal.agent.partition.state.retention import Retention
from shoal.agent.peers.links import Links
from shoal.agent.peers.messages import PeerMessage
from shoal.agent.receive import DuePlace, Granted, GroupMode, Range
from shoal.agent.views.merge_plan import runs_to_merge
from shoal.agent.views.upkeep import view_set
from shoal.agent.views.upkeep.timer_records import read_records
from shoal.agent.views.upkeep.view_set import ReplicaView, ViewSet
from shoal.agent.views.view import ViewLimits, ViewNotReady
from tests.agent.delivery.consumers import ack, equal_folds, wanted
from tests.agent.delivery.timers import (
    StoppedWall,
    append_due,
    equal_views,
    has_all,
    places_of,
    timer_cluster,
    timers_of,
    view_of,
)
from tests.agent.harness import GROUP, Cluster, Node
from tests.agent.memory_cluster import memory_cluster

FAR_US = 2_000_000_000_000_000
"""In 2033: none of these is due while a test runs."""


@pytest.fixture(autouse=True)
def runs_come_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """However little there is to put into one."""
    monkeypatch.setattr(view_set, "LOOK_MS", 5)
    monkeypatch.setattr(view_set, "SEAL_AFTER_MS", 40)
    monkeypatch.setattr(view_set, "TROUBLE_MS", 50)


def now_us() -> int:
    return time.time_ns() // 1_000


def places(granted: Granted) -> list[DuePlace]:
    """The messages of an answer."""
    return [
        DuePlace(piece.due_us, piece.first + number)
        for piece, _ in granted.delivered
        for number in range(piece.count)
    ]


async def fill(cluster: Cluster, count: int, first: int = 0) -> int:
    """Records due in years, the last ones first, over several segments; how many there are then."""
    for number in range(first, first + count):
        await append_due(cluster, FAR_US - 10 * number, FAR_US - 10 * number, value_bytes=700)
    return 2 * (first + count)


def first_index(node: Node) -> int:
    """Of the node's log; 0 while it is not open."""
    replica = node.host.open_replica(GROUP)
    return 0 if replica is None else replica.log.first_index


async def trimmed(cluster: Cluster, behind: int = 1) -> None:
    """Every log begins behind the entry."""
    await until(lambda: min(map(first_index, cluster.alive)) > behind)


async def test_messages_come_when_they_are_due_and_in_that_order() -> None:
    """Those of the past at once and by append time, those of the future in time; no delivery is early."""
    cluster, _ = timer_cluster()
    async with cluster:
        consumers = timers_of(cluster)
        await consumers.start()
        begun_us = now_us()
        later = [begun_us + 900_000, begun_us + 600_000, None, 5]
        await append_due(cluster, *later)
        await append_due(cluster, begun_us + 700_000)
        seen: list[DuePlace] = []
        while len(seen) < 5:
            granted = await consumers.receive(wanted("a", 2), wait_ms=2_000)
            assert all(place.due_us <= granted.time_us for place in places(granted))
            seen += places(granted)
            if granted.delivered:
                assert await consumers.act(ack(granted)) == (None,)
        assert seen == sorted(seen) == await places_of(await cluster.leader())
        assert {place.offset for place in seen} == set(range(5))
        asked = [*later, begun_us + 700_000]
        assert all(place.due_us >= (asked[place.offset] or 0) for place in seen)
        assert (await consumers.receive(wanted("a"))).refusal == "empty"
        await equal_folds(cluster)


async def test_a_waiting_consumer_is_woken_when_a_message_falls_due() -> None:
    """It waits for longer than that takes, and nothing else happens."""
    cluster, _ = timer_cluster(seed=2)
    async with cluster:
        consumers = timers_of(cluster)
        await consumers.start()
        due_us = now_us() + 400_000
        await append_due(cluster, due_us, FAR_US)
        granted = await consumers.receive(wanted("a"), wait_ms=30_000)
        [place] = places(granted)
        assert place.offset == 0
        assert granted.time_us >= place.due_us >= due_us


async def test_a_message_that_falls_due_between_a_look_and_the_next_plan_is_told_of() -> None:
    """A turn looks, and plans the next one microseconds later: the message is not passed over for a later
    one, and told of no more than once."""
    cluster, _ = timer_cluster(seed=12)
    async with cluster:
        await append_due(cluster, FAR_US, FAR_US + 10**9)
        leader = await cluster.leader()
        await until(lambda: has_all(leader, 2))
        timers = view_of(leader).timers
        assert timers is not None
        feed = ViewFeed(leader.host.replica(GROUP), lambda: None, timers)
        assert feed.deadline_us(FAR_US - 100) == FAR_US
        assert feed.new(DuePlace(0, 0), 10, FAR_US - 100) == []
        assert feed.deadline_us(FAR_US + 100) == FAR_US
        assert feed.deadline_us(FAR_US + 100) == FAR_US + 10**9
        assert feed.new(DuePlace(0, 0), 10, FAR_US + 100) == [Range(FAR_US, 0, 1)]
        assert feed.deadline_us(FAR_US + 200) == FAR_US + 10**9
        await feed.stop()


async def test_the_head_of_the_log_goes_though_nothing_was_due_yet() -> None:
    """What is due in years keeps no segment: each view has it, also after a restart of all."""
    cluster, _ = timer_cluster(seed=3)
    async with cluster:
        consumers = timers_of(cluster)
        await consumers.start()
        records = await fill(cluster, 60)
        await trimmed(cluster, 20)
        before = await equal_views(cluster, records)
        assert [place.due_us for place in before] == sorted(FAR_US - 10 * (at // 2) for at in range(records))
        for node in list(cluster.alive):
            await cluster.stop(node)
        for node in cluster.nodes:
            await consumers.join(node)
        assert await equal_views(cluster, records) == before
        assert {view_of(node).view.applied.digest for node in cluster.alive} == {
            view_of(cluster.nodes[0]).view.applied.digest
        }


async def nothing_is_fetched(_: ViewSet, made: ReplicaView) -> bool:
    """As ViewSet._fetch_lost: what it would mend must not be."""
    assert made.view.is_whole
    assert made.replica is not None
    assert made.view.applied.offset >= made.replica.log.start_offset
    return False


async def left_behind(consumers_cluster: Cluster, *, empty: bool) -> Node:
    """The third node, stopped before the others dropped what it lacks."""
    third = consumers_cluster.nodes[2]
    await consumers_cluster.stop(third)
    if empty:
        await third.make_disk().remove_tree("data/3")
    return third


@pytest.mark.parametrize("empty", [True, False])
async def test_a_replica_without_the_head_gets_the_view_and_then_the_log(
    empty: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one step, verified, whether it had nothing or fell behind; then it follows as before. Nothing is
    mended afterwards."""
    monkeypatch.setattr(ViewSet, "_fetch_lost", nothing_is_fetched)
    monkeypatch.setattr(retention, "VIEW_PATIENCE_BYTES", 20_000)
    cluster, _ = timer_cluster(seed=4)
    async with cluster:
        consumers = timers_of(cluster)
        await consumers.start()
        await fill(cluster, 3)
        third = await left_behind(cluster, empty=empty)
        await fill(cluster, 60, 3)
        await trimmed(cluster, 30)
        await consumers.join(third)
        records = await fill(cluster, 5, 63)
        assert len(await equal_views(cluster, records)) == records
        assert first_index(third) > 1
        await cluster.stop(third)
        await consumers.join(third)
        assert len(await equal_views(cluster, records)) == records


async def test_a_damaged_run_comes_from_a_peer_where_the_log_is_gone() -> None:
    """A byte of a run is flipped, and both copies of a manifest at another replica: both are whole again, and
    the bytes that came were verified."""
    cluster, disks = timer_cluster(seed=5)
    async with cluster:
        consumers = timers_of(cluster)
        await consumers.start()
        records = await fill(cluster, 60)
        await trimmed(cluster, 20)
        before = await equal_views(cluster, records)
        await until(
            lambda: not any(runs_to_merge(view_of(node).view.manifest.runs) for node in cluster.alive)
        )
        victim, other = cluster.nodes[1], cluster.nodes[2]
        with view_of(victim).view.pinned() as runs:
            path, position = runs[0].path, runs[0].index.chunk(0).position + 50
        directory = view_of(other).view.files.directory
        await cluster.stop(victim)
        await cluster.stop(other)
        disks[victim.agent_id].damage(path, position)
        for copy in "ab":
            disks[other.agent_id].damage(f"{directory}/manifest.{copy}", 20)
        await consumers.join(victim)
        await consumers.join(other)
        await until(lambda: has_all(other, records) and victim.host.views.get(GROUP) is not None)
        with contextlib.suppress(ViewNotReady):  # the scrubber may have met the damage, and a peer mended it
            await places_of(victim)
        async with asyncio.timeout(PATIENCE_S):
            while await disks[victim.agent_id].exists(path):
                await asyncio.sleep(0.01)
        assert await equal_views(cluster, records) == before


async def test_the_scrubber_finds_a_damaged_run_and_a_peer_mends_it() -> None:
    """Nobody has read it: the bytes are right again before somebody does."""
    cluster, disks = timer_cluster(seed=11)
    async with cluster:
        consumers = timers_of(cluster)
        await consumers.start()
        records = await fill(cluster, 60)
        await trimmed(cluster, 20)
        before = await equal_views(cluster, records)
        views = [view_of(node).view for node in cluster.alive]
        await until(lambda: not any(runs_to_merge(view.manifest.runs) for view in views))
        victim = cluster.nodes[1]
        with view_of(victim).view.pinned() as runs:
            path, position = runs[0].path, runs[0].index.chunk(0).position + 50
        disks[victim.agent_id].damage(path, position)
        scrubber = Scrubber(
            victim.host, victim.disk, "data/2", victim.host.clock, bytes_per_s=2**30, pass_interval_ms=10
        )
        task = asyncio.create_task(scrubber.run())
        async with asyncio.timeout(PATIENCE_S):
            while await disks[victim.agent_id].exists(path):
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert scrubber.statistics.ranges_found >= 1
        assert await equal_views(cluster, records) == before


async def test_no_record_that_the_view_has_yet_to_take_is_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The views stand still while a record is committed that is due before one they have: nothing is given,
    and then that record comes first."""
    wall = StoppedWall(monkeypatch)
    cluster, _ = timer_cluster(seed=13)
    async with cluster:
        consumers = timers_of(cluster)
        await consumers.start()
        await append_due(cluster, wall.now_us + 500_000)
        await until(lambda: all(has_all(node, 1) for node in cluster.alive))
        views = [view_of(node).view for node in cluster.alive]
        held = views[0].limits
        for view in views:  # of every replica: whichever leads
            view.limits = ViewLimits(held_rows=0)
        await append_due(cluster, None)
        wall.now_us += 1_000_000
        granted = await consumers.receive(wanted("a"), wait_ms=200)
        assert not granted.delivered
        for view in views:
            view.limits = held
        seen: list[DuePlace] = []
        while len(seen) < 2:
            seen += places(await consumers.receive(wanted("a"), wait_ms=2_000))
        assert [place.offset for place in seen] == [1, 0]


async def test_a_new_leader_goes_on_in_the_order_of_due_times() -> None:
    """After fail-over nothing that was done comes again, and what is left comes in order."""
    cluster, _ = timer_cluster(seed=6)
    async with cluster:
        consumers = timers_of(cluster)
        await consumers.start()
        for number in range(6):
            await append_due(cluster, *(5 + number for _ in range(5)))
        granted = await consumers.receive(wanted("a", 12))
        assert await consumers.act(ack(granted)) == (None,)
        await cluster.stop(await cluster.leader())
        rest: list[DuePlace] = []
        while len(rest) < 18:
            again = await consumers.receive(wanted("a", 7), wait_ms=1_000)
            rest += places(again)
        assert rest == sorted(rest)
        assert not set(rest) & set(places(granted))
        assert {place.offset for place in [*rest, *places(granted)]} == set(range(30))


async def test_keys_keep_their_order_by_due_time() -> None:
    """One message of a key at a time, the one that is due first; another key goes on."""
    cluster, _ = timer_cluster(seed=7)
    async with cluster:
        consumers = timers_of(cluster, GroupSettings(mode=GroupMode.KEY_ORDERED))
        await consumers.start()
        for key in (b"one", b"two"):
            await append_due(cluster, None, None, key=key)
        first = await consumers.receive(wanted("a", 1), wait_ms=2_000)
        second = await consumers.receive(wanted("b", 1), wait_ms=2_000)
        assert [places(first)[0].offset, places(second)[0].offset] == [0, 2]
        assert (await consumers.receive(wanted("c", 1))).refusal in ("empty", "blocked")
        assert await consumers.act(ack(first)) == (None,)
        third = await consumers.receive(wanted("c", 1), wait_ms=2_000)
        assert [place.offset for place in places(third)] == [1]


async def test_records_of_an_answer_come_from_runs_and_from_the_log() -> None:
    """Each range whole, wherever its records lie by now."""
    cluster, _ = timer_cluster(seed=8)
    async with cluster:
        consumers = timers_of(cluster)
        await consumers.start()
        await append_due(cluster, *(5 for _ in range(20)))
        leader = await cluster.leader()
        view = view_of(leader)
        await until(lambda: view.view.saved.offset == 20)
        await append_due(cluster, *(6 for _ in range(20)))
        granted = await consumers.receive(wanted("a", 40), wait_ms=1_000)
        while len(places(granted)) < 40:
            more = await consumers.receive(wanted("a", 40), wait_ms=1_000)
            granted = granted._replace(delivered=granted.delivered + more.delivered)
        assert view.timers is not None
        ranges = [piece for piece, _ in granted.delivered]
        found = await read_records(view.timers, leader.host.replica(GROUP).log, ranges)
        assert [rows.column("offset").to_pylist() for rows in found] == [
            list(range(piece.first, piece.first + piece.count)) for piece in ranges
        ]


async def test_records_go_when_their_retention_after_the_due_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Counted from due, not from the append: what is due later stays."""
    monkeypatch.setattr("shoal.agent.partition.clock_skew.PeerClocks.believed_now_us", lambda *_: FAR_US)
    cluster, _ = timer_cluster(seed=9)
    async with cluster:
        consumers = timers_of(cluster)
        await consumers.start()
        await append_due(cluster, None, None, None, FAR_US - 500_000, FAR_US + 10**9)
        for node in cluster.alive:
            node.host.set_retention(GROUP, Retention(age_ms=1_000))

        async with asyncio.timeout(PATIENCE_S):
            for node in cluster.alive:  # each replica drops them by itself
                while [place.offset for place in await places_of(node)] != [3, 4]:
                    await asyncio.sleep(0.02)


async def test_only_a_topic_with_a_view_asks_for_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica of a log that copies its head asks its peers for none of them: they may be of a level that
    does not know the question."""
    asked: list[PeerMessage] = []
    request = Links.request

    async def note(links: Links, agent_id: str, kind: int, payload: bytes, timeout_ms: int) -> bytes:
        asked.append(PeerMessage(kind))
        return await request(links, agent_id, kind, payload, timeout_ms)

    monkeypatch.setattr(Links, "request", note)
    cluster, _ = memory_cluster(seed=10)
    async with cluster:
        third = cluster.nodes[2]
        await cluster.stop(third)
        for node in cluster.alive:
            node.host.set_retention(GROUP, Retention(size_bytes=20_000))
        for number in range(60):
            await cluster.append(f"{number}:" + "x" * 1_500)
        await trimmed(cluster, 20)
        await cluster.start(third)
        await until(lambda: first_index(third) > 1)
    assert PeerMessage.SEGMENTS_PIECE in asked
    assert not {PeerMessage.VIEW_RUNS, PeerMessage.VIEW_PIECE} & set(asked)
