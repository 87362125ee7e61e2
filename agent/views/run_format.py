"""The bytes of a sorted run: names, the index of its chunks, and the tail record. Pure.

    | Arrow IPC stream: schema, chunks ..., end-of-stream marker | index | filter | tail record, 64 bytes |

A chunk is one record batch message, sorted, and so are the chunks of a run. Nothing is compressed. The
columns are `offset`, `append_time` and the topic's own, so any reader of Arrow streams reads a run as it
lies. The index names each chunk by the sort key of its first row, as bytes whose order is that of the rows.
Every checksum begins with the identity of the log, so that no other partition's run passes for this one's.

    key of a timer's row:   due, offset        (big endian, 8 bytes each)
    key of a table's row:   the record's key
"""

from __future__ import annotations

import re
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple

import crc32c

from shoal.agent.partition.plan import ViewKind
from shoal.format.batch import LogIndex

CHUNK_ROWS: Final = 1_024
CHUNK_BYTES: Final = 128 * 2**10
"""A chunk has no more rows and bytes, but for a single row that is larger: a read of one row costs no more
than a read of this."""
MAX_KEY_BYTES: Final = 65_535
MAX_INDEX_BYTES: Final = 256 * 2**20
"""Of one run's index and of its filter: a million chunks with keys of 256 bytes."""
MAX_HEAD_BYTES: Final = 16 * 2**10
"""Of the schema before the first chunk: that of a topic takes about 700 bytes."""
PRINT_BYTES: Final = 4
"""A filter is made of prints of keys, each of so many bytes."""
TAIL_BYTES: Final = 64

RUN_SUFFIX: Final = ".arrows"
_NAME: Final = re.compile(r"(\d{20})-(\d{20})-(\d{10})\.arrows")
_MAX_INDEX: Final = 2**63 - 1
_MAGIC: Final = b"SHVW"
_VERSION: Final = 1
# magic, crc32c of all behind it, version, kind, reserved; first index, last index, rows.
# Then of index and filter: position, lengths, checksums. Reserved 4.
_TAIL: Final = struct.Struct("<4sIHBBQQQQIIII4x")
_CHECKED_FROM: Final = 8
assert _TAIL.size == TAIL_BYTES
_CHUNK: Final = struct.Struct("<QIIIH")
_PLACE: Final = struct.Struct(">QQ")
PLACE_BYTES: Final = _PLACE.size


class RunFormatError(ValueError):
    """Bytes that are no run, or not one of this log: the one error of every decoder in this room."""


class RunName(NamedTuple):
    """Of one file. Its rows are of the entries from `first_index` to `last_index`. `number`: no two files of
    a view ever have the same, so a name is never used again for other bytes."""

    first_index: LogIndex
    last_index: LogIndex
    number: int

    @property
    def file(self) -> str:
        """In the directory of the view."""
        return f"{self.first_index:020d}-{self.last_index:020d}-{self.number:010d}{RUN_SUFFIX}"


def parse_run_name(file: str) -> RunName | None:
    """None for every name that RunName.file does not make."""
    match = _NAME.fullmatch(file)
    if match is None:
        return None
    first, last, number = map(int, match.groups())
    if not 1 <= first <= last <= _MAX_INDEX:
        return None
    return RunName(LogIndex(first), LogIndex(last), number)


def place_key(due_us: int, offset: int) -> bytes:
    """The sort key of a timer's row."""
    return _PLACE.pack(due_us, offset)


def place_of(key: bytes) -> tuple[int, int]:
    """(due, offset) of a timer's sort key."""
    due_us, offset = _PLACE.unpack(key)
    return due_us, offset


class RunChunk(NamedTuple):
    """One chunk as it is written. `first_key`: the sort key of its first row; `checksum`: of its bytes, begun
    with the identity of the log."""

    first_key: bytes
    position: int
    length: int
    checksum: int
    rows: int


