"""Elections and leaderships of one replica, counted.

Law of this file: it looks when the role has changed, and changes nothing.
"""

from shoal.agent.metrics.measures import Measures
from shoal.agent.partition.observer import ReplicaObserver
from shoal.agent.partition.replica import Replica


class RoleCounts(ReplicaObserver):
    """One per replica."""

    def __init__(self, replica: Replica, measures: Measures) -> None:
        self._replica = replica
        self._measures = measures
        self._elections = 0
        """Those of the core that are counted already."""
        self._led = False

    def role_changed(self) -> None:
        """Count what is new."""
        measures, leads = self._measures, self._replica.is_leader
        begun = self._replica.core.state.election_count
        measures.elections += begun - self._elections
        self._elections = begun
        if leads and not self._led:
            measures.leaderships_gained += 1
        elif self._led and not leads:
            measures.leaderships_lost += 1
        self._led = leads
