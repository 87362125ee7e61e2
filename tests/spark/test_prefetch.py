"""Micro-batches fetched while they are planned: the same records as tasks would read, or tasks read them."""

from __future__ import annotations

import io
import json
import pickle
import threading
from typing import Any, TypeAlias

import pyarrow as pa
import pytest
from pyspark.serializers import CPickleSerializer, SpecialLengths, read_int, write_with_length
from pyspark.sql.streaming import python_streaming_source_runner as runner

from shoal.format.batch import DEFAULT_SCHEMA, ProducerStamp, producer_id_from_text
from shoal.spark import ShoalDataSource
from shoal.spark.options.errors import SourceError
from shoal.spark.options.known import Mode
from shoal.spark.options.read_options import PREFETCH_BYTES, parse_source_options
from shoal.spark.pyspark_api import HAS_READ_LIMITS, ReadAllAvailable, SimpleReader, takes_records
from shoal.spark.read import readers
from shoal.spark.read.http import POOL
from shoal.spark.read.pipeline import HEAD_BYTES_MAX, read_head
from shoal.spark.read.plan import OffsetRange
from shoal.spark.read.prefetch import REST_SECONDS, Prefetcher
from shoal.spark.read.stream import StreamPlanner

Cluster: TypeAlias = Any  # these two are conftest's: test modules do not import one another
Handler: TypeAlias = Any

LONG_SECONDS = 60.0  # for what succeeds: a busy machine may be slow
NONE = {"flights": {"0": 0, "1": 0, "2": 0}}
ALL = {"flights": {"0": 10, "1": 30, "2": 0}}
EVERYTHING = [(0, n) for n in range(10)] + [(1, n) for n in range(30)]


class Query:
    """A stream's planner and prefetcher over the topic flights, with a clock that the test moves."""

    def __init__(self, cluster: Cluster, seconds_max: float = LONG_SECONDS, **given_options: Any) -> None:
        chosen = {"subscribe": "flights", "idleWaitMs": "0", "agent": cluster.url(0), **given_options}
        options = parse_source_options({name: str(value) for name, value in chosen.items()}, {}, Mode.STREAM)
        self.now = 0.0
        self.planner = StreamPlanner(options)
        self.prefetcher = Prefetcher(options, lambda: self.now, seconds_max)

    def ranges(self, start: Any = NONE, end: Any = ALL) -> list[OffsetRange]:
        """Of a micro-batch."""
        return self.planner.ranges(start, end)

    def fetch(self, start: Any = NONE, end: Any = ALL) -> list[pa.RecordBatch] | None:
        """Fetch a micro-batch as planning does."""
        return self.prefetcher.fetch(self.ranges(start, end), self.planner.agents)

    def read(self, ranges: list[OffsetRange]) -> list[tuple[int, int]]:
        """What the tasks for these ranges read."""
        tasks = readers._tasks(self.prefetcher.tasks(ranges, self.planner.agents))
        return places([batch for task in tasks for batch in readers._read(pickle.loads(pickle.dumps(task)))])


def places(batches: list[pa.RecordBatch] | None) -> list[tuple[int, int]]:
    """(partition, offset) of records, which have to be what lies there."""
    found = []
    for batch in batches or ():
        for row in batch.to_pylist():
            assert row["value"] in (b"%d:%d" % (row["partition"], row["offset"]), b"large")
            found.append((row["partition"], row["offset"]))
    return found


def append_large(cluster: Cluster, partition: int, size: int) -> None:
    """One record, whose key has so many bytes."""
    columns: list[list[Any]] = [[1], [bytes(size)], [b"large"], [None]]
    arrays = [pa.array(values, f.type) for values, f in zip(columns, DEFAULT_SCHEMA, strict=True)]
    stamp = ProducerStamp(producer_id_from_text("large"), 0, 0, in_lanes=True)
    cluster.topics["flights"][partition].store(
        pa.RecordBatch.from_arrays(arrays, schema=DEFAULT_SCHEMA), stamp
    )


def test_a_small_micro_batch_is_fetched_at_once(cluster: Cluster) -> None:
    """One request a range, one batch in order; a part of stored batches, and the same again for a replay."""
    query = Query(cluster)
    fetched = query.fetch()
    assert places(fetched) == EVERYTHING
    assert fetched is not None
    assert len(fetched) == 1
    assert len(cluster.reads) == 2
    part = {"flights": {"0": 5, "1": 12, "2": 0}}
    assert places(query.fetch(NONE, part)) == [(0, n) for n in range(5)] + [(1, n) for n in range(12)]
    assert places(query.fetch(part, ALL)) == places(query.fetch(part, ALL))
    assert query.fetch(ALL, ALL) is None


