"""The blocking client's table: a mapping from keys to values, and its watch, over an event loop in the
client's thread.

Law of this file: it decides nothing. An interrupt (Ctrl-C) between any two steps loses no change of a watch
that its user has not seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NoReturn, Self

from shoal.client.loop_thread import LoopThread, on_thread
from shoal.client.tables.entries import TableChange, TableEntry
from shoal.client.tables.scan import TableScan, entries_of
from shoal.client.tables.table import AsyncTable
from shoal.client.tables.watch import AsyncTableWatch
from shoal.format.plain_values import Text
from shoal.unpicklable import LiveObject

if TYPE_CHECKING:
    from shoal.client.blocking import Client


class Table(LiveObject):
    """A table, made by Client.table: `table[key] = value`, `table[key]`, `del table[key]`, `key in table`.
    Threads may share it; it needs no closing.

    Reads are linearizable: they see every write that was answered before they began. All methods raise
    ShoalError (wrong-kind for a topic that is no table, ...) and Unreachable.
    """

    def __init__(self, client: Client, thread: LoopThread, inner: AsyncTable) -> None:
        self._client = client  # it lives as long as anything that was made by it
        self._thread = thread
        self._inner = inner
        self.topic = inner.topic

    def __repr__(self) -> str:
        return repr(self._inner).replace("AsyncTable", type(self).__name__, 1)

    get = on_thread(AsyncTable.get)
    get_json = on_thread(AsyncTable.get_json)
    entry = on_thread(AsyncTable.entry)
    put = on_thread(AsyncTable.put)
    put_json = on_thread(AsyncTable.put_json)
    delete = on_thread(AsyncTable.delete)
    compare_and_set = on_thread(AsyncTable.compare_and_set)

    # --- as a mapping

    def __getitem__(self, key: Text) -> bytes:
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __setitem__(self, key: Text, value: Text) -> None:
        self.put(key, value)

    def __delitem__(self, key: Text) -> None:
        self._thread.run(self._inner.remove(key))

    def __contains__(self, key: Text) -> bool:
        return self._thread.run(self._inner.contains(key))

    def __iter__(self) -> Iterator[bytes]:
        return self.keys()

    def __len__(self) -> NoReturn:
        """Nobody keeps the number of rows: every put would have to read the row before."""
        raise TypeError("a table does not know how many rows it has: count them by sum(1 for _ in table)")

    def __bool__(self) -> bool:
        return True

    def entries(self, prefix: Text = b"", after: Text | None = None) -> Iterator[TableEntry]:
        """The rows whose keys begin so, in the order of their keys' bytes, behind the key `after`. They are
        read in pages of 10,000: a row that changes meanwhile may be seen as it was or as it is."""
        scan: TableScan = self._inner.scan(prefix, after)
        while not scan.is_over:
            yield from entries_of(self._thread.run(scan.page()))

    def items(self, prefix: Text = b"") -> Iterator[tuple[bytes, bytes]]:
        """Keys and values, as `entries`."""
        return ((entry.key, entry.value) for entry in self.entries(prefix))

    def keys(self, prefix: Text = b"") -> Iterator[bytes]:
        """Keys, as `entries`."""
        return (entry.key for entry in self.entries(prefix))

    def watch(self, prefix: Text = b"", *, start: Mapping[int, int] | None = None) -> TableWatch:
        """All rows whose keys begin so, then their changes, for ever. `start`: the `positions()` of an
        earlier watch, which is gone on with."""
        inner = self._inner.watch(prefix, start=start)
        return TableWatch(self._client, self._thread, inner)


class TableWatch(LiveObject):
    """The rows of a table, the word that these are all, then changes; made by Table.watch. Use it from one
    thread at a time.

    A watch that has fallen behind the table's history raises ShoalError trimmed: begin another one.
    """

    def __init__(self, client: Client, thread: LoopThread, inner: AsyncTableWatch) -> None:
        self._client = client  # it lives as long as anything that was made by it
        self._thread = thread
        self._inner = inner
        self.topic = inner.topic
        weakref.finalize(self, thread.start, inner.close)  # dropped in mid-reading: nothing more is fetched

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._inner).replace("AsyncTableWatch", type(self).__name__, 1)

    def __iter__(self) -> Iterator[TableChange]:
        ready = self._inner.ready
        while True:
            if not ready:
                self._thread.run(self._inner.fill())
            if not ready:
                return
            change = ready[0]  # until the user has it: an interrupt before that leaves it there
            try:
                yield change
            finally:
                ready.popleft()

    def positions(self) -> dict[int, int] | None:
        """Where a later watch goes on, by partition, once all changes of one fetch were told; None before
        that, and while the contents are read."""
        return self._inner.positions()

    close = on_thread(AsyncTableWatch.close)
