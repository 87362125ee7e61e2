"""Admission of a client's Arrow stream: what fits is stored as sent, hostile bytes get one error."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.format import arrow_stream
from shoal.format.arrow_in_place import PlaceReader
from shoal.format.arrow_metadata import (
    RecordBatchHeader,
    encode_record_batch_header,
    read_message_header,
    read_record_batch_header,
)
from shoal.format.batch import (
    DEFAULT_SCHEMA,
    END_OF_STREAM,
    MAX_RECORD_BYTES,
    BatchError,
    LogIdentity,
    LogIndex,
    Message,
    Offset,
    StreamDecoder,
    Term,
    message_from_batch,
    schema_message,
    stamp_message,
    to_record_batch,
)

MakeBatch = Callable[..., pa.RecordBatch]
MakeStream = Callable[..., bytes]


def decode(stream: bytes, schema: pa.Schema = DEFAULT_SCHEMA, **bounds: int) -> list[Message]:
    """A whole stream, fed at once."""
    decoder = StreamDecoder(schema, **bounds)
    messages = decoder.feed(stream)
    decoder.close()
    return messages


def refusal(stream: bytes, schema: pa.Schema = DEFAULT_SCHEMA, **bounds: int) -> str:
    """The reason why a stream is refused."""
    with pytest.raises(BatchError) as caught:
        decode(stream, schema, **bounds)
    return caught.value.reason


def stored(message: Message) -> bytes:
    """The bytes that would go into a log."""
    identity = LogIdentity(bytes(16), bytes(16), 0)
    place = {"base_offset": Offset(0), "term": Term(1), "previous_term": Term(0), "append_time_us": 0}
    return stamp_message(message, identity, index=LogIndex(1), **place).data


def records(message: Message, schema: pa.Schema = DEFAULT_SCHEMA) -> pa.RecordBatch:
    """The stored batch, read back and fully validated."""
    batch = to_record_batch(stored(message), schema)
    batch.validate(full=True)
    return batch


def framed(metadata: bytes, body: bytes = b"") -> bytes:
    """An encapsulated message of our own making."""
    return struct.pack("<4si", b"\xff" * 4, len(metadata)) + metadata + body


def with_header(batch: pa.RecordBatch, **changes: Any) -> bytes:
    """A stream of one batch whose metadata tell something else than its body."""
    message = message_from_batch(batch)
    header = read_record_batch_header(message.metadata, read_message_header(message.metadata))
    body = changes.pop("body", bytes(message.body))
    metadata = encode_record_batch_header(header._replace(**changes))
    return schema_message(DEFAULT_SCHEMA) + framed(metadata, body)


def header_of(batch: pa.RecordBatch) -> RecordBatchHeader:
    """What a batch's metadata say."""
    message = message_from_batch(batch)
    return read_record_batch_header(message.metadata, read_message_header(message.metadata))


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("rows", [0, 1, 1_000])
def test_batches_are_stored_as_they_were_sent(
    make_batch: MakeBatch, make_stream: MakeStream, compression: str | None, rows: int
) -> None:
    """Rows, order and body bytes are the client's, whatever the compression."""
    batch = make_batch(rows)
    stream = make_stream(batch, make_batch(2), compression=compression)
    first, second = decode(stream)
    assert bytes(first.body) in stream
    assert records(first).equals(batch)
    assert records(second).num_rows == 2
    assert first.record_count == rows
    assert first.max_timestamp_us == (1_700_000_000_000_000 + rows - 1 if rows else 0)


@pytest.mark.parametrize("piece_bytes", [1, 3, 8, 100, 1_000])
def test_pieces_of_any_size_give_the_same_messages(
    make_batch: MakeBatch, make_stream: MakeStream, piece_bytes: int
) -> None:
    """A network cuts where it likes."""
    stream = make_stream(make_batch(5), make_batch(0), make_batch(40))
    decoder = StreamDecoder(DEFAULT_SCHEMA)
    messages = []
    for position in range(0, len(stream), piece_bytes):
        messages += decoder.feed(stream[position : position + piece_bytes])
    decoder.close()
    assert messages == decode(stream)
    assert [message.record_count for message in messages] == [5, 0, 40]


def test_a_stream_may_end_without_its_marker_but_only_between_messages(
    make_batch: MakeBatch, make_stream: MakeStream
) -> None:
    """Every cut is short, but the one behind a message, and a stream needs its schema."""
    stream = make_stream(make_batch(2)).removesuffix(END_OF_STREAM)
    head = len(schema_message(DEFAULT_SCHEMA))
    for length in range(len(stream)):
        if length == head:
            assert decode(stream[:length]) == []
        else:
            assert refusal(stream[:length]) == "short", length
    assert len(decode(stream)) == 1
    assert refusal(END_OF_STREAM) == "short"


