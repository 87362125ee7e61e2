"""Which user events and queries are news: Serf's rings of what was seen, by Lamport time.

Law of this file: clocks and memory of what passed by. Delivering and telling on is core.py's business.

Both rings have 512 slots; what is older is no news any more, so that nothing must be
remembered for ever.
"""

from collections.abc import Hashable
from dataclasses import dataclass

from shoal.membership.wire.serf import EVENT_SLOTS, MAX_LTIME, UserEvent, event_fingerprint

MAX_PER_SLOT = 16
"""Distinct messages of one Lamport time. Honest nodes collide rarely; more of them are not news."""

MAX_REPLAYED_BYTES = 1395
"""Larger events are not kept for push/pull: Serf itself cannot gossip them, and the
ring stays below 1 MiB."""


@dataclass(slots=True)
class LamportClock:
    """Lamport's logical clock as Serf keeps it: `time` is the next stamp. Starts at 1."""

    time: int = 1

    def witness(self, ltime: int) -> None:
        """Be later than what was seen; stops at the last time there is rather than overflow."""
        if ltime >= self.time:
            self.time = min(ltime + 1, MAX_LTIME)

    def stamp(self) -> int:
        """A time for a new message; the clock moves on."""
        ltime = self.time
        self.witness(ltime)
        return ltime


class SeenRing:
    """The clock of user events or of queries, and what was heard of them: marks by Lamport time, EVENT_SLOTS
    times back."""

    def __init__(self) -> None:
        self.clock = LamportClock()
        self.min_ltime = 0
        self._slots: dict[int, tuple[int, set[Hashable]]] = {}

    def restore(self, last_ltime: int) -> None:
        """Continue where a former life had come to: what it has heard is no news any more."""
        self.clock.witness(last_ltime)
        self.min_ltime = max(self.min_ltime, last_ltime + 1)

    def is_news(self, ltime: int, mark: Hashable) -> bool:
        """True once per mark, and never for what is too old to tell."""
        self.clock.witness(ltime)
        if ltime < max(self.min_ltime, self.clock.time - EVENT_SLOTS):
            return False
        held_ltime, marks = self._slots.get(ltime % EVENT_SLOTS, (-1, set()))
        if held_ltime > ltime:
            return False
        if held_ltime != ltime:
            marks = set()
            self._slots[ltime % EVENT_SLOTS] = (ltime, marks)
        if mark in marks or len(marks) >= MAX_PER_SLOT:
            return False
        marks.add(mark)
        return True


class EventLog(SeenRing):
    """User events: what was heard, and the recent ones a push/pull hands on."""

    def __init__(self) -> None:
        super().__init__()
        self._recent: dict[int, list[UserEvent]] = {}

    def accept(self, event: UserEvent) -> bool:
        """Whether the event is news, to be delivered and told on."""
        if not self.is_news(event.ltime, event_fingerprint(event)):
            return False
        if len(event.name) + len(event.payload) <= MAX_REPLAYED_BYTES:
            held = self._recent.get(event.ltime % EVENT_SLOTS, [])
            if held and held[0].ltime != event.ltime:
                held = []
            self._recent[event.ltime % EVENT_SLOTS] = [*held, event][-MAX_PER_SLOT:]
        return True

    def recent(self) -> tuple[UserEvent, ...]:
        """What a push/pull tells a peer that may have missed it."""
        return tuple(event for slot in self._recent.values() for event in slot)
