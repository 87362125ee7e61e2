"""What Serf's core tells its shell: members and their changes, events, queries and their answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple

from shoal.membership.swim.ready import Exchange, OutgoingPacket, StreamProbe
from shoal.membership.wire.keyring import Keyring
from shoal.membership.wire.messages import Endpoint
from shoal.membership.wire.serf import UserEvent


class Status(IntEnum):
    """Of a member, with Serf's numbers."""

    ALIVE = 1
    LEAVING = 2
    LEFT = 3
    FAILED = 4


@dataclass(slots=True)
class SerfMember:
    """One member. `suspected` is SWIM's, and shown only while alive; `since_ms` is the
    core's time of the last change of what is shown, or of its failure if it was declared
    left after it; `answered`: it did, to us, at some time; `status_ltime` is the Lamport
    time of the newest intent about it, 0 if there was none. `is_ltime_listed`: it is of a
    peer's list. That does not say whether the intent was of a join or of a leave."""

    name: str
    endpoint: Endpoint
    tags: Mapping[str, str]
    vsn: bytes
    incarnation: int
    status: Status
    since_ms: int
    suspected: bool = False
    answered: bool = False
    status_ltime: int = 0
    is_ltime_listed: bool = False

    @property
    def shown_status(self) -> str:
        """alive, suspect, failed, leaving or left."""
        if self.suspected and self.status == Status.ALIVE:
            return "suspect"
        return self.status.name.lower()


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


class MemberChange(NamedTuple):
    """What happened to a member, with a copy of it as it was then."""

    kind: EventKind
    member: SerfMember


class ReceivedQuery(NamedTuple):
    """A query that somebody put to us, for the application; an answer counts until `deadline_ms`."""

    key: QueryKey
    name: str
    payload: bytes
    source_node: str
    deadline_ms: int


class ReplyKind(Enum):
    """ACK: the member has received our query. ANSWER: its answer. DONE: the time is up. The values are those
    of the Serf agent's RPC."""

    ACK = "ack"
    ANSWER = "response"
    DONE = "done"


class QueryReply(NamedTuple):
    """What came of a query of ours. DONE comes once, as the last."""

    key: QueryKey
    kind: ReplyKind
    sender: str
    payload: bytes


class Ready(NamedTuple):
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
