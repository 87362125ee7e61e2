"""What HTTP needs of the agent: the broker as a protocol, so that arrows point down and tests bring their
own.

Only shapes live here. agent/service/broker.py implements them structurally (mypy checks it where the two
meet); tests/agent/fake_broker.py is the in-memory one. Every method raises shoal.errors.ShoalError for a
fault and nothing else; documents are JSON-ready and have the shapes that docs/http.md shows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from shoal.agent.events.feed import EventFeed
from shoal.format.batch import Message, ProducerStamp
from shoal.format.hash_ranges import HashRange
from shoal.format.records import RecordColumns
from shoal.membership.interface import KeyChange

MAX_PARTITIONS = 1_024  # per topic: each is a directory, a file and a Raft group on every holder
MAX_REPLICATION_FACTOR = 7
MIN_SEGMENT_BYTES = 1 << 20
MAX_SEGMENT_BYTES = 1 << 30

Json = dict[str, Any]
Admit: TypeAlias = "Callable[[int], Awaitable[None]]"
"""Told how much memory reading will take, before it does; returns once that may be."""


class Document(Protocol):
    """A versioned answer: `version` is opaque, `body` is what the client gets."""

    @property
    def version(self) -> str: ...
    @property
    def body(self) -> Json: ...


class Topic(Protocol):
    """A topic as the local catalog knows it; `ranges` are by partition number."""

    @property
    def name(self) -> str: ...
    @property
    def schema(self) -> pa.Schema: ...
    @property
    def ranges(self) -> tuple[HashRange, ...]: ...


class Leader(Protocol):
    """Who leads a group, as far as this agent knows."""

    @property
    def agent_id(self) -> str: ...
    @property
    def url(self) -> str: ...
    @property
    def term(self) -> int: ...
    @property
    def local(self) -> bool: ...


class Appended(Protocol):
    """Where records went; `base_offset` is -1 where nobody knows it (acks=none)."""

    @property
    def base_offset(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def duplicate(self) -> bool: ...


class Answer(Protocol):
    """Who waits for an append: told once, at any time from begin_append on, never by an exception raised
    here. Once `done()` nothing need be told.
    """

    def done(self) -> bool: ...
    def set_result(self, result: Any, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...


class Lent(Protocol):
    """Stored bytes that need no copy here; its length is what has not been written yet."""

    def __len__(self) -> int: ...

    def write_to(self, descriptor: int) -> int:
        """Write what it takes at once: how many bytes. BlockingIOError and other OSErrors."""

    def close(self) -> None: ...


class Pieces(Protocol):
    """Stored batches that are read while they are sent; `held_bytes` of memory meanwhile."""

    @property
    def size_bytes(self) -> int: ...
    @property
    def held_bytes(self) -> int: ...

    async def prepare_lending(self) -> None:
        """Call it once before `lend`, where the answer can send what is lent."""

    def lend(self) -> Lent | None:
        """What comes next, if it is known to be good without being read; None where it has to be."""

    def at_once(self) -> bytes | memoryview | None:
        """As `next`, if that takes no waiting and nothing is wrong; None where `next` has to be awaited."""

    async def next(self) -> bytes | memoryview | None:
        """Whole batches, in memory that the next call uses again; None behind the last. Raises ShoalError."""

    async def let_go(self) -> None:
        """Keep no file until the next call."""


class Fetch(Protocol):
    """Whole stored batches from the one that holds the wanted offset: `frames`, or else `pieces`."""

    @property
    def schema(self) -> pa.Schema: ...
    @property
    def frames(self) -> Sequence[bytes | memoryview]: ...
    @property
    def pieces(self) -> Pieces | None: ...
    @property
    def base_offset(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def log_start_offset(self) -> int: ...


class Offsets(Protocol):
    """The three ends of a partition's log."""

    @property
    def log_start_offset(self) -> int: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...


class Configuration(Protocol):
    """The part of the agent's configuration that HTTP asks for."""

    @property
    def auto_create_topics(self) -> bool: ...


