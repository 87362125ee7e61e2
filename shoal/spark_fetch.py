"""Read agents from inside Spark: who leads, where logs begin and end, and the records of one range.

Standard library and pyarrow only, blocking: it runs in Spark's Python workers, where nothing else that Shoal
needs is installed. Answers are not trusted to be small, complete or in order. No loop here touches a record.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

import pyarrow as pa

from shoal.arrow_stream import (
    HEADERS_COLUMN,
    KEY_COLUMN,
    MAX_FRAME_BYTES,
    TIMESTAMP_COLUMN,
    VALUE_COLUMN,
    decode_stream,
)
from shoal.spark_options import OffsetRange, PartitionState, SourceError, data_loss, normal_url

ARROW_MEDIA_TYPE: Final = "application/vnd.apache.arrow.stream"
REQUEST_SECONDS_MAX: Final = 30.0  # silence of one connection: an agent answers or forwards within 5 s
DOCUMENT_BYTES_MAX: Final = 64 * 2**20  # routes of the largest cluster: some hundred bytes for each partition

_CREATE_TIME: Final = 0  # Kafka's timestampType: the producer's time
_MOVING_STATUSES: Final = frozenset({416, 421, 429, 502, 503, 504})
"""Answers that another attempt may change. 416 too: what is read was committed, so that agent is behind."""


class FetchPolicy(NamedTuple):
    """Bounds of reading. With these pauses 30 attempts span 50 s: any election, most restarts."""

    fetch_bytes: int = 8 * 2**20  # one answer, and so one batch for Spark: 1 to 10 MB are best
    attempts: int = 30  # without progress
    plan_attempts: int = 10  # 10 s: somebody waits for the query to begin
    first_pause_seconds: float = 0.05
    pause_seconds_max: float = 2.0

    def pause_seconds(self, attempt: int) -> float:
        """How long to wait before an attempt; the first has number 0 and no pause."""
        return min(self.pause_seconds_max, self.first_pause_seconds * 2.0 ** (attempt - 1))


DEFAULT_POLICY: Final = FetchPolicy()


class _Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes


class _MovedError(Exception):
    """This attempt failed, another may not."""


class _TrimmedError(Exception):
    """The records wanted are gone, and the query goes on without them."""

    def __init__(self, log_start_offset: int) -> None:
        super().__init__(log_start_offset)
        self.log_start_offset = log_start_offset


class _Connection:
    """One kept-alive connection, reopened when the agent changes."""

    def __init__(self) -> None:
        self._base: str | None = None
        self._connection: http.client.HTTPConnection | None = None

    def get(self, base: str, path: str, accept: str, bytes_max: int) -> _Answer:
        """GET from the agent at `base`. Raises _MovedError when it cannot be reached or breaks off."""
        try:
            connection = self._open(base)
            connection.request("GET", path, headers={"Accept": accept})
            response = connection.getresponse()
            body = response.read(bytes_max + 1)
            if len(body) > bytes_max:
                raise _MovedError(f"{base} sent more than {bytes_max} bytes")
            if response.length:  # read(n) does not complain when the connection ends early
                raise _MovedError(f"{base} broke off within an answer")
        except (OSError, http.client.HTTPException, _MovedError) as error:
            self.close()
            if isinstance(error, _MovedError):
                raise
            raise _MovedError(f"{base}: {error or type(error).__name__}") from error
        return _Answer(response.status, response.headers, body)

    def _open(self, base: str) -> http.client.HTTPConnection:
        if self._connection is not None and self._base == base:
            return self._connection
        self.close()
        parts = urlsplit(base)
        secure = parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        self._base, self._connection = base, kind(parts.netloc, timeout=REQUEST_SECONDS_MAX)
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._base = self._connection = None


def _problem(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _said(base: str, answer: _Answer) -> str:
    problem = _problem(answer.body)
    words = problem.get("detail") or problem.get("title") or "no detail given"
    return f"{base} says {answer.status} {problem.get('code', '')}: {' '.join(str(words).split())[:300]}"


def _ask(connection: _Connection, agents: Sequence[str], path: str) -> tuple[dict[str, Any], str | None]:
    """A JSON document from the first agent that has it, or why one refused.

    Raises SourceError when no agent is reached or one fails, _MovedError when another attempt may succeed.
    """
    refusal, moving, unreached = None, [], []
    for base in agents:
        try:
            answer = connection.get(base, path, "application/json", DOCUMENT_BYTES_MAX)
        except _MovedError as error:
            unreached.append(str(error))
            continue
        if answer.status == 200:
            return _problem(answer.body), None
        if answer.status == 404:
            refusal = _said(base, answer)  # an agent that has just joined may not know it yet
        elif answer.status in _MOVING_STATUSES:
            moving.append(_said(base, answer))
        else:
            raise SourceError(_said(base, answer))
    if refusal is not None:
        return {}, refusal
    if moving:
        raise _MovedError("; ".join(moving))
    raise SourceError(f"no agent answers (option agent, or SHOAL_AGENT): {'; '.join(unreached)}")


def fetch_states(
    topic: str,
    agents: Sequence[str],
    policy: FetchPolicy = DEFAULT_POLICY,
    pause: Callable[[float], None] = time.sleep,
) -> dict[int, PartitionState]:
    """Partitions of a topic with their offsets and addresses; waits while a partition has no leader.

    Raises SourceError: no such topic, no agent reached, no answer within policy.plan_attempts.
    """
    connection = _Connection()
    try:
        for attempt in range(policy.plan_attempts):
            if attempt:
                pause(policy.pause_seconds(attempt))
            try:
                return _fetch_states(connection, topic, agents)
            except _MovedError as error:
                failure = str(error)
    finally:
        connection.close()
    raise SourceError(f"topic {topic!r} cannot be read at present: {failure}")


def _fetch_states(connection: _Connection, topic: str, agents: Sequence[str]) -> dict[int, PartitionState]:
    routes = _fetch_routes(connection, topic, agents)
    path = f"/v1/topics/{quote(topic, safe='')}/offsets"
    document, refusal = _ask(connection, agents, path)
    if refusal is not None:
        raise SourceError(f"unknown topic {topic!r}: {refusal}")
    try:
        return {
            int(entry["partition"]): PartitionState(
                int(entry["log_start_offset"]), int(entry["high_watermark"]), routes[int(entry["partition"])]
            )
            for entry in document["partitions"]
        }
    except (KeyError, TypeError, ValueError) as error:
        raise SourceError(f"an agent's answer to {path} is not understood ({error!r})") from error


def _fetch_routes(connection: _Connection, topic: str, agents: Sequence[str]) -> dict[int, tuple[str, ...]]:
    """Addresses of each partition's replicas, the leader's first."""
    document, refusal = _ask(connection, agents, f"/v1/routes?{urlencode({'topic': topic})}")
    try:
        described = document["topics"].get(topic) if refusal is None else None
        if described is None:
            raise SourceError(f"unknown topic {topic!r}" + (f": {refusal}" if refusal else ""))
        return {int(entry["partition"]): _replica_urls(entry) for entry in described["partitions"]}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise SourceError(f"an agent's answer to /v1/routes is not understood ({error!r})") from error


def _replica_urls(entry: dict[str, Any]) -> tuple[str, ...]:
    urls = [entry.get("leader_url"), *(replica.get("url") for replica in entry.get("replicas", ()))]
    return tuple(dict.fromkeys(normal_url(url) for url in urls if url))


@dataclass(frozen=True, slots=True)
class Scan:
    """All that a task needs to read one range, picklable."""

    range: OffsetRange
    agents: tuple[str, ...]
    include_headers: bool
    fail_on_data_loss: bool
    policy: FetchPolicy = DEFAULT_POLICY


class RangeReader:
    """Reads one range from its leader, follows it when it moves, resumes after the last yielded record."""

    def __init__(self, scan: Scan, pause: Callable[[float], None] = time.sleep) -> None:
        self._scan = scan
        self._pause = pause
        self._connection = _Connection()
        # A partition without leader at planning time may have no address: then any agent forwards.
        self._leader: str | None = next(iter(scan.range.urls), None)
        self._hinted = False  # the leader's address comes from the last refusal
        self._agents = tuple(dict.fromkeys((*scan.range.urls, *scan.agents)))
        self._place = f"partition {scan.range.partition} of topic {scan.range.topic!r}"

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Spark's batches, in order, each record once. Raises SourceError."""
        offset, end = self._scan.range.start, self._scan.range.end
        try:
            while offset < end:
                try:
                    base_offset, records = self._fetch(offset)
                except _TrimmedError as trimmed:
                    offset = trimmed.log_start_offset
                    continue
                first_row = offset - base_offset
                rows = min(records.num_rows - first_row, end - offset)
                yield compose(records.slice(first_row, rows), self._scan, offset)
                offset += rows
        finally:
            self._connection.close()

    def _fetch(self, offset: int) -> tuple[int, pa.RecordBatch]:
        """The record at `offset` and neighbours on both sides, with the offset of the first."""
        policy = self._scan.policy
        failure = ""
        for attempt in range(policy.attempts):
            if attempt:
                self._pause(policy.pause_seconds(attempt))
            try:
                return self._attempt(offset, attempt)
            except _MovedError as error:
                failure = str(error)
        tries = f"in {policy.attempts} attempts"
        raise SourceError(f"{self._place}: no answer for offset {offset} {tries}; last: {failure}")

    def _attempt(self, offset: int, attempt: int) -> tuple[int, pa.RecordBatch]:
        """The leader as known; then by turns the leader as agents name it, and any agent to forward."""
        if attempt % 2 == 1 and not self._hinted:
            self._leader = self._find_leader() or self._leader
        self._hinted = False
        query: dict[str, str | int] = {"offset": offset, "max_bytes": self._scan.policy.fetch_bytes}
        base = self._leader
        if base is None or (attempt > 0 and attempt % 2 == 0):
            base = self._agents[(attempt // 2) % len(self._agents)]
        else:
            query["forward"] = "false"
        topic = quote(self._scan.range.topic, safe="")
        path = f"/v1/topics/{topic}/partitions/{self._scan.range.partition}/records?{urlencode(query)}"
        bytes_max = self._scan.policy.fetch_bytes + 2 * MAX_FRAME_BYTES  # whole batches at both ends
        answer = self._connection.get(base, path, ARROW_MEDIA_TYPE, bytes_max)
        if answer.status != 200:
            raise self._refusal(base, answer, offset)
        return _read_answer(base, answer, offset)

    def _find_leader(self) -> str | None:
        try:
            routes = _fetch_routes(self._connection, self._scan.range.topic, self._agents)
        except SourceError as error:  # while agents change places none may answer: another attempt may
            raise _MovedError(str(error)) from error
        return next(iter(routes.get(self._scan.range.partition, ())), None)

    def _refusal(self, base: str, answer: _Answer, offset: int) -> Exception:
        said, problem = _said(base, answer), _problem(answer.body)
        if answer.status in _MOVING_STATUSES:
            leader_url = problem.get("leader_url")
            if answer.status == 421 and isinstance(leader_url, str):
                with contextlib.suppress(SourceError):  # an address that is none: routes are asked next
                    self._leader, self._hinted = normal_url(leader_url), True
            return _MovedError(said)
        if answer.status != 410:
            return SourceError(said)
        start = problem.get("log_start_offset")
        if self._scan.fail_on_data_loss or not isinstance(start, int) or start <= offset:
            return data_loss(f"offset {offset} of {self._place} was trimmed: {said}")
        return _TrimmedError(start)


def _read_answer(base: str, answer: _Answer, offset: int) -> tuple[int, pa.RecordBatch]:
    """The records of an Arrow answer as one batch, checked against the offsets it claims."""
    try:
        base_offset = int(answer.headers["Shoal-Base-Offset"])
        next_offset = int(answer.headers["Shoal-Next-Offset"])
        schema, batches = decode_stream(answer.body)
    except (TypeError, ValueError) as error:  # BatchError is a ValueError
        raise _MovedError(f"{base} sent an answer that is not understood ({error})") from error
    missing = {KEY_COLUMN, VALUE_COLUMN, TIMESTAMP_COLUMN, HEADERS_COLUMN} - set(schema.names)
    if missing:
        raise SourceError(f"the topic has its own schema, without {', '.join(sorted(missing))}")
    rows = sum(batch.num_rows for batch in batches)
    if not base_offset <= offset < next_offset or base_offset + rows != next_offset:
        claim = f"{rows} records from {base_offset} up to {next_offset}"
        raise _MovedError(f"{base} was asked for offset {offset} and answers with {claim}")
    return base_offset, pa.concat_batches(batches)


def compose(records: pa.RecordBatch, scan: Scan, first_offset: int) -> pa.RecordBatch:
    """Spark's columns, those of its Kafka source, for consecutive records."""
    rows = records.num_rows
    columns = {
        "key": records.column(KEY_COLUMN),
        "value": records.column(VALUE_COLUMN),
        "topic": pa.repeat(pa.scalar(scan.range.topic, pa.string()), rows),
        "partition": pa.repeat(pa.scalar(scan.range.partition, pa.int32()), rows),
        "offset": pa.arange(first_offset, first_offset + rows),
        "timestamp": records.column(TIMESTAMP_COLUMN),
        "timestampType": pa.repeat(pa.scalar(_CREATE_TIME, pa.int32()), rows),
    }
    if scan.include_headers:
        columns["headers"] = records.column(HEADERS_COLUMN)
    return pa.RecordBatch.from_pydict(columns)
