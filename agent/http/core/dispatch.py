"""From method and raw path to a handler: a tree of path segments, walked once a request.

aiohttp's own dispatcher decodes before it splits (an encoded slash would move a request to another route)
and costs several times as much. Knows no handler by name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from aiohttp import web

from shoal.agent.http.api.operation import REST, Operation, is_variable
from shoal.agent.http.core.parameters import decode_segment
from shoal.errors import ShoalError, shown

if TYPE_CHECKING:
    from shoal.agent.http.core.context import Call

Handler = Callable[["Call"], Awaitable[web.StreamResponse]]
# Resolved paths remembered: producers post to the same few all the time. When full it is emptied, not
# searched.
REMEMBERED_PATHS_MAX = 1_024
REMEMBERED_PATH_CHARACTERS_MAX = 512
# Other names of it.
MEANT = {
    "health": "/readyz (or /livez)", "healthz": "/readyz (or /livez)", "ready": "/readyz", "ping": "/livez",
    "status": "/v1/agent", "topics": "/v1/topics", "members": "/v1/members", "agent": "/v1/agent",
    "swagger": "/docs", "api": "/docs", "openapi": "/openapi.json", "v1/openapi.json": "/openapi.json",
}  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Route:
    """An operation and what carries it out."""

    operation: Operation
    handler: Handler


class Node:
    """One position in the tree of paths."""

    __slots__ = ("any_segment", "hints", "rest", "routes", "segments")

    def __init__(self) -> None:
        self.segments: dict[str, Node] = {}
        self.any_segment: Node | None = None
        self.rest: Node | None = None
        self.routes: dict[str, Route] = {}
        self.hints: dict[str, str] = {}

    def child(self, segment: str) -> Node:
        """The node below, made if missing."""
        if segment == REST:
            assert not self.segments, "the rest of a path is whatever it is"
            if self.rest is None:
                self.rest = Node()
            return self.rest
        if is_variable(segment):
            if self.any_segment is None:
                self.any_segment = Node()
            return self.any_segment
        return self.segments.setdefault(segment, Node())

    def allowed(self) -> str:
        """The value of an Allow header."""
        names = set(self.routes) | ({"HEAD"} if "GET" in self.routes else set())
        return ", ".join(sorted(names))


class RouteTable:
    """All routes, precomputed. `hints`: what to say to a method that a path does not have but that people
    try."""

    def __init__(self, routes: Iterable[Route], hints: Mapping[tuple[str, str], str]) -> None:
        self._root = Node()
        self._remembered: dict[tuple[str, str], tuple[Route, tuple[str, ...]]] = {}
        for route in routes:
            method, path = route.operation.method, route.operation.path
            node = self._node(path)
            assert method not in node.routes, f"{method} {path} stands twice in the table"
            node.routes[method] = route
        for (method, path), detail in hints.items():
            self._node(path).hints[method] = detail

    def _node(self, path: str) -> Node:
        node = self._root
        for segment in path.split("/")[1:]:
            node = node.child(segment)
        return node

    def resolve(self, method: str, path: str) -> tuple[Route, tuple[str, ...]]:
        """The route of a raw path (no query) and its decoded arguments; the rest of a path stays as it came.

        ShoalError unknown-route, method-not-allowed (with `allow`), or bad-request for a path that cannot
        be decoded.
        """
        known = self._remembered.get((method, path))
        if known is not None:
            return known
        node, arguments = self._walk(path)
        route = node.routes.get(method)
        if route is None and method == "HEAD":
            route = node.routes.get("GET")
        if route is None:
            raise method_not_allowed(method, node) if node.routes else unknown_route(path)
        if len(path) <= REMEMBERED_PATH_CHARACTERS_MAX and not route.operation.path.endswith(REST):
            if len(self._remembered) >= REMEMBERED_PATHS_MAX:
                self._remembered.clear()
            self._remembered[method, path] = (route, arguments)
        return route, arguments

    def shorter(self, method: str, path: str) -> str | None:
        """The path without the slashes at its end, where reading is possible only there. A request that
        changes something is sent nowhere else."""
        shorter = path.rstrip("/")
        if method not in ("GET", "HEAD") or not shorter or path.startswith("//"):
            return None
        return shorter if self._reads(shorter) and not self._reads(path) else None

    def _reads(self, path: str) -> bool:
        try:
            self.resolve("GET", path)
        except ShoalError:
            return False
        return True

    def _walk(self, path: str) -> tuple[Node, tuple[str, ...]]:
        node = self._root
        arguments: list[str] = []
        segments = path.split("/")[1:]
        for number, segment in enumerate(segments):
            if node.rest is not None:
                return node.rest, (*arguments, "/".join(segments[number:]))
            below = node.segments.get(segment)
            if below is None:
                below = node.any_segment
                if below is None or not segment:
                    raise unknown_route(path)
                arguments.append(decode_segment(segment))
            node = below
        return node, tuple(arguments)


def unknown_route(path: str) -> ShoalError:
    """404 for a path that nothing answers."""
    meant = MEANT.get(path.strip("/").lower())
    if meant is not None:
        advice = f"{meant} is what you want, perhaps"
    elif path.endswith("/") and path.strip("/"):
        advice = "the API lies under /v1, without a slash at the end; /docs shows all of it"
    else:
        advice = "the API lies under /v1, and /docs shows all of it"
    return ShoalError("unknown-route", f"nothing is served at {shown(path)}; {advice}")


def method_not_allowed(method: str, node: Node) -> ShoalError:
    """405 with what the path does take, and the likely intention."""
    allow = node.allowed()
    detail = f"{method} is not possible here, {allow} is"
    hint = node.hints.get(method)
    return ShoalError("method-not-allowed", f"{detail}: {hint}" if hint else detail, allow=allow)
