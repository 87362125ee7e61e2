"""Consumer groups in the catalog: a topic's groups, and the commands that make, change and end them.

Law of this file: pure. It decides on the groups of one topic; whether the topic exists, and whether the
catalog has room, is decided in catalog.py. A group is known by its key, which is random and never used again,
so that a late command never meets a namesake.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from shoal.agent.groups.settings import GroupPlan, GroupPlans, GroupSettings
from shoal.agent.levels import Level
from shoal.agent.receive import GroupKey

MAX_GROUPS = 64
"""Of a topic: each keeps a part of every partition's checkpoint."""
MAC_BYTES = 32
_GROUP_COST = 768  # beside its name: settings, key, secret and place, with room for new settings


@dataclass(frozen=True, slots=True)
class GroupEntry:
    """A consumer group as the catalog holds it. `mac`: the secret key of its receipts. `made`: epoch and
    offset of the command that made it."""

    name: str
    key: GroupKey
    mac: bytes
    settings: GroupSettings
    made: tuple[int, int] = (0, 0)

    def cost(self) -> int:
        """Its part of MAX_COST, at least its bytes in a state. It never changes."""
        return _GROUP_COST + len(self.name)

    def plan(self) -> GroupPlan:
        """As replicas get it."""
        return GroupPlan(self.key, self.name, self.settings, self.mac, self.made)


@dataclass(frozen=True, slots=True)
class CreateGroup:
    """Takes effect only if the topic may have groups, and has no such name or key. `made` of the group is
    set as the command is folded."""

    topic_id: bytes
    group: GroupEntry


@dataclass(frozen=True, slots=True)
class ChangeGroup:
    """Takes effect only on a group whose settings are `before`, as AlterTopic does. Mode and start stay."""

    topic_id: bytes
    key: GroupKey
    before: GroupSettings
    settings: GroupSettings


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    """By key, so that a late retry never deletes a namesake. The dead letters' topic stays."""

    topic_id: bytes
    key: GroupKey


GroupCommand = CreateGroup | ChangeGroup | DeleteGroup
GroupOutcome = Literal["done", "group-taken", "too-many-groups", "unknown-group", "other-settings"]


def groups_after(
    groups: tuple[GroupEntry, ...], command: GroupCommand, place: tuple[int, int]
) -> tuple[GroupOutcome, tuple[GroupEntry, ...]]:
    """The outcome of a command at a place (epoch and offset), and the groups behind it, by name."""
    if isinstance(command, CreateGroup):
        made = command.group
        if any(made.name == group.name or made.key == group.key for group in groups):
            return "group-taken", groups
        if len(groups) >= MAX_GROUPS:
            return "too-many-groups", groups
        return "done", _by_name((*groups, replace(made, made=place)))
    found = next((group for group in groups if group.key == command.key), None)
    if found is None:
        return "unknown-group", groups
    others = [group for group in groups if group is not found]
    if isinstance(command, DeleteGroup):
        return "done", tuple(others)
    if found.settings != command.before:
        return "other-settings", groups
    settings = replace(command.settings, mode=found.settings.mode, start=found.settings.start)
    return "done", _by_name((*others, replace(found, settings=settings)))


def _by_name(groups: Iterable[GroupEntry]) -> tuple[GroupEntry, ...]:
    return tuple(sorted(groups, key=lambda group: group.name))


def plans_of(
    groups: Iterable[GroupEntry], catalog: tuple[int, int], level: Level, partitions: int
) -> GroupPlans:
    """The groups of a topic for its replicas. `catalog`: epoch and offset of the state that has them."""
    return GroupPlans({group.key: group.plan() for group in groups}, catalog, level, partitions)
