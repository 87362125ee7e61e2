"""The catalog: which topics exist, with which ids, settings and births. A replicated state machine.

Law of this file: pure. Commands are the records of the `_catalog` log, applied in offset order and never
otherwise; the same commands give the same state on every agent. It knows no member list, clock, network or
disk: whoever proposes a command has put everything into it (ids, times, voters). A reader must be able to
trust that whatever stands here was committed.

Rules kept here (safety 1, 4, 6): a topic's birth never changes; a deleted topic leaves a tombstone until
each of its holders has confirmed that the data are gone, or is itself gone for good; once the catalog is
sealed no topic can be created, and it can be sealed only while it holds none. A state is of the lineage that
its epoch names (catalog_version.py), and numbers count in that alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Literal

from shoal.agent.catalog_version import MAX_NUMBER, CatalogVersion
from shoal.agent.topic_settings import TopicSettings, settings_from_body, with_changes
from shoal.errors import ShoalError
from shoal.hash_ranges import HashRange

COMMAND_VERSION = 1
MAX_COMMAND_BYTES = 1 << 20  # 1,024 partitions with seven voters of 32 hex digits each, and room
MAX_STATE_BYTES = 16 << 20
"""What a catalog shall not outgrow: it is one file of every agent, written anew with every change."""
MAX_COST = MAX_STATE_BYTES * 3 // 4
"""Where no topic is made any more: deletions, changes and what becomes of them always find room."""
MAX_READ_BYTES = 1 << 30
"""Whatever was written is read again, as before topics had a bound; no more than fits into memory."""
_TOPIC_COST = 1_024  # name apart: settings, id and time, as JSON with room for settings to come
_PARTITION_COST = 64
_NAME_COST = 3  # quotes and a comma
ID_BYTES = 16
DIGEST_BYTES = 16


class CatalogError(ValueError):
    """Bytes that are no catalog command or snapshot of a version this code understands."""


@dataclass(frozen=True, slots=True)
class PartitionBirth:
    """Hash range and birth voters (agent ids; the first is the preferred leader). Never changes."""

    hash_range: HashRange
    voters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopicEntry:
    """One topic as the catalog holds it. Times are unix microseconds. adopted: it came back into a catalog
    that did not know it. Nobody gives birth to its replicas then: who was born with one and has it no more
    has forgotten its vote (safety 2)."""

    name: str
    topic_id: bytes
    settings: TopicSettings
    partitions: tuple[PartitionBirth, ...]
    created_us: int
    adopted: bool = False

    def holders(self) -> frozenset[str]:
        """Every agent that was ever asked by the catalog to hold a replica."""
        return frozenset(agent for partition in self.partitions for agent in partition.voters)

    def cost(self) -> int:
        """What the topic takes of MAX_COST: never less than its bytes in a state, and the same for ever,
        whatever a later version writes: agents of all versions must refuse the same topics."""
        voters = sum(len(voter) + _NAME_COST for birth in self.partitions for voter in birth.voters)
        return _TOPIC_COST + len(self.name) + _PARTITION_COST * len(self.partitions) + voters


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A deleted topic whose data some holders may still have on their disks."""

    topic_id: bytes
    name: str
    partitions: int
    waiting_for: frozenset[str]

    def cost(self) -> int:
        """As of a topic."""
        return _TOPIC_COST + len(self.name) + sum(len(agent) + _NAME_COST for agent in self.waiting_for)


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """Takes effect only if name and id are free, the catalog is not sealed, and has room."""

    entry: TopicEntry


@dataclass(frozen=True, slots=True)
class ChangeTopic:
    """By id too. Only the settings that may change are taken; the last change wins."""

    topic_id: bytes
    settings: TopicSettings


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    """By id, so that a late retry never deletes a namesake. `holders`: agents that hold a replica without
    having been born with it, as far as the proposer knows."""

    topic_id: bytes
    holders: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ConfirmDeletion:
    """`agent_id` no longer has any byte of the deleted topic."""

    topic_id: bytes
    agent_id: str


@dataclass(frozen=True, slots=True)
class Seal:
    """No topic may ever be created here: this empty cluster gives itself up for another."""

    successor: bytes


@dataclass(frozen=True, slots=True)
class BeginEpoch:
    """What comes from here on belongs to the lineage that a recovery by force has begun. base: digest of the
    state before it, as the survivor had it: whoever has another one needs a copy of what it became."""

    epoch: int
    base: bytes


