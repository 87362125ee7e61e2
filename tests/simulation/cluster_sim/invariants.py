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

from cluster_sim.loop import LIFE, Life, SimLoop
from cluster_sim.node import Node
from cluster_sim.on_disk import Witness
from shoal.agent.durable.identity import HardStateFile, ReplicaRecord, ReplicaRegistry, ReplicaState
from shoal.agent.durable.ids import GroupId
from shoal.agent.host import copy_target as installing
from shoal.agent.host.host import Host
from shoal.agent.host.unsafe_recovery import EPOCH_BITS
from shoal.agent.partition.replica import Replica
from shoal.agent.placement.rebalancer import Rebalancer
from shoal.format.batch import LogIndex
from shoal.replication.interfaces import Configuration, HardState, ReplicaId, generation_of
from shoal.replication.messages import AppendReply, Vote, VoteReply, decode, encode
from shoal.replication.placement.steps import Remove
from shoal.replication.raft import RaftCore
from shoal.replication.roles.transitions import Role

CORE_ASKS = frozenset({"term_at", "deadline", "statistics", "check_invariants"})
"""What a core is asked without being changed."""
FEWEST_VOTERS = 3
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
_ACKNOWLEDGEMENT_KIND = _first_byte(
    AppendReply(_NOBODY, _NOBODY, 1, True, LogIndex(0), LogIndex(0))  # type: ignore[arg-type]
)
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
    epoch: int = 0
    """How often it was recovered by force; what lives on from before proves nothing."""
    beyond_repair: set[ReplicaId] = field(default_factory=set)
    """As their own agents said: they never vote again, so that a group without one is no poorer."""


@dataclass
class _Seen:
    """A replica with a core, and what was seen there when it was last looked at."""

    node: Node
    life: Life
    replica: Replica
    term: int = -1
    """-1: it was never looked at."""
    commit: int = 0

    @property
    def is_served(self) -> bool:
        """Whether its process lives, and has it open."""
        host = self.node.host
        entry = (
            None if host is None or self.node.life is not self.life else host._groups.get(self.replica.group)
        )
        return entry is not None and entry.replica is self.replica


def _epoch_of(configuration: Configuration) -> int:
    """The last in which a replica was added; only a recovery by force begins one."""
    return max((item.id.term >> EPOCH_BITS for item in configuration.replicas), default=0)


def _place_of(configuration: Configuration) -> tuple[int, int]:
    return _epoch_of(configuration), configuration.index


