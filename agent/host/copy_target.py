"""The receiver's side of catch-up by segments: a copy of a peer's log replaces one that fell behind.

Law of this file: the copy is made in a side directory, through an ordinary log that checks every checksum and
the whole chain and syncs; it counts from one durable record on (opener.py), and until then the old log does.
Replica id, term and vote stay.

The copy holds only committed entries and reaches as far as the replica's own log. So no entry is missing that
this replica acknowledged and that counts (section 5.4 of the Raft paper). The own log's uncommitted end may
count still. Then the copy goes on to the end of a leader's log, which stands for an AppendEntries of that
leader's term. It counts only if no newer term is known here.

A state machine's replica takes no copy that begins beyond its saved state. So every replica has the whole
state, in that and its log. A sorted view that is saved no further comes from the peer before the copy goes
on.
"""

import asyncio
import logging
from dataclasses import dataclass

from shoal.agent.durable.identity import ReplicaState
from shoal.agent.durable.ids import GroupId, IdentityError
from shoal.agent.durable.paired_file import PairedFileError
from shoal.agent.host.open_group import GroupHost, working_replica
from shoal.agent.log_lines.names import agent_name
from shoal.agent.log_lines.repeats import once_a_minute
from shoal.agent.partition.opener import Stores, finish_install
from shoal.agent.partition.plan import Plan
from shoal.agent.partition.replica import Replica
from shoal.agent.peers.entry_messages import (
    CopyOffer,
    EntriesRequest,
    Piece,
    decode_offer,
    decode_piece,
    encode_held,
    encode_wanted,
)
from shoal.agent.peers.links import Links, PeerRequestFailed, PeerUnavailable
from shoal.agent.peers.messages import PeerMessage, PeerMessageError
from shoal.agent.views.upkeep.shipment import ShipmentFailed
from shoal.agent.views.upkeep.view_set import ViewSet
from shoal.errors import ShoalError
from shoal.format.batch import BatchError, Flag, Frame, Kind, LogIdentity, LogIndex, Offset, Term, parse_frame
from shoal.replication.interfaces import HardState
from shoal.segment_store.errors import StoreError
from shoal.segment_store.format.recovery import Chain
from shoal.segment_store.log.log import PartitionLog

MAX_COPIES = 4
"""Logs copied to this agent at the same time; each writes as fast as the disk takes it."""
PIECE_TIMEOUT_MS = 5_000
RETRY_S = 0.5
PAUSE_MS = 1_000
"""After a copy that failed: a full disk, or a leader that changes, is not better at once."""
MAX_RETRIES = 20
"""Of one piece: an election or a restart of the sender may come between, not more."""

logger = logging.getLogger(__name__)
seldom = once_a_minute(logger)


class CopyFailed(Exception):
    """This copy cannot become the log; the next offer begins another. The text says why."""


@dataclass(slots=True)
class _Job:
    offer: CopyOffer
    source: str


COPY_FAULTS = (CopyFailed, ShipmentFailed, ShoalError, StoreError, OSError, PeerMessageError, BatchError)
"""What may end a copy; the next offer begins another."""


