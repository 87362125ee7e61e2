"""The form of server-sent events (WHATWG HTML, "Server-sent events"), and how one stream is kept.

Knows neither members nor records. A stream holds one answer open. Its events wait for the reader as long as
any slow reader is given. Comments break silence, and an agent that stops says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web

from shoal.agent.http.admission.answer_rate import StreamDeadline
from shoal.agent.http.api.media import EVENT_STREAM
from shoal.agent.http.core.context import Call
from shoal.agent.http.core.cors import prepare
from shoal.agent.http.core.problems import json_bytes

KEEP_ALIVE_S = 15.0  # a comment, so that readers and proxies know that the silence is no broken connection
KEEP_ALIVE = b": still here\n\n"
LAST_EVENT_ID = "Last-Event-ID"
STOPPING = {"reason": "this agent is stopping; go on at another one"}
LAST_WORDS_S = 1.0  # an agent that stops waits no longer for a reader that does not listen


class EventStream:
    """One answer of that type. `open` it, then `keep` what writes to it running."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self.response = web.StreamResponse(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self.response.content_type = EVENT_STREAM
        self._taking = StreamDeadline(call.context.limits)

    async def open(self) -> bool:
        """Send the head; whether anything is to follow it."""
        await prepare(self.response, self._call.request)
        return self._call.request.method != "HEAD"

    async def send(self, data: bytes) -> None:
        """Whole events, or a comment. ConnectionResetError when the reader takes too little for too long."""
        await self._taking.write(self.response, data)
        meter = self._call.asker.meter
        if meter is not None:
            meter.sent(self._call.request.writer.output_size)
            await meter.rest()

    async def keep(self, work: Awaitable[None], last_words: Callable[[], bytes]) -> None:
        """Let the work write until it ends; when the agent stops meanwhile, say the last words. An asker that
        may no longer read is told why, in an event `problem`."""
        try:
            await work
        except asyncio.CancelledError:
            task, refused = asyncio.current_task(), self._call.asker.refused
            is_known = refused is not None or self._call.context.waits.stopped
            if not is_known or task is None or task.uncancel():
                raise
            words = last_words() if refused is None else format_event(None, "problem", refused.to_problem())
            async with asyncio.timeout(LAST_WORDS_S):
                await self.response.write(words)


def format_event(event_id: str | None, kind: str, document: Mapping[str, Any]) -> bytes:
    """One event. Without an id the reader keeps the last one."""
    line = b"" if event_id is None else f"id: {event_id}\n".encode()
    return b"%bevent: %b\ndata: %b\n\n" % (line, kind.encode(), json_bytes(document))
