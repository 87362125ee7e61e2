"""One task's rows into topics: cast, dealt to partitions, sent in chunks, which are stored once also when the
task is repeated.

No Spark here; standard library and pyarrow, in Spark's Python workers. No loop touches a record.

Why no record is stored twice: a producer is one write (of a stream: the query and, as the producer's epoch,
the micro-batch). Each task of it has a lane of sequences: its chunks for one partition, numbered from 0.
Chunk s+1 is sent only after s was acknowledged. Agents remember all sequences of the write, so a repeated
task learns which chunks are stored; ten thousand tasks are one producer. The epoch fences an older
micro-batch that still runs somewhere.

A chunk must hold the same rows when the task is repeated. A task with no more than CHUNK_BYTES for a
partition sends one chunk, so the order of its rows does not matter. Larger tasks have to bring their rows in
the same order, as all plans do that have no shuffle or a sort. A repeated chunk is compared with the stored
records, and a difference is an error, not a loss.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from shoal.errors import numbered
from shoal.format.arrow_stream import (
    DEFAULT_SCHEMA,
    DELIVER_AT_COLUMN,
    HEADERS_COLUMN,
    KEY_COLUMN,
    MAX_RECORD_BYTES,
    MAX_RECORDS_PER_BATCH,
    SEQUENCES_PER_LANE,
    TIMER_SCHEMA,
    TIMESTAMP_COLUMN,
    VALUE_COLUMN,
    largest_record_bytes,
)
from shoal.format.hash_ranges import HASH_SPACE, key_hash, partition_for
from shoal.format.partitioner import partition_batch
from shoal.spark.options.errors import SourceError
from shoal.spark.write.send import Chunk, ChunkSender, Place, Sink

ROW_BYTES: Final = 32  # of a record, beside its key, value and headers
GATHERED_BYTES: Final = 12 * 2**20
"""Of Spark's batches, 10,000 rows each, that are dealt to partitions at once: each distinct key is hashed and
each of Arrow's functions called once for all. More than a chunk, so that two partitions fill one each."""
BUFFERED_BYTES_MAX: Final = 64 * 2**20  # of one task, over all partitions; then the largest buffer is sent
REQUESTS_MAX: Final = 4  # of one task at once, each to another partition

_SPREAD_STEP: Final = 2_654_435_769


class TaskCounts(NamedTuple):
    """The work of a task: records, chunks, and chunks that an earlier attempt had stored."""

    records: int
    chunks: int
    repeated: int


