"""What must hold in every replica of every agent, looked at after each round of the loop that ran its code.

Law of this file: it reads, it never changes. Names are those of the Raft paper where it has them, otherwise
the rule of safety is in the docstring. What clients saw is judged by log_history.py, at the end.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from cluster_sim.loop import LIFE
from cluster_sim.node import Node
from shoal.agent.host import Host
from shoal.agent.identity import GroupId, ReplicaRecord, ReplicaRegistry, ReplicaState
from shoal.agent.replica import Replica
from shoal.batch import LogIndex
from shoal.replication.interfaces import Configuration, ReplicaId
from shoal.replication.messages import Vote, VoteReply, decode, encode
from shoal.replication.raft import RaftCore
from shoal.replication.transitions import Role

CORE_ASKS = frozenset({"term_at", "deadline", "statistics", "check_invariants"})
"""What a core is asked without being changed."""
CHECKED_ENTRIES_MAX = 2_000
"""Of one step of a commit index: a replica that returns has thousands at once, which were compared before."""


CORE_CALLS = tuple(
    name
    for name, method in vars(RaftCore).items()
    if inspect.isfunction(method)
    and (name == "__init__" or not name.startswith("_"))
    and name not in CORE_ASKS
)
"""Whatever may change a core's state."""


class InvariantViolation(AssertionError):
    """`name`: of the invariant."""

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(f"{name}: {detail}")
        self.name = name


def _first_byte(message: Any) -> int:
    return encode(message)[0]


_NOBODY = ReplicaId(0, 0)
_VOTE_KINDS = frozenset(
    {
        _first_byte(Vote(_NOBODY, _NOBODY, 1, LogIndex(0), 0)),  # type: ignore[arg-type]
        _first_byte(VoteReply(_NOBODY, _NOBODY, 1, True)),  # type: ignore[arg-type]
    }
)


@dataclass
class _GroupTruth:
    """What the whole cluster has shown of one group."""

    terms: list[int] = field(default_factory=lambda: [0])
    """By index: the term of the entry that was first seen committed there."""
    committed_in: int = 0
    """The newest term in which the last of them was known to be committed."""
    leaders: dict[int, tuple[str, ReplicaId]] = field(default_factory=dict)
    votes: dict[tuple[ReplicaId, int], ReplicaId] = field(default_factory=dict)
    configuration: Configuration | None = None
    ids: set[ReplicaId] = field(default_factory=set)
    removed: set[ReplicaId] = field(default_factory=set)
    beyond_repair: set[ReplicaId] = field(default_factory=set)
    """As their own agents said: they never vote again, so that a group without one is no poorer."""


@dataclass
class _Seen:
    """Of one replica object, when it was last looked at."""

    replica: Replica
    term: int
    commit: int


