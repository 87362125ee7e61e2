"""A group's keeper on three replicas: what is answered is committed, and every replica folds the same."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import chain

import pytest
from waiting import PATIENCE_S, until

from shoal.agent.delivery.keeper import GroupKeeper
from shoal.agent.groups.settings import GroupSettings
from shoal.agent.levels import Level
from shoal.agent.receive import NOBODY, Act, ActKind, Promise, Question
from shoal.errors import ShoalError
from shoal.format.batch import Offset
from tests.agent.delivery.consumers import (
    KEY,
    SETTINGS,
    Consumers,
    ack,
    attempts,
    equal_folds,
    fold_of,
    group_of,
    hashed,
    offsets,
    plans_of,
    wanted,
)
from tests.agent.harness import GROUP, Cluster
from tests.agent.memory_cluster import memory_cluster


async def filled(cluster: Cluster, count: int) -> Consumers:
    consumers = Consumers(cluster)
    await consumers.start()
    for number in range(count):
        await cluster.append(f"{number}")
    return consumers


async def test_messages_are_given_once_and_done_where_they_are_acked() -> None:
    """The entry that delivers and the one that acks are committed when they are answered."""
    cluster, _ = memory_cluster()
    async with cluster:
        consumers = await filled(cluster, 10)
        first = await consumers.receive(wanted("a", 6))
        leader = await cluster.leader()
        state = leader.host.replica(GROUP).state
        assert state.committed.last_index >= first.delivery // 8_192
        assert first.time_us > 0
        second = await consumers.receive(wanted("b", 6))
        assert (offsets(first), offsets(second)) == ([0, 1, 2, 3, 4, 5], [6, 7, 8, 9])
        assert set(attempts(first).values()) == {1}
        assert await consumers.act(ack(first), ack(second, 8)) == (None, None)
        assert (await consumers.receive(wanted("a"))).refusal == "empty"
        assert await consumers.act(ack(first), ack(second, 8)) == ("receipt-used", "receipt-used")
        assert await consumers.act(ack(second)) == (None,)
        await equal_folds(cluster)
        assert all(group_of(node).floor == (0, 10) for node in cluster.nodes)
        assert group_of(leader).acked == 10


async def test_messages_are_counted_and_groups_are_measured() -> None:
    """What leaders here gave, again too, and what was acked; a repeated receive counts once."""
    cluster, _ = memory_cluster()
    async with cluster:
        consumers = await filled(cluster, 10)
        first = await consumers.receive(wanted("a", 6, request="r"))
        assert offsets(await consumers.receive(wanted("a", 6, request="r"))) == offsets(first)
        assert await consumers.act(ack(first, 0), Act(ActKind.RELEASE, ack(first).receipt)) == (None, None)
        assert len(offsets(await consumers.receive(wanted("a", 5)))) == 5
        keeper = (await cluster.leader()).host.keeper(GROUP)
        counted = keeper._measures
        assert (counted.received, counted.redelivered, counted.acked) == (11, 0, 1)
        assert (counted.released, counted.nacked, counted.rejected, counted.dead) == (5, 0, 0, 0)
        ((_, numbers),) = keeper.numbers_of_all()
        assert (numbers.lag, numbers.in_flight, numbers.delayed) == (9, 5, 0)


async def test_each_word_of_a_consumer_has_its_own_count() -> None:
    """The last nack of a message is one, too; the others of its attempt are what become dead."""
    cluster, _ = memory_cluster(count=1)
    async with cluster:
        consumers = await filled(cluster, 4)
        consumers.set_groups(plans_of(replace(SETTINGS, max_attempts=2)))
        first = await consumers.receive(wanted("a"))
        said = (ack(first, 0), ack(first, 1, ActKind.REJECT), ack(first, kind=ActKind.NACK))
        assert await consumers.act(*said) == (None, None, None)
        again = await consumers.receive(wanted("a"))
        assert attempts(again) == {2: 2, 3: 2}
        assert await consumers.act(ack(again, kind=ActKind.NACK)) == (None,)
        assert repr((await cluster.leader()).host.keeper(GROUP)._measures) == (
            "GroupMeasures(acked=1, dead=3, nacked=4, received=6, redelivered=2, rejected=1)"
        )


async def test_lag_is_as_old_as_the_first_message_that_is_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the wall clock, and by the time at which its batch was appended."""
    cluster, _ = memory_cluster(count=1)
    async with cluster:
        consumers = await filled(cluster, 3)
        node = await cluster.leader()
        keeper, log = node.host.keeper(GROUP), node.host.replica(GROUP).log
        granted = await consumers.receive(wanted("a"))
        for offset in range(3):
            appended_us = log.entry(await log.find_offset(Offset(offset))).append_time_us
            monkeypatch.setattr(node.host.clock, "now_us", lambda at_us=appended_us: at_us + 5_000_000)
            assert await keeper.lag_ms(KEY) == 5_000
            monkeypatch.undo()
            await consumers.act(ack(granted, offset))
        assert await keeper.lag_ms(KEY) == 0


