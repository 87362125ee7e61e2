"""The host: every replica of this agent, and what clients and peers want of them.

Law of this file: it finds the replica and passes on. Turns of replicas stand in scheduler.py, their work in
replica.py, their opening in opener.py. appender.py and reader.py answer appends and reads. A replica that is
lost, damaged or failed is a status here and never an obstacle to the others.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

from shoal.agent.delivery.keeper import GroupKeeper
from shoal.agent.durable.identity import ReplicaRecord, ReplicaState
from shoal.agent.durable.ids import CATALOG_GROUP, GroupId
from shoal.agent.durable.paired_file import PairedFileError
from shoal.agent.fetch import Offsets
from shoal.agent.groups.settings import GroupPlans
from shoal.agent.host.config import HostConfig
from shoal.agent.host.copy_source import CopySource
from shoal.agent.host.copy_target import INSTALL_FAULTS, CopyTarget
from shoal.agent.host.free_space import MIN_FREE_BYTES, TRIM_FREE_BYTES, FreeSpace
from shoal.agent.host.leadership_transfer import hand_over_all
from shoal.agent.host.newborns import Newborns
from shoal.agent.host.open_group import OpenGroup, Unserved, nothing
from shoal.agent.host.peer_input import PeerInput
from shoal.agent.host.peer_liveness import PeerLiveness
from shoal.agent.host.reopener import Reopener
from shoal.agent.host.repair import LogRepair
from shoal.agent.host.scheduler import Scheduler
from shoal.agent.host.unsafe_recovery import Recovery
from shoal.agent.partition.clock_skew import PeerClocks
from shoal.agent.partition.disk_queue import failure_of
from shoal.agent.partition.observer import ReplicaObserver
from shoal.agent.partition.opener import DamagedReplica, ReplicaLost, Stores, Work, erase, open_replica
from shoal.agent.partition.pending import Waiter
from shoal.agent.partition.plan import Plan
from shoal.agent.partition.reader import Reader
from shoal.agent.partition.replica import Replica
from shoal.agent.partition.state.retention import Retention
from shoal.agent.partition.status import ReplicaStatus, ServingState, status_of
from shoal.agent.peers.links import Links
from shoal.agent.peers.outbox import Outbox
from shoal.agent.process.clock import Clock, by_turns
from shoal.agent.submission import Answer, Appended, Submission
from shoal.agent.views.upkeep.view_set import ViewSet
from shoal.errors import ShoalError
from shoal.format.batch import Kind, LogIndex, Offset, Term
from shoal.replication.config import RaftConfig
from shoal.replication.interfaces import Configuration, HardState, ReplicaId
from shoal.segment_store.check.damage import merge, range_of
from shoal.segment_store.errors import Damaged, ForeignIdentity, StoreError

CHECKED_PER_TURN = 64  # of the loop: less than a millisecond of work
MAX_APPEND_TIMEOUT_MS = 300_000
SMALL_BYTES_MAX = 64 * 2**10
"""A larger append takes the disk longer than a round of the event loop: it does better in company."""

logger = logging.getLogger(__name__)


class Host:
    """See the module. `run()` is one task of the agent's TaskGroup; everything else may be called while it
    runs."""

    def __init__(
        self,
        *,
        agent_id: str,
        stores: Stores,
        links: Links,
        clock: Clock,
        rng: random.Random,
        config: HostConfig,
        on_change: Callable[[GroupId], None],
    ) -> None:
        self.agent_id = agent_id
        self.clock = clock
        self._stores = stores
        self._rng = rng
        self._config = config
        self._on_change = on_change
        self.clocks = PeerClocks(links, clock, agent_id, self.open_replicas, config.retention_interval_ms)
        self.cleared_writes: dict[GroupId, LogIndex] = {}
        """Of logs opened in this run: behind which entry something stood that no power failure can have torn,
        and was cleared for incomplete. It may have been acknowledged."""
        self._groups: dict[GroupId, OpenGroup] = {}
        self._colocated = frozenset({agent_id})
        self._unserved: dict[GroupId, Unserved] = {}
        """Groups whose replicas are not open."""
        self._failed: dict[GroupId, None] = {}
        """Groups whose replicas have stopped, open as they are."""
        self._opening: set[GroupId] = set()
        self._outbox = Outbox(links)
        self.turns = Scheduler(clock, self._outbox.flush)
        self.schedule = self.turns.schedule
        self.send_append = links.send_append
        self._side_tasks: set[asyncio.Task[None]] = set()
        self.free_space = FreeSpace(stores.disk, stores.data_directory)
        stores.disk.around_completions = self.turns.completions
        stores.disk.call_soon = self.turns.follow
        links.around_input = self.turns.burst
        PeerInput(links, self, self.turns, self.free_space, config.measures.replication)
        room = self.free_space.has_room
        views = ViewSet(stores, links, clock.now_ms, self.clocks.believed_now_us, room)
        liveness = PeerLiveness(links, self, config.raft.heartbeat_interval_ms)
        self._copy_target = CopyTarget(links, stores, self, views)
        self.reopener = Reopener(self, self._copy_target.abandon, stores.write_again)
        self._duties = (
            liveness.run,
            partial(self.free_space.watch, self.reopener.look),
            self._watch_retention,
            self.clocks.run,
            CopySource(links, self).run,
            views.run,
        )
        self.log_repair = LogRepair(links, self, stores.hard_states)
        self.recovery = Recovery(links, stores, self)
        self.newborns = Newborns(self, stores)

    @property
    def raft_config(self) -> RaftConfig:
        return self._config.raft

    @property
    def views(self) -> ViewSet:
        return self._copy_target.views

    # Groups

    async def open_group(self, plan: Plan) -> None:
        """Register the replica, open its log, start its core. A lost or damaged replica is kept as a status
        only. Raises UnknownReplica, or PairedFileError when the disk cannot register it."""
        assert plan.group not in self._groups
        assert plan.group not in self._opening
        if self.turns.stopping:
            raise ShoalError("stopping", "the agent stops")
        await self._open(plan)

    async def _open(self, plan: Plan) -> None:
        group = plan.group
        made: list[OpenGroup] = []
        plan, view = self.views.planned(plan)

        def observe(replica: Replica) -> tuple[ReplicaObserver, ...]:
            made.append(OpenGroup.of(replica, view, self.clocks, self._config))
            return made[0].observers

        self._opening.add(group)
        try:
            await open_replica(self._stores, self, plan, self._rng, observe)
            if view is not None:
                await self.views.begin(view, made[0].replica)
        except ReplicaLost as error:
            self._give_up(group, ServingState.LOST, str(error))
            return
        except DamagedReplica as damaged:
            reason = f"its log is damaged, and is mended from peers: {damaged}"
            self._give_up(group, ServingState.FAILED, reason)
            self.log_repair.wait(damaged)
            return
        except StoreError as error:
            is_broken = isinstance(error, Damaged | ForeignIdentity)
            self._give_up(group, ServingState.FAILED, f"its log cannot be opened: {error}", is_broken)
            self.reopener.failed(plan, error)
            return
        finally:
            self._opening.discard(group)
        self._adopt(made[0])

    def _give_up(self, group: GroupId, state: ServingState, reason: str, is_broken: bool = False) -> None:
        """The other groups are served all the same."""
        logger.error("%s: replica not served, it is %s: %s", group, state, reason)
        self._unserved[group] = Unserved(state, reason, is_broken)
        self.changed(group)

    def _adopt(self, entry: OpenGroup) -> None:
        replica, group = entry.replica, entry.replica.group
        self._unserved.pop(group, None)
        self.newborns.note(replica)
        if self._config.power_held and replica.log.cleared_behind is not None:
            self.cleared_writes.setdefault(group, replica.log.cleared_behind)
        self._groups[group] = entry
        replica.damaged_ranges = tuple(merge(filter(None, map(range_of, replica.log.damage))))
        replica.core.set_colocated(self._colocated)
        self.log_repair.found(group)
        if entry.applier is not None:
            entry.applier.start()
        self.schedule(replica)
        self.changed(group)

    async def close_group(self, group: GroupId, why: str = "the agent stops") -> None:
        """Stop the replica; its data stay. Nothing happens to one not open. Its waiters are told why."""
        await self.reopener.is_over(group)
        self.reopener.forget(group)
        await self._copy_target.abandon(group)
        await self.log_repair.abandon(group)
        self._unserved.pop(group, None)
        entry = self._take_out(group)
        if entry is not None:
            await self._close(entry, why)

    def _take_out(self, group: GroupId) -> OpenGroup | None:
        self._failed.pop(group, None)
        return self._groups.pop(group, None)

    async def reopen(self, group: GroupId, work: Work) -> None:
        """Close the replica, do the work on its files, open it again. Nothing else opens or deletes it
        meanwhile. A fault is a status, as everywhere."""
        entry = self._entry(group)
        entry.replica.say_last_words()
        self._take_out(group)

        async def anew() -> None:
            await self._close(entry, "the log is replaced, mended or opened anew")
            await work()

        await self.open_anew(entry.replica.plan, anew)

    async def open_anew(self, plan: Plan, work: Work) -> None:
        """The same for a replica that is not open."""
        group = plan.group
        self._unserved[group] = Unserved(ServingState.INSTALLING, "its log is replaced, mended or opened")
        with self.reopener.of(group):
            try:
                await work()
                await self._open(plan)
            except INSTALL_FAULTS as error:
                self._give_up(group, ServingState.FAILED, f"its log could not be replaced: {error}")
                self.reopener.failed(plan, error)

    async def open_mended(self, damaged: DamagedReplica, quarantined: frozenset[LogIndex]) -> None:
        """Open a replica whose log was damaged, and is not any more, but for what is quarantined."""
        if not self.turns.stopping:
            await self.open_anew(replace(damaged.plan, quarantined=quarantined), nothing)

    def may_reopen(self, replica: Replica) -> bool:
        """Whether it is still the group's replica."""
        entry = self._groups.get(replica.group)
        return entry is not None and entry.replica is replica

    def damaged(self, group: GroupId) -> None:
        self.log_repair.found(group)

    def stored_term(self, group: GroupId) -> Term:
        """The term that this replica has entered, by the disk."""
        return self._stores.hard_states.synced_term(group)

    async def _close(self, entry: OpenGroup, why: str) -> None:
        await entry.stop()
        await self.views.end(entry.replica.group)
        await entry.replica.close(why)
        self.turns.forget(entry.replica)

    async def delete_group(self, group: GroupId) -> None:
        """Remove the replica for good. The caller holds a committed topic deletion, or a committed
        configuration without this replica (safety 4)."""
        await self.close_group(group, "the partition's topic was deleted")
        await erase(self._stores, group)
        await self._stores.registry.remove(group)

    async def retire_group(self, group: GroupId) -> None:
        """The same for a replica that was removed from a group that lives on: the registry remembers it, so
        that it never comes back under its old id. The caller holds a committed configuration without it."""
        record = self._stores.registry.get(group)
        assert record is not None
        await self.close_group(group, "the replica here was removed from its group")
        await self._stores.registry.put(record._replace(state=ReplicaState.REMOVED))
        await erase(self._stores, group)
        self.changed(group)

    async def finish_retirements(self) -> None:
        """After a restart: a crash may have come between the registry's record and the last file."""
        for record in self._stores.registry:
            directory = self._stores.directory(record.group)
            if record.state is ReplicaState.REMOVED and await self._stores.disk.exists(directory):
                await erase(self._stores, record.group)

    def committed_configuration(self, group: GroupId) -> Configuration | None:
        """The newest configuration known here to be committed; None when no replica here can say."""
        entry = self._groups.get(group)
        return None if entry is None or entry.replica.failure else entry.replica.state.configurations[0]

    def replica_records(self) -> Iterator[ReplicaRecord]:
        """The registry's records of this agent's replicas, open or not."""
        return iter(self._stores.registry)

    def replica_record(self, group: GroupId) -> ReplicaRecord | None:
        """None: this agent never held a replica of the group, or its topic was deleted."""
        return self._stores.registry.get(group)

    def open_replicas(self) -> list[Replica]:
        """Those whose logs are open, serving or stopped."""
        return [entry.replica for entry in self._groups.values()]

    def open_replica(self, group: GroupId) -> Replica | None:
        """None where no replica of the group is open here."""
        entry = self._groups.get(group)
        return None if entry is None else entry.replica

    def stopped_groups(self) -> list[GroupId]:
        """Groups whose replicas here neither vote nor lead, and are not on their way to it."""
        return [*self._failed, *self._unserved] if self._failed or self._unserved else []

    def led_replicas(self) -> list[Replica]:
        """Those that lead their groups, and serve."""
        return [entry.replica for entry in self._groups.values() if entry.replica.serves]

    def has(self, group: GroupId) -> bool:
        """Whether the group is open here, serving or not."""
        return group in self._groups or group in self._unserved

    def set_segment_bytes(self, group: GroupId, segment_bytes: int) -> None:
        """How large the group's segments grow from now on; a replica that does not serve has none."""
        entry = self._groups.get(group)
        if entry is not None:
            entry.replica.log.set_segment_bytes(segment_bytes)

    def set_colocated(self, agents: frozenset[str]) -> None:
        """Those that share this agent's failure domain, itself among them; said after each change of the
        member list."""
        if agents != self._colocated:
            self._colocated = agents
            for replica in self.open_replicas():
                replica.core.set_colocated(agents)

    def set_retention(self, group: GroupId, retention: Retention) -> None:
        """Set the group's retention; a replica that does not serve keeps everything."""
        entry = self._groups.get(group)
        if entry is not None:
            entry.replica.plan = replace(entry.replica.plan, retention=retention)

    def set_groups(self, group: GroupId, plans: GroupPlans) -> None:
        """The topic has these consumer groups; a replica that does not serve hears of them when it does."""
        entry = self._groups.get(group)
        if entry is not None and entry.keeper is not None:
            entry.keeper.set_groups(plans)

    def replica(self, group: GroupId) -> Replica:
        """Raises ShoalError: unknown-partition, damaged for a lost one, stopping."""
        return self._entry(group).replica

    def _entry(self, group: GroupId) -> OpenGroup:
        entry = self._groups.get(group)
        if entry is None:
            self._refuse_absent(group)
        return entry

    def _refuse_absent(self, group: GroupId) -> NoReturn:
        if self.turns.stopping:
            raise ShoalError("stopping", "the agent stops")
        if group in self._unserved:
            unserved = self._unserved[group]
            raise ShoalError("damaged", f"the replica here is {unserved.state}: {unserved.reason}")
        if group in self._opening:
            raise ShoalError("not-ready", "the replica is being opened")
        raise ShoalError("not-leader", f"{group} has no replica on this agent", leader=None)

    def status(self, group: GroupId) -> ReplicaStatus:
        """Raises ShoalError when the group is not here."""
        unserved = self._unserved.get(group)
        if unserved is not None:
            return ReplicaStatus(group, unserved.state, unserved.reason)
        return status_of(self.replica(group))

    def statuses(self) -> Iterator[ReplicaStatus]:
        return (self.status(group) for group in self.groups())

    def groups(self) -> list[GroupId]:
        """Those that have a status."""
        return [*self._groups, *self._unserved]

    def beyond_repair(self) -> list[ReplicaRecord]:
        """Replicas here that will not vote again: lost ones, and those whose log cannot even be mended."""
        broken = {group for group, unserved in self._unserved.items() if unserved.is_broken}
        hopeless = broken | (self.log_repair.hopeless & self._unserved.keys())
        return [
            record
            for record in self._stores.registry
            if record.state is ReplicaState.LOST or record.group in hopeless
        ]

    # Clients

    async def append(self, group: GroupId, submission: Submission) -> Appended:
        """Append records, or whole batches.

        Raises ShoalError: not-leader, no-leader, overloaded, producer-fenced, sequence-gap, disk-full,
        too-large, damaged (nothing happened); timeout, leadership-lost (it may have).
        """
        answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self.begin_append(group, submission, answer)
        return await answer

    def begin_append(self, group: GroupId, submission: Submission, answer: Answer) -> None:
        """The same without a coroutine: `answer` hears of the end. Raises when nothing was proposed."""
        deadline_ms = self.clock.now_ms() + min(submission.timeout_ms, MAX_APPEND_TIMEOUT_MS)
        appender = self.for_append(group, submission.size_bytes).appender
        if submission.size_bytes > SMALL_BYTES_MAX:
            appender.begin(submission, deadline_ms, answer)
            return
        with self.turns.burst:
            appender.begin(submission, deadline_ms, answer)

    def for_append(
        self, group: GroupId, size_bytes: int = 0, *, least_bytes: int = MIN_FREE_BYTES
    ) -> OpenGroup:
        """Bytes taken now count as used, or a burst between two looks at the disk would fill it."""
        entry = self._groups.get(group)
        if entry is None:
            self._refuse_absent(group)
        self.free_space.take(size_bytes, least_bytes if group != CATALOG_GROUP else None)
        return entry

    async def propose_control(self, group: GroupId, kind: Kind, control: bytes, timeout_ms: int) -> LogIndex:
        """Append a control entry and wait for its commit. Raises as append."""
        assert kind not in (Kind.SCHEMA, Kind.DATA, Kind.CONFIGURATION, Kind.CHECKPOINT)
        replica = self.for_append(group, least_bytes=TRIM_FREE_BYTES).replica
        frame = replica.propose_control(kind, control)
        answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        deadline_ms = self.clock.now_ms() + min(timeout_ms, MAX_APPEND_TIMEOUT_MS)
        result = Appended(frame.stamp.base_offset, 0)
        replica.waiting.add(Waiter(frame.stamp.index, answer, result, deadline_ms))
        await answer
        return frame.stamp.index

    async def trim(self, group: GroupId, before: Offset, timeout_ms: int) -> Offset:
        """Drop the segments that lie wholly before the offset, and that every replica holds, on all replicas;
        where the log then starts. Raises ShoalError as propose_control, and beyond-end."""
        entry = self.for_append(group, least_bytes=TRIM_FREE_BYTES)
        if (control := entry.trimmer.control_for(before)) is not None:
            await self.propose_control(group, Kind.TRIM, control, timeout_ms)
        return entry.replica.log.start_offset

    def reader(self, group: GroupId) -> Reader:
        """Of an open replica, serving or stopped. Raises ShoalError as `replica`."""
        return self._entry(group).reader

    def keeper(self, group: GroupId, *, least_bytes: int = 0) -> GroupKeeper:
        """Of an open replica's groups. Raises ShoalError as `replica`, and disk-full where less is free."""
        entry = self.for_append(group, least_bytes=least_bytes)
        if entry.keeper is None:
            raise ShoalError("bad-request", f"{group} has no consumer groups")
        return entry.keeper

    async def offsets(self, group: GroupId) -> Offsets:
        """Start, high watermark and end, confirmed by a majority."""
        return await self.reader(group).offsets()

    async def transfer_all(self, timeout_ms: int) -> int:
        """Hand over every leadership that another voter can take (SIGTERM); how many moved in time."""
        return await hand_over_all(self.led_replicas(), timeout_ms)

    def transfer(self, group: GroupId, to: ReplicaId | None) -> None:
        """Hand one leadership over. Raises NotLeader, InvalidChange."""
        self.replica(group).core.transfer_leadership(to, self.clock.now_ms())
        self.schedule(self.replica(group))

    # Tasks beside the turns

    async def run(self) -> None:
        """Serve deadlines until cancelled or stopped."""
        for duty in self._duties:
            self._side(duty())
        try:
            await self.turns.run()
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
            logger.error("a task of the host failed; this is a bug", exc_info=task.exception())

    async def _watch_retention(self) -> None:
        """Leaders look at the age and size of their logs."""
        while True:
            await asyncio.sleep(self._config.retention_interval_ms / 1000)
            async for entry in by_turns(list(self._groups.values()), CHECKED_PER_TURN):
                entry.check()

    # What replicas ask (ReplicaHost)

    def send_control(self, agent_id: str, group: GroupId, message: bytes) -> None:
        """Goes out at the end of this turn, with everything else for that agent."""
        if self._outbox.put(agent_id, group, message):
            self.turns.schedule_flush()

    def changed(self, group: GroupId) -> None:
        """Tell the agent, whose trouble with the news is not the replica's."""
        replica = self.open_replica(group)
        if replica is not None and replica.failure is not None:
            self._failed[group] = None
        elif replica is not None:
            self.newborns.note(replica)
        try:
            self._on_change(group)
        except Exception:
            logger.exception("%s: a change of its placement was not taken; this is a bug", group)

    async def save_hard_state(self, replica: Replica, state: HardState) -> None:
        """Its commit index is of what this disk holds: neither less, nor what is yet to be truncated."""
        durable = min(state.commit_index, replica.log.synced_index, replica.core.stable_index)
        state = replace(state, commit_index=durable)
        await self._stores.hard_states.save(replica.group, replica.replica_id, state)

    async def save_floor(self, replica: Replica, floor: LogIndex) -> None:
        """A log found shorter is a lost one."""
        await self._stores.hard_states.save_floor(replica.group, floor)

    def save_hint(self, replica: Replica) -> None:
        self._side(self._save_hint(replica))

    async def _save_hint(self, replica: Replica) -> None:
        """Term and vote are the newest known, so that this never undoes a save under way."""
        try:
            await self.save_hard_state(replica, replica.core.hard_state)
        except PairedFileError as error:
            replica.fail(*failure_of(error))

    async def stop(self) -> None:
        """Close every group; waiting appends get an indefinite answer. Leadership was handed over before, or
        not."""
        self.turns.stop()
        await self.reopener.settle()
        await self._copy_target.stop()
        await self.log_repair.stop()
        tasks = list(self._side_tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # The next start then folds little. All of them are one group commit.
        active = [entry.replica for entry in self._groups.values() if entry.replica.failure is None]
        await asyncio.gather(*(self._save_hint(replica) for replica in active))
        for group in list(self._groups):
            await self.close_group(group)
