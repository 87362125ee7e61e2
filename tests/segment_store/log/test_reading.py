"""Long reads, made in several runs, and reads that are answered at once: same frames, same refusals."""

import asyncio
import errno
import random
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from memory_disk import MemoryDisk
from store_frames import filled, next_frame, open_log, read_whole

from shoal.format.batch import Frame, LogIndex
from shoal.segment_store import Damaged, Disk, LogConfig, OffsetOutOfRange, PartitionLog, open_disk
from shoal.segment_store.disk import system_calls
from shoal.segment_store.format.index import SegmentIndex, entry_of

CONFIG = LogConfig(tail_cache_bytes=0, read_chunk_bytes=64 * 2**10)
FRAMES = 60
VALUE_BYTES = 50_000  # three megabytes in all, in some fifty runs


@pytest.fixture(params=["ring", "threads", "memory"])
async def disk(request: pytest.FixtureRequest) -> AsyncIterator[Disk]:
    """Each of the three."""
    disk = MemoryDisk(random.Random(1)) if request.param == "memory" else await open_disk(request.param)
    yield disk
    await disk.close()


async def _filled(disk: Disk, tmp_path: Path) -> tuple[PartitionLog, list[Frame]]:
    directory = "log" if disk.kind == "memory" else str(tmp_path / "log")
    log = await open_log(disk, directory, CONFIG)
    frames, appends = [], []
    for number in range(FRAMES - 1):
        frames.append(next_frame(log, value_bytes=VALUE_BYTES, fill=number))
        appends.append(log.append([frames[-1]]))
    await asyncio.gather(*appends)
    frames.append(next_frame(log))
    await log.append([frames[-1]])  # with it the others leave the cache
    return log, frames


async def _flip(disk: Disk, log: PartitionLog, index: int) -> None:
    """One bit of one entry's body."""
    segment = log._segments[-1]
    position = log.entry(LogIndex(index)).position + 2000
    if isinstance(disk, MemoryDisk):
        disk.damage(segment.path, position)
        return
    data = bytearray(Path(segment.path).read_bytes()[position : position + 1])
    data[0] ^= 1
    with open(segment.path, "r+b") as file:
        file.seek(position)
        file.write(data)


async def test_a_long_read_gives_every_frame_in_order(disk: Disk, tmp_path: Path) -> None:
    """Whatever the number of its runs."""
    log, frames = await _filled(disk, tmp_path)
    for _ in range(5):
        assert await log.read(LogIndex(1), log.last_index, 2**30) == frames
    pieces, last = await read_whole(log, LogIndex(3), LogIndex(50), 2**30)
    assert (b"".join(pieces), last) == (b"".join(frame.data for frame in frames[2:50]), 50)
    bounded = await log.read(LogIndex(1), log.last_index, 10 * len(frames[0].data) + 1)
    assert bounded == frames[:10]
    await log.close()


@pytest.mark.parametrize("damaged", [1, 2, 31, 59])
async def test_a_long_read_ends_before_damage(disk: Disk, tmp_path: Path, damaged: int) -> None:
    """Nothing behind the damage is served; reading on from it is refused."""
    log, frames = await _filled(disk, tmp_path)
    await _flip(disk, log, damaged)
    if damaged > 1:
        assert await log.read(LogIndex(1), log.last_index, 2**30) == frames[: damaged - 1]
    with pytest.raises(Damaged) as caught:
        await log.read(LogIndex(damaged), log.last_index, 2**30)
    assert caught.value.first_index == damaged
    assert [found.first_index for found in await log.verify()] == [damaged]
    await log.close()


async def test_a_failing_disk_ends_a_long_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """EIO ends the answer before the run that met it; the disk's next answer is new."""
    disk = await open_disk("threads")
    log, frames = await _filled(disk, tmp_path)
    bad = log.entry(LogIndex(40)).position
    real = system_calls.read_fully_into

    def failing(fd: int, offset: int, buffer: memoryview) -> int:
        if offset <= bad < offset + len(buffer):
            raise OSError(errno.EIO, "the disk is ill")
        return real(fd, offset, buffer)

    with monkeypatch.context() as ill:
        ill.setattr(system_calls, "read_fully_into", failing)
        ill.setattr(system_calls, "read_resident_into", lambda *_: 0)
        found = await log.read(LogIndex(1), log.last_index, 2**30)
        assert found == frames[: len(found)]
        assert 30 <= len(found) < 40
        with pytest.raises(Damaged, match="the disk is ill"):
            await log.read(LogIndex(len(found) + 1), log.last_index, 2**30)
    assert await log.read(LogIndex(1), log.last_index, 2**30) == frames
    await log.close()
    await disk.close()


