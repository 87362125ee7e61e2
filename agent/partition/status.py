"""The status of replicas: frozen values for routes, status pages and metrics."""

from enum import StrEnum
from typing import NamedTuple

from shoal.agent.durable.ids import GroupId
from shoal.agent.partition.replica import Replica
from shoal.format.batch import LogIndex, Offset, Term
from shoal.replication.interfaces import Configuration
from shoal.replication.roles.transitions import Role
from shoal.segment_store.check.damage import DamagedRange


class ServingState(StrEnum):
    """Whether a replica here serves, and if not, why. Status documents show the values."""

    ACTIVE = "active"
    INSTALLING = "installing"
    """Its log is being replaced or mended, or it is opened anew."""
    LOST = "lost"
    """It may have promised what it no longer knows: it never votes again."""
    FAILED = "failed"


class ReplicaStatus(NamedTuple):
    """One replica as it sees itself. `reason`: why its state is not ACTIVE. `role`: a replica that leads a
    birth that the catalog has not taken yet says that it follows nobody. `damaged_ranges`: parts of its log
    that are known not to verify. The defaults are those of a replica that is not open."""

    group: GroupId
    state: ServingState
    reason: str
    role: Role = Role.FOLLOWER
    term: Term = Term(0)
    leader_agent_id: str | None = None
    log_start_offset: Offset = Offset(0)
    high_watermark: Offset = Offset(0)
    log_end_offset: Offset = Offset(0)
    commit_index: LogIndex = LogIndex(0)
    configuration: Configuration | None = None
    size_bytes: int = 0
    damaged_ranges: tuple[DamagedRange, ...] = ()


def status_of(replica: Replica) -> ReplicaStatus:
    """Of an open replica, serving or stopped."""
    failure = replica.failure
    waits = failure is not None or (replica.is_leader and not replica.serves)
    return ReplicaStatus(
        replica.group,
        ServingState.ACTIVE if failure is None else ServingState.FAILED,
        "" if failure is None else failure[1],
        Role.FOLLOWER if waits else replica.core.role,
        replica.core.term,
        None if waits else replica.leader_agent_id,
        replica.log.start_offset,
        replica.state.high_watermark,
        replica.state.tail.end_offset,
        replica.state.committed.last_index,
        replica.core.configuration,
        replica.log.size_bytes,
        replica.damaged_ranges,
    )
