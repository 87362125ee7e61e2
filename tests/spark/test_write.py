"""Writing without Spark: rows to partitions and chunks, and that repeated tasks store nothing twice."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any, TypeAlias

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import ShoalError
from shoal.format.batch import DEFAULT_SCHEMA, TIMER_SCHEMA, decode_stream, schema_message
from shoal.format.hash_ranges import hash_ranges, key_hash, partition_for
from shoal.spark.options.errors import SourceError
from shoal.spark.options.write_options import check_written, parse_sink_options
from shoal.spark.read.http import Persistence
from shoal.spark.write import send as spark_send
from shoal.spark.write.send import ChunkSender, Sink, encoded, same_records
from shoal.spark.write.write import (
    GATHERED_BYTES,
    TaskCounts,
    TaskWriter,
    cast,
    cut,
    gathered,
    measure,
    to_wire,
)

Cluster: TypeAlias = Any  # conftest's: test modules do not import one another


@pytest.fixture(autouse=True)
def no_routes_of_other_tests() -> Iterator[None]:
    """Workers remember routes; every test has its own agents."""
    spark_send._ROUTES.clear()
    yield
    spark_send._ROUTES.clear()


def sink(cluster: Cluster, topic: str | None = "out", **changes: Any) -> Sink:
    """Where a task writes."""
    return Sink((cluster.url(0), cluster.url(1)), topic, **changes)


def rows_of(*keys_and_values: tuple[bytes | None, bytes | None], **columns: list[Any]) -> pa.RecordBatch:
    """A batch as Spark hands it over: strings and not-null fields as they happen to be."""
    keys, values = zip(*keys_and_values, strict=True) if keys_and_values else ((), ())
    arrays = {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}
    types = {"topic": pa.string(), "partition": pa.int32()}
    arrays |= {name: pa.array(column, types.get(name)) for name, column in columns.items()}
    return pa.RecordBatch.from_pydict(arrays)


def write(target: Sink, *batches: pa.RecordBatch, task: int = 0, epoch: int = 0) -> TaskCounts:
    """One attempt of a task, without real pauses."""
    return TaskWriter(target, "query", task, epoch, pause=lambda seconds: None).write(batches)


def stored(cluster: Cluster, topic: str = "out") -> dict[int, list[tuple[bytes | None, bytes | None]]]:
    """(key, value) of every record of every partition, in the log's order."""
    found: dict[int, list[tuple[bytes | None, bytes | None]]] = {}
    for partition, log in cluster.topics[topic].items():
        body = schema_message(DEFAULT_SCHEMA) + b"".join(data for _, _, data in log.frames)
        _, batches = decode_stream(body)
        found[partition] = [(row["key"], row["value"]) for batch in batches for row in batch.to_pylist()]
    return found


def numbered(first: int, count: int, size: int = 10) -> pa.RecordBatch:
    """Rows with distinct keys."""
    numbers = range(first, first + count)
    return rows_of(*((b"k%d" % number, b"%d" % number + b"." * size) for number in numbers))


def values(found: dict[int, list[tuple[bytes | None, bytes | None]]]) -> list[bytes | None]:
    """All values, sorted."""
    return sorted(value for rows in found.values() for _, value in rows)


def test_rows_go_where_their_keys_belong(cluster: Cluster) -> None:
    """The same partition that agents and other clients choose; order within a partition is the task's."""
    cluster.fill("out", (), (), ())
    assert write(sink(cluster), numbered(0, 50), numbered(50, 50)) == TaskCounts(100, 3, 0)
    found = stored(cluster)
    ranges = hash_ranges(3)
    for partition, rows in found.items():
        assert all(partition_for(key_hash(key), ranges) == partition for key, _ in rows)
        assert [int(key[1:]) for key, _ in rows] == sorted(int(key[1:]) for key, _ in rows)
    assert sum(map(len, found.values())) == 100


def test_rows_without_key_stay_together_and_tasks_spread(cluster: Cluster) -> None:
    """One partition for each task and micro-batch, whatever the order; over many, all partitions."""
    cluster.fill("out", (), (), ())
    for task in range(9):
        write(sink(cluster), rows_of((None, b"a"), (None, b"b")), task=task)
    found = stored(cluster)
    assert sorted(map(len, found.values())) == [4, 6, 8]


