"""The newest entries, which nothing behind them proves: what has changed since it was written is damage, what
never was written is not.

In each case the process dies right after an append: no index entry and no later write says that it was
synced.
"""

import asyncio
import dataclasses
import random
from itertools import product
from typing import NamedTuple

import pytest
from memory_disk import SECTOR_BYTES, MemoryDisk
from store_frames import IDENTITY, SMALL, contents, next_frame, open_log

from shoal.format.batch import END_OF_STREAM, LogIndex
from shoal.segment_store.format.bit_flip import without_flip
from shoal.segment_store.format.tail_record import TRAILER_BYTES
from shoal.segment_store.format.torn_write import has_untouched_sector

SEGMENT = f"log/{1:020d}-{0:020d}.arrows"
LAZY = dataclasses.replace(SMALL, index_interval_ms=1_000_000)
"""Nothing but the segment tells what was written."""


class _Left(NamedTuple):
    """What a dead process has left: the segment's bytes, those from before the last write, the frames and
    where they begin, and how many frames came before the last write."""

    after: bytes
    before: bytes
    frames: list[bytes]
    positions: list[int]
    older: int

    @property
    def end(self) -> int:
        return self.positions[-1] + len(self.frames[-1])


async def _left(groups: list[list[int]]) -> _Left:
    """A log of one write for each group; a number is the bytes of a value, 0 an entry without records."""
    disk = MemoryDisk()
    log = await open_log(disk, config=LAZY)
    before, older = b"", 0
    for group in groups:
        before, older = disk.content(SEGMENT) if older else b"", log.last_index
        writes = log._writer.writes
        waiting = [
            log.append([next_frame(log, min(1, size), value_bytes=max(1, size), fill=7)]) for size in group
        ]
        await asyncio.gather(*waiting)
        assert log._writer.writes - writes <= 2
    positions = [log.entry(LogIndex(index)).position for index in range(1, log.last_index + 1)]
    return _Left(disk.content(SEGMENT), before, await contents(log), positions, older)


async def _disk_with(data: bytes) -> MemoryDisk:
    """A disk with this segment, and nothing else."""
    disk = MemoryDisk()
    await disk.make_directory("log")
    file = await disk.open(SEGMENT, create=True)
    await file.write_and_sync(0, data)
    await file.close()
    await disk.sync_directory("log")
    return disk


