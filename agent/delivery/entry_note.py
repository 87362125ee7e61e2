"""The note beside an entry of groups: what it brings about, told once it is committed.

Law of this file: numbers of operations that happened. The keeper that proposed the entry counts it when it
hears of the commit, as leader or as follower; one that is cut counts nowhere. So no message counts twice when
leaders change. An agent that stops before it hears of a commit leaves that entry out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shoal.agent.groups.entry import Die, Fate, GroupOperation, ReasonCode, Release
from shoal.agent.groups.partition_group import PartitionGroup
from shoal.agent.metrics.measures import GroupMeasures
from shoal.agent.receive import DeliveredRange


class GroupTotals(NamedTuple):
    """Messages of a group so far: acked, dead (dropped ones too), stored as letters, and skipped."""

    acked: int = 0
    dead: int = 0
    lettered: int = 0
    skipped: int = 0

    @classmethod
    def of(cls, group: PartitionGroup | None) -> GroupTotals:
        """At the log's end; of no group nothing."""
        if group is None:
            return cls()
        given = group.letters_given
        return cls(group.acked, given + group.dropped, given - len(group.letters), group.skipped)


class EntryNote:
    """`counted`: the messages of the entry."""

    __slots__ = ("counted",)

    def __init__(self) -> None:
        self.counted = GroupMeasures()

    def given(self, delivered: Sequence[DeliveredRange]) -> None:
        """An answer to a receive, which is no repetition."""
        for one in delivered:
            self.counted.received += one.range.count
            self.counted.redelivered += one.range.count if one.attempt > 1 else 0

    def happened(self, operation: GroupOperation) -> None:
        """An operation that names its messages."""
        counted = self.counted
        match operation:
            case Release(_, _, ranges, uncounted):
                count = sum(piece.count for piece in ranges)
                if uncounted:
                    counted.released += count
                else:
                    counted.nacked += count
            case Die(_, code, ranges, _, fate):
                count = sum(piece.count for piece in ranges)
                counted.nacked += count if code is ReasonCode.NACK else 0
                counted.rejected += count if code is ReasonCode.REJECTED else 0
                counted.stopped += count if fate is Fate.STOP else 0

    def changed(self, before: GroupTotals, after: GroupTotals) -> None:
        """A group after all of its operations. One that is dropped or begins has counted nothing."""
        counted = self.counted
        acked, dead, lettered, skipped = (max(now - was, 0) for was, now in zip(before, after, strict=True))
        counted.acked += acked
        counted.dead += dead
        counted.lettered += lettered
        counted.skipped += skipped
