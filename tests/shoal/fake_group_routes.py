"""Consumer groups on the agents of a FakeCluster: the documented routes before the leaders' own code.

Law of this file: leaders, folds and receipts are the product's; here are the routes, a clock, and faults on
demand. Every entry is committed at once.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Any

import pyarrow as pa
from aiohttp import web
from fake_cluster import ARROW, FakeAgent, FakeCluster, FakePartition, FakeTopic, Fault
from steady_loop import now_ms

from shoal.agent.groups.entry import Seek
from shoal.agent.groups.leader.group_leader import Decision, Refusal
from shoal.agent.groups.settings import (
    GroupSettings,
    changed,
    check_group_name,
    duration_ms,
    settings_from_body,
)
from shoal.agent.receive import NOBODY, Act, ActKind, DuePlace, Wanted
from shoal.errors import ShoalError
from shoal.format.batch import DEFAULT_SCHEMA
from shoal.format.receipt import ReceiptError, head_of, is_genuine, parse
from shoal.format.timestamps import format_time, parse_duration_ms
from tests.agent.groups.group_desk import KEY, GroupDesk, MemoryFeed

STEP_S = 0.005
MAC = b"m" * 32


def hash_of(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=16).digest() if text else NOBODY


class Desk(GroupDesk):
    """One group in one partition: its messages are the records of a fake log."""

    def __init__(self, settings: GroupSettings, log: FakePartition, partition: int, partitions: int) -> None:
        self.records = log
        self.term = log.term
        super().__init__(settings, MemoryFeed(), partition, partitions)

    def look_up(self) -> Desk:
        """Let time pass, let records come, and let another leader take over."""
        self.now_ms = now_ms()  # leases do not end while the process stands still
        rows = sum(batch.num_rows for batch in self.records.batches)
        if rows > len(self.feed.hashes):
            keys = [key for batch in self.records.batches for key in batch.column("key").to_pylist()]
            self.feed.hashes = [0 if key is None else zlib.crc32(key) + 1 for key in keys]
        if self.term != self.records.term:
            self.term = self.records.term
            self.leader = self.new_leader()
        self.look()
        self.commit()
        return self

    def rows(self, decision: Decision) -> pa.RecordBatch:
        log = pa.concat_batches(self.records.batches)
        pieces = [log.slice(one.range.first, one.range.count) for one in decision.delivered]
        return pa.concat_batches(pieces)


@dataclass
class FakeGroup:
    """A group: its settings, and a desk in each partition."""

    name: str
    settings: GroupSettings
    desks: list[Desk] = field(default_factory=list)
    turn: int = 0

    def document(self, topic: str) -> dict[str, Any]:
        entries = [self._entry(desk.look_up()) for desk in self.desks]
        totals = (
            "lag",
            "lag_seconds",
            "in_flight",
            "delayed",
            "dying",
            "stopped",
            "dead",
            "skipped",
            "dropped",
        )
        return {
            "name": self.name,
            "topic": topic,
            "id": KEY.hex(),
            "settings_version": self.settings.version(),
            **self.settings.to_document(),
            "partitions": entries,
            "totals": {name: sum(entry[name] for entry in entries) for name in totals},
        }

    def _entry(self, desk: Desk) -> dict[str, Any]:
        found = desk.leader.describe(desk.now_ms, desk.append_us)
        return {
            "partition": desk.partition,
            "leader": "agent-0",
            "generation": found.generation,
            "position": found.position.offset,
            "next": found.next.offset,
            "high_watermark": desk.records.end,
            "lag": found.lag,
            "lag_seconds": 0.0,
            "in_flight": found.in_flight,
            "delayed": found.delayed,
            "dying": found.dying,
            "stopped": found.stopped,
            "dead": found.letters,
            "skipped": found.skipped,
            "dropped": found.dropped,
            "window": found.window or None,
            "blocked_by": None,
            "owner": next((one.name for one in found.consumers if one.consumer == found.owner), None),
            "consumers": [
                {"consumer": one.name, "holds": one.holds, "seen_ms": one.seen_ms} for one in found.consumers
            ],
        }


class FakeGroups:
    """Make it before the cluster starts. `receive_faults` and `act_faults` are taken by one request each."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.groups: dict[tuple[str, str], FakeGroup] = {}
        self.receive_faults: deque[Fault] = deque()
        self.act_faults: deque[Fault] = deque()
        self.bodies: list[tuple[str, dict[str, Any]]] = []
        """Every request about messages, in its order: receive, ack, nack, ..., and its body."""
        self.waiting = 0
        self.redriven = 0
        self.decided = True
        """Whether messages that an operator decides about are stopped."""
        cluster.more_routes.append(self.routes)

    def desks(self, topic: str, group: str) -> list[Desk]:
        return [desk.look_up() for desk in self.groups[topic, group].desks]

    def said(self, kind: str) -> list[dict[str, Any]]:
        """The bodies of one kind of request."""
        return [body for name, body in self.bodies if name == kind]

    def create(self, topic: str, group: str, **settings: Any) -> FakeGroup:
        return self._made(self.cluster.topics[topic], group, settings_from_body(settings))

    def _made(self, topic: FakeTopic, name: str, settings: GroupSettings) -> FakeGroup:
        logs = topic.partitions
        desks = [Desk(settings, log, number, len(logs)) for number, log in enumerate(logs)]
        made = self.groups[topic.name, name] = FakeGroup(name, settings, desks)
        return made

    def routes(self, agent: FakeAgent) -> list[web.RouteDef]:
        async def receive(request: web.Request) -> web.Response:
            return await self._faulty(self.receive_faults, request, lambda: self._receive(agent, request))

        async def act(request: web.Request) -> web.Response:
            return await self._faulty(self.act_faults, request, lambda: self._act(agent, request))

        async def redrive(request: web.Request) -> web.Response:
            return await self._faulty(self.act_faults, request, lambda: self._redrive(agent, request))

        base = "/v1/topics/{topic}/groups/{group}"
        part = "/v1/topics/{topic}/partitions/{partition}/groups/{group}"
        acts = [web.post(f"{path}/{{act:ack|nack|release|reject|extend}}", act) for path in (base, part)]
        return [
            web.get("/v1/topics/{topic}/groups", partial(self._list, agent)),
            web.get(base, partial(self._describe, agent)),
            web.put(base, partial(self._create, agent)),
            web.patch(base, partial(self._change, agent)),
            web.delete(base, partial(self._delete, agent)),
            web.post(f"{base}/seek", partial(self._seek, agent)),
            web.post(f"{base}/redrive", redrive),
            web.post(f"{base}/decide", partial(self._decide, agent)),
            web.post(f"{base}/consumers/{{consumer}}", partial(self._present, agent)),
            web.delete(f"{base}/consumers/{{consumer}}", partial(self._present, agent)),
            web.post(f"{base}/receive", receive),
            web.post(f"{part}/receive", receive),
            *acts,
        ]

    async def _faulty(
        self, faults: deque[Fault], request: web.Request, proceed: Callable[[], Awaitable[web.Response]]
    ) -> web.Response:
        if faults:
            return await faults.popleft()(request, proceed)
        return await proceed()

    def _group(self, agent: FakeAgent, request: web.Request) -> FakeGroup:
        topic, name = agent.topic_of(request), request.match_info["group"]
        check_group_name(topic.name, name)
        if (topic.name, name) not in self.groups:
            raise ShoalError("unknown-group", f"{topic.name} has no group {name!r}")
        return self.groups[topic.name, name]

    async def _list(self, agent: FakeAgent, request: web.Request) -> web.Response:
        topic = agent.topic_of(request)
        documents = [group.document(topic.name) for (of, _), group in self.groups.items() if of == topic.name]
        groups = [
            {name: document[name] for name in ("name", "mode", "paused")}
            | {name: document["totals"][name] for name in ("lag", "in_flight", "dead")}
            for document in documents
        ]
        return web.json_response({"groups": sorted(groups, key=lambda group: str(group["name"]))})

    async def _describe(self, agent: FakeAgent, request: web.Request) -> web.Response:
        return web.json_response(self._group(agent, request).document(request.match_info["topic"]))

    async def _create(self, agent: FakeAgent, request: web.Request) -> web.Response:
        topic, name = agent.topic_of(request), request.match_info["group"]
        check_group_name(topic.name, name)
        body = await request.read()
        settings = settings_from_body(json.loads(body) if body else None)
        known = self.groups.get((topic.name, name))
        if known is not None and known.settings != settings:
            raise ShoalError("group-differs", f"the group {name} of {topic.name} has other settings")
        made = known or self._made(topic, name, settings)
        return web.json_response(made.document(topic.name), status=200 if known else 201)

    async def _change(self, agent: FakeAgent, request: web.Request) -> web.Response:
        group = self._group(agent, request)
        if request.query.get("if_version") not in (None, group.settings.version()):
            raise ShoalError("settings-changed", "the settings are not those expected")
        group.settings = changed(group.settings, await request.json())
        for desk in group.desks:
            desk.look_up().change(group.settings)
        return web.json_response(group.document(request.match_info["topic"]))

    async def _delete(self, agent: FakeAgent, request: web.Request) -> web.Response:
        group = self._group(agent, request)
        del self.groups[request.match_info["topic"], group.name]
        return web.Response(status=204)

    async def _seek(self, agent: FakeAgent, request: web.Request) -> web.Response:
        group, to = self._group(agent, request), (await request.json())["to"]
        sought = []
        for desk in group.desks:
            desk.look_up()
            if isinstance(to, dict):
                if str(desk.partition) not in to:
                    continue
                offset = int(to[str(desk.partition)])
            else:
                offset = desk.records.end if to == "latest" else 0
            if offset > desk.records.end:
                raise ShoalError("beyond-end", f"partition {desk.partition} ends at {desk.records.end}")
            desk.fold_others(Seek(desk.group.generation + 1, DuePlace(0, offset), False))
            desk.commit()
            sought.append(
                {"partition": desk.partition, "offset": offset, "generation": desk.group.generation}
            )
        return web.json_response({"partitions": sought})

    async def _redrive(self, agent: FakeAgent, request: web.Request) -> web.Response:
        self._group(agent, request)
        body = await request.read()
        self.bodies.append(("redrive", json.loads(body) if body else {}))
        return web.json_response({"redriven": self.redriven, "copied": 0})

    async def _decide(self, agent: FakeAgent, request: web.Request) -> web.Response:
        self._group(agent, request)
        self.bodies.append(("decide", await request.json()))
        return web.json_response({"done": self.decided})

    async def _present(self, agent: FakeAgent, request: web.Request) -> web.Response:
        group, consumer = self._group(agent, request), request.match_info["consumer"]
        body = await request.json()
        self.bodies.append(("leave" if request.method == "DELETE" else "present", body))
        who, instance = hash_of(consumer), hash_of(body["instance"])
        for desk in group.desks:
            desk.look_up()
            if request.method == "DELETE":
                desk.leader.leave(who, instance, desk.now_ms)
            elif not desk.leader.present(who, instance, desk.now_ms, consumer):
                raise ShoalError("consumer-in-use", f"another process is the consumer {consumer}")
        owned = [desk.partition for desk in group.desks if desk.leader.assigned(who, desk.now_ms)]
        return web.json_response({"partitions": owned})

    # --- messages

    async def _receive(self, agent: FakeAgent, request: web.Request) -> web.Response:
        raw = await request.read()
        body = json.loads(raw) if raw else {}
        self.bodies.append(("receive", body))
        topic = agent.topic_of(request)
        key = (topic.name, request.match_info["group"])
        if key not in self.groups:
            if not self.cluster.auto_create_topics or "partition" in request.match_info:
                raise ShoalError("unknown-group", f"{topic.name} has no group {key[1]!r}")
            self._made(topic, key[1], GroupSettings())
        group = self.groups[key]
        partitions = range(len(group.desks))
        if "partition" in request.match_info:
            agent.led(request)
            partitions = range(int(request.match_info["partition"]), int(request.match_info["partition"]) + 1)
        outcomes = self._outcomes(group, "ack", body.get("ack", []), {})
        until_ms = now_ms() + parse_duration_ms(body.get("wait", "0s"))
        self.waiting += 1
        try:
            while True:
                found = self._next(group, partitions, body)
                if isinstance(found, tuple) or now_ms() >= until_ms:
                    break
                await asyncio.sleep(STEP_S)
        finally:
            self.waiting -= 1
        failed = sum(outcome is not None for outcome in outcomes)
        headers = {"Shoal-Acked": str(len(outcomes) - failed), "Shoal-Ack-Failed": str(failed)}
        as_arrow = ARROW in request.headers.get("Accept", "")
        if not isinstance(found, tuple):
            return self._nothing(found, headers, as_arrow=as_arrow)
        return self._messages(*found, topic.schema or DEFAULT_SCHEMA, headers)

    def _next(self, group: FakeGroup, partitions: range, body: dict[str, Any]) -> tuple[Desk, Decision] | str:
        reasons = []
        for step in range(len(partitions)):
            desk = group.desks[partitions[(group.turn + step) % len(partitions)]].look_up()
            visibility = body.get("visibility")
            wanted = Wanted(
                hash_of(body.get("consumer", "")),
                hash_of(body.get("instance", "")),
                hash_of(body.get("request", "")),
                body.get("limit", 10),
                body.get("max_bytes", 1 << 20),
                desk.settings.visibility_ms if visibility is None else duration_ms(visibility, "visibility"),
                0,
                body.get("consumer", ""),
            )
            decision = desk.leader.receive(wanted, desk.index + 1, desk.now_ms, desk.append_us)
            if isinstance(decision, Refusal):
                if decision.reason == "consumer-in-use":
                    raise ShoalError("consumer-in-use", f"another process is {wanted.name}")
                reasons.append(decision.reason)
                continue
            desk.fold_operations(decision.operations)
            desk.commit()
            if decision.delivered:
                group.turn += 1
                return desk, decision
        return reasons[0] if reasons else "empty"

    def _nothing(self, reason: str, headers: dict[str, str], *, as_arrow: bool) -> web.Response:
        sink = pa.BufferOutputStream()
        pa.ipc.new_stream(sink, DEFAULT_SCHEMA).close()
        assert as_arrow
        headers["Shoal-Reason"] = reason
        return web.Response(body=bytes(sink.getvalue()), content_type=ARROW, headers=headers)

    def _messages(
        self, desk: Desk, decision: Decision, schema: pa.Schema, headers: dict[str, str]
    ) -> web.Response:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_batch(desk.rows(decision))
        ranges = [f"{one.range.first}+{one.range.count}*{one.attempt}" for one in decision.delivered]
        headers |= {
            "Shoal-Partition": str(desk.partition),
            "Shoal-Delivery": str(decision.delivery),
            "Shoal-Receipt": head_of(KEY, MAC, desk.partition, desk.group.generation, decision.delivery),
            "Shoal-Delivered-At": format_time(desk.append_us),
            "Shoal-Ranges": ",".join(ranges),
        }
        return web.Response(body=bytes(sink.getvalue()), content_type=ARROW, headers=headers)

    async def _act(self, agent: FakeAgent, request: web.Request) -> web.Response:
        group, kind = self._group(agent, request), request.match_info["act"]
        if "partition" in request.match_info:
            agent.led(request)
        body = await request.json()
        self.bodies.append((kind, body))
        outcomes = self._outcomes(group, kind, body["receipts"], body)
        failed = [
            {"receipt": receipt, "code": outcome, "detail": outcome}
            for receipt, outcome in zip(body["receipts"], outcomes, strict=True)
            if outcome is not None
        ]
        return web.json_response({"done": len(outcomes) - len(failed), "failed": failed})

    def _outcomes(
        self, group: FakeGroup, kind: str, receipts: list[str], body: dict[str, Any]
    ) -> list[str | None]:
        delay = body.get("delay", body.get("visibility"))
        delay_ms = None if delay is None else parse_duration_ms(delay)
        outcomes: list[str | None] = []
        for text in receipts:
            try:
                receipt = parse(text)
                if not is_genuine(text, MAC):
                    raise ReceiptError("receipt-forged", "not ours")
            except ReceiptError as error:
                outcomes.append(error.code)
                continue
            desk = group.desks[receipt.partition].look_up()
            act = Act(ActKind(kind), receipt, delay_ms, body.get("reason", ""))
            acted = desk.leader.act([act], desk.now_ms, desk.append_us)
            desk.fold_operations(acted.operations)
            desk.commit()
            outcomes += acted.outcomes
        return outcomes
