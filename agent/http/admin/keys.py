"""/v1/keys: the gossip keys of all members, by fingerprint, and their rotation."""

from __future__ import annotations

from aiohttp import web

from shoal.agent.http.admin.topics import optional_object
from shoal.agent.http.api import cluster_operations as api
from shoal.agent.http.core.context import THING, Call
from shoal.agent.http.core.dispatch import Handler, Route
from shoal.agent.http.core.problems import json_response
from shoal.errors import ShoalError
from shoal.membership.interface import KeyChange


async def listing(call: Call) -> web.Response:
    """Which key is held and used by how many members; never a key itself."""
    return json_response(await call.context.broker.keys.listing())


def _changing(change: KeyChange) -> Handler:
    async def handle(call: Call) -> web.StreamResponse:
        body = await optional_object(call) or {}
        key, force = body.get("key"), body.get("force", False)
        if not isinstance(key, str) or not isinstance(force, bool) or set(body) - {"key", "force"}:
            raise ShoalError(
                "bad-request", '{"key": "BASE64 OR FINGERPRINT"} is wanted, and perhaps "force": true'
            )
        keys = call.context.broker.keys
        call.request[THING] = f"key:{keys.fingerprint_of(key)}"
        return json_response(await keys.change(change, key, force=force))

    return handle


ROUTES = (
    Route(api.KEYS, listing),
    *(Route(api.CHANGE_KEYS[change], _changing(change)) for change in KeyChange),
)
