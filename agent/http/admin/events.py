"""GET /v1/events: what happens to members, leaders and replicas, as server-sent events.

Knows the feed's numbers, not what an event means. A
stream begins with `listening`, whose id is a place to resume from; it ends with `dropped` when the reader
was too slow, with `stopping` when the agent stops.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from shoal.agent.events.feed import EventFeed, Listener, TooManyListenersError
from shoal.agent.http.api import operations as api
from shoal.agent.http.core.context import Call, Context
from shoal.agent.http.core.dispatch import Route
from shoal.agent.http.core.event_stream import (
    KEEP_ALIVE,
    KEEP_ALIVE_S,
    LAST_EVENT_ID,
    STOPPING,
    EventStream,
    format_event,
)
from shoal.agent.http.core.problems import json_bytes
from shoal.errors import ShoalError


class EventHandlers:
    """/v1/events."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """The route; it takes the header Last-Event-ID only."""
        return [Route(api.EVENT_FEED, self.events)]

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
        stream = EventStream(call)
        if await stream.open():
            missed = asked is not None and not resumes
            await stream.keep(
                self._follow(stream, feed, listener, missed),
                lambda: _event("stopping", feed.event_id(listener.seen), STOPPING),
            )
        return stream.response

    async def _follow(self, stream: EventStream, feed: EventFeed, listener: Listener, missed: bool) -> None:
        await stream.send(_event("listening", feed.event_id(listener.seen), {"missed": missed}))
        while True:
            events = await listener.take(KEEP_ALIVE_S)
            if listener.is_overrun:
                reason = {"reason": "events came faster than they were read; read /v1/members and /v1/routes"}
                await stream.send(_event("dropped", feed.event_id(feed.number), reason))
                return
            pieces = [_event(event.kind, feed.event_id(event.number), event.data) for event in events]
            await stream.send(b"".join(pieces) or KEEP_ALIVE)


def _event(kind: str, event_id: str, data: Mapping[str, Any]) -> bytes:
    return format_event(event_id, kind, json_bytes(data).decode())
