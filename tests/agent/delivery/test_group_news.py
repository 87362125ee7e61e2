"""News of groups at a partition's leader: told once their entry is committed, and never of a cut one."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from waiting import until

from shoal.agent.groups.entry import Seek
from shoal.agent.groups.news import News
from shoal.agent.receive import ActKind, DuePlace
from tests.agent.delivery.consumers import (
    KEY,
    SETTINGS,
    Consumers,
    ack,
    equal_folds,
    fold_of,
    group_of,
    hashed,
    wanted,
)
from tests.agent.delivery.test_keeper import filled
from tests.agent.delivery.test_letters import append, are_forgotten, started
from tests.agent.delivery.test_modes import EXCLUSIVE, append_keys, of_mode, receive
from tests.agent.harness import GROUP, Node
from tests.agent.host.test_catch_up import KEEP, fill, log_of
from tests.agent.memory_cluster import memory_cluster


def heard_at(node: Node) -> list[News]:
    """All news that the node's keeper tells from now on."""
    heard: list[News] = []

    def tell(partition: Any, group: str, news: News) -> None:
        assert (partition, group) == (GROUP, "workers")
        heard.append(news)

    node.host.keeper(GROUP)._tell = tell
    return heard


async def test_messages_that_stop_and_what_is_decided_of_them() -> None:
    """With their offsets and the last consumer's reason."""
    cluster, _ = memory_cluster(count=1)
    async with cluster:
        consumers = await filled(cluster, 4)
        heard = heard_at(await cluster.leader())
        consumers.set_groups(replace_settings(consumers, dead="stop", max_attempts=1))
        granted = await consumers.receive(wanted("a"))
        await consumers.act(ack(granted, 1, ActKind.NACK, reason="no such account"), ack(granted, 3))
        await consumers.act(ack(granted, 2, ActKind.REJECT))
        assert heard == [
            News("group-messages-stopped", 1, (1,), facts={"reason": "nack: no such account"}),
            News("group-messages-stopped", 1, (2,), facts={"reason": "rejected"}),
        ]
        consumers.set_groups(replace_settings(consumers, dead="drop", max_attempts=1))
        await consumers.act(ack(granted, 0, ActKind.REJECT))
        assert heard[2:] == [News("group-messages-dropped", 1, (0,), facts={"reason": "rejected"})]


def replace_settings(consumers: Consumers, **changes: Any) -> Any:
    plan = consumers.plans.groups[KEY]
    return consumers.plans._replace(
        groups={KEY: plan._replace(settings=replace(SETTINGS, **changes))},
        catalog=(1, consumers.plans.catalog[1] + 1),
    )


async def test_dead_letters_and_a_seek() -> None:
    """A message dies before its letter is stored, and each is told."""
    cluster, _ = memory_cluster(count=1)
    async with cluster:
        consumers, _ = await started(cluster)
        await append(cluster, "one", "two", "three")
        node = await cluster.leader()
        heard = heard_at(node)
        granted = await consumers.receive(wanted("a"))
        await consumers.act(ack(granted, kind=ActKind.REJECT))
        await until(lambda: are_forgotten(cluster, 3) and len(heard) > 1)
        died, *stored = heard
        assert died == News("group-messages-died", 3, (0, 1, 2), facts={"reason": "rejected"})
        assert {news.kind for news in stored} == {"group-letters-stored"}
        assert sum(news.messages for news in stored) == 3
        assert stored[-1].facts == {"letters": 3}
        heard.clear()
        deadline_ms = node.host.clock.now_ms() + 10_000
        assert await node.host.keeper(GROUP).change(KEY, Seek(2, DuePlace(0, 1), latest=False), deadline_ms)
        assert heard == [News("group-sought", facts={"generation": 2, "offset": 1})]


async def test_messages_that_retention_took() -> None:
    """They are counted, and the reason is said."""
    cluster, _ = memory_cluster(count=1)
    async with cluster:
        consumers = await filled(cluster, 0)
        node = await cluster.leader()
        await until(lambda: node.host.keeper(GROUP).has_begun(KEY))
        heard = heard_at(node)
        await fill(cluster, 0, 25)
        node.host.set_retention(GROUP, KEEP)
        await until(lambda: log_of(node).start_offset > 0)
        await consumers.receive(wanted("a", 1))
        assert {(news.kind, news.facts["reason"]) for news in heard} == {
            ("group-messages-skipped", "retention")
        }
        assert sum(news.messages for news in heard) == group_of(node).skipped > 0


async def test_an_owner_comes_and_goes() -> None:
    """By its name; a group without order has no owner to tell of."""
    cluster, _ = memory_cluster(count=1)
    async with cluster:
        consumers = await of_mode(cluster, EXCLUSIVE)
        await append_keys(cluster, "abc")
        node = await cluster.leader()
        heard = heard_at(node)
        granted = await receive(consumers, "a")
        await consumers.act(ack(granted))
        node.host.keeper(GROUP).leave(KEY, hashed("a"), hashed("a instance"))
        await until(lambda: len(heard) > 1)
        assert heard == [
            News("group-owner-changed", change=("", "a")),
            News("group-owner-changed", change=("a", "")),
        ]


async def test_nobody_hears_of_an_entry_that_was_cut() -> None:
    """The message lives on under the next leader."""
    cluster, _ = memory_cluster()
    async with cluster:
        consumers = await filled(cluster, 1)
        consumers.set_groups(replace_settings(consumers, dead="drop"))
        granted = await consumers.receive(wanted("a"))
        await equal_folds(cluster)
        old = await cluster.leader()
        heard = heard_at(old)
        old.cut_off()
        keeper = old.host.keeper(GROUP)
        lost = asyncio.create_task(keeper.act(KEY, [ack(granted, 0, ActKind.REJECT)], 2**40))
        await until(lambda: fold_of(old).groups[KEY].dropped == 1)
        cluster.alive.remove(old)
        assert await consumers.act(ack(granted, 0)) == (None,)
        await old.stop()
        await asyncio.gather(lost, return_exceptions=True)
        assert heard == []
