"""A topic that changes while it is used: whole agents in one process, on loopback, in seconds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shoal.agent.durable.ids import GroupId
from shoal.agent.levels import BEFORE_LEVELS, SUPPORTED
from shoal.agent.partition.state.retention import Retention
from tests.agent.agents import Agents, Running, agents_in, eventually
from tests.agent.placement.test_rebalancer import Producer, values

CHANGE_LIMIT_S = 90.0


@pytest.fixture
async def agents(tmp_path: Path) -> AsyncIterator[Agents]:
    async with agents_in(tmp_path) as started:
        yield started


async def change(at: Running, body: dict[str, Any], **query: str) -> dict[str, Any]:
    status, document = await at.call("PATCH", "/v1/topics/t", body, timeout="30s", **query)
    assert status == 200, document
    return document


async def until_replicas(at: Running, voters: int) -> dict[str, Any]:
    """Each partition has so many replicas, all of which vote, and nothing is to come or to go; the topic."""
    found: dict[str, Any] = {}

    async def settled() -> bool:
        found.update((await at.call("GET", "/v1/topics/t"))[1])
        roles = [[one["role"] for one in item["replicas"]] for item in found["partitions"]]
        counts = (found["missing_replicas"], found["surplus_replicas"])
        return counts == (0, 0) and all(len(item) == voters and "learner" not in item for item in roles)

    await eventually(settled, CHANGE_LIMIT_S)
    return found


async def test_replicas_follow_a_factor_that_changes_under_writes(agents: Agents) -> None:
    """Down to one, up to three, above the number of agents, and twice at once: replicas follow, appends go on
    without a fault, and every acknowledged record is there, in order."""
    cluster = await agents.cluster(3)
    assert (await cluster[0].call("PUT", "/v1/topics/t", {"partitions": 2, "replication_factor": 3}))[
        0
    ] == 201
    producer = Producer(cluster[0], "t", 2)
    lowered = await change(cluster[1], {"replication_factor": 1})
    assert (lowered["replication_factor"], lowered["surplus_replicas"]) == (1, 4)
    await until_replicas(cluster[0], 1)
    await change(cluster[2], {"replication_factor": 3})
    await change(cluster[1], {"replication_factor": 2})
    await until_replicas(cluster[2], 2)
    high = await change(cluster[0], {"replication_factor": 5})
    assert "note" in await until_replicas(cluster[1], 3)
    assert high["note"] == "5 replicas are wanted, and 3 agents can hold them: 2 more are made as agents join"
    acknowledged = await producer.stop()
    assert producer.faults == []
    assert all(len(found) > 10 for found in acknowledged.values())
    for partition, expected in acknowledged.items():
        assert await values(cluster[2], "t", partition) == expected


async def test_replicas_take_other_settings_without_a_restart(agents: Agents) -> None:
    """Retention and segments, on each agent that holds one; a condition that no longer holds changes
    nothing."""
    cluster = await agents.cluster(3)
    _, made = await cluster[0].call("PUT", "/v1/topics/t", {"replication_factor": 3})
    group = GroupId(bytes.fromhex(made["id"]), 0)
    kept = {"age": "7d", "bytes": 2 << 20, "hold_for_groups": True, "acknowledged": True}
    body = {"retention": kept, "segment": {"bytes": 1 << 20, "age": "1h"}}
    changed = await change(cluster[2], body, if_version=made["settings_version"])
    wanted = Retention(7 * 86_400_000, 2 << 20, 3_600_000, hold_for_groups=True, acknowledged=True)

    async def taken() -> bool:
        replicas = [running.agent.host.replica(group) for running in cluster if running.agent.host]
        found = [(item.plan.retention, item.log._files.config.segment_bytes) for item in replicas]
        return found == [(wanted, 1 << 20)] * 3

    await eventually(taken)
    status, problem = await cluster[1].call(
        "PATCH", "/v1/topics/t", {"retention": {"age": "1d"}}, if_version=made["settings_version"]
    )
    assert (status, problem["code"], problem["definite"]) == (409, "settings-changed", True)
    for running in cluster:
        _, table = await running.call("GET", "/v1/topics/t/settings")
        assert table["version"] == changed["settings_version"]
        assert {row["name"]: row["value"] for row in table["settings"]}["retention.age"] == "7d"


async def test_a_member_of_the_former_version_keeps_the_factor_as_it_is(agents: Agents) -> None:
    """Whichever agent is asked refuses it, names the level, and changes nothing; retention changes. Once the
    member is upgraded and the level has risen, the same request is carried out."""
    # The older one is the founder: else it might come to a cluster that has risen.
    old = await agents.alone("old", levels=BEFORE_LEVELS)
    new = await agents.start("new", expect=2, join=[await old.gossip_address()]).until_ready()
    join = [await new.gossip_address()]
    assert (await new.call("PUT", "/v1/topics/t", {"replication_factor": 1}))[0] == 201
    wanted = {"replication_factor": 2, "retention": {"age": "1d"}}
    for running in (new, old):
        status, problem = await running.call("PATCH", "/v1/topics/t", wanted, timeout="30s")
        assert (status, problem["code"]) == (409, "level-too-low")
        assert (problem["retriable"], problem["definite"]) == (False, True)
        risen = f"old must be upgraded before it can rise to {SUPPORTED.highest}"
        why = f"the cluster is at level 1: {risen}"
        assert problem["detail"].endswith(f"needs level 2, and {why}")
    found = await change(old, {"retention": {"age": "7d"}})
    assert (found["replication_factor"], found["retention"]["age"]) == (1, "7d")
    await old.crash()
    upgraded = await agents.start("old", expect=2, join=join).until_ready()

    async def is_raised() -> bool:
        return (await new.call("POST", "/v1/cluster/level", {"level": 2}))[0] == 200

    await eventually(is_raised)
    await change(upgraded, wanted)
    found = await until_replicas(new, 2)
    assert (found["replication_factor"], found["retention"]["age"]) == (2, "1d")