def test_columns_say_topic_and_partition(cluster: Cluster) -> None:
    """A null partition is the key's; the option topic overrides the column."""
    cluster.fill("out", (), ())
    cluster.fill("other", ())
    batch = rows_of(
        (b"a", b"1"), (b"b", b"2"), (b"c", b"3"), topic=["out", "other", "out"], partition=[1, 0, 0]
    )
    write(sink(cluster, None), batch)
    assert stored(cluster) == {0: [(b"c", b"3")], 1: [(b"a", b"1")]}
    assert stored(cluster, "other") == {0: [(b"b", b"2")]}
    write(sink(cluster, "other"), batch.drop_columns(["partition"]), task=1)
    assert len(stored(cluster, "other")[0]) == 4
    half = rows_of((b"a", b"x"), (b"a", b"y"), partition=[1, None])
    write(sink(cluster), half, task=2)
    home = partition_for(key_hash(b"a"), hash_ranges(2))
    assert (b"a", b"x") in stored(cluster)[1]
    assert (b"a", b"y") in stored(cluster)[home]


def test_wrong_places_get_one_line(cluster: Cluster) -> None:
    """A partition or a topic that is not there, a row without topic."""
    cluster.fill("out", ())
    for batch, target, says in (
        (rows_of((b"a", b"1"), partition=[3]), "out", "has no partition 3: it has 1 partition, numbered 0"),
        (rows_of((b"a", b"1")), "nowhere", "unknown topic 'nowhere': make it first"),
        (rows_of((b"a", b"1"), topic=[None]), None, "a row has no topic"),
    ):
        with pytest.raises(SourceError, match=says) as caught:
            write(sink(cluster, target), batch)
        assert "\n" not in str(caught.value)


def test_a_write_may_say_when_records_are_due() -> None:
    """In the columns of a timer topic; a null is at once, and a topic of logs gets no such column."""
    due = pa.array([1_900_000_000_000_000, None], pa.timestamp("us", tz="Europe/Berlin"))
    rows = to_wire(cast({"value": pa.array(["1", "2"]), "deliver_at": due}))
    assert rows.schema == TIMER_SCHEMA
    assert rows.column("deliver_at").cast("int64").to_pylist() == [1_900_000_000_000_000, None]
    assert rows.column("timestamp").null_count == 0
    given = [("value", "string"), ("deliver_at", "timestamp")]
    check_written(given, parse_sink_options({"topic": "due"}, {}))
    with pytest.raises(SourceError, match="column deliver_at is string, but timestamp is written"):
        check_written(
            [("value", "string"), ("deliver_at", "string")], parse_sink_options({"topic": "due"}, {})
        )


def test_sparks_varying_schemas_are_cast(cluster: Cluster) -> None:
    """Strings, the session's time zone, fields that are not null, large types, headers: stored alike."""
    zoned = pa.array([1_700_000_000_000_000, None], pa.timestamp("us", tz="America/New_York"))
    headers = pa.array(
        [[{"key": "n", "value": b"1"}], None],
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    )
    rows = to_wire(
        cast(
            {
                "key": pa.array(["a", None], pa.large_string()),
                "value": pa.array(["1", "2"]),
                "headers": headers,
                "timestamp": zoned,
            }
        )
    )
    assert rows.schema == DEFAULT_SCHEMA
    assert rows.column("key").to_pylist() == [b"a", None]
    assert rows.column("headers").to_pylist() == [[{"key": "n", "value": b"1"}], None]
    times = rows.column("timestamp").cast("int64").to_pylist()
    assert times[0] == 1_700_000_000_000_000
    assert times[1] > times[0]  # none was given: now
    assert to_wire(cast({"value": pa.array([], pa.string())})).schema == DEFAULT_SCHEMA
    cluster.fill("out", ())
    not_null = pa.schema([pa.field("value", pa.string(), nullable=False)])
    write(sink(cluster), pa.RecordBatch.from_arrays([pa.array(["x"])], schema=not_null))
    assert stored(cluster) == {0: [(None, b"x")]}


