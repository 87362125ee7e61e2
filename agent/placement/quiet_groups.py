"""Groups that went quiet without a replica which could be reached again (safety 25).

Law of this file: it wakes quiet leaders here; the core does the rest. A replica that returns and hears no
leader asks for one, a voter by campaigning and a learner by its question (replication/roles/follower.py). A
replica that knows only voters of an older configuration may not reach the leader: it would wait for the next
append, which may never come.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from shoal.agent.durable.ids import GroupId
from shoal.agent.partition.replica import Replica

PAUSE_MS_MIN = 1_000
"""One heartbeat and its answer, with room: the replica may have been opening when the group went quiet."""
PAUSE_MS_MAX = 30_000
"""A live agent whose replica cannot be opened costs an election timeout of heartbeats so often."""


class _Pause(NamedTuple):
    until_ms: int
    length_ms: int


class QuietGroups:
    """One per rebalancer; look() at every tick."""

    def __init__(self) -> None:
        self._pauses: dict[GroupId, _Pause] = {}

    def look(self, led: Sequence[Replica], live: Collection[str], now_ms: int) -> None:
        """Wake the quiet groups that left a live agent's replica behind, ever more rarely while that does not
        help. live: agent ids that gossip has not given up."""
        behind = [replica for replica in led if replica.core.left_behind]
        groups = {replica.group for replica in behind}
        # A group that has just been woken leaves nobody behind until it is quiet again: its pause is kept.
        self._pauses = {
            group: pause
            for group, pause in self._pauses.items()
            if group in groups or now_ms < pause.until_ms + PAUSE_MS_MAX
        }
        for replica in behind:
            holders = {item.id: item.agent_id for item in replica.core.configuration.replicas}
            if any(holders.get(item) in live for item in replica.core.left_behind):
                self._wake(replica, now_ms)

    def _wake(self, replica: Replica, now_ms: int) -> None:
        last = self._pauses.get(replica.group)
        if last is not None and now_ms < last.until_ms:
            return
        length_ms = PAUSE_MS_MIN if last is None else min(2 * last.length_ms, PAUSE_MS_MAX)
        self._pauses[replica.group] = _Pause(now_ms + length_ms, length_ms)
        replica.core.wake_quiet(now_ms)
        replica.host.schedule(replica)
