"""Principals, roles and tokens: shown by any agent, changed at the catalog's leader, which it asks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from urllib.parse import quote

from aiohttp import web

from shoal.agent.http.admin.topics import exchange, optional_object
from shoal.agent.http.api import security_operations as api
from shoal.agent.http.api.media import JSON_TYPE
from shoal.agent.http.api.operations import VERSION_CHARACTERS_MAX
from shoal.agent.http.core.context import Call, Deadline
from shoal.agent.http.core.dispatch import Handler, Route
from shoal.agent.http.core.handed_over import HandedOver
from shoal.agent.http.core.leader import at_leader, catalog_of
from shoal.agent.http.core.parameters import invalid
from shoal.agent.http.core.problems import json_bytes, json_response
from shoal.agent.interface import Json, Leader
from shoal.agent.security.access import ASKED_CHARACTERS_MAX, AskedBy

SLICE_ENTRIES = 200
"""Of a list, made in one turn of the loop: some milliseconds."""
ADDRESS_CHARACTERS_MAX = 64
"""Of a client's address, as an agent that passes a request on tells it."""


FORWARDED_FOR = "Shoal-Forwarded-For"
"""The address of the client that an agent asks for: believed from agents' certificates alone."""


def asked_by(call: Call) -> AskedBy:
    """The sender; the service adds time and id."""
    identity, address = call.asker.identity, call.request.remote or ""
    handler = call.request.protocol
    certificate = handler.front.certificate if isinstance(handler, HandedOver) else None
    if certificate is not None and certificate.is_agent:
        address = call.headers.get(FORWARDED_FOR, address)
    principal, proof = identity.principal[:ASKED_CHARACTERS_MAX], identity.proof.value
    return AskedBy(principal, proof, address[:ADDRESS_CHARACTERS_MAX], 0, "")


def of_client(call: Call) -> dict[str, str]:
    """Headers that tell the leader who asks."""
    return {FORWARDED_FOR: call.request.remote or ""}


async def list_principals(call: Call) -> web.Response:
    """All of them: an administrator's list."""
    broker = call.context.broker
    first = broker.principals("", SLICE_ENTRIES)
    return await _in_slices("principals", first, lambda after: broker.principals(after, SLICE_ENTRIES))


async def read_principal(call: Call) -> web.Response:
    """With its tokens, as far as they may be shown."""
    return json_response(call.context.broker.principal(call.arguments[0]))


async def list_roles(call: Call) -> web.Response:
    """Those that are built in, too."""
    broker = call.context.broker
    first = broker.roles(None, SLICE_ENTRIES)
    return await _in_slices("roles", first, lambda after: broker.roles(after, SLICE_ENTRIES))


async def _in_slices(name: str, entries: list[Json], behind: Callable[[str], list[Json]]) -> web.Response:
    """The whole list, by name. Others get their turn of the loop between two slices."""
    pieces: list[bytes] = []
    while entries:
        pieces.append(json_bytes(entries)[1:-1])
        await asyncio.sleep(0)
        entries = behind(entries[-1]["name"])
    body = b"".join((b'{"', name.encode(), b'":[', b",".join(pieces), b"]}\n"))
    return web.Response(body=body, content_type=JSON_TYPE)


async def read_role(call: Call) -> web.Response:
    """Also one that is built in."""
    return json_response(call.context.broker.role(call.arguments[0]))


Put = Callable[[str, Json | None, AskedBy, int, str | None], Awaitable[tuple[bool, Json]]]
Delete = Callable[[str, AskedBy, int], Awaitable[None]]


def _putting(kind: str, put_of: Callable[[Call], Put]) -> Handler:
    async def handle(call: Call) -> web.Response:
        """201 when made, 200 when it was there."""
        name, body, deadline = call.arguments[0], await optional_object(call), Deadline(call.timeout_ms())
        version = call.query.get("if_version")
        if version is not None and not 1 <= len(version) <= VERSION_CHARACTERS_MAX:
            raise invalid("if_version", version, "the `version` that was read is wanted")

        async def here() -> tuple[bool, Json]:
            return await put_of(call)(name, body, asked_by(call), deadline.remaining_ms(), version)

        async def there(leader: Leader) -> tuple[bool, Json]:
            query = None if version is None else {"if_version": version}
            path = f"/v1/{kind}/{quote(name, safe='')}"
            reply = await exchange(
                call, leader.url, "PUT", path, body, deadline.remaining_ms(), query, of_client(call)
            )
            return reply.status == 201, reply.document()

        made, document = await at_leader(call, catalog_of(call), here, there, deadline)
        return json_response(document, status=201 if made else 200)

    return handle


def _deleting(kind: str, delete_of: Callable[[Call], Delete]) -> Handler:
    async def handle(call: Call) -> web.Response:
        """204 once it is durable."""
        name, deadline = call.arguments[0], Deadline(call.timeout_ms())

        async def here() -> None:
            await delete_of(call)(name, asked_by(call), deadline.remaining_ms())

        async def there(leader: Leader) -> None:
            path = f"/v1/{kind}/{quote(name, safe='')}"
            left_ms = deadline.remaining_ms()
            await exchange(call, leader.url, "DELETE", path, None, left_ms, None, of_client(call))

        await at_leader(call, catalog_of(call), here, there, deadline)
        return web.Response(status=204)

    return handle


async def make_token(call: Call) -> web.Response:
    """201 with the token, which no cache may keep."""
    name, body, deadline = call.arguments[0], await optional_object(call), Deadline(call.timeout_ms())

    async def here() -> Json:
        return await call.context.broker.make_token(name, body, asked_by(call), deadline.remaining_ms())

    async def there(leader: Leader) -> Json:
        path = f"/v1/principals/{quote(name, safe='')}/tokens"
        left_ms = deadline.remaining_ms()
        reply = await exchange(call, leader.url, "POST", path, body, left_ms, None, of_client(call))
        return reply.document()

    response = json_response(await at_leader(call, catalog_of(call), here, there, deadline), status=201)
    response.headers["Cache-Control"] = "no-store"
    return response


ROUTES = (
    Route(api.LIST_PRINCIPALS, list_principals),
    Route(api.READ_PRINCIPAL, read_principal),
    Route(api.PUT_PRINCIPAL, _putting("principals", lambda call: call.context.broker.put_principal)),
    Route(api.DELETE_PRINCIPAL, _deleting("principals", lambda call: call.context.broker.delete_principal)),
    Route(api.LIST_ROLES, list_roles),
    Route(api.READ_ROLE, read_role),
    Route(api.PUT_ROLE, _putting("roles", lambda call: call.context.broker.put_role)),
    Route(api.DELETE_ROLE, _deleting("roles", lambda call: call.context.broker.delete_role)),
    Route(api.MAKE_TOKEN, make_token),
    Route(api.REVOKE_TOKEN, _deleting("tokens", lambda call: call.context.broker.revoke_token)),
)
