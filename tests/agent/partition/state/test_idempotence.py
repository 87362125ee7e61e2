"""The idempotence table: what may append, what is a repetition, and that undoing is exact."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.partition.state.idempotence import (
    MAX_TABLE_BYTES,
    PRODUCER_BYTES,
    SEQUENCES_KEPT,
    KeptSequence,
    ProducerTable,
    ProducerTableError,
)
from shoal.errors import ShoalError
from shoal.format.arrow_stream import SEQUENCES_PER_LANE as LANE
from shoal.format.batch import LogIndex, Offset, ProducerStamp

A, B, C = (bytes([letter]) * 16 for letter in b"abc")
LANED = b"d" * 16  # appends in lanes


def fill(table: ProducerTable, *stamps: ProducerStamp, first: int = 1, time_us: int = 0) -> None:
    """Record stamps as entries first, first + 1, ... of ten records each."""
    for index, stamp in enumerate(stamps, first):
        table.record(
            stamp, base_offset=Offset(10 * index), count=10, index=LogIndex(index), elapsed_us=time_us
        )


def check(
    table: ProducerTable, stamp: ProducerStamp, *, consecutive: bool = True, rows: int = 10, at_us: int = 0
) -> KeptSequence | None:
    """Ask for ten records, as `fill` records them."""
    return table.check(stamp, rows=rows, elapsed_us=at_us, consecutive=consecutive)


@pytest.mark.parametrize(
    ("epoch", "sequence", "consecutive", "expected"),
    [
        (3, 8, True, "fresh"),
        (3, 7, True, 3),
        (3, 5, True, 1),
        (3, 4, True, "sequence-gap"),
        (3, 9, True, "sequence-gap"),
        (3, 9, False, "fresh"),
        (3, 4, False, "sequence-gap"),
        (2, 8, True, "producer-fenced"),
        (4, 0, True, "fresh"),
        (4, 1, True, "sequence-gap"),
        (4, 1, False, "fresh"),
    ],
)
def test_check(epoch: int, sequence: int, consecutive: bool, expected: object) -> None:
    """Every relation of a stamp to a producer that has written 5, 6, 7 in epoch 3."""
    table = ProducerTable()
    fill(table, *(ProducerStamp(A, 3, number) for number in (5, 6, 7)))
    stamp = ProducerStamp(A, epoch, sequence)
    if isinstance(expected, str) and expected != "fresh":
        with pytest.raises(ShoalError) as refused:
            check(table, stamp, consecutive=consecutive)
        assert refused.value.code == expected
        assert refused.value.definite
        return
    kept = check(table, stamp, consecutive=consecutive)
    assert kept == (
        None if expected == "fresh" else KeptSequence(sequence, Offset(10 * expected), 10, LogIndex(expected))
    )  # type: ignore[operator,arg-type]


@pytest.mark.parametrize(
    ("sequence", "consecutive", "allowed"), [(0, True, True), (1, True, False), (1, False, True)]
)
def test_an_unknown_producer_begins_at_zero(sequence: int, consecutive: bool, allowed: bool) -> None:
    """Above 0 it may be a late retry of something forgotten (safety 18)."""
    stamp = ProducerStamp(A, 0, sequence)
    if allowed:
        assert check(ProducerTable(), stamp, consecutive=consecutive) is None
    else:
        with pytest.raises(ShoalError, match="sequence-gap"):
            check(ProducerTable(), stamp, consecutive=consecutive)


def test_only_the_last_sequences_are_kept() -> None:
    """The sixth last is no longer told from a gap; the fifth is."""
    table = ProducerTable()
    fill(table, *(ProducerStamp(A, 0, number) for number in range(8)))
    assert check(table, ProducerStamp(A, 0, 8 - SEQUENCES_KEPT)) is not None
    with pytest.raises(ShoalError):
        check(table, ProducerStamp(A, 0, 7 - SEQUENCES_KEPT))


def test_a_gap_tells_the_last_sequence() -> None:
    """Who sends one only after the one before was acknowledged knows that all up to there are stored."""
    table = ProducerTable()
    fill(table, *(ProducerStamp(A, 3, number) for number in range(9)))
    for sequence in (0, 10):
        with pytest.raises(ShoalError, match="sequence-gap") as refused:
            check(table, ProducerStamp(A, 3, sequence))
        assert refused.value.extra["last_sequence"] == 8


def test_a_full_table_refuses_who_is_new_and_forgets_nobody_young() -> None:
    """Whoever is known goes on; once the longest silent is old enough, it makes room for one."""
    table = ProducerTable(max_bytes=2 * PRODUCER_BYTES, window_us=100, expiry_us=1_000)
    fill(table, ProducerStamp(A, 0, 0), ProducerStamp(B, 0, 0), ProducerStamp(A, 0, 1), time_us=50)
    new = ProducerStamp(C, 0, 0)
    for at_us in (50, 150):
        with pytest.raises(ShoalError, match="too-many-producers") as refused:
            check(table, new, at_us=at_us)
        assert refused.value.definite
        assert refused.value.retriable
        assert refused.value.status == 429
    assert check(table, ProducerStamp(A, 0, 2), at_us=150) is None
    assert check(table, ProducerStamp(B, 1, 0), at_us=150) is None
    fill(table, ProducerStamp(A, 0, 2), first=5, time_us=150)
    assert check(table, ProducerStamp(B, 0, 0), at_us=150) is not None
    assert check(table, new, at_us=151) is None
    fill(table, new, first=6, time_us=151)
    assert {producer for producer, _ in table} == {A, C}
    assert check(table, ProducerStamp(A, 0, 1), at_us=151) is not None


def test_the_promise_holds_for_as_many_producers_as_are_taken() -> None:
    """Twenty-four thousand, each appending once; every one of them may retry until the window has passed,
    and the checkpoint with all of them is as large as is said."""
    table = ProducerTable()
    ids = [number.to_bytes(16, "big") for number in range(1, MAX_TABLE_BYTES // PRODUCER_BYTES + 3)]
    taken = 0
    for producer in ids:
        stamp = ProducerStamp(producer, 0, 0)
        try:
            check(table, stamp, at_us=taken)
        except ShoalError:
            break
        fill(table, stamp, first=taken + 1, time_us=taken)
        taken += 1
    assert 24_000 < taken == -(-MAX_TABLE_BYTES // PRODUCER_BYTES)
    assert all(check(table, ProducerStamp(producer, 0, 0), at_us=taken) for producer in ids[:taken])
    assert len(table.to_bytes()) <= MAX_TABLE_BYTES
    restored = ProducerTable()
    restored.restore(table.to_bytes())
    assert restored.to_bytes() == table.to_bytes()
    assert restored.size_bytes == table.size_bytes


def lane(epoch: int, task: int, number: int = 0) -> ProducerStamp:
    """A chunk of a task."""
    return ProducerStamp(A, epoch, task * LANE + number, in_lanes=True)


def test_lanes_come_in_any_order_and_each_sequence_is_taken_once() -> None:
    """However many there are; within a lane one follows the other, and a newer epoch fences all of them."""
    table = ProducerTable()
    tasks = [7, 3, 2_000, 0, 5]
    fill(table, *(lane(4, task) for task in tasks), lane(4, 3, 1))
    for place, task in enumerate(tasks, 1):
        assert check(table, lane(4, task)) == KeptSequence(
            task * LANE, Offset(10 * place), 10, LogIndex(place)
        )
    table.settle(LogIndex(2))
    assert check(table, lane(4, 7)) == KeptSequence(7 * LANE, Offset(10), 10, LogIndex(0))
    assert check(table, lane(4, 1)) is None
    assert check(table, lane(4, 3, 2)) is None
    for gap in (lane(4, 3, 3), lane(4, 1, 1), lane(5, 1, 1), ProducerStamp(A, 4, 0)):
        with pytest.raises(ShoalError, match="sequence-gap"):
            check(table, gap)
    assert check(table, lane(5, 1)) is None
    fill(table, lane(5, 1), first=9)
    with pytest.raises(ShoalError, match="producer-fenced"):
        check(table, lane(4, 1))
    with pytest.raises(ShoalError, match="sequence-gap"):  # unknown: it may be what was forgotten
        check(ProducerTable(), lane(4, 1, 1))


def test_lanes_take_room_too() -> None:
    """One producer of many tasks is bounded as many producers are."""
    table = ProducerTable(max_bytes=1_000)
    task = 0
    while table.size_bytes < 1_000:
        assert check(table, lane(0, task)) is None
        fill(table, lane(0, task), first=task + 1)
        task += 1
    assert 40 < task < 50
    with pytest.raises(ShoalError, match="too-many-producers"):
        check(table, lane(0, task))
    assert check(table, lane(0, task - 1)) is not None
    assert check(table, lane(1, 0)) is None  # takes the place of all those
    fill(table, lane(1, 0), first=99)
    assert table.size_bytes < 100


def test_a_repetition_with_other_records_is_refused() -> None:
    """As far as their number says so."""
    table = ProducerTable()
    fill(table, ProducerStamp(B, 0, 0), lane(0, 5))
    for stamp in (ProducerStamp(B, 0, 0), lane(0, 5)):
        with pytest.raises(ShoalError, match="sequence-differs") as refused:
            check(table, stamp, rows=9)
        assert refused.value.extra["count"] == 10


def test_silent_producers_expire() -> None:
    """Time is the entries' own: no clock is asked."""
    table = ProducerTable(expiry_us=100, window_us=50)
    fill(table, ProducerStamp(A, 0, 0), time_us=0)
    fill(table, ProducerStamp(B, 0, 0), first=2, time_us=100)
    assert len(table) == 2
    fill(table, ProducerStamp(B, 0, 1), first=3, time_us=101)
    assert {producer for producer, _ in table} == {B}


