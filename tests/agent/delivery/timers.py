"""A timer topic on a harness cluster: replicas with views, records with due times, and what the views
hold."""

from __future__ import annotations

import time
from functools import partial

import pyarrow as pa
import pytest
from memory_disk import MemoryDisk
from waiting import until

from shoal.agent.groups.fold import GroupFold
from shoal.agent.groups.settings import GroupSettings
from shoal.agent.partition.plan import ViewKind
from shoal.agent.process.clock import SystemClock
from shoal.agent.receive import DuePlace
from shoal.agent.views.timer_view import END, ChunksMissing
from shoal.agent.views.upkeep.view_set import ReplicaView
from shoal.agent.views.view import ViewNotReady
from shoal.format.batch import TIMER_SCHEMA, message_from_batch
from tests.agent.delivery.consumers import SETTINGS, Consumers
from tests.agent.harness import GROUP, Cluster, Node
from tests.agent.memory_cluster import memory_cluster

FIRST = DuePlace(0, 0)


class StoppedWall:
    """The wall clock of every agent here: it goes on when the test says so. What is appended between two such
    moments has one time, however long that takes; elections and waits have the machine's own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_us = time.time_ns() // 1_000
        monkeypatch.setattr(SystemClock, "now_us", lambda _: self.now_us)


def timer_cluster(seed: int = 1) -> tuple[Cluster, dict[str, MemoryDisk]]:
    """Replicas that keep views by due time, with their disks."""
    cluster, disks = memory_cluster(seed=seed)
    fold = partial(GroupFold, by_due=True)
    cluster.plan_options = {"fold": fold, "schema": TIMER_SCHEMA, "view": ViewKind.TIMER}
    return cluster, disks


def timers_of(cluster: Cluster, settings: GroupSettings = SETTINGS) -> Consumers:
    """Consumers of its group."""
    return Consumers(cluster, settings, **cluster.plan_options)


async def append_due(
    cluster: Cluster, *dues: int | None, value_bytes: int = 10, key: bytes | None = None
) -> int:
    """Records with these times of delivery, in one batch; the first one's offset."""
    rows = len(dues)
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([1_000_000] * rows, TIMER_SCHEMA.field("timestamp").type),
            pa.array([key] * rows, pa.binary()),
            pa.array([b"x" * value_bytes] * rows, pa.binary()),
            pa.nulls(rows, TIMER_SCHEMA.field("headers").type),
            pa.array(dues, TIMER_SCHEMA.field("deliver_at").type),
        ],
        schema=TIMER_SCHEMA,
    )
    appended = await cluster.append_message(message_from_batch(batch))
    return int(appended.base_offset)


def view_of(node: Node) -> ReplicaView:
    """The view of the node's replica."""
    found = node.host.views.get(GROUP)
    assert found is not None
    return found


async def places_of(node: Node) -> list[DuePlace]:
    """Every place that the node's view has."""
    timers = view_of(node).timers
    assert timers is not None
    found: list[DuePlace] = []
    after = FIRST
    while True:
        try:
            ranges = timers.due(after, END, 10_000)
        except ChunksMissing as missing:
            await timers.load(missing.chunks)
            continue
        if not ranges:
            return found
        found += [DuePlace(due, first + number) for due, first, count in ranges for number in range(count)]
        after = ranges[-1].end


def has_all(node: Node, records: int) -> bool:
    """Whether the node's view has so many records, and can be read."""
    found = node.host.views.get(GROUP)
    return found is not None and found.view.is_whole and found.view.applied.offset >= records


async def equal_views(cluster: Cluster, records: int) -> list[DuePlace]:
    """The places of every replica's view, once all have so many."""
    await until(lambda: all(has_all(node, records) for node in cluster.alive))
    found: list[list[DuePlace]] = []
    for node in cluster.alive:
        try:
            found.append(await places_of(node))
        except ViewNotReady as error:
            raise AssertionError("a view that was whole is not") from error
    assert all(places == found[0] for places in found)
    return found[0]
