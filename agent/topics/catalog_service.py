"""The catalog at work in one agent: applying, proposing, and making the disk agree with it.

Law of this file: it feeds the state machine of catalog.py: by the `_catalog` group where this agent votes, by
a peer's copy (catalog_exchange.py) where it does not. Carrying out is level-triggered: one task compares the
replicas that should be held with those that are (catalog_reconciler.py), and repeats what has failed.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from shoal.agent.durable.catalog_version import EPOCH_RANDOM_BITS, epoch_of, recoveries
from shoal.agent.durable.identity import ReplicaState
from shoal.agent.durable.ids import CATALOG_GROUP, GroupId
from shoal.agent.events.change_counter import Watch
from shoal.agent.host.host import Host
from shoal.agent.host.unsafe_recovery import EPOCH_BITS
from shoal.agent.levels import SEE_LEVEL, SUPPORTED, Level, LevelRange, too_low
from shoal.agent.log_lines.names import topic_name
from shoal.agent.log_lines.repeats import once_a_minute
from shoal.agent.log_lines.schema import about
from shoal.agent.members.roster import Roster
from shoal.agent.partition.plan import Plan, StateMachine
from shoal.agent.partition.state.retention import Retention
from shoal.agent.partition.status import ServingState
from shoal.agent.peers.messages import PeerMessage, decode_topic_id
from shoal.agent.process.clock import is_set_within
from shoal.agent.process.errors import RefusedError
from shoal.agent.security.principals import SecurityCommand
from shoal.agent.submission import Submission
from shoal.agent.topics.catalog import (
    BeginEpoch,
    Catalog,
    CatalogError,
    Command,
    ConfirmBirths,
    ConfirmDeletion,
    Outcome,
    RaiseLevel,
    TopicEntry,
)
from shoal.agent.topics.catalog_codec import decode_command, encode_command, level_of_command
from shoal.agent.topics.catalog_exchange import CatalogExchange
from shoal.agent.topics.catalog_founders import CATALOG_SEGMENT_BYTES
from shoal.agent.topics.catalog_reconciler import TopicReplicas, tell_cleared_write
from shoal.agent.topics.entries import HigherLevel
from shoal.agent.topics.kept_replicas import KeptReplicas
from shoal.agent.topics.local_catalog import LocalCatalog
from shoal.errors import ShoalError
from shoal.format.batch import DEFAULT_SCHEMA, Frame, message_from_batch, to_record_batch
from shoal.format.records import RecordColumns, columns_to_batch
from shoal.replication.interfaces import Configuration, ReplicaId
from shoal.segment_store.config import LogConfig

FOLLOW_INTERVAL_S = 1.0  # without any hint: how often the members' versions are compared
SAVE_LATER_S = 1.0
"""Births need no work but this save, and a thousand of them are several commands within seconds."""
RETRY_S_MIN = 0.2
RETRY_S_MAX = 10.0
CONFIRM_TIMEOUT_MS = 5_000
CUT_OFF_S = 5.0
"""An agent that starts waits so long for the catalog's leader, several elections, before it judges by what it
knows. A revocation may take as long to an agent that is heard."""
CURRENT_POLL_MS = 100
CATALOG_RETENTION = Retention(size_bytes=4 * 2**20)
"""Some thousand commands. Only a voter that lags reads them; nothing is trimmed that the saved state
lacks."""
MAX_OUTCOMES = 1_024  # far more than proposals that wait at the same time: each is an HTTP request

logger = logging.getLogger(__name__)
seldom = once_a_minute(logger)


class Applied(NamedTuple):
    """The outcome of a command. entry: of its topic, as the command found or left it."""

    outcome: Outcome
    entry: TopicEntry | None


class CatalogService:
    """Owns the Catalog of this agent. Start with start(), then run() for the agent's life."""

    def __init__(
        self,
        *,
        local: LocalCatalog,
        groups: Host,
        peers: Roster,
        watch: Watch,
        rng: random.Random,
        leader: Callable[[], str | None],
        now_us: Callable[[], int],
        levels: LevelRange = SUPPORTED,
    ) -> None:
        """`leader`: the agent that leads the catalog, None while nobody is known to. `levels`: those that
        this agent understands."""
        self.leader = leader
        self.local = local
        self.exchange = CatalogExchange(self.local, peers, rng, self.leads, levels)
        self.on_security: Callable[[tuple[int, int], SecurityCommand], None] | None = None
        """Told of each command about principals, roles and tokens that was carried out, with its place."""
        self.halted: str | None = None
        self.is_current = True
        """Whether requests may be judged by the state here, or it may be from before a crash. Where it is
        False before run(), it becomes True with all that the leader has, or else with all of the own log."""
        self.sealed = asyncio.Event()
        self.changing = asyncio.Lock()
        """Held while replicas are opened or deleted: one task at a time decides what is here."""
        self._levels = levels
        self._outgrown = asyncio.Event()
        """The cluster is at a level that this agent does not understand."""
        self._groups = groups
        self._peers = peers
        self._watch = watch
        self._rng = rng
        self._now_us = now_us
        self._work = asyncio.Event()
        self._saving: asyncio.TimerHandle | None = None
        self._outcomes: dict[int, Applied] = {}
        """Of the newest commands applied here, by offset, until their proposers have taken them."""
        self._beginning = asyncio.Lock()
        self._replicas = TopicReplicas(peers.agent_id, groups, self.local)
        groups.reopener.on_opened = self._work.set
        self.kept_replicas = KeptReplicas(peers, groups, self.local, self._replicas.dead_topics)
        if self.catalog.sealed_for is not None:
            self.sealed.set()  # a crash came between the seal and giving the cluster up

    @property
    def catalog(self) -> Catalog:
        return self.local.catalog

    @property
    def birth(self) -> tuple[str, ...]:
        """Agent ids of the catalog's birth voters."""
        return self.local.record.catalog_birth

    def leads(self) -> bool:
        """Whether this agent leads the catalog, as far as it knows."""
        return self.leader() == self._peers.agent_id

    async def start(self) -> None:
        """Open the catalog's own group, if this agent holds it."""
        async with self.changing:
            record = self._groups.replica_record(CATALOG_GROUP)
            if record is None and self._peers.agent_id in self.birth:
                await self._open_catalog(None)
            elif record is not None and record.state is not ReplicaState.REMOVED:
                await self._open_catalog(record.replica_id)
                logger.info(
                    "recovered the catalog: %s; topics: %d",
                    self._groups.status(CATALOG_GROUP).state,
                    len(self.catalog.topics),
                    extra=about("recovered-catalog"),
                )
        self._work.set()

    async def _open_catalog(self, replica_id: ReplicaId | None) -> None:
        plan = Plan(
            CATALOG_GROUP,
            Configuration.birth(self.birth),
            DEFAULT_SCHEMA,
            LogConfig(segment_bytes=CATALOG_SEGMENT_BYTES),
            replica_id,
            machine=StateMachine(self.apply, self.local.next_offset, self.local.saved_offset),
            retention=CATALOG_RETENTION,
        )
        await self._groups.open_group(plan)
        tell_cleared_write(self._groups, CATALOG_GROUP)

    async def open_replica(self, group: GroupId, replica_id: ReplicaId) -> None:
        """Open a replica that a committed configuration has added; `changing` is held. ShoalError
        unknown-topic while the topic is not known here: it may be soon."""
        if group == CATALOG_GROUP:
            if replica_id.term >> EPOCH_BITS > recoveries(self.catalog.epoch):
                self.exchange.look()
                raise ShoalError("not-ready", "the catalog here is of an epoch before this replica's")
            await self._open_catalog(replica_id)
            return
        entry = self.catalog.by_id(group.topic_id)
        if entry is None or group.partition >= len(entry.partitions):
            self.exchange.look()
            raise ShoalError("unknown-topic", f"{topic_name(group.topic_id)} is not in the catalog here")
        self._replicas.note_held(entry.topic_id)
        await self.local.save()
        await self._replicas.open_partition(entry, group.partition, replica_id)

    async def run(self) -> None:
        """Follow and carry out, until cancelled. A voter pulls too: its own log may lag. Raises RefusedError:
        the cluster has outgrown this agent."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._carry_out_for_ever())
                tasks.create_task(self._follow_for_ever())
                if not self.is_current:
                    tasks.create_task(self._become_current())
                await self._outgrown.wait()
                raise RefusedError(f"cluster {self.local.record.cluster}: {self.halted}")
        finally:
            self._save_no_later()

    async def _become_current(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(CUT_OFF_S):
                while not await self._has_all_of_leader():
                    await self._watch.wait_next(CURRENT_POLL_MS)
        while not self._has_all_of_own_log():
            await self._watch.wait_next(CURRENT_POLL_MS)
        self.is_current = True
        self._watch.changed()

    async def _has_all_of_leader(self) -> bool:
        leader = self.leader()
        if leader is None:
            return False
        if leader != self._peers.agent_id:
            version = await self.exchange.ask_version(leader)
            return version is not None and self.local.published >= version and not self.local.astray
        if self.local.is_between_epochs():
            return False  # _begin_epoch_if_leading() ends that
        try:
            await self._apply_committed(CONFIRM_TIMEOUT_MS)
        except ShoalError as error:
            logger.debug("_catalog: its leader here is not confirmed yet: %s", error)
            return False
        return True

    def _has_all_of_own_log(self) -> bool:
        """As far as it is known to be committed. A replica that does not serve tells nothing; neither does a
        log that goes on from another state."""
        if self.halted is not None:
            return False
        if not self._groups.has(CATALOG_GROUP) or self.local.astray or self.local.is_between_epochs():
            return True
        status = self._groups.status(CATALOG_GROUP)
        return status.state is not ServingState.ACTIVE or self.catalog.offset >= status.high_watermark

    # ---- applying -----------------------------------------------------------------------------------------

    def apply(self, frame: Frame) -> None:
        """One committed frame of the `_catalog` log. The host gives each once per run, in order."""
        epoch = frame.stamp.term >> EPOCH_BITS
        if self.halted is not None or epoch < recoveries(self.catalog.epoch):
            return  # of a lineage that was left
        values = to_record_batch(frame.data, DEFAULT_SCHEMA).column("value").to_pylist()
        is_work = False
        for offset, value in enumerate(values, start=frame.stamp.base_offset):
            if offset < self.catalog.offset and epoch == recoveries(self.catalog.epoch):
                continue  # it came in a newer state already
            try:
                command = self._understood(value or b"")
            except CatalogError as error:
                # An agent that skipped a command would have another catalog than its peers.
                self._halt(offset, error)
                return
            self._apply_command(offset, command)
            is_work |= not isinstance(command, ConfirmBirths)
        self._after_change(is_work=is_work)

    def _understood(self, value: bytes) -> Command:
        """Raises CatalogError."""
        command = decode_command(value)
        if (level := level_of_command(command)) > self._levels.highest:
            raise HigherLevel(level, self._levels)
        return command

    def _halt(self, offset: int, error: CatalogError) -> None:
        if isinstance(error, HigherLevel):
            self.halted = str(error)
            self._outgrown.set()
            return
        self.halted = f"the catalog's record {offset} cannot be understood: {error}"
        logger.error(
            "_catalog: %s; upgrade this agent to the version of its peers",
            self.halted,
            extra=about("catalog-halted"),
        )

    def _apply_command(self, offset: int, command: Command) -> None:
        if offset > self.catalog.offset and not isinstance(command, BeginEpoch):
            self._stray()
            return
        outcome = self.catalog.apply(offset, command)
        if outcome == "other-base":
            self._stray()
        elif isinstance(command, BeginEpoch) and outcome == "done":
            self.local.astray = False
            logger.warning("_catalog: recovered by force; it continues as version %s", self.catalog.version)
        if self.on_security is not None and outcome == "done" and isinstance(command, SecurityCommand):
            self.on_security((self.catalog.epoch, offset), command)
        self._outcomes[offset] = Applied(outcome, self.catalog.subject(command))
        if len(self._outcomes) > MAX_OUTCOMES:
            del self._outcomes[next(iter(self._outcomes))]

    def _stray(self) -> None:
        """The log goes on from another state than the one here; a peer has its newest form."""
        if not self.local.astray:
            logger.warning("_catalog: state %s is not of its recovered log", self.catalog.version)
        self.local.astray = True
        self.exchange.look()

    def _after_change(self, *, is_work: bool = True) -> None:
        """is_work: replicas may have to be opened or deleted; else the state is only saved, a while later."""
        if not self.local.publish():
            self.exchange.look()  # if this agent leads it, the epoch begins now
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
            self.exchange.hint()

    # ---- following -------------------------------------------------------------------------------

    async def _follow_for_ever(self) -> None:
        while True:
            self.exchange.news.clear()
            await self._begin_epoch_if_leading()
            self._report_kept()
            try:
                newer = await self.exchange.pull_newest()
            except HigherLevel as error:
                self.halted = str(error)
                self._outgrown.set()
                return
            if newer is None:
                await is_set_within(self.exchange.news, FOLLOW_INTERVAL_S)
                continue
            is_below = newer.epoch > self.catalog.epoch and newer.level < self.local.level
            self.local.take(newer)
            self._after_change()
            if is_below:
                self._peers.greet_again()  # its leader may have heard of no level but its own

    def note_level(self, level: Level) -> None:
        """A member knows the cluster at this level. The log tells it a moment later, as a rule. It does not
        after a recovery by force at an agent that was away when the level rose."""
        if level > self.local.level:
            self.local.note_level(level)
            self._peers.set_level(level)
            self._work.set()

    def _report_kept(self) -> None:
        """Not while the catalog here may only be late."""
        local = self.local
        late = self.leader() is None or local.astray or local.is_between_epochs()
        newest = max(self._peers.catalog_versions().values(), default=local.published)
        if not late and newest <= local.published:
            self.kept_replicas.report()

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
        if not await self.local.wait_until(lambda: self.catalog.offset >= end, timeout_ms):
            raise ShoalError("timeout", "the catalog was not applied in time", definite=True)

    async def propose(self, command: Command, timeout_ms: int) -> Applied:
        """Commit and apply one command; its outcome, at its place in the log. ShoalError level-too-low for
        one that the cluster's members may not understand."""
        level = level_of_command(command)
        if level > self.catalog.level and not isinstance(command, RaiseLevel):
            raise ShoalError("level-too-low", too_low("this", level, self.catalog.level, SEE_LEVEL))
        await self._begin_epoch(timeout_ms)
        return await self._append(command, timeout_ms)

    async def _append(self, command: Command, timeout_ms: int, *behind: Command) -> Applied:
        """The outcome of the first. Between it and those `behind` nobody sees a state."""
        values: list[bytes | None] = [encode_command(item) for item in (command, *behind)]
        count = len(values)
        columns = RecordColumns([None] * count, [None] * count, values, [None] * count)
        message = message_from_batch(columns_to_batch(columns, self._now_us()))
        appended = await self._groups.append(CATALOG_GROUP, Submission.of([message], timeout_ms=timeout_ms))
        offset = appended.base_offset

        def is_applied() -> bool:
            if offset in self._outcomes:
                return True  # a new epoch's numbers may begin below those of the state before
            return self.catalog.offset > offset and not isinstance(command, BeginEpoch)

        if not await self.local.wait_until(is_applied, timeout_ms):
            raise ShoalError("timeout", "committed, but not applied here in time", definite=False)
        applied = self._outcomes.pop(offset, None)
        if applied is None:  # the state came from a peer, which gives no outcomes
            raise ShoalError("timeout", "committed, but its outcome is not known here", definite=False)
        return applied

    async def _begin_epoch(self, timeout_ms: int) -> None:
        """The first command after a recovery by force; in any other case nothing."""
        async with self._beginning:
            if not self.local.is_between_epochs():
                return
            await self._apply_committed(timeout_ms)
            count = self._groups.status(CATALOG_GROUP).term >> EPOCH_BITS
            epoch = epoch_of(count, self._rng.getrandbits(EPOCH_RANDOM_BITS))
            level = self.local.level
            behind = [RaiseLevel(level)] if level > self.catalog.level else []
            begin = BeginEpoch(epoch, self.catalog.digest())
            applied = await self._append(begin, timeout_ms, *behind)
            if applied.outcome != "done":
                raise ShoalError("not-ready", "the recovered catalog begins its epoch: ask again")

    async def _begin_epoch_if_leading(self) -> None:
        if not self.leads() or not self.local.is_between_epochs():
            return
        try:
            await self._begin_epoch(CONFIRM_TIMEOUT_MS)
        except ShoalError as error:
            seldom.info("_catalog: cannot begin the recovered epoch yet, trying again: %s", error)

    async def saved_security(self, timeout_ms: int) -> None:
        """Return once principals, roles and tokens as they are here would survive a crash. ShoalError timeout
        otherwise."""
        if not await self.local.wait_until(self.local.has_saved_security, timeout_ms):
            raise ShoalError("timeout", "committed, but not saved here in time", definite=False)

    # ---- carrying out ----------------------------------------------------------------------------

    async def _carry_out_for_ever(self) -> None:
        delay_s = RETRY_S_MIN
        while True:
            await self._work.wait()
            self._work.clear()
            self._save_no_later()
            if await self._carry_out():
                delay_s = RETRY_S_MIN
                continue
            await is_set_within(self._work, delay_s)
            self._work.set()
            delay_s = min(2 * delay_s, RETRY_S_MAX)

    def _save_no_later(self) -> None:
        if self._saving is not None:
            self._saving.cancel()
            self._saving = None

    async def _carry_out(self) -> bool:
        """Save the state, then open and delete replicas. False: something must be tried again."""
        if self.local.is_between_epochs():
            return True  # the begin of the epoch sets to work again
        async with self.changing:
            try:
                await self.local.save()
            except OSError as error:
                seldom.warning("_catalog: cannot save the state, so nothing is opened or deleted: %s", error)
                return False
            done, deleted = await self._replicas.carry_out()
        for topic_id in deleted:
            tombstone = self.catalog.tombstones.get(topic_id)
            if tombstone is not None and self._peers.agent_id in tombstone.waiting_for:
                done &= await self._confirm(topic_id)
        return done

    async def _confirm(self, topic_id: bytes) -> bool:
        """Tell the catalog that nothing is left here."""
        leader = self.leader()
        try:
            if leader is None:
                raise ShoalError("no-leader", "the catalog has no leader at present")
            if leader == self._peers.agent_id:
                await self.propose(ConfirmDeletion(topic_id, leader), CONFIRM_TIMEOUT_MS)
            else:
                await self._peers.request(leader, PeerMessage.CATALOG_CONFIRM, topic_id, CONFIRM_TIMEOUT_MS)
        except Exception as error:  # noqa: BLE001 -- tried again; the tombstone keeps the duty
            seldom.warning("%s: cannot confirm its deletion yet: %s", topic_name(topic_id), error)
            return False
        return True

    async def on_confirm(self, peer: str, payload: bytes) -> bytes:
        """A holder has deleted its replicas of a dead topic."""
        topic_id = decode_topic_id(payload)
        tombstone = self.catalog.tombstones.get(topic_id)
        if tombstone is not None and peer in tombstone.waiting_for:
            await self.propose(ConfirmDeletion(topic_id, peer), CONFIRM_TIMEOUT_MS)
        return b""
