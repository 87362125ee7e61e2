"""When buffered records become a request: linger, counts, bytes, bounds, sequences.

Law of this file: pure. Buffered items are opaque but for their rows and bytes; time is an argument. While a
partition's request is in flight, arriving items go into the next: the slower the answers, the larger the
requests. Only a full one leaves before the answer, and only after those before it have left: agents store a
producer's requests in the order of their sequences, and refuse one that is ahead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

CATCH_UP_BURSTS = 5
REQUESTS_IN_FLIGHT_MAX = 3
"""Of a partition: while one is being synced and acknowledged, the next arrives. Fewer than the sequences that
an agent remembers (5), so that the oldest is known again when it has to be repeated."""

Item = TypeVar("Item")
Rows = TypeVar("Rows", bound="Sliceable")


class Sliceable(Protocol):
    """The part of a pyarrow.RecordBatch that `split` needs."""

    @property
    def num_rows(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    def slice(self, offset: int, length: int) -> Self: ...


@dataclass(frozen=True, slots=True)
class BatchingConfig:
    """Bounds of one producer.

    linger_ms: how long a record waits for company while its partition is idle. batch_*_max: a request's
    size, small against the 16 MiB that an agent takes. buffered_bytes_max: `send` waits above it; it holds
    a second of a fast producer, and so bounds memory and the records that a crash of the client loses.
    """

    linger_ms: int = 20
    batch_rows_max: int = 10_000
    batch_bytes_max: int = 1 << 20
    buffered_bytes_max: int = 32 << 20

    def validate(self) -> None:
        if self.linger_ms < 0 or self.batch_rows_max < 1 or self.batch_bytes_max < 1:
            raise ValueError("linger_ms must not be negative, batch_rows_max and batch_bytes_max at least 1")
        if self.buffered_bytes_max < self.batch_bytes_max:
            raise ValueError("buffered_bytes_max must hold at least one batch (batch_bytes_max)")


class Request(NamedTuple, Generic[Item]):
    """One request to one partition."""

    partition: int
    sequence: int
    items: tuple[Item, ...]
    rows: int
    size_bytes: int
    repeats: bool = False
    """It may have been stored under this sequence: nothing joins it, and it is never numbered anew."""


class _Buffered(NamedTuple, Generic[Item]):
    item: Item
    rows: int
    size_bytes: int
    due_ms: int
    repeats: bool = False


@dataclass(slots=True)
class _Partition(Generic[Item]):
    waiting: deque[_Buffered[Item]] = field(default_factory=deque)
    rows: int = 0
    size_bytes: int = 0
    next_sequence: int = 0
    in_flight: deque[Request[Item]] = field(default_factory=deque)
    leaving: bool = False
    """The newest of these has not left whole."""


class Batcher(Generic[Item]):
    """The buffer of one producer for one topic."""

    def __init__(self, config: BatchingConfig) -> None:
        config.validate()
        self.config = config
        self._partitions: dict[int, _Partition[Item]] = {}
        self.buffered_bytes = 0  # waiting and in flight

    def add(
        self, partition: int, item: Item, rows: int, size_bytes: int, now_ms: int, *, repeats: bool = False
    ) -> None:
        """Buffer `item`; it must itself keep within batch_rows_max and batch_bytes_max unless it is one
        row. `repeats`: it may have been stored as the partition's next sequence; nothing is buffered or in
        flight there.
        """
        assert rows > 0
        state = self._partitions.setdefault(partition, _Partition())
        assert not repeats or not (state.waiting or state.in_flight)
        due_ms = now_ms + self.config.linger_ms
        if state.waiting and due_ms < state.waiting[0].due_ms:  # in a hurry, and so are those before it
            state.waiting[0] = state.waiting[0]._replace(due_ms=due_ms)
        state.waiting.append(_Buffered(item, rows, size_bytes, due_ms, repeats))
        state.rows += rows
        state.size_bytes += size_bytes
        self.buffered_bytes += size_bytes

    def take(self, now_ms: int) -> list[Request[Item]]:
        """Requests that should leave now, at most one per partition. Each must be settled or dropped later,
        and `written` says when it has left whole.
        """
        requests = []
        for partition, state in self._partitions.items():
            if state.waiting and (
                self._may_follow(state) if state.in_flight else self._due_ms(state) <= now_ms
            ):
                requests.append(self._request(partition, state))
        return requests

    def deadline(self) -> int | None:
        """When `take` will next have something, given no event before; None when nothing waits at an idle
        partition.
        """
        states = self._partitions.values()
        due = [self._due_ms(s) for s in states if s.waiting and not s.in_flight]
        due += [0 for s in states if s.waiting and s.in_flight and self._may_follow(s)]
        return min(due, default=None)

    def written(self, request: Request[Item]) -> None:
        """It has left whole: the next may follow."""
        state = self._partitions.get(request.partition)
        if state is not None and state.in_flight and state.in_flight[-1].items is request.items:
            state.leaving = False

    def _may_follow(self, state: _Partition[Item]) -> bool:
        """Whether another request may leave before those in flight are answered."""
        if state.leaving or len(state.in_flight) >= REQUESTS_IN_FLIGHT_MAX:
            return False
        return self._is_full(state) and not state.in_flight[0].repeats

    def numbered(self, request: Request[Item]) -> Request[Item]:
        """A request in flight, with the sequence that it has now."""
        state = self._partitions[request.partition]
        return next(one for one in state.in_flight if one.items is request.items)

    def is_oldest(self, request: Request[Item]) -> bool:
        """Whether all before it in its partition were answered."""
        state = self._partitions.get(request.partition)
        return state is not None and bool(state.in_flight) and state.in_flight[0].items is request.items

    def expedite(self) -> None:
        """Everything that is buffered now lingers no longer."""
        for state in self._partitions.values():
            state.waiting = deque(entry._replace(due_ms=0) for entry in state.waiting)

    def settle(self, request: Request[Item]) -> None:
        """The request was answered: the next may leave."""
        state = self._partitions[request.partition]
        if state.in_flight[-1].items is request.items:
            state.leaving = False
        state.in_flight.remove(self.numbered(request))
        self.buffered_bytes -= request.size_bytes
        self.check_invariants()

    def next_sequence(self, partition: int) -> int | None:
        """The sequence for a request that leaves past this buffer; None where items wait or are in flight, or
        nothing was sent yet."""
        state = self._partitions.get(partition)
        return None if state is None or state.waiting or state.in_flight else state.next_sequence

    def skip(self, partition: int, sequence: int) -> None:
        """A request with this sequence was acknowledged that left past this buffer."""
        self._partitions[partition].next_sequence = sequence + 1

    def restart(self, partition: int) -> None:
        """Number the partition's requests from 0 again, those in flight included (a new producer identity).
        None of them is stored.
        """
        state = self._partitions[partition]
        assert state.in_flight
        assert not any(request.repeats for request in state.in_flight)
        numbered = [request._replace(sequence=number) for number, request in enumerate(state.in_flight)]
        state.in_flight = deque(numbered)
        state.next_sequence = len(numbered)

    def items(self) -> Iterator[tuple[int, Item]]:
        """Items in flight and waiting, by partition, oldest first."""
        for partition, state in self._partitions.items():
            for request in state.in_flight:
                for item in request.items:
                    yield partition, item
            for entry in state.waiting:
                yield partition, entry.item

    def drop_all(self) -> None:
        """Forget everything waiting and in flight."""
        self._partitions.clear()
        self.buffered_bytes = 0

    def check_invariants(self) -> None:
        """Asserts that the totals are the sums of their parts."""
        states = self._partitions.values()
        flights = [request for state in states for request in state.in_flight]
        assert all(s.rows == sum(entry.rows for entry in s.waiting) for s in states)
        assert self.buffered_bytes == sum(s.size_bytes for s in states) + sum(f.size_bytes for f in flights)
        assert all(len(s.in_flight) <= REQUESTS_IN_FLIGHT_MAX for s in states)
        for state in states:
            sequences = [request.sequence for request in state.in_flight]
            assert sequences == sorted(set(sequences))
            assert not sequences or sequences[-1] < state.next_sequence

    def _is_full(self, state: _Partition[Item]) -> bool:
        return state.rows >= self.config.batch_rows_max or state.size_bytes >= self.config.batch_bytes_max

    def _due_ms(self, state: _Partition[Item]) -> int:
        return 0 if self._is_full(state) else state.waiting[0].due_ms

    def _request(self, partition: int, state: _Partition[Item]) -> Request[Item]:
        items: list[Item] = []
        rows = size_bytes = 0
        repeats = state.waiting[0].repeats
        while state.waiting and not (repeats and items):
            entry = state.waiting[0]
            over = rows + entry.rows > self.config.batch_rows_max
            over = over or size_bytes + entry.size_bytes > self.config.batch_bytes_max
            if items and over:
                break
            state.waiting.popleft()
            items.append(entry.item)
            rows += entry.rows
            size_bytes += entry.size_bytes
        state.rows -= rows
        state.size_bytes -= size_bytes
        request = Request(partition, state.next_sequence, tuple(items), rows, size_bytes, repeats)
        state.next_sequence += 1
        state.in_flight.append(request)
        state.leaving = True
        return request


def split(batch: Rows, config: BatchingConfig) -> Iterator[Rows]:
    """Slices of `batch`, in order, each within the bounds of one request; a single row may be larger."""
    rows_max = config.batch_rows_max
    if batch.num_rows > rows_max:
        for offset in range(0, batch.num_rows, rows_max):
            yield from split(batch.slice(offset, min(rows_max, batch.num_rows - offset)), config)
    elif batch.num_rows > 1 and batch.nbytes > config.batch_bytes_max:
        half = batch.num_rows // 2
        yield from split(batch.slice(0, half), config)
        yield from split(batch.slice(half, batch.num_rows - half), config)
    elif batch.num_rows:
        yield batch


class Pacer:
    """Spreads records over time: at most `rate_per_second`, in gulps of at most `burst_ms`.

    Lateness is made up for up to CATCH_UP_BURSTS gulps: enough to keep the average over hiccups of the
    scheduler, too little for a stalled producer to flood its cluster afterwards.
    """

    def __init__(self, rate_per_second: float, started_ms: float, burst_ms: int = 50) -> None:
        if rate_per_second <= 0:
            raise ValueError("the rate must be positive")
        self.rate_per_second = rate_per_second
        self.burst_rows = max(1, int(rate_per_second * burst_ms / 1_000))
        self._allowance = 0.0
        self._updated_ms = started_ms

    def take(self, wanted: int, now_ms: float) -> int:
        """How many of `wanted` records may go now; they count as gone. Whole gulps or none: a caller that
        asked again and again would otherwise be granted single records, and do nothing else.
        """
        earned = (now_ms - self._updated_ms) * self.rate_per_second / 1_000
        self._allowance = min(self._allowance + earned, float(self.burst_rows * CATCH_UP_BURSTS))
        self._updated_ms = now_ms
        gulp = min(wanted, self.burst_rows)
        if self._allowance < gulp:
            return 0
        self._allowance -= gulp
        return gulp

    def wait_ms(self, wanted: int) -> float:
        """How long until min(wanted, one burst) records may go."""
        missing = min(wanted, self.burst_rows) - self._allowance
        return max(0.0, missing * 1_000 / self.rate_per_second)
