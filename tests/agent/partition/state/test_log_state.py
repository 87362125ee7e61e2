"""The fold of one log: numbers, undo, commit, checkpoints; and the queue of those who wait."""

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.partition.pending import Waiter, WaitQueue
from shoal.agent.partition.state.checkpoint import Checkpoint, FoldError
from shoal.agent.partition.state.log_state import ELAPSED_STEP_US, PartitionState, check_chain
from shoal.agent.submission import Appended
from shoal.errors import ShoalError
from shoal.format.batch import (
    DEFAULT_SCHEMA,
    Flag,
    Frame,
    Kind,
    LogIdentity,
    LogIndex,
    Offset,
    ProducerStamp,
    Term,
    control_frame,
    stamp_message,
)
from shoal.format.producer_table import GatheredRange, encode_producer_table
from shoal.replication.interfaces import Configuration, Replica, ReplicaId
from tests.agent.harness import message

IDENTITY = LogIdentity(b"c" * 16, b"t" * 16, 0)
BIRTH = Configuration.birth(("a" * 32, "b" * 32, "c" * 32))
A = b"a" * 16
BATCHES = [message(*("v" * rows)) for rows in (1, 2, 3)]


class Writer:
    """Stamps frames behind a state, as a leader does."""

    def __init__(self, state: PartitionState) -> None:
        self.state = state
        self.frames: list[Frame] = []
        self.step_us = 1

    def data(
        self, term: int = 1, rows: int = 1, producer: ProducerStamp | None = None, **options: object
    ) -> Frame:
        """Append a batch."""
        tail = self.state.tail
        frame = stamp_message(
            BATCHES[rows - 1],
            IDENTITY,
            base_offset=tail.end_offset,
            term=Term(term),
            previous_term=tail.last_term,
            index=LogIndex(tail.last_index + 1),
            append_time_us=tail.append_time_us + self.step_us,
            producer=producer,
            **options,  # type: ignore[arg-type]
        )
        return self._take(frame)

    def control(self, kind: Kind, payload: bytes = b"", term: int = 1, flags: Flag = Flag.NONE) -> Frame:
        """Append a control entry."""
        tail = self.state.tail
        frame = control_frame(
            DEFAULT_SCHEMA,
            IDENTITY,
            kind=kind,
            control=payload,
            base_offset=tail.end_offset,
            term=Term(term),
            previous_term=tail.last_term,
            index=LogIndex(tail.last_index + 1),
            append_time_us=tail.append_time_us + self.step_us,
            flags=flags,
        )
        return self._take(frame)

    def _take(self, frame: Frame) -> Frame:
        self.state.append(frame)
        self.frames.append(frame)
        return frame


def test_offsets_and_indices_advance_apart() -> None:
    """A control entry has an index and no offsets; the high watermark follows the commit, not the end."""
    state = PartitionState(BIRTH)
    writer = Writer(state)
    writer.control(Kind.CHECKPOINT, state.checkpoint().to_bytes(), flags=Flag.FIRST_OF_SEGMENT)
    writer.data(rows=3)
    writer.control(Kind.NOOP)
    writer.data(rows=2)
    assert (state.tail.last_index, state.tail.end_offset, state.high_watermark) == (4, 5, 0)
    assert state.commit(LogIndex(3))
    assert not state.commit(LogIndex(3))
    assert (state.committed.last_index, state.high_watermark) == (3, 3)
    assert [state.term_at(LogIndex(index)) for index in range(2, 6)] == [None, 1, 1, None]
    assert state.commit(LogIndex(99))
    assert state.high_watermark == 5


@pytest.mark.parametrize("wrong", ["index", "offset", "term"])
def test_a_frame_that_does_not_continue_is_refused(wrong: str) -> None:
    """Index, offset and previous term are each enough to refuse (safety 7)."""
    state = PartitionState(BIRTH)
    Writer(state).data()
    frame = stamp_message(
        BATCHES[0],
        IDENTITY,
        base_offset=Offset(2 if wrong == "offset" else 1),
        term=Term(1),
        previous_term=Term(0 if wrong == "term" else 1),
        index=LogIndex(3 if wrong == "index" else 2),
        append_time_us=0,
    )
    before = state.tail
    with pytest.raises(FoldError):
        state.append(frame)
    assert state.tail == before


