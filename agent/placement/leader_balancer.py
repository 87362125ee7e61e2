"""Hands leadership over to where it belongs, a little at a time.

Law of this file: it decides when a transfer begins; targets.py says to whom. For balance, only a leadership
that has been here for a while moves, to an agent that has been alive for a while and holds everything. An
agent that gave one back is not asked again soon, one that did not take it ever more rarely. The core ends a
transfer that is not taken.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from shoal.agent.durable.ids import GroupId
from shoal.agent.host.host import Host
from shoal.agent.log_lines.names import agent_name
from shoal.agent.partition.replica import Replica
from shoal.errors import ShoalError
from shoal.replication.errors import ReplicationError
from shoal.replication.interfaces import ReplicaId

MAX_TRANSFERS_PER_LOOK = 2
"""For balance, in a quarter of a second: each holds appends up for a round trip and two syncs."""
MAX_DRAINED_PER_LOOK = 16
"""Off an agent that shall lead nothing, for which somebody waits."""
AGAIN_MS = 5_000
"""An offer that failed is not repeated for so long, whatever it is for: appends waited for it."""
RETURNED_MS = 300_000
"""An agent that gave a leadership back is not offered it for balance for so long."""
UNTAKEN_MS = 10_000
"""Nor one that did not take it, which may be chance on a busy machine. The time doubles up to RETURNED_MS."""

logger = logging.getLogger("shoal.agent")


class _Offer(NamedTuple):
    """Of a leadership. A newer term says afterwards that it was taken."""

    agent_id: str
    at_ms: int
    term: int
    number: int
    """How often in a row, to this agent."""

    def stands(self, agent_id: str, seen_ms: int, term: int, now_ms: int) -> bool:
        """Whether this agent is not offered the leadership again yet. One that was away since begins anew."""
        if agent_id != self.agent_id or self.at_ms < seen_ms:
            return False
        was_taken = term > self.term
        wait_ms = RETURNED_MS if was_taken else min(RETURNED_MS, UNTAKEN_MS << min(self.number, 16))
        return now_ms - self.at_ms < wait_ms


class LeaderBalancer:
    """`look()` begins each look at all groups led here."""

    def __init__(self, host: Host, now_ms: Callable[[], int], *, settle_ms: Callable[[], int]) -> None:
        self._host = host
        self._now_ms = now_ms
        self._settle_ms = settle_ms
        self._since_ms: dict[GroupId, int] = {}
        self._seen_ms: Mapping[str, int] = {}
        self._offered: dict[GroupId, _Offer] = {}
        self._begun = 0

    def look(self, led: Collection[GroupId], seen_ms: Mapping[str, int]) -> None:
        """led: groups led here. seen_ms: since when each member has been alive without a break."""
        now_ms = self._now_ms()
        self._since_ms = {group: self._since_ms.get(group, now_ms) for group in led}
        self._seen_ms = seen_ms
        self._offered = {
            group: offer for group, offer in self._offered.items() if now_ms - offer.at_ms < 2 * RETURNED_MS
        }
        self._begun = 0

    def may_hand_over(self, replica: Replica, to: str | None) -> bool:
        """For the sake of balance."""
        now_ms = self._now_ms()
        mine = replica.core.configuration.find(replica.replica_id)
        if mine is not None and mine.agent_id == to:
            # Given back because it belongs here now, and not for any fault of the other's.
            self._offered.pop(replica.group, None)
            return False
        if to is None or self._begun >= MAX_TRANSFERS_PER_LOOK:
            return False
        seen_ms = self._seen_ms.get(to, now_ms)
        latest_ms = max(self._since_ms.get(replica.group, now_ms), seen_ms)
        offered = self._offered.get(replica.group)
        if offered is not None and offered.stands(to, seen_ms, replica.core.term, now_ms):
            return False
        return now_ms - latest_ms >= self._settle_ms()

    def hand_over(self, replica: Replica, to: ReplicaId, drained: Collection[str]) -> None:
        """Begin, if this look has not begun enough; the next one asks again."""
        core = replica.core
        now_ms = self._now_ms()
        mine = core.configuration.find(replica.replica_id)
        leaves = mine is None or mine.agent_id in drained
        if self._begun >= (MAX_DRAINED_PER_LOOK if leaves else MAX_TRANSFERS_PER_LOOK):
            return
        before = self._offered.get(replica.group)
        if before is not None and now_ms - before.at_ms < AGAIN_MS:
            return
        if core.is_transferring:
            return
        # It has all that is committed. The rest is under way: a transfer waits for it a round trip at most.
        if core.match_indexes.get(to, -1) < core.commit_index:
            return
        target = core.configuration.find(to)
        assert target is not None
        try:
            self._host.transfer(replica.group, to)
        except (ReplicationError, ShoalError) as error:
            logger.debug("%s: cannot hand leadership over now: %s", replica.group, error)
            return
        self._begun += 1
        number = 0
        if before is not None and (before.agent_id, before.term) == (target.agent_id, core.term):
            number = before.number + 1
        self._offered[replica.group] = _Offer(target.agent_id, now_ms, core.term, number)
        logger.debug("%s: handing leadership over to %s", replica.group, agent_name(target.agent_id))
