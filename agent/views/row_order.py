"""How the rows of a view are sorted, and which of them it keeps: one object per kind.

Law of this file: pure. Record batches come in and go out; pyarrow does what is done to each row, and Python
touches one row a chunk. The newer of two rows stands later in the log.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc

from shoal.agent.partition.plan import ViewKind
from shoal.agent.views.run_format import CHUNK_BYTES, CHUNK_ROWS, RunChunk, RunFormatError, place_key
from shoal.format.batch import DELIVER_AT_COLUMN, Stamp

OFFSET_COLUMN: Final = "offset"
APPEND_TIME_COLUMN: Final = "append_time"
SLICE_ROWS: Final = 64 * 2**10
"""Rows that are put into their order at once: what is sorted lies in memory whole, its sorted copy does
not."""

_ARROW_FAULTS: Final = (pa.ArrowException, EOFError, OSError, ValueError)
"""Of bytes that are not of the columns that were asked for."""
_OFFSET: Final = pa.field(OFFSET_COLUMN, pa.int64(), nullable=False)
_APPEND_TIME: Final = pa.field(APPEND_TIME_COLUMN, pa.timestamp("us", tz="UTC"), nullable=False)


class RowOrder(ABC):
    """One per view. `schema`: the columns of its runs."""

    kind: ViewKind
    replaces_rows: ClassVar[bool] = False
    """Whether a newer row may take the place of an older one."""
    chunk_bytes: ClassVar[int] = CHUNK_BYTES
    """Of one chunk at most, but for a single row that is larger."""

    def __init__(self, topic_schema: pa.Schema) -> None:
        self.topic_schema = topic_schema
        self.schema = pa.schema([_OFFSET, _APPEND_TIME, *topic_schema])
        self.no_rows = one_batch((), self.schema)
        self._without_nulls = tuple(number for number, field in enumerate(self.schema) if not field.nullable)

    def rows_of(self, batch: pa.RecordBatch, stamp: Stamp) -> pa.RecordBatch:
        """The records of one entry as rows: with their offsets and their append time."""
        count, first = batch.num_rows, stamp.base_offset
        offsets = offsets_from(first, count)
        times = pa.repeat(pa.scalar(stamp.append_time_us, _APPEND_TIME.type), count)
        return pa.RecordBatch.from_arrays([offsets, times, *batch.columns], schema=self.schema)

    @abstractmethod
    def in_order(self, rows: pa.RecordBatch) -> pa.Array:
        """Numbers of rows, as the view has them: sorted, without those that it does not keep. `rows`: older
        ones first, as they stand in the log, or in runs that are merged."""

    @abstractmethod
    def key_at(self, rows: pa.RecordBatch, number: int) -> bytes:
        """The sort key of one row."""

    def check_schema(self, data: bytes) -> None:
        """Of the head of a file: the columns of this view's runs. Raises RunFormatError."""
        try:
            schema = pa.ipc.read_schema(pa.py_buffer(data))
        except _ARROW_FAULTS as error:
            raise RunFormatError(f"the schema cannot be read: {error}") from error
        if not schema.equals(self.schema):
            raise RunFormatError("the run has other columns than its topic")

    def read_chunk(self, data: memoryview, chunk: RunChunk, *, is_known: bool = False) -> pa.RecordBatch:
        """The rows in the bytes of a chunk, sharing their memory. Raises RunFormatError where they are not
        what the index says: a checksum tells nothing of what was written in the first place. `is_known`:
        bytes with this checksum were looked at before, which takes ten times as long as to decode them."""
        try:
            rows = pa.ipc.read_record_batch(pa.py_buffer(data), self.schema)
            if is_known:
                return rows
            rows.validate(full=True)
            fits = (
                not any(rows.column(number).null_count for number in self._without_nulls)
                and rows.num_rows == chunk.rows
                and pc.min(rows.column(0)).as_py() >= 0
                and pc.min(rows.column(1)).value >= 0
                and self.key_at(rows, 0) == chunk.first_key
            )
        except _ARROW_FAULTS as error:
            raise RunFormatError(f"a chunk holds no rows of its topic: {error}") from error
        if not fits:
            raise RunFormatError("a chunk holds other rows than its index says")
        return rows

    def prints_of(self, chunk: pa.RecordBatch) -> pa.Array | None:
        """The part of a filter that is this chunk's; None: runs have no filters."""
        return None

    def filter_of(self, prints: list[pa.Array]) -> bytes:
        """The filter of a run whose chunks have these parts; empty: none."""
        return b""

    def kept(self, rows: pa.RecordBatch, *, is_oldest: bool, expired_us: int) -> pa.RecordBatch:
        """The sorted rows that a merge writes. `is_oldest`: no run is older than these. `expired_us`: rows
        whose time lies before are past their retention."""
        return rows

    def position_of(self, rows: pa.RecordBatch, key: bytes) -> int:
        """The first of the sorted rows that does not lie before the key; their count if all do."""
        return bisect_left(range(rows.num_rows), key, key=lambda number: self.key_at(rows, number))

    def sorted_slices(self, batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """All rows of the batches, of which the older ones come first, in order and in bounded slices."""
        rows = one_batch(batches, self.schema)
        numbers = self.in_order(rows)
        begins = range(0, len(numbers), SLICE_ROWS)
        return (rows.take(numbers.slice(first, SLICE_ROWS)) for first in begins)


class TimerOrder(RowOrder):
    """By due time, then by offset. A record is due at `deliver_at`, but not before it was appended."""

    kind = ViewKind.TIMER

    def __init__(self, topic_schema: pa.Schema) -> None:
        super().__init__(topic_schema)
        self._append_time = self.schema.get_field_index(APPEND_TIME_COLUMN)
        self._deliver_at = self.schema.get_field_index(DELIVER_AT_COLUMN)
        assert self._deliver_at >= 0, "a topic of kind timer has a column deliver_at"

    def in_order(self, rows: pa.RecordBatch) -> pa.Array:
        """See RowOrder. Rows of one due time stay as they stand: by offset."""
        return pc.array_sort_indices(self.dues(rows))

    def dues(self, rows: pa.RecordBatch) -> pa.Array:
        """When each row is due, in microseconds."""
        delivered = rows.column(self._deliver_at).cast(pa.int64())
        return pc.max_element_wise(delivered, rows.column(self._append_time).cast(pa.int64()))

    def key_at(self, rows: pa.RecordBatch, number: int) -> bytes:
        """See RowOrder."""
        at = rows.column(self._deliver_at)[number].value
        appended = rows.column(self._append_time)[number].value
        return place_key(appended if at is None else max(at, appended), rows.column(0)[number].as_py())

    def kept(self, rows: pa.RecordBatch, *, is_oldest: bool, expired_us: int) -> pa.RecordBatch:
        """See RowOrder: a row goes once it was due and its retention has passed since."""
        return rows.slice(self.position_of(rows, place_key(max(expired_us, 0), 0)))


def offsets_from(first: int, count: int) -> pa.Array:
    """first, first + 1 ... first + count - 1."""
    return pc.add(_numbers(max(count - 1, 1).bit_length()).slice(0, count), pa.scalar(first, pa.int64()))


@lru_cache(maxsize=20)  # sizes up to those of the largest batch; 16 MiB in all
def _numbers(bits: int) -> pa.Array:
    return pa.array(range(1 << bits), pa.int64())


def due_times(wished: Sequence[pa.Array], append_times_us: Sequence[int]) -> pa.Array:
    """When each record of some entries of a timer topic is due, in microseconds. `wished`: of each entry its
    column deliver_at; at least one entry."""
    joined = pa.concat_arrays(wished).cast(pa.int64())
    if not joined.null_count and (not len(joined) or pc.min(joined).as_py() >= max(append_times_us)):
        return joined
    appended = [
        pa.repeat(pa.scalar(time_us, pa.int64()), len(column))
        for time_us, column in zip(append_times_us, wished, strict=True)
    ]
    return pc.max_element_wise(joined, pa.concat_arrays(appended))


def one_batch(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """All rows in one batch."""
    if len(batches) > 1:
        batches = [batch for batch in batches if batch.num_rows] or batches[:1]
    if len(batches) == 1:
        return batches[0]
    return pa.concat_batches(batches) if batches else pa.RecordBatch.from_pylist([], schema=schema)


def chunks_of(rows: pa.RecordBatch, most_bytes: int = CHUNK_BYTES) -> Iterator[pa.RecordBatch]:
    """The rows cut into chunks of at most CHUNK_ROWS and `most_bytes`; a larger row is one of its own."""
    begin = 0
    while begin < rows.num_rows:
        chunk = rows.slice(begin, CHUNK_ROWS)
        while chunk.num_rows > 1 and (size := chunk.nbytes) > most_bytes:
            chunk = chunk.slice(0, max(min(chunk.num_rows * most_bytes // size, chunk.num_rows - 1), 1))
        yield chunk
        begin += chunk.num_rows
