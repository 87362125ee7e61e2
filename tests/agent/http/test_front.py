"""The front beside aiohttp alone: the same bytes get the same answers both ways, and store the same.

Both sides run on transports in memory, so that a piece is a piece. aiohttp alone is the same server without
the front: neither http1 nor the fast path is there.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import itertools
import re
import socket
from collections.abc import Callable, Iterable

import pytest
from aiohttp import web
from fake_broker import FakeBroker, FakeCluster
from hypothesis import given, settings
from hypothesis import strategies as st
from odd_requests import GET, ORDINARY, POST, SMUGGLED, post

from shoal.agent.http.admission.guard import IN_THE_OPEN
from shoal.agent.http.admission.limits import HttpLimits
from shoal.agent.http.app import Dispatcher
from shoal.agent.http.core import handed_over
from shoal.agent.http.core.context import Context
from shoal.agent.http.core.forward import Forwarder
from shoal.agent.http.core.handed_over import Front, HandedOver
from shoal.agent.http.front import HELD_BYTES_MAX, Connection
from shoal.agent.http.http1.connection import ConnectionState, HttpConnection
from shoal.agent.http.http1.head import RequestHead, read_head
from shoal.agent.http.shared import Shared
from shoal.agent.metrics.measures import HttpMeasures

ALL = {**ORDINARY, **SMUGGLED}
PATIENCE_S = 60.0
# Turns of the loop without a byte more: this is all there will be. A handler at work may wait for a thread or
# a topic, and its turns take a millisecond; or for the rest of a body, which does not come.
QUIET_TURNS = 25
HELD_PIECES_MAX = 12
BUSY_TURNS = 100
LIMITS = HttpLimits(idle_ms=600_000, body_stall_ms=600_000, linger_ms=600_000)
_DATE = re.compile(rb"\r\nDate: [^\r]*")
# Sent where the body has not come when the handler begins: at once since Python 3.12, a turn later before.
_INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
# What a parser says of bytes that are no request differs by how it was given them.
_REASON = re.compile(rb'"detail":"this is not an HTTP request: [^"]*"')
_LENGTH = re.compile(rb"\r\nContent-Length: \d+")
_STATUS = re.compile(rb"HTTP/1\.[01] (\d+) ")


Outcome = tuple[list[bytes], bytes, bool, dict[str, list[bytes | None]]]


class MemoryTransport(asyncio.Transport):
    """Keeps what is written. A closed one takes no more, and says so to its protocol in the next turn."""

    def __init__(self, accepted: socket.socket | None = None) -> None:
        super().__init__(None if accepted is None else {"socket": accepted})
        self.written = b""
        self.is_paused = False
        self.protocol: asyncio.BaseProtocol | None = None
        self._is_closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self._is_closing, "something is written behind the end"
        self.written += data

    def writelines(self, data: Iterable[bytes | bytearray | memoryview]) -> None:
        for piece in data:
            self.write(piece)

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            assert self.protocol is not None
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    abort = close

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def get_write_buffer_size(self) -> int:
        return 0


class Nobody(Front):
    """Beside aiohttp alone."""

    certificate = None
    guard = IN_THE_OPEN
    measures = HttpMeasures()

    def answer_ended(self, *, keep_alive: bool) -> None: ...


class Side:
    """A server of one connection."""

    def __init__(self, make: Callable[[Dispatcher, web.Server], asyncio.BaseProtocol]) -> None:
        self.broker: FakeBroker = FakeCluster().add("one")
        self.broker.url = "http://localhost:1"
        self.broker.cluster.create("t")
        self.context = Context(self.broker, LIMITS, Forwarder(self.broker.agent_id, LIMITS))
        dispatcher = Dispatcher(self.context)
        self.transport = MemoryTransport()
        self._dispatcher = dispatcher
        self._at_work = 0
        self.protocol = self.transport.protocol = make(dispatcher, web.Server(self._handle))
        self.protocol.connection_made(self.transport)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self._at_work += 1
        try:
            return await self._dispatcher.handle(request)
        finally:
            self._at_work -= 1

    async def send(self, pieces: Iterable[bytes]) -> None:
        """In order, as far as the connection lives and is read, a turn of the loop between two pieces; then
        until nothing more happens."""
        for piece in pieces:
            turns = 0
            while self.transport.is_paused and turns < QUIET_TURNS:
                await asyncio.sleep(0)
                turns += 1
            if self.transport.is_paused or self.transport.is_closing():
                break
            self.deliver(piece)
            await asyncio.sleep(0)
        await self.quiet()

    def deliver(self, piece: bytes) -> None:
        if isinstance(self.protocol, asyncio.Protocol):
            self.protocol.data_received(piece)
            return
        assert isinstance(self.protocol, asyncio.BufferedProtocol)
        rest = memoryview(piece)
        while rest and not self.transport.is_closing():
            room = memoryview(self.protocol.get_buffer(-1))
            size = min(len(room), len(rest))
            room[:size] = rest[:size]
            self.protocol.buffer_updated(size)
            rest = rest[size:]

    async def quiet(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            turns = 0
            while turns < (BUSY_TURNS if self._at_work else QUIET_TURNS):
                before = len(self.transport.written)
                await asyncio.sleep(0.001 if self._at_work else 0)
                turns = 0 if len(self.transport.written) > before else turns + 1

    async def end(self) -> None:
        self.transport.close()
        async with asyncio.timeout(PATIENCE_S):
            while self.context.gate.requests or self.context.gate.bytes_in_flight:
                await asyncio.sleep(0)
        self.context.decoders.shutdown()
        self.context.selector.close()
        await self.context.forwarder.close()

    def outcome(self) -> Outcome:
        """Final statuses, the answers without dates, whether the connection ended, and what was stored."""
        answers = self.transport.written.replace(_INTERIM, b"")
        written = _REASON.sub(b"the reason", answers)
        if b"the reason" in written:
            written = _LENGTH.sub(b"", written)
        stored = {name: self.broker.cluster.values(name) for name in sorted(self.broker.cluster.topics)}
        statuses = _STATUS.findall(answers)
        return statuses, _DATE.sub(b"", written), self.transport.is_closing(), stored


def with_front(dispatcher: Dispatcher, server: web.Server) -> asyncio.BaseProtocol:
    return Connection(
        Shared(dispatcher.appends, dispatcher.receives, dispatcher.rows, dispatcher.refusals, server),
        IN_THE_OPEN,
    )


def aiohttp_alone(dispatcher: Dispatcher, server: web.Server) -> asyncio.BaseProtocol:
    return HandedOver(server, Nobody(), LIMITS)


def cut_at(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges) if start < end]


def bytewise(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


async def outcome_of(
    make: Callable[[Dispatcher, web.Server], asyncio.BaseProtocol], *sent: list[bytes]
) -> Outcome:
    """Of what is sent one after the other, each when all is answered that was sent before."""
    side = Side(make)
    for pieces in sent:
        await side.send(pieces)
    outcome = side.outcome()
    await side.end()
    return outcome


async def check(requests: list[bytes], *cuts: list[bytes]) -> None:
    """The front's outcome is that of aiohttp alone, which gets what is strictly read one request at a time,
    and the rest as it comes. That matters: aiohttp forgets requests that come in one piece with one that it
    refuses. Pieces that come while a request is answered are one piece of the rest."""
    strict = list(itertools.takewhile(is_read_strictly, requests))
    for pieces in (requests, [b"".join(requests)], *cuts):
        rest = without(pieces, sum(map(len, strict)))
        found = await outcome_of(with_front, pieces)
        wanted: list[Outcome] = []
        for held in (1, len(rest), *range(2, min(len(rest), HELD_PIECES_MAX))):
            came = [b"".join(rest[:held]), *rest[held:]]
            wanted.append(await outcome_of(aiohttp_alone, *([request] for request in strict), came))
            if found == wanted[-1]:
                break
        assert found == wanted[-1], wanted


def is_read_strictly(data: bytes) -> bool:
    http: HttpConnection[RequestHead] = HttpConnection(read_head)
    received = http.receive(memoryview(data))
    return received is not None and received[1] is not None and http.state is ConnectionState.ANSWERING


def without(pieces: list[bytes], size: int) -> list[bytes]:
    """What is behind so many bytes."""
    rest = []
    for piece in pieces:
        if len(piece) > size:
            rest.append(piece[size:])
        size = max(0, size - len(piece))
    return rest


@pytest.mark.parametrize("behind", [[], [post(b"behind")]], ids=["alone", "followed"])
@pytest.mark.parametrize("name", ALL)
async def test_the_same_answers_both_ways(name: str, behind: list[bytes]) -> None:
    """In one piece, byte by byte, and between two appends that go the fast path: status, headers, body, and
    what was stored. Where a request may be smuggled in, the append behind it shows it."""
    requests = [ALL[name], *behind]
    await check(requests, bytewise(b"".join(requests)))
    await check([post(b"before"), *requests])


async def test_a_request_like_the_last() -> None:
    """The next one's memory is set aside for its like; another one that comes instead is read, too."""
    arrow = ALL["arrow"]
    for other in (arrow, GET + b"\r\n", ALL["broken arrow"], post(b"plain"), ALL["bare line feeds"], GET):
        requests = [arrow, arrow, other, arrow]
        await check(requests, cut_at(b"".join(requests), [len(arrow) - 1, 2 * len(arrow) - 9]))


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.sampled_from(sorted(ALL)), min_size=1, max_size=6),
    st.lists(st.integers(0, 20_000), max_size=12),
)
def test_many_requests_in_any_pieces(names: list[str], cuts: list[int]) -> None:
    """Pipelined, whatever follows whatever."""
    requests = [ALL[name] for name in names]
    asyncio.run(check(requests, cut_at(b"".join(requests), cuts)))