def test_a_repeated_task_stores_nothing_twice(cluster: Cluster) -> None:
    """All of it again, after success: every chunk is a duplicate."""
    cluster.fill("out", (), ())
    batches = [numbered(first, 100) for first in range(0, 500, 100)]
    small = sink(cluster, chunk_bytes=2_000)
    first = write(small, *batches)
    assert first.repeated == 0
    assert first.chunks > 10
    again = write(small, *batches)
    assert again == TaskCounts(500, first.chunks, first.chunks)
    assert len(values(stored(cluster))) == 500


def test_a_task_that_died_goes_on_where_it_was(cluster: Cluster) -> None:
    """Killed after any number of chunks, more than agents remember: nothing lost or twice."""
    batches = [numbered(first, 50) for first in range(0, 300, 50)]
    for stop_after in (0, 5, 6, 14):
        cluster.fill("out", (), ())
        cluster.writes.clear()

        def die(handler: Any, apply: Any) -> None:
            handler.problem(ShoalError("bad-request", "the task is killed here"))

        cluster.write_faults = [lambda handler, apply: apply()] * stop_after + [die] * 3
        small = sink(cluster, chunk_bytes=1_000)
        with pytest.raises(SourceError, match="the task is killed here"):
            write(small, *batches)
        cluster.write_faults = []
        before = len(cluster.writes)
        again = write(small, *batches)
        assert again.repeated == before >= stop_after
        expected = sorted(b"%d" % number + b"." * 10 for number in range(300))
        assert values(stored(cluster)) == expected


def test_lost_answers_are_asked_for_again(cluster: Cluster) -> None:
    """The append happened, its answer did not arrive; or agents refuse for a while: once each."""
    cluster.fill("out", ())

    def swallow(handler: Any, apply: Any) -> None:
        apply()
        handler.close_connection = True

    def refuse(code: str) -> Any:
        return lambda handler, apply: handler.problem(ShoalError(code, "on purpose"))

    def refuse_after(code: str) -> Any:
        def fault(handler: Any, apply: Any) -> None:
            apply()
            handler.problem(ShoalError(code, "on purpose"))
            handler.close_connection = True

        return fault

    faults = [swallow, refuse("no-leader"), refuse_after("timeout"), swallow, refuse("overloaded")]
    cluster.write_faults = [*faults, refuse("not-leader"), refuse_after("internal"), refuse("disk-full")]
    write(sink(cluster, chunk_bytes=500), *(numbered(first, 10) for first in range(0, 100, 10)))
    assert not cluster.write_faults
    assert [int(value.partition(b".")[0]) for _, value in stored(cluster)[0]] == list(range(100))


def test_the_next_micro_batch_opens_an_epoch(cluster: Cluster) -> None:
    """It begins at sequence 0 again; an older one that still runs somewhere is fenced, in one line."""
    cluster.fill("out", ())
    write(sink(cluster), numbered(0, 10), epoch=7)
    write(sink(cluster), numbered(10, 10), epoch=9)
    with pytest.raises(SourceError, match="holds a later micro-batch of this query"):
        write(sink(cluster), numbered(0, 10), epoch=7)
    assert len(values(stored(cluster))) == 20


