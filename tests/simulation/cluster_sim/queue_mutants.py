"""Deliberate faults in consumer groups: their fold, leaders and keepers; mutants.py runs them."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from typing import Any

from shoal.agent.delivery import letter_sender
from shoal.agent.delivery.group_upkeep import GroupUpkeep
from shoal.agent.delivery.keeper import GroupKeeper
from shoal.agent.groups import fold
from shoal.agent.groups.floor import FlooredSpans
from shoal.agent.groups.fold import GroupFold
from shoal.agent.groups.leader.acts import _Request
from shoal.agent.groups.leader.candidates import StrictOrder
from shoal.agent.groups.leader.group_leader import Decision, GroupLeader
from shoal.agent.groups.leader.key_locks import KeyOrder
from shoal.agent.groups.leader.leases import Leases
from shoal.agent.groups.leader.owners import Presence
from shoal.agent.groups.partition_group import PartitionGroup
from shoal.agent.groups.place import MessageSpan, SpanState
from shoal.agent.groups.requests import RequestMemory
from shoal.agent.receive import DELIVERIES, DuePlace, Wanted
from shoal.format.batch import LogIndex

Patch = tuple[Any, str, Any]


def answer_groups_before_the_commit() -> list[Patch]:
    """Consumers hear of messages as soon as the entry that delivers them is proposed."""

    def answer(self: GroupKeeper, request: Any, result: object) -> None:
        if not request.answer.done():
            request.answer.set_result(result)

    return [(GroupKeeper, "_answer", answer)]


def forget_requests_at_a_checkpoint() -> list[Patch]:
    """A replica that starts again does not know which requests were served before."""
    decode = fold.decode_fold

    def mutated(data: bytes, *, by_due: bool) -> Any:
        groups = decode(data, by_due=by_due)
        for group in groups.values():
            group.requests = RequestMemory()
        return groups

    return [(fold, "decode_fold", mutated)]


def take_older_receipts() -> list[Patch]:
    """An act counts for whatever delivery of the message is the newest."""
    held = _Request._held

    def mutated(self: _Request, receipt: Any) -> tuple[list[MessageSpan], str]:
        spans, refusal = held(self, receipt)
        if refusal == "receipt-expired":
            span = next(iter(self._group.spans.from_place(_place_of(receipt))), None)
            if span is not None and span.state is SpanState.IN_FLIGHT and span.begin <= _place_of(receipt):
                return [span._replace(first=receipt.offset, count=1)], ""
        return spans, refusal

    return [(_Request, "_held", mutated)]


def _place_of(receipt: Any) -> DuePlace:
    return DuePlace(receipt.due_us, receipt.offset)


def unlock_a_key_at_a_nack() -> list[Patch]:
    """A message that was given back is no hindrance to the others of its key."""
    released = KeyOrder.released

    def mutated(self: KeyOrder, piece: Any) -> None:
        released(self, piece)
        for place in list(self._known(piece)):
            if hashed := self._hashes[place]:
                self._unchain(place, hashed)
                self._hashes[place] = 0
                if hashed in self._chains:
                    self._heads.append(self._head(hashed))
        self._heads.sort()

    return [(KeyOrder, "released", mutated)]


def move_the_floor_over_gaps() -> list[Patch]:
    """Whatever lies before a message that is done counts as done."""

    def move_floor(self: FlooredSpans, journal: list[Any]) -> None:
        floor = self.floor
        for span in self.spans.from_place(floor):
            floor = span.end if span.state is SpanState.DONE else floor
        if floor > self.floor:
            self.clear(self.floor, floor, journal)
            self.change("floor", floor, journal)

    return [(FlooredSpans, "move_floor", move_floor)]


def forget_requests() -> list[Patch]:
    """A repeated receive brings other messages."""
    return [(RequestMemory, "find", lambda *_: None)]


def keep_groups_as_they_were_before_a_cut() -> list[Patch]:
    """When a log's end is cut, what its entries did to groups stays."""

    def undo_from(self: GroupFold, index: Any) -> None:
        while self._journal and self._journal[-1].index >= index:
            self._journal.pop()

    return [(GroupFold, "undo_from", undo_from)]


def begin_without_leases() -> list[Patch]:
    """A new leader gives at once what is in somebody's hands."""
    resume = Leases.resume

    def mutated(self: Leases, span: MessageSpan, consumer: bytes, now_ms: int) -> None:
        resume(self, span._replace(lease_ms=0), consumer, now_ms)

    return [(Leases, "resume", mutated)]


def let_everybody_own() -> list[Patch]:
    """Whoever asks has the partition."""
    refusal = GroupLeader._refusal

    def mutated(self: GroupLeader, *arguments: Any) -> Any:
        found = refusal(self, *arguments)
        return None if found is not None and found.reason == "not-owner" else found

    return [
        (GroupLeader, "_refusal", mutated),
        (GroupLeader, "check_invariants", lambda *_: None),
    ]


def give_more_than_is_wanted() -> list[Patch]:
    """An answer has messages beyond its limit."""
    receive = GroupLeader.receive

    def mutated(self: GroupLeader, wanted: Wanted, *more: Any) -> Any:
        return receive(self, wanted._replace(limit=wanted.limit + 3), *more)

    return [(GroupLeader, "receive", mutated)]


