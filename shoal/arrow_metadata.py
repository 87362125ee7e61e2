"""The metadata of one Arrow IPC message: a bounded flatbuffer reader, and a writer for record batches.

Only what admitting a client's record batch needs (Message.fbs and Schema.fbs of the Arrow format, version V5)
is known here. Input is hostile: every position is checked before it is used, and the only error is BatchError.
The writer has one canonical form, so that nothing a client hid in its metadata is ever stored.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

MAX_METADATA_BYTES: Final = 2**20 - 4096
"""Of one message, as a client may send it: a stored frame has 1 MiB beside its body, stamp included."""

HEADER_SCHEMA: Final = 1
HEADER_DICTIONARY_BATCH: Final = 2
HEADER_RECORD_BATCH: Final = 3

_VERSIONS: Final = (3, 4)  # V4 and V5 differ only in unions, which no topic may have
_MAX_ELEMENT_COUNT: Final = 2**31 - 1  # Arrow's own bound for arrays with 32-bit offsets


class BatchError(ValueError):
    """Bytes that are not an acceptable batch.

    `reason` is one of: short (ran out of bytes), magic, checksum, version, length, schema, unsupported,
    limit, invalid.
    """

    def __init__(self, reason: str, detail: str) -> None:
        """`reason`: a word of the list above; `detail`: one line for a person."""
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail

    def __reduce__(self) -> tuple[type[BatchError], tuple[str, str]]:
        """Pickled by its two parts (Spark sends errors between processes)."""
        return (BatchError, (self.reason, self.detail))


class BufferRange(NamedTuple):
    """Where one buffer lies in the body: bytes."""

    offset: int
    length: int


class RecordBatchHeader(NamedTuple):
    """What a record batch message says of its body. `nodes`: the raw vector of int64 (length, null count)."""

    record_count: int
    body_length: int
    nodes: bytes
    buffers: tuple[BufferRange, ...]
    codec: int | None  # 0 LZ4 frame, 1 ZSTD


class MessageHeader(NamedTuple):
    """The outer table of a message: the kind of its header, where that lies, and the length of its body."""

    kind: int
    table: int
    body_length: int


_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")
_U16 = struct.Struct("<H")
_I16 = struct.Struct("<h")
_I64 = struct.Struct("<q")


def _read(form: struct.Struct, data: bytes, position: int) -> int:
    if position < 0 or position + form.size > len(data):
        raise BatchError("invalid", "metadata points outside itself")
    value: int = form.unpack_from(data, position)[0]
    return value


def _follow(data: bytes, position: int) -> int:
    return position + _read(_U32, data, position)


def _field(data: bytes, table: int, number: int) -> int | None:
    """The position of a table's field, or None when the table leaves it at its default."""
    vtable = table - _read(_I32, data, table)
    slot = 4 + 2 * number
    if slot + 2 > _read(_U16, data, vtable):
        return None
    distance = _read(_U16, data, vtable + slot)
    return table + distance if distance else None


def _scalar(data: bytes, table: int, number: int, form: struct.Struct) -> int:
    position = _field(data, table, number)
    return 0 if position is None else _read(form, data, position)


def _byte(data: bytes, table: int, number: int) -> int:
    position = _field(data, table, number)
    if position is None:
        return 0
    if not 0 <= position < len(data):
        raise BatchError("invalid", "metadata points outside itself")
    return data[position]


def _pairs(data: bytes, table: int, number: int) -> bytes:
    """A vector of structs of two int64 each, as raw bytes."""
    position = _field(data, table, number)
    if position is None:
        return b""
    vector = _follow(data, position)
    end = vector + 4 + 16 * _read(_U32, data, vector)
    if end > len(data):
        raise BatchError("invalid", "metadata points outside itself")
    return data[vector + 4 : end]


def read_message_header(metadata: bytes) -> MessageHeader:
    """Read the outer table. Raises BatchError: version, invalid."""
    table = _follow(metadata, 0)
    if _scalar(metadata, table, 0, _I16) not in _VERSIONS:
        raise BatchError("version", "Arrow metadata version is neither V4 nor V5")
    position = _field(metadata, table, 2)
    if position is None:
        raise BatchError("invalid", "the message has no header")
    body_length = _scalar(metadata, table, 3, _I64)
    if body_length < 0:
        raise BatchError("length", "negative body length")
    return MessageHeader(_byte(metadata, table, 1), _follow(metadata, position), body_length)


