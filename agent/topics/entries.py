"""Entries of the catalog, as values and as JSON: topics with their births, and tombstones of deleted topics.

Law of this file: pure. A birth names the first voters of a partition's group. A group whose birth is `unborn`
serves nobody, and may get another birth. Once the catalog knows that a birth was led, that birth is final,
and replicas of earlier ones are void. Entries without the field are born.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shoal.agent.durable.catalog_version import MAX_NUMBER
from shoal.agent.durable.ids import ID_BYTES
from shoal.agent.groups.settings import GROUP_NAME, GroupSettings
from shoal.agent.groups.settings import settings_from_body as group_settings_from_body
from shoal.agent.levels import SUPPORTED, Level, LevelRange, level_in, refusal
from shoal.agent.receive import GroupKey
from shoal.agent.topics.groups_catalog import MAC_BYTES, GroupEntry
from shoal.agent.topics.settings import TopicSettings, settings_from_body
from shoal.errors import ShoalError
from shoal.format.hash_ranges import HashRange
from shoal.replication.interfaces import BIRTH_ORDINALS, MAX_GENERATION

HEX_DIGITS = frozenset("0123456789abcdef")
_TOPIC_COST = 1_024  # beside its name: settings, id, time and unborn partitions, with room for new settings
_PARTITION_COST = 64
_NAME_COST = 3  # quotes and a comma


class CatalogError(ValueError):
    """Bytes that are no catalog command or snapshot that this code understands."""


class HigherLevel(CatalogError):
    """A command or snapshot of a level above those that this agent understands."""

    def __init__(self, level: Level, understood: LevelRange = SUPPORTED) -> None:
        super().__init__(refusal(understood, level))


@dataclass(frozen=True, slots=True)
class PartitionBirth:
    """Hash range and birth voters (agent ids; the first is the preferred leader). generation: how many births
    of the partition were given up before this one."""

    hash_range: HashRange
    voters: tuple[str, ...]
    generation: int = 0


@dataclass(frozen=True, slots=True)
class TopicEntry:
    """One topic as the catalog holds it. Times are unix microseconds. adopted: it came back into a catalog
    that did not know it; a birth voter that lacks its replica has forgotten its vote, and gets no new one
    (safety 2). unborn: mask of the partitions whose present birth nobody is known to have led. groups: by
    name. letters_of: the topic whose dead letters it holds; such a topic has no groups."""

    name: str
    topic_id: bytes
    settings: TopicSettings
    partitions: tuple[PartitionBirth, ...]
    created_us: int
    adopted: bool = False
    unborn: int = 0
    groups: tuple[GroupEntry, ...] = ()
    letters_of: bytes | None = None

    def group(self, name: str) -> GroupEntry | None:
        """The consumer group of that name."""
        return next((group for group in self.groups if group.name == name), None)

    def is_born(self, partition: int, generation: int) -> bool:
        """Whether that birth of the partition is final."""
        birth = self.partitions[partition]
        return birth.generation == generation and not self.unborn >> partition & 1

    def holders(self) -> frozenset[str]:
        """The agents that were born with a replica, by the present births."""
        return frozenset(agent for partition in self.partitions for agent in partition.voters)

    def cost(self) -> int:
        """Its part of MAX_COST, at least its bytes in a state. It never changes: agents of all versions must
        refuse the same topics."""
        voters = sum(len(voter) + _NAME_COST for birth in self.partitions for voter in birth.voters)
        groups = sum(group.cost() for group in self.groups)
        return _TOPIC_COST + len(self.name) + _PARTITION_COST * len(self.partitions) + voters + groups


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A deleted topic whose data some holders may still have on their disks."""

    topic_id: bytes
    name: str
    partitions: int
    waiting_for: frozenset[str]

    def cost(self) -> int:
        return _TOPIC_COST + len(self.name) + sum(len(agent) + _NAME_COST for agent in self.waiting_for)


# ---- sets of partitions --------------------------------------------------------------------------


def mask_of(partitions: Iterable[int]) -> int:
    """A set of partitions as one number: bit p is partition p."""
    mask = 0
    for partition in partitions:
        mask |= 1 << partition
    return mask


