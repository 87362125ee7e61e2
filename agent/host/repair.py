"""Damage is mended from peers: the exact bytes of an entry, from any intact copy of it (safety 10).

Law of this file: who is asked, how often, and what the answers mean; how bytes get into their place stands in
segment_store/check/repair.py. A replica that runs goes on during repair: the range answers `damaged`, and its
core knows the damage. A leader leads on, since no other replica could serve entries that it cannot repair.
One whose log cannot be folded for damage is mended before it speaks.

An entry that no peer has is dropped when so many voters hold intact logs without it that it was never
committed. It is quarantined when all voters have answered and none has it intact: the replica goes on around
it, loudly, and asks on. Otherwise it waits; where a peer has trimmed it, for another replica in its place.
Nothing is ever cut because a checksum is wrong.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, NamedTuple

from shoal.agent.durable.identity import HardStateFile
from shoal.agent.durable.ids import GroupId
from shoal.agent.durable.paired_file import PairedFileError, PairedFileFull
from shoal.agent.host.open_group import GroupHost, nothing
from shoal.agent.log_lines.names import agent_name
from shoal.agent.log_lines.repeats import once_a_minute
from shoal.agent.partition.opener import DamagedReplica
from shoal.agent.partition.replica import Replica
from shoal.agent.peers.entry_messages import (
    EntryId,
    EntryRequest,
    EntryState,
    decode_entry,
    decode_entry_wanted,
    encode_entry,
    encode_entry_wanted,
)
from shoal.agent.peers.links import Links, PeerRequestFailed, PeerUnavailable
from shoal.agent.peers.messages import PeerMessage, PeerMessageError
from shoal.errors import ShoalError
from shoal.format.batch import BatchError, Frame, LogIdentity, LogIndex, Term, parse_frame
from shoal.replication.errors import WireError
from shoal.replication.interfaces import Configuration, ReplicaId
from shoal.replication.interfaces import Replica as RaftReplica
from shoal.replication.state.commit_evidence import in_force, was_never_committed
from shoal.segment_store.check.damage import DamagedRange, within
from shoal.segment_store.check.repair import mend_entries, mend_frame
from shoal.segment_store.errors import ChainBroken, Damaged, DiskFull, OffsetOutOfRange, StoreError
from shoal.segment_store.log.log import PartitionLog

ENTRY_TIMEOUT_MS = 5_000
RETRY_MIN_S = 0.2
RETRY_MAX_S = 10.0
"""Between two rounds of questions: at first a peer may just not be connected yet; then it is away."""
MAX_HOLDERS_ASKED = 8
"""In a round: any that is up to date will do."""
MAX_MENDING = 4
"""Groups mended at the same time: questions and writes beside everything else."""

logger = logging.getLogger(__name__)
seldom = once_a_minute(logger)


class _Stretch(NamedTuple):
    """Damaged entries of one log, both ends included."""

    group: GroupId
    log: PartitionLog
    identity: LogIdentity
    first_index: LogIndex
    last_index: LogIndex
    replica_id: ReplicaId
    configurations: Sequence[Configuration]
    newest_term: Term | None
    """Of leaders to whom entries behind it may have been acknowledged; None while that is still done."""
    present: Sequence[RaftReplica] = ()
    """Who holds the group today, as far as the log itself cannot say: they may lend, and have no word in what
    was committed before them."""


class LogRepair:
    """One per host. Its tasks end with `stop`."""

    def __init__(self, links: Links, host: GroupHost, hard_states: HardStateFile) -> None:
        self._links = links
        self._host = host
        self._hard_states = hard_states
        self._tasks: dict[GroupId, asyncio.Task[None]] = {}
        self._waiting: dict[GroupId, DamagedReplica] = {}
        """Replicas that cannot be opened for damage; their logs are."""
        self.hopeless: set[GroupId] = set()
        """Of those that wait: what they lack is trimmed elsewhere."""
        self.holders: Callable[[GroupId], Collection[str]] = lambda _: ()
        """Agents that claim to hold a replica of the group, by the routing table."""
        self._slots = asyncio.Semaphore(MAX_MENDING)
        links.handle_request(PeerMessage.ENTRY, self.on_entry)

    # ---- questions of peers ----------------------------------------------------------------------

    async def on_entry(self, _peer: str, payload: bytes) -> bytes:
        """The exact bytes of an entry that is held here, whether this replica runs or waits itself. Raises
        ShoalError when nothing of the group is open here."""
        group, wanted = decode_entry_wanted(payload)
        waiting = self._waiting.get(group)
        if waiting is not None:
            return await _lend(waiting.log, wanted.entry, is_whole=False)
        replica = self._host.replica(group)
        # A replica that says that it lacks an entry must never take it from a leader that may count the
        # asker's acknowledgement. It must not stand in the place of another that had it.
        is_whole = replica.failure is None and not replica.disk.log_is_behind and not replica.damaged_ranges
        if is_whole and _is_overruled(replica, wanted.entry):
            return encode_entry(EntryState.OVERRULED)
        is_whole = is_whole and replica.replica_id == wanted.asked
        if is_whole and self._host.stored_term(group) <= wanted.newest_term:
            is_whole = False
            self._forswear(replica, wanted)
        return await _lend(replica.log, wanted.entry, is_whole=is_whole, met=replica.met)

    def _forswear(self, replica: Replica, wanted: EntryRequest) -> None:
        """Where the asker's vote is needed to elect anybody, no newer term comes by itself."""
        if replica.log.term_at(wanted.entry.index) != wanted.entry.term:
            replica.core.forswear(wanted.newest_term, self._host.clock.now_ms())
            self._host.schedule(replica)

    # ---- replicas that run -----------------------------------------------------------------------

    def found(self, group: GroupId) -> None:
        """Damage was met in the log of an open replica, whose `damaged_ranges` name it."""
        try:
            replica = self._host.replica(group)
        except ShoalError:
            return  # closed meanwhile
        self._tell_core(replica)
        if group not in self._tasks and replica.damaged_ranges:
            self._begin(group, self._mend_running(replica))

    def _tell_core(self, replica: Replica) -> None:
        if replica.failure is not None:
            return
        damaged = [
            (item.first_index, item.last_index)
            for item in replica.damaged_ranges
            if item.costs_entries and item.first_index not in replica.plan.quarantined
        ]
        replica.core.damaged(damaged, self._host.clock.now_ms())
        self._host.schedule(replica)

    async def _mend_running(self, replica: Replica) -> None:
        delay_s = RETRY_MIN_S
        while replica.failure is None:
            replica.damaged_ranges = within(replica.damaged_ranges, replica.log.first_index)
            async with self._slots:
                doubtful = [item for item in replica.damaged_ranges if await self._mend_range(replica, item)]
            if doubtful and replica.failure is None and self._host.may_reopen(replica):
                # Opened anew it finds the damage before it speaks, asks again, and drops what it must.
                logger.warning("%s: opening the replica again to drop uncommitted entries", replica.group)
                await self._host.reopen(replica.group, nothing)
                return
            self._tell_core(replica)
            if not replica.damaged_ranges:
                return
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, RETRY_MAX_S)

    async def _mend_range(self, replica: Replica, item: DamagedRange) -> bool:
        """True: what it holds was never committed."""
        log = replica.log
        try:
            if not item.costs_entries:
                await mend_frame(log, item)
            elif await self._mend_entries(replica, item):
                return True
        except (Damaged, OffsetOutOfRange, ChainBroken) as error:
            seldom.warning("%s: damage is not repaired yet: %s", replica.group, error)
            return False
        except StoreError as error:
            replica.fail("damaged", f"damage cannot be mended: {error}")
            return False
        if item in replica.damaged_ranges:  # else it has grown meanwhile
            replica.damaged_ranges = tuple(other for other in replica.damaged_ranges if other != item)
            logger.warning("%s: damage repaired: %s", replica.group, item)
        return False

    async def _mend_entries(self, replica: Replica, item: DamagedRange) -> bool:
        """True: it was never committed. Raises StoreError; Damaged when a peer's copy is not to be had."""
        if item.last_index < replica.log.first_index:
            return False  # trimmed meanwhile
        stretch = _Stretch(
            replica.group,
            replica.log,
            replica.identity,
            item.first_index,
            item.last_index,
            replica.replica_id,
            replica.core.configurations,
            newest_term=None,
        )
        missing, answers = await self._mend(stretch)
        if missing is None:
            return False
        is_open_question = (
            missing.index > replica.core.commit_index and missing.index not in replica.plan.quarantined
        )
        if is_open_question and _rule_out(stretch, missing, answers):
            return True  # it seems so: what acknowledges nothing more is certain, and asks again
        raise Damaged(item.path, item.position, "no peer has it now", missing.index, missing.index)

    # ---- replicas that wait ----------------------------------------------------------------------

    def wait(self, damaged: DamagedReplica) -> None:
        """Mend the log, then open the replica."""
        self._waiting[damaged.plan.group] = damaged
        self._begin(damaged.plan.group, self._mend_waiting(damaged))

    async def _mend_waiting(self, damaged: DamagedReplica) -> None:
        group, delay_s = damaged.plan.group, RETRY_MIN_S
        missing = list(damaged.damage)
        quarantined: set[LogIndex] = set()
        while missing:
            before = len(missing)
            async with self._slots:
                missing = [item for item in missing if not await self._is_over(damaged, item, quarantined)]
            if missing and len(missing) < before:
                damaged.damage = tuple(missing)
                await damaged.find_configurations()
            elif missing:
                damaged.present = await self._present_replicas(damaged)
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, RETRY_MAX_S)
        del self._waiting[group]
        self.hopeless.discard(group)
        await damaged.log.close()
        await self._host.open_mended(damaged, frozenset(quarantined))

    async def _present_replicas(self, damaged: DamagedReplica) -> Sequence[RaftReplica]:
        """Everybody whom this log knows may be gone for good, replaced one by one while this agent was down.
        The present holders of the group tell its members."""
        group, newest = damaged.plan.group, damaged.configurations[-1]
        for holder in sorted(set(self.holders(group)) - {self._host.agent_id})[:MAX_HOLDERS_ASKED]:
            try:
                answer = await self._links.request(
                    holder, PeerMessage.GROUP_CONFIGURATION, group.to_bytes(), ENTRY_TIMEOUT_MS
                )
                told = Configuration.from_bytes(answer) if answer else newest
            except (PeerUnavailable, PeerRequestFailed, WireError) as error:
                seldom.info("%s: %s does not know the replicas: %s", group, agent_name(holder), error)
                continue
            newest = max(newest, told, key=lambda item: item.index)
        return newest.replicas

    async def _is_over(self, damaged: DamagedReplica, item: Damaged, quarantined: set[LogIndex]) -> bool:
        """Mend the stretch, as far as that is possible now: a full disk has room again some day."""
        try:
            return await self._mend_stretch(damaged, item, quarantined)
        except (DiskFull, PairedFileFull) as error:
            seldom.warning("%s: damage is not repaired yet: %s", damaged.plan.group, error)
            return False

    async def _mend_stretch(self, damaged: DamagedReplica, item: Damaged, quarantined: set[LogIndex]) -> bool:
        """True when it is over."""
        group, log = damaged.plan.group, damaged.log
        if item.first_index > log.last_index:
            return True  # dropped with what lies before it
        first, last = LogIndex(item.first_index), LogIndex(item.last_index)
        stretch = _Stretch(
            group,
            log,
            damaged.identity,
            first,
            last,
            damaged.replica_id,
            damaged.configurations,
            newest_term=log.last_term,
            present=damaged.present,
        )
        try:
            missing, answers = await self._mend(stretch)
        except ChainBroken as error:
            seldom.warning("%s: damage is not repaired yet: %s", group, error)
            return False
        if missing is not None:
            if EntryState.TRIMMED in answers.values():
                self._give_up(group, missing)
            is_ruled_out = _rule_out(stretch, missing, answers, damaged.unread)
            if is_ruled_out and await self._drop(damaged, missing):
                return True
            return self._quarantine(damaged, item, answers, quarantined)
        logger.warning("%s: damage repaired: %s", group, item)
        return True

    def _give_up(self, group: GroupId, missing: EntryId) -> None:
        """The group has agreed to drop the entry: soon nobody has it, and this replica cannot read that it
        may do without. Its leader is told, and has another one in its place."""
        if group not in self.hopeless:
            self.hopeless.add(group)
            logger.error("%s: to be replaced, since entry %d is trimmed elsewhere", group, missing.index)

    async def _drop(self, damaged: DamagedReplica, wanted: EntryId) -> bool:
        """Cut an entry that was never committed: intact logs without it say so."""
        first_index = damaged.log.first_index
        if wanted.index <= damaged.commit_index or 1 < first_index >= wanted.index:
            return False  # without its first entry a log whose head was trimmed does not know the next number
        logger.error(
            "%s: entry %d of term %d is damaged here and was never committed, since too many intact logs lack"
            " it: dropping it and what follows",
            damaged.plan.group,
            *wanted,
        )
        await self._hard_states.lower_floor(damaged.plan.group, LogIndex(wanted.index - 1))
        await damaged.log.truncate_suffix(wanted.index)
        return True

    def _quarantine(
        self,
        damaged: DamagedReplica,
        item: Damaged,
        answers: dict[ReplicaId, EntryState],
        quarantined: set[LogIndex],
    ) -> bool:
        """Go on without batches of records that are damaged wherever they are. Not for what may hold a
        configuration or a checkpoint, nor for a state machine that is fed by every entry."""
        plan, log = damaged.plan, damaged.log
        voters = {
            *damaged.configurations[-1].voters,
            *(item.id for item in damaged.present if not item.learner),
        }
        others = voters - {damaged.replica_id}
        if any(answers.get(voter) not in (EntryState.DAMAGED, EntryState.LACKS) for voter in others):
            return False
        if plan.machine is not None or damaged.unread is not None:
            seldom.error(
                "%s: no voter has it intact. The replica waits for it: it may name the members, or hold the"
                " work of consumer groups: %s",
                plan.group,
                item,
            )
            return False
        logger.error(
            "%s: QUARANTINED: no voter has it intact, the partition continues without: %s", plan.group, item
        )
        first, last = max(item.first_index, log.first_index), item.last_index
        quarantined.update(LogIndex(index) for index in range(first, last + 1))
        return True

    # ---- asking ----------------------------------------------------------------------------------

    def _peers_of(self, stretch: _Stretch) -> list[RaftReplica]:
        """Replicas that may hold the entry or have a vote on whether it was committed; the newest of each
        agent."""
        known = in_force(stretch.first_index, stretch.configurations) or stretch.configurations
        peers: dict[str, RaftReplica] = {item.agent_id: item for item in stretch.present}
        for configuration in reversed(known):
            for item in configuration.replicas:
                peers.setdefault(item.agent_id, item)
        return [item for agent_id, item in peers.items() if agent_id != self._host.agent_id]

    async def _mend(self, stretch: _Stretch) -> tuple[EntryId | None, dict[ReplicaId, EntryState]]:
        """Write what peers have in its place. Where the places inside a stretch are not known, only all of
        its frames together fit. The first entry that nobody gave, and what was said of it. Raises
        StoreError."""
        log = stretch.log
        frames: list[Frame] = []
        for number in range(max(stretch.first_index, log.first_index), stretch.last_index + 1):
            index = LogIndex(number)
            term = log.term_at(index)
            if term is None:
                raise OffsetOutOfRange(index, log.first_index, log.last_index + 1)
            wanted = EntryId(index, term)
            frame, answers = await self._obtain(stretch, wanted)
            if frame is None:
                return wanted, answers
            frames.append(frame)
            try:
                await mend_entries(log, frames)
            except ChainBroken:
                if index == stretch.last_index:
                    raise
            else:
                frames = []
        return None, {}

    async def _obtain(
        self, stretch: _Stretch, wanted: EntryId
    ) -> tuple[Frame | None, dict[ReplicaId, EntryState]]:
        """The entry from the first peer that has it intact, and what those before said. Nobody's word is
        taken: the checksum is seeded with the log's identity, and index and term are compared."""
        answers: dict[ReplicaId, EntryState] = {}
        for replica in self._peers_of(stretch):
            replica_id, peer = replica.id, replica.agent_id
            payload = encode_entry_wanted(
                stretch.group, EntryRequest(wanted, replica_id, stretch.newest_term or wanted.term)
            )
            try:
                answer = await self._links.request(peer, PeerMessage.ENTRY, payload, ENTRY_TIMEOUT_MS)
                held, data = decode_entry(answer)
                if held is EntryState.HERE:
                    frame = parse_frame(data, 0, stretch.identity)
                    if (frame.stamp.index, frame.stamp.term) == wanted and len(frame.data) == len(data):
                        return frame, answers
                    held = EntryState.UNKNOWN
                answers[replica_id] = held
            except (PeerUnavailable, PeerRequestFailed, PeerMessageError, BatchError) as error:
                seldom.info(
                    "%s: %s cannot give entry %d: %s", stretch.group, agent_name(peer), wanted.index, error
                )
        return None, answers

    # ---- tasks -----------------------------------------------------------------------------------

    def _begin(self, group: GroupId, work: Coroutine[Any, Any, None]) -> None:
        self._tasks[group] = asyncio.ensure_future(self._run(group, work))

    async def _run(self, group: GroupId, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (StoreError, OSError, PairedFileError, ShoalError) as error:
            logger.error("%s: repair ended: %s", group, error)
        except Exception:
            logger.exception("%s: repair failed; this is a bug", group)
        finally:
            if self._tasks.get(group) is asyncio.current_task():
                del self._tasks[group]

    async def abandon(self, group: GroupId) -> None:
        """The group is closed, or deleted: mend no more."""
        task = self._tasks.pop(group, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        waiting = self._waiting.pop(group, None)
        self.hopeless.discard(group)
        if waiting is not None:
            await waiting.log.close()

    async def stop(self) -> None:
        for group in [*self._tasks, *self._waiting]:
            await self.abandon(group)


def _rule_out(
    stretch: _Stretch, missing: EntryId, answers: dict[ReplicaId, EntryState], unread: LogIndex | None = None
) -> bool:
    """Whether those voters whose logs are intact without an entry rule out that it was committed, or anybody
    has another one that was. unread: the first entry that may be a change of the members, and does not
    verify."""
    if EntryState.OVERRULED in answers.values():
        return True
    if unread is not None and unread < missing.index:
        return False
    return was_never_committed(
        missing.index,
        holder=stretch.replica_id,
        configurations=stretch.configurations,
        term_at=stretch.log.term_at,
        lacking=[replica_id for replica_id, held in answers.items() if held is EntryState.LACKS],
        is_certain=unread is None,
    )


def _is_overruled(replica: Replica, entry: EntryId) -> bool:
    """Whether another entry is committed under its number: then it never was, and never will be, whoever the
    voters were (State Machine Safety, section 5.4.3). Of an intact log."""
    term = replica.log.term_at(entry.index)
    return term not in (None, entry.term) and entry.index <= replica.core.commit_index


async def _lend(
    log: PartitionLog, wanted: EntryId, *, is_whole: bool, met: Callable[[Damaged], None] = lambda _: None
) -> bytes:
    if wanted.index < log.first_index:
        return encode_entry(EntryState.TRIMMED)
    if log.term_at(wanted.index) != wanted.term:
        return encode_entry(EntryState.LACKS if is_whole else EntryState.UNKNOWN)
    try:
        (frame,) = await log.read(wanted.index, wanted.index, 1)
    except OffsetOutOfRange:
        return encode_entry(EntryState.UNKNOWN)
    except Damaged as error:
        met(error)
        return encode_entry(EntryState.DAMAGED)
    return encode_entry(EntryState.HERE, frame.data)
