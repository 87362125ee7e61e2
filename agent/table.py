"""The values of a table: what a front door asks of the rows of a topic of kind table, and what it gets.

Law of this file: values only. A row is the newest record of its key, if that has a value. A record without a
value ends its key's row. agent/views knows the rows, agent/delivery judges conditions at the leader.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import pyarrow as pa

from shoal.format.batch import Offset

MAX_TABLE_KEY_BYTES: Final = 65_535
"""The index of a run tells a key's length in 16 bits; a longer one is an address of something, not a key."""
MAX_SCAN_ROWS: Final = 10_000
"""Rows of one page: what they cost beyond their bytes, some 100 bytes each, stays in bounds too."""
MAX_SCAN_BYTES: Final = 16 * 2**20
"""Of one page, but for its first row: a page lies in memory whole."""

Headers = tuple[tuple[str, bytes | None], ...]


class Condition(NamedTuple):
    """Of a put of one record in columns, about the row that is there. `if_offset`: its offset is that one.
    `if_absent`: there is none. Both at once never hold."""

    if_offset: Offset | None = None
    if_absent: bool = False

    @property
    def is_asked(self) -> bool:
        """Whether anything has to be judged."""
        return self.if_absent or self.if_offset is not None

    def holds(self, offset: Offset | None) -> bool:
        """Of the row at that offset; None: of a key without a row."""
        if self.if_absent and offset is not None:
            return False
        return self.if_offset is None or self.if_offset == offset


NO_CONDITION: Final = Condition()


class TableRow(NamedTuple):
    """One row: the record at `offset`. The producer's time is `timestamp_us`."""

    key: bytes
    value: bytes
    offset: Offset
    timestamp_us: int
    headers: Headers


class RowLookup(NamedTuple):
    """The answer to a get. `as_of`: every record before that offset was considered, and none from it on."""

    row: TableRow | None
    as_of: Offset


class ScanRequest(NamedTuple):
    """Rows whose keys begin with `prefix` and lie behind `after`, in the order of their keys. At most `limit`
    of them, and `max_bytes` but for the first."""

    prefix: bytes = b""
    after: bytes | None = None
    limit: int = MAX_SCAN_ROWS
    max_bytes: int = MAX_SCAN_BYTES


class ScanPage(NamedTuple):
    """Rows at one cut. `rows`: columns offset, append_time, then the topic's; sorted by key. `as_of`: as in
    RowLookup. `is_last`: there is no further row; else the next page begins behind the last key of this."""

    rows: pa.RecordBatch
    as_of: Offset
    is_last: bool
