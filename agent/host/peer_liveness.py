"""Which peers are silent, which of their replicas have stopped, and what that means to the replicas here
(safety 25).

Law of this file: a link says which agents live, once; here it is said again, in every heartbeat interval, to
each replica that is quiet under a silent agent or leads it: a quiet request may still have been on its way.
A link does not say which replicas of a living agent have stopped. So each agent names its own, in every
liveness frame, for as long as that lasts: a frame that is lost is followed by another. To the cores here such
a replica is one of a silent agent: followers that are quiet under it look for another leader.
"""

import asyncio
from itertools import islice

from shoal.agent.host.open_group import GroupHost
from shoal.agent.peers.frames import MAX_STOPPED_GROUPS, decode_stopped, encode_stopped
from shoal.agent.peers.links import Links
from shoal.replication.roles.transitions import Role


class PeerLiveness:
    """One per host; run() for its life."""

    def __init__(self, links: Links, host: GroupHost, interval_ms: int) -> None:
        self._links = links
        self._host = host
        self._interval_ms = interval_ms
        self._silent: set[str] = set()
        self._position = 0
        links.on_silence = self._on_silence
        links.liveness_tail = self.name_stopped
        links.on_liveness_tail = self.heard_stopped

    def _on_silence(self, agent_id: str) -> None:
        self._silent.add(agent_id)
        self._tell(agent_id)

    def _tell(self, agent_id: str) -> None:
        """Wake each replica that is quiet under that agent, or leads it. A follower of it need not wait for a
        timer of its own."""
        now_ms = self._host.clock.now_ms()
        for replica in self._host.open_replicas():
            role = replica.core.role
            follows = role is Role.FOLLOWER and replica.leader_agent_id == agent_id
            if replica.failure is None and (follows or replica.core.is_quiet or role is Role.LEADER):
                replica.core.peer_silent(agent_id, now_ms)
                self._host.schedule(replica)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_ms / 1000)
            for agent_id in list(self._silent):
                if self._links.knows(agent_id) and self._links.is_silent(agent_id):
                    self._tell(agent_id)
                else:
                    self._silent.discard(agent_id)

    def name_stopped(self) -> bytes:
        """For the liveness frames of one heartbeat interval; too many groups for one take turns."""
        stopped = self._host.stopped_groups()
        first = self._position if self._position < len(stopped) else 0
        named = list(islice(stopped, first, first + MAX_STOPPED_GROUPS))
        self._position = first + len(named)
        return encode_stopped(named)

    def heard_stopped(self, agent_id: str, payload: bytes) -> None:
        """A peer names some. Raises PeerWireError."""
        now_ms = self._host.clock.now_ms()
        for group in decode_stopped(payload):
            replica = self._host.open_replica(group)
            if replica is not None and replica.failure is None and replica.core.peer_silent(agent_id, now_ms):
                self._host.schedule(replica)
