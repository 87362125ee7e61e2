"""A replica that waits for intact bytes from a peer: its agent serves the partition all the same, says what
is wrong, and is mended by itself."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from shoal.agent.host.repair import LogRepair
from tests.agent.agents import Running, agents_in, eventually

pytestmark = pytest.mark.slow
RECORDS = "/v1/topics/t/partitions/0/records"


def flip_newest(data: Path, topic_id: str) -> None:
    """One bit of the newest batch, which the fold at a start needs."""
    (segment,) = data.glob(f"topics/{topic_id}/0/*.arrows")
    content = bytearray(segment.read_bytes())
    content[content.rfind(b"newest")] ^= 1
    segment.write_bytes(content)


class EntryState:
    """Mending is held up until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free = asyncio.Event()
        proper = LogRepair._mend_waiting

        async def wait(log_repair: LogRepair, damaged: Any) -> None:
            await self.free.wait()
            await proper(log_repair, damaged)

        monkeypatch.setattr(LogRepair, "_mend_waiting", wait)


async def values(agent: Running, **query: object) -> tuple[int, list[Any]]:
    status, document = await agent.call("GET", RECORDS, offset=0, **query)
    return status, [record["value"] for record in document.get("records", [])]


async def not_serving(agent: Running) -> list[Any]:
    return list((await agent.call("GET", "/v1/agent"))[1]["not_serving"])


async def test_the_agent_of_a_waiting_replica_answers_from_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Appends, reads and ends of the log come from the leader, or say with 421 where it is; without a leader
    503 names the other holders. Once a peer has lent the bytes the replica serves by itself."""
    async with agents_in(tmp_path) as agents:
        cluster = await agents.cluster(3)
        victim = cluster[2]
        assert (await victim.call("PUT", "/v1/topics/t", {"replication_factor": 3}))[0] == 201
        assert (await victim.call("POST", RECORDS, b"newest"))[0] == 200

        async def stored() -> bool:
            return await values(victim, consistency="local") == (200, ["newest"])

        await eventually(stored)
        topic_id = (await victim.call("GET", "/v1/topics/t"))[1]["id"]
        address = await cluster[0].gossip_address()
        await victim.crash()
        flip_newest(tmp_path / "a2", topic_id)
        held = EntryState(monkeypatch)
        again = agents.start("a2", expect=3, join=[address])

        async def waits() -> bool:
            return hasattr(again.agent, "broker") and bool(await not_serving(again))

        await eventually(waits)
        (waiting,) = await not_serving(again)
        assert (waiting["topic"], waiting["partition"], waiting["state"]) == ("t", 0, "failed")
        assert "mended from peers" in waiting["reason"]

        async def led() -> bool:
            return (await again.call("POST", RECORDS, b"more", timeout="1s"))[0] == 200

        await eventually(led)
        status, read = await values(again)
        assert (status, read[:2]) == (200, ["newest", "more"])
        assert await values(again, consistency="local") == (200, read)
        assert (await again.call("GET", "/v1/topics/t/offsets"))[0] == 200
        for method, body in (("POST", b"x"), ("GET", None)):
            status, problem = await again.call(method, RECORDS, body, forward="false")
            assert (status, problem["code"], problem["retriable"]) == (421, "not-leader", True)
            assert problem["leader_url"] in {agent.agent.url for agent in cluster[:2]}
        others = {agent.agent.url for agent in cluster[:2]}
        await cluster[0].crash()

        async def leaderless() -> bool:
            return (await again.call("POST", RECORDS, b"x", forward="false"))[0] == 503

        await eventually(leaderless)
        _, problem = await again.call("POST", RECORDS, b"x", forward="false")
        assert (problem["code"], problem["retriable"], problem["definite"]) == ("no-leader", True, True)
        assert "mended from peers" in problem["detail"]
        assert set(problem["replica_urls"]) == others

        held.free.set()

        async def whole() -> bool:
            if await not_serving(again):
                return False
            status, read = await values(again, consistency="local")
            return status == 200 and read[:2] == ["newest", "more"]

        await eventually(whole)