async def test_a_cancelled_long_read_leaves_the_file_whole(disk: Disk, tmp_path: Path) -> None:
    """The caller may be cancelled at any turn; closing the log waits for what the disk still copies."""
    log, frames = await _filled(disk, tmp_path)
    for turns in range(12):
        task = asyncio.ensure_future(log.read(LogIndex(1), log.last_index, 2**30))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert await log.read(LogIndex(1), log.last_index, 2**30) == frames
    await log.close()


async def test_a_read_under_way_meets_a_trim(disk: Disk, tmp_path: Path) -> None:
    """It gives the entries that it has read, or says that they are gone; a missing file is not damage."""
    log, frames = await _filled(disk, tmp_path)
    first = next_frame(log, value_bytes=100, first_of_segment=True)
    await log.append([first])
    await log._files.open_files.close(log._files.directory)
    read = asyncio.ensure_future(log.read(LogIndex(5), LogIndex(60), 2**30))
    trim = asyncio.ensure_future(log.trim(first.stamp.index))
    await trim
    found = (await asyncio.gather(read, return_exceptions=True))[0]
    if isinstance(found, list):
        assert found == frames[4 : 4 + len(found)]
        assert found
    else:
        assert isinstance(found, OffsetOutOfRange)
        assert found.start == first.stamp.index
    with pytest.raises(OffsetOutOfRange):
        await log.read(LogIndex(5), LogIndex(60), 2**30)
    assert await log.verify(LogIndex(1)) == []
    await log.close()


async def test_places_are_bounded_by_bytes_and_by_entries() -> None:
    """At least one entry, never more bytes than asked for, never past the last one wanted."""
    log = await open_log(MemoryDisk())
    index = SegmentIndex(LogIndex(1))
    position = 0
    for number in range(1, 9):
        frame = next_frame(log, value_bytes=number * 10)
        entry = entry_of(frame.stamp, position, number * 8)._replace(index=LogIndex(number))
        index.append(entry)
        position = entry.end_position
    first, last = LogIndex(2), LogIndex(7)
    for max_bytes in range(1, 300):
        positions, lengths, offsets = index.places(first, last, max_bytes)
        taken = sum(lengths)
        assert taken <= max_bytes or len(lengths) == 1
        assert list(positions) == [index.entry(LogIndex(2 + at)).position for at in range(len(lengths))]
        following = 2 + len(lengths)
        entries = [index.entry(LogIndex(number)) for number in range(2, following)]
        assert list(offsets) == [*(entry.base_offset for entry in entries), entries[-1].end_offset]
        assert following == 8 or taken + index.entry(LogIndex(following)).length > max_bytes
    await log.close()


READ_CALLS_MAX = 34
"""Python functions that one read of one entry by its offset enters, in all; it may only fall."""


async def test_a_read_of_one_entry_enters_few_functions(tmp_path: Path) -> None:
    """With its file open and its bytes in the page cache; counted, since time depends on the machine."""
    disk = await open_disk("threads")
    log, frames = await filled(disk, str(tmp_path), [100] * 20)
    calls: list[str] = []

    async def read(number: int) -> list[Frame]:
        index = await log.find_offset(frames[number].stamp.base_offset)
        return await log.read(index, index, 1)

    assert await read(3) == [frames[3]]  # opens the file
    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code.co_name) if event == "call" else None)
    try:
        found = await read(5)
    finally:
        sys.setprofile(None)
    assert found == [frames[5]]
    assert "read_resident_into" in calls
    assert len(calls) <= READ_CALLS_MAX + 1, (len(calls), calls)  # and this test's own
    await log.close()
    await disk.close()
