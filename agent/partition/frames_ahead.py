"""Frames of one replica that its log has not been given yet, and through it all its newest frames in memory.

Law of this file: a contiguous run of frames that ends at the fold's tail. Entries before it are the log's,
which keeps the newest of them in memory. While the log waits for a truncation it may hold an abandoned branch
under the numbers from here on, and is not asked for those. The core's bounds on uncommitted entries bound the
run.
"""

from shoal.format.batch import Frame, LogIndex
from shoal.segment_store.log.log import PartitionLog


class FramesAhead:
    """Frames by index."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._frames: dict[LogIndex, Frame] = {}
        self._first = LogIndex(log.last_index + 1)

    def __len__(self) -> int:
        return len(self._frames)

    def append(self, frame: Frame) -> None:
        """The next frame."""
        if not self._frames:
            self._first = frame.stamp.index
        self._frames[frame.stamp.index] = frame

    def get(self, index: LogIndex) -> Frame | None:
        """The frame of this index, if the log has not been given it."""
        return self._frames.get(index)

    def run(self, first: LogIndex, last: LogIndex, max_bytes: int) -> list[Frame]:
        """Frames in memory from `first` on, at least one if it is, up to `last` and to `max_bytes` in all."""
        ahead, frames = self._frames, list[Frame]()
        index = first
        if not ahead or first < self._first:
            end = LogIndex(min(last, self._first - 1)) if ahead else last
            frames = self._log.held_run(first, end, max_bytes)
            index = LogIndex(first + len(frames))
            if not frames or index <= end:
                return frames
        size = sum(len(frame.data) for frame in frames)
        while index <= last and (frame := ahead.get(index)) is not None:
            size += len(frame.data)
            if frames and size > max_bytes:
                break
            frames.append(frame)
            index = LogIndex(index + 1)
        return frames

    def truncate(self, from_index: LogIndex) -> None:
        """The fold lost everything from here on."""
        index = max(from_index, self._first)
        while self._frames.pop(index, None) is not None:
            index = LogIndex(index + 1)

    def given(self) -> None:
        """The log has been given everything up to its last entry."""
        frames, last = self._frames, self._log.last_index
        while frames and self._first <= last:
            del frames[self._first]
            self._first = LogIndex(self._first + 1)
