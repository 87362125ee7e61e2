"""A long walk of one group under its leaders: any words, judged by what is promised.

The model keeps one value per message, and follows the operations that were folded. It does not say which
messages an answer must hold; it says which ones it must not, and when an empty answer is a lie. So it also
walks where bounds are tiny, keys cannot be read, and a new leader is not ready yet.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

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
    Release,
    Seek,
    Skip,
)
from shoal.agent.groups.leader.candidates import FeedNotReady
from shoal.agent.groups.leader.group_leader import Decision, GroupLeader, Refusal
from shoal.agent.groups.place import Letter
from shoal.agent.groups.settings import GroupSettings
from shoal.agent.receive import (
    NOBODY,
    Act,
    ActKind,
    DuePlace,
    GroupMode,
    Range,
    StoppedAction,
    Wanted,
)
from shoal.format.receipt import Receipt
from tests.agent.groups.group_desk import KEY, PARTITION, GroupDesk, name
from tests.agent.groups.leader.walk_world import FOREVER, Message, WalkFeed, World, tiny_bounds

CONSUMERS = ("a", "b", "c")


class LeaderWalk:
    """One walk. `mode` and `by_due` as the group has them."""

    def __init__(self, seed: int, mode: GroupMode, *, by_due: bool) -> None:
        self.chance = chance = random.Random(seed)
        self.mode = mode
        self.feed = WalkFeed(by_due=by_due)
        self.by_due = by_due
        settings = GroupSettings(
            mode,
            dead=chance.choice(("letter", "drop", "stop")),
            max_attempts=chance.choice((None, 1, 2, 4)),
            session_ms=chance.choice((5_000, 60_000)),
            visibility_ms=10_000,
        )
        self.desk = GroupDesk(settings, self.feed)
        self.world = World()
        self.before: dict[int, World] = {self.desk.index: self.world.copy()}
        self.given: list[tuple[bytes, int, int]] = []  # consumer, delivery, an offset
        self.requests = 0
        self.beginning: Iterator[None] | None = None
        self.lag_us = 0
        self.promises: list[int] = []
        self.keys = chance.choice((1, 2, 5))
        self.slow = chance.random() < 0.5
        self.trail: list[str] = []

    # -- the desk

    @property
    def leader(self) -> GroupLeader:
        """Of now."""
        return self.desk.leader

    @property
    def now_ms(self) -> int:
        """Of now."""
        return self.desk.now_ms

    def fold(self, operations: Sequence[GroupOperation]) -> None:
        """One entry, in both."""
        if not operations:
            return
        stamp = self.desk.stamp()
        # One by one: a decision may give what it has just taken back.
        group = self.desk.group
        delivery = group.next_delivery(stamp.index)
        self.desk.fold_operations(operations)
        for operation in operations:
            self.follow(operation, delivery, stamp.append_time_us)
        self.before[self.desk.index] = self.world.copy()

    def follow(self, operation: GroupOperation, delivery: int, append_us: int) -> None:
        """The model of an operation that happened."""
        world = self.world
        match operation:
            case Deliver():
                for one in world.of(operation.ranges):
                    self.may_be_delivered(one, append_us)
                    one.state, one.delivery, one.until_us = "held", delivery, 0
                    one.attempts += 1
                    one.lease_ms, one.ends_ms, one.holder = operation.lease_ms, FOREVER, operation.consumer
                for one in world.of(operation.passed):
                    if one.state == "new":
                        one.state, one.until_us, one.attempts = "waiting", 0, 0
                if operation.request != NOBODY:
                    world.answers.pop(operation.consumer, None)
                if operation.request.startswith(b"r"):  # the others are a leader's own
                    request = operation.request.rstrip(b"\0").decode()
                    world.answers[operation.consumer] = (request, delivery)
            case Acknowledge(number, ranges):
                for one in world.of(ranges):
                    if one.state == "held" and one.delivery == number:
                        one.state = "done"
            case Release(number, until_us, ranges, uncounted):
                for one in world.of(ranges):
                    if one.state == "held" and one.delivery == number:
                        one.state, one.until_us = "waiting", until_us
                        one.attempts -= uncounted
            case Die(number, _, ranges, _, fate):
                dead = [one for one in world.of(ranges) if one.state in ("held", "waiting", "stopped")]
                self.die([one for one in dead if one.delivery == number], fate)
            case _:
                self.follow_operator(operation)

    def follow_operator(self, operation: GroupOperation) -> None:
        """The others."""
        world = self.world
        match operation:
            case Lettered():
                self.check_letters()
            case Seek(generation, place):
                world.generation, world.floor = generation, place
                for one in world.messages:
                    self.renew(one, "new" if one.place >= place else "done")
                world.answers.clear()
            case Skip(offset):
                for one in world.messages[:offset]:
                    self.renew(one, "done")
            case Free(ordinal, ranges):
                world.redriven = ordinal
                for one in world.of(ranges):
                    if one.state in ("done", "waiting", "stopped"):
                        self.renew(one, "waiting")
            case Decide(action, ranges):
                stopped = [one for one in world.of(ranges) if one.state == "stopped"]
                if action is StoppedAction.RETRY:
                    for one in stopped:
                        self.renew(one, "waiting")
                else:
                    self.die(stopped, Fate.LETTER if action is StoppedAction.LETTER else Fate.DROP)
            case Lost(ranges):
                for one in world.of(ranges):
                    if one.state not in ("done", "dying"):
                        self.renew(one, "done")

    @staticmethod
    def renew(one: Message, state: str) -> None:
        """Without a history."""
        one.state, one.attempts, one.delivery, one.until_us = state, 0, 0, 0

    def die(self, dead: Sequence[Message], fate: Fate) -> None:
        """With a letter, or not."""
        for one in dead:
            one.state = {Fate.LETTER: "dying", Fate.DROP: "done", Fate.STOP: "stopped"}[fate]
            one.until_us = 0
            self.world.letters += fate is Fate.LETTER

    def check_letters(self) -> None:
        """Messages that wait for a letter to be stored are those of letters."""
        waiting = {letter.offset for letter in self.desk.group.letters}
        for at, one in enumerate(self.world.messages):
            if one.state == "dying" and at not in waiting:
                one.state = "done"

    # -- what is promised

    def may_be_delivered(self, one: Message, append_us: int) -> None:
        """Of every message of an answer."""
        most = self.desk.settings.max_attempts
        assert one.state in ("new", "waiting", "held"), one
        assert most is None or one.attempts < most, f"more than {most} attempts: {one}"
        assert one.state != "waiting" or one.until_us <= append_us, f"too early: {one}"
        assert one.state != "held" or one.ends_ms <= self.now_ms, f"in a consumer's hands: {one}"
        assert one.place.due_us <= append_us, one
        if self.mode is not GroupMode.KEY_ORDERED:  # there it may have been known before
            assert one.state != "new" or one.place.offset not in self.feed.hidden, f"unreadable: {one}"

    def ordered(self) -> list[Message]:
        """The messages in the order of their places, without those that are done with."""
        return [one for one in sorted(self.world.messages, key=lambda one: one.place) if self.is_undone(one)]

    @staticmethod
    def is_undone(one: Message) -> bool:
        """Whether others wait for it."""
        return one.state not in ("done", "dying")

    def runs(self, one: Message) -> bool:
        """Whether a consumer has it in its hands."""
        return one.state == "held" and one.ends_ms > self.now_ms

    def check_order(self, answer: Sequence[Message], consumer: bytes) -> None:
        """After it was folded: nothing that waits stands before it."""
        chosen = {one.place for one in answer}
        undone = self.ordered()
        if self.mode is GroupMode.EXCLUSIVE:
            last = max(chosen)
            for one in undone:
                if one.place in chosen:
                    continue
                if one.place < last:
                    assert self.runs(one), f"{one} stands before {last}"
                if self.runs(one):
                    assert one.holder in (consumer, NOBODY), f"two owners: {one} and {consumer!r}"
                    assert one.place < min(chosen), f"{one} is in hand behind {min(chosen)}"
        if self.mode is GroupMode.KEY_ORDERED:
            ends: dict[int, DuePlace] = {}
            for one in answer:
                if one.key:
                    ends[one.key] = max(one.place, ends.get(one.key, one.place))
            for one in undone:
                if one.place in chosen or one.key not in ends:
                    continue
                assert one.place > ends[one.key], f"{one} stands before another of its key, {ends}"
                assert not self.runs(one), f"{one} is in hand behind another of its key, {ends}"

    def deliverable(self, append_us: int) -> list[Message]:
        """Messages that somebody should get now."""
        most = self.desk.settings.max_attempts
        found: list[Message] = []
        locked: set[int] = {one.key for one in self.ordered() if self.runs(one)}
        for one in self.ordered():
            spent = most is not None and one.attempts >= most
            loose = one.place.due_us <= append_us and (
                (one.state == "new" and one.place.offset not in self.feed.hidden)
                or (one.state == "waiting" and one.until_us <= append_us and not spent)
                or (one.state == "held" and not self.runs(one) and not spent)
            )
            if loose and (self.mode is not GroupMode.KEY_ORDERED or not one.key or one.key not in locked):
                found.append(one)
            elif self.mode is GroupMode.EXCLUSIVE and not self.runs(one):
                break
            if self.mode is GroupMode.KEY_ORDERED and one.state == "new" and not loose:
                break
            locked.add(one.key)
        return found

    # -- steps

    def step(self) -> None:
        """Any."""
        weights = {
            self.produce: 3,
            self.time_passes: 5,
            self.commit: 5,
            self.fail_over: 0.6,
            self.begin_on: 4,
            self.receive: 10,
            self.repeat: 2,
            self.act: 10,
            self.up_to: 1 if self.mode is GroupMode.EXCLUSIVE and not self.by_due else 0,
            self.look: 3,
            self.store_letters: 2,
            self.operate: 2,
            self.hide: 1 if not self.by_due else 0,
            self.change: 0.5,
            self.ask: 1.5,
            self.come_and_go: 0.5,
        }
        (doing,) = self.chance.choices(list(weights), list(weights.values()))
        self.trail.append(doing.__name__)
        self.let_time_pass()
        doing()
        self.check()

    def check(self) -> None:
        """The table is as the model says."""
        self.desk.fold.check_invariants()
        self.leader.check_invariants(self.now_ms)
        group = self.desk.group
        assert group.letters_given == self.world.letters
        for one in self.world.messages:
            span = group.spans.at(one.place)
            if span is None:
                assert one.state == ("done" if one.place < group.floor else "new"), (one, group)
                continue
            names = {1: "held", 2: "waiting", 3: "done", 4: "dying", 5: "stopped"}
            assert names[span.state] == one.state, (one, span)
            if one.state in ("held", "waiting", "stopped"):
                assert (span.attempts, span.until_us) == (one.attempts, one.until_us), (one, span)
            if one.state == "held":
                assert span.delivery == one.delivery

    def let_time_pass(self) -> None:
        """The leader hears of the time at any step; leases of owners that are gone end."""
        if not self.leader.is_ready:
            return
        owner = self.leader.owner
        self.fold(self.leader.look(self.now_ms, self.desk.append_us))
        if owner is not None and self.leader.owner is None:
            self.end_leases()

    def end_leases(self) -> None:
        """The owner is gone."""
        if self.mode is GroupMode.EXCLUSIVE:
            for one in self.world.messages:
                if one.state == "held":
                    one.ends_ms = min(one.ends_ms, self.now_ms)

    def produce(self) -> None:
        """Some messages, due at once or later."""
        for _ in range(self.chance.randint(1, 5)):
            due = self.desk.append_us + 1_000 * self.chance.choice((0, 0, 500, 20_000)) if self.by_due else 0
            self.world.messages.append(
                self.fresh(DuePlace(due, len(self.feed.hashes)), self.chance.randint(0, self.keys))
            )
            self.feed.hashes.append(self.world.messages[-1].key)
            self.feed.due.append(due)

    def fresh(self, place: DuePlace, key: int) -> Message:
        """A message that the group has not heard of; it may have been sought past already."""
        return Message(place, key, "done" if place < self.world.floor else "new")

    def time_passes(self) -> None:
        """Leases end, delays are over."""
        self.desk.now_ms += self.chance.choice((1, 300, 1_000, 5_000, 11_000))

    def commit(self, index: int | None = None) -> None:
        """Some entries."""
        if self.desk.index == self.desk.committed:
            return
        if index is None:
            index = self.chance.randint(self.desk.committed + 1, self.desk.index)
        before = self.desk.committed
        self.desk.commit(index)
        for one in self.world.messages:
            if one.state == "held" and one.ends_ms == FOREVER and before < one.delivery // 8_192 <= index:
                one.ends_ms = self.now_ms + one.lease_ms
        for at in range(before, index):
            self.before.pop(at, None)

    def fail_over(self) -> None:
        """Another leader, without what is not committed; it looks at its spans slice by slice."""
        fresh = self.world.messages
        desk = self.desk
        desk.fold.undo_from(desk.committed + 1)  # type: ignore[arg-type]
        assert desk.fold.to_bytes() == desk.replica.to_bytes()
        desk.log = [entry for entry in desk.log if entry[0].index <= desk.committed]
        desk.index = desk.committed
        self.world = self.before[desk.index].copy()
        self.world.messages += [self.fresh(one.place, one.key) for one in fresh[len(self.world.messages) :]]
        self.before = {desk.index: self.world.copy()}
        if self.chance.random() < 0.5:
            data = desk.fold.to_bytes()
            desk.fold = type(desk.fold)(by_due=self.by_due)
            desk.fold.restore(data)
        self.promises.clear()
        self.lead_anew()

    def lead_anew(self) -> None:
        """A leader that knows nothing yet."""
        desk = self.desk
        desk.leader = GroupLeader(
            desk.group, desk.settings, desk.feed,
            partition=PARTITION, partitions=desk.partitions, fits=desk.fold.would_fit,
        )  # fmt: skip
        for one in self.world.messages:
            one.ends_ms = FOREVER if one.state == "held" else 0
        self.beginning = desk.leader.begin(self.now_ms)
        self.commit(desk.index)
        if self.chance.random() < 0.3:
            self.ready()

    def begin_on(self) -> None:
        """One slice."""
        if self.beginning is not None and next(self.beginning, 0) == 0:
            self.beginning = None
            # The slices began at different times: the model takes the latest.
            for one in self.world.messages:
                if one.state == "held" and one.ends_ms == FOREVER:
                    one.ends_ms = self.lease_of(one)

    def lease_of(self, one: Message) -> int:
        """As this leader has it."""
        lease = self.leader._leases._leases[one.delivery]
        return lease.until_ms(one.place)

    def ready(self) -> None:
        """All slices."""
        while self.beginning is not None:
            self.begin_on()

    def receive(self, consumer: str | None = None, limit: int | None = None) -> bool:
        """Somebody asks for messages; whether there were some."""
        if not self.leader.is_ready:
            return False
        consumer = consumer or self.chance.choice(CONSUMERS if self.chance.random() < 0.5 else "a")
        limit = limit or self.chance.choice((1, 2, 3, 10))
        self.requests += 1
        self.feed.chance = self.chance if self.slow and self.chance.random() < 0.5 else None
        promise = self.promises.pop() if self.promises and self.chance.random() < 0.5 else 0
        request = f"r{self.requests}" if self.chance.random() < 0.8 else ""
        wanted = Wanted(
            name(consumer), NOBODY, name(request), limit, self.chance.choice((150, 500, 2**20)),
            self.chance.choice((1_000, 8_000)), promise, consumer,
        )  # fmt: skip
        append_us = self.desk.append_us
        for _ in range(100):
            try:
                found = self.leader.receive(wanted, self.desk.index + 1, self.now_ms, append_us)
            except FeedNotReady:
                assert self.feed.chance is not None
                return False
            finally:
                was_slow, self.feed.chance = self.feed.chance is not None, None
            if isinstance(found, Refusal):
                self.check_refusal(found, append_us, was_slow)
                return False
            assert not found.repeated
            self.check_taken_back(found)
            self.fold(found.operations)
            if found.delivery:
                break
            self.feed.chance = None
        answer = [
            one for one in self.world.messages if one.state == "held" and one.delivery == found.delivery
        ]
        told = {
            at: attempt
            for piece, attempt in found.delivered
            for at in range(piece.first, piece.first + piece.count)
        }
        assert told == {one.place.offset: one.attempts for one in answer}
        assert 0 < len(told) <= limit
        self.check_order(answer, name(consumer))
        for at in (min(told), max(told), self.chance.choice(list(told))):
            self.given.append((name(consumer), found.delivery, at))
        return True

    def check_refusal(self, refusal: Refusal, append_us: int, was_slow: bool) -> None:
        """Empty is empty."""
        if refusal.reason not in ("empty", "blocked") or was_slow or self.leader._questions.reserved:
            return
        deadline_ms = self.leader.deadline_ms(self.now_ms, append_us)
        if deadline_ms is not None and deadline_ms <= self.now_ms:
            return  # it has not looked at everything yet, and goes on in the next turn
        missed = self.deliverable(append_us)
        if self.mode is GroupMode.KEY_ORDERED and (
            self.feed.hidden or len(self.ordered()) >= 3  # the window may be full
        ):
            missed = [one for one in missed if one.state != "new"]
            if self.feed.hidden:
                return
        assert not missed, f"{refusal}, though there are {missed}"

    def check_taken_back(self, found: Decision) -> None:
        """Only the owner's own come back, uncounted."""
        for operation in found.operations:
            if isinstance(operation, Release):
                assert operation.uncounted
                assert self.mode is GroupMode.EXCLUSIVE

    def repeat(self) -> None:
        """The same request again: what the answer still holds."""
        consumer = name(self.chance.choice(CONSUMERS))
        if consumer not in self.world.answers or not self.leader.is_ready:
            return
        request, delivery = self.world.answers[consumer]
        wanted = Wanted(consumer, NOBODY, name(request), 1, 2**20, 4_000, 0, "")
        found = self.leader.receive(wanted, self.desk.index + 1, self.now_ms, self.desk.append_us)
        assert isinstance(found, Decision)
        assert found.repeated == delivery
        held = [one for one in self.world.messages if one.state == "held" and one.delivery == delivery]
        told = [at for piece, _ in found.delivered for at in range(piece.first, piece.first + piece.count)]
        assert sorted(told) == [one.place.offset for one in held]
        for one in held:
            one.ends_ms = self.leader._leases._leases[delivery].until_ms(one.place)
            one.ends_ms = FOREVER if one.ends_ms >= 2**61 else one.ends_ms

    def act(self) -> None:
        """Some words about messages; the others are as they were, but for those behind them."""
        if not self.given:
            return
        kind = self.chance.choice(
            (ActKind.ACK, ActKind.ACK, ActKind.NACK, ActKind.RELEASE, ActKind.REJECT, ActKind.EXTEND)
        )
        acts: list[Act] = []
        for _ in range(self.chance.randint(1, 4)):
            _, delivery, at = self.chance.choice(
                self.given[-8:] if self.chance.random() < 0.9 else self.given
            )
            at_ = self.chance.choice((None, at, at, min(at + 1, len(self.world.messages) - 1)))
            due = self.world.messages[at_].place.due_us if at_ is not None else 0
            delay = self.chance.choice((None, 0, 1_000, 30_000)) if kind is ActKind.NACK else None
            acts.append(Act(kind, self.desk.receipt(delivery, at_, due), delay, "b\u00e9cause"))
        before = self.world.copy().messages
        acted = self.leader.act(acts, self.now_ms, self.desk.append_us)
        self.fold(acted.operations)
        named: set[int] = set()
        for act, outcome in zip(acts, acted.outcomes, strict=True):
            offset, delivery = act.receipt.offset, act.receipt.delivery
            places = [offset] if offset is not None else range(len(before))
            mine = [at for at in places if before[at].state == "held" and before[at].delivery == delivery]
            if outcome is None:
                assert set(mine) - named or kind is ActKind.EXTEND, (act, outcome)
                named |= set(mine)
            elif outcome in ("letters-full", "too-fragmented"):
                named |= set(mine)
            else:
                assert set(mine) <= named or (kind is ActKind.EXTEND), (act, outcome)
            if kind is ActKind.EXTEND and outcome is None:
                for at in mine:
                    self.world.messages[at].ends_ms = self.now_ms + self.desk.settings.visibility_ms
        self.check_acted(kind, before, named)

    def check_acted(self, kind: ActKind, before: Sequence[Message], named: set[int]) -> None:
        """What became of the messages."""
        changed = {at for at, one in enumerate(before) if one.state != self.world.messages[at].state}
        allowed = {
            ActKind.ACK: {"done"}, ActKind.NACK: {"waiting", "dying", "done", "stopped"},
            ActKind.RELEASE: {"waiting"}, ActKind.REJECT: {"dying", "done", "stopped", "held"},
            ActKind.EXTEND: {"held"},
        }[kind]  # fmt: skip
        for at in named:
            assert self.world.messages[at].state in allowed, (kind, self.world.messages[at])
        back = {before[at].place for at in named if self.world.messages[at].state in ("waiting", "stopped")}
        keys = {before[at].key for at in named}
        for at in changed - named:
            one = self.world.messages[at]
            assert (one.state, one.until_us) == ("waiting", 0), one
            assert one.attempts == before[at].attempts - 1
            assert back
            assert one.place > min(back), (one, back)
            assert self.mode is GroupMode.EXCLUSIVE or (
                self.mode is GroupMode.KEY_ORDERED and one.key in keys
            )

    def up_to(self) -> None:
        """An owner is done with all up to a place: with what it holds."""
        owner = self.leader.owner
        if owner is None or not self.world.messages:
            return
        at = self.chance.randrange(len(self.world.messages))
        before = self.world.copy().messages
        act = Act(ActKind.UP_TO, Receipt.up_to(KEY, PARTITION, at), consumer=owner)
        acted = self.leader.act([act], self.now_ms, self.desk.append_us)
        self.fold(acted.operations)
        for one, was in zip(self.world.messages, before, strict=True):
            if was.state == "held" and one.state == "done":
                assert one.place.offset <= at
                assert was.holder == owner, f"{was} was not {owner!r}'s"

    def look(self) -> None:
        """Done at every step."""

    def store_letters(self) -> None:
        """The dead-letter topic has some."""
        if self.desk.group.letters:
            letter: Letter = self.chance.choice(self.desk.group.letters)
            self.fold([Lettered(letter.ordinal)])
            if self.chance.random() < 0.5:
                self.leader.noted(self.now_ms)

    def operate(self) -> None:
        """A word of an operator, or of the shell."""
        group, count = self.desk.group, len(self.world.messages)
        if not count:
            return
        at = self.chance.randrange(count)
        one = self.world.messages[at]
        piece = Range(one.place.due_us, at, 1)
        doing = self.chance.choice(("seek", "skip", "free", "free", "decide", "decide", "lost"))
        operation: GroupOperation
        match doing:
            case "seek" if self.chance.random() < 0.2:
                operation = Seek(group.generation + 1, one.place)
            case "skip" if not self.by_due and self.chance.random() < 0.2 and at:
                operation = Skip(at, 1)
            case "free" if group.letters_given > group.redriven and one.state in ("done", "stopped"):
                if any(other.state == "new" and other.place < one.place for other in self.world.messages):
                    return  # it has no letter: it was never delivered
                operation = Free(group.letters_given, (piece,))
            case "decide":
                stopped = [other for other in self.world.messages if other.state == "stopped"]
                if not stopped:
                    return
                other = self.chance.choice(stopped)
                piece = Range(other.place.due_us, other.place.offset, 1)
                operation = Decide(self.chance.choice(list(StoppedAction)), (piece,))
            case "lost" if self.chance.random() < 0.2 and not self.by_due:
                operation = Lost((piece,))
            case _:
                return
        stamp = self.desk.stamp()
        if self.desk.fold.stage(KEY, [operation], stamp) == [True]:
            payload = self.desk.fold.staged_entry()
            self.desk.fold.fold(stamp, payload)  # type: ignore[arg-type]
            self.desk.index += 1
            self.desk.log.append((stamp, payload))
            self.follow_operator(operation)
            self.check_letters()
            self.before[self.desk.index] = self.world.copy()
        self.leader.noted(self.now_ms)

    def hide(self) -> None:
        """Damage, or its mending."""
        if self.feed.hidden:
            self.feed.hidden.clear()
        elif self.feed.hashes:
            self.feed.hidden.add(self.chance.randrange(len(self.feed.hashes)))

    def change(self) -> None:
        """Other settings."""
        self.desk.change(
            replace(
                self.desk.settings,
                max_attempts=self.chance.choice((None, 1, 2, 4)),
                dead=self.chance.choice(("letter", "drop", "stop")),
                paused=self.chance.random() < 0.2,
                session_ms=self.chance.choice((5_000, 60_000)),
            )
        )

    def ask(self) -> None:
        """Somebody waits for messages; some are promised them."""
        self.desk.wait(self.chance.choice(CONSUMERS), self.chance.choice((1, 5)))
        self.promises += [promise.number for promise in self.desk.promised()]

    def come_and_go(self) -> None:
        """Consumers tell that they are there, or that they go."""
        consumer = self.chance.choice(CONSUMERS)
        if self.chance.random() < 0.5:
            self.leader.present(name(consumer), NOBODY, self.now_ms)
            return
        owner = self.leader.owner
        self.leader.leave(name(consumer), NOBODY, self.now_ms)
        if owner is not None and self.leader.owner is None:
            self.end_leases()

    def drain(self) -> None:
        """Whatever happened, in the end every message is done with."""
        self.trail.append("drain")
        self.feed.hidden.clear()
        self.slow = False
        self.desk.change(replace(self.desk.settings, paused=False, session_ms=5_000))
        self.ready()
        for question in self.leader._questions:
            self.leader.withdraw(question.number)
        self.desk.now_ms += 61_000
        for _ in range(20 * len(self.world.messages) + 20):
            self.let_time_pass()
            while self.desk.group.letters:
                self.fold([Lettered(self.desk.group.letters[0].ordinal)])
            stopped = [one for one in self.world.messages if one.state == "stopped"]
            if stopped:
                one = stopped[0]
                operation = Decide(StoppedAction.DROP, (Range(one.place.due_us, one.place.offset, 1),))
                self.fold([operation])
                self.leader.noted(self.now_ms)
            if self.receive("a", 100):
                delivery = self.given[-1][1]
                acted = self.leader.act(
                    [Act(ActKind.ACK, self.desk.receipt(delivery))], self.now_ms, self.desk.append_us
                )
                self.fold(acted.operations)
                assert acted.outcomes == (None,)
            self.commit(self.desk.index)
            if not any(map(self.is_undone, self.world.messages)):
                break
            self.desk.now_ms += 3_000
        self.check()
        left = [one for one in self.world.messages if one.state != "done"]
        assert not left, f"never done: {left}"


def walk(seed: int, steps: int, mode: GroupMode, *, by_due: bool = False) -> None:
    """One walk, and its end."""
    with tiny_bounds(random.Random(seed)):
        walker = LeaderWalk(seed, mode, by_due=by_due)
        for _ in range(steps):
            walker.step()
        walker.drain()
