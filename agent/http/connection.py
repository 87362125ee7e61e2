"""One connection: aiohttp's, with a short way for appends in front of it.

Law of this file: bytes in, bytes out, in the order of the requests. A request is taken the short way
(fast_append.py) only between two others: aiohttp has answered everything it was given and holds nothing
unread. The body of such a request is received where it will stay. What comes while it is being answered
waits, bounded, and everything else goes to aiohttp as if nobody had looked at it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final, NamedTuple

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from shoal.agent.http.admission.body_rate import too_slow
from shoal.agent.http.admission.limits import HEAD_BYTES_MAX, HEAD_END
from shoal.agent.http.admission.places import Place, wanted_place
from shoal.agent.http.core.leader import MOVING_CODES
from shoal.agent.http.core.problems import not_a_request, problem_body, problem_bytes, problem_response
from shoal.agent.http.produce.fast_answer import append_answer
from shoal.agent.http.produce.fast_append import QuickAppends, QuickRequest
from shoal.agent.http.produce.fast_head import request_bytes
from shoal.agent.interface import Appended
from shoal.errors import ShoalError

logger = logging.getLogger("shoal.http")

# What is read at once; one for all connections, since everything in it is taken out before the next read.
SCRATCH_BYTES: Final = 256 * 1024
# Requests that came behind one that is not answered yet: enough to keep a pipelining client going.
HELD_BYTES_MAX: Final = 64 * 1024
_UNKNOWN: Final = -1
_HEAD_END_BYTES: Final = len(HEAD_END)


class _Repeated(NamedTuple):
    """What a client does again and again."""

    head: bytes
    request: QuickRequest


class _Append:
    """An append on its way: the connection's request, and the answer that the broker is given."""

    __slots__ = ("_connection", "_over", "head", "memory", "request")

    def __init__(
        self, connection: Connection, head: bytes, request: QuickRequest, memory: bytes | memoryview
    ) -> None:
        self._connection = connection
        self._over = False
        self.head = head
        self.request = request
        self.memory = memory

    def done(self) -> bool:
        return self._over

    def set_result(self, result: Appended) -> None:
        self._over = True
        self._connection.append_ended(append_answer(self.request.partition or 0, result))

    def set_exception(self, exception: BaseException) -> None:
        self._over = True
        if isinstance(exception, ShoalError) and exception.definite and exception.code in MOVING_CODES:
            self._connection.append_was_moved(self)
            return
        assert isinstance(exception, ShoalError), exception
        self._connection.append_ended(problem_bytes(exception))

    def like_the_next(self) -> _Repeated | None:
        """This request, if it is a large one whose like may follow: its bytes are then received in place."""
        request = self.request
        if request.options.producer is not None or len(self.head) > request.lead_bytes:
            return None
        return _Repeated(self.head, request)

    def as_it_came(self, here: int) -> bytes:
        """The request, with so many bytes of its body."""
        lead = self.request.lead_bytes
        return self.head + bytes(self.memory[lead : lead + here])


