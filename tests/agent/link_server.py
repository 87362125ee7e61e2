"""The HTTP server on 127.0.0.1 through which other agents reach the links of a test."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable

from aiohttp import web

from shoal.agent.peers.links import Links
from shoal.agent.peers.terms import HEADER
from shoal.errors import ShoalError

FREED_SECONDS = 60.0
"""Whoever comes back to its port may find it taken: the kernel gives free ones to connections of anybody."""


async def serve_links(
    links: Links, port: int = 0, hears_terms: Callable[[], bool] = lambda: True
) -> web.AppRunner:
    """Take connections of other agents at that port, 0 for any that is free. Whoever stops it calls
    stop_listening() first. `hears_terms`: False, and the other side seems to be of before levels."""

    async def accept(request: web.Request) -> web.StreamResponse:
        try:
            terms = request.headers.get(HEADER) if hears_terms() else None
            await links.accept(request.transport, request.protocol, terms)
        except ShoalError as error:
            return web.json_response(error.to_problem(), status=error.status)
        return web.Response()

    app = web.Application()
    app.router.add_get("/v1/peer", accept)
    runner = web.AppRunner(app)
    await runner.setup()
    deadline = time.monotonic() + FREED_SECONDS
    while True:
        try:
            await web.TCPSite(runner, "127.0.0.1", port).start()
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.05)
        else:
            return runner
