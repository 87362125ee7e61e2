"""TLS beside no TLS, and beside bare asyncio servers that speak it too and do nothing else.

Law of this file: the sockets of Shoal's own client ask both sides, so a ratio is about agents. Certificates
are those of `shoal secure init`. Authentication is off: agents bind to loopback.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import pathlib
import secrets
import shutil
import ssl
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Protocol

import bench_topics
import cluster
import environment
import load
from bench_topics import ARROW, BATCH_RECORDS, RECORD_BYTES
from row import Row
from secured import SecureCluster, Secured

from shoal.client.http.append import PostConnections
from shoal.client.http.bulk import BulkConnections
from shoal.client.http.wire import request_head

READ_BYTES = 8 * 2**20
READS = 40
CONNECTIONS = 8
BATCHES = 800
AGENTS = 3
WARM_UP_REQUESTS = 300
LATENCY_REQUESTS = 800
START_TIMEOUT_SECONDS = 30.0
CONNECT_SECONDS = 5.0
RECORDS = "/v1/topics/bench/partitions/0/records"


class Bench(Protocol):
    """What this file needs of a run."""

    directory: pathlib.Path

    def agents(self, count: int) -> contextlib.AbstractContextManager[cluster.LocalCluster]: ...
    def alternate(self, ours: Callable[[], float], floor: Callable[[], float]) -> tuple[float, float]: ...


def rows(bench: Bench) -> list[Row]:
    """Arrow reads of 8 MiB and Arrow batches of 1,000, each over TLS, with one agent."""
    directory = bench.directory / secrets.token_hex(4)
    made = Secured(directory / "made")
    context = made.context()
    agents = SecureCluster(directory / "agents", made)
    try:
        agents.start(environment.command("shoal"), made.cluster, ("bench-0",))
        bench_topics.wait_ready(agents)
        url = agents.agents[0].url
        bench_topics.create_topic(url, "bench", 1, 1)
        with bench.agents(1) as others, bare_server(made.directory) as bare:
            bench_topics.create_topic(others.agents[0].url, "bench", 1, 1)
            return [
                *produce(bench, context, url, others.agents[0].url, bare),
                read(bench, context, url, bare),
            ]
    finally:
        agents.stop()
        shutil.rmtree(directory, ignore_errors=True)


def links(bench: Bench) -> Row:
    """One record in flight, three replicas: links and clients over TLS, beside both in the open."""
    directory = bench.directory / secrets.token_hex(4)
    made = Secured(directory / "made")
    context = made.context()
    agents = SecureCluster(directory / "agents", made)
    names = tuple(f"bench-{number}" for number in range(AGENTS))
    try:
        agents.start(environment.command("shoal"), made.cluster, names)
        bench_topics.wait_ready(agents)
        with bench.agents(AGENTS) as others:
            request, url = _lone_append(agents)
            in_the_open, other = _lone_append(others)
            bench_topics.p50_us(request, url, WARM_UP_REQUESTS, context)
            bench_topics.p50_us(in_the_open, other, WARM_UP_REQUESTS)
            ours, floor = bench.alternate(
                lambda: bench_topics.p50_us(request, url, LATENCY_REQUESTS, context),
                lambda: bench_topics.p50_us(in_the_open, other, LATENCY_REQUESTS),
            )
    finally:
        agents.stop()
        shutil.rmtree(directory, ignore_errors=True)
    name = "one record in flight, 3 replicas, acks=all, links and client over TLS, p50"
    return Row(name, f"{ours:.0f} us", f"in the open {floor:.0f} us", ours / floor, 1.5, True)


def _lone_append(agents: cluster.LocalCluster) -> tuple[bytes, str]:
    """The request, and its leader's URL."""
    bench_topics.create_topic(agents.agents[0].url, "bench", 1, AGENTS)
    url = bench_topics.wait_leader(agents.agents[0].url, "bench")
    target = f"{url}/v1/topics/bench/records"
    return load.request_bytes("POST", target, b"x" * RECORD_BYTES, Content_Type="text/plain"), url


