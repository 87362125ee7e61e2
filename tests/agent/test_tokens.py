"""Tokens at whole agents: the first, those that are made by it, and their end at every agent, under load."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from shoal.agent.cluster import Cluster
from shoal.agent.security.tokens import SECRET_BYTES, TOKEN_ID_BYTES, Token, make_token
from shoal.agent.topics.cluster_file import FILE_NAMES
from tests.agent.agents import Running, agents_in, eventually

FIRST = make_token(b"\1" * TOKEN_ID_BYTES, b"\2" * SECRET_BYTES)
ASKED = {"authentication": "on", "bootstrap_token_hash": FIRST.hash().hex()}
RECORD = {"records": [{"value": "x"}]}
HOLDS_WITHIN_S = 5.0
"""Of the answer, at every agent, by the clock that a stand-still of them all does not move."""


async def call(
    agent: Running, token: Token | str | None, method: str, path: str, body: object = None, **query: object
) -> tuple[int, Any]:
    text = token.reveal() if isinstance(token, Token) else token
    headers = {} if text is None else {"Authorization": f"Bearer {text}"}
    return await agent.call(method, path, body, headers, **query)


async def made(agent: Running, principal: str, *, by: Token | str = FIRST, **grants: object) -> str:
    """A token of a principal that has these roles and rules."""
    status, document = await call(agent, by, "PUT", f"/v1/principals/{principal}", grants)
    assert status in (200, 201), document
    status, document = await call(
        agent, by, "POST", f"/v1/principals/{principal}/tokens", {"expires_in": "1h"}
    )
    assert status == 201, document
    token: str = document["token"]
    return token


@pytest.mark.slow
async def test_a_token_is_used_at_every_agent_and_revoked_at_every_agent_under_load(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Three agents. The first token makes an administrator, and counts no more. A token appends at all of
    them until it is revoked; 5 s after the answer each refuses it, and another one goes on. No secret is in
    any log, repr, document, metric or file."""
    caplog.set_level(logging.DEBUG)
    async with agents_in(tmp_path) as agents:
        members = await agents.cluster(3, **ASKED)
        for agent in members:
            assert (await call(agent, None, "GET", "/v1/topics/t"))[1]["code"] == "unauthenticated"
            assert (await agent.call("GET", "/livez"))[0] == 200
        admin = await made(members[0], "ann", roles=["admin"])
        await eventually(lambda: is_refused(members, FIRST))
        assert "counts no more" in (await call(members[1], FIRST, "GET", "/v1/principals"))[1]["detail"]
        assert (await call(members[2], admin, "PUT", "/v1/topics/t"))[0] == 201
        going = await made(members[1], "bob", by=admin, roles=["producer:t*"])
        staying = await made(members[2], "eve", by=admin, rules=["topic:t=write"])
        for token in (going, staying):
            await eventually(lambda token=token: is_known(members, token))
        for agent in members:
            assert (await call(agent, going, "GET", "/v1/principals"))[1]["code"] == "forbidden"
            assert (await call(agent, going, "GET", "/v1/topics/other"))[1]["code"] == "forbidden"
        loads = [Load(agent, token) for agent in members for token in (going, staying)]
        tasks = [asyncio.create_task(load.run()) for load in loads]
        await eventually(lambda: all_appended(loads))
        path = f"/v1/tokens/{going.split('_')[1]}"
        assert (await call(members[0], admin, "DELETE", path))[0] == 204
        loop = asyncio.get_running_loop()
        answered = loop.time()
        await eventually(lambda: is_refused(members, going))
        assert loop.time() - answered < HOLDS_WITHIN_S
        for load in loads:
            load.begin_again()
        await eventually(lambda: all_answered(loads))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert [set(load.statuses) for load in loads] == [{401}, {200}] * 3
        shown = []
        for agent in members:
            broker = agent.agent.broker
            shown += [repr(broker.agent_document()), repr(await broker.metrics(partitions=True))]
            shown += [repr(agent.agent.config), repr(broker.security), repr(broker.principals())]
    told = [record for record in caplog.records if getattr(record, "event", None) == "first-token-used"]
    assert told
    text = "\n".join((caplog.text, *shown))
    assert FIRST.hash().hex() not in text
    for secret in (FIRST.reveal(), admin, going, staying):
        assert secret not in text
        assert secret.split("_")[2] not in text
        stored = [
            path.name
            for path in tmp_path.rglob("*")
            if path.is_file() and secret.encode() in path.read_bytes()
        ]
        assert stored == []


