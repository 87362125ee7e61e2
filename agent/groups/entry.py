"""A GROUP_STATE entry: operations of consumer groups <-> bytes.

Law of this file: pure. It says how operations are written, never whether they may happen or what they do:
that stands in partition_group.py. The one error is GroupWireError. Everything is little endian.

An entry has sections, ascending by group. A section has operations, in the order in which they happen. An
operation has a head and a body. Ranges of messages at a body's end are ascending and disjoint.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias

from shoal.agent.groups.place import OFFSETS_MAX, START, GroupWireError
from shoal.agent.receive import DuePlace, GroupKey, Range, StoppedAction

MAX_ENTRY_BYTES: Final = 2**20
"""One entry is folded within one turn of the loop; the rest waits for the next."""
MAX_SECTIONS: Final = 64  # groups of a topic
MAX_OPERATIONS: Final = 8_192  # of a group in an entry: two for each request that a partition may queue
MAX_ENTRY_RANGES: Final = 16_384  # of an operation, twice for Deliver: together well below an entry's bytes
MAX_TEXT_BYTES: Final = 256
"""Of a reason: it is kept for each message that dies of it."""

ENTRY_VERSION: Final = 1
_MAGIC = b"SHGS"
_HEAD = struct.Struct("<4sHHI")  # magic, version, flags (0), sections
_SECTION = struct.Struct("<16sI")  # group, operations
_OPERATION = struct.Struct("<BBHI")  # kind, flags, reserved (0), length of the body
_COUNT = struct.Struct("<I")  # ranges
_RANGE = struct.Struct("<qqI")  # due time, first offset, messages
_ONE_RANGE = struct.Struct("<IqqI")  # both, as they stand for one range
ENTRY_HEAD_BYTES: Final = _HEAD.size
SECTION_HEAD_BYTES: Final = _SECTION.size

_BEGIN = struct.Struct("<qqqq")
_DELIVER = struct.Struct("<16s16sI")
_NUMBER = struct.Struct("<q")
_RELEASE = struct.Struct("<qq")
_DIE = struct.Struct("<qBxH")
_ORDINAL = struct.Struct("<Q")
_SEEK = struct.Struct("<Iqq")
_SKIP = struct.Struct("<qQ")
_DECIDE = struct.Struct("<B")
_DROP = struct.Struct("<qq")


class ReasonCode(IntEnum):
    """Why a message was given up."""

    NACK = 1
    EXPIRED = 2
    REJECTED = 3
    OPERATOR = 4


class Fate(IntEnum):
    """The end of messages that die, as the flags of Die."""

    LETTER = 0
    DROP = 1
    STOP = 2


@dataclass(frozen=True, slots=True)
class Begin:
    """The group begins here, at `place`; `latest`: at the entry itself. `catalog`: epoch and offset of the
    catalog that knew the group."""

    catalog: tuple[int, int]
    place: DuePlace = START
    latest: bool = False


@dataclass(frozen=True, slots=True)
class Deliver:
    """Messages for a consumer. `consumer`, `request`: hashes, NOBODY for none. `passed`: messages looked at
    and left for later, in due order; only where places are due times."""

    consumer: bytes
    request: bytes
    lease_ms: int
    ranges: tuple[Range, ...]
    passed: tuple[Range, ...] = ()


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Messages in flight by that delivery are done."""

    delivery: int
    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class Release:
    """Messages in flight by that delivery come again, from `until_us` on. `uncounted`: it was no attempt."""

    delivery: int
    until_us: int
    ranges: tuple[Range, ...]
    uncounted: bool = False


@dataclass(frozen=True, slots=True)
class Die:
    """Messages of that delivery are given up. `text`: UTF-8, at most MAX_TEXT_BYTES."""

    delivery: int
    code: ReasonCode
    ranges: tuple[Range, ...]
    text: bytes = b""
    fate: Fate = Fate.LETTER


@dataclass(frozen=True, slots=True)
class Lettered:
    """The dead-letter topic has the letters up to this ordinal."""

    ordinal: int


@dataclass(frozen=True, slots=True)
class Seek:
    """Everything begins anew at `place`; `latest`: at the entry itself. `generation`: the new one."""

    generation: int
    place: DuePlace = START
    latest: bool = False


@dataclass(frozen=True, slots=True)
class Skip:
    """The log lost its head up to `offset`, with so many messages that were not done."""

    offset: int
    messages: int


@dataclass(frozen=True, slots=True)
class Free:
    """Dead messages come again: those of the letters up to `ordinal`."""

    ordinal: int
    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class Decide:
    """An operator's word on stopped messages."""

    action: StoppedAction
    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class Drop:
    """The group ends. `catalog`: epoch and offset of the catalog that knows it no more."""

    catalog: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Lost:
    """Messages that nobody can read any more."""

    ranges: tuple[Range, ...]


