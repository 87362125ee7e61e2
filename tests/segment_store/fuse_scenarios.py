"""What is done to a log on a failing file system: a program of its own, since it mounts things.

Each scenario runs the real code, over the real ring or real threads, on the file system of fuse_server.py
in this process's own namespace of mounts. One line of JSON per scenario on standard output: its name, and
null or the traceback. Arguments: first seed, seeds, power failures a seed.
"""

import asyncio
import contextlib
import ctypes
import dataclasses
import errno
import json
import logging
import os
import random
import sys
import tempfile
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[1] / "simulation"))

from fuse_server import FuseDisk, enter_namespace
from power_loss import Witness, held_frames, work
from store_frames import SMALL, contents, next_frame, open_log

from shoal.format.batch import LogIndex
from shoal.segment_store import Damaged, DiskFailed, DiskFull, LogConfig, PartitionLog, open_disk
from shoal.segment_store.check.scrub import look

KINDS = ("ring", "threads")
_TMPFS_BYTES = 2**20
_logged: list[str] = []


@contextlib.asynccontextmanager
async def opened(directory: str, kind: str, config: LogConfig = SMALL) -> AsyncIterator[PartitionLog]:
    """A log in the directory, over a disk of that kind."""
    disk = await open_disk("ring" if kind == "ring" else "threads")
    assert disk.kind == kind
    log = await open_log(disk, directory, config)
    try:
        yield log
    finally:
        await log.close()
        await disk.close()


async def power_fails(fuse: FuseDisk, kind: str, seed: int, failures: int, config: LogConfig = SMALL) -> None:
    """Work until the power fails at some operation, during recovery too; what was acknowledged is there."""
    rng = random.Random(seed)
    witness = Witness()
    directory = f"{fuse.root}/{kind}/{seed}"
    for _ in range(failures):
        fuse.ask("direct", on=rng.random() < 0.5)
        fuse.ask(
            "fail_after", operations=rng.choice((rng.randrange(12), rng.randrange(60), rng.randrange(200)))
        )
        try:
            async with opened(directory, kind, config) as log:
                assert log.damage == (), log.damage
                witness.check(await held_frames(log))
                await work(log, witness, rng)
        except DiskFailed:
            pass  # during the opening
        fuse.ask("crash", seed=rng.randrange(2**32))
    async with opened(directory, kind, config) as log:
        assert log.damage == (), log.damage
        witness.check(await held_frames(log))
        assert await log.verify() == []


async def a_disk_that_takes_little_at_a_time(fuse: FuseDisk, kind: str) -> None:
    """Writes that end short at any byte, EINTR and EAGAIN: every append succeeds, and every byte is there."""
    rng = random.Random(5)
    expected: list[bytes] = []
    async with opened(f"{fuse.root}/log", kind) as log:
        for number in range(60):
            trouble = rng.choice(
                ({"short": rng.randrange(1, 900)}, {"errno": errno.EINTR}, {"errno": errno.EAGAIN})
            )
            fuse.ask("fault", operation="write", times=rng.randrange(1, 4), **trouble)
            frame = next_frame(log, 1 + number % 3, fill=number, value_bytes=rng.choice((10, 600, 3000)))
            await log.append([frame])
            expected.append(frame.data)
        assert fuse.ask("heal") >= 60
        assert await contents(log) == expected
    async with opened(f"{fuse.root}/log", kind) as log:
        assert log.damage == ()
        assert await contents(log) == expected
        assert await log.verify() == []


async def _promised(log: PartitionLog, count: int = 5) -> list[bytes]:
    for number in range(count):
        await log.append([next_frame(log, fill=number)])
    return await contents(log)


CHANGES = {"write", "sync", "allocate", "create"}


async def _settled(fuse: FuseDisk) -> None:
    """Until the index, which follows the appends, is on the disk: nothing has reached that for a while."""
    quiet_looks = 0
    async with asyncio.timeout(60):
        while quiet_looks < 4:
            await asyncio.sleep(0.05)
            quiet_looks = 0 if CHANGES & set(fuse.ask("counts")) else quiet_looks + 1


async def _fatal(fuse: FuseDisk, kind: str, fault: dict[str, object]) -> None:
    """The error is met once: nothing is acknowledged or asked of the disk after it, reads go on, and the
    next opening has what was promised."""
    async with opened(f"{fuse.root}/log", kind) as log:
        promised = await _promised(log)
        await _settled(fuse)
        _logged.clear()
        fuse.ask("fault", **fault)
        with pytest.raises(DiskFailed):
            await log.append([next_frame(log)])
        fuse.ask("counts")
        for _ in range(3):
            with pytest.raises(DiskFailed):
                await log.append([next_frame(log)])
        assert await contents(log) == promised
        counts = fuse.ask("counts")
        assert not CHANGES & set(counts), counts
    assert fuse.ask("heal") == 1
    assert len(_logged) == 1, _logged
    fuse.ask("crash", seed=1)
    async with opened(f"{fuse.root}/log", kind) as log:
        assert log.damage == ()
        assert (await contents(log))[: len(promised)] == promised
        await log.append([next_frame(log)])


