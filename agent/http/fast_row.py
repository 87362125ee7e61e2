"""GET and PUT of a row without aiohttp's machinery, as appends and receives have it.

A request is taken here only when its head says nothing unusual and its body is small and came with it. Any
other goes the ordinary way (tables/row.py), which gives the same answers. So does one whose topic is no table
or whose partition is led elsewhere: then nothing has happened. Keys differ from request to request, so the
rest of a head is remembered. This file knows no socket: front.py brings requests.
"""

from __future__ import annotations

import logging
import time
from typing import Final, NamedTuple

from multidict import CIMultiDict

from shoal.agent.http.admission.answer_room import AnswerReservation
from shoal.agent.http.admission.limits import HEAD_BYTES_MAX, KIB
from shoal.agent.http.admission.origin import HostPolicy
from shoal.agent.http.api.media import JSON_TYPE
from shoal.agent.http.api.operations import ANY
from shoal.agent.http.core.context import Context
from shoal.agent.http.core.dispatch import RouteTable
from shoal.agent.http.core.leader import MOVING_CODES
from shoal.agent.http.core.parameters import NO_QUERY, Query, boolean, duration_ms, parse_query
from shoal.agent.http.core.problems import json_bytes
from shoal.agent.http.fast_receive import Ended, OwnAnswer, ReceiveFront
from shoal.agent.http.groups.answer import Made
from shoal.agent.http.http1.head import BLANKS, FIELD, RequestHead
from shoal.agent.http.produce.fast_head import UNDERSTOOD, without_sequence
from shoal.agent.http.produce.produce import producer_stamp
from shoal.agent.http.tables import row as rows
from shoal.agent.http.tables.keys import row_key, tag_of, write_condition
from shoal.agent.http.tables.row import RowWrite, row_headers, stored_document, unknown_key
from shoal.agent.http.tables.target import is_local, owner_of
from shoal.agent.interface import Condition, Topic
from shoal.agent.log_lines.schema import about
from shoal.agent.metrics.measures import ABORTED
from shoal.errors import ShoalError
from shoal.format.batch import ProducerStamp

FAST_VALUE_BYTES_MAX: Final = 64 * KIB
"""A longer value goes the ordinary way, which gives others their turn while it comes."""
REMEMBERED_FIELDS_MAX: Final = 1_024
"""Headers of requests, each client's the same but for a producer's sequence. When full they are forgotten."""
_BEGINNINGS: Final = (b"GET /v1/tables/", b"PUT /v1/tables/")
_ROW_FIELDS: Final = UNDERSTOOD | {"if-match", "if-none-match"}
_PARAMETERS: Final = frozenset(("timeout", "forward", "consistency", "key_base64"))
OK: Final = 200

logger = logging.getLogger("shoal.http")


class RowFields(NamedTuple):
    """The headers of a request, understood. `reads`: they are those of a plain GET. `producer`: of the first
    request with these headers."""

    host: str
    reads: bool
    condition: Condition
    producer: ProducerStamp | None


class FastRow(NamedTuple):
    """A GET or a PUT, as its head says."""

    body_bytes: int
    operation: str
    topic: str
    key: bytes
    is_put: bool
    is_local: bool
    timeout_ms: int
    condition: Condition
    producer: ProducerStamp | None


