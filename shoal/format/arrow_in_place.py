"""A request's only record batch, admitted where it was received: the bytes that came are the bytes stored.

An Arrow stream is schema, batch, end. The schema is checked and not stored, so there is room before the
batch's body for its prefix, its canonical metadata and room for the caller (a stamp, which is unknown here).
StreamDecoder reads streams of any other shape, and makes every check.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

import pyarrow as pa

from shoal.format.arrow_metadata import BatchError, RecordBatchHeader
from shoal.format.arrow_stream import (
    CONTINUATION,
    DEFAULT_SCHEMA,
    END_OF_STREAM,
    MAX_RECORDS_PER_BATCH,
    PREFIX,
    Message,
    StreamDecoder,
    check_batch,
    read_layout,
)
from shoal.format.row_encoding import RowShape, row_shape

# Streams of equal batches (the same number of records of one size) begin with the same bytes, and an _Opening
# follows from these bytes alone. At most 256 of at most 4 KiB.
_REMEMBERED_MAX: Final = 256
_REMEMBERED_BYTES_MAX: Final = 4096
# A kept batch keeps the memory of its whole request alive: that must be mostly the batch itself.
_OTHER_BYTES_MAX: Final = 16 * 1024
_ROW_BYTES_MAX: Final = 128 * 1024


class _Opening(NamedTuple):
    """The meaning of a stream's bytes up to its first body."""

    fields: RecordBatchHeader
    body_length: int  # as sent
    stored_length: int
    metadata: bytes  # canonical
    head: bytes  # prefix, canonical metadata, room
    row: RowShape | None  # of a single record, whose few bytes are checked without pyarrow's fixed costs


class Placed(NamedTuple):
    """A batch in its place, and the stream's first bytes, which were overwritten."""

    message: Message
    opening: bytes


class PlaceReader:
    """Reads single-batch streams of one schema. `room_bytes` (a multiple of 8) are left before each body."""

    def __init__(self, schema: pa.Schema, room_bytes: int) -> None:
        assert room_bytes % 8 == 0
        self.schema = schema
        self._has_rows = schema.equals(DEFAULT_SCHEMA)
        self._room = bytes(room_bytes)
        self._remembered = lru_cache(maxsize=_REMEMBERED_MAX)(self._read_opening)
        self._last: tuple[bytes, _Opening | None] = (b"", None)

    def read(self, memory: memoryview, start: int) -> Placed | None:
        """The batch of the stream in `memory[start:]`, with its `place`; None when the stream is not one
        plain batch, and nothing has changed then. Raises BatchError as StreamDecoder.

        The message owns `memory` from now on: the bytes before the body are overwritten.
        """
        opening_bytes, opening = self._last
        body_at = start + len(opening_bytes)
        if opening is None or memory[start:body_at] != opening_bytes:
            first_body = _first_body(memory, start)
            if first_body is None:
                return None
            body_at = first_body
            opening_bytes = bytes(memory[start:body_at])
            is_short = len(opening_bytes) <= _REMEMBERED_BYTES_MAX
            opening = self._remembered(opening_bytes) if is_short else self._read_opening(opening_bytes)
            if opening is None:
                return None
            self._last = (opening_bytes, opening)
        end = body_at + opening.body_length
        place_at = body_at - len(opening.head)
        if place_at < 0 or end > len(memory) or bytes(memory[end : end + 9]) not in (b"", END_OF_STREAM):
            return None
        stored_end = body_at + opening.stored_length
        if len(memory) - (stored_end - place_at) > _OTHER_BYTES_MAX:
            return None
        memory[place_at:body_at] = opening.head
        place = memory[place_at:stored_end]
        body = place[len(opening.head) :]
        max_timestamp_us, max_deliver_at_us = None, 0
        if opening.row is not None:
            max_timestamp_us = opening.row.timestamp_us(body)
        if max_timestamp_us is None:
            _, max_timestamp_us, max_deliver_at_us = check_batch(place, body, opening.fields, self.schema)
        records = opening.fields.record_count
        message = Message(
            opening.metadata, body.toreadonly(), records, max_timestamp_us, max_deliver_at_us, place
        )
        return Placed(message, opening_bytes)

    def _read_opening(self, data: bytes) -> _Opening | None:
        decoder = StreamDecoder(self.schema)
        messages = decoder.feed(data)
        if messages or decoder.pending is None or decoder.lacks_due_times:
            return None
        metadata, header = decoder.pending
        try:
            fields, stored_length, canonical = read_layout(metadata, header)
        except BatchError:
            return None  # the fault depends on the following bytes: StreamDecoder names it
        if fields.record_count > MAX_RECORDS_PER_BATCH:
            return None
        size = len(canonical) + len(self._room)
        head = b"".join((PREFIX.pack(CONTINUATION, size), canonical, self._room))
        row = row_shape(fields, canonical) if self._has_rows and stored_length <= _ROW_BYTES_MAX else None
        if row is not None and row.body_bytes != stored_length:
            row = None
        return _Opening(fields, header.body_length, stored_length, canonical, head, row)


def _first_body(memory: memoryview, start: int) -> int | None:
    """Where the body of the second message begins; None when there is no second message."""
    position = start
    for _ in range(2):
        if position + 8 > len(memory):
            return None
        mark, size = PREFIX.unpack_from(memory, position)
        if mark != CONTINUATION or size <= 0:
            return None
        position += 8 + size
    return position if position <= len(memory) else None
