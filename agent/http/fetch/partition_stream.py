"""A partition's records as server-sent events: each event is one record, its id the record's offset."""

from __future__ import annotations

from collections.abc import Iterator

from shoal.agent.http.core.context import Call
from shoal.agent.http.core.event_stream import LAST_EVENT_ID
from shoal.agent.http.core.parameters import is_number
from shoal.agent.http.fetch.anywhere import Found, Wanted, fetch_rows
from shoal.agent.http.fetch.render import Rendering
from shoal.agent.http.rows.row_pieces import RowWriter, Style
from shoal.agent.interface import Topic
from shoal.errors import ShoalError, shown


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
        self._holding = call.holding()

    @property
    def ended(self) -> bool:
        """Whether all that the reader wants was given."""
        return self._left == 0

    async def look(self, wait_ms: int) -> bool:
        """Fetch what comes next; whether there is any."""
        self._let_go()
        wanted = Wanted(self._partition, self._offset, self._max_bytes, self._left, wait_ms, self._local)
        found = await fetch_rows(self._call, self._topic, wanted, self._holding, self._call.timeout_ms())
        self._found = found
        if not found.rows:
            self._offset = max(self._offset, found.next_offset)
        return bool(found.rows)

    def pieces(self) -> Iterator[bytes]:
        """What was fetched, as events, in pieces short enough for one slice of the loop."""
        found = self._found
        if found is None or not found.rows:
            return
        writer = RowWriter()
        yield from writer.pieces(self._events(found, writer))
        self._offset = found.next_offset
        if self._left is not None:
            self._left -= sum(rows.batch.num_rows for rows in found.rows)

    def _events(self, found: Found, writer: RowWriter) -> Iterator[bytes]:
        style = Style(self._rendering.value_as, "record")
        for rows in found.rows:
            for offset, text in enumerate(writer.texts(rows, style), rows.base_offset):
                yield b"id: %d\ndata: " % offset
                yield from text
                yield b"\n\n"

    def close(self) -> None:
        """Nothing is held any more."""
        self._let_go()

    def _let_go(self) -> None:
        self._found = None
        self._holding.release()