@dataclass(slots=True)
class _Buffer:
    """Rows on their way to one partition. One request at a time: see the head of this file."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    size_bytes: int = 0
    rows: int = 0
    next_sequence: int = 0
    request: Future[bool] | None = None


class TaskWriter:
    """Writes the batches of task number `task` of a write; its name (of a stream: the query's id) and `epoch`
    (the micro-batch) are the same in every attempt."""

    def __init__(
        self, sink: Sink, name: str, task: int, epoch: int = 0, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self._sink = sink
        self._sender = ChunkSender(sink, name, epoch, pause)
        self._first_sequence = task * SEQUENCES_PER_LANE
        self._buffers: dict[Place, _Buffer] = {}
        self._buffered_bytes = 0
        self._records = self._chunks = self._repeated = 0
        # Rows without key go to one partition, another one for each task and micro-batch: tasks in turn
        # divide the hash space evenly (Fibonacci hashing).
        first = key_hash(f"{name}#{epoch}".encode())
        self._null_key_hash = (first + task * _SPREAD_STEP) % HASH_SPACE

    def write(self, batches: Iterable[pa.RecordBatch]) -> TaskCounts:
        """All rows, acknowledged. Raises SourceError; chunks sent before it stay, and are not sent again."""
        with ThreadPoolExecutor(REQUESTS_MAX, "shoal-write") as threads:
            try:
                for batch in gathered(batches):
                    for place, rows in self._dealt(batch):
                        self._add(place, rows, threads)
                for place, buffer in self._buffers.items():
                    if buffer.rows:
                        self._send(place, buffer, threads)
                for buffer in self._buffers.values():
                    self._finish(buffer)
            finally:
                threads.shutdown(wait=True, cancel_futures=True)
        return TaskCounts(self._records, self._chunks, self._repeated)

    def _dealt(self, batch: pa.RecordBatch) -> Iterator[tuple[Place, pa.RecordBatch]]:
        """The rows in stored types, by place."""
        names = [name.lower() for name in batch.schema.names]
        columns = dict(zip(names, batch.columns, strict=True))
        rows = cast(columns)
        for topic, of_topic in self._by_topic(columns, rows.num_rows):
            picked = rows if of_topic is None else rows.filter(of_topic)
            partitions = columns.get("partition")
            if partitions is not None and of_topic is not None:
                partitions = partitions.filter(of_topic)
            yield from self._by_partition(topic, picked, partitions)

    def _by_topic(self, columns: dict[str, pa.Array], rows: int) -> Iterator[tuple[str, pa.Array | None]]:
        """Each topic with its rows; None: all of them."""
        if rows == 0:
            return
        if self._sink.topic is not None:
            yield self._sink.topic, None
            return
        topics = columns["topic"]
        if topics.null_count:
            raise SourceError(
                'a row has no topic: fill the column topic, or name one for all: .option("topic", "TOPIC")'
            )
        for topic in pc.unique(topics).to_pylist():
            yield topic, pc.equal(topics, topic)

    def _by_partition(
        self, topic: str, rows: pa.RecordBatch, partitions: pa.Array | None
    ) -> Iterator[tuple[Place, pa.RecordBatch]]:
        routes = self._sender.routes(topic)
        known = [route.partition for route in routes.partitions]
        if partitions is not None and partitions.null_count < len(partitions):
            for partition in pc.unique(partitions.drop_null()).to_pylist():
                if partition not in known:
                    raise SourceError(
                        f"column partition: topic {topic!r} has no partition {partition}:"
                        f" it has {numbered(len(known))}"
                    )
                yield Place(topic, partition), rows.filter(pc.equal(partitions, partition))
            rows = rows.filter(pc.is_null(partitions))
        if KEY_COLUMN not in rows.schema.names:
            if rows.num_rows:
                yield Place(topic, known[partition_for(self._null_key_hash, routes.ranges)]), rows
            return
        for number, piece in partition_batch(rows, routes.ranges, self._null_key_hash).items():
            yield Place(topic, known[number]), piece

    def _add(self, place: Place, rows: pa.RecordBatch, threads: ThreadPoolExecutor) -> None:
        for piece, size_bytes in cut(rows, self._sink.chunk_bytes):
            buffer = self._buffers.setdefault(place, _Buffer())
            full = buffer.size_bytes + size_bytes > self._sink.chunk_bytes
            if buffer.rows and (full or buffer.rows + piece.num_rows > MAX_RECORDS_PER_BATCH):
                self._send(place, buffer, threads)
            buffer.batches.append(piece)
            buffer.size_bytes += size_bytes
            buffer.rows += piece.num_rows
            self._buffered_bytes += size_bytes
            if self._buffered_bytes > BUFFERED_BYTES_MAX:
                largest = max(self._buffers, key=lambda known: self._buffers[known].size_bytes)
                self._send(largest, self._buffers[largest], threads)

    def _send(self, place: Place, buffer: _Buffer, threads: ThreadPoolExecutor) -> None:
        self._finish(buffer)
        rows = buffer.batches[0] if len(buffer.batches) == 1 else pa.concat_batches(buffer.batches)
        chunk = Chunk(place, self._first_sequence + buffer.next_sequence, to_wire(rows))
        self._records += buffer.rows
        self._chunks += 1
        self._buffered_bytes -= buffer.size_bytes
        buffer.batches, buffer.size_bytes, buffer.rows = [], 0, 0
        buffer.next_sequence += 1
        buffer.request = threads.submit(self._sender.send, chunk)

    def _finish(self, buffer: _Buffer) -> None:
        """Wait for the acknowledgement of the chunk before."""
        if buffer.request is not None:
            self._repeated += buffer.request.result()
            buffer.request = None


def gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of about GATHERED_BYTES, without those that are empty."""
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in batches:
        if held and held_bytes + batch.nbytes > GATHERED_BYTES:
            yield held[0] if len(held) == 1 else pa.concat_batches(held)
            held, held_bytes = [], 0
        if batch.num_rows:
            held.append(batch)
            held_bytes += batch.nbytes
    if held:
        yield held[0] if len(held) == 1 else pa.concat_batches(held)


def cast(columns: dict[str, pa.Array]) -> pa.RecordBatch:
    """The columns that a topic stores, in its types. Spark's own schema varies: time zones, nullability,
    strings."""
    stored = [column for column in TIMER_SCHEMA if column.name in columns]
    arrays = [columns[column.name].cast(column.type) for column in stored]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(stored))


def to_wire(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows as `cast` makes them, with all columns of a log, or of a timer topic where one is given. A time
    that is missing is now."""
    arrays = []
    schema = TIMER_SCHEMA if DELIVER_AT_COLUMN in rows.schema.names else DEFAULT_SCHEMA
    for column in schema:
        is_given = column.name in rows.schema.names
        array = rows.column(column.name) if is_given else pa.nulls(rows.num_rows, column.type)
        if column.name == TIMESTAMP_COLUMN and array.null_count:
            now = pa.scalar(time.time_ns() // 1000, pa.int64()).cast(column.type)
            array = pc.fill_null(array, now)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def measure(batch: pa.RecordBatch) -> int:
    """The size of rows as a sum over them: the same in whatever order and batches they come."""
    size = ROW_BYTES * batch.num_rows
    for name in (KEY_COLUMN, VALUE_COLUMN):
        if name in batch.schema.names:
            size += pc.sum(pc.binary_length(batch.column(name))).as_py() or 0
    if HEADERS_COLUMN in batch.schema.names:
        pairs = pc.list_flatten(batch.column(HEADERS_COLUMN))
        size += ROW_BYTES * len(pairs)
        for number in range(2):
            size += pc.sum(pc.binary_length(pc.struct_field(pairs, number))).as_py() or 0
    return int(size)


def cut(batch: pa.RecordBatch, max_bytes: int) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Pieces of at most so many bytes, with their sizes; a row alone may have up to MAX_RECORD_BYTES."""
    if batch.num_rows == 0:
        return
    size_bytes = measure(batch)
    if size_bytes <= max_bytes and batch.num_rows <= MAX_RECORDS_PER_BATCH:
        yield batch, size_bytes
    elif batch.num_rows == 1:
        largest = largest_record_bytes(batch)
        if largest > MAX_RECORD_BYTES:
            raise SourceError(f"a record has {largest} bytes, at most {MAX_RECORD_BYTES} are stored")
        yield batch, size_bytes
    else:
        half = batch.num_rows // 2
        yield from cut(batch.slice(0, half), max_bytes)
        yield from cut(batch.slice(half), max_bytes)
