"""What every Disk must do, once: test classes of the implementations inherit `DiskSuite` and give it a
disk."""

import asyncio
import errno
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shoal.segment_store import Disk
from shoal.segment_store.disk.disk import RESIDENT_TURN_BYTES, WRITE_AT_ONCE_BYTES


class DiskSuite:
    """Subclasses provide the fixtures `disk` and `root` (an existing empty directory of that disk)."""

    async def test_bytes_come_back(self, disk: Disk, root: str) -> None:
        """What was written is read, at any offset, short only at the end of the file."""
        file = await disk.open(f"{root}/a", create=True)
        await file.write(0, b"hello")
        await file.write(5, [b" ", bytearray(b"wor"), memoryview(b"xxld")[2:]])
        assert await file.read(0, 100) == b"hello world"
        assert await file.read(6, 3) == b"wor"
        assert await file.read(11, 5) == b""
        assert await file.size() == 11
        await file.close()

    async def test_read_into_fills_the_buffer_given(self, disk: Disk, root: str) -> None:
        """read_into says how many bytes it put there and touches no others."""
        file = await disk.open(f"{root}/a", create=True)
        await file.write(0, b"0123456789")
        buffer = bytearray(b"......")
        assert await file.read_into(2, memoryview(buffer)[1:5]) == 4
        assert buffer == b".2345."
        assert await file.read_into(8, memoryview(buffer)) == 2
        assert await file.read_into(8, memoryview(buffer)[:0]) == 0
        await file.close()

    async def test_holes_and_allocated_space_read_as_zeros(self, disk: Disk, root: str) -> None:
        """allocate makes the file longer, never shorter, and its new bytes are zero."""
        file = await disk.open(f"{root}/a", create=True)
        await file.write(10, b"x")
        await file.allocate(4096)
        await file.allocate(100)
        assert await file.size() == 4096
        assert await file.read(0, 4096) == bytes(10) + b"x" + bytes(4085)
        await file.close()

    async def test_released_space_reads_as_zeros_and_keeps_the_length(self, disk: Disk, root: str) -> None:
        """Around it everything stays, and it can be written again; beyond the end nothing happens."""
        file = await disk.open(f"{root}/a", create=True)
        content = random.Random(2).randbytes(5 * 4096)
        await file.write_and_sync(0, content)
        await file.release(4096, 2 * 4096)
        expected = content[:4096] + bytes(2 * 4096) + content[3 * 4096 :]
        assert await file.size() == len(content)
        assert await file.read(0, len(content)) in (expected, content)  # where the file system cannot
        await file.release(6 * 4096, 4096)
        assert await file.size() == len(content)
        await file.write_and_sync(4096, content[4096 : 3 * 4096])
        assert await file.read(0, len(content)) == content
        await file.close()

    async def test_large_and_scattered_writes(self, disk: Disk, root: str) -> None:
        """Megabytes in one buffer, and more buffers than one system call takes."""
        file = await disk.open(f"{root}/a", create=True)
        big = random.Random(1).randbytes(3 * 2**20 + 7)
        await file.write_and_sync(0, big)
        small = [bytes([number % 256]) * 3 for number in range(1500)]
        await file.write_and_sync(len(big), small)
        assert await file.read(0, len(big)) == big
        assert await file.read(len(big), 5000) == b"".join(small)
        await file.close()

    async def test_what_is_written_back_piece_by_piece_is_there(self, disk: Disk, root: str) -> None:
        """Pieces that end inside a page, and nothing at all."""
        file = await disk.open(f"{root}/a", create=True)
        data = random.Random(6).randbytes(100_000)
        for at in range(0, 100_000, 30_000):
            await file.write_back(at, [data[at : at + 7], b"", data[at + 7 : at + 30_000]])
        await file.write_back(100_000, [])
        await file.sync()
        assert await file.read(0, 200_000) == data
        await file.close()

    async def test_empty_writes_change_nothing(self, disk: Disk, root: str) -> None:
        """No buffer, or empty ones, are no error and no growth."""
        file = await disk.open(f"{root}/a", create=True)
        await file.write(100, b"")
        await file.write(100, [])
        await file.write_and_sync(100, [b"", b""])
        await file.sync()
        assert await file.size() == 0
        await file.close()

    async def test_many_operations_at_once(self, disk: Disk, root: str) -> None:
        """Far more operations than a ring has entries, on several files, each with its own result."""
        files = [await disk.open(f"{root}/{name}", create=True) for name in "abc"]
        await asyncio.gather(
            *(
                files[number % 3].write_and_sync(number * 8, number.to_bytes(8, "little"))
                for number in range(300)
            )
        )
        pieces = await asyncio.gather(*(files[number % 3].read(number * 8, 8) for number in range(300)))
        assert pieces == [number.to_bytes(8, "little") for number in range(300)]
        for file in files:
            await file.close()

    async def test_a_write_that_nobody_awaits(self, disk: Disk, root: str) -> None:
        """Its outcome is told once, from the loop and never in the call; errors are told the same way."""
        file = await disk.open(f"{root}/a", create=True)
        outcomes: asyncio.Queue[BaseException | None] = asyncio.Queue()
        for number in range(3):
            file.begin_write_and_sync(number * 4, [b"ab", b"cd"], outcomes.put_nowait)
            assert outcomes.empty()
            assert await outcomes.get() is None
        assert await file.read(0, 100) == b"abcd" * 3
        await file.close()
        file.begin_write_and_sync(0, b"late", outcomes.put_nowait)
        assert outcomes.empty()
        error = await outcomes.get()
        assert isinstance(error, OSError)
        assert error.errno == errno.EBADF
        assert outcomes.empty()

    async def test_closing_waits_for_a_write_that_nobody_awaits(self, disk: Disk, root: str) -> None:
        """A descriptor number used again while it runs would send its bytes into another file."""
        file = await disk.open(f"{root}/a", create=True)
        outcomes: list[BaseException | None] = []
        for number in range(20):
            file.begin_write_and_sync(number, b"x", outcomes.append)
        if disk.kind != "memory":
            await file.close()
        while len(outcomes) < 20:
            await asyncio.sleep(0.001)
        assert outcomes == [None] * 20
        file = await disk.open(f"{root}/a")
        assert await file.read(0, 100) == b"x" * 20
        await file.close()

    async def test_a_cancelled_caller_leaves_the_disk_whole(self, disk: Disk, root: str) -> None:
        """Cancelling does not stop the operation; close waits for it, and the next file is not written
        into."""
        file = await disk.open(f"{root}/a", create=True)
        tasks = [asyncio.ensure_future(file.write_and_sync(0, b"a" * 2**20)) for _ in range(8)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await file.close()
        other = await disk.open(f"{root}/b", create=True)
        await other.write(0, b"b")
        assert await other.read(0, 2**20) == b"b"
        await other.close()

    async def test_names(self, disk: Disk, root: str) -> None:
        """Directories are made with parents, listed sorted; rename replaces; removal is complete."""
        assert await disk.make_directory(f"{root}/x/y") == {f"{root}/x/y"}
        assert await disk.make_directory(f"{root}/x/y", f"{root}/x/z") == {f"{root}/x/z"}
        assert await disk.list(f"{root}/x") == ["y", "z"]
        assert await disk.list(f"{root}/nowhere") == []
        for name in ("b", "a"):
            file = await disk.open(f"{root}/x/y/{name}", create=True)
            await file.write(0, name.encode())
            await file.close()
        assert await disk.list(f"{root}/x/y") == ["a", "b"]
        await disk.rename(f"{root}/x/y/a", f"{root}/x/y/b")
        await disk.sync_directory(f"{root}/x/y")
        file = await disk.open(f"{root}/x/y/b")
        assert await file.read(0, 10) == b"a"
        await file.close()
        assert await disk.exists(f"{root}/x/y/b")
        assert not await disk.exists(f"{root}/x/y/a")
        await disk.unlink(f"{root}/x/y/b")
        assert await disk.list(f"{root}/x/y") == []
        await disk.remove_tree(f"{root}/x")
        assert await disk.list(root) == []
        assert not await disk.exists(f"{root}/x")

    async def test_a_directory_is_renamed_with_what_is_in_it(self, disk: Disk, root: str) -> None:
        """At once, into another directory; not over one that holds something."""
        await disk.make_directory(f"{root}/new")
        for name in ("old/1", "old/10"):
            await disk.make_directory(f"{root}/{name}")
            file = await disk.open(f"{root}/{name}/a", create=True)
            await file.write_and_sync(0, name.encode())
            await file.close()
            await disk.sync_directory(f"{root}/{name}")
        await disk.rename(f"{root}/old/1", f"{root}/new/1")
        await disk.sync_directory(f"{root}/new")
        assert await disk.list(f"{root}/old") == ["10"]
        file = await disk.open(f"{root}/new/1/a")
        assert await file.read(0, 10) == b"old/1"
        await file.close()
        with pytest.raises(OSError, match="not empty"):
            await disk.rename(f"{root}/old/10", f"{root}/new/1")

    async def test_an_unlinked_file_stays_readable_while_open(self, disk: Disk, root: str) -> None:
        """Readers pin segments by their handles."""
        file = await disk.open(f"{root}/a", create=True)
        await file.write(0, b"still here")
        await disk.unlink(f"{root}/a")
        assert await file.read(0, 20) == b"still here"
        await file.close()

    async def test_errors_are_the_systems_own(self, disk: Disk, root: str) -> None:
        """A missing file is FileNotFoundError, a closed handle EBADF."""
        with pytest.raises(FileNotFoundError):
            await disk.open(f"{root}/missing")
        with pytest.raises(FileNotFoundError):
            await disk.unlink(f"{root}/missing")
        file = await disk.open(f"{root}/a", create=True)
        await file.close()
        await file.close()
        for operation in (file.read(0, 1), file.write(0, b"x"), file.sync()):
            with pytest.raises(OSError, match="closed") as caught:
                await operation
            assert caught.value.errno == errno.EBADF

    async def test_free_bytes(self, disk: Disk, root: str) -> None:
        """Free space is part of the whole."""
        free, total = await disk.free_bytes(root)
        assert 0 < free <= total

    async def test_reopening_finds_what_was_written(self, disk: Disk, root: str) -> None:
        """A handle opened later, with or without create, sees the bytes and does not cut them."""
        file = await disk.open(f"{root}/a", create=True)
        await file.write_and_sync(0, b"kept")
        await file.close()
        for create in (False, True):
            file = await disk.open(f"{root}/a", create=create)
            assert await file.read(0, 10) == b"kept"
            await file.close()

    async def test_what_memory_takes_and_gives_at_once(self, disk: Disk, root: str) -> None:
        """write_at_once did all or asks for the same write again; read_resident fills from the front and
        counts."""
        file = await disk.open(f"{root}/a", create=True)
        data = random.Random(2).randbytes(5000)
        pieces: list[bytes | memoryview] = [data[:1000], b"", memoryview(data)[1000:]]
        if not file.write_at_once(3, pieces):
            await file.write(3, pieces)
        assert await file.read(0, 10_000) == bytes(3) + data
        assert not file.write_at_once(0, bytes(WRITE_AT_ONCE_BYTES + 1))
        assert await file.size() == 5003
        buffer = bytearray(b"." * 6000)
        filled = file.read_resident(3, memoryview(buffer))
        assert filled <= 5000
        assert buffer == data[:filled] + b"." * (6000 - filled)
        await file.close()
        assert file.read_resident(0, memoryview(buffer)) == 0
        assert not file.write_at_once(0, b"x")

    async def test_one_turn_does_not_read_for_ever(self, disk: Disk, root: str) -> None:
        """Reading what is resident leaves the loop to others again and again."""
        file = await disk.open(f"{root}/a", create=True)
        await file.write(0, bytes(2**20))
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counter = asyncio.ensure_future(count_turns())
        await asyncio.sleep(0)
        buffer = memoryview(bytearray(2**20))
        for _ in range(20):
            assert await file.read_into(0, buffer) == 2**20
        assert turns >= 19
        assert sum(file.read_resident(0, buffer) for _ in range(20)) <= 2 * RESIDENT_TURN_BYTES
        counter.cancel()
        await file.close()


class FileDiskSuite(DiskSuite):
    """Over the machine's own files. Subclasses say which disk; it gives back every descriptor."""

    def made(self) -> Disk:
        raise AssertionError("a subclass makes the disk")

    @pytest.fixture
    async def disk(self) -> AsyncIterator[Disk]:
        before = open_descriptors()
        disk = self.made()
        yield disk
        await disk.close()
        assert open_descriptors() <= before

    @pytest.fixture
    def root(self, tmp_path: Path) -> str:
        return str(tmp_path)

    async def test_each_sync_is_told_of_with_its_time(self, disk: Disk, root: str) -> None:
        """Once, whichever way it was asked for, before its caller hears; writes without a sync are not."""
        told: list[int] = []
        disk.on_synced = told.append
        file = await disk.open(f"{root}/a", create=True)
        await file.write(0, b"x")
        assert told == []
        await file.sync()
        assert len(told) == 1
        for number in range(40):  # enough of them, one after the other, to be made within the call
            await file.write_and_sync(number, b"x")
        await asyncio.gather(*(file.write_and_sync(number, b"y" * 20_000) for number in range(8)))
        assert len(told) == 49
        assert all(0 < took_ns < 60e9 for took_ns in told)
        await file.close()


def open_descriptors() -> int:
    """How many files this process holds open, to find leaks."""
    return len(os.listdir("/proc/self/fd"))
