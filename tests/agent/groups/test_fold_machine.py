"""The fold beside a model with one value per message: entries of any kind, staged, cut, settled, reopened."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shoal.agent.groups.entry import Deliver, encode_entry
from shoal.agent.groups.fold import GroupFold
from shoal.agent.groups.place import EntryStamp
from shoal.format.batch import LogIndex
from tests.agent.groups.fold_walk import FoldWalk, History, check, walk
from tests.agent.groups.group_entries import stamp_of
from tests.agent.groups.test_entry import EVERY


class FoldMachine(RuleBasedStateMachine):
    """Any mixture of entries, cuts, commits and reopenings: the fold is as the models, on whatever way."""

    by_due = False

    def __init__(self) -> None:
        super().__init__()
        self.walk = FoldWalk(self.by_due)

    @rule(seed=st.integers(0, 2**32))
    def follow(self, seed: int) -> None:
        """An entry of another leader."""
        self.walk.follow(random.Random(seed))

    @rule(seed=st.integers(0, 2**32), gives_up=st.booleans())
    def lead(self, seed: int, gives_up: bool) -> None:
        """An entry of this replica's."""
        self.walk.lead(random.Random(seed), gives_up=gives_up)

    @precondition(lambda self: self.walk.history.last > self.walk.settled)
    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        """The log loses its end."""
        self.walk.cut(data.draw(st.integers(self.walk.settled + 1, self.walk.history.last)))

    @precondition(lambda self: self.walk.history.last > self.walk.settled)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        """A prefix is committed."""
        self.walk.settle(data.draw(st.integers(self.walk.settled + 1, self.walk.history.last)))

    @rule()
    def reopen(self) -> None:
        """The replica is opened again."""
        self.walk.reopen()

    @invariant()
    def as_the_models(self) -> None:
        """After every step."""
        self.walk.check()


class TimerFoldMachine(FoldMachine):
    """The same where places are due times."""

    by_due = True


TestFoldMachine = FoldMachine.TestCase
TestFoldMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestTimerFoldMachine = TimerFoldMachine.TestCase
TestTimerFoldMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("by_due", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_undo_at_every_index(by_due: bool, seed: int) -> None:
    """From the end back to each entry of a long log, then forward again: the same bytes, both ways."""
    chance = random.Random(seed)
    history = History(by_due)
    fold = GroupFold(by_due=by_due)
    states = [fold.to_bytes()]
    entries: list[tuple[EntryStamp, bytes]] = []
    for _ in range(40):
        stamp = history.next_stamp(chance.randint(0, 4), chance.choice((0, 1, 3_000)))
        sections = history.sections(chance)
        entries.append((stamp, encode_entry(sections)))
        fold.fold(stamp_of(stamp), entries[-1][1])
        history.follow(sections, stamp)
        states.append(fold.to_bytes())
    check(fold, history.models)
    for index in range(len(entries), 0, -1):
        fold.undo_from(LogIndex(index))
        assert fold.to_bytes() == states[index - 1], index
        fold.check_invariants()
        for stamp, entry in entries[index - 1 :]:
            fold.fold(stamp_of(stamp), entry)
        assert fold.to_bytes() == states[-1], index
    fold.undo_from(LogIndex(1))
    assert (fold.to_bytes(), fold.size_bytes, dict(fold.groups)) == (b"", 0, {})


@pytest.mark.parametrize("by_due", [False, True])
def test_the_machines_reach_what_they_are_for(by_due: bool) -> None:
    """Every operation happens, and is void, many times in random entries: or they would prove little."""
    chance = random.Random(11)
    seen: dict[tuple[str, bool], int] = {}
    letters = delivered_again = before_floor = 0
    for _ in range(60):
        history = History(by_due)
        for _ in range(40):
            stamp = history.next_stamp(chance.randint(0, 8), chance.choice((0, 1, 2_000)))
            for key, operation, happened in history.follow(history.sections(chance), stamp):
                name = (type(operation).__name__, happened)
                seen[name] = seen.get(name, 0) + 1
                model = history.models.get(key)
                if model is not None:
                    letters += len(model.letters) > 2
                    before_floor += any(place < model.floor for place in model.messages)
                    again = isinstance(operation, Deliver) and happened
                    delivered_again += again and any(one.attempts > 2 for one in model.messages.values())
    kinds = {type(operation).__name__ for operation in EVERY} - ({"Skip"} if by_due else set())
    for name in kinds:
        assert seen.get((name, True), 0) >= 20, (name, seen)
        assert seen.get((name, False), 0) >= 5, (name, seen)
    assert min(letters, delivered_again, before_floor) > 50


@pytest.mark.parametrize("seed", range(8))
def test_long_walks(seed: int) -> None:
    """Logs of a hundred entries and more, with all that may happen to their ends."""
    walked = walk(seed, 150)
    assert walked.history.last > 20
