"""Large answers, received where they stay: GET over kept-alive HTTP/1.1 connections of our own.

Law of this file: it moves one request and one answer at a time and knows neither agents, topics nor retries.
A body goes from the socket into memory of Arrow's pool, which keeps its pages: aiohttp's client copies each
byte twice more, and that is most of the cost of reading. Only an answer that declares its length is
understood, as agents send it; everything else is refused, and aiohttp asks instead.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from shoal.client.http.wire import (
    HEAD_BYTES_MAX,
    BrokenAnswer,
    KeptConnections,
    UnknownLength,
    parse_head,
    request_head,
)

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


class BulkConnections(KeptConnections["_Connection"]):
    """Connections to agents, reused while they live. Not for https."""

    def __init__(self, connect_timeout_seconds: float, answer_bytes_max: int) -> None:
        super().__init__(IDLE_PER_AGENT_MAX)
        self._connect_timeout_seconds = connect_timeout_seconds
        self._answer_bytes_max = answer_bytes_max

    async def get(
        self,
        base: str,
        path: str,
        params: Mapping[str, str],
        headers: Mapping[str, str],
        on_head: OnHead | None = None,
    ) -> BulkAnswer:
        """One GET; `on_head` hears a good answer's headers before its body has come.

        Raises ConnectionRefusedError and other OSErrors, TimeoutError while connecting, BrokenAnswer and
        UnknownLength.
        """
        parts = urlsplit(base)
        request = request_head("GET", base, path, params, headers)
        while True:
            idle = self._idle.get(base)
            reused = bool(idle)
            connection = idle.pop() if idle else await self._connect(parts.hostname or "", parts.port or 80)
            self._busy.add(connection)
            try:
                answer = await connection.ask(request, on_head)
            except BaseException as error:
                connection.close()
                # The agent closed an idle connection just now: nothing is lost by asking once more.
                if isinstance(error, BrokenAnswer) and reused and not connection.heard:
                    continue
                raise
            finally:
                self._busy.discard(connection)
            if connection.reusable:
                self._keep(base, connection)
            else:
                connection.close()
            return answer

    async def _connect(self, host: str, port: int) -> _Connection:
        async with asyncio.timeout(self._connect_timeout_seconds):
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: _Connection(self._answer_bytes_max, self._forget), host, port
            )
        return connection


class _Connection(asyncio.BufferedProtocol):
    """One connection: asked once at a time."""

    def __init__(self, answer_bytes_max: int, on_lost: Callable[[_Connection], None]) -> None:
        self._answer_bytes_max = answer_bytes_max
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._head = bytearray(HEAD_BYTES_MAX)
        self._filled = 0
        self._body: memoryview | None = None
        self._woken_bytes = 1
        self._start: tuple[int, dict[str, str]] = (0, {})
        self._waiter: asyncio.Future[BulkAnswer] | None = None
        self._on_head: OnHead | None = None
        self.heard = False
        """Whether anything of the present answer has come."""
        self.reusable = True

    async def ask(self, request: bytes, on_head: OnHead | None) -> BulkAnswer:
        """Send the request, wait for its answer."""
        if self._transport is None or self._transport.is_closing():
            raise BrokenAnswer("the connection is closed")
        self.heard = False
        self._on_head = on_head
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            return await self._waiter
        finally:
            self._waiter = None

    def close(self) -> None:
        """End it at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._fail(BrokenAnswer(str(error or "the connection was closed")))
        self._on_lost(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._body is not None:
            return self._body[self._filled :]
        return memoryview(self._head)[self._filled :]

    def buffer_updated(self, size: int) -> None:
        self.heard = True
        self._filled += size
        if self._body is None:
            end = self._head.find(b"\r\n\r\n", max(0, self._filled - size - 3), self._filled)
            if end < 0:
                if self._filled == HEAD_BYTES_MAX:
                    self._refuse(BrokenAnswer(f"a head of more than {HEAD_BYTES_MAX} bytes"))
                return
            try:
                self._begin_body(end)
            except (BrokenAnswer, UnknownLength) as error:
                self._refuse(error)
                return
        assert self._body is not None
        left = len(self._body) - self._filled
        if left < self._woken_bytes:
            self._wake_for(max(1, left))
        if left == 0:
            answer = BulkAnswer(*self._start, self._body.toreadonly())
            self._body, self._filled = None, 0
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(answer)

    def _begin_body(self, end: int) -> None:
        """The head is there: make room for the body, of which some may have come with it."""
        status, headers = parse_head(bytes(self._head[:end]))
        if self._waiter is None:
            raise BrokenAnswer("an answer that nobody asked for")
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
        if self._on_head is not None and status == 200:
            self._on_head(headers)

    def _wake_for(self, size: int) -> None:
        """Hear of received bytes only when there are so many, or the connection ends. Never more than are
        still to come."""
        transport_socket = None if self._transport is None else self._transport.get_extra_info("socket")
        if transport_socket is not None and sys.platform == "linux":
            transport_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
            self._woken_bytes = size

    def _refuse(self, error: Exception) -> None:
        self._fail(error)
        self.close()

    def _fail(self, error: Exception) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)
