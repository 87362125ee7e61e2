"""GET /v1/events: what happens to members, leaders, replicas and groups, as server-sent events.

Knows the feed's numbers, not what an event means. A stream begins with `listening`, whose id is a place to
resume from. It ends with `dropped` when the reader was too slow, with `stopping` when the agent stops.
"""

from __future__ import annotations

from aiohttp import web

from shoal.agent.events.feed import EventFeed, Listener, TooManyListenersError
from shoal.agent.http.api import cluster_operations as api
from shoal.agent.http.core.context import Call
from shoal.agent.http.core.dispatch import Route
from shoal.agent.http.core.event_stream import (
    KEEP_ALIVE,
    KEEP_ALIVE_S,
    LAST_EVENT_ID,
    STOPPING,
    EventStream,
    format_event,
)
from shoal.errors import ShoalError


async def events(call: Call) -> web.StreamResponse:
    """Stream until the reader goes, is too slow, or the agent stops."""
    feed = call.context.broker.events
    asked = call.headers.get(LAST_EVENT_ID)
    after = feed.place_after(asked)
    try:
        listener = feed.listen(feed.number if after is None else after)
    except TooManyListenersError:
        raise ShoalError("overloaded", "this agent has all the event streams it takes") from None
    try:
        missed = asked is not None and after is None
        return await call.streaming(_stream(call, feed, listener, missed))
    finally:
        listener.close()


async def _stream(call: Call, feed: EventFeed, listener: Listener, missed: bool) -> web.StreamResponse:
    stream = EventStream(call)
    if await stream.open():
        await stream.keep(
            _follow(call, stream, feed, listener, missed),
            lambda: format_event(feed.event_id(listener.seen), "stopping", STOPPING),
        )
    return stream.response


async def _follow(call: Call, stream: EventStream, feed: EventFeed, listener: Listener, missed: bool) -> None:
    await stream.send(format_event(feed.event_id(listener.seen), "listening", {"missed": missed}))
    asker = call.asker
    while True:
        events = await listener.take(KEEP_ALIVE_S)
        if listener.is_overrun:
            reason = {"reason": "events came faster than they were read; read /v1/members and /v1/routes"}
            await stream.send(format_event(feed.event_id(feed.number), "dropped", reason))
            return
        pieces = [
            format_event(feed.event_id(event.number), event.kind, event.data)
            for event in events
            if (
                asker.may_describe(event.data["topic"])
                if "topic" in event.data
                else asker.may_describe_cluster()
            )
        ]
        await stream.send(b"".join(pieces) or KEEP_ALIVE)


ROUTES = (Route(api.EVENT_FEED, events),)
