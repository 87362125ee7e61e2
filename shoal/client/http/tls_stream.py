"""TLS over a socket of our own that does not block: bytes are sealed and opened here, and go on by it.

Law of this file: it moves bytes and knows no requests. Python's `ssl` over memory, filled from the socket in
large pieces, costs 0.78 s of a core for each GB received. Transports of asyncio cost 1.09, sockets of `ssl`
1.14 (2026-11-28).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence
from typing import Final

_SEALED_BYTES: Final = 256 << 10
"""Read from the socket at once, and sealed at once: some 0.2 ms of the event loop."""
RECORD_BYTES_MAX: Final = 17 << 10
"""Of a TLS record as it travels: 16 KiB and what seals them."""


class TlsStream:
    """One connection. Reading and writing raise BlockingIOError while there is nothing to read, or the kernel
    takes no more, and OSError when the peer breaks the protocol."""

    def __init__(self, connected: socket.socket, context: ssl.SSLContext, host: str) -> None:
        self._socket = connected
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self._room = bytearray(_SEALED_BYTES)
        self._view = memoryview(self._room)
        self._sealed = memoryview(b"")

    async def shake_hands(self) -> None:
        """Raises OSError, and ssl.SSLError when one of both does not trust the other."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await loop.sock_sendall(self._socket, self._outgoing.read())
            except ssl.SSLError:
                self._socket.send(self._outgoing.read())  # the alert, for the peer's log
                raise
            received = await loop.sock_recv_into(self._socket, self._room)
            if not received:
                raise ConnectionResetError("the connection was closed within the handshake")
            self._incoming.write(self._view[:received])
        await loop.sock_sendall(self._socket, self._outgoing.read())

    def fill(self) -> None:
        """Take what has come to the socket, at most once. Raises OSError."""
        received = self._socket.recv_into(self._room)
        if received:
            self._incoming.write(self._view[:received])
        else:
            self._incoming.write_eof()

    def recv_into(self, room: memoryview) -> int:
        """Open as much of what has come as there is room for; 0 at the end."""
        filled, size = 0, len(room)
        try:
            while filled < size:
                filled += (opened := int(self._tls.read(size - filled, room[filled:])))
                if not opened:
                    break
        except ssl.SSLWantReadError:
            if not filled:
                raise BlockingIOError from None
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            pass
        return filled

    def recv(self, size: int) -> bytes:
        """As a socket's."""
        try:
            return bytes(self._tls.read(size))
        except ssl.SSLWantReadError:
            raise BlockingIOError from None
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return b""

    @property
    def has_sealed(self) -> bool:
        """Whether bytes that were taken are still to be sent."""
        return bool(self._sealed or self._outgoing.pending)

    def sendmsg(self, parts: Sequence[bytes | memoryview]) -> int:
        """Seal and send; how many bytes of the parts were taken, none while earlier ones wait."""
        taken = 0
        self._flush()
        while not self._sealed and taken < _SEALED_BYTES and parts:
            part = parts[0]
            done = self._tls.write(part[: _SEALED_BYTES - taken])
            taken += done
            parts = [part[done:], *parts[1:]] if done < len(part) else parts[1:]
        self._flush()
        return taken

    def _flush(self) -> None:
        if not self._sealed:
            self._sealed = memoryview(self._outgoing.read())
        while self._sealed:
            try:
                self._sealed = self._sealed[self._socket.send(self._sealed) :]
            except (BlockingIOError, InterruptedError):
                return
