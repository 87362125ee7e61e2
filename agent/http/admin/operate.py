"""For those who run agents: alive, ready, metrics."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Final

from aiohttp import web

from shoal.agent.http.api import cluster_operations as api
from shoal.agent.http.api.needs import CLUSTER_DESCRIBE
from shoal.agent.http.api.operations import LIST_TOPICS, PAGE
from shoal.agent.http.core.context import Call
from shoal.agent.http.core.dispatch import Route
from shoal.agent.http.core.parameters import boolean
from shoal.agent.http.core.problems import json_response
from shoal.agent.http.core.respond import send_shared
from shoal.agent.metrics.exposition import CONTENT_TYPE
from shoal.errors import JSON, ShoalError

_TOPIC_LABEL: Final = re.compile(rb'[{,]topic="([^"]*)"')
"""Names of topics have no character that a label escapes."""


async def index(call: Call) -> web.Response:
    """Where to find what."""
    if PAGE in call.headers.get("Accept", ""):
        return web.Response(status=303, headers={"Location": api.DOCS.path})
    agent = call.context.broker.agent_document()
    about = {"agent": agent["name"], "cluster": agent.get("cluster"), "version": agent["version"]}
    return json_response(
        {
            **(about if call.asker.may_describe_cluster() else {}),
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
    if verbose:
        call.asker.require(CLUSTER_DESCRIBE)
    if not ready and not call.asker.may_describe_cluster():
        raise ShoalError("not-ready", "this agent is not ready")
    if not ready:
        failed = ", ".join(f"{name}: {state}" for name, state in checks.items() if state != "ok")
        raise ShoalError("not-ready", failed or "this agent is not ready", checks=listed)
    return json_response({"status": "ready", "checks": listed} if verbose else {"status": "ready"})


async def metrics(call: Call) -> web.StreamResponse:
    """Prometheus text; with ?partitions the series of each replica here as well."""
    partitions = boolean(call.query, "partitions", False)
    async with call.context.scrapes.text(partitions=partitions) as pieces:
        if partitions and call.asker.is_asked:
            pieces = await lines_about(pieces, call.asker.may_describe)
        return await send_shared(call, pieces, CONTENT_TYPE)


async def lines_about(pieces: Sequence[bytes], may_describe: Callable[[str], bool]) -> Sequence[bytes]:
    """The text without the lines about topics that may not be described. Others get their turn between two
    pieces."""
    judged: dict[bytes, bool] = {}
    kept = []
    for piece in pieces:
        lines = []
        for line in piece.splitlines(keepends=True):
            about = _TOPIC_LABEL.search(line)
            if about is not None and about[1] not in judged:
                judged[about[1]] = may_describe(about[1].decode())
            if about is None or judged[about[1]]:
                lines.append(line)
        kept.append(b"".join(lines))
        await asyncio.sleep(0)
    return kept


ROUTES = (
    Route(api.LIVEZ, livez),
    Route(api.READYZ, readyz),
    Route(api.METRICS_TEXT, metrics),
    Route(api.INDEX, index),
    Route(api.INDEX_OF_API, index),
)
