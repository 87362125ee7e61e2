"""Large answers, received where they stay: GET over kept-alive HTTP/1.1 connections.

Law of this file: it moves one request and one answer at a time and knows neither agents, topics nor retries.
A body goes from the socket into memory of Arrow's pool, which keeps its pages: aiohttp's client copies each
byte twice more, and that is most of the cost of reading. Only an answer that declares its length is
understood, as agents send it; everything else is refused, and aiohttp asks instead.
"""

from __future__ import annotations

import socket
import ssl
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from shoal.client.http.connection import Connection, Connections
from shoal.client.http.tls_stream import RECORD_BYTES_MAX, TlsStream
from shoal.client.http.wire import (
    HEAD_BYTES_MAX,
    HEAD_END,
    BrokenAnswer,
    UnknownLength,
    parse_head,
    request_head,
)
from shoal.lookup import Lookup

IDLE_PER_AGENT_MAX: Final = 8
"""Connections kept for the next request: as many fetches as a consumer has ahead, twice."""

WOKEN_BYTES: Final = 512 << 10
"""Of a long body the kernel wakes us for so many at once: a round of the event loop for each packet costs
more than copying it, and waking us for each costs an agent on this machine a tenth of its time."""


class BulkAnswer(NamedTuple):
    """An answer; header names are capitalized as in `Content-Length`."""

    status: int
    headers: Mapping[str, str]
    body: memoryview


OnHead: TypeAlias = Callable[[Mapping[str, str]], None]


class BulkConnections(Connections["_BulkConnection"]):
    """Connections to agents, reused while they live."""

    def __init__(
        self,
        connect_timeout_seconds: float,
        answer_bytes_max: int,
        lookup: Lookup | None = None,
        tls: Callable[[], ssl.SSLContext] = ssl.create_default_context,
    ) -> None:
        make = partial(_BulkConnection, answer_bytes_max)
        super().__init__(connect_timeout_seconds, IDLE_PER_AGENT_MAX, make, lookup, tls)

    async def get(
        self,
        base: str,
        path: str,
        params: Mapping[str, str],
        headers: Mapping[str, str],
        on_head: OnHead | None = None,
    ) -> BulkAnswer:
        """One GET; `on_head` hears a good answer's headers before its body has come.

        Raises NotConnected (also when it takes too long), BrokenAnswer, other OSErrors, UnknownLength and
        Unsupported.
        """
        request = request_head("GET", base, path, params, headers)
        while True:
            idle = self._idle.get(base)
            reused = bool(idle)
            connection = idle.pop() if idle else await self._connect(base)
            self._busy.add(connection)
            try:
                connection.heard, connection.on_head = False, on_head
                answer = await connection.ask(request)
            except BaseException as error:
                connection.close()
                # The agent closed an idle connection just now: nothing is lost by asking once more.
                if isinstance(error, ConnectionError) and reused and not connection.heard:
                    continue
                raise
            finally:
                self._busy.discard(connection)
            if connection.reusable:
                self._keep(base, connection)
            else:
                connection.close()
            return answer


class _BulkConnection(Connection[BulkAnswer]):
    def __init__(
        self,
        answer_bytes_max: int,
        connected: socket.socket,
        on_lost: Callable[[Connection[Any]], None],
        tls: TlsStream | None,
    ) -> None:
        super().__init__(connected, on_lost, tls)
        self._answer_bytes_max = answer_bytes_max
        self._ahead_max = 0 if tls is None else RECORD_BYTES_MAX  # of a TLS record a part may have come
        self._head = bytearray(HEAD_BYTES_MAX)
        self._filled = 0
        self._body: memoryview | None = None
        self._woken_bytes = 1
        self._start: tuple[int, dict[str, str]] = (0, {})
        self.on_head: OnHead | None = None
        self.heard = False
        """Whether anything of the present answer has come."""
        self.reusable = True

    def _receive(self) -> BulkAnswer | None:
        room = memoryview(self._head) if self._body is None else self._body
        size = self._stream.recv_into(room[self._filled :])
        if not size:
            raise BrokenAnswer("the connection was closed")
        self.heard = True
        self._filled += size
        if self._body is None:
            end = self._head.find(HEAD_END, max(0, self._filled - size - 3), self._filled)
            if end < 0 and self._filled == HEAD_BYTES_MAX:
                raise BrokenAnswer(f"a head of more than {HEAD_BYTES_MAX} bytes")
            if end < 0:
                return None
            self._begin_body(end)
        assert self._body is not None
        left = len(self._body) - self._filled
        if left - self._ahead_max < self._woken_bytes:
            self._wake_for(left)
        if left:
            return None
        answer = BulkAnswer(*self._start, self._body.toreadonly())
        self._body, self._filled = None, 0
        return answer

    def _begin_body(self, end: int) -> None:
        """The head is there: make room for the body, of which some may have come with it."""
        status, headers = parse_head(bytes(self._head[:end]))
        if self._waiter is None:
            raise BrokenAnswer("an answer without a request")
        length = "0" if status in (204, 304) else headers.get("Content-Length", "")
        if not length.isdecimal():
            raise UnknownLength
        size = int(length)
        if size > self._answer_bytes_max:
            raise BrokenAnswer(f"the answer is larger than {self._answer_bytes_max} bytes")
        self.reusable = headers.get("Connection", "").lower() != "close"
        come = self._filled - end - 4
        if come > size:
            raise BrokenAnswer("more came than the answer's length")
        import pyarrow as pa  # a command that never reads records starts without it

        self._body = memoryview(pa.allocate_buffer(size)).cast("B")
        self._body[:come] = self._head[end + 4 : self._filled]
        self._filled = come
        self._start = (status, headers)
        if size - come > WOKEN_BYTES:
            self._wake_for(WOKEN_BYTES)
        if self.on_head is not None and status == 200:
            self.on_head(headers)

    def _wake_for(self, size: int) -> None:
        """Hear of received bytes only when there are so many, or the connection ends. Never more than are
        still to come."""
        size = max(1, size - self._ahead_max)
        if sys.platform == "linux" and size != self._woken_bytes:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
            self._woken_bytes = size
