"""Groups survive their leaders, full disks, trims and copies: what was answered stays."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from waiting import until

from shoal.agent.receive import ActKind
from shoal.agent.submission import Submission
from shoal.errors import ErrorCode, ShoalError
from shoal.segment_store.errors import DiskFull
from tests.agent.delivery.consumers import (
    KEY,
    ack,
    attempts,
    equal_folds,
    fold_of,
    group_of,
    offsets,
    wanted,
)
from tests.agent.delivery.test_keeper import filled
from tests.agent.harness import GROUP, Cluster, message, read_values
from tests.agent.host.test_catch_up import KEEP, fill, kept, log_of, trimmed
from tests.agent.memory_cluster import memory_cluster


async def test_receipts_and_attempts_outlive_the_leader() -> None:
    """A message in flight is nobody else's under the next leader, and its receipt counts there."""
    cluster, _ = memory_cluster()
    async with cluster:
        consumers = await filled(cluster, 6)
        first = await consumers.receive(wanted("a", 2, request="r1"))
        second = await consumers.receive(wanted("b", 2))
        await consumers.act(ack(second, 2, ActKind.NACK))
        await cluster.stop(await cluster.leader())
        assert await consumers.receive(wanted("a", 2, request="r1")) == first
        granted = await consumers.receive(wanted("c", 3))
        assert attempts(granted) == {2: 2, 4: 1, 5: 1}
        assert await consumers.act(ack(first), ack(second), ack(granted)) == (None, None, None)
        assert (await consumers.receive(wanted("d"))).refusal == "empty"
        await equal_folds(cluster)
        assert all(group_of(node).floor == (0, 6) for node in cluster.alive)


async def test_a_new_leader_begins_the_leases_anew() -> None:
    """They were the former one's memory; then the messages come again."""
    cluster, _ = memory_cluster()
    async with cluster:
        consumers = await filled(cluster, 2)
        await consumers.receive(wanted("a", lease_ms=1_000))
        await cluster.stop(await cluster.leader())
        again = await consumers.receive(wanted("b"), wait_ms=1_900)
        while not again.delivered:
            again = await consumers.receive(wanted("b"), wait_ms=1_900)
        assert attempts(again) == {0: 2, 1: 2}


async def test_a_leader_that_was_deposed_refuses_no_receipt_of_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It knows neither the delivery nor that another leads. A majority does not confirm it, so it says that
    nothing happened, and not that a good receipt is used or expired."""
    cluster, _ = memory_cluster(seed=5)
    async with cluster:
        consumers = await filled(cluster, 3)
        given_back = await consumers.receive(wanted("a", 1))
        assert await consumers.act(ack(given_back, 0, ActKind.RELEASE)) == (None,)
        await equal_folds(cluster)
        old = await cluster.leader()
        old.cut_off()
        stopped_ms = old.host.clock.now_ms()
        with monkeypatch.context() as stopped:
            stopped.setattr(old.host.clock, "now_ms", lambda: stopped_ms)
            cluster.alive.remove(old)
            granted = await consumers.receive(wanted("b", 2))
            assert offsets(granted) == [0, 1]
            keeper = old.host.keeper(GROUP)
            acts = [ack(granted, 0), ack(granted, 1), ack(granted)]
            alone = [asyncio.create_task(keeper.act(KEY, [act], stopped_ms + 60_000)) for act in acts]
            hurried = await asyncio.gather(keeper.act(KEY, acts, stopped_ms + 200), return_exceptions=True)
            assert old.leads
            assert not any(task.done() for task in alone)
        errors = await asyncio.gather(*alone, return_exceptions=True)
        for error, code in [*((error, "no-leader") for error in errors), (hurried[0], "timeout")]:
            assert isinstance(error, ShoalError), error
            assert (error.code, error.definite) == (code, True)
        assert await consumers.act(*acts[:2]) == (None, None)
        await equal_folds(cluster)
        await old.stop()


async def test_a_leader_that_was_deposed_makes_no_lease_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by a repeated receive, which stands in the log already, nor by an extension, which never does.
    The next leader gives the messages to others when their lease has ended by its own knowledge."""
    cluster, _ = memory_cluster(seed=7)
    async with cluster:
        consumers = await filled(cluster, 3)
        again = wanted("a", 2, request="r")
        first = await consumers.receive(again)
        await equal_folds(cluster)
        old = await cluster.leader()
        keeper = old.host.keeper(GROUP)
        assert offsets(await keeper.receive(KEY, again, [], 0, old.host.clock.now_ms() + 60_000)) == [0, 1]
        old.cut_off()
        stopped_ms = old.host.clock.now_ms()
        with monkeypatch.context() as stopped:
            stopped.setattr(old.host.clock, "now_ms", lambda: stopped_ms)
            cluster.alive.remove(old)
            tasks = [
                asyncio.create_task(keeper.receive(KEY, again, [], 0, stopped_ms + 60_000)),
                asyncio.create_task(keeper.act(KEY, [ack(first, 0, ActKind.EXTEND)], stopped_ms + 60_000)),
            ]
            await cluster.leader()
            assert old.leads
            assert not any(task.done() for task in tasks)
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert told(errors) == [("leadership-lost", False), ("no-leader", True)]
        await old.stop()


