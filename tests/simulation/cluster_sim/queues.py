"""Consumer groups beside the other clients: a topic that groups work on, and what must be true of them.

Law of this file: it starts, drains and judges. What consumers do is group_clients.py's, what must hold of
what they saw group_checker.py's, and of every replica group_invariants.py's.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from group_checker import GroupChecker
from group_clients import (
    FAILING,
    SHARES,
    Ask,
    Brought,
    GroupConsumer,
    KeyProducer,
    Recorder,
    Refused,
    Word,
    key_of,
)
from group_gate import HttpGate
from group_history import Drained, GroupHistory, GroupTerms, Letter, Logged
from group_operator import Deed, GroupOperator, read_letters
from log_clients import NoAnswer
from log_history import FinalLog

from cluster_sim.invariants import InvariantViolation

if TYPE_CHECKING:
    from cluster_sim.simulation import ClusterSimulation

TOPIC = "queue"
PARTITIONS = 2
CONSUMERS = 3
LEASE_MS = (1_000, 3_000)
DRAIN_LIMIT_S = 60.0
DRAIN_LEASE_MS = 10_000
RETRY_S = 0.1
SESSION_S = 1.5
SETTLES_S = 1.0
"""After clients have ended and all agents work: what was asked before is over then. A request of theirs waits
for 200 ms at most, and a way across the cluster takes 20."""
LETTERS: dict[str, Any] = {"dead": "letter", "max_attempts": 2}
"""Instead, where what dies leaves a letter: it dies sooner."""
OPERATOR_PAUSE_S = 0.7
_QUICK: dict[str, Any] = {
    "retry": {"first": "100ms", "most": "1s"},
    "session": "1500ms",
    "dead": "drop",
    "max_attempts": 4,
}
SETTINGS = {
    "shared": _QUICK | {"mode": "shared"},
    "exclusive": _QUICK | {"mode": "exclusive"},
    "key-ordered": _QUICK | {"mode": "key-ordered", "max_attempts": None},
}
"""Of the groups, which are called as their modes."""


class Queues:
    """See the head of this file. Nothing happens in a simulation without groups."""

    topic = TOPIC
    noun = "messages"
    by_due = False
    first_producer = 200
    """Of its producers' numbers."""

    def __init__(self, simulation: ClusterSimulation) -> None:
        self._simulation = simulation
        self.history = GroupHistory()
        self._settings = {name: SETTINGS[name] | self._other() for name in self._modes()}
        self._gate = HttpGate(simulation.work, self.topic)

    def _modes(self) -> tuple[str, ...]:
        return self._simulation.knobs.groups

    def _other(self) -> dict[str, Any]:
        """Settings beside those of the modes."""
        return LETTERS if self._simulation.knobs.letters else {}

    def _deeds(self) -> tuple[Deed, ...]:
        """What an operator does."""
        return self._simulation.knobs.operates

    @property
    def is_on(self) -> bool:
        """Groups need a level that an upgrade, or a disaster, holds back."""
        simulation = self._simulation
        return bool(self._modes()) and not simulation.knobs.upgrades and not simulation.holds_level

    def places(self) -> list[tuple[str, int]]:
        """The topic's partitions."""
        return [(self.topic, number) for number in range(PARTITIONS)]

    def summary(self) -> str:
        """A part of a line; empty without groups."""
        history = self.history
        delivered = sum(len(receive.messages) for receive in history.answered())
        done = history.acknowledged_messages
        if not self.is_on:
            return ""
        said = f"{delivered} {self.noun} received, {done} done with, "
        if self.history.letters or self.history.changes:
            said += f"{len(self.history.letters)} letters, {len(self.history.changes)} seeks and redrives, "
        return said

    async def start(self) -> None:
        """The topic and its groups, as a client."""
        simulation, loop = self._simulation, self._simulation.loop
        await simulation.topics.create(self.topic, self.topic_body())
        end_s = loop.time() + DRAIN_LIMIT_S
        for name, settings in self._settings.items():
            self.history.terms[name] = GroupTerms(
                settings["mode"], settings["max_attempts"], settings["dead"], SESSION_S
            )
            while not await self._is_made(name, settings):
                if loop.time() > end_s:
                    raise InvariantViolation("Liveness", f"group {name} cannot be made")
                await asyncio.sleep(RETRY_S)

    def topic_body(self) -> dict[str, Any]:
        """What the topic is made with."""
        return self._simulation.topic_body(PARTITIONS)

    async def _is_made(self, name: str, settings: dict[str, Any]) -> bool:
        try:
            await self._gate.create(name, settings)
        except Refused:
            return False
        return True

    def clients(self) -> list[KeyProducer | GroupConsumer | GroupOperator]:
        """Producers and consumers of the topic, and an operator."""
        simulation = self._simulation
        found: list[KeyProducer | GroupConsumer | GroupOperator] = [
            self.producer(place) for place in self.places()
        ]
        if self._deeds():
            found.append(
                GroupOperator(
                    simulation.work,
                    self.history,
                    self.topic,
                    list(self._settings),
                    PARTITIONS,
                    deeds=self._deeds(),
                    pause_s=OPERATOR_PAUSE_S,
                )
            )
        for name, settings in self._settings.items():
            found += [
                GroupConsumer(
                    simulation.work,
                    self._recorder(),
                    name,
                    f"{name}{number}",
                    PARTITIONS,
                    mode=settings["mode"],
                    lease_ms=LEASE_MS,
                    pause_s=simulation.knobs.producer_pause_ms / 1_000,
                    shares=FAILING if simulation.knobs.letters else SHARES,
                )
                for number in range(CONSUMERS)
            ]
        return found

    def producer(self, place: tuple[str, int]) -> KeyProducer:
        """Of one partition."""
        knobs = self._simulation.knobs
        return KeyProducer(
            self._simulation.work,
            f"{self.topic[0]}{place[1]}",
            place,
            producer_id=f"{self.first_producer + place[1]:032x}",
            batch_max=knobs.batch_max,
            pause_s=2 * knobs.producer_pause_ms / 1_000,
            padding=knobs.padding,
        )

    def _recorder(self) -> Recorder:
        return Recorder(self.history, HttpGate(self._simulation.work, self.topic), self.topic)

    # ---- the end ---------------------------------------------------------------------------------

    async def drain(self) -> None:
        """One fresh consumer a group and partition takes what is left. Raises InvariantViolation."""
        self.history.settled_at = self._simulation.loop.time() + SETTLES_S
        places = [(name, number) for name in self._settings for number in range(PARTITIONS)]
        await asyncio.gather(*(self._drain(*place) for place in places))

    async def _drain(self, group: str, partition: int) -> None:
        gate, loop = HttpGate(self._simulation.work, self.topic), self._simulation.loop
        recorder = Recorder(self.history, gate, self.topic)
        end_s, number, said = loop.time() + DRAIN_LIMIT_S, 0, ""
        consumer = f"drain.{group}.{partition}"
        while loop.time() < end_s:
            number += 1
            ask = Ask(group, partition, consumer, consumer, f"{consumer}.{number}", 100, DRAIN_LEASE_MS, 0)
            until_us = self.append_time_us(partition)
            try:
                brought = await recorder.receive(ask)
                await self._done(recorder, ask, brought)
                standing = await gate.standing(group, partition)
            except Refused as error:
                said = str(error)
                await asyncio.sleep(RETRY_S)
                continue
            said = f"{brought.reason} {standing}"
            if not standing.lag and not brought.messages and not standing.dying:
                await self._read_letters(group, partition, standing.dead, end_s)
                self.history.drained.append(
                    Drained(
                        group,
                        (self.topic, partition),
                        standing.position,
                        skipped=standing.skipped,
                        dropped=standing.dropped,
                        generation=standing.generation,
                        until_us=until_us,
                    )
                )
                return
            if not brought.messages:
                await asyncio.sleep(RETRY_S)
        raise InvariantViolation("QueuesDrain", f"{group} {partition}: {said}")

    async def _read_letters(self, group: str, partition: int, count: int, end_s: float) -> None:
        """All that the group has given."""
        found, loop = list[Letter](), self._simulation.loop
        while self.history.terms[group].dead == "letter":
            with contextlib.suppress(NoAnswer, Refused):
                found = await read_letters(self._simulation.work.some_agent(), self.topic, group, partition)
                if len(found) >= count:
                    break
            if loop.time() > end_s:
                raise InvariantViolation(
                    "QueuesDrain", f"{group} {partition}: {len(found)} of {count} letters"
                )
            await asyncio.sleep(RETRY_S)
        self.history.letters += found

    def append_time_us(self, partition: int) -> int | None:
        """What is due later is not asked for at the end; None: everything is."""
        return None

    @staticmethod
    async def _done(recorder: Recorder, ask: Ask, brought: Brought) -> None:
        partition = brought.partition
        if partition is not None:
            words = [
                Word("ack", given.receipt, partition, brought.delivery, brought.generation, (given.offset,))
                for given in brought.messages
            ]
            while not await recorder.act(ask.group, partition, ask.consumer, words):
                await asyncio.sleep(RETRY_S)

    def judge(self, finals: list[FinalLog]) -> None:
        """`finals`: the partitions of the topic as they were read. Raises InvariantViolation."""
        for final in finals:
            log = {offset: Logged(value, key_of(value)) for offset, value in final.records}
            self.history.logs[final.partition] = log
        starts = {final.partition: final.log_start_offset for final in finals}
        self.history.drained = [
            replace(item, log_start_offset=starts[item.partition]) for item in self.history.drained
        ]
        if any(change.kind == "redrive" for change in self.history.changes):
            values = (letter.value for letter in self.history.letters if letter.value is not None)
            self._simulation.history.may_be_copied.update(values)
        self.check()

    def check(self) -> None:
        """Raises InvariantViolation."""
        led = self._simulation.groups.led
        times = {place: led.get((self.by_due, place[1])) for place in self.places()}
        self.history.led = {place: begun for place, begun in times.items() if begun is not None}
        anomalies = GroupChecker(self.history).anomalies()
        if anomalies:
            raise InvariantViolation("GroupHistory", " | ".join(map(str, anomalies)))