Command = CreateTopic | ChangeTopic | DeleteTopic | ConfirmDeletion | Seal | BeginEpoch
Outcome = Literal[
    "done",
    "name-taken",
    "id-taken",
    "unknown-id",
    "sealed",
    "not-empty",
    "other-base",
    "full",
    "already-applied",
]


@dataclass(slots=True)
class Catalog:
    """The fold of the commands at offsets 0 to offset - 1 of its lineage."""

    offset: int = 0
    epoch: int = 0
    topics: dict[str, TopicEntry] = field(default_factory=dict)
    tombstones: dict[bytes, Tombstone] = field(default_factory=dict)
    sealed_for: bytes | None = None
    _by_id: dict[bytes, TopicEntry] = field(default_factory=dict)
    _cost: int = 0

    def __repr__(self) -> str:
        names = ",".join(sorted(self.topics))
        return f"Catalog(version={self.version} topics=[{names}] tombstones={len(self.tombstones)})"

    @property
    def version(self) -> CatalogVersion:
        """Equal versions are equal states, newer ones greater."""
        return CatalogVersion(self.epoch, self.offset)

    def by_id(self, topic_id: bytes) -> TopicEntry | None:
        return self._by_id.get(topic_id)

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
        match command:
            case CreateTopic(entry):
                return self._create(entry)
            case ChangeTopic(topic_id, settings):
                return self._change(topic_id, settings)
            case DeleteTopic(topic_id, holders):
                return self._delete(topic_id, holders)
            case ConfirmDeletion(topic_id, agent_id):
                return self._confirm(topic_id, agent_id)
            case Seal(successor):
                return self._seal(successor)
            case BeginEpoch():
                return "already-applied"

    def _begin_epoch(self, offset: int, command: BeginEpoch) -> Outcome:
        """The numbers go on from this command's place in the survivor's log, wherever the state was."""
        if self.digest() != command.base:
            return "other-base"
        self.epoch, self.offset = command.epoch, offset + 1
        return "done"

    def digest(self) -> bytes:
        """Of the whole state; equal for equal states only."""
        return blake2b(self.to_bytes(), digest_size=DIGEST_BYTES).digest()

    def cost(self) -> int:
        """Of all topics and tombstones."""
        return self._cost

    def subject(self, command: Command) -> TopicEntry | None:
        """The topic that a command is about, as it stands now."""
        match command:
            case CreateTopic(entry):
                return self.topics.get(entry.name)
            case ChangeTopic(topic_id, _):
                return self._by_id.get(topic_id)
        return None

    def _create(self, entry: TopicEntry) -> Outcome:
        if self.sealed_for is not None:
            return "sealed"
        if entry.name in self.topics:
            return "name-taken"
        if entry.topic_id in self._by_id or entry.topic_id in self.tombstones:
            return "id-taken"
        if self._cost + entry.cost() > MAX_COST:
            return "full"
        self._cost += entry.cost()
        self.topics[entry.name] = entry
        self._by_id[entry.topic_id] = entry
        return "done"

    def _change(self, topic_id: bytes, settings: TopicSettings) -> Outcome:
        entry = self._by_id.get(topic_id)
        if entry is None:
            return "unknown-id"
        changed = replace(entry, settings=with_changes(entry.settings, settings))
        self.topics[entry.name] = self._by_id[topic_id] = changed
        return "done"

    def _delete(self, topic_id: bytes, holders: frozenset[str]) -> Outcome:
        entry = self._by_id.pop(topic_id, None)
        if entry is None:
            return "unknown-id"
        del self.topics[entry.name]
        waiting_for = entry.holders() | holders
        tombstone = Tombstone(topic_id, entry.name, len(entry.partitions), waiting_for)
        self.tombstones[topic_id] = tombstone
        self._cost += tombstone.cost() - entry.cost()
        return "done"

    def _confirm(self, topic_id: bytes, agent_id: str) -> Outcome:
        tombstone = self.tombstones.get(topic_id)
        if tombstone is None:
            return "unknown-id"
        waiting_for = tombstone.waiting_for - {agent_id}
        self._cost -= tombstone.cost()
        if waiting_for:
            tombstone = Tombstone(topic_id, tombstone.name, tombstone.partitions, waiting_for)
            self.tombstones[topic_id] = tombstone
            self._cost += tombstone.cost()
        else:
            del self.tombstones[topic_id]
        return "done"

    def _seal(self, successor: bytes) -> Outcome:
        if self.topics:
            return "not-empty"
        if self.sealed_for is None:
            self.sealed_for = successor
        return "done"

    def check_invariants(self) -> None:
        """Asserts; called by tests after every command."""
        assert {entry.topic_id for entry in self.topics.values()} == set(self._by_id)
        assert all(name == entry.name for name, entry in self.topics.items())
        assert not set(self._by_id) & set(self.tombstones), "a topic is both alive and dead"
        assert all(tombstone.waiting_for for tombstone in self.tombstones.values())
        assert self.sealed_for is None or not self.topics
        assert self._cost == self._counted()

    def _counted(self) -> int:
        alive = sum(entry.cost() for entry in self.topics.values())
        return alive + sum(tombstone.cost() for tombstone in self.tombstones.values())

    # ---- snapshots ----------------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """The whole state, for a follower's pull and for the copy on disk."""
        document = {
            "v": COMMAND_VERSION,
            "version": self.offset,
            **({"epoch": self.epoch} if self.epoch else {}),
            "sealed_for": None if self.sealed_for is None else self.sealed_for.hex(),
            "topics": [entry_document(self.topics[name]) for name in sorted(self.topics)],
            "tombstones": [_tombstone_document(self.tombstones[key]) for key in sorted(self.tombstones)],
        }
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Catalog:
        """Raises CatalogError, and nothing else, for anything to_bytes() did not write."""
        document = _load(data, MAX_READ_BYTES)
        catalog = cls(offset=_integer(document, "version"), epoch=_integer({"epoch": 0, **document}, "epoch"))
        sealed_for = document.get("sealed_for")
        catalog.sealed_for = None if sealed_for is None else _id(document, "sealed_for")
        for item in _list(document, "topics"):
            entry = entry_from(item)
            if entry.name in catalog.topics or entry.topic_id in catalog._by_id:
                raise CatalogError(f"topic {entry.name!r} stands twice in the snapshot")
            catalog.topics[entry.name] = entry
            catalog._by_id[entry.topic_id] = entry
        for item in _list(document, "tombstones"):
            tombstone = _tombstone_from(item)
            catalog.tombstones[tombstone.topic_id] = tombstone
        catalog._cost = catalog._counted()
        return catalog