def test_truncation_returns_configuration_producers_and_numbers() -> None:
    """Everything an uncommitted suffix changed is as before it."""
    state = PartitionState(BIRTH)
    writer = Writer(state)
    writer.data(producer=ProducerStamp(A, 0, 0))
    kept = state.checkpoint()
    bigger = Configuration(LogIndex(2), (*BIRTH.replicas, Replica(ReplicaId(1, 2), "d" * 32, learner=True)))
    writer.control(Kind.CONFIGURATION, bigger.to_bytes())
    writer.data(rows=2, producer=ProducerStamp(A, 0, 1))
    assert state.configuration == bigger
    assert state.checkpoint() != kept
    state.truncate(LogIndex(2))
    assert state.checkpoint() == kept
    assert state.configuration == BIRTH


def test_a_gathered_batch_records_each_range() -> None:
    """Each request of a gathered batch is remembered at its own offset."""
    state = PartitionState(BIRTH)
    writer = Writer(state)
    writer.data(rows=2)
    first, second = ProducerStamp(A, 0, 0), ProducerStamp(b"b" * 16, 4, 0)
    table = encode_producer_table([GatheredRange(first, 0, 1), GatheredRange(second, 1, 2)])
    writer.data(rows=3, control=table, flags=Flag.GATHERED)
    kept = state.check_producer(second, 2, consecutive=True)
    assert kept is not None
    assert (kept.base_offset, kept.rows, kept.entry) == (3, 2, 2)
    assert state.check_producer(first, 1, consecutive=True) is not None


@given(st.integers(0, 2**32), st.integers(1, 25))
def test_a_checkpoint_is_the_fold_of_the_log_before_it(seed: int, length: int) -> None:
    """Starting at a checkpoint in the middle gives the same state as folding from the first entry."""
    rng = random.Random(seed)
    state = PartitionState(BIRTH)
    writer = Writer(state)
    heads: list[int] = []
    for number in range(length):
        if rng.random() < 0.25:
            heads.append(number)
            writer.control(Kind.CHECKPOINT, state.checkpoint().to_bytes(), flags=Flag.FIRST_OF_SEGMENT)
        else:
            stamp = ProducerStamp(bytes([rng.randrange(1, 4)]) * 16, 0, number)
            writer.data(rows=rng.randrange(1, 4), producer=stamp if rng.random() < 0.7 else None)
    for head in heads:
        restored = PartitionState(BIRTH)
        restored.start_from(writer.frames[head])
        for frame in writer.frames[head + 1 :]:
            restored.append(frame)
        assert restored.checkpoint() == state.checkpoint()
        # And not only because a checkpoint leaves something out.
        assert restored.producers.to_bytes() == state.producers.to_bytes()
        assert restored.configuration == state.configuration
        assert restored.tail._replace(log_bytes=0) == state.tail._replace(log_bytes=0)


def test_a_log_that_begins_without_its_checkpoint_is_refused() -> None:
    """Only index 1 may begin without one."""
    state = PartitionState(BIRTH)
    writer = Writer(state)
    writer.data()
    second = writer.data()
    with pytest.raises(FoldError):
        PartitionState(BIRTH).start_from(second)


@given(st.binary(max_size=300), st.integers(0, 10_000), st.integers(0, 255))
def test_hostile_checkpoints_raise_one_error(data: bytes, position: int, value: int) -> None:
    """Garbage, mutations and truncations decode or raise FoldError."""
    state = PartitionState(BIRTH)
    Writer(state).data(producer=ProducerStamp(A, 0, 0))
    good = state.checkpoint().to_bytes()
    assert Checkpoint.from_bytes(good) == state.checkpoint()
    mutated = bytearray(good)
    mutated[position % len(good)] = value
    for hostile in (data, bytes(mutated), good[: position % len(good)]):
        try:
            Checkpoint.from_bytes(hostile)
        except FoldError:
            continue