def produce(bench: Bench, context: ssl.SSLContext, url: str, in_the_open: str, bare: str) -> list[Row]:
    """Beside the slower of both floors: no TLS, and a server that reads and forgets."""
    body = bench_topics.arrow_body()

    def appended(to: str) -> float:
        return asyncio.run(posted(context, to, body)) * len(body) / 1e6

    ours, plain = bench.alternate(lambda: appended(url), lambda: appended(in_the_open))
    again, forgotten = bench.alternate(lambda: appended(url), lambda: appended(bare))
    name = f"Arrow batches of {BATCH_RECORDS:,} over TLS, {CONNECTIONS} connections"
    floors = ((ours, plain, "without TLS"), (again, forgotten, "a bare TLS server that forgets them"))
    slower = min(plain, forgotten)
    return [
        Row(
            name,
            f"{rate:.0f} MB/s",
            f"{words} {floor:.0f} MB/s",
            rate / floor,
            0.6 if floor == slower else None,
        )
        for rate, floor, words in floors
    ]


async def posted(context: ssl.SSLContext, url: str, body: bytes) -> float:
    """Appends a second, over all connections."""
    posts = PostConnections(CONNECT_SECONDS, CONNECTIONS, tls=lambda: context)
    head = request_head("POST", url, RECORDS, {}, {"Content-Type": ARROW, "Content-Length": str(len(body))})

    async def append(count: int) -> None:
        for _ in range(count):
            answer = await posts.post(url, head, body)
            assert answer.status == 200, answer.body

    await asyncio.gather(*(append(2) for _ in range(CONNECTIONS)))  # which makes the connections
    started = time.perf_counter()
    await asyncio.gather(*(append(BATCHES // CONNECTIONS) for _ in range(CONNECTIONS)))
    seconds = time.perf_counter() - started
    posts.close()
    return BATCHES / seconds


def read(bench: Bench, context: ssl.SSLContext, url: str, bare: str) -> Row:
    """What `produce` has left, again and again."""

    async def fetched(at: str) -> float:
        bulk = BulkConnections(CONNECT_SECONDS, 2 * READ_BYTES, tls=lambda: context)
        asked = {"offset": "0", "max_bytes": str(READ_BYTES)}
        await bulk.get(at, RECORDS, asked, {"Accept": ARROW})
        started, size = time.perf_counter(), 0
        for _ in range(READS):
            answer = await bulk.get(at, RECORDS, asked, {"Accept": ARROW})
            assert answer.status == 200
            size += len(answer.body)
        seconds = time.perf_counter() - started
        bulk.close()
        assert size > READS * READ_BYTES / 2
        return size / seconds / 1e6

    ours, floor = bench.alternate(lambda: asyncio.run(fetched(url)), lambda: asyncio.run(fetched(bare)))
    bare_text = f"a bare TLS server that sends as many {floor:.0f} MB/s"
    return Row("Arrow reads of 8 MiB over TLS", f"{ours:.0f} MB/s", bare_text, ours / floor, 0.7)


@contextlib.contextmanager
def bare_server(secured: pathlib.Path) -> Iterator[str]:
    """The URL of an asyncio server with TLS, in a process of its own."""
    spawning = multiprocessing.get_context("spawn")
    here, there = spawning.Pipe()
    process = spawning.Process(target=_serve, args=(there, str(secured)), daemon=True)
    process.start()
    try:
        if not here.poll(START_TIMEOUT_SECONDS):
            raise TimeoutError("the bare server did not start")
        yield f"https://127.0.0.1:{here.recv()}"
    finally:
        process.kill()
        process.join(START_TIMEOUT_SECONDS)


class _Bare(asyncio.Protocol):
    """Reads a request and forgets it. It answers a POST in a few bytes, and a GET in READ_BYTES."""

    long = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % READ_BYTES + bytes(READ_BYTES)
    short = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._left = 0

    def data_received(self, data: bytes) -> None:
        if self._left:
            self._left -= len(data)
        elif data.startswith(b"GET"):
            self._transport.write(self.long)
            return
        else:
            head, _, body = data.partition(b"\r\n\r\n")
            self._left = int(head.rpartition(b"Content-Length: ")[2].split(b"\r\n")[0]) - len(body)
        if not self._left:
            self._transport.write(self.short)


def _serve(there: Connection, secured: str) -> None:
    async def serve() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(f"{secured}/agent.crt", f"{secured}/agent.key")
        server = await asyncio.get_running_loop().create_server(_Bare, "127.0.0.1", 0, ssl=context)
        there.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())
