"""Where each consumer of a whole topic looks for messages first. Pure.

A consumer stays at a partition for a while, so that its acks and its next receive are one commit there. Then
it goes on, so that no partition waits for ever.
"""

from __future__ import annotations

from typing import Final

STAY_ANSWERS: Final = 16
REMEMBERED_MAX: Final = 8_192
"""Consumers; who is forgotten begins at another partition."""


class ReceivePlaces:
    """One per agent."""

    def __init__(self) -> None:
        self._places: dict[tuple[bytes, bytes], tuple[int, int]] = {}

    def order(self, group: bytes, consumer: bytes, partitions: int) -> list[int]:
        """The partitions in which to look, the first first. Those of a new consumer begin at a place of its
        own."""
        place = self._places.get((group, consumer))
        first = int.from_bytes(consumer[:4], "big") if place is None else place[0]
        return [(first + step) % partitions for step in range(partitions)]

    def served(self, group: bytes, consumer: bytes, partition: int) -> None:
        """The consumer has messages of that partition."""
        place, answers = self._places.pop((group, consumer), (-1, 0))
        answers = answers + 1 if place == partition else 1
        if len(self._places) >= REMEMBERED_MAX:
            del self._places[next(iter(self._places))]
        onward = answers >= STAY_ANSWERS
        self._places[group, consumer] = (partition + 1, 0) if onward else (partition, answers)
