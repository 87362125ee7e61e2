"""Records of stored frames into a file: Arrow, Parquet or NDJSON.

Law of this file: whole batches at a time, with a column `offset` in front, since a damaged log may have gaps.
A named file appears only when it is complete.
"""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from typing import IO, Any, Self

import pyarrow as pa

from shoal.agent.cli.terminal.output import CliError, UsageError
from shoal.format.batch import DEFAULT_SCHEMA, TIMER_SCHEMA, BatchError, Kind, to_record_batch
from shoal.format.record_text import render_ndjson
from shoal.segment_store.check.examination import StoredFrame

OFFSET_FIELD = pa.field("offset", pa.int64())
PARQUET_GROUP_RECORDS = 1_000_000  # rows gathered into one row group, bounded by bytes too
PARQUET_GROUP_BYTES = 64 << 20
PARTIAL_SUFFIX = ".partial"


class ExportFormat(StrEnum):
    """The form of the file."""

    ARROW = "arrow"
    PARQUET = "parquet"
    NDJSON = "ndjson"


class Exporter:
    """Takes frames in order; `records` says how many records were written."""

    def __init__(self, form: ExportFormat, to: str | None) -> None:
        """Raises UsageError: binary to a terminal, Parquet to a pipe, a file that exists."""
        self.records = 0
        self._form = form
        self._to = to
        self._columns: pa.Schema | None = None
        """Of the log's records, which the first batch shows."""
        self._writer: Any = None
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = 0
        if to is not None and os.path.exists(to):
            raise UsageError(f"{to} exists", "give another --to FILE")
        if to is None and form is ExportFormat.PARQUET:
            raise UsageError("a Parquet file cannot be a stream", "give --to FILE")
        if to is None and form is ExportFormat.ARROW and sys.stdout.isatty():
            raise UsageError("an Arrow stream is binary", "give --to FILE, or a pipe")

    def __enter__(self) -> Self:
        if self._to is None:
            self._sink: IO[bytes] = sys.stdout.buffer
        else:
            self._sink = open(self._to + PARTIAL_SUFFIX, "wb")
        return self

    def _begin(self, columns: pa.Schema) -> None:
        self._columns = columns
        self._schema = pa.schema([OFFSET_FIELD, *columns])
        if self._form is ExportFormat.ARROW:
            self._writer = pa.ipc.new_stream(self._sink, self._schema)
        elif self._form is ExportFormat.PARQUET:
            import pyarrow.parquet as pq

            self._writer = pq.ParquetWriter(self._sink, self._schema, compression="zstd")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            if self._columns is None:
                self._begin(DEFAULT_SCHEMA)
            self._write_group()
            if self._writer is not None:
                self._writer.close()
            self._sink.flush()
        if self._to is None:
            return
        self._sink.close()
        if kind is None:
            os.replace(self._to + PARTIAL_SUFFIX, self._to)
        else:
            os.unlink(self._to + PARTIAL_SUFFIX)

    def take(self, frame: StoredFrame) -> None:
        """Write one frame's records; a frame without records is skipped."""
        if frame.stamp.kind is not Kind.DATA or not frame.stamp.record_count:
            return
        try:
            if self._columns is None:
                try:
                    to_record_batch(frame.data, TIMER_SCHEMA)
                except BatchError:  # a log's batches have too few fields for these columns
                    self._begin(DEFAULT_SCHEMA)
                else:
                    self._begin(TIMER_SCHEMA)
            batch = to_record_batch(frame.data, self._columns)
        except BatchError as error:
            raise CliError(f"entry {frame.stamp.index} verifies but is no record batch: {error}") from error
        base = frame.entry.base_offset
        self.records += batch.num_rows
        if self._form is ExportFormat.NDJSON:
            self._sink.write(render_ndjson(batch, base))
            return
        offsets = pa.arange(base, base + batch.num_rows)
        batch = pa.RecordBatch.from_arrays([offsets, *batch.columns], schema=self._schema)
        if self._form is ExportFormat.ARROW:
            self._writer.write_batch(batch)
            return
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        self._waiting_rows += batch.num_rows
        if self._waiting_rows >= PARQUET_GROUP_RECORDS or self._waiting_bytes >= PARQUET_GROUP_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        if self._waiting:
            table = pa.Table.from_batches(self._waiting, self._schema)
            self._writer.write_table(table, row_group_size=PARQUET_GROUP_RECORDS)
            self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0
