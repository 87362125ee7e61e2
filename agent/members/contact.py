"""Meets the other agents, in three ways at once: seeds, the snapshot of the last run, and what mDNS hears.

Law of this file: it only makes contact. Whether those met are of our cluster is for bootstrap and the
roster to say; the one thing checked here is the cluster's name, so that strangers are not called at all.

Everybody is called by himself: a seed that swallows packets must not delay the one that would answer.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence

from shoal.agent.members.roster import Roster
from shoal.membership.interface import JoinError
from shoal.membership.net.mdns import Found
from shoal.membership.serf.snapshot import Clocks, Peer, Snapshot

RETRY_MS_MIN = 250  # agents of one script start within a second of each other
RETRY_MS_MAX = 10_000
REVISIT_MS = 60_000  # not alone, but perhaps in one half of a pool that must not stay divided
RETRY_FOUND_MS_MIN = (
    2_000  # whom mDNS hears but nobody reached yet: the first try comes with the announcement
)
RETRY_FOUND_MS_MAX = 60_000  # one that died without a goodbye is heard of until its record expires
MAX_FOUND = 64  # announcements waiting to be answered; a lost one is announced again
MAX_CALLS = 8  # exchanges under way at a time: one that answers tells of all others
REMEMBERED_A_ROUND = 8  # of those remembered, chosen anew each time: most of a pool is where it was
REMEMBER_INTERVAL_S = 5.0
SEED_PATIENCE_S = 5.0  # agents that are started together need some seconds to answer each other
COMPLAINT_INTERVAL_S = 60.0  # about each seed, while nobody at all has been met: it may be misspelt
KNOWN_STATUSES = ("alive", "suspect", "failed")  # in the order of how likely one answers after a restart

Address = tuple[str, int]
logger = logging.getLogger("shoal.agent")


class PoolContact:
    """Runs for the agent's life: contact may be lost and must then be found again."""

    def __init__(
        self,
        *,
        agent_id: str,
        cluster: str,
        seeds: Sequence[Address],
        remembered: Sequence[Peer],
        roster: Roster,
        rng: random.Random,
        join: Callable[[Sequence[Address]], Awaitable[int]],
        clocks: Callable[[], Clocks],
        remember: Callable[[Snapshot], Awaitable[None]],
    ) -> None:
        self.heard: Callable[[], Sequence[Found]] = tuple
        """Everybody whom mDNS hears at present; set when it is there."""
        self._agent_id = agent_id
        self._cluster = cluster
        self._seeds = list(dict.fromkeys(seeds))
        self._remembered = {(peer.address, peer.port): peer.name for peer in remembered}
        self._roster = roster
        self._rng = rng
        self._join = join
        self._clocks = clocks
        self._remember = remember
        self._found: asyncio.Queue[Address] = asyncio.Queue(MAX_FOUND)
        self._kept: Snapshot | None = None
        self._answered: set[Address] = set()
        """Of the seeds and of those remembered, who has."""
        self._complain_at_s: dict[Address, float] = {}
        """When it is said of a seed, which does not answer, why that is."""

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
            if self._seeds or self._remembered:
                tasks.create_task(self._call_known())

    # ---- mDNS ---------------------------------------------------------------------------------------------

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

    # ---- seeds and the snapshot ---------------------------------------------------------------------------

    async def _call_known(self) -> None:
        """While this agent is alone: everybody known, more and more slowly, for ever. Otherwise those who
        are missing, more and more slowly; and now and then one of the seeds, which may be in another half of
        the pool that nobody here remembers."""
        delay_ms = RETRY_MS_MIN
        was_alone = True
        while True:
            alone = self._is_alone()
            if alone != was_alone:
                was_alone, delay_ms = alone, RETRY_MS_MIN
            if alone:
                some = self._some(self._remembered, REMEMBERED_A_ROUND)
                if await self._contact(list(dict.fromkeys([*self._seeds, *some]))):
                    delay_ms = RETRY_MS_MIN
                await self._pause(delay_ms)
                delay_ms = min(2 * delay_ms, RETRY_MS_MAX)
            else:
                if not self._missing() or delay_ms > REVISIT_MS:
                    delay_ms = REVISIT_MS
                await self._pause(delay_ms)
                met = [seed for seed in self._seeds if seed in self._answered]
                once_more = self._some(met, 1) if delay_ms == REVISIT_MS else []
                await self._contact([*self._missing(), *once_more])
                delay_ms *= 2

    def _missing(self) -> list[Address]:
        """The seeds that never answered, which may know nobody themselves; and some of those remembered whom
        nobody has met since: they may have forgotten everybody, or be one half of a divided pool."""
        met = {member.name for member in self._roster.members()}
        peers = [
            address
            for address, name in self._remembered.items()
            if name not in met and address not in self._answered
        ]
        seeds = [seed for seed in self._seeds if seed not in self._answered]
        return list(dict.fromkeys([*seeds, *self._some(peers, REMEMBERED_A_ROUND)]))

    def _some(self, addresses: Iterable[Address], count: int) -> list[Address]:
        known = list(addresses)
        return self._rng.sample(known, min(count, len(known)))

    async def _pause(self, longest_ms: int) -> None:
        """Shorter when this agent turns out to be alone."""
        was_alone = self._is_alone()
        left_ms = longest_ms * self._rng.uniform(0.75, 1.0)
        while left_ms > 0 and (was_alone or not self._is_alone()):
            step_ms = min(left_ms, RETRY_MS_MAX)
            await asyncio.sleep(step_ms / 1_000)
            left_ms -= step_ms

    def _is_alone(self) -> bool:
        return not any(
            member.name != self._agent_id and member.status == "alive" for member in self._roster.members()
        )

    async def _contact(self, addresses: Sequence[Address]) -> bool:
        """Whether anybody answered."""
        limit = asyncio.Semaphore(MAX_CALLS)

        async def call(address: Address) -> bool:
            async with limit:
                try:
                    answered = await self._join([address]) > 0
                except JoinError as error:
                    self._note_silence(address, error)
                    return False
                self._complain_at_s.pop(address, None)
                if address in self._seeds or address in self._remembered:
                    self._answered.add(address)
                return answered

        async with asyncio.TaskGroup() as tasks:
            calls = [tasks.create_task(call(address)) for address in addresses]
        return any(task.result() for task in calls)

    def _note_silence(self, address: Address, error: JoinError) -> None:
        logger.debug("cannot join the pool: %s", error)
        if address not in self._seeds or not self._is_alone():
            return
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._complain_at_s.setdefault(address, now_s + SEED_PATIENCE_S):
            self._complain_at_s[address] = now_s + COMPLAINT_INTERVAL_S
            logger.warning("no answer from %s; trying again", error)

    # ---- the snapshot of this run -------------------------------------------------------------------------

    async def _remember_for_ever(self) -> None:
        while True:
            await asyncio.sleep(REMEMBER_INTERVAL_S)
            snapshot = Snapshot(tuple(self._known_peers()), self._clocks())
            if snapshot.peers and snapshot != self._kept:
                try:
                    await self._remember(snapshot)
                except OSError as error:
                    logger.warning("cannot save the members of the pool for the next start: %s", error)
                self._kept = snapshot

    def _known_peers(self) -> list[Peer]:
        """Those of our cluster first, the Serf agents of the pool last; who left is nobody to call."""
        ours = {member.name for member in self._roster.ours()}
        known = [
            (member.name not in ours, KNOWN_STATUSES.index(member.status), member)
            for member in self._roster.neighbours()
            if member.name != self._agent_id and member.status in KNOWN_STATUSES
        ]
        known.sort(key=lambda item: (*item[:2], item[2].name))
        return [Peer(member.name, member.address, member.port) for _, _, member in known]
