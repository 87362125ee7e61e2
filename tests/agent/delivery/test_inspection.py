"""Answers for people about a group in a partition: where messages stopped, and for which key all wait."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.agent.delivery import inspection
from shoal.agent.groups.leader import key_locks
from shoal.agent.receive import ActKind, Blocker, DuePlace, GroupMode
from shoal.agent.service.groups import key_document
from shoal.format.hash_ranges import key_hash_64
from tests.agent.delivery.consumers import KEY, SETTINGS, ack, offsets, wanted
from tests.agent.delivery.test_modes import KEYED, append_keys, of_mode, receive
from tests.agent.harness import GROUP
from tests.agent.memory_cluster import memory_cluster

STOPPING = replace(SETTINGS, dead="stop", max_attempts=1)


@pytest.mark.parametrize("mode", [GroupMode.SHARED, GroupMode.KEY_ORDERED])
async def test_offsets_of_stopped_messages_are_told(mode: GroupMode, monkeypatch: pytest.MonkeyPatch) -> None:
    """In groups that go on behind them, too; at most so many, the first ones."""
    monkeypatch.setattr(inspection, "STOPPED_NAMED", 3)
    cluster, _ = memory_cluster(count=1)
    async with cluster:
        consumers = await of_mode(cluster, replace(STOPPING, mode=mode))
        await append_keys(cluster, "-" * 12)
        keeper = (await cluster.leader()).host.keeper(GROUP)
        granted = await consumers.receive(wanted("a", 12))
        assert offsets(granted) == list(range(12))
        assert keeper.stopped_offsets(KEY) == []
        await consumers.act(ack(granted, 8, ActKind.REJECT), ack(granted, 2, ActKind.NACK))
        assert keeper.stopped_offsets(KEY) == [2, 8]
        await consumers.act(*(ack(granted, at, ActKind.REJECT) for at in (3, 4, 11)))
        assert keeper.stopped_offsets(KEY) == [2, 3, 4]
        assert keeper.numbers(KEY).stopped == 5


async def test_the_key_that_all_wait_for_is_told_as_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the hash by which the leader knows it; one that is too long is left out."""
    monkeypatch.setattr(key_locks, "KEY_WINDOW", 6)
    cluster, _ = memory_cluster(count=1)
    async with cluster:
        consumers = await of_mode(cluster, KEYED)
        await append_keys(cluster, "b", "kkkkkkkkk", "a")
        keeper = (await cluster.leader()).host.keeper(GROUP)
        granted = await receive(consumers, "x", 1)
        await consumers.act(ack(granted))
        assert offsets(await receive(consumers, "x", 1)) == [1]
        assert (await receive(consumers, "y", 1)).refusal == "blocked"
        blocked = keeper.numbers(KEY).blocked_by
        assert blocked == Blocker(key_hash_64(b"k"), DuePlace(0, 1))
        assert await keeper.key_at(blocked.place) == b"k"
        monkeypatch.setattr(inspection, "KEY_BYTES_SHOWN", 0)
        assert await keeper.key_at(blocked.place) is None
        assert await keeper.key_at(DuePlace(0, 999)) is None


def test_keys_are_text_or_base64() -> None:
    """As records have theirs."""
    assert key_document("käse".encode()) == {"blocked_key": "käse"}
    assert key_document(b"\xff\0") == {"blocked_key_base64": "/wA="}
    assert key_document(b"") == {"blocked_key": ""}
    assert key_document(None) == {}
