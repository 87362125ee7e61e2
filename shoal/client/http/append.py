"""Appends over kept-alive connections: a body leaves uncopied, and an answer is small.

Law of this file: it moves one request and one answer at a time and knows neither agents, topics nor retries.
aiohttp's client costs more than all else of an append. An answer that does not declare its length is refused,
and aiohttp asks instead.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

from shoal.client.http.connection import Connection, Connections
from shoal.client.http.tls_stream import TlsStream
from shoal.client.http.wire import BrokenAnswer, WholeAnswer, whole_answer
from shoal.lookup import Lookup

ANSWER_BYTES_MAX: Final = 1 << 20
"""Of an append's: a problem document, or where the records are."""
IDLE_PER_AGENT_MAX: Final = 16
"""Connections kept for the next request: as many partitions as a client often sends to at once."""
_READ_BYTES: Final = 64 << 10


class PostConnections(Connections["_PostConnection"]):
    """Connections to agents, reused while they live."""

    def __init__(
        self,
        connect_timeout_seconds: float,
        connections_max: int,
        lookup: Lookup | None = None,
        tls: Callable[[], ssl.SSLContext] = ssl.create_default_context,
    ) -> None:
        super().__init__(connect_timeout_seconds, IDLE_PER_AGENT_MAX, _PostConnection, lookup, tls)
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
        connection: _PostConnection,
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


class _PostConnection(Connection[WholeAnswer]):
    def __init__(
        self, connected: socket.socket, on_lost: Callable[[Connection[Any]], None], tls: TlsStream | None
    ) -> None:
        super().__init__(connected, on_lost, tls)
        self._come = bytearray()

    def _receive(self) -> WholeAnswer | None:
        data = self._stream.recv(_READ_BYTES)
        if not data or self._waiter is None:  # the end, or an answer without a request
            raise BrokenAnswer("the connection was closed")
        self._come += data
        answer = whole_answer(self._come, ANSWER_BYTES_MAX)
        if answer is None:
            return None
        self._come.clear()
        if self._writing:  # refused before all of it was read: its rest would be taken for the next request
            self._unsent, self._writing = [], False
            self._loop.remove_writer(self._socket)
            return answer._replace(keeps_open=False)
        return answer
