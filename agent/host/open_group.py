"""One open replica and the objects around it: what appends to it, reads it, applies it and trims it."""

from dataclasses import dataclass

from shoal.agent.partition.appender import Appender
from shoal.agent.partition.applier import Applier
from shoal.agent.partition.clock_skew import PeerClocks
from shoal.agent.partition.observer import ReplicaObserver
from shoal.agent.partition.opener import Plan
from shoal.agent.partition.reader import Reader
from shoal.agent.partition.replica import Replica
from shoal.agent.partition.trimmer import Trimmer


@dataclass(slots=True)
class OpenGroup:
    """One per replica whose log is open."""

    replica: Replica
    appender: Appender
    reader: Reader
    applier: Applier | None
    trimmer: Trimmer
    plan: Plan

    @classmethod
    def of(cls, replica: Replica, plan: Plan, clocks: PeerClocks) -> "OpenGroup":
        """The objects around a replica that is being built."""
        return cls(
            replica,
            Appender(replica),
            Reader(replica, lambda: replica.host.schedule(replica)),
            None if plan.machine is None else Applier(replica, plan.machine),
            Trimmer(replica, plan.retention, clocks, plan.machine),
            plan,
        )

    @property
    def observers(self) -> tuple[ReplicaObserver, ...]:
        """Those of the replica, in the order in which they are told."""
        observers = (self.appender, self.applier, self.reader, self.trimmer)
        return tuple(item for item in observers if item is not None)
