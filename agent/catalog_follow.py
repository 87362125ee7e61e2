"""The catalog at work in one agent: applying, following, proposing, and making the disk agree with it.

Law of this file: the state machine is catalog.py's; here it is fed (by the `_catalog` group where this
agent is a voter, by pulling snapshots from a voter where it is not), saved, and carried out. Carrying out
is level-triggered: one task compares what should be held with what is held, so that a failure is simply met
again later.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

import pyarrow as pa

from shoal.agent.appending import Acks
from shoal.agent.applying import StateMachine
from shoal.agent.catalog import (
    Catalog,
    CatalogError,
    Command,
    ConfirmDeletion,
    Outcome,
    TopicEntry,
    decode_command,
    encode_command,
)
from shoal.agent.cluster_file import ClusterRecord
from shoal.agent.identity import CATALOG_GROUP, GroupId, ReplicaRecord, ReplicaState
from shoal.agent.links import PeerRequestFailed, PeerUnavailable
from shoal.agent.peer_messages import (
    PeerMessage,
    decode_topic_id,
    decode_version,
    encode_version,
)
from shoal.agent.retention import Retention
from shoal.agent.topic_settings import TopicSettings
from shoal.agent.waiting import Appended
from shoal.agent.watch import Watch
from shoal.batch import DEFAULT_SCHEMA, Frame, Message, ProducerStamp, message_from_batch, to_record_batch
from shoal.errors import ShoalError
from shoal.records import RecordColumns, columns_to_batch
from shoal.replication.interfaces import Configuration, ReplicaId
from shoal.segment_store.config import LogConfig

AWAIT_MS = 1_000  # how long a creation waits for the other members to hear of it
PULL_TIMEOUT_MS = 5_000
FOLLOW_INTERVAL_MS = 1_000  # without any hint: how often the members' versions are compared
RETRY_MS_MIN = 200
RETRY_MS_MAX = 10_000
CONFIRM_TIMEOUT_MS = 5_000
MAX_OPENING = 8  # logs recovered at the same time: each reads files and syncs
MAX_BIRTHS = 256  # replicas born at the same time: they share their syncs

CATALOG_SEGMENT_BYTES = 4 * 2**20
CATALOG_RETENTION = Retention(size_bytes=4 * 2**20)
"""Some thousand commands: nobody reads them again but a voter that lags, and each has the whole state beside
its log, without which nothing of the log goes."""
MAX_OUTCOMES = 1_024  # proposals waited for at the same time are far fewer: each is an HTTP request

logger = logging.getLogger(__name__)


class Applied(NamedTuple):
    """What came of a command. entry: of the topic that it is about, as the command found or left it."""

    outcome: Outcome
    entry: TopicEntry | None


class Offsets(Protocol):
    """The part of the host's answer that counts here."""

    @property
    def high_watermark(self) -> int: ...


class LogStart(Protocol):
    """The part of a replica's status that counts here."""

    @property
    def log_start_offset(self) -> int: ...


class Groups(Protocol):
    """What the catalog needs of the host."""

    def has(self, group: GroupId) -> bool: ...
    def status(self, group: GroupId) -> LogStart: ...
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
    ) -> None: ...
    async def delete_group(self, group: GroupId) -> None: ...
    def replica_record(self, group: GroupId) -> ReplicaRecord | None: ...
    def replica_records(self) -> Iterator[ReplicaRecord]: ...
    async def append(
        self,
        group: GroupId,
        messages: Sequence[Message],
        *,
        producer: ProducerStamp | None,
        acks: Acks,
        timeout_ms: int,
    ) -> Appended: ...
    async def offsets(self, group: GroupId) -> Offsets:
        """By a read index: linearizable. ShoalError not-leader elsewhere."""


class Peers(Protocol):
    """What the catalog needs of the links and the member list."""

    async def request(self, agent_id: str, kind: int, payload: bytes, timeout_ms: int) -> bytes: ...
    def send_control(self, agent_id: str, kind: int, payload: bytes) -> bool: ...
    def live_peers(self) -> list[str]: ...
    def catalog_versions(self) -> dict[str, int]:
        """What the live members of this cluster gossip about their catalogs."""


