"""Fetches the partitions of a topic from wherever they are led, and merges what has come.

Bounded: each fetch, the number at once, the rows kept (counted at the gate), and, but for a stream, their
sum.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterable
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from shoal.agent.http.admission.limits import KIB
from shoal.agent.http.core.context import Call, Deadline
from shoal.agent.http.core.parameters import Places
from shoal.agent.http.fetch.anywhere import FoundRows, WantedRows, fetch_rows
from shoal.agent.http.fetch.merge import Run, next_partitions, tail_counts
from shoal.agent.http.fetch.offsets import OffsetsGatherer
from shoal.agent.http.rows.row_pieces import Rows
from shoal.agent.interface import Topic
from shoal.errors import ShoalError
from shoal.format.batch import TIMESTAMP_COLUMN

T = TypeVar("T")
# Partitions asked at the same time: each may answer with a batch of 17 MiB.
FETCHES_AT_ONCE = 8
FETCH_BYTES_MIN = 64 * KIB


class Merged(NamedTuple):
    """Records in their order: the partition of each, and each partition's as rows."""

    order: list[int]
    rows: dict[int, list[Rows]]


class MergedReader:
    """One merged read. `begin` says where; `close` lets go of what is held."""

    def __init__(self, call: Call, topic: Topic, max_bytes: int, *, follows: bool) -> None:
        self._call = call
        self._topic = topic
        self._max_bytes = max_bytes
        self._follows = follows
        self._holding = call.holding()
        self._runs: list[Run] = []
        self._at_once = asyncio.Semaphore(FETCHES_AT_ONCE)
        self.fetched_bytes = 0

    def begin(self, at: Places) -> None:
        """At these places; every partition of the topic is named."""
        self._runs = [Run(partition, at[partition]) for partition in sorted(at)]

    @property
    def held_bytes(self) -> int:
        """Of memory, for what was merged and what waits to be."""
        return self._holding.size_bytes

    def close(self) -> None:
        """Nothing is held any more."""
        self._runs = []
        self._holding.release()

    @property
    def places(self) -> Places:
        """Where to go on."""
        return {run.partition: run.offset for run in self._runs}

    async def look_again(self) -> None:
        """There may be news behind what had ended."""
        ends = await OffsetsGatherer(self._call, self._topic, None).gather(Deadline(self._call.timeout_ms()))
        for run in self._runs:
            run.ended = not run.rows and ends[run.partition]["high_watermark"] <= run.offset

    async def more(self, limit: int) -> Merged | None:
        """The next records, at most `limit`; None at the end of all partitions, or of the room."""
        while True:
            lacking = [run for run in self._runs if not run.rows and not run.ended]
            if not lacking:
                return self._merge(limit)
            if self.fetched_bytes >= self._max_bytes:
                return None
            if self._follows:  # one that always has more must not keep the news of the others away
                lacking = [run for run in self._runs if not run.rows]
            await together(self._fill(run, limit) for run in lacking)

    def _merge(self, limit: int) -> Merged | None:
        order = next_partitions(self._runs, limit)
        if not order:
            return None
        counts = Counter(order)
        rows = {
            run.partition: run.take(counts[run.partition]) for run in self._runs if run.partition in counts
        }
        return Merged(order, rows)

    async def _fill(self, run: Run, limit: int) -> None:
        share = max(1, min(self._max_bytes, max(FETCH_BYTES_MIN, self._max_bytes // len(self._runs))))
        async with self._at_once:
            found = await self._fetch(WantedRows(run.partition, run.offset, share, limit))
            self.fetched_bytes += found.size_bytes
            run.fill(found.rows, found.size_bytes, ended=found.next_offset >= found.high_watermark)
        if not found.rows:
            run.offset = found.next_offset

    async def _fetch(self, wanted: WantedRows) -> FoundRows:
        try:
            return await fetch_rows(self._call, self._topic, wanted, self._holding, self._call.timeout_ms())
        except ShoalError as error:
            error.extra.setdefault("partition", wanted.partition)
            raise

    def sent(self) -> None:
        """The rows merged so far have gone to the reader: only those that still wait are held."""
        kept = sum(run.size_bytes for run in self._runs)
        self._holding.drop(self._holding.size_bytes - kept)

    async def tail(self, at: Places, ends: Places, count: int) -> Places:
        """Of the records from `at` to `ends` the last `count` in merged order: where they begin."""
        partitions = sorted(at)
        times = await together(self._timestamps(p, at[p], ends[p]) for p in partitions)
        counts = tail_counts(times, count)
        return {p: ends[p] - rows for p, rows in zip(partitions, counts, strict=True)}

    async def _timestamps(self, partition: int, offset: int, end: int) -> pa.Array:
        """Of the records from `offset` to `end`: one for each."""
        pieces = [pa.array([], pa.int64())]
        async with self._at_once:
            while offset < end:
                wanted = WantedRows(partition, offset, self._max_bytes, end - offset, times_only=True)
                found = await self._fetch(wanted)
                for base_offset, batch, _ in found.rows:
                    times = batch.column(TIMESTAMP_COLUMN).slice(0, end - base_offset)
                    pieces.append(times.take(pa.arange(0, len(times))).cast(pa.int64()))
                self._holding.drop(found.size_bytes)
                if found.next_offset <= offset:
                    raise ShoalError(
                        "leadership-lost", f"nothing was read at offset {offset}, before the end"
                    )
                offset = found.next_offset
        return pa.concat_arrays(pieces)


async def together(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """All results; the first error ends the others."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
