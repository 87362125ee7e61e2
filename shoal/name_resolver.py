"""How aiohttp finds the addresses of agents' names: looked up for each connection, aside from the loop.

Law of this file: aiohttp's form of a lookup, and nothing else.
"""

from __future__ import annotations

import socket

from aiohttp.abc import AbstractResolver, ResolveResult

from shoal.lookup import Lookup


class NameResolver(AbstractResolver):
    """For a TCPConnector, without its cache: a name that leads elsewhere is followed at once."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Raises OSError, which names the name."""
        found = [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in await self._lookup.addresses(host)
        ]
        return [one for one in found if family in (socket.AF_UNSPEC, one["family"])]

    async def close(self) -> None:
        """Nothing is held."""
