"""Consumer groups in the catalog: made, changed and deleted by the agent that leads it; shown by any.

Law of this file: as topic_admin.py: it decides on proposals and turns outcomes into answers. A group whose
messages may become dead letters gets the topic for them before it is made itself.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shoal.agent.groups.settings import (
    GroupSettings,
    changed,
    check_group_name,
    dead_topic,
    settings_from_body,
)
from shoal.agent.interface import Group, Topic
from shoal.agent.receive import GroupKey
from shoal.agent.service.topic_admin import ALTER_ATTEMPTS_MAX, TopicService
from shoal.agent.topics.catalog import CreateTopic, TopicEntry
from shoal.agent.topics.catalog_service import CatalogService
from shoal.agent.topics.groups_catalog import (
    MAC_BYTES,
    MAX_GROUPS,
    ChangeGroup,
    CreateGroup,
    DeleteGroup,
    GroupEntry,
)
from shoal.agent.topics.settings import TopicSettings, check_topic_name
from shoal.errors import ShoalError


class GroupAdmin(TopicService):
    """Part of the broker."""

    # ---- as this agent's catalog knows them ------------------------------------------------------

    def group(self, topic: Topic, name: str) -> Group:
        """ShoalError unknown-group, illegal-name."""
        return group_of(self._group_entry(topic, name))

    def groups(self, topic: Topic) -> list[Group]:
        """By name."""
        entry = self._parts().topics.by_id(topic.id)
        return [] if entry is None else [group_of(group) for group in entry.groups]

    async def known_group(self, topic: Topic, name: str, timeout_ms: int) -> Group:
        """The same as `group`, once the catalog here has it: it may be news on its way."""
        local = self._parts().catalog.local

        def is_known() -> bool:
            entry = local.catalog.by_id(topic.id)
            return entry is not None and entry.group(name) is not None

        await local.wait_until(is_known, timeout_ms)
        return self.group(topic, name)

    def group_settings(self, topic: Topic, group: Group) -> dict[str, Any]:
        """Of the document of a group the part that the catalog knows."""
        return settings_document(topic.name, self._group_entry(topic, group.name))

    def _group_entry(self, topic: Topic, name: str) -> GroupEntry:
        entry = self._parts().topics.by_id(topic.id)
        if entry is None:
            raise ShoalError("unknown-topic", f"topic {topic.name} was deleted")
        found = entry.group(name)
        if found is None:
            check_group_name(topic.name, name)
        return found or _found(entry, name)

    # ---- at the catalog's leader -----------------------------------------------------------------

    async def create_group(
        self, topic: str, name: str, body: Mapping[str, Any] | None, timeout_ms: int
    ) -> tuple[bool, dict[str, Any]]:
        """PUT: True when this call made it. One that exists has to have the settings that the body names.

        ShoalError illegal-name, bad-request, group-differs, no-groups-here, too-many-groups, level-too-low,
        topic-differs (of the dead letters), catalog-full, unknown-topic, not-leader, no-leader, timeout.
        """
        end_ms = self._clock.now_ms() + timeout_ms
        settings = settings_from_body(body)
        service, entry = await self._topic_for_groups(topic, name, timeout_ms)
        existing = entry.group(name)
        if existing is None:
            made = GroupEntry(name, GroupKey(os.urandom(16)), os.urandom(MAC_BYTES), settings)
            command = CreateGroup(entry.topic_id, made)
            await self._let_level_rise(service, command, "a consumer group")
            self._check_count(entry)
            self._parts().host.free_space.require()
            await self._ensure_dead_topic(service, entry, name, settings, end_ms)
            applied = await service.propose(command, self._left_ms(end_ms))
            if applied.outcome == "done":
                await service.exchange.tell_peers()
                return True, settings_document(topic, made)
            entry = self._entry_after(applied.entry, topic)
            existing = entry.group(name)
            if existing is None:
                self._check_count(entry)
                raise ShoalError("catalog-full", "the catalog has no room for another consumer group")
        same = equal_or_differs(topic, existing, body)
        await self._ensure_dead_topic(service, entry, name, existing.settings, end_ms)  # it may be deleted
        return False, same

    async def change_group(
        self,
        topic: str,
        name: str,
        body: Mapping[str, Any] | None,
        timeout_ms: int,
        if_version: str | None = None,
    ) -> dict[str, Any]:
        """PATCH: as change_topic. ShoalError bad-request, settings-changed, unknown-group, unknown-topic,
        and as create_group."""
        end_ms = self._clock.now_ms() + timeout_ms
        service, entry = await self._topic_for_groups(topic, name, timeout_ms)
        for _ in range(ALTER_ATTEMPTS_MAX):
            found = _found(entry, name)
            settings = changed(found.settings, body)
            if settings == found.settings:
                return settings_document(topic, found)
            if if_version not in (None, found.settings.version()):
                break
            await self._ensure_dead_topic(service, entry, name, settings, end_ms)
            command = ChangeGroup(entry.topic_id, found.key, found.settings, settings)
            applied = await service.propose(command, self._left_ms(end_ms))
            entry = self._entry_after(applied.entry, topic)
            if applied.outcome == "done":
                await service.exchange.tell_peers()
                return settings_document(topic, replace(found, settings=settings))
        version = _found(entry, name).settings.version()
        raise ShoalError(
            "settings-changed",
            f"somebody else has changed the settings of group {name} of {topic} since you read them: nothing"
            f" was changed; read them again, they are of version {version} now",
            settings_version=version,
        )

    async def delete_group(self, topic: str, name: str, timeout_ms: int) -> None:
        """DELETE: durable once this returns; each partition's leader ends it as soon as it hears of it. The
        topic of its dead letters stays. ShoalError unknown-group, unknown-topic, and as create_group."""
        service, entry = await self._topic_for_groups(topic, name, timeout_ms)
        command = DeleteGroup(entry.topic_id, _found(entry, name).key)
        applied = await service.propose(command, timeout_ms)
        if applied.outcome != "done":
            raise ShoalError("unknown-group", f"group {name} was deleted meanwhile by somebody else")
        await service.exchange.tell_peers()

    async def _topic_for_groups(
        self, topic: str, name: str, timeout_ms: int
    ) -> tuple[CatalogService, TopicEntry]:
        if topic.startswith("_"):
            raise ShoalError("no-groups-here", f"{topic[:64]} is the system's: it has no consumer groups")
        check_topic_name(topic)
        check_group_name(topic, name)
        service, entry = await self._existing(topic, timeout_ms)
        if entry.letters_of is not None:
            raise ShoalError(
                "no-groups-here", f"{topic} holds dead letters: read them, or redrive them from their group"
            )
        return service, entry

    def _check_count(self, entry: TopicEntry) -> None:
        if len(entry.groups) >= MAX_GROUPS:
            raise ShoalError(
                "too-many-groups", f"topic {entry.name} has {MAX_GROUPS} consumer groups: delete one first"
            )

    async def _ensure_dead_topic(
        self, service: CatalogService, entry: TopicEntry, name: str, settings: GroupSettings, end_ms: int
    ) -> None:
        """The topic that the group's dead letters go to, partition by partition."""
        if settings.dead != "letter":
            return
        letters = dead_topic(entry.name, name)
        known = service.catalog.topics.get(letters)
        if known is None:
            its = TopicSettings(
                partitions=entry.settings.partitions,
                replication_factor=entry.settings.replication_factor,
                fsync=entry.settings.fsync,
            )
            made = await self._new_entry(letters, None, its, explicit_factor=False)
            command = CreateTopic(replace(made, letters_of=entry.topic_id))
            applied = await service.propose(command, self._left_ms(end_ms))
            known = applied.entry
            if applied.outcome == "full":
                raise ShoalError("catalog-full", "the catalog has no room for the topic of dead letters")
        if known is None or known.letters_of != entry.topic_id:
            raise ShoalError(
                "topic-differs",
                f"dead letters of group {name} would go to topic {letters}, which exists and is another one:"
                ' delete it, choose another group name, or say "dead": "stop" or "drop"',
            )

    def _entry_after(self, entry: TopicEntry | None, topic: str) -> TopicEntry:
        if entry is None:
            raise ShoalError("unknown-topic", f"topic {topic} was deleted meanwhile by somebody else")
        return entry

    def _left_ms(self, end_ms: int) -> int:
        return max(1, end_ms - self._clock.now_ms())


