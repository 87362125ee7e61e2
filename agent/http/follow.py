"""A partition's records as server-sent events: from a place in the log to its end, and on as it grows.

Each event is one record, its id the record's offset. What goes wrong before the first event is the answer's
status; later it is a last event `problem`. Leadership that moves, or is nowhere for a while, is ridden out.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

from aiohttp import web

from shoal.agent.http.context import Call
from shoal.agent.http.deliver import RETRY_PAUSE_SECONDS
from shoal.agent.http.event_stream import (
    KEEP_ALIVE,
    KEEP_ALIVE_S,
    LAST_EVENT_ID,
    STOPPING,
    EventStream,
    format_event,
)
from shoal.agent.http.fetching import RETRIED_CODES, Found, Wanted, fetch_rows
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


class PartitionStream:
    """One reader that follows one partition."""

    def __init__(
        self, call: Call, topic: Topic, partition: int, rendering: Rendering, max_bytes: int, *, local: bool
    ) -> None:
        self._call = call
        self._topic = topic
        self._partition = partition
        self._rendering = rendering
        self._max_bytes = max_bytes
        self._local = local
        self._left = rendering.limit
        self._offset = 0
        self._holding = Holding(call.context.gate)
        self._stream = EventStream(call)

    async def answer(self, offset: int) -> web.StreamResponse:
        """Stream from the offset until the reader goes, the limit is reached or something is wrong."""
        self._offset = offset
        try:
            first = await self._fetch(wait_ms=0)
            if await self._stream.open():
                await self._stream.keep(
                    self._follow(first), lambda: format_event(None, "stopping", json.dumps(STOPPING))
                )
        finally:
            self._holding.set(0)
        return self._stream.response

    async def _fetch(self, wait_ms: int) -> Found:
        self._holding.set(0)
        wanted = Wanted(self._partition, self._offset, self._max_bytes, wait_ms, self._local)
        found = await fetch_rows(self._call, self._topic, wanted, self._call.timeout_ms())
        self._holding.set(found.size_bytes)
        return found

    async def _follow(self, found: Found) -> None:
        await self._stream.send(KEEP_ALIVE)  # the reader sees that it is heard
        while await self._send(found):
            try:
                found = await self._fetch_news()
            except ShoalError as error:
                await self._stream.send(problem_event(error))
                return

    async def _fetch_news(self) -> Found:
        """What comes next, however long that takes."""
        silent_since = asyncio.get_running_loop().time()
        while True:
            try:
                found = await self._fetch(wait_ms=int(KEEP_ALIVE_S * 1000))
                if found.rows:
                    return found
                self._offset = found.next_offset
            except ShoalError as error:
                if error.code not in RETRIED_CODES or not self._call.may_forward():
                    raise
                await asyncio.sleep(RETRY_PAUSE_SECONDS)
            now = asyncio.get_running_loop().time()
            if now - silent_since >= KEEP_ALIVE_S:
                silent_since = now
                await self._stream.send(KEEP_ALIVE)

    async def _send(self, found: Found) -> bool:
        """Whether the stream goes on behind these records."""
        for rows in sliced(found.rows, SLICE_ROWS):
            if self._left is not None:
                rows = Rows(rows.base_offset, rows.batch.slice(0, self._left))
                self._left -= rows.batch.num_rows
            await self._stream.send(record_events(rows, self._rendering))
            self._offset = rows.base_offset + rows.batch.num_rows
            if self._left == 0:
                return False
        self._offset = max(self._offset, found.next_offset)
        return True


def problem_event(error: ShoalError) -> bytes:
    """The last event of a stream that cannot go on: the problem document. Without an id."""
    return format_event(None, "problem", json.dumps(error.to_problem(), separators=(",", ":")))


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
