"""Single records become chunks: the one place where a record passes through Python on its way out.

Law of this file: `put` may be called from any thread and does next to nothing: it checks, appends to lists
and counts. Encoding, routing and sending happen where the chunks are taken, on the client's own event loop.
The buffer is bounded: `put` waits, or says that the buffer is full, and then has taken nothing. An
interrupt (Ctrl-C in a notebook, which raises between any two steps of the main thread) leaves every list
whole: each change of state is a single step, or is taken back.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias, TypedDict, Unpack

import pyarrow as pa

from shoal.client.produce.batcher import BatchingConfig
from shoal.client.produce.delivery import Delivery
from shoal.errors import BufferFull, ShoalError, unknown_partition
from shoal.format.batch import DEFAULT_SCHEMA, MAX_RECORD_BYTES, TIMER_SCHEMA
from shoal.format.plain_values import Text, as_bytes
from shoal.format.records import MAX_HEADERS, Headers
from shoal.format.timestamps import Timestamp, due_us, timestamp_us

HeadersLike: TypeAlias = "Mapping[str, bytes | str | None] | Sequence[tuple[str, bytes | str | None]]"


class DueOptions(TypedDict, total=False):
    """When records of a topic of kind timer are due."""

    deliver_at: Timestamp | None
    """When groups see them, as `timestamp` is told; None: at once."""
    delay_seconds: float | None
    """Instead of `deliver_at`: so long from now."""


class SendOptions(DueOptions, total=False):
    """Options of one record, beside its value and its key."""

    headers: HeadersLike | None
    timestamp: Timestamp | None
    """A datetime with a zone, or microseconds since 1970; None: when its batch begins."""
    partition: int | None
    timeout_seconds: float | None
    """How long to wait for room; None: until there is room."""


HEADER_OVERHEAD_BYTES: Final = 16  # offsets of two columns, roughly
RECORD_OVERHEAD_BYTES: Final = 40  # timestamp, offsets and validity of four columns, two list slots


Extra: TypeAlias = "tuple[Headers | None, int | None, int | None, int | None]"
"""Headers, microseconds, partition and due time, which few records have."""


class WholeBatch(NamedTuple):
    """A batch that came as one, with the fields of a Chunk. `first_row`: where it begins among the rows of
    its delivery."""

    begun_ms: int
    batch: pa.RecordBatch
    rows: int
    size_bytes: int
    delivery: Delivery
    first_row: int
    partitions: Mapping[int, int] = MappingProxyType({})
    sealed: bool = True
    repeats: bool = False

    def to_batch(self) -> pa.RecordBatch:
        """The batch, as it came."""
        return self.batch


@dataclass(slots=True)
class Chunk:
    """Records gathered together, by column; `extras` by row. `keys` may end before the last rows: those have
    none."""

    begun_ms: int
    begun_us: int
    values: list[bytes | None] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    extras: dict[int, Extra] = field(default_factory=dict)
    size_bytes: int = 0
    delivery: Delivery = field(default_factory=Delivery)
    first_row: int = 0
    sealed: bool = False
    """Complete: nothing is appended any more."""
    repeats: bool = False
    """It may be stored already: a request of its own, under the sequence that it had."""
    open_bytes: int = 0
    """While it is smaller, a plain value may be appended without another look (see Gatherer.lock)."""

    @property
    def rows(self) -> int:
        return len(self.values)

    def cut(self) -> None:
        """Take back a record that was not appended whole: the value is appended last."""
        rows = len(self.values)
        del self.keys[rows:]
        self.extras.pop(rows, None)

    @property
    def partitions(self) -> dict[int, int]:
        """The rows that were sent to a certain partition, and to which."""
        return {row: chosen for row, (_, _, chosen, _) in self.extras.items() if chosen is not None}

    def to_batch(self) -> pa.RecordBatch:
        """The records in DEFAULT_SCHEMA, or in TIMER_SCHEMA if one has a due time. Those without a time get
        that of the chunk's first record: at most one linger before their own."""
        rows = len(self.values)
        timestamp, key, value, headers = (column.type for column in DEFAULT_SCHEMA)
        times = pa.repeat(pa.scalar(self.begun_us, pa.int64()), rows)
        header_column = pa.nulls(rows, headers)
        due_times: list[int | None] | None = None
        if self.extras:
            moments = [self.begun_us] * rows
            heads: list[list[dict[str, Any]] | None] = [None] * rows
            for row, (pairs, moment_us, _, due_at_us) in self.extras.items():
                if due_at_us is not None:
                    due_times = due_times or [None] * rows
                    due_times[row] = due_at_us
                if pairs is not None:
                    heads[row] = [{"key": name, "value": content} for name, content in pairs]
                if moment_us is not None:
                    moments[row] = moment_us
            times, header_column = pa.array(moments, pa.int64()), pa.array(heads, headers)
        known = self.keys
        keyless = known.count(None) == len(known)
        if not keyless and len(known) < rows:
            known = [*known, *repeat(None, rows - len(known))]
        keys = pa.nulls(rows, key) if keyless else pa.array(known, key)
        columns = [times.cast(timestamp), keys, pa.array(self.values, value), header_column]
        if due_times is None:
            return pa.RecordBatch.from_arrays(columns, schema=DEFAULT_SCHEMA)
        return pa.RecordBatch.from_arrays([*columns, pa.array(due_times, timestamp)], schema=TIMER_SCHEMA)