@pytest.mark.parametrize("cut", [lambda data: [data], bytewise], ids=["whole", "bytewise"])
async def test_the_fast_path_comes_back_behind_other_requests(cut: Callable[[bytes], list[bytes]]) -> None:
    """An append takes it again when aiohttp has answered what was before it, whatever its body was like."""
    others = ("get", "get with a body", "unknown header", "no topic", "head", "expected", "latin header")
    front = Side(with_front)
    await front.send(cut(b"".join(ALL[name] + post(b"fast") for name in others)))
    assert front.broker.begun == front.broker.cluster.values("t").count(b"fast") == len(others)
    await front.end()


@pytest.mark.parametrize("name", ["other connection option", "own chunked"])
@pytest.mark.parametrize("cut", [lambda data: [data], bytewise], ids=["whole", "bytewise"])
async def test_a_connection_that_is_handed_over_stays_so(
    cut: Callable[[bytes], list[bytes]], name: str
) -> None:
    """Behind a head that is not read strictly, nothing is: one parser alone sees the rest."""
    chunked = GET + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n"
    front = Side(with_front)
    await front.send(cut(post(b"fast") + ALL.get(name, chunked) + post(b"slow")))
    assert front.broker.begun == 1
    assert front.broker.cluster.values("t") == [b"fast", b"slow"]
    await front.end()


