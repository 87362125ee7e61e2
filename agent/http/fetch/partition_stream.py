"""A partition's records as server-sent events: each event is one record, its id the record's offset."""

from __future__ import annotations

from collections.abc import Iterator

from shoal.agent.http.core.context import Call
from shoal.agent.http.core.event_stream import LAST_EVENT_ID
from shoal.agent.http.core.parameters import is_number
from shoal.agent.http.fetch.anywhere import FoundRows, WantedRows, fetch_rows
from shoal.agent.http.fetch.follow import Source
from shoal.agent.http.rows.row_pieces import RowWriter, Style
from shoal.agent.interface import Topic
from shoal.errors import ShoalError, shown
from shoal.format.record_text import ValueAs


def resumed_offset(call: Call) -> int | None:
    """The offset after that in Last-Event-ID; None when the header is not there, or empty as a reader's that
    has seen no event."""
    text = call.headers.get(LAST_EVENT_ID)
    if not text:
        return None
    if not is_number(text):
        raise ShoalError("bad-request", f"{LAST_EVENT_ID} {shown(text)} is not an offset")
    return int(text) + 1


class PartitionSource(Source):
    """The stream of one reader of one partition, led by any agent. `wanted`: from where on, and how much."""

    def __init__(self, call: Call, topic: Topic, wanted: WantedRows, value_as: ValueAs) -> None:
        super().__init__(wanted.limit)
        self._call = call
        self._topic = topic
        self._wanted = wanted
        self._style = Style(value_as, "record")
        self._found: FoundRows | None = None
        self._holding = call.holding()

    async def look(self, wait_ms: int) -> bool:
        """Fetch what comes next; whether there is any."""
        self.close()
        wanted = self._wanted._replace(limit=self.left, wait_ms=wait_ms)
        found = await fetch_rows(self._call, self._topic, wanted, self._holding, self._call.timeout_ms())
        self._found = found
        if not found.rows:
            self._wanted = wanted._replace(offset=max(wanted.offset, found.next_offset))
        return bool(found.rows)

    def pieces(self) -> Iterator[bytes]:
        """The fetched records as events, in pieces short enough for one slice of the loop."""
        found = self._found
        if found is None or not found.rows:
            return
        writer = RowWriter()
        yield from writer.pieces(self._events(found, writer))
        self._wanted = self._wanted._replace(offset=found.next_offset)
        self.gave(sum(rows.batch.num_rows for rows in found.rows))

    def _events(self, found: FoundRows, writer: RowWriter) -> Iterator[bytes]:
        for rows in found.rows:
            for offset, text in enumerate(writer.texts(rows, self._style), rows.base_offset):
                yield b"id: %d\ndata: " % offset
                yield from text
                yield b"\n\n"

    def close(self) -> None:
        """Nothing is held any more."""
        self._found = None
        self._holding.release()
