"""Runs are made of committed entries, merged, and made again where they are damaged.

Law of this file: one piece of work at a time per view. Bytes move on the event loop; decoding, sorting and
encoding are done where `in_thread` does them, in bounded pieces. A piece of work that fails leaves the view
as it was, and whatever it has written goes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Protocol, TypeVar

import pyarrow as pa

from shoal.agent.views.manifest import Reached, RunEntry
from shoal.agent.views.merge_plan import merge_parts, runs_to_merge
from shoal.agent.views.row_order import one_batch
from shoal.agent.views.run_format import RunName, place_key
from shoal.agent.views.run_reader import SortedRun
from shoal.agent.views.run_writer import RunEncoder, RunWriter
from shoal.agent.views.view import SortedView, after
from shoal.format.batch import Frame, Kind, LogIndex, Offset
from shoal.segment_store.errors import Damaged

_T = TypeVar("_T")
READ_BYTES = 512 * 2**10
"""Of the log, read and verified in one round of the event loop: about 200 us."""
ReadChunks = Callable[[], list[pa.RecordBatch]]
"""Verifies and decodes bytes that were read, which is no work for the event loop."""

logger = logging.getLogger(__name__)


class Entries(Protocol):
    """The log, as far as runs are made from it."""

    @property
    def first_index(self) -> LogIndex: ...
    async def read(
        self, first_index: LogIndex, last_index: LogIndex, max_bytes: int, *, shared: bool = False
    ) -> list[Frame]: ...


class Work(Protocol):
    """Runs a function elsewhere, and gives its outcome. In a simulation: here."""

    def __call__(self, function: Callable[[], _T], /) -> Awaitable[_T]: ...


class RunMaker:
    """One per view."""

    def __init__(
        self,
        view: SortedView,
        log: Entries,
        in_thread: Work,
        others: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`others`: what other views do between two pieces of a merge, which may be long."""
        self._view = view
        self._log = log
        self._in_thread = in_thread
        self._others = others
        self._number = 0
        """Of the newest run that was begun."""

    async def work(self, *, expired_us: int, seal: bool = False, has_room: bool = True) -> bool:
        """Do what is most urgent; whether there was something. `expired_us`: rows of a timer that were due
        before are past their retention. `seal`: make a run although there is little to put into one. Without
        room nothing is merged: for a while that takes as much again, while a run lets the log go. Raises
        OSError, StoreError: nothing has changed, and it may be called again."""
        view = self._view
        await view.remove_retired()
        if view.damage:
            return await self._mend()
        if view.wants_run or (seal and view.saved.index < view.applied.index):
            await self.make_run()
            return True
        if not has_room:
            return False
        chosen = runs_to_merge(view.manifest.runs, replaces_rows=view.order.replaces_rows)
        if chosen is not None:
            await self._merge(chosen, expired_us)
            return True
        return await self._shorten(expired_us)

    # ---- of the log

    async def make_run(self) -> None:
        """One run of the entries that memory has and no run, the older ones first, as many as make up one."""
        view = self._view
        frames, reached, size = await self._read(view.saved, view.applied.index)
        name = self._next_name(LogIndex(view.saved.index + 1), reached.index)
        made = await self._written(name, 0, reached.offset, frames)
        entries = (*view.manifest.runs, *(run.entry for run in made))
        manifest = view.manifest._replace(sequence=name.number, applied=reached, runs=entries)
        await view.saved_up_to(manifest, made, size)

    async def _read(self, since: Reached, last_index: LogIndex) -> tuple[list[Frame], Reached, int]:
        """The batches behind `since` up to `last_index`: as many as make up a run, at least of one
        entry. Then how far they go, and the bytes of their entries."""
        limits = self._view.limits
        found: list[Frame] = []
        rows = size = 0
        reached = since
        index = max(LogIndex(since.index + 1), self._log.first_index)
        while index <= last_index:
            for frame in await self._log.read(index, last_index, READ_BYTES, shared=True):
                index = LogIndex(frame.stamp.index + 1)
                if frame.stamp.kind != Kind.DATA:
                    continue
                found.append(frame)
                reached = after(reached, frame)
                rows += frame.stamp.record_count
                size += len(frame.data)
                if size >= limits.run_bytes or rows >= limits.run_rows:
                    return found, reached, size
            await asyncio.sleep(0)  # bytes that the page cache has come without a wait
        return found, reached, size

    async def _written(
        self, name: RunName, level: int, end_offset: Offset, frames: list[Frame]
    ) -> list[SortedRun]:
        """A run of the records of these entries."""
        view = self._view

        def in_order() -> Iterator[pa.RecordBatch]:
            rows = [view.order.rows_of(view.decoded(frame), frame.stamp) for frame in frames]
            frames.clear()
            return view.order.sorted_slices(rows)

        run = _NewRun(self._view, name, level, end_offset, self._in_thread)
        try:
            slices = await self._in_thread(in_order)
            while await run.add(slices, 1):
                pass
            return await run.finish()
        except BaseException:
            await run.abandon()
            raise

    def _next_name(self, first: LogIndex, last: LogIndex) -> RunName:
        """Runs are made while another one is merged: each has its own number."""
        self._number = max(self._number, self._view.manifest.sequence) + 1
        return RunName(first, last, self._number)

    # ---- of other runs

    async def _merge(self, chosen: slice, expired_us: int) -> None:
        """The chosen runs, neighbours, become one of the next level."""
        entries = self._view.manifest.runs[chosen]
        level = entries[0].level + (1 if len(entries) > 1 else 0)
        await self._rewrite(entries, level, is_oldest=chosen.start == 0, expired_us=expired_us)

    async def _shorten(self, expired_us: int) -> bool:
        """Write a run again of which half the rows are past their retention."""
        key = place_key(max(expired_us, 0), 0)
        with self._view.pinned() as runs:
            found = [
                run
                for run in runs
                if expired_us > 0 and 2 * run.index.rows_before(run.index.reaching(key)) > run.entry.rows
            ]
        if not found:
            return False
        at = self._view.manifest.runs.index(found[0].entry)
        await self._merge(slice(at, at + 1), expired_us)
        return True

    async def _rewrite(
        self, entries: Sequence[RunEntry], level: int, *, is_oldest: bool, expired_us: int
    ) -> None:
        view = self._view
        name = self._next_name(entries[0].name.first_index, entries[-1].name.last_index)
        new = _NewRun(view, name, level, entries[-1].end_offset, self._in_thread)
        merge = _Merge(view, new, self._in_thread, is_oldest=is_oldest, expired_us=expired_us)
        with view.pinned() as runs:
            made = await merge.carry_out([run for run in runs if run.entry in entries], self.make_runs)
        await self._replace(entries, made, name.number)

    async def make_runs(self) -> None:
        """Between two pieces of a merge: rows do not wait in memory for its end."""
        if self._view.wants_run:
            await self.make_run()
        if self._others is not None:
            await self._others()

    async def _replace(self, entries: Sequence[RunEntry], made: list[SortedRun], number: int) -> None:
        """The new runs stand where the old ones stood."""
        view, runs = self._view, self._view.manifest.runs
        at = runs.index(entries[0])
        new = (*runs[:at], *(run.entry for run in made), *runs[at + len(entries) :])
        sequence = max(view.manifest.sequence, number)
        await view.replace(view.manifest._replace(sequence=sequence, runs=new), made)
        await view.remove_retired()

    # ---- again

    async def _mend(self) -> bool:
        """Make a damaged run again from the log. False: the log reaches back to none of them."""
        view = self._view
        for entry in view.damage:
            if self._log.first_index <= entry.name.first_index:
                logger.info("%s: making a damaged run again: %s", view, view.damage[entry])
                await self._make_again(entry)
                return True
        return False

    async def _make_again(self, entry: RunEntry) -> None:
        """In its place, as several runs where it was merged of several."""
        view, last = self._view, entry.name.last_index
        made: list[SortedRun] = []
        begun = LogIndex(entry.name.first_index - 1)
        while begun < last:
            since = view.saved._replace(index=begun)
            frames, reached, _ = await self._read(since, last)
            is_last = not frames or reached.index == last
            name = self._next_name(LogIndex(begun + 1), last if is_last else reached.index)
            end_offset = entry.end_offset if is_last else reached.offset
            made += await self._written(name, entry.level, end_offset, frames)
            begun = name.last_index
        await self._replace([entry], made, self._number)


