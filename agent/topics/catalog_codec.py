"""Commands of the catalog as JSON, the values of `_catalog` records.

Law of this file: pure. A command says under `v` which level an agent needs to understand it (levels.py).
"""

from __future__ import annotations

import json
from typing import Any

from shoal.agent.interface import MAX_PARTITIONS
from shoal.agent.levels import AdditionKind, Level, level_in, level_of
from shoal.agent.security.documents import OPERATIONS as SECURITY_OPERATIONS
from shoal.agent.security.documents import command_document, command_from
from shoal.agent.security.principals import SecurityCommand
from shoal.agent.topics.catalog import (
    AlterTopic,
    BeginEpoch,
    Births,
    ChangeTopic,
    Command,
    ConfirmBirths,
    ConfirmDeletion,
    CreateTopic,
    DeleteTopic,
    RaiseLevel,
    Rebirth,
    RepeatBirths,
    Seal,
)
from shoal.agent.topics.entries import (
    CatalogError,
    agent_id_in,
    entry_document,
    entry_from,
    generation_in,
    group_document,
    group_from,
    group_key_in,
    group_settings_in,
    id_in,
    integer_in,
    list_in,
    load_document,
    mapping_in,
    mask_from_text,
    mask_to_text,
    settings_in,
    voters_in,
)
from shoal.agent.topics.groups_catalog import ChangeGroup, CreateGroup, DeleteGroup
from shoal.agent.topics.settings import TopicSettings

MAX_COMMAND_BYTES = 1 << 20  # 1,024 partitions with seven voters of 32 hex digits each, and room


OPERATIONS: dict[type[Command], str] = {
    CreateTopic: "create",
    ChangeTopic: "change",
    AlterTopic: "alter",
    DeleteTopic: "delete",
    ConfirmDeletion: "confirm",
    Seal: "seal",
    BeginEpoch: "epoch",
    ConfirmBirths: "born",
    RepeatBirths: "rebirth",
    RaiseLevel: "level",
    CreateGroup: "group-create",
    ChangeGroup: "group-change",
    DeleteGroup: "group-delete",
    **SECURITY_OPERATIONS,
}
"""The names under `op`, which are those of levels.py."""


def level_of_command(command: Command) -> Level:
    """The least level that an agent must understand to fold the command in."""
    level = level_of(AdditionKind.CATALOG_COMMAND, OPERATIONS[type(command)])
    match command:
        case RaiseLevel(raised):
            return max(level, raised)
        case CreateTopic(entry):
            with_groups = entry.groups or entry.letters_of is not None
            needed = level_of(AdditionKind.CATALOG_COMMAND, OPERATIONS[CreateGroup]) if with_groups else level
            return max(level, needed, level_of_settings(entry.settings))
        case ChangeTopic(_, settings):
            return max(level, level_of_settings(settings))
        case AlterTopic(_, before, settings):
            return max(level, level_of_settings(before), level_of_settings(settings))
    return level


def level_of_settings(settings: TopicSettings) -> Level:
    """Of the newest one that is written. Agents of lower levels refuse settings that they do not know."""
    names = (*settings.to_catalog(), *settings.later_settings())
    return max(level_of(AdditionKind.TOPIC_SETTING, name) for name in names)


