"""The log against a list, by Hypothesis: any sequence of appends, rolls, truncations, trims, reads and
reopenings."""

import asyncio
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory_disk import MemoryDisk
from store_frames import contents, next_frame, open_log

from shoal.format.batch import Frame
from shoal.segment_store import OffsetOutOfRange, PartitionLog
from shoal.segment_store.format.layout import SPARE_SUFFIX

_number = st.integers(min_value=0, max_value=2**16)
_operations = st.lists(
    st.one_of(
        st.tuples(
            st.just("append"), st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=5)
        ),
        st.tuples(st.just("large"), st.integers(1, 40)),
        st.tuples(st.just("term"), st.integers(1, 3)),
        st.tuples(st.just("truncate"), _number),
        st.tuples(st.just("trim"), _number),
        st.tuples(st.just("read"), st.tuples(_number, _number, st.integers(1, 20_000))),
        st.tuples(st.just("reopen"), st.booleans()),
    ),
    max_size=25,
)


class _Model:
    """A list of frames, and the log that should equal it."""

    def __init__(self, seed: int) -> None:
        self.disk = MemoryDisk(random.Random(seed), pause_max=3)
        self.frames: list[Frame] = []
        self.heads: list[int] = []  # first indices of the segments that are left
        self.term = 1
        self.fill = 0
        self.pending: list[asyncio.Future[None]] = []
        self.log: PartitionLog

    def offer(self, rows: int, *, roll: bool = False, value_bytes: int = 10) -> None:
        self.fill = (self.fill + 1) % 256
        frame = next_frame(
            self.log, rows, term=self.term, fill=self.fill, first_of_segment=roll, value_bytes=value_bytes
        )
        if roll or not self.heads:
            self.heads.append(frame.stamp.index)
        self.pending.append(asyncio.ensure_future(self.log.append([frame])))
        self.frames.append(frame)

    @property
    def first(self) -> int:
        return self.heads[0] if self.heads else 1

    @property
    def held(self) -> list[Frame]:
        return self.frames[self.first - 1 :]

    async def settle(self) -> None:
        await asyncio.gather(*self.pending)
        self.pending.clear()

    async def apply(self, name: str, argument: object) -> None:
        match name, argument:
            case "append", list(frames):
                for rows, roll in frames:
                    self.offer(rows, roll=roll)
            case "large", int(kib):
                self.offer(1, value_bytes=kib * 1024)
            case "term", int(step):
                self.term += step
            case "truncate", int(number):
                lowest = 1 if self.first == 1 else self.first + 1
                from_index = lowest + number % (len(self.frames) + 3 - lowest)
                self.pending.append(asyncio.ensure_future(self.log.truncate_suffix(from_index)))
                del self.frames[from_index - 1 :]
                self.heads = [head for head in self.heads if head < from_index]
            case "trim", int(number):
                before = number % (len(self.frames) + 3)
                self.pending.append(asyncio.ensure_future(self.log.trim(before)))
                self.heads = self.heads[max(0, sum(head <= before for head in self.heads) - 1) :]
            case "read", (first, count, max_bytes):
                held = len(self.frames) + 1 - self.first
                await self.read(self.first + first % (held + 1), count % 8, max_bytes)
                if self.first > 1:
                    with pytest.raises(OffsetOutOfRange):
                        await self.log.read(self.first - 1, self.first, max_bytes)
            case "reopen", power:
                await self.settle()
                await self.log.close()
                if power:
                    self.disk.crash(random.Random(len(self.frames)))
                self.log = await open_log(self.disk)
        self.check()

    async def read(self, first: int, count: int, max_bytes: int) -> None:
        last = min(first + count, len(self.frames))
        if first > last:
            with pytest.raises(OffsetOutOfRange):
                await self.log.read(first, last, max_bytes)
            return
        got = await self.log.read(first, last, max_bytes)
        assert got == self.frames[first - 1 : first - 1 + len(got)]
        assert len(got) == 1 or sum(len(frame.data) for frame in got) <= max_bytes

    def check(self) -> None:
        log, frames = self.log, self.frames
        assert (log.first_index, log.last_index) == (self.first, len(frames))
        assert [span.first_index for span in log.spans()] == self.heads
        assert log.last_term == (frames[-1].stamp.term if frames else 0)
        end = 0
        for frame in frames:
            assert frame.stamp.base_offset == end
            for offset in range(end, end + frame.stamp.record_count):
                if frame.stamp.index >= self.first:
                    assert log.index_for_offset(offset) == frame.stamp.index
            if frame.stamp.index == self.first:
                assert log.start_offset == end
            end += frame.stamp.record_count
            held = frame.stamp.index >= self.first
            assert log.term_at(frame.stamp.index) == (frame.stamp.term if held else None)
        assert log.end_offset == end
        terms = [frame.stamp.term for frame in frames]
        terms = terms[self.first - 1 :]
        runs = [(at + self.first, term) for at, term in enumerate(terms) if not at or terms[at - 1] != term]
        assert log.term_runs() == runs


async def _run(operations: list[tuple[str, object]], seed: int) -> None:
    model = _Model(seed)
    model.log = await open_log(model.disk)
    for name, argument in operations:
        await model.apply(name, argument)
    await model.settle()
    assert model.log.synced_index == len(model.frames)
    assert await contents(model.log) == [frame.data for frame in model.held]
    assert await model.log.verify() == []
    await model.log.close()
    names = [name for name in await model.disk.list("log") if not name.endswith(SPARE_SUFFIX)]
    assert len(names) == 2 * len(model.heads)
    model.log = await open_log(model.disk)
    assert model.log.damage == ()
    assert await contents(model.log) == [frame.data for frame in model.held]
    await model.log.close()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_operations, st.integers(0, 1000))
def test_log_equals_list(operations: list[tuple[str, object]], seed: int) -> None:
    """After any operations, in memory and after reopening, the log holds exactly what the list holds."""
    asyncio.run(_run(operations, seed))
