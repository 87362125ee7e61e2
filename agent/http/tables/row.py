"""GET, PUT and DELETE of one row, at any agent: decoded here, asked of the leader of the key's partition."""

from __future__ import annotations

import time
from typing import Final, NamedTuple

from aiohttp import web

from shoal.agent.http.admission.answer_room import AnswerReservation
from shoal.agent.http.admission.body_rate import BodyReservation
from shoal.agent.http.api import table_operations as api
from shoal.agent.http.api.media import JSON_TYPE
from shoal.agent.http.api.operations import ANY
from shoal.agent.http.core.body import read_body
from shoal.agent.http.core.context import Call, Deadline
from shoal.agent.http.core.dispatch import Route
from shoal.agent.http.core.leader import at_leader, partition_of, while_it_leads
from shoal.agent.http.core.problems import json_response
from shoal.agent.http.core.respond import send_made, send_parts
from shoal.agent.http.fetch.render import choose_media
from shoal.agent.http.produce.deliver import PRODUCER_HEADERS, outcome_in
from shoal.agent.http.produce.produce import producer_stamp
from shoal.agent.http.rows.row_pieces import Rows, RowWriter, Style
from shoal.agent.http.tables.keys import is_known, row_key, tag_of, write_condition
from shoal.agent.http.tables.target import find_table, is_local, key_query, owner_of, table_path
from shoal.agent.interface import Appended, Condition, Json, Leader, Submission, TableRow, Topic
from shoal.errors import ShoalError, shown
from shoal.format.batch import MAX_RECORD_BYTES, ProducerStamp
from shoal.format.records import RecordColumns, columns_to_batch
from shoal.format.timestamps import format_time

ROW_FORMS: Final = (ANY, JSON_TYPE)
_TOLD: Final = ("ETag", "Shoal-Partition", "Shoal-Timestamp", "Shoal-As-Of")
CONDITION_HEADERS: Final = ("If-Match", "If-None-Match")


class ToldRow(NamedTuple):
    """A row as it is told: `headers` of the answer, `body` of one that another agent has made."""

    headers: dict[str, str]
    row: TableRow | None
    body: bytes


async def read_row(call: Call) -> web.StreamResponse:
    """200 with the value or the whole row, 304, or 404 unknown-key."""
    topic = find_table(call)
    key = row_key(call.arguments, call.query)
    accept = call.headers.get("Accept")
    media = ANY if accept in (None, "*/*") else choose_media(accept, ROW_FORMS)
    holding = call.holding()
    try:
        found = await _found(call, topic, key, media, holding)
        if is_known(call.headers, found.headers["ETag"]):
            return web.Response(status=304, headers=found.headers)
        if found.row is None:
            return await send_parts(call, [found.body], media, found.headers)
        if media == ANY:
            await holding.add(len(found.row.value))
            return await send_parts(call, [found.row.value], media, found.headers)
        return await _send_json(call, owner_of(topic, key), found.row, found.headers, holding)
    finally:
        holding.release()


async def _found(call: Call, topic: Topic, key: bytes, media: str, holding: AnswerReservation) -> ToldRow:
    """ShoalError unknown-key, and as get_row."""
    partition, local = owner_of(topic, key), is_local(call.query)
    deadline = Deadline(call.timeout_ms())

    async def ask(*, local: bool) -> ToldRow:
        row, as_of = await call.context.broker.get_row(
            topic, partition, key, local=local, timeout_ms=deadline.remaining_ms()
        )
        if row is None:
            raise unknown_key(topic, key)
        return ToldRow(row_headers(partition, row, as_of), row, b"")

    async def first() -> ToldRow:
        return await ask(local=local)

    async def here() -> ToldRow:
        return await ask(local=False)

    async def there(leader: Leader) -> ToldRow:
        exchange = call.context.forwarder.exchange(
            leader.url,
            "GET",
            table_path(topic),
            passed_on=call.asker.passed_on,
            timeout_ms=deadline.remaining_ms(),
            query=key_query(key),
            headers={"Accept": media},
            admit=holding.await_room,
        )
        reply = await while_it_leads(call.context, leader, topic, partition, exchange)
        try:
            headers = {name: reply.headers[name] for name in _TOLD}
        except KeyError as error:
            raise ShoalError("leadership-lost", f"the leader's answer has no {error}") from None
        return ToldRow(headers, None, reply.body)

    led = partition_of(call, topic, partition)
    return await at_leader(call, led, here, there, deadline, first=first, reads=True)


def unknown_key(topic: Topic, key: bytes) -> ShoalError:
    """404."""
    return ShoalError("unknown-key", f"{topic.name} has no row {shown(key.decode('utf-8', 'replace'))}")


