"""The bytes of a GROUP_STATE entry: there and back, and what is refused."""

from __future__ import annotations

import random
import struct

import pytest

from shoal.agent.groups.entry import (
    ENTRY_HEAD_BYTES,
    MAX_ENTRY_BYTES,
    MAX_ENTRY_RANGES,
    MAX_OPERATIONS,
    MAX_SECTIONS,
    SECTION_HEAD_BYTES,
    Acknowledge,
    Begin,
    Decide,
    Deliver,
    Die,
    Drop,
    Fate,
    Free,
    GroupOperation,
    Lettered,
    Lost,
    ReasonCode,
    Release,
    Seek,
    Skip,
    decode_entry,
    decode_ranges,
    encode_entry,
    encode_operation,
    encode_ranges,
    size_of,
)
from shoal.agent.groups.place import OFFSETS_MAX, GroupWireError
from shoal.agent.receive import NOBODY, DuePlace, GroupKey, Range, StoppedAction
from tests.agent.groups.group_entries import KEYS, World, random_operation

RANGES = (Range(0, 5, 10), Range(0, 20, 1), Range(7, 0, 4))
EVERY: list[GroupOperation] = [
    Begin((1, 2), DuePlace(3, 4)),
    Begin((1, 2), latest=True),
    Deliver(b"c" * 16, NOBODY, 30_000, RANGES, RANGES[:1]),
    Acknowledge(5, RANGES),
    Release(5, 70, RANGES),
    Release(5, 0, RANGES, uncounted=True),
    Die(5, ReasonCode.NACK, RANGES, "zu früh".encode()),
    Die(5, ReasonCode.EXPIRED, RANGES, fate=Fate.DROP),
    Die(5, ReasonCode.REJECTED, RANGES, b"x" * 256, Fate.STOP),
    Lettered(4),
    Seek(2, DuePlace(0, 7)),
    Seek(2, latest=True),
    Skip(9, 3),
    Free(3, ()),
    Decide(StoppedAction.RETRY, RANGES),
    Decide(StoppedAction.LETTER, RANGES),
    Decide(StoppedAction.DROP, RANGES),
    Drop((1, 9)),
    Lost(RANGES),
]


def entry_with(kind: int, body: bytes, flags: int = 0, reserved: int = 0) -> bytes:
    """An entry of one operation, as somebody else may write it."""
    head = struct.pack("<4sHHI", b"SHGS", 1, 0, 1) + struct.pack("<16sI", KEYS[0], 1)
    return head + struct.pack("<BBHI", kind, flags, reserved, len(body)) + body


def test_every_operation_there_and_back() -> None:
    """In the order in which they were given, groups ascending by id; the size is known before."""
    entry = encode_entry({KEYS[1]: EVERY, KEYS[0]: EVERY[:1]})
    decoded = decode_entry(entry)
    assert decoded == {KEYS[0]: EVERY[:1], KEYS[1]: EVERY}
    assert list(decoded) == [KEYS[0], KEYS[1]]
    sizes = sum(map(size_of, EVERY)) + size_of(EVERY[0])
    assert len(entry) == ENTRY_HEAD_BYTES + 2 * SECTION_HEAD_BYTES + sizes


def test_how_an_entry_is_written() -> None:
    """Byte by byte: an entry of today is read for ever."""
    expected = "534847530100000001000000" + KEYS[0].hex() + "02000000"
    expected += "03000000200000000500000000000000"
    expected += "010000000000000000000000070000000000000002000000"
    expected += "0a000000050000000200000000"
    operations: list[GroupOperation] = [
        Acknowledge(5, (Range(0, 7, 2),)),
        Decide(StoppedAction.LETTER, ()),
    ]
    assert encode_entry({KEYS[0]: operations}).hex() == expected


@pytest.mark.parametrize("by_due", [False, True])
def test_random_entries_there_and_back(by_due: bool) -> None:
    """All that the machines of these tests do is written, too."""
    chance = random.Random(7)
    for _ in range(300):
        world = World(by_due, 20, letters_given=5)
        operations = {key: [random_operation(chance, world) for _ in range(4)] for key in KEYS}
        assert decode_entry(encode_entry(operations)) == operations


