"""The conformance suite over the three disks, and what is particular to each."""

import asyncio
import ctypes
import errno
import gc
import logging
import os
import random
import resource
import time
from collections.abc import AsyncIterator
from pathlib import Path

import liburing
import pytest
from disk_suite import DiskSuite, FileDiskSuite, open_descriptors
from memory_disk import SECTOR_BYTES, Fault, MemoryDisk
from waiting import PATIENCE_S

from shoal.segment_store import SyncFailed, ThreadDisk, open_disk
from shoal.segment_store.disk import ring as ring_disk
from shoal.segment_store.disk import system_calls
from shoal.segment_store.disk.disk import after_prefix
from shoal.segment_store.disk.fair_queue import SyncSchedule
from shoal.segment_store.disk.ring import RingDisk
from shoal.segment_store.disk.system_calls import pieces_of, read_fully, whole_pages, write_fully


class TestThreadDisk(FileDiskSuite):
    """Blocking calls on threads."""

    def made(self) -> ThreadDisk:
        return ThreadDisk()


def _nothing_resident(fd: int, offset: int, buffer: memoryview) -> int:
    return 0


@pytest.fixture
def nothing_resident(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every read goes to the disk, as if the page cache were empty."""
    monkeypatch.setattr(system_calls, "read_resident_into", _nothing_resident)


@pytest.mark.usefixtures("nothing_resident")
class TestThreadDiskUncached(TestThreadDisk):
    """Blocking calls on threads, with nothing in the page cache."""


class TestRingDisk(FileDiskSuite):
    """io_uring."""

    def made(self) -> RingDisk:
        return RingDisk(entries=32)

    async def test_a_file_system_without_allocation_gives_a_file_its_length(
        self, disk: RingDisk, root: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The ring's fallocate is refused as such file systems refuse it, and posix_fallocate is, too."""

        def refused(entry: liburing.SQE, fd: int, mode: int, offset: int, length: int) -> None:
            """A mode that no file system knows: EOPNOTSUPP."""
            prepare(entry, fd, 0x4000, offset, length)

        def unsupported(fd: int, offset: int, length: int) -> None:
            raise OSError(errno.EOPNOTSUPP, "not supported")

        prepare = ring_disk.uring.io_uring_prep_fallocate
        monkeypatch.setattr(ring_disk.uring, "io_uring_prep_fallocate", refused)
        monkeypatch.setattr(system_calls.os, "posix_fallocate", unsupported)
        file = await disk.open(f"{root}/file", create=True)
        await file.allocate(4096)
        assert await file.size() == 4096
        await file.close()

    async def test_operations_of_one_turn_are_submitted_by_one_call(
        self, disk: RingDisk, root: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Ten writes asked for in one turn of the loop cost one system call."""
        submissions = []
        submit = liburing.io_uring_submit

        def counting(ring: liburing.Ring) -> int:
            submissions.append(submit(ring))
            return submissions[-1]

        monkeypatch.setattr(ring_disk.uring, "io_uring_submit", counting)
        file = await disk.open(f"{root}/a", create=True)
        await asyncio.gather(*(file.write(at, b"x") for at in range(10)))
        await file.close()
        assert submissions == [10]

    async def test_a_short_write_goes_on_and_is_synced(
        self, disk: RingDisk, root: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A write cut short breaks its link (the sync is canceled): the rest goes again, with a sync of its
        own."""
        results = _results(monkeypatch, [("cut", 1000)])
        file = await disk.open(f"{root}/a", create=True)
        data = random.Random(2).randbytes(5000)
        await file.write_and_sync(0, [data[:1500], data[1500:]])
        assert await file.read(0, 5000) == data
        await file.close()
        assert results == [1000, 0, 5000]

    @pytest.mark.parametrize("error", [errno.EINTR, errno.EAGAIN])
    async def test_an_interrupted_write_goes_again(
        self, disk: RingDisk, root: str, monkeypatch: pytest.MonkeyPatch, error: int
    ) -> None:
        """EINTR and EAGAIN are no answer."""
        results = _results(monkeypatch, [("fail", error)])
        file = await disk.open(f"{root}/a", create=True)
        await file.write_and_sync(0, b"data")
        assert await file.read(0, 4) == b"data"
        await file.close()
        assert results == [-error, 0, 4]

    async def test_a_failed_sync_is_never_tried_again(
        self, disk: RingDisk, root: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Neither behind a write nor alone, not even when the error says that it was interrupted."""
        results = _results(monkeypatch, [("sync", errno.EIO), ("sync", errno.EINTR)])
        file = await disk.open(f"{root}/a", create=True)
        with pytest.raises(SyncFailed):
            await file.write_and_sync(0, b"data")
        with pytest.raises(SyncFailed):
            await file.sync()
        await file.close()
        assert results == [-errno.EIO, -errno.EINTR]

    async def test_written_and_read_memory_is_let_go_of(
        self, disk: RingDisk, root: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nobody but the caller holds a buffer once its operation has ended: a bytearray with a view left
        cannot grow. As a pair, as a chain, as a short write that goes again, and as a read."""
        _results(monkeypatch, [("cut", 4096)])
        file = await disk.open(f"{root}/a", create=True)
        for size in (8192, 8192, 3 * 2**20):
            memory = bytearray(size)
            for view in (memoryview(memory), memoryview(memory).toreadonly()):
                await file.write_and_sync(0, [view[: size // 2], b"between", view[size // 2 :]])
                await file.write(0, view)
            assert await file.read_into(0, memoryview(memory)) == size
            del view
            gc.collect()  # what the ended tasks' frames held
            memory.append(0)
        await file.close()

    async def test_a_large_write_goes_in_pieces(
        self, disk: RingDisk, root: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As one chain with one completion, wherever it begins and however its buffers are cut."""
        results = _results(monkeypatch, [])
        file = await disk.open(f"{root}/a", create=True)
        data = random.Random(7).randbytes(3 * 2**20 + 77)
        ended: asyncio.Queue[BaseException | None] = asyncio.Queue()
        buffers = [data[:5], memoryview(data)[5 : 2**20], data[2**20 :]]
        file.begin_write_and_sync(680, buffers, ended.put_nowait)
        assert await ended.get() is None
        assert results == [0]  # the sync's
        assert await file.read(680, len(data)) == data
        await file.close()

    @pytest.mark.parametrize("fault", [("fail", errno.EINVAL), ("fail", errno.EINTR), ("cut", 4096)])
    async def test_a_broken_chain_goes_again_as_a_pair(
        self, disk: RingDisk, root: str, monkeypatch: pytest.MonkeyPatch, fault: tuple[str, int]
    ) -> None:
        """Whatever broke it: the pair says what is wrong, if anything is. What a file system does not know
        is not asked of it again."""
        results = _results(monkeypatch, [fault])
        file = await disk.open(f"{root}/a", create=True)
        data = random.Random(8).randbytes(2**20)
        ended: asyncio.Queue[BaseException | None] = asyncio.Queue()
        for at in (0, 2**20):
            file.begin_write_and_sync(at, [data], ended.put_nowait)
            assert await ended.get() is None
        assert len(results) == 3
        assert await file.read(0, 2**22) == data * 2
        assert disk._chains is (fault != ("fail", errno.EINVAL))
        await file.close()

    async def test_a_failed_sync_of_a_chain_is_final(
        self, disk: RingDisk, root: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As with a pair: nothing is tried again."""
        results = _results(monkeypatch, [("sync", errno.EIO)])
        file = await disk.open(f"{root}/a", create=True)
        ended: asyncio.Queue[BaseException | None] = asyncio.Queue()
        file.begin_write_and_sync(0, [bytes(2**20)], ended.put_nowait)
        assert isinstance(await ended.get(), SyncFailed)
        assert results == [-errno.EIO]
        await file.close()

    async def test_a_write_error_is_not_a_sync_error(
        self, disk: RingDisk, root: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """ENOSPC of the write itself can heal; it must not look like a failed sync."""
        _results(monkeypatch, [("fail", errno.ENOSPC)])
        file = await disk.open(f"{root}/a", create=True)
        with pytest.raises(OSError, match="space") as caught:
            await file.write_and_sync(0, b"data")
        assert not isinstance(caught.value, SyncFailed)
        await file.close()

    async def test_callers_wait_when_the_queue_is_full(
        self, root: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With two entries and room for three waiting operations, fifty writes still all happen."""
        monkeypatch.setattr(ring_disk, "MAX_WAITING_OPERATIONS", 3)
        disk = RingDisk(entries=2)
        file = await disk.open(f"{root}/a", create=True)
        await asyncio.gather(*(file.write(at, bytes([at])) for at in range(50)))
        assert await file.read(0, 50) == bytes(range(50))
        await file.close()
        await disk.close()

    async def test_a_completion_queue_that_overflows_loses_nothing(
        self, root: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With the bound lifted that keeps it from happening: forty completions come while nobody reads the
        queue of eight, the kernel keeps the rest, and every caller hears of its own."""
        disk = RingDisk(entries=4)
        disk._entries = 1000
        file = await disk.open(f"{root}/a", create=True)
        outcomes: list[BaseException | None] = []
        for number in range(40):
            file.begin_write_and_sync(number, bytes([number]), outcomes.append)
        deadline = time.monotonic() + PATIENCE_S
        while not liburing.io_uring_cq_has_overflow(disk._ring) and time.monotonic() < deadline:
            time.sleep(0.01)  # the loop is not to run
        assert liburing.io_uring_cq_has_overflow(disk._ring)
        await asyncio.wait_for(file.close(), PATIENCE_S)
        assert outcomes == [None] * 40
        file = await disk.open(f"{root}/a")
        assert await file.read(0, 100) == bytes(range(40))
        await file.close()
        await disk.close()

    @pytest.mark.parametrize("error", [errno.EAGAIN, errno.EBUSY, errno.EINTR])
    async def test_a_kernel_that_takes_nothing_now_is_asked_again(
        self, disk: RingDisk, root: str, monkeypatch: pytest.MonkeyPatch, error: int
    ) -> None:
        """io_uring_enter out of memory, with an overflow to be read first, or interrupted: what was prepared
        stays in the submission queue, which fills up, and everything happens once the kernel takes it."""
        submit, refusals = liburing.io_uring_submit, [0]

        def refusing(ring: liburing.Ring) -> int:
            refusals[0] += 1
            if refusals[0] <= 5:
                raise OSError(error, os.strerror(error))
            return submit(ring)

        file = await disk.open(f"{root}/a", create=True)
        monkeypatch.setattr(ring_disk.uring, "io_uring_submit", refusing)
        await asyncio.gather(*(file.write_and_sync(at, bytes([at])) for at in range(100)))
        assert refusals[0] > 5
        assert await file.read(0, 200) == bytes(range(100))
        await file.close()


@pytest.mark.usefixtures("nothing_resident")
class TestRingDiskUncached(TestRingDisk):
    """io_uring, with nothing in the page cache."""


def _results(monkeypatch: pytest.MonkeyPatch, faults: list[tuple[str, int]]) -> list[int]:
    """Distort completions in their order, as the kernel would: a cut or failed write answers in its pair's
    place. Returns the results the disk was told."""
    monkeypatch.setattr(system_calls, "read_resident_into", _nothing_resident)
    told: list[int] = []
    real = RingDisk._completions

    def distorted(disk: RingDisk) -> list[tuple[int, int]]:
        completions = []
        for number, result in real(disk):
            kind, value = faults.pop(0) if faults else ("keep", 0)
            if kind != "keep":
                result = value if kind == "cut" else -value
            if kind in ("cut", "fail"):
                number &= ~1
            told.append(result)
            completions.append((number, result))
        return completions

    monkeypatch.setattr(RingDisk, "_completions", distorted)
    return told


@pytest.mark.parametrize("kind", ["ring", "threads"])
async def test_the_systems_real_refusals(kind: str, tmp_path: Path) -> None:
    """A file size limit cuts a write short and then refuses the rest; a read-only descriptor refuses at
    once: errors of the write, not of the sync, and the disk goes on."""
    disk = await open_disk("ring" if kind == "ring" else "threads")
    file = await disk.open(str(tmp_path / "a"), create=True)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
    try:
        with pytest.raises(OSError, match="too large") as caught:
            await asyncio.wait_for(file.write_and_sync(0, b"x" * 9000), 40)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.EFBIG
    assert not isinstance(caught.value, SyncFailed)
    assert await file.size() == 5000
    await file.write_and_sync(0, b"y" * 9000)
    assert await file.read(0, 10_000) == b"y" * 9000
    await file.close()
    directory = await disk.open(str(tmp_path / "b"), create=True)
    descriptor = os.open(str(tmp_path), os.O_RDONLY)
    os.dup2(descriptor, directory._fd)
    os.close(descriptor)
    for attempt in (directory.read(0, 10), directory.write(0, b"x"), directory.write_and_sync(0, b"x")):
        with pytest.raises(OSError, match=r"directory|descriptor"):
            await asyncio.wait_for(attempt, 40)
    await directory.close()
    await disk.close()


async def test_threads_tell_the_disk_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every whole page but the last piece's is written back while the next is copied, and the sync comes
    last."""
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(system_calls, "begin_write_back", lambda _, start, end: calls.append((start, end)))
    disk = ThreadDisk()
    file = await disk.open(str(tmp_path / "a"), create=True)
    data = random.Random(9).randbytes(2**20)
    await file.write_and_sync(100, data)
    assert await file.read(100, 2**20) == data
    assert [start for start, _ in calls] == [100, 100 + 2**18, 100 + 2 * 2**18]
    assert all(end - start == 2**18 for start, end in calls)
    calls.clear()
    await file.write_and_sync(0, data[: 2**18])
    assert calls == []
    await file.close()
    await disk.close()


async def test_beginning_to_write_back_is_only_advice(tmp_path: Path) -> None:
    """A descriptor that cannot do it is no error here: the sync says what is wrong."""
    system_calls.begin_write_back(-1, 0, 2**20)
    path = tmp_path / "a"
    path.write_bytes(bytes(2**16))
    descriptor = os.open(path, os.O_RDWR)
    system_calls.begin_write_back(descriptor, 100, 2**16)
    os.close(descriptor)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EOPNOTSUPP, errno.EINVAL])
async def test_an_error_of_a_write_back_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """By the write itself, since no later sync tells of it; where the call is unknown nothing is waited
    for. One that is interrupted is made again."""
    disk, calls = ThreadDisk(), list[tuple[int, int]]()

    class System:
        @staticmethod
        def sync_file_range(_fd: int, start: ctypes.c_int64, length: ctypes.c_int64, _flags: int) -> int:
            calls.append((start.value, length.value))
            ctypes.set_errno(errno.EINTR if len(calls) == 1 else code)
            return -1

    monkeypatch.setattr(system_calls, "_libc", System)
    file = await disk.open(str(tmp_path / "a"), create=True)
    await file.write_back(0, b"x" * 4095)
    assert calls == []
    if code in (errno.EIO, errno.ENOSPC):
        with pytest.raises(OSError, match=os.strerror(code)):
            await file.write_back(5_000, b"y" * 10_000)
    else:
        await file.write_back(5_000, b"y" * 10_000)
    assert calls == [(4096, 8192)] * 2
    assert await file.size() == 15_000
    await file.close()
    await disk.close()


async def test_a_piece_is_written_once_the_disk_has_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole pages are waited for; the last one may get further bytes."""
    disk, calls = ThreadDisk(), list[tuple[int, int, int]]()
    path = tmp_path / "a"

    class System:
        @staticmethod
        def sync_file_range(_fd: int, start: ctypes.c_int64, length: ctypes.c_int64, _flags: int) -> int:
            calls.append((start.value, length.value, path.stat().st_size))
            return 0

    monkeypatch.setattr(system_calls, "_libc", System)
    file = await disk.open(str(path), create=True)
    data = random.Random(8).randbytes(600_000)
    await file.write_back(100, [data[:5], data[5:]])
    first, second = 100 + 2**18, 100 + 2**19
    assert calls == [(0, 2**18, first), (2**18, 2**18, second), (2**19, 18 * 4096, 600_100)]
    assert await file.read(100, 600_000) == data
    await file.close()
    await disk.close()


def test_pieces_are_the_same_bytes() -> None:
    """Each but the last as long as asked for; pages that no later byte touches are whole."""
    rng = random.Random(3)
    for _ in range(200):
        buffers = [rng.randbytes(rng.choice((0, 1, 100, 5000))) for _ in range(rng.randrange(6))]
        size = rng.choice((1, 64, 4096))
        pieces = [b"".join(piece) for piece in pieces_of(buffers, size)]
        assert b"".join(pieces) == b"".join(buffers)
        assert all(len(piece) == size for piece in pieces[:-1])
    assert whole_pages(680, 680 + 2 * 4096) == (0, 2 * 4096)
    assert whole_pages(4096, 3 * 4096) == (4096, 2 * 4096)
    assert whole_pages(5000, 5001) == (4096, 0)


class TestFairRing(DiskSuite):
    """io_uring with two syncs in flight: everything the suite asks for, most of it after waiting."""

    @pytest.fixture
    async def disk(self) -> AsyncIterator[RingDisk]:
        before = open_descriptors()
        disk = RingDisk(32, SyncSchedule(2, 4096))
        yield disk
        await disk.close()
        disk.schedule.check_invariants()
        assert (disk.schedule.in_flight, len(disk.schedule)) == (0, 0)
        assert open_descriptors() <= before

    @pytest.fixture
    def root(self, tmp_path: Path) -> str:
        return str(tmp_path)


class TestMemoryDisk(DiskSuite):
    """Memory, with faults."""

    @pytest.fixture
    async def disk(self) -> MemoryDisk:
        return MemoryDisk(random.Random(3), pause_max=3)

    @pytest.fixture
    async def root(self, disk: MemoryDisk) -> str:
        await disk.make_directory("root")
        return "root"

    async def test_synced_bytes_survive_every_crash(self, disk: MemoryDisk, root: str) -> None:
        """A completed sync of the file and of its directory is a promise; nothing else is."""
        for seed in range(50):
            path = f"{root}/{seed}"
            file = await disk.open(path, create=True)
            await file.write_and_sync(0, b"s" * 2000)
            await disk.sync_directory(root)
            await file.write(1000, b"u" * 3000)
            disk.crash(random.Random(seed))
            with pytest.raises(OSError, match="power"):
                await file.read(0, 1)
            content = disk.content(path)
            assert content[:1000] == b"s" * 1000
            assert len(content) in (2000, 4000)
            assert set(content[1000:]) <= set(b"su\0")

    async def test_a_crash_tears_at_sectors(self, disk: MemoryDisk, root: str) -> None:
        """Over many crashes each unsynced sector is lost in some and kept in others, independently."""
        outcomes = set()
        for seed in range(60):
            file = await disk.open(f"{root}/a{seed}", create=True)
            await file.allocate(2 * SECTOR_BYTES)
            await file.sync()
            await disk.sync_directory(root)
            await file.write(0, b"n" * 2 * SECTOR_BYTES)
            disk.crash(random.Random(seed))
            content = disk.content(f"{root}/a{seed}")
            outcomes.add((content[0], content[SECTOR_BYTES]))
            assert len(set(content[:SECTOR_BYTES])) == 1
        assert outcomes == {(a, b) for a in (0, ord("n")) for b in (0, ord("n"))}

    async def test_a_crash_leaves_any_length_since_the_last_sync(self, disk: MemoryDisk, root: str) -> None:
        """The one that was synced, and each that writes and reservations made after it."""
        lengths = set()
        for seed in range(60):
            file = await disk.open(f"{root}/l{seed}", create=True)
            await file.write_and_sync(0, b"s" * 700)
            await disk.sync_directory(root)
            await file.write(700, b"u" * 900)
            await file.allocate(4096)
            disk.crash(random.Random(seed))
            content = disk.content(f"{root}/l{seed}")
            lengths.add(len(content))
            assert content[:700] == b"s" * 700
        assert lengths == {700, 1600, 4096}

    async def test_names_without_a_directory_sync_may_go(self, disk: MemoryDisk, root: str) -> None:
        """A file whose directory was not synced is there after some crashes and gone after others."""
        there = set()
        for seed in range(20):
            file = await disk.open(f"{root}/n{seed}", create=True)
            await file.write_and_sync(0, b"x")
            disk.crash(random.Random(seed))
            there.add(await disk.exists(f"{root}/n{seed}"))
        assert there == {True, False}

    async def test_a_failed_sync_forgets_what_was_dirty(self, disk: MemoryDisk, root: str) -> None:
        """As on Linux: the bytes stay readable, a second sync succeeds, and a crash loses them all the
        same."""
        file = await disk.open(f"{root}/a", create=True)
        await file.write_and_sync(0, b"old")
        await disk.sync_directory(root)
        disk.faults.append(Fault("sync", errno.EIO))
        with pytest.raises(SyncFailed):
            await file.write_and_sync(0, b"new")
        await file.sync()
        assert await file.read(0, 3) == b"new"
        disk.crash(random.Random(1))
        assert disk.content(f"{root}/a") == b"old"

    async def test_a_full_disk_refuses_and_heals(self, disk: MemoryDisk, root: str) -> None:
        """ENOSPC for writes and allocation; removing a file makes room."""
        disk.capacity_bytes = 1000
        file = await disk.open(f"{root}/a", create=True)
        await file.write(0, b"x" * 900)
        other = await disk.open(f"{root}/b", create=True)
        for attempt in (other.write(0, b"x" * 200), other.allocate(200)):
            with pytest.raises(OSError, match="space"):
                await attempt
        await disk.unlink(f"{root}/a")
        await other.write(0, b"x" * 200)


class TestThreadCalls:
    """The loops around pwritev and preadv."""

    def test_short_writes_and_interruptions(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A disk that takes three bytes at a time and is interrupted in between still takes everything."""
        real, calls = os.pwritev, []

        def stingy(fd: int, buffers: list, offset: int) -> int:
            calls.append(offset)
            if len(calls) % 2:
                raise InterruptedError(errno.EINTR, "interrupted")
            return real(fd, [bytes(memoryview(buffers[0])[:3])], offset)

        monkeypatch.setattr(system_calls.os, "pwritev", stingy)
        fd = os.open(tmp_path / "a", os.O_RDWR | os.O_CREAT)
        write_fully(fd, 2, [b"abcdefgh", b"ij"])
        assert read_fully(fd, 2, 100) == b"abcdefghij"
        os.close(fd)

    def test_a_disk_that_accepts_nothing_is_an_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Not an endless loop."""
        monkeypatch.setattr(system_calls.os, "pwritev", lambda *_: 0)
        with pytest.raises(OSError, match="accepted no byte"):
            write_fully(1, 0, [b"x"])

    def test_rest_after_a_prefix(self) -> None:
        """after_prefix skips whole buffers and cuts one."""
        buffers = [b"abc", b"def", b"gh"]
        for written in range(9):
            assert b"".join(after_prefix(buffers, written)) == b"abcdefgh"[written:]


async def test_threads_with_one_warning_where_the_ring_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A container that forbids io_uring gets threads, and hears of it once."""

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(ring_disk.uring, "io_uring_queue_init", refuse)
    with caplog.at_level(logging.WARNING):
        disk = await open_disk()
    assert disk.kind == "threads"
    assert len(caplog.records) == 1
    assert "io_uring" in caplog.text
    await disk.close()


async def test_the_ring_is_preferred() -> None:
    """On a machine that has it."""
    disk = await open_disk()
    assert disk.kind == "ring"
    await disk.close()
    disk = await open_disk("threads")
    assert disk.kind == "threads"
    await disk.close()
