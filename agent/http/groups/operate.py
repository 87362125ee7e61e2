"""Groups for operators: list, create, describe, change, delete, seek, decide; and consumers' presence.

Creation, change and deletion are the catalog leader's. Leaders of partitions are asked about these.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from urllib.parse import quote

from aiohttp import web

from shoal.agent.http.admin.topics import exchange, optional_object
from shoal.agent.http.api import group_operations as api
from shoal.agent.http.api.needs import TOPIC_OFFSETS
from shoal.agent.http.api.operations import VERSION_CHARACTERS_MAX
from shoal.agent.http.core.context import Call, Deadline
from shoal.agent.http.core.dispatch import Route
from shoal.agent.http.core.forward import topic_path
from shoal.agent.http.core.leader import at_leader, catalog_of, partition_of
from shoal.agent.http.core.parameters import invalid
from shoal.agent.http.core.problems import json_response
from shoal.agent.http.fetch.offsets import OffsetsGatherer
from shoal.agent.http.groups.bodies import (
    SeekTarget,
    check_fields,
    label_in,
    name_hash,
    seek_target,
    stopped_range,
)
from shoal.agent.http.groups.gather import PartitionGatherer
from shoal.agent.http.groups.target import (
    GROUP_KNOWN_MS,
    MADE_KNOWN_MS,
    Target,
    ask,
    create_anywhere,
    find,
    is_second_hop,
)
from shoal.agent.interface import (
    DecideStopped,
    DuePlace,
    Group,
    GroupMode,
    Json,
    Leader,
    StoppedAction,
    Topic,
)
from shoal.errors import ShoalError
from shoal.format.timestamps import format_time, parse_time

LISTED_AT_ONCE = 8
"""Groups of a list that leaders are asked about at the same time."""
DESCRIBE_MS = 2_000
"""So long a description waits for leaders; partitions without one are named."""
SUMS = ("lag", "in_flight", "delayed", "dying", "stopped", "dead", "skipped", "dropped")


# ---- reading -------------------------------------------------------------------------------------


async def describe(call: Call) -> web.Response:
    """One group: settings, and each partition's numbers."""
    target = await find(call)
    return json_response(await _described(call, target, Deadline(min(call.timeout_ms(), DESCRIBE_MS))))


async def list_groups(call: Call) -> web.Response:
    """All groups of a topic, with sums over its partitions."""
    topic = call.context.broker.topic(call.arguments[0])
    deadline = Deadline(min(call.timeout_ms(), DESCRIBE_MS))
    limit = asyncio.Semaphore(LISTED_AT_ONCE)

    async def line_of(group: Group) -> Json:
        async with limit:
            document = await _described(call, Target(topic, group, None), deadline)
        its = {name: document[name] for name in ("name", "mode", "paused")}
        return its | {name: document["totals"][name] for name in ("lag", "in_flight", "dead")}

    listed = await asyncio.gather(*map(line_of, call.context.broker.groups(topic)))
    return json_response({"groups": listed})


async def _described(call: Call, target: Target, deadline: Deadline) -> Json:
    topic, group = target.topic, target.group
    broker = call.context.broker

    async def here(partition: int) -> Json:
        return await broker.group_numbers(topic, partition, group)

    async def there(leader: Leader, timeout_ms: int) -> Json:
        return await ask(call, leader.url, "GET", target.path(), None, timeout_ms)

    gatherer = PartitionGatherer(call, topic, here, there)
    try:
        await gatherer.gather(deadline)
    except ShoalError as error:
        if error.code not in ("no-leader", "not-leader", "not-ready", "timeout"):
            raise
    found = [gatherer.found[partition] for partition in sorted(gatherer.found)]
    sums = {name: sum(int(entry[name]) for entry in found) for name in SUMS}
    return {
        **broker.group_settings(topic, group),
        "totals": {**sums, "lag_seconds": max((entry["lag_seconds"] for entry in found), default=0)},
        "partitions": found,
        "unavailable": gatherer.missing if not is_second_hop(call) else [],
    }


# ---- the catalog ---------------------------------------------------------------------------------