def test_nothing_hidden_in_metadata_or_padding_is_stored(make_batch: MakeBatch) -> None:
    """Custom metadata, padding behind the flatbuffer and behind the body are dropped (safety 14)."""
    batch = make_batch(3)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, DEFAULT_SCHEMA.with_metadata({"who": "smuggler"})) as writer:
        writer.write_batch(batch, custom_metadata={"cargo": "smuggled"})
    stream = sink.getvalue().to_pybytes()
    assert b"smuggled" in stream
    (message,) = decode(stream)
    assert b"smuggle" not in stored(message)

    plain = message_from_batch(batch)
    padded = framed(plain.metadata + b"smuggled" * 40, bytes(plain.body))
    (message,) = decode(schema_message(DEFAULT_SCHEMA) + padded)
    assert b"smuggled" not in stored(message)
    assert records(message).equals(batch)

    longer = bytes(plain.body) + b"smuggled" * 8
    (message,) = decode(with_header(batch, body=longer, body_length=len(longer)))
    assert b"smuggled" not in stored(message)
    assert records(message).equals(batch)


TIMESTAMP = DEFAULT_SCHEMA.field("timestamp")


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (pa.schema(list(DEFAULT_SCHEMA)[:3]), "schema"),
        (pa.schema(list(DEFAULT_SCHEMA)[::-1]), "schema"),
        (DEFAULT_SCHEMA.set(1, pa.field("key", pa.utf8())), "schema"),
        (DEFAULT_SCHEMA.set(1, pa.field("key", pa.large_binary())), "schema"),
        (DEFAULT_SCHEMA.set(1, pa.field("Key", pa.binary())), "schema"),
        (DEFAULT_SCHEMA.set(1, pa.field("key", pa.binary(), nullable=False)), "schema"),
        (DEFAULT_SCHEMA.set(0, pa.field("timestamp", pa.timestamp("us"))), "schema"),
        (DEFAULT_SCHEMA.set(0, pa.field("timestamp", pa.timestamp("ms", "UTC"))), "schema"),
        (DEFAULT_SCHEMA.set(1, pa.field("key", pa.dictionary(pa.int32(), pa.binary()))), "unsupported"),
        (DEFAULT_SCHEMA.set(2, pa.field("value", pa.json_())), "unsupported"),
        (
            DEFAULT_SCHEMA.set(2, pa.field("value", pa.binary(), metadata={"ARROW:extension:name": "x.y"})),
            "unsupported",
        ),
        (DEFAULT_SCHEMA.append(pa.field("more", pa.list_(pa.field("element", pa.uuid())))), "unsupported"),
        (DEFAULT_SCHEMA.append(TIMESTAMP), "schema"),
    ],
)
def test_another_schema_is_refused(make_stream: MakeStream, schema: pa.Schema, reason: str) -> None:
    """Names, order, types and nullability are the topic's; dictionaries and extensions never (safety 14)."""
    assert refusal(make_stream(schema=schema)) == reason


def test_schema_metadata_are_ignored(make_stream: MakeStream, make_batch: MakeBatch) -> None:
    """pandas and others describe themselves there."""
    schema = DEFAULT_SCHEMA.with_metadata({"pandas": "{}"})
    assert len(decode(make_stream(make_batch(1).cast(schema), schema=schema))) == 1


def test_the_difference_is_named() -> None:
    """The message says which column is wrong and what was expected."""
    wrong = DEFAULT_SCHEMA.set(1, pa.field("key", pa.utf8()))
    with pytest.raises(BatchError, match="column 'key' is string, expected binary"):
        decode(schema_message(wrong))


def test_names_that_are_not_text_are_refused() -> None:
    """Arrow's C++ keeps them as bytes; Python cannot even print them."""
    message = schema_message(DEFAULT_SCHEMA)
    for name in (b"value", b"headers", b"element", b"UTC"):
        assert refusal(message.replace(name, b"\xca" + name[1:])) == "schema"


def test_null_timestamps_are_refused(make_batch: MakeBatch, make_stream: MakeStream) -> None:
    """Every stored record has a time."""
    batch = make_batch(3)
    times = pa.array([1, None, 3], TIMESTAMP.type)
    assert refusal(make_stream(batch.set_column(0, TIMESTAMP, times))) == "invalid"


