"""The values that the Raft core and its caller exchange.

Law of this file: frozen values and their bytes; no behaviour of the protocol.

A replica's identity is (term, index) of the configuration entry that added it, or (0, ordinal) at birth, so
that an agent which lost its data and is added again is another replica (safety 2). A configuration takes
effect when it is appended, not when it is committed (thesis 4.1).

A group that never served may be given up and born anew, elsewhere: its births are counted in generations.
Replicas of two generations share no id and no term, so that no message or entry of one is taken for the
other's.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from shoal.format.batch import LogIndex, Term
from shoal.replication.errors import WireError

MAX_REPLICAS: Final = 255  # one byte counts them; "replication_factor: all" means a learner on every agent
MAX_AGENT_ID_BYTES: Final = 128
MAX_INTEGER: Final = 2**63 - 1  # terms and indices fit a signed 64-bit field of any reader

BIRTH_ORDINALS: Final = 256
"""Ids of one generation's first replicas: (0, generation * BIRTH_ORDINALS + ordinal)."""
GENERATION_BITS: Final = 8
GENERATION_TERM_BITS: Final = 32
"""A generation's terms are generation << 32 | elections in it; a recovery by force adds an epoch above."""
MAX_GENERATION: Final = (1 << GENERATION_BITS) - 1

NO_TERM: Final = Term(0)
FIRST_TERM: Final = Term(1)
NO_INDEX: Final = LogIndex(0)

_CONFIGURATION_HEAD: Final = struct.Struct("<QB")
_REPLICA_HEAD: Final = struct.Struct("<QQ?B")


class ReplicaId(NamedTuple):
    """A replica's identity, for ever: (term, index) of the entry that added it; (0, number) at birth."""

    term: int
    index: int  # type: ignore[assignment]  # the field hides tuple.index, which no id needs

    def __repr__(self) -> str:
        return f"{self.term}.{self.index}"


