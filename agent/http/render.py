"""What a fetch looks like to its reader: JSON, NDJSON, or the stored Arrow batches themselves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Literal, NamedTuple

import pyarrow as pa
from aiohttp import web

from shoal.agent.http.context import Call
from shoal.agent.http.decode import ARROW_TYPE, NDJSON_TYPE
from shoal.agent.http.event_stream import EVENT_STREAM
from shoal.agent.http.interface import Fetch, Topic
from shoal.agent.http.long_answer import send_pieces
from shoal.agent.http.parameters import choice, integer, shown
from shoal.agent.http.problems import JSON_TYPE
from shoal.agent.http.respond import send_parts
from shoal.batch import END_OF_STREAM, parse_stamp, schema_message, to_record_batch
from shoal.errors import ShoalError
from shoal.records import render_ndjson, render_records

DEFAULT_LIMIT = 100
LIMIT_MAX = 10_000_000
# Rows made into JSON in one go: about 3 ms, one slice of the loop (safety 26).
SLICE_ROWS = 500
PARTITION_FORMS = (JSON_TYPE, NDJSON_TYPE, ARROW_TYPE, EVENT_STREAM)
MERGED_FORMS = (JSON_TYPE, NDJSON_TYPE, EVENT_STREAM)


class Rendering(NamedTuple):
    """How the client wants its records."""

    media: str
    limit: int | None
    value_as: Literal["text", "json"]
    view: Literal["record", "value"]


class Slice(NamedTuple):
    """Some rows of one stored batch."""

    batch: pa.RecordBatch
    base_offset: int


def choose_rendering(call: Call, forms: tuple[str, ...] = PARTITION_FORMS) -> Rendering:
    """From Accept and the query; ShoalError not-acceptable or bad-request."""
    media = choose_media(call.headers.get("Accept"), forms)
    query = call.query
    default = None if media in (ARROW_TYPE, EVENT_STREAM) else DEFAULT_LIMIT
    limit = integer(query, "limit", 0, low=1, high=LIMIT_MAX) or default
    value_as = choice(query, "value", "text", ("text", "json"))
    view = choice(query, "view", "record", ("record", "value"))
    if view == "value" and media != NDJSON_TYPE:
        raise ShoalError(
            "bad-request", f"view=value belongs to Accept: {NDJSON_TYPE}", invalid_params=["view"]
        )
    if media == EVENT_STREAM and "wait" in query:
        raise ShoalError(
            "bad-request", "an event stream waits by itself, without wait", invalid_params=["wait"]
        )
    if value_as == "json" and media == ARROW_TYPE:
        raise ShoalError("bad-request", "value=json belongs to JSON answers", invalid_params=["value"])
    return Rendering(
        media, limit, "json" if value_as == "json" else "text", "value" if view == "value" else "record"
    )


def choose_media(accept: str | None, forms: tuple[str, ...]) -> str:
    """The best offered type of an Accept header; JSON where nothing is said (RFC 9110 12.5.1, without
    wildcards' finesse).
    """
    if accept is None or accept == "*/*":
        return JSON_TYPE
    best, best_quality = "", 0.0
    for item in accept.split(",")[:32]:
        media, _, parameters = item.partition(";")
        media = media.strip().lower()
        offered = JSON_TYPE if media in ("*/*", "application/*") else media
        quality = _quality(parameters)
        if offered in forms and quality > best_quality:
            best, best_quality = offered, quality
    if not best:
        raise ShoalError("not-acceptable", f"Accept: {shown(accept)}: {', '.join(forms)} can be served")
    return best


def _quality(parameters: str) -> float:
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "q":
            try:
                quality = float(value)
            except ValueError:
                return 0.0
            return quality if 0.0 <= quality <= 1.0 else 0.0
    return 1.0


async def render(
    call: Call, rendering: Rendering, topic: Topic, partition: int, fetch: Fetch, offset: int
) -> web.StreamResponse:
    """The answer to a read that began at `offset`."""
    if rendering.media == ARROW_TYPE:
        return await _render_arrow(call, rendering, fetch, offset)
    records: list[bytes] = []
    next_offset = max(offset, fetch.next_offset) if not fetch.frames else fetch.next_offset
    remaining = rendering.limit
    async for piece in _slices(fetch, offset, remaining):
        if rendering.media == NDJSON_TYPE:
            records.append(render_ndjson(piece.batch, piece.base_offset, rendering.view, rendering.value_as))
        else:
            rows = render_records(piece.batch, piece.base_offset, rendering.value_as)
            records.append(json.dumps(rows, separators=(",", ":"))[1:-1].encode("ascii"))
        if remaining is not None:
            remaining -= piece.batch.num_rows
            if remaining <= 0:
                next_offset = piece.base_offset + piece.batch.num_rows
    headers = _headers(fetch, next_offset)
    if rendering.media == NDJSON_TYPE:
        return await send_parts(call, records, NDJSON_TYPE, headers)
    head = (
        json.dumps({"topic": topic.name, "partition": partition}, separators=(",", ":"))[:-1] + ',"records":['
    )
    tail = b'],"next_offset":%d,"log_start_offset":%d,"high_watermark":%d}\n' % (
        next_offset,
        fetch.log_start_offset,
        fetch.high_watermark,
    )
    return await send_parts(call, [head.encode("ascii"), b",".join(records), tail], JSON_TYPE, headers)


async def _slices(fetch: Fetch, offset: int, limit: int | None) -> AsyncIterator[Slice]:
    """The fetch's rows from `offset`, at most `limit`, in slices that leave the loop free in between."""
    remaining = limit
    for frame in fetch.frames:
        stamp, _ = parse_stamp(frame, 0)
        end = stamp.base_offset + stamp.record_count
        if stamp.record_count == 0 or end <= offset:
            continue
        batch = to_record_batch(bytes(frame), fetch.schema)
        row = max(0, offset - stamp.base_offset)
        while row < batch.num_rows and (remaining is None or remaining > 0):
            rows = min(SLICE_ROWS, batch.num_rows - row)
            if remaining is not None:
                rows = min(rows, remaining)
                remaining -= rows
            yield Slice(batch.slice(row, rows), stamp.base_offset + row)
            row += rows
            if rows == SLICE_ROWS:
                await asyncio.sleep(0)
        if remaining == 0:
            return


async def _render_arrow(call: Call, rendering: Rendering, fetch: Fetch, offset: int) -> web.StreamResponse:
    """Whole stored batches; the reader drops the rows before the offset it asked for."""
    schema = schema_message(fetch.schema)
    if fetch.pieces is not None:
        headers = _headers(fetch, fetch.next_offset)
        return await send_pieces(call, schema, fetch.pieces, END_OF_STREAM, ARROW_TYPE, headers)
    frames = list(fetch.frames)
    next_offset = fetch.next_offset
    if rendering.limit is not None:
        wanted_end = offset + rendering.limit
        for position, frame in enumerate(frames):
            stamp, _ = parse_stamp(frame, 0)
            if stamp.base_offset + stamp.record_count >= wanted_end:
                next_offset = stamp.base_offset + stamp.record_count
                frames = frames[: position + 1]
                break
    headers = _headers(fetch, next_offset)
    return await send_parts(call, [schema, *frames, END_OF_STREAM], ARROW_TYPE, headers)


def _headers(fetch: Fetch, next_offset: int) -> dict[str, str]:
    return {
        "Shoal-Base-Offset": str(fetch.base_offset),
        "Shoal-Next-Offset": str(next_offset),
        "Shoal-High-Watermark": str(fetch.high_watermark),
        "Shoal-Log-Start-Offset": str(fetch.log_start_offset),
    }
