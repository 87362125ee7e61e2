"""A topic is made while agents have just died, and gossip does not know yet: it must be led by the living.

Law of this file: an act of its own after the verdict, in some seeds. Two of five agents are killed, links
know at once, gossip takes seconds; the topic is made in between, and the two stay away until it was judged.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from cluster_sim.disaster import Disaster
from cluster_sim.invariants import InvariantViolation
from cluster_sim.node import Node
from shoal.agent.identity import CATALOG_GROUP, GroupId

if TYPE_CHECKING:
    from cluster_sim.simulation import ClusterSimulation

NODES = 5
DEAD = 2
TOPIC = "mourned"
PARTITIONS = 8
MET_S = 5.0
"""Until newcomers have met everybody over their links."""
LINKS_KNOW_S = 0.5
LED_LIMIT_S = 20.0
LOOK_S = 0.1


class Births:
    """See the head of this file."""

    def __init__(self, simulation: ClusterSimulation) -> None:
        self._simulation = simulation
        self._operator = Disaster(simulation)

    async def run(self) -> None:
        """Raises InvariantViolation."""
        simulation = self._simulation
        while len(simulation.nodes) < NODES:
            node = simulation.add_node()
            node.never_founds()
            simulation.start(node)
        await self._operator.until(
            lambda: all(node.is_ready for node in simulation.nodes), "not all are ready"
        )
        await asyncio.sleep(MET_S)
        dead = self._chosen()
        living = [node for node in simulation.nodes if node not in dead]
        for node in dead:
            node.kill()
        await asyncio.sleep(LINKS_KNOW_S)
        body = {"partitions": PARTITIONS, "replication_factor": 3}
        made = await simulation._as_client(self._operator.ask(living, "PUT", f"/v1/topics/{TOPIC}", body))
        await self._until_led(living, bytes.fromhex(str(made["id"])))
        for node in dead:
            simulation.start(node)
        await self._operator.until(
            lambda: all(node.is_ready for node in simulation.nodes), "not all are back"
        )

    def _chosen(self) -> list[Node]:
        """Who dies; the catalog keeps its majority."""
        nodes = self._simulation.nodes
        holders = [node for node in nodes if node.host is not None and node.host.has(CATALOG_GROUP)]
        others = [node for node in nodes if node not in holders]
        spared = len(holders) // 2 + 1
        return [*others, *self._simulation.rng.sample(holders, len(holders) - spared)][:DEAD]

    async def _until_led(self, living: list[Node], topic_id: bytes) -> None:
        loop = self._simulation.loop
        end_s = loop.time() + LED_LIMIT_S
        groups = [GroupId(topic_id, number) for number in range(PARTITIONS)]
        while waiting := [group for group in groups if not _is_led(living, group)]:
            if loop.time() > end_s:
                raise InvariantViolation(
                    "BornAmongTheLiving",
                    f"{len(waiting)} of {PARTITIONS} partitions are not led {LED_LIMIT_S:g} s after birth,"
                    f" at which {NODES - len(living)} of {NODES} agents were dead",
                )
            await asyncio.sleep(LOOK_S)


def _is_led(nodes: list[Node], group: GroupId) -> bool:
    hosts = [node.host for node in nodes if node.host is not None]
    return any(host.has(group) and host.replica(group).is_leader for host in hosts)
