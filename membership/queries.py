"""Serf's queries, as far as a good citizen of the pool must go: told on, acknowledged,
the internal ones answered.

Law of this file: which queries are news, who is meant, and what goes back. Answers
leave as packets of the outbox.

A Serf agent counts the answers to `_serf_conflict`, and with none at all it shuts
itself down: in a pool of two, our silence would kill the peer.
"""

from collections.abc import Callable, Sequence

from shoal.membership.events import LamportClock, SeenRing
from shoal.membership.outbox import Outbox
from shoal.membership.wire.errors import WireError
from shoal.membership.wire.messages import Endpoint, User
from shoal.membership.wire.serf import (
    ConflictAnswer,
    Query,
    QueryResponse,
    Relay,
    decode_node_filter,
    encode_conflict_answer,
    encode_serf,
)

CONFLICT_QUERY = "_serf_conflict"

MAX_FILTERS = 16
"""Filters of one query we look at; more of them count as no match."""

_NODE_FILTER = 0


class QueryDesk:
    """The query clock, what was seen, and our answers."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.clock = LamportClock()
        self._seen = SeenRing()

    def is_news(self, query: Query) -> bool:
        """Whether the query is heard for the first time."""
        self.clock.witness(query.ltime)
        return self._seen.is_news(query.ltime, self.clock.time, query.id)

    def answers(
        self, query: Query, conflict_view: Callable[[str], ConflictAnswer | None]
    ) -> list[QueryResponse]:
        """The acknowledgement, if asked for, and the answer to an internal query.
        `_serf_ping` wants only the former."""
        if not self._matches(query):
            return []
        answers: list[QueryResponse] = []
        if query.flags & Query.ACK:
            answers.append(QueryResponse(query.ltime, query.id, self._name, Query.ACK, b""))
        if query.name == CONFLICT_QUERY:
            contested = query.payload.decode(errors="replace")
            if contested != self._name:
                payload = encode_conflict_answer(conflict_view(contested))
                answers.append(QueryResponse(query.ltime, query.id, self._name, 0, payload))
        return answers

    def _matches(self, query: Query) -> bool:
        """All filters must name us. Tag filters are regular expressions of Go's
        linear-time kind; Python's engine can be made to hang by one packet, so a query
        that carries one is told on but never answered by us."""
        if len(query.filters) > MAX_FILTERS:
            return False
        for encoded in query.filters:
            if not encoded or encoded[0] != _NODE_FILTER:
                return False
            try:
                if self._name not in decode_node_filter(encoded):
                    return False
            except WireError:
                return False
        return True

    def respond(
        self, query: Query, answer: QueryResponse, helpers: Sequence[Endpoint], outbox: Outbox
    ) -> None:
        """Straight to the asker, and through the helpers it wished for."""
        encoded = encode_serf(answer)
        outbox.send(query.source, User(encoded))
        for helper in helpers:
            outbox.send(helper, User(encode_serf(Relay(query.source, query.source_node, encoded))))

    def on_passing(self, message: QueryResponse | Relay, outbox: Outbox) -> None:
        """Hand a relayed answer to its destination (which may be ourselves). Answers to
        us: we asked nothing."""
        if isinstance(message, Relay):
            outbox.send(message.destination, User(message.message))
