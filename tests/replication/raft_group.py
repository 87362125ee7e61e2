"""A group of cores in lock step, under the test's hand: no clock, no chance, no disk of its own.

Law of this file: nothing moves unless a test says so. Messages wait in `mail` until delivered or dropped; a
replica whose disk is held keeps its readies until released.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable

from shoal.format.batch import LogIndex, Term
from shoal.replication.config import RaftConfig
from shoal.replication.interfaces import Configuration, HardState, Replica, ReplicaId, StoredReplica
from shoal.replication.messages import AppendRequest, Message
from shoal.replication.raft import RaftCore, Role
from shoal.replication.state.ready import Ready

ROUNDS_MAX = 200  # of delivery until a group must have settled


def term_runs(terms: Iterable[int]) -> list[tuple[LogIndex, Term]]:
    """[1, 1, 2] -> [(1, 1), (3, 2)]."""
    runs: list[tuple[LogIndex, Term]] = []
    for position, term in enumerate(terms):
        if not runs or runs[-1][1] != term:
            runs.append((LogIndex(position + 1), Term(term)))
    return runs


def make_core(
    ordinal: int,
    *,
    voters: int = 3,
    learners: int = 0,
    log: Iterable[int] = (),
    term: int | None = None,
    vote: int | None = None,
    commit: int = 0,
    config: RaftConfig | None = None,
    now_ms: int = 0,
    leads_from_birth: bool = False,
) -> RaftCore:
    """One core with everything defaulted; `log` gives the term of each entry."""
    terms = list(log)
    names = "abcdefghij"
    replicas = tuple(
        Replica(ReplicaId(0, number), names[number], learner=number >= voters)
        for number in range(voters + learners)
    )
    stored = HardState(
        Term(term if term is not None else max(terms, default=0)),
        None if vote is None else ReplicaId(0, vote),
        LogIndex(commit),
    )
    return RaftCore(
        replica_id=ReplicaId(0, ordinal),
        stored=StoredReplica(
            hard_state=stored,
            configurations=[Configuration(LogIndex(0), replicas)],
            term_runs=term_runs(terms),
            first_index=LogIndex(1),
            last_index=LogIndex(len(terms)),
            commit_index=LogIndex(commit),
        ),
        config=config or RaftConfig(quiet_after_ms=None, commit_notice_ms=0),
        rng=random.Random(ordinal),
        now_ms=now_ms,
        leads_from_birth=leads_from_birth,
    )


class Group:
    """cores by ordinal; `held` names those whose disk does not answer; `cut` those whom nothing reaches or
    leaves;
    `unreadable` the entries that a replica cannot send, since their bytes do not verify."""

    def __init__(
        self,
        voters: int = 3,
        *,
        learners: int = 0,
        logs: dict[int, list[int]] | None = None,
        term: int | None = None,
        config: RaftConfig | None = None,
    ) -> None:
        logs = logs or {}
        self.config = config or RaftConfig(quiet_after_ms=None, commit_notice_ms=0)
        self.now_ms = 0
        self.cores = {
            ordinal: make_core(
                ordinal,
                voters=voters,
                learners=learners,
                log=logs.get(ordinal, ()),
                term=term,
                config=self.config,
            )
            for ordinal in range(voters + learners)
        }
        self.mail: list[Message] = []
        self.sent: list[Message] = []
        self.reads: list[tuple[int, int, int]] = []  # ordinal, token, index
        self.held: set[int] = set()
        self.cut: set[int] = set()
        self.unreadable: dict[int, set[int]] = {}
        self._waiting: dict[int, deque[Ready]] = {ordinal: deque() for ordinal in self.cores}

    # One step

    def drain(self, ordinal: int) -> list[Ready]:
        """Carry out what a core wants; its readies, in order."""
        core = self.cores[ordinal]
        readies = []
        while (ready := core.ready()) is not None:
            readies.append(ready)
            self._post(ready.messages)
            self.reads += [(ordinal, token, index) for token, index in ready.read_states]
            self._waiting[ordinal].append(ready)
            if ordinal not in self.held:
                self.release(ordinal)
            core.check_invariants()
        return readies

    def release(self, ordinal: int) -> None:
        """The disk answers: everything waiting is synced."""
        self.held.discard(ordinal)
        while self._waiting[ordinal]:
            ready = self._waiting[ordinal].popleft()
            self.cores[ordinal].advance(ready)
            self._post(ready.messages_after_sync)
        self.cores[ordinal].check_invariants()

    def _post(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self.sent.append(message)
            # A replica born in the course of a test lives nowhere: what it is sent is lost.
            is_born = message.receiver.term == 0 and message.receiver.index in self.cores
            if (
                is_born
                and not self._is_unreadable(message)
                and not {message.sender.index, message.receiver.index} & self.cut
            ):
                self.mail.append(message)

    def _is_unreadable(self, message: Message) -> bool:
        if not isinstance(message, AppendRequest):
            return False
        wanted = range(message.previous_index + 1, message.last_index + 1)
        return any(index in wanted for index in self.unreadable.get(message.sender.index, ()))

    def step(self, message: Message) -> None:
        """Let one message arrive, whatever the mail holds."""
        ordinal = message.receiver.index
        self.cores[ordinal].step(message, self.now_ms)
        self.drain(ordinal)

    def restart(self, ordinal: int) -> RaftCore:
        """A crash: what was not synced is lost, and the core begins anew from the disk."""
        old = self.cores[ordinal]
        stored = old.state.outbox.synced
        stable = old.stable_index
        self._waiting[ordinal].clear()
        self.held.discard(ordinal)
        self.cores[ordinal] = RaftCore(
            replica_id=old.replica_id,
            stored=StoredReplica(
                hard_state=stored,
                configurations=[old.configuration],
                term_runs=term_runs([old.term_at(LogIndex(index)) or 0 for index in range(1, stable + 1)]),
                first_index=LogIndex(1),
                last_index=stable,
                commit_index=stored.commit_index,
            ),
            config=self.config,
            rng=random.Random(ordinal + 100),
            now_ms=self.now_ms,
        )
        return self.cores[ordinal]

    # Many steps

    def deliver(self, matching: Callable[[Message], bool] = lambda _: True) -> int:
        """Deliver what waits now, as far as it matches; how many."""
        chosen = [message for message in self.mail if matching(message)]
        self.mail = [message for message in self.mail if not matching(message)]
        for message in chosen:
            if message.receiver.index not in self.cut:
                self.step(message)
        return len(chosen)

    def settle(self) -> None:
        """Deliver until nothing is left to deliver."""
        for _ in range(ROUNDS_MAX):
            for ordinal in self.cores:
                self.drain(ordinal)
            if not self.deliver():
                return
        raise AssertionError(f"not settled after {ROUNDS_MAX} rounds: {self.mail[:5]}")

    def campaign(self, ordinal: int) -> None:
        """The election timer of one replica runs out, after everybody stopped hearing a leader."""
        deadline_ms = self.cores[ordinal].deadline()
        assert deadline_ms is not None
        self.now_ms = max(self.now_ms, deadline_ms)
        self.cores[ordinal].wake(self.now_ms)
        self.drain(ordinal)

    def elect(self, ordinal: int) -> RaftCore:
        """Make that replica the leader, its no-op committed everywhere."""
        self.campaign(ordinal)
        self.settle()
        core = self.cores[ordinal]
        assert core.role is Role.LEADER
        return core

    def propose(self, ordinal: int, count: int = 1) -> int:
        """Propose and send, deliver nothing; the first index."""
        first = self.cores[ordinal].propose(count, self.now_ms).first_index
        self.drain(ordinal)
        return first

    def pass_time(self, duration_ms: int, step_ms: int = 10) -> None:
        """Time passes for everybody, and messages arrive as they are sent."""
        end_ms = self.now_ms + duration_ms
        while self.now_ms < end_ms:
            self.now_ms += step_ms
            for ordinal, core in self.cores.items():
                deadline_ms = core.deadline()
                if deadline_ms is not None and deadline_ms <= self.now_ms:
                    core.wake(self.now_ms)
                self.drain(ordinal)
            self.settle()

    def leaders(self) -> list[int]:
        """Ordinals of those who believe they lead."""
        return [ordinal for ordinal, core in self.cores.items() if core.role is Role.LEADER]
