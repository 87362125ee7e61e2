"""Pages of other origins: who may, what a preflight is told, and that every kind of answer can be read."""

from __future__ import annotations

import pathlib
import re
import socket
from collections.abc import AsyncIterator

import aiohttp
import pytest
from fake_broker import FakeCluster
from http_fixtures import EVENTS, NDJSON, PATH, Agent, two_agents

from shoal.agent.http.admission.origin import HostPolicy
from shoal.agent.http.app import make_runner
from shoal.agent.http.core import cors
from shoal.errors import ShoalError

PAGE = "https://app.example.com"
ALLOW = "Access-Control-Allow-Origin"
HTTP = pathlib.Path(cors.__file__).resolve().parent.parent


@pytest.fixture
async def agent() -> AsyncIterator[Agent]:
    """Behind a name, for pages of one other origin."""
    broker = FakeCluster().add("one")
    runner = make_runner(broker, None, ["shoal.example.com"], cors_origins=[PAGE])
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    await runner.listen(listener)
    broker.url = f"http://127.0.0.1:{port}"
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        yield Agent(broker, runner, port, session)
    await runner.cleanup()


def test_who_may() -> None:
    """The agent's own pages, and those of the origins named: by scheme, host and port, in any case."""
    policy = HostPolicy("http://agent.example:7070", ["proxy.example"], [PAGE, "http://localhost:3000"])
    host = "proxy.example"
    assert policy.check(host, None) is None
    assert policy.check(host, "https://proxy.example") is None
    for origin in (PAGE, "https://APP.example.com", f"{PAGE}:443", "http://localhost:3000"):
        assert policy.check(host, origin) == origin
    for origin in ("http://app.example.com", f"{PAGE}:8443", f"{PAGE}/", f"{PAGE}.evil.example", "null", "*"):
        with pytest.raises(ShoalError, match="--cors-origins"):
            policy.check(host, origin)
    with pytest.raises(ShoalError, match="--allowed-hosts"):
        policy.check("evil.example", PAGE)
    with pytest.raises(ShoalError, match="foreign-origin"):
        HostPolicy("http://agent.example:7070", [], ["null"]).check(host, "null")


async def test_a_preflight_is_told_what_the_route_takes(agent: Agent) -> None:
    """Its methods, the headers a page may send, for how long; nothing of credentials, and no wildcard."""
    asked = {"Origin": PAGE, "Access-Control-Request-Method": "POST"}
    answer = await agent.request("OPTIONS", "/v1/topics/t/records", headers=asked)
    assert (answer.status, answer.body) == (204, b"")
    assert answer.headers[ALLOW] == PAGE
    assert answer.headers["Access-Control-Allow-Methods"] == "GET, HEAD, POST"
    assert "Content-Type" in answer.headers["Access-Control-Allow-Headers"]
    assert answer.headers["Access-Control-Max-Age"] == "600"
    assert answer.headers["Vary"].startswith("Origin")
    assert not any("redentials" in name for name in answer.headers)
    assert "*" not in "".join(answer.headers.values())
    unknown = await agent.request("OPTIONS", "/v1/nothing", headers=asked)
    unknown.problem("unknown-route")
    assert unknown.headers[ALLOW] == PAGE
    plain = await agent.request("OPTIONS", "/v1/topics/t/records", headers={"Origin": PAGE})
    plain.problem("method-not-allowed")
    foreign = await agent.request(
        "OPTIONS", "/v1/topics", headers={**asked, "Origin": "https://evil.example"}
    )
    foreign.problem("foreign-origin")
    assert ALLOW not in foreign.headers


async def test_every_kind_of_answer_can_be_read_by_the_page(agent: Agent) -> None:
    """Appends, streams, large answers, refusals. Without an Origin nothing is said of one."""
    agent.broker.cluster.create("t", leader=agent.broker.agent_id)
    for body in (b"value", b"x" * 300_000):
        stored = await agent.post("/v1/topics/t/partitions/0/records", body, Origin=PAGE)
        assert (stored.status, stored.headers[ALLOW]) == (200, PAGE)
    for path in (PATH, "/v1/topics", "/v1/topics/nope", "/livez"):
        answer = await agent.get(path, Origin=PAGE, Accept=NDJSON if path == PATH else "*/*")
        assert answer.headers[ALLOW] == PAGE
        assert "Shoal-Next-Offset" in answer.headers["Access-Control-Expose-Headers"]
        assert answer.headers["Vary"] == "Origin"
        assert answer.headers["Server"] == "Shoal"
        alone = await agent.get(path)
        assert not any(name.startswith("Access-Control") or name == "Vary" for name in alone.headers)
    url = f"http://127.0.0.1:{agent.port}{PATH}"
    async with agent.session.get(url, headers={"Accept": EVENTS, "Origin": PAGE}) as stream:
        assert (stream.status, stream.headers[ALLOW]) == (200, PAGE)
    named = await agent.get("/livez", Host="shoal.example.com", Origin="https://shoal.example.com")
    assert named.status == 200
    assert ALLOW not in named.headers


async def test_without_the_setting_no_page_of_another_origin_may() -> None:
    """Nor are preflights answered; and an answer passed on from another agent says no more."""
    async with two_agents() as (first, second):
        first.broker.cluster.create("t", leader=second.broker.agent_id)
        asked = {"Origin": PAGE, "Access-Control-Request-Method": "GET"}
        (await first.request("OPTIONS", "/v1/topics", headers=asked)).problem("foreign-origin")
        (await first.get("/v1/topics", Origin=PAGE)).problem("foreign-origin")
        assert ALLOW not in (await first.get(PATH)).headers


def test_a_page_may_read_and_send_every_header_of_ours() -> None:
    """Those in the code of the HTTP side; what only agents say among themselves is not for pages."""
    found = {
        name
        for path in HTTP.rglob("*.py")
        for name in re.findall(r"\"(Shoal-[A-Za-z-]*[a-z])\"", path.read_text())
    }
    assert "Shoal-Next-Offset" in found
    listed = set(re.split(r", ", f"{cors.EXPOSED_HEADERS}, {cors.REQUEST_HEADERS}"))
    between_agents = {"Shoal-Forwarded-By", "Shoal-Forwarded-For", "Shoal-Principal", "Shoal-Link"}
    assert found - between_agents <= listed
