"""The scrubber's look: every stored byte is compared, nothing that is in order is called damage."""

import asyncio
import dataclasses
import errno
import random

import pytest
from memory_disk import Fault, MemoryDisk
from store_frames import IDENTITY, SMALL, next_frame, open_log

from shoal.format.batch import LogIndex, Offset, Term
from shoal.segment_store import Damaged, LogClosed, PartitionLog
from shoal.segment_store.check.damage import (
    DamagedRange,
    check_entries,
    confirmed,
    merge,
    range_of,
    touches,
    within,
)
from shoal.segment_store.check.scrub import look

SEGMENTS, ENTRIES = 3, 4
STRIDE = 23  # bytes; coprime to every field's width, so that all of them are met


async def _filled(disk: MemoryDisk, segments: int = SEGMENTS) -> PartitionLog:
    """Sealed segments and an active one, all entries known synced and indexed."""
    config = dataclasses.replace(SMALL, index_bytes=0, max_open_indexes=1)
    log = await open_log(disk, config=config)
    for number in range(segments * ENTRIES):
        roll = number % ENTRIES == 0 and number > 0
        frame = next_frame(log, 1 + number % 2, fill=number, term=1 + number // 5, first_of_segment=roll)
        await log.append([frame])
    await log.close()
    return await open_log(disk, config=config)


async def _whole(log: PartitionLog, max_bytes: int = 1500) -> list[DamagedRange]:
    """What a pass over the log finds."""
    found: list[DamagedRange] = []
    following: LogIndex | None = LogIndex(0)
    while following is not None:
        looked = await look(log, following, max_bytes)
        found += looked.found
        following = looked.next_index
    return merge(found)


async def test_every_byte_of_a_log_is_looked_at() -> None:
    """Flip a bit of every few bytes in turn, of headers, batches, tail records and sealed index files: the
    look says which file, and of batches which entries and offsets; and nothing once the bit is back."""
    disk = MemoryDisk()
    log = await _filled(disk)
    assert await _whole(log) == []
    for span in log.spans():
        segment = log.segment_of(span.first_index)
        await log.load_index(span.first_index)
        entries = list(segment.index)
        is_sealed = segment.last_index < log.last_index
        end = segment.planned_end + (72 if is_sealed else 0)
        for position in [*range(0, end, STRIDE), end - 1]:
            disk.damage(segment.path, position, 1 << position % 8)
            (found,) = await _whole(log)
            disk.damage(segment.path, position, 1 << position % 8)
            assert found.path == segment.path
            assert found.position <= position < found.position + found.length
            hit = [entry for entry in entries if entry.position <= position < entry.end_position]
            assert found.costs_entries == bool(hit)
            if hit:
                assert (found.first_index, found.last_index) == (hit[0].index, hit[0].index)
                assert (found.first_offset, found.end_offset) == (hit[0].base_offset, hit[0].end_offset)
        if is_sealed:
            for position in range(0, segment.index_bytes, STRIDE):
                disk.damage(segment.index_path, position)
                found, *_ = await _whole(log)
                disk.damage(segment.index_path, position)
                assert (found.path, found.costs_entries) == (segment.index_path, False)
    assert await _whole(log) == []
    await log.close()


async def test_neighbours_are_one_range() -> None:
    """Three damaged batches in a row, over two looks, are one range with all their offsets."""
    disk = MemoryDisk()
    log = await _filled(disk)
    entries = [log.entry(LogIndex(index)) for index in (9, 10, 11)]
    for entry in entries:
        disk.damage(log.segment_of(LogIndex(9)).path, entry.position + 40)
    (found,) = await _whole(log, max_bytes=1)
    assert (found.first_index, found.last_index) == (9, 11)
    assert (found.first_offset, found.end_offset) == (entries[0].base_offset, entries[2].end_offset)
    assert (found.position, found.length) == (entries[0].position, sum(entry.length for entry in entries))
    assert f"offsets {entries[0].base_offset} to {entries[2].end_offset - 1}" in str(found)
    await log.close()


async def test_a_read_error_is_one_of_its_entry_only() -> None:
    """EIO for a run of entries: each is asked again, and only those that fail are damage."""
    disk = MemoryDisk()
    log = await _filled(disk)
    # The first look of the active segment reads its header, then all its entries at once, then each alone.
    disk.faults.append(Fault("read", errno.EIO, log.segment_of(LogIndex(9)).path, skip=1, times=1))
    disk.faults.append(Fault("read", errno.EIO, log.segment_of(LogIndex(9)).path, skip=2, times=1))
    looked = await look(log, LogIndex(9), 2**20)
    assert [(item.first_index, item.last_index) for item in looked.found] == [(10, 10)]
    assert "Input/output error" in looked.found[0].detail
    assert await _whole(log) == []
    await log.close()


async def test_a_file_that_became_short_is_found() -> None:
    """Its missing entries, and its missing end."""
    disk = MemoryDisk()
    log = await _filled(disk)
    segment = log.segment_of(LogIndex(5))
    await log.load_index(LogIndex(5))
    cut = segment.index.entry(LogIndex(7)).position + 3
    del disk._names[segment.path].content[cut:]
    found = await _whole(log)
    assert [(item.first_index, item.last_index) for item in found] == [(5, 4), (7, 8)]
    await log.close()


async def test_another_branchs_batch_is_damage() -> None:
    """A batch that verifies, has the index that belongs there, and is of another term: a stale or misplaced
    write."""
    disk = MemoryDisk()
    log = await open_log(disk, "one", SMALL)
    other = await open_log(disk, "two", SMALL)
    for term in (1, 1, 1):
        await log.append([next_frame(log, term=term)])
    for term in (1, 2, 2):
        await other.append([next_frame(other, term=term)])
    entries = [log.entry(LogIndex(index)) for index in (1, 2, 3)]
    path = other.segment_of(LogIndex(1)).path
    start = entries[0].position
    stored = disk.content(path)[start : entries[-1].end_position]
    found = check_entries(path, stored, start, entries, Term(0), IDENTITY)
    assert [(item.first_index, item.last_index) for item in found] == [(2, 3)]
    assert check_entries("p", stored, start, [], Term(0), IDENTITY) == []
    await log.close()
    await other.close()


@pytest.mark.parametrize("seed", range(6))
async def test_nothing_is_damage_while_the_log_is_at_work(seed: int) -> None:
    """Looks run all the time beside appends, rolls, truncations, trims and reads: whatever is cut under
    them, they call nothing damage, and they come to the end once the work stops."""
    rng = random.Random(seed)
    disk = MemoryDisk(rng, pause_max=3)
    log = await open_log(disk, config=dataclasses.replace(SMALL, index_bytes=8192, max_open_indexes=1))
    is_over = False

    async def scrub() -> int:
        passes = 0
        while not is_over or not passes:
            assert await _whole(log, rng.choice((1, 700, 5000))) == []
            passes += 1
            await asyncio.sleep(0)
        return passes

    scrubbing = [asyncio.ensure_future(scrub()) for _ in range(2)]
    term = 1
    for step in range(150):
        work = rng.random()
        if work < 0.1 and log.last_index > log.first_index + 3:
            cut = LogIndex(log.last_index - rng.randrange(3))
            if log.segment_of(LogIndex(cut - 1)).index.is_released:
                continue  # three segments of one entry each: deeper than anything that is not committed
            term += 1
            await log.truncate_suffix(cut)
        elif work < 0.15 and len(log.spans()) > 3:
            await log.trim(log.spans()[1].first_index)
        else:
            roll = rng.random() < 0.15
            frame = next_frame(log, rng.randrange(3), term=term, fill=step, first_of_segment=roll)
            await log.append([frame])
    is_over = True
    assert all(passes > 0 for passes in await asyncio.gather(*scrubbing))
    assert await _whole(log) == []
    await log.close()
    with pytest.raises(LogClosed):
        await look(log, LogIndex(1), 100)


async def test_a_look_takes_only_what_is_synced() -> None:
    """Of a log without fsync, and of a write under way, nothing is judged that a disk need not hold yet."""
    disk = MemoryDisk(random.Random(1), pause_max=3)
    log = await open_log(disk)
    first = log.append([next_frame(log)])
    assert await look(log, LogIndex(1), 100) == (None, 0, 1, 0, (), [])
    await first
    looked = await look(log, LogIndex(1), 100)
    assert (looked.next_index, looked.last_index, looked.found) == (None, 1, [])
    assert looked.bytes_read > log.entry(LogIndex(1)).length
    await log.close()


async def test_what_an_opening_or_a_read_finds_is_the_same_range() -> None:
    """The error of a read and the damage an opening reports name file, position, entries and offsets."""
    disk = MemoryDisk()
    log = await _filled(disk)
    entry = log.entry(LogIndex(10))
    disk.damage(log.segment_of(LogIndex(10)).path, entry.position + 50)
    (scrubbed,) = await _whole(log)
    with pytest.raises(Damaged, match=f"offsets {entry.base_offset} to {entry.end_offset - 1}") as caught:
        await log.read(LogIndex(10), LogIndex(10), 1)
    of_read = range_of(caught.value)
    assert of_read is not None
    assert dataclasses.replace(of_read, detail=scrubbed.detail) == scrubbed
    await log.close()
    await disk.unlink(f"{log.segment_of(LogIndex(9)).index_path}")
    log = await open_log(disk, config=SMALL)
    of_opening = range_of(log.damage[0])
    assert of_opening is not None
    assert dataclasses.replace(of_opening, detail=scrubbed.detail) == scrubbed
    assert range_of(Damaged("p", 1, "no entries known")) is None
    await log.close()


def _range(first: int, last: int, path: str = "s") -> DamagedRange:
    return DamagedRange(
        path,
        first * 10,
        (last - first + 1) * 10,
        LogIndex(first),
        LogIndex(last),
        Offset(first),
        Offset(last + 1),
        "d",
    )


def test_lists_of_ranges() -> None:
    """Neighbours merge within a file; what a trim removed goes; what a whole look did not meet is healed."""
    header = dataclasses.replace(_range(5, 4), position=0, length=100)
    ranges = merge([_range(7, 8), _range(3, 4), _range(5, 5), _range(9, 9, "t"), header, header])
    assert [(item.path, item.first_index, item.last_index) for item in ranges] == [
        ("s", 3, 5),
        ("s", 5, 4),
        ("s", 7, 8),
        ("t", 9, 9),
    ]
    assert ranges[0].length == 30
    assert [item.first_index for item in within(ranges, LogIndex(6))] == [7, 9]
    assert confirmed(ranges, [_range(4, 4)]) == (ranges[0],)
    assert touches(ranges[0], _range(5, 9))
    assert not touches(ranges[0], _range(6, 9))
    assert not touches(ranges[0], _range(4, 4, "t"))
    assert touches(header, header)
