"""The HTTP server: every request enters here, every error leaves here as a problem document.

Built on aiohttp's low-level server: its Application would decode paths before splitting them, answer
errors as text and cost a sixth of a small request. Handlers decode, call the broker, encode; they decide
nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from urllib.parse import urlsplit

from aiohttp import web

from shoal.agent.http.admin.events import EventHandlers
from shoal.agent.http.admin.keys import KeyHandlers
from shoal.agent.http.admin.members import MemberHandlers
from shoal.agent.http.admin.operate import OperateHandlers
from shoal.agent.http.admin.topics import TopicHandlers
from shoal.agent.http.admin.trim import TrimHandlers
from shoal.agent.http.admission.limits import HttpLimits
from shoal.agent.http.admission.origin import HostPolicy
from shoal.agent.http.admission.places import Place
from shoal.agent.http.connection import SCRATCH_BYTES, Connection
from shoal.agent.http.core.context import Call, Context
from shoal.agent.http.core.dispatch import RouteTable
from shoal.agent.http.core.forward import Forwarder
from shoal.agent.http.core.parameters import NO_QUERY, parse_query
from shoal.agent.http.core.problems import SERVER, problem_response
from shoal.agent.http.core.respond import cut_off
from shoal.agent.http.docs.openapi import DescriptionHandlers
from shoal.agent.http.fetch.merged import MergedHandlers
from shoal.agent.http.fetch.offsets import OffsetsHandlers
from shoal.agent.http.fetch.read import ReadHandlers
from shoal.agent.http.produce.fast_append import QuickAppends
from shoal.agent.http.produce.produce import ProduceHandlers
from shoal.agent.interface import Broker
from shoal.errors import ShoalError, shown

logger = logging.getLogger("shoal.http")

# How long a stopping server lets handlers finish; appends answer within their timeout or are indefinite
# anyway.
SHUTDOWN_SECONDS = 5.0


class Entrance:
    """Dispatches requests and turns every outcome into an answer."""

    def __init__(self, context: Context, allowed_hosts: Iterable[str]) -> None:
        self._context = context
        self._policy = HostPolicy(context.broker.url, allowed_hosts)
        produce = ProduceHandlers(context)
        appends = tuple(produce.routes())
        description = DescriptionHandlers()
        routes = (
            *appends,
            *ReadHandlers(context).routes(),
            *MergedHandlers(context).routes(),
            *TopicHandlers(context).routes(),
            *OffsetsHandlers(context).routes(),
            *TrimHandlers(context).routes(),
            *MemberHandlers(context).routes(),
            *EventHandlers(context).routes(),
            *KeyHandlers(context).routes(),
            *OperateHandlers(context).routes(),
            *description.routes(),
        )
        description.describe(routes)
        self._table = RouteTable(routes, produce.hints())
        self.quick = QuickAppends(context, self._policy, self._table, appends)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """One request. Raises ConnectionError only, when nothing can be answered any more."""
        response = await self._answer(request)
        if not response.prepared:
            response.headers["Server"] = SERVER
        return response

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._dispatch(request)
        except ShoalError as error:
            if request.writer.output_size > 0:
                cut_off(request)
                raise ConnectionResetError(error.detail) from None
            return problem_response(error, close=self._is_link(request))
        except ConnectionError:
            raise
        except Exception:
            logger.exception("a request failed: %s %s; this is a bug", request.method, request.raw_path)
            if request.writer.output_size > 0:
                cut_off(request)
                raise ConnectionResetError("the answer was cut off") from None
            return problem_response(
                ShoalError("internal", "the agent failed unexpectedly; its log says how"), close=True
            )

    def _is_link(self, request: web.BaseRequest) -> bool:
        """Whether its connection has no client's place to go on with."""
        connection = request.protocol
        return isinstance(connection, Connection) and self._context.places.of(connection) is Place.LINK

    async def _dispatch(self, request: web.BaseRequest) -> web.StreamResponse:
        path, _, raw_query = request.raw_path.partition("?")
        headers = request.headers
        host = headers.get("Host")
        if not path.startswith("/"):
            path, host = absolute_form(path, host)
        self._policy.check(host, headers.get("Origin"))
        shorter = path.rstrip("/")
        if shorter != path and path != "/" and self._table.serves(request.method, shorter):
            return _moved(shorter, raw_query)
        route, arguments = self._table.resolve(request.method, path)
        query = parse_query(raw_query, route.parameters) if raw_query else NO_QUERY
        return await route.handler(Call(self._context, request, arguments, query, raw_query))


