"""The blocking client against agents in this process: the same truths as of the asyncio one, from threads."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from aiohttp import web
from blocking_fixtures import QUICK, fill, stored, wait_until
from fake_cluster import FakeCluster, refuse, reset_after_storing

from shoal import (
    BatchingConfig,
    BufferFull,
    Client,
    ClientClosed,
    ClientConfig,
    ClientError,
    ClientForked,
    ProduceFailed,
    ShoalError,
    Unreachable,
)
from shoal.client.http.routes import RetryPolicy
from shoal.client.produce.delivery import Place
from shoal.client.produce.producer import Delivered, batch_of

HELD_MAX = 100
"""Requests that wait for a word, with those that are sent again after their time."""
IMPATIENT = ClientConfig(retry=RetryPolicy(total_ms=10_000), attempt_timeout_ms=5_000, first_contact_ms=100)


def test_what_is_sent_is_read_back_with_everything_it_had(cluster: FakeCluster, client: Client) -> None:
    """Value, key, headers and time of single records, as records and as a table."""
    cluster.create("t", 3)
    moment = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    with client.producer("t") as producer:
        producer.send("héllo", "k", headers={"trace": "a", "none": None}, timestamp=moment, partition=2)
        producer.send(None, b"tombstone", partition=2)
        producer.send(b"plain", partition=2)
    with client.consumer("t") as consumer:
        first, tombstone, plain = list(consumer)
    assert (first.partition, first.offset, first.key, first.value) == (2, 0, b"k", "héllo".encode())
    assert first.timestamp == moment
    assert first.headers == (("trace", b"a"), ("none", None))
    assert (tombstone.offset, tombstone.key, tombstone.value) == (1, b"tombstone", None)
    assert (plain.offset, plain.key, plain.value, plain.headers) == (2, None, b"plain", ())
    table = next(iter(client.consumer("t").frames("arrow")))
    assert table.column_names == ["partition", "offset", "timestamp", "key", "value", "headers"]
    assert table.column("offset").to_pylist() == [0, 1, 2]


def test_records_from_many_threads_all_arrive_each_in_its_threads_order(
    cluster: FakeCluster, client: Client
) -> None:
    """Threads share the client; chunks are cut while others put."""
    cluster.create("t", 4)
    batching = BatchingConfig(linger_ms=1, batch_rows_max=64, batch_bytes_max=1 << 16)
    with client.producer("t", batching=batching) as producer:

        def work(name: int) -> None:
            for number in range(2_000):
                producer.send(b"%d:%d" % (name, number), b"%d" % name)

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    seen: dict[bytes, list[int]] = {}
    for value in stored(cluster, "t"):
        name, _, number = value.partition(b":")
        seen.setdefault(name, []).append(int(number))
    assert seen == {b"%d" % name: list(range(2_000)) for name in range(4)}


def test_client_send_creates_the_topic_and_flush_waits(cluster: FakeCluster, client: Client) -> None:
    """The shortest way to send: no producer in sight."""
    delivery = client.send("new", b"a", key=b"k")
    assert not delivery.done
    client.flush()
    assert delivery.done
    assert [tuple(part) for part in delivery.result()] == [(0, 0, 1)]
    assert stored(cluster, "new") == [b"a"]


def test_a_delivery_knows_where_each_row_of_a_batch_is(cluster: FakeCluster, client: Client) -> None:
    """A batch is spread over partitions and cut into several requests: every row's offset is right."""
    topic = cluster.create("t", 3)
    values = [b"%d" % number for number in range(300)]
    keys = [None if number % 5 == 0 else b"k%d" % (number % 17) for number in range(300)]
    batching = BatchingConfig(linger_ms=0, batch_rows_max=20)
    with client.producer("t", batching=batching) as producer:
        producer.send_batch(batch_of([b"before"], [b"x"]))
        delivery = producer.send_batch(pa.table({"value": values, "key": keys}))
        appended = delivery.result(10)
    assert sum(part.records for part in appended) == delivery.rows == 300
    assert len(appended) >= 15
    for row, value in enumerate(values):
        place = delivery.place(row)
        assert topic.partitions[place.partition].values()[place.offset] == value
    with pytest.raises(IndexError):
        delivery.place(300)


