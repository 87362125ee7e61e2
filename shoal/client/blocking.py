"""The blocking client: the same shape as the asyncio one, for scripts, threads and notebooks.

Law of this file: it decides nothing; what is asked runs in aio, on a thread that the client owns. Records go
into the gatherer on the caller's own thread, without crossing over.

    with Client("http://127.0.0.1:7070") as client:
        with client.producer("flights") as producer:
            producer.send(b'{"carrier": "UA"}', key=b"UA")
        for record in client.consumer("flights"):
            print(record.partition, record.offset, record.value)

Threads may share a Client and its producers; a consumer belongs to one thread at a time. After a fork the
child must open its own: everything opened before raises ClientForked there.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import pyarrow as pa

from shoal.client.async_admin import ChangeableOptions, TopicOptions
from shoal.client.async_client import CONSUMER_FETCH_BYTES, DEFAULT_FETCH_BYTES, SEND_TOPICS_MAX, AsyncClient
from shoal.client.blocking_consumer import Consumer
from shoal.client.consume.consumer import AsyncConsumer, Start
from shoal.client.consume.fetch import Fetched, PartitionOffsets
from shoal.client.http.requests import ClientConfig
from shoal.client.loop_thread import LoopThread, forked
from shoal.client.produce.accumulator import RECORD_OVERHEAD_BYTES, Gatherer, HeadersLike, Text
from shoal.client.produce.batcher import BatchingConfig
from shoal.client.produce.delivery import Delivery, Place
from shoal.client.produce.json_values import SendOptions, json_value
from shoal.client.produce.lone_record import ANSWER_SECONDS, Lone, LonePath
from shoal.client.produce.lone_socket import LoneSockets
from shoal.client.produce.producer import (
    Acks,
    Compression,
    OnDelivery,
    ProduceFailed,
    ProducerStatistics,
)
from shoal.client.produce.producer import Producer as AsyncProducer
from shoal.errors import ClientClosed, ClientError
from shoal.format.timestamps import Timestamp
from shoal.unpicklable import LiveObject

T = TypeVar("T")

__all__ = ["Client", "Consumer", "Producer"]

logger = logging.getLogger("shoal.client")
_FINISHING: set[LoopThread] = set()
"""Of clients that were dropped without being closed."""
_OPEN: weakref.WeakSet[Client] = weakref.WeakSet()
"""Clients that were not closed: flushed at the interpreter's end, and told of forks."""


