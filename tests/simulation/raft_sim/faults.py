"""What goes wrong, and when.

Law of this file: it decides from the seed which fault comes next and asks the simulation to carry it out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from raft_sim.network import SHAPES, cut
from shoal.replication.errors import ReplicationError
from shoal.replication.interfaces import UNBORN, Replica
from shoal.replication.raft import Role

if TYPE_CHECKING:
    from raft_sim.host import Host
    from raft_sim.simulation import Simulation

VOTERS_MAX = 5
VOTERS_MIN = 2
NEWEST_ENTRIES = 6


class Nemesis:
    """Makes one fault in each interval; each ends by itself, and all end with the safety phase."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._rng = simulation.rng
        knobs = simulation.knobs
        faults: list[Callable[[], str]] = [self._lose_packets, self._slow_disk]
        if knobs.crashes:
            faults += [self._crash_one, self._crash_one, self._crash_leader, self._crash_many]
        if knobs.partitions:
            faults += [self._cut, self._cut, self._isolate_leader]
        if knobs.pauses:
            faults += [self._pause]
        if knobs.membership:
            faults += [self._change_membership] * 5
        if knobs.transfers:
            faults += [self._transfer] * 2
        if knobs.retention:
            faults += [self._trim] * 3
        if knobs.rot:
            faults += [self._rot] * 2
        self._rotten: str | None = None
        """Whose disk rots: of one replica, since three copies survive the loss of one."""
        self._faults = faults

    def strike(self) -> None:
        """Make one fault; called by the clock."""
        line = self._rng.choice(self._faults)()
        self._simulation.trace(lambda: f"FAULT {line}")

    def _leaders(self) -> list[Host]:
        hosts = [agent.host for agent in self._simulation.agents.values() if agent.host and not agent.paused]
        return [host for host in hosts if host.core.role is Role.LEADER]

    def _crash_one(self) -> str:
        return self._crash(1)

    def _crash_many(self) -> str:
        """A majority, or the whole cluster: one power supply."""
        return self._crash(self._rng.randint(2, len(self._simulation.agents)))

    def _crash_leader(self) -> str:
        leaders = self._leaders()
        if not leaders:
            return "no leader to crash"
        return self._crash_agents([self._rng.choice(leaders).agent.name])

    def _crash(self, count: int) -> str:
        names = [name for name, agent in self._simulation.agents.items() if agent.host]
        return self._crash_agents(self._rng.sample(names, min(count, len(names))))

    def _crash_agents(self, names: list[str]) -> str:
        for name in names:
            down_ms = self._rng.choice((20, 200, 2000)) + self._rng.randint(0, 100)
            self._simulation.crash(name, down_ms)
        return f"crash {' '.join(names)}"

    def _pause(self) -> str:
        name = self._rng.choice(sorted(self._simulation.agents))
        duration_ms = self._rng.choice((50, 700, 3000))
        self._simulation.pause(name, duration_ms)
        return f"pause {name} for {duration_ms}"

    def _cut(self) -> str:
        shape = self._rng.choice(SHAPES)
        links = cut(shape, sorted(self._simulation.agents), self._rng)
        return self._block(shape, links)

    def _isolate_leader(self) -> str:
        leaders = self._leaders()
        if not leaders:
            return "no leader to isolate"
        name = self._rng.choice(leaders).agent.name
        others = [other for other in self._simulation.agents if other != name]
        return self._block(f"isolate {name}", {(name, o) for o in others} | {(o, name) for o in others})

    def _block(self, what: str, links: set[tuple[str, str]]) -> str:
        network = self._simulation.network
        duration_ms = self._rng.choice((100, 800, 2500))
        network.blocked |= links
        self._simulation.after(duration_ms, lambda: network.blocked.difference_update(links))
        return f"cut {what} for {duration_ms}"

    def _lose_packets(self) -> str:
        network = self._simulation.network
        network.loss_burst = self._rng.choice((0.1, 0.3, 0.6))

        def end() -> None:
            network.loss_burst = 0.0

        self._simulation.after(500, end)
        return f"lose {network.loss_burst:.0%} of packets for 500"

    def _slow_disk(self) -> str:
        agent = self._simulation.agents[self._rng.choice(sorted(self._simulation.agents))]
        agent.slow_sync_ms = self._rng.choice((100, 500, 1500))

        def end() -> None:
            agent.slow_sync_ms = 0

        self._simulation.after(1000, end)
        return f"slow disk at {agent.name}: {agent.slow_sync_ms}"

    def _transfer(self) -> str:
        leaders = self._leaders()
        if not leaders:
            return "no leader to transfer from"
        host = self._rng.choice(leaders)
        target = self._rng.choice((None, *host.core.configuration.voters))
        try:
            host.core.transfer_leadership(target, self._simulation.now_ms)
        except ReplicationError as error:
            return f"no transfer: {error}"
        self._simulation.after_input(host)
        return f"transfer from {host.core.replica_id} to {target}"

    def _trim(self) -> str:
        """Retention drops some or all of what is committed: who lags behind that needs whole segments."""
        hosts = [agent.host for agent in self._simulation.agents.values() if agent.host and not agent.paused]
        if not hosts:
            return "nobody to trim"
        host = self._rng.choice(hosts)
        last = min(host.applied, len(host.disk.log))
        if last <= host.disk.first_index:
            return f"{host.core.replica_id} has nothing to trim"
        host.trim(self._rng.choice((last, self._rng.randint(host.disk.first_index, last))))
        self._simulation.after_input(host)
        return f"trim {host.core.replica_id} to {host.disk.first_index}"

    def _rot(self) -> str:
        """An entry does not verify any more, as often as not one of the newest, committed or not; its process
        runs or not. It is found by the next look or read; the process that wrote it may have sent it from
        memory until then, which is not simulated."""
        agents = [agent for agent in self._simulation.agents.values() if agent.disk and not agent.paused]
        agents = [agent for agent in agents if self._rotten in (None, agent.name)]
        agent = self._rng.choice(agents) if agents else None
        disk = agent.disk if agent is not None else None
        if agent is None or disk is None or len(disk.log) < disk.first_index:
            return "nothing rots"
        self._rotten = agent.name
        last = len(disk.log)
        newest = max(disk.first_index, last - NEWEST_ENTRIES + 1)
        index = self._rng.randint(newest if self._rng.random() < 0.5 else disk.first_index, last)
        disk.damaged.add(index)
        host = agent.host
        if host is not None:
            self._simulation.after(self._rng.randint(1, 1_000), lambda: self._simulation.found_damage(host))
        return f"rot of entry {index} of {last} at {agent.name}"

    def _change_membership(self) -> str:
        leaders = self._leaders()
        if not leaders:
            return "no leader to change the members"
        host = self._rng.choice(leaders)
        replicas = self._next_replicas(host)
        try:
            configuration = host.propose_configuration(replicas)
        except ReplicationError as error:
            return f"no change: {error}"
        for replica in configuration.replicas:
            if replica.id.index == configuration.index and replica.id.term > 0:
                self._simulation.give_birth(replica)
        self._simulation.after_input(host)
        return f"change to {configuration}"

    def _next_replicas(self, host: Host) -> list[Replica]:
        """One more learner, one learner promoted, or one replica less."""
        configuration = host.core.configuration
        replicas = list(configuration.replicas)
        used = {replica.agent_id for replica in replicas}
        free = [name for name, agent in self._simulation.agents.items() if name not in used and agent.is_free]
        learners = [replica for replica in replicas if replica.learner]
        voter_count = len(replicas) - len(learners)
        choices = []
        if free:
            choices.append([*replicas, Replica(UNBORN, self._rng.choice(free), learner=True)])
        if learners and voter_count < VOTERS_MAX:
            learner = self._rng.choice(learners)
            promoted = Replica(learner.id, learner.agent_id)
            choices += [[promoted if item is learner else item for item in replicas]] * 2
        if voter_count > VOTERS_MIN:
            gone = self._rng.choice(replicas)
            choices.append([item for item in replicas if item is not gone])
        return self._rng.choice(choices) if choices else replicas
