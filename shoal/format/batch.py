"""The batch: one Arrow record batch message with a stamp, the same bytes in a log, on a link and in a fetch.

A leaf: it knows neither logs, Raft nor HTTP, and every package may import it. The stamp is the only place
where offsets, terms and indices are written; its layout stands once, in `_STAMP`. See docs/formats.md.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from functools import lru_cache
from typing import Any, Final, NamedTuple, NewType

import pyarrow as pa
from crc32c import crc32c

# Names imported "as" themselves are re-exported: storage and replication know the format by this file alone.
from shoal.format.arrow_metadata import BatchError as BatchError
from shoal.format.arrow_stream import CONTINUATION, PREFIX
from shoal.format.arrow_stream import DEFAULT_SCHEMA as DEFAULT_SCHEMA
from shoal.format.arrow_stream import DELIVER_AT_COLUMN as DELIVER_AT_COLUMN
from shoal.format.arrow_stream import END_OF_STREAM as END_OF_STREAM
from shoal.format.arrow_stream import HEADERS_COLUMN as HEADERS_COLUMN
from shoal.format.arrow_stream import KEY_COLUMN as KEY_COLUMN
from shoal.format.arrow_stream import MAX_BODY_BYTES as MAX_BODY_BYTES
from shoal.format.arrow_stream import MAX_FRAME_BYTES as MAX_FRAME_BYTES
from shoal.format.arrow_stream import MAX_RECORD_BYTES as MAX_RECORD_BYTES
from shoal.format.arrow_stream import MAX_UNCOMPRESSED_BYTES as MAX_UNCOMPRESSED_BYTES
from shoal.format.arrow_stream import TIMER_SCHEMA as TIMER_SCHEMA
from shoal.format.arrow_stream import TIMESTAMP_COLUMN as TIMESTAMP_COLUMN
from shoal.format.arrow_stream import VALUE_COLUMN as VALUE_COLUMN
from shoal.format.arrow_stream import Message as Message
from shoal.format.arrow_stream import StreamDecoder as StreamDecoder
from shoal.format.arrow_stream import decode_stream as decode_stream
from shoal.format.arrow_stream import message_from_batch as message_from_batch
from shoal.format.arrow_stream import unpacked_bytes as unpacked_bytes

Term = NewType("Term", int)  # 0 = none
LogIndex = NewType("LogIndex", int)  # the first entry is 1
Offset = NewType("Offset", int)  # the first record is 0

FORMAT_VERSION: Final = 1
STAMP_BYTES: Final = 128

# A stamp, little endian. The crc covers every byte of the message but its own four.
_STAMP = struct.Struct(
    "<4s"  # 0 magic
    "I"  # 4 crc32c, seeded with the log's identity
    "BBH"  # 8 version, kind, flags
    "I"  # 12 record count
    "QQQQ"  # 16 base offset, term, previous term, index
    "Q"  # 48 body length
    "qq"  # 56 append time, greatest timestamp: microseconds since the epoch
    "16sIIQ"  # 72 producer id (zeros: none), epoch, length of the control payload, sequence
    "24s"  # 104 reserved zeros
)
assert _STAMP.size == STAMP_BYTES
STAMP_MAGIC: Final = b"SHOL"
STAMP_CHECKSUM_AT: Final = 4
STAMP_BODY_LENGTH_AT: Final = 48
_CHECKSUM_END: Final = STAMP_CHECKSUM_AT + 4
JOINED_BODY_BYTES: Final = 16 * 2**10
"""A body up to this size is copied once more, which is quicker than one more call."""
_NO_PRODUCER: Final = bytes(16)
_RESERVED: Final = bytes(24)
_NO_STAMP: Final = bytes(STAMP_BYTES)

_CRC = struct.Struct("<I")
_PADDING: Final = tuple(bytes(-length % 8) for length in range(8))


class Kind(IntEnum):
    """The kind of a frame. Only DATA frames have records."""

    SCHEMA = 0
    DATA = 1
    NOOP = 2
    CONFIGURATION = 3
    CHECKPOINT = 4
    GROUP_STATE = 5
    TRIM = 6
    SEAL = 7


class Flag(IntFlag):
    """FIRST_OF_SEGMENT: every replica rolls its segment here. GATHERED: the payload is a producer table.
    LANES: the producer's sequences are in lanes."""

    NONE = 0
    FIRST_OF_SEGMENT = 1
    GATHERED = 2
    LANES = 4


