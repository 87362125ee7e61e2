"""Those who wait for messages, and the promises made to them: a leader's memory.

Law of this file: pure. The one who asked first is promised first. A promise holds messages back from others
for a moment, and delivers nothing: the one who asked receives with its number. So nothing surplus is ever
delivered, and one new message wakes one consumer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from shoal.agent.receive import Question
from shoal.errors import ShoalError

MAX_QUESTIONS: Final = 4_096
"""Of a group in a partition, promised ones too. Behind it the group answers overloaded."""
PROMISE_MS: Final = 200
"""A promise is kept for so long: a receive takes one way across the cluster."""


class Promised(NamedTuple):
    """A promise that holds. `share`: messages held back for it."""

    question: Question
    share: int
    until_ms: int


class Questions:
    """By their numbers, which rise from 1 on."""

    def __init__(self) -> None:
        self._waiting: dict[int, Question] = {}
        self._promised: dict[int, Promised] = {}  # in the order of until_ms
        self._last = 0
        self.reserved = 0
        """Messages that promises hold back."""

    def __len__(self) -> int:
        return len(self._waiting) + len(self._promised)

    def __iter__(self) -> Iterator[Question]:
        """Those without a promise, the first first."""
        return iter(list(self._waiting.values()))

    def get(self, number: int) -> Question | None:
        """A question without a promise."""
        return self._waiting.get(number)

    def has_any(self) -> bool:
        """Whether somebody waits without a promise."""
        return bool(self._waiting)

    def ask(self, question: Question) -> Question:
        """The question with its number. Raises ShoalError overloaded."""
        if len(self) >= MAX_QUESTIONS:
            raise ShoalError("overloaded", f"{MAX_QUESTIONS} consumers wait for messages already: wait less")
        self._last += 1
        numbered = question._replace(number=self._last)
        self._waiting[self._last] = numbered
        return numbered

    def withdraw(self, number: int) -> None:
        """The one who asked has gone, or has what it wanted. Nothing happens if the number is not known."""
        self._waiting.pop(number, None)
        self.redeem(number)

    def promise(self, number: int, share: int, now_ms: int) -> None:
        """Hold back so many messages for the one who asked."""
        self._promised[number] = Promised(self._waiting.pop(number), share, now_ms + PROMISE_MS)
        self.reserved += share

    def share_of(self, number: int) -> int:
        """How many messages a promise holds back; 0 if it holds no more."""
        promised = self._promised.get(number)
        return 0 if promised is None else promised.share

    def redeem(self, number: int) -> None:
        """The promise is used, or over."""
        promised = self._promised.pop(number, None)
        if promised is not None:
            self.reserved -= promised.share

    def expire(self, now_ms: int) -> None:
        """Forget the promises whose time is over."""
        over = []
        for number, promised in self._promised.items():
            if promised.until_ms > now_ms:
                break
            over.append(number)
        for number in over:
            self.redeem(number)

    def deadline_ms(self) -> int | None:
        """When the next promise is over."""
        first = next(iter(self._promised.values()), None)
        return None if first is None else first.until_ms
