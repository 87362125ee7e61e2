"""The needs of operations: what an asker has to be allowed, beside those that no rule grants.

Pure values. An operation takes one of these; judging is the matter of core/doorkeeper.py.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, TypeAlias

from shoal.agent.security.needs import Action, Need, ResourceKind, need

TOPIC, GROUP, CLUSTER = ResourceKind


class OtherNeed(Enum):
    """Needs that no rule grants."""

    NOTHING = "nothing"
    """Everybody may, without credentials: the answer tells nothing about the cluster."""
    CREDENTIALS = "credentials"
    """A list: everybody with credentials may, and is shown those things alone that may be described."""
    AGENT = "agent"
    """Another agent of the cluster alone. Where TLS is off agents have nothing to prove themselves by."""
    INTRODUCTION = "cluster:describe"
    """That; but where TLS is off an agent without a cluster asks without credentials, since it has none. It
    is told which cluster this is, and no more."""


Needs: TypeAlias = OtherNeed | tuple[Need, ...]
"""Several: each suffices, and all are of one kind. The refusal names the first."""


def _one(kind: ResourceKind, *actions: Action) -> tuple[Need, ...]:
    return tuple(need(kind, action) for action in actions)


TOPIC_DESCRIBE: Final = _one(TOPIC, Action.DESCRIBE)
TOPIC_OFFSETS: Final = _one(TOPIC, Action.DESCRIBE, Action.READ)
"""A reader finds its place by them, at each partition's leader."""
TOPIC_READ: Final = _one(TOPIC, Action.READ)
TOPIC_WRITE: Final = _one(TOPIC, Action.WRITE)
TOPIC_CREATE: Final = _one(TOPIC, Action.CREATE)
TOPIC_ALTER: Final = _one(TOPIC, Action.ALTER)
TOPIC_DELETE: Final = _one(TOPIC, Action.DELETE)
GROUP_CONSUME: Final = _one(GROUP, Action.CONSUME)
GROUP_MANAGE: Final = _one(GROUP, Action.MANAGE)
GROUP_MAKE: Final = _one(GROUP, Action.MANAGE, Action.CONSUME)
"""A first receive makes its group, too."""
CLUSTER_DESCRIBE: Final = _one(CLUSTER, Action.DESCRIBE)
CLUSTER_OPERATE: Final = _one(CLUSTER, Action.OPERATE)
CLUSTER_ADMIN: Final = _one(CLUSTER, Action.ADMIN)


def told(needs: Needs) -> str:
    """The needs as refusals and descriptions tell them, such as `topic:read`; empty for none."""
    if isinstance(needs, OtherNeed):
        return "" if needs is OtherNeed.NOTHING else needs.value
    return " or ".join(map(str, needs))
