"""The need of an operation: an action, and the kind of thing that it acts on.

Law of this file: pure values. Each operation of the HTTP API names its need. Rules grant actions (rules.py),
and an agent's Access compares both (access.py). Nothing here knows principals, routes or topics.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


class ResourceKind(StrEnum):
    """Things that rules speak of."""

    TOPIC = "topic"
    """By the topic's name; tables and timer topics too."""
    GROUP = "group"
    """By `TOPIC/GROUP`."""
    CLUSTER = "cluster"
    """There is one, without a name."""


class Action(StrEnum):
    """As rules, refusals and the audit name them."""

    DESCRIBE = "describe"
    READ = "read"
    WRITE = "write"
    CREATE = "create"
    ALTER = "alter"
    DELETE = "delete"
    CONSUME = "consume"
    MANAGE = "manage"
    OPERATE = "operate"
    ADMIN = "admin"


ACTIONS: Final = {
    ResourceKind.TOPIC: (
        Action.DESCRIBE, Action.READ, Action.WRITE, Action.CREATE, Action.ALTER, Action.DELETE,
    ),
    ResourceKind.GROUP: (Action.CONSUME, Action.MANAGE),
    ResourceKind.CLUSTER: (Action.DESCRIBE, Action.OPERATE, Action.ADMIN),
}  # fmt: skip
"""The actions that there are on each kind."""


class Need(NamedTuple):
    """An action on a kind of thing; the request says which one."""

    action: Action
    kind: ResourceKind

    def __str__(self) -> str:
        return f"{self.kind}:{self.action}"


def need(kind: ResourceKind, action: Action) -> Need:
    """Raises ValueError for an action that the kind does not have: a table of operations then fails to
    build."""
    if action not in ACTIONS[kind]:
        raise ValueError(f"{kind} has no action {action}")
    return Need(action, kind)