# ---- commands as JSON ----------------------------------------------------------------------------


def encode_command(command: Command) -> bytes:
    """The value of one `_catalog` record."""
    document: dict[str, Any] = {"v": COMMAND_VERSION}
    match command:
        case CreateTopic(entry):
            document |= {"op": "create", "topic": entry_document(entry)}
        case ChangeTopic(topic_id, settings):
            document |= {"op": "change", "id": topic_id.hex(), "settings": settings.to_document()}
        case DeleteTopic(topic_id, holders):
            document |= {"op": "delete", "id": topic_id.hex(), "holders": sorted(holders)}
        case ConfirmDeletion(topic_id, agent_id):
            document |= {"op": "confirm", "id": topic_id.hex(), "agent": agent_id}
        case Seal(successor):
            document |= {"op": "seal", "successor": successor.hex()}
        case BeginEpoch(epoch, base):
            document |= {"op": "epoch", "epoch": epoch, "base": base.hex()}
    return json.dumps(document, separators=(",", ":")).encode()


def decode_command(data: bytes) -> Command:
    """Raises CatalogError, and nothing else."""
    document = _load(data, MAX_COMMAND_BYTES)
    operation = document.get("op")
    match operation:
        case "create":
            return CreateTopic(entry_from(document.get("topic")))
        case "change":
            return ChangeTopic(_id(document, "id"), _settings_from(document.get("settings")))
        case "delete":
            holders = _list(document, "holders") if "holders" in document else []
            return DeleteTopic(_id(document, "id"), frozenset(_agent_id(agent) for agent in holders))
        case "confirm":
            return ConfirmDeletion(_id(document, "id"), _agent_id(document.get("agent")))
        case "seal":
            return Seal(_id(document, "successor"))
        case "epoch":
            return BeginEpoch(_integer(document, "epoch"), _id(document, "base"))
        case _:
            raise CatalogError(f"unknown operation {operation!r}")


