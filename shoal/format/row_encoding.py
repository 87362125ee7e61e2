"""Records without headers -> an Arrow record batch message, written by hand; one row's body checked by hand.

A record posted alone becomes a batch of one, and pyarrow's fixed costs (four arrays, a batch, its
serialization, the maximum of one number: 65 us) are then ten times those of the record. This writes the same
columns, with the flatbuffer that arrow_metadata writes for every client's batch. pyarrow encodes all other
batches. Pure.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Final, NamedTuple

from shoal.format.arrow_metadata import RecordBatchHeader, encode_record_batch_header
from shoal.format.arrow_stream import MAX_BODY_BYTES, Message

MAX_ROWS: Final = 256
"""Beyond it pyarrow's fixed costs no longer count."""

_PADDING: Final = tuple(bytes(-length % 8) for length in range(8))
_ALL_NULL: Final = -1
_BUFFERS: Final = 17
_Buffer = tuple[int, int]


def encode_rows(
    timestamps_us: Sequence[int], keys: Sequence[bytes | None], values: Sequence[bytes | None]
) -> Message | None:
    """A message of DEFAULT_SCHEMA whose headers are all null. None where pyarrow has to encode: a column with
    both nulls and values, or more than MAX_ROWS rows.

    Raises OverflowError for a time beyond int64, TypeError for a value that is no bytes.
    """
    rows = len(timestamps_us)
    if rows == 1:
        return _encode_row(timestamps_us[0], keys[0], values[0])
    assert rows == len(keys) == len(values)
    if not 0 < rows <= MAX_ROWS:
        return None
    parts: list[bytes] = [array("q", timestamps_us).tobytes()]
    sizes: list[int] = []
    for column in (keys, values):
        nulls = column.count(None)
        if nulls == rows:
            parts.append(_no_values(rows))
            sizes.append(_ALL_NULL)
        elif nulls:
            return None
        else:
            sizes.append(_add_values(parts, column))
    parts.append(_no_headers(rows))
    body = b"".join(parts)
    if len(body) > MAX_BODY_BYTES:
        return None
    return Message(_metadata(rows, *sizes), body, rows, max(timestamps_us))


def _add_values(parts: list[bytes], column: Sequence[bytes | None]) -> int:
    """Append offsets and data of a binary column without nulls; the bytes of its data."""
    data = b"".join(column)  # type: ignore[arg-type]  # without nulls, as the caller has counted
    offsets = array("i", accumulate(map(len, column), initial=0)).tobytes()  # type: ignore[arg-type]
    parts += (offsets, _PADDING[len(offsets) % 8], data, _PADDING[len(data) % 8])
    return len(data)


def _padded(size_bytes: int) -> int:
    return size_bytes + -size_bytes % 8


@lru_cache(maxsize=256)  # of row counts in use: 64 connections gather up to 64 rows
def _no_values(rows: int) -> bytes:
    """Validity and offsets of a column of nulls."""
    return bytes(_padded((rows + 7) // 8) + _padded(4 * (rows + 1)))


@lru_cache(maxsize=256)
def _no_headers(rows: int) -> bytes:
    """A null list for each row, and the offsets of its empty children's strings.

    No list refers to a child's slot, so that the children have none, and a single offset each.
    """
    return _no_values(rows) + 2 * bytes(_padded(4))


@lru_cache(maxsize=1_024)  # a few hundred bytes each; equal sizes come again and again
def _metadata(rows: int, key_bytes: int, value_bytes: int) -> bytes:
    """The flatbuffer: a node for each of 7 fields, and their 17 buffers one behind the other."""
    bitmap_bytes, offsets_bytes = (rows + 7) // 8, 4 * (rows + 1)
    lengths = [0, 8 * rows]
    nodes = [(rows, 0)]
    for data_bytes in (key_bytes, value_bytes):
        nulls = rows if data_bytes == _ALL_NULL else 0
        nodes.append((rows, nulls))
        lengths += (bitmap_bytes if nulls else 0, offsets_bytes, max(0, data_bytes))
    nodes += ((rows, rows), (0, 0), (0, 0), (0, 0))
    lengths += (bitmap_bytes, offsets_bytes, 0, 0, 4, 0, 0, 4, 0)
    buffers: list[_Buffer] = []
    position = 0
    for length in lengths:
        buffers.append((position, length))
        position += _padded(length)
    packed = b"".join(struct.pack("<qq", *node) for node in nodes)
    return encode_record_batch_header(RecordBatchHeader(rows, position, packed, tuple(buffers), None))


_OFFSETS: Final = struct.Struct("=ii")
_ONE_NULL: Final = _no_values(1)
_NO_HEADER: Final = _no_headers(1)


def _encode_row(timestamp_us: int, key: bytes | None, value: bytes | None) -> Message | None:
    """As encode_rows, of a single record."""
    parts = [timestamp_us.to_bytes(8, sys.byteorder, signed=True)]
    key_bytes = value_bytes = _ALL_NULL
    if key is None:
        parts.append(_ONE_NULL)
    else:
        key_bytes = len(key)
        parts += (_OFFSETS.pack(0, key_bytes), key, _PADDING[key_bytes % 8])
    if value is None:
        parts.append(_ONE_NULL)
    else:
        value_bytes = len(value)
        parts += (_OFFSETS.pack(0, value_bytes), value, _PADDING[value_bytes % 8])
    parts.append(_NO_HEADER)
    body = b"".join(parts)
    if len(body) > MAX_BODY_BYTES:
        return None
    return Message(_metadata(1, key_bytes, value_bytes), body, 1, timestamp_us)


class RowShape(NamedTuple):
    """The bytes of a body of one row without headers, other than its time and its data, and their places."""

    body_bytes: int
    parts: tuple[tuple[int, bytes], ...]

    def timestamp_us(self, body: memoryview) -> int | None:
        """The row's time if the body is as `encode_rows` writes it, so that no check remains; None where
        pyarrow has to check it."""
        for start, part in self.parts:
            if body[start : start + len(part)] != part:
                return None
        return int.from_bytes(body[:8], sys.byteorder, signed=True)


def row_shape(header: RecordBatchHeader, metadata: bytes) -> RowShape | None:
    """Of a batch with these (canonical) metadata; None if it is no single row as `encode_rows` writes one."""
    if header.record_count != 1 or len(header.buffers) != _BUFFERS or sys.byteorder != "little":
        return None
    sizes = [_ALL_NULL if header.buffers[at][1] else header.buffers[at + 2][1] for at in (2, 5)]
    if metadata != _metadata(1, *sizes):
        return None
    parts: list[tuple[int, bytes]] = []
    position = 8
    for size in sizes:
        if size == _ALL_NULL:
            parts.append((position, _ONE_NULL))
            position += len(_ONE_NULL)
        else:
            parts += ((position, _OFFSETS.pack(0, size)), (position + 8 + size, _PADDING[size % 8]))
            position += 8 + _padded(size)
    parts.append((position, _NO_HEADER))
    return RowShape(position + len(_NO_HEADER), tuple(part for part in parts if part[1]))
