"""Every view of this agent: made with its replica, and worked on beside it, one piece of work at a time.

Law of this file: whose turn it is. A piece of work sorts and writes some 32 MiB in a thread; two at once
would take the processors from appends. A view that fails keeps its rows in the log and is tried again later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import pyarrow as pa

from shoal.agent.durable.ids import GroupId
from shoal.agent.log_lines.names import agent_name
from shoal.agent.log_lines.repeats import once_a_minute
from shoal.agent.partition.opener import VIEW_DIRECTORY, Stores
from shoal.agent.partition.plan import Plan, ViewKind
from shoal.agent.partition.replica import Replica
from shoal.agent.peers.links import Links
from shoal.agent.views.manifest_file import save_manifest
from shoal.agent.views.memory_rows import TimerMemory
from shoal.agent.views.row_order import TimerOrder
from shoal.agent.views.run_maker import RunMaker
from shoal.agent.views.table_memory import RecentRoom, TableMemory
from shoal.agent.views.table_order import TableOrder
from shoal.agent.views.table_view import TableView
from shoal.agent.views.timer_view import TimerView
from shoal.agent.views.upkeep.shipment import ShipmentFailed, ViewBorrower, ViewLender
from shoal.agent.views.view import SortedView, ViewFiles
from shoal.format.batch import Offset
from shoal.segment_store.errors import Damaged, StoreError, disk_fault

RUN_WORKERS: Final = 1
LOOK_MS: Final = 100
"""Between two looks for a view that wants a run or a merge."""
TROUBLE_MS: Final = 1_000
"""A view whose work has failed rests so long: a full disk is not better at once."""
SEAL_AFTER_MS: Final = 60_000
"""Rows stay in memory, and their segments in the log, no longer than this: then they become a run, however
small."""

logger = logging.getLogger(__name__)
seldom = once_a_minute(logger)
_T = TypeVar("_T")


@dataclass(eq=False, slots=True)
class ReplicaView:
    """The view of one replica. `timers`: looks into a timer's; `table`: into a table's. `maker`, `replica`:
    once the log is open."""

    kind: ViewKind
    view: SortedView
    timers: TimerView | None = None
    table: TableView | None = None
    replica: Replica | None = None
    maker: RunMaker | None = None
    sealed_ms: int = 0
    rests_until_ms: int = 0
    task: asyncio.Task[bool] | None = None
    """The piece of work under way."""

    def expired_us(self, now_us: int | None) -> int:
        """Rows that were due before are past their retention; 0: none are."""
        assert self.replica is not None
        age_ms = self.replica.plan.retention.age_ms
        if age_ms is None or now_us is None or self.kind is not ViewKind.TIMER:
            return 0
        return max(now_us - 1_000 * age_ms, 0)


class ViewSet:
    """One per host; `run` for its life. `now_us`: the time in which a replica's group believes, if any.
    `has_room`: the disk has."""

    def __init__(
        self,
        stores: Stores,
        links: Links,
        now_ms: Callable[[], int],
        now_us: Callable[[Replica], int | None],
        has_room: Callable[[], bool],
    ) -> None:
        self._stores = stores
        self._lender = ViewLender(links, self)
        self._borrower = ViewBorrower(links)
        self._now_ms = now_ms
        self._now_us = now_us
        self._has_room = has_room
        self._views: dict[GroupId, ReplicaView] = {}
        self._threads: ThreadPoolExecutor | None = None
        self._recent = RecentRoom()

    def get(self, group: GroupId) -> ReplicaView | None:
        """Of an open replica."""
        return self._views.get(group)

    def lendable(self, group: GroupId) -> SortedView | None:
        """The view of a replica that works."""
        made = self._views.get(group)
        if made is None or made.replica is None or made.replica.failure is not None:
            return None
        return made.view

    def planned(self, plan: Plan) -> tuple[Plan, ReplicaView | None]:
        """The plan with the view as its machine, and the view, which is not loaded yet."""
        if plan.view is None:
            return plan, None
        stores, group = self._stores, plan.group
        files = ViewFiles(
            stores.disk,
            f"{stores.directory(group)}/{VIEW_DIRECTORY}",
            stores.shared.open_files,
            stores.identity(group).seed,
        )
        if plan.view is ViewKind.TABLE:
            by_key, rows = TableOrder(plan.schema), TableMemory(self._recent)
            view = SortedView(files, by_key, rows)
            made = ReplicaView(plan.view, view, table=TableView(view, rows, by_key))
        else:
            order, memory = TimerOrder(plan.schema), TimerMemory()
            view = SortedView(files, order, memory)
            made = ReplicaView(plan.view, view, timers=TimerView(view, memory, order))
        return replace(plan, machine=view.machine), made

    async def begin(self, made: ReplicaView, replica: Replica) -> None:
        """The replica's log is open: load its view, and work on it from now on. Raises StoreError, and closes
        the replica again."""
        try:
            await made.view.load()
        except OSError as error:
            await replica.close("its sorted view cannot be read")
            raise disk_fault(error, made.view.files.directory) from error
        made.replica = replica
        made.maker = RunMaker(made.view, replica.log, self.in_thread, self.make_runs)
        made.sealed_ms = self._now_ms()
        self._views[replica.group] = made

    async def end(self, group: GroupId) -> None:
        """The replica is closed: leave its view alone."""
        made = self._views.pop(group, None)
        if made is not None and made.task is not None:
            made.task.cancel()  # it would go on beside another log
            await asyncio.gather(made.task, return_exceptions=True)
        if made is not None:
            made.view.memory.close()
            await self._stores.shared.open_files.close(made.view.files.directory)

    async def in_thread(self, function: Callable[[], _T], /) -> _T:
        """Do the work of a run where it does not hold the loop."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(RUN_WORKERS, "shoal-views")
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)

    async def run(self) -> None:
        """Look for work until cancelled."""
        try:
            while True:
                await asyncio.sleep(LOOK_MS / 1000)
                for group, made in list(self._views.items()):
                    made.view.memory.let_go()
                    while self._views.get(group) is made and await self._work(group, made):
                        pass
        finally:
            self._lender.stop()
            if self._threads is not None:
                self._threads.shutdown(wait=False)

    async def make_runs(self) -> None:
        """While a merge of one view rests between two pieces: the rows of others leave memory for runs."""
        for group, made in list(self._views.items()):
            rests = made.task is None or made.task.done()
            if rests and made.view.is_whole and made.view.wants_run:
                await self._work(group, made)

    async def _work(self, group: GroupId, made: ReplicaView) -> bool:
        """One piece of work on a view; whether there may be more."""
        now_ms, replica, maker = self._now_ms(), made.replica, made.maker
        if now_ms < made.rests_until_ms or maker is None or replica is None or replica.failure is not None:
            return False
        seal = now_ms - made.sealed_ms >= SEAL_AFTER_MS
        if seal:
            made.sealed_ms = now_ms
        expired_us = made.expired_us(self._now_us(replica))

        async def carry_out() -> bool:
            if not await maker.work(expired_us=expired_us, seal=seal, has_room=self._has_room()):
                return await self._fetch_lost(made)
            await self.in_thread(pa.default_memory_pool().release_unused)
            return True

        made.task = asyncio.create_task(carry_out())
        try:
            await asyncio.wait([made.task])
            return not made.task.cancelled() and made.task.result()
        except Damaged as error:
            replica.met(error)  # of the log; a run's own damage the view knows by now
        except (OSError, StoreError) as error:
            seldom.warning("%s: cannot keep its sorted view in order, trying again: %s", group, error)
        finally:
            made.task.cancel()
        made.rests_until_ms = now_ms + TROUBLE_MS
        return False

    # ---- from peers

    async def copy_to(self, directory: str, group: GroupId, peer: str) -> Offset:
        """Copy the peer's view into a directory that is to take the place of the replica's; how far it goes.
        Raises ShipmentFailed, Damaged, OSError."""
        made = self._views.get(group)
        if made is None:
            raise ShipmentFailed("the replica here is being closed")
        files = replace(made.view.files, directory=f"{directory}/{VIEW_DIRECTORY}")
        manifest, _ = await self._borrower.fetch(peer, group, made.view, files, 1)
        await save_manifest(files.disk, files.directory, manifest, files.seed)
        await files.open_files.close(files.directory)
        return manifest.applied.offset

    async def _fetch_lost(self, made: ReplicaView) -> bool:
        """Take a peer's runs where the log here does not go back to damaged ones, or to a lost manifest's;
        whether that was done."""
        view, replica = made.view, made.replica
        assert replica is not None
        if view.is_whole and view.applied.offset >= replica.log.start_offset:
            return False
        own = replica.host.agent_id
        for peer in [item.agent_id for item in replica.core.configuration.replicas if item.agent_id != own]:
            try:
                first_number = view.manifest.sequence + 1
                manifest, runs = await self._borrower.fetch(
                    peer, replica.group, view, view.files, first_number
                )
            except (ShipmentFailed, StoreError) as error:
                seldom.warning("%s: cannot copy the view of %s: %s", replica.group, agent_name(peer), error)
                continue
            if (
                manifest.applied.index >= view.saved.index
                and manifest.applied.offset >= replica.log.start_offset
            ):
                logger.info("%s: took the view of %s for a damaged one", replica.group, agent_name(peer))
                await view.exchange(manifest, runs)
                return True
            for run in runs:
                await run.remove(view.files.disk)
        return False
