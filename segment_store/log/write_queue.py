"""What waits for a log's writer, in the order it was asked for: values, no I/O."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from shoal.format.batch import Frame, LogIndex, Offset, Term
from shoal.segment_store.disk.disk import MAX_BUFFERS_PER_WRITE
from shoal.segment_store.errors import StoreError
from shoal.segment_store.log.segment import Segment

Answer = Callable[[StoreError | None], None]


class Append:
    """Contiguous frames for one segment, at `position`. `answer` is called once they are written and synced,
    with the error if they will not be; None when a later part of the same call carries it. `generation` tells
    whether a truncation came after it."""

    __slots__ = ("answer", "frames", "generation", "length", "position", "segment")

    def __init__(
        self,
        segment: Segment,
        frames: Sequence[Frame],
        position: int,
        generation: int,
        answer: Answer | None,
    ) -> None:
        self.segment = segment
        self.frames = frames
        self.position = position
        self.length = len(frames[0].data) if len(frames) == 1 else sum([len(frame.data) for frame in frames])
        self.generation = generation
        self.answer = answer

    @property
    def last_index(self) -> LogIndex:
        return self.frames[-1].stamp.index

    @property
    def last_term(self) -> Term:
        return self.frames[-1].stamp.term


class Roll:
    """Seal what is there and make `segment` durable, before any frame of it is written."""

    __slots__ = ("previous", "segment")

    def __init__(self, previous: Segment | None, segment: Segment) -> None:
        self.previous = previous
        self.segment = segment


class Truncate:
    """Remove `from_index` and everything after it: whole segments, and zeros over the rest of `kept`.

    Computed from the plan when the truncation is asked for: the frames that go start at `cut_position` of
    `kept`, behind an entry of `last_term` that ends at `end_offset`.
    """

    __slots__ = ("cut_position", "done", "end_offset", "from_index", "kept", "last_term", "removed")

    def __init__(
        self,
        from_index: LogIndex,
        kept: Segment | None,
        removed: list[Segment],
        last_term: Term,
        end_offset: Offset,
        done: asyncio.Future[None],
    ) -> None:
        self.from_index = from_index
        self.kept = kept
        self.removed = removed
        self.last_term = last_term
        self.end_offset = end_offset
        self.done = done
        self.cut_position = kept.position_of(from_index) if kept is not None else 0


class Trim:
    """Remove whole sealed segments, the oldest first; `kept` are in use afterwards."""

    __slots__ = ("done", "kept", "removed")

    def __init__(self, removed: list[Segment], done: asyncio.Future[None], kept: int) -> None:
        self.removed = removed
        self.kept = kept
        self.done = done


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
