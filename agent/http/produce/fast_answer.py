"""The answer of nearly every append, written as one piece of bytes.

aiohttp's Response collects headers in a dictionary, completes them and serializes them anew each time: a
fifth of what a small request costs. This one has nothing to decide. Only for requests of HTTP/1.1 whose
connection stays open (`fits`), which is what clients in a hurry send.
"""

from __future__ import annotations

import time
from email.utils import formatdate

from aiohttp import HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter

from shoal.agent.http.core.media import JSON_TYPE
from shoal.agent.http.core.problems import SERVER

_HEAD = (
    "HTTP/1.1 200 OK\r\nContent-Type: {type}\r\nDate: {date}\r\nServer: {server}\r\nContent-Length: "
).format


class _Head:
    """The head up to the length, made once a second: it carries the date."""

    def __init__(self) -> None:
        self._second = 0
        self._bytes = b""

    def now(self) -> bytes:
        """For an answer that leaves now."""
        second = int(time.time())
        if second != self._second:
            text = _HEAD(type=JSON_TYPE, date=formatdate(second, usegmt=True), server=SERVER)
            self._second, self._bytes = second, text.encode("ascii")
        return self._bytes


_head = _Head()


def fits(request: web.BaseRequest) -> bool:
    """Whether a request can be answered this way."""
    return request.version == HttpVersion11 and request.keep_alive


def short_answer(body: bytes) -> bytes:
    """The whole answer: 200 and a JSON body, the connection stays open."""
    return b"%b%d\r\n\r\n%b" % (_head.now(), len(body), body)


class ShortAnswer(web.StreamResponse):
    """200 with a JSON body that is small enough never to wait for its reader."""

    def __init__(self, body: bytes) -> None:
        super().__init__()
        self.body = body
        self._written = False

    @property
    def keep_alive(self) -> bool:
        """Always: see `fits`."""
        return True

    @property
    def prepared(self) -> bool:
        """Whether it has been written."""
        return self._written

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Write all of it. Raises ConnectionResetError when the client has gone."""
        assert not self._written
        transport = request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client has gone")
        self._written = True
        transport.write(short_answer(self.body))
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing is left to write."""
        assert self._written
        assert not data
