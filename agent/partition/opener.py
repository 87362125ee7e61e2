"""How a replica comes to life: at its birth, after a restart, or not at all.

Law of this file: the order of durable steps. Birth: registry `creating`, log directory, hard state, registry
`active`; only then is the first message sent, so a crash at any point either leaves nothing promised or
everything remembered. A registered replica whose data, hard state or log contradict that is `lost`: it says
so and never votes (safety 2, 3). A restart folds the log again, from the segment that holds the last commit
index stored. Installation of a copied log (safety 27): registry `installing`, the old log goes, the copy
takes its name, registry `active`; from the first of these on the copy counts, and a crash is carried on from
there.
"""

import logging
import os
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from shoal.agent.durable.identity import HardStateFile, ReplicaRecord, ReplicaRegistry, ReplicaState
from shoal.agent.durable.ids import GroupId, IdentityError
from shoal.agent.durable.new_directories import NewDirectories
from shoal.agent.log_lines.names import agent_name
from shoal.agent.partition.plan import Plan
from shoal.agent.partition.replica import Observe, Replica, ReplicaHost
from shoal.agent.partition.state.checkpoint import Checkpoint, FoldError, decode_configuration
from shoal.agent.partition.state.log_state import PartitionState
from shoal.agent.process.pace import Pace
from shoal.format.batch import Kind, LogIdentity, LogIndex, control_payload
from shoal.replication.interfaces import Configuration, HardState, ReplicaId, StoredReplica, birth_term
from shoal.replication.interfaces import Replica as RaftReplica
from shoal.replication.raft import RaftCore
from shoal.segment_store.config import LogConfig
from shoal.segment_store.disk.disk import Disk
from shoal.segment_store.errors import Damaged, StoreError
from shoal.segment_store.log.log import PartitionLog
from shoal.segment_store.log.segment import SegmentFiles
from shoal.segment_store.log.shared import SharedFiles

COPIES_DIRECTORY = "copies"
VIEW_DIRECTORY = "view"
"""Of a sorted view (agent/views), in the directory of the partition's log, which leaves other names alone."""
LOOK_BYTES = 2**20

Work = Callable[[], Awaitable[None]]
"""What is done to a replica's files while it is closed."""

logger = logging.getLogger(__name__)


class ReplicaLost(Exception):
    """This replica may have promised what it no longer knows; the text says what is missing."""


class DamagedReplica(Exception):
    """The log is open, and what the replica needs of it does not verify: it is mended before the replica
    speaks (safety 10). The text says what is damaged."""

    def __init__(
        self,
        plan: Plan,
        log: PartitionLog,
        damage: Sequence[Damaged],
        hard_state: HardState,
        identity: LogIdentity,
        replica_id: ReplicaId,
    ) -> None:
        super().__init__(f"{len(damage)} damaged stretches: {damage[0]}")
        self.plan = plan
        self.replica_id = replica_id
        self.log = log
        self.damage = tuple(damage)
        self.term = hard_state.term
        self.commit_index = hard_state.commit_index
        self.identity = identity
        self.configurations = [plan.birth]
        """Those that can be read, from before the damage on, ascending."""
        self.unread: LogIndex | None = None
        """The first damaged entry that may be another one."""
        self.present: Sequence[RaftReplica] = ()
        """The group's replicas as a holder of today tells them, where that was asked."""

    async def find_configurations(self) -> None:
        """Look at everything from the last checkpoint before the damage on; again when some of it is mended,
        which may be what was unread."""
        self.configurations = [self.plan.birth]
        self.unread = None
        log = self.log
        index = log.first_index_of_segment(LogIndex(max(log.first_index, self.damage[0].first_index)))
        while index <= log.last_index:
            try:
                frames = await log.read(index, log.last_index, LOOK_BYTES)
            except Damaged:
                await log.load_index(index)
                if self.unread is None and log.entry(index).record_count == 0:
                    self.unread = index
                index = LogIndex(index + 1)
                continue
            for frame in frames:
                if frame.stamp.kind == Kind.CHECKPOINT and frame.stamp.index > 1:
                    self._read(Checkpoint.from_bytes(control_payload(frame.data)).configuration)
                elif frame.stamp.kind == Kind.CONFIGURATION:
                    self._read(decode_configuration(control_payload(frame.data)))
            index = LogIndex(frames[-1].stamp.index + 1)

    def _read(self, configuration: Configuration) -> None:
        """A checkpoint repeats the one in force."""
        if configuration.index > self.configurations[-1].index:
            self.configurations.append(configuration)