def require_little_endian(metadata: bytes, header: MessageHeader) -> None:
    """Refuse a schema whose data would be big-endian. Raises BatchError: unsupported."""
    if _scalar(metadata, header.table, 0, _I16) != 0:
        raise BatchError("unsupported", "big-endian Arrow data are not accepted")


def read_record_batch_header(metadata: bytes, header: MessageHeader) -> RecordBatchHeader:
    """Read a record batch's lengths, nodes, buffers and compression, all checked against its body length.

    Raises BatchError: invalid, length, unsupported.
    """
    table = header.table
    count = _scalar(metadata, table, 0, _I64)
    if not 0 <= count <= _MAX_ELEMENT_COUNT:
        raise BatchError("length", "impossible record count")
    if _field(metadata, table, 4) is not None and _read(_U32, metadata, _follow_field(metadata, table, 4)):
        raise BatchError("unsupported", "columns of view types are not accepted")
    nodes = _pairs(metadata, table, 1)
    for length, null_count in struct.iter_unpack("<qq", nodes):
        if not 0 <= null_count <= length <= _MAX_ELEMENT_COUNT:
            raise BatchError("invalid", "impossible field length or null count")
    body_length = header.body_length
    buffers = tuple(BufferRange(*pair) for pair in struct.iter_unpack("<qq", _pairs(metadata, table, 2)))
    for offset, length in buffers:
        if offset < 0 or length < 0 or offset + length > body_length:
            raise BatchError("length", "a buffer lies outside the body")
    return RecordBatchHeader(count, body_length, nodes, buffers, _read_codec(metadata, table))


def _follow_field(data: bytes, table: int, number: int) -> int:
    position = _field(data, table, number)
    assert position is not None
    return _follow(data, position)


def _read_codec(metadata: bytes, table: int) -> int | None:
    if _field(metadata, table, 3) is None:
        return None
    compression = _follow_field(metadata, table, 3)
    codec = _byte(metadata, compression, 0)
    if codec not in (0, 1) or _byte(metadata, compression, 1) != 0:
        raise BatchError("unsupported", "unknown body compression")
    return codec


# The canonical layout with its positions: the root offset, each table behind its vtable, then the two vectors.
# Eight-byte values stand at multiples of eight, as flatbuffers require.
_CANONICAL = struct.Struct(
    "<I"  # 0 root: the message table
    "6H"  # 4 its vtable: size, table size, version, header type, header, body length
    "ihBxqI"  # 16 message table: to vtable, version, header type, body length (24), header (32)
    "6H"  # 36 vtable: size, table size, length, nodes, buffers, compression
    "iIqII"  # 48 record batch table: to vtable, nodes (52), length (56), buffers (64), compression (68)
    "4H"  # 72 vtable: size, table size, codec, method
    "ibbxx"  # 80 compression table: to vtable, codec (84), method (85)
    "4xI"  # 88 count of nodes (92); they follow at 96
)
assert _CANONICAL.size == 96


def encode_record_batch_header(header: RecordBatchHeader) -> bytes:
    """The canonical flatbuffer of a record batch message: metadata version V5, a multiple of eight bytes."""
    node_count = len(header.nodes) // 16
    buffers_position = 96 + len(header.nodes) + 4
    compressed = header.codec is not None
    fixed = _CANONICAL.pack(
        *(16,),
        *(12, 20, 4, 6, 16, 8),
        *(12, 4, HEADER_RECORD_BATCH, header.body_length, 48 - 32),
        *(12, 24, 8, 4, 16, 20 if compressed else 0),
        *(12, 92 - 52, header.record_count, buffers_position - 64, 80 - 68),
        *(8, 8, 4, 5),
        *(8, header.codec or 0, 0),
        node_count,
    )
    flat = [number for pair in header.buffers for number in pair]
    return b"".join((fixed, header.nodes, struct.pack(f"<4xI{len(flat)}q", len(header.buffers), *flat)))
