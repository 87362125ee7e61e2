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
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import NamedTuple, Protocol

from shoal.agent.durable.catalog_version import (
    EPOCH_RANDOM_BITS,
    CatalogVersion,
    epoch_of,
    recoveries,
)
from shoal.agent.durable.identity import ReplicaState
from shoal.agent.durable.ids import CATALOG_GROUP, GroupId
from shoal.agent.events.change_counter import Watch
from shoal.agent.host.unsafe_recovery import EPOCH_BITS
from shoal.agent.partition.applier import StateMachine
from shoal.agent.partition.state.retention import Retention
from shoal.agent.peers.links import PeerRequestFailed, PeerUnavailable
from shoal.agent.peers.messages import PeerMessage, PeerMessageError, decode_topic_id, decode_version
from shoal.agent.submission import Submission
from shoal.agent.topics.catalog import (
    BeginEpoch,
    Born,
    Catalog,
    CatalogError,
    Command,
    ConfirmDeletion,
    Outcome,
    TopicEntry,
    decode_command,
    encode_command,
)
from shoal.agent.topics.catalog_founders import CATALOG_SEGMENT_BYTES
from shoal.agent.topics.catalog_pull import PIECE_BYTES, Copy, Piece, question_from_bytes
from shoal.agent.topics.catalog_reconciler import Groups, TopicReplicas, tell_cleared_write
from shoal.agent.topics.cluster_file import ClusterRecord
from shoal.agent.topics.kept import remember
from shoal.agent.topics.kept_replicas import Keeping
from shoal.errors import ShoalError
from shoal.format.batch import DEFAULT_SCHEMA, Frame, message_from_batch, to_record_batch
from shoal.format.records import RecordColumns, columns_to_batch
from shoal.replication.interfaces import Configuration, ReplicaId
from shoal.segment_store.config import LogConfig

AWAIT_MS = 1_000  # how long a creation waits for the other members to hear of it
PULL_TIMEOUT_MS = 5_000
FOLLOW_INTERVAL_MS = 1_000  # without any hint: how often the members' versions are compared
SAVE_LATER_S = 1.0
"""A thousand births are several commands within seconds, with nothing to do but to write the state down."""
RETRY_MS_MIN = 200
RETRY_MS_MAX = 10_000
CONFIRM_TIMEOUT_MS = 5_000
CATALOG_RETENTION = Retention(size_bytes=4 * 2**20)
"""Some thousand commands: nobody reads them again but a voter that lags, and each has the whole state beside
its log, without which nothing of the log goes."""
MAX_OUTCOMES = 1_024  # proposals waited for at the same time are far fewer: each is an HTTP request

logger = logging.getLogger(__name__)


class Applied(NamedTuple):
    """What came of a command. entry: of the topic that it is about, as the command found or left it."""

    outcome: Outcome
    entry: TopicEntry | None


class Peers(Protocol):
    """What the catalog needs of the links and the member list."""

    async def request(self, agent_id: str, kind: int, payload: bytes, timeout_ms: int) -> bytes: ...
    def send_control(self, agent_id: str, kind: int, payload: bytes) -> bool: ...
    def live_peers(self) -> list[str]: ...
    def catalog_versions(self) -> dict[str, CatalogVersion]:
        """What the live members of this cluster gossip about their catalogs."""