async def a_failed_sync_is_fatal_once(fuse: FuseDisk, kind: str) -> None:
    """EIO of fdatasync."""
    await _fatal(fuse, kind, {"operation": "sync", "errno": errno.EIO})


async def an_interrupted_sync_is_a_failed_one(fuse: FuseDisk, kind: str) -> None:
    """EINTR of fdatasync says nothing about what was synced: it is never asked again."""
    await _fatal(fuse, kind, {"operation": "sync", "errno": errno.EINTR})


async def a_sync_without_space_is_a_failed_one(fuse: FuseDisk, kind: str) -> None:
    """ENOSPC of fdatasync has lost bytes that a write had accepted: it heals by no later space."""
    await _fatal(fuse, kind, {"operation": "sync", "errno": errno.ENOSPC})


async def a_failed_write_is_fatal_once(fuse: FuseDisk, kind: str) -> None:
    """EIO of a write."""
    await _fatal(fuse, kind, {"operation": "write", "errno": errno.EIO})


async def _heals(directory: str, kind: str, fill: Callable[[], object], free: Callable[[], object]) -> None:
    """Refused while there is no space, with reads going on; accepted once there is, by the same log."""
    async with opened(directory, kind) as log:
        promised = await _promised(log)
        fill()
        refused = 0
        while not refused:
            offered = next_frame(log, value_bytes=5000)
            try:
                await log.append([offered])
                promised.append(offered.data)
            except DiskFull:
                refused += 1
            assert len(promised) < 1000
        for _ in range(3):
            with pytest.raises(DiskFull):
                await log.append([next_frame(log, value_bytes=60_000)])
        assert await contents(log) == promised
        free()
        await log.append([offered])
        promised.append(offered.data)
        assert await contents(log) == promised
    async with opened(directory, kind) as log:
        assert log.damage == ()
        assert await contents(log) == promised
        assert await log.verify() == []


async def a_full_disk_refuses_and_heals(fuse: FuseDisk, kind: str) -> None:
    """ENOSPC as the file system counts its bytes."""
    await _heals(
        f"{fuse.root}/log",
        kind,
        lambda: fuse.ask("capacity", size=fuse.ask("used") + 40_000),
        lambda: fuse.ask("capacity", size=2**30),
    )


async def a_quota_refuses_and_heals(fuse: FuseDisk, kind: str) -> None:
    """EDQUOT of a write is no space too."""
    await _heals(
        f"{fuse.root}/log",
        kind,
        lambda: fuse.ask("fault", operation="write", errno=errno.EDQUOT, times=10**6),
        lambda: fuse.ask("heal"),
    )


