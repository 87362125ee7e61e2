"""Elections and leaderships of one replica, counted.

Law of this file: it looks when the role has changed, and changes nothing.
"""

from shoal.agent.metrics.measures import Measures
from shoal.agent.partition.observer import ReplicaObserver
from shoal.agent.partition.replica import Replica
from shoal.replication.roles.transitions import Role


class RoleCounts(ReplicaObserver):
    """One per replica. A candidate that comes to lead is always seen, since its own vote is synced before.
    One that a newer term ends within its first turn is not."""

    def __init__(self, replica: Replica, measures: Measures) -> None:
        self._replica = replica
        self._measures = measures
        self._led = False

    def role_changed(self) -> None:
        """Count what is new."""
        measures, leads = self._measures, self._replica.is_leader
        if self._replica.failure is None and self._replica.core.role is Role.CANDIDATE:
            measures.elections += 1
        if leads and not self._led:
            measures.leaderships_gained += 1
        elif self._led and not leads:
            measures.leaderships_lost += 1
        self._led = leads
