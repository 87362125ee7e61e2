"""One consumer group in one partition: what every replica knows of it.

Law of this file: pure, and changed by operations of GROUP_STATE entries alone. An operation happens whole or
not at all. That depends on what stands here and on the entry's stamp alone: so it is alike on every replica.
Which messages stand where is floor.py's business. Invariants:

1. The attempts of a message rise by one with each Deliver, and fall by one with an uncounted Release only.
2. A message that is DONE becomes something else by Seek and Free only.
3. Each message in flight names the one delivery that counts: a GROUP_STATE entry of this log.
4. The floor falls with a Seek only.
5. The ordinals of the letters that wait are dense, up to `letters_given`.
6. No message is delivered before it is due, or before it stands in the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from shoal.agent.groups.entry import (
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
    encode_ranges,
)
from shoal.agent.groups.floor import FlooredSpans, bare
from shoal.agent.groups.place import (
    LETTER,
    OFFSETS_MAX,
    START,
    Letter,
    MessageSpan,
    SpanState,
    Stamped,
    joined,
)
from shoal.agent.groups.requests import Remembered, RequestMemory, Undo
from shoal.agent.groups.spans import BEHIND_ALL, SPAN_BYTES
from shoal.agent.receive import DELIVERIES, NOBODY, DuePlace, Range, StoppedAction

MAX_SPANS: Final = 65_536
"""With two kept free for each letter that waits: storing it may cut one in three. 3.5 MiB of a checkpoint."""
MAX_UNDONE_MESSAGES: Final = 1_000_000
"""Delivered and not done. Behind it a receive brings nothing, until something is done."""
MAX_LETTERS: Final = 1_024
"""They wait for the dead-letter topic; until it takes some, no message dies."""
MAX_COUNTED_ATTEMPTS: Final = 2**16 - 1  # they stand in 16 bits; a group without a limit may go on behind
MAX_LAST_AFTER_MS: Final = 2**32 - 1

_DELIVERABLE: Final = frozenset((SpanState.WAITING, SpanState.IN_FLIGHT))
_MORTAL: Final = frozenset((SpanState.IN_FLIGHT, SpanState.WAITING, SpanState.STOPPED))


def place_of(operation: Begin | Seek, stamp: Stamped, *, by_due: bool) -> DuePlace | None:
    """Where an operation sets the floor; None for a place that the log cannot have yet."""
    if operation.latest:
        return DuePlace(stamp.append_time_us if by_due else 0, stamp.base_offset)
    if not by_due and (operation.place.due_us or operation.place.offset > stamp.base_offset):
        return None
    return operation.place


class PartitionGroup(FlooredSpans):
    """`begun`: epoch and offset of the catalog that knew the group. `by_due`: places are due times."""

    __slots__ = (
        "acked",
        "begun",
        "dropped",
        "generation",
        "last_delivery",
        "letter_bytes",
        "letters",
        "letters_given",
        "redriven",
        "requests",
        "skipped",
    )

    def __init__(
        self, begun: tuple[int, int] = (0, 0), floor: DuePlace = START, *, by_due: bool = False
    ) -> None:
        super().__init__(floor, by_due=by_due)
        self.begun = begun
        self.generation = 1
        """It rises with each Seek: receipts of former ones are void."""
        self.letters: deque[Letter] = deque()
        self.letter_bytes = 0
        """Of the letters, as encoded."""
        self.letters_given = 0
        self.redriven = 0
        """The last letter whose message came back."""
        self.skipped = 0
        """Messages that went before they were done: by retention, or since nobody can read them."""
        self.dropped = 0
        self.acked = 0
        self.requests = RequestMemory()
        self.last_delivery = 0
        """Not in a checkpoint: the numbers of an entry are greater than those of all before it."""

    def __repr__(self) -> str:
        return (
            f"PartitionGroup(generation={self.generation} floor={tuple(self.floor)} {self.spans!r}"
            f" letters={len(self.letters)}/{self.letters_given})"
        )

    @property
    def spans_taken(self) -> int:
        """As counted against MAX_SPANS."""
        return self.spans.size + 2 * len(self.letters)

    @property
    def size_bytes(self) -> int:
        """Of the spans, letters and requests, as encoded."""
        return self.spans.size * SPAN_BYTES + self.letter_bytes + self.requests.size_bytes

    def next_delivery(self, index: int) -> int:
        """The number of the next answer that the entry with this index gives."""
        return max(index * DELIVERIES, self.last_delivery + 1)

    def apply(self, operation: GroupOperation, stamp: Stamped, journal: list[Undo]) -> bool:
        """Let an operation happen. False: it is void, and nothing has changed."""
        mark = len(journal)
        taken, undone = self.spans_taken, self.spans.undone
        happened = self._act(operation, stamp, journal)
        if happened and (
            self.spans_taken > max(taken, MAX_SPANS) or self.spans.undone > max(undone, MAX_UNDONE_MESSAGES)
        ):
            self.undo(journal, mark)
            return False
        return happened

    def flaw(self) -> str:
        """The first thing that no operations lead to, empty if there is none."""
        ordinals = [letter.ordinal for letter in self.letters]
        dense = range(self.letters_given - len(ordinals) + 1, self.letters_given + 1)
        if ordinals != list(dense) or len(ordinals) > MAX_LETTERS or dense.start < 1:
            return f"{len(ordinals)} letters up to {self.letters_given} that are not dense"
        if self.redriven > self.letters_given or self.generation < 1:
            return f"letter {self.redriven} redriven of {self.letters_given}, generation {self.generation}"
        if self.spans_taken > MAX_SPANS or self.spans.undone > MAX_UNDONE_MESSAGES:
            return f"more than a group may have: {self!r}"
        if self.spans.messages[SpanState.DYING]:
            places = {(letter.due_us, letter.offset) for letter in self.letters}
            for span in self.spans.from_place(START):
                offsets = range(span.first, span.first + span.count)
                if span.state is SpanState.DYING and not all((span.due_us, at) in places for at in offsets):
                    return f"dying messages at {span.begin} without letters"
        return super().flaw()

    def check_invariants(self) -> None:
        """Everything here is as operations leave it."""
        self.spans.check_invariants()
        self.requests.check_invariants()
        assert not self.flaw(), self.flaw()

    def undo(self, journal: list[Undo], mark: int = 0) -> None:
        """Take back the changes of the journal from `mark` on, and take them out of it."""
        while len(journal) > mark:
            journal.pop()()

    def _act(self, operation: GroupOperation, stamp: Stamped, journal: list[Undo]) -> bool:
        match operation:
            case Deliver():
                return self._deliver(operation, stamp, journal)
            case Acknowledge():
                return self._acknowledge(operation, journal)
            case Release():
                return self._release(operation, journal)
            case Die(delivery):
                dead = self._held(operation.ranges, lambda span: span.delivery == delivery)
                return delivery > 0 and self._die(operation, dead, stamp, journal)
            case Lettered(ordinal):
                return self._letter_stored(ordinal, journal)
            case Seek():
                return self._seek(operation, stamp, journal)
            case Skip():
                return self._skip(operation, stamp, journal)
            case Free():
                return self._free(operation, stamp, journal)
            case Decide():
                return self._decide(operation, stamp, journal)
            case Lost(ranges):
                return self._lose(ranges, stamp, journal)
            case Begin() | Drop():
                return False  # of groups that are not there, or go: the fold's business

    def _deliver(self, operation: Deliver, stamp: Stamped, journal: list[Undo]) -> bool:
        now_us, delivery = stamp.append_time_us, self.next_delivery(stamp.index)
        if not operation.ranges or (operation.passed and not self.by_due):
            return False
        for piece in operation.ranges + operation.passed:
            if not self._is_there(piece, stamp):
                return False

        def again(span: MessageSpan) -> MessageSpan:
            if span.state not in _DELIVERABLE:
                return span
            first_us = span.first_us or now_us
            last_after_ms = min(max(now_us - first_us, 0) // 1000, MAX_LAST_AFTER_MS)
            attempts = min(span.attempts + 1, MAX_COUNTED_ATTEMPTS)
            times = (0, first_us, last_after_ms)
            return MessageSpan(*span[:3], operation.lease_ms, delivery, *times, SpanState.IN_FLIGHT, attempts)

        def at_first(part: Range) -> MessageSpan | None:
            if part.begin < self.floor:
                return None
            return MessageSpan(*part, operation.lease_ms, delivery, 0, now_us, 0, SpanState.IN_FLIGHT, 1)

        def later(part: Range) -> MessageSpan | None:
            return bare(part, SpanState.WAITING) if part.begin >= self.floor else None

        mark = len(journal)
        wanted = sum([count for _, _, count in operation.ranges])
        if self.turn(operation.ranges, again, journal, at_first) < wanted:
            self.undo(journal, mark)
            return False
        self.change("last_delivery", delivery, journal)
        if operation.passed:
            self.turn(operation.passed, lambda span: span, journal, later)
        if operation.request != NOBODY:
            answer = Remembered(operation.request, delivery, now_us, encode_ranges(operation.ranges))
            journal.append(self.requests.remember(operation.consumer, answer))
        return True

    def _is_there(self, piece: Range, stamp: Stamped) -> bool:
        """Whether the log can hold these messages before the entry, and they are due."""
        due_us = stamp.append_time_us if self.by_due else 0
        return piece.first + piece.count <= stamp.base_offset and piece.due_us <= due_us

    def _acknowledge(self, operation: Acknowledge, journal: list[Undo]) -> bool:
        def done(span: MessageSpan) -> MessageSpan:
            if span.state is not SpanState.IN_FLIGHT or span.delivery != operation.delivery:
                return span
            return bare(span.piece, SpanState.DONE)

        count = self.turn(operation.ranges, done, journal)
        if count:
            self.change("acked", self.acked + count, journal)
            self.move_floor(journal)
        return count > 0

    def _release(self, operation: Release, journal: list[Undo]) -> bool:
        def waiting(span: MessageSpan) -> MessageSpan:
            if span.state is not SpanState.IN_FLIGHT or span.delivery != operation.delivery:
                return span
            return span._replace(
                lease_ms=0,
                until_us=operation.until_us,
                state=SpanState.WAITING,
                attempts=span.attempts - operation.uncounted,
            )

        return self.turn(operation.ranges, waiting, journal) > 0

    def _held(self, ranges: Iterable[Range], counts: Callable[[MessageSpan], bool]) -> list[MessageSpan]:
        """The messages of the ranges that may be given up."""
        return [
            span
            for piece in ranges
            for span in self.spans.overlapping(piece)
            if span.state in _MORTAL and counts(span)
        ]

    def _die(self, death: Die, dead: Sequence[MessageSpan], stamp: Stamped, journal: list[Undo]) -> bool:
        """Give up `dead`, for the reason and with the fate of `death`."""
        if death.fate is Fate.STOP:
            dead = [span for span in dead if span.state is not SpanState.STOPPED]
        count = sum(span.count for span in dead)
        if not count or (death.fate is Fate.LETTER and len(self.letters) + count > MAX_LETTERS):
            return False
        pieces = [span.piece for span in dead]
        match death.fate:
            case Fate.STOP:

                def stopped(span: MessageSpan) -> MessageSpan:
                    return span._replace(lease_ms=0, until_us=0, state=SpanState.STOPPED)

                self.turn(pieces, stopped, journal)
            case Fate.DROP:
                self.turn(pieces, lambda span: bare(span.piece, SpanState.DONE), journal)
                self.change("dropped", self.dropped + count, journal)
                self.move_floor(journal)
            case Fate.LETTER:
                self.turn(pieces, lambda span: bare(span.piece, SpanState.DYING), journal)
                self._write_letters(death, dead, stamp.append_time_us)
                journal.append(partial(self.tear_letters, count))
        return True

    def _write_letters(self, death: Die, dead: Sequence[MessageSpan], now_us: int) -> None:
        for span in dead:
            numbers = (span.attempts, int(death.code), span.first_us, span.last_us, now_us, death.text)
            for offset in range(span.first, span.first + span.count):
                self.letters_given += 1
                self.letters.append(Letter(self.letters_given, span.due_us, offset, *numbers))
                self.letter_bytes += LETTER.size + len(death.text)

    def tear_letters(self, count: int) -> None:
        """The inverse: forget the last ones."""
        for _ in range(count):
            self.letter_bytes -= LETTER.size + len(self.letters.pop().text)
        self.letters_given -= count

    def _letter_stored(self, ordinal: int, journal: list[Undo]) -> bool:
        if ordinal > self.letters_given or not self.letters or self.letters[0].ordinal > ordinal:
            return False
        stored: list[Letter] = []
        while self.letters and self.letters[0].ordinal <= ordinal:
            stored.append(self.letters.popleft())
            self.letter_bytes -= LETTER.size + len(stored[-1].text)
        journal.append(partial(self.keep_letters, stored))
        # A message that died, was sought and died again has two letters: it is done with the last of them.
        waiting = {(letter.due_us, letter.offset) for letter in self.letters}
        places = {(letter.due_us, letter.offset) for letter in stored} - waiting
        pieces = joined(Range(due_us, offset, 1) for due_us, offset in places)

        def done(span: MessageSpan) -> MessageSpan:
            return bare(span.piece, SpanState.DONE) if span.state is SpanState.DYING else span

        if self.turn(pieces, done, journal):
            self.move_floor(journal)
        return True

    def keep_letters(self, stored: list[Letter]) -> None:
        """The inverse of storing them, but for their messages."""
        self.letters.extendleft(reversed(stored))
        self.letter_bytes += sum(LETTER.size + len(letter.text) for letter in stored)

    def _seek(self, operation: Seek, stamp: Stamped, journal: list[Undo]) -> bool:
        place = place_of(operation, stamp, by_due=self.by_due)
        if place is None or operation.generation != self.generation + 1:
            return False
        self.clear(START, BEHIND_ALL, journal)
        self.change("generation", operation.generation, journal)
        self.change("floor", place, journal)
        self.change("requests", RequestMemory(), journal)  # they were answered by the former generation
        return True

    def _skip(self, operation: Skip, stamp: Stamped, journal: list[Undo]) -> bool:
        end = DuePlace(0, operation.offset)
        if self.by_due or end == START or operation.offset > stamp.base_offset:
            return False
        if not self.clear(START, end, journal) and self.floor >= end:
            return False
        self.change("floor", max(self.floor, end), journal)
        self.change("skipped", min(self.skipped + operation.messages, OFFSETS_MAX - 1), journal)
        self.move_floor(journal)
        return True

    def _free(self, operation: Free, stamp: Stamped, journal: list[Undo]) -> bool:
        if not self.redriven < operation.ordinal <= self.letters_given:
            return False
        if not all(self._is_there(piece, stamp) for piece in operation.ranges):
            return False

        def again(span: MessageSpan) -> MessageSpan:
            if span.state in (SpanState.IN_FLIGHT, SpanState.DYING):
                return span
            return bare(span.piece, SpanState.WAITING)

        def back(part: Range) -> MessageSpan | None:
            return bare(part, SpanState.WAITING) if part.begin < self.floor else None

        self.turn(operation.ranges, again, journal, back)
        self.change("redriven", operation.ordinal, journal)
        return True

    def _decide(self, operation: Decide, stamp: Stamped, journal: list[Undo]) -> bool:
        stopped = self._held(operation.ranges, lambda span: span.state is SpanState.STOPPED)
        if operation.action is StoppedAction.RETRY:
            pieces = [span.piece for span in stopped]
            return self.turn(pieces, lambda span: bare(span.piece, SpanState.WAITING), journal) > 0
        fate = Fate.LETTER if operation.action is StoppedAction.LETTER else Fate.DROP
        return self._die(Die(0, ReasonCode.OPERATOR, (), fate=fate), stopped, stamp, journal)

    def _lose(self, ranges: Sequence[Range], stamp: Stamped, journal: list[Undo]) -> bool:
        if not all(self._is_there(piece, stamp) for piece in ranges):
            return False

        def gone(span: MessageSpan) -> MessageSpan:
            if span.state in (SpanState.DONE, SpanState.DYING):
                return span
            return bare(span.piece, SpanState.DONE)

        def never(part: Range) -> MessageSpan | None:
            return bare(part, SpanState.DONE) if part.begin >= self.floor else None

        count = self.turn(ranges, gone, journal, never)
        if count:
            self.change("skipped", self.skipped + count, journal)
            self.move_floor(journal)
        return count > 0
