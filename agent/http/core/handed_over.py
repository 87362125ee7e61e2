"""A connection in aiohttp's hands: what it is given by the front that owns the transport, and whose it is.

Law of this file: aiohttp's public names alone. Bytes, the end and pauses come through the methods of
asyncio.Protocol. Our own handler (app.py) writes the answer and knows its end.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from shoal.agent.http.admission.guard import Guard
from shoal.agent.http.admission.limits import HttpLimits
from shoal.agent.http.core.doorkeeper import Doorkeeper, FastAsking
from shoal.agent.http.core.problems import not_a_request, parsers_words, problem_response
from shoal.agent.http.core.request_quota import Hold, Meter
from shoal.agent.metrics.measures import NO_OPERATION, HttpMeasures
from shoal.agent.security.access import PeerCertificate
from shoal.agent.security.audit import ShownLogin
from shoal.errors import ShoalError

logger = logging.getLogger("shoal.http")

# The front ends idle connections; aiohttp's own clock knows nothing of the requests that it never sees.
NEVER_S = 10 * 365 * 86_400.0
NO_ERA: Final = object()
"""Of a request that alone is let in, and not the next one like it."""


class Front(asyncio.BufferedProtocol):
    """The owner of a connection's transport, as a handler sees it. `under_way`: a request of this connection
    is with its handler. `measures`: where answers are counted. `certificate`: of the other end, as TLS has
    proven it; None without TLS or a certificate. `doorkeeper`: asked for quotas. `meter`: of a fast request
    under way whose principal has some. `counted`: for the principal whose quota of connections it takes.
    `guard`: what each answer tells a browser. `shown`: its last login. `let_in`: its last fast request, if
    that may be and the audit knows of it, and `era` the doorkeeper's at that time."""

    __slots__ = (
        "certificate", "counted", "doorkeeper", "era", "guard", "let_in", "measures", "meter", "shown",
        "under_way",
    )  # fmt: skip

    certificate: PeerCertificate | None
    counted: Hold | None
    doorkeeper: Doorkeeper
    era: object
    guard: Guard
    let_in: FastAsking | None
    measures: HttpMeasures
    meter: Meter | None
    shown: ShownLogin
    under_way: bool

    def came_from(self, transport: asyncio.Transport) -> None:
        """The connection is there."""
        self.shown = ShownLogin(address_of(transport))
        self.let_in, self.era = None, NO_ERA

    def judge(self, request: FastAsking) -> bool:
        """Whether a fast request may be. It is let in from now on if the audit need not hear of it."""
        self.let_in, doorkeeper = None, self.doorkeeper
        may = doorkeeper.is_allowed(request, self.certificate)
        if may and self.is_told(request):
            era = doorkeeper.era.now
            self.let_in, self.era = request, NO_ERA if era is None else era
        return may

    def is_let_in(self, request: FastAsking) -> bool:
        """Whether it may go on its fast way."""
        if request is self.let_in and self.era is self.doorkeeper.era.now:
            return True
        return self.judge(request) and request is self.let_in

    def is_told(self, request: FastAsking) -> bool:
        """Whether the audit knows that the credential of a fast request is used from here."""
        return self.doorkeeper.is_told(request, self.certificate, self.shown)

    def may_begin(self, request: FastAsking, here: int | None = None) -> bool:
        """Whether a fast request of whose body so much is here, or all of it, has its quota."""
        if here is not None and here != request.body_bytes:
            return False
        if not self.doorkeeper.metered:
            return True
        may, self.meter = self.doorkeeper.begin_fast(request, self.certificate, self)
        return may

    def passed(self, size: int) -> None:
        """So many bytes of a fast answer."""
        if self.meter is not None:
            self.meter.passed(size)

    def give_back(self) -> None:
        """A fast request goes the ordinary way after all, where its quota is asked again."""
        meter, self.meter = self.meter, None
        if meter is not None:
            meter.give_back()

    def uncount(self) -> None:
        """The connection has ended."""
        counted, self.counted = self.counted, None
        if counted is not None:
            counted.release()

    @abstractmethod
    def answer_ended(self, *, keep_alive: bool) -> None:
        """Its answer was written whole, or never will be."""


class HandedOver(web.RequestHandler):
    """aiohttp's side of one connection, with problem documents for what its parser refuses."""

    __slots__ = ("front", "meter", "operation")

    def __init__(self, manager: web.Server, front: Front, limits: HttpLimits) -> None:
        super().__init__(
            manager,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=NEVER_S,
            max_line_size=limits.request_line_bytes,
            max_field_size=limits.header_line_bytes,
            max_headers=limits.header_count,
            lingering_time=limits.linger_ms / 1000,
            auto_decompress=False,
            access_log=None,  # type: ignore[arg-type]
        )
        self.front = front
        self.operation = NO_OPERATION
        """Of the request that is under way, once its route is known."""
        self.meter: Meter | None = None
        """Of the same, where its principal has quotas."""

    def begin(self) -> None:
        """Another request is under way."""
        self.operation, self.meter = NO_OPERATION, None

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Called for requests that reach no handler: not HTTP, or on a connection that has ended."""
        if isinstance(exc, ConnectionError):
            raise exc
        reason = message or getattr(exc, "message", None) or type(exc).__name__
        logger.debug("rejected a connection from %s: %s", request.remote, parsers_words(reason))
        if isinstance(exc, LineTooLong):
            error = ShoalError(
                "too-large", "the request line or a header is too long, or there are too many headers"
            )
        else:
            error = not_a_request(reason)
        self.front.measures.answered(NO_OPERATION, error.status)
        response = problem_response(error, close=True)
        self.front.guard.stand_in(response)
        return response


def address_of(transport: asyncio.Transport | None) -> str:
    """The other end of a connection, as aiohttp names it; empty for a unix socket."""
    peer = None if transport is None else transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) else ""
