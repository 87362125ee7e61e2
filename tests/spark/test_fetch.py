"""Reading ranges from agents that move, stop and lie: every record once, or one clear line."""

from __future__ import annotations

import json
import pickle
import socket
import threading
from contextlib import suppress
from typing import Any, TypeAlias

import pyarrow as pa
import pytest

from shoal.errors import ShoalError
from shoal.format.batch import DEFAULT_SCHEMA, schema_message
from shoal.spark.options.bounds import Selection
from shoal.spark.options.errors import SourceError
from shoal.spark.options.read_options import COLUMNS, HEADERS
from shoal.spark.read.fetch import JOINED_BYTES_MAX, FetchPolicy, RangeReader, Scan, is_local
from shoal.spark.read.http import POOL, Answer, LeaderSearch, Persistence, may_move
from shoal.spark.read.plan import LogEnds, OffsetRange
from shoal.spark.read.topics import Directory

Cluster: TypeAlias = Any  # these two are conftest's: test modules do not import one another
Handler: TypeAlias = Any

UNUSED_URL = "http://127.0.0.1:9"  # the discard port: nobody listens

WIRE_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
    ]
)


def fetch_states(
    topic: str, agents: tuple[str, ...], pause: Any = lambda seconds: None
) -> dict[int, LogEnds]:
    """What planning finds."""
    return Directory(agents, pause=pause).states(Selection(topics=(topic,)))[topic]


def scan(cluster: Cluster, partition: int, start: int, end: int, **changes: Any) -> Scan:
    """A task as planning would make it."""
    agents = tuple(cluster.url(number) for number in range(len(cluster.agents)))
    urls = fetch_states("flights", agents)[partition].urls
    fields = dict(changes)
    return Scan(OffsetRange("flights", partition, start, end, fields.pop("urls", urls)), agents, **fields)


def read(task: Scan) -> list[pa.RecordBatch]:
    """All batches of a task, without real pauses; pickled first, as Spark does."""
    return list(RangeReader(pickle.loads(pickle.dumps(task)), pause=lambda seconds: None).batches())


def values(batches: list[pa.RecordBatch]) -> list[bytes]:
    """What was read."""
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def expected(partition: int, start: int, end: int) -> list[bytes]:
    """What the log holds."""
    return [b"%d:%d" % (partition, offset) for offset in range(start, end)]


def test_states_name_offsets_and_the_leader_first(cluster: Cluster) -> None:
    """Routes and offsets of every partition; the first agent is down, the second answers."""
    cluster.topics["flights"][1].log_start_offset = 3
    states = fetch_states("flights", (UNUSED_URL, cluster.url(1)))
    assert [(state.log_start_offset, state.high_watermark) for state in states.values()] == [
        (0, 10),
        (3, 30),
        (0, 0),
    ]
    assert states[1].urls == (cluster.url(1), cluster.url(0))


def test_unknown_topics_and_absent_agents_get_one_line(cluster: Cluster) -> None:
    """The two errors that users meet first."""
    with pytest.raises(SourceError, match=r"^unknown topic 'fligths': .*there is no topic") as caught:
        fetch_states("fligths", (cluster.url(0), cluster.url(1)))
    assert "\n" not in str(caught.value)
    with pytest.raises(SourceError, match=r"^no agent answers .*SHOAL_AGENT.*127\.0\.0\.1:9") as caught:
        fetch_states("flights", (UNUSED_URL,))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("sent", [b"\x1b[2J\x00\x9c gossip\r\n\r\n\r\n", b"HTTP/9.9 " + b"x" * 100_000])
