"""The quota of a request: it is taken at the beginning, and what comes and goes later counts too.

Law of this file: buckets and their clock, and what is held until it ends. Refusals are words of the ordinary
way. The fast ways ask the same buckets, and a request that they may not begin goes the ordinary way, which
says why.

A connection counts for the principal that asked over it last, of those with such a quota: nobody is known
before a request. So a connection that many principals share, as a proxy's may be, counts once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from shoal.agent.security.quota import (
    CONNECTIONS,
    KINDS,
    NO_QUOTAS,
    SECOND_NS,
    Buckets,
    Holdings,
    QuotaKeeper,
    Quotas,
    Taken,
)
from shoal.errors import ShoalError, shown

PAUSE_MAX_S: Final = 5.0
"""Of one piece of a long body or stream: what is owed beyond it is asked of the next request."""
ANSWER_REST_MAX_S: Final = 5.0
"""Of all pieces of a long answer, which holds memory or files meanwhile."""
FAILED_LOGINS: Final = "failed_logins"
"""Counted beside the quotas: the limit of an address, not of a principal."""
HELD_RETRY_NS: Final = SECOND_NS
"""Nobody knows when one that is held will end."""


class QuotaExceeded(ShoalError):
    """Nothing was taken, and nothing happens. `delay_s`: before it is answered."""

    def __init__(self, text: str, kind: str, wait_ns: int, delay_ns: int) -> None:
        wait_ms = max(1, -(-(wait_ns - delay_ns) // 1_000_000))
        super().__init__("quota-exceeded", text, quota=kind, retry_after_ms=wait_ms)
        self.delay_s = delay_ns / SECOND_NS


class Metered(NamedTuple):
    """A principal that has quotas."""

    principal: str
    quotas: Quotas


class Meter:
    """Of one request. `size` is of what has come or gone of it so far."""

    __slots__ = ("_came", "_metered", "_meters", "_rested_s", "_sent", "reads")

    def __init__(self, meters: Meters, metered: Metered, body_bytes: int, *, reads: bool) -> None:
        self._meters = meters
        self._metered = metered
        self._came = body_bytes
        self._sent = 0
        self._rested_s = 0.0
        self.reads = reads

    def give_back(self) -> None:
        """The request goes the ordinary way after all, where it is asked again."""
        buckets, quotas, _ = self._meters.of(self._metered)
        buckets.give_back(quotas, Taken(self._came, self.reads))

    def affordable(self, max_bytes: int) -> int:
        """So many bytes that an answer is cut to, at least one."""
        buckets, quotas, now_ns = self._meters.of(self._metered)
        left = buckets.left_out(quotas, now_ns)
        return max_bytes if left is None else max(1, min(max_bytes, left))

    def came(self, size: int) -> None:
        """Of a body whose length nobody has said."""
        buckets, quotas, now_ns = self._meters.of(self._metered)
        if size > self._came:
            buckets.receive(quotas, size - self._came, now_ns)
            self._came = size

    def sent(self, size: int) -> None:
        """Of an answer that passes through aiohttp's writer."""
        if size > self._sent:
            self.passed(size - self._sent)
            self._sent = size

    def passed(self, size: int) -> None:
        """So many bytes more, that nobody else counts."""
        if self.reads:
            buckets, quotas, now_ns = self._meters.of(self._metered)
            buckets.send(quotas, size, now_ns)

    def _debt_s(self) -> float:
        buckets, _, now_ns = self._meters.of(self._metered)
        return min(buckets.debt_ns(now_ns) / SECOND_NS, PAUSE_MAX_S)

    async def rest(self) -> None:
        """A long body or stream goes on as quickly as it may."""
        debt_s = self._debt_s()
        if debt_s:
            await asyncio.sleep(debt_s)

    async def rest_holding(self) -> None:
        """The same of a long answer, whose memory or files others wait for: not for long."""
        pause_s = min(self._debt_s(), ANSWER_REST_MAX_S - self._rested_s)
        if pause_s > 0:
            self._rested_s += pause_s
            await asyncio.sleep(pause_s)


