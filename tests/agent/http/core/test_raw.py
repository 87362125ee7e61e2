"""HTTP as bytes on a socket: what well-behaved clients never send, and what curl does."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from email.utils import parsedate_to_datetime

import pytest
from http_fixtures import Agent, one_agent
from odd_requests import POST, SMUGGLED

from shoal.agent.http.admin.members import PEER_TERMS
from shoal.agent.http.admission.limits import HttpLimits
from shoal.agent.peers.terms import HEADER, LinkTerms
from shoal.agent.security.tokens import make_token


@pytest.fixture
async def agent() -> AsyncIterator[Agent]:
    limits = HttpLimits(idle_ms=400, body_stall_ms=200, linger_ms=100, connections=8)
    async with one_agent(limits) as running_agent:
        running_agent.broker.cluster.create("t")
        yield running_agent


@pytest.fixture
async def patient_agent() -> AsyncIterator[Agent]:
    """Nobody is cut off because this machine is slow."""
    async with one_agent(HttpLimits(idle_ms=60_000, connections=8)) as running_agent:
        yield running_agent


def problem_in(answer: bytes) -> dict[str, object]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/problem+json" in head.lower(), answer
    document = json.loads(body)
    assert isinstance(document, dict)
    assert str(document["status"]).encode() in head.split(b"\r\n")[0]
    return document


def headers_in(answer: bytes) -> dict[str, str]:
    """Status line under "", header names in lower case; a date in its form, not its second."""
    first, *lines = answer.partition(b"\r\n\r\n")[0].decode().split("\r\n")
    pairs = [line.split(": ", 1) for line in lines]
    headers = {name.lower(): value for name, value in pairs}
    assert len(headers) == len(pairs), answer
    assert parsedate_to_datetime(headers.pop("date")).tzinfo is not None
    return {"": first, **headers}


async def test_the_short_answer_is_no_other_than_aiohttps(agent: Agent) -> None:
    """An append's answer on a connection that stays open has the head that aiohttp gives one that ends."""
    closing = await agent.raw(POST + b"Connection: close\r\nContent-Length: 1\r\n\r\na")
    both = await agent.raw(
        POST + b"Content-Length: 1\r\n\r\na" + POST + b"Connection: close\r\nContent-Length: 1\r\n\r\na"
    )
    short = headers_in(both)
    long = headers_in(closing)
    assert long.pop("connection") == "close"
    assert short == long
    body = both.partition(b"\r\n\r\n")[2]
    length = int(short["content-length"])
    assert json.loads(body[:length])["appended"] == [{"partition": 0, "base_offset": 1, "count": 1}]
    assert body[length:].startswith(b"HTTP/1.1 200 OK\r\n")


async def test_older_clients_get_aiohttps_answer(agent: Agent) -> None:
    """HTTP/1.0 is answered in its own terms."""
    old = await agent.raw(POST.replace(b"HTTP/1.1", b"HTTP/1.0") + b"Content-Length: 1\r\n\r\na")
    assert headers_in(old)[""].endswith("200 OK")
    assert b"keep-alive" not in old


@pytest.mark.parametrize("data", SMUGGLED.values(), ids=SMUGGLED)
async def test_what_is_no_clean_request(agent: Agent, data: bytes) -> None:
    """Refused with a problem document of the 4xx, nothing stored; the next connection works."""
    document = problem_in(await agent.raw(data))
    assert 400 <= int(str(document["status"])) < 500
    assert document["definite"] is True
    assert agent.broker.cluster.stored() == 0
    assert (await agent.get("/livez")).status == 200


