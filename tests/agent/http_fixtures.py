"""Starting the HTTP side on fake brokers, on 127.0.0.1 and ephemeral ports."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web
from fake_broker import FakeBroker, FakeCluster
from yarl import URL

from shoal.agent.http.app import HttpRunner, make_runner
from shoal.agent.http.limits import HttpLimits

PAUSE_S = 1.0
"""Nothing more comes of an answer when nothing has for so long."""


class Answer:
    """A whole answer."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def problem(self, code: str) -> Any:
        """The problem document, its code checked, as RFC 9457 wants it."""
        assert self.headers["Content-Type"] == "application/problem+json", self.body
        document = self.json
        assert document["code"] == code, document
        assert document["status"] == self.status
        assert document["type"]
        assert document["title"]
        assert document["detail"]
        assert isinstance(document["retriable"], bool)
        assert isinstance(document["definite"], bool)
        return document


class Agent:
    """A running HTTP side: its broker, and requests to it."""

    def __init__(
        self, broker: FakeBroker, runner: HttpRunner, port: int, session: aiohttp.ClientSession
    ) -> None:
        self.broker = broker
        self.runner = runner
        self.port = port
        self.session = session

    async def request(
        self, method: str, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """One request; a dict or list as body is sent as JSON."""
        sent = dict(headers or {})
        if isinstance(body, dict | list):
            body = json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        elif isinstance(body, bytes) and len(body) > 2**20:
            body = io.BytesIO(body)
        url = URL(f"http://127.0.0.1:{self.port}{path}", encoded=True)
        async with self.session.request(method, url, data=body, headers=sent) as response:
            return Answer(response.status, dict(response.headers), await response.read())

    async def get(self, path: str, **headers: str) -> Answer:
        return await self.request("GET", path, headers={k.replace("_", "-"): v for k, v in headers.items()})

    async def post(self, path: str, body: Any = b"", *, media: str | None = None, **headers: str) -> Answer:
        sent = {k.replace("_", "-"): v for k, v in headers.items()}
        if media is not None:
            sent["Content-Type"] = media
        return await self.request("POST", path, body, headers=sent)

    async def raw(self, data: bytes, *, seconds: float = 40.0) -> bytes:
        """Send bytes, return everything until the server closes or nothing more comes for a moment."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(data)
            await writer.drain()
            received = b""
            while True:
                try:
                    async with asyncio.timeout(seconds if not received else PAUSE_S):
                        piece = await reader.read(65536)
                except TimeoutError:
                    return received
                if not piece:
                    return received
                received += piece
        finally:
            writer.close()


@asynccontextmanager
async def running(broker: FakeBroker, limits: HttpLimits | None = None) -> AsyncIterator[Agent]:
    """An HTTP server for a broker; sets the broker's URL."""
    runner = make_runner(broker, limits)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site.port
    broker.url = f"http://127.0.0.1:{port}"
    session = aiohttp.ClientSession(auto_decompress=False, skip_auto_headers=("Content-Type",))
    try:
        yield Agent(broker, runner, port, session)
    finally:
        await session.close()
        await runner.cleanup()


@asynccontextmanager
async def one_agent(limits: HttpLimits | None = None) -> AsyncIterator[Agent]:
    """A cluster of one."""
    async with running(FakeCluster().add("one"), limits) as agent:
        yield agent


@asynccontextmanager
async def two_agents() -> AsyncIterator[tuple[Agent, Agent]]:
    """A cluster of two; the first leads the catalog."""
    cluster = FakeCluster()
    async with running(cluster.add("one")) as first, running(cluster.add("two")) as second:
        yield first, second