async def test_a_message_comes_again_with_the_next_attempt_until_it_dies() -> None:
    """A release counts as none; at the last attempt the message is given up."""
    cluster, _ = memory_cluster()
    async with cluster:
        consumers = await filled(cluster, 3)
        counts = []
        for _ in range(5):
            granted = await consumers.receive(wanted("a"), wait_ms=1_000)
            counts.append(attempts(granted))
            assert await consumers.act(ack(granted, kind=ActKind.NACK)) == (None,)
        assert counts == [dict.fromkeys(range(3), number) for number in range(1, 6)]
        assert (await consumers.receive(wanted("a"))).refusal == "empty"
        leader = await cluster.leader()
        assert [letter.offset for letter in group_of(leader).letters] == [0, 1, 2]
        await cluster.append("3")
        for attempt in (1, 1, 2):
            granted = await consumers.receive(wanted("a"))
            assert attempts(granted) == {3: attempt}
            kind = ActKind.RELEASE if len(counts) == 5 else ActKind.NACK
            counts.append({})
            await consumers.act(ack(granted, kind=kind))
        await equal_folds(cluster)


async def test_a_receive_that_comes_again_gives_the_same_messages() -> None:
    """Under the name of its request; another request gives others."""
    cluster, _ = memory_cluster()
    async with cluster:
        consumers = await filled(cluster, 6)
        first = await consumers.receive(wanted("a", 3, request="r1"))
        assert await consumers.receive(wanted("a", 3, request="r1")) == first
        other = await consumers.receive(wanted("a", 3, request="r2"))
        assert offsets(other) == [3, 4, 5]
        assert await consumers.receive(wanted("a", 3, request="r2")) == other


async def test_an_ack_and_a_receive_stand_in_one_entry() -> None:
    """One commit for both."""
    cluster, _ = memory_cluster()
    async with cluster:
        consumers = await filled(cluster, 4)
        first = await consumers.receive(wanted("a", 2))
        leader = await cluster.leader()
        before = leader.host.replica(GROUP).state.tail.last_index
        second = await consumers.receive(wanted("a", 2), [ack(first)])
        assert (offsets(second), second.outcomes) == ([2, 3], (None,))
        assert consumers.lost or leader.host.replica(GROUP).state.tail.last_index == before + 1


async def test_a_lease_that_ends_gives_the_messages_to_the_next() -> None:
    """Without a word of the first consumer; its receipt is void then."""
    cluster, _ = memory_cluster()
    async with cluster:
        consumers = await filled(cluster, 2)
        first = await consumers.receive(wanted("a", lease_ms=1_000))
        again = await consumers.receive(wanted("b"), wait_ms=10_000)
        assert attempts(again) == {0: 2, 1: 2}
        assert await consumers.act(ack(first, 0), ack(again, 1)) == ("receipt-expired", None)


async def test_one_who_waits_is_given_what_is_appended() -> None:
    """The one who asked first; nobody is given what is surplus."""
    cluster, _ = memory_cluster()
    async with cluster:
        consumers = await filled(cluster, 0)
        leader = await cluster.leader()
        keeper = leader.host.keeper(GROUP)
        await keeper.begun(KEY, leader.host.clock.now_ms() + 10_000)
        waiting = [
            asyncio.create_task(consumers.receive(wanted(name), wait_ms=20_000)) for name in ("a", "b")
        ]
        await until(lambda: len(keeper._led.parked) == 2)
        await cluster.append("0")
        done, left = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert [offsets(task.result()) for task in done] == [[0]]
        await cluster.append("1")
        assert [offsets(await task) for task in left] == [[1]]
        assert (await consumers.receive(wanted("a"), wait_ms=100)).refusal == "empty"


