"""What every answer tells a browser, by whichever way it comes."""

from __future__ import annotations

import pathlib
import re

import aiohttp
from certificates import write_files
from http_fixtures import PATH, Agent, one_agent
from tls_fixtures import OURS, client_context, tls_agent

from shoal.agent.http.admission.guard import POLICY

JSON_HEAD = "Content-Type: application/json\r\n"


def raw(agent: Agent, line: str, body: bytes = b"", more: str = "") -> bytes:
    head = f"{line} HTTP/1.1\r\nHost: 127.0.0.1:{agent.port}\r\n{more}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def check_head(answer: bytes, status: int, policy: str = POLICY, kept: str = "no-store") -> None:
    """Each header once, in the head of this answer."""
    head = answer.partition(b"\r\n\r\n")[0].decode().split("\r\n")
    assert head[0].split()[1] == str(status), answer[:400]
    fields = [(name.lower(), value) for name, _, value in (line.partition(": ") for line in head[1:])]
    found = [(name, value) for name, value in fields if name in WANTED]
    assert sorted(found) == sorted(
        {**WANTED, "content-security-policy": policy, "cache-control": kept}.items()
    ), head
    assert "strict-transport-security" not in dict(fields), "in the open it is forbidden (RFC 6797 7.2)"


WANTED = {
    "x-content-type-options": "nosniff",
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


async def test_every_answer_of_the_short_and_of_the_ordinary_way() -> None:
    """Appends, rows, receives, lists, streams, refusals, and bytes that are no request."""
    async with one_agent() as agent:
        for _ in range(2):  # the second is remembered
            check_head(await agent.raw(raw(agent, f"POST {PATH}", b"abc")), 200)
            received = raw(agent, "POST /v1/topics/t/groups/g/receive", b"{}", JSON_HEAD)
            check_head(await agent.raw(received), 200)
        check_head(await agent.raw(raw(agent, f"POST {PATH}?count=x", b"abc")), 400)
        for path, status in (
            (f"{PATH}?offset=0", 200),
            ("/v1/topics", 200),
            ("/v1/topics/none", 404),
            ("/nowhere", 404),
            ("/v1/topics/", 308),
            ("/v1/events", 200),
        ):
            check_head(await agent.raw(raw(agent, f"GET {path}")), status)
        check_head(await agent.raw(raw(agent, "TRACE /v1/topics")), 405)
        check_head(await agent.raw(b"no request at all\r\n\r\n"), 400)


async def test_rows_that_look_like_pages() -> None:
    """A value may be anything, HTML too: a browser that opens it renders nothing of it."""
    async with one_agent() as agent:
        agent.broker.cluster.create("users", 3, leader=agent.broker.agent_id, kind="table")
        path = "/v1/tables/users/k"
        for _ in range(2):
            check_head(await agent.raw(raw(agent, f"PUT {path}", b"<script>alert(1)</script>")), 200)
            answer = await agent.raw(raw(agent, f"GET {path}"))
            check_head(answer, 200)
            assert b"Content-Type: application/octet-stream\r\n" in answer
        check_head(await agent.raw(raw(agent, "GET /v1/tables/users/none")), 404)


async def test_the_page_has_a_policy_of_its_own() -> None:
    """Styles of its own, one script by its hash, and nothing else: no frame around it."""
    async with one_agent() as agent:
        answer = await agent.get("/docs")
        policy = answer.headers["Content-Security-Policy"]
        for part in ("default-src 'none'", "object-src 'none'", "base-uri 'none'", "frame-ancestors 'none'"):
            assert part in policy
        assert re.search(r"script-src 'sha256-[A-Za-z0-9+/]{43}=';", policy)
        assert answer.headers["Cache-Control"] == "max-age=3600"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


async def test_over_tls_browsers_are_told_to_come_by_tls(tmp_path: pathlib.Path) -> None:
    """By the short way, by the ordinary one, and in refusals."""
    settings = write_files(tmp_path, OURS.agent(), OURS.pem)
    async with tls_agent(settings, client_context(tmp_path)) as agent:
        for answer in (
            await agent.post(PATH, b"a"),
            await agent.get("/v1/topics"),
            await agent.get("/docs"),
            await agent.get("/nowhere"),
        ):
            told = answer.headers["Strict-Transport-Security"]
            assert told == "max-age=31536000; includeSubDomains"


async def test_plain_http_at_a_tls_port_is_never_led_elsewhere(tmp_path: pathlib.Path) -> None:
    """It is refused, so that a client that forgot the s finds out."""
    settings = write_files(tmp_path, OURS.agent(), OURS.pem)
    async with (
        tls_agent(settings, client_context(tmp_path)) as agent,
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{agent.port}/v1/topics", allow_redirects=False) as answer,
    ):
        assert answer.status == 400
        assert "Location" not in answer.headers
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
