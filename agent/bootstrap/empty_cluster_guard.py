"""Two clusters under one name have met: give this one up if it is empty, or say clearly that they stay apart.

Law of this file: it watches and proposes; rules.py has the rule who yields, the catalog has the last
word: only a committed seal, which excludes every topic before and after it, dissolves a cluster (safety 6).
"""

from __future__ import annotations

import logging

from shoal.agent.bootstrap.rules import can_never_have_lived, must_dissolve
from shoal.agent.durable.catalog_version import NO_VERSION
from shoal.agent.log_lines.repeats import once_a_minute
from shoal.agent.members.roster import ForeignCluster, Roster
from shoal.agent.process.clock import Clock, is_set_within
from shoal.agent.topics.catalog import Seal
from shoal.agent.topics.catalog_service import CatalogService
from shoal.errors import ShoalError

LOOK_S = 1.0
SETTLE_MS = 2_000  # a cluster seen for a shorter time may be an agent that is just giving itself up
SEAL_TIMEOUT_MS = 3_000

logger = logging.getLogger("shoal.agent")
seldom = once_a_minute(logger)


class EmptyClusterGuard:
    """run() returns when this agent must give its cluster up, and why."""

    def __init__(self, *, roster: Roster, catalog: CatalogService, clock: Clock, timeout_ms: int) -> None:
        self._roster = roster
        self._catalog = catalog
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._first_seen_ms: dict[bytes, int] = {}
        self._told: set[bytes] = set()

    async def run(self) -> str:
        """Returns only when this cluster has been sealed, or provably never held anything."""
        while True:
            foreign_clusters = self._roster.foreign_clusters()
            present = {foreign.cluster_id for foreign in foreign_clusters}
            self._first_seen_ms = {key: seen for key, seen in self._first_seen_ms.items() if key in present}
            for foreign in foreign_clusters:
                reason = await self._face(foreign)
                if reason is not None:
                    return reason
            if self._catalog.sealed.is_set():
                return "this empty cluster was sealed"
            await is_set_within(self._catalog.sealed, LOOK_S)

    async def _face(self, foreign: ForeignCluster) -> str | None:
        own = self._roster.cluster_id
        assert own is not None
        since_ms = self._clock.now_ms() - self._first_seen_ms.setdefault(
            foreign.cluster_id, self._clock.now_ms()
        )
        if since_ms < SETTLE_MS:
            return None
        catalog = self._catalog.catalog
        if catalog.version == NO_VERSION and can_never_have_lived(self._catalog.birth, foreign.agents):
            return "its other founders belong to another cluster, so it never held anything"
        yields = must_dissolve(
            own,
            foreign.cluster_id,
            own_topics=len(catalog.topics),
            foreign_has_topics=foreign.has_topics,
        )
        if yields and self._catalog.leads():
            await self._seal(foreign)
        if not yields or since_ms > self._timeout_ms:
            self._tell(foreign, yields=yields)
        return None

    async def _seal(self, foreign: ForeignCluster) -> None:
        try:
            await self._catalog.propose(Seal(foreign.cluster_id), SEAL_TIMEOUT_MS)
        except ShoalError as error:
            seldom.info("cannot dissolve this empty cluster yet, trying again: %s", error)
            return
        if self._catalog.catalog.sealed_for is not None:
            # The other members must see the seal before its voters are gone.
            await self._catalog.exchange.tell_peers()

    def _tell(self, foreign: ForeignCluster, *, yields: bool) -> None:
        if foreign.cluster_id in self._told:
            return
        self._told.add(foreign.cluster_id)
        advice = (
            "it should yield but cannot commit that: restart its agents on empty data directories"
            if yields
            else "two clusters never merge: give one of them another --cluster name"
        )
        logger.error(
            "another cluster (%s, %d agents) is called %s as well; %s",
            foreign.cluster_id.hex()[:8],
            len(foreign.agents),
            self._roster.cluster,
            advice,
        )
