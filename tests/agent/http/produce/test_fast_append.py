"""Appends the short way: they are taken when nothing is unusual, and their answers are the ordinary ones."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from http_fixtures import ARROW, NDJSON, Agent, arrow_batch, arrow_stream, one_agent
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.http.admission.limits import HttpLimits
from shoal.agent.http.http1.head import read_head
from shoal.agent.http.produce.fast_head import Head, append_head, without_sequence
from shoal.errors import ShoalError

PATH = "/v1/topics/t/partitions/0/records"
BODY = b'{"records":[{"value":"v"}]}'


def request(body: bytes = BODY, *lines: str, path: str = PATH, media: str = "application/json") -> bytes:
    """One request as a plain client sends it."""
    head = [
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        f"Content-Type: {media}",
        f"Content-Length: {len(body)}",
    ]
    return "\r\n".join((*head, *lines, "", "")).encode() + body


class Wire:
    """A bare connection to an agent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """The next answer: status, headers (lower case), body."""
        async with asyncio.timeout(40):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
            return (
                int(head[0].split()[1]),
                headers,
                await self.reader.readexactly(int(headers["content-length"])),
            )

    async def ask(self, data: bytes) -> tuple[int, dict[str, str], bytes]:
        self.writer.write(data)
        return await self.answer()


@contextlib.asynccontextmanager
async def wired(limits: HttpLimits | None = None) -> AsyncIterator[tuple[Agent, Wire]]:
    """An agent with topic `t`, and a connection to it."""
    async with one_agent(limits) as agent:
        agent.broker.cluster.create("t")
        reader, writer = await asyncio.open_connection("127.0.0.1", agent.port)
        try:
            yield agent, Wire(reader, writer)
            gate = agent.runner.context.gate
            async with asyncio.timeout(40):  # a server sees its client's end a moment later
                while gate.requests or gate.bytes_in_flight:
                    await asyncio.sleep(0.001)
            assert (gate.arriving_bytes, gate.promised_bytes) == (0, 0)
        finally:
            writer.close()


async def test_taken_and_equal() -> None:
    """Whatever body, the answer is the one of the ordinary way, headers and all; the short way took it."""
    arrow = arrow_stream(arrow_batch([b"a", b"b"]))
    async with wired() as (agent, wire):
        for number, (body, media, records) in enumerate(
            ((BODY, "application/json", 1), (b"x", "text/plain", 1), (arrow, ARROW, 2))
        ):
            status, headers, answer = await wire.ask(request(body, media=media))
            assert agent.broker.begun == number + 1
            plain_status, plain_headers, plain = await wire.ask(request(body, "X-Other: 1", media=media))
            assert agent.broker.begun == number + 1, "an unknown header goes the ordinary way"
            assert status == plain_status == 200
            assert headers.keys() == plain_headers.keys()
            offset = answer.split(b'"base_offset":')[1].split(b",")[0]
            assert plain == answer.replace(
                b'"base_offset":%b' % offset, b'"base_offset":%d' % (int(offset) + records)
            )


async def test_arrow_bytes_are_stored_as_sent() -> None:
    """A batch admitted in its place is the batch that is read back."""
    values = [b"one", b"", b"three"]
    async with wired() as (agent, wire):
        assert (await wire.ask(request(arrow_stream(arrow_batch(values)), media=ARROW)))[0] == 200
        assert agent.broker.begun == 1
        page = await agent.get(f"{PATH}?offset=0")
        assert [record["value"] for record in page.json["records"]] == ["one", "", "three"]


async def test_a_large_batch_is_admitted_in_its_place() -> None:
    """As large as a stored batch may be; several batches in one body flow the ordinary way, as do bodies
    for which no memory may be set aside before they are here."""
    values = [b"v" * 5_000_000] * 3
    large = request(arrow_stream(arrow_batch(values)), media=ARROW)
    several = request(arrow_stream(*[arrow_batch([b"w" * 700_000])] * 2), media=ARROW)
    async with wired() as (agent, wire):
        for sent, begun, records in ((large, 1, 3), (several, 1, 2), (large, 2, 3)):
            status, _, body = await wire.ask(sent)
            assert (status, agent.broker.begun) == (200, begun)
            assert body.startswith(b'{"count":%d,' % records)
        page = await agent.get(f"{PATH}?offset=5&max_bytes=16000000")
        assert [len(record["value"]) for record in page.json["records"]] == [5_000_000] * 3
    async with wired(HttpLimits(promised_bytes=12 * 2**20)) as (agent, wire):
        assert (await wire.ask(large))[0] == 200
        assert agent.broker.begun == 0
        assert (await wire.ask(request(arrow_stream(arrow_batch(values[:1])), media=ARROW)))[0] == 200
        assert agent.broker.begun == 1


