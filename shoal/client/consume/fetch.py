"""Reading: one fetch, and the iterator over one or all partitions.

Law of this file: it fetches from leaders, cuts a batch to the offsets that were asked for, and never
decodes a record. Offsets are dense, so a row's offset is its batch's first one plus its place.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from shoal.client.http.requests import Answer, Call, Cluster, topic_path
from shoal.errors import ShoalError
from shoal.format.arrow_stream import ARROW_STREAM
from shoal.format.batch import decode_stream

# Fetches that were decoded and not yet taken, over all partitions of one consumer: with fetches of 1 to 64
# MiB this bounds memory, and it is enough to fetch while the user works.
CHUNKS_AHEAD_MAX = 4
# Stored batches smaller than this on average are joined: their fixed costs would be the reader's.
SMALL_BATCH_BYTES = 32 << 10
# How long a fetch at the end of the log may be held.
FOLLOW_WAIT_MS = 5_000
# How often, while a fetch is held or unanswered, other agents are asked who leads the partition by now: a
# leader that was replaced without its connection breaking holds a reader up no longer.
DEPOSED_GRACE_MS = 1_000


class PartitionOffsets(NamedTuple):
    """The valid range: log_start_offset <= offset <= high_watermark; `at` answers a question about a time."""

    partition: int
    log_start_offset: int
    high_watermark: int
    at: int | None = None


class Fetched(NamedTuple):
    """Rows of one partition, perhaps none; the first has offset `base_offset`, reading goes on at
    `next_offset`.
    """

    partition: int
    base_offset: int
    batch: pa.RecordBatch
    next_offset: int
    high_watermark: int


@dataclass(frozen=True, slots=True)
class Span:
    """What is to be read of a partition: [first, end), without an end when `end` is None."""

    partition: int
    first: int
    end: int | None


async def offsets(cluster: Cluster, topic: str, at: str | None = None) -> list[PartitionOffsets]:
    """The offsets of every partition, and those of the first record at or after the time `at`. Raises
    ShoalError.
    """
    params = {} if at is None else {"at": at}
    call = Call("GET", f"{topic_path(topic)}/offsets", params)
    document = (await cluster.anywhere(call, retry_ms=cluster.config.retry.total_ms)).document()
    try:
        found = [
            PartitionOffsets(
                entry["partition"],
                entry["log_start_offset"],
                entry["high_watermark"],
                entry["offset"] if at is not None else None,
            )
            for entry in document["partitions"]
        ]
    except (KeyError, TypeError) as error:
        raise ShoalError("internal", f"the offsets of {topic} lack {error}") from error
    return sorted(found)


def first_offset(start: str, known: PartitionOffsets) -> int:
    """The offset that `start` (earliest, latest, -N, @TIME or N) means in a partition. Raises ShoalError
    bad-request.
    """
    if start == "earliest":
        return known.log_start_offset
    if start == "latest":
        return known.high_watermark
    if start.startswith("@"):
        assert known.at is not None, "offsets were asked for without the time"
        return known.at
    try:
        number = int(start)
    except ValueError as error:
        detail = f"{start!r} is no start: use earliest, latest, -N, @TIME or an offset"
        raise ShoalError("bad-request", detail) from error
    return number if number >= 0 else max(known.log_start_offset, known.high_watermark + number)


async def plan(
    cluster: Cluster, topic: str, start: str, partition: int | None, *, follow: bool
) -> list[Span]:
    """What to read, in the order of the partitions. A bounded read ends at the high watermark of this
    moment.
    """
    at = start[1:] if start.startswith("@") else None
    known = await offsets(cluster, topic, at)
    if partition is not None:
        known = [entry for entry in known if entry.partition == partition]
        if not known:
            raise ShoalError("unknown-partition", f"{topic} has no partition {partition}")
    spans = []
    for entry in known:
        first = first_offset(start, entry)
        if first > entry.high_watermark:
            detail = f"{topic}/{entry.partition} ends at {entry.high_watermark}, before offset {first}"
            raise ShoalError("beyond-end", detail, high_watermark=entry.high_watermark)
        spans.append(Span(entry.partition, first, None if follow else entry.high_watermark))
    return spans


class FetchedBatches(NamedTuple):
    """What one fetch brought: the stored batches, rows before the wanted offset cut off, perhaps none."""

    schema: pa.Schema
    pieces: list[Fetched]
    next_offset: int
    high_watermark: int


async def fetch(
    cluster: Cluster, topic: str, partition: int, offset: int, *, max_bytes: int, wait_ms: int = 0
) -> Fetched:
    """Whole batches from `offset` on, rows before it cut off. Empty when nothing came within `wait_ms`.

    Raises ShoalError (trimmed, beyond-end, unknown-topic, ...) and Unreachable.
    """
    found = await fetch_batches(cluster, topic, partition, offset, max_bytes=max_bytes, wait_ms=wait_ms)
    if not found.pieces:
        empty = pa.RecordBatch.from_pylist([], schema=found.schema)
        return Fetched(partition, offset, empty, found.next_offset, found.high_watermark)
    return _joined(found.pieces)


async def fetch_batches(
    cluster: Cluster,
    topic: str,
    partition: int,
    offset: int,
    *,
    max_bytes: int,
    wait_ms: int = 0,
    nearest: bool = False,
    seen: int = 0,
    on_next: Callable[[int], None] | None = None,
) -> FetchedBatches:
    """As `fetch`, batch by batch: nothing is copied, but that many small ones become one.

    `nearest`: a replica that answers sooner than the leader may answer; `seen` is the high watermark that
    this reader knows, below which no replica's answer may fall back. `on_next` hears where the next fetch
    begins before this one's body has come.
    """
    call = Call(
        "GET",
        f"{topic_path(topic)}/partitions/{partition}/records",
        {"offset": str(offset), "max_bytes": str(max_bytes), "wait": f"{wait_ms}ms"},
        {"Accept": ARROW_STREAM},
        wait_ms=wait_ms,
        bulk=True,
        on_head=None if on_next is None else lambda headers: _tell_next(headers, on_next),
    )
    answer = None
    if nearest:
        local = call._replace(
            params={**call.params, "consistency": "local"},
            headers={**call.headers, "Shoal-High-Watermark": str(seen)},
        )
        answer = await cluster.at_replica(topic, partition, local)
    if answer is None:
        retry_ms = cluster.config.retry.total_ms + wait_ms
        answer = await cluster.at_leader(
            topic, partition, call, retry_ms=retry_ms, deposed_grace_ms=DEPOSED_GRACE_MS
        )
    return _decoded(answer, partition, offset)


def _tell_next(headers: Mapping[str, str], on_next: Callable[[int], None]) -> None:
    next_offset = headers.get("Shoal-Next-Offset", "")
    if next_offset.isdecimal():
        on_next(int(next_offset))


def _decoded(answer: Answer, partition: int, offset: int) -> FetchedBatches:
    try:
        base_offset = int(answer.headers["Shoal-Base-Offset"])
        next_offset = int(answer.headers["Shoal-Next-Offset"])
        high_watermark = int(answer.headers["Shoal-High-Watermark"])
        schema, batches = decode_stream(answer.body)
    except (KeyError, ValueError) as error:  # BatchError is a ValueError
        raise ShoalError("internal", f"the agent's answer to a read is damaged: {error!r}") from error
    pieces = []
    for batch in batches:
        first, base_offset = base_offset, base_offset + batch.num_rows
        if base_offset <= offset or batch.num_rows == 0:
            continue
        skipped = max(offset - first, 0)
        rows = batch.slice(skipped) if skipped else batch
        pieces.append(Fetched(partition, first + skipped, rows, base_offset, high_watermark))
    if len(pieces) > 1 and len(answer.body) < SMALL_BATCH_BYTES * len(pieces):
        pieces = [_joined(pieces)]
    if pieces:
        pieces[-1] = pieces[-1]._replace(next_offset=max(offset, next_offset))
    return FetchedBatches(schema, pieces, max(offset, next_offset), high_watermark)


def _joined(pieces: list[Fetched]) -> Fetched:
    if len(pieces) == 1:
        return pieces[0]
    batch = pa.concat_batches([piece.batch for piece in pieces])
    return pieces[0]._replace(batch=batch, next_offset=pieces[-1].next_offset)


async def read_span(cluster: Cluster, topic: str, span: Span, max_bytes: int) -> AsyncGenerator[Fetched]:
    """The rows of a span, in order, each exactly once, whoever leads. Ends at the span's end, if it has
    one.
    """
    offset = span.first
    while span.end is None or offset < span.end:
        wait_ms = FOLLOW_WAIT_MS if span.end is None else 0
        found = await fetch(cluster, topic, span.partition, offset, max_bytes=max_bytes, wait_ms=wait_ms)
        offset = found.next_offset
        if span.end is not None and found.base_offset + found.batch.num_rows > span.end:
            found = found._replace(batch=found.batch.slice(0, span.end - found.base_offset))
        if found.batch.num_rows:
            yield found


async def read_in_turn(
    cluster: Cluster, topic: str, spans: Sequence[Span], max_bytes: int
) -> AsyncGenerator[Fetched]:
    """One partition after the other: the same records in the same order each time."""
    for span in spans:
        async for found in read_span(cluster, topic, span, max_bytes):
            yield found


async def read_together(
    cluster: Cluster, topic: str, spans: Sequence[Span], max_bytes: int
) -> AsyncGenerator[Fetched]:
    """All partitions at once, each in its own order, whichever has news first. For following."""
    queue: asyncio.Queue[Fetched | BaseException] = asyncio.Queue(CHUNKS_AHEAD_MAX)

    async def pull(span: Span) -> None:
        try:
            async for found in read_span(cluster, topic, span, max_bytes):
                await queue.put(found)
        except Exception as error:  # noqa: BLE001 - whatever it is, the reader raises it
            await queue.put(error)

    tasks = [asyncio.create_task(pull(span)) for span in spans]
    try:
        while True:
            found = await queue.get()
            if isinstance(found, BaseException):
                raise found
            yield found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def limited(found: Fetched, rows_left: int) -> Fetched:
    """At most `rows_left` rows of it."""
    if found.batch.num_rows <= rows_left:
        return found
    return found._replace(batch=found.batch.slice(0, rows_left), next_offset=found.base_offset + rows_left)