class RunIndex:
    """Where the chunks of a run lie, and what they begin with. About 80 bytes of memory a chunk of timers."""

    __slots__ = ("_lengths", "_positions", "_rows_before", "_sums", "keys")

    def __init__(self, chunks: Sequence[RunChunk]) -> None:
        self.keys = [chunk.first_key for chunk in chunks]
        self._positions = array("Q", [chunk.position for chunk in chunks])
        self._lengths = array("I", [chunk.length for chunk in chunks])
        self._sums = array("I", [chunk.checksum for chunk in chunks])
        self._rows_before = array("Q", accumulate((chunk.rows for chunk in chunks), initial=0))

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def rows(self) -> int:
        """Of all chunks."""
        return self._rows_before[-1]

    @property
    def end(self) -> int:
        """Behind the last chunk; 0 without chunks."""
        return self._positions[-1] + self._lengths[-1] if self._positions else 0

    def rows_before(self, number: int) -> int:
        """Of the chunks before that one; of all of them for the number behind the last."""
        return self._rows_before[number]

    def chunk(self, number: int) -> RunChunk:
        """From 0 on, in the order of their keys."""
        rows = self._rows_before[number + 1] - self._rows_before[number]
        return RunChunk(
            self.keys[number], self._positions[number], self._lengths[number], self._sums[number], rows
        )

    def place(self, number: int) -> tuple[int, int]:
        """Position and length of a chunk."""
        return self._positions[number], self._lengths[number]

    def checksum(self, number: int) -> int:
        """Of the bytes of a chunk."""
        return self._sums[number]

    def holding(self, key: bytes) -> int | None:
        """The chunk that holds the row with that key if there is one: the last that begins at or before it.
        None if all begin behind it."""
        number = bisect_right(self.keys, key) - 1
        return None if number < 0 else number

    def reaching(self, key: bytes) -> int:
        """The first chunk that begins at or behind the key; their count if none does."""
        return bisect_left(self.keys, key)

    def to_bytes(self) -> bytes:
        """As it stands in the file."""
        parts: list[bytes] = []
        for number in range(len(self)):
            key, position, length, checksum, rows = self.chunk(number)
            parts += (_CHUNK.pack(position, length, checksum, rows, len(key)), key)
        return b"".join(parts)


def decode_index(data: bytes) -> RunIndex:
    """Chunks that follow each other in keys and in the file. Raises RunFormatError."""
    chunks: list[RunChunk] = []
    at = end = 0
    while at < len(data):
        if len(data) - at < _CHUNK.size:
            raise RunFormatError("the index ends inside a chunk")
        position, length, checksum, rows, key_bytes = _CHUNK.unpack_from(data, at)
        at += _CHUNK.size
        key = data[at : at + key_bytes]
        at += key_bytes
        if len(key) < key_bytes:
            raise RunFormatError("the index ends inside a key")
        if not rows or not length or position < end or (chunks and key < chunks[-1].first_key):
            raise RunFormatError(f"chunk {len(chunks)} of the index does not follow the one before")
        end = position + length
        chunks.append(RunChunk(key, position, length, checksum, rows))
    return RunIndex(chunks)


class RunTail(NamedTuple):
    """The end of a file. `index_position`: behind the stream; the filter lies right behind the index."""

    kind: ViewKind
    first_index: LogIndex
    last_index: LogIndex
    rows: int
    index_position: int
    index_length: int
    filter_length: int
    index_checksum: int
    filter_checksum: int

    @property
    def filter_position(self) -> int:
        """Behind the index."""
        return self.index_position + self.index_length

    @property
    def file_bytes(self) -> int:
        """Of the whole file."""
        return self.filter_position + self.filter_length + TAIL_BYTES


def encode_tail(tail: RunTail, seed: int) -> bytes:
    """64 bytes. `seed`: of the log's identity."""
    kind, first, last, rows, position, index_length, filter_length, index_sum, filter_sum = tail
    numbers = (first, last, rows, position, index_length, filter_length, index_sum, filter_sum)
    unsigned = _TAIL.pack(_MAGIC, 0, _VERSION, kind, 0, *numbers)
    checksum = crc32c.crc32c(unsigned[_CHECKED_FROM:], seed)
    return _TAIL.pack(_MAGIC, checksum, _VERSION, kind, 0, *numbers)


def decode_tail(data: bytes, seed: int) -> RunTail:
    """Raises RunFormatError."""
    if len(data) != TAIL_BYTES:
        raise RunFormatError(f"a tail record has {TAIL_BYTES} bytes, {len(data)} are there")
    magic, checksum, version, kind, reserved, *numbers = _TAIL.unpack(data)
    if magic != _MAGIC:
        raise RunFormatError("no tail record of a run")
    if crc32c.crc32c(data[_CHECKED_FROM:], seed) != checksum:
        raise RunFormatError("the tail record does not verify")
    if version != _VERSION:
        raise RunFormatError(f"a run of version {version}, this code knows {_VERSION}")
    if reserved or any(data[-4:]) or kind not in tuple(ViewKind):
        raise RunFormatError("the tail record has unknown fields")
    first, last, rows, position, index_length, filter_length, index_sum, filter_sum = numbers
    tail = RunTail(
        ViewKind(kind),
        LogIndex(first),
        LogIndex(last),
        rows,
        position,
        index_length,
        filter_length,
        index_sum,
        filter_sum,
    )
    is_bounded = max(index_length, filter_length) <= MAX_INDEX_BYTES and not filter_length % PRINT_BYTES
    if not 1 <= first <= last <= _MAX_INDEX or not is_bounded:
        raise RunFormatError("the tail record's numbers contradict each other")
    return tail
