"""A leader against a model of lists: any receives, acts, times, commits and fail-overs, in all three modes.

The model has one value a message, and says exactly which messages an answer must hold.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shoal.agent.groups.entry import Lettered, Seek
from shoal.agent.groups.leader.group_leader import Decision
from shoal.agent.groups.place import SpanState
from shoal.agent.groups.settings import GroupSettings, retry_delay_ms
from shoal.agent.receive import Act, ActKind, DuePlace, GroupMode
from shoal.format.receipt import Receipt
from tests.agent.groups.group_desk import KEY, PARTITION, START_US, GroupDesk, MemoryFeed, attempts, name

FOREVER = 2**62
SELDOM = st.integers(0, 5)
SESSION_MS = 60_000
STATES = {
    "held": SpanState.IN_FLIGHT,
    "waiting": SpanState.WAITING,
    "done": SpanState.DONE,
    "dying": SpanState.DYING,
    "stopped": SpanState.STOPPED,
}


@dataclass
class Message:
    """One message. `lease_end`: in ms, FOREVER until its delivery is committed."""

    key: int
    state: str = "new"
    attempts: int = 0
    delivery: int = 0
    until_us: int = 0
    lease_ms: int = 0
    lease_end: int = 0


@dataclass
class Model:
    """What is replicated, with the leases beside it."""

    messages: list[Message] = field(default_factory=list)
    generation: int = 1
    answers: dict[str, tuple[str, int]] = field(default_factory=dict)  # of a consumer: request, delivery

    def copy(self) -> Model:
        """As it is now, whatever comes."""
        messages = [Message(**vars(message)) for message in self.messages]
        return replace(self, messages=messages, answers=dict(self.answers))


class LeaderMachine(RuleBasedStateMachine):
    """One partition, one group of any mode."""

    mode = GroupMode.SHARED

    @initialize(
        dead=st.sampled_from(["letter", "drop", "stop"]),
        most=st.sampled_from([None, 1, 3]),
        keys=st.lists(st.integers(0, 3), min_size=4, max_size=12),
    )
    def begin(self, dead: str, most: int | None, keys: list[int]) -> None:
        """A group at the start of a log."""
        self.settings = GroupSettings(self.mode, dead=dead, max_attempts=most, session_ms=SESSION_MS)
        self.desk = GroupDesk(self.settings, MemoryFeed())

        self.model = Model()
        self.snapshots: dict[int, Model] = {self.desk.index: self.model.copy()}
        self.given: list[tuple[int, int, int]] = []  # generation, delivery, an offset
        self.requests = 0
        self.seen_ms: int | None = None
        self.produce(keys)

    def produce(self, keys: list[int]) -> None:
        """Messages come to the log."""
        self.desk.feed.hashes += keys
        self.model.messages += [Message(key) for key in keys]

    @rule(keys=st.lists(st.integers(0, 3), min_size=1, max_size=6))
    def more_messages(self, keys: list[int]) -> None:
        """Keys 0 are null."""
        self.produce(keys)

    # -- time, commits, fail-over

    @rule(ms=st.sampled_from([1, 500, 1_000, 5_000, 30_000, 61_000]))
    def time_passes(self, ms: int) -> None:
        """Leases end, delays are over."""
        self.desk.now_ms += ms

    @rule()
    def everything_is_committed(self) -> None:
        """All entries."""
        self.commit()

    def commit(self) -> None:
        """All entries."""
        self.desk.commit()
        for message in self.model.messages:
            if message.state == "held" and message.lease_end == FOREVER:
                message.lease_end = self.desk.now_ms + message.lease_ms

    @rule(really=SELDOM)
    def fail_over(self, really: int) -> None:
        """What is not committed is gone; all leases begin anew."""
        if really < 2:
            return
        self.desk.fail_over()
        fresh = self.model.messages[len(self.snapshots[self.desk.index].messages) :]
        self.model = self.snapshots[self.desk.index].copy()
        self.model.messages += [Message(message.key) for message in fresh]
        self.snapshots = {self.desk.index: self.model.copy()}
        held = {message.delivery for message in self.model.messages if message.state == "held"}
        last = 0
        for message in self.model.messages:
            # One before it was given again: it was in nobody's hands any more, where order is strict.
            ended = self.mode is GroupMode.EXCLUSIVE and message.delivery < last
            message.lease_end = self.desk.now_ms + (0 if ended else message.lease_ms)
            last = max(last, message.delivery) if message.state == "held" else last
        owner = held and "a" in self.model.answers
        self.seen_ms = self.desk.now_ms if self.mode is GroupMode.EXCLUSIVE and owner else None

    def snapshot(self) -> None:
        """After an entry."""
        self.snapshots[self.desk.index] = self.model.copy()

    def let_time_pass(self) -> None:
        """The session of an owner that was silent is over: its leases end."""
        now_ms = self.desk.now_ms
        if self.seen_ms is None or now_ms - self.seen_ms < SESSION_MS:
            return
        self.seen_ms = None
        if self.mode is GroupMode.EXCLUSIVE:
            for message in self.model.messages:
                message.lease_end = min(message.lease_end, now_ms)

    # -- receives

    @rule(
        consumer=st.sampled_from("ab"),
        limit=st.integers(1, 5),
        lease_ms=st.sampled_from([1_000, 30_000]),
        at_once=st.booleans(),
    )
    def receive(self, consumer: str, limit: int, lease_ms: int, at_once: bool) -> None:
        """Exactly the messages that the model says, and one attempt more of each."""
        consumer = "a" if self.mode is GroupMode.EXCLUSIVE else consumer
        self.let_time_pass()
        self.seen_ms = self.desk.now_ms
        self.requests += 1
        expected = self.expected(limit)
        delivery = self.desk.group.next_delivery(self.desk.index + 1)
        answer = self.desk.ask(consumer, limit, request=f"r{self.requests}", lease_ms=lease_ms)
        told = attempts(answer) if isinstance(answer, Decision) else {}
        assert told == {at: self.model.messages[at].attempts + 1 for at in expected}, answer
        for at in expected:
            message = self.model.messages[at]
            message.state, message.delivery, message.until_us = "held", delivery, 0
            message.attempts += 1
            message.lease_ms, message.lease_end = lease_ms, FOREVER
        if expected:
            self.model.answers[consumer] = (f"r{self.requests}", delivery)
            self.given.append((self.model.generation, delivery, expected[0]))
            self.given.append((self.model.generation, delivery, expected[-1]))
        self.snapshot()
        if at_once:
            self.commit()

    @rule(consumer=st.sampled_from("ab"))
    def repeat(self, consumer: str) -> None:
        """The same request gives the messages that its answer still holds."""
        if consumer not in self.model.answers:
            return
        self.let_time_pass()
        self.seen_ms = self.desk.now_ms
        request, delivery = self.model.answers[consumer]
        held = [at for at, one in enumerate(self.model.messages) if self.is_held(one, delivery)]
        before = self.desk.index
        answer = self.desk.ask(consumer, 1, request=request, lease_ms=5_000)
        assert isinstance(answer, Decision)
        assert answer.repeated == answer.delivery == delivery
        assert attempts(answer) == {at: self.model.messages[at].attempts for at in held}
        assert self.desk.index == before
        lease_ends = [self.model.messages[at].lease_end for at in held]
        for at in held if FOREVER not in lease_ends else ():
            self.model.messages[at].lease_end = self.desk.now_ms + 5_000

    @staticmethod
    def is_held(message: Message, delivery: int) -> bool:
        """Whether it is in flight by that delivery."""
        return message.state == "held" and message.delivery == delivery

    def is_loose(self, message: Message) -> bool:
        """Whether it was given before and may come again."""
        if message.state == "waiting":
            return message.until_us <= self.desk.append_us
        return message.state == "held" and message.lease_end <= self.desk.now_ms

    def is_spent(self, message: Message) -> bool:
        """Whether it has had all attempts."""
        return self.settings.max_attempts is not None and message.attempts >= self.settings.max_attempts

    def expected(self, limit: int) -> list[int]:
        """The messages of the next answer, ascending."""
        match self.mode:
            case GroupMode.SHARED:
                return self.expected_shared(limit)
            case GroupMode.EXCLUSIVE:
                return self.expected_strict(limit)
        return self.expected_by_key(limit)

    def expected_shared(self, limit: int) -> list[int]:
        """Waiting ones, ended ones, new ones; each by place."""
        places = list(enumerate(self.model.messages))
        loose = [(at, one) for at, one in places if self.is_loose(one) and not self.is_spent(one)]
        order = [at for at, one in loose if one.state == "waiting"]
        order += [at for at, one in loose if one.state == "held"]
        order += [at for at, one in places if one.state == "new"]
        return sorted(order[:limit])

    def expected_strict(self, limit: int) -> list[int]:
        """By place, up to what holds all others up; what is in hand behind one that comes again comes again
        too, and that attempt is not counted."""
        order: list[int] = []
        blocked = False
        for at, message in enumerate(self.model.messages):
            if message.state in ("waiting", "held") and self.is_loose(message):
                blocked |= self.is_spent(message)
            elif message.state in ("waiting", "stopped"):
                blocked = True
            elif message.state == "held":
                if order:
                    self.give_back(message, 0, counted=False)
                    if not blocked:
                        order.append(at)
                continue
            if message.state in ("done", "dying"):
                continue
            if blocked and not order:
                break
            if not blocked and (message.state != "new" or len(order) < limit):
                order.append(at)
        return order[:limit]

    def expected_by_key(self, limit: int) -> list[int]:
        """By place, without messages whose key waits for another."""
        locked = {one.key for one in self.model.messages if one.state == "held" and not self.is_loose(one)}
        order: list[int] = []
        for at, message in enumerate(self.model.messages):
            if message.state in ("done", "dying"):
                continue
            is_free = message.state == "new" or (self.is_loose(message) and not self.is_spent(message))
            if len(order) < limit and is_free and (not message.key or message.key not in locked):
                order.append(at)
            elif message.key:
                locked.add(message.key)
        return order

    # -- acts

    @precondition(lambda self: self.given)
    @rule(
        data=st.data(),
        kind=st.sampled_from([ActKind.ACK, ActKind.NACK, ActKind.RELEASE, ActKind.REJECT, ActKind.EXTEND]),
        count=st.integers(1, 3),
        delay_ms=st.sampled_from([None, 1_000, 40_000]),
    )
    def act(self, data: st.DataObject, kind: ActKind, count: int, delay_ms: int | None) -> None:
        """Of messages or of whole answers, any that was ever given; several in one request."""
        self.let_time_pass()
        acts: list[Act] = []
        outcomes: list[str | None] = []
        taken: set[int] = set()
        back: set[int] = set()
        for _ in range(count):
            recent = st.sampled_from(self.given[-4:])
            generation, delivery, offset = data.draw(recent | recent | st.sampled_from(self.given))
            at = data.draw(st.sampled_from([None, offset, offset + 1]))
            receipt = Receipt(KEY, PARTITION, generation, delivery, at)
            acts.append(Act(kind, receipt, delay_ms, "because"))
            outcomes.append(self.outcome(acts[-1], taken, back))
        self.take_back(back, taken)
        assert list(self.desk.acts(acts).outcomes) == outcomes
        self.snapshot()

    def outcome(self, act: Act, taken: set[int], back: set[int]) -> str | None:
        """What comes of an act; `taken` by the request so far, `back` of these will come again."""
        receipt, extends = act.receipt, act.kind is ActKind.EXTEND
        used = "not-held" if extends else "receipt-used"
        if receipt.generation < self.model.generation:
            return "receipt-before-seek"
        places = [at for at, one in enumerate(self.model.messages) if self.is_held(one, receipt.delivery)]
        if receipt.offset is not None:
            beyond = receipt.offset >= len(self.model.messages)
            message = Message(0) if beyond else self.model.messages[receipt.offset]
            if message.state in ("new", "done", "dying") or receipt.offset in taken:
                return used
            if message.delivery != receipt.delivery:
                return "receipt-expired"
            places = [at for at in places if at == receipt.offset]
        if not (places := [at for at in places if at not in taken]):
            return used
        if extends and self.mode is GroupMode.EXCLUSIVE and self.seen_ms is None:
            return used  # the owner is gone
        for at in places:
            message = self.model.messages[at]
            match act.kind:
                case ActKind.ACK:
                    message.state = "done"
                case ActKind.NACK if not self.is_spent(message):
                    delay_ms = act.delay_ms
                    if delay_ms is None:
                        delay_ms = retry_delay_ms(self.settings, message.attempts)
                    self.give_back(message, self.desk.append_us + 1_000 * delay_ms, counted=True)
                case ActKind.RELEASE:
                    self.give_back(message, 0, counted=False)
                case ActKind.EXTEND:
                    delay_ms = self.settings.visibility_ms if act.delay_ms is None else act.delay_ms
                    message.lease_end = self.desk.now_ms + delay_ms
                case _:
                    self.die(message)
            if not extends:
                taken.add(at)
            if message.state in ("waiting", "stopped"):
                back.add(at)
        return None

    @staticmethod
    def give_back(message: Message, until_us: int, *, counted: bool) -> None:
        """It comes again."""
        message.state, message.until_us = "waiting", until_us
        message.attempts -= 0 if counted else 1

    def die(self, message: Message) -> None:
        """As the setting says."""
        message.state = {"letter": "dying", "drop": "done", "stop": "stopped"}[self.settings.dead]

    def take_back(self, back: set[int], taken: Iterable[int]) -> None:
        """What must follow messages that come again comes again, too."""
        for at, message in enumerate(self.model.messages):
            if message.state != "held" or at in taken:
                continue
            live = message.lease_end > self.desk.now_ms
            before = [one for one in back if one < at]
            alike = [one for one in before if message.key and self.model.messages[one].key == message.key]
            if (self.mode is GroupMode.EXCLUSIVE and before) or (
                self.mode is GroupMode.KEY_ORDERED and live and alike
            ):
                self.give_back(message, 0, counted=False)

    @rule()
    def look(self) -> None:
        """Messages with all attempts behind them are given up."""
        self.let_time_pass()
        dead = [
            at
            for at, one in enumerate(self.model.messages)
            if one.state in ("held", "waiting") and self.is_loose(one) and self.is_spent(one)
        ]
        for at in dead:
            self.die(self.model.messages[at])
        if self.settings.dead == "stop" and dead:
            self.take_back(set(dead), dead)
        self.desk.look()
        self.snapshot()

    @precondition(lambda self: self.desk.group.letters)
    @rule()
    def store_a_letter(self) -> None:
        """The dead-letter topic has the oldest."""
        letter = self.desk.group.letters[0]
        self.desk.fold_operations([Lettered(letter.ordinal)])
        again = [one for one in self.desk.group.letters if one.offset == letter.offset]
        if self.model.messages[letter.offset].state == "dying" and not again:
            self.model.messages[letter.offset].state = "done"
        self.snapshot()

    @rule(really=SELDOM, part=st.floats(0, 1))
    def seek(self, really: int, part: float) -> None:
        """Everything begins anew from there."""
        if really < 5:
            return
        place = int(part * len(self.model.messages))
        self.model.generation += 1
        self.desk.fold_others(Seek(self.model.generation, DuePlace(0, place)))
        self.model.messages = [
            Message(one.key, "new" if at >= place else "done") for at, one in enumerate(self.model.messages)
        ]
        self.model.answers.clear()
        self.snapshot()

    @rule(really=SELDOM, most=st.sampled_from([None, 1, 2, 5]))
    def change_the_attempts(self, really: int, most: int | None) -> None:
        """Another limit counts from now on."""
        if really < 4:
            return
        self.settings = replace(self.settings, max_attempts=most)
        self.desk.change(self.settings)

    @invariant()
    def table_is_as_the_model_says(self) -> None:
        """State, attempts and delivery of every message."""
        if not hasattr(self, "desk"):
            return
        self.desk.check()
        group = self.desk.group
        for at, message in enumerate(self.model.messages):
            span = group.spans.at(DuePlace(0, at))
            if span is None:
                before = at < group.floor.offset
                assert message.state == ("done" if before else "new"), (at, message, group)
                continue
            assert span.state is STATES[message.state], (at, message, span)
            if message.state in ("held", "waiting", "stopped"):
                assert span.attempts == message.attempts, (at, message, span)
            if message.state == "held":
                assert span.delivery == message.delivery, (at, message, span)
            if message.state == "waiting":
                assert span.until_us == message.until_us, (at, message, span)


class StrictMachine(LeaderMachine):
    """An exclusive group with one consumer."""

    mode = GroupMode.EXCLUSIVE


class KeyMachine(LeaderMachine):
    """A key-ordered group."""

    mode = GroupMode.KEY_ORDERED


EXAMPLES = hypothesis_settings(max_examples=200, stateful_step_count=50, deadline=None)
TestShared = LeaderMachine.TestCase
TestShared.settings = EXAMPLES
TestStrict = StrictMachine.TestCase
TestStrict.settings = EXAMPLES
TestKeyOrdered = KeyMachine.TestCase
TestKeyOrdered.settings = EXAMPLES


def test_names_and_times_of_the_desk() -> None:
    """The machine stands on them."""
    assert len(name("consumer")) == 16
    assert GroupDesk().append_us == START_US + 1_000_000
