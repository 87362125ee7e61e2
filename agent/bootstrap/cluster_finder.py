"""From an empty directory to a member of a cluster: the shell around rules.py.

Law of this file: it watches the roster, asks bootstrap.decide(), and carries the decision out. Before it
returns, the cluster's record is on the disk, and after it the identity that names the cluster (safety 2, 6).
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Awaitable, Callable

from shoal.agent.bootstrap.introduction import Introduction, IntroductionError, ask
from shoal.agent.bootstrap.rules import Decision, Found, Join, View, Wait, decide
from shoal.agent.config import AgentConfig
from shoal.agent.durable.ids import ID_BYTES
from shoal.agent.levels import SUPPORTED, LevelRange, refusal
from shoal.agent.members.roster import Roster
from shoal.agent.process.clock import Clock, is_set_within
from shoal.agent.process.errors import RefusedError
from shoal.agent.topics.catalog import Catalog
from shoal.agent.topics.cluster_file import ClusterRecord

OWN_LOG_AFTER_MS = 2_000  # peers know the very birth, and most of them more of the catalog, too
RETRY_MS = 500  # after a member could not introduce its cluster
LONGEST_LOOK_MS = 5_000  # the view is looked at so often even when nothing seems to change

logger = logging.getLogger("shoal.agent")


class ClusterFinder:
    """Finds or founds the cluster of one agent."""

    def __init__(
        self,
        *,
        config: AgentConfig,
        agent_id: str,
        roster: Roster,
        clock: Clock,
        rng: random.Random,
        adopt: Callable[[ClusterRecord], Awaitable[None]],
        say: Callable[[str], None],
        levels: LevelRange = SUPPORTED,
    ) -> None:
        """`adopt` makes the record durable; `say` is told why the agent waits. `levels`: those that this
        agent understands."""
        self._config = config
        self._agent_id = agent_id
        self._roster = roster
        self._clock = clock
        self._rng = rng
        self._adopt = adopt
        self._say = say
        self._levels = levels
        self._changed = asyncio.Event()
        self._started_ms = clock.now_ms()
        self._last_change_ms = self._started_ms
        self._seen: frozenset[str] = frozenset()
        roster.listen(self._on_change)

    def _on_change(self) -> None:
        seen = frozenset(peer.agent_id for peer in self._roster.starting_peers())
        if seen != self._seen:
            self._seen = seen
            self._last_change_ms = self._clock.now_ms()
        self._changed.set()

    async def find_cluster(self) -> ClusterRecord:
        """Return once this agent belongs to a cluster; that may take for ever, by design (safety 6). Raises
        RefusedError where the cluster is at a level that this agent does not understand."""
        while True:
            self._changed.clear()
            decision = decide(self._view())
            record = await self._carry_out(decision)
            if record is not None:
                await self._adopt(record)
                return record

    def _view(self) -> View:
        return View(
            agent_id=self._agent_id,
            peers=self._roster.starting_peers(),
            expect=self._config.expect,
            has_seeds=bool(self._config.join),
            started_ms=self._started_ms,
            last_change_ms=self._last_change_ms,
            discovery_window_ms=self._config.discovery_window_ms,
            now_ms=self._clock.now_ms(),
        )

    async def _carry_out(self, decision: Decision) -> ClusterRecord | None:
        match decision:
            case Found(voters):
                logger.info("founding cluster %s; catalog voters: %d", self._config.cluster, len(voters))
                return self._record(os.urandom(ID_BYTES), voters)
            case Join(cluster_id, urls):
                return await self._join(cluster_id, urls)
            case Wait(reason, until_ms):
                self._say(reason)
                await self._sleep_until(until_ms)
        return None

    async def _join(self, cluster_id: bytes, urls: tuple[str, ...]) -> ClusterRecord | None:
        self._say(f"joining cluster {cluster_id.hex()[:8]}")
        introduction = await self._introduced(cluster_id, urls)
        if introduction is None:
            return None
        logger.info("joined cluster %s (%s)", self._config.cluster, cluster_id.hex()[:8])
        return self._record(cluster_id, introduction.catalog_birth)

    async def _introduced(self, cluster_id: bytes, urls: tuple[str, ...]) -> Introduction | None:
        shuffled = list(urls)
        self._rng.shuffle(shuffled)
        try:
            introduction = await ask(shuffled, cluster_id)
        except IntroductionError as error:
            self._say(f"nobody could introduce cluster {cluster_id.hex()[:8]} yet: {error}")
            await asyncio.sleep(RETRY_MS * self._rng.uniform(0.5, 1.0) / 1_000)
            return None
        if (reason := refusal(self._levels, introduction.level)) is not None:
            raise RefusedError(f"cannot join cluster {introduction.cluster}: {reason}")
        return introduction

    async def recover_birth(
        self, cluster_id: bytes, from_log: Callable[[], Awaitable[tuple[str, ...] | None]]
    ) -> ClusterRecord:
        """For an agent that knows its cluster but has lost the record: a member tells it again, or the
        agent's own log of the catalog does. Else all would wait for each other, had all lost it."""
        own_after_ms: int | None = self._clock.now_ms() + OWN_LOG_AFTER_MS
        own: tuple[str, ...] | None = None
        while True:
            self._changed.clear()
            if own_after_ms is not None and self._clock.now_ms() >= own_after_ms:
                own_after_ms = None
                own = await from_log()
            if own is not None:
                logger.warning("lost the record of the cluster: using the catalog's log here")
                return self._record(cluster_id, own)
            peers = [peer for peer in self._roster.starting_peers() if peer.cluster_id == cluster_id]
            if peers:
                introduction = await self._introduced(cluster_id, tuple(peer.url for peer in peers))
                if introduction is not None:
                    return self._record(cluster_id, introduction.catalog_birth)
            else:
                self._say("waiting for a member that knows the catalog's birth")
                await self._sleep_until(own_after_ms)

    def _record(self, cluster_id: bytes, birth: tuple[str, ...]) -> ClusterRecord:
        catalog = Catalog(level=self._levels.lowest)  # what is below was committed before this agent came
        return ClusterRecord(self._config.cluster, cluster_id, birth, catalog.to_bytes(), level=catalog.level)

    async def _sleep_until(self, until_ms: int | None) -> None:
        wait_ms = (
            LONGEST_LOOK_MS if until_ms is None else min(LONGEST_LOOK_MS, until_ms - self._clock.now_ms())
        )
        await is_set_within(self._changed, max(0, wait_ms) / 1_000)
