"""The fold of a log before one of its entries, as the first entry of each segment carries it.

Law of this file: pure; values and bytes. It never learns how the parts that it carries are folded.
"""

import struct
from collections.abc import Sequence
from enum import IntEnum
from itertools import pairwise
from typing import NamedTuple

from shoal.format.batch import LogIndex, Offset, Term
from shoal.replication.errors import WireError
from shoal.replication.interfaces import Configuration

_CHECKPOINT_MAGIC = b"SHCP"
CHECKPOINT_VERSION = 3
"""The newest that is read. It is written where there are consumer groups, and version 2 elsewhere: so agents
of former levels meet none that they cannot read."""
_MAGIC_AND_VERSION = struct.Struct("<4sH")
_SECTIONED = struct.Struct("<4sHHqqqqqII")
_SECTION = struct.Struct("<HHI")
_CHECKPOINT = struct.Struct("<4sHHqqqqqIII")
_CHECKPOINT_1 = struct.Struct("<4sHHqqqqIII")
"""Without elapsed time: such tables count by append times, and that goes on from the last one."""


class SectionType(IntEnum):
    """A part of a checkpoint of version 3. 4, 5 and 6 are reserved: the log inherited, the segments in
    another tier, and schemas."""

    CONFIGURATION = 1
    PRODUCERS = 2
    GROUPS = 3


class FoldError(ValueError):
    """A frame or a checkpoint does not continue the log folded so far: the log, not the caller, is wrong."""


class Checkpoint(NamedTuple):
    """The fold of the log before an entry (safety 18). `last_index` and `last_term` name the last entry
    folded, 0 for none. `group_state`: of consumer groups, empty where there are none."""

    last_index: LogIndex
    last_term: Term
    end_offset: Offset
    append_time_us: int
    configuration: Configuration
    producers: bytes
    group_state: bytes
    elapsed_us: int = 0

    def to_bytes(self) -> bytes:
        """The control payload of a CHECKPOINT frame."""
        configuration = self.configuration.to_bytes()
        if self.group_state:
            return self._in_sections(configuration)
        head = _CHECKPOINT.pack(
            _CHECKPOINT_MAGIC,
            2,
            0,
            self.last_index,
            self.last_term,
            self.end_offset,
            self.append_time_us,
            self.elapsed_us,
            len(configuration),
            len(self.producers),
            0,
        )
        return b"".join((head, configuration, self.producers))

    def _in_sections(self, configuration: bytes) -> bytes:
        sections = {
            SectionType.CONFIGURATION: configuration,
            SectionType.PRODUCERS: self.producers,
            SectionType.GROUPS: self.group_state,
        }
        head = _SECTIONED.pack(
            _CHECKPOINT_MAGIC,
            3,
            0,
            self.last_index,
            self.last_term,
            self.end_offset,
            self.append_time_us,
            self.elapsed_us,
            len(sections),
            0,
        )
        parts = [head]
        for kind, part in sections.items():
            parts += (_SECTION.pack(kind, 0, len(part)), part)
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, data: bytes) -> "Checkpoint":
        """Raises FoldError for anything but one whole checkpoint; padding zeros after it are allowed."""
        if len(data) < _MAGIC_AND_VERSION.size:
            raise FoldError("a checkpoint shorter than its head")
        magic, version = _MAGIC_AND_VERSION.unpack_from(data)
        if magic != _CHECKPOINT_MAGIC or version > CHECKPOINT_VERSION or version < 1:
            raise FoldError(f"not a checkpoint of version 1 to {CHECKPOINT_VERSION}")
        head = (_CHECKPOINT_1, _CHECKPOINT, _SECTIONED)[version - 1]
        if len(data) < head.size:
            raise FoldError("a checkpoint shorter than its head")
        _, _, flags, index, term, end_offset, time_us, *others = head.unpack_from(data)
        elapsed_us, *lengths = [time_us, *others] if version == 1 else others
        if min(index, term, end_offset, elapsed_us) < 0:
            raise FoldError("a checkpoint with a negative position")
        if version == CHECKPOINT_VERSION:
            configuration, producers, group_state = _sections(data, flags, *lengths)
        else:
            configuration, producers, group_state = _parts(data, head.size, lengths)
        return cls(
            LogIndex(index),
            Term(term),
            Offset(end_offset),
            time_us,
            decode_configuration(configuration),
            producers,
            group_state,
            elapsed_us,
        )


def _parts(data: bytes, begin: int, lengths: Sequence[int]) -> list[bytes]:
    """Of the first versions: one behind the other."""
    ends = [begin]
    for length in lengths:
        ends.append(ends[-1] + length)
    if ends[-1] > len(data) or any(data[ends[-1] :]):
        raise FoldError("a checkpoint whose parts and length differ")
    return [data[a:b] for a, b in pairwise(ends)]


def _sections(data: bytes, flags: int, count: int, reserved: int) -> list[bytes]:
    """Configuration, producers, groups. Types ascend, so each is there once."""
    if flags or reserved or count > len(SectionType):
        raise FoldError("a checkpoint of a later level")
    position, last = _SECTIONED.size, 0
    found: dict[int, bytes] = {}
    for _ in range(count):
        if position + _SECTION.size > len(data):
            raise FoldError("a checkpoint that ends within its sections")
        kind, reserved, length = _SECTION.unpack_from(data, position)
        if reserved or kind not in set(SectionType):
            raise FoldError(f"a checkpoint of a later level: section {kind}")
        position += _SECTION.size
        if kind <= last or position + length > len(data):
            raise FoldError("a checkpoint whose sections are out of order, or too long")
        found[kind] = data[position : position + length]
        position, last = position + length, kind
    if any(data[position:]):
        raise FoldError("a checkpoint whose sections and length differ")
    try:
        configuration, producers = found[SectionType.CONFIGURATION], found[SectionType.PRODUCERS]
    except KeyError as error:
        raise FoldError(f"a checkpoint without section {error}") from error
    return [configuration, producers, found.get(SectionType.GROUPS, b"")]


def decode_configuration(data: bytes) -> Configuration:
    """A configuration entry's payload. Raises FoldError."""
    try:
        return Configuration.from_bytes(data)
    except WireError as error:
        raise FoldError(f"a configuration that cannot be read: {error}") from error