def partitions_in(mask: int) -> Iterator[int]:
    """Ascending."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def mask_to_text(mask: int) -> str:
    return f"{mask:x}"


def mask_from_text(text: Any, partitions: int) -> int:
    """A set of partitions below that number. Raises CatalogError."""
    if isinstance(text, str) and 0 < len(text) <= partitions // 4 + 1 and not set(text) - HEX_DIGITS:
        mask = int(text, 16)
        if mask >> partitions == 0:
            return mask
    raise CatalogError(f"not a set of partitions below {partitions}")


# ---- as JSON -------------------------------------------------------------------------------------


def entry_document(entry: TopicEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "id": entry.topic_id.hex(),
        "settings": entry.settings.to_catalog(),
        "created_us": entry.created_us,
        **({"adopted": True} if entry.adopted else {}),
        **({"unborn": mask_to_text(entry.unborn)} if entry.unborn else {}),
        **({"groups": [group_document(group) for group in entry.groups]} if entry.groups else {}),
        **({} if entry.letters_of is None else {"letters_of": entry.letters_of.hex()}),
        "partitions": [
            {
                "range": [birth.hash_range.low, birth.hash_range.high],
                "voters": list(birth.voters),
                **({"birth": birth.generation} if birth.generation else {}),
            }
            for birth in entry.partitions
        ],
    }


def entry_from(item: Any) -> TopicEntry:
    """Raises CatalogError, and nothing else."""
    document = mapping_in(item)
    settings = settings_in(document.get("settings"))
    partitions = tuple(_birth_from(birth) for birth in list_in(document, "partitions"))
    groups = tuple(group_from(item) for item in list_in({"groups": [], **document}, "groups"))
    if [group.name for group in groups] != sorted({group.name for group in groups}):
        raise CatalogError("consumer groups stand by name, each of them once")
    if len(partitions) != settings.partitions:
        raise CatalogError("the number of births is not the number of partitions")
    name = document.get("name")
    if not isinstance(name, str) or not name:
        raise CatalogError("a topic without a name")
    adopted = document.get("adopted") is True  # what is there of it is kept: nothing of it is unborn
    return TopicEntry(
        name,
        id_in(document, "id"),
        settings,
        partitions,
        integer_in(document, "created_us"),
        adopted=adopted,
        unborn=0 if adopted else mask_from_text(document.get("unborn", "0"), len(partitions)),
        groups=groups,
        letters_of=id_in(document, "letters_of") if "letters_of" in document else None,
    )


def group_document(group: GroupEntry) -> dict[str, Any]:
    """As it stands in a state, and in the command that makes it."""
    return {
        "name": group.name,
        "key": group.key.hex(),
        "mac": group.mac.hex(),
        "made": list(group.made),
        "settings": group.settings.to_document(),
    }


def group_from(item: Any) -> GroupEntry:
    """Raises CatalogError, and nothing else."""
    document = mapping_in(item)
    name, mac, made = document.get("name"), document.get("mac"), list_in(document, "made")
    if not isinstance(name, str) or GROUP_NAME.fullmatch(name) is None:
        raise CatalogError("a consumer group without a legal name")
    if not isinstance(mac, str) or len(mac) != 2 * MAC_BYTES or set(mac) - HEX_DIGITS:
        raise CatalogError(f"the secret of a consumer group has {2 * MAC_BYTES} hex digits")
    if len(made) != 2 or not all(type(number) is int and 0 <= number < MAX_NUMBER for number in made):
        raise CatalogError("a consumer group was made at an epoch and an offset")
    settings = group_settings_in(document.get("settings"))
    return GroupEntry(name, group_key_in(document), bytes.fromhex(mac), settings, (made[0], made[1]))


def group_settings_in(item: Any) -> GroupSettings:
    """Raises CatalogError, and nothing else."""
    try:
        return group_settings_from_body(mapping_in(item))
    except ShoalError as error:
        raise CatalogError(f"settings of a consumer group: {error.detail}") from None


def group_key_in(document: Mapping[str, Any]) -> GroupKey:
    """Raises CatalogError, and nothing else."""
    return GroupKey(id_in(document, "key"))


def settings_in(item: Any) -> TopicSettings:
    try:
        return settings_from_body(mapping_in(item))[0]
    except ShoalError as error:
        raise CatalogError(f"settings: {error.detail}") from None


def _birth_from(item: Any) -> PartitionBirth:
    document = mapping_in(item)
    bounds = list_in(document, "range")
    if len(bounds) != 2 or not all(type(bound) is int for bound in bounds):
        raise CatalogError("a hash range is two whole numbers")
    low, high = bounds
    if not 0 <= low <= high < 2**32:
        raise CatalogError(f"hash range {low} to {high} is not inside 32 bits")
    generation = generation_in(document, "birth") if "birth" in document else 0
    return PartitionBirth(HashRange(low, high), voters_in(document), generation)


def voters_in(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Agent ids. Raises CatalogError, as all of these do."""
    voters = tuple(agent_id_in(voter) for voter in list_in(document, "voters"))
    if not 1 <= len(voters) <= BIRTH_ORDINALS or len(set(voters)) != len(voters):
        raise CatalogError(f"a birth needs 1 to {BIRTH_ORDINALS} voters, each of them once")
    return voters


