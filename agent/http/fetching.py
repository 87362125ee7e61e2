"""Committed records of one partition as rows, wherever it is led: from the log here, or from the leader.

For answers that are made here out of several fetches (streams, merged reads). It follows the leader while
that moves; what is fetched is held by the caller, who accounts for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol, TypeVar
from urllib.parse import quote

import pyarrow as pa

from shoal.agent.http.context import Call, Deadline
from shoal.agent.http.decode import ARROW_TYPE
from shoal.agent.http.deliver import MOVING_CODES, PASSING_CODES, RETRY_PAUSE_SECONDS, while_it_leads
from shoal.agent.http.forward import Reply, forward_target
from shoal.agent.http.interface import Fetch, Leader, Topic
from shoal.agent.http.merging import Rows
from shoal.batch import MAX_FRAME_BYTES, decode_stream, parse_stamp, to_record_batch
from shoal.errors import ShoalError

T_co = TypeVar("T_co", covariant=True)
# What a reader that goes on and on rides out: leadership on its way, its host dying, too much at once.
RETRIED_CODES = PASSING_CODES | {"timeout", "leadership-lost", "overloaded"}
# Between two looks whether another leads by now: within an election's time, and cheap for who waits long.
LOOK_SECONDS = 0.25
# Beside the batches of an answer: the schema, and frames without rows.
STREAM_OVERHEAD_BYTES = 1 << 20


class Found(NamedTuple):
    """Rows from the wanted offset on; none when there is nothing new."""

    rows: list[Rows]
    next_offset: int
    high_watermark: int
    log_start_offset: int
    size_bytes: int


class Wanted(NamedTuple):
    """What to fetch. `local`: from this agent's own replica, if it can answer."""

    partition: int
    offset: int
    max_bytes: int
    wait_ms: int = 0
    local: bool = False


def records_path(topic: Topic, partition: int) -> str:
    """The route of a partition's records."""
    return f"/v1/topics/{quote(topic.name, safe='')}/partitions/{partition}/records"


async def fetch_rows(call: Call, topic: Topic, wanted: Wanted, timeout_ms: int) -> Found:
    """ShoalError as reads raise it; no-leader when none is found in time."""

    async def here(*, as_leader: bool) -> Found:
        local = wanted.local and not as_leader
        return await _fetch_here(call, topic, wanted, local=local)

    async def there(leader: Leader) -> Found:
        return await _fetch_there(call, topic, wanted, leader, timeout_ms)

    return await where_led(call, topic, wanted.partition, here, there, timeout_ms)


class Here(Protocol[T_co]):
    """What to ask of the broker here. `as_leader`: this agent is known to lead."""

    async def __call__(self, *, as_leader: bool) -> T_co: ...


async def where_led(
    call: Call,
    topic: Topic,
    partition: int,
    here: Here[T_co],
    there: Callable[[Leader], Awaitable[T_co]],
    timeout_ms: int,
) -> T_co:
    """The answer of this agent, or of the partition's leader, followed while it moves."""
    try:
        return await here(as_leader=False)
    except ShoalError as error:
        if error.code not in MOVING_CODES or not call.may_forward():
            raise
    deadline = Deadline(timeout_ms)
    while True:
        leader = await call.context.broker.wait_leader(topic, partition, deadline.remaining_ms())
        try:
            return await here(as_leader=True) if leader.local else await there(leader)
        except ShoalError as error:
            if error.code not in (MOVING_CODES if leader.local else PASSING_CODES):
                raise
            if not await deadline.pause(RETRY_PAUSE_SECONDS):
                raise


async def _fetch_here(call: Call, topic: Topic, wanted: Wanted, *, local: bool) -> Found:
    fetch = await call.context.broker.read(
        topic,
        wanted.partition,
        wanted.offset,
        max_bytes=wanted.max_bytes,
        wait_ms=wanted.wait_ms,
        local=local,
    )
    return found_in(fetch, wanted.offset)


def found_in(fetch: Fetch, offset: int) -> Found:
    """The rows of stored frames."""
    rows = []
    for frame in fetch.frames:
        stamp, _ = parse_stamp(frame, 0)
        if stamp.record_count and stamp.base_offset + stamp.record_count > offset:
            rows.append(_from(offset, stamp.base_offset, to_record_batch(bytes(frame), fetch.schema)))
    following = max(offset, fetch.next_offset)
    size_bytes = sum(map(len, fetch.frames))
    return Found(rows, following, fetch.high_watermark, fetch.log_start_offset, size_bytes)


def _from(offset: int, base_offset: int, batch: pa.RecordBatch) -> Rows:
    first = max(0, offset - base_offset)
    return Rows(base_offset + first, batch.slice(first) if first else batch)


async def _fetch_there(call: Call, topic: Topic, wanted: Wanted, leader: Leader, timeout_ms: int) -> Found:
    query = {
        "offset": str(wanted.offset),
        "max_bytes": str(wanted.max_bytes),
        "wait": f"{wanted.wait_ms}ms",
    }
    exchange = call.context.forwarder.exchange(
        leader.url,
        "GET",
        forward_target(records_path(topic, wanted.partition), query, timeout_ms),
        headers={"Accept": ARROW_TYPE},
        body=None,
        timeout_ms=timeout_ms + wanted.wait_ms,
        waits=True,
        reply_bytes=max(wanted.max_bytes, MAX_FRAME_BYTES) + STREAM_OVERHEAD_BYTES,
    )
    reply = await while_it_leads(call.context, leader, topic, wanted.partition, exchange, LOOK_SECONDS)
    return found_in_reply(reply, wanted.offset)


def found_in_reply(reply: Reply, offset: int) -> Found:
    """The rows of another agent's Arrow answer, checked against the offsets that it claims. ShoalError
    leadership-lost when the two do not fit."""
    try:
        place, following, high_watermark, log_start = (
            int(reply.headers[f"Shoal-{name}"])
            for name in ("Base-Offset", "Next-Offset", "High-Watermark", "Log-Start-Offset")
        )
        _, batches = decode_stream(reply.body)
    except (KeyError, ValueError) as error:  # BatchError is a ValueError
        raise ShoalError("leadership-lost", f"the leader's answer is not understood: {error}") from None
    if place + sum(batch.num_rows for batch in batches) != following:
        raise ShoalError("leadership-lost", "the leader's answer has not the records that it claims")
    rows = []
    for batch in batches:
        if batch.num_rows and place + batch.num_rows > offset:
            rows.append(_from(offset, place, batch))
        place += batch.num_rows
    return Found(rows, max(offset, following), high_watermark, log_start, len(reply.body))
