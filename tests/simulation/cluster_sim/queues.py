"""Consumer groups beside the other clients: a topic that groups work on, and what must be true of them.

Law of this file: it starts, drains and judges. What consumers do is group_clients.py's, what must hold of
what they saw group_checker.py's, and of every replica group_invariants.py's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from group_clients import GroupConsumer, KeyProducer
from group_operator import Deed, GroupOperator
from group_work import GroupWork, NotInTime, settings_of
from log_history import FinalLog

from cluster_sim.invariants import InvariantViolation

if TYPE_CHECKING:
    from cluster_sim.simulation import ClusterSimulation

TOPIC = "queue"
PARTITIONS = 2
LIMIT_S = 60.0
SETTLES_S = 1.0
"""After clients have ended and all agents work: what was asked before is over then. A request of theirs waits
for 200 ms at most, and a way across the cluster takes 20."""


class Queues:
    """See the head of this file. Nothing happens in a simulation without groups."""

    topic = TOPIC
    noun = "messages"
    by_due = False
    first_producer = 200
    """Of its producers' numbers."""

    def __init__(self, simulation: ClusterSimulation) -> None:
        self._simulation = simulation
        self._work = GroupWork(
            simulation.work,
            self.topic,
            settings_of(self._modes(), letters=self._leaves_letters()),
            PARTITIONS,
            limit_s=LIMIT_S,
            until_us=self.append_time_us,
        )
        self.history = self._work.history

    def _modes(self) -> tuple[str, ...]:
        return self._simulation.knobs.groups

    def _leaves_letters(self) -> bool:
        return self._simulation.knobs.letters

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
        await self._simulation.topics.create(self.topic, self.topic_body())
        try:
            await self._work.create()
        except NotInTime as error:
            raise InvariantViolation("Liveness", str(error)) from None

    def topic_body(self) -> dict[str, Any]:
        """What the topic is made with."""
        return self._simulation.topic_body(PARTITIONS)

    def clients(self) -> list[KeyProducer | GroupConsumer | GroupOperator]:
        """Producers and consumers of the topic, and an operator."""
        pause_s = self._simulation.knobs.producer_pause_ms / 1_000
        return [*map(self.producer, self.places()), *self._work.clients(self._deeds(), pause_s)]

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

    # ---- the end ---------------------------------------------------------------------------------

    async def drain(self) -> None:
        """See GroupWork. Raises InvariantViolation."""
        self.history.settled_at = self._simulation.loop.time() + SETTLES_S
        try:
            await self._work.drain()
        except NotInTime as error:
            raise InvariantViolation("QueuesDrain", str(error)) from None

    def append_time_us(self, partition: int) -> int | None:
        """What is due later is not asked for at the end; None: everything is."""
        return None

    def judge(self, finals: list[FinalLog]) -> None:
        """`finals`: the partitions of the topic as they were read. Raises InvariantViolation."""
        self._work.read(finals)
        self.check()

    def check(self) -> None:
        """Raises InvariantViolation."""
        led = self._simulation.groups.led
        times = {place: led.get((self.by_due, place[1])) for place in self.places()}
        self.history.led = {place: begun for place, begun in times.items() if begun is not None}
        anomalies = self._work.anomalies()
        if anomalies:
            raise InvariantViolation("GroupHistory", " | ".join(map(str, anomalies)))
