"""Kept-alive connections to agents over sockets of our own: appends and large reads share them.

Law of this file: it moves bytes, one request and one answer at a time, and knows neither agents, topics nor
retries. How an answer is received is its owner's. Where the event loop cannot watch sockets aiohttp asks
instead. TLS lies between a connection and its socket.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

from shoal.client.http.tls_stream import TlsStream
from shoal.client.http.wire import BrokenAnswer, UnknownLength
from shoal.lookup import Lookup, LookupFailed
from shoal.tls import tls_reason

A = TypeVar("A")
C = TypeVar("C", bound="Connection[Any]")


class NotConnected(ConnectionError):
    """No connection was made: nothing has happened."""


class NotTrusted(NotConnected):
    """TLS failed in a way that another attempt does not mend: somebody has to change a file, or a URL."""


class Unsupported(Exception):
    """This event loop cannot watch sockets: Windows' own."""


class Connection(ABC, Generic[A]):
    """One connection: asked once at a time."""

    def __init__(
        self, connected: socket.socket, on_lost: Callable[[Connection[A]], None], tls: TlsStream | None = None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = connected
        self._tls = tls
        self._stream = connected if tls is None else tls
        self._on_lost = on_lost
        self._unsent: list[memoryview] = []
        self._on_written: Callable[[], None] | None = None
        self._waiter: asyncio.Future[A] | None = None
        self._writing = False
        self._loop.add_reader(connected, self._readable)

    async def ask(
        self, head: bytes, body: bytes | memoryview = b"", on_written: Callable[[], None] | None = None
    ) -> A:
        """Send the request, wait for its answer. Head and body leave in one call, uncopied."""
        assert self._waiter is None
        self._waiter = self._loop.create_future()
        self._on_written = on_written
        try:
            is_small = self._tls is None and not len(body)
            sent = self._socket.send(head) if is_small else 0  # a small one is gone with this
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

    @abstractmethod
    def _receive(self) -> A | None:
        """Receive once; the answer if it is whole. Raises OSError, BrokenAnswer also at the end, and
        UnknownLength."""

    def _readable(self) -> None:
        try:
            if self._tls is not None:
                self._tls.fill()
            answer = self._receive()
            while answer is None and self._tls is not None:  # until all that has come is opened
                answer = self._receive()
            if answer is not None and self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(answer)
        except (BlockingIOError, InterruptedError):
            return
        except (OSError, UnknownLength) as error:
            self._lost(error)

    def _write(self) -> None:
        """As much as the kernel takes."""
        try:
            sent = self._stream.sendmsg(self._unsent)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._lost(error)
            return
        while self._unsent and sent >= len(self._unsent[0]):
            sent -= len(self._unsent.pop(0))
        if self._unsent:
            self._unsent[0] = self._unsent[0][sent:]
        waits = bool(self._unsent) or (self._tls is not None and self._tls.has_sealed)
        if waits != self._writing:
            self._writing = waits
            if self._writing:
                self._loop.add_writer(self._socket, self._write)
            else:
                self._loop.remove_writer(self._socket)
        if not waits and self._on_written is not None:
            heard, self._on_written = self._on_written, None
            heard()

    def _lost(self, error: Exception) -> None:
        self._fail(error)
        self.close()
        self._on_lost(self)

    def _fail(self, error: Exception) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)


class Connections(Generic[C]):
    """Connections to agents, by URL: those in use, and those that are kept for the next request."""

    def __init__(
        self,
        connect_timeout_seconds: float,
        idle_per_agent_max: int,
        make: Callable[[socket.socket, Callable[[Connection[Any]], None], TlsStream | None], C],
        lookup: Lookup | None = None,
        tls: Callable[[], ssl.SSLContext] = ssl.create_default_context,
    ) -> None:
        """`tls`: the context for agents at https URLs."""
        self._connect_timeout_seconds = connect_timeout_seconds
        self._idle_per_agent_max = idle_per_agent_max
        self._make = make
        self._lookup = lookup or Lookup()
        self._context = tls
        self._idle: dict[str, list[C]] = {}
        self._busy: set[C] = set()

    def close(self) -> None:
        """End all connections."""
        for connection in [*self._busy, *(one for kept in self._idle.values() for one in kept)]:
            connection.close()
        self._idle.clear()

    def _keep(self, base: str, connection: C) -> None:
        """After a good answer."""
        kept = self._idle.setdefault(base, [])
        if len(kept) < self._idle_per_agent_max:
            kept.append(connection)
        else:
            connection.close()

    def _forget(self, connection: Connection[Any]) -> None:
        for kept in self._idle.values():
            if connection in kept:
                kept.remove(connection)

    async def _connect(self, base: str) -> C:
        """Raises NotConnected, also when it takes too long, NotTrusted, and Unsupported."""
        parts = urlsplit(base)
        loop = asyncio.get_running_loop()
        if isinstance(loop, getattr(asyncio, "ProactorEventLoop", ())):
            raise Unsupported
        error: OSError | None = None
        try:
            found = await self._lookup.addresses(parts.hostname or "")
        except LookupFailed as failure:
            raise NotConnected(str(failure)) from failure
        context = self._context() if parts.scheme == "https" else None
        for host in found:
            address = (host, parts.port or (80 if context is None else 443))
            attempt = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
            try:
                attempt.setblocking(False)
                attempt.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                async with asyncio.timeout(self._connect_timeout_seconds):
                    await loop.sock_connect(attempt, address)
                tls = None if context is None else TlsStream(attempt, context, parts.hostname or "")
                if tls is not None:
                    async with asyncio.timeout(self._connect_timeout_seconds):
                        await tls.shake_hands()
                return self._make(attempt, self._forget, tls)
            except OSError as failure:  # a TimeoutError is one
                attempt.close()
                error = failure
            except BaseException:
                attempt.close()
                raise
        if error is not None and (cause := tls_reason(error)) is not None:
            raise NotTrusted(cause) from error
        reason = error.strerror if isinstance(error, OSError) and error.strerror else ""
        raise NotConnected(reason or f"no connection within {self._connect_timeout_seconds:g} s") from error
