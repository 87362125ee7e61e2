"""Principals, roles and tokens over HTTP: made, shown, changed as expected, ended, at any agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import pytest
from http_fixtures import Agent, one_agent, two_agents

from shoal.agent.http.admin import principals
from shoal.agent.security.principals import PutPrincipal
from shoal.agent.security.tokens import parse_token


@pytest.fixture
async def agent() -> AsyncIterator[Agent]:
    async with one_agent() as running_agent:
        yield running_agent


async def put(agent: Agent, path: str, body: Any = None) -> tuple[int, Any]:
    answer = await agent.request("PUT", f"/v1/{path}", body)
    return answer.status, answer.json


async def test_a_principal_from_its_beginning_to_its_end(agent: Agent) -> None:
    """Put again with the same, it is no change; its list shows no secret."""
    body = {"roles": ["consumer:orders*", "viewer"], "rules": ["topic:a=write,describe"]}
    status, made = await put(agent, "principals/bob", body)
    assert (status, made["roles"], made["rules"]) == (201, body["roles"], ["topic:a=describe,write"])
    assert await put(agent, "principals/bob", body) == (200, made)
    status, changed = await put(agent, "principals/bob", {"roles": ["viewer"]})
    assert (status, changed["roles"], changed["rules"]) == (200, ["viewer"], [])
    assert changed["version"] != made["version"]
    assert (await agent.get("/v1/principals/bob")).json == changed
    answer = await agent.post("/v1/principals/bob/tokens", {"expires_in": "1h"})
    assert (answer.status, answer.headers["Cache-Control"]) == (201, "no-store")
    token = parse_token(answer.json["token"])
    assert answer.json["id"] == token.id
    assert answer.json["expires_at"] > answer.json["made_at"]
    shown = await agent.get("/v1/principals")
    assert [item["id"] for item in shown.json["principals"][0]["tokens"]] == [token.id]
    assert token.reveal().encode() not in shown.body
    assert token.hash().hex().encode() not in shown.body
    assert (await agent.request("DELETE", f"/v1/tokens/{token.id}")).status == 204
    assert (await agent.get("/v1/principals/bob")).json["tokens"] == []
    assert (await agent.request("DELETE", "/v1/principals/bob")).status == 204
    assert (await agent.get("/v1/principals")).json == {"principals": []}


@pytest.mark.parametrize("path", ["principals/bob", "roles/clerk"])
async def test_quotas_are_put_with_the_rest_and_no_others(agent: Agent, path: str) -> None:
    """Another number is a change; without a word of them there are none."""
    some = {"bytes_out": 1_000, "requests": 5}
    status, made = await put(agent, path, {"quotas": some})
    assert (status, made["quotas"]) == (201, some)
    assert await put(agent, path, {"quotas": some}) == (200, made)
    changed = (await put(agent, path, {"quotas": {"requests": 6}}))[1]
    assert changed["quotas"] == {"requests": 6}
    assert changed["version"] != made["version"]
    assert (await agent.get(f"/v1/{path}")).json == changed
    assert (await put(agent, path, {}))[1]["quotas"] == {}


async def test_a_role_from_its_beginning_to_its_end(agent: Agent) -> None:
    """Built-in ones are shown too, those of topics by their name."""
    status, made = await put(agent, "roles/clerk", {"rules": ["topic:orders*=read"]})
    assert (status, made["built_in"]) == (201, False)
    names = [role["name"] for role in (await agent.get("/v1/roles")).json["roles"]]
    assert names == ["viewer", "operator", "admin", "clerk"]
    for path in ("consumer:orders*", "consumer%3Aorders%2A"):
        role = (await agent.get(f"/v1/roles/{path}")).json
        assert (role["built_in"], role["rules"][0]) == (True, "topic:orders*=describe,read")
    await put(agent, "principals/bob", {"roles": ["clerk"]})
    (await agent.request("DELETE", "/v1/roles/clerk")).problem("role-in-use")
    await put(agent, "principals/bob")
    assert (await agent.request("DELETE", "/v1/roles/clerk")).status == 204
    (await agent.get("/v1/roles/clerk")).problem("unknown-role")


async def test_a_change_of_a_version_that_was_read(agent: Agent) -> None:
    """Of two that read the same, the second is told."""
    _, made = await put(agent, "principals/bob")
    path = f"principals/bob?if_version={made['version']}"
    assert (await put(agent, path, {"roles": ["viewer"]}))[0] == 200
    status, problem = await put(agent, path, {"roles": ["operator"]})
    assert (status, problem["code"]) == (409, "settings-changed")
    assert (await put(agent, "principals/eve?if_version=0-9"))[1]["code"] == "settings-changed"
    assert (await put(agent, f"principals/bob?if_version={'x' * 300}"))[1]["code"] == "bad-request"


async def test_any_agent_asks_the_leader() -> None:
    """Of the catalog; the token comes back the same way."""
    async with two_agents() as (first, second):
        first.broker.cluster.catalog_leader_id = first.broker.agent_id
        assert (await put(second, "roles/clerk", {"rules": []}))[0] == 201
        assert (await put(second, "principals/bob", {"roles": ["clerk"]}))[0] == 201
        assert (await put(second, "principals/bob?if_version=1-1"))[1]["code"] == "settings-changed"
        answer = await second.post("/v1/principals/bob/tokens")
        assert answer.status == 201
        assert (await second.request("DELETE", f"/v1/tokens/{answer.json['id']}")).status == 204
        assert (await second.request("DELETE", "/v1/principals/bob")).status == 204
        assert (await second.request("DELETE", "/v1/roles/clerk")).status == 204
        assert first.broker.cluster.security.told == 6


async def test_a_change_tells_who_asked_from_where_and_when(agent: Agent) -> None:
    """The address of the connection, whatever a client's header says."""
    headers = {"Shoal-Forwarded-For": "192.0.2.7"}
    await agent.request("PUT", "/v1/principals/bob", {}, headers=headers)
    command = agent.broker.cluster.security.proposed[-1]
    assert isinstance(command, PutPrincipal)
    by = command.by
    assert (by.principal, by.proof, by.address) == ("anonymous", "open", "127.0.0.1")
    assert by.at_ms > 1_700_000_000_000
    assert len(by.request) == 16