@dataclass(slots=True, eq=False)
class LoneRecord:
    """A record on its way alone. `begun_seconds`: on a monotonic clock."""

    value: bytes | None
    key: bytes | None
    timestamp_us: int
    begun_seconds: float
    partition: int = -1
    """Chosen, if not negative."""
    url: str = ""
    """The agent that it is sent to."""
    request: bytes = b""
    """As it leaves."""
    sequence: int = 0
    counts: tuple[int, int, int, int] = (0, 0, 0, 0)
    """Its producer's ProducerStatistics before it: the sums after it can be made twice."""
    doubt: bool = False
    """It was sent, and no answer says that it is not stored."""
    base_offset: int | None = None
    """Set: it is acknowledged."""
    duplicate: bool = False
    chunk: Chunk | None = None
    """Made when the record is handed over to the ordinary way."""


class Gatherer:
    """The chunk that is being gathered, and those that wait to be taken.

    `on_news` is called, on the thread that puts, when a chunk begins or is complete; it must not block.
    """

    def __init__(self, topic: str, config: BatchingConfig, on_news: Callable[[], object]) -> None:
        config.validate()
        self._topic = topic
        self._config = config
        self._rows_max = config.batch_rows_max
        self._bytes_max = config.batch_bytes_max
        self._on_news = on_news
        self._renew_lock()
        self.chunk = Chunk(0, 0, sealed=True)
        """The chunk that is being gathered, or was last."""
        self._chunks: deque[Chunk | WholeBatch] = deque()
        """In their order; all but the one that is being gathered are complete."""
        self._taken_bytes = 0
        """Of chunks that were taken and are not acknowledged yet, as their owner says."""
        self.lone: LoneRecord | None = None
        """On its way alone, past this: nothing is taken meanwhile."""
        self.lone_is_awaited = False
        """`on_news` is called when that record's way has ended."""
        self.stopped: Exception | None = None
        """Why nothing is taken any more."""
        self.full = False
        """Full, or stopped: `put` would wait or raise, and looks at nothing else."""
        self.partitions: frozenset[int] | None = None
        """Those that the topic has; None: not known yet, and nothing is refused."""

    def _renew_lock(self) -> None:
        self.lock = threading.Lock()
        """Held by `put`. Most single records are a value of bytes and nothing else, and one call more would
        cost as much as half of the rest. So a caller that holds the lock may append such a value to
        `chunk.values`, with the new size to `chunk.size_bytes`, while that is below `chunk.open_bytes`."""
        self._room = threading.Condition(self.lock)

    def put(
        self,
        value: Text | None,
        key: Text | None = None,
        headers: HeadersLike | None = None,
        timestamp: Timestamp | None = None,
        partition: int | None = None,
        timeout_seconds: float | None = None,
        deliver_at: Timestamp | None = None,
        delay_seconds: float | None = None,
    ) -> Delivery:
        """Take one record; waits while the buffer is full, at most `timeout_seconds` (None: until there is
        room). Raises ShoalError too-large or bad-request, BufferFull, and the error that the gatherer
        was stopped with; the record is not taken then."""
        size_bytes = RECORD_OVERHEAD_BYTES
        if value.__class__ is not bytes and value is not None:
            value = as_bytes(value, "value")
        if value is not None:
            size_bytes += len(value)
        if key is not None:
            if key.__class__ is not bytes:
                key = as_bytes(key, "key")
            size_bytes += len(key)
        extra = None
        is_due = deliver_at is not None or delay_seconds is not None
        if headers is not None or timestamp is not None or partition is not None or is_due:
            due_at_us = due_us(deliver_at, delay_seconds, time.time_ns() // 1_000) if is_due else None
            extra, more_bytes = _extra(headers, timestamp, partition, due_at_us)
            if partition is not None and self.partitions is not None and partition not in self.partitions:
                raise unknown_partition(self._topic, partition, len(self.partitions))
            size_bytes += more_bytes
        if size_bytes > MAX_RECORD_BYTES + RECORD_OVERHEAD_BYTES:
            pairs = 0 if extra is None else len(extra[0] or ())
            own_bytes = size_bytes - RECORD_OVERHEAD_BYTES - HEADER_OVERHEAD_BYTES * pairs
            if own_bytes > MAX_RECORD_BYTES:
                raise ShoalError("too-large", f"a record of {own_bytes} bytes: at most {MAX_RECORD_BYTES}")
        with self.lock:
            if self.full:
                self._wait_for_room(timeout_seconds)
            chunk = self.chunk
            if chunk.sealed:
                chunk = self._begin()
            try:
                rows = len(chunk.values)
                if extra is not None:
                    chunk.extras[rows] = extra
                if key is not None:
                    keys = chunk.keys
                    if len(keys) < rows:
                        keys.extend(repeat(None, rows - len(keys)))
                    keys.append(key)
                chunk.values.append(value)
                size_bytes += chunk.size_bytes
                chunk.size_bytes = size_bytes
            except BaseException:
                chunk.cut()
                raise
            rows_left = self._rows_max - rows - 1
            if size_bytes >= self._bytes_max or rows_left <= 0:
                self._seal()
            elif key is None:
                chunk.open_bytes = min(self._bytes_max, size_bytes + rows_left * RECORD_OVERHEAD_BYTES)
            return chunk.delivery

    def put_alone(
        self, value: Text | None, key: Text | None = None, **options: Unpack[SendOptions]
    ) -> Delivery:
        """As `put`, behind all put before, but the record shares its delivery with no other and does not
        linger."""
        timeout_seconds = options.pop("timeout_seconds", None)
        one = Gatherer(self._topic, replace(self._config, batch_rows_max=1), lambda: None)
        one.partitions = self.partitions
        delivery = one.put(value, key, **options)
        chunk = one.take()
        assert isinstance(chunk, Chunk)
        chunk.begun_ms -= self._config.linger_ms
        self._put_complete([chunk], timeout_seconds)
        return delivery

    def _put_complete(self, chunks: Iterable[Chunk | WholeBatch], timeout_seconds: float | None) -> None:
        with self.lock:
            if self.full:
                self._wait_for_room(timeout_seconds)
            self._seal()
            self._chunks.extend(chunks)
            self._look_at_gate()
            self._on_news()

    # --- a record alone

    def begin_lone(self, lone: LoneRecord) -> bool:
        """Whether nothing is gathered, taken or alone on its way: then this one is, until `end_lone` or
        `hand_over`, and nothing is taken."""
        with self.lock:
            if self._chunks or self._taken_bytes or self.full or self.lone is not None:
                return False
            self.lone = lone
            return True

    def end_lone(self, lone: LoneRecord, then: Callable[[LoneRecord], None] | None = None) -> bool:
        """The record's way has ended; False when it was handed over. `then` is called while nothing is taken,
        perhaps twice."""
        with self.lock:
            if self.lone is not lone:
                return False
            if then is not None:
                then(lone)
            self.lone = None
            self._tell_of_lone()
            return True

    def hand_over(self, lone: LoneRecord, made: Callable[[], Chunk]) -> None:
        """It becomes the oldest chunk, unless it was that already or is over."""
        with self.lock:
            if self.lone is not lone:
                return
            if lone.chunk is None:
                lone.chunk = made()
            if not self._chunks or self._chunks[0] is not lone.chunk:
                self._chunks.appendleft(lone.chunk)
            self.lone_is_awaited = True
            self.lone = None
            self._tell_of_lone()

    def _tell_of_lone(self) -> None:
        if self._chunks or self.lone_is_awaited:
            self.lone_is_awaited = False
            self._on_news()

    def put_batches(
        self, batches: Sequence[pa.RecordBatch], timeout_seconds: float | None = None
    ) -> Delivery:
        """Take batches of DEFAULT_SCHEMA, behind the records put before: all of them or, when there is no
        room for the first, none. Raises as `put`. They are not copied: the bound may be passed once."""
        batches = [batch for batch in batches if batch.num_rows]
        delivery = Delivery().expect(sum(batch.num_rows for batch in batches))
        now_ms = time.monotonic_ns() // 1_000_000
        whole: list[WholeBatch] = []
        first_row = 0
        for batch in batches:
            whole.append(WholeBatch(now_ms, batch, batch.num_rows, batch.nbytes, delivery, first_row))
            first_row += batch.num_rows
        self._put_complete(whole, timeout_seconds)
        return delivery

    @property
    def gathered_rows(self) -> int:
        """Records that are not taken yet."""
        with self.lock:
            return sum(chunk.rows for chunk in self._chunks)

    @property
    def sealed(self) -> int:
        """Complete chunks that are not taken yet."""
        with self.lock:
            return sum(chunk.sealed for chunk in self._chunks)

    def due_ms(self) -> int | None:
        """When the chunk that is being gathered has lingered long enough; None while there is none."""
        return None if self.chunk.sealed else self.chunk.begun_ms + self._config.linger_ms

    def seal(self, before_ms: int | None = None) -> None:
        """Complete the chunk that is being gathered; with `before_ms` only if it was due by then."""
        with self.lock:
            due_ms = self.due_ms()
            if before_ms is None or (due_ms is not None and due_ms <= before_ms):
                self._seal()

    def take(self) -> Chunk | WholeBatch | None:
        """The oldest complete chunk; its owner accounts for it with `account` from now on. None while a
        record is alone on its way."""
        with self.lock:
            if self.lone is not None:
                return None
            while self._chunks and (self._chunks[0].sealed or self._chunks[0] is not self.chunk):
                chunk = self._chunks.popleft()
                if chunk.rows and not chunk.delivery.rows:
                    chunk.delivery.expect(chunk.rows)
                if chunk.rows:  # else it was begun as an interrupt came
                    self._taken_bytes += max(1, chunk.size_bytes)  # until `account`: it is nowhere else
                    return chunk
            return None

    def account(self, taken_bytes: int) -> None:
        """So many bytes that were taken are not acknowledged: the bound leaves room beside these."""
        with self.lock:
            self._taken_bytes = taken_bytes
            self._look_at_gate()

    def stop(self, error: Exception) -> None:
        """From now on every `put` raises `error`, waiting ones included. The first error stays."""
        with self.lock:
            self.stopped = self.stopped or error
            self._look_at_gate()
            self._room.notify_all()

    def after_fork(self, error: Exception) -> None:
        """In the child of a fork: the lock may have been held by a thread that is not there any more."""
        self._renew_lock()
        self.stopped, self.full = error, True
        self.chunk = Chunk(0, 0, sealed=True)

    def _begin(self) -> Chunk:
        chunk = Chunk(time.monotonic_ns() // 1_000_000, time.time_ns() // 1_000)
        self._chunks.append(chunk)
        self.chunk = chunk
        self._on_news()
        return chunk

    def _seal(self) -> None:
        if not self.chunk.sealed:
            self.chunk.open_bytes = 0
            self.chunk.sealed = True
            self._look_at_gate()
            self._on_news()

    def _look_at_gate(self) -> None:
        was_shut = self.full
        held_bytes = sum(chunk.size_bytes for chunk in self._chunks if chunk.sealed)
        full = held_bytes + self._taken_bytes >= self._config.buffered_bytes_max
        self.full = full or self.stopped is not None
        if self.full:
            self.chunk.open_bytes = 0
        if was_shut and not self.full:
            self._room.notify_all()

    def _wait_for_room(self, timeout_seconds: float | None) -> None:
        opened = self._room.wait_for(lambda: not self.full or self.stopped, timeout_seconds)
        if self.stopped is not None:
            raise self.stopped
        if not opened:
            raise BufferFull(
                f"{self._topic}: {self._config.buffered_bytes_max} bytes wait to be acknowledged, and none"
                f" were within {timeout_seconds:g} s; the record was not taken"
            )


def _extra(
    headers: HeadersLike | None, timestamp: Timestamp | None, partition: int | None, due_at_us: int | None
) -> tuple[Extra, int]:
    pairs: Headers | None = None
    size_bytes = 0
    if headers is not None:
        pairs = _pairs(headers)
        size_bytes = sum(
            len(name.encode()) + len(value or b"") + HEADER_OVERHEAD_BYTES for name, value in pairs
        )
    moment_us = None if timestamp is None else timestamp_us(timestamp)
    if partition is not None and (partition.__class__ is not int or partition < 0):
        raise ShoalError("unknown-partition", f"a partition is a number from 0 on, not {partition!r}")
    return (pairs, moment_us, partition, due_at_us), size_bytes


def _pairs(headers: HeadersLike) -> Headers:
    items = list(headers.items()) if isinstance(headers, Mapping) else list(headers)
    if len(items) > MAX_HEADERS:
        raise ShoalError("bad-request", f"{len(items)} headers: at most {MAX_HEADERS}")
    pairs: Headers = []
    for item in items:
        if not isinstance(item, tuple) or len(item) != 2 or not isinstance(item[0], str):
            raise ShoalError("bad-request", f"headers are pairs of a name and a value, not {item!r:.80}")
        value = None if item[1] is None else as_bytes(item[1], "header's value")
        pairs.append((as_bytes(item[0], "header's name").decode(), value))
    return pairs
