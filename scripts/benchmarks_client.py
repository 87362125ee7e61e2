"""What Shoal's own client costs: single records, batches and reading, as a Python user has them.

Law of this file: the blocking client as users import it, beside one agent; floors do the least that the same
work cannot do without, in the same process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import bench_topics
import cluster
import floors
import load
from bench_topics import ARROW, RECORD_BYTES, post
from row import Row

from shoal import DEFAULT_SCHEMA, AsyncClient, BatchingConfig, Client, Producer
from shoal.client.produce.producer import batch_of
from shoal.client.produce.request_stream import encode_stream
from shoal.format.tabular import FrameKind

SINGLE_RECORDS = 1_000_000
SINGLE_GOAL_PER_SECOND = 400_000
FLOOR_ROWS = 8_000  # of a chunk: as many as fill the client's request of 1 MiB
BATCH_ROWS = 8_000
BATCHES = 250
ALONE_RECORDS = 1_500
FRAME_BATCHES = 500
CONSUME_BYTES = 512 * 2**20
FETCH_BYTES = 16 * 2**20
READ_BEFORE = 2  # readings after which an agent lends pages (segment_store/lending/lent_pages.py)


class Bench(Protocol):
    """What this file needs of a run."""

    def agents(self, count: int) -> contextlib.AbstractContextManager[cluster.LocalCluster]: ...
    def alternate(self, ours: Callable[[], float], floor: Callable[[], float]) -> tuple[float, float]: ...


def rows(bench: Bench) -> list[Row]:
    """All of them, with one agent, and what is written with three."""
    with bench.agents(1) as agents:
        url = agents.agents[0].url
        for topic in ("single", "batches", "read", "alone", "frames"):
            bench_topics.create_topic(url, topic, 1, 1)
        found = [*alone(bench, url, "1 agent"), *single(bench, url), *batches(bench, url)]
        found += [*consume(bench, url), *frames(bench, url)]
    with bench.agents(3) as agents:
        url = agents.agents[0].url
        for topic in ("alone", "replicated"):
            bench_topics.create_topic(url, topic, 1, 3)
        return [*found, *alone(bench, url, "3 agents"), *replicated(bench, url)]


def alone(bench: Bench, url: str, agents: str) -> list[Row]:
    """Producer.append, one record in flight, from a thread and from a coroutine, beside bare POSTs of the
    same value over one connection to the leader: medians of a call."""
    leader = bench_topics.wait_leader(url, "alone")
    value = b"x" * RECORD_BYTES
    target = f"{leader}/v1/topics/alone/partitions/0/records"
    request = load.request_bytes("POST", target, value, Content_Type="text/plain")

    def floor() -> float:
        return bench_topics.p50_us(request, leader, ALONE_RECORDS)

    with Client(url) as client, client.producer("alone") as producer:
        producer.append(value)  # the first of a partition goes the ordinary way

        def append() -> float:
            taken = []
            for _ in range(ALONE_RECORDS):
                started = time.perf_counter()
                producer.append(value)
                taken.append((time.perf_counter() - started) * 1e6)
            return statistics.median(taken)

        by_thread = bench.alternate(append, floor)

    by_coroutine = bench.alternate(lambda: asyncio.run(append_in_coroutine(url, value)), floor)
    return [
        Row(
            f"Producer.append, one in flight, {agents}, {how}, p50",
            f"{ours:.0f} us",
            f"bare POST {least:.0f} us",
            ours / least,
            1.3,
            True,
        )
        for how, (ours, least) in (("thread", by_thread), ("asyncio", by_coroutine))
    ]


async def append_in_coroutine(url: str, value: bytes) -> float:
    """The median microseconds of an append that is awaited alone."""
    taken = []
    async with AsyncClient(url) as client, client.producer("alone") as producer:
        await producer.append(value)
        for _ in range(ALONE_RECORDS):
            started = time.perf_counter()
            await producer.append(value)
            taken.append((time.perf_counter() - started) * 1e6)
    return statistics.median(taken)


def send_batches(producer: Producer, batch: Any) -> float:
    """Records a second of BATCHES batches."""
    started = time.perf_counter()
    for _ in range(BATCHES):
        producer.send_batch(batch)
    producer.flush()
    return BATCHES * BATCH_ROWS / (time.perf_counter() - started)


def replicated(bench: Bench, url: str) -> list[Row]:
    """Producer.send_batch of 8,000 records to three replicas, beside plain POSTs of 1,000 over eight
    connections."""
    leader = bench_topics.wait_leader(url, "replicated")
    batch = batch_of([os.urandom(RECORD_BYTES) for _ in range(BATCH_ROWS)])
    body = bench_topics.arrow_body()
    target = f"{leader}/v1/topics/replicated/partitions/0/records"
    request = load.request_bytes("POST", target, body, Content_Type=ARROW)
    requests = BATCHES * BATCH_ROWS // bench_topics.BATCH_RECORDS
    with Client(url) as client, client.producer("replicated") as producer:

        def post_bodies() -> float:
            posted = post(request, leader, connections=8, requests=requests)
            return posted.per_second * bench_topics.BATCH_RECORDS

        ours, floor = bench.alternate(lambda: send_batches(producer, batch), post_bodies)
    name = "Producer.send_batch, 8,000 records each, 3 agents"
    beside = f"plain POST of 1,000, eight connections {floor / 1e6:.2f} M/s"
    return [Row(name, f"{ours / 1e6:.2f} M records/s", beside, ours / floor, 0.85)]


def frames(bench: Bench, url: str) -> list[Row]:
    """Consumer.frames of Arrow beside those of pandas, which are made of the same and copied."""
    batch = batch_of([os.urandom(RECORD_BYTES) for _ in range(BATCH_ROWS)])
    with Client(url) as client:
        with client.producer("frames") as producer:
            for _ in range(FRAME_BATCHES):
                producer.send_batch(batch)

        def read(kind: FrameKind) -> float:
            started, rows = time.perf_counter(), 0
            with client.consumer("frames") as consumer:
                for frame in consumer.frames(kind):
                    rows += len(frame)
            assert rows == FRAME_BATCHES * BATCH_ROWS
            return rows / (time.perf_counter() - started)

        for _ in range(READ_BEFORE):
            read("arrow")
        ours, floor = bench.alternate(lambda: read("arrow"), lambda: read("pandas"))
    name, beside = "Consumer.frames, Arrow", f"pandas {floor / 1e6:.1f} M/s"
    return [Row(name, f"{ours / 1e6:.1f} M records/s", beside, ours / floor, 1.2)]


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """This process, all its threads made from now on included, on one core; the agents may use all."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def single(bench: Bench, url: str) -> list[Row]:
    """Client.send of single records, acknowledged, beside a list that is made into the same Arrow streams."""
    value = b"x" * RECORD_BYTES
    cpu_rates: list[float] = []
    with one_core(), Client(url) as client:

        def send() -> float:
            started, cpu = time.perf_counter(), time.process_time()
            for _ in range(SINGLE_RECORDS):
                client.send("single", value)
            client.flush()
            cpu_rates.append(SINGLE_RECORDS / (time.process_time() - cpu))
            return SINGLE_RECORDS / (time.perf_counter() - started)

        ours, floor = bench.alternate(send, lambda: append_and_encode(value))
    name = "Client.send, single records, acks=all, one core"
    measured = f"{ours:,.0f}/s ({sorted(cpu_rates)[len(cpu_rates) // 2]:,.0f} a CPU second)"
    return [
        Row(name, measured, f"goal {SINGLE_GOAL_PER_SECOND:,}/s", ours / SINGLE_GOAL_PER_SECOND, 1.0),
        Row(name, measured, f"list.append + Arrow stream {floor:,.0f}/s", ours / floor, None),
    ]