async def a_full_tmpfs_refuses_and_heals(fuse: FuseDisk, kind: str) -> None:
    """The kernel's own ENOSPC, on a file system of one megabyte."""
    libc = ctypes.CDLL(None, use_errno=True)
    os.mkdir(f"{fuse.root}/tmp")
    size = f"size={_TMPFS_BYTES}".encode()
    directory = tempfile.mkdtemp()
    assert libc.mount(b"none", directory.encode(), b"tmpfs", 0, size) == 0, os.strerror(ctypes.get_errno())
    ballast = f"{directory}/ballast"
    try:

        def fill() -> None:
            with open(ballast, "wb") as file:
                file.write(bytes(_TMPFS_BYTES * 3 // 4))

        await _heals(f"{directory}/log", kind, fill, lambda: os.unlink(ballast))
    finally:
        libc.umount2(directory.encode(), 2)
        os.rmdir(directory)


async def a_read_error_is_one_of_its_range_only(fuse: FuseDisk, kind: str) -> None:
    """EIO of a read: what was asked for is damage, named; everything else, and the next append, is served."""
    async with opened(f"{fuse.root}/log", kind) as log:
        promised = await _promised(log, 8)
        fuse.ask("fault", operation="read", errno=errno.EIO)
        with pytest.raises(Damaged, match="Input/output error") as caught:
            await log.read(LogIndex(3), LogIndex(3), 1)
        entry = log.entry(LogIndex(3))
        assert (caught.value.position, caught.value.offsets) == (
            entry.position,
            (entry.base_offset, entry.end_offset),
        )
        assert await contents(log) == promised
        await log.append([next_frame(log)])
        # For a scrub's look too: of the entries it read at once, each is asked again by itself.
        fuse.ask("fault", operation="read", errno=errno.EIO, skip=1, times=1)
        fuse.ask("fault", operation="read", errno=errno.EIO, skip=2, times=1)
        looked = await look(log, LogIndex(1), 2**20)
        assert [(item.first_index, item.last_index) for item in looked.found] == [(2, 2)]
        assert fuse.ask("heal") == 3


async def a_scrub_asks_the_disk_and_not_the_cache(fuse: FuseDisk, kind: str) -> None:
    """A bit flips on the disk while the page cache still has the good one: a read serves the good one, and
    the scrub finds the flipped."""
    fuse.ask("direct", on=False)
    async with opened(f"{fuse.root}/log", kind) as log:
        promised = await _promised(log)
        assert await contents(log) == promised
        assert (await look(log, LogIndex(1), 2**20)).found == []
        assert await contents(log) == promised
        entry = log.entry(LogIndex(2))
        name = log.segment_of(LogIndex(2)).name.segment_file
        fuse.ask("flip", path=f"log/{name}", position=entry.position + 300)
        assert await contents(log) == promised
        (found,) = (await look(log, LogIndex(1), 2**20)).found
        assert (found.first_index, found.position) == (2, entry.position)


async def a_close_that_fails_costs_nothing(fuse: FuseDisk, kind: str) -> None:
    """EIO of close: everything was synced before, so neither reads of other segments nor the end meet it."""
    async with opened(f"{fuse.root}/log", kind) as log:
        for number in range(6):
            await log.append([next_frame(log, fill=number, first_of_segment=number > 0)])
        fuse.ask("fault", operation="flush", errno=errno.EIO, times=10**6)
        assert len(await contents(log)) == 6
    assert fuse.ask("heal") >= 5
    async with opened(f"{fuse.root}/log", kind) as log:
        assert log.last_index == 6


async def a_store_that_does_not_sync_is_caught(fuse: FuseDisk, kind: str) -> None:
    """The tester tested: a log that answers before it syncs loses what it acknowledged, and is found out."""
    liar = dataclasses.replace(SMALL, fsync=False, index_interval_ms=1000)
    caught = 0
    for seed in range(12):
        try:
            await power_fails(fuse, kind, seed, 6, liar)
        except AssertionError as error:
            caught += "acknowledged entry" in str(error)
    assert caught >= 3


SCENARIOS: tuple[Callable[[FuseDisk, str], Awaitable[None]], ...] = (
    a_disk_that_takes_little_at_a_time,
    a_failed_sync_is_fatal_once,
    an_interrupted_sync_is_a_failed_one,
    a_sync_without_space_is_a_failed_one,
    a_failed_write_is_fatal_once,
    a_full_disk_refuses_and_heals,
    a_quota_refuses_and_heals,
    a_full_tmpfs_refuses_and_heals,
    a_read_error_is_one_of_its_range_only,
    a_scrub_asks_the_disk_and_not_the_cache,
    a_close_that_fails_costs_nothing,
    a_store_that_does_not_sync_is_caught,
)
NAMES = [f"{scenario.__name__}[{kind}]" for scenario in SCENARIOS for kind in KINDS]
POWER_NAMES = [f"power_fails[{kind}]" for kind in KINDS]


def _run(name: str, run: Callable[[FuseDisk], Awaitable[None]]) -> None:
    """One scenario on a file system of its own."""
    problem = None
    with tempfile.TemporaryDirectory() as directory:
        fuse = FuseDisk(directory)
        try:
            asyncio.run(asyncio.wait_for(run(fuse), 120))
        except BaseException:  # noqa: BLE001 (whatever it is, the test beside shows it)
            problem = traceback.format_exc()
        finally:
            fuse.close()
    print(json.dumps([name, problem]), flush=True)


async def _lives(fuse: FuseDisk, kind: str, first: int, seeds: int, failures: int) -> None:
    for seed in range(first, first + seeds):
        try:
            await power_fails(fuse, kind, seed, failures)
        except BaseException as error:
            error.add_note(f"seed {seed}, {kind}")
            raise


def main() -> None:
    first, seeds, failures = map(int, sys.argv[1:4])
    handler = logging.Handler()
    handler.emit = lambda record: _logged.append(record.getMessage())  # type: ignore[method-assign]
    logging.basicConfig(level=logging.ERROR, handlers=[handler])
    enter_namespace()
    for kind in KINDS:
        _run(f"power_fails[{kind}]", lambda fuse, kind=kind: _lives(fuse, kind, first, seeds, failures))
    if "--power-only" in sys.argv:
        return
    for scenario in SCENARIOS:
        for kind in KINDS:
            _run(
                f"{scenario.__name__}[{kind}]",
                lambda fuse, scenario=scenario, kind=kind: scenario(fuse, kind),
            )


if __name__ == "__main__":
    main()
