"""The simulated network behaves as the kernel's: what liveness is judged by must not be its own queue."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from cluster_sim.loop import Life, SimLoop
from cluster_sim.network import Conditions, Network

PORT = 9_000
DELAY_MS_MAX = 20.0
WRITES = 500
PAUSE_S = 0.004
"""Shorter than a delay: a path that took one write at a time would fall behind by six milliseconds each."""


class _Received(asyncio.Protocol):
    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.came_at: list[tuple[int, float]] = []

    def data_received(self, data: bytes) -> None:
        """One byte is one write."""
        self.came_at += [(number, self._loop.time()) for number in data]


def _send(rng: random.Random, conditions: Conditions) -> list[tuple[int, float]]:
    """How late each write came, in the order in which they came, in seconds."""
    network = Network(rng)
    loop = network.loop = SimLoop(network)
    network.conditions = conditions
    received = _Received(loop)
    server, client = Life("server", "10.0.0.1"), Life("client", "10.0.0.2")
    sent_at: list[float] = []

    async def listen() -> None:
        network.serve(network.listen(PORT), lambda: received)

    async def write() -> None:
        transport: Any
        transport, _ = await network.connect(asyncio.Protocol, ("10.0.0.1", PORT))
        for number in range(WRITES):
            sent_at.append(loop.time())
            transport.write(bytes([number % 256]))
            await asyncio.sleep(PAUSE_S)
        await asyncio.sleep(1)

    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(loop.spawn(server, listen()))
        loop.run_until_complete(loop.spawn(client, write()))
    finally:
        asyncio.set_event_loop(None)
        loop.close()
    return [(number, at - begun) for (number, at), begun in zip(received.came_at, sent_at, strict=True)]


def test_a_busy_path_is_as_late_as_an_idle_one() -> None:
    """Writes are under way together: each comes in its order, and at most one delay after it left."""
    came = _send(random.Random(1), Conditions(DELAY_MS_MAX))
    assert [number for number, _ in came] == [number % 256 for number in range(WRITES)]
    assert max(late_s for _, late_s in came) <= DELAY_MS_MAX / 1_000 + 1e-3
    assert max(late_s for _, late_s in came[-50:]) > DELAY_MS_MAX / 2_000  # they are still delayed
