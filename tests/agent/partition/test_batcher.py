"""What becomes one batch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.partition import batcher as gather
from shoal.agent.partition.batcher import GatherQueue, Queued, merge
from shoal.agent.submission import Appended, Submission
from shoal.errors import ShoalError
from shoal.format.batch import ProducerStamp
from tests.agent.harness import columns


class NoAnswer:
    """A future nobody looks at."""

    def done(self) -> bool:
        return False

    def set_result(self, result: Appended, /) -> None: ...

    def set_exception(self, exception: BaseException, /) -> None: ...


def queued(
    value: str, producer: int | None = None, sequence: int = 0, size: int = 10, rows: int = 1
) -> Queued:
    """Records with this value."""
    stamp = None if producer is None else ProducerStamp(bytes([producer + 1]) * 16, 0, sequence)
    records = columns(*[value] * rows)
    submission = Submission.of(records, producer=stamp, timeout_ms=0)
    return Queued(records, size, submission, 0, NoAnswer())


@given(st.lists(st.one_of(st.none(), st.integers(0, 3)), max_size=40))
def test_every_submission_is_taken_once_and_producers_keep_their_order(producers: list[int | None]) -> None:
    """No batch has a producer twice, nothing is lost, and each producer's submissions stay in order."""
    queue = GatherQueue()
    made = [queued(f"{number}", producer, number) for number, producer in enumerate(producers)]
    for item in made:
        queue.add(item)
    taken: list[Queued] = []
    while len(queue):
        batch = queue.take()
        assert batch
        stamps = [
            item.submission.producer.producer_id for item in batch if item.submission.producer is not None
        ]
        assert len(stamps) == len(set(stamps))
        taken += batch
    assert queue.size_bytes == 0
    assert sorted(map(id, taken)) == sorted(map(id, made))
    for producer in range(4):
        of_one = [
            made.index(item)
            for item in taken
            if item.submission.producer and item.submission.producer.producer_id[0] == producer + 1
        ]
        assert of_one == sorted(of_one)


def test_a_batch_is_cut_by_bytes_and_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bounds cut between submissions; one that is larger alone goes alone."""
    monkeypatch.setattr(gather, "MAX_BATCH_BYTES", 100)
    monkeypatch.setattr(gather, "MAX_BATCH_ROWS", 4)
    queue = GatherQueue()
    for item in (
        queued("a", size=60),
        queued("b", size=60),
        queued("c", size=500),
        queued("d", rows=3),
        queued("e", rows=2),
    ):
        queue.add(item)
    batches = []
    while len(queue):
        batches.append([item.columns.values[0] for item in queue.take()])
    assert batches == [[b"a"], [b"b"], [b"c"], [b"d"], [b"e"]]


def test_the_queue_refuses_beyond_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Overloaded is definite: nothing was queued; a first submission always fits."""
    monkeypatch.setattr(gather, "MAX_QUEUED_BYTES", 100)
    queue = GatherQueue()
    queue.add(queued("a", size=1_000))
    with pytest.raises(ShoalError, match="overloaded") as refused:
        queue.add(queued("b"))
    assert refused.value.definite
    assert len(queue) == 1
    assert [item.columns.values for item in queue.drain()] == [[b"a"]]
    assert queue.size_bytes == len(queue) == 0


def test_merge_lays_rows_behind_one_another() -> None:
    """Rows keep their order; only submissions with a producer have a range."""
    merged = merge([queued("a", rows=2), queued("b", 1), queued("c", 2, rows=3)])
    assert merged.columns.values == [b"a", b"a", b"b", b"c", b"c", b"c"]
    assert merged.first_rows == [0, 2, 3]
    assert [(item.producer.producer_id[0], item.first_row, item.rows) for item in merged.ranges] == [
        (2, 2, 1),
        (3, 3, 3),
    ]
