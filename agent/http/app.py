"""The HTTP server: every request enters here, every error leaves here as a problem document.

Built on aiohttp's low-level server: its Application would decode paths before splitting them, answer
errors as text and cost a sixth of a small request. Handlers decode, call the broker, encode; they decide
nothing.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterable
from typing import Protocol
from urllib.parse import urlsplit

from aiohttp import web

from shoal.agent.http.admin import events, keys, level, members, operate, principals, sessions, topics, trim
from shoal.agent.http.admission.guard import GUARD, IN_THE_OPEN, over_tls
from shoal.agent.http.admission.limits import HttpLimits
from shoal.agent.http.admission.origin import HostPolicy
from shoal.agent.http.admission.places import Place
from shoal.agent.http.core.context import ADMITTED, Call, Context
from shoal.agent.http.core.cors import is_preflight, note_origin, preflight, prepare
from shoal.agent.http.core.dispatch import Route, RouteTable
from shoal.agent.http.core.doorkeeper import Doorkeeper
from shoal.agent.http.core.forward import AUTHORIZATION, Forwarder
from shoal.agent.http.core.handed_over import HandedOver
from shoal.agent.http.core.parameters import NO_QUERY, parse_query
from shoal.agent.http.core.problems import problem_bytes, problem_response
from shoal.agent.http.core.request_quota import QuotaExceeded
from shoal.agent.http.docs.openapi import Description
from shoal.agent.http.fast_receive import FastReceives
from shoal.agent.http.fast_refusal import FastRefusals
from shoal.agent.http.fast_row import FastRows
from shoal.agent.http.fetch import merged, offsets, read
from shoal.agent.http.front import Connection
from shoal.agent.http.groups import acts, receive, redrive, wait
from shoal.agent.http.groups import operate as group_operate
from shoal.agent.http.produce import produce
from shoal.agent.http.produce.fast_append import FastAppends
from shoal.agent.http.shared import Shared
from shoal.agent.http.tables import read as table_read
from shoal.agent.http.tables import row as table_row
from shoal.agent.http.witness import REFUSALS, Witness
from shoal.agent.interface import Broker
from shoal.agent.log_lines.schema import about
from shoal.agent.metrics.measures import ABORTED, NO_OPERATION
from shoal.agent.security.access import Access, OpenAccess, PeerCertificate
from shoal.agent.security.agents_tls import AgentsTls, in_the_open
from shoal.agent.security.audit import AuditTrail, shortened
from shoal.agent.security.quota import CONNECTIONS
from shoal.errors import ShoalError, shown
from shoal.lookup import Lookup

logger = logging.getLogger("shoal.http")

# How long a stopping server lets handlers finish; appends answer within their timeout or are indefinite
# anyway.
SHUTDOWN_SECONDS = 5.0
GOODBYE_SECONDS = 0.5
GOODBYE_LOOKS = 20
# Connections that the kernel completes before they are accepted: as of the port (agent/process/ports.py),
# whose queue this sets anew. A connection without room there comes again after 1, 3 and 7 s.
BACKLOG = 1_024
PARTS = (
    produce, read, merged, receive, acts, wait, group_operate, redrive, table_read, table_row,
    topics, offsets, trim, members, level, principals, sessions, events, keys, operate,
)  # fmt: skip


class Door(Protocol):
    """Another way by which connections come: TLS."""

    async def stop(self) -> None:
        """No more of them."""
        ...


class Dispatcher:
    """Dispatches requests and turns every outcome into an answer."""

    def __init__(
        self, context: Context, allowed_hosts: Iterable[str] = (), cors_origins: Iterable[str] = ()
    ) -> None:
        self._context = context
        self._policy = HostPolicy(context.broker.url, allowed_hosts, cors_origins)
        described = Description(route for part in PARTS for route in part.ROUTES)
        self._table = RouteTable(described.routes, {**produce.HINTS, **table_row.HINTS})
        trail = context.doorkeeper.trail
        self._witness = None if trail is None else Witness(context.doorkeeper, trail)
        self.appends = FastAppends(context, self._policy, self._table, produce.ROUTES)
        self.receives = FastReceives(context, self._policy, self._table)
        self.rows = FastRows(context, self._policy, self._table)
        self.refusals = FastRefusals(context, self._table)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """One request, until its answer is written whole. Raises ConnectionError only, when nothing can be
        answered any more."""
        handler, keep_alive = request.protocol, False
        assert isinstance(handler, HandedOver), "every request comes through a front"
        front = handler.front
        front.under_way, request[GUARD] = True, front.guard
        handler.begin()
        status: int | str = ABORTED
        try:
            try:
                response = await self._dispatch(request, handler)
            except ShoalError as error:
                # A link's connection has no client's place to go on with.
                if isinstance(error, QuotaExceeded) and error.delay_s:
                    error = await self._in_line(request, error)
                is_link = self._context.places.of(front) is Place.LINK
                is_one_too_many = error.extra.get("quota") == CONNECTIONS
                response = refusal(request, error, close=is_link or is_one_too_many)
            except ConnectionError:
                raise
            except Exception:
                # Keys of records stand in queries, and what people take for a place of tokens.
                asked = f"{request.method} {shortened(request.raw_path.partition('?')[0])}"
                facts = about("request-failed", request=asked)
                logger.exception("a request failed: %s; this is a bug", asked, extra=facts)
                internal = ShoalError("internal", "the agent failed unexpectedly; its log says how")
                response = refusal(request, internal, close=True)
            await prepare(response, request)
            await response.write_eof()
            keep_alive, status = bool(response.keep_alive), response.status
            return response
        except ConnectionError:  # in the middle of an answer, so that nobody takes it for a whole one
            if request.transport is not None:
                request.transport.abort()
            raise
        finally:
            if handler.meter is not None:
                handler.meter.came(request.content.total_bytes)
                handler.meter.sent(request.writer.output_size)
            self._context.measures.answered(handler.operation, status)
            front.answer_ended(keep_alive=keep_alive)

    async def _in_line(self, request: web.BaseRequest, error: QuotaExceeded) -> ShoalError:
        """The refusal, when it may be answered; another one where the agent stops or nobody more can wait.
        Raises ConnectionResetError where the client goes."""
        context = self._context
        try:
            await context.waits.run(request, context.doorkeeper.nobody, asyncio.sleep(error.delay_s))
        except ShoalError as other:
            return other
        return error

    async def _dispatch(self, request: web.BaseRequest, handler: HandedOver) -> web.StreamResponse:
        path, _, raw_query = request.raw_path.partition("?")
        headers = request.headers
        host = headers.get("Host")
        if not path.startswith("/"):
            path, host = absolute_form(path, host)
        try:
            note_origin(request, self._policy.check(host, headers.get("Origin"), over_tls=request.secure))
        except ShoalError as error:
            if self._witness is not None and error.code in REFUSALS:
                self._witness.note_foreign(request, error.code)
            raise
        if is_preflight(request):
            return preflight(self._table, path)
        if path.endswith("/") and (shorter := self._table.shorter(request.method, path)) is not None:
            target = f"{shorter}?{raw_query}" if raw_query else shorter
            return web.Response(status=308, headers={"Location": target})
        route, arguments = self._table.resolve(request.method, path)
        handler.operation = route.operation.name
        certificate = handler.front.certificate
        answer = self._answer(request, handler, route, arguments, raw_query)
        if self._witness is None:
            return await answer
        return await self._witness.watch(request, route.operation, arguments, certificate, answer)

    async def _answer(
        self,
        request: web.BaseRequest,
        handler: HandedOver,
        route: Route,
        arguments: tuple[str, ...],
        raw_query: str,
    ) -> web.StreamResponse:
        front, doorkeeper, headers = handler.front, self._context.doorkeeper, request.headers
        try:
            asker = doorkeeper.admit(route.operation, arguments, headers, front.certificate, front)
        except ShoalError as error:
            address = request.remote or ""
            shows_login = AUTHORIZATION in headers
            raise doorkeeper.login_failed(
                error, front.certificate, address, shows_login=shows_login
            ) from None
        handler.meter, request[ADMITTED] = asker.meter, asker.identity
        query = parse_query(raw_query, route.operation.parameter_names) if raw_query else NO_QUERY
        return await route.handler(Call(self._context, request, arguments, query, raw_query, asker))


def refusal(request: web.BaseRequest, error: ShoalError, *, close: bool) -> web.StreamResponse:
    """The answer for an error; ConnectionResetError where another answer has begun."""
    if request.writer.output_size > 0:
        raise ConnectionResetError(error.detail) from None
    return problem_response(error, close=close)


def absolute_form(target: str, host: str | None) -> tuple[str, str | None]:
    """Path and host of a request line with a whole URL (RFC 9112 3.2.2); it counts instead of the Host
    header.
    """
    parts = urlsplit(target)
    if parts.scheme not in ("http", "https") or not parts.netloc or "@" in parts.netloc:
        raise ShoalError("bad-request", f"the request target {shown(target)} is not a path")
    if host is not None and host.lower() != parts.netloc.lower():
        raise ShoalError("bad-request", "the request line and the Host header name different hosts")
    return parts.path or "/", parts.netloc


class HttpRunner:
    """Listens, makes a front for each connection, and closes in the end what it opened. Made inside the event
    loop that runs it.
    """

    def __init__(self, dispatcher: Dispatcher, context: Context, hsts_ms: int) -> None:
        self.context = context
        self._guard = over_tls(hsts_ms)  # of all doors
        self._shared = Shared(
            dispatcher.appends,
            dispatcher.receives,
            dispatcher.rows,
            dispatcher.refusals,
            web.Server(dispatcher.handle),
        )
        self._listeners: list[asyncio.Server] = []
        self._doors: list[Door] = []

    @property
    def connections(self) -> int:
        """The number of open connections, idle ones included."""
        return len(self._shared.fronts)

    async def listen(self, listener: socket.socket) -> None:
        """Accept connections on a bound socket, which is closed in the end."""
        loop = asyncio.get_running_loop()
        self._listeners.append(
            await loop.create_server(
                lambda: Connection(self._shared, IN_THE_OPEN), sock=listener, backlog=BACKLOG
            )
        )

    def enter(self, door: Door) -> None:
        """Connections come by this door, too, which is closed in the end."""
        self._doors.append(door)

    def admit(self, certificate: PeerCertificate | None) -> Connection:
        """The front of a connection that has come by a door."""
        return Connection(self._shared, self._guard, certificate)

    def refusal(self, error: ShoalError, *, over_tls: bool) -> bytes:
        """The answer on a connection that gets no front. HSTS is for TLS alone (RFC 6797, 7.2)."""
        self.context.measures.answered(NO_OPERATION, error.status)
        return problem_bytes(error, self._guard if over_tls else IN_THE_OPEN, close=True)

    async def cleanup(self) -> None:
        """Stop listening, let handlers and appends finish, close all connections, to other agents too."""
        await self._stop_listening()
        self.context.waits.stop()
        appends = [ended for front in self._shared.fronts if (ended := front.stop_taking()) is not None]
        if appends:
            await asyncio.wait(appends, timeout=SHUTDOWN_SECONDS)
        self._shared.handlers.pre_shutdown()
        await self._shared.handlers.shutdown(SHUTDOWN_SECONDS)
        for front in list(self._shared.fronts):
            front.close()
        await _some_turns()
        if self._doors:
            await self._part()
        self.context.selector.close()
        await self.context.forwarder.close()
        self.context.decoders.shutdown(wait=False, cancel_futures=True)

    async def _stop_listening(self) -> None:
        """Accept nobody any more. The listeners leave the loop a turn before they are closed. Else asyncio
        accepts a connection in that turn and forgets it with its socket open."""
        loop = asyncio.get_running_loop()
        for server in self._listeners:
            for listener in server.sockets:
                loop.remove_reader(listener)
        await asyncio.sleep(0)
        for server in self._listeners:
            server.close()
        for door in self._doors:
            await door.stop()
        await _some_turns()

    async def _part(self) -> None:
        """Of TLS both sides say goodbye; a side that does not is not waited for."""
        for _ in range(GOODBYE_LOOKS):
            if not self._shared.fronts:
                return
            await asyncio.sleep(GOODBYE_SECONDS / GOODBYE_LOOKS)
        for front in list(self._shared.fronts):
            if front.transport is not None:
                front.transport.abort()
        await _some_turns()


async def _some_turns() -> None:
    """asyncio makes the front of an accepted connection three turns later, and a closed connection gives
    its socket back in the next."""
    for _ in range(3):
        await asyncio.sleep(0)


def make_runner(
    broker: Broker,
    limits: HttpLimits | None = None,
    allowed_hosts: Iterable[str] = (),
    *,
    cors_origins: Iterable[str] = (),
    lookup: Lookup | None = None,
    agents_are_proven: bool = False,
    access: Access | None = None,
    tls: AgentsTls = in_the_open,
    trail: AuditTrail | None = None,
    hsts_ms: int = 0,
) -> HttpRunner:
    """The HTTP side of an agent; call inside the event loop that will run it.

    `allowed_hosts`: names beside this machine's that a Host header may carry (a reverse proxy's, for
    example). `cors_origins`: whose pages may use it beside its own. `lookup`: of other agents' names.
    `agents_are_proven`: TLS tells which connections are other agents'. `access`: judges requests; without one
    nobody is asked. `tls`: of connections to other agents; where it gives a context, they are proven, too.
    `trail`: the audit, told where anybody is asked. `hsts_ms`: what browsers are told over TLS.
    """
    chosen = limits if limits is not None else HttpLimits()
    forwarder = Forwarder(broker.agent_id, chosen, lookup, tls)
    proven = agents_are_proven or tls() is not None
    doorkeeper = Doorkeeper(access or OpenAccess(), agents_are_proven=proven, trail=trail)
    context = Context(broker, chosen, forwarder, doorkeeper)
    return HttpRunner(Dispatcher(context, allowed_hosts, cors_origins), context, hsts_ms)
