"""Whole agents whose gossip is done by real Serf agents: the main job, losses, starts that cannot work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shoal.agent.agent import Agent, StopRequest
from shoal.agent.process.errors import StartError
from tests.agent.agents import START_TIMEOUT_S, Agents, Running, agents_in, config, eventually
from tests.serf.real_serf import SerfAgent

pytestmark = pytest.mark.slow


class Hosts:
    """Serf agents of one pool, and Shoal agents each behind one of them."""

    def __init__(self, directory: Path, agents: Agents) -> None:
        self._directory = directory
        self.agents = agents
        self.serfs: list[SerfAgent] = []

    async def serf(self, name: str, *flags: str) -> SerfAgent:
        first = self.serfs[0].port if self.serfs else 0
        agent = SerfAgent(name, self._directory / f"{name}.log", *flags, join=first)
        self.serfs.append(agent)
        await agent.listens()
        return agent

    def behind(self, serf: SerfAgent, name: str, **flags: object) -> Running:
        rpc = f"127.0.0.1:{serf.rpc_port}"
        defaults: dict[str, object] = {"gossip": "serf", "serf_rpc": rpc, "gossip_port": None}
        return self.agents.start(name, **(defaults | flags))


@pytest.fixture
async def hosts(tmp_path: Path) -> AsyncIterator[Hosts]:
    async with agents_in(tmp_path) as agents:
        made = Hosts(tmp_path, agents)
        try:
            yield made
        finally:
            for serf in made.serfs:
                serf.kill()


async def members(at: Running) -> dict[str, dict[str, Any]]:
    listed = (await at.call("GET", "/v1/members"))[1]["members"]
    return {member["name"]: member for member in listed}


async def produce(at: Running, partition: int, value: str) -> int:
    path = f"/v1/topics/t/partitions/{partition}/records"
    return (await at.call("POST", path, {"records": [{"value": value}]}))[0]


async def values(at: Running, partition: int) -> list[str]:
    status, body = await at.call("GET", f"/v1/topics/t/partitions/{partition}/records")
    assert status == 200, body
    return [record["value"] for record in body["records"]]


async def test_the_main_job_over_serf(hosts: Hosts) -> None:
    """Three agents over three Serf agents: they meet through them alone, make one cluster, replicate, and
    survive the loss of one, host and all; a fourth Serf agent is a neighbour that nothing is placed on. One
    that leaves is shown as `left` and its host lives on."""
    flags = ("-tag", "rack=r1", "-profile=lan")  # the local one tells news twice: some hear it 15 s later
    serfs = [await hosts.serf(f"serf-{number}", *flags) for number in range(4)]
    running = [hosts.behind(serfs[number], f"a{number}", expect=3) for number in range(3)]
    for agent in running:
        await agent.until_ready()
    assert len({agent.agent.node.roster.cluster_id for agent in running}) == 1
    listed = await members(running[0])
    assert {name: member["kind"] for name, member in listed.items()} == {
        "a0": "shoal", "a1": "shoal", "a2": "shoal", "serf-3": "serf"
    }  # fmt: skip
    assert listed["a1"]["id"] == running[1].agent.agent_id
    assert (listed["a1"]["gossip_port"], listed["a1"]["tags"]["rack"]) == (serfs[1].port, "r1")

    status, topic = await running[1].call("PUT", "/v1/topics/t", {"partitions": 3, "replication_factor": 3})
    assert (status, topic["effective_replication_factor"]) == (201, 3)
    for partition in range(3):
        assert await produce(running[partition], partition, "before") == 200

    serfs[2].kill()
    await running[2].crash()

    async def all_led() -> bool:
        return [await produce(running[0], partition, "after") for partition in range(3)] == [200] * 3

    await eventually(all_led)
    for partition in range(3):
        assert (await values(running[1], partition))[0] == "before"

    async def shown(name: str, status: str) -> bool:
        return bool((await members(running[0]))[name]["status"] == status)

    await running[1].leave()
    await eventually(lambda: shown("a1", "left"))
    assert (await serfs[0].members())["serf-1"][0] == "alive"


async def test_starts_that_cannot_work(hosts: Hosts, tmp_path: Path) -> None:
    """No Serf agent there, a wrong key, a node that speaks for a living agent already: one line each. When
    that agent is gone, its successor has the node at once, and its own successor after a crash as well."""
    configuration = tmp_path / "serf.json"
    configuration.write_text('{"rpc_auth": "let me in"}')
    serf = await hosts.serf("alone", f"-config-file={configuration}")
    rpc = f"127.0.0.1:{serf.rpc_port}"

    async def refused(name: str, **flags: object) -> str:
        defaults: dict[str, object] = {"gossip": "serf", "serf_rpc": rpc, "gossip_port": None}
        with pytest.raises(StartError) as caught:
            await asyncio.wait_for(
                Agent(config(tmp_path / name, **(defaults | flags))).run(StopRequest()), START_TIMEOUT_S
            )
        return str(caught.value)

    assert "no Serf agent answers at 127.0.0.1:1" in await refused("x", serf_rpc="127.0.0.1:1")
    assert "Invalid authentication token: give --serf-rpc" in await refused("x", serf_auth_key="wrong")
    first = await hosts.behind(serf, "first", serf_auth_key="let me in").until_ready()
    said = await refused("x", serf_auth_key="let me in")
    assert f"speaks for the agent at {first.agent.url} already" in said
    assert "let me in" not in str((await first.call("GET", "/v1/agent"))[1])
    await first.crash()
    second = await hosts.behind(serf, "second", serf_auth_key="let me in").until_ready()
    assert (await members(second)).keys() == {"second"}
    await second.crash()
    await hosts.behind(serf, "second", serf_auth_key="let me in").until_ready()


async def test_agents_of_both_kinds_are_one_cluster(hosts: Hosts) -> None:
    """One gossips itself, one through Serf: both see both, under their names, and share a topic."""
    serf = await hosts.serf("host")
    hosted = hosts.behind(serf, "hosted", expect=2)
    own = hosts.agents.start("own", expect=2, join=[f"127.0.0.1:{serf.port}"])
    for agent in (hosted, own):
        await agent.until_ready()
    for agent in (hosted, own):
        assert (await members(agent)).keys() == {"hosted", "own"}
    assert (await own.call("PUT", "/v1/topics/t", {"replication_factor": 2}))[0] == 201
    assert await produce(hosted, 0, "one") == 200
    assert await values(own, 0) == ["one"]
