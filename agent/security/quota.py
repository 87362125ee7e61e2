"""Quotas: how much a principal may ask of one agent in a second, and hold there at once; and who keeps count.

Law of this file: pure. The time is an argument, in nanoseconds of a clock that never goes back. On each
agent a principal has at most rate * time, and one second's worth at once. A single request may be larger than
that: then it takes a full bucket, and what it owes is waited for. No principal's bucket knows another's: one
that asks for ten times its quota takes nothing from the others.

A bucket is one number: the time at which all that was taken is paid for. It holds a second's worth, is full
where that time has passed, and empty where it lies a second ahead. So a quota that changes needs no new
bucket, and a full one can be forgotten.

Things that are held are counted from beginning to end, of principals without a quota too. So a quota that is
new finds the right number, and refuses until it is below. Nothing that has begun is ended for a quota.

A refusal costs an agent more than a small request. So the refusals of a principal stand in a line. A
client that waits as told has them at once. Clients that do not are answered REFUSALS_PER_S times a second.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

SECOND_NS: Final = 1_000_000_000
BURST_NS: Final = SECOND_NS
"""A full bucket: so much may be taken at once."""
QUOTA_MAX: Final = 1 << 50
"""Of each number, a second: more than any machine moves."""
REFUSALS_PER_S: Final = 20
"""Of one principal: few beside what an agent answers. A second's worth is answered at once."""
REFUSAL_DELAY_MAX_NS: Final = 2 * SECOND_NS
"""Well below the time after which clients give up: a refusal that they do not hear of is not definite."""
BUCKETS_MAX: Final = 4_096
"""Principals with a quota that asked this agent lately. The one that asked longest ago is forgotten first."""
RATES: Final = ("bytes_in", "bytes_out", "requests")
"""Quotas of a second."""
CONNECTIONS: Final = "connections"
WAITS: Final = "waits"
STREAMS: Final = "streams"
HELD: Final = (CONNECTIONS, WAITS, STREAMS)
"""Quotas of what there is at once."""
KINDS: Final = RATES + HELD


class QuotaError(ValueError):
    """Quotas that cannot be. Its words say what can."""


class Quotas(NamedTuple):
    """On each agent; None is without a limit. A second: `bytes_in` of bodies, `bytes_out` of answers to
    requests that do not write, `requests`. At once: `connections` over which the principal has asked,
    `waits` of requests for news, `streams` of events."""

    bytes_in: int | None = None
    bytes_out: int | None = None
    requests: int | None = None
    connections: int | None = None
    waits: int | None = None
    streams: int | None = None

    def of(self, kind: str) -> int | None:
        """The limit of this kind."""
        limit: int | None = getattr(self, kind)
        return limit

    def document(self) -> dict[str, int]:
        """Those that there are."""
        return {kind: limit for kind, limit in self._asdict().items() if limit is not None}

    def cost(self) -> int:
        """At least its bytes in a state."""
        return 224 if self != NO_QUOTAS else 0


NO_QUOTAS: Final = Quotas()


def quotas_from(value: Any) -> Quotas:
    """Of a document. Raises QuotaError."""
    if not isinstance(value, Mapping):
        raise QuotaError(f"quotas are an object with {', '.join(KINDS)}")
    for kind, limit in value.items():
        if kind not in KINDS:
            raise QuotaError(f"{str(kind)[:80]!r} is no quota: there is {', '.join(KINDS)}")
        if type(limit) is not int or not 1 <= limit <= QUOTA_MAX:
            span = "at once" if kind in HELD else "a second"
            raise QuotaError(f"the quota {kind} is a whole number from 1 to {QUOTA_MAX}, {span}")
    return Quotas(**value)


def joined(own: Quotas, of_roles: Iterable[Quotas]) -> Quotas:
    """Of a principal: its own limit where it has one, else the most generous of those that its roles have."""
    given = [own, *of_roles]
    if all(quotas is NO_QUOTAS for quotas in given):
        return NO_QUOTAS
    columns = zip(*given, strict=True)
    return Quotas(*(kinds[0] or max((n for n in kinds if n is not None), default=None) for kinds in columns))


class Exceeded(NamedTuple):
    """A quota that is used up, and when the same request would pass."""

    kind: str
    limit: int
    wait_ns: int


class Taken(NamedTuple):
    """The wish of a request at its beginning. `reads`: its answer counts, so that there has to be something
    left of `bytes_out`."""

    body_bytes: int
    reads: bool


