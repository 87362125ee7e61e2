"""Receives without aiohttp's machinery, as appends have it: about one partition that is led here.

A request is taken here only when its head says nothing unusual and its body is small and came with it. Any
other goes the ordinary way (app.py), which gives the same answers. So does one where this agent does not know
the group, or does not lead: then nothing has happened. Heads are remembered, since a consumer sends the same
one all the time. This file knows no socket: front.py brings requests, and says when bytes have left.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from enum import Enum, auto
from itertools import chain
from typing import Final, NamedTuple, Protocol

from multidict import CIMultiDict, CIMultiDictProxy

from shoal.agent.http.admin.topics import json_object
from shoal.agent.http.admission.answer_rate import AnswerDeadline
from shoal.agent.http.admission.guard import Guard
from shoal.agent.http.admission.limits import HEAD_BYTES_MAX, KIB
from shoal.agent.http.admission.origin import HostPolicy
from shoal.agent.http.api.media import ARROW_TYPE, JSON_TYPE
from shoal.agent.http.api.needs import Needs
from shoal.agent.http.core.body import media_type
from shoal.agent.http.core.context import Call, Context, partition_number
from shoal.agent.http.core.dispatch import RouteTable
from shoal.agent.http.core.doorkeeper import Asker, wall_ms
from shoal.agent.http.core.forward import AUTHORIZATION
from shoal.agent.http.core.handed_over import address_of
from shoal.agent.http.core.leader import MOVING_CODES
from shoal.agent.http.core.parameters import NO_QUERY
from shoal.agent.http.core.problems import SERVER, date_text, problem_bytes
from shoal.agent.http.core.request_quota import Meter
from shoal.agent.http.core.respond import PIECE_BYTES, coalesced
from shoal.agent.http.fetch.render import choose_media
from shoal.agent.http.groups import receive
from shoal.agent.http.groups.answer import Made
from shoal.agent.http.groups.bodies import receive_body
from shoal.agent.http.groups.receive import ReceiveRequest, may_wait, while_the_client_waits
from shoal.agent.http.groups.target import Target
from shoal.agent.http.http1.head import RequestHead
from shoal.agent.http.produce.fast_head import append_head
from shoal.agent.http.witness import REFUSALS
from shoal.agent.log_lines.schema import about
from shoal.agent.metrics.measures import ABORTED
from shoal.agent.security.access import Identity, PeerCertificate
from shoal.agent.security.audit import happening
from shoal.errors import ShoalError

FAST_BODY_BYTES_MAX: Final = 64 * KIB
"""Some thousand receipts: read in one turn of the loop."""
REMEMBERED_HEADS_MAX: Final = 1_024
"""When full they are forgotten, not searched."""
WHOLE_ANSWER_BYTES: Final = 48 * KIB
"""An answer that is no longer goes in one write, with its length, and nobody waits for its reader. A longer
one is sent in pieces where it is there, and in chunks where it is made piece by piece."""

OK: Final = 200

logger = logging.getLogger("shoal.http")


class FastReceive(NamedTuple):
    """A receive, as its head says."""

    body_bytes: int
    operation: str
    topic: str
    group: str
    partition: int | None
    is_arrow: bool
    headers: CIMultiDictProxy[str]
    needs: Needs

    @property
    def authorization(self) -> str | None:
        """The header's value."""
        return self.headers.get(AUTHORIZATION)

    @property
    def resource(self) -> str:
        """The thing that it is about."""
        return f"{self.topic}/{self.group}"


class ReceiveFront(Protocol):
    """The connection of a request. `transport`: None once the client has gone."""

    @property
    def protocol(self) -> object: ...
    @property
    def transport(self) -> asyncio.Transport | None: ...
    @property
    def certificate(self) -> PeerCertificate | None: ...
    @property
    def meter(self) -> Meter | None: ...
    @property
    def guard(self) -> Guard: ...

    def passed(self, size: int) -> None:
        """So many bytes of the answer go."""

    async def drained(self) -> None:
        """Return when there is room for more to write. ConnectionResetError: the client has gone."""


