"""GET and PUT of a row without aiohttp's machinery, as appends and receives have it.

A request is taken here only when its head says nothing unusual and its body is small and came with it. Any
other goes the ordinary way (tables/row.py), which gives the same answers. So does one whose topic is no table
or whose partition is led elsewhere: then nothing has happened. Keys differ from request to request, so the
rest of a head is remembered. A row that memory has is told in the call that brings its request. A put without
a condition is an append. Only what has to wait is a task. This file knows no socket: front.py brings
requests.
"""

from __future__ import annotations

import logging
import re
import time
from typing import Final, NamedTuple, Protocol

from multidict import CIMultiDict

from shoal.agent.http.admission.answer_room import AnswerReservation
from shoal.agent.http.admission.guard import Guard
from shoal.agent.http.admission.limits import HEAD_BYTES_MAX, KIB
from shoal.agent.http.admission.origin import HostPolicy
from shoal.agent.http.api import table_operations as api
from shoal.agent.http.api.media import JSON_TYPE
from shoal.agent.http.api.needs import Needs
from shoal.agent.http.api.operations import ANY
from shoal.agent.http.core.context import Context
from shoal.agent.http.core.dispatch import RouteTable
from shoal.agent.http.core.leader import MOVING_CODES
from shoal.agent.http.core.parameters import NO_QUERY, Query, boolean, duration_ms, parse_query
from shoal.agent.http.core.problems import json_bytes, problem_bytes
from shoal.agent.http.fast_receive import WHOLE_ANSWER_BYTES, Ended, OwnAnswer, ReceiveFront
from shoal.agent.http.groups.answer import Made
from shoal.agent.http.http1.head import BLANKS, FIELD, RequestHead
from shoal.agent.http.produce.fast_answer import row_answer
from shoal.agent.http.produce.fast_head import UNDERSTOOD, without_sequence
from shoal.agent.http.produce.produce import producer_stamp
from shoal.agent.http.tables import row as rows
from shoal.agent.http.tables.keys import row_key, tag_of, write_condition
from shoal.agent.http.tables.row import RowWrite, row_headers, stored_document, unknown_key
from shoal.agent.http.tables.target import is_local, owner_of
from shoal.agent.interface import Answer, Condition, Submission, Topic
from shoal.agent.log_lines.schema import about
from shoal.agent.metrics.measures import ABORTED, Tally
from shoal.errors import ShoalError
from shoal.format.batch import ProducerStamp
from shoal.format.records import RecordColumns

FAST_VALUE_BYTES_MAX: Final = 64 * KIB
"""A longer value goes the ordinary way, which gives others their turn while it comes."""
REMEMBERED_FIELDS_MAX: Final = 1_024
"""Headers of requests, each client's the same but for a producer's sequence. When full they are forgotten."""
BEGINNINGS: Final = (b"GET /v1/tables/", b"PUT /v1/tables/")
_PLAIN_LINE: Final = re.compile(
    rb"(?:GET|PUT) /v1/tables/([A-Za-z0-9._-]{1,249})/([\x21\x22\x24\x26-\x3e\x40-\x7e]+) HTTP/1\.1"
)
"""A topic and a key without escapes, and no query: the key is these bytes."""
_ROW_FIELDS: Final = UNDERSTOOD | {"if-match", "if-none-match"}
_PARAMETERS: Final = frozenset(("timeout", "forward", "consistency", "key_base64"))
OK: Final = 200

logger = logging.getLogger("shoal.http")


class RowFields(NamedTuple):
    """The headers of a request, understood. `reads`: they are those of a plain GET. `is_asked`: something has
    to be judged. `producer`: of the first request with these headers."""

    body_bytes: int
    host: str
    reads: bool
    condition: Condition
    is_asked: bool
    producer: ProducerStamp | None
    authorization: str | None


class FastRow(NamedTuple):
    """A GET or a PUT, as its head says. `answered`: counts its success. `is_append`: it is stored whatever is
    there. `lead_bytes`: see FastRequest."""

    body_bytes: int
    operation: str
    answered: Tally
    topic: str
    key: bytes
    is_put: bool
    is_local: bool
    timeout_ms: int
    condition: Condition
    producer: ProducerStamp | None
    is_append: bool
    authorization: str | None
    lead_bytes: int = 0

    @property
    def needs(self) -> Needs:
        """The permissions of which it needs one."""
        return api.PUT_ROW.needs if self.is_put else api.READ_ROW.needs

    @property
    def resource(self) -> str:
        """The thing that it is about."""
        return self.topic


class PutAnswer(Answer, Protocol):
    """An answer that is told the partition of its row before the outcome."""

    partition: int


