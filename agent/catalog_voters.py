"""Gives the catalog more voters as members join: a cluster begun by one agent must not depend on it for ever.

Law of this file: it runs on every agent and acts only where the catalog is led. growth.py decides the step,
the Raft core checks it, and an agent opens its replica only once the configuration that names it is
committed (safety 1, 2).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from shoal.agent.growth import Promote, Step, apply_step, next_step, wanted_catalog_voters
from shoal.agent.host import Host
from shoal.agent.identity import CATALOG_GROUP
from shoal.agent.links import PeerRequestFailed, PeerUnavailable
from shoal.agent.peer_messages import PeerMessage, encode_replica_id
from shoal.agent.roster import Roster
from shoal.batch import LogIndex
from shoal.errors import ShoalError
from shoal.replication.errors import ReplicationError
from shoal.replication.interfaces import Configuration, ReplicaId
from shoal.replication.transitions import Role

STEP_INTERVAL_S = 0.5
SETTLE_MS = 2_000  # a member seen for a shorter time may be gone again, or just being introduced
HOLD_TIMEOUT_MS = 5_000

logger = logging.getLogger("shoal.agent")


class CatalogVoters:
    """run() for the agent's life."""

    def __init__(self, *, roster: Roster, host: Host, now_ms: Callable[[], int]) -> None:
        self._roster = roster
        self._host = host
        self._now_ms = now_ms
        self._seen_ms: dict[str, int] = {}
        self._held: set[ReplicaId] = set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(STEP_INTERVAL_S)
            live = self._settled_members()
            if self._leads():
                await self._take_step(live)

    def _settled_members(self) -> list[str]:
        now_ms = self._now_ms()
        present = [member.name for member in self._roster.placeable()]
        self._seen_ms = {name: self._seen_ms.get(name, now_ms) for name in present}
        return sorted(name for name in present if now_ms - self._seen_ms[name] >= SETTLE_MS)

    def _leads(self) -> bool:
        return self._host.has(CATALOG_GROUP) and self._host.status(CATALOG_GROUP).role is Role.LEADER

    async def _take_step(self, live: Sequence[str]) -> None:
        status = self._host.status(CATALOG_GROUP)
        configuration = status.configuration
        if configuration is None or configuration.index > status.commit_index:
            return
        await self._have_learners_open(configuration)
        caught_up = self._caught_up(status.commit_index)
        step = next_step(configuration, live, wanted_catalog_voters(live), caught_up)
        if step is not None:
            self._propose(configuration, step)

    def _propose(self, configuration: Configuration, step: Step) -> None:
        try:
            self._host.replica(CATALOG_GROUP).propose_configuration(apply_step(configuration, step))
        except (ReplicationError, ShoalError) as error:
            logger.debug("the catalog's voters stay for now: %s", error)
            return
        if isinstance(step, Promote):
            replica = configuration.find(step.replica_id)
            logger.info(
                "the catalog gets another voter: %s", "?" if replica is None else replica.agent_id[:8]
            )

    def _caught_up(self, commit_index: LogIndex) -> frozenset[ReplicaId]:
        followers = self._host.replica(CATALOG_GROUP).core.statistics().followers
        return frozenset(
            follower.replica_id for follower in followers if follower.match_index >= commit_index
        )

    async def _have_learners_open(self, configuration: Configuration) -> None:
        """Tell each learner's agent which replica it holds; repeated until it has said yes in this run."""
        for replica in configuration.replicas:
            if not replica.learner or replica.id in self._held:
                continue
            try:
                await self._roster.request(
                    replica.agent_id,
                    PeerMessage.CATALOG_HOLD,
                    encode_replica_id(replica.id),
                    HOLD_TIMEOUT_MS,
                )
            except (PeerUnavailable, PeerRequestFailed) as error:
                logger.info("%s does not hold the catalog yet: %s", replica.agent_id[:8], error)
            else:
                self._held.add(replica.id)
