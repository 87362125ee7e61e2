"""The leader of one consumer group in one partition: who gets which messages, and what becomes of them.

Law of this file: pure; `now_ms` is this agent's monotonic clock, `append_us` the time that the next entry
would be stamped with. It decides against the group at the log's end. The shell folds what it decides in the
same turn, before it asks again; where that fails, it makes another leader. Here is memory of a term alone:
leases, questions, consumers. A new leader has all it needs from the group itself, after `begin`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from shoal.agent.groups.entry import Deliver, GroupOperation, Release, decode_ranges
from shoal.agent.groups.leader.acts import MAX_ACTS, Acted, ActJudge
from shoal.agent.groups.leader.bounds import first_of, with_attempts, within_bounds
from shoal.agent.groups.leader.candidates import (
    Eligible,
    Feed,
    FeedNotReady,
    GroupOrder,
    Picked,
    Retries,
    SharedOrder,
    StrictOrder,
)
from shoal.agent.groups.leader.key_locks import KeyOrder
from shoal.agent.groups.leader.leases import Leases
from shoal.agent.groups.leader.owners import Presence
from shoal.agent.groups.leader.questions import Questions
from shoal.agent.groups.partition_group import PartitionGroup
from shoal.agent.groups.place import START, MessageSpan, RangeSet, SpanState, joined
from shoal.agent.groups.requests import Remembered
from shoal.agent.groups.settings import GroupSettings
from shoal.agent.receive import (
    DELIVERIES,
    NOBODY,
    Act,
    ConsumerNumbers,
    DeliveredRange,
    GroupMode,
    GroupNumbers,
    Promise,
    Question,
    Wanted,
)

MAX_DELIVER_RANGES: Final = 256
"""Of one answer: it is shorter than its limit, if messages lie more scattered than that."""
MAX_DUE_RANGES: Final = 128
"""The same where places are due times, each of which may stand in an answer's header: 8 KiB hold so many."""
SLICE_SPANS: Final = 4_096
"""A new leader looks at so many spans in one turn."""


class Decision(NamedTuple):
    """Messages for a receive. `repeated`: the number of the earlier delivery that the same request had; it
    is given again once its entry is committed, with no operation. Else 0."""

    operations: tuple[GroupOperation, ...]
    delivered: tuple[DeliveredRange, ...]
    delivery: int
    repeated: int = 0


class Refusal(NamedTuple):
    """No messages now: empty, window-full, paused, not-owner, blocked. Two are errors of the request:
    too-many-consumers, consumer-in-use."""

    reason: str


