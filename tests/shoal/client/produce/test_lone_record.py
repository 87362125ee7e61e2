"""Records that go alone: as quickly as a bare request, and as safely as all others. Whatever fails on the
way, each is stored once, under its sequence, in order with what was sent before and after."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from aiohttp import web
from blocking_fixtures import QUICK, Interrupts, stored, wait_until
from fake_cluster import (
    PRODUCE_FAULTS,
    FakeCluster,
    Fault,
    reset_after_storing,
    reset_before_storing,
)
from hypothesis import given
from hypothesis import strategies as st

from shoal import AsyncClient, BatchingConfig, Client, ClientClosed, ClientConfig, ClientForked, ProduceFailed
from shoal.client.blocking import Producer
from shoal.client.http.wire import WholeAnswer
from shoal.client.produce.accumulator import Gatherer
from shoal.client.produce.delivery import Place
from shoal.client.produce.lone_record import is_definite, offset_of, row_stream
from shoal.format.batch import DEFAULT_SCHEMA

Proceed = Callable[[], Awaitable[web.Response]]


@given(st.integers(0, 2**62), st.none() | st.binary(max_size=50), st.none() | st.binary(max_size=50))
def test_a_row_is_what_pyarrow_would_have_made_of_it(
    timestamp_us: int, key: bytes | None, value: bytes | None
) -> None:
    """Whatever is null or empty; it is a valid Arrow stream of one batch."""
    stream = row_stream(timestamp_us, key, value)
    assert stream is not None
    with pa.ipc.open_stream(stream) as reader:
        assert reader.schema.equals(DEFAULT_SCHEMA)
        (batch,) = list(reader)
    batch.validate(full=True)
    columns = [batch.column(0).cast(pa.int64()), *batch.columns[1:]]
    assert [column.to_pylist() for column in columns] == [[timestamp_us], [key], [value], [None]]


@pytest.mark.parametrize(
    ("status", "body", "place", "definite"),
    [
        (200, b'{"count":1,"appended":[{"partition":3,"base_offset":7,"count":1}]}\n', (7, False), False),
        (
            200,
            b'{"count": 1, "appended": [{"partition": 3, "base_offset": 7, "count": 1}]}',
            (7, False),
            False,
        ),
        (
            200,
            b'{"count":1,"appended":[{"partition":3,"base_offset":7,"count":1}],"duplicate":true}',
            (7, True),
            False,
        ),
        (200, b'{"count":1,"appended":[{"partition":4,"base_offset":7,"count":1}]}\n', None, False),
        (200, b'{"count":2,"appended":[{"partition":3,"base_offset":7,"count":2}]}\n', None, False),
        (200, b"<html>", None, False),
        (200, b"[]", None, False),
        (200, b"[" * 100_000, None, False),
        (502, b"[" * 100_000, None, False),
        (421, b'{"code":"not-leader","definite":true}', None, True),
        (504, b'{"code":"timeout","definite":false}', None, False),
        (502, b"<html>", None, False),
        (500, b"[]", None, False),
    ],
)
def test_an_answer_is_read_as_it_is_meant(
    status: int, body: bytes, place: tuple[int, bool] | None, definite: bool
) -> None:
    """Anything but the place of this one record is none; only a problem document says that nothing is
    stored."""
    answer = WholeAnswer(status, b"", body, True)
    assert offset_of(answer, 3) == place
    assert is_definite(answer) == definite


def never(*arguments: object, **named: object) -> None:
    raise AssertionError("this record went the ordinary way")


def test_who_waits_for_each_record_needs_nobody_else(
    cluster: FakeCluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first, records with and without keys go past gatherer and event loop; they are counted, and
    what is gathered in between keeps its place."""
    cluster.create("t", 1)
    with client.producer("t") as producer:
        assert producer.append(b"0") == Place(0, 0)
        with monkeypatch.context() as patched:
            patched.setattr(Gatherer, "put_alone", never)
            assert producer.append("1") == Place(0, 1)
            assert producer.append(b"2", key="k") == Place(0, 2)
            assert producer.append(None, key=b"k") == Place(0, 3)
            assert producer.append(b"4", partition=0) == Place(0, 4)
        producer.send(b"5")
        assert producer.append(b"6") == Place(0, 6)
        assert producer.append(b"7", headers={"a": b"b"}) == Place(0, 7)
        assert producer.append(b"8") == Place(0, 8)
        statistics = producer.statistics
        assert (statistics.records_sent, statistics.records_acknowledged, statistics.duplicates) == (9, 9, 0)
        assert producer.unacknowledged == 0
    assert stored(cluster, "t") == [b"0", b"1", b"2", None, b"4", b"5", b"6", b"7", b"8"]
    assert len(cluster.topics["t"].partitions[0].producers) == 1


