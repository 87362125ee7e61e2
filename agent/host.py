"""The host: every replica of this agent, driven by one loop.

Law of this file: input first, then deadlines (safety 26). Messages step their core as they arrive and put
the replica on the list of the next turn; a turn gives each listed replica one ready(), then sends one
control frame per peer. One heap holds the nearest deadline of every group; it is looked at only when the
input that had already arrived has been stepped. What a replica does in its turn stands in replica.py, how it
is opened in opening.py.
"""

import asyncio
import heapq
import logging
import os
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from shoal.agent.appending import Acks, Appender
from shoal.agent.applying import Applier, Apply
from shoal.agent.clock import Clock
from shoal.agent.doubled import DoubledError
from shoal.agent.identity import GroupId, HardStateFile, ReplicaRegistry, ReplicaState
from shoal.agent.links import Links
from shoal.agent.opening import Plan, ReplicaLost, Stores, open_replica
from shoal.agent.partition import GroupState
from shoal.agent.peer_wire import (
    FrameType,
    PeerWireError,
    decode_append,
    decode_group_messages,
    encode_group_messages,
)
from shoal.agent.reading import Fetch, Offsets, Reader
from shoal.agent.replica import Replica
from shoal.agent.waiting import Appended, Waiter
from shoal.batch import Frame, Kind, LogIndex, Message, Offset, ProducerStamp, Term
from shoal.errors import ShoalError
from shoal.records import RecordColumns
from shoal.replication.config import RaftConfig
from shoal.replication.errors import InvalidChange, NotLeader, WireError
from shoal.replication.interfaces import Configuration, HardState, ReplicaId
from shoal.replication.messages import decode
from shoal.replication.transitions import Role
from shoal.segment_store.config import LogConfig
from shoal.segment_store.disk import Disk

INPUT_ROUNDS_MAX = 8
"""Turns of the event loop that deadlines wait for input still arriving; a flood must not stop time."""
IDLE_WAKE_MS = 1_000
FREE_SPACE_INTERVAL_MS = 1_000
MIN_FREE_BYTES = 64 * 2**20
"""Below it appends are refused as disk-full, while the log can still write what is under way and its
checkpoints."""
MAX_APPEND_TIMEOUT_MS = 300_000

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """One replica as it sees itself. `state`: active, lost, failed; `reason` why it is not active."""

    group: GroupId
    state: str
    reason: str
    role: Role
    term: Term
    leader_agent_id: str | None
    log_start_offset: Offset
    high_watermark: Offset
    log_end_offset: Offset
    commit_index: LogIndex
    configuration: Configuration | None
    size_bytes: int


@dataclass(frozen=True, slots=True)
class HostStatistics:
    """For /metrics. Lag: how late the last timer was served, and the worst since the last call."""

    groups: int
    leading: int
    lost: int
    failed: int
    turns: int
    loop_lag_ms: float
    loop_lag_max_ms: float
    dropped_messages: int
    appends: int
    free_bytes: int


@dataclass(slots=True)
class _Group:
    replica: Replica
    appender: Appender
    reader: Reader
    applier: Applier | None
    deadline_ms: int | None = None


