"""The state that all roles share, the table of legal role changes, and the one place that performs them.

Law of this file: term, vote, leader, role and configuration change here only. Reasons to change them live in
the role files; each role keeps its own fields, which exist only while it lasts.
"""

import random
from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeAlias

from shoal.format.batch import LogIndex, Term
from shoal.replication.config import RaftConfig
from shoal.replication.interfaces import Configuration, HardState, ReplicaId, Run, StoredReplica
from shoal.replication.messages import Message
from shoal.replication.state.log_view import LogView
from shoal.replication.state.ready import Outbox

if TYPE_CHECKING:
    from shoal.replication.roles.candidate import Candidate
    from shoal.replication.roles.follower import Follower
    from shoal.replication.roles.leader import Leader

    Behaviour: TypeAlias = Follower | Candidate | Leader


NEWBORN_PATIENCE: Final = 4
"""Election timeouts for which the voters of a newborn group leave it to the preferred leader, and that waits
for them."""

DAMAGED_PATIENCE: Final = 2
"""Elections that others may try before a replica with a damaged log does, each of two timeouts at most."""


class Role(Enum):
    """The roles of section 5.1, with the pre-candidate of thesis 9.6."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


LEGAL: Final = frozenset(
    {
        (Role.FOLLOWER, Role.FOLLOWER),  # a newer term, or the leader of this one became known
        (Role.FOLLOWER, Role.LEADER),  # its group's birth made it the leader of the first term
        (Role.FOLLOWER, Role.PRE_CANDIDATE),  # the election timer ran out
        (Role.FOLLOWER, Role.CANDIDATE),  # TimeoutNow from the leader; or the timer, with pre_vote off
        (Role.PRE_CANDIDATE, Role.PRE_CANDIDATE),  # the timer ran out again
        (Role.PRE_CANDIDATE, Role.CANDIDATE),  # a majority would vote
        (Role.PRE_CANDIDATE, Role.FOLLOWER),  # refused by a majority, a leader appeared, a newer term
        (Role.CANDIDATE, Role.PRE_CANDIDATE),  # the timer ran out without a decision
        (Role.CANDIDATE, Role.CANDIDATE),  # the same, with pre_vote off
        (Role.CANDIDATE, Role.LEADER),  # a majority voted, its own synced vote among them
        (Role.CANDIDATE, Role.FOLLOWER),  # refused, a leader appeared, a newer term
        (Role.LEADER, Role.FOLLOWER),  # a newer term, no majority heard, or left out of the configuration
    }
)


class RaftState:
    """Everything that outlives a role.

    commit_index: known to be committed; never falls; from log.first_index - 1 to log.last_index.
    configurations: ascending by index; the last is in force, though perhaps not committed (thesis 4.1). They
    reach
        back to the start of the log, since a leader sends them with the entries they stand in.
    is_newborn: another leads from birth, and nothing is known to be committed yet. Where a thousand groups
        are born at once, their leader needs longer than usual to reach all replicas.
    is_colocated: all voters share one failure domain, as far as this replica was told; until then they do.
    is_left_out: the configuration in force is without this replica, and will be for ever.
    damaged: firsts and lasts of the entries whose bytes do not verify here (safety 10).
    violations: messages that no correct replica sends, dropped and counted. The simulation asserts there are
    none.
    """

    def __init__(
        self,
        replica_id: ReplicaId,
        stored: StoredReplica,
        config: RaftConfig,
        rng: random.Random,
        now_ms: int,
        make_follower: "Callable[[RaftState, int], Follower]",
        make_candidate: "Callable[[RaftState, int, bool], Candidate]",
        make_leader: "Callable[[RaftState, int], Leader]",
    ) -> None:
        self._make_follower = make_follower
        self._make_candidate = make_candidate
        self._make_leader = make_leader
        self.replica_id = replica_id
        self.config = config
        self.rng = rng
        self.now_ms = now_ms
        hard_state = stored.hard_state
        self.term: Term = hard_state.term
        self.vote = hard_state.vote
        self.leader: ReplicaId | None = None
        self.log = log = LogView(stored.term_runs, stored.first_index, stored.last_index)
        # Retention drops nothing but committed entries, even above the remembered hint.
        commit_index = max(min(stored.commit_index, stored.last_index), stored.first_index - 1)
        self.commit_index = LogIndex(commit_index)
        self.configurations = list(stored.configurations)
        birth = self.configuration.hard_state_at_birth()
        self.is_newborn = log.last_index == 0 and hard_state == birth and birth.vote != replica_id
        self.outbox = Outbox(hard_state, log.last_index)
        self.role = Role.FOLLOWER
        self.election_count = 0
        self.damaged: tuple[tuple[LogIndex, LogIndex], ...] = ()
        self._colocated: frozenset[str] | None = None
        self.violations = 0
        self._configuration_changed()
        self.behaviour: Behaviour = self._make_follower(self, now_ms)

    @property
    def configuration(self) -> Configuration:
        """The one in force: the newest in the log, committed or not."""
        return self.configurations[-1]

    def set_colocated(self, agents: frozenset[str]) -> None:
        """The agents known to share this one's failure domain, itself among them."""
        self._colocated = agents
        self._configuration_changed()

    @property
    def hard_state(self) -> HardState:
        """The term, vote and commit that the disk must have."""
        return HardState(self.term, self.vote, self.commit_index)

    def send(self, message: Message) -> None:
        """See Outbox.send."""
        self.outbox.send(message)

    def draw_election_timeout_ms(self) -> int:
        """Randomised in [t, 2t), so that split votes are rare (section 5.2). A replica with a damaged log
        waits until another could have led, twice (safety 10)."""
        timeout_ms = self.config.election_timeout_ms
        patience_ms = 2 * DAMAGED_PATIENCE * timeout_ms if self.damaged else 0
        if self.is_newborn:
            patience_ms += NEWBORN_PATIENCE * timeout_ms
        # As randrange, which takes three calls more: a timeout is drawn with each message of a leader.
        draw, bits = self.rng.getrandbits, timeout_ms.bit_length()
        drawn = draw(bits)
        while drawn >= timeout_ms:
            drawn = draw(bits)
        return patience_ms + timeout_ms + drawn

    def promisable(self, index: LogIndex) -> LogIndex:
        """How much of the log up to `index` counts towards a commit. Damaged entries count as held where logs
        are compared, and where they were committed before they were damaged; here they do not."""
        if not self.damaged:
            return index
        first = self.first_doubtful_index
        return index if first is None else LogIndex(min(index, first - 1))

    @property
    def first_doubtful_index(self) -> LogIndex | None:
        """The first damaged entry of which it is not known here that it is committed."""
        doubtful = [
            max(first, self.commit_index + 1) for first, last in self.damaged if last > self.commit_index
        ]
        return LogIndex(min(doubtful)) if doubtful else None

    # The log

    def append(self, last: LogIndex, term: Term) -> None:
        """Entries up to `last`, written in `term`, follow; the next ready tells the driver to write them."""
        self.log.append(last, term)

    def append_runs(
        self, runs: Sequence[Run], from_index: LogIndex, configurations: Sequence[Configuration]
    ) -> None:
        """Take over a leader's entries, from from_index on."""
        for run in runs:
            if run.last >= from_index:
                self.log.append(run.last, run.term)
        adopted = [item for item in configurations if item.index >= from_index]
        if adopted:
            self.configurations += adopted
            self._configuration_changed()

    def truncate(self, from_index: LogIndex) -> None:
        """Remove the entries that conflict with the leader's, and any configuration in them (thesis 4.1)."""
        assert from_index > self.commit_index  # a committed entry is never replaced (section 5.4)
        self.log.truncate(from_index)
        self.outbox.truncated(from_index)
        self.damaged = tuple(
            (first, LogIndex(min(last, from_index - 1))) for first, last in self.damaged if first < from_index
        )
        if self.configuration.index >= from_index:
            self.configurations = [item for item in self.configurations if item.index < from_index]
            assert self.configurations, "the configuration before an uncommitted one is always known"
            self._configuration_changed()

    def adopt(self, configuration: Configuration) -> None:
        """A leader's own change takes effect as it is appended (thesis 4.1)."""
        assert configuration.index == self.log.last_index
        self.configurations.append(configuration)
        self._configuration_changed()

    def _configuration_changed(self) -> None:
        self.is_voter = self.replica_id in self.configuration.voters
        # One that the log does not name yet was added by an entry still to come (safety 2).
        added_at = self.replica_id.index if self.replica_id.term > 0 else 0
        self.is_left_out = (
            self.configuration.find(self.replica_id) is None and self.configuration.index >= added_at
        )
        near = self._colocated
        self.is_colocated = near is None or all(
            item.learner or item.agent_id in near for item in self.configuration.replicas
        )

    def commit_to(self, index: LogIndex) -> None:
        """Raise the commit index, where it is lower."""
        if index <= self.commit_index:
            return
        assert index <= self.log.last_index
        self.commit_index = index
        self.is_newborn = False
        self.outbox.commit_index = index

    # Roles

    def become_follower(self, term: Term, leader: ReplicaId | None, now_ms: int) -> None:
        """Enter `term` (or stay in it) and follow its leader, once known."""
        self._enter_term(term)
        self._change(Role.FOLLOWER, leader)
        self.behaviour = self._make_follower(self, now_ms)

    def campaign(self, now_ms: int, *, transfer: bool = False) -> None:
        """Ask first, if pre-vote is on; a transfer need not, because the leader itself wants it."""
        assert self.is_voter
        if transfer or not self.config.pre_vote:
            self.become_candidate(now_ms, transfer=transfer)
            return
        self._change(Role.PRE_CANDIDATE, None)
        candidate = self._make_candidate(self, now_ms, False)
        self.behaviour = candidate
        candidate.begin(now_ms)

    def become_candidate(self, now_ms: int, *, transfer: bool) -> None:
        """Enter the next term and vote for oneself; the vote counts when it is on disk."""
        self._enter_term(Term(self.term + 1))
        self._set_vote(self.replica_id)
        self._change(Role.CANDIDATE, None)
        self.election_count += 1
        candidate = self._make_candidate(self, now_ms, transfer)
        self.behaviour = candidate
        candidate.begin(now_ms)

    def become_leader(self, now_ms: int) -> None:
        """Lead the term, and open it with an entry of its own (section 8; commit needs it: section 5.4.2)."""
        assert self.vote == self.replica_id
        assert self.outbox.synced.term == self.term
        self._change(Role.LEADER, self.replica_id)
        leader = self._make_leader(self, now_ms)
        self.behaviour = leader
        leader.begin(now_ms)

    def lead_from_birth(self, now_ms: int) -> None:
        """The same in the first term, for which every voter is born with this replica's vote."""
        assert self.hard_state == self.configuration.hard_state_at_birth()
        assert self.log.last_index == 0
        self._change(Role.LEADER, self.replica_id)
        leader = self._make_leader(self, now_ms)
        self.behaviour = leader
        leader.begin_newborn(now_ms)

    def grant_vote(self, candidate: ReplicaId) -> None:
        """One vote a term (section 5.2)."""
        assert self.vote in (None, candidate)
        if self.vote is None:
            self._set_vote(candidate)

    def follow(self, leader: ReplicaId) -> None:
        """The leader of this term is known now."""
        if self.leader != leader:
            self.leader = leader
            self.outbox.role_changed()

    def _change(self, role: Role, leader: ReplicaId | None) -> None:
        assert (self.role, role) in LEGAL, f"{self.role} -> {role}"
        if self.role is not role or self.leader != leader:
            self.outbox.role_changed()
        self.role = role
        self.leader = leader

    def _enter_term(self, term: Term) -> None:
        assert term >= self.term  # a term never falls (section 5.1)
        if term > self.term:
            self.term = term
            self.vote = None
            self.is_newborn = False
            self.outbox.hard_state_changed()

    def _set_vote(self, candidate: ReplicaId) -> None:
        self.vote = candidate
        self.outbox.hard_state_changed()

    def check_invariants(self) -> None:
        """Assert what the class states."""
        self.log.check_invariants()
        self.outbox.check_invariants(self.log)
        assert self.log.first_index - 1 <= self.commit_index <= self.log.last_index
        assert self.outbox.synced.term <= self.term
        assert self.log.last_term <= self.term
        indices = [item.index for item in self.configurations]
        assert indices == sorted(set(indices))
        assert indices[-1] <= self.log.last_index
        # At most the newest configuration is uncommitted (thesis 4.1); a follower may learn of commits late,
        # so this is asserted where it is decided, at the leader.
        assert self.is_voter == (self.replica_id in self.configuration.voters)
        assert self.role is not Role.LEADER or self.leader == self.replica_id
        assert self.role in (Role.FOLLOWER, Role.LEADER) or self.leader is None
