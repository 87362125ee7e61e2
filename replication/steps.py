"""How a group's replicas change: the next single safe step, or none (safety 5).

Law of this file: pure. It looks at a committed configuration, at who is there and since when somebody is
not, and answers with one step; the core checks every step again (membership_change.py), and nobody but the
group's leader carries one out. A group never gets fewer voters than it should have: whoever shall go, a
replacement votes before. The order is always: add a learner, wait until it has everything, let it vote,
remove the one that it replaces.

All learners that are needed are brought up before the first is promoted, so that a group passes the fragile
even numbers of voters within one round trip each.

Hysteresis: who votes and lives stays, wherever it would be placed today. Only a dead voter, or one voter
too many, is removed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from shoal.replication.interfaces import UNBORN, Configuration, Replica, ReplicaId
from shoal.replication.placement import Candidate, grown_voters, rendezvous


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


Step = AddLearner | Promote | Remove


@dataclass(frozen=True, slots=True)
class Group:
    """What never changes of a group. births: the birth voters of every partition of its topic, in order."""

    topic_id: bytes
    partition: int
    births: Sequence[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Members:
    """The agents as the leader's agent sees them.

    candidates: who may take a new replica. live: who gossip has not given up, the leader's agent included.
    lost_since_ms: who gossip has given up and was not heard on any link, without a break since then. Whoever
    is in neither is in doubt: no reason to act, and nobody to build on.
    """

    candidates: tuple[Candidate, ...]
    live: frozenset[str]
    now_ms: int
    replace_after_ms: int
    lost_since_ms: Mapping[str, int] = field(default_factory=dict)

    def is_dead(self, agent_id: str) -> bool:
        """Gone for so long that it is replaced. Whoever left waits like whoever failed."""
        since_ms = self.lost_since_ms.get(agent_id)
        return (
            since_ms is not None
            and agent_id not in self.live
            and self.now_ms - since_ms >= self.replace_after_ms
        )


def next_step(
    group: Group,
    configuration: Configuration,
    target: int,
    *,
    leader: ReplicaId,
    caught_up: frozenset[ReplicaId],
    members: Members,
    stalled: frozenset[ReplicaId] = frozenset(),
    may_add: bool = True,
) -> Step | None:
    """configuration: the committed one. target: voters wanted. caught_up: learners that hold everything
    committed, synced. stalled: learners that have got nothing for long, though they could. may_add: False
    while enough other groups are on the move."""
    learners = [replica for replica in configuration.replicas if replica.learner]
    voters = [replica for replica in configuration.replicas if not replica.learner]
    dead = [replica for replica in voters if members.is_dead(replica.agent_id) and replica.id != leader]
    missing = max(0, target - (len(voters) - len(dead)))
    for replica in learners:
        if replica.agent_id not in members.live or replica.id in stalled:
            return Remove(replica.id)
    if len(learners) > missing:
        return Remove(learners[-1].id)
    if len(voters) > target and (leaving := _leaving(voters, dead, leader, members)) is not None:
        return Remove(leaving)
    if not missing:
        return None
    holders = {replica.agent_id for replica in configuration.replicas}
    free = [item for item in members.candidates if item.weight > 0 and item.agent_id not in holders]
    if free and len(learners) < missing:
        if not may_add:
            return None
        staying = holders - {replica.agent_id for replica in dead}
        return AddLearner(_newcomer(group, staying, free, target, members))
    if learners and all(replica.id in caught_up for replica in learners):
        return Promote(learners[0].id)
    return None


def _leaving(
    voters: Sequence[Replica], dead: Sequence[Replica], leader: ReplicaId, members: Members
) -> ReplicaId | None:
    """One of too many voters: a dead one; else, if all are there, the newest of the most crowded failure
    domain. The leader stays: it is at work."""
    if dead:
        return dead[0].id
    if any(replica.agent_id not in members.live for replica in voters):
        return None  # it may return, or die: then one of these has replaced it
    domain = {item.agent_id: item.failure_domain for item in members.candidates}
    crowd = Counter(domain.get(replica.agent_id, replica.agent_id) for replica in voters)
    others = [replica for replica in voters if replica.id != leader]
    return max(
        others, key=lambda replica: (crowd[domain.get(replica.agent_id, replica.agent_id)], replica.id)
    ).id


def _newcomer(
    group: Group, staying: Collection[str], free: Sequence[Candidate], target: int, members: Members
) -> str:
    """Which of the free agents should hold the next replica, beside those that stay."""
    domain = {item.agent_id: item.failure_domain for item in members.candidates}
    taken = Counter(domain[agent_id] for agent_id in staying if agent_id in domain)
    ideal = grown_voters(group.topic_id, group.partition, group.births, members.candidates, target)
    preference = {agent_id: number for number, agent_id in enumerate(ideal)}
    return min(
        free,
        key=lambda item: (
            taken[item.failure_domain],
            preference.get(item.agent_id, len(ideal)),
            rendezvous(group.topic_id, group.partition, item.agent_id),
        ),
    ).agent_id


def apply_step(configuration: Configuration, step: Step) -> tuple[Replica, ...]:
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
