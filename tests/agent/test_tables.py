"""Tables over HTTP at whole agents: rows by key, conditions, scans, and rows that outlive kill -9 of all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from shoal.agent.levels import Level, LevelRange
from tests.agent.agents import Agents, Running, agents_in

FIVE = LevelRange(Level(1), Level(5))


@pytest.fixture
async def agents(tmp_path: Path) -> AsyncIterator[Agents]:
    """Of this test alone."""
    async with agents_in(tmp_path) as made:
        yield made


async def row(
    agent: Running, method: str, key: str, body: bytes | None = None, **headers: str
) -> tuple[int, str | None, bytes]:
    """Status, ETag and body."""
    url = f"{agent.agent.url}/v1/tables/t/{key}"
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session,
        session.request(method, url, data=body, headers=headers) as response,
    ):
        return response.status, response.headers.get("ETag"), await response.read()


async def keys_of(agent: Running, **query: Any) -> list[str]:
    """Of a scan."""
    status, document = await agent.call("GET", "/v1/tables/t", **query)
    assert status == 200, document
    return [item["key"] for item in document["rows"]]


async def made(agent: Running) -> None:
    """The table is there, at level 5."""
    async with asyncio.timeout(60):
        while True:
            status, document = await agent.call("PUT", "/v1/topics/t", {"kind": "table", "partitions": 3})
            if status == 201:
                assert document["kind"] == "table"
                return
            assert document["code"] == "level-too-low"
            await agent.call("POST", "/v1/cluster/level", {})
            await asyncio.sleep(0.1)


async def test_rows_are_put_read_compared_and_deleted_at_any_agent_and_outlive_them(agents: Agents) -> None:
    """Each request at another agent; in the end all are killed, and come back with every row."""
    three = await agents.cluster(3, FIVE)
    await made(three[0])
    tags: dict[str, str] = {}
    for number in range(30):
        status, tag, _ = await row(three[number % 3], "PUT", f"k{number:02d}", b"%d" % number)
        assert status in (200, 201)
        assert tag is not None
        tags[f"k{number:02d}"] = tag
    for number in range(30):
        status, tag, body = await row(three[(number + 1) % 3], "GET", f"k{number:02d}")
        assert (status, tag, body) == (200, tags[f"k{number:02d}"], b"%d" % number)
    status, tag, _ = await row(three[1], "PUT", "k07", b"new", **{"If-Match": tags["k07"]})
    assert status in (200, 201)
    assert (await row(three[2], "PUT", "k07", b"late", **{"If-Match": tags["k07"]}))[0] == 412
    assert (await row(three[2], "PUT", "k07", b"late", **{"If-None-Match": "*"}))[0] == 412
    assert (await row(three[0], "DELETE", "k08"))[0] in (200, 204)
    assert (await row(three[1], "GET", "k08"))[0] == 404
    expected = [f"k{number:02d}" for number in range(30) if number != 8]
    assert await keys_of(three[2]) == expected
    assert await keys_of(three[0], prefix="k1") == [key for key in expected if key.startswith("k1")]
    for body, refused in (
        (b"no key", 400), ({"records": [{}]}, 400), ({"records": [{"key": "", "value": "v"}]}, 400),
        ({"records": [{"key": "k" * 65_536, "value": "v"}]}, 413),
    ):  # fmt: skip
        status, problem = await three[0].call("POST", "/v1/topics/t/records", body)
        assert status == refused, problem
    for running in three:
        await running.crash()
    first = agents.start("a0", FIVE, expect=3)
    join = [await first.gossip_address()]
    again = [first, *(agents.start(name, FIVE, expect=3, join=join) for name in ("a1", "a2"))]
    three = [await running.until_ready() for running in again]
    assert await keys_of(three[1]) == expected
    assert (await row(three[0], "GET", "k07"))[1:] == (tag, b"new")
