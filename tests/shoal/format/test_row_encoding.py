"""Batches encoded by hand: whatever comes out, every reader takes it for what pyarrow would have written."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.format.batch import DEFAULT_SCHEMA, Message, StreamDecoder, message_from_batch, schema_message
from shoal.format.records import RecordColumns, columns_to_batch, columns_to_message
from shoal.format.row_encoding import MAX_ROWS, encode_rows

times_us = st.integers(-(2**63), 2**63 - 1)
column = st.sampled_from([st.none(), st.binary(max_size=40), st.none() | st.binary(max_size=40)])


@st.composite
def columns_without_headers(draw: st.DrawFn) -> RecordColumns:
    """Columns of nulls, of values, and of both; times given or not."""
    rows = draw(st.integers(1, 70))
    lists = [
        draw(st.lists(kind, min_size=rows, max_size=rows))
        for kind in (st.none() | times_us, draw(column), draw(column))
    ]
    return RecordColumns(*lists, [None] * rows)


def framed(message: Message) -> bytes:
    """The message as it stands in a stream."""
    return b"\xff" * 4 + len(message.metadata).to_bytes(4, "little") + message.metadata + bytes(message.body)


@given(columns_without_headers())
def test_the_same_records_as_by_pyarrow(columns: RecordColumns) -> None:
    """Same rows, valid in full, same counts and times; and an agent would admit it from a client."""
    message = columns_to_message(columns, 1_234)
    batch = pa.ipc.read_record_batch(pa.py_buffer(framed(message)), DEFAULT_SCHEMA)
    batch.validate(full=True)
    expected = columns_to_batch(columns, 1_234)
    assert batch.equals(expected)
    other = message_from_batch(expected)
    assert (message.record_count, message.max_timestamp_us) == (other.record_count, other.max_timestamp_us)
    (admitted,) = StreamDecoder(DEFAULT_SCHEMA).feed(schema_message(DEFAULT_SCHEMA) + framed(message))
    assert admitted.record_count == len(columns)


def test_what_is_left_to_pyarrow() -> None:
    """Mixed nulls, many rows, and headers: columns_to_message encodes them all the same."""
    assert encode_rows([1, 2], [None, b"k"], [b"v", b"v"]) is None
    assert encode_rows([1, 2], [b"k", b"k"], [None, b"v"]) is None
    many = MAX_ROWS + 1
    assert encode_rows([1] * many, [None] * many, [b""] * many) is None
    for columns in (
        RecordColumns([1] * many, [None] * many, [b""] * many, [None] * many),
        RecordColumns([1, 2], [None, b"k"], [b"v", None], [[("h", b"x")], None]),
    ):
        batch = pa.ipc.read_record_batch(pa.py_buffer(framed(columns_to_message(columns, 0))), DEFAULT_SCHEMA)
        assert batch.equals(columns_to_batch(columns, 0))


def test_what_fits_no_column_is_refused() -> None:
    """The errors that pyarrow gives for the same columns are those that callers expect."""
    with pytest.raises(OverflowError):
        encode_rows([2**63], [None], [b"v"])
    with pytest.raises(TypeError):
        encode_rows([1], [None], ["text"])  # type: ignore[list-item]
