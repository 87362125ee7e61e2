"""The stamped batch: what is written is read, and nothing else is."""

from __future__ import annotations

import contextlib
import pathlib
import random
import struct
from collections.abc import Callable

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from shoal.format.batch import (
    DEFAULT_SCHEMA,
    END_OF_STREAM,
    MAX_FRAME_BYTES,
    STAMP_BYTES,
    BatchError,
    Flag,
    Frame,
    Kind,
    LogIdentity,
    LogIndex,
    Message,
    Offset,
    ProducerStamp,
    Term,
    control_frame,
    control_payload,
    decode_stream,
    is_frame,
    message_from_batch,
    parse_frame,
    parse_stamp,
    producer_id_from_text,
    schema_frame,
    schema_message,
    stamp_message,
    stamp_of,
    to_record_batch,
)
from shoal.format.producer_table import GatheredRange, decode_producer_table, encode_producer_table

MakeBatch = Callable[..., pa.RecordBatch]
MakeFrame = Callable[..., Frame]


def stamp_position(data: bytes) -> int:
    """Where a frame's stamp begins."""
    metadata_size: int = struct.unpack_from("<i", data, 4)[0]
    return 8 + metadata_size - STAMP_BYTES


def rewritten(frame: Frame, identity: LogIdentity, offset: int, replacement: bytes) -> bytes:
    """The frame with other bytes in its stamp, under a checksum that holds."""
    data = bytearray(frame.data)
    stamp = stamp_position(frame.data)
    data[stamp + offset : stamp + offset + len(replacement)] = replacement
    checksum = crc32c(bytes(data[stamp + 8 :]), crc32c(bytes(data[: stamp + 4]), identity.seed))
    data[stamp + 4 : stamp + 8] = struct.pack("<I", checksum)
    return bytes(data)


def test_a_frame_is_read_as_it_was_stamped(
    identity: LogIdentity, make_frame: MakeFrame, make_batch: MakeBatch
) -> None:
    """Every field of the stamp, the control payload and the records come back, also inside a file."""
    frame = make_frame(25, flags=Flag.GATHERED)
    again = parse_frame(b"x" * 17 + frame.data + b"y" * 9, 17, identity)
    assert again == frame
    assert again.stamp.kind is Kind.DATA
    assert again.stamp.flags is Flag.GATHERED
    assert again.stamp.producer == ProducerStamp(b"p" * 16, 3, 2**40)
    assert (again.stamp.record_count, again.stamp.base_offset) == (25, 40)
    assert again.stamp.max_timestamp_us == 1_700_000_000_000_024
    assert control_payload(again.data) == b"thirteen byte"
    assert to_record_batch(again.data, DEFAULT_SCHEMA).equals(make_batch(25))
    assert parse_stamp(frame.data, 0) == (frame.stamp, len(frame.data))
    assert stamp_of(memoryview(frame.data)) == frame.stamp


def is_entry(data: bytes, identity: LogIdentity, index: int = 12) -> bool:
    """Whether all of the bytes are the frame of that entry, also in the middle of others."""
    found = is_frame(memoryview(data), 0, len(data), LogIndex(index), identity)
    assert is_frame(memoryview(b"x" * 9 + data + b"y"), 9, len(data), LogIndex(index), identity) == found
    return found


def test_a_frame_is_that_of_its_entry_only(identity: LogIdentity, make_frame: MakeFrame) -> None:
    """The short check knows which entry and how many bytes are meant."""
    frame = make_frame(25)
    assert is_entry(frame.data, identity)
    assert not is_entry(frame.data, identity, 11)
    assert not is_entry(frame.data + bytes(8), identity)
    assert not any(is_entry(frame.data[:length], identity) for length in range(len(frame.data)))


def test_a_stamp_needs_no_body(make_frame: MakeFrame) -> None:
    """parse_stamp reads lengths from a head whose body has not arrived; parse_frame says short."""
    frame = make_frame(100)
    head = frame.data[: len(frame.data) - frame.stamp.body_length]
    assert parse_stamp(head, 0) == (frame.stamp, len(frame.data))


def test_every_cut_is_short(identity: LogIdentity, make_frame: MakeFrame) -> None:
    """A frame cut anywhere ran out of bytes, and nothing else is said of it."""
    frame = make_frame(2)
    for length in range(len(frame.data)):
        with pytest.raises(BatchError) as caught:
            parse_frame(frame.data[:length], 0, identity)
        assert caught.value.reason == "short", length


def test_every_flipped_bit_is_found(identity: LogIdentity, make_frame: MakeFrame) -> None:
    """No bit of a stored frame can change unnoticed."""
    data = make_frame(1).data
    for position in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[position] ^= 1 << bit
            with pytest.raises(BatchError):
                parse_frame(bytes(changed), 0, identity)
            assert not is_entry(bytes(changed), identity)


