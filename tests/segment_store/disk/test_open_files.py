"""Open handles over all logs of an agent: bounded, never closed under an operation or before a sync."""

import asyncio
import dataclasses
import os
import random
from pathlib import Path

import pytest
from memory_disk import MemoryDisk
from store_frames import SMALL, contents, next_frame, open_log

from shoal.segment_store import open_disk
from shoal.segment_store.disk.open_files import OpenFiles
from shoal.segment_store.log.shared import MAX_OPEN_FILES, SharedFiles, open_files_limit

LOGS = 30


@pytest.mark.parametrize("kind", ["ring", "threads"])
async def test_many_partitions_few_files(kind: str, tmp_path: Path) -> None:
    """Thirty logs that append and read all the time keep five files open between their turns, active
    segments included; nothing is lost, nothing leaks."""
    before = len(os.listdir("/proc/self/fd"))
    disk = await open_disk("ring" if kind == "ring" else "threads")
    shared = SharedFiles(disk, max_open_files=5)
    logs = [await open_log(disk, str(tmp_path / str(number)), SMALL, shared=shared) for number in range(LOGS)]
    assert len(shared.open_files) == 0
    kept: list[list[bytes]] = [[] for _ in logs]
    for turn in range(4):
        frames = [next_frame(log, fill=number, first_of_segment=turn == 2) for number, log in enumerate(logs)]
        await asyncio.gather(*(log.append([frame]) for log, frame in zip(logs, frames, strict=True)))
        for data, frame in zip(kept, frames, strict=True):
            data.append(frame.data)
        one = logs[turn]
        assert await contents(one) == kept[turn]
    for log in logs:
        await log._writer.drain()
    await one.read(one.first_index, one.last_index, 2**20)  # the last to open or release closes the surplus
    async with shared.open_files.pin(one._segments[0].path):
        pass
    assert len(shared.open_files) <= 5
    for log, data in zip(logs, kept, strict=True):
        assert await contents(log) == data
        await log.close()
    assert len(shared.open_files) == 0
    await disk.close()
    assert len(os.listdir("/proc/self/fd")) <= before


async def test_a_file_with_unsynced_bytes_stays_open() -> None:
    """Closing it would lose the error of its sync (safety 11): pinned until what was written is synced."""
    disk = MemoryDisk(random.Random(1))
    shared = SharedFiles(disk, max_open_files=1)
    config = dataclasses.replace(SMALL, fsync=False, index_interval_ms=60_000)
    unsynced = await open_log(disk, "unsynced", config, shared=shared)
    await unsynced.append([next_frame(unsynced)])
    path = unsynced._segments[0].path
    assert unsynced.synced_index < unsynced.last_index
    others = [await open_log(disk, f"log{number}", SMALL, shared=shared) for number in range(4)]
    for other in others:
        await other.append([next_frame(other)])
    assert shared.open_files.is_pinned(path)
    await unsynced._writer.index.write()
    unsynced._writer.rest()
    assert unsynced.synced_index == unsynced.last_index
    assert not shared.open_files.is_pinned(path)
    for log in (unsynced, *others):
        await log.close()


async def test_a_handle_that_rests() -> None:
    """It wakes as long as nothing else needed its place; then it has to be opened again."""
    disk = MemoryDisk()
    files = OpenFiles(disk, 1)
    first = await files.acquire("a", create=True)
    assert files.rest(first)
    assert files.wake(first)
    assert files.rest(first)
    second = await files.acquire("b", create=True)
    assert first.closed
    assert not files.wake(first)
    assert files.is_pinned("b")
    third = await files.acquire("a")
    assert len(files) == 2  # both pinned: the bound is on the others
    await files.release(second)
    assert len(files) == 1
    await files.forget("a")
    assert not files.rest(third)  # gone from its directory: whoever holds it has to release it
    await files.release(third)
    assert third.closed
    assert len(files) == 0


def test_the_limit_leaves_room_for_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of what the process may open, at most a thousand."""
    for soft, limit in ((1024, 256), (2, 1), (2**20, MAX_OPEN_FILES), (-1, MAX_OPEN_FILES)):
        monkeypatch.setattr("resource.getrlimit", lambda _, soft=soft: (soft, soft))
        assert open_files_limit() == limit