@pytest.mark.parametrize(
    ("method", "path", "body", "code"),
    [
        ("PUT", "principals/a%20b", None, "bad-request"),
        ("PUT", "principals/bootstrap", None, "bad-request"),
        ("PUT", "principals/bob", {"roles": "viewer"}, "bad-request"),
        ("PUT", "principals/bob", {"roles": [["viewer"]]}, "bad-request"),
        ("PUT", "principals/bob", {"tokens": []}, "bad-request"),
        ("PUT", "principals/bob", {"rules": ["topic:a*b=read"]}, "bad-request"),
        ("PUT", "principals/bob", {"rules": ["topic:_catalog=read"]}, "bad-request"),
        ("PUT", "principals/bob", {"rules": [f"topic:t{n}=read" for n in range(65)]}, "bad-request"),
        ("PUT", "principals/bob", {"roles": [f"r{number}" for number in range(17)]}, "bad-request"),
        ("PUT", "principals/bob", {"roles": ["nobody"]}, "unknown-role"),
        ("PUT", "principals/bob", {"quotas": ["requests"]}, "bad-request"),
        ("PUT", "principals/bob", {"quotas": None}, "bad-request"),
        ("PUT", "principals/bob", {"quotas": {"requests": 0}}, "bad-request"),
        ("PUT", "principals/bob", {"quotas": {"topics": 5}}, "bad-request"),
        ("PUT", "roles/clerk", {"quotas": {"bytes_in": "5"}}, "bad-request"),
        ("PUT", "principals/bob", b"[]", "bad-request"),
        ("PUT", "principals/bob", b"\xff", "bad-request"),
        ("PUT", "roles/admin", None, "role-built-in"),
        ("PUT", "roles/clerk", {"roles": ["clerk"]}, "bad-request"),
        ("PUT", "roles/clerk:x", None, "bad-request"),
        ("GET", "roles/producer:a*b", None, "bad-request"),
        ("DELETE", "roles/viewer", None, "role-built-in"),
        ("DELETE", "principals/bob", None, "unknown-principal"),
        ("GET", "principals/bob", None, "unknown-principal"),
        ("POST", "principals/bob/tokens", None, "unknown-principal"),
        ("POST", "principals/anonymous/tokens", None, "bad-request"),
        ("POST", "principals/ann/tokens", {"expires_in": "0s"}, "bad-request"),
        ("POST", "principals/ann/tokens", {"expires_in": "4000d"}, "bad-request"),
        ("POST", "principals/ann/tokens", {"expires_in": 90}, "bad-request"),
        ("POST", "principals/ann/tokens", {"expires_in": "soon"}, "bad-request"),
        ("POST", "principals/ann/tokens", {"forever": True}, "bad-request"),
        ("POST", "principals/ann/tokens", None, "too-many-tokens"),
        ("DELETE", "tokens/aaaaaaaa", None, "unknown-token"),
        ("DELETE", "principals/ann", None, "last-administrator"),
        ("PUT", "principals/ann", None, "last-administrator"),
    ],
)  # fmt: skip
async def test_a_refusal_says_why_and_changes_nothing(
    agent: Agent, method: str, path: str, body: Any, code: str
) -> None:
    """Beside an administrator with two tokens, of which one never expires."""
    await put(agent, "principals/ann", {"roles": ["admin"]})
    for expiry in ("never", "90d"):
        token = await agent.post("/v1/principals/ann/tokens", {"expires_in": expiry})
        assert (token.json["expires_at"] is None) == (expiry == "never")
    before = agent.broker.cluster.security.catalog.security.changed
    answer = await agent.request(method, f"/v1/{path}", body)
    answer.problem(code)
    assert agent.broker.cluster.security.catalog.security.changed == before


