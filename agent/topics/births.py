"""A newborn partition serves once the catalog has committed that it is led: told here, and taken here.

Law of this file: a birth that nobody leads may be given up for another one (catalog_upkeep.py). So the first
leader of a birth takes nothing before the catalog has committed that there is a leader; then the birth is
final. The catalog's log alone decides which of the two came first. All births that are led here are told in
one request, and all that are told at the same time become one command.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from shoal.agent.host.newborns import Newborns, is_led_here
from shoal.agent.log_lines.repeats import once_a_minute
from shoal.agent.members.roster import Roster
from shoal.agent.partition.replica import Replica
from shoal.agent.peers.links import PeerRequestFailed, PeerUnavailable
from shoal.agent.peers.messages import PeerMessage, PeerMessageError
from shoal.agent.process.clock import is_set_within
from shoal.agent.topics.catalog import Births, Catalog, CatalogError, ConfirmBirths
from shoal.agent.topics.catalog_codec import decode_command, encode_command
from shoal.agent.topics.catalog_service import CatalogService
from shoal.errors import ShoalError
from shoal.replication.interfaces import generation_of

GATHER_MS = 100
"""How long births that are led wait for others here that are about to be: all agents save the state of the
catalog after each command. The wait doubles while there are such."""
GATHER_MS_MAX = 2_000
GATHER_STEP_MS = 10
STILL_MS = 250
"""A birth that is not led after this time lacks voters or a disk, and is not waited for."""
TELL_TIMEOUT_MS = 5_000
RETRY_S = 0.2

seldom = once_a_minute(logging.getLogger("shoal.agent"))


class BirthTelling:
    """One per agent; run() for its life."""

    def __init__(self, newborns: Newborns, catalog: CatalogService, peers: Roster) -> None:
        self._newborns = newborns
        self._catalog = catalog
        self._peers = peers
        self._news = asyncio.Event()
        self._wanted: dict[tuple[bytes, int], int] = {}
        """Mask of partitions by topic and generation: told to this agent, and not proposed yet."""
        self._committing = asyncio.Lock()
        newborns.on_led = self._news.set

    async def run(self) -> None:
        """Tell of what is led here, until cancelled."""
        gather_ms = GATHER_MS
        while True:
            await self._news.wait()
            self._news.clear()
            if not self._led():
                continue
            is_all = await self._gather(gather_ms)
            gather_ms = GATHER_MS if is_all else min(2 * gather_ms, GATHER_MS_MAX)
            led = self._led()
            if led and not await self._tell(led):
                await is_set_within(self._news, RETRY_S)
                self._news.set()

    def _led(self) -> list[Replica]:
        return [replica for replica in self._newborns.replicas() if is_led_here(replica)]

    async def _gather(self, gather_ms: int) -> bool:
        """Wait while others born here come to be led. True: no other is about to."""
        awaited, still_ms = 0, 0
        for _ in range(gather_ms // GATHER_STEP_MS):
            before, awaited = awaited, sum(map(_is_about_to_lead, self._newborns.replicas()))
            still_ms = still_ms + GATHER_STEP_MS if awaited == before else 0
            if not awaited or still_ms >= STILL_MS:
                return True
            await asyncio.sleep(GATHER_STEP_MS / 1_000)
        return False

    async def _tell(self, led: Sequence[Replica]) -> bool:
        """False: it must be told again."""
        masks: dict[tuple[bytes, int], int] = {}
        for replica in led:
            key = replica.group.topic_id, _generation(replica)
            masks[key] = masks.get(key, 0) | 1 << replica.group.partition
        try:
            final = await self._ask(tuple(Births(*key, mask) for key, mask in sorted(masks.items())))
        except (PeerUnavailable, PeerRequestFailed, PeerMessageError, ShoalError) as error:
            seldom.info("%d new partitions led here are not in the catalog yet: %s", len(led), error)
            return False
        taken = {(birth.topic_id, birth.generation): birth.partitions for birth in final}
        for replica in led:
            group = replica.group
            if taken.get((group.topic_id, _generation(replica)), 0) >> group.partition & 1:
                self._newborns.be_born(group)
        return not self._led()

    async def _ask(self, births: tuple[Births, ...]) -> tuple[Births, ...]:
        leader = self._catalog.leader()
        if leader is None:
            raise ShoalError("no-leader", "the catalog has no leader at present")
        if leader == self._peers.agent_id:
            return await self.take(births)
        payload = encode_command(ConfirmBirths(births))
        answer = await self._peers.request(leader, PeerMessage.CATALOG_BORN, payload, TELL_TIMEOUT_MS)
        return decode_births(answer)

    # ---- at the catalog's leader -----------------------------------------------------------------

    async def on_born(self, _peer: str, payload: bytes) -> bytes:
        """A peer leads these births: those of them that are final. Raises PeerMessageError, ShoalError."""
        return encode_command(ConfirmBirths(await self.take(decode_births(payload))))

    async def take(self, births: tuple[Births, ...]) -> tuple[Births, ...]:
        """Commit that they are led. Returns those that are final then, without those given up meanwhile.
        ShoalError not-leader, no-leader, timeout."""
        for birth in self._state.led_of(births, born=False):
            key = birth.topic_id, birth.generation
            self._wanted[key] = self._wanted.get(key, 0) | birth.partitions
        async with self._committing:  # births told meanwhile share the next command
            wanted, self._wanted = self._wanted, {}
            if wanted:
                command = ConfirmBirths(tuple(Births(*key, partitions) for key, partitions in wanted.items()))
                await self._catalog.propose(command, TELL_TIMEOUT_MS)
        return self._state.led_of(births, born=True)

    @property
    def _state(self) -> Catalog:
        return self._catalog.catalog


def decode_births(payload: bytes) -> tuple[Births, ...]:
    """Raises PeerMessageError."""
    try:
        command = decode_command(payload)
    except CatalogError as error:
        raise PeerMessageError(str(error)) from None
    if not isinstance(command, ConfirmBirths):
        raise PeerMessageError("no births")
    return command.births


def _is_about_to_lead(replica: Replica) -> bool:
    """The first voter of a newborn group leads it, or campaigns at once."""
    core = replica.core
    is_first = core.configuration.voters[0] == core.replica_id
    return is_first and core.leader in (None, core.replica_id) and not is_led_here(replica)


def _generation(replica: Replica) -> int:
    generation = generation_of(replica.replica_id)
    assert generation is not None, "what was recovered by force is born"
    return generation
