"""Read one range of a partition inside Spark, batch by batch, each record once.

The leader or a replica on this machine answers. Standard library and pyarrow only, blocking. No loop here
touches a record. Answers are not trusted to be complete or in order.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

import pyarrow as pa

from shoal.credentials import NO_CREDENTIALS, Credentials
from shoal.format.arrow_stream import (
    ARROW_STREAM,
    HEADERS_COLUMN,
    KEY_COLUMN,
    MAX_FRAME_BYTES,
    TIMESTAMP_COLUMN,
    VALUE_COLUMN,
    decode_stream,
)
from shoal.spark.options.errors import SourceError, data_loss
from shoal.spark.options.read_options import COLUMNS, HEADERS
from shoal.spark.read.http import (
    DEFAULT_RETRIES,
    Answer,
    LeaderSearch,
    MovedError,
    Persistence,
    document_of,
    may_move,
    pool_of,
    said,
)
from shoal.spark.read.plan import OffsetRange
from shoal.spark.read.topics import find_leader

LARGE_BATCH_BYTES: Final = 512 * 1024
"""Stored batches of this size go to Spark as they are; smaller ones are joined."""

JOINED_BYTES_MAX: Final = 8 * 2**20
"""The size of joined batches, about: 1 to 10 MB are best for Spark."""

LIMIT_MAX: Final = 10_000_000
"""An agent's limit for one read."""

NEAR_TIMEOUT: Final = "500ms"
"""How long a replica on this machine may take to learn of the commits before the range was planned."""

_CREATE_TIME: Final = 0  # Kafka's timestampType: the producer's time


class FetchPolicy(NamedTuple):
    """How a task reads, and how long it tries."""

    fetch_bytes: int = 16 * 2**20  # one answer: asking costs a worker and an agent a millisecond together
    retries: Persistence = DEFAULT_RETRIES
    asks_near: bool = True  # a replica on this machine before the leader


DEFAULT_POLICY: Final = FetchPolicy()


class _TrimmedError(Exception):
    """The records wanted are gone, and the query goes on without them."""

    def __init__(self, log_start_offset: int) -> None:
        super().__init__(log_start_offset)
        self.log_start_offset = log_start_offset


