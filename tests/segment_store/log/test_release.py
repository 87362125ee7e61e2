"""Space that was reserved: it holds what it was reserved for, and goes back to the disk once nothing more can
come there."""

import asyncio
import dataclasses
import os
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory_disk import MemoryDisk
from store_frames import SMALL, contents, next_frame, open_log

from shoal.format.batch import LogIndex
from shoal.segment_store import Disk, DiskFull, LogConfig, PartitionLog, open_disk
from shoal.segment_store.format.tail_record import TRAILER_BYTES
from shoal.segment_store.log.shared import SharedFiles


def early_config() -> LogConfig:
    """Files grow by large steps, and segments end long before they are full."""
    return dataclasses.replace(
        SMALL, segment_bytes=2**20, max_allocation_step_bytes=256 * 1024, max_write_bytes=256 * 1024
    )


async def rolled_early(log: PartitionLog, count: int = 3) -> None:
    """Segments of which the file holds a quarter; the last one has an entry."""
    for _ in range(count):
        for number in range(4):
            await log.append([next_frame(log, value_bytes=40_000, first_of_segment=number == 0)])
    await log.append([next_frame(log, first_of_segment=True)])


async def test_space_reserved_behind_an_early_end_is_given_back(tmp_path: Path) -> None:
    """On a real file system: the blocks go, the length stays (somebody may have mapped it), the segments read
    as before, in this life and the next."""
    disk: Disk = await open_disk("ring")
    shared = SharedFiles(disk)
    log = await open_log(disk, str(tmp_path), early_config(), shared=shared)
    await rolled_early(log)
    sealed = log._segments[:3]
    await until_released(log)
    for segment in sealed:
        found = os.stat(segment.path)
        assert found.st_size == segment.allocated > segment.planned_end + 80_000
        assert found.st_blocks * 512 <= segment.planned_end + TRAILER_BYTES + 2 * 4096
    assert shared.reserved.unused_bytes <= log._segments[-1].allocated
    assert await log.verify() == []
    before = await contents(log)
    await log.close()
    log = await open_log(disk, str(tmp_path), early_config())
    assert await contents(log) == before
    await log.close()
    await disk.close()


async def until_released(log: PartitionLog) -> None:
    while log._writer.index._sealed or log._writer.index._task is not None:
        await asyncio.sleep(0.002)


@pytest.mark.parametrize("when", ["never", "at the roll"])
async def test_an_opening_gives_back_what_a_crash_left(when: str) -> None:
    """The power fails between the roll and the release, or takes the release back: the next start does it,
    and counts nothing as reserved but in the active segment."""
    disk = MemoryDisk(random.Random(3))
    log = await open_log(disk, config=early_config())
    if when == "never":
        log._writer.index.release_sealed = nothing  # type: ignore[method-assign]
    await rolled_early(log)
    if when == "at the roll":
        await until_released(log)
    before = await contents(log)
    disk.crash(random.Random(4))
    shared = SharedFiles(disk)
    log = await open_log(disk, config=early_config(), shared=shared)
    held = disk.used_bytes()
    filled = sum(segment.planned_end for segment in log._segments)
    assert held <= filled + 4 * (8192 + 4096) + log._segments[-1].allocated
    assert shared.reserved.unused_bytes == log._segments[-1].unused_bytes
    assert await contents(log) == before
    await log.close()


async def nothing() -> None:
    """Instead of giving back."""


async def test_a_full_disk_at_a_roll_leaves_the_old_segment_its_room() -> None:
    """The roll's first entry is refused, the old segment is the active one again: what was reserved in it is
    still there for smaller ones."""
    disk = MemoryDisk(random.Random(5))
    log = await open_log(disk, config=early_config())
    for _ in range(4):
        await log.append([next_frame(log, value_bytes=40_000)])
    room = log._segments[0].allocated - log._segments[0].planned_end
    assert room > 80_000
    disk.capacity_bytes = disk.used_bytes() + 3 * 4096  # a header and an index, nothing more
    with pytest.raises(DiskFull):
        await log.append([next_frame(log, value_bytes=60_000, first_of_segment=True)])
    disk.capacity_bytes = disk.used_bytes()
    await log.append([next_frame(log, value_bytes=60_000)])
    await log.close()
    assert await log_of_last_life(disk) == 5