def test_a_frames_nanoseconds_are_cut_to_microseconds(cluster: FakeCluster, client: Client) -> None:
    """As pandas has them; text becomes its UTF-8, and what is missing is null."""
    cluster.create("t", 1)
    moments = pa.array([1_700_000_000_123_456_789], pa.timestamp("ns", "Europe/Berlin"))
    with client.producer("t") as producer:
        producer.send_batch(pa.table({"timestamp": moments, "value": ["ä"]}))
    (record,) = client.consumer("t")
    assert (record.timestamp_us, record.key, record.value) == (1_700_000_000_123_456, None, "ä".encode())


def test_append_returns_the_place_of_one_record(cluster: FakeCluster, client: Client) -> None:
    """At once, behind what was sent before, without waiting for a linger."""
    cluster.create("t", 2)
    slow = BatchingConfig(linger_ms=60_000)
    with client.producer("t", batching=slow, partition=1) as producer:
        producer.send(b"a")
        assert producer.append(b"b") == Place(1, 1)
        assert producer.append("c", timeout_seconds=5) == Place(1, 2)
    assert stored(cluster, "t") == [b"a", b"b", b"c"]


def test_a_callback_hears_of_every_request(cluster: FakeCluster, client: Client) -> None:
    """on_delivery gets the records themselves, with their offsets and whether they were there already."""
    cluster.create("t", 1)
    cluster.faults.append(reset_after_storing)
    heard: list[Delivered] = []
    batching = BatchingConfig(linger_ms=0, batch_rows_max=10)
    with client.producer("t", batching=batching, on_delivery=heard.append) as producer:
        producer.send_batch(batch_of([b"%d" % number for number in range(30)]))
    assert [(one.partition, one.base_offset, one.records, one.duplicate) for one in heard] == [
        (0, 0, 10, True),
        (0, 10, 10, False),
        (0, 20, 10, False),
    ]
    assert heard[1].batch.column("value").to_pylist()[0] == b"10"
    assert stored(cluster, "t") == [b"%d" % number for number in range(30)]


def test_a_failing_callback_is_heard_of(cluster: FakeCluster, client: Client) -> None:
    """It is neither swallowed nor does it hang whoever waits."""
    cluster.create("t", 1)

    def broken(delivered: Delivered) -> None:
        client.topics()

    with client.producer("t", on_delivery=broken) as producer:
        producer.append(b"a")
        with pytest.raises(ClientError, match="must not wait"):
            producer.flush()
        producer.abort()


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_batches_are_compressed_on_request(cluster: FakeCluster, client: Client, compression: str) -> None:
    """What is stored is what was sent, and smaller on the wire."""
    cluster.create("t", 1)
    with client.producer("t", compression=compression) as producer:  # type: ignore[arg-type]
        producer.send_batch(batch_of([b"x" * 1_000] * 100))
    assert stored(cluster, "t") == [b"x" * 1_000] * 100
    assert max(cluster.body_sizes) < 10_000


def test_a_full_buffer_blocks_and_then_says_so(cluster: FakeCluster, client: Client) -> None:
    """Backpressure: send waits; with a timeout it raises, and what it refused is not stored."""
    cluster.create("t", 1)
    go_on = threading.Event()

    async def held(request: web.Request, proceed: Callable[[], Awaitable[web.Response]]) -> web.Response:
        while not go_on.is_set():
            await asyncio.sleep(0.01)
        return await proceed()

    cluster.faults.extend([held] * HELD_MAX)
    batching = BatchingConfig(
        linger_ms=0, batch_rows_max=50, batch_bytes_max=10_000, buffered_bytes_max=10_000
    )
    taken = 0
    with client.producer("t", batching=batching) as producer:

        def send_on() -> None:
            nonlocal taken
            while taken < 10_000:
                producer.send(b"x" * 100, timeout_seconds=0.01)
                taken += 1

        with pytest.raises(BufferFull, match="was not taken"):
            send_on()
        assert 0 < taken < 200
        go_on.set()
        producer.send(b"last")
    assert stored(cluster, "t") == [b"x" * 100] * taken + [b"last"]


