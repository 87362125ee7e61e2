"""GET /v1/topics/{topic}/offsets: the ends of all partitions' logs, now or once one of them has passed a
place.

Only leaders know offsets. This agent sends one request to each leading agent, and waits there too, since a
leader hears of a commit first. Nothing is kept between two requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from aiohttp import web

from shoal.agent.http.api import operations as api
from shoal.agent.http.core.context import Call, Deadline
from shoal.agent.http.core.dispatch import Route
from shoal.agent.http.core.forward import FORWARDED_BY, topic_path
from shoal.agent.http.core.leader import MOVING_CODES, PASSING_CODES, RETRY_PAUSE_SECONDS, Led, at_leader
from shoal.agent.http.core.parameters import Places, invalid
from shoal.agent.http.core.problems import json_response
from shoal.agent.http.fetch.cursors import format_places, places
from shoal.agent.interface import Json, Leader, Topic
from shoal.errors import ShoalError
from shoal.format.batch import Offset
from shoal.format.timestamps import format_time, parse_time

# Codes of another agent while leadership moves or its host dies: that agent or another one is asked again.
RETRIED_CODES = PASSING_CODES | {"timeout", "leadership-lost"}
# Between two looks whether those that are asked still lead: within an election's time, and cheap.
LOOK_SECONDS = 0.25


async def offsets(call: Call) -> web.Response:
    """The ends of every partition's log. With ?at=TIME also the first offset of then. With ?after and ?wait
    it answers once a high watermark has passed its place, or the time is up. Without ?after all is news.
    """
    topic = call.context.broker.topic(call.arguments[0])
    try:
        at_us = parse_time(call.query["at"]) if "at" in call.query else None
    except ShoalError as error:
        raise invalid("at", call.query["at"], error.detail) from None
    after = places(call.query, "after", len(topic.ranges))
    wait_ms = call.wait_ms()
    timeout_ms = call.timeout_ms()
    if after is not None and wait_ms:
        waiting = OffsetsWait(call, topic, after, Deadline(wait_ms))
        await call.waiting(waiting.until_one_passes())
    found = await OffsetsGatherer(call, topic, at_us).gather(Deadline(timeout_ms))
    entries = [found[partition] for partition in sorted(found)]
    ends = {entry["partition"]: entry["high_watermark"] for entry in entries}
    return json_response({"partitions": entries, "cursor": format_places(ends)})


ROUTES = (Route(api.OFFSETS, offsets),)


class OffsetsWait:
    """Waits at the leaders of some partitions, wherever they are, and follows them while they move."""

    def __init__(self, call: Call, topic: Topic, after: Places, deadline: Deadline) -> None:
        self._call = call
        self._topic = topic
        self._after = after
        self._deadline = deadline

    async def until_one_passes(self) -> None:
        """Return when one high watermark lies beyond its place, or the time is up. On the second hop, or
        where the client forbids one, also when one of them is not led here."""
        while self._deadline.remaining_ms():
            leaders = self._leaders()
            if not self._call.may_forward() and any(url is not None for url in leaders.values()):
                return
            if await self._one_round(leaders):
                return
            await self._deadline.pause(RETRY_PAUSE_SECONDS)

    def _leaders(self) -> dict[int, str | None]:
        """Per partition the URL of its leader: None for this agent, empty where nobody is known to lead."""
        broker = self._call.context.broker
        broker.topic(self._topic.name)  # ShoalError unknown-topic once it is deleted
        found: dict[int, str | None] = {}
        for partition in self._after:
            leader = broker.leader(self._topic, partition)
            found[partition] = "" if leader is None else None if leader.local else leader.url
        return found

    async def _one_round(self, leaders: dict[int, str | None]) -> bool:
        """Whether one passed; False when one of those that were asked gave up, or others lead by now."""
        tasks = [asyncio.ensure_future(work) for work in self._questions(leaders)]
        try:
            while remaining_ms := self._deadline.remaining_ms():
                pause = min(remaining_ms / 1000, LOOK_SECONDS)
                if tasks:
                    done, _ = await asyncio.wait(tasks, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
                else:  # a leader is to be found first
                    await asyncio.sleep(min(pause, RETRY_PAUSE_SECONDS))
                    done = set()
                if done:
                    return any(task.result() for task in done)
                if self._leaders() != leaders:
                    return False
            return False
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _questions(self, leaders: dict[int, str | None]) -> list[Coroutine[Any, Any, bool]]:
        there: dict[str, Places] = {}
        questions = []
        for partition, url in leaders.items():
            if url is None:
                questions.append(self._wait_here(partition))
            elif url:
                there.setdefault(url, {})[partition] = self._after[partition]
        return questions + [self._wait_there(url, after) for url, after in there.items()]

    async def _wait_here(self, partition: int) -> bool:
        broker = self._call.context.broker
        try:
            place = Offset(self._after[partition])
            return await broker.wait_past(self._topic, partition, place, self._deadline.remaining_ms())
        except ShoalError as error:
            if error.code not in MOVING_CODES:
                raise
            return False

    async def _wait_there(self, url: str, after: Places) -> bool:
        remaining_ms = self._deadline.remaining_ms()
        query = {"after": format_places(after), "wait": f"{remaining_ms}ms"}
        entries = await ask_offsets(
            self._call, self._topic, url, query, self._call.timeout_ms(), wait_ms=remaining_ms
        )
        return any(entry["high_watermark"] > after.get(entry["partition"], 2**63) for entry in entries)


class OffsetsGatherer:
    """Collects the offsets of a topic's partitions from their leaders, one request to each leading agent."""

    def __init__(self, call: Call, topic: Topic, at_us: int | None) -> None:
        self._call = call
        self._topic = topic
        self._at_us = at_us
        self._found: dict[int, Json] = {}

    async def gather(self, deadline: Deadline) -> dict[int, Json]:
        """Per partition its entry. On the second hop only those led here: the first one asks everybody."""

        async def there(leader: Leader) -> dict[int, Json]:
            return await self._ask_others(deadline)

        led = Led(f"all partitions of {self._topic.name}", self._leader_elsewhere)
        return await at_leader(self._call, led, self._ask_here, there, deadline)

    @property
    def _missing(self) -> list[int]:
        return [partition for partition in range(len(self._topic.ranges)) if partition not in self._found]

    def _leaders_elsewhere(self) -> list[Leader]:
        """The other agents that lead what is missing."""
        leaders = [self._call.context.broker.leader(self._topic, partition) for partition in self._missing]
        return [leader for leader in leaders if leader is not None and not leader.local]

    async def _leader_elsewhere(self, timeout_ms: int) -> Leader:
        """One of them; where none is known, the next leader of the first missing partition."""
        for leader in self._leaders_elsewhere():
            return leader
        return await self._call.context.broker.wait_leader(self._topic, self._missing[0], timeout_ms)

    async def _ask_here(self) -> dict[int, Json]:
        refusal: ShoalError | None = None
        for partition in self._missing:
            try:
                self._found[partition] = await self._entry(partition)
            except ShoalError as error:
                if error.code not in MOVING_CODES:
                    raise
                refusal = error
        if refusal is not None and FORWARDED_BY not in self._call.headers:
            raise refusal
        return self._found

    async def _entry(self, partition: int) -> Json:
        broker = self._call.context.broker
        offsets = await broker.offsets(self._topic, partition)
        entry: Json = {
            "partition": partition,
            "log_start_offset": offsets.log_start_offset,
            "high_watermark": offsets.high_watermark,
            "log_end_offset": offsets.log_end_offset,
        }
        if self._at_us is not None:
            entry["offset"] = await broker.offset_at_time(self._topic, partition, self._at_us)
        return entry

    async def _ask_others(self, deadline: Deadline) -> dict[int, Json]:
        urls = {leader.url for leader in self._leaders_elsewhere()}
        query = {} if self._at_us is None else {"at": format_time(self._at_us)}
        remaining_ms = deadline.remaining_ms()
        answers = await asyncio.gather(
            *(ask_offsets(self._call, self._topic, url, query, remaining_ms) for url in sorted(urls))
        )
        for entries in answers:
            for entry in entries:
                self._found.setdefault(entry["partition"], entry)
        if missing := self._missing:
            raise ShoalError("no-leader", f"no leader answered for partitions {missing[:32]}")
        return self._found


async def ask_offsets(
    call: Call, topic: Topic, url: str, query: dict[str, str], timeout_ms: int, wait_ms: int | None = None
) -> list[Json]:
    """The entries of the partitions that another agent leads; none when it cannot tell at present."""
    path = topic_path(topic.name, "offsets")
    try:
        reply = await call.context.forwarder.exchange(
            url,
            "GET",
            path,
            passed_on=call.asker.passed_on,
            timeout_ms=timeout_ms,
            query=query,
            wait_ms=wait_ms,
        )
    except ShoalError as error:
        if error.code in RETRIED_CODES:
            return []  # asked again until the deadline
        raise
    listed: Any = reply.document().get("partitions")
    entries = listed if isinstance(listed, list) else []
    return [entry for entry in entries if isinstance(entry, dict) and _is_entry(entry, len(topic.ranges))]


def _is_entry(entry: Json, count: int) -> bool:
    """Whether another agent's entry is about a partition of this topic."""
    partition, high_watermark = entry.get("partition"), entry.get("high_watermark")
    return type(partition) is int and 0 <= partition < count and type(high_watermark) is int
