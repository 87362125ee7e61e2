"""The front of one connection: it owns the transport, takes plain appends itself, and hands on all else.

Law of this file: bytes in, bytes out, in the order of the requests. Where each request ends is http1's
matter. A plain append takes the fast path (fast_append.py), and its body is received where it will stay. So
do a plain receive (fast_receive.py), and a GET or a PUT of a row (fast_row.py).
Any other request goes to aiohttp (core/handed_over.py), its own bytes and no more, and the next one is
looked at when its answer has left. A connection whose bytes http1 does not read is aiohttp's for good.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from typing import Final

from shoal.agent.http.admission.body_rate import too_slow
from shoal.agent.http.admission.guard import Guard
from shoal.agent.http.admission.limits import KIB
from shoal.agent.http.admission.places import Place, wanted_place
from shoal.agent.http.core.handed_over import Front, HandedOver
from shoal.agent.http.core.problems import problem_bytes
from shoal.agent.http.fast_receive import Ended, FastReceive
from shoal.agent.http.fast_refusal import Unpermitted
from shoal.agent.http.fast_row import FastRow
from shoal.agent.http.http1.connection import ConnectionState, HttpConnection, Received
from shoal.agent.http.http1.head import RequestHead
from shoal.agent.http.pending_append import PendingAppend
from shoal.agent.http.produce.fast_append import FastRequest
from shoal.agent.http.shared import Request, Shared
from shoal.agent.log_lines.schema import about
from shoal.agent.metrics.measures import NO_OPERATION
from shoal.agent.security.access import PeerCertificate
from shoal.errors import ShoalError

logger = logging.getLogger("shoal.http")

# Requests that came behind one that is not answered yet: enough to keep a pipelining client going.
HELD_BYTES_MAX: Final = 64 * KIB
# Of requests that came behind one another, in one turn and one write of some 30 KiB: others wait meanwhile.
REFUSED_AT_ONCE_MAX: Final = 32
NOTHING: Final = memoryview(b"")


class Connection(Front):
    """One per connection."""

    __slots__ = (
        "_append", "_appends", "_guess", "_handler", "_held_back", "_http", "_last", "_no_append",
        "_paused", "_receive", "_receiving", "_rest", "_resumed", "_shared", "_since_ms", "_unread",
        "_window_bytes", "transport",
    )  # fmt: skip

    def __init__(self, shared: Shared, guard: Guard, certificate: PeerCertificate | None = None) -> None:
        self._shared, self.guard = shared, guard
        self.certificate, self.doorkeeper = certificate, shared.doorkeeper
        self._appends, self.measures = shared.appends, shared.appends.context.measures
        self._http: HttpConnection[Request] = HttpConnection(self._request)
        self.transport: asyncio.Transport | None = None
        self._handler: HandedOver | None = None  # aiohttp's, once a request went there
        self.under_way, self.meter, self.counted = False, None, None
        self._paused = False  # the client does not read its answers
        self._held_back = False  # it was not read on, since it sends more than is held
        self._unread: bytearray | None = None  # of a connection whose place its head decides
        self._since_ms = 0.0  # when the present wait began: for a head, or for so much of a body
        self._window_bytes = 0  # of the body, at that time
        self._receiving: PendingAppend | None = None  # its body is incomplete
        self._rest: memoryview | None = None  # where that goes on
        self._append: PendingAppend | None = None  # is being answered
        self._no_append: asyncio.Future[None] | None = None
        self._receive: asyncio.Task[None] | None = None  # is being answered
        self._resumed: asyncio.Future[None] | None = None  # its answer goes on when the client reads on
        self._last: tuple[bytes, FastRequest] | None = None  # what the next request is probably like
        self._guess: memoryview | None = None  # where that is received, between two calls of the transport

    # Its place, its waits, and its end

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a place, or be refused at once, in a few bytes; or wait for the head to say whose it is."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.came_from(transport)
        if self._appends.context.waits.stopped:  # accepted when the server stopped listening
            self.close()
            return
        self._since_ms = self._shared.loop.time() * 1000
        self._shared.add(self)
        found = transport.get_extra_info("socket")
        if found is not None:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if found.family != socket.AF_UNIX:
                # asyncio does it only for sockets that were made with the protocol's number. Without it the
                # last piece of an answer waits until the client has confirmed the ones before.
                found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = transport.get_extra_info("peername")  # None: the client has gone already
        place = self._appends.context.places.enter(self, str(peer[0]) if peer else None)
        if place is None:
            self.refuse()
        elif place is Place.UNREAD:
            self._unread = bytearray()

    def refuse(self) -> None:
        """There is no place for it."""
        self._appends.context.places.leave(self)
        self._end_with(ShoalError("overloaded", "this agent has all the connections it takes"))

    def _end_with(self, error: ShoalError) -> None:
        if self.transport is not None:
            self.transport.write(problem_bytes(error, self.guard, close=True))
            self.measures.answered(NO_OPERATION, error.status)
        self.close()

    def _take_unread(self, data: memoryview) -> None:
        """The first bytes of a connection that came when all the clients' places were taken."""
        assert self._unread is not None
        self._unread += data
        wanted = wanted_place(self._unread)
        if wanted is None:
            return
        head, self._unread = self._unread, None
        if self._appends.context.places.settle(self, wanted):
            self._take(memoryview(head))
        else:
            self.refuse()

    def check_wait(self, now_ms: float) -> None:
        """Judge the wait for a place's head, for a body, or for a request whose head is not whole."""
        limits, waited_ms = self._shared.limits, now_ms - self._since_ms
        if self._unread is not None:
            if waited_ms >= limits.unread_ms:
                self.refuse()
        elif self._receiving is not None and self._rest is not None:
            if waited_ms >= limits.body_stall_ms:
                self._check_progress(self._receiving.request.body_bytes - len(self._rest))
        elif self.under_way or self._http.state in (ConnectionState.BODY, ConnectionState.ANSWERING):
            self._since_ms = self._shared.now_ms
        elif waited_ms >= limits.idle_ms:
            self.close()

    def _check_progress(self, here: int) -> None:
        limits, came = self._shared.limits, here - self._window_bytes
        least = limits.least_bytes(self._window_bytes)
        if came < least:
            self._end_with(too_slow(limits, came, least))
        self._since_ms, self._window_bytes = self._shared.now_ms, here

    def close(self) -> None:
        """Take nothing more, and end the connection when everything written has left."""
        self._http.close()
        self._give_up_body()
        if self.transport is not None:
            self.transport.close()

    def stop_taking(self) -> asyncio.Future[None] | None:
        """Take nothing more: the agent stops. The future ends with the request under way here, if there is
        one."""
        self._http.close()
        self._give_up_body()
        if self._append is None:
            return self._receive
        self._no_append = self._shared.loop.create_future()
        return self._no_append

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone. An append under way goes on: its records are as good as others."""
        self._http.close()
        self._give_up_body()
        self.transport = None
        self._shared.fronts.discard(self)
        self._appends.context.places.leave(self)
        self.uncount()
        self._appends.context.waits.gone(self)
        self._let_write_on()
        if self._handler is not None:
            self._appends.context.waits.gone(self._handler)
            self._handler.connection_lost(exc)

    # Reading

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go: into the body that is being received; where the next one's head and body
        belong if it is like the last; else into the scratch memory. A view in any case: asyncio's TLS fills
        slices of it, and those of a bytearray would be copies."""
        if self._rest is not None:
            return self._rest
        http = self._http
        if http.state is ConnectionState.ANSWERING:
            return self._shared.scratch[:HELD_BYTES_MAX]
        if self._last is None or http.state is not ConnectionState.IDLE or http.held:
            self._guess = None  # TLS may have had nothing for the last one
            return self._shared.scratch
        head, request = self._last
        self._guess = request.allocate()
        return self._guess[request.lead_bytes - len(head) :]

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes have come."""
        if self._rest is not None:
            self._receive_on(nbytes)
        elif self._guess is not None:
            self._take_guess(nbytes)
        elif self._unread is not None:
            self._take_unread(self._shared.scratch[:nbytes])
        else:
            self._take(self._shared.scratch[:nbytes])

    def _take_guess(self, size: int) -> None:
        """What was received where a repetition of the last request would stand: that, or anything else."""
        memory, self._guess = self._guess, None
        assert memory is not None
        assert self._last is not None
        head, request = self._last
        start = request.lead_bytes - len(head)
        same = size >= len(head) and memory[start : request.lead_bytes] == head
        takes = not self._paused and self._http.state is ConnectionState.IDLE
        if same and takes and self.is_let_in(request) and self._admit(request, size - len(head)):
            self._http.begin(request)
            self._http.body_came(size - len(head))
            self._go_on_with(PendingAppend(self, head, request, memory), size - len(head))
        else:
            self._last = None
            self._take(memory[start : start + size])

    def _request(self, head: bytes) -> Request | None:
        """The request of a whole head. RequestHead: it goes the ordinary way. None: it cannot be read."""
        request = self._shared.understood(head)
        if request is self.let_in and self.era is self.doorkeeper.era.now:
            return request  # nearly every request
        if request is None or isinstance(request, RequestHead) or self.judge(request):
            return request
        return Unpermitted(request, request.body_bytes)

    def _take(self, data: memoryview) -> None:
        """Bytes that follow everything taken before."""
        http = self._http
        if self._paused and http.state is ConnectionState.IDLE:  # its answers are not read: no more of them
            http.held += data
        else:
            received = http.receive(data)
            if received is not None and isinstance(received[1], Unpermitted):
                received = self._refuse(received)
            if received is not None:
                head, request, body = received
                if request is not self.let_in and isinstance(request, FastRequest | FastReceive | FastRow):
                    # The ordinary way tells the audit of a login first.
                    self._hand_over(head + bytes(body))
                elif isinstance(request, FastRequest) and self._receive_append(head, request, body):
                    pass
                elif isinstance(request, FastReceive | FastRow) and self.may_begin(request, len(body)):
                    if isinstance(request, FastReceive) or not self._take_row(head, request, bytes(body)):
                        assert self._receive is None
                        self._receive = self._shared.loop.create_task(self._serve(head, request, bytes(body)))
                elif self._handler is None:
                    self._hand_over(head + bytes(body))
                else:
                    self._handler.data_received(head + bytes(body))
                if http.state is ConnectionState.IDLE and http.held:  # behind one that was answered before
                    self._go_on()
        if http.held and self.transport is not None and (len(http.held) > HELD_BYTES_MAX or self._paused):
            # Every time: aiohttp resumes reading on its own where it had paused it.
            self._held_back = True
            self.transport.pause_reading()

    def _refuse(self, first: Received[Request]) -> Received[Request] | None:
        """Answer a request that may not be, and those behind it that may not be either, in one write. It
        gives the next one if that has come and is not refused here."""
        http, answers = self._http, list[bytes]()
        found: Received[Request] | None = first
        while found is not None and isinstance(found[1], Unpermitted):
            answer = self._shared.refusals.refuse(self, found[1], found[0], len(found[2]))
            if answer is None:
                break
            answers.append(answer)
            http.answered()
            are_enough = len(answers) == REFUSED_AT_ONCE_MAX
            if are_enough and http.held:
                self._go_on()
            found = http.receive(NOTHING) if http.held and not are_enough else None
        if answers and self.transport is not None:
            self._since_ms = self._shared.now_ms
            self.transport.write(answers[0] if len(answers) == 1 else b"".join(answers))
        return found

    def _hand_over(self, data: bytes) -> None:
        """To aiohttp: bytes of one request, or all that comes on a connection that is its own."""
        self.give_back()
        handler, transport = self._handler, self.transport
        if transport is None:
            return
        if handler is None:
            handler = self._handler = HandedOver(self._shared.handlers, self, self._shared.limits)
            handler.connection_made(transport)
            if self._paused:
                handler.pause_writing()
        handler.data_received(data)

    def _go_on(self) -> None:
        """Not at once: this may be the middle of a replica's turn, which must not be given another append."""
        self._shared.loop.call_soon(self._take_held)

    def _take_held(self) -> None:
        """What came while something else was in the way."""
        if self._http.state is not ConnectionState.IDLE or self._paused or self.transport is None:
            return
        if self._held_back:  # before more is handed over: aiohttp may pause reading, too
            self._held_back = False
            self.transport.resume_reading()
        self._take(NOTHING)

    def pause_writing(self) -> None:
        """The client reads too slowly."""
        self._paused = True
        if self._handler is not None:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        """The client reads again."""
        self._paused = False
        self._let_write_on()
        if self._handler is not None:
            self._handler.resume_writing()
        if self._http.held:
            self._go_on()

    def answer_ended(self, *, keep_alive: bool = True) -> None:
        """The answer was written whole, by aiohttp or here, or never will be."""
        self.under_way, self.meter = False, None
        self._since_ms = self._shared.now_ms
        self._http.answered(keep_alive=keep_alive)
        if self._http.held:
            self._go_on()

    # Bodies of appends

    def _receive_append(self, head: bytes, request: FastRequest, body: memoryview) -> bool:
        """Begin with a body; False when the agent has no room for it."""
        here, lead = len(body), request.lead_bytes
        if not self._admit(request, here):
            return False
        if here == request.body_bytes and not lead:  # all there is, and nobody writes to it
            self._last = None
            self._begin(PendingAppend(self, head, request, bytes(body)))
            return True
        memory = request.allocate()
        memory[lead : lead + here] = body
        # A large one that may be repeated: the next one is received in place.
        is_like_the_next = len(head) <= lead and request.options.producer is None
        self._last = (head, request) if is_like_the_next else None
        self._go_on_with(PendingAppend(self, head, request, memory), here)
        return True

    def _admit(self, request: FastRequest, here: int) -> bool:
        """Whether there is room for a body of which so many bytes are here. One that is complete has a place
        and its bytes now; of any other only what has come counts."""
        gate, whole = self._appends.context.gate, request.body_bytes
        if here == whole:
            return gate.take(whole)
        if not gate.promise(whole):
            return False
        if gate.arrive(here):
            return True
        gate.give_up(whole, 0)
        return False

    def _go_on_with(self, append: PendingAppend, here: int) -> None:
        """A request of whose body so many bytes are here."""
        request = append.request
        if here < request.body_bytes:
            self._receiving = append
            assert isinstance(append.memory, memoryview)
            self._rest = append.memory[request.lead_bytes + here :]
            self._since_ms, self._window_bytes = self._shared.now_ms, here
        else:
            self._begin(append)

    def _receive_on(self, size: int) -> None:
        append, rest = self._receiving, self._rest
        assert append is not None
        assert rest is not None
        self._http.body_came(size)
        gate, whole = self._appends.context.gate, append.request.body_bytes
        left = len(rest) - size
        if left and gate.arrive(size):
            self._rest = rest[size:]
            return
        self._give_up_body()
        is_whole = not left and self.doorkeeper.is_allowed(append.request, self.certificate)
        if is_whole and gate.take(whole):
            self._begin(append)
        else:
            # There is no room for it, or its sender may no longer. So aiohttp gets what has come, and says so
            # in a way that the client gets to read.
            self._hand_over(append.as_it_came(whole - left))

    def _give_up_body(self) -> None:
        """What has come of it counts no more as a part."""
        append, rest, self._receiving, self._rest = self._receiving, self._rest, None, None
        if append is not None and rest is not None:
            whole = append.request.body_bytes
            self._appends.context.gate.give_up(whole, whole - len(rest))

    # Receives and rows

    @property
    def protocol(self) -> object:
        """As those know it who end what waits for a connection."""
        return self

    def _take_row(self, head: bytes, request: FastRow, body: bytes) -> bool:
        """Tell a row, or begin to store one, in this very call; False: it takes a task."""
        if request.is_append and self._appends.context.gate.take(len(body)):
            self._begin(PendingAppend(self, head, request, body))
            return True
        answer = self._shared.rows.at_once(request, self.guard)
        if answer is None or self.transport is None:
            return False
        self.passed(len(answer))
        self.transport.write(answer)
        self.answer_ended()
        return True

    async def _serve(self, head: bytes, request: FastReceive | FastRow, body: bytes) -> None:
        if isinstance(request, FastRow):
            ended = await self._shared.rows.serve(request, body, self)
        else:
            ended = await self._shared.receives.serve(request, body, self)
        self._receive = None
        if ended is Ended.MOVED:
            self._hand_over(head + body)
        elif ended is Ended.ANSWERED:
            self.answer_ended()
        else:
            self.close()

    async def drained(self) -> None:
        """See ReceiveFront."""
        if self._paused and self.transport is not None:
            self._resumed = self._shared.loop.create_future()
            await self._resumed
        if self.transport is None:
            raise ConnectionResetError("the client has gone")

    def _let_write_on(self) -> None:
        resumed, self._resumed = self._resumed, None
        if resumed is not None and not resumed.done():
            resumed.set_result(None)

    # Appends

    def _begin(self, append: PendingAppend) -> None:
        assert self._append is None
        self._append = append
        append.began_ns, request = time.monotonic_ns(), append.request
        try:
            if isinstance(request, FastRow):
                begun = self._shared.rows.begin(request, append.memory, append)
            else:
                begun = self.may_begin(request) and self._appends.begin(request, append.memory, append)
        except ShoalError as error:
            append.set_exception(error)
        except Exception:
            facts = about("request-failed", topic=request.topic, request=request.operation)
            logger.exception("topic %s: an append failed; this is a bug", request.topic, extra=facts)
            append.set_exception(ShoalError("internal", "the agent failed unexpectedly; its log says how"))
        else:
            if not begun:
                self.append_was_moved(append)

    def append_ended(self, answer: bytes) -> None:
        """Send the answer, and go on with what has come since."""
        self._leave_append()
        if self.transport is not None:
            self.transport.write(answer)
        self.answer_ended()

    def append_was_moved(self, append: PendingAppend) -> None:
        """Nothing has happened: it has to go the ordinary way."""
        assert self._append is append
        self._leave_append()
        self._hand_over(append.as_it_came(append.request.body_bytes))

    def _leave_append(self) -> None:
        append, self._append = self._append, None
        assert append is not None
        self._appends.context.gate.leave(append.request.body_bytes)
        if self._no_append is not None and not self._no_append.done():
            self._no_append.set_result(None)
