"""How a test's own aiohttp server stops listening."""

from __future__ import annotations

import asyncio

from aiohttp import web


async def stop_listening(runner: web.BaseRunner) -> None:
    """Accept nobody any more; to be called before the runner's sites are stopped. A connection that asyncio
    accepts in the turn in which its server is closed is forgotten with the socket open."""
    loop = asyncio.get_running_loop()
    for site in runner.sites:
        for listener in getattr(site._server, "sockets", ()):
            loop.remove_reader(listener)
    await asyncio.sleep(0)
