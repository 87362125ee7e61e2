"""The replicas of topics here, as the catalog wants them: missing ones are opened, dead ones deleted.

Law of this file: it compares the catalog with the registry and asks the host; catalog_service.py says when.
Nothing is deleted without a committed deletion (safety 4).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

from shoal.agent.durable.identity import ReplicaRecord, ReplicaState
from shoal.agent.durable.ids import CATALOG_GROUP, GroupId
from shoal.agent.groups.fold import GroupFold
from shoal.agent.groups.settings import GroupPlans
from shoal.agent.host.host import Host
from shoal.agent.log_lines.names import topic_name
from shoal.agent.log_lines.repeats import once_a_minute
from shoal.agent.log_lines.schema import about
from shoal.agent.partition.plan import Plan, ViewKind
from shoal.agent.partition.state.retention import Retention
from shoal.agent.topics.catalog import PartitionBirth, TopicEntry
from shoal.agent.topics.groups_catalog import plans_of
from shoal.agent.topics.local_catalog import LocalCatalog
from shoal.agent.topics.settings import TopicSettings
from shoal.replication.interfaces import Configuration, ReplicaId, generation_of
from shoal.segment_store.config import LogConfig

MAX_OPENING = 8  # logs recovered at the same time: each reads files and syncs
MAX_BIRTHS = 256  # replicas born at the same time: they share their syncs

VIEWS = {"timer": ViewKind.TIMER, "table": ViewKind.TABLE}
"""The kinds of topics whose records are kept in another order as well."""

logger = logging.getLogger("shoal.agent")
seldom = once_a_minute(logger)


class TopicReplicas:
    """One per catalog service."""

    def __init__(self, agent_id: str, groups: Host, local: LocalCatalog) -> None:
        """Before any newer state is taken: a topic that is here now, and missing from a later state, was
        deleted. This holds where an agent has been away for so long that no tombstone waits for it."""
        self._agent_id = agent_id
        self._groups = groups
        self._local = local
        self._held_topics = {
            record.group.topic_id
            for record in groups.replica_records()
            if local.catalog.by_id(record.group.topic_id) is not None
        }
        """Topics that the catalog here has had in its present epoch, of which this agent holds a replica."""
        self._held_epoch = local.catalog.epoch
        self._contradictions: set[tuple[GroupId, ReplicaId]] = set()
        """Replicas here of another birth than the catalog's, that are kept; each was told once."""

    async def carry_out(self) -> tuple[bool, list[bytes]]:
        """Open and delete as the state, which is saved, asks. False: something must be tried again; and the
        topics of which nothing is left here."""
        dead = self.dead_topics()
        done = await self.give_up_births()
        done &= await self.open_missing()
        self.pass_settings_on()
        self.pass_births_on()
        gone = [topic_id for topic_id, partitions in dead.items() if await self.delete(topic_id, partitions)]
        return done and len(gone) == len(dead), gone

    def missing(self) -> Iterator[tuple[TopicEntry, int, ReplicaId | None]]:
        """Replicas that the registry names or this agent was born with; none that was removed, or is of
        another birth than the catalog's."""
        for entry in self._local.catalog.topics.values():
            for partition, birth in enumerate(entry.partitions):
                group = GroupId(entry.topic_id, partition)
                if self._groups.has(group):
                    continue
                record = self._groups.replica_record(group)
                if record is not None and generation_of(record.replica_id) not in (None, birth.generation):
                    if record.state is not ReplicaState.REMOVED or not _is_older(record, birth):
                        continue
                    record = None
                if record is None and self._agent_id in birth.voters and not entry.adopted:
                    yield entry, partition, None
                elif record is not None and record.state is not ReplicaState.REMOVED:
                    yield entry, partition, record.replica_id

    async def give_up_births(self) -> bool:
        """Delete replicas of births that the catalog has given up. One whose log has records contradicts the
        catalog; it is kept and logged. False: it must be tried again."""
        done = True
        for record in self._groups.replica_records():
            entry = self._local.catalog.by_id(record.group.topic_id)
            if entry is None or record.state is ReplicaState.REMOVED:
                continue
            if record.group.partition >= len(entry.partitions):
                continue
            birth = entry.partitions[record.group.partition]
            if _is_older(record, birth):
                done &= await self._give_up(entry, record)
            elif generation_of(record.replica_id) not in (None, birth.generation):
                self._tell_contradiction(entry, record)
        return done

    async def _give_up(self, entry: TopicEntry, record: ReplicaRecord) -> bool:
        if (record.group, record.replica_id) in self._contradictions:
            return True
        try:
            if await self._groups.newborns.give_up(record.group):
                logger.info("%s: placed anew by the catalog: deleting the empty replica here", record.group)
            else:
                self._tell_contradiction(entry, record)
        except Exception as error:  # noqa: BLE001 -- tried again, as deletions are
            seldom.warning("%s: cannot delete the replica given up: %s", record.group, error)
            return False
        return True

    def _tell_contradiction(self, entry: TopicEntry, record: ReplicaRecord) -> None:
        if (record.group, record.replica_id) not in self._contradictions:
            self._contradictions.add((record.group, record.replica_id))
            logger.error(
                "%s: the replica here does not belong to the partition that the catalog knows. It is kept in"
                " %s/%d and not served; `shoal log export` reads it while this agent is stopped",
                record.group,
                entry.topic_id.hex(),
                record.group.partition,
            )

    def pass_births_on(self) -> None:
        """To replicas here whose birth the catalog had not taken."""
        for replica in self._groups.newborns.replicas():
            entry = self._local.catalog.by_id(replica.group.topic_id)
            generation = generation_of(replica.replica_id)
            if entry is None or generation is None:
                continue
            if entry.is_born(replica.group.partition, generation):
                self._groups.newborns.be_born(replica.group)

    async def open_missing(self) -> bool:
        openings, births = asyncio.Semaphore(MAX_OPENING), asyncio.Semaphore(MAX_BIRTHS)
        missing = list(self.missing())
        for entry, _, _ in missing:
            self.note_held(entry.topic_id)
        results = await asyncio.gather(
            *(self._open(*item, births if item[2] is None else openings) for item in missing)
        )
        opened = [item for item, is_open in zip(missing, results, strict=True) if is_open]
        self._tell_opened("recovered", [item for item in opened if item[2] is not None])
        self._tell_opened("created", [item for item in opened if item[2] is None])
        return all(results)

    def _tell_opened(self, what: str, opened: Sequence[tuple[TopicEntry, int, ReplicaId | None]]) -> None:
        states = Counter(self._groups.status(GroupId(item[0].topic_id, item[1])).state for item in opened)
        if opened:
            counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
            logger.info("%s %d replicas: %s", what, len(opened), counts, extra=about(f"{what}-replicas"))

    def pass_settings_on(self) -> None:
        """To replicas that are open already."""
        for entry in self._local.catalog.topics.values():
            plans = self._plans_of(entry)
            for partition in range(len(entry.partitions)):
                group = GroupId(entry.topic_id, partition)
                if self._groups.has(group):
                    self._groups.set_segment_bytes(group, entry.settings.segment_bytes)
                    self._groups.set_retention(group, _retention_of(entry.settings))
                    self._groups.set_groups(group, plans)

    def _plans_of(self, entry: TopicEntry) -> GroupPlans:
        catalog = self._local.catalog
        version = (catalog.epoch, catalog.offset)
        return plans_of(entry.groups, version, catalog.level, len(entry.partitions))

    async def _open(
        self, entry: TopicEntry, partition: int, replica_id: ReplicaId | None, limit: asyncio.Semaphore
    ) -> bool:
        async with limit:
            try:
                await self.open_partition(entry, partition, replica_id)
            except Exception as error:  # noqa: BLE001 -- one damaged replica must not keep the others closed
                where = GroupId(entry.topic_id, partition)
                seldom.error("%s: cannot open the replica: %s: %s", where, type(error).__name__, error)
                return False
        return True

    async def open_partition(self, entry: TopicEntry, partition: int, replica_id: ReplicaId | None) -> None:
        settings, birth = entry.settings, entry.partitions[partition]
        view = VIEWS.get(settings.kind)
        group = GroupId(entry.topic_id, partition)
        plan = Plan(
            group,
            Configuration.birth(birth.voters, birth.generation),
            settings.schema,
            LogConfig(segment_bytes=settings.segment_bytes, fsync=settings.fsync),
            replica_id,
            retention=_retention_of(settings),
            awaits_birth=bool(entry.unborn >> partition & 1),
            fold=partial(GroupFold, by_due=True) if view is ViewKind.TIMER else GroupFold,
            view=view,
            groups=self._plans_of(entry),
        )
        await self._groups.open_group(plan)
        tell_cleared_write(self._groups, group)

    def dead_topics(self) -> dict[bytes, set[int]]:
        """Deleted topics, with the partitions that may be here. Only a committed deletion counts (safety 4):
        a tombstone, or a topic that the catalog had in this run and epoch and has no more. A topic that it
        never had may be news on its way; the catalog of another epoch proves nothing."""
        self._forget_other_epochs()
        dead = {
            topic_id: set(range(tombstone.partitions))
            for topic_id, tombstone in self._local.catalog.tombstones.items()
            if self._agent_id in tombstone.waiting_for
        }
        for record in self._groups.replica_records():
            topic_id, partition = record.group
            if record.group == CATALOG_GROUP:
                continue
            if self._local.catalog.by_id(topic_id) is not None:
                self._held_topics.add(topic_id)
            elif topic_id in self._local.catalog.tombstones or topic_id in self._held_topics:
                dead.setdefault(topic_id, set()).add(partition)
        return dead

    def note_held(self, topic_id: bytes) -> None:
        """Call it in the turn in which the catalog here was seen to know the topic."""
        self._forget_other_epochs()
        self._held_topics.add(topic_id)

    def _forget_other_epochs(self) -> None:
        if self._held_epoch != self._local.catalog.epoch:
            self._held_epoch = self._local.catalog.epoch
            self._held_topics.clear()

    async def delete(self, topic_id: bytes, partitions: set[int]) -> bool:
        """Free the disk."""
        try:
            for partition in sorted(partitions):
                await self._groups.delete_group(GroupId(topic_id, partition))
        except Exception as error:  # noqa: BLE001 -- tried again; the tombstone keeps the duty
            seldom.warning("%s: cannot delete all replicas: %s", topic_name(topic_id), error)
            return False
        self._held_topics.discard(topic_id)
        return True


def tell_cleared_write(groups: Host, group: GroupId) -> None:
    """A warning, if one was cleared when the group was opened."""
    behind = groups.cleared_writes.get(group)
    if behind is not None:
        logger.warning(
            "%s: the newest write, after entry %d, was incomplete and was cleared, though the power had not"
            " failed. It may have been acknowledged: without other replicas it is lost",
            group,
            behind,
        )


def _is_older(record: ReplicaRecord, birth: PartitionBirth) -> bool:
    """Whether a replica is of a birth that was given up for a later one."""
    generation = generation_of(record.replica_id)
    return generation is not None and generation < birth.generation


def _retention_of(settings: TopicSettings) -> Retention:
    return Retention(
        settings.retention_age_ms,
        settings.retention_bytes,
        settings.segment_age_ms,
        hold_for_groups=settings.hold_for_groups,
        acknowledged=settings.acknowledged,
    )