def entry_document(entry: TopicEntry) -> dict[str, Any]:
    """A topic as JSON; entry_from() reads it."""
    return {
        "name": entry.name,
        "id": entry.topic_id.hex(),
        "settings": entry.settings.to_document(),
        "created_us": entry.created_us,
        **({"adopted": True} if entry.adopted else {}),
        "partitions": [
            {"range": [birth.hash_range.low, birth.hash_range.high], "voters": list(birth.voters)}
            for birth in entry.partitions
        ],
    }


def entry_from(item: Any) -> TopicEntry:
    """Raises CatalogError, and nothing else."""
    document = _mapping(item)
    settings = _settings_from(document.get("settings"))
    partitions = tuple(_birth_from(birth) for birth in _list(document, "partitions"))
    if len(partitions) != settings.partitions:
        raise CatalogError("the number of births is not the number of partitions")
    name = document.get("name")
    if not isinstance(name, str) or not name:
        raise CatalogError("a topic without a name")
    return TopicEntry(
        name,
        _id(document, "id"),
        settings,
        partitions,
        _integer(document, "created_us"),
        adopted=document.get("adopted") is True,
    )


def _settings_from(item: Any) -> TopicSettings:
    try:
        return settings_from_body(_mapping(item))[0]
    except ShoalError as error:
        raise CatalogError(f"settings: {error.detail}") from None


def _birth_from(item: Any) -> PartitionBirth:
    document = _mapping(item)
    bounds = _list(document, "range")
    if len(bounds) != 2 or not all(type(bound) is int for bound in bounds):
        raise CatalogError("a hash range is two whole numbers")
    low, high = bounds
    if not 0 <= low <= high < 2**32:
        raise CatalogError(f"hash range {low} to {high} is not inside 32 bits")
    voters = tuple(_agent_id(voter) for voter in _list(document, "voters"))
    if not voters or len(set(voters)) != len(voters):
        raise CatalogError("a birth needs voters, each of them once")
    return PartitionBirth(HashRange(low, high), voters)


def _tombstone_document(tombstone: Tombstone) -> dict[str, Any]:
    return {
        "id": tombstone.topic_id.hex(),
        "name": tombstone.name,
        "partitions": tombstone.partitions,
        "waiting_for": sorted(tombstone.waiting_for),
    }


def _tombstone_from(item: Any) -> Tombstone:
    document = _mapping(item)
    waiting_for = frozenset(_agent_id(agent) for agent in _list(document, "waiting_for"))
    name = document.get("name")
    if not isinstance(name, str) or not waiting_for:
        raise CatalogError("a tombstone needs a name and somebody to wait for")
    return Tombstone(_id(document, "id"), name, _integer(document, "partitions"), waiting_for)


def _load(data: bytes, limit: int) -> Mapping[str, Any]:
    if len(data) > limit:
        raise CatalogError(f"{len(data)} bytes, over the limit of {limit}")
    try:
        document = _mapping(json.loads(data))
    except (ValueError, RecursionError) as error:
        raise CatalogError(f"not JSON: {type(error).__name__}") from None
    if document.get("v") != COMMAND_VERSION:
        raise CatalogError(
            f"version {document.get('v')!r}: this agent understands {COMMAND_VERSION}; upgrade it"
        )
    return document


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise CatalogError("an object is needed")
    return value


def _list(document: Mapping[str, Any], name: str) -> list[Any]:
    value = document.get(name)
    if not isinstance(value, list):
        raise CatalogError(f"{name} must be a list")
    return value


def _integer(document: Mapping[str, Any], name: str) -> int:
    value = document.get(name)
    if type(value) is not int or not 0 <= value < MAX_NUMBER:
        raise CatalogError(f"{name} must be a whole number")
    return value


def _id(document: Mapping[str, Any], name: str) -> bytes:
    value = document.get(name)
    if isinstance(value, str) and len(value) == 2 * ID_BYTES:
        try:
            return bytes.fromhex(value)
        except ValueError:
            pass
    raise CatalogError(f"{name} must be {2 * ID_BYTES} hex digits")


def _agent_id(value: Any) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= 64:
        raise CatalogError("an agent id is 1 to 64 characters")
    return value
