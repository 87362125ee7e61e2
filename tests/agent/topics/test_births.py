"""Where partitions are born: on agents that answer, whatever gossip says."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from shoal.membership.wire.messages import Alive, Endpoint, encode_message, host_bytes
from shoal.membership.wire.packets import encode_packet
from shoal.membership.wire.serf import encode_tags
from tests.agent.agents import agents_in, eventually

VERSIONS = bytes((1, 5, 2, 2, 5, 4))


def ghost(number: int, tags: dict[str, str]) -> bytes:
    """A datagram that says an agent lives where nobody listens, with tags copied from a real one."""
    told = {key: value for key, value in tags.items() if key not in ("cv", "nt", "pv")}
    told |= {"url": "http://127.0.0.1:1", "name": f"ghost{number}"}
    address = Endpoint(host_bytes("127.0.0.1"), 9)
    alive = Alive(1, f"{number:032x}", address, encode_tags(told), VERSIONS)
    return encode_packet((encode_message(alive),))


@pytest.mark.slow
async def test_forged_gossip_places_nothing(tmp_path: Path) -> None:
    """Eight members that do not exist, from one stranger's datagrams, while a topic is made: its partitions
    are held and led by the agent that is there."""
    async with agents_in(tmp_path) as agents:
        agent = await agents.alone("a")
        own = (await agent.call("GET", "/v1/members"))[1]["members"][0]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for number in range(1, 9):
                sender.sendto(ghost(number, own["tags"]), ("127.0.0.1", agent.agent.pool.membership.port))

        async def are_seen() -> bool:
            return len((await agent.call("GET", "/v1/members"))[1]["members"]) > 1

        await eventually(are_seen)
        status, made = await agent.call("PUT", "/v1/topics/orders", {"partitions": 4})
        assert status == 201
        for partition in made["partitions"]:
            assert [replica["id"] for replica in partition["replicas"]] == [own["id"]]
        status, _ = await agent.call("POST", "/v1/topics/orders/records", {"records": [{"value": "x"}]})
        assert status == 200


@pytest.mark.slow
async def test_nothing_is_born_on_those_who_have_just_died(tmp_path: Path) -> None:
    """Gossip needs seconds to find out; the links know at once. Every partition is led."""
    async with agents_in(tmp_path) as agents:
        members = await agents.cluster(4)
        leader = next(running for running in members if running.agent.cluster.joined.catalog.leads())
        dead = next(running for running in members if running is not leader)
        ids = {running.agent.agent_id for running in members if running is not dead}
        await eventually(lambda: _all_met(leader.agent.node.roster, ids | {dead.agent.agent_id}))
        roster = leader.agent.node.roster
        dead.agent.pool.membership.leave = _say_nothing  # type: ignore[method-assign]
        await dead.crash()
        await eventually(lambda: _is(not roster.is_live(dead.agent.agent_id)))
        status, made = await leader.call("PUT", "/v1/topics/orders", {"partitions": 24})
        assert status == 201
        holders = {replica["id"] for part in made["partitions"] for replica in part["replicas"]}
        assert holders <= ids

        async def are_led() -> bool:
            topic = (await leader.call("GET", "/v1/topics/orders"))[1]
            return all(partition["leader"] for partition in topic["partitions"])

        await eventually(are_led)


async def _say_nothing() -> None:
    await asyncio.sleep(0)


async def _all_met(roster: object, ids: set[str]) -> bool:
    return roster.met() >= ids  # type: ignore[attr-defined, no-any-return]


async def _is(value: bool) -> bool:
    return value
