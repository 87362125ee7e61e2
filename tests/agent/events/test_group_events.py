"""Events of consumer groups: what the catalog's changes and the leaders' news become on GET /v1/events."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from shoal.agent.durable.ids import GroupId
from shoal.agent.events.feed import EventFeed
from shoal.agent.groups.news import INTERVAL_MS, News
from shoal.agent.service.group_events import GroupEvents
from shoal.agent.topics.catalog import Catalog, Command, CreateTopic, DeleteTopic
from shoal.agent.topics.groups_catalog import DeleteGroup
from tests.agent.topics.test_catalog import entry
from tests.agent.topics.test_groups_catalog import change, create, group
from tests.agent.virtual_loop import run_virtually

TOPIC = entry()
SOURCE = GroupId(TOPIC.topic_id, 2)


class Told:
    """An agent's catalog and events, at a time of one's own."""

    def __init__(self) -> None:
        self.feed = EventFeed("run")
        self.now_ms = 0
        self.catalog = Catalog()
        self.events = GroupEvents(self.feed, lambda: self.now_ms)
        self._seen = 0

    def fold(self, *commands: Command) -> None:
        for command in commands:
            assert self.catalog.apply(self.catalog.offset, command) == "done", command
        self.events.look(self.catalog)

    def new(self) -> list[tuple[str, dict[str, Any]]]:
        found = [(event.kind, dict(event.data)) for event in self.feed.after(self._seen)]
        self._seen = self.feed.number
        return found


def test_groups_of_the_catalog() -> None:
    """Made, changed, paused and deleted, with their topic or without it; those that an agent finds when it
    comes are no event."""
    told = Told()
    old = group("old", 7)
    told.events.look(told.catalog)
    told.fold(CreateTopic(TOPIC), create(old))
    assert told.new() == []
    settings = group().settings
    told.fold(create())
    where = {"topic": TOPIC.name, "group": "g"}
    assert told.new() == [("group-created", {**where, "settings": settings.to_document()})]
    told.now_ms += INTERVAL_MS
    later = replace(settings, max_attempts=9, visibility_ms=60_000, paused=True)
    told.fold(change(settings, later))
    told.events.look(told.catalog)
    assert told.new() == [
        ("group-paused", where),
        ("group-changed", {**where, "settings": {"visibility": "1m", "max_attempts": 9}}),
    ]
    told.now_ms += INTERVAL_MS
    told.fold(change(later, replace(later, paused=False)))
    told.fold(DeleteGroup(TOPIC.topic_id, group().key))
    assert told.new() == [("group-resumed", where), ("group-deleted", where)]
    told.fold(DeleteTopic(TOPIC.topic_id, frozenset()))
    assert [(kind, data["group"]) for kind, data in told.new()] == [("group-deleted", "old")]


def test_news_of_a_partition() -> None:
    """Each field that the news have, and no other; a topic that is not known yet has its id."""
    told = Told()
    told.events.tell(SOURCE, "g", News("group-owner-changed", change=("", "a")))
    assert told.new() == [
        (
            "group-owner-changed",
            {
                "topic": TOPIC.topic_id.hex(),
                "partition": 2,
                "group": "g",
                "owner": "a",
                "previous_owner": None,
            },
        )
    ]
    told.fold(CreateTopic(TOPIC))
    told.events.tell(SOURCE, "h", News("group-messages-died", 2, (4, 9), facts={"reason": "expired"}))
    where = {"topic": TOPIC.name, "partition": 2, "group": "h"}
    assert told.new() == [
        ("group-messages-died", {**where, "messages": 2, "offsets": [4, 9], "reason": "expired"})
    ]


def test_news_that_had_to_wait_are_told_by_themselves() -> None:
    """Nobody has to ask, and nothing runs while nothing waits."""

    async def tell() -> list[int]:
        loop = asyncio.get_running_loop()
        feed = EventFeed("run")
        events = GroupEvents(feed, lambda: round(loop.time() * 1_000))
        running = asyncio.create_task(events.run())
        for _ in range(5):
            events.tell(SOURCE, "g", News("group-messages-died", 1))
            await asyncio.sleep(0.1)
        await asyncio.sleep(2)
        events.tell(SOURCE, "g", News("group-messages-died", 1))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return [event.data["messages"] for event in feed.after(0)]

    assert run_virtually(tell()) == [1, 4, 1]


def test_a_group_without_changes_of_its_settings_is_no_event() -> None:
    """Other commands change the catalog's version alone."""
    told = Told()
    told.fold(CreateTopic(TOPIC), create())
    other = replace(TOPIC, name="other", topic_id=b"o" * 16)
    told.fold(CreateTopic(other))
    assert told.new() == []
