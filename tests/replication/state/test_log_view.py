"""The run-length log against a plain list of terms."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from raft_group import term_runs

from shoal.format.batch import LogIndex, Term
from shoal.replication.interfaces import Run
from shoal.replication.state.log_view import LogView

TERMS = st.lists(st.integers(1, 5), max_size=12).map(sorted)


def view(terms: list[int], first_index: int = 1) -> LogView:
    """A log whose entry i has terms[i - 1]; before first_index it is trimmed."""
    kept = [(start, term) for start, term in term_runs(terms[first_index - 1 :])]
    shifted = [(LogIndex(start + first_index - 1), term) for start, term in kept]
    return LogView(shifted, LogIndex(first_index), LogIndex(len(terms)))


def as_runs(terms: list[int], first: int = 1) -> tuple[Run, ...]:
    """The runs of a list of terms, as a leader sends them."""
    log = view(terms)
    return log.runs(first, len(terms))


@given(TERMS)
def test_terms_are_found_by_index(terms: list[int]) -> None:
    """term_at agrees with the list; 0 before the log, None after it."""
    log = view(terms)
    assert [log.term_at(index) for index in range(len(terms) + 2)] == [0, *terms, None]
    assert log.last_term == (terms[-1] if terms else 0)


@given(TERMS, st.data())
def test_appending_and_truncating_is_what_a_list_does(terms: list[int], data: st.DataObject) -> None:
    """Any sequence of appends and truncations leaves the same terms as in a list."""
    log, model = view(terms), list(terms)
    for _ in range(data.draw(st.integers(0, 8))):
        if model and data.draw(st.booleans()):
            index = data.draw(st.integers(1, len(model)))
            log.truncate(LogIndex(index))
            del model[index - 1 :]
        else:
            term = data.draw(st.integers(max([*model, 1]), max([*model, 1]) + 2))
            count = data.draw(st.integers(1, 3))
            log.append(LogIndex(len(model) + count), Term(term))
            model += [term] * count
        log.check_invariants()
        assert [log.term_at(index) for index in range(1, len(model) + 1)] == model
        assert log.last_index == len(model)


@given(TERMS, st.integers(1, 12), st.integers(1, 12))
def test_runs_cover_exactly_the_range(terms: list[int], first: int, last: int) -> None:
    """The runs of a range, unrolled, are the terms of that range."""
    first, last = min(first, len(terms) + 1), min(last, len(terms))
    runs = view(terms).runs(first, last)
    unrolled = [(index, run.term) for run in runs for index in range(run.first, run.last + 1)]
    assert unrolled == [(index, terms[index - 1]) for index in range(first, last + 1)]


@given(TERMS, TERMS)
def test_first_difference_is_the_first_index_that_differs(own: list[int], theirs: list[int]) -> None:
    """Section 5.3, AppendEntries rules 3 and 4, entry by entry."""
    slow = next((i + 1 for i, term in enumerate(theirs) if i >= len(own) or own[i] != term), None)
    assert view(own).first_difference(as_runs(theirs)) == slow


@given(TERMS, TERMS, st.integers(0, 12))
def test_a_hint_never_skips_a_match(own: list[int], leader: list[int], previous: int) -> None:
    """Backing off by (term, index) loses no common entry: whatever the logs share lies at or before the place
    that follower and leader agree to try next."""
    previous = min(previous, len(leader))
    previous_term = leader[previous - 1] if previous else 0
    hint_index, hint_term = view(own).conflict_hint(previous, previous_term)
    try_index, _ = view(leader).conflict_hint(hint_index, hint_term)
    shared = 0
    while shared < min(len(own), previous) and own[shared] == leader[shared]:
        shared += 1
    assert shared <= try_index <= previous


@given(TERMS.filter(lambda terms: len(terms) > 1), st.integers(2, 12))
def test_trimming_forgets_the_head_only(terms: list[int], first_index: int) -> None:
    """Terms from the new first index on stay; before it nothing is known, and is taken as committed."""
    first_index = min(first_index, len(terms))
    log = view(terms)
    log.trim(LogIndex(first_index))
    log.check_invariants()
    assert [log.term_at(i) for i in range(first_index, len(terms) + 1)] == terms[first_index - 1 :]
    assert log.term_at(first_index - 1) is (None if first_index > 1 else 0)
    assert log.has(first_index - 1, 99)
    assert log.first_difference(as_runs(terms)) is None


def test_up_to_date_compares_terms_before_lengths() -> None:
    """Section 5.4.1: the later last term wins; of equal terms the longer log."""
    log = view([1, 1, 2])
    assert log.is_up_to_date(1, 3)
    assert log.is_up_to_date(3, 2)
    assert log.is_up_to_date(4, 2)
    assert not log.is_up_to_date(2, 2)
    assert not log.is_up_to_date(99, 1)
