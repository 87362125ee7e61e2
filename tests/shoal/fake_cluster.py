"""A cluster in this process for the tests of clients: the documented routes, state in memory, faults on
demand.

Law of this file: agents share one truth, so it cannot lose what it acknowledged; it refuses what the rules
refuse (sequence gaps, wrong leaders), and it counts, so that a test can tell a duplicate from a retry.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import pyarrow as pa
from aiohttp import web
from listening import stop_listening

from shoal.errors import ShoalError
from shoal.format.batch import decode_stream
from shoal.format.hash_ranges import hash_ranges

ARROW = "application/vnd.apache.arrow.stream"
REMEMBERED_SEQUENCES = 5
PAGE_TOPICS = 20  # few, so that clients meet a second page


@dataclass
class FakePartition:
    """One log: its batches, and what it remembers of producers."""

    leader: int
    term: int = 1
    batches: list[pa.RecordBatch] = field(default_factory=list)
    producers: dict[str, list[tuple[int, int]]] = field(default_factory=dict)  # id -> (sequence, base offset)
    end: int = 0

    def values(self) -> list[bytes]:
        return [value for batch in self.batches for value in batch.column("value").to_pylist()]

    def append(self, batches: Sequence[pa.RecordBatch], producer: tuple[str, int] | None) -> tuple[int, bool]:
        """(base offset, duplicate)."""
        if producer is not None:
            known = self.producers.get(producer[0], [])
            for sequence, base in known:
                if sequence == producer[1]:
                    return base, True
            expected = known[-1][0] + 1 if known else 0
            if producer[1] != expected:
                raise ShoalError("sequence-gap", f"sequence {producer[1]} where {expected} was expected")
            self.producers[producer[0]] = [*known, (producer[1], self.end)][-REMEMBERED_SEQUENCES:]
        base = self.end
        for batch in batches:
            self.batches.append(batch)
            self.end += batch.num_rows
        return base, False


@dataclass
class FakeTopic:
    """A topic and its partitions."""

    name: str
    partitions: list[FakePartition]
    schema: pa.Schema | None = None
    id: str = field(default_factory=lambda: secrets.token_hex(16))
    replication_factor: int = 3
    start: int = 0
    changes: int = 0
    key: str | None = None  # of the request that made it
    settings: dict[str, Any] = field(
        default_factory=lambda: {
            "retention": {"age": None, "bytes": None},
            "segment": {"bytes": 64 << 20, "age": "1d"},
        }
    )


Fault = Callable[[web.Request, Callable[[], Awaitable[web.Response]]], Awaitable[web.Response]]


def refuse(code: str, **extra: Any) -> Fault:
    """A fault: the request gets this error, and nothing is stored."""

    async def fault(request: web.Request, proceed: Callable[[], Awaitable[web.Response]]) -> web.Response:
        raise ShoalError(code, f"{code} on demand", **extra)

    return fault


async def reset_after_storing(
    request: web.Request, proceed: Callable[[], Awaitable[web.Response]]
) -> web.Response:
    """A fault: the records are stored, and the connection breaks before the answer."""
    await proceed()
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def reset_before_storing(
    request: web.Request, proceed: Callable[[], Awaitable[web.Response]]
) -> web.Response:
    """A fault: the connection breaks, and nothing is stored."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


PRODUCE_FAULTS: dict[str, Fault] = {
    "429": refuse("overloaded"),
    "429-producers": refuse("too-many-producers"),
    "503": refuse("no-leader"),
    "504": refuse("timeout"),
    "504-lost": refuse("leadership-lost"),
    "500": refuse("internal"),
    "reset-before": reset_before_storing,
    "reset-after": reset_after_storing,
}
"""Every way in which a produce request fails and may be repeated, by the name that a test shows."""