async def create(call: Call) -> web.Response:
    """201 when made, 200 when it was there with these settings; once every partition has begun."""
    topic_name, name = call.arguments
    body = await optional_object(call)
    deadline = Deadline(call.timeout_ms())
    if is_second_hop(call):
        made, document = await call.context.broker.create_group(
            topic_name, name, body, deadline.remaining_ms()
        )
        return json_response(document, status=201 if made else 200)
    made, _ = await create_anywhere(call, topic_name, name, body, deadline)
    topic = call.context.broker.topic(topic_name)
    group = await call.context.broker.known_group(topic, name, min(MADE_KNOWN_MS, deadline.remaining_ms()))
    target = Target(topic, group, None)
    try:
        await _begin_everywhere(call, target, deadline)
    except ShoalError as error:
        raise ShoalError(
            "timeout", f"the group is made, and has not begun in every partition: {error.detail}; repeat this"
        ) from None
    return json_response(await _described(call, target, Deadline(DESCRIBE_MS)), status=201 if made else 200)


async def begin(call: Call) -> web.Response:
    """Between agents: the partitions led here in which the group has begun."""
    broker = call.context.broker
    topic = broker.topic(call.arguments[0])
    group = await broker.known_group(topic, call.arguments[1], GROUP_KNOWN_MS)
    entries = await _begin_everywhere(call, Target(topic, group, None), Deadline(call.timeout_ms()))
    return json_response({"partitions": entries})


async def _begin_everywhere(call: Call, target: Target, deadline: Deadline) -> list[Json]:
    async def here(partition: int) -> Json:
        await call.context.broker.begin_group(target.topic, partition, target.group, deadline.remaining_ms())
        return {"partition": partition}

    async def there(leader: Leader, timeout_ms: int) -> Json:
        return await ask(call, leader.url, "POST", target.path("begin"), {}, timeout_ms)

    return await PartitionGatherer(call, target.topic, here, there).gather(deadline)


async def change(call: Call) -> web.Response:
    """200 with the group's settings once they are durable."""
    topic, name = call.arguments
    version = call.query.get("if_version")
    if version is not None and not 1 <= len(version) <= VERSION_CHARACTERS_MAX:
        raise invalid("if_version", version, "`settings_version` of the group is wanted")
    body = await optional_object(call)
    deadline = Deadline(call.timeout_ms())
    query = None if version is None else {"if_version": version}

    async def here() -> Json:
        return await call.context.broker.change_group(topic, name, body, deadline.remaining_ms(), version)

    async def there(leader: Leader) -> Json:
        path = topic_path(topic, "groups", quote(name, safe=""))
        return (
            await exchange(call, leader.url, "PATCH", path, body, deadline.remaining_ms(), query)
        ).document()

    return json_response(await at_leader(call, catalog_of(call), here, there, deadline))


async def delete(call: Call) -> web.Response:
    """204 once the deletion is durable."""
    topic, name = call.arguments
    deadline = Deadline(call.timeout_ms())

    async def here() -> None:
        await call.context.broker.delete_group(topic, name, deadline.remaining_ms())

    async def there(leader: Leader) -> None:
        path = topic_path(topic, "groups", quote(name, safe=""))
        await exchange(call, leader.url, "DELETE", path, None, deadline.remaining_ms())

    await at_leader(call, catalog_of(call), here, there, deadline)
    return web.Response(status=204)


# ---- places --------------------------------------------------------------------------------------


async def seek(call: Call) -> web.Response:
    """Every partition goes on elsewhere; all are checked before the first does."""
    wanted = seek_target(await optional_object(call))
    if wanted != "latest":
        call.asker.require(TOPIC_OFFSETS, call.arguments[0])
    target = await find(call)
    if isinstance(wanted, int):
        raise ShoalError("bad-request", 'offsets stand by partition, as {"to": {"0": 17}}')
    deadline = Deadline(call.timeout_ms())
    if target.topic.has_due_times:
        places = dict.fromkeys(range(len(target.topic.ranges)), _due_place(wanted))
    else:
        places = await _places(call, target.topic, wanted, deadline)
    entries = [
        await _seek_one(call, target, partition, place, deadline) for partition, place in places.items()
    ]
    return json_response({"partitions": entries})


