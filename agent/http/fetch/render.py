"""The forms in which a reader gets a fetch: JSON, NDJSON, or the stored Arrow batches themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from aiohttp import web

from shoal.agent.http.api.media import ARROW_TYPE, EVENT_STREAM, JSON_TYPE, NDJSON_TYPE
from shoal.agent.http.core.body import ALIASES
from shoal.agent.http.core.context import Call
from shoal.agent.http.core.parameters import choice, integer
from shoal.agent.http.core.problems import json_bytes
from shoal.agent.http.core.respond import send_made, send_parts
from shoal.agent.http.fetch.streamed_answer import send_pieces
from shoal.agent.http.rows.row_pieces import RowWriter, Style
from shoal.agent.http.rows.selection import Selected
from shoal.agent.interface import Fetch, Json, Topic
from shoal.errors import ShoalError, shown
from shoal.format.batch import END_OF_STREAM, parse_stamp, schema_message

DEFAULT_LIMIT = 100
LIMIT_MAX = 10_000_000
PARTITION_FORMS = (JSON_TYPE, NDJSON_TYPE, ARROW_TYPE, EVENT_STREAM)
MERGED_FORMS = (JSON_TYPE, NDJSON_TYPE, EVENT_STREAM)


class Rendering(NamedTuple):
    """How the client wants its records."""

    media: str
    limit: int | None
    value_as: Literal["text", "json"]
    view: Literal["record", "value"]


def choose_rendering(call: Call, forms: tuple[str, ...] = PARTITION_FORMS) -> Rendering:
    """From Accept and the query; ShoalError not-acceptable or bad-request."""
    query = call.query
    accept = call.headers.get("Accept")
    if query.get("view") == "value" and accept in (None, "*/*"):
        accept = NDJSON_TYPE  # the only form that has them
    media = choose_media(accept, forms)
    default = None if media in (ARROW_TYPE, EVENT_STREAM) else DEFAULT_LIMIT
    limit = integer(query, "limit", 0, low=1, high=LIMIT_MAX) or default
    value_as: Literal["text", "json"] = choice(query, "value", "text", ("text", "json"))
    view: Literal["record", "value"] = choice(query, "view", "record", ("record", "value"))
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
    return Rendering(media, limit, value_as, view)


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
        media = ALIASES.get(media, media)
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


async def render_text(
    call: Call, rendering: Rendering, topic: Topic, partition: int, fetch: Fetch, selected: Selected
) -> web.StreamResponse:
    """JSON or NDJSON of the selected rows, made while it is sent."""
    writer = RowWriter()
    headers = _headers(fetch, selected.next_offset)
    style = Style(rendering.value_as, rendering.view)
    texts = (text for rows in selected.rows for text in writer.texts(rows, style))
    about: Json = {"topic": topic.name, "partition": partition}
    tail = b'],"next_offset":%d,"log_start_offset":%d,"high_watermark":%d}\n' % (
        selected.next_offset,
        fetch.log_start_offset,
        fetch.high_watermark,
    )
    parts = lines(texts) if rendering.media == NDJSON_TYPE else listed(about, texts, tail)
    return await send_made(call, writer.pieces(parts), rendering.media, headers, selected.size_bytes)


def lines(texts: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
    """Each text and a line feed."""
    for text in texts:
        yield from text
        yield b"\n"


def listed(
    about: Json, texts: Iterable[Iterable[bytes]], tail: bytes, name: str = "records"
) -> Iterator[bytes]:
    """A JSON document whose member of that name are the texts. `tail`: what ends it, from the array's end
    on."""
    before = head = json_bytes(about)[:-1] + b',"%b":[' % name.encode("ascii")
    for text in texts:
        yield before
        yield from text
        before = b","
    if before is head:
        yield head
    yield tail


async def render_arrow(call: Call, rendering: Rendering, fetch: Fetch, offset: int) -> web.StreamResponse:
    """Whole stored batches; the reader drops the rows before the offset it asked for."""
    schema = schema_message(fetch.schema)
    if fetch.pieces is not None:
        headers = _headers(fetch, fetch.next_offset)
        return await send_pieces(call, schema, fetch.pieces, END_OF_STREAM, ARROW_TYPE, headers)
    frames = list(fetch.frames)
    next_offset: int = fetch.next_offset
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
