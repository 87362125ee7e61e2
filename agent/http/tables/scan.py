"""GET of a table: rows of all partitions in the order of their keys, one page, at one cut of each partition.

Each partition is asked for about its share of a page, at its leader. Partitions that have more bound the
page: behind the last key that one of them told may come a row that it did not tell.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from shoal.agent.http.admission.answer_room import AnswerReservation
from shoal.agent.http.admission.limits import KIB
from shoal.agent.http.api.media import ARROW_TYPE
from shoal.agent.http.core.context import Call, Deadline
from shoal.agent.http.core.forward import Reply
from shoal.agent.http.core.leader import at_leader, partition_of, while_it_leads
from shoal.agent.http.core.parameters import Places
from shoal.agent.http.fetch.anywhere import STREAM_OVERHEAD_BYTES
from shoal.agent.http.fetch.cursors import places
from shoal.agent.http.fetch.merged_reader import FETCHES_AT_ONCE, Merged, together
from shoal.agent.http.produce.decode import encapsulated
from shoal.agent.http.rows.row_pieces import Rows
from shoal.agent.http.tables.target import table_path
from shoal.agent.interface import MAX_SCAN_BYTES, Leader, ScanPage, ScanRequest, Topic
from shoal.errors import ShoalError
from shoal.format.batch import (
    KEY_COLUMN,
    MAX_RECORD_BYTES,
    BatchError,
    Offset,
    StreamDecoder,
    to_record_batch,
)

SHARE_BYTES_MIN: Final = 64 * KIB
OWN_COLUMNS: Final = 2
"""Of a page, before the topic's: the row's offset, and when it was appended."""
OFFLOADED_ROWS: Final = 2_000
"""Longer pages are merged in a thread: a row costs about a microsecond."""
PAGE_BYTES_MAX: Final = MAX_SCAN_BYTES + MAX_RECORD_BYTES + STREAM_OVERHEAD_BYTES
"""Of another agent's page: one row always fits."""
AS_OF: Final = "Shoal-As-Of"
IS_LAST: Final = "Shoal-Is-Last"


class MergedPage(NamedTuple):
    """Rows of several partitions: of each, in ascending order, those that are told; and the partitions in the
    order of the keys. `as_of`: each one's cut. `last_key`: of the last row, None where there is no row."""

    rows: dict[int, pa.RecordBatch]
    order: list[int]
    as_of: Places
    is_last: bool
    last_key: bytes | None

    def merged(self) -> Merged:
        """As records of the log, with offsets of their own."""
        found = {}
        for number, rows in self.rows.items():
            offsets = rows.column(0).to_pylist()
            found[number] = [Rows(0, rows.select(rows.schema.names[OWN_COLUMNS:]), offsets)]
        return Merged(self.order, found)

    def batch(self, schema: pa.Schema) -> pa.RecordBatch:
        """All rows in their order. `schema`: of page_schema."""
        parts = []
        for number, rows in self.rows.items():
            column = pa.repeat(pa.scalar(number, pa.int32()), len(rows))
            parts.append(pa.RecordBatch.from_arrays([column, *rows.columns], schema=schema))
        if len(parts) == 1:
            return parts[0]
        # Arrow's index sort is stable: where each row of the parts goes, and then the reverse of that.
        goes_to = pc.sort_indices(pa.array(self.order, pa.int32()))
        return pa.concat_batches(parts).take(pc.sort_indices(goes_to))


def page_schema(topic: Topic) -> pa.Schema:
    """Of rows in Arrow: partition, offset and append time, then the topic's columns."""
    return pa.schema([pa.field("partition", pa.int32(), False), *_rows_schema(topic)])


def _rows_schema(topic: Topic) -> pa.Schema:
    time = pa.field("append_time", pa.timestamp("us", tz="UTC"), False)
    return pa.schema([pa.field("offset", pa.int64(), False), time, *topic.schema])


