"""Serf's queries from others: told on, acknowledged, the internal ones answered, the rest handed to the
application and its answer sent.

Law of this file: which queries are news, who is meant, and what goes back. Answers
leave as packets of the outbox; what we ask ourselves is own_queries.py's business.

A Serf agent counts the answers to `_serf_conflict`, and with none at all it shuts
itself down: in a pool of two, our silence would kill the peer.
"""

import re
from collections.abc import Callable, Mapping, Sequence

from shoal.membership.serf.events import SeenRing
from shoal.membership.serf.own_queries import MAX_QUERY_BYTES, MAX_TIMEOUT_MS
from shoal.membership.serf.ready import QueryKey, ReceivedQuery
from shoal.membership.swim.piggyback import Outbox
from shoal.membership.wire.errors import WireError
from shoal.membership.wire.messages import Endpoint, User
from shoal.membership.wire.serf import (
    NODE_FILTER,
    TAG_FILTER,
    ConflictAnswer,
    Query,
    QueryResponse,
    Relay,
    decode_node_filter,
    decode_tag_filter,
    encode_conflict_answer,
    encode_serf,
)

INTERNAL_PREFIX = "_serf_"
"""Queries of the protocol itself: no application sees them."""

CONFLICT_QUERY = "_serf_conflict"

MAX_FILTERS = 8
"""Filters of one query we look at; more of them count as no match."""

MAX_EXPRESSION_CHARACTERS = 512

_EXPRESSION = re.compile(r"(\^?)((?:[^\\.+*?()|\[\]{}^$]|\\[!-/:-@\[-`{-~])*)((?:\.\*)?)(\$?)", re.ASCII)
"""A text, which may be tied to the beginning or the end, and may end in `.*`: this engine cannot backtrack
over it. Serf's filters may be any expressions of Go; others would need an engine that takes bounded time."""

MAX_OPEN = 256
"""Queries the application may still answer; the oldest give way."""


def is_found(expression: str, value: str) -> bool:
    """Whether Go finds the expression in the tag's value; False for one that is not understood here."""
    form = _EXPRESSION.fullmatch(expression) if len(expression) <= MAX_EXPRESSION_CHARACTERS else None
    if form is None:
        return False
    begins, literal, rest, ends = form.groups()
    literal = re.sub(r"\\(.)", r"\1", literal)
    if begins and not value.startswith(literal):
        return False
    if not ends:
        return literal in value
    if not rest:
        return value == literal if begins else value.endswith(literal)
    last = 0 if begins else value.rfind(literal)
    return last >= 0 and "\n" not in value[last + len(literal) :]


class QueryDesk(SeenRing):
    """The queries that were heard, and our answers."""

    def __init__(self, name: str, tags: Callable[[], Mapping[str, str]]) -> None:
        super().__init__()
        self._name = name
        self._tags = tags
        self._open: dict[QueryKey, tuple[Query, int]] = {}

    def begin_at(self, ltime: int) -> None:
        """What was asked before our first join is not ours to answer; later exchanges say nothing of that."""
        self.min_ltime = self.min_ltime or ltime

    def answers(
        self, query: Query, conflict_view: Callable[[str], ConflictAnswer | None]
    ) -> list[QueryResponse]:
        """The acknowledgement, if asked for, and the answer to an internal query.
        `_serf_ping` wants only the former."""
        if not self.is_meant(query):
            return []
        answers: list[QueryResponse] = []
        if query.flags & Query.ACK:
            answers.append(QueryResponse(query.ltime, query.id, self._name, QueryResponse.ACK, b""))
        if query.name == CONFLICT_QUERY:
            contested = query.payload.decode(errors="replace")
            if contested != self._name:
                payload = encode_conflict_answer(conflict_view(contested))
                answers.append(QueryResponse(query.ltime, query.id, self._name, 0, payload))
        return answers

    def is_meant(self, query: Query) -> bool:
        """All filters must name us, or find their expression in our tags; one that is not understood means
        somebody else, and silence."""
        if len(query.filters) > MAX_FILTERS:
            return False
        try:
            return all(self._passes(encoded) for encoded in query.filters)
        except WireError:
            return False

    def _passes(self, encoded: bytes) -> bool:
        kind = encoded[0] if encoded else None
        if kind == TAG_FILTER:
            tag, expression = decode_tag_filter(encoded)
            return is_found(expression, self._tags().get(tag, ""))
        return kind == NODE_FILTER and self._name in decode_node_filter(encoded)

    def respond(
        self, query: Query, answer: QueryResponse, helpers: Sequence[Endpoint], outbox: Outbox
    ) -> None:
        """Straight to the asker, and through the helpers it wished for."""
        encoded = encode_serf(answer)
        outbox.send(query.source, User(encoded))
        for helper in helpers:
            outbox.send(helper, User(encode_serf(Relay(query.source, query.source_node, encoded))))

    # For the application

    def open(self, query: Query, now_ms: int) -> ReceivedQuery | None:
        """The query as the application gets it, and remembered until its time is up; None when it is none of
        the application's business."""
        if query.name.startswith(INTERNAL_PREFIX) or not self.is_meant(query):
            return None
        deadline_ms = now_ms + min(query.timeout_ns // 1_000_000, MAX_TIMEOUT_MS)
        for key in [key for key, (_, until_ms) in self._open.items() if until_ms < now_ms]:
            del self._open[key]
        while len(self._open) >= MAX_OPEN:
            del self._open[next(iter(self._open))]
        key = (query.ltime, query.id)
        self._open[key] = (query, deadline_ms)
        return ReceivedQuery(key, query.name, query.payload, query.source_node, deadline_ms)

    def close(self, key: QueryKey, payload: bytes, now_ms: int) -> tuple[Query, QueryResponse]:
        """The one answer of the application. Raises KeyError when the query is not open (any more),
        ValueError when the answer is too long."""
        query, deadline_ms = self._open[key]
        if now_ms > deadline_ms:
            raise KeyError(key)
        answer = QueryResponse(query.ltime, query.id, self._name, 0, payload)
        if len(encode_serf(answer)) > MAX_QUERY_BYTES:
            raise ValueError(f"an answer to a query has at most {MAX_QUERY_BYTES} bytes when encoded")
        del self._open[key]
        return query, answer
