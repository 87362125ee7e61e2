"""Messages of this agent's replicas in one turn: one frame for each other agent.

Law of this file: it gathers and lets out; when is scheduler.py's business. Bounded by what replicas say in a
turn.
"""

from shoal.agent.durable.ids import GroupId
from shoal.agent.peers.frames import FrameType, encode_group_messages
from shoal.agent.peers.links import Links


class Outbox:
    """Messages of all groups between two agents are one frame, heartbeats above all."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._waiting: dict[str, list[tuple[GroupId, bytes]]] = {}

    def put(self, agent_id: str, group: GroupId, message: bytes) -> bool:
        """True when it is the first for this agent since the last flush."""
        waiting = self._waiting.get(agent_id)
        if waiting is None:
            self._waiting[agent_id] = [(group, message)]
            return True
        waiting.append((group, message))
        return False

    def flush(self) -> None:
        """Hand everything to the links."""
        if not self._waiting:
            return
        outbox, self._waiting = self._waiting, {}
        for agent_id, messages in outbox.items():
            for payload in encode_group_messages(messages):
                self._links.send_control(agent_id, FrameType.GROUPS, payload)
