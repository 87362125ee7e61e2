"""One replica at work: its core, its fold, its log, and whoever waits for it.

Law of this file: it drives. Every decision of the protocol is the core's, every number in a stamp the
fold's, every order on the disk DiskOrder's; here they are put together, once per turn of the host's loop.
Nothing here awaits.

The way of a proposal: propose -> stamp -> fold -> next turn: ready -> disk and followers -> advance ->
commit -> waiters. A frame received from a leader is staged until the ready after its request says whether it
is appended.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, TypeAlias

from shoal.agent.durable.ids import GroupId
from shoal.agent.partition.agenda import Agenda
from shoal.agent.partition.append_sender import Sender
from shoal.agent.partition.disk_queue import DiskOrder, failure_of
from shoal.agent.partition.frames_ahead import FramesAhead, StagedFrames
from shoal.agent.partition.observer import Observers, ReplicaObserver
from shoal.agent.partition.pending import WaitQueue
from shoal.agent.partition.plan import Plan
from shoal.agent.partition.state.checkpoint import FoldError
from shoal.agent.partition.state.copy_leases import CopyLeases
from shoal.agent.partition.state.log_state import PartitionState
from shoal.agent.partition.state.log_time import LogTime
from shoal.agent.peers.frames import PeerWireError, Piece
from shoal.agent.process.clock import Clock
from shoal.errors import ErrorCode, ShoalError
from shoal.format.batch import (
    MAX_FRAME_BYTES,
    STAMP_BYTES,
    Flag,
    Frame,
    Kind,
    LogIdentity,
    LogIndex,
    Message,
    ProducerStamp,
    Term,
    control_frame,
    stamp_message,
)
from shoal.replication.config import RaftConfig
from shoal.replication.errors import NotLeader, Overloaded, TransferInProgress
from shoal.replication.interfaces import Configuration, HardState, Proposal, ReplicaId, Run
from shoal.replication.interfaces import Replica as RaftReplica
from shoal.replication.messages import AppendRequest, encode
from shoal.replication.messages import Message as RaftMessage
from shoal.replication.raft import RaftCore
from shoal.replication.roles.transitions import Role
from shoal.replication.state.ready import Ready
from shoal.segment_store.check.damage import DamagedRange, before, merge, range_of, touches
from shoal.segment_store.errors import Damaged
from shoal.segment_store.log.log import PartitionLog

MAX_UNCOMMITTED_BYTES = 64 * 2**20
"""Per replica, in memory until a majority has it; beyond it producers are told to wait."""
MAX_STAGED_BYTES = 64 * 2**20
"""Frames received and not synced yet."""
MAX_PEER_ADDRESSES = 1_024
HINT_INTERVAL_ENTRIES = 4_096
"""How far the stored commit index may lag: what a restart folds again beyond its newest segment."""

BIRTH_PENDING = "its first leader waits for the catalog to take the partition's birth"

logger = logging.getLogger(__name__)


class StampClock(Protocol):
    """The time that this agent believes."""

    def now_us(self, now_ms: int) -> int:
        """Microseconds since the epoch at that monotonic time, which is now, whatever the wall clock says for
        a moment."""


class ReplicaHost(Protocol):
    """What a replica asks of the host around it."""

    agent_id: str
    clock: Clock

    @property
    def raft_config(self) -> RaftConfig:
        """Of every group."""

    @property
    def clocks(self) -> "StampClock":
        """What entries are stamped by."""

    def schedule(self, replica: "Replica") -> None:
        """Give it a turn soon."""

    def send_control(self, agent_id: str, group: GroupId, message: bytes) -> None:
        """Put a message into this turn's frame for the agent."""

    def send_append(self, agent_id: str, pieces: list[Piece]) -> None:
        """Put a request with frames on the bulk link."""

    def changed(self, group: GroupId) -> None:
        """Role, leader, term or configuration is another; or something was committed before the birth."""

    async def save_hard_state(self, replica: "Replica", state: HardState) -> None:
        """Both copies synced on return."""

    async def save_floor(self, replica: "Replica", floor: LogIndex) -> None:
        """How far the log reaches at least; both copies synced on return."""

    def damaged(self, group: GroupId) -> None:
        """The replica has met damage: mend it."""

    def save_hint(self, replica: "Replica") -> None:
        """Store the commit index in passing."""


