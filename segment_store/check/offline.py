"""Reads a stopped log as it lies: every frame verified, damage bridged, nothing written, in bounded memory.

Blocking reads of files opened for reading only: this serves people and scripts, never an agent. What counts
as good is recovery.py's business, what is reported examination.py's.
"""

import os
from collections.abc import Callable, Iterator
from typing import Self

from shoal.format.batch import (
    MAX_FRAME_BYTES,
    BatchError,
    Flag,
    Kind,
    LogIdentity,
    LogIndex,
    Offset,
    Stamp,
    Term,
    parse_frame,
)
from shoal.segment_store.check.examination import LogReport, SegmentReport, StoredFrame, compare_index
from shoal.segment_store.disk.system_calls import read_fully
from shoal.segment_store.errors import FormatError
from shoal.segment_store.format.index import Entry, IndexFile, SegmentIndex, decode_index_file, entry_of
from shoal.segment_store.format.layout import SegmentName, parse_name
from shoal.segment_store.format.recovery import (
    Chain,
    Found,
    chain_problem,
    find_frame,
    find_tail_records,
    nonzero_extent,
)
from shoal.segment_store.format.tail_record import (
    TAIL_RECORD_BYTES,
    TRAILER_BYTES,
    TailRecord,
    decode_trailer,
)
from shoal.segment_store.format.torn_write import Verdict, found_at, judge, newest_of, range_to_judge
from shoal.segment_store.log.index_cache import MAX_INDEX_FILE_BYTES
from shoal.segment_store.log.opener import MAX_HEADER_BYTES

CHUNK_BYTES = 4 * 2**20

Visit = Callable[[StoredFrame], None]


def segment_names(directory: str) -> list[SegmentName]:
    """The segments of a partition directory, in log order. Raises OSError."""
    return sorted(name for name in map(parse_name, os.listdir(directory)) if name is not None)


def examine_log(
    directory: str, identity: LogIdentity, visit: Visit, only: SegmentName | None = None
) -> LogReport:
    """Read the whole log (or `only` one segment of it) and hand each verified frame to `visit`, in order.

    Raises OSError when a file cannot be read; whatever the bytes are is a report.
    """
    report = LogReport(directory)
    names = segment_names(directory)
    chain: Chain | None = None
    for place, name in enumerate(names):
        successor = names[place + 1] if place + 1 < len(names) else None
        if only is not None and name != only:
            continue
        with _SegmentReader(directory, name, identity) as reader:
            chain = reader.examine(chain, successor, visit)
            report.segments.append(reader.report)
    return report


