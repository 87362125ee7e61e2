"""A record as a consumer sees it.

Law of this file: it is the one place where a read batch becomes Python objects, a column at a time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count, repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from shoal.format.batch import HEADERS_COLUMN, KEY_COLUMN, TIMESTAMP_COLUMN, VALUE_COLUMN
from shoal.format.timestamps import format_time

if TYPE_CHECKING:
    from shoal.client.consume.fetch import Fetched

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Record(NamedTuple):
    """One record. `timestamp_us`: microseconds since the epoch; `headers`: names and values, in order."""

    topic: str
    partition: int
    offset: int
    timestamp_us: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()

    def __repr__(self) -> str:
        when = format_time(self.timestamp_us)
        headers = f", headers={self.headers}" if self.headers else ""
        return (
            f"Record({self.topic}/{self.partition} offset {self.offset}, {when}, key={self.key!r},"
            f" value={self.value!r}{headers})"
        )

    @property
    def timestamp(self) -> datetime:
        """The record's time, in UTC."""
        return _EPOCH + timedelta(microseconds=self.timestamp_us)

    def json(self) -> Any:
        """The value as JSON; None for one without a value. Raises ValueError for a value that is no JSON."""
        return None if self.value is None else json.loads(self.value)


def records_of(topic: str, rows: Fetched) -> Iterator[Record]:
    """The rows as records."""
    batch = rows.batch
    headers = batch.column(HEADERS_COLUMN)
    none: tuple[tuple[str, bytes | None], ...] = ()
    read = (
        repeat(none)
        if headers.null_count == batch.num_rows
        else [tuple((h["key"], h["value"]) for h in row or ()) for row in headers.to_pylist()]
    )
    return map(
        Record,
        repeat(topic),
        repeat(rows.partition),
        count(rows.base_offset),
        batch.column(TIMESTAMP_COLUMN).cast(pa.int64()).to_pylist(),
        batch.column(KEY_COLUMN).to_pylist(),
        batch.column(VALUE_COLUMN).to_pylist(),
        read,
    )
