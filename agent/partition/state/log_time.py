"""The time of a log, which a wall clock's jump does not move: pure (safety 17).

Three answers, each from plain numbers. `SteadyClock`: which time this agent believes; a wall clock that jumps
is not followed until it has stayed where it jumped to, or peers have the same. `LogTime`: which append time
comes next in one log; where the log is ahead of every clock it goes on at the speed of a monotonic clock, so
that differences of append times stay true. `SegmentAges`: how old a segment is. This agent has watched its
own appends of this run by its monotonic clock, which nobody sets. Only entries of other agents or earlier
runs are judged by append times.

Times: `_us` microseconds since the epoch, `now_ms` milliseconds of the monotonic clock. An offset is what a
wall clock is ahead of the monotonic one, in microseconds.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from shoal.format.batch import LogIndex

MAX_CLOCK_JUMP_US = 60_000_000
"""Safety 17: over a minute, and a wall clock is doubted."""
SETTLE_MS = 600_000
"""So long a wall clock has to stay where it jumped to, or was when the agent started, before it is believed
on its own word alone: time servers put it right sooner."""


class PeerTime(NamedTuple):
    """Offsets of a peer's times from this agent's monotonic clock: what it believes, what its clock says."""

    believed_us: int
    wall_us: int


class SteadyClock:
    """The wall clock's time, unless it has jumped: then where it was, moved on by the monotonic clock."""

    def __init__(self, wall_us: int, now_ms: int, settle_ms: int = SETTLE_MS) -> None:
        self.offset_us = wall_us - now_ms * 1000
        """Of the time that is believed."""
        self._settle_ms = settle_ms
        self._since_ms = now_ms
        self._elsewhere: tuple[int, int] | None = None
        """Where the wall clock has been instead, and since when."""
        self._is_vouched = False

    def now_us(self, wall_us: int, now_ms: int) -> int:
        """The time that is believed. To be asked more often than the wall clock takes to settle."""
        offset_us = wall_us - now_ms * 1000
        if -MAX_CLOCK_JUMP_US <= offset_us - self.offset_us <= MAX_CLOCK_JUMP_US:
            self._elsewhere = None
            return wall_us
        before = self._elsewhere
        if before is None or abs(offset_us - before[0]) > MAX_CLOCK_JUMP_US:
            self._elsewhere = offset_us, now_ms
        elif now_ms - before[1] >= self._settle_ms:
            self.offset_us, self._since_ms, self._elsewhere = offset_us, before[1], None
        return now_ms * 1000 + self.offset_us

    def agrees(self, wall_us: int, now_ms: int) -> bool:
        """Whether the wall clock itself has the time that is believed."""
        return abs(wall_us - now_ms * 1000 - self.offset_us) <= MAX_CLOCK_JUMP_US

    def is_settled(self, now_ms: int) -> bool:
        """Whether more speaks for the time that is believed than that the clock was so at the start."""
        return self._is_vouched or now_ms - self._since_ms >= self._settle_ms

    def heard(self, peers: Sequence[PeerTime], wall_us: int, now_ms: int) -> None:
        """Peers' believed times and wall clocks, as told lately. A majority of them and of this agent
        decides; without one nothing changes. Where all clocks have jumped alike each waits until its own has
        settled, and then stays with it."""
        self._is_vouched = False
        if not peers:
            return
        believed = [peer.believed_us for peer in peers]
        walls = [peer.wall_us for peer in peers]
        own_us = wall_us - now_ms * 1000
        if self._has_majority(self.offset_us, believed):
            self._is_vouched = True
            if not self._has_majority(own_us, walls):
                self._elsewhere = None  # however long the wall clock has been there: others know better
            return
        has_settled = now_ms - self._since_ms >= self._settle_ms
        if has_settled and self.agrees(wall_us, now_ms) and self._has_majority(self.offset_us, walls):
            return
        theirs = [peer_us for peer_us in believed if 2 * _near(peer_us, believed) > len(believed) + 1]
        if self._has_majority(own_us, believed):
            theirs = [own_us]  # it was put right
        if theirs:
            self.offset_us, self._elsewhere, self._is_vouched = theirs[0], None, True

    def _has_majority(self, offset_us: int, others_us: Sequence[int]) -> bool:
        return 2 * (_near(offset_us, others_us) + 1) > len(others_us) + 1


