"""Exclusive and key-ordered groups over a real log: owners, and the order of keys."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.agent.delivery import key_feed
from shoal.agent.groups.settings import GroupSettings
from shoal.agent.receive import Act, ActKind, Granted, GroupMode, Wanted
from shoal.agent.submission import Submission
from shoal.format.batch import LogIndex, Offset, message_from_batch
from shoal.format.receipt import Receipt
from shoal.format.records import RecordColumns, columns_to_batch
from shoal.segment_store.errors import Damaged, DiskFailed
from tests.agent.delivery.consumers import (
    KEY,
    Consumers,
    ack,
    attempts,
    equal_folds,
    hashed,
    offsets,
    wanted,
)
from tests.agent.harness import GROUP, Cluster
from tests.agent.memory_cluster import memory_cluster

EXCLUSIVE = GroupSettings(mode=GroupMode.EXCLUSIVE, retry_first_ms=0, retry_most_ms=0)
KEYED = GroupSettings(mode=GroupMode.KEY_ORDERED, retry_first_ms=0, retry_most_ms=0)


async def append_keys(cluster: Cluster, *batches: str) -> None:
    """A batch of each text, a record of each letter: the letter is the key, and - is none."""
    for text in batches:
        columns = RecordColumns()
        for letter in text:
            columns.append(None, None if letter == "-" else letter.encode(), b"v", None)
        message = message_from_batch(columns_to_batch(columns, 1_000_000))
        leader = await cluster.leader()
        await leader.host.append(GROUP, Submission.of([message], timeout_ms=10_000))


async def of_mode(cluster: Cluster, settings: GroupSettings) -> Consumers:
    consumers = Consumers(cluster, settings)
    await consumers.start()
    return consumers


async def receive(consumers: Consumers, name: str, limit: int = 10, **more: Any) -> Granted:
    what = wanted(name, limit)
    return await consumers.receive(Wanted(*what[:1], hashed(f"{name} instance"), *what[2:]), **more)


async def test_one_consumer_owns_the_partition_and_acks_up_to_a_place() -> None:
    """Another gets nothing until the owner has gone; a nack brings all behind it again, in order."""
    cluster, _ = memory_cluster(count=1)
    async with cluster:
        consumers = await of_mode(cluster, EXCLUSIVE)
        await append_keys(cluster, "abcdef")
        first = await receive(consumers, "a", 4)
        assert offsets(first) == [0, 1, 2, 3]
        keeper = (await cluster.leader()).host.keeper(GROUP)
        other = "b"
        assert (await receive(consumers, other)).refusal == "not-owner"
        up_to = Act(ActKind.UP_TO, Receipt.up_to(KEY, 0, 1), consumer=hashed("a"))
        assert await consumers.act(up_to) == (None,)
        assert await consumers.act(ack(first, 2, ActKind.NACK)) == (None,)
        keeper.leave(KEY, hashed(other), hashed(f"{other} instance"))
        again = await receive(consumers, "a", wait_ms=1_000)
        assert offsets(again) == [2, 3, 4, 5]
        assert attempts(again) == {2: 2, 3: 1, 4: 1, 5: 1}
        keeper.leave(KEY, hashed("a"), hashed("a instance"))
        taken = await receive(consumers, other, wait_ms=1_000)
        assert offsets(taken) == [2, 3, 4, 5]
        assert await consumers.act(ack(taken)) == (None,)
        await equal_folds(cluster)


@pytest.mark.parametrize("slice_keys", [key_feed.SLICE_KEYS, 2])
async def test_a_key_is_in_one_hand_at_a_time(slice_keys: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others pass it; records without a key wait for nobody."""
    monkeypatch.setattr(key_feed, "SLICE_KEYS", slice_keys)
    cluster, _ = memory_cluster()
    async with cluster:
        consumers = await of_mode(cluster, KEYED)
        await append_keys(cluster, "aab", "a-b", "c")
        first = await receive(consumers, "x", 1)
        assert offsets(first) == [0]
        second = await receive(consumers, "y")
        assert offsets(second) == [2, 4, 5, 6]
        assert (await receive(consumers, "z")).refusal in ("empty", "blocked")
        assert await consumers.act(ack(first)) == (None,)
        third = await receive(consumers, "z", wait_ms=1_000)
        assert offsets(third) == [1, 3]
        await cluster.stop(await cluster.leader())
        await append_keys(cluster, "acb")
        assert (await receive(consumers, "x")).refusal in ("empty", "blocked")
        assert await consumers.act(ack(second), ack(third, 1)) == (None, None)
        assert offsets(await receive(consumers, "x", wait_ms=1_000)) == [8, 9]
        await equal_folds(cluster)


async def test_keys_that_cannot_be_read_now_are_read_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the fault: consumers wait, and have their messages when it is over."""
    cluster, _ = memory_cluster(count=1)
    async with cluster:
        consumers = await of_mode(cluster, KEYED)
        await append_keys(cluster, "ab")
        log = (await cluster.leader()).host.replica(GROUP).log
        find, faults = log.find_offset, iter((DiskFailed("unreadable"), Damaged("log", 0, "zeros")))

        async def found(offset: Offset) -> LogIndex:
            for fault in faults:
                raise fault
            return await find(offset)

        monkeypatch.setattr(log, "find_offset", found)
        assert offsets(await receive(consumers, "x")) == [0, 1]
        assert "its groups wait until the log can be read: unreadable" in caplog.text
