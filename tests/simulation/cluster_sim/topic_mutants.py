"""Deliberate faults in topics: their births, their settings and how replicas follow; mutants.py runs them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shoal.agent.durable.ids import CATALOG_GROUP
from shoal.agent.host.host import Host
from shoal.agent.members.roster import Roster, is_drained
from shoal.agent.partition.replica import Replica
from shoal.agent.placement import rebalancer
from shoal.agent.placement.targets import Goals
from shoal.agent.topics import catalog
from shoal.agent.topics.catalog import AlterTopic, Catalog
from shoal.agent.topics.catalog_reconciler import TopicReplicas
from shoal.agent.topics.catalog_upkeep import CatalogUpkeep
from shoal.replication.placement import steps

Patch = tuple[Any, str, Any]


def forget_removed_replicas() -> list[Patch]:
    """The registry drops a replica that was removed from its group."""

    async def retire_group(self: Host, group: Any) -> None:
        await self.delete_group(group)
        self.changed(group)

    return [(Host, "retire_group", retire_group)]


def remove_before_adding() -> list[Patch]:
    """A dead voter goes before another takes its place."""
    drop_voter = steps._View.drop_voter

    def mutated(self: Any) -> Any:
        return steps.Remove(self._dead[0].id) if self._dead else drop_voter(self)

    return [(steps._View, "drop_voter", mutated)]


def take_absence_for_deletion() -> list[Patch]:
    """What the catalog had in this run and has no more was deleted, whichever epoch it is of."""
    return [(TopicReplicas, "_forget_other_epochs", lambda _: None)]


def give_birth_on_the_dead() -> list[Patch]:
    """Whoever gossip calls alive may get a newborn replica, whatever the links say."""

    def birthplaces(self: Roster) -> list[Any]:
        return [member for member in self.ours() if member.status == "alive" and not is_drained(member)]

    return [(Roster, "birthplaces", birthplaces)]


def never_bear_again() -> list[Patch]:
    """A partition waits for its first voters, wherever they are."""

    async def look(_: CatalogUpkeep) -> None: ...

    return [(CatalogUpkeep, "look_at_births", look)]


def serve_before_the_birth_is_known() -> list[Patch]:
    """Who is elected leads, and serves, whatever the catalog has been told."""
    return [(Replica, "is_unborn", property(lambda _: False))]


def alter_whatever_the_settings_are() -> list[Patch]:
    """Two changes at once are both taken, and the second undoes the first."""

    def alter(self: Catalog, command: AlterTopic) -> Any:
        entry = self.by_id(command.topic_id)
        return alter_topic(self, replace(command, before=command.before if entry is None else entry.settings))

    alter_topic = Catalog._alter
    return [(Catalog, "_alter", alter)]


def alter_all_but_the_factor() -> list[Patch]:
    """The change is answered, and the replication factor stays."""
    return [(catalog, "altered", catalog.with_changes)]


def settle_for_the_factor_before() -> list[Patch]:
    """A group whose replicas are where they belong looks no more, until the members are others."""
    return [(rebalancer, "factor_of", lambda *_: None)]


def lower_by_one_too_many() -> list[Patch]:
    """A group keeps one voter fewer than the replication factor wants."""
    goal = Goals.goal

    def mutated(self: Goals, *arguments: Any) -> Any:
        wanted = goal(self, *arguments)
        if wanted is None or wanted.everywhere or wanted.count < 2 or arguments[0] == CATALOG_GROUP:
            return wanted
        return replace(wanted, count=wanted.count - 1, voters=wanted.voters[: wanted.count - 1])

    return [(Goals, "goal", mutated)]
