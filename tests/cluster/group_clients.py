"""Consumers of groups that write down what they did; they die in mid-work, come late, ask twice and go away.

Law of this file: what a consumer does, and what it writes down. How a request reaches an agent is a Gate's
business. What an answer means is decided by `definite` in it, never by guessing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast
from zlib import crc32

from group_history import Act, Given, GroupHistory, Leave, Mode, Presence, Receive, Verb
from log_clients import PAUSE_S, Producer, Steady, Workload, now_s
from log_history import Outcome

KEYS = 5
TRIES_MAX = 4
LIMIT_MAX = 6
LATE_MAX = 20
UNKNOWN = "?"
ANYWHERE = 0.3
"""The share of requests that name no partition."""
FEW_S = (0.002, 0.05)
"""So soon a client goes away after its request was sent."""
GONE, AGAIN, DIES = 0.05, 0.1, 0.03
"""The shares of receives after which a client goes away, asks the same again, or dies."""
SLOW: dict[Mode, float] = {"shared": 0.2, "exclusive": 0.4, "key-ordered": 0.2}
"""The share of answers that take a consumer longer than some leases, and sessions."""
TELLS = 0.8
TELL_EVERY_S = 0.4
"""A third of the shortest session that these clients have, or less."""
SHARES: tuple[tuple[Verb | None, float], ...] = (
    ("ack", 0.72),
    ("nack", 0.1),
    ("release", 0.05),
    ("reject", 0.03),
    (None, 0.1),
)
"""Of the messages, what becomes of them; None: kept, and spoken of late, if at all."""
FAILING: tuple[tuple[Verb | None, float], ...] = (
    ("ack", 0.5),
    ("nack", 0.2),
    ("release", 0.05),
    ("reject", 0.15),
    (None, 0.1),
)
"""The same where many messages are to die."""


class Refused(Exception):
    """A request had no answer, or a refusal. `definite`: nothing happened."""

    def __init__(self, text: str, *, definite: bool) -> None:
        super().__init__(text)
        self.definite = definite

    @property
    def outcome(self) -> Outcome:
        return "fail" if self.definite else "info"


@dataclass(frozen=True, slots=True)
class Word:
    """An act that is to be sent. `receipt`: as the agent gave it."""

    verb: Verb
    receipt: str
    partition: int
    delivery: int
    generation: int
    offsets: tuple[int, ...]
    is_whole: bool = False
    delay_ms: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Ask:
    """A receive that is to be sent. `partition` None: of any. `words`: acks that it brings along."""

    group: str
    partition: int | None
    consumer: str
    instance: str
    request: str
    limit: int
    lease_ms: int
    wait_ms: int
    words: tuple[Word, ...] = ()
    retry: bool = False


@dataclass(frozen=True, slots=True)
class Brought:
    """The answer. `codes`: of the words, of those of which nobody knows UNKNOWN. `receipt`: of the whole
    answer. `partition` None: without messages."""

    partition: int | None
    delivery: int
    generation: int
    delivered_at_us: int
    messages: tuple[Given, ...]
    receipt: str
    codes: tuple[str | None, ...]
    reason: str = ""


class Gate(Protocol):
    """The way to some agent. All raise Refused. `partition` None: of any."""

    async def receive(self, ask: Ask) -> Brought: ...

    async def act(
        self, group: str, partition: int | None, consumer: str, words: Sequence[Word]
    ) -> list[str | None]: ...

    async def present(self, group: str, consumer: str, instance: str) -> list[int]:
        """The partitions whose leaders heard it."""
        ...

    async def leave(self, group: str, consumer: str, instance: str) -> list[int]:
        """The same."""
        ...

    def close(self) -> None: ...


def key_of(value: str) -> str | None:
    """The key with which a value is written; one in so many has none."""
    number = crc32(value.encode()) % (KEYS + 1)
    return f"k{number}" if number else None


class KeyProducer(Producer):
    """Its records have keys."""

    def _body(self, values: tuple[str, ...]) -> Any:
        records = [{"value": value, "key": key_of(value)} for value in values]
        return {"records": [{k: v for k, v in record.items() if v is not None} for record in records]}


class Recorder:
    """Sends requests through a gate, and writes each sending down."""

    def __init__(self, history: GroupHistory, gate: Gate, topic: str) -> None:
        self._history = history
        self._gate = gate
        self._topic = topic

    async def receive(self, ask: Ask, *, patience_s: float | None = None) -> Brought:
        """Raises Refused. `patience_s`: the client goes away so long after it was sent."""
        invoked_at = now_s()
        try:
            async with asyncio.timeout(patience_s):
                brought = await self._gate.receive(ask)
        except TimeoutError:
            self._write(ask, invoked_at, "info", None)
            raise Refused("the client went away", definite=False) from None
        except Refused as error:
            self._write(ask, invoked_at, error.outcome, None)
            raise
        self._write(ask, invoked_at, "ok", brought)
        return brought

    def _write(self, ask: Ask, invoked_at: float, outcome: Outcome, brought: Brought | None) -> None:
        at = ask.partition if brought is None or brought.partition is None else brought.partition
        partition = None if at is None else (self._topic, at)
        made = Receive(
            ask.group,
            ask.consumer,
            ask.request,
            ask.limit,
            ask.lease_ms / 1_000,
            invoked_at,
            now_s(),
            outcome,
            partition,
        )
        if brought is not None:
            made = replace(
                made,
                delivery=brought.delivery,
                generation=brought.generation,
                messages=brought.messages,
                delivered_at_us=brought.delivered_at_us,
                reason=brought.reason,
            )
        self._history.receives.append(made)
        codes = brought.codes if brought is not None else ()
        self._write_words(ask.group, ask.consumer, ask.words, invoked_at, outcome, codes)

    async def act(self, group: str, partition: int | None, consumer: str, words: Sequence[Word]) -> bool:
        """Whether it was answered."""
        invoked_at = now_s()
        try:
            codes = await self._gate.act(group, partition, consumer, words)
        except Refused as error:
            self._write_words(group, consumer, words, invoked_at, error.outcome, ())
            return False
        self._write_words(group, consumer, words, invoked_at, "ok", codes)
        return True

    def _write_words(
        self,
        group: str,
        consumer: str,
        words: Sequence[Word],
        invoked_at: float,
        outcome: Outcome,
        codes: Sequence[str | None],
    ) -> None:
        assert outcome != "ok" or len(codes) == len(words), f"{len(codes)} outcomes of {len(words)} acts"
        completed_at = now_s()
        for number, word in enumerate(words):
            code = codes[number] if outcome == "ok" else None
            known: Outcome = "info" if code == UNKNOWN else outcome
            lease_s = float("inf") if word.delay_ms is None else word.delay_ms / 1_000
            self._history.acts.append(
                Act(
                    group,
                    consumer,
                    word.verb,
                    (self._topic, word.partition),
                    word.delivery,
                    word.offsets,
                    invoked_at,
                    completed_at,
                    known,
                    None if code == UNKNOWN else code,
                    word.is_whole,
                    word.generation,
                    lease_s,
                )
            )

    async def present(self, group: str, consumer: str, instance: str) -> None:
        """Whether anybody hears it or not."""
        invoked_at, heard, outcome = now_s(), list[int](), cast("Outcome", "ok")
        try:
            heard = await self._gate.present(group, consumer, instance)
        except Refused as error:
            outcome = error.outcome
        places = tuple((self._topic, partition) for partition in heard)
        said = Presence(group, consumer, invoked_at, now_s(), outcome, places)
        self._history.presences.append(said)

    async def leave(self, group: str, consumer: str, instance: str) -> None:
        """The same."""
        invoked_at, heard = now_s(), list[int]()
        with contextlib.suppress(Refused):
            heard = await self._gate.leave(group, consumer, instance)
        places = tuple((self._topic, partition) for partition in heard)
        self._history.leaves.append(Leave(group, consumer, invoked_at, now_s(), places))

    def close(self) -> None:
        """No more requests."""
        self._gate.close()


class GroupConsumer(Steady):
    """One of a group's, in any mode. `lease_ms`: what it asks for, at most."""

    def __init__(
        self,
        work: Workload,
        recorder: Recorder,
        group: str,
        name: str,
        partitions: int,
        *,
        mode: Mode,
        lease_ms: tuple[int, int],
        pause_s: float,
        shares: tuple[tuple[Verb | None, float], ...] = SHARES,
    ) -> None:
        super().__init__(work, pause_s)
        self._recorder = recorder
        self._shares = shares
        self._group = group
        self._name = name
        self._partitions = partitions
        self._mode = mode
        self._lease_ms = lease_ms
        self._life = self._requests = 0
        self._late: list[Word] = []
        """Messages that it has not spoken of; it forgets some of them when it dies."""
        self._pending: list[Word] = []
        """Acks for the next receive."""

    async def run(self) -> None:
        """See Steady."""
        try:
            await super().run()
        finally:
            self._recorder.close()

    @property
    def consumer(self) -> str:
        """Its name: one that died comes back under another, where a name stands for an owner."""
        return self._name if self._mode == "shared" else f"{self._name}.{self._life}"

    @property
    def _instance(self) -> str:
        return f"{self._name}.{self._life}"

    async def _act(self) -> None:
        rng = self._work.rng
        if self._late and rng.random() < 0.15:
            await self._speak([self._late.pop(rng.randrange(len(self._late)))])
            return
        partition = None if rng.random() < ANYWHERE else rng.randrange(self._partitions)
        self._requests += 1
        words = tuple(word for word in self._pending if partition in {None, word.partition})
        self._pending = [word for word in self._pending if word not in words]
        ask = Ask(
            self._group,
            partition,
            self.consumer,
            self._instance,
            f"{self._name}.{self._life}.{self._requests}",
            rng.randint(1, LIMIT_MAX),
            rng.randint(*self._lease_ms),
            rng.choice((0, 0, 200)),
            words,
        )
        brought = await self._until_known(ask)
        if brought is not None and brought.messages:
            if rng.random() < AGAIN:
                again = await self._until_known(replace(ask, words=(), retry=True))
                brought = again if again is not None and again.messages else brought
            if rng.random() < DIES:
                await self._die()
            else:
                await self._work_on(brought)

    async def _until_known(self, ask: Ask) -> Brought | None:
        """The same request until it is answered, a few times, at whichever agents."""
        rng = self._work.rng
        for _ in range(TRIES_MAX):
            try:
                patience_s = rng.uniform(*FEW_S) if rng.random() < GONE else None
                return await self._recorder.receive(ask, patience_s=patience_s)
            except Refused:
                ask = replace(ask, retry=True)
                await asyncio.sleep(PAUSE_S * rng.uniform(0.5, 2))
        return None

    async def _die(self) -> None:
        """What it held is forgotten; some receipts are found in its pockets. Some say that they go."""
        if self._mode == "exclusive" and self._work.rng.random() < 0.5:
            await self._recorder.leave(self._group, self.consumer, self._instance)
        self._life += 1
        self._pending = []
        self._late = [item for item in self._late if self._work.rng.random() < 0.5]

    async def _work_on(self, brought: Brought) -> None:
        rng, words = self._work.rng, []
        assert brought.partition is not None
        held = Word("ack", "", brought.partition, brought.delivery, brought.generation, ())
        is_slow = rng.random() >= 1 - SLOW[self._mode]
        await self._be_busy(rng.uniform(0, 2.5) if is_slow else rng.uniform(0, 0.2))
        if rng.random() < 0.25:
            offsets = tuple(given.offset for given in brought.messages)
            whole = replace(held, receipt=brought.receipt, offsets=offsets, is_whole=True)
            if rng.random() < 0.3:
                await self._speak([replace(whole, verb="extend", delay_ms=self._lease_ms[1])])
            await self._speak([whole])
            return
        for given in brought.messages:
            word = replace(held, receipt=given.receipt, offsets=(given.offset,))
            verb = self._verb()
            if verb is None:
                self._late = [*self._late, word][-LATE_MAX:]
            elif verb == "ack" and rng.random() < 0.3:
                self._pending.append(word)
            else:
                delay_ms = rng.choice((None, 0, 300)) if verb == "nack" else None
                words.append(replace(word, verb=verb, delay_ms=delay_ms, reason="no luck"))
        for said in {(word.verb, word.delay_ms): None for word in words}:
            await self._speak([word for word in words if (word.verb, word.delay_ms) == said])

    async def _be_busy(self, seconds: float) -> None:
        """Who may own partitions tells meanwhile that it is there; now and then it forgets to."""
        is_told = self._mode == "exclusive" and self._work.rng.random() < TELLS
        end_s = now_s() + seconds
        while is_told and end_s - now_s() > TELL_EVERY_S:
            await asyncio.sleep(TELL_EVERY_S)
            await self._recorder.present(self._group, self.consumer, self._instance)
        await asyncio.sleep(max(end_s - now_s(), 0))

    def _verb(self) -> Verb | None:
        at = self._work.rng.random()
        for verb, share in self._shares:
            at -= share
            if at < 0:
                return verb
        return None

    async def _speak(self, words: Sequence[Word]) -> None:
        """Until it is answered, a few times."""
        partition = None if self._work.rng.random() < ANYWHERE else words[0].partition
        for _ in range(TRIES_MAX):
            if await self._recorder.act(self._group, partition, self.consumer, words):
                return
            await asyncio.sleep(PAUSE_S * self._work.rng.uniform(0.5, 2))
