"""Replicas of topics that the catalog does not know, over all agents: listed, reported, remembered.

Law of this file: the registry and the catalog decide here what counts as kept; kept.py shows it. Nothing is
ever deleted. An agent answers for itself; to list or to adopt, every live member is asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Sequence

from shoal.agent.durable.identity import ReplicaState
from shoal.agent.durable.ids import CATALOG_GROUP
from shoal.agent.host.host import Host
from shoal.agent.log_lines.names import agent_name
from shoal.agent.members.roster import Roster
from shoal.agent.peers.links import PeerRequestFailed, PeerUnavailable
from shoal.agent.peers.messages import PeerMessage, decode_topic_id
from shoal.agent.topics.catalog import CatalogError
from shoal.agent.topics.kept import (
    FormerTopic,
    Kept,
    KeptTopic,
    decode_kept,
    decode_remembered,
    encode_kept,
    encode_remembered,
    gathered,
)
from shoal.agent.topics.local_catalog import LocalCatalog
from shoal.errors import ShoalError

ASK_TIMEOUT_MS = 2_000

logger = logging.getLogger("shoal.agent")


class KeptReplicas:
    """One per catalog service."""

    def __init__(
        self, peers: Roster, groups: Host, local: LocalCatalog, dead: Callable[[], Container[bytes]]
    ) -> None:
        """`dead`: topics whose deletion is committed."""
        self._peers = peers
        self._groups = groups
        self._local = local
        self._dead = dead
        self._reported: set[bytes] = set()

    def here(self) -> list[Kept]:
        """Topics of which replicas are here, that neither the catalog nor a deletion knows (safety 4)."""
        held: dict[bytes, list[int]] = {}
        dead, catalog = self._dead(), self._local.catalog
        for record in self._groups.replica_records():
            topic_id, partition = record.group
            unknown = catalog.by_id(topic_id) is None and topic_id not in dead
            if unknown and record.group != CATALOG_GROUP and record.state is not ReplicaState.REMOVED:
                held.setdefault(topic_id, []).append(partition)
        kept = []
        for topic_id, partitions in sorted(held.items()):
            known = self._local.record.kept.get(topic_id)
            name, count = (None, None) if known is None else (known.entry.name, len(known.entry.partitions))
            kept.append(Kept(topic_id, name, count, tuple(sorted(partitions))))
        return kept

    def report(self) -> None:
        """A warning for each, once. To be called while the catalog here is as new as anybody's."""
        for item in self.here():
            if item.topic_id not in self._reported:
                self._reported.add(item.topic_id)
                logger.warning(
                    "topic %s (%s) is not in the catalog; replicas of %d of its partitions are here, and are"
                    " kept: `shoal topic adopt` lists such topics and takes them back",
                    item.name or "of unknown name",
                    item.topic_id.hex(),
                    len(item.partitions),
                )

    async def on_kept(self, _peer: str, payload: bytes) -> bytes:
        """The topics kept here; or, for a topic id, its remembered entry."""
        if not payload:
            return encode_kept(self.here())
        remembered = self._local.record.kept.get(decode_topic_id(payload))
        return b"" if remembered is None else encode_remembered(remembered)

    async def everywhere(self) -> tuple[list[KeptTopic], list[str]]:
        """Of the live members, and those of them whose answer did not come or cannot be read. Nobody knows
        which topics those keep."""
        peers = self._peers.live_peers()
        answers = await asyncio.gather(*(self._ask(peer, b"") for peer in peers))
        found = {self._peers.agent_id: self.here()}
        silent = [peer for peer, answer in zip(peers, answers, strict=True) if answer is None]
        for peer, answer in zip(peers, answers, strict=True):
            try:
                found[peer] = [] if answer is None else decode_kept(answer)
            except CatalogError as error:
                logger.warning("cannot read the list of unknown topics from %s: %s", agent_name(peer), error)
                silent.append(peer)
        catalog = self._local.catalog
        return [item for item in gathered(found) if catalog.by_id(item.topic_id) is None], silent

    async def find(self, name_or_id: str) -> FormerTopic:
        """The newest entry that a member remembers of a kept topic. ShoalError not-ready: it was not found,
        and a live member did not answer. ShoalError unknown-topic: no member keeps it, or knows its settings;
        bad-request: several topics have had that name."""
        items, silent = await self.everywhere()
        wanted = [item for item in items if name_or_id in (item.name, item.topic_id.hex())]
        if not wanted:
            _require_all_answers(silent)
            raise ShoalError(
                "unknown-topic",
                f"no live agent keeps a topic {name_or_id[:64]!r} that the catalog does not know:"
                " `shoal topic adopt` lists those that are kept",
            )
        if len(wanted) > 1:
            ids = ", ".join(item.topic_id.hex() for item in wanted)
            raise ShoalError("bad-request", f"{len(wanted)} kept topics had that name: use the id, of {ids}")
        return await self._newest(wanted[0])

    async def _newest(self, topic: KeptTopic) -> FormerTopic:
        own = self._local.record.kept.get(topic.topic_id)
        found = [] if own is None else [own]
        silent = []
        for peer in self._peers.live_peers():
            answer = await self._ask(peer, topic.topic_id)
            if answer is None:
                silent.append(peer)
            try:
                remembered = None if answer is None else decode_remembered(answer)
            except CatalogError as error:
                logger.warning(
                    "cannot read the settings of %s from %s: %s",
                    topic.name or topic.topic_id.hex(),
                    agent_name(peer),
                    error,
                )
                continue
            if remembered is not None and remembered.entry.topic_id == topic.topic_id:
                found.append(remembered)
        if not found:
            _require_all_answers(silent)
            raise ShoalError(
                "unknown-topic",
                f"no live agent remembers the settings of {topic.topic_id.hex()}, without which it cannot be"
                " adopted: its records can be read with `shoal log export` at a stopped agent that holds it",
            )
        return max(found, key=lambda item: item.version)

    async def _ask(self, peer: str, payload: bytes) -> bytes | None:
        try:
            return await self._peers.request(peer, PeerMessage.CATALOG_KEPT, payload, ASK_TIMEOUT_MS)
        except (PeerUnavailable, PeerRequestFailed) as error:
            logger.info("%s did not list its unknown topics: %s", agent_name(peer), error)
            return None


def _require_all_answers(silent: Sequence[str]) -> None:
    """A topic that nobody has may be with a member that did not answer: one that has just come back, say.
    Raises ShoalError not-ready."""
    if silent:
        names = ", ".join(agent_name(peer) for peer in silent)
        raise ShoalError("not-ready", f"{names} did not say which topics it keeps: ask again shortly")
