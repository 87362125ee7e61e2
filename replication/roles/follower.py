"""The follower: it answers and waits.

Law of this file: a follower that hears no leader starts an election. A learner asks for a leader instead. A
follower starts nothing else.
"""

from shoal.format.batch import LogIndex, Term
from shoal.replication.interfaces import NO_INDEX, NO_TERM
from shoal.replication.messages import AppendReply, AppendRequest, PreVote, TimeoutNow
from shoal.replication.roles.transitions import RaftState

ASK_DOUBLINGS_MAX = 4
"""A learner without an answer asks for a leader at most every 16 to 32 election timeouts. The question does
not help a group without a leader, and the first one that arrives wakes a quiet leader."""


class Follower:
    """heard_ms: when a leader of this term was last heard; None before that, and for a learner that asks for
    one. quiet: the leader stopped its heartbeats by agreement, and no timer runs (safety 25)."""

    def __init__(self, state: RaftState, now_ms: int) -> None:
        self._state = state
        self.heard_ms: int | None = None
        self.quiet = False
        self.election_deadline_ms = now_ms + state.draw_election_timeout_ms()
        self._question_count = 0  # since a leader was heard, or a newer term

    def deadline(self) -> int | None:
        """When to campaign, or to ask for a leader; never while quiet, nor once the group goes on without
        this replica."""
        return None if self.quiet or self._state.is_left_out else self.election_deadline_ms

    def wake(self, now_ms: int) -> None:
        """No leader was heard for an election timeout: campaign (section 5.2)."""
        deadline_ms = self.deadline()
        if deadline_ms is None or now_ms < deadline_ms:
            return
        if self._state.is_voter:
            self._state.campaign(now_ms)
        else:
            self._ask_for_leader(now_ms)

    def _ask_for_leader(self, now_ms: int) -> None:
        """A learner may be back after its group went quiet without it. It would hear of missed entries only
        with the next append (safety 25). Its pre-vote does not count, and wakes a quiet leader."""
        state = self._state
        self._question_count = 0 if self.heard_ms is not None else self._question_count + 1
        self.heard_ms = None
        wait_ms = state.draw_election_timeout_ms() << min(self._question_count, ASK_DOUBLINGS_MAX)
        self.election_deadline_ms = now_ms + wait_ms
        log, term = state.log, Term(state.term + 1)
        for voter in state.configuration.voters:
            state.send(PreVote(state.replica_id, voter, term, log.last_index, log.last_term))

    def hears_leader(self, now_ms: int) -> bool:
        """Whether there is no reason to help in replacing the leader (thesis 4.2.3, 6.2)."""
        if not self._state.config.check_quorum or self._state.leader is None or self.heard_ms is None:
            return False
        return self.quiet or now_ms < self.heard_ms + self._state.config.election_timeout_ms

    def doubt_leader(self, within_ms: int, now_ms: int) -> None:
        """Stop being quiet and campaign after a random part of within_ms, unless the leader speaks first."""
        due_ms = now_ms + self._state.rng.randrange(max(1, within_ms))
        self.election_deadline_ms = due_ms if self.quiet else min(due_ms, self.election_deadline_ms)
        self.quiet = False
        self.heard_ms = None

    def rouse(self, now_ms: int) -> None:
        """Be quiet no longer: the leader has an election timeout to be heard in, and is doubted after it."""
        self.quiet = False
        self.heard_ms = now_ms
        self.restart_timer(now_ms)

    def restart_timer(self, now_ms: int) -> None:
        """A leader, or a candidate that has this replica's vote, gets a full timeout."""
        self.election_deadline_ms = now_ms + self._state.draw_election_timeout_ms()

    def on_append_request(self, message: AppendRequest, now_ms: int) -> None:
        """AppendEntries, rules 2 to 5 (figure 2); rule 1 is settled in raft.py."""
        state = self._state
        if state.leader != message.sender:
            if state.leader is not None:
                state.violations += 1  # two leaders in one term
                return
            state.follow(message.sender)
        self.heard_ms = now_ms
        self.quiet = False
        self.election_deadline_ms = now_ms + state.draw_election_timeout_ms()
        if self._continues(message):
            self._take_next(message)
            return
        if not state.log.has(message.previous_index, message.previous_term):
            self._refuse(message)
            return
        if not self._take_entries(message):
            return
        state.commit_to(min(message.commit_index, message.last_index))
        holds_all = (
            state.commit_index == state.log.last_index == state.log.stable_index == message.commit_index
        )
        self.quiet = message.quiet and holds_all
        self._accept(message)

    def _continues(self, message: AppendRequest) -> bool:
        """Whether the request is what nearly all are: one run, right behind the end of this log."""
        state = self._state
        return (
            len(message.runs) == 1
            and message.previous_index == state.log.last_index
            and message.previous_term == state.log.last_term
            and not message.quiet
            and not message.configurations
            and not state.damaged
        )

    def _take_next(self, message: AppendRequest) -> None:
        """The rules for such a request, without looking for what cannot be: nothing conflicts, everything is
        new, and nothing of it is synced."""
        state = self._state
        run = message.runs[0]
        state.log.append(run.last, run.term)
        commit_index = min(message.commit_index, run.last)
        if commit_index > state.commit_index:
            state.commit_index = commit_index
            state.is_newborn = False
            state.outbox.commit_index = commit_index
        state.outbox.send_after_sync(self._reply(message, run.last))

    def _take_entries(self, message: AppendRequest) -> bool:
        """Rules 3 and 4: remove what conflicts, append what is new; false if the request cannot be true."""
        state = self._state
        difference = state.log.first_difference(message.runs)
        if difference is None:
            return True
        if difference <= state.commit_index:
            state.violations += 1  # a leader lacks a committed entry
            return False
        if difference <= state.log.last_index:
            state.truncate(difference)
        state.append_runs(message.runs, difference, message.configurations)
        return True

    def _accept(self, message: AppendRequest) -> None:
        """An acknowledgement of entries is a promise and waits for the disk. A heartbeat's does not: it
        claims only what is synced already, so that a slow disk does not look like a lost follower."""
        stable_index = self._state.log.stable_index
        promised = self._state.promisable(message.last_index)
        if promised > stable_index and message.runs:
            self._state.outbox.send_after_sync(self._reply(message, promised))
        else:
            self._state.send(self._reply(message, min(promised, stable_index)))

    def _reply(self, message: AppendRequest, match_index: LogIndex) -> AppendReply:
        state = self._state
        return AppendReply(
            state.replica_id,
            message.sender,
            state.term,
            True,
            message.previous_index,
            match_index,
            state.commit_index,
            NO_INDEX,
            NO_TERM,
            message.read_token,
            self.quiet,
        )

    def _refuse(self, message: AppendRequest) -> None:
        state = self._state
        hint_index, hint_term = state.log.conflict_hint(message.previous_index, message.previous_term)
        state.send(
            AppendReply(
                sender=state.replica_id,
                receiver=message.sender,
                term=state.term,
                accepted=False,
                previous_index=message.previous_index,
                match_index=LogIndex(0),
                commit_index=state.commit_index,
                reject_hint_index=hint_index,
                reject_hint_term=hint_term,
                read_token=message.read_token,
            )
        )

    def on_timeout_now(self, message: TimeoutNow, now_ms: int) -> None:
        """The leader hands over (thesis 3.10); not to a damaged log (safety 10)."""
        if self._state.damaged:
            return
        if self._state.is_voter and message.sender == self._state.leader:
            self._state.campaign(now_ms, transfer=True)

    def check_invariants(self) -> None:
        """A follower is quiet only under a leader, holding and knowing the whole commit."""
        state = self._state
        if self.quiet:
            assert state.leader is not None
            assert state.commit_index == state.log.last_index