Observe: TypeAlias = Callable[["Replica"], tuple[ReplicaObserver, ...]]


class Replica:
    """See the head of this file. Built by opener.py, given turns by host.py."""

    def __init__(
        self,
        host: ReplicaHost,
        plan: Plan,
        identity: LogIdentity,
        log: PartitionLog,
        state: PartitionState,
        core: RaftCore,
        floor: LogIndex,
        observe: Observe,
    ) -> None:
        """`floor`: the entry that the log must still hold, as stored outside it. `observe` makes the
        observers of this replica; it is called once, when everything else is there."""
        self.host = host
        self.plan = plan
        self.group = plan.group
        self.replica_id = core.replica_id
        self.identity = identity
        self.log = log
        self.state = state
        self.core = core
        self.waiting = WaitQueue()
        self.ahead = FramesAhead(log)
        self.shipments = CopyLeases()
        self.time = LogTime(state.tail.append_time_us, host.clock.now_ms())
        self.disk = DiskOrder(
            log,
            lambda hard: host.save_hard_state(self, hard),
            floor,
            lambda index: host.save_floor(self, index),
            self._durable,
            lambda error: self.fail(*failure_of(error)),
        )
        most_bytes = host.raft_config.max_append_bytes
        self.sender = Sender(
            self.group, core, self.ahead, log, most_bytes,
            ship=host.send_append, on_cut=lambda: host.schedule(self), on_damage=self.met,
        )  # fmt: skip
        self.failure: tuple[ErrorCode, str] | None = None
        """Error code and reason once this replica has stopped for good."""
        self.damaged_ranges: tuple[DamagedRange, ...] = ()
        """What of the log is known not to verify now: found by the scrubber, taken out by repair."""
        self.awaits_birth = plan.awaits_birth
        """The group may have been given up for another one while nobody led it: it takes and says nothing
        before the catalog has taken that somebody does."""
        self._staged = StagedFrames(plan.group, identity)
        self._addresses: dict[ReplicaId, str] = {}
        self._roll_index = LogIndex(0)
        self._ready_follows = False
        self.agenda = Agenda()
        self._hint = core.commit_index
        self._observers = Observers(observe(self))

    def __repr__(self) -> str:
        return f"Replica({self.group} {self.core!r} {self.state!r})"

    @property
    def is_leader(self) -> bool:
        """Whether it leads its term, as far as it knows."""
        return self.failure is None and self.core.state.role is Role.LEADER

    @property
    def serves(self) -> bool:
        """Whether it leads, and may say so to clients."""
        return self.is_leader and not self.is_unborn

    @property
    def is_unborn(self) -> bool:
        """Whether it still awaits its birth. A replica with a record of the group knows that its leader was
        told of the birth: no other takes one."""
        if self.awaits_birth and (self.state.tail.end_offset or self.core.configuration.index):
            self.awaits_birth = False
        return self.awaits_birth

    @property
    def leader_agent_id(self) -> str | None:
        """Where the leader lives, if one is known."""
        leader = self.core.leader
        return None if leader is None else self._address(leader)

    @property
    def readable_index(self) -> LogIndex:
        """The last committed entry that the log serves now. While the log is behind (it may still hold
        another branch) nothing is served: 0."""
        if self.disk.log_is_behind:
            return LogIndex(0)
        return min(self.state.committed.last_index, self.log.last_index)

    # Proposals

    def require_leader(self) -> None:
        """Raises ShoalError not-leader, no-leader, or why this replica has stopped if nobody else votes."""
        if self.failure is not None:
            code, reason = self.failure
            if code in ("damaged", "internal") and set(self.core.configuration.voters) - {self.replica_id}:
                # For clients the fault is over once another replica leads.
                raise ShoalError("no-leader", f"the replica here has stopped: {reason}", term=self.core.term)
            raise ShoalError(code, reason)
        if self.core.state.role is Role.LEADER:
            if self.awaits_birth and self.is_unborn:
                raise ShoalError("no-leader", BIRTH_PENDING, term=self.core.term)
            return
        leader = self.leader_agent_id
        if leader is None:
            raise ShoalError("no-leader", "no leader is known here", term=self.core.term)
        raise ShoalError("not-leader", f"agent {leader} leads", leader=leader, term=self.core.term)

    def propose_message(
        self,
        message: Message,
        producer: ProducerStamp | None,
        now_ms: int,
        control: bytes = b"",
        flags: Flag = Flag.NONE,
    ) -> Frame:
        """Append one batch of records; it commits later, or not. Raises ShoalError; nothing was proposed
        then."""
        size = len(message.metadata) + len(message.body) + len(control) + STAMP_BYTES + 16
        if size > MAX_FRAME_BYTES:
            raise ShoalError("too-large", f"a batch of {size} bytes, more than {MAX_FRAME_BYTES}")
        self.make_room(size, now_ms)
        proposal = self._propose(now_ms)
        tail = self.state.tail
        frame = stamp_message(
            message,
            self.identity,
            flags=flags,
            base_offset=tail.end_offset,
            term=proposal.term,
            previous_term=proposal.previous_term,
            index=proposal.first_index,
            append_time_us=self.append_time_us(now_ms),
            producer=producer,
            control=control,
        )
        self._take_own(frame)
        return frame

    def propose_control(self, kind: Kind, control: bytes) -> Frame:
        """Append a control entry. Raises ShoalError; nothing was proposed then."""
        if len(control) > MAX_FRAME_BYTES // 2:
            raise ShoalError("too-large", f"a control entry of {len(control)} bytes")
        now_ms = self.host.clock.now_ms()
        self.make_room(len(control) + 1024, now_ms)
        return self.propose_next(kind, control, self.append_time_us(now_ms), now_ms)

    def propose_next(self, kind: Kind, control: bytes, append_time_us: int, now_ms: int) -> Frame:
        """The entry right behind the tail, of a time that `append_time_us` has told, once there is room for
        it: no segment begins here. Raises ShoalError; nothing was proposed then."""
        return self._take_control(kind, control, self._propose(now_ms), Flag.NONE, append_time_us)

    def propose_configuration(self, replicas: Sequence[RaftReplica]) -> Configuration:
        """Change the group's replicas by one step. Raises ReplicationError of the core, ShoalError
        no-leader."""
        self.require_leader()
        self._catch_up_with_core()
        proposal = self.core.propose_configuration(replicas, self.host.clock.now_ms())
        configuration = self.core.configuration
        self._take_control(Kind.CONFIGURATION, configuration.to_bytes(), proposal)
        return configuration

    def make_room(self, size: int, now_ms: int) -> None:
        """For an entry of so many bytes: the core's own entries are stamped, and a segment begins where the
        last is full. Raises ShoalError."""
        state = self.state
        self.require_leader()
        if self.core.state.log.last_index != state.tail.last_index:
            self._catch_up_with_core()
        if state.tail.log_bytes - state.committed.log_bytes > MAX_UNCOMMITTED_BYTES:
            raise ShoalError("overloaded", f"{state.uncommitted_bytes} bytes wait for a majority")
        if self._should_roll(size):
            self._roll(now_ms)

    def _propose(self, now_ms: int) -> Proposal:
        try:
            proposal = self.core.propose(1, now_ms)
        except TransferInProgress as error:
            raise ShoalError("no-leader", str(error), term=self.core.term) from error
        except Overloaded as error:
            raise ShoalError("overloaded", str(error)) from error
        except NotLeader:
            self.require_leader()
            raise
        assert proposal.first_index == self.state.tail.last_index + 1
        assert proposal.previous_term == self.state.tail.last_term
        return proposal

    def _catch_up_with_core(self) -> None:
        """The core may have opened its term since the last turn: that entry is stamped before any other."""
        if self.core.state.log.last_index != self.state.tail.last_index:
            self.pump()
            self.require_leader()

    def _should_roll(self, size: int) -> bool:
        log_index = self.log.last_index
        if log_index < self._roll_index:
            return False  # the log has not seen the last roll yet
        if log_index != self.state.tail.last_index:
            size += self.state.bytes_after(log_index)
        return self.log.should_roll(size)

    def roll(self) -> None:
        """Start a new segment now, unless one is on its way. Raises ShoalError; nothing was proposed
        then."""
        self.require_leader()
        self._catch_up_with_core()
        if self.log.last_index >= self._roll_index:
            self._roll(self.host.clock.now_ms())

    def _roll(self, now_ms: int) -> None:
        """Head a new segment with the fold of everything before it (safety 12, 18)."""
        proposal = self._propose(now_ms)
        payload = self.state.checkpoint().to_bytes()
        frame = self._take_control(Kind.CHECKPOINT, payload, proposal, Flag.FIRST_OF_SEGMENT)
        self._roll_index = frame.stamp.index

    def _take_control(
        self, kind: Kind, control: bytes, proposal: Proposal, flags: Flag = Flag.NONE, time_us: int = 0
    ) -> Frame:
        frame = self._control_frame(kind, control, proposal.first_index, proposal.term, flags, time_us)
        self._take_own(frame)
        return frame

    def _control_frame(
        self, kind: Kind, control: bytes, index: LogIndex, term: Term, flags: Flag, time_us: int = 0
    ) -> Frame:
        tail = self.state.tail
        return control_frame(
            self.plan.schema,
            self.identity,
            kind=kind,
            control=control,
            base_offset=tail.end_offset,
            term=term,
            previous_term=tail.last_term,
            index=index,
            append_time_us=time_us or self.append_time_us(self.host.clock.now_ms()),
            flags=flags,
        )

    def append_time_us(self, now_ms: int) -> int:
        """Of the next entry, at that time."""
        return self.time.stamp(self.state.tail.append_time_us, self.host.clocks.now_us(now_ms), now_ms)

    def _take_own(self, frame: Frame) -> None:
        self.state.append(frame)
        self.ahead.append(frame)
        if not self._ready_follows:
            self.host.schedule(self)

    # Messages

    def receive(self, agent_id: str, message: RaftMessage) -> None:
        """A message without frames, from the control link."""
        if self._accepts(agent_id, message):
            self.core.step(message, self.host.clock.now_ms())
            self.host.schedule(self)

    def receive_append(self, agent_id: str, message: RaftMessage, payload: bytes, position: int) -> None:
        """A request with frames. Raises PeerWireError when frames and request differ."""
        if type(message) is not AppendRequest or not message.runs:
            raise PeerWireError("frames came beside a message that names none")
        if not self._accepts(agent_id, message):
            return
        waiting = self._staged.size_bytes + self.disk.unsynced_bytes
        if waiting and waiting + len(payload) > MAX_STAGED_BYTES:
            return  # the disk is slower than the leader, which will send it again
        configurations = self._staged.take(message, payload, position)
        # What the frames say is what will be in the log: it overrides what the request says of it.
        if message.configurations != configurations:
            message = replace(message, configurations=configurations)
        self.core.step(message, self.host.clock.now_ms())
        self.host.schedule(self)

    def _accepts(self, agent_id: str, message: RaftMessage) -> bool:
        if self.failure is not None or message.receiver != self.replica_id:
            return False
        known = self.core.state.configurations[-1].by_id.get(message.sender)
        if known is not None:
            return known.agent_id == agent_id
        if len(self._addresses) < MAX_PEER_ADDRESSES:
            self._addresses[message.sender] = agent_id
        return True

    def _address(self, replica_id: ReplicaId) -> str | None:
        replica = self.core.state.configurations[-1].by_id.get(replica_id)
        return replica.agent_id if replica is not None else self._addresses.get(replica_id)

    # The turn

    def pump(self) -> None:
        """One ready, carried out."""
        if self.failure is not None:
            return
        ready = self.core.ready()
        if ready is None:
            self._staged.clear()
            return
        try:
            frames = self._frames_to_write(ready)
        except FoldError as error:
            self.fail("damaged", f"a leader's entry does not continue this log: {error}")
            return
        if self._staged.frames:
            self._staged.clear()
        for message in ready.messages:
            self._send(message)
        if frames:  # the disk works while whoever waited for earlier entries is answered
            if ready.commit_index is not None and len(self.waiting):
                self.log.crowd()
            self.disk.submit(ready, frames)
        if ready.commit_index is not None:
            self._commit(ready.commit_index)
        if not frames:
            self.disk.submit(ready, frames)
        if self.ahead.frames and not self.disk.log_is_behind:
            self.ahead.given()
        if ready.read_states:
            for confirmed in self._observers.reads_confirmed:
                confirmed(ready.read_states)
        if ready.role_changed:
            self._role_changed()
            self.host.changed(self.group)

    def deadline(self) -> int | None:
        """When the host must give it a turn, at the latest: the core's, or a client's time is up."""
        nearest = self.core.state.behaviour.deadline()
        for deadline in (self.waiting.deadline_ms, self.agenda.gathered_ms, self.agenda.groups_ms):
            if deadline is not None and (nearest is None or deadline < nearest):
                nearest = deadline
        return nearest

    def turn(self, now_ms: int) -> None:
        """What the host gives each scheduled replica: input has been stepped, deadlines have not."""
        if self.agenda.gathered_ms is not None or self.agenda.groups_ms is not None:
            self._ready_follows = True
            for begin in self._observers.turn_begins:
                begin(now_ms)
            self._ready_follows = False
        self.pump()
        if (deadline_ms := self.waiting.deadline_ms) is not None and deadline_ms <= now_ms:
            self.waiting.expire(now_ms)

    def _frames_to_write(self, ready: Ready) -> list[Frame]:
        """The frames of the ready's runs, folded, in order; what the core has cut is cut here too."""
        if ready.truncate_from is not None:
            self._truncate(ready.truncate_from)
        frames: list[Frame] = []
        for run in ready.append:
            self._take_run(run, ready.noop_index, frames)
        if self.core.state.log.last_index < self.state.tail.last_index:
            self._truncate(LogIndex(self.core.state.log.last_index + 1))
        return frames

    def _take_run(self, run: Run, noop_index: LogIndex | None, frames: list[Frame]) -> None:
        state = self.state
        # One (index, term) stands for one log up to there (Log Matching): equal at its end, equal throughout.
        if state.tail.last_index == run.last:
            folded = state.tail.last_term == run.term
        else:
            folded = state.tail.last_index > run.last and state.term_at(run.last) == run.term
        for number in range(run.first, run.last + 1):
            index = LogIndex(number)
            if folded:
                frames.append(self.ahead.frames[index])
                continue
            if index <= state.tail.last_index:
                self._truncate(index)
            if index == noop_index:
                frame = self._opening_frame(index, run.term)
            else:
                frame = self._staged.frames[index, run.term]
                flags = frame.stamp.flags
                if flags and flags & Flag.FIRST_OF_SEGMENT:
                    self._roll_index = index
            state.append(frame)
            self.ahead.append(frame)
            frames.append(frame)

    def _opening_frame(self, index: LogIndex, term: Term) -> Frame:
        """A leader's first entry; in an empty log it is the checkpoint that every segment begins with."""
        if index > 1:
            return self._control_frame(Kind.NOOP, b"", index, term, Flag.NONE)
        payload = self.state.checkpoint().to_bytes()
        return self._control_frame(Kind.CHECKPOINT, payload, index, term, Flag.FIRST_OF_SEGMENT)

    def _truncate(self, from_index: LogIndex) -> None:
        if from_index > self.state.tail.last_index:
            return
        self.state.truncate(from_index)
        self.time.cut(self.state.tail.append_time_us, self.host.clock.now_ms())
        self.ahead.truncate(from_index)
        self.waiting.truncated(from_index)
        self.damaged_ranges = before(self.damaged_ranges, from_index)
        self._roll_index = LogIndex(min(self._roll_index, from_index - 1))

    def _send(self, message: RaftMessage) -> None:
        if type(message) is AppendRequest and message.runs:
            self.sender.send(message)
            return
        agent_id = self._address(message.receiver)
        if agent_id is not None:
            self.host.send_control(agent_id, self.group, encode(message))

    def _durable(self, ready: Ready) -> None:
        """Everything up to this ready is on the local disk."""
        self.core.advance(ready)
        for message in ready.messages_after_sync:
            self._send(message)
        if ready.append and self.waiting.syncing:
            run = ready.append[-1]
            if run.last < self.state.committed.last_index or self.state.term_at(run.last) == run.term:
                self.waiting.synced(run.last)
        # What was gathered meanwhile may go now; else a turn is for what the core has to say of the sync.
        core, agenda = self.core.state, self.agenda
        if agenda.gathered_ms is not None or agenda.groups_wait or core.outbox.has_work(core.log):
            self.host.schedule(self)

    def _commit(self, commit_index: LogIndex) -> None:
        if not self.state.commit(commit_index):
            return
        committed = self.state.committed.last_index
        if not self.plan.answers_wait:
            self.waiting.committed(committed)
        for tell in self._observers.committed:
            tell()
        if self.awaits_birth:  # with a majority behind it, the birth can be told to the catalog
            self.host.changed(self.group)
        if committed - self._hint >= HINT_INTERVAL_ENTRIES or self._hint < self._roll_index <= committed:
            self._hint = committed
            self.host.save_hint(self)

    def applied(self, index: LogIndex) -> None:
        """The group's state machine has taken everything up to `index`: now its producers may know."""
        if self.plan.answers_wait:
            self.waiting.committed(index)

    def met(self, error: Damaged) -> None:
        """A read has met damage: it is remembered, told, and mended from a peer (safety 10)."""
        item = range_of(error)
        if item is None or self.failure is not None:
            return
        if not any(touches(item, known) for known in self.damaged_ranges):
            logger.error("%s: damage found, by a read: %s", self.group, item)
            self.damaged_ranges = tuple(merge([*self.damaged_ranges, item]))
        self.host.damaged(self.group)

    # The end

    def fail(self, code: ErrorCode, reason: str, cause: BaseException | None = None) -> None:
        """Stop for good: acknowledge nothing more (a failed fsync is fatal), and say nothing but that another
        has to lead."""
        if self.failure is not None:
            return
        logger.error("%s: the replica here is out of service: %s", self.group, reason, exc_info=cause)
        self.say_last_words()
        self.failure = (code, reason)
        self.disk.halt()
        self.waiting.fail_all("leadership-lost", reason)
        self._role_changed()
        self.host.changed(self.group)

    def _role_changed(self) -> None:
        for tell in self._observers.role_changed:
            tell()

    def say_last_words(self) -> None:
        """A leader that stops while its agent lives is not missed by links: quiet followers would wait for
        it for ever (safety 25)."""
        if self.failure is not None:
            return
        try:
            words = self.core.last_words(self.host.clock.now_ms())
        except Exception:
            # A bug in the core may be why it stops. The others hear of it all the same: see
            # peer_liveness.py.
            logger.exception("%s: cannot tell the followers of the stop; this is a bug", self.group)
            return
        for message in words:
            self._send(message)

    async def close(self, why: str) -> None:
        """Stop in order: nothing new, then what the disk still does, then the log. Waiters for a commit
        are told why this replica will not hear of it: it may have happened."""
        if self.failure is None:
            self.failure = ("stopping", "the replica is closed")
        self.waiting.fail_all("leadership-lost", why)
        self._role_changed()
        await self.sender.stop()
        await self.disk.drain()
        self.disk.halt()
        await self.log.close()
