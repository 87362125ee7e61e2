"""Consumers and readers for benchmarks: each connection's next request is made from its last answer.

Law of this file: bare sockets, as load.py; an answer is searched for the few bytes that the next request
needs, and not decoded. Every answer must be a 2xx and is read whole.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import secrets
import time
import urllib.parse
from collections.abc import Callable, Coroutine
from typing import Any

import load

RANGE = re.compile(rb"\+(\d+)\*\d+")
IDLE_SECONDS = 0.02
"""After an answer without messages: others hold what is left."""


@dataclasses.dataclass
class Consumed:
    """What all connections saw. `messages` as they came, `latencies_us` of single requests."""

    messages: int = 0
    answer_bytes: int = 0
    seconds: float = 0.0
    latencies_us: list[float] = dataclasses.field(default_factory=list)

    @property
    def per_second(self) -> float:
        return self.messages / self.seconds


class Connection:
    """One request at a time. Raises LoadProblem for an answer that is no success."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, url: str) -> Connection:
        """To the agent of that URL."""
        parts = urllib.parse.urlsplit(url)
        return cls(*await asyncio.open_connection(parts.hostname, parts.port, limit=1 << 24))

    async def ask(self, request: bytes) -> tuple[bytes, bytes]:
        """The head and the body of the answer."""
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 2"):
            raise load.LoadProblem(head.decode(errors="replace"))
        length = header(head, b"Content-Length")
        if length:
            return head, await self._reader.readexactly(int(length))
        pieces = []
        while size := int(await self._reader.readline(), 16):
            pieces.append((await self._reader.readexactly(size + 2))[:-2])
        await self._reader.readexactly(2)
        return head, b"".join(pieces)

    def close(self) -> None:
        """Both directions."""
        self._writer.close()


def header(head: bytes, name: bytes) -> bytes:
    """A header's value; empty if the answer has none."""
    begin = head.find(b"\r\n" + name + b": ")
    if begin < 0:
        return b""
    begin += len(name) + 4
    return head[begin : head.index(b"\r\n", begin)]


@dataclasses.dataclass(frozen=True)
class Group:
    """Where messages are received: `url` is that of the leader of partition 0."""

    url: str
    topic: str
    name: str
    limit: int
    media_type: str

    @property
    def path(self) -> str:
        return f"{self.url}/v1/topics/{self.topic}/partitions/0/groups/{self.name}"

    def receive(self, consumer: str, receipt: bytes, limit: int, wait: str = "0s") -> bytes:
        """A request that acks the answer before it."""
        body = {"limit": limit, "max_bytes": 8 << 20, "consumer": consumer, "wait": wait}
        body |= {"request": secrets.token_hex(8), **({"ack": [receipt.decode()]} if receipt else {})}
        return load.request_bytes(
            "POST",
            f"{self.path}/receive",
            json.dumps(body).encode(),
            Content_Type="application/json",
            Accept=self.media_type,
        )

    def acknowledge(self, receipt: bytes) -> bytes:
        """Its answer says that the ack is durable."""
        body = json.dumps({"receipts": [receipt.decode()]}).encode()
        return load.request_bytes("POST", f"{self.path}/ack", body, Content_Type="application/json")

    def document(self) -> bytes:
        """What the group is."""
        return load.request_bytes("GET", f"{self.url}/v1/topics/{self.topic}/groups/{self.name}")


def messages_in(head: bytes, body: bytes) -> tuple[int, bytes]:
    """How many messages an answer to a receive has, and the receipt of all of them."""
    ranges = header(head, b"Shoal-Ranges")
    if ranges:
        return sum(map(int, RANGE.findall(ranges))), header(head, b"Shoal-Receipt")
    begin = body.find(b'"receipt":"')
    if begin < 0:
        return 0, b""
    begin += 11
    return body.count(b',"attempt":'), body[begin : body.index(b'"', begin)]


async def consume(group: Group, *, consumers: int, messages: int) -> Consumed:
    """Receive so many messages and ack them, by several consumers with a connection each."""
    seen = Consumed()

    async def one(number: int) -> None:
        connection = await Connection.open(group.url)
        name, receipt = f"consumer-{number}", b""
        while seen.messages < messages:
            request = group.receive(name, receipt, group.limit)
            began = time.perf_counter()
            head, body = await connection.ask(request)
            seen.latencies_us.append((time.perf_counter() - began) * 1e6)
            count, receipt = messages_in(head, body)
            seen.messages += count
            seen.answer_bytes += len(body)
            if not count:
                await asyncio.sleep(IDLE_SECONDS)
        await connection.ask(group.receive(name, receipt, 1))
        connection.close()

    return await _timed(seen, [one(number) for number in range(consumers)])


async def read(
    target: Callable[[int], str], url: str, media_type: str, *, connections: int, messages: int
) -> Consumed:
    """Read so many records, each connection its own part of them from the first to the last. `target`: the
    URL of a read from an offset on."""
    seen = Consumed()
    share = messages // connections

    async def one(number: int) -> None:
        connection = await Connection.open(url)
        offset, end = number * share, (number + 1) * share
        while offset < end:
            request = load.request_bytes("GET", target(offset), Accept=media_type)
            began = time.perf_counter()
            head, body = await connection.ask(request)
            seen.latencies_us.append((time.perf_counter() - began) * 1e6)
            behind = int(header(head, b"Shoal-Next-Offset"))
            if behind <= offset:
                raise load.LoadProblem(f"nothing to read at offset {offset} of {end}")
            seen.messages += behind - offset
            seen.answer_bytes += len(body)
            offset = behind
        connection.close()

    return await _timed(seen, [one(number) for number in range(connections)])


async def _timed(seen: Consumed, work: list[Coroutine[Any, Any, None]]) -> Consumed:
    began = time.perf_counter()
    await asyncio.gather(*work)
    seen.seconds = time.perf_counter() - began
    return seen


async def posts_us(group: Group, post: bytes, times: int) -> list[float]:
    """From a POST begun to its answer, with what stands between those of `hand_over_us`: the same connection
    asks for the group's document before each."""
    producer = await Connection.open(group.url)
    found: list[float] = []
    for _ in range(times):
        await producer.ask(group.document())
        began = time.perf_counter()
        await producer.ask(post)
        found.append((time.perf_counter() - began) * 1e6)
    producer.close()
    return found


async def hand_over_us(group: Group, post: bytes, times: int) -> list[float]:
    """From a POST begun to its message in the hands of a consumer that waits, each time. The agent has taken
    the receive when it answers a question that was sent behind it: so nobody has to pause before the POST."""
    producer, consumer = await Connection.open(group.url), await Connection.open(group.url)
    found: list[float] = []
    for _ in range(times):
        waiting = asyncio.create_task(consumer.ask(group.receive("waiting", b"", 1, wait="30s")))
        await asyncio.sleep(0)  # the receive is sent
        await producer.ask(group.document())
        if waiting.done():
            raise load.LoadProblem("a message came before its POST")
        began = time.perf_counter()
        posting = asyncio.create_task(producer.ask(post))
        head, body = await waiting
        found.append((time.perf_counter() - began) * 1e6)
        await posting
        count, receipt = messages_in(head, body)
        if count != 1:
            raise load.LoadProblem(f"{count} messages for one record")
        await consumer.ask(group.acknowledge(receipt))
    producer.close()
    consumer.close()
    return found
