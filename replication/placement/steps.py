"""How a group's replicas change: the next single safe step, or none (safety 5).

Law of this file: pure. It looks at a committed configuration, at where its replicas belong, at who is there
and since when somebody is not, and answers with one step; the core checks every step again
(configuration_change.py), and nobody but the group's leader carries one out. A group never gets fewer voters
than it should have: before a voter goes, its replacement votes. The order is always: add a learner, wait
until it has everything, let it vote, remove the replica that it replaces.

All learners that are needed are brought up before the first is promoted, so that a group passes the fragile
even numbers of voters within one round trip each. A group that lacks no voter moves one replica at a time.

No oscillation: a replica only ever moves from an agent where the group does not belong to one where it does,
and where it belongs is a function of the member list (assignment.py). While the members stay as they are,
each move brings a group nearer to its goal, and no step leads away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from shoal.replication.interfaces import UNBORN, Configuration, Replica, ReplicaId
from shoal.replication.placement.assignment import Candidate, rendezvous


@dataclass(frozen=True, slots=True)
class AddLearner:
    """This agent shall hold a copy that does not vote yet."""

    agent_id: str


@dataclass(frozen=True, slots=True)
class Promote:
    """This learner has everything: let it vote."""

    replica_id: ReplicaId


@dataclass(frozen=True, slots=True)
class Remove:
    """A learner that is gone or not needed any more, a dead voter whose place is taken, or one too many."""

    replica_id: ReplicaId


@dataclass(frozen=True, slots=True)
class Transfer:
    """Let this voter lead: it should, or the leader must go. No change of the configuration."""

    replica_id: ReplicaId


Step = AddLearner | Promote | Remove | Transfer


@dataclass(frozen=True, slots=True)
class Goal:
    """Where a group's replicas belong.

    count: voters wanted. voters: the agents that should vote, fewer while there are no more. leader: the
    agent that should lead, None if it does not matter. everywhere: each other agent holds a learner, for its
    readers.
    """

    count: int
    voters: tuple[str, ...]
    leader: str | None = None
    everywhere: bool = False


@dataclass(frozen=True, slots=True)
class Members:
    """The agents as the leader's agent sees them.

    candidates: agents that may take a new replica. live: agents that gossip has not given up, the leader's
    included. lost_since_ms: agents that gossip has given up and that were not heard on any link, without a
    break since then. An agent in neither is in doubt: no step is taken because of it, and none relies on it.
    drained: agents that shall hold nothing.
    """

    candidates: tuple[Candidate, ...]
    live: frozenset[str]
    now_ms: int
    replace_after_ms: int
    lost_since_ms: Mapping[str, int] = field(default_factory=dict)
    drained: frozenset[str] = frozenset()

    def is_dead(self, agent_id: str) -> bool:
        """Gone for so long that it is replaced. An agent that left counts like one that failed."""
        since_ms = self.lost_since_ms.get(agent_id)
        return (
            since_ms is not None
            and agent_id not in self.live
            and self.now_ms - since_ms >= self.replace_after_ms
        )


@dataclass(frozen=True, slots=True)
class Permits:
    """The steps that may begin now; begun ones are finished. add: False while enough other groups move.
    move: for the sake of balance. lead: leadership may go where it belongs."""

    add: bool = True
    move: bool = True
    lead: bool = True


def next_step(
    group: tuple[bytes, int],
    configuration: Configuration,
    goal: Goal,
    *,
    leader: ReplicaId,
    caught_up: frozenset[ReplicaId],
    members: Members,
    stalled: frozenset[ReplicaId] = frozenset(),
    lost: frozenset[ReplicaId] = frozenset(),
    permits: Permits | None = None,
) -> Step | None:
    """group: topic id and partition. configuration: the committed one. caught_up: learners that hold
    everything committed, synced. stalled: learners that have got nothing for long, though they could. lost:
    replicas without their memory, which never vote again (safety 2)."""
    view = _View(group, configuration, goal, leader, members, permits or Permits(), lost)
    return (
        view.drop_learner(stalled | lost)
        or view.drop_voter()
        or view.drop_lost()
        or view.replace_or_grow(caught_up)
        or view.move(caught_up)
        or view.hold_everywhere()
        or view.hand_over()
    )


class _View:
    """One look at one group."""

    def __init__(
        self,
        group: tuple[bytes, int],
        configuration: Configuration,
        goal: Goal,
        leader: ReplicaId,
        members: Members,
        permits: Permits,
        lost: Collection[ReplicaId],
    ) -> None:
        self._group = group
        self._lost = lost
        self._goal = goal
        self._leader = leader
        self._members = members
        self._permits = permits
        self._learners = [item for item in configuration.replicas if item.learner]
        self._voters = [item for item in configuration.replicas if not item.learner]
        self._dead = [
            item
            for item in self._voters
            if (members.is_dead(item.agent_id) or item.id in lost) and item.id != leader
        ]
        self._missing = max(0, goal.count - (len(self._voters) - len(self._dead)))
        holders = {item.agent_id for item in configuration.replicas}
        self._free = [item for item in members.candidates if item.weight > 0 and item.agent_id not in holders]
        voting = {item.agent_id for item in self._voters}
        self._wanted = [agent_id for agent_id in goal.voters if agent_id not in voting]
        self._strangers = [
            item for item in self._voters if item not in self._dead and item.agent_id not in goal.voters
        ]
        """Alive, and not where the group belongs."""

    # Replicas that go

    def drop_learner(self, stalled: Collection[ReplicaId]) -> Step | None:
        """Remove a learner that is gone, takes nothing, or is needed no more."""
        for item in self._learners:
            if item.id in stalled or self._is_gone(item):
                return Remove(item.id)
        if self._goal.everywhere:
            return None
        needed = self._missing or (1 if self._is_moving() else 0)
        if len(self._learners) > needed:
            return Remove(max(self._learners, key=lambda item: (self._is_unwanted(item), item.id)).id)
        return None

    def _is_gone(self, learner: Replica) -> bool:
        """A learner that will vote must be there; one that is only read from may come back."""
        if learner.agent_id in self._members.drained:
            return True
        if self._goal.everywhere:
            return self._members.is_dead(learner.agent_id)
        return learner.agent_id not in self._members.live

    def _is_unwanted(self, learner: Replica) -> bool:
        return learner.agent_id not in self._wanted

    def drop_voter(self) -> Step | None:
        """Remove a voter too many: a dead one; else, if all are live, one where the group does not belong.
        The leader hands over before it goes."""
        if len(self._voters) <= self._goal.count:
            return None
        if self._dead:
            return Remove(self._dead[0].id)
        if not self._all_live():
            return None  # it may return, or die: then one of these has replaced it
        if not self._goal.voters:
            return None  # nobody is known to be there for long: whoever went might be where the group belongs
        others = [item for item in self._strangers if item.id != self._leader]
        if others:
            return Remove(max(others, key=lambda item: (self._is_drained(item), item.id)).id)
        return self._successor() if self._strangers else None

    def drop_lost(self) -> Step | None:
        """A lost voter goes first where only its own agent could take a replica in its place. It gave the
        group nothing: of three voters one of whom is lost two must agree, as of two."""
        lost = [item for item in self._dead if item.id in self._lost]
        others = [item for item in self._voters if item not in lost]
        if not lost or self._free or self._learners or len(others) < 2:
            return None
        if any(item.agent_id not in self._members.live for item in others):
            return None
        return Remove(lost[0].id)

    # Replicas that come

    def replace_or_grow(self, caught_up: Collection[ReplicaId]) -> Step | None:
        """Bring the voters that the group lacks."""
        if not self._missing:
            return None
        if self._goal.everywhere and (ready := self._ready(caught_up)):
            return Promote(ready[0].id)
        if self._free and len(self._learners) < self._missing:
            return AddLearner(self._newcomer()) if self._permits.add else None
        if self._learners and all(item.id in caught_up for item in self._learners):
            return Promote(min(self._learners, key=lambda item: (self._is_unwanted(item), item.id)).id)
        return None

    def _ready(self, caught_up: Collection[ReplicaId]) -> list[Replica]:
        """Learners that could vote now, those that should before the others."""
        ready = [
            item for item in self._learners if item.id in caught_up and item.agent_id in self._members.live
        ]
        return sorted(ready, key=lambda item: (self._is_unwanted(item), item.id))

    def _newcomer(self) -> str:
        """Where the group belongs, if that agent takes it; else the best other."""
        taken = Counter(self._domain(item.agent_id) for item in self._voters if item not in self._dead)
        taken.update(self._domain(item.agent_id) for item in self._learners)
        return min(
            self._free,
            key=lambda item: (
                item.agent_id not in self._wanted,
                taken[item.failure_domain],
                rendezvous(*self._group, item.agent_id),
            ),
        ).agent_id

    def _domain(self, agent_id: str) -> str:
        """An agent that takes nothing now counts as a domain of its own."""
        return next(
            (item.failure_domain for item in self._members.candidates if item.agent_id == agent_id), agent_id
        )

    # Replicas that move

    def _is_moving(self) -> bool:
        """A voter is where the group does not belong, and an agent where it belongs can take its place."""
        coming = {item.agent_id for item in self._free} | {item.agent_id for item in self._learners}
        return bool(self._strangers) and any(agent_id in coming for agent_id in self._wanted)

    def move(self, caught_up: Collection[ReplicaId]) -> Step | None:
        """Move one replica at a time to where it belongs, while all voters are live."""
        if self._missing or not self._is_moving() or len(self._voters) > self._goal.count:
            return None
        coming = [item for item in self._learners if not self._is_unwanted(item)]
        if coming:
            ready = [item for item in coming if item.id in caught_up and self._all_live()]
            return Promote(ready[0].id) if ready else None
        drains = any(self._is_drained(item) for item in self._strangers)
        if not self._permits.add or not (drains or (self._permits.move and self._all_live())):
            return None
        able = {item.agent_id for item in self._free}
        return AddLearner(next(agent_id for agent_id in self._wanted if agent_id in able))

    def hold_everywhere(self) -> Step | None:
        """A readable copy on each agent."""
        if not self._goal.everywhere or not self._free or not self._permits.add:
            return None
        return AddLearner(min(item.agent_id for item in self._free))

    # Leadership

    def hand_over(self) -> Step | None:
        """Hand over to the voter that should lead. A drained leader hands over to any voter."""
        mine = next((item for item in self._voters if item.id == self._leader), None)
        if mine is None or self._is_drained(mine):
            return self._successor()
        if mine.agent_id == self._goal.leader or not self._permits.lead:
            return None
        learners_come = self._learners and not self._goal.everywhere
        if not self._all_live() or learners_come:
            return None
        return next((Transfer(item.id) for item in self._voters if item.agent_id == self._goal.leader), None)

    def _successor(self) -> Step | None:
        able = [
            item
            for item in self._voters
            if item.id != self._leader and item.agent_id in self._members.live and not self._is_drained(item)
        ]
        best = min(
            able,
            key=lambda item: (
                item.agent_id != self._goal.leader,
                item.agent_id not in self._goal.voters,
                item.id,
            ),
            default=None,
        )
        return None if best is None else Transfer(best.id)

    def _all_live(self) -> bool:
        return all(item.agent_id in self._members.live for item in self._voters)

    def _is_drained(self, item: Replica) -> bool:
        return item.agent_id in self._members.drained


def kept_voters(
    group: tuple[bytes, int],
    present: Sequence[str],
    candidates: Sequence[Candidate],
    members: Members,
    count: int,
) -> tuple[str, ...]:
    """A goal for a group that never moves for the sake of balance: the voters it has, the drained and the
    dead apart, and the best others up to `count`. present: the agents that vote now."""
    kept = [
        agent_id for agent_id in present if agent_id not in members.drained and not members.is_dead(agent_id)
    ][:count]
    domain = {item.agent_id: item.failure_domain for item in candidates}
    others = {item.agent_id: item for item in candidates if item.weight > 0 and item.agent_id not in kept}
    while len(kept) < count and others:
        taken = Counter(domain.get(agent_id, agent_id) for agent_id in kept)
        best = min(
            others.values(),
            key=lambda item: (taken[item.failure_domain], rendezvous(*group, item.agent_id)),
        )
        kept.append(others.pop(best.agent_id).agent_id)
    return tuple(kept)


def apply_step(configuration: Configuration, step: AddLearner | Promote | Remove) -> tuple[Replica, ...]:
    """The replicas after the step, as propose_configuration wants them."""
    match step:
        case AddLearner(agent_id):
            return (*configuration.replicas, Replica(UNBORN, agent_id, learner=True))
        case Promote(replica_id):
            return tuple(
                Replica(replica.id, replica.agent_id) if replica.id == replica_id else replica
                for replica in configuration.replicas
            )
        case Remove(replica_id):
            return tuple(replica for replica in configuration.replicas if replica.id != replica_id)