async def test_a_bare_umlaut_is_told_how_to_be_sent(agent: Agent) -> None:
    """A key in the query as a shell hands it over: refused with what helps; other bytes are not told so."""
    head = "GET /v1/topics/t/records?key=schlüssel HTTP/1.1\r\nHost: localhost\r\n\r\n"
    answer = await agent.raw(head.encode())
    assert "percent-encode what is not ASCII" in str(problem_in(answer)["detail"])
    answer = await agent.raw(b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n")
    assert "percent-encode" not in str(problem_in(answer)["detail"])


@pytest.mark.parametrize(
    "line", ["Authorization\r: %s", "Authori\0zation: %s", "Authorization: %s\0", "Cookie %s"]
)
async def test_what_is_no_header_is_not_repeated(
    agent: Agent, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be a credential: neither the answer nor the log shows a byte of it."""
    secret = "Bearer shoal_abcdefgh_" + "x" * 52
    with caplog.at_level(logging.DEBUG):
        answer = await agent.raw(
            f"GET /livez HTTP/1.1\r\nHost: localhost\r\n{line % secret}\r\n\r\n".encode()
        )
    document = problem_in(answer)
    assert document["status"] == 400
    assert str(document["detail"]).startswith("this is not an HTTP request: Invalid header")
    assert "rejected a connection" in caplog.text
    assert "xxx" not in answer.decode() + caplog.text


async def test_a_bug_shows_neither_query_nor_token(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log names method and path; a token in the path is shown by its name."""
    token = make_token(b"\1" * 5, b"\2" * 32)
    monkeypatch.setattr(agent.broker, "topic", None)
    path = f"/v1/topics/{token.reveal()}/records"
    answer = await agent.post(f"{path}?key=planted", b"v", X_Ordinary="1")
    answer.problem("internal")
    assert f"a request failed: POST /v1/topics/shoal_{token.id}/records; this is a bug" in caplog.text
    assert "planted" not in caplog.text
    assert token.reveal()[15:40] not in caplog.text + str(answer.json)


async def test_own_absolute_target_and_http_1_0(agent: Agent) -> None:
    """The forms that proxies and old clients use are answered."""
    answer = await agent.raw(b"GET http://localhost/livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200")
    answer = await agent.raw(b"GET /livez HTTP/1.0\r\n\r\n")
    assert b" 200 " in answer.split(b"\r\n")[0]


async def test_expect_continue(agent: Agent) -> None:
    """curl waits for 100 before a large body; a refusal comes instead of it, before the body is sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", agent.port)
    writer.write(POST + b"Content-Length: 5\r\nExpect: 100-continue\r\n\r\n")
    async with asyncio.timeout(40):
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"value")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    writer.close()
    assert agent.broker.cluster.values("t") == [b"value"]
    refused = await agent.raw(POST + b"Content-Length: 9000000\r\nExpect: 100-continue\r\n\r\n")
    assert b"100 Continue" not in refused
    assert problem_in(refused)["code"] == "too-large"
    for body in (b"", b"value"):  # whether it is here already or not
        unmet = await agent.raw(POST + b"Content-Length: 5\r\nExpect: 200-ok\r\n\r\n" + body)
        assert problem_in(unmet)["code"] == "bad-request"


async def test_chunked_bodies(agent: Agent) -> None:
    """A chunked body is one value; a broken chunk stores nothing."""
    head = POST + b"Transfer-Encoding: chunked\r\n\r\n"
    assert b" 200 " in await agent.raw(head + b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n")
    assert agent.broker.cluster.values("t") == [b"abcde"]
    for broken in (b"zz\r\nabc\r\n", b"3\r\nabcd\r\n0\r\n\r\n", b"-3\r\nabc\r\n0\r\n\r\n"):
        answer = await agent.raw(head + broken)
        assert problem_in(answer)["code"] == "bad-request"
    assert agent.broker.cluster.stored() == 1


async def test_two_requests_on_one_connection(agent: Agent) -> None:
    """Pipelined requests are answered in order, an error in between does not end the connection."""
    one = POST + b"Content-Length: 1\r\n\r\n"
    answer = await agent.raw(one + b"a" + b"GET /none HTTP/1.1\r\nHost: localhost\r\n\r\n" + one + b"b")
    statuses = [line.split()[1] for line in answer.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]
    statuses += [part.split()[0] for part in answer.split(b"\nHTTP/1.1 ")[1:]]
    assert sorted(statuses) == [b"200", b"200", b"404"]
    assert agent.broker.cluster.values("t") == [b"a", b"b"]


async def test_a_slow_head_is_cut_off(agent: Agent) -> None:
    """A head that never ends does not hold a connection (slow loris)."""
    reader, writer = await asyncio.open_connection("127.0.0.1", agent.port)
    async with asyncio.timeout(40):
        writer.write(b"GET /livez HTTP/1.1\r\n")
        while not reader.at_eof():
            try:
                writer.write(b"X-A: b\r\n")
                async with asyncio.timeout(0.05):
                    await reader.read(1)
            except TimeoutError:
                continue
            except ConnectionError:  # cut off while a line was on its way
                break
    writer.close()


async def test_a_slow_body_is_cut_off(agent: Agent) -> None:
    """A body that stops coming is refused, and the bytes it held are given back."""
    answer = await agent.raw(POST + b"Content-Length: 100\r\n\r\npart", seconds=40)
    document = problem_in(answer)
    assert document["code"] == "bad-request"
    assert "brought nothing" in str(document["detail"])
    assert agent.broker.cluster.stored() == 0
    assert agent.runner.context.gate.requests == 0


async def test_a_client_that_leaves_in_the_middle(agent: Agent) -> None:
    """A body cut off by the client's end stores nothing and leaves nothing behind."""
    for media in (b"", b"Content-Type: application/x-ndjson\r\n"):
        _, writer = await asyncio.open_connection("127.0.0.1", agent.port)
        writer.write(POST + media + b'Content-Length: 100\r\n\r\n{"a":1}\n')
        await writer.drain()
        await asyncio.sleep(0.02)
        writer.close()
    async with asyncio.timeout(40):
        while agent.runner.context.gate.bytes_in_flight:
            await asyncio.sleep(0.01)
    assert agent.broker.cluster.stored() == 0
    assert agent.runner.context.gate.requests == 0


async def test_one_connection_too_many(patient_agent: Agent) -> None:
    """Connections over the limit get 429 in a few bytes; when others end there is room again."""
    agent = patient_agent
    held = [await asyncio.open_connection("127.0.0.1", agent.port) for _ in range(8)]
    document = problem_in(await agent.raw(b""))
    assert document["code"] == "overloaded"
    for _, writer in held:
        writer.close()
    async with asyncio.timeout(40):
        while agent.runner.connections:
            await asyncio.sleep(0.01)
    assert b" 200 " in await agent.raw(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")


async def test_a_peer_takes_the_connection_over(agent: Agent) -> None:
    """/v1/peer hands the bare connection to the broker and writes nothing of its own."""
    agent.broker.peer_answer = b"\x01\x02link"
    request = b"GET /v1/peer HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n"
    answer = await agent.raw(request % b"shoal-peer/1")
    assert answer == b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: shoal-peer/1\r\n\r\n\x01\x02link"
    assert problem_in(await agent.raw(request % b"websocket"))["code"] == "bad-request"
    refused = (await agent.get("/v1/peer")).problem("bad-request")
    assert "Upgrade: shoal-peer/1 is wanted" in refused["detail"]


async def test_the_terms_of_a_peer_are_handed_over_with_its_connection(agent: Agent) -> None:
    """As the header has them, in any case of letters; none where there is no header, as before levels."""
    said = LinkTerms().to_text()
    for header in ("", f"{HEADER}: {said}\r\n", f"{HEADER.lower()}:{said}\r\n"):
        request = f"GET /v1/peer HTTP/1.1\r\nHost: localhost\r\nUpgrade: shoal-peer/1\r\n{header}\r\n"
        assert (await agent.raw(request.encode())).startswith(b"HTTP/1.1 101 ")
    assert agent.broker.peer_terms == [None, said, said]
    assert PEER_TERMS == HEADER