class UnknownReplica(Exception):
    """The birth configuration names no replica on this agent, and the registry knows none; or the one it
    knows was removed."""


@dataclass(frozen=True, slots=True)
class Stores:
    """Parts that every replica of an agent shares."""

    disk: Disk
    data_directory: str
    cluster_id: bytes
    registry: ReplicaRegistry
    hard_states: HardStateFile
    shared: SharedFiles = field(init=False)
    new_directories: NewDirectories = field(init=False)
    births: Pace = field(init=False, default_factory=Pace)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shared", SharedFiles(self.disk))
        object.__setattr__(self, "new_directories", NewDirectories(self.disk))

    async def write_again(self) -> bool:
        """The disk has room: promises and records that it refused are settled. False: it refuses them
        again."""
        return await self.hard_states.write_again() and await self.registry.write_again()

    def identity(self, group: GroupId) -> LogIdentity:
        """The seed of the checksums of the partition's frames."""
        return LogIdentity(self.cluster_id, group.topic_id, group.partition)

    def directory(self, group: GroupId) -> str:
        """Of one partition: ids only, never a name (safety 4)."""
        return f"{self.data_directory}/topics/{group.topic_id.hex()}/{group.partition}"

    def side_directory(self, group: GroupId) -> str:
        """Where a copy of the partition's log is made. It is part of the log only once it has taken its
        place."""
        return f"{self.data_directory}/{COPIES_DIRECTORY}/{group.topic_id.hex()}/{group.partition}"


async def open_replica(
    stores: Stores,
    host: ReplicaHost,
    plan: Plan,
    rng: random.Random,
    observe: Observe = lambda _: (),
) -> Replica:
    """Raises ReplicaLost, UnknownReplica, DamagedReplica (its log stays open), StoreError (the log cannot be
    opened) or PairedFileError (cannot be kept)."""
    stores.hard_states.check()
    record = stores.registry.get(plan.group)
    if record is not None and record.state is ReplicaState.REMOVED:
        own_id = plan.own_id(host.agent_id)
        if own_id is None or own_id <= record.replica_id:
            raise UnknownReplica(f"replica {record.replica_id} of {plan.group} was removed from its group")
        await erase(stores, plan.group)
        record = None
    identity, directory = stores.identity(plan.group), stores.directory(plan.group)
    if record is None or record.state is ReplicaState.CREATING:
        record, is_new = await _give_birth(stores, host.agent_id, plan)
        await stores.births.pass_one()
        if is_new:
            files = SegmentFiles(
                stores.disk, directory, identity, plan.schema, plan.log_config, stores.shared
            )
            log = PartitionLog.begin(files)
            return await _start(stores, host, plan, record, log, rng, observe, is_newborn=True)
    if record.state is ReplicaState.INSTALLING:
        record = await finish_install(stores, record)
    if record.state is ReplicaState.RECOVERING:
        record = await finish_recovery(stores, record)
    await _remove_if_there(stores, stores.side_directory(plan.group))
    if record.state is ReplicaState.LOST:
        raise ReplicaLost("it was found lost before")
    try:
        stored = stores.hard_states.get(plan.group)
    except IdentityError as error:
        raise await _lose(stores, record, str(error)) from error
    if stored is None or stored[0] != record.replica_id:
        raise await _lose(stores, record, "its term and vote are gone")
    if not await stores.disk.exists(directory):
        raise await _lose(stores, record, f"its directory {directory} is gone")
    log = await PartitionLog.open(
        stores.disk, directory, identity, plan.schema, plan.log_config, shared=stores.shared
    )
    return await _start(stores, host, plan, record, log, rng, observe)


