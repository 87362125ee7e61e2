"""Many agents' route exchanges over simulated gossip and simulated links, in virtual time.

Law of this file: the RouteExchange and the membership cores are the product's; links and replicas are
modelled. A link carries hints and pulls with a delay, loses hints as told, and is silent when its agent is
dead; tags and route events travel through the membership simulation.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

from shoal.agent.durable.ids import GroupId
from shoal.agent.events.change_counter import Watch
from shoal.agent.members.roster import PLACEMENT_EVENT, natural
from shoal.agent.peers.links import PeerUnavailable
from shoal.agent.peers.messages import PeerMessage
from shoal.agent.routing.exchange import RouteExchange
from shoal.agent.routing.table import Claim
from shoal.membership.config import GossipConfig
from shoal.membership.serf.ready import Ready
from tests.membership.pool import Pool, Process

STEP_S = 0.01
TAGS_INTERVAL_S = 1.0
LINK_MS = (1, 10)
REPLICAS = 3


class RoutePool(Pool):
    """A membership pool whose members hear route events."""

    cluster: RouteCluster

    def _do(self, process: Process, ready: Ready) -> None:
        super()._do(process, ready)
        for event in ready.user_events:
            if event.name == PLACEMENT_EVENT:
                agent, run, version = event.payload.decode().split(" ")
                self.cluster.on_announcement(process.name, agent, run, int(version))


class SimulatedAgent:
    """One agent: what it holds, and its exchange with the others (the Peers protocol is this object)."""

    def __init__(self, cluster: RouteCluster, name: str) -> None:
        self.cluster = cluster
        self.name = self.agent_id = name
        self.held: dict[GroupId, Claim] = {}
        self.tag = "0.0"
        self._tag_due_s: float | None = None
        self.exchange = RouteExchange(
            peers=self,
            watch=Watch(f"boot-{name}"),
            rng=random.Random(cluster.rng.getrandbits(32)),
            held=lambda: list(self.held),
            claim=lambda group: self.held.get(group),
            touched=lambda: list(self.held),
        )

    def hold(self, claim: Claim) -> None:
        """The replica here has changed, as the host says."""
        self.held[claim.group] = claim
        self.exchange.group_changed(claim.group)

    def set_placement(self, run: str, version: int) -> None:
        """As the roster does: at most once a second."""
        self.tag = f"{run.rpartition('.')[2]}.{version}"
        if self._tag_due_s is None:
            self._tag_due_s = asyncio.get_running_loop().time() + TAGS_INTERVAL_S
            asyncio.get_running_loop().call_at(self._tag_due_s, self._set_tag)

    def _set_tag(self) -> None:
        self._tag_due_s = None
        process = self.cluster.pool.processes[self.name]
        if process.alive:
            process.core.set_tags({"name": self.name, "pv": self.tag}, self.cluster.pool.now_ms)
            self.cluster.pool._carry_out(process)

    def announce_placement(self, run: str, version: int) -> None:
        process = self.cluster.pool.processes[self.name]
        if process.alive:
            process.core.send_user_event(PLACEMENT_EVENT, f"{self.name} {run} {version}".encode())
            self.cluster.pool._carry_out(process)

    # The Peers protocol

    async def request(self, agent_id: str, kind: int, payload: bytes, timeout_ms: int) -> bytes:
        peer = self.cluster.agents[agent_id]
        await asyncio.sleep(self.cluster.delay_s())
        if not self.cluster.is_alive(agent_id):
            await asyncio.sleep(timeout_ms / 1_000)
            raise PeerUnavailable(agent_id)
        answer = await peer.exchange.on_pull(self.name, payload)
        self.cluster.pulls += 1
        await asyncio.sleep(self.cluster.delay_s())
        return answer

    def send_control(self, agent_id: str, kind: int, payload: bytes) -> bool:
        assert kind == PeerMessage.ROUTES_HINT
        if self.cluster.rng.random() >= self.cluster.hint_loss and self.cluster.is_alive(agent_id):
            exchange = self.cluster.agents[agent_id].exchange
            asyncio.get_running_loop().call_later(
                self.cluster.delay_s(), exchange.on_hint, self.name, payload
            )
        return True

    def live_peers(self) -> list[str]:
        members = self.cluster.pool.processes[self.name].core.members()
        return [
            member.name
            for member in members
            if member.shown_status in ("alive", "suspect") and member.name != self.name
        ]

    def placement_versions(self) -> dict[str, tuple[str, int]]:
        versions = {}
        for member in self.cluster.pool.processes[self.name].core.members():
            generation, _, version = member.tags.get("pv", "").partition(".")
            if generation and member.name != self.name and member.shown_status in ("alive", "suspect"):
                versions[member.name] = (f"boot-{member.name}.{generation}", natural(version))
        return versions

    def known_members(self) -> set[str]:
        return {member.name for member in self.cluster.pool.processes[self.name].core.members()}


class RouteCluster:
    """`count` agents that know each other, holding `groups` partitions three times each."""

    def __init__(self, count: int, groups: int, seed: int, *, hint_loss: float, loss: float = 0.0) -> None:
        self.rng = random.Random(seed)
        self.hint_loss = hint_loss
        self.pulls = 0
        self.pool = RoutePool(
            count, seed, loss=loss, profile=GossipConfig.lan, check_every=2_000, acquainted=True
        )
        self.pool.cluster = self
        self.agents = {name: SimulatedAgent(self, name) for name in self.pool.processes}
        self.groups = [GroupId(number.to_bytes(16, "big"), 0) for number in range(1, groups + 1)]
        self.voters: dict[GroupId, tuple[str, ...]] = {}
        self.leaders: dict[GroupId, tuple[str, int]] = {}

    def is_alive(self, name: str) -> bool:
        return self.pool.processes[name].alive

    def delay_s(self) -> float:
        return self.rng.randint(*LINK_MS) / 1_000

    def on_announcement(self, observer: str, agent: str, run: str, version: int) -> None:
        if observer != agent:
            self.agents[observer].exchange.on_announcement(agent, run, version)

    def living(self) -> Iterator[SimulatedAgent]:
        return (agent for name, agent in self.agents.items() if self.is_alive(name))

    def place(self) -> None:
        """Every group gets its replicas and its first leader."""
        names = list(self.agents)
        for group in self.groups:
            self.voters[group] = tuple(self.rng.sample(names, REPLICAS))
            self.lead(group, self.voters[group][0], 1)

    def lead(self, group: GroupId, leader: str, term: int) -> None:
        """That agent has won an election; its living peers hear of it over Raft a moment later."""
        self.leaders[group] = (leader, term)
        for voter in self.voters[group]:
            if self.is_alive(voter):
                role = "leader" if voter == leader else "follower"
                claim = Claim(group, role, term, 1, leader, self.voters[group])
                delay_s = 0.0 if voter == leader else self.delay_s()
                asyncio.get_running_loop().call_later(delay_s, self.agents[voter].hold, claim)

    def serves(self, agent: SimulatedAgent, group: GroupId) -> bool:
        """Whether that agent would send a client to the leader there is."""
        known = agent.exchange.table.leadership(group, lambda _: True)
        leader, term = self.leaders[group]
        return known is not None and known.leader == leader and known.term == term

    async def run(self, work: Any) -> None:
        """The work, while gossip and exchanges go on."""
        tasks = [asyncio.create_task(agent.exchange.run()) for agent in self.agents.values()]
        tasks.append(asyncio.create_task(self._drive_gossip()))
        try:
            await work
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _drive_gossip(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self.pool.run_for(int(loop.time() * 1_000) - self.pool.now_ms)
            await asyncio.sleep(STEP_S)

    async def settled(self) -> None:
        """Everybody serves every leader."""
        async with asyncio.timeout(60):
            while not all(self.serves(agent, group) for agent in self.living() for group in self.groups):
                await asyncio.sleep(0.25)

    async def latencies_s(self, groups: list[GroupId]) -> list[float]:
        """From now, for every living agent and each of these groups, until it serves the new leader."""
        began_s = asyncio.get_running_loop().time()
        waiting = {(agent.name, group) for agent in self.living() for group in groups}
        taken: list[float] = []
        async with asyncio.timeout(60):
            while waiting:
                now_s = asyncio.get_running_loop().time()
                served = {(name, group) for name, group in waiting if self.serves(self.agents[name], group)}
                taken += [now_s - began_s] * len(served)
                waiting -= served
                await asyncio.sleep(2 * STEP_S)
        return sorted(taken)
