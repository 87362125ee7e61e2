"""How a group gets more voters: the next single safe step, or none.

Law of this file: pure. It looks at a committed configuration and at who is live, and answers with one step;
the Raft core checks every step again. It only ever adds: taking a dead voter's place is another rule's
business (safety 5).

All learners that are needed are brought up before the first is promoted, so that the group passes the
fragile even numbers of voters in one round trip each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.agent.bootstrap import catalog_voters
from shoal.replication.interfaces import UNBORN, Configuration, Replica, ReplicaId


@dataclass(frozen=True, slots=True)
class AddLearner:
    """This agent shall hold a copy that does not vote yet."""

    agent_id: str


@dataclass(frozen=True, slots=True)
class Promote:
    """This learner has everything: let it vote."""

    replica_id: ReplicaId


@dataclass(frozen=True, slots=True)
class Drop:
    """This learner's agent is gone, or it is not needed any more. It never voted."""

    replica_id: ReplicaId


Step = AddLearner | Promote | Drop


def wanted_catalog_voters(live: Sequence[str]) -> int:
    """As many as a cluster founded by these members would have."""
    return len(catalog_voters(min(live), live)) if live else 1


def next_step(
    configuration: Configuration, live: Sequence[str], wanted: int, caught_up: frozenset[ReplicaId]
) -> Step | None:
    """`live`: agents in order of preference. `caught_up`: learners that hold everything committed."""
    learners = [replica for replica in configuration.replicas if replica.learner]
    missing = wanted - (len(configuration.replicas) - len(learners))
    for replica in learners:
        if replica.agent_id not in live:
            return Drop(replica.id)
    if len(learners) > max(0, missing):
        return Drop(learners[-1].id)
    if missing <= 0:
        return None
    held = {replica.agent_id for replica in configuration.replicas}
    candidates = [agent_id for agent_id in live if agent_id not in held]
    if len(learners) < missing:
        return AddLearner(candidates[0]) if candidates else None
    if all(replica.id in caught_up for replica in learners):
        return Promote(learners[0].id)
    return None


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
        case Drop(replica_id):
            return tuple(replica for replica in configuration.replicas if replica.id != replica_id)