_KNOWN_FLAGS: Final = int(Flag.FIRST_OF_SEGMENT | Flag.GATHERED | Flag.LANES)
# Looked up by number: calling an enumeration costs as much as the rest of a stamp.
_KINDS: Final = tuple(Kind)
_FLAGS: Final = tuple(map(Flag, range(_KNOWN_FLAGS + 1)))
_new_stamp = tuple.__new__  # from twelve fields at once: 0.1 us less than the constructor of the NamedTuple


class ProducerStamp(NamedTuple):
    """Which request of which producer a batch is (idempotence). `producer_id`: 16 bytes, not all zero.
    `in_lanes`: many tasks share the producer, and its sequences are lane * 2**32 + number
    (agent/partition/state/idempotence.py)."""

    producer_id: bytes
    epoch: int
    sequence: int
    in_lanes: bool = False


def producer_id_from_text(text: str) -> bytes:
    """The 16-byte id of a producer that calls itself `text` (1 to 128 printable characters).

    Raises BatchError("invalid") for any other text.
    """
    if not 1 <= len(text) <= 128 or not text.isprintable():
        raise BatchError("invalid", "a producer id has 1 to 128 printable characters")
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:16]


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """The log of a frame. It seeds every checksum, so that no other log's frame passes for ours.

    `log_epoch` changes only when an operator recovers a log unsafely.
    """

    cluster_id: bytes
    topic_id: bytes
    partition: int
    log_epoch: int = 0
    seed: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        assert len(self.cluster_id) == 16, "a cluster id has 16 bytes"
        assert len(self.topic_id) == 16, "a topic id has 16 bytes"
        packed = struct.pack("<16s16sII", self.cluster_id, self.topic_id, self.partition, self.log_epoch)
        object.__setattr__(self, "seed", crc32c(packed))


class Stamp(NamedTuple):
    """The fixed part at the end of a stored message's metadata.

    `base_offset` of a frame without records is the next offset at that point, so that previous base + count
    holds everywhere. Lengths are bytes, times microseconds since the epoch.
    """

    kind: Kind
    flags: Flag
    record_count: int
    base_offset: Offset
    term: Term
    previous_term: Term
    index: LogIndex  # type: ignore[assignment]  # hides tuple.index, which nobody asks of a stamp
    body_length: int
    control_length: int
    append_time_us: int
    max_timestamp_us: int
    producer: ProducerStamp | None


class Frame(NamedTuple):
    """A stored message: its stamp, and all of its bytes (framing, metadata, control payload, stamp, body)."""

    stamp: Stamp
    data: bytes | memoryview


def stamp_message(
    message: Message,
    identity: LogIdentity,
    *,
    kind: Kind = Kind.DATA,
    flags: Flag = Flag.NONE,
    base_offset: Offset,
    term: Term,
    previous_term: Term,
    index: LogIndex,
    append_time_us: int,
    producer: ProducerStamp | None = None,
    control: bytes = b"",
) -> Frame:
    """`message` in its stored form: in its place, if it has one without a stamp, else with one copy of the
    body. BatchError("limit") above MAX_FRAME_BYTES."""
    if producer is not None and producer.in_lanes:
        flags |= Flag.LANES
    fields = (
        kind,
        flags,
        message.record_count,
        base_offset,
        term,
        previous_term,
        index,
        len(message.body),
        len(control),
        append_time_us,
        message.max_timestamp_us,
        producer,
    )
    stamp = _new_stamp(Stamp, fields)
    place = message.place
    if place is not None and not control:
        stamp_at = 8 + len(message.metadata)
        if place[stamp_at : stamp_at + STAMP_BYTES] == _NO_STAMP:
            return _stamp_in_place(place, stamp_at, stamp, identity)
    return _assemble(message.metadata, message.body, stamp, identity, control)


