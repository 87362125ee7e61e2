"""The note beside an entry of groups: numbers and news of it, told once it is committed.

Law of this file: numbers and news of operations that happened. The keeper that proposed the entry tells them
when it hears of the commit, as leader or as follower. One that is cut is not told of. So no message counts
twice when leaders change. An agent that stops before it hears of a commit leaves that entry out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import Any, Final, NamedTuple

from shoal.agent.groups.entry import (
    Decide,
    Die,
    Fate,
    Free,
    GroupOperation,
    Lost,
    ReasonCode,
    Release,
    Seek,
    Skip,
)
from shoal.agent.groups.letters import reason_of
from shoal.agent.groups.news import OFFSETS_MAX, News
from shoal.agent.groups.partition_group import PartitionGroup
from shoal.agent.metrics.measures import GroupMeasures
from shoal.agent.receive import DeliveredRange, GroupKey, Range
from shoal.format.timestamps import format_time

DEATHS: Final = {
    Fate.LETTER: "group-messages-died",
    Fate.STOP: "group-messages-stopped",
    Fate.DROP: "group-messages-dropped",
}


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
    """`counted`: the messages of the entry. `news`: of its groups, in their order."""

    __slots__ = ("_skipped_by", "counted", "news")

    def __init__(self) -> None:
        self.counted = GroupMeasures()
        self.news: list[tuple[GroupKey, News]] = []
        self._skipped_by: dict[GroupKey, str] = {}

    def given(self, delivered: Sequence[DeliveredRange]) -> None:
        """An answer to a receive, which is no repetition."""
        for one in delivered:
            self.counted.received += one.range.count
            self.counted.redelivered += one.range.count if one.attempt > 1 else 0

    def happened(self, key: GroupKey, operation: GroupOperation, group: PartitionGroup | None) -> None:
        """An operation that changed the group to this; None: it has ended."""
        counted = self.counted
        match operation:
            case Release(_, _, ranges, uncounted):
                count = sum(piece.count for piece in ranges)
                if uncounted:
                    counted.released += count
                else:
                    counted.nacked += count
            case Die(_, code, ranges, text, fate):
                count = sum(piece.count for piece in ranges)
                counted.nacked += count if code is ReasonCode.NACK else 0
                counted.rejected += count if code is ReasonCode.REJECTED else 0
                counted.stopped += count if fate is Fate.STOP else 0
                facts: dict[str, Any] = {"reason": reason_of(code, text)}
                self.news.append((key, News(DEATHS[fate], count, _offsets(ranges), facts=facts)))
            case Seek() if group is not None:
                found: dict[str, Any] = {"generation": group.generation, "offset": group.floor.offset}
                if group.by_due:
                    found["due"] = format_time(group.floor.due_us)
                self.news.append((key, News("group-sought", facts=found)))
            case Free(ordinal, ranges):
                count = sum(piece.count for piece in ranges)
                facts = {"letters": ordinal}
                self.news.append((key, News("group-letters-redriven", count, _offsets(ranges), facts=facts)))
            case Decide(action, ranges):
                facts = {"action": action.value}
                self.news.append((key, News("group-stop-decided", 0, _offsets(ranges), facts=facts)))
            case Skip():
                self._skipped_by[key] = "retention"
            case Lost():
                self._skipped_by[key] = "damage"

    def changed(self, key: GroupKey, before: GroupTotals, after: GroupTotals) -> None:
        """A group after all of its operations. One that is dropped or begins has counted nothing."""
        counted = self.counted
        acked, dead, lettered, skipped = (max(now - was, 0) for was, now in zip(before, after, strict=True))
        counted.acked += acked
        counted.dead += dead
        counted.lettered += lettered
        counted.skipped += skipped
        if lettered:
            self.news.append((key, News("group-letters-stored", lettered, facts={"letters": after.lettered})))
        if skipped:
            facts = {"reason": self._skipped_by[key]}
            self.news.append((key, News("group-messages-skipped", skipped, facts=facts)))


def _offsets(ranges: Iterable[Range]) -> tuple[int, ...]:
    """The first ones: as many as an event names."""
    pieces = (range(piece.first, piece.first + piece.count) for piece in ranges)
    return tuple(islice(chain.from_iterable(pieces), OFFSETS_MAX))
