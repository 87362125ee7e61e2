"""Topics: list, create, describe, delete, and the offsets of all partitions.

Creation, change and deletion are the catalog leader's; the offsets of a partition are its leader's. This
agent asks them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from urllib.parse import quote

from aiohttp import web

from shoal.agent.http.body import media_type, read_body
from shoal.agent.http.context import Call, Context, Deadline
from shoal.agent.http.deliver import MOVING_CODES, PASSING_CODES, RETRY_PAUSE_SECONDS
from shoal.agent.http.dispatch import Route
from shoal.agent.http.forward import FORWARDED_BY, Reply, forward_target
from shoal.agent.http.interface import Json, Topic
from shoal.agent.http.parameters import integer, invalid
from shoal.agent.http.problems import JSON_TYPE, json_response
from shoal.errors import ShoalError
from shoal.records import parse_time

T = TypeVar("T")
PAGE_TOPICS_MAX = 10_000
CHANGE_PARAMETERS = frozenset(("timeout", "forward"))


class TopicHandlers:
    """Everything under /v1/topics but records."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """The routes, with what they take."""
        return [
            Route("GET", "/v1/topics", self.list_topics, frozenset(("cursor", "limit"))),
            Route("PUT", "/v1/topics/*", self.create, CHANGE_PARAMETERS),
            Route("GET", "/v1/topics/*", self.describe),
            Route("PATCH", "/v1/topics/*", self.change, CHANGE_PARAMETERS),
            Route("DELETE", "/v1/topics/*", self.delete, CHANGE_PARAMETERS),
            Route("GET", "/v1/topics/*/offsets", self.offsets, frozenset(("at", "timeout", "forward"))),
        ]

    async def list_topics(self, call: Call) -> web.Response:
        """All topics by name; `next_cursor` when there are more than `limit`."""
        limit = integer(call.query, "limit", PAGE_TOPICS_MAX, low=1, high=PAGE_TOPICS_MAX)
        after = call.query.get("cursor", "")
        topics = sorted(await self._context.broker.topics(), key=_name)
        page = [topic for topic in topics if _name(topic) > after][: limit + 1]
        answer: Json = {"topics": page[:limit]}
        if len(page) > limit:
            answer["next_cursor"] = _name(page[limit - 1])
        return json_response(answer)

    async def create(self, call: Call) -> web.Response:
        """201 when made, 200 when it was there and equal."""
        name = call.arguments[0]
        body = await optional_object(call)
        created, document = await create_topic_anywhere(call, name, body, Deadline(call.timeout_ms()))
        return json_response(document, status=201 if created else 200)

    async def describe(self, call: Call) -> web.Response:
        """One topic: settings, partitions, replicas, offsets."""
        name = self._context.broker.topic(call.arguments[0]).name
        return json_response(await self._context.broker.topic_document(name))

    async def change(self, call: Call) -> web.Response:
        """200 with the topic once its new settings are durable."""
        name = call.arguments[0]
        body = await optional_object(call)

        async def change_here(timeout_ms: int) -> Json:
            return await self._context.broker.change_topic(name, body, timeout_ms)

        async def change_there(url: str, timeout_ms: int) -> Json:
            return (await exchange_change(call, url, "PATCH", name, body, timeout_ms)).document()

        deadline = Deadline(call.timeout_ms())
        return json_response(await at_catalog(call, change_here, change_there, deadline))

    async def delete(self, call: Call) -> web.Response:
        """204 once the deletion is durable."""
        name = call.arguments[0]

        async def delete_here(timeout_ms: int) -> None:
            await self._context.broker.delete_topic(name, timeout_ms)

        async def delete_there(url: str, timeout_ms: int) -> None:
            await exchange_change(call, url, "DELETE", name, None, timeout_ms)

        await at_catalog(call, delete_here, delete_there, Deadline(call.timeout_ms()))
        return web.Response(status=204)

    async def offsets(self, call: Call) -> web.Response:
        """The ends of every partition's log, asked from its leader; with ?at=TIME also the first offset
        of then.
        """
        topic = self._context.broker.topic(call.arguments[0])
        at_us = time_parameter(call, "at")
        gatherer = OffsetsGatherer(call, topic, at_us)
        found = await gatherer.gather(Deadline(call.timeout_ms()))
        return json_response({"partitions": [found[partition] for partition in sorted(found)]})


def _name(topic: Json) -> str:
    return str(topic["name"])


def time_parameter(call: Call, name: str) -> int | None:
    """A time in microseconds since the epoch."""
    text = call.query.get(name)
    if text is None:
        return None
    try:
        return parse_time(text)
    except ShoalError as error:
        raise invalid(name, text, error.detail) from None


async def optional_object(call: Call) -> Json | None:
    """A JSON object in the body, None without a body. ShoalError bad-request, unsupported-media-type."""
    body = await read_body(call, call.context.limits.document_bytes)
    if not body.strip():
        return None
    media = media_type(call.headers.get("Content-Type"))
    if media not in (JSON_TYPE, "", "application/x-www-form-urlencoded"):  # the last: curl -d without --json
        raise ShoalError("unsupported-media-type", f"the body has to be {JSON_TYPE}; with curl say --json")
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ShoalError("bad-request", f"the body is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise ShoalError("bad-request", "the body has to be a JSON object")
    return document


async def create_topic_anywhere(
    call: Call, name: str, body: Json | None, deadline: Deadline
) -> tuple[bool, Json]:
    """Create a topic at the catalog's leader, wherever that is. Returns (created now, its document)."""

    async def create_here(timeout_ms: int) -> tuple[bool, Json]:
        return await call.context.broker.create_topic(name, body, timeout_ms)

    async def create_there(url: str, timeout_ms: int) -> tuple[bool, Json]:
        reply = await exchange_change(call, url, "PUT", name, body, timeout_ms)
        return reply.status == 201, reply.document()

    return await at_catalog(call, create_here, create_there, deadline)


