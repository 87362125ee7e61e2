"""Pages of other origins (CORS): what a browser is told where the configuration names a page's origin.

Law of this file: headers. Whether an origin may is origin.py's matter; one that may not never comes here.
There are no credentials to allow: a session is for the agent's own pages (cookies.py), and no wildcard is.
"""

from __future__ import annotations

from typing import Final

from aiohttp import web

from shoal.agent.http.admission.guard import GUARD
from shoal.agent.http.core.dispatch import RouteTable
from shoal.agent.http.core.problems import SERVER
from shoal.errors import ShoalError

PREFLIGHT_SECONDS: Final = 600
"""How long a browser asks no more: a route's methods never change while an agent runs."""
REQUEST_HEADERS: Final = (
    "Accept, Authorization, Content-Type, Idempotency-Key, If-Match, If-None-Match, Last-Event-ID,"
    " Shoal-Cursor, Shoal-Producer-Epoch, Shoal-Producer-Id, Shoal-Producer-Order, Shoal-Producer-Sequence"
)
"""What a page may send beside what browsers let any page send."""
EXPOSED_HEADERS: Final = (
    "Allow, ETag, Location, Retry-After, Shoal-Ack-Failed, Shoal-Acked, Shoal-As-Of, Shoal-Base-Offset,"
    " Shoal-Created, Shoal-Cursor, Shoal-Delivered-At, Shoal-Delivery, Shoal-High-Watermark, Shoal-Is-Last,"
    " Shoal-Key-Routed, Shoal-Log-Start-Offset, Shoal-Next-Offset, Shoal-Partition, Shoal-Ranges, "
    "Shoal-Reason, Shoal-Receipt, Shoal-Timestamp, Shoal-Version, WWW-Authenticate"
)
"""What a page may read of an answer's head."""
ORIGIN: Final = web.RequestKey("origin", str)
METHOD: Final = "Access-Control-Request-Method"


def note_origin(request: web.BaseRequest, origin: str | None) -> None:
    """The page's origin that the answer is for, if it is of another origin than the agent's and may ask."""
    if origin is not None:
        request[ORIGIN] = origin


async def prepare(response: web.StreamResponse, request: web.BaseRequest) -> None:
    """Send the answer's head, with what every answer says. Again for one that has been sent: no matter."""
    response.headers["Server"] = SERVER
    request[GUARD].stand_in(response)
    origin = request.get(ORIGIN)
    if origin is not None:
        response.headers["Access-Control-Allow-Origin"] = origin
        response.headers["Access-Control-Expose-Headers"] = EXPOSED_HEADERS
        response.headers.setdefault("Vary", "Origin")
    await response.prepare(request)


def is_preflight(request: web.BaseRequest) -> bool:
    """Whether a browser asks what a page of another origin may."""
    return request.method == "OPTIONS" and ORIGIN in request and METHOD in request.headers


def preflight(table: RouteTable, path: str) -> web.Response:
    """The answer to that. Raises ShoalError unknown-route."""
    methods = ""  # no route has OPTIONS, so that the refusal tells what it has
    try:
        table.resolve("OPTIONS", path)
    except ShoalError as error:
        if error.status != 405:
            raise
        methods = str(error.extra.get("allow", ""))
    return web.Response(
        status=204,
        headers={
            "Access-Control-Allow-Methods": methods,
            "Access-Control-Allow-Headers": REQUEST_HEADERS,
            "Access-Control-Max-Age": str(PREFLIGHT_SECONDS),
            "Vary": "Origin, Access-Control-Request-Method, Access-Control-Request-Headers",
        },
    )
