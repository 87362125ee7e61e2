"""One append of one partition, wherever its leader is: here, or one hop away, until the timeout.

Only definite refusals (not-leader, no-leader) are tried again; an indefinite answer is passed to the
client, who alone knows whether a repetition is harmless.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, NamedTuple
from urllib.parse import quote

from shoal.agent.http.context import Call, Context, Deadline
from shoal.agent.http.decode import ARROW_TYPE, Chunk, batch_problem, encapsulated
from shoal.agent.http.forward import Reply, forward_target
from shoal.agent.http.interface import Appended, Leader, Topic
from shoal.batch import END_OF_STREAM, BatchError, Message, ProducerStamp, message_from_batch, schema_message
from shoal.errors import ShoalError
from shoal.records import columns_to_batch

PRODUCER_HEADERS = (
    "Shoal-Producer-Id",
    "Shoal-Producer-Epoch",
    "Shoal-Producer-Sequence",
    "Shoal-Producer-Order",
)
# Between agents only: the request came by the key-routed route, although it goes on to a partition's.
KEY_ROUTED = "Shoal-Key-Routed"
# Between two attempts while leadership moves; short beside an election (0.6 s), long beside a round trip.
RETRY_PAUSE_SECONDS = 0.05
MOVING_CODES = frozenset(("not-leader", "no-leader"))
# What an agent says that is leaving, or has just come: its leadership is about to be elsewhere.
PASSING_CODES = MOVING_CODES | {"stopping", "not-ready"}


DEPOSED_LOOK_SECONDS = 0.05  # short against an election; a leader that works has answered by then


class Options(NamedTuple):
    """What a produce request asks beside its records."""

    acks: str
    timeout_ms: int
    producer: ProducerStamp | None
    consecutive: bool = True
    """False on the key-routed route: one producer's sequences are spread over the partitions, so that in each
    of them they need only increase (safety 19)."""


class Outcome(NamedTuple):
    """Where the records of one append went."""

    base_offset: int
    records: int
    duplicate: bool


async def append_here(
    context: Context, topic: Topic, partition: int, chunk: Chunk, options: Options, timeout_ms: int
) -> Appended:
    """The broker's append for either form of a chunk; not-leader where the leader is elsewhere."""
    try:
        return await _append(context, topic, partition, chunk, options, timeout_ms)
    except BatchError as error:
        raise batch_problem(error) from None


async def _append(
    context: Context, topic: Topic, partition: int, chunk: Chunk, options: Options, timeout_ms: int
) -> Appended:
    if chunk.columns is not None:
        return await context.broker.append_records(
            topic,
            partition,
            chunk.columns,
            producer=options.producer,
            consecutive=options.consecutive,
            acks=options.acks,
            timeout_ms=timeout_ms,
        )
    return await context.broker.append(
        topic,
        partition,
        chunk.messages,
        producer=options.producer,
        consecutive=options.consecutive,
        acks=options.acks,
        timeout_ms=timeout_ms,
    )


async def deliver(call: Call, topic: Topic, partition: int, chunk: Chunk, options: Options) -> Outcome:
    """Append here or forward. ShoalError as the broker's, no-leader when none was found in time."""
    deadline = Deadline(options.timeout_ms)
    context = call.context
    try:
        done = await append_here(context, topic, partition, chunk, options, options.timeout_ms)
    except ShoalError as error:
        if error.code not in MOVING_CODES or not call.may_forward():
            raise
    else:
        return Outcome(done.base_offset, done.count, done.duplicate)
    while True:
        leader = await context.broker.wait_leader(topic, partition, deadline.remaining_ms())
        try:
            return await _deliver_to(call, leader, topic, partition, chunk, options, deadline)
        except ShoalError as error:
            if error.code not in (MOVING_CODES if leader.local else PASSING_CODES):
                raise
            if not await deadline.pause(RETRY_PAUSE_SECONDS):
                raise ShoalError(
                    "no-leader", f"no leader of {topic.name}/{partition} was found in time: {error.detail}"
                ) from None


