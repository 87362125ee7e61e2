"""Which change of a configuration is allowed.

Law of this file: the rules about two configurations. The followers that are heard are an argument.
"""

from collections.abc import Callable, Collection

from shoal.replication.errors import ChangePending, InvalidChange
from shoal.replication.interfaces import Configuration, ReplicaId
from shoal.replication.state.quorum import has_majority


def check_change(
    old: Configuration, new: Configuration, new_id: ReplicaId, is_caught_up: Callable[[ReplicaId], bool]
) -> None:
    """One voter more or less, so that any two majorities meet (thesis 4.1), and more only by way of a learner
    that has caught up (4.2.1). new_id: the id of a replica that this change adds. Raises InvalidChange."""
    if problem := new.problem():
        raise InvalidChange(problem)
    if len(set(old.voters) ^ set(new.voters)) > 1:
        raise InvalidChange("more than one voter changes")
    for replica in new.replicas:
        before = old.find(replica.id)
        if before is None:
            if replica.id != new_id or not replica.learner:
                raise InvalidChange(f"{replica.agent_id} must begin as a new learner")
        elif before.agent_id != replica.agent_id:
            raise InvalidChange(f"{replica.id} lives on {before.agent_id}, not on {replica.agent_id}")
        elif before.learner and not replica.learner and not is_caught_up(replica.id):
            raise InvalidChange(f"{replica.agent_id} has not caught up yet")


def check_followed(old: Configuration, new: Configuration, following: Collection[ReplicaId]) -> None:
    """New voters take force at once, and only they can commit their entry. A group of two, one of which has
    crashed unnoticed, would wait for that one for ever.

    following: replicas that are heard, and have synced the first entry of the term. In a quiet group all are
    heard that it has not left behind. Raises ChangePending.
    """
    if set(new.voters) != set(old.voters) and not has_majority(new.voters, following):
        raise ChangePending("a majority of the new voters does not follow this leader")
