"""Hosts over real links and disks on loopback, for the tests of this folder."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

import pyarrow as pa
from listening import stop_listening
from waiting import PATIENCE_S, until

from shoal.agent.durable.identity import HardStateFile, ReplicaRegistry
from shoal.agent.durable.ids import GroupId
from shoal.agent.fetch import FetchRequest
from shoal.agent.host.config import HostConfig
from shoal.agent.host.host import Host
from shoal.agent.partition.opener import Stores
from shoal.agent.partition.plan import Plan
from shoal.agent.peers.links import LinkConfig, Links
from shoal.agent.process.clock import SystemClock
from shoal.agent.submission import Submission
from shoal.errors import ShoalError
from shoal.format.batch import (
    DEFAULT_SCHEMA,
    Message,
    ProducerStamp,
    decode_stream,
    message_from_batch,
    producer_id_from_text,
    schema_message,
)
from shoal.format.records import RecordColumns, columns_to_batch
from shoal.replication.config import RaftConfig
from shoal.replication.interfaces import Configuration
from shoal.segment_store.config import LogConfig
from shoal.segment_store.disk.disk import Disk
from shoal.segment_store.disk.threads import ThreadDisk
from tests.agent.link_server import serve_links

CLUSTER = bytes(range(16))
GROUP = GroupId(b"t" * 16, 0)
RAFT = RaftConfig(
    heartbeat_interval_ms=30,
    election_timeout_ms=300,
    retry_after_ms=60,
    quiet_after_ms=400,
    sync_stall_ms=3_000,
)
LINK = LinkConfig(heartbeat_interval_ms=30, silence_after_ms=400, silence_after_loss_ms=100, redial_min_ms=10)
PRODUCERS = 8
"""More than ever append at a time: each has a producer of its own, whose next epoch is another append's."""
TURNS_TO_ACCEPT = 10
"""Of the loop, from a connection in a listener's queue until its protocol is known: three or four."""


def columns(*values: str) -> RecordColumns:
    """Records with these values and nothing else."""
    made = RecordColumns()
    for value in values:
        made.append(None, None, value.encode(), None)
    return made


def message(*values: str) -> Message:
    """One batch with these values."""
    return message_from_batch(columns_to_batch(columns(*values), 1_000_000))


@dataclass
class Node:
    """One agent: host, links, HTTP server for the links, its own directory."""

    agent_id: str
    directory: str
    log_config: LogConfig = field(default_factory=LogConfig)
    raft_config: RaftConfig = RAFT
    make_disk: Callable[[], Disk] = ThreadDisk
    port: int = 0
    life: int = 0
    changes: list[GroupId] = field(default_factory=list)
    cluster: Cluster | None = None

    async def start(self) -> None:
        """A new life on the same directory."""
        self.life += 1
        self.disk = self.make_disk()
        await self.disk.make_directory(self.directory)
        self.registry = await ReplicaRegistry.open(self.disk, self.directory)
        self.hard_states = await HardStateFile.open(self.disk, self.directory)
        clock = SystemClock()
        nonce = self.life.to_bytes(8, "little")
        self.links = Links(
            agent_id=self.agent_id,
            boot_nonce=nonce,
            cluster_id=CLUSTER,
            clock=clock,
            rng=random.Random(self.life),
            config=LINK,
        )
        self.host = Host(
            agent_id=self.agent_id,
            stores=Stores(self.disk, self.directory, CLUSTER, self.registry, self.hard_states),
            links=self.links,
            clock=clock,
            rng=random.Random(hash(self.agent_id) + self.life),
            config=HostConfig(self.raft_config, retention_interval_ms=20),
            on_change=self.changes.append,
        )
        self.runner = await serve_links(self.links, self.port)
        assert self.runner.server is not None
        self.server = self.runner.server
        self.port = self.runner.addresses[0][1]
        await self.links.start()
        self.running = asyncio.create_task(self.host.run())

    async def open(self, birth: Configuration, group: GroupId = GROUP, **options: Any) -> None:
        """Open the group, unless another is given with the default schema."""
        options = {"log_config": self.log_config, "schema": DEFAULT_SCHEMA} | options
        await self.host.open_group(Plan(group, birth, **options))

    async def stop(self) -> None:
        """Without handing over: peers see a dead process."""
        await stop_listening(self.runner)
        for site in self.runner.sites:
            await site.stop()
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)
        await self.links.stop()
        await self.host.stop()
        await self.runner.cleanup()
        await self.registry.close()
        await self.hard_states.close()
        await self.disk.close()

    def cut_off(self) -> None:
        """From this instant until it is stopped, or comes back, nobody hears it, and it hears nobody."""
        self.links.send_control = lambda *_: True  # type: ignore[method-assign]
        self.links.send_bulk = lambda *_: True  # type: ignore[method-assign]
        self.links.frame = lambda *_: None  # type: ignore[method-assign]

    def come_back(self) -> None:
        """It hears others from this instant on, and is heard; what was said meanwhile is lost."""
        del self.links.send_control, self.links.send_bulk, self.links.frame

    @property
    def leads(self) -> bool:
        """Whether it leads the group and has committed in its term."""
        if not self.host.has(GROUP):
            return False
        status = self.host.status(GROUP)
        return status.leader_agent_id == self.agent_id and status.state == "active"


