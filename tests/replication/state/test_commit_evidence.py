"""Whether a damaged entry can have been committed: against a slow and obvious twin, and on real groups
(safety 10)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import pytest
from raft_group import Group

from shoal.format.batch import LogIndex, Term
from shoal.replication.interfaces import Configuration, Replica, ReplicaId
from shoal.replication.raft import RaftCore
from shoal.replication.state.commit_evidence import in_force, rules_out_commit, was_never_committed

STRANGER = ReplicaId(0, 9)
Voters = frozenset[ReplicaId]


def ids(*ordinals: int) -> Voters:
    return frozenset(ReplicaId(0, ordinal) for ordinal in ordinals)


def subsets(voters: Voters) -> Iterator[Voters]:
    for size in range(len(voters) + 1):
        yield from map(frozenset, combinations(sorted(voters), size))


def majorities(voters: Voters) -> list[Voters]:
    return [chosen for chosen in subsets(voters) if 2 * len(chosen) > len(voters)]


def neighbours(voters: Voters) -> list[Voters]:
    """One voter more, or one less."""
    fewer = [voters - {gone} for gone in voters if len(voters) > 1]
    return [*fewer, voters | {STRANGER}]


def slow_may_be_committed(voters: Voters, change: Voters | None, holder: ReplicaId, lacking: Voters) -> bool:
    """Every leader that could count, every configuration that it could count under, every majority of it.

    Whoever lacks the entry was in none. `change`: what the leader of the entry's term proposed above it,
    where the holder's log has that. Where it has not, there may be one; but a leader that counts under it has
    synced it, and everything before, so that it lacks nothing; and a later leader that found it counts
    nothing for one that has not got it.
    """
    if any(not chosen & lacking for chosen in majorities(voters)):
        return True
    if change is not None:
        return any(not chosen & lacking for chosen in majorities(change))
    for unknown in neighbours(voters):
        for chosen in majorities(unknown):
            if chosen & lacking:
                continue
            own_term = any(leader != holder and leader not in lacking for leader in voters)
            if own_term or holder not in chosen:
                return True
    return False


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("holder", [0, 8])
def test_commits_are_ruled_out_only_where_none_is_possible(count: int, holder: int) -> None:
    """Whatever one change of the members was under way, known to the holder or not; of a voter's copy and a
    learner's. And what is possible for nobody is ruled out: nothing waits for ever that need not."""
    voters, who = ids(*range(count)), ReplicaId(0, holder)
    for lacking in subsets((voters | {STRANGER}) - {who}):
        for change in (None, voters, *neighbours(voters)):
            known = [voters] if change is None else [voters, change]
            may_be = slow_may_be_committed(voters, change, who, lacking)
            assert rules_out_commit(known, who, lacking) is not may_be, (known, lacking)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("holder", [0, 8])
def test_a_change_that_cannot_be_read_may_be_any(count: int, holder: int) -> None:
    """The entry itself may be one, of one voter more or less: every majority of every such neighbour counts,
    whoever leads."""
    voters = ids(*range(count))
    names = tuple(Replica(item, f"agent{item.index}") for item in sorted(voters))
    for lacking in subsets((voters | {STRANGER}) - {ReplicaId(0, holder)}):
        possible = [chosen for members in (voters, *neighbours(voters)) for chosen in majorities(members)]
        verdict = was_never_committed(
            LogIndex(5),
            holder=ReplicaId(0, holder),
            configurations=[Configuration(LogIndex(0), names)],
            term_at=lambda _: Term(1),
            lacking=lacking,
            is_certain=False,
        )
        assert verdict is all(chosen & lacking for chosen in possible), (voters, lacking)


def test_a_second_change_proves_the_commit() -> None:
    """It waited until the first was committed, and the entry with it, whatever anybody says."""
    for chain in ([ids(0), ids(0, 1), ids(0, 1, 2)], [ids(0, 1, 2), ids(1, 2), ids(2)]):
        assert not rules_out_commit(chain, ReplicaId(0, 0), ids(1, 2, 3))


