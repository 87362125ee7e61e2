"""Meets the other agents: seeds, addresses remembered from the last run, and what mDNS hears.

Law of this file: it only makes contact. Whether those met are of our cluster is for bootstrap and the
roster to say; the one thing checked here is the cluster's name, so that strangers are not called at all.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence

from shoal.agent.roster import Roster
from shoal.membership.interface import JoinError
from shoal.membership.mdns import Found

RETRY_MS_MIN = 250  # agents of one script start within a second of each other
RETRY_MS_MAX = 10_000
RETRY_FOUND_MS_MIN = (
    2_000  # whom mDNS hears but nobody reached yet: the first try comes with the announcement
)
RETRY_FOUND_MS_MAX = 60_000  # one that died without a goodbye is heard of until its record expires
MAX_FOUND = 64  # announcements waiting to be answered; a lost one is announced again
REMEMBER_INTERVAL_S = 5.0

Address = tuple[str, int]
logger = logging.getLogger("shoal.agent")


class Meeting:
    """Runs for the agent's life: contact may be lost and must then be found again."""

    def __init__(
        self,
        *,
        agent_id: str,
        cluster: str,
        seeds: Sequence[Address],
        remembered: Sequence[Address],
        roster: Roster,
        rng: random.Random,
        join: Callable[[Sequence[Address]], Awaitable[int]],
        remember: Callable[[list[Address]], Awaitable[None]],
    ) -> None:
        self.heard: Callable[[], Sequence[Found]] = tuple
        """Everybody whom mDNS hears at present; set when it is there."""
        self._agent_id = agent_id
        self._cluster = cluster
        self._seeds = list(dict.fromkeys([*seeds, *remembered]))
        self._roster = roster
        self._rng = rng
        self._join = join
        self._remember = remember
        self._found: asyncio.Queue[Address] = asyncio.Queue(MAX_FOUND)
        self._last_remembered: list[Address] = list(remembered)

    def on_found(self, found: Found) -> None:
        """mDNS has heard somebody."""
        if self._is_missing(found) and not self._found.full():
            self._found.put_nowait((found.address, found.port))

    def _is_missing(self, found: Found) -> bool:
        if found.cluster != self._cluster or found.agent_id == self._agent_id:
            return False
        member = self._roster.find(found.agent_id)
        return member is None or member.status not in ("alive", "suspect")

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._answer_found())
            tasks.create_task(self._retry_found())
            tasks.create_task(self._remember_for_ever())
            if self._seeds:
                tasks.create_task(self._call_seeds())

    async def _answer_found(self) -> None:
        while True:
            await self._contact([await self._found.get()])

    async def _retry_found(self) -> None:
        """mDNS tells of each agent once, and the one call that follows may have failed."""
        delay_ms = RETRY_FOUND_MS_MIN
        while True:
            await asyncio.sleep(delay_ms * self._rng.uniform(0.75, 1.0) / 1_000)
            missing = [(found.address, found.port) for found in self.heard() if self._is_missing(found)]
            if missing and not await self._contact(missing[:MAX_FOUND]):
                delay_ms = min(2 * delay_ms, RETRY_FOUND_MS_MAX)
            else:
                delay_ms = RETRY_FOUND_MS_MIN

    async def _call_seeds(self) -> None:
        """While this agent is alone: the seeds, more and more slowly."""
        delay_ms = RETRY_MS_MIN
        while True:
            if self._is_alone() and not await self._contact(self._seeds):
                delay_ms = min(2 * delay_ms, RETRY_MS_MAX)
            else:
                delay_ms = RETRY_MS_MIN
            pause_ms = delay_ms if self._is_alone() else RETRY_MS_MAX
            await asyncio.sleep(pause_ms * self._rng.uniform(0.75, 1.0) / 1_000)

    def _is_alone(self) -> bool:
        return not any(
            member.name != self._agent_id and member.status == "alive" for member in self._roster.members()
        )

    async def _contact(self, addresses: Sequence[Address]) -> bool:
        try:
            return await self._join(addresses) > 0
        except JoinError as error:
            logger.debug("no contact: %s", error)
            return False

    async def _remember_for_ever(self) -> None:
        while True:
            await asyncio.sleep(REMEMBER_INTERVAL_S)
            peers = sorted(
                (member.address, member.port)
                for member in self._roster.ours()
                if member.status == "alive" and member.name != self._agent_id
            )
            if peers and peers != self._last_remembered:
                await self._remember(peers)
                self._last_remembered = peers
