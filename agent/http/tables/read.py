"""GET /v1/tables/{topic}: a page of rows in the form that the client wants, one row by bytes, or a watch."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from shoal.agent.http.api import table_operations as api
from shoal.agent.http.api.media import ARROW_TYPE, EVENT_STREAM, JSON_TYPE, NDJSON_TYPE
from shoal.agent.http.core.context import Call
from shoal.agent.http.core.dispatch import Route
from shoal.agent.http.core.parameters import Query, integer
from shoal.agent.http.core.problems import json_bytes
from shoal.agent.http.core.respond import send_made, send_parts
from shoal.agent.http.fetch.cursors import format_places
from shoal.agent.http.fetch.merged import texts_of
from shoal.agent.http.fetch.render import Rendering, choose_rendering, lines, listed
from shoal.agent.http.rows.row_pieces import RowWriter
from shoal.agent.http.tables.keys import KEY_BASE64, bytes_of
from shoal.agent.http.tables.row import read_row
from shoal.agent.http.tables.scan import AS_OF, IS_LAST, MergedPage, TableReader, page_schema
from shoal.agent.http.tables.target import find_table, is_local
from shoal.agent.http.tables.watch import watch
from shoal.agent.interface import MAX_SCAN_BYTES, MAX_SCAN_ROWS, ScanRequest, Topic
from shoal.errors import ShoalError, unknown_partition
from shoal.format.batch import END_OF_STREAM, schema_message

_FORMS: Final = (JSON_TYPE, NDJSON_TYPE, ARROW_TYPE, EVENT_STREAM)
_OF_ROWS: Final = (
    "prefix", "prefix_base64", "after", "after_base64", "limit", "max_bytes", "partition", "view", "value",
)  # fmt: skip
_OF_PAGES: Final = ("after", "after_base64", "limit", "max_bytes", "partition", "consistency")


async def rows(call: Call) -> web.StreamResponse:
    """200 with rows."""
    if KEY_BASE64 in call.query:
        _refuse(call.query, _OF_ROWS, f"{KEY_BASE64} names one row")
        return await read_row(call)
    rendering = choose_rendering(call, _FORMS)
    topic = find_table(call)
    prefix = bytes_of(call.query, "prefix") or b""
    if rendering.media == EVENT_STREAM:
        _refuse(call.query, _OF_PAGES, "an event stream has all rows, of the leaders")
        return await watch(call, topic, prefix, rendering)
    return await _page(call, topic, prefix, rendering)


ROUTES = (Route(api.SCAN_TABLE, rows),)


def _refuse(query: Query, names: tuple[str, ...], why: str) -> None:
    wrong = [name for name in names if name in query]
    if wrong:
        raise ShoalError("bad-request", f"{why}: leave out {', '.join(wrong)}", invalid_params=wrong)


async def _page(call: Call, topic: Topic, prefix: bytes, rendering: Rendering) -> web.StreamResponse:
    query, limits = call.query, call.context.limits
    most = MAX_SCAN_ROWS if rendering.limit is None else rendering.limit
    wanted = ScanRequest(
        prefix,
        bytes_of(query, "after"),
        integer(query, "limit", most, low=1, high=MAX_SCAN_ROWS),
        call.affordable(integer(query, "max_bytes", limits.default_read_bytes, low=1, high=MAX_SCAN_BYTES)),
    )
    holding = call.holding()
    try:
        reader = TableReader(call, topic, _numbers(query, topic), local=is_local(query))
        page = await reader.page(wanted, holding)
        with call.context.gate.place():
            return await _send(call, topic, page, rendering, holding.size_bytes)
    finally:
        holding.release()


def _numbers(query: Query, topic: Topic) -> list[int]:
    count = len(topic.ranges)
    if "partition" not in query:
        return list(range(count))
    number = integer(query, "partition", 0, low=0, high=2**31)
    if number >= count:
        raise unknown_partition(topic.name, number, count)
    return [number]


async def _send(
    call: Call, topic: Topic, page: MergedPage, rendering: Rendering, held_bytes: int
) -> web.StreamResponse:
    cut, is_last = format_places(page.as_of), "true" if page.is_last else "false"
    headers = {AS_OF: cut, IS_LAST: is_last}
    if rendering.media == ARROW_TYPE:
        schema = page_schema(topic)
        batch = memoryview(page.batch(schema).serialize()) if page.order else b""
        return await send_parts(call, [schema_message(schema), batch, END_OF_STREAM], ARROW_TYPE, headers)
    writer = RowWriter()
    texts = (text for _, text in texts_of(page.merged(), rendering, writer))
    if rendering.media == NDJSON_TYPE:
        parts = lines(texts)
    else:
        tail = b'],"as_of":%b,"is_last":%b}\n' % (json_bytes(cut), is_last.encode())
        parts = listed({"topic": topic.name}, texts, tail, name="rows")
    return await send_made(call, writer.pieces(parts), rendering.media, headers, held_bytes)