class Cluster:
    """Nodes that hold one replica each of GROUP."""

    def __init__(self, directory: str, count: int, **options: Any) -> None:
        ids = [str(number + 1) * 32 for number in range(count)]
        self.nodes = [Node(agent_id, f"{directory}/{agent_id[0]}", **options) for agent_id in ids]
        for node in self.nodes:
            node.cluster = self
        self.birth = Configuration.birth(tuple(ids))
        self.alive: list[Node] = []
        self.plan_options: dict[str, Any] = {}
        """Of every plan, unless a node is started with others."""
        self._appends = 0
        self._looking: asyncio.Task[Node] | None = None

    async def __aenter__(self) -> Self:
        for node in self.nodes:
            await self.start(node)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        for node in list(self.alive):
            await self.stop(node)
        # A connection accepted while its HTTP server closed ends when its dialler's end is read: after some
        # turns of the loop, however long they take.
        for _ in range(TURNS_TO_ACCEPT):
            await asyncio.sleep(0.005)
        await until(lambda: not any(node.server.connections for node in self.nodes if node.life))

    async def start(self, node: Node, **options: Any) -> None:
        """A new life of this node, known to the others."""
        await node.start()
        self.alive.append(node)
        self._tell_addresses()
        await node.open(self.birth, **self.plan_options | options)

    def _tell_addresses(self) -> None:
        urls = {node.agent_id: f"http://127.0.0.1:{node.port}" for node in self.nodes if node.port}
        for node in self.alive:
            node.links.set_addresses(
                {agent_id: url for agent_id, url in urls.items() if agent_id != node.agent_id}
            )

    async def stop(self, node: Node) -> None:
        """It is gone, from one moment to the next."""
        self.alive.remove(node)
        await node.stop()

    async def leader(self) -> Node:
        """The one that leads, once there is one. However many wait for it, one looks: a thousand who look
        take the turns in which it is elected."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_for_leader())
        return await asyncio.shield(self._looking)

    async def _look_for_leader(self) -> Node:
        found: Node = await until(lambda: next((node for node in self.alive if node.leads), None))
        return found

    async def append(self, *values: str, **options: Any) -> Any:
        """Append at the leader, whoever that is, until it is acknowledged; once, however often that takes."""
        return await self.append_message(message(*values), **options)

    async def append_message(self, batch: Message, **options: Any) -> Any:
        """The same with a batch of the topic's own columns."""
        epoch, number = divmod(self._appends, PRODUCERS)
        self._appends += 1
        once = ProducerStamp(producer_id_from_text(f"harness {number}"), epoch, 0)
        options = {"timeout_ms": 1_000, "producer": once} | options
        async with asyncio.timeout(PATIENCE_S):
            while True:
                node = await self.leader()
                try:
                    return await node.host.append(GROUP, Submission.of([batch], **options))
                except ShoalError as error:
                    if not error.retriable:
                        raise
                    await asyncio.sleep(0.02)


async def read_values(node: Node, group: GroupId = GROUP, *, local: bool = False) -> list[str]:
    """Every committed value, from offset 0 to the high watermark. Where the node leads no longer, from that
    which does, as a client would."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await _read_values(node, group, local=local)
            except ShoalError as error:
                if local or group != GROUP or node.cluster is None or not error.retriable:
                    raise
            await asyncio.sleep(0.02)
            node = await node.cluster.leader()


async def _read_values(node: Node, group: GroupId, *, local: bool) -> list[str]:
    values: list[str] = []
    offset = node.host.status(group).log_start_offset
    while True:
        fetch = await node.host.reader(group).read(FetchRequest(offset, max_bytes=2**20, local=local))
        if not fetch.frames:
            return values
        rows: list[bytes] = []
        _, batches = decode_stream(schema_message(fetch.schema) + b"".join(fetch.frames))
        for batch in batches:
            rows += pa.RecordBatch.column(batch, "value").to_pylist()
        values += [row.decode() for row in rows[offset - fetch.base_offset :]]
        offset = fetch.next_offset