def generation_in(document: Mapping[str, Any], name: str) -> int:
    generation = integer_in(document, name)
    if generation > MAX_GENERATION:
        raise CatalogError(f"{name} is no number of a birth: at most {MAX_GENERATION}")
    return generation


def tombstone_document(tombstone: Tombstone) -> dict[str, Any]:
    return {
        "id": tombstone.topic_id.hex(),
        "name": tombstone.name,
        "partitions": tombstone.partitions,
        "waiting_for": sorted(tombstone.waiting_for),
    }


def tombstone_from(item: Any) -> Tombstone:
    """Raises CatalogError, and nothing else."""
    document = mapping_in(item)
    waiting_for = frozenset(agent_id_in(agent) for agent in list_in(document, "waiting_for"))
    name = document.get("name")
    if not isinstance(name, str) or not waiting_for:
        raise CatalogError("a tombstone needs a name and somebody to wait for")
    return Tombstone(id_in(document, "id"), name, integer_in(document, "partitions"), waiting_for)


def load_json(data: bytes, limit: int) -> Any:
    """Of at most that many bytes."""
    if len(data) > limit:
        raise CatalogError(f"{len(data)} bytes, over the limit of {limit}")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CatalogError(f"not JSON: {type(error).__name__}") from None


def load_document(data: bytes, limit: int) -> tuple[Level, Mapping[str, Any]]:
    """A JSON object and its level, which stands under `v`. Raises HigherLevel, CatalogError."""
    document = mapping_in(load_json(data, limit))
    level = level_in(document.get("v"))
    if level is None:
        raise CatalogError(f"{document.get('v')!r} is no level")
    if level > SUPPORTED.highest:
        raise HigherLevel(level)
    return level, document


def mapping_in(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise CatalogError("an object is needed")
    return value


def list_in(document: Mapping[str, Any], name: str) -> list[Any]:
    value = document.get(name)
    if not isinstance(value, list):
        raise CatalogError(f"{name} must be a list")
    return value


def integer_in(document: Mapping[str, Any], name: str) -> int:
    """A whole number below MAX_NUMBER."""
    value = document.get(name)
    if type(value) is not int or not 0 <= value < MAX_NUMBER:
        raise CatalogError(f"{name} must be a whole number")
    return value


def id_in(document: Mapping[str, Any], name: str) -> bytes:
    """An id, in hexadecimal digits."""
    value = document.get(name)
    if isinstance(value, str) and len(value) == 2 * ID_BYTES:
        try:
            return bytes.fromhex(value)
        except ValueError:
            pass
    raise CatalogError(f"{name} must be {2 * ID_BYTES} hex digits")


def agent_id_in(value: Any) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= 64:
        raise CatalogError("an agent id is 1 to 64 characters")
    return value
