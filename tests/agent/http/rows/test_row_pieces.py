"""Rows as text piece by piece: the same bytes as in one go, and no piece is large."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shoal.agent.http.fetch.render import lines
from shoal.agent.http.rows.row_pieces import (
    SLICE_BYTES,
    Rows,
    RowWriter,
    Style,
    leading_rows,
    row_sizes,
)
from shoal.format.batch import DEFAULT_SCHEMA, TIMER_SCHEMA
from shoal.format.record_text import EMBEDDED_BYTES_MAX, render_ndjson

Record = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]] | None]

STRETCHES = [
    b"ascii", "ü".encode(), "日本".encode(), "🐟".encode(), b"\x01", b'"\\\n', b"\xff\xfe", b'{"a":[1]}',
]  # fmt: skip
LONG = st.builds(
    lambda stretch, size: (stretch * (size // len(stretch) + 1))[:size],
    st.sampled_from(STRETCHES),
    st.integers(SLICE_BYTES - 7, 3 * SLICE_BYTES),
)
BYTES = st.none() | st.binary(max_size=40) | st.sampled_from([b'{"a": 1}', b"[]", b"1e999"]) | LONG
HEADERS = st.none() | st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=9)), max_size=3)
MANY_HEADERS = st.integers(500, 3_000).map(
    lambda count: [(f"h{n}", b"\xff" if n % 7 else None) for n in range(count)]
)
RECORDS = st.lists(
    st.tuples(st.integers(0, 2**50), BYTES, BYTES, HEADERS | MANY_HEADERS), min_size=1, max_size=6
)


def batch_of(records: list[Record]) -> pa.RecordBatch:
    """As a topic stores them."""
    columns = [list(column) for column in zip(*records, strict=True)]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, DEFAULT_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=DEFAULT_SCHEMA)


@settings(max_examples=60, deadline=None)
@given(records=RECORDS, first=st.integers(0, 5), parsed=st.booleans(), is_timer=st.booleans())
@example([(0, None, b"\x01" * 141_989, None)], 0, False, False)
@example([(0, None, b"\x01" * 141_989, None)], 0, False, True)
def test_pieces_are_the_same_bytes_and_none_is_large(
    records: list[Record], first: int, parsed: bool, is_timer: bool
) -> None:
    """Whatever is in a record, and wherever a slice of the batch begins."""
    whole = batch_of(records)
    if is_timer:
        times = [at[0] if number % 2 else None for number, at in enumerate(records, 1)]
        due_times = pa.array(times, TIMER_SCHEMA.field("deliver_at").type)
        whole = pa.RecordBatch.from_arrays([*whole.columns, due_times], schema=TIMER_SCHEMA)
    batch = whole.slice(min(first, len(records) - 1))
    value_as = "json" if parsed else "text"
    writer = RowWriter()
    texts = writer.texts(Rows(7, batch), Style(value_as, "record"))
    pieces = list(writer.pieces(lines(texts)))
    assert b"".join(pieces) == render_ndjson(batch, 7, "record", value_as)
    assert max(map(len, pieces)) <= 13 * SLICE_BYTES  # two slices of control characters at the most
    opened = b"".join(
        b"".join(text) for text in writer.texts(Rows(7, batch), Style("text", "record", b'{"p":1,'))
    )
    assert opened == b"".join(b'{"p":1,' + line[1:] for line in render_ndjson(batch, 7).split(b"\n")[:-1])
    values = b"".join(
        b"".join((*text, b"\n")) for text in writer.texts(Rows(7, batch), Style("text", "value"))
    )
    assert values == render_ndjson(batch, 7, "value")


@settings(max_examples=60, deadline=None)
@given(records=RECORDS, first=st.integers(0, 5))
def test_sizes_count_everything_that_a_row_has(records: list[Record], first: int) -> None:
    """Keys, values and headers, in slices too."""
    first = min(first, len(records) - 1)
    expected = [
        32 + len(key or b"") + len(value or b"")
        + sum(16 + len(name.encode()) + len(content or b"") for name, content in headers or ())
        for _, key, value, headers in records[first:]
    ]  # fmt: skip
    assert row_sizes(batch_of(records).slice(first)).to_pylist() == expected


def test_as_many_rows_as_fit_and_at_least_one() -> None:
    """By bytes; a row that is larger than the room goes alone."""
    batch = batch_of([(1, None, bytes(size), None) for size in (100, 100, 5_000, 100)])
    for room, count in ((1, 1), (132, 1), (263, 1), (264, 2), (5_295, 2), (5_296, 3), (50_000, 4)):
        assert leading_rows(batch, room)[0] == count, room
    assert leading_rows(batch.slice(2), 10) == (1, 5_032)
    many = batch_of([(1, None, b"v", None)] * 20_000)
    assert leading_rows(many, 33 * 12_345) == (12_345, 33 * 12_345)


@pytest.mark.parametrize("excess", [0, 1])
def test_a_long_value_is_not_parsed(excess: int) -> None:
    """value=json embeds what one slice of the loop can parse; a longer value stays text."""
    value = b'"' + b"x" * (EMBEDDED_BYTES_MAX - 2 + excess) + b'"'
    line = json.loads(render_ndjson(batch_of([(0, None, value, None)]), 0, "record", "json"))
    assert line["value"] == (value.decode() if excess else json.loads(value))


@settings(max_examples=30, deadline=None)
@given(records=RECORDS, data=st.data())
def test_rows_with_offsets_of_their_own(records: list[Record], data: st.DataObject) -> None:
    """Small rows and large ones are told with the offsets that they are given."""
    offsets = data.draw(st.lists(st.integers(0, 2**62), min_size=len(records), max_size=len(records)))
    texts = RowWriter().texts(Rows(offsets[0], batch_of(records), offsets), Style("text", "record"))
    told = [json.loads(line)["offset"] for line in b"".join(lines(texts)).splitlines()]
    assert told == offsets
