"""Deliberate faults in how a cluster takes a feature level; mutants.py runs them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from shoal.agent import directory
from shoal.agent.bootstrap.outgrown_watch import OutgrownWatch
from shoal.agent.levels import SUPPORTED, LevelRange, range_from_text
from shoal.agent.members.roster import Roster
from shoal.agent.members.tags import TAG_LEVELS
from shoal.agent.topics import catalog_service, catalog_upkeep
from shoal.agent.topics.local_catalog import LocalCatalog

Patch = tuple[Any, str, Any]


def raise_without_the_failed() -> list[Patch]:
    """Members that gossip has given up do not count, though they hold replicas."""

    def mutated(roster: Roster, _holders: Iterable[str] = ()) -> dict[str, LevelRange]:
        return {
            member.name: range_from_text(member.tags.get(TAG_LEVELS))
            for member in roster.ours()
            if member.status in ("alive", "suspect")
        }

    return [(Roster, "understood_levels", mutated), (catalog_upkeep, "understood_levels", mutated)]


def start_above_the_own_levels() -> list[Patch]:
    """An agent opens a directory, and applies commands, of a level that it does not understand."""
    return [
        (directory, "refusal", lambda *_: None),
        (OutgrownWatch, "suspect", lambda _: None),
        (catalog_service, "level_of_command", lambda _: SUPPORTED.lowest),
    ]


def forget_the_level_before_a_recovery() -> list[Patch]:
    """A cluster has the level of the state that it goes on from, whatever it had before."""
    return [(LocalCatalog, "level", property(lambda self: self.catalog.level))]
