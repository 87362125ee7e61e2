"""Starting the HTTP side on fake brokers, on 127.0.0.1 and ephemeral ports."""

from __future__ import annotations

import asyncio
import io
import json
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pyarrow as pa
from fake_broker import FakeBroker, FakeCluster
from yarl import URL

from shoal.agent.http.admission.limits import HttpLimits
from shoal.agent.http.app import HttpRunner, make_runner
from shoal.agent.security.access import Access, PeerCertificate
from shoal.agent.security.audit import AuditTrail
from shoal.format.batch import DEFAULT_SCHEMA

EVENTS = "text/event-stream"
PATH = "/v1/topics/t/partitions/0/records"
Event = tuple[str | None, str, Any]
PATIENCE_S = 60.0
"""What never comes has not come by then, on any machine."""

HEADERS_TYPE = DEFAULT_SCHEMA.field("headers").type

ARROW = "application/vnd.apache.arrow.stream"
NDJSON = "application/x-ndjson"

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

    scheme = "http"

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
        url = URL(f"{self.scheme}://127.0.0.1:{self.port}{path}", encoded=True)
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


class ProvenDoor:
    """Connections whose other end is whoever the test says."""

    def __init__(self, server: asyncio.Server) -> None:
        self._server = server

    @classmethod
    async def open(
        cls, runner: HttpRunner, listener: socket.socket, certificate: Callable[[], PeerCertificate | None]
    ) -> ProvenDoor:
        loop = asyncio.get_running_loop()
        return cls(await loop.create_server(lambda: runner.admit(certificate()), sock=listener))

    async def stop(self) -> None:
        self._server.close()


@asynccontextmanager
async def running(
    broker: FakeBroker,
    limits: HttpLimits | None = None,
    access: Access | None = None,
    certificate: Callable[[], PeerCertificate | None] | None = None,
    trail: AuditTrail | None = None,
) -> AsyncIterator[Agent]:
    """An HTTP server for a broker; sets the broker's URL. `certificate`: of a connection that comes, as if
    TLS had proven it."""
    proven = certificate is not None
    runner = make_runner(broker, limits, access=access, agents_are_proven=proven, trail=trail)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    if certificate is None:
        await runner.listen(listener)
    else:
        runner.enter(await ProvenDoor.open(runner, listener, certificate))
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


def arrow_batch(values: list[bytes], keys: list[bytes | None] | None = None) -> pa.RecordBatch:
    rows = len(values)
    return pa.record_batch(
        [
            pa.array(range(rows), pa.timestamp("us", "UTC")),
            pa.array(keys or [None] * rows, pa.binary()),
            pa.array(values, pa.binary()),
            pa.array([None] * rows, HEADERS_TYPE),
        ],
        schema=DEFAULT_SCHEMA,
    )


def arrow_stream(*batches: pa.RecordBatch, schema: pa.Schema = DEFAULT_SCHEMA) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


@asynccontextmanager
async def stream(agent: Agent, query: str = "", path: str = PATH, **headers: str) -> AsyncIterator[Any]:
    """An async iterator of (id, kind, data); comments are (None, "comment", text)."""
    sent = {"Accept": EVENTS, **{name.replace("_", "-"): value for name, value in headers.items()}}
    url = f"http://127.0.0.1:{agent.port}{path}{query}"
    async with agent.session.get(url, headers=sent, timeout=aiohttp.ClientTimeout(total=30)) as response:
        assert response.status == 200, await response.read()
        assert response.headers["Content-Type"] == EVENTS
        yield events_of(response)


async def events_of(response: aiohttp.ClientResponse) -> AsyncIterator[Event]:
    fields: dict[str, str] = {}
    async for raw in response.content:
        line = raw.decode().rstrip("\n")
        if line.startswith(":"):
            yield None, "comment", line
        elif line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif fields:
            yield fields.get("id"), fields.get("event", "message"), json.loads(fields["data"])
            fields = {}


async def take(events: AsyncIterator[Event], count: int) -> list[Event]:
    """The next events that are no comments."""
    found: list[Event] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count:
            event = await anext(events)
            if event[1] != "comment":
                found.append(event)
    return found


async def until_free(*agents: Agent) -> None:
    """Nothing waits and nothing is held any more."""
    async with asyncio.timeout(40):
        while any(agent.runner.context.gate.waits for agent in agents):
            await asyncio.sleep(0.005)
    assert [agent.runner.context.gate.bytes_in_flight for agent in agents] == [0] * len(agents)
