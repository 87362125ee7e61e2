"""Do the agents behind living Serf agents still live? Asked by a query, since gossip only knows their hosts.

Law of this file: when to ask and what silence means. Reading the list is hosted.py's business. A pool without
such agents is never asked anything.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection

from shoal.membership.interface import QueryError, QueryResult
from shoal.membership.serf.own_queries import QueryRequest
from shoal.membership.serf_agent.hosted import ALIVE_QUERY

logger = logging.getLogger(__name__)

ASK_INTERVAL_MS = 3_000
"""One query to the pool and one answer from each; with more agents than AGENTS_PER_INTERVAL less often, so
that the packets a second grow with the number of agents and not with its square."""

AGENTS_PER_INTERVAL = 10

ANSWER_TIMEOUT_MS = 1_500

ATTEMPTS = 3
"""A query is gossip: in a small pool of which some are dead, one in ten misses some member. An agent
that has not answered is asked again at once."""

MISSES = 3
"""Rounds without an answer, one after the other, until an agent counts as failed: some 20 s. A wrong verdict
would move what the agent leads, so nine queries in a row must have gone unheard."""


class HostedWatch:
    """`silent` are agents that do not answer; `changed` is called with those that joined or left them."""

    def __init__(
        self,
        *,
        ask: Callable[[QueryRequest, Collection[str]], Awaitable[QueryResult]],
        hosted: Callable[[], frozenset[str]],
        changed: Callable[[Collection[str]], None],
        interval_ms: int | None = None,
    ) -> None:
        """`hosted`: the other agents whose hosts live; `ask` puts a query and names who is to answer."""
        self._ask = ask
        self._hosted = hosted
        self._changed = changed
        self._interval_ms = interval_ms or ASK_INTERVAL_MS
        self._misses: Counter[str] = Counter()
        self.silent: frozenset[str] = frozenset()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            expected = self._hosted()
            pause_ms = self._interval_ms * max(1, len(expected) // AGENTS_PER_INTERVAL)
            await asyncio.sleep(pause_ms / 1_000)
            if expected:
                await self._look(expected & self._hosted())
            else:
                self._take(frozenset(), frozenset())

    async def _look(self, expected: frozenset[str]) -> None:
        timeout_ms = min(ANSWER_TIMEOUT_MS, self._interval_ms)
        request = QueryRequest(ALIVE_QUERY, timeout_ms=timeout_ms, relay_factor=1)
        answered: frozenset[str] = frozenset()
        for _ in range(ATTEMPTS):
            if expected <= answered:
                break
            try:
                result = await self._ask(request, expected - answered)
            except QueryError as error:
                logger.debug("cannot ask the pool which agents are alive: %s", error)
                return
            answered |= {payload.decode(errors="replace") for payload in result.answers.values()}
        self._take(expected, answered)

    def _take(self, expected: frozenset[str], answered: frozenset[str]) -> None:
        self._misses = Counter(
            {name: self._misses[name] + 1 for name in expected if name not in answered},
        )
        silent = frozenset(name for name, missed in self._misses.items() if missed >= MISSES)
        if silent != self.silent:
            for name in sorted(silent - self.silent):
                logger.warning("agent %s does not answer, though its Serf agent is alive", name)
            differing, self.silent = silent ^ self.silent, silent
            self._changed(differing)
