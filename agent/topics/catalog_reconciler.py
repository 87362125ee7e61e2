"""The replicas of topics here, as the catalog wants them: what is missing is opened, what is dead goes.

Law of this file: it compares the catalog with the registry and asks the host; when that is done is
catalog_service.py's business. Nothing is deleted here without a committed deletion (safety 4).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from shoal.agent.durable.identity import ReplicaRecord, ReplicaState
from shoal.agent.durable.ids import CATALOG_GROUP, GroupId
from shoal.agent.partition.applier import StateMachine
from shoal.agent.partition.state.retention import Retention
from shoal.agent.submission import Appended, Submission
from shoal.agent.topics.catalog import Catalog, PartitionBirth, TopicEntry
from shoal.agent.topics.settings import TopicSettings
from shoal.format.batch import DEFAULT_SCHEMA, LogIndex
from shoal.replication.interfaces import Configuration, ReplicaId, generation_of
from shoal.segment_store.config import LogConfig

MAX_OPENING = 8  # logs recovered at the same time: each reads files and syncs
MAX_BIRTHS = 256  # replicas born at the same time: they share their syncs

logger = logging.getLogger("shoal.agent")


class Offsets(Protocol):
    """The part of the host's answer that counts here."""

    @property
    def high_watermark(self) -> int: ...


class Status(Protocol):
    """The part of a replica's status that counts here."""

    @property
    def log_start_offset(self) -> int: ...
    @property
    def term(self) -> int: ...


class Newborn(Protocol):
    """The part of a replica that counts here."""

    @property
    def group(self) -> GroupId: ...
    @property
    def replica_id(self) -> ReplicaId: ...


class NewbornReplicas(Protocol):
    """Those that wait for the catalog to take their birth."""

    def replicas(self) -> Sequence[Newborn]: ...
    def be_born(self, group: GroupId) -> None: ...
    async def give_up(self, group: GroupId) -> bool: ...


class Groups(Protocol):
    """What the catalog needs of the host."""

    @property
    def newborns(self) -> NewbornReplicas: ...
    @property
    def cleared_writes(self) -> Mapping[GroupId, LogIndex]: ...
    def has(self, group: GroupId) -> bool: ...
    def status(self, group: GroupId) -> Status: ...
    def set_segment_bytes(self, group: GroupId, segment_bytes: int) -> None: ...
    def set_retention(self, group: GroupId, retention: Retention) -> None: ...
    async def open_group(
        self,
        group: GroupId,
        *,
        birth: Configuration,
        schema: pa.Schema,
        log_config: LogConfig,
        retention: Retention | None = None,
        machine: StateMachine | None = None,
        replica_id: ReplicaId | None = None,
        awaits_birth: bool = False,
    ) -> None: ...
    async def delete_group(self, group: GroupId) -> None: ...
    def replica_record(self, group: GroupId) -> ReplicaRecord | None: ...
    def replica_records(self) -> Iterator[ReplicaRecord]: ...
    async def append(self, group: GroupId, submission: Submission) -> Appended: ...
    async def offsets(self, group: GroupId) -> Offsets:
        """By a read index: linearizable. ShoalError not-leader elsewhere."""


