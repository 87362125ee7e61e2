"""An in-memory cluster of brokers with the real ones' semantics, for tests of HTTP.

Topics, logs and leadership live in a FakeCluster; each FakeBroker is one agent's view of it. Appends make
real stamped frames, dense offsets and idempotent producers; what is led elsewhere is refused with the
leader's URL. Faults are injected by tests: `fail_next`, `leaders`, `catalog_leader_id`. Neither disk nor
Raft.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from fake_gossip_keys import FakeKeyedGossip
from fake_groups import FakeDelivery, FakeGroupBroker
from fake_principals import FakePrincipalBroker, InstantCatalog
from fake_tables import FakeTableBroker

from shoal.agent.events.feed import EventFeed
from shoal.agent.fetch import Fetch, FetchRequest, Offsets
from shoal.agent.interface import Answer, Appended, Document, Json, Leader, Submission, Topic
from shoal.agent.members.gossip_keys import KeyService
from shoal.agent.metrics.exposition import Reading, Value
from shoal.agent.receive import Promise, Range
from shoal.agent.topics.groups_catalog import GroupEntry
from shoal.agent.topics.settings import (
    SCHEMAS,
    TopicSettings,
    check_topic_form,
    check_topic_name,
    settings_from_body,
    settings_table,
)
from shoal.errors import ShoalError
from shoal.format.batch import (
    Kind,
    LogIdentity,
    LogIndex,
    Message,
    Offset,
    ProducerStamp,
    Term,
    message_from_batch,
    stamp_message,
    to_record_batch,
)
from shoal.format.hash_ranges import hash_ranges
from shoal.format.records import RecordColumns, columns_to_batch

CLUSTER_ID = b"fake cluster id."


@dataclasses.dataclass(frozen=True, slots=True)
class FakeTopic(Topic):
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class FakeConfiguration:
    auto_create_topics: bool = True


@dataclasses.dataclass
class FakeLog:
    """One partition: (base offset, count, max timestamp, stored message) for each batch."""

    identity: LogIdentity
    batches: list[tuple[int, int, int, bytes]] = dataclasses.field(default_factory=list)
    start: int = 0
    end: int = 0
    producers: dict[bytes, tuple[int, int, Appended]] = dataclasses.field(default_factory=dict)
    grown: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)

    def append(
        self, messages: Sequence[Message], producer: ProducerStamp | None, *, consecutive: bool = True
    ) -> Appended:
        if producer is not None:
            known = self.known(producer, consecutive)
            if known is not None:
                return known
        base_offset = self.end
        for message in messages:
            frame = stamp_message(
                message,
                self.identity,
                kind=Kind.DATA,
                base_offset=Offset(self.end),
                term=Term(1),
                previous_term=Term(1),
                index=LogIndex(len(self.batches) + 1),
                append_time_us=time.time_ns() // 1000,
                producer=producer,
            )
            self.batches.append((self.end, message.record_count, message.max_timestamp_us, frame.data))
            self.end += message.record_count
        appended = Appended(Offset(base_offset), self.end - base_offset)
        if producer is not None:
            self.producers[producer.producer_id] = (producer.epoch, producer.sequence, appended)
        self.grown.set()
        self.grown = asyncio.Event()
        return appended

    def known(self, producer: ProducerStamp, consecutive: bool) -> Appended | None:
        epoch, sequence, appended = self.producers.get(
            producer.producer_id, (producer.epoch, -1, Appended(Offset(-1), 0))
        )
        if producer.epoch < epoch:
            raise ShoalError("producer-fenced", f"epoch {epoch} is known", epoch=epoch)
        if producer.epoch > epoch:
            sequence = -1
        if producer.sequence == sequence:
            return appended._replace(duplicate=True)
        if producer.sequence != sequence + 1 and (consecutive or producer.sequence < sequence):
            raise ShoalError("sequence-gap", f"sequence {sequence + 1} is expected")
        return None

    def range_members(self) -> dict[str, Any]:
        return {"log_start_offset": self.start, "high_watermark": self.end}


class FakeCluster:
    """What the agents agree on, and the faults that a test wants."""

    def __init__(self) -> None:
        self.brokers: dict[str, FakeBroker] = {}
        self.topics: dict[str, FakeTopic] = {}
        self.logs: dict[tuple[str, int], FakeLog] = {}
        self.leaders: dict[tuple[str, int], str | None] = {}
        self.catalog_leader_id: str | None = None
        self.level = 1
        self.keys: dict[str, str | None] = {}
        """By topic: of the request that made it."""
        self.raised_without: list[object] = []
        self.changed = asyncio.Event()
        self.version = 1
        self.events = EventFeed("fake")
        self.groups: dict[tuple[str, str], GroupEntry] = {}
        self.groups_made = 0
        self.letters: set[str] = set()
        """Topics that hold dead letters."""
        self.deliveries: dict[tuple[str, int], FakeDelivery] = {}
        self.promises: dict[tuple[bytes, int, int], Promise] = {}
        self.security = InstantCatalog()

    def add(self, name: str) -> FakeBroker:
        broker = FakeBroker(self, name)
        self.brokers[broker.agent_id] = broker
        if self.catalog_leader_id is None:
            self.catalog_leader_id = broker.agent_id
        return broker

    def create(
        self, name: str, partitions: int = 1, leader: str | None = None, kind: str = "log"
    ) -> FakeTopic:
        topic_id = hashlib.sha256(name.encode()).digest()[:16]
        settings = {"partitions": partitions}
        topic = FakeTopic(name, topic_id, SCHEMAS[kind], hash_ranges(partitions), kind, settings)
        self.topics[name] = topic
        agents = sorted(self.brokers)
        for partition in range(partitions):
            identity = LogIdentity(CLUSTER_ID, topic_id, partition)
            self.logs[name, partition] = FakeLog(identity)
            self.leaders[name, partition] = leader or agents[partition % len(agents)]
        self.bump()
        return topic

    def bump(self) -> None:
        self.version += 1
        self.changed.set()
        self.changed = asyncio.Event()

    def values(self, name: str, partition: int = 0) -> list[bytes | None]:
        """Everything stored in a partition, in order."""
        found: list[bytes | None] = []
        for _, _, _, data in self.logs[name, partition].batches:
            found += to_record_batch(data, self.topics[name].schema).column("value").to_pylist()
        return found

    def stored(self) -> int:
        """Records in all logs."""
        return sum(log.end for log in self.logs.values())


class FakeBroker(FakeGroupBroker, FakeTableBroker, FakePrincipalBroker):
    """One agent's broker."""

    def __init__(self, cluster: FakeCluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.agent_id = hashlib.sha256(name.encode()).hexdigest()[:32]
        self.url = "http://127.0.0.1:7070"  # tests with two agents set the real one
        self.config = FakeConfiguration()
        gossip = FakeKeyedGossip(name)
        self.keys = KeyService(lambda: gossip)
        self.ready = True
        self.fail_next: list[ShoalError] = []
        self.begun = 0  # appends that came the short way
        self.fail_answer: ShoalError | None = None  # of the next append the short way
        self.held: list[tuple[Answer, Appended]] | None = None  # not answered, when a list
        self.addresses: set[str] = set()
        self.joined: list[str] = []
        self.left: list[str] = []
        self.if_versions: list[str | None] = []
        """Of the changes of topics that were asked for here."""
        self.draining = False
        self.unheard: set[str] = set()
        self.recovered: list[tuple[str, int]] = []
        self.recovery_refusal: str | None = None
        self.kept: list[Json] = []
        self.silent: list[Json] = []
        self.last_timeout_ms = -1
        self.last_acks = ""
        self.peer_answer: bytes = b""
        self.peer_terms: list[str | None] = []
        self.known_end = 2**63  # of all logs, as this follower knows them
        self.scrapes = 0
        self.scraped_partitions = 1
        self.scraping: Callable[[], Awaitable[None]] = partial(asyncio.sleep, 0)
        self.events = cluster.events

    # --- membership and routing

    def now_us(self) -> int:
        return time.time_ns() // 1_000

    async def members(self, after_version: str | None, wait_ms: int) -> Document:
        await self._wait(after_version, wait_ms)
        members = [
            {
                "id": broker.agent_id, "name": broker.name, "kind": "shoal",
                "status": "failed" if broker.name in self.left else "alive", "address": "127.0.0.1",
                "gossip_port": 7946, "url": broker.url, "failure_domain": None, "incarnation": 1,
                "since": "2026-01-01T00:00:00.000000Z", "tags": {"zone": broker.name}, "partitions": [],
            }
            for broker in self.cluster.brokers.values()
        ]  # fmt: skip
        body = {
            "cluster": "fake",
            "cluster_id": CLUSTER_ID.hex(),
            "version": self._version(),
            "members": members,
        }
        return Document(self._version(), body)

    async def routes(self, topic: str | None, after_version: str | None, wait_ms: int) -> Document:
        await self._wait(after_version, wait_ms)
        names = [topic] if topic is not None else sorted(self.cluster.topics)
        topics = {name: self._route(self.cluster.topics[name]) for name in names}
        return Document(self._version(), {"version": self._version(), "topics": topics})

    def _route(self, topic: FakeTopic) -> Json:
        partitions = []
        for partition, owned in enumerate(topic.ranges):
            leader = self.leader(topic, partition)
            partitions.append(
                {
                    "partition": partition, "hash_range": list(owned), "state": "open", "successors": [],
                    "leader": leader and leader.agent_id, "leader_url": leader and leader.url, "term": 1,
                    "replicas": [],
                }
            )  # fmt: skip
        return {"id": topic.id.hex(), "partitions": partitions}

    def _version(self) -> str:
        return f"{self.agent_id[:8]}.{self.cluster.version}"

    async def _wait(self, after_version: str | None, wait_ms: int) -> None:
        if after_version != self._version() or not wait_ms:
            return
        try:
            async with asyncio.timeout(wait_ms / 1000):
                await self.cluster.changed.wait()
        except TimeoutError:
            return

    def agent_document(self) -> Json:
        return {"id": self.agent_id, "name": self.name, "version": "0.1.0", "disk": "memory"}

    def readiness(self) -> tuple[bool, Mapping[str, str]]:
        return self.ready, {"joined": "ok", "catalog": "ok" if self.ready else "not caught up"}

    def hears(self, agent_id: str) -> bool:
        return agent_id not in self.unheard

    def force_leave(self, name_or_id: str) -> None:
        self.left.append(name_or_id)

    async def join(self, addresses: Sequence[str]) -> int:
        self.joined += addresses
        return len(addresses)

    async def leave(self) -> None:
        self.left.append(self.agent_id)

    async def drain(self, *, undo: bool) -> Json:
        self.draining = not undo
        return self.drain_document()

    async def recover(self, topic: str, partition: int, *, carry_out: bool) -> Json:
        check_topic_form(topic)
        if self.recovery_refusal is not None and carry_out:
            raise ShoalError("recovery-refused", self.recovery_refusal)
        self.recovered += [(topic, partition)] if carry_out else []
        return {"topic": topic, "partition": partition, "log_end_offset": 5, "entries": 7,
                "committed_entries": 6, "lost": [{"id": "b" * 32, "name": "sardine"}],
                "refusal": self.recovery_refusal}  # fmt: skip

    async def kept_topics(self) -> Json:
        return {"topics": self.kept, "silent": self.silent}

    async def adopt_topic(self, kept: str, name: str | None, timeout_ms: int) -> Json:
        self._check_catalog_leader()
        found = next((item for item in self.kept if kept in (item["name"], item["id"])), None)
        if found is None:
            raise ShoalError("unknown-topic", f"no live agent keeps {kept}")
        self.kept.remove(found)
        return (await self.create_topic(name or found["name"], {"partitions": 2}, timeout_ms, None))[1]

    def level_document(self) -> Json:
        member = {"id": self.agent_id, "name": self.name, "status": "alive", "lowest": 1, "highest": 2,
                  "holds": False}  # fmt: skip
        return {"level": self.cluster.level, "possible": 2, "members": [member]}

    async def raise_level(self, wanted: object, without: object, timeout_ms: int) -> Json:
        self._check_catalog_leader()
        self.cluster.raised_without.append(without)
        if wanted not in (None, 1, 2):
            raise ShoalError("level-refused", f"nobody understands level {wanted}")
        self.cluster.level = 2
        return self.level_document()

    def drain_document(self) -> Json:
        return {"id": self.agent_id, "name": self.name, "draining": self.draining, "replicas": 0, "leads": 0,
                "blocked": [], "safe_to_stop": self.draining}  # fmt: skip

    async def metrics(self, *, partitions: bool) -> Reading:
        self.scrapes += 1
        await self.scraping()
        reading: dict[str, Value] = {"shoal_build_info": {("1", "none"): 1}}
        if partitions:
            series = {("t", str(number)): number for number in range(self.scraped_partitions)}
            reading["shoal_partition_term"] = series
        return reading

    def knows_address(self, address: str) -> bool:
        return address in self.addresses

    async def accept_peer(
        self, transport: asyncio.Transport | None, http_protocol: asyncio.BaseProtocol, terms: str | None
    ) -> None:
        """Answer 101 and the test's bytes on the bare connection, then end it."""
        self.peer_terms.append(terms)
        assert transport is not None
        transport.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: shoal-peer/1\r\n\r\n" + self.peer_answer
        )
        transport.close()

    # --- topics

    def catalog_leader(self) -> Leader | None:
        return self._leader_named(self.cluster.catalog_leader_id)

    def _check_catalog_leader(self) -> None:
        leader = self.catalog_leader()
        if leader is None or not leader.local:
            raise not_leader(leader)

    async def create_topic(
        self, name: str, body: Json | None, timeout_ms: int, key: str | None
    ) -> tuple[bool, Json]:
        check_topic_name(name)
        self._raise_injected()
        self.last_timeout_ms = timeout_ms
        self._check_catalog_leader()
        settings = body or {}
        partitions = settings_from_body(body)[0].partitions
        known = self.cluster.topics.get(name)
        if known is not None:
            if settings and known.settings["partitions"] != partitions:
                raise ShoalError("topic-differs", f"{name} exists with other settings")
            return key is not None and self.cluster.keys[name] == key, await self.topic_document(name)
        self.cluster.create(name, partitions)
        self.cluster.keys[name] = key
        return True, await self.topic_document(name)

    async def change_topic(
        self, name: str, body: Json | None, timeout_ms: int, if_version: str | None
    ) -> Json:
        check_topic_name(name)
        self._raise_injected()
        self._check_catalog_leader()
        topic = self.topic(name)
        if not body or set(body) - {"retention", "segment", "replication_factor"}:
            raise ShoalError("bad-request", "partitions and fsync of a topic cannot be changed")
        self.if_versions.append(if_version)
        changed = {**topic.settings, **body}
        self.cluster.topics[name] = dataclasses.replace(topic, settings=changed)
        self.cluster.bump()
        return await self.topic_document(name)

    async def delete_topic(self, name: str, timeout_ms: int) -> None:
        check_topic_name(name)
        self._raise_injected()
        self._check_catalog_leader()
        topic = self.topic(name)
        for partition in range(len(topic.ranges)):
            del self.cluster.logs[name, partition]
        del self.cluster.topics[name]
        self.cluster.bump()

    async def topics(self) -> list[Json]:
        return [
            {
                "name": topic.name, "id": topic.id.hex(), "kind": topic.kind, "partitions": len(topic.ranges),
                "replication_factor": 1, "under_replicated": False, "records": 0, "bytes": 0,
            }
            for topic in self.cluster.topics.values()
        ]  # fmt: skip

    def topic_settings(self, name: str) -> Json:
        topic = self.topic(name)
        table = settings_table(TopicSettings(partitions=len(topic.ranges)))
        return {"topic": name, "version": "0", "settings": table}

    async def topic_document(self, name: str) -> Json:
        topic = self.topic(name)
        document = {"name": name, "id": topic.id.hex(), "kind": topic.kind, "partitions": len(topic.ranges)}
        return document | {
            name: topic.settings[name] for name in ("retention", "segment") if name in topic.settings
        }

    def topic(self, name: str) -> FakeTopic:
        try:
            return self.cluster.topics[name]
        except KeyError:
            check_topic_form(name)
            raise ShoalError("unknown-topic", f"there is no topic {name!r}") from None

    # --- leaders

    def _leader_named(self, agent_id: str | None) -> Leader | None:
        if agent_id is None:
            return None
        return Leader(agent_id, self.cluster.brokers[agent_id].url, 1, agent_id == self.agent_id)

    def move(self, name: str, partition: int, agent_id: str | None) -> None:
        """Another agent leads from now on; whoever waits at the log is woken, as a change of role does."""
        self.cluster.leaders[name, partition] = agent_id
        log = self.cluster.logs[name, partition]
        log.grown.set()
        log.grown = asyncio.Event()

    def leader(self, topic: Topic, partition: int) -> Leader | None:
        return self._leader_named(self.cluster.leaders[topic.name, partition])

    async def wait_leader(self, topic: Topic, partition: int, timeout_ms: int) -> Leader:
        if partition >= len(topic.ranges):
            raise ShoalError("unknown-partition", f"{topic.name} has {len(topic.ranges)} partitions")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        while True:
            leader = self.leader(topic, partition)
            if leader is not None:
                return leader
            if loop.time() >= deadline:
                raise ShoalError("no-leader", f"{topic.name}/{partition} has no leader")
            await asyncio.sleep(0.005)

    def _log(self, topic: Topic, partition: int, *, local: bool = False) -> FakeLog:
        log = self.cluster.logs.get((topic.name, partition))
        if log is None:
            raise ShoalError("unknown-partition", f"{topic.name} has {len(topic.ranges)} partitions")
        leader = self.leader(topic, partition)
        if not local and (leader is None or not leader.local):
            raise not_leader(leader)
        return log

    def _raise_injected(self) -> None:
        if self.fail_next:
            raise self.fail_next.pop(0)

    # --- records

    async def append(self, topic: Topic, partition: int, submission: Submission) -> Appended:
        self._raise_injected()
        done = self._store(topic, partition, submission)
        return Appended(Offset(-1), done.count) if submission.acks == "none" else done

    def begin_append(self, topic: Topic, partition: int, submission: Submission, answer: Answer) -> None:
        """Refuses at once, as the real one does; answers a turn of the loop later, or when the test does."""
        self._raise_injected()
        self.begun += 1
        done = self._store(topic, partition, submission)
        if self.fail_answer is not None:
            error, self.fail_answer = self.fail_answer, None
            asyncio.get_running_loop().call_soon(answer.set_exception, error)
        elif self.held is not None:
            self.held.append((answer, done))
        else:
            asyncio.get_running_loop().call_soon(answer.set_result, done)

    def _store(self, topic: Topic, partition: int, submission: Submission) -> Appended:
        self.last_timeout_ms = submission.timeout_ms
        self.last_acks = submission.acks
        records = submission.records
        if isinstance(records, RecordColumns):
            assert len(records), "the real host has nothing to append either"
            records = [message_from_batch(columns_to_batch(records, time.time_ns() // 1000, topic.schema))]
        log = self._log(topic, partition)
        return log.append(records, submission.producer, consecutive=submission.consecutive)

    async def due_records(
        self, topic: Topic, partition: int, ranges: Sequence[Range]
    ) -> list[pa.RecordBatch]:
        self._raise_injected()
        found: list[pa.RecordBatch] = []
        for first, _, _, data in self._log(topic, partition).batches:
            batch = to_record_batch(data, topic.schema)
            offsets = pa.array(range(first, first + batch.num_rows), pa.int64())
            schema = pa.schema([pa.field("offset", pa.int64()), *topic.schema])
            found.append(pa.RecordBatch.from_arrays([offsets, *batch.columns], schema=schema))
        rows = pa.concat_batches(found)
        return [rows.slice(piece.first, piece.count) for piece in ranges]

    async def read(self, topic: Topic, partition: int, request: FetchRequest) -> Fetch:
        offset, max_bytes, wait_ms, local, limit, _ = request
        self._raise_injected()
        log = self._log(topic, partition, local=local)
        end = min(log.end, self.known_end) if local else log.end
        if offset < log.start:
            raise ShoalError("trimmed", f"offset {offset} was removed", **log.range_members())
        if offset > end and local:
            error = not_leader(self.leader(topic, partition))
            error.extra["high_watermark"] = end
            raise error
        if offset > end:
            raise ShoalError("beyond-end", f"offset {offset} is beyond the end", **log.range_members())
        if offset == end and wait_ms:
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    await log.grown.wait()
            except TimeoutError:
                pass
            self._log(topic, partition, local=local)  # it may lead no longer
            end = min(log.end, self.known_end) if local else log.end
        frames: list[bytes] = []
        base, following, size = int(offset), int(offset), 0
        for first, count, _, data in log.batches:
            if first + count <= offset:
                continue
            if frames and size + len(data) > max_bytes:
                break
            if (first + count > end and local) or (limit is not None and first >= offset + limit):
                break
            if not frames:
                base = first
            frames.append(data)
            size += len(data)
            following = first + count
        high_watermark = Offset(end if local else log.end)
        return Fetch(topic.schema, frames, Offset(base), Offset(following), high_watermark, Offset(log.start))

    async def offsets(self, topic: Topic, partition: int) -> Offsets:
        log = self._log(topic, partition)
        return Offsets(Offset(log.start), Offset(log.end), Offset(log.end))

    async def wait_past(self, topic: Topic, partition: int, offset: Offset, wait_ms: int) -> bool:
        self._raise_injected()
        log = self._log(topic, partition)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_ms / 1000
        while log.end <= offset:
            leader = self.leader(topic, partition)
            remaining = deadline - loop.time()
            if remaining <= 0 or leader is None or not leader.local:
                return False
            try:
                async with asyncio.timeout(remaining):
                    await log.grown.wait()
            except TimeoutError:
                return False
        return True

    async def trim(self, topic: Topic, partition: int, before: Offset, timeout_ms: int) -> Offset:
        """One batch is one segment here."""
        log = self._log(topic, partition)
        if before > log.end:
            raise ShoalError("beyond-end", f"offset {before} lies beyond the end", **log.range_members())
        ends = [first + count for first, count, _, _ in log.batches]
        log.start = max([log.start, *(end for end in ends if end <= before)])
        return Offset(log.start)

    async def offset_at_time(self, topic: Topic, partition: int, time_us: int) -> Offset:
        log = self._log(topic, partition)
        for first, _, max_timestamp_us, _ in log.batches:
            if max_timestamp_us >= time_us:
                return Offset(first)
        return Offset(log.end)


def not_leader(leader: Leader | None) -> ShoalError:
    if leader is None:
        return ShoalError("not-leader", "no leader is known", leader=None, leader_url=None, term=0)
    return ShoalError(
        "not-leader", "another agent leads", leader=leader.agent_id, leader_url=leader.url, term=leader.term
    )
