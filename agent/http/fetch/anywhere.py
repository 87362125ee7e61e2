"""Committed records of one partition as rows, wherever it is led: from the log here, or from the leader.

For answers that are made here out of several fetches (streams, merged reads). It follows the leader while
that moves; what is found is held for the caller, who lets go of it.
"""

from __future__ import annotations

from typing import NamedTuple

from shoal.agent.http.admission.answer_room import AnswerReservation
from shoal.agent.http.api.media import ARROW_TYPE
from shoal.agent.http.core.context import Call, Deadline
from shoal.agent.http.core.forward import Reply, topic_path
from shoal.agent.http.core.leader import (
    PASSING_CODES,
    at_leader,
    partition_of,
    while_it_leads,
)
from shoal.agent.http.rows.row_pieces import Rows
from shoal.agent.http.rows.selection import Portion, Received, frames_in
from shoal.agent.interface import Admit, Fetch, FetchRequest, Leader, Topic
from shoal.errors import ShoalError
from shoal.format.batch import END_OF_STREAM, MAX_FRAME_BYTES, BatchError, Offset, parse_stamp

# Errors that a continuous reader waits out: leadership on its way, a dying host, overload.
RETRIED_CODES = PASSING_CODES | {"timeout", "leadership-lost", "overloaded"}
# Between two looks whether another leads by now: within an election's time, and cheap for who waits long.
LOOK_SECONDS = 0.25
# Beside the batches of an answer: the schema, and frames without rows.
STREAM_OVERHEAD_BYTES = 1 << 20


class FoundRows(NamedTuple):
    """Rows from the wanted offset on; none when there is nothing new."""

    rows: list[Rows]
    next_offset: int
    high_watermark: int
    log_start_offset: int
    size_bytes: int


class WantedRows(NamedTuple):
    """Rows to fetch: as many as fit `max_bytes` of memory, at least one, at most `limit`. `local`: from this
    agent's own replica, if it can answer. `times_only`: of all columns the timestamps."""

    partition: int
    offset: int
    max_bytes: int
    limit: int | None = None
    wait_ms: int = 0
    local: bool = False
    times_only: bool = False

    @property
    def portion(self) -> Portion:
        """Which rows."""
        return Portion(self.offset, self.max_bytes, self.limit, self.times_only)


async def fetch_rows(
    call: Call, topic: Topic, wanted: WantedRows, holding: AnswerReservation, timeout_ms: int
) -> FoundRows:
    """Rows that are held. ShoalError as reads raise it; no-leader when none is found in time."""

    async def first() -> FoundRows:
        return await _fetch_here(call, topic, wanted, holding, timeout_ms)

    async def here() -> FoundRows:
        return await _fetch_here(call, topic, wanted._replace(local=False), holding, timeout_ms)

    async def there(leader: Leader) -> FoundRows:
        return await _fetch_there(call, topic, wanted, leader, holding, timeout_ms)

    led = partition_of(call, topic, wanted.partition)
    return await at_leader(call, led, here, there, Deadline(timeout_ms), first=first, reads=True)


async def read_here(call: Call, topic: Topic, wanted: WantedRows, admit: Admit) -> Fetch:
    """From this agent's log; ShoalError not-leader when it may not."""
    offset, most, limit = Offset(wanted.offset), wanted.max_bytes, wanted.limit
    request = FetchRequest(offset, most, wanted.wait_ms, wanted.local, limit, admit)
    return await call.context.broker.read(topic, wanted.partition, request)


async def _fetch_here(
    call: Call, topic: Topic, wanted: WantedRows, holding: AnswerReservation, timeout_ms: int
) -> FoundRows:
    fetch, selected = await call.context.selector.fetch_and_select(
        lambda admit: read_here(call, topic, wanted, admit), wanted.portion, holding, timeout_ms
    )
    return FoundRows(
        selected.rows, selected.next_offset, fetch.high_watermark, fetch.log_start_offset, selected.size_bytes
    )


async def _fetch_there(
    call: Call, topic: Topic, wanted: WantedRows, leader: Leader, holding: AnswerReservation, timeout_ms: int
) -> FoundRows:
    query = {
        "offset": str(wanted.offset),
        "max_bytes": str(wanted.max_bytes),
        "wait": f"{wanted.wait_ms}ms",
    }
    if wanted.limit is not None:
        query["limit"] = str(wanted.limit)
    received = call.holding()
    exchange = call.context.forwarder.exchange(
        leader.url,
        "GET",
        topic_path(topic.name, "partitions", wanted.partition, "records"),
        passed_on=call.asker.passed_on,
        timeout_ms=timeout_ms,
        query=query,
        headers={"Accept": ARROW_TYPE},
        wait_ms=wanted.wait_ms,
        reply_bytes=max(wanted.max_bytes, MAX_FRAME_BYTES) + STREAM_OVERHEAD_BYTES,
        admit=received.await_room,
    )
    try:
        reply = await while_it_leads(call.context, leader, topic, wanted.partition, exchange, LOOK_SECONDS)
        there = frames_of_reply(reply)
        frames = Received(there.frames, topic.schema, there.next_offset, received.release)
        selected = await call.context.selector.select(frames, wanted.portion, holding, timeout_ms)
    except BatchError as error:
        raise ShoalError("leadership-lost", f"the leader's answer is not understood: {error}") from None
    finally:
        received.release()
    return FoundRows(
        selected.rows,
        selected.next_offset,
        there.high_watermark,
        there.log_start_offset,
        selected.size_bytes,
    )


class RemoteAnswer(NamedTuple):
    """Another agent's Arrow answer."""

    frames: list[memoryview]
    next_offset: int
    high_watermark: int
    log_start_offset: int


def frames_of_reply(reply: Reply) -> RemoteAnswer:
    """The stored frames of another agent's Arrow answer, checked against the offsets that it claims.
    ShoalError leadership-lost when the two do not fit; raises BatchError."""
    try:
        place, following, high_watermark, log_start = (
            int(reply.headers[f"Shoal-{name}"])
            for name in ("Base-Offset", "Next-Offset", "High-Watermark", "Log-Start-Offset")
        )
    except (KeyError, ValueError) as error:
        raise ShoalError("leadership-lost", f"the leader's answer is not understood: {error!r}") from None
    body = memoryview(reply.body)
    schema_bytes = 8 + int.from_bytes(body[4:8], "little")
    if body[-len(END_OF_STREAM) :] != END_OF_STREAM or schema_bytes > len(body) - len(END_OF_STREAM):
        raise BatchError("short", "the answer is no whole Arrow stream")
    frames = []
    for frame in frames_in(body[schema_bytes : -len(END_OF_STREAM)]):
        stamp, _ = parse_stamp(frame, 0)
        if stamp.record_count and stamp.base_offset != place:
            raise ShoalError("leadership-lost", "the leader's answer has not the records that it claims")
        place += stamp.record_count
        frames.append(frame)
    if place != following:
        raise ShoalError("leadership-lost", "the leader's answer has not the records that it claims")
    return RemoteAnswer(frames, following, high_watermark, log_start)
