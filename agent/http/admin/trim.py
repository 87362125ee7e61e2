"""POST /v1/topics/{topic}/partitions/{p}/trim: removes a log's head, at the partition's leader."""

from __future__ import annotations

import json
from urllib.parse import quote

from aiohttp import web

from shoal.agent.http.admin.topics import optional_object
from shoal.agent.http.api import operations as api
from shoal.agent.http.core.context import Call, Context, Deadline, partition_number
from shoal.agent.http.core.dispatch import Route
from shoal.agent.http.core.forward import forward_target
from shoal.agent.http.core.leader import MOVING_CODES, PASSING_CODES, RETRY_PAUSE_SECONDS
from shoal.agent.http.core.media import JSON_TYPE
from shoal.agent.http.core.problems import json_response
from shoal.agent.interface import Json, Topic
from shoal.errors import ShoalError

MAX_OFFSET = 2**63 - 1


class TrimHandlers:
    """The trim of a partition."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """The route."""
        return [Route(api.TRIM, self.trim)]

    async def trim(self, call: Call) -> web.Response:
        """{"before": offset} -> {"log_start_offset": offset}, once the group has committed it. Trimming
        twice is trimming once, so it is tried again wherever the leader is."""
        topic = self._context.broker.topic(call.arguments[0])
        partition = partition_number(call.arguments[1])
        before = _before(await optional_object(call))
        deadline = Deadline(call.timeout_ms())
        while True:
            try:
                start = await self._context.broker.trim(topic, partition, before, deadline.remaining_ms())
                return json_response({"log_start_offset": start})
            except ShoalError as error:
                if error.code not in MOVING_CODES or not call.may_forward():
                    raise
            leader = await self._context.broker.wait_leader(topic, partition, deadline.remaining_ms())
            if not leader.local:
                try:
                    return json_response(await self._there(leader.url, topic, partition, before, deadline))
                except ShoalError as error:
                    if error.code not in PASSING_CODES:
                        raise
            if not await deadline.pause(RETRY_PAUSE_SECONDS):
                raise ShoalError("no-leader", "no leader of the partition was found in time")

    async def _there(self, url: str, topic: Topic, partition: int, before: int, deadline: Deadline) -> Json:
        path = f"/v1/topics/{quote(topic.name, safe='')}/partitions/{partition}/trim"
        timeout_ms = deadline.remaining_ms()
        reply = await self._context.forwarder.exchange(
            url,
            "POST",
            forward_target(path, {}, timeout_ms),
            headers={"Content-Type": JSON_TYPE},
            body=json.dumps({"before": before}).encode("ascii"),
            timeout_ms=timeout_ms,
        )
        return reply.document()


def _before(body: Json | None) -> int:
    before = (body or {}).get("before")
    known = body is not None and set(body) == {"before"}
    if not known or type(before) is not int or not 0 <= before <= MAX_OFFSET:
        raise ShoalError("bad-request", 'the body has to be {"before": OFFSET}, an offset of 0 or more')
    return before
