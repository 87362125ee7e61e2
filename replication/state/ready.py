"""The next work of the driver, and the outbox that collects it.

Law of this file: the order of durable and visible actions is decided here and nowhere else.
"""

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from shoal.format.batch import LogIndex
from shoal.replication.interfaces import HardState, Run
from shoal.replication.messages import AppendReply, Message, PreVote, PreVoteReply
from shoal.replication.state.log_view import LogView


class Ready(NamedTuple):
    """The work of the driver, in this order:

    1. `messages` may leave at any time, even before (2).
    2. Make durable: `hard_state`; then remove the log from `truncate_from` on; then write the runs of
       `append` and sync. Frames are the driver's own proposals or came beside an AppendRequest it stepped;
       they are keyed by (index, term), since two terms may have written one index. `noop_index` lies inside
       `append`: there the driver stamps a NOOP of that run's term itself.
    3. When (2) of this ready and of every earlier one is on disk: call `core.advance(ready)` and send
       `messages_after_sync`: votes and acknowledgements, each a promise about (2) of this ready or an earlier
       one.
    4. Apply entries up to `commit_index`, as far as they are written here.
    5. Answer `read_states`: (token, index): apply up to index, then read. After `role_changed` away from
       LEADER, no token asked before is answered any more.

    Several readies may be out at once; their disk work is carried out in order, and advance() is called in
    order. A ready without disk work counts as durable when those before it are.
    """

    hard_state: HardState | None
    truncate_from: LogIndex | None
    append: tuple[Run, ...]
    noop_index: LogIndex | None
    messages: tuple[Message, ...]
    messages_after_sync: tuple[Message, ...]
    commit_index: LogIndex | None
    role_changed: bool
    read_states: tuple[tuple[int, LogIndex], ...]

    @property
    def must_sync(self) -> bool:
        """Whether the disk is involved at all."""
        return bool(self.append) or self.hard_state is not None or self.truncate_from is not None


@dataclass(slots=True, eq=False)
class _InFlight:
    """A ready handed out and not yet advanced. stable_to shrinks when a later step truncates what it appends:
    the bytes it reports as synced are then no longer the log's."""

    ready: Ready
    stable_to: LogIndex
    since_ms: int


class Outbox:
    """Collects until `take`, then remembers what is out until `advance`.

    synced is the hard state known to be on disk. handed_out is the last index that the driver was told to
    write.
    """

    def __init__(self, synced: HardState, last_index: LogIndex) -> None:
        self.synced = synced
        self.handed_out = last_index
        self._in_flight: deque[_InFlight] = deque()
        self.wants_hard_state = False
        """Whether the next ready carries it."""
        self._truncate_from: LogIndex | None = None
        self._noop_index: LogIndex | None = None
        self._messages: list[Message] = []
        self._after_sync: list[Message] = []
        self.commit_index: LogIndex | None = None
        """Where the commit index has moved to, until the next ready says so."""
        self._role_changed = False
        self._read_states: list[tuple[int, LogIndex]] = []

    def send(self, message: Message) -> None:
        """May leave now, unless it speaks of a term that the disk does not know yet (safety 3)."""
        if message.term > self.synced.term and not self._is_question(message):
            self._after_sync.append(message)
        else:
            self._messages.append(message)

    @staticmethod
    def _is_question(message: Message) -> bool:
        # A pre-vote and its consent speak of a term that no replica has entered: they promise nothing (thesis
        # 9.6).
        return isinstance(message, PreVote) or (isinstance(message, PreVoteReply) and message.granted)

    def send_after_sync(self, message: Message) -> None:
        """A promise about what this ready, or one before it, writes."""
        self._after_sync.append(message)

    def hard_state_changed(self) -> None:
        """Term or vote moved."""
        self.wants_hard_state = True

    def truncated(self, from_index: LogIndex) -> None:
        """The log lost its entries from from_index on."""
        for flight in self._in_flight:
            flight.stable_to = min(flight.stable_to, LogIndex(from_index - 1))
        # An acknowledgement of truncated entries would do no harm, its term being over; it is better not
        # sent.
        self._after_sync = [
            item
            for item in self._after_sync
            if not (isinstance(item, AppendReply) and item.accepted and item.match_index >= from_index)
        ]
        if self._noop_index is not None and self._noop_index >= from_index:
            self._noop_index = None
        if from_index <= self.handed_out:
            self._truncate_from = from_index
            self.handed_out = LogIndex(from_index - 1)

    def noop(self, index: LogIndex) -> None:
        """The core opened its term at index."""
        assert (
            self._noop_index is None
        )  # leading again takes an election, whose vote was synced by a ready between
        self._noop_index = index

    def role_changed(self) -> None:
        """Role, or the known leader, is another."""
        self._role_changed = True

    def read(self, token: int, index: LogIndex) -> None:
        """A read index is confirmed."""
        self._read_states.append((token, index))

    def has_work(self, log: LogView) -> bool:
        """Whether `take` would hand out anything."""
        return bool(
            self._messages
            or self._after_sync
            or self.wants_hard_state
            or self.handed_out < log.last_index
            or self._truncate_from is not None
            or self.commit_index is not None
            or self._role_changed
            or self._read_states
        )

    def take(self, hard_state: HardState | None, log: LogView, now_ms: int) -> Ready | None:
        """Hand everything out, and begin anew; None when there is nothing."""
        if not self.has_work(log):
            return None
        assert (hard_state is not None) == self.wants_hard_state
        ready = Ready(
            hard_state,
            self._truncate_from,
            log.runs(self.handed_out + 1, log.last_index) if self.handed_out < log.last_index else (),
            self._noop_index,
            tuple(self._messages),
            tuple(self._after_sync),
            self.commit_index,
            self._role_changed,
            tuple(self._read_states),
        )
        self._in_flight.append(_InFlight(ready, log.last_index, now_ms))
        self.handed_out = log.last_index
        self.wants_hard_state = self._role_changed = False
        self._truncate_from = self._noop_index = self.commit_index = None
        self._messages, self._after_sync, self._read_states = [], [], []
        return ready

    def advance(self, ready: Ready, log: LogView) -> None:
        """The oldest ready is on disk."""
        flight = self._in_flight.popleft()
        assert flight.ready is ready, "advance() is called once for each ready, in order"
        if ready.hard_state is not None:
            self.synced = ready.hard_state
        log.stable_index = max(log.stable_index, flight.stable_to)

    def sync_age_ms(self, now_ms: int) -> int:
        """How long the oldest disk work has been out; 0 if there is none."""
        waiting = next((flight for flight in self._in_flight if flight.ready.must_sync), None)
        return now_ms - waiting.since_ms if waiting else 0

    def check_invariants(self, log: LogView) -> None:
        """handed_out never passes the log; nothing is stable that was not handed out."""
        assert log.stable_index <= self.handed_out <= log.last_index
        assert all(flight.stable_to <= log.last_index for flight in self._in_flight)
        if self._noop_index is not None:
            assert self.handed_out < self._noop_index <= log.last_index
