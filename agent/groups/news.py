"""News of consumer groups: which become events, and how often.

Law of this file: pure. News come in as they happen, and are told at once where that may be. News of one kind
about one group in one place are told once in INTERVAL_MS: those between are added up. All groups of an agent
together have TOLD_MAX events in that time, and the others wait their turn. A change that is undone before it
was told is not told.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from shoal.agent.receive import GroupKey

INTERVAL_MS: Final = 1_000
TOLD_MAX: Final = 32
"""In INTERVAL_MS. A history of 2,048 events then reaches back a minute, however badly groups fare."""
HELD_MAX: Final = 4_096
"""News that wait to be told, about 2 MiB. More are counted, and told of as lost."""
OFFSETS_MAX: Final = 16
"""Named in one event; `messages` counts all."""
NO_CHANGE: Final = ("", "")
WATCHED: Final = ("group-owner-changed", "group-window-changed")
LOST: Final = "group-events-lost"


class News(NamedTuple):
    """Something happened to a group. `messages`: how many it concerns; `offsets`: of the first of them.
    `change`: the value before and after, where it is about one. `facts`: JSON-ready, the newest count."""

    kind: str
    messages: int = 0
    offsets: tuple[int, ...] = ()
    change: tuple[str, str] = NO_CHANGE
    facts: Mapping[str, Any] = {}


TellNews: TypeAlias = Callable[[Any, str, News], None]
"""Told of a partition, the name of a group of its topic, and what happened."""


class Told(NamedTuple):
    """An event. `place`: as it was noted, None where it is about no group."""

    place: Hashable | None
    news: News


class Bulletins:
    """To be asked by `take` after each `note`, and at `deadline_ms`."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[Hashable, str], News] = {}  # the first noted first
        self._told_ms: dict[tuple[Hashable, str], int] = {}  # within INTERVAL_MS, in their order
        self._lost = 0
        self._lost_ms: int | None = None

    def note(self, place: Hashable, news: News) -> None:
        """It happened. `place`: topic, partition and group."""
        key = (place, news.kind)
        before = self._waiting.get(key)
        if before is None:
            if len(self._waiting) >= HELD_MAX:
                self._lost += 1
            else:
                self._waiting[key] = news._replace(offsets=news.offsets[:OFFSETS_MAX])
            return
        if news.change != NO_CHANGE and before.change[0] == news.change[1]:
            del self._waiting[key]
            return
        self._waiting[key] = News(
            news.kind,
            before.messages + news.messages,
            (*before.offsets, *news.offsets)[:OFFSETS_MAX],
            NO_CHANGE if news.change == NO_CHANGE else (before.change[0], news.change[1]),
            {**before.facts, **news.facts},
        )

    def take(self, now_ms: int) -> list[Told]:
        """The events that are due, the first noted first."""
        self._forget(now_ms)
        told = [Told(place, news) for place, news in self._due()]
        for place, news in told:
            key = (place, news.kind)
            del self._waiting[key]
            self._told_ms[key] = now_ms
        if self._lost and (self._lost_ms is None or now_ms - self._lost_ms >= INTERVAL_MS):
            told.append(Told(None, News(LOST, facts={"events": self._lost})))
            self._lost, self._lost_ms = 0, now_ms
        return told

    def _due(self) -> Iterator[tuple[Hashable, News]]:
        room = TOLD_MAX - len(self._told_ms)
        for key, news in self._waiting.items():
            if room <= 0:
                return
            if key not in self._told_ms:
                room -= 1
                yield key[0], news

    def _forget(self, now_ms: int) -> None:
        over = []
        for key, told_ms in self._told_ms.items():
            if now_ms - told_ms < INTERVAL_MS:
                break
            over.append(key)
        for key in over:
            del self._told_ms[key]

    def deadline_ms(self) -> int | None:
        """When `take` has something to tell at the latest; None while nothing waits."""
        if not self._waiting and not self._lost:
            return None
        times = [self._lost_ms] if self._lost and self._lost_ms is not None else []
        times += list(self._told_ms.values())[:1] if self._waiting else []
        return min(times) + INTERVAL_MS if times else 0

    def check_invariants(self) -> None:
        """Every bound holds."""
        assert len(self._waiting) <= HELD_MAX
        assert len(self._told_ms) <= TOLD_MAX
        assert list(self._told_ms.values()) == sorted(self._told_ms.values())
        for (_, kind), news in self._waiting.items():
            assert kind == news.kind
            assert len(news.offsets) <= OFFSETS_MAX


class LeaderWatch:
    """The owner and the window of each group that is led here, as they were noted last."""

    def __init__(self) -> None:
        self._seen: dict[GroupKey, tuple[str, str]] = {}

    def look(self, groups: Mapping[GroupKey, tuple[str, str] | None]) -> list[tuple[GroupKey, News]]:
        """News of the groups that are led here. An owner is a name, a window why nothing is given, both empty
        for none. None: the leader is new and does not know yet."""
        former = self._seen
        if groups == former:
            return []
        self._seen = {key: now or former.get(key, NO_CHANGE) for key, now in groups.items()}
        found: list[tuple[GroupKey, News]] = []
        for key, now in self._seen.items():
            for kind, old, new in zip(WATCHED, former.get(key, NO_CHANGE), now, strict=True):
                if old != new:
                    found.append((key, News(kind, change=(old, new))))
        return found
