"""Dials the peers whose connections this agent has to open, again and again until it stops.

Law of this file: when and where to dial. The choice of peers, and connections once they are open, are
links.py's business.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from shoal.addresses import plain_address
from shoal.agent.peers.connection import PeerConnection, Refused
from shoal.agent.peers.frames import LinkKind
from shoal.agent.peers.linked_peer import LinkConfig, LinkedPeer
from shoal.agent.process.clock import is_set_within
from shoal.agent.security.agents_tls import AgentsTls, context_for, in_the_open, why_not_connected
from shoal.lookup import Lookup, LookupFailed

if TYPE_CHECKING:
    from shoal.agent.peers.links import Links

MAX_DIALLING_NEWCOMERS = 128
"""Peers dialled for the first time at once: those who join need not wait for those who do not exist."""
MAX_DIALLING_STRANGERS = 32
"""Peers that were dialled in vain and never met, at once: gossip may tell of thousands who do not exist."""
FAILED_GROWTH = 1.125
"""From one pause to the next for a member that gossip has given up: after a partition its link is back within
a quarter of the time that the partition lasted."""


class Dialler:
    """`gone` is called for a peer whose process has ended: nobody listens where a live agent was."""

    def __init__(
        self,
        owner: Links,
        config: LinkConfig,
        rng: random.Random,
        gone: Callable[[LinkedPeer], None],
    ) -> None:
        self.own_address: str | None = None
        """Where peers know this agent, if that is an address of this host: it connects from there."""
        self.lookup = Lookup()
        """Of the names of peers; the agent has one for all that it looks up."""
        self.tls: AgentsTls = in_the_open
        """The context of connections to peers."""
        self._owner = owner
        self._config = config
        self._rng = rng
        self._gone = gone
        self._newcomers = asyncio.Semaphore(MAX_DIALLING_NEWCOMERS)
        self._strangers = asyncio.Semaphore(MAX_DIALLING_STRANGERS)

    async def keep_dialled(self, peer: LinkedPeer, kind: LinkKind) -> None:
        """Until cancelled."""
        delay_ms: float = self._config.redial_min_ms
        while True:
            if await self.dial(peer, kind):
                delay_ms = self._config.redial_min_ms
            while (renewed := peer.connections.get(kind)) is not None and renewed.was_dialled:
                await renewed.closed.wait()
            # Jitter, so that a restarted agent is not met by all its peers in the same instant.
            has_news = await self._pause(peer, delay_ms * self._rng.uniform(0.5, 1.0) / 1000)
            delay_ms = self._config.redial_min_ms if has_news else self._longer(peer, delay_ms)

    def _longer(self, peer: LinkedPeer, delay_ms: float) -> float:
        config = self._config
        usual_ms = config.redial_max_ms if peer.met else config.redial_stranger_max_ms
        if peer.lives.is_set() or delay_ms < usual_ms:
            return min(2 * delay_ms, usual_ms)
        return min(FAILED_GROWTH * delay_ms, config.redial_failed_max_ms)

    async def _pause(self, peer: LinkedPeer, pause_s: float) -> bool:
        """True when gossip lists a failed member as alive again, before the time is up."""
        if peer.lives.is_set():
            await asyncio.sleep(pause_s)
            return False
        return await is_set_within(peer.lives, pause_s)

    async def dial(self, peer: LinkedPeer, kind: LinkKind) -> bool:
        """True when it was open once; returns when it is closed."""
        if peer.address is None:
            peer.complain(f"its URL {peer.url!r} is not an agent's")
            return False
        connection = PeerConnection(self._owner, (kind, peer.agent_id, urlsplit(peer.url).netloc))
        try:
            async with self._turn(peer):
                connection.context = context_for(peer.url, self.tls)
                await self._connect(connection, await self._places(peer, peer.address))
            await connection.closed.wait()
        except ConnectionRefusedError:
            # Nobody listens where a live agent was: no need to wait for the silence.
            if kind == LinkKind.CONTROL and peer.lost_ms is not None:
                self._gone(peer)
            return False
        except (OSError, TimeoutError, Refused) as error:
            peer.complain(f"cannot connect: {why_not_connected(error) or 'no answer in time'}")
            return False
        finally:
            connection.abort()
        return True

    def _turn(self, peer: LinkedPeer) -> AbstractAsyncContextManager[None]:
        """A peer that was met need not wait, and a new one does not wait for those that were tried in
        vain."""
        if peer.met:
            return nullcontext()
        first, peer.dialled = not peer.dialled, True
        return self._newcomers if first else self._strangers

    async def _places(self, peer: LinkedPeer, address: str) -> list[tuple[str, int]]:
        """Where to look for it, the likeliest first. The name is looked up anew each time. Gossip has pinged
        those that it lists as alive; of the others the name may know more. The other one is tried, too."""
        parts = urlsplit(peer.url)
        assert parts.hostname is not None
        assert parts.port is not None
        found: tuple[str, ...] = ()
        if parts.hostname != address:
            try:
                found = tuple(map(plain_address, await self.lookup.addresses(parts.hostname)))
            except LookupFailed as error:
                peer.complain(f"{error}; trying {address}, where gossip sees it")
        known_alive = address in found or peer.lives.is_set()
        places = [address, *found] if known_alive else [*found, address]
        return [(place, parts.port) for place in dict.fromkeys(places)]

    async def _connect(self, connection: PeerConnection, places: Sequence[tuple[str, int]]) -> None:
        """Until it is open. Raises OSError, TimeoutError, Refused."""
        faults: list[OSError] = []
        for host, port in places:
            try:
                await self._connect_to(connection, host, port)
                break
            except OSError as error:  # a TimeoutError is one
                faults.append(error)
        else:
            # A live agent may be where nobody answers: only if all refuse it has ended.
            raise next((one for one in faults if not isinstance(one, ConnectionRefusedError)), faults[0])
        # Longer than the other side waits, so that its reason arrives.
        async with asyncio.timeout(1.5 * self._config.greeting_timeout_ms / 1000):
            await connection.opened

    async def _connect_to(self, connection: PeerConnection, host: str, port: int) -> None:
        """By TLS the other side is an agent, by its certificate, before the connection hears of it."""
        own, context = self.own_address, connection.context
        same_family = own is not None and (":" in own) == (":" in host)
        handshake_ms = 0 if context is None else self._config.greeting_timeout_ms
        async with asyncio.timeout((self._config.connect_timeout_ms + handshake_ms) / 1000):
            await asyncio.get_running_loop().create_connection(
                lambda: connection,
                host,
                port,
                ssl=context,
                server_hostname=None if context is None else "",
                local_addr=(own, 0) if own and same_family else None,
            )
