"""Appends over kept-alive connections of our own: head and body leave in one call, uncopied.

Law of this file: it moves one request and one answer at a time and knows neither agents, topics nor retries.
aiohttp's client costs more than all else of an append. Where the event loop cannot watch sockets, or an
answer does not declare its length, aiohttp asks instead.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

from shoal.client.http.wire import BrokenAnswer, KeptConnections, UnknownLength, WholeAnswer, whole_answer

ANSWER_BYTES_MAX: Final = 1 << 20
"""Of an append's: a problem document, or where the records are."""
IDLE_PER_AGENT_MAX: Final = 16
"""Connections kept for the next request: as many partitions as a client often sends to at once."""
_READ_BYTES: Final = 64 << 10


class NotConnected(ConnectionError):
    """No connection was made: nothing has happened."""


class Unsupported(Exception):
    """This event loop cannot watch sockets: Windows' own."""


class PostConnections(KeptConnections["_Connection"]):
    """Connections to agents, reused while they live. Not for https."""

    def __init__(self, connect_timeout_seconds: float, connections_max: int) -> None:
        super().__init__(IDLE_PER_AGENT_MAX)
        self._connect_timeout_seconds = connect_timeout_seconds
        self._room = asyncio.Semaphore(connections_max)

    async def post(
        self,
        base: str,
        head: bytes,
        body: bytes | memoryview = b"",
        on_written: Callable[[], None] | None = None,
    ) -> WholeAnswer:
        """Send it, wait for the answer. `on_written` hears when all of it is in the kernel's hands.

        Raises NotConnected (also when it takes too long), BrokenAnswer, other OSErrors, UnknownLength and
        Unsupported.
        """
        async with self._room:
            idle = self._idle.get(base)
            connection = idle.pop() if idle else await self._connect(base)
            return await self._ask(base, connection, head, body, on_written)

    async def post_alone(self, base: str, request: bytes, timeout_seconds: float) -> WholeAnswer:
        """As `post`, of a small request in one piece, and within a time: by a connection that is there, which
        costs neither a semaphore nor a timeout's context. Raises TimeoutError, too, or BrokenAnswer for it.
        """
        idle = self._idle.get(base)
        if not idle:
            async with asyncio.timeout(timeout_seconds):
                return await self.post(base, request)
        connection = idle.pop()
        late = asyncio.get_running_loop().call_later(timeout_seconds, connection.close)
        try:
            return await self._ask(base, connection, request, b"", None)
        finally:
            late.cancel()

    async def _ask(
        self,
        base: str,
        connection: _Connection,
        head: bytes,
        body: bytes | memoryview,
        on_written: Callable[[], None] | None,
    ) -> WholeAnswer:
        self._busy.add(connection)
        try:
            answer = await connection.ask(head, body, on_written)
        except BaseException:
            connection.close()
            raise
        finally:
            self._busy.discard(connection)
        if answer.keeps_open:
            self._keep(base, connection)
        else:
            connection.close()
        return answer

    async def _connect(self, base: str) -> _Connection:
        parts = urlsplit(base)
        loop = asyncio.get_running_loop()
        if isinstance(loop, getattr(asyncio, "ProactorEventLoop", ())):
            raise Unsupported
        error: OSError | None = None
        try:
            found = await _addresses(loop, parts.hostname or "", parts.port or 80)
        except OSError as failure:
            raise NotConnected(str(failure)) from failure
        for family, kind, protocol, _, address in found:
            attempt = socket.socket(family, kind, protocol)
            try:
                attempt.setblocking(False)
                attempt.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                async with asyncio.timeout(self._connect_timeout_seconds):
                    await loop.sock_connect(attempt, address)
                return _Connection(loop, attempt, self._forget)
            except OSError as failure:  # a TimeoutError is one
                attempt.close()
                error = failure
            except BaseException:
                attempt.close()
                raise
        reason = error.strerror if isinstance(error, OSError) and error.strerror else ""
        raise NotConnected(reason or f"no connection within {self._connect_timeout_seconds:g} s") from error


_Address: TypeAlias = "tuple[Any, ...]"


async def _addresses(loop: asyncio.AbstractEventLoop, host: str, port: int) -> Sequence[_Address]:
    """The addresses of a host. Raises OSError."""
    try:
        return await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except RuntimeError:  # at the interpreter's end there are no helping threads, and no other task waits
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)


class _Connection:
    """One connection: asked once at a time."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        connected: socket.socket,
        on_lost: Callable[[_Connection], None],
    ) -> None:
        self._loop = loop
        self._socket = connected
        self._on_lost = on_lost
        self._unsent: list[memoryview] = []
        self._on_written: Callable[[], None] | None = None
        self._come = bytearray()
        self._waiter: asyncio.Future[WholeAnswer] | None = None
        self._writing = False
        loop.add_reader(connected, self._readable)

    async def ask(
        self, head: bytes, body: bytes | memoryview, on_written: Callable[[], None] | None
    ) -> WholeAnswer:
        """Send the request, wait for its answer."""
        assert self._waiter is None
        self._waiter = self._loop.create_future()
        self._on_written = on_written
        try:
            sent = 0 if len(body) else self._socket.send(head)  # a small one is gone with this
        except OSError:
            sent = 0
        if sent < len(head):
            self._unsent = [memoryview(part) for part in (head[sent:], body) if len(part)]
            self._write()
        elif on_written is not None:
            on_written()
        try:
            return await self._waiter
        finally:
            self._waiter = None

    def close(self) -> None:
        """End it at once. Idempotent."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket.close()
        self._unsent = []
        self._fail(BrokenAnswer("the connection was closed"))

    def _write(self) -> None:
        """As much as the kernel takes."""
        try:
            sent = self._socket.sendmsg(self._unsent)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._lost(error)
            return
        while self._unsent and sent >= len(self._unsent[0]):
            sent -= len(self._unsent.pop(0))
        if self._unsent:
            self._unsent[0] = self._unsent[0][sent:]
        if bool(self._unsent) != self._writing:
            self._writing = not self._writing
            if self._writing:
                self._loop.add_writer(self._socket, self._write)
            else:
                self._loop.remove_writer(self._socket)
        if not self._unsent and self._on_written is not None:
            heard, self._on_written = self._on_written, None
            heard()

    def _readable(self) -> None:
        try:
            data = self._socket.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lost(error)
            return
        if not data or self._waiter is None:  # the end, or an answer without a request
            self._lost(BrokenAnswer("the connection was closed"))
            return
        self._come += data
        try:
            answer = whole_answer(self._come, ANSWER_BYTES_MAX)
        except (BrokenAnswer, UnknownLength) as error:
            self._lost(error)
            return
        if answer is None:
            return
        self._come.clear()
        if self._unsent:  # refused before all of it was read: its rest would be taken for the next request
            self._stop_writing()
            answer = answer._replace(keeps_open=False)
        if not self._waiter.done():
            self._waiter.set_result(answer)

    def _stop_writing(self) -> None:
        self._unsent = []
        self._loop.remove_writer(self._socket)
        self._writing = False

    def _lost(self, error: Exception) -> None:
        self._fail(error)
        self.close()
        self._on_lost(self)

    def _fail(self, error: Exception) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)
