"""What happened, numbered and kept for a while: the source of GET /v1/events.

Law of this file: one event loop, no threads; it knows numbers, words and listeners, not what an event is
about. All listeners read one bounded history, each at its own place: a slow one costs nothing, and is told
that it was dropped once the history has moved past its place.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

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
    """Publish here, listen with `listen`. Numbers begin at 1; `run` tells one process's numbers from
    another's."""

    def __init__(self, run: str, history_max: int = HISTORY_MAX, listeners_max: int = LISTENERS_MAX) -> None:
        self.run = run
        self._history: deque[Event] = deque(maxlen=history_max)
        self._number = 0
        self._listeners_max = listeners_max
        self._listeners: set[Listener] = set()

    def __repr__(self) -> str:
        return f"EventFeed(run={self.run} number={self._number} listeners={len(self._listeners)})"

    @property
    def number(self) -> int:
        """Of the newest event, 0 before the first."""
        return self._number

    @property
    def oldest(self) -> int:
        """The number of the oldest event kept; one more than the newest when none is."""
        return self._history[0].number if self._history else self._number + 1

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    def publish(self, kind: str, data: Mapping[str, Any]) -> None:
        """Something happened. Never waits for a listener."""
        self._number += 1
        self._history.append(Event(self._number, kind, data))
        for listener in self._listeners:
            listener.news.set()

    def event_id(self, number: int) -> str:
        """What a client sends back as Last-Event-ID."""
        return f"{self.run}.{number}"

    def place_after(self, event_id: str | None) -> int | None:
        """The number an id stands for; None for an id of another run, or of no event there ever was."""
        run, _, number = (event_id or "").rpartition(".")
        if run != self.run or not number.isascii() or not number.isdigit() or len(number) > 18:
            return None
        return int(number) if int(number) <= self._number else None

    def listen(self, after: int) -> Listener:
        """Everything after that number, from the history as far as it goes. Close it in the end. Raises
        TooManyListenersError."""
        if len(self._listeners) >= self._listeners_max:
            raise TooManyListenersError
        listener = Listener(self, after)
        self._listeners.add(listener)
        return listener

    def discard(self, listener: Listener) -> None:
        """It listens no more."""
        self._listeners.discard(listener)

    def after(self, number: int) -> list[Event]:
        """The events kept that are newer."""
        newer = min(self._number - number, len(self._history))
        return [self._history[place] for place in range(len(self._history) - newer, len(self._history))]


class Listener:
    """One reader's place in the feed."""

    def __init__(self, feed: EventFeed, after: int) -> None:
        self.news = asyncio.Event()
        self._feed = feed
        self._seen = after

    @property
    def seen(self) -> int:
        """The number of the last event taken."""
        return self._seen

    @property
    def is_overrun(self) -> bool:
        """Whether events that were not taken yet are gone from the history."""
        return self._seen + 1 < self._feed.oldest

    async def take(self, wait_s: float) -> list[Event]:
        """What is new, in order; empty when nothing came in that time. Look at `is_overrun` first."""
        self.news.clear()
        if self._seen == self._feed.number:
            try:
                async with asyncio.timeout(wait_s):
                    await self.news.wait()
            except TimeoutError:
                return []
        if self.is_overrun:
            return []
        events = self._feed.after(self._seen)
        self._seen = self._feed.number
        return events

    def close(self) -> None:
        self._feed.discard(self)
