"""Bodies of produce requests, as chunks of records that fit in memory: JSON, NDJSON, raw bytes, Arrow
streams.

A chunk is what is appended at once; the first malformed record fails the request before anything of its
chunk is stored. Decoding itself is shoal.format.records' and shoal.format.batch's work.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from shoal.agent.http.admission.body_rate import BodyReservation
from shoal.agent.http.admission.limits import MIB
from shoal.agent.http.api.media import JSON_TYPE, NDJSON_TYPE
from shoal.agent.http.core.body import prepare_body, stream_body
from shoal.agent.http.core.context import Call
from shoal.agent.http.core.parameters import Query, invalid
from shoal.errors import ErrorCode, ShoalError
from shoal.format.arrow_stream import CONTINUATION
from shoal.format.batch import MAX_BODY_BYTES, MAX_RECORD_BYTES, BatchError, Message, StreamDecoder
from shoal.format.records import RecordColumns, parse_json, parse_ndjson, parse_raw
from shoal.format.timestamps import parse_duration_ms, parse_time

# Arrow batches of a request are appended together until they reach this: small requests are checked whole
# before anything is stored, large ones flow.
ARROW_CHUNK_BYTES = MIB
# Records of a JSON body that are appended together: with their 8 MiB at most they stay below a batch's 16
# MiB.
CHUNK_RECORDS_MAX = 131_072
_BATCH_ERROR_CODES: Mapping[str, ErrorCode] = {
    "schema": "schema-mismatch",
    "limit": "too-large",
    "unsupported": "unsupported-media-type",
}


class Chunk(NamedTuple):
    """Records to append at once: either columns, or Arrow messages of the topic's schema."""

    records: int
    columns: RecordColumns | None
    messages: Sequence[Message]
    body: bytes | None = None  # the request's whole body, if the chunk is all of it


def decode_stream(
    call: Call, media: str, schema: pa.Schema, receiving: BodyReservation, *, at_once: bool
) -> AsyncIterator[Chunk]:
    """The body of a type that streams. `at_once`: as one chunk, as long as it may be one batch."""
    if media == NDJSON_TYPE:
        limits = call.context.limits
        chunk_bytes = limits.body_bytes if at_once else limits.chunk_bytes
        return decode_ndjson(call, receiving, chunk_bytes, keeps=at_once)
    chunk_bytes = MAX_BODY_BYTES if at_once else ARROW_CHUNK_BYTES
    return decode_arrow(call, schema, receiving, chunk_bytes, keeps=at_once)


def decode_whole(query: Query, media: str, content_type: str | None, body: bytes, now_us: int) -> Chunk:
    """A JSON or raw body. Delays count from now. ShoalError as shoal.format.records raises."""
    if not body:
        raise empty_body()
    if "key_field" in query:
        raise ShoalError(
            "bad-request", f"key_field belongs to {NDJSON_TYPE} bodies", invalid_params=["key_field"]
        )
    if media == JSON_TYPE:
        if "key" in query:
            raise _key_not_here("each record of a JSON body carries its own")
        _refuse_due_time(query, "each record of a JSON body says when it is due")
        columns = parse_json(body, now_us)
    else:
        key = query.get("key")
        columns = parse_raw(body, content_type, None if key is None else key.encode("utf-8"))
        columns.deliver_at_us = due_times_of(query, 1, now_us)
    return whole_chunk(columns, body)


def whole_chunk(columns: RecordColumns, body: bytes) -> Chunk:
    """All of a body. Its bytes are not sent on where they may say when records are due: a delay would count
    anew."""
    return Chunk(len(columns), columns, (), body if columns.deliver_at_us is None else None)


def due_times_of(query: Query, records: int, now_us: int) -> list[int | None] | None:
    """`deliver_at` or `delay`, for each of the records; None where the query says neither."""
    if "delay" in query and "deliver_at" in query:
        raise ShoalError(
            "bad-request", "deliver_at or delay, not both", invalid_params=["deliver_at", "delay"]
        )
    for name, parse in (("deliver_at", parse_time), ("delay", parse_duration_ms)):
        if (text := query.get(name)) is not None:
            try:
                number = parse(text)
            except ShoalError as error:
                raise invalid(name, text, error.detail) from None
            return [number if name == "deliver_at" else now_us + 1_000 * number] * records
    return None


def _refuse_due_time(query: Query, why: str) -> None:
    named = [name for name in ("deliver_at", "delay") if name in query]
    if named:
        raise ShoalError(
            "bad-request", f"{named[0]} belongs to bodies of text or values: {why}", invalid_params=named
        )


def cut(chunk: Chunk) -> list[Chunk]:
    """A chunk of columns in parts of at most CHUNK_RECORDS_MAX records."""
    columns = chunk.columns
    if columns is None or chunk.records <= CHUNK_RECORDS_MAX:
        return [chunk]
    parts = []
    for start in range(0, chunk.records, CHUNK_RECORDS_MAX):
        rows = range(start, min(chunk.records, start + CHUNK_RECORDS_MAX))
        parts.append(Chunk(len(rows), columns.take(rows), []))
    return parts