class GroupLeader:
    """`fits`: whether the groups of the partition may grow by so many bytes."""

    def __init__(
        self,
        group: PartitionGroup,
        settings: GroupSettings,
        feed: Feed,
        *,
        partition: int,
        partitions: int,
        fits: Callable[[int], bool],
    ) -> None:
        self._group = group
        self._settings = settings
        self._feed = feed
        self._partition = partition
        self._partitions = partitions
        self._fits = fits
        self._leases = Leases()
        self._retries = Retries(group, self._leases, settings.max_attempts)
        self._order = self._order_of(settings.mode)
        self._judge = ActJudge(group, self._leases, self._retries, self._order, partition, fits)
        self._presence = Presence(settings.session_ms)
        self._questions = Questions()
        self._repeats: list[int] = []  # questions whose requests were served before
        self._window = ""
        self._is_stale = False  # others have changed the group since `begin`
        self._looked_ms = -1
        """Promises and consumers that were over then are forgotten."""
        self.owner: bytes | None = None
        """Of an exclusive group: the consumer that may have messages in flight."""

    def _order_of(self, mode: GroupMode) -> GroupOrder:
        group, feed, retries, leases = self._group, self._feed, self._retries, self._leases
        match mode:
            case GroupMode.SHARED:
                return SharedOrder(group, feed, retries)
            case GroupMode.EXCLUSIVE:
                return StrictOrder(group, feed, retries, leases)
            case GroupMode.KEY_ORDERED:
                return KeyOrder(group, feed, retries, leases, self._fits)

    @property
    def is_ready(self) -> bool:
        """Whether `begin` has come to its end: no receive before."""
        return self._leases.complete

    def watched(self) -> tuple[str, str]:
        """The owner of an exclusive group by its name, and why nothing more is given; empty for none."""
        return self._presence.name_of(self.owner), self._window

    def begin(self, now_ms: int) -> Iterator[None]:
        """Begin all leases, a slice a step. Call it after the first commit of the own term; acts may come in
        between, receives may not."""
        place, consumers = START, self._group.requests.consumers()
        newest = max(consumers, default=0)
        others = [number for number, name in consumers.items() if name != consumers[newest]]
        # Former owners of an exclusive group have no lease any more, or the last one would not be one. Nor
        # has anybody behind a message that was given later: that would have taken the others back.
        strict = self._settings.mode is GroupMode.EXCLUSIVE
        lost = max(others, default=0) if strict else 0
        last, in_hand = 0, set[int]()
        while True:
            seen = 0
            for span in self._group.spans.from_place(place):
                if seen >= SLICE_SPANS:
                    break
                seen += 1
                if span.state is SpanState.IN_FLIGHT:
                    if strict and (span.delivery <= lost or span.delivery < last):
                        span = span._replace(lease_ms=0)
                    else:
                        in_hand.add(span.delivery)
                    self._leases.resume(span, consumers.get(span.delivery, NOBODY), now_ms)
                    last = max(last, span.delivery)
                elif span.state is SpanState.WAITING:
                    self._retries.wait(span.until_us, [span.piece])
                place = span.end
            if seen < SLICE_SPANS:
                break
            yield
        self._leases.complete = True
        if self._is_stale:
            self._retries.relook(now_ms)
        self._order.reset()
        if strict and lost < last <= newest:
            # The consumer that was given messages last owned all whose leases ran then.
            self.owner = consumers[newest]
            self._leases.belong(in_hand, self.owner)
            self._presence.see(self.owner, NOBODY, now_ms)

    def change(self, settings: GroupSettings, now_ms: int) -> None:
        """The group has other settings; the mode is always the same."""
        assert settings.mode is self._settings.mode
        self._settings = settings
        self._presence.session_ms = settings.session_ms
        self._retries.most = settings.max_attempts
        if self.is_ready:
            self._order.noted(self._retries.relook(now_ms), now_ms)

    def noted(self, now_ms: int) -> None:
        """The shell has folded an operation that this leader did not decide: Seek, Free, Decide, Skip, Lost,
        Lettered."""
        self._leases.recount(self._group.spans)
        self._is_stale = not self.is_ready
        if self.is_ready:
            self._retries.relook(now_ms)
            self._order.reset()

    def receive(self, wanted: Wanted, index: int, now_ms: int, append_us: int) -> Decision | Refusal:
        """Messages for a consumer, in the entry that will have this index. Raises FeedNotReady; nothing has
        happened then."""
        assert self.is_ready
        self._advance(now_ms, append_us)
        group = self._group
        if wanted.request != NOBODY:
            before = group.requests.find(wanted.consumer, wanted.request)
            if before is not None:
                return self._repeat(before, wanted, now_ms)
        refusal = self._refusal(wanted, now_ms, append_us)
        if refusal is not None:
            return refusal
        reserved = self._questions.reserved - self._questions.share_of(wanted.promise)
        picked = self._picked(wanted.limit, reserved, now_ms, append_us)
        fitting = self._within(picked.candidates, wanted)
        self._questions.redeem(wanted.promise)
        if not fitting and not picked.taken_back:
            return Refusal(self._window or ("blocked" if picked.blocked else "empty"))
        return self._deliver(wanted, picked, fitting, index)

    def _repeat(self, before: Remembered, wanted: Wanted, now_ms: int) -> Decision:
        """The same messages again: those that are still in flight by that delivery."""
        self._questions.redeem(wanted.promise)
        ranges, _ = decode_ranges(before.ranges)
        delivered = with_attempts(
            (span.piece, span.attempts)
            for piece in ranges
            for span in self._group.spans.overlapping(piece)
            if span.state is SpanState.IN_FLIGHT and span.delivery == before.delivery
        )
        is_its_own = self._settings.mode is not GroupMode.EXCLUSIVE or self._is_owner(wanted, now_ms)
        if is_its_own and self._leases.has_begun(before.delivery):
            self._leases.extend_all(before.delivery, now_ms + wanted.lease_ms)
        for one in delivered:
            self._order.held(one.range)
        return Decision((), delivered, before.delivery, before.delivery)

    def _refusal(self, wanted: Wanted, now_ms: int, append_us: int) -> Refusal | None:
        exclusive = self._settings.mode is GroupMode.EXCLUSIVE
        if exclusive and self._presence.is_other(wanted.consumer, wanted.instance):
            return Refusal("consumer-in-use")
        seen = self._presence.see(wanted.consumer, wanted.instance, now_ms, wanted.name)
        if exclusive and not seen:
            return Refusal("too-many-consumers")
        if wanted.request != NOBODY and self._group.requests.must_wait(wanted.consumer, append_us):
            return Refusal("too-many-consumers")
        if self._settings.paused:
            return Refusal("paused")
        if exclusive and wanted.consumer != self._served(now_ms):
            return Refusal("not-owner")
        return None

    def _is_owner(self, wanted: Wanted, now_ms: int) -> bool:
        """Whether one who repeats a receive still owns the partition, or does again."""
        if self._presence.is_other(wanted.consumer, wanted.instance):
            return False
        if not self._presence.see(wanted.consumer, wanted.instance, now_ms, wanted.name):
            return False
        self._served(now_ms)
        return self.owner == wanted.consumer

    def _served(self, now_ms: int) -> bytes | None:
        """The consumer that may have new messages. The owner changes when the former one holds nothing."""
        assigned = self._presence.owner_of(self._partition, self._partitions, now_ms)
        if self.owner != assigned and not self._leases.any_runs(now_ms):
            self.owner = assigned
        return assigned if self.owner == assigned else None

    def _picked(self, limit: int, reserved: int, now_ms: int, append_us: int) -> Picked:
        """The messages for one who wants so many, without those that are promised to others."""
        wanted = min(limit, self._order.most_at_once) + reserved
        ranges = MAX_DUE_RANGES if self._group.by_due else MAX_DELIVER_RANGES
        picked = self._order.pick(wanted, ranges, now_ms, append_us)
        candidates, self._window = within_bounds(self._group, picked.candidates, self._fits)
        if self._window and not candidates:  # messages that come again need no room: they may stand behind
            picked = self._order.pick(wanted, ranges, now_ms, append_us, again_only=True)
            candidates, _ = within_bounds(self._group, picked.candidates, self._fits)
        available = sum([candidate.range.count for candidate in candidates])
        left = min(limit, self._order.most_at_once, max(available - reserved, 0))
        return Picked(first_of(candidates, left), picked.taken_back, picked.blocked)

    def _within(self, candidates: Sequence[Eligible], wanted: Wanted) -> list[Eligible]:
        """The first candidates whose records fit into an answer, as far as the feed knows; at least one
        message."""
        fitting: list[Eligible] = []
        left = wanted.max_bytes
        for candidate in candidates:
            piece = candidate.range
            try:
                rows, size_bytes = self._feed.rows_within(piece, left)
            except FeedNotReady:
                if fitting:
                    break  # what it learns of this one, it may forget of the others meanwhile
                raise
            if not rows and not fitting:
                return [candidate.first(1)]  # larger than the whole answer
            if rows:
                fitting.append(candidate.first(rows))
            left -= size_bytes
            if rows < piece.count or left <= 0:
                break
        return fitting

    def _deliver(self, wanted: Wanted, picked: Picked, fitting: Sequence[Eligible], index: int) -> Decision:
        operations: list[GroupOperation] = []
        for span in picked.taken_back:
            self._leases.take(span.delivery, span.count)
            self._retries.wait(0, [span.piece])
            self._order.released(span.piece)
            operations.append(Release(span.delivery, 0, (span.piece,), uncounted=True))
        if not fitting:
            return Decision(tuple(operations), (), 0)
        delivery = self._group.next_delivery(index)
        assert delivery < (index + 1) * DELIVERIES, "an entry has fewer answers than deliveries"
        for candidate in fitting:
            if candidate.delivery:
                self._leases.take(candidate.delivery, candidate.range.count)
        passed = self._order.given(fitting)
        ranges = joined(candidate.range for candidate in fitting)
        self._leases.add(delivery, wanted.consumer, ranges, wanted.lease_ms)
        request = wanted.request
        if request == NOBODY and self._settings.mode is GroupMode.EXCLUSIVE:
            request = delivery.to_bytes(16, "little")  # nobody repeats it; but a new leader knows the owner
        operations.append(Deliver(wanted.consumer, request, wanted.lease_ms, ranges, passed))
        delivered = with_attempts((one.range, one.attempts + 1) for one in sorted(fitting))
        return Decision(tuple(operations), delivered, delivery)

    def act(self, acts: Sequence[Act], now_ms: int, append_us: int) -> Acted:
        """Outcomes for acts, at most MAX_ACTS. Leases that ended are no hindrance."""
        self._advance(now_ms, append_us)
        return self._judge.judge(acts, self._settings, self.owner, now_ms, append_us)

    def look(self, now_ms: int, append_us: int) -> tuple[GroupOperation, ...]:
        """At a deadline: give up messages that have had all their attempts, forget those who are gone."""
        self._advance(now_ms, append_us)
        if not self.is_ready:
            return ()
        retries = self._retries
        dying: list[MessageSpan] = []
        left = self._judge.may_die(self._settings)
        named = RangeSet()
        while left and retries.spent and len(dying) < MAX_ACTS:
            piece = retries.spent.pop(0)
            for span in retries.loose(piece, now_ms, append_us):
                for part in named.missing(span.piece) if retries.is_spent(span) else ():
                    named.add(part)
                    count = min(part.count, left)
                    if count < part.count:
                        retries.spent.insert(
                            0, part._replace(first=part.first + count, count=part.count - count)
                        )
                    if count:
                        dying.append(span._replace(first=part.first, count=count))
                    left -= count
        return self._judge.expire(self._settings, dying, now_ms, append_us) if dying else ()

    def committed(self, index: int, now_ms: int) -> None:
        """The log is committed up to this index: the leases of its deliveries begin."""
        self._leases.committed(index, now_ms)

    def deadline_ms(self, now_ms: int, append_us: int) -> int | None:
        """When `look` and `promised` may have something to do; None: not before something else happens."""
        due_us = [self._retries.deadline_us()]
        if self._questions.has_any():
            due_us.append(self._feed.deadline_us(append_us))
        if self._order.is_reading or (self._retries.spent and self._judge.may_die(self._settings)):
            return now_ms
        times = [now_ms + max(-((append_us - at_us) // 1000), 0) for at_us in due_us if at_us is not None]
        deadlines = [self._leases.deadline_ms(), self._questions.deadline_ms()]
        if self._settings.mode is GroupMode.EXCLUSIVE:
            deadlines.append(self._presence.deadline_ms())
        times += [at_ms for at_ms in deadlines if at_ms is not None]
        return min(times, default=None)

    def _advance(self, now_ms: int, append_us: int) -> None:
        """Let time pass: promises, consumers, leases, delays."""
        if now_ms != self._looked_ms:  # once for all requests of a turn
            self._looked_ms = now_ms
            self._questions.expire(now_ms)
            self._advance_presence(now_ms)
        if self.is_ready:
            self._order.noted(self._retries.advance(now_ms, append_us), now_ms)

    def _advance_presence(self, now_ms: int) -> None:
        """Forget consumers whose session is over; those that wait for messages are there."""
        session_ms = self._presence.deadline_ms()
        if session_ms is None or session_ms > now_ms:
            return
        for question in self._questions:
            if question.consumer in self._presence:
                self._presence.see(question.consumer, question.instance, now_ms)
        self._gone(self._presence.expire(now_ms), now_ms)

    def _gone(self, consumers: Sequence[bytes], now_ms: int) -> None:
        """Consumers are not there any more: what the owner held may be given to the next."""
        if self.owner is not None and self.owner in consumers:
            self._leases.end_all(now_ms)
            self.owner = None

    def ask(self, question: Question, now_ms: int) -> Question:
        """Somebody waits; the question with its number. Raises ShoalError overloaded."""
        if not self._presence.is_other(question.consumer, question.instance):
            self._presence.see(question.consumer, question.instance, now_ms, question.name)
        asked = self._questions.ask(question)
        if self._group.requests.find(question.consumer, question.request) is not None:
            self._repeats.append(asked.number)
        return asked

    def withdraw(self, number: int) -> None:
        """Nobody waits with this number any more."""
        self._questions.withdraw(number)

    def promised(self, now_ms: int, append_us: int) -> list[tuple[Question, Promise]]:
        """The questions that can be answered now, the first first."""
        answers: list[tuple[Question, Promise]] = []
        for number in self._repeats:
            if (asked := self._questions.get(number)) is not None:
                self._questions.promise(number, 0, now_ms)
                answers.append((asked, Promise(self._partition, number, repeat=True)))
        self._repeats.clear()
        if not self._questions.has_any() or self._settings.paused or not self.is_ready:
            return answers
        self._advance(now_ms, append_us)
        waiting = list(self._questions)
        if self._settings.mode is GroupMode.EXCLUSIVE:
            owner = self._served(now_ms)
            waiting = [question for question in waiting if question.consumer == owner]
        reserved = self._questions.reserved
        limit = min(sum(one.limit for one in waiting), self._order.most_at_once - reserved)
        if limit <= 0:
            return answers
        try:
            picked = self._picked(limit, reserved, now_ms, append_us)
        except FeedNotReady:
            return answers  # the shell asks again when the feed is ready
        left = sum(candidate.range.count for candidate in picked.candidates)
        for question in waiting if left or picked.taken_back else ():
            share = min(question.limit, left)
            self._questions.promise(question.number, share, now_ms)
            answers.append((question, Promise(self._partition, question.number)))
            left -= share
            if not left:
                break
        return answers

    def present(self, consumer: bytes, instance: bytes, now_ms: int, name: str = "") -> bool:
        """A consumer tells that it is there. False: another process of that name is, or too many are."""
        self._advance_presence(now_ms)
        if self._presence.is_other(consumer, instance):
            return False
        return self._presence.see(consumer, instance, now_ms, name)

    def leave(self, consumer: bytes, instance: bytes, now_ms: int) -> None:
        """A consumer goes: as if its session had ended."""
        if self._presence.leave(consumer, instance, now_ms):
            self._gone([consumer], now_ms)

    def assigned(self, consumer: bytes, now_ms: int) -> bool:
        """Whether this partition of an exclusive group should be the consumer's."""
        return self._presence.owner_of(self._partition, self._partitions, now_ms) == consumer

    def describe(self, now_ms: int, append_us: int) -> GroupNumbers:
        """The group here, for people."""
        group, messages = self._group, self._group.spans.messages
        behind, end = group.next, self._feed.end(append_us)
        holds = self._leases.holds()
        seen = dict(self._presence.items())
        consumers = [
            ConsumerNumbers(name, seen[name].name, holds[name], now_ms - seen[name].seen_ms) for name in seen
        ]
        return GroupNumbers(
            generation=group.generation,
            position=group.floor,
            next=behind,
            end=end,
            lag=group.spans.undone + self._passed_over() + self._feed.count(behind, append_us),
            in_flight=messages[SpanState.IN_FLIGHT],
            delayed=messages[SpanState.WAITING],
            dying=messages[SpanState.DYING],
            stopped=messages[SpanState.STOPPED],
            letters=len(group.letters),
            dead=group.letters_given,
            acked=group.acked,
            skipped=group.skipped,
            dropped=group.dropped,
            window=self._window,
            blocked_by=self._order.blocked_by(),
            owner=self.owner or NOBODY,
            consumers=tuple(consumers),
        )

    def _passed_over(self) -> int:
        """New messages before the last that was given."""
        group = self._group
        if group.by_due:
            return 0
        seen = sum(group.spans.messages.values())
        for span in group.spans.from_place(START):
            if span.begin >= group.floor:
                break
            seen -= min(span.count, group.floor.offset - span.first)
        return group.next.offset - group.floor.offset - seen

    def check_invariants(self, now_ms: int) -> None:
        """Every message in flight has a lease; those of an exclusive group are one owner's."""
        if not self.is_ready:
            return
        self._leases.check_invariants(self._group.spans)
        self._order.check_invariants(now_ms)
        if self._settings.mode is GroupMode.EXCLUSIVE:
            owners = self._leases.holders(now_ms) - {NOBODY}
            assert len(owners) <= 1, f"several consumers own one partition: {owners}"
