"""An agent that is told to hold nothing: whole agents in one process, and the command that watches."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from command_line import assert_one_line, run

from shoal.agent.cli.drain import verdict
from shoal.agent.cli.terminal.progress import ProgressBar
from tests.agent.agents import Agents, Running, agents_in, eventually
from tests.agent.placement.test_rebalancer import Producer, values

PARTITIONS = 4


@pytest.fixture
async def agents(tmp_path: Path) -> AsyncIterator[Agents]:
    async with agents_in(tmp_path) as started:
        yield started


async def held(at: Running, topic: str, holder: str) -> tuple[int, int]:
    """How many partitions of the topic an agent holds, and leads."""
    document = (await at.call("GET", f"/v1/topics/{topic}"))[1]
    roles = [
        replica["role"]
        for partition in document["partitions"]
        for replica in partition["replicas"]
        if replica["id"] == holder
    ]
    return len(roles), roles.count("leader")


async def voters(at: Running, topic: str) -> set[str]:
    """Of its first partition."""
    document = (await at.call("GET", f"/v1/topics/{topic}"))[1]
    replicas = document["partitions"][0]["replicas"]
    return {replica["id"] for replica in replicas if replica["role"] != "learner"}


@pytest.mark.timeout(300)  # two waits of up to 90 s each on a busy machine
async def test_a_drained_agent_ends_with_nothing_and_takes_its_share_back(agents: Agents) -> None:
    """Nobody who produces notices; what cannot leave is said, and leaves when somebody comes who can take it;
    the wish outlives a restart; undone, the agent gets its share of replicas and leaderships again. A topic
    that wants a replica everywhere has three voters of four, of which none stays on the drained agent, and is
    read from the copy of the one that does not vote."""
    cluster = await agents.cluster(3, replace_after="1s")
    first, second, third = cluster
    status, document = await first.call("PUT", "/v1/topics/t", {"partitions": PARTITIONS})
    assert status == 201, document
    status, document = await first.call("PUT", "/v1/topics/all", {"replication_factor": "all"})
    assert status == 201, document
    assert (await first.call("POST", "/v1/topics/all/partitions/0/records", b"everywhere"))[0] == 200
    producer = Producer(first, "t", PARTITIONS)
    name, leaving = "a2", third.agent.agent_id
    stuck = await run("drain", name, "--timeout", "2", agent=first.agent.url)
    assert_one_line(stuck, "t wants 3 replicas, and 2 other agents can take them", "start more agents")
    assert stuck.code == 1

    async def led_by_others() -> bool:
        return await held(first, "t", leaving) == (PARTITIONS, 0)

    await eventually(led_by_others, 90.0)  # what can leave does, whoever waits for it
    address = await first.gossip_address()
    spare = await agents.start("a3", expect=None, join=[address], replace_after="1s").until_ready()
    ran = await run("drain", name, "--timeout", "90", agent=first.agent.url, seconds=120)
    assert (ran.code, ran.stdout) == (0, "")
    assert "safe to stop" in ran.stderr
    assert await held(first, "t", leaving) == (0, 0)
    assert await voters(first, "all") == {first.agent.agent_id, second.agent.agent_id, spare.agent.agent_id}
    acknowledged = await producer.stop()
    assert producer.faults == []

    await third.leave()
    third = await agents.start(name, expect=3, join=[address], replace_after="1s").until_ready()
    assert (await third.call("GET", "/v1/agent/drain"))[1]["safe_to_stop"]
    created = (await first.call("PUT", "/v1/topics/u", {"replication_factor": 3}))[1]
    assert leaving not in {replica["id"] for replica in created["partitions"][0]["replicas"]}
    undone = await run("drain", "--undo", "--output", "json", agent=third.agent.url)
    assert '"draining": false' in undone.stdout

    shares: list[tuple[int, int]] = []

    async def balanced() -> bool:
        shares[:] = [
            await held(second, "t", running.agent.agent_id) for running in (first, second, third, spare)
        ]
        return shares == [(3, 1)] * 4

    try:
        await eventually(balanced, 90.0)
    except TimeoutError:
        topic = (await second.call("GET", "/v1/topics/t"))[1]
        members = (await second.call("GET", "/v1/members"))[1]
        pytest.fail(f"replicas and leaderships are {shares}: {topic}, {members}")

    async def readable() -> bool:
        path = "/v1/topics/all/partitions/0/records"
        local = await third.call("GET", path, offset=0, consistency="local", forward="false")
        return local[0] == 200 and [record["value"] for record in local[1]["records"]] == ["everywhere"]

    await eventually(readable)
    assert leaving not in await voters(first, "all")
    for partition, expected in acknowledged.items():
        assert await values(third, "t", partition) == expected


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"safe_to_stop": True, "replicas": 0}, ("safe to stop", True)),
        ({"draining": False}, ("take replicas again", False)),
        ({"blocked": ["t wants 3"]}, ("t wants 3", False)),
        ({}, ("2 replicas left, 1 of them leading", False)),
    ],
)
def test_the_verdict_says_whether_the_agent_can_be_stopped(
    change: dict[str, Any], expected: tuple[str, bool]
) -> None:
    """The exit code is 0 for nothing else."""
    document = {
        "name": "n",
        "draining": True,
        "replicas": 2,
        "leads": 1,
        "blocked": [],
        "safe_to_stop": False,
    }
    message, advice, safe = verdict(document | change, waited=True)
    assert expected[0] in message
    assert safe == expected[1]
    assert safe or advice or "again" in message


class Terminal(io.StringIO):
    """A stream that says it is one."""

    def isatty(self) -> bool:
        return True


def test_the_bar_is_drawn_on_a_terminal_and_nowhere_else() -> None:
    """A log file must not fill with bars."""
    for stream in (Terminal(), io.StringIO()):
        bar = ProgressBar(stream)
        bar.update(0.5, "2 replicas left")
        bar.close()
        assert ("50%  2 replicas left" in stream.getvalue()) == stream.isatty()
        assert bool(stream.getvalue()) == stream.isatty()


async def test_draining_somebody_who_is_not_there_is_one_line(agents: Agents) -> None:
    """Nobody of that name; or nobody any more."""
    cluster = await agents.cluster(2)
    url = cluster[0].agent.url
    assert_one_line(await run("drain", "nobody", agent=url), "no member called 'nobody'")
    await cluster[1].leave()
    await asyncio.sleep(0.2)
    assert_one_line(await run("drain", "a1", agent=url), "a1 is", "--replace-after")