class Keys(Protocol):
    """The gossip keys of the pool."""

    async def listing(self) -> Json: ...
    async def change(self, change: KeyChange, text: str, *, force: bool) -> Json: ...


class Broker(Protocol):
    """The agent as HTTP sees it."""

    @property
    def agent_id(self) -> str: ...
    @property
    def url(self) -> str: ...
    @property
    def config(self) -> Configuration: ...
    @property
    def keys(self) -> Keys: ...

    @property
    def events(self) -> EventFeed: ...

    async def members(self, after_version: str | None, wait_ms: int) -> Document: ...
    async def routes(self, topic: str | None, after_version: str | None, wait_ms: int) -> Document: ...
    def agent_document(self) -> Json: ...
    def readiness(self) -> tuple[bool, Mapping[str, str]]: ...
    def force_leave(self, member: str) -> None: ...
    async def join(self, addresses: Sequence[str]) -> int: ...
    async def leave(self) -> None: ...
    async def drain(self, *, undo: bool) -> Json: ...
    def drain_document(self) -> Json: ...
    def metrics(self) -> bytes: ...
    async def accept_peer(
        self, transport: asyncio.Transport | None, http_protocol: asyncio.BaseProtocol
    ) -> None: ...
    def knows_address(self, address: str) -> bool: ...

    # topics: at the catalog's leader; elsewhere ShoalError("not-leader", leader_url=...)
    async def create_topic(self, name: str, body: Json | None, timeout_ms: int) -> tuple[bool, Json]: ...
    async def change_topic(self, name: str, body: Json | None, timeout_ms: int) -> Json: ...
    async def delete_topic(self, name: str, timeout_ms: int) -> None: ...
    async def adopt_topic(self, kept: str, name: str | None, timeout_ms: int) -> Json: ...
    async def kept_topics(self) -> list[Json]: ...
    async def topics(self) -> list[Json]: ...
    async def topic_document(self, name: str) -> Json: ...
    def topic(self, name: str) -> Topic: ...
    def catalog_leader(self) -> Leader | None: ...
    def hears(self, agent_id: str) -> bool: ...

    def leader(self, topic: Any, partition: int) -> Leader | None: ...
    async def wait_leader(self, topic: Any, partition: int, timeout_ms: int) -> Leader: ...

    # records: only where the partition is led; elsewhere ShoalError("not-leader", leader, leader_url, term)
    async def append(
        self,
        topic: Any,
        partition: int,
        messages: Sequence[Message],
        *,
        producer: ProducerStamp | None,
        consecutive: bool,
        acks: str,
        timeout_ms: int,
    ) -> Appended: ...
    async def append_records(
        self,
        topic: Any,
        partition: int,
        columns: RecordColumns,
        *,
        producer: ProducerStamp | None,
        consecutive: bool,
        acks: str,
        timeout_ms: int,
    ) -> Appended: ...
    def begin_append(
        self,
        topic: Any,
        partition: int,
        records: RecordColumns | Sequence[Message],
        *,
        producer: ProducerStamp | None,
        consecutive: bool,
        acks: Any,
        timeout_ms: int,
        answer: Answer,
    ) -> None: ...
    def hold(self) -> None: ...
    def hurry(self) -> None: ...
    async def read(
        self,
        topic: Any,
        partition: int,
        offset: Any,
        *,
        max_bytes: int,
        wait_ms: int,
        local: bool,
        limit: int | None = None,
        admit: Admit | None = None,
    ) -> Fetch: ...
    async def offsets(self, topic: Any, partition: int) -> Offsets: ...
    async def wait_past(self, topic: Any, partition: int, offset: Any, wait_ms: int) -> bool: ...
    async def recover(self, topic: str, partition: int, *, carry_out: bool) -> Json: ...
    async def trim(self, topic: Any, partition: int, before: Any, timeout_ms: int) -> int: ...
    async def offset_at_time(self, topic: Any, partition: int, time_us: int) -> int: ...