class Connection(web.RequestHandler, asyncio.BufferedProtocol):
    """aiohttp's connection, with problem documents for what its parser refuses, a bound on connections, and
    the short way.
    """

    __slots__ = (
        "_append", "_filled", "_foreign_bytes", "_guess", "_held", "_held_back", "_idle", "_last", "_places",
        "_quick", "_receiving", "_rest", "_scratch", "_stall_handle", "_unread", "_unread_handle",
        "_window_began", "_window_bytes",
    )  # fmt: skip

    def __init__(
        self,
        manager: web.Server,
        *,
        quick: QuickAppends,
        scratch: bytearray,
        **arguments: Any,
    ) -> None:
        super().__init__(manager, **arguments)
        self._quick = quick
        self._places = quick.context.places
        self._scratch = scratch
        self._receiving: _Append | None = None  # its body is incomplete
        self._rest: memoryview | None = None  # where that goes on
        self._append: _Append | None = None  # is being answered
        self._last: _Repeated | None = None  # what the next request is probably like
        self._guess: memoryview | None = None  # where that is received, between two calls of the transport
        self._foreign_bytes = 0  # left of the request that aiohttp is reading
        self._held = bytearray()
        self._held_back = False  # the transport was told to wait
        self._idle: asyncio.Future[None] | None = None
        self._window_began = 0.0
        self._window_bytes = 0  # of the body, when the window began
        self._stall_handle: asyncio.TimerHandle | None = None
        self._unread: bytearray | None = None  # of a connection whose place its head decides
        self._unread_handle: asyncio.TimerHandle | None = None

    # Its place

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a place, or be refused at once, in a few bytes; or wait for the head to say whose it is."""
        super().connection_made(transport)
        place = self._places.enter(self, peer_address(transport))
        if place is None:
            self.refuse()
        elif place is Place.UNREAD:
            self._unread = bytearray()
            unread_seconds = self._quick.context.limits.unread_ms / 1000
            self._unread_handle = self._loop.call_later(unread_seconds, self.refuse)

    def refuse(self) -> None:
        """There is no place for it."""
        self._places.leave(self)
        if self.transport is not None:
            self.transport.write(REFUSED)
        self.force_close()

    def _take_unread(self, data: memoryview) -> None:
        """The first bytes of a connection that came when all the clients' places were taken."""
        assert self._unread is not None
        self._unread += data
        wanted = wanted_place(self._unread)
        if wanted is None or self._force_close:
            return
        head, self._unread = self._unread, None
        assert self._unread_handle is not None
        self._unread_handle.cancel()
        if self._places.settle(self, wanted):
            self._take(head, len(head))
        else:
            self.refuse()

    # Reading

    def get_buffer(self, sizehint: int) -> bytearray | memoryview:
        """Where the next bytes go: into the body that is being received; where the next one's head and body
        belong if it is like the last; else into the scratch memory."""
        if self._rest is not None:
            return self._rest
        last = self._last
        if last is None or self._append is not None or self._held:
            return self._scratch
        self._guess = last.request.allocate()
        return self._guess[last.request.lead_bytes - len(last.head) :]

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes have come."""
        if self._rest is not None:
            self._receive_on(nbytes)
        elif self._guess is not None:
            self._take_guess(nbytes)
        elif self._unread is not None:
            self._take_unread(memoryview(self._scratch)[:nbytes])
        elif self._append is not None or self._held:
            self._hold(memoryview(self._scratch)[:nbytes])
        else:
            self._take(self._scratch, nbytes)

    def _take_guess(self, size: int) -> None:
        """What was received where a repetition of the last request would stand: that, or anything else."""
        memory, self._guess = self._guess, None
        last = self._last
        assert memory is not None
        assert last is not None
        request, head = last.request, last.head
        start = request.lead_bytes - len(head)
        same = size >= len(head) and memory[start : request.lead_bytes] == head
        takes = not (self._force_close or self._close or self._paused) and self._is_between_requests()
        if same and takes and self._admit(request, size - len(head)):
            self._go_on_with(_Append(self, head, request, memory), size - len(head))
        else:
            self._last = None
            self._take(bytearray(memory[start : start + size]), size)

    def _take(self, data: bytearray, size: int) -> None:
        """Bytes that follow everything taken before."""
        if self._force_close or self._close:
            return
        if self._is_between_requests():
            if self._paused:  # its answers are not read: no more of them
                self._hold(memoryview(data)[:size])
                return
            most = min(HEAD_BYTES_MAX, size)
            end = data.find(HEAD_END, 0, most) + _HEAD_END_BYTES
            if end >= _HEAD_END_BYTES:
                head = bytes(memoryview(data)[:end])
                request = self._quick.request(head)
                if request is not None and self._receive(head, request, data, size):
                    return
        self._hand_over(bytes(memoryview(data)[:size]))

    def _is_between_requests(self) -> bool:
        """Whether aiohttp has nothing to do and nothing half read."""
        waiter = self._waiter
        return (
            not self._foreign_bytes
            and waiter is not None
            and not waiter.done()
            and not self._messages
            and not self._upgraded
        )

    def _hand_over(self, data: bytes) -> None:
        """To aiohttp, keeping count of where its request ends."""
        left = self._foreign_bytes
        if left == 0:
            left = request_bytes(data) or _UNKNOWN
        if left != _UNKNOWN:
            left = left - len(data) if left >= len(data) else _UNKNOWN
        self._foreign_bytes = left
        self.data_received(data)

    def _receive(self, head: bytes, request: QuickRequest, data: bytearray, size: int) -> bool:
        """Begin with a body; False when the agent has no room for it."""
        here = min(size - len(head), request.body_bytes)
        if not self._admit(request, here):
            return False
        lead = request.lead_bytes
        end = len(head) + request.body_bytes
        if size == end and not lead:  # all there is, and nobody writes to it
            self._last = None
            self._begin(_Append(self, head, request, bytes(memoryview(data)[len(head) : end])))
            self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
            return True
        memory = request.allocate()
        view = memoryview(data)
        memory[lead : lead + here] = view[len(head) : len(head) + here]
        behind = view[len(head) + here : size]
        if behind:
            self._held += behind
        append = _Append(self, head, request, memory)
        self._last = append.like_the_next() if lead else None
        self._go_on_with(append, here)
        return True

    def _admit(self, request: QuickRequest, here: int) -> bool:
        """Whether there is room for a body of which so many bytes are here. One that is complete has a place
        and its bytes now; of any other only what has come counts."""
        gate, whole = self._quick.context.gate, request.body_bytes
        if here == whole:
            return gate.take(whole)
        if not gate.promise(whole):
            return False
        if gate.arrive(here):
            return True
        gate.give_up(whole, 0)
        return False

    def _go_on_with(self, append: _Append, here: int) -> None:
        """A request of whose body so many bytes are here."""
        request = append.request
        if here < request.body_bytes:
            self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
            self._receiving = append
            assert isinstance(append.memory, memoryview)
            self._rest = append.memory[request.lead_bytes + here :]
            self._watch_progress(here)
            return
        self._begin(append)
        self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout

    def _receive_on(self, size: int) -> None:
        append, rest = self._receiving, self._rest
        assert append is not None
        assert rest is not None
        now = self._loop.time()
        # aiohttp waits for a request meanwhile: to it the connection is idle, however much comes.
        self._next_keepalive_close_time = now + self._keepalive_timeout
        gate, whole = self._quick.context.gate, append.request.body_bytes
        left = len(rest) - size
        if left:
            self._rest = rest[size:]
            if not gate.arrive(size):
                self._receive_otherwise(whole - left, counted=whole - len(rest))
            return
        self._receiving = self._rest = None
        gate.give_up(whole, whole - len(rest))
        if self._force_close:
            return
        if gate.take(whole):
            self._begin(append)
        else:
            self._hand_over(append.as_it_came(whole))

    def _receive_otherwise(self, here: int, *, counted: int) -> None:
        """There is no room for more of this body: aiohttp gets what has come of it, and says so in a way in
        which the client gets to read it."""
        append, self._receiving, self._rest = self._receiving, None, None
        assert append is not None
        self._quick.context.gate.give_up(append.request.body_bytes, counted)
        self._hand_over(append.as_it_came(here))

    def _watch_progress(self, here: int) -> None:
        """See that the body goes on: one timer, however many requests."""
        self._window_began = self._loop.time()
        self._window_bytes = here
        if self._stall_handle is None:
            stall_seconds = self._quick.context.limits.body_stall_ms / 1000
            self._stall_handle = self._loop.call_later(stall_seconds, self._check_progress)

    def _check_progress(self) -> None:
        self._stall_handle = None
        append, rest = self._receiving, self._rest
        if append is None or rest is None:
            return
        limits = self._quick.context.limits
        stall_seconds = limits.body_stall_ms / 1000
        due = self._window_began + stall_seconds
        if self._loop.time() < due:
            self._stall_handle = self._loop.call_at(due, self._check_progress)
            return
        here = append.request.body_bytes - len(rest)
        least = limits.least_bytes(self._window_bytes)
        if here - self._window_bytes >= least:
            self._watch_progress(here)
            return
        self._give_up_body()
        if self.transport is not None:
            problem = too_slow(limits, here - self._window_bytes, least)
            self.transport.write(problem_bytes(problem, close=True))
        self.force_close()

    def _give_up_body(self) -> None:
        """What has come of it is not held any more."""
        append, rest, self._receiving, self._rest = self._receiving, self._rest, None, None
        if append is not None and rest is not None:
            whole = append.request.body_bytes
            self._quick.context.gate.give_up(whole, whole - len(rest))

    def _hold(self, data: memoryview) -> None:
        self._held += data
        if len(self._held) > HELD_BYTES_MAX or self._paused:
            self._hold_back(True)

    def _hold_back(self, wanted: bool) -> None:
        if self._held_back == wanted or self.transport is None:
            return
        self._held_back = wanted
        if wanted:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def _take_held(self) -> None:
        """What came while something else was in the way."""
        if self._append is not None or self._receiving is not None or self._paused:
            return
        data, self._held = self._held, bytearray()
        if data:
            self._take(data, len(data))
        if not self._held:
            self._hold_back(False)

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        if self._held:
            self._loop.call_soon(self._take_held)

    # Appends

    def _begin(self, append: _Append) -> None:
        assert self._append is None
        assert self._manager is not None
        self._append = append
        self._manager.requests_count += 1
        try:
            begun = self._quick.begin(append.request, append.memory, append)
        except ShoalError as error:
            append.set_exception(error)
        except Exception:
            logger.exception("topic %s: an append failed; this is a bug", append.request.topic)
            append.set_exception(ShoalError("internal", "the agent failed unexpectedly; its log says how"))
        else:
            if not begun:
                self.append_was_moved(append)

    def append_ended(self, answer: bytes) -> None:
        """Send the answer, and go on with what has come since."""
        append, self._append = self._append, None
        assert append is not None
        if self.transport is not None:
            self.transport.write(answer)
            self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
        self._leave_gate(append)
        self._go_on()

    def append_was_moved(self, append: _Append) -> None:
        """Nothing has happened: it has to go the ordinary way."""
        assert self._append is append
        self._append = None
        self._leave_gate(append)
        if self.transport is not None:
            self._hand_over(append.as_it_came(append.request.body_bytes))
        self._go_on()

    def _go_on(self) -> None:
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
        if self._held:
            # Not at once: this may be the middle of a replica's turn, which must not be given another append.
            self._loop.call_soon(self._take_held)

    def _leave_gate(self, append: _Append) -> None:
        self._quick.context.gate.leave(append.request.body_bytes)

    # The end

    async def shutdown(self, timeout: float | None = 15.0) -> None:
        """Take nothing more; let the append under way be answered."""
        self._force_close = True
        if self._append is not None:
            self._idle = self._loop.create_future()
            await asyncio.wait([self._idle], timeout=timeout)
        await super().shutdown(timeout)

    def connection_lost(self, exc: BaseException | None) -> None:
        """The client has gone. An append under way goes on: its records are as good as others."""
        self._give_up_body()
        if self._stall_handle is not None:
            self._stall_handle.cancel()
        if self._unread_handle is not None:
            self._unread_handle.cancel()
        self._held.clear()
        self._places.leave(self)
        self._quick.context.waits.gone(self)
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What never reached a handler: a request that is not HTTP, or a connection that has ended."""
        if isinstance(exc, ConnectionError):
            raise exc
        logger.debug("rejected a connection from %s: %s", request.remote, message or exc)
        if isinstance(exc, LineTooLong):
            error = ShoalError(
                "too-large", "the request line or a header is too long, or there are too many headers"
            )
        else:
            error = not_a_request(message or str(exc))
        return problem_response(error, close=True)


def peer_address(transport: asyncio.BaseTransport) -> str | None:
    """Where the other end is; None when it has gone already."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if peer else None


def _refused() -> bytes:
    body = problem_body(ShoalError("overloaded", "this agent has all the connections it takes").to_problem())
    return (
        b"HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/problem+json\r\nRetry-After: 1\r\n"
        b"Connection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    )


REFUSED = _refused()