def _stamp_in_place(place: memoryview, stamp_at: int, stamp: Stamp, identity: LogIdentity) -> Frame:
    packed = _pack_stamp(stamp)
    body_at = stamp_at + STAMP_BYTES
    assert len(place) == body_at + stamp.body_length <= MAX_FRAME_BYTES
    checksum = crc32c(packed[:STAMP_CHECKSUM_AT], crc32c(place[:stamp_at], identity.seed))
    checksum = crc32c(place[body_at:], crc32c(packed[_CHECKSUM_END:], checksum))
    place[stamp_at:body_at] = packed
    _CRC.pack_into(place, stamp_at + STAMP_CHECKSUM_AT, checksum)
    return Frame(stamp, place.toreadonly())


def _assemble(
    metadata: bytes, body: bytes | memoryview, stamp: Stamp, identity: LogIdentity, control: bytes
) -> Frame:
    assert len(metadata) % 8 == 0, "metadata are padded to 8 bytes"
    padding = _PADDING[stamp.control_length % 8]
    metadata_size = len(metadata) + stamp.control_length + len(padding) + STAMP_BYTES
    if 8 + metadata_size + stamp.body_length > MAX_FRAME_BYTES:
        raise BatchError("limit", f"a stored batch may have at most {MAX_FRAME_BYTES} bytes")
    packed = _pack_stamp(stamp)
    head = b"".join((PREFIX.pack(CONTINUATION, metadata_size), metadata, control, padding, STAMP_MAGIC))
    checksum = crc32c(head, identity.seed)
    if stamp.body_length <= JOINED_BODY_BYTES:
        rest = packed[_CHECKSUM_END:] + body
        return Frame(stamp, b"".join((head, _CRC.pack(crc32c(rest, checksum)), rest)))
    checksum = crc32c(body, crc32c(packed[_CHECKSUM_END:], checksum))
    return Frame(stamp, b"".join((head, _CRC.pack(checksum), packed[_CHECKSUM_END:], body)))


def _pack_stamp(stamp: Stamp) -> bytes:
    """The stamp with a checksum of zero."""
    producer = stamp.producer
    assert producer is None or (len(producer.producer_id) == 16 and any(producer.producer_id))
    producer_id, epoch, sequence, _ = producer or (_NO_PRODUCER, 0, 0, False)
    return _STAMP.pack(
        STAMP_MAGIC,
        0,
        FORMAT_VERSION,
        stamp.kind,
        stamp.flags,
        stamp.record_count,
        stamp.base_offset,
        stamp.term,
        stamp.previous_term,
        stamp.index,
        stamp.body_length,
        stamp.append_time_us,
        stamp.max_timestamp_us,
        producer_id,
        epoch,
        stamp.control_length,
        sequence,
        _RESERVED,
    )


@lru_cache(maxsize=64)  # schemas in use by one agent; a miss costs 20 us
def _empty_message(schema: pa.Schema) -> Message:
    return message_from_batch(pa.RecordBatch.from_pylist([], schema=schema))


def control_frame(
    schema: pa.Schema,
    identity: LogIdentity,
    *,
    kind: Kind,
    control: bytes,
    base_offset: Offset,
    term: Term,
    previous_term: Term,
    index: LogIndex,
    append_time_us: int,
    flags: Flag = Flag.NONE,
) -> Frame:
    """A frame without records, invisible to Arrow readers: a zero-row batch of `schema` with `control`."""
    assert kind not in (Kind.SCHEMA, Kind.DATA), "a control frame has a control kind"
    return stamp_message(
        _empty_message(schema),
        identity,
        kind=kind,
        flags=flags,
        base_offset=base_offset,
        term=term,
        previous_term=previous_term,
        index=index,
        append_time_us=append_time_us,
        control=control,
    )


def schema_message(schema: pa.Schema) -> bytes:
    """The plain schema message that opens a fetch."""
    return bytes(memoryview(schema.serialize()))


def schema_frame(
    schema: pa.Schema,
    identity: LogIdentity,
    *,
    first_index: LogIndex,
    first_offset: Offset,
    previous_term: Term,
) -> bytes:
    """The stamped schema message that heads a segment file; its metadata say whose file it is."""
    described = schema.with_metadata(
        {
            "shoal.format_version": str(FORMAT_VERSION),
            "shoal.topic_id": identity.topic_id.hex(),
            "shoal.partition": str(identity.partition),
            "shoal.first_offset": str(first_offset),
        }
    )
    metadata = schema_message(described)[8:]
    stamp = Stamp(
        Kind.SCHEMA, Flag.NONE, 0, first_offset, Term(0), previous_term, first_index, 0, 0, 0, 0, None
    )
    return bytes(_assemble(metadata, b"", stamp, identity, b"").data)