def empty_body() -> ShoalError:
    """400 for the request that curl makes of a missing file."""
    return ShoalError(
        "bad-request", 'the body is empty; an empty value is written {"records":[{"value":""}]}'
    )


def _key_not_here(why: str) -> ShoalError:
    return ShoalError(
        "bad-request", f"key belongs to a body that is one value: {why}", invalid_params=["key"]
    )


async def decode_ndjson(
    call: Call, receiving: BodyReservation, chunk_bytes: int, *, keeps: bool
) -> AsyncIterator[Chunk]:
    """Lines in chunks of about `chunk_bytes`, each ending at a line's end. `keeps`: the caller
    still needs a chunk when it asks for the next one."""
    if "key" in call.query:
        raise _key_not_here("?key_field=NAME takes the key of a line from its JSON")
    prepare_body(call)
    key_field = call.query.get("key_field")
    now_us = time.time_ns() // 1_000
    pieces: list[bytes] = []
    first_record = 0
    anything = False
    async for piece in stream_body(call, receiving):
        anything = True
        size = receiving.size_bytes
        end = piece.rfind(b"\n") + 1
        if not end or size < chunk_bytes:
            if size > MAX_RECORD_BYTES + chunk_bytes:
                raise ShoalError(
                    "too-large",
                    f"record {first_record} or one soon after it is over {MAX_RECORD_BYTES} bytes",
                )
            pieces.append(piece)
            continue
        pieces.append(piece[:end])
        columns = parse_ndjson(b"".join(pieces), key_field, first_record)
        columns.deliver_at_us = due_times_of(call.query, len(columns), now_us)
        yield Chunk(len(columns), columns, [])
        first_record += len(columns)
        pieces = [piece[end:]]
        if not keeps:
            receiving.drop(size - (len(piece) - end))
    if not anything:
        raise empty_body()
    rest = b"".join(pieces)
    if rest:
        columns = parse_ndjson(rest, key_field, first_record)
        columns.deliver_at_us = due_times_of(call.query, len(columns), now_us)
        yield whole_chunk(columns, rest) if first_record == 0 else Chunk(len(columns), columns, [])


async def decode_arrow(
    call: Call, schema: pa.Schema, receiving: BodyReservation, chunk_bytes: int, *, keeps: bool
) -> AsyncIterator[Chunk]:
    """Record batches in chunks of about `chunk_bytes`, stored as they come. `keeps`: as for lines."""
    for name in ("key", "key_field"):
        if name in call.query:
            raise ShoalError("bad-request", f"{name}: Arrow records carry their keys", invalid_params=[name])
    _refuse_due_time(call.query, "Arrow records have a column deliver_at")
    prepare_body(call)
    decoder = StreamDecoder(schema)
    messages: list[Message] = []
    anything = False
    async for piece in stream_body(call, receiving):
        anything = True
        messages += feed(decoder, piece)
        if messages and receiving.size_bytes >= chunk_bytes:
            yield arrow_chunk(messages)
            messages = []
            if not keeps:
                receiving.drop(receiving.size_bytes)
    if not anything:
        raise empty_body()
    try:
        decoder.close()
    except BatchError as error:
        raise batch_problem(error) from None
    if messages:
        yield arrow_chunk(messages)


def decode_arrow_body(schema: pa.Schema, body: bytes) -> Chunk:
    """A whole Arrow stream as one chunk. ShoalError as `feed`."""
    decoder = StreamDecoder(schema)
    messages = feed(decoder, body)
    try:
        decoder.close()
    except BatchError as error:
        raise batch_problem(error) from None
    return arrow_chunk(messages)


def arrow_chunk(messages: list[Message]) -> Chunk:
    """A chunk of Arrow messages; empty batches are dropped, they hold nothing to store."""
    kept = [message for message in messages if message.record_count]
    return Chunk(sum(message.record_count for message in kept), None, kept)


def encapsulated(message: Message) -> tuple[bytes, bytes, bytes | memoryview]:
    """A message as it stands in a stream: prefix, metadata, body (Arrow columnar format, encapsulated
    messages).
    """
    return CONTINUATION + len(message.metadata).to_bytes(4, "little"), message.metadata, message.body


def feed(decoder: StreamDecoder, piece: bytes) -> list[Message]:
    """Bytes to messages; ShoalError for what an Arrow stream of this schema cannot be."""
    try:
        return decoder.feed(piece)
    except BatchError as error:
        raise batch_problem(error) from None


def batch_problem(error: BatchError) -> ShoalError:
    """A decoder's refusal as the client's mistake."""
    code = _BATCH_ERROR_CODES.get(error.reason, "bad-request")
    return ShoalError(code, f"Arrow stream: {error}")
