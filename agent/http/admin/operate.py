"""For those who run agents: alive, ready, metrics."""

from __future__ import annotations

from aiohttp import web

from shoal.agent.http.api import operations as api
from shoal.agent.http.core.context import Call, Context
from shoal.agent.http.core.dispatch import Route
from shoal.agent.http.core.parameters import boolean
from shoal.agent.http.core.problems import json_response
from shoal.errors import JSON, ShoalError

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class OperateHandlers:
    """/livez, /readyz, /metrics."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """The routes."""
        return [
            Route(api.LIVEZ, self.livez),
            Route(api.READYZ, self.readyz),
            Route(api.METRICS_TEXT, self.metrics),
            Route(api.INDEX, self.index),
            Route(api.INDEX_OF_API, self.index),
        ]

    async def index(self, call: Call) -> web.Response:
        """For whoever comes without knowing where to go."""
        if api.PAGE in call.headers.get("Accept", ""):
            return web.Response(status=303, headers={"Location": api.DOCS.path})
        agent = self._context.broker.agent_document()
        return json_response(
            {
                "agent": agent["name"],
                "cluster": agent.get("cluster"),
                "version": agent["version"],
                "docs": api.DOCS.path,
                "openapi": api.OPENAPI.path,
                "topics": api.LIST_TOPICS.path,
                "members": api.MEMBERS.path,
            }
        )

    async def livez(self, call: Call) -> web.Response:
        """The process answers; depends on nobody else."""
        return json_response({"status": "alive"})

    async def readyz(self, call: Call) -> web.Response:
        """Whether this agent can serve; ?verbose lists the checks."""
        ready, checks = self._context.broker.readiness()
        verbose = boolean(call.query, "verbose", False)
        listed: dict[str, JSON] = dict(checks)
        if not ready:
            failed = ", ".join(f"{name}: {state}" for name, state in checks.items() if state != "ok")
            raise ShoalError("not-ready", failed or "this agent is not ready", checks=listed)
        return json_response({"status": "ready", "checks": listed} if verbose else {"status": "ready"})

    async def metrics(self, call: Call) -> web.Response:
        """Prometheus text: the broker's, then this server's own."""
        body = self._context.broker.metrics()
        if body and not body.endswith(b"\n"):
            body += b"\n"
        return web.Response(body=body + self._own_metrics(), headers={"Content-Type": METRICS_TYPE})

    def _own_metrics(self) -> bytes:
        gate = self._context.gate
        lines = []
        for name, kind, text, value in (
            ("shoal_http_requests_in_flight", "gauge", "Appends and reads at work.", gate.requests),
            ("shoal_http_waits_in_flight", "gauge", "Long polls waiting for news.", gate.waits),
            ("shoal_http_in_flight_bytes", "gauge", "Bodies and answers held.", gate.bytes_in_flight),
            ("shoal_http_refused_total", "counter", "Requests refused as overload.", gate.refused_total),
        ):
            lines.append(f"# HELP {name} {text}\n# TYPE {name} {kind}\n{name} {value}\n")
        return "".join(lines).encode("ascii")