def test_keys_go_where_the_ordinary_way_sends_them(cluster: FakeCluster, client: Client) -> None:
    """And records without one to all partitions in turn."""
    cluster.create("t", 5)
    keys = [b"key-%d" % number for number in range(60)]
    with client.producer("t") as producer:
        for number in range(5):
            producer.append(b"first", partition=number)
        ordinary = [producer.append(b"a", key, headers={"a": b"b"}).partition for key in keys]
        assert [producer.append(b"a", key).partition for key in keys] == ordinary
        assert {producer.append(b"b").partition for _ in range(10)} == set(range(5))


@pytest.mark.parametrize("fault", PRODUCE_FAULTS.values(), ids=PRODUCE_FAULTS)
def test_whatever_fails_each_record_is_stored_once_in_order(
    cluster: FakeCluster, client: Client, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    """Another thread's records gather behind the one that fails: they never join it under its sequence, by
    which they would be taken for stored."""
    monkeypatch.setattr("shoal.client.produce.lone_record.PAUSE_SECONDS", 0.0)
    log = cluster.create("t", 1).partitions[0]
    rounds = 10
    with client.producer("t", batching=BatchingConfig(linger_ms=0)) as producer:
        assert producer.append(b"begin") == Place(0, 0)

        async def behind(request: web.Request, proceed: Proceed) -> web.Response:
            """The other thread's are put while this one is on its way."""
            await asyncio.to_thread(lambda: [producer.send(b"behind") for _ in range(3)])
            return await fault(request, proceed)

        for number in range(rounds):
            cluster.faults.append(behind)
            place = producer.append(b"%d" % number)
            assert place == Place(0, 1 + 4 * number)
            producer.flush()
        statistics = producer.statistics
        assert statistics.records_sent == statistics.records_acknowledged == 1 + 4 * rounds
        assert statistics.duplicates == (rounds if fault is reset_after_storing else 0)
    expected = [value for number in range(rounds) for value in (b"%d" % number, *[b"behind"] * 3)]
    assert log.values() == [b"begin", *expected]
    assert len(log.producers) == 1


def test_a_leader_that_is_silent_or_elsewhere_costs_no_record(cluster: FakeCluster, client: Client) -> None:
    """The one that led is stopped in the midst: the record goes on at the new leader; so does one whose
    partition moves while nobody looks."""
    log = cluster.create("t", 1).partitions[0]
    with client.producer("t") as producer:
        for number in range(3):
            assert producer.append(b"%d" % number).offset == number
        cluster.agents[log.leader].frozen = True
        log.leader, log.term = (log.leader + 1) % 3, log.term + 1
        assert producer.append(b"3").offset == 3
        log.leader, log.term = (log.leader + 1) % 3, log.term + 1
        time.sleep(0)
        assert producer.append(b"4").offset == 4
        for agent in cluster.agents:
            agent.frozen = False
    assert log.values() == [b"0", b"1", b"2", b"3", b"4"]


def test_a_producer_that_was_forgotten_goes_on(
    cluster: FakeCluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is stored, and that is certain: it gets another identity. Where it is not certain, the
    record is not stored under another identity, and who waits hears it."""
    monkeypatch.setattr("shoal.client.produce.lone_record.PAUSE_SECONDS", 0.0)
    log = cluster.create("t", 1).partitions[0]
    producer = client.producer("t")
    for number in range(3):
        producer.append(b"%d" % number)
    log.producers.clear()
    assert producer.append(b"3").offset == 3
    assert producer.append(b"4").offset == 4

    async def forget(request: web.Request, proceed: Proceed) -> web.Response:
        answer = await reset_after_storing(request, proceed)
        log.producers.clear()
        return answer

    cluster.faults.append(forget)
    with pytest.raises(ProduceFailed, match="may or may not be stored") as raised:
        producer.append(b"5")
    assert not raised.value.definite
    producer.abort()
    assert log.values() == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_threads_share_a_producer(cluster: FakeCluster, client: Client) -> None:
    """One goes alone, the others gather behind it; each gets the place of its own record."""
    log = cluster.create("t", 1).partitions[0]
    with client.producer("t") as producer, ThreadPoolExecutor(6) as pool:
        values = [b"%d" % number for number in range(300)]
        places = list(pool.map(producer.append, values))
    for value, place in zip(values, places, strict=True):
        assert place.offset is not None
        assert log.values()[place.offset] == value
    assert len(log.values()) == len(values)


def test_it_takes_no_longer_than_it_is_given(cluster: FakeCluster, client: Client) -> None:
    """The record may still come, once."""
    cluster.create("t", 1)
    with client.producer("t") as producer:
        producer.append(b"a")
        cluster.produce_delay_s = 30.0
        with pytest.raises(TimeoutError):
            producer.append(b"b", timeout_seconds=1.1)
        cluster.produce_delay_s = 0.0
        producer.append(b"c")
    assert stored(cluster, "t") == [b"a", b"b", b"c"]


def in_flight(
    cluster: FakeCluster, producer: Producer, value: bytes
) -> tuple[threading.Thread, list[object]]:
    """A thread that waits for its record, which the agent holds back; and what became of it."""
    outcome: list[object] = []

    def append() -> None:
        try:
            outcome.append(producer.append(value))
        except Exception as error:  # noqa: BLE001 - it is looked at
            outcome.append(error)

    before = len(cluster.requests)
    thread = threading.Thread(target=append)
    thread.start()
    wait_until(lambda: len(cluster.requests) > before)
    return thread, outcome


def test_flush_and_close_wait_for_it(cluster: FakeCluster) -> None:
    """What one thread waits for is delivered when another closes."""
    cluster.create("t", 1)
    client = Client(cluster.urls, QUICK)
    producer = client.producer("t")
    producer.append(b"a")
    cluster.produce_delay_s = 0.2
    thread, outcome = in_flight(cluster, producer, b"b")
    client.close()
    thread.join()
    assert outcome == [Place(0, 1)]
    assert stored(cluster, "t") == [b"a", b"b"]


def test_abort_ends_the_waiting(cluster: FakeCluster) -> None:
    """At once, and says so."""
    cluster.create("t", 1)
    client = Client(cluster.urls, ClientConfig(retry=QUICK.retry, attempt_timeout_ms=30_000))
    producer = client.producer("t")
    producer.append(b"a")
    cluster.produce_delay_s = 30.0
    thread, outcome = in_flight(cluster, producer, b"b")
    client.close(flush=False)
    thread.join(60)
    assert not thread.is_alive()
    assert isinstance(outcome[0], ClientClosed)
    cluster.produce_delay_s = 0.0


def test_a_child_says_that_it_is_one_and_the_parent_goes_on(cluster: FakeCluster, client: Client) -> None:
    """The child's copy of the connection harms nobody."""
    cluster.create("t", 1)
    with client.producer("t") as producer:
        for value in (b"a", b"b"):
            producer.append(value)
        child = os.fork()
        if child == 0:
            try:
                producer.append(b"child")
            except ClientForked:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert producer.append(b"c") == Place(0, 2)
    assert stored(cluster, "t") == [b"a", b"b", b"c"]


# An interrupt may come when a socket has been made, or taken out, and nobody holds it yet: the interpreter
# closes it then, and says so.
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_an_interrupt_loses_and_doubles_nothing(
    cluster: FakeCluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted a hundred times between any two of its steps, with answers lost now and then: what was
    acknowledged is stored, everything at most once, and in order."""
    monkeypatch.setattr("shoal.client.produce.lone_record.PAUSE_SECONDS", 0.0)
    monkeypatch.setattr("shoal.client.produce.lone_record.TAKEN_OVER_SECONDS", 0.2)
    cluster.create("t", 1)
    certain: list[bytes] = []
    interrupted = number = 0
    with Interrupts(0.003) as interrupts, client.producer("t") as producer:
        while interrupted < 100:
            number += 1
            value = b"%05d" % number
            if number % 7 == 0:
                cluster.faults.append(reset_after_storing)
            try:
                interrupts.arm()
                producer.append(value)
                certain.append(value)
                interrupts.disarm()
            except KeyboardInterrupt:
                interrupted += 1
        interrupts.disarm()
        producer.flush()
        assert producer.unacknowledged == 0
    values = stored(cluster, "t")
    assert values == sorted(set(values))
    assert set(certain) <= set(values)


def test_what_nobody_goes_on_with_is_taken_over(
    cluster: FakeCluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt within an interrupt leaves a record half-way, sent or not: whoever comes next has it sent,
    once; the one who had begun it, should it come back, changes nothing any more."""
    monkeypatch.setattr("shoal.client.produce.lone_record.TAKEN_OVER_SECONDS", 0.05)
    log = cluster.create("t", 1).partitions[0]
    with client.producer("t") as producer:
        producer.append(b"a")
        path = producer._inner.lone
        assert path is not None
        sent = path.begin(b"b", None)
        assert sent is not None
        answer = producer._inner.sockets.exchange(sent)
        producer.send(b"c")
        producer.flush()
        assert path.settle(sent, answer) is None
        assert sent.chunk is not None
        assert sent.chunk.delivery.place(0) == Place(0, 1)
        unsent = path.begin(b"d", None)
        assert unsent is not None
        producer.flush()
        assert producer._inner.sockets.exchange(unsent) is not None  # late: the same sequence, a duplicate
        path.hand_over(unsent)
        producer.append(b"e")
        assert producer.statistics.records_acknowledged == 5
    assert log.values() == [b"a", b"b", b"c", b"d", b"e"]


async def test_coroutines_have_the_same_way() -> None:
    """Faults, order and places as from threads; a cancelled append may have happened, once."""
    async with FakeCluster(3) as cluster, AsyncClient(cluster.urls, QUICK) as client:
        log = cluster.create("t", 1).partitions[0]
        async with client.producer("t") as producer:
            for number in range(5):
                assert await producer.append(b"%d" % number) == Place(0, number)
            cluster.faults.append(reset_after_storing)
            assert await producer.append(b"5", timeout_seconds=30) == Place(0, 5)
            cluster.faults.append(reset_before_storing)
            assert await producer.append(b"6", "key") == Place(0, 6)
            await producer.send(b"7")
            assert await producer.append(b"8", headers={"a": b"b"}) == Place(0, 8)
            cluster.produce_delay_s = 30.0
            waiting = asyncio.ensure_future(producer.append(b"9"))
            await asyncio.sleep(0.05)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            with pytest.raises(TimeoutError):
                await producer.append(b"10", timeout_seconds=0.1)
            cluster.produce_delay_s = 0.0
            assert await producer.append(b"11") == Place(0, 11)
            assert len(await asyncio.gather(*(producer.append(b"x") for _ in range(20)))) == 20
        assert log.values() == [*(b"%d" % number for number in range(12)), *[b"x"] * 20]
        assert len(log.producers) == 1