class Host:
    """See the module. `run()` is one task of the agent's TaskGroup; everything else may be called while it
    runs."""

    def __init__(
        self,
        *,
        agent_id: str,
        boot_nonce: bytes,
        cluster_id: bytes,
        disk: Disk,
        data_directory: str,
        registry: ReplicaRegistry,
        hard_states: HardStateFile,
        links: Links,
        clock: Clock,
        rng: random.Random,
        raft_config: RaftConfig,
        log_config: LogConfig,
        on_change: Callable[[GroupId], None],
    ) -> None:
        self.agent_id = agent_id
        self.boot_nonce = boot_nonce
        self.clock = clock
        self._stores = Stores(disk, data_directory, cluster_id, registry, hard_states)
        self._links = links
        self._rng = rng
        self._raft_config = raft_config
        self._log_config = log_config
        self._on_change = on_change
        self._groups: dict[GroupId, _Group] = {}
        self._unserved: dict[GroupId, tuple[str, str]] = {}
        """Groups that could not be opened: state and reason."""
        self._opening: set[GroupId] = set()
        self._dirty: dict[Replica, None] = {}
        self._outbox: dict[str, list[tuple[GroupId, bytes]]] = {}
        self._deadlines: list[tuple[int, int, GroupId]] = []
        self._deadline_count = 0
        self._turn_scheduled = False
        self._wake_up = asyncio.Event()
        self._inputs = 0
        self._silent: set[str] = set()
        self._side_tasks: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._turns = self._appends = self._dropped = 0
        self._lag_ms = self._lag_max_ms = 0.0
        self._free_bytes = 2**63
        links.handle(FrameType.GROUPS, self._on_group_messages)
        links.handle(FrameType.APPEND, self._on_append_frame)
        links.on_silence = self._on_silence

    # Groups

    async def open_group(
        self,
        group: GroupId,
        *,
        birth: Configuration,
        schema: pa.Schema,
        log_config: LogConfig | None = None,
        apply: Apply | None = None,
        state: GroupState | None = None,
        replica_id: ReplicaId | None = None,
    ) -> None:
        """Register the replica, open its log, start its core. A lost or damaged replica is kept as a status
        only.

        With `apply`, every committed DATA frame from the log's start on is handed to it, in order, and
        appends are answered once applied. Raises UnknownReplica, or StoreError when the disk cannot hold it.
        """
        assert group not in self._groups
        assert group not in self._opening
        if self._stopping:
            raise ShoalError("stopping", "the agent stops")
        plan = Plan(
            group,
            birth,
            schema,
            log_config or self._log_config,
            self._raft_config,
            replica_id,
            state,
            apply is not None,
        )
        self._opening.add(group)
        try:
            replica = await open_replica(self._stores, self, plan, self._rng)
        except ReplicaLost as error:
            logger.error("replica %s is lost: %s", group, error)
            self._unserved[group] = ("lost", str(error))
            self._on_change(group)
            return
        finally:
            self._opening.discard(group)
        self._adopt(group, replica, apply)

    def _adopt(self, group: GroupId, replica: Replica, apply: Apply | None) -> None:
        self._unserved.pop(group, None)
        applier = None if apply is None else Applier(replica, apply)
        self._groups[group] = _Group(
            replica, Appender(replica), Reader(replica, lambda: self.schedule(replica)), applier
        )
        if replica.log.damage:
            replica.fail("damaged", f"{len(replica.log.damage)} damaged stretches: {replica.log.damage[0]}")
        if applier is not None:
            applier.start()
        self.schedule(replica)
        self._on_change(group)

    async def close_group(self, group: GroupId) -> None:
        """Stop the replica; its data stay. Nothing to do for one that is not open."""
        self._unserved.pop(group, None)
        entry = self._groups.pop(group, None)
        if entry is None:
            return
        if entry.applier is not None:
            await entry.applier.stop()
        await entry.replica.close()
        self._dirty.pop(entry.replica, None)

    async def delete_group(self, group: GroupId) -> None:
        """Remove the replica for good. The caller holds a committed topic deletion, or a committed
        configuration without this replica (safety 4)."""
        await self.close_group(group)
        directory = self._stores.directory(group)
        await self._stores.disk.remove_tree(directory)
        topic_directory = os.path.dirname(directory)
        if not await self._stores.disk.list(topic_directory):
            await self._stores.disk.remove_tree(topic_directory)
        await self._stores.hard_states.remove(group)
        await self._stores.registry.remove(group)

    def has(self, group: GroupId) -> bool:
        """Whether the group is open here, serving or not."""
        return group in self._groups or group in self._unserved

    def replica(self, group: GroupId) -> Replica:
        """Raises ShoalError: unknown-partition, damaged for a lost one, stopping."""
        entry = self._groups.get(group)
        if entry is not None:
            return entry.replica
        self._refuse_absent(group)
        raise AssertionError

    def _entry(self, group: GroupId) -> _Group:
        entry = self._groups.get(group)
        if entry is None:
            self._refuse_absent(group)
            raise AssertionError
        return entry

    def _refuse_absent(self, group: GroupId) -> None:
        if self._stopping:
            raise ShoalError("stopping", "the agent stops")
        if group in self._unserved:
            raise ShoalError("damaged", f"the replica here is lost: {self._unserved[group][1]}")
        if group in self._opening:
            raise ShoalError("not-ready", "the replica is being opened")
        raise ShoalError("not-leader", f"{group} has no replica on agent {self.agent_id}", leader=None)

    def status(self, group: GroupId) -> ReplicaStatus:
        """Raises ShoalError when the group is not here."""
        unserved = self._unserved.get(group)
        if unserved is not None:
            return _absent_status(group, *unserved)
        replica = self.replica(group)
        failure = replica.failure
        return ReplicaStatus(
            group,
            "active" if failure is None else "failed",
            "" if failure is None else failure[1],
            replica.core.role if failure is None else Role.FOLLOWER,
            replica.core.term,
            replica.leader_agent_id if failure is None else None,
            replica.log.start_offset,
            replica.state.high_watermark,
            replica.state.tail.end_offset,
            replica.state.committed.last_index,
            replica.core.configuration,
            replica.log.size_bytes,
        )

    def statuses(self) -> Iterator[ReplicaStatus]:
        """All groups here."""
        return (self.status(group) for group in [*self._groups, *self._unserved])

    def lost_replicas(self) -> list[GroupId]:
        """Groups whose replica here never votes again, from the registry."""
        return [record.group for record in self._stores.registry if record.state is ReplicaState.LOST]

    # Clients

    async def append(
        self,
        group: GroupId,
        messages: Sequence[Message],
        *,
        producer: ProducerStamp | None = None,
        acks: Acks = "all",
        timeout_ms: int,
        consecutive: bool = True,
    ) -> Appended:
        """Append whole batches. Raises ShoalError: not-leader, no-leader, overloaded, producer-fenced,
        sequence-gap, disk-full, too-large, damaged (nothing happened); timeout, leadership-lost (it may
        have)."""
        entry = self._for_append(group)
        answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        deadline_ms = self.clock.now_ms() + min(timeout_ms, MAX_APPEND_TIMEOUT_MS)
        entry.appender.append(
            messages,
            producer=producer,
            consecutive=consecutive,
            acks=acks,
            deadline_ms=deadline_ms,
            answer=answer,
        )
        return await answer

    async def append_records(
        self,
        group: GroupId,
        columns: RecordColumns,
        *,
        producer: ProducerStamp | None = None,
        acks: Acks = "all",
        timeout_ms: int,
        consecutive: bool = True,
    ) -> Appended:
        """Append records, gathered with everybody else's into one batch. Raises as append."""
        entry = self._for_append(group)
        answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        deadline_ms = self.clock.now_ms() + min(timeout_ms, MAX_APPEND_TIMEOUT_MS)
        entry.appender.append_records(
            columns,
            producer=producer,
            consecutive=consecutive,
            acks=acks,
            deadline_ms=deadline_ms,
            answer=answer,
        )
        return await answer

    def _for_append(self, group: GroupId) -> _Group:
        entry = self._groups.get(group)
        if entry is None:
            self._refuse_absent(group)
            raise AssertionError
        if self._free_bytes < MIN_FREE_BYTES:
            raise ShoalError("disk-full", f"{self._free_bytes} bytes are free, fewer than {MIN_FREE_BYTES}")
        self._appends += 1
        return entry

    async def propose_control(self, group: GroupId, kind: Kind, control: bytes, timeout_ms: int) -> LogIndex:
        """Append a control entry and wait for its commit. Raises as append."""
        assert kind not in (Kind.SCHEMA, Kind.DATA, Kind.CONFIGURATION, Kind.CHECKPOINT)
        replica = self._for_append(group).replica
        frame = replica.propose_control(kind, control)
        answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        deadline_ms = self.clock.now_ms() + min(timeout_ms, MAX_APPEND_TIMEOUT_MS)
        result = Appended(frame.stamp.base_offset, 0)
        replica.waiting.add(Waiter(frame.stamp.index, answer, result, deadline_ms))
        await answer
        return frame.stamp.index

    async def read(
        self, group: GroupId, offset: Offset, *, max_bytes: int, wait_ms: int = 0, local: bool = False
    ) -> Fetch:
        """Committed batches from the one that holds `offset`. See reading.py for errors."""
        return await self._entry(group).reader.read(offset, max_bytes=max_bytes, wait_ms=wait_ms, local=local)

    async def offsets(self, group: GroupId, *, local: bool = False) -> Offsets:
        """Start, high watermark and end, confirmed by a majority unless `local`."""
        return await self._entry(group).reader.offsets(local=local)

    async def transfer_all(self, timeout_ms: int) -> int:
        """Hand every leadership over that another voter can take (SIGTERM); how many moved within the
        time."""
        leading = [
            entry.replica
            for entry in self._groups.values()
            if entry.replica.is_leader and len(entry.replica.core.configuration.voters) > 1
        ]
        for replica in leading:
            try:
                replica.core.transfer_leadership(None, self.clock.now_ms())
            except (NotLeader, InvalidChange) as error:
                logger.info("leadership of %s stays: %s", replica.group, error)
            self.schedule(replica)
        deadline_ms = self.clock.now_ms() + timeout_ms
        while any(replica.is_leader for replica in leading) and self.clock.now_ms() < deadline_ms:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return sum(not replica.is_leader for replica in leading)

    def transfer(self, group: GroupId, to: ReplicaId | None) -> None:
        """Hand one leadership over. Raises NotLeader, InvalidChange."""
        replica = self.replica(group)
        replica.core.transfer_leadership(to, self.clock.now_ms())
        self.schedule(replica)

    # The loop

    def schedule(self, replica: Replica) -> None:
        """Give the replica a turn once the input of this round of the event loop has been stepped."""
        self._dirty[replica] = None
        if not self._turn_scheduled:
            self._turn_scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        """One ready for each replica that has something to do, then one control frame per peer."""
        self._turn_scheduled = False
        self._turns += 1
        dirty, self._dirty = self._dirty, {}
        now_ms = self.clock.now_ms()
        for replica in dirty:
            if replica.failure is None:
                self._give_turn(replica, now_ms)
        self._flush_outbox()

    def _give_turn(self, replica: Replica, now_ms: int) -> None:
        try:
            replica.turn(now_ms)
        except Exception:
            # A bug in one group must not take the others along; this replica says nothing more.
            logger.exception("replica %s failed in its turn", replica.group)
            replica.fail("damaged", "an internal error; see the agent's log")
            return
        self._set_deadline(replica)

    def _set_deadline(self, replica: Replica) -> None:
        entry = self._groups.get(replica.group)
        if entry is None:
            return
        deadlines = [
            item for item in (replica.core.deadline(), replica.waiting.deadline_ms) if item is not None
        ]
        nearest = min(deadlines, default=None)
        if nearest is None or (entry.deadline_ms is not None and entry.deadline_ms <= nearest):
            return  # an earlier look is harmless: it finds nothing due and asks again
        entry.deadline_ms = nearest
        self._deadline_count += 1
        heapq.heappush(self._deadlines, (nearest, self._deadline_count, replica.group))
        if self._deadlines[0][0] == nearest:
            self._wake_up.set()

    def _flush_outbox(self) -> None:
        outbox, self._outbox = self._outbox, {}
        for agent_id, messages in outbox.items():
            for payload in encode_group_messages(messages):
                self._links.send_control(agent_id, FrameType.GROUPS, payload)

    async def run(self) -> None:
        """Serve deadlines until cancelled or stopped."""
        self._side(self._watch_peers())
        self._side(self._watch_free_space())
        try:
            while not self._stopping:
                await self._sleep_until_deadline()
                await self._let_input_in()
                self._serve_deadlines()
        finally:
            for task in list(self._side_tasks):
                task.cancel()

    def _side(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._side_tasks.add(task)
        task.add_done_callback(self._side_done)

    def _side_done(self, task: asyncio.Task[None]) -> None:
        self._side_tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a task of the host failed", exc_info=task.exception())

    async def _sleep_until_deadline(self) -> None:
        now_ms = self.clock.now_ms()
        nearest = self._deadlines[0][0] if self._deadlines else now_ms + IDLE_WAKE_MS
        if nearest > now_ms:
            self._wake_up.clear()
            try:
                async with asyncio.timeout((nearest - now_ms) / 1000):
                    await self._wake_up.wait()
            except TimeoutError:
                self._note_lag(self.clock.now_ms() - nearest)

    def _note_lag(self, lag_ms: float) -> None:
        self._lag_ms = max(0.0, lag_ms)
        self._lag_max_ms = max(self._lag_max_ms, self._lag_ms)

    async def _let_input_in(self) -> None:
        """Give sockets their turn before time is looked at: after a stall, heartbeats wait in their
        buffers."""
        for _ in range(INPUT_ROUNDS_MAX):
            seen = self._inputs
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            if seen == self._inputs:
                return

    def _serve_deadlines(self) -> None:
        now_ms = self.clock.now_ms()
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            deadline_ms, _, group = heapq.heappop(self._deadlines)
            entry = self._groups.get(group)
            if entry is None or entry.deadline_ms != deadline_ms:
                continue
            entry.deadline_ms = None
            replica = entry.replica
            if replica.failure is not None:
                continue
            core_deadline_ms = replica.core.deadline()
            if core_deadline_ms is not None and core_deadline_ms <= now_ms:
                replica.core.wake(now_ms)
            self.schedule(replica)

    # Peers

    def _on_group_messages(self, agent_id: str, payload: bytes) -> None:
        self._inputs += 1
        for group, data in decode_group_messages(payload):
            entry = self._groups.get(group)
            if entry is None:
                self._dropped += 1
                continue
            try:
                message = decode(data)
            except WireError as error:
                raise PeerWireError(f"a message for {group}: {error}") from error
            entry.replica.receive(agent_id, message)

    def _on_append_frame(self, agent_id: str, payload: bytes) -> None:
        self._inputs += 1
        group, data, position = decode_append(payload)
        entry = self._groups.get(group)
        if entry is None:
            self._dropped += 1
            return
        try:
            message = decode(data)
        except WireError as error:
            raise PeerWireError(f"a message for {group}: {error}") from error
        entry.replica.receive_append(agent_id, message, payload, position)

    def _on_silence(self, agent_id: str) -> None:
        self._silent.add(agent_id)
        self._tell_silence(agent_id)

    def _tell_silence(self, agent_id: str) -> None:
        """Wake what is quiet under that agent, or leads it (safety 25)."""
        now_ms = self.clock.now_ms()
        for entry in self._groups.values():
            replica = entry.replica
            if replica.failure is None and (replica.core.is_quiet or replica.core.role is Role.LEADER):
                replica.core.peer_silent(agent_id, now_ms)
                self.schedule(replica)

    async def _watch_peers(self) -> None:
        """Say again who is silent in each heartbeat interval: a quiet request may still have been on its
        way."""
        while True:
            await asyncio.sleep(self._raft_config.heartbeat_interval_ms / 1000)
            for agent_id in list(self._silent):
                if self._links.is_silent(agent_id):
                    self._tell_silence(agent_id)
                else:
                    self._silent.discard(agent_id)

    async def _watch_free_space(self) -> None:
        while True:
            try:
                self._free_bytes, _ = await self._stores.disk.free_bytes(self._stores.data_directory)
            except OSError as error:
                logger.warning("cannot tell the free space of %s: %s", self._stores.data_directory, error)
            await asyncio.sleep(FREE_SPACE_INTERVAL_MS / 1000)

    # What replicas ask (ReplicaHost)

    def send_control(self, agent_id: str, group: GroupId, message: bytes) -> None:
        """Goes out at the end of this turn, with everything else for that agent."""
        self._outbox.setdefault(agent_id, []).append((group, message))
        if not self._turn_scheduled:
            self._turn_scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def send_append(self, agent_id: str, pieces: list[bytes]) -> None:
        """Dropped when the outbox is full: Raft sends it again."""
        self._links.send_bulk(agent_id, FrameType.APPEND, pieces)

    def changed(self, group: GroupId) -> None:
        """Tell the agent."""
        self._on_change(group)

    async def save_hard_state(self, replica: Replica, state: HardState) -> None:
        """The stored commit index is one that this disk has synced: a shorter log found later is a lost
        one."""
        kept = replace(state, commit_index=min(state.commit_index, replica.log.synced_index))
        await self._stores.hard_states.save(replica.group, replica.replica_id, kept)

    def save_hint(self, replica: Replica) -> None:
        """In passing: term and vote are the newest known, so that this never undoes a save under way."""
        statistics = replica.core.statistics()
        state = HardState(statistics.term, statistics.vote, statistics.commit_index)
        self._side(self._save_hint(replica, state))

    async def _save_hint(self, replica: Replica, state: HardState) -> None:
        try:
            await self.save_hard_state(replica, state)
        except DoubledError as error:
            replica.fail("damaged", f"hard states cannot be stored any more: {error}")

    # The end

    def statistics(self) -> HostStatistics:
        """One snapshot; resets the worst lag."""
        worst, self._lag_max_ms = self._lag_max_ms, 0.0
        replicas = [entry.replica for entry in self._groups.values()]
        return HostStatistics(
            len(replicas),
            sum(replica.is_leader for replica in replicas),
            len(self._unserved),
            sum(replica.failure is not None for replica in replicas),
            self._turns,
            self._lag_ms,
            worst,
            self._dropped,
            self._appends,
            self._free_bytes,
        )

    async def stop(self) -> None:
        """Close every group; waiting appends get an indefinite answer. Leadership was handed over before, or
        not."""
        self._stopping = True
        self._wake_up.set()
        tasks = list(self._side_tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for group in list(self._groups):
            await self.close_group(group)


def _absent_status(group: GroupId, state: str, reason: str) -> ReplicaStatus:
    zero = Offset(0)
    return ReplicaStatus(
        group, state, reason, Role.FOLLOWER, Term(0), None, zero, zero, zero, LogIndex(0), None, 0
    )


__all__ = ["Appended", "Fetch", "Frame", "Host", "HostStatistics", "Offsets", "ReplicaStatus"]
