"""The leader: it appends, sends, counts, commits, and steps down in time.

Law of this file: everything here exists only while leading; losing the role drops it whole. Hand-over is in
transfer.py, confirmed reads in read_index.py; both are fields of this role.
"""

from shoal.format.batch import LogIndex, Term
from shoal.replication.errors import ChangePending, InvalidChange, Overloaded, TransferInProgress
from shoal.replication.interfaces import UNBORN, Configuration, Proposal, Replica, ReplicaId
from shoal.replication.messages import AppendReply, Message, PreVote, TimeoutNow
from shoal.replication.roles.append_requests import entries_request, heartbeat_request
from shoal.replication.roles.progress import Progress
from shoal.replication.roles.read_index import ReadQueue
from shoal.replication.roles.thrifty import Spares
from shoal.replication.roles.transfer import Transfer
from shoal.replication.roles.transitions import NEWBORN_PATIENCE, RaftState
from shoal.replication.state.commit_evidence import was_never_committed
from shoal.replication.state.configuration_change import check_change, check_followed
from shoal.replication.state.quorum import has_majority, majority_value


class Leader:
    """term_start: the entry that opened this term; nothing commits by counting before it (section 5.4.2).

    quiet: no heartbeats, by agreement with every replica that can be reached (safety 25). quieting: asking
    for it.

    is_newborn: the group was born with this leader, nothing was asked of it yet, and it was not quiet. The
    other replicas may not exist yet. No other can lead before they do, so the leader waits for them, and
    sends little meanwhile.
    """

    def __init__(self, state: RaftState, now_ms: int) -> None:
        self._state = state
        self.progress: dict[ReplicaId, Progress] = {}
        self.term_start = LogIndex(state.log.last_index + 1)
        self.transfer: Transfer | None = None
        self.reads = ReadQueue(state.config.max_pending_reads)
        self.spares = Spares(state.config)
        self.quiet = False
        self.quieting = False
        self.left_behind: tuple[ReplicaId, ...] = ()  # could not be reached when it went quiet
        self.active_ms = now_ms
        self.heartbeat_deadline_ms = now_ms
        self.quorum_deadline_ms = now_ms + state.config.election_timeout_ms
        self._heartbeat_due = False
        self._notice_due = False
        self._notice_deadline_ms: int | None = None
        self._send_to_all = False  # also to spared followers
        self.is_newborn = False
        self._stuck_since_ms: int | None = None
        self._removed: dict[ReplicaId, tuple[Term, LogIndex]] = {}
        """Voters that a change which may not commit leaves out, and where their logs end, as they said."""

    def begin(self, now_ms: int) -> None:
        """Open the term with an entry of its own, and tell all followers at once."""
        self._follow_configuration(now_ms)
        self._state.append(self.term_start, self._state.term)
        self._state.outbox.noop(self.term_start)
        self._send_heartbeats_soon(now_ms)

    def begin_newborn(self, now_ms: int) -> None:
        """As begin, where the group is being born with this leader, and a thousand others may be. The entry
        says all that a heartbeat would. Nothing else has happened: as soon as all followers hold it, the
        group may be quiet."""
        config = self._state.config
        self.is_newborn = True
        self.begin(now_ms)
        self._heartbeat_due = False
        self.active_ms = now_ms - (config.quiet_after_ms or 0)
        for progress in self.progress.values():  # a late follower must not be left behind
            progress.heard_ms = now_ms + NEWBORN_PATIENCE * config.election_timeout_ms

    # Time

    def deadline(self) -> int | None:
        """The nearest thing to do; none while quiet."""
        if self.quiet:
            return None
        deadline_ms = self.heartbeat_deadline_ms
        if self._state.config.check_quorum:
            deadline_ms = min(deadline_ms, self.quorum_deadline_ms)
        if self._notice_deadline_ms is not None:
            deadline_ms = min(deadline_ms, self._notice_deadline_ms)
        if self.spares.deadline_ms is not None:
            deadline_ms = min(deadline_ms, self.spares.deadline_ms)
        return deadline_ms if self.transfer is None else min(deadline_ms, self.transfer.deadline_ms)

    def wake(self, now_ms: int) -> None:
        """Step down if no majority listens; else do the work that is due."""
        if self.quiet:
            return
        if self._state.config.check_quorum and now_ms >= self.quorum_deadline_ms:
            if not self.is_newborn and not self._hears_majority(now_ms):
                self._state.become_follower(self._state.term, None, now_ms)
                return
            self.quorum_deadline_ms = now_ms + self._state.config.election_timeout_ms
        if self.transfer is not None and now_ms >= self.transfer.deadline_ms:
            self.transfer = None  # the other one did not take over in time: lead on (thesis 3.10)
        if self._notice_deadline_ms is not None and now_ms >= self._notice_deadline_ms:
            self._notice_deadline_ms = None
            self._notice_due = True
        if self.spares.deadline_ms is not None and now_ms >= self.spares.deadline_ms:
            self.spares.time_is_up(self._state.commit_index, now_ms)
            self._send_to_all = True
        if now_ms >= self.heartbeat_deadline_ms:
            self._tick(now_ms)

    def _tick(self, now_ms: int) -> None:
        self._send_heartbeats_soon(now_ms)
        for progress in self.progress.values():
            progress.retry_if_stuck(self._state.config, now_ms)
        if self._is_stuck(now_ms):
            self._state.become_follower(self._state.term, None, now_ms)
            return
        self._hand_over_if_stalled(now_ms)
        self._consider_quiet(now_ms)

    def _send_heartbeats_soon(self, now_ms: int) -> None:
        self._heartbeat_due = True
        config = self._state.config
        interval_ms = config.retry_after_ms if self.is_newborn else config.heartbeat_interval_ms
        self.heartbeat_deadline_ms = now_ms + interval_ms

    def hears_leader(self, now_ms: int) -> bool:
        """A leader that checks its quorum is heard by a majority, or soon no leader."""
        return self._state.config.check_quorum

    def _hears_majority(self, now_ms: int) -> bool:
        """Check-quorum (thesis 6.2): a leader cut off must not be waited for."""
        state = self._state
        return has_majority(state.configuration.voters, {*self._reachable(now_ms), state.replica_id})

    def _reachable(self, now_ms: int) -> set[ReplicaId]:
        """The others that were heard within an election timeout."""
        since_ms = now_ms - self._state.config.election_timeout_ms
        return {id_ for id_, item in self.progress.items() if item.heard_ms >= since_ms and not item.silent}

    def _hand_over_if_stalled(self, now_ms: int) -> None:
        """A disk that does not answer must not hold the group (safety 26)."""
        limit_ms = self._state.config.sync_stall_ms
        if limit_ms is None or self.is_newborn or self.transfer is not None:
            return
        if self._state.outbox.sync_age_ms(now_ms) < limit_ms:
            return
        if (target := self._best_voter(now_ms)) is not None:
            self.start_transfer(target, now_ms)

    def _is_stuck(self, now_ms: int) -> bool:
        """Whether for an election timeout so many wait for an entry that is damaged here that it is hardly
        committed (safety 10). It cannot be sent, and a leader never cuts its own log (figure 3): one of them
        may lead, and replaces it; or a newer term lets them say that they lack it. Where a majority has it,
        stepping down would not help, and a copy from a peer does."""
        first = self._state.first_doubtful_index
        if first is None or not self._is_hardly_committed(first, now_ms):
            self._stuck_since_ms = None
        elif self._stuck_since_ms is None:
            self._stuck_since_ms = now_ms
        since_ms = self._stuck_since_ms
        return since_ms is not None and now_ms - since_ms >= self._state.config.election_timeout_ms

    def _is_hardly_committed(self, index: LogIndex, now_ms: int) -> bool:
        state = self._state
        reachable = self._reachable(now_ms)
        lacking = [replica for replica in reachable if self.progress[replica].match_index < index]
        # A log that ends before the entry, in its term or an older one, has it not (Log Matching, figure 3).
        end = (state.log.term_at(index), index)
        return was_never_committed(
            index,
            holder=state.replica_id,
            configurations=state.configurations,
            term_at=state.log.term_at,
            lacking=[*lacking, *(removed for removed, its_end in self._removed.items() if its_end < end)],
        )

    def asked_by(self, message: PreVote) -> None:
        """A voter that this leader's change leaves out hears nothing more of it, and campaigns: its question
        says where its log ends. While the change cannot commit, only that question tells whether the voter
        lacks an entry that is damaged here. Nothing is added to its log in this term."""
        if message.sender in self.progress:
            return
        if any(message.sender in item.voters for item in self._state.configurations):
            self._removed[message.sender] = (message.last_term, message.last_index)

    # Proposals

    def propose(self, count: int, now_ms: int) -> Proposal:
        """Append `count` entries; see RaftCore.propose."""
        assert count >= 1
        state = self._state
        if self.transfer is not None:
            raise TransferInProgress("leadership is being handed over")
        uncommitted = state.log.last_index - state.commit_index
        # A single oversized proposal passes when nothing waits, or it could never be made at all.
        if uncommitted and uncommitted + count > state.config.max_uncommitted_entries:
            raise Overloaded(f"{uncommitted} entries wait for a majority")
        log, term = state.log, state.term
        proposal = Proposal(term, LogIndex(log.last_index + 1), log.last_term)
        log.append(LogIndex(log.last_index + count), term)
        self.be_active(now_ms)
        return proposal

    def propose_configuration(self, replicas: tuple[Replica, ...], now_ms: int) -> Proposal:
        """One voter more or less, or one new learner; see RaftCore.propose_configuration."""
        state = self._state
        if state.commit_index < self.term_start or state.configuration.index > state.commit_index:
            # Erratum of thesis 4.1: changes of two terms, neither committed, may have disjoint majorities.
            raise ChangePending("the last configuration, or this term's first entry, is not committed yet")
        index = LogIndex(state.log.last_index + 1)
        new_id = ReplicaId(state.term, index)
        named = tuple(
            Replica(new_id, item.agent_id, item.learner) if item.id == UNBORN else item for item in replicas
        )
        configuration = Configuration(index, named)
        close = LogIndex(state.commit_index - state.config.max_entries_per_append)  # a request away (4.2.1)
        check_change(
            state.configuration, configuration, new_id, lambda one: self.progress[one].match_index >= close
        )
        heard = self.progress.keys() - set(self.left_behind) if self.quiet else self._reachable(now_ms)
        following = {one for one in heard if self.progress[one].match_index >= self.term_start}
        check_followed(state.configuration, configuration, {state.replica_id, *following})
        proposal = self.propose(1, now_ms)
        state.adopt(configuration)
        self._follow_configuration(now_ms)
        return proposal

    def _follow_configuration(self, now_ms: int) -> None:
        """Keep one progress per other replica; a new one is tried from the end of the log."""
        state = self._state
        others = {item.id for item in state.configuration.replicas} - {state.replica_id}
        self.spares.spare_nobody()  # a majority may be another one now
        for gone in self.progress.keys() - others:
            del self.progress[gone]
        for added in sorted(others - self.progress.keys()):
            next_index = LogIndex(max(1, self.term_start, state.log.last_index))
            self.progress[added] = Progress(next_index, state.config.max_entries_per_append, now_ms)

    def _grow_up(self, now_ms: int) -> None:
        """The group has something to tell besides its birth."""
        config = self._state.config
        self.is_newborn = False
        self.heartbeat_deadline_ms = min(self.heartbeat_deadline_ms, now_ms + config.heartbeat_interval_ms)
        self.quorum_deadline_ms = now_ms + config.election_timeout_ms

    def be_active(self, now_ms: int) -> None:
        """Something happens: the group must not go quiet now."""
        self.active_ms = now_ms
        if self.is_newborn:
            self._grow_up(now_ms)
        if self.quiet or self.quieting:
            self.rouse(now_ms)

    # Sending

    def flush(self, now_ms: int) -> None:
        """Turn what is due into messages; called once for each ready()."""
        if self.reads.waiting:
            self._heartbeat_due |= self.reads.begin_round()
            self._confirm_reads()  # perhaps without an answer: those who owe one may be voters no more
        heartbeat, self._heartbeat_due = self._heartbeat_due, False
        notice, self._notice_due = self._notice_due, False
        state, last_index = self._state, self._state.log.last_index
        # A quiet leader has no timer for spared followers.
        to_all, self._send_to_all = self._send_to_all or self.quiet or self.transfer is not None, False
        prompt = self.progress if to_all or self.spares.prompt is None else self.spares.prompt
        for receiver, progress in self.progress.items():
            if progress.next_index <= last_index and (
                receiver in prompt or not self.spares.may_wait(receiver, progress, last_index, now_ms)
            ):
                self._send_entries(receiver, progress, now_ms)
            # The heartbeat goes beside the entries, which may be waiting in a slower queue (safety 24).
            if heartbeat or (notice and self._could_know_more(progress)):
                request = heartbeat_request(state, receiver, progress, self.reads.round, quiet=self.quieting)
                state.send(request)
                progress.told_index = min(request.commit_index, request.last_index)
        # Entries under way tell the commit, too: no notice is due between those of a stream.
        under_way = state.commit_index < last_index
        if heartbeat or (under_way and not any(map(self._could_know_more, self.progress.values()))):
            self._notice_deadline_ms = None

    def _send_entries(self, receiver: ReplicaId, progress: Progress, now_ms: int) -> None:
        if not progress.may_send(self._state.config):
            return
        request = entries_request(self._state, receiver, progress, self.reads.round)
        if request is None:
            progress.need_segments()
            return
        last_index = request.runs[-1].last
        self._state.outbox.send(request)
        progress.sent(last_index, now_ms)
        progress.told_index = min(last_index, request.commit_index)

    # Answers

    def on_append_reply(self, message: AppendReply, now_ms: int) -> None:
        """Count an acknowledgement, or go back to where the logs still agree."""
        state = self._state
        progress = self.progress.get(message.sender)
        if progress is None:
            return
        if message.match_index > state.log.last_index:
            state.violations += 1
            return
        progress.heard_ms = now_ms
        progress.silent = False
        progress.quiet = message.quiet and self.quieting
        if message.commit_index > progress.commit_index:
            progress.commit_index = message.commit_index
        if message.read_token > progress.read_token:
            progress.read_token = message.read_token
        if not message.accepted:
            hint_index, _ = state.log.conflict_hint(message.reject_hint_index, message.reject_hint_term)
            progress.refused(message, LogIndex(hint_index + 1), now_ms)
        elif progress.accepted(message, state.config, now_ms):
            if message.match_index > state.commit_index:
                self.advance_commit(now_ms)
            if self._notice_deadline_ms is None and self._could_know_more(progress):
                self._notice_commit_soon(now_ms)
        if state.behaviour is not self:
            return  # the commit removed this leader
        if self.reads.waiting:
            self._confirm_reads()
        if self.transfer is not None:
            self._continue_transfer(now_ms)
        if self.quieting:
            self._become_quiet_if_agreed(now_ms)

    def advance_commit(self, now_ms: int) -> None:
        """Commit what a majority has on disk, the leader's own synced copy counting like any other, and only
        through an entry of this term (figure 8, section 5.4.2). Nothing is counted under a configuration that
        its own disk lacks: a leader that counts without its own copy must remember both
        (commit_evidence.py)."""
        state = self._state
        if state.commit_index == state.log.last_index:
            return  # nothing is left to commit
        if state.configurations[-1].index > state.log.stable_index:
            return
        own, progress, stable = state.replica_id, self.progress, state.log.stable_index
        synced = state.promisable(stable) if state.damaged else stable
        voters = state.configurations[-1].voters
        index = majority_value([synced if voter == own else progress[voter].match_index for voter in voters])
        if index <= state.commit_index or index < self.term_start:
            return
        state.commit_to(LogIndex(index))
        assert state.log.term_at(index) == state.term
        if self.reads.early:
            self.reads.term_committed(state.commit_index)
        if self.spares.prompt is None and state.is_colocated:
            self.spares.committed(state.commit_index, voters, self.progress, now_ms)
        self._notice_commit_soon(now_ms)
        if not state.is_voter:
            self._leave_when_removed(now_ms)

    def _notice_commit_soon(self, now_ms: int) -> None:
        """Tell followers that do not know the commit yet, if no entry or heartbeat does so before."""
        if not self.progress:
            return  # alone: a timer after every commit would wake the driver for nothing
        if self._state.config.commit_notice_ms == 0:
            self._notice_due = True
        elif self._notice_deadline_ms is None and not self.is_newborn:
            self._notice_deadline_ms = now_ms + self._state.config.commit_notice_ms

    def _could_know_more(self, progress: Progress) -> bool:
        """Whether it holds committed entries of which it has not been told; a lost notice waits for a
        heartbeat."""
        knows = max(progress.commit_index, progress.told_index)
        return min(self._state.commit_index, progress.match_index) > knows

    def _leave_when_removed(self, now_ms: int) -> None:
        """A leader that is no voter any more leads until that is committed (thesis 4.2.2), then lets the best
        one campaign at once."""
        if self._state.configuration.index > self._state.commit_index:
            return
        if (target := self._best_voter(now_ms)) is not None:
            Transfer(target, now_ms).send(self._state)
        self.flush(now_ms)  # the others learn of the commit
        self._state.become_follower(self._state.term, None, now_ms)

    # Reads

    def read_index(self, token: int, now_ms: int) -> None:
        """See RaftCore.read_index."""
        committed_in_term = self._state.commit_index >= self.term_start
        self.reads.ask(token, self._state.commit_index if committed_in_term else None)
        self.be_active(now_ms)

    def _confirm_reads(self) -> None:
        """Release the reads whose round a majority has answered (thesis 6.4)."""
        own = self._state.replica_id
        rounds = [
            self.reads.round if voter == own else self.progress[voter].read_token
            for voter in self._state.configuration.voters
        ]
        for token, index in self.reads.confirm(majority_value(rounds)):
            self._state.outbox.read(token, index)

    # Hand-over

    def transfer_leadership(self, to: ReplicaId | None, now_ms: int) -> None:
        """See RaftCore.transfer_leadership."""
        if self.transfer is not None and to in (None, self.transfer.target):
            return
        if self.quiet:
            self.rouse(now_ms)  # no follower was asked to answer, so none counts as unreachable
        target = to if to is not None else self._best_voter(now_ms)
        if target is None:
            raise InvalidChange("no other voter can be reached")
        if target == self._state.replica_id or target not in self._state.configuration.voters:
            raise InvalidChange(f"{target} is no other voter")
        self.start_transfer(target, now_ms)

    def start_transfer(self, target: ReplicaId, now_ms: int) -> None:
        """Refuse proposals until the target leads, or for an election timeout."""
        self.transfer = Transfer(target, now_ms + self._state.config.election_timeout_ms)
        self.be_active(now_ms)
        self._continue_transfer(now_ms)

    def _continue_transfer(self, now_ms: int) -> None:
        if self.transfer is None:
            return
        progress = self.progress.get(self.transfer.target)
        if progress is None:
            self.transfer = None  # it was removed meanwhile
        elif progress.match_index == self._state.log.last_index:
            self.transfer.send(self._state)

    def _best_voter(self, now_ms: int) -> ReplicaId | None:
        """The reachable voter with the longest log; the smallest id of equals, so that the choice can be
        repeated."""
        others = self._reachable(now_ms).intersection(self._state.configuration.voters)
        return min(others, key=lambda voter: (-self.progress[voter].match_index, voter), default=None)

    def last_words(self, now_ms: int) -> tuple[Message, ...]:
        """See RaftCore.last_words: no follower stays quiet, and the best voter need not wait for its
        timer."""
        self.rouse(now_ms)
        state, target = self._state, self._best_voter(now_ms)
        words: list[Message] = [
            heartbeat_request(state, receiver, progress, self.reads.round, quiet=False)
            for receiver, progress in self.progress.items()
        ]
        if target is not None:
            words.append(TimeoutNow(state.replica_id, target, state.term))
        return tuple(words)

    # Quiet groups (safety 25)

    def _consider_quiet(self, now_ms: int) -> None:
        quiet_after_ms = self._state.config.quiet_after_ms
        if (
            quiet_after_ms is None
            or now_ms - self.active_ms < quiet_after_ms
            or not self._all_hold_all(now_ms)
        ):
            self.quieting = False
            return
        self.quieting = True
        self._become_quiet_if_agreed(now_ms)

    def _all_hold_all(self, now_ms: int) -> bool:
        """Every replica that can be reached holds the whole log, which is committed, and they are a majority.
        The heartbeat that asks for quiet tells the commit to those that do not know it yet."""
        state = self._state
        last = state.log.last_index
        if not state.commit_index == last == state.log.stable_index:
            return False
        if self.transfer is not None or self.reads.is_waiting or not self._hears_majority(now_ms):
            return False
        return all(self.progress[item].match_index == last for item in self._reachable(now_ms))

    def _become_quiet_if_agreed(self, now_ms: int) -> None:
        """Once all of them know the whole commit, too, and have agreed."""
        if not self.quieting or not self._all_hold_all(now_ms):
            return
        last, reachable = self._state.log.last_index, self._reachable(now_ms)
        if any(self.progress[replica].commit_index != last for replica in reachable):
            return
        self.quiet = all(self.progress[replica].quiet for replica in reachable)
        # An answer from before the last question may come late: then it was no agreement, and ends here.
        self.left_behind = tuple(sorted(self.progress.keys() - reachable)) if self.quiet else ()

    def rouse(self, now_ms: int) -> None:
        """Heartbeat again. No follower was asked to answer meanwhile, so each gets a full timeout to do
        so."""
        was_quiet = self.quiet
        if was_quiet or self.quieting:
            self.is_newborn = False
        self.quiet = self.quieting = False
        self.left_behind = ()
        self.active_ms = now_ms
        for progress in self.progress.values():
            progress.quiet = False
            if was_quiet:
                progress.heard_ms = now_ms
        if was_quiet:
            self.quorum_deadline_ms = now_ms + self._state.config.election_timeout_ms
        self._send_heartbeats_soon(now_ms)

    def agent_silent(self, replica_id: ReplicaId, now_ms: int) -> bool:
        """The agent of that replica fell silent: find out whether a majority is left. Said again, it changes
        nothing, so that a group may go quiet with a dead member. True: it was news."""
        progress = self.progress.get(replica_id)
        if progress is None or progress.silent:
            return False
        self.rouse(now_ms)
        self.spares.spare_nobody()
        progress.silent = True
        return True

    def check_invariants(self) -> None:
        """Assert what the class and the progress of each follower state."""
        state = self._state
        others = {item.id for item in state.configuration.replicas} - {state.replica_id}
        assert self.progress.keys() == others
        assert self.term_start <= state.log.last_index
        assert self.term_start < state.log.first_index or state.log.term_at(self.term_start) == state.term
        # One at a time: every configuration but the newest is committed, or this leader could not have
        # changed it.
        if state.configuration.index >= self.term_start:
            assert all(item.index <= state.commit_index for item in state.configurations[:-1])
        for progress in self.progress.values():
            progress.check_invariants(state.config, state.log.last_index)
        assert not self.quiet or state.commit_index == state.log.last_index
        assert self.quiet or not self.left_behind
        assert others.issuperset(self.left_behind)
        assert self.spares.prompt is None or self.spares.prompt <= self.progress.keys()
