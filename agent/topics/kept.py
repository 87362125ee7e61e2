"""Replicas of topics that the catalog does not know: kept on their disks, shown, and taken back when asked.

Law of this file: pure. A catalog that was recovered by force may lack topics whose records agents hold, and
absence is never a deletion (safety 4). An agent remembers the entry that its catalog had before one of
another lineage replaced it. To adopt a topic gives it its old id, hash ranges and settings again, so that the
replicas serve as before.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from shoal.agent.durable.catalog_version import CatalogVersion, version_from_text
from shoal.agent.durable.ids import ID_BYTES, GroupId
from shoal.agent.topics.catalog import Catalog, CatalogError, TopicEntry, entry_document, entry_from
from shoal.agent.topics.entries import load_json

MAX_LISTED = 1_000  # topics of one agent's answer; more are listed once these are adopted
MAX_ANSWER_BYTES = 8 << 20


class FormerTopic(NamedTuple):
    """A topic as a version of an earlier catalog had it."""

    version: CatalogVersion
    entry: TopicEntry


@dataclass(frozen=True, slots=True)
class Kept:
    """A topic of which an agent holds partitions, though its catalog does not know it. name, count (of
    partitions): None where no catalog of the agent ever knew it. partitions: those held, ascending."""

    topic_id: bytes
    name: str | None
    count: int | None
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KeptTopic:
    """The same over all agents that answered; holders: agent ids by partition."""

    topic_id: bytes
    name: str | None
    count: int | None
    holders: Mapping[int, tuple[str, ...]]

    def document(self, names: Mapping[str, str]) -> dict[str, Any]:
        """As GET /v1/kept-topics shows it. names: of agents, by id."""
        return {
            "id": self.topic_id.hex(),
            "name": self.name,
            "partitions": self.count,
            "adoptable": self.count is not None,
            "held": [
                {
                    "partition": partition,
                    "agents": [{"id": item, "name": names.get(item, item)} for item in holders],
                }
                for partition, holders in sorted(self.holders.items())
            ],
        }


def remember(
    known: Mapping[bytes, FormerTopic], old: Catalog, new: Catalog, held: Iterable[GroupId]
) -> dict[bytes, FormerTopic]:
    """The newest entry of each topic held here that `new`, which replaces `old`, does not know. A tombstone
    is a deletion in any lineage."""
    entries = dict(known)
    if new.epoch != old.epoch:
        for group in held:
            entry = old.by_id(group.topic_id)
            if entry is not None:
                entries[group.topic_id] = FormerTopic(old.version, entry)
    ids = {group.topic_id for group in held}
    return {
        topic_id: item
        for topic_id, item in entries.items()
        if topic_id in ids and new.by_id(topic_id) is None and topic_id not in new.tombstones
    }


def gathered(answers: Mapping[str, Sequence[Kept]]) -> list[KeptTopic]:
    """The kept replicas of all agents, by topic; in a stable order. answers: by agent id."""
    found: dict[bytes, KeptTopic] = {}
    for agent_id, kept in sorted(answers.items()):
        for item in kept:
            known = found.get(item.topic_id, KeptTopic(item.topic_id, None, None, {}))
            holders = dict(known.holders)
            for partition in item.partitions:
                holders[partition] = (*holders.get(partition, ()), agent_id)
            name, count = known.name or item.name, known.count or item.count
            found[item.topic_id] = KeptTopic(item.topic_id, name, count, holders)
    return sorted(found.values(), key=lambda topic: (topic.name or "~", topic.topic_id))


# ---- as JSON -------------------------------------------------------------------------------------


def remembered_document(remembered: Mapping[bytes, FormerTopic]) -> list[dict[str, Any]]:
    return [
        {"version": str(item.version), "topic": entry_document(item.entry)}
        for _, item in sorted(remembered.items())
    ]


def remembered_from(document: Any) -> dict[bytes, FormerTopic]:
    """Raises CatalogError, and nothing else."""
    if not isinstance(document, list) or not all(isinstance(item, dict) for item in document):
        raise CatalogError("what is kept is a list of objects")
    found = [
        FormerTopic(version_from_text(str(item.get("version"))), entry_from(item.get("topic")))
        for item in document
    ]
    return {item.entry.topic_id: item for item in found}


def encode_kept(kept: Sequence[Kept]) -> bytes:
    """An answer to a peer that lists."""
    return json.dumps(
        [[item.topic_id.hex(), item.name, item.count, list(item.partitions)] for item in kept[:MAX_LISTED]],
        separators=(",", ":"),
    ).encode()


def decode_kept(data: bytes) -> list[Kept]:
    """Raises CatalogError, and nothing else."""
    items = load_json(data, MAX_ANSWER_BYTES)
    if not isinstance(items, list):
        raise CatalogError("what a peer keeps is a list")
    return [_kept_from(item) for item in items[:MAX_LISTED]]


def encode_remembered(remembered: FormerTopic) -> bytes:
    """An answer to a peer that adopts."""
    return json.dumps(remembered_document({b"": remembered}), separators=(",", ":")).encode()


def decode_remembered(data: bytes) -> FormerTopic | None:
    """None: the peer knows nothing of it. Raises CatalogError, and nothing else."""
    return next(iter(remembered_from(load_json(data, MAX_ANSWER_BYTES)).values()), None) if data else None


def _kept_from(item: Any) -> Kept:
    try:
        topic_id, name, count, partitions = item
        kept = Kept(bytes.fromhex(topic_id), name, count, tuple(partitions))
    except (ValueError, TypeError) as error:
        raise CatalogError(f"not what a peer keeps: {error}") from None
    whole = all(type(number) is int and 0 <= number < 2**32 for number in kept.partitions)
    named = name is None or (isinstance(name, str) and len(name) <= 512)
    counted = count is None or (type(count) is int and count > 0)
    if len(kept.topic_id) != ID_BYTES or not (whole and named and counted):
        raise CatalogError("not what a peer keeps: its fields cannot be")
    return kept
