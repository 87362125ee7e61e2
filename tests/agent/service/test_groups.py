"""Consumer groups of whole agents: any of them is asked, and nothing is lost where one of them dies."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE_S, until

from shoal.agent.durable.ids import GroupId
from shoal.replication.errors import InvalidChange, NotLeader
from tests.agent.agents import EVENTUALLY_S, LOOK_INTERVAL_S, Agents, Running, agents_in

GROUP = "/v1/topics/t/groups/g"
COUNT = 60


async def asked(running: Running, method: str, path: str, body: object = None, **query: object) -> Any:
    """Asked again where nobody led for a moment and nothing was done."""
    given_up = asyncio.get_running_loop().time() + EVENTUALLY_S
    while True:
        status, document = await running.call(method, path, body, **query)
        if status < 300:
            return document
        assert (status, document["definite"], document["retriable"]) == (503, True, True), document
        assert asyncio.get_running_loop().time() < given_up, document
        await asyncio.sleep(LOOK_INTERVAL_S)


async def with_records(agents: Agents) -> list[Running]:
    """Three agents at the highest level; topic t has three partitions with COUNT records in all."""
    running = await agents.cluster(3)
    await asked(running[0], "POST", "/v1/cluster/level", {})
    await asked(running[0], "PUT", "/v1/topics/t", {"partitions": 3})
    records = [{"key": f"k{number}", "value": f"v{number}"} for number in range(COUNT)]
    await asked(running[1], "POST", "/v1/topics/t/records", {"records": records})
    return running


async def drained(running: list[Running], **body: object) -> list[dict[str, Any]]:
    """Every answer with messages, asked of the agents by turns; each is acked with the next. A partition that
    cannot be asked for a moment may have some."""
    answers: list[dict[str, Any]] = []
    acks: list[str] = []
    turn = 0
    while True:
        agent = running[turn % len(running)]
        got = await asked(agent, "POST", f"{GROUP}/receive", {"limit": 7, "ack": acks, **body})
        assert got["acked"]["failed"] == []
        if not got["messages"]:
            if got["reason"] == "unavailable":
                acks = []
                continue
            return answers
        answers.append(got)
        acks, turn = [got["receipt"]], turn + 1


def values(answers: list[dict[str, Any]]) -> list[str]:
    return sorted(message["value"] for answer in answers for message in answer["messages"])


@pytest.mark.slow
async def test_a_group_is_served_by_all_agents(tmp_path: Path) -> None:
    """Made by the first receive, drained at all of them, described, sought, paused and deleted."""
    async with agents_in(tmp_path) as agents:
        running = await with_records(agents)
        answers = await drained(running, consumer="c")
        assert values(answers) == sorted(f"v{number}" for number in range(COUNT))
        assert {message["attempt"] for answer in answers for message in answer["messages"]} == {1}
        for agent in running:
            document = await asked(agent, "GET", GROUP)
            assert (document["totals"]["lag"], document["totals"]["in_flight"]) == (0, 0)
            assert sum(entry["acked"] for entry in document["partitions"]) == COUNT
        names = [topic["name"] for topic in (await asked(running[2], "GET", "/v1/topics"))["topics"]]
        assert names == ["t", "t.dead.g"]
        await asked(running[2], "POST", f"{GROUP}/seek", {"to": "earliest"})
        again = await asked(running[0], "POST", f"{GROUP}/receive", {"limit": 5})
        assert len(again["messages"]) == 5
        await asked(running[1], "PATCH", GROUP, {"paused": True})

        async with asyncio.timeout(PATIENCE_S):
            reason = None  # leaders hear of it by their catalogs
            while reason != "paused":
                reason = (await asked(running[0], "POST", f"{GROUP}/receive", {"limit": 1}))["reason"]
        await asked(running[1], "DELETE", GROUP)
        status, problem = await running[1].call("GET", GROUP)
        assert (status, problem["code"]) == (404, "unknown-group")
        await until(lambda: all(not folds(agent, 3) for agent in running))
        catalogs = {"group-created", "group-paused", "group-deleted"}
        await until(lambda: all(catalogs <= told(agent).keys() for agent in running))
        sought = [data for agent in running for data in told(agent).get("group-sought", [])]
        assert sorted(data["partition"] for data in sought) == [0, 1, 2]  # each of them by its leader alone


def told(agent: Running) -> dict[str, list[Mapping[str, Any]]]:
    """The events of groups that the agent has published, by kind."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for event in agent.agent.broker.events.after(0):
        if event.kind.startswith("group-"):
            found.setdefault(event.kind, []).append(event.data)
    return found