class Client(LiveObject):
    """A client of one cluster. Use it in a `with` block, or call `close`.

    `bootstrap`: one or more agents' URLs (none: what SHOAL_AGENT names, or http://127.0.0.1:7070); further
    agents are learnt from them, so that any may die later. Or `seeds`, gossip addresses ("host:7946") of any
    members, or `mdns`, a cluster's name (True: the only one there is); a sealed pool needs one of its keys
    as `gossip_key` in base64, a labelled one its label. All methods raise ShoalError (an agent refused; .code
    says why), Unreachable (no agent answered), ClientClosed and ClientForked.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str] | None = None,
        config: ClientConfig | None = None,
        *,
        seeds: Sequence[str] | None = None,
        mdns: str | bool | None = None,
        gossip_key: str | None = None,
        gossip_label: str = "",
    ) -> None:
        self._async = AsyncClient(
            bootstrap, config, seeds=seeds, mdns=mdns, gossip_key=gossip_key, gossip_label=gossip_label
        )
        self._senders: dict[str, Producer] = {}
        """Those of `send`, by topic."""
        self._producers: set[Producer] = set()
        self._inner: set[AsyncProducer] = set()
        """Theirs, for whoever closes what was not closed."""
        self._readers: weakref.WeakSet[AsyncConsumer] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._closed = False
        self._thread = LoopThread("shoal-client")
        try:
            self._thread.run(self._async.open())
        except BaseException:
            self._thread.close()
            raise
        self._unclosed = weakref.finalize(self, _close_in_passing, self._thread, self._async, self._inner)
        self._unclosed.atexit = False  # `_close_all` is for those that live then
        _OPEN.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(flush=kind is None)

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        return f"<{type(self).__name__}{repr(self._async)[len('<AsyncClient') : -1]}{state}>"

    def close(self, *, flush: bool = True) -> None:
        """Take nothing more, flush all producers, then stop. Idempotent. Raises ProduceFailed; it is closed
        all the same."""
        if self._closed:
            return
        self._closed = True
        self._unclosed.detach()
        try:
            if flush:
                for producer in list(self._producers):
                    producer.gatherer.stop(ClientClosed("the client is closed"))
                self._flush(None)
        finally:
            _OPEN.discard(self)
            try:
                for producer in list(self._producers):
                    producer.abort()
                for reader in list(self._readers):
                    self._run(reader.close())
                self._run(self._async.close(flush=False))
            finally:
                self._thread.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._thread.run(work)

    def after_fork(self) -> None:
        """Called in the child of a fork: nothing of this works there, and says so."""
        self._thread.after_fork()
        self._closed = True
        self._unclosed.detach()
        self._lock = threading.Lock()
        for producer in self._producers:
            producer.after_fork()

    # --- asking

    @property
    def retries(self) -> int:
        """Attempts that were repeated, over everything this client did."""
        return self._async.retries

    @property
    def leader_changes(self) -> int:
        """How often this client saw a partition move to another leader."""
        return self._async.leader_changes

    def agent(self) -> dict[str, Any]:
        """GET /v1/agent of the first agent that answers."""
        return self._run(self._async.agent())

    def ready(self) -> bool:
        """Whether the first agent that answers can serve."""
        return self._run(self._async.ready())

    def members(self) -> dict[str, Any]:
        """GET /v1/members."""
        return self._run(self._async.members())

    def routes(self, topic: str | None = None) -> dict[str, Any]:
        """GET /v1/routes."""
        return self._run(self._async.routes(topic))

    def topics(self) -> list[dict[str, Any]]:
        """Every topic."""
        return self._run(self._async.topics())

    def topic(self, name: str) -> dict[str, Any]:
        """One topic's settings, partitions, replicas, offsets."""
        return self._run(self._async.topic(name))

    def create_topic(
        self, name: str, settings: Mapping[str, Any] | None = None, **named: Unpack[TopicOptions]
    ) -> tuple[bool, dict[str, Any]]:
        """Create a topic; False beside it if it was there already, with equal settings. They may be named:
        `create_topic("orders", partitions=6, retention={"age": "7d"})`."""
        return self._run(self._async.create_topic(name, settings, **named))

    def alter_topic(self, name: str, **named: Unpack[ChangeableOptions]) -> dict[str, Any]:
        """The topic with its retention or segments changed, the other settings as they were."""
        return self._run(self._async.alter_topic(name, **named))

    def trim(self, topic: str, partition: int, before: int) -> dict[str, Any]:
        """Drop whole segments whose records all lie below offset `before`; the answer says where the log
        begins now."""
        return self._run(self._async.trim(topic, partition, before))

    def delete_topic(self, name: str) -> None:
        """Delete a topic: its records are gone for good. Raises unknown-topic if it was not there."""
        self._run(self._async.delete_topic(name))

    def offsets(self, topic: str, at: str | None = None) -> list[PartitionOffsets]:
        """The valid offsets of every partition, and those of the first record at or after the time `at`."""
        return self._run(self._async.offsets(topic, at))

    def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        max_bytes: int = DEFAULT_FETCH_BYTES,
        wait_ms: int = 0,
    ) -> Fetched:
        """One read of one partition at its leader."""
        return self._run(self._async.fetch(topic, partition, offset, max_bytes=max_bytes, wait_ms=wait_ms))

    # --- producing and consuming

    def producer(
        self,
        topic: str,
        *,
        acks: Acks = "all",
        partition: int | None = None,
        batching: BatchingConfig | None = None,
        compression: Compression | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Producer:
        """An idempotent producer for one topic, open; `partition` sends everything there, whatever the keys.

        `compression` of the stored batches: lz4 or zstd. `on_delivery` is called once for each request, on
        the client's own thread: it must be quick, and must not wait for this client.
        """
        self._check_open()
        inner = self._async.producer(
            topic,
            acks=acks,
            partition=partition,
            batching=batching,
            compression=compression,
            on_delivery=on_delivery,
        )
        self._run(inner.open())
        self._inner.add(inner)
        producer = Producer(self, self._thread, inner, self._left)
        self._producers.add(producer)
        return producer

    def _left(self, producer: Producer, inner: AsyncProducer) -> None:
        self._producers.discard(producer)
        self._inner.discard(inner)

    def send(
        self,
        topic: str,
        value: Text | None,
        key: Text | None = None,
        *,
        headers: HeadersLike | None = None,
        timestamp: Timestamp | None = None,
        partition: int | None = None,
        timeout_seconds: float | None = None,
    ) -> Delivery:
        """Buffer one record for a topic, through a producer with default settings that the client keeps;
        `flush` or `close` waits for all of them. Raises as Producer.send."""
        producer = self._senders.get(topic)
        if producer is None:
            producer = self._opened(topic)
        # As in Producer.send: a call costs a quarter of the rest.
        elif (
            value.__class__ is bytes
            and key is None
            and headers is None
            and timestamp is None
            and partition is None
        ):
            gatherer = producer.gatherer
            with gatherer.lock:
                chunk = gatherer.chunk
                if chunk is not None:
                    size_bytes = chunk.size_bytes + len(value) + RECORD_OVERHEAD_BYTES
                    if size_bytes < chunk.open_bytes:
                        chunk.values.append(value)
                        chunk.size_bytes = size_bytes
                        return chunk.delivery
        try:
            return producer.gatherer.put(value, key, headers, timestamp, partition, timeout_seconds)
        except ProduceFailed:
            self._forget(producer)
            raise

    def send_json(
        self, topic: str, value: object, key: Text | None = None, **options: Unpack[SendOptions]
    ) -> Delivery:
        """As `send`, of a value as compact JSON. Raises as Producer.send_json."""
        return self.send(topic, json_value(value), key, **options)

    def flush(self, timeout_seconds: float | None = None) -> None:
        """Wait until everything that was sent is acknowledged, by all producers. Raises ProduceFailed; its
        `undelivered` is what was not. After it was raised once, `send` begins anew. Raises TimeoutError after
        `timeout_seconds`: nothing is given up then, flush again."""
        self._check_open()
        self._flush(timeout_seconds)

    def _flush(self, timeout_seconds: float | None) -> None:
        until = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        for producer in list(self._producers):
            try:
                producer.flush(None if until is None else max(0.0, until - time.monotonic()))
            except ProduceFailed:
                self._forget(producer)
                raise

    def _forget(self, producer: Producer) -> None:
        """A sender that failed, and said so, makes room for another."""
        with self._lock:
            if self._senders.get(producer.topic) is producer:
                del self._senders[producer.topic]
                producer.abort()

    def consumer(
        self,
        topic: str,
        *,
        partitions: Sequence[int] | None = None,
        start: Start = "earliest",
        follow: bool = False,
        max_bytes: int = CONSUMER_FETCH_BYTES,
        nearest: bool = False,
    ) -> Consumer:
        """A reader of some or all partitions, with positions, open.

        `start`: earliest, latest, -N (the last N of each partition), @TIME, or a mapping of partitions to
        these or to offsets (partitions it does not name are not read). Without `follow` it ends at the high
        watermarks of this moment. `nearest`: replicas may answer, with committed records only.
        """
        self._check_open()
        inner = self._async.consumer(
            topic,
            partitions=partitions,
            start=start,
            follow=follow,
            max_bytes=max_bytes,
            nearest=nearest,
        )
        self._run(inner.open())
        self._readers.add(inner)
        return Consumer(self, self._thread, inner)

    def _opened(self, topic: str) -> Producer:
        with self._lock:
            if topic not in self._senders:
                if len(self._senders) >= SEND_TOPICS_MAX:
                    raise ClientError(
                        f"send() keeps a producer for each topic, at most {SEND_TOPICS_MAX}: use producer()"
                    )
                self._senders[topic] = self.producer(topic)
            return self._senders[topic]

    def _check_open(self) -> None:
        if self._closed:
            self._run(_nothing())  # says forked, if that is why
            raise ClientClosed("the client is closed")


class Producer(LiveObject):
    """Sends records to one topic; made by Client.producer. Threads may share it.

    Leaving its `with` block flushes, and raises ProduceFailed unless everything was acknowledged; leaving it
    by an exception stops at once. At the interpreter's end open clients flush what was sent.
    """

    def __init__(
        self,
        client: Client,
        thread: LoopThread,
        inner: AsyncProducer,
        on_closed: Callable[[Producer, AsyncProducer], None],
    ) -> None:
        self._client = client  # it lives as long as anything that was made by it
        self._thread = thread
        self._inner = inner
        self._on_closed = on_closed
        self.gatherer: Gatherer = inner.gatherer
        self._sockets = LoneSockets(inner.connect_timeout_seconds)
        inner.at_abort.append(self._sockets.close)
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._inner.topic

    @property
    def statistics(self) -> ProducerStatistics:
        """What was sent and answered since the producer was opened."""
        return self._inner.statistics

    @property
    def unacknowledged(self) -> int:
        """Records that were sent and not acknowledged."""
        return self._inner.unacknowledged

    def send(
        self,
        value: Text | None,
        key: Text | None = None,
        *,
        headers: HeadersLike | None = None,
        timestamp: Timestamp | None = None,
        partition: int | None = None,
        timeout_seconds: float | None = None,
    ) -> Delivery:
        """Buffer one record; waits while the buffer is full. Text is stored as its UTF-8.

        The Delivery is shared by the records that are gathered together. Raises ProduceFailed once any record
        could not be delivered, ShoalError too-large, bad-request or unknown-partition for this one, and
        BufferFull when there was no room for `timeout_seconds`; this record was not taken then.
        """
        if (
            value.__class__ is bytes
            and key is None
            and headers is None
            and timestamp is None
            and partition is None
        ):
            gatherer = self.gatherer
            with gatherer.lock:
                chunk = gatherer.chunk
                if chunk is not None:
                    size_bytes = chunk.size_bytes + len(value) + RECORD_OVERHEAD_BYTES
                    if size_bytes < chunk.open_bytes:
                        chunk.values.append(value)
                        chunk.size_bytes = size_bytes
                        return chunk.delivery
        return self.gatherer.put(value, key, headers, timestamp, partition, timeout_seconds)

    def send_json(self, value: object, key: Text | None = None, **options: Unpack[SendOptions]) -> Delivery:
        """`send` of a value as compact JSON (None is `null`, no tombstone); `Record.json` reads it. Raises as
        `send`, and bad-request for what JSON cannot express."""
        return self.send(json_value(value), key, **options)

    def append(
        self,
        value: Text | None,
        key: Text | None = None,
        *,
        headers: HeadersLike | None = None,
        timestamp: Timestamp | None = None,
        partition: int | None = None,
        timeout_seconds: float | None = None,
    ) -> Place:
        """Send one record without waiting for company, behind all sent before, and wait until it is
        acknowledged; returns its partition and offset. Raises as `send`, and TimeoutError when there is no
        acknowledgement for `timeout_seconds`: it may still come."""
        path = self._inner.lone
        patient = timeout_seconds is None or timeout_seconds >= 2 * ANSWER_SECONDS
        if path is not None and headers is None and timestamp is None and patient:
            lone = path.begin(value, key, partition)
            if lone is not None:
                return self._append_alone(path, lone, timeout_seconds)
        delivery = self.gatherer.put_alone(value, key, headers, timestamp, partition, timeout_seconds)
        delivery.result(timeout_seconds)
        return delivery.place(0)

    def _append_alone(self, path: LonePath, lone: Lone, timeout_seconds: float | None) -> Place:
        started = time.monotonic()
        try:
            place = path.settle(lone, self._sockets.exchange(lone) if lone.request else None)
        except BaseException:
            path.hand_over(lone)
            raise
        if place is None:
            assert lone.chunk is not None
            delivery = lone.chunk.delivery
            if timeout_seconds is not None:
                timeout_seconds = max(0.0, timeout_seconds - (time.monotonic() - started))
            delivery.result(timeout_seconds)
            place = delivery.place(0)
        return place

    def send_batch(self, data: Any, timeout_seconds: float | None = None) -> Delivery:
        """Buffer the rows of a RecordBatch, pyarrow Table, pandas or polars frame, each row for the partition
        of its key; waits while the buffer is full. Raises as `send`, and schema-mismatch for columns that are
        not the topic's."""
        return self.gatherer.put_batches(self._inner.batches(data), timeout_seconds)

    def flush(self, timeout_seconds: float | None = None) -> None:
        """Return when everything sent so far is acknowledged. Raises ProduceFailed when some of it cannot be,
        and TimeoutError when that takes longer than `timeout_seconds`: nothing is given up then, flush
        again."""
        self._thread.run(self._inner.flush(timeout_seconds))

    def undelivered(self) -> list[tuple[int, pa.RecordBatch]]:
        """What was taken and not acknowledged, by partition and in order: after a failure, what to send again
        elsewhere. Those of the request that failed may be stored, unless the failure is `definite`."""
        return self._thread.run(self._inner.undelivered_now())

    def after_fork(self) -> None:
        """Called in the child of a fork: nothing of this works there, and says so."""
        self.gatherer.after_fork(forked())
        self._sockets.after_fork()

    def close(self) -> None:
        """Take nothing more, flush, then stop. Idempotent. Raises ProduceFailed; it is closed all the
        same."""
        if self._closed:
            return
        try:
            self._inner.finish()
            self.flush()
        finally:
            self.abort()

    def abort(self) -> None:
        """Stop at once. What was not acknowledged may or may not be stored. Idempotent."""
        if not self._closed:
            self._closed = True
            try:
                self._thread.run(self._inner.abort())
            finally:
                self._on_closed(self, self._inner)


async def _nothing() -> None:
    return None


def _close_in_passing(thread: LoopThread, client: AsyncClient, producers: set[AsyncProducer]) -> None:
    """A client that nobody has any more was not closed: what was sent is delivered, and its thread ends. This
    may be any thread, in the midst of anything: nothing is waited for."""

    async def finish() -> None:
        try:
            for producer in list(producers):
                await producer.close()
            await client.close()
        except ProduceFailed as error:
            logger.error("a client was dropped without close(), and %s", error)
        finally:
            _FINISHING.discard(thread)

    _FINISHING.add(thread)
    if not thread.finish(finish):
        _FINISHING.discard(thread)
    warnings.warn(
        "a shoal.Client was dropped without close(): what was sent is still delivered, but nobody hears of a"
        " failure; use `with`",
        ResourceWarning,
        stacklevel=1,
    )


def _close_all() -> None:
    """At the interpreter's end: nothing that was sent is lost for want of a `with`."""
    for client in list(_OPEN):
        try:
            client.close()
        except Exception as error:  # noqa: BLE001 - nobody is there to catch it; the others are closed all the same
            logger.error("at the interpreter's end %s: %s", type(error).__name__, error)
    for thread in list(_FINISHING):
        thread.join()


def _fork_all() -> None:
    for client in list(_OPEN):
        client.after_fork()
    _OPEN.clear()
    _FINISHING.clear()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_fork_all)
