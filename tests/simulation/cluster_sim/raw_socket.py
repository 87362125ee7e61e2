"""A client's non-blocking TCP socket, for code that sends and receives without a transport.

Law of this file: it behaves as the kernel's does towards a loop that watches it: told again and again while
there is something to read or room to write.
"""

from __future__ import annotations

import asyncio
import contextvars
import socket
from collections.abc import Callable, Sequence
from typing import Any

from cluster_sim.loop import SimLoop

Watcher = tuple[Callable[..., Any], tuple[Any, ...], contextvars.Context]


class RawSocket(asyncio.Protocol):
    """One end of a stream, once `SimLoop.sock_connect` has connected it."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._transport: Any = None
        self._come = bytearray()
        self._is_over = False
        self._error: Exception | None = None
        self._is_full = False
        self._is_closed = False
        self._reader: Watcher | None = None
        self._writer: Watcher | None = None
        self._told: set[str] = set()

    # ---- as a socket -----------------------------------------------------------------------------

    def setblocking(self, flag: bool) -> None:
        assert not flag

    def setsockopt(self, *_: Any) -> None:
        return None

    def fileno(self) -> int:
        return -1 if self._is_closed else 1

    def send(self, data: bytes) -> int:
        return self.sendmsg([data])

    def sendmsg(self, parts: Sequence[bytes | memoryview]) -> int:
        """All of it, unless what was sent before is still here."""
        if self._error is not None:
            raise self._error
        if self._is_full:
            raise BlockingIOError
        data = b"".join(parts)
        self._transport.write(data)
        return len(data)

    def recv(self, most: int) -> bytes:
        if self._come:
            data = bytes(self._come[:most])
            del self._come[:most]
            return data
        if self._error is not None:
            raise self._error
        if self._is_over:
            return b""
        raise BlockingIOError

    def recv_into(self, room: memoryview) -> int:
        data = self.recv(len(room))
        room[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._is_closed = True
        if self._transport is not None:
            self._transport.abort()

    # ---- as what a loop watches ------------------------------------------------------------------

    def set_reader(self, callback: Any, args: Any, context: contextvars.Context) -> None:
        self._reader = (callback, args, context)
        self._tell_reader()

    def clear_reader(self) -> bool:
        was, self._reader = self._reader, None
        return was is not None

    def set_writer(self, callback: Any, args: Any, context: contextvars.Context) -> None:
        self._writer = (callback, args, context)
        self._tell_writer()

    def clear_writer(self) -> bool:
        was, self._writer = self._writer, None
        return was is not None

    def _tell_reader(self) -> None:
        if self._reader is not None and (self._come or self._is_over or self._error is not None):
            self._tell("read", self._reader[2])

    def _tell_writer(self) -> None:
        if self._writer is not None and (not self._is_full or self._error is not None):
            self._tell("write", self._writer[2])

    def _tell(self, what: str, context: contextvars.Context) -> None:
        if what not in self._told:
            self._told.add(what)
            self._loop.call_soon(self._call, what, context=context)

    def _call(self, what: str) -> None:
        self._told.discard(what)
        watcher = self._reader if what == "read" else self._writer
        if watcher is not None and not self._is_closed:
            watcher[0](*watcher[1])
            self._tell_reader()
            self._tell_writer()

    # ---- as the network's end --------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._come += data
        self._tell_reader()

    def eof_received(self) -> bool:
        self._is_over = True
        self._tell_reader()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is None:
            self._is_over = True
        else:
            self._error = exc
        self._tell_reader()
        self._tell_writer()

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._tell_writer()


class Sockets:
    """The `socket` module of a client."""

    IPPROTO_TCP = socket.IPPROTO_TCP
    TCP_NODELAY = socket.TCP_NODELAY
    SOCK_STREAM = socket.SOCK_STREAM
    AF_INET = socket.AF_INET
    AF_INET6 = socket.AF_INET6

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def socket(self, *_: Any) -> RawSocket:
        return RawSocket(self._loop)
