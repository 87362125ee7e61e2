"""One segment followed frame by frame, and what lies behind its last good one: pure.

Each step is a generator. It yields the place of the bytes that it must see, as (position, buffer). It is sent
how many bytes were filled: fewer at the end of the file. `log/opener.py` reads them for an agent,
`check/offline.py` for a command on a stopped log. So both say the same of the same bytes. Memory is bounded:
at most twice a frame and a chunk.
"""

from collections.abc import Callable, Generator
from typing import NamedTuple, TypeAlias, TypeVar

from shoal.format.batch import MAX_FRAME_BYTES, LogIdentity
from shoal.segment_store.format.index import Entry
from shoal.segment_store.format.recovery import (
    Chain,
    Found,
    Stretch,
    find_frame,
    find_tail_records,
    follow_chain,
    nonzero_end,
)
from shoal.segment_store.format.tail_record import TAIL_RECORD_BYTES, TailRecord
from shoal.segment_store.format.torn_write import Verdict, judge, newest_of, range_to_judge

_T = TypeVar("_T")
Steps: TypeAlias = Generator[tuple[int, memoryview], int, _T]
Visit: TypeAlias = Callable[[Entry, bytes], None]


class _Window:
    """A bounded look into a file that moves forward."""

    def __init__(self, start: int, size: int, chunk_bytes: int) -> None:
        self._size = size
        self._chunk_bytes = chunk_bytes
        self.base = start
        self.buffer = bytearray()

    def extend(self) -> Steps[bool]:
        """More bytes behind the buffer, as many again as it holds; False at the end of the file."""
        held = len(self.buffer)
        length = min(max(self._chunk_bytes, held), self._size - self.base - held)
        if length <= 0:
            return False
        extended = bytearray(held + length)
        extended[:held] = self.buffer
        filled = yield self.base + held, memoryview(extended)[held:]
        self.buffer = extended if filled == length else extended[: held + filled]
        return filled > 0

    def advance(self, position: int) -> None:
        self.buffer = self.buffer[position - self.base :]
        self.base = position


class LaterEvidence(NamedTuple):
    """Evidence behind the last good frame: the greatest synced index that any tail record there proves, the
    end of the last byte that is not zero, and the newest tail record that knows of entries behind that
    frame."""

    synced_index: int
    dirty_end: int
    newest: TailRecord | None = None


class SegmentScan:
    """Follows one segment's chain from `position`; `visit` is given each good frame and its bytes. `size`: of
    the file."""

    def __init__(
        self,
        identity: LogIdentity,
        size: int,
        chunk_bytes: int,
        chain: Chain,
        position: int,
        visit: Visit | None = None,
    ) -> None:
        self._identity = identity
        self._size = size
        self._chunk_bytes = chunk_bytes
        self._visit = visit
        self.chain = chain
        self.end_position = position
        self.entries: list[Entry] = []
        self.beyond = LaterEvidence(0, position)

    def _window(self) -> _Window:
        return _Window(self.end_position, self._size, self._chunk_bytes)

    def follow(self) -> Steps[Stretch]:
        """Take good frames; the last stretch says why that ended."""
        window = self._window()
        while True:
            stretch = follow_chain(window.buffer, window.base, self.chain, self._identity)
            self.entries += stretch.entries
            if self._visit is not None:
                for entry in stretch.entries:
                    start = entry.position - window.base
                    self._visit(entry, bytes(window.buffer[start : start + entry.length]))
            self.chain, self.end_position = stretch.chain, stretch.end_position
            window.advance(stretch.end_position)
            if stretch.reason != "short" or not (yield from window.extend()):
                return stretch

    def look_beyond(self) -> Steps[LaterEvidence]:
        """Read to the end of the file for evidence and for bytes that must be cleared."""
        synced, end = 0, self.end_position
        newest: TailRecord | None = None
        window = self._window()
        while (yield from window.extend()):
            dirty_end = nonzero_end(window.buffer, window.base)
            if dirty_end is not None:
                records = find_tail_records(window.buffer, window.base, self._identity)
                synced = max([synced, *(record.synced_index for record in records)])
                newest = newest_of([*records, *([newest] if newest else [])], self.chain)
                end = max(end, dirty_end)
            overlap = min(len(window.buffer), TAIL_RECORD_BYTES)
            window.advance(window.base + len(window.buffer) - overlap)
        self.beyond = LaterEvidence(synced, end, newest)
        return self.beyond

    def judge(self) -> Steps[Verdict]:
        """Whether the next frame, which does not verify, was written. After look_beyond()."""
        newest = self.beyond.newest
        start, length = range_to_judge(self.end_position, self.beyond.dirty_end, newest)
        data = bytearray(length)
        filled = yield start, memoryview(data)
        return judge(data[:filled], start, self.end_position, self.chain, newest, self._identity)

    def find_later(self) -> Steps[Found | None]:
        """The next whole frame behind a damaged one, with at most a frame and a chunk in memory."""
        window, chunk = self._window(), self._chunk_bytes
        while True:
            more = True
            while more and len(window.buffer) < MAX_FRAME_BYTES + chunk:
                more = yield from window.extend()
            search = max(chunk, len(window.buffer) - MAX_FRAME_BYTES) if more else len(window.buffer)
            found = find_frame(window.buffer, window.base, search, self.chain, self._identity)
            if found is not None or not more:
                return found
            window.advance(window.base + search)

    def skip_to(self, found: Found) -> None:
        """Go on with a frame behind a damaged stretch."""
        entry = found.entry
        time = self.chain.append_time_us
        self.chain = Chain(entry.index, entry.base_offset, found.previous_term, time)
        self.end_position = entry.position