def test_what_is_no_agent_is_told_without_its_bytes(sent: bytes) -> None:
    """The port for gossip, say: what it sends is for no terminal and no log."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            for _ in range(10):
                with suppress(OSError):  # the listener is closed
                    connection, _ = listener.accept()
                    with connection:
                        connection.recv(65_536)
                        connection.sendall(sent)

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(SourceError) as caught:
            fetch_states("flights", (url,))
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    told = str(caught.value)
    assert "what answers there does not speak HTTP (a gossip port, perhaps)" in told
    assert told.isprintable()
    assert len(told) < 300


def test_planning_waits_for_a_leader(cluster: Cluster) -> None:
    """A fail-over while a query is planned delays it; one that does not end fails it, an error at once."""
    agents, pauses = (cluster.url(0),), list[float]()
    cluster.document_faults = [ShoalError("no-leader", "electing"), ShoalError("not-ready", "starting")]
    assert len(fetch_states("flights", agents, pause=pauses.append)) == 3
    assert pauses == [0.05, 0.1]
    cluster.document_faults = [ShoalError("no-leader", "electing")] * 50
    with pytest.raises(
        SourceError, match=r"^topic 'flights' cannot be read at present: .*503 no-leader: electing"
    ):
        fetch_states("flights", agents, pause=pauses.append)
    assert len(cluster.document_faults) == 40
    cluster.document_faults = [ShoalError("internal", "a bug")]
    with pytest.raises(SourceError, match="500 internal: a bug"):
        fetch_states("flights", agents, pause=pauses.append)


def test_a_nonsensical_hint_is_ignored(cluster: Cluster) -> None:
    """421 with an address that is none: the routes say better."""

    def misdirect(handler: Handler) -> bool:
        handler.problem(ShoalError("not-leader", "elsewhere", leader_url="nowhere at all:"))
        return True

    cluster.faults = [misdirect]
    assert values(read(scan(cluster, 1, 0, 30))) == expected(1, 0, 30)


def test_batches_are_what_spark_demands(cluster: Cluster) -> None:
    """Names, order, types and nullability of the wire schema; consecutive offsets; headers on demand."""
    (batch,) = read(scan(cluster, 0, 0, 10))
    assert batch.schema == WIRE_SCHEMA
    assert batch.column("offset").to_pylist() == list(range(10))
    assert batch.column("topic").to_pylist() == ["flights"] * 10
    assert batch.column("partition").to_pylist() == [0] * 10
    assert batch.column("timestampType").to_pylist() == [0] * 10
    assert batch.column("timestamp").cast("int64").to_pylist()[3] == 1_700_000_000_000_003
    assert batch.column("key").to_pylist()[:3] == [None, b"key-1", b"key-2"]
    (batch,) = read(scan(cluster, 0, 0, 10, columns=(*COLUMNS, HEADERS)))
    assert batch.column("headers").to_pylist()[:2] == [None, [{"key": "n", "value": b"1"}]]


@pytest.mark.parametrize(("start", "end"), [(0, 10), (0, 1), (3, 5), (4, 5), (5, 10), (9, 10), (2, 9)])
def test_only_the_wanted_rows_are_yielded(cluster: Cluster, start: int, end: int) -> None:
    """Rows of whole batches before the start and after the end are dropped."""
    for fetch_bytes in (1, 2**20):
        task = scan(cluster, 0, start, end, policy=FetchPolicy(fetch_bytes=fetch_bytes))
        assert values(read(task)) == expected(0, start, end)


def test_reads_go_straight_to_the_leader(cluster: Cluster) -> None:
    """One request for each answer, at the leader, not to be forwarded, resumed at Shoal-Next-Offset."""
    task = scan(cluster, 1, 0, 30, policy=FetchPolicy(fetch_bytes=1))
    assert values(read(task)) == expected(1, 0, 30)
    assert cluster.reads == [(1, 0, False), (1, 10, False)]


def test_a_new_leader_is_followed(cluster: Cluster) -> None:
    """421 with the leader's address, or routes that name it: the same range, from the other agent."""
    task = scan(cluster, 1, 0, 30, policy=FetchPolicy(fetch_bytes=1))
    batches = RangeReader(task, pause=lambda seconds: None).batches()
    first = next(batches)
    cluster.topics["flights"][1].leader = 0
    cluster.documents = 0
    assert values([first, *batches]) == expected(1, 0, 30)
    assert cluster.reads[-2:] == [(1, 10, False), (0, 10, False)]
    assert cluster.documents == 0  # the refusal said where


