"""Sealed segments as Arrow's readers see them: pyarrow, and polars, which shares no code with it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pytest
from store_frames import SMALL, next_frame, open_log

from shoal.format.batch import (
    DEFAULT_SCHEMA,
    Frame,
    LogIndex,
    ProducerStamp,
    StreamDecoder,
    Term,
    stamp_message,
)
from shoal.format.producer_table import GatheredRange, encode_producer_table
from shoal.segment_store import PartitionLog, open_disk

ROWS = 60
BATCHES = 6


def _records(first: int) -> pa.RecordBatch:
    """With nulls, headers and values of many lengths."""
    numbers = range(first, first + ROWS)
    columns = [
        pa.array([1_700_000_000_000_000 + number for number in numbers], pa.timestamp("us", tz="UTC")),
        pa.array([None if number % 3 else b"key %d" % number for number in numbers], pa.binary()),
        pa.array([None if number % 5 == 4 else b"v" * (number % 40) for number in numbers], pa.binary()),
        pa.array(
            [[{"key": "number", "value": b"%d" % number}] * (number % 3) for number in numbers],
            DEFAULT_SCHEMA.field(3).type,
        ),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=DEFAULT_SCHEMA)


def _data_frame(log: PartitionLog, compression: str | None) -> Frame:
    """As a producer sent it, gathered from two requests."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, DEFAULT_SCHEMA, options=options) as writer:
        writer.write_batch(_records(log.end_offset))
    decoder = StreamDecoder(DEFAULT_SCHEMA)
    (message,) = decoder.feed(sink.getvalue().to_pybytes())
    ranges = [GatheredRange(ProducerStamp(b"p" * 16, 0, 7), 0, 10)]
    return stamp_message(
        message,
        log._files.identity,
        base_offset=log.end_offset,
        term=Term(1),
        previous_term=log.last_term,
        index=LogIndex(log.last_index + 1),
        append_time_us=log.next_append_time_us(5),
        control=encode_producer_table(ranges),
    )


def _by_pyarrow(path: str) -> list[dict[str, Any]]:
    with pa.memory_map(path) as file:
        found: list[dict[str, Any]] = pa.ipc.open_stream(file).read_all().to_pylist()
    return found


def _by_polars(path: str) -> list[dict[str, Any]]:
    return polars.read_ipc_stream(path).to_dicts()


@pytest.mark.parametrize("read", [_by_pyarrow, _by_polars])
async def test_a_sealed_segment_opens_as_it_lies(
    read: Callable[[str], list[dict[str, Any]]], tmp_path: Path
) -> None:
    """Every record and nothing else: stamps, control frames, producer tables and the tail record are passed
    over, bodies may be compressed, and what the file held in an earlier life lies behind its end."""
    disk = await open_disk("threads")
    log = await open_log(disk, str(tmp_path), SMALL)
    for _ in range(3):
        await log.append([next_frame(log, value_bytes=50_000, first_of_segment=log.last_index > 0)])
    await log.trim(log.last_index)
    await log.append([next_frame(log, 0, first_of_segment=True)])
    assert log._writer._spares.recycled == 1
    segment, first = log._segments[-1].path, log.end_offset
    for number in range(BATCHES):
        await log.append([_data_frame(log, (None, "lz4", "zstd")[number % 3])])
        await log.append([next_frame(log, 0)])
    end = log.end_offset
    await log.append([next_frame(log, first_of_segment=True)])
    assert log.spans()[-2].size_bytes < 45_000
    await log.close()
    await disk.close()
    expected = [row for offset in range(first, end, ROWS) for row in _records(offset).to_pylist()]
    assert len(expected) == BATCHES * ROWS
    assert read(segment) == expected
