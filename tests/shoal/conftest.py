"""What the tests of the batch format share: a log, a batch, and the Arrow streams a client would send."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from shoal.format.batch import (
    DEFAULT_SCHEMA,
    Frame,
    LogIdentity,
    LogIndex,
    Offset,
    ProducerStamp,
    Term,
    message_from_batch,
    stamp_message,
)


@pytest.fixture
def identity() -> LogIdentity:
    """The log that frames are stamped for."""
    return LogIdentity(b"c" * 16, b"t" * 16, 3)


@pytest.fixture
def make_batch() -> Callable[..., pa.RecordBatch]:
    """A batch of DEFAULT_SCHEMA with `rows` records, some without key, value or headers."""

    def make(
        rows: int, *, value: bytes = b"value", first_time_us: int = 1_700_000_000_000_000
    ) -> pa.RecordBatch:
        columns: list[list[Any]] = [
            [first_time_us + row for row in range(rows)],
            [None if row % 5 == 4 else b"key-%d" % (row % 7) for row in range(rows)],
            [None if row % 11 == 10 else value + b"%d" % row for row in range(rows)],
            [None if row % 3 else [("trace", b"\xff%d" % row), ("empty", None)] for row in range(rows)],
        ]
        arrays = [pa.array(values, f.type) for values, f in zip(columns, DEFAULT_SCHEMA, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=DEFAULT_SCHEMA)

    return make


@pytest.fixture
def make_stream() -> Callable[..., bytes]:
    """An IPC stream as pyarrow's writer makes it; options as IpcWriteOptions."""

    def make(*batches: pa.RecordBatch, schema: pa.Schema | None = None, **options: Any) -> bytes:
        sink = pa.BufferOutputStream()
        schema = batches[0].schema if schema is None else schema
        with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
            for batch in batches:
                writer.write_batch(batch)
        encoded: bytes = sink.getvalue().to_pybytes()
        return encoded

    return make


@pytest.fixture
def make_frame(identity: LogIdentity, make_batch: Callable[..., pa.RecordBatch]) -> Callable[..., Frame]:
    """A data frame of `rows` records, with a producer and a control payload."""

    def make(rows: int = 3, **changes: Any) -> Frame:
        fields: dict[str, Any] = {
            "base_offset": Offset(40),
            "term": Term(7),
            "previous_term": Term(6),
            "index": LogIndex(12),
            "append_time_us": 1_700_000_000_000_999,
            "producer": ProducerStamp(b"p" * 16, 3, 2**40),
            "control": b"thirteen byte",
        }
        return stamp_message(message_from_batch(make_batch(rows)), identity, **{**fields, **changes})

    return make
