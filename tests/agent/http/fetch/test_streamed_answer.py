"""Long Arrow answers over real sockets: read while they are sent, whole or visibly broken off, and nobody who
is slow or gone holds anything."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import time
from collections.abc import AsyncIterator, Iterator

import pytest
from fake_broker import FakeCluster
from http_access import MemoryAccess
from http_fixtures import Agent, one_agent, running

from shoal.agent.fetch import Fetch, FetchRequest
from shoal.agent.http.admission.limits import HttpLimits
from shoal.agent.security.quota import Quotas
from shoal.errors import ShoalError
from shoal.format.batch import DEFAULT_SCHEMA, END_OF_STREAM, schema_message

ARROW = "application/vnd.apache.arrow.stream"
PATH = "/v1/topics/t/partitions/0/records"
MIB = 2**20
LIMITS = HttpLimits(send_stall_ms=1_000)
BEFORE = schema_message(DEFAULT_SCHEMA)


class ToldLent:
    """A piece that is lent: written straight into a descriptor."""

    def __init__(self, piece: bytes) -> None:
        self._left = memoryview(piece)
        self.closed = False

    def __len__(self) -> int:
        return len(self._left)

    def write_to(self, descriptor: int) -> int:
        count = os.write(descriptor, self._left)
        self._left = self._left[count:]
        return count

    def close(self) -> None:
        self.closed = True


class Told:
    """Pieces that a test has made, in one buffer as the log's; `error` comes in place of one. Of `lends` of
    them the last is read, the others are lent."""

    def __init__(
        self,
        sizes: list[int],
        error: tuple[int, ShoalError] | None = None,
        waits: int = 3,
        lends: int = 1,
    ) -> None:
        rng = random.Random(len(sizes))
        self.pieces = [rng.randbytes(size) for size in sizes]
        self.size_bytes = sum(sizes)
        self.held_bytes = max(sizes)
        self.given = 0
        self.pinned = False
        self._buffer = bytearray(self.held_bytes)
        self._error = error
        self._waits = waits
        self._lends = lends
        self.lent: list[ToldLent] = []

    async def prepare_lending(self) -> None:
        """Nothing has to be noted."""

    def lend(self) -> ToldLent | None:
        is_read = self._error is not None and self._error[0] == self.given
        if is_read or (self.given + 1) % self._lends == 0:
            return None
        self.pinned = True
        self.lent.append(ToldLent(self.pieces[self.given]))
        self.given += 1
        return self.lent[-1]

    def at_once(self) -> memoryview | None:
        if self.given % self._waits == 0 or (self._error is not None and self._error[0] == self.given):
            return None
        return self._give()

    async def next(self) -> memoryview | None:
        await asyncio.sleep(0)
        if self._error is not None and self._error[0] == self.given:
            raise self._error[1]
        self.pinned = True
        return self._give()

    def _give(self) -> memoryview:
        piece = self.pieces[self.given]
        self.given += 1
        view = memoryview(self._buffer)[: len(piece)]
        view[:] = piece
        return view

    async def let_go(self) -> None:
        self.pinned = False


@pytest.fixture
async def patient_agent() -> AsyncIterator[Agent]:
    """One that gives a reader more time than a test has."""
    async with one_agent(HttpLimits(send_stall_ms=120_000)) as running_agent:
        running_agent.broker.cluster.create("t")
        yield running_agent


@pytest.fixture
async def agent() -> AsyncIterator[Agent]:
    """An agent whose reads a test tells."""
    async with one_agent(LIMITS) as running_agent:
        running_agent.broker.cluster.create("t")
        yield running_agent


def tell(agent: Agent, *told: Told) -> None:
    """What the next reads find, the last one again and again."""
    answers = list(told)

    async def read(_topic: object, _partition: int, request: FetchRequest) -> Fetch:
        pieces = answers.pop(0) if len(answers) > 1 else answers[0]
        assert request.admit is not None
        await request.admit(pieces.held_bytes)
        return Fetch(DEFAULT_SCHEMA, [], 5, 9, 20, 0, pieces)

    agent.broker.read = read  # type: ignore[method-assign]


@contextlib.contextmanager
def connected(agent: Agent, receive_bytes: int = 0) -> Iterator[socket.socket]:
    """A plain connection that reads nothing by itself."""
    plain = socket.socket()
    if receive_bytes:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    plain.connect(("127.0.0.1", agent.port))
    plain.setblocking(False)
    with plain:
        yield plain


def request(agent: Agent, method: str = "GET") -> bytes:
    return f"{method} {PATH} HTTP/1.1\r\nHost: 127.0.0.1:{agent.port}\r\nAccept: {ARROW}\r\n\r\n".encode()


async def everything(plain: socket.socket, wanted: int = 2**40) -> bytes:
    """What comes, up to so many bytes, or until the connection ends in whatever way."""
    received = bytearray()
    loop = asyncio.get_running_loop()
    with contextlib.suppress(ConnectionError):
        while len(received) < wanted:
            piece = await asyncio.wait_for(loop.sock_recv(plain, MIB), 40)
            if not piece:
                break
            received += piece
    return bytes(received)


async def until_gone(agent: Agent, told: Told) -> None:
    """The answer has ended: no file is pinned, nothing is held or lent."""
    async with asyncio.timeout(30):
        while told.pinned or agent.runner.context.gate.requests:
            await asyncio.sleep(0.01)
    assert agent.runner.context.gate.bytes_in_flight == 0
    assert all(lent.closed for lent in told.lent)


async def test_all_pieces_come_in_order(agent: Agent) -> None:
    """Schema, pieces, end of stream, under a length that says so; the connection goes on afterwards. HEAD
    says the same and sends none."""
    told = [Told([300_000, MIB, 1, 700_000, 5_000_000, 40] * n, waits=1 + n, lends=n) for n in (1, 2, 3)]
    told.append(Told([300_000, MIB, 5_000_000], lends=100))  # all of them, up to the last byte
    tell(agent, *told)
    for pieces in told:
        answer = await agent.get(PATH, Accept=ARROW)
        assert answer.status == 200
        assert answer.body == BEFORE + b"".join(pieces.pieces) + END_OF_STREAM
        assert int(answer.headers["Content-Length"]) == len(answer.body)
        names = ("Base-Offset", "Next-Offset", "High-Watermark", "Log-Start-Offset")
        assert [answer.headers[f"Shoal-{name}"] for name in names] == ["5", "9", "20", "0"]
        await until_gone(agent, pieces)
    head = await agent.request("HEAD", PATH, headers={"Accept": ARROW})
    assert (head.status, head.body) == (200, b"")
    whole_bytes = len(BEFORE) + told[-1].size_bytes + len(END_OF_STREAM)
    assert int(head.headers["Content-Length"]) == whole_bytes


@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_a_connection_that_ends_brings_everything_first(agent: Agent, version: str) -> None:
    """HTTP/1.0, and whoever says that this is the last request."""
    told = Told([700_000] * 9)
    tell(agent, told)
    with connected(agent, 64 * 1024) as plain:
        last = request(agent).replace(b"HTTP/1.1", b"HTTP/" + version.encode())
        plain.sendall(last.replace(b"Accept", b"Connection: close\r\nAccept"))
        await asyncio.sleep(0.05)
        _, _, body = (await everything(plain)).partition(b"\r\n\r\n")
    assert body == BEFORE + b"".join(told.pieces) + END_OF_STREAM


async def test_requests_behind_one_another(agent: Agent) -> None:
    """Three at once over one connection: the answers come one after the other, none in the middle of another,
    though the first is taken slowly."""
    told = [Told([700_000 + n] * 9, lends=n + 1) for n in range(3)]
    tell(agent, *told)
    with connected(agent, 64 * 1024) as plain:
        plain.sendall(request(agent) * 3)
        await asyncio.sleep(0.1)
        bodies = [BEFORE + b"".join(pieces.pieces) + END_OF_STREAM for pieces in told]
        received = b""
        for body in bodies:
            while b"\r\n\r\n" not in received:
                received += await everything(plain, 1)
            head, _, received = received.partition(b"\r\n\r\n")
            assert b"200 OK" in head
            received += await everything(plain, len(body) - len(received))
            assert received[: len(body)] == body
            received = received[len(body) :]
    await until_gone(agent, told[-1])


@pytest.mark.parametrize("damaged", [1, 4, 9])
async def test_damage_ends_the_connection(agent: Agent, damaged: int) -> None:
    """What came before it is whole, none of it comes, and nobody can take the answer for a whole one."""
    told = Told([400_000] * 10, (damaged, ShoalError("damaged", "entry 7 does not verify")), lends=3)
    tell(agent, told)
    with connected(agent) as plain:
        plain.sendall(request(agent))
        received = await everything(plain)
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"200 OK" in head
    assert f"Content-Length: {len(BEFORE) + told.size_bytes + len(END_OF_STREAM)}".encode() in head
    sound = BEFORE + b"".join(told.pieces[:damaged])
    assert sound.startswith(body)
    assert told.given == damaged
    await until_gone(agent, told)


async def test_a_reader_that_takes_nothing_is_cut_off(agent: Agent) -> None:
    """After its time; until then it costs one piece, and afterwards nothing."""
    told = Told([MIB] * 64)
    tell(agent, told)
    with connected(agent, 64 * 1024) as plain:
        began = time.monotonic()
        plain.sendall(request(agent))
        await asyncio.sleep(0.2)
        assert told.given < 16
        assert agent.runner.context.gate.bytes_in_flight == told.held_bytes
        await until_gone(agent, told)
        assert time.monotonic() - began > LIMITS.send_stall_ms / 1000 * 0.9
        received = await everything(plain)
    assert len(received) < told.size_bytes


@pytest.mark.parametrize("lends", [1, 3])
async def test_a_slow_reader_gets_everything(agent: Agent, lends: int) -> None:
    """It takes longer than a stalled one is given, but never stands still so long."""
    told = Told([MIB] * 12, lends=lends)
    tell(agent, told)
    with connected(agent, 128 * 1024) as plain:
        plain.sendall(request(agent))
        received = b""
        began = time.monotonic()
        while b"\r\n\r\n" not in received:
            received += await everything(plain, 1)
        left = len(BEFORE) + told.size_bytes + 8 - len(received.partition(b"\r\n\r\n")[2])
        while left > 0:
            piece = await everything(plain, min(left, MIB // 2))
            assert piece, "the connection ended"
            received += piece
            left -= len(piece)
            await asyncio.sleep(0.06)
        assert time.monotonic() - began > LIMITS.send_stall_ms / 1000
    assert received.partition(b"\r\n\r\n")[2] == BEFORE + b"".join(told.pieces) + END_OF_STREAM


@pytest.mark.parametrize("lends", [1, 100])
async def test_a_slow_reader_pins_no_file(agent: Agent, monkeypatch: pytest.MonkeyPatch, lends: int) -> None:
    """Once it has taken its time, the log's file is let go of while the socket is full."""
    monkeypatch.setattr("shoal.agent.http.fetch.streamed_answer.PIN_SECONDS", 0.0)
    told = Told([MIB] * 64, lends=lends)
    tell(agent, told)
    with connected(agent, 64 * 1024) as plain:
        plain.sendall(request(agent))
        async with asyncio.timeout(40):
            while not told.given or told.pinned:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert agent.runner.context.gate.requests == 1  # it is still being answered
        assert not told.pinned