async def test_a_question_without_time_to_wait_is_answered_at_once() -> None:
    """Long before its deadline, with a message or without."""
    cluster, _ = memory_cluster()
    async with cluster:
        consumers = await filled(cluster, 1)

        async def ask(keeper: GroupKeeper, deadline_ms: int) -> Promise | None:
            question = Question(hashed("a"), NOBODY, NOBODY)
            return await keeper.wait(KEY, question, 0, deadline_ms + 600_000)

        async with asyncio.timeout(PATIENCE_S):
            promise = await consumers.at_leader(ask)
            assert promise is not None
            granted = await consumers.receive(wanted("a")._replace(promise=promise.number))
            assert offsets(granted) == [0]
            assert await consumers.at_leader(ask) is None


async def test_one_who_has_gone_is_given_nothing() -> None:
    """Its question is withdrawn, and what it would have had goes to the next."""
    cluster, _ = memory_cluster()
    async with cluster:
        consumers = await filled(cluster, 0)
        keeper = (await cluster.leader()).host.keeper(GROUP)
        gone = asyncio.create_task(consumers.receive(wanted("a"), wait_ms=20_000))
        await until(lambda: len(keeper._led.parked) == 1)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        assert not keeper._led.parked
        await cluster.append("0")
        assert attempts(await consumers.receive(wanted("b"))) == {0: 1}


async def test_many_at_once_share_entries_and_no_message_is_given_twice() -> None:
    """Twenty consumers, each acking what it had with its next receive."""
    cluster, _ = memory_cluster()
    async with cluster:
        consumers = await filled(cluster, 60)

        async def work(name: str) -> list[int]:
            mine: list[int] = []
            acts = []
            while True:
                granted = await consumers.receive(wanted(name, 1), acts)
                if not granted.delivered:
                    return mine
                mine += offsets(granted)
                acts = [ack(granted)]

        found = await asyncio.gather(*(work(f"{number}") for number in range(20)))
        if not consumers.lost:
            assert sorted(chain(*found)) == list(range(60))
        leader = await cluster.leader()
        assert group_of(leader).acked + group_of(leader).spans.undone == 60
        await equal_folds(cluster)


async def test_a_group_ends_only_by_a_newer_catalog() -> None:
    """One that does not know the group yet proves nothing."""
    cluster, _ = memory_cluster()
    async with cluster:
        consumers = await filled(cluster, 1)
        await consumers.receive(wanted("a"))
        known = consumers.plans
        consumers.set_groups(known._replace(groups={}, catalog=(1, 7)))
        await cluster.append("1")
        assert all(KEY in fold_of(node).groups for node in cluster.nodes)
        consumers.set_groups(known._replace(groups={}, catalog=(1, 9)))
        await until(lambda: not any(fold_of(node).groups for node in cluster.nodes))
        assert await equal_folds(cluster) == b""


@pytest.mark.parametrize("start", ["earliest", "latest"])
async def test_a_group_begins_where_its_setting_says(start: str) -> None:
    """Earliest: with the first record; latest: with those appended after its first entry."""
    cluster, _ = memory_cluster()
    async with cluster:
        consumers = await filled(cluster, 3)
        consumers.set_groups(consumers.plans._replace(groups={}))
        other = plans_of(GroupSettings(start=start), key=type(KEY)(b"k" * 16))
        consumers.set_groups(other)
        leader = await cluster.leader()
        key = next(iter(other.groups))
        await leader.host.keeper(GROUP).begun(key, leader.host.clock.now_ms() + 10_000)
        await cluster.append("3")
        granted = await consumers.receive(wanted("a"), key=key)
        assert offsets(granted) == ([0, 1, 2, 3] if start == "earliest" else [3])


async def test_a_group_begins_only_at_its_level() -> None:
    """Its first entry is refused, however it became known: nothing is proposed, nor staged."""
    cluster, _ = memory_cluster(count=1)
    async with cluster:
        consumers = Consumers(cluster)
        consumers.plans = consumers.plans._replace(level=Level(2))
        await consumers.start()
        node = await cluster.leader()
        replica, keeper = node.host.replica(GROUP), node.host.keeper(GROUP)
        last_index = replica.state.tail.last_index
        with pytest.raises(ShoalError, match="level 2") as refused:
            await keeper.receive(KEY, wanted("a"), [], 0, node.host.clock.now_ms() + 10_000)
        assert (refused.value.code, refused.value.definite) == ("level-too-low", True)
        assert replica.state.tail.last_index == last_index
        assert not fold_of(node).groups
        consumers.set_groups(consumers.plans._replace(level=Level(3)))
        await cluster.append("0")
        assert offsets(await consumers.receive(wanted("a"))) == [0]
