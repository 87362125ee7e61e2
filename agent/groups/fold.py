"""The consumer groups of one partition: a fold of its GROUP_STATE entries.

Law of this file: pure. It changes by `fold` (an entry was appended), by `undo_from` (the log's suffix was
cut) and by `restore`. `settle` says that a prefix can never be cut again. All replicas that folded the same
entries have the same bytes.

A leader decides against the log's end. While it makes an entry, `stage` lets operations happen one after the
other, under the stamp that the entry will have. `fold` of that very entry then finds it done. In between
nothing else is folded, and no checkpoint is taken.

A note stands beside an entry that was staged here, for its maker. It is given back once that very entry is
settled, and forgotten where the entry is cut. It is in no checkpoint.

A checkpoint holds the groups ascending by id. Behind each head stand its spans, its letters and its requests.
All is little endian; the one error is GroupWireError.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from shoal.agent.groups.entry import (
    ENTRY_HEAD_BYTES,
    MAX_TEXT_BYTES,
    SECTION_HEAD_BYTES,
    Begin,
    Drop,
    GroupOperation,
    Lettered,
    ReasonCode,
    Seek,
    Skip,
    decode_entry,
    encode_operation,
    join_entry,
)
from shoal.agent.groups.partition_group import PartitionGroup, place_of
from shoal.agent.groups.place import LETTER, OFFSETS_MAX, EntryStamp, GroupWireError, Letter
from shoal.agent.groups.requests import RequestMemory, Undo
from shoal.agent.groups.spans import SpanTable
from shoal.agent.receive import DuePlace, GroupKey
from shoal.format.batch import LogIndex, Stamp

MAX_FOLD_BYTES: Final = 4 * 2**20
"""Of all groups of a partition, as they stand in each checkpoint. No operation that is staged grows a group
beyond it. Followers fold an entry's operations in the order of groups, so they do not look at this bound."""
MAX_GROUPS_HELD: Final = 128
"""Twice the groups of a topic: a new one may begin before an old one has gone."""
FOLD_VERSION: Final = 1
DECODED_BYTES_MAX: Final = 2 * MAX_FOLD_BYTES
"""Letters that are stored may cut spans, which passes the bound by 56 bytes for each that waited."""

_MAGIC = b"SHGF"
_HEAD = struct.Struct("<4sHHI")  # magic, version, flags (1: places are due times), groups
_GROUP = struct.Struct("<16sIqqqqQQQQQIII")
"""id, generation, begun (epoch, offset), floor (due, offset), letters_given, redriven, skipped, dropped,
acked, lengths of the three parts"""
HEAD_BYTES: Final = _HEAD.size
GROUP_BYTES: Final = _GROUP.size
_REASONS = frozenset(ReasonCode)
_ALWAYS: Final = (Lettered, Seek, Skip)
"""Operations that take away. A letter that is stored may cut a span: that never stands in its way."""


class Folded(NamedTuple):
    """An operation that happened above the commit index. `changes`: how to take them back; None where the
    whole group began or went, `before` is the one that stood there then."""

    index: LogIndex  # type: ignore[assignment]  # hides tuple.index, which nobody asks of it
    key: GroupKey
    changes: list[Undo] | None
    before: PartitionGroup | None = None


class StagedEntry:
    """An entry that is being made. `sections`: its operations, encoded. `size_bytes`: of the whole entry.
    `note`: of its maker."""

    __slots__ = ("note", "sections", "size_bytes", "stamp")

    def __init__(self, stamp: EntryStamp) -> None:
        self.stamp = stamp
        self.note: Any = None
        self.sections: dict[GroupKey, list[bytes]] = {}
        self.size_bytes = ENTRY_HEAD_BYTES

    def add(self, key: GroupKey, operation: bytes) -> None:
        """Operations of a group happen in their order; those of several groups do not see one another."""
        if key not in self.sections:
            self.sections[key] = []
            self.size_bytes += SECTION_HEAD_BYTES
        self.sections[key].append(operation)
        self.size_bytes += len(operation)


