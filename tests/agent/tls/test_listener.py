"""Listening by TLS: requests as in the open, and refusals in bounded time for whatever else comes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pathlib
import socket
import ssl
import sys
import time
import warnings
from dataclasses import replace
from typing import Any

import pytest
from certificates import CLUSTER, write_files
from fake_broker import FakeCluster
from http_fixtures import ARROW, PATH, arrow_batch, arrow_stream, one_agent
from tls_fixtures import OTHERS, OURS, client_context, tls_agent
from waiting import until

from shoal.agent.tls import listener as listening
from shoal.agent.tls import newcomer
from shoal.agent.tls.contexts import make_contexts
from shoal.agent.tls.refusals import RefusalKind, Refusals
from shoal.agent.tls_settings import TlsSettings
from shoal.tls import CERTIFIED, HTTP

PATIENCE_S = 40.0
CERTIFICATE_REQUEST = 13  # RFC 8446, section 4


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


@pytest.mark.parametrize(("clients", "is_asked"), [("none", False), ("optional", True), ("required", True)])
async def test_who_is_asked_for_a_certificate(
    settings: TlsSettings, tmp_path: pathlib.Path, clients: str, *, is_asked: bool
) -> None:
    """A browser that is asked shows a choice of certificates to its user. With `none` it is not asked, and a
    certificate is nobody's but where it is an agent's: agents say that they have one."""
    link = {"Connection": "Upgrade", "Upgrade": "shoal-peer/1"}
    chosen = replace(settings, tls_clients=clients)
    anna = OURS.client("anna")
    browser = client_context(tmp_path, anna if clients == "required" else None)
    browser.set_alpn_protocols(["h2", "http/1.1"])
    asked: list[Any] = []
    vars(ssl.SSLContext)["_msg_callback"].fset(
        browser, lambda *values: asked.extend(one for one in values if one == CERTIFICATE_REQUEST)
    )
    async with tls_agent(chosen, browser) as agent:
        assert (await agent.get("/v1/members")).status == 200
        assert bool(asked) == is_asked
    for issued, status in ((OURS.agent(), 101), (anna, 403)):
        other = client_context(tmp_path, issued)
        other.set_alpn_protocols([CERTIFIED, HTTP])
        async with tls_agent(chosen, other) as agent:
            assert (await agent.request("GET", "/v1/peer", headers=link)).status == status
            assert len(agent.broker.peer_terms) == (status == 101)


async def test_plain_http_on_a_port_of_tls(settings: TlsSettings, plain: ssl.SSLContext) -> None:
    """A problem document says so; bytes of no known kind are answered with nothing."""
    async with tls_agent(settings, plain) as agent:
        for body in (b"", b"x" * 1_000_000):
            head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            answer = await agent.raw(head + body)
            assert answer.startswith(b"HTTP/1.1 400 ")
            assert b"application/problem+json" in answer
            assert b"this port speaks TLS: ask https:// instead of http://" in answer
            assert b"Strict-Transport-Security" not in answer  # RFC 6797, 7.2
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


@pytest.mark.parametrize("minimum", ["1.2", "1.3"])
@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2])
async def test_old_versions(
    settings: TlsSettings, plain: ssl.SSLContext, minimum: str, newest: ssl.TLSVersion
) -> None:
    """A client that cannot speak 1.3, or 1.2 by setting, is told by an alert."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of TLS 1.0 and 1.1
        plain.minimum_version = ssl.TLSVersion.TLSv1
        plain.maximum_version = newest
    plain.set_ciphers("ALL:@SECLEVEL=0")
    async with tls_agent(replace(settings, tls_minimum=minimum), plain) as agent:
        if minimum == "1.2" and newest is ssl.TLSVersion.TLSv1_2:
            assert (await agent.get("/v1/members")).status == 200
            return
        with pytest.raises(ssl.SSLError, match="protocol version"):
            await asyncio.open_connection("127.0.0.1", agent.port, ssl=plain)
        assert agent.runner.connections == 0


