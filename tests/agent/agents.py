"""Whole agents in the test's own process: real gossip, links, disks and HTTP, all on loopback and free
ports.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from shoal.agent.agent import Agent, Outcome, StopRequest
from shoal.agent.config import AgentConfig
from shoal.agent.levels import SUPPORTED, LevelRange

# No test waits so long unless something hangs, or the machine has next to no time for it.
START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 90.0
CALL_TIMEOUT_S = 60.0
EVENTUALLY_S = 90.0
LOOK_INTERVAL_S = 0.02


def config(data: Path, **flags: object) -> AgentConfig:
    """An agent that no other test can meet, quick to decide. Threads: rings are few where tests run."""
    defaults: dict[str, object] = {
        "data": str(data),
        "http_port": 0,
        "gossip_port": 0,
        "mdns": False,
        "disk": "threads",
        "expect": 1,
        "name": data.name,
    }
    return AgentConfig.from_sources(defaults | flags)


class Running:
    """One agent and its task."""

    def __init__(
        self, settings: AgentConfig, session: aiohttp.ClientSession, levels: LevelRange = SUPPORTED
    ) -> None:
        self.agent = Agent(settings, levels=levels)
        self.stop = StopRequest()
        self.ready = asyncio.Event()
        self._session = session
        self.task = asyncio.create_task(self.agent.run(self.stop, lambda _: self.ready.set()))

    async def until_ready(self) -> Running:
        """Raises what the agent failed with, or TimeoutError."""
        ready = asyncio.create_task(self.ready.wait())
        await asyncio.wait({ready, self.task}, timeout=START_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self.task.done():
            self.task.result()
        if not self.ready.is_set():
            raise TimeoutError(str(self.agent.broker.readiness()))
        return self

    async def gossip_address(self) -> str:
        """Where others join; known before the agent is ready."""
        await eventually(lambda: _true(self.agent.pool is not None))
        return f"127.0.0.1:{self.agent.pool.membership.port}"

    async def leave(self) -> Outcome:
        """As SIGTERM does."""
        self.stop.ask()
        return await asyncio.wait_for(asyncio.shield(self.task), STOP_TIMEOUT_S)

    async def crash(self) -> None:
        """As near to kill -9 as one process can come: no goodbye, no hand-over."""
        self.stop.ask()
        self.stop.ask()
        await asyncio.wait_for(asyncio.shield(self.task), STOP_TIMEOUT_S)

    async def call(
        self,
        method: str,
        path: str,
        body: object = None,
        more: Mapping[str, str] | None = None,
        **query: object,
    ) -> tuple[int, Any]:
        """Status and JSON of one request; bytes are sent as they are. `more`: further headers."""
        data = body if isinstance(body, bytes) else None
        given = None if data is not None or body is None else json.dumps(body)
        headers = dict(more or {}) | ({"Content-Type": "application/json"} if given is not None else {})
        parameters = {name: str(value) for name, value in query.items()}
        async with self._session.request(
            method,
            self.agent.url + path,
            data=given if data is None else data,
            headers=headers,
            params=parameters,
        ) as response:
            text = await response.text()
            return response.status, json.loads(text) if text else None

    async def served(self, method: str, path: str, body: object = None, **query: object) -> tuple[int, Any]:
        """As call, and again while something has not begun yet, as clients do: a group, say, has a second
        for that, which is little on a slow disk. Nothing is done twice."""
        async with asyncio.timeout(EVENTUALLY_S):
            while True:
                status, document = await self.call(method, path, body, **query)
                if status not in (503, 504) or not (document["definite"] or method in ("GET", "PUT")):
                    return status, document
                await asyncio.sleep(LOOK_INTERVAL_S)


class Agents:
    """Starts agents under one directory; whatever still runs at the end is stopped."""

    def __init__(self, directory: Path, session: aiohttp.ClientSession) -> None:
        self._directory = directory
        self._session = session
        self.running: list[Running] = []

    def start(self, name: str, levels: LevelRange = SUPPORTED, **flags: object) -> Running:
        """Not ready yet. `levels`: those that this agent understands."""
        running = Running(config(self._directory / name, **flags), self._session, levels)
        self.running.append(running)
        return running

    async def alone(self, name: str, levels: LevelRange = SUPPORTED, **flags: object) -> Running:
        """An agent of its own cluster, ready and at its level."""
        running = await self.start(name, levels, **flags).until_ready()
        await at_level([running], levels, flags)
        return running

    async def cluster(self, size: int, levels: LevelRange = SUPPORTED, **flags: object) -> list[Running]:
        """Agents that expect each other and meet through the first one's address."""
        first = self.start("a0", levels, expect=size, **flags)
        address = await first.gossip_address()
        more = {"expect": size, "join": [address], **flags}
        others = [self.start(f"a{number}", levels, **more) for number in range(1, size)]
        running = [await each.until_ready() for each in (first, *others)]
        await at_level(running, levels, flags)
        return running

    async def stop_all(self) -> None:
        """At once; faults were the tests' to look at."""
        for running in self.running:
            running.stop.ask()
            running.stop.ask()
        await asyncio.gather(*(running.task for running in self.running), return_exceptions=True)


async def at_level(agents: list[Running], levels: LevelRange, flags: Mapping[str, object]) -> None:
    """A new cluster takes its level right after its start; an agent that is ready may not have heard of it.
    One that is held, and one that others had before, stays as it is."""
    if flags.get("hold_level") or levels is not SUPPORTED or "join" in flags:
        return

    def heard(running: Running) -> bool:
        cluster = running.agent.cluster
        return cluster is not None and cluster.joined.topics.level == levels.highest

    await eventually(lambda: _true(all(heard(running) for running in agents)))


@asynccontextmanager
async def agents_in(directory: Path, tls: ssl.SSLContext | None = None) -> AsyncIterator[Agents]:
    """For a fixture. `tls`: of the test as a client."""
    timeout = aiohttp.ClientTimeout(total=CALL_TIMEOUT_S)
    connector = aiohttp.TCPConnector(ssl=tls or True)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        agents = Agents(directory, session)
        try:
            yield agents
        finally:
            await agents.stop_all()


async def eventually(condition: Callable[[], Awaitable[bool]], limit_s: float = EVENTUALLY_S) -> None:
    """Return once it holds; TimeoutError otherwise. What takes long to find out is asked less often: it must
    not keep the agents from making it true."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(limit_s):
        while True:
            asked = loop.time()
            if await condition():
                return
            await asyncio.sleep(max(LOOK_INTERVAL_S, loop.time() - asked))


async def _true(value: bool) -> bool:
    return value
