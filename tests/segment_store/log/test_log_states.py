"""The whole log beside a list, as a state machine: Hypothesis chooses the next operation from what is true
now, and shrinks what fails to the shortest history.

Power failures come between operations and among those that are under way; the list then takes over what the
disk kept, within what it was allowed to.
"""

import asyncio
import dataclasses
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from memory_disk import MemoryDisk
from store_frames import SMALL, contents, next_frame, open_log, read_whole

from shoal.format.batch import Frame, LogIndex, Offset
from shoal.segment_store import ChainBroken, DiskFull, LogClosed, OffsetOutOfRange, PartitionLog, StoreError
from shoal.segment_store.check.scrub import look

# The index is written by bytes, not by time: histories have to repeat.
FORGETFUL = dataclasses.replace(
    SMALL, index_bytes=8192, max_open_indexes=1, index_interval_ms=3_600_000, index_interval_bytes=3000
)
part = st.floats(0, 1, exclude_max=True)


class _Behind:
    """What next_frame asks of a log, with these frames behind its end."""

    def __init__(self, log: PartitionLog, frames: list[Frame]) -> None:
        last = frames[-1].stamp if frames else None
        self.end_offset = log.end_offset if last is None else last.base_offset + last.record_count
        self.last_term = log.last_term if last is None else last.term
        self.last_index = log.last_index if last is None else last.index
        self._time_us = log.next_append_time_us(0) if last is None else last.append_time_us

    def next_append_time_us(self, now_us: int) -> int:
        return max(self._time_us, now_us)


async def _end_tasks() -> None:
    """What a failed step has left under way."""
    pending = asyncio.all_tasks() - {asyncio.current_task()}
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)


