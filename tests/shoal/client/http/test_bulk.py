"""Receiving large answers in place: whatever comes, an answer is whole or refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from listening import serving

from shoal.client.http.bulk import WOKEN_BYTES, BulkConnections
from shoal.client.http.connection import NotConnected
from shoal.client.http.wire import BrokenAnswer, UnknownLength

BODY = bytes(range(256)) * 4_000
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nshoal-next-offset: 7\r\n\r\n"


class Server:
    """Answers each request on a connection with the next of `answers`; None closes the connection."""

    def __init__(self) -> None:
        self.answers: list[list[bytes] | None] = []
        self.requests: list[bytes] = []
        self.connections = 0
        self.base = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                self.requests.append(await reader.readuntil(b"\r\n\r\n"))
                pieces = self.answers.pop(0)
                if pieces is None:
                    return
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0.002)
                if pieces[-1] == b"":
                    return
        except asyncio.IncompleteReadError:
            return
        finally:
            writer.close()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """A server on an ephemeral port."""
    server = Server()
    async with serving(server.serve) as server.base:
        yield server


@pytest.fixture
async def bulk() -> AsyncIterator[Callable[..., BulkConnections]]:
    """Makes clients that are closed in the end."""
    made: list[BulkConnections] = []

    def make(answer_bytes_max: int = 2 << 20) -> BulkConnections:
        made.append(BulkConnections(1.0, answer_bytes_max))
        return made[-1]

    yield make
    for one in made:
        one.close()
    await asyncio.sleep(0.01)


async def test_answers_arrive_whole_however_they_are_cut(
    server: Server, bulk: Callable[..., BulkConnections]
) -> None:
    """Head and body in one piece, byte by byte in the head, body in many; the connection is kept."""
    whole = HEAD % len(BODY) + BODY
    server.answers = [
        [whole],
        [whole[n : n + 1] for n in range(90)] + [whole[90:]],
        [whole[: len(HEAD)], whole[len(HEAD) : 300_000], whole[300_000:]],
        [b"HTTP/1.1 204 No Content\r\n\r\n"],
        [HEAD % 0],
    ]
    connections = bulk()
    heads: list[str] = []
    for _ in range(3):
        got = await connections.get(
            server.base, "/x", {"a": "b c"}, {"Accept": "y"}, lambda h: heads.append(h["Shoal-Next-Offset"])
        )
        assert (got.status, bytes(got.body)) == (200, BODY)
    assert (await connections.get(server.base, "/", {}, {})).status == 204
    assert bytes((await connections.get(server.base, "/", {}, {})).body) == b""
    assert heads == ["7", "7", "7"]
    assert server.connections == 1
    assert server.requests[0].startswith(b"GET /x?a=b+c HTTP/1.1\r\nHost: 127.0.0.1:")


@pytest.mark.parametrize(
    ("pieces", "error"),
    [
        ([HEAD % 100, b"x" * 50, b""], BrokenAnswer),
        ([b"HTTP/1.1 200 OK\r\nContent-Le", b""], BrokenAnswer),
        ([b"\x00\x01 gossip\r\n\r\n"], BrokenAnswer),
        ([b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n"], BrokenAnswer),
        ([b"x" * (65 << 10)], BrokenAnswer),
        ([HEAD % (3 << 20)], BrokenAnswer),
        ([HEAD % 1 + b"xy"], BrokenAnswer),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n"], UnknownLength),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"], UnknownLength),
    ],
    ids=[
        "cut body",
        "cut head",
        "no http",
        "no colon",
        "long head",
        "huge",
        "too much",
        "chunked",
        "negative",
    ],
)
async def test_what_is_no_whole_answer_is_refused(
    server: Server, bulk: Callable[..., BulkConnections], pieces: list[bytes], error: type[Exception]
) -> None:
    """One error each, and the connection is not used again."""
    server.answers = [pieces, [HEAD % 2, b"ok"]]
    connections = bulk()
    with pytest.raises(error):
        await connections.get(server.base, "/", {}, {})
    assert bytes((await connections.get(server.base, "/", {}, {})).body) == b"ok"
    assert server.connections == 2


async def test_an_idle_connection_that_was_closed_is_replaced(
    server: Server, bulk: Callable[..., BulkConnections]
) -> None:
    """The agent closed it while nobody asked, or just as somebody did: another is opened."""
    connections = bulk()
    server.answers = [[HEAD % 2, b"ok"], None, [HEAD % 2, b"ok"]]
    assert bytes((await connections.get(server.base, "/", {}, {})).body) == b"ok"
    assert bytes((await connections.get(server.base, "/", {}, {})).body) == b"ok"
    assert (len(server.requests), server.connections) == (3, 2)
    server.answers = [None]
    with pytest.raises(BrokenAnswer):
        await bulk().get(server.base, "/", {}, {})


async def test_nobody_there_is_refused(bulk: Callable[..., BulkConnections]) -> None:
    """In the operating system's words; nothing has happened."""
    with pytest.raises(NotConnected, match="Connect call failed"):
        await bulk().get("http://127.0.0.1:1", "/", {}, {})


@pytest.mark.parametrize("last", [1, 7, WOKEN_BYTES - 1, WOKEN_BYTES, WOKEN_BYTES + 1])
async def test_long_bodies_end_however_little_comes_last(
    server: Server, bulk: Callable[..., BulkConnections], last: int
) -> None:
    """The kernel wakes us for many bytes at once, but never waits for more than are to come: neither for the
    end of a long body that dribbles in, nor for the short answers behind it on the same connection."""
    body = BODY * 2
    for pieces in ([body[:-last], body[-last:]], [body[:700_000], body[700_000:-last], body[-last:]]):
        server.answers = [[HEAD % len(body), *pieces], [HEAD % 5, b"a", b"bcde"], [HEAD % len(body) + body]]
        connections = bulk(4 << 20)
        for wanted in (body, b"abcde", body):
            async with asyncio.timeout(40):
                answer = await connections.get(server.base, "/", {}, {})
            assert bytes(answer.body) == wanted
        connections.close()
    assert server.connections == 2


@pytest.mark.parametrize("come", [0, 1, 100, WOKEN_BYTES + 3])
async def test_a_long_body_that_breaks_off_is_noticed_at_once(
    server: Server, bulk: Callable[..., BulkConnections], come: int
) -> None:
    """Also when fewer bytes came than we would be woken for."""
    server.answers = [[HEAD % len(BODY) + BODY[:come], b""]]
    async with asyncio.timeout(40):
        with pytest.raises(BrokenAnswer):
            await bulk().get(server.base, "/", {}, {})