class Buckets:
    """Of one principal."""

    __slots__ = ("_in_ns", "_out_ns", "_refusals_ns", "_requests_ns")

    def __init__(self) -> None:
        self._in_ns = self._out_ns = self._requests_ns = self._refusals_ns = 0

    def __repr__(self) -> str:
        return f"Buckets(in={self._in_ns} out={self._out_ns} requests={self._requests_ns})"

    def take(self, quotas: Quotas, taken: Taken, now_ns: int) -> Exceeded | None:
        """All of it, or nothing and the reason."""
        bytes_in, bytes_out, requests = quotas[: len(RATES)]
        if requests is not None:
            wait_ns = _wait_ns(self._requests_ns, _cost_ns(1, requests), now_ns)
            if wait_ns > 0:
                return Exceeded("requests", requests, wait_ns)
        if bytes_in is not None and taken.body_bytes:
            wait_ns = _wait_ns(self._in_ns, _cost_ns(taken.body_bytes, bytes_in), now_ns)
            if wait_ns > 0:
                return Exceeded("bytes_in", bytes_in, wait_ns)
        if bytes_out is not None and taken.reads:
            wait_ns = _wait_ns(self._out_ns, _cost_ns(1, bytes_out), now_ns)
            if wait_ns > 0:
                return Exceeded("bytes_out", bytes_out, wait_ns)
        if requests is not None:
            self._requests_ns = max(self._requests_ns, now_ns) + _cost_ns(1, requests)
        self.receive(quotas, taken.body_bytes, now_ns)
        return None

    def give_back(self, quotas: Quotas, taken: Taken) -> None:
        """The same that was taken just now: the request begins anew elsewhere in this agent."""
        if quotas.requests is not None:
            self._requests_ns -= _cost_ns(1, quotas.requests)
        if quotas.bytes_in is not None:
            self._in_ns -= _cost_ns(taken.body_bytes, quotas.bytes_in)

    def receive(self, quotas: Quotas, size: int, now_ns: int) -> None:
        """Bytes that have come, whether there was room for them or not."""
        if quotas.bytes_in is not None:
            self._in_ns = max(self._in_ns, now_ns) + _cost_ns(size, quotas.bytes_in)

    def send(self, quotas: Quotas, size: int, now_ns: int) -> None:
        """Bytes of an answer, whether there was room for them or not."""
        if quotas.bytes_out is not None:
            self._out_ns = max(self._out_ns, now_ns) + _cost_ns(size, quotas.bytes_out)

    def left_out(self, quotas: Quotas, now_ns: int) -> int | None:
        """Bytes that an answer may have now; None without a limit."""
        if quotas.bytes_out is None:
            return None
        free_ns = BURST_NS - max(0, self._out_ns - now_ns)
        return max(0, free_ns) * quotas.bytes_out // SECOND_NS

    def debt_ns(self, now_ns: int) -> int:
        """How long bytes should rest, both ways: 0 while a bucket holds anything."""
        return max(0, self._in_ns - now_ns - BURST_NS, self._out_ns - now_ns - BURST_NS)

    def refuse(self, now_ns: int) -> int:
        """Something is refused: so long its answer stands in the line."""
        behind_ns = max(self._refusals_ns, now_ns) + SECOND_NS // REFUSALS_PER_S
        self._refusals_ns = min(behind_ns, now_ns + BURST_NS + REFUSAL_DELAY_MAX_NS)
        return max(0, self._refusals_ns - now_ns - BURST_NS)

    def is_full(self, now_ns: int) -> bool:
        """Whether a new one would say the same."""
        return max(self._in_ns, self._out_ns, self._requests_ns, self._refusals_ns) <= now_ns


def _cost_ns(amount: int, rate: int) -> int:
    """The time that pays for it, rounded up."""
    return -(-amount * SECOND_NS // rate)


def _wait_ns(paid_ns: int, cost_ns: int, now_ns: int) -> int:
    """Until a bucket has so much; one that never holds it is wanted full."""
    return paid_ns + min(cost_ns, BURST_NS) - BURST_NS - now_ns


class QuotaKeeper:
    """The buckets of one agent."""

    def __init__(self, buckets_max: int = BUCKETS_MAX) -> None:
        self._buckets_max = buckets_max
        self._buckets: OrderedDict[str, Buckets] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def of(self, principal: str, now_ns: int) -> Buckets:
        """Its buckets; full ones for a principal that did not ask lately."""
        known = self._buckets.get(principal)
        if known is not None:
            self._buckets.move_to_end(principal)
            return known
        while self._buckets and next(iter(self._buckets.values())).is_full(now_ns):
            self._buckets.popitem(last=False)
        if len(self._buckets) >= self._buckets_max:
            self._buckets.popitem(last=False)
        made = self._buckets[principal] = Buckets()
        return made


class Holdings:
    """The things that principals hold at one agent at once. As large as what is held: each of it has a bound
    of its own, and what nobody holds is not here."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], int] = {}

    def __len__(self) -> int:
        return len(self._held)

    def held(self, principal: str, kind: str) -> int:
        """How many it has."""
        return self._held.get((principal, kind), 0)

    def take(self, principal: str, kind: str, limit: int | None) -> bool:
        """One more; False where it has as many as it may."""
        held = self._held.get((principal, kind), 0)
        if limit is not None and held >= limit:
            return False
        self._held[principal, kind] = held + 1
        return True

    def give_back(self, principal: str, kind: str) -> None:
        """One less."""
        left = self._held[principal, kind] - 1
        if left:
            self._held[principal, kind] = left
        else:
            del self._held[principal, kind]
