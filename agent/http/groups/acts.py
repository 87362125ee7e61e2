"""POST .../ack, nack, release, reject, extend: words about messages, each told to its partition's leader.

Any agent takes them. A request may speak of many partitions: one that does not answer does not touch the
others, and its receipts are told as failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from aiohttp import web

from shoal.agent.http.admin.topics import optional_object
from shoal.agent.http.api import group_operations as api
from shoal.agent.http.core.context import Call, Deadline
from shoal.agent.http.core.dispatch import Route
from shoal.agent.http.core.leader import at_leader, partition_of
from shoal.agent.http.core.problems import json_response
from shoal.agent.http.groups.bodies import ActBody, act_body
from shoal.agent.http.groups.outcomes import (
    Outcomes,
    Parcel,
    Sorting,
    merged,
    outcomes_in,
    refused_parcel,
)
from shoal.agent.http.groups.target import Target, ask, find
from shoal.agent.interface import ActKind, GroupMode, Leader
from shoal.errors import ShoalError

Handler = Callable[[Call], Awaitable[web.StreamResponse]]
AT_ONCE_MAX = 32
"""Partitions that one request is told to at the same time."""


async def act(verb: str, by_partition: bool, call: Call) -> web.Response:
    """200 with what became of each receipt, durably (but of `extend`, which is memory of the leader)."""
    body = act_body(verb, await optional_object(call, call.context.limits.body_bytes))
    target = await find(call, by_partition=by_partition)
    if body.up_to and target.topic.has_due_times:
        raise ShoalError(
            "wrong-mode", "up_to counts offsets, and a timer topic's messages stand by due time: ack receipts"
        )
    if body.up_to and target.group.mode is not GroupMode.EXCLUSIVE:
        raise ShoalError(
            "wrong-mode", f"up_to is for exclusive groups; {target.group.name} is {target.group.mode}"
        )
    sorting = Sorting(target.group, len(target.topic.ranges), target.partition)
    await sorting.sort(ActKind(verb), body)
    outcomes = await tell(call, target, verb, body, sorting.parcels, Deadline(call.timeout_ms()))
    outcomes.add(sorting.failed)
    return json_response(outcomes.document())


async def tell(
    call: Call, target: Target, verb: str, body: ActBody, parcels: Mapping[int, Parcel], deadline: Deadline
) -> Outcomes:
    """Tell each partition's leader, wherever it is. Raises ShoalError where no partition answers."""
    limit = asyncio.Semaphore(AT_ONCE_MAX)

    async def one(partition: int, parcel: Parcel) -> Outcomes | ShoalError:
        async with limit:
            try:
                return await _tell_one(call, target, verb, body, partition, parcel, deadline)
            except ShoalError as error:
                return error

    answers = await asyncio.gather(*(one(*item) for item in parcels.items()))
    errors = [answer for answer in answers if isinstance(answer, ShoalError)]
    if errors and len(errors) == len(answers):
        raise min(errors, key=lambda error: error.definite)  # if one may have happened, nobody knows
    return merged(
        answer if isinstance(answer, Outcomes) else refused_parcel(parcel, answer)
        for answer, parcel in zip(answers, parcels.values(), strict=True)
    )


async def _tell_one(
    call: Call, target: Target, verb: str, body: ActBody, partition: int, parcel: Parcel, deadline: Deadline
) -> Outcomes:
    topic, group = target.topic, target.group

    async def here() -> Outcomes:
        outcomes = Outcomes()
        said = await call.context.broker.act(topic, partition, group, parcel.acts, deadline.remaining_ms())
        outcomes.note(parcel.texts, said)
        return outcomes

    async def there(leader: Leader) -> Outcomes:
        path = target.path(verb, partition=partition)
        sent = _body_of(verb, body, partition, parcel)
        answer = await ask(call, leader.url, "POST", path, sent, deadline.remaining_ms())
        return outcomes_in(answer)

    return await at_leader(call, partition_of(call, topic, partition), here, there, deadline)


def _body_of(verb: str, body: ActBody, partition: int, parcel: Parcel) -> dict[str, object]:
    """The same word to another agent, about one partition."""
    texts = parcel.texts
    sent: dict[str, object] = {}
    if partition in body.up_to:
        sent = {"up_to": {str(partition): body.up_to[partition]}, "consumer": body.consumer}
        texts = texts[:-1]
    if body.delay_ms is not None:
        sent["visibility" if verb == "extend" else "delay"] = f"{body.delay_ms}ms"
    return sent | {"receipts": texts} | ({"reason": body.reason} if body.reason else {})


ROUTES = tuple(
    Route(operation, partial(act, verb, by_partition))
    for by_partition, operations in ((False, api.ACTS), (True, api.PARTITION_ACTS))
    for verb, operation in operations.items()
)
