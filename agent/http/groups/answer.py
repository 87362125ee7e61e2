"""The messages of a grant as an answer: JSON, or Arrow cut to exactly the rows that were delivered.

Law of this file: the delivery is committed before anything is read here. Records are read of this agent's own
replica, which has them. A fault from here on says nothing about the delivery, so that it is never definite:
the same request brings the same messages.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import pyarrow as pa
from aiohttp import web

from shoal.agent.http.admission.answer_room import AnswerReservation
from shoal.agent.http.api.media import ARROW_TYPE, JSON_TYPE
from shoal.agent.http.core.context import Call
from shoal.agent.http.core.problems import json_bytes
from shoal.agent.http.core.respond import send_made, send_parts
from shoal.agent.http.fetch.anywhere import WantedRows, read_here
from shoal.agent.http.groups.outcomes import Outcomes
from shoal.agent.http.groups.target import Target
from shoal.agent.http.rows.recent_texts import FEW_ROWS, KEPT_ROWS_BYTES, short_texts
from shoal.agent.http.rows.row_pieces import Rows, RowWriter, Style
from shoal.agent.interface import Admit, DeliveredRange, Fetch, FetchRequest, Granted, Json, Range
from shoal.errors import ErrorCode, ShoalError
from shoal.format.batch import END_OF_STREAM, Offset, parse_stamp, schema_message, to_record_batch
from shoal.format.receipt import head_of, receipt_of
from shoal.format.timestamps import format_time

LOST_HERE: dict[ErrorCode, ErrorCode] = {"not-leader": "leadership-lost", "no-leader": "leadership-lost"}
"""After the commit these must not send the request elsewhere as if nothing had happened."""


class Answered(NamedTuple):
    """A grant of one partition, and what became of the request's acks."""

    target: Target
    partition: int
    granted: Granted
    acked: Outcomes
    is_arrow: bool
    max_bytes: int


class Made(NamedTuple):
    """An answer that has yet to be sent. `body`: parts that are there, or pieces that are made one after the
    other, of `held_bytes` in memory."""

    media_type: str
    headers: dict[str, str]
    body: list[bytes | memoryview] | Iterator[bytes]
    held_bytes: int = 0


T = TypeVar("T")
Send = Callable[[Made], Awaitable[T]]


class DeliveredStretch(NamedTuple):
    """Delivered messages without a gap, and their ranges."""

    begin: int
    end: int
    parts: list[DeliveredRange]

    def behind(self, start: int) -> DeliveredStretch:
        """The part of it that lies behind a log's new start."""
        left = [
            DeliveredRange(piece._replace(first=first, count=piece.first + piece.count - first), attempt)
            for piece, attempt in self.parts
            if (first := max(piece.first, start)) < piece.first + piece.count
        ]
        return DeliveredStretch(start, self.end, left)


def stretches(delivered: Sequence[DeliveredRange]) -> list[DeliveredStretch]:
    """Neighbouring ranges are read together."""
    found: list[DeliveredStretch] = []
    for one in delivered:
        first, behind = one.range.first, one.range.first + one.range.count
        if found and found[-1].end == first:
            found[-1] = found[-1]._replace(end=behind)
            found[-1].parts.append(one)
        else:
            found.append(DeliveredStretch(first, behind, [one]))
    return found


def nothing(reason: str, acked: Outcomes, target: Target, *, is_arrow: bool) -> Made:
    """The answer without messages, and why there are none."""
    headers = _common_headers(target, acked)
    if is_arrow:
        body = schema_message(target.topic.schema) + END_OF_STREAM
        headers["Shoal-Reason"] = reason
        return Made(ARROW_TYPE, headers, [body])
    document: Json = {
        "partition": None, "delivery": None, "receipt": None, "delivered_at": None, "messages": [],
        "reason": reason, "acked": acked.document(),
    }  # fmt: skip
    return Made(JSON_TYPE, headers, [json_bytes(document) + b"\n"])


async def send(call: Call, made: Made) -> web.StreamResponse:
    """The ordinary way to send it."""
    if isinstance(made.body, list):
        return await send_parts(call, made.body, made.media_type, made.headers)
    return await send_made(call, made.body, made.media_type, made.headers, made.held_bytes)


async def render(call: Call, answered: Answered, send: Send[T]) -> T:
    """Make the answer with the messages, and send it. ShoalError, never definite."""
    holding = call.holding()
    try:
        make = _make_arrow if answered.is_arrow else _make_json
        made = await make(call, answered, holding)
        with call.context.gate.place():
            return await send(made)
    except ShoalError as error:
        code = LOST_HERE.get(error.code, error.code)
        raise ShoalError(code, error.detail, definite=False, **error.extra) from None
    finally:
        holding.release()


# ---- JSON ----------------------------------------------------------------------------------------