def test_a_dead_leader_is_left(cluster: Cluster) -> None:
    """Nobody listens at the planned address: agents are asked who leads now."""
    task = scan(cluster, 1, 0, 30, urls=(UNUSED_URL, UNUSED_URL))
    assert values(read(task)) == expected(1, 0, 30)


def test_a_leader_out_of_reach_is_read_through_others(cluster: Cluster) -> None:
    """An advertised address that executors cannot reach: any agent forwards."""
    agents = (cluster.url(0),)
    cluster.url = lambda agent: UNUSED_URL
    task = Scan(OffsetRange("flights", 1, 0, 30, (UNUSED_URL,)), agents)
    assert values(read(task)) == expected(1, 0, 30)
    assert all(forwarded for _, _, forwarded in cluster.reads)


def fail(code: str) -> Any:
    """A fault: answer with a problem."""

    def fault(handler: Handler) -> bool:
        handler.problem(ShoalError(code, "on purpose"))
        return True

    return fault


def cut(handler: Handler) -> bool:
    """A fault: the connection ends within the answer."""
    handler.arrow(0, 10, b"x" * 1_000, send_bytes=500)
    return True


def reset(handler: Handler) -> bool:
    """A fault: the connection ends without an answer."""
    handler.close_connection = True
    return True


def garble(handler: Handler) -> bool:
    """A fault: not Arrow."""
    handler.arrow(0, 10, b"<html>proxy error</html>")
    return True


def misplace(handler: Handler) -> bool:
    """A fault: records of somewhere else."""
    frames = handler.cluster.topics["flights"][0].frames
    handler.arrow(700, 710, schema_message(DEFAULT_SCHEMA) + b"".join(data for _, _, data in frames))
    return True


def miscount(handler: Handler) -> bool:
    """A fault: more offsets than records, which would leave a gap."""
    frames = handler.cluster.topics["flights"][1].frames
    body = schema_message(DEFAULT_SCHEMA) + b"".join(data for _, _, data in frames)
    handler.arrow(0, 31, body)
    return True


def flood(handler: Handler) -> bool:
    """A fault: far more than was asked for."""
    handler.arrow(0, 10, bytes(36 * 2**20))
    return True


def go_on(handler: Handler) -> bool:
    """No fault."""
    return False


def test_faults_between_and_within_answers_lose_and_repeat_nothing(cluster: Cluster) -> None:
    """Each kind of failure, between two good answers: resumed after the last record that was yielded."""
    moving = ("no-leader", "overloaded", "stopping", "timeout", "beyond-end", "not-ready", "leadership-lost")
    for fault in [*(fail(code) for code in moving), cut, reset, garble, misplace, miscount, flood]:
        cluster.faults = [fault, go_on, fault, fault]
        task = scan(cluster, 1, 5, 25, policy=FetchPolicy(fetch_bytes=1))
        assert values(read(task)) == expected(1, 5, 25)
        assert cluster.faults == []


def test_patience_is_bounded(cluster: Cluster) -> None:
    """A partition that stays without leader fails the task; pauses grow, but not for ever."""
    cluster.faults = [cut]
    with pytest.raises(SourceError, match=r"in 1 attempts; last: .* broke off within an answer"):
        read(scan(cluster, 0, 0, 10, policy=FetchPolicy(retries=Persistence(attempts=1))))
    cluster.reads.clear()
    cluster.faults = [fail("no-leader")] * 100
    pauses: list[float] = []
    task = scan(cluster, 0, 0, 10, policy=FetchPolicy(retries=Persistence(attempts=9)))
    with pytest.raises(
        SourceError, match=r"^partition 0 of topic 'flights': no answer for offset 0 in 9 attempts"
    ):
        list(RangeReader(task, pause=pauses.append).batches())
    assert len(cluster.reads) == 9
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]


def test_other_refusals_are_reported_at_once(cluster: Cluster) -> None:
    """A topic deleted under the query, an agent that fails: no attempt would change it."""
    for code in ("unknown-topic", "internal", "bad-request"):
        cluster.reads.clear()
        cluster.faults = [fail(code)]
        with pytest.raises(SourceError, match=f"{code}: on purpose$"):
            read(scan(cluster, 0, 0, 10))
        assert len(cluster.reads) == 1


