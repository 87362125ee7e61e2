"""Runs and manifests whose bytes are others than were written: read alike, or refused with the one error.

Checksums are made good again here, since they say nothing of bytes that were wrong when they were written.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

import crc32c
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_disk import MemoryDisk

from shoal.agent.partition.plan import ViewKind
from shoal.agent.views.due_places import DuePlaces
from shoal.agent.views.manifest import RunEntry, decode_manifest, encode_manifest, follows
from shoal.agent.views.row_order import RowOrder, TimerOrder, offsets_from
from shoal.agent.views.run_format import (
    TAIL_BYTES,
    RunChunk,
    RunFormatError,
    RunIndex,
    RunName,
    RunTail,
    encode_tail,
)
from shoal.agent.views.run_reader import SortedRun
from shoal.agent.views.run_writer import RunEncoder
from shoal.agent.views.table_order import KeyColumn, TableOrder, may_have
from shoal.format.batch import (
    DEFAULT_SCHEMA,
    END_OF_STREAM,
    KEY_COLUMN,
    TIMER_SCHEMA,
    LogIndex,
    Offset,
    schema_message,
)
from shoal.segment_store.disk.open_files import OpenFiles
from shoal.segment_store.errors import Damaged
from tests.agent.views.test_run_format import SEED, manifest_of
from tests.agent.views.view_desk import timer_batch

ROWS = 12
CHUNK_ROWS = 4
NAME = RunName(LogIndex(3), LogIndex(9), 5)
ENTRY = RunEntry(NAME, 0, Offset(ROWS), ROWS, 0)
PATH = f"view/{NAME.file}"
TIMERS, TABLE = TimerOrder(TIMER_SCHEMA), TableOrder(DEFAULT_SCHEMA)
ORDERS = {ViewKind.TIMER: TIMERS, ViewKind.TABLE: TABLE}
Change = Callable[[bytes], bytes]


class Parts(NamedTuple):
    """A file before it has checksums."""

    head: bytes
    chunks: tuple[bytes, ...]
    keys: tuple[bytes, ...]
    filtered: bytes

    def file(self, kind: ViewKind) -> bytes:
        """All of it, with checksums of what there is."""
        entries, position = [], len(self.head)
        for key, data in zip(self.keys, self.chunks, strict=True):
            checksum = crc32c.crc32c(data, SEED)
            entries.append(RunChunk(key, position, max(len(data), 1), checksum, CHUNK_ROWS))
            position += len(data)
        index = RunIndex(entries).to_bytes()
        tail = RunTail(
            kind,
            NAME.first_index,
            NAME.last_index,
            ROWS,
            position + len(END_OF_STREAM),
            len(index),
            len(self.filtered),
            crc32c.crc32c(index, SEED),
            crc32c.crc32c(self.filtered, SEED),
        )
        return b"".join(
            (self.head, *self.chunks, END_OF_STREAM, index, self.filtered, encode_tail(tail, SEED))
        )


def rows_of(order: RowOrder) -> pa.RecordBatch:
    """Sorted rows of a small run."""
    batch = timer_batch([10 * number for number in range(ROWS)])
    keys = pa.array([b"key %02d" % number for number in range(ROWS)], pa.binary())
    columns = {**dict(zip(batch.schema.names, batch.columns, strict=True)), KEY_COLUMN: keys}
    topic = [columns[name] for name in order.topic_schema.names]
    times = pa.array([5] * ROWS, pa.timestamp("us", tz="UTC"))
    return pa.RecordBatch.from_arrays([offsets_from(0, ROWS), times, *topic], schema=order.schema)


def whole(order: RowOrder) -> pa.Table:
    """What every reader of an unchanged file has."""
    return pa.Table.from_batches([rows_of(order)])


def parts_of(order: RowOrder, rows: pa.RecordBatch | None = None) -> Parts:
    """Of a run with these rows, whichever columns they have."""
    given_rows = rows_of(order) if rows is None else rows
    pieces = [given_rows.slice(first, CHUNK_ROWS) for first in range(0, ROWS, CHUNK_ROWS)]
    encoder = RunEncoder(order, NAME, SEED)
    encoder.rows_in_chunks([rows_of(order)])
    return Parts(
        schema_message(given_rows.schema),
        tuple(piece.serialize().to_pybytes() for piece in pieces),
        tuple(order.key_at(rows_of(order), first) for first in range(0, ROWS, CHUNK_ROWS)),
        order.filter_of([found for found in [order.prints_of(rows_of(order))] if found is not None]),
    )


PARTS = {kind: parts_of(order) for kind, order in ORDERS.items()}


def read(data: bytes, kind: ViewKind) -> pa.Table:
    """Every row of a file, after every look that an agent takes. Raises Damaged."""
    return asyncio.run(_read(data, kind))


async def _read(data: bytes, kind: ViewKind) -> pa.Table:
    disk, order = MemoryDisk(), ORDERS[kind]
    await disk.make_directory("view")
    file = await disk.open(PATH, create=True)
    await file.write_and_sync(0, data)
    run = await SortedRun.open(OpenFiles(disk, 2), "view", ENTRY, order, SEED)
    found = []
    for number in range(len(run.index)):
        rows = await run.chunk(number)
        _look(order, run, rows)
        found.append(rows)
    return pa.Table.from_batches(found, order.schema)


def _look(order: RowOrder, run: SortedRun, rows: pa.RecordBatch) -> None:
    if isinstance(order, TimerOrder):
        places = DuePlaces(order.dues(rows), rows.column(0))
        places.position(places.at(0))
        places.count(places.at(0), places.at(len(places) - 1))
    else:
        keys = KeyColumn(rows.column(KEY_COLUMN))
        keys.find(keys.key(rows.num_rows - 1))
        may_have(run.filter, keys.key(0))
    order.position_of(rows, order.key_at(rows, rows.num_rows - 1))
    order.kept(rows.take(order.in_order(rows)), is_oldest=True, expired_us=7)


@st.composite
def changes(draw: st.DrawFn) -> Change:
    """One that knows nothing of the bytes: flipped bits, a cut, zeros or ones over a piece."""
    at, mask = draw(st.integers(0, 2**31)), draw(st.integers(1, 255))
    length = draw(st.integers(1, 9))
    how = draw(st.sampled_from(("flip", "flip", "cut", "fill", "insert")))

    def change(data: bytes) -> bytes:
        place = at % max(len(data), 1)
        if how == "cut":
            return data[:place]
        if how == "fill":
            return data[:place] + bytes([mask] * length) + data[place + length :]
        if how == "insert":
            return data[:place] + bytes([mask] * length) + data[place:]
        return data[:place] + bytes([data[place] ^ mask]) + data[place + 1 :] if data else data

    return change


@pytest.mark.parametrize("kind", ORDERS)
def test_a_run_is_read_as_it_was_written(kind: ViewKind) -> None:
    """The file of these tests is one."""
    assert read(PARTS[kind].file(kind), kind) == whole(ORDERS[kind])


@pytest.mark.parametrize("kind", ORDERS)
@given(change=changes())
@settings(deadline=None)
def test_a_changed_file_is_read_alike_or_refused(kind: ViewKind, change: Change) -> None:
    """Wherever it was changed."""
    try:
        found = read(change(PARTS[kind].file(kind)), kind)
    except Damaged:
        return
    assert found == whole(ORDERS[kind])


@pytest.mark.parametrize("kind", ORDERS)
@given(change=changes(), number=st.integers(0, ROWS // CHUNK_ROWS - 1))
@settings(deadline=None, max_examples=300)
def test_a_chunk_with_a_good_checksum_is_rows_or_refused(kind: ViewKind, change: Change, number: int) -> None:
    """No look into it ends otherwise, whatever its bytes are."""
    chunks = list(PARTS[kind].chunks)
    chunks[number] = change(chunks[number])
    data = PARTS[kind]._replace(chunks=tuple(chunks)).file(kind)
    try:
        assert read(data, kind).num_rows == ROWS
    except Damaged:
        return


def test_ends_of_keys_may_have_bytes_behind_them() -> None:
    """Arrow takes such a chunk; its keys are found, also from one of them on."""
    keys = [b"a", b"", b"key 3"]
    ends = struct.pack("<4i", 0, 1, 1, 6) + b"?"
    array = pa.Array.from_buffers(pa.binary(), 3, [None, pa.py_buffer(ends), pa.py_buffer(b"".join(keys))])
    array.validate(full=True)
    for first in range(3):
        column = KeyColumn(array.slice(first))
        assert [column.key(number) for number in range(len(column))] == keys[first:]


@pytest.mark.parametrize("kind", ORDERS)
@given(change=changes(), part=st.sampled_from(("head", "filtered", "keys")))
@settings(deadline=None)
def test_other_parts_with_good_checksums_are_taken_or_refused(
    kind: ViewKind, change: Change, part: str
) -> None:
    """Schema, filter and the first keys of the chunks."""
    parts = PARTS[kind]
    if part == "keys":
        parts = parts._replace(keys=tuple(sorted(map(change, parts.keys))))
    elif part == "head":
        parts = parts._replace(head=change(parts.head))
    else:
        parts = parts._replace(filtered=change(parts.filtered))
    try:
        assert read(parts.file(kind), kind) == whole(ORDERS[kind])
    except Damaged:
        return


def _other_columns(order: RowOrder) -> Sequence[pa.RecordBatch]:
    """Rows in columns that are not those of the topic: fewer, more, renamed, of another type, in another
    order, with nulls where there are none."""
    rows = rows_of(order)
    names, columns = rows.schema.names, rows.columns
    numbers = pa.array(range(ROWS), pa.int32())
    return [
        pa.RecordBatch.from_arrays(columns[:-1], names=names[:-1]),
        pa.RecordBatch.from_arrays([*columns, numbers], names=[*names, "more"]),
        pa.RecordBatch.from_arrays(columns, names=[*names[:-1], "other"]),
        pa.RecordBatch.from_arrays([numbers, *columns[1:]], names=names),
        pa.RecordBatch.from_arrays(columns[::-1], names=names[::-1]),
        pa.RecordBatch.from_arrays([pa.nulls(ROWS, pa.int64()), *columns[1:]], names=names),
    ]


@pytest.mark.parametrize("kind", ORDERS)
@pytest.mark.parametrize("number", range(6))
def test_other_columns_are_refused(kind: ViewKind, number: int) -> None:
    """Said by the file itself; and in its chunks alone, where a further column is not looked at."""
    order = ORDERS[kind]
    parts = parts_of(order, _other_columns(order)[number])
    with pytest.raises(Damaged, match="columns"):
        read(parts.file(kind), kind)
    parts = parts._replace(head=PARTS[kind].head)
    if number in {1, 2}:
        assert read(parts.file(kind), kind) == whole(order)
    else:
        with pytest.raises(Damaged, match="a chunk holds"):
            read(parts.file(kind), kind)


@pytest.mark.parametrize("kind", ORDERS)
def test_chunks_of_other_rows_are_refused(kind: ViewKind) -> None:
    """In the places of each other, with another number of rows, and with a key that is null."""
    order, parts = ORDERS[kind], PARTS[kind]
    rows = rows_of(order)
    nulls = rows.set_column(rows.schema.get_field_index(KEY_COLUMN), KEY_COLUMN, pa.nulls(ROWS, pa.binary()))
    changed = [parts.chunks[::-1], (rows.slice(0, 3).serialize().to_pybytes(), *parts.chunks[1:])]
    if kind is ViewKind.TABLE:
        changed.append((nulls.slice(0, CHUNK_ROWS).serialize().to_pybytes(), *parts.chunks[1:]))
    for chunks in changed:
        with pytest.raises(Damaged, match="a chunk holds"):
            read(parts._replace(chunks=tuple(chunks)).file(kind), kind)


def test_chunks_beyond_the_stream_are_refused() -> None:
    """An index whose chunks lie in the index."""
    data = PARTS[ViewKind.TIMER].file(ViewKind.TIMER)
    order, entry = TIMERS, RunChunk(TIMERS.key_at(rows_of(TIMERS), 0), 2**40, 2**31, 1, ROWS)
    index = RunIndex([entry]).to_bytes()
    position = len(data) - TAIL_BYTES
    tail = RunTail(
        order.kind,
        NAME.first_index,
        NAME.last_index,
        ROWS,
        position,
        len(index),
        0,
        crc32c.crc32c(index, SEED),
        crc32c.crc32c(b"", SEED),
    )
    with pytest.raises(Damaged, match="bytes"):
        read(data[:-TAIL_BYTES] + index + encode_tail(tail, SEED), order.kind)


@given(change=changes(), runs=st.integers(0, 4))
def test_a_manifest_with_a_good_checksum_is_whole_or_refused(change: Change, runs: int) -> None:
    """Its runs follow each other, or it counts for nothing."""
    data = change(encode_manifest(manifest_of(runs), SEED))
    head = data[8:]
    healed = data[:4] + crc32c.crc32c(head, SEED).to_bytes(4, "little") + head
    try:
        manifest = decode_manifest(healed, SEED)
    except RunFormatError:
        return
    assert follows(manifest)