class Ended(Enum):
    """The end of a request."""

    ANSWERED = auto()
    BROKEN = auto()
    """No further request may follow on its connection."""
    MOVED = auto()
    """Nothing has happened: it has to go the ordinary way."""


class PlainCall(Call):
    """A call without a request of aiohttp's."""

    __slots__ = ()

    def __init__(self, context: Context, headers: CIMultiDictProxy[str], asker: Asker) -> None:
        self.context = context
        self.asker = asker
        self.headers = headers
        self.arguments = ()
        self.query = NO_QUERY
        self.raw_query = ""


class FastReceives:
    """One per server."""

    def __init__(self, context: Context, policy: HostPolicy, table: RouteTable) -> None:
        self.context = context
        self._policy = policy
        self._table = table
        self.remembered: dict[bytes, FastReceive] = {}

    def request(self, data: bytes, framing: RequestHead) -> FastReceive | None:
        """The receive that a whole head asks for, if it is one for here. `framing`: what was read of it."""
        if not data.startswith(b"POST ") or not 0 < framing.body_bytes <= FAST_BODY_BYTES_MAX:
            return None
        if len(data) > HEAD_BYTES_MAX or b"/receive HTTP/1.1\r\n" not in data:
            return None
        try:
            request = self._understand(data, framing.body_bytes)
        except ShoalError:
            return None  # it will be refused, with this very error
        if request is not None:
            if len(self.remembered) >= REMEMBERED_HEADS_MAX:
                self.remembered.clear()
            self.remembered[data] = request
        return request

    def _understand(self, data: bytes, body_bytes: int) -> FastReceive | None:
        head = append_head(data, body_bytes)
        if head is None:
            return None
        headers = head.headers
        self._policy.check(headers["host"], None)
        route, arguments = self._table.resolve("POST", head.target)
        if route not in receive.ROUTES or media_type(headers.get("content-type")) != JSON_TYPE:
            return None
        is_arrow = choose_media(headers.get("accept"), receive.FORMS) == ARROW_TYPE
        partition = partition_number(arguments[1]) if len(arguments) == 3 else None
        return FastReceive(
            body_bytes, route.operation.name, arguments[0], arguments[-1], partition, is_arrow,
            CIMultiDictProxy(CIMultiDict(headers)), route.operation.needs,
        )  # fmt: skip

    async def serve(self, request: FastReceive, body: bytes, front: ReceiveFront) -> Ended:
        """Answer the request, or leave it as it was."""
        ended = Ended.BROKEN
        status: int | str = ABORTED
        answer = OwnAnswer(self.context, front)
        asked: ReceiveRequest | None = None
        try:
            try:
                asked = self._asked(request, body, front)
                if asked is None:
                    return Ended.MOVED
                with may_wait(asked.call, asked.body):
                    await while_the_client_waits(asked.call, front, asked.send_here(answer.send))
                ended, status = Ended.ANSWERED, OK
            except ShoalError as error:
                if error.definite and error.code in MOVING_CODES:
                    return Ended.MOVED
                if asked is not None and error.code in REFUSALS:
                    self._tell(request, asked.call.asker.identity, error.code, front)
                answer.refuse(error)
                ended, status = Ended.ANSWERED, error.status
            except ConnectionError:
                raise
            except Exception:
                text = f"{request.operation} of group {request.group}"
                facts = about("request-failed", topic=request.topic, request=text)
                logger.exception("a request failed: %s; this is a bug", text, extra=facts)
                internal = ShoalError("internal", "the agent failed unexpectedly; its log says how")
                answer.refuse(internal, close=True)
                status = internal.status
        except ConnectionError:  # in the middle of an answer, so that nobody takes it for a whole one
            if front.transport is not None:
                front.transport.abort()
        self.context.measures.answered(request.operation, status)
        return ended

    def _asked(self, request: FastReceive, body: bytes, front: ReceiveFront) -> ReceiveRequest | None:
        """None: not for here. ShoalError: refused."""
        context = self.context
        broker, gate = context.broker, context.gate
        try:
            topic = broker.topic(request.topic)
            group = broker.group(topic, request.group)
        except ShoalError:
            return None  # it may be made by receiving
        partition = request.partition
        if partition is None and len(topic.ranges) == 1:
            partition = 0
        if partition is None or partition >= len(topic.ranges) or not gate.take(len(body)):
            return None
        try:
            asked = receive_body(json_object(body) if body.strip() else None, is_arrow=request.is_arrow)
        finally:
            gate.leave(len(body))
        try:
            asker = context.doorkeeper.asker(request, front.certificate)
        except ShoalError:
            return None  # it is refused there
        asker.meter = front.meter
        call = PlainCall(context, request.headers, asker)
        return ReceiveRequest(call, Target(topic, group, partition), asked, is_arrow=request.is_arrow)

    def _tell(self, request: FastReceive, asker: Identity, code: str, front: ReceiveFront) -> None:
        """Into the audit, as witness.py does: its wait has ended because it may no longer receive."""
        trail = self.context.doorkeeper.trail
        if trail is not None:
            place = "" if request.partition is None else f" partition:{request.partition}"
            thing = f"topic:{request.topic}{place} group:{request.group}"
            event = happening(asker, address_of(front.transport), request.operation, thing, code)
            trail.refused(event, int(wall_ms()))


