"""Read one partition of a table inside Spark: its rows at one cut, as Arrow.

Pages of a scan rest on cuts of their own, since a table changes meanwhile. Rows that changed behind a page's
cut are taken from the log up to the cut of the last page. Standard library and pyarrow only, blocking. No
loop here touches a row. Answers are not trusted to be complete or in order.
"""

from __future__ import annotations

import tempfile
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import IO, Final, NamedTuple
from urllib.parse import quote, urlencode

import pyarrow as pa
import pyarrow.compute as pc

from shoal.credentials import NO_CREDENTIALS, Credentials
from shoal.format.arrow_stream import ARROW_STREAM, KEY_COLUMN, VALUE_COLUMN, decode_stream
from shoal.spark.options.errors import SourceError
from shoal.spark.options.read_options import TABLE_COLUMNS
from shoal.spark.read.fetch import RangeReader, Scan
from shoal.spark.read.http import (
    DEFAULT_RETRIES,
    Answer,
    LeaderSearch,
    MovedError,
    Persistence,
    may_move,
    pool_of,
    said,
)
from shoal.spark.read.plan import OffsetRange
from shoal.spark.read.topics import find_leader

PAGE_ROWS: Final = 10_000
"""Of one page, which is what an agent gives at most."""
ROWS_BYTES: Final = 16 * 2**20
"""Of the rows of one page, but for its first: the most that an agent gives."""
ANSWER_BYTES_MAX: Final = 3 * ROWS_BYTES
"""Of one answer: rows, the row that passes them, and Arrow's own."""
SPOOLED_BYTES_MAX: Final = 64 * 2**20
"""Of pages held in memory; those of a larger partition wait in a file of the system's own."""


@dataclass(frozen=True, slots=True)
class TableTask:
    """All that a task needs to read one partition of a table, picklable. `urls`: the leader's first."""

    topic: str
    partition: int
    urls: tuple[str, ...]
    agents: tuple[str, ...]
    prefix: bytes = b""
    retries: Persistence = DEFAULT_RETRIES
    page_rows: int = PAGE_ROWS
    credentials: Credentials = NO_CREDENTIALS


class _Page(NamedTuple):
    """`rows` in TABLE_COLUMNS; `end`: the partition's cut."""

    rows: pa.RecordBatch
    end: int
    is_last: bool


