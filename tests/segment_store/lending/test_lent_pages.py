"""Bytes given out again without a copy: those that were verified, from the memory they were verified in, and
nobody writes over them."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import random
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest
from memory_disk import MemoryDisk
from store_frames import EVERYTHING, KIB, LONG_READS, filled, flip, next_frame, open_log, read_whole

from shoal.format.batch import LogIndex
from shoal.segment_store import Damaged, Disk, LogConfig, OffsetOutOfRange, PartitionLog, open_disk
from shoal.segment_store.check.scrub import look
from shoal.segment_store.format.layout import SPARE_SUFFIX
from shoal.segment_store.lending.lent_pages import (
    MAX_PIPES,
    MIN_STRETCH_BYTES,
    PIPE_BYTES,
    STALE_AFTER,
    LentPages,
    PipedBytes,
)
from shoal.segment_store.lending.mapped_pages import PAGE_BYTES, MappedPages
from shoal.segment_store.log.chunked_read import StoredPieces
from shoal.segment_store.log.shared import SharedFiles

CONFIG = LogConfig(tail_cache_bytes=0, segment_bytes=1024 * KIB, max_write_bytes=256 * KIB, max_open_files=16)
MADV_DONTNEED = 4
OPENED: list[PartitionLog] = []
SIZES = [150_000] * 30  # of frames, six to a segment


class ToldPages(MappedPages):
    """Pages of which a test says whether they are present; with real mappings, so that mistakes show."""

    def __init__(self, present: Iterator[bool] | None = None, *, works: bool = True) -> None:
        super().__init__()
        self.present = present or repeat(True)
        self.asked = self.mapped = 0
        self._works = works

    def work(self) -> bool:
        return self._works

    def map(self, descriptor: int, offset: int, length: int) -> int:
        self.mapped += 1
        return super().map(descriptor, offset, length)

    def are_present(self, address: int, length: int) -> bool:
        self.asked += 1
        return super().are_present(address, length) and next(self.present)


@pytest.fixture(params=["ring"])
async def disk(request: pytest.FixtureRequest) -> AsyncIterator[Disk]:
    """One with real files; afterwards nothing is open that was not before."""
    before = set(os.listdir("/proc/self/fd"))
    disk = await open_disk(request.param)
    yield disk
    for log in OPENED:  # of a test that failed too
        await log.close()
    OPENED.clear()
    await disk.close()
    left = set(os.listdir("/proc/self/fd")) - before
    assert not left, [os.readlink(f"/proc/self/fd/{name}") for name in left]


def lending_of(log: PartitionLog) -> LentPages:
    return log._files.shared.lending


def with_pages(log: PartitionLog, pages: ToldPages) -> LentPages:
    """The log's, over pages of a test's."""
    lending = LentPages(pages=pages)
    log._files.shared.lending = lending
    return lending


def emptied(lent: PipedBytes, near: socket.socket, far: socket.socket) -> bytes:
    """All of it, through a socket."""
    came = bytearray()
    while len(lent):
        try:
            lent.write_to(near.fileno())
        except BlockingIOError:
            came += far.recv(1024 * KIB)
    lent.close()
    far.setblocking(False)
    while True:
        try:
            came += far.recv(1024 * KIB)
        except BlockingIOError:
            far.setblocking(True)
            return bytes(came)


async def read(
    log: PartitionLog,
    first: int = 1,
    last: int = 0,
    bound: int = EVERYTHING,
    lends: float = 1.0,
    seed: int = 1,
) -> bytes:
    """A stretch as an answer takes it, that asks with this probability for what can be lent."""
    rng = random.Random(seed)
    pieces = await log.pieces(LogIndex(first), LogIndex(last or log.last_index), bound)
    await pieces.begin()
    return await the_rest(pieces, lends, rng)


async def the_rest(pieces: StoredPieces, lends: float = 1.0, rng: random.Random | None = None) -> bytes:
    rng = rng or random.Random(1)
    came = bytearray()
    if lends:
        await pieces.prepare_lending()
    near, far = socket.socketpair()
    near.setblocking(False)
    try:
        while True:
            lent = pieces.lend() if rng.random() < lends else None
            if lent is not None:
                came += emptied(lent, near, far)
                continue
            piece = pieces.at_once()
            if piece is None:
                piece = await pieces.next()
            if piece is None:
                return bytes(came)
            came += piece
            if rng.random() < 0.1:
                await pieces.let_go()
    finally:
        await pieces.let_go()
        near.close()
        far.close()


async def well_read(
    disk: Disk, directory: Path, pages: ToldPages | None = None
) -> tuple[PartitionLog, bytes]:
    """A log of five segments, read so often that the sealed ones are known; what all of it is."""
    log, frames = await filled(disk, str(directory / "log"), SIZES, CONFIG)
    OPENED.append(log)
    if pages is not None:
        with_pages(log, pages)
    whole = b"".join(frame.data for frame in frames)
    for _ in range(2):
        assert await read(log) == whole
    assert lending_of(log).lent_bytes == 0, "at first everything is read and checked"
    return log, whole


@pytest.mark.parametrize("disk", ["ring", "threads"], indirect=True)
async def test_the_third_reading_is_lent(disk: Disk, tmp_path: Path) -> None:
    """The first shows that somebody reads, the second is watched, the third takes everything but the active
    segment's from the pages that were verified; byte for byte."""
    log, whole = await well_read(disk, tmp_path)
    assert await read(log) == whole
    sealed = sum(segment.planned_end - len(segment.header) for segment in log._segments[:-1])
    assert lending_of(log).lent_bytes == sealed > len(whole) // 2
    await log.close()
    assert lending_of(log).mapped_bytes == 0


