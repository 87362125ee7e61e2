"""Errors as RFC 9457 problem documents. The codes stand in shoal.errors; here they only become answers."""

from __future__ import annotations

import json
import re
import time
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Any

from aiohttp import web

from shoal.agent.http.admission.guard import Guard
from shoal.agent.http.api.media import JSON_TYPE
from shoal.errors import PROBLEM_MEDIA_TYPE, ShoalError

SERVER = "Shoal"  # of every answer; versions are told by /v1/agent
# What to wait before a retry that may help; leaders move in about a second.
RETRY_AFTER_SECONDS = "1"

CHALLENGE = 'Bearer realm="shoal"'
"""Of every 401: the scheme of credentials that an agent takes (RFC 6750)."""


@lru_cache(maxsize=1)
def date_text(second: int) -> str:
    """The Date of each answer of a second, since the epoch. Written once a second (RFC 9110, 5.6.7)."""
    return formatdate(second, usegmt=True)


def problem_response(error: ShoalError, *, close: bool = False) -> web.Response:
    """The answer for an error, with the headers that belong to its status."""
    response = web.Response(
        status=error.status,
        body=json_bytes(error.to_problem()) + b"\n",
        content_type=PROBLEM_MEDIA_TYPE,
        headers=_own_headers(error),
    )
    if close:
        response.force_close()
    return response


def _own_headers(error: ShoalError) -> dict[str, str]:
    """Beside type and length of the body."""
    headers = {"Server": SERVER}
    if error.status in (429, 503) and error.code != "stopping":  # another agent serves at once
        wait_ms = error.extra.get("retry_after_ms")  # until a quota suffices
        seconds = max(1, -(-wait_ms // 1_000)) if isinstance(wait_ms, int) else RETRY_AFTER_SECONDS
        headers["Retry-After"] = str(seconds)
    if error.status == 401:
        headers["WWW-Authenticate"] = CHALLENGE
    if error.status == 405:
        headers["Allow"] = str(error.extra.get("allow", ""))
    return headers


_PARSERS_WORDS = re.compile(r"(?:[^\n'\"]|(?<!b)'[A-Za-z-]{1,40}'|(?<=n)'(?=t))*")
"""Without the bytes that a parser quotes behind them: these may be a header with a credential."""


def parsers_words(reason: str) -> str:
    """The words of a parser of HTTP on bytes that it does not take, and none of these bytes."""
    words = _PARSERS_WORDS.match(reason.strip())
    return "" if words is None else words[0].removesuffix("b").rstrip(" :")[:200]


def not_a_request(reason: str) -> ShoalError:
    """The error for bytes that are no HTTP request, in the parser's words."""
    advice = ""
    if "HTTPS traffic" in reason:
        return ShoalError("bad-request", "this port speaks no TLS: ask http:// instead of https://")
    if "in url" in reason:
        advice = "; percent-encode what is not ASCII, as in ?key=schl%C3%BCssel"
    return ShoalError("bad-request", f"this is not an HTTP request: {parsers_words(reason)}{advice}")


def json_response(document: Any, *, status: int = 200) -> web.Response:
    """A JSON answer from JSON-ready values."""
    return web.Response(status=status, body=json_bytes(document) + b"\n", content_type=JSON_TYPE)


_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)


def json_bytes(document: Any) -> bytes:
    """Compact JSON in UTF-8; what UTF-8 cannot express (half of a surrogate pair) is escaped."""
    try:
        return _ENCODER.encode(document).encode("utf-8")
    except UnicodeEncodeError:
        return json.dumps(document, separators=(",", ":")).encode("ascii")


def problem_bytes(error: ShoalError, guard: Guard, *, close: bool = False) -> bytes:
    """The same answer as problem_response, head and all."""
    body = json_bytes(error.to_problem()) + b"\n"
    lines = "".join(f"{name}: {value}\r\n" for name, value in _own_headers(error).items())
    end = "Connection: close\r\n" if close else ""
    head = (
        f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n{lines}"
        f"Content-Type: {PROBLEM_MEDIA_TYPE}\r\n{guard.lines}{end}Date: {date_text(int(time.time()))}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode("ascii") + body
