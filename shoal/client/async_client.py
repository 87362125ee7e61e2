"""The asyncio client: users import it to speak to a cluster.

Law of this file: the public names, thin over http/requests.py (requests and retries), produce/producer.py and
consume/fetch.py. Requests without records stand in async_admin.py.

    async with AsyncClient(["http://127.0.0.1:7070"]) as client:
        async with client.producer("flights") as producer:
            await producer.send(b'{"carrier": "UA"}', key=b"UA")
        async for found in client.consume("flights"):
            print(found.partition, found.base_offset, found.batch.num_rows)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Unpack
from weakref import WeakSet

from shoal.client.async_admin import AdminClient, ClientOptions
from shoal.client.consume.consumer import AsyncConsumer, ConsumerOptions
from shoal.client.consume.fetch import Fetched, PartitionOffsets, fetch_batches, offsets
from shoal.client.http.requests import ClientConfig
from shoal.client.produce.accumulator import SendOptions
from shoal.client.produce.delivery import Delivery
from shoal.client.produce.producer import (
    AsyncProducer,
    ProduceFailed,
    ProducerOptions,
)
from shoal.client.subscribe.options import SubscribeOptions
from shoal.client.subscribe.subscription import AsyncSubscription
from shoal.client.tables.table import AsyncTable
from shoal.client.tables.watch import AsyncTableWatch
from shoal.errors import ClientError, ClientForked
from shoal.format.plain_values import Text, json_value

DEFAULT_FETCH_BYTES = 4 << 20
SEND_TOPICS_MAX = 64
"""Each topic of `send` has buffers and a watching request. With more topics the user chooses which producer
to close when."""


class AsyncClient(AdminClient):
    """A client of one cluster. Use as `async with AsyncClient(urls) as client`.

    Parameters and errors are those of AdminClient, whose methods this client has too.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str] | None = None,
        config: ClientConfig | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        super().__init__(bootstrap, config, **options)
        self.senders: dict[str, AsyncProducer] = {}
        """The producers of `send`, by topic; all are open."""
        self._sender_opens = asyncio.Lock()
        self._open_producers: set[AsyncProducer] = set()
        """Kept until they are closed: their records are delivered, also if nobody has the producer."""
        self._open_subscriptions: set[AsyncSubscription] = set()
        """Likewise: a loop that was left has words to say, and messages to give back."""
        self._consumers: WeakSet[AsyncConsumer | AsyncTableWatch] = WeakSet()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close(flush=kind is None)

    async def close(self, *, flush: bool = True) -> None:
        """Take nothing more, flush all producers, end them and all consumers and subscriptions. Idempotent.
        Raises ProduceFailed; the client is closed even then."""
        try:
            if flush:
                await self.finish()
        finally:
            for producer in list(self._open_producers):
                await producer.abort()
            for consumer in [*self._open_subscriptions, *self._consumers]:
                await consumer.close()
            self.senders.clear()
            await super().close()

    async def finish(self) -> None:
        """Take no more records, and flush all producers. Raises ProduceFailed."""
        for producer in self._open_producers:
            producer.finish()
        await self.flush_all()

    def after_fork(self, error: ClientForked) -> None:
        """Called in the child of a fork: from now on all producers raise `error`."""
        for producer in self._open_producers:
            producer.after_fork(error)

    async def offsets(self, topic: str, at: str | None = None) -> list[PartitionOffsets]:
        """The valid offsets of every partition, and those of the first record at or after the time `at`."""
        return await offsets(self._cluster, topic, at)

    def producer(self, topic: str, **options: Unpack[ProducerOptions]) -> AsyncProducer:
        """An idempotent producer for one topic, to be opened: by `async with`, or `open` and `close`."""
        return AsyncProducer(self._cluster, topic, opened=self._open_producers, **options)

    async def send(
        self, topic: str, value: Text | None, key: Text | None = None, **options: Unpack[SendOptions]
    ) -> Delivery:
        """Buffer one record for a topic, through a producer with default settings that the client keeps;
        `flush` waits for all of them. Raises as Producer.send."""
        producer = self.senders.get(topic) or await self.sender(topic)
        try:
            return await producer.send(value, key, **options)
        except ProduceFailed:
            await self.forget(producer)
            raise

    async def send_json(
        self, topic: str, value: object, key: Text | None = None, **options: Unpack[SendOptions]
    ) -> Delivery:
        """As `send`, of a value as compact JSON. Raises as Producer.send_json."""
        return await self.send(topic, json_value(value), key, **options)

    async def flush(self, timeout_seconds: float | None = None) -> None:
        """Wait until everything that `send` took is acknowledged. Raises ProduceFailed; its `undelivered`
        holds the records that are not. After it was raised once, `send` begins anew. Raises TimeoutError
        after `timeout_seconds`: nothing is given up then, flush again."""
        await self._flush(self.senders.values(), timeout_seconds)

    async def flush_all(self, timeout_seconds: float | None = None) -> None:
        """Wait until everything that was sent is acknowledged, by all producers of this client. Raises as
        `flush` of AsyncClient."""
        await self._flush(self._open_producers, timeout_seconds)

    async def _flush(self, producers: Iterable[AsyncProducer], timeout_seconds: float | None) -> None:
        until = None if timeout_seconds is None else asyncio.get_running_loop().time() + timeout_seconds
        for producer in list(producers):
            left = None if until is None else max(0.0, until - asyncio.get_running_loop().time())
            try:
                await producer.flush(left)
            except ProduceFailed:
                await self.forget(producer)
                raise

    async def forget(self, producer: AsyncProducer) -> None:
        """A producer of `send` that failed, and said so, makes room for another."""
        if self.senders.get(producer.topic) is producer:
            del self.senders[producer.topic]
            await producer.abort()

    async def sender(self, topic: str) -> AsyncProducer:
        """The producer of `send` for a topic. Raises ClientError for one topic too many."""
        async with self._sender_opens:
            if topic not in self.senders:
                if len(self.senders) >= SEND_TOPICS_MAX:
                    raise ClientError(
                        f"send() keeps a producer for each topic, at most {SEND_TOPICS_MAX}: use producer()"
                    )
                self.senders[topic] = await self.producer(topic).open()
            return self.senders[topic]

    def consumer(self, topic: str, **options: Unpack[ConsumerOptions]) -> AsyncConsumer:
        """A reader of some or all partitions, with positions. It opens when it is first read, or in an
        `async with` block, which also closes it; so does `close` of the client."""
        consumer = AsyncConsumer(self._cluster, topic, **options)
        self._consumers.add(consumer)
        return consumer

    def subscribe(self, topic: str, *, group: str, **options: Unpack[SubscribeOptions]) -> AsyncSubscription:
        """A consumer of a group: its messages are shared out among its consumers, acknowledged one by one,
        and come again where one fails. A group that does not exist is made. It opens when it is first read,
        or in an `async with` block, which also closes it; so does `close` of the client."""
        return AsyncSubscription(self._cluster, topic, group, self._open_subscriptions, **options)

    def table(self, topic: str, *, local: bool = False) -> AsyncTable:
        """A topic of kind table as a mapping: `await client.table("users").get("ada")`. With `local` the
        nearest replica answers reads: sooner, and perhaps without the latest writes."""
        return AsyncTable(self._cluster, topic, local=local, on_watch=self._consumers.add)

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
        found = await fetch_batches(
            self._cluster, topic, partition, offset, max_bytes=max_bytes, wait_ms=wait_ms
        )
        return found.joined(partition, offset)

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
        partitions = None if partition is None else [partition]
        rows_left = limit
        async with AsyncConsumer(
            self._cluster,
            topic,
            partitions=partitions,
            start=start,
            follow=follow,
            max_bytes=max_bytes,
            in_turn=not follow,
        ) as consumer:
            while rows_left is None or rows_left > 0:
                found = await consumer.poll()
                if found is None:
                    return
                if rows_left is not None:
                    found = found.first(rows_left)
                    rows_left -= found.batch.num_rows
                yield found
