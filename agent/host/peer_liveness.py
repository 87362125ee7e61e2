"""Which peers are silent, and what their silence means to the replicas here (safety 25).

Law of this file: the links say who fell silent, once; here it is said again, in every heartbeat interval, to
whatever is quiet under that agent or leads it: a quiet request may still have been on its way.
"""

import asyncio
from collections.abc import Callable, Sequence

from shoal.agent.partition.replica import Replica
from shoal.agent.peers.links import Links
from shoal.agent.process.clock import Clock
from shoal.replication.roles.transitions import Role


class Silence:
    """One per host; run() for its life."""

    def __init__(
        self, links: Links, replicas: Callable[[], Sequence[Replica]], clock: Clock, interval_ms: int
    ) -> None:
        self._links = links
        self._replicas = replicas
        self._clock = clock
        self._interval_ms = interval_ms
        self._silent: set[str] = set()
        links.on_silence = self._on_silence

    def _on_silence(self, agent_id: str) -> None:
        self._silent.add(agent_id)
        self._tell(agent_id)

    def _tell(self, agent_id: str) -> None:
        """Wake what is quiet under that agent, or leads it; and whoever follows it need not wait for a timer
        of its own."""
        now_ms = self._clock.now_ms()
        for replica in self._replicas():
            role = replica.core.role
            follows = role is Role.FOLLOWER and replica.leader_agent_id == agent_id
            if replica.failure is None and (follows or replica.core.is_quiet or role is Role.LEADER):
                replica.core.peer_silent(agent_id, now_ms)
                replica.host.schedule(replica)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._interval_ms / 1000)
            for agent_id in list(self._silent):
                if self._links.knows(agent_id) and self._links.is_silent(agent_id):
                    self._tell(agent_id)
                else:
                    self._silent.discard(agent_id)