GroupOperation: TypeAlias = (
    Begin | Deliver | Acknowledge | Release | Die | Lettered | Seek | Skip | Free | Decide | Drop | Lost
)
_ACTIONS = {StoppedAction.RETRY: 1, StoppedAction.LETTER: 2, StoppedAction.DROP: 3}
_ACTION_OF = {number: action for action, number in _ACTIONS.items()}
_CODES = frozenset(ReasonCode)
_FLAGS = {1: 1, 4: 1, 5: 2, 7: 1}
"""The greatest flags of a kind; 0 for the others."""


def encode_ranges(ranges: Sequence[Range]) -> bytes:
    """As they stand in an operation, and in the memory of requests."""
    if len(ranges) == 1:
        return _ONE_RANGE.pack(1, *ranges[0])
    return _COUNT.pack(len(ranges)) + b"".join([_RANGE.pack(*piece) for piece in ranges])


def decode_ranges(data: bytes, position: int = 0) -> tuple[tuple[Range, ...], int]:
    """The ranges at a position, and the position behind them. Raises GroupWireError."""
    begin = position + _COUNT.size
    if begin > len(data):
        raise GroupWireError("ranges without their count")
    (count,) = _COUNT.unpack_from(data, position)
    end = begin + count * _RANGE.size
    if count > MAX_ENTRY_RANGES or end > len(data):
        raise GroupWireError(f"{count} ranges in {len(data) - begin} bytes")
    ranges = tuple(map(Range._make, _RANGE.iter_unpack(data[begin:end])))
    behind = (0, 0)
    for piece in ranges:
        due_us, first, messages = piece
        if (due_us, first) < behind or first < 0 or not messages:
            raise GroupWireError("ranges that are empty, overlap or are out of order")
        behind = (due_us, first + messages)
        if due_us >= OFFSETS_MAX or behind[1] >= OFFSETS_MAX:
            raise GroupWireError(f"a range up to {behind}")
    return ranges, end


def encode_operation(operation: GroupOperation) -> bytes:
    """One operation with its head. The caller keeps to the bounds of this file."""
    kind, flags, body = _body_of(operation)
    assert len(body) < MAX_ENTRY_BYTES, f"{operation!r:.100} has {len(body)} bytes"
    return _OPERATION.pack(kind, flags, 0, len(body)) + body


def size_of(operation: GroupOperation) -> int:
    """Bytes that an operation adds to an entry."""
    return len(encode_operation(operation))


def _body_of(operation: GroupOperation) -> tuple[int, int, bytes]:
    match operation:
        case Begin(catalog, place, latest):
            return 1, int(latest), _BEGIN.pack(*catalog, *place)
        case Deliver(consumer, request, lease_ms, ranges, passed):
            head = _DELIVER.pack(consumer, request, lease_ms)
            return 2, 0, head + encode_ranges(ranges) + encode_ranges(passed)
        case Acknowledge(delivery, ranges):
            return 3, 0, _NUMBER.pack(delivery) + encode_ranges(ranges)
        case Release(delivery, until_us, ranges, uncounted):
            return 4, int(uncounted), _RELEASE.pack(delivery, until_us) + encode_ranges(ranges)
        case Die(delivery, code, ranges, text, fate):
            assert len(text) <= MAX_TEXT_BYTES, f"a reason of {len(text)} bytes"
            return 5, fate, _DIE.pack(delivery, code, len(text)) + text + encode_ranges(ranges)
        case Lettered(ordinal):
            return 6, 0, _ORDINAL.pack(ordinal)
        case Seek(generation, place, latest):
            return 7, int(latest), _SEEK.pack(generation, *place)
        case Skip(offset, messages):
            return 8, 0, _SKIP.pack(offset, messages)
        case Free(ordinal, ranges):
            return 9, 0, _ORDINAL.pack(ordinal) + encode_ranges(ranges)
        case Decide(action, ranges):
            return 10, 0, _DECIDE.pack(_ACTIONS[action]) + encode_ranges(ranges)
        case Drop(catalog):
            return 11, 0, _DROP.pack(*catalog)
        case Lost(ranges):
            return 12, 0, encode_ranges(ranges)


def encode_entry(sections: Mapping[GroupKey, Sequence[GroupOperation]]) -> bytes:
    """The control payload of a GROUP_STATE frame."""
    return join_entry({key: list(map(encode_operation, operations)) for key, operations in sections.items()})


def join_entry(sections: Mapping[GroupKey, Sequence[bytes]]) -> bytes:
    """The same of operations that are encoded already."""
    assert 0 < len(sections) <= MAX_SECTIONS
    parts = [_HEAD.pack(_MAGIC, ENTRY_VERSION, 0, len(sections))]
    for key in sorted(sections):
        operations = sections[key]
        assert 0 < len(operations) <= MAX_OPERATIONS
        parts.append(_SECTION.pack(key, len(operations)))
        parts += operations
    entry = b"".join(parts)
    assert len(entry) <= MAX_ENTRY_BYTES, f"an entry of {len(entry)} bytes"
    return entry


