"""Exact bytes written back: what fits is taken, what does not is not, and the log is as before."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from memory_disk import MemoryDisk
from store_frames import IDENTITY, SMALL, next_frame

from shoal.format.batch import DEFAULT_SCHEMA, Frame, LogIndex
from shoal.segment_store import PartitionLog
from shoal.segment_store.check.repair import mend_entries, mend_frame
from shoal.segment_store.check.scrub import look
from shoal.segment_store.errors import ChainBroken, OffsetOutOfRange
from shoal.segment_store.format.index import decode_index_file

DIRECTORY = "log"


async def opened(disk: MemoryDisk) -> PartitionLog:
    return await PartitionLog.open(disk, DIRECTORY, IDENTITY, DEFAULT_SCHEMA, SMALL)


async def filled(disk: MemoryDisk, count: int = 24) -> tuple[PartitionLog, list[Frame]]:
    """Three segments of frames of different sizes and counts."""
    log = await opened(disk)
    frames = []
    for number in range(count):
        frame = next_frame(log, number % 4, term=1 + number // 10, first_of_segment=number in (8, 16))
        await log.append([frame])
        frames.append(frame)
    return log, frames


def contents(disk: MemoryDisk, log: PartitionLog) -> dict[str, bytes]:
    paths = {log.segment_of(LogIndex(index)).path for index in range(1, log.last_index + 1)}
    return {path: disk.content(path) for path in paths}


def hit(disk: MemoryDisk, log: PartitionLog, index: int, at: int = 300) -> None:
    entry = log.entry(LogIndex(index))
    disk.damage(log.segment_of(LogIndex(index)).path, entry.position + at)


@pytest.mark.parametrize("index", range(1, 25))
async def test_every_entry_can_be_mended(index: int) -> None:
    """First, last and middle ones of sealed and active segments: afterwards the files are what they were."""
    disk = MemoryDisk(random.Random(index))
    log, frames = await filled(disk)
    before = contents(disk, log)
    hit(disk, log, index)
    assert [item.first_index for item in await log.verify()] == [index]
    await mend_entries(log, [frames[index - 1]])
    assert contents(disk, log) == before
    assert await log.verify() == []
    await log.close()


class SlowFirstWrite(MemoryDisk):
    """Its next write after `armed` waits for as many turns of the loop."""

    armed = 0

    async def begin(self, operation: str, path: str) -> None:
        if operation == "write" and self.armed:
            turns, self.armed = self.armed, 0
            for _ in range(turns):
                await asyncio.sleep(0)
        await super().begin(operation, path)


@pytest.mark.parametrize("turns", [1, 5, 20, 60])
@pytest.mark.parametrize("lead", [0, 1, 2, 4])
async def test_mending_never_writes_over_another_branch(lead: int, turns: int) -> None:
    """The damaged entry is truncated and others are appended in its place while its bytes are on their way to
    the disk: either comes first, and the new branch is whole."""
    disk = SlowFirstWrite(random.Random(lead))
    log, frames = await filled(disk)
    hit(disk, log, 20)
    disk.armed = turns
    mending = asyncio.ensure_future(mend_entries(log, [frames[19]]))
    for _ in range(lead):
        await asyncio.sleep(0)
    waiting = [asyncio.ensure_future(log.truncate_suffix(LogIndex(20)))]
    branch = []
    for _ in range(3):
        branch.append(next_frame(log, 3, term=9))
        waiting.append(asyncio.ensure_future(log.append(branch[-1:])))
    await asyncio.gather(*waiting)
    result = (await asyncio.gather(mending, return_exceptions=True))[0]
    assert result is None or isinstance(result, ChainBroken), result
    assert await log.verify() == []
    await log.close()
    log = await opened(disk)
    assert (await log.read(LogIndex(20), LogIndex(22), 2**20)) == branch
    await log.close()


async def test_what_is_not_missing_there_is_refused() -> None:
    """Another entry, one of another term, and too few or too many for the hole: nothing is written."""
    disk = MemoryDisk(random.Random(1))
    log, frames = await filled(disk)
    other = MemoryDisk(random.Random(2))
    theirs, _ = await filled(other, 4)
    another_term = next_frame(theirs, 0, term=2)
    longer = next_frame(theirs, 0, term=1, value_bytes=500)
    assert another_term.stamp.index == longer.stamp.index == 5
    hit(disk, log, 5)
    spoiled = contents(disk, log)
    wrong: list[list[Frame]] = [[another_term], frames[5:6], frames[4:6], frames[3:5]]
    for offered in wrong[:1]:
        with pytest.raises(ChainBroken):
            await mend_entries(log, offered)
    assert contents(disk, log) == spoiled
    for offered in wrong[1:]:
        await mend_entries(log, offered)  # these are what lies there: writing them again changes nothing else
    assert await log.verify() == []
    await log.close()
    await theirs.close()


async def test_a_segment_that_goes_meanwhile_is_no_fault_of_the_disk() -> None:
    """A trim may take the file between the question and the answer; the log goes on."""
    disk = MemoryDisk(random.Random(5))
    log, frames = await filled(disk)
    segment = log.segment_of(LogIndex(2))
    await segment.files.open_files.forget(segment.path)
    await disk.unlink(segment.path)
    with pytest.raises(OffsetOutOfRange):
        await mend_entries(log, frames[1:2])
    await log.append([next_frame(log, 1)])
    await log.close()


@pytest.mark.parametrize("damaged", [(18,), (18, 19), (18, 19, 20), (17, 18)])
async def test_a_stretch_that_was_bridged_is_mended_as_a_whole(damaged: tuple[int, ...]) -> None:
    """Without an index nothing tells where its entries begin: only all of its frames fit, and with them the
    index is true again, in memory, on the disk and after another opening."""
    disk = MemoryDisk(random.Random(3))
    log, frames = await filled(disk)
    before = contents(disk, log)
    entries = [log.entry(LogIndex(index)) for index in range(17, 25)]
    for index in damaged:
        hit(disk, log, index, 40)
        hit(disk, log, index, 48)  # one bit alone would tell where its frame ends
    index_path = log.segment_of(LogIndex(18)).index_path
    await log.close()
    await disk.unlink(index_path)
    log = await opened(disk)
    (item,) = log.damage
    assert (item.first_index, item.last_index) == (damaged[0], damaged[-1])
    missing = [frames[index - 1] for index in damaged]
    if len(missing) > 1:
        with pytest.raises(ChainBroken):
            await mend_entries(log, missing[:1])
    await mend_entries(log, missing)
    for _ in range(2):
        assert contents(disk, log) == before
        assert [log.entry(LogIndex(index)) for index in range(17, 25)] == entries
        assert await log.verify() == []
        await log.close()
        log = await opened(disk)
        assert log.damage == ()
    await log.close()


async def all_found(log: PartitionLog) -> list[Any]:
    found: list[Any] = []
    cursor: LogIndex | None = LogIndex(0)
    while cursor is not None:
        looked = await look(log, cursor, 2**20)
        found += looked.found
        cursor = looked.next_index
    return found


@pytest.mark.parametrize("part", ["header", "tail record", "index"])
@pytest.mark.parametrize("released", [True, False])
async def test_what_is_no_entry_follows_from_the_rest(part: str, released: bool) -> None:
    """A segment's header, its tail record and its index file need no peer."""
    disk = MemoryDisk(random.Random(4))
    log, _ = await filled(disk)
    before = contents(disk, log)
    segment = log.segment_of(LogIndex(9))
    entries = list(segment.index)
    place = {"header": (segment.path, 60), "tail record": (segment.path, segment.planned_end + 20)}
    path, position = place.get(part, (segment.index_path, 70))
    disk.damage(path, position)
    if released:
        segment.index.release()
    found = [item for item in await all_found(log) if item.path in (segment.path, segment.index_path)]
    if part == "index" and released:
        found = found[:1]
    assert len(found) == 1
    await mend_frame(log, found[0])
    assert contents(disk, log) == before or part == "tail record"
    on_disk = decode_index_file(disk.content(segment.index_path), *segment.name, IDENTITY)
    assert (on_disk.entries, on_disk.problem) == (entries, None)
    assert await all_found(log) == []
    await log.close()
