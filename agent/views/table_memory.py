"""The newest rows of a table that no run has yet: their keys and places, in sorted parts.

Law of this file: pure; no row is touched by Python as it comes. The rows themselves stand in the log, and the
newest of them in memory as well. A part never changes, so whoever holds the parts of one moment has that
moment's rows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from shoal.agent.table import TableRow
from shoal.agent.views.memory_rows import SETTLED_ROWS, TAKEN_BYTES, MemoryRows
from shoal.agent.views.row_order import offsets_from
from shoal.agent.views.table_order import KeyColumn, newest_of_each
from shoal.format.batch import (
    HEADERS_COLUMN,
    KEY_COLUMN,
    TIMESTAMP_COLUMN,
    VALUE_COLUMN,
    Offset,
    Stamp,
)

GROWTH: Final = 2
"""A part joins the one before as long as that has at most so many times its rows: each row is sorted a few
times in all, and a look goes through some dozen parts."""


RECENT_BYTES: Final = 64 * 2**20
"""Of records that all tables of an agent keep in memory: what two runs are made of."""
RECENT_ENTRY_BYTES: Final = 4 * 2**10
"""Of an entry beside its records: Arrow's objects."""


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


def row_at(rows: pa.RecordBatch, number: int, offset: Offset) -> TableRow | None:
    """One of some records, in the topic's columns at least; None for one without a value."""
    value = rows.column(VALUE_COLUMN)[number].as_py()
    if value is None:
        return None
    headers = rows.column(HEADERS_COLUMN)[number].as_py() or ()
    return TableRow(
        rows.column(KEY_COLUMN)[number].as_py(),
        value,
        offset,
        rows.column(TIMESTAMP_COLUMN)[number].value,
        tuple((item["key"], item["value"]) for item in headers),
    )


class RecentRoom:
    """The memory that recent records of an agent's tables take together."""

    def __init__(self, limit_bytes: int = RECENT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0


class RecentRecords:
    """The newest entries of one table as they came, as many as there is room for. Without them a get of a row
    that no run has yet reads an entry of the log."""

    def __init__(self, room: RecentRoom) -> None:
        self._room = room
        self._bases: list[int] = []
        self._batches: list[pa.RecordBatch] = []
        self._sizes: list[int] = []

    def add(self, base_offset: int, batch: pa.RecordBatch, body_bytes: int) -> None:
        """The records of the next entry. Where there is no room the older half of these makes some."""
        room, size_bytes = self._room, body_bytes + RECENT_ENTRY_BYTES
        while room.used_bytes + size_bytes > room.limit_bytes and self._bases:
            self._drop((len(self._bases) + 1) // 2)
        if room.used_bytes + size_bytes <= room.limit_bytes:
            self._bases.append(base_offset)
            self._batches.append(batch)
            self._sizes.append(size_bytes)
            room.used_bytes += size_bytes

    def drop_before(self, offset: int) -> None:
        """A run has all records before the offset."""
        self._drop(max(bisect_right(self._bases, offset) - 1, 0))

    def _drop(self, count: int) -> None:
        self._room.used_bytes -= sum(self._sizes[:count])
        del self._bases[:count], self._batches[:count], self._sizes[:count]

    def row(self, key: bytes, offset: Offset) -> TableRow | None:
        """The record at that offset, which is this key's; None where it is not kept, or has no value."""
        at = bisect_right(self._bases, offset) - 1
        if at < 0 or offset >= self._bases[at] + self._batches[at].num_rows:
            return None
        row = row_at(self._batches[at], offset - self._bases[at], offset)
        assert row is None or row.key == key, f"the record at {offset} is another key's"
        return row

    def clear(self) -> None:
        """Keep nothing."""
        self._drop(len(self._bases))


class TableMemory(MemoryRows):
    """See the module. `size_bytes`: of the keys, at least. `recent`: the newest records themselves."""

    def __init__(self, room: RecentRoom | None = None) -> None:
        self.recent = RecentRecords(room or RecentRoom())
        self.rows = 0
        self.size_bytes = 0
        self._taken: list[tuple[int, pa.RecordBatch]] = []
        """Entries as they came, with their first offsets."""
        self._taken_bytes = 0
        self._fresh: list[tuple[pa.Array, pa.Array]] = []
        self._parts: list[KeyPart] = []

    def take(self, stamp: Stamp, batch: pa.RecordBatch) -> None:
        """See MemoryRows. Entries stay as they came until there are TAKEN_BYTES of them, or somebody asks: a
        put is an entry of few records."""
        if not batch.num_rows:
            return
        self._taken.append((stamp.base_offset, batch))
        self._taken_bytes += stamp.body_length
        self.recent.add(stamp.base_offset, batch, stamp.body_length)
        self.rows += batch.num_rows
        self.size_bytes += stamp.body_length
        if self._taken_bytes >= TAKEN_BYTES:
            self.let_go()

    def let_go(self) -> None:
        """See MemoryRows: keys are copied, since an entry holds its values too."""
        if not self._taken:
            return
        taken, self._taken, self._taken_bytes = self._taken, [], 0
        while taken:
            first = behind = taken[0][0]
            adjoining: list[pa.RecordBatch] = []
            for base, batch in taken:
                if base != behind or behind - first >= SETTLED_ROWS:
                    break  # a peer's runs have what lies between
                adjoining.append(batch)
                behind += batch.num_rows
            keys = pa.chunked_array([batch.column(KEY_COLUMN) for batch in adjoining])
            twice = pc.multiply(offsets_from(first, behind - first), 2)
            values = [batch.column(VALUE_COLUMN) for batch in adjoining]
            if any(column.null_count for column in values):
                has_value = pa.chunked_array([pc.is_valid(column) for column in values]).combine_chunks()
                places = pc.add(twice, pc.cast(has_value, pa.int64()))
            else:
                places = pc.add(twice, 1)
            copied = keys.take(offsets_from(0, behind - first)).combine_chunks()
            self._fresh.append((copied, places))
            taken = taken[len(adjoining) :]
        self._count()

    def drop_before(self, offset: Offset) -> None:
        """See MemoryRows."""
        self.recent.drop_before(offset)
        self._settle()
        kept = []
        for part in self._parts:
            wanted = pc.greater_equal(part.places, pa.scalar(2 * offset, pa.int64()))
            kept.append(KeyPart(part.keys.array.filter(wanted), part.places.filter(wanted)))
        self._parts = [part for part in kept if len(part)]
        self._count()

    def close(self) -> None:
        """See MemoryRows."""
        self.recent.clear()

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
        self.let_go()
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
        columns = [keys for keys, _ in self._fresh] + [part.keys.array for part in self._parts]
        self.rows = sum(map(len, columns))
        self.size_bytes = sum(column.nbytes for column in columns)
