"""The cluster's level: shown, and raised at the catalog's leader, which this agent asks."""

from __future__ import annotations

from aiohttp import web

from shoal.agent.http.admin.topics import exchange, optional_object
from shoal.agent.http.api import cluster_operations as api
from shoal.agent.http.core.context import Call, Deadline
from shoal.agent.http.core.dispatch import Route
from shoal.agent.http.core.leader import at_leader, catalog_of
from shoal.agent.http.core.problems import json_response
from shoal.agent.interface import Json, Leader
from shoal.agent.log_lines.names import agent_name
from shoal.errors import ShoalError


async def show(call: Call) -> web.Response:
    """The level, and which members understand what, as this agent knows it."""
    return json_response(call.context.broker.level_document())


async def raise_level(call: Call) -> web.Response:
    """200 with the same document once the level is durable."""
    body = await optional_object(call) or {}
    if set(body) - {"level", "without"}:
        raise ShoalError("bad-request", 'nothing, or {"level": N, "without": [NAME]}, is wanted')
    deadline = Deadline(call.timeout_ms())

    async def here() -> Json:
        level, without = body.get("level"), body.get("without", [])
        return await call.context.broker.raise_level(level, without, deadline.remaining_ms())

    async def there(leader: Leader) -> Json:
        remaining_ms = deadline.remaining_ms()
        try:
            answer = await exchange(call, leader.url, "POST", api.RAISE_LEVEL.path, body, remaining_ms)
        except ShoalError as error:
            if error.code != "unknown-route":
                raise
            raise ShoalError(
                "level-refused",
                f"{agent_name(leader.agent_id)} leads the catalog, and its version of Shoal has no levels:"
                " upgrade it",
            ) from None
        return answer.document()

    return json_response(await at_leader(call, catalog_of(call), here, there, deadline))


ROUTES = (Route(api.LEVEL, show), Route(api.RAISE_LEVEL, raise_level))
