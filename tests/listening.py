"""Servers of a test's own on 127.0.0.1: of plain streams, and how one of aiohttp stops listening."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

from aiohttp import web

Serve: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None] | None]


@asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[str]:
    """The URL at which each connection is served so. Afterwards nobody is accepted there any more."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def stop_listening(runner: web.BaseRunner) -> None:
    """Accept nobody any more; to be called before the runner's sites are stopped. A connection that asyncio
    accepts in the turn in which its server is closed is forgotten with the socket open."""
    loop = asyncio.get_running_loop()
    for site in runner.sites:
        for listener in getattr(site._server, "sockets", ()):
            loop.remove_reader(listener)
    await asyncio.sleep(0)