def parse_stamp(buffer: bytes | memoryview, position: int) -> tuple[Stamp, int]:
    """The stamp of the frame at `position`, and the frame's whole length; the body need not be there.

    The checksum is NOT verified: only the lengths are bounded.
    Raises BatchError: short, magic, version, length, invalid.
    """
    stamp_position, total, fields = _read_stamp(buffer, position)
    assert stamp_position > position
    return _decode_stamp(fields), total


def is_whole(stamp: Stamp, data: bytes | memoryview) -> bool:
    """Whether a frame has as many bytes as its head and its stamp say, and no more than any may have."""
    return len(data) == 8 + int.from_bytes(data[4:8], "little") + stamp.body_length <= MAX_FRAME_BYTES


def stamp_of(frame: memoryview) -> Stamp:
    """The stamp of a whole frame that is_frame has accepted."""
    metadata_size = PREFIX.unpack_from(frame, 0)[1]
    return _decode_stamp(_STAMP.unpack_from(frame, 8 + metadata_size - STAMP_BYTES))


def parse_frame(
    buffer: bytes | memoryview, position: int, identity: LogIdentity, *, verify: bool = True
) -> Frame:
    """The frame at `position`, its bytes copied out. Raises BatchError as view_frame does."""
    stamp_position, total, fields = _read_stamp(buffer, position)
    if position + total > len(buffer):
        raise BatchError("short", "the buffer ends inside a frame")
    data = bytes(buffer[position : position + total])
    if verify:
        checked = data if total <= JOINED_BODY_BYTES else memoryview(data)  # short bytes are copied sooner
        _verify(checked, stamp_position - position, fields[1], identity.seed)
    return Frame(_decode_stamp(fields), data)


def view_frame(
    buffer: bytes | memoryview, position: int, identity: LogIdentity, *, verify: bool = True
) -> tuple[Stamp, memoryview]:
    """The frame at `position`: its stamp, and its bytes without a copy. Lengths are bounded before use.

    Raises BatchError: short (ran out of bytes), magic, length, checksum, version, invalid.
    """
    stamp_position, total, fields = _read_stamp(buffer, position)
    if position + total > len(buffer):
        raise BatchError("short", "the buffer ends inside a frame")
    view = memoryview(buffer)[position : position + total]
    if verify:
        _verify(view, stamp_position - position, fields[1], identity.seed)
    return _decode_stamp(fields), view


_CHECKED = struct.Struct("<4sIBBH28xQQ36xI8x24s")
"""Of a stamp: magic, checksum, version, kind, flags, index, body length, control length, reserved."""
assert _CHECKED.size == STAMP_BYTES


def is_frame(view: memoryview, position: int, length: int, index: LogIndex, identity: LogIdentity) -> bool:
    """Whether the `length` bytes at `position`, which the buffer must hold, are the whole frame of entry
    `index` and verify: as view_frame, without decoding the other fields. Never raises; view_frame gives the
    reason."""
    if length < 8 + 8 + STAMP_BYTES:
        return False
    mark, metadata_size = PREFIX.unpack_from(view, position)
    if mark != CONTINUATION or metadata_size % 8 or not STAMP_BYTES + 8 <= metadata_size <= length - 8:
        return False
    stamp_position = position + 8 + metadata_size - STAMP_BYTES
    magic, expected, version, kind, flags, entry, body_length, control_length, reserved = (
        _CHECKED.unpack_from(view, stamp_position)
    )
    if magic != STAMP_MAGIC or 8 + metadata_size + body_length != length or body_length % 8:
        return False
    checksum_position = stamp_position + STAMP_CHECKSUM_AT
    head = crc32c(view[position:checksum_position], identity.seed)
    if crc32c(view[checksum_position + 4 : position + length], head) != expected:
        return False
    return (
        entry == index
        and version == FORMAT_VERSION
        and kind <= Kind.SEAL
        and not flags & ~_KNOWN_FLAGS
        and reserved == _RESERVED
        and control_length <= metadata_size - STAMP_BYTES - 8
        and length <= MAX_FRAME_BYTES
    )


