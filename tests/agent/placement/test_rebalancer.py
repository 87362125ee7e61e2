"""Replicas that place themselves: whole agents in one process, on loopback, in seconds."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shoal.agent.durable.identity import ReplicaState
from shoal.agent.durable.ids import GroupId
from shoal.agent.placement.targets import steady_target
from tests.agent.agents import Agents, Running, agents_in, eventually

GROWTH_LIMIT_S = 90.0
LOST_LEADERSHIPS_MAX = 2
REPLACE_AFTER = "1s"  # after gossip has given the agent up, which takes about four


@pytest.fixture
async def agents(tmp_path: Path) -> AsyncIterator[Agents]:
    async with agents_in(tmp_path) as started:
        yield started


async def voters(at: Running, topic: str) -> list[set[str]]:
    """Of each partition, as this agent shows them; a partition with a learner counts as unfinished."""
    status, document = await at.call("GET", f"/v1/topics/{topic}")
    assert status == 200, document
    return [
        {replica["id"] for replica in partition["replicas"]}
        if all(replica["role"] != "learner" for replica in partition["replicas"])
        else set()
        for partition in document["partitions"]
    ]


async def until_held_by(
    at: Running, topic: str, holders: list[Running], limit_s: float = GROWTH_LIMIT_S
) -> None:
    """Every partition of the topic is held by exactly these, all of them voters."""
    wanted = {running.agent.agent_id for running in holders}

    async def settled() -> bool:
        return all(found == wanted for found in await voters(at, topic))

    await eventually(settled, limit_s)


async def values(at: Running, topic: str, partition: int) -> list[str]:
    found: list[str] = []
    while True:
        path = f"/v1/topics/{topic}/partitions/{partition}/records"
        status, body = await at.call("GET", path, offset=len(found), limit=1_000)
        assert status == 200, body
        if not body["records"]:
            return found
        found += [record["value"] for record in body["records"]]


class Producer:
    """Appends one record after the other to each partition, until told to stop; remembers what was
    acknowledged. Leaderships that are given away cost no append; a few may be lost because this machine stood
    still, and what may have happened then is asked again, as clients do."""

    def __init__(self, at: Running, topic: str, partitions: int) -> None:
        self.acknowledged: dict[int, list[str]] = {number: [] for number in range(partitions)}
        self.faults: list[Any] = []
        self._name = secrets.token_hex(8)
        self._lost_left = LOST_LEADERSHIPS_MAX
        self._at = at
        self._topic = topic
        self._stopping = asyncio.Event()
        self._tasks = [asyncio.create_task(self._produce(number)) for number in range(partitions)]

    async def _produce(self, partition: int) -> None:
        number = 0
        while not self._stopping.is_set():
            value = f"{partition}-{number}"
            number += 1
            path = f"/v1/topics/{self._topic}/partitions/{partition}/records"
            stamp = {
                "Shoal-Producer-Id": f"{self._name}-{partition}",
                "Shoal-Producer-Epoch": "0",
                "Shoal-Producer-Sequence": str(number - 1),
            }
            record = {"records": [{"value": value}]}
            status, body = await self._at.call("POST", path, record, stamp, timeout="10s")
            while status != 200 and body["code"] == "leadership-lost" and self._lost_left > 0:
                self._lost_left -= 1
                status, body = await self._at.call("POST", path, record, stamp, timeout="10s")
            if status == 200:
                self.acknowledged[partition].append(value)
            else:
                self.faults.append(body)
            await asyncio.sleep(0.005)

    async def stop(self) -> dict[int, list[str]]:
        self._stopping.set()
        await asyncio.gather(*self._tasks)
        return self.acknowledged


def record_states(running: Running, topic_id: bytes, partitions: int) -> list[ReplicaState | None]:
    host = running.agent.host
    assert host is not None
    records = [host.replica_record(GroupId(topic_id, number)) for number in range(partitions)]
    return [None if record is None else record.state for record in records]


async def test_a_topic_made_on_one_agent_grows_with_the_cluster(agents: Agents, tmp_path: Path) -> None:
    """Born with one replica, wanting three: as two join, every partition gets its voters, appends go on
    without a fault, and what was acknowledged is on every disk, also after the founder is gone; a deletion
    reaches those who were not there at birth."""
    first = await agents.alone("a0")
    status, document = await first.call("PUT", "/v1/topics/t", {"partitions": 3})
    assert (status, document["effective_replication_factor"]) == (201, 1)
    producer = Producer(first, "t", 3)
    address = await first.gossip_address()
    later = [agents.start(name, expect=None, join=[address]) for name in ("a1", "a2")]
    for running in later:
        await running.until_ready()
    await until_held_by(first, "t", [first, *later])
    acknowledged = await producer.stop()
    assert producer.faults == []
    assert all(len(found) > 10 for found in acknowledged.values())
    document = (await later[0].call("GET", "/v1/topics/t"))[1]
    assert (document["under_replicated"], document["effective_replication_factor"]) == (0, 3)

    await first.crash()
    for partition, expected in acknowledged.items():
        path = f"/v1/topics/t/partitions/{partition}/records"
        assert (await later[1].call("POST", path, b"after", timeout="10s"))[0] == 200
        assert await values(later[0], "t", partition) == [*expected, "after"]

    directories = [tmp_path / name / "topics" / document["id"] for name in ("a1", "a2")]
    assert all(directory.exists() for directory in directories)
    status, problem = await later[0].call("DELETE", "/v1/topics/t", timeout="10s")
    assert status == 204, problem
    await eventually(lambda: _are_gone(directories))


async def _are_gone(directories: list[Path]) -> bool:
    return not any(directory.exists() for directory in directories)


async def test_a_dead_voter_is_replaced_and_gives_way_when_it_returns(agents: Agents, tmp_path: Path) -> None:
    """Add, promote, remove; the old replica deletes itself on return and never comes back under its id, not
    even after a restart, while what was acknowledged stays."""
    cluster = await agents.cluster(3, replace_after=REPLACE_AFTER)
    status, document = await cluster[0].call(
        "PUT", "/v1/topics/t", {"partitions": 2, "replication_factor": 3}
    )
    assert status == 201, document
    topic_id = bytes.fromhex(document["id"])
    address = await cluster[0].gossip_address()
    spare = agents.start("spare", expect=None, join=[address], replace_after=REPLACE_AFTER)
    await spare.until_ready()
    producer = Producer(cluster[0], "t", 2)
    await asyncio.sleep(0.3)
    lost = cluster[2]
    await lost.crash()
    rest = [cluster[0], cluster[1], spare]
    await until_held_by(cluster[0], "t", rest)
    acknowledged = await producer.stop()

    directory = tmp_path / "a2" / "topics" / document["id"]
    assert directory.exists()
    removed = [ReplicaState.REMOVED] * 2
    for _ in range(2):
        back = agents.start("a2", expect=3, join=[address], replace_after=REPLACE_AFTER)
        await back.until_ready()
        await eventually(lambda: _are_gone([directory]))
        assert record_states(back, topic_id, 2) == removed
        await until_held_by(back, "t", rest)
        for partition, expected in acknowledged.items():
            assert [value for value in await values(back, "t", partition) if value in expected] == expected
        await back.leave()


async def test_an_agent_that_is_away_for_a_moment_keeps_its_replicas(agents: Agents) -> None:
    """Gone for less than replace_after (five minutes by default): nothing moves. And an agent that votes on
    nothing serves the metadata like any other."""
    cluster = await agents.cluster(3)
    await cluster[0].call("PUT", "/v1/topics/t", {"replication_factor": 3})
    spare = agents.start("spare", expect=None, join=[await cluster[0].gossip_address()])
    await spare.until_ready()
    await cluster[2].crash()

    async def failed() -> bool:
        members = (await cluster[0].call("GET", "/v1/members"))[1]["members"]
        return any(member["status"] == "failed" for member in members)

    await eventually(failed)
    await asyncio.sleep(1.5)
    assert await voters(cluster[0], "t") == [{running.agent.agent_id for running in cluster}]
    assert spare.agent.host is not None
    assert list(spare.agent.host.replica_records()) == []
    assert await voters(spare, "t") == [{running.agent.agent_id for running in cluster}]
    listed = [(await item.call("GET", "/v1/topics"))[1]["topics"] for item in (*cluster[:2], spare)]
    assert [[topic["name"] for topic in topics] for topics in listed] == [["t"]] * 3


@pytest.mark.parametrize(
    ("wanted", "found", "target"),
    [(3, 1, 3), (1, 2, 2), (1, 3, 3), (3, 4, 3), (3, 5, 5), (5, 6, 5), (4, 4, 4)],
)
def test_a_number_that_follows_the_members_never_falls_with_them(
    wanted: int, found: int, target: int
) -> None:
    """Only an even voter is given up, which added nothing."""
    assert steady_target(wanted, found) == target