class _NewRun:
    """One run on its way to the disk."""

    def __init__(
        self, view: SortedView, name: RunName, level: int, end_offset: Offset, in_thread: Work
    ) -> None:
        self._view = view
        self._level = level
        self._end_offset = end_offset
        self._in_thread = in_thread
        self._encoder = RunEncoder(view.order, name, view.files.seed)
        self._writer = RunWriter(view.files.disk, view.files.directory, name)

    async def add(self, batches: Iterable[pa.RecordBatch], count: int) -> bool:
        """At most so many more batches of sorted rows; whether there was one, perhaps without rows."""
        taken: list[pa.RecordBatch] = []

        def encode() -> list[memoryview]:
            taken.extend(islice(batches, count))
            return self._encoder.rows_in_chunks(taken)

        encoded = await self._in_thread(encode)
        if encoded and not self._writer.has_begun:
            await self._writer.write(self._encoder.head)
        await self._writer.write(encoded)
        return bool(taken)

    async def finish(self) -> list[SortedRun]:
        """The run; none of no rows."""
        if not self._encoder.rows:
            return []
        await self._writer.write(await self._in_thread(self._encoder.end))
        entry = await self._writer.finish(self._level, self._end_offset, self._encoder.rows)
        files = self._view.files
        return [await SortedRun.open(files.open_files, files.directory, entry, self._view.order, files.seed)]

    async def abandon(self) -> None:
        """Nothing of it stays."""
        await self._writer.abandon()


