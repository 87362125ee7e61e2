"""The text of GET /metrics: made in slices that give the event loop back, shared by those who ask meanwhile.

Law of this file: of each form one text is being made at a time, however many scrapers ask. A text is held
once, as long as one of them is still being sent it, and counts among what answers hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from shoal.agent.http.admission.answer_room import SMALL_ANSWER_BYTES, AnswerRoom
from shoal.agent.http.admission.limits import Gate
from shoal.agent.interface import Broker
from shoal.agent.metrics.exposition import Reading, pieces
from shoal.agent.metrics.measures import HttpMeasures


class _Text:
    """`readers`: how many are sent it, or wait for it. `held_bytes`: of the room for answers."""

    def __init__(self, make: Callable[[_Text], Coroutine[Any, Any, Sequence[bytes]]]) -> None:
        self.readers = 0
        self.held_bytes = 0
        self.making = asyncio.create_task(make(self), name="metrics")


class Scrapes:
    """One per server."""

    def __init__(self, broker: Broker, room: AnswerRoom, gate: Gate, measures: HttpMeasures) -> None:
        self._broker = broker
        self._room = room
        self._gate = gate
        self._measures = measures
        self._under_way: dict[bool, _Text] = {}
        self._begins = asyncio.Lock()
        """One reader in a turn of the loop: a hundred that go on in the same one would hold it."""

    @property
    def readers(self) -> int:
        """How many wait for a text that is made now, or are sent the last one."""
        return sum(text.readers for text in self._under_way.values())

    @asynccontextmanager
    async def text(self, *, partitions: bool) -> AsyncIterator[Sequence[bytes]]:
        """All pieces of it, for the time of the block. ShoalError overloaded: answers hold too much already.

        A scraper that asks while a text is being made gets that one. Its numbers are as old as it takes to
        make it.
        """
        text = self._under_way.get(partitions)
        if text is None or text.making.done():
            text = self._under_way[partitions] = _Text(partial(self._make, partitions=partitions))
        text.readers += 1
        try:
            made = await asyncio.shield(text.making)
            async with self._begins:
                await asyncio.sleep(0)
            yield made
        finally:
            text.readers -= 1
            if not text.readers:
                text.making.cancel()  # where it is not made yet, nobody waits for it any more
                if self._under_way.get(partitions) is text:
                    del self._under_way[partitions]
                self._room.give_back(text.held_bytes)

    async def _make(self, text: _Text, *, partitions: bool) -> Sequence[bytes]:
        reading = {**await self._broker.metrics(partitions=partitions), **self._of_http()}
        made = []
        for piece in pieces(reading):
            made.append(piece)
            await asyncio.sleep(0)
        size_bytes = sum(map(len, made))
        if size_bytes > SMALL_ANSWER_BYTES:  # what is small is not counted: an overloaded agent still says so
            await self._room.take(size_bytes, 0)
            text.held_bytes = size_bytes
        return made

    def _of_http(self) -> Reading:
        gate, measures = self._gate, self._measures
        return {
            "shoal_append_seconds": measures.append,
            "shoal_http_requests_total": {
                (operation, str(status)): answers.count
                for (operation, status), answers in measures.requests.items()
                if answers.count
            },
            "shoal_http_requests_in_flight": gate.requests,
            "shoal_http_waits_in_flight": gate.waits,
            "shoal_http_in_flight_bytes": gate.bytes_in_flight,
            "shoal_http_refused_total": gate.refused_total,
            "shoal_quota_refused_total": {(kind,): count for kind, count in measures.quota_refusals.items()},
        }
