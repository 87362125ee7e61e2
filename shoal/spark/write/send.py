"""Chunks of rows to the leaders of their partitions, each stored once however often it is sent.

No Spark here; standard library and pyarrow (decision 15). write.py decides the content of a chunk; its number
makes it safe to send it again (decision 14).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from shoal.client.http.routes import TopicRoutes
from shoal.credentials import NO_CREDENTIALS, Credentials
from shoal.format.arrow_stream import (
    ARROW_STREAM,
    HEADERS_COLUMN,
    KEY_COLUMN,
    SEQUENCES_PER_LANE,
    VALUE_COLUMN,
)
from shoal.spark.options.errors import SourceError
from shoal.spark.read.fetch import RangeReader, Scan
from shoal.spark.read.http import (
    DEFAULT_RETRIES,
    Answer,
    LeaderSearch,
    Persistence,
    document_of,
    may_move,
    pool_of,
    said,
)
from shoal.spark.read.plan import OffsetRange
from shoal.spark.read.topics import fetch_routes

CHUNK_BYTES: Final = 8 * 2**20
"""Of one request: half of what a stored batch may have, so that a chunk is never too large."""
APPEND_TIMEOUT: Final = "10s"  # how long an agent may wait for a leader and the acknowledgement
ROUTES_SECONDS_MAX: Final = 30.0  # how old routes may be: a leader that has moved says so itself
ROUTED_TOPICS_MAX: Final = 256  # remembered by a worker

SMALL_PART_BYTES: Final = 64 * 1024  # of a request: copied together, since a system call costs more

Body: TypeAlias = list[bytes | memoryview]
# Routes outlive a task: a worker serves many. A leader that has moved says so. The key names the agents: one
# worker may write to topics of one name in two clusters.
_ROUTES: dict[tuple[tuple[str, ...], str], tuple[float, TopicRoutes]] = {}


class Place(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"partition {self.partition} of topic {self.topic!r}"


@dataclass(frozen=True, slots=True)
class Sink:
    """Where a task writes, picklable. `topic` None: the column of that name decides."""

    agents: tuple[str, ...]
    topic: str | None
    policy: Persistence = DEFAULT_RETRIES
    chunk_bytes: int = CHUNK_BYTES
    credentials: Credentials = NO_CREDENTIALS


class Chunk(NamedTuple):
    place: Place
    sequence: int
    batch: pa.RecordBatch


class ChunkSender:
    """Sends chunks to leaders and follows them; used by several threads, each with another partition."""

    def __init__(
        self, sink: Sink, producer: str, epoch: int, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self._sink = sink
        self._producer = producer
        self._epoch = epoch
        self._pause = pause

    def routes(self, topic: str, *, fresh: bool = False, planning: bool = False) -> TopicRoutes:
        """A topic's partitions and leaders, as known to this worker. Raises SourceError, with `planning` at
        once where no agent answers."""
        place = (self._sink.agents, topic)
        known = _ROUTES.get(place)
        if fresh or known is None or time.monotonic() - known[0] > ROUTES_SECONDS_MAX:
            policy = self._sink.policy
            if fresh:
                routes = self._fetch_routes(topic)
            else:
                what = f"topic {topic!r} cannot be written at present"
                routes = policy.persist(
                    lambda _: self._fetch_routes(topic), what, self._pause, planning=planning
                )
            if len(_ROUTES) >= ROUTED_TOPICS_MAX:
                _ROUTES.clear()
            known = _ROUTES[place] = (time.monotonic(), routes)
        return known[1]

    def _fetch_routes(self, topic: str) -> TopicRoutes:
        advice = f"make it first (shoal topic create {topic} --partitions N)"
        return fetch_routes(pool_of(self._sink.credentials), topic, self._sink.agents, advice)

    def send(self, chunk: Chunk) -> bool:
        """Append a chunk, acknowledged by a majority; whether it had been before. Raises SourceError."""
        body = encoded(chunk.batch)
        policy = self._sink.policy
        known = _ROUTES.get((self._sink.agents, chunk.place.topic))
        leader = None if known is None else _leader_of(known[1], chunk.place)
        search = LeaderSearch(
            self._sink.agents,
            leader,
            lambda: _leader_of(self.routes(chunk.place.topic, fresh=True), chunk.place),
        )
        what = f"{chunk.place} was not written in {policy.attempts} attempts; last"
        return policy.persist(lambda attempt: self._attempt(chunk, body, search, attempt), what, self._pause)

    def _attempt(self, chunk: Chunk, body: Body, search: LeaderSearch, attempt: int) -> bool:
        base, _ = search.choose(attempt)
        answer = self._post(base, chunk, body)
        document = document_of(answer.body)
        if answer.status != 200:
            self._check_final(base, chunk, answer)
            raise search.refused(base, answer)
        is_repeated = document.get("duplicate") is True
        if is_repeated:
            self._compare(chunk, document)
        return is_repeated

    def _post(self, base: str, chunk: Chunk, body: Body) -> Answer:
        topic, partition = quote(chunk.place.topic, safe=""), chunk.place.partition
        headers = {
            "Content-Type": ARROW_STREAM,
            "Content-Length": str(sum(map(len, body))),
            "Shoal-Producer-Id": self._producer,
            "Shoal-Producer-Epoch": str(self._epoch),
            "Shoal-Producer-Sequence": str(chunk.sequence),
            "Shoal-Producer-Order": "lanes",
        }
        path = f"/v1/topics/{topic}/partitions/{partition}/records?timeout={APPEND_TIMEOUT}"
        return pool_of(self._sink.credentials).request(base, "POST", path, headers, body)

    def _check_final(self, base: str, chunk: Chunk, answer: Answer) -> None:
        """Raises SourceError for a refusal that no other attempt changes."""
        problem = document_of(answer.body)
        code = problem.get("code")
        if code == "sequence-gap":
            task, number = divmod(chunk.sequence, SEQUENCES_PER_LANE)
            raise SourceError(
                f"{chunk.place} no longer remembers this write (chunk {number} of task {task}; forgotten"
                " after a day of silence): look at its records, then write anew"
            )
        if code == "sequence-differs":
            raise self._differs(chunk, problem.get("count"))
        if code == "producer-fenced":
            raise SourceError(
                f"{chunk.place} holds a later micro-batch of this query: the query runs twice, or its"
                " checkpoint is an older copy; begin with a new checkpoint to write again"
            )
        if not may_move(answer) and problem.get("definite") is not False:
            raise SourceError(f"{chunk.place}: {said(base, answer)}")

    def _compare(self, chunk: Chunk, document: dict[str, Any]) -> None:
        """A chunk that was stored before must be this one. Raises SourceError when it is another."""
        try:
            (entry,) = document["appended"]
            base_offset, count = int(entry["base_offset"]), int(entry["count"])
        except (KeyError, TypeError, ValueError):
            return  # the agent no longer knows its offsets
        same = count == chunk.batch.num_rows
        if same:
            stored = self._stored(chunk.place, base_offset, count)
            same = stored is None or same_records(stored, pa.Table.from_batches([chunk.batch]))
        if not same:
            raise self._differs(chunk, count)

    def _differs(self, chunk: Chunk, count: object) -> SourceError:
        return SourceError(
            f"{chunk.place} holds other records ({count}) from an earlier attempt of this task than"
            f" this attempt has ({chunk.batch.num_rows}): a repeated task must bring the same rows, above"
            f" {self._sink.chunk_bytes // 2**20} MiB in the same order; add .sortWithinPartitions(...)"
        )

    def _stored(self, place: Place, base_offset: int, count: int) -> pa.Table | None:
        """The records at these offsets; None when some were trimmed meanwhile."""
        offsets = OffsetRange(place.topic, place.partition, base_offset, base_offset + count, ())
        columns = (KEY_COLUMN, VALUE_COLUMN, HEADERS_COLUMN)
        scan = Scan(
            offsets,
            self._sink.agents,
            columns,
            fail_on_data_loss=False,
            credentials=self._sink.credentials,
        )
        batches = list(RangeReader(scan, self._pause).batches())
        return pa.Table.from_batches(batches) if sum(map(len, batches)) == count else None


def _leader_of(routes: TopicRoutes, place: Place) -> str | None:
    route = routes.get(place.partition)
    return None if route is None else route.leader_url


def encoded(batch: pa.RecordBatch) -> Body:
    """The batch as an Arrow stream that refers to its columns' memory: only the socket copies it."""
    parts = _Parts()
    with pa.ipc.new_stream(pa.PythonFile(parts, "w"), batch.schema) as writer:
        writer.write_batch(batch)
    return parts.body()