class GroupFold:
    """`by_due`: places are due times, in a topic of timers."""

    def __init__(self, *, by_due: bool = False) -> None:
        self.by_due = by_due
        self._groups: dict[GroupKey, PartitionGroup] = {}
        self._parts_bytes = 0  # of all groups, with their heads
        self._encoded: dict[GroupKey, bytes] = {}  # of groups that have not changed since
        # Items above the commit index: bounded by the core's bounds on uncommitted entries and bytes.
        self._journal: deque[Folded] = deque()
        self._staged: StagedEntry | None = None
        # One item per own entry above the commit index, and those that nobody has taken since: as bounded.
        self._notes: deque[tuple[LogIndex, Any]] = deque()
        self._settled = LogIndex(0)

    def __repr__(self) -> str:
        return f"GroupFold(groups={len(self._groups)} bytes={self.size_bytes} undo={len(self._journal)})"

    @property
    def groups(self) -> Mapping[GroupKey, PartitionGroup]:
        """The groups that have begun here."""
        return self._groups

    @property
    def size_bytes(self) -> int:
        """As encoded."""
        return self._parts_bytes + (HEAD_BYTES if self._groups else 0)

    def would_fit(self, grown_bytes: int) -> bool:
        """Whether the groups may grow by so much."""
        return self.size_bytes + grown_bytes <= MAX_FOLD_BYTES

    def fold(self, stamp: Stamp, control: bytes) -> None:
        """A GROUP_STATE entry at the log's end. Raises GroupWireError; nothing has changed then."""
        entry = EntryStamp(stamp.index, stamp.base_offset, stamp.append_time_us)
        staged = self._staged
        if staged is not None:
            assert entry == staged.stamp, f"{entry} was appended where {staged.stamp} was staged"
            assert bytes(control) == join_entry(staged.sections), f"{entry} holds another entry than staged"
            self._staged = None
            if staged.note is not None:
                self._notes.append((entry.index, staged.note))
            return
        sections = decode_entry(bytes(control))
        for key, operations in sections.items():
            for operation in operations:
                self._apply(key, operation, entry)

    def stage(self, key: GroupKey, operations: Sequence[GroupOperation], stamp: EntryStamp) -> list[bool]:
        """Let operations happen that the next entry will hold; which of them did. The others are left out."""
        staged = self._staged
        if staged is None:
            staged = StagedEntry(stamp)
        assert stamp == staged.stamp, f"{stamp} is staged beside {staged.stamp}"
        happened = []
        for operation in operations:
            happened.append(self._apply(key, operation, stamp, bounded=True))
            if happened[-1]:
                staged.add(key, encode_operation(operation))
        self._staged = staged if staged.sections else None
        return happened

    @property
    def staged_bytes(self) -> int:
        """Of the entry that is staged; 0 where none is."""
        return self._staged.size_bytes if self._staged else 0

    def staged_operations(self, key: GroupKey) -> int:
        """Of a group, in the entry that is staged."""
        return len(self._staged.sections.get(key, ())) if self._staged else 0

    def note_staged(self, note: object) -> None:
        """Keep a note beside the entry that is staged."""
        assert self._staged is not None
        self._staged.note = note

    def settled_notes(self) -> Iterator[Any]:
        """The notes of entries that were settled since the last call, in their order."""
        while self._notes and self._notes[0][0] <= self._settled:
            yield self._notes.popleft()[1]

    def staged_entry(self) -> bytes:
        """The payload of the entry that is staged."""
        assert self._staged is not None
        return join_entry(self._staged.sections)

    def unstage(self, index: LogIndex) -> None:
        """The entry will not be: take back what was staged for it."""
        assert self._staged is not None, index
        assert self._staged.stamp.index == index, (index, self._staged.stamp)
        self._staged = None
        self.undo_from(index)

    def _apply(
        self, key: GroupKey, operation: GroupOperation, stamp: EntryStamp, *, bounded: bool = False
    ) -> bool:
        """Whether it happened. `bounded`: it is void where all groups together would take too much."""
        group = self._groups.get(key)
        match operation:
            case Begin(catalog):
                place = place_of(operation, stamp, by_due=self.by_due)
                if group is not None or place is None:
                    return False
                if bounded and (len(self._groups) >= MAX_GROUPS_HELD or not self.would_fit(GROUP_BYTES)):
                    return False
                return self._replace(key, PartitionGroup(catalog, place, by_due=self.by_due), stamp.index)
            case Drop((epoch, offset)):
                if group is None or epoch != group.begun[0] or offset <= group.begun[1]:
                    return False
                return self._replace(key, None, stamp.index)
        if group is None:
            return False
        changes: list[Undo] = []
        before = group.size_bytes
        if not group.apply(operation, stamp, changes):
            return False
        grown = group.size_bytes - before
        if bounded and grown > 0 and not isinstance(operation, _ALWAYS) and not self.would_fit(grown):
            group.undo(changes)
            return False
        self._parts_bytes += grown
        self._encoded.pop(key, None)
        self._journal.append(Folded(stamp.index, key, changes))
        return True

    def _replace(self, key: GroupKey, group: PartitionGroup | None, index: LogIndex) -> bool:
        self._journal.append(Folded(index, key, None, self._groups.get(key)))
        self._put(key, group)
        return True

    def _put(self, key: GroupKey, group: PartitionGroup | None) -> None:
        """Let this group be there, or none, instead of the one that is."""
        self._parts_bytes += _bytes_of(group) - _bytes_of(self._groups.pop(key, None))
        self._encoded.pop(key, None)
        if group is not None:
            self._groups[key] = group

    def settle(self, index: LogIndex) -> None:
        """Entries up to this one can never be cut: forget how to undo them."""
        journal = self._journal
        while journal and journal[0].index <= index:
            journal.popleft()
        self._settled = index

    def undo_from(self, index: LogIndex) -> None:
        """The log was cut from this entry on."""
        assert self._staged is None, self._staged
        while self._notes and self._notes[-1][0] >= index:
            self._notes.pop()
        journal = self._journal
        while journal and journal[-1].index >= index:
            folded = journal.pop()
            if folded.changes is None:
                self._put(folded.key, folded.before)
                continue
            group = self._groups[folded.key]
            before = group.size_bytes
            group.undo(folded.changes)
            self._parts_bytes += group.size_bytes - before
            self._encoded.pop(folded.key, None)

    def to_bytes(self) -> bytes:
        """As it stands in a checkpoint; empty while there is no group."""
        assert self._staged is None, self._staged
        if not self._groups:
            return b""
        for key, group in self._groups.items():
            if key not in self._encoded:
                self._encoded[key] = encode_group(key, group)
        return join_groups(self._encoded, by_due=self.by_due)

    def restore(self, data: bytes) -> None:
        """Be as a checkpoint says. Raises GroupWireError, and is then as it was."""
        groups = decode_fold(data, by_due=self.by_due)
        self._groups = groups
        self._parts_bytes = sum(map(_bytes_of, groups.values()))
        self._encoded.clear()
        self._journal.clear()
        self._notes.clear()
        self._staged = None

    def check_invariants(self) -> None:
        """Every group is as operations leave it, and the size is right."""
        for group in self._groups.values():
            group.check_invariants()
        whole = join_groups(
            {key: encode_group(key, group) for key, group in self._groups.items()}, by_due=self.by_due
        )
        assert self.to_bytes() == (whole if self._groups else b""), "a group has changed unseen"
        assert self.size_bytes == len(self.to_bytes()) <= DECODED_BYTES_MAX, (self, len(self.to_bytes()))
        indexes = [folded.index for folded in self._journal]
        assert indexes == sorted(indexes), indexes