@pytest.mark.parametrize("seed", range(4))
async def test_any_readers_get_the_same_bytes(disk: Disk, tmp_path: Path, seed: int) -> None:
    """From anywhere, to anywhere, of frames of any size, with what is lent and what is read by turns, also in
    the middle of a frame, while pages go: always what a read gives."""
    rng = random.Random(seed)
    kinds = [lambda: 0, lambda: rng.randrange(1, 4000), lambda: rng.randrange(40_000, 400_000)]
    kinds += [lambda: rng.randrange(PIPE_BYTES, 2 * PIPE_BYTES)] * (seed % 2)
    sizes = [rng.choice(kinds)() for _ in range(40)]
    config = LogConfig(
        tail_cache_bytes=rng.choice((0, 100_000)), segment_bytes=rng.choice((1, 2)) * 1024 * KIB
    )
    log, frames = await filled(disk, str(tmp_path / "log"), sizes, config)
    chances = random.Random(seed + 100)
    lending = with_pages(log, ToldPages(iter(lambda: chances.random() < 0.97, None)))
    lends = 1.0
    for number in range(30):
        first = 1 if number < 2 else rng.randrange(1, len(frames) + 1)
        last = len(frames) if number < 2 else rng.randrange(first, len(frames) + 1)
        bound = EVERYTHING if number < 2 else rng.choice((300_000, 2_000_000, EVERYTHING))
        wanted, _ = await read_whole(log, LogIndex(first), LogIndex(last), bound)
        assert await read(log, first, last, bound, lends, number) == b"".join(wanted)
        lends = rng.choice((0.3, 0.8, 1.0))
        assert lending.mapped_bytes == sum(stretch.length for stretch in lending._kept)
    assert lending.lent_bytes > 0
    await log.close()


@pytest.mark.parametrize("answers", [[False], [True, True, False]], ids=["before", "meanwhile"])
async def test_a_page_that_has_gone_is_not_lent(disk: Disk, tmp_path: Path, answers: list[bool]) -> None:
    """Whether it shows before its bytes are taken or afterwards: nothing of them goes out, they are read and
    verified, and known again from then on."""
    pages = ToldPages()
    log, whole = await well_read(disk, tmp_path, pages)
    pieces = await log.pieces(LogIndex(1), log.last_index, EVERYTHING)
    await pieces.begin()
    before = lending_of(log).mapped_bytes
    await pieces.prepare_lending()
    pages.present = chain(answers, repeat(True))
    assert pieces.lend() is None
    assert lending_of(log).lent_bytes == 0
    assert lending_of(log).mapped_bytes < before
    assert await the_rest(pieces, lends=0) == whole
    assert lending_of(log).mapped_bytes == before
    assert await read(log) == whole
    assert lending_of(log).lent_bytes > 0
    await log.close()


