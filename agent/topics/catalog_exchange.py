"""Agents tell each other how new their states of the catalog are, and copy the newest.

Law of this file: it compares versions and carries bytes; any peer's state is as good as another's. The effect
of a newer one here is decided in catalog_service.py.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from shoal.agent.durable.catalog_version import CatalogVersion
from shoal.agent.levels import LevelRange
from shoal.agent.log_lines.names import agent_name
from shoal.agent.log_lines.repeats import once_a_minute
from shoal.agent.members.roster import Roster
from shoal.agent.peers.links import PeerRequestFailed, PeerUnavailable
from shoal.agent.peers.messages import PeerMessage, PeerMessageError, decode_version
from shoal.agent.topics.catalog import Catalog, CatalogError
from shoal.agent.topics.catalog_pull import PIECE_BYTES, Copy, Piece, question_from_bytes
from shoal.agent.topics.entries import HigherLevel
from shoal.agent.topics.local_catalog import LocalCatalog

AWAIT_MS = 1_000  # how long a creation waits for the other members to hear of it
PULL_TIMEOUT_MS = 5_000

logger = logging.getLogger(__name__)
seldom = once_a_minute(logger)


class CatalogExchange:
    """One per catalog service."""

    def __init__(
        self,
        local: LocalCatalog,
        peers: Roster,
        rng: random.Random,
        leads: Callable[[], bool],
        levels: LevelRange,
    ) -> None:
        self.news = asyncio.Event()
        """Versions should be compared now."""
        self._local = local
        self._peers = peers
        self._rng = rng
        self._leads = leads
        self._levels = levels
        self._heard: dict[str, CatalogVersion] = {}
        self._asking: dict[str, asyncio.Lock] = {}
        self._asked: dict[str, CatalogVersion] = {}
        """The last version that each peer was asked for."""

    def look(self) -> None:
        """The member list has changed, or the state here is not enough: compare versions now."""
        self.news.set()

    # ---- what peers should know ------------------------------------------------------------------

    def hint(self) -> None:
        """Tell the live members that there is a newer version here."""
        hint = self._local.published.to_bytes()
        for peer in self._peers.live_peers():
            self._peers.send_control(peer, PeerMessage.CATALOG_HINT, hint)

    async def tell_peers(self) -> None:
        """Wait, for a bounded time, until the live members know the present version: a client finds a new
        topic at any agent that it asks next."""
        version = self._local.catalog.version
        await asyncio.gather(*(self._await_peer(peer, version) for peer in self._peers.live_peers()))

    async def _await_peer(self, peer: str, version: CatalogVersion) -> None:
        """One question to a peer at a time, for all who wait: many new topics never fill the link."""
        async with self._asking.setdefault(peer, asyncio.Lock()):
            if peer in self._asked and self._asked[peer] >= version:
                return
            asked = self._asked[peer] = self._local.catalog.version
            try:
                await self._peers.request(peer, PeerMessage.CATALOG_AWAIT, asked.to_bytes(), AWAIT_MS)
            except (PeerUnavailable, PeerRequestFailed) as error:
                logger.debug("_catalog: %s has not confirmed the version: %s", agent_name(peer), error)

    async def ask_version(self, peer: str) -> CatalogVersion | None:
        """The version that a peer has now; None where it does not say."""
        mine = self._local.published.to_bytes()
        try:
            answer = await self._peers.request(peer, PeerMessage.CATALOG_AWAIT, mine, 2 * AWAIT_MS)
            version = decode_version(answer)
        except (PeerUnavailable, PeerRequestFailed, PeerMessageError) as error:
            logger.debug("_catalog: %s has not told its version: %s", agent_name(peer), error)
            return None
        self.on_hint(peer, answer)
        return version

    # ---- requests and hints of peers -------------------------------------------------------------

    async def on_pull(self, _peer: str, payload: bytes) -> bytes:
        """A piece of the state for a follower that is behind; nothing when it is not."""
        question = question_from_bytes(payload)
        if question is None:
            raise PeerMessageError(f"no question for the catalog, {len(payload)} bytes")
        local = self._local
        if local.is_between_epochs() or question.mine >= local.catalog.version:
            return b""
        version, data = local.encode(question.taking if question.position else None)
        goes_on = version == question.taking and question.position < len(data)
        start = question.position if goes_on else 0
        return Piece(version, len(data), data[start : start + PIECE_BYTES]).to_bytes()

    async def on_await(self, peer: str, payload: bytes) -> bytes:
        """Answer when this agent has reached the version, with its principals saved, or cannot in time."""
        self.on_hint(peer, payload)
        local, version = self._local, decode_version(payload)
        await local.wait_until(lambda: local.published >= version and local.has_saved_security(), AWAIT_MS)
        return local.published.to_bytes()

    def on_hint(self, peer: str, payload: bytes) -> None:
        """A voter has a newer version. Raises PeerMessageError."""
        version = decode_version(payload)
        if version > self._local.catalog.version:
            self._heard[peer] = version
            self.news.set()

    # ---- newer states ----------------------------------------------------------------------------

    async def pull_newest(self) -> Catalog | None:
        """A newer state than the one here, of a peer with the newest; None: there is none now. Raises
        HigherLevel."""
        peer = self._newest_peer()
        return None if peer is None else await self.pull(peer)

    def _newest_peer(self) -> str | None:
        local = self._local
        if self._leads() and not local.astray and not local.lacks_trimmed_commands():
            return None  # nobody knows more, and proposers here need outcomes, which a copy lacks
        mine, versions = local.catalog.version, self._peers.catalog_versions()
        for peer, version in list(self._heard.items()):
            if version <= mine or peer not in versions:
                del self._heard[peer]
            else:
                versions[peer] = max(version, versions[peer])
        newest = max(versions.values(), default=mine)
        if newest <= mine:
            return None
        return self._rng.choice(sorted(peer for peer, version in versions.items() if version == newest))

    async def pull(self, peer: str) -> Catalog | None:
        """None when the peer cannot give a newer state. Raises HigherLevel."""
        try:
            newer = await self._copy(peer)
        except HigherLevel:
            raise
        except (PeerUnavailable, PeerRequestFailed, CatalogError) as error:
            seldom.info("_catalog: cannot copy the state from %s, trying again: %s", agent_name(peer), error)
            newer = None
        if newer is not None and newer.version > self._local.catalog.version:
            return newer
        self._heard.pop(peer, None)
        return None

    async def _copy(self, peer: str) -> Catalog | None:
        """None when the peer has nothing newer. Raises CatalogError, and what a request raises."""
        copy = Copy(self._local.catalog.version)
        while (data := copy.state()) is None:
            answer = await self._peers.request(
                peer, PeerMessage.CATALOG_PULL, copy.question(), PULL_TIMEOUT_MS
            )
            if not answer:
                return None
            copy.add(answer)
        newer = Catalog.from_bytes(data)
        if not self._levels.has(newer.level):
            raise HigherLevel(newer.level, self._levels)
        return newer
