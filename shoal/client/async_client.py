"""The asyncio client: what users import to speak to a cluster.

Law of this file: the public names, thin over http/requests.py (requests and retries), produce/producer.py and
consume/fetch.py. What needs no records stands in async_admin.py.

    async with AsyncClient(["http://127.0.0.1:7070"]) as client:
        async with client.producer("flights") as producer:
            await producer.send(b'{"carrier": "UA"}', key=b"UA")
        async for found in client.consume("flights"):
            print(found.partition, found.base_offset, found.batch.num_rows)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from functools import cached_property
from types import TracebackType
from typing import Unpack
from weakref import WeakSet

from shoal.client.async_admin import AdminClient
from shoal.client.consume.consumer import AsyncConsumer, Start
from shoal.client.consume.fetch import (
    Fetched,
    PartitionOffsets,
    fetch,
    limited,
    offsets,
    plan,
    read_in_turn,
    read_together,
)
from shoal.client.consume.record import Record
from shoal.client.http.requests import ClientConfig, Unreachable
from shoal.client.http.routes import RetryPolicy
from shoal.client.produce.accumulator import HeadersLike, Text
from shoal.client.produce.batcher import BatchingConfig
from shoal.client.produce.delivery import Appended, Delivery, Place
from shoal.client.produce.json_values import RecordOptions, json_value
from shoal.client.produce.producer import (
    Acks,
    Compression,
    Delivered,
    OnDelivery,
    ProduceFailed,
    Producer,
    ProducerStatistics,
    batch_of,
)
from shoal.errors import ClientError
from shoal.format.timestamps import Timestamp

__all__ = [
    "AsyncClient",
    "ClientConfig",
    "RetryPolicy",
    "BatchingConfig",
    "Producer",
    "ProducerStatistics",
    "ProduceFailed",
    "Fetched",
    "PartitionOffsets",
    "Unreachable",
    "batch_of",
    "Appended",
    "AsyncConsumer",
    "Delivered",
    "Delivery",
    "Place",
    "Record",
]

DEFAULT_FETCH_BYTES = 4 << 20
CONSUMER_FETCH_BYTES = 8 << 20
"""Of a consumer, which fetches ahead: larger ones read a backlog a tenth faster, smaller begin sooner."""
SEND_TOPICS_MAX = 64
"""Each has its own buffers and a watching request; who sends to more chooses when to close which."""


class AsyncClient(AdminClient):
    """A client of one cluster. Use as `async with AsyncClient(urls) as client`.

    `bootstrap`: one or more agents' URLs (none: what SHOAL_AGENT names, or http://127.0.0.1:7070); further
    agents are learnt from them, so that any may die later. Or `seeds`, gossip addresses ("host:7946") of any
    members, or `mdns`, a cluster's name (True: the only one there is); a sealed pool needs one of its keys
    as `gossip_key` in base64, a labelled one its label. All methods raise ShoalError (an agent refused;
    .code says why) or Unreachable (no agent answered).
    """

    @cached_property
    def _producers(self) -> dict[str, Producer]:
        """Of `send`, by topic."""
        return {}

    @cached_property
    def _opening(self) -> asyncio.Lock:
        return asyncio.Lock()

    @cached_property
    def _made(self) -> WeakSet[Producer | AsyncConsumer]:
        """What was made by it and may be open when it is closed."""
        return WeakSet()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close(flush=kind is None)

    async def close(self, *, flush: bool = True) -> None:
        """Take nothing more, flush all producers, end all that was made by it. Idempotent. Raises
        ProduceFailed; it is closed all the same."""
        made = list(self._made)
        producers = [one for one in made if isinstance(one, Producer) and one.is_open]
        try:
            if flush:
                for producer in producers:
                    producer.finish()
                for producer in producers:
                    await producer.flush()
        finally:
            for producer in producers:
                await producer.abort()
            for consumer in made:
                if isinstance(consumer, AsyncConsumer):
                    await consumer.close()
            self._producers.clear()
            await super().close()

    async def offsets(self, topic: str, at: str | None = None) -> list[PartitionOffsets]:
        """The valid offsets of every partition."""
        return await offsets(self._cluster, topic, at)

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
        """An idempotent producer for one topic, to be opened: by `async with`, or `open` and `close`.

        `partition` sends everything there, whatever the keys. `compression` of the stored batches: lz4 or
        zstd. `on_delivery` is called once for each request, in the event loop.
        """
        producer = Producer(
            self._cluster,
            topic,
            acks=acks,
            partition=partition,
            batching=batching,
            compression=compression,
            on_delivery=on_delivery,
        )
        self._made.add(producer)
        return producer

    async def send(
        self,
        topic: str,
        value: Text | None,
        key: Text | None = None,
        *,
        headers: HeadersLike | None = None,
        timestamp: Timestamp | None = None,
        partition: int | None = None,
    ) -> Delivery:
        """Buffer one record for a topic, through a producer with default settings that the client keeps;
        `flush` waits for all of them. Raises as Producer.send."""
        producer = self._producers.get(topic)
        if producer is None:
            producer = await self._opened(topic)
        try:
            return await producer.send(value, key, headers=headers, timestamp=timestamp, partition=partition)
        except ProduceFailed:
            await self._forget(producer)
            raise

    async def send_json(
        self, topic: str, value: object, key: Text | None = None, **options: Unpack[RecordOptions]
    ) -> Delivery:
        """As `send`, of a value as compact JSON. Raises as Producer.send_json."""
        return await self.send(topic, json_value(value), key, **options)

    async def flush(self, timeout_seconds: float | None = None) -> None:
        """Wait until everything that `send` took is acknowledged. Raises ProduceFailed; its `undelivered` is
        what was not. After it was raised once, `send` begins anew. Raises TimeoutError after
        `timeout_seconds`: nothing is given up then."""
        until = None if timeout_seconds is None else asyncio.get_running_loop().time() + timeout_seconds
        for producer in list(self._producers.values()):
            left = None if until is None else max(0.0, until - asyncio.get_running_loop().time())
            try:
                await producer.flush(left)
            except ProduceFailed:
                await self._forget(producer)
                raise

    async def _forget(self, producer: Producer) -> None:
        if self._producers.get(producer.topic) is producer:
            del self._producers[producer.topic]
            await producer.abort()

    async def _opened(self, topic: str) -> Producer:
        async with self._opening:
            if topic not in self._producers:
                if len(self._producers) >= SEND_TOPICS_MAX:
                    raise ClientError(
                        f"send() keeps a producer for each topic, at most {SEND_TOPICS_MAX}: use producer()"
                    )
                self._producers[topic] = await self.producer(topic).open()
            return self._producers[topic]

    def consumer(
        self,
        topic: str,
        *,
        partitions: Sequence[int] | None = None,
        start: Start = "earliest",
        follow: bool = False,
        max_bytes: int = CONSUMER_FETCH_BYTES,
        nearest: bool = False,
    ) -> AsyncConsumer:
        """A reader of some or all partitions, with positions. It opens when it is first read, or in an
        `async with` block, which also closes it; so does `close` of the client.

        `start`: earliest, latest, -N (the last N of each partition), @TIME, or a mapping of partitions to
        these or to offsets (partitions it does not name are not read). `nearest`: replicas may answer, with
        committed records only.
        """
        consumer = AsyncConsumer(
            self._cluster,
            topic,
            partitions=partitions,
            start=start,
            follow=follow,
            max_bytes=max_bytes,
            nearest=nearest,
        )
        self._made.add(consumer)
        return consumer

    async def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        max_bytes: int = DEFAULT_FETCH_BYTES,
        wait_ms: int = 0,
    ) -> Fetched:
        """One read of one partition at its leader."""
        if self._cluster.routes.topic(topic) is None:
            await self._cluster.refresh(topic)
        return await fetch(self._cluster, topic, partition, offset, max_bytes=max_bytes, wait_ms=wait_ms)

    async def consume(
        self,
        topic: str,
        *,
        start: str = "earliest",
        partition: int | None = None,
        limit: int | None = None,
        follow: bool = False,
        max_bytes: int = DEFAULT_FETCH_BYTES,
    ) -> AsyncGenerator[Fetched]:
        """Read one partition, or all. Chunks arrive in each partition's order; every record exactly once.

        `start`: earliest, latest, -N (the last N of each partition), @TIME or an offset. Without `follow`
        it ends at the high watermarks of the moment it began, partition after partition. `limit` counts
        records.
        """
        await self._cluster.refresh(topic, retry_ms=self._retry_ms)
        await self._cluster.learn_agents()
        spans = await plan(self._cluster, topic, start, partition, follow=follow)
        read = read_together if follow else read_in_turn
        rows_left = limit
        chunks = read(self._cluster, topic, spans, max_bytes)
        try:
            while rows_left is None or rows_left > 0:
                found = await anext(chunks, None)
                if found is None:
                    return
                if rows_left is not None:
                    found = limited(found, rows_left)
                    rows_left -= found.batch.num_rows
                yield found
        finally:
            await chunks.aclose()