@pytest.mark.parametrize(
    "answer", [{}, {"topics": 5}, {"topics": {"flights": {"partitions": [{}]}}}, b"<html>"]
)
def test_documents_that_are_not_understood_get_one_line(cluster: Cluster, answer: Any) -> None:
    """Something else listens at the agent's address."""
    cluster.routes_answer = answer
    with pytest.raises(SourceError, match=r"answer to /v1/routes is not understood|unknown topic"):
        fetch_states("flights", (cluster.url(0),))
    cluster.routes_answer, cluster.offsets_answer = None, answer
    with pytest.raises(SourceError, match="offsets is not understood"):
        fetch_states("flights", (cluster.url(0),))


def test_a_topic_deleted_while_a_query_is_planned_is_unknown(cluster: Cluster) -> None:
    """Routes still name it, its offsets are gone."""
    cluster.routes_answer = {"topics": {"gone": {"partitions": []}}}
    with pytest.raises(SourceError, match=r"^unknown topic 'gone'"):
        fetch_states("gone", (cluster.url(0),))


def test_agents_that_vanish_while_a_task_reads_are_waited_for(cluster: Cluster) -> None:
    """No address answers for a while, not even with routes: bounded, then one line."""
    task = Scan(OffsetRange("flights", 1, 0, 30, (UNUSED_URL,)), (UNUSED_URL,))
    with pytest.raises(SourceError, match=r"in 30 attempts; last: .*127\.0\.0\.1:9"):
        read(task)


def test_trimmed_records_fail_the_query_unless_told(cluster: Cluster) -> None:
    """failOnDataLoss decides whether the rest is read."""
    task = scan(cluster, 0, 0, 10)
    cluster.topics["flights"][0].log_start_offset = 7
    with pytest.raises(SourceError, match=r"trimmed.*failOnDataLoss"):
        read(task)
    assert values(read(scan(cluster, 0, 0, 10, fail_on_data_loss=False))) == expected(0, 7, 10)
    cluster.topics["flights"][0].log_start_offset = 10
    assert read(scan(cluster, 0, 0, 9, fail_on_data_loss=False)) == []