class _Asking:
    """Whether a peer knows a version: who asks now, and what was asked last."""

    __slots__ = ("asked", "lock")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.asked: CatalogVersion | None = None


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
        self._heard: dict[str, CatalogVersion] = {}
        self._asking: dict[str, _Asking] = {}
        self._work = asyncio.Event()
        self._saving: asyncio.TimerHandle | None = None
        self._news = asyncio.Event()
        self._changed = asyncio.Event()
        self._outcomes: dict[int, Applied] = {}
        """Of the newest commands applied here, by offset, until whoever proposed one has taken it."""
        self._saved_version = self.catalog.version
        self._encoded = (self.catalog.version, record.catalog)
        self.published = self.catalog.version
        """What peers may be told of: never a state that is about to become another epoch's."""
        self.astray = False
        """The log goes on from another state than the one here: a peer has to give a copy of what is true."""
        self._beginning = asyncio.Lock()
        self.sealed = asyncio.Event()
        self._replicas = TopicReplicas(agent_id, groups, lambda: self.catalog)
        self.changing = asyncio.Lock()
        """Held by whoever opens or deletes replicas: one at a time decides what is here."""
        self._replicas.remember_held()
        self.keeping = Keeping(
            agent_id=agent_id,
            peers=peers,
            records=groups.replica_records,
            catalog=lambda: self.catalog,
            dead=self._replicas.dead_topics,
            remembered=lambda: self._record.kept,
        )
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

    async def _open_catalog(self, replica_id: ReplicaId | None) -> None:
        await self._groups.open_group(
            CATALOG_GROUP,
            birth=Configuration.birth(self._record.catalog_birth),
            schema=DEFAULT_SCHEMA,
            log_config=LogConfig(segment_bytes=CATALOG_SEGMENT_BYTES),
            retention=CATALOG_RETENTION,
            machine=StateMachine(self.apply, self._next_offset, self._saved_offset),
            replica_id=replica_id,
        )
        tell_cleared_write(self._groups, CATALOG_GROUP, "_catalog/0")

    async def open_replica(self, group: GroupId, replica_id: ReplicaId) -> None:
        """Open a replica that a committed configuration has added; `changing` is held. ShoalError
        unknown-topic while the topic is not known here: it may be soon."""
        if group == CATALOG_GROUP:
            if replica_id.term >> EPOCH_BITS > recoveries(self.catalog.epoch):
                self.look()
                raise ShoalError("not-ready", "the catalog here is of an epoch before this replica's")
            await self._open_catalog(replica_id)
            return
        entry = self.catalog.by_id(group.topic_id)
        if entry is None or group.partition >= len(entry.partitions):
            self.look()
            raise ShoalError("unknown-topic", f"the catalog here knows no topic {group.topic_id.hex()}")
        self._replicas.note_held(entry.topic_id)
        await self._save_state()
        await self._replicas.open_partition(entry, group.partition, replica_id)

    async def run(self) -> None:
        """Follow and carry out, until cancelled.

        A voter follows by pulling, too: it is quicker where its own log lags, and a state is a state.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._carry_out_for_ever())
                tasks.create_task(self._follow_for_ever())
        finally:
            self._save_no_later()

    # ---- applying -----------------------------------------------------------------------------------------

    def apply(self, frame: Frame) -> None:
        """One committed frame of the `_catalog` log, in order, each exactly once per run (the host's
        promise).
        """
        epoch = frame.stamp.term >> EPOCH_BITS
        if self.halted is not None or epoch < recoveries(self.catalog.epoch):
            return  # of a lineage that was left
        values = to_record_batch(frame.data, DEFAULT_SCHEMA).column("value").to_pylist()
        is_work = False
        for offset, value in enumerate(values, start=frame.stamp.base_offset):
            if offset < self.catalog.offset and epoch == recoveries(self.catalog.epoch):
                continue  # it came in a newer state already
            try:
                command = decode_command(value or b"")
            except CatalogError as error:
                # Whoever skipped a command would have another catalog than its peers.
                self.halted = f"the catalog's record {offset} cannot be understood: {error}"
                logger.error("%s", self.halted)
                return
            self._apply_command(offset, command)
            is_work |= not isinstance(command, Born)
        self._after_change(is_work=is_work)

    def _apply_command(self, offset: int, command: Command) -> None:
        if offset > self.catalog.offset and not isinstance(command, BeginEpoch):
            self._stray()
            return
        outcome = self.catalog.apply(offset, command)
        if outcome == "other-base":
            self._stray()
        elif isinstance(command, BeginEpoch) and outcome == "done":
            self.astray = False
            logger.warning("the catalog was recovered by force and goes on as %s", self.catalog.version)
        self._outcomes[offset] = Applied(outcome, self.catalog.subject(command))
        if len(self._outcomes) > MAX_OUTCOMES:
            del self._outcomes[next(iter(self._outcomes))]

    def _stray(self) -> None:
        """What the log goes on from is not the state here; a peer has what it has become."""
        if not self.astray:
            logger.warning("the catalog here (%s) is of another lineage than its log", self.catalog.version)
        self.astray = True
        self.look()

    def _is_between_epochs(self) -> bool:
        """The log was recovered by force, and the epoch of that has not begun in the state here. What such a
        state says may contradict what others know under the same numbers: nobody is told, nothing is carried
        out."""
        groups = self._groups
        if not groups.has(CATALOG_GROUP):
            return False
        return groups.status(CATALOG_GROUP).term >> EPOCH_BITS > recoveries(self.catalog.epoch)

    def _next_offset(self) -> int:
        """Of the first command of the log that has to be looked at. Numbers of an earlier epoch do not say
        how much of this log is known: all of it is gone through for where the new one begins."""
        if not self._is_between_epochs():
            return self.catalog.offset
        return min(self.catalog.offset, self._groups.status(CATALOG_GROUP).log_start_offset)

    def _saved_offset(self) -> int:
        saved = self._saved_version
        is_of_this_log = saved.epoch == self.catalog.epoch and not self._is_between_epochs()
        return saved.offset if is_of_this_log else 0

    def _after_change(self, *, is_work: bool = True) -> None:
        """is_work: something may have to be opened or deleted; else the state is merely saved, in a while."""
        between = self._is_between_epochs()
        if not between:
            self.published = self.catalog.version
        self._changed.set()
        self._changed = asyncio.Event()
        if between:
            self._news.set()  # if this agent leads it, the epoch begins now
            return
        if self.catalog.sealed_for is not None:
            self.sealed.set()
        self._replicas.pass_births_on()
        if is_work:
            self._work.set()
        elif self._saving is None:
            self._saving = asyncio.get_running_loop().call_later(SAVE_LATER_S, self._work.set)
        self._watch.changed()
        if self._groups.has(CATALOG_GROUP):
            hint = self.published.to_bytes()
            for peer in self._peers.live_peers():
                self._peers.send_control(peer, PeerMessage.CATALOG_HINT, hint)

    async def wait_for(self, version: CatalogVersion, timeout_ms: int) -> bool:
        """True once the state is at least that version, of whichever epoch."""
        return await self._wait_until(lambda: self.catalog.version >= version, timeout_ms)

    async def wait_published(self, version: CatalogVersion, timeout_ms: int) -> bool:
        """True once peers may be told of a state that is at least that version."""
        return await self._wait_until(lambda: self.published >= version, timeout_ms)

    async def _wait_until(self, condition: Callable[[], bool], timeout_ms: int) -> bool:
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                while not condition():
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    # ---- proposing (at the catalog's leader) -----------------------------------------------------

    async def make_current(self, timeout_ms: int) -> None:
        """Return once everything committed before this call has been applied here. ShoalError otherwise."""
        await self._begin_epoch(timeout_ms)
        await self._apply_committed(timeout_ms)

    async def _apply_committed(self, timeout_ms: int) -> None:
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                end = (await self._groups.offsets(CATALOG_GROUP)).high_watermark
        except TimeoutError:
            raise ShoalError(
                "timeout", "the catalog's leader was not confirmed in time", definite=True
            ) from None
        if not await self._wait_until(lambda: self.catalog.offset >= end, timeout_ms):
            raise ShoalError("timeout", "the catalog was not applied in time", definite=True)

    async def propose(self, command: Command, timeout_ms: int) -> Applied:
        """Commit and apply one command; what came of it, at its place among all the others."""
        await self._begin_epoch(timeout_ms)
        return await self._append(command, timeout_ms)

    async def _append(self, command: Command, timeout_ms: int) -> Applied:
        columns = RecordColumns([None], [None], [encode_command(command)], [None])
        message = message_from_batch(columns_to_batch(columns, self._now_us()))
        appended = await self._groups.append(CATALOG_GROUP, Submission.of([message], timeout_ms=timeout_ms))
        offset = appended.base_offset

        def is_applied() -> bool:
            if offset in self._outcomes:
                return True  # a new epoch's numbers may begin below those of the state before
            return self.catalog.offset > offset and not isinstance(command, BeginEpoch)

        if not await self._wait_until(is_applied, timeout_ms):
            raise ShoalError("timeout", "committed, but not applied here in time", definite=False)
        applied = self._outcomes.pop(offset, None)
        if applied is None:  # the state came from a peer, which does not say what came of whom
            raise ShoalError("timeout", "committed, but what came of it is not known here", definite=False)
        return applied

    async def _begin_epoch(self, timeout_ms: int) -> None:
        """The first command after a recovery by force; nothing to do in any other case."""
        async with self._beginning:
            if not self._is_between_epochs():
                return
            await self._apply_committed(timeout_ms)
            count = self._groups.status(CATALOG_GROUP).term >> EPOCH_BITS
            epoch = epoch_of(count, self._rng.getrandbits(EPOCH_RANDOM_BITS))
            applied = await self._append(BeginEpoch(epoch, self.catalog.digest()), timeout_ms)
            if applied.outcome != "done":
                raise ShoalError("not-ready", "the recovered catalog begins its epoch: ask again")

    async def tell_peers(self) -> None:
        """Wait, for a bounded time, until the live members know the present version: what a client has just
        been told exists should be found wherever it asks next."""
        version = self.catalog.version
        await asyncio.gather(*(self._await_peer(peer, version) for peer in self._peers.live_peers()))

    async def _await_peer(self, peer: str, version: CatalogVersion) -> None:
        """One question to a peer at a time, for all who wait: however many topics clients make, what agents
        ask each other finds its place in the link."""
        asking = self._asking.setdefault(peer, _Asking())
        async with asking.lock:
            if asking.asked is not None and asking.asked >= version:
                return
            asking.asked = self.catalog.version
            try:
                payload = asking.asked.to_bytes()
                await self._peers.request(peer, PeerMessage.CATALOG_AWAIT, payload, AWAIT_MS)
            except (PeerUnavailable, PeerRequestFailed) as error:
                logger.debug("%s has not confirmed the catalog's version: %s", peer[:8], error)

    # ---- requests and hints of peers -------------------------------------------------------------

    async def on_pull(self, _peer: str, payload: bytes) -> bytes:
        """A piece of the state for a follower that is behind; nothing when it is not."""
        question = question_from_bytes(payload)
        if question is None:
            raise PeerMessageError(f"no question for the catalog, {len(payload)} bytes")
        if self._is_between_epochs() or question.mine >= self.catalog.version:
            return b""
        goes_on = question.position > 0 and question.taking == self._encoded[0]
        version, data = self._encoded if goes_on else self._encode()
        start = question.position if goes_on and question.position < len(data) else 0
        return Piece(version, len(data), data[start : start + PIECE_BYTES]).to_bytes()

    def _encode(self) -> tuple[CatalogVersion, bytes]:
        """The present state; encoded once for the disk and for everybody who takes a copy."""
        if self._encoded[0] != self.catalog.version:
            self._encoded = (self.catalog.version, self.catalog.to_bytes())
        return self._encoded

    async def on_await(self, peer: str, payload: bytes) -> bytes:
        """Answer when this agent has reached the version, or cannot in time."""
        wanted = decode_version(payload)
        self.on_hint(peer, payload)
        await self.wait_published(wanted, AWAIT_MS)
        return self.published.to_bytes()

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
            await self._begin_epoch_if_leading()
            self._report_kept()
            source = self._newest_peer()
            if source is None or not await self._pull(source):
                await wait_or(self._news, FOLLOW_INTERVAL_MS)

    async def _begin_epoch_if_leading(self) -> None:
        if self._catalog_leader() != self._agent_id or not self._is_between_epochs():
            return
        try:
            await self._begin_epoch(CONFIRM_TIMEOUT_MS)
        except ShoalError as error:
            logger.info("the recovered catalog has not begun its epoch yet: %s", error)

    def _newest_peer(self) -> str | None:
        leads = self._catalog_leader() == self._agent_id
        if leads and not self.astray and not self._lacks_what_was_trimmed():
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
            groups.has(CATALOG_GROUP) and groups.status(CATALOG_GROUP).log_start_offset > self.catalog.offset
        )

    async def _take_copy(self, peer: str) -> bytes:
        """Empty when the peer has nothing newer. Raises CatalogError and what a request raises."""
        copy = Copy(self.catalog.version)
        while (data := copy.state()) is None:
            answer = await self._peers.request(
                peer, PeerMessage.CATALOG_PULL, copy.question(), PULL_TIMEOUT_MS
            )
            if not answer:
                return b""
            copy.add(answer)
        return data

    async def _pull(self, peer: str) -> bool:
        """True when the state has advanced."""
        try:
            data = await self._take_copy(peer)
            newer = Catalog.from_bytes(data) if data else None
        except (PeerUnavailable, PeerRequestFailed, CatalogError) as error:
            logger.info("cannot follow the catalog at %s: %s", peer[:8], error)
            self._heard.pop(peer, None)
            return False
        if newer is None or newer.version <= self.catalog.version:
            self._heard.pop(peer, None)
            return False
        held = [record.group for record in self._groups.replica_records()]
        self._record = replace(self._record, kept=remember(self._record.kept, self.catalog, newer, held))
        self.catalog = newer
        self.astray = False
        self._after_change()
        return True

    def _report_kept(self) -> None:
        """Not while the catalog here may only be late."""
        late = self._catalog_leader() is None or self.astray or self._is_between_epochs()
        newest = max(self._peers.catalog_versions().values(), default=self.published)
        if not late and newest <= self.published:
            self.keeping.report()

    # ---- carrying out ----------------------------------------------------------------------------

    async def _carry_out_for_ever(self) -> None:
        delay_ms = RETRY_MS_MIN
        while True:
            await self._work.wait()
            self._work.clear()
            self._save_no_later()
            if await self._carry_out():
                delay_ms = RETRY_MS_MIN
                continue
            await wait_or(self._work, delay_ms)
            self._work.set()
            delay_ms = min(2 * delay_ms, RETRY_MS_MAX)

    def _save_no_later(self) -> None:
        if self._saving is not None:
            self._saving.cancel()
            self._saving = None

    async def _carry_out(self) -> bool:
        """Save the state, open what should be here, delete what is dead. False: something must be tried
        again.
        """
        if self._is_between_epochs():
            return True  # what begins the epoch sets to work
        async with self.changing:
            try:
                await self._save_state()
            except OSError as error:
                logger.warning(
                    "the catalog's state is not saved, and nothing new is opened until it is: %s", error
                )
                return False
            dead = self._replicas.dead_topics()
            done = await self._replicas.give_up_births()
            done &= await self._replicas.open_missing()
            self._replicas.pass_settings_on()
            self._replicas.pass_births_on()
            gone = [
                topic_id for topic_id, parts in dead.items() if await self._replicas.delete(topic_id, parts)
            ]
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
            version = self.catalog.version
            record = self._record = replace(self._record, catalog=self._encode()[1])
            await self._save(record)
            self._saved_version = version

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


async def wait_or(event: asyncio.Event, timeout_ms: int) -> None:
    """Until the event, or until the time is up."""
    try:
        async with asyncio.timeout(timeout_ms / 1_000):
            await event.wait()
    except TimeoutError:
        return