def bad_requests() -> list[tuple[str, Callable[..., object], str]]:
    big = b"x" * (9 << 20)
    return [
        ("number", lambda p: p.send(7), "bytes, text or None, not int"),
        ("key", lambda p: p.send(b"a", key=1.5), "a key is bytes"),
        ("large", lambda p: p.send(big), "too-large"),
        ("large row", lambda p: p.send_batch(batch_of([big])), "too-large"),
        ("partition", lambda p: p.send(b"a", partition=7), "no partition 7"),
        ("negative", lambda p: p.send(b"a", partition=-1), "number from 0 on"),
        ("header", lambda p: p.send(b"a", headers=["x"]), "headers are pairs"),
        ("zone", lambda p: p.send(b"a", timestamp=datetime(2026, 1, 1)), "no time zone"),  # noqa: DTZ001
        ("time", lambda p: p.send(b"a", timestamp="now"), "a datetime or microseconds"),
        ("surrogate", lambda p: p.send("\ud800"), "no text"),
        ("column", lambda p: p.send_batch(pa.table({"value": ["a"], "colour": ["b"]})), "'colour'"),
        ("no value", lambda p: p.send_batch(pa.table({"key": ["a"]})), "has no 'value'"),
        ("type", lambda p: p.send_batch(pa.table({"value": [{"a": 1}]})), "column 'value'"),
        (
            "naive",
            lambda p: p.send_batch(
                pa.table({"value": ["a"], "timestamp": pa.array([1], pa.timestamp("ns"))})
            ),
            "has no time zone",
        ),
        ("list", lambda p: p.send_batch([b"a"]), "not list"),
        (
            "null time",
            lambda p: p.send_batch(
                pa.table({"value": ["a"], "timestamp": pa.nulls(1, pa.timestamp("us", "UTC"))})
            ),
            "timestamp is null",
        ),
    ]


@pytest.mark.parametrize(("name", "send", "words"), bad_requests(), ids=[row[0] for row in bad_requests()])
def test_bad_input_is_refused_at_once_and_harms_nothing(
    cluster: FakeCluster, client: Client, name: str, send: Callable[..., object], words: str
) -> None:
    """One clear error each, at the call; nothing of it is stored, and the producer goes on."""
    cluster.create("t", 2)
    with client.producer("t") as producer:
        with pytest.raises(ShoalError, match=words):
            send(producer)
        producer.send(b"good")
    assert stored(cluster, "t") == [b"good"]


def test_nobody_home_wrong_urls_and_unknown_topics_are_clear(cluster: FakeCluster) -> None:
    """Each says what is wrong, and where."""
    with (
        Client("http://127.0.0.1:1", IMPATIENT) as client,
        pytest.raises(Unreachable, match=r"127.0.0.1:1 cannot"),
    ):
        client.topics()
    for wrong in ("ftp://127.0.0.1:7070", "http://", [], "http://:7070", "http://127.0.0.1:7070?a=b"):
        with pytest.raises(ValueError, match=r"for example http|is not the URL of an agent"):
            Client(wrong)
    for wrong in ("unix:http.sock", "unix:/run/http.sock", "unix://http.sock"):
        with pytest.raises(ValueError, match=r"which is like unix:///run/shoal/http\.sock"):
            Client(wrong)
    cluster.auto_create_topics = False
    with Client(",".join(cluster.urls), QUICK) as client:
        with pytest.raises(ShoalError, match="there is no topic 'nope'"):
            client.send("nope", b"a")
        with pytest.raises(ShoalError, match="there is no topic 'nope'"):
            client.consumer("nope")
        cluster.create("t", 2)
        with pytest.raises(ShoalError, match="no partition 5"):
            client.consumer("t", partitions=[0, 5])