class FastRows:
    """One per server."""

    def __init__(self, context: Context, policy: HostPolicy, table: RouteTable) -> None:
        self.context = context
        self._policy = policy
        self._table = table
        self._remembered: dict[bytes, RowFields | None] = {}

    def request(self, data: bytes, framing: RequestHead) -> FastRow | None:
        """The request that a whole head asks for, if it is one for here. `framing`: what was read of it."""
        if not data.startswith(_BEGINNINGS) or framing.body_bytes > FAST_VALUE_BYTES_MAX:
            return None
        is_put = data.startswith(b"PUT")
        line_end = data.find(b"\r\n")
        if len(data) > HEAD_BYTES_MAX or (framing.body_bytes and not is_put):
            return None
        try:
            fields, sequence = self._fields(data[line_end:])
            if fields is None or not (is_put or fields.reads):
                return None
            self._policy.check(fields.host, None)
            target = data[4 : data.rfind(b" ", 0, line_end)].decode("ascii")
            return self._understand(target, framing.body_bytes, fields, sequence, is_put=is_put)
        except ShoalError:
            return None  # it will be refused, with this very error

    def _fields(self, data: bytes) -> tuple[RowFields | None, int | None]:
        without, sequence = without_sequence(data)
        if without in self._remembered:
            return self._remembered[without], sequence
        if len(self._remembered) >= REMEMBERED_FIELDS_MAX:
            self._remembered.clear()
        fields = self._remembered[without] = read_fields(data)
        return fields, sequence

    def _understand(
        self, target: str, body_bytes: int, fields: RowFields, sequence: int | None, *, is_put: bool
    ) -> FastRow | None:
        path, _, raw_query = target.partition("?")
        route, arguments = self._table.resolve("PUT" if is_put else "GET", path)
        if route not in rows.ROUTES:
            return None
        query: Query = parse_query(raw_query, route.operation.parameter_names) if raw_query else NO_QUERY
        if not query.keys() <= _PARAMETERS:
            return None
        boolean(query, "forward", True)  # is asked where the partition is led elsewhere: the ordinary way
        limits = self.context.limits
        timeout_ms = duration_ms(
            query, "timeout", limits.default_timeout_ms, limits.timeout_ms, limits.least_timeout_ms
        )
        producer = fields.producer
        if producer is not None and sequence is not None:
            producer = producer._replace(sequence=sequence)
        key = row_key(arguments, query)
        return FastRow(
            body_bytes, route.operation.name, arguments[0], key, is_put, is_local(query), timeout_ms,
            fields.condition, producer,
        )  # fmt: skip

    async def serve(self, request: FastRow, body: bytes, front: ReceiveFront) -> Ended:
        """Answer the request, or leave it as it was."""
        ended = Ended.BROKEN
        status: int | str = ABORTED
        answer = OwnAnswer(self.context, front)
        try:
            try:
                if not await self._answer(request, body, answer):
                    return Ended.MOVED
                ended, status = Ended.ANSWERED, OK
            except ShoalError as error:
                if error.definite and error.code in MOVING_CODES:
                    return Ended.MOVED
                answer.refuse(error)
                ended, status = Ended.ANSWERED, error.status
            except ConnectionError:
                raise
            except Exception:
                facts = about("request-failed", topic=request.topic, request=request.operation)
                text = f"{request.operation} of {request.topic}"
                logger.exception("a request failed: %s; this is a bug", text, extra=facts)
                internal = ShoalError("internal", "the agent failed unexpectedly; its log says how")
                answer.refuse(internal, close=True)
                status = internal.status
        except ConnectionError:  # in the middle of an answer, so that nobody takes it for a whole one
            if front.transport is not None:
                front.transport.abort()
        self.context.measures.answered(request.operation, status)
        return ended

    async def _answer(self, request: FastRow, body: bytes, answer: OwnAnswer) -> bool:
        """Whether the request was one for here."""
        try:
            topic = self.context.broker.topic(request.topic)
        except ShoalError:
            return False
        if topic.kind != "table":
            return False
        if request.is_put:
            return await self._put(request, topic, body, answer)
        await self._get(request, topic, answer)
        return True

    async def _get(self, request: FastRow, topic: Topic, answer: OwnAnswer) -> None:
        partition, timeout_ms = owner_of(topic, request.key), request.timeout_ms
        row, as_of = await self.context.broker.get_row(
            topic, partition, request.key, local=request.is_local, timeout_ms=timeout_ms
        )
        if row is None:
            raise unknown_key(topic, request.key)
        holding = AnswerReservation(self.context.room, timeout_ms)
        try:
            await holding.add(len(row.value))
            await answer.send(Made(ANY, row_headers(partition, row, as_of), [row.value]))
        finally:
            holding.release()

    async def _put(self, request: FastRow, topic: Topic, body: bytes, answer: OwnAnswer) -> bool:
        gate, partition = self.context.gate, owner_of(topic, request.key)
        if not gate.take(len(body)):
            return False  # its refusal is made there
        began_ns = time.monotonic_ns()
        try:
            write = RowWrite(topic, partition, request.key, body, request.condition, request.producer)
            done = await self.context.broker.put_row(
                topic, partition, write.submission(request.timeout_ms), request.condition, request.timeout_ms
            )
        finally:
            gate.leave(len(body))
        self.context.measures.append.observe(time.monotonic_ns() - began_ns)
        text = json_bytes(stored_document(partition, done)) + b"\n"
        await answer.send(Made(JSON_TYPE, {"ETag": tag_of(done.base_offset)}, [text]))
        return True


def read_fields(data: bytes) -> RowFields | None:
    """The headers of a head that http1/head.py has read. None: they are for the ordinary way. ShoalError:
    they will be refused there."""
    if not data.isascii():
        return None
    headers = CIMultiDict[str]()
    for name, value in FIELD.findall(data):
        lower = name.lower().decode()
        if lower not in _ROW_FIELDS or lower in headers:
            return None
        headers[lower] = value.strip(BLANKS).decode()
    reads = headers.get("accept", ANY) in ("*/*", ANY)
    has_condition = "if-match" in headers or "if-none-match" in headers
    condition = write_condition(headers, deletes=False)
    producer = producer_stamp(headers)
    return RowFields(headers["host"], reads and not has_condition, condition, producer)
