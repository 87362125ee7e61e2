"""The metadata of one Arrow IPC message: a bounded flatbuffer reader, and a writer for record batches.

It knows the parts of Message.fbs and Schema.fbs (Arrow format, version V5) that admit a client's record
batch. Input is hostile: every position is checked before use, and the only error is BatchError. The writer
has one canonical form, so that no bytes that a client hid in its metadata are stored.
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


class RecordBatchHeader(NamedTuple):
    """A record batch message's description of its body. `nodes`: the raw vector of int64 (length, null
    count)."""

    record_count: int
    body_length: int
    nodes: bytes
    buffers: tuple[tuple[int, int], ...]  # offset and length in the body, bytes
    codec: int | None  # 0 LZ4 frame, 1 ZSTD


class MessageHeader(NamedTuple):
    """The outer table of a message: the kind of its header, where that lies, and the length of its body."""

    kind: int
    table: int
    body_length: int


_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")
_U8 = struct.Struct("<B")
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


def _fields(data: bytes, table: int, count: int) -> list[int]:
    """Positions of a table's first `count` fields; 0 for one that is left at its default."""
    vtable = table - _read(_I32, data, table)
    slots = min(count, (_read(_U16, data, vtable) - 4) // 2)
    if slots < 0 or vtable + 4 + 2 * slots > len(data):
        raise BatchError("invalid", "metadata points outside itself")
    distances = struct.unpack_from(f"<{slots}H", data, vtable + 4)
    positions = [table + distance if distance else 0 for distance in distances]
    return positions + [0] * (count - slots)


def _scalar(form: struct.Struct, data: bytes, position: int) -> int:
    return _read(form, data, position) if position else 0


def _pairs(data: bytes, position: int) -> tuple[int, int]:
    """Where a vector of structs of two int64 each begins, and how many int64 it has."""
    if not position:
        return 0, 0
    vector = _follow(data, position)
    count = _read(_U32, data, vector)
    if vector + 4 + 16 * count > len(data):
        raise BatchError("invalid", "metadata points outside itself")
    return vector + 4, 2 * count


def read_message_header(metadata: bytes) -> MessageHeader:
    """Read the outer table. Raises BatchError: version, length, invalid."""
    version, kind, header, body_length = _fields(metadata, _follow(metadata, 0), 4)
    if _scalar(_I16, metadata, version) not in _VERSIONS:
        raise BatchError("version", "Arrow metadata version is neither V4 nor V5")
    if not header:
        raise BatchError("invalid", "the message has no header")
    length = _scalar(_I64, metadata, body_length)
    if length < 0:
        raise BatchError("length", "negative body length")
    return MessageHeader(_scalar(_U8, metadata, kind), _follow(metadata, header), length)


def require_little_endian(metadata: bytes, header: MessageHeader) -> None:
    """Refuse a schema whose data would be big-endian. Raises BatchError: unsupported, invalid."""
    (endianness,) = _fields(metadata, header.table, 1)
    if _scalar(_I16, metadata, endianness) != 0:
        raise BatchError("unsupported", "big-endian Arrow data are not accepted")


def read_record_batch_header(metadata: bytes, header: MessageHeader) -> RecordBatchHeader:
    """Read a record batch's lengths, nodes, buffers and compression, all checked against its body length.

    Raises BatchError: invalid, length, unsupported.
    """
    length, nodes, buffers, compression, variadic = _fields(metadata, header.table, 5)
    record_count = _scalar(_I64, metadata, length)
    if not 0 <= record_count <= _MAX_ELEMENT_COUNT:
        raise BatchError("length", "impossible record count")
    if variadic and _read(_U32, metadata, _follow(metadata, variadic)):
        raise BatchError("unsupported", "columns of view types are not accepted")
    return RecordBatchHeader(
        record_count,
        header.body_length,
        _read_nodes(metadata, nodes),
        _read_buffers(metadata, buffers, header.body_length),
        _read_codec(metadata, compression),
    )


def _read_nodes(metadata: bytes, position: int) -> bytes:
    start, count = _pairs(metadata, position)
    numbers = struct.unpack_from(f"<{count}q", metadata, start)
    for length, null_count in zip(numbers[::2], numbers[1::2], strict=True):
        if not 0 <= null_count <= length <= _MAX_ELEMENT_COUNT:
            raise BatchError("invalid", "impossible field length or null count")
    return metadata[start : start + 8 * count]


def _read_buffers(metadata: bytes, position: int, body_length: int) -> tuple[tuple[int, int], ...]:
    start, count = _pairs(metadata, position)
    numbers = struct.unpack_from(f"<{count}q", metadata, start)
    buffers = tuple(zip(numbers[::2], numbers[1::2], strict=True))
    for offset, length in buffers:
        if offset < 0 or length < 0 or offset + length > body_length:
            raise BatchError("length", "a buffer lies outside the body")
    return buffers


def _read_codec(metadata: bytes, position: int) -> int | None:
    if not position:
        return None
    codec, method = (
        _scalar(_U8, metadata, field) for field in _fields(metadata, _follow(metadata, position), 2)
    )
    if codec not in (0, 1) or method != 0:
        raise BatchError("unsupported", "unknown body compression")
    return codec


# The canonical layout with its positions: the root offset, each table behind its vtable, then two vectors.
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
