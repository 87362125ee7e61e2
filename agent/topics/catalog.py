"""The catalog: which topics exist, with which ids, settings and births. A replicated state machine.

Law of this file: pure. Commands are the records of the `_catalog` log, applied in offset order alone; the
same commands give the same state on every agent. A command carries everything that it needs: ids, times,
voters. All that stands here was committed.

Rules kept here (safety 1, 4, 6): a partition's birth changes only while nobody has led it. A deleted topic
leaves a tombstone until each holder has confirmed that the data are gone, or is gone for good. A sealed
catalog takes no topic, and only an empty one can be sealed. A state belongs to the lineage that its epoch
names (catalog_version.py); numbers count in that lineage alone. A state has the cluster's level (levels.py),
which only rises.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Literal, NamedTuple

from shoal.agent.durable.catalog_version import CatalogVersion
from shoal.agent.levels import FIRST_LEVEL, Level
from shoal.agent.security.documents import state_document, state_from
from shoal.agent.security.principals import Security, SecurityCommand, SecurityOutcome
from shoal.agent.topics.entries import (
    CatalogError,
    PartitionBirth,
    Tombstone,
    TopicEntry,
    entry_document,
    entry_from,
    id_in,
    integer_in,
    list_in,
    load_document,
    mask_of,
    tombstone_document,
    tombstone_from,
)
from shoal.agent.topics.groups_catalog import (
    ChangeGroup,
    CreateGroup,
    DeleteGroup,
    GroupCommand,
    GroupOutcome,
    groups_after,
)
from shoal.agent.topics.settings import TopicSettings, altered, with_changes

MAX_STATE_BYTES = 16 << 20
"""Topics stay below: a catalog is one file of every agent, written anew with every change. Principals and
roles have room of their own beside it (MAX_SECURITY_COST), so that neither crowds the other out."""
MAX_COST = MAX_STATE_BYTES * 3 // 4
"""No topic is made beyond: deletions, changes and their outcomes always find room."""
MAX_READ_BYTES = 1 << 30
"""Larger states than MAX_STATE_BYTES were written before topics had a bound; they are read."""
DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """Takes effect only if name and id are free, the catalog is not sealed, and has room."""

    entry: TopicEntry


@dataclass(frozen=True, slots=True)
class ChangeTopic:
    """By id too. The last change of retention and segments wins. AlterTopic has taken its place."""

    topic_id: bytes
    settings: TopicSettings


@dataclass(frozen=True, slots=True)
class AlterTopic:
    """Takes effect only on a topic whose settings are `before`: of two changes made at once none undoes the
    other. Only the settings that may change are taken."""

    topic_id: bytes
    before: TopicSettings
    settings: TopicSettings


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    """By id, so that a late retry never deletes a namesake. `holders`: agents that got a replica later than
    at its birth, as far as the proposer knows."""

    topic_id: bytes
    holders: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ConfirmDeletion:
    """`agent_id` no longer has any byte of the deleted topic."""

    topic_id: bytes
    agent_id: str


@dataclass(frozen=True, slots=True)
class Seal:
    """This empty cluster gives itself up for another: no topic is ever created here."""

    successor: bytes


@dataclass(frozen=True, slots=True)
class BeginEpoch:
    """All that follows belongs to the lineage that a recovery by force has begun. base: digest of the state
    that the survivor had. An agent with another state needs a copy of the new one."""

    epoch: int
    base: bytes


class Births(NamedTuple):
    """Partitions of one topic, as a mask, in one generation of theirs."""

    topic_id: bytes
    generation: int
    partitions: int


@dataclass(frozen=True, slots=True)
class ConfirmBirths:
    """These births are led. Those not given up before are final, and only then their leaders serve."""

    births: tuple[Births, ...]


class Rebirth(NamedTuple):
    """The voters of a partition in the given generation."""

    partition: int
    generation: int
    voters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RepeatBirths:
    """Births that nobody has led are given up for others. A birth counts if its generation follows the
    present one, and that is not born: of this and ConfirmBirths, the later one in the log comes too late."""

    topic_id: bytes
    births: tuple[Rebirth, ...]


@dataclass(frozen=True, slots=True)
class RaiseLevel:
    """The cluster works at this level from here on. The command is itself of that level, so that an agent
    that does not understand it stops before it."""

    level: Level


Command = (
    CreateTopic
    | ChangeTopic
    | AlterTopic
    | DeleteTopic
    | ConfirmDeletion
    | Seal
    | BeginEpoch
    | ConfirmBirths
    | RepeatBirths
    | RaiseLevel
    | CreateGroup
    | ChangeGroup
    | DeleteGroup
    | SecurityCommand
)
TopicOutcome = Literal[
    "done",
    "name-taken",
    "id-taken",
    "unknown-id",
    "sealed",
    "not-empty",
    "other-base",
    "other-settings",
    "full",
    "already-applied",
    "too-late",
    "no-groups-here",
]
Outcome = TopicOutcome | GroupOutcome | SecurityOutcome


@dataclass(slots=True)
class Catalog:
    """The fold of the commands at offsets 0 to offset - 1 of its lineage."""

    offset: int = 0
    epoch: int = 0
    topics: dict[str, TopicEntry] = field(default_factory=dict)
    tombstones: dict[bytes, Tombstone] = field(default_factory=dict)
    sealed_for: bytes | None = None
    _by_id: dict[bytes, TopicEntry] = field(default_factory=dict)
    cost: int = 0
    """Of all topics and tombstones."""
    level: Level = FIRST_LEVEL
    security: Security = field(default_factory=Security)

    def __repr__(self) -> str:
        names = ",".join(sorted(self.topics))
        return f"Catalog(version={self.version} topics=[{names}] tombstones={len(self.tombstones)})"

    @property
    def version(self) -> CatalogVersion:
        """Equal versions are equal states, newer ones greater."""
        return CatalogVersion(self.epoch, self.offset)

    def by_id(self, topic_id: bytes) -> TopicEntry | None:
        return self._by_id.get(topic_id)

    def name_of(self, topic_id: bytes) -> str | None:
        """For people; None for a topic that this state knows neither alive nor deleted."""
        if (entry := self._by_id.get(topic_id)) is not None:
            return entry.name
        tombstone = self.tombstones.get(topic_id)
        return None if tombstone is None else f"deleted topic {tombstone.name}"

    def apply(self, offset: int, command: Command) -> Outcome:
        """Fold in the command committed at this offset. A replayed offset changes nothing.

        The outcome is a function of state and command alone, so every agent reaches the same one.
        """
        if isinstance(command, BeginEpoch) and command.epoch > self.epoch:
            return self._begin_epoch(offset, command)
        if offset < self.offset:
            return "already-applied"
        assert offset == self.offset, f"catalog at version {self.version} was given offset {offset}"
        self.offset += 1
        if isinstance(command, SecurityCommand):
            return self.security.apply(command, (self.epoch, offset))
        match command:
            case CreateTopic(entry):
                return self._create(entry)
            case ChangeTopic(topic_id, settings):
                return self._change(topic_id, settings)
            case AlterTopic():
                return self._alter(command)
            case DeleteTopic(topic_id, holders):
                return self._delete(topic_id, holders)
            case ConfirmDeletion(topic_id, agent_id):
                return self._confirm(topic_id, agent_id)
            case Seal(successor):
                return self._seal(successor)
            case ConfirmBirths(births):
                return self._born(births)
            case RepeatBirths(topic_id, rebirths):
                return self._bear_again(topic_id, rebirths)
            case RaiseLevel(level):
                return self._raise_level(level)
            case CreateGroup() | ChangeGroup() | DeleteGroup():
                return self._change_groups(command, offset)
            case BeginEpoch():
                return "already-applied"

    def _begin_epoch(self, offset: int, command: BeginEpoch) -> Outcome:
        """Numbers go on from this command's place in the survivor's log. All partitions count as born: nobody
        can know which births were given up or led meanwhile."""
        if self.digest() != command.base:
            return "other-base"
        self.epoch, self.offset = command.epoch, offset + 1
        for entry in [entry for entry in self.topics.values() if entry.unborn]:
            self._put(replace(entry, unborn=0))
        return "done"

    def digest(self) -> bytes:
        """Of the whole state; equal for equal states only."""
        return blake2b(self.to_bytes(), digest_size=DIGEST_BYTES).digest()

    def subject(self, command: Command) -> TopicEntry | None:
        """The topic that a command is about, as it stands now."""
        match command:
            case CreateTopic(entry):
                return self.topics.get(entry.name)
            case ChangeTopic(topic_id) | AlterTopic(topic_id):
                return self._by_id.get(topic_id)
            case CreateGroup(topic_id) | ChangeGroup(topic_id) | DeleteGroup(topic_id):
                return self._by_id.get(topic_id)
        return None

    def _put(self, entry: TopicEntry) -> None:
        """In the place of the one of its id."""
        self.topics[entry.name] = self._by_id[entry.topic_id] = entry

    def _born(self, births: tuple[Births, ...]) -> Outcome:
        for entry, _, present in self._present(births):
            if present & entry.unborn:
                self._put(replace(entry, unborn=entry.unborn & ~present))
        return "done"

    def led_of(self, births: tuple[Births, ...], *, born: bool) -> tuple[Births, ...]:
        """Those of the present generation that are born, or that are not."""
        return tuple(
            Births(entry.topic_id, generation, mask)
            for entry, generation, present in self._present(births)
            if (mask := present & (~entry.unborn if born else entry.unborn))
        )

    def _present(self, births: tuple[Births, ...]) -> Iterator[tuple[TopicEntry, int, int]]:
        """Of topics that are here: entry, generation, and as a mask the partitions that are of it now."""
        for topic_id, generation, partitions in births:
            entry = self._by_id.get(topic_id)
            if entry is not None:
                known = enumerate(entry.partitions)
                present = mask_of(number for number, birth in known if birth.generation == generation)
                yield entry, generation, partitions & present

    def _bear_again(self, topic_id: bytes, rebirths: tuple[Rebirth, ...]) -> Outcome:
        entry = self._by_id.get(topic_id)
        if entry is None:
            return "unknown-id"
        births = list(entry.partitions)
        for partition, generation, voters in rebirths:
            if not entry.unborn >> partition & 1 or births[partition].generation + 1 != generation:
                continue
            births[partition] = replace(births[partition], voters=voters, generation=generation)
        again = replace(entry, partitions=tuple(births))
        return "too-late" if again == entry else self._put_if_it_fits(entry, again)

    def _put_if_it_fits(self, entry: TopicEntry, again: TopicEntry) -> TopicOutcome:
        """A changed entry in the place of the former, unless the catalog has no room for it."""
        grown = again.cost() - entry.cost()
        if grown > 0 and self.cost + grown > MAX_COST:
            return "full"
        self.cost += grown
        self._put(again)
        return "done"

    def _change_groups(self, command: GroupCommand, offset: int) -> Outcome:
        entry = self._by_id.get(command.topic_id)
        if entry is None:
            return "unknown-id"
        if entry.letters_of is not None:
            return "no-groups-here"
        outcome, groups = groups_after(entry.groups, command, (self.epoch, offset))
        if outcome != "done":
            return outcome
        return self._put_if_it_fits(entry, replace(entry, groups=groups))

    def _create(self, entry: TopicEntry) -> Outcome:
        if self.sealed_for is not None:
            return "sealed"
        if entry.name in self.topics:
            return "name-taken"
        if entry.topic_id in self._by_id or entry.topic_id in self.tombstones:
            return "id-taken"
        if self.cost + entry.cost() > MAX_COST:
            return "full"
        self.cost += entry.cost()
        self._put(entry)
        return "done"

    def _change(self, topic_id: bytes, settings: TopicSettings) -> Outcome:
        entry = self._by_id.get(topic_id)
        if entry is None:
            return "unknown-id"
        self._put(replace(entry, settings=with_changes(entry.settings, settings)))
        return "done"

    def _alter(self, command: AlterTopic) -> Outcome:
        entry = self._by_id.get(command.topic_id)
        if entry is None:
            return "unknown-id"
        if entry.settings != command.before:
            return "other-settings"
        self._put(replace(entry, settings=altered(entry.settings, command.settings)))
        return "done"

    def _delete(self, topic_id: bytes, holders: frozenset[str]) -> Outcome:
        entry = self._by_id.pop(topic_id, None)
        if entry is None:
            return "unknown-id"
        del self.topics[entry.name]
        waiting_for = entry.holders() | holders
        tombstone = Tombstone(topic_id, entry.name, len(entry.partitions), waiting_for)
        self.tombstones[topic_id] = tombstone
        self.cost += tombstone.cost() - entry.cost()
        return "done"

    def _confirm(self, topic_id: bytes, agent_id: str) -> Outcome:
        tombstone = self.tombstones.get(topic_id)
        if tombstone is None:
            return "unknown-id"
        waiting_for = tombstone.waiting_for - {agent_id}
        self.cost -= tombstone.cost()
        if waiting_for:
            tombstone = Tombstone(topic_id, tombstone.name, tombstone.partitions, waiting_for)
            self.tombstones[topic_id] = tombstone
            self.cost += tombstone.cost()
        else:
            del self.tombstones[topic_id]
        return "done"

    def _seal(self, successor: bytes) -> Outcome:
        if self.topics:
            return "not-empty"
        if self.sealed_for is None:
            self.sealed_for = successor
        return "done"

    def _raise_level(self, level: Level) -> Outcome:
        if level <= self.level:
            return "too-late"
        self.level = level
        return "done"

    def check_invariants(self) -> None:
        """Asserts; called by tests after every command."""
        assert self.level >= FIRST_LEVEL
        assert {entry.topic_id for entry in self.topics.values()} == set(self._by_id)
        assert all(name == entry.name for name, entry in self.topics.items())
        assert all(entry.unborn >> len(entry.partitions) == 0 for entry in self.topics.values())
        assert not any(entry.unborn and entry.adopted for entry in self.topics.values())
        assert not set(self._by_id) & set(self.tombstones), "a topic is both alive and dead"
        assert all(tombstone.waiting_for for tombstone in self.tombstones.values())
        assert self.sealed_for is None or not self.topics
        assert not any(entry.groups and entry.letters_of is not None for entry in self.topics.values())
        assert self.cost == self._counted()
        self.security.check_invariants()

    def _counted(self) -> int:
        alive = sum(entry.cost() for entry in self.topics.values())
        return alive + sum(tombstone.cost() for tombstone in self.tombstones.values())

    # ---- snapshots ----------------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """The whole state, for a follower's pull and for the copy on disk."""
        document = {
            "v": self.level,
            "version": self.offset,
            **({"epoch": self.epoch} if self.epoch else {}),
            "sealed_for": None if self.sealed_for is None else self.sealed_for.hex(),
            "topics": [entry_document(self.topics[name]) for name in sorted(self.topics)],
            "tombstones": [tombstone_document(self.tombstones[key]) for key in sorted(self.tombstones)],
            **({"security": state_document(self.security)} if self.security.changed != (0, 0) else {}),
        }
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Catalog:
        """Raises CatalogError, and nothing else, for anything to_bytes() did not write."""
        level, document = load_document(data, MAX_READ_BYTES)
        epoch = integer_in({"epoch": 0, **document}, "epoch")
        catalog = cls(integer_in(document, "version"), epoch, level=level)
        sealed_for = document.get("sealed_for")
        catalog.sealed_for = None if sealed_for is None else id_in(document, "sealed_for")
        for item in list_in(document, "topics"):
            entry = entry_from(item)
            if entry.name in catalog.topics or entry.topic_id in catalog._by_id:
                raise CatalogError(f"topic {entry.name!r} stands twice in the snapshot")
            catalog._put(entry)
        for item in list_in(document, "tombstones"):
            tombstone = tombstone_from(item)
            catalog.tombstones[tombstone.topic_id] = tombstone
        catalog.cost = catalog._counted()
        if "security" in document:
            try:
                catalog.security = state_from(document["security"])
            except ValueError as error:
                raise CatalogError(f"security: {error}") from None
        return catalog


__all__ = [
    "CatalogError",
    "PartitionBirth",
    "Tombstone",
    "TopicEntry",
    "entry_document",
    "entry_from",
]
