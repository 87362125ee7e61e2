"""Compares this agent's wall clock with those of its peers, so that a wrong one trims nothing (safety 17).

Law of this file: it asks and remembers; which ages are believed is decided in retention.py. Asked are the
voters of the groups that are led here, twice as often as an answer grows old. Nothing but the trimming of
old segments depends on it: no clock decides safety.
"""

import asyncio
import logging
import struct
from collections.abc import Callable, Sequence

from shoal.agent.clock import Clock
from shoal.agent.links import Links, PeerRequestFailed, PeerUnavailable
from shoal.agent.peer_messages import PeerMessage
from shoal.agent.replica import Replica
from shoal.agent.retention import MAX_OPINION_AGE_MS, ClockWatch, PeerDifferences

ASK_TIMEOUT_MS = 2_000
"""A longer way there and back says too little about the time between."""
_TIME = struct.Struct("<q")

logger = logging.getLogger(__name__)


class PeerClocks:
    """One per host; `run()` is a task of it."""

    def __init__(
        self,
        links: Links,
        clock: Clock,
        agent_id: str,
        led: Callable[[], Sequence[Replica]],
        interval_ms: int,
    ) -> None:
        self._links = links
        self._clock = clock
        self._agent_id = agent_id
        self._led = led
        self._interval_ms = interval_ms
        self._watch = ClockWatch(clock.now_us(), clock.now_ms())
        self._differences = PeerDifferences()
        self._asked: dict[str, int] = {}
        self._told: set[str] = set()
        links.handle_request(PeerMessage.CLOCK, self._on_asked)

    def believed_now_us(self, replica: Replica) -> int | None:
        """The time, if this clock goes as it should and a majority of the group's voters has the same; None
        otherwise: then no age counts."""
        now_us, now_ms = self._clock.now_us(), self._clock.now_ms()
        voters = _voters(replica)
        agreed = self._differences.majority_agrees(self._agent_id, voters, now_ms)
        return now_us if agreed and self._watch.agrees(now_us, now_ms) else None

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._interval_ms / 1000)
            peers = {voter for replica in self._led() for voter in _voters(replica)} - {self._agent_id}
            self._differences.keep_only(peers)
            self._asked = {peer: at for peer, at in self._asked.items() if peer in peers}
            now_ms = self._clock.now_ms()
            due = [peer for peer in sorted(peers) if self._is_due(peer, now_ms)]
            await asyncio.gather(*(self._ask(peer) for peer in due))

    def _is_due(self, peer: str, now_ms: int) -> bool:
        asked_ms = self._asked.get(peer)
        if asked_ms is None or not self._differences.is_fresh(peer, now_ms):
            return True
        return now_ms - asked_ms >= MAX_OPINION_AGE_MS // 2

    async def _ask(self, peer: str) -> None:
        before_us = self._clock.now_us()
        try:
            answer = await self._links.request(peer, PeerMessage.CLOCK, b"", ASK_TIMEOUT_MS)
            (theirs_us,) = _TIME.unpack(answer)
        except (PeerUnavailable, PeerRequestFailed, struct.error) as error:
            logger.debug("the clock of %s is not known: %s", peer, error)
            return
        now_ms = self._clock.now_ms()
        difference_us = theirs_us - (before_us + self._clock.now_us()) // 2
        self._asked[peer] = now_ms
        self._differences.note(peer, difference_us, now_ms)
        self._tell(peer, difference_us, now_ms)

    def _tell(self, peer: str, difference_us: int, now_ms: int) -> None:
        """Once for each peer that is wrong, until it is right again."""
        if self._differences.majority_agrees(self._agent_id, [self._agent_id, peer], now_ms):
            self._told.discard(peer)
        elif peer not in self._told:
            self._told.add(peer)
            logger.warning(
                "the clock of agent %s differs by %.0f s from this one's", peer, difference_us / 1e6
            )

    async def _on_asked(self, _peer: str, _payload: bytes) -> bytes:
        return _TIME.pack(self._clock.now_us())


def _voters(replica: Replica) -> list[str]:
    return [item.agent_id for item in replica.core.configuration.replicas if not item.learner]
