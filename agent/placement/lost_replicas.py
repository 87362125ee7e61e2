"""Replicas that have lost their memory, as their own agents tell the leader.

Law of this file: only the holder of a replica can say that it is lost, and repeats it; a loss that is not
repeated is forgotten. replication/placement/steps.py decides what follows.
"""

from collections.abc import Callable

from shoal.agent.durable.ids import GroupId
from shoal.agent.peers.messages import decode_lost
from shoal.replication.interfaces import Configuration, ReplicaId

LOSS_KEPT_MS = 10_000
"""Several times the interval in which a loss is told."""
MAX_LOSSES = 65_536
"""As many as one agent can hold replicas; more are told again once those are replaced."""


class LostReplicas:
    """One per agent."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._told: dict[tuple[GroupId, ReplicaId], tuple[str, int]] = {}

    async def on_lost(self, peer: str, payload: bytes) -> bytes:
        key = decode_lost(payload)
        if key in self._told or len(self._told) < MAX_LOSSES:
            self._told[key] = (peer, self._now_ms())
        return b""

    def among(self, group: GroupId, configuration: Configuration) -> frozenset[ReplicaId]:
        """Which of the replicas are lost, as far as was told lately by the very agent that holds each."""
        if not self._told:
            return frozenset()
        now_ms = self._now_ms()
        self._told = {key: told for key, told in self._told.items() if now_ms - told[1] < LOSS_KEPT_MS}
        return frozenset(
            item.id
            for item in configuration.replicas
            if self._told.get((group, item.id), ("", 0))[0] == item.agent_id
        )
