"""The scrubber's time, rate and memory, and what a host says of what it found."""

import asyncio
import json
import logging
from typing import Any

import pytest
from memory_disk import MemoryDisk
from waiting import PATIENCE_S, until

from shoal.agent.durable.ids import GroupId
from shoal.agent.host.scrubber import CURSOR_FILE, Cursor, Pace, Scrubber, ScrubStatistics
from shoal.agent.service.documents import damage_document
from shoal.agent.service.metrics import of_replicas, of_scrub
from shoal.format.batch import LogIndex
from tests.agent.harness import GROUP, Cluster, Node
from tests.agent.memory_cluster import memory_cluster


def _scrubber(node: Node, **options: Any) -> Scrubber:
    options = {"bytes_per_s": 2**30, "pass_interval_ms": 10} | options
    return Scrubber(node.host, node.disk, node.directory, node.host.clock, **options)


async def _filled(cluster: Cluster, values: int = 40) -> Node:
    for number in range(values):
        await cluster.append(f"{number}" * 200)
    return await cluster.leader()


def _hit(disk: MemoryDisk, node: Node, index: int, mask: int = 1) -> str:
    """Flip a bit in the middle of an entry's batch."""
    log = node.host.replica(GROUP).log
    path = log.segment_of(LogIndex(index)).path
    disk.damage(path, log.entry(LogIndex(index)).position + 300, mask)
    return path


