"""Elections: questions, counting, and answers.

Law of this file: whether a vote is given or won is decided here; what a role change does stands in
transitions.py.
"""

from shoal.format.batch import Term
from shoal.replication.interfaces import ReplicaId
from shoal.replication.messages import PreVote, PreVoteReply, Vote, VoteReply
from shoal.replication.roles.follower import Follower
from shoal.replication.roles.transitions import RaftState, Role
from shoal.replication.state.quorum import VoteResult, vote_result


class Candidate:
    """A candidate or a pre-candidate. votes holds answers, its own included once it may be counted; a
    pre-candidate's are of the moment, so that the last answer of each counts."""

    def __init__(self, state: RaftState, now_ms: int, transfer: bool) -> None:
        self._state = state
        self._transfer = transfer
        self.votes: dict[ReplicaId, bool] = {}
        self._is_split = False
        self.election_deadline_ms = now_ms + state.draw_election_timeout_ms()
        self._retry_after_ms = state.config.heartbeat_interval_ms
        self.retry_deadline_ms = now_ms + self._retry_after_ms

    def begin(self, now_ms: int) -> None:
        """Ask all voters. A pre-vote for oneself promises nothing and counts at once; a vote waits for the
        disk."""
        if self._state.role is Role.PRE_CANDIDATE:
            self.votes[self._state.replica_id] = True
        self._ask()
        self._count(now_ms)

    def deadline(self) -> int | None:
        """When to ask again, or to begin again."""
        return min(self.election_deadline_ms, self.retry_deadline_ms)

    def wake(self, now_ms: int) -> None:
        """Begin again when the election failed; before that, repeat the question to voters that have not
        answered."""
        if now_ms >= self.election_deadline_ms:
            self._state.campaign(now_ms)
        elif now_ms >= self.retry_deadline_ms:
            # Less and less often: with a thousand groups at once, questions must not crowd out the answers.
            self._retry_after_ms *= 2
            self.retry_deadline_ms = now_ms + self._retry_after_ms
            self._ask()

    def hears_leader(self, now_ms: int) -> bool:
        """A candidate hears none."""
        return False

    def _ask(self) -> None:
        state = self._state
        for voter in state.configuration.voters:
            if voter == state.replica_id or self.votes.get(voter):
                continue
            log = state.log
            if state.role is Role.PRE_CANDIDATE:
                # Also a voter that refused: it heard the leader then, and may miss it by now.
                self._ask_before(voter)
            elif voter not in self.votes:
                # Waits for the disk with its term: a candidate that forgot its term in a crash could ask
                # twice in it, with two different logs, and count a vote given to the longer one.
                state.send(
                    Vote(
                        state.replica_id,
                        voter,
                        state.term,
                        log.last_index,
                        log.last_term,
                        transfer=self._transfer,
                    )
                )

    def _ask_before(self, voter: ReplicaId) -> None:
        log, term = self._state.log, Term(self._state.term + 1)
        self._state.send(PreVote(self._state.replica_id, voter, term, log.last_index, log.last_term))

    def rival_refused(self, rival: ReplicaId) -> None:
        """The rival asked, so it hears no leader any more, and its log is the worse one: now it would
        consent."""
        if self._state.role is Role.PRE_CANDIDATE and not self.votes.get(rival):
            self._ask_before(rival)

    def on_pre_vote_reply(self, message: PreVoteReply, now_ms: int) -> None:
        """Count it, if it answers the question asked."""
        expected = self._state.term + 1 if message.granted else self._state.term
        if self._state.role is Role.PRE_CANDIDATE and message.term == expected:
            self._record(message.sender, message.granted, now_ms)

    def on_vote_reply(self, message: VoteReply, now_ms: int) -> None:
        """Count it; terms were compared in raft.py."""
        if self._state.role is Role.CANDIDATE:
            if not message.granted and not self._is_split:
                # The voter has given its vote to another. That one leads within a few round trips, or the
                # vote is split: then no candidate leads before one begins anew, which costs a pre-vote. Not
                # all at the same time.
                self._is_split = True
                anew_ms = now_ms + self._state.rng.randrange(self._state.config.election_timeout_ms // 2)
                self.election_deadline_ms = min(self.election_deadline_ms, anew_ms)
            self._record(message.sender, message.granted, now_ms)

    def own_vote_synced(self, now_ms: int) -> None:
        """The vote for oneself is on disk and counts like any other."""
        if self._state.role is Role.CANDIDATE and self._state.replica_id not in self.votes:
            self._record(self._state.replica_id, True, now_ms)

    def _record(self, voter: ReplicaId, granted: bool, now_ms: int) -> None:
        self.votes[voter] = granted or (self.votes.get(voter, False) and self._state.role is Role.CANDIDATE)
        self._count(now_ms)

    def _count(self, now_ms: int) -> None:
        state = self._state
        match vote_result(state.configuration.voters, self.votes):
            case VoteResult.WON if state.role is Role.PRE_CANDIDATE:
                state.become_candidate(now_ms, transfer=False)
            case VoteResult.WON if state.replica_id in self.votes:
                state.become_leader(now_ms)
            case VoteResult.LOST:
                state.become_follower(state.term, None, now_ms)
            case _:
                pass  # undecided; or won before the own vote is on disk

    def check_invariants(self) -> None:
        """A candidate has voted for itself."""
        assert self._state.role in (Role.PRE_CANDIDATE, Role.CANDIDATE)
        assert self._state.role is Role.PRE_CANDIDATE or self._state.vote == self._state.replica_id


def answer_pre_vote(state: RaftState, message: PreVote, *, hears_leader: bool) -> None:
    """Consent if a real vote would be given: the log is good enough, and no leader is heard (thesis 9.6).

    A voter with a longer log than the asker's, which hears no leader either, need not wait for its own timer:
    it would win this election. If it has begun one already, the asker's earlier refusal in that is out of
    date. A leader that spares followers (thrifty.py) leaves such a pair behind. A learner that asks for a
    leader makes no voter campaign: all voters would at once.
    """
    may_be_led = message.term > state.term and not hears_leader
    granted = may_be_led and state.log.is_up_to_date(message.last_index, message.last_term)
    term = message.term if granted else state.term
    state.send(PreVoteReply(state.replica_id, message.sender, term, granted))
    if not may_be_led or granted or message.sender not in state.configuration.voters:
        return
    match state.behaviour:
        case Follower() as follower if not state.damaged:
            follower.election_deadline_ms = state.now_ms
        case Candidate() as candidate:
            candidate.rival_refused(message.sender)
        case _:
            pass


def answer_vote(state: RaftState, message: Vote, now_ms: int) -> None:
    """RequestVote, rule 2 (figure 2), in the current term."""
    granted = (
        state.vote in (None, message.sender)
        and state.leader is None
        and state.log.is_up_to_date(message.last_index, message.last_term)
    )
    if not granted:
        state.send(VoteReply(state.replica_id, message.sender, state.term, False))
        return
    state.grant_vote(message.sender)
    state.outbox.send_after_sync(VoteReply(state.replica_id, message.sender, state.term, True))
    if isinstance(state.behaviour, Follower):
        state.behaviour.restart_timer(now_ms)
