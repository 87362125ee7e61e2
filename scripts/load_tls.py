"""TLS for the load generator: one connection sealed and opened over memory, with little work of its own.

Law of this file: a load generator costs less than what it measures. asyncio's TLS costs 24 us for a small
request and its answer, which is as much as an agent takes for the whole request.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, cast

READ_BYTES = 64 * 1024


class SealedConnection(asyncio.Protocol):
    """Between a socket's transport and a protocol, for which it is the transport: of that it has `write` and
    `close`. The protocol's connection is made when hands are shaken."""

    def __init__(self, context: ssl.SSLContext, host: str, inner: asyncio.Protocol) -> None:
        self._inner = inner
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self._is_made = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._shake_hands()

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        self._is_made = True
        self._flush()
        self._inner.connection_made(cast("Any", self))

    def data_received(self, data: bytes) -> None:
        self._incoming.write(data)
        if not self._is_made:
            self._shake_hands()
        while self._is_made and self._incoming.pending:
            try:
                opened = self._tls.read(READ_BYTES)
            except ssl.SSLWantReadError:
                break
            if not opened:
                self.close()
                break
            self._inner.data_received(opened)

    def write(self, data: bytes) -> None:
        """Seal and send."""
        self._tls.write(data)
        self._flush()

    def _flush(self) -> None:
        if sealed := self._outgoing.read():
            self._transport.write(sealed)

    def close(self) -> None:
        """When everything has left."""
        self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._inner.connection_lost(error)