def test_a_null_count_that_lies_is_refused(make_batch: MakeBatch, make_stream: MakeStream) -> None:
    """Claiming fewer nulls than there are would get a null timestamp past the check."""
    batch = make_batch(3).set_column(0, TIMESTAMP, pa.array([1, None, None], TIMESTAMP.type))
    header = header_of(batch)
    nodes = struct.pack("<qq", 3, 1) + header.nodes[16:]
    assert refusal(with_header(batch, nodes=nodes)) == "invalid"


def test_lengths_must_agree(make_batch: MakeBatch) -> None:
    """Body length, buffer ranges, node lengths and record count against each other (safety 14)."""
    batch = make_batch(3)
    header = header_of(batch)
    last_offset, last_length = header.buffers[-1]
    outside = (*header.buffers[:-1], (last_offset, last_length + 10_000))
    assert refusal(with_header(batch, buffers=outside)) == "length"
    negative = (*header.buffers[:-1], (-8, last_length))
    assert refusal(with_header(batch, buffers=negative)) == "length"
    assert refusal(with_header(batch, buffers=header.buffers[:-1])) == "invalid"
    assert refusal(with_header(batch, record_count=4)) == "invalid"
    assert refusal(with_header(batch, nodes=header.nodes[:-16])) == "invalid"
    for length, null_count in ((3, -1), (3, 4), (2**40, 0), (-1, 0)):
        nodes = struct.pack("<qq", length, null_count) + header.nodes[16:]
        with pytest.raises(BatchError, match="impossible field length or null count"):
            decode(with_header(batch, nodes=nodes))


def test_bounds_are_checked_before_a_body_arrives(make_batch: MakeBatch) -> None:
    """A head that announces too much is refused at once: nothing is held back for it."""
    head = schema_message(DEFAULT_SCHEMA)
    batch = make_batch(3)
    assert refusal(with_header(batch, body=b"", body_length=2**40)) == "limit"
    assert refusal(with_header(batch, body=b"", body_length=2**24 + 8)) == "limit"
    assert refusal(head + struct.pack("<4si", b"\xff" * 4, 2**30)) == "limit"
    assert refusal(head + struct.pack("<4si", b"\xff" * 4, -1)) == "limit"
    assert refusal(with_header(batch), max_message_bytes=100) == "limit"
    assert refusal(with_header(batch), max_records_per_batch=2) == "limit"


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
@pytest.mark.parametrize("declared", [2**40, 2**62, -2])
def test_a_compression_bomb_is_refused_unopened(
    make_batch: MakeBatch, compression: str, declared: int
) -> None:
    """The uncompressed lengths that buffers declare are summed and bounded first (safety 14)."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, DEFAULT_SCHEMA, options=options) as writer:
        writer.write_batch(make_batch(500))
    stream = bytearray(sink.getvalue().to_pybytes())
    (message,) = decode(bytes(stream))
    body_position = bytes(stream).index(bytes(message.body))
    header = read_record_batch_header(message.metadata, read_message_header(message.metadata))
    offset = max(header.buffers, key=lambda pair: pair[1])[0]
    struct.pack_into("<q", stream, body_position + offset, declared)
    assert refusal(bytes(stream)) == ("length" if declared < 0 else "limit")


def test_many_small_buffers_that_unpack_to_much_are_refused(make_stream: MakeStream) -> None:
    """The sum counts, not each buffer; zeros shrink a thousandfold."""
    rows = 9
    columns = [
        pa.array([1] * rows, TIMESTAMP.type),
        pa.nulls(rows, pa.binary()),
        pa.array([bytes(7 * 2**20)] * rows, pa.binary()),
        pa.nulls(rows, DEFAULT_SCHEMA.field("headers").type),
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=DEFAULT_SCHEMA)
    assert len(decode(make_stream(batch, compression="zstd"))) == 1  # 63 MiB: just below the bound
    double = pa.RecordBatch.from_arrays([*columns[:1], columns[2], *columns[2:]], schema=DEFAULT_SCHEMA)
    assert refusal(make_stream(double, compression="zstd")) == "limit"


def test_one_record_above_its_bound_is_refused(make_batch: MakeBatch, make_stream: MakeStream) -> None:
    """8 MiB for a record with its key and headers, though a batch may have 16; where it was received too."""
    big, half = MAX_RECORD_BYTES, MAX_RECORD_BYTES // 2
    for rows, accepted in (
        ([(None, big, None)], True),
        ([(None, big + 1, None)], False),
        ([(1, big - 1, None)], True),
        ([(1, big, None)], False),
        ([(half, half, []), (None, 1, None)], True),
        ([(1, 1, None), (half, half + 1, None)], False),
        ([(None, half, [("n", half - 1)])], True),
        ([(None, half, [("n", half)])], False),
        ([(None, 5, [("a", 3), ("ü", big)])], False),
        ([(None, 9, None), (None, None, [("a", half), ("b", half - 2)]), (8, None, None)], True),
        ([(None, 9, None), (None, None, [("a", half), ("b", half - 1)]), (8, None, [])], False),
    ):
        batch = sized(rows)
        for compression in (None, "lz4"):
            stream = make_stream(batch, compression=compression)
            assert refusal(stream) == "limit" if not accepted else len(decode(stream)) == 1, rows
            memory = memoryview(bytearray(200) + stream)
            reader = PlaceReader(DEFAULT_SCHEMA, 128)
            if accepted:
                assert reader.read(memory, 200) is not None
            else:
                with pytest.raises(BatchError, match="a record has"):
                    reader.read(memory, 200)


def sized(rows: list[tuple[int | None, int | None, list[tuple[str, int]] | None]]) -> pa.RecordBatch:
    """Records with keys, values and headers' values of so many bytes."""

    def content(size: int | None) -> bytes | None:
        return None if size is None else bytes(size)

    records = [
        {
            "timestamp": 1,
            "key": content(key),
            "value": content(value),
            "headers": headers and [{"key": name, "value": bytes(size)} for name, size in headers],
        }
        for key, value, headers in rows
    ]
    return pa.RecordBatch.from_pylist(records, schema=DEFAULT_SCHEMA)


