"""The order of a table's rows: by key, of each key the newest record alone. Prints of keys, by which a run
says that it has not one.

Law of this file: pure, as row_order.py. A record without a value ends its key's row. It stays in the runs as
long as an older run may have a row that it ends.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from shoal.agent.partition.plan import ViewKind
from shoal.agent.views.row_order import OFFSET_COLUMN, RowOrder
from shoal.agent.views.run_format import MAX_INDEX_BYTES, PRINT_BYTES, RunFormatError
from shoal.format.batch import HEADERS_COLUMN, KEY_COLUMN, TIMESTAMP_COLUMN, VALUE_COLUMN, Offset
from shoal.format.hash_ranges import key_hash_64
from shoal.segment_store.disk.disk import Buffer

TABLE_CHUNK_BYTES: Final = 16 * 2**10
"""A get reads and verifies one chunk: 3 us for this many, 15 us for CHUNK_BYTES. Some 60 gets fit into what a
turn of the loop may copy."""
SPARSE_KEYS: Final = 64
"""One key in so many is looked at first, all of them in one call."""
_INT64: Final = struct.Struct("<q")
_TWO_ENDS: Final = struct.Struct("<ii")
_PRINT_MASK: Final = 2**32 - 1


class TableOrder(RowOrder):
    """By key. Of rows with one key the one that stands last, which is the newest."""

    kind = ViewKind.TABLE
    replaces_rows = True
    chunk_bytes = TABLE_CHUNK_BYTES

    def __init__(self, topic_schema: pa.Schema) -> None:
        super().__init__(topic_schema)
        self._key = self.schema.get_field_index(KEY_COLUMN)
        self._value = self.schema.get_field_index(VALUE_COLUMN)
        self._without_nulls = (*self._without_nulls, self._key)

    def in_order(self, rows: pa.RecordBatch) -> pa.Array:
        """See RowOrder."""
        return newest_of_each(rows.column(self._key))

    def key_at(self, rows: pa.RecordBatch, number: int) -> bytes:
        """See RowOrder."""
        key: bytes = rows.column(self._key)[number].as_py()
        return key

    def kept(self, rows: pa.RecordBatch, *, is_oldest: bool, expired_us: int) -> pa.RecordBatch:
        """See RowOrder: nothing older is left that an ended row could come back from."""
        return rows.filter(pc.is_valid(rows.column(self._value))) if is_oldest else rows

    def prints_of(self, chunk: pa.RecordBatch) -> pa.Array:
        """See RowOrder."""
        return prints_of(chunk.column(self._key))

    def filter_of(self, prints: list[pa.Array]) -> bytes:
        """See RowOrder."""
        return filter_from(prints)


def newest_of_each(keys: pa.Array) -> pa.Array:
    """Numbers of the keys in ascending order: of equal ones the last."""
    order = pc.array_sort_indices(keys)  # stable: equal keys stay as they stand
    if len(keys) < 2:
        return order
    ordered = keys.take(order)
    differs = pc.not_equal(ordered.slice(0, len(keys) - 1), ordered.slice(1))
    is_last = pa.concat_arrays([differs, pa.array([True])])
    return order.filter(is_last)


class KeyColumn:
    """Keys without nulls, ascending, of type binary."""

    __slots__ = ("_data", "_ends", "_sparse", "array")

    def __init__(self, array: pa.Array) -> None:
        self.array = array
        _, ends, data = array.buffers()
        # A buffer may be longer than its values: by some bytes, where somebody else has written the file.
        first, last = 4 * array.offset, 4 * (array.offset + len(array) + 1)
        self._ends = memoryview(ends)[first:last].cast("i") if len(array) else memoryview(b"")
        self._data = memoryview(b"" if data is None else data)
        self._sparse: list[bytes] | None = None

    def __len__(self) -> int:
        return len(self.array)

    def key(self, number: int) -> bytes:
        """One of them."""
        return bytes(self._data[self._ends[number] : self._ends[number + 1]])

    def position(self, key: bytes) -> int:
        """The first that is not before the key; their count if all are."""
        if self._sparse is None:
            self._sparse = [self.key(number) for number in range(0, len(self.array), SPARSE_KEYS)]
        behind = bisect_left(self._sparse, key) * SPARSE_KEYS
        low, high = max(behind - SPARSE_KEYS + 1, 0), min(behind, len(self.array))
        data, ends = self._data, self._ends
        while low < high:
            middle = (low + high) // 2
            if bytes(data[ends[middle] : ends[middle + 1]]) < key:
                low = middle + 1
            else:
                high = middle
        return low

    def find(self, key: bytes) -> int | None:
        """Where that very key stands; None if it does not."""
        number = self.position(key)
        return number if number < len(self.array) and self.key(number) == key else None


class ChunkLayout(NamedTuple):
    """Where the values of a chunk's rows stand in its bytes. `valid_values`: of a bitmap, 0 where every row
    has a value. `has_headers`: some row has."""

    rows: int
    offsets: int
    times: int
    key_ends: int
    keys: int
    valid_values: int
    value_ends: int
    values: int
    has_headers: bool

    @classmethod
    def of(cls, rows: pa.RecordBatch, data: Buffer) -> ChunkLayout:
        """`rows`: decoded from these bytes. Raises RunFormatError where they lie elsewhere."""
        base, end = pa.py_buffer(data).address, len(data)

        def positions(name: str) -> list[int]:
            column = rows.column(name)
            buffers = column.buffers()
            found = [0 if item is None or not item.size else item.address - base for item in buffers]
            if column.offset or not all(0 <= position < end for position in found):
                raise RunFormatError(f"the column {name} does not lie in its chunk")
            return found

        _, offsets = positions(OFFSET_COLUMN)
        _, times = positions(TIMESTAMP_COLUMN)
        _, key_ends, keys = positions(KEY_COLUMN)
        valid_values, value_ends, values = positions(VALUE_COLUMN)
        if not rows.column(VALUE_COLUMN).null_count:
            valid_values = 0
        headers = rows.column(HEADERS_COLUMN)
        has_headers = headers.null_count < len(headers)
        count = rows.num_rows
        return cls(count, offsets, times, key_ends, keys, valid_values, value_ends, values, has_headers)


class TableChunk:
    """The rows of one chunk, read from its bytes as they lie: Arrow makes an object of each value, and of all
    columns before that."""

    __slots__ = ("_ends", "data", "layout")

    def __init__(self, data: bytes | bytearray, layout: ChunkLayout) -> None:
        self.data = data
        self.layout = layout
        ends = memoryview(data)[layout.key_ends :][: 4 * (layout.rows + 1)]
        self._ends = ends.cast("i")

    def find(self, key: bytes) -> int | None:
        """Where that very key stands; None if it does not."""
        data, ends, keys = self.data, self._ends, self.layout.keys
        low, high = 0, self.layout.rows
        while low < high:
            middle = (low + high) // 2
            if data[keys + ends[middle] : keys + ends[middle + 1]] < key:
                low = middle + 1
            else:
                high = middle
        found = low < self.layout.rows and data[keys + ends[low] : keys + ends[low + 1]] == key
        return low if found else None

    def offset(self, number: int) -> Offset:
        """Of one row."""
        return Offset(_INT64.unpack_from(self.data, self.layout.offsets + 8 * number)[0])

    def time_us(self, number: int) -> int:
        """The producer's time of one row."""
        found: int = _INT64.unpack_from(self.data, self.layout.times + 8 * number)[0]
        return found

    def value(self, number: int) -> bytes | None:
        """Of one row."""
        data, layout = self.data, self.layout
        valid = layout.valid_values
        if valid and not data[valid + number // 8] >> number % 8 & 1:
            return None
        begin, end = _TWO_ENDS.unpack_from(data, layout.value_ends + 4 * number)
        return bytes(data[layout.values + begin : layout.values + end])


def prints_of(keys: pa.Array) -> pa.Array:
    """32 bits of each key's hash. Python hashes key by key, 0.2 us each: Arrow offers no hash of its own."""
    return pa.array([key_hash_64(key) & _PRINT_MASK for key in keys.to_pylist()], pa.uint32())


def filter_from(prints: list[pa.Array]) -> bytes:
    """The prints of all keys of a run, sorted; empty, which says nothing, where they take too much room. One
    key in 10,000 that a run of 500,000 has not passes for one that it has."""
    column = pa.concat_arrays(prints) if prints else pa.array([], pa.uint32())
    if len(column) * PRINT_BYTES > MAX_INDEX_BYTES:
        return b""
    ordered = column.take(pc.array_sort_indices(column))
    return bytes(memoryview(ordered.buffers()[1])[: len(column) * PRINT_BYTES]) if len(column) else b""


def may_have(filtered: bytes, key: bytes) -> bool:
    """Whether a run with this filter may have the key."""
    if not filtered:
        return True
    prints = memoryview(filtered).cast("I")
    wanted = key_hash_64(key) & _PRINT_MASK
    at = bisect_left(prints, wanted)
    return at < len(prints) and prints[at] == wanted