def test_a_closed_client_says_that_it_is(cluster: FakeCluster) -> None:
    """Its producers and consumers too; closing twice is fine."""
    cluster.create("t", 1)
    client = Client(cluster.urls, QUICK)
    producer, consumer = client.producer("t"), client.consumer("t", follow=True)
    producer.close()
    with pytest.raises(ClientClosed):
        producer.send(b"a")
    consumer.close()
    with pytest.raises(ClientClosed):
        consumer.poll()
    client.close()
    client.close()
    for use in (client.topics, lambda: client.send("t", b"a"), lambda: client.producer("t")):
        with pytest.raises(ClientClosed):
            use()
    assert "closed" in repr(client)
    assert stored(cluster, "t") == []


def test_a_failure_is_raised_at_the_next_send_and_gives_the_records_back(
    cluster: FakeCluster, client: Client
) -> None:
    """Nothing is lost: what was not stored can be taken out of the producer again."""
    cluster.create("t", 1)
    cluster.faults.extend([refuse("too-large")])
    batching = BatchingConfig(linger_ms=0, batch_rows_max=10)
    producer = client.producer("t", batching=batching)
    delivery = producer.send_batch(batch_of([b"%d" % number for number in range(25)]))
    with pytest.raises(ProduceFailed, match="is not stored"):
        delivery.result(5)
    with pytest.raises(ProduceFailed):
        producer.send(b"later")
    with pytest.raises(ProduceFailed):
        producer.close()
    values = [value for _, batch in producer.undelivered() for value in batch.column("value").to_pylist()]
    assert values == [b"%d" % number for number in range(25)]
    assert stored(cluster, "t") == []


def test_client_send_begins_anew_after_a_failure_was_told(cluster: FakeCluster, client: Client) -> None:
    """A notebook goes on with its client; the error has what was not delivered."""
    cluster.create("t", 1)
    cluster.faults.append(refuse("too-large"))
    client.send("t", b"refused", key=b"k")
    with pytest.raises(ProduceFailed) as failed:
        client.flush()
    assert [(p, batch.column("value").to_pylist()) for p, batch in failed.value.undelivered] == [
        (0, [b"refused"])
    ]
    client.send("t", b"later")
    client.flush()
    assert stored(cluster, "t") == [b"later"]


def test_a_topic_that_is_deleted_is_reported_and_nothing_hangs(cluster: FakeCluster) -> None:
    """When retries are over: until then an agent might only not know it yet."""
    cluster.create("t", 1)
    with Client(cluster.urls, ClientConfig(retry=RetryPolicy(total_ms=300))) as client:
        producer = client.producer("t")
        producer.append(b"a")
        del cluster.topics["t"]
        with pytest.raises(ProduceFailed, match="is not stored: unknown-topic"):
            producer.append(b"b")
        producer.abort()


def test_leaving_by_an_exception_does_not_wait(cluster: FakeCluster, client: Client) -> None:
    """The user's own error comes through at once, whatever is in flight."""
    cluster.create("t", 1)
    cluster.produce_delay_s = 30.0
    started = time.monotonic()

    def interrupted() -> None:
        with client.producer("t") as producer:
            producer.send(b"a")
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        interrupted()
    assert time.monotonic() - started < 20


def test_a_running_event_loop_is_not_disturbed(cluster: FakeCluster) -> None:
    """As in a notebook: the blocking client is used inside a coroutine."""
    cluster.create("t", 1)

    async def cell() -> list[bytes | None]:
        with Client(cluster.urls, QUICK) as client:
            client.send("t", b"a")
            client.flush()
            values = [record.value for record in client.consumer("t")]
        await asyncio.sleep(0)
        return values

    assert asyncio.run(cell()) == [b"a"]


