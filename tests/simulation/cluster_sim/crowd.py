"""Strangers who take an agent's places for clients, and what they do there: nothing, half a head, a promise
of a body that does not come; or who take its memory, by bodies of which the second half does not come.

Law of this file: they know the port and nothing of agents; they are there before the next client and come
back when they are sent away.
"""

from __future__ import annotations

import asyncio
import random

from log_clients import arrow_body

from cluster_sim.loop import Life, SimLoop

CROWD_ADDRESS = "127.0.1.2"
PLACES = 40
"""Of each agent, for clients, in runs with a crowd; agents have as many again for each other."""
STRANGERS = PLACES + 8
AGAIN_S = 0.5
DRIP_S = 1.0
HEAD = b"POST /v1/topics/events/partitions/0/records HTTP/1.1\r\nHost: 127.0.0.1:7070\r\n"
PROMISE = HEAD + b"Content-Type: application/vnd.apache.arrow.stream\r\nContent-Length: %d\r\n\r\n" % (
    1 << 20
)
BEGINNINGS = (b"", b"GET ", HEAD, PROMISE)
HOARDERS = 10
HOARD_BYTES = 256 * 1_024
"""What one of them has sent of a body that is not complete: together more than an agent with little memory
takes."""
_BODIES = (
    (b"application/json", bytes(HOARD_BYTES)),
    # One batch that goes on: what is no Arrow stream is refused before it is whole.
    (b"application/vnd.apache.arrow.stream", arrow_body(["x" * 2 * HOARD_BYTES])[:HOARD_BYTES]),
)
HOARDS = tuple(
    HEAD + b"Content-Type: %s\r\nContent-Length: %d\r\n\r\n" % (kind, 2 * HOARD_BYTES) + body
    for kind, body in _BODIES
)


class Crowd:
    """`gather` once; `leave` at the end."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._life = Life("crowd", CROWD_ADDRESS)
        self._tasks: list[asyncio.Task[None]] = []

    def gather(self, agent: tuple[str, int], rng: random.Random) -> None:
        """All of them come at once."""
        self._come(agent, [rng.choice(BEGINNINGS) for _ in range(STRANGERS)])

    def hoard(self, agent: tuple[str, int], rng: random.Random) -> None:
        """A few, who send much of what they never end."""
        self._come(agent, [rng.choice(HOARDS) for _ in range(HOARDERS)])

    def _come(self, agent: tuple[str, int], beginnings: list[bytes]) -> None:
        for beginning in beginnings:
            self._tasks.append(self._loop.spawn(self._life, self._stand(agent, beginning)))

    async def _stand(self, agent: tuple[str, int], beginning: bytes) -> None:
        """One of them. Of a promised body it sends a byte now and then."""
        while True:
            try:
                reader, writer = await asyncio.open_connection(*agent)
            except OSError:
                await asyncio.sleep(AGAIN_S)
                continue
            try:
                writer.write(beginning)
                while not reader.at_eof() and not writer.is_closing():
                    await asyncio.sleep(DRIP_S)
                    if beginning is PROMISE:
                        writer.write(b"\0")
            except OSError:
                await asyncio.sleep(AGAIN_S)
            finally:
                writer.transport.abort()
            await asyncio.sleep(AGAIN_S)

    async def leave(self) -> None:
        """They go; their connections with them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
