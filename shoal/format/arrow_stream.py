"""Arrow record batch messages: made from our own batches, and admitted from a client's IPC stream.

A message here is what a stream carries, without a stamp: the framing, its bounds and the check that a batch
fits its topic live here. Stamps, offsets and logs are unknown (batch.py adds them). Bodies are copied once
and otherwise stay as they were sent.
"""

from __future__ import annotations

import struct
from collections import deque
from functools import lru_cache, reduce
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from shoal.format.arrow_metadata import (
    HEADER_DICTIONARY_BATCH,
    HEADER_RECORD_BATCH,
    HEADER_SCHEMA,
    MAX_METADATA_BYTES,
    BatchError,
    MessageHeader,
    RecordBatchHeader,
    encode_record_batch_header,
    read_message_header,
    read_record_batch_header,
    require_little_endian,
)

ARROW_STREAM = "application/vnd.apache.arrow.stream"

MAX_BODY_BYTES: Final = 16 * 2**20
SEQUENCES_PER_LANE: Final = 2**32
"""Of a producer that tasks share: a sequence is lane * SEQUENCES_PER_LANE + number. Each task has a lane."""
MAX_FRAME_BYTES: Final = 17 * 2**20
"""A body of 16 MiB and its metadata. Nothing larger is stored, sent or allocated."""

MAX_RECORD_BYTES: Final = 8 * 2**20
MAX_RECORDS_PER_BATCH: Final = 1_000_000
MAX_UNCOMPRESSED_BYTES: Final = 64 * 2**20
"""Of one compressed body, unpacked: every reader must be able to hold it. Four times a plain body."""

CONTINUATION: Final = b"\xff\xff\xff\xff"
END_OF_STREAM: Final = CONTINUATION + b"\0\0\0\0"

TIMESTAMP_COLUMN: Final = "timestamp"
KEY_COLUMN: Final = "key"
VALUE_COLUMN: Final = "value"
HEADERS_COLUMN: Final = "headers"

DEFAULT_SCHEMA: Final = pa.schema(
    [
        pa.field(TIMESTAMP_COLUMN, pa.timestamp("us", tz="UTC")),
        pa.field(KEY_COLUMN, pa.binary()),
        pa.field(VALUE_COLUMN, pa.binary()),
        pa.field(
            HEADERS_COLUMN,
            pa.list_(
                pa.field("element", pa.struct([pa.field("key", pa.utf8()), pa.field("value", pa.binary())]))
            ),
        ),
    ]
)
"""The columns of a topic that declares no schema. All nullable: Spark refuses any other."""

DELIVER_AT_COLUMN: Final = "deliver_at"
TIMER_SCHEMA: Final = DEFAULT_SCHEMA.append(pa.field(DELIVER_AT_COLUMN, pa.timestamp("us", tz="UTC")))
"""The columns of a topic of kind timer. `deliver_at`: null means at once."""

PREFIX: Final = struct.Struct("<4si")
"""Before each message: CONTINUATION, and the size of its metadata."""
_I64 = struct.Struct("<q")
_MAX: Final = pc.get_function("max")


class Message(NamedTuple):
    """A record batch message without a stamp. `metadata`: the flatbuffer padded to 8 bytes, no framing."""

    metadata: bytes
    body: bytes | memoryview
    record_count: int
    max_timestamp_us: int  # 0 for a batch without records or a schema without a timestamp column
    max_deliver_at_us: int = 0
    """Of a schema with due times, where a record has one."""
    place: memoryview | None = None
    """Writable memory of this message alone, if it can be stored where it is: prefix, metadata, zeros for a
    stamp, body."""


def message_from_batch(batch: pa.RecordBatch) -> Message:
    """Encode a trusted batch. Raises BatchError("limit") when it is larger than a stored batch may be."""
    if batch.num_rows > MAX_RECORDS_PER_BATCH:
        raise BatchError("limit", f"more than {MAX_RECORDS_PER_BATCH} records in a batch")
    encoded = memoryview(batch.serialize())
    metadata_size = PREFIX.unpack_from(encoded)[1]
    body = encoded[8 + metadata_size :]
    if len(body) > MAX_BODY_BYTES or metadata_size > MAX_METADATA_BYTES:
        raise BatchError("limit", f"a batch may have at most {MAX_BODY_BYTES} bytes")
    metadata = bytes(encoded[8 : 8 + metadata_size])
    timestamps, due_times = (_times(batch, name) for name in (TIMESTAMP_COLUMN, DELIVER_AT_COLUMN))
    return Message(metadata, body, batch.num_rows, _greatest(timestamps), _greatest(due_times))