entries = st.lists(
    st.tuples(st.sampled_from([A, B, C, LANED]), st.integers(0, 2), st.integers(0, 9), st.integers(0, 60)),
    max_size=30,
)


def _stamp(producer: bytes, epoch: int, sequence: int) -> ProducerStamp:
    return ProducerStamp(
        producer, epoch, sequence * LANE if producer == LANED else sequence, producer == LANED
    )


@given(entries, st.integers(0, 30), st.integers(0, 30))
def test_undo_is_the_same_as_never(
    history: list[tuple[bytes, int, int, int]], settled: int, cut: int
) -> None:
    """Cutting the log and folding the rest anew give equal tables, order and all."""
    settled = min(settled, len(history))
    cut = min(max(cut, settled), len(history))
    whole, prefix = (
        ProducerTable(max_bytes=2 * PRODUCER_BYTES, expiry_us=100, window_us=40) for _ in range(2)
    )
    time_us = 0
    for index, (producer, epoch, sequence, pause_us) in enumerate(history, 1):
        time_us += pause_us
        for table in (whole, prefix) if index <= cut else (whole,):
            table.record(
                _stamp(producer, epoch, sequence),
                base_offset=Offset(index),
                count=1,
                index=LogIndex(index),
                elapsed_us=time_us,
            )
    whole.settle(LogIndex(settled))
    whole.undo_from(LogIndex(cut + 1))
    assert whole.to_bytes() == prefix.to_bytes()
    assert whole.size_bytes == prefix.size_bytes


