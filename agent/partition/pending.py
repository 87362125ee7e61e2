"""Waiters for entries of one replica's log, and their answers.

Law of this file: pure bookkeeping over an ordered queue; a waiter is told exactly once. Leadership plays no
part: a deposed leader's waiter is still answered with success when its very entry commits (safety 22), with
leadership-lost when the entry is cut, and with timeout when neither happened in time.
"""

from bisect import insort
from collections import deque
from typing import NamedTuple

from shoal.agent.submission import Answer, Appended
from shoal.errors import ErrorCode, ShoalError
from shoal.format.batch import LogIndex


class Waiter(NamedTuple):
    """One submission. `synced_only`: acks=leader, answered by the leader's own sync."""

    entry: LogIndex
    answer: Answer
    result: Appended
    deadline_ms: int
    synced_only: bool = False


class WaitQueue:
    """Waiters in the order of their entries; bounded by the bound on uncommitted entries and gathered
    rows."""

    def __init__(self) -> None:
        self._committing: deque[Waiter] = deque()
        self.syncing: deque[Waiter] = deque()
        """Whom `synced` answers."""
        self.deadline_ms: int | None = None
        """When `expire` may find something; None while nobody waits."""

    def __len__(self) -> int:
        return len(self._committing) + len(self.syncing)

    def add(self, waiter: Waiter) -> None:
        """Waiters come in log order, but for a repeated sequence that waits for its original."""
        queue = self.syncing if waiter.synced_only else self._committing
        if queue and queue[-1].entry > waiter.entry:
            insort(queue, waiter, key=lambda other: other.entry)
        else:
            queue.append(waiter)
        if self.deadline_ms is None or waiter.deadline_ms < self.deadline_ms:
            self.deadline_ms = waiter.deadline_ms

    def synced(self, index: LogIndex) -> None:
        if self.syncing:
            _answer_up_to(self.syncing, index)

    def committed(self, index: LogIndex) -> None:
        if self._committing:
            _answer_up_to(self._committing, index)
        if self.syncing:
            _answer_up_to(self.syncing, index)

    def truncated(self, from_index: LogIndex) -> None:
        """Entries from here on were replaced by another leader's."""
        for queue in (self._committing, self.syncing):
            while queue and queue[-1].entry >= from_index:
                _refuse(
                    queue.pop(),
                    "leadership-lost",
                    "another leader replaced the entry before it was committed",
                )

    def expire(self, now_ms: int) -> None:
        """Answer everyone whose time is up. The entry may still commit: a timeout is not definite."""
        if self.deadline_ms is None or now_ms < self.deadline_ms:
            return
        self._committing = _expire(self._committing, now_ms)
        self.syncing = _expire(self.syncing, now_ms)
        deadlines = [waiter.deadline_ms for queue in (self._committing, self.syncing) for waiter in queue]
        self.deadline_ms = min(deadlines, default=None)

    def fail_all(self, code: ErrorCode, detail: str) -> None:
        """The replica stops: nobody will learn more from it."""
        for queue in (self._committing, self.syncing):
            while queue:
                _refuse(queue.popleft(), code, detail)
        self.deadline_ms = None


def _answer_up_to(queue: deque[Waiter], index: LogIndex) -> None:
    while queue and queue[0].entry <= index:
        _, answer, result, _, _ = queue.popleft()
        if not answer.done():
            answer.set_result(result)


def _refuse(waiter: Waiter, code: ErrorCode, detail: str) -> None:
    if not waiter.answer.done():
        # What was proposed may have reached a majority: never definite (safety 22).
        waiter.answer.set_exception(ShoalError(code, detail, definite=False))


def _expire(queue: deque[Waiter], now_ms: int) -> deque[Waiter]:
    kept: deque[Waiter] = deque()
    for waiter in queue:
        if waiter.deadline_ms > now_ms and not waiter.answer.done():
            kept.append(waiter)
        elif not waiter.answer.done():
            _refuse(waiter, "timeout", "not committed in time; it may still be")
    return kept
