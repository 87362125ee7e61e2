"""How aiohttp connects, so that nothing is left of a connection once its session is closed.

Law of this file: sockets of aiohttp, and their end. It does not know what goes over them.

aiohttp closes the connections that it keeps, and those of requests under way. It forgets one whose request
was given up, and that one may say goodbye for long: TLS waits 30 s for the peer's goodbye, and bytes to be
sent wait for ever. A program that ends meanwhile leaves a socket open, and Python warns of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any
from weakref import WeakSet

import aiohttp

from shoal.lookup import Lookup
from shoal.name_resolver import NameResolver

TURNS_MAX = 16
"""Of the loop, until all that was broken off is closed: a transport is told, TLS ends, it closes, its socket
does. Each takes one or two."""


class EndingConnector(aiohttp.TCPConnector):
    """A TCPConnector that ends all its connections when it is closed."""

    def __init__(self, lookup: Lookup | None = None, **options: Any) -> None:
        """`options`: of a TCPConnector. `lookup`: finds the addresses of a name for each connection."""
        self._made: WeakSet[socket.socket] = WeakSet()
        if lookup is not None:  # without aiohttp's cache, a name that leads elsewhere is followed
            options |= {"resolver": NameResolver(lookup), "use_dns_cache": False}

        def make(address: tuple[Any, ...]) -> socket.socket:  # an entry of getaddrinfo
            made = socket.socket(*address[:3])
            self._made.add(made)
            return made

        super().__init__(socket_factory=make, **options)

    async def close(self, *, abort_ssl: bool = False) -> None:
        """Returns once nothing is open. Idempotent."""
        await super().close(abort_ssl=abort_ssl)
        for _ in range(TURNS_MAX):
            saying = [made for made in self._made if made.fileno() >= 0]
            if not saying:
                return
            for made in saying:
                # The loop finds that the peer has closed, and closes the transport. An OSError: the peer was
                # faster, or had not answered yet, and the loop hears of that as well.
                with contextlib.suppress(OSError):
                    made.shutdown(socket.SHUT_RDWR)
            await asyncio.sleep(0)