@pytest.mark.parametrize(
    "entry",
    [
        b"",
        encode_entry({KEYS[0]: EVERY})[:-1],
        encode_entry({KEYS[0]: EVERY}) + b"\0",
        b"SHGT" + encode_entry({KEYS[0]: EVERY})[4:],
        struct.pack("<4sHHI", b"SHGS", 2, 0, 1) + encode_entry({KEYS[0]: EVERY})[12:],
        struct.pack("<4sHHI", b"SHGS", 1, 1, 1) + encode_entry({KEYS[0]: EVERY})[12:],
        struct.pack("<4sHHI", b"SHGS", 1, 0, 0),
        struct.pack("<4sHHI", b"SHGS", 1, 0, MAX_SECTIONS + 1),
        struct.pack("<4sHHI", b"SHGS", 1, 0, 2) + 2 * encode_entry({KEYS[0]: EVERY})[12:],
        struct.pack("<4sHHI", b"SHGS", 1, 0, 1) + KEYS[0] + struct.pack("<I", 0),
        struct.pack("<4sHHI", b"SHGS", 1, 0, 1) + KEYS[0] + struct.pack("<I", MAX_OPERATIONS + 1),
        b"\0" * (MAX_ENTRY_BYTES + 1),
    ],
    ids=range(12),
)
def test_entries_that_are_none(entry: bytes) -> None:
    """Heads and sections with wrong numbers, too short or too long."""
    with pytest.raises(GroupWireError):
        decode_entry(entry)


ACKNOWLEDGE = struct.pack("<q", 5)
ONE = encode_ranges((Range(0, 5, 1),))


@pytest.mark.parametrize(
    ("kind", "body", "flags", "reserved"),
    [
        (0, b"", 0, 0),
        (13, b"", 0, 0),
        (3, ACKNOWLEDGE + ONE, 1, 0),
        (3, ACKNOWLEDGE + ONE, 0, 1),
        (3, ACKNOWLEDGE + ONE + b"\0", 0, 0),
        (3, ACKNOWLEDGE + ONE[:-1], 0, 0),
        (3, ACKNOWLEDGE[:-1], 0, 0),
        (3, struct.pack("<q", -5) + ONE, 0, 0),
        (3, ACKNOWLEDGE + struct.pack("<I", MAX_ENTRY_RANGES + 1), 0, 0),
        (3, ACKNOWLEDGE + struct.pack("<IqqI", 1, 0, 5, 0), 0, 0),
        (3, ACKNOWLEDGE + struct.pack("<IqqI", 1, 0, -5, 1), 0, 0),
        (3, ACKNOWLEDGE + struct.pack("<IqqI", 1, -1, 5, 1), 0, 0),
        (3, ACKNOWLEDGE + struct.pack("<IqqI", 1, 0, OFFSETS_MAX - 1, 1), 0, 0),
        (3, ACKNOWLEDGE + struct.pack("<IqqI", 1, OFFSETS_MAX, 0, 1), 0, 0),
        (3, ACKNOWLEDGE + struct.pack("<IqqIqqI", 2, 0, 5, 2, 0, 6, 1), 0, 0),
        (3, ACKNOWLEDGE + struct.pack("<IqqIqqI", 2, 1, 5, 2, 0, 9, 1), 0, 0),
        (4, struct.pack("<qq", 5, 0) + ONE, 2, 0),
        (5, struct.pack("<qBxH", 5, 1, 0) + ONE, 3, 0),
        (5, struct.pack("<qBxH", 5, 9, 0) + ONE, 0, 0),
        (5, struct.pack("<qBxH", 5, 1, 257) + b"x" * 257 + ONE, 0, 0),
        (5, struct.pack("<qBxH", 5, 1, 2) + b"\xff\xfe" + ONE, 0, 0),
        (5, struct.pack("<qBxH", 5, 1, 200) + b"x", 0, 0),
        (10, b"\4" + ONE, 0, 0),
        (6, struct.pack("<Q", OFFSETS_MAX), 0, 0),
        (6, b"\0" * 7, 0, 0),
        (1, struct.pack("<qqqq", 1, 2, -3, 4), 0, 0),
        (1, struct.pack("<qqqq", 1, 2, 3, 4), 2, 0),
        (11, struct.pack("<qqq", 1, 2, 3), 0, 0),
    ],
)
def test_operations_that_are_none(kind: int, body: bytes, flags: int, reserved: int) -> None:
    """Unknown kinds and flags, bodies of a wrong length, numbers that no place, time or count has."""
    with pytest.raises(GroupWireError):
        decode_entry(entry_with(kind, body, flags, reserved))


def test_ranges_end_where_they_say() -> None:
    """Behind them something else may stand, as in the memory of requests."""
    data = b"xx" + encode_ranges(RANGES) + b"yy"
    assert decode_ranges(data, 2) == (RANGES, len(data) - 2)
    with pytest.raises(GroupWireError):
        decode_ranges(data, len(data) - 1)


def test_an_entry_has_room_for_its_greatest_operation() -> None:
    """Deliver with all ranges that it may have, twice."""
    ranges = tuple(Range(0, 2 * number, 1) for number in range(MAX_ENTRY_RANGES))
    deliver = Deliver(b"c" * 16, b"r" * 16, 1, ranges, ranges)
    entry = encode_entry({GroupKey(b"g" * 16): [deliver]})
    assert len(entry) < MAX_ENTRY_BYTES
    assert decode_entry(entry) == {GroupKey(b"g" * 16): [deliver]}
    assert len(encode_operation(deliver)) == size_of(deliver)