class FakeCluster:
    """`count` agents on 127.0.0.1. `faults` are taken by produce requests, one each; `read_faults` by
    reads.
    """

    def __init__(self, count: int = 3) -> None:
        self.topics: dict[str, FakeTopic] = {}
        self.agents: list[FakeAgent] = [FakeAgent(self, number) for number in range(count)]
        self.faults: deque[Fault] = deque()
        self.read_faults: deque[Fault] = deque()
        self.auto_create_topics = True
        self.unheard = 0  # questions for a topic's routes that an agent answers which has not heard of it
        self.ready = True
        self.missing_protections: list[str] = []
        self.lags = [0] * count  # of each agent's replicas, as `describe` tells it
        self.lose_next_creation = False  # make the topic, and break the connection before the answer
        self.lose_next_deletion = False  # delete the topic, and break the connection before the answer
        self.tls: ssl.SSLContext | None = None
        self.token: str | None = None  # that each request has to carry
        self.requests: list[str] = []
        self.slow_agents: dict[int, float] = {}  # how many seconds an agent takes for /livez
        self.local_reads: dict[int, int] = {}  # answered by an agent that does not lead
        self.body_sizes: list[int] = []  # of appends, in bytes
        self.produce_delay_s = 0.0
        self.version = 1
        self.waiting = 0  # blocking queries
        self._changed = asyncio.Condition()
        self.more_routes: list[Callable[[FakeAgent], list[web.RouteDef]]] = []

    async def __aenter__(self) -> Self:
        for agent in self.agents:
            await agent.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        for agent in self.agents:
            await agent.stop()

    @property
    def urls(self) -> list[str]:
        return [agent.url for agent in self.agents]

    def create(self, name: str, partitions: int = 1, replication_factor: int = 3) -> FakeTopic:
        alive = [agent.number for agent in self.agents if agent.alive]
        logs = [FakePartition(alive[number % len(alive)]) for number in range(partitions)]
        self.topics[name] = FakeTopic(name, logs, replication_factor=replication_factor)
        return self.topics[name]

    async def move(self, name: str, partition: int, to: int) -> None:
        """Another agent leads the partition."""
        log = self.topics[name].partitions[partition]
        log.leader, log.term = to, log.term + 1
        await self.changed()

    async def kill(self, number: int) -> None:
        """The agent is gone at once; others take over what it led."""
        await self.agents[number].stop()
        alive = [agent.number for agent in self.agents if agent.alive]
        for topic in self.topics.values():
            for log in topic.partitions:
                if log.leader == number and alive:
                    log.leader, log.term = alive[0], log.term + 1
        await self.changed()

    async def changed(self) -> None:
        self.version += 1
        async with self._changed:
            self._changed.notify_all()

    async def wait_for_change(self, after: str, seconds: float) -> None:
        self.waiting += 1
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(lambda: str(self.version) != after)
        except TimeoutError:
            return
        finally:
            self.waiting -= 1

    def routes(self, topics: Sequence[FakeTopic]) -> dict[str, Any]:
        return {"version": str(self.version), "topics": {topic.name: self._route(topic) for topic in topics}}

    def held_by(self, number: int) -> list[dict[str, Any]]:
        """The replicas of an agent, as it reported them last: each has one of every partition."""
        return [
            {
                "topic": topic.name,
                "partition": partition,
                "role": "leader" if log.leader == number else "follower",
                "term": log.term,
                "log_end_offset": max(0, log.end - (0 if log.leader == number else self.lags[number])),
            }
            for topic in self.topics.values()
            for partition, log in enumerate(topic.partitions)
        ]

    def _route(self, topic: FakeTopic) -> dict[str, Any]:
        replicas = [{"id": agent.id, "url": agent.url, "role": "follower"} for agent in self.agents]
        return {
            "id": topic.id,
            "partitions": [
                {
                    "partition": number,
                    "hash_range": list(hash_ranges(len(topic.partitions))[number]),
                    "state": "active",
                    "successors": [],
                    "leader": self.agents[log.leader].id if self.agents[log.leader].alive else None,
                    "leader_url": self.agents[log.leader].url if self.agents[log.leader].alive else None,
                    "term": log.term,
                    "replicas": replicas,
                }
                for number, log in enumerate(topic.partitions)
            ],
        }


