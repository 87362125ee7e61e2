"""The consumer: positions in some partitions of a topic, and records that are fetched ahead of them.

Law of this file: it fetches through fetch.py, keeps positions, and never decodes a record. Fetched
records that are not taken yet are bounded. Positions live here and nowhere else: a reader that wants to go on
after a restart keeps them itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeAlias, TypedDict

import pyarrow as pa

from shoal.client.consume.fetch import (
    FOLLOW_WAIT_MS,
    Fetched,
    PartitionOffsets,
    fetch_batches,
    first_offset,
    offsets,
)
from shoal.client.consume.record import Record, records_of
from shoal.client.http.requests import Cluster
from shoal.errors import ClientClosed, ShoalError, unknown_partition
from shoal.format.tabular import FrameKind, check_kind, frame_of, placed
from shoal.format.timestamps import Timestamp, timestamp_us
from shoal.unpicklable import LiveObject

Start: TypeAlias = "str | int | Mapping[int, str | int] | Mapping[str, str | int]"

CONSUMER_FETCH_BYTES: Final = 8 << 20
"""Of a consumer, which fetches ahead: larger fetches read a backlog a tenth faster, smaller begin sooner."""
FETCHES_AHEAD_MAX: Final = 4
"""Fetches of a backlog that were made and not taken, over all partitions: with fetches of 1 to 64 MiB this
bounds memory, and it is enough to fetch while the user works."""
TAIL_BYTES_MAX: Final = 1 << 20
"""Of a fetch that waits at a log's end."""
TAILS_AHEAD_MAX: Final = 2
"""Such fetches of one partition that are not taken yet: one is worked on while the next waits at the end. A
user who follows and does not read holds no more than these."""


class ConsumerOptions(TypedDict, total=False):
    """The records that a consumer reads."""

    partitions: Sequence[int] | None
    """Only these; None: all, or those that `start` names."""
    start: Start
    """earliest, latest, -N (the last N of each partition), @TIME, or a mapping of partitions to these or to
    offsets (partitions it does not name are not read)."""
    follow: bool
    """Go on with records that arrive. Otherwise reading ends at the high watermarks of the moment when the
    consumer was opened."""
    max_bytes: int
    """Of one fetch."""
    nearest: bool
    """Replicas may answer, with committed records only."""


@dataclass(slots=True, eq=False)
class Reading:
    """One partition: `offset` is fetched next, `position` is given next, a bounded reading stops at `end`.
    `lap` counts seeks: records that were fetched before a seek are dropped."""

    partition: int
    offset: int
    position: int
    high_watermark: int
    end: int | None
    paused: bool = False
    lap: int = 0
    task: asyncio.Task[None] | None = None
    tails: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(TAILS_AHEAD_MAX))

    @property
    def finished(self) -> bool:
        return self.end is not None and self.position >= self.end


@dataclass(slots=True)
class _Lot:
    """The rows of one fetch."""

    reading: Reading
    lap: int
    found: deque[Fetched] = field(default_factory=deque)
    next_offset: int = 0
    error: Exception | None = None
    slot: asyncio.Semaphore | None = None
    """Given back once it is taken, or dropped."""

    def let_go(self) -> None:
        """Make room for another fetch."""
        slot, self.slot = self.slot, None
        if slot is not None:
            slot.release()


def _by_number(start: Mapping[Any, str | int]) -> dict[int, str | int]:
    """Positions that were kept as JSON have come back with their partitions as text."""
    numbered: dict[int, str | int] = {}
    for partition, where in start.items():
        number = int(partition) if isinstance(partition, str) and partition.isdecimal() else partition
        if not isinstance(number, int) or isinstance(number, bool):
            raise ShoalError("bad-request", f"start: {partition!r} is no partition, which is a number")
        numbered[number] = where
    return numbered


