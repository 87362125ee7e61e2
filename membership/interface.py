"""What the agent wants of gossip, be it our own SWIM or a Serf agent that already runs.

Law of this file: values and the Protocols; no implementation. `net/gossip.py` and
`serf_agent/membership.py` fulfil it, and one conformance suite holds for both.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol

from shoal.membership.serf.keys import KeyReport
from shoal.membership.serf.own_queries import QueryRequest
from shoal.membership.serf.snapshot import Clocks
from shoal.membership.wire.serf import UserEvent


@dataclass(frozen=True, slots=True)
class Member:
    """One member as the list shows it. `since_ms`: Unix time of the last change of status; what
    failed and was then declared left has been gone since it failed."""

    name: str
    address: str
    port: int
    tags: Mapping[str, str]
    status: str
    incarnation: int
    since_ms: int


class MemberEvent(NamedTuple):
    """What happened, and the member as it was then.

    kind is joined, suspected, failed, left or updated (tags, leaving, or a suspicion
    taken back); reaped when the list forgets a member gone for long; conflict, at most
    once a minute, when another address claims a living name: the member is then the
    claimant, as it describes itself.
    """

    kind: str
    member: Member


PoolEvent = UserEvent
"""A user event of the pool: `ltime` orders those of one name; several may share one."""


class PoolQuery(NamedTuple):
    """A query that somebody puts to this node."""

    name: str
    payload: bytes


@dataclass(slots=True)
class QueryResult:
    """Acknowledgements of our query, and its answers, by member."""

    acknowledged: set[str] = field(default_factory=set)
    answers: dict[str, bytes] = field(default_factory=dict)


class JoinError(OSError):
    """No address of a join answered."""


class QueryError(OSError):
    """A query could not be asked: too long, too many under way, or nobody there to put it to."""


class KeyChange(Enum):
    """What may be done to the keyrings of a pool."""

    INSTALL = "install"
    USE = "use"
    REMOVE = "remove"


class GossipKeys(Protocol):
    """The keyrings of all members, this node's included: whom a query does not reach keeps what it has."""

    def members(self) -> tuple[Member, ...]:
        """Everybody known, this node included, by name."""

    async def keys(self) -> KeyReport:
        """The keys that members hold. Raises QueryError."""

    async def change_keys(self, change: KeyChange, key: bytes) -> KeyReport:
        """Have every member do it. Raises QueryError; members that did not do it are in the report."""


class Gossip(GossipKeys, Protocol):
    """This process as a member of a gossip pool."""

    @property
    def local_name(self) -> str: ...

    @property
    def address(self) -> str:
        """Where others reach our gossip."""

    @property
    def port(self) -> int: ...

    @property
    def version(self) -> int:
        """Grows with every change of the list."""

    @property
    def clocks(self) -> Clocks:
        """What a snapshot has to keep of Lamport's times; zeros where somebody else keeps them."""

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Replace our tags. Raises ValueError above 512 encoded bytes."""

    def move(self, address: str) -> bool:
        """Tell the pool that this process is reached at another address now. False: somebody else tells it
        where this process is."""

    def force_leave(self, name: str) -> None:
        """Take a failed member for one that left. Raises KeyError for an unknown name."""

    def send_user_event(self, name: str, payload: bytes) -> None:
        """Tell every member once, ourselves included. Raises ValueError above 512 bytes."""

    async def query(self, request: QueryRequest, *, enough: Collection[str] = ()) -> QueryResult:
        """Ask the pool, until the query's time is up or all of `enough` have answered. Raises QueryError."""

    async def join(self, addresses: Sequence[tuple[str, int]]) -> int:
        """How many members answered. Raises JoinError when none did though there was one to ask."""

    async def leave(self) -> None:
        """Leave gracefully: others show `left`, not `failed`."""

    async def stop(self) -> None:
        """Stop at once, without a word to the others. Idempotent."""
