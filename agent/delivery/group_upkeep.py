"""Operations that a leader appends unasked: its groups begin, end, and skip messages that are gone.

Law of this file: which operations are due, from the catalog's plans, the fold and the log. It stages nothing
itself, and awaits nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from shoal.agent.groups.entry import Begin, Drop, GroupOperation, Lost, Skip
from shoal.agent.groups.fold import GroupFold
from shoal.agent.groups.partition_group import PartitionGroup
from shoal.agent.groups.place import START, SpanState
from shoal.agent.groups.settings import GroupPlans
from shoal.agent.partition.replica import Replica
from shoal.agent.receive import DuePlace, GroupKey, Range
from shoal.format.batch import LogIndex
from shoal.segment_store.errors import OffsetOutOfRange
from shoal.segment_store.format.index import IndexReleased

LOST_RANGES_MAX: Final = 1_024
"""Of one operation; the others follow in the next entry."""


class GroupUpkeep:
    """Of the groups of one replica."""

    def __init__(self, replica: Replica, fold: GroupFold) -> None:
        self._replica = replica
        self._fold = fold

    def due(self, plans: GroupPlans) -> Iterator[tuple[GroupKey, GroupOperation]]:
        """Operations for groups; the caller may stop anywhere, and is told the rest again."""
        fold, log = self._fold, self._replica.log
        for key, plan in plans.groups.items():
            if key not in fold.groups and plan.settings.start_us() is None:
                place = START if fold.by_due else DuePlace(0, log.start_offset)
                yield key, Begin(plan.catalog, place, plan.settings.start == "latest")
        # Where places are due times, a floor must not pass messages that fall due before such a record.
        lost = self._lost() if self._replica.plan.quarantined and not fold.by_due else ()
        for key, group in list(fold.groups.items()):
            if key not in plans.groups:
                if is_gone(plans, group):
                    yield key, Drop(plans.catalog)
                continue
            if self.is_trimmed(group):
                yield key, Skip(log.start_offset, undone_before(group, log.start_offset))
            if gone := undone_of(group, lost):
                yield key, Lost(gone)

    def is_trimmed(self, group: PartitionGroup) -> bool:
        """Whether retention took messages that the group has yet to skip."""
        return not self._fold.by_due and first_of(group).offset < self._replica.log.start_offset

    def is_any_trimmed(self) -> bool:
        """The same of all of them."""
        return any(map(self.is_trimmed, self._fold.groups.values()))

    def _lost(self) -> tuple[Range, ...]:
        """Records of batches that no voter has intact: nobody will ever read them here."""
        replica, quarantined = self._replica, self._replica.plan.quarantined
        found: list[Range] = []
        for item in replica.damaged_ranges:
            indexes = [
                number for number in range(item.first_index, item.last_index + 1) if number in quarantined
            ]
            if not indexes:
                continue
            begin, behind = item.first_offset, item.end_offset
            try:
                if indexes[0] > item.first_index:
                    begin = replica.log.entry(LogIndex(indexes[0])).base_offset
                if indexes[-1] < item.last_index or len(indexes) <= item.last_index - item.first_index:
                    behind = replica.log.entry(LogIndex(_end_of_run(indexes))).end_offset
            except (IndexReleased, OffsetOutOfRange):
                continue  # its groups hear of it once its index is in memory
            if behind > begin:
                found.append(Range(0, begin, behind - begin))
        return tuple(found)


def first_of(group: PartitionGroup) -> DuePlace:
    """The first message that the group is not done with: what a redrive brought back stands before the
    floor."""
    first = group.spans.first()
    return group.floor if first is None else min(group.floor, first.begin)


def is_gone(plans: GroupPlans, group: PartitionGroup) -> bool:
    """Whether a catalog that does not have the group is one that would: a former one proves nothing."""
    epoch, offset = plans.catalog
    return epoch == group.begun[0] and offset > group.begun[1]


def undone_of(group: PartitionGroup, lost: tuple[Range, ...]) -> tuple[Range, ...]:
    """The ranges in which the group has something to do."""
    found: list[Range] = []
    for piece in lost:
        spans = group.spans.overlapping(piece)
        is_undone = any(span.state not in (SpanState.DONE, SpanState.DYING) for span in spans)
        seen = sum(span.count for span in spans)
        behind = max(group.floor.offset - piece.first, 0)
        if is_undone or seen + behind < piece.count:
            found.append(piece)
    return tuple(found[:LOST_RANGES_MAX])


def undone_before(group: PartitionGroup, offset: int) -> int:
    """Messages before an offset that were to be done."""
    undone = max(offset - group.floor.offset, 0)
    for span in group.spans.from_place(START):
        if span.first >= offset:
            break
        behind = min(span.first + span.count, offset)
        if span.state is SpanState.DONE:
            undone -= max(behind - max(span.first, group.floor.offset), 0)
        else:
            undone += max(min(behind, group.floor.offset) - span.first, 0)
    return undone


def _end_of_run(numbers: list[int]) -> int:
    """The last number before the first gap."""
    return next(
        (number for number, following in pairwise(numbers) if following != number + 1),
        numbers[-1],
    )


def shown(ranges: tuple[Range, ...]) -> str:
    """For people: a few of them."""
    texts = [f"{piece.first} to {piece.first + piece.count - 1}" for piece in ranges[:4]]
    return ", ".join(texts) + (f" and {len(ranges) - 4} more" if len(ranges) > 4 else "")