async def test_a_field_that_is_none_is_answered_with_all_that_are(agent: Agent) -> None:
    """The quotas, too."""
    answer = await agent.request("PUT", "/v1/principals/bob", {"tokens": []})
    assert answer.json["detail"] == "'tokens' is unknown here: there are roles, rules, quotas"
    answer = await agent.request("PUT", "/v1/roles/clerk", {"roles": ["clerk"]})
    assert answer.json["detail"] == "'roles' is unknown here: there are rules, quotas"


@pytest.mark.parametrize(
    "name",
    [
        "spiffe://example.com/ns/orders/sa/writer",
        "auth0|5f7c8e",
        "repo:fish/shoal:ref:refs/heads/main",
        "x" * 256,
    ],
)
async def test_principals_have_the_names_that_issuers_give(agent: Agent, name: str) -> None:
    """Percent-encoded in a path, slashes too; a token of theirs is made and shown."""
    path = f"/v1/principals/{quote(name, safe='')}"
    assert (await agent.request("PUT", path, {"roles": ["viewer"]})).status == 201
    assert (await agent.post(f"{path}/tokens")).json["principal"] == name
    assert (await agent.get(path)).json["name"] == name
    assert [entry["name"] for entry in (await agent.get("/v1/principals")).json["principals"]] == [name]
    assert (await agent.request("DELETE", path)).status == 204


async def test_long_lists_are_whole_and_let_others_go_on(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In slices, by name; the roles that are built in come first and once."""
    monkeypatch.setattr(principals, "SLICE_ENTRIES", 3)
    names = [f"p{number:02}" for number in range(10)]
    for name in names:
        await put(agent, f"principals/{name}", {})
        await put(agent, f"roles/{name}", {"rules": ["topic:a=read"]})
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    before = turns
    listed = (await agent.get("/v1/principals")).json["principals"]
    assert turns - before >= len(names) // 3
    roles = (await agent.get("/v1/roles")).json["roles"]
    counting.cancel()
    assert [entry["name"] for entry in listed] == names
    assert [entry["name"] for entry in roles if not entry["built_in"]] == names
    built_in = [entry["name"] for entry in roles if entry["built_in"]]
    assert len(built_in) == len(set(built_in)) > 0
    assert [entry["built_in"] for entry in roles] == sorted(
        (entry["built_in"] for entry in roles), reverse=True
    )
