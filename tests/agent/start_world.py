"""Many agents that start at once, under virtual time: who founds, who joins, which clusters dissolve.

Law of this file: a world around the pure rules of agent/bootstrap/rules.py. Gossip is a delay per pair and a
chance that two agents do not meet for a while; a catalog is its birth voters and a count of topics. Each
agent does what agent/bootstrap/cluster_finder.py and agent/bootstrap/empty_cluster_guard.py do with real
ones.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from shoal.agent.bootstrap.rules import Found, Join, View, Wait, can_never_have_lived, decide, must_dissolve
from shoal.agent.members.tags import Peer

STEP_MS = 250
SETTLE_MS = 2_000  # empty_cluster_guard.py's: a cluster seen for a shorter time may be just giving itself up


@dataclass
class Cluster:
    """A cluster id and what its catalog says. `sealed`: given up, and no topic may ever be made."""

    cluster_id: bytes
    voters: tuple[str, ...]
    topics: int = 0
    sealed: bool = False


@dataclass
class StartingAgent:
    agent_id: str
    starts_ms: int
    expect: int | None = None
    has_seeds: bool = False
    cluster: Cluster | None = None
    last_change_ms: int = 0
    seen: frozenset[str] = frozenset()
    foreign_since: dict[bytes, int] = field(default_factory=dict)
    founded: int = 0
    dissolved: int = 0


class StartWorld:
    """Agents by id. `told`: what each last said of itself, with the time at which the others may know it."""

    def __init__(self, seed: int, agents: list[StartingAgent], *, slowest_ms: int) -> None:
        self.rng = random.Random(seed)
        self.agents = {agent.agent_id: agent for agent in agents}
        self.now_ms = 0
        self.met_ms = {
            frozenset((one, two)): self.rng.randrange(0, slowest_ms)
            for one in self.agents
            for two in self.agents
            if one < two
        }
        self.delay_ms = {pair: self.rng.randrange(0, 600) for pair in self.met_ms}
        self.said: dict[str, list[tuple[int, bytes | None, bool]]] = {}
        self.clusters: list[Cluster] = []

    def sees(self, one: str, two: str) -> Peer | None:
        """What `one` knows of `two` by now."""
        pair = frozenset((one, two))
        agent, other = self.agents[one], self.agents[two]
        met_ms = max(agent.starts_ms, other.starts_ms) + self.met_ms[pair]
        heard = [
            (cluster_id, has_topics)
            for at_ms, cluster_id, has_topics in self.said.get(two, [])
            if at_ms + self.delay_ms[pair] <= self.now_ms
        ]
        if self.now_ms < met_ms or not heard:
            return None
        return Peer(two, heard[-1][0], f"http://{two}")

    def has_topics(self, one: str, two: str) -> bool:
        pair = frozenset((one, two))
        heard = [topics for at_ms, _, topics in self.said[two] if at_ms + self.delay_ms[pair] <= self.now_ms]
        return heard[-1]

    def say(self, agent: StartingAgent) -> None:
        cluster = agent.cluster
        entry = (None, False) if cluster is None else (cluster.cluster_id, cluster.topics > 0)
        history = self.said.setdefault(agent.agent_id, [])
        if not history or history[-1][1:] != entry:
            history.append((self.now_ms, *entry))

    def run(self, until_ms: int) -> None:
        while self.now_ms < until_ms:
            self.now_ms += STEP_MS
            order = [agent for agent in self.agents.values() if agent.starts_ms <= self.now_ms]
            self.rng.shuffle(order)
            for agent in order:
                self.step(agent)
                self.say(agent)

    def step(self, agent: StartingAgent) -> None:
        others = (self.sees(agent.agent_id, name) for name in self.agents if name != agent.agent_id)
        peers = [peer for peer in others if peer is not None]
        seen = frozenset(peer.agent_id for peer in peers)
        if seen != agent.seen:
            agent.seen, agent.last_change_ms = seen, self.now_ms
        if agent.cluster is None:
            self.find_cluster(agent, peers)
        else:
            self.guard(agent, agent.cluster, peers)

    def find_cluster(self, agent: StartingAgent, peers: list[Peer]) -> None:
        decision = decide(
            View(
                agent_id=agent.agent_id,
                peers=peers,
                expect=agent.expect,
                has_seeds=agent.has_seeds,
                started_ms=agent.starts_ms,
                last_change_ms=agent.last_change_ms,
                discovery_window_ms=3_000,
                now_ms=self.now_ms,
            )
        )
        match decision:
            case Found(voters):
                assert agent.agent_id in voters
                assert agent.expect is None or len(peers) + 1 >= agent.expect, (
                    "before those expected have met"
                )
                assert agent.expect is not None or not agent.has_seeds or peers, "before any contact"
                agent.founded += 1
                agent.cluster = Cluster(self.rng.randbytes(16), voters)
                self.clusters.append(agent.cluster)
            case Join(cluster_id):
                cluster = next(one for one in self.clusters if one.cluster_id == cluster_id)
                if not cluster.sealed:  # else nobody introduces it any more
                    agent.cluster = cluster
            case Wait():
                pass

    def guard(self, agent: StartingAgent, own: Cluster, peers: list[Peer]) -> None:
        foreign: dict[bytes, list[str]] = {}
        for peer in peers:
            if peer.cluster_id not in (None, own.cluster_id):
                foreign.setdefault(peer.cluster_id or b"", []).append(peer.agent_id)
        agent.foreign_since = {key: agent.foreign_since.get(key, self.now_ms) for key in foreign}
        for cluster_id, names in foreign.items():
            if self.now_ms - agent.foreign_since[cluster_id] < SETTLE_MS:
                continue
            if not self.lives(own) and can_never_have_lived(own.voters, names):
                self.give_up(agent)
                return
            has_topics = any(self.has_topics(agent.agent_id, name) for name in names)
            yields = must_dissolve(
                own.cluster_id, cluster_id, own_topics=own.topics, foreign_has_topics=has_topics
            )
            if yields and self.lives(own) and own.topics == 0:
                own.sealed = True
        if own.sealed:
            self.give_up(agent)

    def lives(self, cluster: Cluster) -> bool:
        """Whether its catalog can commit: a majority of its birth voters has joined it."""
        members = [name for name in cluster.voters if self.agents[name].cluster is cluster]
        return 2 * len(members) > len(cluster.voters)

    def give_up(self, agent: StartingAgent) -> None:
        """As a newcomer, from an empty directory."""
        agent.cluster, agent.last_change_ms = None, self.now_ms
        agent.foreign_since = {}
        agent.dissolved += 1

    def create_topic(self, agent_id: str) -> bool:
        """Through this agent; False while that cannot be committed."""
        cluster = self.agents[agent_id].cluster
        if cluster is None or cluster.sealed or not self.lives(cluster):
            return False
        cluster.topics += 1
        return True
