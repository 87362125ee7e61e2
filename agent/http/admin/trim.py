"""POST /v1/topics/{topic}/partitions/{p}/trim: removes a log's head, at the partition's leader."""

from __future__ import annotations

from aiohttp import web

from shoal.agent.http.admin.topics import exchange, optional_object
from shoal.agent.http.api import operations as api
from shoal.agent.http.core.context import Call, Deadline, partition_number
from shoal.agent.http.core.dispatch import Route
from shoal.agent.http.core.forward import topic_path
from shoal.agent.http.core.leader import at_leader, partition_of
from shoal.agent.http.core.problems import json_response
from shoal.agent.interface import Json, Leader
from shoal.errors import ShoalError
from shoal.format.batch import Offset

MAX_OFFSET = 2**63 - 1


async def trim(call: Call) -> web.Response:
    """{"before": offset} -> {"log_start_offset": offset}, once the group has committed it. Trimming
    twice is trimming once, so it is tried again wherever the leader is."""
    topic = call.context.broker.topic(call.arguments[0])
    partition = partition_number(call.arguments[1])
    body = await optional_object(call) or {}
    before = body.get("before")
    if set(body) != {"before"} or type(before) is not int or not 0 <= before <= MAX_OFFSET:
        raise ShoalError("bad-request", 'the body has to be {"before": OFFSET}, an offset of 0 or more')
    deadline = Deadline(call.timeout_ms())

    async def here() -> Json:
        start = await call.context.broker.trim(topic, partition, Offset(before), deadline.remaining_ms())
        return {"log_start_offset": start}

    async def there(leader: Leader) -> Json:
        path = topic_path(topic.name, "partitions", partition, "trim")
        reply = await exchange(call, leader.url, "POST", path, {"before": before}, deadline.remaining_ms())
        return reply.document()

    return json_response(await at_leader(call, partition_of(call, topic, partition), here, there, deadline))


ROUTES = (Route(api.TRIM, trim),)