async def _make_json(call: Call, answered: Answered, holding: AnswerReservation) -> Made:
    target, partition, granted, acked = answered[:4]
    head = _head(answered)
    opening = b'{"partition":%d,"delivery":%d,"receipt":"%b","delivered_at":"%b","messages":[' % (
        partition, granted.delivery, head.encode(), format_time(granted.time_us).encode(),
    )  # fmt: skip
    tail = b'],"reason":null,"acked":%b}\n' % json_bytes(acked.document())
    headers = _common_headers(target, acked)
    few = _few_texts(call, granted)
    if few is None:
        writer, style = RowWriter(), Style("text", "record", b'{"partition":%d,' % partition)
        ahead = _rows_ahead(call, granted)
        rows, read = await _rows(call, answered, holding, ahead)
        if ahead and granted.log is not None and holding.size_bytes <= KEPT_ROWS_BYTES:
            first = granted.delivered[0].range.first
            call.context.recent_texts.keep(granted.log, first, short_texts(read, first, style))
            few = _few_texts(call, granted)
    if few is not None:  # at most KEPT_TEXT_BYTES of texts
        made = [text[:-1] + _ending(attempt, receipt_of(head, offset)) for offset, attempt, text in few]
        return Made(JSON_TYPE, headers, [b"".join((opening, b",".join(made), tail))])
    texts = (
        _with_receipt(text, _ending(attempt, receipt_of(head, offset, due_us)))
        for piece, attempt, due_us in rows
        for offset, text in enumerate(writer.texts(piece, style), piece.base_offset)
    )
    pieces = writer.pieces(_listed(opening, texts, tail))
    return Made(JSON_TYPE, headers, pieces, holding.size_bytes)


def _ending(attempt: int, receipt: str) -> bytes:
    return b',"attempt":%d,"receipt":"%b"}' % (attempt, receipt.encode())


def _few_texts(call: Call, granted: Granted) -> list[tuple[int, int, bytes]] | None:
    """Offset, attempt and text of each delivered row, where these are few and were made a moment ago."""
    if granted.log is None:
        return None
    found: list[tuple[int, int, bytes]] = []
    for piece, attempt in granted.delivered:
        texts = call.context.recent_texts.find(granted.log, piece.first, piece.count)
        if texts is None or piece.first < granted.log_start_offset:
            return None
        found += [(offset, attempt, text) for offset, text in enumerate(texts, piece.first)]
    return found


def _rows_ahead(call: Call, granted: Granted) -> int:
    """How many rows to read for a few neighbours of a log, so that the next requests find theirs; else 0."""
    if granted.log is None or len(granted.delivered) != 1:
        return 0
    due_us, first, count = granted.delivered[0].range
    if due_us:
        return 0
    return call.context.recent_texts.ahead(granted.log, first, count) if count <= FEW_ROWS else 0


async def _rows(
    call: Call, answered: Answered, holding: AnswerReservation, ahead: int
) -> tuple[list[tuple[Rows, int, int]], list[Rows]]:
    """The delivered rows, which attempt theirs is, and their due time, 0 on a log. Those that retention took
    meanwhile are left out. Beside them everything that was read of a log: `ahead` rows from the first on."""
    if answered.target.topic.has_due_times:
        due = await _due_rows(call, answered, holding)
        return [(Rows(piece.first, rows), attempt, piece.due_us) for (piece, attempt), rows in due], []
    found: list[tuple[Rows, int, int]] = []
    read: list[Rows] = []
    topic, partition = answered.target.topic, answered.partition
    for begin, end, parts in stretches(answered.granted.delivered):
        offset = begin
        while offset < end:
            count = max(end - offset, ahead)
            wanted = WantedRows(partition, offset, answered.max_bytes, count, local=True)

            async def fetch(admit: Admit, wanted: WantedRows = wanted) -> Fetch:
                return await read_here(call, topic, wanted, admit)

            try:
                _, selected = await call.context.selector.fetch_and_select(
                    fetch, wanted.portion, holding, call.timeout_ms()
                )
            except ShoalError as error:
                offset = _behind_trimmed(error, offset)
                continue
            read += selected.rows
            for rows in selected.rows:
                found += ((part, attempt, 0) for part, attempt in _by_attempt(rows, parts))
            offset = _onward(offset, selected.next_offset)
    return found, read


def _onward(offset: int, next_offset: int) -> int:
    if next_offset <= offset:
        raise ShoalError("not-ready", f"offset {offset} is delivered, and cannot be read here yet")
    return next_offset


def _behind_trimmed(error: ShoalError, offset: int) -> int:
    """Where what is left of the log begins; any other fault is raised."""
    start = error.extra.get("log_start_offset")
    if error.code != "trimmed" or not isinstance(start, int) or start <= offset:
        raise error
    return start


def _by_attempt(rows: Rows, parts: Sequence[DeliveredRange]) -> Iterator[tuple[Rows, int]]:
    behind = rows.base_offset + rows.batch.num_rows
    for piece, attempt in parts:
        first = max(piece.first, rows.base_offset)
        count = min(piece.first + piece.count, behind) - first
        if count > 0:
            yield Rows(first, rows.batch.slice(first - rows.base_offset, count)), attempt


def _with_receipt(text: Iterable[bytes], ending: bytes) -> Iterable[bytes]:
    """A record's text, which ends with a brace, with two more members."""
    if isinstance(text, tuple):  # of a short record, in one part
        return (text[0][:-1] + ending,)
    return _with_ending(text, ending)


