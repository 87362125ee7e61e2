"""The world of a walk: messages one by one, bounds that a short walk meets, and a feed that is slow."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from unittest.mock import patch

from shoal.agent.groups.leader.candidates import FeedNotReady
from shoal.agent.groups.place import START
from shoal.agent.receive import NOBODY, DuePlace, Range
from tests.agent.groups.group_desk import MemoryFeed

FOREVER = 2**62
LEADER = "shoal.agent.groups.leader"
TINY: tuple[tuple[str, tuple[int, ...]], ...] = (
    (f"{LEADER}.group_leader.SLICE_SPANS", (1, 2)),
    (f"{LEADER}.group_leader.MAX_DELIVER_RANGES", (1, 2, 256)),
    (f"{LEADER}.candidates.MAX_TAKEN_BACK", (1, 2, 2_048)),
    (f"{LEADER}.candidates.NOTED_AT_ONCE", (1, 2_048, 2_048)),
    (f"{LEADER}.key_locks.KEY_WINDOW", (3, 8, 65_536)),
    (f"{LEADER}.key_locks.CHUNK_MESSAGES", (1, 3, 1_024)),
    (f"{LEADER}.key_locks.MAX_PASSED", (2, 4_096)),
)


@contextmanager
def tiny_bounds(chance: random.Random) -> Iterator[None]:
    """Bounds that a short walk meets."""
    patches = [patch(target, chance.choice(values)) for target, values in TINY]
    letters = chance.choice((1, 3, 1_024))
    patches += [patch(f"{LEADER}.acts.MAX_LETTERS", letters)]
    patches += [patch("shoal.agent.groups.partition_group.MAX_LETTERS", letters)]
    for one in patches:
        one.start()
    try:
        yield
    finally:
        for one in patches:
            one.stop()


class WalkFeed(MemoryFeed):
    """Sometimes it is slow: then the keys are not there yet."""

    def __init__(self, *, by_due: bool) -> None:
        super().__init__(by_due=by_due)
        self.chance: random.Random | None = None

    def keys(self, piece: Range) -> Sequence[int]:
        """See Feed."""
        if self.chance is not None and self.chance.random() < 0.3:
            raise FeedNotReady
        return super().keys(piece)


@dataclass
class Message:
    """One message. `ends_ms`: of its lease; FOREVER until its delivery is committed."""

    place: DuePlace
    key: int
    state: str = "new"
    attempts: int = 0
    delivery: int = 0
    until_us: int = 0
    lease_ms: int = 0
    ends_ms: int = 0
    holder: bytes = NOBODY


@dataclass
class World:
    """What is folded, and the leases beside it."""

    messages: list[Message] = field(default_factory=list)  # by offset
    floor: DuePlace = START
    generation: int = 1
    letters: int = 0
    redriven: int = 0
    answers: dict[bytes, tuple[str, int]] = field(default_factory=dict)

    def copy(self) -> World:
        """As it is now, whatever comes."""
        messages = [Message(**vars(message)) for message in self.messages]
        return replace(self, messages=messages, answers=dict(self.answers))

    def of(self, ranges: Iterable[Range]) -> list[Message]:
        """The messages of ranges."""
        found = [
            self.messages[at] for piece in ranges for at in range(piece.first, piece.first + piece.count)
        ]
        assert all(one.place.due_us == piece.due_us for piece in ranges for one in self.of_one(piece))
        return found

    def of_one(self, piece: Range) -> list[Message]:
        """The messages of a range."""
        return self.messages[piece.first : piece.first + piece.count]