async def _start(
    stores: Stores,
    host: ReplicaHost,
    plan: Plan,
    record: ReplicaRecord,
    log: PartitionLog,
    rng: random.Random,
    observe: Observe,
    *,
    is_newborn: bool = False,
) -> Replica:
    """The replica over its log, which is closed when this raises as open_replica does, but for damage.
    is_newborn: it never ran before. Then the first voter of a birth that nobody has led leads without an
    election; one that comes later may not, even if it forgot its vote."""
    stored = stores.hard_states.get(plan.group)
    assert stored is not None
    identity = stores.identity(plan.group)
    for item in log.damage:
        logger.error("%s: damage found, at the start: %s", plan.group, item)
    try:
        await _check_log(stores, record, stored[1], log, plan)
        floor = await _raise_floor(stores, plan.group, log)
        state = await _fold_or_damage(log, plan, stored[1], identity, record.replica_id)
        leads = is_newborn and plan.awaits_birth and record.replica_id == plan.birth.voters[0]
        commit_index = state.committed.last_index
        found = StoredReplica(
            stored[1], state.configurations, log.term_runs(), log.first_index, log.last_index, commit_index
        )
        now_ms = host.clock.now_ms()
        core = RaftCore(record.replica_id, found, host.raft_config, rng, now_ms, leads_from_birth=leads)
    except DamagedReplica:
        raise
    except BaseException:
        await log.close()
        raise
    return Replica(host, plan, identity, log, state, core, floor, observe)


async def finish_install(stores: Stores, record: ReplicaRecord) -> ReplicaRecord:
    """The copy in the side directory takes the log's place: the registry says so already. May be repeated
    after a crash at any point; the record as it is then. Raises OSError, PairedFileError."""
    directory, side = stores.directory(record.group), stores.side_directory(record.group)
    if await stores.disk.exists(side):
        await _keep_view(stores, directory, side)
        await stores.disk.remove_tree(directory)
        await stores.disk.rename(side, directory)
        for parent in (os.path.dirname(directory), os.path.dirname(side)):
            await stores.disk.sync_directory(parent)
    active = record._replace(state=ReplicaState.ACTIVE)
    await stores.registry.put(active)
    return active


async def _keep_view(stores: Stores, directory: str, side: str) -> None:
    """The replica's own sorted view goes along, unless the copy has brought one."""
    own, copied = f"{directory}/{VIEW_DIRECTORY}", f"{side}/{VIEW_DIRECTORY}"
    if await stores.disk.exists(own) and not await stores.disk.exists(copied):
        await stores.disk.sync_directory(own)
        await stores.disk.rename(own, copied)
        for parent in (side, directory):
            await stores.disk.sync_directory(parent)


async def finish_recovery(stores: Stores, record: ReplicaRecord) -> ReplicaRecord:
    """The replica goes on under a new id, of a new epoch (unsafe_recovery.py): what it promised under the old
    one was of older terms. May be repeated after a crash. Raises IdentityError, PairedFileError."""
    stored = stores.hard_states.get(record.group)
    if stored is not None:
        _, state = stored
        promised = HardState(state.term, None, state.commit_index)
        await stores.hard_states.save(record.group, record.replica_id, promised)
    active = record._replace(state=ReplicaState.ACTIVE)
    await stores.registry.put(active)
    return active


async def _remove_if_there(stores: Stores, directory: str) -> None:
    if await stores.disk.exists(directory):
        await stores.disk.remove_tree(directory)


async def erase(stores: Stores, group: GroupId) -> None:
    """Log and hard state of a closed replica; may be repeated after a crash. The registry is the caller's."""
    directory = stores.directory(group)
    await _remove_if_there(stores, stores.side_directory(group))
    await stores.disk.remove_tree(directory)
    topic_directory = os.path.dirname(directory)
    if not await stores.disk.list(topic_directory):
        await stores.disk.remove_tree(topic_directory)
    await stores.hard_states.remove(group)


async def holds_records(stores: Stores, group: GroupId, schema: pa.Schema) -> bool:
    """Whether a log that is not open may have taken a record: one that cannot be read may."""
    directory = stores.directory(group)
    is_there = await stores.disk.exists(directory)
    if not is_there:
        return False
    try:
        log = await PartitionLog.open(stores.disk, directory, stores.identity(group), schema, LogConfig())
    except StoreError:
        return True
    try:
        return log.end_offset > 0 or bool(log.damage)
    finally:
        await log.close()


async def _give_birth(stores: Stores, agent_id: str, plan: Plan) -> tuple[ReplicaRecord, bool]:
    """Its record, and whether its directory is new: then nothing has to be looked for in it."""
    replica_id = plan.own_id(agent_id)
    if replica_id is None:
        raise UnknownReplica(f"{plan.group} was not created on {agent_name(agent_id)}")
    record = ReplicaRecord(plan.group, replica_id, ReplicaState.CREATING)
    await stores.registry.put(record)
    is_new = await stores.new_directories.make(stores.directory(plan.group))
    await stores.hard_states.remove(plan.group)  # with what is left of a birth that a crash cut short
    # A voter of the birth is born with the vote for the replica that the birth makes the leader, even where
    # that one may have begun long ago. A replica that was added later has voted for nobody.
    is_born = plan.birth.find(replica_id) is not None
    first = plan.birth.hard_state_at_birth() if is_born else HardState(birth_term(replica_id))
    await stores.hard_states.save(plan.group, replica_id, first)
    record = record._replace(state=ReplicaState.ACTIVE)
    await stores.registry.put(record)
    return record, is_new