_lengths = st.none() | st.integers(0, 5)
_sized_headers = st.none() | st.lists(
    st.tuples(st.sampled_from(["", "ab", "ü"]), st.integers(0, 5)), max_size=3
)


@given(st.lists(st.tuples(_lengths, _lengths, _sized_headers), min_size=1, max_size=6), st.integers(0, 3))
def test_the_largest_record_is_what_a_loop_would_find(
    rows: list[tuple[int | None, int | None, list[tuple[str, int]] | None]], start: int
) -> None:
    """Of parts of batches too; up to the bound anything that is not less will do."""
    expected = max(
        (
            (key or 0) + (value or 0) + sum(len(name.encode()) + size for name, size in headers or ())
            for key, value, headers in rows[start:]
        ),
        default=0,
    )
    part = sized(rows).slice(start)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow_stream, "MAX_RECORD_BYTES", -1)
        assert arrow_stream.largest_record_bytes(part) == expected
    assert expected <= arrow_stream.largest_record_bytes(part) <= MAX_RECORD_BYTES


def test_order_of_messages_is_checked(make_batch: MakeBatch, make_stream: MakeStream) -> None:
    """Schema first and once, nothing behind the end, no dictionaries, no other stream formats."""
    head = schema_message(DEFAULT_SCHEMA)
    body = make_stream(make_batch(2))[len(head) :]
    assert refusal(body) == "invalid"
    assert refusal(head + head + body) == "invalid"
    assert refusal(head + body + b"\0") == "invalid"
    assert refusal(b"ARROW1\0\0" + head) == "magic"
    assert refusal(b'{"records":[]}') == "magic"
    legacy = head[4:]
    assert refusal(legacy) == "magic"
    dictionary = pa.record_batch({"a": pa.array(["x"]).dictionary_encode()})
    dictionary_stream = make_stream(dictionary)
    dictionary_batch = dictionary_stream[len(schema_message(dictionary.schema)) :]
    assert refusal(head + dictionary_batch) == "unsupported"