class _Parts:
    """A file of memory: the parts in which it was written, small ones joined."""

    closed = False

    def __init__(self) -> None:
        self._parts: Body = []
        self._small: list[bytes] = []

    def write(self, data: bytes | pa.Buffer) -> None:
        """The next part: bytes, or a column's memory."""
        if len(data) < SMALL_PART_BYTES:
            self._small.append(bytes(data))
        else:
            self._parts += (b"".join(self._small), memoryview(data))
            self._small = []

    def body(self) -> Body:
        """All parts, none of them empty."""
        return [part for part in (*self._parts, b"".join(self._small)) if len(part)]

    def flush(self) -> None:
        """Nothing to flush."""

    def close(self) -> None:
        """Nothing to close."""


def same_records(one: pa.Table, other: pa.Table) -> bool:
    """Whether both hold the same keys, values and headers, in whatever order. No loop touches a record."""
    return bool(_sorted(one).equals(_sorted(other)))


def _sorted(table: pa.Table) -> pa.Table:
    columns = {KEY_COLUMN: table.column(KEY_COLUMN), VALUE_COLUMN: table.column(VALUE_COLUMN)}
    headers = table.column(HEADERS_COLUMN).combine_chunks()
    if isinstance(headers, pa.ChunkedArray):  # of no chunks, or of too many bytes for one
        headers = pa.concat_arrays(headers.chunks) if headers.num_chunks else pa.array([], headers.type)
    columns[HEADERS_COLUMN] = _flat(headers)
    made = pa.table(columns)
    return made.sort_by([(name, "ascending") for name in columns])


def _flat(headers: pa.Array) -> pa.Array:
    """Each record's headers as bytes that no other headers have; null for none or an empty list."""
    pairs = pc.list_flatten(headers)
    texts = pc.binary_join_element_wise(
        *(_measured(pc.struct_field(pairs, number)) for number in range(2)), pa.scalar(b"", pa.binary())
    )
    lengths = pc.fill_null(pc.list_value_length(headers), 0)
    ends = pc.cumulative_sum(lengths.cast(pa.int32()))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, texts), b"")
    return pc.if_else(pc.equal(lengths, 0), pa.scalar(None, pa.binary()), joined)


def _measured(column: pa.Array) -> pa.Array:
    """Each value behind its length, so that joined values keep their borders."""
    values = column.cast(pa.binary())
    lengths = pc.fill_null(pc.binary_length(values), -1).cast(pa.string()).cast(pa.binary())
    separator = pa.scalar(b":", pa.binary())
    return pc.binary_join_element_wise(lengths, pc.fill_null(values, b""), separator)