def told(errors: Sequence[object]) -> list[tuple[str, bool]]:
    """Code of each error, and whether it says that nothing has happened."""
    found = [error for error in errors if isinstance(error, ShoalError)]
    assert len(found) == len(errors), errors
    return [(error.code, error.definite) for error in found]


@pytest.mark.parametrize(
    ("error", "codes"), [("no-leader", ("no-leader", "leadership-lost")), ("timeout", ("timeout", "timeout"))]
)
async def test_only_a_mere_refusal_says_that_nothing_happened(
    monkeypatch: pytest.MonkeyPatch, error: ErrorCode, codes: tuple[str, str]
) -> None:
    """A refused act is nothing by itself. Messages that were given beside it, now or by the same request
    before, stand in the log."""
    cluster, _ = memory_cluster(seed=9)
    async with cluster:
        consumers = await filled(cluster, 3)
        first = await consumers.receive(wanted("a", 1))
        assert await consumers.act(ack(first)) == (None,)
        leader = await cluster.leader()
        keeper, deadline_ms = leader.host.keeper(GROUP), leader.host.clock.now_ms() + 60_000

        async def unconfirmed() -> None:
            raise TimeoutError if error == "timeout" else ShoalError(error, "nobody answers")

        used, again = ack(first, 0), wanted("b", 1, request="r")
        with monkeypatch.context() as silent:
            silent.setattr(keeper._reader, "confirm", unconfirmed)
            errors = await asyncio.gather(
                keeper.act(KEY, [used], deadline_ms),
                keeper.receive(KEY, again, [used], 0, deadline_ms),
                return_exceptions=True,
            )
            errors += await asyncio.gather(
                keeper.receive(KEY, again, [], 0, deadline_ms), return_exceptions=True
            )
        refused, given = codes
        assert told(errors) == [(refused, True), (given, False), (given, False)]
        granted = await consumers.receive(again)
        assert attempts(granted) == {1: 1}


async def test_an_entry_that_is_cut_says_that_leadership_was_lost() -> None:
    """The same request gets its messages from the next leader; the one that was cut off undoes its entry, and
    has not counted it."""
    cluster, _ = memory_cluster()
    async with cluster:
        consumers = await filled(cluster, 3)
        await consumers.receive(wanted("a", 1))
        await equal_folds(cluster)
        old = await cluster.leader()
        old.cut_off()
        keeper = old.host.keeper(GROUP)
        deadline_ms = old.host.clock.now_ms() + 60_000
        lost = asyncio.create_task(keeper.receive(KEY, wanted("b", 2, request="r"), [], 0, deadline_ms))
        await until(lambda: fold_of(old).groups[KEY].spans.undone == 3)
        cluster.alive.remove(old)
        granted = await consumers.receive(wanted("b", 1, request="r"))
        assert attempts(granted) == {1: 1}
        assert keeper._measures.received == 1
        assert (await cluster.leader()).host.keeper(GROUP)._measures.received == 1
        await old.stop()
        (error,) = await asyncio.gather(lost, return_exceptions=True)
        assert isinstance(error, ShoalError)
        assert (error.code, error.definite) == ("leadership-lost", False)
        await consumers.join(old)
        assert await consumers.act(ack(granted)) == (None,)
        await equal_folds(cluster)
        assert attempts(await consumers.receive(wanted("c"))) == {2: 1}


async def test_a_record_that_is_cut_takes_along_the_entry_that_gave_it() -> None:
    """A leader that was cut off gave it before it was committed: nobody heard of it, and at its offset the
    next leader has another record, whose first attempt that is."""
    cluster, _ = memory_cluster()
    async with cluster:
        consumers = await filled(cluster, 1)
        await consumers.receive(wanted("a"))
        await equal_folds(cluster)
        old = await cluster.leader()
        keeper, deadline_ms = old.host.keeper(GROUP), old.host.clock.now_ms() + 60_000
        asked = keeper.receive(KEY, wanted("b", request="r"), [], 50_000, deadline_ms)
        waiting = asyncio.create_task(asked)
        await until(lambda: keeper._led.parked)
        old.cut_off()
        cluster.alive.remove(old)
        submission = Submission.of([message("cut")], timeout_ms=60_000)
        cut = asyncio.create_task(old.host.append(GROUP, submission))
        await until(lambda: group_of(old).spans.undone == 2)
        assert old.host.replica(GROUP).state.high_watermark == 1
        assert not waiting.done()
        assert not keeper._led.parked
        await cluster.append("kept")
        granted = await consumers.receive(wanted("c"))
        assert attempts(granted) == {1: 1}
        await old.stop()
        errors = await asyncio.gather(waiting, cut, return_exceptions=True)
        assert {(error.code, error.definite) for error in errors if isinstance(error, ShoalError)} == {
            ("leadership-lost", False)
        }
        await consumers.join(old)
        assert await consumers.act(ack(granted)) == (None,)
        await equal_folds(cluster)
        assert await read_values(await cluster.leader()) == ["0", "kept"]


