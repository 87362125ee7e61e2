"""Appends without aiohttp's machinery: what nearly every request to an agent is, in one call and one answer.

A request is taken here only when nothing about it is unusual: its head reads without doubt, its body comes
with its length and is small or one Arrow batch, and its partition is led here. Everything else, and
everything that turns out to be otherwise before something was stored, is handed to the ordinary way (app.py),
which gives the same answers. Knows no socket: front.py brings heads and bodies and takes answers.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import pyarrow as pa

from shoal.agent.http.admission.limits import HEAD_BYTES_MAX, KIB
from shoal.agent.http.admission.origin import HostPolicy
from shoal.agent.http.api.media import ARROW_TYPE, NDJSON_TYPE
from shoal.agent.http.api.needs import Needs
from shoal.agent.http.core.body import media_type
from shoal.agent.http.core.context import Context, partition_number
from shoal.agent.http.core.dispatch import Route, RouteTable
from shoal.agent.http.core.leader import MOVING_CODES
from shoal.agent.http.core.parameters import NO_QUERY, Query, boolean, duration_ms, parse_query
from shoal.agent.http.http1.head import RequestHead, read_head
from shoal.agent.http.produce.decode import (
    ARROW_CHUNK_BYTES,
    CHUNK_RECORDS_MAX,
    Chunk,
    arrow_chunk,
    batch_problem,
    decode_arrow_body,
    decode_whole,
)
from shoal.agent.http.produce.deliver import Options, submission_of
from shoal.agent.http.produce.due_times import check_due_times
from shoal.agent.http.produce.fast_head import Head, append_head, without_sequence
from shoal.agent.http.produce.produce import DECODED_AT_ONCE_BYTES, request_options
from shoal.agent.interface import Answer, Topic
from shoal.agent.metrics.measures import Tally
from shoal.errors import ShoalError
from shoal.format.arrow_in_place import PlaceReader
from shoal.format.batch import MAX_BODY_BYTES, STAMP_BYTES, BatchError

# Before an Arrow body, so that the stamped head fits in front of the batch even where the stream's schema is
# shorter than the stamp. A multiple of 16: batches are stored, checked and sent from where they lie.
LEAD_BYTES: Final = 256
# The largest stored batch, with what a stream has around it. A batch of any size is checked in one
# turn of the loop, this way as on the ordinary one.
PLACED_BYTES_MAX: Final = MAX_BODY_BYTES + 64 * KIB
# Heads remembered: a client sends the same one all the time, but for a producer's sequence, which counts
# up and is cut out of what is remembered. When full they are forgotten, not searched.
REMEMBERED_HEADS_MAX: Final = 1_024
# The status of an append that was acknowledged.
STORED: Final = 200
NOT_ARROW: Final = frozenset(("key", "key_field", "deliver_at", "delay"))
"""Parameters that belong to other bodies: the ordinary way refuses them."""


class FastRequest(NamedTuple):
    """An append, as its head says. `operation`: its name in the API. `answered`: counts its success."""

    operation: str
    answered: Tally
    body_bytes: int
    topic: str
    partition: int | None
    media: str
    content_type: str | None
    query: Query
    options: Options
    lead_bytes: int
    """What the memory for the body has in front of it."""
    authorization: str | None
    needs: Needs

    @property
    def resource(self) -> str:
        """The thing that it is about."""
        return self.topic

    def allocate(self) -> memoryview:
        """Memory for the body behind `lead_bytes`. What it holds is whatever was there: it is written whole
        before it is read, and zeroing it first would cost as much as receiving it."""
        if not self.lead_bytes:
            return memoryview(bytearray(self.body_bytes))
        return memoryview(pa.allocate_buffer(self.lead_bytes + self.body_bytes)).cast("B")


class FastAppends:
    """One per server."""

    def __init__(
        self, context: Context, policy: HostPolicy, table: RouteTable, routes: tuple[Route, ...]
    ) -> None:
        self.context = context
        self._policy = policy
        self._table = table
        self._routes = routes
        self._remembered: dict[bytes, FastRequest] = {}
        self._places: dict[str, PlaceReader] = {}
        """By the kind of topic, which has its columns."""

    def request(self, data: bytes) -> FastRequest | RequestHead | None:
        """The append that a whole head asks for. RequestHead: it goes the ordinary way. None: the head cannot
        be read strictly."""
        if not data.startswith(b"POST "):
            return read_head(data)
        known = self._remembered.get(data)
        if known is not None:
            return known
        without, sequence = without_sequence(data)
        if sequence is not None:
            known = self._remembered.get(without)
            if known is not None:
                return _numbered(known, sequence)
        framing = read_head(data)
        head = (
            None if framing is None or len(data) > HEAD_BYTES_MAX else append_head(data, framing.body_bytes)
        )
        try:
            request = None if head is None else self._understand(head)
        except ShoalError:
            return framing  # it will be refused, with this very error
        if request is None:
            return framing
        if request.options.producer is None or sequence is not None:
            if len(self._remembered) >= REMEMBERED_HEADS_MAX:
                self._remembered.clear()
            self._remembered[without] = request
        return request

    def _understand(self, head: Head) -> FastRequest | None:
        headers, limits = head.headers, self.context.limits
        self._policy.check(headers["host"], None)
        path, _, raw_query = head.target.partition("?")
        route, arguments = self._table.resolve("POST", path)
        if route not in self._routes:
            return None
        query = parse_query(raw_query, route.operation.parameter_names) if raw_query else NO_QUERY
        content_type = headers.get("content-type")
        media = media_type(content_type)
        most = PLACED_BYTES_MAX if media == ARROW_TYPE else DECODED_AT_ONCE_BYTES
        if media == NDJSON_TYPE or not 0 < head.body_bytes <= most:
            return None
        boolean(query, "forward", True)  # is asked where the partition is led elsewhere: the ordinary way
        timeout_ms = duration_ms(
            query, "timeout", limits.default_timeout_ms, limits.timeout_ms, limits.least_timeout_ms
        )
        options = request_options(query, headers, timeout_ms, to_partition=len(arguments) == 2)
        if options.acks == "none":
            return None
        partition = partition_number(arguments[1]) if len(arguments) == 2 else None
        lead_bytes = LEAD_BYTES if media == ARROW_TYPE else 0
        return FastRequest(
            route.operation.name,
            self.context.measures.requests[route.operation.name, STORED],
            head.body_bytes,
            arguments[0],
            partition,
            media,
            content_type,
            query,
            options,
            lead_bytes,
            headers.get("authorization"),
            route.operation.needs,
        )

    def begin(self, request: FastRequest, memory: bytes | memoryview, answer: Answer) -> bool:
        """Begin the append; `answer` hears of its end, perhaps before this returns.

        `memory`: the body behind `lead_bytes`. False: this request is one for the ordinary way, nothing has
        happened and the body is as it was. Raises ShoalError: refused, nothing was stored.
        """
        try:
            topic: Topic = self.context.broker.topic(request.topic)
        except ShoalError as error:
            if error.code == "unknown-topic":
                return False  # it may be created by producing
            raise
        partition = request.partition
        if partition is None:
            if len(topic.ranges) != 1:
                return False
            partition = 0
        if request.lead_bytes:
            assert isinstance(memory, memoryview)
            return self._begin_arrow(request, topic, partition, memory, answer)
        now_us = self.context.broker.now_us()
        chunk = decode_whole(request.query, request.media, request.content_type, bytes(memory), now_us)
        if not 0 < chunk.records <= CHUNK_RECORDS_MAX:
            return False
        return self._append(request, topic, partition, chunk, answer)

    def _begin_arrow(
        self, request: FastRequest, topic: Topic, partition: int, memory: memoryview, answer: Answer
    ) -> bool:
        if not NOT_ARROW.isdisjoint(request.query):
            return False
        places = self._places.get(topic.kind)
        if places is None:
            places = self._places[topic.kind] = PlaceReader(topic.schema, STAMP_BYTES)
        try:
            placed = places.read(memory, LEAD_BYTES)
        except BatchError as error:
            raise batch_problem(error) from None
        if placed is None:
            if request.body_bytes > ARROW_CHUNK_BYTES:
                return False  # several batches: they are stored as they come
            chunk = decode_arrow_body(topic.schema, bytes(memory[LEAD_BYTES:]))
            return chunk.records > 0 and self._append(request, topic, partition, chunk, answer)
        chunk = arrow_chunk([placed.message])
        begun = chunk.records > 0 and self._append(request, topic, partition, chunk, answer)
        if not begun:
            memory[LEAD_BYTES : LEAD_BYTES + len(placed.opening)] = placed.opening
        return begun

    def _append(
        self, request: FastRequest, topic: Topic, partition: int, chunk: Chunk, answer: Answer
    ) -> bool:
        check_due_times(topic, topic.name, chunk, self.context.broker.now_us())
        try:
            submission = submission_of(chunk, request.options)
            self.context.broker.begin_append(topic, partition, submission, answer)
        except BatchError as error:
            raise batch_problem(error) from None
        except ShoalError as error:
            if error.code in MOVING_CODES:
                return False
            raise
        return True


def _numbered(request: FastRequest, sequence: int) -> FastRequest:
    """The same request of the same producer, at another place of its sequence."""
    options = request.options
    assert options.producer is not None
    return request._replace(options=options._replace(producer=options.producer._replace(sequence=sequence)))