class TopicReplicas:
    """One per catalog service."""

    def __init__(self, agent_id: str, groups: Groups, catalog: Callable[[], Catalog]) -> None:
        self._agent_id = agent_id
        self._groups = groups
        self._catalog = catalog
        self._held_topics: set[bytes] = set()
        """Topics that the catalog here has had in its present epoch, of which this agent holds a replica."""
        self._held_epoch = catalog().epoch
        self._contradictions: set[tuple[GroupId, ReplicaId]] = set()
        """Replicas here of another birth than the catalog's, that are kept; each was told once."""

    def remember_held(self) -> None:
        """Before any newer state is taken: what was here and is there no more was deleted, and not merely
        never heard of. This holds when an agent has been away for so long that no tombstone waits for it."""
        for record in self._groups.replica_records():
            if self._catalog().by_id(record.group.topic_id) is not None:
                self._held_topics.add(record.group.topic_id)

    def missing(self) -> Iterator[tuple[TopicEntry, int, ReplicaId | None]]:
        """What the registry knows of, and what this agent was born with; never what was removed, nor what is
        of another birth than the catalog's."""
        for entry in self._catalog().topics.values():
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
        """Replicas here of births that the catalog has given up go, unless their logs have records, which
        cannot be: those are kept, and told. False: it must be tried again."""
        done = True
        for record in self._groups.replica_records():
            entry = self._catalog().by_id(record.group.topic_id)
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
                logger.info("%s/%d was born again: the replica here goes", entry.name, record.group.partition)
            else:
                self._tell_contradiction(entry, record)
        except Exception as error:  # noqa: BLE001 -- tried again, as deletions are
            logger.warning("what was given up of %s is not deleted yet: %s", entry.name, error)
            return False
        return True

    def _tell_contradiction(self, entry: TopicEntry, record: ReplicaRecord) -> None:
        if (record.group, record.replica_id) not in self._contradictions:
            self._contradictions.add((record.group, record.replica_id))
            logger.error(
                "%s/%d: the replica here is of another birth of the partition than the catalog's, and is kept"
                " in %s/%d, not served: `shoal log export` reads it while this agent is stopped",
                entry.name,
                record.group.partition,
                entry.topic_id.hex(),
                record.group.partition,
            )

    def pass_births_on(self) -> None:
        """To replicas here that wait for the catalog to take their birth."""
        for replica in self._groups.newborns.replicas():
            entry = self._catalog().by_id(replica.group.topic_id)
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
        if missing:
            logger.info("opened %d of %d replicas", sum(results), len(missing))
        return all(results)

    def pass_settings_on(self) -> None:
        """What a change of settings means to replicas that are open already."""
        for entry in self._catalog().topics.values():
            for partition in range(len(entry.partitions)):
                group = GroupId(entry.topic_id, partition)
                if self._groups.has(group):
                    self._groups.set_segment_bytes(group, entry.settings.segment_bytes)
                    self._groups.set_retention(group, _retention_of(entry.settings))

    async def _open(
        self, entry: TopicEntry, partition: int, replica_id: ReplicaId | None, limit: asyncio.Semaphore
    ) -> bool:
        async with limit:
            try:
                await self.open_partition(entry, partition, replica_id)
            except Exception as error:  # noqa: BLE001 -- one damaged replica must not keep the others closed
                logger.error("cannot open %s/%d: %s: %s", entry.name, partition, type(error).__name__, error)
                return False
        return True

    async def open_partition(self, entry: TopicEntry, partition: int, replica_id: ReplicaId | None) -> None:
        settings, birth = entry.settings, entry.partitions[partition]
        await self._groups.open_group(
            GroupId(entry.topic_id, partition),
            birth=Configuration.birth(birth.voters, birth.generation),
            schema=DEFAULT_SCHEMA,
            log_config=LogConfig(segment_bytes=settings.segment_bytes, fsync=settings.fsync),
            retention=_retention_of(settings),
            replica_id=replica_id,
            awaits_birth=bool(entry.unborn >> partition & 1),
        )
        tell_cleared_write(self._groups, GroupId(entry.topic_id, partition), f"{entry.name}/{partition}")

    def dead_topics(self) -> dict[bytes, set[int]]:
        """Deleted topics, with the partitions of which something may be here. Only a committed deletion leads
        here (safety 4): a tombstone, or a topic that the catalog had in this run and this epoch and has no
        more. What it never had may be news that has not come yet; what another epoch's catalog had proves
        nothing."""
        self._forget_other_epochs()
        dead = {
            topic_id: set(range(tombstone.partitions))
            for topic_id, tombstone in self._catalog().tombstones.items()
            if self._agent_id in tombstone.waiting_for
        }
        for record in self._groups.replica_records():
            topic_id, partition = record.group
            if record.group == CATALOG_GROUP:
                continue
            if self._catalog().by_id(topic_id) is not None:
                self._held_topics.add(topic_id)
            elif topic_id in self._catalog().tombstones or topic_id in self._held_topics:
                dead.setdefault(topic_id, set()).add(partition)
        return dead

    def note_held(self, topic_id: bytes) -> None:
        """In the very turn in which the catalog here was seen to know it."""
        self._forget_other_epochs()
        self._held_topics.add(topic_id)

    def _forget_other_epochs(self) -> None:
        if self._held_epoch != self._catalog().epoch:
            self._held_epoch = self._catalog().epoch
            self._held_topics.clear()

    async def delete(self, topic_id: bytes, partitions: set[int]) -> bool:
        """Free the disk."""
        try:
            for partition in sorted(partitions):
                await self._groups.delete_group(GroupId(topic_id, partition))
        except Exception as error:  # noqa: BLE001 -- tried again; the tombstone keeps the duty
            logger.warning("deletion of %s is not finished: %s", topic_id.hex(), error)
            return False
        self._held_topics.discard(topic_id)
        return True


def tell_cleared_write(groups: Groups, group: GroupId, where: str) -> None:
    """A warning, if one was cleared when the group was opened. where: topic and partition by their names."""
    behind = groups.cleared_writes.get(group)
    if behind is not None:
        logger.warning(
            "%s: the newest write behind entry %d was incomplete, and was cleared, though the machine had no"
            " power failure: it may have been acknowledged, and without other replicas it is gone",
            where,
            behind,
        )


def _is_older(record: ReplicaRecord, birth: PartitionBirth) -> bool:
    """Whether a replica is of a birth that was given up for a later one."""
    generation = generation_of(record.replica_id)
    return generation is not None and generation < birth.generation


def _retention_of(settings: TopicSettings) -> Retention:
    return Retention(settings.retention_age_ms, settings.retention_bytes, settings.segment_age_ms)
