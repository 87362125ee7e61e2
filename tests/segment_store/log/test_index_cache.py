"""Indexes of old segments leave memory and come back; many segments open without being read."""

import dataclasses
import random

import pytest
from memory_disk import MemoryDisk
from store_frames import SMALL, contents, next_frame, open_log

from shoal.format.batch import Frame, LogIndex, Offset
from shoal.segment_store import Damaged, OffsetOutOfRange, PartitionLog, StoreError
from shoal.segment_store.format.index import IndexReleased

FORGETFUL = dataclasses.replace(SMALL, index_bytes=4096, max_open_indexes=2)
SEGMENTS = 12
ENTRIES = 6


async def _fill(disk: MemoryDisk, segments: int = SEGMENTS) -> tuple[PartitionLog, list[Frame]]:
    log = await open_log(disk, config=FORGETFUL)
    frames: list[Frame] = []
    for number in range(segments * ENTRIES):
        first = number % ENTRIES == 0
        frame = next_frame(
            log, 1 + number % 3, fill=number % 251, term=1 + number // 20, first_of_segment=first
        )
        await log.append([frame])
        frames.append(frame)
    return log, frames


def _in_memory(log: PartitionLog) -> int:
    return sum(not segment.index.is_released for segment in log._segments)


async def _check(log: PartitionLog, frames: list[Frame]) -> None:
    """Everything is found and read, in any order, whatever is in memory."""
    rng = random.Random(5)
    assert await contents(log) == [frame.data for frame in frames]
    for _ in range(60):
        frame = rng.choice(frames)
        row = rng.randrange(frame.stamp.record_count)
        assert await log.find_offset(Offset(frame.stamp.base_offset + row)) == frame.stamp.index
        (read,) = await log.read(frame.stamp.index, frame.stamp.index, 1)
        assert read.data == frame.data
        assert _in_memory(log) <= 6 + FORGETFUL.max_open_indexes
    assert await log.verify() == []
    with pytest.raises(OffsetOutOfRange):
        await log.find_offset(log.end_offset)


async def test_old_indexes_leave_memory_and_come_back() -> None:
    """While the log grows, after it is opened again, and after its head was trimmed."""
    disk = MemoryDisk()
    log, frames = await _fill(disk)
    assert _in_memory(log) <= 6
    runs, spans = log.term_runs(), log.spans()
    await _check(log, frames)
    await log.close()
    log = await open_log(disk, config=FORGETFUL)
    assert _in_memory(log) <= 6
    assert (log.term_runs(), log.spans()) == (runs, spans)
    assert all(log.term_at(frame.stamp.index) == frame.stamp.term for frame in frames)
    await _check(log, frames)
    await log.trim(frames[5 * ENTRIES].stamp.index)
    await _check(log, frames[5 * ENTRIES :])
    await log.truncate_suffix(LogIndex(log.last_index - 3))
    await _check(log, frames[5 * ENTRIES : -4])
    await log.close()


async def test_a_truncation_below_what_can_be_uncommitted_is_refused() -> None:
    """Nothing changes; at the border of a segment, and near the end, it works."""
    disk = MemoryDisk()
    log, frames = await _fill(disk)
    with pytest.raises(StoreError, match="too deep"):
        await log.truncate_suffix(LogIndex(3))
    with pytest.raises(IndexReleased):
        log.entry(LogIndex(2))
    await _check(log, frames)
    await log.close()


async def test_a_segment_that_is_the_newest_again_keeps_its_index() -> None:
    """Truncated to its very end, or inside: refused while its index is not in memory, and once it is, appends
    go on and no other index that is loaded takes its place."""
    disk = MemoryDisk()
    log, frames = await _fill(disk)
    border = 2 * ENTRIES + 1
    with pytest.raises(StoreError, match="too deep"):
        await log.truncate_suffix(LogIndex(border))
    await log.read(LogIndex(border - 2), LogIndex(border - 2), 1)  # this loads it
    await log.truncate_suffix(LogIndex(border))
    del frames[border - 1 :]
    for number in range(3 * ENTRIES):
        frame = next_frame(log, 2, fill=number, term=9)
        await log.append([frame])
        frames.append(frame)
        for index in (1, 1 + ENTRIES):
            assert (await log.read(LogIndex(index), LogIndex(index), 1))[0] == frames[index - 1]
    await _check(log, frames)
    await log.close()
    log = await open_log(disk, config=FORGETFUL)
    await _check(log, frames)
    await log.close()