def with_due_times(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Records of DEFAULT_SCHEMA in the columns of a timer topic: due at once."""
    column = TIMER_SCHEMA.field(DELIVER_AT_COLUMN)
    arrays = [*batch.columns, pa.nulls(batch.num_rows, column.type)]
    return pa.RecordBatch.from_arrays(arrays, schema=TIMER_SCHEMA)


def _times(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    position = batch.schema.get_field_index(name)
    return None if position < 0 else batch.column(position)


def _greatest(timestamps: pa.Array | None) -> int:
    if timestamps is None or not len(timestamps):
        return 0
    greatest = _MAX.call([timestamps]).value  # pc.max, without its wrapper
    return 0 if greatest is None else int(greatest)


def decode_stream(data: bytes | memoryview) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """Read a whole fetched stream (from an agent, which verified it). Raises BatchError("invalid")."""
    try:
        with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
            return reader.schema, list(reader)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise BatchError("invalid", str(error)) from error


def _refuse_encoded(field: pa.Field) -> None:
    """Raises BatchError("unsupported"), or UnicodeDecodeError where a name or a time zone is not UTF-8."""
    name, kind = field.name, field.type
    if pa.types.is_dictionary(kind):
        raise BatchError("unsupported", f"column {name!r} is dictionary-encoded")
    if isinstance(kind, pa.BaseExtensionType) or b"ARROW:extension:name" in (field.metadata or {}):
        raise BatchError("unsupported", f"column {name!r} has an extension type")
    if pa.types.is_timestamp(kind):
        kind.tz  # noqa: B018 - decodes it
    for number in range(kind.num_fields):
        _refuse_encoded(kind.field(number))


def _difference(offered: pa.Schema, wanted: pa.Schema) -> str:
    if DELIVER_AT_COLUMN in offered.names and DELIVER_AT_COLUMN not in wanted.names:
        return f"column {DELIVER_AT_COLUMN!r} needs a topic of kind timer"
    if offered.names != wanted.names:
        return f"columns {offered.names}, expected {wanted.names}"
    pairs = zip(offered, wanted, strict=True)
    mine, theirs = next(pair for pair in pairs if not pair[0].equals(pair[1], check_metadata=False))
    nullable = "" if mine.nullable else " not null"
    return f"column {mine.name!r} is {mine.type}{nullable}, expected {theirs.type}"


class StreamDecoder:
    """An Arrow IPC stream arriving in pieces of any size -> admitted Messages.

    Checked before anything is stored: framing, schema, lengths, buffer ranges, declared uncompressed sizes,
    then the values themselves (pyarrow's full validation), then null timestamps. The metadata are written
    anew in canonical form, so padding and custom metadata of the client are dropped. Memory is bounded by one
    message and what one feed() brings. After an error the decoder must not be fed again.
    """

    def __init__(
        self,
        schema: pa.Schema,
        *,
        max_message_bytes: int = MAX_BODY_BYTES,
        max_records_per_batch: int = MAX_RECORDS_PER_BATCH,
    ) -> None:
        """`schema`: the topic's; `max_message_bytes` bounds one message's body."""
        self._schema = schema
        self.lacks_due_times = False
        """A topic of kind timer is given the columns of a log: its records are due at once."""
        self._max_message_bytes = max_message_bytes
        self._max_records_per_batch = max_records_per_batch
        self._pieces: deque[memoryview] = deque()
        self._held_bytes = 0
        self._schema_seen = False
        self._ended = False
        self._metadata_size: int | None = None
        self._pending: tuple[bytes, MessageHeader] | None = None

    def feed(self, data: bytes) -> list[Message]:
        """The messages that `data` completes. Raises BatchError, any reason but short and checksum."""
        if data:
            self._pieces.append(memoryview(data))
            self._held_bytes += len(data)
        messages: list[Message] = []
        while self._advance(messages):
            pass
        return messages

    def close(self) -> None:
        """The stream has ended; the end-of-stream marker is optional. Raises BatchError("short")."""
        if self._held_bytes or self._metadata_size is not None or self._pending is not None:
            raise BatchError("short", "the stream ends inside a message")
        if not self._schema_seen:
            raise BatchError("short", "the stream has no schema message")

    def _advance(self, messages: list[Message]) -> bool:
        """Take one part (prefix, metadata or body) if it is there."""
        if self._pending is not None:
            metadata, header = self._pending
            body = self._take(header.body_length)
            if body is None:
                return False
            self._pending = None
            messages.append(self._admit(metadata, header, body))
            return True
        if self._metadata_size is not None:
            parts = self._take(self._metadata_size)
            if parts is None:
                return False
            self._metadata_size = None
            self._read_metadata(b"".join(parts))
            return True
        return self._read_prefix()

    def _read_prefix(self) -> bool:
        if self._ended:
            if self._held_bytes:
                raise BatchError("invalid", "bytes after the end of the stream")
            return False
        parts = self._take(8)
        if parts is None:
            return False
        mark, size = PREFIX.unpack(b"".join(parts))
        if mark != CONTINUATION:
            raise BatchError("magic", "this is not an Arrow IPC stream")
        if size == 0:
            self._ended = True
            return True
        if size < 0 or size > MAX_METADATA_BYTES:
            raise BatchError("limit", f"a message's metadata may have at most {MAX_METADATA_BYTES} bytes")
        self._metadata_size = size
        return True

    def _take(self, count: int) -> list[memoryview] | None:
        """Exactly `count` bytes, in pieces, or None while they have not arrived."""
        if self._held_bytes < count:
            return None
        self._held_bytes -= count
        taken: list[memoryview] = []
        while count:
            piece = self._pieces[0]
            if len(piece) <= count:
                taken.append(self._pieces.popleft())
                count -= len(piece)
            else:
                taken.append(piece[:count])
                self._pieces[0] = piece[count:]
                count = 0
        return taken

    def _read_metadata(self, metadata: bytes) -> None:
        cached = len(metadata) <= _CACHED_LAYOUT_BYTES
        header = _read_header_cached(metadata) if cached else read_message_header(metadata)
        if header.kind == HEADER_SCHEMA:
            self._read_schema(metadata, header)
            return
        if not self._schema_seen:
            raise BatchError("invalid", "the stream does not begin with a schema")
        if header.kind == HEADER_DICTIONARY_BATCH:
            raise BatchError("unsupported", "dictionary batches are not accepted")
        if header.kind != HEADER_RECORD_BATCH:
            raise BatchError("unsupported", f"messages of kind {header.kind} are not accepted")
        if header.body_length > self._max_message_bytes:
            raise BatchError("limit", f"a batch may have at most {self._max_message_bytes} bytes")
        self._pending = (metadata, header)

    def _read_schema(self, metadata: bytes, header: MessageHeader) -> None:
        if self._schema_seen:
            raise BatchError("invalid", "a second schema in one stream")
        if header.body_length:
            raise BatchError("invalid", "a schema message with a body")
        read = _read_schema_cached if len(metadata) <= _CACHED_SCHEMA_BYTES else _read_schema
        offered = read(metadata, header)
        if self._schema is TIMER_SCHEMA and offered.equals(DEFAULT_SCHEMA, check_metadata=False):
            self._schema, self.lacks_due_times = DEFAULT_SCHEMA, True
        elif not offered.equals(self._schema, check_metadata=False):
            difference = _difference(offered, self._schema)
            raise BatchError("schema", f"the stream's schema is not the topic's: {difference}")
        self._schema_seen = True

    @property
    def pending(self) -> tuple[bytes, MessageHeader] | None:
        """Metadata and header of the record batch whose body comes next, if one does."""
        return self._pending

    def _admit(self, metadata: bytes, header: MessageHeader, body: list[memoryview]) -> Message:
        fields, stored_length, canonical = read_layout(metadata, header)
        if fields.record_count > self._max_records_per_batch:
            raise BatchError("limit", f"more than {self._max_records_per_batch} records in a batch")
        framed = b"".join((PREFIX.pack(CONTINUATION, len(canonical)), canonical, *body))
        view = memoryview(framed)[: 8 + len(canonical) + stored_length]
        stored = view[8 + len(canonical) :]
        checked = check_batch(view, stored, fields, self._schema)
        if self.lacks_due_times:
            return message_from_batch(with_due_times(checked.batch))
        return Message(
            canonical, stored, fields.record_count, checked.max_timestamp_us, checked.max_deliver_at_us
        )


class CheckedBatch(NamedTuple):
    """A batch whose values are good, and its greatest times, 0 where it has none."""

    batch: pa.RecordBatch
    max_timestamp_us: int
    max_deliver_at_us: int


def check_batch(
    framed: memoryview, body: memoryview, fields: RecordBatchHeader, schema: pa.Schema
) -> CheckedBatch:
    """Check every value of a framed record batch. Raises BatchError."""
    unpacked_bytes = _unpacked_bytes(fields, body)
    batch = _read_validated(framed, schema)
    if unpacked_bytes > MAX_RECORD_BYTES and (largest := largest_record_bytes(batch)) > MAX_RECORD_BYTES:
        detail = f"a record has {largest} bytes with its key, value and headers"
        raise BatchError("limit", f"{detail}, at most {MAX_RECORD_BYTES} are accepted")
    timestamps = _times(batch, TIMESTAMP_COLUMN)
    if timestamps is not None and timestamps.null_count:
        raise BatchError("invalid", "a record has no timestamp")
    return CheckedBatch(batch, _greatest(timestamps), _greatest(_times(batch, DELIVER_AT_COLUMN)))


def read_layout(metadata: bytes, header: MessageHeader) -> tuple[RecordBatchHeader, int, bytes]:
    """A record batch's header, the used length of its body, and its metadata in canonical form."""
    read = _read_layout_cached if len(metadata) <= _CACHED_LAYOUT_BYTES else _read_layout
    return read(metadata, header)


def _read_layout(metadata: bytes, header: MessageHeader) -> tuple[RecordBatchHeader, int, bytes]:
    fields = read_record_batch_header(metadata, header)
    used = max((offset + length for offset, length in fields.buffers), default=0)
    stored_length = min(-(-used // 8) * 8, fields.body_length)
    if stored_length % 8:
        raise BatchError("length", "the body is not a multiple of 8 bytes")
    return fields, stored_length, encode_record_batch_header(fields._replace(body_length=stored_length))


# Batches of equal shape (the same number of records of one size) have equal metadata to the byte, and both
# functions depend on nothing else. Refusals are not cached. At most 256 entries of at most 4 KiB.
_CACHED_LAYOUT_BYTES: Final = 4096
_read_layout_cached = lru_cache(maxsize=256)(_read_layout)
_read_header_cached = lru_cache(maxsize=256)(read_message_header)


def _read_schema(metadata: bytes, header: MessageHeader) -> pa.Schema:
    require_little_endian(metadata, header)
    framed = pa.py_buffer(PREFIX.pack(CONTINUATION, len(metadata)) + metadata)
    try:
        offered = pa.ipc.read_schema(framed)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise BatchError("schema", _one_line(error)) from error
    try:
        for field in offered:
            _refuse_encoded(field)
    except UnicodeDecodeError as error:
        raise BatchError("schema", "a column's name or type is not UTF-8") from error
    return offered


# A producer sends the same schema bytes with every request. Refusals are not cached. At most 64 entries of at
# most 4 KiB.
_CACHED_SCHEMA_BYTES: Final = 4096
_read_schema_cached = lru_cache(maxsize=64)(_read_schema)


def _unpacked_bytes(header: RecordBatchHeader, body: memoryview) -> int:
    """The body's size in memory, from the lengths its compressed buffers declare. Nothing is unpacked."""
    if header.codec is None:
        return len(body)
    total = 0
    for offset, length in header.buffers:
        if length == 0:
            continue
        if length < 8:
            raise BatchError("length", "a compressed buffer without its length")
        declared = _I64.unpack_from(body, offset)[0]
        if declared < -1:
            raise BatchError("length", "a compressed buffer declares a negative length")
        total += length - 8 if declared == -1 else declared
        if total > MAX_UNCOMPRESSED_BYTES:
            raise BatchError("limit", f"a body may unpack to at most {MAX_UNCOMPRESSED_BYTES} bytes")
    return total


def unpacked_bytes(framed: bytes | memoryview) -> int:
    """The size in memory that a framed record batch declares for its body. Nothing is unpacked; Arrow refuses
    a body that unpacks to another size. Raises BatchError."""
    view = memoryview(framed)
    size = PREFIX.unpack_from(view)[1]
    metadata = bytes(view[8 : 8 + size])
    header = read_message_header(metadata)
    return _unpacked_bytes(read_record_batch_header(metadata, header), view[8 + size :])


def _read_validated(framed: memoryview, schema: pa.Schema) -> pa.RecordBatch:
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(framed), schema)
        batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise BatchError("invalid", _one_line(error)) from error
    return batch


def largest_record_bytes(batch: pa.RecordBatch) -> int:
    """The largest record's bytes, with key, value and headers (names and values), if they exceed
    MAX_RECORD_BYTES; else any number up to that, which is found sooner."""
    sizes = [size for column in batch.columns if (size := _value_bytes(column)) is not None]
    at_most = sum(pc.max(size).as_py() or 0 for size in sizes)
    if at_most <= MAX_RECORD_BYTES or not sizes:
        return int(at_most)
    return int(pc.max(reduce(pc.add, sizes)).as_py() or 0)


def _value_bytes(column: pa.Array) -> pa.Array | None:
    """Bytes of each value, of texts and lists of them; None for a type whose values have one size."""
    kind = column.type
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        return pc.fill_null(pc.binary_length(column), 0).cast(pa.int64())
    if pa.types.is_struct(kind):
        sizes = [size for part in column.flatten() if (size := _value_bytes(part)) is not None]
        return reduce(pc.add, sizes) if sizes else None
    if not pa.types.is_list(kind):
        return None
    inner = _value_bytes(pc.list_flatten(column))
    if inner is None:
        return None
    sums = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(inner)])
    ends = pc.cumulative_sum(pc.fill_null(pc.list_value_length(column), 0).cast(pa.int64()))
    begins = pa.concat_arrays([pa.array([0], pa.int64()), ends])[: len(column)]
    return pc.subtract(sums.take(ends), sums.take(begins))


def _one_line(error: Exception) -> str:
    return (str(error).splitlines() or ["unreadable"])[0][:300]
