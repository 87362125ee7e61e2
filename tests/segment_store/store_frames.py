"""Frames for the store's tests, and a log's neighbours: small, deterministic."""

from functools import lru_cache

import pyarrow as pa
from memory_disk import MemoryDisk

from shoal.format.batch import (
    DEFAULT_SCHEMA,
    Flag,
    Frame,
    Kind,
    LogIdentity,
    LogIndex,
    Message,
    Term,
    control_frame,
    message_from_batch,
    stamp_message,
)
from shoal.segment_store import (
    Disk,
    LogConfig,
    PartitionLog,
)
from shoal.segment_store.disk.disk import Buffer
from shoal.segment_store.log.shared import SharedFiles

KIB = 1024
LONG_READS = LogConfig(tail_cache_bytes=0, segment_bytes=1024 * KIB, max_write_bytes=256 * KIB)
EVERYTHING = 2**30

IDENTITY = LogIdentity(b"c" * 16, b"t" * 16, 3)
SMALL = LogConfig(
    segment_bytes=64 * 1024,
    first_allocation_bytes=4096,
    max_allocation_step_bytes=16 * 1024,
    tail_cache_bytes=0,
    read_chunk_bytes=4096,
    max_write_bytes=32 * 1024,
    index_interval_ms=1,
    max_open_files=1,
)


@lru_cache(maxsize=64)
def message(rows: int, value_bytes: int = 10, fill: int = 0, time_us: int = 1_000_000) -> Message:
    """A batch of equal records."""
    columns = [
        pa.array([time_us] * rows, pa.timestamp("us", tz="UTC")),
        pa.array([b"k"] * rows, pa.binary()),
        pa.array([bytes([fill]) * value_bytes] * rows, pa.binary()),
        pa.array([None] * rows, DEFAULT_SCHEMA.field(3).type),
    ]
    return message_from_batch(pa.RecordBatch.from_arrays(columns, schema=DEFAULT_SCHEMA))


def next_frame(
    log: PartitionLog,
    rows: int = 1,
    *,
    term: int | None = None,
    value_bytes: int = 10,
    fill: int = 0,
    first_of_segment: bool = False,
    append_time_us: int = 5,
    time_us: int = 1_000_000,
    identity: LogIdentity = IDENTITY,
) -> Frame:
    """The frame that continues the log as planned; a control frame when it has no rows."""
    flags = Flag.FIRST_OF_SEGMENT if first_of_segment else Flag.NONE
    common = {
        "flags": flags,
        "base_offset": log.end_offset,
        "term": Term(term if term is not None else max(1, log.last_term)),
        "previous_term": log.last_term,
        "index": LogIndex(log.last_index + 1),
        "append_time_us": log.next_append_time_us(append_time_us),
    }
    if rows == 0:
        return control_frame(DEFAULT_SCHEMA, identity, kind=Kind.NOOP, control=bytes([fill]), **common)
    return stamp_message(message(rows, value_bytes, fill, time_us), identity, **common)


async def open_log(
    disk: Disk,
    directory: str = "log",
    config: LogConfig = SMALL,
    identity: LogIdentity = IDENTITY,
    shared: SharedFiles | None = None,
) -> PartitionLog:
    return await PartitionLog.open(disk, directory, identity, DEFAULT_SCHEMA, config, shared=shared)


async def all_frames(log: PartitionLog) -> list[Frame]:
    """Every frame, read from the log in bounded pieces."""
    found: list[Frame] = []
    index, last = log.first_index, log.last_index
    while index <= last:
        found += await log.read(index, last, log._files.config.read_chunk_bytes)
        index = LogIndex(found[-1].stamp.index + 1)
    return found


async def contents(log: PartitionLog) -> list[bytes]:
    """Every frame's bytes, read from the log."""
    return [frame.data for frame in await all_frames(log)]


async def read_whole(
    log: PartitionLog, first: LogIndex, last: LogIndex, max_bytes: int
) -> tuple[list[Buffer], LogIndex]:
    """The frames' bytes, read as a short fetch reads them, and the index of the last."""
    frames = await (await log.pieces(first, last, max_bytes)).whole()
    return frames, LogIndex(first + len(frames) - 1)


async def filled(
    disk: Disk, directory: str, sizes: list[int], config: LogConfig = LONG_READS
) -> tuple[PartitionLog, list[Frame]]:
    """A log with a frame for each size in values' bytes (0: a control frame), rolled as a leader would."""
    log = await open_log(disk, directory, config)
    frames = []
    for number, size in enumerate(sizes):
        rolls = log.should_roll(size + 1024)
        rows = 0 if size == 0 else 1 + number % 3
        value_bytes = size // max(rows, 1)
        frames.append(
            next_frame(log, rows, value_bytes=value_bytes, fill=number % 251, first_of_segment=rolls)
        )
        await log.append([frames[-1]])
    return log, frames


async def flip(disk: Disk, log: PartitionLog, index: int, at: int = 400) -> None:
    """One bit of one entry."""
    entry = log.entry(LogIndex(index))
    path, position = log.segment_of(LogIndex(index)).path, entry.position + at
    if isinstance(disk, MemoryDisk):
        disk.damage(path, position)
        return
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))
