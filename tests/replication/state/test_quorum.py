"""The majority arithmetic against slow and obvious twins."""

from __future__ import annotations

from itertools import combinations, product

from hypothesis import given
from hypothesis import strategies as st

from shoal.replication.state.quorum import (
    VoteResult,
    has_majority,
    majority,
    majority_value,
    vote_result,
)

VALUES = st.lists(st.integers(0, 20), min_size=1, max_size=7)


def slow_majority_value(values: list[int]) -> int:
    """The greatest number that more than half of the values reach, by trying them all."""
    return max(n for n in range(max(values) + 1) if 2 * sum(value >= n for value in values) > len(values))


def slow_vote_result(voters: list[int], votes: dict[int, bool]) -> VoteResult:
    """Won if every way in which the others may vote wins it; lost if none does."""
    open_ = [voter for voter in voters if voter not in votes]
    outcomes = set()
    for cast in product((False, True), repeat=len(open_)):
        all_votes = votes | dict(zip(open_, cast, strict=True))
        outcomes.add(2 * sum(all_votes[voter] for voter in voters) > len(voters))
    return {frozenset({True}): VoteResult.WON, frozenset({False}): VoteResult.LOST}.get(
        frozenset(outcomes), VoteResult.PENDING
    )


def slow_majority(count: int) -> int:
    """The least size of which no two sets are apart, by looking at all pairs of sets."""
    for size in range(1, count + 1):
        sets = [set(chosen) for chosen in combinations(range(count), size)]
        if all(a & b for a in sets for b in sets):
            return size
    raise AssertionError("all of them meet all of them")


@given(VALUES)
def test_majority_value_is_what_a_majority_has_reached(values: list[int]) -> None:
    """The commit index of section 5.3: the clever sort and the obvious search agree."""
    assert majority_value(values) == slow_majority_value(values)


@given(VALUES)
def test_majority_value_does_not_know_the_order(values: list[int]) -> None:
    """Voters are a set: reversing them changes nothing."""
    assert majority_value(values) == majority_value(values[::-1])


@given(VALUES, st.integers(0, 6), st.integers(0, 20))
def test_majority_value_never_falls_when_a_replica_moves_on(values: list[int], who: int, gain: int) -> None:
    """A commit index computed later is not smaller, since match indices only grow."""
    later = list(values)
    later[who % len(values)] += gain
    assert majority_value(later) >= majority_value(values)


@given(st.integers(1, 7))
def test_any_two_majorities_meet(count: int) -> None:
    """What every proof of the paper rests on; and a smaller number would not do."""
    sets = [set(chosen) for chosen in combinations(range(count), majority(count))]
    assert all(a & b for a in sets for b in sets)
    assert majority(count) == slow_majority(count)


@given(st.integers(1, 7), st.dictionaries(st.integers(0, 9), st.booleans(), max_size=10))
def test_vote_result_counts_voters_only(count: int, votes: dict[int, bool]) -> None:
    """Votes of strangers and learners change nothing; the count agrees with its twin."""
    voters = list(range(count))
    assert vote_result(voters, votes) is slow_vote_result(voters, votes)
    own = {voter: vote for voter, vote in votes.items() if voter in voters}
    assert vote_result(voters, own) is vote_result(voters, votes)


@given(st.integers(1, 7), st.lists(st.integers(0, 9), max_size=12))
def test_has_majority_counts_each_voter_once(count: int, present: list[int]) -> None:
    """Hearing one voter twice does not make two of it."""
    voters = range(count)
    expected = 2 * sum(1 for voter in voters if voter in present) > count
    assert has_majority(voters, present) is expected
