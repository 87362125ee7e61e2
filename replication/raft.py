"""One partition's Raft state machine, seen from outside.

Law of this file: it checks receiver and term of a message, and hands the rest to the role. It never reads a
clock, and knows no disk, no socket and no payload.

The caller feeds messages, proposals and the time; it drains ready() and reports back with advance(). ready.py
says in which order a Ready must be carried out.
"""

import random
from collections.abc import Sequence
from typing import Final, assert_never

from shoal.format.batch import LogIndex, Term
from shoal.replication.config import RaftConfig
from shoal.replication.errors import NotLeader
from shoal.replication.interfaces import (
    Configuration,
    HardState,
    Proposal,
    Replica,
    ReplicaId,
    StoredReplica,
    birth_term,
)
from shoal.replication.messages import (
    AppendReply,
    AppendRequest,
    Message,
    PreVote,
    PreVoteReply,
    TimeoutNow,
    Vote,
    VoteReply,
)
from shoal.replication.roles.candidate import Candidate, answer_pre_vote, answer_vote
from shoal.replication.roles.follower import Follower
from shoal.replication.roles.leader import Leader
from shoal.replication.roles.progress import ProgressState
from shoal.replication.roles.transitions import NEWBORN_PATIENCE, RaftState, Role
from shoal.replication.state.ready import Ready


