"""Where the keys of JWTs come from: whatever an issuer does, an agent keeps its keys, in bounded time and
memory."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from jwt_issuer import CONFIGURED, key_set
from waiting import until

from shoal.agent.issuer import key_source
from shoal.agent.issuer.key_source import KeySource, KeySourceError, fetch, read_file
from shoal.agent.security.jwt import Verifier
from shoal.agent.security.jwt_keys import KEY_SET_BYTES_MAX, keys_from

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


class FakeIssuer:
    """A server that answers as a test says. `sent`: bytes of bodies that it could get rid of."""

    def __init__(self) -> None:
        self.document = key_set()
        self.answer: Answer = self.well
        self.asked = 0
        self.sent = 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            self.asked += 1
            await self.answer(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass  # the other side has heard enough
        finally:
            writer.close()

    async def well(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % len(self.document) + self.document)
        await writer.drain()

    async def hundred_mib(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Chunks, whose sum nobody has announced."""
        writer.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        for _number in range(1_600):
            writer.write(b"10000\r\n" + bytes(65_536) + b"\r\n")
            self.sent += 65_536
            await writer.drain()

    async def never(self, reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    def status(self, line: bytes, more: bytes = b"") -> Answer:
        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            body = self.document
            writer.write(b"HTTP/1.1 " + line + b"\r\n" + more)
            writer.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()

        return answer


@asynccontextmanager
async def issuing() -> AsyncIterator[FakeIssuer]:
    issuer = FakeIssuer()
    server = await asyncio.start_server(issuer.serve, "127.0.0.1", 0)
    issuer.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/keys"
    try:
        yield issuer
    finally:
        server.close()


@pytest.fixture
async def issuer() -> AsyncIterator[FakeIssuer]:
    async with issuing() as one:
        yield one


async def fault(url: str) -> str:
    with pytest.raises(KeySourceError) as caught:
        await fetch(url)
    return str(caught.value)


async def test_a_redirect_is_not_followed(issuer: FakeIssuer) -> None:
    """Whatever its body says, and wherever it leads."""
    async with issuing() as other:
        for line in (b"301 Moved", b"302 Found", b"307 Temporary", b"308 Permanent"):
            issuer.answer = issuer.status(line, b"Location: " + other.url.encode() + b"\r\n")
            assert "no redirect is followed" in await fault(issuer.url)
        assert other.asked == 0


async def test_an_answer_of_100_mib_is_cut_off(issuer: FakeIssuer) -> None:
    """After 64 KiB and what sockets hold; one that announces its length, too."""
    issuer.answer = issuer.hundred_mib
    assert f"over {KEY_SET_BYTES_MAX} bytes" in await fault(issuer.url)
    assert issuer.sent < 32 << 20
    issuer.answer = issuer.well
    issuer.document = bytes(1 << 20)
    assert f"over {KEY_SET_BYTES_MAX} bytes" in await fault(issuer.url)


async def test_an_issuer_that_never_answers_is_given_up(
    issuer: FakeIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within the bound of a fetch, whether it sends no head, or no end."""
    assert key_source.FETCH_S <= 5
    monkeypatch.setattr(key_source, "FETCH_S", 0.05)
    issuer.answer = issuer.never
    assert "no whole answer within" in await fault(issuer.url)

    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + b"Content-Length: 10\r\n\r\n{")
        await reader.read()

    issuer.answer = half
    assert "no whole answer within" in await fault(issuer.url)


async def test_other_answers_are_no_keys(issuer: FakeIssuer) -> None:
    """Another status, a compressed body, no HTTP, nobody there, no TLS."""
    for line in (b"404 Not Found", b"500 Oops", b"203 Changed"):
        issuer.answer = issuer.status(line)
        assert line[:3].decode() in await fault(issuer.url)
    issuer.answer = issuer.status(b"200 OK", b"Content-Encoding: gzip\r\n")
    assert "compressed" in await fault(issuer.url)
    issuer.answer = issuer.status(b"200 OK", b"X: " + b"x" * 100_000 + b"\r\n")
    assert await fault(issuer.url) == "the answer is not HTTP, or has too large a head"
    assert "\n" not in await fault(issuer.url.replace("http:", "https:"))
    assert await fault("http://127.0.0.1:1/keys")


def test_a_file_of_keys_is_a_regular_file(tmp_path: Path) -> None:
    """No directory, no pipe that nobody writes to, no device without an end; and it is read to its bound."""
    pipe, large = tmp_path / "pipe", tmp_path / "large"
    os.mkfifo(pipe)
    large.write_bytes(bytes(1 << 20))
    for path, words in ((tmp_path, "not a file"), (pipe, "not a file"), (tmp_path / "none", "No such file")):
        with pytest.raises(KeySourceError, match=words):
            read_file(str(path))
    with pytest.raises(KeySourceError, match="not a file"):
        read_file("/dev/zero")
    assert len(read_file(str(large))) == KEY_SET_BYTES_MAX + 1


async def test_keys_are_kept_through_the_outage_of_their_issuer(
    issuer: FakeIssuer, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing that it answers takes them away; each reason is told once. Other keys count when it is back."""
    source = KeySource(issuer.url, Verifier(CONFIGURED))
    await source.start()
    assert source.verifier.keys is None
    await source.look()
    assert source.verifier.keys == keys_from(key_set())
    version = source.verifier.version
    issuer.answer = issuer.status(b"503 Out")
    for _ in range(3):
        await source.look()
    issuer.answer, issuer.document = issuer.well, b'{"keys": []}'
    await source.look()
    assert (source.verifier.keys, source.verifier.version) == (keys_from(key_set()), version)
    refused = [r for r in caplog.records if getattr(r, "event", None) == "jwt-keys-refused"]
    assert ["503" in r.getMessage() for r in refused] == [True, False]
    assert "the former ones stay" in refused[0].getMessage()
    issuer.document = key_set("P-384")
    await source.look()
    assert source.verifier.keys == keys_from(key_set("P-384"))
    assert source.verifier.version == version + 1


async def test_unknown_keys_are_asked_for_once_a_minute(
    issuer: FakeIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many tokens name them. Before the first look has ended, each is told to ask again."""
    source = KeySource(issuer.url, Verifier(CONFIGURED))
    assert source.verifier.ask()
    running = asyncio.create_task(source.run())
    try:
        await until(lambda: source.verifier.keys is not None)
        assert [source.verifier.ask() for _ in range(1_000)] == [False] * 1_000
        monkeypatch.setattr(key_source, "ASKED_S", 0.0)
        issuer.document = key_set("P-384")
        assert source.verifier.ask()
        await until(lambda: source.verifier.keys == keys_from(key_set("P-384")))
        assert issuer.asked == 2
        issuer.document = key_set("P-521")
        source.ask()  # a signal waits for no minute
        await until(lambda: source.verifier.keys == keys_from(key_set("P-521")))
        assert not running.done()
    finally:
        running.cancel()


async def test_a_file_of_keys_is_looked_at(tmp_path: Path) -> None:
    """At the start one that cannot be used is an error. Later it changes nothing, and no token makes anybody
    look sooner."""
    path = tmp_path / "keys.json"
    source = KeySource(str(path), Verifier(CONFIGURED))
    for content, words in ((None, "No such file"), (b"{}", "no list of keys")):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(KeySourceError, match=f"jwt_keys .*keys.json: .*{words}"):
            await source.start()
    path.write_bytes(key_set())
    await source.start()
    path.write_bytes(b"half")
    await source.look()
    assert source.verifier.keys == keys_from(key_set())
    assert not source.verifier.ask()
    path.write_bytes(key_set("P-384"))
    await source.look()
    assert source.verifier.keys == keys_from(key_set("P-384"))