def birth_term(replica_id: ReplicaId) -> Term:
    """The term in which a replica begins that was born with its group; 0 for any other one."""
    if replica_id.term != 0:
        return NO_TERM
    return Term(replica_id.index // BIRTH_ORDINALS << GENERATION_TERM_BITS)


def generation_of(replica_id: ReplicaId) -> int | None:
    """Of the group's birth from which a replica descends; None after a recovery by force."""
    if replica_id.term == 0:
        return replica_id.index // BIRTH_ORDINALS
    generation = replica_id.term >> GENERATION_TERM_BITS
    return generation if generation <= MAX_GENERATION else None


# Stands for a replica that `propose_configuration` shall add; the core gives it its id, that of the entry.
UNBORN: Final = ReplicaId(-1, -1)


class Run(NamedTuple):
    """Consecutive entries of one term, both ends included."""

    first: LogIndex
    last: LogIndex
    term: Term

    def __repr__(self) -> str:
        return f"{self.first}..{self.last}@{self.term}"


@dataclass(frozen=True, slots=True)
class Replica:
    """One copy of the log: its identity, the agent that holds it, and whether it votes."""

    id: ReplicaId
    agent_id: str
    learner: bool = False


@dataclass(frozen=True)
class Configuration:
    """The replicas of this group, as of entry `index` (0: as born)."""

    index: LogIndex
    replicas: tuple[Replica, ...]

    @staticmethod
    def birth(agent_ids: tuple[str, ...], generation: int = 0) -> "Configuration":
        """The configuration in which a group starts: voters in order, the first being the preferred
        leader. generation: how many births before this one were given up."""
        assert 0 <= generation <= MAX_GENERATION
        first = generation * BIRTH_ORDINALS
        replicas = tuple(
            Replica(ReplicaId(0, first + ordinal), agent_id) for ordinal, agent_id in enumerate(agent_ids)
        )
        return Configuration(LogIndex(0), replicas)

    @cached_property
    def voters(self) -> tuple[ReplicaId, ...]:
        """Ids of the replicas that vote and count towards a commit."""
        return tuple(replica.id for replica in self.replicas if not replica.learner)

    @cached_property
    def learners(self) -> tuple[ReplicaId, ...]:
        """Ids of the replicas that only follow."""
        return tuple(replica.id for replica in self.replicas if replica.learner)

    @cached_property
    def voting_agents(self) -> tuple[str, ...]:
        """Which agents hold the voters, in their order; asked for each change of what is told of a group."""
        return tuple(replica.agent_id for replica in self.replicas if not replica.learner)

    @cached_property
    def learning_agents(self) -> tuple[str, ...]:
        """Which agents hold the learners."""
        return tuple(replica.agent_id for replica in self.replicas if replica.learner)

    @cached_property
    def by_id(self) -> Mapping[ReplicaId, Replica]:
        """The same, to be looked up; asked for each message."""
        return {replica.id: replica for replica in self.replicas}

    def find(self, replica_id: ReplicaId) -> Replica | None:
        """The replica of that id, if this configuration has it."""
        return self.by_id.get(replica_id)

    def hard_state_at_birth(self) -> "HardState":
        """The hard state of each voter at birth: as if all had elected the first of them in the first term of
        this birth. So no other voter ever leads that term, and the first may, before the others are there."""
        return HardState(Term(birth_term(self.voters[0]) + FIRST_TERM), self.voters[0])

    def to_bytes(self) -> bytes:
        """Length-prefixed, little endian; at most 64 KiB."""
        assert len(self.replicas) <= MAX_REPLICAS
        parts = [_CONFIGURATION_HEAD.pack(self.index, len(self.replicas))]
        for replica in self.replicas:
            name = replica.agent_id.encode()
            assert len(name) <= MAX_AGENT_ID_BYTES
            parts.append(_REPLICA_HEAD.pack(replica.id.term, replica.id.index, replica.learner, len(name)))
            parts.append(name)
        return b"".join(parts)

    @staticmethod
    def from_bytes(data: bytes) -> "Configuration":
        """The inverse of `to_bytes`; raises WireError on anything else."""
        try:
            index, count = _CONFIGURATION_HEAD.unpack_from(data, 0)
            position = _CONFIGURATION_HEAD.size
            replicas = []
            for _ in range(count):
                replica, position = _replica_from_bytes(data, position)
                replicas.append(replica)
        except (struct.error, UnicodeDecodeError) as error:
            raise WireError(f"configuration: {error}") from None
        if position != len(data) or index > MAX_INTEGER:
            raise WireError("configuration: trailing bytes or an index out of range")
        configuration = Configuration(LogIndex(index), tuple(replicas))
        if problem := configuration.problem():
            raise WireError(f"configuration: {problem}")
        return configuration

    def problem(self) -> str | None:
        """Why no group may have this configuration, or None."""
        if not self.voters:
            return "no voter"
        if len(self.replicas) > MAX_REPLICAS:
            return f"more than {MAX_REPLICAS} replicas"
        if len({replica.id for replica in self.replicas}) != len(self.replicas):
            return "a replica id stands twice"
        if len({replica.agent_id for replica in self.replicas}) != len(self.replicas):
            return "an agent holds two replicas"
        if any(not 0 < len(replica.agent_id.encode()) <= MAX_AGENT_ID_BYTES for replica in self.replicas):
            return f"an agent id is not 1 to {MAX_AGENT_ID_BYTES} bytes long"
        return None

    def __repr__(self) -> str:
        names = ",".join(f"{replica.id}{'?' if replica.learner else ''}" for replica in self.replicas)
        return f"({names})@{self.index}"


def _replica_from_bytes(data: bytes, position: int) -> tuple[Replica, int]:
    term, index, learner, length = _REPLICA_HEAD.unpack_from(data, position)
    position += _REPLICA_HEAD.size
    if length > MAX_AGENT_ID_BYTES or position + length > len(data) or max(term, index) > MAX_INTEGER:
        raise WireError("configuration: a replica out of range")
    name = data[position : position + length].decode()
    return Replica(ReplicaId(term, index), name, bool(learner)), position + length


@dataclass(frozen=True, slots=True)
class HardState:
    """It must be on disk before any message of its term leaves (section 5.2 of the paper; safety 3).

    commit_index is a hint for a quicker start. It is not promised to be current.
    """

    term: Term = NO_TERM
    vote: ReplicaId | None = None
    commit_index: LogIndex = NO_INDEX


@dataclass(frozen=True, slots=True)
class StoredReplica:
    """A replica as it was found synced on disk (safety 11).

    configurations: ascending; the last is the newest in the log, or that of birth. Before it stand those
    since first_index, and the one in force there: needed when an uncommitted one is truncated, and to send
    old entries. term_runs: (first index, term), ascending, from first_index on. commit_index: a lower bound;
    a commit that was known before a crash is good, since commits are for ever.
    """

    hard_state: HardState
    configurations: Sequence[Configuration]
    term_runs: Sequence[tuple[LogIndex, Term]]
    first_index: LogIndex
    last_index: LogIndex
    commit_index: LogIndex


class Proposal(NamedTuple):
    """Where a proposal stands: the driver stamps its entries from first_index on, with this term, at once.

    previous_term is the term of the entry before first_index (0: none), which the stamp carries (safety 7).
    """

    term: Term
    first_index: LogIndex
    previous_term: Term
