"""Gathering single records: whole chunks, whatever interrupts, in the order in which they were put."""

from __future__ import annotations

import gc
import signal
import threading
import time
from types import FrameType

import pytest

from shoal.client.produce import accumulator as gathering
from shoal.client.produce.accumulator import Chunk, Gatherer
from shoal.client.produce.batcher import BatchingConfig
from shoal.client.produce.producer import batch_of
from shoal.errors import BufferFull, ClientClosed, ShoalError


def gather(**settings: int) -> tuple[Gatherer, list[None]]:
    news: list[None] = []
    return Gatherer("t", BatchingConfig(**settings), lambda: news.append(None)), news


def taken(gatherer: Gatherer) -> list[list[bytes]]:
    """The values of each chunk that is complete."""
    chunks = []
    while (chunk := gatherer.take()) is not None:
        chunks.append(chunk.to_batch().column("value").to_pylist())
    return chunks


def test_chunks_are_cut_by_rows_by_bytes_and_by_whole_batches() -> None:
    """News comes when one begins and when one is complete; the order is that of putting."""
    gatherer, news = gather(batch_rows_max=3, batch_bytes_max=1_000)
    for number in range(4):
        gatherer.put(b"%d" % number)
    assert (len(news), gatherer.sealed, gatherer.gathered_rows) == (3, 1, 4)
    gatherer.put(b"x" * 1_000)
    gatherer.put(b"after")
    gatherer.put_batches([batch_of([b"whole"]), batch_of([]), batch_of([b"second"])])
    gatherer.put_alone(b"alone")
    gatherer.put(b"last")
    assert taken(gatherer) == [
        [b"0", b"1", b"2"],
        [b"3", b"x" * 1_000],
        [b"after"],
        [b"whole"],
        [b"second"],
        [b"alone"],
    ]
    assert gatherer.gathered_rows == 1
    gatherer.seal()
    assert taken(gatherer) == [[b"last"]]


def test_a_chunk_is_due_one_linger_after_its_first_record() -> None:
    """`seal` with a time leaves what is not due yet."""
    gatherer, _ = gather(linger_ms=50)
    assert gatherer.due_ms() is None
    gatherer.put(b"a")
    due_ms = gatherer.due_ms()
    assert due_ms is not None
    gatherer.seal(before_ms=due_ms - 1)
    assert gatherer.sealed == 0
    gatherer.seal(before_ms=due_ms)
    assert (gatherer.sealed, gatherer.due_ms()) == (1, None)


def test_the_bound_holds_for_what_waits_and_for_what_was_taken() -> None:
    """Room is made by acknowledgement alone; `put` waits for it, or takes nothing."""
    gatherer, _ = gather(batch_rows_max=1, batch_bytes_max=100, buffered_bytes_max=100)
    gatherer.put(b"x" * 100)
    assert gatherer.full
    with pytest.raises(BufferFull, match="was not taken"):
        gatherer.put(b"b", timeout_seconds=0.01)
    with pytest.raises(BufferFull):
        gatherer.put_batches([batch_of([b"b"])], 0)
    assert taken(gatherer) == [[b"x" * 100]]
    gatherer.account(140)
    assert gatherer.full
    waiting = threading.Thread(target=gatherer.put, args=(b"c",))
    waiting.start()
    gatherer.account(0)
    waiting.join(60)
    assert taken(gatherer) == [[b"c"]]


def test_a_stop_wakes_those_who_wait() -> None:
    """They raise what it was stopped with, now and later; the first reason stays."""
    gatherer, _ = gather(batch_rows_max=1, batch_bytes_max=100, buffered_bytes_max=100)
    gatherer.put(b"x" * 100)
    raised: list[Exception] = []

    def put() -> None:
        try:
            gatherer.put(b"waits")
        except ClientClosed as error:
            raised.append(error)

    waiting = threading.Thread(target=put)
    waiting.start()
    time.sleep(0.02)
    gatherer.stop(ClientClosed("first"))
    gatherer.stop(ClientClosed("second"))
    waiting.join(60)
    assert [str(error) for error in raised] == ["first"]
    with pytest.raises(ClientClosed, match="first"):
        gatherer.put_alone(b"late")


def test_the_largest_record_fits_and_one_byte_more_does_not() -> None:
    """The agents' bound, to the byte."""
    gatherer, _ = gather()
    gatherer.put(b"x" * gathering.MAX_RECORD_BYTES)
    with pytest.raises(ShoalError, match="too-large: a record of 8388609 bytes"):
        gatherer.put(b"x" * gathering.MAX_RECORD_BYTES, key=b"k")
    gatherer.put(b"x" * (gathering.MAX_RECORD_BYTES - 6), key=b"k", headers={"ab": b"c", "d": b"e"})
    with pytest.raises(ShoalError, match="too-large: a record of 8388609 bytes"):
        gatherer.put(b"x" * (gathering.MAX_RECORD_BYTES - 5), key=b"k", headers={"ab": b"c", "d": b"e"})
    assert gatherer.gathered_rows == 2


def values_of(gatherer: Gatherer) -> list[bytes]:
    """The values of all complete chunks, each with its own key and headers."""
    values = []
    while (chunk := gatherer.take()) is not None:
        assert isinstance(chunk, Chunk)
        assert chunk.delivery.rows == chunk.rows
        batch = chunk.to_batch()
        heads = batch.column("headers").to_pylist()
        assert batch.column("key").equals(batch.column("value"))
        for value, head in zip(batch.column("value").to_pylist(), heads, strict=True):
            assert (head[0]["value"] if head else None) == (value if int(value) % 3 == 0 else None)
            values.append(value)
    return values


def test_an_interrupt_anywhere_leaves_whole_records() -> None:
    """As Ctrl-C in a notebook: a signal raises between two steps of `put`, a hundred times, and every record
    that is taken still has its own key and headers; those put without an interrupt are all there."""
    gatherer, _ = gather(batch_rows_max=7, linger_ms=0)
    certain: set[bytes] = set()
    seen: list[bytes] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGVTALRM, interrupt)
    interrupted = number = 0
    gc.disable()  # an interrupt in another library's callback of the collector would reach nobody
    try:
        for _ in range(100):
            try:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0.0001)  # fires at a tick of the processor's clock
                for _ in range(20_000):
                    number += 1
                    value = b"%d" % number
                    gatherer.put(value, value, headers={"n": value} if number % 3 == 0 else None)
                    certain.add(value)
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            except KeyboardInterrupt:
                interrupted += 1
                while gatherer.gathered_rows > 20_000:
                    seen += values_of(gatherer)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        gc.enable()
    assert interrupted > 50
    gatherer.seal()
    seen += values_of(gatherer)
    assert seen == sorted(set(seen), key=int)
    assert certain <= set(seen)
