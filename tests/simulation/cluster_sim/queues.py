"""Consumer groups beside the other clients: a topic that groups work on, and what must be true of them.

Law of this file: it starts, drains and judges. What consumers do is group_clients.py's, what must hold of
what they saw group_checker.py's, and of every replica group_invariants.py's.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from group_checker import GroupChecker
from group_clients import (
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
from group_history import Drained, GroupHistory, GroupTerms, Logged
from log_history import FinalLog

from cluster_sim.group_invariants import GroupInvariants
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

    def __init__(self, simulation: ClusterSimulation) -> None:
        self._simulation = simulation
        self.history = GroupHistory()
        self.invariants = GroupInvariants(simulation.invariants, simulation.loop)
        self._settings = {name: SETTINGS[name] for name in simulation.knobs.groups if name in SETTINGS}
        self._gate = HttpGate(simulation.work, TOPIC)

    @property
    def is_on(self) -> bool:
        """Groups need a level that an upgrade, or a disaster, holds back."""
        simulation = self._simulation
        return bool(simulation.knobs.groups) and not simulation.knobs.upgrades and not simulation.holds_level

    def summary(self) -> str:
        """A part of a line; empty without groups."""
        history = self.history
        delivered = sum(len(receive.messages) for receive in history.answered())
        done = history.acknowledged_messages
        return f"{delivered} messages received, {done} done with, " if self.is_on else ""

    async def start(self) -> None:
        """The topic and its groups, as a client."""
        simulation, loop = self._simulation, self._simulation.loop
        await simulation.topics.create(TOPIC, simulation.topic_body(PARTITIONS))
        end_s = loop.time() + DRAIN_LIMIT_S
        for name, settings in self._settings.items():
            self.history.terms[name] = GroupTerms(
                settings["mode"], settings["max_attempts"], settings["dead"], SESSION_S
            )
            while not await self._is_made(name, settings):
                if loop.time() > end_s:
                    raise InvariantViolation("Liveness", f"group {name} cannot be made")
                await asyncio.sleep(RETRY_S)

    async def _is_made(self, name: str, settings: dict[str, Any]) -> bool:
        try:
            await self._gate.create(name, settings)
        except Refused:
            return False
        return True

    def clients(self) -> list[KeyProducer | GroupConsumer]:
        """Producers and consumers of the topic."""
        simulation = self._simulation
        found: list[KeyProducer | GroupConsumer] = []
        for number in range(PARTITIONS):
            found.append(
                KeyProducer(
                    simulation.work,
                    f"q{number}",
                    (TOPIC, number),
                    producer_id=f"{200 + number:032x}",
                    batch_max=simulation.knobs.batch_max,
                    pause_s=2 * simulation.knobs.producer_pause_ms / 1_000,
                    padding=simulation.knobs.padding,
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
                )
                for number in range(CONSUMERS)
            ]
        return found

    def _recorder(self) -> Recorder:
        return Recorder(self.history, HttpGate(self._simulation.work, TOPIC), TOPIC)

    # ---- the end ---------------------------------------------------------------------------------

    async def drain(self) -> None:
        """One fresh consumer a group and partition takes what is left. Raises InvariantViolation."""
        self.history.settled_at = self._simulation.loop.time() + SETTLES_S
        places = [(name, number) for name in self._settings for number in range(PARTITIONS)]
        await asyncio.gather(*(self._drain(*place) for place in places))

    async def _drain(self, group: str, partition: int) -> None:
        gate, loop = HttpGate(self._simulation.work, TOPIC), self._simulation.loop
        recorder = Recorder(self.history, gate, TOPIC)
        end_s, number, said = loop.time() + DRAIN_LIMIT_S, 0, ""
        consumer = f"drain.{group}.{partition}"
        while loop.time() < end_s:
            number += 1
            ask = Ask(group, partition, consumer, consumer, f"{consumer}.{number}", 100, DRAIN_LEASE_MS, 0)
            try:
                brought = await recorder.receive(ask)
                await self._done(recorder, ask, brought)
                standing = await gate.standing(group, partition)
            except Refused as error:
                said = str(error)
                await asyncio.sleep(RETRY_S)
                continue
            said = f"{brought.reason} {standing}"
            if not standing.lag and not brought.messages:
                self.history.drained.append(
                    Drained(
                        group,
                        (TOPIC, partition),
                        standing.position,
                        skipped=standing.skipped,
                        dropped=standing.dropped,
                        generation=standing.generation,
                    )
                )
                return
            if not brought.messages:
                await asyncio.sleep(RETRY_S)
        raise InvariantViolation("QueuesDrain", f"{group} {partition}: {said}")

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
        self.history.led = {(TOPIC, number): times for number, times in self.invariants.led.items()}
        anomalies = GroupChecker(self.history).anomalies()
        if anomalies:
            raise InvariantViolation("GroupHistory", " | ".join(map(str, anomalies)))
