"""Records as an event stream without end: one source of events followed for one reader.

An error before the first event is the answer's status; a later one is a last event `problem`. Leadership that
moves, or is nowhere for a while, is ridden out. Knows neither partitions nor cursors.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterator

from aiohttp import web

from shoal.agent.http.core.context import Call
from shoal.agent.http.core.event_stream import KEEP_ALIVE, KEEP_ALIVE_S, STOPPING, EventStream, format_event
from shoal.agent.http.core.leader import RETRY_PAUSE_SECONDS
from shoal.agent.http.fetch.anywhere import RETRIED_CODES
from shoal.errors import ShoalError


class Source(ABC):
    """Where the events come from, and how many are left to give: None without end."""

    def __init__(self, limit: int | None) -> None:
        self.left = limit

    def gave(self, count: int) -> None:
        """So many were given."""
        if self.left is not None:
            self.left -= count

    @abstractmethod
    async def look(self, wait_ms: int) -> bool:
        """Find what comes next, waiting so long for it; whether there is any. ShoalError: it may be asked
        again, and has lost nothing."""

    @abstractmethod
    def pieces(self) -> Iterator[bytes]:
        """The records found, as whole events."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what is held."""


async def follow(call: Call, source: Source) -> web.StreamResponse:
    """Stream from the source until the reader goes, the source has ended or something is wrong."""
    stream = EventStream(call)
    try:
        await source.look(0)
        if await stream.open():
            last_words = format_event(None, "stopping", STOPPING)
            await stream.keep(_send_all(call, stream, source), lambda: last_words)
    finally:
        source.close()
    return stream.response


async def _send_all(call: Call, stream: EventStream, source: Source) -> None:
    await stream.send(KEEP_ALIVE)  # the reader sees that it is heard
    while True:
        for piece in source.pieces():
            await stream.send(piece)
            await asyncio.sleep(0)  # a reader that is quick is no reason to keep the others waiting
        if source.left == 0:
            return
        try:
            await _until_news(call, stream, source)
        except ShoalError as error:
            await stream.send(format_event(None, "problem", error.to_problem()))
            return


async def _until_news(call: Call, stream: EventStream, source: Source) -> None:
    """However long that takes."""
    clock = asyncio.get_running_loop().time
    silent_since = clock()
    while True:
        try:
            if await source.look(int(KEEP_ALIVE_S * 1000)):
                return
        except ShoalError as error:
            if error.code not in RETRIED_CODES or not call.may_forward():
                raise
            await asyncio.sleep(RETRY_PAUSE_SECONDS)
        if clock() - silent_since >= KEEP_ALIVE_S:
            silent_since = clock()
            await stream.send(KEEP_ALIVE)
