"""A disk that keeps what was synced, and of the rest whatever it likes.

Law of this file: one replica's durable state: hard state and log. Writes are queued in order; a sync takes
everything queued when it starts (group commit). A crash keeps a random prefix of the writes being synced,
entry by entry.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from shoal.replication.interfaces import Configuration, HardState, ReplicaId
from shoal.replication.state.ready import Ready


class Entry(NamedTuple):
    """A frame, as far as Raft is concerned. previous_term chains it to the one before (safety 7)."""

    term: int
    previous_term: int
    payload: int | str | Configuration


@dataclass(frozen=True)
class Write:
    """The disk work of one ready, and of it only: entries follow truncate_from, if given."""

    ready: Ready
    hard_state: HardState | None
    truncate_from: int | None
    first_index: int
    entries: tuple[Entry, ...]


@dataclass
class Disk:
    """log[i] is the entry at index i + 1. Retention has dropped those before first_index: they are kept here
    for the invariants, and no replica reads them."""

    replica_id: ReplicaId
    hard_state: HardState = field(default_factory=HardState)
    log: list[Entry] = field(default_factory=list)
    first_index: int = 1
    queue: deque[Write] = field(default_factory=deque)
    syncing: list[Write] = field(default_factory=list)
    damaged: set[int] = field(default_factory=set)
    """Indexes of entries whose bytes do not verify; what they were, and are elsewhere, stands in log."""

    def start_sync(self) -> bool:
        """Take up everything queued; false if a sync runs already, or nothing waits."""
        if self.syncing or not self.queue:
            return False
        self.syncing = list(self.queue)
        self.queue.clear()
        return True

    def finish_sync(self) -> list[Ready]:
        """Everything taken up is durable now; whose readies they were, in order."""
        for write in self.syncing:
            self._persist(write, len(write.entries))
        done, self.syncing = self.syncing, []
        return [write.ready for write in done]

    def crash(self, rng: random.Random) -> int:
        """Lose the queue, and a random suffix of what was being synced; how many entries were lost."""
        steps = sum(2 + len(write.entries) for write in self.syncing)
        keep = rng.randint(0, steps) if rng.random() < 0.5 else 0
        lost = sum(len(write.entries) for write in self.queue)
        for write in self.syncing:
            if keep < 1:
                lost += len(write.entries)
                continue
            entries = max(0, min(len(write.entries), keep - 2))
            self._persist(write, entries, truncate=keep >= 2)
            lost += len(write.entries) - entries
            keep -= 2 + len(write.entries)
        self.queue.clear()
        self.syncing = []
        return lost

    def _persist(self, write: Write, entry_count: int, *, truncate: bool = True) -> None:
        if write.hard_state is not None:
            assert write.hard_state.term >= self.hard_state.term
            self.hard_state = write.hard_state
        if write.truncate_from is not None and truncate:
            self.truncate(write.truncate_from)
        if entry_count:
            assert len(self.log) == write.first_index - 1, "the log on disk has a gap or a leftover"
            self.log.extend(write.entries[:entry_count])

    def truncate(self, from_index: int) -> None:
        """What was damaged behind that is gone too."""
        del self.log[from_index - 1 :]
        self.damaged = {index for index in self.damaged if index < from_index}

    def install(self, source: Disk, last_index: int) -> None:
        """Whole segments from another replica take the place of a log that ends before them (safety 27)."""
        assert not self.queue
        assert not self.syncing
        self.log = source.log[:last_index]
        self.first_index = source.first_index
        self.damaged.clear()

    def holds(self, index: int, entry: Entry) -> bool:
        """Whether that entry is durable here."""
        return len(self.log) >= index and self.log[index - 1] == entry