@pytest.mark.parametrize("sizes", [[300], [2000], [1], [0]])
async def test_every_flipped_bit_of_the_newest_frame_is_damage(sizes: list[int]) -> None:
    """Lengths, stamp, checksum, body: whichever bit it is, the entry stays in the log as damaged, with
    its numbers; in the tail record behind it costs nothing."""
    left = await _left([[300], sizes])
    start = left.positions[-1]
    bits = range(start * 8, (left.end + TRAILER_BYTES) * 8)
    head = set(range(start * 8, start * 8 + 64))
    for bit in sorted(head | set(bits[:: len(bits) // 150])):
        data = bytearray(left.after)
        data[bit // 8] ^= 1 << bit % 8
        log = await open_log(await _disk_with(data), config=LAZY)
        found = [(item.first_index, item.last_index, item.position) for item in log.damage]
        assert found == ([(2, 2, start)] if bit < left.end * 8 else []), bit
        assert (log.last_index, log.end_offset) == (2, 1 + min(1, sizes[0])), bit
        await log.close()


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_every_flipped_bit_in_a_newest_write_of_several_frames(place: int) -> None:
    """The frame that it hits is damaged, those around it are not."""
    left = await _left([[300], [50], [300, 0, 700]])
    older = len(left.frames) - 2  # an append that finds the disk idle goes alone
    for bit in range(left.positions[older] * 8, left.end * 8, 101):
        data = bytearray(left.after)
        data[bit // 8] ^= 1 << bit % 8
        log = await open_log(await _disk_with(data), config=LAZY)
        hit = sum(bit // 8 >= position for position in left.positions)
        assert [(item.first_index, item.last_index) for item in log.damage] == [(hit, hit)], bit
        assert log.last_index == len(left.frames)
        await log.close()


@pytest.mark.parametrize("sizes", [[3000], [700], [5000, 0, 300], [100], [0]])
@pytest.mark.parametrize("before", [[300], [0], [61], [173], [440]])
async def test_a_write_that_lacks_any_sectors_is_torn(sizes: list[int], before: list[int]) -> None:
    """Every single sector of it, and many mixtures: what was never written is cleared, not called damaged,
    and what came before it stays."""
    left = await _left([before, before, sizes])
    start = left.positions[left.older]
    sectors = range(start // SECTOR_BYTES, -(-(left.end + TRAILER_BYTES) // SECTOR_BYTES))
    old = left.before.ljust(len(left.after), b"\0")
    rng = random.Random(len(sectors))
    lost: list[set[int]] = [{sector} for sector in sectors]
    lost += [{sector for sector in sectors if rng.random() < 0.5} for _ in range(15)]
    for missing in lost:
        data = bytearray(left.after)
        for sector in missing:
            place = slice(sector * SECTOR_BYTES, (sector + 1) * SECTOR_BYTES)
            data[place] = old[place]
        log = await open_log(await _disk_with(data), config=LAZY)
        assert log.damage == (), (missing, log.damage)
        kept = await contents(log)
        assert kept == left.frames[: max(left.older, len(kept))]
        await log.close()


async def test_a_sector_of_rubbish_in_the_newest_write_is_damage() -> None:
    """More than a bit, in any whole sector of it: nothing there looks as before the write."""
    left = await _left([[300], [300], [5000]])
    rng = random.Random(5)
    start, end = left.positions[-1], left.end
    for sector in range(start // SECTOR_BYTES + 1, end // SECTOR_BYTES):
        data = bytearray(left.after)
        data[sector * SECTOR_BYTES : (sector + 1) * SECTOR_BYTES] = rng.randbytes(SECTOR_BYTES)
        log = await open_log(await _disk_with(data), config=LAZY)
        assert [(item.first_index, item.position) for item in log.damage] == [(len(left.frames), start)]
        assert (log.last_index, log.end_offset) == (len(left.frames), len(left.frames))
        await log.close()


async def test_a_flip_before_a_torn_write_is_damage() -> None:
    """The write that would have told of it is torn, its tail record too: the one before was acknowledged."""
    left = await _left([[300], [300], [2000]])
    flipped, torn = left.positions[1], left.positions[2]
    for at in (5, 40, 500, 700):
        data = bytearray(left.after)
        data[flipped + at] ^= 4
        cut = -(-torn // SECTOR_BYTES) * SECTOR_BYTES + SECTOR_BYTES
        data[cut:] = bytes(len(data) - cut)
        log = await open_log(await _disk_with(data), config=LAZY)
        assert [(item.first_index, item.last_index) for item in log.damage] == [(2, 2)], at
        assert (log.last_index, log.end_offset) == (2, 2)
        await log.close()


async def test_the_damage_stays_known_and_can_be_mended() -> None:
    """The bytes are left as they are, the log goes on behind them, and the right ones make it whole."""
    left = await _left([[300], [700]])
    data = bytearray(left.after)
    data[left.positions[1] + 400] ^= 8
    disk = await _disk_with(data)
    log = await open_log(disk)
    await log.append([next_frame(log)])
    await log.close()
    assert disk.content(SEGMENT)[: left.end] == data[: left.end]
    log = await open_log(disk)
    assert [item.first_index for item in await log.verify()] == [2]
    disk.damage(SEGMENT, left.positions[1] + 400, 8)
    assert await log.verify() == []
    assert (await contents(log))[:2] == left.frames
    await log.close()


class TestBitFlip:
    """bit_flip.py alone."""

    async def test_every_bit_is_found(self) -> None:
        """Whichever it is, it gives the frame back, with whatever lies behind it in the buffer."""
        (frame,) = (await _left([[100]])).frames
        for bit in range(0, len(frame) * 8, 11):
            data = bytearray(frame + b"behind")
            data[bit // 8] ^= 1 << bit % 8
            found = without_flip(data, IDENTITY)
            assert found is not None, bit
            assert found.data == frame, bit

    async def test_large_frames(self) -> None:
        """A few bits of a frame of a megabyte."""
        disk = MemoryDisk()
        log = await open_log(disk)
        frame = next_frame(log, value_bytes=2**20).data
        rng = random.Random(1)
        for bit in [len(frame) * 8 - 1, *(rng.randrange(len(frame) * 8) for _ in range(5))]:
            data = bytearray(frame)
            data[bit // 8] ^= 1 << bit % 8
            found = without_flip(data, IDENTITY)
            assert found is not None, bit
            assert found.data == frame, bit
        await log.close()

    async def test_what_is_no_flip(self) -> None:
        """A whole frame, two bits, a missing end, nothing at all, noise."""
        (frame,) = (await _left([[100]])).frames
        assert without_flip(frame, IDENTITY) is None
        rng = random.Random(2)
        for _ in range(50):
            first, second = rng.sample(range(len(frame) * 8), 2)
            data = bytearray(frame)
            data[first // 8] ^= 1 << first % 8
            data[second // 8] ^= 1 << second % 8
            assert without_flip(data, IDENTITY) is None, (first, second)
        for length in range(0, len(frame), 23):
            assert without_flip(frame[:length], IDENTITY) is None
        for length in range(0, 300, 7):
            assert without_flip(rng.randbytes(length), IDENTITY) is None


@pytest.mark.parametrize(("in_sector", "sectors"), list(product((0, 8, 440, 496, 504), (1, 2, 5))))
def test_untouched_sectors(in_sector: int, sectors: int) -> None:
    """The first by the marker or the zeros in its place, the others by their zeros; none when all hold
    something else. The sector of the next tail record was written with it."""
    start = 4096 + in_sector
    length = sectors * SECTOR_BYTES - in_sector + 64
    whole = b"\xff\xff\xff\xff\x38\x02" + b"x" * (length - 6)
    assert not has_untouched_sector(whole, start, start)
    for head in (END_OF_STREAM + b"ShoalEnd", bytes(16)):
        old = head[: SECTOR_BYTES - in_sector]
        assert has_untouched_sector(old + whole[len(old) :], start, start)
    for sector in range(1, sectors):
        at = sector * SECTOR_BYTES - in_sector
        assert has_untouched_sector(whole[:at] + bytes(512) + whole[at + 512 :], start, start)
    assert not has_untouched_sector(whole[:-64] + bytes(64), start, start)
