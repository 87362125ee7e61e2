"""Stored rows as text, in pieces of which each is one short slice of the loop.

Pure. Small rows are rendered together. A large one is rendered part by part: its strings by stretches that
end between two characters, its headers by the dozen. Both ways give the same bytes.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from shoal.format.batch import (
    DELIVER_AT_COLUMN,
    HEADERS_COLUMN,
    KEY_COLUMN,
    TIMESTAMP_COLUMN,
    VALUE_COLUMN,
)
from shoal.format.record_text import ValueAs, render_ndjson, render_value
from shoal.format.timestamps import format_time

SLICE_BYTES = 64 * 1024
"""Stored bytes made into text in one go: a millisecond at most, and six times as much text in the worst case
(control characters)."""
SLICE_ROWS = 500  # some 2 ms where rows are small
ROW_OVERHEAD_BYTES = 32  # of each row in memory: offsets and validity of four columns, roughly
SMALL_BATCH_BYTES = 4 * 1024
"""Taken as it is: to measure a part of it takes 30 us, as long as to make some rows into text."""
HEADER_OVERHEAD_BYTES = 16
HEADERS_AT_ONCE = 64


class Rows(NamedTuple):
    """Rows of one batch: consecutive ones of the log, or such as have `offsets` of their own."""

    base_offset: int
    batch: pa.RecordBatch
    offsets: Sequence[int] | None = None

    def part(self, begin: int, count: int) -> Rows:
        """So many of them, from one on."""
        batch = self.batch.slice(begin, count)
        if self.offsets is None:
            return Rows(self.base_offset + begin, batch)
        offsets = self.offsets[begin : begin + count]
        return Rows(offsets[0], batch, offsets)


class Style(NamedTuple):
    """How a record is written. `opening`: what stands before its first field."""

    value_as: ValueAs
    view: Literal["record", "value"]
    opening: bytes = b"{"


def row_sizes(batch: pa.RecordBatch) -> pa.Array:
    """About what each row takes in memory, in bytes (int64)."""
    sizes = pa.repeat(pa.scalar(ROW_OVERHEAD_BYTES, pa.int64()), batch.num_rows)
    for column in batch.columns:
        kind = column.type
        if column.null_count == len(column):
            continue
        if pa.types.is_binary(kind) or pa.types.is_string(kind):
            sizes = pc.add(sizes, _lengths(column))
        elif pa.types.is_list(kind):
            sizes = pc.add(sizes, _list_sizes(column))
    return sizes


def _lengths(column: pa.Array) -> pa.Array:
    return pc.fill_null(pc.binary_length(column), 0).cast(pa.int64())


def _list_sizes(column: pa.ListArray) -> pa.Array:
    """Of each list: its elements' bytes."""
    offsets = column.offsets
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    elements = column.values.slice(first, last - first)
    each = pa.repeat(pa.scalar(HEADER_OVERHEAD_BYTES, pa.int64()), len(elements))
    if pa.types.is_struct(elements.type):
        for child in elements.flatten():
            if pa.types.is_binary(child.type) or pa.types.is_string(child.type):
                each = pc.add(each, _lengths(child))
    sums = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(each)])
    ends = sums.take(pc.subtract(offsets, first))
    return pc.subtract(ends.slice(1), ends.slice(0, len(column)))


def leading_rows(batch: pa.RecordBatch, room_bytes: int) -> tuple[int, int]:
    """How many of the first rows fit the room, the first one in any case; and their bytes."""
    count = size = 0
    whole = batch.get_total_buffer_size()
    if whole > SMALL_BATCH_BYTES:  # it may be part of a larger one, of which this counts all
        whole = batch.nbytes
    whole += ROW_OVERHEAD_BYTES * batch.num_rows
    if whole <= room_bytes:
        return batch.num_rows, whole
    while count < batch.num_rows:
        sums = pc.cumulative_sum(row_sizes(batch.slice(count, 16 * SLICE_ROWS)))
        fitting = pc.sum(pc.less_equal(sums, room_bytes - size)).as_py() or 0
        if not fitting and not count:
            fitting = 1
        if fitting:
            count += fitting
            size += sums[fitting - 1].as_py()
        if fitting < len(sums):
            break
    return count, size


class RowWriter:
    """Makes text of rows. `made_bytes`: stored bytes of the text made so far; the sender resets it."""

    def __init__(self) -> None:
        self.made_bytes = 0

    def texts(self, rows: Rows, style: Style) -> Iterator[Iterable[bytes]]:
        """Of each row, in their order, its text in parts, without a line feed. Each is to be used up before
        the next is asked for."""
        for at in range(0, rows.batch.num_rows, SLICE_ROWS):
            window = rows.part(at, SLICE_ROWS)
            whole = window.batch.nbytes
            if whole <= SLICE_BYTES:
                self.made_bytes += whole
                yield from _short_rows(window, style)
                continue
            for begin, end, size in _groups(row_sizes(window.batch).to_pylist()):
                part = window.part(begin, end - begin)
                if size > SLICE_BYTES:
                    yield self._counted(_long_row(part, style))
                else:
                    self.made_bytes += size
                    yield from _short_rows(part, style)

    def _counted(self, parts: Iterable[bytes]) -> Iterator[bytes]:
        for part in parts:
            self.made_bytes += len(part)
            yield part

    def pieces(self, parts: Iterable[bytes]) -> Iterator[bytes]:
        """The parts, which this writer makes, as pieces of about one slice each."""
        waiting: list[bytes] = []
        for part in parts:
            waiting.append(part)
            if self.made_bytes >= SLICE_BYTES:
                yield b"".join(waiting)
                waiting.clear()
                self.made_bytes = 0
        if waiting:
            yield b"".join(waiting)


