"""Chunks of rows to the leaders of their partitions, each stored once however often it is sent.

No Spark here; standard library and pyarrow (decision 15). What a chunk holds is decided elsewhere (write.py),
and so is why its number makes it safe to send it again (decision 14).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote, urlencode

import pyarrow as pa
import pyarrow.compute as pc

from shoal.client.http.routes import RouteTable, TopicRoutes
from shoal.format.arrow_stream import HEADERS_COLUMN, KEY_COLUMN, SEQUENCES_PER_LANE, VALUE_COLUMN
from shoal.spark.fetch import ARROW_MEDIA_TYPE, RangeReader, Scan
from shoal.spark.http import (
    DEFAULT_RETRIES,
    MOVING_STATUSES,
    POOL,
    Answer,
    MovedError,
    RetryPolicy,
    ask,
    document_of,
    persist,
    said,
)
from shoal.spark.options import SourceError, normal_url
from shoal.spark.plan import OffsetRange
from shoal.spark.topics import UnknownTopicError

CHUNK_BYTES: Final = 8 * 2**20
"""Of one request: half of what a stored batch may have, so that a chunk is never too large."""
APPEND_TIMEOUT: Final = "10s"  # how long an agent may wait for a leader and the acknowledgement
ROUTES_SECONDS_MAX: Final = 30.0  # how old routes may be: a leader that has moved says so itself
ROUTED_TOPICS_MAX: Final = 256  # remembered by a worker

SMALL_PART_BYTES: Final = 64 * 1024  # of a request: copied together, since a system call costs more

Body: TypeAlias = list[bytes | memoryview]
# Routes outlive a task: a worker serves many. Leaders that have moved say so. By agents too: the same worker
# may write to topics of one name in two clusters.
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
    policy: RetryPolicy = DEFAULT_RETRIES
    chunk_bytes: int = CHUNK_BYTES


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
        """A topic's partitions and leaders, as known to this worker. Raises SourceError; `planning`: at once
        where nobody answers, for somebody waits for the query to begin."""
        place = (self._sink.agents, topic)
        known = _ROUTES.get(place)
        if fresh or known is None or time.monotonic() - known[0] > ROUTES_SECONDS_MAX:
            policy = self._sink.policy
            if fresh:
                routes = self._fetch_routes(topic)
            else:
                routes = persist(
                    lambda: self._fetch_routes(topic),
                    policy.plan_attempts if planning else policy.attempts,
                    f"topic {topic!r} cannot be written at present",
                    policy=policy,
                    pause=self._pause,
                    patient=not planning,
                )
            if len(_ROUTES) >= ROUTED_TOPICS_MAX:
                _ROUTES.clear()
            known = _ROUTES[place] = (time.monotonic(), routes)
        return known[1]

    def _fetch_routes(self, topic: str) -> TopicRoutes:
        document, refusal = ask(POOL, self._sink.agents, f"/v1/routes?{urlencode({'topic': topic})}")
        table = RouteTable()
        if refusal is None:
            try:
                table.learn(document)
            except ValueError as error:
                raise SourceError(f"an agent's answer to /v1/routes is not understood ({error})") from error
        routes = table.topic(topic)
        if routes is None or not routes.partitions:
            raise UnknownTopicError(
                f"unknown topic {topic!r}: make it first (shoal topic create {topic} --partitions N)"
                + (f"; {refusal}" if refusal else "")
            )
        return routes

    def send(self, chunk: Chunk) -> bool:
        """Append a chunk, acknowledged by a majority; whether it had been before. Raises SourceError."""
        batch = chunk.batch
        body = encoded(batch)
        policy = self._sink.policy
        hint: str | None = None
        failure = ""
        for attempt in range(policy.attempts):
            if attempt and hint is None:
                self._pause(policy.pause_seconds(attempt))
            try:
                base = hint or self._target(chunk.place, attempt)
                hint = None
                answer = self._post(base, chunk, body)
                if answer.status == 200:
                    return self._acknowledged(chunk, document_of(answer.body))
                hint = self._refused(base, chunk, answer)
                failure = said(base, answer)
            except MovedError as error:
                failure = str(error)
        raise SourceError(f"{chunk.place} was not written in {policy.attempts} attempts; last: {failure}")

    def _target(self, place: Place, attempt: int) -> str:
        """The leader as known; then by turns the leader as agents name it, and any agent, which forwards."""
        agents = self._sink.agents
        if attempt % 2 == 0 and attempt > 0:
            return agents[(attempt // 2) % len(agents)]
        try:
            routes = self.routes(place.topic, fresh=attempt % 2 == 1)
        except UnknownTopicError:
            raise
        except SourceError as error:  # while agents change places none may answer: another attempt may
            raise MovedError(str(error)) from error
        route = routes.get(place.partition)
        return (route.leader_url if route is not None else None) or agents[attempt % len(agents)]

    def _post(self, base: str, chunk: Chunk, body: Body) -> Answer:
        topic, partition = quote(chunk.place.topic, safe=""), chunk.place.partition
        headers = {
            "Content-Type": ARROW_MEDIA_TYPE,
            "Content-Length": str(sum(map(len, body))),
            "Shoal-Producer-Id": self._producer,
            "Shoal-Producer-Epoch": str(self._epoch),
            "Shoal-Producer-Sequence": str(chunk.sequence),
            "Shoal-Producer-Order": "lanes",
        }
        path = f"/v1/topics/{topic}/partitions/{partition}/records?timeout={APPEND_TIMEOUT}"
        return POOL.request(base, "POST", path, headers, body)

    def _refused(self, base: str, chunk: Chunk, answer: Answer) -> str | None:
        """The leader's address if it was named; SourceError when final."""
        problem = document_of(answer.body)
        code = problem.get("code")
        if code == "sequence-gap":
            task, number = divmod(chunk.sequence, SEQUENCES_PER_LANE)
            raise SourceError(
                f"{chunk.place} does not remember this write any more (chunk {number} of task {task};"
                " forgotten after a day of silence): see what it holds, then write anew"
            )
        if code == "sequence-differs":
            raise self._differs(chunk, problem.get("count"))
        if code == "producer-fenced":
            raise SourceError(
                f"{chunk.place} holds a later micro-batch of this query: it runs twice, or its checkpoint was"
                " put back to an older copy; begin with a new checkpoint to write again"
            )
        if answer.status not in MOVING_STATUSES and problem.get("definite") is not False:
            raise SourceError(f"{chunk.place}: {said(base, answer)}")
        hint: str | None = None
        leader_url = problem.get("leader_url")
        if answer.status == 421 and isinstance(leader_url, str):
            with suppress(SourceError):  # an address that is none: routes are asked next
                hint = normal_url(leader_url)
        return hint

    def _acknowledged(self, chunk: Chunk, document: dict[str, Any]) -> bool:
        repeated = document.get("duplicate") is True
        if repeated:
            self._compare(chunk, document)
        return repeated

    def _compare(self, chunk: Chunk, document: dict[str, Any]) -> None:
        """A chunk that was stored before must be this one. Raises SourceError when it is another."""
        try:
            (entry,) = document["appended"]
            base_offset, count = int(entry["base_offset"]), int(entry["count"])
        except (KeyError, TypeError, ValueError):
            return  # the agent does not know any more where it lies
        same = count == chunk.batch.num_rows
        if same:
            stored = self._stored(chunk.place, base_offset, count)
            same = stored is None or same_records(stored, pa.Table.from_batches([chunk.batch]))
        if not same:
            raise self._differs(chunk, count)

    def _differs(self, chunk: Chunk, count: object) -> SourceError:
        return SourceError(
            f"{chunk.place} holds other records ({count}) from an earlier attempt of this task than"
            f" it brings now ({chunk.batch.num_rows}): a repeated task must bring the same rows, above"
            f" {self._sink.chunk_bytes // 2**20} MiB in the same order; add .sortWithinPartitions(...)"
        )

    def _stored(self, place: Place, base_offset: int, count: int) -> pa.Table | None:
        """What lies there; None when some or all of it was trimmed meanwhile."""
        offsets = OffsetRange(place.topic, place.partition, base_offset, base_offset + count, ())
        columns = (KEY_COLUMN, VALUE_COLUMN, HEADERS_COLUMN)
        scan = Scan(offsets, self._sink.agents, columns, fail_on_data_loss=False)
        batches = list(RangeReader(scan, self._pause).batches())
        return pa.Table.from_batches(batches) if sum(map(len, batches)) == count else None


def encoded(batch: pa.RecordBatch) -> Body:
    """The batch as an Arrow stream, its columns' memory as it is: nothing of it is copied before the system
    takes it."""
    parts = _Parts()
    with pa.ipc.new_stream(pa.PythonFile(parts, "w"), batch.schema) as writer:
        writer.write_batch(batch)
    return parts.body()


class _Parts:
    """A file that is written once, as the parts it was written in; small ones together."""

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
        """Nothing waits."""

    def close(self) -> None:
        """It is only memory."""


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
    """Each record's headers as one text of bytes, which no other headers have; null where there are none, or
    an empty list of them."""
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
    """Each value behind its length, so that the borders of joined ones can be told."""
    values = column.cast(pa.binary())
    lengths = pc.fill_null(pc.binary_length(values), -1).cast(pa.string()).cast(pa.binary())
    separator = pa.scalar(b":", pa.binary())
    return pc.binary_join_element_wise(lengths, pc.fill_null(values, b""), separator)
