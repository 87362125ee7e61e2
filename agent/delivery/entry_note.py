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
    Acknowledge,
    Begin,
    Decide,
    Deliver,
    Die,
    Drop,
    Fate,
    Free,
    GroupOperation,
    Lettered,
    Lost,
    ReasonCode,
    Release,
    Seek,
    Skip,
)
from shoal.agent.groups.letters import reason_of
from shoal.agent.groups.news import OFFSETS_MAX, News
from shoal.agent.groups.partition_group import PartitionGroup
from shoal.agent.receive import DeliveredRange, GroupKey, Range
from shoal.format.timestamps import format_time

QUIET: Final = frozenset((Acknowledge, Begin, Deliver, Drop, Lettered))
"""Operations that are told of by the group's totals, or by the answer; most entries have no others."""
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
    """`counted`: messages by the names of GroupMeasures. `news`: of its groups, in their order."""

    __slots__ = ("_skipped_by", "counted", "news")

    def __init__(self) -> None:
        self.counted: dict[str, int] = {}
        self.news: list[tuple[GroupKey, News]] = []
        self._skipped_by: dict[GroupKey, str] = {}

    def _count(self, name: str, messages: int) -> None:
        if messages:
            self.counted[name] = self.counted.get(name, 0) + messages

    def given(self, delivered: Sequence[DeliveredRange]) -> None:
        """An answer to a receive, which is no repetition."""
        received = redelivered = 0
        for (_, _, count), attempt in delivered:
            received += count
            if attempt > 1:
                redelivered += count
        self._count("received", received)
        self._count("redelivered", redelivered)

    def happened(self, key: GroupKey, operation: GroupOperation, group: PartitionGroup | None) -> None:
        """An operation that changed the group to this; None: it has ended."""
        if type(operation) in QUIET:
            return
        match operation:
            case Release(_, _, ranges, uncounted):
                self._count("released" if uncounted else "nacked", sum(piece.count for piece in ranges))
            case Die(_, code, ranges, text, fate):
                count = sum(piece.count for piece in ranges)
                self._count("nacked", count if code is ReasonCode.NACK else 0)
                self._count("rejected", count if code is ReasonCode.REJECTED else 0)
                self._count("stopped", count if fate is Fate.STOP else 0)
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
        self._count("acked", max(after.acked - before.acked, 0))
        if before[1:] == after[1:]:
            return
        self._count("dead", max(after.dead - before.dead, 0))
        lettered, skipped = max(after.lettered - before.lettered, 0), max(after.skipped - before.skipped, 0)
        if lettered:
            self._count("lettered", lettered)
            self.news.append((key, News("group-letters-stored", lettered, facts={"letters": after.lettered})))
        if skipped:
            self._count("skipped", skipped)
            facts = {"reason": self._skipped_by[key]}
            self.news.append((key, News("group-messages-skipped", skipped, facts=facts)))


def _offsets(ranges: Iterable[Range]) -> tuple[int, ...]:
    """The first ones: as many as an event names."""
    pieces = (range(piece.first, piece.first + piece.count) for piece in ranges)
    return tuple(islice(chain.from_iterable(pieces), OFFSETS_MAX))
