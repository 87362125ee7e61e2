"""The errors of replication, and whose fault each is.

Law of this file: every exception that leaves the package is defined here, with the call that raises it. A
broken invariant is an assertion and never one of these.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.replication.interfaces import ReplicaId


class ReplicationError(Exception):
    """The root of this package's exceptions."""


class ConfigError(ReplicationError):
    """`RaftConfig.validate`: the knobs contradict each other."""


class WireError(ReplicationError):
    """`messages.decode`, `Configuration.from_bytes`: these bytes are no message of this version."""


class NotLeader(ReplicationError):
    """`propose`, `propose_configuration`, `read_index`, `transfer_leadership`: nothing was done; ask
    `leader`."""

    def __init__(self, leader: "ReplicaId | None") -> None:
        super().__init__(f"not the leader; the leader is {leader}")
        self.leader = leader


class Overloaded(ReplicationError):
    """`propose`, `read_index`: a bound is reached and nothing was done; retry after some commits."""


class TransferInProgress(Overloaded):
    """`propose`, `propose_configuration`: leadership is being handed over; retry at the new leader, or here
    after an election timeout."""


class ChangePending(ReplicationError):
    """`propose_configuration`: an earlier change, or this term's first entry, is not committed yet. Or too
    few of the new voters follow. Retry later."""


class InvalidChange(ReplicationError):
    """`propose_configuration`, `transfer_leadership`: the request itself is wrong, and retrying does not
    help."""


class NotEnoughAgents(ReplicationError):
    """`placement.birth_voters`: fewer agents take replicas than were asked for."""