def _verify(frame: bytes | memoryview, stamp_position: int, expected: int, seed: int) -> None:
    checksum_position = stamp_position + STAMP_CHECKSUM_AT
    checksum = crc32c(frame[checksum_position + 4 :], crc32c(frame[:checksum_position], seed))
    if checksum != expected:
        raise BatchError("checksum", "a frame's checksum does not hold")


def _read_stamp(buffer: bytes | memoryview, position: int) -> tuple[int, int, tuple[Any, ...]]:
    """Where the stamp lies, the frame's total length, and the raw fields of the stamp."""
    if position < 0 or position + 8 > len(buffer):
        raise BatchError("short", "the buffer ends inside a frame's head")
    mark, metadata_size = PREFIX.unpack_from(buffer, position)
    if mark != CONTINUATION:
        raise BatchError("magic", "no Arrow message here")
    if metadata_size < STAMP_BYTES + 8 or metadata_size % 8 or metadata_size > MAX_FRAME_BYTES - 8:
        raise BatchError("length", f"impossible metadata size {metadata_size}")
    stamp_position = position + 8 + metadata_size - STAMP_BYTES
    if stamp_position + STAMP_BYTES > len(buffer):
        raise BatchError("short", "the buffer ends inside a frame's metadata")
    fields = _STAMP.unpack_from(buffer, stamp_position)
    if fields[0] != STAMP_MAGIC:
        raise BatchError("magic", "an Arrow message without a stamp")
    body_length, control_length = fields[10], fields[15]
    total = 8 + metadata_size + body_length
    if total > MAX_FRAME_BYTES or body_length % 8 or control_length > metadata_size - STAMP_BYTES - 8:
        raise BatchError("length", "the lengths in a stamp are impossible")
    return stamp_position, total, fields


def _decode_stamp(fields: tuple[Any, ...]) -> Stamp:
    _, _, version, kind, flags, count, base, term, previous_term, index, body_length, *others = fields
    append_time_us, max_timestamp_us, producer_id, epoch, control_length, sequence, reserved = others
    if version != FORMAT_VERSION:
        raise BatchError("version", f"format version {version} is not known, only {FORMAT_VERSION}")
    if kind > Kind.SEAL or flags & ~_KNOWN_FLAGS or reserved != _RESERVED:
        raise BatchError("invalid", "unknown kind, flag or reserved bytes in a stamp")
    producer = None
    if producer_id != _NO_PRODUCER:
        producer = ProducerStamp(producer_id, epoch, sequence, flags & Flag.LANES != 0)
    stamp = (
        _KINDS[kind],
        _FLAGS[flags],
        count,
        base,
        term,
        previous_term,
        index,
        body_length,
        control_length,
        append_time_us,
        max_timestamp_us,
        producer,
    )
    return _new_stamp(Stamp, stamp)


def control_payload(data: bytes | memoryview) -> bytes:
    """The control payload of a frame's bytes. Raises BatchError as parse_stamp does."""
    stamp_position, _, fields = _read_stamp(data, 0)
    length = fields[15]
    start = stamp_position - length - (-length % 8)
    assert start >= 8, "_read_stamp bounds the length"
    return bytes(data[start : start + length])


def to_record_batch(data: bytes | memoryview, schema: pa.Schema) -> pa.RecordBatch:
    """The batch inside a frame, sharing its memory. Raises BatchError("invalid")."""
    try:
        return pa.ipc.read_record_batch(pa.py_buffer(data), schema)
    except (pa.ArrowException, EOFError, OSError, ValueError) as error:
        raise BatchError("invalid", str(error)) from error


def timestamps_of(data: bytes | memoryview, schema: pa.Schema) -> pa.RecordBatch:
    """As to_record_batch, of all columns only the timestamps: the others are not unpacked."""
    options = pa.ipc.IpcReadOptions(included_fields=[schema.get_field_index(TIMESTAMP_COLUMN)])
    try:
        with pa.ipc.open_stream(pa.py_buffer(schema_message(schema) + data), options=options) as reader:
            return reader.read_next_batch()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise BatchError("invalid", str(error)) from error
