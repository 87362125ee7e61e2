"""The asyncio client: what users import to speak to a cluster.

Law of this file: the public names, thin over aio_cluster (requests and retries), aio_producer and
aio_consumer.

    async with AsyncClient(["http://127.0.0.1:7070"]) as client:
        async with client.producer("flights") as producer:
            await producer.send(b'{"carrier": "UA"}', key=b"UA")
        async for found in client.consume("flights"):
            print(found.partition, found.base_offset, found.batch.num_rows)
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Sequence
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from shoal.aio_cluster import Call, ClientConfig, Cluster, Unreachable, topic_path
from shoal.aio_consumer import (
    Fetched,
    PartitionOffsets,
    fetch,
    limited,
    offsets,
    plan,
    read_in_turn,
    read_together,
)
from shoal.aio_producer import (
    Acks,
    Compression,
    Delivered,
    OnDelivery,
    ProduceFailed,
    Producer,
    ProducerStatistics,
    batch_of,
)
from shoal.aio_reading import AsyncConsumer, Start
from shoal.batching import BatchingConfig
from shoal.client_routing import RetryPolicy, bootstrap_urls
from shoal.consumed import Record
from shoal.delivery import Appended, Delivery, Place
from shoal.discovery import urls_by_mdns, urls_of_seeds
from shoal.errors import ClientError, ShoalError
from shoal.gathering import HeadersLike, Text, Timestamp
from shoal.live_object import LiveObject

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


class AsyncClient(LiveObject):
    """A client of one cluster. Use as `async with AsyncClient(urls) as client`.

    `bootstrap`: one or more agents' URLs (none: what SHOAL_AGENT names, or http://127.0.0.1:7070); further
    agents are learnt from them, so that any may die later. Or `seeds`, gossip addresses ("host:7946") of any
    members, or `mdns`, a cluster's name (True: the only one there is); a sealed pool needs one of its keys
    as `gossip_key` in base64, a labelled one its label. All methods raise ShoalError (an agent refused;
    .code says why) or Unreachable (no agent answered).
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
        if sum(way is not None for way in (bootstrap, seeds, mdns)) > 1:
            raise ValueError("name agents in one way: bootstrap, seeds or mdns")
        self._seeds, self._mdns = seeds, mdns
        self._gossip_key, self._gossip_label = gossip_key, gossip_label
        self._cluster = Cluster(
            bootstrap_urls(bootstrap, os.environ.get("SHOAL_AGENT")), config or ClientConfig()
        )
        self._producers: dict[str, Producer] = {}
        self._opening = asyncio.Lock()

    async def __aenter__(self) -> Self:
        sealed = {"gossip_key": self._gossip_key, "gossip_label": self._gossip_label}
        if self._seeds is not None:
            self._cluster.agents.replace(await urls_of_seeds(self._seeds, **sealed))  # type: ignore[arg-type]
        elif self._mdns:
            cluster = self._mdns if isinstance(self._mdns, str) else None
            self._cluster.agents.replace(await urls_by_mdns(cluster, **sealed))  # type: ignore[arg-type]
        await self._cluster.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                for producer in self._producers.values():
                    producer.finish()
                await self.flush()
        finally:
            for producer in self._producers.values():
                await producer.abort()
            await self._cluster.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(self._cluster.agents.in_order()[:3])}>"

    @property
    def retries(self) -> int:
        """Attempts that were repeated, over everything this client did."""
        return self._cluster.retries

    @property
    def leader_changes(self) -> int:
        """How often this client saw a partition move to another leader."""
        return self._cluster.routes.leader_changes

    async def agent(self) -> dict[str, Any]:
        """GET /v1/agent of the first agent that answers."""
        return await self._get("/v1/agent")

    async def ready(self) -> bool:
        """Whether the first agent that answers can serve: joined, catalog caught up, disk writable."""
        return await self.unready_reason() is None

    async def unready_reason(self) -> str | None:
        """Why the first agent that answers cannot serve; None when it can."""
        try:
            await self._cluster.anywhere(Call("GET", "/readyz"))
        except ShoalError as error:
            if error.code in ("not-ready", "stopping"):
                return error.detail
            raise
        return None

    async def members(self) -> dict[str, Any]:
        """GET /v1/members."""
        return await self._get("/v1/members")

    async def routes(self, topic: str | None = None) -> dict[str, Any]:
        """GET /v1/routes."""
        return await self._get("/v1/routes", {} if topic is None else {"topic": topic})

    async def topics(self) -> list[dict[str, Any]]:
        """Every topic, all pages of GET /v1/topics."""
        found: list[dict[str, Any]] = []
        params: dict[str, str] = {}
        while True:
            document = await self._get("/v1/topics", params)
            found.extend(document.get("topics", []))
            if not document.get("next_cursor"):
                return found
            params = {"cursor": str(document["next_cursor"])}

    async def topic(self, name: str) -> dict[str, Any]:
        """GET /v1/topics/{topic}: settings, partitions, replicas, offsets."""
        return await self._get(topic_path(name))

    async def create_topic(
        self, name: str, settings: dict[str, Any] | None = None
    ) -> tuple[bool, dict[str, Any]]:
        """PUT /v1/topics/{topic}; False beside the topic if it was there already, with equal settings."""
        answer = await self._cluster.anywhere(
            _json_call("PUT", topic_path(name), settings), retry_ms=self._retry_ms
        )
        return answer.status == 201, answer.document()

    async def delete_topic(self, name: str) -> None:
        """DELETE /v1/topics/{topic}: its records are gone for good. Raises unknown-topic if it was not there.

        It is looked up first: then, that it is unknown to the deletion can only mean that an earlier
        attempt was carried out and its answer lost (aiohttp repeats a DELETE by itself when a connection
        breaks).
        """
        await self.topic(name)
        try:
            await self._cluster.anywhere(Call("DELETE", topic_path(name)), retry_ms=self._retry_ms)
        except ShoalError as error:
            if error.code != "unknown-topic":
                raise

    async def join(self, addresses: Sequence[str]) -> dict[str, Any]:
        """POST /v1/agent/join: the first bootstrap agent contacts the gossip addresses ("host:port")."""
        call = _json_call("POST", "/v1/agent/join", {"addresses": list(addresses)})
        return (await self._cluster.at_agent(call)).document()

    async def leave(self) -> None:
        """POST /v1/agent/leave: the first bootstrap agent hands over and stops. No other is asked instead."""
        await self._cluster.at_agent(Call("POST", "/v1/agent/leave"))

    async def drain(self, *, undo: bool = False) -> dict[str, Any]:
        """POST or DELETE /v1/agent/drain at the first bootstrap agent: hold and lead nothing, or take that
        back. The answer says how far it is."""
        call = Call("DELETE" if undo else "POST", "/v1/agent/drain")
        return (await self._cluster.at_agent(call)).document()

    async def drain_status(self) -> dict[str, Any]:
        """GET /v1/agent/drain at the first bootstrap agent."""
        return (await self._cluster.at_agent(Call("GET", "/v1/agent/drain"))).document()

    async def recovery_preview(self, topic: str, partition: int) -> dict[str, Any]:
        """GET /v1/agent/recover at the first bootstrap agent: what recovering by force would do there."""
        query = {"topic": topic, "partition": str(partition)}
        call = Call("GET", "/v1/agent/recover", query)
        return (await self._cluster.at_agent(call)).document()

    async def recover_partition(self, topic: str, partition: int) -> dict[str, Any]:
        """POST /v1/agent/recover at the first bootstrap agent: its replica goes on alone. What only the lost
        replicas had is lost for ever."""
        body = {"topic": topic, "partition": partition, "accept_data_loss": True}
        return (await self._cluster.at_agent(_json_call("POST", "/v1/agent/recover", body))).document()

    async def force_leave(self, member: str) -> None:
        """POST /v1/members/{member}/force-leave: a failed member counts as left."""
        await self._cluster.anywhere(Call("POST", f"/v1/members/{quote(member, safe='')}/force-leave"))

    async def gossip_keys(self) -> dict[str, Any]:
        """GET /v1/keys: fingerprints of the gossip keys, and how many members hold and use each."""
        return await self._get("/v1/keys")

    async def change_gossip_keys(self, change: str, key: str, *, force: bool = False) -> dict[str, Any]:
        """POST /v1/keys/{change}: `install`, `use` or `remove` a key on every member. Asks the first
        bootstrap agent, once.
        """
        call = _json_call("POST", f"/v1/keys/{change}", {"key": key, "force": force})
        return (await self._cluster.at_agent(call)).document()

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
        """An idempotent producer for one topic; `partition` sends everything there, whatever the keys.

        `compression` of the stored batches: lz4 or zstd. `on_delivery` is called once for each request, in
        the event loop.
        """
        return Producer(
            self._cluster,
            topic,
            acks=acks,
            partition=partition,
            batching=batching,
            compression=compression,
            on_delivery=on_delivery,
        )

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
                self._producers[topic] = await self.producer(topic).__aenter__()
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
        """A reader of some or all partitions, with positions; use it in an `async with` block.

        `start`: earliest, latest, -N (the last N of each partition), @TIME, or a mapping of partitions to
        these or to offsets (partitions it does not name are not read). `nearest`: replicas may answer, with
        committed records only.
        """
        return AsyncConsumer(
            self._cluster,
            topic,
            partitions=partitions,
            start=start,
            follow=follow,
            max_bytes=max_bytes,
            nearest=nearest,
        )

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

    @property
    def _retry_ms(self) -> int:
        return self._cluster.config.retry.total_ms

    async def _get(self, path: str, params: dict[str, str] | None = None) -> dict[str, Any]:
        return (await self._cluster.anywhere(Call("GET", path, params or {}))).document()


def _json_call(method: str, path: str, document: dict[str, Any] | None) -> Call:
    if document is None:
        return Call(method, path)
    return Call(
        method, path, headers={"Content-Type": "application/json"}, body=json.dumps(document).encode()
    )
