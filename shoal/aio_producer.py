"""The idempotent producer: buffers, sends, repeats until acknowledged.

Law of this file: it awaits; what becomes a request is decided in batching, what follows a failure in
client_routing, which partition a key goes to in routing. Every request carries (producer id, epoch,
sequence), and a repetition the same ones, so a retry never stores a record twice.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

import pyarrow as pa

from shoal.aio_cluster import Call, Cluster, Unreachable, now_ms, topic_path
from shoal.batch import DEFAULT_SCHEMA
from shoal.batching import Batcher, BatchingConfig, Request, split
from shoal.client_routing import TopicRoutes
from shoal.errors import ShoalError
from shoal.routing import partition_batch

Acks = Literal["all", "leader", "none"]
ARROW_STREAM = "application/vnd.apache.arrow.stream"
PRODUCER_EPOCH = 0  # an id is used by one producer only, so nothing is ever fenced off

# A leader that neither answers nor loses its connection (a stopped process, a pulled cable) is left for the
# one that the routes name, this long after they named it. An old leader that handed over answers within it.
DEPOSED_GRACE_MS = 500
# A topic that one agent has just created is known to the others well within this.
CREATED_TOPIC_SEEN_MS = 10_000


class ProduceFailed(Exception):
    """Some records were not acknowledged. `cause_code` is the table's word for why, or "unreachable".

    `definite`: they are certainly not stored; otherwise they may or may not be.
    """

    def __init__(self, detail: str, *, cause_code: str, definite: bool) -> None:
        super().__init__(detail)
        self.cause_code = cause_code
        self.definite = definite


@dataclass(slots=True)
class ProducerStatistics:
    """Counts since the producer was opened. `records_sent` went into the buffer, the rest were answered."""

    records_sent: int = 0
    records_acknowledged: int = 0
    requests: int = 0
    duplicates: int = 0


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


def encode_stream(batches: tuple[pa.RecordBatch, ...]) -> bytes:
    """The batches as one Arrow IPC stream of a single batch: one request, one sequence, one log entry."""
    batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


class Producer:
    """Sends records to one topic. Use as `async with client.producer(topic) as producer`.

    Leaving the block flushes: it raises ProduceFailed unless everything was acknowledged. Not for several
    tasks that must not wait for each other: `send` waits while the buffer is full.
    """

    def __init__(
        self, cluster: Cluster, topic: str, *, acks: Acks, partition: int | None, batching: BatchingConfig
    ) -> None:
        self.topic = topic
        self.statistics = ProducerStatistics()
        self._cluster = cluster
        self._acks = acks
        self._partition = partition
        self._batcher: Batcher[pa.RecordBatch] = Batcher(batching)
        self._identities: dict[int, str] = {}
        self._deliveries: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Condition()
        self._failure: Exception | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._spread = 0
        self._aborted = False

    async def __aenter__(self) -> Self:
        await self._find_topic()
        self._watcher = asyncio.create_task(self._cluster.watch(self.topic))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None and not self._aborted:
                await self.flush()
        finally:
            await self.abort()

    @property
    def unacknowledged(self) -> int:
        """Records that were sent and not acknowledged."""
        return self.statistics.records_sent - self.statistics.records_acknowledged

    async def send(self, value: bytes | None, key: bytes | None = None) -> None:
        """Buffer one record. For many records, `send_batch` costs a hundredth of this per record."""
        await self.send_batch(batch_of([value], [key]))

    async def send_batch(self, batch: pa.RecordBatch) -> None:
        """Buffer the rows of `batch`, each for the partition of its key; waits while the buffer is full.

        Rows without a key go together to one partition, another one with each call. Raises ProduceFailed
        once any record could not be delivered.
        """
        while self._batcher.full and self._failure is None:
            async with self._changed:
                await self._changed.wait_for(lambda: not self._batcher.full or self._failure is not None)
        self._raise_failure()
        if not batch.schema.equals(DEFAULT_SCHEMA):
            raise ShoalError(
                "schema-mismatch", f"{self.topic} takes batches of DEFAULT_SCHEMA; batch_of() makes them"
            )
        if batch.num_rows == 0:
            return
        self.statistics.records_sent += batch.num_rows
        now = now_ms()
        for partition, rows in self._partitioned(batch).items():
            for piece in split(rows, self._batcher.config):
                self._batcher.add(partition, piece, piece.num_rows, piece.nbytes, now)
        self._pump()

    async def flush(self) -> None:
        """Return when everything sent so far is acknowledged. Raises ProduceFailed when some of it cannot
        be.
        """
        self._batcher.expedite()
        self._pump()
        async with self._changed:
            await self._changed.wait_for(
                lambda: self._batcher.buffered_rows == 0 or self._failure is not None
            )
        self._raise_failure()

    async def failure(self) -> Exception:
        """Wait until a record could not be delivered; for those who have nothing to send at the moment."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._failure is not None)
        assert self._failure is not None
        return self._failure

    async def abort(self) -> None:
        """Stop at once. What was not acknowledged may or may not be stored."""
        self._aborted = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        tasks = [*self._deliveries, *([self._watcher] if self._watcher else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._batcher.drop_all()

    async def _find_topic(self) -> None:
        """Learn the topic's routes; let the agents create it if they do that for producers."""
        retry_ms = self._cluster.config.retry.total_ms
        await self._cluster.learn_agents(retry_ms=retry_ms)
        try:
            await self._cluster.refresh(self.topic, retry_ms=retry_ms)
        except ShoalError as error:
            if error.code != "unknown-topic":
                raise
            await self._create_topic(retry_ms)
        if self._partition is not None and self._routes().get(self._partition) is None:
            count = len(self._routes().partitions)
            raise ShoalError(
                "unknown-partition", f"{self.topic} has no partition {self._partition}, only {count}"
            )

    async def _create_topic(self, retry_ms: int) -> None:
        """Create the topic with default settings, as an agent does for a producer, unless that is turned
        off.
        """
        agent = (await self._cluster.anywhere(Call("GET", "/v1/agent"))).document()
        configuration = agent.get("configuration")
        if isinstance(configuration, dict) and configuration.get("auto_create_topics") is False:
            raise ShoalError(
                "unknown-topic", f"there is no topic {self.topic!r}, and producing does not create it"
            )
        try:
            await self._cluster.anywhere(Call("PUT", topic_path(self.topic)), retry_ms=retry_ms)
        except ShoalError as error:
            if error.code != "topic-differs":  # somebody was quicker, with settings of their own
                raise
        deadline_ms = now_ms() + CREATED_TOPIC_SEEN_MS
        while True:
            try:
                await self._cluster.refresh(self.topic)
            except ShoalError as error:
                # Another agent may have answered, which has not heard of the new topic yet.
                if error.code != "unknown-topic" or now_ms() > min(
                    deadline_ms, deadline_ms - retry_ms + 10_000
                ):
                    raise
            else:
                return
            await asyncio.sleep(0.05)

    def _routes(self) -> TopicRoutes:
        routes = self._cluster.routes.topic(self.topic)
        if routes is None or not routes.partitions:
            raise ShoalError("unknown-topic", f"the topic {self.topic!r} is gone")
        return routes

    def _partitioned(self, batch: pa.RecordBatch) -> dict[int, pa.RecordBatch]:
        if self._partition is not None:
            return {self._partition: batch}
        routes = self._routes()
        self._spread = (self._spread + 1) % len(routes.partitions)
        null_key_hash = routes.ranges[self._spread].low
        by_position = partition_batch(batch, routes.ranges, null_key_hash)
        return {routes.partitions[position].partition: rows for position, rows in by_position.items()}

    def _pump(self) -> None:
        """Start the requests that are due, and come back when the next one will be."""
        if self._failure is not None:
            return
        now = now_ms()
        for request in self._batcher.take(now):
            task = asyncio.create_task(self._deliver(request))
            self._deliveries.add(task)
            task.add_done_callback(self._deliveries.discard)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self._batcher.deadline()
        if deadline is not None:
            self._timer = asyncio.get_running_loop().call_later(max(deadline - now, 0) / 1_000, self._pump)

    async def _deliver(self, request: Request[pa.RecordBatch]) -> None:
        try:
            await self._post(request)
        except (ShoalError, Unreachable) as error:
            await self._fail(self._explained(request, error))
            return
        except Exception as error:
            await self._fail(error)  # a bug: those who wait for this request must hear of it
            raise
        self._batcher.settle(request.partition)
        self.statistics.records_acknowledged += request.rows
        self._pump()
        async with self._changed:
            self._changed.notify_all()

    async def _post(self, request: Request[pa.RecordBatch]) -> None:
        """Deliver, with a new identity if the agents have forgotten the old one and nothing can be stored
        twice.
        """
        try:
            await self._post_as(request, request.sequence)
        except ShoalError as error:
            if error.code != "sequence-gap" or request.sequence == 0 or not error.definite:
                raise
            self._identities[request.partition] = uuid.uuid4().hex
            self._batcher.restart(request.partition)
            await self._post_as(request, 0)

    async def _post_as(self, request: Request[pa.RecordBatch], sequence: int) -> None:
        identity = self._identities.setdefault(request.partition, uuid.uuid4().hex)
        config = self._cluster.config
        call = Call(
            "POST",
            f"{topic_path(self.topic)}/partitions/{request.partition}/records",
            {"acks": self._acks, "timeout": f"{config.attempt_timeout_ms}ms"},
            {
                "Content-Type": ARROW_STREAM,
                "Shoal-Producer-Id": identity,
                "Shoal-Producer-Epoch": str(PRODUCER_EPOCH),
                "Shoal-Producer-Sequence": str(sequence),
            },
            encode_stream(request.items),
        )
        self.statistics.requests += 1
        answer = await self._cluster.at_leader(
            self.topic,
            request.partition,
            call,
            retry_ms=config.retry.total_ms,
            deposed_grace_ms=DEPOSED_GRACE_MS,
        )
        if answer.status == 200 and answer.document().get("duplicate"):
            self.statistics.duplicates += 1

    def _explained(self, request: Request[pa.RecordBatch], error: ShoalError | Unreachable) -> ProduceFailed:
        code = error.code if isinstance(error, ShoalError) else "unreachable"
        fate = "is not stored" if error.definite else "may or may not be stored"
        what = f"{self.topic}/{request.partition}: a batch of {request.rows} records"
        return ProduceFailed(
            f"{what} {fate}: {code}: {error.detail}", cause_code=code, definite=error.definite
        )

    async def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        async with self._changed:
            self._changed.notify_all()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
