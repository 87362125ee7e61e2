"""How one group is to be opened: values that opener.py, the replica and its host share."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import pyarrow as pa

from shoal.agent.durable.ids import GroupId
from shoal.agent.groups.settings import NO_GROUPS, GroupPlans
from shoal.agent.partition.state.entry_fold import EntryFold, NoFold
from shoal.agent.partition.state.retention import Retention
from shoal.format.batch import Frame, LogIndex
from shoal.replication.interfaces import Configuration, ReplicaId
from shoal.segment_store.config import LogConfig


class ViewKind(IntEnum):
    """How the rows of a sorted view (agent/views) stand, and which of them it keeps."""

    TIMER = 1
    """By the time from which a record may be delivered, then by offset. All of them."""
    TABLE = 2
    """By key. Of each key the newest."""


class StateMachine(NamedTuple):
    """apply: takes one committed DATA frame; what it has already changes nothing. next_offset: of the first
    record that it does not have. saved_offset: what came before it survives a crash without the log, which
    may drop that and nothing else."""

    apply: Callable[[Frame], None]
    next_offset: Callable[[], int]
    saved_offset: Callable[[], int]
    is_full: Callable[[], bool] = lambda: False
    """It has to save before it takes more."""
    answers_wait: bool = True
    """A producer is answered when its records were taken here, not when they are committed."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How one group is to be opened. `replica_id`: of a replica added after birth; at birth its ordinal
    stands in `birth`. `machine`: a state machine that the
    host feeds with committed frames."""

    group: GroupId
    birth: Configuration
    schema: pa.Schema
    log_config: LogConfig
    replica_id: ReplicaId | None = None
    machine: StateMachine | None = None
    retention: Retention = field(default_factory=Retention)
    quarantined: frozenset[LogIndex] = frozenset()
    """Batches of records of which no voter has an intact copy: the replica goes on without them."""
    awaits_birth: bool = False
    """The catalog has not taken yet that this birth of the group is led: nobody is served before."""
    fold: Callable[[], EntryFold] = NoFold
    """Makes what the log's own control entries are folded into, anew at each opening: the checkpoint and the
    entries behind it are all that it is made from."""

    view: ViewKind | None = None
    """The partition's records are kept in another order as well; `machine` is then made by the host."""
    groups: GroupPlans = NO_GROUPS
    """The consumer groups of the topic, as far as this agent's catalog knows."""

    @property
    def answers_wait(self) -> bool:
        """Whether producers hear of their records once the state machine has taken them."""
        return self.machine is not None and self.machine.answers_wait

    def own_id(self, agent_id: str) -> ReplicaId | None:
        """Of the replica on that agent; None where the group was not born there."""
        if self.replica_id is not None:
            return self.replica_id
        return next((item.id for item in self.birth.replicas if item.agent_id == agent_id), None)
