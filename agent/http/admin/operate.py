"""For those who run agents: alive, ready, metrics."""

from __future__ import annotations

from aiohttp import web

from shoal.agent.http.api import cluster_operations as api
from shoal.agent.http.api.operations import LIST_TOPICS, PAGE
from shoal.agent.http.core.context import Call
from shoal.agent.http.core.dispatch import Route
from shoal.agent.http.core.parameters import boolean
from shoal.agent.http.core.problems import json_response
from shoal.agent.http.core.respond import send_shared
from shoal.agent.metrics.exposition import CONTENT_TYPE
from shoal.errors import JSON, ShoalError


async def index(call: Call) -> web.Response:
    """Where to find what."""
    if PAGE in call.headers.get("Accept", ""):
        return web.Response(status=303, headers={"Location": api.DOCS.path})
    agent = call.context.broker.agent_document()
    return json_response(
        {
            "agent": agent["name"],
            "cluster": agent.get("cluster"),
            "version": agent["version"],
            "docs": api.DOCS.path,
            "openapi": api.OPENAPI.path,
            "topics": LIST_TOPICS.path,
            "members": api.MEMBERS.path,
        }
    )


async def livez(call: Call) -> web.Response:
    """The process answers; depends on nobody else."""
    return json_response({"status": "alive"})


async def readyz(call: Call) -> web.Response:
    """Whether this agent can serve; ?verbose lists the checks."""
    ready, checks = call.context.broker.readiness()
    verbose = boolean(call.query, "verbose", False)
    listed: dict[str, JSON] = dict(checks)
    if not ready:
        failed = ", ".join(f"{name}: {state}" for name, state in checks.items() if state != "ok")
        raise ShoalError("not-ready", failed or "this agent is not ready", checks=listed)
    return json_response({"status": "ready", "checks": listed} if verbose else {"status": "ready"})


async def metrics(call: Call) -> web.StreamResponse:
    """Prometheus text; with ?partitions the series of each replica here as well."""
    partitions = boolean(call.query, "partitions", False)
    async with call.context.scrapes.text(partitions=partitions) as pieces:
        return await send_shared(call, pieces, CONTENT_TYPE)


ROUTES = (
    Route(api.LIVEZ, livez),
    Route(api.READYZ, readyz),
    Route(api.METRICS_TEXT, metrics),
    Route(api.INDEX, index),
    Route(api.INDEX_OF_API, index),
)