def never_skip() -> list[Patch]:
    """Groups wait for messages that retention has taken."""
    return [(GroupUpkeep, "is_trimmed", lambda *_: False)]


def make_an_entry_a_turn() -> list[Patch]:
    """Without waiting until the last one is on the disk."""
    turn_begins = GroupKeeper.turn_begins

    def mutated(self: GroupKeeper, now_ms: int) -> None:
        self._last_entry = type(self._last_entry)(0)
        turn_begins(self, now_ms)

    return [(GroupKeeper, "turn_begins", mutated)]


def never_end_a_lease() -> list[Patch]:
    """What a consumer took with it when it died comes to nobody."""

    return [
        (Leases, "ended", lambda *_: []),
        # Or its leader would have a turn each millisecond, which takes most of the run's processor time.
        (Leases, "deadline_ms", lambda _: None),
    ]


def count_no_attempt_of_a_nack() -> list[Patch]:
    """A message that failed comes again as if it had never been given."""
    give_back = _Request._give_back

    def mutated(self: _Request, spans: Sequence[MessageSpan], until_us: int, *, uncounted: bool) -> None:
        give_back(self, spans, until_us, uncounted=True)

    return [(_Request, "_give_back", mutated)]


def number_answers_by_their_entry() -> list[Patch]:
    """Two answers of one entry have one number: the receipt of one speaks of the other's messages."""
    return [(PartitionGroup, "next_delivery", lambda _, index: index * DELIVERIES)]


def pass_over_what_waits() -> list[Patch]:
    """An exclusive group goes on while a message waits to come again."""
    pick = StrictOrder.pick

    def mutated(self: StrictOrder, *arguments: Any) -> Any:
        picked = pick(self, *arguments)
        if picked.candidates or not picked.blocked:
            return picked
        self._retries.due.clear()
        kept, self._walk = self._walk, lambda *_: picked._replace(blocked=False)  # type: ignore[method-assign]
        try:
            return pick(self, *arguments)
        finally:
            self._walk = kept  # type: ignore[method-assign]

    return [(StrictOrder, "pick", mutated)]


def repeat_a_part_of_an_answer() -> list[Patch]:
    """Of the messages of a repeated receive the first ones come."""
    repeat = GroupLeader._repeat

    def mutated(self: GroupLeader, before: Any, wanted: Wanted, now_ms: int) -> Decision:
        found = repeat(self, before, wanted, now_ms)
        return found._replace(delivered=found.delivered[:1])

    return [(GroupLeader, "_repeat", mutated)]


def forget_who_is_there() -> list[Patch]:
    """A consumer that says that it is there, and asks for nothing, is not heard."""
    return [(GroupLeader, "present", lambda *_: True)]


def let_sessions_last() -> list[Patch]:
    """Who has gone counts for ten sessions more."""
    see = Presence.see

    def mutated(self: Presence, consumer: bytes, instance: bytes, now_ms: int, name: str = "") -> bool:
        return see(self, consumer, instance, now_ms + 10 * self.session_ms, name)

    return [(Presence, "see", mutated)]


def write_a_letter_for_each_try() -> list[Patch]:
    """A letter that was sent before is another one when it is sent again."""
    tries = itertools.count(1)

    def producer(group: bytes, partition: int) -> bytes:
        return hashlib.sha256(b"%d" % next(tries) + group + bytes([partition])).digest()[:16]

    return [(letter_sender, "producer_of", producer), (letter_sender, "sequence_of", lambda _: 0)]


def take_receipts_of_before_a_seek() -> list[Patch]:
    """They count for what was given since."""
    outcome = _Request._outcome

    def mutated(self: _Request, act: Any) -> str | None:
        receipt = act.receipt
        if receipt.generation < self._group.generation and receipt.offset is not None:
            span = self._group.spans.at(_place_of(receipt))
            if span is not None:
                newest = {"generation": self._group.generation, "delivery": span.delivery}
                return outcome(self, act._replace(receipt=receipt._replace(**newest)))
        return outcome(self, act)

    return [(_Request, "_outcome", mutated)]


def seek_without_forgetting() -> list[Patch]:
    """What was done before a group was sought is done."""
    seek = PartitionGroup._seek

    def mutated(self: PartitionGroup, *arguments: Any) -> bool:
        floor = self.floor
        sought = seek(self, *arguments)
        if sought:
            self.floor = max(floor, self.floor)
        return sought

    return [(PartitionGroup, "_seek", mutated)]


def count_entries_that_were_cut() -> list[Patch]:
    """The note beside such an entry stays, and is told with the next one."""
    undo_from = GroupFold.undo_from

    def mutated(self: GroupFold, index: LogIndex) -> None:
        notes = self._notes.copy()
        undo_from(self, index)
        self._notes = notes

    return [(GroupFold, "undo_from", mutated)]


def redrive_from_the_first_letter() -> list[Patch]:
    """Whatever came again before comes again with the next ones."""
    letters_of = GroupKeeper.letters_of
    return [(GroupKeeper, "letters_of", lambda self, key: (0, letters_of(self, key)[1]))]


def answer_without_asking() -> list[Patch]:
    """A leader that was deposed, and does not know it, refuses receipts of the next one. It makes leases
    longer, of which that one knows nothing."""

    async def mutated(self: GroupKeeper, request: Any, term: int) -> None:
        self._replica.require_leader()

    return [(GroupKeeper, "_confirm", mutated)]
