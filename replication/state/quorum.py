"""Majority arithmetic.

Law of this file: pure functions on plain collections; nothing here knows what a message or a role is. The
tests keep a slow and obvious twin of each.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import TypeVar

Voter = TypeVar("Voter")


class VoteResult(Enum):
    """Whether an election is decided."""

    PENDING = "pending"
    WON = "won"
    LOST = "lost"


def majority(voter_count: int) -> int:
    """The least number of voters of which any two sets meet."""
    assert voter_count > 0
    return voter_count // 2 + 1


def majority_value(values: Sequence[int]) -> int:
    """The greatest value that a majority has reached, one value per voter (section 5.3: the commit index)."""
    return sorted(values)[len(values) - majority(len(values))]


def vote_result(voters: Collection[Voter], votes: Mapping[Voter, bool]) -> VoteResult:
    """Count the votes of `voters`; votes of others do not count."""
    needed = majority(len(voters))
    granted = sum(1 for voter in voters if votes.get(voter) is True)
    refused = sum(1 for voter in voters if votes.get(voter) is False)
    if granted >= needed:
        return VoteResult.WON
    if len(voters) - refused < needed:
        return VoteResult.LOST
    return VoteResult.PENDING


def has_majority(voters: Collection[Voter], present: Iterable[Voter]) -> bool:
    """Whether those present hold a majority of `voters`."""
    return len(set(voters) & set(present)) >= majority(len(voters))
