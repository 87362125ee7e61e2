"""The world: agents, a clock that jumps from event to event, clients, and the two phases.

Law of this file: everything that happens is an event in one heap, ordered by (time, sequence number); nothing
but the seed decides what it is. First the safety phase, with faults; then everything heals, and the group
must elect a leader, commit, and agree, within a bound.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from raft_sim.disk import Disk, Entry
from raft_sim.faults import Nemesis
from raft_sim.host import Host, Packet
from raft_sim.invariants import ALL, Invariant, InvariantViolation, Ledger
from raft_sim.knobs import Knobs
from raft_sim.network import Network
from shoal.format.batch import LogIndex, Term
from shoal.replication.errors import ReplicationError
from shoal.replication.interfaces import Configuration, HardState, Replica, ReplicaId
from shoal.replication.messages import Message, decode, encode
from shoal.replication.raft import Role
from shoal.replication.state.commit_evidence import was_never_committed

AGENT_COUNT = 6  # five voters at most, and one more to move to
LIVENESS_MS_MAX = 20_000  # from the heal to agreement; a healthy group needs under 3 s
INBOX_MAX = 10_000
BIRTH_MS_MAX = 5_000  # when the last voter of a group that is led from birth is born
SHIPPING_INTERVAL_MS = 200
MENDING_INTERVAL_MS = 300


@dataclass
class Agent:
    """A machine: at most one replica of the group at a time. nonce counts its boots."""

    name: str
    nonce: int = 0
    paused: bool = False
    slow_sync_ms: int = 0
    host: Host | None = None
    disk: Disk | None = None
    inbox: list[Callable[[], None]] = field(default_factory=list)
    heard_ms: dict[str, int] = field(default_factory=dict)
    heard_nonce: dict[str, int] = field(default_factory=dict)

    @property
    def is_free(self) -> bool:
        """Whether no replica lives here, dead or alive."""
        return self.disk is None


class Simulation:
    """One run. `run` raises InvariantViolation, or AssertionError from the core, with the virtual time in
    it."""

    def __init__(
        self,
        seed: int,
        *,
        knobs: Knobs | None = None,
        invariants: tuple[type[Invariant], ...] = ALL,
        print_line: Callable[[str], None] | None = None,
    ) -> None:
        self.rng = random.Random(seed)
        self.knobs = knobs or Knobs.draw(self.rng)
        self.raft_config = self.knobs.raft_config()
        self.now_ms = 0
        self.event_count = 0
        self.read_count = 0
        self.sent_count = 0
        self.installed_count = 0
        self.mended_count = 0
        self.dropped_count = 0
        self.acknowledged_count = 0
        self._print_line = print_line
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = itertools.count()
        self._payloads = itertools.count(1)
        self._tokens = itertools.count(1)
        self._proposals: dict[tuple[int, int], int] = {}  # (index, term): payload, unanswered
        self._reads: dict[int, int] = {}  # token: how much was committed when it was asked
        self._idle_until_ms = 0
        self._ending = False
        self.network = Network(self.knobs, self.rng)
        self.agents = {name: Agent(name) for name in "abcdef"[:AGENT_COUNT]}
        self.birth = Configuration.birth(tuple(self.agents)[: self.knobs.voters])
        self.homes: dict[ReplicaId, str] = {}
        self.disks: dict[ReplicaId, Disk] = {}
        self.ledger = Ledger(self.birth)
        made = [make(self) for make in invariants]
        # Most invariants look at one kind of event only; asking the others each time would cost half the
        # seeds.
        self._watchers = {
            hook: [item for item in made if getattr(type(item), hook) is not getattr(Invariant, hook)]
            for hook in ("on_role", "on_append", "on_commit", "on_send", "on_read", "after_event")
        }
        self.nemesis = Nemesis(self)
        self._bear()
        self._start_clocks()

    # The clock

    def after(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Run action then."""
        heapq.heappush(self._events, (self.now_ms + delay_ms, next(self._sequence), action))

    def every(self, interval_ms: int, action: Callable[[], None], *, jitter: bool = True) -> None:
        """Run action again and again, until the safety phase ends if it is one of chance."""

        def again() -> None:
            if not (jitter and self._ending):
                action()
                self.after(self.rng.randint(1, 2 * interval_ms) if jitter else interval_ms, again)

        self.after(interval_ms, again)

    def _start_clocks(self) -> None:
        self.every(self.knobs.fault_interval_ms, self.nemesis.strike)
        self.every(self.knobs.proposal_interval_ms, self._propose)
        self.every(self.knobs.read_interval_ms, self._read)
        self.every(self.raft_config.heartbeat_interval_ms, self._exchange_liveness, jitter=False)
        self.every(500, self._reap, jitter=False)
        self.every(SHIPPING_INTERVAL_MS, self._ship_segments, jitter=False)
        if self.knobs.rot:
            self.every(MENDING_INTERVAL_MS, self._mend, jitter=False)

    def run(self) -> None:
        """Both phases."""
        try:
            self.run_until(lambda: False, self.knobs.safety_ms)
            self.heal()
            committed_before = len(self.ledger.entries)
            healthy = self.run_until(lambda: self._has_converged(committed_before), LIVENESS_MS_MAX)
            if not healthy:
                raise InvariantViolation(
                    "Liveness", f"no agreement {LIVENESS_MS_MAX} ms after the heal\n{self}"
                )
            self._check_agreement()
        except AssertionError as error:
            error.add_note(f"at {self.now_ms} ms of virtual time")
            raise

    def run_until(self, condition: Callable[[], bool], limit_ms: int) -> bool:
        """Run events until the condition holds, for limit_ms at most; whether it held."""
        end_ms = self.now_ms + limit_ms
        next_look_ms = self.now_ms
        while self._events and self._events[0][0] <= end_ms:
            self.now_ms, _, action = heapq.heappop(self._events)
            self.event_count += 1
            action()
            if self.now_ms >= next_look_ms:
                next_look_ms = self.now_ms + 50
                if condition():
                    return True
        self.now_ms = end_ms
        return False

    def trace(self, line: Callable[[], str]) -> None:
        """One line of the trace, if anybody reads it."""
        if self._print_line is not None:
            self._print_line(f"{self.now_ms:>6} {line()}")

    # Agents

    def _bear(self) -> None:
        """All voters at once; or the leader at any time, and each of the others at another."""
        if not self.knobs.leads_from_birth:
            for replica in self.birth.replicas:
                self._found(replica)
            return
        times = random.Random(f"births {self.knobs}")
        for replica in self.birth.replicas:
            leads = replica.id == self.birth.voters[0]
            born_ms = times.choice((0, 30, 500, BIRTH_MS_MAX))
            self.after(born_ms, partial(self._bear_late, replica, leads))
            if leads and self.knobs.crashes:
                crash = partial(self.crash, replica.agent_id, times.randint(1, 500))
                self.after(born_ms + times.randint(1, 4 * self.knobs.sync_ms_max), crash)

    def _bear_late(self, replica: Replica, leads: bool) -> None:
        if self.agents[replica.agent_id].is_free:  # else it was left out before it was there
            self._found(replica, self.hard_state_at_birth(replica.id), leads=leads)

    def hard_state_at_birth(self, _replica_id: ReplicaId) -> HardState:
        """Of every voter, where the first leads from birth."""
        return self.birth.hard_state_at_birth()

    def _found(self, replica: Replica, hard_state: HardState | None = None, *, leads: bool = False) -> None:
        agent = self.agents[replica.agent_id]
        assert agent.is_free
        agent.disk = self.disks[replica.id] = Disk(replica.id, hard_state or HardState())
        self.homes[replica.id] = agent.name
        self._boot(agent, leads_from_birth=leads)

    def give_birth(self, replica: Replica) -> None:
        """A replica was added: its agent learns of it a little later."""

        def found() -> None:
            if self.agents[replica.agent_id].is_free and replica.id not in self.homes:
                self._found(replica)

        self.after(self.rng.randint(1, 50), found)

    def _boot(self, agent: Agent, *, leads_from_birth: bool = False) -> None:
        assert agent.host is None
        if agent.disk is None:
            return
        agent.nonce += 1
        agent.host = Host(self, agent, agent.disk, leads_from_birth=leads_from_birth)
        agent.heard_ms.clear()
        self.trace(lambda: f"{agent.name} BOOT {agent.host}")
        self.after_input(agent.host)

    def crash(self, name: str, down_ms: int) -> None:
        """Power off: unsynced writes are lost, packets on their way are not."""
        agent = self.agents[name]
        if agent.host is None or agent.disk is None:
            return
        disk = agent.disk
        lost = disk.crash(self.rng)
        self.trace(
            lambda: f"{name} CRASH, {lost} entries lost, disk has {disk.hard_state} and {len(disk.log)}"
        )
        agent.host = None
        agent.paused = False
        agent.inbox.clear()
        self.after(down_ms, lambda: self._boot(agent) if agent.host is None and agent.disk is disk else None)

    def pause(self, name: str, duration_ms: int) -> None:
        """SIGSTOP, and later SIGCONT: input waits, then comes before the timers (safety 26)."""
        agent = self.agents[name]
        if agent.host is None or agent.paused:
            return
        agent.paused = True
        host = agent.host

        def resume() -> None:
            if agent.host is host:
                self._resume(agent)

        self.after(duration_ms, resume)

    def _resume(self, agent: Agent) -> None:
        agent.paused = False
        inbox, agent.inbox = agent.inbox, []
        for action in inbox:
            action()
        if agent.host is not None:
            agent.host.core.wake(self.now_ms)
            self.after_input(agent.host)

    def _reap(self) -> None:
        """Delete replicas that a committed configuration leaves out (safety 4)."""
        members = {replica.id for replica in self.ledger.configuration.replicas}
        for agent in self.agents.values():
            disk = agent.disk
            if disk is None or disk.replica_id in members:
                continue
            born_at = disk.replica_id.index if disk.replica_id.term > 0 else 0
            if born_at <= len(self.ledger.entries) and self.rng.random() < 0.3:
                self.trace(lambda agent=agent, disk=disk: f"{agent.name} DELETES {disk.replica_id}")
                disk.crash(self.rng)
                agent.host = agent.disk = None
                agent.paused = False
                agent.inbox.clear()

    def _ship_segments(self) -> None:
        """Followers that need trimmed entries get whole segments, beside Raft (safety 27)."""
        leader = self.newest_leader()
        if leader is None or leader.agent.paused:
            return
        for receiver in leader.core.needs_segments:
            agent = self.agents[self.homes[receiver]] if receiver in self.homes else None
            host = agent.host if agent is not None else None
            if agent is None or host is None or agent.paused or host.disk.replica_id != receiver:
                continue
            # See RaftCore.caught_up for what may replace what.
            last_index = len(leader.disk.log)
            terms = {leader.core.term, host.core.term, host.disk.hard_state.term}
            may_replace = len(host.pages) < last_index or last_index == leader.core.last_index
            if len(terms) == 1 and may_replace and last_index >= leader.disk.first_index:
                self._install(leader, host, last_index)

    def _install(self, leader: Host, host: Host, last_index: int) -> None:
        agent, disk = host.agent, host.disk
        disk.crash(self.rng)
        disk.install(leader.disk, last_index)
        agent.host = None
        agent.inbox.clear()
        self.trace(lambda: f"{agent.name} INSTALLS segments {disk.first_index}..{last_index}")
        self._boot(agent)
        leader.core.caught_up(disk.replica_id, LogIndex(last_index), self.now_ms)
        self.after_input(leader)
        self.installed_count += 1

    def found_damage(self, host: Host) -> None:
        """Entries there do not verify, or do again."""
        self._at(host, host.look_for_damage)

    def _mend(self) -> None:
        """Damaged entries are fetched from whoever has the same index and term intact (safety 10)."""
        for agent in self.agents.values():
            host = agent.host
            if host is None or agent.paused or not host.disk.damaged:
                continue
            mended = {index for index in host.disk.damaged if self._may_be_had(host, index)}
            dropped = min(
                (index for index in host.disk.damaged - mended if self._never_committed(host, index)),
                default=0,
            )
            if dropped:
                self._drop(host, dropped)
            elif mended:
                self.trace(lambda host=host, mended=mended: f"{host.agent.name} MENDS {sorted(mended)}")
                host.disk.damaged -= mended
                self.mended_count += len(mended)
                self.found_damage(host)

    def _may_be_had(self, host: Host, index: int) -> bool:
        for other in self.agents.values():
            peer = other.host
            if peer is None or peer is host or other.paused:
                continue
            reachable = self.network.passes(other.name, host.agent.name)
            intact = index >= peer.disk.first_index and index not in peer.disk.damaged
            if reachable and intact and peer.disk.holds(index, host.disk.log[index - 1]):
                return True
        return False

    def _never_committed(self, host: Host, index: int) -> bool:
        """Whether enough voters lack it, whole and in a newer term than any in which this one acknowledged
        anything. Who is asked enters such a term, unless it hears a leader."""
        if index <= host.core.commit_index or index < host.disk.first_index:
            return False
        newest_term = Term(host.disk.log[-1].term)
        lacking = []
        for voter, name in self.homes.items():
            agent = self.agents[name]
            peer = agent.host if not agent.paused else None
            if peer is None or peer is host or peer.disk.replica_id != voter:
                continue
            disk = peer.disk
            is_whole = not (disk.damaged or disk.queue or disk.syncing)
            reachable = self.network.passes(agent.name, host.agent.name)
            if not reachable or not is_whole or disk.holds(index, host.disk.log[index - 1]):
                continue
            if disk.hard_state.term > newest_term:
                lacking.append(voter)
            else:
                peer.core.forswear(newest_term, self.now_ms)
                self.after_input(peer)
        return was_never_committed(
            LogIndex(index),
            holder=host.core.replica_id,
            configurations=host.core.configurations,
            term_at=host.core.term_at,
            lacking=lacking,
        )

    def _drop(self, host: Host, index: int) -> None:
        """Cut what was never committed, with what follows; the process is stopped for it."""
        agent, disk = host.agent, host.disk
        disk.crash(self.rng)
        if index <= len(disk.log):
            disk.truncate(index)
        self.trace(lambda: f"{agent.name} DROPS entries from {index} on")
        self.dropped_count += 1
        agent.host = None
        agent.inbox.clear()
        self._boot(agent)

    # Packets, syncs, timers

    def post(self, sender: Agent, packet: Packet) -> None:
        """Send; copies arrive later, or never. A replica unknown so far has no address."""
        home = self.homes.get(packet.message.receiver)
        if home is None:
            return
        for delay_ms in self.network.delays_ms(sender.name, home):
            if self.rng.random() < 0.05:
                assert decode(encode(packet.message)) == packet.message
            self.after(delay_ms, lambda: self._arrive(sender.name, self.agents[home], packet))

    def _arrive(self, sender: str, agent: Agent, packet: Packet) -> None:
        if not self.network.passes(sender, agent.name):
            return
        host = agent.host
        if host is not None:
            self._at(host, lambda: host.receive(packet))

    def _at(self, host: Host, action: Callable[[], None]) -> None:
        """Let something happen at a replica: now, or when its process runs again."""
        agent = host.agent
        if agent.host is not host:
            return  # that process is gone
        if agent.paused:
            if len(agent.inbox) < INBOX_MAX:
                agent.inbox.append(lambda: self._at(host, action))
            return
        action()
        self.after_input(host)

    def schedule_sync(self, host: Host) -> None:
        """A sync was started; it ends after a while."""
        usual_ms = min(self.knobs.sync_ms_max, 5) if self._ending else self.knobs.sync_ms_max
        slowest_ms = max(usual_ms, host.agent.slow_sync_ms)
        fastest_ms = host.agent.slow_sync_ms // 2
        self.after(self.rng.randint(fastest_ms, slowest_ms), lambda: self._at(host, host.synced))

    def after_input(self, host: Host) -> None:
        """Drain now or a little later, look after the timer, and check everything."""
        if self.rng.random() >= self.knobs.late_drain:
            host.drain()
        elif not host.drain_scheduled:
            host.drain_scheduled = True
            self.after(self.rng.randint(1, 3), lambda: self._at(host, lambda: self._drain_late(host)))
        for invariant in self._watchers["after_event"]:
            invariant.after_event(host)
        self._arm(host)

    @staticmethod
    def _drain_late(host: Host) -> None:
        host.drain_scheduled = False
        host.drain()

    def _arm(self, host: Host) -> None:
        deadline_ms = host.core.deadline()
        if deadline_ms is None or (
            host.wake_at_ms is not None and host.wake_at_ms <= max(deadline_ms, self.now_ms)
        ):
            return
        due_ms = host.wake_at_ms = max(deadline_ms, self.now_ms)

        def ring() -> None:
            if host.wake_at_ms == due_ms:
                host.wake_at_ms = None
                self._at(host, lambda: host.core.wake(self.now_ms))

        self.after(due_ms - self.now_ms, ring)

    def _exchange_liveness(self) -> None:
        """The frames that agents exchange for all their groups (safety 25)."""
        timeout_ms = self.raft_config.election_timeout_ms
        for agent in self.agents.values():
            host = agent.host
            if host is None or agent.paused:
                continue
            before_ms = host.core.deadline()
            for other in self.agents.values():
                if other is not agent and self._is_silent(agent, other, timeout_ms):
                    host.note_silence(other.name)
            if host.core.deadline() != before_ms:
                self.trace(lambda agent=agent: f"{agent.name} notices silence")
                self.after_input(host)

    def _is_silent(self, agent: Agent, other: Agent, timeout_ms: int) -> bool:
        passes = self.network.passes(other.name, agent.name)
        if other.host is not None and not other.paused and passes and self.rng.random() >= self.knobs.loss:
            agent.heard_ms[other.name] = self.now_ms
            if agent.heard_nonce.get(other.name) != other.nonce:
                agent.heard_nonce[other.name] = other.nonce
                return True
        return self.now_ms - agent.heard_ms.setdefault(other.name, self.now_ms) > timeout_ms

    # Clients

    def _believed_leaders(self) -> list[Host]:
        """Replicas that believe they lead: clients ask deposed leaders too."""
        hosts = [agent.host for agent in self.agents.values() if agent.host is not None and not agent.paused]
        return [host for host in hosts if host.core.role is Role.LEADER]

    def _propose(self) -> None:
        if self.now_ms < self._idle_until_ms:
            return
        if self.rng.random() < self.knobs.idle:
            self._idle_until_ms = self.now_ms + self.rng.choice((1500, 3000))
        leaders = self._believed_leaders()
        if leaders:
            host = self.rng.choice(leaders)
            self.propose(host, self.rng.choice((1, 1, 2, 5)))

    def propose(self, host: Host, count: int) -> None:
        """A client's append, if the replica takes it."""
        payloads = [next(self._payloads) for _ in range(count)]
        try:
            first_index, term = host.propose(payloads)
        except ReplicationError:
            return  # a definite refusal: the client asks another
        for offset, payload in enumerate(payloads):
            self._proposals[first_index + offset, term] = payload
        self.after_input(host)

    def _read(self) -> None:
        """Ask everybody who believes it leads: it is the deposed ones that could lie."""
        if self.now_ms < self._idle_until_ms:
            return
        for host in self._believed_leaders():
            token = next(self._tokens)
            self._reads[token] = len(self.ledger.entries)
            try:
                host.core.read_index(token, self.now_ms)
            except ReplicationError:
                del self._reads[token]
                continue
            self.after_input(host)

    # What hosts report

    def observe_append(self, host: Host, index: int, entry: Entry) -> None:
        """An entry is in a log."""
        for invariant in self._watchers["on_append"]:
            invariant.on_append(host, index, entry)

    def observe_send(self, host: Host, message: Message) -> None:
        """A message leaves."""
        self.sent_count += 1
        for invariant in self._watchers["on_send"]:
            invariant.on_send(host, message)

    def observe_role(self, host: Host) -> None:
        """A ready was carried out: the role may be another."""
        for invariant in self._watchers["on_role"]:
            invariant.on_role(host)

    def observe_read(self, host: Host, token: int, index: LogIndex) -> None:
        """A read index is answered."""
        self.read_count += 1
        floor = self._reads.pop(token)
        for invariant in self._watchers["on_read"]:
            invariant.on_read(host, floor, index)

    def observe_commit(self, host: Host, index: LogIndex) -> None:
        """A commit index moved: check it, then take what is new into the ledger and answer the clients."""
        for invariant in self._watchers["on_commit"]:
            invariant.on_commit(host, index)
        known = len(self.ledger.entries)
        if index > known:
            self.ledger.extend(host.pages[known:index], host.core.term)
            for position in range(known, index):
                entry = host.pages[position]
                if self._proposals.pop((position + 1, entry.term), None) is not None:
                    self.acknowledged_count += 1
        host.applied = index

    # The end

    def heal(self) -> None:
        """No more faults: everything runs again."""
        self.trace(lambda: "HEAL")
        self._ending = True
        self.network.heal()
        for agent in self.agents.values():
            agent.slow_sync_ms = 0
            if agent.paused:
                self._resume(agent)
            if agent.host is None:
                self._boot(agent)

    def stop_clients(self) -> None:
        """Nobody proposes or reads any more, and nothing more goes wrong."""
        self._ending = True

    def newest_leader(self) -> Host | None:
        """The live leader of the highest term."""
        hosts = [agent.host for agent in self.agents.values() if agent.host is not None]
        leaders = [host for host in hosts if host.core.role is Role.LEADER]
        return max(leaders, key=lambda host: host.core.term, default=None)

    def newest_term(self) -> int:
        """The term of the newest leader; 0 without one."""
        leader = self.newest_leader()
        return leader.core.term if leader else 0

    def is_quiet(self) -> bool:
        """Whether no live replica keeps a timer."""
        hosts = [agent.host for agent in self.agents.values() if agent.host is not None]
        return bool(hosts) and all(host.core.is_quiet for host in hosts)

    def _has_converged(self, committed_before: int) -> bool:
        leader = self.newest_leader()
        if leader is None:
            return False
        core = leader.core
        if len(self.ledger.entries) <= committed_before or not isinstance(
            self.ledger.entries[-1].payload, int
        ):
            if core.last_index == core.commit_index:
                self.propose(leader, 1)
            return False
        members = {replica.id for replica in core.configuration.replicas}
        hosts = [agent.host for agent in self.agents.values() if agent.host is not None]
        present = [host for host in hosts if host.core.replica_id in members]
        return (
            core.last_index == core.commit_index
            and {host.core.replica_id for host in present} == members
            and all(
                host.core.commit_index == core.commit_index and host.core.leader == core.replica_id
                for host in present
            )
        )

    def _check_agreement(self) -> None:
        """SameCommittedPrefix, over everything and at the end."""
        for disk in self.disks.values():
            host = self.agents[self.homes[disk.replica_id]].host
            if host is None or host.disk is not disk:
                continue
            commit = min(host.applied, host.core.commit_index)
            if host.pages[:commit] != self.ledger.entries[:commit]:
                raise InvariantViolation("SameCommittedPrefix", f"{host}")

    def summary(self) -> str:
        """What happened, in one line."""
        term = max((disk.hard_state.term for disk in self.disks.values()), default=0)
        return (
            f"{self.event_count} events in {self.now_ms} ms, {term} terms,"
            f" {len(self.ledger.entries)} entries committed, {self.acknowledged_count} acknowledged,"
            f" {self.read_count} reads, {self.installed_count} installed, {self.ledger.configuration}"
        )

    def __str__(self) -> str:
        lines = [f"{self.now_ms} ms, {len(self.ledger.entries)} committed, {self.event_count} events"]
        lines += [f"  {agent.host or f'{agent.name} down'}" for agent in self.agents.values() if agent.disk]
        return "\n".join(lines)
