"""A partition's records as server-sent events: each event is one record, its id the record's offset."""

from __future__ import annotations

from collections.abc import Iterator

from shoal.agent.http.context import Call
from shoal.agent.http.event_stream import LAST_EVENT_ID
from shoal.agent.http.fetching import Found, Wanted, fetch_rows
from shoal.agent.http.interface import Topic
from shoal.agent.http.limits import Holding
from shoal.agent.http.merging import Rows
from shoal.agent.http.parameters import is_number, shown
from shoal.agent.http.render import SLICE_ROWS, Rendering
from shoal.errors import ShoalError
from shoal.records import render_ndjson


def resumed_offset(call: Call) -> int | None:
    """The offset after that in Last-Event-ID; None when the header is not there, or empty as a reader's that
    has seen no event."""
    text = call.headers.get(LAST_EVENT_ID)
    if not text:
        return None
    if not is_number(text):
        raise ShoalError("bad-request", f"{LAST_EVENT_ID} {shown(text)} is not an offset")
    return int(text) + 1


class PartitionSource:
    """What one reader of one partition, wherever that is led, gets from an offset on (follow.Source)."""

    def __init__(
        self,
        call: Call,
        topic: Topic,
        partition: int,
        offset: int,
        rendering: Rendering,
        max_bytes: int,
        *,
        local: bool,
    ) -> None:
        self._call = call
        self._topic = topic
        self._partition = partition
        self._offset = offset
        self._rendering = rendering
        self._max_bytes = max_bytes
        self._local = local
        self._left = rendering.limit
        self._found: Found | None = None
        self._holding = Holding(call.context.gate)

    @property
    def ended(self) -> bool:
        """Whether all that the reader wants was given."""
        return self._left == 0

    async def look(self, wait_ms: int) -> bool:
        """Fetch what comes next; whether there is any."""
        self._let_go()
        wanted = Wanted(self._partition, self._offset, self._max_bytes, wait_ms, self._local)
        found = await fetch_rows(self._call, self._topic, wanted, self._call.timeout_ms())
        self._found = found
        self._holding.set(found.size_bytes)
        if not found.rows:
            self._offset = max(self._offset, found.next_offset)
        return bool(found.rows)

    def pieces(self) -> Iterator[bytes]:
        """What was fetched, as events, in pieces short enough for one slice of the loop."""
        found = self._found
        if found is None or not found.rows:
            return
        for rows in sliced(found.rows, SLICE_ROWS):
            if self._left is not None:
                rows = Rows(rows.base_offset, rows.batch.slice(0, self._left))
                self._left -= rows.batch.num_rows
            yield record_events(rows, self._rendering)
            self._offset = rows.base_offset + rows.batch.num_rows
            if self._left == 0:
                return
        self._offset = max(self._offset, found.next_offset)

    def close(self) -> None:
        """Nothing is held any more."""
        self._let_go()

    def _let_go(self) -> None:
        self._found = None
        self._holding.set(0)


def sliced(found: list[Rows], rows_max: int) -> Iterator[Rows]:
    """The same rows, in pieces short enough for one slice of the loop."""
    for base_offset, batch in found:
        for row in range(0, batch.num_rows, rows_max):
            yield Rows(base_offset + row, batch.slice(row, rows_max))


def record_events(rows: Rows, rendering: Rendering) -> bytes:
    """An event for each record, as the JSON answers have it."""
    lines = render_ndjson(rows.batch, rows.base_offset, "record", rendering.value_as).split(b"\n")
    return b"".join(
        b"id: %d\ndata: %b\n\n" % (offset, line) for offset, line in enumerate(lines[:-1], rows.base_offset)
    )
