"""What Serf's core tells its shell: changes of the member list, events, queries and their answers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from shoal.membership.serf.member import SerfMember
from shoal.membership.swim.ready import Exchange, OutgoingPacket, StreamProbe
from shoal.membership.wire.keyring import Keyring
from shoal.membership.wire.serf import UserEvent

QueryKey = tuple[int, int]
"""A query by its Lamport time and its id."""


class EventKind(Enum):
    """What a user of the member list hears."""

    JOINED = "joined"
    SUSPECTED = "suspected"
    FAILED = "failed"
    LEFT = "left"
    UPDATED = "updated"
    REAPED = "reaped"
    CONFLICT = "conflict"


@dataclass(frozen=True, slots=True)
class MemberChange:
    """What happened to a member, with a copy of it as it was then."""

    kind: EventKind
    member: SerfMember


@dataclass(frozen=True, slots=True)
class ReceivedQuery:
    """A query that somebody put to us, for the application; an answer counts until `deadline_ms`."""

    key: QueryKey
    name: str
    payload: bytes
    source_node: str
    deadline_ms: int


class ReplyKind(Enum):
    """ACK: the member has received our query. ANSWER: its answer. DONE: the time is up."""

    ACK = "ack"
    ANSWER = "answer"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class QueryReply:
    """What came of a query of ours. DONE comes once, as the last."""

    key: QueryKey
    kind: ReplyKind
    sender: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class Ready:
    """What SerfCore wants done next. Everything may be done at once and in any order; nothing waits for a
    disk but `keyring`, which is to be kept and then answered with KeyringKept."""

    packets: tuple[OutgoingPacket, ...]
    stream_probes: tuple[StreamProbe, ...]
    exchanges: tuple[Exchange, ...]
    events: tuple[MemberChange, ...]
    user_events: tuple[UserEvent, ...]
    queries: tuple[ReceivedQuery, ...]
    replies: tuple[QueryReply, ...]
    keyring: Keyring | None
