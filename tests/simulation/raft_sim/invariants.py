"""What must hold after every event, whatever went wrong.

Law of this file: one small class per invariant, named as in the paper or in safety.md; each keeps what it
needs to remember and raises InvariantViolation. None of them changes the simulation or draws from its rng.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import TYPE_CHECKING

from raft_sim.disk import Entry
from raft_sim.host import Host
from shoal.format.batch import LogIndex
from shoal.replication.interfaces import Configuration, ReplicaId
from shoal.replication.messages import AppendReply, Message, Vote, VoteReply
from shoal.replication.raft import Role

if TYPE_CHECKING:
    from raft_sim.simulation import Simulation


class InvariantViolation(AssertionError):
    """name says which."""

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(f"{name}: {detail}")
        self.name = name


class Ledger:
    """Every entry that any replica has reported as committed, in order, and the term of the leader that
    did."""

    def __init__(self, birth: Configuration) -> None:
        self.entries: list[Entry] = []
        self.commit_terms: list[int] = []
        self.configuration = birth

    def extend(self, entries: list[Entry], term: int) -> None:
        """Newly committed entries."""
        self.entries += entries
        self.commit_terms += [term] * len(entries)
        for entry in entries:
            if isinstance(entry.payload, Configuration):
                self.configuration = entry.payload


class Invariant:
    """Hooks; each invariant overrides those it needs. on_commit runs before the ledger takes the new entries
    in."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation

    @property
    def name(self) -> str:
        """The name to report."""
        return type(self).__name__

    def require(self, condition: bool, detail: Callable[[], str]) -> None:
        """Raise unless condition holds."""
        if not condition:
            raise InvariantViolation(self.name, detail())

    def on_role(self, host: Host) -> None:
        """A replica has another role, or another term."""

    def on_append(self, host: Host, index: int, entry: Entry) -> None:
        """An entry is in a replica's log, perhaps not synced."""

    def on_commit(self, host: Host, index: LogIndex) -> None:
        """A replica's commit index moved to index."""

    def on_send(self, host: Host, message: Message) -> None:
        """A message leaves."""

    def on_read(self, host: Host, floor: int, index: LogIndex) -> None:
        """A read asked when `floor` entries were committed is answered with index."""

    def after_event(self, host: Host) -> None:
        """Something happened at that replica."""


class ElectionSafety(Invariant):
    """At most one leader in a term (figure 3)."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self._leaders: dict[int, ReplicaId] = {}

    def on_role(self, host: Host) -> None:
        core = host.core
        if core.role is Role.LEADER:
            leader = self._leaders.setdefault(core.term, core.replica_id)
            self.require(
                leader == core.replica_id, lambda: f"{leader} and {core.replica_id} lead term {core.term}"
            )


class OneVotePerTerm(Invariant):
    """A replica, across its crashes, votes for one candidate in a term (section 5.2)."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self._votes: dict[tuple[ReplicaId, int], ReplicaId] = {}

    def on_send(self, host: Host, message: Message) -> None:
        match message:
            case Vote():
                choice = message.sender
            case VoteReply() if message.granted:
                choice = message.receiver
            case _:
                return
        voted = self._votes.setdefault((message.sender, message.term), choice)
        self.require(
            voted == choice, lambda: f"{message.sender} votes for {voted} and {choice} in {message.term}"
        )


class PromisesAreDurable(Invariant):
    """Votes, acknowledgements and candidacies leave after the disk knows what they promise (safety 3,
    thesis 3.8).

    When the disk knows a later term already, what was promised in an earlier one may be replaced: one sync
    made both durable, in order. Nobody who counts the promise can win by it: whoever voted in the later term
    has refused candidates that lack the entry.
    """

    def on_send(self, host: Host, message: Message) -> None:
        disk = host.disk
        match message:
            case VoteReply() if message.granted:
                self._vote_is_synced(host, message.term, message.receiver)
            case Vote():
                self._vote_is_synced(host, message.term, message.sender)
            case AppendReply() if message.accepted:
                self.require(
                    disk.hard_state.term >= message.term, lambda: f"{message} before its term is on disk"
                )
                is_kept = disk.hard_state.term > message.term or len(disk.log) >= message.match_index
                self.require(is_kept, lambda: f"{message} with {len(disk.log)} on disk")

    def on_role(self, host: Host) -> None:
        if host.core.role is Role.LEADER:
            self._vote_is_synced(host, host.core.term, host.core.replica_id)

    def _vote_is_synced(self, host: Host, term: int, candidate: ReplicaId) -> None:
        stored = host.disk.hard_state
        # A later term may be on disk by now: the vote was, before it.
        known = stored.term > term or (stored.term == term and stored.vote == candidate)
        self.require(
            known,
            lambda: f"{host.core.replica_id} votes for {candidate} in {term}, and its disk has {stored}",
        )


