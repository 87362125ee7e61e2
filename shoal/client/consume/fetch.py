"""One fetch of one partition, and the offsets where a topic begins and ends.

Law of this file: it fetches from leaders or replicas, cuts a batch to the offsets that were asked for, and
never decodes a record. Offsets are dense, so a row's offset is its batch's first one plus its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import pyarrow as pa

from shoal.client.http.requests import Answer, Call, Cluster, topic_path
from shoal.errors import ShoalError
from shoal.format.arrow_stream import ARROW_STREAM
from shoal.format.batch import decode_stream

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

    def first(self, rows: int) -> Fetched:
        """At most so many of its first rows."""
        if self.batch.num_rows <= rows:
            return self
        return self._replace(batch=self.batch.slice(0, rows), next_offset=self.base_offset + rows)


async def offsets(cluster: Cluster, topic: str, at: str | None = None) -> list[PartitionOffsets]:
    """The offsets of every partition, and those of the first record at or after the time `at`. Raises
    ShoalError.
    """
    params = {} if at is None else {"at": at}
    call = Call("GET", f"{topic_path(topic)}/offsets", params)
    document = (await cluster.anywhere(call, retry=True)).document()
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


class FetchedBatches(NamedTuple):
    """The stored batches of one fetch, perhaps none; rows before the wanted offset are cut off."""

    schema: pa.Schema
    pieces: list[Fetched]
    next_offset: int
    high_watermark: int

    def joined(self, partition: int, offset: int) -> Fetched:
        """All of them as one, perhaps empty, of this partition and offset."""
        if self.pieces:
            return _joined(self.pieces)
        empty = pa.RecordBatch.from_pylist([], schema=self.schema)
        return Fetched(partition, offset, empty, self.next_offset, self.high_watermark)


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
    """Whole batches from `offset` on, rows before it cut off; none when none came within `wait_ms`. They are
    not copied, but many small ones become one. Raises ShoalError (trimmed, beyond-end, unknown-topic, ...)
    and Unreachable.

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
        answer = await cluster.at_leader(topic, partition, call, DEPOSED_GRACE_MS)
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