async def test_an_index_that_went_bad_is_damage_until_the_next_opening() -> None:
    """Its range cannot be read, the rest can; opening reads the segment instead."""
    disk = MemoryDisk()
    log, frames = await _fill(disk)
    disk.damage("log/00000000000000000007-00000000000000000012.index", 60)
    with pytest.raises(Damaged, match="index"):
        await log.read(LogIndex(8), LogIndex(9), 1000)
    assert (await log.read(LogIndex(14), LogIndex(14), 1000))[0].data == frames[13].data
    await log.close()
    log = await open_log(disk, config=FORGETFUL)
    assert log.damage == ()
    await _check(log, frames)
    await log.close()


async def test_sealed_segments_are_opened_by_header_and_index_alone() -> None:
    """Two reads of each sealed segment at most, both of its head; what is read of all of them is their
    indexes."""
    disk = MemoryDisk()
    log, frames = await _fill(disk, 40)
    await log.close()
    disk.trace.operations.clear()
    log = await open_log(disk, config=FORGETFUL)
    reads = [path for _, path in disk.trace.of("read") if path.endswith(".arrows")]
    sealed = sorted(await disk.list("log"))[:-2:2]
    for name in sealed:
        if name.endswith(".arrows"):
            assert reads.count(f"log/{name}") <= 2
    assert len(log._files.open_files) == 0
    assert await contents(log) == [frame.data for frame in frames]
    assert len(log._files.open_files) <= FORGETFUL.max_open_files + 1
    await log.close()


async def test_a_time_is_found_without_looking_through_the_log() -> None:
    """Over segments whose times fall and rise, some of control entries only: as a look at every frame finds
    it, with one index loaded at most and no frame read; again after the log was opened anew."""
    disk, rng = MemoryDisk(), random.Random(3)
    log = await open_log(disk, config=FORGETFUL)
    frames: list[Frame] = []
    for number in range(SEGMENTS * ENTRIES):
        rows = rng.choice((0, 1, 3))
        time_us = 1_000 * (number // ENTRIES) + rng.randrange(-2_500, 900)
        frame = next_frame(log, rows, time_us=time_us, first_of_segment=number % ENTRIES == 0)
        await log.append([frame])
        frames.append(frame)

    def plainly(time_us: int, begin: int) -> int:
        for stamp in (frame.stamp for frame in frames):
            if (
                stamp.record_count
                and stamp.base_offset + stamp.record_count > begin
                and stamp.max_timestamp_us >= time_us
            ):
                return stamp.base_offset
        return log.end_offset

    for _ in range(2):
        for time_us in range(-3_000, 1_000 * SEGMENTS, 457):
            for begin in (0, log.end_offset // 2, log.end_offset - 1):
                before = log._indexes.loads
                found = await log.find_time(time_us, Offset(begin))
                assert found == plainly(time_us, begin)
                assert log._indexes.loads - before <= 2  # where it begins, and where it ends
        with pytest.raises(OffsetOutOfRange):
            await log.find_time(0, log.end_offset)
        await log.close()
        log = await open_log(disk, config=FORGETFUL)
    await log.close()


def _data_bytes(log: PartitionLog, frames: list[Frame]) -> list[int]:
    """Of each segment, from the frames that it has."""
    ends = [span.first_index for span in log.spans()[1:]] + [LogIndex(log.last_index + 1)]
    return [
        sum(
            len(frame.data)
            for frame in frames
            if frame.stamp.record_count and span.first_index <= frame.stamp.index < end
        )
        for span, end in zip(log.spans(), ends, strict=True)
    ]


@pytest.mark.parametrize("seed", range(4))
async def test_a_segment_knows_the_bytes_of_its_records(seed: int) -> None:
    """Entries without records do not count, whether its index is in memory or not, and after it was cut."""
    rng = random.Random(seed)
    disk = MemoryDisk()
    log = await open_log(disk, config=FORGETFUL)
    frames: list[Frame] = []
    for number in range(SEGMENTS * ENTRIES):
        first = number % ENTRIES == 0
        count = rng.randrange(3)
        frame = next_frame(log, count, fill=number % 251, term=1, first_of_segment=first)
        await log.append([frame])
        frames.append(frame)
        if rng.random() < 0.2:
            assert [span.data_bytes for span in log.spans()] == _data_bytes(log, frames)
        if rng.random() < 0.1 and number % ENTRIES > 2:
            frames.pop()
            await log.truncate_suffix(frame.stamp.index)
    assert any(segment.index.is_released for segment in log._segments)
    assert [span.data_bytes for span in log.spans()] == _data_bytes(log, frames)
    await log.close()
    log = await open_log(disk, config=FORGETFUL)
    assert [span.data_bytes for span in log.spans()] == _data_bytes(log, frames)
    await log.close()
