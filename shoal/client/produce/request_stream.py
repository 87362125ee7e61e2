"""Batches of one request as the Arrow stream that is sent.

Pure. Which batches belong together batcher.py decides.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from shoal.format.arrow_stream import with_due_times
from shoal.format.batch import DEFAULT_SCHEMA


def encode_stream(batches: Sequence[pa.RecordBatch], compression: str | None = None) -> memoryview:
    """The batches as one Arrow IPC stream of a single batch: one request, one sequence, one log entry."""
    batch = joined(batches)
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return memoryview(sink.getvalue())


def joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """All in one. Those without due times are due at once, beside others that have some."""
    if len(batches) == 1:
        return batches[0]
    if any(batch.num_columns > len(DEFAULT_SCHEMA) for batch in batches):
        batches = [
            batch if batch.num_columns > len(DEFAULT_SCHEMA) else with_due_times(batch) for batch in batches
        ]
    return pa.concat_batches(list(batches))