def _moved(path: str, raw_query: str) -> web.Response:
    """308: the same without slashes at its end."""
    target = f"{path}?{raw_query}" if raw_query else path
    return web.Response(status=308, headers={"Location": target})


def absolute_form(target: str, host: str | None) -> tuple[str, str | None]:
    """Path and host of a request line with a whole URL (RFC 9112 3.2.2); it counts instead of the Host
    header.
    """
    parts = urlsplit(target)
    if parts.scheme != "http" or not parts.netloc or "@" in parts.netloc:
        raise ShoalError("bad-request", f"the request target {shown(target)} is not a path")
    if host is not None and host.lower() != parts.netloc.lower():
        raise ShoalError("bad-request", "the request line and the Host header name different hosts")
    return parts.path or "/", parts.netloc


class HttpServer(web.Server):
    """Makes a Connection for each connection."""

    def __init__(self, entrance: Entrance, limits: HttpLimits) -> None:
        super().__init__(entrance.handle)
        self._limits = limits
        self._quick = entrance.quick
        self._scratch = bytearray(SCRATCH_BYTES)

    def __call__(self) -> web.RequestHandler:
        """A new connection's protocol."""
        limits = self._limits
        return Connection(
            self,
            quick=self._quick,
            scratch=self._scratch,
            loop=self._loop,
            keepalive_timeout=limits.idle_ms / 1000,
            max_line_size=limits.request_line_bytes,
            max_field_size=limits.header_line_bytes,
            max_headers=limits.header_count,
            lingering_time=limits.linger_ms / 1000,
            auto_decompress=False,
            access_log=None,
        )


async def stop_listening(runner: web.BaseRunner) -> None:
    """Accept nobody any more; to be called before the runner's sites are stopped. Whom asyncio has accepted
    and hands over to a server that was closed in the same turn is forgotten, with the socket open: he would
    wait for an answer as long as this process lives."""
    loop = asyncio.get_running_loop()
    for site in runner.sites:
        for listener in getattr(site._server, "sockets", ()):  # noqa: SLF001 -- aiohttp has no other way
            loop.remove_reader(listener)
    await asyncio.sleep(0)


class HttpRunner(web.ServerRunner):
    """Runs the server on sites (web.TCPSite, web.SockSite) and closes what it opened."""

    __slots__ = ("context",)

    def __init__(self, server: HttpServer, context: Context) -> None:
        super().__init__(server, handle_signals=False, shutdown_timeout=SHUTDOWN_SECONDS)
        self.context = context

    async def shutdown(self) -> None:
        """Called when nothing new is accepted any more, before handlers are waited for."""
        self.context.waits.stop()

    async def cleanup(self) -> None:
        """Stop listening, let handlers finish, close connections to other agents."""
        await stop_listening(self)
        await super().cleanup()
        self.context.selector.close()
        await self.context.forwarder.close()
        self.context.decoders.shutdown(wait=False, cancel_futures=True)


def make_runner(
    broker: Broker, limits: HttpLimits | None = None, allowed_hosts: Iterable[str] = ()
) -> HttpRunner:
    """The HTTP side of an agent; call inside the event loop that will run it.

    `allowed_hosts`: names beside this machine's that a Host header may carry (a reverse proxy's, for
    example).
    """
    chosen = limits if limits is not None else HttpLimits()
    context = Context(broker, chosen, Forwarder(broker.agent_id, chosen))
    return HttpRunner(HttpServer(Entrance(context, allowed_hosts), chosen), context)