def encode_command(command: Command) -> bytes:
    """The value of one `_catalog` record."""
    document: dict[str, Any] = {"v": level_of_command(command), "op": OPERATIONS[type(command)]}
    match command:
        case CreateTopic(entry):
            document |= {"topic": entry_document(entry)}
        case ChangeTopic(topic_id, settings):
            document |= {"id": topic_id.hex(), "settings": settings.to_catalog()}
        case AlterTopic(topic_id, before, settings):
            both = {"before": before.to_catalog(), "settings": settings.to_catalog()}
            document |= {"id": topic_id.hex(), **both}
        case DeleteTopic(topic_id, holders):
            document |= {"id": topic_id.hex(), "holders": sorted(holders)}
        case ConfirmDeletion(topic_id, agent_id):
            document |= {"id": topic_id.hex(), "agent": agent_id}
        case Seal(successor):
            document |= {"successor": successor.hex()}
        case BeginEpoch(epoch, base):
            document |= {"epoch": epoch, "base": base.hex()}
        case ConfirmBirths(births):
            masks = [
                {"id": topic_id.hex(), "birth": generation, "partitions": mask_to_text(partitions)}
                for topic_id, generation, partitions in births
            ]
            document |= {"births": masks}
        case RepeatBirths(topic_id, rebirths):
            again = [
                {"partition": partition, "birth": generation, "voters": list(voters)}
                for partition, generation, voters in rebirths
            ]
            document |= {"id": topic_id.hex(), "births": again}
        case RaiseLevel(level):
            document |= {"level": level}
        case CreateGroup(topic_id, group):
            document |= {"id": topic_id.hex(), "group": group_document(group)}
        case ChangeGroup(topic_id, key, before_change, changed):
            settings_of_both = {"before": before_change.to_document(), "settings": changed.to_document()}
            document |= {"id": topic_id.hex(), "key": key.hex(), **settings_of_both}
        case DeleteGroup(topic_id, key):
            document |= {"id": topic_id.hex(), "key": key.hex()}
    if isinstance(command, SecurityCommand):
        document |= command_document(command)
    return json.dumps(document, separators=(",", ":")).encode()


def decode_command(data: bytes) -> Command:
    """Raises CatalogError, and nothing else."""
    _, document = load_document(data, MAX_COMMAND_BYTES)
    operation = document.get("op")
    match operation:
        case "create":
            return CreateTopic(entry_from(document.get("topic")))
        case "change":
            return ChangeTopic(id_in(document, "id"), settings_in(document.get("settings")))
        case "alter":
            before, settings = settings_in(document.get("before")), settings_in(document.get("settings"))
            return AlterTopic(id_in(document, "id"), before, settings)
        case "delete":
            holders = list_in(document, "holders") if "holders" in document else []
            return DeleteTopic(id_in(document, "id"), frozenset(agent_id_in(agent) for agent in holders))
        case "confirm":
            return ConfirmDeletion(id_in(document, "id"), agent_id_in(document.get("agent")))
        case "seal":
            return Seal(id_in(document, "successor"))
        case "epoch":
            return BeginEpoch(integer_in(document, "epoch"), id_in(document, "base"))
        case "born":
            return ConfirmBirths(tuple(_births_from(item) for item in list_in(document, "births")))
        case "rebirth":
            rebirths = tuple(_rebirth_from(item) for item in list_in(document, "births"))
            return RepeatBirths(id_in(document, "id"), rebirths)
        case "level":
            level = level_in(document.get("level"))
            if level is None or level != document["v"]:
                raise CatalogError(f"a level raised to {document.get('level')!r}")
            return RaiseLevel(level)
        case "group-create":
            return CreateGroup(id_in(document, "id"), group_from(document.get("group")))
        case "group-change":
            former, changed = (group_settings_in(document.get(name)) for name in ("before", "settings"))
            return ChangeGroup(id_in(document, "id"), group_key_in(document), former, changed)
        case "group-delete":
            return DeleteGroup(id_in(document, "id"), group_key_in(document))
        case str() if operation in SECURITY_OPERATIONS.values():
            try:
                return command_from(operation, document)
            except ValueError as error:
                raise CatalogError(f"{operation}: {error}") from None
        case _:
            raise CatalogError(f"unknown operation {operation!r}")


def _births_from(item: Any) -> Births:
    document = mapping_in(item)
    mask = mask_from_text(document.get("partitions"), MAX_PARTITIONS)
    return Births(id_in(document, "id"), generation_in(document, "birth"), mask)


def _rebirth_from(item: Any) -> Rebirth:
    document = mapping_in(item)
    partition = integer_in(document, "partition")
    if partition >= MAX_PARTITIONS:
        raise CatalogError(f"partition {partition} of at most {MAX_PARTITIONS}")
    return Rebirth(partition, generation_in(document, "birth"), voters_in(document))