class TableReader:
    """Pages of one table. `numbers`: of the partitions that are read."""

    def __init__(self, call: Call, topic: Topic, numbers: list[int], *, local: bool) -> None:
        self._call = call
        self._topic = topic
        self._numbers = numbers
        self._local = local
        self._at_once = asyncio.Semaphore(FETCHES_AT_ONCE)

    async def page(self, wanted: ScanRequest, holding: AnswerReservation) -> MergedPage:
        """The next rows, which are held. ShoalError as scan_rows raises it."""
        share = self._share(wanted)
        found = await together(self._fetch(number, share, holding) for number in self._numbers)
        pages = dict(zip(self._numbers, found, strict=True))
        if sum(len(page.rows) for page in found) <= OFFLOADED_ROWS:
            return merge(pages, wanted.limit)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._call.context.decoders, merge, pages, wanted.limit)

    def _share(self, wanted: ScanRequest) -> ScanRequest:
        """Of one partition. Keys are spread by hash: half as much again and a few is nearly always enough."""
        count = len(self._numbers)
        if count == 1:
            return wanted
        limit = min(wanted.limit, wanted.limit * 3 // (2 * count) + 16)
        max_bytes = min(wanted.max_bytes, max(SHARE_BYTES_MIN, wanted.max_bytes * 3 // (2 * count)))
        return wanted._replace(limit=limit, max_bytes=max_bytes)

    async def _fetch(self, number: int, wanted: ScanRequest, holding: AnswerReservation) -> ScanPage:
        call, topic = self._call, self._topic
        deadline = Deadline(call.timeout_ms())

        async def ask(*, local: bool) -> ScanPage:
            page = await call.context.broker.scan_rows(
                topic, number, wanted, local=local, timeout_ms=deadline.remaining_ms()
            )
            await holding.add(page.rows.nbytes)
            return page

        async def first() -> ScanPage:
            return await ask(local=self._local)

        async def here() -> ScanPage:
            return await ask(local=False)

        async def there(leader: Leader) -> ScanPage:
            return await self._ask_there(leader, number, wanted, holding, deadline)

        led = partition_of(call, topic, number)
        async with self._at_once:
            try:
                return await at_leader(call, led, here, there, deadline, first=first, reads=True)
            except ShoalError as error:
                error.extra.setdefault("partition", number)
                raise

    async def _ask_there(
        self,
        leader: Leader,
        number: int,
        wanted: ScanRequest,
        holding: AnswerReservation,
        deadline: Deadline,
    ) -> ScanPage:
        query = {
            "partition": str(number),
            "prefix_base64": b64encode(wanted.prefix).decode("ascii"),
            "limit": str(wanted.limit),
            "max_bytes": str(wanted.max_bytes),
        }
        if wanted.after is not None:
            query["after_base64"] = b64encode(wanted.after).decode("ascii")
        exchange = self._call.context.forwarder.exchange(
            leader.url,
            "GET",
            table_path(self._topic),
            passed_on=self._call.asker.passed_on,
            timeout_ms=deadline.remaining_ms(),
            query=query,
            headers={"Accept": ARROW_TYPE},
            reply_bytes=PAGE_BYTES_MAX,
            admit=holding.await_room,
        )
        reply = await while_it_leads(self._call.context, leader, self._topic, number, exchange)
        return page_in(reply, self._topic, number)


def page_in(reply: Reply, topic: Topic, number: int) -> ScanPage:
    """Another agent's page of one partition. ShoalError leadership-lost: it is not legible."""
    schema = page_schema(topic)
    try:
        decoder = StreamDecoder(schema, max_message_bytes=PAGE_BYTES_MAX)
        messages = decoder.feed(reply.body)
        decoder.close()
        batches = [to_record_batch(b"".join(encapsulated(message)), schema) for message in messages]
        as_of = (places(dict(reply.headers), AS_OF, len(topic.ranges)) or {})[number]
        is_last = {"true": True, "false": False}[reply.headers[IS_LAST]]
    except (BatchError, KeyError, ShoalError) as error:
        raise ShoalError("leadership-lost", f"the leader's answer is not understood: {error!r}") from None
    filled = [batch for batch in batches if len(batch)]
    if len(filled) > 1 or (not filled and not is_last):
        raise ShoalError("leadership-lost", "the leader's answer is no page of rows")
    rows = filled[0] if filled else pa.RecordBatch.from_pylist([], schema=schema)
    own = pa.RecordBatch.from_arrays(rows.columns[1:], schema=_rows_schema(topic))
    return ScanPage(own, Offset(as_of), is_last)


def merge(pages: dict[int, ScanPage], limit: int) -> MergedPage:
    """The first rows of all these pages."""
    keys = [page.rows.column(KEY_COLUMN) for page in pages.values()]
    as_of = {number: int(page.as_of) for number, page in pages.items()}
    owners = [
        pa.repeat(pa.scalar(number, pa.int32()), len(column))
        for number, column in zip(pages, keys, strict=True)
    ]
    all_keys, all_owners = pa.concat_arrays(keys), pa.concat_arrays(owners)
    bounds = [
        column[-1].as_py() for page, column in zip(pages.values(), keys, strict=True) if not page.is_last
    ]
    sorting = pc.sort_indices(all_keys)
    count = len(sorting)
    if bounds:
        count = pc.sum(pc.less_equal(all_keys, pa.scalar(min(bounds), all_keys.type))).as_py()
    told = min(count, limit)
    order = all_owners.take(sorting.slice(0, told)).to_pylist()
    rows = {number: page.rows.slice(0, order.count(number)) for number, page in pages.items()}
    last_key = all_keys[sorting[told - 1].as_py()].as_py() if told else None
    return MergedPage(rows, order, as_of, not bounds and told == len(sorting), last_key)
