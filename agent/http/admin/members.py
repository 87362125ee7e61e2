"""Members, routes, and this agent's place among them: join, leave, the link between agents."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from shoal.agent.http.admin.topics import optional_object
from shoal.agent.http.api import cluster_operations as api
from shoal.agent.http.api.needs import TOPIC_DESCRIBE
from shoal.agent.http.api.operations import VERSION_CHARACTERS_MAX
from shoal.agent.http.core.context import THING, Call, partition_number
from shoal.agent.http.core.dispatch import Route
from shoal.agent.http.core.parameters import choice, invalid
from shoal.agent.http.core.problems import json_response
from shoal.agent.interface import Document, Json
from shoal.errors import ShoalError, shown

STATUSES = ("alive", "suspect", "failed", "leaving", "left")
JOIN_ADDRESSES_MAX = 64
MAX_NAMESAKES_SHOWN = 8
PEER_PROTOCOL = "shoal-peer/1"
PEER_TERMS = "Shoal-Link"
INTRODUCTION = ("id", "cluster", "cluster_id", "catalog", "run", "started_at")
"""Members of an agent's document that other agents read."""


async def members(call: Call) -> web.Response:
    """The member list, filtered; blocks with ?after_version and ?wait."""
    status = choice(call.query, "status", "", STATUSES)
    tag = _tag_filter(call)
    document = await _wait(call, call.context.broker.members)
    kept = [
        member
        for member in _shown_members(call, document.body["members"])
        if (not status or member["status"] == status)
        and (tag is None or member["tags"].get(tag[0]) == tag[1])
    ]
    return versioned_response(document, {**document.body, "members": kept})


async def member(call: Call) -> web.Response:
    """One member by id or name."""
    document = await call.context.broker.members(None, 0)
    shown_ones = _shown_members(call, document.body["members"])
    return versioned_response(document, find_member(shown_ones, call.arguments[0]))


def _shown_members(call: Call, members: list[Json]) -> list[Json]:
    """Members with the partitions that the asker may describe. A client finds agents by them, so that only
    the tags need a permission of their own. An asker that may do nothing needs no agents, and sees none."""
    asker = call.asker
    if not asker.is_asked:
        return members
    if not asker.has_rules():
        return []
    tags = asker.may_describe_cluster()
    return [
        {
            **member,
            "tags": member["tags"] if tags else {},
            "partitions": [held for held in member["partitions"] if asker.may_describe(held["topic"])],
        }
        for member in members
    ]


async def force_leave(call: Call) -> web.Response:
    """Declare a failed member left, so that it is no longer waited for."""
    document = await call.context.broker.members(None, 0)
    member = find_member(document.body["members"], call.arguments[0])
    call.context.broker.force_leave(str(member["id"]))
    return json_response({"id": member["id"], "name": member["name"]})


async def partition_routes(call: Call) -> web.Response:
    """The leaders of partitions; blocks with ?after_version and ?wait."""
    topic = call.query.get("topic")
    if topic is not None:
        call.asker.require(TOPIC_DESCRIBE, topic)
        call.context.broker.topic(topic)

    async def ask(after_version: str | None, wait_ms: int) -> Document:
        return await call.context.broker.routes(topic, after_version, wait_ms)

    document = await _wait(call, ask)
    if not call.asker.is_asked:
        return versioned_response(document, document.body)
    topics = {name: told for name, told in document.body["topics"].items() if call.asker.may_describe(name)}
    return versioned_response(document, {**document.body, "topics": topics})


async def _wait(call: Call, ask: Callable[[str | None, int], Awaitable[Document]]) -> Document:
    after_version = call.query.get("after_version")
    if after_version is not None and len(after_version) > VERSION_CHARACTERS_MAX:
        raise invalid("after_version", after_version, "a version from an earlier answer is wanted")
    wait_ms = call.wait_ms()
    return await call.waiting(ask(after_version, wait_ms))


async def agent(call: Call) -> web.Response:
    """This agent; those who may not describe the cluster hear which cluster it is, as a new agent has to."""
    document = call.context.broker.agent_document()
    if not call.asker.may_describe_cluster():
        document = {name: document[name] for name in INTRODUCTION if name in document}
    return json_response(document)