def _with_ending(text: Iterable[bytes], ending: bytes) -> Iterator[bytes]:
    last = b""
    for part in text:
        if last:
            yield last
        last = part
    yield last[:-1] + ending


def _listed(head: bytes, texts: Iterable[Iterable[bytes]], tail: bytes) -> Iterator[bytes]:
    before = head
    for text in texts:
        yield before
        yield from text
        before = b","
    if before is head:
        yield head
    yield tail


async def _due_rows(
    call: Call, answered: Answered, holding: AnswerReservation
) -> list[tuple[DeliveredRange, pa.RecordBatch]]:
    """The delivered messages of a timer topic, in their order and without gaps."""
    topic, delivered = answered.target.topic, answered.granted.delivered
    ranges = [one.range for one in delivered]
    found = await call.context.broker.due_records(topic, answered.partition, ranges)
    await holding.add(sum(rows.nbytes for rows in found))
    return [
        (DeliveredRange(piece, one.attempt), rows.select(topic.schema.names))
        for one, all_rows in zip(delivered, found, strict=True)
        for piece, rows in _without_gaps(one.range, all_rows)
    ]


def _without_gaps(piece: Range, rows: pa.RecordBatch) -> Iterator[tuple[Range, pa.RecordBatch]]:
    """The records of a range; where some are past their retention, in pieces."""
    if rows.num_rows == piece.count:
        yield piece, rows
        return
    offsets = rows.column("offset").to_pylist()
    begin = 0
    for at in range(1, len(offsets) + 1):
        if at == len(offsets) or offsets[at] != offsets[at - 1] + 1:
            yield Range(piece.due_us, offsets[begin], at - begin), rows.slice(begin, at - begin)
            begin = at


# ---- Arrow ---------------------------------------------------------------------------------------


async def _make_arrow(call: Call, answered: Answered, holding: AnswerReservation) -> Made:
    target, granted = answered.target, answered.granted
    frames: list[bytes | memoryview] = []
    if target.topic.has_due_times:
        found = await _due_rows(call, answered, holding)
        if found:
            frames.append(memoryview(pa.concat_batches([rows for _, rows in found]).serialize()))
        return _made_arrow(answered, frames, [one for one, _ in found])
    schema = target.topic.schema
    kept: list[DeliveredRange] = []
    for stretch in stretches(granted.delivered):
        offset = stretch.begin
        while offset < stretch.end:
            request = FetchRequest(Offset(offset), answered.max_bytes, local=True, limit=stretch.end - offset)
            try:
                fetch = await call.context.broker.read(target.topic, answered.partition, request)
            except ShoalError as error:
                start = _behind_trimmed(error, offset)
                stretch, offset = stretch.behind(start), start
                continue
            made = list(_cut(fetch.frames, offset, stretch.end, schema))
            await holding.add(sum(map(len, made)))
            frames += made
            offset = _onward(offset, fetch.next_offset)
        kept += stretch.parts
    return _made_arrow(answered, frames, kept)


def _made_arrow(
    answered: Answered, frames: Sequence[bytes | memoryview], kept: Sequence[DeliveredRange]
) -> Made:
    target, granted = answered.target, answered.granted
    # At most 55 characters a range: a header holds as many as an answer may have.
    ranges = (
        f"{piece.first}{f'@{piece.due_us}' if piece.due_us else ''}+{piece.count}*{attempt}"
        for piece, attempt in kept
    )
    headers = _common_headers(target, answered.acked) | {
        "Shoal-Partition": str(answered.partition),
        "Shoal-Delivery": str(granted.delivery),
        "Shoal-Receipt": _head(answered),
        "Shoal-Delivered-At": format_time(granted.time_us),
        "Shoal-Ranges": ",".join(ranges),
    }
    return Made(ARROW_TYPE, headers, [schema_message(target.topic.schema), *frames, END_OF_STREAM])


def _cut(
    frames: Iterable[bytes | memoryview], begin: int, end: int, schema: pa.Schema
) -> Iterator[bytes | memoryview]:
    """Of stored batches the rows from one offset to another: whole batches go as they are."""
    for frame in frames:
        stamp, _ = parse_stamp(frame, 0)
        first, behind = stamp.base_offset, stamp.base_offset + stamp.record_count
        if not stamp.record_count or behind <= begin or first >= end:
            continue
        if begin <= first and behind <= end:
            yield frame
            continue
        start = max(begin, first)
        rows = to_record_batch(frame, schema).slice(start - first, min(end, behind) - start)
        yield memoryview(rows.serialize())


def _head(answered: Answered) -> str:
    group, granted = answered.target.group, answered.granted
    return head_of(group.key, group.mac, answered.partition, granted.generation, granted.delivery)


def _common_headers(target: Target, acked: Outcomes) -> dict[str, str]:
    headers = {"Shoal-Acked": str(acked.done), "Shoal-Ack-Failed": str(len(acked.failed))}
    return headers | ({"Shoal-Created": "true"} if target.created else {})