async def test_what_the_kernel_took_away_stays_away(tmp_path: Path) -> None:
    """A page that leaves the mapping is not put back by readers of its neighbours, nor by new mappings of the
    same file, though the page cache has it."""
    pages = MappedPages()
    assert pages.work()
    path = tmp_path / "file"
    path.write_bytes(os.urandom(64 * PAGE_BYTES))
    descriptor = os.open(path, os.O_RDWR)
    areas = [pages.map(descriptor, part * 16 * PAGE_BYTES, 16 * PAGE_BYTES) for part in (0, 1, 2)]
    assert all(areas)
    assert not pages.are_present(areas[0], PAGE_BYTES)
    for area in areas[:2]:
        assert pages.fill(area, 16 * PAGE_BYTES)
        assert pages.are_present(area, 16 * PAGE_BYTES)
    libc = ctypes.CDLL(None)
    assert (
        libc.madvise(ctypes.c_void_p(areas[1] + PAGE_BYTES), ctypes.c_size_t(PAGE_BYTES), MADV_DONTNEED) == 0
    )
    assert pages.fill(areas[2], 16 * PAGE_BYTES)
    assert path.read_bytes()
    another = pages.map(descriptor, 0, 64 * PAGE_BYTES)
    assert pages.fill(another, 64 * PAGE_BYTES)
    gone = [pages.are_present(areas[1] + page * PAGE_BYTES, PAGE_BYTES) for page in range(16)]
    assert gone == [page != 1 for page in range(16)]
    assert not pages.are_present(areas[1], 16 * PAGE_BYTES)
    assert pages.are_present(areas[0], 16 * PAGE_BYTES)
    for area in areas:
        pages.unmap(area, 16 * PAGE_BYTES)
    pages.unmap(another, 64 * PAGE_BYTES)
    assert not pages.map(-1, 0, PAGE_BYTES)
    pages.close()
    os.close(descriptor)


async def test_a_file_that_was_written_into_is_checked_again(disk: Disk, tmp_path: Path) -> None:
    """Damage that somebody writes through the file system shows, though every page has stayed."""
    log, whole = await well_read(disk, tmp_path)
    assert await read(log) == whole
    await flip(disk, log, 4)
    with pytest.raises(Damaged) as caught:
        await read(log)
    assert caught.value.first_index == 4
    assert not lending_of(log).knows(log._segments[0].path, len(log._segments[0].header))
    await log.close()


async def test_the_scrubber_asks_the_disk(disk: Disk, tmp_path: Path) -> None:
    """What it looks at is mapped no longer, not even in part, so that the page cache can let go of it."""
    log, _ = await well_read(disk, tmp_path)
    path, start = log._segments[0].path, len(log._segments[0].header)
    last = log.entry(log._segments[0].last_index).position
    assert lending_of(log).knows(path, start)
    looked = await look(log, LogIndex(2), 100_000)
    assert looked.last_index == 2
    assert not lending_of(log).knows(path, start)
    assert lending_of(log).knows(path, last)
    await look(log, LogIndex(3), EVERYTHING)
    assert not lending_of(log).knows(path, last)
    assert lending_of(log).knows(log._segments[1].path, start)
    await log.close()


@pytest.mark.parametrize("lends", [True, False])
async def test_a_lent_file_is_not_used_again(disk: Disk, tmp_path: Path, lends: bool) -> None:
    """Its pages may still be on their way: it is deleted. One that was only ever read goes round."""
    log, whole = await well_read(disk, tmp_path)
    assert await read(log, lends=float(lends)) == whole
    await log.trim(log._segments[2].first_index)
    names = await disk.list(str(tmp_path / "log"))
    assert sum(name.endswith(SPARE_SUFFIX) for name in names) == (0 if lends else 2)
    await log.close()


async def spares_in(disk: Disk, directory: Path) -> int:
    """How many files of the log wait to be used again."""
    return sum(name.endswith(SPARE_SUFFIX) for name in await disk.list(str(directory / "log")))


@pytest.mark.parametrize("lends", [True, False])
async def test_a_file_found_at_start_is_used_again_unless_it_was_lent(
    disk: Disk, tmp_path: Path, lends: bool
) -> None:
    """An earlier process lent of the second segment: its note has stayed with the file."""
    log, _ = await well_read(disk, tmp_path)
    borders = [segment.first_index for segment in log._segments]
    await read(log, borders[1], borders[2] - 1, lends=float(lends))
    await log.close()
    log = await open_log(disk, str(tmp_path / "log"), CONFIG)
    OPENED.append(log)
    await log.trim(borders[1])
    assert await spares_in(disk, tmp_path) == 1
    await log.trim(borders[2])
    assert await spares_in(disk, tmp_path) == (1 if lends else 2)
    await log.append([next_frame(log, 1, value_bytes=100, first_of_segment=True)])
    assert log._writer._spares.recycled == 1


