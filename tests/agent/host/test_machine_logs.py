"""Logs that feed a state machine and lose their head: with what is saved beside them, nothing is missing."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from shoal.agent import cluster as cluster_module
from shoal.agent.durable.ids import CATALOG_GROUP
from shoal.agent.host.config import HostConfig
from shoal.agent.partition.plan import StateMachine
from shoal.agent.partition.state.retention import Retention
from shoal.agent.topics import catalog_service as catalog_follow
from shoal.format.batch import Frame
from tests.agent.agents import Running, agents_in, eventually
from tests.agent.harness import GROUP, Cluster, Node
from tests.agent.host.test_catch_up import KEEP, fill, left_behind, log_of
from tests.agent.memory_cluster import memory_cluster

SMALL_BYTES = 8_192
ROUNDS_MAX = 80


class Counter:
    """Has seen so many records, and saved so many."""

    def __init__(self) -> None:
        self.seen = 0
        self.saved = 0
        self.machine = StateMachine(self.take, lambda: self.seen, lambda: self.saved)

    def take(self, frame: Frame) -> None:
        assert frame.stamp.base_offset == self.seen, "a record was skipped, or came twice"
        self.seen += frame.stamp.record_count


async def start_with_machine(cluster: Cluster, node: Node, retention: Retention) -> Counter:
    """Open the node's replica again, with a state machine that has nothing."""
    counter = Counter()
    await node.host.close_group(GROUP)
    await node.open(cluster.birth, machine=counter.machine, retention=retention)
    return counter


async def test_nothing_goes_that_a_state_machine_has_not_saved() -> None:
    """The group has agreed to drop it: each replica keeps what stands nowhere else, and drops the rest."""
    cluster, _ = memory_cluster(seed=11)
    async with cluster:
        counters = [await start_with_machine(cluster, node, KEEP) for node in cluster.nodes]
        counters[0].saved = 15
        counters[1].saved = 10_000
        await fill(cluster, 0, 60)
        kept, partly, all_of_it = cluster.nodes[2], cluster.nodes[0], cluster.nodes[1]
        await until(lambda: log_of(all_of_it).start_offset > 20 and log_of(partly).start_offset > 0)
        assert 0 < log_of(partly).start_offset <= 15
        assert log_of(kept).start_offset == 0
        assert kept.host.replica(GROUP).state.trim_before > 1
        counters[2].saved = 40
        await until(lambda: 15 < log_of(kept).start_offset <= 40)


async def test_a_copy_waits_for_the_state_that_it_lacks() -> None:
    """A replica whose log and saved state leave a gap would be all there is once the others are gone."""
    cluster, _ = memory_cluster(seed=12)
    async with cluster:
        third = await left_behind(cluster)
        leader = await cluster.leader()
        await until(lambda: log_of(leader).start_offset > 20)
        counter = Counter()
        await third.make_disk().remove_tree("data/3")
        await cluster.start(third, machine=counter.machine)
        await until(lambda: GROUP in third.host._copy_target._failed_ms)
        assert log_of(third).last_index == 0
        counter.seen = counter.saved = 58
        await until(lambda: counter.seen == 60)
        assert 20 < third.host.status(GROUP).log_start_offset <= 58


def catalog_log(running: Running) -> Any:
    return running.agent.host.replica(CATALOG_GROUP).log


async def change_until_trimmed(first: Running) -> int:
    """So many topics were made; each was deleted again, but for one in ten."""
    for number in range(ROUNDS_MAX):
        assert (await first.call("PUT", f"/v1/topics/t{number}", {"partitions": 1}))[0] == 201
        if number % 10:
            assert (await first.call("DELETE", f"/v1/topics/t{number}"))[0] in (200, 204)
        elif catalog_log(first).start_offset > 40:
            return number + 1
    raise AssertionError("nothing was trimmed")


@pytest.mark.slow
async def test_the_catalogs_log_stays_small_and_newcomers_know_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old commands go; agents that join later become voters of the catalog from a log without its head, and
    when the first is gone they know every topic and make new ones. So does the first one, restarted."""
    monkeypatch.setattr(catalog_follow, "CATALOG_SEGMENT_BYTES", SMALL_BYTES)
    monkeypatch.setattr(catalog_follow, "CATALOG_RETENTION", Retention(size_bytes=SMALL_BYTES))
    monkeypatch.setattr(cluster_module, "HostConfig", partial(HostConfig, retention_interval_ms=20))
    async with agents_in(tmp_path) as agents:
        first = await agents.alone("a0")
        made = await change_until_trimmed(first)
        assert sum(span.size_bytes for span in catalog_log(first).spans()) < 4 * SMALL_BYTES
        await first.leave()
        first = await agents.alone("a0")
        address = await first.gossip_address()
        others = [
            await agents.start(name, expect=None, join=[address]).until_ready() for name in ("a1", "a2")
        ]

        async def all_vote() -> bool:
            core = first.agent.host.replica(CATALOG_GROUP).core
            return len([item for item in core.configuration.replicas if not item.learner]) == 3

        await eventually(all_vote)
        assert all(catalog_log(other).start_offset > 0 for other in others)
        await first.leave()
        status, _ = await others[0].call("PUT", "/v1/topics/new", {"partitions": 1}, timeout="10s")
        assert status == 201
        expected = {f"t{number}" for number in range(0, made, 10)} | {"new"}
        for other in others:
            listed = (await other.call("GET", "/v1/topics"))[1]["topics"]
            assert {topic["name"] for topic in listed} == expected
        await asyncio.sleep(0)
