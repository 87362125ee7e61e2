"""Topics: shown by any agent; created, changed, deleted and adopted by the one that leads the catalog.

Law of this file: it decides on proposals (the agent asked, enough members, the agents of new replicas) and
turns outcomes into answers. Only committed commands of the catalog count.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from shoal.agent.durable.ids import GroupId
from shoal.agent.interface import MAX_REPLICATION_FACTOR
from shoal.agent.levels import outlook, too_low
from shoal.agent.members.roster import candidate_of
from shoal.agent.security.audit import AUDIT_RETENTION_MS, AUDIT_TOPIC
from shoal.agent.service import documents
from shoal.agent.service.cluster_view import ClusterView, not_leader
from shoal.agent.topics.catalog import (
    AlterTopic,
    ChangeTopic,
    Command,
    CreateTopic,
    DeleteTopic,
    PartitionBirth,
    TopicEntry,
)
from shoal.agent.topics.catalog_codec import level_of_command
from shoal.agent.topics.catalog_service import Applied, CatalogService
from shoal.agent.topics.entries import mask_of
from shoal.agent.topics.settings import (
    TopicSettings,
    changed_settings,
    check_sizes,
    check_topic_name,
    settings_from_body,
    settings_version,
    with_changes,
)
from shoal.errors import ShoalError
from shoal.format.hash_ranges import hash_ranges
from shoal.replication.placement.assignment import birth_voters

LINKS_LOOK_MS = 100  # nobody is told of a link that comes up
NEWCOMERS_WAIT_MS = 1_500  # gossip tells of a joined cluster within a few hundred milliseconds
ALTER_ATTEMPTS_MAX = 16
"""Changes of one topic at the same time, each of which makes the others begin again."""
RISE_WAIT_MS = 1_500  # a cluster that was just founded takes its level within half a second
_KEY_BYTES = 8
LEADERS_WAIT_MS = 1_000  # a newborn group elects its preferred leader within a few round trips


class TopicService(ClusterView):
    """Whether the agent may change a topic is decided by who leads the catalog when it is asked."""

    async def topics(self) -> list[dict[str, Any]]:
        """GET /v1/topics; counts are as fresh as the last acknowledged append."""
        await self._parts().routes.freshen_everywhere()
        view = self._view()
        return [documents.topic_summary(view, entry) for _, entry in sorted(self._catalog.topics.items())]

    async def topic_document(self, name: str) -> dict[str, Any]:
        """GET /v1/topics/{topic}; counts are as fresh as the last acknowledged append."""
        self.topic(name)
        await self._parts().routes.freshen_everywhere()
        self.topic(name)  # it may have been deleted meanwhile
        return self._document(self._catalog.topics[name])

    def topic_settings(self, name: str) -> dict[str, Any]:
        """GET /v1/topics/{topic}/settings. ShoalError unknown-topic, illegal-name, not-ready."""
        self.topic(name)
        return documents.settings_document(self._catalog.topics[name])

    def _document(self, entry: TopicEntry) -> dict[str, Any]:
        self._cluster.freshen()
        return documents.topic_document(self._view(), entry)

    async def create_topic(
        self, name: str, body: Mapping[str, Any] | None, timeout_ms: int, key: str | None = None
    ) -> tuple[bool, dict[str, Any]]:
        """PUT /v1/topics/{topic}: True when this call made it, or an earlier one of the same `key`.
        Linearizable: only the catalog's leader answers.

        ShoalError illegal-name, bad-request, topic-differs, not-enough-members, catalog-full,
        not-leader (with leader_url), no-leader, timeout.
        """
        self._parts()
        check_topic_name(name)
        settings, explicit_factor = settings_from_body(body)
        check_sizes(settings)
        service = await self._current_catalog(timeout_ms)
        existing = service.catalog.topics.get(name)
        if existing is not None:
            return _is_made_by(key, existing), self._equal_or_differs(existing, settings)
        self._parts().host.free_space.require()  # deletions use what is left of a full disk
        await self._let_newcomers_in(settings, explicit_factor=explicit_factor)
        entry = await self._new_entry(name, key, settings, explicit_factor=explicit_factor)
        if settings.kind != "log":
            await self._let_level_rise(service, CreateTopic(entry), f"a topic of kind {settings.kind}")
        applied = await service.propose(CreateTopic(entry), timeout_ms)
        _check_room(applied, service)
        if applied.outcome == "sealed":
            raise ShoalError("not-ready", "this empty cluster is joining another one: ask again shortly")
        assert applied.entry is not None
        if applied.outcome != "done":
            return _is_made_by(key, applied.entry), self._equal_or_differs(applied.entry, settings)
        await asyncio.gather(service.exchange.tell_peers(), self._wait_for_leaders(entry))
        return True, self._document(entry)

    async def make_audit_topic(self, timeout_ms: int) -> None:
        """The topic of the audit, if there is none; of the system, so that no request makes, changes or ends
        it. ShoalError not-enough-members, catalog-full, not-leader, no-leader, timeout."""
        service = await self._current_catalog(timeout_ms)
        if AUDIT_TOPIC in service.catalog.topics:
            return
        settings = TopicSettings(retention_age_ms=AUDIT_RETENTION_MS)
        entry = await self._new_entry(AUDIT_TOPIC, None, settings, explicit_factor=False)
        applied = await service.propose(CreateTopic(entry), timeout_ms)
        _check_room(applied, service)
        await asyncio.gather(service.exchange.tell_peers(), self._wait_for_leaders(entry))

    async def kept_topics(self) -> dict[str, Any]:
        """GET /v1/kept-topics: topics that live agents hold and the catalog does not know, and agents that
        did not say."""
        kept, silent = await self._parts().catalog.kept_replicas.everywhere()
        names = self._names()
        agents = [{"id": agent, "name": names.get(agent, agent)} for agent in silent]
        return {"topics": [item.document(names) for item in kept], "silent": agents}

    async def adopt_topic(self, kept: str, name: str | None, timeout_ms: int) -> dict[str, Any]:
        """POST /v1/kept-topics/{kept}/adopt: a topic that the catalog does not know gets its place back: its
        id, hash ranges and settings, under its old name or another one. kept: its name or id.

        ShoalError unknown-topic (nobody keeps it, or knows its settings), topic-differs (the name is taken),
        catalog-full, illegal-name, bad-request, not-leader, no-leader, timeout.
        """
        self._parts()
        if name is not None:
            check_topic_name(name)
        service = await self._current_catalog(timeout_ms)
        known = next((item for item in service.catalog.topics.values() if item.topic_id.hex() == kept), None)
        known = known or service.catalog.topics.get(kept)
        if known is not None and known.adopted:  # an answer was lost, and this is asked again
            return self._document(known)
        remembered = await service.kept_replicas.find(kept)
        entry = replace(remembered.entry, name=name or remembered.entry.name, adopted=True, unborn=0)
        applied = await service.propose(CreateTopic(entry), timeout_ms)
        _check_room(applied, service)
        if applied.outcome == "name-taken":
            raise ShoalError(
                "topic-differs",
                f"another topic is called {entry.name} now: adopt {entry.topic_id.hex()} under another name",
            )
        if applied.outcome != "done":
            raise ShoalError(
                "unknown-topic", f"{kept[:64]} was adopted or deleted meanwhile by somebody else"
            )
        await service.exchange.tell_peers()
        return self._document(entry)

    async def _let_newcomers_in(self, settings: TopicSettings, *, explicit_factor: bool) -> None:
        """Agents that have just been introduced count as members a moment later than they see themselves. A
        factor that was asked for waits for links too, which may be silent for a moment: it would be refused.
        Replicas that the default lacks are made later."""
        roster, end_ms = self._roster, self._clock.now_ms() + NEWCOMERS_WAIT_MS
        wanted = settings.wanted_replicas(MAX_REPLICATION_FACTOR)
        while (linked := len(roster.birthplaces())) < wanted:
            remaining_ms = end_ms - self._clock.now_ms()
            is_coming = roster.newcomers() or (explicit_factor and len(roster.placeable()) > linked)
            if remaining_ms <= 0 or not is_coming:
                return
            await self._watch.wait_next(min(remaining_ms, LINKS_LOOK_MS))

    async def _let_level_rise(self, service: CatalogService, command: Command, subject: str) -> None:
        """A cluster that was just founded takes its level within half a second. ShoalError level-too-low."""
        needed = level_of_command(command)
        if service.catalog.level >= needed:
            return
        rises = all(levels.has(needed) for levels in self._roster.understood_levels().values())
        if rises and await service.local.wait_until(lambda: service.catalog.level >= needed, RISE_WAIT_MS):
            return
        why = too_low(subject, needed, service.catalog.level, outlook(self.level_document()))
        raise ShoalError("level-too-low", f"nothing was made: {why}")

    async def _wait_for_leaders(self, entry: TopicEntry) -> None:
        """For a bounded time: the creator of a topic will produce to it next."""
        end_ms = self._clock.now_ms() + LEADERS_WAIT_MS
        groups = [GroupId(entry.topic_id, partition) for partition in range(len(entry.partitions))]
        while any(self._leader_of(group) is None for group in groups):
            remaining_ms = end_ms - self._clock.now_ms()
            if remaining_ms <= 0 or not await self._watch.wait_next(remaining_ms):
                return

    def _equal_or_differs(self, entry: TopicEntry, settings: TopicSettings) -> dict[str, Any]:
        differences = entry.settings.differences(settings)
        if differences:
            raise ShoalError("topic-differs", f"topic {entry.name} exists, and {'; '.join(differences)}")
        return self._document(entry)

    async def _new_entry(
        self, name: str, key: str | None, settings: TopicSettings, *, explicit_factor: bool
    ) -> TopicEntry:
        """The birth: a new id and, per partition, hash range and voters (safety 1). Half of the id is always
        random, as no two topics have one. The other half tells a repeated request which topic it has made."""
        members = self._roster.birthplaces()
        factor = settings.replication_factor
        if not members:
            raise ShoalError(
                "not-enough-members",
                "every live agent is drained: start one more, or take one back with shoal drain NAME --undo",
            )
        if explicit_factor and factor != "all" and factor > len(members):
            raise ShoalError(
                "not-enough-members",
                f"replication_factor {factor} needs {factor} live members, there are {len(members)} in "
                f"{self.asked}: start more agents, or leave the factor out",
            )
        candidates = [candidate_of(member) for member in members]
        topic_id = (os.urandom(_KEY_BYTES) if key is None else _digest(key)) + os.urandom(_KEY_BYTES)
        wanted = settings.wanted_replicas(len(members))
        births = []
        for partition, bounds in enumerate(hash_ranges(settings.partitions)):
            voters = birth_voters(topic_id, partition, settings.partitions, candidates, wanted)
            births.append(PartitionBirth(bounds, voters))
            await asyncio.sleep(0)  # each block of partitions takes a few milliseconds: heartbeats go on
        unborn = mask_of(range(settings.partitions))
        return TopicEntry(name, topic_id, settings, tuple(births), self._clock.now_us(), unborn=unborn)

    async def change_topic(
        self, name: str, body: Mapping[str, Any] | None, timeout_ms: int, if_version: str | None = None
    ) -> dict[str, Any]:
        """PATCH /v1/topics/{topic}: the topic with its new settings, once they are committed. Other settings
        than those in the body stay, also where somebody else changes them at the same time. With if_version
        it counts only on settings of that version. A repeated request finds its own change, and succeeds.

        ShoalError bad-request, settings-changed, level-too-low, unknown-topic, and as delete_topic.
        """
        end_ms = self._clock.now_ms() + timeout_ms
        service, entry = await self._existing(name, timeout_ms)
        for _ in range(ALTER_ATTEMPTS_MAX):
            settings = changed_settings(entry.settings, body)
            if settings == entry.settings:
                return self._document(entry)
            if if_version not in (None, settings_version(entry.settings)):
                break
            command = await self._alteration(service, entry, settings, if_version)
            applied = await service.propose(command, max(1, end_ms - self._clock.now_ms()))
            if applied.entry is None:
                raise ShoalError("unknown-topic", f"topic {name} was deleted meanwhile by somebody else")
            entry = applied.entry
            if applied.outcome == "done":
                await service.exchange.tell_peers()
                return self._document(entry)
        raise ShoalError(
            "settings-changed",
            f"somebody else has changed the settings of {name} since you read them: nothing was changed; read"
            f" them again, they are of version {settings_version(entry.settings)} now",
            settings_version=settings_version(entry.settings),
        )

    async def _alteration(
        self, service: CatalogService, entry: TopicEntry, settings: TopicSettings, if_version: str | None
    ) -> AlterTopic | ChangeTopic:
        """The command for a change that the cluster's level allows. The former one has retention and segments
        alone, and counts on any settings. ShoalError level-too-low."""
        alter = AlterTopic(entry.topic_id, entry.settings, settings)
        needed, level = level_of_command(alter), service.catalog.level
        is_for_former = if_version is None and with_changes(entry.settings, settings) == settings
        if level < needed and is_for_former:
            return ChangeTopic(entry.topic_id, settings)
        if level < needed:
            # A cluster that was just founded takes its level within half a second.
            understood = self._roster.understood_levels()
            is_held = not understood.keys().isdisjoint(self._roster.holds_level())
            rises = not is_held and all(levels.has(needed) for levels in understood.values())
            if rises and await service.local.wait_until(
                lambda: service.catalog.level >= needed, RISE_WAIT_MS
            ):
                return alter
            grows = settings.replication_factor != entry.settings.replication_factor
            wished = "another replication factor" if grows else "this change"
            subject = f"{wished} of {entry.name}" if if_version is None else "`if_version`"
            why = too_low(subject, needed, level, outlook(self.level_document()))
            raise ShoalError("level-too-low", f"nothing was changed: {why}")
        return alter

    async def delete_topic(self, name: str, timeout_ms: int) -> None:
        """DELETE /v1/topics/{topic}: durable once this returns; each holder frees its disk as soon as it
        hears of it."""
        service, entry = await self._existing(name, timeout_ms)
        applied = await service.propose(DeleteTopic(entry.topic_id, self._holders(entry)), timeout_ms)
        if applied.outcome != "done":
            raise ShoalError("unknown-topic", f"topic {name} was deleted meanwhile by somebody else")
        await service.exchange.tell_peers()

    async def _existing(self, name: str, timeout_ms: int) -> tuple[CatalogService, TopicEntry]:
        self._parts()
        if name != documents.CATALOG_TOPIC:
            check_topic_name(name)
        service = await self._current_catalog(timeout_ms)
        entry = service.catalog.topics.get(name)
        if entry is None:
            raise ShoalError("unknown-topic", f"there is no topic {name!r}")
        return service, entry

    async def _current_catalog(self, timeout_ms: int) -> CatalogService:
        """The catalog with all that was committed before this call. ShoalError not-leader, no-leader."""
        service, leader = self._parts().catalog, self.catalog_leader()
        if leader is None:
            raise ShoalError("no-leader", "the catalog has no leader at present")
        if not leader.local:
            raise not_leader("the catalog", leader)
        await service.make_current(timeout_ms)
        return service

    def _holders(self, entry: TopicEntry) -> frozenset[str]:
        """Agents that claim a replica of the topic, or are said to have one."""
        found: set[str] = set()
        for partition in range(len(entry.partitions)):
            claims = self._cluster.table.claims_about(GroupId(entry.topic_id, partition))
            for agent_id, claim in claims.items():
                found.update((agent_id, *claim.voters, *claim.learners))
        return frozenset(found)


def _is_made_by(key: str | None, entry: TopicEntry) -> bool:
    return key is not None and entry.topic_id.startswith(_digest(key))


def _digest(key: str) -> bytes:
    return blake2b(key.encode(), digest_size=_KEY_BYTES).digest()


def _check_room(applied: Applied, service: CatalogService) -> None:
    """ShoalError catalog-full."""
    if applied.outcome == "full":
        topics = service.catalog.topics.values()
        partitions = sum(len(entry.partitions) for entry in topics)
        raise ShoalError(
            "catalog-full",
            f"the catalog has no room for another topic of that size: it holds {len(topics)} topics with"
            f" {partitions} partitions; delete topics, or make some with fewer partitions",
        )