def test_after_a_fork_the_child_is_told_and_the_parent_goes_on(cluster: FakeCluster, client: Client) -> None:
    """Everything opened before raises ClientForked in the child, even with the producer's lock held."""
    cluster.create("t", 1)
    producer, consumer = client.producer("t"), client.consumer("t", follow=True)
    uses = [
        lambda: producer.send(b"child"),
        lambda: client.send("t", b"child"),
        client.topics,
        consumer.poll,
        producer.flush,
    ]
    with producer.gatherer.lock:  # held by a thread that the child does not have
        child = os.fork()
    if child == 0:
        told = 0
        for use in uses:
            try:
                use()
            except ClientForked:
                told += 1
        client.close()
        os._exit(told)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == len(uses)
    producer.append(b"parent")
    assert stored(cluster, "t") == [b"parent"]


def test_a_script_that_ends_without_closing_loses_nothing(cluster: FakeCluster) -> None:
    """Open clients flush at the interpreter's end, silently."""
    cluster.create("t", 1)
    script = f"import shoal; client = shoal.Client({cluster.urls[0]!r}); client.send('t', b'last words')"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=200, check=False)
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert stored(cluster, "t") == [b"last words"]


def test_a_client_that_is_dropped_says_so_and_delivers(cluster: FakeCluster) -> None:
    """As soon as nobody has the client nor anything made by it; its thread ends."""
    cluster.create("t", 1)
    threads = threading.active_count()
    producer = Client(cluster.urls, QUICK).producer("t", batching=BatchingConfig(linger_ms=60_000))
    gc.collect()
    producer.send(b"kept by its producer")
    with pytest.warns(ResourceWarning, match=r"without close\(\)"):
        del producer
    wait_until(lambda: threading.active_count() == threads)
    assert stored(cluster, "t") == [b"kept by its producer"]


def test_a_script_that_drops_its_client_loses_nothing(cluster: FakeCluster) -> None:
    """Its end waits for what is still on its way."""
    cluster.create("t", 1)
    cluster.produce_delay_s = 0.3
    script = f"import shoal; shoal.Client({cluster.urls[0]!r}).send('t', b'last words')"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=200, check=False)
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert stored(cluster, "t") == [b"last words"]


def test_what_is_taken_while_it_closes_is_stored(cluster: FakeCluster) -> None:
    """Threads that send while another closes are refused from some record on, and every one before is
    there."""
    cluster.create("t", 2)
    cluster.produce_delay_s = 0.05
    for _ in range(5):
        client = Client(cluster.urls, QUICK)
        taken: list[list[bytes]] = [[] for _ in range(4)]

        def send(client: Client, name: int, mine: list[bytes]) -> None:
            with contextlib.suppress(ClientClosed):
                while True:
                    value = b"%d-%d-%d" % (id(mine), name, len(mine))
                    client.send("t", value)
                    mine.append(value)
                    time.sleep(0.0002)

        threads = [threading.Thread(target=send, args=(client, *pair)) for pair in enumerate(taken)]
        for thread in threads:
            thread.start()
        wait_until(lambda taken=taken: all(len(mine) > 20 for mine in taken))
        client.close()
        for thread in threads:
            thread.join()
        assert {value for mine in taken for value in mine} <= set(stored(cluster, "t"))


def test_flush_ends_after_its_time_and_gives_nothing_up(cluster: FakeCluster, client: Client) -> None:
    """TimeoutError says how many records wait; a second flush sees them stored."""
    cluster.create("t", 1)
    cluster.produce_delay_s = 30.0
    client.send("t", b"a")
    with pytest.raises(TimeoutError, match=r"t: 1 records are not acknowledged after 0\.05 s"):
        client.flush(timeout_seconds=0.05)
    cluster.produce_delay_s = 0.0
    client.flush(timeout_seconds=60)
    producer = client.producer("t")
    cluster.produce_delay_s = 30.0
    producer.send(b"b")
    with pytest.raises(TimeoutError):
        producer.flush(timeout_seconds=0.05)
    cluster.produce_delay_s = 0.0
    producer.flush()
    assert stored(cluster, "t") == [b"a", b"b"]


