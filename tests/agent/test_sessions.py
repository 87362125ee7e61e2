"""Sessions of browsers at whole agents: made at one, taken at all, and ended at all."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.agent.agents import Running, agents_in, eventually
from tests.agent.test_tokens import ASKED, FIRST, call, is_known, made

RECORD = {"records": [{"value": "x"}]}


async def by_cookie(agent: Running, sealed: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    return await agent.call(method, path, body, {"Cookie": f"shoal-session={sealed}"})


async def login(agent: Running, token: str) -> str:
    """The value of the cookie."""
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
        session.post(f"{agent.agent.url}/v1/session", headers=headers) as response,
    ):
        assert response.status == 201, await response.text()
        name, _, rest = response.headers["Set-Cookie"].partition("=")
        assert name == "shoal-session"
        return rest.partition(";")[0]


async def refused(members: list[Running], sealed: str, words: str) -> bool:
    """At each of them, in these words."""
    answers = [await by_cookie(agent, sealed, "GET", "/v1/topics") for agent in members]
    return all(status == 401 and words in document["detail"] for status, document in answers)


def files_with(directory: Path, text: bytes) -> list[str]:
    return [path.name for path in directory.rglob("*") if path.is_file() and text in path.read_bytes()]


@pytest.mark.slow
async def test_a_session_is_taken_and_ended_at_every_agent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Three agents. Each makes sessions, whichever leads the catalog, and takes those of the others, also
    where the request has to go on to a leader. One that is ended, and one whose token is revoked, are refused
    everywhere. No session is in any log, repr, document or file, and no key of theirs in any log or repr."""
    caplog.set_level(logging.DEBUG)
    async with agents_in(tmp_path) as agents:
        members = await agents.cluster(3, **ASKED)
        admin = await made(members[0], "ann", roles=["admin"])
        await eventually(lambda: is_known(members, admin))
        assert (await call(members[2], admin, "PUT", "/v1/topics/t"))[0] == 201
        bob = await made(members[1], "bob", by=admin, roles=["producer:t*"])
        await eventually(lambda: is_known(members, bob))
        sessions = await asyncio.gather(*(login(agent, bob) for agent in members))
        path = "/v1/topics/t/partitions/0/records"
        for sealed in sessions:
            for agent in members:
                assert (await by_cookie(agent, sealed, "GET", "/v1/session"))[1]["principal"] == "bob"
                assert (await by_cookie(agent, sealed, "POST", path, RECORD))[0] == 200
                assert (await by_cookie(agent, sealed, "GET", "/v1/principals"))[0] == 403
        for agent, sealed in zip(members[1:], sessions, strict=False):
            assert (await by_cookie(agent, sealed, "DELETE", "/v1/session"))[0] == 204
            await eventually(lambda sealed=sealed: refused(members, sealed, "the session was ended"))
        assert (await by_cookie(members[0], sessions[2], "GET", "/v1/session"))[0] == 200
        assert (await call(members[0], admin, "DELETE", f"/v1/tokens/{bob.split('_')[1]}"))[0] == 204
        await eventually(lambda: refused(members, sessions[2], "ended with the credential"))
        security = members[0].agent.broker.security
        assert security is not None
        keys = [key.secret for key in security.sessions.keys]
        shown = []
        for agent in members:
            broker = agent.agent.broker
            shown += [repr(broker.agent_document()), repr(await broker.metrics(partitions=True))]
            shown += [repr(broker.security), repr(broker.principals()), repr(agent.agent.config)]
    text = "\n".join((caplog.text, *shown))
    assert len(keys) == 1
    for secret in (*sessions, *(sealed.split(".")[2] for sealed in sessions), keys[0].hex(), repr(keys[0])):
        assert secret not in text
    assert [files_with(tmp_path, sealed.encode()) for sealed in sessions] == [[], [], []]
    assert FIRST.reveal() not in text