class CopyTarget:
    """One per host. Its tasks end with `stop`."""

    def __init__(self, links: Links, stores: Stores, host: GroupHost, views: ViewSet) -> None:
        self._links = links
        self._stores = stores
        self._host = host
        self.views = views
        self._jobs: dict[GroupId, _Job] = {}
        self._tasks: dict[GroupId, asyncio.Task[None]] = {}
        self._failed_ms: dict[GroupId, int] = {}
        links.handle_request(PeerMessage.SEGMENTS_OFFER, self.on_offer)

    async def on_offer(self, peer: str, payload: bytes) -> bytes:
        """A leader's log begins behind what this replica holds: begin to copy it, or say what is held.

        Raises ShoalError when nothing is copied; the leader asks again."""
        group, offer = decode_offer(payload)
        replica = working_replica(self._host, group)
        core = replica.core
        if offer.receiver != replica.replica_id or offer.term < core.term:
            raise ShoalError("bad-request", "the offer is for another replica, or of an older term")
        if offer.first_index < core.first_index or core.term_at(offer.first_index) == offer.first_term:
            # Entries before this log were committed, and so are in the leader's. A log that was trimmed
            # further than the leader's lacks nothing (each replica of the catalog trims by itself).
            return encode_held(core.last_index)
        job = self._jobs.get(group)
        if job is not None:
            job.offer, job.source = offer, peer
        elif self._host.clock.now_ms() - self._failed_ms.get(group, -PAUSE_MS) < PAUSE_MS:
            raise ShoalError("overloaded", "a copy has just failed; another is begun in a moment")
        elif len(self._jobs) >= MAX_COPIES:
            raise ShoalError("overloaded", f"{MAX_COPIES} logs are being copied to this agent already")
        else:
            job = self._jobs[group] = _Job(offer, peer)
            self._tasks[group] = asyncio.ensure_future(self._run(group, job))
        return encode_held(LogIndex(0))

    async def _run(self, group: GroupId, job: _Job) -> None:
        try:
            await self._copy_and_install(group, job)
        except COPY_FAULTS as error:
            seldom.warning("%s: cannot copy the log, trying again: %s", group, error)
            self._note_failure(group)
        except Exception:
            logger.exception("%s: copying the log failed; this is a bug", group)
            self._note_failure(group)
        finally:
            del self._jobs[group], self._tasks[group]

    def _note_failure(self, group: GroupId) -> None:
        now_ms = self._host.clock.now_ms()
        self._failed_ms = {key: at for key, at in self._failed_ms.items() if now_ms - at < PAUSE_MS}
        self._failed_ms[group] = now_ms

    async def abandon(self, group: GroupId) -> None:
        """The group is closed, perhaps to be deleted: a copy that went on would make its directory anew."""
        task = self._tasks.get(group)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def stop(self) -> None:
        """Leave what is half copied: the next opening removes it."""
        for group in list(self._tasks):
            await self.abandon(group)

    async def _copy_and_install(self, group: GroupId, job: _Job) -> None:
        replica = self._host.replica(group)
        plan = replica.plan
        copy = _Copy(self._stores, plan, replica.identity)
        logger.info(
            "%s: copying the log of %s from entry %d on", group, agent_name(job.source), job.offer.first_index
        )
        try:
            await copy.clear()
            while not copy.may_replace(replica):
                first_index = copy.next_index or job.offer.first_index
                piece, frames = await self._fetch(group, job, EntriesRequest(replica.replica_id, first_index))
                await copy.take(piece, frames, replica)
                if plan.machine is not None and copy.start_offset > plan.machine.saved_offset():
                    await self._copy_state(group, job, copy)
        finally:
            await copy.close()
        if not copy.may_replace(replica) or self._host.replica(group) is not replica:
            raise CopyFailed("the replica's own log has changed meanwhile")

        async def install() -> None:
            await copy.promise(group)
            record = self._stores.registry.get(group)
            assert record is not None
            await self._stores.registry.put(record._replace(state=ReplicaState.INSTALLING))
            await finish_install(self._stores, record)

        await self._host.reopen(group, install)
        logger.info("%s: copied the log up to entry %d", group, copy.last_index)

    async def _copy_state(self, group: GroupId, job: _Job, copy: "_Copy") -> None:
        """The state before the copy comes along with it: a sorted view's runs, in the side directory."""
        if self._host.replica(group).plan.view is None:
            raise CopyFailed("the state before it has not come from a peer yet")
        if not copy.has_view:
            reached = await self.views.copy_to(self._stores.side_directory(group), group, job.source)
            if reached < copy.start_offset:
                raise CopyFailed("the view of the sender ends before its log begins")
            copy.has_view = True

    async def _fetch(self, group: GroupId, job: _Job, wanted: EntriesRequest) -> tuple[Piece, list[Frame]]:
        identity = self._host.replica(group).identity
        for attempt in range(MAX_RETRIES):
            try:
                answer = await self._links.request(
                    job.source, PeerMessage.SEGMENTS_PIECE, encode_wanted(group, wanted), PIECE_TIMEOUT_MS
                )
            except PeerUnavailable as error:
                reason = str(error)
            except PeerRequestFailed as error:
                if attempt:
                    raise CopyFailed(f"{agent_name(job.source)}: {error}") from None
                reason = str(error)
            else:
                piece, position = decode_piece(answer)
                return piece, _parse(answer, position, identity)
            await asyncio.sleep(RETRY_S)
        raise CopyFailed(reason)