class TablePartitionReader:
    """Reads one partition of a table, and follows it when it moves."""

    def __init__(self, task: TableTask, pause: Callable[[float], None] = time.sleep) -> None:
        self._task = task
        self._pause = pause
        self._agents = tuple(dict.fromkeys((*task.urls, *task.agents)))
        self._pool = pool_of(task.credentials)
        find = partial(find_leader, self._pool, task.topic, task.partition, self._agents)
        self._search = LeaderSearch(self._agents, next(iter(task.urls), None), find)
        self._place = f"partition {task.partition} of table {task.topic!r}"

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows at the cut of the last page. Raises SourceError."""
        first = self._page(None)
        if first.is_last:
            yield first.rows
            return
        with tempfile.SpooledTemporaryFile(SPOOLED_BYTES_MAX) as spool:
            ends, last_keys = self._spool(first, spool)
            changes = self._changes(ends[0], ends[-1])
            spool.seek(0)
            with pa.ipc.open_stream(spool) as pages:
                for number, rows in enumerate(pages):
                    after = last_keys[number - 1] if number else None
                    until = last_keys[number] if number + 1 < len(ends) else None
                    yield from _at_end(rows, _among(changes, after, until, ends[number]))

    def _spool(self, page: _Page, spool: IO[bytes]) -> tuple[list[int], list[bytes]]:
        """Write all pages; each one's cut and last key."""
        ends, last_keys = [page.end], [page.rows.column(KEY_COLUMN)[-1].as_py()]
        with pa.ipc.new_stream(spool, page.rows.schema) as pages:
            pages.write_batch(page.rows)
            while not page.is_last:
                page = self._page(last_keys[-1])
                if page.end < ends[-1]:
                    raise SourceError(
                        f"{self._place} fell back from offset {ends[-1]} to {page.end}: read it again"
                    )
                if not page.rows.num_rows:
                    last_keys.append(last_keys[-1])
                else:
                    last_keys.append(page.rows.column(KEY_COLUMN)[-1].as_py())
                pages.write_batch(page.rows)
                ends.append(page.end)
        return ends, last_keys

    def _changes(self, start: int, end: int) -> pa.Table:
        """The newest record of each key between two offsets, in the order of the keys."""
        task = self._task
        urls = tuple(filter(None, (self._search.leader, *task.urls)))
        changed = OffsetRange(task.topic, task.partition, start, end, urls)
        log = Scan(changed, task.agents, TABLE_COLUMNS, credentials=task.credentials)
        found = []
        try:
            for batch in RangeReader(log, self._pause).batches():
                begins = pc.starts_with(batch.column(KEY_COLUMN), pattern=task.prefix)
                found.append(batch.filter(begins))
        except SourceError as error:
            raise SourceError(
                f"{self._place} changed while it was read, and its retention.age may be too short to tell"
                f" ({error})"
            ) from error
        if not found:
            return pa.table({KEY_COLUMN: pa.array([], pa.binary()), VALUE_COLUMN: pa.array([], pa.binary())})
        changes = pa.Table.from_batches(found)
        changes = changes.sort_by([(KEY_COLUMN, "ascending"), ("offset", "ascending")]).combine_chunks()
        keys = changes.column(KEY_COLUMN)
        is_newest = pa.concat_arrays(
            [pc.not_equal(keys[:-1].combine_chunks(), keys[1:].combine_chunks()), pa.array([True])]
        )
        return changes.filter(is_newest)

    def _page(self, after: bytes | None) -> _Page:
        policy = self._task.retries
        what = f"{self._place}: no page of rows in {policy.attempts} attempts; last"
        return policy.persist(lambda attempt: self._attempt(after, attempt), what, self._pause)

    def _attempt(self, after: bytes | None, attempt: int) -> _Page:
        task = self._task
        query: dict[str, str | int] = {
            "partition": task.partition,
            "limit": task.page_rows,
            "max_bytes": ROWS_BYTES,
        }
        for name, value in (("prefix", task.prefix), ("after", after or b"")):
            if value:
                query[f"{name}_base64"] = b64encode(value).decode("ascii")
        base, is_leader = self._search.choose(attempt)
        if is_leader:
            query["forward"] = "false"
        path = f"/v1/tables/{quote(task.topic, safe='')}?{urlencode(query)}"
        answer = self._pool.request(base, "GET", path, {"Accept": ARROW_STREAM}, bytes_max=ANSWER_BYTES_MAX)
        if may_move(answer):
            raise self._search.refused(base, answer)
        if answer.status != 200:
            raise SourceError(said(base, answer))
        return _read_page(base, answer, task.partition)


def _read_page(base: str, answer: Answer, partition: int) -> _Page:
    try:
        number, _, end = answer.headers["Shoal-As-Of"].partition(":")
        is_last = {"true": True, "false": False}[answer.headers["Shoal-Is-Last"]]
        schema, batches = decode_stream(answer.body)
        rows = pa.Table.from_batches(batches, schema).combine_chunks()
        if int(number) != partition or not (rows.num_rows or is_last):
            raise ValueError(f"{rows.num_rows} rows of partition {number}")
        columns = [rows.column(name) for name in TABLE_COLUMNS]
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # BatchError is a ValueError
        raise MovedError(f"{base} sent an answer that is not understood ({error})") from error
    arrays = [column.chunk(0) if column.num_chunks else pa.array([], column.type) for column in columns]
    return _Page(pa.RecordBatch.from_arrays(arrays, names=list(TABLE_COLUMNS)), int(end), is_last)


def _among(changes: pa.Table, after: bytes | None, until: bytes | None, end: int) -> pa.Table:
    """The changes of a page's keys that its cut does not have."""
    if not changes.num_rows:
        return changes
    keys = changes.column(KEY_COLUMN)
    wanted = pc.greater_equal(changes.column("offset"), end)
    if after is not None:
        wanted = pc.and_(wanted, pc.greater(keys, pa.scalar(after, pa.binary())))
    if until is not None:
        wanted = pc.and_(wanted, pc.less_equal(keys, pa.scalar(until, pa.binary())))
    return changes.filter(wanted)


def _at_end(rows: pa.RecordBatch, changes: pa.Table) -> Iterator[pa.RecordBatch]:
    """The rows of a page at the cut of the last page."""
    if not changes.num_rows:
        yield rows
        return
    keys = changes.column(KEY_COLUMN).combine_chunks()
    yield rows.filter(pc.invert(pc.is_in(rows.column(KEY_COLUMN), keys)))
    yield from changes.filter(pc.is_valid(changes.column(VALUE_COLUMN))).to_batches()
