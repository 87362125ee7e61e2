"""When buffered records become a request: linger, counts, bytes, bounds, sequences.

Law of this file: pure. What is buffered is opaque but for its rows and bytes; time is an argument. One
request per partition is in flight, which keeps a partition's order under retries, and everything that
arrives meanwhile goes into the next: the slower the answers, the larger the requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

CATCH_UP_BURSTS = 5

Item = TypeVar("Item")
Rows = TypeVar("Rows", bound="Sliceable")


class Sliceable(Protocol):
    """What `split` needs of a record batch (pyarrow.RecordBatch has it)."""

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
    a second of a fast producer, and so bounds memory and what a crash of the client loses.
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
    """What goes to one partition in one request."""

    partition: int
    sequence: int
    items: tuple[Item, ...]
    rows: int
    size_bytes: int


class _Buffered(NamedTuple, Generic[Item]):
    item: Item
    rows: int
    size_bytes: int
    due_ms: int


@dataclass(slots=True)
class _Partition(Generic[Item]):
    waiting: deque[_Buffered[Item]] = field(default_factory=deque)
    rows: int = 0
    size_bytes: int = 0
    next_sequence: int = 0
    in_flight: Request[Item] | None = None


class Batcher(Generic[Item]):
    """The buffer of one producer for one topic."""

    def __init__(self, config: BatchingConfig) -> None:
        config.validate()
        self.config = config
        self._partitions: dict[int, _Partition[Item]] = {}
        self.buffered_bytes = 0  # waiting and in flight
        self.buffered_rows = 0

    @property
    def full(self) -> bool:
        """Whether a sender should wait. A single add may pass the bound once: it never splits what it was
        given.
        """
        return self.buffered_bytes >= self.config.buffered_bytes_max

    def add(self, partition: int, item: Item, rows: int, size_bytes: int, now_ms: int) -> None:
        """Buffer `item`; it must itself keep within batch_rows_max and batch_bytes_max unless it is one
        row.
        """
        assert rows > 0
        state = self._partitions.setdefault(partition, _Partition())
        due_ms = now_ms + self.config.linger_ms
        if state.waiting and due_ms < state.waiting[0].due_ms:  # in a hurry, and so are those before it
            state.waiting[0] = state.waiting[0]._replace(due_ms=due_ms)
        state.waiting.append(_Buffered(item, rows, size_bytes, due_ms))
        state.rows += rows
        state.size_bytes += size_bytes
        self.buffered_rows += rows
        self.buffered_bytes += size_bytes

    def take(self, now_ms: int) -> list[Request[Item]]:
        """Requests that should leave now, at most one per idle partition. Each must be settled or dropped
        later.
        """
        requests = []
        for partition, state in self._partitions.items():
            if state.in_flight is None and state.waiting and self._due_ms(state) <= now_ms:
                requests.append(self._request(partition, state))
        return requests

    def deadline(self) -> int | None:
        """When `take` will next have something, given no event before; None when nothing waits at an idle
        partition.
        """
        due = [self._due_ms(s) for s in self._partitions.values() if s.in_flight is None and s.waiting]
        return min(due, default=None)

    def expedite(self) -> None:
        """What is buffered now lingers no longer."""
        for state in self._partitions.values():
            state.waiting = deque(entry._replace(due_ms=0) for entry in state.waiting)

    def settle(self, partition: int) -> Request[Item]:
        """The partition's request was answered: the next may leave."""
        state = self._partitions[partition]
        request = state.in_flight
        assert request is not None
        state.in_flight = None
        self.buffered_rows -= request.rows
        self.buffered_bytes -= request.size_bytes
        self.check_invariants()
        return request

    def restart(self, partition: int) -> None:
        """Number the partition's requests from 0 again, the one in flight included (a new producer
        identity).
        """
        state = self._partitions[partition]
        assert state.in_flight is not None
        state.in_flight = state.in_flight._replace(sequence=0)
        state.next_sequence = 1

    def items(self) -> Iterator[tuple[int, Item]]:
        """What is in flight and what waits, by partition, oldest first."""
        for partition, state in self._partitions.items():
            for item in state.in_flight.items if state.in_flight else ():
                yield partition, item
            for entry in state.waiting:
                yield partition, entry.item

    def drop_all(self) -> int:
        """Forget everything waiting and in flight; returns the rows."""
        rows = self.buffered_rows
        self._partitions.clear()
        self.buffered_rows = self.buffered_bytes = 0
        return rows

    def check_invariants(self) -> None:
        """Asserts that the totals are the sums of their parts."""
        states = self._partitions.values()
        flights = [state.in_flight for state in states if state.in_flight]
        assert self.buffered_rows == sum(s.rows for s in states) + sum(f.rows for f in flights)
        assert self.buffered_bytes == sum(s.size_bytes for s in states) + sum(f.size_bytes for f in flights)
        assert all((s.rows == 0) == (not s.waiting) for s in states)

    def _due_ms(self, state: _Partition[Item]) -> int:
        full = state.rows >= self.config.batch_rows_max or state.size_bytes >= self.config.batch_bytes_max
        return 0 if full else state.waiting[0].due_ms

    def _request(self, partition: int, state: _Partition[Item]) -> Request[Item]:
        items: list[Item] = []
        rows = size_bytes = 0
        while state.waiting:
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
        request = Request(partition, state.next_sequence, tuple(items), rows, size_bytes)
        state.next_sequence += 1
        state.in_flight = request
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


@dataclass(slots=True)
class Pacer:
    """Spreads records over time: at most `rate_per_second`, in gulps of at most `burst_ms`.

    Lateness is made up for up to CATCH_UP_BURSTS gulps: enough to keep the average over hiccups of the
    scheduler, too little for a stalled producer to flood its cluster afterwards.
    """

    rate_per_second: float
    started_ms: float
    burst_ms: int = 50
    _allowance: float = 0.0
    _updated_ms: float = field(init=False)

    def __post_init__(self) -> None:
        if self.rate_per_second <= 0:
            raise ValueError("the rate must be positive")
        self._updated_ms = self.started_ms

    @property
    def burst_rows(self) -> int:
        return max(1, int(self.rate_per_second * self.burst_ms / 1_000))

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