def fetch_64(cluster: Cluster, fault: Any) -> tuple[list[tuple[int, int]], set[Any]]:
    """A micro-batch of 64 partitions at two agents: what was fetched, and the connections that were used."""
    POOL.close()  # of other tests' connections
    cluster.fill("flights", *[(2,)] * 64)
    connections: set[Any] = set()

    def note(handler: Handler) -> bool:
        connections.add(handler.client_address)
        return bool(fault(handler))

    cluster.faults = [note] * 400
    end = {"flights": {str(partition): 2 for partition in range(64)}}
    return places(Query(cluster).fetch({"flights": {}}, end)), connections


ALL_64 = [(partition, offset) for partition in range(64) for offset in (0, 1)]


def test_many_ranges_need_few_connections(cluster: Cluster) -> None:
    """Two agents, 32 ranges each: a connection for each agent, which is kept."""
    for _ in range(2):
        cluster.reads.clear()
        fetched, connections = fetch_64(cluster, lambda handler: False)
        assert fetched == ALL_64
        assert len(cluster.reads) == 64
        assert len(connections) == 2
        assert len(POOL._idle) >= 2


@pytest.mark.parametrize("how", ["closes", "lower case", "babbles", "one byte more", "no length"])
def test_answers_that_do_not_come_together_are_asked_for_one_by_one(cluster: Cluster, how: str) -> None:
    """Agents behind something that knows less of HTTP: every record all the same, and none twice."""
    turn = iter(range(400))

    def fault(handler: Handler) -> bool:
        number = next(turn)
        if how == "closes":
            handler.close_connection = True
            handler.send_response_only = lambda *status: (
                type(handler).send_response_only(handler, *status),
                handler.send_header("Connection", "close"),
            )
        elif how == "lower case":
            handler.send_header = lambda name, value: type(handler).send_header(handler, name.lower(), value)
        elif how == "one byte more" and number == 0:
            handler.wfile.write(b" ")
        elif how == "babbles":
            handler.wfile.write(b"nothing that is HTTP\r\n\r\n")
            handler.close_connection = True
            return True
        elif how == "no length":
            handler.send_header = lambda name, value: (
                name == "Content-Length" or type(handler).send_header(handler, name, value)
            )
            handler.close_connection = True
        return False

    fetched, _ = fetch_64(cluster, fault)
    assert fetched == (ALL_64 if how != "babbles" else [])


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"HTTP/1.0 200 OK\r\nContent-Length: 1",
        b"HTTP/1.1 OK\r\nContent-Length: 1",
        b"HTTP/1.1 100 Continue\r\nContent-Length: 0",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1",
        b"HTTP/1.1 200 OK\r\nContent-Length",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nX: " + b"x" * HEAD_BYTES_MAX,
        bytes(range(256)),
    ],
)
def test_heads_are_read_or_refused(head: bytes) -> None:
    """Names in any case of letters, and one error for anything that is no answer with a length."""
    status, headers = read_head(b"HTTP/1.1 404 Not Found\r\nSHOAL-base-Offset:  7 \r\ncontent-Length: 12")
    assert (status, headers["Shoal-Base-Offset"], headers["Content-Length"]) == (404, "7", "12")
    assert headers["Shoal-Next-Offset"] is None
    with pytest.raises(ValueError, match=r"."):
        read_head(head)


def test_one_large_record_is_left_to_a_task(cluster: Cluster) -> None:
    """8 MiB: its answer is not read while planning, nor asked for again with the next micro-batch."""
    append_large(cluster, 2, 8 * 2**20 - 100)
    end = {"flights": {"0": 10, "1": 30, "2": 1}}
    query = Query(cluster)
    alone = query.ranges(ALL, end)
    assert query.fetch(ALL, end) is None
    assert len(cluster.reads) == 1
    assert query.fetch(ALL, end) is None
    assert len(cluster.reads) == 1
    assert query.read(alone) == [(2, 0)]
    assert Query(cluster, prefetchBytes=16 * 2**20).fetch(ALL, end) is not None


