"""The log as Raft sees it: which term each index has, and nothing else.

Law of this file: no payloads, no disk. A log of a million entries written in three terms is three runs here.

Invariants: runs are ascending in index and term; first_index - 1 <= last_index. stable_index <= last_index:
every entry up to it is on this replica's disk, synced.
"""

from bisect import bisect_right
from collections.abc import Sequence

from shoal.format.batch import LogIndex, Term
from shoal.replication.interfaces import Run


class LogView:
    """Terms by index, in runs: starts[i] is the first index written in terms[i]."""

    def __init__(
        self, runs: Sequence[tuple[LogIndex, Term]], first_index: LogIndex, last_index: LogIndex
    ) -> None:
        """`runs` are (first index, term), ascending; everything found on disk counts as synced (safety
        11)."""
        self._starts: list[int] = [max(start, first_index) for start, _ in runs]
        self._terms: list[Term] = [term for _, term in runs]
        self.last_term = self._terms[-1] if self._terms else Term(0)
        """The term of the last entry; 0 for an empty log."""
        self.first_index = first_index
        self.last_index = last_index
        self.stable_index = last_index
        self._newest_run = Run(LogIndex(0), LogIndex(0), Term(0))
        """The one last asked for: each follower and the disk ask for the same one."""
        self.check_invariants()

    def term_at(self, index: int) -> Term | None:
        """The term of an entry; 0 for the place before the first entry of all; None where nothing is
        known."""
        if self.first_index <= index <= self.last_index:
            if index >= self._starts[-1]:
                return self._terms[-1]
            return self._terms[bisect_right(self._starts, index) - 1]
        return Term(0) if index == 0 else None

    def has(self, index: int, term: int) -> bool:
        """Whether a leader's log that has `term` at `index` agrees with this one up to there (section 5.3).

        Entries before first_index were committed before they were dropped, so that every leader has them.
        """
        return index < self.first_index or self.term_at(index) == term

    def is_up_to_date(self, last_index: int, last_term: int) -> bool:
        """Whether a candidate with that last entry may lead a replica with this log (section 5.4.1)."""
        return (last_term, last_index) >= (self.last_term, self.last_index)

    def append(self, last: LogIndex, term: Term) -> None:
        """Extend the log to `last` with entries of `term`."""
        assert last > self.last_index
        assert term >= self.last_term > 0 or not self._terms
        if term != self.last_term or not self._terms:
            self._starts.append(self.last_index + 1)
            self._terms.append(term)
            self.last_term = term
        self.last_index = last

    def truncate(self, from_index: LogIndex) -> None:
        """Forget the entries from `from_index` on."""
        assert self.first_index <= from_index <= self.last_index
        self.last_index = LogIndex(from_index - 1)
        self.stable_index = min(self.stable_index, self.last_index)
        while self._starts and self._starts[-1] > self.last_index:
            self._starts.pop()
            self._terms.pop()
        self.last_term = self._terms[-1] if self._terms else Term(0)

    def trim(self, first_index: LogIndex) -> None:
        """Forget the entries before `first_index`, which retention has dropped."""
        # The newest segment stays whatever retention says, so the last entry's term is always known to
        # elections.
        assert self.first_index <= first_index <= self.last_index
        keep = bisect_right(self._starts, first_index) - 1
        del self._starts[:keep], self._terms[:keep]
        self._starts[0] = first_index
        self.first_index = first_index

    def runs(self, first: int, last: int) -> tuple[Run, ...]:
        """The runs of [first, last], cut to that range; empty if first > last."""
        if first > last:
            return ()
        assert self.first_index <= first
        assert last <= self.last_index
        if first >= self._starts[-1]:  # the newest entries, as nearly always
            run, term = self._newest_run, self._terms[-1]
            if run.last != last or run.first != first or run.term != term:
                run = self._newest_run = Run(LogIndex(first), LogIndex(last), term)
            return (run,)
        found = []
        position = bisect_right(self._starts, first) - 1
        while position < len(self._starts) and self._starts[position] <= last:
            end = self._starts[position + 1] - 1 if position + 1 < len(self._starts) else self.last_index
            start = max(self._starts[position], first)
            found.append(Run(LogIndex(start), LogIndex(min(end, last)), self._terms[position]))
            position += 1
        return tuple(found)

    def first_difference(self, theirs: Sequence[Run]) -> LogIndex | None:
        """The first index of a leader's runs that this log lacks or holds in another term; None if it has
        all."""
        for run in theirs:
            first = max(run.first, self.first_index)
            for own in self.runs(first, min(run.last, self.last_index)):
                if own.term != run.term:
                    return own.first
            if run.last > self.last_index:
                return LogIndex(max(run.first, self.last_index + 1))
        return None

    def conflict_hint(self, index: int, term: int) -> tuple[LogIndex, Term]:
        """The last entry at or before `index` whose term is at most `term`: nothing after it can match a log
        that has `term` at `index` (the back-off of section 5.3, in both directions)."""
        position = bisect_right(self._starts, min(index, self.last_index)) - 1
        end = min(index, self.last_index)
        while position >= 0 and self._terms[position] > term:
            end = self._starts[position] - 1
            position -= 1
        if position < 0:
            return LogIndex(self.first_index - 1), Term(0)
        return LogIndex(end), self._terms[position]

    def check_invariants(self) -> None:
        """Assert what the head of this file states."""
        assert 1 <= self.first_index <= self.last_index + 1
        assert 0 <= self.stable_index <= self.last_index
        assert len(self._starts) == len(self._terms)
        assert self.last_term == (self._terms[-1] if self._terms else 0)
        assert bool(self._terms) == (self.last_index >= self.first_index)
        if self._starts:
            assert self._starts[0] == self.first_index
            assert self._starts[-1] <= self.last_index
        assert all(a < b for a, b in zip(self._starts, self._starts[1:], strict=False))
        assert all(a < b for a, b in zip(self._terms, self._terms[1:], strict=False))

    def __repr__(self) -> str:
        return f"{self.first_index}..{self.last_index}/{self.last_term}"
