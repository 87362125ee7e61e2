"""Listening by TLS: requests as in the open, and refusals in bounded time for whatever else comes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pathlib
import socket
import ssl
from dataclasses import replace
from typing import Any

import pytest
from certificates import write_files
from fake_broker import FakeCluster
from http_fixtures import ARROW, PATH, arrow_batch, arrow_stream, one_agent
from tls_fixtures import OTHERS, OURS, client_context, tls_agent

from shoal.agent.tls import listener as listening
from shoal.agent.tls_settings import TlsSettings

PATIENCE_S = 40.0


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> TlsSettings:
    """The agent's files."""
    return write_files(tmp_path_factory.mktemp("tls"), OURS.agent(), OURS.pem)


@pytest.fixture
def plain(tmp_path: pathlib.Path) -> ssl.SSLContext:
    """A client without a certificate."""
    return client_context(tmp_path)


async def test_requests_are_answered_as_in_the_open(settings: TlsSettings, plain: ssl.SSLContext) -> None:
    """Small and large ones, by the fast way and by aiohttp's, and what is stored is what was sent."""
    cluster = FakeCluster()
    async with tls_agent(settings, plain, cluster.add("one")) as agent:
        for size in (5, 20_000, 700_000):
            value = bytes(number * 7 % 251 for number in range(size))
            for _ in range(3):
                answer = await agent.post(PATH, value, media="application/octet-stream")
                assert answer.status == 200, answer.body
            assert cluster.values("t")[-3:] == [value] * 3
            batch = arrow_batch([value] * 3)
            for _ in range(3):
                assert (await agent.post(PATH, arrow_stream(batch), media=ARROW)).status == 200
            assert cluster.values("t")[-9:] == [value] * 9
        answer = await agent.get(f"{PATH}?offset=0", Accept=ARROW)
        assert answer.status == 200
        assert len(answer.body) > 900_000
        assert (await agent.get("/v1/members")).status == 200


async def test_pipelined_requests(settings: TlsSettings, plain: ssl.SSLContext) -> None:
    """Several in one record of TLS, and one in many records, are answered in order."""
    async with tls_agent(settings, plain) as agent:
        reader, writer = await asyncio.open_connection("127.0.0.1", agent.port, ssl=plain)
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n"
        request = (head.replace("Host: x", f"Host: 127.0.0.1:{agent.port}") + "abc").encode()
        writer.write(request * 20)
        for byte in request:
            writer.write(bytes([byte]))
        answers = b""
        while answers.count(b"HTTP/1.1 200") < 21 or not answers.endswith(b"}\n"):
            answers += await asyncio.wait_for(reader.read(65_536), PATIENCE_S)
        assert answers.count(b"HTTP/1.1 ") == 21
        writer.close()
        await writer.wait_closed()


async def test_only_agents_may_do_what_agents_do(settings: TlsSettings, tmp_path: pathlib.Path) -> None:
    """The link and the header of forwards, from a client without and with a certificate, and from an
    agent."""
    link = {"Connection": "Upgrade", "Upgrade": "shoal-peer/1"}
    for issued, is_agent in ((None, False), (OURS.client("anna"), False), (OURS.agent(), True)):
        async with tls_agent(settings, client_context(tmp_path, issued)) as agent:
            assert (await agent.post(PATH, b"a")).status == 200
            forwarded = await agent.post(PATH, b"a", Shoal_Forwarded_By="f" * 32)
            linked = await agent.request("GET", "/v1/peer", headers=link)
            if is_agent:
                assert (forwarded.status, linked.status) == (200, 101)
            else:
                assert "agents alone" in forwarded.problem("forbidden")["detail"]
                assert "agents alone" in linked.problem("forbidden")["detail"]
                assert agent.broker.peer_terms == []


async def test_a_certificate_that_is_nobodys(settings: TlsSettings, tmp_path: pathlib.Path) -> None:
    """It verifies, so the handshake ends well; its connection gets one answer, in HTTP."""
    for issued in (
        OURS.issue("shoal://fish/client/a", "shoal://fish/client/b"),
        OURS.issue("shoal://fish/client/a\0"),
        OURS.issue("shoal://herring/client/a"),
    ):
        async with tls_agent(settings, client_context(tmp_path, issued)) as agent:
            document = (await agent.get("/v1/members")).problem("unauthenticated")
            assert "the certificate of this connection has" in document["detail"]
            assert agent.runner.connections == 0


