"""The piggyback queue: what is still to be told, and how often it was told.

Law of this file: encoded messages and counts. It does not know what a message says, only the name it is
about: a newer message about the same name replaces the older one, which is then no longer true.
"""

import math

MAX_QUEUED = 4096
"""Messages of one queue; beyond it the most told is dropped first. Serf prunes its queues at the same
size."""


def retransmit_limit(mult: int, members: int) -> int:
    """How often one message is handed out: mult * ceil(log10(members + 1)), which reaches everybody with
    high odds."""
    return mult * math.ceil(math.log10(members + 1))


class Broadcast:
    """One message under way. `finished` turns true when it was told often enough, was replaced or was
    dropped."""

    __slots__ = ("finished", "message", "number", "subject", "told")

    def __init__(self, subject: str | None, message: bytes, number: int) -> None:
        self.subject = subject
        self.message = message
        self.number = number
        self.told = 0
        self.finished = False

    def order(self) -> tuple[int, int, int]:
        """Least told first, then longest (fills packets best), then newest."""
        return (self.told, -len(self.message), -self.number)


class BroadcastQueue:
    """Messages to piggyback. `overhead_bytes` is what each costs in a packet beyond its own bytes."""

    def __init__(self, overhead_bytes: int, prefix: bytes = b"") -> None:
        self._overhead_bytes = overhead_bytes + len(prefix)
        self._prefix = prefix
        self._queue: list[Broadcast] = []
        self._numbered = 0

    def __len__(self) -> int:
        return len(self._queue)

    def queue(self, message: bytes, subject: str | None = None) -> Broadcast:
        """Tell this from now on; about the same subject only the newest message stays."""
        if subject is not None:
            self._drop([old for old in self._queue if old.subject == subject])
        if len(self._queue) >= MAX_QUEUED:
            self._drop([max(self._queue, key=Broadcast.order)])
        self._numbered += 1
        broadcast = Broadcast(subject, message, self._numbered)
        self._queue.append(broadcast)
        return broadcast

    def take(self, budget_bytes: int, limit: int, max_parts: int) -> tuple[list[bytes], int]:
        """Messages that fit into the budget, each counted as told once, and the bytes they use of it."""
        parts: list[bytes] = []
        used_bytes = 0
        done: list[Broadcast] = []
        for broadcast in sorted(self._queue, key=Broadcast.order):
            cost_bytes = len(broadcast.message) + self._overhead_bytes
            if len(parts) >= max_parts or used_bytes + cost_bytes > budget_bytes:
                continue
            parts.append(self._prefix + broadcast.message)
            used_bytes += cost_bytes
            broadcast.told += 1
            if broadcast.told >= limit:
                done.append(broadcast)
        self._drop(done)
        return parts, used_bytes

    def _drop(self, gone: list[Broadcast]) -> None:
        for broadcast in gone:
            broadcast.finished = True
            self._queue.remove(broadcast)
