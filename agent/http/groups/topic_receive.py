"""A receive from a topic with several partitions: which of them is asked when, and how it waits.

First the partitions are asked in the consumer's order, without waiting: those led here directly, those led
elsewhere by a question to their agents. Then questions stand with all leaders at once, and the first promise
is redeemed. A request that is repeated goes to the partition that remembers it. With `retry` nothing new is
delivered until every partition has said that it does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from aiohttp import web

from shoal.agent.http.core.context import Call, Deadline
from shoal.agent.http.core.leader import PASSING_CODES, RETRY_PAUSE_SECONDS
from shoal.agent.http.groups.bodies import ReceiveBody
from shoal.agent.http.groups.target import Target, ask
from shoal.agent.interface import Granted, GroupMode, Leader, Promise, Question
from shoal.errors import ErrorCode, ShoalError

LOOK_SECONDS = 0.25
"""Between two looks whether those that are asked still lead."""
ASKED_AGAIN: frozenset[ErrorCode] = PASSING_CODES | {"timeout", "leadership-lost"}
"""Codes of another agent while leadership moves or its host dies."""
PASSED_OVER: frozenset[ErrorCode] = ASKED_AGAIN | {"damaged", "overloaded"}
"""Codes of one partition that are no reason to get nothing from the others."""


class Asked(Protocol):
    """A receive request, as this file knows it: receive.py has the whole."""

    call: Call
    target: Target
    body: ReceiveBody
    consumer: bytes
    instance: bytes
    request: bytes
    waiting: Deadline

    async def send_acks_but_of(self, partition: int | None) -> None: ...
    async def receive_here(self, partition: int, wait_ms: int, promise: int = 0) -> Granted: ...
    async def rendered(self, partition: int, granted: Granted) -> web.StreamResponse: ...
    async def nothing(self, reason: str) -> web.StreamResponse: ...
    async def relayed(
        self, leader: Leader, partition: int, promise: int, wait_ms: int
    ) -> web.StreamResponse: ...


class Offer(NamedTuple):
    """A leader's promise. `leader` None: this agent."""

    leader: Leader | None
    promise: Promise


