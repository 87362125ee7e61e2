"""Clients of the simulation beyond those that speak HTTP to one partition: by keys, through the Python
client, and as a task of Spark's sink does.

Law of this file: what they did is told to the history in the terms of log_history.py; what a refusal means is
what the library says.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import suppress
from typing import Any

import pyarrow as pa
from client_credentials import CREDENTIALS
from log_clients import (
    CALM_PRODUCER_SLOWNESS,
    PAUSE_S,
    REQUEST_TIMEOUT_MS,
    NoAnswer,
    Steady,
    Workload,
    arrow_body,
    now_s,
)
from log_history import Append, Outcome, Poll

from cluster_sim.blocking import Blocking, BlockingPool
from shoal import AsyncClient, ClientConfig, Delivery, ProduceFailed, RetryPolicy, Unreachable
from shoal.client.consume.consumer import AsyncConsumer
from shoal.errors import ShoalError
from shoal.format.arrow_stream import SEQUENCES_PER_LANE
from shoal.format.hash_ranges import hash_ranges, key_hash, partition_for
from shoal.spark.options.errors import SourceError
from shoal.spark.write.send import Chunk, ChunkSender, Place, Sink

KEYS = 12
SEND_MAX = 6
"""Records in one round of the Python client."""
LIBRARY_RETRY_MS = 8_000
"""Its own default, a minute, is longer than most runs."""
FLUSH_LIMIT_S = 20.0
POLL_S = 0.5
CHUNKS_MAX = 3
LANES = 4
TASK_ATTEMPTS_MAX = 6
NOWHERE = -1
"""The partition of what was never answered."""


class KeyedProducer(Steady):
    """Appends batches of keyed records to a topic; the agent spreads them over its partitions. Sends a
    sequence, and repeats what was not answered."""

    def __init__(self, work: Workload, name: str, topic: str, partitions: int, pause_s: float) -> None:
        super().__init__(work, pause_s)
        self._name = name
        self._topic = topic
        self._ranges = hash_ranges(partitions)
        self._sequence = 0

    async def _act(self) -> None:
        rng = self._work.rng
        records = [
            (f"k{rng.randrange(KEYS)}", f"{self._name}-{self._sequence}.{number}")
            for number in range(rng.randint(1, 5))
        ]
        invoked_at = now_s()
        answer = None
        while answer is None:
            answer = await self._send(records)
            if answer is None:
                if self._work.stopping:
                    break
                await asyncio.sleep(PAUSE_S * rng.uniform(0.5, 2))
        by_partition: dict[int, list[str]] = defaultdict(list)
        for key, value in records:
            by_partition[partition_for(key_hash(key.encode()), self._ranges)].append(value)
        for partition, values in by_partition.items():
            outcome: Outcome = "info" if answer is None else "ok"
            bases = [] if answer is None else [run for run in answer if run["partition"] == partition]
            assert answer is None or sum(run["count"] for run in bases) == len(values), (records, answer)
            base = bases[0]["base_offset"] if len(bases) == 1 else None
            place = (self._topic, partition)
            self._work.history.appends.append(
                Append(self._name, self._sequence, place, tuple(values), invoked_at, now_s(), outcome, base)
            )
        self._sequence += 1

    async def _send(self, records: list[tuple[str, str]]) -> list[dict[str, int]] | None:
        """The runs of a whole answer; None: again. A part of it may be stored already."""
        path = f"/v1/topics/{self._topic}/records?timeout={REQUEST_TIMEOUT_MS}ms"
        headers = {
            "Shoal-Producer-Id": self._name,
            "Shoal-Producer-Epoch": "0",
            "Shoal-Producer-Sequence": str(self._sequence),
        }
        body = {"records": [{"key": key, "value": value} for key, value in records]}
        try:
            answer = await self._connections.request(self._work.some_agent(), "POST", path, body, headers)
        except NoAnswer:
            return None
        return answer.body["appended"] if answer.status == 200 else None


class _BeginAnew(Exception):
    """Not everything that was sent is known to be stored."""


class LibraryClient:
    """Sends and consumes a whole topic through shoal.client.async_client."""

    def __init__(self, work: Workload, name: str, topic: str, pause_s: float) -> None:
        self._work = work
        self._name = name
        self._topic = topic
        self._pause_s = pause_s
        self._number = 0
        self._positions: dict[int, int] = {}

    async def run(self) -> None:
        """Until the work stops; after a failure with a client of its own again."""
        while not self._work.stopping:
            proof = CREDENTIALS.get()
            urls = [proof.url(agent) for agent in self._work.agents()]
            config = ClientConfig(retry=RetryPolicy(total_ms=LIBRARY_RETRY_MS))
            reading: asyncio.Task[None] | None = None
            try:
                async with AsyncClient(urls, config, **proof.options) as client:
                    reading = asyncio.ensure_future(self._read(client))
                    try:
                        await self._write(client)
                    finally:
                        reading.cancel()
                        await asyncio.gather(reading, return_exceptions=True)
            except (ShoalError, Unreachable, ProduceFailed, _BeginAnew):
                await asyncio.sleep(PAUSE_S)

    async def _write(self, client: AsyncClient) -> None:
        while not self._work.stopping:
            rng = self._work.rng
            sent: list[tuple[str, float, Delivery]] = []
            for _ in range(rng.randint(1, SEND_MAX)):
                value = f"{self._name}-{self._number}"
                self._number += 1
                key = f"k{rng.randrange(KEYS)}" if rng.random() < 0.5 else None
                invoked_at = now_s()
                try:
                    sent.append((value, invoked_at, await client.send(self._topic, value, key)))
                except (ShoalError, Unreachable, ProduceFailed):
                    self._note(value, invoked_at, "fail", NOWHERE, None)
                    break
            try:
                await client.flush(FLUSH_LIMIT_S)
            except (ProduceFailed, TimeoutError):
                self._note_all(sent)
                raise _BeginAnew from None
            self._note_all(sent)
            await asyncio.sleep(self._work.pause_s(self._pause_s, CALM_PRODUCER_SLOWNESS))

    def _note_all(self, sent: list[tuple[str, float, Delivery]]) -> None:
        """Records that were gathered together share a Delivery, in the order in which they were sent."""
        rows: dict[int, int] = defaultdict(int)
        for value, invoked_at, delivery in sent:
            row = rows[id(delivery)]
            rows[id(delivery)] += 1
            try:
                place = delivery.place(row) if delivery.done else None
            except ProduceFailed:
                place = None
            if place is None:
                self._note(value, invoked_at, "info", NOWHERE, None)
            else:
                self._note(value, invoked_at, "ok", place.partition, place.offset)

    def _note(
        self, value: str, invoked_at: float, outcome: Outcome, partition: int, offset: int | None
    ) -> None:
        place = (self._topic, partition)
        number = int(value.rpartition("-")[2])
        self._work.history.appends.append(
            Append(self._name, number, place, (value,), invoked_at, now_s(), outcome, offset)
        )

    async def _read(self, client: AsyncClient) -> None:
        """From where the one before came to; what retention took is passed over."""
        while True:
            with suppress(ShoalError, Unreachable):
                await self._follow(client)
            self._positions.clear()
            await asyncio.sleep(PAUSE_S)

    async def _follow(self, client: AsyncClient) -> None:
        start: Any = self._positions or "earliest"
        async with client.consumer(self._topic, start=start, follow=True) as consumer:
            while True:
                await self._note_poll(consumer)

    async def _note_poll(self, consumer: AsyncConsumer) -> None:
        before, invoked_at = consumer.positions(), now_s()
        found = await consumer.poll(POLL_S)
        if found is None:
            return
        values = [value.decode() for value in found.batch.column("value").to_pylist()]
        records = tuple(enumerate(values, found.base_offset))
        self._positions = consumer.positions()
        self._work.history.polls.append(
            Poll(
                f"{self._name}.reader",
                (self._topic, found.partition),
                before[found.partition],
                records,
                found.next_offset,
                invoked_at,
                linearizable=False,
                log_start_offset=found.base_offset,
                completed_at=now_s(),
            )
        )


class SinkTask:
    """One task after the other as Spark's sink runs them: chunks in order, each acknowledged before the next;
    now and then a task is run again from its first chunk, as after a lost executor."""

    def __init__(
        self, work: Workload, name: str, topic: str, partitions: int, pool: BlockingPool, pause_s: float
    ) -> None:
        self._work = work
        self._name = name
        self._topic = topic
        self._partitions = partitions
        self._pool = pool
        self._pause_s = pause_s
        self._epoch = 0
        self._lane = 0
        """Which of the query's tasks this micro-batch's is."""

    async def run(self) -> None:
        """Until the work stops."""
        while not self._work.stopping:
            await self._micro_batch()
            await asyncio.sleep(4 * self._work.pause_s(self._pause_s, CALM_PRODUCER_SLOWNESS))
        self._pool.close()

    async def _micro_batch(self) -> None:
        rng = self._work.rng
        place = Place(self._topic, rng.randrange(self._partitions))
        count = rng.randint(1, CHUNKS_MAX)
        self._lane = rng.randrange(LANES)
        chunks = [
            [f"{self._name}-{self._epoch}.{chunk}.{row}" for row in range(rng.randint(1, 4))]
            for chunk in range(count)
        ]
        begun: dict[int, float] = {}
        ended: dict[int, float] = {}
        for attempt in range(TASK_ATTEMPTS_MAX):
            cut = rng.randint(0, count) if attempt == 0 and rng.random() < 0.3 else count
            if await self._attempt(place, chunks, cut, begun, ended) or self._work.stopping:
                break
        for number, values in enumerate(chunks):
            outcome: Outcome = "ok" if number in ended else "info" if number in begun else "fail"
            self._work.history.appends.append(
                Append(
                    f"{self._name}.{place.partition}",
                    self._epoch * CHUNKS_MAX + number,
                    (self._topic, place.partition),
                    tuple(values),
                    begun.get(number, now_s()),
                    ended.get(number, now_s()),
                    outcome,
                )
            )
        self._epoch += 1

    async def _attempt(
        self,
        place: Place,
        chunks: list[list[str]],
        cut: int,
        begun: dict[int, float],
        ended: dict[int, float],
    ) -> bool:
        """Up to the chunk `cut`; whether the whole task is done."""
        blocking = Blocking()
        agents = tuple(f"http://{host}:{port}" for host, port in self._work.agents())
        sender = ChunkSender(Sink(agents, self._topic), self._name, self._epoch, blocking.sleep)
        loop = asyncio.get_running_loop()

        def task() -> None:
            self._pool.blocking = blocking
            for number, values in enumerate(chunks[:cut]):
                begun.setdefault(number, loop.time())
                sender.send(Chunk(place, self._lane * SEQUENCES_PER_LANE + number, _batch(values)))
                ended.setdefault(number, loop.time())

        try:
            await blocking.run(task)
        except SourceError:
            return False
        return cut == len(chunks)


def _batch(values: list[str]) -> pa.RecordBatch:
    with pa.ipc.open_stream(arrow_body(values)) as reader:
        return reader.read_next_batch()
