"""Appends over connections of our own: whatever comes back, an answer is whole or refused, and who cannot be
reached has received nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from listening import serving

from shoal.client.http.append import PostConnections
from shoal.client.http.connection import NotConnected
from shoal.client.http.wire import BrokenAnswer, UnknownLength, request_head, whole_answer

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\ncontent-length: 5\r\n\r\nhello"
LARGE = bytes(range(256)) * 40_000


class Server:
    """Answers each whole request with the next of `answers`; None closes the connection instead."""

    def __init__(self) -> None:
        self.answers: list[bytes | None] = []
        self.bodies: list[bytes] = []
        self.connections = 0
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.base = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await self.go_on.wait()
                length = int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0])
                self.bodies.append(await reader.readexactly(length))
                answer = self.answers.pop(0)
                if answer is None:
                    return
                for cut in (answer[:20], answer[20:]):
                    writer.write(cut)
                    await writer.drain()
                    await asyncio.sleep(0)
        except (asyncio.IncompleteReadError, ConnectionError):
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
async def posts() -> AsyncIterator[PostConnections]:
    """Connections that are closed in the end."""
    posts = PostConnections(5.0, 4)
    yield posts
    posts.close()
    await asyncio.sleep(0.01)


def head(base: str, body: bytes) -> bytes:
    return request_head("POST", base, "/records", {"a": "b c"}, {"Content-Length": str(len(body))})


async def test_requests_share_a_connection(server: Server, posts: PostConnections) -> None:
    """One behind the other; the answer is whole however it was cut."""
    server.answers = [ANSWER, ANSWER]
    for body in (b"first", LARGE):
        answer = await posts.post(server.base, head(server.base, body), body)
        assert (answer.status, answer.body) == (200, b"hello")
        assert answer.headers() == {"Content-Type": "text/plain", "Content-Length": "5"}
    assert server.bodies == [b"first", LARGE]
    assert server.connections == 1


async def test_it_is_told_when_all_of_a_body_has_left(server: Server, posts: PostConnections) -> None:
    """Not before the peer reads, where the kernel does not take all of it."""
    server.answers = [ANSWER]
    server.go_on.clear()
    body = LARGE * 4
    written: list[bool] = []
    asked = asyncio.ensure_future(
        posts.post(server.base, head(server.base, body), body, lambda: written.append(server.go_on.is_set()))
    )
    while not server.connections:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.05)
    assert not written
    server.go_on.set()
    assert (await asked).status == 200
    assert written == [True]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (None, BrokenAnswer),
        (b"SSH-2.0-OpenSSH_9.2p1 and more of it\r\n\r\n", BrokenAnswer),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", UnknownLength),
        (ANSWER + b"more", BrokenAnswer),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\n\r\n", BrokenAnswer),
    ],
    ids=["closed", "no-http", "chunked", "too-much", "too-large"],
)
async def test_what_no_agent_sends_is_refused(
    server: Server, posts: PostConnections, answer: bytes | None, error: type[Exception]
) -> None:
    """And the next request has a connection of its own."""
    server.answers = [answer, ANSWER]
    with pytest.raises(error):
        await posts.post(server.base, head(server.base, b"x"), b"x")
    assert (await posts.post(server.base, head(server.base, b"y"), b"y")).body == b"hello"
    assert server.connections == 2


async def test_nobody_there(server: Server, posts: PostConnections) -> None:
    """What was not connected has not happened: told apart from what broke off."""
    async with serving(server.serve) as base:
        pass
    for wrong in (base, "http://no-such-host.invalid:1"):
        with pytest.raises(NotConnected):
            await posts.post(wrong, head(wrong, b"x"), b"x")


async def test_whoever_gives_up_leaves_no_half_answer_behind(server: Server, posts: PostConnections) -> None:
    """A cancelled request's connection is not used again."""
    server.answers = [ANSWER, ANSWER]
    server.go_on.clear()
    asked = asyncio.ensure_future(posts.post(server.base, head(server.base, b"x"), b"x"))
    while not server.connections:
        await asyncio.sleep(0.001)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    server.go_on.set()
    assert (await posts.post(server.base, head(server.base, b"y"), b"y")).body == b"hello"
    assert server.connections == 2


async def test_connections_are_bounded(server: Server, posts: PostConnections) -> None:
    """Whoever comes when all are in use waits for one."""
    server.answers = [ANSWER] * 12
    answers = await asyncio.gather(
        *(posts.post(server.base, head(server.base, b"x"), b"x") for _ in range(12))
    )
    assert [answer.status for answer in answers] == [200] * 12
    assert server.connections <= 4


@given(st.binary(max_size=80), st.sampled_from([b"", b"HTTP/1.1 ", b"HTTP/1.1 200 OK\r\n", ANSWER[:-3]]))
def test_any_bytes_are_an_answer_or_refused(data: bytes, start: bytes) -> None:
    """Nothing else is raised, and an incomplete answer is not taken for a whole one."""
    try:
        answer = whole_answer(start + data, 100)
    except (BrokenAnswer, UnknownLength):
        return
    if answer is not None:
        assert (start + data).endswith(answer.body)
