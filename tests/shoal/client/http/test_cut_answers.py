"""Connections that break at any byte of an answer, in front of an agent's real HTTP side: whatever the client
was told or not told, each record is stored once and read once, in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fake_broker import FakeCluster
from http_fixtures import running
from listening import serving

from shoal import AsyncClient, BatchingConfig, ClientConfig
from shoal.client.http.routes import RetryPolicy

QUICK = ClientConfig(retry=RetryPolicy(base_ms=1, cap_ms=4, total_ms=20_000))
CUTS_AT_MOST = 5_000


class CuttingProxy:
    """Passes connections on to an agent, and breaks one after so many bytes of every other answer to requests
    that begin with `of`: each time `step` bytes later, until `whole`: an answer was no longer than that."""

    def __init__(self, port: int, of: bytes, step: int) -> None:
        self._port = port
        self._of = of
        self._step = step
        self._asked = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.cut_at = 0
        self.cuts = 0
        self.whole = False
        self.whole_bytes = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            while request := await reader.read(1 << 20):
                back.write(request)
                if request.startswith(self._of):
                    self._asked += 1
                    if self._asked % 2 and not self.whole and not await self._cut(there, writer):
                        return
                writer.write(await self._answer(there))
        except (OSError, asyncio.IncompleteReadError):
            pass  # who is at either end has gone
        finally:
            back.transport.abort()
            writer.transport.abort()
            self._tasks.discard(task)

    async def _answer(self, there: asyncio.StreamReader) -> bytes:
        head = await there.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        return head + await there.readexactly(int(length.partition(b":")[2]))

    async def _cut(self, there: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """False when the connection is broken; the agent has done everything by then."""
        answer = await self._answer(there)
        if self.cut_at >= len(answer):
            self.whole = True
            self.whole_bytes = len(answer)
            writer.write(answer)
            return True
        writer.write(answer[: self.cut_at])
        await writer.drain()
        writer.write_eof()
        self.cut_at += self._step
        self.cuts += 1
        return False

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def cutting(of: bytes, step: int) -> AsyncIterator[tuple[CuttingProxy, FakeCluster, str]]:
    """The proxy in front of an agent with the topic t, and the URL by which alone the agent is known."""
    cluster = FakeCluster()
    async with running(cluster.add("one")) as agent:
        cluster.create("t")
        proxy = CuttingProxy(agent.port, of, step)
        try:
            async with serving(proxy.serve) as agent.broker.url:
                yield proxy, cluster, agent.broker.url
        finally:
            await proxy.close()


async def test_an_append_whose_answer_breaks_anywhere_is_stored_once() -> None:
    """At every single byte: the request is repeated, answered with the first one's offset, stored once."""
    async with cutting(b"POST /v1/topics/t/", 1) as (proxy, cluster, url), AsyncClient(url, QUICK) as client:
        places = []
        async with client.producer("t", batching=BatchingConfig(linger_ms=0)) as producer:
            while not proxy.whole:
                assert proxy.cuts < CUTS_AT_MOST
                delivery = await producer.send(b"%d" % len(places))
                await producer.flush()
                places.append(delivery.place(0).offset)
            duplicates = producer.statistics.duplicates
        assert places == list(range(len(places)))
        assert cluster.stored() == len(places)
        assert proxy.cuts == proxy.whole_bytes > 150
        assert duplicates == proxy.cuts
        values = [record.value async for record in _opened(client)]
        assert values == [b"%d" % number for number in range(len(places))]


async def _opened(client: AsyncClient) -> AsyncIterator[object]:
    async with client.consumer("t") as consumer:
        async for record in consumer:
            yield record


async def test_a_read_whose_answer_breaks_anywhere_gives_each_record_once() -> None:
    """In its head, its schema, its batches, its end."""
    async with cutting(b"GET /v1/topics/t/partitions/0/records", 13) as (proxy, _, url):
        async with AsyncClient(url, QUICK) as client:
            async with client.producer("t", batching=BatchingConfig(batch_rows_max=4)) as producer:
                for number in range(20):
                    await producer.send(b"%d" % number)
            while not proxy.whole:
                assert proxy.cuts < CUTS_AT_MOST
                async with client.consumer("t", max_bytes=1) as consumer:
                    offsets = [record.offset async for record in consumer]
                assert offsets == list(range(20))
        assert proxy.cuts > 50