class LogMachine(RuleBasedStateMachine):
    """`frames` is the log from entry 1 on; what a trim removed stays in the list, below `first`."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.frames: list[Frame] = []
        self.heads: list[int] = []  # first indices of the segments that are left
        self.now_us = 5
        self.fill = 0
        self.term = 1
        self.synced = 0  # every entry up to here has been acknowledged
        self.log: PartitionLog

    def teardown(self) -> None:
        try:
            self.run(self._end)
        finally:
            self.loop.run_until_complete(_end_tasks())
            self.loop.close()

    def run(self, call: Callable[..., Awaitable[Any]], *arguments: Any, **options: Any) -> Any:
        """Call it inside the loop, and wait for what it gives."""

        async def within() -> Any:
            async with asyncio.timeout(60):
                return await call(*arguments, **options)

        return self.loop.run_until_complete(within())

    @initialize(seed=st.integers(0, 2**16))
    def begin(self, seed: int) -> None:
        """An empty log on a disk whose operations overlap."""
        self.rng = random.Random(seed)
        self.disk = MemoryDisk(self.rng, pause_max=3)
        self.log = self.run(open_log, self.disk, config=FORGETFUL)

    # ---- what is true

    @property
    def first(self) -> int:
        return self.heads[0] if self.heads else 1

    @property
    def last(self) -> int:
        return len(self.frames)

    def offered(self, rows: int, *, roll: bool, value_bytes: int) -> Frame:
        """The next frame, in the list and not yet in the log."""
        self.fill = (self.fill + 1) % 256
        frame = next_frame(
            self.log,
            rows,
            term=self.term,
            fill=self.fill,
            first_of_segment=roll,
            value_bytes=value_bytes,
            append_time_us=self.now_us,
        )
        if roll or not self.heads:
            self.heads.append(frame.stamp.index)
        self.frames.append(frame)
        return frame

    def some_index(self, where: float) -> int:
        return self.first + int(where * (self.last + 1 - self.first))

    # ---- operations

    @rule(
        batches=st.lists(
            st.tuples(st.integers(0, 3), st.booleans(), st.sampled_from((1, 90, 900))), min_size=1, max_size=6
        ),
        together=st.booleans(),
        seconds=st.integers(0, 5),
    )
    def append(self, batches: list[tuple[int, bool, int]], together: bool, seconds: int) -> None:
        """One after the other, or all called before any is awaited; time passes before."""

        async def work() -> None:
            waiting = []
            for rows, roll, value_bytes in batches:
                frame = self.offered(rows, roll=roll, value_bytes=value_bytes)
                appending = asyncio.ensure_future(self.log.append([frame]))
                await asyncio.sleep(0)
                waiting.append(appending)
                if not together:
                    await appending
            await asyncio.gather(*waiting)

        self.now_us += seconds * 1_000_000
        self.run(work)
        self.synced = self.last

    @rule(count=st.integers(2, 9))
    def append_as_one(self, count: int) -> None:
        """Many frames by one call, segments begun among them."""
        frames: list[Frame] = []
        for number in range(count):
            self.fill = (self.fill + 1) % 256
            roll = number % 4 == 3
            frame = next_frame(
                _Behind(self.log, frames),
                number % 3,
                term=self.term,
                fill=self.fill,
                first_of_segment=roll,
                append_time_us=self.now_us,
            )
            if roll or not self.heads:
                self.heads.append(frame.stamp.index)
            frames.append(frame)
        self.frames += frames
        self.run(self.log.append, frames)
        self.synced = self.last

    @rule(step=st.integers(1, 3))
    def elect(self, step: int) -> None:
        """The next frames are of a later term."""
        self.term += step

    @precondition(lambda self: self.last > self.first)
    @rule(where=part, overlapping=st.booleans())
    def truncate(self, where: float, overlapping: bool) -> None:
        """Down to any entry that may be uncommitted, alone or with appends of a new branch behind it."""
        lowest = self.first + (self.first > 1)
        from_index = lowest + int(where * (self.last + 1 - lowest))
        kept = self.log.segment_of(LogIndex(from_index - 1)) if from_index > self.first else None
        kept_released = kept is not None and kept.index.is_released
        if kept_released:
            with pytest.raises(StoreError, match="too deep"):
                self.run(self.log.truncate_suffix, LogIndex(from_index))
            return

        async def work() -> None:
            waiting = [asyncio.ensure_future(self.log.truncate_suffix(LogIndex(from_index)))]
            del self.frames[from_index - 1 :]
            self.heads = [head for head in self.heads if head < from_index]
            if overlapping:
                self.term += 1
                frame = self.offered(2, roll=False, value_bytes=50)
                waiting.append(asyncio.ensure_future(self.log.append([frame])))
            await asyncio.gather(*waiting)

        self.run(work)
        self.synced = self.last

    @precondition(lambda self: self.heads)
    @rule(where=part)
    def trim(self, where: float) -> None:
        """Whole segments from the head."""
        before = self.some_index(where)
        self.run(self.log.trim, LogIndex(before))
        self.heads = self.heads[max(0, sum(head <= before for head in self.heads) - 1) :]

    @rule(flush=st.booleans(), power=st.booleans(), seed=st.integers(0, 2**16))
    def restart(self, flush: bool, power: bool, seed: int) -> None:
        """In order, by a kill, or by a power failure; nothing is under way."""
        if flush:
            self.run(self.log.close)
            with pytest.raises(LogClosed):
                self.run(self.log.read, LogIndex(1), LogIndex(1), 1)
        else:
            self.run(self.log._writer.close, flush=False)
        if power:
            self.disk.crash(random.Random(seed))
        self.log = self.run(open_log, self.disk, config=FORGETFUL)

    @rule(batches=st.integers(1, 6), turns=st.integers(0, 40), seed=st.integers(0, 2**16))
    def lose_power_at_work(self, batches: int, turns: int, seed: int) -> None:
        """Appends are under way when the power fails: those acknowledged are there, of the others any
        number, none behind a missing one."""

        async def work() -> None:
            waiting = []
            for number in range(batches):
                frame = self.offered(1 + number % 2, roll=number == 3, value_bytes=400)
                waiting.append(asyncio.ensure_future(self.log.append([frame])))
            for _ in range(turns):
                await asyncio.sleep(0)
            before = self.last - batches
            acknowledged = sum(future.done() and future.exception() is None for future in waiting)
            self.disk.crash(random.Random(seed))
            await asyncio.gather(*waiting, return_exceptions=True)
            await self.log.close()
            self.log = await open_log(self.disk, config=FORGETFUL)
            assert before + acknowledged <= self.log.last_index <= self.last
            del self.frames[self.log.last_index :]
            self.heads = [head for head in self.heads if head <= self.log.last_index]

        self.run(work)
        self.synced = self.last

    @rule(value_bytes=st.integers(5_000, 30_000))
    def fill_the_disk(self, value_bytes: int) -> None:
        """Refused whole; reads go on; accepted by the same log once there is room."""
        capacity, self.disk.capacity_bytes = self.disk.capacity_bytes, self.disk.used_bytes()
        frame = self.offered(3, roll=False, value_bytes=value_bytes)
        try:
            self.run(self.log.append, [frame])
        except DiskFull:
            assert self.log.last_index == self.last - 1
            self.disk.capacity_bytes = capacity
            self.run(self.log.append, [frame])
        self.disk.capacity_bytes = capacity
        self.synced = self.last

    @rule(where=part, count=st.integers(0, 8), max_bytes=st.integers(1, 20_000))
    def read(self, where: float, count: int, max_bytes: int) -> None:
        """By index: any range, bounded."""
        first = self.some_index(where)
        last = min(first + count, self.last)
        if first > last:
            with pytest.raises(OffsetOutOfRange):
                self.run(self.log.read, LogIndex(first), LogIndex(last), max_bytes)
            return
        got = self.run(self.log.read, LogIndex(first), LogIndex(last), max_bytes)
        assert got == self.frames[first - 1 : first - 1 + len(got)]
        assert len(got) == 1 or sum(len(frame.data) for frame in got) <= max_bytes
        pieces, end = self.run(read_whole, self.log, LogIndex(first), LogIndex(last), max_bytes)
        assert (b"".join(pieces), end) == (b"".join(frame.data for frame in got), got[-1].stamp.index)

    @rule(where=part)
    def read_by_offset(self, where: float) -> None:
        """The entry that holds the offset; outside of what is held, the error says what is."""
        log = self.log
        offset = log.start_offset + int(where * (log.end_offset + 2 - log.start_offset))
        if offset >= log.end_offset:
            with pytest.raises(OffsetOutOfRange) as caught:
                self.run(log.find_offset, Offset(offset))
            assert (caught.value.start, caught.value.end) == (log.start_offset, log.end_offset)
            return
        stamp = self.frames[self.run(log.find_offset, Offset(offset)) - 1].stamp
        assert stamp.base_offset <= offset < stamp.base_offset + stamp.record_count

    @rule()
    def scrub(self) -> None:
        """Nothing is damage."""
        following: LogIndex | None = LogIndex(0)
        while following is not None:
            looked = self.run(look, self.log, following, 3000)
            assert looked.found == []
            following = looked.next_index

    @precondition(lambda self: self.frames)
    @rule()
    def offer_what_does_not_follow(self) -> None:
        """A repeated frame is refused, and nothing changes."""
        with pytest.raises(ChainBroken):
            self.run(self.log.append, [self.frames[-1]])

    # ---- what must hold after each of them

    @invariant()
    def equals_the_list(self) -> None:
        """Numbers, times, segments and terms follow from the list."""
        if not hasattr(self, "log"):
            return
        log, held = self.log, self.frames[self.first - 1 :]
        assert log.damage == ()
        assert (log.first_index, log.last_index) == (self.first, self.last)
        assert log.synced_index >= self.synced
        assert log.last_term == (self.frames[-1].stamp.term if self.frames else 0)
        if held:
            assert log.start_offset == held[0].stamp.base_offset
        assert log.end_offset == sum(frame.stamp.record_count for frame in self.frames)
        spans = log.spans()
        assert [span.first_index for span in spans] == self.heads
        ends = [*self.heads[1:], self.last + 1]
        for span, end in zip(spans, ends, strict=False):
            inside = self.frames[span.first_index - 1 : end - 1]
            times = [frame.stamp.append_time_us for frame in inside]
            assert (span.first_append_time_us, span.last_append_time_us) == (times[0], times[-1])
        assert log.next_append_time_us(0) == (self.frames[-1].stamp.append_time_us if self.frames else 0)
        for frame in held:
            assert log.term_at(frame.stamp.index) == frame.stamp.term

    async def _end(self) -> None:
        if not hasattr(self, "log"):
            return
        expected = [frame.data for frame in self.frames[self.first - 1 :]]
        assert await contents(self.log) == expected
        assert await self.log.verify() == []
        await self.log.close()
        self.log = await open_log(self.disk, config=FORGETFUL)
        assert await contents(self.log) == expected
        await self.log.close()


TestLogStates = LogMachine.TestCase
TestLogStates.settings = settings(
    max_examples=20,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
