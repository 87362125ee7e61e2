"""Links of agents on 127.0.0.1, and a peer that says what the test wants."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from aiohttp import web
from listening import stop_listening

from shoal.agent.levels import SUPPORTED, LevelRange
from shoal.agent.peers.frames import (
    PROTOCOL,
    FrameType,
    Hello,
    LinkKind,
    RawFrame,
    frame_head,
)
from shoal.agent.peers.links import LinkConfig, Links
from shoal.agent.process.clock import SystemClock
from tests.agent.link_server import serve_links

CLUSTER = b"c" * 16
FAST = LinkConfig(heartbeat_interval_ms=20, silence_after_ms=200, silence_after_loss_ms=60, redial_min_ms=10)
PATIENT = replace(FAST, silence_after_ms=10_000)
"""For those who keep the loop itself busy for a while: nobody is silent for that."""
TEST_FRAME = 64
STRANGER = "1" * 32


def agent_id(letter: str) -> str:
    """Ids that sort by their letter."""
    return letter * 32


class Node:
    """Links behind an HTTP server of its own, and everything they reported."""

    def __init__(
        self,
        letter: str,
        *,
        cluster: bytes = CLUSTER,
        nonce: bytes = b"nonce---",
        config: LinkConfig = FAST,
        levels: LevelRange = SUPPORTED,
    ):
        self.links = Links(
            agent_id=agent_id(letter),
            boot_nonce=nonce,
            cluster_id=cluster,
            clock=SystemClock(),
            rng=random.Random(1),
            config=config,
            levels=levels,
        )
        self.says_terms = True
        self.received: list[tuple[str, bytes]] = []
        self.silent: list[str] = []
        self.links.handle(TEST_FRAME, lambda peer, payload: self.received.append((peer, payload)))
        self.links.on_silence = self.silent.append
        self.runner: web.AppRunner | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    async def start(self, port: int = 0) -> None:
        """Serve and dial."""
        self.runner = await serve_links(self.links, port, lambda: self.says_terms)
        self.port = self.runner.addresses[0][1]
        await self.links.start()

    async def stop(self) -> None:
        """Links first: the HTTP server waits for its handlers, and an accepted link is one."""
        await self.links.stop()
        assert self.runner is not None
        await stop_listening(self.runner)
        await self.runner.cleanup()


@asynccontextmanager
async def nodes(*made: Node) -> AsyncIterator[tuple[Node, ...]]:
    """Started nodes that know each other's addresses."""
    for node in made:
        await node.start()
    for node in made:
        node.links.set_addresses({other.links.agent_id: other.url for other in made if other is not node})
    try:
        yield made
    finally:
        for node in made:
            await node.stop()


def connected(node: Node) -> bool:
    """Both connections to every known peer are open."""
    return all(peer.control and peer.bulk for peer in node.links.statistics())


class RawPeer:
    """A stranger with a socket: says what the test wants."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, node: Node) -> RawPeer:
        """Upgraded, but not greeted."""
        reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
        writer.write(
            f"GET /v1/peer HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: {PROTOCOL}\r\n\r\n".encode()
        )
        answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 40)
        assert answer.startswith(b"HTTP/1.1 101 ")
        return cls(reader, writer)

    async def greet(self, node: Node, kind: LinkKind = LinkKind.CONTROL) -> None:
        """As agent 1111..., correctly, of which gossip has told."""
        node.links.set_addresses({STRANGER: "http://127.0.0.1:1"})
        hello = Hello(kind, CLUSTER, STRANGER, node.links.agent_id, b"stranger").to_bytes(1)
        self.writer.write(frame_head(FrameType.HELLO, len(hello)) + hello)
        frame = await self.next_frame()
        assert frame.type == FrameType.HELLO

    async def next_frame(self) -> RawFrame:
        """One frame."""
        head = await asyncio.wait_for(self.reader.readexactly(5), 40)
        length, frame_type = struct.unpack("<IB", head)
        return RawFrame(frame_type, await self.reader.readexactly(length))

    async def closed(self) -> bytes:
        """Everything until the other side closes."""
        return await asyncio.wait_for(self.reader.read(), 40)
