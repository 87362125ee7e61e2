"""The order of a table's rows: by key, of each key the newest record alone. Prints of keys, by which a run
says that it has not one.

Law of this file: pure, as row_order.py. A record without a value ends its key's row. It stays in the runs as
long as an older run may have a row that it ends.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from shoal.agent.partition.plan import ViewKind
from shoal.agent.views.row_order import RowOrder
from shoal.agent.views.run_format import MAX_INDEX_BYTES, PRINT_BYTES
from shoal.format.batch import KEY_COLUMN, VALUE_COLUMN
from shoal.format.hash_ranges import key_hash_64

_PRINT_MASK: Final = 2**32 - 1


class TableOrder(RowOrder):
    """By key. Of rows with one key the one that stands last, which is the newest."""

    kind = ViewKind.TABLE
    replaces_rows = True

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

    __slots__ = ("_data", "_ends", "array")

    def __init__(self, array: pa.Array) -> None:
        self.array = array
        _, ends, data = array.buffers()
        # A buffer may be longer than its values: by some bytes, where somebody else has written the file.
        first, last = 4 * array.offset, 4 * (array.offset + len(array) + 1)
        self._ends = memoryview(ends)[first:last].cast("i") if len(array) else memoryview(b"")
        self._data = memoryview(b"" if data is None else data)

    def __len__(self) -> int:
        return len(self.array)

    def key(self, number: int) -> bytes:
        """One of them."""
        return bytes(self._data[self._ends[number] : self._ends[number + 1]])

    def position(self, key: bytes) -> int:
        """The first that is not before the key; their count if all are."""
        return bisect_left(range(len(self.array)), key, key=self.key)

    def find(self, key: bytes) -> int | None:
        """Where that very key stands; None if it does not."""
        number = self.position(key)
        return number if number < len(self.array) and self.key(number) == key else None


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
