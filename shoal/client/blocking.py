"""The blocking client: the same shape as the asyncio one, for scripts, threads and notebooks.

Law of this file: it decides nothing. The asyncio client decides, on a thread that this client owns. Single
records go into the gatherer on the caller's own thread, without crossing over.

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
import time
import warnings
import weakref
from collections.abc import Sequence
from typing import Any, Self, Unpack

import pyarrow as pa

from shoal.client.async_admin import ClientOptions
from shoal.client.async_client import AsyncClient
from shoal.client.blocking_consumer import Consumer
from shoal.client.blocking_subscription import Subscription
from shoal.client.blocking_table import Table, TableWatch
from shoal.client.consume.consumer import ConsumerOptions
from shoal.client.http.requests import ClientConfig
from shoal.client.loop_thread import LoopThread, forked, on_thread
from shoal.client.produce.accumulator import RECORD_OVERHEAD_BYTES, DueOptions, SendOptions
from shoal.client.produce.delivery import Delivery, Place, ProducerStatistics
from shoal.client.produce.lone_record import ANSWER_SECONDS
from shoal.client.produce.producer import AsyncProducer, ProduceFailed, ProducerOptions
from shoal.client.subscribe.options import SubscribeOptions
from shoal.errors import ClientClosed
from shoal.format.plain_values import Text, json_value
from shoal.unpicklable import LiveObject

__all__ = ["Client", "Consumer", "Producer", "Subscription", "Table", "TableWatch"]

logger = logging.getLogger("shoal.client")
_FINISHING: set[LoopThread] = set()
"""Of clients that were dropped without being closed."""
_OPEN: weakref.WeakSet[Client] = weakref.WeakSet()
"""Clients that were not closed: flushed at the interpreter's end, and told of forks."""


