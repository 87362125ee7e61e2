"""Directories that are wanted together are made together, and nobody hears of one that is not durable."""

from __future__ import annotations

import asyncio
import errno
import random

import pytest
from memory_disk import Fault, MemoryDisk

from shoal.agent.durable.new_directories import MAX_TOGETHER, NewDirectories


class CountingDisk(MemoryDisk):
    """How many paths each call brought."""

    def __init__(self) -> None:
        super().__init__(random.Random(1), pause_max=2)
        self.calls: list[int] = []

    async def make_directory(self, *paths: str) -> set[str]:
        self.calls.append(len(paths))
        return await super().make_directory(*paths)


async def test_what_is_wanted_while_the_disk_works_is_one_call() -> None:
    """The first alone, all others together; who was there already is told apart."""
    disk = CountingDisk()
    await disk.make_directory("topics/t/3")
    disk.calls.clear()
    directories = NewDirectories(disk)
    first = asyncio.create_task(directories.make("topics/t/0"))
    await asyncio.sleep(0)
    others = [asyncio.create_task(directories.make(f"topics/t/{number}")) for number in range(1, 5)]
    assert await first
    assert [await other for other in others] == [True, True, False, True]
    assert disk.calls == [1, 4]
    assert await directories.make("topics/t/9")


async def test_one_call_is_bounded() -> None:
    """However many are born at once, a thread of the disk is not held for seconds."""
    disk = CountingDisk()
    directories = NewDirectories(disk)
    count = 2 * MAX_TOGETHER + 3
    made = await asyncio.gather(*(directories.make(f"d/{number}") for number in range(count)))
    assert all(made)
    assert disk.calls == [MAX_TOGETHER, MAX_TOGETHER, 3]


async def test_a_fault_is_told_to_those_it_concerns_and_heals() -> None:
    """A cancelled caller takes nothing from the others."""
    disk = CountingDisk()
    directories = NewDirectories(disk)
    disk.faults.append(Fault("make_directory", errno.EIO, "t/1"))
    cancelled = asyncio.create_task(directories.make("t/0"))
    failing = asyncio.create_task(directories.make("t/1"))
    await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(OSError, match="t/1"):
        await failing
    assert cancelled.cancelled()
    assert await directories.make("t/1")