def row_headers(partition: int, row: TableRow, as_of: int) -> dict[str, str]:
    """The headers of an answer about a row."""
    texts = (tag_of(row.offset), str(partition), format_time(row.timestamp_us), f"{partition}:{as_of}")
    return dict(zip(_TOLD, texts, strict=True))


async def _send_json(
    call: Call, partition: int, row: TableRow, headers: dict[str, str], holding: AnswerReservation
) -> web.StreamResponse:
    columns = RecordColumns([row.timestamp_us], [row.key], [row.value], [list(row.headers) or None])
    batch = columns_to_batch(columns, row.timestamp_us)
    await holding.add(batch.nbytes)
    writer = RowWriter()
    style = Style("text", "record", b'{"partition":%d,' % partition)
    parts = (part for text in writer.texts(Rows(row.offset, batch), style) for part in (*text, b"\n"))
    return await send_made(call, writer.pieces(parts), JSON_TYPE, headers, holding.size_bytes)


class RowWrite(NamedTuple):
    """A put; without a value a deletion."""

    topic: Topic
    partition: int
    key: bytes
    value: bytes | None
    condition: Condition
    producer: ProducerStamp | None

    def submission(self, timeout_ms: int) -> Submission:
        """Its one record. A producer's sequences are spread over partitions by key."""
        columns = RecordColumns([None], [self.key], [self.value], [None])
        return Submission.of(columns, timeout_ms=timeout_ms, producer=self.producer, consecutive=False)


async def put_row(call: Call) -> web.Response:
    """200 with the row's place and ETag, 412 where another row is there."""
    topic, key = find_table(call), row_key(call.arguments, call.query)
    condition = write_condition(call.headers, deletes=False)
    producer = producer_stamp(call.headers)
    gate = call.context.gate
    gate.check_place()
    with BodyReservation(gate) as receiving:
        value = await read_body(call, call.context.limits.body_bytes, receiving)
        size_bytes = len(key) + len(value)
        if size_bytes > MAX_RECORD_BYTES:
            detail = f"key and value have {size_bytes} bytes, at most {MAX_RECORD_BYTES} are accepted"
            raise ShoalError("too-large", detail)
        with gate.place():
            return await _write(call, RowWrite(topic, owner_of(topic, key), key, value, condition, producer))


async def delete_row(call: Call) -> web.Response:
    """The same without a value."""
    topic, key = find_table(call), row_key(call.arguments, call.query)
    condition = write_condition(call.headers, deletes=True)
    producer = producer_stamp(call.headers)
    with call.context.gate.place():
        return await _write(call, RowWrite(topic, owner_of(topic, key), key, None, condition, producer))


async def _write(call: Call, write: RowWrite) -> web.Response:
    topic, partition = write.topic, write.partition
    deadline = Deadline(call.timeout_ms())

    async def here() -> Appended:
        timeout_ms = deadline.remaining_ms()
        began_ns = time.monotonic_ns()
        appended = await call.context.broker.put_row(
            topic, partition, write.submission(timeout_ms), write.condition, timeout_ms
        )
        call.context.measures.append.observe(time.monotonic_ns() - began_ns)
        return appended

    async def there(leader: Leader) -> Appended:
        passed_on = (*CONDITION_HEADERS, *PRODUCER_HEADERS)
        exchange = call.context.forwarder.exchange(
            leader.url,
            "DELETE" if write.value is None else "PUT",
            table_path(topic),
            passed_on=call.asker.passed_on,
            timeout_ms=deadline.remaining_ms(),
            query=key_query(write.key),
            headers={name: call.headers[name] for name in passed_on if name in call.headers},
            body=write.value,
        )
        return outcome_in(await while_it_leads(call.context, leader, topic, partition, exchange), partition)

    done = await at_leader(call, partition_of(call, topic, partition), here, there, deadline)
    response = json_response(stored_document(partition, done))
    response.headers["ETag"] = tag_of(done.base_offset)
    return response


def stored_document(partition: int, done: Appended) -> Json:
    """As the answer of an append."""
    appended: Json = {"partition": partition, "base_offset": done.base_offset, "count": 1}
    document: Json = {"count": 1, "appended": [appended]}
    return document | {"duplicate": True} if done.duplicate else document


HINTS = {
    ("POST", path): "a row is written with PUT, or with its key as a record of the topic"
    for path in (api.PUT_ROW.path, api.PUT_ROW_BY_BYTES.path)
}
ROUTES = (
    Route(api.READ_ROW, read_row),
    Route(api.PUT_ROW, put_row),
    Route(api.DELETE_ROW, delete_row),
    Route(api.PUT_ROW_BY_BYTES, put_row),
    Route(api.DELETE_ROW_BY_BYTES, delete_row),
)
