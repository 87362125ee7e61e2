"""One GROUP_STATE entry being made: requests are decided in order, each on top of the ones before.

Law of this file: it asks the leaders and stages their operations in the fold, within one turn and without
awaiting. The keeper proposes what was staged, or takes it back. An answer rests on the entry in which its
operations stand. A refused act rests on all that was appended before, too: the word that made its receipt
used may not be committed yet. A later leader may also know more: the keeper asks a majority.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from shoal.agent.delivery.entry_note import EntryNote, GroupTotals
from shoal.agent.delivery.led_groups import LedGroups
from shoal.agent.delivery.queued import (
    ConsumerRequest,
    GroupRequest,
    PlacedRequest,
    QuestionRequest,
    RequestStage,
    WaitingRequest,
)
from shoal.agent.groups.entry import MAX_SECTIONS, GroupOperation, Lettered
from shoal.agent.groups.fold import GroupFold
from shoal.agent.groups.leader.candidates import FeedNotReady
from shoal.agent.groups.leader.group_leader import Decision, Refusal
from shoal.agent.groups.place import EntryStamp
from shoal.agent.receive import ActKind, Granted, GroupKey, Question, Wanted, entry_of
from shoal.errors import ShoalError

ENOUGH_OPERATIONS: Final = 512
ENOUGH_RANGES: Final = 2_048
ENOUGH_BYTES: Final = 2**18
"""An entry with so much takes no further decision: each replica folds it within 30 ms. One decision adds at
most ACTS_AT_ONCE operations more, and those that they take back."""
ENOUGH_DECISIONS: Final = 2_048
"""Acts and receives in one turn, also where none of them changes anything."""
ACTS_AT_ONCE: Final = 512
"""Of one request, before the entry is looked at again."""
WAITED_FOR: Final = frozenset(("empty", "window-full", "paused", "not-owner", "blocked"))
"""Refusals that end by themselves."""

logger = logging.getLogger(__name__)


class EntryTurn:
    """`settled`: requests and their answers, in order."""

    def __init__(self, fold: GroupFold, led: LedGroups, stamp: EntryStamp, now_ms: int) -> None:
        self._fold = fold
        self._led = led
        self._stamp = stamp
        self._now_ms = now_ms
        self._append_us = stamp.append_time_us
        self._keys: set[GroupKey] = set()
        self._before: dict[GroupKey, GroupTotals] = {}
        self._note = EntryNote()
        self._operations = 0
        self._ranges = 0
        self._decisions = 0
        self.settled: list[tuple[GroupRequest, object]] = []
        self.logged: list[GroupRequest] = []
        """Requests with acts in this entry, settled or not, and those whose messages stand in one."""
        self.flawed = False
        """An operation of a leader was void: the leaders have to be made anew."""
        self.was_full = False
        """Something was left for the next entry."""

    def is_full(self, key: GroupKey) -> bool:
        """Whether the group's next operations belong to the next entry."""
        is_full = (
            (key not in self._keys and len(self._keys) >= MAX_SECTIONS)
            or self._decisions >= ENOUGH_DECISIONS
            or self._operations >= ENOUGH_OPERATIONS
            or self._ranges >= ENOUGH_RANGES
            or self._fold.staged_bytes >= ENOUGH_BYTES
        )
        self.was_full |= is_full
        return is_full

    def stage(self, key: GroupKey, operations: Sequence[GroupOperation]) -> list[bool]:
        """Let operations happen; which of them did."""
        if not operations:
            return []
        if key not in self._before:
            self._before[key] = GroupTotals.of(self._fold.groups.get(key))
        happened = self._fold.stage(key, operations, self._stamp)
        for operation, did in zip(operations, happened, strict=True):
            if did:
                self._keys.add(key)
                self._note.happened(key, operation, self._fold.groups.get(key))
        self._operations += len(operations)
        self._ranges += sum(len(getattr(operation, "ranges", ())) for operation in operations)
        return happened

    def note(self) -> EntryNote:
        """All that the entry brings about."""
        for key, before in self._before.items():
            self._note.changed(key, before, GroupTotals.of(self._fold.groups.get(key)))
        return self._note

    def stage_decided(self, key: GroupKey, operations: Sequence[GroupOperation]) -> bool:
        """The same of operations that the group's leader decided: all of them happen, or that is a bug."""
        if all(self.stage(key, operations)):
            return True
        logger.error("group %s: an operation was void: %.200r; this is a bug", key.hex(), operations)
        self.flawed = True
        return False

    # Requests

    def decide(self, request: GroupRequest) -> bool:
        """Settle or park the request, or leave it for a later entry: then False."""
        if request.answer.done():  # the one who asked has gone: nothing is done for it
            request.stage = RequestStage.SETTLED
            return True
        match request:
            case PlacedRequest():
                return self._place(request)
            case ConsumerRequest():
                return self._serve(request)
            case QuestionRequest():
                return self._ask(request, request.question)
        raise AssertionError(request)

    def _place(self, request: PlacedRequest) -> bool:
        key, operation = request.key, request.operation
        if operation is None:
            if key not in self._fold.groups:
                return False
            self._settle(request, None, self._end())  # its Begin may be the last entry
            return True
        if self.is_full(key):
            return False
        happened = self.stage(key, [operation]) == [True]
        if key in self._led.leaders and not isinstance(operation, Lettered):  # those were given up before
            self._led.leaders[key].noted(self._now_ms)
        self._settle(request, happened, self._end())
        return True

    def _end(self) -> int:
        """The log's last entry, with the one that is being made."""
        return self._stamp.index if self._fold.staged_bytes else self._stamp.index - 1

    def _settle(self, request: GroupRequest, result: object, index: int = 0) -> None:
        request.rest_on(index)
        request.stage = RequestStage.SETTLED
        self.settled.append((request, result))

    def _serve(self, request: ConsumerRequest) -> bool:
        key = request.key
        leader = self._led.leaders.get(key)
        if leader is None:
            return False
        while len(request.outcomes) < len(request.acts):
            if self.is_full(key):
                return False
            done = len(request.outcomes)
            acts = request.acts[done : done + ACTS_AT_ONCE]
            self._decisions += len(acts)
            acted = leader.act(acts, self._now_ms, self._append_us)
            if not self.stage_decided(key, acted.operations):
                error = ShoalError("internal", "an operation of the group was void; receive again")
                request.fail(error, definite=False)
                return True
            request.outcomes += acted.outcomes
            request.lengthened |= any(
                act.kind is ActKind.EXTEND and outcome is None
                for act, outcome in zip(acts, acted.outcomes, strict=True)
            )
            if acted.operations:
                self.logged.append(request)
            if acted.operations or any(acted.outcomes):
                request.rest_on(self._end())
        if request.wanted is None:
            self._settle(request, tuple(request.outcomes))
            return True
        return self._receive(request, request.wanted)

    def _receive(self, request: ConsumerRequest, wanted: Wanted) -> bool:
        leader = self._led.leaders[request.key]
        while leader.is_ready and not self.is_full(request.key):
            self._decisions += 1
            try:
                found = leader.receive(wanted, self._stamp.index, self._now_ms, self._append_us)
            except FeedNotReady:
                return False
            if isinstance(found, Refusal):
                return self._refused(request, wanted, found.reason)
            if not self.stage_decided(request.key, found.operations):
                return False
            if found.delivery:
                self._grant(request, wanted, found)
                return True
            # Messages are being taken back, and there may be more of them.
        return False

    def _grant(self, request: ConsumerRequest, wanted: Wanted, found: Decision) -> None:
        group = self._fold.groups[request.key]
        time_us = self._append_us
        if not found.repeated:
            self._note.given(found.delivered)
        else:
            before = group.requests.find(wanted.consumer, wanted.request)
            assert before is not None, found
            time_us = before.time_us
            request.lengthened = True
        refusal = "" if found.delivered else "empty"  # all of a repeated answer may be done
        granted = Granted(
            found.delivered, found.delivery, group.generation, time_us, refusal, tuple(request.outcomes)
        )
        self._settle(request, granted, entry_of(found.delivery))
        self.logged.append(request)

    def _refused(self, request: ConsumerRequest, wanted: Wanted, reason: str) -> bool:
        request.refusal = reason
        if reason in WAITED_FOR and self._now_ms < request.until_ms:
            question = Question(
                wanted.consumer, wanted.instance, wanted.request, wanted.limit, name=wanted.name
            )
            return self._ask(request, question)
        self.give_up(request)
        return True

    def _ask(self, request: WaitingRequest, question: Question) -> bool:
        leader = self._led.leaders.get(request.key)
        if leader is None or not leader.is_ready:
            return False
        try:
            asked = leader.ask(question, self._now_ms)
        except ShoalError as error:
            request.fail(error, definite=True)
            return True
        request.stage = RequestStage.PARKED
        self._led.park(request, asked.number)
        return True

    def give_up(self, request: WaitingRequest) -> None:
        """It has waited long enough: there is no message."""
        result = None
        if isinstance(request, ConsumerRequest):
            group = self._fold.groups.get(request.key)
            generation = group.generation if group is not None else 0
            refusal = request.refusal or "empty"
            result = Granted((), 0, generation, self._append_us, refusal, tuple(request.outcomes))
        self._settle(request, result)

    # Leaders

    def look(self) -> None:
        """Let leaders do whatever has fallen due: messages out of attempts, leases, sessions."""
        for key, leader in self._led.leaders.items():
            deadline_ms = leader.deadline_ms(self._now_ms, self._append_us)
            if deadline_ms is None or deadline_ms > self._now_ms or self.is_full(key):
                continue
            if not self.stage_decided(key, leader.look(self._now_ms, self._append_us)):
                return

    def answer_questions(self) -> list[WaitingRequest]:
        """Let those go on for whom there are messages now; those who could not, since the entry is full."""
        left: list[WaitingRequest] = []
        for key, leader in self._led.leaders.items():
            for question, promise in leader.promised(self._now_ms, self._append_us):
                request = self._led.parked.pop((key, question.number), None)
                if request is None or request.answer.done():
                    leader.withdraw(question.number)
                    continue
                request.number = 0
                if isinstance(request, ConsumerRequest):
                    assert request.wanted is not None
                    request.wanted = request.wanted._replace(promise=promise.number)
                    request.stage = RequestStage.QUEUED
                    if not self.decide(request):
                        left.append(request)
                else:
                    self._settle(request, promise)
        return left
