"""A producer's topic: its routes, its creation where producing creates topics, and the answer to an append.

Law of this file: it asks, and knows no records.
"""

from __future__ import annotations

import asyncio

from shoal.client.http.requests import Answer, Call, Cluster, now_ms, topic_path
from shoal.client.http.routes import TopicRoutes
from shoal.errors import ShoalError

# A topic that one agent has just created is known to the others well within this.
CREATED_TOPIC_SEEN_MS = 10_000


async def known_routes(cluster: Cluster, topic: str) -> TopicRoutes:
    """The topic's routes, asked for once, with further agents: any may die later. Raises ShoalError and
    Unreachable."""
    routes = cluster.routes.topic(topic)
    if routes is None:
        await cluster.learn_agents()
        await cluster.refresh(topic, retry=True)
        routes = cluster.routes.topic(topic)
    if routes is None or not routes.partitions:
        raise ShoalError("internal", f"the agents' routes of {topic} name no partition")
    return routes


async def find_topic(cluster: Cluster, topic: str) -> None:
    """Learn the topic's routes; let the agents create it if they do that for producers."""
    await cluster.learn_agents()
    try:
        await cluster.refresh(topic, retry=True)
    except ShoalError as error:
        if error.code != "unknown-topic":
            raise
        await _create_topic(cluster, topic)


async def _create_topic(cluster: Cluster, topic: str) -> None:
    """Create the topic with default settings, as an agent does for a producer, unless that is turned off."""
    configuration: object = None
    try:
        configuration = (await cluster.anywhere(Call("GET", "/v1/agent"))).document().get("configuration")
    except ShoalError as error:
        if error.code != "forbidden":  # else the topic's creation is, or is not, allowed
            raise
    if isinstance(configuration, dict) and configuration.get("auto_create_topics") is False:
        raise ShoalError("unknown-topic", f"there is no topic {topic!r}, and producing does not create it")
    try:
        await cluster.anywhere(Call("PUT", topic_path(topic)), retry=True)
    except ShoalError as error:
        if error.code != "topic-differs":  # another client was quicker, with settings of its own
            raise
    deadline_ms = now_ms() + min(CREATED_TOPIC_SEEN_MS, cluster.config.retry.total_ms)
    while True:
        try:
            await cluster.refresh(topic)
        except ShoalError as error:
            # Another agent may have answered, which has not heard of the new topic yet.
            if error.code != "unknown-topic" or now_ms() > deadline_ms:
                raise
        else:
            return
        await asyncio.sleep(0.05)


def outcome_of(answer: Answer) -> tuple[int | None, bool]:
    """The first offset of the appended records, None under acks=none, and whether they were there before."""
    if answer.status != 200:
        return None, False
    document = answer.document()
    try:
        base_offset = int(document["appended"][0]["base_offset"])
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ShoalError("internal", "the agent's answer does not say where the records are") from error
    return base_offset, document.get("duplicate") is True