class Client(LiveObject):
    """A client of one cluster. Use it in a `with` block, or call `close`.

    Parameters are those of AsyncClient. All methods raise ShoalError (an agent refused; .code says why),
    Unreachable (no agent answered), ClientClosed and ClientForked.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str] | None = None,
        config: ClientConfig | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        self._inner = AsyncClient(bootstrap, config, **options)
        self._closed = False
        self._thread = LoopThread("shoal-client")
        try:
            self._thread.run(self._inner.open())
        except BaseException:
            self._thread.close()
            raise
        self._unclosed = weakref.finalize(self, _close_in_passing, self._thread, self._inner)
        self._unclosed.atexit = False  # `_close_all` is for those that live then
        _OPEN.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(flush=kind is None)

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        return f"<{type(self).__name__}{repr(self._inner)[len('<AsyncClient') : -1]}{state}>"

    def close(self, *, flush: bool = True) -> None:
        """Take nothing more, flush all producers, then stop. Idempotent. Raises ProduceFailed; the client is
        closed even then."""
        if self._closed:
            return
        self._closed = True
        self._unclosed.detach()
        try:
            if flush:
                self._thread.run(self._inner.finish())
        finally:
            _OPEN.discard(self)
            try:
                self._thread.run(self._inner.close(flush=False))
            finally:
                self._thread.close()

    def after_fork(self) -> None:
        """Called in the child of a fork: every use there raises ClientForked."""
        self._thread.after_fork()
        self._closed = True
        self._unclosed.detach()
        self._inner.after_fork(forked())

    # --- asking

    @property
    def retries(self) -> int:
        """Attempts that were repeated, over everything this client did."""
        return self._inner.retries

    @property
    def leader_changes(self) -> int:
        """How often this client saw a partition move to another leader."""
        return self._inner.leader_changes

    agent = on_thread(AsyncClient.agent)
    ready = on_thread(AsyncClient.ready)
    members = on_thread(AsyncClient.members)
    routes = on_thread(AsyncClient.routes)
    topics = on_thread(AsyncClient.topics)
    topic = on_thread(AsyncClient.topic)
    create_topic = on_thread(AsyncClient.create_topic)
    topic_settings = on_thread(AsyncClient.topic_settings)
    alter_topic = on_thread(AsyncClient.alter_topic)
    trim = on_thread(AsyncClient.trim)
    delete_topic = on_thread(AsyncClient.delete_topic)
    groups = on_thread(AsyncClient.groups)
    group = on_thread(AsyncClient.group)
    create_group = on_thread(AsyncClient.create_group)
    change_group = on_thread(AsyncClient.change_group)
    delete_group = on_thread(AsyncClient.delete_group)
    seek_group = on_thread(AsyncClient.seek_group)
    redrive_group = on_thread(AsyncClient.redrive_group)
    decide_stopped = on_thread(AsyncClient.decide_stopped)
    offsets = on_thread(AsyncClient.offsets)
    fetch = on_thread(AsyncClient.fetch)

    # --- producing and consuming

    def producer(self, topic: str, **options: Unpack[ProducerOptions]) -> Producer:
        """An idempotent producer for one topic, open. `on_delivery` is called on the client's own thread: the
        callback must be quick, and must not wait for this client."""
        self._check_open()
        inner = self._inner.producer(topic, **options)
        self._thread.run(inner.open())
        return Producer(self, self._thread, inner)

    def send(
        self, topic: str, value: Text | None, key: Text | None = None, **options: Unpack[SendOptions]
    ) -> Delivery:
        """Buffer one record for a topic, through a producer with default settings that the client keeps;
        `flush` or `close` waits for all of them. Raises as Producer.send."""
        producer = self._inner.senders.get(topic)
        if producer is None:
            self._check_open()
            producer = self._thread.run(self._inner.sender(topic))
        # As in Producer.send: a call costs a quarter of the rest.
        elif key is None and value.__class__ is bytes and not options:
            gatherer = producer.gatherer
            with gatherer.lock:
                chunk = gatherer.chunk
                size_bytes = chunk.size_bytes + len(value) + RECORD_OVERHEAD_BYTES
                if size_bytes < chunk.open_bytes:
                    chunk.values.append(value)
                    chunk.size_bytes = size_bytes
                    return chunk.delivery
        try:
            if options:
                return producer.gatherer.put(value, key, **options)
            return producer.gatherer.put(value, key)
        except ProduceFailed:
            self._thread.run(self._inner.forget(producer))
            raise

    def send_json(
        self, topic: str, value: object, key: Text | None = None, **options: Unpack[SendOptions]
    ) -> Delivery:
        """As `send`, of a value as compact JSON. Raises as Producer.send_json."""
        return self.send(topic, json_value(value), key, **options)

    flush = on_thread(AsyncClient.flush_all)

    def consumer(self, topic: str, **options: Unpack[ConsumerOptions]) -> Consumer:
        """A reader of some or all partitions, with positions, open."""
        inner = self._inner.consumer(topic, **options)
        self._thread.run(inner.open())
        return Consumer(self, self._thread, inner)

    def subscribe(self, topic: str, *, group: str, **options: Unpack[SubscribeOptions]) -> Subscription:
        """A consumer of a group, open: `for message in client.subscribe("payments", group="g"):` acks each
        message when the next one is asked for, and has it come again when its body raises. A group that does
        not exist is made."""
        inner = self._inner.subscribe(topic, group=group, **options)
        self._thread.run(inner.open())
        return Subscription(self, self._thread, inner)

    def table(self, topic: str, *, local: bool = False) -> Table:
        """A topic of kind table as a mapping: `client.table("users")["ada"] = b"..."`. With `local` the
        nearest replica answers reads: sooner, and perhaps without the latest writes."""
        return Table(self, self._thread, self._inner.table(topic, local=local))

    def _check_open(self) -> None:
        """A producer that is opened while the client closes would not be flushed."""
        if self._closed:
            raise self._thread.refusal() or ClientClosed("the client is closed")


class Producer(LiveObject):
    """Sends records to one topic; made by Client.producer. Threads may share it.

    Leaving its `with` block flushes, and raises ProduceFailed unless everything was acknowledged; leaving it
    by an exception stops at once. At the interpreter's end open clients flush.
    """

    def __init__(self, client: Client, thread: LoopThread, inner: AsyncProducer) -> None:
        self._client = client  # the client lives as long as anything that it made
        self._thread = thread
        self._inner = inner
        self.gatherer = inner.gatherer
        self.topic = inner.topic

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def __repr__(self) -> str:
        return repr(self._inner).replace("AsyncProducer", type(self).__name__, 1)

    @property
    def statistics(self) -> ProducerStatistics:
        """Counts of records and requests since the producer was opened."""
        return self._inner.statistics

    @property
    def unacknowledged(self) -> int:
        """Records that were sent and not acknowledged."""
        return self._inner.unacknowledged

    def send(self, value: Text | None, key: Text | None = None, **options: Unpack[SendOptions]) -> Delivery:
        """Buffer one record; waits while the buffer is full. Text is stored as its UTF-8.

        The Delivery is shared by the records that are gathered together. Raises ProduceFailed once any record
        could not be delivered, ShoalError too-large, bad-request or unknown-partition for this one, and
        BufferFull when there was no room for `timeout_seconds`; this record was not taken then.
        """
        if options:
            return self.gatherer.put(value, key, **options)
        if key is None and value.__class__ is bytes:
            gatherer = self.gatherer
            with gatherer.lock:
                chunk = gatherer.chunk
                size_bytes = chunk.size_bytes + len(value) + RECORD_OVERHEAD_BYTES
                if size_bytes < chunk.open_bytes:
                    chunk.values.append(value)
                    chunk.size_bytes = size_bytes
                    return chunk.delivery
        return self.gatherer.put(value, key)

    def send_json(self, value: object, key: Text | None = None, **options: Unpack[SendOptions]) -> Delivery:
        """`send` of a value as compact JSON (None is `null`, no tombstone); `Record.json` reads it. Raises as
        `send`, and bad-request for what JSON cannot express."""
        return self.send(json_value(value), key, **options)

    def append(self, value: Text | None, key: Text | None = None, **options: Unpack[SendOptions]) -> Place:
        """Send one record without waiting for company, behind all sent before, and wait until it is
        acknowledged; returns its partition and offset. Raises as `send`, and TimeoutError when there is no
        acknowledgement for `timeout_seconds`: it may still come."""
        path = self._inner.lone
        timeout_seconds = options.get("timeout_seconds") if options else None
        lone = None
        if path is not None and (timeout_seconds is None or timeout_seconds >= 2 * ANSWER_SECONDS):
            lone = path.begin(value, key, **options)
        if path is None or lone is None:
            delivery = self.gatherer.put_alone(value, key, **options)
        else:
            try:
                place = path.settle(lone, self._inner.sockets.exchange(lone) if lone.request else None)
            except BaseException:
                path.hand_over(lone)
                raise
            if place is not None:
                return place
            assert lone.chunk is not None
            delivery = lone.chunk.delivery
            if timeout_seconds is not None:
                timeout_seconds = max(0.0, timeout_seconds - (time.monotonic() - lone.begun_seconds))
        delivery.result(timeout_seconds)
        return delivery.place(0)

    def send_batch(
        self, data: Any, timeout_seconds: float | None = None, **due: Unpack[DueOptions]
    ) -> Delivery:
        """Buffer the rows of a RecordBatch, pyarrow Table, pandas or polars frame, each row for the partition
        of its key; waits while the buffer is full. On topics of kind timer a column `deliver_at` or an option
        says when they are due. Raises as `send`, and schema-mismatch for columns that are not the topic's."""
        return self.gatherer.put_batches(self._inner.batches(data, **due), timeout_seconds)

    flush = on_thread(AsyncProducer.flush)

    def undelivered(self) -> list[tuple[int, pa.RecordBatch]]:
        """Records that were taken and not acknowledged, by partition and in order. After a failure they may
        be sent again elsewhere. Those of the failed request may be stored, unless the failure is `definite`.
        """
        return self._thread.call(self._inner.undelivered)

    def close(self) -> None:
        """Take nothing more, flush, then stop. Idempotent. Raises ProduceFailed; the producer is closed even
        then."""
        if self._inner.is_open:
            try:
                self._inner.finish()
                self.flush()
            finally:
                self.abort()

    def abort(self) -> None:
        """Stop at once. Records that are not acknowledged may or may not be stored. Idempotent."""
        if self._inner.is_open:
            self._thread.run(self._inner.abort())


def _close_in_passing(thread: LoopThread, client: AsyncClient) -> None:
    """A client was dropped without `close`: its records are delivered, and its thread ends. This may be any
    thread, in the midst of anything: nothing is waited for."""

    async def finish() -> None:
        try:
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
        except Exception as error:  # noqa: BLE001 - no caller is left to catch it; the others are closed all the same
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