def _groups(sizes: list[int]) -> Iterator[tuple[int, int, int]]:
    """Neighbouring rows whose sum is one slice at most, or one that is larger: begin, end, bytes."""
    begin = total = 0
    for row, size in enumerate(sizes):
        if row > begin and total + size > SLICE_BYTES:
            yield begin, row, total
            begin, total = row, 0
        total += size
    if begin < len(sizes):
        yield begin, len(sizes), total


def _short_rows(rows: Rows, style: Style) -> Iterator[tuple[bytes, ...]]:
    if style.view == "value":
        values = rows.batch.column(VALUE_COLUMN).to_pylist()
        return ((b"null" if value is None else value,) for value in values)
    base = rows.base_offset if rows.offsets is None else rows.offsets
    lines = render_ndjson(rows.batch, base, "record", style.value_as).split(b"\n")[:-1]
    if style.opening == b"{":
        return ((line,) for line in lines)
    return ((style.opening + line[1:],) for line in lines)


def _long_row(rows: Rows, style: Style) -> Iterator[bytes]:
    """One record that is larger than a slice, as render_ndjson has it."""
    batch = rows.batch
    value = _memory(batch.column(VALUE_COLUMN)[0])
    if style.view == "value":
        yield from [b"null"] if value is None else _stretches(value)
        return
    timestamp = _time(batch.column(TIMESTAMP_COLUMN))
    yield b'%b"offset":%d,"timestamp":%b,' % (style.opening, rows.base_offset, timestamp)
    yield from _field(b"key", _memory(batch.column(KEY_COLUMN)[0]))
    yield b","
    yield from _value(value, style.value_as)
    yield b',"headers":['
    yield from _headers(batch.column(HEADERS_COLUMN)[0])
    position = batch.schema.get_field_index(DELIVER_AT_COLUMN)
    if position < 0:
        yield b"]}"
        return
    yield b'],"deliver_at":%b}' % _time(batch.column(position))


def _time(column: pa.Array) -> bytes:
    """The time of the only row, as JSON."""
    time_us = column.cast(pa.int64())[0].as_py()
    return b"null" if time_us is None else b'"%b"' % format_time(time_us).encode("ascii")


def _memory(scalar: pa.Scalar) -> memoryview | None:
    return memoryview(scalar.as_buffer()) if scalar.is_valid else None


def _value(value: memoryview | None, value_as: ValueAs) -> Iterator[bytes]:
    if value_as == "json" and value is not None and len(value) <= SLICE_BYTES:
        yield render_value(bytes(value), value_as)
    else:
        yield from _field(b"value", value)


def _headers(scalar: pa.ListScalar) -> Iterator[bytes]:
    if not scalar.is_valid:
        return
    headers = scalar.values
    for at in range(0, len(headers), HEADERS_AT_ONCE):
        for number, header in enumerate(headers.slice(at, HEADERS_AT_ONCE), at):
            yield b',{"key":' if number else b'{"key":'
            key = _memory(header["key"]) if header.is_valid else None
            yield from [b"null"] if key is None else _quoted(key)
            yield b","
            yield from _field(b"value", _memory(header["value"]) if header.is_valid else None)
            yield b"}"


def _field(name: bytes, value: memoryview | None) -> Iterator[bytes]:
    """Name and value: null, a string, or base64 where the bytes are no text."""
    if value is None:
        yield b'"%b":null' % name
    elif _is_text(value):
        yield b'"%b":' % name
        yield from _quoted(value)
    else:
        yield b'"%b_base64":"' % name
        step = SLICE_BYTES // 3 * 3
        for at in range(0, len(value), step):
            yield base64.b64encode(value[at : at + step])
        yield b'"'


def _is_text(value: memoryview) -> bool:
    """Whether it is UTF-8: two milliseconds for the longest record."""
    offsets = pa.py_buffer(struct.pack("<ii", 0, len(value)))
    column = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(value)])
    try:
        column.cast(pa.utf8())
    except pa.ArrowInvalid:
        return False
    return True


def _quoted(text: memoryview) -> Iterator[bytes]:
    """UTF-8 as a JSON string."""
    yield b'"'
    for stretch in _stretches(text):
        yield json.dumps(stretch.decode("utf-8"), ensure_ascii=False)[1:-1].encode("utf-8")
    yield b'"'


def _stretches(text: memoryview) -> Iterator[bytes]:
    """Its bytes, cut where a character begins if they are UTF-8."""
    at = 0
    while at < len(text):
        end = min(len(text), at + SLICE_BYTES)
        while end < len(text) and end > at + SLICE_BYTES - 4 and text[end] & 0xC0 == 0x80:
            end -= 1
        yield bytes(text[at:end])
        at = end
