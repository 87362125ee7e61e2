"""Events, numbered and kept for a while: the source of GET /v1/events.

Law of this file: one event loop, no threads; the content of events is not known here. All listeners read one
bounded history, each at its own place. A slow one costs nothing; it is dropped, and told so, once the history
has moved past its place.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from shoal.agent.process.clock import is_set_within

HISTORY_MAX = 2_048
"""Events kept, about 1 MiB. A kill moves hundreds of leaders: a listener may be so far behind."""

LISTENERS_MAX = 256
"""Open event streams: each costs a task and up to 64 KiB of unsent bytes."""


class Event(NamedTuple):
    """One event; `data` is JSON-ready."""

    number: int
    kind: str
    data: Mapping[str, Any]


class TooManyListenersError(Exception):
    """LISTENERS_MAX listen already."""


class EventFeed:
    """Numbers begin at 1; `run` tells one process's numbers from another's."""

    def __init__(self, run: str, history_max: int = HISTORY_MAX, listeners_max: int = LISTENERS_MAX) -> None:
        self.run = run
        self.number = 0
        """Of the newest event, 0 before the first."""
        self.listeners: set[Listener] = set()
        self._history: deque[Event] = deque(maxlen=history_max)
        self._listeners_max = listeners_max

    @property
    def oldest(self) -> int:
        """The number of the oldest event kept; one more than the newest when none is."""
        return self._history[0].number if self._history else self.number + 1

    def publish(self, kind: str, data: Mapping[str, Any]) -> None:
        """Something happened. Never waits for a listener."""
        self.number += 1
        self._history.append(Event(self.number, kind, data))
        for listener in self.listeners:
            listener.news.set()

    def event_id(self, number: int) -> str:
        """The id that a client sends back as Last-Event-ID."""
        return f"{self.run}.{number}"

    def place_after(self, event_id: str | None) -> int | None:
        """The number of an id; None for an id of another run, or of no event so far."""
        run, _, number = (event_id or "").rpartition(".")
        if run != self.run or not number.isascii() or not number.isdigit() or len(number) > 18:
            return None
        return int(number) if int(number) <= self.number else None

    def listen(self, after: int) -> Listener:
        """Everything after that number that the history has. Close it. Raises TooManyListenersError."""
        if len(self.listeners) >= self._listeners_max:
            raise TooManyListenersError
        listener = Listener(self, after)
        self.listeners.add(listener)
        return listener

    def after(self, number: int) -> list[Event]:
        newer = min(self.number - number, len(self._history))
        return [self._history[place] for place in range(len(self._history) - newer, len(self._history))]


class Listener:
    """One reader's place in the feed."""

    def __init__(self, feed: EventFeed, after: int) -> None:
        self.news = asyncio.Event()
        self.seen = after
        """The number of the last event taken."""
        self._feed = feed

    @property
    def is_overrun(self) -> bool:
        """Whether events that were not taken yet are gone from the history."""
        return self.seen + 1 < self._feed.oldest

    async def take(self, wait_s: float) -> list[Event]:
        """New events, in order; empty when none came in that time. Look at `is_overrun` first."""
        self.news.clear()
        if self.seen == self._feed.number and not await is_set_within(self.news, wait_s):
            return []
        if self.is_overrun:
            return []
        events = self._feed.after(self.seen)
        self.seen = self._feed.number
        return events

    def close(self) -> None:
        self._feed.listeners.discard(self)