async def test_a_certificate_that_does_not_verify(
    settings: TlsSettings, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The client is told why in TLS' words, and the log in ours."""
    refused = {
        "certificate expired": OURS.issue("shoal://fish/client/a", days=(-3, -1)),
        "bad certificate": OURS.issue("shoal://fish/client/a", days=(1, 2)),
        "unknown ca": OTHERS.client("a"),
        "alert": OURS.issue("shoal://fish/client/a", by_itself=True),
    }
    caplog.set_level(logging.INFO)
    for says, issued in refused.items():
        async with tls_agent(settings, client_context(tmp_path, issued)) as agent:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", agent.port, ssl=client_context(tmp_path, issued)
            )
            with pytest.raises(ssl.SSLError, match=says):
                await asyncio.wait_for(reader.read(), PATIENCE_S)
            writer.close()
            assert agent.runner.connections == 0
    text = caplog.text
    for says in ("has expired", "is not valid yet", "is of another authority", "is signed by itself"):
        assert f"refused a connection from 127.0.0.1: its certificate {says}" in text


async def test_clients_must_have_a_certificate_where_that_is_required(
    settings: TlsSettings, tmp_path: pathlib.Path
) -> None:
    """Without one a client is told so by TLS."""
    strict = replace(settings, tls_clients="required")
    async with tls_agent(strict, client_context(tmp_path, OURS.client("anna"))) as agent:
        assert (await agent.get("/v1/members")).status == 200
        reader, writer = await asyncio.open_connection("127.0.0.1", agent.port, ssl=client_context(tmp_path))
        with pytest.raises(ssl.SSLError, match="certificate required"):
            await asyncio.wait_for(reader.read(), PATIENCE_S)
        writer.close()


async def test_plain_http_on_a_port_of_tls(settings: TlsSettings, plain: ssl.SSLContext) -> None:
    """A problem document says so; bytes of no known kind are answered with nothing."""
    async with tls_agent(settings, plain) as agent:
        for body in (b"", b"x" * 1_000_000):
            head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            answer = await agent.raw(head + body)
            assert answer.startswith(b"HTTP/1.1 400 ")
            assert b"application/problem+json" in answer
            assert b"this port speaks TLS: ask https:// instead of http://" in answer
        for nonsense in (b"\x00" * 100, b"\x80\x2e\x01\x00\x02", b"hello"):
            with contextlib.suppress(ConnectionResetError):
                assert await agent.raw(nonsense) == b""
        assert agent.broker.cluster.stored() == 0
        assert (await agent.get("/v1/members")).status == 200
        assert agent.door.opening == 0


async def test_tls_on_a_port_in_the_open(plain: ssl.SSLContext) -> None:
    """The answer is HTTP, which a client of TLS calls a wrong version."""
    async with one_agent() as agent:
        with pytest.raises(ssl.SSLError, match="WRONG_VERSION_NUMBER"):
            await asyncio.open_connection("127.0.0.1", agent.port, ssl=plain)
        answer = await agent.raw(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200))
        assert b"this port speaks no TLS: ask http:// instead of https://" in answer


async def test_old_versions(settings: TlsSettings, plain: ssl.SSLContext) -> None:
    """A client that cannot speak 1.3 is told by an alert."""
    plain.maximum_version = ssl.TLSVersion.TLSv1_2
    async with tls_agent(settings, plain) as agent:
        with pytest.raises(ssl.SSLError, match="protocol version"):
            await asyncio.open_connection("127.0.0.1", agent.port, ssl=plain)


async def test_a_handshake_that_stops_half_way(
    settings: TlsSettings, plain: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends in time, with the first byte or without."""
    monkeypatch.setattr(listening, "HANDSHAKE_S", 0.1)
    async with tls_agent(settings, plain) as agent:
        for begun in (b"", b"\x16", b"\x16\x03\x01\x02\x00\x01\x00"):
            reader, writer = await asyncio.open_connection("127.0.0.1", agent.port)
            writer.write(begun)
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
            writer.close()
        assert agent.door.opening == 0


async def test_half_open_handshakes_are_bounded(
    settings: TlsSettings, plain: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that do not go on make way for those that do."""
    monkeypatch.setattr(listening, "HANDSHAKES_MAX", 4)
    monkeypatch.setattr(listening, "GRACE_S", 0.05)
    async with tls_agent(settings, plain) as agent:
        most = 0

        async def idle() -> Any:
            return await asyncio.open_connection("127.0.0.1", agent.port)

        opened = [await idle() for _ in range(40)]
        asked = asyncio.create_task(agent.get("/v1/members"))
        while not asked.done():
            most = max(most, agent.door.opening)
            await asyncio.sleep(0.01)
        assert (await asked).status == 200
        assert most == 4
        for _, writer in opened:
            writer.close()


async def test_stopping_cuts_handshakes(settings: TlsSettings, plain: ssl.SSLContext) -> None:
    """A connection that has just been accepted, too, and nobody is accepted afterwards."""
    async with tls_agent(settings, plain) as agent:
        sockets = [socket.create_connection(("127.0.0.1", agent.port)) for _ in range(3)]
        while agent.door.opening < 3:
            await asyncio.sleep(0)
        port = agent.port
    for one in sockets:
        one.settimeout(PATIENCE_S)
        with contextlib.suppress(ConnectionResetError):
            assert one.recv(1) == b""
        one.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
