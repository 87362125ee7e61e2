"""A table as an event stream: its rows, then `current`, then each change as it commits.

Pages of rows rest on different cuts. So changes are told from the first page's cut on, and `current` once
they have reached the last page's. Rows and changes up to there, in their order, are the table at that cut.
Before that no event has an id, and a reader whose connection breaks begins again. From then on each id is a
cursor, which goes on at any agent.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, compress
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from aiohttp import web

from shoal.agent.http.core.context import Call, Deadline
from shoal.agent.http.core.event_stream import LAST_EVENT_ID, format_event
from shoal.agent.http.core.parameters import Places
from shoal.agent.http.fetch.cursors import MovingCursor, format_places, places
from shoal.agent.http.fetch.follow import Source, follow
from shoal.agent.http.fetch.merged import texts_of
from shoal.agent.http.fetch.merged_reader import Merged, MergedReader
from shoal.agent.http.fetch.offsets import OffsetsWait
from shoal.agent.http.fetch.render import Rendering
from shoal.agent.http.rows.row_pieces import SLICE_ROWS, Rows, RowWriter
from shoal.agent.http.tables.scan import MergedPage, TableReader
from shoal.agent.interface import ScanRequest, Topic
from shoal.errors import ShoalError
from shoal.format.batch import KEY_COLUMN

PASSED_MAX: Final = 1_000
"""Changes of other keys since the last id. Then `current` tells one, so that a watch of few keys does not
fall behind the log's start."""
PAGE_ROWS: Final = 1_000


async def watch(call: Call, topic: Topic, prefix: bytes, rendering: Rendering) -> web.StreamResponse:
    """The stream, from the beginning or behind the Last-Event-ID. ShoalError trimmed: the log begins behind
    that; scan again."""
    last = call.headers.get(LAST_EVENT_ID)
    start = places({LAST_EVENT_ID: last}, LAST_EVENT_ID, len(topic.ranges)) if last else None
    if start is not None and len(start) < len(topic.ranges):
        raise ShoalError("bad-request", f"{LAST_EVENT_ID} names not all partitions: it is none of a watch's")
    limits = call.context.limits
    changes = MergedReader(call, topic, limits.default_read_bytes, follows=True)
    source = WatchSource(call, topic, prefix, rendering, changes, start)
    return await call.streaming(follow(call, source))


class WatchSource(Source):
    """The stream of one watch. `start`: where changes are told from; None: rows first."""

    def __init__(
        self,
        call: Call,
        topic: Topic,
        prefix: bytes,
        rendering: Rendering,
        changes: MergedReader,
        start: Places | None,
    ) -> None:
        super().__init__(None)
        self._call = call
        self._topic = topic
        self._rendering = rendering
        self._wanted = ScanRequest(prefix, None, PAGE_ROWS, call.context.limits.default_read_bytes)
        self._changes = changes
        self._holding = call.holding()
        self._page: MergedPage | None = None
        self._merged: Merged | None = None
        self._current_at: Places | None = None
        """The last page's cut, until `current` has been told."""
        self._passed = 0
        self._cursor = MovingCursor({})
        self._start = start
        """The first page's cut, once there is one."""
        self._in_rows = start is None
        if start is not None:
            self._begin_changes(start)

    def _begin_changes(self, start: Places) -> None:
        self._changes.begin(start)
        self._cursor = MovingCursor(start)

    async def look(self, wait_ms: int) -> bool:
        """Read what comes next; whether there is any."""
        self._holding.release()
        self._page = self._merged = None
        if self._in_rows:
            await self._read_page()
            return True
        self._changes.sent()
        self._merged = await self._more()
        if self._merged is None and self._is_current:
            return True
        if self._merged is None and wait_ms:
            wait = Deadline(wait_ms)
            await OffsetsWait(self._call, self._topic, self._changes.places, wait).until_one_passes()
            await self._changes.look_again()
            self._merged = await self._more()
        return self._merged is not None

    async def _read_page(self) -> None:
        numbers = list(range(len(self._topic.ranges)))
        reader = TableReader(self._call, self._topic, numbers, local=False)
        self._page = page = await reader.page(self._wanted, self._holding)
        if self._start is None:
            self._start = page.as_of
        if page.is_last:
            self._in_rows, self._current_at = False, page.as_of
            self._begin_changes(self._start)
        else:
            self._wanted = self._wanted._replace(after=page.last_key)

    @property
    def _is_current(self) -> bool:
        """Whether that is to be told now."""
        goal = self._current_at
        return goal is not None and all(self._changes.places[number] >= goal[number] for number in goal)

    async def _more(self) -> Merged | None:
        self._changes.fetched_bytes = 0  # of a stream what is held is bounded, not what it sends in all
        return await self._changes.more(SLICE_ROWS)

    def pieces(self) -> Iterator[bytes]:
        """The rows of a page, or changes, or the word that these are all."""
        writer = RowWriter()
        if self._page is not None:
            texts = texts_of(self._page.merged(), self._rendering, writer)
            yield from writer.pieces(
                part for _, text in texts for part in (b"event: row\ndata: ", *text, b"\n\n")
            )
        if self._merged is not None:
            yield from writer.pieces(self._told(self._merged, writer))
        if self._is_current or self._passed >= PASSED_MAX:
            self._current_at, self._passed = None, 0
            cut = format_places(self._cursor.places)
            yield format_event(cut, "current", {"as_of": cut})

    def _told(self, merged: Merged, writer: RowWriter) -> Iterator[bytes]:
        """Of the changes those of wanted keys."""
        kept: dict[int, list[Rows]] = {}
        masks: dict[int, Iterator[bool]] = {}
        for number, rows in merged.rows.items():
            wanted = [begin_so(one, self._wanted.prefix) for one in rows]
            masks[number] = chain.from_iterable(mask.to_pylist() for mask in wanted)
            kept[number] = [wanted_of(one, mask) for one, mask in zip(rows, wanted, strict=True)]
        is_wanted = [next(masks[number]) for number in merged.order]
        order = list(compress(merged.order, is_wanted))
        texts = texts_of(Merged(order, kept), self._rendering, writer)
        for number, wanted_one in zip(merged.order, is_wanted, strict=True):
            cursor = self._cursor.step(number)
            if not wanted_one:
                self._passed += 1
                continue
            self._passed = 0
            if self._current_at is None:
                yield b"id: %b\n" % cursor.encode("ascii")
            yield b"event: change\ndata: "
            yield from next(texts)[1]
            yield b"\n\n"

    def close(self) -> None:
        """Nothing is held any more."""
        self._page = self._merged = None
        self._holding.release()
        self._changes.close()


def begin_so(rows: Rows, prefix: bytes) -> pa.Array:
    """Whether the key of each begins so."""
    return pc.fill_null(pc.starts_with(rows.batch.column(KEY_COLUMN), pattern=prefix), False)


def wanted_of(rows: Rows, mask: pa.Array) -> Rows:
    """Those that the mask has, with offsets of their own where these are not all."""
    numbers = pc.indices_nonzero(mask)
    if len(numbers) == len(mask):
        return rows
    offsets = pc.add(numbers.cast(pa.int64()), rows.base_offset).to_pylist()
    return Rows(rows.base_offset, rows.batch.take(numbers), offsets)