@pytest.mark.parametrize(
    ("body", "media", "code"),
    [
        (b'{"records":', "application/json", "bad-request"),
        (b"no arrow", ARROW, "bad-request"),
        (b'{"records":[]}', "application/x-www-form-urlencoded", "ambiguous-body"),
    ],
)
async def test_refusals_are_equal(body: bytes, media: str, code: str) -> None:
    """A body that is refused gets the same problem both ways, and the connection stays open."""
    async with wired() as (_, wire):
        status, headers, answer = await wire.ask(request(body, media=media))
        plain_status, plain_headers, plain = await wire.ask(request(body, "X-Other: 1", media=media))
        assert code.encode() in answer
        assert (status, answer, headers.keys()) == (plain_status, plain, plain_headers.keys())
        assert (await wire.ask(request()))[0] == 200


async def test_pieces() -> None:
    """A request that comes byte by byte, or cut anywhere in its body, is the same request."""
    whole = request(arrow_stream(arrow_batch([b"v" * 5000])), media=ARROW)
    head = whole.index(b"\r\n\r\n") + 4
    async with wired() as (agent, wire):
        for cut in (head, head + 1, head + 300, len(whole) - 1, 10):
            wire.writer.write(whole[:cut])
            await asyncio.sleep(0.01)
            assert (await wire.ask(whole[cut:]))[0] == 200
        assert agent.broker.begun >= 4


async def test_pipelining() -> None:
    """Requests sent without waiting are answered in their order, whichever way each goes."""
    get = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
    odd = request(BODY, "X-Other: 1")
    many = [request(), get, request(), odd, request(b"1\n", media=NDJSON), request(), get, request()]
    async with wired() as (_, wire):
        wire.writer.write(b"".join(many))
        offsets = []
        for sent in many:
            status, _, body = await wire.answer()
            assert status == 200
            assert (b"appended" in body) == (sent is not get)
            if sent is not get:
                offsets.append(int(body.split(b'"base_offset":')[1].split(b",")[0]))
        assert offsets == list(range(6))


async def test_flood_is_held_back() -> None:
    """While an append waits, no more than a bound is read of what comes behind it; then all is answered."""
    async with wired() as (agent, wire):
        held = agent.broker.held = []
        flood = request() * 4000  # half a megabyte beyond every buffer that is ours
        wire.writer.write(flood)
        async with asyncio.timeout(40):
            while not held:
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        assert len(held) == 1
        agent.broker.held = None
        answer, done = held[0]
        answer.set_result(done)
        for _ in range(4000):
            assert (await wire.answer())[0] == 200


async def test_moved_goes_the_ordinary_way() -> None:
    """Where nothing happened because the leader is elsewhere, the ordinary way looks for it."""
    async with wired() as (agent, wire):
        agent.broker.fail_next = [ShoalError("no-leader", "none just now")]
        assert (await wire.ask(request()))[0] == 200
        agent.broker.fail_answer = ShoalError("not-leader", "deposed before it was proposed")
        assert (await wire.ask(request()))[0] == 200
        arrow = arrow_stream(arrow_batch([b"v"]))
        agent.broker.fail_next = [ShoalError("not-leader", "elsewhere")]
        assert (await wire.ask(request(arrow, media=ARROW)))[0] == 200


async def test_indefinite_answer() -> None:
    """What may have been stored is told as such, and never sent again by the agent."""
    async with wired() as (agent, wire):
        agent.broker.fail_answer = ShoalError("leadership-lost", "who knows", definite=False)
        status, _, body = await wire.ask(request())
        assert status == 504
        assert b'"definite":false' in body


async def test_client_leaves() -> None:
    """A connection that ends during an append or inside a body takes nothing along and holds nothing."""
    async with wired() as (agent, _):
        gate = agent.runner.context.gate
        held = agent.broker.held = []
        for data in (request(), request()[:-3]):
            _, writer = await asyncio.open_connection("127.0.0.1", agent.port)
            writer.write(data)
            async with asyncio.timeout(40):
                while gate.bytes_in_flight == 0:
                    await asyncio.sleep(0.001)
                writer.close()
                for answer, done in held:
                    await asyncio.sleep(0.01)
                    answer.set_result(done)
                held.clear()
                while gate.bytes_in_flight:
                    await asyncio.sleep(0.001)


async def test_stalled_body() -> None:
    """A body that stops coming is answered with what is wrong, and the connection ends."""
    async with wired(HttpLimits(body_stall_ms=50)) as (_, wire):
        status, headers, body = await wire.ask(request()[:-3])
        assert (status, headers["connection"]) == (400, "close")
        assert b"brought nothing" in body
        assert await wire.reader.read() == b""


