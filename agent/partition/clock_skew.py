"""Compares this agent's time with that of its peers, so that a wrong clock stamps and trims nothing (safety
17).

Law of this file: it asks and remembers; which time is believed is decided in log_time.py and retention.py.
The voters of all groups here are asked, so that a new leader knows already; twice as often as an answer grows
old. Append times and the trimming of old segments depend on it: no clock decides safety.
"""

import asyncio
import itertools
import logging
import struct
from collections.abc import Callable, Sequence

from shoal.agent.log_lines.names import agent_name
from shoal.agent.log_lines.schema import about
from shoal.agent.partition.replica import Replica
from shoal.agent.partition.state.log_time import (
    MAX_CLOCK_JUMP_US,
    SETTLE_MS,
    PeerTime,
    SteadyClock,
)
from shoal.agent.partition.state.retention import MAX_OPINION_AGE_MS, PeerDifferences
from shoal.agent.peers.links import Links, PeerRequestFailed, PeerUnavailable
from shoal.agent.peers.messages import PeerMessage
from shoal.agent.process.clock import Clock

ASK_TIMEOUT_MS = 2_000
"""A longer way there and back says too little about the time between."""
FIRST_INTERVAL_MS = 500
FIRST_ROUNDS = 20
"""How soon, and how often so soon, those are asked again who have not told their time since this agent
started: until then its clock stands alone."""
_TIMES = struct.Struct("<qq")  # what the agent believes, what its wall clock says

logger = logging.getLogger(__name__)


class PeerClocks:
    """One per host; `run()` is a task of it."""

    def __init__(
        self,
        links: Links,
        clock: Clock,
        agent_id: str,
        replicas: Callable[[], Sequence[Replica]],
        interval_ms: int,
        settle_ms: int = SETTLE_MS,
    ) -> None:
        self._links = links
        self._clock = clock
        self._agent_id = agent_id
        self._replicas = replicas
        self._interval_ms = interval_ms
        self.steady = SteadyClock(clock.now_us(), clock.now_ms(), settle_ms)
        self._differences = PeerDifferences()
        self._asked: dict[str, int] = {}
        self._told: set[str] = set()
        self._is_doubted = False
        links.handle_request(PeerMessage.CLOCK, self._on_asked)

    @property
    def is_doubted(self) -> bool:
        """Whether this machine's clock is not believed."""
        return self._is_doubted

    @property
    def wrong_peers(self) -> int:
        """Agents whose clocks differ from this one's."""
        return len(self._told)

    def now_us(self, now_ms: int) -> int:
        """The time to stamp with: the wall clock's, unless it has jumped or most peers have another.
        `now_ms`: the monotonic time now."""
        return self.steady.now_us(self._clock.now_us(), now_ms)

    def believed_now_us(self, replica: Replica) -> int | None:
        """The time, if this clock goes as it should, not only since the agent started a moment ago, and a
        majority of the group's voters has the same; None otherwise: then no append time says an age."""
        clock, steady = self._clock, self.steady
        now_us, now_ms = clock.now_us(), clock.now_ms()
        if not steady.agrees(now_us, now_ms) or not steady.is_settled(now_ms):
            return None
        voters = _voters(replica)
        agreed = self._differences.majority_agrees(self._agent_id, steady.offset_us, voters, now_ms)
        return now_us if agreed else None

    async def run(self) -> None:
        for rounds in itertools.count():
            now_ms = self._clock.now_ms()
            peers = {voter for replica in self._replicas() for voter in _voters(replica)} - {self._agent_id}
            self._differences.keep_only(peers)
            self._told &= peers
            self._asked = {peer: at for peer, at in self._asked.items() if peer in peers}
            due = [peer for peer in sorted(peers) if self._is_due(peer, now_ms)]
            await asyncio.gather(*(self._ask(peer) for peer in due))
            self._conclude()
            self._tell_peers()
            unheard = any(not self._differences.is_fresh(peer, now_ms) for peer in peers)
            soon = unheard and rounds < FIRST_ROUNDS
            wait_ms = min(self._interval_ms, FIRST_INTERVAL_MS) if soon else self._interval_ms
            await asyncio.sleep(wait_ms / 1000)

    def _is_due(self, peer: str, now_ms: int) -> bool:
        asked_ms = self._asked.get(peer)
        if asked_ms is None or not self._differences.is_fresh(peer, now_ms):
            return True
        return now_ms - asked_ms >= MAX_OPINION_AGE_MS // 2

    async def _ask(self, peer: str) -> None:
        before_ms = self._clock.now_ms()
        try:
            answer = await self._links.request(peer, PeerMessage.CLOCK, b"", ASK_TIMEOUT_MS)
            believed_us, wall_us = _TIMES.unpack(answer)
        except (PeerUnavailable, PeerRequestFailed, struct.error) as error:
            logger.debug("cannot ask %s for its time: %s", agent_name(peer), error)
            return
        now_ms = self._clock.now_ms()
        half_way_us = (before_ms + now_ms) * 500
        theirs = PeerTime(believed_us - half_way_us, wall_us - half_way_us)
        self._asked[peer] = now_ms
        self._differences.note(peer, theirs, now_ms)

    def _conclude(self) -> None:
        """The clock to believe now; a wall clock that is not believed is reported once, until it is again."""
        wall_us, now_ms = self._clock.now_us(), self._clock.now_ms()
        self.steady.heard(list(self._differences.heard(now_ms).values()), wall_us, now_ms)
        believed_us = self.steady.now_us(wall_us, now_ms)
        is_doubted = not self.steady.agrees(wall_us, now_ms)
        if is_doubted and not self._is_doubted:
            logger.warning(
                "clock skew: this machine's clock jumped, or differs from its peers', by %.0f s. Records are"
                " stamped as if it did not, for %d minutes or until peers have the same time; set the clock"
                " (chronyc makestep, timedatectl)",
                (wall_us - believed_us) / 1e6,
                SETTLE_MS // 60_000,
                extra=about("clock-skew"),
            )
        elif self._is_doubted and not is_doubted:
            logger.info(
                "clock skew is over: this machine's clock is believed again", extra=about("clock-skew-over")
            )
        self._is_doubted = is_doubted

    def _tell_peers(self) -> None:
        """Once for each peer whose clock is wrong, and once when it is right again. A peer that believes the
        others has its wall clock told all the same: somebody has to set it."""
        for peer, theirs in self._differences.heard(self._clock.now_ms()).items():
            difference_us = theirs.wall_us - self.steady.offset_us
            is_wrong = abs(difference_us) > MAX_CLOCK_JUMP_US
            if is_wrong == (peer in self._told):
                continue
            name = agent_name(peer)
            if is_wrong:
                self._told.add(peer)
                logger.warning(
                    "clock skew: the clock of %s differs by %.0f s; set it",
                    name,
                    difference_us / 1e6,
                    extra=about("clock-skew", members=(name,), total=1),
                )
            else:
                self._told.discard(peer)
                logger.info(
                    "clock skew is over: the clock of %s is right again",
                    name,
                    extra=about("clock-skew-over", members=(name,), total=1),
                )

    async def _on_asked(self, _peer: str, _payload: bytes) -> bytes:
        return _TIMES.pack(self.now_us(self._clock.now_ms()), self._clock.now_us())


def _voters(replica: Replica) -> list[str]:
    return [item.agent_id for item in replica.core.configuration.replicas if not item.learner]
