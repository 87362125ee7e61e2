"""Reads confirmed by a heartbeat round (thesis 6.4).

Law of this file: which read waits for which round. Whether a round is answered is the leader's business.

Invariants: rounds of waiting reads ascend; no more than max_pending wait.
"""

from collections import deque
from collections.abc import Iterator

from shoal.format.batch import LogIndex
from shoal.replication.errors import Overloaded


class ReadQueue:
    """round: number of the newest heartbeat round, echoed by the followers that answer it.

    A read asked at round r waits for round r + 1: a heartbeat sent before it was asked proves nothing.
    """

    def __init__(self, max_pending: int) -> None:
        self._max_pending = max_pending
        self.early: list[int] = []  # tokens asked before this term's first commit
        self.waiting: deque[tuple[int, int, LogIndex]] = deque()  # round, token, index
        self.round = 0

    @property
    def is_waiting(self) -> bool:
        """Whether any read is unanswered."""
        return bool(self.waiting or self.early)

    def ask(self, token: int, index: LogIndex | None) -> None:
        """index: the commit index now, or None before the leader's own-term commit."""
        if len(self.waiting) + len(self.early) >= self._max_pending:
            raise Overloaded(f"{self._max_pending} reads wait already")
        if index is None:
            self.early.append(token)
        else:
            self.waiting.append((self.round + 1, token, index))

    def term_committed(self, index: LogIndex) -> None:
        """The leader has committed in its own term: the early reads may go, at this index."""
        self.waiting.extend((self.round + 1, token, index) for token in self.early)
        self.early.clear()

    def begin_round(self) -> bool:
        """Begin a round if a read waits for one; true if heartbeats must leave for it."""
        if not self.waiting or self.waiting[-1][0] <= self.round:
            return False
        self.round += 1
        return True

    def confirm(self, round_: int) -> Iterator[tuple[int, LogIndex]]:
        """Every waiting (token, index) whose round a majority has answered."""
        while self.waiting and self.waiting[0][0] <= round_:
            _, token, index = self.waiting.popleft()
            yield token, index
