"""Long stretches read piece by piece: the same bytes as at once, none of a frame that does not verify."""

import asyncio
import errno
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from memory_disk import Fault, MemoryDisk
from store_frames import EVERYTHING, KIB, filled, flip, next_frame, read_whole

from shoal.format.batch import LogIndex
from shoal.segment_store import (
    Damaged,
    Disk,
    LogClosed,
    LogConfig,
    OffsetOutOfRange,
    StoreError,
    open_disk,
)
from shoal.segment_store.log.chunked_read import PIECE_BYTES, StoredPieces


@pytest.fixture(params=["ring", "threads", "memory"])
async def disk(request: pytest.FixtureRequest) -> AsyncIterator[Disk]:
    """Each of the three."""
    disk = MemoryDisk(random.Random(1)) if request.param == "memory" else await open_disk(request.param)
    yield disk
    await disk.close()


async def given(pieces: StoredPieces, came: bytearray | None = None, *, lets_go: bool = False) -> bytes:
    """All that comes, copied out at once, as a socket does; into `came` what came before an error."""
    came = bytearray() if came is None else came
    while True:
        piece = pieces.at_once()
        if piece is None:
            piece = await pieces.next()
        if piece is None:
            await pieces.let_go()
            return bytes(came)
        came += piece
        if lets_go:
            await pieces.let_go()


def path_in(disk: Disk, tmp_path: Path) -> str:
    return "log" if disk.kind == "memory" else str(tmp_path / "log")


@pytest.mark.parametrize("seed", range(6))
async def test_pieces_are_what_a_read_gives(disk: Disk, tmp_path: Path, seed: int) -> None:
    """Over logs of frames of any sizes in segments of any length, with or without newest ones in memory:
    from anywhere, with any bound, byte for byte."""
    rng = random.Random(seed)
    kinds = [lambda: 0, lambda: rng.randrange(1, 400), lambda: rng.randrange(400, 40_000)]
    kinds += [lambda: rng.randrange(40_000, 900_000)] * (seed % 2)
    sizes = [rng.choice(kinds)() for _ in range(rng.choice((3, 20, 60)))]
    config = LogConfig(
        tail_cache_bytes=rng.choice((0, 100_000, 8 * KIB * KIB)),
        segment_bytes=rng.choice((64 * KIB, 1024 * KIB, 64 * KIB * KIB)),
        index_bytes=rng.choice((0, 128 * KIB * KIB)),
    )
    log, frames = await filled(disk, path_in(disk, tmp_path), sizes, config)
    for _ in range(10):
        first = rng.randrange(1, len(frames) + 1)
        last = rng.randrange(first, len(frames) + 1)
        bound = rng.choice((1, 5_000, 300_000, 2_000_000, EVERYTHING))
        wanted, end = await read_whole(log, LogIndex(first), LogIndex(last), bound)
        pieces = await log.pieces(LogIndex(first), LogIndex(last), bound)
        await pieces.begin()
        stamps = frames[first - 1].stamp, frames[end - 1].stamp
        assert pieces.base_offset == stamps[0].base_offset
        assert pieces.next_offset == stamps[1].base_offset + stamps[1].record_count
        assert pieces.size_bytes == sum(map(len, wanted))
        longest = max((len(frame) for frame in wanted), default=0)
        assert pieces.held_bytes <= max(PIECE_BYTES, longest) + config.tail_cache_bytes + longest
        assert await given(pieces, lets_go=rng.random() < 0.3) == b"".join(wanted)
        assert not any(handle.pins for handle in log._files.open_files._handles.values())
    await log.close()


@pytest.mark.parametrize("damaged", [1, 2, 9, 40, 60])
@pytest.mark.parametrize("value_bytes", [3_000, 60_000])
async def test_nothing_of_a_damaged_frame_is_given(
    disk: Disk, tmp_path: Path, damaged: int, value_bytes: int
) -> None:
    """What lies before is, whole; then the error names the entry. The first piece's damage shows before
    anything is promised, and what it promises then is sound."""
    log, frames = await filled(
        disk, path_in(disk, tmp_path), [value_bytes] * 60 + [1]
    )  # which stays in memory
    await flip(disk, log, damaged)
    pieces = await log.pieces(LogIndex(1), LogIndex(60), EVERYTHING)
    if damaged == 1:
        with pytest.raises(Damaged) as caught:
            await pieces.begin()
        assert caught.value.first_index == 1
        await log.close()
        return
    await pieces.begin()
    sound = b"".join(frame.data for frame in frames[: damaged - 1])
    if pieces.size_bytes == len(sound):  # known in time
        assert pieces.next_offset == frames[damaged - 1].stamp.base_offset
        assert await given(pieces) == sound
        await log.close()
        return
    assert pieces.size_bytes == sum(len(frame.data) for frame in frames[:60])
    came = bytearray()
    with pytest.raises(Damaged) as caught:
        await given(pieces, came)
    assert came == sound
    stamp = frames[damaged - 1].stamp
    assert (caught.value.first_index, caught.value.last_index) == (damaged, damaged)
    assert caught.value.offsets == (stamp.base_offset, stamp.base_offset + stamp.record_count)
    assert caught.value.position == log.entry(LogIndex(damaged)).position
    with pytest.raises(Damaged):  # and it stays so
        await pieces.next()
    path = log.segment_of(LogIndex(damaged)).path
    async with asyncio.timeout(40):  # the index of an active one may be on its way to the disk
        while log._files.open_files.is_pinned(path):
            await asyncio.sleep(0.001)
    await log.close()


