"""The tail record: the state of the log as of its last write, behind Arrow's end-of-stream marker (safety 9).
Pure.

    | frames ... | FF FF FF FF 00 00 00 00 | tail record, 64 bytes | zeros |

Each write ends with marker and record; the next write overwrites both. The record says which entry was the
last, where the frames end, and up to which index the disk was known to be synced before this write: an entry
at or below that was acknowledged. Of the entries above, those of the write itself, it says where the write
begins if nothing but zeros and the record before stood in its place: then a sector that the disk has never
written can be told from one that has changed since (torn_write.py). `end_offset` gives a last entry that
does not verify its place in the log.
"""

import struct
from typing import NamedTuple

import crc32c

from shoal.format.batch import END_OF_STREAM, LogIdentity, LogIndex, Offset, Term
from shoal.segment_store.errors import FormatError

TAIL_MAGIC = b"ShoalEnd"
TAIL_VERSION = 2
TAIL_RECORD_BYTES = 64
# magic, crc32c, version, reserved, last index, last term, end position, synced index, end offset, written
# bytes, reserved 4
_LAYOUT = struct.Struct("<8sIHHQQQQQI4x")
_RESERVED_BYTES = 4
_CHECKED_FROM = 12  # the checksum covers everything behind itself, the magic is compared in full
assert _LAYOUT.size == TAIL_RECORD_BYTES

TRAILER_BYTES = len(END_OF_STREAM) + TAIL_RECORD_BYTES


class TailRecord(NamedTuple):
    """last_index and last_term of the last frame written (0, 0: none); end_position: bytes from the start
    of the file to the end-of-stream marker; synced_index: known synced before the write that carries this
    record; end_offset: the next record's; written_bytes: so many bytes of frames in front of the marker came
    in one write with it, over zeros (0: in several writes, or over unknown bytes)."""

    last_index: LogIndex
    last_term: Term
    end_position: int
    synced_index: LogIndex
    end_offset: Offset
    written_bytes: int = 0

    @property
    def start_position(self) -> int:
        """Where the write begins that written_bytes speaks of."""
        return self.end_position - self.written_bytes


def encode_trailer(record: TailRecord, identity: LogIdentity) -> bytes:
    """End-of-stream marker and tail record, as every write ends. A synced index behind the last entry counts
    as that: the plan may have been cut since the write."""
    if record.synced_index > record.last_index:
        record = record._replace(synced_index=record.last_index)
    unsigned = _LAYOUT.pack(TAIL_MAGIC, 0, TAIL_VERSION, 0, *record)
    checksum = crc32c.crc32c(unsigned[_CHECKED_FROM:], identity.seed)
    return END_OF_STREAM + _LAYOUT.pack(TAIL_MAGIC, checksum, TAIL_VERSION, 0, *record)


def decode_tail_record(
    buffer: bytes | bytearray | memoryview, position: int, identity: LogIdentity
) -> TailRecord:
    """The record at `position` of the buffer; FormatError when there is none that belongs to this log."""
    raw = bytes(buffer[position : position + TAIL_RECORD_BYTES])
    if len(raw) < TAIL_RECORD_BYTES:
        raise FormatError("short", f"a tail record has {TAIL_RECORD_BYTES} bytes, {len(raw)} are there")
    magic, checksum, version, reserved, index, term, end, synced, offset, written = _LAYOUT.unpack(raw)
    if magic != TAIL_MAGIC:
        raise FormatError("magic", "no tail record here")
    if crc32c.crc32c(raw[_CHECKED_FROM:], identity.seed) != checksum:
        raise FormatError("checksum", "tail record does not verify")
    if version != TAIL_VERSION:
        raise FormatError("version", f"tail record version {version}, this code knows {TAIL_VERSION}")
    if reserved or any(raw[-_RESERVED_BYTES:]) or synced > index or end % 8 or written % 8 or written > end:
        raise FormatError("invalid", "tail record fields contradict each other")
    return TailRecord(LogIndex(index), Term(term), end, LogIndex(synced), Offset(offset), written)


def decode_trailer(
    buffer: bytes | bytearray | memoryview, position: int, identity: LogIdentity
) -> TailRecord:
    """Marker and record at `position`; FormatError unless both are there."""
    marker = bytes(buffer[position : position + len(END_OF_STREAM)])
    if marker != END_OF_STREAM:
        raise FormatError("short" if len(marker) < len(END_OF_STREAM) else "magic", "no end-of-stream marker")
    return decode_tail_record(buffer, position + len(END_OF_STREAM), identity)
