"""A table: a topic as a mapping from keys to values, for asyncio.

Law of this file: the public names, thin over row_requests.py, scan.py and watch.py. Text is UTF-8.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from typing import TYPE_CHECKING, Any

from shoal.client.http.requests import Cluster
from shoal.client.tables.entries import TableEntry, if_match
from shoal.client.tables.row_requests import IF_ABSENT, RowRequests
from shoal.errors import ShoalError
from shoal.format.plain_values import Text, as_bytes, json_value

if TYPE_CHECKING:
    from shoal.client.tables.scan import TableScan
    from shoal.client.tables.watch import AsyncTableWatch


class AsyncTable:
    """A table, made by AsyncClient.table. Tasks may share it; it needs no closing.

    Reads are linearizable: they see every write that was answered before they began. All methods raise
    ShoalError (wrong-kind for a topic that is no table, ...) and Unreachable.
    """

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        *,
        local: bool,
        on_watch: Callable[[AsyncTableWatch], object] = lambda watch: None,
    ) -> None:
        self.topic = topic
        self._cluster = cluster
        self._rows = RowRequests(cluster, topic, local=local)
        self._on_watch = on_watch

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.topic!r}{', local reads' if self._rows.local else ''}>"

    # --- one row

    async def get(self, key: Text, default: bytes | None = None) -> bytes | None:
        """The value of a key; `default` when the key is not there."""
        entry = await self.entry(key)
        return default if entry is None else entry.value

    async def get_json(self, key: Text, default: Any = None) -> Any:
        """The value of a key as JSON; `default` when the key is not there. Raises ValueError for a value that
        is none."""
        entry = await self.entry(key)
        return default if entry is None else entry.json()

    async def entry(self, key: Text) -> TableEntry | None:
        """The row of a key with its `etag`, offset and time; None when the key is not there."""
        return await self._rows.get(as_bytes(key, "key"))

    async def contains(self, key: Text) -> bool:
        """Whether the key is there."""
        return await self.entry(key) is not None

    async def put(self, key: Text, value: Text) -> int:
        """Store a value, whatever was there before; returns its ETag. Text is stored as its UTF-8."""
        return await self._rows.put(as_bytes(key, "key"), as_bytes(value, "value"), {})

    async def put_json(self, key: Text, value: object) -> int:
        """As `put`, of a value as compact JSON (None is `null`, and does not delete)."""
        return await self.put(key, json_value(value))

    async def delete(self, key: Text, expected: int | None = None) -> bool:
        """Remove a row; no error where there is none. With `expected` only if its ETag is that one still:
        False when it is not."""
        conditions = {} if expected is None else if_match(expected)
        try:
            await self._rows.delete(as_bytes(key, "key"), conditions)
        except ShoalError as error:
            if error.code == "precondition-failed":
                return False
            raise
        return True

    async def remove(self, key: Text) -> None:
        """Remove the row that is there. Raises KeyError when there is none."""
        while (entry := await self.entry(key)) is not None:
            if await self.delete(key, entry.etag):
                return
        raise KeyError(key)

    async def compare_and_set(self, key: Text, value: Text, expected: int | None) -> int | None:
        """Store a value only if the row's ETag is `expected`; None: only if there is no row. Returns the new
        ETag, or None when the row is another one by now: then nothing was stored."""
        conditions: Mapping[str, str] = IF_ABSENT if expected is None else if_match(expected)
        try:
            return await self._rows.put(as_bytes(key, "key"), as_bytes(value, "value"), conditions)
        except ShoalError as error:
            # An attempt whose answer was lost may still come to a row that is absent again. No row ever gets
            # an old ETag back.
            if error.code == "precondition-failed" and (error.definite or expected is not None):
                return None
            raise

    # --- many rows

    async def entries(self, prefix: Text = b"", after: Text | None = None) -> AsyncGenerator[TableEntry]:
        """The rows whose keys begin so, in the order of their keys' bytes, behind the key `after`. They are
        read in pages of 10,000: a row that changes meanwhile may be seen as it was or as it is."""
        from shoal.client.tables.scan import entries_of  # a row alone needs no Arrow

        scan = self.scan(prefix, after)
        while not scan.is_over:
            for entry in entries_of(await scan.page()):
                yield entry

    def scan(self, prefix: Text = b"", after: Text | None = None) -> TableScan:
        """The same, as Arrow and page by page."""
        from shoal.client.tables.scan import TableScan

        return TableScan(
            self._cluster,
            self.topic,
            prefix=as_bytes(prefix, "prefix"),
            after=None if after is None else as_bytes(after, "key"),
            local=self._rows.local,
        )

    async def items(self, prefix: Text = b"") -> AsyncGenerator[tuple[bytes, bytes]]:
        """Keys and values, as `entries`."""
        async for entry in self.entries(prefix):
            yield entry.key, entry.value

    async def keys(self, prefix: Text = b"") -> AsyncGenerator[bytes]:
        """Keys, as `entries`."""
        async for entry in self.entries(prefix):
            yield entry.key

    def watch(self, prefix: Text = b"", *, start: Mapping[int, int] | None = None) -> AsyncTableWatch:
        """All rows whose keys begin so, then their changes, for ever. `start`: the `positions()` of an
        earlier watch, which is gone on with."""
        from shoal.client.tables.watch import AsyncTableWatch

        watch = AsyncTableWatch(self._cluster, self.topic, prefix=as_bytes(prefix, "prefix"), start=start)
        self._on_watch(watch)
        return watch
