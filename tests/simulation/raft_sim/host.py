"""The driver of one replica, as the real host drives it.

Law of this file: it carries out readies and nothing else. Frames are keyed by (index, term), several readies
are out at once, syncs end later, messages_after_sync leave when everything before them is durable.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from raft_sim.disk import Disk, Entry, Write
from raft_sim.trace import describe, describe_ready
from shoal.format.batch import LogIndex, Term
from shoal.replication.interfaces import Configuration, Replica, StoredReplica
from shoal.replication.messages import AppendRequest, Message, shorten
from shoal.replication.raft import RaftCore, Role
from shoal.replication.state.ready import Ready

if TYPE_CHECKING:
    from raft_sim.simulation import Agent, Simulation


class Packet(NamedTuple):
    """A message and the frames that travel beside it."""

    message: Message
    entries: tuple[Entry, ...]


class Host:
    """pages is the log as this process sees it, synced or not; disk.log is what a crash would leave."""

    def __init__(
        self, simulation: Simulation, agent: Agent, disk: Disk, *, leads_from_birth: bool = False
    ) -> None:
        self.simulation = simulation
        self.agent = agent
        self.disk = disk
        self.pages: list[Entry] = list(disk.log)
        self.applied = 0
        self.role = Role.FOLLOWER
        self.drain_scheduled = False
        self.wake_at_ms: int | None = None
        self._frames: dict[tuple[int, int], Entry] = {}
        self._waiting: deque[tuple[Ready, bool]] = deque()  # ready, and whether the disk has it
        self.core = RaftCore(
            replica_id=disk.replica_id,
            stored=StoredReplica(
                hard_state=disk.hard_state,
                configurations=self._retained_configurations(),
                term_runs=_term_runs(disk.log, disk.first_index),
                first_index=LogIndex(disk.first_index),
                last_index=LogIndex(len(disk.log)),
                commit_index=disk.hard_state.commit_index,
            ),
            config=simulation.raft_config,
            rng=random.Random(simulation.rng.getrandbits(32)),
            now_ms=simulation.now_ms,
            leads_from_birth=leads_from_birth,
        )
        if disk.damaged:  # a start reads everything
            self.look_for_damage()

    def __repr__(self) -> str:
        return f"{self.agent.name} {self.core}"

    # Input

    def receive(self, packet: Packet) -> None:
        """Put the frames aside, step the message."""
        message = packet.message
        if isinstance(message, AppendRequest):
            found = []
            for offset, entry in enumerate(packet.entries):
                index = message.previous_index + 1 + offset
                self._frames[index, entry.term] = entry
                if isinstance(entry.payload, Configuration):
                    found.append(entry.payload)
            message = replace(message, configurations=tuple(found))
        self.core.step(message, self.simulation.now_ms)

    def propose(self, payloads: list[int]) -> tuple[int, int]:
        """(first index, term) of the proposal; the core's exceptions otherwise."""
        proposal = self.core.propose(len(payloads), self.simulation.now_ms)
        previous_term = proposal.previous_term
        for offset, payload in enumerate(payloads):
            index = proposal.first_index + offset
            self._frames[index, proposal.term] = Entry(proposal.term, previous_term, payload)
            previous_term = proposal.term
        return proposal.first_index, proposal.term

    def propose_configuration(self, replicas: list[Replica]) -> Configuration:
        """The configuration now in force, its frame put aside."""
        proposal = self.core.propose_configuration(replicas, self.simulation.now_ms)
        configuration = self.core.configuration
        assert configuration.index == proposal.first_index
        entry = Entry(proposal.term, proposal.previous_term, configuration)
        self._frames[proposal.first_index, proposal.term] = entry
        return configuration

    def configurations(self) -> list[Configuration]:
        """Those in this log, ascending, that of birth first."""
        found = (entry.payload for entry in self.pages if isinstance(entry.payload, Configuration))
        return [self.simulation.birth, *found]

    def _retained_configurations(self) -> list[Configuration]:
        """Those from the trimmed head on, and the one in force there."""
        known = self.configurations()
        in_force = max(item.index for item in known if item.index <= self.disk.first_index)
        return [item for item in known if item.index >= in_force]

    def look_for_damage(self) -> None:
        """What the scrubber or a read has found, or a peer has mended, is told to the core."""
        self.core.damaged(
            [(LogIndex(index), LogIndex(index)) for index in sorted(self.disk.damaged)],
            self.simulation.now_ms,
        )

    def trim(self, first_index: int) -> None:
        """Retention: forget the committed entries before first_index."""
        self.disk.first_index = first_index
        self.disk.damaged = {index for index in self.disk.damaged if index >= first_index}
        self.core.trimmed(LogIndex(first_index))

    # Output

    def drain(self) -> None:
        """Carry out everything that is ready."""
        while (ready := self.core.ready()) is not None:
            self.simulation.trace(lambda ready=ready: f"{self.agent.name}    {describe_ready(ready)}")
            self._carry_out(ready)
            self._advance()
        self._frames.clear()  # whatever the core took is in the log now; the rest it refused
        if self.disk.start_sync():
            self.simulation.schedule_sync(self)

    def _carry_out(self, ready: Ready) -> None:
        write = self._write(ready)
        self._waiting.append((ready, write is None))
        if write is not None:
            self.disk.queue.append(write)
        for message in ready.messages:
            self._send(message)
        if ready.commit_index is not None:
            self.simulation.observe_commit(self, ready.commit_index)
        for token, index in ready.read_states:
            self.simulation.observe_read(self, token, index)
        self.simulation.observe_role(self)

    def _write(self, ready: Ready) -> Write | None:
        if not ready.must_sync:
            return None
        if ready.truncate_from is not None:
            del self.pages[ready.truncate_from - 1 :]
        entries = []
        first_index = len(self.pages) + 1
        for run in ready.append:
            for index in range(run.first, run.last + 1):
                assert index == len(self.pages) + 1, "readies append without gaps"
                if index == ready.noop_index:
                    previous_term = self.pages[-1].term if self.pages else 0
                    entry = Entry(run.term, previous_term, f"noop {run.term}")
                else:
                    entry = self._frames[index, run.term]
                self.pages.append(entry)
                entries.append(entry)
                self.simulation.observe_append(self, index, entry)
        return Write(ready, ready.hard_state, ready.truncate_from, first_index, tuple(entries))

    def synced(self) -> None:
        """A sync has ended."""
        done = set(map(id, self.disk.finish_sync()))
        self._waiting = deque((ready, durable or id(ready) in done) for ready, durable in self._waiting)
        self._advance()

    def _advance(self) -> None:
        while self._waiting and self._waiting[0][1]:
            ready, _ = self._waiting.popleft()
            self.core.advance(ready)
            for message in ready.messages_after_sync:
                self._send(message)

    def _send(self, message: Message) -> None:
        entries: tuple[Entry, ...] = ()
        if isinstance(message, AppendRequest) and message.runs:
            knobs = self.simulation.knobs
            count = message.last_index - message.previous_index
            if count > 1 and self.simulation.rng.random() < knobs.shorten:
                last = LogIndex(message.previous_index + self.simulation.rng.randint(1, count - 1))
                message = shorten(message, last)
                self.core.shortened(message.receiver, last)
            intact = self._without_damage(message)
            if intact is None:
                return  # this follower gets it once it is mended
            message = intact
            entries = tuple(
                self._entry(index) for index in range(message.runs[0].first, message.last_index + 1)
            )
        self.simulation.trace(lambda: f"{self.agent.name} -> {describe(message)}")
        self.simulation.observe_send(self, message)
        self.simulation.post(self.agent, Packet(message, entries))

    def _without_damage(self, message: AppendRequest) -> AppendRequest | None:
        """As much of it as can be read here; whoever reads finds the damage."""
        first = message.runs[0].first
        damaged = [index for index in self.disk.damaged if first <= index <= message.last_index]
        if not damaged:
            return message
        self.simulation.after(0, lambda: self.simulation.found_damage(self))
        if min(damaged) == first:
            return None
        last = LogIndex(min(damaged) - 1)
        self.core.shortened(message.receiver, last)
        return shorten(message, last)

    def _entry(self, index: int) -> Entry:
        assert index not in self.disk.damaged, "a damaged entry is sent"
        assert index >= self.disk.first_index, "a trimmed entry is read"
        return self.pages[index - 1]

    # Silence of other agents (safety 25)

    def note_silence(self, agent_name: str) -> None:
        """The liveness frames of that agent are missing, or it has another boot nonce."""
        self.core.peer_silent(agent_name, self.simulation.now_ms)


def _term_runs(log: list[Entry], first_index: int) -> list[tuple[LogIndex, Term]]:
    runs: list[tuple[LogIndex, Term]] = []
    for index in range(first_index, len(log) + 1):
        term = Term(log[index - 1].term)
        if not runs or runs[-1][1] != term:
            runs.append((LogIndex(index), term))
    return runs