def configuration(index: int, *ordinals: int) -> Configuration:
    replicas = tuple(Replica(ReplicaId(0, ordinal), "abcdefghij"[ordinal]) for ordinal in ordinals)
    return Configuration(LogIndex(index), replicas)


def test_what_counts_is_who_was_in_force_at_the_entry() -> None:
    """And what follows; nothing is ruled out where that is not known any more, nor once a later term's leader
    has changed the members above the entry: it had committed before."""
    chain = [configuration(3, 0, 1, 2), configuration(6, 0, 1), configuration(9, 0)]
    assert in_force(LogIndex(2), chain) == ()
    assert in_force(LogIndex(3), chain) == chain
    assert in_force(LogIndex(8), chain) == chain[1:]
    terms = dict.fromkeys(range(1, 20), Term(1))

    def is_out(index: int, *lacking: int, known: list[Configuration] = chain) -> bool:
        return was_never_committed(
            LogIndex(index),
            holder=ReplicaId(0, 0),
            configurations=known,
            term_at=terms.get,  # type: ignore[arg-type]
            lacking=ids(*lacking),
        )

    assert not is_out(2, 1, 2)
    assert not is_out(4, 1, 2)
    assert is_out(4, 1, 2, known=chain[:2])
    assert is_out(7, 1, known=chain[:2])
    assert not is_out(7, 1)
    assert not is_out(10, 1, 2)
    terms |= dict.fromkeys(range(6, 20), Term(2))
    assert not is_out(4, 1, 2, known=chain[:2])


def verdict(core: RaftCore, index: int, *lacking: int) -> bool:
    """What the holder concludes of an entry that those others lack."""
    return was_never_committed(
        LogIndex(index),
        holder=core.replica_id,
        configurations=core.configurations,
        term_at=core.term_at,
        lacking=ids(*lacking),
    )


def with_learner_as(group: Group, *, voter: bool) -> list[Replica]:
    replicas = group.cores[0].configuration.replicas
    return [item if item.id.index != 1 else Replica(item.id, item.agent_id, not voter) for item in replicas]


def test_what_one_alone_committed_is_not_ruled_out_by_a_second_voter() -> None:
    """It was acknowledged with the single copy of the sole voter; the one that joined after it lacks it. By
    the configuration of today, of two voters, the other one would be enough to drop it."""
    group = Group(1, learners=1)
    alone = group.elect(0)
    group.cut = {1}
    entry = group.propose(0)
    assert alone.commit_index == entry
    alone.propose_configuration(with_learner_as(group, voter=True), group.now_ms)
    group.drain(0)
    assert len(alone.configuration.voters) == 2
    assert not verdict(alone, entry, 1)
    later = group.propose(0)
    assert verdict(alone, later, 1), "this one needs both"


@pytest.mark.parametrize("removes", ["itself", "the other"])
def test_a_leader_counts_nothing_under_a_change_that_its_own_disk_lacks(removes: str) -> None:
    """Of two voters one is not needed any more once it is left out. If the leader could count so before its
    disk has the change, a power failure would leave the entry in one log, and no trace of the change in any:
    damaged there, it would be dropped by the other's word."""
    group = Group(2)
    leader = group.elect(0)
    entry = group.propose(0) if removes == "the other" else leader.last_index + 1
    group.held = {0}
    if removes == "itself":
        assert group.propose(0) == entry
    gone = 0 if removes == "itself" else 1
    rest = [item for item in leader.configuration.replicas if item.id.index != gone]
    leader.propose_configuration(rest, group.now_ms)
    group.drain(0)
    leader.damaged([(LogIndex(1), LogIndex(1))], group.now_ms)  # it counts anew
    if removes == "itself":
        group.deliver()
        group.deliver()
    assert leader.commit_index < entry
    group.release(0)
    group.settle()
    assert leader.commit_index >= entry