class Load:
    """Appends with one token at one agent, again and again."""

    def __init__(self, agent: Running, token: str) -> None:
        self._agent = agent
        self._token = token
        self.statuses: list[int] = []

    def begin_again(self) -> None:
        self.statuses = []

    async def run(self) -> None:
        while True:
            statuses = self.statuses  # an answer counts for the time in which it was asked for
            status, _ = await call(
                self._agent, self._token, "POST", "/v1/topics/t/partitions/0/records", RECORD
            )
            statuses.append(status)
            await asyncio.sleep(0.01)


async def all_appended(loads: list[Load]) -> bool:
    return all(200 in load.statuses for load in loads)


async def all_answered(loads: list[Load]) -> bool:
    return all(len(load.statuses) > 3 for load in loads)


async def is_known(members: list[Running], token: str) -> bool:
    """To each of them."""
    answers = [await call(agent, token, "GET", "/v1/topics/t") for agent in members]
    return all(status != 401 for status, _ in answers)


async def is_refused(members: list[Running], token: Token | str) -> bool:
    """At each of them."""
    answers = [await call(agent, token, "GET", "/v1/topics/t") for agent in members]
    return all(status == 401 for status, _ in answers)


@pytest.mark.slow
async def test_an_agent_that_starts_again_knows_its_principals_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed as it answers, or with the files of before: tokens that were revoked and the first one do
    not come back, and others are not refused meanwhile."""
    files = [tmp_path / "a" / name for name in FILE_NAMES]
    may_open, start = asyncio.Event(), Cluster.start

    async def start_later(cluster: Cluster, parts: AsyncExitStack) -> None:
        await may_open.wait()
        await start(cluster, parts)

    async with agents_in(tmp_path) as agents:
        agent = await agents.alone("a", **ASKED)
        before = [file.read_bytes() for file in files]
        admin = await made(agent, "ann", roles=["admin"])
        revoked = await made(agent, "bob", by=admin, roles=["admin"])
        assert all(revoked.split("_")[1].encode() in file.read_bytes() for file in files), "it was answered"
        with_both = [file.read_bytes() for file in files]
        status, _ = await call(agent, admin, "DELETE", f"/v1/tokens/{revoked.split('_')[1]}")
        assert status == 204
        monkeypatch.setattr(Cluster, "start", start_later)
        for kept in (None, before, with_both):
            await agent.crash()
            agents.running.clear()
            for file, data in zip(files, kept or [file.read_bytes() for file in files], strict=True):
                file.write_bytes(data)
            may_open.clear()
            agent = agents.start("a", **ASKED)
            answers = await answers_at_start(agent, may_open, FIRST, revoked, admin)
            assert {status for status, _ in answers[::3]} <= {401, 503}
            assert {status for status, _ in answers[1::3]} <= {401, 503}
            assert {status for status, _ in answers[2::3]} <= {200, 503}
            assert [status for status, _ in answers[-3:]] == [401, 401, 200]


async def answers_at_start(
    agent: Running, may_open: asyncio.Event, *tokens: Token | str
) -> list[tuple[int, Any]]:
    """To each of the tokens by turns, from before the agent opens its log until it is ready."""
    answers: list[tuple[int, Any]] = []

    async def answers_all() -> bool:
        if agent.agent.node is None:
            return False
        is_last = agent.ready.is_set()
        for token in tokens:
            answers.append(await call(agent, token, "GET", "/v1/agent"))
        may_open.set()
        return is_last

    await eventually(answers_all)
    return answers


@pytest.mark.slow
async def test_an_open_agent_asks_nobody_and_keeps_principals_all_the_same(tmp_path: Path) -> None:
    """On loopback, as always: they are made before anybody is asked."""
    async with agents_in(tmp_path) as agents:
        agent = await agents.alone("a")
        token = await made(agent, "bob", by="nonsense")
        assert (await call(agent, "nonsense", "GET", "/v1/topics"))[0] == 200
        assert (await agent.call("GET", "/v1/principals"))[1]["principals"][0]["name"] == "bob"
        assert token.startswith("shoal_")