class _SegmentReader:
    """One segment file, open for reading."""

    def __init__(self, directory: str, name: SegmentName, identity: LogIdentity) -> None:
        self._index_path = os.path.join(directory, name.index_file)
        path = os.path.join(directory, name.segment_file)
        self._name = name
        self._identity = identity
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._size = os.fstat(self._fd).st_size
        before = LogIndex(name.first_index - 1)
        self.report = SegmentReport(path, name, self._size, False, before, name.first_offset)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self._fd)

    def examine(self, before: Chain | None, successor: SegmentName | None, visit: Visit) -> Chain:
        """The chain behind this segment, as far as anything tells it."""
        report, name = self.report, self._name
        report.sealed = successor is not None
        index = self._read_index()
        chain, position = self._start(before, index)
        entries: list[Entry] = []
        known = max([name.first_index - 1, *(entry.index for entry in index.entries[-1:])])
        if successor is not None:
            known = max(known, successor.first_index - 1)
        while True:
            reason = ""
            for found in self._frames(position, chain):
                if isinstance(found, str):
                    reason = found
                    break
                entries.append(found.entry)
                report.count(found)
                visit(found)
                chain, position = chain.after(found.entry), found.entry.end_position
            synced, newest = self._tail_records(position, chain)
            known = max(known, synced)
            verdict = self._judge(position, chain, newest)
            if chain.next_index > known and not verdict.was_written:
                break
            later = verdict.behind or self._later(position, chain)
            if later is None and successor is None:
                later = found_at(newest)
            if later is None:
                chain = self._lost_end(position, reason, chain, known, successor)
                break
            report.lost(position, reason, chain, later.entry.index, later.entry.base_offset)
            position = later.entry.position
            chain = Chain(later.entry.index, later.entry.base_offset, later.previous_term)
        report.end_position = position
        self._look_at_end(position, chain)
        problem = compare_index(index, entries)
        if problem is not None:
            report.notes.append(problem)
        return chain

    def _read_index(self) -> IndexFile:
        try:
            with open(self._index_path, "rb") as file:
                data = file.read(MAX_INDEX_FILE_BYTES)
        except FileNotFoundError:
            self.report.notes.append("there is no index file")
            return IndexFile(SegmentIndex(self._name.first_index), 0, None)
        index = decode_index_file(data, self._name.first_index, self._name.first_offset, self._identity)
        self.report.index_entries = len(index.entries)
        return index

    def _start(self, before: Chain | None, index: IndexFile) -> tuple[Chain, int]:
        """The chain at the head of the segment, and where its first frame lies."""
        name, report = self._name, self.report
        expected = Chain(name.first_index, name.first_offset, before.previous_term if before else Term(0))
        if before is not None and before.next_index < name.first_index:
            detail = "no file holds the entries before this segment"
            report.lost(0, detail, before, name.first_index, name.first_offset)
        try:
            header = parse_frame(read_fully(self._fd, 0, MAX_HEADER_BYTES), 0, self._identity)
            if (header.stamp.kind, header.stamp.index, header.stamp.base_offset) != (Kind.SCHEMA, *name):
                raise BatchError("invalid", "it is another segment's")
        except BatchError as error:
            report.broken(0, f"the segment's header: {error}", expected)
            # Where the first frame lies is then known from the index, or from the frames themselves.
            if index.entries:
                return self._chain_of_first(expected, index.entries[0].position), index.entries[0].position
            first = self._later(0, Chain(LogIndex(name.first_index - 1), name.first_offset, Term(0)))
            if first is None or first.entry.index != name.first_index:
                return expected, 0
            return expected._replace(previous_term=first.previous_term), first.entry.position
        return expected._replace(previous_term=header.stamp.previous_term), len(header.data)

    def _chain_of_first(self, expected: Chain, position: int) -> Chain:
        try:
            stamp = parse_frame(read_fully(self._fd, position, MAX_FRAME_BYTES), 0, self._identity).stamp
        except BatchError:
            return expected
        return expected._replace(previous_term=stamp.previous_term)

    def _frames(self, position: int, chain: Chain) -> Iterator[StoredFrame | str]:
        """Frames that verify and continue the chain; then one text that says why there is no more."""
        length = CHUNK_BYTES
        while True:
            buffer = memoryview(read_fully(self._fd, position, length))
            at = 0
            while True:
                try:
                    stamp, data = parse_frame(buffer, at, self._identity)
                except BatchError as error:
                    problem = error
                    break
                wrong = chain_problem(chain, stamp.kind, stamp.index, stamp.base_offset, stamp.previous_term)
                if wrong is not None:
                    yield wrong
                    return
                entry = entry_of(stamp, position + at, len(data))
                yield StoredFrame(entry, stamp, bytes(data))
                chain = chain.after(entry)
                at += len(data)
            at_end = position + len(buffer) >= self._size
            if problem.reason != "short" or at_end or (at == 0 and length > MAX_FRAME_BYTES):
                yield str(problem)
                return
            length = CHUNK_BYTES if at else min(2 * length, 2 * MAX_FRAME_BYTES)
            position += at

    def _tail_records(self, position: int, chain: Chain) -> tuple[int, TailRecord | None]:
        """The last entry that any tail record from here on proves to have been synced (0 for none), and the
        newest record that knows of entries behind the chain."""
        records: list[TailRecord] = []
        while position < self._size:
            buffer = read_fully(self._fd, position, CHUNK_BYTES)
            records += find_tail_records(buffer, position, self._identity)
            if len(buffer) <= TAIL_RECORD_BYTES:
                break
            position += len(buffer) - TAIL_RECORD_BYTES
        return max([0, *(record.synced_index for record in records)]), newest_of(records, chain)

    def _judge(self, position: int, chain: Chain, newest: TailRecord | None) -> Verdict:
        """What the next frame is, which does not verify."""
        start, length = range_to_judge(position, self._size, newest)
        return judge(read_fully(self._fd, start, length), start, position, chain, newest, self._identity)

    def _later(self, position: int, chain: Chain) -> Found | None:
        """The next whole frame of this log from here on that can stand behind the chain."""
        while position < self._size:
            buffer = read_fully(self._fd, position, CHUNK_BYTES + MAX_FRAME_BYTES)
            found = find_frame(buffer, position, CHUNK_BYTES, chain, self._identity)
            if found is not None:
                return found
            position += CHUNK_BYTES
        return None

    def _lost_end(
        self, position: int, reason: str, chain: Chain, known: int, successor: SegmentName | None
    ) -> Chain:
        """Entries up to `known` were there, and nothing behind the damage verifies."""
        end, end_offset = LogIndex(known + 1), None
        if successor is not None and successor.first_index == end:
            end_offset = successor.first_offset
        try:
            record = decode_trailer(read_fully(self._fd, position, TRAILER_BYTES), 0, self._identity)
        except FormatError:
            record = None
        if record is not None and record.last_index == chain.next_index - 1:
            reason = "the segment ends here as it should, and no file holds what follows"
        self.report.lost(position, reason, chain, end, end_offset)
        offset = chain.next_offset if end_offset is None else end_offset
        return Chain(end, Offset(offset), chain.previous_term)

    def _look_at_end(self, position: int, chain: Chain) -> None:
        """The marker that ends the file for Arrow readers, the tail record, and that only zeros follow."""
        report = self.report
        try:
            decode_trailer(read_fully(self._fd, position, TRAILER_BYTES), 0, self._identity)
            clean_end = position + TRAILER_BYTES
        except FormatError as error:
            clean_end = position
            if report.sealed and not report.damage:
                report.broken(position, f"the end-of-stream marker and tail record: {error}", chain)
        while clean_end < self._size:
            buffer = read_fully(self._fd, clean_end, CHUNK_BYTES)
            if not buffer:
                return
            if nonzero_extent(buffer, clean_end) is not None:
                end = f"behind entry {report.last_index}"
                if report.sealed:
                    report.notes.append(f"bytes of the file's earlier use {end}, never read")
                else:
                    report.notes.append(
                        f"an incomplete write {end}, or the file's earlier use, not of this log; "
                        "the next start clears it"
                    )
                return
            clean_end += len(buffer)


def describe_frame(stamp: Stamp) -> str:
    """A frame's kind, and what is special about it, in a few words."""
    words = [stamp.kind.name.lower().replace("_", " ")]
    if stamp.flags & Flag.FIRST_OF_SEGMENT:
        words.append("first of segment")
    if stamp.flags & Flag.GATHERED:
        words.append("gathered")
    return ", ".join(words)