def _parse(payload: bytes, position: int, identity: LogIdentity) -> list[Frame]:
    """Every frame, its checksum under this log's identity verified. Raises BatchError."""
    frames = []
    while position < len(payload):
        frame = parse_frame(payload, position, identity)
        frames.append(frame)
        position += len(frame.data)
    return frames


class _Copy:
    """A log in the side directory. `branch_term`: it holds what is not committed, from the leader of that
    term."""

    def __init__(self, stores: Stores, plan: Plan, identity: LogIdentity) -> None:
        self._stores = stores
        self._plan = plan
        self._identity = identity
        self._directory = stores.side_directory(plan.group)
        self._log: PartitionLog | None = None
        self._goal: LogIndex | None = None
        self._end_of_branch = LogIndex(0)
        self._committed = LogIndex(0)
        self.branch_term: Term | None = None
        self.has_view = False
        """The side directory has the runs of the sender's view."""
        self.last_index = LogIndex(0)
        self._last_term = Term(0)

    @property
    def next_index(self) -> LogIndex | None:
        """The entry to ask for; None before the first."""
        return None if self._log is None else LogIndex(self.last_index + 1)

    @property
    def start_offset(self) -> Offset:
        """Of its first record."""
        assert self._log is not None
        return self._log.start_offset

    async def clear(self) -> None:
        """Without what an attempt before this one left."""
        await self._stores.disk.remove_tree(self._directory)

    def may_replace(self, replica: Replica) -> bool:
        """See the head of this file."""
        if self._goal is None or self.last_index < self._goal:
            return False
        core = replica.core
        if self.branch_term is None:
            return self.last_index >= core.last_index
        if core.term > self.branch_term:
            raise CopyFailed(f"term {self.branch_term} is over")
        if core.term_at(core.last_index) == self.branch_term:
            return self.last_index >= core.last_index  # it has entries of that very leader, and said so
        return self.last_index >= min(self._end_of_branch, core.last_index)

    async def take(self, piece: Piece, frames: list[Frame], replica: Replica) -> None:
        """Append what may be had of it, synced. Raises CopyFailed, StoreError."""
        committed = [frame for frame in frames if frame.stamp.index <= piece.commit_index]
        if self.branch_term is None and self.last_index >= piece.commit_index and piece.leads:
            if piece.term < replica.core.term:
                raise CopyFailed(f"it leads term {piece.term}, which is over")
            self.branch_term = piece.term
            self._end_of_branch = piece.last_index
        if self.branch_term is not None:
            if not piece.leads or piece.term != self.branch_term:
                raise CopyFailed(f"the leader of term {self.branch_term} leads no more")
            committed = frames
        if not committed:
            raise CopyFailed("the sender has nothing more to give")
        if self._goal is None:
            self._goal = piece.commit_index
        self._committed = max(self._committed, piece.commit_index)
        if self._log is None:
            self._log = await self._begin(committed[0])
        await self._log.append(committed)
        self.last_index, self._last_term = self._log.last_index, self._log.last_term

    async def _begin(self, first: Frame) -> PartitionLog:
        stamp = first.stamp
        if stamp.index > 1 and (stamp.kind != Kind.CHECKPOINT or not stamp.flags & Flag.FIRST_OF_SEGMENT):
            raise CopyFailed(f"entry {stamp.index} does not begin a segment with a checkpoint")
        return await PartitionLog.open(
            self._stores.disk,
            self._directory,
            self._identity,
            self._plan.schema,
            self._plan.log_config,
            Chain(stamp.index, stamp.base_offset, stamp.previous_term),
            self._stores.shared,
        )

    async def close(self) -> None:
        """Everything is synced already."""
        if self._log is not None:
            await self._log.close()

    async def promise(self, group: GroupId) -> None:
        """Store the newest term that the copy knows of before the copy counts (safety 3): a log ahead of its
        term would be a lost replica's."""
        stored = self._stores.hard_states.get(group)
        assert stored is not None
        replica_id, state = stored
        term = max(state.term, self._last_term, self.branch_term or Term(0))
        vote = state.vote if term == state.term else None
        committed = max(state.commit_index, LogIndex(min(self._committed, self.last_index)))
        await self._stores.hard_states.save(group, replica_id, HardState(term, vote, committed))
        await self._stores.hard_states.lower_floor(group, self.last_index)


INSTALL_FAULTS = (OSError, StoreError, PairedFileError, IdentityError)
"""What may end an installation half way; the next opening ends it."""
