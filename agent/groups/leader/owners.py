"""The consumers that are there, and the owners of an exclusive group's partitions: an opinion of each leader.

Law of this file: pure. Consumers tell each leader that they are there, and are forgotten a session later.
From the names alone every leader computes the same owners: nobody coordinates. Leaders may hear of a
consumer at different times; nothing rests on it, since one partition's owner is its own leader's matter.

Invariant: all messages of an exclusive group that are in flight in one partition are one owner's.
"""

from __future__ import annotations

import sys
from array import array
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from hashlib import shake_256
from typing import Final, NamedTuple

from shoal.agent.groups.requests import MAX_CONSUMERS
from shoal.agent.receive import NOBODY


class Seen(NamedTuple):
    """A consumer that is there. `instance`: which process of that name. `name`: for people."""

    instance: bytes
    seen_ms: int
    name: str


class Presence:
    """The consumers of one group that this leader has heard of within a session, at most MAX_CONSUMERS."""

    def __init__(self, session_ms: int) -> None:
        self.session_ms = session_ms
        self._seen: dict[bytes, Seen] = {}  # in the order of seen_ms
        self._owners: tuple[bytes, ...] = ()
        self._changes_ms: tuple[int, int] | None = None  # the first and the last that the owners do not know

    def __contains__(self, consumer: bytes) -> bool:
        return consumer in self._seen

    def __len__(self) -> int:
        return len(self._seen)

    def items(self) -> Iterator[tuple[bytes, Seen]]:
        """Consumers by their hashes."""
        return iter(self._seen.items())

    def name_of(self, consumer: bytes | None) -> str:
        """For people: its hash where it gave no name, empty for none."""
        if consumer is None:
            return ""
        seen = self._seen.get(consumer)
        return seen.name if seen is not None and seen.name else consumer.hex()

    def is_other(self, consumer: bytes, instance: bytes) -> bool:
        """Whether another process of that name is there."""
        seen = self._seen.get(consumer)
        return seen is not None and seen.instance != instance and NOBODY not in (seen.instance, instance)

    def see(self, consumer: bytes, instance: bytes, now_ms: int, name: str = "") -> bool:
        """The consumer is there. False: there are too many others."""
        before = self._seen.pop(consumer, None)
        if before is None and len(self._seen) >= MAX_CONSUMERS:
            return False
        name = name or (before.name if before is not None else "")
        if instance == NOBODY and before is not None:
            instance = before.instance
        self._seen[consumer] = Seen(instance, now_ms, name)
        if before is None:
            self._changed(now_ms)
        return True

    def leave(self, consumer: bytes, instance: bytes, now_ms: int) -> bool:
        """The consumer goes. False: it was not there, or another process of that name is."""
        if consumer not in self._seen or self.is_other(consumer, instance):
            return False
        del self._seen[consumer]
        self._changed(now_ms)
        return True

    def expire(self, now_ms: int) -> list[bytes]:
        """Forget the consumers that were silent for a session; which."""
        gone: list[bytes] = []
        for consumer, seen in self._seen.items():
            if seen.seen_ms + self.session_ms > now_ms:
                break
            gone.append(consumer)
        for consumer in gone:
            del self._seen[consumer]
        if gone:
            self._changed(now_ms)
        settled_ms = self._settled_ms()
        if settled_ms is not None and settled_ms <= now_ms and self._seen:
            self._assign(len(self._owners))
        return gone

    def deadline_ms(self) -> int | None:
        """When `expire` is worth a call: the next consumer is forgotten, or who is there has settled."""
        first = next(iter(self._seen.values()), None)
        if first is None:
            return None
        session_ms, settled_ms = first.seen_ms + self.session_ms, self._settled_ms()
        return session_ms if settled_ms is None else min(session_ms, settled_ms)

    def owner_of(self, partition: int, partitions: int, now_ms: int) -> bytes | None:
        """The consumer that should own the partition; None: nobody is there. Where many come and go at once
        that is told of those who were there before."""
        if not self._seen:
            return None
        settled_ms = self._settled_ms()
        if len(self._owners) != partitions or (
            self._changes_ms is not None and (settled_ms is None or settled_ms <= now_ms)
        ):
            self._assign(partitions)
        return self._owners[partition]

    def _changed(self, now_ms: int) -> None:
        first_ms, _ = self._changes_ms or (now_ms, now_ms)
        self._changes_ms = (first_ms, now_ms)

    def _settled_ms(self) -> int | None:
        """When the owners are computed anew; None: there is no need, or no need to wait."""
        if self._changes_ms is None or len(self._owners) * len(self._seen) <= PAIRS_AT_ONCE:
            return None
        first_ms, last_ms = self._changes_ms
        return min(last_ms + SETTLED_MS, first_ms + MOST_MS)

    def _assign(self, partitions: int) -> None:
        self._owners = assign(tuple(sorted(self._seen)), partitions)
        self._changes_ms = None


ASSIGNMENTS_KEPT: Final = 64
"""All partitions of a topic that one agent leads ask the same."""
PAIRS_AT_ONCE: Final = 2**14
"""Of a name and a partition, at most: the owners are computed anew as soon as a consumer comes or goes, in
about two milliseconds. More of them wait until nobody has come or gone for SETTLED_MS, at most MOST_MS."""
SETTLED_MS: Final = 1_000
MOST_MS: Final = 10_000


@lru_cache(ASSIGNMENTS_KEPT)
def assign(names: tuple[bytes, ...], partitions: int) -> tuple[bytes, ...]:
    """The owner of each partition: balanced within one, and the same wherever it is computed. `names`: at
    least one; standbys own nothing. A million pairs of a name and a partition take a quarter of a second.

    Each partition wants the name that scores highest for it (rendezvous hashing), so that few move when a
    name joins or leaves. Names that are wanted too often keep the partitions that score highest for them. The
    others go to the names that have room, the best scores first.
    """
    names = tuple(sorted(names))
    scores = [_scores(name, partitions) for name in names]
    best = [max(column) for column in zip(*scores, strict=True)]
    wanted = [column.index(high) for column, high in zip(zip(*scores, strict=True), best, strict=True)]
    loads = Counter(wanted)
    share, rest = divmod(partitions, len(names))
    # The names that are wanted most have one more than the others.
    order = sorted(range(len(names)), key=lambda number: (-loads[number], number))
    room = [share] * len(names)
    for number in order[:rest]:
        room[number] += 1
    owners = [-1] * partitions
    for partition in sorted(range(partitions), key=lambda at: (best[at], at), reverse=True):
        if room[wanted[partition]]:
            owners[partition] = wanted[partition]
            room[wanted[partition]] -= 1
    free = [partition for partition in range(partitions) if owners[partition] < 0]
    ranks = [(scores[number][at], number, at) for number in range(len(names)) if room[number] for at in free]
    for _, number, partition in sorted(ranks, reverse=True):
        if room[number] and owners[partition] < 0:
            owners[partition] = number
            room[number] -= 1
    return tuple(names[number] for number in owners)


@lru_cache(2 * MAX_CONSUMERS)
def _scores(name: bytes, partitions: int) -> array[int]:
    """Of a name for each partition, as if they were drawn by lot; for more partitions they go on."""
    scores = array("Q", shake_256(b"shoal-ow" + name).digest(8 * partitions))
    if sys.byteorder == "big":
        scores.byteswap()
    return scores