class Hold:
    """One that a principal holds, given back once. A context, or released by its owner."""

    __slots__ = ("_holdings", "kind", "principal")

    def __init__(self, holdings: Holdings, principal: str, kind: str) -> None:
        self._holdings: Holdings | None = holdings
        self.principal = principal
        self.kind = kind

    def __enter__(self) -> None:
        assert self._holdings is not None, "it was given back"

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """It has ended."""
        holdings, self._holdings = self._holdings, None
        if holdings is not None:
            holdings.give_back(self.principal, self.kind)


class Counted(Protocol):
    """A connection. `counted`: where it counts."""

    counted: Hold | None


class Meters:
    """Of one server. `refused`: requests, by the quota that was used up."""

    def __init__(self, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.clock_ns = clock_ns
        self.keeper = QuotaKeeper()
        self.holdings = Holdings()
        self.refused = dict.fromkeys((*KINDS, FAILED_LOGINS), 0)

    def of(self, metered: Metered) -> tuple[Buckets, Quotas, int]:
        """Its buckets, and the time."""
        now_ns = self.clock_ns()
        return self.keeper.of(metered.principal, now_ns), metered.quotas, now_ns

    def begin(self, metered: Metered, taken: Taken) -> Meter:
        """Raises QuotaExceeded."""
        buckets, quotas, now_ns = self.of(metered)
        refusal = buckets.take(quotas, taken, now_ns)
        if refusal is not None:
            self.refused[refusal.kind] += 1
            kind, limit, wait_ns = refusal
            text = (
                f"{shown(metered.principal)} has used up its quota of {limit} {kind} a second on this agent"
            )
            raise QuotaExceeded(text, kind, wait_ns, buckets.refuse(now_ns))
        return Meter(self, metered, taken.body_bytes, reads=taken.reads)

    def begin_fast(self, metered: Metered, taken: Taken) -> Meter | None:
        """The same; None where the ordinary way has to say why not."""
        buckets, quotas, now_ns = self.of(metered)
        if buckets.take(quotas, taken, now_ns) is not None:
            return None
        return Meter(self, metered, taken.body_bytes, reads=taken.reads)

    def hold(self, principal: str, kind: str, limit: int | None) -> Hold:
        """One more of what is held. Raises QuotaExceeded."""
        if not self.holdings.take(principal, kind, limit):
            self.refused[kind] += 1
            text = f"{shown(principal)} has {limit} {kind} at this agent, as many as its quota allows at once"
            now_ns = self.clock_ns()
            delay_ns = self.keeper.of(principal, now_ns).refuse(now_ns)
            raise QuotaExceeded(text, kind, HELD_RETRY_NS, delay_ns)
        return Hold(self.holdings, principal, kind)

    def count_connection(self, connection: Counted, metered: Metered) -> None:
        """This principal asks over it. Raises QuotaExceeded; then it should be closed."""
        limit, counted = metered.quotas.connections, connection.counted
        if limit is None or (counted is not None and counted.principal == metered.principal):
            return
        connection.counted = self.hold(metered.principal, CONNECTIONS, limit)
        if counted is not None:
            counted.release()

    def may_count_connection(self, connection: Counted, metered: Metered) -> bool:
        """The same; False where the ordinary way has to say why not."""
        limit, counted = metered.quotas.connections, connection.counted
        if limit is not None and (counted is None or counted.principal != metered.principal):
            if self.holdings.held(metered.principal, CONNECTIONS) >= limit:
                return False
            self.count_connection(connection, metered)
        return True


def metered_by(principal: str, quotas: Quotas) -> Metered | None:
    """None for a principal without quotas."""
    return None if quotas == NO_QUOTAS else Metered(principal, quotas)