async def test_a_disk_that_cannot_read_is_damage() -> None:
    """An error of the disk in the middle names the entry that was to come next."""
    disk = MemoryDisk(random.Random(1))
    log, frames = await filled(disk, "log", [200_000] * 12)
    pieces = await log.pieces(LogIndex(1), LogIndex(12), EVERYTHING)
    await pieces.begin()
    first = await pieces.next()
    assert first is not None
    behind = len(bytes(first)) // len(frames[0].data) + 1
    disk.faults.append(Fault("read", errno.EIO))
    with pytest.raises(Damaged, match="read failed") as caught:
        await pieces.next()
    assert caught.value.first_index == behind
    await pieces.let_go()
    await log.close()


async def test_a_trim_takes_nothing_from_whoever_reads_on(disk: Disk, tmp_path: Path) -> None:
    """A pinned file goes on to be read though its segment is gone, and is not used again meanwhile; who had
    let go of it is refused."""
    log, frames = await filled(disk, path_in(disk, tmp_path), [300_000] * 12)
    assert len(log.spans()) > 2
    reading = await log.pieces(LogIndex(1), LogIndex(12), EVERYTHING)
    resting = await log.pieces(LogIndex(1), LogIndex(12), EVERYTHING)
    came = {reading: b"", resting: b""}
    for pieces in (reading, resting):
        await pieces.begin()
        for _ in range(2):
            piece = await pieces.next()
            assert piece is not None
            came[pieces] += bytes(piece)
    await resting.let_go()
    first_kept = log._segments[1].first_index
    await log.trim(first_kept)
    for _ in range(3):  # new segments, in new files
        await log.append([next_frame(log, 1, value_bytes=200_000, first_of_segment=True)])
    while reading._part == 0:
        piece = await reading.next()
        assert piece is not None
        came[reading] += bytes(piece)
    assert came[reading] == b"".join(frame.data for frame in frames)[: len(came[reading])]
    assert await given(reading) == b"".join(frame.data for frame in frames)[len(came[reading]) :]
    with pytest.raises(OffsetOutOfRange):
        await resting.next()
    await log.trim(log.last_index)
    assert log._writer._spares.recycled == 0 or disk.kind != "memory"
    await log.close()


async def test_truncation_and_closing_end_it(disk: Disk, tmp_path: Path) -> None:
    """Places of a log that was truncated since are not read, nor those of one that is closed."""
    log, _ = await filled(disk, path_in(disk, tmp_path), [300_000] * 6)
    for change, error in (
        (lambda: log.truncate_suffix(LogIndex(6)), OffsetOutOfRange),
        (log.close, LogClosed),
    ):
        pieces = await log.pieces(LogIndex(1), LogIndex(5), EVERYTHING)
        await pieces.begin()
        assert await pieces.next() is not None
        assert await pieces.next() is not None
        await change()
        assert pieces.at_once() is None
        with pytest.raises(error):
            await pieces.next()
        await pieces.let_go()


async def test_others_have_their_turn(disk: Disk, tmp_path: Path) -> None:
    """While long stretches are read, or given out of memory: of each no turn of the loop takes more than a
    megabyte and a piece."""
    for cached in (0, 32 * KIB * KIB):
        config = LogConfig(tail_cache_bytes=cached)
        log, _ = await filled(disk, path_in(disk, tmp_path) + str(cached), [100_000] * 50, config)
        turns = 0
        over = asyncio.Event()

        async def count(over: asyncio.Event = over) -> None:
            nonlocal turns
            while not over.is_set():
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        readers = [await log.pieces(LogIndex(1), LogIndex(50), EVERYTHING) for _ in range(3)]
        for pieces in readers:
            await pieces.begin()
        together = await asyncio.gather(*map(given, readers))
        over.set()
        await counting
        assert len(set(together)) == 1
        assert turns >= len(together[0]) // (KIB * KIB + PIECE_BYTES)
        await log.close()


async def test_who_gives_up_holds_nothing() -> None:
    """A reader that is cancelled while the disk reads, or never begins, leaves no file pinned."""
    disk = MemoryDisk(random.Random(3), pause_max=50)
    log, _ = await filled(disk, "log", [200_000] * 12)
    path = log._segments[0].path

    async def read() -> None:
        pieces = await log.pieces(LogIndex(1), LogIndex(12), EVERYTHING)
        try:
            await pieces.begin()
            assert not log._files.open_files.is_pinned(path)
            await given(pieces)
        finally:
            await pieces.let_go()

    for turns in (1, 3, 10, 40, 90):
        task = asyncio.create_task(read())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not log._files.open_files.is_pinned(path)
    never = await log.pieces(LogIndex(1), LogIndex(12), EVERYTHING)
    del never
    assert not log._files.open_files.is_pinned(path)
    with pytest.raises(StoreError):
        await log.pieces(LogIndex(0), LogIndex(12), EVERYTHING)
    await log.close()