@given(entries)
def test_bytes_round_trip(history: list[tuple[bytes, int, int, int]]) -> None:
    """A checkpoint's table restores to itself."""
    table, restored = ProducerTable(), ProducerTable()
    fill(table, *(_stamp(producer, epoch, sequence) for producer, epoch, sequence, _ in history))
    restored.restore(table.to_bytes())
    assert restored.to_bytes() == table.to_bytes()
    assert restored.size_bytes == table.size_bytes


@given(st.binary(max_size=200), st.integers(0, 400), st.integers(0, 255))
def test_hostile_bytes_raise_one_error(data: bytes, position: int, value: int) -> None:
    """Garbage and mutated tables restore or raise ProducerTableError, and change nothing then."""
    table = ProducerTable()
    fill(table, ProducerStamp(A, 0, 0), ProducerStamp(B, 0, 0))
    mutated = bytearray(table.to_bytes())
    mutated[position % len(mutated)] = value
    for hostile in (data, bytes(mutated), table.to_bytes()[:-1], table.to_bytes() + b"x"):
        victim = ProducerTable()
        fill(victim, ProducerStamp(C, 0, 0))
        before = victim.to_bytes()
        try:
            victim.restore(hostile)
        except ProducerTableError:
            assert victim.to_bytes() == before