@pytest.mark.parametrize(
    "other",
    [
        LogIdentity(b"d" * 16, b"t" * 16, 3),
        LogIdentity(b"c" * 16, b"u" * 16, 3),
        LogIdentity(b"c" * 16, b"t" * 16, 4),
        LogIdentity(b"c" * 16, b"t" * 16, 3, log_epoch=1),
    ],
)
def test_a_frame_of_another_log_is_refused(make_frame: MakeFrame, other: LogIdentity) -> None:
    """Cluster, topic, partition and epoch all seed the checksum (safety 7)."""
    with pytest.raises(BatchError) as caught:
        parse_frame(make_frame().data, 0, other)
    assert caught.value.reason == "checksum"
    assert not is_entry(make_frame().data, other)


def test_two_thousand_mutations_of_a_stamp_are_read_or_refused(
    identity: LogIdentity, make_frame: MakeFrame
) -> None:
    """With a checksum that happens to hold, or unverified: a frame or BatchError, never another error."""
    rng = random.Random(20131)
    frame = make_frame(4)
    accepted = 0
    for _ in range(2_000):
        offset = rng.choice([0, *range(8, STAMP_BYTES)])
        noise = rng.choice([b"\xff", b"\0", b"\x80", rng.randbytes(1), rng.randbytes(8), b"\xff" * 8])
        data = rewritten(frame, identity, offset, noise[: STAMP_BYTES - offset] if offset else noise[:4])
        try:
            again = parse_frame(data, 0, identity)
            assert again.stamp.body_length <= MAX_FRAME_BYTES
            whole = len(again.data) == len(data)
            assert is_entry(data, identity, again.stamp.index) == whole
            control_payload(again.data)
            parse_frame(data, 0, identity, verify=False)
            accepted += 1
        except BatchError:
            assert not is_entry(data, identity)
            continue
    assert 100 < accepted < 1_900  # the mutations reach both sides


def test_mutated_messages_with_a_valid_checksum_never_crash_a_reader(
    identity: LogIdentity, make_frame: MakeFrame
) -> None:
    """Arrow's own decoding of hostile metadata behind a stamp: a batch or BatchError."""
    rng = random.Random(7)
    frame = make_frame(4)
    for _ in range(500):
        data = bytearray(frame.data)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(8, stamp_position(frame.data))] = rng.randrange(256)
        with contextlib.suppress(BatchError):
            to_record_batch(bytes(data), DEFAULT_SCHEMA)


@pytest.mark.parametrize(
    ("offset", "replacement", "reason"),
    [
        (0, b"LOHS", "magic"),
        (8, b"\x02", "version"),
        (9, b"\x08", "invalid"),  # a kind nobody knows
        (10, b"\x08", "invalid"),  # a flag nobody knows
        (127, b"\x01", "invalid"),  # reserved bytes
        (48, struct.pack("<Q", 2**40), "length"),  # body length above any frame
        (48, struct.pack("<Q", 4), "length"),  # not a multiple of eight
        (92, struct.pack("<I", 10_000), "length"),  # a control payload longer than the metadata
    ],
)
def test_a_stamp_that_holds_but_makes_no_sense_is_refused(
    identity: LogIdentity, make_frame: MakeFrame, offset: int, replacement: bytes, reason: str
) -> None:
    """Each field is checked for itself, not only by the checksum."""
    with pytest.raises(BatchError) as caught:
        parse_frame(rewritten(make_frame(), identity, offset, replacement), 0, identity)
    assert caught.value.reason == reason
    assert not is_entry(rewritten(make_frame(), identity, offset, replacement), identity)


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (bytes(64), "magic"),
        (END_OF_STREAM + bytes(64), "length"),
        (struct.pack("<4si", b"\xff" * 4, -8) + bytes(64), "length"),
        (struct.pack("<4si", b"\xff" * 4, 2**31 - 1) + bytes(64), "length"),
        (struct.pack("<4si", b"\xff" * 4, 256) + bytes(256), "magic"),
        (schema_message(DEFAULT_SCHEMA), "magic"),
        (b"\xff\xff\xff", "short"),
        (b"", "short"),
    ],
)
def test_what_is_no_frame_is_refused(identity: LogIdentity, head: bytes, reason: str) -> None:
    """Zeros of a preallocated tail, the end marker, impossible sizes, plain Arrow messages."""
    with pytest.raises(BatchError) as caught:
        parse_frame(head, 0, identity)
    assert caught.value.reason == reason