async def test_damage_is_found_told_and_forgotten_once_it_heals(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody reads the damaged batch: the log names file, position and offsets once, the status and the
    metrics have it, the callback hears of it each time around; a repaired range leaves the status."""
    cluster, disks = memory_cluster(1)
    async with cluster:
        node = await _filled(cluster)
        disk = disks[node.agent_id]
        scrubber = _scrubber(node)
        told: list[GroupId] = []
        node.host.damaged = told.append  # type: ignore[method-assign]
        caplog.set_level(logging.WARNING, logger="shoal.agent.host.scrubber")
        task = asyncio.create_task(scrubber.run())
        await until(lambda: scrubber.statistics.passes >= 2)
        assert node.host.status(GROUP).damaged_ranges == ()
        path = _hit(disk, node, 7)
        await until(lambda: len(told) >= 3)
        (found,) = node.host.status(GROUP).damaged_ranges
        entry = node.host.replica(GROUP).log.entry(LogIndex(7))
        assert (found.path, found.position, found.first_index, found.last_index) == (
            path,
            entry.position,
            7,
            7,
        )
        assert (found.first_offset, found.end_offset) == (entry.base_offset, entry.end_offset)
        assert set(told) == {GROUP}
        messages = [
            record.getMessage() for record in caplog.records if "damage found, by" in record.getMessage()
        ]
        assert len(messages) == 1
        assert str(found) in messages[0]
        assert scrubber.statistics.ranges_found == 1
        assert damage_document("t", 0, found)["offsets"] == [entry.base_offset, entry.end_offset - 1]
        reading = await of_replicas(node.host, lambda group: "t", partitions=True)
        assert reading["shoal_partition_damaged_ranges"] == {("t", str(GROUP.partition)): 1}
        assert reading["shoal_damaged_ranges"] == 1
        assert of_scrub(scrubber.statistics)["shoal_scrub_damage_found_total"] == 1
        _hit(disk, node, 7)
        await until(lambda: node.host.status(GROUP).damaged_ranges == ())
        await until(lambda: "verifies again" in caplog.text)
        task.cancel()


async def test_it_goes_on_where_the_last_life_stopped() -> None:
    """A pass that was interrupted continues behind its cursor; what stands there and is no cursor starts a
    pass anew; a whole pass leaves none."""
    cluster, disks = memory_cluster(1)
    async with cluster:
        node = await _filled(cluster)
        disk = disks[node.agent_id]
        log = node.host.replica(GROUP).log
        whole = sum(span.size_bytes for span in log.spans())
        path = f"{node.directory}/{CURSOR_FILE}"

        async def is_cleared() -> bool:
            return await disk.exists(path) and not disk.content(path).strip()

        async def one_pass() -> int:
            scrubber = _scrubber(node, pass_interval_ms=60_000)
            task = asyncio.create_task(scrubber.run())
            async with asyncio.timeout(PATIENCE_S):
                while scrubber.statistics.passes < 1 or not await is_cleared():
                    await asyncio.sleep(0.001)
            task.cancel()
            return scrubber.statistics.bytes_read

        assert await one_pass() >= whole
        behind = LogIndex(log.last_index - 3)
        for content, is_short in (
            (Cursor(GROUP, behind).to_bytes(), True),
            (Cursor(GroupId(b"\xff" * 16, 0), LogIndex(1)).to_bytes(), True),
            (b'{"topic": 5}', False),
            (b"\xff" * 40, False),
        ):
            file = await disk.open(path, create=True)
            await file.write(0, content.ljust(1024))
            await file.close()
            assert (await one_pass() < whole / 2) == is_short
        assert json.loads(Cursor(GROUP, behind).to_bytes())["index"] == behind


def test_the_rate_is_kept_on_the_average() -> None:
    """What was read is paid for by pauses; time that passed unused is not saved up for a burst."""
    pace = Pace(1000)
    assert pace.pause_ms(500, 0) == 500
    assert pace.pause_ms(500, 500) == 500
    assert pace.pause_ms(500, 600) == 900
    assert pace.pause_ms(100, 1_000_000) == 100
    assert Pace(0).pause_ms(100, 0) == 0


async def test_the_rate_changes_while_it_runs() -> None:
    """At zero it stands still, in the middle of a pass too, and goes on when there is a rate again."""
    cluster, _ = memory_cluster(1)
    async with cluster:
        node = await _filled(cluster, 1)
        scrubber = _scrubber(node, bytes_per_s=0)
        task = asyncio.create_task(scrubber.run())
        for _ in range(100):
            await asyncio.sleep(0)
        assert scrubber.statistics == ScrubStatistics()
        scrubber.set_rate(2**30)
        await until(lambda: scrubber.statistics.passes >= 2)
        scrubber.set_rate(0)
        await asyncio.sleep(0.05)
        stood = scrubber.statistics.passes
        await asyncio.sleep(0.2)
        assert scrubber.statistics.passes <= stood + 1
        scrubber.set_rate(2**30)
        await until(lambda: scrubber.statistics.passes >= stood + 3)
        task.cancel()
        await asyncio.wait({task})


async def test_a_changed_rate_counts_in_the_middle_of_a_pause() -> None:
    """At a byte a second the pause behind one look takes hours."""
    cluster, _ = memory_cluster(1)
    async with cluster:
        node = await _filled(cluster)
        scrubber = _scrubber(node, bytes_per_s=1)
        task = asyncio.create_task(scrubber.run())
        await until(lambda: scrubber.statistics.bytes_read > 0)
        scrubber.set_rate(2**30)
        await until(lambda: scrubber.statistics.passes >= 2)
        task.cancel()
        await asyncio.wait({task})


async def test_it_looks_slowly_and_appends_go_on(tmp_path: Any) -> None:
    """At a KiB a second a megabyte takes longer than any test, on a real disk however slow, and appends are
    acknowledged as ever."""
    cluster = Cluster(str(tmp_path), 1)
    async with cluster:
        node = await _filled(cluster, 10)
        await cluster.append("x" * 2**20)
        scrubber = _scrubber(node, bytes_per_s=2**10)
        task = asyncio.create_task(scrubber.run())
        await until(lambda: scrubber.statistics.bytes_read > 0)
        for number in range(20):
            await cluster.append(f"{number}")
        assert scrubber.statistics.passes == 0
        assert scrubber.statistics.bytes_read < 2**21
        task.cancel()
