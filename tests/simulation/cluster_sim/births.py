"""A topic is made while agents die or are cut off: it must be led by those that are there, and by them alone.

Law of this file: an act of its own after the verdict, in some seeds. Links know of the dead when the topic is
made, and gossip does not; or nobody knows yet, and partitions are born on them; or two agents that live and
have some of the partitions cannot reach the catalog's leader, which has these born again elsewhere. Whoever
was away returns at the end, and what is left there of births that were given up must go.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from log_clients import Connections, NoAnswer

from cluster_sim.disaster import Disaster
from cluster_sim.invariants import InvariantViolation
from cluster_sim.node import Node
from shoal.agent.durable.identity import ReplicaState
from shoal.agent.durable.ids import CATALOG_GROUP, GroupId
from shoal.replication.interfaces import generation_of

if TYPE_CHECKING:
    from cluster_sim.simulation import ClusterSimulation

NODES = 5
AWAY = 2
TOPIC = "mourned"
PARTITIONS = 8
MET_S = 5.0
"""Until newcomers have met everybody over their links."""
LINKS_KNOW_S = 0.5
LED_LIMIT_S = 20.0
TAKEN_UP_S = 8.0
"""While some are cut off: until births that nobody heard of were given up, and others are led."""
LOOK_S = 0.1
WAYS = ("known", "unknown", "cut")


class Births:
    """See the head of this file."""

    def __init__(self, simulation: ClusterSimulation) -> None:
        self._simulation = simulation
        self._operator = Disaster(simulation)
        self._connections = Connections()
        self._acknowledged: dict[int, set[str]] = {}

    async def run(self) -> None:
        """Raises InvariantViolation."""
        simulation = self._simulation
        await self._operator.start_agents(NODES)
        await asyncio.sleep(MET_S)
        way = simulation.rng.choice(WAYS)
        away = self._chosen(without_leader=way != "known")
        simulation.trace("BIRTHS", f"{way}: without {' '.join(node.name for node in away)}")
        topic_id = await (self._cut(away) if way == "cut" else self._among_the_dead(away, way))
        await self._operator.until(
            lambda: all(node.is_ready for node in simulation.nodes), "not all are back"
        )
        await self._operator.until(lambda: not self._left_over(topic_id), "births that were given up stay")
        await simulation._as_client(self._read())

    async def _among_the_dead(self, dead: list[Node], way: str) -> bytes:
        """The topic's id. They come back once it was led by the others."""
        living = [node for node in self._simulation.nodes if node not in dead]
        for node in dead:
            if way == "known":
                node.kill()
            else:
                node.lose_power()  # nothing says so to anybody
        if way == "known":
            await asyncio.sleep(LINKS_KNOW_S)
        topic_id = await self._make(living)
        await self._until_led(living, topic_id)
        if way == "known":
            self._were_born_once(living[0], topic_id)
        await self._simulation._as_client(self._append(living))
        for node in dead:
            self._simulation.start(node)
        return topic_id

    async def _cut(self, away: list[Node]) -> bytes:
        """They and the catalog's leader cannot hear each other from the moment on in which it is asked; all
        agents are written to meanwhile."""
        simulation = self._simulation
        leader = next(node for node in simulation.nodes if _is_led([node], CATALOG_GROUP))
        pairs = {(leader.address, node.address) for node in away}
        links = pairs | {(there, here) for here, there in pairs}
        simulation.network.cuts |= links
        topic_id = await self._make([leader])
        end_s = simulation.loop.time() + TAKEN_UP_S
        while simulation.loop.time() < end_s:
            await simulation._as_client(self._append(simulation.nodes))
            await asyncio.sleep(LOOK_S)
        simulation.network.cuts.difference_update(links)
        simulation.network.look_at_held()
        await self._until_led(simulation.nodes, topic_id)
        await simulation._as_client(self._append(simulation.nodes))
        return topic_id

    async def _make(self, agents: list[Node]) -> bytes:
        body = {"partitions": PARTITIONS, "replication_factor": 3}
        ask = self._operator.ask(agents, "PUT", f"/v1/topics/{TOPIC}", body)
        made = await self._simulation._as_client(ask)
        return bytes.fromhex(str(made["id"]))

    def _chosen(self, *, without_leader: bool) -> list[Node]:
        """Who is away; the catalog keeps its majority, and perhaps its leader."""
        nodes = self._simulation.nodes
        voters = [node for node in nodes if _votes_in_catalog(node)]
        others = [node for node in nodes if node not in voters]
        spared = len(voters) // 2 + 1
        mortal = [node for node in voters if not without_leader or not _is_led([node], CATALOG_GROUP)]
        return [*others, *self._simulation.rng.sample(mortal, len(voters) - spared)][:AWAY]

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

    def _were_born_once(self, node: Node, topic_id: bytes) -> None:
        assert node.agent is not None
        entry = node.agent.broker._catalog.by_id(topic_id)
        again = [number for number, birth in enumerate(entry.partitions) if birth.generation]
        if again:
            raise InvariantViolation("BornAmongTheLiving", f"partitions {again} were born on the dead first")

    # ---- records ---------------------------------------------------------------------------------

    async def _append(self, nodes: list[Node]) -> None:
        """One record to each partition at each of these agents; which of them are taken is remembered."""
        for number in range(PARTITIONS):
            for node in nodes:
                value = f"{number}-{node.name}-{sum(map(len, self._acknowledged.values()))}"
                path = f"/v1/topics/{TOPIC}/partitions/{number}/records?timeout=200ms"
                body = {"records": [{"value": value}]}
                try:
                    answer = await self._connections.request(node.http, "POST", path, body)
                except NoAnswer:
                    continue
                if answer.status == 200:
                    self._acknowledged.setdefault(number, set()).add(value)

    async def _read(self) -> None:
        """BornAmongTheLiving: what was acknowledged by any birth is what the partition has."""
        for number, values in sorted(self._acknowledged.items()):
            path = f"/v1/topics/{TOPIC}/partitions/{number}/records?offset=0&limit=1000"
            answer = await self._operator.ask(self._simulation.nodes, "GET", path, None)
            missing = values - {record["value"] for record in answer["records"]}
            if missing:
                raise InvariantViolation(
                    "OneBirthServes", f"partition {number} of {TOPIC} has not what it acknowledged: {missing}"
                )

    def _left_over(self, topic_id: bytes) -> list[str]:
        """Replicas of births that were given up."""
        found = []
        for node in self._simulation.nodes:
            if node.host is None or node.agent is None or not hasattr(node.agent, "broker"):
                return ["not everybody is there"]
            entry = node.agent.broker._catalog.by_id(topic_id)
            for record in node.host.replica_records():
                if entry is None or record.group.topic_id != topic_id or record.state is ReplicaState.REMOVED:
                    continue
                birth = entry.partitions[record.group.partition]
                if generation_of(record.replica_id) != birth.generation:
                    found.append(f"{node.name} {record}")
        return found


def _votes_in_catalog(node: Node) -> bool:
    if node.host is None or not node.host.has(CATALOG_GROUP):
        return False
    replica = node.host.replica(CATALOG_GROUP)
    return replica.replica_id in replica.core.configuration.voters


def _is_led(nodes: list[Node], group: GroupId) -> bool:
    hosts = [node.host for node in nodes if node.host is not None]
    return any(host.has(group) and host.replica(group).serves for host in hosts)