def append_and_encode(value: bytes) -> float:
    """Records a second that a plain loop appends to a list and pyarrow makes into streams of 1 MiB."""
    started = time.perf_counter()
    chunk: list[bytes] = []
    for _ in range(SINGLE_RECORDS):
        chunk.append(value)
        if len(chunk) == FLOOR_ROWS:
            encode_stream([batch_of(chunk)])
            chunk = []
    return SINGLE_RECORDS / (time.perf_counter() - started)


def batches(bench: Bench, url: str) -> list[Row]:
    """Producer.send_batch of 8,000 records, beside plain POSTs of the same bytes over one connection."""
    batch = batch_of([os.urandom(RECORD_BYTES) for _ in range(BATCH_ROWS)])
    body = bytes(encode_stream([batch]))
    target = f"{url}/v1/topics/batches/partitions/0/records"
    request = load.request_bytes("POST", target, body, Content_Type=ARROW)
    batching = BatchingConfig(batch_rows_max=BATCH_ROWS, batch_bytes_max=2 * len(body))
    with Client(url) as client, client.producer("batches", batching=batching) as producer:

        def post_bodies() -> float:
            return post(request, url, connections=1, requests=BATCHES).per_second * BATCH_ROWS

        ours, floor = bench.alternate(lambda: send_batches(producer, batch), post_bodies)
    name = "Producer.send_batch, 8,000 records each"
    beside = f"plain POST, one connection {floor / 1e6:.2f} M/s"
    return [Row(name, f"{ours / 1e6:.2f} M records/s", beside, ours / floor, None)]


def consume(bench: Bench, url: str) -> list[Row]:
    """Consumer.batches from the beginning, beside a bare socket copy of as many bytes: of topics that nobody
    has read, which an agent reads and checks, and of one that was read twice, whose pages it lends."""
    batch = batch_of([os.urandom(RECORD_BYTES) for _ in range(BATCH_ROWS)])
    assert batch.schema.equals(DEFAULT_SCHEMA)
    size_bytes: int = batch.nbytes
    count = CONSUME_BYTES // size_bytes
    with Client(url) as client:

        def fill(topic: str) -> None:
            with client.producer(topic) as producer:
                for _ in range(count):
                    producer.send_batch(batch)

        def read(topic: str) -> float:
            started, rows = time.perf_counter(), 0
            with client.consumer(topic, max_bytes=FETCH_BYTES) as consumer:
                for found in consumer.batches():
                    rows += found.num_rows
            seconds = time.perf_counter() - started
            assert rows == count * BATCH_ROWS
            return count * size_bytes / seconds

        def read_new() -> float:
            topic = f"read-{secrets.token_hex(4)}"
            bench_topics.create_topic(url, topic, 1, 1)
            fill(topic)
            return read(topic)

        def floor() -> float:
            return floors.socket_copy_bytes_per_second(CONSUME_BYTES)

        found = [("first reading", *bench.alternate(read_new, floor))]
        fill("read")
        for _ in range(READ_BEFORE):
            read("read")
        found.append(("third reading and later", *bench.alternate(lambda: read("read"), floor)))
    return [
        Row(
            f"Consumer.batches, Arrow, one partition, {what}",
            f"{ours / 1e9:.2f} GB/s",
            f"socket copy {least / 1e9:.2f} GB/s",
            ours / least,
            0.60,
        )
        for what, ours, least in found
    ]
