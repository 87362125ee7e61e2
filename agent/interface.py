"""The one door of the agent for its front ends: values and small protocols, so that arrows point down and
tests bring their own agent.

Only shapes live here. agent/service implements the protocols structurally (mypy checks it where the two
meet); tests/agent/fake_broker.py is the in-memory one. Every method raises shoal.errors.ShoalError for a
fault and nothing else; documents are JSON-ready and have the shapes that docs/http.md shows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from shoal.agent.events.feed import EventFeed
from shoal.agent.fetch import Admit, Fetch, FetchRequest, Lent, Offsets, Pieces
from shoal.agent.metrics.exposition import Reading
from shoal.agent.receive import (
    NOBODY,
    Act,
    ActKind,
    DecideStopped,
    DeliveredRange,
    DuePlace,
    Granted,
    GroupKey,
    GroupMode,
    Promise,
    Question,
    Range,
    StoppedAction,
    Wanted,
)
from shoal.agent.security.access import AskedBy
from shoal.agent.submission import Acks, Answer, Appended, Submission
from shoal.agent.table import (
    MAX_SCAN_BYTES,
    MAX_SCAN_ROWS,
    MAX_TABLE_KEY_BYTES,
    Condition,
    RowLookup,
    ScanPage,
    ScanRequest,
    TableRow,
)
from shoal.format.batch import Offset
from shoal.format.hash_ranges import HashRange
from shoal.membership.interface import KeyChange

__all__ = [
    "Acks", "Act", "ActKind", "Admit", "Answer", "Appended", "Condition", "DecideStopped", "DeliveredRange",
    "DuePlace", "Fetch", "FetchRequest", "Granted", "GroupKey", "GroupMode", "Lent", "MAX_SCAN_BYTES",
    "MAX_SCAN_ROWS", "MAX_TABLE_KEY_BYTES", "NOBODY", "Offsets", "Pieces", "Promise", "Question", "Range",
    "RowLookup", "ScanPage", "ScanRequest", "StoppedAction", "Submission", "TableRow", "Wanted",
]  # fmt: skip

MAX_PARTITIONS = 1_024  # per topic: each is a directory, a file and a Raft group on every holder
MAX_REPLICATION_FACTOR = 7
MIN_SEGMENT_BYTES = 1 << 20
MAX_RETENTION_BYTES = (1 << 53) - 1  # 8 PiB: larger numbers in JSON are inexact in many languages
MAX_SEGMENT_BYTES = 1 << 30

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Document:
    """A versioned answer: `version` is opaque, `body` is what the client gets."""

    version: str
    body: Json


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as the local catalog knows it; `ranges` are by partition number."""

    name: str
    id: bytes
    schema: pa.Schema
    ranges: tuple[HashRange, ...]
    kind: str = "log"

    @property
    def has_due_times(self) -> bool:
        """Its groups see a message when it is due."""
        return self.kind == "timer"


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group as the local catalog knows it. `mac`: the secret key of its receipts. `visibility_ms`:
    how long a message is in one consumer's hands, where a receive says nothing."""

    name: str
    key: GroupKey
    mac: bytes
    mode: GroupMode
    visibility_ms: int
    paused: bool


@dataclass(frozen=True, slots=True)
class Leader:
    """The agent that leads a group, as far as this agent knows."""

    agent_id: str
    url: str
    term: int
    local: bool


class Configuration(Protocol):
    """The part of the agent's configuration that HTTP asks for."""

    @property
    def auto_create_topics(self) -> bool: ...


class Keys(Protocol):
    """The gossip keys of the pool."""

    async def listing(self) -> Json: ...
    async def change(self, change: KeyChange, text: str, *, force: bool) -> Json: ...
    def fingerprint_of(self, text: str) -> str: ...


class Records(Protocol):
    """Records of partitions that this agent leads; elsewhere ShoalError("not-leader", leader, leader_url,
    term)."""

    def now_us(self) -> int:
        """Since the epoch, by the agent's clock: from then on a record's delay counts."""

    async def append(self, topic: Topic, partition: int, submission: Submission) -> Appended: ...
    def begin_append(self, topic: Topic, partition: int, submission: Submission, answer: Answer) -> None: ...
    async def read(self, topic: Topic, partition: int, request: FetchRequest) -> Fetch: ...
    async def offsets(self, topic: Topic, partition: int) -> Offsets: ...
    async def wait_past(self, topic: Topic, partition: int, offset: Offset, wait_ms: int) -> bool: ...
    async def trim(self, topic: Topic, partition: int, before: Offset, timeout_ms: int) -> Offset: ...
    async def offset_at_time(self, topic: Topic, partition: int, time_us: int) -> Offset: ...