async def test_acks_that_were_answered_are_never_given_again() -> None:
    """While leaders change: the drain afterwards brings every other message, and none of these."""
    cluster, _ = memory_cluster(seed=5)
    async with cluster:
        consumers = await filled(cluster, 30)
        acked: list[int] = []
        for turn in range(3):
            for _ in range(3):
                granted = await consumers.receive(wanted(f"{turn}", 2, lease_ms=1_000))
                if await consumers.act(ack(granted)) == (None,):
                    acked += offsets(granted)
            leader = await cluster.leader()
            await cluster.stop(leader)
            await consumers.join(leader)
        assert len(acked) == len(set(acked)) >= 6
        left: dict[int, int] = {}
        while len(left) + len(acked) < 30:
            granted = await consumers.receive(wanted("drain", 7), wait_ms=1_500)
            left |= attempts(granted)
        assert not left.keys() & set(acked)
        assert left.keys() | set(acked) == set(range(30))


async def test_a_replica_that_was_closed_by_a_full_disk_has_the_same_groups() -> None:
    """The leader's disk is full: its answer is indefinite, and the repeated request gets the messages."""
    cluster, _ = memory_cluster(seed=4)
    async with cluster:
        consumers = await filled(cluster, 4)
        first = await consumers.receive(wanted("a", 2, request="r"))
        await equal_folds(cluster)
        leader = await cluster.leader()
        before = leader.host.replica(GROUP)
        before.fail("disk-full", "this replica stopped: no space", DiskFull("no space"))
        assert await consumers.receive(wanted("a", 2, request="r")) == first
        await until(lambda: leader.host.open_replica(GROUP) not in (None, before))
        assert offsets(await consumers.receive(wanted("b"))) == [2, 3]
        await equal_folds(cluster)


async def test_a_group_skips_what_retention_has_taken() -> None:
    """Later receipts stay good; the count of the skipped says how many were not done."""
    cluster, _ = memory_cluster(seed=6)
    async with cluster:
        consumers = await filled(cluster, 3)
        done = await consumers.receive(wanted("a", 2))
        await consumers.act(ack(done, 0))
        for node in cluster.alive:
            node.host.set_retention(GROUP, KEEP)
        await fill(cluster, 3, 60)
        await trimmed(cluster, 20)
        await kept(cluster)
        leader = await cluster.leader()
        start = log_of(leader).start_offset
        assert start > 3
        await until(lambda: group_of(leader).floor.offset >= start)
        assert await consumers.act(ack(done, 1)) == ("receipt-used",)
        assert group_of(leader).skipped == start - 1
        assert (await consumers.receive(wanted("b", 1))).delivered[0].range.first == start
        await equal_folds(cluster)


async def test_a_new_replica_gets_the_groups_with_its_copy() -> None:
    """Their entries are trimmed away: the checkpoint of the third version has what they came to."""
    cluster, _ = memory_cluster(seed=3)
    async with cluster:
        consumers = await filled(cluster, 4)
        first = await consumers.receive(wanted("a", 2))
        await equal_folds(cluster)
        third = next(node for node in cluster.nodes if not node.leads)
        await cluster.stop(third)
        await third.make_disk().remove_tree(third.directory)
        for node in cluster.alive:
            node.host.set_retention(GROUP, KEEP)
        await fill(cluster, 4, 60)
        await trimmed(cluster, 20)
        await consumers.join(third)
        await until(lambda: third.host.status(GROUP).log_start_offset > 3)
        await kept(cluster)
        await equal_folds(cluster)
        assert group_of(third).generation == first.generation
        assert group_of(third).skipped > 0
        await cluster.stop(await cluster.leader())
        again = await consumers.receive(wanted("b", 1))
        assert again.delivered[0].range.first == group_of(third).floor.offset


def reopened(cluster: Cluster) -> list[bytes]:
    return [fold_of(node).to_bytes() for node in cluster.alive]


async def test_a_restart_folds_the_same_groups() -> None:
    """From the checkpoint and the entries behind it, on every replica."""
    cluster, _ = memory_cluster(seed=7)
    async with cluster:
        consumers = await filled(cluster, 4)
        granted = await consumers.receive(wanted("a", 3, request="r"))
        await consumers.act(ack(granted, 1))
        await fill(cluster, 4, 20)
        await consumers.act(ack(granted, 0))
        data = await equal_folds(cluster)
        for node in list(cluster.alive):
            await cluster.stop(node)
        for node in cluster.nodes:
            await consumers.join(node)
        await cluster.leader()
        await equal_folds(cluster)
        assert reopened(cluster) == [data] * 3
        assert await consumers.act(ack(granted)) == (None,)
