"""Random operations and entries of a small world, with what they mean, for machines and campaigns."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shoal.agent.groups.entry import (
    Acknowledge,
    Begin,
    Decide,
    Deliver,
    Die,
    Drop,
    Fate,
    Free,
    GroupOperation,
    Lettered,
    Lost,
    ReasonCode,
    Release,
    Seek,
    Skip,
)
from shoal.agent.groups.place import START, EntryStamp, SpanState
from shoal.agent.receive import NOBODY, DuePlace, GroupKey, Range, StoppedAction
from shoal.format.batch import Flag, Kind, LogIndex, Offset, Stamp, Term

KEYS = tuple(GroupKey(bytes([letter]) * 16) for letter in b"abc")
CONSUMERS = tuple(bytes([letter]) * 16 for letter in b"xyz")
DUES = 4  # times at which a message of a timer topic may be due: 0 to 3


def stamp_of(entry: EntryStamp) -> Stamp:
    """The stamp of the frame that holds the entry."""
    return Stamp(
        Kind.GROUP_STATE,
        Flag(0),
        0,
        entry.base_offset,
        Term(1),
        Term(1),
        entry.index,
        0,
        0,
        entry.append_time_us,
        0,
        None,
    )


def entry_stamp(index: int, end: int = 100, time_us: int = 0) -> EntryStamp:
    """An entry behind so many records."""
    return EntryStamp(LogIndex(index), Offset(end), time_us)


class World(NamedTuple):
    """What a random operation may speak of. `known`: messages with a span, their states and deliveries."""

    by_due: bool
    end: int
    known: Mapping[tuple[int, int], tuple[SpanState, int]] = {}
    next: DuePlace = START
    generation: int = 1
    letters_given: int = 0
    redriven: int = 0


def random_ranges(
    chance: random.Random, world: World, *, aim: Sequence[tuple[int, int]] = (), count: int = 3
) -> tuple[Range, ...]:
    """Up to `count` ranges, ascending and disjoint: most begin at one of `aim`, some lie behind the log."""
    ranges: list[Range] = []
    for _ in range(chance.randint(1, count)):
        due_us = chance.randrange(DUES) if world.by_due else 0
        place = (due_us, chance.randint(0, world.end))
        if aim and chance.random() < 0.8:
            place = chance.choice(aim)
        ranges.append(Range(*place, chance.choice((1, 1, 2, 3, 6))))
    kept: list[Range] = []
    for piece in sorted(ranges):
        if not kept or piece.begin >= kept[-1].end:
            kept.append(piece)
    return tuple(kept)


def _deliverable(chance: random.Random, world: World) -> list[tuple[int, int]]:
    """Messages that wait, and the next ones that nobody has seen."""
    free = (SpanState.WAITING, SpanState.IN_FLIGHT)
    places = [place for place, (state, _) in world.known.items() if state in free]
    return chance.sample(places, min(len(places), 3)) + [world.next] * 3


def random_operation(chance: random.Random, world: World) -> GroupOperation:
    """Mostly one that can happen."""
    kind = chance.choices(range(12), (3, 8, 6, 4, 4, 4, 1, 1, 4, 3, 1, 1))[0]
    if kind in (0, 6, 7, 10):
        return _random_place(chance, world, kind)
    delivery = chance.choice([number for _, number in world.known.values() if number] or [1])
    held = [place for place, (_, number) in world.known.items() if number == delivery]
    ranges = random_ranges(chance, world, aim=held)
    first = world.redriven + 1 if kind == 8 else world.letters_given // 2
    ordinal = chance.randint(first, max(first, world.letters_given + 1))
    match kind:
        case 1:
            passed = random_ranges(chance, world, count=2) if world.by_due and chance.random() < 0.3 else ()
            request = chance.choice((NOBODY, b"1" * 16, b"2" * 16))
            ranges = random_ranges(chance, world, aim=_deliverable(chance, world), count=2)
            return Deliver(chance.choice(CONSUMERS), request, chance.choice((10, 20)), ranges, passed)
        case 2:
            return Acknowledge(delivery, ranges)
        case 3:
            return Release(delivery, chance.randrange(5), ranges, chance.random() < 0.4)
        case 4:
            text = chance.choice((b"", "zäh".encode()))
            return Die(delivery, chance.choice(list(ReasonCode)), ranges, text, chance.choice(list(Fate)))
        case 5:
            return Lettered(ordinal)
        case 8:
            return Free(ordinal, ranges if chance.random() < 0.8 else ())
        case 9:
            stopped = [place for place, (state, _) in world.known.items() if state is SpanState.STOPPED]
            return Decide(chance.choice(list(StoppedAction)), random_ranges(chance, world, aim=stopped))
    return Lost(ranges)


def _random_place(chance: random.Random, world: World, kind: int) -> GroupOperation:
    """One that begins, moves or ends a group."""
    due_us = chance.randrange(DUES) if world.by_due else chance.choice((0, 0, 0, 0, 0, 0, 1))
    place = DuePlace(due_us, chance.randint(0, world.end + 1))
    match kind:
        case 0:
            return Begin((1, chance.randrange(3)), place, chance.random() < 0.2)
        case 6:
            return Seek(world.generation + chance.choice((0, 1, 1, 1)), place, chance.random() < 0.2)
        case 7:
            return Skip(chance.randint(0, world.end + 1), chance.randrange(4))
    return Drop((1, chance.randrange(4)))
