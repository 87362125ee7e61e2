"""The piggyback queue: what is still to be told, and how often it was told.

Law of this file: encoded messages and counts. It does not know what a message says, only the name it
is about: a newer message about the same name replaces the older one, which is then no longer true.
"""

import bisect
import math
from dataclasses import dataclass

MAX_LOOKED_AT = 512
"""Messages considered for one packet: some 60 fill it, the rest may be too long for the gap that is left."""

MAX_QUEUED = 4096
"""Messages of one queue; beyond it the more told half is dropped. Serf prunes its queues at the same size."""


def retransmit_limit(mult: int, members: int) -> int:
    """How often one message is handed out: mult * ceil(log10(members + 1)), which
    reaches everybody with high odds."""
    return mult * math.ceil(math.log10(members + 1))


@dataclass(slots=True, eq=False)
class Broadcast:
    """One message under way. `finished` turns true when it was told often enough, was
    replaced or was dropped."""

    subject: str | None
    message: bytes
    number: int
    told: int = 0
    finished: bool = False

    def order(self) -> tuple[int, int, int]:
        """Least told first, then longest (fills packets best), then newest."""
        return (self.told, -len(self.message), -self.number)


class BroadcastQueue:
    """Messages to piggyback. `overhead_bytes` is what each costs in a packet beyond its
    own bytes and its prefix.

    A message that fits into no packet (`packet_bytes`) is not queued: in Serf's queue
    it would stay for ever.

    Kept sorted, because every ping and ack takes from it: taking looks at the front, not at the whole.
    """

    def __init__(self, packet_bytes: int, overhead_bytes: int, prefix: bytes = b"") -> None:
        self._packet_bytes = packet_bytes
        self._overhead_bytes = overhead_bytes + len(prefix)
        self._prefix = prefix
        self._sorted: list[tuple[tuple[int, int, int], Broadcast]] = []
        self._subjects: dict[str, Broadcast] = {}
        self._numbered = 0

    def __len__(self) -> int:
        return len(self._sorted)

    def queue(self, message: bytes, subject: str | None = None) -> Broadcast:
        """Tell this from now on; about the same subject only the newest message stays."""
        if subject is not None and (older := self._subjects.get(subject)) is not None:
            self._remove(older)
            self._finish(older)
        if len(self._sorted) >= MAX_QUEUED:
            # The more told half goes at once, so that a flood pays for it once in MAX_QUEUED / 2 messages.
            gone = self._sorted[MAX_QUEUED // 2 :]
            del self._sorted[MAX_QUEUED // 2 :]
            for _, dropped in gone:
                self._finish(dropped)
        self._numbered += 1
        broadcast = Broadcast(subject, message, self._numbered)
        if len(message) + self._overhead_bytes > self._packet_bytes:
            broadcast.finished = True
            return broadcast
        self._insert(broadcast)
        if subject is not None:
            self._subjects[subject] = broadcast
        return broadcast

    def take(
        self, budget_bytes: int, limit: int, max_parts: int, *, counted: bool = True
    ) -> tuple[list[bytes], int]:
        """Messages that fit into the budget, each counted as told once, and the bytes they use of it.

        Not `counted`: the receiver probably hears nothing, and has no share in how often news is told.
        """
        taken: list[Broadcast] = []
        used_bytes = 0
        for _, broadcast in self._sorted[:MAX_LOOKED_AT]:
            cost_bytes = len(broadcast.message) + self._overhead_bytes
            if len(taken) >= max_parts or used_bytes + self._overhead_bytes > budget_bytes:
                break
            if used_bytes + cost_bytes <= budget_bytes:
                taken.append(broadcast)
                used_bytes += cost_bytes
        for broadcast in taken if counted else ():
            self._remove(broadcast)
            broadcast.told += 1
            if broadcast.told >= limit:
                self._finish(broadcast)
            else:
                self._insert(broadcast)
        return [self._prefix + broadcast.message for broadcast in taken], used_bytes

    def _insert(self, broadcast: Broadcast) -> None:
        bisect.insort(self._sorted, (broadcast.order(), broadcast), key=lambda entry: entry[0])

    def _remove(self, broadcast: Broadcast) -> None:
        order = broadcast.order()  # distinct for distinct broadcasts: it ends in their number
        del self._sorted[bisect.bisect_left(self._sorted, order, key=lambda entry: entry[0])]

    def _finish(self, broadcast: Broadcast) -> None:
        broadcast.finished = True
        if broadcast.subject is not None and self._subjects.get(broadcast.subject) is broadcast:
            del self._subjects[broadcast.subject]