def test_pickling_says_what_to_do_instead(cluster: FakeCluster, client: Client) -> None:
    """As multiprocessing and Spark do with what a function refers to; copying is refused alike."""
    cluster.create("t", 1)
    for thing in (client, client.producer("t"), client.consumer("t")):
        for carry in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(
                TypeError, match=f"a {type(thing).__name__} cannot be pickled .* open another"
            ):
                carry(thing)


def test_objects_show_what_they_are(cluster: FakeCluster, client: Client) -> None:
    """In a notebook: which cluster, which topic, how far."""
    fill(cluster, "t", 2, 10)
    producer, consumer = client.producer("t"), client.consumer("t")
    assert cluster.urls[0] in repr(client)
    assert "'t'" in repr(producer)
    assert "0 unacknowledged" in repr(producer)
    assert repr(consumer) == "<Consumer of 't', open, at 0:0, 1:0>"
    delivery = client.send("t", b"a")
    assert "gathering" in repr(delivery)
    client.flush()
    assert repr(delivery) == "<Delivery of 1 records: all acknowledged>"


# --- consuming


def test_all_ways_of_reading_give_the_same_records(cluster: FakeCluster, client: Client) -> None:
    """Records, chunks, batches and frames."""
    fill(cluster, "t", 3, 40)
    expected = sorted(stored(cluster, "t"))
    assert sorted(record.value for record in client.consumer("t")) == expected
    assert (
        sorted(v for b in client.consumer("t").batches() for v in b.column("value").to_pylist()) == expected
    )
    seen = []
    for found in client.consumer("t", max_bytes=1).chunks():
        assert found.batch.column("value")[0].as_py() == b"%06d" % (
            found.partition * 1_000 + found.base_offset
        )
        seen += found.batch.column("value").to_pylist()
    assert sorted(seen) == expected
    tables = list(client.consumer("t", max_bytes=1).frames("arrow", rows=50))
    assert [table.num_rows >= 50 for table in tables[:-1]] == [True] * (len(tables) - 1)
    assert sorted(v for table in tables for v in table.column("value").to_pylist()) == expected


@pytest.mark.parametrize(
    ("start", "positions"),
    [
        ("earliest", {0: 0, 1: 0}),
        ("latest", {0: 40, 1: 40}),
        ("-3", {0: 37, 1: 37}),
        ({0: 12}, {0: 12}),
        ({0: "latest", 1: "-1"}, {0: 40, 1: 39}),
        ({1: "@2020-01-01T00:00:00Z", 0: 5}, {0: 5, 1: 1}),
    ],
)
def test_a_consumer_starts_where_it_is_told(
    cluster: FakeCluster, client: Client, start: object, positions: dict[int, int]
) -> None:
    """By word, by time, by offsets of some partitions."""
    fill(cluster, "t", 2, 40)
    with client.consumer("t", start=start) as consumer:  # type: ignore[arg-type]
        assert consumer.positions() == positions
        assert consumer.lag() == {partition: 40 - offset for partition, offset in positions.items()}
        assert len(list(consumer)) == sum(40 - offset for offset in positions.values())
        assert consumer.at_end


def test_positions_follow_each_record_and_another_reader_goes_on_there(
    cluster: FakeCluster, client: Client
) -> None:
    """Stopped in the middle of a chunk, nothing is skipped and nothing read twice, by either way on."""
    fill(cluster, "t", 1, 40)
    consumer = client.consumer("t")
    first = [record.value for _, record in zip(range(10), consumer, strict=False)]
    position = consumer.position(0)
    rest = [value for batch in consumer.batches() for value in batch.column("value").to_pylist()]
    again = [record.value for record in client.consumer("t", start={0: position})]
    assert rest == again
    assert first[:position] + rest == stored(cluster, "t")