async def _deliver_to(
    call: Call,
    leader: Leader,
    topic: Topic,
    partition: int,
    chunk: Chunk,
    options: Options,
    deadline: Deadline,
) -> Outcome:
    if leader.local:
        done = await append_here(call.context, topic, partition, chunk, options, deadline.remaining_ms())
        return Outcome(done.base_offset, done.count, done.duplicate)
    headers = {name: call.headers[name] for name in PRODUCER_HEADERS if name in call.headers}
    if options.producer is not None and not options.consecutive:
        headers[KEY_ROUTED] = "true"
    query = {"acks": options.acks}
    if chunk.body is not None:  # the same bytes again, so that the leader gathers them with others' records
        if "Content-Type" in call.headers:
            headers["Content-Type"] = call.headers["Content-Type"]
        query |= {name: call.query[name] for name in ("key", "key_field") if name in call.query}
        body = chunk.body
    else:
        headers["Content-Type"] = ARROW_TYPE
        body = arrow_stream(topic, chunk)
    path = f"/v1/topics/{quote(topic.name, safe='')}/partitions/{partition}/records"
    remaining_ms = deadline.remaining_ms()
    exchange = call.context.forwarder.exchange(
        leader.url,
        "POST",
        forward_target(path, query, remaining_ms),
        headers=headers,
        body=body,
        timeout_ms=remaining_ms,
    )
    return _outcome(await while_it_leads(call.context, leader, topic, partition, exchange), partition)


async def while_it_leads(
    context: Context,
    leader: Leader,
    topic: Topic,
    partition: int,
    exchange: Coroutine[Any, Any, Reply],
    look_seconds: float = DEPOSED_LOOK_SECONDS,
) -> Reply:
    """The answer of the leader that was asked; ShoalError leadership-lost once another leads and the first is
    not heard: stopped or cut off it may never answer, and whoever waits should ask again rather than wait for
    it. One that has merely handed over does answer."""
    asked = asyncio.ensure_future(exchange)
    try:
        while not (await asyncio.wait({asked}, timeout=look_seconds))[0]:
            now = context.broker.leader(topic, partition)
            if now is None or now.agent_id == leader.agent_id or context.broker.hears(leader.agent_id):
                continue
            raise ShoalError(
                "leadership-lost",
                f"{leader.agent_id[:8]} led, was asked, fell silent; it may have happened",
            )
        return asked.result()
    finally:
        asked.cancel()
        await asyncio.wait({asked})


def arrow_stream(topic: Topic, chunk: Chunk) -> bytes:
    """A chunk as a complete Arrow stream of the topic's schema."""
    messages = chunk.messages
    if chunk.columns is not None:
        messages = [message_of(chunk)]
    parts: list[bytes | memoryview] = [schema_message(topic.schema)]
    for message in messages:
        parts += encapsulated(message)
    parts.append(END_OF_STREAM)
    return b"".join(parts)


def message_of(chunk: Chunk) -> Message:
    """Columns as one Arrow message; records without a time get this agent's."""
    assert chunk.columns is not None
    return message_from_batch(columns_to_batch(chunk.columns, time.time_ns() // 1000))


def _outcome(reply: Reply, partition: int) -> Outcome:
    document = reply.document()
    appended = document.get("appended")
    if reply.status == 202 or (isinstance(appended, list) and not appended):
        return Outcome(-1, _number(document, "count"), False)
    if not isinstance(appended, list) or not isinstance(appended[0], dict):
        raise ShoalError("leadership-lost", "the leader's answer does not say where the records went")
    entry = appended[0]
    if entry.get("partition") != partition:
        raise ShoalError("leadership-lost", "the leader's answer is about another partition")
    return Outcome(
        _number(entry, "base_offset"), _number(document, "count"), document.get("duplicate") is True
    )


def _number(document: dict[str, Any], name: str) -> int:
    value = document.get(name)
    if type(value) is not int or value < 0:
        raise ShoalError("leadership-lost", f"the leader's answer has no {name}")
    return value
