"""The bounds of an answer: how many of the messages that may be given are given.

Law of this file: pure. The fold makes an operation void that passes its bounds; so a leader gives less before
that. New messages leave room for those that come again, and for those that are acked out of order. So a full
group is never stuck.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from shoal.agent.groups.leader.acts import BYTES_KEPT_FREE, SPANS_KEPT_FREE
from shoal.agent.groups.leader.candidates import Eligible
from shoal.agent.groups.partition_group import MAX_SPANS, MAX_UNDONE_MESSAGES, PartitionGroup
from shoal.agent.groups.spans import SPAN_BYTES
from shoal.agent.receive import DeliveredRange, DuePlace, Range

SPANS_FOR_NEW: Final = 2 * SPANS_KEPT_FREE
BYTES_FOR_NEW: Final = 2 * BYTES_KEPT_FREE
REQUEST_BYTES: Final = 48 + 4  # that the memory of a request takes beside its ranges
CANDIDATE_BYTES: Final = 20 + 2 * SPAN_BYTES  # in the memory of the request, and cut out of a span
FULL: Final = "window-full"


def within_bounds(
    group: PartitionGroup, candidates: list[Eligible], fits: Callable[[int], bool]
) -> tuple[list[Eligible], str]:
    """The candidates without those that the group has no room for, and why: empty, or `window-full`."""
    room = MAX_SPANS - group.spans_taken
    messages = MAX_UNDONE_MESSAGES - group.spans.undone
    size_bytes = REQUEST_BYTES + CANDIDATE_BYTES * len(candidates)
    has_bytes_for_new = fits(size_bytes + BYTES_FOR_NEW)
    total = sum([candidate.range.count for candidate in candidates])
    if room >= 2 * len(candidates) + SPANS_FOR_NEW and messages >= total and has_bytes_for_new:
        return candidates, ""
    if not fits(size_bytes):
        counts = range(1, len(candidates) + 1)
        most = bisect_left(counts, True, key=lambda count: not fits(REQUEST_BYTES + CANDIDATE_BYTES * count))
        if not most:
            return [], FULL
        candidates = candidates[:most]
    kept: list[Eligible] = []
    room_for_new = room - SPANS_FOR_NEW if has_bytes_for_new else 0
    for candidate in candidates:
        piece = candidate.range
        if group.spans.at(piece.begin) is None:
            count = min(piece.count, messages)
            if room_for_new <= 0 or count <= 0:
                return kept, FULL
            messages -= count
            room_for_new -= 1
            kept.append(candidate.first(count))
            continue
        first, last = (
            group.spans.at(piece.begin),
            group.spans.at(DuePlace(piece.due_us, piece.first + piece.count - 1)),
        )
        assert first is not None
        assert last is not None
        cuts = int(first.begin < piece.begin) + int(last.end > piece.end)
        if cuts > room:
            return kept, FULL
        room -= cuts
        kept.append(candidate)
    return kept, ""


def first_of(candidates: Sequence[Eligible], limit: int) -> list[Eligible]:
    """The first messages of candidates."""
    kept: list[Eligible] = []
    for candidate in candidates:
        if not limit:
            break
        kept.append(candidate.first(limit))
        limit -= kept[-1].range.count
    return kept


def with_attempts(pieces: Iterable[tuple[Range, int]]) -> tuple[DeliveredRange, ...]:
    """Ascending pieces as an answer tells them: neighbours of one attempt are one range."""
    told: list[DeliveredRange] = []
    for piece, attempt in pieces:
        last = told[-1] if told else None
        if last is not None and last.attempt == attempt and last.range.end == piece.begin:
            told[-1] = DeliveredRange(last.range._replace(count=last.range.count + piece.count), attempt)
        else:
            told.append(DeliveredRange(piece, attempt))
    return tuple(told)