class FastRows:
    """One per server."""

    def __init__(self, context: Context, policy: HostPolicy, table: RouteTable) -> None:
        self.context = context
        self._policy = policy
        self._table = table
        self._remembered: dict[bytes, RowFields | None] = {}
        counts = context.measures.requests
        self._of_read, self._of_put = (
            (operation.name, counts[operation.name, OK]) for operation in (api.READ_ROW, api.PUT_ROW)
        )
        self._timeout_ms = context.limits.default_timeout_ms

    def known(self, data: bytes) -> FastRow | None:
        """The request of a whole head that differs from an earlier one in its first line alone, or in a
        producer's sequence too. None: it has to be read."""
        line_end = data.find(b"\r\n")
        rest = data[line_end:]
        fields, sequence = self._remembered.get(rest), None
        if fields is None:
            rest, sequence = without_sequence(rest)
            fields = self._remembered.get(rest)
        line = None if fields is None else _PLAIN_LINE.fullmatch(data, 0, line_end)
        if fields is None or line is None or len(data) > HEAD_BYTES_MAX:
            return None
        is_put = data.startswith(b"PUT")
        if not is_put and (fields.body_bytes or not fields.reads):
            return None
        try:
            self._policy.check(fields.host, None)
        except ShoalError:
            return None  # it will be refused, with this very error
        producer = fields.producer
        if sequence is not None and producer is not None:
            producer = producer._replace(sequence=sequence)
        topic, key = line.groups()
        operation, answered = self._of_put if is_put else self._of_read
        return FastRow(
            fields.body_bytes, operation, answered, topic.decode("ascii"), key, is_put, False,
            self._timeout_ms, fields.condition, producer, is_put and not fields.is_asked,
            fields.authorization,
        )  # fmt: skip

    def request(self, data: bytes, framing: RequestHead) -> FastRow | None:
        """The request that a whole head asks for, if it is one for here. `framing`: what was read of it."""
        if not data.startswith(BEGINNINGS) or framing.body_bytes > FAST_VALUE_BYTES_MAX:
            return None
        is_put = data.startswith(b"PUT")
        line_end = data.find(b"\r\n")
        if len(data) > HEAD_BYTES_MAX or (framing.body_bytes and not is_put):
            return None
        try:
            fields, sequence = self._fields(data[line_end:], framing.body_bytes)
            if fields is None or not (is_put or fields.reads):
                return None
            self._policy.check(fields.host, None)
            target = data[4 : data.rfind(b" ", 0, line_end)].decode("ascii")
            return self._understand(target, framing.body_bytes, fields, sequence, is_put=is_put)
        except ShoalError:
            return None  # it will be refused, with this very error

    def _fields(self, data: bytes, body_bytes: int) -> tuple[RowFields | None, int | None]:
        without, sequence = without_sequence(data)
        if without in self._remembered:
            return self._remembered[without], sequence
        if len(self._remembered) >= REMEMBERED_FIELDS_MAX:
            self._remembered.clear()
        fields = self._remembered[without] = read_fields(data, body_bytes)
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
        operation = route.operation.name
        return FastRow(
            body_bytes, operation, self.context.measures.requests[operation, OK], arguments[0], key, is_put,
            is_local(query), timeout_ms, fields.condition, producer, is_put and not fields.is_asked,
            fields.authorization,
        )  # fmt: skip

    def at_once(self, request: FastRow, guard: Guard) -> bytes | None:
        """The answer to a GET, where memory has the row and nobody has to be asked; else None."""
        if request.is_put or request.is_local:
            return None
        broker, key = self.context.broker, request.key
        try:
            topic = broker.topic(request.topic)
            if topic.kind != "table":
                return None
            partition = owner_of(topic, key)
            found = broker.row_at_once(topic, partition, key)
        except ShoalError:
            return None  # it is refused as ever
        except Exception:
            facts = about("request-failed", topic=request.topic, request=request.operation)
            text = f"{request.operation} of {request.topic}"
            logger.exception("a request failed: %s, and is tried again; this is a bug", text, extra=facts)
            return None
        if found is None:
            return None
        if found.row is None:
            error = unknown_key(topic, key)
            self.context.measures.answered(request.operation, error.status)
            return problem_bytes(error, guard)
        if len(found.row.value) > WHOLE_ANSWER_BYTES:
            return None  # its reader may take its time
        request.answered.count += 1
        return row_answer(partition, found.row, found.as_of, guard)

    def begin(self, request: FastRow, body: bytes | memoryview, answer: PutAnswer) -> bool:
        """Begin a put that is an append; `answer` hears of its end, perhaps before this returns. False: it is
        one for the ordinary way, and nothing has happened. Raises ShoalError: refused, nothing was stored."""
        broker = self.context.broker
        try:
            topic = broker.topic(request.topic)
        except ShoalError:
            return False
        if topic.kind != "table":
            return False
        partition = answer.partition = owner_of(topic, request.key)
        columns = RecordColumns([None], [request.key], [bytes(body)], [None])
        submission = Submission(
            columns, columns.size_bytes, request.timeout_ms, request.producer, False, "all"
        )
        try:
            broker.begin_append(topic, partition, submission, answer)
        except ShoalError as error:
            if error.code in MOVING_CODES:
                return False
            raise
        return True

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


def read_fields(data: bytes, body_bytes: int) -> RowFields | None:
    """The headers of a head that http1/head.py has read: of a request with so long a body. None: they are for
    the ordinary way. ShoalError: they will be refused there."""
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
    reads = reads and not has_condition
    given = headers.get("authorization")
    return RowFields(body_bytes, headers["host"], reads, condition, condition.is_asked, producer, given)
