"""The quota of a request: it is taken at the beginning, and what comes and goes later counts too.

Law of this file: buckets and their clock. Refusals are words of the ordinary way. The fast ways ask the same
buckets, and a request that they may not begin goes the ordinary way, which says why.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from shoal.agent.security.quota import (
    KINDS,
    NO_QUOTAS,
    SECOND_NS,
    Buckets,
    QuotaKeeper,
    Quotas,
    Taken,
)
from shoal.errors import ShoalError, shown

PAUSE_MAX_S: Final = 5.0
"""Of one piece of a long body or stream: what is owed beyond it is asked of the next request."""


class Metered(NamedTuple):
    """A principal that has quotas."""

    principal: str
    quotas: Quotas


class Meter:
    """Of one request. `size` is of what has come or gone of it so far."""

    __slots__ = ("_came", "_metered", "_meters", "_sent", "reads")

    def __init__(self, meters: Meters, metered: Metered, body_bytes: int, *, reads: bool) -> None:
        self._meters = meters
        self._metered = metered
        self._came = body_bytes
        self._sent = 0
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

    async def rest(self) -> None:
        """A long body or stream goes on as quickly as it may."""
        buckets, _, now_ns = self._meters.of(self._metered)
        debt_ns = buckets.debt_ns(now_ns)
        if debt_ns:
            await asyncio.sleep(min(debt_ns / SECOND_NS, PAUSE_MAX_S))


class Meters:
    """Of one server. `refused`: requests, by the quota that was used up."""

    def __init__(self, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.clock_ns = clock_ns
        self.keeper = QuotaKeeper()
        self.refused = dict.fromkeys(KINDS, 0)

    def of(self, metered: Metered) -> tuple[Buckets, Quotas, int]:
        """Its buckets, and the time."""
        now_ns = self.clock_ns()
        return self.keeper.of(metered.principal, now_ns), metered.quotas, now_ns

    def begin(self, metered: Metered, taken: Taken) -> Meter:
        """Raises ShoalError quota-exceeded: nothing was taken, and nothing happens."""
        buckets, quotas, now_ns = self.of(metered)
        refusal = buckets.take(quotas, taken, now_ns)
        if refusal is not None:
            self.refused[refusal.kind] += 1
            kind, limit, wait_ns = refusal
            text = (
                f"{shown(metered.principal)} has used up its quota of {limit} {kind} a second on this agent"
            )
            wait_ms = -(-wait_ns // 1_000_000)
            raise ShoalError("quota-exceeded", text, quota=kind, retry_after_ms=wait_ms)
        return Meter(self, metered, taken.body_bytes, reads=taken.reads)

    def begin_fast(self, metered: Metered, taken: Taken) -> Meter | None:
        """The same; None where the ordinary way has to say why not."""
        buckets, quotas, now_ns = self.of(metered)
        if buckets.take(quotas, taken, now_ns) is not None:
            return None
        return Meter(self, metered, taken.body_bytes, reads=taken.reads)


def metered_by(principal: str, quotas: Quotas) -> Metered | None:
    """None for a principal without quotas."""
    return None if quotas == NO_QUOTAS else Metered(principal, quotas)
