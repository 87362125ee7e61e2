"""Reads a stopped log as it lies: every frame verified, damage bridged, nothing written, in bounded memory.

Blocking reads of files opened for reading only: this serves people and scripts, never an agent. recovery.py
tells good frames from others, examination.py has the report.
"""

import os
from collections.abc import Callable
from typing import Self, TypeVar, cast

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
    stamp_of,
)
from shoal.segment_store.check.examination import LogReport, SegmentReport, StoredFrame, compare_index
from shoal.segment_store.disk.system_calls import read_fully, read_fully_into
from shoal.segment_store.errors import FormatError
from shoal.segment_store.format.index import Entry, IndexFile, SegmentIndex, decode_index_file
from shoal.segment_store.format.layout import SegmentName, parse_name
from shoal.segment_store.format.recovery import (
    Chain,
)
from shoal.segment_store.format.segment_scan import SegmentScan, Steps
from shoal.segment_store.format.tail_record import (
    TRAILER_BYTES,
    decode_trailer,
)
from shoal.segment_store.format.torn_write import found_at
from shoal.segment_store.log.index_cache import MAX_INDEX_FILE_BYTES
from shoal.segment_store.log.opener import MAX_HEADER_BYTES

CHUNK_BYTES = 4 * 2**20

Visit = Callable[[StoredFrame], None]
_T = TypeVar("_T")


def segment_names(directory: str) -> list[SegmentName]:
    """The segments of a partition directory, in log order. Raises OSError."""
    return sorted(name for name in map(parse_name, os.listdir(directory)) if name is not None)


def examine_log(
    directory: str, identity: LogIdentity, visit: Visit, only: SegmentName | None = None
) -> LogReport:
    """Read the whole log (or `only` one segment of it) and hand each verified frame to `visit`, in order.

    Raises OSError when a file cannot be read; any bytes give a report."""
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
        scan = SegmentScan(self._identity, self._size, CHUNK_BYTES, chain, position, self._visiting(visit))
        known = max([name.first_index - 1, *(entry.index for entry in index.entries[-1:])])
        if successor is not None:
            known = max(known, successor.first_index - 1)
        while True:
            reason = self._run(scan.follow()).detail
            beyond = self._run(scan.look_beyond())
            known = max(known, beyond.synced_index)
            verdict = self._run(scan.judge())
            chain, position = scan.chain, scan.end_position
            if chain.next_index > known and not verdict.was_written:
                break
            later = verdict.behind or self._run(scan.find_later())
            if later is None and successor is None:
                later = found_at(beyond.newest)
            if later is None:
                chain = self._lost_end(position, reason, chain, known, successor)
                break
            report.lost(position, reason, chain, later.entry.index, later.entry.base_offset)
            scan.skip_to(later)
        report.end_position = position
        self._look_at_end(position, beyond.dirty_end, chain)
        problem = compare_index(index, scan.entries)
        if problem is not None:
            report.notes.append(problem)
        return chain

    def _visiting(self, visit: Visit) -> Callable[[Entry, bytes], None]:
        def visit_frame(entry: Entry, data: bytes) -> None:
            frame = StoredFrame(entry, stamp_of(memoryview(data)), data)
            self.report.count(frame)
            visit(frame)

        return visit_frame

    def _run(self, steps: Steps[_T]) -> _T:
        """Fill the buffers of a scan's step."""
        try:
            position, buffer = next(steps)
            while True:
                filled = read_fully_into(self._fd, position, buffer)
                del buffer  # its memory is used again for the next one
                position, buffer = steps.send(filled)
        except StopIteration as ended:
            return cast("_T", ended.value)

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
            before_first = Chain(LogIndex(name.first_index - 1), name.first_offset, Term(0))
            first = self._run(
                SegmentScan(self._identity, self._size, CHUNK_BYTES, before_first, 0).find_later()
            )
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

    def _look_at_end(self, position: int, dirty_end: int, chain: Chain) -> None:
        """The marker that ends the file for Arrow readers, the tail record, and that only zeros follow."""
        report = self.report
        try:
            decode_trailer(read_fully(self._fd, position, TRAILER_BYTES), 0, self._identity)
            clean_end = position + TRAILER_BYTES
        except FormatError as error:
            clean_end = position
            if report.sealed and not report.damage:
                report.broken(position, f"the end-of-stream marker and tail record: {error}", chain)
        if dirty_end <= clean_end:
            return
        end = f"behind entry {report.last_index}"
        if report.sealed:
            report.notes.append(f"bytes of the file's earlier use {end}, never read")
        else:
            report.notes.append(
                f"an incomplete write {end}, or the file's earlier use, not of this log; "
                "the next start clears it"
            )


def describe_frame(stamp: Stamp) -> str:
    """A frame's kind, and what is special about it, in a few words."""
    words = [stamp.kind.name.lower().replace("_", " ")]
    if stamp.flags & Flag.FIRST_OF_SEGMENT:
        words.append("first of segment")
    if stamp.flags & Flag.GATHERED:
        words.append("gathered")
    return ", ".join(words)