def test_seeking_drops_what_was_fetched_ahead(cluster: FakeCluster, client: Client) -> None:
    """Back, forward, to a word, to a time."""
    fill(cluster, "t", 1, 40)
    with client.consumer("t", max_bytes=1, follow=True) as consumer:
        assert next(iter(consumer)).offset == 0
        consumer.seek(0, 35)
        assert next(iter(consumer)).offset == 35
        consumer.seek(0, "-2")
        assert next(iter(consumer)).offset == 38
        consumer.seek(0, "earliest")
        assert consumer.poll(5).base_offset == 0
        assert consumer.seek_to_time(datetime(2020, 1, 1, tzinfo=UTC)) == {0: 1}
        assert next(iter(consumer)).offset == 1
        with pytest.raises(ShoalError, match="not read here"):
            consumer.seek(3, 0)


def test_seeking_again_and_again_leaves_room_to_fetch(cluster: FakeCluster, client: Client) -> None:
    """What was fetched ahead and is dropped makes room for what is fetched instead, however often."""
    fill(cluster, "t", 3, 700)
    consumer = client.consumer("t", max_bytes=1)
    for number in range(60):
        assert consumer.poll(20) is not None
        consumer.seek(number % 3, 7 * (number % 50))
    for partition in range(3):
        consumer.seek(partition, 0)
    seen = [record.value for record in consumer]
    assert len(seen) == len(set(seen)) == 2_100


def test_following_waits_at_the_end_and_pauses(cluster: FakeCluster, client: Client) -> None:
    """poll returns None when its time is up, goes on with what arrives, and not with what is paused."""
    fill(cluster, "t", 2, 7)
    with client.consumer("t", follow=True) as consumer:
        assert sum(consumer.poll(5).batch.num_rows for _ in range(2)) == 14
        assert consumer.poll(0.05) is None
        assert not consumer.at_end
        consumer.pause(1)
        client.send("t", b"one", partition=1)
        client.flush()
        assert consumer.poll(0.2) is None
        assert consumer.lag() == {0: 0, 1: 1}
        consumer.resume()
        assert consumer.poll(5).batch.column("value").to_pylist() == [b"one"]
        assert consumer.positions() == {0: 7, 1: 8}


def test_trimmed_records_are_reported_once_and_a_seek_goes_on(cluster: FakeCluster, client: Client) -> None:
    """Retention was quicker than the reader: the error names the valid range, the consumer stays usable."""
    fill(cluster, "t", 1, 40)
    consumer = client.consumer("t")
    cluster.topics["t"].start = 20
    with pytest.raises(ShoalError) as trimmed:
        consumer.poll(5)
    assert (trimmed.value.code, trimmed.value.extra["log_start_offset"]) == ("trimmed", 20)
    consumer.seek(0, 20)
    assert [record.offset for record in consumer] == list(range(20, 40))


def test_a_missing_library_is_named(
    cluster: FakeCluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pandas and polars are the user's own; without them there is Arrow."""
    fill(cluster, "t", 1, 7)
    monkeypatch.setitem(__import__("sys").modules, "polars", None)
    with pytest.raises(ClientError, match="polars is not installed: pip install polars"):
        next(iter(client.consumer("t").frames("polars")))


@pytest.mark.parametrize("rows_max", [1, 7, 10_000])
@pytest.mark.parametrize("bytes_max", [1, 500, 1 << 20])
def test_plain_values_and_others_keep_together_what_belongs_together(
    cluster: FakeCluster, client: Client, rows_max: int, bytes_max: int
) -> None:
    """Values alone are buffered with fewer looks: between records with keys, headers and times, with either
    bound of a request reached first, each record keeps what it had, in order."""
    cluster.create("t", 1)
    batching = BatchingConfig(batch_rows_max=rows_max, batch_bytes_max=bytes_max)
    expected: list[tuple[bytes, bytes | None, bool]] = []
    with client.producer("t", batching=batching) as producer:
        for number in range(200):
            value = b"%03d" % number
            key = b"k%d" % number if number % 5 == 3 else None
            headers = {"h": value} if number % 11 == 4 else None
            producer.send(value, key, headers=headers)
            expected.append((value, key, headers is not None))
    with client.consumer("t") as consumer:
        found = [(record.value, record.key, record.headers != ()) for record in consumer]
    assert found == expected
    for batch in cluster.topics["t"].partitions[0].batches:
        assert batch.num_rows <= rows_max
