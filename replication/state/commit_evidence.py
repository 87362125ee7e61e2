"""Whether a damaged entry can have been committed, as far as its holder's own log and its peers' answers tell
(safety 10, decision 19; protocol-aware recovery, Alagappan et al., FAST 2018).

Law of this file: pure; under which configurations an entry may have been committed, and which answers rule
all of them out. The caller asks, and judges whether an answer can be relied on: a voter counts as lacking the
entry only if its log is intact without it, and it is in a newer term than any in which the holder
acknowledged anything. The tests keep a slow and obvious twin.

Which configurations those are. The commit that covered entry i first was counted by a leader that held i,
under the newest configuration of its log. That is the one in force at i, or one proposed above i: another
could follow only once that was committed, and i with it. A leader of a later term than i's proposes none
before it has committed an entry of its own, and i with it. So there are two: the one in force at i, and the
first that the leader of i's own term proposed above i. The holder's log may have it, or end before it.
"""

from collections.abc import Callable, Collection, Sequence

from shoal.format.batch import LogIndex, Term
from shoal.replication.interfaces import Configuration, ReplicaId
from shoal.replication.state.quorum import majority


def in_force(index: LogIndex, configurations: Sequence[Configuration]) -> Sequence[Configuration]:
    """The configuration in force at an entry, and those that follow; ascending by index, as given. Empty when
    that is not known."""
    for position in range(len(configurations) - 1, -1, -1):
        if configurations[position].index <= index:
            return configurations[position:]
    return ()


def was_never_committed(
    index: LogIndex,
    *,
    holder: ReplicaId,
    configurations: Sequence[Configuration],
    term_at: Callable[[LogIndex], Term | None],
    lacking: Collection[ReplicaId],
    is_certain: bool = True,
) -> bool:
    """Whether the replicas that lack the entry rule out that it was, or ever will be, committed.
    configurations: all that the holder's log has, ascending, back to the one in force at the entry; term_at:
    of the holder's log. Not is_certain: the entry itself, or one above it, may be a change of the members
    that cannot be read."""
    known = in_force(LogIndex(index if is_certain else index - 1), configurations)
    if not known or any(term_at(item.index) != term_at(index) for item in known[1:]):
        return False  # a change of a later term: its leader had committed the entry before
    if not is_certain and len(known) == 1:
        return _has_majority_of(known[0].voters, lacking)  # the change, though unknown, was one voter's
    return is_certain and rules_out_commit([item.voters for item in known], holder, lacking)


def rules_out_commit(
    configurations: Sequence[Collection[ReplicaId]], holder: ReplicaId, lacking: Collection[ReplicaId]
) -> bool:
    """The same, from the voters in force at an entry and of each configuration that the entry's own leader
    proposed above it, as far as they are in the holder's log."""
    first, *later = configurations
    if len(later) > 1:
        return False  # the second change waited until the first, and so the entry, was committed
    if later:
        return all(meets_every_majority(voters, lacking) for voters in configurations)
    if len(first) == 2 and holder in first:
        # The other one alone lacks it. A change under which it was not needed would stand in the holder's own
        # log, or in that of the other one, synced with everything before it: a leader counts nothing under a
        # change that its own disk lacks.
        return meets_every_majority(first, lacking)
    return _has_majority_of(first, lacking)


def _has_majority_of(voters: Collection[ReplicaId], lacking: Collection[ReplicaId]) -> bool:
    """The leader may have counted one voter more, or one less: any majority meets all majorities of such
    neighbours (thesis 4.1)."""
    return sum(voter in voters for voter in set(lacking)) >= majority(len(voters))


def meets_every_majority(voters: Collection[ReplicaId], some: Collection[ReplicaId]) -> bool:
    """Whether no majority of the voters does without all of these."""
    return sum(voter not in some for voter in voters) < majority(len(voters))
