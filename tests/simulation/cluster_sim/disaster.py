"""The end of the cluster as it was: a majority is lost for good, and an operator forces what is left to go
on.

Law of this file: the operator does what docs/operations/failures.md says, over HTTP, and nothing else. It
begins when the verdict on everything before is spoken: from here on acknowledged records may be lost, but
only those that no agent holds any more, and only by a command.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from log_clients import Connections, NoAnswer

from cluster_sim.invariants import InvariantViolation
from cluster_sim.node import Node
from cluster_sim.upgrades import PRESENT
from shoal.agent.durable.ids import CATALOG_GROUP, GroupId

if TYPE_CHECKING:
    from cluster_sim.simulation import ClusterSimulation

NODES = 4
"""Three that hold the catalog, and one that does not know what they know."""
MADE_MEANWHILE = "orders"
RECORDS = 5
STEP_LIMIT_S = 40.0
RETRY_S = 0.5
LIMIT_S = 90.0
CATALOG = "_catalog"
OK = 200
AWAY_S = 8.0
"""Until gossip has seen that somebody is gone."""


class Disaster:
    """See the head of this file."""

    def __init__(self, simulation: ClusterSimulation) -> None:
        self._simulation = simulation
        self._connections = Connections()
        self._lost: list[Node] = []

    async def run(self) -> None:
        """All of it. Raises InvariantViolation."""
        simulation = self._simulation
        await self.start_agents(NODES)
        await self.until(self._catalog_can_lose_one, "the catalog cannot do without an agent")
        survivor, other = self._chosen()
        topic_id = await simulation._as_client(self._made_without(survivor, other))
        held = self._synced_segments(other, topic_id)
        simulation.trace("DISASTER", f"{survivor.name} is left, {other.name} is away")
        for node in list(simulation.nodes):
            if node.is_running:
                node.kill()
            if node not in (survivor, other):
                simulation.nodes.remove(node)
                self._lost.append(node)
        simulation.start(survivor)
        await simulation._as_client(self._force_catalog(survivor))
        await self.until(lambda: survivor.is_ready, f"{survivor.name} is not ready again")
        await simulation._as_client(self._make_others(survivor))
        simulation.start(other)
        await self.until(lambda: other.is_ready, f"{other.name} is not ready again")
        await simulation._as_client(self._force_partitions())
        await self.until(self._is_well, "the partitions that are left are not led")
        if simulation.holds_level:
            raised = simulation.upgrades.is_raised
            await self.until(lambda: raised(survivor) and raised(other), "the level has fallen for good")
        if held:
            await self._still_there(other, held, topic_id)

    def _chosen(self) -> tuple[Node, Node]:
        """Who goes on alone with the catalog, and another one, if possible without a vote in it. Not where
        bits have flipped: from here on what these two hold may be all that is left of it."""
        nodes = [
            node for node in self._simulation.nodes if node.host is not None and not node.disk.is_damaged
        ]
        holders = [node for node in nodes if node.host is not None and node.host.has(CATALOG_GROUP)]
        followers = [node for node in holders if not self._leads_catalog(node)]
        survivor = self._simulation.rng.choice(followers)
        others = [node for node in nodes if node not in holders] or [n for n in nodes if n is not survivor]
        return survivor, self._simulation.rng.choice(others)

    def _catalog_can_lose_one(self) -> bool:
        """A majority of its voters works without any one agent: a lost disk's vote counts for long."""
        hosts = [node.host for node in self._simulation.nodes if node.host is not None]
        held = [host.replica(CATALOG_GROUP) for host in hosts if host.has(CATALOG_GROUP)]
        working = {replica.replica_id for replica in held if replica.failure is None}
        leaders = (replica for replica in held if replica.is_leader)
        votes = (leader.core.configuration.voters for leader in leaders)
        return any(2 * (len(working.intersection(voters)) - 1) > len(voters) for voters in votes)

    @staticmethod
    def _leads_catalog(node: Node) -> bool:
        assert node.host is not None
        return node.host.replica(CATALOG_GROUP).is_leader

    @staticmethod
    def _synced_segments(node: Node, topic_id: str) -> list[str]:
        """Its files of this topic that hold entries which its disk has. One that was only just made is empty
        again after kill -9, and then goes."""
        assert node.host is not None
        found = []
        for path in node.disk.segments():
            *_, topic, partition, name = path.split("/")
            group = GroupId(bytes.fromhex(topic_id), int(partition)) if topic == topic_id else None
            if group is not None and node.host.has(group):
                log = node.host.replica(group).core.state.log
                if int(name.partition("-")[0]) <= log.stable_index:
                    found.append(path)
        return found

    async def _made_without(self, survivor: Node, other: Node) -> str:
        """While one agent is away a topic is made, and records are acknowledged; its id. The level rises,
        too, where an operator has held it, and the other agent that will be left hears of it."""
        simulation = self._simulation
        survivor.kill()
        await asyncio.sleep(AWAY_S)
        agents = [node for node in simulation.nodes if node is not survivor]
        if simulation.holds_level:
            await self.ask(agents, "POST", "/v1/cluster/level", {"level": PRESENT.highest})
            await self.until(
                lambda: simulation.upgrades.is_raised(other), f"{other.name} has not heard of it"
            )
        body = {"partitions": 2, "replication_factor": 3}
        made = await self.ask(agents, "PUT", f"/v1/topics/{MADE_MEANWHILE}", body)
        for number in range(RECORDS):
            records = {"records": [{"value": f"{MADE_MEANWHILE}-{number}"}]}
            await self.ask(agents, "POST", f"/v1/topics/{MADE_MEANWHILE}/records", records)
        return str(made["id"])

    async def start_agents(self, count: int) -> None:
        """Until there are so many, and all are ready; none of the new ones founds a cluster."""
        simulation = self._simulation
        while len(simulation.nodes) < count:
            node = simulation.add_node()
            node.never_founds()
            simulation.start(node)
        await self.until(lambda: all(node.is_ready for node in simulation.nodes), "agents are not ready")

    async def _force_catalog(self, node: Node) -> None:
        """POST /v1/agent/recover, until it was done."""
        self._simulation.invariants.forced(CATALOG_GROUP)
        self._simulation.secured.invariants.recovered_by_force()
        body = {"topic": CATALOG, "partition": 0, "accept_data_loss": True}
        document = await self.ask([node], "POST", "/v1/agent/recover", body)
        self._simulation.trace(node.name, f"FORCED {CATALOG}/0 {document['log_end_offset']}")

    async def _make_others(self, survivor: Node) -> None:
        """The catalog goes on: what was made since has the numbers of what was lost."""
        for name in ("invoices", "people"):
            await self.ask([survivor], "PUT", f"/v1/topics/{name}", {})

    async def _force_partitions(self) -> None:
        """Each that has no leader, at the agent that holds most of it, and nowhere else: two that go on alone
        are two groups. Those that nobody holds are gone."""
        forced: set[GroupId] = set()
        for _ in range(int(STEP_LIMIT_S / RETRY_S)):
            waiting = [(group, name) for group, name in self._held().items() if not self._is_led(group)]
            if not waiting:
                return
            for group, name in waiting:
                if group not in forced and await self._try_to_force(group, name):
                    forced.add(group)
            await asyncio.sleep(RETRY_S)

    async def _try_to_force(self, group: GroupId, name: str) -> bool:
        """First the previews, as the command does it; then, where nothing speaks against it, the deed."""
        previews = [(node, await self._preview(node, group, name)) for node in self._simulation.nodes]
        found = [(node, end) for node, end in previews if end is not None]
        if not found or self._is_led(group):
            return False
        node, _ = max(found, key=lambda item: item[1])
        self._simulation.invariants.forced(group)
        body = {"topic": name, "partition": group.partition, "accept_data_loss": True}
        try:
            answer = await self._connections.request(node.http, "POST", "/v1/agent/recover", body)
        except NoAnswer as error:
            raise InvariantViolation("Disaster", f"{node.name} {name}/{group.partition}: {error}") from None
        said = f"{name}/{group.partition} {answer.status} {answer.body}"
        if answer.status != OK:
            self._simulation.invariants.not_forced(group)
            self._simulation.trace(node.name, f"NOT FORCED {said}")
            return False
        self._simulation.trace(node.name, f"FORCED {said}")
        return True

    async def _preview(self, node: Node, group: GroupId, name: str) -> tuple[int, int] | None:
        """Where the log there ends, in offsets and in entries; None where nothing can be forced."""
        path = f"/v1/agent/recover?topic={name}&partition={group.partition}"
        try:
            preview = await self._connections.request(node.http, "GET", path)
        except NoAnswer:
            return None
        if preview.status != OK or preview.body["refusal"] is not None:
            return None
        return preview.body["log_end_offset"], preview.body["entries"]

    def _held(self) -> dict[GroupId, str]:
        """Groups of which some living agent has a working replica, and its catalog the name."""
        found: dict[GroupId, str] = {}
        for node in self._simulation.nodes:
            if node.host is None or node.agent is None or not hasattr(node.agent, "broker"):
                continue
            names = {entry.topic_id: name for name, entry in node.agent.broker._catalog.topics.items()}
            for group, entry in node.host._groups.items():
                if entry.replica.failure is None and group.topic_id in names:
                    found[group] = names[group.topic_id]
        return found

    def _is_led(self, group: GroupId) -> bool:
        hosts = [node.host for node in self._simulation.nodes if node.host is not None]
        held = [host._groups[group].replica for host in hosts if group in host._groups]
        return any(replica.is_leader for replica in held)

    def _is_well(self) -> bool:
        groups = {CATALOG_GROUP, *self._held()}
        return all(self._is_led(group) for group in groups)

    async def _still_there(self, node: Node, held: list[str], topic_id: str) -> None:
        """Absence is no deletion (safety 4): what the recovered catalog does not know is kept, byte for byte,
        and so it stays."""
        await asyncio.sleep(AWAY_S)
        gone = [path for path in held if path not in node.disk.segments()]
        if gone:
            raise InvariantViolation(
                "AbsenceIsNoDeletion", f"{node.name} has deleted {gone} of topic {topic_id}: nobody said so"
            )

    # ---- asking ----------------------------------------------------------------------------------

    async def ask(self, agents: list[Node], method: str, path: str, body: Any) -> dict[str, Any]:
        """Until somebody has done it. Raises InvariantViolation when nobody does."""
        said = ""
        for _ in range(int(STEP_LIMIT_S / RETRY_S)):
            node = self._simulation.rng.choice(agents)
            try:
                answer = await self._connections.request(node.http, method, path, body)
            except NoAnswer as error:
                said = str(error)
            else:
                if answer.status in (OK, 201):
                    document: dict[str, Any] = answer.body
                    return document
                said = f"{answer.status} {answer.body}"
            await asyncio.sleep(RETRY_S)
        raise InvariantViolation("Disaster", f"{method} {path} {body}: {said}")

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        await self._simulation._until(condition, LIMIT_S, "Disaster", what)