class Invariants:
    """`node(name)`: by the name of a life without its number."""

    def __init__(self, nodes: Callable[[], Iterable[Node]]) -> None:
        self._nodes = nodes
        self._groups: dict[GroupId, _GroupTruth] = {}
        self._seen: dict[tuple[str, GroupId], _Seen] = {}
        self._retired: set[tuple[str, GroupId, ReplicaId]] = set()
        self._born: set[tuple[str, GroupId, ReplicaId]] = set()
        self._moved: set[str] = set()
        """Lives whose cores were called since the last look: no other core can have changed."""
        self.checks = 0
        self.violation: InvariantViolation | None = None

    def fail(self, name: str, detail: str) -> None:
        """Keeps the first; the loop of the simulation raises it after the round."""
        if self.violation is None:
            self.violation = InvariantViolation(name, detail)

    # ---- after every round -----------------------------------------------------------------------

    def look(self) -> None:
        """At the replicas of the processes whose cores were called."""
        if self._moved:
            moved, self._moved = self._moved, set()
            for node in self._nodes():
                host = node.host
                if host is None or node.life is None or node.life.name not in moved:
                    continue
                for group, entry in host._groups.items():
                    self._look_at(node.life.name, group, entry.replica)
        if self.violation is not None:
            raise self.violation

    def _look_at(self, life: str, group: GroupId, replica: Replica) -> None:
        core = replica.core
        seen = self._seen.get((life, group))
        if seen is None or seen.replica is not replica:
            truth = self._groups.setdefault(group, _GroupTruth())
            seen = self._seen[life, group] = _Seen(replica, 0, 0)
        elif (seen.term, seen.commit) == (core.term, core.commit_index) and (
            core.role is not Role.LEADER or core.term in self._groups[group].leaders
        ):
            return
        self.checks += 1
        truth = self._groups[group]
        where = f"{life} {group} {replica.replica_id}"
        if core.term < seen.term or core.commit_index < seen.commit:
            self.fail("MonotonicTermAndCommit", f"{where}: {seen.term}/{seen.commit} then {core!r}")
        if replica.failure is None:
            if core.role is Role.LEADER:
                self._leads(truth, where, replica)
            self._committed(truth, where, replica, seen.commit)
            core.check_invariants()
        seen.term, seen.commit = core.term, core.commit_index

    def _leads(self, truth: _GroupTruth, where: str, replica: Replica) -> None:
        """ElectionSafety: one leader in a term. LeaderCompleteness: it holds everything committed."""
        core = replica.core
        known = truth.leaders.setdefault(core.term, (where, replica.replica_id))
        if known[1] != replica.replica_id:
            self.fail("ElectionSafety", f"{where} and {known[0]} lead term {core.term}")
        last = len(truth.terms) - 1
        if core.last_index < last and core.term > truth.committed_in:
            self.fail("LeaderCompleteness", f"{where} ends at {core.last_index}, {last} is committed")

    def _committed(self, truth: _GroupTruth, where: str, replica: Replica, before: int) -> None:
        """StateMachineSafety: nobody commits anything else at an index."""
        core = replica.core
        first = max(before + 1, core.commit_index - CHECKED_ENTRIES_MAX, replica.log.first_index)
        for index in range(first, core.commit_index + 1):
            term = core.term_at(LogIndex(index))
            if term is None:
                continue  # retention has dropped it
            if index < len(truth.terms):
                if truth.terms[index] not in (0, term):
                    self.fail(
                        "StateMachineSafety", f"{where} commits {index}@{term}, was @{truth.terms[index]}"
                    )
            else:
                truth.terms.extend([0] * (index - len(truth.terms)))
                truth.terms.append(term)
                truth.committed_in = core.term
        self._configured(truth, where, replica.state.configurations[0])

    def _configured(self, truth: _GroupTruth, where: str, committed: Configuration) -> None:
        """An id that a committed configuration left out never comes back (safety 2)."""
        known = truth.configuration
        if known is not None and committed.index <= known.index:
            return
        truth.configuration = committed
        ids = {item.id for item in committed.replicas}
        back = ids & truth.removed
        if back:
            self.fail("RemovedStaysRemoved", f"{where}: {committed} has {back} again")
        truth.removed |= truth.ids - ids
        truth.ids |= ids
        if known is None:
            return
        voters = [item for item in committed.replicas if not item.learner]
        were = [item for item in known.replicas if not item.learner]
        given_up = [item for item in were if item.id not in ids and item.id in truth.beyond_repair]
        if len(voters) + len(given_up) < min(3, len(were)):
            self.fail("NeverFewerVoters", f"{where}: {known} became {committed}")

    def on_call(self) -> None:
        """A core of the process that runs is about to decide something."""
        life = LIFE.get()
        assert life is not None
        self._moved.add(life.name)

    # ---- what leaves -----------------------------------------------------------------------------

    def on_send(self, host: Host, group: GroupId, data: bytes) -> None:
        """OneVotePerTerm: a vote, once it has left, survives everything (safety 3)."""
        if data[0] not in _VOTE_KINDS:
            return
        message = decode(data)
        truth = self._groups.setdefault(group, _GroupTruth())
        if isinstance(message, VoteReply) and message.granted:
            candidate = message.receiver
        elif isinstance(message, Vote):
            candidate = message.sender
        else:
            return
        given = truth.votes.setdefault((message.sender, message.term), candidate)
        if given != candidate:
            self.fail(
                "OneVotePerTerm",
                f"{host.agent_id[:8]} {group} {message.sender} voted for {given} and {candidate} in term "
                f"{message.term}",
            )

    def on_record(self, record: ReplicaRecord) -> None:
        """BornOnce: a replica id is taken once; RemovedStaysRemoved, on the agent that held it (safety 2)."""
        life = LIFE.get()
        assert life is not None
        key = (life.address, record.group, record.replica_id)
        if record.state is ReplicaState.REMOVED:
            self._retired.add(key)
        elif key in self._retired and record.state is not ReplicaState.LOST:
            self.fail("RemovedStaysRemoved", f"{life.name} takes {record} again")
        if record.state is ReplicaState.CREATING and key in self._born:
            self.fail("BornOnce", f"{life.name} gives birth to {record} again")
        if record.state is ReplicaState.ACTIVE:
            self._born.add(key)

    def on_beyond_repair(self, records: Iterable[ReplicaRecord]) -> None:
        """What an agent may tell of its own replicas."""
        for record in records:
            self._groups.setdefault(record.group, _GroupTruth()).beyond_repair.add(record.replica_id)

    def disk_was_wiped(self, address: str) -> None:
        """Who lives there now is somebody else."""
        self._born = {key for key in self._born if key[0] != address}
        self._retired = {key for key in self._retired if key[0] != address}


