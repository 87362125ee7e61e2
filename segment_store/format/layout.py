"""Names of files and how they grow: pure, no disk here.

A segment is `<first index>-<first offset>.arrows` with both numbers zero-padded to 20 digits (safety 12: a
segment of control entries only has the same first offset as its successor, so the index comes first), its
index file the same stem with `.index`. A trimmed segment's file that waits for its next use keeps its stem
with `.spare`.
"""

import re
from typing import NamedTuple

from shoal.format.batch import LogIndex, Offset

SEGMENT_SUFFIX = ".arrows"
INDEX_SUFFIX = ".index"
SPARE_SUFFIX = ".spare"
TEMPORARY_SUFFIX = ".tmp"
_STEM = re.compile(r"(\d{20})-(\d{20})")
_MAX_NUMBER = 2**63 - 1


class SegmentName(NamedTuple):
    """A segment's name: its first Raft index and its first record offset."""

    first_index: LogIndex
    first_offset: Offset

    @property
    def stem(self) -> str:
        return f"{self.first_index:020d}-{self.first_offset:020d}"

    @property
    def segment_file(self) -> str:
        return self.stem + SEGMENT_SUFFIX

    @property
    def index_file(self) -> str:
        return self.stem + INDEX_SUFFIX


def parse_name(file_name: str, suffix: str = SEGMENT_SUFFIX) -> SegmentName | None:
    """The name of a segment (or with another suffix of what belongs to one), or None for any other file."""
    if not file_name.endswith(suffix):
        return None
    match = _STEM.fullmatch(file_name[: -len(suffix)])
    if match is None:
        return None
    first_index, first_offset = int(match[1]), int(match[2])
    if not 1 <= first_index <= _MAX_NUMBER or first_offset > _MAX_NUMBER:
        return None
    return SegmentName(LogIndex(first_index), Offset(first_offset))


class Directory(NamedTuple):
    """A partition directory sorted out: segments in log order, files that belong to none of them, and files
    for segments to come."""

    segments: tuple[SegmentName, ...]
    orphans: tuple[str, ...]
    spares: tuple[str, ...]


def sort_directory(file_names: list[str]) -> Directory:
    """Index files without a segment and temporary files of an interrupted rewrite are orphans of this
    package; names it never writes are left alone."""
    segments = sorted(name for name in map(parse_name, file_names) if name is not None)
    known = {name.index_file for name in segments}
    orphans = [
        name
        for name in file_names
        if name.endswith(TEMPORARY_SUFFIX)
        or (parse_name(name, INDEX_SUFFIX) is not None and name not in known)
    ]
    spares = sorted(name for name in file_names if parse_name(name, SPARE_SUFFIX) is not None)
    return Directory(tuple(segments), tuple(sorted(orphans)), tuple(spares))


def next_allocation(allocated: int, needed: int, first: int, max_step: int, segment_bytes: int) -> int:
    """The length to allocate so that `needed` bytes fit: doubling from `first`, in steps of at most
    `max_step`, not beyond the segment's planned size unless `needed` itself is (safety 16)."""
    length = max(allocated, first)
    while length < needed:
        length += min(length, max_step)
    return max(min(length, segment_bytes), needed, allocated)