class LogMatching(Invariant):
    """Two entries of one index and term are the same, and so is everything before them (figure 3).

    By induction: what follows (previous index, previous term) with a term is one thing everywhere.
    """

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self._known: dict[tuple[int, int], Entry] = {}

    def on_append(self, host: Host, index: int, entry: Entry) -> None:
        known = self._known.setdefault((index, entry.term), entry)
        self.require(known == entry, lambda: f"{index} is {known} and, at {host.core.replica_id}, {entry}")
        before = host.pages[index - 2].term if index > 1 else 0
        self.require(
            before == entry.previous_term, lambda: f"{entry} at {index} follows an entry of term {before}"
        )


class LeaderCompleteness(Invariant):
    """A leader's log has everything committed in earlier terms (figure 3)."""

    def on_role(self, host: Host) -> None:
        if host.core.role is not Role.LEADER:
            return
        ledger = self.simulation.ledger
        count = bisect_left(ledger.commit_terms, host.core.term)
        self.require(
            host.pages[:count] == ledger.entries[:count],
            lambda: f"{host} lacks some of the first {count} entries",
        )


class StateMachineSafety(Invariant):
    """No two replicas ever apply different entries at one index (figure 3)."""

    def on_commit(self, host: Host, index: LogIndex) -> None:
        committed = self.simulation.ledger.entries
        self.require(len(host.pages) >= index, lambda: f"{host} commits {index} beyond its log")
        first, last = host.applied, min(index, len(committed))
        self.require(
            host.pages[first:last] == committed[first:last], lambda: f"{host} differs in {first + 1}..{last}"
        )


class CommittedByMajority(Invariant):
    """What is committed is on the synced disks of a majority (G1), and in the term of who committed it
    (5.4.2)."""

    def on_commit(self, host: Host, index: LogIndex) -> None:
        if index <= len(self.simulation.ledger.entries):
            return  # known already
        entry = host.pages[index - 1]
        holders = {disk.replica_id for disk in self.simulation.disks.values() if disk.holds(index, entry)}
        # The driver may report late, when the next configuration is in force already.
        configurations = host.configurations()[-2:]
        majorities = [2 * len(holders & set(item.voters)) > len(item.voters) for item in configurations]
        self.require(any(majorities), lambda: f"{host} commits {index}, synced by {sorted(holders)} only")


class CommitsOwnTerm(Invariant):
    """By counting, a leader commits entries of its own term only (section 5.4.2, figure 8)."""

    def on_commit(self, host: Host, index: LogIndex) -> None:
        if index > len(self.simulation.ledger.entries) and host.core.role is Role.LEADER:
            term = host.pages[index - 1].term
            self.require(term == host.core.term, lambda: f"{host} commits {index}, an entry of term {term}")


class OneChangeAtATime(Invariant):
    """A leader changes the members when the change before, and an entry of its own term, are committed.

    Thesis 4.1 and its erratum: otherwise two majorities need not meet.

    What the same ready reports as committed is not in the ledger yet, so the core's own word counts as well.
    """

    def on_append(self, host: Host, index: int, entry: Entry) -> None:
        core = host.core
        if not isinstance(entry.payload, Configuration):
            return
        if core.role is not Role.LEADER or entry.term != core.term:
            return
        committed = max(core.commit_index, len(self.simulation.ledger.entries))
        before = max((item.index for item in host.configurations() if item.index < index), default=0)
        self.require(before <= committed, lambda: f"{host} changes {before} and then {index}")
        in_term = core.commit_index > 0 and host.pages[core.commit_index - 1].term == core.term
        self.require(in_term, lambda: f"{host} changes the members before its term has begun")


class MonotonicTermAndCommit(Invariant):
    """While a process lives its term and commit index never fall; its term never falls at all (section
    5.1)."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self._seen: dict[int, tuple[Host, int, int]] = {}

    def after_event(self, host: Host) -> None:
        core = host.core
        seen = self._seen.get(id(host))
        if seen is not None and seen[0] is host:
            self.require(
                core.term >= seen[1] and core.commit_index >= seen[2], lambda: f"{host} fell from {seen[1:]}"
            )
        self._seen[id(host)] = (host, core.term, core.commit_index)
        self.require(core.term >= host.disk.hard_state.term, lambda: f"{host} forgot {host.disk.hard_state}")


class LinearizableRead(Invariant):
    """A read sees everything that was committed, by anybody, before it was asked (thesis 6.4)."""

    def on_read(self, host: Host, floor: int, index: LogIndex) -> None:
        self.require(index >= floor, lambda: f"{host} answers {index}, and {floor} was committed before")

    def after_event(self, host: Host) -> None:
        index = host.core.sole_read_index()
        if index is not None:
            self.on_read(host, len(self.simulation.ledger.entries), index)


class OwnInvariants(Invariant):
    """The core's own assertions, and no message that no correct replica sends."""

    def after_event(self, host: Host) -> None:
        host.core.check_invariants()
        self.require(host.core.violation_count == 0, lambda: f"{host} was sent what no replica sends")


ALL: tuple[type[Invariant], ...] = (
    OwnInvariants,
    ElectionSafety,
    OneVotePerTerm,
    PromisesAreDurable,
    LogMatching,
    LeaderCompleteness,
    StateMachineSafety,
    CommittedByMajority,
    CommitsOwnTerm,
    OneChangeAtATime,
    MonotonicTermAndCommit,
    LinearizableRead,
)
