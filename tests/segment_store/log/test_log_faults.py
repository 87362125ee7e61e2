"""Faults of the disk around the log: reads that fail, an index that cannot be written, a queue that is
full, io_uring forbidden by a real seccomp filter."""

import asyncio
import errno
import random
import subprocess
import sys

import pytest
from memory_disk import Fault, MemoryDisk
from store_frames import contents, next_frame, open_log
from waiting import PATIENCE_S

from shoal.format.batch import LogIndex
from shoal.segment_store import Damaged, DiskFailed, DiskFull, LogConfig, Overloaded
from shoal.segment_store.log import log as log_module


async def test_a_read_error_concerns_its_range_only() -> None:
    """EIO is damage of what was asked for, named by file and position; the next read may succeed."""
    disk = MemoryDisk()
    log = await open_log(disk)
    frames = [next_frame(log)]
    await log.append(frames)
    await log.append([next_frame(log)])
    disk.faults.append(Fault("read", errno.EIO, ".arrows"))
    with pytest.raises(Damaged, match="Input/output error") as caught:
        await log.read(1, 1, 100)
    assert caught.value.position == log.entry(LogIndex(1)).position
    assert await log.read(1, 1, 100) == frames
    await log.append([next_frame(log)])
    await log.close()


async def test_a_file_that_became_short_is_damage() -> None:
    """Bytes that the index knows and the file no longer has."""
    disk = MemoryDisk()
    log = await open_log(disk)
    for _ in range(3):
        await log.append([next_frame(log)])
    cut = log.entry(LogIndex(2)).position + 10
    await log.close()
    inode = disk._names[f"log/{1:020d}-{0:020d}.arrows"]
    del inode.content[cut:]
    log = await open_log(disk)
    assert log.last_index == 3
    assert [damage.first_index for damage in await log.verify()] == [2, 3]
    assert len(await log.read(1, 3, 2**20)) == 1
    await log.close()


async def test_an_index_that_cannot_be_written_costs_nothing() -> None:
    """No space for it: a warning, appends go on, and the next interval tries again."""
    disk = MemoryDisk()
    log = await open_log(disk)
    disk.faults.append(Fault("write", errno.ENOSPC, ".index", times=2))
    async with asyncio.timeout(PATIENCE_S):
        while disk.faults[0].times > 0:
            await log.append([next_frame(log)])
            await asyncio.sleep(0.001)
    before = await contents(log)
    await log.close()
    assert f"{1:020d}-{0:020d}.index" in await disk.list("log")
    log = await open_log(disk)
    assert await contents(log) == before
    await log.close()


async def test_a_full_disk_does_not_keep_a_log_from_opening() -> None:
    """Its index cannot be completed; everything is readable, and appends say why they are refused."""
    disk = MemoryDisk()
    log = await open_log(disk)
    for _ in range(4):
        await log.append([next_frame(log)])
    before = await contents(log)
    await log.close()
    await disk.unlink(f"log/{1:020d}-{0:020d}.index")
    disk.capacity_bytes = disk.used_bytes()
    log = await open_log(disk)
    assert await contents(log) == before
    with pytest.raises(DiskFull):
        await log.append([next_frame(log, value_bytes=30_000)])
    disk.capacity_bytes = 2**30
    await log.append([next_frame(log, value_bytes=30_000)])
    await log.close()


async def test_a_disk_that_fails_during_opening() -> None:
    """The store's own errors, also for what the operating system says."""
    disk = MemoryDisk()
    log = await open_log(disk)
    await log.append([next_frame(log)])
    await log.close()
    disk.faults.append(Fault("read", errno.EIO, ".index"))
    with pytest.raises(DiskFailed):
        await open_log(disk)
    log = await open_log(disk)
    assert log.last_index == 1
    await log.close()