async def _lose(stores: Stores, record: ReplicaRecord, reason: str) -> ReplicaLost:
    await stores.registry.put(record._replace(state=ReplicaState.LOST))
    return ReplicaLost(reason)


async def _check_log(
    stores: Stores, record: ReplicaRecord, hard_state: HardState, log: PartitionLog, plan: Plan
) -> None:
    if log.last_term > hard_state.term:
        reason = f"its log holds term {log.last_term}, its stored term is {hard_state.term}"
        raise await _lose(stores, record, reason)
    synced = max(hard_state.commit_index, stores.hard_states.floor(plan.group))
    if plan.log_config.fsync and log.last_index < synced:
        # Without fsync a power failure may do this; with it, only lost, ruined or foreign files can.
        reason = f"its log ends at {log.last_index}, it had synced {synced}"
        raise await _lose(stores, record, reason)


async def _raise_floor(stores: Stores, group: GroupId, log: PartitionLog) -> LogIndex:
    """A crash may have come between a segment's first entry and its note."""
    stored = stores.hard_states.floor(group)
    if log.last_index == 0:
        return stored
    reached = log.first_index_of_segment(log.last_index)
    if reached > stored:
        await stores.hard_states.save_floor(group, reached)
    return max(reached, stored)


async def _fold_or_damage(
    log: PartitionLog, plan: Plan, hard_state: HardState, identity: LogIdentity, replica_id: ReplicaId
) -> PartitionState:
    """Raises DamagedReplica; StoreError, FoldError as such."""
    start = _fold_start(log, hard_state.commit_index)
    damage = [
        item
        for item in log.damage
        if item.last_index >= start and not _is_quarantined(item, plan.quarantined)
    ]
    if not damage:  # what lies before is mended while the replica runs
        try:
            return await fold_log(log, plan, hard_state.commit_index)
        except Damaged:
            damage = [item for item in await log.verify(start) if not _is_quarantined(item, plan.quarantined)]
            if not damage:
                raise
    damaged = DamagedReplica(plan, log, damage, hard_state, identity, replica_id)
    await damaged.find_configurations()
    raise damaged


def _fold_start(log: PartitionLog, commit_hint: LogIndex) -> LogIndex:
    """The head of the segment behind which everything that may still be truncated lies, so that its undo is
    complete. 1 for an empty log."""
    if log.last_index == 0:
        return LogIndex(1)
    begin = max(log.first_index, min(LogIndex(commit_hint + 1), log.last_index))
    return log.first_index_of_segment(begin)


def _is_quarantined(item: Damaged, quarantined: frozenset[LogIndex]) -> bool:
    return all(index in quarantined for index in range(item.first_index, item.last_index + 1))


async def fold_log(log: PartitionLog, plan: Plan, commit_hint: LogIndex) -> PartitionState:
    """The state at the log's end: the checkpoint of the segment that holds the commit hint, and all after it.

    Raises StoreError; FoldError as StoreError, since it is the stored log that is wrong.
    """
    state = PartitionState(plan.birth, plan.fold())
    if log.last_index == 0:
        return state
    first = _fold_start(log, commit_hint)
    index = first
    try:
        while index <= log.last_index:
            try:
                frames = await log.read(index, log.last_index, LOOK_BYTES)
            except Damaged:
                if index not in plan.quarantined:
                    raise
                await log.load_index(index)
                entry = log.entry(index)
                state.skip(index, entry.term, entry.end_offset, entry.append_time_us, entry.length)
                index = LogIndex(index + 1)
                continue
            for frame in frames:
                if frame.stamp.index == first:
                    state.start_from(frame)
                else:
                    state.append(frame)
            index = LogIndex(frames[-1].stamp.index + 1)
            # As it goes: what is committed needs no undo, which else would be held for a whole segment.
            state.commit(min(commit_hint, LogIndex(index - 1)))
    except FoldError as error:
        raise StoreError(f"the log cannot be folded: {error}") from error
    state.commit(min(commit_hint, log.last_index))
    return state
