"""The rows of a table in the order of their keys, page by page.

Law of this file: one page is one request to any agent, and rests on one cut of each partition. A row that
changes between two pages may be seen as it was or as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import pyarrow as pa

from shoal.client.http.requests import Answer, Call, Cluster
from shoal.client.http.topics import known_routes
from shoal.client.tables.entries import TableEntry, bytes_parameter, cut_of, table_path
from shoal.errors import ShoalError
from shoal.format.arrow_stream import ARROW_STREAM
from shoal.format.batch import KEY_COLUMN, TIMESTAMP_COLUMN, VALUE_COLUMN, decode_stream

PAGE_ROWS: Final = 10_000
"""Of one page, which is what an agent gives at most."""
PAGE_BYTES: Final = 4 << 20
"""Of the rows of one page, about: they become Python objects together."""
PARTITION_COLUMN: Final = "partition"
OFFSET_COLUMN: Final = "offset"


class TablePage(NamedTuple):
    """Rows by key, newest versions only. `cut`: each partition's end that they rest on. `last_key`: of the
    last row; None when no rows are left behind it."""

    rows: pa.RecordBatch | None
    cut: dict[int, int]
    last_key: bytes | None


class TableScan:
    """The rows whose keys begin with `prefix`, behind the key `after`. `local`: any replica may answer, with
    what it knows to be committed."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        *,
        prefix: bytes = b"",
        after: bytes | None = None,
        local: bool = False,
        page_rows: int = PAGE_ROWS,
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._path = table_path(topic)
        self._params = {"limit": str(page_rows), "max_bytes": str(PAGE_BYTES)}
        if prefix:
            self._params |= bytes_parameter("prefix", prefix)
        if local:
            self._params["consistency"] = "local"
        self._after = after
        self.is_over = False
        """Whether the last page was given."""

    async def page(self) -> TablePage:
        """The next page. Cancelled, or failed, it may be asked for again. Raises ShoalError, Unreachable."""
        await known_routes(self._cluster, self._topic)
        params = self._params
        if self._after is not None:
            params = {**params, **bytes_parameter("after", self._after)}
        call = Call("GET", self._path, params, {"Accept": ARROW_STREAM}, bulk=True)
        found = _page_of(await self._cluster.anywhere(call, retry=True))
        self._after, self.is_over = found.last_key, found.last_key is None
        return found


def entries_of(page: TablePage) -> Iterator[TableEntry]:
    """The rows of a page, one by one."""
    rows = page.rows
    if rows is None:
        return iter(())
    return map(
        TableEntry,
        rows.column(KEY_COLUMN).to_pylist(),
        rows.column(VALUE_COLUMN).to_pylist(),
        rows.column(PARTITION_COLUMN).to_pylist(),
        rows.column(OFFSET_COLUMN).to_pylist(),
        rows.column(TIMESTAMP_COLUMN).cast(pa.int64()).to_pylist(),
    )


def _page_of(answer: Answer) -> TablePage:
    try:
        _, batches = decode_stream(answer.body)
        filled = [batch for batch in batches if batch.num_rows]
        rows = None
        if filled:
            rows = filled[0] if len(filled) == 1 else pa.concat_batches(filled)
        is_last = {"true": True, "false": False}[answer.headers["Shoal-Is-Last"]]
    except (KeyError, ValueError) as error:  # BatchError is a ValueError
        raise ShoalError("internal", f"the agent's answer to a scan is damaged: {error!r}") from error
    if rows is None and not is_last:
        raise ShoalError("internal", "the agent's answer to a scan has neither rows nor an end")
    last_key = None if is_last or rows is None else rows.column(KEY_COLUMN)[-1].as_py()
    return TablePage(rows, cut_of(answer.headers), last_key)
