"""One follower as its leader sees it.

Law of this file: what was sent, what was acknowledged, what may be sent next. It never builds a message.

    PROBE --- a request with entries was accepted ---> REPLICATE
      ^ |                                                 |
      | +--- it needs entries that are trimmed ---> CATCH_UP
      +---- refused, or nothing acknowledged for retry_after_ms (from REPLICATE), or caught up (from CATCH_UP)

PROBE sends one request and waits. REPLICATE sends ahead of the answers, one request at first, and one more
for each answer, up to max_inflight_appends: a follower that has just lost something is not flooded. CATCH_UP
sends nothing but heartbeats: whole segments travel beside Raft (safety 27), and `RaftCore.caught_up` ends it.

Invariants: match_index < next_index; flight is ascending, all above match_index and below next_index, and no
longer than max_inflight_appends.
"""

from collections import deque
from enum import Enum

from shoal.format.batch import LogIndex
from shoal.replication.config import RaftConfig
from shoal.replication.messages import AppendReply


class ProgressState(Enum):
    """How entries are sent to this follower."""

    PROBE = "probe"
    REPLICATE = "replicate"
    CATCH_UP = "catch-up"


class Progress:
    """match_index: synced there for certain. next_index: the first entry not sent yet (REPLICATE) or to be
    tried."""

    def __init__(self, next_index: LogIndex, append_limit: int, now_ms: int) -> None:
        self.state = ProgressState.PROBE
        self.match_index = LogIndex(0)
        self.next_index = next_index
        self.commit_index = LogIndex(0)  # known as committed there, as the follower says
        self.told_index = LogIndex(0)  # the commit that requests on their way to it speak of
        self.flight: deque[LogIndex] = deque()  # last index of each request in flight, REPLICATE only
        self.flight_limit = 1  # requests in flight: grows with each answer, falls to 1 when one was lost
        self.probe_sent = False
        self.append_limit = (
            append_limit  # entries for the next request: learnt from how the driver shortened the last
        )
        self.heard_ms = now_ms
        self.moved_ms = now_ms  # when match_index last moved, or sending last began anew
        self.read_token = 0
        self.quiet = False  # it has answered that its election timer is off
        self.silent = False  # its agent fell silent, and it was not heard since

    def may_send(self, config: RaftConfig) -> bool:
        """Whether a request with entries may leave now."""
        match self.state:
            case ProgressState.PROBE:
                return not self.probe_sent
            case ProgressState.REPLICATE:
                in_flight_entries = self.next_index - 1 - self.match_index
                return (
                    len(self.flight) < self.flight_limit and in_flight_entries < config.max_inflight_entries
                )
            case ProgressState.CATCH_UP:
                return False

    def sent(self, last_index: LogIndex, now_ms: int) -> None:
        """A request ending at last_index leaves."""
        assert last_index >= self.next_index
        if self.state is ProgressState.PROBE:
            self.probe_sent = True
            self.moved_ms = now_ms
            return
        assert self.state is ProgressState.REPLICATE
        if not self.flight:
            self.moved_ms = now_ms
        self.flight.append(last_index)
        self.next_index = LogIndex(last_index + 1)

    def shortened(self, last_index: LogIndex, limit_max: int) -> None:
        """The driver cut the request that was to end later: send the rest anew, and ask for less at a
        time."""
        if (
            self.state is not ProgressState.REPLICATE
            or not self.match_index < last_index < self.next_index - 1
        ):
            return
        while self.flight and self.flight[-1] > last_index:
            self.flight.pop()
        previous = self.flight[-1] if self.flight else self.match_index
        if last_index > previous:
            self.flight.append(last_index)
            self.append_limit = min(limit_max, max(1, last_index - previous))
        self.next_index = LogIndex(last_index + 1)

    def accepted(self, reply: AppendReply, config: RaftConfig, now_ms: int) -> bool:
        """Take an acceptance in; true if match_index moved."""
        match_index = reply.match_index
        if match_index <= self.match_index:
            return False
        if self.state is ProgressState.PROBE and match_index >= self.next_index:
            self.state = ProgressState.REPLICATE
        self.match_index = match_index
        self.moved_ms = now_ms
        if match_index >= self.next_index:
            self.next_index = LogIndex(match_index + 1)
        flight = self.flight
        while flight and flight[0] <= match_index:
            flight.popleft()
            if self.flight_limit < config.max_inflight_appends:
                self.flight_limit += 1
            if self.append_limit < config.max_entries_per_append:
                self.append_limit = min(config.max_entries_per_append, 2 * self.append_limit)
        return True

    def refused(self, reply: AppendReply, next_index: LogIndex, now_ms: int) -> None:
        """Try from next_index, unless the refusal answers something long settled.

        When one of many requests in flight is lost, all that follow are refused. The first refusal starts
        anew; the others are its echoes, known by a hint from before what was accepted since. A follower that
        lost what it acknowledged (fsync switched off, or its last write damaged so that it looks torn)
        refuses even match_index: it is believed when nothing else is under way to it.
        """
        if self.state is ProgressState.CATCH_UP or reply.previous_index < self.match_index:
            return
        if self.state is ProgressState.PROBE and reply.previous_index != self.next_index - 1:
            return
        is_idle = not self.flight and reply.previous_index == self.match_index
        if (
            self.state is ProgressState.REPLICATE
            and reply.reject_hint_index < self.match_index
            and not is_idle
        ):
            return
        self.match_index = min(self.match_index, LogIndex(next_index - 1))
        self.probe(next_index, now_ms)

    def probe(self, next_index: LogIndex, now_ms: int) -> None:
        """Forget what was sent ahead and try from next_index, one request at a time."""
        self.state = ProgressState.PROBE
        self.next_index = max(next_index, LogIndex(self.match_index + 1))
        self.probe_sent = False
        self.flight.clear()
        self.flight_limit = 1
        self.moved_ms = now_ms

    def retry_if_stuck(self, config: RaftConfig, now_ms: int) -> None:
        """Send again what has been out for too long: a message was lost."""
        waiting = self.probe_sent if self.state is ProgressState.PROBE else bool(self.flight)
        if waiting and now_ms - self.moved_ms >= config.retry_after_ms:
            self.probe(LogIndex(self.match_index + 1) if self.flight else self.next_index, now_ms)

    def need_segments(self) -> None:
        """The entries it needs are trimmed here."""
        self.state = ProgressState.CATCH_UP
        self.flight.clear()
        self.probe_sent = False

    def check_invariants(self, config: RaftConfig, last_index: LogIndex) -> None:
        """Assert what the head of this file states."""
        assert 0 <= self.match_index < self.next_index <= last_index + 1
        assert len(self.flight) <= config.max_inflight_appends
        assert 1 <= self.flight_limit <= config.max_inflight_appends
        assert not self.flight or self.state is ProgressState.REPLICATE
        assert all(self.match_index < index < self.next_index for index in self.flight)
        assert list(self.flight) == sorted(set(self.flight))
        assert 1 <= self.append_limit <= config.max_entries_per_append

    def __repr__(self) -> str:
        return f"{self.state.value} match={self.match_index} next={self.next_index} flight={len(self.flight)}"