def test_a_segment_file_opens_with_pyarrow(
    tmp_path: pathlib.Path, identity: LogIdentity, make_frame: MakeFrame, make_batch: MakeBatch
) -> None:
    """Stamped schema, control and data frames, the end marker, then leftovers: an Arrow stream as it lies."""
    position = {"term": Term(1), "previous_term": Term(0), "append_time_us": 5}
    control = control_frame(
        DEFAULT_SCHEMA,
        identity,
        kind=Kind.CHECKPOINT,
        control=b"state",
        flags=Flag.FIRST_OF_SEGMENT,
        base_offset=Offset(40),
        index=LogIndex(1),
        **position,
    )
    head = schema_frame(
        DEFAULT_SCHEMA, identity, first_index=LogIndex(1), first_offset=Offset(40), previous_term=Term(0)
    )
    stale = make_frame(9).data
    path = tmp_path / "segment.arrows"
    path.write_bytes(b"".join((head, control.data, make_frame(25).data, END_OF_STREAM, bytes(64), stale)))
    with pa.ipc.open_stream(path.read_bytes()) as reader:
        batches = list(reader)
        assert reader.schema.equals(DEFAULT_SCHEMA)
        assert reader.schema.metadata[b"shoal.first_offset"] == b"40"
        assert reader.schema.metadata[b"shoal.topic_id"] == (b"t" * 16).hex().encode()
    assert [batch.num_rows for batch in batches] == [0, 25]
    assert batches[1].equals(make_batch(25))
    stamp = parse_frame(head, 0, identity).stamp
    assert (stamp.kind, stamp.index, stamp.base_offset) == (Kind.SCHEMA, 1, 40)
    assert control_payload(control.data) == b"state"
    assert parse_frame(control.data, 0, identity).stamp.record_count == 0


def test_a_fetch_is_read_by_the_client(make_frame: MakeFrame, make_batch: MakeBatch) -> None:
    """Plain schema message, then frames as stored."""
    schema, batches = decode_stream(schema_message(DEFAULT_SCHEMA) + make_frame(5).data + make_frame(6).data)
    assert schema == DEFAULT_SCHEMA
    assert [batch.num_rows for batch in batches] == [5, 6]
    assert batches[0].equals(make_batch(5))
    with pytest.raises(BatchError) as caught:
        decode_stream(b"no arrow here")
    assert caught.value.reason == "invalid"


def test_a_sliced_batch_stores_only_its_rows(identity: LogIdentity, make_batch: MakeBatch) -> None:
    """A slice of a large batch must not carry the whole of it into the log."""
    message = message_from_batch(make_batch(10_000).slice(5_000, 3))
    assert message.record_count == 3
    assert len(message.body) < 1_000
    assert message.max_timestamp_us == 1_700_000_000_005_002


def test_nothing_above_the_bound_is_stamped(identity: LogIdentity, make_batch: MakeBatch) -> None:
    """Body and control payload together stay within MAX_FRAME_BYTES, and bodies within 16 MiB."""
    message = message_from_batch(make_batch(1))
    place = {"base_offset": Offset(0), "term": Term(1), "previous_term": Term(0), "append_time_us": 0}
    with pytest.raises(BatchError) as caught:
        stamp_message(message, identity, index=LogIndex(1), control=bytes(MAX_FRAME_BYTES), **place)
    assert caught.value.reason == "limit"
    with pytest.raises(BatchError) as caught:
        message_from_batch(make_batch(1, value=bytes(16 * 2**20)))
    assert caught.value.reason == "limit"
    largest = Message(bytes(8), bytes(MAX_FRAME_BYTES - 16 - STAMP_BYTES), 1, 0)
    frame = stamp_message(largest, identity, index=LogIndex(1), **place)
    assert len(frame.data) == MAX_FRAME_BYTES
    assert parse_frame(frame.data, 0, identity).stamp == frame.stamp


ranges = st.lists(
    st.tuples(
        st.binary(min_size=16, max_size=16).filter(any),
        st.integers(0, 2**32 - 1),
        st.integers(0, 2**64 - 1),
        st.integers(0, 100),
        st.integers(1, 100),
    ),
    max_size=20,
)


@given(ranges)
def test_producer_tables_round_trip(rows: list[tuple[bytes, int, int, int, int]]) -> None:
    """Gaps between ranges (requests without a producer) are kept."""
    table, next_row = [], 0
    for producer_id, epoch, sequence, gap, count in rows:
        table.append(GatheredRange(ProducerStamp(producer_id, epoch, sequence), next_row + gap, count))
        next_row += gap + count
    assert decode_producer_table(encode_producer_table(table)) == table


@given(st.binary(max_size=200))
def test_any_bytes_are_a_producer_table_or_refused(payload: bytes) -> None:
    """The one error of decoders."""
    try:
        table = decode_producer_table(payload)
    except BatchError:
        return
    assert encode_producer_table(table) == payload


def test_overlapping_ranges_are_refused() -> None:
    """Two requests cannot have brought the same row."""
    producer = ProducerStamp(b"p" * 16, 0, 0)
    payload = encode_producer_table([GatheredRange(producer, 0, 3), GatheredRange(producer, 2, 1)])
    with pytest.raises(BatchError) as caught:
        decode_producer_table(payload)
    assert caught.value.reason == "invalid"


def test_producer_ids_come_from_printable_names() -> None:
    """First half of SHA-256, stable for ever; anything unprintable is refused."""
    assert producer_id_from_text("shoal").hex() == "888696c38e895dd742b8494f449219c1"
    assert producer_id_from_text("a") != producer_id_from_text("b")
    assert len(producer_id_from_text("ä" * 128)) == 16
    for text in ("", "x" * 129, "line\nfeed", "\0"):
        with pytest.raises(BatchError):
            producer_id_from_text(text)
