"""The segment store by itself, each number beside its floor of the same run.

Law of this file: floors write and read the same bytes on files in the same state, preallocated in the same
steps, through the plainest calls there are. Everything read here is in the page cache: the store, not the
disk, is what is measured then.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import pathlib
import secrets
import shutil
import statistics
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import partial
from typing import Any

import crc32c
import liburing as uring
import pyarrow as pa
from row import Row

from shoal.format.batch import (
    DEFAULT_SCHEMA,
    Frame,
    LogIdentity,
    LogIndex,
    Message,
    Offset,
    Term,
    message_from_batch,
    stamp_message,
)
from shoal.segment_store import Disk, LogConfig, PartitionLog, open_disk

IDENTITY = LogIdentity(b"b" * 16, b"t" * 16, 0)
MIB = 2**20
APPENDS = 48  # of 1 MiB, in one segment
SMALL_APPENDS = 600
PARTITIONS = 6
SCAN_BYTES = 8 * MIB  # a fetch
RANDOM_READS = 2000
RECOVERY_BYTES = 1024 * MIB
RECOVERY_BATCH_BYTES = 128 * 1024
ALLOCATION_STEP_BYTES = 8 * MIB
LAMINAR_RECORDS = 10_000
LAMINAR_RECORD_BYTES = 1_120
LAMINAR_BATCHES = (1, 100)
LAMINARMQ_APPENDS = 159_000.0  # a second: published single-run times, on its author's laptop
LAMINARMQ_READS = 115_000.0
ONE_SEGMENT = LogConfig(segment_bytes=4096 * MIB)

Alternate = Callable[[Callable[[], float], Callable[[], float]], tuple[float, float]]


def message(records: int, record_bytes: int) -> Message:
    """A batch of random values."""
    columns = [
        pa.array([1_000_000] * records, pa.timestamp("us", tz="UTC")),
        pa.nulls(records, pa.binary()),
        pa.array([secrets.token_bytes(record_bytes) for _ in range(records)], pa.binary()),
        pa.nulls(records, DEFAULT_SCHEMA.field(3).type),
    ]
    return message_from_batch(pa.RecordBatch.from_arrays(columns, schema=DEFAULT_SCHEMA))


def chain(batch: Message, count: int) -> list[Frame]:
    """The first frames of a log, made beforehand: their maker's time is not the store's."""
    return [
        stamp_message(
            batch,
            IDENTITY,
            base_offset=Offset(number * batch.record_count),
            term=Term(1),
            previous_term=Term(min(number, 1)),
            index=LogIndex(number + 1),
            append_time_us=1,
        )
        for number in range(count)
    ]


def stamped(log: PartitionLog, batch: Message) -> Frame:
    return stamp_message(
        batch,
        IDENTITY,
        base_offset=log.end_offset,
        term=Term(1),
        previous_term=log.last_term,
        index=LogIndex(log.last_index + 1),
        append_time_us=log.next_append_time_us(1),
    )


class StoreBench:
    """Measurements in a directory of their own; each leaves nothing behind but what `fill` keeps."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.directory = directory

    @contextlib.asynccontextmanager
    async def log(
        self, config: LogConfig, name: str | None = None, shared: Disk | None = None
    ) -> AsyncIterator[PartitionLog]:
        """A log on the best disk there is, or on a shared one; removed afterwards unless it has a name."""
        disk = shared or await open_disk()
        path = self.directory / (name or secrets.token_hex(4))
        log = await PartitionLog.open(disk, str(path), IDENTITY, DEFAULT_SCHEMA, config)
        try:
            yield log
        finally:
            await log.close()
            if shared is None:
                await disk.close()
            if name is None:
                shutil.rmtree(path)

    async def appends(self, config: LogConfig, frames: list[Frame]) -> float:
        """Bytes a second, one append in flight; the first makes the segment and is not counted."""
        async with self.log(config) as log:
            await log.append(frames[:1])
            started = time.perf_counter()
            for frame in frames[1:]:
                await log.append([frame])
            return _length(frames[1:]) / (time.perf_counter() - started)

    async def syncs(self, partitions: int, frames: list[Frame]) -> float:
        """Synced appends a second over so many partitions of one agent, one in flight in each."""
        async with contextlib.AsyncExitStack() as stack:
            disk = await open_disk()
            stack.push_async_callback(disk.close)
            opened = [self.log(ONE_SEGMENT, shared=disk) for _ in range(partitions)]
            logs = [await stack.enter_async_context(log) for log in opened]
            share = frames[1 : 1 + SMALL_APPENDS // partitions]

            async def work(log: PartitionLog) -> None:
                for frame in share:
                    await log.append([frame])

            await asyncio.gather(*(log.append(frames[:1]) for log in logs))  # makes the segments
            started = time.perf_counter()
            await asyncio.gather(*(work(log) for log in logs))
            return len(share) * partitions / (time.perf_counter() - started)

    async def fill(self, name: str, config: LogConfig, batch: Message, total_bytes: int) -> int:
        """A closed log of so many bytes; the number of its batches."""
        async with self.log(dataclasses.replace(config, fsync=False), name) as log:
            while log.size_bytes < total_bytes:
                await log.append([stamped(log, batch)])
            return log.last_index

    async def scan(self, name: str, config: LogConfig) -> float:
        """Bytes a second, verified, from the first frame to the last."""
        async with self.log(config, name) as log:
            started, size, offset = time.perf_counter(), 0, log.start_offset
            while offset < log.end_offset:
                pieces = await log.pieces(await log.find_offset(offset), log.last_index, SCAN_BYTES)
                await pieces.begin()
                while (piece := pieces.at_once() or await pieces.next()) is not None:
                    size += len(piece)
                await pieces.let_go()
                offset = pieces.next_offset
            return size / (time.perf_counter() - started)

    async def random_reads(self, name: str, config: LogConfig) -> float:
        """Microseconds for one batch by offset."""
        async with self.log(config, name) as log:
            offsets = [secrets.randbelow(log.end_offset) for _ in range(RANDOM_READS)]
            started = time.perf_counter()
            for offset in offsets:
                index = await log.find_offset(Offset(offset))
                await log.read(index, index, 1)
            return (time.perf_counter() - started) / RANDOM_READS * 1e6

    async def recovery(self, name: str, config: LogConfig) -> float:
        """Bytes a second of opening a log whose index is gone: every byte is read and verified."""
        for path in (self.directory / name).glob("*.index"):
            path.unlink()
        started = time.perf_counter()
        async with self.log(config, name) as log:
            return log.size_bytes / (time.perf_counter() - started)

    async def laminar(self, batch: int) -> tuple[float, float]:
        """Records appended and read a second, without sync, `batch` of them to an append and to a read; an
        append is stamped, checksummed and written when it returns, a read comes out of the file, verified."""
        records = message(batch, LAMINAR_RECORD_BYTES)
        config = LogConfig(fsync=False, tail_cache_bytes=0)
        count = LAMINAR_RECORDS // batch
        async with self.log(config) as log:
            started = time.perf_counter()
            for _ in range(count):
                await log.append([stamped(log, records)])
            appended = LAMINAR_RECORDS / (time.perf_counter() - started)
            started = time.perf_counter()
            for number in range(count):
                await log.read(LogIndex(number + 1), LogIndex(number + 1), 1)
            return appended, LAMINAR_RECORDS / (time.perf_counter() - started)

    # ---- floors

    @contextlib.contextmanager
    def file(self, total_bytes: int) -> Iterator[int]:
        """A file that grows as segments do."""
        path = self.directory / f"floor-{secrets.token_hex(4)}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.posix_fallocate(fd, 0, min(ALLOCATION_STEP_BYTES, total_bytes))
            yield fd
        finally:
            os.close(fd)
            path.unlink()

    def ring_appends(self, frames: list[Frame]) -> float:
        """Bytes a second of linked write and fdatasync through a ring, waited for one by one."""
        ring, completion = uring.Ring(), uring.Cqe()
        uring.io_uring_queue_init(8, ring, 0)
        with self.file(_length(frames)) as fd:
            started, offset, allocated = time.perf_counter(), 0, ALLOCATION_STEP_BYTES
            for _, data in frames[1:]:
                while offset + len(data) > allocated:
                    os.posix_fallocate(fd, allocated, ALLOCATION_STEP_BYTES)
                    allocated += ALLOCATION_STEP_BYTES
                vector = uring.Iovec([data])
                entry = uring.io_uring_get_sqe(ring)
                uring.io_uring_prep_writev(entry, fd, vector, offset, 0)
                uring.io_uring_sqe_set_flags(entry, uring.IOSQE_IO_LINK)
                entry = uring.io_uring_get_sqe(ring)
                uring.io_uring_prep_fsync(entry, fd, uring.IORING_FSYNC_DATASYNC)
                uring.io_uring_submit(ring)
                for expected in (len(data), 0):
                    uring.io_uring_wait_cqe(ring, completion)
                    assert completion[0].res == expected
                    uring.io_uring_cq_advance(ring, 1)
                offset += len(data)
            seconds = time.perf_counter() - started
        uring.io_uring_queue_exit(ring)
        return _length(frames[1:]) / seconds

    def plain_appends(self, frames: list[Frame]) -> float:
        """Bytes a second of pwrite in a loop."""
        with self.file(_length(frames)) as fd:
            started, offset, allocated = time.perf_counter(), 0, ALLOCATION_STEP_BYTES
            for _, data in frames[1:]:
                while offset + len(data) > allocated:
                    os.posix_fallocate(fd, allocated, ALLOCATION_STEP_BYTES)
                    allocated += ALLOCATION_STEP_BYTES
                offset += os.pwrite(fd, data, offset)
            return offset / (time.perf_counter() - started)

    def plain_scan(self, name: str, *, checksum: bool = False) -> float:
        """Bytes a second of readinto, 1 MiB at a time, over all segments; with `checksum` also crc32c."""
        buffer = bytearray(MIB)
        view, size = memoryview(buffer), 0
        started = time.perf_counter()
        for path in sorted((self.directory / name).glob("*.arrows")):
            with open(path, "rb", buffering=0) as file:
                while count := file.readinto(buffer):
                    size += count
                    if checksum:
                        crc32c.crc32c(view[:count])
        return size / (time.perf_counter() - started)

    def plain_random_reads(self, name: str, length: int) -> float:
        """Microseconds for one pread of so many bytes anywhere."""
        path = min((self.directory / name).glob("*.arrows"))
        fd = os.open(path, os.O_RDONLY)
        places = [secrets.randbelow(path.stat().st_size - length) for _ in range(RANDOM_READS)]
        started = time.perf_counter()
        for place in places:
            os.pread(fd, length, place)
        microseconds = (time.perf_counter() - started) / RANDOM_READS * 1e6
        os.close(fd)
        return microseconds


def _length(frames: list[Frame]) -> int:
    return sum(len(data) for _, data in frames)


def _run(coroutine: Coroutine[Any, Any, float]) -> float:
    return asyncio.run(coroutine)


def rows(directory: pathlib.Path, alternate: Alternate) -> list[Row]:
    """All of them; `alternate` gives the medians of ours and of the floor, measured in turn."""
    bench = StoreBench(directory)
    return [
        *_append_rows(bench, alternate),
        *_read_rows(bench, alternate),
        *_recovery_rows(bench, alternate),
        *_sync_rows(bench, alternate),
        *_laminar_rows(bench, alternate),
    ]


def _rate_row(name: str, ours: float, what: str, floor: float, goal: float | None) -> Row:
    return Row(name, f"{ours / 1e9:.2f} GB/s", f"{what} {floor / 1e9:.2f} GB/s", ours / floor, goal)


def _append_rows(bench: StoreBench, alternate: Alternate) -> list[Row]:
    frames = chain(message(1, MIB), APPENDS)
    synced = alternate(lambda: _run(bench.appends(ONE_SEGMENT, frames)), lambda: bench.ring_appends(frames))
    unsynced = dataclasses.replace(ONE_SEGMENT, fsync=False, index_interval_bytes=1024 * MIB)
    plain = alternate(lambda: _run(bench.appends(unsynced, frames)), lambda: bench.plain_appends(frames))
    return [
        _rate_row("store: append 1 MiB, fdatasync each", synced[0], "raw io_uring", synced[1], 0.85),
        _rate_row("store: append 1 MiB, no sync", plain[0], "pwrite", plain[1], 0.70),
    ]


def _read_rows(bench: StoreBench, alternate: Alternate) -> list[Row]:
    config = LogConfig(tail_cache_bytes=0)
    batch = message(1000, 100)
    asyncio.run(bench.fill("reads", dataclasses.replace(config, segment_bytes=4096 * MIB), batch, 256 * MIB))
    scanned = alternate(lambda: _run(bench.scan("reads", config)), lambda: bench.plain_scan("reads"))
    small = message(10, 100)
    asyncio.run(bench.fill("small", config, small, 8 * MIB))
    length = len(small.metadata) + len(small.body) + 136
    random_ = alternate(
        lambda: _run(bench.random_reads("small", config)), lambda: bench.plain_random_reads("small", length)
    )
    for name in ("reads", "small"):
        shutil.rmtree(bench.directory / name)
    return [
        _rate_row("store: sequential read by pieces", scanned[0], "readinto", scanned[1], None),
        Row(
            f"store: random read by offset, {length} bytes",
            f"{random_[0]:.1f} us",
            f"bar: 20 us (pread {random_[1]:.1f} us)",
            random_[0] / 20,
            1.0,
            True,
        ),
    ]


def _recovery_rows(bench: StoreBench, alternate: Alternate) -> list[Row]:
    batch = message(RECOVERY_BATCH_BYTES // 1024, 1024)
    asyncio.run(bench.fill("tail", ONE_SEGMENT, batch, RECOVERY_BYTES))
    ours, floor = alternate(
        lambda: _run(bench.recovery("tail", ONE_SEGMENT)), lambda: bench.plain_scan("tail", checksum=True)
    )
    shutil.rmtree(bench.directory / "tail")
    name = "store: recovery of 1 GiB of 128 KiB batches"
    said = f"bar: 1 GB/s (readinto + crc {floor / 1e9:.2f} GB/s)"
    return [Row(name, f"{ours / 1e9:.2f} GB/s", said, ours / 1e9, 1.0)]


def _sync_rows(bench: StoreBench, alternate: Alternate) -> list[Row]:
    frames = chain(message(1, 4096), SMALL_APPENDS + 1)
    ours, floor = alternate(
        lambda: _run(bench.syncs(PARTITIONS, frames)), lambda: _run(bench.syncs(1, frames))
    )
    name = f"store: synced 4 KiB appends over {PARTITIONS} partitions"
    return [Row(name, f"{ours:,.0f}/s", f"one partition {floor:,.0f}/s", ours / floor, 2.0)]


def _laminar_rows(bench: StoreBench, alternate: Alternate) -> list[Row]:
    rows: list[Row] = []
    for batch in LAMINAR_BATCHES:
        reads: list[float] = []
        ours, published = alternate(partial(_laminar, bench, batch, reads), lambda: LAMINARMQ_APPENDS)
        read = statistics.median(reads)
        shape = f"{LAMINAR_RECORDS:,} x {LAMINAR_RECORD_BYTES:,} bytes, {batch} at a time"
        said = f"laminarmq {published:,.0f}/s"
        rows.append(Row(f"store: append {shape}", f"{ours:,.0f}/s", said, ours / published, None))
        said = f"laminarmq {LAMINARMQ_READS:,.0f}/s"
        rows.append(Row(f"store: read {shape}", f"{read:,.0f}/s", said, read / LAMINARMQ_READS, None))
    return rows


def _laminar(bench: StoreBench, batch: int, reads: list[float]) -> float:
    appended, read = asyncio.run(bench.laminar(batch))
    reads.append(read)
    return appended
