"""Ends an agent whose cluster has taken a level that it does not understand, while it was away.

Law of this file: a peer's word on a link only starts the question. The answer is a member's document, as for
an agent that joins (introduction.py). The directory here may be of the level before, and the links, which are
refused, bring no newer catalog.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import NoReturn

from shoal.agent.bootstrap.introduction import IntroductionError, ask
from shoal.agent.levels import LevelRange, refusal
from shoal.agent.members.roster import Roster
from shoal.agent.process.errors import RefusedError

PAUSE_S = 2.0
"""Between two questions. A peer that cannot link with this agent dials about as often."""

logger = logging.getLogger("shoal.agent")


class OutgrownWatch:
    """Call suspect() when somebody says that the cluster is at a level above these."""

    def __init__(self, cluster_id: bytes, roster: Roster, rng: random.Random, levels: LevelRange) -> None:
        self._cluster_id = cluster_id
        self._roster = roster
        self._rng = rng
        self._levels = levels
        self._suspected = asyncio.Event()

    def suspect(self) -> None:
        self._suspected.set()

    async def run(self) -> NoReturn:
        """Until cancelled. Raises RefusedError once a member says that it is so."""
        while True:
            await self._suspected.wait()
            self._suspected.clear()
            await self._look()
            await asyncio.sleep(PAUSE_S)

    async def _look(self) -> None:
        peers = self._roster.starting_peers()
        urls = [peer.url for peer in peers if peer.cluster_id == self._cluster_id]
        self._rng.shuffle(urls)
        try:
            introduction = await ask(urls, self._cluster_id)
        except IntroductionError as error:
            logger.debug("nobody could say at which level the cluster is: %s", error)
            return
        if introduction.level > self._levels.highest:  # a lower one may be that of a state that lags
            raise RefusedError(f"cluster {introduction.cluster}: {refusal(self._levels, introduction.level)}")
