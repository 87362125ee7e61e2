"""The idempotent producer: takes gathered records, sends them, repeats until they are acknowledged.

Law of this file: it awaits; accumulator.py, batcher.py, http/routes.py and format/partitioner.py decide. Each
request carries (producer id, epoch, sequence), a repetition the same: a retry never stores a record twice.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal, NamedTuple, Self, TypeAlias, TypedDict, Unpack, get_args

import pyarrow as pa
import pyarrow.compute as pc

from shoal.client.http.requests import Answer, Call, Cluster, Unreachable, now_ms, topic_path
from shoal.client.http.routes import TopicRoutes
from shoal.client.http.topics import find_topic, outcome_of
from shoal.client.produce.accumulator import Chunk, DueOptions, Gatherer, SendOptions, WholeBatch
from shoal.client.produce.batcher import Batcher, BatchingConfig, Request, split
from shoal.client.produce.delivery import Delivery, Piece, Place, ProducerStatistics
from shoal.client.produce.lone_record import ANSWER_SECONDS, LonePath
from shoal.client.produce.lone_socket import LoneSockets
from shoal.client.produce.request_stream import encode_stream, joined
from shoal.errors import BufferFull, ClientClosed, ClientForked, ShoalError, unknown_partition
from shoal.format.arrow_stream import ARROW_STREAM
from shoal.format.batch import DEFAULT_SCHEMA, KEY_COLUMN
from shoal.format.partitioner import group_rows, owners_of
from shoal.format.plain_values import Text, json_value
from shoal.format.tabular import batches_of
from shoal.format.timestamps import Timestamp, due_us
from shoal.unpicklable import LiveObject

Acks = Literal["all", "leader", "none"]
Compression = Literal["lz4", "zstd"]
_ACKS: Final = get_args(Acks)
_COMPRESSIONS: Final = (*get_args(Compression), None)
PRODUCER_EPOCH = 0  # an id is used by one producer only, so nothing is ever fenced off

# A leader that neither answers nor loses its connection (a stopped process, a pulled cable) is left for the
# one that the routes name, this long after they named it. An old leader that handed over answers within it.
DEPOSED_GRACE_MS = 500


class ProduceFailed(Exception):
    """Some records were not acknowledged. `cause_code` is the table's word for why, or "unreachable".

    `definite`: the request that failed, of so many `records`, is certainly not stored; otherwise it may or
    may not be.
    """

    def __init__(self, detail: str, *, cause_code: str, definite: bool, records: int = 0) -> None:
        super().__init__(detail)
        self.cause_code = cause_code
        self.definite = definite
        self.records = records
        self.undelivered: list[tuple[int, pa.RecordBatch]] = []
        """Records that its producer took and no agent acknowledged, by partition and in order."""


def batch_of(
    values: Sequence[bytes | None], keys: Sequence[bytes | None] | pa.Array | None = None
) -> pa.RecordBatch:
    """A batch of the default schema: these values, these keys (none: null), the time of now, no headers."""
    timestamp, _, _, headers = (field.type for field in DEFAULT_SCHEMA)
    count = len(values)
    now = pa.scalar(time.time_ns() // 1_000, type=timestamp)
    key_column = pa.nulls(count, pa.binary()) if keys is None else keys
    if not isinstance(key_column, pa.Array):
        key_column = pa.array(key_column, pa.binary())
    columns = [pa.repeat(now, count), key_column, pa.array(values, pa.binary()), pa.nulls(count, headers)]
    return pa.RecordBatch.from_arrays(columns, schema=DEFAULT_SCHEMA)


class Delivered(NamedTuple):
    """One request's records: acknowledged from `base_offset` on (None under acks=none), or not (`error`).

    Row i of `batch` has offset base_offset + i. `duplicate`: an earlier attempt had stored them already.
    """

    topic: str
    partition: int
    batch: pa.RecordBatch
    base_offset: int | None
    duplicate: bool
    error: ProduceFailed | None

    @property
    def records(self) -> int:
        """How many there are."""
        rows: int = self.batch.num_rows
        return rows


OnDelivery: TypeAlias = Callable[[Delivered], None]


class ProducerOptions(TypedDict, total=False):
    """Settings of one producer."""

    acks: Acks
    """When a record counts as stored: on a majority's disks ("all"), on the leader's, or as soon as sent."""
    partition: int | None
    """Where all records go, whatever their keys."""
    batching: BatchingConfig | None
    compression: Compression | None
    """Of the stored batches."""
    on_delivery: OnDelivery | None
    """Called once for each request, in the event loop."""


class AsyncProducer(LiveObject):
    """Sends records to one topic: `async with client.producer(topic) as producer`, or `open` and `close`.

    Leaving the block flushes: it raises ProduceFailed unless everything was acknowledged. Several tasks may
    share it.
    """

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        *,
        acks: Acks = "all",
        partition: int | None = None,
        batching: BatchingConfig | None = None,
        compression: Compression | None = None,
        on_delivery: OnDelivery | None = None,
        opened: set[AsyncProducer] | None = None,
    ) -> None:
        """`opened`: has this producer as long as it is open. Raises ShoalError bad-request for an option that
        no agent would take."""
        _check_options(acks, compression, partition, batching)
        self.topic = topic
        self._cluster = cluster
        self._acks = acks
        self._partition = partition
        self._config = batching or BatchingConfig()
        self._compression = compression
        self._on_delivery = on_delivery
        self._opened = set() if opened is None else opened
        self._batcher: Batcher[Piece] = Batcher(self._config)
        self.gatherer = Gatherer(topic, self._config, lambda: None)
        """Where single records are put, by any thread."""
        self.gatherer.stop(
            ClientClosed(
                f"the producer of {topic} is not open: `await` its open(), or use it in `async with`"
            )
        )
        self._counts = ProducerStatistics()
        self._identities: dict[int, str] = {}
        self._requests: set[asyncio.Task[None]] = set()
        self._unsettled: dict[Delivery, None] = {}
        self._waiting: set[asyncio.Future[None]] = set()
        self._failure: Exception | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._spread = 0
        self._last_routes: TopicRoutes | None = None
        self._aborted = False
        self.lone: LonePath | None = None
        """The way of single records that are waited for; None where there is none."""
        self.sockets = LoneSockets(cluster.config.connect_timeout_ms / 1_000, cluster.tls)
        """That way's connections for callers on other threads."""

    async def __aenter__(self) -> Self:
        return await self.open()

    async def open(self) -> Self:
        """The beginning of `async with`, for cells of a notebook; `close` is its end. Raises
        ShoalError, Unreachable, and ClientClosed for one that was closed."""
        if self._aborted:
            raise ClientClosed(f"the producer of {self.topic} is closed: make another")
        if self.is_open:
            return self
        # Arrow looks for pandas when it makes its first value: at the interpreter's end, when unsent records
        # are flushed, that would fail.
        pa.scalar(0, pa.int64())
        await find_topic(self._cluster, self.topic)
        if self._partition is not None and self._routes().get(self._partition) is None:
            raise unknown_partition(self.topic, self._partition, len(self._routes().partitions))
        self._watcher = asyncio.create_task(self._cluster.watch(self.topic))
        loop = asyncio.get_running_loop()
        self.gatherer = Gatherer(self.topic, self._config, partial(loop.call_soon_threadsafe, self._turn))
        if self._acks != "none" and self._compression is None and self._on_delivery is None:
            self.lone = LonePath(
                self.gatherer,
                self._batcher,
                self._counts,
                self._identities,
                partial(self._cluster.routes.topic, self.topic),
                lambda partition, identity: self._cluster.signed(self._call(partition, identity)),
                self._partition,
                self._cluster.schemes,
            )
        self.gatherer.partitions = frozenset(route.partition for route in self._routes().partitions)
        self._opened.add(self)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self.close()
        else:
            await self.abort()

    async def close(self) -> None:
        """Take nothing more, flush, then stop. Idempotent. Raises ProduceFailed; the producer is closed even
        then."""
        try:
            if self.is_open:
                self.finish()
                await self.flush()
        finally:
            await self.abort()

    @property
    def is_open(self) -> bool:
        """Whether it was opened and is not closed."""
        return self._watcher is not None and not self._aborted

    def __repr__(self) -> str:
        state = "closed" if self._aborted else "open" if self.is_open else "not open"
        if self._failure is not None:
            state = f"failed: {self._failure}"
        return f"<{type(self).__name__} of {self.topic!r}, {state}, {self.unacknowledged} unacknowledged>"

    @property
    def statistics(self) -> ProducerStatistics:
        """Counts of records and requests since the producer was opened."""
        return replace(self._counts, records_sent=self._counts.records_sent + self.gatherer.gathered_rows)

    @property
    def unacknowledged(self) -> int:
        """Records that were sent and not acknowledged."""
        counts = self.statistics
        return counts.records_sent - counts.records_acknowledged

    async def send(
        self, value: Text | None, key: Text | None = None, **options: Unpack[SendOptions]
    ) -> Delivery:
        """Buffer one record; waits while the buffer is full. Text is stored as its UTF-8.

        The Delivery is shared by the records that are gathered together. Raises ProduceFailed once any record
        could not be delivered, ShoalError too-large, bad-request or unknown-partition for this one, and
        BufferFull when there was no room for `timeout_seconds`; this record was not taken then.
        """
        if self.gatherer.full:
            await self._wait_for_room(options.get("timeout_seconds"))
        options["timeout_seconds"] = 0
        return self.gatherer.put(value, key, **options)

    async def send_json(
        self, value: object, key: Text | None = None, **options: Unpack[SendOptions]
    ) -> Delivery:
        """`send` of a value as compact JSON (None is `null`, no tombstone); `Record.json` reads it. Raises as
        `send`, and bad-request for what JSON cannot express."""
        return await self.send(json_value(value), key, **options)

    async def append(
        self, value: Text | None, key: Text | None = None, **options: Unpack[SendOptions]
    ) -> Place:
        """Send one record without waiting for company, behind all sent before, and wait until it is
        acknowledged; returns its partition and offset. Raises as `send`, and TimeoutError when there is no
        acknowledgement for `timeout_seconds`: it may still come."""
        timeout_seconds = options.pop("timeout_seconds", None) if options else None
        if timeout_seconds is None:
            return await self._append(value, key, options)
        async with asyncio.timeout(timeout_seconds):
            return await self._append(value, key, options)

    async def _append(self, value: Text | None, key: Text | None, options: SendOptions) -> Place:
        path = self.lone
        lone = None if path is None else path.begin(value, key, **options)
        if path is None or lone is None:
            if self.gatherer.full:
                await self._wait_for_room(None)
            options["timeout_seconds"] = 0
            delivery = self.gatherer.put_alone(value, key, **options)
        else:
            answer = None
            try:
                if lone.request:
                    lone.doubt = True
                    answer, lone.doubt = await self._cluster.post_alone(
                        lone.url, lone.request, ANSWER_SECONDS
                    )
            except BaseException:
                path.hand_over(lone)
                raise
            place = path.settle(lone, answer)
            if place is not None:
                return place
            assert lone.chunk is not None
            delivery = lone.chunk.delivery
        await delivery
        return delivery.place(0)

    async def send_batch(
        self, data: Any, timeout_seconds: float | None = None, **due: Unpack[DueOptions]
    ) -> Delivery:
        """Buffer the rows of a RecordBatch, pyarrow Table, pandas or polars frame, each row for the partition
        of its key; waits while the buffer is full.

        Rows without a key go together to one partition, another one with each call. On topics of kind timer
        a column `deliver_at` or an option says when they are due. Raises as `send`, and ShoalError
        schema-mismatch for columns that are not the topic's.
        """
        batches = self.batches(data, **due)
        if self.gatherer.full:
            await self._wait_for_room(timeout_seconds)
        return self.gatherer.put_batches(batches, 0)

    def batches(
        self, data: Any, *, deliver_at: Timestamp | None = None, delay_seconds: float | None = None
    ) -> list[pa.RecordBatch]:
        """The batches that `send_batch` makes of `data`. Raises ShoalError schema-mismatch, bad-request or
        too-large."""
        now_us = time.time_ns() // 1_000
        return batches_of(data, self.topic, now_us, due_us(deliver_at, delay_seconds, now_us))

    def finish(self) -> None:
        """Take nothing more: records sent before can be flushed, and none is taken that would not be."""
        self.gatherer.stop(ClientClosed(f"the producer of {self.topic} is closed"))

    async def flush(self, timeout_seconds: float | None = None) -> None:
        """Return when everything sent so far is acknowledged. Raises ProduceFailed when some of it cannot be,
        and TimeoutError when that takes longer than `timeout_seconds`: nothing is given up then, flush again.
        """
        if self._watcher is None and self.gatherer.stopped is not None:
            raise self.gatherer.stopped
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._flush()
        except TimeoutError:
            raise TimeoutError(
                f"{self.topic}: {self.unacknowledged} records are not acknowledged after"
                f" {timeout_seconds:.3g} s; they are still being sent"
            ) from None

    async def _flush(self) -> None:
        gatherer = self.gatherer
        gatherer.seal()
        if gatherer.lone is not None:
            gatherer.lone_is_awaited = True
            self._turn()  # sees to it that its end is heard of
            await self._until(lambda: gatherer.lone is None or self._ended)
        for _ in range(gatherer.sealed):
            if self._failure is None:
                self._absorb()
                await asyncio.sleep(0)
        self._batcher.expedite()
        self._turn()
        pending = list(self._unsettled)

        def over() -> bool:
            while pending and pending[-1].done:
                pending.pop()
            return not pending or self._ended

        await self._until(over)
        if self._failure is not None:
            raise self._failure

    async def failure(self) -> Exception:
        """Wait until a record could not be delivered; for callers with nothing to send at the moment."""
        await self._until(lambda: self._failure is not None)
        assert self._failure is not None
        return self._failure

    def undelivered(self) -> list[tuple[int, pa.RecordBatch]]:
        """Records that were taken and not acknowledged, by partition and in order. After a failure they may
        be sent again elsewhere. Those of the failed request may be stored, unless the failure is `definite`.
        """
        return [(partition, piece.batch) for partition, piece in self._batcher.items()]

    def after_fork(self, error: ClientForked) -> None:
        """Called in the child of a fork: from now on `error` is raised, and the parent's connections are left
        alone."""
        self.gatherer.after_fork(error)
        self.sockets.after_fork()

    async def abort(self) -> None:
        """Stop at once. Records that are not acknowledged may or may not be stored."""
        self._aborted = True
        self._opened.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        tasks = [*self._requests, *([self._watcher] if self._watcher else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._stop()
        self.sockets.close()
        if self._failure is None:  # else it can still be asked for: `undelivered`
            self._batcher.drop_all()

    def _routes(self) -> TopicRoutes:
        """As far as known: an agent that has just come may not know the topic yet, and whether it is really
        gone is found out by the next request."""
        routes = self._cluster.routes.topic(self.topic)
        if routes is not None and routes.partitions:
            self._last_routes = routes
        if self._last_routes is None:
            raise ShoalError("unknown-topic", f"the topic {self.topic!r} is gone")
        return self._last_routes

    async def _wait_for_room(self, timeout_seconds: float | None) -> None:
        gatherer = self.gatherer
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._until(lambda: not gatherer.full or gatherer.stopped is not None)
        except TimeoutError:
            raise BufferFull(
                f"{self.topic}: {self._config.buffered_bytes_max} bytes wait to be acknowledged, and none"
                f" were within {timeout_seconds:g} s; nothing was taken"
            ) from None

    def _absorb(self) -> bool:
        """Encode one chunk and buffer its rows by partition; False when none is complete."""
        chunk = self.gatherer.take()
        if chunk is None:
            return False
        self._counts.records_sent += chunk.rows
        self._unsettled[chunk.delivery] = None
        for partition, piece in self._pieces(chunk):
            for part in split(piece, self._config):
                self._batcher.add(
                    partition, part, part.num_rows, part.nbytes, chunk.begun_ms, repeats=chunk.repeats
                )
        self.gatherer.account(self._batcher.buffered_bytes)
        return True

    def _pieces(self, chunk: Chunk | WholeBatch) -> list[tuple[int, Piece]]:
        batch = chunk.to_batch()
        routes = self._routes()
        if self._partition is None:
            self._spread = (self._spread + 1) % len(routes.partitions)
            null_key_hash = routes.ranges[self._spread].low
            positions = owners_of(batch.column(KEY_COLUMN), routes.ranges, null_key_hash)
            numbers = pa.array([route.partition for route in routes.partitions], pa.int32())
            owners = numbers.take(positions) if len(numbers) > 1 else pa.repeat(numbers[0], len(batch))
        else:
            owners = pa.repeat(pa.scalar(self._partition, pa.int32()), batch.num_rows)
        chosen = chunk.partitions
        if chosen:
            owners = pa.array(
                [chosen.get(row, owner) for row, owner in enumerate(owners.to_pylist())], pa.int32()
            )
        return [
            (partition, Piece(rows, chunk.delivery, _moved(numbers, chunk.first_row), chunk.first_row))
            for partition, (rows, numbers) in group_rows(batch, owners).items()
        ]

    def _turn(self) -> None:
        """Take gathered records, start requests that are due, and come back when the next one will be."""
        self._notify()
        if self._timer is not None:
            self._timer.cancel()
        if self._ended:
            if self.gatherer.sealed:  # a record that was on its way alone
                self._stop()
            return
        now = now_ms()
        loop = asyncio.get_running_loop()
        left_seconds = None if self.lone is None else self.lone.take_over()
        if left_seconds is not None:  # its sender calls again
            self._timer = loop.call_later(left_seconds, self._turn)
            return
        self.gatherer.seal(before_ms=now)
        try:
            more = self._absorb()  # one a turn: answers are read in between
        except Exception as error:  # noqa: BLE001 - the topic is gone, or a bug: the next `send` raises it
            self._fail(error)
            return
        for request in self._batcher.take(now):
            task = asyncio.create_task(self._deliver(request))
            self._requests.add(task)
            task.add_done_callback(self._requests.discard)
        if more:
            loop.call_soon(self._turn)
            return
        due = [at for at in (self._batcher.deadline(), self.gatherer.due_ms()) if at is not None]
        if due:
            self._timer = loop.call_later(max(min(due) - now, 0) / 1_000, self._turn)

    async def _deliver(self, request: Request[Piece]) -> None:
        try:
            answer = await self._post(request)
            if not self._batcher.is_oldest(request):  # one answered before those ahead of it
                await self._until(lambda: self._batcher.is_oldest(request) or self._ended)
            self._acknowledged(request, answer)
        except (ShoalError, Unreachable) as error:
            failure = self._explained(request, error)
            self._fail(failure)
            self._tell(request, None, False, failure)
        except Exception as error:  # noqa: BLE001 - a bug, also in on_delivery: `send`, `flush` and deliveries raise it
            self._fail(error)

    def _acknowledged(self, request: Request[Piece], answer: Answer) -> None:
        base_offset, duplicate = outcome_of(answer)
        self._batcher.settle(request)
        self._counts.records_acknowledged += request.rows
        self._counts.duplicates += duplicate
        first = base_offset
        for piece in request.items:
            piece.delivery.delivered(piece, request.partition, first)
            if piece.delivery.done:
                self._unsettled.pop(piece.delivery, None)
            first = None if first is None else first + piece.num_rows
        self.gatherer.account(self._batcher.buffered_bytes)
        self._turn()
        self._notify()
        self._tell(request, base_offset, duplicate, None)

    def _tell(
        self, request: Request[Piece], base_offset: int | None, duplicate: bool, error: ProduceFailed | None
    ) -> None:
        if self._on_delivery is not None:
            batch = joined([piece.batch for piece in request.items])
            self._on_delivery(Delivered(self.topic, request.partition, batch, base_offset, duplicate, error))

    async def _post(self, request: Request[Piece]) -> Answer:
        """Deliver. A request that overtook those ahead of it is sent again behind them. Where agents have
        forgotten the producer and see a gap, it is sent under a new identity, if nothing can be stored twice.
        """
        doubt = request.repeats
        while True:
            was_oldest = self._batcher.is_oldest(request)
            try:
                return await self._post_as(self._batcher.numbered(request))
            except ShoalError as error:
                if error.code != "sequence-gap":
                    raise
                doubt = doubt or not error.definite
                if was_oldest:
                    if doubt or self._batcher.numbered(request).sequence == 0:
                        raise
                    self._identities[request.partition] = uuid.uuid4().hex
                    self._batcher.restart(request.partition)
                    continue
                await self._until(lambda: self._batcher.is_oldest(request) or self._ended)
                if self._ended:
                    raise

    async def _post_as(self, request: Request[Piece]) -> Answer:
        identity = self._identities.setdefault(request.partition, uuid.uuid4().hex)
        call = self._call(request.partition, identity)
        call = call._replace(
            headers={**call.headers, "Shoal-Producer-Sequence": str(request.sequence)},
            body=encode_stream([piece.batch for piece in request.items], self._compression),
            append=True,
            on_written=lambda: self._written(request),
        )
        self._counts.requests += 1
        return await self._cluster.at_leader(self.topic, request.partition, call, DEPOSED_GRACE_MS)

    def _call(self, partition: int, identity: str) -> Call:
        """An append to a partition, but for its sequence and its records."""
        return Call(
            "POST",
            f"{topic_path(self.topic)}/partitions/{partition}/records",
            {"acks": self._acks, "timeout": f"{self._cluster.config.attempt_timeout_ms}ms"},
            {
                "Content-Type": ARROW_STREAM,
                "Shoal-Producer-Id": identity,
                "Shoal-Producer-Epoch": str(PRODUCER_EPOCH),
            },
        )

    def _written(self, request: Request[Piece]) -> None:
        self._batcher.written(request)
        if self._batcher.deadline() == 0:
            self._turn()

    def _explained(self, request: Request[Piece], error: ShoalError | Unreachable) -> ProduceFailed:
        code = error.code if isinstance(error, ShoalError) else "unreachable"
        definite = error.definite and not request.repeats
        fate = "is not stored" if definite else "may or may not be stored"
        what = f"{self.topic}/{request.partition}: a batch of {request.rows} records"
        text = f"{what} {fate}: {code}: {error.detail}"
        return ProduceFailed(text, cause_code=code, definite=definite, records=request.rows)

    def _fail(self, error: Exception) -> None:
        if self._failure is None:
            self._failure = error
            self._stop()

    def _stop(self) -> None:
        """Nothing more is taken nor acknowledged; all records that were taken are in the batcher."""
        error = self._failure or ClientClosed(f"the producer of {self.topic} is closed")
        self.gatherer.stop(error)
        self.gatherer.seal()
        while self._absorb():
            pass
        if isinstance(error, ProduceFailed):
            error.undelivered = self.undelivered()
        for delivery in self._unsettled:
            delivery.fail(error)
        self._unsettled.clear()
        self._notify()

    async def _until(self, over: Callable[[], bool]) -> None:
        """Wait until `over()`, which is asked again after each answer and each failure."""
        while not over():
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.add(waiting)
            try:
                await waiting
            finally:
                self._waiting.discard(waiting)

    def _notify(self) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    @property
    def _ended(self) -> bool:
        return self._aborted or self._failure is not None


def _check_options(acks: object, compression: object, partition: object, batching: object) -> None:
    """At the call: a wrong option that is found later would fail records that were taken already."""
    if acks not in _ACKS:
        raise ShoalError("bad-request", f"acks is one of {', '.join(_ACKS)}, not {acks!r}")
    if compression not in _COMPRESSIONS:
        raise ShoalError("bad-request", f"compression is lz4, zstd or None, not {compression!r}")
    if partition is not None and (partition.__class__ is not int or partition < 0):
        raise ShoalError("unknown-partition", f"a partition is a number from 0 on, not {partition!r}")
    if batching is not None:
        if not isinstance(batching, BatchingConfig):
            raise ShoalError("bad-request", f"batching is a BatchingConfig, not {batching!r:.80}")
        try:
            batching.validate()
        except ValueError as error:
            raise ShoalError("bad-request", f"batching: {error}") from None


def _moved(rows: pa.Array | None, by: int) -> pa.Array | None:
    return rows if rows is None or by == 0 else pc.add(rows, pa.scalar(by, rows.type))