def test_check_chain() -> None:
    """Frames of one request continue one another, in index, offset and term."""
    writer = Writer(PartitionState(BIRTH))
    frames = [writer.data(), writer.data(rows=2), writer.data(term=2)]
    check_chain(frames, LogIndex(1), Term(0))
    for wrong, first, term in (
        (frames, 2, 0),
        (frames, 1, 1),
        (frames[::2], 1, 0),
        (frames[::-1], 3, 1),
    ):
        with pytest.raises(FoldError):
            check_chain(wrong, LogIndex(first), Term(term))


# Who waits


class Answers:
    """Waiters by name, and what they heard."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.queue = WaitQueue()
        self.futures: dict[str, asyncio.Future[Appended]] = {}

    def add(self, name: str, index: int, deadline_ms: int = 1_000, synced_only: bool = False) -> None:
        """Somebody waits."""
        self.futures[name] = self.loop.create_future()
        result = Appended(Offset(index), 1)
        self.queue.add(Waiter(LogIndex(index), self.futures[name], result, deadline_ms, synced_only))

    def heard(self) -> dict[str, str]:
        """What each was told, of those who were told anything."""
        told = {}
        for name, future in self.futures.items():
            if future.done():
                error = future.exception()
                told[name] = error.code if isinstance(error, ShoalError) else "ok"
                assert not isinstance(error, ShoalError) or not error.definite
        return told


def test_waiters_hear_of_commit_sync_truncation_and_time() -> None:
    """Each outcome reaches exactly those it concerns, once, and none of the bad ones is definite."""
    answers = Answers()
    try:
        for name, index in (("one", 1), ("two", 2), ("three", 3), ("four", 4)):
            answers.add(name, index, deadline_ms=100 * index)
        answers.add("synced", 3, synced_only=True)
        answers.add("duplicate of two", 2, deadline_ms=50)
        assert answers.queue.deadline_ms == 50
        answers.queue.committed(LogIndex(1))
        assert answers.heard() == {"one": "ok"}
        answers.queue.synced(LogIndex(3))
        assert answers.heard() == {"one": "ok", "synced": "ok"}
        answers.queue.expire(49)
        assert len(answers.heard()) == 2
        answers.queue.expire(50)
        assert answers.heard()["duplicate of two"] == "timeout"
        assert answers.queue.deadline_ms == 200
        answers.queue.truncated(LogIndex(4))
        assert answers.heard()["four"] == "leadership-lost"
        answers.queue.committed(LogIndex(2))
        answers.queue.fail_all("leadership-lost", "stopped")
        heard = answers.heard()
        assert heard["two"] == "ok"
        assert heard["three"] == "leadership-lost"
        assert len(answers.queue) == 0
    finally:
        answers.loop.close()


def test_a_clock_that_is_wrong_for_one_entry_makes_no_producer_old() -> None:
    """By ten years, or all the time: as so many minutes as there were such entries it counts at most; and an
    idle log counts hardly any time."""
    state = PartitionState(BIRTH)
    writer = Writer(state)
    victim, year_us = ProducerStamp(A, 0, 0), 365 * 86_400 * 1_000_000
    writer.data(producer=victim)
    for number in range(10):
        before_us = state.tail.elapsed_us
        writer.step_us = year_us * (number % 3)
        writer.data(producer=ProducerStamp(b"%016d" % number, 0, 0))
        assert 0 <= state.tail.elapsed_us - before_us <= ELAPSED_STEP_US
    assert state.check_producer(victim, 1, consecutive=True) is not None


def test_a_checkpoint_without_elapsed_time_goes_on_by_append_times() -> None:
    """As logs have them that an earlier version wrote."""
    state = PartitionState(BIRTH)
    Writer(state).data(producer=ProducerStamp(A, 0, 0))
    checkpoint = state.checkpoint()
    data = checkpoint.to_bytes()
    older = b"SHCP\x01\x00" + data[6:40] + data[48:]
    assert Checkpoint.from_bytes(older) == checkpoint._replace(elapsed_us=checkpoint.append_time_us)
    with pytest.raises(FoldError):
        Checkpoint.from_bytes(b"SHCP\x04\x00" + data[6:])