class _Merge:
    """Several runs become one, a piece at a time."""

    def __init__(
        self,
        view: SortedView,
        new: _NewRun,
        in_thread: Work,
        *,
        is_oldest: bool,
        expired_us: int,
    ) -> None:
        self._view = view
        self._in_thread = in_thread
        self._new = new
        self._is_oldest = is_oldest
        self._expired_us = expired_us
        self._left_over: list[pa.RecordBatch] = []

    async def carry_out(
        self, runs: Sequence[SortedRun], between: Callable[[], Awaitable[None]]
    ) -> list[SortedRun]:
        """`runs`: oldest first. `between`: done behind each piece. Raises Damaged, and tells the view."""
        self._left_over = [one_batch((), self._view.order.schema) for _ in runs]
        try:
            for part in merge_parts([run.index for run in runs]):
                read = [
                    partial(run.verified, *chunks, await run.chunk_bytes(*chunks))
                    for run, chunks in zip(runs, part.chunks, strict=True)
                ]
                rows = await self._in_thread(partial(self._sorted, read, part.bound))
                while await self._new.add(rows, 1):
                    pass
                await between()
            return await self._new.finish()
        except Damaged as damage:
            await self._new.abandon()
            self._view.met(damage)
            raise
        except BaseException:
            await self._new.abandon()
            raise

    def _sorted(self, read: Sequence[ReadChunks], bound: bytes | None) -> Iterable[pa.RecordBatch]:
        """The rows before the bound, in order; the others stay for the next piece. Raises Damaged."""
        order, ready = self._view.order, []
        for number, chunks in enumerate(read):
            rows = one_batch([self._left_over[number], *chunks()], order.schema)
            end = rows.num_rows if bound is None else order.position_of(rows, bound)
            ready.append(rows.slice(0, end))
            self._left_over[number] = rows.slice(end)
        kept = order.sorted_slices(ready)
        return (order.kept(rows, is_oldest=self._is_oldest, expired_us=self._expired_us) for rows in kept)
