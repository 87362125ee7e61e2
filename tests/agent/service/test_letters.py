"""Dead letters of whole agents: from the leader of one partition to that of another, and back again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE_S

from tests.agent.agents import Running, agents_in
from tests.agent.service.test_groups import COUNT, GROUP, asked, drained, values, with_records

DEAD = "/v1/topics/t.dead.g"


async def letters(running: Running, count: int) -> list[dict[str, Any]]:
    """The records of the topic of dead letters, once there are so many."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            status, found = await running.call("GET", f"{DEAD}/records", offset="earliest", limit=1_000)
            records = found.get("records", []) if status == 200 else []
            if len(records) >= count:
                return list(records)
            await asyncio.sleep(0.05)


async def led(running: Running) -> None:
    """Every partition has a leader again."""
    async with asyncio.timeout(PATIENCE_S):
        while (await asked(running, "GET", GROUP))["unavailable"]:
            await asyncio.sleep(0.05)


def told(record: dict[str, Any]) -> dict[str, str]:
    return {header["key"]: header["value"] for header in record["headers"]}


@pytest.mark.slow
async def test_rejected_messages_are_stored_once_and_come_again(tmp_path: Path) -> None:
    """Whoever leads either partition, and though an agent dies; a redrive brings them to the group alone."""
    async with agents_in(tmp_path) as agents:
        running = await with_records(agents)
        await asked(running[0], "PUT", GROUP)
        rejected: list[str] = []
        for agent in running:
            got = await asked(agent, "POST", f"{GROUP}/receive", {"limit": 4, "consumer": "c"})
            receipts = [message["receipt"] for message in got["messages"]]
            done = await asked(agent, "POST", f"{GROUP}/reject", {"receipts": receipts, "reason": "no"})
            assert done["failed"] == []
            rejected += [message["value"] for message in got["messages"]]
        assert len(rejected) == 12
        found = await letters(running[1], 12)
        assert sorted(record["value"] for record in found) == sorted(rejected)
        assert {told(record)["shoal-reason"] for record in found} == {"rejected: no"}
        assert {told(record)["shoal-topic"] for record in found} == {"t"}
        alive = running[1:]
        await running[0].crash()
        await led(alive[0])
        await drained(alive, consumer="d")
        again = await asked(alive[0], "POST", f"{GROUP}/redrive", {"limit": 5}, timeout="30s")
        assert again == {"redriven": 5, "copied": 0, "kept": 0, "kept_letters": []}
        again = await asked(alive[1], "POST", f"{GROUP}/redrive", timeout="30s")
        assert again == {"redriven": 7, "copied": 0, "kept": 0, "kept_letters": []}
        assert values(await drained(alive, consumer="d")) == sorted(rejected)
        assert len(await letters(alive[0], 12)) == 12
        document = await asked(alive[0], "GET", GROUP)
        assert sum(entry["acked"] for entry in document["partitions"]) == COUNT


@pytest.mark.slow
async def test_a_deleted_topic_of_letters_is_made_again(tmp_path: Path) -> None:
    """Letters wait until then: to make the group again makes it."""
    async with agents_in(tmp_path) as agents:
        agent = await agents.alone("a")
        await asked(agent, "PUT", "/v1/topics/t", {"partitions": 1})
        await asked(agent, "PUT", GROUP)
        await asked(agent, "DELETE", DEAD)
        await asked(agent, "POST", "/v1/topics/t/records", {"records": [{"value": "v"}]})
        got = await asked(agent, "POST", f"{GROUP}/receive", {"limit": 1})
        await asked(agent, "POST", f"{GROUP}/reject", {"receipts": [got["receipt"]]})
        assert (await asked(agent, "GET", GROUP))["totals"]["dying"] == 1
        await asked(agent, "PUT", GROUP)
        assert [record["value"] for record in await letters(agent, 1)] == ["v"]
