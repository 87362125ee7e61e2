"""When buffered records become requests: by tables for the rules, by Hypothesis for the invariants."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shoal.client.produce.batcher import (
    CATCH_UP_BURSTS,
    REQUESTS_IN_FLIGHT_MAX,
    Batcher,
    BatchingConfig,
    Pacer,
    Request,
    split,
)
from shoal.client.produce.producer import batch_of

CONFIG = BatchingConfig(linger_ms=10, batch_rows_max=5, batch_bytes_max=100, buffered_bytes_max=300)


def test_who_is_in_a_hurry_takes_those_before_along() -> None:
    """What was added with an earlier time is due then, with all that it must not overtake."""
    batcher: Batcher[str] = Batcher(BatchingConfig(linger_ms=100))
    batcher.add(0, "patient", 1, 10, 1_000)
    assert batcher.deadline() == 1_100
    batcher.add(0, "hurry", 1, 10, 900)
    assert batcher.deadline() == 1_000
    (request,) = batcher.take(1_000)
    assert request.items == ("patient", "hurry")
    batcher.add(0, "waits", 1, 10, 1_000)
    assert list(batcher.items()) == [(0, "patient"), (0, "hurry"), (0, "waits")]


def test_a_record_waits_for_company_until_its_linger_is_over() -> None:
    """Not before, not after, and the deadline says when."""
    batcher: Batcher[str] = Batcher(CONFIG)
    assert batcher.deadline() is None
    batcher.add(0, "a", 1, 10, now_ms=100)
    assert batcher.deadline() == 110
    assert batcher.take(109) == []
    assert batcher.take(110) == [Request(0, 0, ("a",), 1, 10)]


@pytest.mark.parametrize(("rows", "size_bytes"), [(5, 10), (1, 100)], ids=["rows", "bytes"])
def test_a_full_request_does_not_wait(rows: int, size_bytes: int) -> None:
    """Whichever bound is reached first."""
    batcher: Batcher[str] = Batcher(CONFIG)
    batcher.add(0, "a", rows, size_bytes, now_ms=100)
    assert [request.items for request in batcher.take(100)] == [("a",)]


def test_what_comes_while_a_request_is_in_flight_gathers_behind_it() -> None:
    """The slower the answers, the larger the requests; other partitions do not wait."""
    batcher: Batcher[str] = Batcher(CONFIG)
    batcher.add(0, "a", 1, 10, now_ms=0)
    (first,) = batcher.take(10)
    for item in "bcd":
        batcher.add(0, item, 1, 10, now_ms=20)
    batcher.written(first)
    assert batcher.take(1_000) == []
    assert batcher.deadline() is None
    batcher.add(1, "x", 1, 10, now_ms=20)
    assert [request.partition for request in batcher.take(1_000)] == [1]
    batcher.settle(first)
    assert batcher.take(1_000) == [Request(0, 1, ("b", "c", "d"), 3, 30)]


def test_a_full_request_follows_those_in_flight_once_they_have_left() -> None:
    """A bounded number of them, each behind the one before."""
    batcher: Batcher[str] = Batcher(CONFIG)
    for item in "abcde":
        batcher.add(0, item, 5, 50, now_ms=0)
    flights = []
    for number in range(REQUESTS_IN_FLIGHT_MAX):
        assert batcher.deadline() == 0
        (request,) = batcher.take(0)
        assert request.sequence == number
        assert batcher.take(0) == []
        assert batcher.deadline() is None
        batcher.written(request)
        flights.append(request)
    assert batcher.take(1_000) == []
    assert [batcher.is_oldest(request) for request in flights] == [True, False, False]
    batcher.settle(flights[1])  # one answered before its time
    assert batcher.is_oldest(flights[0])


def test_what_may_be_stored_already_goes_alone_under_its_sequence() -> None:
    """Nothing joins it, nothing follows it before it was answered."""
    batcher: Batcher[str] = Batcher(CONFIG)
    batcher.add(0, "again", 1, 10, now_ms=0, repeats=True)
    batcher.add(0, "next", 5, 10, now_ms=0)
    (request,) = batcher.take(20)
    assert request == Request(0, 0, ("again",), 1, 10, repeats=True)
    batcher.written(request)
    assert batcher.take(1_000) == []
    batcher.settle(request)
    assert [one.items for one in batcher.take(1_000)] == [("next",)]


def test_an_item_larger_than_a_request_goes_alone() -> None:
    """A single record may be larger than batch_bytes_max; it is never held back for that."""
    batcher: Batcher[str] = Batcher(CONFIG)
    batcher.add(0, "small", 1, 10, now_ms=0)
    batcher.add(0, "huge", 1, 5_000, now_ms=0)
    (small,) = batcher.take(0)
    assert small.items == ("small",)
    batcher.settle(small)
    assert [request.items for request in batcher.take(0)] == [("huge",)]


def test_expedite_ends_the_linger_of_what_is_there() -> None:
    """flush() does not wait for linger_ms."""
    batcher: Batcher[str] = Batcher(CONFIG)
    batcher.add(0, "a", 1, 10, now_ms=0)
    batcher.expedite()
    assert len(batcher.take(0)) == 1


def test_a_new_identity_numbers_from_zero() -> None:
    """The requests in flight become sequences 0 and 1, their successor 2."""
    batcher: Batcher[str] = Batcher(CONFIG)
    for _ in range(3):
        batcher.add(0, "a", 1, 10, now_ms=0)
        request = batcher.take(1_000)[0]
        batcher.settle(request)
    assert request.sequence == 2
    flights = []
    for item in "bcd":
        batcher.add(0, item, 5, 10, now_ms=0)
    for _ in range(2):
        flights += batcher.take(1_000)
        batcher.written(flights[-1])
    batcher.restart(0)
    assert [batcher.numbered(one).sequence for one in flights] == [0, 1]
    assert batcher.take(1_000)[0].sequence == 2


@pytest.mark.parametrize(
    "config",
    [
        BatchingConfig(linger_ms=-1),
        BatchingConfig(batch_rows_max=0),
        BatchingConfig(batch_bytes_max=0),
        BatchingConfig(batch_bytes_max=100, buffered_bytes_max=99),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(config: BatchingConfig) -> None:
    """At construction, not in mid-stream."""
    with pytest.raises(ValueError, match=r"must"):
        Batcher[str](config)


class BatcherMachine(RuleBasedStateMachine):
    """Any mixture of adds, answers and flushes: nothing is lost, doubled or reordered, and bounds hold."""

    def __init__(self) -> None:
        super().__init__()
        self.batcher: Batcher[int] = Batcher(CONFIG)
        self.now_ms = 0
        self.added: dict[int, list[int]] = {}
        self.answered: dict[int, list[int]] = {}
        self.in_flight: dict[int, list[Request[int]]] = {}
        self.sequences: dict[int, int] = {}
        self.next_item = 0

    @rule(partition=st.integers(0, 2), rows=st.integers(1, 5), size_bytes=st.integers(1, 120))
    def add(self, partition: int, rows: int, size_bytes: int) -> None:
        self.batcher.add(partition, self.next_item, rows, size_bytes, self.now_ms)
        self.added.setdefault(partition, []).append(self.next_item)
        self.next_item += 1

    @rule(step_ms=st.integers(0, 15))
    def take(self, step_ms: int) -> None:
        self.now_ms += step_ms
        deadline = self.batcher.deadline()
        requests = self.batcher.take(self.now_ms)
        assert bool(requests) == (deadline is not None and deadline <= self.now_ms)
        for request in requests:
            flights = self.in_flight.setdefault(request.partition, [])
            assert len(flights) < REQUESTS_IN_FLIGHT_MAX
            full = request.rows >= 5 or request.size_bytes >= 100
            assert not flights or full or self.waits_behind(request)
            assert request.sequence == self.sequences.get(request.partition, 0)
            assert len(request.items) == 1 or (request.rows <= 5 and request.size_bytes <= 100)
            self.sequences[request.partition] = request.sequence + 1
            flights.append(request)

    def waits_behind(self, request: Request[int]) -> bool:
        """Whether the request was cut where the next item would have been too much."""
        taken = sum(len(one.items) for one in self.in_flight.get(request.partition, []))
        done = len(self.answered.get(request.partition, []))
        return len(self.added[request.partition]) > done + taken + len(request.items)

    @precondition(lambda self: any(self.in_flight.values()))
    @rule(data=st.data())
    def written(self, data: st.DataObject) -> None:
        flights = data.draw(st.sampled_from([one for one in self.in_flight.values() if one]))
        self.batcher.written(data.draw(st.sampled_from(flights)))

    @precondition(lambda self: any(self.in_flight.values()))
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        flights = data.draw(st.sampled_from([one for one in self.in_flight.values() if one]))
        assert self.batcher.is_oldest(flights[0])
        request = flights.pop(0)
        self.batcher.settle(request)
        self.answered.setdefault(request.partition, []).extend(request.items)

    @precondition(lambda self: any(self.in_flight.values()))
    @rule(data=st.data())
    def restart(self, data: st.DataObject) -> None:
        partition = data.draw(st.sampled_from([one for one, flights in self.in_flight.items() if flights]))
        self.batcher.restart(partition)
        flights = [self.batcher.numbered(request) for request in self.in_flight[partition]]
        assert [request.sequence for request in flights] == list(range(len(flights)))
        self.in_flight[partition] = flights
        self.sequences[partition] = len(flights)

    @rule()
    def flush(self) -> None:
        self.batcher.expedite()

    @invariant()
    def nothing_is_lost_doubled_or_reordered(self) -> None:
        self.batcher.check_invariants()
        for partition, items in self.answered.items():
            assert items == self.added[partition][: len(items)]

    def teardown(self) -> None:
        while self.batcher.buffered_bytes:
            for partition, flights in self.in_flight.items():
                for request in flights:
                    self.batcher.settle(request)
                    self.answered.setdefault(partition, []).extend(request.items)
                flights.clear()
            self.take(1_000)
        assert self.answered == self.added
        assert self.batcher.buffered_bytes == 0


TestBatcher = BatcherMachine.TestCase


@given(
    sizes=st.lists(st.integers(0, 3_000), max_size=60),
    rows_max=st.integers(1, 20),
    bytes_max=st.integers(1, 4_000),
)
def test_split_keeps_every_row_within_the_bounds(sizes: list[int], rows_max: int, bytes_max: int) -> None:
    """Slices joined are the batch; each keeps to the bounds unless it is one row."""
    config = BatchingConfig(batch_rows_max=rows_max, batch_bytes_max=bytes_max, buffered_bytes_max=1 << 20)
    values = [b"x" * size for size in sizes]
    pieces = list(split(batch_of(values), config))
    assert [value for piece in pieces for value in piece.column("value").to_pylist()] == values
    for piece in pieces:
        assert 1 <= piece.num_rows <= rows_max
        assert piece.num_rows == 1 or piece.nbytes <= bytes_max


@given(
    rate=st.floats(0.5, 1e6),
    steps=st.lists(st.tuples(st.floats(0, 500), st.integers(0, 10_000)), max_size=50),
)
def test_the_pacer_never_exceeds_the_rate_by_more_than_its_catching_up(
    rate: float, steps: list[tuple[float, int]]
) -> None:
    """Whatever the calls and however late they come."""
    pacer = Pacer(rate, started_ms=0.0)
    now_ms, granted = 0.0, 0
    for step_ms, wanted in steps:
        now_ms += step_ms
        taken = pacer.take(wanted, now_ms)
        assert 0 <= taken <= wanted
        granted += taken
        assert granted <= now_ms * rate / 1_000 + 1e-6 * rate
    caught_up = 0
    while taken := pacer.take(10**9, now_ms + 60_000):
        caught_up += taken
    assert caught_up <= pacer.burst_rows * CATCH_UP_BURSTS


def test_the_pacer_grants_whole_gulps_or_nothing() -> None:
    """A loop that asks, sends and asks again must wait; single records would keep it busy for ever."""
    pacer = Pacer(20_000, started_ms=0.0)
    assert pacer.take(5_000, now_ms=49.0) == 0
    assert pacer.take(5_000, now_ms=50.0) == pacer.burst_rows == 1_000
    assert pacer.take(5_000, now_ms=50.0) == 0
    assert pacer.wait_ms(5_000) == pytest.approx(50.0)


def test_a_caller_that_waits_as_told_keeps_the_rate() -> None:
    """20,000 a second for ten seconds, with every wake-up a little late."""
    pacer = Pacer(20_000, started_ms=0.0)
    now_ms, left = 0.0, 200_000
    while left:
        taken = pacer.take(left, now_ms)
        left -= taken
        now_ms += 0.0 if taken else pacer.wait_ms(left) + 1.5
    assert now_ms == pytest.approx(10_000, rel=0.01)


@pytest.mark.parametrize("rate", [0, -1])
def test_a_rate_that_is_not_positive_is_refused(rate: float) -> None:
    """It would never send anything."""
    with pytest.raises(ValueError, match="positive"):
        Pacer(rate, started_ms=0.0)