@pytest.mark.parametrize("ordinary", [False, True])
async def test_a_long_upload_that_goes_on_is_not_cut(ordinary: bool) -> None:
    """However much longer it takes than a connection may be idle; the ordinary way, and the short one."""
    body = arrow_stream(arrow_batch([b"v" * 5_000]))
    whole = request(body, *(["X-Other: 1"] if ordinary else []), media=ARROW)
    async with wired(HttpLimits(idle_ms=1_000)) as (agent, wire):
        loop = asyncio.get_running_loop()
        started, step = loop.time(), len(whole) // 30
        for start in range(0, len(whole), step):
            wire.writer.write(whole[start : start + step])
            await asyncio.sleep(max(0.0, started + 2.5 * start / len(whole) - loop.time()))
        assert (await wire.answer())[0] == 200
        assert agent.broker.begun == (0 if ordinary else 1)
        assert loop.time() - started > 2


async def test_shutdown_lets_an_append_end() -> None:
    """A stopping server answers the append under way before it closes the connection."""
    async with wired() as (agent, wire):
        held = agent.broker.held = []
        wire.writer.write(request())
        async with asyncio.timeout(40):
            while not held:
                await asyncio.sleep(0.001)
            stopping = asyncio.create_task(agent.runner.cleanup())
            await asyncio.sleep(0.05)
            assert not stopping.done()
            answer, done = held[0]
            answer.set_result(done)
            assert (await wire.answer())[0] == 200
            await stopping


@pytest.mark.parametrize(
    "line",
    [
        "Content-Length: 27",  # twice
        "Transfer-Encoding: chunked",
        "Expect: 100-continue",
        "Connection: close",
        "Origin: http://elsewhere",
        " folded",
        "Bad Name: x",
        "Accept: \x7f",
    ],
)
def test_doubtful_heads_are_not_read(line: str) -> None:
    """Whatever could mean more than one thing is left to the real parser."""
    assert plain_head(request(b"x")[:-1]) is not None
    assert plain_head(request(b"x", line)[:-1]) is None


def plain_head(data: bytes) -> Head | None:
    head = read_head(data)
    return None if head is None else append_head(data, head.body_bytes)


async def test_unlike_the_last() -> None:
    """After a large request the next one is awaited to be like it; whatever comes instead is what it is."""
    large = request(arrow_stream(arrow_batch([b"v" * 3000])), media=ARROW)
    other = request(arrow_stream(arrow_batch([b"w" * 4000])), media=ARROW)
    get = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
    expected = 0
    async with wired() as (_, wire):
        for sent in (large, large, other, large, get, large, request(), large, large[:-9] + b"x" * 9, large):
            status, _, body = await wire.ask(sent)
            if sent[-9:] == b"x" * 9:
                assert status == 400
                continue
            assert status == 200
            if sent is not get:
                assert b'"base_offset":%d,' % expected in body
                expected += 1
        wire.writer.write(large + large + get + large)
        assert [(await wire.answer())[0] for _ in range(4)] == [200] * 4


async def test_what_a_producer_sends_again_and_again() -> None:
    """Its heads differ by their sequence only, and say that nothing is to be forwarded: they go the short
    way, and each sequence is looked at."""
    body = arrow_stream(arrow_batch([b"v"]))
    path = f"{PATH}?acks=all&timeout=5000ms&forward=false"

    def numbered(sequence: str) -> bytes:
        lines = (
            "Shoal-Producer-Id: 00112233445566778899aabbccddeeff",
            "Shoal-Producer-Epoch: 0",
            f"Shoal-Producer-Sequence: {sequence}",
            "User-Agent: a client",
        )
        return request(body, *lines, path=path, media=ARROW)

    async with wired() as (agent, wire):
        sent: tuple[tuple[str, int, bytes], ...] = (
            ("0", 200, b'"base_offset":0'),
            ("1", 200, b'"base_offset":1'),
            ("2", 200, b'"base_offset":2'),
            ("4", 409, b"sequence-gap"),
            ("3", 200, b'"base_offset":3'),
        )
        for number, (sequence, wanted, part) in enumerate(sent):
            status, _, answer = await wire.ask(numbered(sequence))
            assert (status, part in answer.replace(b" ", b"")) == (wanted, True), (sequence, answer)
            assert agent.broker.begun == number + 1
        for nonsense in ("-1", "x", "9" * 20):
            status, _, answer = await wire.ask(numbered(nonsense))
            assert (status, agent.broker.begun) == (400, len(sent)), (nonsense, answer)


@given(st.binary(max_size=60), st.integers(0, 10**18 - 1), st.binary(max_size=60))
def test_a_sequence_is_cut_out_and_nothing_else(before: bytes, sequence: int, behind: bytes) -> None:
    """Whatever stands around the number stays, and a head without one stays as it is."""
    line = b"\r\nShoal-Producer-Sequence: "
    before = before.replace(line, b"")
    head = before + line + b"%d\r\n" % sequence + behind
    assert without_sequence(head) == (before + line + b"\r\n" + behind, sequence)
    assert without_sequence(before) == (before, None)
