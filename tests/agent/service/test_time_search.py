"""The first offset at or after a time, over batches whose timestamps do not rise."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.durable.ids import GroupId
from shoal.agent.fetch import Fetch, FetchRequest, Offsets
from shoal.agent.service.records import offset_at_time
from shoal.format.batch import (
    DEFAULT_SCHEMA,
    LogIdentity,
    LogIndex,
    Offset,
    Term,
    message_from_batch,
    stamp_message,
)
from shoal.format.records import RecordColumns, columns_to_batch

GROUP = GroupId(b"t" * 16, 0)


class FakeReader:
    """A log of batches; each read gives one. `knows`: whether its index has the timestamps."""

    def __init__(self, batches: Sequence[Sequence[int]], start: int, *, knows: bool) -> None:
        self.frames = []
        self.knows = knows
        self.reads = 0
        offset = 0
        for number, times in enumerate(batches):
            nothing = [None] * len(times)
            batch = columns_to_batch(
                RecordColumns(list(times), list(nothing), list(nothing), list(nothing)), 0
            )
            frame = stamp_message(
                message_from_batch(batch),
                LogIdentity(b"c" * 16, *GROUP),
                base_offset=Offset(offset),
                term=Term(1),
                previous_term=Term(1),
                index=LogIndex(number + 1),
                append_time_us=0,
            )
            self.frames.append(frame)
            offset += len(times)
        self.ends = Offsets(Offset(min(start, offset)), Offset(offset), Offset(offset))

    async def offsets(self) -> Offsets:
        return self.ends

    async def find_time(self, time_us: int, from_offset: Offset) -> Offset:
        for frame in self.frames:
            end = frame.stamp.base_offset + frame.stamp.record_count
            if end > from_offset and (not self.knows or frame.stamp.max_timestamp_us >= time_us):
                return frame.stamp.base_offset
        return self.ends.log_end_offset

    async def read(self, request: FetchRequest) -> Fetch:
        self.reads += 1
        offset = request.offset
        frame = next(
            frame for frame in self.frames if offset < frame.stamp.base_offset + frame.stamp.record_count
        )
        end = Offset(frame.stamp.base_offset + frame.stamp.record_count)
        return Fetch(
            DEFAULT_SCHEMA,
            [frame.data],
            frame.stamp.base_offset,
            end,
            self.ends.high_watermark,
            self.ends.log_start_offset,
        )


@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), max_size=5),
    st.integers(0, 10),
    st.booleans(),
)
async def test_it_finds_what_a_plain_scan_finds(batches: list[list[int]], time_us: int, knows: bool) -> None:
    """Record by record over the whole log; the end when there is none. With timestamps in the index one batch
    is read at most."""
    times = [time for batch in batches for time in batch]
    expected = next((offset for offset, time in enumerate(times) if time >= time_us), len(times))
    reader = FakeReader(batches, 0, knows=knows)
    assert await offset_at_time(reader, time_us) == expected
    assert reader.reads <= (1 if knows else len(batches))
