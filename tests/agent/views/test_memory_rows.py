"""Rows that no run has yet: beside a sorted list."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from shoal.agent.receive import DuePlace, Range
from shoal.agent.views import memory_rows
from shoal.agent.views.due_places import ranges_of, sorted_places
from shoal.agent.views.memory_rows import TimerMemory
from shoal.format.batch import Flag, Kind, LogIndex, Offset, Stamp, Term
from tests.agent.views.view_desk import random_dues, timer_batch


def stamp_of(offset: int, rows: int, append_us: int) -> Stamp:
    """Of an entry with so many records."""
    return Stamp(
        Kind.DATA, Flag.NONE, rows, Offset(offset), Term(1), Term(1), LogIndex(9), 0, 0, append_us, 0, None
    )


@pytest.mark.parametrize("seed", range(8))
def test_places_come_as_from_a_sorted_list(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With looks between, so that parts are joined again and again, and with the older rows dropped."""
    monkeypatch.setattr(memory_rows, "SETTLED_ROWS", 200)
    rng = random.Random(seed)
    memory, model = TimerMemory(), []
    offset = dropped = 0
    for step in range(150):
        dues = random_dues(rng) or [1]
        memory.take(stamp_of(offset, len(dues), step), timer_batch(dues))
        model += [DuePlace(max(due or 0, step), offset + number) for number, due in enumerate(dues)]
        offset += len(dues)
        if rng.random() < 0.05:
            dropped = rng.randrange(dropped, offset + 1)
            memory.drop_before(Offset(dropped))
            model = [place for place in model if place.offset >= dropped]
        if rng.random() < 0.2:
            memory.let_go()
        assert memory.rows == len(model)
        if rng.random() < 0.4:
            begin, end = sorted(rng.choice([*model, DuePlace(3, 0), DuePlace(900, 7)]) for _ in range(2))
            wanted = sorted(place for place in model if begin <= place < end)
            parts = memory.parts()
            assert sorted(place for part in parts for place in part.between(begin, end)) == wanted
            assert sum(part.count(begin, end) for part in parts) == len(wanted)
            assert memory.nearest(begin) == min((item for item in model if item >= begin), default=None)
            assert sum(map(len, parts)) == memory.rows


def test_a_row_takes_some_sixteen_bytes() -> None:
    """Ten batches of 50,000 far places: 8 MiB in Arrow's own count."""
    before = pa.total_allocated_bytes()
    memory = TimerMemory()
    for number in range(10):
        memory.take(stamp_of(50_000 * number, 50_000, 1), timer_batch(list(range(50_000))))
    memory.parts()
    assert memory.rows == 500_000
    assert pa.total_allocated_bytes() - before < 10 * 2**20


def test_entries_are_let_go_of_when_they_are_many_or_when_it_is_said() -> None:
    """Of large values, of which nothing is kept: twelve entries of 1 MiB are there for 4 MiB at most."""
    before, memory = pa.total_allocated_bytes(), TimerMemory()
    for number in range(12):
        stamp = stamp_of(8 * number, 8, 1)._replace(body_length=2**20)
        memory.take(stamp, timer_batch(list(range(8)), value_bytes=2**17))
        assert pa.total_allocated_bytes() - before < memory_rows.TAKEN_BYTES + 2**20
    memory.take(stamp_of(96, 8, 1), timer_batch(list(range(8)), value_bytes=2**17))
    memory.let_go()
    assert pa.total_allocated_bytes() - before < 2**20
    assert memory.rows == sum(map(len, memory.parts())) == 104


def test_neighbours_of_one_due_time_are_one_range() -> None:
    """Others are ranges of one, and a bound on ranges cuts."""
    places = [(5, 1), (5, 2), (5, 4), (6, 5), (6, 6), (6, 7)]
    assert ranges_of(places, 10) == [Range(5, 1, 2), Range(5, 4, 1), Range(6, 5, 3)]
    assert ranges_of(places, 2) == [Range(5, 1, 2), Range(5, 4, 1)]
    assert ranges_of([], 2) == []
    empty = sorted_places(pa.array([], pa.int64()), pa.array([], pa.int64()))
    assert (len(empty), empty.position(DuePlace(1, 1))) == (0, 0)