class FetchedRecords(NamedTuple):
    """Consecutive records, the first of which has the offset `base_offset`."""

    base_offset: int
    batches: list[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class Scan:
    """All that a task needs to read one range, picklable."""

    range: OffsetRange
    agents: tuple[str, ...]
    columns: tuple[str, ...] = COLUMNS
    fail_on_data_loss: bool = True
    policy: FetchPolicy = DEFAULT_POLICY
    credentials: Credentials = NO_CREDENTIALS


class RangeReader:
    """Reads one range, follows the partition when it moves, resumes after the last record yielded."""

    def __init__(
        self,
        scan: Scan,
        pause: Callable[[float], None] = time.sleep,
        request: Callable[..., Answer] | None = None,
    ) -> None:
        """`request`: as ConnectionPool.request, for reading records; the pool's if None."""
        self._scan = scan
        self._pause = pause
        pool = pool_of(scan.credentials)
        self._send = pool.request if request is None else request
        urls = scan.range.urls
        # A partition without leader at planning time may have no address: then any agent forwards.
        leader = next(iter(urls), None)
        # A replica beside us saves the network; the leader itself is asked as the leader.
        near = None
        if scan.policy.asks_near:
            near = next((url for url in urls if is_local(urlsplit(url).hostname or "")), None)
        self._near = near if near != leader else None
        self._agents = tuple(dict.fromkeys((*urls, *scan.agents)))
        find = partial(find_leader, pool, scan.range.topic, scan.range.partition, self._agents)
        self._search = LeaderSearch(self._agents, leader, find)
        self._place = f"partition {scan.range.partition} of topic {scan.range.topic!r}"

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Spark's batches, in order, each record once. Raises SourceError."""
        offset, end = self._scan.range.start, self._scan.range.end
        while offset < end:
            try:
                records = self._fetch(offset)
            except _TrimmedError as trimmed:
                offset = trimmed.log_start_offset
                continue
            first = records.base_offset
            for batch in records.batches:
                behind, first = first + batch.num_rows, first + batch.num_rows
                begin = behind - batch.num_rows
                if behind <= offset or begin >= end:
                    continue
                piece = batch.slice(offset - begin, min(behind, end) - offset)
                yield compose(piece, self._scan, offset)
                offset += piece.num_rows

    def _fetch(self, offset: int) -> FetchedRecords:
        """The record at `offset` and neighbours on both sides."""
        policy = self._scan.policy.retries
        what = f"{self._place}: no answer for offset {offset} in {policy.attempts} attempts; last"
        return policy.persist(lambda attempt: self._attempt(offset, attempt), what, self._pause)

    def _attempt(self, offset: int, attempt: int) -> FetchedRecords:
        """From the replica beside us first, then as LeaderSearch chooses."""
        query = self._query(offset)
        near, self._near = self._near, None
        if attempt == 0 and near is not None:
            records = self._read_near(near, query, offset)
            self._near = near  # it has answered: the next fetch is its too
            return records
        base, is_leader = self._search.choose(attempt)
        return self._request(base, query | ({"forward": "false"} if is_leader else {}), {}, offset)

    def _query(self, offset: int) -> dict[str, str | int]:
        return {
            "offset": offset,
            "max_bytes": self._scan.policy.fetch_bytes,
            # Whole batches, none behind the range: a micro-batch may be a part of one.
            "limit": min(self._scan.range.end - offset, LIMIT_MAX),
        }

    def first_request(self) -> tuple[str, str]:
        """The agent and the path of the first request, unless a replica beside us is asked first."""
        base, is_leader = self._search.choose(0)
        query = self._query(self._scan.range.start)
        return base, self._path(query | ({"forward": "false"} if is_leader else {}))

    def _path(self, query: dict[str, str | int]) -> str:
        topic = quote(self._scan.range.topic, safe="")
        return f"/v1/topics/{topic}/partitions/{self._scan.range.partition}/records?{urlencode(query)}"

    def _read_near(self, base: str, query: dict[str, str | int], offset: int) -> FetchedRecords:
        """From a replica that need not lead. It waits NEAR_TIMEOUT for commits that it does not know yet."""
        local: dict[str, str | int] = {"consistency": "local", "forward": "false", "timeout": NEAR_TIMEOUT}
        seen = {"Shoal-High-Watermark": str(self._scan.range.end)}
        try:
            return self._request(base, query | local, seen, offset)
        except (SourceError, _TrimmedError) as error:  # the leader decides
            raise MovedError(str(error)) from error

    def _request(
        self, base: str, query: dict[str, str | int], headers: dict[str, str], offset: int
    ) -> FetchedRecords:
        bytes_max = self._scan.policy.fetch_bytes + 2 * MAX_FRAME_BYTES  # whole batches at both ends
        headers = {"Accept": ARROW_STREAM} | headers
        answer = self._send(base, "GET", self._path(query), headers, bytes_max=bytes_max)
        if answer.status != 200:
            raise self._refusal(base, answer, offset)
        return _read_answer(base, answer, offset)

    def _refusal(self, base: str, answer: Answer, offset: int) -> Exception:
        if may_move(answer):
            return self._search.refused(base, answer)
        why = said(base, answer)
        if answer.status != 410:
            return SourceError(why)
        start = document_of(answer.body).get("log_start_offset")
        if self._scan.fail_on_data_loss or not isinstance(start, int) or start <= offset:
            return data_loss(f"offset {offset} of {self._place} was trimmed: {why}")
        return _TrimmedError(start)


@lru_cache(maxsize=256)
def is_local(host: str) -> bool:
    """Whether the host is this machine: only then can a socket be bound to its address."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    for family, kind, protocol, _, address in found:
        with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
            return True
    return False


def _read_answer(base: str, answer: Answer, offset: int) -> FetchedRecords:
    """The records of an Arrow answer, checked against the offsets it claims."""
    try:
        base_offset = int(answer.headers["Shoal-Base-Offset"])
        next_offset = int(answer.headers["Shoal-Next-Offset"])
        schema, batches = decode_stream(answer.body)
    except (TypeError, ValueError) as error:  # BatchError is a ValueError
        raise MovedError(f"{base} sent an answer that is not understood ({error})") from error
    missing = {KEY_COLUMN, VALUE_COLUMN, TIMESTAMP_COLUMN, HEADERS_COLUMN} - set(schema.names)
    if missing:
        raise SourceError(f"the topic has its own schema, without {', '.join(sorted(missing))}")
    batches = [batch for batch in batches if batch.num_rows]
    rows = sum(batch.num_rows for batch in batches)
    if not base_offset <= offset < next_offset or base_offset + rows != next_offset:
        claim = f"{rows} records from {base_offset} up to {next_offset}"
        raise MovedError(f"{base} was asked for offset {offset} and answers with {claim}")
    if len(answer.body) < len(batches) * LARGE_BATCH_BYTES:
        count = max(1, len(batches) * JOINED_BYTES_MAX // max(len(answer.body), JOINED_BYTES_MAX))
        batches = [pa.concat_batches(batches[at : at + count]) for at in range(0, len(batches), count)]
    return FetchedRecords(base_offset, batches)


def compose(records: pa.RecordBatch, scan: Scan, first_offset: int) -> pa.RecordBatch:
    """Spark's columns, those of its Kafka source, for consecutive records."""
    rows = records.num_rows
    makers: dict[str, Callable[[], pa.Array]] = {
        "key": lambda: records.column(KEY_COLUMN),
        "value": lambda: records.column(VALUE_COLUMN),
        "topic": lambda: pa.repeat(pa.scalar(scan.range.topic, pa.string()), rows),
        "partition": lambda: pa.repeat(pa.scalar(scan.range.partition, pa.int32()), rows),
        "offset": lambda: pa.arange(first_offset, first_offset + rows),
        "timestamp": lambda: records.column(TIMESTAMP_COLUMN),
        "timestampType": lambda: pa.repeat(pa.scalar(_CREATE_TIME, pa.int32()), rows),
        HEADERS: lambda: records.column(HEADERS_COLUMN),
    }
    return pa.RecordBatch.from_pydict({name: makers[name]() for name in scan.columns})