def settings_document(topic: str, group: GroupEntry) -> dict[str, Any]:
    """The part of a group's document that stands in the catalog; its secret does not leave that."""
    return {
        "name": group.name,
        "topic": topic,
        "id": group.key.hex(),
        "settings_version": group.settings.version(),
        **group.settings.to_document(),
    }


def group_of(entry: GroupEntry) -> Group:
    """As front doors know it."""
    its = entry.settings
    return Group(entry.name, entry.key, entry.mac, its.mode, its.visibility_ms, its.paused)


def equal_or_differs(topic: str, group: GroupEntry, body: Mapping[str, Any] | None) -> dict[str, Any]:
    """Fields that the body does not name are as they are. ShoalError group-differs."""
    present = group.settings.to_document()
    asked = {**present, **(body or {})}
    if isinstance(asked["retry"], Mapping):
        asked["retry"] = {**present["retry"], **asked["retry"]}
    wanted = settings_from_body(asked)
    if wanted != group.settings:
        shown = wanted.to_document()
        differences = [
            f"{field} is {value!r}, asked was {shown[field]!r}"
            for field, value in present.items()
            if shown[field] != value
        ]
        raise ShoalError(
            "group-differs", f"group {group.name} of {topic} exists, and {'; '.join(differences)}"
        )
    return settings_document(topic, group)


def _found(entry: TopicEntry, name: str) -> GroupEntry:
    found = entry.group(name)
    if found is None:
        raise ShoalError("unknown-group", f"topic {entry.name} has no consumer group {name!r}")
    return found