def decode_entry(data: bytes) -> dict[GroupKey, list[GroupOperation]]:
    """The opposite of `encode_entry`. Raises GroupWireError."""
    if len(data) > MAX_ENTRY_BYTES:
        raise GroupWireError(f"an entry of {len(data)} bytes, more than {MAX_ENTRY_BYTES}")
    try:
        magic, version, flags, count = _HEAD.unpack_from(data)
        if magic != _MAGIC or version != ENTRY_VERSION or flags or not 0 < count <= MAX_SECTIONS:
            raise GroupWireError(f"not an entry of groups, version {ENTRY_VERSION}")
        position = _HEAD.size
        sections: dict[GroupKey, list[GroupOperation]] = {}
        last = b""
        for _ in range(count):
            key, number = _SECTION.unpack_from(data, position)
            if key <= last or not 0 < number <= MAX_OPERATIONS:
                raise GroupWireError("sections out of order, or one without operations or with too many")
            last = key
            sections[GroupKey(key)] = operations = []
            position += _SECTION.size
            for _ in range(number):
                operation, position = _decode_operation(data, position)
                operations.append(operation)
    except struct.error as error:
        raise GroupWireError("an entry that ends too early") from error
    if position != len(data):
        raise GroupWireError(f"{len(data) - position} bytes after the last operation")
    return sections


def _decode_operation(data: bytes, position: int) -> tuple[GroupOperation, int]:
    kind, flags, reserved, length = _OPERATION.unpack_from(data, position)
    begin = position + _OPERATION.size
    end = begin + length
    if reserved or flags > _FLAGS.get(kind, 0) or end > len(data):
        raise GroupWireError(f"an operation of kind {kind} with flags {flags} and {length} bytes")
    body = data[begin:end]
    if kind in _FIXED:
        return _decode_fixed(kind, bool(flags), body), end
    operation, used = _decode_ranged(kind, flags, body)
    if used != length:
        raise GroupWireError(f"{length - used} bytes after an operation of kind {kind}")
    return operation, end


_FIXED: Final = {1: _BEGIN, 6: _ORDINAL, 7: _SEEK, 8: _SKIP, 11: _DROP}


def _decode_fixed(kind: int, latest: bool, body: bytes) -> GroupOperation:
    """An operation without ranges."""
    if len(body) != _FIXED[kind].size:
        raise GroupWireError(f"an operation of kind {kind} with {len(body)} bytes")
    fields = _FIXED[kind].unpack(body)
    if min(fields) < 0 or max(fields) >= OFFSETS_MAX:
        raise GroupWireError(f"an operation of kind {kind} with {fields}")
    match kind:
        case 1:
            return Begin((fields[0], fields[1]), DuePlace(*fields[2:]), latest)
        case 6:
            return Lettered(*fields)
        case 7:
            return Seek(fields[0], DuePlace(*fields[1:]), latest)
        case 8:
            return Skip(*fields)
    assert kind == 11
    return Drop((fields[0], fields[1]))


def _decode_ranged(kind: int, flags: int, body: bytes) -> tuple[GroupOperation, int]:
    """An operation with ranges at its end, and where these end."""
    match kind:
        case 2:
            consumer, request, lease_ms = _DELIVER.unpack_from(body)
            ranges, end = decode_ranges(body, _DELIVER.size)
            passed, end = decode_ranges(body, end)
            return Deliver(consumer, request, lease_ms, ranges, passed), end
        case 3:
            (delivery,) = _NUMBER.unpack_from(body)
            ranges, end = decode_ranges(body, _NUMBER.size)
            return Acknowledge(_number_in(delivery), ranges), end
        case 4:
            delivery, until_us = _RELEASE.unpack_from(body)
            ranges, end = decode_ranges(body, _RELEASE.size)
            return Release(_number_in(delivery), _number_in(until_us), ranges, bool(flags)), end
        case 5:
            return _decode_die(flags, body)
        case 9:
            (ordinal,) = _ORDINAL.unpack_from(body)
            ranges, end = decode_ranges(body, _ORDINAL.size)
            return Free(_number_in(ordinal), ranges), end
        case 10:
            (number,) = _DECIDE.unpack_from(body)
            if number not in _ACTION_OF:
                raise GroupWireError(f"an unknown decision {number}")
            ranges, end = decode_ranges(body, _DECIDE.size)
            return Decide(_ACTION_OF[number], ranges), end
        case 12:
            ranges, end = decode_ranges(body)
            return Lost(ranges), end
    raise GroupWireError(f"an operation of the unknown kind {kind}")


def _decode_die(flags: int, body: bytes) -> tuple[Die, int]:
    delivery, code, length = _DIE.unpack_from(body)
    end = _DIE.size + length
    text = body[_DIE.size : end]
    if code not in _CODES or body[9] or length > MAX_TEXT_BYTES or len(text) != length:
        raise GroupWireError(f"a reason {code} of {length} bytes")
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise GroupWireError("a reason that is no UTF-8") from error
    ranges, end = decode_ranges(body, end)
    return Die(_number_in(delivery), ReasonCode(code), ranges, text, Fate(flags)), end


def _number_in(number: int) -> int:
    if not 0 <= number < OFFSETS_MAX:
        raise GroupWireError(f"{number} is no index, time or ordinal")
    return number
