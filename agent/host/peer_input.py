"""Messages of peers' replicas, given to the replicas here.

Law of this file: it finds the replica and passes on. A frame that is none costs the link; a bug met by one
group's message costs that replica, not the link and all groups behind it.
"""

import logging
import time

from shoal.agent.durable.ids import GroupId
from shoal.agent.host.free_space import FreeSpace
from shoal.agent.host.open_group import GroupHost
from shoal.agent.host.scheduler import Scheduler
from shoal.agent.metrics.histogram import Histogram
from shoal.agent.peers.frames import FrameType, PeerWireError, decode_append, decode_group_messages
from shoal.agent.peers.links import Links
from shoal.replication.errors import WireError
from shoal.replication.messages import AppendReply, decode

logger = logging.getLogger(__name__)


class PeerInput:
    """One per host. Entries for which the disk has no room are not taken; their leader sends them again.
    `replication`: how long entries take until a follower has acknowledged them."""

    def __init__(
        self, links: Links, host: GroupHost, turns: Scheduler, free_space: FreeSpace, replication: Histogram
    ) -> None:
        self._host = host
        self._replication = replication
        self._turns = turns
        self._free_space = free_space
        links.handle(FrameType.GROUPS, self.on_messages)
        links.handle(FrameType.APPEND, self.on_append)

    def on_messages(self, agent_id: str, payload: bytes) -> None:
        """Of any number of groups, without entries. Raises PeerWireError."""
        self._turns.inputs += 1
        for group, data in decode_group_messages(payload):
            self._give(agent_id, group, data)

    def on_append(self, agent_id: str, payload: bytes) -> None:
        """A leader's entries. Raises PeerWireError."""
        self._turns.inputs += 1
        group, data, position = decode_append(payload)
        if self._free_space.admits(group, len(payload) - position):
            self._give(agent_id, group, data, payload, position)

    def _give(
        self, agent_id: str, group: GroupId, data: bytes, payload: bytes = b"", position: int = 0
    ) -> None:
        replica = self._host.open_replica(group)
        if replica is None:
            return  # its group is not open here
        try:
            message = decode(data)
        except WireError as error:
            raise PeerWireError(f"a message for {group}: {error}") from error
        try:
            if payload:
                replica.receive_append(agent_id, message, payload, position)
            else:
                if type(message) is AppendReply and message.accepted:
                    took_ns = replica.sender.acknowledged(message, time.monotonic_ns())
                    if took_ns is not None:
                        self._replication.observe(took_ns)
                replica.receive(agent_id, message)
        except PeerWireError:
            raise
        except Exception:
            logger.exception("%s: the replica failed on a message; this is a bug", replica.group)
            replica.fail("damaged", "an internal error; see the agent's log")
