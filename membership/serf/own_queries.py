"""Our own queries: who has acknowledged and answered, and when the time is up.

Law of this file: what becomes of answers that come in. Building and telling a query is core.py's business,
answering those of others queries.py's. Pure.

A query is over at its deadline and not before: Serf cannot know who will still answer, and neither can we.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.membership.serf.ready import QueryKey, QueryReply, ReplyKind
from shoal.membership.wire.serf import QueryResponse

MAX_ASKED = 64
"""Queries of ours under way at a time; each is a broadcast to the whole pool."""

MAX_QUERY_BYTES = 1024
"""A query or an answer, encoded: Serf's limits, so that each fits into one packet."""

MAX_TIMEOUT_MS = 60_000
"""Longest wait for answers; every member keeps a query it may still answer so long."""

TIMEOUT_MULT = 16
"""Serf's default timeout in rounds of gossip, for a pool of up to nine."""


@dataclass(frozen=True, slots=True)
class QueryRequest:
    """What to ask, and whom: `nodes` and `tags` (tag to regular expression) must all match a member that
    is to answer; both empty means everybody. `timeout_ms` None: Serf's default. `relay_factor` members
    hand each answer on as well, which helps where packets get lost."""

    name: str
    payload: bytes = b""
    nodes: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    want_acks: bool = False
    relay_factor: int = 0
    timeout_ms: int | None = None


def default_timeout_ms(gossip_interval_ms: int, alive: int) -> int:
    """Serf's: gossip interval * 16 * ceil(log10(members + 1))."""
    return gossip_interval_ms * TIMEOUT_MULT * math.ceil(math.log10(alive + 1))


@dataclass(slots=True)
class _Asked:
    deadline_ms: int
    heard: dict[ReplyKind, set[str]] = field(
        default_factory=lambda: {ReplyKind.ACK: set(), ReplyKind.ANSWER: set()}
    )


class AskedQueries:
    """Queries of ours by Lamport time and id. `replies` is what the owner has to hear next."""

    def __init__(self, max_members: int) -> None:
        self._max_members = max_members
        self._asked: dict[QueryKey, _Asked] = {}
        self.replies: list[QueryReply] = []

    def __len__(self) -> int:
        return len(self._asked)

    def begin(self, key: QueryKey, deadline_ms: int) -> None:
        """Raises ValueError when too many are under way."""
        if len(self._asked) >= MAX_ASKED:
            raise ValueError(f"{MAX_ASKED} queries are under way: wait for their answers")
        self._asked[key] = _Asked(deadline_ms)

    def on_response(self, response: QueryResponse) -> None:
        """An answer arrived: each member counts once, by any way, and nobody after the deadline."""
        key = (response.ltime, response.id)
        asked = self._asked.get(key)
        if asked is None:
            return
        kind = ReplyKind.ACK if response.flags & QueryResponse.ACK else ReplyKind.ANSWER
        heard = asked.heard[kind]
        if response.sender in heard or len(heard) >= self._max_members:
            return
        heard.add(response.sender)
        self.replies.append(QueryReply(key, kind, response.sender, response.payload))

    def wake(self, now_ms: int) -> None:
        """End the queries whose time is up."""
        for key in [key for key, asked in self._asked.items() if now_ms >= asked.deadline_ms]:
            del self._asked[key]
            self.replies.append(QueryReply(key, ReplyKind.DONE, "", b""))

    def deadline(self) -> int | None:
        """When the next one ends; None when none is under way."""
        return min((asked.deadline_ms for asked in self._asked.values()), default=None)

    def check_invariants(self) -> None:
        assert len(self._asked) <= MAX_ASKED
        for asked in self._asked.values():
            assert max(map(len, asked.heard.values())) <= self._max_members