def test_what_turns_out_larger_goes_to_tasks(cluster: Cluster) -> None:
    """A guess too low: at most the bytes of the option are fetched in vain, once."""
    cluster.fill("flights", *[()] * 20)
    for partition in range(20):
        append_large(cluster, partition, 20_000)
    start, end = {"flights": {}}, {"flights": {str(partition): 1 for partition in range(20)}}
    expected = [(partition, 0) for partition in range(20)]
    assert places(Query(cluster).fetch(start, end)) == expected
    cluster.reads.clear()
    query = Query(cluster, prefetchBytes=300_000)
    assert query.fetch(start, end) is None
    asked = len(cluster.reads)
    assert 15 <= asked <= 20
    assert query.fetch(start, end) is None
    assert len(cluster.reads) == asked
    assert query.read(query.ranges(start, end)) == expected


def test_an_agent_killed_between_planning_and_fetching(cluster: Cluster) -> None:
    """Tasks read from who leads then; micro-batches rest from it until the routes are known anew."""
    query = Query(cluster)
    ranges = query.ranges()
    agents = query.planner.agents
    for log in cluster.topics["flights"].values():
        log.leader = 1
    cluster.agents[0].shutdown()
    cluster.agents[0].server_close()
    assert query.prefetcher.fetch(ranges, agents) is None
    cluster.reads.clear()
    assert query.prefetcher.fetch(ranges, agents) is None
    assert cluster.reads == []
    assert query.read(ranges) == EVERYTHING
    query.now += REST_SECONDS
    moved = [piece._replace(urls=(cluster.url(1),)) for piece in ranges]
    assert places(query.prefetcher.fetch(moved, agents)) == EVERYTHING


def test_an_agent_that_hangs_delays_a_micro_batch_once(cluster: Cluster) -> None:
    """The wait is bounded, and the next micro-batches do not wait at all."""
    query = Query(cluster, seconds_max=0.2)
    ranges = query.ranges()
    released = threading.Event()

    def hang(handler: Handler) -> bool:
        released.wait(LONG_SECONDS)
        return False

    cluster.faults = [hang, hang]
    assert query.prefetcher.fetch(ranges, query.planner.agents) is None
    assert len(cluster.faults) == 0
    assert query.prefetcher.fetch(ranges, query.planner.agents) is None
    released.set()
    assert query.read(ranges) == EVERYTHING


def test_a_topic_made_anew_meanwhile(cluster: Cluster) -> None:
    """Shorter than planned: tasks decide, which fail as ever. Trimmed records likewise, or are left out."""
    query = Query(cluster)
    ranges = query.ranges()
    cluster.fill("flights", (4,), (10, 20), ())
    assert query.prefetcher.fetch(ranges, query.planner.agents) is None
    cluster.fill("flights", (4, 1, 5), (10, 20), ())
    cluster.topics["flights"][1].log_start_offset = 12
    assert Query(cluster).prefetcher.fetch(ranges, query.planner.agents) is None
    with pytest.raises(SourceError, match="was trimmed"):
        query.read(ranges)
    lenient = Query(cluster, failOnDataLoss="false")
    rest = EVERYTHING[:10] + [(1, n) for n in range(12, 30)]
    assert places(lenient.prefetcher.fetch(ranges, query.planner.agents)) == rest
    cluster.topics["flights"][1].log_start_offset = cluster.topics["flights"][0].log_start_offset = 30
    assert lenient.prefetcher.fetch(ranges[1:], query.planner.agents) == []


def test_small_ranges_share_a_task_once_their_size_is_known(cluster: Cluster) -> None:
    """Two records tell it; where no agent answers that, each range has its own task."""
    query = Query(cluster, prefetchBytes=0)
    ranges = query.ranges()
    agents = query.planner.agents
    assert [len(task) for task in query.prefetcher.tasks(ranges, agents)] == [2]
    assert len(cluster.reads) == 2
    assert [len(task) for task in query.prefetcher.tasks(ranges, agents)] == [2]
    assert len(cluster.reads) == 2
    assert query.read(ranges) == EVERYTHING
    nobody = [piece._replace(urls=("http://127.0.0.1:9",)) for piece in ranges]
    fresh = Query(cluster, prefetchBytes=0)
    assert [len(task) for task in fresh.prefetcher.tasks(nobody, ("http://127.0.0.1:9",))] == [1, 1]


def test_batch_queries_share_tasks_too(cluster: Cluster) -> None:
    """Unless minPartitions wants more; records come in the order of their partitions."""
    for changes, tasks in (({}, 1), ({"minPartitions": "2"}, 2), ({"minPartitions": "4"}, 4)):
        parsed = parse_source_options(
            {"subscribe": "flights", "agent": cluster.url(1), **changes}, {}, Mode.BATCH
        )
        reader = readers.ShoalReader(parsed)
        planned = reader.partitions()
        assert len(planned) == tasks
        assert places([batch for task in planned for batch in reader.read(task)]) == EVERYTHING