def listeners(invariants: Invariants) -> list[tuple[Any, str, Any]]:
    """Replacements that tell the invariants what leaves and what is recorded."""
    send_control = Host.send_control
    put = ReplicaRegistry.put
    beyond_repair = Host.beyond_repair

    def observed_beyond_repair(self: Host) -> list[ReplicaRecord]:
        records = beyond_repair(self)
        invariants.on_beyond_repair(records)
        return records

    def observed_send(self: Host, agent_id: str, group: GroupId, message: bytes) -> None:
        invariants.on_send(self, group, message)
        send_control(self, agent_id, group, message)

    async def observed_put(self: ReplicaRegistry, record: ReplicaRecord) -> None:
        if record.state is ReplicaState.CREATING:
            invariants.on_record(record)
        await put(self, record)
        if record.state is not ReplicaState.CREATING:
            invariants.on_record(record)  # not while the disk may refuse it

    def observed(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            invariants.on_call()
            return method(*arguments, **named)

        return call

    return [
        (Host, "send_control", observed_send),
        (Host, "beyond_repair", observed_beyond_repair),
        (ReplicaRegistry, "put", observed_put),
        *((RaftCore, name, observed(getattr(RaftCore, name))) for name in CORE_CALLS),
    ]


def last_place(error: BaseException) -> str:
    """Where it was raised."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return "" if place is None else f" at {place.tb_frame.f_code.co_filename}:{place.tb_lineno}"


class InternalErrors(logging.Handler):
    """NoInternalError: what the product itself logs as an exception it did not expect."""

    def __init__(self, invariants: Invariants, is_expected: Callable[[BaseException], bool]) -> None:
        super().__init__(logging.ERROR)
        self._invariants = invariants
        self._is_expected = is_expected

    def emit(self, record: logging.LogRecord) -> None:
        life = LIFE.get()
        if life is not None and life.is_dead:
            return
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not self._is_expected(error):
            text = f"{record.getMessage()}: {type(error).__name__} {error}{last_place(error)}"
            self._invariants.fail("NoInternalError", f"{life.name if life else 'nobody'}: {text}")
