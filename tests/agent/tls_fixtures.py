"""The HTTP side of an agent behind TLS, on a fake broker and 127.0.0.1."""

from __future__ import annotations

import pathlib
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from certificates import CLUSTER, Authority, Issued, write_files
from fake_broker import FakeBroker, FakeCluster
from http_fixtures import Agent

from shoal.agent.http.app import HttpRunner, make_runner
from shoal.agent.http.front import Connection
from shoal.agent.tls.contexts import Contexts, make_contexts
from shoal.agent.tls.listener import WAITING_MAX, TlsListener
from shoal.agent.tls.refusals import Refusals
from shoal.agent.tls_settings import TlsSettings

OURS = Authority()
OTHERS = Authority("others")


class TlsAgent(Agent):
    """Its door, too."""

    scheme = "https"

    def __init__(
        self,
        broker: FakeBroker,
        runner: HttpRunner,
        port: int,
        session: aiohttp.ClientSession,
        door: TlsListener,
        listener: socket.socket,
    ) -> None:
        super().__init__(broker, runner, port, session)
        self.door = door
        self.listener = listener
        self.contexts: list[Contexts] = []
        """The last one counts."""

    @property
    def fronts(self) -> set[Connection]:
        """Its connections."""
        return self.runner._shared.fronts

    def exchange(self, contexts: Contexts) -> None:
        """Its files are other ones from now on, and an authority was withdrawn."""
        self.contexts.append(contexts)
        self.door.withdrawn()


def client_context(directory: pathlib.Path, issued: Issued | None = None) -> ssl.SSLContext:
    """Of a client that believes our authority, perhaps with a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=OURS.pem.decode())
    if issued is not None:
        files = write_files(directory, issued, OURS.pem, "client")
        context.load_cert_chain(str(files.tls_cert), files.tls_key)
    return context


@asynccontextmanager
async def tls_agent(
    settings: TlsSettings,
    context: ssl.SSLContext,
    broker: FakeBroker | None = None,
    refusals: Refusals | None = None,
    waiting_max: int = WAITING_MAX,
) -> AsyncIterator[TlsAgent]:
    """One that serves these files, with a session of such a client."""
    broker = broker or FakeCluster().add("one")
    contexts = make_contexts(settings, CLUSTER)
    held = [contexts]
    runner = make_runner(broker, tls=lambda: contexts.agents, hsts_ms=settings.hsts_ms)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    broker.url = f"https://127.0.0.1:{port}"
    door = TlsListener(listener, lambda: held[-1], runner, refusals, waiting_max)
    runner.enter(door)
    door.start()
    connector = aiohttp.TCPConnector(ssl=context)
    session = aiohttp.ClientSession(
        connector=connector, auto_decompress=False, skip_auto_headers=("Content-Type",)
    )
    try:
        agent = TlsAgent(broker, runner, port, session, door, listener)
        agent.contexts = held
        yield agent
    finally:
        await session.close()
        await runner.cleanup()