class FakeAgent:
    """One agent's HTTP server."""

    def __init__(self, cluster: FakeCluster, number: int) -> None:
        self.cluster = cluster
        self.number = number
        self.id = f"{number:032x}"
        self.url = ""
        self.alive = False
        self.refuses_local = False  # its replica is behind, or gone
        self.frozen = False  # takes connections and requests, and answers nothing: a stopped process
        self._runner: web.AppRunner | None = None

    async def start(self, port: int = 0) -> None:
        app = web.Application(client_max_size=64 << 20, middlewares=[self._problems])
        app.add_routes(
            [
                web.get("/readyz", self._readyz),
                web.get("/livez", self._livez),
                web.get("/v1/agent", self._agent),
                web.post("/v1/agent/join", self._join),
                web.post("/v1/agent/leave", self._done),
                web.post("/v1/members/{member}/force-leave", self._force_leave),
                web.get("/v1/members", self._members),
                web.get("/v1/kept-topics", self._kept),
                web.get("/v1/routes", self._routes),
                web.get("/v1/topics", self._topics),
                web.put("/v1/topics/{topic}", self._create),
                web.get("/v1/topics/{topic}", self._describe),
                web.get("/v1/topics/{topic}/settings", self._settings),
                web.delete("/v1/topics/{topic}", self._delete),
                web.patch("/v1/topics/{topic}", self._alter),
                web.post("/v1/topics/{topic}/partitions/{partition}/trim", self._trim),
                web.get("/v1/topics/{topic}/offsets", self._offsets),
                web.post("/v1/topics/{topic}/partitions/{partition}/records", self._produce),
                web.get("/v1/topics/{topic}/partitions/{partition}/records", self._read),
            ]
        )
        for more in self.cluster.more_routes:
            app.add_routes(more(self))
        self._runner = web.AppRunner(app, shutdown_timeout=0.01, access_log=None, handler_cancellation=True)
        await self._runner.setup()
        tls = self.cluster.tls
        site = web.TCPSite(self._runner, "127.0.0.1", port, ssl_context=tls)
        await site.start()
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self._runner.addresses[0][1]}"
        self.alive = True

    async def stop(self) -> None:
        if self._runner is not None and self.alive:
            self.alive = False
            await stop_listening(self._runner)
            for connection in list(self._runner.server.connections if self._runner.server else []):
                if connection.transport is not None:
                    connection.transport.abort()  # with TLS a mere close waits for the client's word
                connection.force_close()
            await self._runner.cleanup()

    @web.middleware
    async def _problems(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.cluster.requests.append(f"{request.method} {request.path}")
        while self.frozen:
            await asyncio.sleep(0.05)
        token = self.cluster.token
        try:
            if token is not None and request.headers.getall("Authorization", []) != [f"Bearer {token}"]:
                raise ShoalError("unauthenticated", "the token is not known here")
            response: web.StreamResponse = await handler(request)
        except ShoalError as error:
            body = json.dumps(error.to_problem())
            return web.Response(status=error.status, text=body, content_type="application/problem+json")
        except web.HTTPNotFound:
            error = ShoalError("unknown-route", f"nothing is served at {request.path!r}")
            body = json.dumps(error.to_problem())
            return web.Response(status=error.status, text=body, content_type="application/problem+json")
        return response

    def topic_of(self, request: web.Request) -> FakeTopic:
        name = request.match_info["topic"]
        if name not in self.cluster.topics:
            raise ShoalError("unknown-topic", f"there is no topic {name!r}")
        return self.cluster.topics[name]

    def led(self, request: web.Request) -> tuple[FakeTopic, FakePartition]:
        topic = self.topic_of(request)
        number = int(request.match_info["partition"])
        if number >= len(topic.partitions):
            raise ShoalError("unknown-partition", f"{topic.name} has no partition {number}")
        log = topic.partitions[number]
        if (
            request.query.get("consistency") == "local"
            and log.leader != self.number
            and not self.refuses_local
        ):
            self.cluster.local_reads[self.number] = self.cluster.local_reads.get(self.number, 0) + 1
            return topic, log
        if log.leader != self.number and request.query.get("forward") == "false":
            leader = self.cluster.agents[log.leader]
            raise ShoalError(
                "not-leader", "another agent leads", leader=leader.id, leader_url=leader.url, term=log.term
            )
        return topic, log

    async def _readyz(self, request: web.Request) -> web.Response:
        if not self.cluster.ready:
            raise ShoalError("not-ready", "the catalog is not there yet")
        return web.json_response({"ready": True})

    async def _livez(self, request: web.Request) -> web.Response:
        await asyncio.sleep(self.cluster.slow_agents.get(self.number, 0.0))
        return web.json_response({"live": True})

    async def _agent(self, request: web.Request) -> web.Response:
        settings = {"auto_create_topics": self.cluster.auto_create_topics}
        name = {"id": self.id, "name": f"agent-{self.number}", "cluster": "fake"}
        missing = self.cluster.missing_protections
        posture = {"posture": "insecure" if missing else "loopback", "missing_protections": missing}
        document = {**name, "configuration": settings, **posture}
        return web.json_response(document)

    async def _join(self, request: web.Request) -> web.Response:
        return web.json_response({"joined": len((await request.json())["addresses"])})

    async def _done(self, request: web.Request) -> web.Response:
        return web.Response(status=204)

    async def _force_leave(self, request: web.Request) -> web.Response:
        if request.match_info["member"] not in {f"agent-{agent.number}" for agent in self.cluster.agents}:
            raise ShoalError("unknown-member", f"there is no member {request.match_info['member']!r}")
        return web.Response(status=204)

    async def _kept(self, request: web.Request) -> web.Response:
        return web.json_response({"topics": []})

    async def _members(self, request: web.Request) -> web.Response:
        members = [
            {
                "id": agent.id,
                "name": f"agent-{agent.number}",
                "kind": "shoal",
                "status": "alive" if agent.alive else "failed",
                "address": "127.0.0.1",
                "gossip_port": 7946 + agent.number,
                "url": agent.url,
                "failure_domain": None,
                "incarnation": 1,
                "since": "2026-01-02T03:04:05.000006Z",
                "tags": {},
                "partitions": self.cluster.held_by(agent.number),
            }
            for agent in self.cluster.agents
        ]
        return web.json_response(
            {"cluster": "fake", "version": str(self.cluster.version), "members": members}
        )

    async def _routes(self, request: web.Request) -> web.Response:
        wait = float(request.query.get("wait", "0s").removesuffix("s"))
        if wait and request.query.get("after_version") == str(self.cluster.version):
            await self.cluster.wait_for_change(str(self.cluster.version), wait)
        wanted = request.query.get("topic")
        known = wanted is None or wanted in self.cluster.topics
        if known and wanted is not None and self.cluster.unheard > 0:
            self.cluster.unheard -= 1
            known = False
        if not known:
            raise ShoalError("unknown-topic", f"there is no topic {wanted!r}")
        topics = [topic for topic in self.cluster.topics.values() if wanted in (None, topic.name)]
        return web.json_response(self.cluster.routes(topics))

    async def _topics(self, request: web.Request) -> web.Response:
        topics = [
            {
                "name": topic.name,
                "id": topic.id,
                "kind": "log",
                "partitions": len(topic.partitions),
                "replication_factor": topic.replication_factor,
                "under_replicated": 0,
                "records": sum(log.end for log in topic.partitions),
                "bytes": 2_048,
            }
            for topic in self.cluster.topics.values()
        ]
        after = request.query.get("cursor", "")
        left = sorted((topic for topic in topics if topic["name"] > after), key=lambda topic: topic["name"])
        page: dict[str, Any] = {"topics": left[:PAGE_TOPICS]}
        if len(left) > PAGE_TOPICS:
            page["next_cursor"] = left[PAGE_TOPICS - 1]["name"]
        return web.json_response(page)

    async def _create(self, request: web.Request) -> web.Response:
        body = await request.read()
        settings = json.loads(body) if body else {}
        name = request.match_info["topic"]
        wanted = settings.get("partitions", 1)
        known = self.cluster.topics.get(name)
        if known is not None and len(known.partitions) != wanted:
            raise ShoalError("topic-differs", f"{name} has {len(known.partitions)} partitions, not {wanted}")
        topic = known or self.cluster.create(name, wanted, settings.get("replication_factor", 3))
        for table in ("retention", "segment"):
            topic.settings[table] = topic.settings[table] | settings.get(table, {})
        key = request.headers.get("Idempotency-Key")
        if known is None:
            topic.key = key
        if self.cluster.lose_next_creation:
            self.cluster.lose_next_creation = False
            assert request.transport is not None
            request.transport.abort()
        is_made_by_it = known is None or (key is not None and known.key == key)
        return web.json_response(self._document(topic), status=201 if is_made_by_it else 200)

    def _document(self, topic: FakeTopic) -> dict[str, Any]:
        partitions = [
            {
                "partition": n,
                "log_start_offset": topic.start,
                "high_watermark": log.end,
                "log_end_offset": log.end,
            }
            for n, log in enumerate(topic.partitions)
        ]
        factor = topic.replication_factor
        return {
            "name": topic.name,
            "id": topic.id,
            "kind": "log",
            "replication_factor": factor,
            "effective_replication_factor": len(self.cluster.agents)
            if factor == "all"
            else min(factor, len(self.cluster.agents)),
            "partitions": partitions,
            "settings_version": f"v{topic.changes}",
            **self._note(factor),
            **topic.settings,
        }

    def _note(self, factor: Any) -> dict[str, str]:
        is_high = isinstance(factor, int) and factor > len(self.cluster.agents)
        return {"note": f"{factor} replicas are wanted"} if is_high else {}

    async def _alter(self, request: web.Request) -> web.Response:
        topic = self.topic_of(request)
        if request.query.get("if_version") not in (None, f"v{topic.changes}"):
            raise ShoalError("settings-changed", f"they are of version v{topic.changes}")
        changed = await request.json()
        topic.changes += 1
        topic.replication_factor = changed.pop("replication_factor", topic.replication_factor)
        for table, changes in changed.items():
            topic.settings[table] = topic.settings[table] | changes
        return web.json_response(self._document(topic))

    async def _settings(self, request: web.Request) -> web.Response:
        topic = self.topic_of(request)
        values = {"partitions": len(topic.partitions), "replication_factor": topic.replication_factor}
        defaults: dict[str, Any] = {"partitions": 1, "replication_factor": 3}
        for name, table in FakeTopic("", []).settings.items():
            defaults |= {f"{name}.{part}": value for part, value in table.items()}
            values |= {f"{name}.{part}": value for part, value in topic.settings[name].items()}
        rows = [
            {"name": name, "value": values[name], "default": default, "set": values[name] != default,
             "changeable": name != "partitions"}
            for name, default in defaults.items()
        ]  # fmt: skip
        return web.json_response({"topic": topic.name, "version": f"v{topic.changes}", "settings": rows})

    async def _trim(self, request: web.Request) -> web.Response:
        topic = self.topic_of(request)
        topic.start = max(topic.start, (await request.json())["before"])
        return web.json_response({"log_start_offset": topic.start})

    async def _describe(self, request: web.Request) -> web.Response:
        topic = self.topic_of(request)
        document = self._document(topic)
        for entry, route in zip(
            document["partitions"], self.cluster._route(topic)["partitions"], strict=True
        ):
            entry.update(route, under_replicated=any(self.cluster.lags), replicas=[
                replica | {"log_end_offset": entry["log_end_offset"] - lag, "lag": lag}
                for replica, lag in zip(route["replicas"], self.cluster.lags, strict=True)
            ])  # fmt: skip
        return web.json_response(document)

    async def _delete(self, request: web.Request) -> web.Response:
        del self.cluster.topics[self.topic_of(request).name]
        if self.cluster.lose_next_deletion:
            self.cluster.lose_next_deletion = False
            assert request.transport is not None
            request.transport.abort()
        return web.Response(status=204)

    async def _offsets(self, request: web.Request) -> web.Response:
        partitions = self._document(self.topic_of(request))["partitions"]
        if "at" in request.query:
            partitions = [{**entry, "offset": entry["log_start_offset"] + 1} for entry in partitions]
        return web.json_response({"partitions": partitions})

    async def _delay(self) -> None:
        """As long as the cluster says now: a test lets go of those who wait by saying less."""
        waited_s = 0.0
        while (left_s := self.cluster.produce_delay_s - waited_s) > 0:
            step_s = min(left_s, 0.01)
            await asyncio.sleep(step_s)
            waited_s += step_s

    async def _produce(self, request: web.Request) -> web.Response:
        await self._delay()

        async def proceed() -> web.Response:
            return await self._append(request)

        if self.cluster.faults:
            return await self.cluster.faults.popleft()(request, proceed)
        return await proceed()

    async def _append(self, request: web.Request) -> web.Response:
        topic, log = self.led(request)
        body = await request.read()
        self.cluster.body_sizes.append(len(body))
        schema, batches = decode_stream(body)
        topic.schema = schema
        identity = request.headers.get("Shoal-Producer-Id")
        producer = (identity, int(request.headers["Shoal-Producer-Sequence"])) if identity else None
        base, duplicate = log.append(batches, producer)
        count = sum(batch.num_rows for batch in batches)
        appended = [{"partition": int(request.match_info["partition"]), "base_offset": base, "count": count}]
        document = {"count": count, "appended": appended, **({"duplicate": True} if duplicate else {})}
        return web.json_response(document, status=202 if request.query.get("acks") == "none" else 200)

    async def _read(self, request: web.Request) -> web.Response:
        async def proceed() -> web.Response:
            return await self._fetch(request)

        if self.cluster.read_faults:
            return await self.cluster.read_faults.popleft()(request, proceed)
        return await proceed()

    async def _fetch(self, request: web.Request) -> web.Response:
        topic, log = self.led(request)
        offset = int(request.query["offset"])
        if offset < topic.start or offset > log.end:
            code = "trimmed" if offset < topic.start else "beyond-end"
            raise ShoalError(code, f"offset {offset}", log_start_offset=topic.start, high_watermark=log.end)
        for _ in range(int(request.query.get("wait", "0ms").removesuffix("ms")) // 10):
            if log.end > offset:
                break
            await asyncio.sleep(0.01)
        chosen, base, position, size = [], offset, 0, 0
        for batch in log.batches:
            if position + batch.num_rows > offset and size < int(request.query["max_bytes"]):
                base = position if not chosen else base
                chosen.append(batch)
                size += batch.nbytes
            position += batch.num_rows
        sink = pa.BufferOutputStream()
        from shoal.format.batch import DEFAULT_SCHEMA

        with pa.ipc.new_stream(sink, topic.schema or DEFAULT_SCHEMA) as writer:
            for batch in chosen:
                writer.write_batch(batch)
        headers = {
            "Shoal-Base-Offset": str(base),
            "Shoal-Next-Offset": str(base + sum(batch.num_rows for batch in chosen)),
            "Shoal-High-Watermark": str(log.end),
            "Shoal-Log-Start-Offset": str(topic.start),
        }
        return web.Response(body=bytes(sink.getvalue()), content_type=ARROW, headers=headers)