async def test_a_client_that_goes_away_ends_it(patient_agent: Agent) -> None:
    """In the middle of an answer, whether the agent is writing or waiting for room: long before its time."""
    agent = patient_agent
    for wait_seconds, lends in ((0.0, 1), (0.1, 1), (0.1, 100)):
        told = Told([MIB] * 64, lends=lends)
        tell(agent, told)
        with connected(agent, 64 * 1024) as plain:
            plain.sendall(request(agent))
            await everything(plain, 300_000)
            await asyncio.sleep(wait_seconds)
        await until_gone(agent, told)
        assert told.given < 64


async def test_others_are_answered_meanwhile(agent: Agent) -> None:
    """Small requests while several long answers are sent as fast as they are taken."""
    tell(agent, *(Told([MIB] * 40, lends=lends) for lends in (1, 3, 100)), Told([1]))
    long = [asyncio.create_task(agent.get(PATH, Accept=ARROW)) for _ in range(3)]
    await asyncio.sleep(0.05)
    answered = 0
    while not all(task.done() for task in long):
        assert (await agent.get("/livez")).status == 200
        answered += 1
    for task in long:
        assert (await task).status == 200
    assert answered > 3


async def test_an_agent_that_stops_ends_it(agent: Agent) -> None:
    """A stopping server does not wait for a slow reader for longer than it waits for anybody."""
    told = Told([MIB] * 64, lends=100)
    tell(agent, told)
    with connected(agent, 64 * 1024) as plain:
        plain.sendall(request(agent))
        await everything(plain, 300_000)
        async with asyncio.timeout(40):
            await agent.runner.cleanup()
        assert not told.pinned