async def exchange_change(
    call: Call, url: str, method: str, name: str, body: Json | None, timeout_ms: int
) -> Reply:
    """A change of one topic, sent to the agent that leads the catalog."""
    return await call.context.forwarder.exchange(
        url,
        method,
        forward_target(f"/v1/topics/{quote(name, safe='')}", {}, timeout_ms),
        headers={"Content-Type": JSON_TYPE} if body is not None else {},
        body=None if body is None else json.dumps(body).encode("ascii"),
        timeout_ms=timeout_ms,
    )


async def at_catalog(
    call: Call,
    here: Callable[[int], Awaitable[T]],
    there: Callable[[str, int], Awaitable[T]],
    deadline: Deadline,
) -> T:
    """Do something where the catalog is led, following it while it moves."""
    while True:
        try:
            return await here(deadline.remaining_ms())
        except ShoalError as error:
            if error.code not in MOVING_CODES or not call.may_forward():
                raise
            refusal = error
        url = refusal.extra.get("leader_url")
        if isinstance(url, str):
            try:
                return await there(url, deadline.remaining_ms())
            except ShoalError as error:
                if error.code not in PASSING_CODES:
                    raise
                refusal = error
        if not await deadline.pause(RETRY_PAUSE_SECONDS):
            raise ShoalError("no-leader", f"no leader of the catalog was found in time: {refusal.detail}")


class OffsetsGatherer:
    """Collects the offsets of a topic's partitions from their leaders, one request to each leading agent."""

    def __init__(self, call: Call, topic: Topic, at_us: int | None) -> None:
        self._call = call
        self._topic = topic
        self._at_us = at_us
        self._found: dict[int, Json] = {}

    async def gather(self, deadline: Deadline) -> dict[int, Json]:
        """Per partition its entry. On the second hop only those led here: the first one asks everybody."""
        count = len(self._topic.ranges)
        while True:
            refusal = await self._ask_here()
            if refusal is None or FORWARDED_BY in self._call.headers:
                return self._found
            if not self._call.may_forward():
                raise refusal
            await self._ask_others(deadline)
            missing = [partition for partition in range(count) if partition not in self._found]
            if not missing:
                return self._found
            if not await deadline.pause(RETRY_PAUSE_SECONDS):
                raise ShoalError("no-leader", f"no leader answered in time for partitions {missing[:32]}")

    async def _ask_here(self) -> ShoalError | None:
        refusal: ShoalError | None = None
        for partition in range(len(self._topic.ranges)):
            if partition in self._found:
                continue
            try:
                self._found[partition] = await self._entry(partition)
            except ShoalError as error:
                if error.code not in MOVING_CODES:
                    raise
                refusal = error
        return refusal

    async def _entry(self, partition: int) -> Json:
        broker = self._call.context.broker
        offsets = await broker.offsets(self._topic, partition)
        entry: Json = {
            "partition": partition,
            "log_start_offset": offsets.log_start_offset,
            "high_watermark": offsets.high_watermark,
            "log_end_offset": offsets.log_end_offset,
        }
        if self._at_us is not None:
            entry["offset"] = await broker.offset_at_time(self._topic, partition, self._at_us)
        return entry

    async def _ask_others(self, deadline: Deadline) -> None:
        broker = self._call.context.broker
        urls: set[str] = set()
        for partition in range(len(self._topic.ranges)):
            leader = None if partition in self._found else broker.leader(self._topic, partition)
            if leader is not None and not leader.local:
                urls.add(leader.url)
        answers = await asyncio.gather(*(self._ask(url, deadline.remaining_ms()) for url in sorted(urls)))
        for entries in answers:
            for entry in entries:
                self._found.setdefault(entry["partition"], entry)

    async def _ask(self, url: str, timeout_ms: int) -> list[Json]:
        path = f"/v1/topics/{quote(self._topic.name, safe='')}/offsets"
        query = {"at": self._call.query["at"]} if self._at_us is not None else {}
        try:
            reply = await self._call.context.forwarder.exchange(
                url,
                "GET",
                forward_target(path, query, timeout_ms),
                headers={},
                body=None,
                timeout_ms=timeout_ms,
            )
        except ShoalError as error:
            if error.code in ("timeout", "leadership-lost", *PASSING_CODES):
                return []  # asked again until the deadline
            raise
        return _entries(reply.document(), len(self._topic.ranges))


def _entries(document: Json, count: int) -> list[Json]:
    """The other agent's entries that are about partitions of this topic."""
    listed: Any = document.get("partitions")
    if not isinstance(listed, list):
        return []
    return [
        entry
        for entry in listed
        if isinstance(entry, dict) and type(entry.get("partition")) is int and 0 <= entry["partition"] < count
    ]