async def log_of_last_life(disk: MemoryDisk) -> int:
    disk.capacity_bytes = 2**30
    log = await open_log(disk, config=early_config())
    last = int(log.last_index)
    assert await log.verify() == []
    await log.close()
    return last


async def test_a_truncation_into_a_segment_whose_rest_was_given_back() -> None:
    """It is the active one again, and takes what comes."""
    disk = MemoryDisk(random.Random(6))
    log = await open_log(disk, config=early_config())
    await rolled_early(log, 2)
    await until_released(log)
    await log.truncate_suffix(LogIndex(4))
    for _ in range(6):
        await log.append([next_frame(log, value_bytes=50_000)])
    before = await contents(log)
    disk.crash(random.Random(7))
    log = await open_log(disk, config=early_config())
    assert await contents(log) == before
    await log.close()


_steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 60_000), st.booleans()),
        st.tuples(st.just("together"), st.integers(1, 20_000), st.booleans()),
        st.tuples(st.just("truncate"), st.integers(0, 5), st.booleans()),
        st.tuples(st.just("trim"), st.integers(0, 2), st.booleans()),
        st.tuples(st.just("reopen"), st.integers(0, 2**16), st.booleans()),
        st.tuples(st.just("index"), st.integers(1, 9), st.booleans()),
    ),
    min_size=4,
    max_size=30,
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_steps, st.integers(0, 2**16))
def test_what_has_room_is_not_refused_on_a_full_disk(steps: list[tuple[str, int, bool]], seed: int) -> None:
    """Whatever came before, rolls that were refused, truncations, starts: a batch that fits into the blocks
    which the active segment has is stored, however full the disk is; and what is refused is refused whole."""
    asyncio.run(_on_a_full_disk(steps, seed))


def has_holes(disk: MemoryDisk, path: str) -> bool:
    """It was sealed, and its rest given back, before a truncation made it the active one again."""
    return bool(disk._names[path].released)


async def _on_a_full_disk(steps: list[tuple[str, int, bool]], seed: int) -> None:
    disk = MemoryDisk(random.Random(seed), pause_max=3)
    log = await open_log(disk, config=early_config())
    await log.append([next_frame(log)])
    stored = await contents(log)
    for step, number, flag in steps:
        await log._writer.drain()
        disk.capacity_bytes = disk.used_bytes()
        if step in ("append", "together"):
            roll = flag and step == "append"
            frame = next_frame(log, value_bytes=number, first_of_segment=roll)
            newest = log._segments[-1]
            end = newest.planned_end + len(frame.data) + TRAILER_BYTES
            fits = not roll and end <= newest.allocated and not has_holes(disk, newest.path)
            if flag and not fits:
                disk.capacity_bytes = 2**30
            if step == "together":
                log._writer.index.start()
            try:
                await log.append([frame])
            except DiskFull:
                assert not fits
            else:
                stored.append(frame.data)
        elif step == "truncate" and log.last_index - number > log.first_index:
            await log.truncate_suffix(LogIndex(log.last_index - number + 1))
            del stored[len(stored) - number :]
        elif step == "trim":
            before = log.spans()[-min(len(log.spans()), 1 + number)].first_index
            stored = stored[before - log.first_index :]
            await log.trim(before)
        elif step == "reopen":
            disk.capacity_bytes = 2**30
            await log.close()
            if flag:
                disk.crash(random.Random(number))
            log = await open_log(disk, config=early_config())
        elif step == "index":
            log._writer.index.start()
        assert await contents(log) == stored
    disk.capacity_bytes = 2**30
    await log.append([next_frame(log, value_bytes=60_000)])
    assert await log.verify() == []
    await log.close()
