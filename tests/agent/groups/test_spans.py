"""The packed table of spans: beside a table with one value per message, and under hostile bytes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.groups.place import OFFSETS_MAX, START, GroupWireError, MessageSpan, SpanState
from shoal.agent.groups.spans import (
    BEHIND_ALL,
    CHUNK_SPANS,
    SPAN_BYTES,
    SPAN_OFFSETS,
    SpanTable,
    pack_spans,
    unpack_spans,
)
from shoal.agent.receive import DuePlace, Range

Place = tuple[int, int]
EDGE = 3 * SPAN_OFFSETS - 15
"""Offsets of these tests lie around a multiple of SPAN_OFFSETS."""


def span(first: int, count: int = 1, *, due_us: int = 0, delivery: int = 1) -> MessageSpan:
    """Messages in flight by that delivery; 0: done."""
    if not delivery:
        return MessageSpan(due_us, first, count, 0, 0, 0, 0, 0, SpanState.DONE, 0)
    return MessageSpan(due_us, first, count, 9, delivery, 0, 5, 0, SpanState.IN_FLIGHT, 1)


def each(spans: list[MessageSpan]) -> dict[Place, tuple[object, ...]]:
    """One value per message."""
    return {
        (one.due_us, offset): tuple(one[3:])
        for one in spans
        for offset in range(one.first, one.first + one.count)
    }


def everything(table: SpanTable) -> list[MessageSpan]:
    """All spans, read one by one."""
    return list(table.from_place(START))


@st.composite
def pieces(draw: st.DrawFn) -> tuple[Range, list[MessageSpan]]:
    """A piece, and spans within it with gaps between."""
    due_us = draw(st.integers(0, 1))
    piece = Range(due_us, EDGE + draw(st.integers(0, 25)), draw(st.integers(1, 8)))
    spans = []
    at = piece.first
    for gap, count, delivery in draw(
        st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4), st.integers(0, 2)), max_size=4)
    ):
        at += gap
        if at + count > piece.end.offset:
            break
        spans.append(span(at, count, due_us=due_us, delivery=delivery))
        at += count
    return piece, spans


@given(st.lists(pieces(), max_size=25))
def test_it_is_as_a_table_of_messages(changes: list[tuple[Range, list[MessageSpan]]]) -> None:
    """After each replacement: the same messages, the same counts, as few spans as can be; and the inverse of
    each brings back the bytes of before."""
    table = SpanTable()
    messages: dict[Place, tuple[object, ...]] = {}
    history = []
    for piece, spans in changes:
        before = table.to_bytes()
        inside = {place for place in messages if piece.begin <= place < piece.end}
        removed = table.replace(piece, spans)
        assert each(removed) == {place: messages[place] for place in inside}
        history.append((piece, removed, before))
        messages = {place: value for place, value in messages.items() if place not in inside} | each(spans)
        assert each(everything(table)) == messages
        assert SpanTable.from_bytes(table.to_bytes()).to_bytes() == table.to_bytes()
        table.check_invariants()
    for piece, removed, before in reversed(history):
        table.replace(piece, removed)
        assert table.to_bytes() == before
        table.check_invariants()


@given(st.lists(pieces(), max_size=12), pieces())
def test_questions(changes: list[tuple[Range, list[MessageSpan]]], asked: tuple[Range, object]) -> None:
    """What stands at a place, in a piece, and from a place on."""
    table = SpanTable()
    for piece, spans in changes:
        table.replace(piece, spans)
    messages = each(everything(table))
    piece = asked[0]
    assert each(table.overlapping(piece)) == {
        place: value for place, value in messages.items() if piece.begin <= place < piece.end
    }
    found = table.at(piece.begin)
    assert (found is not None) == (piece.begin in messages)
    if found is not None:
        assert each([found])[piece.begin] == messages[piece.begin]
    assert list(table.from_place(piece.begin)) == [one for one in everything(table) if one.end > piece.begin]
    assert table.first() == next(iter(everything(table)), None)
    assert table.last() == next(reversed(everything(table)), None)
    assert sum(table.messages.values()) == len(messages)
    assert table.undone == sum(value[5] is not SpanState.DONE for value in messages.values())


def test_many_spans_fill_many_chunks() -> None:
    """Put in and taken out at random: thousands of spans, every chunk is cut and joined many times."""
    chance = random.Random(5)
    table = SpanTable()
    model: dict[int, int] = {}
    for step in range(12_000):
        grows = step < 8_000
        offset = 2 * chance.randrange(6_000)
        if grows:
            table.replace(Range(0, offset, 1), [span(offset, delivery=1 + offset % 7)])
            model[offset] = 1 + offset % 7
        else:
            piece = Range(0, offset, chance.choice((1, 1, 1, 40)))
            table.replace(piece, [])
            for gone in range(piece.first, piece.first + piece.count):
                model.pop(gone, None)
        if step % 1_000 == 0 or step == 8_000:
            table.check_invariants()
    assert {one.first: one.delivery for one in everything(table)} == model
    table.check_invariants()
    assert len(table._chunks) <= 1 + 6 * table.size // CHUNK_SPANS  # small ones joined their neighbours
    whole = table.to_bytes()
    removed = table.swap(START, BEHIND_ALL, b"")
    assert removed == whole
    assert (table.size, table.undone, table.to_bytes()) == (0, 0, b"")
    table.swap(START, BEHIND_ALL, removed)
    assert table.to_bytes() == whole


def test_appending_fills_chunks_well() -> None:
    """The way of a receive: each answer stands behind the ones before. A chunk is at least half full."""
    table = SpanTable()
    for number in range(20 * CHUNK_SPANS):
        table.replace(Range(0, 100 * number, 100), [span(100 * number, 100, delivery=1 + number)])
    assert len(table._chunks) <= 40
    table.check_invariants()


def test_neighbours_join_where_all_is_equal() -> None:
    """Another delivery, another due time, or a multiple of SPAN_OFFSETS keeps them apart."""
    table = SpanTable()
    table.replace(Range(0, 0, 10), [span(0, 4), span(4, 3), span(7, 3, delivery=2)])
    table.replace(Range(1, 10, 10), [span(10, 10, due_us=1, delivery=2)])
    assert everything(table) == [span(0, 7), span(7, 3, delivery=2), span(10, 10, due_us=1, delivery=2)]
    table.replace(Range(0, 7, 3), [span(7, 3)])
    assert table.first() == span(0, 10)
    wide = SpanTable()
    wide.replace(Range(0, SPAN_OFFSETS - 5, SPAN_OFFSETS + 10), [span(SPAN_OFFSETS - 5, SPAN_OFFSETS + 10)])
    assert [one.count for one in everything(wide)] == [5, SPAN_OFFSETS, 5]
    wide.check_invariants()


@pytest.mark.parametrize(
    "data",
    [
        b"\0" * SPAN_BYTES,
        pack_spans([span(3, 2)])[:-1],
        pack_spans([span(5), span(4)]),
        pack_spans([span(3, 2), span(4)]),
        pack_spans([span(3, 2), span(5)]),
        pack_spans([span(3, due_us=1), span(4)]),
        pack_spans([span(3)._replace(count=0)]),
        pack_spans([span(-1)]),
        pack_spans([span(OFFSETS_MAX - 1)]),
        pack_spans([span(3)._replace(state=6)]),  # type: ignore[arg-type]
        pack_spans([span(3, delivery=0)._replace(attempts=1)]),
        pack_spans([span(3)._replace(state=SpanState.DYING)]),
        pack_spans([span(SPAN_OFFSETS - 1, 2)]),
        pack_spans([span(3)._replace(until_us=-1)]),
        pack_spans([span(3)])[:53] + b"\1" + pack_spans([span(3)])[54:],
    ],
    ids=lambda data: f"{len(data)}",
)
def test_bytes_that_no_table_has(data: bytes) -> None:
    """Empty, out of order, overlapping, not merged, across a boundary, or with numbers that mean nothing."""
    with pytest.raises(GroupWireError):
        SpanTable.from_bytes(data)


def test_how_a_span_is_written() -> None:
    """56 bytes, little endian: a checkpoint of today is read for ever."""
    one = MessageSpan(1, 2, 3, 4, 5, 6, 7, 8, SpanState.STOPPED, 9)
    expected = "0100000000000000020000000000000003000000040000000500000000000000"
    expected += "060000000000000007000000000000000800000005000900"
    assert pack_spans([one]).hex() == expected
    assert unpack_spans(bytes.fromhex(expected)) == [one]
    assert (one.begin, one.end, one.piece) == (DuePlace(1, 2), DuePlace(1, 5), Range(1, 2, 3))
    assert one.last_us == 8_007
