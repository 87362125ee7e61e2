"""Tables on the agents of a FakeCluster: the documented routes over its logs, and faults on demand.

Law of this file: a row is the newest record of its key in a fake log; conditions are judged against the whole
log. Everything is committed at once. A producer's repetition gets the first answer.
"""

from __future__ import annotations

from base64 import b64decode
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pyarrow as pa
from aiohttp import web
from fake_cluster import ARROW, FakeAgent, FakeCluster, FakePartition, FakeTopic, Fault

from shoal.client.produce.producer import batch_of
from shoal.errors import ShoalError
from shoal.format.batch import DEFAULT_SCHEMA
from shoal.format.hash_ranges import hash_ranges, key_hash, partition_for
from shoal.format.timestamps import format_time

SCAN_SCHEMA = pa.schema(
    [
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("append_time", DEFAULT_SCHEMA.field("timestamp").type),
        *DEFAULT_SCHEMA,
    ]
)


class FakeRow(NamedTuple):
    """The newest record of a key that is no deletion."""

    partition: int
    offset: int
    timestamp_us: int
    value: bytes


class FakeTables:
    """Routes of every topic whose name stands in `names`. `write_faults` and `read_faults` are taken by
    requests, one each. `page_rows`: of a scan's page, at most. `on_page` runs after each page."""

    def __init__(self, cluster: FakeCluster, *names: str) -> None:
        self.cluster = cluster
        self.names = set(names)
        self.write_faults: deque[Fault] = deque()
        self.read_faults: deque[Fault] = deque()
        self.page_rows = 10_000
        self.on_page: Callable[[], None] = lambda: None
        self.asked: list[str] = []  # raw paths with their queries
        cluster.more_routes.append(self.routes)

    def create(self, name: str, partitions: int = 1) -> FakeTopic:
        self.names.add(name)
        return self.cluster.create(name, partitions)

    def put(self, name: str, key: bytes, value: bytes | None) -> int:
        """As another client does; the offset."""
        number = self._partition(self.cluster.topics[name], key)
        return self.cluster.topics[name].partitions[number].append([batch_of([value], [key])], None)[0]

    def rows(self, name: str, only: int | None = None) -> dict[bytes, FakeRow]:
        """All rows, by key."""
        found: dict[bytes, FakeRow] = {}
        for number, log in enumerate(self.cluster.topics[name].partitions):
            offset = 0
            for batch in log.batches if only in (None, number) else []:
                times = batch.column("timestamp").cast(pa.int64()).to_pylist()
                columns = zip(
                    times, batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True
                )
                for time_us, key, value in columns:
                    found.pop(key, None)
                    if value is not None:
                        found[key] = FakeRow(number, offset, time_us, value)
                    offset += 1
        return dict(sorted(found.items()))

    def routes(self, agent: FakeAgent) -> list[web.RouteDef]:
        handle = partial(self._handle, agent)
        return [
            web.route("*", "/v1/tables/{topic}", handle),
            web.route("*", "/v1/tables/{topic}/{key:.*}", handle),
        ]

    async def _handle(self, agent: FakeAgent, request: web.Request) -> web.Response:
        self.asked.append(f"{request.method} {request.raw_path}")
        topic = agent.topic_of(request)
        if topic.name not in self.names:
            raise ShoalError("wrong-kind", f"{topic.name} is a log, and no table")
        key = _key_of(request)
        faults = self.read_faults if request.method == "GET" else self.write_faults

        async def proceed() -> web.Response:
            if key is None:
                return self._scan(agent, topic, request)
            log = self._log(agent, topic, self._partition(topic, key), request)
            if request.method == "GET":
                return self._get(topic, key, log)
            return await self._write(topic, key, log, request)

        return await faults.popleft()(request, proceed) if faults else await proceed()

    def _partition(self, topic: FakeTopic, key: bytes) -> int:
        return partition_for(key_hash(key), hash_ranges(len(topic.partitions)))

    def _log(self, agent: FakeAgent, topic: FakeTopic, number: int, request: web.Request) -> FakePartition:
        log = topic.partitions[number]
        if log.leader == agent.number or request.query.get("forward") != "false":
            return log
        if request.query.get("consistency") == "local":
            local = self.cluster.local_reads
            local[agent.number] = local.get(agent.number, 0) + 1
            return log
        leader = self.cluster.agents[log.leader]
        raise ShoalError(
            "not-leader", "another agent leads", leader=leader.id, leader_url=leader.url, term=log.term
        )

    def _get(self, topic: FakeTopic, key: bytes, log: FakePartition) -> web.Response:
        row = self.rows(topic.name).get(key)
        if row is None:
            raise ShoalError("unknown-key", f"{topic.name} has no row {key!r:.80}")
        headers = {
            "ETag": f'"{row.offset}"',
            "Shoal-Partition": str(row.partition),
            "Shoal-Timestamp": format_time(row.timestamp_us),
            "Shoal-As-Of": f"{row.partition}:{log.end}",
        }
        return web.Response(body=row.value, content_type="application/octet-stream", headers=headers)

    async def _write(
        self, topic: FakeTopic, key: bytes, log: FakePartition, request: web.Request
    ) -> web.Response:
        value = await request.read() if request.method == "PUT" else None
        producer = (request.headers["Shoal-Producer-Id"], int(request.headers["Shoal-Producer-Sequence"]))
        known = dict(log.producers.get(producer[0], []))
        if producer[1] not in known:
            row = self.rows(topic.name).get(key)
            current = None if row is None else row.offset
            wanted = request.headers.get("If-Match")
            is_refused = wanted is not None and wanted != f'"{current}"'
            if is_refused or ("If-None-Match" in request.headers and current is not None):
                raise ShoalError("precondition-failed", f"the row is {current}", current=current)
        offset, duplicate = log.append([batch_of([value], [key])], producer)
        appended = [{"partition": self._partition(topic, key), "base_offset": offset, "count": 1}]
        document = {"count": 1, "appended": appended, **({"duplicate": True} if duplicate else {})}
        return web.json_response(document, headers={"ETag": f'"{offset}"'})

    def _scan(self, agent: FakeAgent, topic: FakeTopic, request: web.Request) -> web.Response:
        only = request.query.get("partition")
        if only is not None:
            self._log(agent, topic, int(only), request)
        prefix, after = _bytes_of(request, "prefix") or b"", _bytes_of(request, "after")
        rows = [
            (key, row)
            for key, row in self.rows(topic.name, None if only is None else int(only)).items()
            if key.startswith(prefix) and (after is None or key > after)
        ]
        limit = min(int(request.query["limit"]), self.page_rows)
        headers = {
            "Shoal-As-Of": ",".join(
                f"{number}:{log.end}"
                for number, log in enumerate(topic.partitions)
                if only in (None, str(number))
            ),
            "Shoal-Is-Last": str(len(rows) <= limit).lower(),
        }
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, SCAN_SCHEMA) as writer:
            if rows:
                writer.write_batch(_batch(rows[:limit]))
        self.on_page()
        return web.Response(body=bytes(sink.getvalue()), content_type=ARROW, headers=headers)


def _batch(rows: list[tuple[bytes, FakeRow]]) -> pa.RecordBatch:
    times = [row.timestamp_us for _, row in rows]
    columns = [
        [row.partition for _, row in rows],
        [row.offset for _, row in rows],
        times,
        times,
        [key for key, _ in rows],
        [row.value for _, row in rows],
        [None] * len(rows),
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCAN_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCAN_SCHEMA)


def _key_of(request: web.Request) -> bytes | None:
    found = _bytes_of(request, "key")
    return request.match_info["key"].encode() if "key" in request.match_info else found


def _bytes_of(request: web.Request, name: str) -> bytes | None:
    if f"{name}_base64" in request.query:
        return b64decode(request.query[f"{name}_base64"], validate=True)
    return request.query[name].encode() if name in request.query else None