class ConsumerGroups(Protocol):
    """Consumer groups in the catalog: made, changed and deleted at its leader. Elsewhere
    ShoalError("not-leader", leader_url=...)."""

    def group(self, topic: Topic, name: str) -> Group: ...
    async def known_group(self, topic: Topic, name: str, timeout_ms: int) -> Group: ...
    def groups(self, topic: Topic) -> list[Group]: ...
    def group_settings(self, topic: Topic, group: Group) -> Json: ...
    async def create_group(
        self, topic: str, name: str, body: Json | None, timeout_ms: int
    ) -> tuple[bool, Json]: ...
    async def change_group(
        self, topic: str, name: str, body: Json | None, timeout_ms: int, if_version: str | None
    ) -> Json: ...
    async def delete_group(self, topic: str, name: str, timeout_ms: int) -> None: ...


class Deliveries(Protocol):
    """Messages of a group in a partition that this agent leads; elsewhere as Records."""

    async def receive(
        self,
        topic: Topic,
        partition: int,
        group: Group,
        wanted: Wanted,
        acts: Sequence[Act],
        wait_ms: int,
        timeout_ms: int,
    ) -> Granted: ...
    async def act(
        self, topic: Topic, partition: int, group: Group, acts: Sequence[Act], timeout_ms: int
    ) -> tuple[str | None, ...]: ...
    async def await_messages(
        self, topic: Topic, partition: int, group: Group, question: Question, wait_ms: int
    ) -> Promise | None: ...
    async def due_records(
        self, topic: Topic, partition: int, ranges: Sequence[Range]
    ) -> list[pa.RecordBatch]: ...
    async def remembers(
        self, topic: Topic, partition: int, group: Group, consumer: bytes, request: bytes, *, confirmed: bool
    ) -> bool: ...


class GroupPartitions(Protocol):
    """Operators' and consumers' requests about a group in a partition that this agent leads."""

    async def begin_group(self, topic: Topic, partition: int, group: Group, timeout_ms: int) -> None: ...
    async def seek_group(
        self, topic: Topic, partition: int, group: Group, place: DuePlace | None, timeout_ms: int
    ) -> Json: ...
    async def decide_stopped(
        self, topic: Topic, partition: int, group: Group, decision: DecideStopped, timeout_ms: int
    ) -> bool: ...
    async def redrive_group(
        self, topic: Topic, partition: int, group: Group, limit: int | None, timeout_ms: int
    ) -> Json: ...
    async def group_numbers(self, topic: Topic, partition: int, group: Group) -> Json: ...
    def present(
        self, topic: Topic, partition: int, group: Group, consumer: bytes, instance: bytes, name: str
    ) -> bool: ...
    def leave_group(
        self, topic: Topic, partition: int, group: Group, consumer: bytes, instance: bytes
    ) -> None: ...


class Tables(Protocol):
    """Rows of a partition of a table that this agent leads; elsewhere as Records. `local`: as the replica
    here has them, led or not. ShoalError wrong-kind for a topic of another kind."""

    async def get_row(
        self, topic: Topic, partition: int, key: bytes, *, local: bool, timeout_ms: int
    ) -> RowLookup: ...
    def row_at_once(self, topic: Topic, partition: int, key: bytes) -> RowLookup | None:
        """As get_row of the leader, where that takes no wait; None: get_row tells it, or why not."""

    async def put_row(
        self, topic: Topic, partition: int, submission: Submission, condition: Condition, timeout_ms: int
    ) -> Appended: ...
    async def scan_rows(
        self, topic: Topic, partition: int, request: ScanRequest, *, local: bool, timeout_ms: int
    ) -> ScanPage: ...