def _bytes_of(group: PartitionGroup | None) -> int:
    return 0 if group is None else GROUP_BYTES + group.size_bytes


def encode_group(key: GroupKey, group: PartitionGroup) -> bytes:
    """One group with its head."""
    letters = b"".join(
        LETTER.pack(*numbers[:5], len(text), *numbers[5:]) + text for *numbers, text in group.letters
    )
    parts = (group.spans.to_bytes(), letters, group.requests.to_bytes())
    head = _GROUP.pack(
        key,
        group.generation,
        *group.begun,
        *group.floor,
        group.letters_given,
        group.redriven,
        group.skipped,
        group.dropped,
        group.acked,
        *map(len, parts),
    )
    return b"".join((head, *parts))


def join_groups(groups: Mapping[GroupKey, bytes], *, by_due: bool) -> bytes:
    """All groups of a partition, each as `encode_group` gives it."""
    head = _HEAD.pack(_MAGIC, FOLD_VERSION, by_due, len(groups))
    return b"".join((head, *(groups[key] for key in sorted(groups))))


def decode_fold(data: bytes, *, by_due: bool) -> dict[GroupKey, PartitionGroup]:
    """The opposite; no bytes are no groups. Raises GroupWireError."""
    if not data:
        return {}
    if len(data) > DECODED_BYTES_MAX:
        raise GroupWireError(f"{len(data)} bytes of groups, more than {DECODED_BYTES_MAX}")
    try:
        magic, version, flags, count = _HEAD.unpack_from(data)
        if magic != _MAGIC or version != FOLD_VERSION or flags != by_due or not count:
            raise GroupWireError(f"not groups of version {FOLD_VERSION} with flags {int(by_due)}")
        position = _HEAD.size
        groups: dict[GroupKey, PartitionGroup] = {}
        last = b""
        for _ in range(count):
            key, group, position = _decode_group(data, position, by_due)
            if key <= last:
                raise GroupWireError("groups out of order")
            groups[key] = group
            last = key
    except struct.error as error:
        raise GroupWireError("groups that end too early") from error
    if position != len(data):
        raise GroupWireError(f"{len(data) - position} bytes after the last group")
    return groups


