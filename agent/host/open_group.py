"""One open replica with the objects around it, and the host as its own parts see it.

Law of this file: shapes, and how a part gets a replica that works. The host (host.py) builds its parts and
gives each itself; none of them imports it.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from shoal.agent.delivery.keeper import GroupKeeper
from shoal.agent.delivery.table_keeper import TableKeeper
from shoal.agent.durable.ids import GroupId
from shoal.agent.groups.fold import GroupFold
from shoal.agent.host.config import HostConfig
from shoal.agent.host.role_counts import RoleCounts
from shoal.agent.partition.appender import Appender
from shoal.agent.partition.applier import Applier
from shoal.agent.partition.clock_skew import PeerClocks
from shoal.agent.partition.observer import ReplicaObserver
from shoal.agent.partition.opener import DamagedReplica, Work
from shoal.agent.partition.plan import Plan
from shoal.agent.partition.reader import Reader
from shoal.agent.partition.replica import Replica, ReplicaHost
from shoal.agent.partition.status import ServingState
from shoal.agent.partition.trimmer import Trimmer
from shoal.agent.views.upkeep.view_set import ReplicaView, ViewSet
from shoal.errors import ShoalError
from shoal.format.batch import LogIndex, Term


class GroupHost(ReplicaHost, Protocol):
    """The host as its parts see it; what each method does stands in host.py."""

    @property
    def views(self) -> ViewSet: ...
    def open_replica(self, group: GroupId) -> Replica | None: ...
    def open_replicas(self) -> Sequence[Replica]: ...
    def led_replicas(self) -> Sequence[Replica]: ...
    def stopped_groups(self) -> Collection[GroupId]: ...
    def replica(self, group: GroupId) -> Replica: ...
    def stored_term(self, group: GroupId) -> Term: ...
    def may_reopen(self, replica: Replica) -> bool: ...
    async def reopen(self, group: GroupId, work: Work) -> None: ...
    async def open_anew(self, plan: Plan, work: Work) -> None: ...
    async def open_mended(self, damaged: DamagedReplica, quarantined: frozenset[LogIndex]) -> None: ...
    async def close_group(self, group: GroupId, why: str) -> None: ...
    async def retire_group(self, group: GroupId) -> None: ...


def working_replica(host: GroupHost, group: GroupId) -> Replica:
    """The group's replica here. Raises ShoalError: why there is none, or why it has stopped."""
    replica = host.replica(group)
    if replica.failure is not None:
        raise ShoalError(*replica.failure)
    return replica


async def nothing() -> None:
    """The work on a replica that is opened anew for the opening's sake."""


class Unserved(NamedTuple):
    """Why a replica is not open. `is_broken`: the log says too little of itself to be mended."""

    state: ServingState
    reason: str
    is_broken: bool = False


@dataclass(frozen=True, slots=True)
class OpenGroup:
    """One per replica whose log is open."""

    replica: Replica
    appender: Appender
    keeper: GroupKeeper | None
    reader: Reader
    applier: Applier | None
    trimmer: Trimmer
    role_counts: RoleCounts
    view: ReplicaView | None = None
    table: TableKeeper | None = None

    @classmethod
    def of(
        cls, replica: Replica, view: ReplicaView | None, clocks: PeerClocks, config: HostConfig
    ) -> "OpenGroup":
        """The objects around a replica that is being built."""
        machine, fold, measures = replica.plan.machine, replica.state.fold, config.measures
        timers = None if view is None else view.timers
        reader = Reader(replica, measures)
        keeper = (
            GroupKeeper(replica, fold, reader, config.letters, measures.groups, config.tell_news, timers)
            if isinstance(fold, GroupFold)
            else None
        )
        trimmer = Trimmer(replica, clocks, measures)
        if keeper is not None:
            trimmer.done_before = keeper.done_before
        appender = Appender(replica, measures)
        applier = None if machine is None else Applier(replica, machine)
        table = None
        if view is not None and view.table is not None and applier is not None:
            table = TableKeeper(replica, view.table, appender, reader, applier)
        role_counts = RoleCounts(replica, measures)
        return cls(replica, appender, keeper, reader, applier, trimmer, role_counts, view, table)

    @property
    def observers(self) -> tuple[ReplicaObserver, ...]:
        """Those of the replica, in the order in which they are told."""
        observers = (
            self.appender,
            self.keeper,
            self.applier,
            self.reader,
            self.trimmer,
            self.role_counts,
            self.table,
        )
        return tuple(item for item in observers if item is not None)

    @property
    def rows(self) -> TableKeeper:
        """Of a table. Raises ShoalError wrong-kind."""
        if self.table is None:
            raise ShoalError("wrong-kind", f"{self.replica.group} is no table's")
        return self.table

    def check(self) -> None:
        """From time to time: what may be trimmed, and what groups have lost by that."""
        self.trimmer.check()
        if self.keeper is not None:
            self.keeper.check()

    async def stop(self) -> None:
        """Start nothing more; the replica itself is closed after it."""
        if self.applier is not None:
            await self.applier.stop()
        if self.keeper is not None:
            await self.keeper.stop()
        self.trimmer.stop()
