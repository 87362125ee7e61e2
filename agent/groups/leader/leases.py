"""How long each delivered message stays in its consumer's hands alone: a leader's memory.

Law of this file: pure; `now_ms` is this agent's monotonic clock. A lease begins when its delivery is
committed, and is extended by a word of its consumer. It is never replicated: a new leader begins all anew.
That a lease ends changes nothing by itself: only the next delivery makes its receipt void.

Invariant: every message that is in flight has a lease, which runs, has ended, or waits for its commit.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Final

from shoal.agent.groups.place import START, MessageSpan, SpanState, between, clipped, joined
from shoal.agent.groups.spans import SpanTable
from shoal.agent.receive import NOBODY, DuePlace, Range, entry_of

MAX_PARTS: Final = 1_024
"""Parts of one delivery whose leases end at different times. A further one is refused as too fragmented."""
_NEVER: Final = 2**62  # until the delivery is committed
_STALE_MAX: Final = 1_024  # entries of leases that are gone, beside as many as there are leases

Part = tuple[Range, int]
"""Messages, and when their lease ends."""


class Lease:
    """One delivery. `parts`: ascending and disjoint. `left`: messages still in flight by it. `queued_ms`:
    when it is looked at next."""

    __slots__ = ("consumer", "left", "parts", "queued_ms")

    def __init__(self, consumer: bytes) -> None:
        self.consumer = consumer
        self.parts: list[Part] = []
        self.left = 0
        self.queued_ms = _NEVER

    def until_ms(self, place: DuePlace) -> int:
        """When the lease of a message ends; 0 if it has none."""
        at = bisect_right(self.parts, place, key=lambda part: part[0].begin) - 1
        if at < 0 or place >= self.parts[at][0].end:
            return 0
        return self.parts[at][1]


class Leases:
    """By the numbers of their deliveries."""

    def __init__(self) -> None:
        self._leases: dict[int, Lease] = {}
        self._queue: list[tuple[int, int]] = []
        self._pending: deque[tuple[int, int]] = deque()
        self.complete = False
        """Whether every message in flight has its lease: not while a new leader resumes them."""

    def __len__(self) -> int:
        return len(self._leases)

    def add(self, delivery: int, consumer: bytes, ranges: Iterable[Range], lease_ms: int) -> None:
        """A delivery that is not committed yet."""
        lease = self._leases[delivery] = Lease(consumer)
        lease.parts = [(piece, _NEVER) for piece in ranges]
        lease.left = sum([count for (_, _, count), _ in lease.parts])
        self._pending.append((delivery, lease_ms))

    def committed(self, index: int, now_ms: int) -> None:
        """The log is committed up to `index`: leases of deliveries up to there begin."""
        pending = self._pending
        while pending and entry_of(pending[0][0]) <= index:
            delivery, lease_ms = pending.popleft()
            lease = self._leases.get(delivery)
            if lease is not None:
                until_ms = now_ms + lease_ms
                lease.parts = [
                    (piece, until_ms if at_ms == _NEVER else at_ms) for piece, at_ms in lease.parts
                ]
                self._enqueue(delivery, lease, until_ms)

    def resume(self, span: MessageSpan, consumer: bytes, now_ms: int) -> None:
        """A former leader delivered these messages: their lease begins anew, unless it runs here already."""
        lease = self._leases.get(span.delivery)
        if lease is None:
            lease = self._leases[span.delivery] = Lease(consumer)
        lease.consumer = lease.consumer if consumer == NOBODY else consumer
        until_ms = now_ms + span.lease_ms
        missing: list[Range] = []
        behind = span.begin
        for held, _ in _overlapping(lease.parts, span.begin, span.end):
            if behind < held.begin:
                missing.append(between(behind, held.begin))
            behind = max(behind, held.end)
        if behind < span.end:
            missing.append(between(behind, span.end))
        for piece in missing:
            insort(lease.parts, (piece, until_ms))
            lease.left += piece.count
        self._enqueue(span.delivery, lease, until_ms)

    def _enqueue(self, delivery: int, lease: Lease, until_ms: int) -> None:
        if until_ms < lease.queued_ms:
            lease.queued_ms = until_ms
            heappush(self._queue, (until_ms, delivery))
        if len(self._queue) > 2 * len(self._leases) + _STALE_MAX:
            self._queue = [(one.queued_ms, number) for number, one in self._leases.items()]
            heapify(self._queue)

    def ranges_of(self, delivery: int) -> Sequence[Range]:
        """All messages of a delivery, those that are no longer in flight too; none if none is in flight."""
        lease = self._leases.get(delivery)
        return () if lease is None else [piece for piece, _ in lease.parts]

    def split(self, span: MessageSpan, now_ms: int) -> Iterator[tuple[Range, bool]]:
        """The parts of a span that is in flight, and whether the lease of each has ended."""
        lease = self._leases.get(span.delivery)
        behind = span.begin
        for piece, until_ms in _overlapping(lease.parts if lease else [], span.begin, span.end):
            held = clipped(piece, span.begin, span.end)
            assert held is not None
            yield held, until_ms <= now_ms
            behind = held.end
        assert behind == span.end, f"{span} is in flight without a lease"

    def belong(self, deliveries: Iterable[int], consumer: bytes) -> None:
        """The messages of deliveries whose consumer was not known are this one's."""
        for delivery in deliveries:
            lease = self._leases.get(delivery)
            if lease is not None and lease.consumer == NOBODY:
                lease.consumer = consumer

    def holder(self, delivery: int) -> bytes:
        """The consumer that has the messages of a delivery; NOBODY if it has no name."""
        lease = self._leases.get(delivery)
        return NOBODY if lease is None else lease.consumer

    def extend(self, delivery: int, pieces: Sequence[Range], until_ms: int) -> bool:
        """Move the end of the lease of messages of one delivery. False: the lease has too many parts."""
        lease = self._leases[delivery]
        parts = lease.parts
        for piece in pieces:
            parts = _with_end(parts, piece, until_ms)
        if len(parts) > max(MAX_PARTS, len(lease.parts)):
            return False
        lease.parts = parts
        self._enqueue(delivery, lease, until_ms)
        return True

    def extend_all(self, delivery: int, until_ms: int) -> None:
        """The same for all messages of a delivery, however many parts it has."""
        lease = self._leases.get(delivery)
        if lease is not None:
            lease.parts = [(piece, until_ms) for piece in joined(piece for piece, _ in lease.parts)]
            self._enqueue(delivery, lease, until_ms)

    def has_begun(self, delivery: int) -> bool:
        """Whether no message of the delivery waits for its commit."""
        lease = self._leases.get(delivery)
        return lease is not None and all(until_ms != _NEVER for _, until_ms in lease.parts)

    def take(self, delivery: int, messages: int) -> None:
        """So many messages are not in flight by this delivery any more."""
        lease = self._leases.get(delivery)
        if lease is None:
            return
        lease.left -= messages
        if lease.left <= 0:
            del self._leases[delivery]

    def end_all(self, now_ms: int) -> None:
        """Every lease that runs ends now: the owner is gone."""
        for delivery, lease in self._leases.items():
            lease.parts = [(piece, min(until_ms, now_ms)) for piece, until_ms in lease.parts]
            self._enqueue(delivery, lease, now_ms)
        self._pending.clear()

    def ended(self, now_ms: int, enough: int) -> list[Range]:
        """The messages whose leases have ended since the last call, those no longer in flight too. After
        `enough` pieces the other deliveries wait for the next call."""
        queue = self._queue
        found: list[Range] = []
        while queue and queue[0][0] <= now_ms and len(found) < enough:
            at_ms, delivery = heappop(queue)
            lease = self._leases.get(delivery)
            if lease is None or lease.queued_ms != at_ms:
                continue
            ends = [until_ms for _, until_ms in lease.parts if until_ms > now_ms]
            lease.queued_ms = _NEVER
            if (next_ms := min(ends, default=_NEVER)) < _NEVER:
                self._enqueue(delivery, lease, next_ms)
            found += [piece for piece, until_ms in lease.parts if at_ms <= until_ms <= now_ms]
        return found

    def may_have_ended(self, now_ms: int) -> bool:
        """Whether `ended` may find something."""
        return bool(self._queue) and self._queue[0][0] <= now_ms

    def deadline_ms(self) -> int | None:
        """When the next lease may end."""
        queue = self._queue
        while queue and queue[0][1] not in self._leases:
            heappop(queue)
        return queue[0][0] if queue else None

    def recount(self, spans: SpanTable) -> None:
        """Messages left the table in another way than through this leader: forget what has no lease now."""
        for delivery, lease in list(self._leases.items()):
            lease.left = sum(
                span.count
                for piece, _ in lease.parts
                for span in spans.overlapping(piece)
                if span.state is SpanState.IN_FLIGHT and span.delivery == delivery
            )
            if not lease.left:
                del self._leases[delivery]

    def holds(self) -> Counter[bytes]:
        """How many messages each consumer has in flight, ended leases too."""
        held: Counter[bytes] = Counter()
        for lease in self._leases.values():
            held[lease.consumer] += lease.left
        return held

    def holders(self, now_ms: int) -> set[bytes]:
        """The consumers that have leases that run."""
        return {
            lease.consumer
            for lease in self._leases.values()
            if any(until_ms > now_ms for _, until_ms in lease.parts)
        }

    def any_runs(self, now_ms: int) -> bool:
        """Whether a lease runs, or waits for its commit."""
        return any(until_ms > now_ms for lease in self._leases.values() for _, until_ms in lease.parts)

    def runs_to(self, now_ms: int) -> DuePlace:
        """The place behind the last message whose lease runs."""
        ends = (
            piece.end
            for lease in self._leases.values()
            for piece, until_ms in lease.parts
            if until_ms > now_ms
        )
        return max(ends, default=START)

    def check_invariants(self, spans: SpanTable) -> None:
        """Every message in flight has a lease, and every lease that has not ended will be looked at."""
        left: Counter[int] = Counter()
        for span in spans.from_place(DuePlace(0, 0)):
            if span.state is SpanState.IN_FLIGHT:
                lease = self._leases.get(span.delivery)
                assert lease is not None, f"{span} has no lease"
                assert lease.until_ms(span.begin), f"{span} has no lease"
                left[span.delivery] += span.count
        pending = {delivery for delivery, _ in self._pending}
        for delivery, lease in self._leases.items():
            assert lease.left == left[delivery], (delivery, lease.left, left[delivery])
            assert lease.consumer or lease.consumer == NOBODY
            waits = any(until_ms == _NEVER for _, until_ms in lease.parts)
            assert not waits or delivery in pending, f"delivery {delivery} never begins"


