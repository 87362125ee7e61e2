"""The newest frames of a log, in memory: followers and consumers at the end never read the disk. No I/O
here."""

from shoal.format.batch import Frame, LogIndex


class TailCache:
    """Frames by index, contiguous up to the newest. Bounded by bytes, except for frames that are not on the
    disk yet. Those stay, since they can be read from nowhere else; the log bounds them."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._frames: dict[LogIndex, Frame] = {}
        # Of the oldest frame, if there is one. Not next(iter(...)): a dict whose oldest keys go one by one
        # looks past all of them, each time, until it grows.
        self._first_index = LogIndex(1)
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._frames)

    @property
    def first_index(self) -> LogIndex | None:
        """The oldest frame held; everything newer is held too. None: nothing is."""
        return self._first_index if self._frames else None

    def run(self, first: LogIndex, last: LogIndex, max_bytes: int) -> list[Frame]:
        """Frames from `first` on, at least one if it is held, up to `last` and to `max_bytes` in all."""
        held, frames = self._frames, list[Frame]()
        for number in range(first, last + 1):
            frame = held.get(LogIndex(number))
            if frame is None:
                break
            max_bytes -= len(frame.data)
            if max_bytes < 0 and frames:
                break
            frames.append(frame)
        return frames

    def put(self, frame: Frame) -> None:
        if not self._frames:
            self._first_index = frame.stamp.index
        assert frame.stamp.index == self._first_index + len(self._frames)
        self._frames[frame.stamp.index] = frame
        self.size_bytes += len(frame.data)

    def shrink(self, written_index: LogIndex) -> None:
        """Drop the oldest written frames until the bound holds."""
        while self.size_bytes > self._limit_bytes and self._frames:
            oldest = self._first_index
            if oldest > written_index:
                return
            self.size_bytes -= len(self._frames.pop(oldest).data)
            self._first_index = LogIndex(oldest + 1)

    def cut(self, from_index: LogIndex) -> None:
        """Forget `from_index` and everything after it."""
        while self._frames:
            newest = LogIndex(self._first_index + len(self._frames) - 1)
            if newest < from_index:
                return
            self.size_bytes -= len(self._frames.pop(newest).data)
