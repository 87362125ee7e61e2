"""What both kinds of gossip have in common: a pool of nodes that is shown as the agents for which they speak.

Law of this file: names of agents become names of nodes and back. How the pool is heard and told is the
business of membership/net/gossip.py and of membership.py.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from shoal.membership.interface import Member, MemberEvent, PoolEvent, PoolQuery, QueryError, QueryResult
from shoal.membership.serf.own_queries import MAX_QUERY_BYTES, QueryRequest
from shoal.membership.serf.queries import INTERNAL_PREFIX
from shoal.membership.serf.ready import ReplyKind
from shoal.membership.serf_agent.hosted import living_agents, node_names
from shoal.membership.serf_agent.hosted_watch import HostedWatch

CONFLICT_LOG_INTERVAL_S = 60.0
"""A contested name is logged so often at most, not once a packet."""


class QueryAnswers:
    """What comes of one query. `over` is set when its time is up, or all of `enough` have answered."""

    def __init__(self, enough: Collection[str], agents: Mapping[str, str]) -> None:
        """`agents`: by node, the agents for which nodes of other names speak."""
        self._enough = frozenset(enough)
        self._agents = agents
        self.result = QueryResult()
        self.over = asyncio.Event()

    def take(self, kind: ReplyKind, node: str, payload: bytes) -> None:
        sender = self._agents.get(node, node)
        if kind is ReplyKind.ACK:
            self.result.acknowledged.add(sender)
        elif kind is ReplyKind.ANSWER and len(payload) <= MAX_QUERY_BYTES:
            self.result.answers[sender] = payload
        if kind is ReplyKind.DONE or (self._enough and self._enough <= self.result.answers.keys()):
            self.over.set()


class AgentPool(ABC):
    """`on_event`, `on_user_event` and `on_query` are called on the event loop, in order, and must not block;
    events about this node are told as well. What `on_query` returns is the answer; None is no answer."""

    def __init__(
        self,
        local_name: str,
        on_event: Callable[[MemberEvent], None],
        on_user_event: Callable[[PoolEvent], None] | None,
        on_query: Callable[[PoolQuery], bytes | None] | None,
        *,
        ask_interval_ms: int | None = None,
    ) -> None:
        self.local_name = local_name
        self._on_event = on_event
        self._on_user_event = on_user_event
        self._on_query = on_query
        self._watch = HostedWatch(
            ask=self._ask,
            hosted=lambda: living_agents(self._listed()) - {local_name},
            changed=self._on_silence,
            interval_ms=ask_interval_ms,
        )
        self._last_conflict_s = float("-inf")

    @abstractmethod
    def _listed(self) -> Collection[Member]:
        """The nodes of the pool."""

    @abstractmethod
    def _on_silence(self, agents: Collection[str]) -> None:
        """Agents behind living Serf agents have fallen silent, or answer again."""

    @abstractmethod
    async def _put(self, request: QueryRequest, answers: QueryAnswers) -> None:
        """Put a query to nodes until its answers are over. Raises QueryError."""

    async def query(self, request: QueryRequest, *, enough: Collection[str] = ()) -> QueryResult:
        """Ask the pool, until the query's time is up or all of `enough` have answered. Raises QueryError."""
        if request.name.startswith(INTERNAL_PREFIX):
            raise QueryError(f"queries named {INTERNAL_PREFIX}... are the protocol's own")
        return await self._ask(request, enough)

    async def _ask(self, request: QueryRequest, enough: Collection[str]) -> QueryResult:
        hosts = node_names(self._listed())
        answers = QueryAnswers(enough, {node: agent for agent, node in hosts.items()})
        nodes = tuple(hosts.get(name, name) for name in request.nodes)
        await self._put(replace(request, nodes=nodes), answers)
        return answers.result

    def _is_conflict_news(self) -> bool:
        """Whether the last conflict was told long enough ago."""
        now_s = time.monotonic()
        if now_s - self._last_conflict_s < CONFLICT_LOG_INTERVAL_S:
            return False
        self._last_conflict_s = now_s
        return True