class TopicReceive:
    """One receive from all partitions of a topic."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._call = asked.call
        self._target = asked.target
        self._reason = "paused" if asked.target.group.paused else "empty"
        self._reached = False
        """Whether some leader has answered."""
        self._refusal: ShoalError | None = None
        """Of a partition that was passed over."""
        self._silent: set[int] = set()
        """Partitions of which nobody has said, when they were asked last, that they have no messages."""

    async def answer(self) -> web.StreamResponse:
        """The first partition that has messages answers. ShoalError no-leader where none has a leader."""
        asked, target = self._asked, self._target
        if target.group.mode is GroupMode.EXCLUSIVE:
            self._tell_presence()
        places = self._call.context.receive_places
        order = places.order(target.group.key, asked.consumer, len(target.topic.ranges))
        await asked.send_acks_but_of(order[0] if self._leader(order[0]) is None else None)
        found = await self._again() if asked.body.request else None
        if found is None:
            found = await self._walk(order)
        while found is None and asked.waiting.remaining_ms():
            offer = await self._wait()
            found = None if offer is None else await self._redeem_if_led(offer)
        if found is not None:
            return found
        await asked.send_acks_but_of(None)
        if not self._reached and self._refusal is not None:
            raise self._refusal
        if not self._reached:
            raise ShoalError("no-leader", f"no partition of {target.topic.name} has a leader at present")
        is_unknown = self._silent and self._reason == "empty"
        return await asked.nothing("unavailable" if is_unknown else self._reason)

    def _leader(self, partition: int) -> Leader | None:
        """Of another agent; None: this one, or nobody."""
        leader = self._call.context.broker.leader(self._target.topic, partition)
        return None if leader is None or leader.local else leader

    def _leads(self, partition: int) -> bool:
        leader = self._call.context.broker.leader(self._target.topic, partition)
        return leader is not None and leader.local

    def _by_agent(self, partitions: Iterable[int]) -> dict[Leader, list[int]]:
        found: dict[str, tuple[Leader, list[int]]] = {}
        for partition in partitions:
            leader = self._leader(partition)
            if leader is not None and self._call.may_forward():
                found.setdefault(leader.url, (leader, []))[1].append(partition)
        return dict(found.values())

    def _tell_presence(self) -> None:
        """To all leaders here: a consumer that has not asked them yet counts where partitions are shared
        out."""
        asked, broker = self._asked, self._call.context.broker
        for partition in filter(self._leads, self._target.partitions):
            try:
                broker.present(
                    self._target.topic, partition, self._target.group, asked.consumer, asked.instance,
                    asked.body.consumer,
                )  # fmt: skip
            except ShoalError as error:
                if error.code not in ASKED_AGAIN:
                    raise

    # ---- a request that was served before --------------------------------------------------------

    async def _again(self) -> web.StreamResponse | None:
        """The answer of a request that was served before."""
        deadline = Deadline(self._call.timeout_ms())
        while (served := await self._served_before(deadline)) is not None:
            found = await self._redeem_if_led(served)
            if found is not None:
                return found
            if not await deadline.pause(RETRY_PAUSE_SECONDS):
                raise ShoalError("no-leader", "the partition that has served the request before moves")
        return None

    async def _served_before(self, deadline: Deadline) -> Offer | None:
        """The partition that remembers the request. With `retry` all must have answered: ShoalError no-leader
        when one does not in time."""
        retry = self._asked.body.retry
        left = set(self._target.partitions)
        while left:
            for partition in list(filter(self._leads, left)):
                remembers = await self._remembers(partition)
                if remembers:
                    return Offer(None, Promise(partition, 0, repeat=True))
                left -= {partition} if remembers is not None else set()
            if not retry:
                return None
            for leader, partitions in self._by_agent(left).items():
                answer = await self._question(leader, partitions, None)
                if answer is not None and answer.get("partition") in partitions:
                    return Offer(leader, Promise(int(answer["partition"]), 0, repeat=True))
                left -= _led_in(answer, ())
            if left and not await deadline.pause(RETRY_PAUSE_SECONDS):
                raise ShoalError(
                    "no-leader",
                    f"whether the request was served before, partitions {sorted(left)[:32]} did not say",
                )
        return None

    async def _remembers(self, partition: int) -> bool | None:
        asked, target = self._asked, self._target
        try:
            return await self._call.context.broker.remembers(
                target.topic, partition, target.group, asked.consumer, asked.request,
                confirmed=asked.body.retry,
            )  # fmt: skip
        except ShoalError as error:
            if error.code not in ASKED_AGAIN:
                raise
            return None

    # ---- without waiting -------------------------------------------------------------------------

    async def _walk(self, order: list[int]) -> web.StreamResponse | None:
        """Each partition once; agents that lead several are asked once for all of them."""
        agents = self._by_agent(order)
        self._silent = set(order).difference(*agents.values())
        for partition in order:
            if self._leads(partition):
                found = await self._receive_here(partition, 0)
                if found is not None:
                    return found
                continue
            leader = next((item for item in agents if partition in agents[item]), None)
            if leader is None:
                continue
            offer = await self._offer_of(leader, agents.pop(leader), 0)
            found = None if offer is None else await self._redeem_if_led(offer)
            if found is not None:
                return found
        return None

    async def _receive_here(self, partition: int, promise: int) -> web.StreamResponse | None:
        await self._asked.send_acks_but_of(partition)  # those of the first one, if it could not be asked
        try:
            granted = await self._asked.receive_here(partition, 0, promise)
        except ShoalError as error:
            if error.code not in PASSED_OVER or not error.definite:
                raise
            self._refusal = error
            return None
        self._reached = True
        self._silent.discard(partition)
        if not granted.delivered:
            if granted.refusal != "empty":
                self._reason = granted.refusal
            return None
        self._served(partition)
        return await self._asked.rendered(partition, granted)

    def _served(self, partition: int) -> None:
        self._call.context.receive_places.served(self._target.group.key, self._asked.consumer, partition)

    # ---- waiting ---------------------------------------------------------------------------------

    async def _wait(self) -> Offer | None:
        """The first promise of all leaders; None when the time is up, or others lead by now."""
        partitions = self._target.partitions
        here = [partition for partition in partitions if self._leads(partition)]
        agents = self._by_agent(partitions)
        self._silent = set(partitions).difference(here, *agents.values())
        remaining_ms = self._asked.waiting.remaining_ms()
        tasks = [asyncio.ensure_future(self._await_here(partition, remaining_ms)) for partition in here]
        tasks += [
            asyncio.ensure_future(self._offer_of(leader, its, remaining_ms)) for leader, its in agents.items()
        ]
        try:
            while remaining_ms := self._asked.waiting.remaining_ms():
                pause = min(remaining_ms / 1_000, LOOK_SECONDS)
                done: set[asyncio.Task[Offer | None]] = set()
                if tasks:
                    done, _ = await asyncio.wait(tasks, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
                offers = [offer for task in done if (offer := task.result()) is not None]
                if offers:
                    return offers[0]
                if done or not tasks:  # somebody gave up: leaders have to be found anew
                    await self._asked.waiting.pause(RETRY_PAUSE_SECONDS)
                    return None
                if self._by_agent(partitions) != agents or [p for p in partitions if self._leads(p)] != here:
                    return None
            return None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _await_here(self, partition: int, wait_ms: int) -> Offer | None:
        asked, target = self._asked, self._target
        question = Question(
            asked.consumer, asked.instance, asked.request, asked.body.limit, name=asked.body.consumer
        )
        try:
            promise = await self._call.context.broker.await_messages(
                target.topic, partition, target.group, question, wait_ms
            )
        except ShoalError as error:
            if error.code not in PASSED_OVER:
                raise
            self._refusal = error
            self._silent.add(partition)
            await self._asked.waiting.pause(LOOK_SECONDS)
            return None
        self._reached = True
        return None if promise is None else Offer(None, promise)

    async def _offer_of(self, leader: Leader, partitions: list[int], wait_ms: int) -> Offer | None:
        answer = await self._question(leader, partitions, wait_ms)
        if answer is None or answer.get("partition") not in partitions:
            self._silent |= set(partitions) - _led_in(answer, partitions)
            return None
        number = answer.get("promise")
        promise = Promise(answer["partition"], number if type(number) is int else 0)
        return Offer(leader, promise)

    async def _question(self, leader: Leader, partitions: list[int], wait_ms: int | None) -> Any:
        """To another agent. `wait_ms` None: only whether it remembers the request; its answer, None while it
        cannot tell."""
        asked = self._asked
        body: dict[str, object] = {"partitions": partitions, "limit": asked.body.limit}
        body |= {
            name: value
            for name in ("consumer", "instance", "request")
            if (value := getattr(asked.body, name))
        }
        if wait_ms is None:
            body["served"] = True
        try:
            answer = await ask(
                self._call,
                leader.url,
                "POST",
                self._target.path("wait"),
                body,
                self._call.timeout_ms(),
                wait_ms,
            )
        except ShoalError as error:
            if error.code not in ASKED_AGAIN:
                raise
            return None
        self._reached = True
        return answer

    # ---- promises --------------------------------------------------------------------------------

    async def _redeem_if_led(self, offer: Offer) -> web.StreamResponse | None:
        try:
            return await self._redeem(offer)
        except ShoalError as error:
            if error.code not in PASSED_OVER or not error.definite:
                raise
            self._refusal = error
            return None

    async def _redeem(self, offer: Offer) -> web.StreamResponse:
        """Receive from the partition that has messages for this consumer."""
        asked, (leader, promise) = self._asked, offer
        partition = promise.partition
        await asked.send_acks_but_of(partition)
        if leader is not None:
            self._served(partition)
            return await asked.relayed(leader, partition, promise.number, 0)
        granted = await asked.receive_here(partition, 0, promise.number)
        if granted.delivered:
            self._served(partition)
        return await asked.rendered(partition, granted)


def _led_in(answer: Any, otherwise: Iterable[int]) -> set[int]:
    """The partitions that another agent has spoken for, by its answer to a question, None where there was
    none. `otherwise`: what an answer means that does not say."""
    if answer is None:
        return set()
    led = answer.get("led")
    return {item for item in led if type(item) is int} if isinstance(led, list) else set(otherwise)