async def join(call: Call) -> web.Response:
    """Contact other agents by address."""
    body = await optional_object(call) or {}
    addresses = body.get("addresses")
    if (
        not isinstance(addresses, list)
        or not 1 <= len(addresses) <= JOIN_ADDRESSES_MAX
        or not all(isinstance(address, str) for address in addresses)
    ):
        raise ShoalError("bad-request", '{"addresses":["HOST:PORT"]} is wanted, 1 to 64 of them')
    call.request[THING] = f"addresses:{','.join(addresses)}"
    return json_response({"joined": await call.context.broker.join(addresses)})


async def leave(call: Call) -> web.Response:
    """Begin to leave the cluster gracefully, as SIGTERM does; the answer does not wait for the end."""
    await call.context.broker.leave()
    return json_response({"leaving": True})


async def recover_preview(call: Call) -> web.Response:
    """The effect that a forced recovery of this agent's partition would have; changes nothing."""
    topic, partition = call.query.get("topic"), call.query.get("partition", "")
    if not topic:
        raise ShoalError("bad-request", "?topic=NAME&partition=N is wanted")
    document = await call.context.broker.recover(topic, partition_number(partition), carry_out=False)
    return json_response(document)


async def recover(call: Call) -> web.Response:
    """Make this agent's replica of a partition its only voter. The request accepts the loss of data."""
    body = await optional_object(call) or {}
    topic, partition = body.get("topic"), body.get("partition")
    if (
        set(body) != {"topic", "partition", "accept_data_loss"}
        or not isinstance(topic, str)
        or type(partition) is not int
        or body["accept_data_loss"] is not True
    ):
        raise ShoalError(
            "bad-request",
            '{"topic": NAME, "partition": N, "accept_data_loss": true} is wanted: what only the lost'
            " replicas had is lost for ever",
        )
    call.request[THING] = f"topic:{topic} partition:{partition}"
    return json_response(await call.context.broker.recover(topic, partition, carry_out=True))


async def drain_status(call: Call) -> web.Response:
    """How far this agent is with giving its replicas away."""
    return json_response(call.context.broker.drain_document())


async def drain(call: Call) -> web.Response:
    """Hold and lead nothing any more; the answer does not wait for the end."""
    return json_response(await call.context.broker.drain(undo=False))


async def undo_drain(call: Call) -> web.Response:
    """Take replicas again."""
    return json_response(await call.context.broker.drain(undo=True))


async def peer(call: Call) -> web.StreamResponse:
    """The link between agents: the broker takes the connection over and keeps it until its end."""
    upgrade = call.headers.get("Upgrade", "")
    if upgrade.lower() != PEER_PROTOCOL:
        raise ShoalError(
            "bad-request", f"Upgrade: {PEER_PROTOCOL} is wanted; this is the link between agents"
        )
    transport = call.request.transport
    if transport is not None:
        front = transport.get_protocol()
        call.context.places.become_link(front)
        await call.context.broker.accept_peer(transport, front, call.headers.get(PEER_TERMS))
    raise ConnectionResetError("the link has ended")  # nothing more can be said in HTTP


ROUTES = (
    Route(api.MEMBERS, members),
    Route(api.MEMBER, member),
    Route(api.FORCE_LEAVE, force_leave),
    Route(api.ROUTES, partition_routes),
    Route(api.AGENT, agent),
    Route(api.JOIN, join),
    Route(api.LEAVE, leave),
    Route(api.DRAIN_STATUS, drain_status),
    Route(api.DRAIN, drain),
    Route(api.UNDO_DRAIN, undo_drain),
    Route(api.RECOVER_PREVIEW, recover_preview),
    Route(api.RECOVER, recover),
    Route(api.PEER, peer),
)


def versioned_response(document: Document, body: Json) -> web.Response:
    """The answer with its version in a header too."""
    response = json_response(body)
    response.headers["Shoal-Version"] = document.version
    return response


def _tag_filter(call: Call) -> tuple[str, str] | None:
    text = call.query.get("tag")
    if text is None:
        return None
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise invalid("tag", text, "KEY=VALUE is wanted")
    return key, value


def find_member(members: list[Json], name_or_id: str) -> Json:
    """By id first, then by a name that only one member has; ShoalError unknown-member."""
    for member in members:
        if member["id"] == name_or_id:
            return member
    named = [member for member in members if member["name"] == name_or_id]
    if len(named) == 1:
        return named[0]
    if named:
        ids = ", ".join(f"{item['id']} ({item['status']})" for item in named[:MAX_NAMESAKES_SHOWN])
        said = f"{len(named)} members are called {shown(name_or_id)}: {ids}; use the id"
        raise ShoalError("bad-request", said)
    raise ShoalError("unknown-member", f"no member is called {shown(name_or_id)}, nor is it an id")
