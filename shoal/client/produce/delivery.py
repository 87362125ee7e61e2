"""The fate of records that were sent: one object for a whole batch, never one for each record.

Law of this file: it counts rows and keeps offsets; it knows neither requests nor agents. A Delivery may be
asked and waited for from any thread, and awaited in any event loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc

from shoal.client.produce.outcome import Outcome


class Appended(NamedTuple):
    """Consecutive records of one partition, as an agent acknowledged them. `base_offset` is that of the
    first; None under acks=none, where no agent says.
    """

    partition: int
    base_offset: int | None
    records: int


class Place(NamedTuple):
    """Where one record is."""

    partition: int
    offset: int | None


@dataclass(slots=True)
class ProducerStatistics:
    """Counts since the producer was opened. `records_sent` went into the buffer, the rest were answered."""

    records_sent: int = 0
    records_acknowledged: int = 0
    requests: int = 0
    duplicates: int = 0


class _Part(NamedTuple):
    """One request's part of a delivery: its rows there, in order; None: all, from `first_row` on."""

    appended: Appended
    rows: pa.Array | None
    first_row: int


class Delivery(Outcome[tuple[Appended, ...]]):
    """The fate of the records that were gathered, or given, together: `done` when all are acknowledged, or
    some never will be.

    `result()` waits (blocking), `await delivery` does in a coroutine; both raise ProduceFailed when some of
    the records could not be delivered.
    """

    __slots__ = ("_missing", "_parts", "rows")

    def __init__(self) -> None:
        super().__init__()
        self.rows = 0
        """How many records; 0 while more are being gathered."""
        self._missing = 0
        self._parts: list[_Part] = []

    def place(self, row: int) -> Place:
        """Where record number `row` of these is. Complete deliveries only; raises as `result`."""
        if not 0 <= row < self.rows:
            raise IndexError(f"row {row} of {self.rows}")
        self.result(0)
        for part in self._parts:
            position = row - part.first_row
            if part.rows is not None:
                position = pc.index(part.rows, pa.scalar(row, part.rows.type)).as_py()
            if 0 <= position < part.appended.records:
                base = part.appended.base_offset
                return Place(part.appended.partition, None if base is None else base + position)
        raise AssertionError("a complete delivery has a place for each of its rows")

    def expect(self, rows: int) -> Self:
        """So many rows belong to it; called once, before any part is delivered."""
        assert self.rows == 0
        self.rows = self._missing = rows
        if rows == 0:
            self.succeed(())
        return self

    def delivered(self, piece: Piece, partition: int, base_offset: int | None) -> None:
        """A part of it was acknowledged."""
        appended = Appended(partition, base_offset, piece.num_rows)
        self._parts.append(_Part(appended, piece.rows, piece.first_row))
        self._missing -= piece.num_rows
        assert self._missing >= 0
        if self._missing == 0:
            self.succeed(tuple(part.appended for part in self._parts))

    def __repr__(self) -> str:
        if not self.done:
            return f"<Delivery of {self.rows or 'gathering'} records, {self._missing} not acknowledged>"
        return f"<Delivery of {self.rows} records: {self.error or 'all acknowledged'}>"


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one delivery that go to one partition. `rows`: which rows of the delivery, ascending; None:
    consecutive ones from `first_row` on."""

    batch: pa.RecordBatch
    delivery: Delivery
    rows: pa.Array | None = None
    first_row: int = 0

    @property
    def num_rows(self) -> int:
        count: int = self.batch.num_rows
        return count

    @property
    def nbytes(self) -> int:
        size_bytes: int = self.batch.nbytes
        return size_bytes

    def slice(self, offset: int, length: int) -> Self:
        """Some of its rows, without copying."""
        rows = None if self.rows is None else self.rows.slice(offset, length)
        first_row = self.first_row + offset if self.rows is None else 0
        return type(self)(self.batch.slice(offset, length), self.delivery, rows, first_row)
