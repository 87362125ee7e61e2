"""Arguments of a handler: the server's parts (Context) and the request at hand (Call)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Final, TypeVar

from aiohttp import web
from multidict import CIMultiDictProxy

from shoal.agent.http.admission.answer_room import AnswerReservation, AnswerRoom
from shoal.agent.http.admission.limits import Gate, HttpLimits
from shoal.agent.http.admission.places import Places
from shoal.agent.http.core.doorkeeper import Asker, Doorkeeper, wall_ms
from shoal.agent.http.core.forward import FORWARDED_BY, Forwarder
from shoal.agent.http.core.parameters import Query, boolean, duration_ms, is_number
from shoal.agent.http.core.receive_places import ReceivePlaces
from shoal.agent.http.core.scrapes import Scrapes
from shoal.agent.http.core.waits import Waits
from shoal.agent.http.rows.recent_texts import RecentTexts
from shoal.agent.http.rows.selection import Selector
from shoal.agent.interface import Broker
from shoal.agent.metrics.measures import HttpMeasures
from shoal.agent.security.access import Identity, OpenAccess
from shoal.agent.security.audit import happening
from shoal.agent.security.quota import STREAMS, WAITS
from shoal.errors import ShoalError, shown

T = TypeVar("T")
DECODERS: Final = 2  # threads for large bodies: with one interpreter lock, more would only take turns


class Context:
    """Everything that lives as long as the server."""

    __slots__ = (
        "broker", "decoders", "doorkeeper", "forwarder", "gate", "limits", "measures", "places",
        "receive_places", "recent_texts", "room", "scrapes", "selector", "waits",
    )  # fmt: skip

    def __init__(
        self,
        broker: Broker,
        limits: HttpLimits,
        forwarder: Forwarder,
        doorkeeper: Doorkeeper | None = None,
    ) -> None:
        """Without a doorkeeper nobody is asked."""
        self.broker = broker
        self.doorkeeper = doorkeeper or Doorkeeper(OpenAccess())
        self.limits = limits
        self.forwarder = forwarder
        # Of their own: gossip's long messages are read in the usual ones, and must not wait behind clients'.
        self.decoders = ThreadPoolExecutor(DECODERS, thread_name_prefix="shoal-decode")
        self.gate = Gate(limits)
        self.places = Places(limits, broker.knows_address)
        self.receive_places = ReceivePlaces()
        self.room = AnswerRoom(self.gate, limits.answer_bytes)
        self.selector = Selector(self.room)
        self.recent_texts = RecentTexts()
        self.waits = Waits(self.gate)
        self.measures = HttpMeasures()
        self.measures.quota_refusals = self.doorkeeper.meters.refused
        self.scrapes = Scrapes(broker, self.room, self.gate, self.measures)


ADMITTED: Final = web.RequestKey("shoal_admitted", Identity)
"""Whose a request was when it was let in: at its end its credential may be nobody's."""
CUT_OFF: Final = web.RequestKey("shoal_cut_off", str)
"""The code of a wait or stream that has ended because its asker may no longer have it."""
THING: Final = web.RequestKey("shoal_thing", str)
"""The thing that a request acts on where its path does not say so, as the audit names things."""


class Call:
    """One request after dispatch."""

    __slots__ = ("arguments", "asker", "context", "headers", "query", "raw_query", "request")

    def __init__(
        self,
        context: Context,
        request: web.BaseRequest,
        arguments: tuple[str, ...],
        query: Query,
        raw_query: str,
        asker: Asker,
    ) -> None:
        self.context = context
        self.asker = asker
        self.request = request
        self.headers: CIMultiDictProxy[str] = request.headers
        self.arguments = arguments
        self.query = query
        self.raw_query = raw_query
        if "forward" in query:
            boolean(query, "forward", True)  # refused when it is nonsense, also where nothing is forwarded

    def timeout_ms(self) -> int:
        """?timeout, or its default."""
        limits = self.context.limits
        if "timeout" not in self.query:
            return limits.default_timeout_ms
        return duration_ms(
            self.query, "timeout", limits.default_timeout_ms, limits.timeout_ms, limits.least_timeout_ms
        )

    def wait_ms(self) -> int:
        """?wait, 0 without."""
        if "wait" not in self.query:
            return 0
        return duration_ms(self.query, "wait", 0, self.context.limits.wait_ms)

    def affordable(self, max_bytes: int) -> int:
        """So much of it as the asker's quota leaves."""
        meter = self.asker.meter
        return max_bytes if meter is None else meter.affordable(max_bytes)

    async def spend(self) -> None:
        """Before the next piece of a long answer: what has been written of it counts, and it goes on as
        quickly as it may."""
        meter = self.asker.meter
        if meter is not None:
            meter.sent(self.request.writer.output_size)
            await meter.rest_holding()

    def tell_change(self, operation: str, thing: str) -> None:
        """Into the audit: the request has made something beside what it asked for."""
        trail = self.context.doorkeeper.trail
        if trail is not None:
            event = happening(self.asker.identity, self.request.remote or "", operation, thing, "done")
            trail.changed(event, int(wall_ms()))

    async def waiting(self, awaitable: Awaitable[T]) -> T:
        """Its result; see Waits.run. With ?wait it is one of the asker's waits meanwhile."""
        return await self._held(lambda: WAITS if self.wait_ms() else None, awaitable)

    async def streaming(self, awaitable: Awaitable[T]) -> T:
        """The same, of a stream of events."""
        return await self._held(lambda: STREAMS, awaitable)

    async def _held(self, kind_of: Callable[[], str | None], awaitable: Awaitable[T]) -> T:
        try:
            kind = kind_of()
            held = nullcontext() if kind is None else self.asker.hold(kind)
        except ShoalError:
            if asyncio.iscoroutine(awaitable):
                awaitable.close()  # or Python warns that it was never awaited
            raise
        with held:
            try:
                return await self.context.waits.run(self.request, self.asker, awaitable)
            finally:
                if self.asker.refused is not None:  # told by the audit
                    self.request[CUT_OFF] = self.asker.refused.code

    def holding(self) -> AnswerReservation:
        """Memory for this request's answer; release it at the end."""
        return AnswerReservation(self.context.room, self.timeout_ms())

    def may_forward(self) -> bool:
        """Whether another agent may be asked: not on the second hop, not when the client said
        ?forward=false.
        """
        if "forward" in self.query and not boolean(self.query, "forward", True):
            return False
        return FORWARDED_BY not in self.headers


class Deadline:
    """A point in time that all the parts of one request share, so that its timeout shrinks on the way."""

    __slots__ = ("_at",)

    def __init__(self, timeout_ms: int) -> None:
        self._at = time.monotonic() + timeout_ms / 1000

    def remaining_ms(self) -> int:
        """Milliseconds left, never negative."""
        return max(0, int((self._at - time.monotonic()) * 1000))

    async def pause(self, seconds: float) -> bool:
        """Sleep a little, not past the end; False when there is nothing left."""
        left = self._at - time.monotonic()
        if left <= 0:
            return False
        await asyncio.sleep(min(seconds, left))
        return True


def partition_number(text: str) -> int:
    """The partition in a path; ShoalError unknown-partition for what no partition could be called."""
    if not is_number(text) or len(text) > 9:
        raise ShoalError("unknown-partition", f"{shown(text)} is not a partition number")
    return int(text)