class OwnAnswer:
    """The answer to one request, in bytes."""

    def __init__(self, context: Context, front: ReceiveFront) -> None:
        self._context = context
        self._front = front
        self._begun = False

    async def send(self, made: Made) -> None:
        """A 200, held in memory until its reader has taken it. ConnectionResetError: the reader has gone, or
        does not take it."""
        if isinstance(made.body, list):
            length = sum(map(len, made.body))
            head = self._head(made, b"Content-Length: %d" % length)
            if length <= WHOLE_ANSWER_BYTES:
                self._write(b"".join((head, *made.body)))
            elif length <= PIECE_BYTES:  # a copy costs less than a call and a round of the loop for each part
                self._write(b"".join((head, *made.body)))
                transport = self._front.transport
                if transport is None or transport.get_write_buffer_size():  # else the system has all of it
                    async with AnswerDeadline(self._context.limits, length):
                        await self._front.drained()
            else:
                await self._send_on(coalesced([head, *made.body]), length)
            return
        first: list[bytes] = []
        length = 0
        for piece in made.body:
            first.append(piece)
            length += len(piece)
            if length > WHOLE_ANSWER_BYTES:
                break
        else:
            self._write(b"".join((self._head(made, b"Content-Length: %d" % length), *first)))
            return
        self._write(self._head(made, b"Transfer-Encoding: chunked"))
        pieces = chain((b"".join(first),), made.body, (b"",))  # the last chunk is empty
        chunks = (b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
        await self._send_on(chunks, made.held_bytes)

    def _head(self, made: Made, framing: bytes) -> bytes:
        own = "".join(f"{name}: {value}\r\n" for name, value in made.headers.items())
        always = f"Date: {date_text(int(time.time()))}\r\nServer: {SERVER}\r\n{self._front.guard.lines}"
        said = f"HTTP/1.1 200 OK\r\nContent-Type: {made.media_type}\r\n{own}{always}"
        return said.encode("ascii") + framing + b"\r\n\r\n"

    async def _send_on(self, pieces: Iterable[bytes | memoryview], held_bytes: int) -> None:
        async with AnswerDeadline(self._context.limits, held_bytes) as patience:
            for piece in pieces:
                if self._front.meter is not None:
                    with patience.excused():
                        await self._front.meter.rest_holding()
                self._write(piece)
                await self._front.drained()
                patience.took(len(piece))
                await asyncio.sleep(0)

    def refuse(self, error: ShoalError, *, close: bool = False) -> None:
        """An error. ConnectionResetError where another answer has begun."""
        if self._begun:
            raise ConnectionResetError(error.detail) from None
        self._write(problem_bytes(error, self._front.guard, close=close))

    def _write(self, data: bytes | memoryview) -> None:
        transport = self._front.transport
        if transport is None:
            raise ConnectionResetError("the client has gone")
        self._begun = True
        self._front.passed(len(data))
        transport.write(data)
