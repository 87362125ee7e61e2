"""The newest rows of a table that no run has yet: their keys and places, in sorted parts.

Law of this file: pure; no row is touched by Python as it comes. The rows themselves are read from the log. A
part never changes, so whoever holds the parts of one moment has that moment's rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from shoal.agent.views.memory_rows import SETTLED_ROWS, MemoryRows
from shoal.agent.views.row_order import offsets_from
from shoal.agent.views.table_order import KeyColumn, newest_of_each
from shoal.format.batch import KEY_COLUMN, VALUE_COLUMN, Offset, Stamp

GROWTH: Final = 2
"""A part joins the one before as long as that has at most so many times its rows: each row is sorted a few
times in all, and a look goes through some dozen parts."""


class KeyPlace(NamedTuple):
    """The newest record of a key. `has_value`: it is a row, and not the end of one."""

    offset: Offset
    has_value: bool


class KeyPart:
    """Keys in ascending order, each once. `places`: twice the offset, and one more for a record with a
    value."""

    __slots__ = ("keys", "places")

    def __init__(self, keys: pa.Array, places: pa.Array) -> None:
        self.keys = KeyColumn(keys)
        self.places = places

    def __len__(self) -> int:
        return len(self.places)

    def find(self, key: bytes) -> KeyPlace | None:
        """Of that key."""
        number = self.keys.find(key)
        return None if number is None else place_of(self.places[number].as_py())


def place_of(number: int) -> KeyPlace:
    """As it stands in a part."""
    return KeyPlace(Offset(number >> 1), bool(number & 1))


def _sorted_part(keys: pa.Array, places: pa.Array) -> KeyPart:
    """Of records as they stand in the log."""
    newest = newest_of_each(keys)
    return KeyPart(keys.take(newest), places.take(newest))


class TableMemory(MemoryRows):
    """See the module. `size_bytes`: of the keys, at least."""

    def __init__(self) -> None:
        self.rows = 0
        self.size_bytes = 0
        self._fresh: list[tuple[pa.Array, pa.Array]] = []
        self._parts: list[KeyPart] = []

    def take(self, stamp: Stamp, batch: pa.RecordBatch) -> None:
        """See MemoryRows. The keys are copied: the batch holds its values too."""
        offsets = offsets_from(stamp.base_offset, batch.num_rows)
        has_value = pc.cast(pc.is_valid(batch.column(VALUE_COLUMN)), pa.int64())
        places = pc.add(pc.multiply(offsets, 2), has_value)
        keys = batch.column(KEY_COLUMN).take(offsets_from(0, batch.num_rows))
        self._fresh.append((keys, places))
        self.rows += batch.num_rows
        self.size_bytes += keys.nbytes

    def let_go(self) -> None:
        """See MemoryRows: it holds none."""

    def drop_before(self, offset: Offset) -> None:
        """See MemoryRows."""
        self._settle()
        kept = []
        for part in self._parts:
            wanted = pc.greater_equal(part.places, pa.scalar(2 * offset, pa.int64()))
            kept.append(KeyPart(part.keys.array.filter(wanted), part.places.filter(wanted)))
        self._parts = [part for part in kept if len(part)]
        self._count()

    def parts(self) -> Sequence[KeyPart]:
        """All of it, older parts first: a later one has newer records alone."""
        self._settle()
        return tuple(self._parts)

    def find(self, key: bytes) -> KeyPlace | None:
        """The newest record of a key."""
        self._settle()
        for part in reversed(self._parts):
            found = part.find(key)
            if found is not None:
                return found
        return None

    def _settle(self) -> None:
        if not self._fresh:
            return
        begin = rows = 0
        for number, (keys, _) in enumerate(self._fresh):
            if rows and rows + len(keys) > SETTLED_ROWS:
                self._join(self._fresh[begin:number])
                begin, rows = number, 0
            rows += len(keys)
        self._join(self._fresh[begin:])
        self._fresh = []
        self._count()

    def _join(self, columns: list[tuple[pa.Array, pa.Array]]) -> None:
        """One part more, together with those before it that are not much larger."""
        part = _sorted_part(
            pa.concat_arrays([keys for keys, _ in columns]),
            pa.concat_arrays([places for _, places in columns]),
        )
        while self._parts and len(self._parts[-1]) <= min(GROWTH * len(part), SETTLED_ROWS - len(part)):
            older = self._parts.pop()
            part = _sorted_part(
                pa.concat_arrays([older.keys.array, part.keys.array]),
                pa.concat_arrays([older.places, part.places]),
            )
        self._parts.append(part)

    def _count(self) -> None:
        self.rows = sum(map(len, self._parts))
        self.size_bytes = sum(part.keys.array.nbytes for part in self._parts)
