"""Whole agents that ask for credentials: tokens made, used at every agent, forwarded and revoked."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

from agents import Running, agents_in, eventually

from shoal import AsyncClient
from shoal.agent.security.tokens import SECRET_BYTES, TOKEN_ID_BYTES, make_token

FIRST = make_token(bytes(TOKEN_ID_BYTES), bytes(SECRET_BYTES)).reveal()
FLAGS = {"authentication": "on", "bootstrap_token_hash": hashlib.sha256(FIRST.encode()).hexdigest()}
HOLDS_WITHIN_S = 5.0
"""A change of permissions, at every agent, by the clock that a stand-still of them all does not move."""


async def ask(agent: Running, token: str, method: str, path: str, body: object = None) -> tuple[int, Any]:
    return await agent.call(method, path, body, {"Authorization": f"Bearer {token}"} if token else {})


async def principal(agent: Running, by: str, name: str, **allowed: list[str]) -> str:
    """A token of a principal that may do this."""
    status, told = await ask(agent, by, "PUT", f"/v1/principals/{name}", allowed)
    assert status == 201, told
    status, told = await ask(agent, by, "POST", f"/v1/principals/{name}/tokens")
    assert status == 201, told
    return str(told["token"])


async def reaches(agents: list[Running], token: str, path: str, status: int) -> None:
    """Each of them answers so, soon."""
    for agent in agents:

        async def answers(agent: Running = agent) -> bool:
            return (await ask(agent, token, "GET", path))[0] == status

        await eventually(answers)


async def test_tokens_count_at_every_agent_until_they_are_revoked(tmp_path: Path) -> None:
    """The first token makes an administrator and counts no more. A producer's is judged where its topic is
    led, too. A revoked one is refused everywhere within 5 s, and those who wait by it are told."""
    async with agents_in(tmp_path) as running:
        agents = await running.cluster(2, **FLAGS)
        first, second = agents
        assert (await ask(first, "", "GET", "/v1/topics"))[0] == 401
        assert (await ask(first, "", "GET", "/readyz"))[0] == 200
        admin = await principal(first, FIRST, "ann", roles=["admin"])
        await reaches(agents, admin, "/v1/principals/ann", 200)
        status, told = await ask(first, FIRST, "GET", "/v1/topics")
        assert (status, told["code"]) == (401, "unauthenticated")
        for number in range(4):  # some are led by each of the two
            settings = {"partitions": 1, "replication_factor": 1}
            assert (await ask(first, admin, "PUT", f"/v1/topics/orders-{number}", settings))[0] == 201
        producer = await principal(first, admin, "pat", rules=["topic:orders-*=write,describe"])
        await reaches(agents, producer, "/v1/topics", 200)
        for agent in agents:
            for number in range(4):
                path = f"/v1/topics/orders-{number}/records"
                status, told = await ask(agent, producer, "POST", path, {"records": [{"value": "v"}]})
                assert status == 200, told
                status, told = await ask(agent, producer, "GET", path)
                assert (status, told["action"], told["resource"]) == (403, "read", f"topic:orders-{number}")
        status, told = await ask(second, producer, "GET", "/v1/principals")
        assert (status, told["resource"]) == (403, "cluster")
        async with AsyncClient([second.agent.url], token=producer) as client:
            sender = await client.producer("orders-0").open()
            await sender.send(b"by the client")
            await sender.close()
        status, told = await ask(second, producer, "GET", "/v1/routes?topic=orders-0")
        assert status == 200
        version = told["version"]
        waiting = asyncio.create_task(
            ask(second, producer, "GET", f"/v1/routes?topic=orders-0&wait=60s&after_version={version}")
        )
        shown = (await ask(first, admin, "GET", "/v1/principals/pat"))[1]["tokens"]
        assert (await ask(first, admin, "DELETE", f"/v1/tokens/{shown[0]['id']}"))[0] == 204
        loop = asyncio.get_running_loop()
        revoked = loop.time()
        await reaches(agents, producer, "/v1/topics", 401)
        told = (await waiting)[1]
        if told.get("code") != "unauthenticated":  # something else had changed just then
            assert "topics" in told
        assert loop.time() - revoked < HOLDS_WITHIN_S
