"""The cluster's level over HTTP: shown by any agent, raised at the catalog's leader, refused with reasons."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from http_fixtures import Agent, one_agent, two_agents
from listening import stop_listening

from shoal.agent.interface import Leader
from shoal.agent.levels import MAX_LEVEL
from shoal.errors import ShoalError

PATH = "/v1/cluster/level"


@pytest.fixture
async def agent() -> AsyncIterator[Agent]:
    async with one_agent() as running_agent:
        yield running_agent


async def test_the_level_is_shown_and_raised(agent: Agent) -> None:
    """With a level, with none, and with an empty body, as curl -X POST sends it; again, it is done."""
    shown = await agent.get(PATH)
    assert (shown.status, shown.json["level"], shown.json["possible"]) == (200, 1, 2)
    assert [member["highest"] for member in shown.json["members"]] == [2]
    for body in ({"level": 2}, {}, b""):
        agent.broker.cluster.level = 1
        for _ in range(2):
            answer = await agent.request("POST", PATH, body)
            assert (answer.status, answer.json["level"]) == (200, 2), answer.body
    assert (await agent.get(PATH)).json["level"] == 2


@pytest.mark.parametrize(
    "body", [b"{", b"[2]", b'"2"', {"to": 2}, {"level": 2, "force": True}, b"[" * 100_000, b"\xff"]
)
async def test_a_body_that_is_no_level_changes_nothing(agent: Agent, body: Any) -> None:
    """And says what is wanted."""
    answer = await agent.request("POST", PATH, body, headers={"Content-Type": "application/json"})
    answer.problem("bad-request")
    assert agent.broker.cluster.level == 1


async def test_agents_that_are_gone_are_passed_on_to_the_leader() -> None:
    """By any agent."""
    async with two_agents() as (first, second):
        cluster = first.broker.cluster
        cluster.catalog_leader_id = first.broker.agent_id
        answer = await second.request("POST", PATH, {"level": 2, "without": ["gone", "lost"]})
        assert (answer.status, cluster.raised_without) == (200, [["gone", "lost"]])


async def test_a_refusal_is_passed_on_with_its_reason(agent: Agent) -> None:
    """Nothing changes."""
    problem = (await agent.request("POST", PATH, {"level": MAX_LEVEL})).problem("level-refused")
    assert (problem["status"], problem["definite"], problem["retriable"]) == (409, True, False)
    assert f"nobody understands level {MAX_LEVEL}" in problem["detail"]
    assert agent.broker.cluster.level == 1


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH"])
async def test_no_other_method_is_taken(agent: Agent, method: str) -> None:
    """No level is deleted."""
    answer = await agent.request(method, PATH)
    answer.problem("method-not-allowed")
    assert set(answer.headers["Allow"].replace(" ", "").split(",")) >= {"GET", "POST"}


async def test_any_agent_takes_a_raise_and_asks_the_leader_of_the_catalog() -> None:
    """The body goes with it, and so does the leader's refusal."""
    async with two_agents() as (first, second):
        cluster = first.broker.cluster
        cluster.catalog_leader_id = first.broker.agent_id
        (await second.request("POST", PATH, {"level": 7})).problem("level-refused")
        assert cluster.level == 1
        answer = await second.request("POST", PATH, {"level": 2})
        assert (answer.status, answer.json["level"]) == (200, 2)
        assert answer.json["members"][0]["id"] == first.broker.agent_id


async def test_a_leader_of_before_levels_is_named_as_what_is_to_be_upgraded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its own answer would say that nothing is served there, as if the route were misspelt."""

    async def unknown(_request: web.Request) -> web.Response:
        error = ShoalError("unknown-route", "nothing is served at '/v1/cluster/level'")
        return web.json_response(
            error.to_problem(), status=error.status, content_type="application/problem+json"
        )

    app = web.Application()
    app.router.add_post(PATH, unknown)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    former = Leader("f" * 32, f"http://127.0.0.1:{runner.addresses[0][1]}", 1, local=False)
    try:
        async with one_agent() as agent:
            monkeypatch.setattr(agent.broker, "catalog_leader", lambda: former)
            problem = (await agent.request("POST", PATH, {"level": 2})).problem("level-refused")
            assert (
                "leads the catalog, and its version of Shoal has no levels: upgrade it" in problem["detail"]
            )
            assert agent.broker.cluster.level == 1
    finally:
        await stop_listening(runner)
        await runner.cleanup()


async def test_without_a_leader_of_the_catalog_nothing_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer comes in time, and may be asked again."""
    async with one_agent() as agent:
        monkeypatch.setattr(agent.broker, "catalog_leader", lambda: None)
        problem = (await agent.request("POST", f"{PATH}?timeout=200ms", {"level": 2})).problem("no-leader")
        assert problem["retriable"]
        assert agent.broker.cluster.level == 1