def test_two_attempts_at_once_store_each_record_once(cluster: Cluster) -> None:
    """Speculative execution: both write the same chunks, in step or not."""
    cluster.fill("out", (), ())
    batches = [numbered(first, 50) for first in range(0, 300, 50)]
    target = sink(cluster, chunk_bytes=1_000)
    threads = [threading.Thread(target=write, args=(target, *batches)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert values(stored(cluster)) == sorted(b"%d" % number + b"." * 10 for number in range(300))


def test_rows_may_change_their_order_within_one_chunk(cluster: Cluster) -> None:
    """After a shuffle they do: a task below CHUNK_BYTES a partition is stored whole or not at all."""
    cluster.fill("out", (), ())
    rows = [(b"k%d" % number, b"v%d" % number) for number in range(200)]
    write(sink(cluster), rows_of(*rows))
    random.Random(3).shuffle(rows)
    again = write(sink(cluster), rows_of(*rows[:77]), rows_of(*rows[77:]))
    assert again == TaskCounts(200, 2, 2)
    assert len(values(stored(cluster))) == 200


def test_other_rows_in_a_repeated_task_are_an_error(cluster: Cluster) -> None:
    """Above one chunk the order counts, and another number of rows is wrong anyway: told."""
    cluster.fill("out", ())
    rows = [(None, b"value %d" % number) for number in range(100)]
    small = sink(cluster, chunk_bytes=2_000)
    write(small, rows_of(*rows))
    random.Random(3).shuffle(rows)
    with pytest.raises(SourceError, match=r"in the same order; add .sortWithinPartitions"):
        write(small, rows_of(*rows))
    write(sink(cluster), rows_of(*rows), task=2)
    with pytest.raises(SourceError, match=r"holds other records \(100\) .* than this attempt has \(99\)"):
        write(sink(cluster), rows_of(*rows[:99]), task=2)


def test_other_rows_of_the_same_number_are_an_error_too(cluster: Cluster) -> None:
    """Splits that change places between two attempts: not one is dropped without a word."""
    cluster.fill("out", ())
    a, b = (rows_of(*((None, b"%s %d" % (name, number)) for number in range(50))) for name in (b"a", b"b"))
    write(sink(cluster), a)
    with pytest.raises(SourceError, match=r"holds other records \(50\) .* than this attempt has \(50\)"):
        write(sink(cluster), b)
    assert write(sink(cluster), a).repeated == 1
    assert len(values(stored(cluster))) == 50


@pytest.mark.parametrize("kept", [20, 0])
def test_what_was_trimmed_meanwhile_is_not_compared(cluster: Cluster, kept: int) -> None:
    """Some of the first attempt's rows, or all of them: the repeated task is told that they were stored."""
    cluster.fill("out", ())
    rows = rows_of(*((None, b"%d" % number) for number in range(50)))
    write(sink(cluster), rows)
    cluster.topics["out"][0].log_start_offset = 50 - kept
    assert write(sink(cluster), rows).repeated == 1


def test_many_tasks_are_one_producer(cluster: Cluster) -> None:
    """However many: each stores its rows once, run twice, in another order; the next micro-batch forgets
    them."""
    cluster.fill("out", (), ())
    tasks = list(range(60))
    for attempt in range(2):
        random.Random(attempt).shuffle(tasks)
        for task in tasks:
            rows = rows_of((b"k%d" % task, b"%d" % task), (b"other%d" % task, b"%d+" % task))
            assert write(sink(cluster), rows, task=task, epoch=3).repeated == attempt * len(
                {partition_for(key_hash(key), hash_ranges(2)) for key in rows.column("key").to_pylist()}
            )
    assert len(values(stored(cluster))) == 120
    assert all(len(log.producers) == 1 for log in cluster.topics["out"].values())
    size = max(log.producers.size_bytes for log in cluster.topics["out"].values())
    for log in cluster.topics["out"].values():
        rows = rows_of((None, b"next"), partition=[list(cluster.topics["out"].values()).index(log)])
        write(sink(cluster), rows, epoch=4)
        assert log.producers.size_bytes < size / 10


_texts = st.sampled_from([b"", b"a", b"b", b"ab", b"1:", b"-1:", None])
_headers = st.none() | st.lists(st.tuples(st.sampled_from(["", "a", "ab", "1:"]), _texts), max_size=2)
_records = st.lists(st.tuples(_texts, _texts, _headers), max_size=4)


def _table(records: list[tuple[Any, ...]]) -> pa.Table:
    rows = [
        {
            "key": key,
            "value": value,
            "headers": None
            if headers is None
            else [{"key": name, "value": content} for name, content in headers],
        }
        for key, value, headers in records
    ]
    return pa.Table.from_pylist(rows, schema=DEFAULT_SCHEMA.remove(0))


@given(_records, st.randoms(use_true_random=False), _records)
def test_records_are_compared_in_whatever_order(
    records: list[tuple[Any, ...]], rng: random.Random, others: list[tuple[Any, ...]]
) -> None:
    """The same ones are the same, others are not; no headers are as an empty list of them."""
    shuffled = rng.sample(records, len(records))
    assert same_records(_table(records), _table(shuffled))

    def plain(table: list[tuple[Any, ...]]) -> list[str]:
        return sorted(repr((key, value, headers or None)) for key, value, headers in table)

    assert same_records(_table(records), _table(others)) == (plain(records) == plain(others))


def test_a_write_that_agents_have_forgotten_is_an_error(cluster: Cluster) -> None:
    """Chunk 3 is unknown and so are those before: nobody can say what is stored."""
    cluster.fill("out", ())
    log = cluster.topics["out"][0]
    batches = [numbered(first, 10) for first in range(0, 100, 10)]

    def forget(handler: Any, apply: Any) -> None:
        log.producers = type(log.producers)()
        apply()

    cluster.write_faults = [lambda handler, apply: apply(), forget]
    with pytest.raises(SourceError, match="no longer remembers this write"):
        write(sink(cluster, chunk_bytes=500), *batches)


def test_patience_is_bounded(cluster: Cluster) -> None:
    """Nobody home: the last failure, in one line."""
    cluster.fill("out", ())
    impatient = sink(cluster, policy=Persistence(attempts=4))
    cluster.write_faults = [lambda handler, apply: handler.problem(ShoalError("no-leader", "electing"))] * 9
    with pytest.raises(SourceError, match=r"was not written in 4 attempts; last: .*no-leader: electing"):
        write(impatient, numbered(0, 1))
    nobody = Sink(("http://127.0.0.1:9",), "elsewhere", Persistence(attempts=3))
    with pytest.raises(SourceError, match=r"'elsewhere' cannot be written at present: no agent answers"):
        write(nobody, numbered(0, 1))


def test_a_write_is_planned_without_patience(cluster: Cluster) -> None:
    """Nobody home, or no such topic: known at once, before any task begins; an election is waited for."""
    pauses: list[float] = []
    nobody = ChunkSender(Sink(("http://127.0.0.1:9",), "out"), "planning", 0, pauses.append)
    with pytest.raises(SourceError, match=r"^no agent answers \(option agent, or SHOAL_AGENT\)"):
        nobody.routes("out", planning=True)
    sender = ChunkSender(sink(cluster), "planning", 0, pauses.append)
    with pytest.raises(SourceError, match="unknown topic 'writen': make it first"):
        sender.routes("writen", planning=True)
    assert pauses == []
    cluster.fill("out", (), ())
    cluster.document_faults = [ShoalError("no-leader", "electing")] * 4  # of two agents, twice
    assert len(sender.routes("out", planning=True).partitions) == 2
    assert len(pauses) == 2


def test_topics_of_one_name_in_two_clusters_are_two(cluster: Cluster) -> None:
    """A worker that writes to both, one after the other, sends each its own records."""
    cluster.fill("out", (), ())
    other = type(cluster)()
    try:
        other.start_agent()
        other.fill("out", ())
        for number in range(2):
            write(sink(cluster), rows_of((b"k", b"one %d" % number)), task=number)
            write(Sink((other.url(0),), "out"), rows_of((b"k", b"two %d" % number)), task=number)
        assert values(stored(cluster)) == [b"one 0", b"one 1"]
        assert values(stored(other)) == [b"two 0", b"two 1"]
    finally:
        other.stop()


def test_large_records_are_cut_apart_or_refused(cluster: Cluster) -> None:
    """A batch of Spark may have 64 MiB; a record at most 8."""
    batch = cast({"value": pa.array([b"x" * 300_000] * 20)})
    pieces = list(cut(batch, 2**20))
    assert [piece.num_rows for piece, _ in pieces] == [2, 3, 2, 3, 2, 3, 2, 3]
    assert all(size <= 2**20 for _, size in pieces)
    cluster.fill("out", ())
    with pytest.raises(SourceError, match=r"a record has .* bytes, at most 8388608 are stored"):
        write(sink(cluster), rows_of((None, bytes(9 * 2**20))))


def test_sparks_batches_are_dealt_together() -> None:
    """Bounded, in order, none that is empty; a batch that is larger by itself is passed on as it is."""
    sizes = [3, 0, 4, 5, 9, 20, 1, 0]
    made = [rows_of(*[(b"%d" % number, bytes(2**20))] * size) for number, size in enumerate(sizes)]
    dealt = list(gathered(iter(made)))
    assert [batch.num_rows for batch in dealt] == [7, 5, 9, 20, 1]
    assert max(batch.nbytes for batch in dealt if batch is not made[5]) <= GATHERED_BYTES
    assert pa.Table.from_batches(dealt).equals(pa.Table.from_batches(made))
    assert list(gathered([])) == list(gathered([made[1]])) == []


def test_a_body_is_the_columns_memory() -> None:
    """Large columns are not copied, small parts are one; slices, nulls and headers read back as they were."""
    key, headers = [None, b"k", b""] * 30_000, [None, [("n", b"1")], []] * 30_000
    rows = cast(
        {
            "key": pa.array(key, pa.binary()),
            "value": pa.array([b"value", None, b""] * 30_000, pa.binary()),
            "headers": pa.array(headers, DEFAULT_SCHEMA.field("headers").type),
        }
    )
    for batch in (
        to_wire(rows),
        to_wire(rows.slice(1, 70_001)),
        to_wire(rows.slice(5, 2)),
        to_wire(rows[:0]),
    ):
        body = encoded(batch)
        schema, batches = decode_stream(b"".join(body))
        assert schema == DEFAULT_SCHEMA
        assert batches == [batch]
        assert all(len(part) for part in body)
        assert len(body) <= 2 * 10 + 1  # ten columns and lists of them, and what lies between
    whole = to_wire(rows)
    places = {buffer.address for column in whole.columns for buffer in column.buffers() if buffer}
    large = [pa.py_buffer(part) for part in encoded(whole) if isinstance(part, memoryview)]
    assert len(large) >= 5
    assert {part.address for part in large} <= places


@settings(max_examples=50)
@given(st.lists(st.tuples(st.none() | st.binary(max_size=9), st.none() | st.binary(max_size=99)), min_size=1))
def test_sizes_do_not_depend_on_order_or_batches(rows: list[tuple[bytes | None, bytes | None]]) -> None:
    """Or a repeated task might send one chunk where it sent two."""

    def wire(part: list[tuple[bytes | None, bytes | None]]) -> pa.RecordBatch:
        batch = rows_of(*part)
        return cast(dict(zip(batch.schema.names, batch.columns, strict=True)))

    whole = measure(wire(rows))
    assert whole == measure(wire(rows[::-1])) == sum(measure(wire([row])) for row in rows)


@pytest.mark.parametrize(
    ("columns", "topic", "says"),
    [
        ([("key", "string")], "t", "there is no column value"),
        ([("value", "int")], "t", "column value is int, but string or binary is written"),
        ([("value", "string"), ("delay", "int")], "t", "column 'delay' cannot be written"),
        (
            [("value", "string"), ("VALUE", "string")],
            "t",
            "column value is there twice, perhaps in different",
        ),
        ([("value", "string"), ("partition", "bigint")], "t", "column partition is bigint, but int"),
        (
            [("value", "string"), ("headers", "array<string>")],
            "t",
            "headers is array<string>, but array<struct",
        ),
        ([("value", "string")], None, 'no topic: add .option("topic", "TOPIC"), or a column topic'),
    ],
)
def test_columns_are_checked_before_the_job(columns: Any, topic: str | None, says: str) -> None:
    """One line that says what to write instead."""
    options = parse_sink_options({} if topic is None else {"topic": topic}, {})
    with pytest.raises(SourceError) as caught:
        check_written(columns, options)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_all_columns_that_can_be_written() -> None:
    """Names in any case, as everywhere in Spark."""
    columns = [("KEY", "string"), ("value", "binary"), ("Topic", "string"), ("partition", "int")]
    columns += [("headers", "array<struct<key:string,value:binary>>"), ("timestamp", "timestamp")]
    check_written(columns, parse_sink_options({}, {}))