def test_no_private_name_of_aiohttp_is_used() -> None:
    """The front meets aiohttp in one file, by the public names that a next version keeps."""
    names = {
        node.attr if isinstance(node, ast.Attribute) else node.id
        for node in ast.walk(ast.parse(inspect.getsource(handed_over)))
        if isinstance(node, ast.Attribute | ast.Name)
    }
    assert {name for name in names if name.startswith("_") and not name.startswith("__")} == set()
    assert "RequestHandler" in names
    own = set(HandedOver.__slots__)
    assert not own & {name for base in web.RequestHandler.__mro__ for name in vars(base)}


async def test_an_answer_before_the_body_is_whole() -> None:
    """The rest of a refused body belongs to it, however long it takes; then the next request is read."""
    refused = post(b"x" * 300, b"Expect: 200-ok")
    front = Side(with_front)
    await front.send([refused[:-200]])
    assert front.outcome()[0] == [b"400"]
    await front.send([refused[-200:-50], refused[-50:] + post(b"next")])
    assert front.outcome()[0] == [b"400", b"200"]
    assert front.broker.cluster.values("t") == [b"next"]
    await front.end()


async def test_what_is_held_is_bounded() -> None:
    """Requests behind one that is not answered are not read beyond a bound, and are answered in the end."""
    front = Side(with_front)
    held = front.broker.held = []
    data, sent = post(b"v" * 1_000), 0
    while not front.transport.is_paused:
        front.deliver(data)
        sent += 1
        assert sent * len(data) < 2 * HELD_BYTES_MAX
    await front.quiet()
    assert front.transport.is_paused
    front.broker.held = None
    for answer, done in held:
        answer.set_result(done)
    await front.send([data])
    assert front.outcome()[0] == [b"200"] * (sent + 1)
    assert not front.transport.is_paused
    await front.end()


async def test_a_client_that_does_not_read_is_not_answered_on() -> None:
    """Its requests wait until it reads; those under way with aiohttp are told the same."""
    front = Side(with_front)
    assert isinstance(front.protocol, Connection)
    await front.send([GET + b"\r\n"])
    front.protocol.pause_writing()
    sending = asyncio.create_task(front.send([post(b"a"), GET + b"\r\n" + post(b"b")]))
    await front.quiet()
    assert front.outcome()[0] == [b"200"]
    front.protocol.resume_writing()
    async with asyncio.timeout(PATIENCE_S):
        await sending
    assert front.outcome()[0] == [b"200"] * 4
    await front.end()


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX])
async def test_the_last_piece_of_an_answer_does_not_wait_for_the_client(family: socket.AddressFamily) -> None:
    """An accepted socket sends at once; one of this host has nothing to set."""
    side = Side(with_front)
    with socket.socket(family) as accepted:
        transport = MemoryTransport(accepted)
        transport.protocol = with_front(Dispatcher(side.context), web.Server(side._handle))
        transport.protocol.connection_made(transport)
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        if family == socket.AF_INET:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        transport.close()
        await side.end()


async def test_a_client_that_leaves_in_a_request_holds_nothing() -> None:
    """In a head, in a body of either way, behind a chunk."""
    for data in (
        GET,
        post(b"abc")[:-1],
        post(b"abc", b"X-Other: 1")[:-1],
        POST + b"Transfer-Encoding: chunked\r\n\r\n1",
    ):
        front = Side(with_front)
        await front.send([data])
        assert not front.transport.is_closing()
        await front.end()
        assert front.broker.cluster.stored() == 0
