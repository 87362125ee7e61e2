"""One append of one partition, wherever its leader is: here, or one hop away, until the timeout.

Only definite refusals (not-leader, no-leader) are tried again; an indefinite answer is passed to the
client, who alone knows whether a repetition is harmless.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from shoal.agent.http.api.media import ARROW_TYPE
from shoal.agent.http.core.context import Call, Deadline
from shoal.agent.http.core.forward import Reply, topic_path
from shoal.agent.http.core.leader import at_leader, partition_of, while_it_leads
from shoal.agent.http.produce.decode import Chunk, batch_problem, encapsulated
from shoal.agent.interface import Acks, Appended, Leader, Submission, Topic
from shoal.errors import ShoalError
from shoal.format.batch import (
    END_OF_STREAM,
    BatchError,
    Offset,
    ProducerStamp,
    message_from_batch,
    schema_message,
)
from shoal.format.records import columns_to_batch

PRODUCER_HEADERS = (
    "Shoal-Producer-Id",
    "Shoal-Producer-Epoch",
    "Shoal-Producer-Sequence",
    "Shoal-Producer-Order",
)
# Between agents only: the request came by the key-routed route, although it goes on to a partition's.
KEY_ROUTED = "Shoal-Key-Routed"


class Options(NamedTuple):
    """A produce request's options."""

    acks: Acks
    timeout_ms: int
    producer: ProducerStamp | None
    consecutive: bool = True
    """False on the key-routed route: one producer's sequences are spread over the partitions, so that in each
    of them they need only increase (safety 19)."""


def submission_of(chunk: Chunk, options: Options) -> Submission:
    """A chunk for one partition, with what the request asks."""
    return Submission.of(
        chunk.messages if chunk.columns is None else chunk.columns,
        timeout_ms=options.timeout_ms,
        producer=options.producer,
        consecutive=options.consecutive,
        acks=options.acks,
    )


async def deliver(call: Call, topic: Topic, partition: int, chunk: Chunk, options: Options) -> Appended:
    """Append here or forward. ShoalError as the broker's, no-leader when none was found in time."""
    deadline = Deadline(options.timeout_ms)
    submission = submission_of(chunk, options)

    async def here() -> Appended:
        timely = submission._replace(timeout_ms=deadline.remaining_ms())
        began_ns = time.monotonic_ns()
        try:
            appended = await call.context.broker.append(topic, partition, timely)
        except BatchError as error:
            raise batch_problem(error) from None
        if options.acks != "none":  # nothing is acknowledged then
            call.context.measures.append.observe(time.monotonic_ns() - began_ns)
        return appended

    async def there(leader: Leader) -> Appended:
        return await _deliver_to(call, leader, topic, partition, chunk, options, deadline)

    return await at_leader(call, partition_of(call, topic, partition), here, there, deadline)


async def _deliver_to(
    call: Call,
    leader: Leader,
    topic: Topic,
    partition: int,
    chunk: Chunk,
    options: Options,
    deadline: Deadline,
) -> Appended:
    headers = {name: call.headers[name] for name in PRODUCER_HEADERS if name in call.headers}
    if options.producer is not None and not options.consecutive:
        headers[KEY_ROUTED] = "true"
    query: dict[str, str] = {"acks": options.acks}
    if chunk.body is not None:  # the same bytes again, so that the leader gathers them with others' records
        if "Content-Type" in call.headers:
            headers["Content-Type"] = call.headers["Content-Type"]
        query |= {name: call.query[name] for name in ("key", "key_field") if name in call.query}
        body = chunk.body
    else:
        headers["Content-Type"] = ARROW_TYPE
        body = arrow_stream(topic, chunk)
    exchange = call.context.forwarder.exchange(
        leader.url,
        "POST",
        topic_path(topic.name, "partitions", partition, "records"),
        passed_on=call.asker.passed_on,
        timeout_ms=deadline.remaining_ms(),
        query=query,
        headers=headers,
        body=body,
    )
    return outcome_in(await while_it_leads(call.context, leader, topic, partition, exchange), partition)


def arrow_stream(topic: Topic, chunk: Chunk) -> bytes:
    """A chunk as a complete Arrow stream of the topic's schema."""
    messages = chunk.messages
    if chunk.columns is not None:  # records without a time get this agent's
        messages = [message_from_batch(columns_to_batch(chunk.columns, time.time_ns() // 1000, topic.schema))]
    parts: list[bytes | memoryview] = [schema_message(topic.schema)]
    for message in messages:
        parts += encapsulated(message)
    parts.append(END_OF_STREAM)
    return b"".join(parts)


def outcome_in(reply: Reply, partition: int) -> Appended:
    """The outcome in a leader's answer, of that partition. ShoalError leadership-lost: none is legible."""
    document = reply.document()
    appended = document.get("appended")
    if reply.status == 202 or (isinstance(appended, list) and not appended):
        return Appended(Offset(-1), _number(document, "count"), False)
    if not isinstance(appended, list) or not isinstance(appended[0], dict):
        raise ShoalError("leadership-lost", "the leader's answer does not say where the records went")
    entry = appended[0]
    if entry.get("partition") != partition:
        raise ShoalError("leadership-lost", "the leader's answer is about another partition")
    return Appended(
        Offset(_number(entry, "base_offset")), _number(document, "count"), document.get("duplicate") is True
    )


def _number(document: dict[str, Any], name: str) -> int:
    value = document.get(name)
    if type(value) is not int or value < 0:
        raise ShoalError("leadership-lost", f"the leader's answer has no {name}")
    return value
