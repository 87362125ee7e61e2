"""Large logs and many logs: a start reads no data, and what is held does not grow with the disk."""

import asyncio
import dataclasses
import gc
import os
import time
from pathlib import Path

import psutil
import pytest
from disk_suite import open_descriptors
from memory_disk import MemoryDisk
from sparse_log import make_sparse_log
from store_frames import IDENTITY, next_frame, open_log

from shoal.format.batch import DEFAULT_SCHEMA, LogIndex, Offset
from shoal.segment_store import Damaged, LogConfig, PartitionLog, open_disk
from shoal.segment_store.log.shared import SharedFiles

SEGMENTS = 300
SEGMENT_BYTES = 68 * 2**20  # 20 GB in all, of which the disk has a few megabytes
LOGS = 200


def _read_bytes() -> int:
    """What this process has asked for with read calls, from the page cache or the disk."""
    with open("/proc/self/io") as file:
        return int(file.readline().split()[1])


def _resident_bytes() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


@pytest.mark.parametrize("kind", ["ring", "threads"])
async def test_twenty_gigabytes_open_without_being_read(kind: str, tmp_path: Path) -> None:
    """Three hundred segments: in seconds, by headers and index files alone; memory for the index of the
    newest ones; a handful of handles, whatever is read afterwards."""
    directory = str(tmp_path / "log")
    end = make_sparse_log(directory, SEGMENTS, SEGMENT_BYTES)
    sizes = [os.stat(f"{directory}/{name}") for name in os.listdir(directory)]
    assert sum(stat.st_size for stat in sizes) > 20e9
    assert sum(stat.st_blocks * 512 for stat in sizes) < 50e6
    index_bytes = sum(stat.st_size for stat in sizes if stat.st_size < 2**20)
    disk = await open_disk("ring" if kind == "ring" else "threads")
    await disk.list(directory)
    handles, memory, read = open_descriptors(), _resident_bytes(), _read_bytes()
    started = time.process_time()
    log = await open_log(disk, directory, LogConfig())
    taken = time.process_time() - started
    assert (len(log.spans()), log.end_offset, log.damage) == (SEGMENTS + 1, end, ())
    assert log.size_bytes > 20e9
    assert _read_bytes() - read < 2 * index_bytes + SEGMENTS * 16 * 2**10
    assert taken < 5, f"{taken:.1f} s of CPU"
    assert _resident_bytes() - memory < 24 * 2**20
    assert open_descriptors() - handles <= 1
    for number in range(0, SEGMENTS, 7):
        span = log.spans()[number]
        (frame,) = await log.read(span.first_index, span.first_index, 1)
        assert frame.stamp.base_offset == span.first_offset
        assert await log.find_offset(Offset(span.end_offset - 1)) == log.spans()[number + 1].first_index - 1
    with pytest.raises(Damaged):
        await log.read(LogIndex(2), LogIndex(2), 1)
    assert _resident_bytes() - memory < 24 * 2**20
    assert open_descriptors() - handles <= log._files.config.max_open_files + 2
    await log.append([next_frame(log)])
    await log.close()
    assert open_descriptors() - handles <= 1
    await disk.close()


async def test_many_logs_cost_little_each(tmp_path: Path) -> None:
    """Two hundred logs with a record each: opened again in seconds, 64 KiB of the disk and a few of memory
    each, no handle before they are used."""
    disk = await open_disk()
    config = dataclasses.replace(LogConfig(), tail_cache_bytes=2**20)
    logs = [await open_log(disk, str(tmp_path / f"{number}"), config) for number in range(LOGS)]
    await asyncio.gather(*(log.append([next_frame(log)]) for log in logs))
    for log in logs:
        await log.close()
    logs.clear()
    handles, memory = open_descriptors(), _resident_bytes()
    started = time.process_time()
    logs = [await open_log(disk, str(tmp_path / f"{number}"), config) for number in range(LOGS)]
    assert time.process_time() - started < 3
    assert _resident_bytes() - memory < LOGS * 24 * 2**10
    assert open_descriptors() <= handles
    used = sum(
        os.stat(f"{root}/{name}").st_blocks * 512 for root, _, names in os.walk(tmp_path) for name in names
    )
    assert used <= LOGS * (64 + 8) * 2**10
    assert all(log.last_index == 1 for log in logs)
    for log in logs:
        await log.close()
    await disk.close()


async def test_what_is_reserved_is_bounded_over_all_logs() -> None:
    """Thirty busy logs would each reserve megabytes ahead: together they hold the bound and the least step
    each, and whoever closes, trims or truncates gives its share back."""
    bound, least = 2 * 2**20, 64 * 2**10
    disk = MemoryDisk(capacity_bytes=10 * 2**30)
    shared = SharedFiles(disk, max_reserved_bytes=bound)
    logs = [
        await PartitionLog.open(disk, f"log{number}", IDENTITY, DEFAULT_SCHEMA, LogConfig(), shared=shared)
        for number in range(30)
    ]
    for round_ in range(12):
        for log in logs:
            await log.append([next_frame(log, value_bytes=150_000, first_of_segment=round_ == 9)])
        unused = disk.used_bytes() - sum(log.size_bytes for log in logs)
        index_bytes = 30 * 2 * 2**10
        assert unused <= bound + 2 * 30 * least + index_bytes
        assert shared.reserved.unused_bytes <= bound + 2 * 30 * least
    assert shared.reserved.unused_bytes > bound / 2
    for log in logs[:10]:
        await log.trim(log.last_index)
    for log in logs[10:20]:
        await log.truncate_suffix(LogIndex(5))
    before = shared.reserved.unused_bytes
    for log in logs:
        await log.close()
    assert shared.reserved.unused_bytes == 0 < before
    log = await PartitionLog.open(disk, "log25", IDENTITY, DEFAULT_SCHEMA, LogConfig(), shared=shared)
    assert 0 < shared.reserved.unused_bytes <= disk.used_bytes()
    await log.remove()
    assert shared.reserved.unused_bytes == 0