class RaftCore:
    """A replica of one group. The package's docstring has the duties of its driver."""

    def __init__(
        self,
        replica_id: ReplicaId,
        stored: StoredReplica,
        config: RaftConfig,
        rng: random.Random,
        now_ms: int,
        *,
        leads_from_birth: bool = False,
    ) -> None:
        """leads_from_birth: the group is being born, all of its voters with
        `Configuration.hard_state_at_birth`, and this is the first of them, which has never run before: after
        a restart it has to be elected."""
        config.validate()
        self.state: Final = RaftState(replica_id, stored, config, rng, now_ms, Follower, Candidate, Leader)
        assert self.state.log.last_term <= stored.hard_state.term, (
            "a log ahead of its term: this replica is lost (safety 3)"
        )
        if leads_from_birth:
            self.state.lead_from_birth(now_ms)
        else:
            self._campaign_early_if_alone_or_first(now_ms)

    def _campaign_early_if_alone_or_first(self, now_ms: int) -> None:
        """A sole voter has no rival, and a newborn group's first voter is the preferred leader."""
        state = self.state
        assert isinstance(state.behaviour, Follower)
        births = (HardState(birth_term(state.replica_id)), state.configuration.hard_state_at_birth())
        is_newborn = state.log.last_index == 0 and state.hard_state in births
        is_first = state.configuration.voters[0] == state.replica_id
        if state.configuration.voters == (state.replica_id,) or (is_newborn and is_first):
            state.behaviour.election_deadline_ms = now_ms
        elif is_newborn and not state.is_newborn:
            # As where it leads from birth: see RaftState.
            state.behaviour.election_deadline_ms += NEWBORN_PATIENCE * state.config.election_timeout_ms

    # Seen by the driver

    @property
    def replica_id(self) -> ReplicaId:
        """The identity of this replica."""
        return self.state.replica_id

    @property
    def role(self) -> Role:
        """The role of this replica now."""
        return self.state.role

    @property
    def term(self) -> Term:
        """The newest term it knows of."""
        return self.state.term

    @property
    def leader(self) -> ReplicaId | None:
        """The leader of this term, if known."""
        return self.state.leader

    @property
    def commit_index(self) -> LogIndex:
        """The last entry known to be committed."""
        return self.state.commit_index

    @property
    def hard_state(self) -> HardState:
        """Term, vote and commit as they are now."""
        return self.state.hard_state

    @property
    def match_indexes(self) -> dict[ReplicaId, LogIndex]:
        """Of a leader: up to where each other replica is known to hold its log, synced."""
        behaviour = self.state.behaviour
        if not isinstance(behaviour, Leader):
            return {}
        return {id_: item.match_index for id_, item in sorted(behaviour.progress.items())}

    @property
    def stable_index(self) -> LogIndex:
        """The last entry that is durable here as this log has it, and not as it was before a truncation."""
        return self.state.log.stable_index

    @property
    def first_index(self) -> LogIndex:
        """The first entry that retention has left."""
        return self.state.log.first_index

    @property
    def last_index(self) -> LogIndex:
        """The last entry, written or about to be."""
        return self.state.log.last_index

    @property
    def configuration(self) -> Configuration:
        """The one in force: the newest in the log, committed or not."""
        return self.state.configurations[-1]

    @property
    def configurations(self) -> Sequence[Configuration]:
        """All that the log has, ascending, from the one in force at its first entry on."""
        return self.state.configurations

    @property
    def is_quiet(self) -> bool:
        """Whether this replica keeps no timer (safety 25)."""
        behaviour = self.state.behaviour
        return not isinstance(behaviour, Candidate) and behaviour.quiet

    @property
    def left_behind(self) -> tuple[ReplicaId, ...]:
        """Of a quiet leader: the replicas that could not be reached when it went quiet. They hear nothing
        until it is woken."""
        behaviour = self.state.behaviour
        return behaviour.left_behind if isinstance(behaviour, Leader) else ()

    @property
    def is_transferring(self) -> bool:
        """Whether leadership is being handed over, and not given up yet."""
        behaviour = self.state.behaviour
        return isinstance(behaviour, Leader) and behaviour.transfer is not None

    @property
    def needs_segments(self) -> tuple[ReplicaId, ...]:
        """Followers led here whose next entry is trimmed (safety 27)."""
        behaviour = self.state.behaviour
        if not isinstance(behaviour, Leader):
            return ()
        return tuple(
            sorted(id_ for id_, item in behaviour.progress.items() if item.state is ProgressState.CATCH_UP)
        )

    @property
    def violation_count(self) -> int:
        """Messages dropped that no correct replica could have sent."""
        return self.state.violations

    def set_colocated(self, agents: frozenset[str]) -> None:
        """The agents that share this one's failure domain, itself among them: entries may be late for some
        voters only where all of them are on these (thrifty.py). Before it is called, everywhere."""
        self.state.set_colocated(agents)
        behaviour = self.state.behaviour
        if isinstance(behaviour, Leader):
            behaviour.spares.spare_nobody()

    def term_at(self, index: LogIndex) -> Term | None:
        """The term of an entry, or None if it is not in the log."""
        return self.state.log.term_at(index)

    def deadline(self) -> int | None:
        """Call wake() then, at the latest; None: only an event can change anything."""
        return self.state.behaviour.deadline()

    # Input

    def step(self, message: Message, now_ms: int) -> None:
        """A message arrived. One that is not for this replica, or says nothing new, changes nothing."""
        state = self.state
        state.now_ms = now_ms
        if message.receiver != state.replica_id or message.sender == state.replica_id:
            return  # meant for an earlier replica on this agent (safety 2)
        if message.term > state.term and not self._enter_newer_term(message, now_ms):
            return
        if message.term < state.term:
            self._answer_older_term(message)
            return
        behaviour = state.behaviour
        match message:
            case AppendRequest():
                if type(behaviour) is Follower:
                    behaviour.on_append_request(message, now_ms)
                else:
                    self._on_append_request(message, now_ms)
            case AppendReply():
                if type(behaviour) is Leader:
                    behaviour.on_append_reply(message, now_ms)
            case PreVote():
                if type(behaviour) is Leader:
                    behaviour.asked_by(message)
                answer_pre_vote(state, message, hears_leader=self._refuses_candidates(message, now_ms))
            case Vote():
                answer_vote(state, message, now_ms)
            case PreVoteReply():
                if isinstance(state.behaviour, Candidate):
                    state.behaviour.on_pre_vote_reply(message, now_ms)
            case VoteReply():
                if isinstance(state.behaviour, Candidate):
                    state.behaviour.on_vote_reply(message, now_ms)
            case TimeoutNow():
                if isinstance(state.behaviour, Follower):
                    state.behaviour.on_timeout_now(message, now_ms)
            case _:
                assert_never(message)

    def _enter_newer_term(self, message: Message, now_ms: int) -> bool:
        """All servers, rule 2 (figure 2), with two exceptions: pre-votes never move a term, and a vote is not
        even heard while there is a leader (thesis 4.2.3). False: nothing more to do."""
        match message:
            case PreVote():
                return True
            case PreVoteReply() if message.granted:
                return True
            case Vote() if not message.transfer and self._refuses_candidates(message, now_ms):
                return False
            case AppendRequest():
                self.state.become_follower(message.term, message.sender, now_ms)
            case _:
                self.state.become_follower(message.term, None, now_ms)
        return True

    def _refuses_candidates(self, message: PreVote | Vote, now_ms: int) -> bool:
        """Whether a leader other than the asker is heard."""
        state = self.state
        self._end_quiet(now_ms)
        return message.sender != state.leader and state.behaviour.hears_leader(now_ms)

    def _end_quiet(self, now_ms: int) -> None:
        """A vote was asked for: a replica misses the leader. A leader says at once that it is there."""
        behaviour = self.state.behaviour
        if not isinstance(behaviour, Candidate) and behaviour.quiet:
            behaviour.rouse(now_ms)

    def _answer_older_term(self, message: Message) -> None:
        """AppendEntries and RequestVote, rule 1 (figure 2): a deposed leader, or a late candidate, learns the
        term."""
        state = self.state
        match message:
            case AppendRequest():
                state.send(
                    AppendReply(
                        state.replica_id,
                        message.sender,
                        state.term,
                        False,
                        message.previous_index,
                        LogIndex(0),
                    )
                )
            case PreVote():
                self._end_quiet(state.now_ms)
                state.send(PreVoteReply(state.replica_id, message.sender, state.term, False))
            case Vote():
                state.send(VoteReply(state.replica_id, message.sender, state.term, False))
            case _:
                pass  # answers to questions of an older term say nothing

    def _on_append_request(self, message: AppendRequest, now_ms: int) -> None:
        state = self.state
        match state.behaviour:
            case Leader():
                state.violations += 1  # two leaders in one term
                return
            case Candidate():
                state.become_follower(state.term, message.sender, now_ms)
        assert isinstance(state.behaviour, Follower)
        state.behaviour.on_append_request(message, now_ms)

    def wake(self, now_ms: int) -> None:
        """Time has passed. Step everything that arrived before calling this (safety 26)."""
        self.state.now_ms = now_ms
        self.state.behaviour.wake(now_ms)

    # Requests of the driver

    def propose(self, count: int, now_ms: int) -> Proposal:
        """Append `count` entries. The driver stamps frames with consecutive indices from the answer's, right
        away.

        Raises NotLeader; Overloaded when max_uncommitted_entries wait; TransferInProgress. Nothing happened
        then. Success is not a commit: the entry may still be lost to another leader's.
        """
        self.state.now_ms = now_ms
        return self._leader().propose(count, now_ms)

    def propose_configuration(self, replicas: Sequence[Replica], now_ms: int) -> Proposal:
        """Append a change of the configuration; `configuration` is then the new one, in force at once. The
        driver stamps its bytes as a CONFIGURATION frame.

        One voter may be added or removed at a time, or learners; a new replica has the id UNBORN and begins
        as a learner. Raises NotLeader, ChangePending, InvalidChange, Overloaded, TransferInProgress.
        """
        self.state.now_ms = now_ms
        return self._leader().propose_configuration(tuple(replicas), now_ms)

    def transfer_leadership(self, to: ReplicaId | None, now_ms: int) -> None:
        """Hand over to voter `to`, or to the most up-to-date one. Proposals are refused meanwhile; given up
        after an election timeout. Raises NotLeader, InvalidChange."""
        self.state.now_ms = now_ms
        self._leader().transfer_leadership(to, now_ms)

    def read_index(self, token: int, now_ms: int) -> None:
        """Ask for the index that a linearizable read must have applied; answered in Ready.read_states.

        Raises NotLeader, Overloaded. A leader deposed meanwhile does not answer: see Ready.role_changed.
        """
        self.state.now_ms = now_ms
        self._leader().read_index(token, now_ms)

    def sole_read_index(self) -> LogIndex | None:
        """As read_index, in this very call, where no other voter has to be asked; else None."""
        state, leader, configuration = self.state, self.state.behaviour, self.state.configuration
        if not isinstance(leader, Leader) or configuration.voters != (state.replica_id,):
            return None
        return (
            state.commit_index if state.commit_index >= max(leader.term_start, configuration.index) else None
        )

    def last_words(self, now_ms: int) -> tuple[Message, ...]:
        """The last messages of a replica that stops for good while its agent lives (safety 25).

        None of them waits for the disk, which may have failed. The core must not be stepped any more.
        """
        self.state.now_ms = now_ms
        behaviour = self.state.behaviour
        return behaviour.last_words(now_ms) if isinstance(behaviour, Leader) else ()

    def peer_silent(self, agent_id: str, now_ms: int) -> bool:
        """The agent's liveness frames stopped, its boot nonce is another, or it says that its replica of this
        group has stopped (safety 25).

        Call it in every heartbeat interval for which that is so: a quiet request still on its way could
        otherwise put a follower of a dead leader to sleep. Saying it again does not restart any timer.
        True: this was news.
        """
        state = self.state
        state.now_ms = now_ms
        is_news = False
        for replica in state.configuration.replicas:
            if replica.agent_id != agent_id:
                continue
            match state.behaviour:
                case Leader() as leader:
                    is_news |= leader.agent_silent(replica.id, now_ms)
                case Follower() if state.is_newborn:
                    pass  # nothing is committed yet: see RaftState.is_newborn
                case Follower() as follower if state.leader == replica.id and follower.heard_ms is not None:
                    # Nothing at all came for an election timeout: half another spreads the candidates.
                    follower.doubt_leader(state.config.election_timeout_ms // 2, now_ms)
                    is_news = True
        return is_news

    def wake_quiet(self, now_ms: int) -> None:
        """End the quiet: a leader heartbeats again, a follower arms its election timer."""
        state = self.state
        state.now_ms = now_ms
        match state.behaviour:
            case Leader() as leader if leader.quiet or leader.quieting:
                leader.rouse(now_ms)
            case Follower() as follower if follower.quiet:
                follower.quiet = False
                follower.restart_timer(now_ms)

    def shortened(self, receiver: ReplicaId, last_index: LogIndex) -> None:
        """The driver sent only the entries up to last_index of the newest request to receiver; the rest
        follows."""
        if isinstance(self.state.behaviour, Leader) and (
            progress := self.state.behaviour.progress.get(receiver)
        ):
            progress.shortened(last_index, self.state.config.max_entries_per_append)

    def caught_up(self, receiver: ReplicaId, last_index: LogIndex, now_ms: int) -> None:
        """receiver has got whole segments up to last_index beside Raft (safety 27): try what follows.

        Shipping stands for an AppendEntries of this term from the head of the log on: the receiver stores
        this very term before its new log counts (safety 3). Its own log is replaced only if it is shorter, or
        if this leader's log is shipped to its end: a longer tail may hold what is committed (section 5.3).
        """
        behaviour = self.state.behaviour
        progress = behaviour.progress.get(receiver) if isinstance(behaviour, Leader) else None
        if progress is not None and progress.state is ProgressState.CATCH_UP:
            progress.probe(LogIndex(min(last_index, self.state.log.last_index) + 1), now_ms)

    def damaged(self, stretches: Sequence[tuple[LogIndex, LogIndex]], now_ms: int) -> None:
        """Entries whose bytes do not verify, as far as is known: firsts and lasts; none: everything does
        again.

        The replica then leads only if no other can, takes no leadership handed over, and neither acknowledges
        nor commits entries that it does not hold (safety 10). It votes as ever, by identity.
        """
        state = self.state
        state.now_ms = now_ms
        if state.damaged == tuple(stretches):
            return
        state.damaged = tuple(stretches)
        match state.behaviour:
            case Follower() as follower:
                follower.restart_timer(now_ms)
            case Leader() as leader:
                leader.advance_commit(now_ms)
            case Candidate():
                pass  # it was there before the damage was known; the election may still be lost

    def forswear(self, term: Term, now_ms: int) -> None:
        """Take nothing of that term any more from its leader: enter the next one. Nothing to do where a newer
        one is known, or a leader is heard.

        So a peer can learn that an entry is lacked for ever (safety 10) where no leader can be elected before
        the peer knows. It costs as much as a candidate's question in that term (figure 2, all servers, rule
        2).
        """
        state = self.state
        state.now_ms = now_ms
        if state.term <= term and state.role is not Role.LEADER and not state.behaviour.hears_leader(now_ms):
            state.become_follower(Term(term + 1), None, now_ms)

    def trimmed(self, first_index: LogIndex) -> None:
        """Retention has dropped the committed entries before first_index."""
        state = self.state
        assert first_index <= state.commit_index + 1
        state.log.trim(first_index)
        in_force = max((item.index for item in state.configurations if item.index <= first_index), default=0)
        state.configurations = [item for item in state.configurations if item.index >= in_force]

    # Output

    def ready(self) -> Ready | None:
        """The work to do next, or None. Everything proposed since the last call goes out together."""
        state = self.state
        behaviour, outbox = state.behaviour, state.outbox
        if type(behaviour) is Leader:
            behaviour.flush(state.now_ms)
        hard_state = state.hard_state if outbox.wants_hard_state else None
        return outbox.take(hard_state, state.log, state.now_ms)

    def advance(self, ready: Ready) -> None:
        """The oldest outstanding ready, this one, is on disk: own votes and own copies count from now on."""
        state = self.state
        stable_before = state.log.stable_index
        state.outbox.advance(ready, state.log)
        behaviour = state.behaviour
        if type(behaviour) is Leader:
            if state.log.stable_index > stable_before:
                behaviour.advance_commit(state.now_ms)
        elif isinstance(behaviour, Candidate) and state.outbox.synced.term == state.term:
            behaviour.own_vote_synced(state.now_ms)

    def _leader(self) -> Leader:
        if not isinstance(self.state.behaviour, Leader):
            raise NotLeader(self.state.leader)
        return self.state.behaviour

    def check_invariants(self) -> None:
        """Assert every stated invariant; called by each test step and each simulated event."""
        self.state.check_invariants()
        self.state.behaviour.check_invariants()
        role_class = {Role.FOLLOWER: Follower, Role.LEADER: Leader}.get(self.state.role, Candidate)
        assert isinstance(self.state.behaviour, role_class)

    def __repr__(self) -> str:
        state = self.state
        quiet = " quiet" if self.is_quiet else ""
        return (
            f"{state.replica_id} {state.role.value} term={state.term} vote={state.vote} leader={state.leader}"
            f" log={state.log} stable={state.log.stable_index} commit={state.commit_index}"
            f" configuration={state.configuration}{quiet}"
        )