@pytest.mark.parametrize("lends", [1, 3])
async def test_a_quota_pays_for_the_pieces_that_left(lends: int) -> None:
    """For all of an answer that was taken whole; for less of one whose reader has gone."""
    access = MemoryAccess()
    token = access.give("bob", "topic:*=*")
    access.quotas["of-bob"] = Quotas(bytes_out=1 << 40)
    async with running(FakeCluster().add("one"), LIMITS, access) as agent:
        agent.broker.cluster.create("t")
        meters = agent.runner.context.doorkeeper.meters
        meters.clock_ns = lambda: 1

        def charged() -> int:
            left = meters.keeper.of("of-bob", 1).left_out(access.quotas["of-bob"], 1)
            assert left is not None
            return (1 << 40) - left

        whole, cut = Told([MIB] * 9, lends=lends), Told([MIB] * 60, lends=lends)
        tell(agent, whole, cut)
        answer = await agent.get(PATH, Accept=ARROW, Authorization=token)
        assert answer.status == 200
        await until_gone(agent, whole)
        # Each cost is rounded up to a nanosecond: a kilobyte here.
        assert len(answer.body) <= charged() <= len(answer.body) + 64 * 1024
        before = charged()
        with connected(agent, 64 * 1024) as plain:
            plain.sendall(request(agent)[:-2] + f"Authorization: {token}\r\n\r\n".encode())
            await everything(plain, MIB)
        await until_gone(agent, cut)
        assert MIB // 2 < charged() - before < 30 * MIB
