"""GET /v1/topics/{topic}/records: all partitions as one sequence, for people; continued by a cursor.

The records come from the partitions' leaders; what is held of each is bounded. A cursor names for every
partition the next offset to read, and nothing is kept between two requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

from aiohttp import web

from shoal.agent.http.api import operations as api
from shoal.agent.http.api.media import EVENT_STREAM, NDJSON_TYPE
from shoal.agent.http.core.context import Call, Deadline
from shoal.agent.http.core.dispatch import Route
from shoal.agent.http.core.event_stream import LAST_EVENT_ID
from shoal.agent.http.core.parameters import Places, integer, invalid, is_number
from shoal.agent.http.core.respond import send_made
from shoal.agent.http.fetch.cursors import MovingCursor, format_places, places
from shoal.agent.http.fetch.follow import Source, follow
from shoal.agent.http.fetch.merged_reader import Merged, MergedReader
from shoal.agent.http.fetch.offsets import OffsetsGatherer, OffsetsWait
from shoal.agent.http.fetch.read import check_offset_form, offset_within, time_of
from shoal.agent.http.fetch.render import MERGED_FORMS, Rendering, choose_rendering, lines, listed
from shoal.agent.http.rows.row_pieces import SLICE_ROWS, RowWriter, Style
from shoal.agent.interface import Topic
from shoal.errors import ShoalError

# offset=-N looks at N records of every partition.
TAIL_RECORDS_MAX = 10_000
CURSOR = "Shoal-Cursor"


async def records(call: Call) -> web.StreamResponse:
    """One answer with a cursor, or a stream whose ids are cursors."""
    rendering = choose_rendering(call, MERGED_FORMS)
    topic = call.context.broker.topic(call.arguments[0])
    start = Start(call, topic, streams=rendering.media == EVENT_STREAM)
    limits = call.context.limits
    max_bytes = integer(call.query, "max_bytes", limits.default_read_bytes, low=1, high=limits.read_bytes)
    follows = rendering.media == EVENT_STREAM
    reader = MergedReader(call, topic, call.affordable(max_bytes), follows=follows)
    if follows:
        return await call.streaming(follow_all(call, topic, rendering, reader, start))
    try:
        found = await call.waiting(read_once(call, topic, rendering, reader, start))
        cursor = format_places(reader.places)
        return await send_merged(call, topic, rendering, found, cursor, reader.held_bytes)
    finally:
        reader.close()


ROUTES = (Route(api.READ_MERGED, records),)


class Start:
    """Where a merged read begins, checked before anything is asked."""

    def __init__(self, call: Call, topic: Topic, *, streams: bool) -> None:
        self._call = call
        self._topic = topic
        query = call.query
        count = len(topic.ranges)
        self._cursor = places(query, "cursor", count)
        if self._cursor is not None and "offset" in query:
            raise ShoalError("bad-request", "offset and cursor exclude each other", invalid_params=["offset"])
        last = call.headers.get(LAST_EVENT_ID) if streams else None
        if last:
            self._cursor = places({LAST_EVENT_ID: last}, LAST_EVENT_ID, count)
        self._from = query.get("offset", "latest" if streams else "earliest")
        check_offset_form(self._from)
        if is_number(self._from):
            raise ShoalError(
                "bad-request",
                f"offset={self._from}: an offset belongs to one partition; say cursor=0:{self._from}, or "
                f"GET /v1/topics/{topic.name}/partitions/0/records?offset={self._from}",
                invalid_params=["offset"],
            )
        if self._from.startswith("-") and int(self._from[1:]) > TAIL_RECORDS_MAX:
            raise invalid("offset", self._from, f"at most the last {TAIL_RECORDS_MAX} can be merged")

    async def places(self, reader: MergedReader) -> Places:
        """The first offset to read of every partition; a partition that a cursor does not name begins at its
        earliest."""
        count = len(self._topic.ranges)
        cursor = self._cursor
        if cursor is not None and len(cursor) == count:
            return cursor
        at_us = time_of(self._from) if self._from.startswith("@") and cursor is None else None
        gatherer = OffsetsGatherer(self._call, self._topic, at_us)
        ends = await gatherer.gather(Deadline(self._call.timeout_ms()))
        if cursor is not None:
            return {p: cursor[p] if p in cursor else ends[p]["log_start_offset"] for p in range(count)}
        if at_us is not None:
            return {p: ends[p]["offset"] for p in range(count)}
        found = {
            p: offset_within(self._from, ends[p]["log_start_offset"], ends[p]["high_watermark"])
            for p in range(count)
        }
        if self._from.startswith("-"):
            return await reader.tail(
                found, {p: ends[p]["high_watermark"] for p in range(count)}, int(self._from[1:])
            )
        return found


async def follow_all(
    call: Call, topic: Topic, rendering: Rendering, reader: MergedReader, start: Start
) -> web.StreamResponse:
    """The records as an event stream."""
    try:
        reader.begin(await start.places(reader))
        return await follow(call, MergedSource(call, topic, rendering, reader))
    finally:
        reader.close()


async def read_once(
    call: Call, topic: Topic, rendering: Rendering, reader: MergedReader, start: Start
) -> list[Merged]:
    """The records. Waits for news when there are none."""
    wait = Deadline(call.wait_ms())
    assert rendering.limit is not None, "only streams have none"
    reader.begin(await start.places(reader))
    found = await _read(reader, rendering.limit)
    if not found and wait.remaining_ms():
        await OffsetsWait(call, topic, reader.places, wait).until_one_passes()
        await reader.look_again()
        found = await _read(reader, rendering.limit)
    return found


async def _read(reader: MergedReader, limit: int) -> list[Merged]:
    found: list[Merged] = []
    while limit:
        merged = await reader.more(min(limit, SLICE_ROWS))
        if merged is None:
            break
        found.append(merged)
        limit -= len(merged.order)
        await asyncio.sleep(0)
    return found


async def send_merged(
    call: Call, topic: Topic, rendering: Rendering, found: list[Merged], cursor: str, held_bytes: int
) -> web.StreamResponse:
    """As NDJSON, or as a JSON document, made while it is sent."""
    writer = RowWriter()
    texts = (text for merged in found for _, text in texts_of(merged, rendering, writer))
    tail = b'],"cursor":"%b"}\n' % cursor.encode("ascii")
    parts = lines(texts) if rendering.media == NDJSON_TYPE else listed({"topic": topic.name}, texts, tail)
    return await send_made(call, writer.pieces(parts), rendering.media, {CURSOR: cursor}, held_bytes)


def texts_of(
    merged: Merged, rendering: Rendering, writer: RowWriter
) -> Iterator[tuple[int, Iterable[bytes]]]:
    """Of each record, in order, its partition and its text."""

    def texts(partition: int) -> Iterator[Iterable[bytes]]:
        style = Style(rendering.value_as, rendering.view, b'{"partition":%d,' % partition)
        return (text for rows in merged.rows[partition] for text in writer.texts(rows, style))

    made = {partition: texts(partition) for partition in merged.rows}
    return ((partition, next(made[partition])) for partition in merged.order)


class MergedSource(Source):
    """The stream of one reader of all partitions; begin the reader first."""

    def __init__(self, call: Call, topic: Topic, rendering: Rendering, reader: MergedReader) -> None:
        super().__init__(rendering.limit)
        self._call = call
        self._topic = topic
        self._rendering = rendering
        self._reader = reader
        self._merged: Merged | None = None
        self._cursor = MovingCursor(reader.places)  # behind the last event

    async def look(self, wait_ms: int) -> bool:
        """Merge what comes next; whether there is any."""
        self._reader.sent()
        self._merged = await self._more()
        if self._merged is None and wait_ms:
            wait = Deadline(wait_ms)
            await OffsetsWait(self._call, self._topic, self._reader.places, wait).until_one_passes()
            await self._reader.look_again()
            self._merged = await self._more()
        return self._merged is not None

    async def _more(self) -> Merged | None:
        self._reader.fetched_bytes = 0  # of a stream what is held is bounded, not what it sends in all
        return await self._reader.more(SLICE_ROWS if self.left is None else min(self.left, SLICE_ROWS))

    def pieces(self) -> Iterator[bytes]:
        """An event for each record; its id is the cursor that goes on behind it."""
        merged, self._merged = self._merged, None
        if merged is None:
            return
        self.gave(len(merged.order))
        writer = RowWriter()
        yield from writer.pieces(self._events(merged, writer))

    def _events(self, merged: Merged, writer: RowWriter) -> Iterator[bytes]:
        for partition, text in texts_of(merged, self._rendering, writer):
            yield b"id: %b\ndata: " % self._cursor.step(partition).encode("ascii")
            yield from text
            yield b"\n\n"

    def close(self) -> None:
        """Nothing is held any more."""
        self._reader.close()