@pytest.mark.slow
async def test_a_request_is_answered_again_after_its_leader_has_died(tmp_path: Path) -> None:
    """With the same messages and receipts; what was acked does not come again. It led the others as well:
    until somebody else does, the group is not called empty."""
    async with agents_in(tmp_path) as agents:
        running = await with_records(agents)
        body = {"limit": 5, "consumer": "c", "request": "r1"}
        first = await asked(running[0], "POST", f"{GROUP}/receive", body)
        assert len(first["messages"]) == 5
        done = first["messages"][0]["receipt"]
        assert await asked(running[1], "POST", f"{GROUP}/ack", {"receipts": [done]}) == {
            "done": 1,
            "failed": [],
        }
        routes = await asked(running[0], "GET", "/v1/routes", topic="t")
        leader = routes["topics"]["t"]["partitions"][first["partition"]]["leader"]
        dead = next(agent for agent in running if agent.agent.broker.agent_id == leader)
        alive = [agent for agent in running if agent is not dead]
        await lead_all(dead, alive, 3)
        await dead.crash()
        repeated = {**body, "retry": True}
        second = await asked(alive[0], "POST", f"{GROUP}/receive", repeated, timeout="30s")
        assert second["receipt"] == first["receipt"]
        assert second["messages"] == first["messages"][1:]
        rest = [message["receipt"] for message in second["messages"]]
        outcome = await asked(alive[1], "POST", f"{GROUP}/ack", {"receipts": [done, *rest]}, timeout="30s")
        assert (outcome["done"], [item["code"] for item in outcome["failed"]]) == (4, ["receipt-used"])
        others = await drained(alive, consumer="d")
        seen = {message["value"] for message in first["messages"]}
        assert values(others) == sorted({f"v{number}" for number in range(COUNT)} - seen)


@pytest.mark.slow
async def test_a_group_begins_at_a_time(tmp_path: Path) -> None:
    """In the partition where it is asked first, and in the others."""
    async with agents_in(tmp_path) as agents:
        agent = await agents.alone("a")
        await asked(agent, "PUT", "/v1/topics/t", {"partitions": 2})
        times = ["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", "2026-01-03T00:00:00Z"]
        for partition in range(2):
            records = [{"value": f"{partition}-{day}", "timestamp": time} for day, time in enumerate(times)]
            await asked(agent, "POST", f"/v1/topics/t/partitions/{partition}/records", {"records": records})
        await asked(agent, "PUT", GROUP, {"start": "@2026-01-01T12:00:00Z"})
        assert values(await drained([agent])) == ["0-1", "0-2", "1-1", "1-2"]


async def lead_all(leader: Running, others: list[Running], partitions: int) -> None:
    """All partitions of the topic are led there."""
    topic = leader.agent.broker.topic("t")
    groups = [GroupId(topic.id, partition) for partition in range(partitions)]
    host = leader.agent.broker._parts().host

    def is_led(group: GroupId) -> bool:
        for other in others:
            its = other.agent.broker._parts().host
            if its.replica(group).is_leader:
                with suppress(InvalidChange, NotLeader):  # it does so already, or has lost it
                    its.transfer(group, host.replica(group).replica_id)
        return host.status(group).state == "active" and host.replica(group).is_leader

    await until(lambda: all(is_led(group) for group in groups))


def folds(running: Running, partitions: int) -> list[object]:
    """The groups that the replicas of an agent have in their logs."""
    broker = running.agent.broker
    host, topic = broker._parts().host, broker.topic("t")
    return [
        key
        for partition in range(partitions)
        if host.has(GroupId(topic.id, partition))
        for key in host.replica(GroupId(topic.id, partition)).state.fold.groups  # type: ignore[attr-defined]
    ]
