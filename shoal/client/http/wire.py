"""HTTP/1.1 as a client of agents needs it: a request's head, and an answer whose length is declared.

Law of this file: no socket is touched, and answers are read strictly. An answer that no agent sends is
BrokenAnswer or UnknownLength, and aiohttp asks again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import urlencode, urlsplit

from shoal.tls import SPEAKS_TLS, TLS_ALERT

HEAD_BYTES_MAX: Final = 64 << 10
NOT_HTTP: Final = "what answers there does not speak HTTP (a gossip port, perhaps)"
HEAD_END: Final = b"\r\n\r\n"
_HEAD_END_BYTES: Final = len(HEAD_END)
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,15})[ \t]*(?=\r)", re.IGNORECASE)
_CLOSES: Final = re.compile(rb"\r\nconnection:[ \t]*close[ \t]*(?=\r)", re.IGNORECASE)


class BrokenAnswer(ConnectionError):
    """The connection ended within an answer, or the answer is no HTTP."""


class UnknownLength(Exception):
    """The answer does not declare its length (a proxy's, perhaps): ask in another way."""


class WholeAnswer(NamedTuple):
    """A small answer. `head`: without the empty line."""

    status: int
    head: bytes
    body: bytes
    keeps_open: bool

    def headers(self) -> dict[str, str]:
        """The names capitalized as in `Content-Length`. Raises BrokenAnswer."""
        return parse_head(self.head)[1]


def request_head(
    method: str, base: str, path: str, params: Mapping[str, str], headers: Mapping[str, str]
) -> bytes:
    """Request line and headers, with the empty line. `base`: an agent's URL, perhaps with a path before
    ours."""
    parts = urlsplit(base)
    query = f"?{urlencode(params)}" if params else ""
    lines = [f"{method} {parts.path.rstrip('/')}{path}{query} HTTP/1.1", f"Host: {parts.netloc}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


def parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    """Status and headers, the names capitalized as in `Content-Length`. Raises BrokenAnswer."""
    try:
        first, *lines = head.decode("ascii").split("\r\n")
        version, status, *_ = first.split(" ", 2)
        if not version.startswith("HTTP/1.") or not status.isdecimal():
            raise ValueError(first[:40])
        headers = {}
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon:
                raise ValueError(line[:40])
            headers[name.title()] = value.strip()
        return int(status), headers
    except ValueError as error:
        raise BrokenAnswer(NOT_HTTP) from error


def whole_answer(data: bytes | bytearray, body_bytes_max: int) -> WholeAnswer | None:
    """The answer that `data` is; None while it is incomplete. Raises BrokenAnswer and UnknownLength."""
    end = data.find(HEAD_END)
    if end < 0:
        if len(data) > HEAD_BYTES_MAX:
            raise BrokenAnswer(f"a head of more than {HEAD_BYTES_MAX} bytes")
        if not data.startswith(b"HTTP/1."[: len(data)]):
            raise BrokenAnswer(SPEAKS_TLS if data.startswith(TLS_ALERT) else NOT_HTTP)
        return None
    head = bytes(data[: end + 2])
    status = head[9:12]
    if not (head.startswith(b"HTTP/1.") and head[8:9] == b" " and status.isdigit() and len(status) == 3):
        raise BrokenAnswer(NOT_HTTP)
    length = _LENGTH.search(head)
    if length is None and status not in (b"204", b"304"):
        raise UnknownLength
    size = 0 if length is None else int(length[1])
    if size > body_bytes_max:
        raise BrokenAnswer(f"the answer is larger than {body_bytes_max} bytes")
    body = bytes(data[end + _HEAD_END_BYTES :])
    if len(body) < size:
        return None
    if len(body) > size:
        raise BrokenAnswer("more came than the answer's length")
    keeps_open = head.startswith(b"HTTP/1.1") and _CLOSES.search(head) is None
    return WholeAnswer(int(status), head[:-2], body, keeps_open)
