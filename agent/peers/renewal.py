"""Links made anew while the agent runs, once certificates were exchanged: the new one first, then the end of
the old.

Law of this file: when, and by whom. Of a pair one agent dials. So the other one, which has withdrawn an
authority perhaps, asks it to dial anew. It ends the old connection itself only where nothing came of that.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

from shoal.agent.levels import AdditionKind, Level, level_of
from shoal.agent.log_lines.names import agent_name
from shoal.agent.log_lines.repeats import once_a_minute
from shoal.agent.peers.connection import PeerConnection
from shoal.agent.peers.dialler import Dialler
from shoal.agent.peers.frames import LinkKind
from shoal.agent.peers.linked_peer import LinkedPeer
from shoal.agent.peers.messages import PeerMessage, PeerMessageError
from shoal.agent.peers.requests import PeerRequestFailed, PeerUnavailable

RENEWED_WITHIN_S = 25.0
"""For the links of one agent, one after the other, once certificates are exchanged. Twice that is within the
minute after which no peer of a withdrawn authority is linked."""
ASK_TIMEOUT_MS: Final = 5_000
RENEWAL_LEVEL: Final = level_of(AdditionKind.LINK_MESSAGE, "LINK_RENEWAL")

seldom = once_a_minute(logging.getLogger(__name__))


class RenewingLinks(Protocol):
    """The links, as their renewal needs them."""

    @property
    def level(self) -> Level: ...
    @property
    def dialler(self) -> Dialler: ...
    async def request(self, agent_id: str, request_type: int, payload: bytes, timeout_ms: int) -> bytes: ...


class LinkRenewal:
    """Of one agent. `spawn`: runs something for as long as the links do."""

    def __init__(
        self,
        owner: RenewingLinks,
        peers: Mapping[str, LinkedPeer],
        rng: random.Random,
        spawn: Callable[[Awaitable[None]], object],
    ) -> None:
        self._owner = owner
        self._peers = peers
        self._rng = rng
        self._spawn = spawn
        self._replaced: set[PeerConnection] = set()
        """Those whose successors are being dialled because the other side has asked."""

    def begin(self, *, accepted: bool) -> None:
        """Certificates are exchanged: make links anew, those that peers have dialled too if `accepted`."""
        for peer in self._peers.values():
            for kind, former in peer.connections.items():
                if former.was_dialled:
                    self._spawn(self._dial_anew(peer, kind, former, RENEWED_WITHIN_S, must_end=accepted))
                elif accepted:
                    self._spawn(self._have_dialled(peer, kind, former))

    async def _dial_anew(
        self, peer: LinkedPeer, kind: LinkKind, former: PeerConnection, within_s: float, *, must_end: bool
    ) -> None:
        await asyncio.sleep(self._rng.uniform(0, within_s))
        try:
            if peer.connections.get(kind) is former:
                await self._owner.dialler.dial(peer, kind)  # until that one ends
        finally:
            self._replaced.discard(former)
        if must_end and peer.connections.get(kind) is former:
            former.close()

    async def _have_dialled(self, peer: LinkedPeer, kind: LinkKind, former: PeerConnection) -> None:
        await asyncio.sleep(self._rng.uniform(0, RENEWED_WITHIN_S))
        if peer.connections.get(kind) is former and self._owner.level >= RENEWAL_LEVEL:
            try:
                await self._owner.request(
                    peer.agent_id, PeerMessage.LINK_RENEWAL, bytes([kind]), ASK_TIMEOUT_MS
                )
            except (PeerUnavailable, PeerRequestFailed) as error:
                seldom.info("%s was asked for a new link: %s", agent_name(peer.agent_id), error)
        await asyncio.sleep(RENEWED_WITHIN_S)
        if peer.connections.get(kind) is former:
            former.close()

    async def on_request(self, agent_id: str, payload: bytes) -> bytes:
        """The other side of a link that was dialled here wants a new one. Raises PeerMessageError."""
        try:
            (number,) = payload
            kind = LinkKind(number)
        except ValueError:
            raise PeerMessageError(f"no kind of link, {len(payload)} bytes") from None
        peer = self._peers.get(agent_id)
        former = None if peer is None else peer.connections.get(kind)
        if peer is not None and former is not None and former.was_dialled and former not in self._replaced:
            self._replaced.add(former)
            self._spawn(self._dial_anew(peer, kind, former, 0.0, must_end=False))
        return b""
