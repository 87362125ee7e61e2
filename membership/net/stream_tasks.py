"""The streams of one node under way: probes, exchanges, what others open, and how many of all that at a time.

Law of this file: tasks, their bounds and their time limits. What goes over a stream is streams.py's business,
what an outcome means the core's: it is handed to `deliver`.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from shoal.membership.config import GossipConfig
from shoal.membership.net.streams import (
    StreamBudget,
    StreamFault,
    exchange_state,
    ping_over_stream,
    serve_stream,
)
from shoal.membership.swim.claims import Node
from shoal.membership.swim.ready import Datagram, Exchange, Exchanged, Input, StreamProbe, StreamProbed
from shoal.membership.wire.envelope import Envelope
from shoal.membership.wire.errors import WireError
from shoal.membership.wire.messages import PushPull, User, host_text

logger = logging.getLogger(__name__)

MAX_STREAMS = 64
"""Streams at a time, accepted and opened; memberlist allows 128 push/pulls. More are
refused, to come again."""


TURNS_TO_CLOSE = 4
"""A connection that asyncio has accepted but not handed over yet is a task of asyncio's own: it makes a
transport, tells us, and is closed in the turns after; a loop that ended before would leave it open."""


class StreamTasks:
    """`local_state(join)` and `local_node()` ask the core, `deliver` tells it, `on_stranger` hears of faults
    that may be a wrong key or label, and whose."""

    def __init__(
        self,
        config: GossipConfig,
        envelope: Envelope,
        *,
        local_state: Callable[[bool], PushPull],
        local_node: Callable[[], Node],
        deliver: Callable[[Input], None],
        on_stranger: Callable[[str, Exception], None],
    ) -> None:
        self.intake = StreamBudget()
        self.refused = 0
        self.closed = False
        self._config = config
        self._envelope = envelope
        self._local_state = local_state
        self._local_node = local_node
        self._deliver = deliver
        self._on_stranger = on_stranger
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Beyond the bound: for what happens once at a time."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def stop(self) -> None:
        """Nothing is begun any more, and nothing goes on."""
        self.closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for _ in range(TURNS_TO_CLOSE):
            await asyncio.sleep(0)

    def _has_room(self) -> bool:
        if len(self._tasks) < MAX_STREAMS and not self.closed:
            return True
        self.refused += 1
        return False

    # What we open

    def probe(self, probe: StreamProbe) -> Input | None:
        """Ping over TCP; the outcome at once when there is no room for it."""
        if not self._has_room():
            return StreamProbed(probe.sequence, False)
        self.start(self._probe(probe))
        return None

    async def _probe(self, probe: StreamProbe) -> None:
        reached = False
        try:
            async with asyncio.timeout(probe.timeout_ms / 1000):
                reached = await ping_over_stream(probe, self._local_node(), self._envelope, self.intake)
        except (OSError, StreamFault, WireError) as fault:
            logger.debug("cannot probe %s over TCP: %s", probe.node, fault)
        self._deliver(StreamProbed(probe.sequence, reached))

    def exchange(self, exchange: Exchange) -> None:
        """Push and pull, if there is room: another time will do as well."""
        if self._has_room():
            self.start(self._exchange(exchange))

    async def _exchange(self, exchange: Exchange) -> None:
        host, port = host_text(exchange.endpoint.address), exchange.endpoint.port
        try:
            state = await self.pull(host, port, join=exchange.join)
        except (OSError, StreamFault, WireError) as fault:
            logger.debug("cannot exchange state with %s:%d: %s", host, port, fault)
            return
        self._deliver(Exchanged(state))

    async def pull(self, host: str, port: int, *, join: bool) -> PushPull:
        """One exchange with an address. Raises OSError, StreamFault, WireError."""
        try:
            async with asyncio.timeout(self._config.stream_timeout_ms / 1000):
                return await exchange_state(host, port, self._local_state(join), self._envelope, self.intake)
        except WireError as fault:
            self._on_stranger(f"{host}:{port}, whom we called", fault)
            raise

    # What others open

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """For asyncio.start_server."""
        if self._has_room():
            # Not in the task: one that is cancelled before its first turn would never close.
            self.start(self._serve(reader, writer)).add_done_callback(lambda _: writer.close())
        else:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(self._config.stream_timeout_ms / 1000):
                request = await serve_stream(
                    reader,
                    writer,
                    self._envelope,
                    self.intake,
                    self._config.name,
                    lambda: self._local_state(False),
                )
        except (OSError, StreamFault, WireError) as fault:
            peer = writer.get_extra_info("peername") or ("somebody",)
            logger.debug("rejected a stream from %s: %s", peer, fault)
            self._on_stranger(f"a stream from {peer[0]}", fault)
            return
        if isinstance(request, PushPull):
            self._deliver(Exchanged(request))
        elif isinstance(request, User):
            self._deliver(Datagram(self._local_node().endpoint, (request,)))
