"""Creating and deleting topics, at the agent that leads the catalog.

Law of this file: it decides what is proposed (who is asked, whether there are members enough, where
replicas are born) and what the outcome means to whoever asked. What is true is what the catalog has
committed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from shoal.agent.durable.ids import GroupId
from shoal.agent.events.change_counter import Watch
from shoal.agent.interface import MAX_REPLICATION_FACTOR, Leader
from shoal.agent.members.roster import Roster, candidate_of
from shoal.agent.process.clock import Clock
from shoal.agent.service import documents
from shoal.agent.topics.catalog import ChangeTopic, CreateTopic, DeleteTopic, PartitionBirth, TopicEntry
from shoal.agent.topics.catalog_service import Applied, CatalogService
from shoal.agent.topics.entries import mask_of
from shoal.agent.topics.settings import TopicSettings, changed_settings, check_topic_name, settings_from_body
from shoal.errors import ShoalError
from shoal.format.hash_ranges import hash_ranges
from shoal.replication.placement.assignment import birth_voters

NEWCOMERS_WAIT_MS = 1_500  # gossip tells of a joined cluster within a few hundred milliseconds
LEADERS_WAIT_MS = 1_000  # a newborn group elects its preferred leader within a few round trips


def not_leader(what: str, leader: Leader) -> ShoalError:
    """421, with everything a client needs to go there itself."""
    return ShoalError(
        "not-leader",
        f"{what} is led by {leader.agent_id[:8]}",
        leader=leader.agent_id,
        leader_url=leader.url,
        term=leader.term,
    )


class TopicAdmin:
    """One per agent; whether it may act is decided by who leads the catalog when it is asked."""

    def __init__(
        self,
        *,
        roster: Roster,
        watch: Watch,
        clock: Clock,
        catalog_leader: Callable[[], Leader | None],
        leader_of: Callable[[GroupId], Leader | None],
        document: Callable[[TopicEntry], dict[str, Any]],
        holders: Callable[[TopicEntry], frozenset[str]],
        require_room: Callable[[], None],
        asked: str,
    ) -> None:
        """`document`: how a topic is shown to whoever made it. `holders`: who is known to hold a replica.
        `require_room`: raises ShoalError disk-full. `asked`: how a refusal calls who was
        asked."""
        self._roster = roster
        self._watch = watch
        self._clock = clock
        self._catalog_leader = catalog_leader
        self._leader_of = leader_of
        self._document = document
        self._holders = holders
        self._require_room = require_room
        self._asked = asked

    async def create(
        self, service: CatalogService, name: str, body: Mapping[str, Any] | None, timeout_ms: int
    ) -> tuple[bool, dict[str, Any]]:
        """True when it was made by this call. Linearizable: only the catalog's leader answers.

        ShoalError illegal-name, bad-request, topic-differs, not-enough-members, catalog-full,
        not-leader (with leader_url), no-leader, timeout.
        """
        check_topic_name(name)
        settings, explicit_factor = settings_from_body(body)
        self._require_leader()
        await service.make_current(timeout_ms)
        existing = service.catalog.topics.get(name)
        if existing is not None:
            return False, self._equal_or_differs(existing, settings)
        self._require_room()  # deletions use what is left of a full disk
        await self._let_newcomers_in(settings)
        entry = await self._new_entry(name, settings, explicit_factor=explicit_factor)
        applied = await service.propose(CreateTopic(entry), timeout_ms)
        _check_room(applied, service)
        if applied.outcome == "sealed":
            raise ShoalError("not-ready", "this empty cluster is joining another one: ask again shortly")
        assert applied.entry is not None
        if applied.outcome != "done":
            return False, self._equal_or_differs(applied.entry, settings)
        await asyncio.gather(service.tell_peers(), self._wait_for_leaders(entry))
        return True, self._document(entry)

    async def adopt(
        self, service: CatalogService, kept: str, name: str | None, timeout_ms: int
    ) -> dict[str, Any]:
        """A topic that the catalog does not know gets its place back: its id, hash ranges and settings, under
        its old name or another one. kept: its name or id. Only the catalog's leader answers.

        ShoalError unknown-topic (nobody keeps it, or knows its settings), topic-differs (the name is taken),
        catalog-full, illegal-name, bad-request, not-leader, no-leader, timeout.
        """
        if name is not None:
            check_topic_name(name)
        self._require_leader()
        await service.make_current(timeout_ms)
        known = next((item for item in service.catalog.topics.values() if item.topic_id.hex() == kept), None)
        known = known or service.catalog.topics.get(kept)
        if known is not None and known.adopted:  # an answer was lost, and this is asked again
            return self._document(known)
        remembered = await service.keeping.find(kept)
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
        await service.tell_peers()
        return self._document(entry)

    async def _let_newcomers_in(self, settings: TopicSettings) -> None:
        """Agents that have just been introduced count as members a moment later than they see themselves."""
        end_ms = self._clock.now_ms() + NEWCOMERS_WAIT_MS
        wanted = settings.wanted_replicas(MAX_REPLICATION_FACTOR)
        while len(self._roster.birthplaces()) < wanted and self._roster.newcomers():
            remaining_ms = end_ms - self._clock.now_ms()
            if remaining_ms <= 0 or not await self._watch.wait_next(remaining_ms):
                return

    async def _wait_for_leaders(self, entry: TopicEntry) -> None:
        """For a bounded time: whoever has just created a topic will produce to it next."""
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

    async def _new_entry(self, name: str, settings: TopicSettings, *, explicit_factor: bool) -> TopicEntry:
        """The birth: a random id and, per partition, hash range and voters (safety 1)."""
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
                f"{self._asked}: start more agents, or leave the factor out",
            )
        candidates = [candidate_of(member) for member in members]
        topic_id = os.urandom(16)
        wanted = settings.wanted_replicas(len(members))
        births = []
        for partition, bounds in enumerate(hash_ranges(settings.partitions)):
            voters = birth_voters(topic_id, partition, settings.partitions, candidates, wanted)
            births.append(PartitionBirth(bounds, voters))
            await asyncio.sleep(0)  # each block of partitions takes a few milliseconds: heartbeats go on
        unborn = mask_of(range(settings.partitions))
        return TopicEntry(name, topic_id, settings, tuple(births), self._clock.now_us(), unborn=unborn)

    async def change(
        self, service: CatalogService, name: str, body: Mapping[str, Any] | None, timeout_ms: int
    ) -> dict[str, Any]:
        """PATCH: the topic with its new settings, once they are committed. ShoalError bad-request,
        unknown-topic, and as delete()."""
        entry = await self._existing(service, name, timeout_ms)
        settings = changed_settings(entry.settings, body)
        applied = await service.propose(ChangeTopic(entry.topic_id, settings), timeout_ms)
        if applied.entry is None:
            raise ShoalError("unknown-topic", f"topic {name} was deleted meanwhile by somebody else")
        await service.tell_peers()
        return self._document(applied.entry)

    async def delete(self, service: CatalogService, name: str, timeout_ms: int) -> None:
        """Durable once this returns; the disks are freed by every holder as soon as it hears of it."""
        entry = await self._existing(service, name, timeout_ms)
        applied = await service.propose(DeleteTopic(entry.topic_id, self._holders(entry)), timeout_ms)
        if applied.outcome != "done":
            raise ShoalError("unknown-topic", f"topic {name} was deleted meanwhile by somebody else")
        await service.tell_peers()

    async def _existing(self, service: CatalogService, name: str, timeout_ms: int) -> TopicEntry:
        if name != documents.CATALOG_TOPIC:
            check_topic_name(name)
        self._require_leader()
        await service.make_current(timeout_ms)
        entry = service.catalog.topics.get(name)
        if entry is None:
            raise ShoalError("unknown-topic", f"there is no topic {name!r}")
        return entry

    def _require_leader(self) -> None:
        leader = self._catalog_leader()
        if leader is None:
            raise ShoalError("no-leader", "the catalog has no leader at present")
        if not leader.local:
            raise not_leader("the catalog", leader)


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
