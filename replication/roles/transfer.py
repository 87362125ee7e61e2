"""Leadership handed over (thesis 3.10).

Law of this file: the target of a hand-over, its deadline, and its one message.
"""

from dataclasses import dataclass

from shoal.replication.interfaces import ReplicaId
from shoal.replication.messages import TimeoutNow
from shoal.replication.roles.transitions import RaftState


@dataclass(frozen=True, slots=True)
class Transfer:
    """Given up at deadline_ms: the leader then leads on."""

    target: ReplicaId
    deadline_ms: int

    def send(self, state: RaftState) -> None:
        """Tell the target to campaign. Sent again with each of its answers, since the first may be lost."""
        state.send(TimeoutNow(state.replica_id, self.target, state.term))
