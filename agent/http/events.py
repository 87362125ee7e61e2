"""GET /v1/events: what happens to members, leaders and replicas, as server-sent events.

Knows the form (WHATWG HTML, "Server-sent events") and the feed's numbers, not what an event means. A
stream begins with `listening`, whose id is a place to resume from; it ends with `dropped` when the reader
was too slow, with `stopping` when the agent stops.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from shoal.agent.event_feed import EventFeed, Listener, TooManyListenersError
from shoal.agent.http.context import Call, Context
from shoal.agent.http.dispatch import Route
from shoal.agent.http.respond import cut_off
from shoal.errors import ShoalError

EVENT_STREAM = "text/event-stream"
KEEP_ALIVE_S = 15.0  # a comment, so that readers and proxies know that the silence is no broken connection
LAST_EVENT_ID = "Last-Event-ID"


class EventHandlers:
    """/v1/events."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """The route; it takes the header Last-Event-ID only."""
        return [Route("GET", "/v1/events", self.events)]

    async def events(self, call: Call) -> web.StreamResponse:
        """Stream until the reader goes, is too slow, or the agent stops."""
        feed = self._context.broker.events
        asked = call.headers.get(LAST_EVENT_ID)
        after = feed.place_after(asked)
        resumes = after is not None
        try:
            listener = feed.listen(feed.number if after is None else after)
        except TooManyListenersError:
            raise ShoalError("overloaded", "this agent has all the event streams it takes") from None
        try:
            return await self._context.waits.run(
                call.request, self._stream(call, feed, listener, asked, resumes)
            )
        finally:
            listener.close()

    async def _stream(
        self, call: Call, feed: EventFeed, listener: Listener, asked: str | None, resumes: bool
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        response.content_type = EVENT_STREAM
        await response.prepare(call.request)
        if call.request.method == "HEAD":
            return response
        missed = asked is not None and not resumes
        hello = _event("listening", feed.event_id(listener.seen), {"missed": missed})
        try:
            await self._write(call, response, hello)
            await self._follow(call, response, feed, listener)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._context.waits.stopped or task is None or task.uncancel():
                raise
            await _say_goodbye(response, feed, listener)
        return response

    async def _follow(
        self, call: Call, response: web.StreamResponse, feed: EventFeed, listener: Listener
    ) -> None:
        while True:
            events = await listener.take(KEEP_ALIVE_S)
            if listener.is_overrun:
                reason = {"reason": "events came faster than they were read; read /v1/members and /v1/routes"}
                await self._write(call, response, _event("dropped", feed.event_id(feed.number), reason))
                return
            pieces = [_event(event.kind, feed.event_id(event.number), event.data) for event in events]
            await self._write(call, response, b"".join(pieces) or b": still here\n\n")

    async def _write(self, call: Call, response: web.StreamResponse, data: bytes) -> None:
        stall_s = call.context.limits.send_stall_ms / 1000
        try:
            async with asyncio.timeout(stall_s):
                await response.write(data)
        except TimeoutError:
            cut_off(call.request)
            raise ConnectionResetError(f"the reader took nothing for {stall_s:g} s") from None


async def _say_goodbye(response: web.StreamResponse, feed: EventFeed, listener: Listener) -> None:
    """The last words of an agent that stops; a reader that does not listen to them is not waited for."""
    reason = {"reason": "this agent is stopping; go on at another one"}
    async with asyncio.timeout(1):
        await response.write(_event("stopping", feed.event_id(listener.seen), reason))


def _event(kind: str, event_id: str, data: Mapping[str, Any]) -> bytes:
    """One event; JSON has no line breaks of its own."""
    return f"id: {event_id}\nevent: {kind}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()
