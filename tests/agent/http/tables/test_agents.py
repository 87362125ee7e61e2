"""Tables over HTTP on running agents: each agent answers for all partitions, over a change of leaders too."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import aiohttp
import pytest
from http_fixtures import events_of, take

from shoal.agent.levels import Level, LevelRange
from tests.agent.agents import Running, agents_in, eventually

pytestmark = pytest.mark.slow

LEVELS = LevelRange(Level(1), Level(5))
KEYS = [f"user/{number}" for number in range(40)]


async def put(session: aiohttp.ClientSession, agent: Running, key: str, value: bytes, **headers: str) -> int:
    url = f"{agent.agent.url}/v1/tables/t/{key}?timeout=30s"
    sent = {name.replace("_", "-"): text for name, text in headers.items()}
    async with session.put(url, data=value, headers=sent) as response:
        return response.status


async def get(session: aiohttp.ClientSession, agent: Running, path: str) -> bytes:
    async with session.get(f"{agent.agent.url}/v1/tables/t{path}") as response:
        assert response.status == 200, await response.text()
        return await response.read()


async def test_every_agent_serves_all_rows(tmp_path: Path) -> None:
    """Linearizable gets and puts at any agent, conditions, one order of keys, a watch of everything."""
    async with agents_in(tmp_path) as agents, aiohttp.ClientSession() as session:
        cluster = await agents.cluster(3, LEVELS)
        settings = {"kind": "table", "partitions": 3, "replication_factor": 3}

        async def created() -> bool:
            await cluster[0].call("POST", "/v1/cluster/level", {})
            return (await cluster[0].call("PUT", "/v1/topics/t", settings))[0] in (200, 201)

        await eventually(created)

        async def known() -> bool:
            return all([(await agent.call("GET", "/v1/topics/t"))[0] == 200 for agent in cluster])

        await eventually(known)
        for number, key in enumerate(KEYS):
            writer, reader = cluster[number % 3], cluster[(number + 1) % 3]
            assert await put(session, writer, key, key.encode(), If_None_Match="*") == 200
            assert await put(session, reader, key, b"no", If_None_Match="*") == 412
            assert await get(session, reader, f"/{key}") == key.encode()
        for agent in cluster:
            rows = (await agent.call("GET", "/v1/tables/t", None, limit="100"))[1]
            assert [row["key"] for row in rows["rows"]] == sorted(KEYS)
            assert rows["is_last"]
        headers = {"Accept": "text/event-stream"}
        async with session.get(f"{cluster[2].agent.url}/v1/tables/t", headers=headers) as response:
            events = events_of(response)
            contents = await take(events, len(KEYS) + 1)
            assert [kind for _, kind, _ in contents] == ["row"] * len(KEYS) + ["current"]
            await cluster[0].call("DELETE", f"/v1/tables/t/{KEYS[0]}")
            (change,) = await take(events, 1)
            assert (change[1], change[2]["key"], change[2]["value"]) == ("change", KEYS[0], None)
        await cluster[0].leave()
        for agent in cluster[1:]:
            for key in KEYS[1:6]:
                # While leaders change, a put may end without an answer that says whether it was stored.
                await eventually(partial(_is_stored, session, agent, key))
                assert await get(session, agent, f"/{key}") == b"after"


async def _is_stored(session: aiohttp.ClientSession, agent: Running, key: str) -> bool:
    return await put(session, agent, key, b"after") == 200