def test_metadata_of_other_kinds_are_refused(make_batch: MakeBatch) -> None:
    """Big-endian data, messages without header, versions before V4, bodies that are not padded."""
    head = bytearray(schema_message(DEFAULT_SCHEMA))
    header = read_message_header(bytes(head[8:]))
    vtable = header.table - struct.unpack_from("<i", head, 8 + header.table)[0]
    assert struct.unpack_from("<H", head, 8 + vtable + 4) == (0,)  # endianness is left at its default, little
    fields_position = header.table + struct.unpack_from("<H", head, 8 + vtable + 6)[0]
    big_endian = bytearray(head)
    struct.pack_into("<H", big_endian, 8 + vtable + 4, fields_position - header.table)
    assert refusal(bytes(big_endian)) == "unsupported"

    batch = make_batch(3)
    plain = message_from_batch(batch)
    canonical = encode_record_batch_header(header_of(batch))
    headless = bytearray(canonical)
    struct.pack_into("<H", headless, 12, 0)
    assert refusal(bytes(head) + framed(bytes(headless), bytes(plain.body))) == "invalid"
    old = bytearray(canonical)
    struct.pack_into("<h", old, 20, 2)
    assert refusal(bytes(head) + framed(bytes(old), bytes(plain.body))) == "version"

    header_said = header_of(batch)
    last_offset, last_length = header_said.buffers[-1]
    shorter = bytes(plain.body)[: last_offset + last_length]
    assert len(shorter) % 8
    assert refusal(with_header(batch, body=shorter, body_length=len(shorter))) == "length"
    assert refusal(with_header(batch, codec=0, buffers=((0, 4), *header_said.buffers[1:]))) == "length"
    assert refusal(with_header(batch, codec=2)) == "unsupported"


def test_a_wide_schema_is_read_too(make_stream: MakeStream) -> None:
    """Schemas that are too long to be kept between requests."""
    wide = pa.record_batch({f"column {number:04}": pa.array([number]) for number in range(200)})
    stream = make_stream(wide)
    assert len(schema_message(wide.schema)) > 4096
    (message,) = decode(stream, wide.schema)
    assert records(message, wide.schema).equals(wide)


def test_our_own_batches_are_bounded_too() -> None:
    """A million rows of nothing take no bytes, but they are records all the same."""
    many = pa.record_batch({"nothing": pa.nulls(1_000_001)})
    with pytest.raises(BatchError, match="more than 1000000 records"):
        message_from_batch(many)


def test_invalid_values_are_refused(make_batch: MakeBatch) -> None:
    """Offsets that run backwards, text that is not UTF-8: pyarrow's full validation."""
    batch = make_batch(3)
    header = header_of(batch)
    body = bytearray(message_from_batch(batch).body)
    key_offsets = header.buffers[3][0]
    struct.pack_into("<i", body, key_offsets + 4, 2**30)
    assert refusal(with_header(batch, body=bytes(body))) == "invalid"
    text = bytes(message_from_batch(batch).body).replace(b"trace", b"tr\xffce")
    assert refusal(with_header(batch, body=text)) == "invalid"


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_two_thousand_mutated_messages_are_admitted_or_refused(
    make_batch: MakeBatch, make_stream: MakeStream, compression: str | None
) -> None:
    """Flips, overwrites and cuts: messages that read back validly, or BatchError; never another error."""
    rng = random.Random(f"arrow {compression}")
    original = make_stream(make_batch(20), make_batch(3), compression=compression)
    admitted = 0
    for _ in range(2_000):
        stream = bytearray(original)
        for _ in range(rng.choice([1, 1, 2, 8])):
            position = rng.randrange(len(stream))
            noise = rng.choice([rng.randbytes(1), rng.randbytes(4), b"\xff" * 8, bytes(8), b"\x7f"])
            stream[position : position + len(noise)] = noise
        if rng.random() < 0.1:
            del stream[rng.randrange(len(stream)) :]
        try:
            for message in decode(bytes(stream)):
                batch = records(message)
                assert batch.num_rows == message.record_count
                assert batch.column("timestamp").null_count == 0
                admitted += 1
        except BatchError:
            continue
    assert admitted > 100  # changes inside values are not errors


def test_every_schema_shape_survives_the_canonical_metadata(make_stream: MakeStream) -> None:
    """Typed topics: fixed-width, boolean, nested, decimal, fixed-size and null columns."""
    batch = pa.record_batch(
        {
            "a": pa.array([1, None, 3], pa.int16()),
            "b": pa.array([True, None, False]),
            "c": pa.array([[1], None, [2, 3]], pa.list_(pa.int64())),
            "d": pa.array([{"x": 1.5, "y": "t"}] * 3),
            "e": pa.array([b"abcd", None, b"efgh"], pa.binary(4)),
            "f": pa.nulls(3),
            "g": pa.array([[1, 2], [3, 4], None], pa.list_(pa.int8(), 2)),
            "h": pa.array(["x", None, "z"], pa.large_utf8()),
        }
    )
    for compression in (None, "zstd"):
        (message,) = decode(make_stream(batch, compression=compression), batch.schema)
        assert records(message, batch.schema).equals(batch)
        assert message.max_timestamp_us == 0
