"""Frames of one replica that its log has not been given yet: staged ones, and those that run ahead of it.

Law of this file: a frame from a leader is staged until the ready after its request says whether it is
appended. Frames ahead are a contiguous run that ends at the fold's tail. Entries before it are the log's,
which keeps the newest of them in memory. While the log waits for a truncation it may hold an abandoned branch
under the numbers from here on, and is not asked for those. The core's bounds on uncommitted entries bound the
run.
"""

from shoal.agent.durable.ids import GroupId
from shoal.agent.partition.state.checkpoint import FoldError, decode_configuration
from shoal.agent.partition.state.log_state import check_chain
from shoal.agent.peers.frames import PeerWireError
from shoal.format.batch import (
    BatchError,
    Frame,
    Kind,
    LogIdentity,
    LogIndex,
    Term,
    control_payload,
    parse_frame,
)
from shoal.replication.interfaces import Configuration
from shoal.replication.messages import AppendRequest
from shoal.segment_store.log.log import PartitionLog


class FramesAhead:
    """Frames by index."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self.frames: dict[LogIndex, Frame] = {}
        """Those that the log has not been given."""
        self._first = LogIndex(log.last_index + 1)

    def append(self, frame: Frame) -> None:
        if not self.frames:
            self._first = frame.stamp.index
        self.frames[frame.stamp.index] = frame

    def run(self, first: LogIndex, last: LogIndex, max_bytes: int) -> list[Frame]:
        """Frames in memory from `first` on, at least one if it is, up to `last` and to `max_bytes` in all."""
        ahead, frames = self.frames, list[Frame]()
        index = first
        if not ahead or first < self._first:
            end = LogIndex(min(last, self._first - 1)) if ahead else last
            frames = self._log.held_run(first, end, max_bytes)
            index = LogIndex(first + len(frames))
            if not frames or index <= end:
                return frames
        size = sum([len(frame.data) for frame in frames])
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
        while self.frames.pop(index, None) is not None:
            index = LogIndex(index + 1)

    def given(self) -> None:
        """The log has been given everything up to its last entry."""
        frames, last = self.frames, self._log.last_index
        while frames and self._first <= last:
            del frames[self._first]
            self._first = LogIndex(self._first + 1)


class StagedFrames:
    """Frames by index and term. The replica bounds `size_bytes`."""

    def __init__(self, group: GroupId, identity: LogIdentity) -> None:
        self._group = group
        self._identity = identity
        self.frames: dict[tuple[LogIndex, Term], Frame] = {}
        self.size_bytes = 0

    def take(self, message: AppendRequest, payload: bytes, position: int) -> tuple[Configuration, ...]:
        """Stage the request's frames, which begin at `position`; the configurations among them. Raises
        PeerWireError when frames and request differ."""
        configurations: tuple[Configuration, ...] = ()
        for frame in self._parse(message, payload, position):
            stamp = frame.stamp
            self.frames[stamp.index, stamp.term] = frame
            if stamp.kind is Kind.CONFIGURATION:
                configurations += (decode_configuration(control_payload(frame.data)),)
        self.size_bytes += len(payload) - position
        return configurations

    def _parse(self, message: AppendRequest, payload: bytes, position: int) -> list[Frame]:
        frames: list[Frame] = []
        try:
            for run in message.runs:
                for _ in range(run.first, run.last + 1):
                    frame = parse_frame(payload, position, self._identity)
                    if frame.stamp.term != run.term:
                        raise PeerWireError(f"a frame of term {frame.stamp.term} in {run}")
                    position += len(frame.data)
                    frames.append(frame)
            check_chain(frames, LogIndex(message.previous_index + 1), message.previous_term)
        except (BatchError, FoldError) as error:
            raise PeerWireError(f"frames of {self._group}: {error}") from error
        if position != len(payload):
            raise PeerWireError(f"frames of {self._group}: {len(payload) - position} bytes too many")
        return frames

    def clear(self) -> None:
        """The core has decided about all of them."""
        self.frames.clear()
        self.size_bytes = 0
