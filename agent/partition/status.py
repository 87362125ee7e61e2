"""What a host says of its replicas: frozen values for routes, status pages and metrics."""

from dataclasses import dataclass
from enum import StrEnum

from shoal.agent.durable.ids import GroupId
from shoal.agent.partition.replica import Replica
from shoal.format.batch import LogIndex, Offset, Term
from shoal.replication.interfaces import Configuration
from shoal.replication.roles.transitions import Role
from shoal.segment_store.check.damage import DamagedRange


class ServingState(StrEnum):
    """What may be expected of a replica here. Status documents show the values."""

    ACTIVE = "active"
    INSTALLING = "installing"
    """Its log is being replaced or mended."""
    LOST = "lost"
    """It may have promised what it no longer knows: it never votes again."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """One replica as it sees itself. `reason`: why its state is not ACTIVE. `role`: a replica that leads a
    birth that the catalog has not taken yet says that it follows nobody. `damaged_ranges`: parts of its log
    that are known not to verify."""

    group: GroupId
    state: ServingState
    reason: str
    role: Role
    term: Term
    leader_agent_id: str | None
    log_start_offset: Offset
    high_watermark: Offset
    log_end_offset: Offset
    commit_index: LogIndex
    configuration: Configuration | None
    size_bytes: int
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


def status_without_replica(group: GroupId, state: ServingState, reason: str) -> ReplicaStatus:
    """Of a replica that could not be opened."""
    zero = Offset(0)
    return ReplicaStatus(
        group, state, reason, Role.FOLLOWER, Term(0), None, zero, zero, zero, LogIndex(0), None, 0
    )
