"""The newest frames of one replica's log, in memory: for followers that keep up and for frames not written
yet.

Law of this file: a contiguous run of frames that ends at the log's tail. Frames above the commit index are
never dropped (the core's bounds bound them); older ones go when the cache is over its size. Older frames are
read from the log.
"""

from shoal.format.batch import Frame, LogIndex

MAX_SETTLED_BYTES = 2**20
"""Committed frames kept for followers a few requests behind: one request of the largest size. The log keeps
more."""


class FrameCache:
    """Frames by index."""

    def __init__(self, max_settled_bytes: int = MAX_SETTLED_BYTES) -> None:
        self._max_settled_bytes = max_settled_bytes
        self._frames: dict[LogIndex, Frame] = {}
        self._first = LogIndex(1)
        self._settled_to = LogIndex(0)
        """Frames behind it are not settled; what lies before the first frame here may not be, either."""
        self._last_settled = LogIndex(0)
        """The newest frame that was settled here, which no truncation reaches."""
        self._settled_bytes = 0

    def __len__(self) -> int:
        return len(self._frames)

    def append(self, frame: Frame) -> None:
        """The next frame."""
        index = frame.stamp.index
        if not self._frames:
            self._first = index
            self._settled_to = LogIndex(index - 1)
        self._frames[index] = frame

    def get(self, index: LogIndex) -> Frame | None:
        """The frame of this index, if it is here."""
        return self._frames.get(index)

    def run(self, first: LogIndex, last: LogIndex, max_bytes: int) -> list[Frame]:
        """Frames from `first` on, at least one if it is here, up to `last` and to `max_bytes` in all."""
        frames: list[Frame] = []
        size = 0
        for index in range(first, last + 1):
            frame = self._frames.get(LogIndex(index))
            if frame is None:
                break
            size += len(frame.data)
            if frames and size > max_bytes:
                break
            frames.append(frame)
        return frames

    def truncate(self, from_index: LogIndex) -> None:
        """The log lost everything from here on; never a settled frame. A log that was opened with entries
        that nobody had committed may lose some that never were here."""
        assert from_index > self._last_settled
        index = max(from_index, self._first)
        while self._frames.pop(index, None) is not None:
            index = LogIndex(index + 1)

    def settle(self, index: LogIndex) -> None:
        """Everything up to `index` is committed and written: it may be dropped, the oldest first."""
        frames, settled_to = self._frames, self._settled_to
        while settled_to < index:
            frame = frames.get(LogIndex(settled_to + 1))
            if frame is None:
                break
            self._settled_to = self._last_settled = settled_to = frame.stamp.index
            self._settled_bytes += len(frame.data)
        while self._settled_bytes > self._max_settled_bytes and self._first <= self._settled_to:
            self._settled_bytes -= len(frames.pop(self._first).data)
            self._first = LogIndex(self._first + 1)
