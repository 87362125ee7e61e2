"""A consumer group in one partition as plain as can be: one value per message, everything by hand.

It stands beside PartitionGroup in tests. It has no spans, no bytes and no journal: a copy is its undo.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from shoal.agent.groups.entry import (
    Acknowledge,
    Decide,
    Deliver,
    Die,
    Fate,
    Free,
    GroupOperation,
    Lettered,
    Lost,
    ReasonCode,
    Release,
    Seek,
    Skip,
)
from shoal.agent.groups.partition_group import PartitionGroup
from shoal.agent.groups.place import EntryStamp, SpanState
from shoal.agent.receive import DELIVERIES, NOBODY, Range, StoppedAction

Place = tuple[int, int]


class Message(NamedTuple):
    """The history of one message, as MessageSpan has it."""

    lease_ms: int
    delivery: int
    until_us: int
    first_us: int
    last_after_ms: int
    state: SpanState
    attempts: int


def plain(state: SpanState) -> Message:
    """Without numbers."""
    return Message(0, 0, 0, 0, 0, state, 0)


def places(ranges: Iterable[Range]) -> Iterator[Place]:
    """Each message by itself."""
    for due_us, first, count in ranges:
        for offset in range(first, first + count):
            yield due_us, offset


class GroupModel:
    """The same fields as PartitionGroup, where they mean the same."""

    def __init__(self, begun: tuple[int, int], floor: Place, by_due: bool) -> None:
        self.begun = begun
        self.by_due = by_due
        self.generation = 1
        self.floor = floor
        self.messages: dict[Place, Message] = {}
        self.letters: list[tuple[int, ...]] = []
        self.letters_given = self.redriven = self.skipped = self.dropped = self.acked = 0
        self.last_delivery = 0
        self.requests: dict[bytes, tuple[bytes, int, int, tuple[Range, ...]]] = {}

    def copy(self) -> GroupModel:
        """As it is now, whatever comes: what its containers hold never changes."""
        copied = copy.copy(self)
        copied.messages, copied.letters = dict(self.messages), list(self.letters)
        copied.requests = dict(self.requests)
        return copied

    def apply(self, operation: GroupOperation, stamp: EntryStamp) -> bool:
        """False: void."""
        match operation:
            case Deliver():
                return self._deliver(operation, stamp)
            case Acknowledge(delivery, ranges):
                done = self._turn(self._in_flight(ranges, delivery), lambda _: plain(SpanState.DONE))
                self.acked += done
                return done > 0
            case Release(delivery, until_us, ranges, uncounted):
                return self._release(self._in_flight(ranges, delivery), until_us, int(uncounted))
            case Die(delivery, code, ranges, text, fate):
                dead = [
                    place for place in self._held(ranges) if self.messages[place].delivery == delivery > 0
                ]
                return self._die(dead, code, text, fate, stamp)
            case Lettered(ordinal):
                return self._stored(ordinal)
            case Seek():
                return self._seek(operation, stamp)
            case Skip(offset, messages):
                return self._skip(offset, messages, stamp)
            case Free(ordinal, ranges):
                return self._free(ordinal, list(places(ranges)), stamp)
            case Decide(action, ranges):
                return self._decide(action, ranges, stamp)
            case Lost(ranges):
                return self._lose(list(places(ranges)), stamp)
        return False

    def _is_there(self, wanted: Iterable[Place], stamp: EntryStamp) -> bool:
        latest_us = stamp.append_time_us if self.by_due else 0
        return all(due_us <= latest_us and offset < stamp.base_offset for due_us, offset in wanted)

    def _deliver(self, operation: Deliver, stamp: EntryStamp) -> bool:
        wanted, passed = list(places(operation.ranges)), list(places(operation.passed))
        if not wanted or (passed and not self.by_due) or not self._is_there(wanted + passed, stamp):
            return False
        for place in wanted:
            message = self.messages.get(place)
            if message is None and place < self.floor:
                return False
            if message and message.state not in (SpanState.WAITING, SpanState.IN_FLIGHT):
                return False
        self.last_delivery = max(stamp.index * DELIVERIES, self.last_delivery + 1)
        for place in wanted:
            message = self.messages.get(place, plain(SpanState.WAITING))
            first_us = message.first_us or stamp.append_time_us
            self.messages[place] = Message(
                operation.lease_ms,
                self.last_delivery,
                0,
                first_us,
                (stamp.append_time_us - first_us) // 1000,
                SpanState.IN_FLIGHT,
                message.attempts + 1,
            )
        for place in passed:
            if place >= self.floor:
                self.messages.setdefault(place, plain(SpanState.WAITING))
        if operation.request != NOBODY:
            answer = (operation.request, self.last_delivery, stamp.append_time_us, operation.ranges)
            self.requests[operation.consumer] = answer
        return True

    def _in_flight(self, ranges: Iterable[Range], delivery: int) -> list[Place]:
        return [
            place
            for place in places(ranges)
            if (message := self.messages.get(place))
            and message.state is SpanState.IN_FLIGHT
            and message.delivery == delivery
        ]

    def _held(self, ranges: Iterable[Range]) -> list[Place]:
        mortal = (SpanState.IN_FLIGHT, SpanState.WAITING, SpanState.STOPPED)
        return [
            place
            for place in places(ranges)
            if (message := self.messages.get(place)) and message.state in mortal
        ]

    def _release(self, wanted: list[Place], until_us: int, less: int) -> bool:
        def waiting(message: Message) -> Message:
            attempts = message.attempts - less
            return message._replace(lease_ms=0, until_us=until_us, state=SpanState.WAITING, attempts=attempts)

        return self._turn(wanted, waiting) > 0

    def _die(self, dead: list[Place], code: int, text: bytes, fate: Fate, stamp: EntryStamp) -> bool:
        if fate is Fate.STOP:
            dead = [place for place in dead if self.messages[place].state is not SpanState.STOPPED]
            return (
                self._turn(dead, lambda one: one._replace(lease_ms=0, until_us=0, state=SpanState.STOPPED))
                > 0
            )
        if fate is Fate.DROP:
            dropped = self._turn(dead, lambda _: plain(SpanState.DONE))
            self.dropped += dropped
            return dropped > 0
        for place in dead:
            message = self.messages[place]
            self.letters_given += 1
            last_us = message.first_us + 1000 * message.last_after_ms
            times = (message.first_us, last_us, stamp.append_time_us)
            letter = (self.letters_given, *place, message.attempts, int(code), *times, text)
            self.letters.append(letter)  # type: ignore[arg-type]
        return self._turn(dead, lambda _: plain(SpanState.DYING)) > 0

    def _stored(self, ordinal: int) -> bool:
        stored = [letter for letter in self.letters if letter[0] <= ordinal]
        if not stored or ordinal > self.letters_given:
            return False
        self.letters = [letter for letter in self.letters if letter[0] > ordinal]
        still = {letter[1:3] for letter in self.letters}
        for letter in stored:
            place = (letter[1], letter[2])
            message = self.messages.get(place)
            if place not in still and message and message.state is SpanState.DYING:
                self._turn([place], lambda _: plain(SpanState.DONE))
        return True

    def _seek(self, operation: Seek, stamp: EntryStamp) -> bool:
        floor = first_floor(operation.place, operation.latest, stamp, self.by_due)
        if operation.generation != self.generation + 1 or floor is None:
            return False
        self.generation, self.floor = operation.generation, floor
        self.messages, self.requests = {}, {}
        return True

    def _skip(self, offset: int, messages: int, stamp: EntryStamp) -> bool:
        gone = [place for place in self.messages if place < (0, offset)]
        if self.by_due or offset > stamp.base_offset or not (gone or self.floor < (0, offset)):
            return False
        for place in gone:
            del self.messages[place]
        self.floor = max(self.floor, (0, offset))
        self.skipped += messages
        self._turn([], lambda one: one)
        return True

    def _free(self, ordinal: int, wanted: list[Place], stamp: EntryStamp) -> bool:
        if not self.redriven < ordinal <= self.letters_given or not self._is_there(wanted, stamp):
            return False
        for place in wanted:
            message = self.messages.get(place)
            if message is None and place >= self.floor:
                continue
            if message is None or message.state not in (SpanState.IN_FLIGHT, SpanState.DYING):
                self.messages[place] = plain(SpanState.WAITING)
        self.redriven = ordinal
        return True

    def _decide(self, action: StoppedAction, ranges: Iterable[Range], stamp: EntryStamp) -> bool:
        stopped = [place for place in self._held(ranges) if self.messages[place].state is SpanState.STOPPED]
        if action is StoppedAction.RETRY:
            return self._turn(stopped, lambda _: plain(SpanState.WAITING)) > 0
        fate = Fate.LETTER if action is StoppedAction.LETTER else Fate.DROP
        return self._die(stopped, ReasonCode.OPERATOR, b"", fate, stamp)

    def _lose(self, wanted: list[Place], stamp: EntryStamp) -> bool:
        if not self._is_there(wanted, stamp):
            return False
        lost = []
        for place in wanted:
            message = self.messages.get(place)
            if message is None and place < self.floor:
                continue
            if message is None or message.state not in (SpanState.DONE, SpanState.DYING):
                self.messages[place] = plain(SpanState.WAITING)
                lost.append(place)
        self.skipped += self._turn(lost, lambda _: plain(SpanState.DONE))
        return bool(lost)

    def _turn(self, wanted: list[Place], becomes: Callable[[Message], Message]) -> int:
        for place in wanted:
            self.messages[place] = becomes(self.messages[place])
        for place in sorted(self.messages):
            if self.messages[place].state is not SpanState.DONE:
                if self.by_due and place >= self.floor:
                    break
                continue
            if place < self.floor:
                del self.messages[place]
            elif self.by_due or place == self.floor:
                del self.messages[place]
                self.floor = (place[0], place[1] + 1)
        return len(wanted)

    @property
    def next(self) -> Place:
        """Behind the floor and all messages."""
        return max([self.floor, *((due_us, offset + 1) for due_us, offset in self.messages)])

    def check(self, group: PartitionGroup) -> None:
        """Both are the same."""
        assert group.begun == self.begun
        assert group.generation == self.generation
        assert group.floor == self.floor
        known = {}
        for span in group.spans.from_place(group.floor._replace(due_us=0, offset=0)):
            for offset in range(span.first, span.first + span.count):
                known[span.due_us, offset] = Message(*span[3:])
        assert known == self.messages
        assert [tuple(letter) for letter in group.letters] == self.letters
        counters = (group.letters_given, group.redriven, group.skipped, group.dropped, group.acked)
        assert counters == (
            self.letters_given,
            self.redriven,
            self.skipped,
            self.dropped,
            self.acked,
        )
        assert group.next == self.next
        self._check_unseen(group)

    def _check_unseen(self, group: PartitionGroup) -> None:
        unseen = list(places(group.unseen(1_000)))
        if self.by_due:
            assert unseen == []
        else:
            whole = ((0, offset) for offset in range(self.floor[1], group.next.offset))
            assert unseen == [place for place in whole if place not in self.messages]


def first_floor(place: Place, latest: bool, stamp: EntryStamp, by_due: bool) -> Place | None:
    """Where a group begins, or goes on after a seek."""
    if latest:
        return (stamp.append_time_us if by_due else 0, stamp.base_offset)
    if not by_due and (place[0] or place[1] > stamp.base_offset):
        return None
    return (place[0], place[1])
