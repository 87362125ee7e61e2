"""An agent with many partitions starts again soon and holds little for each of them. The thousand is
`scripts/bench start`; this is a fifth of it."""

import asyncio
import gc
import os
import time
from pathlib import Path

import psutil

from tests.agent.agents import Running, agents_in, eventually

PARTITIONS = 200
MEMORY_BYTES_MAX = 64 * 2**10  # a partition: twice of what was measured
DISK_BYTES_MAX = (64 + 8 + 4) * 2**10  # a partition: first allocation, index, directory


def _resident_bytes() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def _handles() -> int:
    return len(os.listdir("/proc/self/fd"))


def _disk_bytes(directory: Path) -> int:
    files = [Path(root) / name for root, _, names in os.walk(directory) for name in names]
    return sum(path.stat().st_blocks * 512 for path in files)


async def _led(agent: Running) -> None:
    async def everywhere() -> bool:
        status, topic = await agent.call("GET", "/v1/topics/many")
        return status == 200 and all(item["leader"] for item in topic["partitions"])

    await eventually(everywhere, 90)


async def test_many_partitions_start_again_soon_and_cost_little(tmp_path: Path) -> None:
    """After records in each of them and a restart: ready in seconds of CPU, everything led and readable, and
    memory, handles and disk within a bound for each partition."""
    async with agents_in(tmp_path) as agents:
        first = await agents.alone("a")
        memory, disk = _resident_bytes(), _disk_bytes(tmp_path)
        status, _ = await first.call(
            "PUT", "/v1/topics/many", {"partitions": PARTITIONS, "replication_factor": 1}
        )
        assert status == 201
        await _led(first)
        for start in range(0, PARTITIONS, 20):
            appends = (
                first.call(
                    "POST", f"/v1/topics/many/partitions/{number}/records", {"records": [{"value": "x"}]}
                )
                for number in range(start, start + 20)
            )
            assert {status for status, _ in await asyncio.gather(*appends)} == {200}
        assert _resident_bytes() - memory < PARTITIONS * MEMORY_BYTES_MAX
        assert _disk_bytes(tmp_path) - disk < PARTITIONS * DISK_BYTES_MAX
        await first.leave()
        handles, started = _handles(), time.process_time()
        second = await agents.alone("a")
        await _led(second)
        assert time.process_time() - started < 10
        assert _handles() - handles < PARTITIONS + 50
        for number in (0, PARTITIONS - 1):
            status, read = await second.call("GET", f"/v1/topics/many/partitions/{number}/records")
            assert (status, len(read["records"])) == (200, 1)
        assert _disk_bytes(tmp_path) - disk < PARTITIONS * DISK_BYTES_MAX