@pytest.mark.parametrize("error", [errno.ENOTSUP, errno.ENOSPC])
async def test_a_file_that_takes_no_note_is_not_lent(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """Every reading is checked then, and the file is used again."""
    asked = 0

    def refuse(*_: object) -> None:
        nonlocal asked
        asked += 1
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "setxattr", refuse)
    log, whole = await well_read(disk, tmp_path)
    for _ in range(3):
        assert await read(log) == whole
    assert lending_of(log).lent_bytes == 0
    if error == errno.ENOTSUP:
        assert (asked, lending_of(log).mapped_bytes) == (1, 0), "a disk without notes is asked once"
    await log.trim(log._segments[2].first_index)
    assert await spares_in(disk, tmp_path) == 2
    await log.close()


async def test_a_segment_may_go_while_its_note_is_written(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reading that asked for the note is told so, and nothing is known of the path afterwards."""
    log, _ = await well_read(disk, tmp_path)
    begun, may_end, real = threading.Event(), threading.Event(), os.setxattr

    def slow(*arguments: Any) -> None:
        begun.set()
        assert may_end.wait(30)
        real(*arguments)

    monkeypatch.setattr(os, "setxattr", slow)
    reading = asyncio.ensure_future(read(log))
    await asyncio.to_thread(begun.wait, 30)
    path = log._segments[0].path
    await log.trim(log._segments[1].first_index)
    may_end.set()
    with pytest.raises(OffsetOutOfRange):
        await reading
    assert path not in lending_of(log)._noted
    assert await spares_in(disk, tmp_path) == 0, "its reader had it open"


async def test_a_socket_outlives_the_process(disk: Disk, tmp_path: Path) -> None:
    """A process lends, and is killed. Whatever the next one writes, the reader gets what was lent; the files
    of which nothing was lent are used again."""
    log, frames = await filled(disk, str(tmp_path / "log"), SIZES, LONG_READS)
    whole = b"".join(frame.data for frame in frames)
    await log.close()
    near, far = socket.socketpair()
    near.setblocking(False)
    command = [sys.executable, str(Path(__file__).with_name("lending_child.py")), str(tmp_path / "log")]
    with subprocess.Popen(
        [*command, str(near.fileno())],
        pass_fds=[near.fileno()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        line = await asyncio.to_thread(child.stdout.readline)
        child.kill()
        size = int(line)
    near.close()
    log = await open_log(disk, str(tmp_path / "log"), LONG_READS)
    OPENED.append(log)
    await log.trim(log.last_index)
    for fill in range(12):
        await log.append([next_frame(log, 1, value_bytes=200_000, fill=fill, first_of_segment=True)])
        await log.trim(log.last_index)
    came = bytearray()
    while piece := far.recv(1024 * KIB):
        came += piece
    far.close()
    assert size > MIN_STRETCH_BYTES
    assert came == whole[:size]


async def test_a_slow_reader_outlives_the_segment(disk: Disk, tmp_path: Path) -> None:
    """Bytes that lie in a pipe or a socket when their segment is trimmed stay what they were, whatever is
    written afterwards; behind them, who has let go is refused."""
    log, whole = await well_read(disk, tmp_path)
    pieces = await log.pieces(LogIndex(1), log.last_index, EVERYTHING)
    await pieces.begin()
    await pieces.prepare_lending()
    lent = pieces.lend()
    assert lent is not None
    size = len(lent)
    near, far = socket.socketpair()
    near.setblocking(False)
    lent.write_to(near.fileno())
    assert 0 < len(lent) < size
    await pieces.let_go()
    await log.trim(log.last_index)
    for fill in range(12):
        await log.append([next_frame(log, 1, value_bytes=200_000, fill=fill, first_of_segment=True)])
        await log.trim(log.last_index)
    assert emptied(lent, near, far) == whole[:size]
    assert pieces.lend() is None
    with pytest.raises(OffsetOutOfRange):
        await pieces.next()
    await pieces.let_go()
    near.close()
    far.close()
    await log.close()


async def test_only_so_much_is_mapped(disk: Disk, tmp_path: Path) -> None:
    """What was not asked for the longest goes, and with a segment all that is mapped of it."""
    log, whole = await well_read(disk, tmp_path)
    bound = 2 * 1024 * KIB
    lending_of(log).close(log._files.directory)
    lending = log._files.shared.lending = LentPages(bound)
    for _ in range(3):
        assert await read(log) == whole
    assert bound // 2 < lending.mapped_bytes <= bound
    lent_bytes = lending.lent_bytes
    assert await read(log) == whole
    assert lending.lent_bytes - lent_bytes > bound // 2, "who reads more than fits pushes nothing out in time"
    oldest, newest = log._segments[0], log._segments[-2]
    assert not lending.knows(newest.path, len(newest.header))
    passed_bytes = 0
    while not lending.knows(newest.path, len(newest.header)):
        passed_bytes += len(await read(log, newest.first_index))
        assert passed_bytes < 2 * STALE_AFTER * bound
        assert lending.mapped_bytes <= bound
    assert passed_bytes > (STALE_AFTER - 2) * bound, "what others read for long made room"
    with open("/proc/self/maps") as maps:
        assert oldest.path not in maps.read()
    await log.trim(log.last_index)
    assert lending.mapped_bytes == 0
    with open("/proc/self/maps") as maps:
        assert str(tmp_path) not in maps.read()
    await log.close()


async def test_only_so_many_pipes(disk: Disk, tmp_path: Path) -> None:
    """Slow readers keep one each; who comes when there is none reads as ever."""
    log, whole = await well_read(disk, tmp_path)
    slow = []
    for _ in range(MAX_PIPES):
        pieces = await log.pieces(LogIndex(1), log.last_index, EVERYTHING)
        await pieces.begin()
        await pieces.prepare_lending()
        lent = pieces.lend()
        assert lent is not None
        slow.append((pieces, lent))
    before = lending_of(log).lent_bytes
    assert await read(log) == whole
    assert lending_of(log).lent_bytes == before
    for pieces, lent in slow:
        lent.close()
        await pieces.let_go()
    assert await read(log) == whole
    assert lending_of(log).lent_bytes > before
    await log.close()


async def test_a_system_without_it_reads_as_ever(disk: Disk, tmp_path: Path) -> None:
    """Found out once; nothing is mapped, nothing is held open."""
    pages = ToldPages(works=False)
    log, whole = await well_read(disk, tmp_path, pages)
    for _ in range(3):
        assert await read(log) == whole
    assert (pages.mapped, pages.asked, lending_of(log).lent_bytes) == (0, 0, 0)
    await log.close()


async def test_a_simulated_disk_lends_nothing() -> None:
    """Its reads always pass where faults are injected."""
    disk = MemoryDisk(random.Random(1))
    log, frames = await filled(disk, "log", SIZES, CONFIG)
    pages = ToldPages()
    lending = with_pages(log, pages)
    for _ in range(4):
        assert await read(log) == b"".join(frame.data for frame in frames)
    assert (pages.mapped, lending.lent_bytes) == (0, 0)
    await log.close()


async def test_short_stretches_are_copied(disk: Disk, tmp_path: Path) -> None:
    """A mapping for each would cost more than it saves."""
    log, frames = await filled(disk, str(tmp_path / "log"), [100] * 50, LogConfig(tail_cache_bytes=0))
    await log.append([next_frame(log, 1, first_of_segment=True)])
    whole = b"".join(frame.data for frame in frames)
    assert len(whole) < MIN_STRETCH_BYTES
    for _ in range(4):
        assert await read(log, 1, 50) == whole
    assert lending_of(log).mapped_bytes == 0
    await log.close()


async def test_the_bound_holds_over_all_logs(disk: Disk, tmp_path: Path) -> None:
    """Logs that share their files share it; closing one forgets its part only."""
    shared = SharedFiles(disk)
    logs = []
    for number in range(2):
        log = await open_log(disk, str(tmp_path / str(number)), CONFIG, shared=shared)
        for place in range(14):
            await log.append([next_frame(log, 1, value_bytes=150_000, first_of_segment=place in (6, 12))])
        for _ in range(2):
            await read(log)
        logs.append(log)
    both = shared.lending.mapped_bytes
    await logs[0].close()
    assert 0 < shared.lending.mapped_bytes < both
    await logs[1].close()
    assert shared.lending.mapped_bytes == 0
