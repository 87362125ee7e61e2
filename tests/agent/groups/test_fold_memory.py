"""How much a full group takes, and how long it holds the loop."""

from __future__ import annotations

import struct
import time
import tracemalloc
from collections.abc import Callable, Sequence

from shoal.agent.groups.entry import Acknowledge, Begin, Deliver, encode_entry
from shoal.agent.groups.fold import MAX_FOLD_BYTES, GroupFold
from shoal.agent.groups.partition_group import MAX_SPANS, MAX_UNDONE_MESSAGES
from shoal.agent.groups.place import MessageSpan, SpanState
from shoal.agent.groups.requests import Undo
from shoal.agent.groups.spans import SPAN_BYTES, pack_spans
from shoal.agent.receive import DELIVERIES, Range
from shoal.format.batch import LogIndex
from tests.agent.groups.group_entries import KEYS, entry_stamp, stamp_of

KEY = KEYS[0]
MEMORY_BOUND_BYTES = 64 * 2**20
CHECKPOINT_BOUND_MS = 5.0
"""A checkpoint is made within one turn of the loop."""


def delivered(messages: int, each: int, *, settles: bool = True) -> GroupFold:
    """A group with so many messages in flight, by answers of `each` to 64 consumers."""
    fold = GroupFold()
    fold.fold(stamp_of(entry_stamp(1)), encode_entry({KEY: [Begin((1, 0))]}))
    for number in range(messages // each):
        stamp = entry_stamp(number + 2, messages, number)
        consumer = bytes([number % 64]) * 16
        deliver = Deliver(consumer, b"r" * 16, 30_000, (Range(0, number * each, each),))
        fold.fold(stamp_of(stamp), encode_entry({KEY: [deliver]}))
        if settles:
            fold.settle(LogIndex(stamp.index))
    return fold


def full_of(spans: Sequence[MessageSpan]) -> GroupFold:
    """A group with these spans, as a checkpoint brings them."""
    fold = GroupFold()
    fold.stage(KEY, [Begin((1, 0))], entry_stamp(1))
    fold.fold(stamp_of(entry_stamp(1)), fold.staged_entry())
    head = fold.to_bytes()
    table = pack_spans(spans)
    lengths = struct.pack("<III", len(table), 0, 0)
    fold.restore(head[: -len(lengths)] + lengths + table)
    return fold


def in_flight(first: int, count: int) -> MessageSpan:
    """Messages by a delivery of their own."""
    return MessageSpan(0, first, count, 9, DELIVERIES * (first + 1), 0, 5, 0, SpanState.IN_FLIGHT, 1)


def test_memory_of_what_is_in_flight() -> None:
    """A million messages, delivered by the hundred to 64 consumers."""
    tracemalloc.start()
    try:
        fold = delivered(MAX_UNDONE_MESSAGES, 100)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    group = fold.groups[KEY]
    assert group.spans.messages[SpanState.IN_FLIGHT] == MAX_UNDONE_MESSAGES
    assert group.spans.size == MAX_UNDONE_MESSAGES // 100
    assert used < MEMORY_BOUND_BYTES / 32, f"{used:,} bytes"
    assert fold.size_bytes < MAX_FOLD_BYTES


def test_memory_of_a_full_table() -> None:
    """As many spans as there may be, of one message each."""
    spans = [in_flight(number, 1) for number in range(MAX_SPANS)]
    tracemalloc.start()
    try:
        fold = full_of(spans)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert fold.groups[KEY].spans.size == MAX_SPANS
    assert used < MEMORY_BOUND_BYTES / 8, f"{used:,} bytes"
    assert fold.size_bytes < MAX_FOLD_BYTES


def test_memory_of_what_is_not_committed() -> None:
    """A core lets 4,096 entries be uncommitted: to undo one of a receive takes a kilobyte."""
    tracemalloc.start()
    try:
        fold = delivered(102_400, 100, settles=False)
        used, _ = tracemalloc.get_traced_memory()
        fold.settle(LogIndex(5_000))
        settled, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0 < used - settled < 1_024 * 1_500, f"{used - settled:,} bytes"


def cpu_ms(of: Callable[[], object]) -> float:
    """The least of several runs: other processes share the machine."""
    times = []
    for _ in range(9):
        begin = time.process_time_ns()
        of()
        times.append(time.process_time_ns() - begin)
    return min(times) / 1e6


def test_a_checkpoint_of_a_full_group() -> None:
    """Changed in many places, so that its chunks are of all sizes: to bytes within a turn."""
    fold = full_of([in_flight(3 * number, 3) for number in range(MAX_SPANS // 2)])
    group = fold.groups[KEY]
    for number in range(0, MAX_SPANS // 2, 2):
        single = Range(0, 3 * number + 1, 1)
        assert group.apply(Acknowledge(DELIVERIES * (3 * number + 1), (single,)), entry_stamp(9), [])
    assert group.spans.size == MAX_SPANS
    assert len(group.spans.to_bytes()) == MAX_SPANS * SPAN_BYTES
    assert (spent := cpu_ms(group.spans.to_bytes)) < CHECKPOINT_BOUND_MS, f"{spent:.2f} ms"


def test_an_operation_on_a_full_group() -> None:
    """Its cost is that of one chunk, not of the table: a twentieth of a checkpoint for each would be felt."""
    fold = full_of([in_flight(number, 1) for number in range(MAX_SPANS)])
    group = fold.groups[KEY]
    before = fold.to_bytes()

    def acknowledge_and_undo() -> None:
        for offset in range(1, MAX_SPANS, 600):
            journal: list[Undo] = []
            acknowledge = Acknowledge(DELIVERIES * (offset + 1), (Range(0, offset, 1),))
            assert group.apply(acknowledge, entry_stamp(9), journal)
            group.undo(journal)

    spent = cpu_ms(acknowledge_and_undo) / len(range(1, MAX_SPANS, 600))
    assert spent < 0.25, f"{spent:.3f} ms"
    assert fold.to_bytes() == before
    fold.check_invariants()
