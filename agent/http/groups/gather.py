"""A group as the leaders of all its partitions tell it: one request to each leading agent.

As fetch/offsets.py gathers ends of logs: an agent that is asked by another one speaks for the partitions that
it leads, and asks nobody. Nothing is kept between two requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from shoal.agent.http.core.context import Call, Deadline
from shoal.agent.http.core.leader import MOVING_CODES, Led, at_leader
from shoal.agent.http.groups.target import is_second_hop
from shoal.agent.http.groups.topic_receive import ASKED_AGAIN
from shoal.agent.interface import Json, Leader, Topic
from shoal.errors import ShoalError

AskHere = Callable[[int], Awaitable[Json]]
"""Of one partition: its entry, which names the `partition`."""
AskThere = Callable[[Leader, int], Awaitable[Json]]
"""Of another agent, in so many milliseconds: an answer whose `partitions` are entries."""
AT_ONCE_MAX = 64


class PartitionGatherer:
    """Collects an entry of each partition."""

    def __init__(self, call: Call, topic: Topic, ask_here: AskHere, ask_there: AskThere) -> None:
        self._call = call
        self._topic = topic
        self._ask = ask_here
        self._ask_other = ask_there
        self.found: dict[int, Json] = {}

    async def gather(self, deadline: Deadline) -> list[Json]:
        """By partition. On the second hop those led here. ShoalError no-leader where one has none in time."""

        async def there(leader: Leader) -> list[Json]:
            return await self._ask_others(deadline)

        async def elsewhere(timeout_ms: int) -> Leader:
            for leader in self._leaders_elsewhere():
                return leader
            return await self._call.context.broker.wait_leader(self._topic, self.missing[0], timeout_ms)

        led = Led(f"all partitions of {self._topic.name}", elsewhere)
        return await at_leader(self._call, led, self._ask_here, there, deadline)

    @property
    def missing(self) -> list[int]:
        """Partitions of which nobody has spoken."""
        return [partition for partition in range(len(self._topic.ranges)) if partition not in self.found]

    def _entries(self) -> list[Json]:
        return [self.found[partition] for partition in sorted(self.found)]

    def _leaders_elsewhere(self) -> list[Leader]:
        leaders = [self._call.context.broker.leader(self._topic, partition) for partition in self.missing]
        return list(dict.fromkeys(leader for leader in leaders if leader is not None and not leader.local))

    async def _ask_here(self) -> list[Json]:
        refusals: list[ShoalError] = []
        limit = asyncio.Semaphore(AT_ONCE_MAX)

        async def one(partition: int) -> None:
            async with limit:
                try:
                    self.found[partition] = await self._ask(partition)
                except ShoalError as error:
                    if error.code not in MOVING_CODES:
                        raise
                    refusals.append(error)

        await _all(one(partition) for partition in self.missing)
        if refusals and not is_second_hop(self._call):
            raise refusals[0]
        return self._entries()

    async def _ask_others(self, deadline: Deadline) -> list[Json]:
        by_url = {leader.url: leader for leader in self._leaders_elsewhere()}
        remaining_ms = deadline.remaining_ms()

        async def one(leader: Leader) -> None:
            try:
                answer = await self._ask_other(leader, remaining_ms)
            except ShoalError as error:
                if error.code not in ASKED_AGAIN:
                    raise
                return
            listed = answer.get("partitions")
            for entry in listed if isinstance(listed, list) else []:
                partition = entry.get("partition") if isinstance(entry, dict) else None
                if type(partition) is int and 0 <= partition < len(self._topic.ranges):
                    self.found.setdefault(partition, entry)

        await _all(map(one, by_url.values()))
        if missing := self.missing:
            raise ShoalError("no-leader", f"no leader answered for partitions {missing[:32]}")
        return self._entries()


async def _all(work: object) -> None:
    """Every one to its end; then the first fault is raised."""
    results = await asyncio.gather(*work, return_exceptions=True)  # type: ignore[misc]
    for result in results:
        if isinstance(result, BaseException):
            raise result