async def seek_partition(call: Call) -> web.Response:
    """One partition does, at its leader."""
    wanted = seek_target(await optional_object(call))
    if wanted != "latest":
        call.asker.require(TOPIC_OFFSETS, call.arguments[0])
    target = await find(call, by_partition=True)
    partition = target.partitions[0]
    if isinstance(wanted, dict) and set(wanted) != {partition}:
        raise ShoalError("bad-request", "this is about one partition: give its offset")
    deadline = Deadline(call.timeout_ms())

    async def here() -> Json:
        if target.topic.has_due_times:
            place = _due_place(wanted)
        else:
            place = await log_place()
        return await call.context.broker.seek_group(
            target.topic, partition, target.group, place, deadline.remaining_ms()
        )

    async def log_place() -> DuePlace | None:
        asked = wanted[partition] if isinstance(wanted, dict) else wanted
        offsets = await call.context.broker.offsets(target.topic, partition)
        ends: Json = {"log_start_offset": offsets.log_start_offset, "high_watermark": offsets.high_watermark}
        if isinstance(asked, str) and asked.startswith("@"):
            time_us = parse_time(asked[1:])
            ends["offset"] = await call.context.broker.offset_at_time(target.topic, partition, time_us)
        return _place(asked, partition, ends)

    async def there(leader: Leader) -> Json:
        body = {
            "to": {str(key): value for key, value in wanted.items()} if isinstance(wanted, dict) else wanted
        }
        path = target.path("seek", partition=partition)
        return await ask(call, leader.url, "POST", path, body, deadline.remaining_ms())

    return json_response(
        await at_leader(call, partition_of(call, target.topic, partition), here, there, deadline)
    )


async def _places(
    call: Call, topic: Topic, wanted: str | dict[int, int], deadline: Deadline
) -> dict[int, DuePlace | None]:
    """By partition where to go on, None for the end. ShoalError beyond-end, trimmed, unknown-partition."""
    partitions = range(len(topic.ranges)) if isinstance(wanted, str) else sorted(wanted)
    if unknown := [partition for partition in partitions if partition >= len(topic.ranges)]:
        raise ShoalError("unknown-partition", f"topic {topic.name} has no partitions {unknown[:32]}")
    if wanted == "latest":
        return dict.fromkeys(partitions)
    at_us = parse_time(wanted[1:]) if isinstance(wanted, str) and wanted.startswith("@") else None
    ends = await OffsetsGatherer(call, topic, at_us).gather(deadline)
    found: dict[int, DuePlace | None] = {}
    for partition in partitions:
        asked = wanted if isinstance(wanted, str) else wanted[partition]
        found[partition] = _place(asked, partition, ends[partition])
    return found


def _due_place(asked: SeekTarget) -> DuePlace | None:
    """In a topic of kind timer, whose messages stand by due time; None for now. ShoalError bad-request."""
    if asked == "earliest":
        return DuePlace(0, 0)
    if asked == "latest":
        return None
    if not isinstance(asked, str):
        raise ShoalError(
            "bad-request", "messages of a timer topic stand by due time: seek earliest, latest or @ a time"
        )
    time_us = parse_time(asked[1:])
    # Later than now would pass messages that are appended later and fall due before.
    return None if time_us > time.time_ns() // 1_000 else DuePlace(max(time_us, 0), 0)


def _place(asked: SeekTarget, partition: int, ends: Mapping[str, int]) -> DuePlace | None:
    """Checked against the partition's ends. ShoalError beyond-end, trimmed."""
    start, end = ends["log_start_offset"], ends["high_watermark"]
    if asked == "latest":
        return None
    if asked == "earliest":
        return DuePlace(0, start)
    if isinstance(asked, str):
        return DuePlace(0, max(ends["offset"], start))
    assert isinstance(asked, int)
    whole = f"partition {partition} has offsets {start} to {end}: nothing was sought"
    if asked > end:
        raise ShoalError(
            "beyond-end", f"{asked} lies beyond the log; {whole}", log_start_offset=start, high_watermark=end
        )
    if asked < start:
        raise ShoalError(
            "trimmed", f"{asked} has been removed; {whole}", log_start_offset=start, high_watermark=end
        )
    return DuePlace(0, asked)


