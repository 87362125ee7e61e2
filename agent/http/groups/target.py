"""The topic, group and partition that a request names, and how another agent is asked the same.

A group that this agent's catalog lacks may be news on its way. An agent that another one asks waits a moment
for it. The first receive makes a group that nobody has made.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

from shoal.agent.http.admin.topics import exchange
from shoal.agent.http.api.media import JSON_TYPE
from shoal.agent.http.core.context import Call, Deadline, partition_number
from shoal.agent.http.core.forward import FORWARDED_BY, topic_path
from shoal.agent.http.core.leader import at_leader, catalog_of
from shoal.agent.interface import Group, Json, Leader, Topic
from shoal.errors import ShoalError

GROUP_KNOWN_MS = 1_000
"""So long a leader that was asked by another agent waits for a catalog that has the group."""
MADE_KNOWN_MS = 5_000
"""The same of the agent that has had the group made: its catalog hears of it from the leader's."""


class Target(NamedTuple):
    """`partition` None: the whole topic. `created`: this request has made the group."""

    topic: Topic
    group: Group
    partition: int | None
    created: bool = False

    @property
    def partitions(self) -> list[int]:
        """Those that the request may speak of."""
        return list(range(len(self.topic.ranges))) if self.partition is None else [self.partition]

    def path(self, *below: str, partition: int | None = None) -> str:
        """Of the group, or of one of its partitions."""
        where = () if partition is None else ("partitions", partition)
        return topic_path(self.topic.name, *where, "groups", quote(self.group.name, safe=""), *below)


def is_second_hop(call: Call) -> bool:
    """Whether another agent asks."""
    return FORWARDED_BY in call.headers


async def find(call: Call, *, by_partition: bool = False, makes: Deadline | None = None) -> Target:
    """The group that a request names. `by_partition`: its path has a partition. `makes`: one that nobody has
    made is made. ShoalError unknown-topic, unknown-group, unknown-partition, and as create_group."""
    broker = call.context.broker
    topic = broker.topic(call.arguments[0])
    partition = _partition(call, topic) if by_partition else None
    name = call.arguments[2 if by_partition else 1]
    try:
        return Target(topic, broker.group(topic, name), partition)
    except ShoalError as error:
        if error.code != "unknown-group":
            raise
        if is_second_hop(call):
            return Target(topic, await broker.known_group(topic, name, GROUP_KNOWN_MS), partition)
        if makes is None or not call.may_forward() or not broker.config.auto_create_topics:
            advice = f"create it with PUT {topic_path(topic.name, 'groups', quote(name, safe=''))}"
            raise ShoalError(error.code, f"{error.detail}: {advice}") from None
    created, _ = await create_anywhere(call, topic.name, name, None, makes)
    if created:
        call.tell_change("createGroup", f"topic:{topic.name} group:{name}")
    known_ms = min(MADE_KNOWN_MS, makes.remaining_ms())
    return Target(topic, await broker.known_group(topic, name, known_ms), partition, created)


def _partition(call: Call, topic: Topic) -> int:
    partition = partition_number(call.arguments[1])
    if partition >= len(topic.ranges):
        raise ShoalError(
            "unknown-partition",
            f"topic {topic.name} has partitions 0 to {len(topic.ranges) - 1}, not {partition}",
        )
    return partition


async def create_anywhere(
    call: Call, topic: str, name: str, body: Json | None, deadline: Deadline
) -> tuple[bool, Json]:
    """Make a group at the catalog's leader: whether it was made now, and its settings."""

    async def here() -> tuple[bool, Json]:
        return await call.context.broker.create_group(topic, name, body, deadline.remaining_ms())

    async def there(leader: Leader) -> tuple[bool, Json]:
        path = topic_path(topic, "groups", quote(name, safe=""))
        reply = await exchange(call, leader.url, "PUT", path, body, deadline.remaining_ms())
        return reply.status == 201, reply.document()

    return await at_leader(call, catalog_of(call), here, there, deadline)


async def ask(
    call: Call,
    url: str,
    method: str,
    path: str,
    body: Mapping[str, Any] | None,
    timeout_ms: int,
    wait_ms: int | None = None,
) -> Json:
    """Another agent's answer to a request about a group; `wait_ms`: it may wait so long."""
    sent = None if body is None else json.dumps(body).encode("ascii")
    query = None if wait_ms is None else {"wait": f"{wait_ms}ms"}
    reply = await call.context.forwarder.exchange(
        url,
        method,
        path,
        passed_on=call.asker.passed_on,
        timeout_ms=timeout_ms,
        query=query,
        headers={} if body is None else {"Content-Type": JSON_TYPE},
        body=sent,
        wait_ms=wait_ms,
    )
    return reply.document() if reply.status != 204 else {}
