"""Clients with TLS and a token: every way of theirs carries it, and a misfit is told once, in one line."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pathlib
import re
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from blocking_fixtures import cluster_on_thread
from certificates import Authority
from fake_cluster import FakeCluster
from fake_group_routes import FakeGroups
from fake_table_routes import FakeTables
from secure_cluster import TOKEN, Files, agents_certificate, authority, secure_cluster, server_context
from secure_cluster import files as files
from secure_cluster import tls as tls

from shoal import AsyncClient, Client, ClientConfig, ClientError, ShoalError, Unreachable
from shoal.client.http.bulk import BulkConnections
from shoal.client.http.failures import failure_of
from shoal.client.http.requests import Call, Cluster
from shoal.client.http.routes import UNTRUSTED
from shoal.client.produce.lone_record import ANSWER_SECONDS
from shoal.client.produce.producer import batch_of
from shoal.credentials import Credentials, Secret, credentials_of
from shoal.tls import client_context, tls_reason

WITHOUT = {"ca": "", "certificate": "", "key": "", "token": ""}


async def test_every_way_of_a_client_goes_over_tls_with_the_token(files: Files, tls: ssl.SSLContext) -> None:
    """Lone records, batches, reads, questions, and they share connections."""
    async with secure_cluster(tls, 3) as cluster:
        async with AsyncClient(cluster.urls[0], token=files.token, ca=files.ca) as client:
            await client.create_topic("t", partitions=2)
            async with client.producer("t") as producer:
                lone = [await producer.append(b"one %d" % number, partition=0) for number in range(20)]
                for number in range(3):
                    await producer.send(bytes([number]) * (1 << 20), partition=1)
                    await producer.flush()
            assert [place.offset for place in lone] == list(range(20))
            read = [
                value async for found in client.consume("t") for value in found.batch["value"].to_pylist()
            ]
            assert sorted(map(len, read)) == [5] * 10 + [6] * 10 + [1 << 20] * 3
            assert len(await client.topics()) == 1
        # 3 agents, each by aiohttp, by appends and by reads: a connection for each request would be 40.
        assert tls.session_stats()["accept_good"] <= 15


def test_a_blocking_client_sends_lone_records_over_tls_from_its_own_thread(
    files: Files, tls: ssl.SSLContext
) -> None:
    """Over a socket of its producer, kept for the next; one that nobody answers is given up."""

    def secured(cluster: FakeCluster) -> None:
        cluster.tls, cluster.token = tls, TOKEN

    with cluster_on_thread(1, secured) as cluster, Client(cluster.urls, token=TOKEN, ca=files.ca) as client:
        with client.producer("t") as producer:
            sent = 0
            while sent < 5 or not producer._inner.sockets._kept:  # unless the last was slow
                assert producer.append(b"x").offset == sent
                sent += 1
            ((kept, _),) = producer._inner.sockets._kept.values()
            assert isinstance(kept, ssl.SSLSocket)
            assert kept.gettimeout() == ANSWER_SECONDS
            producer._inner.sockets.close()
            assert producer.append(b"y").offset == sent  # the ordinary way goes on
        assert TOKEN not in repr((client, producer))
    (log,) = cluster.topics["t"].partitions
    assert log.values() == [b"x"] * sent + [b"y"]


async def test_a_certificate_of_its_own_lets_a_client_in(files: Files, tmp_path: pathlib.Path) -> None:
    """Without one a client hears what to give."""
    async with secure_cluster(server_context(tmp_path, clients=authority())) as cluster:
        given = {"token": TOKEN, "ca": files.ca}
        async with AsyncClient(cluster.urls, certificate=files.certificate, key=files.key, **given) as client:
            assert await client.ready()
        async with AsyncClient(cluster.urls, **given) as client:
            with pytest.raises(Unreachable, match="asks for clients' certificates: give certificate=FILE"):
                await client.topics()


@pytest.mark.parametrize(
    ("issued", "said"),
    [
        ({}, "authority that is not known here: give the authority's, ca=FILE"),
        ({"days": (-9, -2)}, "has expired: renew it there"),
        ({"days": (2, 9)}, "is not valid yet"),
        ({"hosts": ("other.example",)}, "is for other hosts .*127.0.0.1"),
    ],
)
async def test_a_certificate_that_does_not_fit_is_told_once(
    issued: dict[str, Any], said: str, files: Files, tmp_path: pathlib.Path
) -> None:
    """By questions and by appends alike, without a retry."""
    signer = authority() if issued else Authority("another")
    async with secure_cluster(server_context(tmp_path, signer.issue(**issued))) as cluster:
        async with AsyncClient(cluster.urls, token=files.token, ca=files.ca) as client:
            with pytest.raises(Unreachable, match=said) as raised:
                await client.producer("t").open()
            assert raised.value.definite
            assert "\n" not in str(raised.value)
            assert client.retries == 0
        context = client_context(Credentials(ca=files.ca))
        bulk = BulkConnections(5.0, 1 << 20, tls=lambda: context)
        with pytest.raises(ConnectionError, match=said):
            await bulk.get(cluster.urls[0], "/", {}, {})
        assert cluster.requests == []


async def test_plain_http_at_a_port_with_tls_and_the_reverse_are_told_apart(
    files: Files, tls: ssl.SSLContext
) -> None:
    """Each says which URL to write."""
    async with secure_cluster(None) as cluster:
        url = cluster.urls[0].replace("http:", "https:")
        async with AsyncClient(url, ca=files.ca) as client:
            with pytest.raises(Unreachable, match="write http:// in place of https://"):
                await client.topics()
            assert client.retries == 0

    async def alert(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"\x15\x03\x01\x00\x02\x02\x46")
        writer.close()

    server = await asyncio.start_server(alert, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with AsyncClient(url, ClientConfig(first_contact_ms=0)) as client:
            with pytest.raises(Unreachable, match="write https:// in place of http://"):
                await client.topics()


async def test_a_handshake_that_never_ends_is_given_up(files: Files) -> None:
    """By aiohttp and by connections of our own."""
    config = ClientConfig(connect_timeout_ms=200, first_contact_ms=0)
    with socket.create_server(("127.0.0.1", 0)) as listener:  # the kernel accepts, and nobody answers
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        async with AsyncClient(url, config, ca=files.ca) as client:
            with pytest.raises(Unreachable, match="cannot be reached"):
                await client.topics()
        with pytest.raises(ConnectionError, match=r"no connection within 0.2 s"):
            await BulkConnections(0.2, 1 << 20).get(url, "/", {}, {})


async def test_an_unknown_token_is_told_once(files: Files, tls: ssl.SSLContext) -> None:
    """By questions, by producers and by readers; nothing waits for better times."""
    async with secure_cluster(tls) as cluster, AsyncClient(cluster.urls, token=TOKEN, ca=files.ca) as client:
        await client.create_topic("t")
        producer = await client.producer("t").open()
        cluster.token = "another"
        cluster.requests.clear()
        with pytest.raises(ShoalError, match="the token is not known here") as raised:
            await client.topics()
        assert (raised.value.code, raised.value.definite, client.retries) == ("unauthenticated", True, 0)
        with pytest.raises(ShoalError, match="the token is not known here"):
            await client.fetch("t", 0, 0)
        await producer.send(b"x")
        with pytest.raises(Exception, match="the token is not known here"):
            await producer.flush()
        await producer.abort()
        assert len([asked for asked in cluster.requests if "/records" in asked]) == 2


async def to_the_end(poll: Callable[[], Awaitable[object]]) -> None:
    """An answer may have been on its way."""
    while await poll():
        pass


async def test_groups_tables_and_followers_carry_it_and_end_once_it_is_refused(
    files: Files, tls: ssl.SSLContext
) -> None:
    """A token that expires meanwhile is told to whoever waits, within the one request that is under way."""
    cluster = FakeCluster(1)
    cluster.tls, cluster.token = tls, TOKEN
    FakeGroups(cluster)
    tables = FakeTables(cluster)
    async with cluster, AsyncClient(cluster.urls, token=TOKEN, ca=files.ca) as client:
        cluster.create("t").partitions[0].append([batch_of([b"one"], None)], None)
        tables.create("users")
        table = client.table("users")
        await table.put("ada", "1")
        assert await table.get("ada") == b"1"
        follower = client.consumer("t", start="earliest", follow=True)
        subscription = await client.subscribe("t", group="g").open()
        assert (await subscription.poll()).value == b"one"  # type: ignore[union-attr]
        assert (await follower.poll()).batch.num_rows == 1  # type: ignore[union-attr]
        cluster.token = "another"
        await cluster.changed()
        cluster.topics["t"].partitions[0].append([batch_of([b"two"], None)], None)
        async with asyncio.timeout(60):
            with pytest.raises(ShoalError, match="the token is not known here"):
                await table.get("ada")
            for poll in (subscription.poll, follower.poll):
                with pytest.raises(ShoalError, match="the token is not known here"):
                    await to_the_end(poll)
        await subscription.close()


async def test_no_agent_without_tls_gets_the_token_of_agents_with_tls(
    files: Files, tls: ssl.SSLContext
) -> None:
    """Whatever routes name: the way there would show it to everybody."""
    async with secure_cluster(tls) as cluster:
        cluster.create("t")
        async with secure_cluster(None) as open_one:
            cluster.agents[0].url, url = open_one.urls[0], cluster.urls[0]
            async with AsyncClient(url, token=TOKEN, ca=files.ca) as client:
                with pytest.raises(
                    Unreachable, match="has no TLS, and the token goes only to agents with TLS"
                ):
                    await client.fetch("t", 0, 0)
            assert open_one.requests == []


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_takes_the_token_nowhere(status: int, files: Files) -> None:
    """Neither a question, an append nor a large read is asked again elsewhere."""
    asked: list[bytes] = []

    async def elsewhere(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.read(1 << 16))
        writer.close()

    async with await asyncio.start_server(elsewhere, "127.0.0.1", 0) as other:
        place = f"http://127.0.0.1:{other.sockets[0].getsockname()[1]}"

        async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            first = await reader.readuntil(b"\r\n\r\n")
            path = first.split(b" ")[1].decode()
            head = f"HTTP/1.1 {status} Moved\r\nLocation: {place}{path}\r\nContent-Length: 0\r\n"
            writer.write(f"{head}Connection: close\r\n\r\n".encode())
            led.append(first)
            writer.close()

        led: list[bytes] = []
        async with await asyncio.start_server(lead, "127.0.0.1", 0) as agent:
            url = f"http://127.0.0.1:{agent.sockets[0].getsockname()[1]}"
            cluster = Cluster([url], ClientConfig(), credentials_of({}, token=files.token))
            await cluster.open()
            try:
                for call in (
                    Call("GET", "/v1/topics"),
                    Call("GET", "/v1/topics/t/partitions/0/records", bulk=True),
                    Call("POST", "/v1/topics/t/partitions/0/records", body=b"x", append=True),
                ):
                    with pytest.raises((ShoalError, Unreachable)):
                        await cluster.at_agent(cluster.signed(call))
            finally:
                await cluster.close()
    assert len(led) >= 3
    assert all(f"Bearer {TOKEN}".encode() in one for one in led)
    assert asked == []


async def test_a_planted_token_shows_nowhere(
    files: Files, tls: ssl.SSLContext, caplog: pytest.LogCaptureFixture
) -> None:
    """In no repr, error, log line or statistics of a client, its producer and its reader."""
    seen: list[str] = []
    caplog.set_level(logging.DEBUG)
    async with secure_cluster(tls) as cluster:
        client = AsyncClient(cluster.urls, token=TOKEN, ca=files.ca)
        async with client:
            producer = await client.producer("t").open()
            await producer.append(b"x")
            cluster.token = "another"
            for attempt in (client.topics(), client.fetch("t", 0, 0), client.producer("u").open()):
                with pytest.raises(ShoalError) as raised:
                    await attempt
                seen += [str(raised.value), repr(raised.value), repr(raised.value.extra)]
            seen += map(
                repr, (client, producer, producer.statistics, client.table("t"), client.consumer("t"))
            )
            seen.append(repr(vars(client._cluster)))
            await producer.abort()
    seen += [repr(Secret(TOKEN)), str(Secret(TOKEN)), f"{Credentials(Secret(TOKEN))}", caplog.text]
    assert not [text for text in seen if TOKEN in text or TOKEN[15:40] in text]


async def test_a_large_answer_arrives_whole_and_in_place(files: Files, tls: ssl.SSLContext) -> None:
    """8 MiB and some, cut anywhere; three times over one connection."""
    body = os.urandom((8 << 20) + 4_321)
    made = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal made
        made += 1
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body))
            for begin in range(0, len(body), 777_777):
                writer.write(body[begin : begin + 777_777])
                await writer.drain()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls)
    context = client_context(Credentials(ca=files.ca))
    bulk = BulkConnections(5.0, 16 << 20, tls=lambda: context)
    async with server:
        url = f"https://localhost:{server.sockets[0].getsockname()[1]}"
        for _ in range(3):
            got = await asyncio.wait_for(bulk.get(url, "/", {}, {}), 60)
            assert got.body == body
        assert made == 1
        bulk.close()


@pytest.mark.parametrize(
    ("clients", "given", "said"),
    [
        (authority(), {}, "asks for a client's certificate: give certificate=FILE"),
        (Authority("another"), {"certificate", "key"}, r"refuses this client's certificate \(unknown ca\)"),
    ],
)
def test_a_refused_client_is_told_why_where_the_agent_says_so(
    clients: Authority, given: set[str], said: str, files: Files, tmp_path: pathlib.Path
) -> None:
    """With TLS 1.3 a client hears it only when it reads."""
    own = {name: getattr(files, name) for name in given}
    ways = [ssl.MemoryBIO() for _ in range(2)]
    client = client_context(Credentials(ca=files.ca, **own)).wrap_bio(*ways, server_hostname="localhost")
    server = server_context(tmp_path, clients=clients).wrap_bio(*reversed(ways), server_side=True)
    for step in (client.do_handshake, server.do_handshake, client.do_handshake, server.do_handshake):
        with contextlib.suppress(ssl.SSLError):  # it waits for the other, and the last refuses
            step()
    with pytest.raises(ssl.SSLError) as heard:
        client.read(1)
    assert re.search(said, str(tls_reason(heard.value)))
    error = aiohttp.ClientOSError(heard.value.errno, str(heard.value))
    error.__cause__ = heard.value  # as aiohttp raises it
    failure = failure_of(error, "https://a:1", may_pass=False)
    assert re.search(said, failure.detail)
    assert (failure.code, failure.definite) == (UNTRUSTED, True)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"token": "two words"}, "the token has a blank"),
        ({"token": "x" * 5_000}, "the token has 5000 characters"),
        ({"token": "Bearer x"}, "begins with `Bearer`: leave that out"),
        ({"token": "@"}, "a file's name is missing"),
        ({"token": "@/nowhere/at/all"}, "No such file or directory"),
        ({"token": "@/tmp"}, "Is a directory"),
        ({"ca": "/nowhere/at/all"}, "the authority's certificate cannot be read"),
        ({"key": "k"}, "a key without its certificate"),
    ],
)
def test_credentials_that_cannot_be_right_are_refused_before_anything_is_asked(
    given: dict[str, Any], said: str
) -> None:
    """One line each, without the token."""
    with pytest.raises(ClientError, match=said) as raised:
        AsyncClient("https://127.0.0.1:1", **given)
    assert "two words" not in str(raised.value)
    assert "xxxxxxxx" not in str(raised.value)


def test_files_that_everybody_may_read_or_that_do_not_fit_are_refused(
    files: Files, tmp_path: pathlib.Path
) -> None:
    """Tokens, keys, pairs and authorities."""
    os.chmod(files.token[1:], 0o644)
    with pytest.raises(ClientError, match=r"every user may read the token in .*: `chmod o= "):
        AsyncClient("https://127.0.0.1:1", token=files.token)
    os.chmod(files.key, 0o604)
    with pytest.raises(ClientError, match="every user may read the client's key"):
        AsyncClient("https://127.0.0.1:1", certificate=files.certificate, key=files.key)
    other = tmp_path / "other.key"
    other.touch(mode=0o600)
    other.write_bytes(agents_certificate().key)
    with pytest.raises(ClientError, match="the key is not the certificate's"):
        AsyncClient("https://127.0.0.1:1", certificate=files.certificate, key=str(other))
    (tmp_path / "empty").touch()
    with pytest.raises(ClientError, match="has no certificate in PEM"):
        AsyncClient("https://127.0.0.1:1", ca=str(tmp_path / "empty"))


async def test_a_request_with_a_token_tells_where_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One without does not."""
    asked: list[str] = []
    monkeypatch.setattr("shoal.client.http.requests.tell_in_the_open", asked.append)
    async with FakeCluster(1) as cluster:
        for token in (TOKEN, ""):
            async with AsyncClient(cluster.urls, token=token) as client:
                await client.topics()
                assert asked == list(cluster.urls)[:1]


def test_the_environment_is_asked_for_what_is_not_given(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty text asks for none."""
    monkeypatch.setenv("SHOAL_TOKEN", files.token)
    monkeypatch.setenv("SHOAL_CA", files.ca)
    assert AsyncClient()._cluster.credentials == Credentials(Secret(TOKEN), files.ca)
    assert AsyncClient(token="other")._cluster.credentials.token == Secret("other")
    assert AsyncClient(**WITHOUT)._cluster.credentials == Credentials()
