"""Events of consumer groups: those of the catalog, and those of the partitions that this agent leads.

Law of this file: every agent tells of groups that are made, changed and deleted. Of a group in a partition
the leader there tells, once it is committed: listeners follow all agents. How often is decided in
agent/groups/news.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from shoal.agent.durable.catalog_version import CatalogVersion
from shoal.agent.durable.ids import GroupId
from shoal.agent.events.feed import EventFeed
from shoal.agent.groups.news import NO_CHANGE, Bulletins, News
from shoal.agent.groups.settings import GroupSettings
from shoal.agent.receive import GroupKey
from shoal.agent.topics.catalog import Catalog
from shoal.agent.topics.groups_catalog import GroupEntry

CHANGES = {"group-owner-changed": "owner", "group-window-changed": "window"}
"""Events of a value that changed, and how they call it."""


class NewsPlace(NamedTuple):
    """`partition`: None for news of the catalog."""

    topic_id: bytes
    partition: int | None
    group: str


class GroupEvents:
    """One per agent; `run` once there is a cluster. `now_ms`: of the monotonic clock."""

    def __init__(self, feed: EventFeed, now_ms: Callable[[], int]) -> None:
        self._feed = feed
        self._now_ms = now_ms
        self._bulletins = Bulletins()
        self._waiting = asyncio.Event()
        self._catalog = Catalog()
        self._known: dict[bytes, tuple[GroupEntry, ...]] = {}
        self._version = CatalogVersion(0, 0)

    def tell(self, source: GroupId, group: str, news: News) -> None:
        """Something happened to a group in a partition."""
        self._bulletins.note(NewsPlace(source.topic_id, source.partition, group), news)
        self._publish()

    def look(self, catalog: Catalog) -> None:
        """Tell how the groups of the catalog differ from those of the last look. The first one that has a
        catalog tells nothing: nobody knows since when its groups are there."""
        self._catalog = catalog
        if catalog.version == self._version:
            return
        is_first, self._version = self._version == (0, 0), catalog.version
        known = {entry.topic_id: entry.groups for entry in catalog.topics.values() if entry.groups}
        before, self._known = self._known, known
        if is_first:
            return
        for topic_id in before | known:
            former, now = before.get(topic_id, ()), known.get(topic_id, ())
            if former is not now:
                self._compare(topic_id, former, now)
        self._publish()

    def _compare(self, topic_id: bytes, former: tuple[GroupEntry, ...], now: tuple[GroupEntry, ...]) -> None:
        groups: dict[GroupKey, GroupEntry] = {group.key: group for group in former}
        for group in now:
            old = groups.pop(group.key, None)
            place = NewsPlace(topic_id, None, group.name)
            if old is None:
                facts = {"settings": group.settings.to_document()}
                self._bulletins.note(place, News("group-created", facts=facts))
            elif old.settings != group.settings:
                for news in _changes(old.settings, group.settings):
                    self._bulletins.note(place, news)
        for group in groups.values():
            self._bulletins.note(NewsPlace(topic_id, None, group.name), News("group-deleted"))

    def _publish(self) -> None:
        for place, news in self._bulletins.take(self._now_ms()):
            assert place is None or isinstance(place, NewsPlace)
            self._feed.publish(news.kind, self._document(place, news))
        if self._bulletins.deadline_ms() is not None:
            self._waiting.set()

    def _document(self, place: NewsPlace | None, news: News) -> dict[str, Any]:
        document: dict[str, Any] = {}
        if place is not None:
            topic = self._catalog.name_of(place.topic_id) or place.topic_id.hex()
            document = {"topic": topic, "group": place.group}
            if place.partition is not None:
                document = {"topic": topic, "partition": place.partition, "group": place.group}
        if news.change != NO_CHANGE:
            name = CHANGES[news.kind]
            document |= {name: news.change[1] or None, f"previous_{name}": news.change[0] or None}
        document |= {"messages": news.messages} if news.messages else {}
        document |= {"offsets": list(news.offsets)} if news.offsets else {}
        return document | dict(news.facts)

    async def run(self) -> None:
        """Until cancelled: publish what had to wait."""
        while True:
            await self._waiting.wait()
            self._waiting.clear()
            while (deadline_ms := self._bulletins.deadline_ms()) is not None:
                await asyncio.sleep(max(deadline_ms - self._now_ms(), 1) / 1_000)
                self._publish()


def _changes(old: GroupSettings, new: GroupSettings) -> list[News]:
    """A pause is no setting to those who listen, but something that happens."""
    found: list[News] = []
    if old.paused != new.paused:
        found.append(News("group-paused" if new.paused else "group-resumed"))
    before, after = old.to_document(), new.to_document()
    changed = {name: after[name] for name in after if after[name] != before[name] and name != "paused"}
    if changed:
        found.append(News("group-changed", facts={"settings": changed}))
    return found
