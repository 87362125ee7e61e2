"""The work that waits for a log's writer, in order: values, no I/O."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shoal.format.batch import Frame, LogIndex, Offset, Term
from shoal.segment_store.disk.disk import MAX_BUFFERS_PER_WRITE
from shoal.segment_store.errors import StoreError
from shoal.segment_store.log.segment import Segment

Answer = Callable[[StoreError | None], None]


@dataclass(slots=True, eq=False)
class Append:
    """Contiguous frames of `length` bytes for one segment, at `position`. `answer` is called once they are
    written and synced, with the error if they will not be; None when a later part of the same call carries
    it. `generation` tells whether a truncation came after it."""

    segment: Segment
    frames: Sequence[Frame]
    position: int
    length: int
    generation: int
    answer: Answer | None


@dataclass(slots=True, eq=False)
class Roll:
    """Seal the previous segment and make `segment` durable, before any frame of it is written."""

    previous: Segment | None
    segment: Segment
    answer: None = None


@dataclass(slots=True, eq=False)
class Truncate:
    """Remove `from_index` and everything after it: whole segments, and zeros over the rest of `kept`.

    Computed from the plan when the truncation is asked for: the frames that go start at `cut_position` of
    `kept`, behind an entry of `last_term` that ends at `end_offset`.
    """

    from_index: LogIndex
    kept: Segment | None
    removed: list[Segment]
    last_term: Term
    end_offset: Offset
    cut_position: int
    answer: Answer


@dataclass(slots=True, eq=False)
class Trim:
    """Remove whole sealed segments, the oldest first; `kept` are in use afterwards."""

    removed: list[Segment]
    kept: int
    answer: Answer


Work = Append | Roll | Truncate | Trim


def take_group(queue: deque[Work], max_bytes: int) -> list[Append]:
    """The appends at the head of the queue that one write takes: same segment, bounded bytes and buffers (one
    buffer is kept for the trailer, one for zeros)."""
    if len(queue) == 1 and type(queue[0]) is Append:
        return [queue.popleft()]  # type: ignore[list-item]  # it was just looked at
    group: list[Append] = []
    size = buffers = 0
    while queue:
        work = queue[0]
        if not isinstance(work, Append) or (group and work.segment is not group[0].segment):
            break
        size += work.length
        buffers += len(work.frames)
        if group and (size > max_bytes or buffers > MAX_BUFFERS_PER_WRITE - 2):
            break
        group.append(work)
        queue.popleft()
    return group