async def test_a_failed_sync_of_the_index_is_fatal() -> None:
    """The disk has lied once: this log acknowledges nothing more, and what it had acknowledged is there."""
    disk = MemoryDisk()
    log = await open_log(disk)
    disk.faults.append(Fault("sync", errno.EIO, ".index"))
    refusal: DiskFailed | None = None
    for _ in range(1000):
        try:
            await log.append([next_frame(log)])
        except DiskFailed as error:
            refusal = error
            break
        await asyncio.sleep(0.001)
    assert refusal is not None
    promised = log.last_index
    await log.close()
    disk.crash(random.Random(1))
    log = await open_log(disk)
    assert log.last_index >= promised
    await log.close()


async def test_the_queue_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """More bytes than the bound waiting for the disk: Overloaded, nothing taken; later the same frame is."""
    monkeypatch.setattr(log_module, "MAX_QUEUED_BYTES", 3000)
    log = await open_log(MemoryDisk())
    accepted = [log.append([next_frame(log, value_bytes=500)]) for _ in range(2)]
    refused = next_frame(log, value_bytes=500)
    with pytest.raises(Overloaded):
        await log.append([refused])
    assert log.last_index == 2
    await asyncio.gather(*accepted)
    await log.append([refused])
    large = next_frame(log, value_bytes=5000)
    await log.append([large])  # one frame above the bound passes when nothing else waits
    assert log.last_index == 4
    await log.close()


async def test_leftovers_are_removed() -> None:
    """A temporary file and an index without its segment go; files that are not ours stay."""
    disk = MemoryDisk()
    log = await open_log(disk)
    await log.append([next_frame(log)])
    await log.close()
    for name in (f"{9:020d}-{9:020d}.index", f"{1:020d}-{0:020d}.index.tmp", "notes.txt"):
        await (await disk.open(f"log/{name}", create=True)).close()
    log = await open_log(disk)
    assert await disk.list("log") == [f"{1:020d}-{0:020d}.arrows", f"{1:020d}-{0:020d}.index", "notes.txt"]
    await log.close()


async def test_callers_that_were_cancelled_do_not_stop_the_writer() -> None:
    """A cancelled append still happens; those behind it are acknowledged."""
    disk = MemoryDisk(random.Random(2), pause_max=3)
    log = await open_log(disk, config=LogConfig(first_allocation_bytes=4096))
    tasks = [asyncio.ensure_future(log.append([next_frame(log)])) for _ in range(4)]
    await asyncio.sleep(0)
    for task in tasks[:3]:
        task.cancel()
    await tasks[3]
    assert log.synced_index == 4
    before = await contents(log)
    await log.close()
    log = await open_log(disk)
    assert await contents(log) == before
    await log.close()


_UNDER_SECCOMP = """
import asyncio, ctypes, logging, struct, sys
# Berkeley packet filter: load the system call's number; io_uring_setup (425) answers EPERM, as under Docker.
code = [(0x20, 0, 0, 0), (0x15, 0, 1, 425), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]
filters = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in code))
program = struct.pack("HxxxxxxP", len(code), ctypes.addressof(filters))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0, "no_new_privs"
assert libc.prctl(22, 2, ctypes.c_char_p(program), 0, 0) == 0, "seccomp"
from shoal.segment_store import open_disk

async def main():
    disk = await open_disk()
    file = await disk.open(sys.argv[1], create=True)
    await file.write_and_sync(0, b"through threads")
    print(disk.kind, await file.read(0, 100))
    await file.close()
    await disk.close()

logging.basicConfig(level=logging.WARNING, format="%(message)s")
asyncio.run(main())
"""


def test_threads_under_a_seccomp_filter(tmp_path: object) -> None:
    """Where the kernel refuses io_uring, the disk works on threads and says so once."""
    command = [sys.executable, "-c", _UNDER_SECCOMP, f"{tmp_path}/file"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert run.stdout == "threads b'through threads'\n", run.stderr
    assert len(run.stderr.splitlines()) == 1
    assert "io_uring is not available" in run.stderr