def stream_reader(cluster: Cluster, **options: Any) -> readers.ShoalStreamReader:
    """As Spark makes it."""
    chosen = {"subscribe": "flights", "agent": cluster.url(0), "startingOffsets": "earliest", **options}
    return readers.ShoalStreamReader(parse_source_options(chosen, {}, Mode.STREAM))


def planned_by_spark(reader: Any, start: Any, end: Any) -> tuple[list[Any], int, list[pa.RecordBatch]]:
    """What PySpark's own planning process sends to the JVM: partitions, a mark, and records."""
    asked, sent = io.BytesIO(), io.BytesIO()
    for offset in (start, end):
        write_with_length(json.dumps(offset).encode(), asked)
    asked.seek(0)
    source = ShoalDataSource({"subscribe": "flights"})
    runner.partitions_func(reader, source, source.schema(), 10_000, asked, sent)
    sent.seek(0)
    pickled = [sent.read(read_int(sent)) for _ in range(read_int(sent))]
    mark = read_int(sent)
    batches = []
    if mark == runner.NON_EMPTY_PYARROW_RECORD_BATCHES:
        assert read_int(sent) == SpecialLengths.START_ARROW_STREAM
        batches = list(pa.ipc.open_stream(sent.read()))
    return [CPickleSerializer().loads(data) for data in pickled], mark, batches


def test_sparks_planning_process_takes_the_records(cluster: Cluster) -> None:
    """By its private way for simple readers. Should Spark lose them, its one task reads the same; the lag is
    told and limits are kept as without."""
    limit = {"maxOffsetsPerTrigger": "40"} if HAS_READ_LIMITS else {}
    reader = stream_reader(cluster, **limit)
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    partitions, mark, batches = planned_by_spark(reader, start, end)
    assert takes_records()
    assert mark == runner.NON_EMPTY_PYARROW_RECORD_BATCHES
    assert places(batches) == EVERYTHING
    assert len(partitions) == 1
    assert places(list(pickle.loads(pickle.dumps(reader)).read(partitions[0]))) == EVERYTHING
    assert not isinstance(reader, SimpleReader)
    assert hasattr(runner, "report_latest_offset_func") == HAS_READ_LIMITS
    if HAS_READ_LIMITS:
        told = io.BytesIO()
        runner.report_latest_offset_func(reader, told)
        assert json.loads(told.getvalue()[4:]) == ALL
    partitions, mark, _ = planned_by_spark(reader, end, end)  # as Spark asks after a restart
    assert (partitions, mark) == ([], runner.PREFETCHED_RECORDS_NOT_FOUND)
    partitions, mark, _ = planned_by_spark(stream_reader(cluster, prefetchBytes="0"), start, end)
    assert (len(partitions), mark) == (1, runner.PREFETCHED_RECORDS_NOT_FOUND)
    cluster.topics["flights"][0].log_start_offset = cluster.topics["flights"][1].log_start_offset = 30
    lenient = stream_reader(cluster, failOnDataLoss="false")
    lenient._planner._states = reader._planner._states
    assert planned_by_spark(lenient, start, end)[1:] == (runner.EMPTY_PYARROW_RECORD_BATCHES, [])


@pytest.mark.parametrize("missing", ["the runner", "the question", "the class"])
def test_without_sparks_private_way_tasks_read(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    """In another version of Spark, and in any process that is not a planner of its own."""

    def partitions_func(reader: Any) -> Any:
        return reader.partitions if missing == "the question" else reader.getCache

    module = type("Module", (), {"partitions_func": staticmethod(partitions_func)})
    modules = {} if missing == "the runner" else {runner.__name__: module}
    assert not takes_records(modules)
    monkeypatch.setattr(readers, "takes_records", lambda: takes_records(modules))
    reader = stream_reader(cluster)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    partitions, mark, _ = planned_by_spark(reader, start, end)
    assert mark == runner.PREFETCHED_RECORDS_NOT_FOUND
    assert places([batch for task in partitions for batch in reader.read(task)]) == EVERYTHING


def test_a_mebibyte_unless_told() -> None:
    """What docs/spark.md says."""
    assert PREFETCH_BYTES == 2**20