class Leaders(Protocol):
    """The leaders of partitions and of the catalog."""

    def topic(self, name: str) -> Topic: ...
    def leader(self, topic: Topic, partition: int) -> Leader | None: ...
    async def wait_leader(self, topic: Topic, partition: int, timeout_ms: int) -> Leader: ...
    def catalog_leader(self) -> Leader | None: ...
    def hears(self, agent_id: str) -> bool: ...


class Topics(Protocol):
    """The catalog. Changes happen at its leader; elsewhere ShoalError("not-leader", leader_url=...)."""

    async def create_topic(
        self, name: str, body: Json | None, timeout_ms: int, key: str | None
    ) -> tuple[bool, Json]: ...
    async def change_topic(
        self, name: str, body: Json | None, timeout_ms: int, if_version: str | None
    ) -> Json: ...
    async def delete_topic(self, name: str, timeout_ms: int) -> None: ...
    async def adopt_topic(self, kept: str, name: str | None, timeout_ms: int) -> Json: ...
    async def kept_topics(self) -> Json: ...
    async def topics(self) -> list[Json]: ...
    async def topic_document(self, name: str) -> Json: ...
    def topic_settings(self, name: str) -> Json: ...


class Levels(Protocol):
    """The cluster's feature level. It is raised at the catalog's leader; elsewhere ShoalError("not-leader",
    leader_url=...)."""

    def level_document(self) -> Json: ...
    async def raise_level(self, wanted: object, without: object, timeout_ms: int) -> Json: ...


class Principals(Protocol):
    """Principals, roles and tokens. Changes happen at the catalog's leader; elsewhere
    ShoalError("not-leader", leader_url=...). `by`: without time and id of the request, which are added."""

    def principals(self, after: str = "", limit: int = ...) -> list[Json]: ...
    def principal(self, name: str) -> Json: ...
    def roles(self, after: str | None = None, limit: int = ...) -> list[Json]: ...
    def role(self, name: str) -> Json: ...
    async def put_principal(
        self, name: str, body: Json | None, by: AskedBy, timeout_ms: int, if_version: str | None
    ) -> tuple[bool, Json]: ...
    async def delete_principal(self, name: str, by: AskedBy, timeout_ms: int) -> None: ...
    async def put_role(
        self, name: str, body: Json | None, by: AskedBy, timeout_ms: int, if_version: str | None
    ) -> tuple[bool, Json]: ...
    async def delete_role(self, name: str, by: AskedBy, timeout_ms: int) -> None: ...
    async def make_token(self, principal: str, body: Json | None, by: AskedBy, timeout_ms: int) -> Json: ...
    async def revoke_token(self, token_id: str, by: AskedBy, timeout_ms: int) -> None: ...
    async def make_session_key(self, by: AskedBy, timeout_ms: int) -> None: ...
    async def end_session(
        self, session_id: str, principal: str, expires_ms: int, by: AskedBy, timeout_ms: int
    ) -> None: ...


class Members(Protocol):
    """The pool, and this agent's place in it."""

    async def members(self, after_version: str | None, wait_ms: int) -> Document: ...
    async def join(self, addresses: Sequence[str]) -> int: ...
    async def leave(self) -> None: ...
    def force_leave(self, name_or_id: str) -> None: ...
    async def drain(self, *, undo: bool) -> Json: ...
    def drain_document(self) -> Json: ...
    async def recover(self, topic: str, partition: int, *, carry_out: bool) -> Json: ...


class Peers(Protocol):
    """The connections between agents, which come in at the same port."""

    async def accept_peer(
        self, transport: asyncio.Transport | None, http_protocol: asyncio.BaseProtocol, terms: str | None
    ) -> None: ...
    def knows_address(self, address: str) -> bool: ...


class Documents(Protocol):
    """This agent's state, as people and monitors read it."""

    async def routes(self, topic: str | None, after_version: str | None, wait_ms: int) -> Document: ...
    def agent_document(self) -> Json: ...
    def readiness(self) -> tuple[bool, Mapping[str, str]]: ...
    async def metrics(self, *, partitions: bool) -> Reading: ...


class Broker(
    Records, ConsumerGroups, Deliveries, GroupPartitions, Tables, Leaders, Topics, Levels, Principals,
    Members, Peers, Documents, Protocol,
):  # fmt: skip
    """The whole agent."""

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
