"""A log of random group entries beside models with one value per message: for machines and campaigns."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from shoal.agent.groups.entry import Begin, Drop, GroupOperation, encode_entry
from shoal.agent.groups.fold import GroupFold
from shoal.agent.groups.place import EntryStamp
from shoal.agent.receive import DuePlace, GroupKey
from shoal.format.batch import LogIndex
from tests.agent.groups.group_entries import KEYS, World, entry_stamp, random_operation, stamp_of
from tests.agent.groups.group_model import GroupModel, first_floor

Models = dict[GroupKey, GroupModel]
Sections = Mapping[GroupKey, Sequence[GroupOperation]]


def apply_to(
    models: Models, key: GroupKey, operation: GroupOperation, stamp: EntryStamp, by_due: bool
) -> bool:
    """An operation of an entry, on models."""
    model = models.get(key)
    match operation:
        case Begin(catalog, place, latest):
            floor = first_floor(place, latest, stamp, by_due)
            if model is not None or floor is None:
                return False
            models[key] = GroupModel(catalog, floor, by_due)
            return True
        case Drop((epoch, offset)):
            if model is None or epoch != model.begun[0] or offset <= model.begun[1]:
                return False
            del models[key]
            return True
    return model is not None and model.apply(operation, stamp)


def check(fold: GroupFold, models: Models) -> None:
    """The fold is as its models, and as it should be."""
    assert set(fold.groups) == set(models)
    for key, model in models.items():
        group = fold.groups[key]
        model.check(group)
        for consumer, (request, delivery, time_us, ranges) in model.requests.items():
            kept = group.requests.find(consumer, request)
            assert kept is not None
            assert (kept.delivery, kept.time_us) == (delivery, time_us)
            assert len(kept.ranges) == 4 + 20 * len(ranges)
        assert len(group.requests) == len(model.requests)
    fold.check_invariants()


class History:
    """A log's entries, and the models as they were before each of them."""

    def __init__(self, by_due: bool) -> None:
        self.by_due = by_due
        self.models: Models = {}
        self.before: list[Models] = []  # of entry 1, 2, ...
        self.end = 0
        self.time_us = 0

    @property
    def last(self) -> int:
        return len(self.before)

    def next_stamp(self, records: int, step_us: int) -> EntryStamp:
        """Of the entry that comes: so many records and so much time after the last one."""
        self.end += records
        self.time_us += step_us
        return entry_stamp(self.last + 1, self.end, self.time_us)

    def sections(self, chance: random.Random) -> dict[GroupKey, list[GroupOperation]]:
        """A random entry's."""
        keys = chance.sample(KEYS, chance.choice((1, 1, 2, 3)))
        return {key: self._operations(key, chance) for key in keys}

    def _operations(self, key: GroupKey, chance: random.Random) -> list[GroupOperation]:
        model = self.models.get(key)
        if model is None:
            begin = Begin((1, 0))
            return [begin] if chance.random() < 0.8 else [random_operation(chance, self._world(None))]
        return [random_operation(chance, self._world(model)) for _ in range(chance.randint(1, 4))]

    def _world(self, model: GroupModel | None) -> World:
        if model is None:
            return World(self.by_due, self.end)
        known = {place: (message.state, message.delivery) for place, message in model.messages.items()}
        numbers = (model.generation, model.letters_given, model.redriven)
        return World(self.by_due, self.end, known, DuePlace(*model.next), *numbers)

    def follow(self, sections: Sections, stamp: EntryStamp) -> list[tuple[GroupKey, GroupOperation, bool]]:
        """Let the models follow an entry; which operations happened."""
        self.before.append({key: model.copy() for key, model in self.models.items()})
        return [
            (key, operation, apply_to(self.models, key, operation, stamp, self.by_due))
            for key in sorted(sections)
            for operation in sections[key]
        ]

    def cut(self, index: int) -> None:
        """The log loses everything from this entry on."""
        self.models = self.before[index - 1]
        del self.before[index - 1 :]


class FoldWalk:
    """A fold on any way through a log, and what must hold of it after each step."""

    def __init__(self, by_due: bool) -> None:
        self.by_due = by_due
        self.fold = GroupFold(by_due=by_due)
        self.history = History(by_due)
        self.settled = 0

    def follow(self, chance: random.Random) -> None:
        """An entry arrives, void operations and all."""
        stamp = self.history.next_stamp(chance.randint(0, 8), chance.choice((0, 1, 2_000)))
        sections = self.history.sections(chance)
        self.fold.fold(stamp_of(stamp), encode_entry(sections))
        self.history.follow(sections, stamp)

    def lead(self, chance: random.Random, *, gives_up: bool) -> None:
        """An entry is made operation by operation, its groups in any order; void ones are left out."""
        stamp = self.history.next_stamp(chance.randint(0, 8), chance.choice((0, 1, 2_000)))
        sections = self.history.sections(chance)
        before = self.fold.to_bytes()
        happened = self._stage(sections, stamp, chance)
        if not self.fold.staged_bytes:
            assert not any(map(any, happened.values()))
            assert self.fold.to_bytes() == before
            return
        entry = self.fold.staged_entry()
        assert len(entry) == self.fold.staged_bytes
        if gives_up:
            self.fold.unstage(stamp.index)
            assert self.fold.to_bytes() == before
            return
        self.fold.fold(stamp_of(stamp), entry)
        followed = self.history.follow(sections, stamp)
        assert [one for key in sorted(sections) for one in happened[key]] == [one[2] for one in followed]
        other = GroupFold(by_due=self.by_due)
        other.restore(before)
        other.fold(stamp_of(stamp), entry)
        assert other.to_bytes() == self.fold.to_bytes()

    def _stage(
        self, sections: Sections, stamp: EntryStamp, chance: random.Random
    ) -> dict[GroupKey, list[bool]]:
        waiting = {key: list(operations) for key, operations in sections.items()}
        happened: dict[GroupKey, list[bool]] = {key: [] for key in sections}
        while any(waiting.values()):
            key = chance.choice([key for key, operations in waiting.items() if operations])
            happened[key] += self.fold.stage(key, [waiting[key].pop(0)], stamp)
        return happened

    def cut(self, index: int) -> None:
        """The log loses everything from this entry on."""
        self.fold.undo_from(LogIndex(index))
        self.history.cut(index)

    def settle(self, index: int) -> None:
        """The entries up to this one can never be cut again."""
        self.settled = index
        self.fold.settle(LogIndex(index))

    def reopen(self) -> None:
        """From a checkpoint at the log's end: the same bytes, and nothing before it can be cut."""
        data = self.fold.to_bytes()
        self.fold = GroupFold(by_due=self.by_due)
        self.fold.restore(data)
        assert self.fold.to_bytes() == data
        self.settled = self.history.last

    def check(self) -> None:
        """The fold is as its models."""
        check(self.fold, self.history.models)


def walk(seed: int, steps: int) -> FoldWalk:
    """So many random steps; AssertionError tells of a fold that is not as its models."""
    chance = random.Random(seed)
    walked = FoldWalk(by_due=bool(seed % 2))
    for _ in range(steps):
        match chance.choices(range(5), (10, 10, 3, 2, 1))[0]:
            case 0:
                walked.follow(chance)
            case 1:
                walked.lead(chance, gives_up=chance.random() < 0.2)
            case 2 if walked.history.last > walked.settled:
                walked.cut(chance.randint(walked.settled + 1, walked.history.last))
            case 3 if walked.history.last > walked.settled:
                walked.settle(chance.randint(walked.settled + 1, walked.history.last))
            case 4:
                walked.reopen()
        walked.check()
    return walked
