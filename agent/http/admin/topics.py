"""Topics: list, create, describe, delete.

Creation, change and deletion are the catalog leader's; this agent asks it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import islice
from typing import TypeVar
from urllib.parse import quote

from aiohttp import web

from shoal.agent.http.api import operations as api
from shoal.agent.http.api import patterns
from shoal.agent.http.api.media import JSON_TYPE
from shoal.agent.http.core.body import media_type, read_body
from shoal.agent.http.core.context import Call, Deadline
from shoal.agent.http.core.dispatch import Route
from shoal.agent.http.core.forward import Reply, topic_path
from shoal.agent.http.core.leader import at_leader, catalog_of
from shoal.agent.http.core.parameters import integer, invalid
from shoal.agent.http.core.problems import json_response
from shoal.agent.interface import Json, Leader
from shoal.errors import ShoalError, shown

T = TypeVar("T")
PAGE_TOPICS_MAX = 10_000
IDEMPOTENCY_KEY = "Idempotency-Key"


async def list_topics(call: Call) -> web.Response:
    """All topics that the asker may describe, by name; `next_cursor` when there are more than `limit`."""
    limit = integer(call.query, "limit", PAGE_TOPICS_MAX, low=1, high=PAGE_TOPICS_MAX)
    after = call.query.get("cursor", "")
    topics = sorted(await call.context.broker.topics(), key=_name)
    shown_ones = (topic for topic in topics if _name(topic) > after and call.asker.may_describe(_name(topic)))
    page = list(islice(shown_ones, limit + 1))
    answer: Json = {"topics": page[:limit]}
    if len(page) > limit:
        answer["next_cursor"] = _name(page[limit - 1])
    return json_response(answer)


async def create(call: Call) -> web.Response:
    """201 when made, 200 when it was there and equal."""
    name = call.arguments[0]
    body = await optional_object(call)
    key = call.headers.get(IDEMPOTENCY_KEY)
    if key is not None and re.fullmatch(patterns.IDEMPOTENCY_KEY, key) is None:
        raise ShoalError(
            "bad-request", f"{IDEMPOTENCY_KEY} {shown(key)}: 1 to 128 printable characters are wanted"
        )
    created, document = await create_topic_anywhere(call, name, body, Deadline(call.timeout_ms()), key)
    return json_response(document, status=201 if created else 200)


async def describe(call: Call) -> web.Response:
    """One topic: settings, partitions, replicas, offsets."""
    name = call.context.broker.topic(call.arguments[0]).name
    return json_response(await call.context.broker.topic_document(name))


async def settings(call: Call) -> web.Response:
    """Each setting of a topic, with its default."""
    return json_response(call.context.broker.topic_settings(call.arguments[0]))


async def change(call: Call) -> web.Response:
    """200 with the topic once its new settings are durable."""
    name = call.arguments[0]
    version = call.query.get("if_version")
    if version is not None and not 1 <= len(version) <= api.VERSION_CHARACTERS_MAX:
        raise invalid("if_version", version, "`settings_version` of the topic is wanted")
    body = await optional_object(call)
    deadline = Deadline(call.timeout_ms())
    query = None if version is None else {"if_version": version}

    async def here() -> Json:
        return await call.context.broker.change_topic(name, body, deadline.remaining_ms(), version)

    async def there(leader: Leader) -> Json:
        return (await exchange_change(call, leader, "PATCH", name, body, deadline, query)).document()

    return json_response(await at_leader(call, catalog_of(call), here, there, deadline))


async def delete(call: Call) -> web.Response:
    """204 once the deletion is durable."""
    name = call.arguments[0]
    deadline = Deadline(call.timeout_ms())

    async def here() -> None:
        await call.context.broker.delete_topic(name, deadline.remaining_ms())

    async def there(leader: Leader) -> None:
        await exchange_change(call, leader, "DELETE", name, None, deadline)

    await at_leader(call, catalog_of(call), here, there, deadline)
    return web.Response(status=204)


async def kept(call: Call) -> web.Response:
    """The replicas on live agents of topics that the catalog does not know. One whose name nobody remembers
    is shown to those who may describe all topics."""
    document = await call.context.broker.kept_topics()
    shown_ones = [topic for topic in document["topics"] if call.asker.may_describe(topic["name"] or "")]
    return json_response({**document, "topics": shown_ones})


async def adopt(call: Call) -> web.Response:
    """201 with the topic once the catalog knows it again, durably."""
    kept, body = call.arguments[0], await optional_object(call) or {}
    name = body.get("name")
    if set(body) - {"name"} or not isinstance(name, str | None):
        raise ShoalError("bad-request", 'nothing, or {"name": NEW_NAME}, is wanted')
    deadline = Deadline(call.timeout_ms())

    async def here() -> Json:
        return await call.context.broker.adopt_topic(kept, name, deadline.remaining_ms())

    async def there(leader: Leader) -> Json:
        path = f"/v1/kept-topics/{quote(kept, safe='')}/adopt"
        return (await exchange(call, leader.url, "POST", path, body, deadline.remaining_ms())).document()

    return json_response(await at_leader(call, catalog_of(call), here, there, deadline), status=201)


ROUTES = (
    Route(api.LIST_TOPICS, list_topics),
    Route(api.CREATE_TOPIC, create),
    Route(api.DESCRIBE_TOPIC, describe),
    Route(api.TOPIC_SETTINGS, settings),
    Route(api.CHANGE_TOPIC, change),
    Route(api.DELETE_TOPIC, delete),
    Route(api.KEPT_TOPICS, kept),
    Route(api.ADOPT_TOPIC, adopt),
)


def _number(text: str) -> int | float:
    """JSON does not tell 1.0 from 1, and some languages write every number so."""
    value = float(text)
    return int(value) if value.is_integer() else value


def _name(topic: Json) -> str:
    return str(topic["name"])


async def optional_object(call: Call, limit_bytes: int | None = None) -> Json | None:
    """A JSON object in the body, None without a body. ShoalError bad-request, unsupported-media-type."""
    body = await read_body(call, limit_bytes or call.context.limits.document_bytes)
    if not body.strip():
        return None
    media = media_type(call.headers.get("Content-Type"))
    if media not in (JSON_TYPE, "", "application/x-www-form-urlencoded"):  # the last: curl -d without --json
        raise ShoalError("unsupported-media-type", f"the body has to be {JSON_TYPE}; with curl say --json")
    return json_object(body)


def json_object(body: bytes) -> Json:
    """A body that has to be one. ShoalError bad-request."""
    try:
        document = json.loads(body, parse_float=_number)
    except (ValueError, RecursionError) as error:
        raise ShoalError("bad-request", f"the body is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise ShoalError("bad-request", "the body has to be a JSON object")
    return document


async def create_topic_anywhere(
    call: Call, name: str, body: Json | None, deadline: Deadline, key: str | None = None
) -> tuple[bool, Json]:
    """Create a topic at the catalog's leader, wherever that is. Returns (created now, its document)."""
    headers = {} if key is None else {IDEMPOTENCY_KEY: key}

    async def here() -> tuple[bool, Json]:
        return await call.context.broker.create_topic(name, body, deadline.remaining_ms(), key)

    async def there(leader: Leader) -> tuple[bool, Json]:
        reply = await exchange(
            call, leader.url, "PUT", topic_path(name), body, deadline.remaining_ms(), headers=headers
        )
        return reply.status == 201, reply.document()

    return await at_leader(call, catalog_of(call), here, there, deadline)


async def exchange_change(
    call: Call,
    leader: Leader,
    method: str,
    name: str,
    body: Json | None,
    deadline: Deadline,
    query: Mapping[str, str] | None = None,
) -> Reply:
    """A change of one topic, sent to the agent that leads the catalog."""
    return await exchange(call, leader.url, method, topic_path(name), body, deadline.remaining_ms(), query)


async def exchange(
    call: Call,
    url: str,
    method: str,
    path: str,
    body: Json | None,
    timeout_ms: int,
    query: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """A request about a topic, sent to the agent that leads it or the catalog."""
    sent = None if body is None else json.dumps(body).encode("ascii")
    headers = {**(headers or {}), **({} if body is None else {"Content-Type": JSON_TYPE})}
    return await call.context.forwarder.exchange(
        url,
        method,
        path,
        passed_on=call.asker.passed_on,
        timeout_ms=timeout_ms,
        query=query,
        headers=headers,
        body=sent,
    )
