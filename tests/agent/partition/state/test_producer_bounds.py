"""The bound of what a partition remembers of producers, in hosts with real disks and links."""

import asyncio
from pathlib import Path

from waiting import until

from shoal.agent.partition.state.idempotence import MAX_TABLE_BYTES, RETRY_WINDOW_US
from shoal.agent.partition.state.retention import Retention
from shoal.agent.submission import Appended, Submission
from shoal.errors import ShoalError
from shoal.format.arrow_stream import SEQUENCES_PER_LANE
from shoal.format.batch import ProducerStamp, producer_id_from_text
from shoal.segment_store.config import LogConfig
from tests.agent.harness import GROUP, Cluster, Node, columns, message


async def test_producers_that_come_to_a_full_table_wait_until_time_has_passed(tmp_path: Path) -> None:
    """They are refused for certain, and known ones go on; though nothing else is appended the log counts the
    time that passes, so that room comes."""
    async with Cluster(str(tmp_path), 1) as cluster:
        leader = await cluster.leader()
        replica = leader.host.replica(GROUP)
        table = replica.state.producers
        known = ProducerStamp(producer_id_from_text("known"), 0, 0)
        await cluster.append("a", producer=known)
        table._max_bytes = table.size_bytes
        clock, ahead_ms = leader.host.clock, 0
        began_ms, began_us = clock.now_ms(), clock.now_us()
        clock.now_ms = lambda: began_ms + ahead_ms  # type: ignore[method-assign]
        clock.now_us = lambda: began_us + ahead_ms * 1000  # type: ignore[method-assign]
        new = ProducerStamp(producer_id_from_text("new"), 0, 0)
        refusals = 0
        while True:
            try:
                done = await leader.host.append(
                    GROUP, Submission.of([message("b")], producer=new, timeout_ms=10_000)
                )
            except ShoalError as error:
                if error.code != "too-many-producers":
                    raise
                refusals += 1
                ahead_ms += 30_000
            else:
                break
            if refusals == 20:
                again = await leader.host.append(
                    GROUP, Submission.of([message("a")], producer=known, timeout_ms=10_000)
                )
                assert again.duplicate
        assert not done.duplicate
        assert RETRY_WINDOW_US // 30_000_000 <= refusals <= RETRY_WINDOW_US // 30_000_000 + 3
        assert len(table) == 1
        assert replica.state.tail.last_index < refusals + 6


async def test_ten_thousand_tasks_run_twice_store_each_row_once(tmp_path: Path) -> None:
    """They are one producer; before and after a restart, and from a checkpoint."""
    async with Cluster(str(tmp_path), 1) as cluster:
        query = producer_id_from_text("query")
        for attempt in range(2):
            leader = await cluster.leader()
            for first in range(0, 10_000, 500):
                answers = await asyncio.gather(
                    *(
                        leader.host.append(
                            GROUP,
                            Submission.of(
                                [message(f"{task}")],
                                producer=ProducerStamp(query, 7, task * SEQUENCES_PER_LANE, in_lanes=True),
                                timeout_ms=60_000,
                            ),
                        )
                        for task in range(first, first + 500)
                    )
                )
                assert [answer.base_offset for answer in answers] == list(range(first, first + 500))
                assert all(answer.duplicate == (attempt == 1) for answer in answers)
            leader.host.replica(GROUP).roll()
            await cluster.append("x", producer=None)
            await cluster.stop(leader)
            await cluster.start(leader)
        assert (await cluster.leader()).host.status(GROUP).high_watermark == 10_002


async def append_gathered(cluster: Cluster, stamp: ProducerStamp) -> None:
    """One record among whatever else comes, wherever the group is led by the time."""
    while True:
        leader = await cluster.leader()
        try:
            await leader.host.append(GROUP, Submission.of(columns("x"), producer=stamp, timeout_ms=60_000))
        except ShoalError as error:
            if not error.retriable:
                raise
            await asyncio.sleep(0.02)
        else:
            return


def log_start(node: Node) -> int:
    return int(node.host.replica(GROUP).log.start_offset)


async def test_a_full_table_of_producers_rolls_trims_and_is_installed(tmp_path: Path) -> None:
    """Four MiB at the head of every segment of one: a new replica gets it with the log whose head is gone,
    and a retry is known there."""
    config = LogConfig(segment_bytes=2**20)
    async with Cluster(str(tmp_path), 3, log_config=config) as cluster:
        leader = await cluster.leader()
        away = next(node for node in cluster.nodes if node is not leader)
        await cluster.stop(away)
        first = await cluster.append("once", producer=ProducerStamp(b"%016d" % 1, 0, 0))
        number = 1
        while (await cluster.leader()).host.replica(GROUP).state.producers.size_bytes < MAX_TABLE_BYTES:
            stamps = [ProducerStamp(b"%016d" % (number + place), 0, 0) for place in range(1, 1001)]
            number += len(stamps)
            await asyncio.gather(*(append_gathered(cluster, stamp) for stamp in stamps))
        assert number > 24_000
        leader = await cluster.leader()
        state = leader.host.replica(GROUP).state
        replica = leader.host.replica(GROUP)
        files = len(replica.log.spans())
        for _ in range(6):
            await cluster.append("y" * 2**20, producer=None)
        assert files < len(replica.log.spans()) < files + 6
        for node in cluster.alive:  # whichever leads
            node.host.set_retention(GROUP, Retention(size_bytes=2**20))
        await until(lambda: all(log_start(node) > number - 1_000 for node in cluster.alive))
        await cluster.start(away)
        end = state.high_watermark
        await until(lambda: away.host.has(GROUP) and away.host.status(GROUP).high_watermark >= end)
        theirs = away.host.replica(GROUP).state
        assert len(theirs.producers) == len(state.producers)
        kept = theirs.check_producer(ProducerStamp(b"%016d" % 1, 0, 0), 1, consecutive=True)
        assert kept is not None
        assert kept.base_offset == first.base_offset
        for node in list(cluster.alive):
            await cluster.stop(node)
        for node in cluster.nodes:
            await cluster.start(node)
        again = await cluster.append("once", producer=ProducerStamp(b"%016d" % 1, 0, 0))
        assert again == Appended(first.base_offset, first.count, duplicate=True)
