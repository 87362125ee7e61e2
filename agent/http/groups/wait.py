"""POST .../wait and .../begin: what agents ask each other about the partitions that they lead.

Law of this file: it answers for the partitions led here alone, and asks nobody. A promise keeps messages for
the receive that brings its number; who goes away takes the question along.
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from shoal.agent.http.admin.topics import optional_object
from shoal.agent.http.api import group_operations as api
from shoal.agent.http.core.context import Call
from shoal.agent.http.core.dispatch import Route
from shoal.agent.http.core.problems import json_response
from shoal.agent.http.groups.bodies import LIMIT_MAX, check_fields, integer_in, label_in, name_hash
from shoal.agent.http.groups.target import GROUP_KNOWN_MS, Target
from shoal.agent.http.groups.topic_receive import ASKED_AGAIN, PASSED_OVER
from shoal.agent.interface import Json, Promise, Question
from shoal.errors import ShoalError

FIELDS = ("partitions", "consumer", "instance", "request", "limit", "served")


async def wait(call: Call) -> web.Response:
    """A promise of one of the partitions, as soon as there is one; nothing when the time is up. With `served`
    only whether a partition remembers the request, and which have answered."""
    broker = call.context.broker
    body = await optional_object(call) or {}
    check_fields(body, FIELDS)
    topic = broker.topic(call.arguments[0])
    target = Target(topic, await broker.known_group(topic, call.arguments[1], GROUP_KNOWN_MS), None)
    partitions = _partitions_in(body, len(topic.ranges))
    consumer, instance, request = (
        name_hash(label_in(body, name)) for name in ("consumer", "instance", "request")
    )
    question = Question(
        consumer,
        instance,
        request,
        integer_in(body, "limit", 1, 1, LIMIT_MAX),
        name=label_in(body, "consumer"),
    )
    asking = Asking(call, target, question)
    if body.get("served") is True:
        return json_response(await asking.served(partitions))
    return json_response(await call.waiting(asking.promised(partitions)))


def _partitions_in(body: Json, count: int) -> list[int]:
    listed = body.get("partitions")
    if not isinstance(listed, list) or not listed:
        raise ShoalError("bad-request", "partitions must be a list of the topic's partitions")
    if not all(type(item) is int and 0 <= item < count for item in listed):
        raise ShoalError("unknown-partition", f"the topic has partitions 0 to {count - 1}")
    return list(dict.fromkeys(listed))


ROUTES = (Route(api.AWAIT_MESSAGES, wait),)


class Asking:
    """A question at the leaders here."""

    def __init__(self, call: Call, target: Target, question: Question) -> None:
        self._call = call
        self._target = target
        self._question = question
        self._refused: set[int] = set()
        """Partitions that cannot be asked here now."""

    async def served(self, partitions: list[int]) -> Json:
        """Whether one of them remembers the request, as a leader that is confirmed."""
        led: list[int] = []
        target, question = self._target, self._question
        for partition in partitions:
            try:
                remembers = await self._call.context.broker.remembers(
                    target.topic, partition, target.group, question.consumer, question.request, confirmed=True
                )
            except ShoalError as error:
                if error.code not in ASKED_AGAIN:
                    raise
                continue
            if remembers:
                return {"partition": partition, "promise": 0, "led": led}
            led.append(partition)
        return {"led": led}

    async def promised(self, partitions: list[int]) -> Json:
        """The first promise, or those that could be asked. It ends early where one of them is not led
        here."""
        wait_ms = self._call.wait_ms()
        if not wait_ms:
            for partition in partitions:  # one after the other: no promise is made that nobody redeems
                promise = await self._one(partition, 0)
                if promise is not None:
                    return _document(promise)
            return self._led(partitions)
        tasks = [asyncio.ensure_future(self._one(partition, wait_ms)) for partition in partitions]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                promise = task.result() if task in done else None
                if promise is not None:
                    return _document(promise)
            return self._led(partitions)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _one(self, partition: int, wait_ms: int) -> Promise | None:
        target = self._target
        try:
            return await self._call.context.broker.await_messages(
                target.topic, partition, target.group, self._question, wait_ms
            )
        except ShoalError as error:
            if error.code not in PASSED_OVER:
                raise
            self._refused.add(partition)
            return None

    def _led(self, partitions: list[int]) -> Json:
        return {"led": [partition for partition in partitions if partition not in self._refused]}


def _document(promise: Promise) -> Json:
    return {"partition": promise.partition, "promise": promise.number, "repeat": promise.repeat}