async def _seek_one(
    call: Call, target: Target, partition: int, place: DuePlace | None, deadline: Deadline
) -> Json:

    async def here() -> Json:
        return await call.context.broker.seek_group(
            target.topic, partition, target.group, place, deadline.remaining_ms()
        )

    async def there(leader: Leader) -> Json:
        body: Json = {"to": "latest" if place is None else place.offset}
        if place is not None and target.topic.has_due_times:
            body = {"to": f"@{format_time(place.due_us)}"}
        path = target.path("seek", partition=partition)
        return await ask(call, leader.url, "POST", path, body, deadline.remaining_ms())

    return await at_leader(call, partition_of(call, target.topic, partition), here, there, deadline)


async def decide(call: Call) -> web.Response:
    """An operator's word on a message that was stopped; `done` says whether it was."""
    document = await optional_object(call)
    partition, piece, action = stopped_range(document)
    target = await find(call)
    decision = DecideStopped(piece, StoppedAction(action))
    deadline = Deadline(call.timeout_ms())

    async def here() -> Json:
        done = await call.context.broker.decide_stopped(
            target.topic, partition, target.group, decision, deadline.remaining_ms()
        )
        return {"done": done}

    async def there(leader: Leader) -> Json:
        return await ask(call, leader.url, "POST", target.path("decide"), document, deadline.remaining_ms())

    return json_response(
        await at_leader(call, partition_of(call, target.topic, partition), here, there, deadline)
    )


# ---- consumers of exclusive groups ---------------------------------------------------------------


async def presence(call: Call) -> web.Response:
    """A consumer is there: which partitions should be its own."""
    target, consumer, instance = await _consumer_of(call)
    broker = call.context.broker

    async def here(partition: int) -> Json:
        name, hashes = consumer, (name_hash(consumer), name_hash(instance))
        assigned = broker.present(target.topic, partition, target.group, *hashes, name)
        return {"partition": partition, "assigned": assigned}

    return json_response(await _all_leaders(call, target, here, "POST", consumer, instance))


async def leave(call: Call) -> web.Response:
    """A consumer goes, at once."""
    target, consumer, instance = await _consumer_of(call)
    broker = call.context.broker

    async def here(partition: int) -> Json:
        hashes = name_hash(consumer), name_hash(instance)
        broker.leave_group(target.topic, partition, target.group, *hashes)
        return {"partition": partition, "assigned": False}

    return json_response(await _all_leaders(call, target, here, "DELETE", consumer, instance))


async def _consumer_of(call: Call) -> tuple[Target, str, str]:
    body = await optional_object(call) or {}
    check_fields(body, ("instance",))
    consumer = label_in({"consumer": call.arguments[2]}, "consumer")
    target = await find(call)
    group: Group = target.group
    if group.mode is not GroupMode.EXCLUSIVE:
        raise ShoalError("wrong-mode", f"group {group.name} is {group.mode}: its partitions have no owners")
    return target, consumer, label_in(body, "instance")


async def _all_leaders(
    call: Call, target: Target, here: object, method: str, consumer: str, instance: str
) -> Json:
    async def there(leader: Leader, timeout_ms: int) -> Json:
        path = target.path("consumers", quote(consumer, safe=""))
        body = {"instance": instance} if instance else {}
        answer = await ask(call, leader.url, method, path, body, timeout_ms)
        assigned = answer.get("partitions")
        return {
            "partitions": [
                {"partition": partition, "assigned": isinstance(assigned, list) and partition in assigned}
                for partition in answer.get("led", [])
            ]
        }

    gatherer = PartitionGatherer(call, target.topic, here, there)  # type: ignore[arg-type]
    entries = await gatherer.gather(Deadline(call.timeout_ms()))
    return {
        "partitions": [entry["partition"] for entry in entries if entry["assigned"]],
        "led": [entry["partition"] for entry in entries],
    }


ROUTES = (
    Route(api.LIST_GROUPS, list_groups),
    Route(api.CREATE_GROUP, create),
    Route(api.DESCRIBE_GROUP, describe),
    Route(api.CHANGE_GROUP, change),
    Route(api.DELETE_GROUP, delete),
    Route(api.BEGIN, begin),
    Route(api.SEEK, seek),
    Route(api.SEEK_PARTITION, seek_partition),
    Route(api.DECIDE, decide),
    Route(api.PRESENCE, presence),
    Route(api.LEAVE_GROUP, leave),
)
