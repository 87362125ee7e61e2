"""The idempotence table: what may append, what is a repetition, and that undoing is exact."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.producers import SEQUENCES_KEPT, KeptSequence, ProducerTable, ProducerTableError
from shoal.batch import LogIndex, Offset, ProducerStamp
from shoal.errors import ShoalError

A, B, C = (bytes([letter]) * 16 for letter in b"abc")


def fill(table: ProducerTable, *stamps: ProducerStamp, first: int = 1, time_us: int = 0) -> None:
    """Record stamps as entries first, first + 1, ... of ten records each."""
    for index, stamp in enumerate(stamps, first):
        table.record(
            stamp, base_offset=Offset(10 * index), count=10, index=LogIndex(index), append_time_us=time_us
        )


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
            table.check(stamp, consecutive=consecutive)
        assert refused.value.code == expected
        assert refused.value.definite
        return
    kept = table.check(stamp, consecutive=consecutive)
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
        assert ProducerTable().check(stamp, consecutive=consecutive) is None
    else:
        with pytest.raises(ShoalError, match="sequence-gap"):
            ProducerTable().check(stamp, consecutive=consecutive)


def test_only_the_last_sequences_are_kept() -> None:
    """The sixth last is no longer told from a gap; the fifth is."""
    table = ProducerTable()
    fill(table, *(ProducerStamp(A, 0, number) for number in range(8)))
    assert table.check(ProducerStamp(A, 0, 8 - SEQUENCES_KEPT)) is not None
    with pytest.raises(ShoalError):
        table.check(ProducerStamp(A, 0, 7 - SEQUENCES_KEPT))


def test_a_gap_tells_the_last_sequence() -> None:
    """Who sends one only after the one before was acknowledged knows that all up to there are stored."""
    table = ProducerTable()
    fill(table, *(ProducerStamp(A, 3, number) for number in range(9)))
    for sequence in (0, 10):
        with pytest.raises(ShoalError, match="sequence-gap") as refused:
            table.check(ProducerStamp(A, 3, sequence))
        assert refused.value.extra["last_sequence"] == 8


def test_the_table_is_bounded_and_forgets_the_longest_silent() -> None:
    """The producer that appended longest ago goes first, whatever its place at first."""
    table = ProducerTable(max_producers=2)
    fill(
        table, ProducerStamp(A, 0, 0), ProducerStamp(B, 0, 0), ProducerStamp(A, 0, 1), ProducerStamp(C, 0, 0)
    )
    assert {producer for producer, _ in table} == {A, C}


def test_silent_producers_expire_by_append_time() -> None:
    """Time is the entries' own: no clock is asked."""
    table = ProducerTable(expiry_us=100)
    fill(table, ProducerStamp(A, 0, 0), time_us=0)
    fill(table, ProducerStamp(B, 0, 0), first=2, time_us=100)
    assert len(table) == 2
    fill(table, ProducerStamp(B, 0, 1), first=3, time_us=101)
    assert {producer for producer, _ in table} == {B}


entries = st.lists(
    st.tuples(st.sampled_from([A, B, C]), st.integers(0, 2), st.integers(0, 9), st.integers(0, 60)),
    max_size=30,
)


@given(entries, st.integers(0, 30), st.integers(0, 30))
def test_undo_is_the_same_as_never(
    history: list[tuple[bytes, int, int, int]], settled: int, cut: int
) -> None:
    """Cutting the log and folding the rest anew give equal tables, order and all."""
    settled = min(settled, len(history))
    cut = min(max(cut, settled), len(history))
    whole, prefix = (ProducerTable(max_producers=2, expiry_us=100) for _ in range(2))
    time_us = 0
    for index, (producer, epoch, sequence, pause_us) in enumerate(history, 1):
        time_us += pause_us
        for table in (whole, prefix) if index <= cut else (whole,):
            table.record(
                ProducerStamp(producer, epoch, sequence),
                base_offset=Offset(index),
                count=1,
                index=LogIndex(index),
                append_time_us=time_us,
            )
    whole.settle(LogIndex(settled))
    whole.undo_from(LogIndex(cut + 1))
    assert whole.to_bytes() == prefix.to_bytes()


@given(entries)
def test_bytes_round_trip(history: list[tuple[bytes, int, int, int]]) -> None:
    """A checkpoint's table restores to itself."""
    table, restored = ProducerTable(), ProducerTable()
    fill(table, *(ProducerStamp(producer, epoch, sequence) for producer, epoch, sequence, _ in history))
    restored.restore(table.to_bytes())
    assert restored.to_bytes() == table.to_bytes()
    assert list(restored) == list(table)


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