def test_typed_topics_are_refused(cluster: Cluster) -> None:
    """A topic without key and value has no place in these columns."""
    cluster.schema = pa.schema([("flight", pa.int64())])
    cluster.topics["flights"][0].frames.clear()
    cluster.topics["flights"][0].high_watermark = 0
    batch = pa.record_batch({"flight": [1]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    body = sink.getvalue().to_pybytes()

    def typed(handler: Handler) -> bool:
        handler.arrow(0, 1, body)
        return True

    cluster.faults = [typed]
    with pytest.raises(SourceError, match="own schema, without headers, key, timestamp, value"):
        read(scan(cluster, 0, 0, 1))


def test_a_replica_beside_the_reader_is_read(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader is elsewhere: the copy on this machine answers, told how far the log goes."""
    monkeypatch.setattr("shoal.spark.read.fetch.is_local", lambda host: host == "localhost")
    near = cluster.url(0).replace("127.0.0.1", "localhost")
    task = scan(cluster, 1, 0, 30, urls=(cluster.url(1), near), policy=FetchPolicy(fetch_bytes=1))
    assert values(read(task)) == expected(1, 0, 30)
    assert cluster.reads == [(0, 0, False), (0, 10, False)]
    assert "consistency=local" in cluster.requests[-1]
    cluster.reads.clear()
    cluster.faults = [go_on, fail("not-leader")]  # it has fallen behind
    assert values(read(task)) == expected(1, 0, 30)
    assert [agent for agent, _, _ in cluster.reads] == [0, 0, 1]
    assert is_local("127.0.0.1")
    assert is_local("localhost")
    assert not is_local("no-such-host.invalid")
    assert not is_local("192.0.2.1")


def test_connections_are_kept(cluster: Cluster) -> None:
    """Python workers live on: the next task uses the connections of the last; dead ones are left."""
    POOL.close()
    task = scan(cluster, 1, 0, 30, policy=FetchPolicy(fetch_bytes=1))
    assert values(read(task)) == expected(1, 0, 30)
    kept = [idle.connection for idle in POOL._idle]
    assert len(kept) == 2  # planning asked one agent, the task read from the other
    assert values(read(task)) == expected(1, 0, 30)
    assert {id(idle.connection) for idle in POOL._idle} == {id(connection) for connection in kept}
    for connection in kept:  # as after the agent has closed them
        connection.sock.shutdown(2)
    assert values(read(task)) == expected(1, 0, 30)


def test_large_batches_go_on_as_they_are(cluster: Cluster) -> None:
    """Joining them would copy every byte once more; small ones are joined."""
    assert len(read(scan(cluster, 1, 0, 30))) == 1
    big = record_batch_of(70_000)
    cluster.topics["flights"][1].frames = [(0, 70_000, big), (70_000, 70_000, big)]
    cluster.topics["flights"][1].high_watermark = 140_000
    batches = read(scan(cluster, 1, 10, 100_000, policy=FetchPolicy(fetch_bytes=32 * 2**20)))
    assert [batch.num_rows for batch in batches] == [69_990, 30_000]
    assert batches[1].column("offset")[0].as_py() == 70_000


def test_small_batches_are_joined_up_to_a_bound(cluster: Cluster) -> None:
    """A long answer of small batches goes on as a few of some megabytes, rows in order."""
    small = record_batch_of(2_000)
    count = 2 * JOINED_BYTES_MAX // len(small)
    cluster.topics["flights"][1].frames = [(number * 2_000, 2_000, small) for number in range(count)]
    cluster.topics["flights"][1].high_watermark = count * 2_000
    batches = read(scan(cluster, 1, 0, count * 2_000, policy=FetchPolicy(fetch_bytes=64 * 2**20)))
    assert 2 <= len(batches) <= 3
    assert all(batch.num_rows <= JOINED_BYTES_MAX // len(small) * 2_000 for batch in batches)
    offsets = pa.concat_arrays([batch.column("offset") for batch in batches])
    assert offsets.equals(pa.array(range(count * 2_000), pa.int64()))


def record_batch_of(rows: int) -> bytes:
    """A stored batch of so many equal records."""
    columns = [
        pa.repeat(pa.scalar(value, field.type), rows)
        for value, field in zip((0, b"k", b"v" * 10, None), DEFAULT_SCHEMA, strict=True)
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=DEFAULT_SCHEMA)
    return bytes(batch.serialize())


def test_columns_are_left_out(cluster: Cluster) -> None:
    """Only what was asked for, in that order, crosses to the JVM."""
    (batch,) = read(scan(cluster, 0, 0, 10, columns=("offset", "key")))
    assert batch.schema == pa.schema([("offset", pa.int64()), ("key", pa.binary())])


@pytest.mark.parametrize(("problem", "paused"), [
    ({"code": "quota-exceeded", "retry_after_ms": 7_500}, 7.5),
    ({"code": "quota-exceeded", "retry_after_ms": 10**9}, 60.0),
    ({"code": "quota-exceeded", "retry_after_ms": "x"}, 0.05),
    ({"code": "overloaded", "retry_after_ms": 7_500}, 0.05),
])  # fmt: skip
def test_a_quota_is_waited_for_as_long_as_an_agent_says(problem: dict[str, object], paused: float) -> None:
    """At most a minute at a time; other refusals have the usual pause."""
    search, pauses = LeaderSearch(["http://a"], None, lambda: None), list[float]()

    def work(attempt: int) -> int:
        if not attempt:
            raise search.refused("http://a", Answer(429, {}, json.dumps(problem).encode()))
        return attempt

    assert Persistence().persist(work, "x", pauses.append) == 1
    assert pauses == [paused]


def test_wrong_credentials_are_not_tried_again() -> None:
    """Also where their address has had so many that it is answered 429; other refusals with it may pass."""
    for code, moves in (("too-many-failed-logins", False), ("quota-exceeded", True), ("overloaded", True)):
        assert may_move(Answer(429, {}, json.dumps({"code": code}).encode())) is moves
    assert may_move(Answer(503, {}, b""))
    assert not may_move(Answer(401, {}, b""))