class Invariants:
    """`watch()` asks for a look after this round."""

    def __init__(self, nodes: Callable[[], Iterable[Node]], loop: SimLoop) -> None:
        self._nodes = nodes
        self._loop = loop
        self._groups: dict[tuple[GroupId, int], _GroupTruth] = {}
        """By generation: what one birth of a group does is nothing to another one."""
        self._generations: dict[GroupId, int] = {}
        self._served: dict[GroupId, int] = {}
        self._seen: dict[RaftCore, _Seen] = {}
        self._retired: set[tuple[str, GroupId, ReplicaId]] = set()
        self._born: set[tuple[str, GroupId, ReplicaId]] = set()
        self._moved: dict[RaftCore, None] = {}
        """Cores that were called since the last look: no other one can have changed."""
        self._witness = Witness()
        self._fewest: dict[bytes, int] = {}
        """By topic: the smallest replication factor that was asked for, where it is below three."""
        self.checks = 0
        self.also: list[Callable[[str, Replica, int], None]] = []
        """Asked about each replica whose commit index has moved, with the birth of its group."""
        self.violation: InvariantViolation | None = None

    def may_be_lowered(self, topic_id: bytes, factor: int | str) -> None:
        """From now on groups of the topic may have so few voters."""
        if isinstance(factor, int):
            self._fewest[topic_id] = min(factor, self._fewest.get(topic_id, FEWEST_VOTERS))

    def fail(self, name: str, detail: str) -> None:
        """Keeps the first; the loop of the simulation raises it after the round."""
        if self.violation is None:
            self.violation = InvariantViolation(name, detail)
            self._loop.is_watched = True

    def _truth(self, group: GroupId, replica_id: ReplicaId | None) -> _GroupTruth:
        """What was recovered by force goes on from the newest generation."""
        generation = None if replica_id is None else generation_of(replica_id)
        newest = self._generations.get(group, 0)
        if generation is not None and generation > newest:
            self._generations[group] = generation
        return self._groups.setdefault((group, newest if generation is None else generation), _GroupTruth())

    # ---- after every round -----------------------------------------------------------------------

    def look(self) -> None:
        """At the replicas whose cores were called."""
        if self._moved:
            for core in self._moved:
                seen = self._seen.get(core) or self._find(core)
                if seen is not None:
                    self._look_at(core, seen)
            self._moved.clear()
        if self.violation is not None:
            raise self.violation

    def _find(self, core: RaftCore) -> _Seen | None:
        """None while its replica is being opened: it has a turn as soon as it is open."""
        for node in self._nodes():
            host = node.host
            for entry in () if host is None else host._groups.values():
                if entry.replica.core is core:
                    assert node.life is not None
                    self._seen[core] = _Seen(node, node.life, entry.replica)
                    return self._seen[core]
        return None

    def _look_at(self, core: RaftCore, seen: _Seen) -> None:
        """CutIsCut: nothing that is not in the log counts as synced. What else is checked depends on term,
        commit index and leadership alone."""
        state = core.state
        replica = seen.replica
        if replica.log.synced_index > replica.log.last_index and seen.is_served:
            self.fail("CutIsCut", f"{seen.life.name} {replica.group}: more is synced than there is: {core!r}")
        truth = self._truth(replica.group, replica.replica_id)
        is_leader = state.role is Role.LEADER
        is_same = seen.term == state.term and seen.commit == state.commit_index
        if is_same and (not is_leader or state.term in truth.leaders):
            return
        if not seen.is_served:
            return
        self.checks += 1
        where = f"{seen.life.name} {replica.group} {replica.replica_id}"
        if core.term < seen.term or core.commit_index < seen.commit:
            self.fail("MonotonicTermAndCommit", f"{where}: {seen.term}/{seen.commit} then {core!r}")
        if replica.failure is None and core.term >> EPOCH_BITS == truth.epoch:
            if is_leader:
                self._leads(truth, where, replica)
            self._committed(truth, where, replica, seen.commit)
            core.check_invariants()
            for look in self.also:
                look(where, replica, generation_of(replica.replica_id) or 0)
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
        self._configured(truth, where, replica)
        self._serves(where, replica)

    def _serves(self, where: str, replica: Replica) -> None:
        """OneBirthServes: of all births of a partition one at most ever takes a record."""
        generation = generation_of(replica.replica_id)
        if generation is None or not replica.state.tail.end_offset:
            return
        known = self._served.setdefault(replica.group, generation)
        if known != generation:
            self.fail("OneBirthServes", f"{where} has records, and birth {known} has others")

    def _configured(self, truth: _GroupTruth, where: str, replica: Replica) -> None:
        """An id that a committed configuration left out never comes back (safety 2)."""
        committed, known = replica.state.configurations[0], truth.configuration
        if known is not None and _place_of(committed) <= _place_of(known):
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
        is_forced = _epoch_of(committed) > _epoch_of(known)
        fewest = self._fewest.get(replica.group.topic_id, FEWEST_VOTERS)
        if len(voters) + len(given_up) < min(fewest, len(were)) and not is_forced:
            self.fail("NeverFewerVoters", f"{where}: {known} became {committed}")

    def on_step(self, group: GroupId, before: Configuration, factor: object, step: object) -> None:
        """NeverFewerVoters, before it is committed: no leader takes away a voter whom the replication factor
        in its own catalog wants (safety 5); one whose agent calls it lost is none."""
        removed = before.find(step.replica_id) if isinstance(step, Remove) else None
        if removed is None or removed.learner or not isinstance(factor, int):
            return
        voters = len(before.voters)
        lost = self._truth(group, removed.id).beyond_repair
        if removed.id not in lost and voters - 1 < min(factor, voters):
            self.fail("NeverFewerVoters", f"{group} wants {factor}, and {removed} goes from {before}")

    # ---- what leaves -----------------------------------------------------------------------------

    def on_send(self, host: Host, group: GroupId, data: bytes) -> None:
        """OneVotePerTerm: a vote, once it has left, survives everything (safety 3)."""
        if data[0] == _ACKNOWLEDGEMENT_KIND:
            self._acknowledges(host, group, decode(data))
        if data[0] not in _VOTE_KINDS:
            return
        message = decode(data)
        truth = self._truth(group, message.sender)
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

    def _acknowledges(self, host: Host, group: GroupId, message: Any) -> None:
        """AcknowledgedIsSynced: what others hear of is on this disk, as the log says and as the disk itself
        has it. FloorIsKnown: and the first entry of its segment is noted outside the log, or that segment
        would not be missed."""
        entry = host._groups.get(group)
        if entry is None or not message.accepted or not message.match_index:
            return
        log, where = entry.replica.log, f"{host.agent_id[:8]} {group} {message.sender}"
        if message.match_index > log.synced_index:
            self.fail(
                "AcknowledgedIsSynced",
                f"{where} acknowledges {message.match_index}, {log.synced_index} is synced",
            )
        if not log.first_index <= message.match_index <= log.last_index:
            return
        disk = next(node.disk for node in self._nodes() if node.host is host)
        missing = None if disk.is_damaged else self._witness.missing(disk, log, message.match_index)
        if missing is not None:
            self.fail("AcknowledgedIsSynced", f"{where} acknowledges {message.match_index}, {missing}")
        first, floor = log.first_index_of_segment(message.match_index), host._stores.hard_states.floor(group)
        if floor < first:
            self.fail(
                "FloorIsKnown",
                f"{where} acknowledges {message.match_index}, in a segment from {first}; noted is {floor}",
            )

    def on_hard_state(self, group: GroupId, state: HardState) -> None:
        """HintIsSynced: what is noted as committed is on this disk, or its log would look too short."""
        life = LIFE.get()
        for node in self._nodes():
            entry = None if node.life is not life or node.host is None else node.host._groups.get(group)
            if entry is not None and state.commit_index > entry.replica.log.synced_index:
                self.fail(
                    "HintIsSynced",
                    f"{node.name} {group} notes {state.commit_index} as committed, and has synced"
                    f" {entry.replica.log.synced_index}",
                )

    def on_install(self, group: GroupId, copy: Any, before: HardState, after: HardState) -> None:
        """InstalledIsCurrent: what a copy has beyond the commit index counts in its leader's term alone
        (safety 27); and no vote goes with it into a newer term (safety 3)."""
        if copy.branch_term is not None and copy.branch_term < before.term:
            self.fail("InstalledIsCurrent", f"{group}: of term {copy.branch_term}, in term {before.term}")
        if after.term > before.term and after.vote is not None:
            self.fail("OneVotePerTerm", f"{group}: the vote of term {before.term} stands in {after.term}")

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
            self._truth(record.group, record.replica_id).beyond_repair.add(record.replica_id)

    def forced(self, group: GroupId) -> None:
        """An operator lets one replica go on alone: what is true of the group begins anew, in a new epoch.
        Votes, and ids that were taken, stay what they were."""
        truth = self._truth(group, None)
        truth.epoch += 1
        truth.terms, truth.committed_in = [0], 0

    def not_forced(self, group: GroupId) -> None:
        """It was refused: the next try begins no epoch but that one."""
        self._truth(group, None).epoch -= 1

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

    propose = Rebalancer._propose

    def observed_propose(self: Rebalancer, replica: Replica, step: Any) -> bool:
        entry = self._catalog().by_id(replica.group.topic_id)
        factor = None if entry is None else entry.settings.replication_factor
        invariants.on_step(replica.group, replica.core.configuration, factor, step)
        return propose(self, replica, step)

    save, promise = HardStateFile.save, installing._Copy.promise

    async def observed_save(self: HardStateFile, group: GroupId, own_id: ReplicaId, state: HardState) -> None:
        invariants.on_hard_state(group, state)
        await save(self, group, own_id, state)

    async def observed_promise(self: Any, group: GroupId) -> None:
        before = self._stores.hard_states.get(group)
        await promise(self, group)
        after = self._stores.hard_states.get(group)
        assert before is not None
        assert after is not None
        invariants.on_install(group, self, before[1], after[1])

    def observed(method: Callable[..., Any]) -> Callable[..., Any]:
        """The core that is called may be another one afterwards."""
        moved, loop = invariants._moved, invariants._loop

        def call(core: RaftCore, *arguments: Any, **named: Any) -> Any:
            moved[core] = None
            loop.is_watched = True
            return method(core, *arguments, **named)

        return call

    return [
        (Host, "send_control", observed_send),
        (Host, "beyond_repair", observed_beyond_repair),
        (ReplicaRegistry, "put", observed_put),
        (Rebalancer, "_propose", observed_propose),
        (HardStateFile, "save", observed_save),
        (installing._Copy, "promise", observed_promise),
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