async def test_a_handshake_that_stops_half_way(
    settings: TlsSettings, plain: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends in time, with the first byte or without."""
    monkeypatch.setattr(newcomer, "HANDSHAKE_S", 0.1)
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


async def test_who_takes_all_places_costs_nobody_else_a_handshake(
    settings: TlsSettings, plain: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longest of the address that has most of them makes way, and not the one that waits longest."""
    monkeypatch.setattr(listening, "HANDSHAKES_MAX", 6)
    monkeypatch.setattr(listening, "GRACE_S", 0.05)
    refusals = Refusals()
    async with tls_agent(settings, plain, refusals=refusals) as agent:
        slow = socket.create_connection(("127.0.0.1", agent.port), source_address=("127.0.0.9", 0))
        slow.setblocking(False)
        opened = [await asyncio.open_connection("127.0.0.1", agent.port) for _ in range(60)]
        assert (await agent.get("/v1/members")).status == 200
        assert refusals.counts[RefusalKind.CROWDED] > 50
        begun = asyncio.open_connection(sock=slow, ssl=plain, server_hostname="127.0.0.1")
        _, writer = await asyncio.wait_for(begun, PATIENCE_S)
        writer.close()
        for _, other in opened:
            other.close()


async def test_who_waits_for_places_keeps_nobody_else_waiting(
    settings: TlsSettings, plain: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though no handshake ever makes way: some places are left to others, and the kernel's queue is empty. Of
    those that wait too many are sent away, the first ones first."""
    monkeypatch.setattr(listening, "HANDSHAKES_MAX", 16)
    monkeypatch.setattr(listening, "GRACE_S", 3_600.0)
    monkeypatch.setattr(listening, "WAITING_S", 3_600.0)
    monkeypatch.setattr(newcomer, "HANDSHAKE_S", 3_600.0)
    refusals = Refusals()
    async with tls_agent(settings, plain, refusals=refusals, waiting_max=8) as agent:
        flood = []
        for _ in range(60):
            one = socket.create_connection(("127.0.0.1", agent.port), source_address=("127.0.0.9", 0))
            one.setblocking(False)
            flood.append(one)
            await asyncio.sleep(0)
        for _ in range(3):
            assert (await agent.get("/v1/members", Connection="close")).status == 200
        assert (agent.door.opening, agent.door.waiting) == (14, 8)
        assert refusals.counts[RefusalKind.CROWDED] == 60 - 14 - 8
        for place, one in enumerate(flood):
            if 14 <= place < 60 - 8:
                with contextlib.suppress(ConnectionResetError):
                    assert one.recv(1) == b""
            else:
                with pytest.raises(BlockingIOError):
                    one.recv(1)
        for one in flood[:14]:
            one.close()
        while agent.door.waiting:
            await asyncio.sleep(0.001)
    for one in flood:
        one.close()


async def test_nobody_waits_for_a_place_for_ever(
    settings: TlsSettings, plain: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where all handshakes go on."""
    monkeypatch.setattr(listening, "HANDSHAKES_MAX", 2)
    monkeypatch.setattr(listening, "GRACE_S", 0.2)
    monkeypatch.setattr(listening, "WAITING_S", 0.1)
    async with tls_agent(settings, plain) as agent:
        opened = [await asyncio.open_connection("127.0.0.1", agent.port) for _ in range(5)]
        for reader, writer in opened[2:]:
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
            writer.close()
        assert agent.door.waiting == 0
        for _, writer in opened:
            writer.close()


async def test_the_kernels_queue(settings: TlsSettings, plain: ssl.SSLContext) -> None:
    """Its length is that of the port, by TLS and in the open: listening sets it anew."""
    most = int(pathlib.Path("/proc/sys/net/core/somaxconn").read_text())
    tcp_info_backlog = slice(28, 32)  # tcpi_sacked of a socket that listens (linux/tcp.h)
    in_the_open = socket.create_server(("127.0.0.1", 0))
    async with tls_agent(settings, plain) as agent:
        await agent.runner.listen(in_the_open)
        for listener in (agent.listener, in_the_open):
            info = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 32)
            assert int.from_bytes(info[tcp_info_backlog], sys.byteorder) == min(1_024, most)


def test_waiting_places_leave_descriptors_to_others() -> None:
    """A sixteenth of them, and no more than are of use."""
    assert [listening.waiting_places(count) for count in (1, 1_024, 20_000, 2**40)] == [1, 64, 1_024, 1_024]


def test_networks() -> None:
    """Whoever has one address of an IPv6 network has all of them."""
    assert listening.network_of("10.0.0.1") == "10.0.0.1"
    assert listening.network_of("2001:db8::1") == listening.network_of("2001:db8::ffff:1")
    assert listening.network_of("2001:db8::1") != listening.network_of("2001:db8:0:1::1")
    assert listening.network_of("fe80::1%eth0") == listening.network_of("fe80::2%eth0")


def test_a_socket_of_both_families_tells_ipv4_addresses_apart() -> None:
    """They do not count as one network because of the form in which it shows them."""
    assert listening.network_of("::ffff:10.0.0.1") == listening.network_of("10.0.0.1")
    assert listening.network_of("::ffff:10.0.0.1") != listening.network_of("::ffff:10.0.0.2")


async def test_connections_of_a_withdrawn_authority_end(
    settings: TlsSettings, plain: ssl.SSLContext, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that only its word has let in: an agent's and a client's, in the middle of a request or between
    two, also one whose certificate only OpenSSL reads. Others go on, and one that was taken over as a link is
    left to its owner."""
    monkeypatch.setattr(listening, "WITHDRAWN_S", 0.01)
    both = write_files(tmp_path / "both", OURS.agent(), OURS.pem + OTHERS.pem)
    holders = {
        "agent": OTHERS.agent(),
        "client": OTHERS.client("ann"),
        "odd": OTHERS.of_version(2, OTHERS.client("eve")),
        "ours": OURS.client("bob"),
        "link": OTHERS.agent(),
    }
    async with tls_agent(both, plain) as agent:
        opened = {None: await asyncio.open_connection("127.0.0.1", agent.port, ssl=plain)}
        for name, issued in holders.items():
            context = client_context(tmp_path / name, issued)
            opened[name] = await asyncio.open_connection("127.0.0.1", agent.port, ssl=context)
        request = f"GET /v1/agent HTTP/1.1\r\nHost: 127.0.0.1:{agent.port}\r\n\r\n".encode()
        for reader, writer in opened.values():
            writer.write(request)
            assert (await asyncio.wait_for(reader.readuntil(b"\r\n"), PATIENCE_S)).startswith(b"HTTP/1.1 200")
        opened["agent"][1].write(request[:20])
        port = opened["link"][1].get_extra_info("sockname")[1]
        (link,) = (one for one in agent.fronts if one.transport.get_extra_info("peername")[1] == port)
        link.transport.set_protocol(asyncio.Protocol())
        agent.exchange(make_contexts(settings, CLUSTER))
        for name in ("agent", "client", "odd"):
            reader, _ = opened[name]
            await asyncio.wait_for(reader.read(), PATIENCE_S)
            assert reader.at_eof()
        for name in (None, "ours"):
            reader, writer = opened[name]
            writer.write(request)
            await asyncio.wait_for(reader.readuntil(b"HTTP/1.1 200"), PATIENCE_S)
        assert not link.transport.is_closing()
        link.transport.set_protocol(link)
        for _, writer in opened.values():
            writer.close()


async def test_refusals_are_counted_and_told(
    settings: TlsSettings, tmp_path: pathlib.Path, plain: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By their kind; of a kind and an address once."""
    monkeypatch.setattr(newcomer, "HANDSHAKE_S", 0.2)
    told: list[tuple[RefusalKind, str]] = []
    refusals = Refusals(tell=lambda kind, address, _: told.append((kind, address)))
    strict = replace(settings, tls_clients="required")
    clients = {
        RefusalKind.CERTIFICATE_EXPIRED: OURS.issue("shoal://fish/client/a", days=(-3, -1)),
        RefusalKind.CERTIFICATE_NOT_YET_VALID: OURS.issue("shoal://fish/client/a", days=(1, 2)),
        RefusalKind.CERTIFICATE_UNKNOWN_AUTHORITY: OTHERS.client("a"),
        RefusalKind.CERTIFICATE_MISNAMED: OURS.issue("shoal://fish/client/a\0"),
        RefusalKind.CERTIFICATE_MISSING: None,
    }
    async with tls_agent(strict, plain, refusals=refusals) as agent:
        for _ in range(2):
            for issued in clients.values():
                context = client_context(tmp_path, issued)
                reader, writer = await asyncio.open_connection("127.0.0.1", agent.port, ssl=context)
                with contextlib.suppress(ssl.SSLError, ConnectionResetError):
                    await asyncio.wait_for(reader.read(), PATIENCE_S)
                writer.close()
            assert b" 400 " in await agent.raw(b"GET / HTTP/1.1\r\n\r\n")
            old = client_context(tmp_path)
            old.maximum_version = ssl.TLSVersion.TLSv1_2
            with pytest.raises(ssl.SSLError):
                await asyncio.open_connection("127.0.0.1", agent.port, ssl=old)
            with contextlib.suppress(ConnectionResetError):
                assert await agent.raw(b"\x16\x03") == b""
    expected = {*clients, RefusalKind.NO_TLS, RefusalKind.HANDSHAKE, RefusalKind.TIMEOUT}
    assert {kind for kind, count in refusals.counts.items() if count == 2} == expected
    assert sum(refusals.counts.values()) == 2 * len(expected)
    assert sorted(told) == sorted((kind, "127.0.0.1") for kind in expected)


@pytest.mark.parametrize("jump_s", [-3_600, 3_600])
async def test_a_clock_that_jumps_an_hour(
    settings: TlsSettings, plain: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch, jump_s: int
) -> None:
    """Neither a connection that is open nor a handshake ends for it, and refusals are told again."""
    told: list[RefusalKind] = []
    refusals = Refusals(tell=lambda kind, _, __: told.append(kind))
    async with tls_agent(settings, plain, refusals=refusals) as agent:
        _, writer = begun = await asyncio.open_connection("127.0.0.1", agent.port)
        assert (await agent.get("/v1/members")).status == 200
        await agent.raw(b"GET / HTTP/1.1\r\n\r\n")
        real_time = time.time
        monkeypatch.setattr(listening.time, "time", lambda: real_time() + jump_s)
        assert (await agent.get("/v1/members")).status == 200
        for _ in range(2):
            await agent.raw(b"GET / HTTP/1.1\r\n\r\n")
        _, late = await asyncio.open_connection("127.0.0.1", agent.port, ssl=plain)
        assert (await agent.get("/v1/members")).status == 200
        # The one that has said nothing has its five seconds still; the others have left by now, or leave.
        await until(lambda: agent.door.opening <= 1)
        assert agent.door.opening == 1
        for one in (writer, late):
            one.close()
        assert begun[0].at_eof() is False
    assert told == [RefusalKind.NO_TLS] * 2


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