class CatalogService:
    """Owns the Catalog of this agent. Start with start(), then run() for the agent's life."""

    def __init__(
        self,
        *,
        agent_id: str,
        record: ClusterRecord,
        groups: Groups,
        peers: Peers,
        watch: Watch,
        rng: random.Random,
        save: Callable[[ClusterRecord], Awaitable[None]],
        catalog_leader: Callable[[], str | None],
        now_us: Callable[[], int],
    ) -> None:
        """`replica_id`: of this agent's replica of the catalog, if it ever had one."""
        self.catalog = Catalog.from_bytes(record.catalog)
        self.halted: str | None = None
        self._agent_id = agent_id
        self._record = record
        self._groups = groups
        self._peers = peers
        self._watch = watch
        self._rng = rng
        self._save = save
        self._catalog_leader = catalog_leader
        self._now_us = now_us
        self._heard: dict[str, int] = {}
        self._work = asyncio.Event()
        self._news = asyncio.Event()
        self._changed = asyncio.Event()
        self._outcomes: dict[int, Applied] = {}
        """Of the newest commands applied here, by offset, until whoever proposed one has taken it."""
        self._saved_version = self.catalog.version
        self.sealed = asyncio.Event()
        self._held_topics: set[bytes] = set()
        """Topics that the catalog here has had, of which this agent holds a replica."""
        self.changing = asyncio.Lock()
        """Held by whoever opens or deletes replicas: one at a time decides what is here."""
        self._remember_held()
        if self.catalog.sealed_for is not None:
            self.sealed.set()  # a crash came between the seal and giving the cluster up

    @property
    def birth(self) -> tuple[str, ...]:
        """Agent ids of the catalog's birth voters."""
        return self._record.catalog_birth

    async def start(self) -> None:
        """Open the catalog's own group, if this agent holds it."""
        async with self.changing:
            record = self._groups.replica_record(CATALOG_GROUP)
            if record is None and self._agent_id in self._record.catalog_birth:
                await self._open_catalog(None)
            elif record is not None and record.state is not ReplicaState.REMOVED:
                await self._open_catalog(record.replica_id)
        self._work.set()

    def _remember_held(self) -> None:
        """Before any newer state is taken: what was here and is there no more was deleted, and not merely
        never heard of. This holds when an agent has been away for so long that no tombstone waits for it."""
        for record in self._groups.replica_records():
            if self.catalog.by_id(record.group.topic_id) is not None:
                self._held_topics.add(record.group.topic_id)

    async def _open_catalog(self, replica_id: ReplicaId | None) -> None:
        await self._groups.open_group(
            CATALOG_GROUP,
            birth=Configuration.birth(self._record.catalog_birth),
            schema=DEFAULT_SCHEMA,
            log_config=LogConfig(segment_bytes=CATALOG_SEGMENT_BYTES),
            retention=CATALOG_RETENTION,
            machine=StateMachine(self.apply, lambda: self.catalog.version, lambda: self._saved_version),
            replica_id=replica_id,
        )

    async def open_replica(self, group: GroupId, replica_id: ReplicaId) -> None:
        """Open a replica that a committed configuration has added; `changing` is held. ShoalError
        unknown-topic while the topic is not known here: it may be soon."""
        if group == CATALOG_GROUP:
            await self._open_catalog(replica_id)
            return
        entry = self.catalog.by_id(group.topic_id)
        if entry is None or group.partition >= len(entry.partitions):
            self.look()
            raise ShoalError("unknown-topic", f"the catalog here knows no topic {group.topic_id.hex()}")
        await self._save_state()
        await self._open_partition(entry, group.partition, replica_id)

    async def run(self) -> None:
        """Follow and carry out, until cancelled.

        A voter follows by pulling, too: it is quicker where its own log lags, and a state is a state.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._carry_out_for_ever())
            tasks.create_task(self._follow_for_ever())

    # ---- applying -----------------------------------------------------------------------------------------

    def apply(self, frame: Frame) -> None:
        """One committed frame of the `_catalog` log, in order, each exactly once per run (the host's
        promise).
        """
        if self.halted is not None:
            return
        values = to_record_batch(frame.data, DEFAULT_SCHEMA).column("value").to_pylist()
        for offset, value in enumerate(values, start=frame.stamp.base_offset):
            if offset < self.catalog.version:
                continue  # it came in a newer state already
            try:
                command = decode_command(value or b"")
            except CatalogError as error:
                # Going on would leave this agent with another state than its peers.
                self.halted = f"the catalog's record {offset} cannot be understood: {error}"
                logger.error("%s", self.halted)
                return
            outcome = self.catalog.apply(offset, command)
            self._outcomes[offset] = Applied(outcome, self.catalog.subject(command))
            if len(self._outcomes) > MAX_OUTCOMES:
                del self._outcomes[next(iter(self._outcomes))]
        self._after_change()

    def _after_change(self) -> None:
        if self.catalog.sealed_for is not None:
            self.sealed.set()
        self._work.set()
        self._changed.set()
        self._changed = asyncio.Event()
        self._watch.changed()
        if self._groups.has(CATALOG_GROUP):
            hint = encode_version(self.catalog.version)
            for peer in self._peers.live_peers():
                self._peers.send_control(peer, PeerMessage.CATALOG_HINT, hint)

    async def wait_for(self, version: int, timeout_ms: int) -> bool:
        """True once the state is at least that version."""
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                while self.catalog.version < version:
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    # ---- proposing (at the catalog's leader) -----------------------------------------------------

    async def make_current(self, timeout_ms: int) -> None:
        """Return once everything committed before this call has been applied here. ShoalError otherwise."""
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                end = (await self._groups.offsets(CATALOG_GROUP)).high_watermark
        except TimeoutError:
            raise ShoalError(
                "timeout", "the catalog's leader was not confirmed in time", definite=True
            ) from None
        if not await self.wait_for(end, timeout_ms):
            raise ShoalError("timeout", "the catalog was not applied in time", definite=True)

    async def propose(self, command: Command, timeout_ms: int) -> Applied:
        """Commit and apply one command; what came of it, at its place among all the others."""
        columns = RecordColumns([None], [None], [encode_command(command)], [None])
        message = message_from_batch(columns_to_batch(columns, self._now_us()))
        appended = await self._groups.append(
            CATALOG_GROUP, [message], producer=None, acks="all", timeout_ms=timeout_ms
        )
        if not await self.wait_for(appended.base_offset + 1, timeout_ms):
            raise ShoalError("timeout", "committed, but not applied here in time", definite=False)
        applied = self._outcomes.pop(appended.base_offset, None)
        if applied is None:  # the state came from a peer, which does not say what came of whom
            raise ShoalError("timeout", "committed, but what came of it is not known here", definite=False)
        return applied

    async def tell_peers(self) -> None:
        """Wait, for a bounded time, until the live members know the present version: what a client has just
        been
        told exists should be found wherever it asks next."""
        payload = encode_version(self.catalog.version)
        peers = self._peers.live_peers()
        await asyncio.gather(*(self._await_peer(peer, payload) for peer in peers))

    async def _await_peer(self, peer: str, payload: bytes) -> None:
        try:
            await self._peers.request(peer, PeerMessage.CATALOG_AWAIT, payload, AWAIT_MS)
        except (PeerUnavailable, PeerRequestFailed) as error:
            logger.debug("%s has not confirmed the catalog's version: %s", peer[:8], error)

    # ---- requests and hints of peers -------------------------------------------------------------

    async def on_pull(self, _peer: str, payload: bytes) -> bytes:
        """A snapshot for a follower that is behind; nothing when it is not."""
        return b"" if decode_version(payload) >= self.catalog.version else self.catalog.to_bytes()

    async def on_await(self, peer: str, payload: bytes) -> bytes:
        """Answer when this agent has reached the version, or cannot in time."""
        wanted = decode_version(payload)
        self.on_hint(peer, payload)
        await self.wait_for(wanted, AWAIT_MS)
        return encode_version(self.catalog.version)

    def on_hint(self, peer: str, payload: bytes) -> None:
        """A voter has a newer version. Raises PeerMessageError."""
        version = decode_version(payload)
        if version > self.catalog.version:
            self._heard[peer] = version
            self._news.set()

    async def on_confirm(self, peer: str, payload: bytes) -> bytes:
        """A holder has deleted its replicas of a dead topic."""
        topic_id = decode_topic_id(payload)
        tombstone = self.catalog.tombstones.get(topic_id)
        if tombstone is not None and peer in tombstone.waiting_for:
            await self.propose(ConfirmDeletion(topic_id, peer), CONFIRM_TIMEOUT_MS)
        return b""

    # ---- following ------------------------------------------------

    def look(self) -> None:
        """The member list has changed: compare versions now."""
        self._news.set()

    async def _follow_for_ever(self) -> None:
        while True:
            self._news.clear()
            source = self._newest_peer()
            if source is None or not await self._pull(source):
                await _wait_or(self._news, FOLLOW_INTERVAL_MS)

    def _newest_peer(self) -> str | None:
        if self._catalog_leader() == self._agent_id and not self._lacks_what_was_trimmed():
            return None  # nobody knows more, and whoever proposes here wants to know what came of it
        versions = self._peers.catalog_versions()
        for peer, version in list(self._heard.items()):
            if version <= self.catalog.version or peer not in versions:
                del self._heard[peer]
            else:
                versions[peer] = max(version, versions[peer])
        newer = {peer: version for peer, version in versions.items() if version > self.catalog.version}
        if not newer:
            return None
        newest = max(newer.values())
        return self._rng.choice(sorted(peer for peer, version in newer.items() if version == newest))

    def _lacks_what_was_trimmed(self) -> bool:
        """The copy of the state that made it dispensable was lost."""
        groups = self._groups
        return (
            groups.has(CATALOG_GROUP) and groups.status(CATALOG_GROUP).log_start_offset > self.catalog.version
        )

    async def _pull(self, peer: str) -> bool:
        """True when the state has advanced."""
        payload = encode_version(self.catalog.version)
        try:
            data = await self._peers.request(peer, PeerMessage.CATALOG_PULL, payload, PULL_TIMEOUT_MS)
            newer = Catalog.from_bytes(data) if data else None
        except (PeerUnavailable, PeerRequestFailed, CatalogError) as error:
            logger.info("cannot follow the catalog at %s: %s", peer[:8], error)
            self._heard.pop(peer, None)
            return False
        if newer is None or newer.version <= self.catalog.version:
            self._heard.pop(peer, None)
            return False
        self.catalog = newer
        self._after_change()
        return True

    # ---- carrying out ----------------------------------------------------------------------------

    async def _carry_out_for_ever(self) -> None:
        delay_ms = RETRY_MS_MIN
        while True:
            await self._work.wait()
            self._work.clear()
            if await self._carry_out():
                delay_ms = RETRY_MS_MIN
                continue
            await _wait_or(self._work, delay_ms)
            self._work.set()
            delay_ms = min(2 * delay_ms, RETRY_MS_MAX)

    async def _carry_out(self) -> bool:
        """Save the state, open what should be here, delete what is dead. False: something must be tried
        again.
        """
        async with self.changing:
            try:
                await self._save_state()
            except OSError as error:
                logger.warning(
                    "the catalog's state is not saved, and nothing new is opened until it is: %s", error
                )
                return False
            dead = self._dead_topics()
            done = await self._open_missing()
            self._pass_settings_on()
            gone = [topic_id for topic_id, parts in dead.items() if await self._delete(topic_id, parts)]
        for topic_id in gone:
            tombstone = self.catalog.tombstones.get(topic_id)
            if tombstone is not None and self._agent_id in tombstone.waiting_for:
                done &= await self._confirm(topic_id)
        return done and len(gone) == len(dead)

    async def _save_state(self) -> None:
        """What is known on return is saved. Before replicas are opened, so that a restart finds every one
        that was; before they are deleted, as a restart from a state that still had the topic would give birth
        to a replica without its memory.
        """
        while self.catalog.version != self._saved_version:  # it goes on while it is being saved
            version, record = self.catalog.version, self._record
            self._record = ClusterRecord(
                record.cluster, record.cluster_id, record.catalog_birth, self.catalog.to_bytes()
            )
            await self._save(self._record)
            self._saved_version = version

    def _missing(self) -> Iterator[tuple[TopicEntry, int, ReplicaId | None]]:
        """What the registry knows of, and what this agent was born with; never what was removed."""
        for entry in self.catalog.topics.values():
            for partition, birth in enumerate(entry.partitions):
                group = GroupId(entry.topic_id, partition)
                if self._groups.has(group):
                    continue
                record = self._groups.replica_record(group)
                if record is None and self._agent_id in birth.voters:
                    yield entry, partition, None
                elif record is not None and record.state is not ReplicaState.REMOVED:
                    yield entry, partition, record.replica_id

    async def _open_missing(self) -> bool:
        openings, births = asyncio.Semaphore(MAX_OPENING), asyncio.Semaphore(MAX_BIRTHS)
        missing = list(self._missing())
        results = await asyncio.gather(
            *(self._open(*item, births if item[2] is None else openings) for item in missing)
        )
        if missing:
            logger.info("opened %d of %d replicas", sum(results), len(missing))
        return all(results)

    def _pass_settings_on(self) -> None:
        """What a change of settings means to replicas that are open already."""
        for entry in self.catalog.topics.values():
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
                await self._open_partition(entry, partition, replica_id)
            except Exception as error:  # noqa: BLE001 -- one damaged replica must not keep the others closed
                logger.error("cannot open %s/%d: %s: %s", entry.name, partition, type(error).__name__, error)
                return False
        return True

    async def _open_partition(self, entry: TopicEntry, partition: int, replica_id: ReplicaId | None) -> None:
        settings = entry.settings
        self._held_topics.add(entry.topic_id)
        await self._groups.open_group(
            GroupId(entry.topic_id, partition),
            birth=Configuration.birth(entry.partitions[partition].voters),
            schema=DEFAULT_SCHEMA,
            log_config=LogConfig(segment_bytes=settings.segment_bytes, fsync=settings.fsync),
            retention=_retention_of(settings),
            replica_id=replica_id,
        )

    def _dead_topics(self) -> dict[bytes, set[int]]:
        """Deleted topics, with the partitions of which something may be here. Only a committed deletion leads
        here (safety 4): a tombstone, or a topic that the catalog had in this run and has no more. What it
        never had may be news that has not come yet."""
        dead = {
            topic_id: set(range(tombstone.partitions))
            for topic_id, tombstone in self.catalog.tombstones.items()
            if self._agent_id in tombstone.waiting_for
        }
        for record in self._groups.replica_records():
            topic_id, partition = record.group
            if record.group == CATALOG_GROUP:
                continue
            if self.catalog.by_id(topic_id) is not None:
                self._held_topics.add(topic_id)
            elif topic_id in self.catalog.tombstones or topic_id in self._held_topics:
                dead.setdefault(topic_id, set()).add(partition)
        return dead

    async def _delete(self, topic_id: bytes, partitions: set[int]) -> bool:
        """Free the disk."""
        try:
            for partition in sorted(partitions):
                await self._groups.delete_group(GroupId(topic_id, partition))
        except Exception as error:  # noqa: BLE001 -- tried again; the tombstone keeps the duty
            logger.warning("deletion of %s is not finished: %s", topic_id.hex(), error)
            return False
        self._held_topics.discard(topic_id)
        return True

    async def _confirm(self, topic_id: bytes) -> bool:
        """Say to the catalog that nothing is left here."""
        leader = self._catalog_leader()
        try:
            if leader is None:
                raise ShoalError("no-leader", "the catalog has no leader at present")
            if leader == self._agent_id:
                await self.propose(ConfirmDeletion(topic_id, self._agent_id), CONFIRM_TIMEOUT_MS)
            else:
                await self._peers.request(leader, PeerMessage.CATALOG_CONFIRM, topic_id, CONFIRM_TIMEOUT_MS)
        except Exception as error:  # noqa: BLE001 -- tried again; the tombstone keeps the duty
            logger.warning("deletion of %s is not confirmed: %s", topic_id.hex(), error)
            return False
        return True


async def _wait_or(event: asyncio.Event, timeout_ms: int) -> None:
    try:
        async with asyncio.timeout(timeout_ms / 1_000):
            await event.wait()
    except TimeoutError:
        return


def _retention_of(settings: TopicSettings) -> Retention:
    return Retention(settings.retention_age_ms, settings.retention_bytes, settings.segment_age_ms)
