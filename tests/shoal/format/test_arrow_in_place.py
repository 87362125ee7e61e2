"""Batches admitted where they were received: the same messages, frames and refusals as any other way."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TypeVar

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.client.produce.lone_record import row_stream
from shoal.format.arrow_in_place import PlaceReader
from shoal.format.batch import (
    DEFAULT_SCHEMA,
    STAMP_BYTES,
    BatchError,
    LogIdentity,
    LogIndex,
    Message,
    Offset,
    StreamDecoder,
    Term,
    parse_frame,
    stamp_message,
)

T = TypeVar("T")
LEAD_BYTES = 256
IDENTITY = LogIdentity(b"c" * 16, b"t" * 16, 0)


def stream(values: list[bytes], batches: int = 1, *, codec: str | None = None) -> bytes:
    """An Arrow stream of equal batches."""
    rows = [{"timestamp": 7 + row, "key": None, "value": value} for row, value in enumerate(values)]
    batch = pa.RecordBatch.from_pylist(rows, schema=DEFAULT_SCHEMA)
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, DEFAULT_SCHEMA, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        for _ in range(batches):
            writer.write_batch(batch)
    return sink.getvalue()


def in_memory(data: bytes) -> memoryview:
    """The stream as it is received."""
    return memoryview(bytearray(b"\xaa" * LEAD_BYTES + data))


def tried(read: Callable[[], T]) -> T | str:
    """What it returns, or the reason of its refusal."""
    try:
        return read()
    except BatchError as error:
        return error.reason


def outcome(read: object) -> object:
    """A message without the place where it lies."""
    assert isinstance(read, Message)
    return read.metadata, bytes(read.body), read.record_count, read.max_timestamp_us


def decoded(data: bytes) -> list[Message]:
    """The ordinary way."""
    decoder = StreamDecoder(DEFAULT_SCHEMA)
    messages = decoder.feed(data)
    decoder.close()
    return messages


def stamped(message: Message) -> bytes:
    """The stored form."""
    frame = stamp_message(
        message,
        IDENTITY,
        base_offset=Offset(3),
        term=Term(2),
        previous_term=Term(1),
        index=LogIndex(9),
        append_time_us=11,
    )
    assert parse_frame(frame.data, 0, IDENTITY) == frame
    return bytes(frame.data)


@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
def test_same_frame(codec: str | None) -> None:
    """Message and frame are the ordinary ones to the byte, and lie in the memory that was given."""
    data = stream([b"one", b"", b"three" * 50], codec=codec)
    reader = PlaceReader(DEFAULT_SCHEMA, STAMP_BYTES)
    for _ in range(2):
        memory = in_memory(data)
        placed = reader.read(memory, LEAD_BYTES)
        assert placed is not None
        (ordinary,) = decoded(data)
        assert outcome(placed.message) == outcome(ordinary)
        assert data.startswith(placed.opening)
        first = stamped(placed.message)
        assert first == stamped(ordinary)
        assert first in bytes(memory)
        assert stamped(placed.message) == first, "a place that has a stamp is not written to again"


def test_what_is_not_one_batch() -> None:
    """Streams of another shape are nobody's business here and stay as they were."""
    small = stream([b"v"])
    large = stream([b"v"] * 3 + [b"w" * 40_000])
    reader = PlaceReader(DEFAULT_SCHEMA, STAMP_BYTES)
    for data in (b"", small[:100], stream([b"v"], 2), small[:-8] + b"more", small + b"x", large[:-60]):
        memory = in_memory(data)
        assert reader.read(memory, LEAD_BYTES) is None
        assert memory[LEAD_BYTES:] == data


def test_without_room() -> None:
    """Where the head does not fit in front of the body, the batch is not admitted in place."""
    data = stream([b"v"])
    reader = PlaceReader(DEFAULT_SCHEMA, 4096)
    assert reader.read(in_memory(data), LEAD_BYTES) is None


@settings(max_examples=1000, deadline=None)
@given(st.data())
def test_mutations(data: st.DataObject) -> None:
    """Whatever is changed in a stream: the same message, the same reason to refuse, or the ordinary way."""
    original = bytearray(stream([b"one", b"two", b"three"]))
    for _ in range(data.draw(st.integers(1, 3))):
        original[data.draw(st.integers(0, len(original) - 1))] = data.draw(st.integers(0, 255))
    changed = bytes(original)
    reader = PlaceReader(DEFAULT_SCHEMA, STAMP_BYTES)
    if data.draw(st.booleans()):
        assert reader.read(in_memory(stream([b"one", b"two", b"three"])), LEAD_BYTES) is not None
    placed = tried(lambda: reader.read(in_memory(changed), LEAD_BYTES))
    ordinary = tried(lambda: decoded(changed))
    if isinstance(placed, str):
        assert ordinary == placed
    elif placed is not None:
        assert isinstance(ordinary, list)
        assert [outcome(message) for message in ordinary] == [outcome(placed.message)]


@pytest.mark.parametrize("key", [None, b"", b"key"])
@pytest.mark.parametrize("value", [None, b"", b"value", b"12345678"])
def test_a_single_row_is_checked_as_strictly_by_hand(
    key: bytes | None, value: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As its producer writes it, without pyarrow; with any byte of its body changed, the ordinary way's
    message or reason."""
    stream_of_row = row_stream(5, key, value)
    assert stream_of_row is not None
    reader = PlaceReader(DEFAULT_SCHEMA, STAMP_BYTES)
    with monkeypatch.context() as patched:
        patched.setattr("shoal.format.arrow_in_place.check_batch", None)
        placed = reader.read(in_memory(stream_of_row), LEAD_BYTES)
    assert placed is not None
    assert [outcome(placed.message)] == [outcome(message) for message in decoded(stream_of_row)]
    body_bytes = len(placed.message.body)
    for position in range(len(stream_of_row) - 8 - body_bytes, len(stream_of_row) - 8):
        for wrong in (1, 0x80, 0xFF):
            changed = bytearray(stream_of_row)
            changed[position] ^= wrong
            by_hand = tried(lambda changed=changed: reader.read(in_memory(bytes(changed)), LEAD_BYTES))
            ordinary = tried(lambda changed=changed: decoded(bytes(changed)))
            if isinstance(ordinary, str):
                assert by_hand == ordinary
            else:
                assert by_hand is not None
                assert not isinstance(by_hand, str)
                assert [outcome(by_hand.message)] == [outcome(message) for message in ordinary]