def _near(offset_us: int, others_us: Sequence[int]) -> int:
    return sum(abs(other_us - offset_us) <= MAX_CLOCK_JUMP_US for other_us in others_us)


class LogTime:
    """The append times of one log's next entries: never decreasing, and true to the second in how far they
    are apart, though the log may be years ahead."""

    def __init__(self, previous_us: int, now_ms: int) -> None:
        self._known_us, self._known_ms = previous_us, now_ms

    def stamp(self, previous_us: int, now_us: int, now_ms: int) -> int:
        """Of the entry that comes after one of `previous_us`."""
        if previous_us <= now_us:
            return now_us
        if previous_us - now_us <= MAX_CLOCK_JUMP_US:
            return previous_us  # the clock will be there soon
        return self.passed(previous_us, now_ms)

    def passed(self, previous_us: int, now_ms: int) -> int:
        """The time by the log's own account: its last append time, and the time since."""
        here_us = self._known_us + (now_ms - self._known_ms) * 1000
        if previous_us > here_us:
            self._known_us, self._known_ms = previous_us, now_ms
            return previous_us
        return here_us

    def cut(self, previous_us: int, now_ms: int) -> None:
        """The log ends at an earlier entry now, of `previous_us`."""
        if previous_us < self._known_us:
            self._known_us, self._known_ms = previous_us, now_ms


class Span(Protocol):
    """One segment. Times in microseconds since the epoch, of the first and last entry; 0 for an empty one."""

    @property
    def first_index(self) -> LogIndex: ...
    @property
    def first_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def data_bytes(self) -> int: ...
    @property
    def first_append_time_us(self) -> int: ...
    @property
    def last_append_time_us(self) -> int: ...


class _Watched(NamedTuple):
    state: tuple[int, int]
    first_ms: int | None  # when its first record was appended here, by this agent as leader
    last_ms: int | None  # the same of its last entry


class SegmentAges:
    """How old the segments of one log are, in microseconds; None where nobody can tell at present."""

    def __init__(self) -> None:
        self._watched: dict[LogIndex, _Watched] = {}

    def note(self, segments: Sequence[Span], now_ms: int, *, by_this_leader: bool) -> None:
        """Entries since the last note were appended by this agent, as leader; or they were not."""
        watched = self._watched
        appended_ms = now_ms if by_this_leader else None
        for segment in reversed(segments):
            known = watched.get(segment.first_index)
            state = segment.end_offset, segment.size_bytes
            if known is not None and known.state == state:
                break  # nor have those before it grown
            first_ms = appended_ms if segment.end_offset > segment.first_offset else None
            if known is not None and known.state[0] > segment.first_offset:
                first_ms = known.first_ms
            watched[segment.first_index] = _Watched(state, first_ms, appended_ms)
        if len(watched) > len(segments):
            there = {segment.first_index for segment in segments}
            self._watched = {first: item for first, item in watched.items() if first in there}

    def of_last(self, segment: Span, log_now_us: int, now_us: int | None, now_ms: int) -> int | None:
        """Since its last entry. `log_now_us`: LogTime.passed; `now_us`: None while no clock is believed."""
        watched = self._watched.get(segment.first_index)
        watched_ms = None if watched is None else watched.last_ms
        return _age(watched_ms, segment.last_append_time_us, log_now_us, now_us, now_ms)

    def of_first(self, segment: Span, log_now_us: int, now_us: int | None, now_ms: int) -> int | None:
        """The same since its first entry; of a segment that this agent has filled, its first record."""
        watched = self._watched.get(segment.first_index)
        watched_ms = None if watched is None else watched.first_ms
        return _age(watched_ms, segment.first_append_time_us, log_now_us, now_us, now_ms)


def _age(
    watched_ms: int | None, time_us: int, log_now_us: int, now_us: int | None, now_ms: int
) -> int | None:
    if watched_ms is not None:
        return (now_ms - watched_ms) * 1000
    if now_us is None or time_us <= 0:
        return None
    if time_us <= now_us:
        return now_us - time_us
    return max(0, log_now_us - time_us)  # the log is ahead of every clock: only its own time says something
