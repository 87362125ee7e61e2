"""POST /v1/topics/{topic}/records and .../partitions/{p}/records: options, chunks, deliveries, one answer.

decode.py makes chunks of the body, and split() deals a chunk to partitions. deliver.py appends each part
where it is led, and Production adds up the outcomes. A request is not atomic; its answer says what was
stored.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping
from typing import get_args

import pyarrow as pa
from aiohttp import web

from shoal.agent.http.admin.topics import create_topic_anywhere
from shoal.agent.http.admission.body_rate import BodyReservation
from shoal.agent.http.api import operations as api
from shoal.agent.http.api.media import STREAMED_TYPES
from shoal.agent.http.api.needs import TOPIC_CREATE
from shoal.agent.http.core.body import media_type, read_body
from shoal.agent.http.core.context import Call, Context, Deadline, partition_number
from shoal.agent.http.core.dispatch import Route
from shoal.agent.http.core.forward import FORWARDED_BY
from shoal.agent.http.core.parameters import Query, choice, is_number
from shoal.agent.http.core.problems import json_response
from shoal.agent.http.produce.decode import (
    CHUNK_RECORDS_MAX,
    Chunk,
    cut,
    decode_stream,
    decode_whole,
    encapsulated,
)
from shoal.agent.http.produce.deliver import (
    KEY_ROUTED,
    PRODUCER_HEADERS,
    Options,
    deliver,
)
from shoal.agent.http.produce.due_times import check_due_times
from shoal.agent.interface import Acks, Appended, Topic
from shoal.errors import JSON, ShoalError, shown
from shoal.format.batch import (
    DEFAULT_SCHEMA,
    ProducerStamp,
    message_from_batch,
    producer_id_from_text,
    to_record_batch,
)
from shoal.format.hash_ranges import key_hash
from shoal.format.partitioner import partition_batch, partition_columns

ACKS: tuple[Acks, ...] = get_args(Acks)
PRODUCER_ID_CHARACTERS_MAX = 128
# A longer body would hold the loop for milliseconds: it is decoded in a thread (safety 26).
DECODED_AT_ONCE_BYTES = 64 * 1024
# A stream between others' appends gets many offset ranges; the first this many are listed, the count is
# always exact.
REPORTED_RANGES_MAX = 1_024
PUT_DETAIL = "records are appended with POST; with curl say --data-binary @FILE rather than -T FILE"
# Fibonacci hashing: successive requests without a key fall far apart in the hash space, evenly over all
# ranges.
_SPREAD_STEP = 2_654_435_769
_spread = itertools.count()


async def produce(call: Call) -> web.StreamResponse:
    """Into the partition that the path names, or by key hash."""
    name = call.arguments[0]
    partition = partition_number(call.arguments[1]) if len(call.arguments) == 2 else None
    options = request_options(call.query, call.headers, call.timeout_ms(), to_partition=partition is not None)
    production = Production(call, options, name, find_topic(call, name), partition)
    media = media_type(call.headers.get("Content-Type"))
    gate = call.context.gate
    gate.check_place()
    with BodyReservation(gate) as receiving:
        if media in STREAMED_TYPES:
            # One sequence of a producer has to be one append a partition.
            at_once = options.producer is not None
            chunks = decode_stream(call, media, production.schema(), receiving, at_once=at_once)
            await production.stream(chunks)
        else:
            body = await read_body(call, call.context.limits.body_bytes, receiving)
            with gate.place():
                await production.append_in_parts(await _decoded(call, media, body))
    return production.answer()


async def _decoded(call: Call, media: str, body: bytes) -> Chunk:
    """JSON, and anything else that is one value."""
    content_type = call.headers.get("Content-Type")
    now_us = call.context.broker.now_us()
    if len(body) <= DECODED_AT_ONCE_BYTES:
        return decode_whole(call.query, media, content_type, body, now_us)
    return await asyncio.get_running_loop().run_in_executor(
        call.context.decoders, decode_whole, call.query, media, content_type, body, now_us
    )


ROUTES = (Route(api.PRODUCE, produce), Route(api.PRODUCE_TO_PARTITION, produce))
HINTS = dict.fromkeys((("PUT", api.PRODUCE.path), ("PUT", api.PRODUCE_TO_PARTITION.path)), PUT_DETAIL)


def request_options(
    query: Query, headers: Mapping[str, str], timeout_ms: int, *, to_partition: bool
) -> Options:
    """acks, timeout and producer of a request, whose headers are found in any case."""
    acks = choice(query, "acks", "all", ACKS)
    key_routed = not to_partition or (FORWARDED_BY in headers and KEY_ROUTED in headers)
    return Options(acks, timeout_ms, producer_stamp(headers), not key_routed)


def producer_stamp(headers: Mapping[str, str]) -> ProducerStamp | None:
    """The three producer headers, in any case: all of them, or none; the fourth goes with them or not."""
    texts = [headers.get(name) for name in PRODUCER_HEADERS[:3]]
    order = headers.get(PRODUCER_HEADERS[3])
    if texts == [None, None, None] and order is None:
        return None
    missing = [name for name, text in zip(PRODUCER_HEADERS[:3], texts, strict=True) if text is None]
    if missing:
        raise ShoalError("bad-request", f"{', '.join(missing)}: the three Shoal-Producer headers go together")
    name, epoch, sequence = (text or "" for text in texts)
    if not 1 <= len(name) <= PRODUCER_ID_CHARACTERS_MAX or not (name.isascii() and name.isprintable()):
        raise ShoalError(
            "bad-request", f"Shoal-Producer-Id {shown(name)}: 1 to 128 printable characters are wanted"
        )
    if order not in (None, "lanes"):
        raise ShoalError("bad-request", f"{PRODUCER_HEADERS[3]} {shown(order)}: only lanes is known")
    return ProducerStamp(
        producer_id_from_text(name),
        _header_number(PRODUCER_HEADERS[1], epoch, api.EPOCH_MAX),
        _header_number(PRODUCER_HEADERS[2], sequence, api.SEQUENCE_MAX),
        order is not None,
    )


def _header_number(name: str, text: str, high: int) -> int:
    if not is_number(text) or int(text) > high:
        raise ShoalError("bad-request", f"{name} {shown(text)}: a whole number from 0 to {high} is wanted")
    return int(text)


class Production:
    """The outcome of one produce request so far."""

    __slots__ = (
        "_call", "_count", "_created", "_duplicates", "_name", "_options", "_partition", "_ranges", "_topic",
        "_truncated",
    )  # fmt: skip

    def __init__(
        self, call: Call, options: Options, name: str, topic: Topic | None, partition: int | None
    ) -> None:
        self._call = call
        self._options = options
        self._name = name
        self._partition = partition
        self._topic = topic
        self._created = False
        self._count = 0
        self._ranges: list[list[int]] = []  # [partition, base offset, count]
        self._duplicates = 0
        self._truncated = False
        if self._topic is None and partition:
            raise ShoalError(
                "unknown-topic",
                f"there is no topic {shown(name)}; one made by producing has partition 0 only",
            )

    def schema(self) -> pa.Schema:
        """The schema of Arrow records; a topic that does not exist yet will have the default."""
        return DEFAULT_SCHEMA if self._topic is None else self._topic.schema

    async def stream(self, chunks: AsyncIterator[Chunk]) -> None:
        """Append chunk after chunk, with a place for each. With a producer the request is one sequence, so it
        must be one chunk."""
        held_back: Chunk | None = None
        try:
            async for chunk in chunks:
                self._check_due_times(chunk)
                if self._options.producer is None:
                    with self._call.context.gate.place():
                        await self.append(chunk)
                elif held_back is not None:
                    raise ShoalError(
                        "too-large",
                        "with Shoal-Producer headers the body is one sequence and has to be one chunk",
                    )
                else:
                    held_back = chunk
        except ShoalError as error:
            if "first_unprocessed_record" in error.extra:
                raise
            raise self._partial(error, self._count, []) from None
        if held_back is not None:
            with self._call.context.gate.place():
                await self.append(held_back)

    async def append_in_parts(self, chunk: Chunk) -> None:
        """Append a whole body, cut where it would make too large a batch."""
        if chunk.records > CHUNK_RECORDS_MAX and self._options.producer is not None:
            raise ShoalError(
                "too-large", f"with Shoal-Producer headers a body has at most {CHUNK_RECORDS_MAX} records"
            )
        self._check_due_times(chunk)
        for part in cut(chunk):
            await self.append(part)

    def _check_due_times(self, chunk: Chunk) -> None:
        check_due_times(self._topic, shown(self._name), chunk, self._call.context.broker.now_us())

    async def append(self, chunk: Chunk) -> None:
        """Append a chunk, dealt to its partitions; ShoalError that says what was stored if part of it
        failed.
        """
        if not chunk.records:
            return
        topic = self._topic
        if topic is None:  # created by this append (docs/http.md)
            self._call.asker.require(TOPIC_CREATE, self._name)
            deadline = Deadline(self._options.timeout_ms)
            self._created, _ = await create_topic_anywhere(self._call, self._name, None, deadline)
            if self._created:
                self._call.tell_change("createTopic", f"topic:{self._name}")
            topic = self._topic = await wait_topic(self._call.context, self._name, deadline)
        if self._partition is not None:
            parts = {self._partition: chunk}
        else:
            parts = split(topic, chunk, self._options.producer)
        if len(parts) == 1:
            partition, part = next(iter(parts.items()))
            await self._append_part(topic, partition, part)
        else:
            await self._append_parts(topic, parts)

    async def _append_part(self, topic: Topic, partition: int, chunk: Chunk) -> None:
        try:
            outcome = await deliver(self._call, topic, partition, chunk, self._options)
        except ShoalError as error:
            raise self._partial(error, self._count, [(partition, error)]) from None
        self._add(partition, outcome)

    async def _append_parts(self, topic: Topic, parts: dict[int, Chunk]) -> None:
        first_record = self._count
        outcomes = await asyncio.gather(
            *(
                deliver(self._call, topic, partition, part, self._options)
                for partition, part in parts.items()
            ),
            return_exceptions=True,
        )
        failures: list[tuple[int, ShoalError]] = []
        for partition, outcome in zip(parts, outcomes, strict=True):
            if isinstance(outcome, Appended):
                self._add(partition, outcome)
            elif isinstance(outcome, ShoalError):
                failures.append((partition, outcome))
            else:
                raise outcome
        if failures:
            worst = next((error for _, error in failures if not error.definite), failures[0][1])
            raise self._partial(worst, first_record, failures)

    def _add(self, partition: int, outcome: Appended) -> None:
        self._count += outcome.count
        self._duplicates += outcome.duplicate
        base_offset, count = outcome.base_offset, outcome.count
        if base_offset < 0:
            return
        for entry in reversed(self._ranges[-64:]):
            if entry[0] == partition:
                if entry[1] + entry[2] == base_offset:
                    entry[2] += count
                    return
                break
        if len(self._ranges) < REPORTED_RANGES_MAX:
            self._ranges.append([partition, base_offset, count])
        else:
            self._truncated = True

    def _partial(
        self, error: ShoalError, first_record: int, failures: list[tuple[int, ShoalError]]
    ) -> ShoalError:
        """The error with what was stored before and beside it; unchanged when that is nothing."""
        if not self._count and len(failures) < 2:
            return error
        failed: list[JSON] = [
            {"partition": partition, "code": failure.code, "definite": failure.definite}
            for partition, failure in failures
        ]
        nothing_stored = not self._count and all(failure.definite for _, failure in failures)
        extra: dict[str, JSON] = {
            **error.extra,
            "count": self._count,
            "appended": self._appended(),
            "failed": failed,
            "first_unprocessed_record": first_record,
        }
        return ShoalError(error.code, error.detail, definite=error.definite and nothing_stored, **extra)

    def _appended(self) -> list[JSON]:
        return [
            {"partition": partition, "base_offset": base_offset, "count": count}
            for partition, base_offset, count in self._ranges
        ]

    def answer(self) -> web.Response:
        """200 with the offsets, 202 when nobody waited for them."""
        document: dict[str, JSON] = {"count": self._count}
        if self._options.acks != "none":
            document["appended"] = self._appended()
            if self._duplicates:
                document["duplicate"] = True
            if self._truncated:
                document["appended_truncated"] = True
        response = json_response(document, status=202 if self._options.acks == "none" else 200)
        if self._created:
            response.headers["Shoal-Created"] = "true"
        return response


def find_topic(call: Call, name: str) -> Topic | None:
    """The topic; None when it may be created by producing; ShoalError illegal-name or unknown-topic."""
    broker = call.context.broker
    try:
        return broker.topic(name)
    except ShoalError as error:
        if error.code != "unknown-topic" or not broker.config.auto_create_topics or not call.may_forward():
            raise
        return None


async def wait_topic(context: Context, name: str, deadline: Deadline) -> Topic:
    """The topic, once this agent's catalog has it."""
    broker = context.broker
    while True:
        try:
            return broker.topic(name)
        except ShoalError as error:
            if error.code != "unknown-topic" or not await deadline.pause(0.02):
                raise


