"""The order that exclusive and key-ordered groups promise, and its anomalies.

Law of this file: pure. A message is given only when all before it in its order (the partition; the key) are
done, or in the same hand: of the same owner, in the same answer. out-of-order and key-order: an earlier one
was neither done nor in any hand. two-owners and key-parallel: somebody else had it, with time left.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from log_history import Partition

if TYPE_CHECKING:
    from group_history import Receive
    from group_index import GroupIndex

Place = tuple[str, Partition]
NAMES = {"exclusive": ("out-of-order", "two-owners"), "key-ordered": ("key-order", "key-parallel")}


def order_anomalies(index: GroupIndex) -> Iterator[tuple[str, str]]:
    """(name, text) of each."""
    for place, deliveries in index.deliveries.items():
        mode = index.terms(place[0]).mode
        if mode == "shared":
            continue
        ordered = [receive for _, receive in sorted(deliveries.items())]
        for generation in {receive.generation for receive in ordered}:
            given = [receive for receive in ordered if receive.generation == generation]
            for offsets in _lines(index, place, generation):
                yield from _Line(index, place, mode, generation, offsets).anomalies(given)


def _lines(index: GroupIndex, place: Place, generation: int) -> list[list[int]]:
    """The offsets whose order is kept, in that order: of the partition, or of each key there. They are
    delivered by due time, and then by offset. A seek begins them anew."""
    log = index.history.logs.get(place[1], {})
    begin = index.first_to_do(place, generation)
    known = sorted(
        (offset for offset in log if offset >= begin), key=lambda offset: (log[offset].due_us, offset)
    )
    if index.terms(place[0]).mode == "exclusive":
        return [known]
    lines: dict[str, list[int]] = defaultdict(list)
    for offset in known:
        key = log[offset].key
        if key is not None:
            lines[key].append(offset)
    return list(lines.values())


class _Line:
    """Messages that come one after the other."""

    def __init__(
        self, index: GroupIndex, place: Place, mode: str, generation: int, offsets: list[int]
    ) -> None:
        self._index = index
        self._place = place
        self._mode = mode
        self._generation = generation
        self._offsets = offsets
        self._done = {offset: self._may_be_done_at(offset) for offset in offsets}
        self._start = index.log_start.get(place, 0)

    def anomalies(self, deliveries: list[Receive]) -> Iterator[tuple[str, str]]:
        """Looks at each delivery and at all messages of the line before the first of it."""
        mine = {offset: number for number, offset in enumerate(self._offsets)}
        last: dict[int, Receive] = {}
        relevant = [item for item in deliveries if not mine.keys().isdisjoint(item.offsets)]
        soonest = [item.completed_at for item in relevant]
        for number in range(len(soonest) - 2, -1, -1):
            soonest[number] = min(soonest[number], soonest[number + 1])
        first = 0
        for receive, until in zip(relevant, soonest, strict=True):
            while first < len(self._offsets) and self._done[self._offsets[first]] <= until:
                first += 1
            given = sorted(mine.keys() & set(receive.offsets), key=mine.__getitem__)
            for offset in given:
                last[offset] = receive
            for before in self._offsets[first:]:
                if mine[before] >= mine[given[-1]]:
                    break
                name = self._complaint(before, receive, last.get(before))
                if name is not None:
                    text = f"{self._place}@{given[-1]} to {receive.consumer} ({receive.delivery}, until "
                    yield name, f"{text}{receive.completed_at:.3f}), {before} is with {last.get(before)}"
                    break

    def _complaint(self, before: int, receive: Receive, holder: Receive | None) -> str | None:
        """Why the delivery may not be while the message `before` stands as it does."""
        index, place = self._index, self._place
        if self._done[before] <= receive.completed_at or before < self._start:
            return None
        if index.revived(place, before, float("-inf"), receive.completed_at):
            return None  # it was done before it came back
        lost = [
            item
            for item in index.unanswered[place[0]]
            if item.invoked_at < receive.completed_at and item.consumer == receive.consumer
        ]
        wrong_order, parallel = NAMES[self._mode]
        if holder is receive or lost:
            return None
        if holder is None or self._was_given_back(before, holder, receive):
            return wrong_order
        if self._mode == "exclusive" and holder.consumer == receive.consumer:
            return None
        has_time = receive.completed_at < index.holds_until(place, before, holder)
        return parallel if has_time and holder.consumer != receive.consumer else wrong_order

    def _was_given_back(self, offset: int, holder: Receive, receive: Receive) -> bool:
        """Whether the owner had for certain given it back when it asked for more."""
        return any(
            act.verb in {"nack", "release"} and act.is_done and not act.is_whole
            for act in self._index.acts_on[self._place, offset]
            if act.delivery == holder.delivery and act.completed_at < receive.invoked_at
        )

    def _may_be_done_at(self, offset: int) -> float:
        """No earlier than this it was done, or dead; never, if nothing can have ended it."""
        index, place = self._index, self._place
        ends = [
            act.invoked_at
            for act in index.acts_on[place, offset]
            if _ends(act.verb) and act.may_count and act.generation == self._generation
        ]
        most = index.terms(place[0]).max_attempts
        unseen = sorted(item.invoked_at for item in index.unanswered[place[0]])
        if most is not None:
            seen = [item for item in index.of_message[place, offset] if item.generation == self._generation]
            if not seen and most <= len(unseen) and self._may_be_given_up(offset):
                ends.append(unseen[most - 1])  # nobody saw any of its deliveries
            for receive in seen:
                attempt = next(item.attempt for item in receive.messages if item.offset == offset)
                wanted = most - attempt  # deliveries that nobody saw, before this one or after it
                if wanted <= index.lost_answers(place[0], receive.completed_at):
                    ends.append(receive.invoked_at)
                elif wanted <= len(unseen):
                    ends.append(unseen[wanted - 1])
        return min(ends, default=float("inf"))

    def _may_be_given_up(self, offset: int) -> bool:
        """Whether the message may have had all its attempts. Where that leaves a letter, it has one."""
        dead, history = self._index.terms(self._place[0]).dead, self._index.history
        if dead == "letter" and history.drained:
            return self._index.letters[self._place, offset] > 0
        return dead != "stop"


def _ends(verb: str) -> bool:
    return verb in {"ack", "reject"}
