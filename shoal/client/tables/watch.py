"""A watch: the rows of a table, then each change of it, in the order in which each partition committed them.

Law of this file: contents come by scan pages, changes from the log. Pages rest on different cuts: a change
that a row's own page has seen already is not told again. It goes on by itself when leaders change.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from typing import Final, Self

from shoal.client.consume.consumer import AsyncConsumer
from shoal.client.consume.fetch import Fetched
from shoal.client.consume.record import records_of
from shoal.client.http.requests import Cluster
from shoal.client.tables.entries import TableChange, TableChangeKind
from shoal.client.tables.scan import TablePage, TableScan, entries_of
from shoal.errors import ClientClosed
from shoal.unpicklable import LiveObject

FETCH_BYTES: Final = 1 << 20
"""Of the log at once: its changes become Python objects together."""


class SeenCuts:
    """The cut that each key's row was read at."""

    def __init__(self) -> None:
        self._last_keys: list[bytes] = []
        """Each page's, in order; pages of one cut count as one, so that a quiet table has a single one."""
        self._cuts: list[Mapping[int, int]] = []

    def add(self, page: TablePage) -> None:
        """The next page of the scan."""
        if self._cuts and self._cuts[-1] == page.cut:
            self._last_keys.pop()
        else:
            self._cuts.append(page.cut)
        if page.last_key is not None:
            self._last_keys.append(page.last_key)

    @property
    def start(self) -> Mapping[int, int]:
        """Where the changes begin that not every page has seen."""
        return self._cuts[0]

    @property
    def end(self) -> Mapping[int, int]:
        """Where those end: rows and changes up to here are one state of the table."""
        return self._cuts[-1]

    def has_seen(self, partition: int, key: bytes, offset: int) -> bool:
        """Whether the page that the key belongs to knew of the change."""
        cut = self._cuts[bisect_left(self._last_keys, key)]
        return offset < cut.get(partition, 0)


class AsyncTableWatch(LiveObject):
    """The rows of a table, the word that these are all, then changes: `async for change in table.watch()`, or
    `poll()`; not from several tasks at once. `async with` closes it, and so does `close` of the client.

    A watch that has fallen behind the table's history raises ShoalError trimmed: begin another one.
    """

    def __init__(
        self, cluster: Cluster, topic: str, *, prefix: bytes = b"", start: Mapping[int, int] | None = None
    ) -> None:
        """`start`: the `positions` of an earlier watch, which goes on with changes only."""
        self.topic = topic
        self._cluster = cluster
        self._prefix = prefix
        self._scan = TableScan(cluster, topic, prefix=prefix) if start is None else None
        self._seen: SeenCuts | None = SeenCuts() if start is None else None
        """Until all changes were told that some page has seen."""
        self._start = start
        self._consumer: AsyncConsumer | None = None
        self._closed = False
        self.ready: deque[TableChange] = deque()
        """Read and not told: the rows of one page, or the records of one fetch."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "contents" if self._consumer is None else "changes"
        return f"<{type(self).__name__} of {self.topic!r}, {state}>"

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TableChange:
        await self.fill()
        if not self.ready:
            raise StopAsyncIteration
        return self.ready.popleft()

    async def close(self) -> None:
        """Read no more. Idempotent."""
        self._closed = True
        self.ready.clear()
        if self._consumer is not None:
            await self._consumer.close()

    def positions(self) -> dict[int, int] | None:
        """Where a later watch goes on, by partition, once all that is `ready` was told; None while the
        contents are read."""
        if self._start is None or self._seen is not None or self.ready:
            return None
        return dict(self._start) if self._consumer is None else self._consumer.positions()

    async def fill(self) -> None:
        """Wait until something is ready, or the watch is closed. Cancelled, it may be called again. Raises
        ShoalError (trimmed, wrong-kind, ...) and Unreachable."""
        while not self.ready and not self._closed:
            if self._scan is not None:
                await self._read_page(self._scan)
            else:
                await self._read_log()

    async def _read_page(self, scan: TableScan) -> None:
        page = await scan.page()
        assert self._seen is not None, "a scan's pages are noted"
        self._seen.add(page)
        self.ready.extend(TableChange(TableChangeKind.ROW, *entry) for entry in entries_of(page))
        if scan.is_over:
            self._scan, self._start = None, self._seen.start
            self._tell_current(self._seen.start)

    async def _read_log(self) -> None:
        if self._consumer is None:
            assert self._start is not None, "without contents a watch has a start"
            self._consumer = AsyncConsumer(
                self._cluster, self.topic, start=self._start, follow=True, max_bytes=FETCH_BYTES
            )
        found = await self._consumer.poll()
        if found is None:
            self._closed = True
            raise ClientClosed(f"the watch of {self.topic} is closed: make another")
        self._take(found)
        self._tell_current(self._consumer.positions())

    def _take(self, found: Fetched) -> None:
        for record in records_of(self.topic, found):
            key = record.key
            if key is None or not key.startswith(self._prefix):
                continue
            if self._seen is not None and self._seen.has_seen(record.partition, key, record.offset):
                continue
            kind = TableChangeKind.DELETE if record.value is None else TableChangeKind.PUT
            place = (record.partition, record.offset, record.timestamp_us)
            self.ready.append(TableChange(kind, key, record.value, *place))

    def _tell_current(self, positions: Mapping[int, int]) -> None:
        """All that any page has seen was told: say so, once."""
        if self._seen is None or self._scan is not None:
            return
        if all(positions.get(partition, 0) >= offset for partition, offset in self._seen.end.items()):
            self._seen = None
            self.ready.append(TableChange(TableChangeKind.CURRENT))
