"""A timer topic while its agents die and come back: no message is lost, done twice, or early."""

from __future__ import annotations

import asyncio
import random
import time

import pytest
from memory_disk import MemoryDisk

from shoal.agent.receive import DuePlace
from shoal.agent.views.upkeep import view_set
from tests.agent.delivery.consumers import Consumers, ack, equal_folds, wanted
from tests.agent.delivery.timers import append_due, equal_views, timer_cluster, timers_of
from tests.agent.harness import Cluster

ROUNDS = 8


@pytest.fixture(autouse=True)
def runs_come_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that faults meet runs, merges and trims."""
    monkeypatch.setattr(view_set, "LOOK_MS", 5)
    monkeypatch.setattr(view_set, "SEAL_AFTER_MS", 30)
    monkeypatch.setattr(view_set, "TROUBLE_MS", 50)


async def die_and_return(
    cluster: Cluster, consumers: Consumers, disks: dict[str, MemoryDisk], rng: random.Random
) -> None:
    """One agent, perhaps with its power."""
    node = rng.choice(cluster.alive)
    await cluster.stop(node)
    if rng.random() < 0.5:
        disks[node.agent_id].crash(rng)
    await asyncio.sleep(0)
    await consumers.join(node)


async def produce(cluster: Cluster, rng: random.Random, records: int) -> int:
    """Some batches, due in the past, now, and within half a second; how many records there are then."""
    for _ in range(rng.randrange(2, 8)):
        now_us = time.time_ns() // 1_000
        choices = (None, 5, now_us + rng.randrange(500_000), now_us - rng.randrange(10**9))
        dues = [rng.choice(choices) for _ in range(rng.choice((1, 3, 40)))]
        await append_due(cluster, *dues, value_bytes=rng.choice((10, 400)))
        records += len(dues)
    return records


@pytest.mark.parametrize("seed", range(4))
async def test_all_messages_are_done_once_over_deaths_of_agents(seed: int) -> None:
    """Agents are killed one at a time, some with a power failure, while runs are made and the head of the log
    goes. Each message is acknowledged once, and none comes before it is due."""
    rng = random.Random(seed)
    cluster, disks = timer_cluster(seed=100 + seed)
    async with cluster:
        consumers = timers_of(cluster)
        await consumers.start()
        records = 0
        done: set[int] = set()
        for round_ in range(ROUNDS):
            records = await produce(cluster, rng, records)
            for _ in range(rng.randrange(4)):
                await take(consumers, done, rng)
            if round_ % 2:
                await die_and_return(cluster, consumers, disks, rng)
        while len(done) < records:
            await take(consumers, done, rng, wait_ms=1_000)
        assert done == set(range(records))
        assert (await consumers.receive(wanted("end"))).refusal == "empty"
        assert len(await equal_views(cluster, records)) == records
        await equal_folds(cluster)


async def take(consumers: Consumers, done: set[int], rng: random.Random, wait_ms: int = 0) -> None:
    """One answer, of which all or nothing is acknowledged; the rest is given back."""
    granted = await consumers.receive(wanted("c", rng.choice((1, 10, 200))), wait_ms=wait_ms)
    places = [
        DuePlace(piece.due_us, piece.first + number)
        for piece, _ in granted.delivered
        for number in range(piece.count)
    ]
    if not places:
        return
    assert all(place.due_us <= granted.time_us for place in places)
    assert not done & {place.offset for place in places}
    assert await consumers.act(ack(granted)) == (None,)
    done |= {place.offset for place in places}
