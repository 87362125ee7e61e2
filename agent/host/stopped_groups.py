"""Groups whose replicas have stopped at agents that live: who names them, and what it means (safety 25).

Law of this file: a link says which agents live, not which of their replicas do. So each agent names those
that do not, in every liveness frame, for as long as it lasts: a frame that is lost is followed by another. To
the cores here such a replica is one of a silent agent: followers that are quiet under it look for another
leader.
"""

from collections.abc import Callable, Collection
from itertools import islice

from shoal.agent.durable.ids import GroupId
from shoal.agent.partition.replica import Replica
from shoal.agent.peers.frames import MAX_STOPPED_GROUPS, decode_stopped, encode_stopped
from shoal.agent.peers.links import Links
from shoal.agent.process.clock import Clock


class Stopped:
    """One per host. `stopped`: the groups to name, in an order that stays while they do. `replica_of`: None
    for a group of which no replica is open here."""

    def __init__(
        self,
        links: Links,
        stopped: Callable[[], Collection[GroupId]],
        replica_of: Callable[[GroupId], Replica | None],
        clock: Clock,
    ) -> None:
        self._stopped = stopped
        self._replica_of = replica_of
        self._clock = clock
        self._position = 0
        links.liveness_tail = self.names
        links.on_liveness_tail = self.heard

    def names(self) -> bytes:
        """For the liveness frames of one heartbeat interval; too many for one take turns."""
        stopped = self._stopped()
        first = self._position if self._position < len(stopped) else 0
        named = list(islice(stopped, first, first + MAX_STOPPED_GROUPS))
        self._position = first + len(named)
        return encode_stopped(named)

    def heard(self, agent_id: str, payload: bytes) -> None:
        """A peer names some. Raises PeerWireError."""
        now_ms = self._clock.now_ms()
        for group in decode_stopped(payload):
            replica = self._replica_of(group)
            if replica is not None and replica.failure is None and replica.core.peer_silent(agent_id, now_ms):
                replica.host.schedule(replica)