def split(topic: Topic, chunk: Chunk, producer: ProducerStamp | None) -> dict[int, Chunk]:
    """Deal a chunk to partitions by key hash, order kept; records without key go to one partition
    together.
    """
    ranges = topic.ranges
    if len(ranges) == 1:
        return {0: chunk}
    null_key_hash = _null_key_hash(producer)
    columns = chunk.columns
    if columns is not None:
        rows = partition_columns(columns, ranges, null_key_hash)
        if len(rows) == 1:
            return dict.fromkeys(rows, chunk)
        return {partition: Chunk(len(kept), columns.take(kept), []) for partition, kept in rows.items()}
    parts: dict[int, Chunk] = {}
    for message in chunk.messages:
        batch = to_record_batch(b"".join(encapsulated(message)), topic.schema)
        dealt = partition_batch(batch, ranges, null_key_hash)
        for partition, piece in dealt.items():
            part = parts.setdefault(partition, Chunk(0, None, []))
            own = message if len(dealt) == 1 else message_from_batch(piece)
            parts[partition] = part._replace(
                records=part.records + piece.num_rows, messages=[*part.messages, own]
            )
    return parts


def _null_key_hash(producer: ProducerStamp | None) -> int:
    """Where records without key go: the same place for a repeated sequence (safety 19), else spread
    evenly.
    """
    if producer is not None:
        return key_hash(producer.producer_id + producer.sequence.to_bytes(8, "little"))
    return next(_spread) * _SPREAD_STEP & 0xFFFF_FFFF
