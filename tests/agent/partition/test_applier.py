"""Where a state machine goes on in a log whose head is gone: behind what it has, wherever that came from."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from waiting import until

from shoal.agent.partition.applier import Applier
from shoal.agent.partition.plan import StateMachine
from shoal.agent.partition.replica import Replica
from shoal.format.batch import Frame, LogIndex, Offset
from tests.agent.harness import GROUP, Cluster
from tests.agent.host.test_catch_up import fill
from tests.agent.memory_cluster import memory_cluster


class Machine:
    """Has every record before `offset`, and takes the next one alone."""

    def __init__(self, offset: int = 0) -> None:
        self.offset = offset
        self.taken = 0
        self.full = False
        self.machine = StateMachine(
            self._take, lambda: self.offset, lambda: self.offset, is_full=lambda: self.full
        )

    def _take(self, frame: Frame) -> None:
        end = frame.stamp.base_offset + frame.stamp.record_count
        if end <= self.offset:
            return
        assert frame.stamp.base_offset == self.offset, f"{self.offset} is missing: {frame.stamp}"
        self.offset = end
        self.taken += 1


@asynccontextmanager
async def filled() -> AsyncIterator[tuple[Cluster, Replica]]:
    """A replica of its own, with forty records in several segments."""
    cluster, _ = memory_cluster(1, seed=3)
    async with cluster:
        await fill(cluster, 0, 40)
        yield cluster, cluster.nodes[0].host.replica(GROUP)


async def trim(replica: Replica) -> Offset:
    """The head goes, as after a committed TRIM; where the log begins then."""
    replica.log.trim(replica.log.spans()[2].first_index)
    assert replica.log.start_offset > 10
    return replica.log.start_offset


async def reach_the_end(applier: Applier, replica: Replica) -> None:
    await until(
        lambda: replica.failure is not None or applier.applied_index == replica.state.committed.last_index
    )
    assert replica.failure is None


async def test_a_state_that_ends_where_the_log_begins_since() -> None:
    """One commit brought entries together with the leave to drop what the saved state has: the place of the
    applier, from before, lies in what was dropped."""
    async with filled() as (_, replica):
        machine = Machine()
        applier = Applier(replica, machine.machine)
        machine.offset = await trim(replica)
        assert applier.applied_index + 1 < replica.log.first_index
        applier.start()
        try:
            await reach_the_end(applier, replica)
        finally:
            await applier.stop()
        assert machine.offset == 40
        assert machine.taken == 40 - replica.log.start_offset


async def test_a_state_of_a_peer_ahead_of_the_applier() -> None:
    """A machine that had begun takes the state of a peer. The log drops what that has, more than the applier
    has passed."""
    async with filled() as (cluster, replica):
        machine = Machine()
        applier = Applier(replica, machine.machine)
        applier.start()
        try:
            await reach_the_end(applier, replica)
            machine.full = True
            await fill(cluster, 40, 40)
            applier.committed()
            passed = applier.applied_index
            machine.offset = 70
            replica.log.trim(LogIndex(replica.log.index_for_offset(Offset(70))))
            assert passed + 1 < replica.log.first_index
            machine.full = False
            await reach_the_end(applier, replica)
            assert machine.offset == 80
            await fill(cluster, 80, 1)
            applier.committed()
            await until(lambda: machine.offset == 81)
        finally:
            await applier.stop()
        assert machine.taken == 40 + 10 + 1


async def test_a_head_that_goes_during_a_read() -> None:
    """The read finds nothing, and the applier goes on behind what went."""
    async with filled() as (_, replica):
        machine = Machine()
        applier = Applier(replica, machine.machine)
        read, reads = replica.log.read, 0

        async def trimmed_first(*arguments: Any, **options: Any) -> list[Frame]:
            nonlocal reads
            reads += 1
            if reads == 1:
                machine.offset = await trim(replica)
            return await read(*arguments, **options)

        replica.log.read = trimmed_first  # type: ignore[method-assign]
        applier.start()
        try:
            await reach_the_end(applier, replica)
        finally:
            await applier.stop()
        assert reads > 1
        assert machine.offset == 40


async def test_no_place_is_taken_from_a_branch_that_is_to_be_cut() -> None:
    """The log may hold more entries before an offset than the branch that was committed in its place."""
    async with filled() as (_, replica):
        machine = Machine(20)
        behind = SimpleNamespace(
            host=replica.host,
            group=replica.group,
            state=replica.state,
            disk=SimpleNamespace(log_is_behind=True),
            readable_index=LogIndex(0),
            applied=replica.applied,
            failure=None,
            log=replica.log,
        )
        stand_in: Any = behind
        find, looks = replica.log.find_offset, 0

        async def of_another_branch(offset: Offset) -> LogIndex:
            nonlocal looks
            looks += 1
            return LogIndex(await find(offset) + (5 if behind.disk.log_is_behind else 0))

        replica.log.find_offset = of_another_branch  # type: ignore[method-assign]
        applier = Applier(stand_in, machine.machine)
        applier.start()
        try:
            await until(lambda: looks > 1)
            assert applier.applied_index < await find(Offset(20))
            behind.disk.log_is_behind = False
            behind.readable_index = replica.readable_index
            await until(lambda: machine.offset == 40)
        finally:
            await applier.stop()
        assert machine.taken == 20