def _overlapping(parts: list[Part], begin: DuePlace, end: DuePlace) -> Iterator[Part]:
    """The parts that hold something between: found in the time of a bisection."""
    at = bisect_right(parts, begin, key=_end_of)
    while at < len(parts) and parts[at][0].begin < end:
        yield parts[at]
        at += 1


def _end_of(part: Part) -> DuePlace:
    return part[0].end


def _with_end(parts: list[Part], piece: Range, until_ms: int) -> list[Part]:
    """The parts with another end for the messages of the piece that they hold; equal neighbours joined."""
    low = bisect_right(parts, piece.begin, key=_end_of)
    high = bisect_left(parts, piece.end, lo=low, key=lambda part: part[0].begin)
    cut: list[Part] = []
    for held, ends_ms in parts[low:high]:
        for begin, end, at_ms in (
            (held.begin, piece.begin, ends_ms),
            (piece.begin, piece.end, until_ms),
            (piece.end, held.end, ends_ms),
        ):
            one = clipped(held, begin, end)
            if one is not None:
                cut.append((one, at_ms))
    before, behind = parts[max(low - 1, 0) : low], parts[high : high + 1]
    changed: list[Part] = []
    for one, at_ms in (*before, *cut, *behind):
        if changed and changed[-1][1] == at_ms and changed[-1][0].end == one.begin:
            last = changed.pop()[0]
            one = Range(last.due_us, last.first, last.count + one.count)
        changed.append((one, at_ms))
    return [*parts[: low - len(before)], *changed, *parts[high + len(behind) :]]
