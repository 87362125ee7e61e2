"""What somebody gets who does not know where to go, and what every answer says of who answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from http_fixtures import Agent, one_agent

from tests.agent.agents import agents_in

HTML = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


@pytest.fixture
async def agent() -> AsyncIterator[Agent]:
    """An agent with a topic t."""
    async with one_agent() as running_agent:
        running_agent.broker.cluster.create("t")
        yield running_agent


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/"])
async def test_the_door_says_where_to_go(agent: Agent, path: str) -> None:
    """A program gets addresses, a browser the page."""
    document = (await agent.get(path)).json
    assert (document["agent"], document["docs"]) == ("one", "/docs")
    for name in ("docs", "openapi", "topics", "members"):
        assert (await agent.get(document[name])).status == 200
    page = await agent.get(path, Accept=HTML)
    assert page.headers["Content-Type"].startswith("text/html")
    assert b"Shoal" in page.body


async def test_a_slash_too_many_is_taken_away_from_what_is_read(agent: Agent) -> None:
    """The query stays; what changes something is told, not sent elsewhere, and no other host is named."""
    async with agent.session.get(
        f"http://127.0.0.1:{agent.port}/v1/topics/?limit=3", allow_redirects=False
    ) as answer:
        assert (answer.status, answer.headers["Location"]) == (308, "/v1/topics?limit=3")
    assert (await agent.get("/docs/")).headers["Content-Type"].startswith("text/html")
    problem = (await agent.post("/v1/topics/t/records/", b"x")).problem("unknown-route")
    assert "without a slash" in problem["detail"]
    for path in ("//evil.example/", "//", "/v1/nothing/", "///v1/topics/"):
        received = await agent.raw(
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        )
        assert received.startswith(b"HTTP/1.1 404"), received
        assert b"Location" not in received


@pytest.mark.parametrize(
    ("path", "says"),
    [("/health", "/readyz"), ("/topics", "/v1/topics"), ("/nothing", "/docs"), ("/v2", "/docs")],
)
async def test_who_is_lost_is_shown_the_way(agent: Agent, path: str, says: str) -> None:
    """What others call it, or where all of it is described."""
    assert says in (await agent.get(path)).problem("unknown-route")["detail"]


async def test_the_server_says_its_name_and_no_versions(agent: Agent) -> None:
    """In short and long answers, problems, refusals below HTTP, streams."""
    path = "/v1/topics/t/partitions/0/records"
    long = b"v" * 300_000
    answers = [
        await agent.post(path, b"x"),
        await agent.post(path, long),
        await agent.get(path),
        await agent.get("/nothing"),
        await agent.get("/docs"),
        await agent.get(path, Accept="application/vnd.apache.arrow.stream"),
        await agent.get(path + "?limit=1&offset=0", Accept="text/event-stream"),
        await agent.request("DELETE", "/v1/topics/t"),
    ]
    assert [answer.headers["Server"] for answer in answers] == ["Shoal"] * len(answers)
    broken = await agent.raw(b"GET / HTTP/9.9\r\n\r\n")
    assert b"Python" not in broken
    assert b"aiohttp" not in broken


async def test_text_is_readable_in_every_form(agent: Agent) -> None:
    """Letters beyond ASCII are not escaped; half a character in a request breaks no answer."""
    path = "/v1/topics/t/partitions/0/records"
    await agent.post(path, {"records": [{"key": "Köln", "value": "日本"}]})
    for answer in (
        await agent.get(path),
        await agent.get("/v1/topics/t/records"),
        await agent.get(path, Accept="application/x-ndjson"),
        await agent.get(path + "?limit=1&offset=0", Accept="text/event-stream"),
    ):
        assert "Köln" in answer.body.decode()
        assert "日本" in answer.body.decode()
    problem = await agent.get("/v1/topics/t/records?offset=sp%C3%A4ter")
    assert "später" in problem.body.decode()
    odd = await agent.post(path, b'{"records":[{"value":1,"\\ud800":2}]}', media="application/json")
    assert "\\ud800" in odd.problem("bad-request")["detail"]


async def test_refusals_name_the_agent_and_the_cluster_that_were_asked(tmp_path: Path) -> None:
    """Whoever talks to another cluster than they think finds out; the system's log is not to be created."""
    async with agents_in(tmp_path) as agents:
        alone = await agents.alone("lonely", cluster="pond")
        _, unknown = await alone.call("GET", "/v1/topics/nothing")
        _, few = await alone.call("PUT", "/v1/topics/t", {"replication_factor": 3})
        for problem, code in ((unknown, "unknown-topic"), (few, "not-enough-members")):
            assert problem["code"] == code
            assert "cluster pond (agent lonely was asked)" in problem["detail"]
        _, system = await alone.call("GET", "/v1/topics/_catalog/partitions/0/records")
        assert "PUT" not in system["detail"]
        assert "system's" in system["detail"]
        status, problem = await alone.call("POST", "/v1/agent/join", {"addresses": ["127.0.0.1:1"]})
        assert (status, problem["code"], problem["definite"]) == (409, "unreachable", True)
        assert "may have happened" not in problem["title"]