class AsyncConsumer(LiveObject):
    """Reads one topic: `async for record in client.consumer(topic)`, or its `chunks()`, `batches()`,
    `frames()`; not from several tasks at once. It opens when first read; `async with` opens and closes it.

    Each partition's records come in order, each exactly once, also when leaders change; partitions are
    interleaved. Without `follow` it ends at the high watermarks of the moment it was opened.
    """

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        *,
        partitions: Sequence[int] | None = None,
        start: Start = "earliest",
        follow: bool = False,
        max_bytes: int = CONSUMER_FETCH_BYTES,
        nearest: bool = False,
        in_turn: bool = False,
    ) -> None:
        """`in_turn`: one partition after the other, the same records in the same order each time."""
        if not isinstance(topic, str):
            raise ShoalError(
                "bad-request", f"a consumer reads one topic, and not {topic!r:.80}: open one for each"
            )
        self.topic = topic
        self.follow = follow
        self._cluster = cluster
        self._wanted = partitions
        self._start = start
        self._max_bytes = max_bytes
        self._nearest = nearest
        self._in_turn = in_turn
        self._readings: dict[int, Reading] = {}
        self._lots: asyncio.Queue[_Lot] = asyncio.Queue()  # bounded by the slots and one tail per partition
        self._slots = asyncio.Semaphore(FETCHES_AHEAD_MAX)
        self._current: _Lot | None = None
        self._partial: Fetched | None = None
        """Rows that are being taken one by one: the rest of them goes back if `poll` is called meanwhile."""
        self._records: Iterator[Record] = iter(())
        self.is_open = False
        self._closed = False

    async def __aenter__(self) -> Self:
        return await self.open()

    async def open(self) -> Self:
        """Learn where the partitions are, and where to begin; reading does so by itself. Idempotent.

        Raises ShoalError, Unreachable, and ClientClosed for one that was closed."""
        if self.is_open:
            return self
        if self._closed:
            raise ClientClosed(f"the consumer of {self.topic} is closed: make another")
        await self._cluster.refresh(self.topic, retry=True)
        await self._cluster.learn_agents()
        for known, start in await self._starts():
            first = first_offset(start, known)
            if first > known.high_watermark:
                raise ShoalError(
                    "beyond-end",
                    f"{self.topic}/{known.partition} ends at {known.high_watermark}, before offset {first}",
                    high_watermark=known.high_watermark,
                )
            end = None if self.follow else known.high_watermark
            self._readings[known.partition] = Reading(
                known.partition, first, first, known.high_watermark, end
            )
        self.is_open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop fetching. Positions stay readable."""
        self.is_open, self._closed = False, True
        tasks = [reading.task for reading in self._readings.values() if reading.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._lots = asyncio.Queue()
        self._current = None

    def __repr__(self) -> str:
        state = "open" if self.is_open else "closed"
        at = ", ".join(f"{partition}:{offset}" for partition, offset in sorted(self.positions().items()))
        return f"<{type(self).__name__} of {self.topic!r}, {state}, at {at or 'nothing yet'}>"

    async def _starts(self) -> list[tuple[PartitionOffsets, str]]:
        """Each wanted partition's offsets and where to begin there."""
        start = self._start
        by_partition = _by_number(start) if isinstance(start, Mapping) else None
        wanted = by_partition if self._wanted is None else self._wanted
        texts = [str(text) for text in ([start] if by_partition is None else by_partition.values())]
        times = {text[1:] for text in texts if text.startswith("@")}
        known = {at: await self._offsets(at) for at in times or (None,)}
        any_time, everything = next(iter(known.items()))
        missing = sorted(set(wanted or ()) - set(everything))
        if missing:
            raise unknown_partition(self.topic, missing[0], len(everything))
        found: list[tuple[PartitionOffsets, str]] = []
        for partition in sorted(everything if wanted is None else set(wanted)):
            text = texts[0] if by_partition is None else str(by_partition.get(partition, "earliest"))
            moment = text[1:] if text.startswith("@") else any_time
            found.append((known[moment][partition], text))
        return found

    async def _offsets(self, at: str | None = None) -> dict[int, PartitionOffsets]:
        return {entry.partition: entry for entry in await offsets(self._cluster, self.topic, at)}

    # --- reading

    async def poll(self, timeout_seconds: float | None = None) -> Fetched | None:
        """The next rows of some partition; None at the end, or when none came within `timeout_seconds`.

        Raises ShoalError (trimmed, unknown-topic, ...) and Unreachable; the consumer stays where it was and
        may seek, or try again.
        """
        self._give_back()
        try:
            async with asyncio.timeout(timeout_seconds):
                if not self._closed:
                    await self.open()
                while not self.at_end:
                    found = self._taken()
                    if found is not None:
                        return found
                    self._fetch_on()
                    self._current = await self._lots.get()
        except TimeoutError:
            return None
        return None

    def ready(self) -> Fetched | None:
        """The rows that `poll` would return at once, for another thread; None when `poll` has to be asked."""
        lot = self._current
        if self._partial is not None or lot is None or not lot.found or lot.lap != lot.reading.lap:
            return None
        found = lot.found[0]
        # First: were an interrupt to come between the two, `rewind` would see it.
        lot.reading.position = found.base_offset + found.batch.num_rows
        lot.found.popleft()
        return found

    async def chunks(self) -> AsyncIterator[Fetched]:
        """Rows as they are stored, with their partition and offsets."""
        while (found := await self.poll()) is not None:
            yield found

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """Arrow batches as they are stored: nothing is copied."""
        async for found in self.chunks():
            yield found.batch

    def frames(self, kind: FrameKind = "pandas", rows: int = 100_000) -> AsyncIterator[Any]:
        """Frames of about `rows` records (the last one fewer) with partition and offset in front; following,
        also sooner, when nothing else is there. Raises ClientError for another kind."""
        check_kind(kind)
        return self._frames(kind, rows)

    async def _frames(self, kind: FrameKind, rows: int) -> AsyncIterator[Any]:
        while (frame := await self.next_frame(kind, rows)) is not None:
            yield frame

    async def next_frame(self, kind: FrameKind, rows: int) -> Any | None:
        """One of `frames`; None at the end. If it cannot be made, or waiting for it is cancelled, the
        positions stay where they were."""
        before = self.positions()
        try:
            held: list[pa.RecordBatch] = []
            count = 0
            while count < rows:
                found = await self.poll(0 if held and self.follow else None)
                if found is None:
                    break
                held.append(placed(found.batch, found.partition, found.base_offset))
                count += found.batch.num_rows
            return frame_of(held, kind) if held else None
        except BaseException:
            self.rewind(before)
            raise

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        while True:
            record = next(self._records, None)
            if record is not None:
                self._readings[record.partition].position = record.offset + 1
                return record
            found = await self.poll()
            if found is None:
                raise StopAsyncIteration
            self._records = self.records(found)

    def records(self, found: Fetched) -> Iterator[Record]:
        """The rows that were polled last, one by one; their taker keeps the position of the Reading."""
        records = records_of(self.topic, found)
        self._partial = found  # before the position: an interrupt between the two is seen by `rewind`
        self._readings[found.partition].position = found.base_offset
        return records

    # --- positions

    @property
    def at_end(self) -> bool:
        """Whether everything that a bounded reading wants was taken. Never while following."""
        return bool(self._readings) and all(reading.finished for reading in self._readings.values())

    def positions(self) -> dict[int, int]:
        """The offset of the next record, by partition: a later consumer takes this as its `start`."""
        return {partition: reading.position for partition, reading in self._readings.items()}

    def position(self, partition: int) -> int:
        """The offset of the next record of one partition."""
        return self.reading(partition).position

    def rewind(self, positions: Mapping[int, int]) -> None:
        """Back to these positions: records that were given since are given again."""
        for partition, position in positions.items():
            reading = self._readings[partition]
            if reading.position != position:
                self._leave(reading, position)

    async def seek(self, partition: int, offset: int | str) -> None:
        """Go on at another place: an offset, or earliest, latest, -N, @TIME. A bounded reading keeps its
        end."""
        await self.open()
        reading = self.reading(partition)
        text = str(offset)
        if not text.isdecimal():
            at = text[1:] if text.startswith("@") else None
            known = await self._offsets(at)
            text = str(first_offset(text, known[partition]))
        await self._restart(reading, int(text))

    async def seek_to_time(self, moment: Timestamp) -> dict[int, int]:
        """All partitions to their first record of that time or later; returns the offsets."""
        at = str(timestamp_us(moment) // 1_000)
        await self.open()
        known = await self._offsets(at)
        for partition, reading in self._readings.items():
            found = known[partition].at
            await self._restart(reading, known[partition].high_watermark if found is None else found)
        return self.positions()

    async def lag(self) -> dict[int, int]:
        """How many committed records are ahead of each position, asked of the agents now."""
        await self.open()
        known = await self._offsets()
        return {
            partition: max(0, known[partition].high_watermark - reading.position)
            for partition, reading in self._readings.items()
        }

    async def pause(self, *partitions: int) -> None:
        """Fetch no more of these partitions (none named: of any); records fetched ahead are dropped."""
        await self.open()
        for reading in self._named(partitions):
            reading.paused = True
            await self._restart(reading, reading.position)

    def resume(self, *partitions: int) -> None:
        """Fetch these partitions again (none named: all)."""
        for reading in self._named(partitions):
            reading.paused = False
        self._fetch_on()

    # --- fetching

    def _named(self, partitions: Sequence[int]) -> list[Reading]:
        return [self.reading(number) for number in partitions] if partitions else [*self._readings.values()]

    def reading(self, partition: int) -> Reading:
        """How far the user is in a partition. Raises ShoalError for one that is not read."""
        reading = self._readings.get(partition)
        if reading is None:
            raise ShoalError("unknown-partition", f"partition {partition} of {self.topic} is not read here")
        return reading

    async def _restart(self, reading: Reading, offset: int) -> None:
        task = self._leave(reading, offset)
        if task is not None:
            await asyncio.gather(task, return_exceptions=True)

    def _leave(self, reading: Reading, offset: int) -> asyncio.Task[None] | None:
        """Go on at the offset: records that were fetched for another place count no more, and their fetching
        stops."""
        reading.lap += 1
        if self._partial is not None and self._partial.partition == reading.partition:
            self._partial, self._records = None, iter(())
        task, reading.task = reading.task, None
        if task is not None:
            task.cancel()
        reading.offset = reading.position = offset
        return task

    def _give_back(self) -> None:
        found, self._partial, self._records = self._partial, None, iter(())
        lot = self._current
        if found is None or lot is None or lot.lap != lot.reading.lap:
            return
        taken = lot.reading.position - found.base_offset
        if taken < found.batch.num_rows:
            lot.found.appendleft(
                found._replace(batch=found.batch.slice(taken), base_offset=lot.reading.position)
            )

    def _taken(self) -> Fetched | None:
        """The next rows of the newest fetch; None when another fetch is needed."""
        found = self.ready()
        lot = self._current
        if found is not None or lot is None:
            return found
        self._current = None
        lot.let_go()
        if lot.error is not None and lot.lap == lot.reading.lap:
            lot.reading.task = None
            lot.reading.offset = lot.reading.position
            raise lot.error
        return None

    def _fetch_on(self) -> None:
        """Every partition that may have more is being fetched."""
        if not self.is_open:
            raise ClientClosed(f"the consumer of {self.topic} is not open")
        for reading in self._readings.values():
            over = reading.end is not None and reading.offset >= reading.end
            if reading.task is None and not reading.paused and not over:
                reading.task = asyncio.create_task(self._pull(reading, reading.lap))
            if self._in_turn and not reading.finished:
                return

    async def _pull(self, reading: Reading, lap: int) -> None:
        """Fetch one partition until its end, or until something is wrong with it. While one answer's body
        arrives the next is asked for already."""
        ahead: dict[int, asyncio.Task[_Lot]] = {}
        over = False

        def begin(offset: int) -> None:
            if (
                not over  # a head may still arrive for a fetch that is being cancelled
                and offset not in ahead
                and len(ahead) < FETCHES_AHEAD_MAX
                and reading.end is not None
                and offset < reading.end
            ):
                ahead[offset] = asyncio.create_task(self._fetched(reading, lap, offset, begin))

        try:
            while reading.end is None or reading.offset < reading.end:
                begun = ahead.pop(reading.offset, None)
                if begun is None:
                    self._drop(ahead)  # answered otherwise the second time, by another leader
                    begun = asyncio.create_task(self._fetched(reading, lap, reading.offset, begin))
                try:
                    lot = await begun
                except asyncio.CancelledError:
                    self._drop({reading.offset: begun})
                    raise
                reading.offset = lot.next_offset
                if lot.found:
                    self._lots.put_nowait(lot)
                else:
                    lot.let_go()
        except Exception as error:  # noqa: BLE001 - the reader raises any error
            self._lots.put_nowait(_Lot(reading, lap, error=error))
        finally:
            over = True
            await asyncio.gather(*self._drop(ahead), return_exceptions=True)

    def _drop(self, ahead: dict[int, asyncio.Task[_Lot]]) -> list[asyncio.Task[_Lot]]:
        """Cancel fetches that are not needed any more, and let go their slots, also if they are done."""
        tasks = list(ahead.values())
        ahead.clear()
        for task in tasks:
            task.cancel()
            task.add_done_callback(self._let_go)
        return tasks

    def _let_go(self, task: asyncio.Task[_Lot]) -> None:
        if not task.cancelled() and task.exception() is None:
            task.result().let_go()

    async def _fetched(
        self, reading: Reading, lap: int, offset: int, on_next: Callable[[int], None] | None = None
    ) -> _Lot:
        backlog = offset < reading.high_watermark
        slot = self._slots if backlog else reading.tails
        await slot.acquire()
        try:
            found = await fetch_batches(
                self._cluster,
                self.topic,
                reading.partition,
                offset,
                max_bytes=self._max_bytes if backlog else min(self._max_bytes, TAIL_BYTES_MAX),
                wait_ms=0 if backlog else FOLLOW_WAIT_MS,
                nearest=self._nearest,
                seen=reading.high_watermark,
                on_next=on_next,
            )
        except BaseException:
            slot.release()
            raise
        reading.high_watermark = max(reading.high_watermark, found.high_watermark)
        lot = _Lot(reading, lap, next_offset=found.next_offset, slot=slot)
        for piece in found.pieces:
            if reading.end is not None:
                if piece.base_offset >= reading.end:
                    break
                piece = piece.first(reading.end - piece.base_offset)
            lot.found.append(piece)
        return lot