def _decode_group(data: bytes, position: int, by_due: bool) -> tuple[GroupKey, PartitionGroup, int]:
    key, generation, *numbers = _GROUP.unpack_from(data, position)
    if min(numbers) < 0 or max(numbers) >= OFFSETS_MAX:
        raise GroupWireError(f"a group with {numbers}")
    epoch, offset, floor_us, floor, letters_given, redriven, skipped, dropped, acked, *lengths = numbers
    parts: list[bytes] = []
    position += _GROUP.size
    for length in lengths:
        parts.append(data[position : position + length])
        position += length
    if position > len(data):
        raise GroupWireError("a group that ends too early")
    group = PartitionGroup((epoch, offset), DuePlace(floor_us, floor), by_due=by_due)
    group.generation = generation
    group.letters_given, group.redriven = letters_given, redriven
    group.skipped, group.dropped, group.acked = skipped, dropped, acked
    group.spans = SpanTable.from_bytes(parts[0])
    group.letters, group.letter_bytes = _decode_letters(parts[1]), lengths[1]
    group.requests = RequestMemory.from_bytes(parts[2])
    if flaw := group.flaw():
        raise GroupWireError(flaw)
    return GroupKey(key), group, position


def _decode_letters(data: bytes) -> deque[Letter]:
    letters: deque[Letter] = deque()
    position = 0
    while position < len(data):
        fields = LETTER.unpack_from(data, position)
        length = fields[5]
        begin = position + LETTER.size
        position = begin + length
        letter = Letter._make((*fields[:5], *fields[6:], data[begin:position]))
        if min(fields) < 0 or max(fields) >= OFFSETS_MAX or letter.code not in _REASONS:
            raise GroupWireError(f"a letter with {fields}")
        if length > MAX_TEXT_BYTES or position > len(data) or data[begin - LETTER.size + 27]:
            raise GroupWireError(f"a letter with a text of {length} bytes")
        try:
            letter.text.decode()
        except UnicodeDecodeError as error:
            raise GroupWireError("a letter with a text that is no UTF-8") from error
        letters.append(letter)
    return letters
