"""Dead letters come again: each partition's leader brings those of its own, one partition after the other.

Law of this file: a limit is that of all partitions together. Letters that came before an error stay: a
repeated request goes on there.
"""

from __future__ import annotations

from functools import partial

from aiohttp import web

from shoal.agent.http.admin.topics import optional_object
from shoal.agent.http.api import group_operations as api
from shoal.agent.http.core.context import Call, Deadline
from shoal.agent.http.core.dispatch import Route
from shoal.agent.http.core.leader import at_leader, partition_of
from shoal.agent.http.core.problems import json_response
from shoal.agent.http.groups.bodies import check_fields, integer_in
from shoal.agent.http.groups.target import Target, ask, find
from shoal.agent.interface import Json, Leader

LIMIT_MAX = 10**9
KEPT_NAMED = 16
"""Letters that an answer names, of all partitions."""


async def redrive(by_partition: bool, call: Call) -> web.Response:
    """Letters of all partitions, or of one, whose messages come again."""
    body = await optional_object(call) or {}
    check_fields(body, ("limit",))
    left = None if body.get("limit") is None else integer_in(body, "limit", 1, 1, LIMIT_MAX)
    target = await find(call, by_partition=by_partition)
    deadline = Deadline(call.timeout_ms())
    total = {"redriven": 0, "copied": 0, "kept": 0}
    named: list[Json] = []
    for partition in target.partitions:
        if left == 0:
            break
        found = await _redrive_one(call, target, partition, left, deadline)
        # An agent of a former version keeps none: it stops there.
        total = {name: total[name] + found.get(name, 0) for name in total}
        named += found.get("kept_letters", ())
        left = None if left is None else left - found["redriven"]
    return json_response({**total, "kept_letters": named[:KEPT_NAMED]})


async def _redrive_one(
    call: Call, target: Target, partition: int, limit: int | None, deadline: Deadline
) -> Json:
    async def here() -> Json:
        return await call.context.broker.redrive_group(
            target.topic, partition, target.group, limit, deadline.remaining_ms()
        )

    async def there(leader: Leader) -> Json:
        path = target.path("redrive", partition=partition)
        return await ask(call, leader.url, "POST", path, {"limit": limit}, deadline.remaining_ms())

    return await at_leader(call, partition_of(call, target.topic, partition), here, there, deadline)


ROUTES = (
    Route(api.REDRIVE, partial(redrive, False)),
    Route(api.REDRIVE_PARTITION, partial(redrive, True)),
)
