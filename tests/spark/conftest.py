"""A small cluster that speaks the documented HTTP API from memory, and breaks on demand."""

from __future__ import annotations

import json
import os
import pathlib
import ssl
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
import pytest

from shoal.agent.partition.state.idempotence import ProducerTable
from shoal.errors import ShoalError
from shoal.format.batch import (
    DEFAULT_SCHEMA,
    Kind,
    LogIdentity,
    LogIndex,
    Offset,
    ProducerStamp,
    Term,
    control_frame,
    message_from_batch,
    producer_id_from_text,
    schema_message,
    stamp_message,
)
from shoal.format.hash_ranges import hash_ranges

# Each test has a Spark of its own that lives for seconds: what its compiler and collector would gain later
# never comes, and took a quarter of its time.
JAVA_OPTIONS = "JAVA_TOOL_OPTIONS"
os.environ.setdefault(JAVA_OPTIONS, "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
# Spark's Python and its JVM wait 15 s for each other's first word: too short for a JVM that has to share two
# cores with ten busy processes.
os.environ.setdefault(
    "PYSPARK_SUBMIT_ARGS", "--conf spark.python.authenticate.socketTimeout=300s pyspark-shell"
)
# Runs first: what it keeps, the other tests that start Spark go without otherwise.
KEEPS_CLASSES = "keeps_classes"

IDENTITY = LogIdentity(bytes(16), bytes(16), 0)
FIRST_TIME_US = 1_700_000_000_000_000

Fault = Callable[["Handler"], bool]
WriteFault = Callable[["Handler", Callable[[], None]], None]  # is given the append, and may answer


def batch_of(columns: list[list[Any]]) -> pa.RecordBatch:
    """Times, keys, values and headers of records, as agents keep them."""
    arrays = [pa.array(values, f.type) for values, f in zip(columns, DEFAULT_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=DEFAULT_SCHEMA)


def record_batch(partition: int, first: int, rows: int) -> pa.RecordBatch:
    """Records whose value says where they lie."""
    offsets = range(first, first + rows)
    columns: list[list[Any]] = [
        [FIRST_TIME_US + offset for offset in offsets],
        [None if offset % 7 == 0 else b"key-%d" % (offset % 3) for offset in offsets],
        [b"%d:%d" % (partition, offset) for offset in offsets],
        [[("n", b"%d" % offset)] if offset % 2 else None for offset in offsets],
    ]
    return batch_of(columns)


@dataclass
class Log:
    """One partition: (base offset, rows, stored bytes) of each batch."""

    frames: list[tuple[int, int, bytes]] = field(default_factory=list)
    log_start_offset: int = 0
    high_watermark: int = 0
    leader: int = 0
    producers: ProducerTable = field(default_factory=ProducerTable)

    def store(self, batch: pa.RecordBatch, producer: ProducerStamp) -> tuple[int, bool]:
        """Append a producer's batch as an agent would: (base offset, whether it was there already)."""
        kept = self.producers.check(producer, rows=batch.num_rows, elapsed_us=0)
        if kept is not None:
            return kept.base_offset, True
        base = self.high_watermark
        place = {"term": Term(1), "previous_term": Term(0), "index": LogIndex(1), "append_time_us": 0}
        frame = stamp_message(message_from_batch(batch), IDENTITY, base_offset=Offset(base), **place)
        self.frames.append((base, batch.num_rows, frame.data))
        self.high_watermark += batch.num_rows
        self.producers.record(
            producer,
            base_offset=Offset(base),
            count=batch.num_rows,
            index=LogIndex(base + 1),
            elapsed_us=0,
        )
        return base, False

    def append(self, partition: int, rows: int) -> None:
        """Add one batch, and a control frame behind it as an election would."""
        self._append_batch(record_batch(partition, self.high_watermark, rows))

    def append_values(self, values: list[bytes]) -> None:
        """Likewise one batch of these values, without keys."""
        times = [FIRST_TIME_US] * len(values)
        self._append_batch(batch_of([times, [None] * len(values), values, [None] * len(values)]))

    def _append_batch(self, batch: pa.RecordBatch) -> None:
        place = {"term": Term(1), "previous_term": Term(0), "index": LogIndex(1), "append_time_us": 0}
        message = message_from_batch(batch)
        frame = stamp_message(message, IDENTITY, base_offset=Offset(self.high_watermark), **place)
        self.frames.append((self.high_watermark, batch.num_rows, frame.data))
        self.high_watermark += batch.num_rows
        control = control_frame(
            DEFAULT_SCHEMA,
            IDENTITY,
            kind=Kind.NOOP,
            control=b"",
            base_offset=Offset(self.high_watermark),
            **place,
        )
        self.frames.append((self.high_watermark, 0, control.data))


class Cluster:
    """Agents on loopback. Each knows everything, but only leaders serve what may not be forwarded."""

    def __init__(self) -> None:
        self.topics: dict[str, dict[int, Log]] = {}
        self.schema = DEFAULT_SCHEMA
        self.documents = 0  # requests for routes or offsets
        self.routes_answer: Any = None  # instead of the true ones
        self.offsets_answer: Any = None
        self.document_faults: list[ShoalError] = []  # one is raised by each request for routes or offsets
        self.faults: list[Fault] = []  # one is taken by each record request, and may answer it
        self.reads: list[tuple[int, int, bool]] = []  # agent, offset, forwarding allowed
        self.agents: list[ThreadingHTTPServer] = []
        self.lock = threading.Lock()  # appends are one after the other, as in an agent
        self.write_faults: list[WriteFault] = []  # one is taken by each append
        self.writes: list[tuple[int, str, int, int, int]] = []  # partition, producer, epoch, sequence, rows
        self.requests: list[str] = []  # paths, of all agents
        self.credentials: list[str | None] = []  # of each request
        self.refuses: str | None = None  # a request with this one
        self.tls: ssl.SSLContext | None = None  # for agents that start from now on

    def start_agent(self) -> str:
        """Another agent; returns its URL."""
        handler = type("BoundHandler", (Handler,), {"cluster": self, "number": len(self.agents)})
        server = Server(("127.0.0.1", 0), handler)
        server.daemon_threads = True
        if self.tls is not None:
            server.socket = self.tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        self.agents.append(server)
        return self.url(len(self.agents) - 1)

    def url(self, agent: int) -> str:
        """Where an agent listens."""
        scheme = "https" if isinstance(self.agents[agent].socket, ssl.SSLSocket) else "http"
        return f"{scheme}://127.0.0.1:{self.agents[agent].server_address[1]}"

    def fill(self, topic: str, *sizes: tuple[int, ...]) -> None:
        """A topic with one partition for each tuple of batch sizes, led by the agents in turn."""
        self.topics[topic] = {}
        for partition, rows in enumerate(sizes):
            log = self.topics[topic][partition] = Log(leader=partition % len(self.agents))
            for count in rows:
                log.append(partition, count)

    def stop(self) -> None:
        """Close all ports."""
        for server in self.agents:
            server.shutdown()
            server.server_close()


class Server(ThreadingHTTPServer):
    """Tells of no client that has left: a trace from a thread, later, disturbs other tests (`ast` is not safe
    for threads in Python 3.11)."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Anything else is told."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """The three routes that a reader needs."""

    cluster: Cluster
    number: int
    protocol_version = "HTTP/1.1"
    timeout = 20

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class calls it so
        """Quiet."""

    def note(self) -> None:
        """Remember the request."""
        self.cluster.requests.append(self.path)
        self.cluster.credentials.append(self.headers["Authorization"])

    def do_GET(self) -> None:
        """Route one request."""
        self.note()
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        steps = parts.path.strip("/").split("/")
        try:
            if self.cluster.refuses is not None and self.headers["Authorization"] == self.cluster.refuses:
                raise ShoalError("unauthenticated", "the token has expired")
            self.cluster.documents += steps[-1] != "records"
            if steps[-1] != "records" and self.cluster.document_faults:
                raise self.cluster.document_faults.pop(0)
            if steps == ["v1", "agent"]:
                self.document(None, lambda _: {"name": f"{self.number}", "cluster": "fake"}, "")
            elif steps == ["v1", "routes"]:
                self.document(self.cluster.routes_answer, self.routes, query["topic"])
            elif steps == ["v1", "topics"]:
                self.document(None, self.listed, query.get("cursor", ""))
            elif steps[-1] == "offsets":
                self.wait(steps[2], query)
                made = partial(self.offsets, at=query.get("at"))
                self.document(self.cluster.offsets_answer, made, steps[2])
            else:
                self.records(steps[2], int(steps[4]), int(query["offset"]), query)
        except ShoalError as error:
            self.problem(error)

    def do_POST(self) -> None:
        """An append by a producer to one partition."""
        self.note()
        steps = urlsplit(self.path).path.strip("/").split("/")
        body = self.rfile.read(int(self.headers["Content-Length"]))
        problems: list[ShoalError] = []
        documents: list[dict[str, Any]] = []

        def apply() -> None:
            """Append, and have the answer ready."""
            try:
                with self.cluster.lock:
                    documents.append(self.append_batch(steps[2], int(steps[4]), body))
            except ShoalError as error:
                problems.append(error)

        if self.cluster.write_faults:
            self.cluster.write_faults.pop(0)(self, apply)
        else:
            apply()
        if self.close_connection:
            return
        if documents:
            self.answer(200, "application/json", json.dumps(documents[0]).encode())
        elif problems:
            self.problem(problems[0])

    def append_batch(self, name: str, partition: int, body: bytes) -> dict[str, Any]:
        """As docs/http.md says."""
        producer, epoch, sequence = (
            self.headers[f"Shoal-Producer-{part}"] for part in ("Id", "Epoch", "Sequence")
        )
        assert self.headers["Shoal-Producer-Order"] == "lanes"
        stamp = ProducerStamp(producer_id_from_text(producer), int(epoch), int(sequence), in_lanes=True)
        log = self.topic(name).get(partition)
        if log is None:
            raise ShoalError("unknown-partition", "no such partition")
        with pa.ipc.open_stream(body) as reader:
            batch = pa.concat_batches(list(reader))
        if batch.schema != self.cluster.schema:
            raise ShoalError("schema-mismatch", "the stream's schema is not the topic's")
        base, duplicate = log.store(batch, stamp)
        kept = log.producers.check(stamp, rows=batch.num_rows, elapsed_us=0)
        assert kept is not None
        entry = {"partition": partition, "base_offset": base, "count": kept.rows}
        document: dict[str, Any] = {"count": kept.rows, "appended": [entry]}
        if duplicate:
            return document | {"duplicate": True}
        self.cluster.writes.append((partition, producer, stamp.epoch, stamp.sequence, batch.num_rows))
        return document

    def topic(self, name: str) -> dict[int, Log]:
        """The topic's partitions."""
        if name not in self.cluster.topics:
            raise ShoalError("unknown-topic", f"there is no topic {name!r}")
        return self.cluster.topics[name]

    def routes(self, name: str) -> dict[str, Any]:
        """As docs/http.md says."""
        partitions = [
            {
                "partition": partition,
                "hash_range": list(hash_ranges(len(self.topic(name)))[partition]),
                "term": 1,
                "leader": f"{log.leader}",
                "leader_url": self.cluster.url(log.leader),
                "replicas": [
                    {"id": f"{number}", "url": self.cluster.url(number), "role": "voter"}
                    for number in range(len(self.cluster.agents))
                ],
            }
            for partition, log in self.topic(name).items()
        ]
        return {"version": "run.1", "topics": {name: {"id": "00", "partitions": partitions}}}

    def listed(self, cursor: str) -> dict[str, Any]:
        """Two topics a page."""
        names = sorted(name for name in self.cluster.topics if name > cursor)
        page: dict[str, Any] = {"topics": [{"name": name} for name in names[:2]]}
        return page | ({"next_cursor": names[1]} if len(names) > 2 else {})

    def wait(self, name: str, query: dict[str, str]) -> None:
        """Until one of the partitions in ?after= has passed its place, at most ?wait=."""
        deadline = time.monotonic() + int(query.get("wait", "0ms").removesuffix("ms")) / 1000
        places = [piece.split(":") for piece in query.get("after", "").split(",") if piece]
        while places and time.monotonic() < deadline:
            logs = self.topic(name)
            if any(int(partition) not in logs for partition, _ in places):
                raise ShoalError("unknown-partition", "no such partition")
            if any(logs[int(partition)].high_watermark > int(offset) for partition, offset in places):
                return
            time.sleep(0.005)

    def offsets(self, name: str, at: str | None = None) -> dict[str, Any]:
        """As docs/http.md says; records lie a microsecond apart."""
        entries = []
        for partition, log in self.topic(name).items():
            entry = {
                "partition": partition,
                "log_start_offset": log.log_start_offset,
                "high_watermark": log.high_watermark,
                "log_end_offset": log.high_watermark,
            }
            if at is not None:
                first = max(log.log_start_offset, int(at) * 1000 - FIRST_TIME_US)
                entry["offset"] = min(first, log.high_watermark)
            entries.append(entry)
        return {"partitions": entries}

    def records(self, name: str, partition: int, offset: int, query: dict[str, str]) -> None:
        """Whole batches from the one that holds `offset`, up to max_bytes."""
        log = self.topic(name)[partition]
        may_forward = query.get("forward") != "false"
        self.cluster.reads.append((self.number, offset, may_forward))
        if self.cluster.faults and self.cluster.faults.pop(0)(self):
            return
        local = query.get("consistency") == "local"
        if self.number != log.leader and not may_forward and not local:
            url = self.cluster.url(log.leader)
            raise ShoalError(
                "not-leader", "another agent leads", leader=f"{log.leader}", leader_url=url, term=1
            )
        if offset < log.log_start_offset:
            raise ShoalError("trimmed", "gone", log_start_offset=log.log_start_offset)
        if offset > log.high_watermark:
            raise ShoalError("beyond-end", "not there yet", high_watermark=log.high_watermark)
        taken: list[tuple[int, int, bytes]] = []
        for frame in log.frames:
            if frame[0] + frame[1] > offset:
                taken.append(frame)
                if sum(len(data) for _, _, data in taken) > int(query["max_bytes"]):
                    break
        base, end = (taken[0][0], taken[-1][0] + taken[-1][1]) if taken else (offset, offset)
        self.arrow(
            base, end, b"".join([schema_message(self.cluster.schema), *(data for _, _, data in taken)])
        )

    def arrow(
        self, base_offset: int, next_offset: int, body: bytes, *, send_bytes: int | None = None
    ) -> None:
        """An Arrow answer; with `send_bytes` the connection ends within it."""
        self.send_response(200)
        self.send_header("Content-Type", "application/vnd.apache.arrow.stream")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Shoal-Base-Offset", str(base_offset))
        self.send_header("Shoal-Next-Offset", str(next_offset))
        self.end_headers()
        self.wfile.write(body[:send_bytes])
        if send_bytes is not None:
            self.close_connection = True

    def document(self, instead: Any, make: Callable[[str], Any], topic: str) -> None:
        """A JSON answer, or what a test wants said instead of it."""
        made = make(topic) if instead is None else instead
        self.answer(200, "application/json", made if isinstance(made, bytes) else json.dumps(made).encode())

    def problem(self, error: ShoalError) -> None:
        """A problem document."""
        self.answer(error.status, "application/problem+json", json.dumps(error.to_problem()).encode())

    def answer(self, status: int, media_type: str, body: bytes) -> None:
        """A whole answer."""
        self.send_response(status)
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The test whose Spark keeps its classes comes first."""
    items.sort(key=lambda item: KEEPS_CLASSES not in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session")
def class_archive() -> Iterator[pathlib.Path]:
    """Where a Spark leaves the classes that it loaded, ready to be mapped: 160 MB, while tests run."""
    with tempfile.TemporaryDirectory() as directory:
        yield pathlib.Path(directory) / "spark.jsa"


@pytest.fixture
def keeps_classes(class_archive: pathlib.Path) -> Iterator[dict[str, str]]:
    """Variables for a Spark that leaves its classes at its end, to those that start later: loading and
    checking them is half of what a short Spark does. A Java that cannot leaves none, and all is as without.
    """
    options = os.environ[JAVA_OPTIONS]
    yield {JAVA_OPTIONS: f"{options} -XX:ArchiveClassesAtExit={class_archive} -Xlog:disable"}
    if class_archive.exists():
        os.environ[JAVA_OPTIONS] = f"{options} -XX:SharedArchiveFile={class_archive}"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Two agents and the topic `flights` with three partitions: 10, 30 and no records."""
    built = Cluster()
    built.start_agent()
    built.start_agent()
    built.fill("flights", (4, 1, 5), (10, 20), ())
    yield built
    built.stop()
